mod delta;

pub use delta::MemoryDelta;

use crate::DType;
use serde::{Deserialize, Serialize};

/// Every allocation is a multiple of this, so that no two share a cache line.
pub const GRANULE_BYTES: u64 = 64;

/// Memory that a disk transfers straight from or to is a multiple of this, and begins at one: the strictest that disks ask for.
pub const PAGE_BYTES: u64 = 4096;

/// What memory is used for. The same six names stand in plans, records and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// This rank's share of the weights.
    Parameters,
    Gradients,
    /// Master weights and optimizer moments.
    Optimizer,
    /// What forward keeps for backward, and the flow between layers.
    Activations,
    /// Gathered weights, gradients on their way to a reduction, and wire copies.
    Communication,
    /// Scratch of single operations, tables and token ids.
    Workspace,
}

impl Category {
    /// All categories, in the order of reports.
    pub const ALL: [Category; 6] = [
        Category::Parameters,
        Category::Gradients,
        Category::Optimizer,
        Category::Activations,
        Category::Communication,
        Category::Workspace,
    ];

    /// The name used in records.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::Gradients => "gradients",
            Category::Optimizer => "optimizer",
            Category::Activations => "activations",
            Category::Communication => "communication",
            Category::Workspace => "workspace",
        }
    }
}

impl std::fmt::Display for Category {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes that an allocation of `len` elements counts for; `None` when that overflows.
pub fn footprint(dtype: DType, len: usize) -> Option<u64> {
    multiple_of(GRANULE_BYTES, dtype, len)
}

/// The same for an allocation in whole pages: see [`Arena::alloc_pages`](crate::Arena::alloc_pages).
pub fn footprint_pages(dtype: DType, len: usize) -> Option<u64> {
    multiple_of(PAGE_BYTES, dtype, len)
}

/// Bytes of `len` elements, rounded up.
pub(crate) fn multiple_of(unit: u64, dtype: DType, len: usize) -> Option<u64> {
    let bytes = (len as u64).checked_mul(dtype.size() as u64)?;
    bytes.checked_next_multiple_of(unit)
}

/// Live and peak bytes by category. An arena keeps one of what was really asked of it; a plan keeps one of what its
/// list of operations says will be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    live: [u64; 6],
    peak: [u64; 6],
    total_peak: u64,
    at_peak: [u64; 6],
}

impl Ledger {
    pub fn add(&mut self, category: Category, bytes: u64) {
        let i = category as usize;
        self.live[i] = self.live[i].saturating_add(bytes);
        self.peak[i] = self.peak[i].max(self.live[i]);
        let total = self.live_total();
        if total > self.total_peak {
            self.total_peak = total;
            self.at_peak = self.live;
        }
    }

    pub fn sub(&mut self, category: Category, bytes: u64) {
        let i = category as usize;
        debug_assert!(self.live[i] >= bytes, "{category}: released {bytes} of {}", self.live[i]);
        self.live[i] = self.live[i].saturating_sub(bytes);
    }

    /// Of ranks that take different memory: every category's largest peak, and all of the rank that takes most in total.
    #[must_use]
    pub fn of_the_largest(one: &Ledger, other: &Ledger) -> Ledger {
        let (larger, smaller) = if other.total_peak > one.total_peak { (other, one) } else { (one, other) };
        let peak = std::array::from_fn(|i| larger.peak[i].max(smaller.peak[i]));
        Ledger { peak, ..larger.clone() }
    }

    pub fn live(&self, category: Category) -> u64 {
        self.live[category as usize]
    }

    /// Bytes in use now, all categories.
    pub fn live_total(&self) -> u64 {
        self.live.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The most this category ever had in use.
    pub fn peak(&self, category: Category) -> u64 {
        self.peak[category as usize]
    }

    /// The most that was ever in use, all categories together.
    pub fn total_peak(&self) -> u64 {
        self.total_peak
    }

    /// What this category had in use when the total was largest (the first such moment).
    pub fn at_peak(&self, category: Category) -> u64 {
        self.at_peak[category as usize]
    }
}

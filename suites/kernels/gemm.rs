//! Matrix products: the cell, and its measurement.

use super::clock;
use super::numbers::{copied, places, random};
use super::{Device, Method, ceiling, device, oracle};
use crate::bench::{BenchError, BenchResult, BenchSpec, Limits};
use serde::{Deserialize, Serialize};
use zbench_host::machine;
use zbench_kernels::{
    Buffer, Category, Cpu, DType, Gemm, KernelError, Kernels, Normal, Op, View, footprint, no_scratch,
};
use zbench_predict::planned::gib;
use zbench_reports::bench::Timing;

/// Elements of the result that are compared with f64, at most and at least; fewer where the sums are long.
const SAMPLED: (usize, usize) = (256, 16);
/// Multiply-adds of the comparison, about.
const SAMPLED_WORK: usize = 1 << 26;
/// Rotating buffers take this many times the last cache together.
const CACHES: u64 = 4;
/// The last cache where the machine does not show it.
const USUAL_CACHE: u64 = 32 << 20;
/// Sets of buffers at most.
const MOST_SETS: u64 = 1 << 14;

/// One matrix product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// `MxNxK`.
    pub shape: String,
    pub m: usize,
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// `nn`, `nt`, `tn`, `tt`: how A and B are stored.
    pub layout: String,
    /// Type of A and B.
    pub dtype: DType,
    /// Type of C.
    pub output: DType,
    pub accumulate: bool,
    /// `rotate` or `hot`.
    pub buffers: String,
}

/// Where a model's step has a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// The layer's name in the engine's ledger.
    pub layer: String,
    /// `forward`, `dx`, `dw`, or `again` where checkpointing repeats it.
    pub pass: String,
    /// How often in a step of a rank.
    pub count: u64,
}

/// The batch of the step that a product is from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub micro_batch: usize,
    pub seq_len: usize,
    pub accumulation: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GemmCell {
    pub suite: String,
    pub gemm: Product,
    pub hardware: Device,
    pub bench: Method,
    /// The model that the product is from; empty where shapes were given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// Where the step has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<Use>,
}

/// The name of how A and B are stored.
pub fn layout(op: &Gemm) -> &'static str {
    match (op.trans_a, op.trans_b) {
        (false, false) => "nn",
        (false, true) => "nt",
        (true, false) => "tn",
        (true, true) => "tt",
    }
}

impl Product {
    pub fn of_op(op: &Gemm, buffers: &str) -> Product {
        Product {
            shape: format!("{}x{}x{}", op.m, op.n, op.k),
            m: op.m,
            n: op.n,
            k: op.k,
            layout: layout(op).into(),
            dtype: op.a,
            output: op.c,
            accumulate: op.accumulate,
            buffers: buffers.into(),
        }
    }

    pub fn op(&self) -> Gemm {
        let stored = |place: usize| self.layout.as_bytes().get(place) == Some(&b't');
        Gemm {
            m: self.m,
            n: self.n,
            k: self.k,
            trans_a: stored(0),
            trans_b: stored(1),
            alpha: 1.0,
            accumulate: self.accumulate,
            a: self.dtype,
            b: self.dtype,
            c: self.output,
            ..Gemm::DENSE
        }
    }

    /// Elements of A, B and C; absent where that is more than a number holds.
    fn sizes(&self) -> Option<[usize; 3]> {
        Some([self.m.checked_mul(self.k)?, self.k.checked_mul(self.n)?, self.m.checked_mul(self.n)?])
    }

    /// Bytes of one A, B and C together.
    fn bytes(&self) -> Option<u64> {
        let [a, b, c] = self.sizes()?;
        let parts = [footprint(self.dtype, a)?, footprint(self.dtype, b)?, footprint(self.output, c)?];
        parts.into_iter().try_fold(0u64, u64::checked_add)
    }
}

impl BenchSpec for GemmCell {
    fn plain(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn label(&self) -> String {
        let Product { shape, layout, dtype, output, accumulate, .. } = &self.gemm;
        let into = match (dtype == output, accumulate) {
            (true, false) => String::new(),
            (_, true) => format!(" += {output}"),
            (false, false) => format!(" into {output}"),
        };
        format!("{shape} {layout} {dtype}{into}, {}", self.hardware.label())
    }

    /// Bytes of one set of buffers and the scratch.
    fn needs(&self) -> Option<u64> {
        let op = self.gemm.op();
        if !op.a.is_float() || op.a == DType::F64 || !op.c.is_float() || op.c == DType::F64 {
            return None;
        }
        // More than an address, and no kernel is asked for its scratch.
        let bytes = self.gemm.bytes().filter(|bytes| *bytes < 1 << 56)?;
        let scratch = Cpu::new(1).workspace(&Op::Gemm(op));
        bytes.checked_add(footprint(DType::F32, scratch)?)
    }

    fn asks_for_gpu(&self) -> Option<String> {
        (self.hardware.device == "cuda").then(|| "hardware.device = \"cuda\"".into())
    }

    fn measure(&self, limits: &Limits<'_>, _folder: &std::path::Path) -> Result<BenchResult, BenchError> {
        measure(self, limits)
    }
}

/// The specification that a record's cell holds.
pub fn of_plain(cell: &serde_json::Value) -> Option<Box<dyn BenchSpec>> {
    serde_json::from_value::<GemmCell>(cell.clone()).ok().map(|cell| -> Box<dyn BenchSpec> { Box::new(cell) })
}

impl GemmCell {
    /// Sets of buffers: one if hot, else so many that a cache holds few of them.
    fn sets(&self, bytes: u64) -> u64 {
        if self.gemm.buffers == "hot" {
            return 1;
        }
        let cache = machine::last_level_cache_bytes().unwrap_or(USUAL_CACHE);
        let room = machine::memory_bytes("MemAvailable").unwrap_or(u64::MAX) / 4;
        let wanted = (CACHES * cache).min(room);
        wanted.div_ceil(bytes.max(1)).clamp(1, MOST_SETS)
    }
}

/// The memory of one product.
struct Set {
    a: Buffer,
    b: Buffer,
    c: Buffer,
}

impl Set {
    fn multiply(&mut self, kernels: &dyn Kernels, op: &Gemm, scratch: &mut Buffer) -> Result<(), KernelError> {
        let reads = [self.a.view(), self.b.view()];
        kernels.run(&Op::Gemm(*op), &reads, &mut [self.c.view_mut()], scratch.view_mut())
    }
}

fn measure(cell: &GemmCell, limits: &Limits<'_>) -> Result<BenchResult, BenchError> {
    let op = cell.gemm.op();
    let bytes = cell.gemm.bytes().unwrap_or(u64::MAX);
    let count = cell.sets(bytes);
    let kernels = device::kernels(&cell.hardware)?;
    let kernels = &*kernels;
    device::fits_now(kernels, bytes.saturating_mul(count))?;
    let arena = kernels.arena(None, 1)?;
    let mut sets: Vec<Set> = Vec::new();
    // They were multiplied before, without overflow.
    let [a, b, c] = cell.gemm.sizes().unwrap_or_default();
    for _ in 0..count {
        limits.check()?;
        let buffer = |dtype, len, part: u64| -> Result<Buffer, BenchError> {
            let Some(first) = sets.first() else {
                return random(&arena, kernels, Category::Workspace, dtype, len, part);
            };
            // Other memory with the same numbers: a cache knows addresses.
            let mut copy = arena.alloc(Category::Workspace, dtype, len)?;
            let from = match part {
                0 => &first.a,
                1 => &first.b,
                _ => &first.c,
            };
            kernels.copy(from.view(), copy.view_mut())?;
            Ok(copy)
        };
        let set = Set { a: buffer(op.a, a, 0)?, b: buffer(op.b, b, 1)?, c: buffer(op.c, c, 2)? };
        sets.push(set);
    }
    let mut scratch = arena.alloc(Category::Workspace, DType::F32, kernels.workspace(&Op::Gemm(op)))?;
    let workspace_bytes = footprint(DType::F32, scratch.len());
    let mut next = 0;
    let mut checks = Vec::new();
    let (samples, ceiling) = ceiling::beside(&cell.hardware, op.a, || -> Result<_, BenchError> {
        // What was not overwritten by the first call, and what many calls left, shows in the same way.
        checks.push(check(kernels, &op, &mut sets[0], &mut scratch)?);
        let mut call = || -> Result<(), BenchError> {
            let set = &mut sets[next];
            next = (next + 1) % count as usize;
            Ok(set.multiply(kernels, &op, &mut scratch)?)
        };
        let samples = clock::time(&cell.bench, limits, kernels, &mut call)?;
        let last = sets.len() - 1;
        // An accumulated C has grown; a fresh one has room for the same check.
        let set = &mut sets[last];
        let fresh = Normal { len: set.c.len(), std: 1.0, seed: 3 * count + 2, first: 0, dtype: op.c };
        kernels.run(&Op::Normal(fresh), &[], &mut [set.c.view_mut()], no_scratch())?;
        checks.push(check(kernels, &op, set, &mut scratch)?);
        Ok(samples)
    })?;
    let worst = checks.iter().map(|check| check.worst).fold(0.0, f64::max);
    let wrong = checks.iter().find_map(|check| check.first_wrong.clone());
    let mut timing = device::timing(&samples, Op::Gemm(op).flops(), ceiling.gflops);
    timing = Timing {
        kernel: "gemm".into(),
        workspace_bytes,
        checked: checks.iter().map(|check| check.count).sum(),
        worst,
        trouble: wrong.clone().unwrap_or_default(),
        ..timing
    };
    let notes = match cell.gemm.buffers.as_str() {
        "hot" => vec!["The same buffers in every call: what fits a cache stays in it.".to_string()],
        _ if count == 1 => vec![format!("One set of buffers, {}: no cache holds much of it.", gib(bytes))],
        _ => vec![format!("{count} sets of buffers of {} in turn.", gib(bytes))],
    };
    Ok(BenchResult { timings: vec![timing], ceiling, notes, wrong, ..BenchResult::default() })
}

/// One call, and a sample of its result against f64.
fn check(kernels: &dyn Kernels, op: &Gemm, set: &mut Set, scratch: &mut Buffer) -> Result<oracle::Checked, BenchError> {
    let count = (SAMPLED_WORK / op.k.max(1)).clamp(SAMPLED.1, SAMPLED.0);
    // A plane of places: rows and columns by themselves, so that the corners are among them.
    let side = count.isqrt().max(2);
    let (rows, columns) = (places(op.m, side, 11), places(op.n, side, 13));
    let all: Vec<(usize, usize)> = rows.iter().flat_map(|i| columns.iter().map(move |j| (*i, *j))).collect();
    let seen = |buffer: &Buffer| copied(kernels, buffer);
    let old = seen(&set.c)?;
    let before = oracle::elements(op, old.as_ref().unwrap_or(&set.c).view(), &all);
    drop(old);
    set.multiply(kernels, op, scratch)?;
    let copies = [seen(&set.a)?, seen(&set.b)?, seen(&set.c)?];
    let [a, b, c] = &copies;
    let [a, b, c] = [(a, &set.a), (b, &set.b), (c, &set.c)].map(|(copy, own)| copy.as_ref().unwrap_or(own).view());
    let operands: [View<'_>; 3] = [a, b, c];
    Ok(oracle::gemm(op, operands, &before, &all))
}

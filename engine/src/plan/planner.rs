//! Plans of many cells, as a grid or a search has them.

use super::{Plan, PlanError};
use crate::config::{AttentionKind, Cell, DeviceKind, Lora, Model};
use crate::hardware::{self, HardwareError};
use crate::model::{Basis, Layout};
use std::cell::RefCell;
use std::sync::Arc;
use zbench_kernels::{Cpu, Kernels};

/// Kernels that are kept; each has threads, which sleep.
const MOST_KERNELS: usize = 16;
/// Tensors of all layouts that are kept: some tens of megabytes.
const MOST_TENSORS: usize = 1 << 17;

/// Makes the plans that [`Plan::new`] makes, and keeps what cells have in common: kernels by threads and instructions,
/// layouts by what they depend on. Plans are the same whatever was planned before.
#[derive(Default)]
pub struct Planner {
    kernels: RefCell<Vec<(Threads, Arc<dyn Kernels>)>>,
    /// The one made last is the last.
    layouts: RefCell<Vec<Kept>>,
}

/// Of which device, how many, and with which instructions.
type Threads = (DeviceKind, usize, Option<String>);

#[derive(Debug)]
struct Kept {
    model: Model,
    lora: Lora,
    attention: AttentionKind,
    granule: usize,
    ranks: usize,
    layout: Arc<Layout>,
}

impl Kept {
    fn basis(&self) -> Basis<'_> {
        let Kept { model, lora, attention, granule, ranks, .. } = self;
        Basis { model, lora, attention: *attention, granule: *granule, ranks: *ranks }
    }
}

impl Planner {
    /// Plans a cell.
    ///
    /// # Errors
    /// The cell cannot be run.
    pub fn plan(&self, cell: &Cell) -> Result<Plan, PlanError> {
        // The kernels are asked for their scratch sizes, which depend on the threads of a rank; nothing runs on them.
        Plan::with(cell, &*self.kernels_here(cell), |ranks| self.layout(cell, ranks))
    }

    /// The kernels that a cell is planned with: where its instructions are not those of this CPU, what is here.
    pub fn kernels_here(&self, cell: &Cell) -> Arc<dyn Kernels> {
        let threads = cell.hardware.threads_per_rank;
        self.kernels(cell)
            .unwrap_or_else(|_| self.kept((DeviceKind::Cpu, threads, None), || Arc::new(Cpu::new(threads))))
    }

    /// [`hardware::planner`] of a cell.
    ///
    /// # Errors
    /// No rank could have them here.
    pub fn kernels(&self, cell: &Cell) -> Result<Arc<dyn Kernels>, HardwareError> {
        let hardware = &cell.hardware;
        let key: Threads = (hardware.device, hardware.threads_per_rank, hardware.instructions.clone());
        if let Some(found) = self.found(&key) {
            return Ok(found);
        }
        let made = hardware::planner(cell)?;
        Ok(self.kept(key, || made))
    }

    fn found(&self, key: &Threads) -> Option<Arc<dyn Kernels>> {
        self.kernels.borrow().iter().find(|(known, _)| known == key).map(|(_, kernels)| kernels.clone())
    }

    fn kept(&self, key: Threads, make: impl FnOnce() -> Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        self.found(&key).unwrap_or_else(|| {
            let made = make();
            let mut kernels = self.kernels.borrow_mut();
            if kernels.len() == MOST_KERNELS {
                kernels.remove(0);
            }
            kernels.push((key, made.clone()));
            made
        })
    }

    /// The layout of a cell's model for `ranks`.
    pub fn layout(&self, cell: &Cell, ranks: usize) -> Arc<Layout> {
        let basis = Basis::of(cell, ranks);
        let mut layouts = self.layouts.borrow_mut();
        if let Some(kept) = layouts.iter().rev().find(|kept| kept.basis() == basis) {
            return kept.layout.clone();
        }
        let layout = Arc::new(Layout::on(basis));
        let Basis { attention, granule, .. } = basis;
        let (model, lora) = (cell.model.clone(), cell.lora.clone());
        layouts.push(Kept { model, lora, attention, granule, ranks, layout: layout.clone() });
        let tensors = |kept: &Kept| kept.layout.units.iter().map(|unit| unit.tensors.len()).sum::<usize>();
        let mut all: usize = layouts.iter().map(tensors).sum();
        while all > MOST_TENSORS {
            all -= tensors(&layouts.remove(0));
        }
        layout
    }
}

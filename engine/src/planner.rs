//! Makes plans: the layout of a model, the actions of a step, and what they take, from a dry run of them.

pub mod clock;
pub mod curves;
mod dry;
mod flops;
mod short;

pub use dry::RecordedAction;
pub use flops::ledger_terms;

use crate::actions::{EvaluationActions, Policy, Schedule, actions, evaluation_actions};
use crate::config::{AttentionKind, Cell, DeviceKind, Lora, Model};
use crate::error::StepError;
use crate::hardware::{self, HardwareError};
use crate::mesh::Mesh;
use crate::model::{FlatKind, Layout, LayoutKey};
use crate::outcome::Estimate;
use crate::plan::{Plan, PlanError, check};
use crate::recorder::Recorded;
use crate::shard::slotted;
use crate::strategy::{self, Sharding};
use dry::DryRun;
use short::ShortPlan;
use std::cell::RefCell;
use std::sync::Arc;
use zbench_kernels::{Cpu, Kernels};

impl Plan {
    /// Plans a cell for ranks that compute with `kernels` (their scratch sizes count).
    pub fn new(cell: &Cell, kernels: &dyn Kernels) -> Result<Plan, PlanError> {
        Plan::with(cell, kernels, |ranks| Arc::new(Layout::new(cell, ranks)))
    }

    /// As [`Plan::new`] with the cell's layout for a number of ranks from where layouts are kept.
    fn with(cell: &Cell, kernels: &dyn Kernels, layout: impl FnOnce(usize) -> Arc<Layout>) -> Result<Plan, PlanError> {
        check(cell)?;
        let mesh = strategy::mesh(&cell.parallel)?;
        let sharding = Sharding::of(cell.parallel.strategy);
        let layout = layout(mesh.world());
        if cell.memory.prepack && FlatKind::ALL.iter().any(|&p| p != FlatKind::Quantised && slotted(cell, &sharding, p))
        {
            let reason = "\"step\" keeps weights that are whole at home in the compute type; write \"none\", or take ddp, \
                          zero1 or zero2 with precision.parameters equal to precision.compute";
            return Err(PlanError { key: "memory.prepack", reason: reason.into() });
        }
        let policy = Policy::of(&cell.memory.checkpointing, layout.blocks.len());
        let mut plan = Plan::assemble(cell, layout, mesh, sharding, policy);
        let short = ShortPlan::of(&plan, cell.parallel.prefetch, |layout| {
            Plan::assemble(cell, layout, mesh, sharding, plan.policy.clone())
        });
        plan.estimate = plan
            .dry_run(cell, kernels, short.as_ref(), 0, false)
            .map_err(|error| PlanError { key: "train.micro_batch", reason: error.to_string() })?
            .0;
        Ok(plan)
    }

    /// A plan without its estimate.
    fn assemble(cell: &Cell, layout: Arc<Layout>, mesh: Mesh, sharding: Sharding, policy: Policy) -> Plan {
        let trainable: Vec<_> = layout.units.iter().map(|u| u.trainable().len > 0).collect();
        let stale: Vec<_> = trainable.iter().map(|t| *t && !sharding.parameters.includes(sharding.optimizer)).collect();
        let slotted: Vec<_> = layout
            .units
            .iter()
            .map(|u| FlatKind::ALL.iter().any(|&p| u.flat(p).len > 0 && slotted(cell, &sharding, p)))
            .collect();
        let schedule = Schedule {
            blocks: layout.blocks.len(),
            accumulation: cell.train.accumulation,
            reshard: sharding.reshard,
            prefetch: cell.parallel.prefetch,
            tied: layout.head.tied,
            embedding_reads: layout.embedding.reads_weights(),
            trainable: &trainable,
            stale: &stale,
            slotted: &slotted,
            policy: &policy,
        };
        let actions = actions(&schedule);
        let evaluation =
            if cell.evaluation().is_some() { evaluation_actions(&schedule) } else { EvaluationActions::default() };
        Plan { layout, mesh, sharding, policy, actions, evaluation, estimate: Estimate::default() }
    }

    /// The estimate with every action performed, where [`Plan::estimate`] counts what repeats: the same.
    pub fn estimate_block_by_block(&self, cell: &Cell, kernels: &dyn Kernels) -> Estimate {
        self.dry_run(cell, kernels, None, 0, true).expect(RAN).0
    }

    /// The operations of one step of a rank, in order. Ranks differ only in where their part of a flat crosses from one tensor to the
    /// next.
    pub fn operations(&self, cell: &Cell, kernels: &dyn Kernels, rank: usize) -> Vec<Recorded> {
        self.dry_run(cell, kernels, None, rank, true).expect(RAN).1
    }

    /// The same by action, with each action's collectives.
    pub fn recorded_actions<'a>(
        &'a self,
        cell: &'a Cell,
        kernels: &'a dyn Kernels,
        rank: usize,
    ) -> impl Iterator<Item = RecordedAction> + 'a {
        let mut run = DryRun::new(cell, kernels, (self, None), rank, true).expect(RAN);
        self.actions.iter().map(move |action| run.recorded(*action).expect(RAN))
    }

    fn dry_run(
        &self,
        cell: &Cell,
        kernels: &dyn Kernels,
        short: Option<&ShortPlan>,
        rank: usize,
        keeps_operations: bool,
    ) -> Result<(Estimate, Vec<Recorded>), StepError> {
        let mut run = DryRun::new(cell, kernels, (self, short), rank, keeps_operations)?;
        run.step()?;
        run.finish()
    }
}

/// Why a dry run of a plan does not fail.
const RAN: &str = "the same actions ran dry when the plan was made";

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
    layouts: RefCell<Vec<CachedLayout>>,
}

/// Of which device, how many, and with which instructions.
type Threads = (DeviceKind, usize, Option<String>);

#[derive(Debug)]
struct CachedLayout {
    model: Model,
    lora: Lora,
    attention: AttentionKind,
    granule: usize,
    ranks: usize,
    layout: Arc<Layout>,
}

impl CachedLayout {
    fn basis(&self) -> LayoutKey<'_> {
        let CachedLayout { model, lora, attention, granule, ranks, .. } = self;
        LayoutKey { model, lora, attention: *attention, granule: *granule, ranks: *ranks }
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
        let basis = LayoutKey::of(cell, ranks);
        let mut layouts = self.layouts.borrow_mut();
        if let Some(kept) = layouts.iter().rev().find(|kept| kept.basis() == basis) {
            return kept.layout.clone();
        }
        let layout = Arc::new(Layout::on(basis));
        let LayoutKey { attention, granule, .. } = basis;
        let (model, lora) = (cell.model.clone(), cell.lora.clone());
        layouts.push(CachedLayout { model, lora, attention, granule, ranks, layout: layout.clone() });
        let tensors = |kept: &CachedLayout| kept.layout.units.iter().map(|unit| unit.tensors.len()).sum::<usize>();
        let mut all: usize = layouts.iter().map(tensors).sum();
        while all > MOST_TENSORS {
            all -= tensors(&layouts.remove(0));
        }
        layout
    }
}

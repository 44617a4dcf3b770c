//! Makes plans: the layout of a model, the actions of a step, and what they take, from a dry run of them.

pub mod clock;
mod compressed;
pub mod curves;
mod cut;
mod deadlock;
mod dry;
mod evict;
mod flops;
mod pipelines;
mod stages;
mod tensors;
mod unrunnable;

pub use dry::RecordedAction;
pub use flops::ledger_terms;

use crate::action::{Action, EvaluationActions};
use crate::compute::error::StepError;
use crate::compute::hardware;
use crate::compute::hardware::HardwareError;
use crate::compute::recorder::Recorded;
use crate::config::{AttentionKind, Cell, Checkpointing, Degrees, DeviceKind, Lora, Model};
use crate::mesh::Axes;
use crate::mesh::strategy;
use crate::mesh::strategy::Sharding;
use crate::model::{FlatKind, Layer, LayerKind, Layout, LayoutKey};
use crate::observe::outcome::Estimate;
use crate::plan::Squares;
use crate::plan::offload;
use crate::plan::offload::schedule::Offload;
use crate::plan::pipeline;
use crate::plan::pipeline::Pipeline;
use crate::plan::placement::{StateTiers, is_gathered};
use crate::plan::schedule::{Policy, Schedule, actions, evaluation_actions};
use crate::plan::{Plan, PlanError, StagePlan, check, runs};
use compressed::CompressedPlan;
use dry::DryRun;
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use zbench_kernels::{Cpu, Kernels};

impl Plan {
    /// Plans a cell for ranks that compute with `kernels` (their scratch sizes count).
    pub fn new(cell: &Cell, kernels: &dyn Kernels) -> Result<Plan, PlanError> {
        Plan::with(cell, kernels, |ranks| Arc::new(Layout::new(cell, ranks)))
    }

    /// Plans a cell that the engine does not run yet, as far as its layers know how: see [`Cell::first_priced_key`].
    ///
    /// # Errors
    /// The cell cannot be planned.
    pub fn unrunnable(cell: &Cell, kernels: &dyn Kernels) -> Result<Plan, PlanError> {
        Plan::of(cell, kernels, |ranks| Arc::new(Layout::new(cell, ranks)))
    }

    /// As [`Plan::new`] with the cell's layout for a number of ranks from where layouts are kept.
    fn with(cell: &Cell, kernels: &dyn Kernels, layout: impl FnOnce(usize) -> Arc<Layout>) -> Result<Plan, PlanError> {
        runs(cell)?;
        Plan::of(cell, kernels, layout)
    }

    fn of(cell: &Cell, kernels: &dyn Kernels, layout: impl FnOnce(usize) -> Arc<Layout>) -> Result<Plan, PlanError> {
        check(cell)?;
        unrunnable::check(cell)?;
        let mesh = strategy::mesh(&cell.parallel)?;
        let sharding = Sharding::of(cell.parallel.strategy);
        let layout = layout(mesh.size(Axes::DATA));
        tensors::check(cell, &layout)?;
        if cell.memory.prepack
            && FlatKind::ALL.iter().any(|&p| p != FlatKind::Quantised && is_gathered(cell, &sharding, p))
        {
            let reason = "\"step\" keeps weights that every rank stores whole in the compute type; write \"none\", or take ddp, \
                          zero1 or zero2 with precision.parameters equal to precision.compute";
            return Err(PlanError { key: "memory.prepack", reason: reason.into() });
        }
        offload::check(cell, &sharding)?;
        let policy = Policy::of(&cell.memory.checkpointing, layout.blocks().count());
        let evicts = evict::capacity(cell)?;
        pipelines::check(cell, &layout)?;
        let stages = stages(cell, &layout);
        let squares = squares(&layout, &stages);
        let mut plan = Plan { layout, mesh, sharding, policy, squares, stage_plans: Vec::new() };
        for (stage, chunks) in stages.iter().enumerate() {
            let of_stage = match stages.len() {
                1 => plan.layout.clone(),
                _ => Arc::new(plan.layout.stage(chunks)),
            };
            let mut stage_plan = plan.stage_plan(cell, of_stage, stage);
            let compressed =
                CompressedPlan::of(cell, &plan, &stage_plan, |layout| plan.stage_plan(cell, layout, stage));
            // The stages are the outermost axis.
            let first_rank = stage * (mesh.world() / stages.len());
            let estimate = plan.dry_run(cell, kernels, (&stage_plan, compressed.as_ref()), first_rank, false);
            stage_plan.estimate = estimate.map_err(unplannable)?.0;
            if let Some(capacity) = evicts.filter(|capacity| stage_plan.estimate.memory().total_peak() > *capacity) {
                stage_plan =
                    plan.evicted(cell, kernels, (stage_plan, stage, first_rank), capacity).map_err(unplannable)?;
            }
            plan.stage_plans.push(stage_plan);
        }
        plan.check_messages()?;
        Ok(plan)
    }

    /// What the ranks of a stage do, without its estimate.
    fn stage_plan(&self, cell: &Cell, layout: Arc<Layout>, stage: usize) -> StagePlan {
        let Ok(stage_plan) = self.stage_plan_with::<Infallible>(cell, layout, stage, |schedule| Ok(actions(schedule)));
        stage_plan
    }

    /// As [`Plan::stage_plan`] with the actions of a step from `list`.
    fn stage_plan_with<E>(
        &self,
        cell: &Cell,
        layout: Arc<Layout>,
        stage: usize,
        list: impl FnOnce(&Schedule<'_>) -> Result<Vec<Action>, E>,
    ) -> Result<StagePlan, E> {
        let sharding = &self.sharding;
        let trainable: Vec<_> = layout.units.iter().map(|u| u.trainable().len > 0).collect();
        let is_stale = !sharding.parameters.includes(sharding.optimizer);
        let stale: Vec<_> = trainable.iter().map(|t| *t && is_stale).collect();
        let is_gathered: Vec<_> = layout
            .units
            .iter()
            .map(|u| FlatKind::ALL.iter().any(|&p| u.flat(p).len > 0 && is_gathered(cell, sharding, p)))
            .collect();
        let passes = Pipeline::of(&cell.parallel.degrees, cell.train.accumulation).passes(stage);
        let schedule = Schedule {
            layers: &layout.layers,
            chunks: &layout.chunks,
            units: layout.units.len(),
            passes: &passes,
            reshard: sharding.reshard,
            prefetch: cell.parallel.prefetch,
            trainable: &trainable,
            stale: &stale,
            tied: layout.tied,
            is_gathered: &is_gathered,
            policy: &self.policy,
        };
        let tiers = StateTiers::of(cell, sharding);
        let keeps_input = kept_inputs(&layout, &self.policy);
        let keeps_some = |(layer, keeps_input): (&Layer, &bool)| {
            layer.block().is_some() && (*keeps_input || !self.policy.keep.is_empty())
        };
        let keeps: Vec<bool> = layout.layers.iter().zip(&keeps_input).map(keeps_some).collect();
        let prefetch = cell.memory.offload_prefetch;
        let (layers, delayed) = (&layout.layers[..], cell.train.is_delayed());
        // Evictions say themselves what goes.
        let keeps = if cell.memory.checkpointing == Checkpointing::Evict { Vec::new() } else { keeps };
        let offload = Offload { tiers: &tiers, layers, delayed, prefetch, trainable: &trainable, keeps: &keeps };
        let actions = offload.apply(list(&schedule)?);
        let evaluation = cell.evaluation().map_or_else(EvaluationActions::default, |_| {
            let EvaluationActions { first, next, end } = evaluation_actions(&schedule);
            // Nothing is kept.
            let offload = Offload { keeps: &[], ..offload };
            let [first, next, end] = [first, next, end].map(|actions| offload.apply(actions));
            EvaluationActions { first, next, end }
        });
        let wants_gradient = wanted_gradients(&layout.layers, &trainable);
        let in_flight = pipeline::in_flight(&passes).max(1);
        let estimate = Estimate::default();
        Ok(StagePlan { layout, in_flight, keeps_input, wants_gradient, actions, evaluation, estimate })
    }

    /// The estimate of a rank with every action performed, where [`StagePlan::estimate`] counts what repeats: the same.
    pub fn estimate_block_by_block(&self, cell: &Cell, kernels: &dyn Kernels, rank: usize) -> Estimate {
        self.dry_run(cell, kernels, (self.stage_plan_of(rank), None), rank, true).expect(RAN).0
    }

    /// The operations of one step of a rank, in order. Ranks differ only in where their part of a flat crosses from one tensor to the
    /// next.
    pub fn operations(&self, cell: &Cell, kernels: &dyn Kernels, rank: usize) -> Vec<Recorded> {
        self.dry_run(cell, kernels, (self.stage_plan_of(rank), None), rank, true).expect(RAN).1
    }

    /// The same by action, with each action's collectives.
    pub fn recorded_actions<'a>(
        &'a self,
        cell: &'a Cell,
        kernels: &'a dyn Kernels,
        rank: usize,
    ) -> impl Iterator<Item = RecordedAction> + 'a {
        let stage_plan = self.stage_plan_of(rank);
        let mut run = DryRun::new(cell, kernels, (self, stage_plan, None), rank, true).expect(RAN);
        stage_plan.actions.iter().map(move |action| run.recorded(*action).expect(RAN))
    }

    /// The same of one rank of each stage, as [`clock::Clock::time`] takes them.
    pub fn recorded_stages<'a>(
        &'a self,
        cell: &'a Cell,
        kernels: &'a dyn Kernels,
    ) -> impl Iterator<Item = impl Iterator<Item = RecordedAction> + 'a> + 'a {
        (0..self.stage_plans.len()).map(move |stage| self.recorded_actions(cell, kernels, self.rank(stage)))
    }

    fn dry_run(
        &self,
        cell: &Cell,
        kernels: &dyn Kernels,
        (stage_plan, compressed): (&StagePlan, Option<&CompressedPlan>),
        rank: usize,
        keeps_operations: bool,
    ) -> Result<(Estimate, Vec<Recorded>), StepError> {
        let mut run = DryRun::new(cell, kernels, (self, stage_plan, compressed), rank, keeps_operations)?;
        run.step()?;
        run.finish()
    }
}

fn unplannable(error: StepError) -> PlanError {
    PlanError { key: "train.micro_batch", reason: error.to_string() }
}

/// By stage: its chunks of layers.
fn stages(cell: &Cell, layout: &Layout) -> Vec<Vec<Range<usize>>> {
    let Degrees { pipeline: stages, virtual_stages: chunks, .. } = cell.parallel.degrees;
    if stages == 1 {
        return vec![std::iter::once(0..layout.layers.len()).collect()];
    }
    let cuts = cuts(cell, layout, stages * chunks);
    // Chunk c of stage i is part c * stages + i of the model.
    (0..stages).map(|stage| cuts.iter().skip(stage).step_by(stages).cloned().collect()).collect()
}

/// The layers of each part of the model.
fn cuts(cell: &Cell, layout: &Layout, parts: usize) -> Vec<Range<usize>> {
    let is_block: Vec<bool> = layout.layers.iter().map(|layer| layer.block().is_some()).collect();
    if !cell.parallel.pipeline_split.is_empty() {
        return cut::stated(&cell.parallel.pipeline_split, &is_block);
    }
    let costs: Vec<u64> = layout.layers.iter().map(|layer| layout.products_of(layer, cell.train.seq_len)).collect();
    cut::balanced(&costs, &is_block, parts)
}

/// Where the stages with these chunks have the sums of squares of gradients.
fn squares(layout: &Layout, stages: &[Vec<Range<usize>>]) -> Squares {
    let (mut places, mut order) = (vec![0; stages.len()], Vec::new());
    for chunk in 0..stages.first().map_or(0, Vec::len) {
        for (stage, chunks) in stages.iter().enumerate() {
            let layers = layout.layers[chunks[chunk].clone()].iter();
            let units = layers.flat_map(|layer| [Some(layer.unit), layer.second]).flatten();
            for _ in units.filter(|unit| layout.units[*unit].trainable().len > 0) {
                order.push([stage, places[stage]]);
                places[stage] += 1;
            }
        }
    }
    Squares { order, most: places.into_iter().max().unwrap_or(0) }
}

/// By layer: whether forward keeps its input: of every run of blocks the first, and each [`Policy::every`]-th behind it.
fn kept_inputs(layout: &Layout, policy: &Policy) -> Vec<bool> {
    let mut run = 0;
    let is_kept = |(number, layer): (usize, &Layer)| {
        let place = if layout.begins_chunk(number) { 0 } else { run };
        run = if layer.block().is_some() { place + 1 } else { 0 };
        layer.block().is_some() && policy.keeps_input(place)
    };
    layout.layers.iter().enumerate().map(is_kept).collect()
}

/// By layer: whether something reads the gradient of its input: a block before it, an embedding that trains, another stage.
fn wanted_gradients(layers: &[Layer], trainable: &[bool]) -> Vec<bool> {
    let before = std::iter::once(None).chain(layers.iter().map(Some));
    let wants = |before: Option<&Layer>| match before {
        Some(Layer { kind: LayerKind::Embedding(_), unit, .. }) => trainable[*unit],
        _ => true,
    };
    before.take(layers.len()).map(wants).collect()
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
    cut: Degrees,
    decoder_layers: Option<usize>,
    layout: Arc<Layout>,
}

impl CachedLayout {
    fn basis(&self) -> LayoutKey<'_> {
        let CachedLayout { model, lora, attention, granule, ranks, cut, decoder_layers, .. } = self;
        LayoutKey {
            model,
            lora,
            attention: *attention,
            granule: *granule,
            ranks: *ranks,
            cut: *cut,
            decoder_layers: *decoder_layers,
        }
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
        let LayoutKey { attention, granule, cut, decoder_layers, .. } = basis;
        let (model, lora) = (cell.model.clone(), cell.lora.clone());
        layouts.push(CachedLayout {
            model,
            lora,
            attention,
            granule,
            ranks,
            cut,
            decoder_layers,
            layout: layout.clone(),
        });
        let tensors = |kept: &CachedLayout| kept.layout.units.iter().map(|unit| unit.tensors.len()).sum::<usize>();
        let mut all: usize = layouts.iter().map(tensors).sum();
        while all > MOST_TENSORS {
            all -= tensors(&layouts.remove(0));
        }
        layout
    }
}

//! The executor of a plan: what one rank holds, and what each action does to it. A run and a plan's estimate go through the same code;
//! for an estimate the device computes nothing ([`crate::compute::context`]).

mod act;
pub mod pace;
mod tokens;

pub use tokens::{TokenSource, Tokens};

use crate::action::span::Waits;
use crate::action::stream::{ByStream, Stream};
use crate::compute::context::ComputeContext;
use crate::compute::error::Result;
use crate::compute::recorder::Recorder;
use crate::config::Cell;
use crate::memory::tiers::MemoryTiers;
use crate::mesh::comms::Comms;
use crate::model::Layout;
use crate::model::layers::prepacked::Prepacked;
use crate::model::layers::{Batch, Deferred, LayerContext, Saved};
use crate::model::rope;
use crate::plan::{self, Plan, StagePlan};
use crate::state::loss_scale::LossScaler;
use crate::state::{
    Delayed, Due, Flags, Gradients, Losses, OffloadedActivations, Optimizer, Params, Resources, State, Update,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::Ticket;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, View};

/// What of a rank does not change while it runs.
pub struct Context<'a> {
    pub cell: &'a Cell,
    pub plan: &'a Plan,
    /// What this rank does of it.
    pub stage_plan: &'a StagePlan,
    pub number: usize,
    pub kernels: Arc<dyn Kernels + 'a>,
    /// Its memory.
    pub tiers: MemoryTiers,
    /// Who notes operations; only in a dry run.
    pub recorder: Option<Rc<Recorder>>,
    /// The groups it talks in.
    pub comms: Comms,
    /// Rotary tables: cosines and sines.
    tables: [Buffer; 2],
}

/// One rank's part of a training run.
pub struct Executor<'a> {
    pub context: Context<'a>,
    /// Which range of every flat it holds.
    pub state: State,
    pub params: Params,
    pub gradients: Gradients,
    pub optimizer: Optimizer,
    /// Forms of weights by unit; empty where none are kept.
    pub prepacked: Vec<Prepacked>,
    /// What lives from one action to the next.
    pub step_state: StepState,
    /// Where the loss is scaled.
    pub scaler: Option<LossScaler>,
    /// How far the run is.
    pub progress: Progress,
    /// Where updates are delayed: of the last step's gradients, if they did not overflow.
    pub delayed: Option<Delayed>,
    /// What this rank tells the others in the next update.
    pub local_flags: Flags,
    /// The flags of all ranks in the last update.
    pub global_flags: Flags,
    /// Time that updates have waited for memory that was lent to a checkpoint.
    pub stall: Duration,
}

/// Steps and samples so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done, skipped ones included.
    pub steps: u64,
    /// Updates of the weights: steps less the skipped ones.
    pub updates: u64,
    /// Sequences that all ranks have been given.
    pub samples: u64,
}

/// What lives from one action to the next.
#[derive(Default)]
pub struct StepState {
    /// By number of the micro-batch, modulo how many are in flight at most.
    pub micros: Vec<MicroBatchState>,
    /// Micro-batches are of held-out data, in an evaluation.
    pub evaluates: bool,
    /// What a token's loss is multiplied by, so that the mean over ranks and micro-batches is that over the global batch's
    /// tokens that have a target.
    pub mean: f64,
    /// The micro-batches' mean losses; in an evaluation, the tokens' losses.
    pub losses: Losses,
    /// The last message to the next stage and to the one before, while it is on its way: values, gradients.
    pub sent: [Option<Ticket>; 2],
    /// The loss scale that the step's gradients carry, 1 without.
    pub loss_scale: f64,
    /// The update of this step, with its own gradients or with delayed ones.
    pub due: Option<Due>,
    /// What the ranks have agreed on.
    pub update: Option<Update>,
}

/// What lives of a micro-batch.
#[derive(Default)]
pub struct MicroBatchState {
    pub tokens: Option<Tokens>,
    /// The residual streams.
    pub values: ByStream<Option<Buffer>>,
    /// Their gradients.
    pub gradients: ByStream<Option<Buffer>>,
    /// By layer.
    pub saved: Vec<Saved>,
    /// By layer: what of that is on its way.
    pub offloaded: Vec<OffloadedActivations>,
    /// Of blocks that have gone backward without the gradients of their weights: what these are computed from, in order.
    pub deferred: VecDeque<Deferred>,
}

impl MicroBatchState {
    /// A stream's values or their gradient.
    pub fn stream(&mut self, stream: Stream, gradient: bool) -> &mut Option<Buffer> {
        if gradient { &mut self.gradients[stream] } else { &mut self.values[stream] }
    }
}

impl StepState {
    /// Room for so many micro-batches of so many layers.
    fn new(micros: usize, layers: usize) -> StepState {
        let room = || MicroBatchState {
            saved: (0..layers).map(|_| Saved::default()).collect(),
            offloaded: (0..layers).map(|_| OffloadedActivations::default()).collect(),
            ..MicroBatchState::default()
        };
        StepState { micros: (0..micros).map(|_| room()).collect(), ..StepState::default() }
    }

    /// Where a micro-batch is.
    pub fn of(&self, micro: usize) -> &MicroBatchState {
        &self.micros[micro % self.micros.len()]
    }

    pub fn of_mut(&mut self, micro: usize) -> &mut MicroBatchState {
        let count = self.micros.len();
        &mut self.micros[micro % count]
    }
}

impl<'a> Executor<'a> {
    /// Allocates what this state says that a rank holds, with unspecified contents.
    pub fn new(
        (cell, plan, stage_plan): (&'a Cell, &'a Plan, &'a StagePlan),
        state: State,
        kernels: Arc<dyn Kernels + 'a>,
        tiers: MemoryTiers,
        comms: Comms,
        recorder: Option<Rc<Recorder>>,
    ) -> Result<Executor<'a>> {
        let number = state.place.rank;
        let device = ComputeContext { kernels: &*kernels, arena: tiers.device(), recorder: recorder.as_deref() };
        let res = Resources { device, tiers: &tiers, comms: &comms };
        let tables = rope_tables(cell, device)?;
        let (params, gradients, optimizer) = allocate(&state, res)?;
        let prepacked = prepacked(cell, &stage_plan.layout, device, 0..stage_plan.layout.units.len())?;
        let context = Context { cell, plan, stage_plan, number, kernels, tiers, recorder, comms, tables };
        let mut executor = Executor {
            context,
            state,
            params,
            gradients,
            optimizer,
            prepacked,
            step_state: StepState::new(stage_plan.in_flight, stage_plan.layout.layers.len()),
            scaler: cell.precision.scaling.map(LossScaler::new),
            progress: Progress::default(),
            delayed: None,
            local_flags: Flags::default(),
            global_flags: Flags::default(),
            stall: Duration::ZERO,
        };
        executor.step_state.mean = 1.0 / executor.batch(0, Stream::Decoder).tokens() as f64;
        Ok(executor)
    }

    /// A micro-batch of the step, as a stream has it. Its first sequence has the same number in the whole run whatever the strategy. Held-out
    /// sequences have numbers of their own, the same in every evaluation.
    pub fn batch(&self, micro: usize, stream: Stream) -> Batch {
        let (ranks, rows) = (self.state.sample_ranks() as u64, self.context.cell.train.micro_batch as u64);
        let before = if self.step_state.evaluates { 0 } else { self.progress.samples };
        plan::batch(self.context.cell, stream, before + (micro as u64 * ranks + self.state.sample_rank() as u64) * rows)
    }

    /// Gives the tokens' buffers back.
    pub fn unload(&mut self) {
        self.step_state.micros.iter_mut().for_each(|micro| micro.tokens = None);
    }
}

impl Context<'_> {
    /// The device's memory.
    pub fn arena(&self) -> &Arena {
        self.tiers.device()
    }

    pub fn device(&self) -> ComputeContext<'_> {
        ComputeContext { kernels: &*self.kernels, arena: self.arena(), recorder: self.recorder.as_deref() }
    }

    /// What the parts of the rank's state work with.
    pub fn resources(&self) -> Resources<'_> {
        Resources { device: self.device(), tiers: &self.tiers, comms: &self.comms }
    }

    fn layer_context<'e>(
        &'e self,
        batch: Batch,
        evaluates: bool,
        tokens: &'e Option<Tokens>,
        waits: &'e dyn Waits,
    ) -> LayerContext<'e> {
        let ([cos, sin], precision) = (&self.tables, &self.cell.precision);
        // The tables are as long as the longest stream's sequences.
        let table = |table: &'e Buffer| table.slice(0..rope::table_len(&self.cell.model, batch.seq));
        LayerContext {
            device: self.device(),
            batch,
            compute: precision.compute,
            gradients: precision.gradients,
            evaluates,
            comms: Some(&self.comms),
            sequence: self.cell.parallel.degrees.sequence > 1,
            tensor_chunks: self.cell.parallel.tensor_chunks,
            waits: Some(waits),
            memory: None,
            cos: table(cos),
            sin: table(sin),
            documents: tokens.as_ref().and_then(Tokens::documents),
        }
    }
}

/// This rank's part of the weights, the gradients and the optimizer's state, with unspecified contents.
pub fn allocate(state: &State, res: Resources<'_>) -> Result<(Params, Gradients, Optimizer)> {
    Ok((Params::new(state, res)?, Gradients::new(state, res)?, Optimizer::new(state, res)?))
}

/// Forms of the weights of these units, if the cell keeps them.
pub fn prepacked(
    cell: &Cell,
    layout: &Layout,
    device: ComputeContext<'_>,
    units: Range<usize>,
) -> Result<Vec<Prepacked>> {
    let units = if cell.memory.prepack { units } else { 0..0 };
    let forms = |unit| layout.forms(unit, device.kernels, cell.precision.compute);
    units.map(|unit| Prepacked::new(device, &forms(unit))).collect()
}

/// Cosines and sines `[seq, head_dim/2]` in the accumulator type.
fn rope_tables(cell: &Cell, device: ComputeContext<'_>) -> Result<[Buffer; 2]> {
    let seq = Stream::ALL.map(|stream| plan::seq(cell, stream)).into_iter().max().unwrap_or(0);
    let dtype = cell.precision.compute.accumulator();
    let table = |of: fn(f64) -> f64| -> Result<Buffer> {
        let mut table = device.alloc(Category::Workspace, dtype, rope::table_len(&cell.model, seq))?;
        if device.recorder.is_some() {
            // A dry run has nowhere to put the values.
            return Ok(table);
        }
        // Without rotary embeddings the tables are empty.
        let values: Vec<f64> = rope::angles(&cell.model, seq).map(of).take(table.len()).collect();
        if dtype == DType::F64 {
            device.kernels.upload(View::of(&values), table.view_mut())?;
        } else {
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            device.kernels.upload(View::of(&values), table.view_mut())?;
        }
        Ok(table)
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

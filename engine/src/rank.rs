//! One rank: its memory, its part of the model's state, and the step it performs.

mod batch;

use crate::config::Cell;
use crate::data::{Ahead, Counts, Source};
use crate::init;
use crate::layers::prepacked::{self, Prepacked};
use crate::layers::{Batch, Exec, InDocuments, Saved, StepError};
use crate::loss_scale::LossScaler;
use crate::mesh::Place;
use crate::meter::Meter;
use crate::outcome::{Loaded, Probe, RankReport, Resumed, Span, Step};
use crate::plan::{Action, Plan};
use crate::schedule::learning_rate;
use crate::shard::{Comms, Desk, Gradients, Losses, Optimizer, Params, Said, State};
use crate::trace::{StepTrace, Tracer, What};
use crate::training_state::{Position, Resumable};
use crate::{checkpoint::Checkpoint, rope};
use batch::Standing;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::info;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, View};

type Result<T> = std::result::Result<T, StepError>;

/// What all ranks of a run read.
pub struct Inputs<'a> {
    /// The configuration.
    pub cell: &'a Cell,
    /// Its plan.
    pub plan: &'a Plan,
    /// Tokens.
    pub source: &'a Source,
    /// Weights to start from; without, they are drawn.
    pub checkpoint: Option<&'a Checkpoint>,
    /// Adapters to start from; without, they are fresh.
    pub adapters: Option<&'a Checkpoint>,
    /// The training checkpoint to go on from; without, the run is at its beginning.
    pub resume: Option<&'a Resumable>,
    /// Who measures this process while weights are loaded.
    pub probe: Probe<'a>,
}

/// A rank is a value: nothing of it lives in statics or in the environment.
pub struct Rank<'a> {
    pub(crate) inputs: &'a Inputs<'a>,
    number: usize,
    pub(crate) kernels: Arc<dyn Kernels>,
    pub(crate) arena: Arena,
    pub(crate) comms: Comms,
    pub(crate) state: State,
    pub(crate) params: Params,
    pub(crate) gradients: Gradients,
    pub(crate) optimizer: Optimizer,
    /// By unit; empty where no forms of weights are kept.
    pub(crate) prepacked: Vec<Prepacked>,
    cos: Buffer,
    sin: Buffer,
    /// Reads micro-batches before they are wanted, where that is worth a thread.
    ahead: Option<Ahead>,
    /// Where the tokens of the micro-batch in flight stand, if sequences hold several documents.
    standing: Standing,
    pub(crate) flow: Flow,
    /// Where the loss is scaled.
    pub(crate) scaler: Option<LossScaler>,
    /// Steps done, skipped ones included.
    pub(crate) steps: u64,
    /// Updates of the weights: steps less the skipped ones.
    pub(crate) updates: u64,
    /// Sequences that all ranks have been given.
    pub(crate) samples: u64,
    /// Whether this rank wants the run to stop; all learn of it in the next step.
    pub(crate) wants_stop: bool,
    /// Whether a rank wanted that in the last step.
    pub(crate) stop_agreed: bool,
    /// Whether this rank's part of a checkpoint is on the disk, and whether all ranks had said so in the last step.
    pub(crate) has_written: bool,
    pub(crate) all_written: bool,
    /// Time that updates have waited for memory that was lent.
    pub(crate) stall: Duration,
    /// What the run went on from.
    pub(crate) resumed: Option<Resumed>,
    /// Steps before this one are not timed.
    timed_from: u64,
    step_ms: Vec<f64>,
    spans_ns: [u64; 10],
    loaded: Option<Loaded>,
    /// Where steps are traced.
    pub(crate) tracer: Option<Tracer>,
}

/// Fills what trains from the checkpoint that the run goes on from, if it does.
fn resume(
    inputs: &Inputs<'_>,
    state: &State,
    desk: Desk<'_>,
    params: &mut Params,
    optimizer: &mut Optimizer,
) -> Result<Option<Resumed>> {
    let Some(from) = inputs.resume else { return Ok(None) };
    let begin = Instant::now();
    let bytes = from
        .load(&inputs.plan.layout, state, desk, params, optimizer)
        .map_err(|error| StepError::Input(error.to_string()))?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let (step, dir, history) = (from.position().steps, from.dir(), from.history.clone());
    info!(target: "zbench::checkpoint", step, dir = %dir.display(), bytes, seconds = ms / 1e3, "checkpoint is loaded, the run goes on from it");
    Ok(Some(Resumed { step, dir: dir.into(), bytes, ms, history, changed: from.changed(inputs.cell) }))
}

/// What came of a step's gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Updated {
    /// Mean of the ranks' losses.
    pub loss: f64,
    /// Global L2 norm of the mean gradient.
    pub norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// The loss scale, where there is one.
    pub loss_scale: Option<f64>,
    /// Nothing was updated, because gradients overflowed.
    pub skipped: bool,
}

/// What lives from one action to the next.
#[derive(Default)]
pub(crate) struct Flow {
    /// The micro-batch in flight.
    micro: usize,
    /// It is one of held-out data, in an evaluation.
    pub(crate) evaluates: bool,
    pub(crate) ids: Option<Buffer>,
    pub(crate) targets: Option<Buffer>,
    /// Ids, targets and where documents start, as they are read.
    read: (Vec<u32>, Vec<u32>, Vec<u32>),
    /// What a token's loss is multiplied by, so that the mean over ranks and micro-batches is that over the global batch's
    /// tokens that have a target.
    mean: f64,
    /// What the global batch holds, where it is of documents.
    counts: Option<Counts>,
    /// The residual stream, or its gradient.
    stream: Option<Buffer>,
    /// By unit.
    saved: Vec<Saved<Buffer>>,
    /// The micro-batches' mean losses; in an evaluation, the tokens' losses.
    pub(crate) losses: Losses,
    /// The loss scale that the step's gradients carry, 1 without.
    loss_scale: f64,
}

impl<'a> Rank<'a> {
    /// Allocates this rank's part of the model's state and fills it.
    pub fn new(
        inputs: &'a Inputs<'a>,
        number: usize,
        kernels: Arc<dyn Kernels>,
        arena: Arena,
        comms: Comms,
    ) -> Result<Rank<'a>> {
        let Inputs { cell, plan, .. } = *inputs;
        let place: Place = plan.mesh.place(number);
        let state = State::new(cell, &plan.layout, plan.sharding, place);
        let [cos, sin] = rope_tables(cell, &arena, &*kernels)?;
        let desk = Desk { kernels: &*kernels, arena: &arena, comms: &comms };
        let mut params = Params::new(&state, desk)?;
        let gradients = Gradients::new(&state, desk)?;
        let mut optimizer = Optimizer::new(&state, desk)?;
        let prepacked = prepacked(cell, plan, &arena, &*kernels)?;
        let loaded = init::fill(inputs, &state, desk, &mut params, &mut optimizer)?;
        let resumed = resume(inputs, &state, desk, &mut params, &mut optimizer)?;
        let position = inputs.resume.map(|from| *from.position());
        let mut scaler = cell.precision.scaling.map(LossScaler::new);
        if let (Some(scaler), Some(from)) = (&mut scaler, position.and_then(|position| position.scaler)) {
            scaler.go_on(&from);
        }
        let saved = plan.layout.units.iter().map(|_| Saved::default()).collect();
        let flow = Flow { saved, ..Flow::default() };
        let ahead = batch::read_ahead(inputs)?;
        Ok(Rank {
            inputs,
            number,
            kernels,
            arena,
            comms,
            state,
            params,
            gradients,
            optimizer,
            prepacked,
            cos,
            sin,
            ahead,
            standing: Standing::default(),
            flow,
            scaler,
            steps: position.map_or(0, |position| position.steps),
            updates: position.map_or(0, |position| position.updates),
            samples: position.map_or(0, |position| position.samples),
            wants_stop: false,
            stop_agreed: false,
            has_written: false,
            all_written: false,
            stall: Duration::ZERO,
            resumed,
            timed_from: position.map_or(0, |position| position.steps).max(cell.train.untimed_steps as u64),
            // Room for all of a measurement, so that no step makes room.
            step_ms: Vec::with_capacity(cell.train.steps.min(1 << 16)),
            spans_ns: [0; 10],
            loaded: inputs.checkpoint.map(|_| loaded),
            tracer: None,
        })
    }

    /// What computes.
    pub fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.kernels
    }

    /// One step: gradients of the global batch, then the update.
    pub fn step(&mut self) -> Result<Step> {
        let timed = self.steps >= self.timed_from;
        if self.steps == self.timed_from {
            self.comms.reset();
        }
        let number = self.steps + 1;
        let mut meter = Meter::recorded(self.kernels.clone(), self.recording(number));
        let done = self.gradients(&mut meter).and_then(|()| self.update(&mut meter));
        let update = match done {
            Ok(update) => update,
            Err(error) => {
                let (ns, recording) = meter.broken();
                self.traced(recording, StepTrace { ns, timed, broken: true, ..self.account(What::Step, number) });
                return Err(error);
            }
        };
        let (ended, recording) = meter.stop();
        let ns = ended.as_ref().map_or(0, |(ns, _)| *ns);
        let broken = ended.is_err();
        self.traced(recording, StepTrace { ns, timed, broken, ..self.account(What::Step, number) });
        let (ns, spans) = ended?;
        let ms = ns as f64 / 1e6;
        if timed {
            self.step_ms.push(ms);
            self.spans_ns.iter_mut().zip(spans).for_each(|(sum, ns)| *sum += ns);
        }
        let counts = self.flow.counts;
        let tokens = counts.map_or(self.inputs.plan.estimate.flops.tokens, |counts| counts.real);
        Ok(Step {
            step: self.steps,
            timed,
            loss: update.loss,
            grad_norm: update.norm,
            lr: update.lr,
            ms,
            tokens,
            counts,
            loss_scale: update.loss_scale,
            skipped: update.skipped,
        })
    }

    /// Forward, backward and reductions of all micro-batches of the next step.
    pub fn gradients(&mut self, meter: &mut Meter) -> Result<()> {
        let plan = self.inputs.plan;
        self.flow.losses.clear();
        self.count()?;
        self.prepacked.iter_mut().for_each(Prepacked::forget);
        self.flow.loss_scale = self.scaler.as_ref().map_or(1.0, LossScaler::scale);
        for action in plan.actions.iter().filter(|a| **a != Action::Update) {
            self.act(*action, meter)?;
        }
        self.unload();
        Ok(())
    }

    /// Agrees on loss and norm, and updates the weights. Where the loss is scaled and a gradient is not finite, weights,
    /// moments, the optimizer's step count and the learning rate's schedule stay as they are, on all ranks.
    pub fn update(&mut self, meter: &mut Meter) -> Result<Updated> {
        let Inputs { cell, plan, .. } = *self.inputs;
        let step = self.steps + 1;
        meter.during(Some(Action::Update));
        meter.enter(Span::Offload);
        self.recall()?;
        meter.enter(Span::ExposedAgree);
        let desk = Desk { kernels: &*self.kernels, arena: &self.arena, comms: &self.comms };
        let loss_scale = self.flow.loss_scale;
        let said = Said { losses: &self.flow.losses, loss_scale, stop: self.wants_stop, written: self.has_written };
        let clip = self.optimizer.agree(&self.state, desk, &self.gradients, &cell.train, said)?;
        (self.stop_agreed, self.all_written) = (clip.stop, clip.written);
        let skipped = self.scaler.is_some() && !clip.norm.is_finite();
        let diverged = |what, value| Err(StepError::Diverged { step, what, value });
        // A smaller loss scale would not mend the loss: it is not scaled.
        if !clip.loss.is_finite() {
            return diverged("loss", clip.loss);
        }
        if !clip.norm.is_finite() && !skipped {
            return diverged("grad_norm", clip.norm);
        }
        meter.enter(Span::Optimizer);
        let lr = learning_rate(&cell.train, self.updates + 1);
        if !skipped {
            let (params, gradients, count) = (&mut self.params, &self.gradients, self.updates + 1);
            self.optimizer.update(cell, &plan.layout, &self.state, desk, params, gradients, lr, count, &clip)?;
            self.updates = count;
        }
        meter.during(None);
        meter.enter(Span::Other);
        self.steps = step;
        self.samples += (cell.parallel.ranks * cell.train.accumulation * cell.train.micro_batch) as u64;
        if let Some(scaler) = &mut self.scaler
            && let Err(error) = scaler.update(skipped)
        {
            return diverged("loss_scale", error.scale);
        }
        let loss_scale = self.scaler.is_some().then_some(loss_scale);
        Ok(Updated { loss: clip.loss, norm: clip.norm, lr, loss_scale, skipped })
    }

    /// Waits for what of the optimizer is lent to a checkpoint.
    fn recall(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.optimizer.recall()?;
        self.stall += begin.elapsed();
        Ok(())
    }

    /// What the run went on from, and what reading it took on this rank.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// Where the run stands.
    pub fn position(&self) -> Position {
        let scaler = self.scaler.as_ref().map(LossScaler::state);
        Position { steps: self.steps, updates: self.updates, samples: self.samples, scaler }
    }

    /// The factor that the last step's gradients carry, 1 where the loss is not scaled.
    pub(crate) fn loss_scale(&self) -> f64 {
        self.flow.loss_scale
    }

    pub(crate) fn act(&mut self, action: Action, meter: &mut Meter) -> Result<()> {
        let Inputs { plan, .. } = *self.inputs;
        let desk = Desk { kernels: &*self.kernels, arena: &self.arena, comms: &self.comms };
        meter.during(Some(action));
        match action {
            Action::Load { micro } => {
                meter.enter(Span::Data);
                self.flow.micro = micro;
                self.load()?;
            }
            Action::Gather { unit, refresh, slot } => {
                meter.enter(Span::ExposedGather);
                if refresh {
                    self.params.refresh(&self.state, &self.comms, unit)?;
                }
                if slot {
                    self.params.gather(&self.state, desk, unit)?;
                }
            }
            Action::Release { unit } => self.params.release(unit),
            Action::Forward { unit } => {
                self.wait(unit, meter)?;
                meter.enter(Span::Forward);
                if unit == plan.layout.head_unit() {
                    self.loss(meter)?;
                } else {
                    self.forward(unit)?;
                }
            }
            Action::Restore { unit, output } => {
                self.wait(unit, meter)?;
                meter.enter(Span::Recompute);
                self.restore(unit, output)?;
            }
            Action::Backward { unit } => {
                self.wait(unit, meter)?;
                meter.enter(Span::Backward);
                let desk = Desk { kernels: &*self.kernels, arena: &self.arena, comms: &self.comms };
                self.gradients.open(&self.state, desk, unit)?;
                self.backward(unit)?;
            }
            Action::Reduce { unit, first, last } => {
                meter.enter(Span::ExposedReduce);
                self.gradients.reduce(&self.state, desk, unit, first, last)?;
            }
            Action::Update => {}
        }
        meter.during(None);
        meter.enter(Span::Other);
        Ok(())
    }

    fn wait(&mut self, unit: usize, meter: &mut Meter) -> Result<()> {
        meter.enter(Span::ExposedGather);
        self.params.wait(&self.comms, unit)
    }

    fn forward(&mut self, unit: usize) -> Result<()> {
        let (layout, policy) = (&self.inputs.plan.layout, &self.inputs.plan.policy);
        let (tables, batch) = ([&self.cos, &self.sin], self.batch());
        let ex = exec(self.inputs.cell, &*self.kernels, &self.arena, tables, batch, self.standing.view());
        let ex = Exec { evaluates: self.flow.evaluates, ..ex };
        let weights = self.params.weights(unit, self.prepacked.get(unit));
        if unit == 0 {
            let ids = present(&self.flow.ids, "token ids")?;
            self.flow.stream = Some(layout.embedding.forward(&ex, &weights, ids.view())?);
            return Ok(());
        }
        let block = &layout.blocks[unit - 1];
        let input = taken(&mut self.flow.stream, "the residual stream")?;
        // What is only looked at has no backward.
        let (keeps, keep) = match ex.evaluates {
            true => (false, &[][..]),
            false => (policy.keeps_input(block.index), &policy.keep[..]),
        };
        let (output, saved) = block.forward(&ex, &weights, input, keeps, keep)?;
        (self.flow.stream, self.flow.saved[unit]) = (Some(output), saved);
        Ok(())
    }

    fn loss(&mut self, meter: &mut Meter) -> Result<()> {
        let layout = &self.inputs.plan.layout;
        let head = layout.head_unit();
        if layout.head.tied {
            self.wait(0, meter)?;
            meter.enter(Span::Forward);
        }
        if self.flow.evaluates {
            return self.score();
        }
        let desk = Desk { kernels: &*self.kernels, arena: &self.arena, comms: &self.comms };
        self.gradients.open(&self.state, desk, head)?;
        if layout.head.tied {
            self.gradients.open(&self.state, desk, 0)?;
        }
        let (tables, batch) = ([&self.cos, &self.sin], self.batch());
        let ex = exec(self.inputs.cell, &*self.kernels, &self.arena, tables, batch, self.standing.view());
        let x = taken(&mut self.flow.stream, "the residual stream")?;
        let targets = present(&self.flow.targets, "targets")?;
        let weights = self.params.weights(head, self.prepacked.get(head));
        let mean = self.flow.mean;
        let scale = mean * self.flow.loss_scale;
        let sums = &mut self.flow.losses.sums;
        let gradient = if layout.head.tied {
            let matrix = self.params.weights(0, self.prepacked.first());
            let (mut table, mut own) = self.gradients.grads_of_two(0, head);
            layout.head.loss(&ex, &weights, &matrix, &mut own, Some(&mut table), x, targets.view(), scale, sums)?
        } else {
            let mut own = self.gradients.grads(head);
            layout.head.loss(&ex, &weights, &weights, &mut own, None, x, targets.view(), scale, sums)?
        };
        self.flow.losses.close(mean);
        self.flow.stream = Some(gradient);
        Ok(())
    }

    /// The head's forward alone.
    fn score(&mut self) -> Result<()> {
        let layout = &self.inputs.plan.layout;
        let head = layout.head_unit();
        let (tables, batch) = ([&self.cos, &self.sin], self.batch());
        let ex = exec(self.inputs.cell, &*self.kernels, &self.arena, tables, batch, self.standing.view());
        let x = taken(&mut self.flow.stream, "the residual stream")?;
        let targets = present(&self.flow.targets, "targets")?;
        let weights = self.params.weights(head, self.prepacked.get(head));
        let of_matrix = if layout.head.tied { 0 } else { head };
        let matrix = self.params.weights(of_matrix, self.prepacked.get(of_matrix));
        layout.head.score(&ex, &weights, &matrix, x, targets.view(), &mut self.flow.losses.sums)?;
        self.flow.losses.close(1.0);
        Ok(())
    }

    fn restore(&mut self, unit: usize, output: bool) -> Result<()> {
        let block = &self.inputs.plan.layout.blocks[unit - 1];
        let (tables, batch) = ([&self.cos, &self.sin], self.batch());
        let ex = exec(self.inputs.cell, &*self.kernels, &self.arena, tables, batch, self.standing.view());
        let weights = self.params.weights(unit, self.prepacked.get(unit));
        let output = block.restore(&ex, &weights, &mut self.flow.saved[unit], output)?;
        if output.is_some() {
            self.flow.saved[unit + 1].input = output;
        }
        Ok(())
    }

    fn backward(&mut self, unit: usize) -> Result<()> {
        let layout = &self.inputs.plan.layout;
        let (tables, batch) = ([&self.cos, &self.sin], self.batch());
        let ex = exec(self.inputs.cell, &*self.kernels, &self.arena, tables, batch, self.standing.view());
        let gradient = taken(&mut self.flow.stream, "the gradient")?;
        let mut grads = self.gradients.grads(unit);
        if unit == 0 {
            let ids = present(&self.flow.ids, "token ids")?;
            // They are there only where the embedding's backward reads them.
            let weights = self.params.weights(0, self.prepacked.first());
            return layout.embedding.backward(&ex, &weights, &mut grads, ids.view(), gradient);
        }
        let weights = self.params.weights(unit, self.prepacked.get(unit));
        let saved = std::mem::take(&mut self.flow.saved[unit]);
        let gradient = layout.blocks[unit - 1].backward(&ex, &weights, &mut grads, saved, gradient)?;
        let wanted = unit > 1 || layout.units[0].trainable.len > 0;
        self.flow.stream = wanted.then_some(gradient);
        Ok(())
    }
}

/// Room for the forms that are kept of each unit's weights; nothing if none are.
fn prepacked(cell: &Cell, plan: &Plan, arena: &Arena, kernels: &dyn Kernels) -> Result<Vec<Prepacked>> {
    let units = if cell.memory.prepack { plan.layout.units.len() } else { 0 };
    let forms = |unit| prepacked::forms(&plan.layout, unit, kernels, cell.precision.compute);
    (0..units).map(|unit| Prepacked::new(arena, kernels, &forms(unit))).collect()
}

/// Cosines and sines `[seq, head_dim/2]` in the accumulator type, filled in place.
fn rope_tables(cell: &Cell, arena: &Arena, kernels: &dyn Kernels) -> Result<[Buffer; 2]> {
    let (seq, dtype) = (cell.train.seq_len, cell.precision.compute.accumulator());
    let table = |of: fn(f64) -> f64| -> Result<Buffer> {
        let mut table = arena.alloc(Category::Workspace, dtype, rope::table_len(&cell.model, seq))?;
        // Without rotary embeddings the tables are empty.
        let values: Vec<f64> = rope::angles(&cell.model, seq).map(of).take(table.len()).collect();
        if dtype == DType::F64 {
            kernels.upload(View::of(&values), table.view_mut())?;
        } else {
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            kernels.upload(View::of(&values), table.view_mut())?;
        }
        Ok(table)
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

fn exec<'e>(
    cell: &Cell,
    kernels: &'e dyn Kernels,
    arena: &'e Arena,
    [cos, sin]: [&'e Buffer; 2],
    batch: Batch,
    documents: Option<InDocuments<'e>>,
) -> Exec<'e> {
    let (compute, gradients) = (cell.precision.compute, cell.precision.gradients);
    Exec { kernels, arena, batch, compute, gradients, evaluates: false, cos: cos.view(), sin: sin.view(), documents }
}

/// What an earlier action of a well-formed plan has left.
fn taken(slot: &mut Option<Buffer>, what: &str) -> Result<Buffer> {
    slot.take().ok_or_else(|| StepError::Input(format!("the plan uses {what} before making it; this is a bug")))
}

fn present<'b>(slot: &'b Option<Buffer>, what: &str) -> Result<&'b Buffer> {
    slot.as_ref().ok_or_else(|| StepError::Input(format!("the plan uses {what} before making it; this is a bug")))
}

impl Rank<'_> {
    /// This rank's number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// What its arena was asked for so far.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What is measured of the timed steps so far.
    pub fn report(&self) -> RankReport {
        let steps = self.step_ms.len().max(1) as f64;
        let mut traffic = self.comms.inner.snapshot();
        if let Some(hybrid) = &self.comms.hybrid {
            traffic.extend(hybrid.outer.snapshot());
            traffic.extend(hybrid.data.snapshot());
        }
        for row in &mut traffic {
            for sum in [&mut row.calls, &mut row.payload_bytes, &mut row.wire_bytes, &mut row.ms, &mut row.exposed_ms] {
                *sum /= steps;
            }
        }
        traffic.sort_by_key(|row| (row.axis, row.kind));
        RankReport {
            rank: self.number,
            ledger: self.arena.ledger(),
            reserved_bytes: self.arena.high_water(),
            step_ms: self.step_ms.clone(),
            spans_ms: self.spans_ns.map(|ns| ns as f64 / 1e6 / steps),
            traffic,
            documents: self.inputs.source.found(),
            stopped: false,
            loaded: self.loaded,
        }
    }
}

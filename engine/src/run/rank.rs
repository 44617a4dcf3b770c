//! One rank of a run: an executor, where its tokens come from, and what is measured of its steps.

mod batch;

use crate::action::Action;
use crate::action::span::{BySpan, Span, Spans};
use crate::checkpoint::init;
use crate::checkpoint::training::Position;
use crate::compute::error::{Result, StepError};
use crate::exec::{Executor, Progress};
use crate::memory::host_link::HostLink;
use crate::memory::tiers::MemoryTiers;
use crate::mesh::comms::Comms;
use crate::observe::meter::{Booked, Meter};
use crate::observe::outcome::{DiskReport, Loaded, RankReport, Resumed, Step};
use crate::observe::pass_times::PassTimes;
use crate::observe::trace::{ClockOrigin, Recording, StepTrace, Tracer, What};
use crate::state::{State, Update};
use batch::Reader;
use std::sync::Arc;
use std::time::Instant;
use tracing::info;
use zbench_collectives::Communicator;
use zbench_collectives::link::LinkUse;
use zbench_kernels::Kernels;
use zbench_kernels::disk::{File, Traffic};

pub use crate::checkpoint::inputs::Inputs;

/// A rank is a value: nothing of it lives in statics or in the environment.
pub struct Rank<'a> {
    pub(crate) inputs: &'a Inputs<'a>,
    /// What it holds, and what actions do to it.
    pub executor: Executor<'a>,
    reader: Reader<'a>,
    kernels: Arc<dyn Kernels>,
    pub(crate) resumed: Option<Resumed>,
    timed_from: u64,
    step_ms: Vec<f64>,
    pipeline_ms: Vec<f64>,
    /// Of a stage of a pipeline.
    pass_times: Option<PassTimes>,
    spans_ns: BySpan<u64>,
    loaded: Option<Loaded>,
    /// What the disk had transferred before the first timed step.
    disk_before: Traffic,
    /// The same of the emulated link between device and host.
    link_before: LinkUse,
    pub(crate) tracer: Option<Tracer>,
}

/// Fills what trains from the checkpoint that the run goes on from, if it does.
fn resume(inputs: &Inputs<'_>, executor: &mut Executor<'_>) -> Result<Option<Resumed>> {
    let Some(from) = inputs.resume else { return Ok(None) };
    let begin = Instant::now();
    let Executor { context, state, params, optimizer, .. } = executor;
    let bytes = from
        .load(&context.stage_plan.layout, state, context.resources(), params, optimizer)
        .map_err(|error| StepError::Input(error.to_string()))?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let (position, dir, history) = (from.index.position, &from.dir, from.history.clone());
    let step = position.steps;
    info!(target: "zbench::checkpoint", step, dir = %dir.display(), bytes, seconds = ms / 1e3, "checkpoint is loaded, the run goes on from it");
    executor.progress = Progress { steps: step, updates: position.updates, samples: position.samples };
    executor.delayed = position.delayed;
    if let (Some(scaler), Some(from)) = (&mut executor.scaler, position.scaler) {
        scaler.go_on(&from);
    }
    Ok(Some(Resumed { step, dir: dir.into(), bytes, ms, history, changed: from.changed(inputs.cell) }))
}

impl<'a> Rank<'a> {
    /// Allocates this rank's part of the model's state and fills it.
    pub fn new(
        inputs: &'a Inputs<'a>,
        number: usize,
        kernels: Arc<dyn Kernels>,
        tiers: MemoryTiers,
        comms: Comms,
    ) -> Result<Rank<'a>> {
        let Inputs { cell, plan, .. } = *inputs;
        let stage_plan = plan.stage_plan_of(number);
        let state = State::new(cell, &stage_plan.layout, plan.sharding, plan.mesh.place(number));
        let mut executor = Executor::new((cell, plan, stage_plan), state, kernels.clone(), tiers, comms, None)?;
        let loaded = init::fill(inputs, &mut executor)?;
        let resumed = match resume(inputs, &mut executor) {
            Ok(resumed) => resumed,
            Err(error) => {
                executor.context.comms.world().abort(&error.to_string());
                return Err(error);
            }
        };
        let reader = Reader::new(inputs)?;
        Ok(Rank {
            inputs,
            reader,
            kernels,
            resumed,
            timed_from: executor.progress.steps.max(cell.train.untimed_steps as u64),
            executor,
            // Room for all of a measurement, so that no step makes room.
            step_ms: Vec::with_capacity(cell.train.steps.min(1 << 16)),
            pipeline_ms: Vec::with_capacity(cell.train.steps.min(1 << 16)),
            pass_times: (plan.stage_plans.len() > 1).then(PassTimes::default),
            spans_ns: BySpan::default(),
            loaded: inputs.checkpoint.map(|_| loaded),
            disk_before: Traffic::default(),
            link_before: LinkUse::default(),
            tracer: None,
        })
    }

    pub fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.kernels
    }

    /// One step: gradients of the global batch, then the update.
    pub fn step(&mut self) -> Result<Step> {
        let timed = self.executor.progress.steps >= self.timed_from;
        if self.executor.progress.steps == self.timed_from {
            self.executor.context.comms.reset();
            self.executor.context.tiers.moves().reset();
            self.disk_before = self.executor.context.tiers.traffic().unwrap_or_default();
            self.link_before = self.executor.context.tiers.link().map(HostLink::usage).unwrap_or_default();
        }
        let number = self.executor.progress.steps + 1;
        let wanted = timed && self.pass_times.is_some();
        let mut meter = Meter::recorded(self.kernels.clone(), self.recording(number)).with_passes(wanted);
        let began = ClockOrigin::now().at(meter.started());
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
        let ns = ended.as_ref().map_or(0, |booked| booked.ns);
        let broken = ended.is_err();
        self.traced(recording, StepTrace { ns, timed, broken, ..self.account(What::Step, number) });
        let Booked { ns, spans, pipeline_ns, passes } = ended?;
        let ms = ns as f64 / 1e6;
        if timed {
            self.step_ms.push(ms);
            self.pipeline_ms.push(pipeline_ns as f64 / 1e6);
            spans.iter().for_each(|(span, ns)| self.spans_ns[span] += ns);
            if let (Some(times), Some(passes)) = (&mut self.pass_times, passes) {
                times.add(passes, began);
            }
        }
        let counts = self.reader.counts;
        let tokens = counts.map_or(self.executor.context.stage_plan.estimate.flops.tokens, |counts| counts.real);
        Ok(Step {
            step: self.executor.progress.steps,
            timed,
            loss: update.stats.loss,
            grad_norm: update.stats.norm,
            lr: update.lr,
            ms,
            tokens,
            counts,
            loss_scale: self.executor.scaler.is_some().then_some(update.stats.loss_scale),
            skipped: update.skipped,
        })
    }

    /// Forward, backward and reductions of all micro-batches of the next step, and what else comes before [`Action::Update`].
    pub fn gradients(&mut self, meter: &mut Meter) -> Result<()> {
        let stage_plan = self.executor.context.stage_plan;
        self.executor.step_state.mean = self.reader.count(&self.executor)?;
        self.executor.begin_step();
        for action in stage_plan.actions.iter().take_while(|action| **action != Action::Update) {
            self.act(*action, meter)?;
        }
        meter.enter(Span::ExposedReduce);
        self.executor.wait_all(meter)?;
        meter.enter(Span::Other);
        self.executor.unload();
        Ok(())
    }

    /// Agrees on loss and norm, and updates the weights: see [`Action::Update`].
    pub fn update(&mut self, meter: &mut Meter) -> Result<Update> {
        let stage_plan = self.executor.context.stage_plan;
        for action in stage_plan.actions.iter().skip_while(|action| **action != Action::Update) {
            self.act(*action, meter)?;
        }
        self.executor.step_state.update.ok_or(StepError::Bug("an update has no result"))
    }

    pub(crate) fn act(&mut self, action: Action, meter: &mut Meter) -> Result<()> {
        self.executor.act(action, &mut self.reader, meter)
    }

    /// What the run went on from, and what reading it took on this rank.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    pub fn position(&self) -> Position {
        let scaler = self.executor.scaler.as_ref().map(|scaler| scaler.state());
        let Progress { steps, updates, samples } = self.executor.progress;
        Position { steps, updates, samples, scaler, delayed: self.executor.delayed }
    }

    pub fn number(&self) -> usize {
        self.executor.context.number
    }

    /// What is measured of the timed steps so far.
    pub fn report(&self) -> RankReport {
        let steps = self.step_ms.len().max(1) as f64;
        let mut traffic = self.executor.context.comms.traffic();
        for row in &mut traffic {
            for sum in [&mut row.calls, &mut row.payload_bytes, &mut row.wire_bytes, &mut row.ms, &mut row.exposed_ms] {
                *sum /= steps;
            }
        }
        traffic.sort_by_key(|row| (row.axis, row.kind));
        let mut moves = self.executor.context.tiers.moves().counted();
        moves.iter_mut().for_each(|row| (row.moves, row.bytes) = (row.moves / steps, row.bytes / steps));
        RankReport {
            rank: self.executor.context.number,
            ledgers: self.executor.context.tiers.ledgers(),
            reserved_bytes: self.executor.context.arena().high_water(),
            step_ms: self.step_ms.clone(),
            pipeline_ms: self.pipeline_ms.clone(),
            passes: self.pass_times.as_ref().map(PassTimes::means).unwrap_or_default(),
            spans_ms: self.spans_ns.map(|ns| ns as f64 / 1e6 / steps),
            traffic,
            moves,
            disk: self.executor.context.tiers.file().map(|file| self.disk_report(file)),
            host_link: self.executor.context.tiers.link().map(|link| link.usage().less(self.link_before)),
            documents: self.inputs.source.found(),
            stopped: false,
            loaded: self.loaded,
        }
    }
}

impl Rank<'_> {
    /// How the file was transferred in the timed steps.
    fn disk_report(&self, file: &File) -> DiskReport {
        let now = self.executor.context.tiers.traffic().unwrap_or_default();
        let (before, steps) = (self.disk_before, self.step_ms.len().max(1) as f64);
        DiskReport {
            engine: file.engine().name().into(),
            direct: file.is_direct(),
            why: file.why().to_vec(),
            read_bytes: now.read_bytes.saturating_sub(before.read_bytes) as f64 / steps,
            written_bytes: now.written_bytes.saturating_sub(before.written_bytes) as f64 / steps,
            busy_ms: now.busy.saturating_sub(before.busy).as_secs_f64() * 1e3 / steps,
        }
    }

    /// Something to write a step down in, where steps are traced and this one is to be.
    pub(crate) fn recording(&mut self, step: u64) -> Option<Recording> {
        let recording = self.tracer.as_ref().and_then(|tracer| tracer.record(step, self.executor.context.arena()));
        if self.tracer.is_some() {
            self.executor.context.comms.watch(recording.is_some());
        }
        recording
    }

    /// What a trace says before anything was written down.
    pub(crate) fn account(&self, what: What, step: u64) -> StepTrace {
        StepTrace::empty(self.number(), what, step)
    }

    /// Keeps what was written down, until it is told.
    pub(crate) fn traced(&mut self, recording: Option<Recording>, of: StepTrace) {
        if let (Some(tracer), Some(recording)) = (&mut self.tracer, recording) {
            tracer.keep(of, recording, &self.executor.context.comms.seen());
        }
    }
}

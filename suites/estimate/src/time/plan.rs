//! A step from its units: the slowest stage, the schedule over stages, what the data axes move beside it, the update.

use super::block::{Context, Phase, Unit};
use super::stages::{Stage, stages, stand_in};
use super::update::{Update, update};
use super::{Axis, Span, SpanKind, Time, Traffic};
use crate::collective::{Collective, seconds};
use crate::job::{Job, Kind, Peft};
use crate::layout::Layout;
use crate::machine::Machine;
use crate::roofline::Roofline;
use crate::rules::pipeline;
use crate::tuning::Tuning;

/// The step of a job.
pub(super) fn step(job: &Job, machine: &Machine, tuning: &Tuning) -> Time {
    let stand_in =
        (job.model.layers == 0 || matches!(job.model.kind, Kind::Count { .. })).then(|| stand_in(&job.model));
    let model = stand_in.as_ref().unwrap_or(&job.model);
    let layout = Layout::of(job, machine);
    let drive = job.framework.drive;
    let roof = Roofline { device: &machine.device, tuning };
    let context = Context { job, model, machine, layout: &layout, tuning, drive, roof };
    let stages = stages(&context);
    let plan = Plan::new(context, stages);
    // The stage that computes longest need not be the one that ends last: each has gradients and an update of its own.
    let ends = (1..plan.stages.len()).map(|which| Plan { slowest: which, ..plan.clone() }.time());
    let first = plan.clone().time();
    ends.fold(first, |last, end| if end.step > last.step { end } else { last })
}

/// Seconds of a stage and micro-batch, by what they go to.
#[derive(Clone, Copy, Default)]
struct Micro {
    forward: f64,
    backward: f64,
    recompute: f64,
    waits: Phase,
    /// Of `backward`, the gradients of weights.
    weights: f64,
    /// Of `waits`, what forward waits for.
    ahead: f64,
}

impl Micro {
    fn all(&self) -> f64 {
        self.forward + self.backward + self.recompute + self.waits.waits()
    }

    /// Forward, and the two parts of backward.
    fn parts(&self) -> [f64; 3] {
        let forward = self.forward + self.ahead;
        [forward, self.all() - forward - self.weights, self.weights]
    }
}

#[derive(Clone)]
pub(super) struct Plan<'a> {
    pub(super) context: Context<'a>,
    pub(super) stages: Vec<Stage>,
    /// Which of them is the slowest.
    pub(super) slowest: usize,
    /// By stage.
    micros: Vec<Micro>,
    spans: Vec<Span>,
    traffic: Vec<Traffic>,
}

impl<'a> Plan<'a> {
    fn new(context: Context<'a>, stages: Vec<Stage>) -> Plan<'a> {
        let micros = stages.iter().map(|stage| micro(&context, stage)).collect();
        Plan { context, stages, slowest: 0, micros, spans: Vec::new(), traffic: Vec::new() }
    }

    pub(super) fn span(&mut self, kind: SpanKind, seconds: f64) {
        if seconds > 0.0 && seconds.is_finite() {
            self.spans.push(Span { kind, seconds });
        }
    }

    fn time(mut self) -> Time {
        let job = self.context.job;
        let micros = job.batch.accumulation.max(1) as f64;
        let slowest = self.micros[self.slowest];
        self.span(SpanKind::Forward, micros * slowest.forward);
        self.span(SpanKind::Recompute, micros * slowest.recompute);
        self.span(SpanKind::Backward, micros * slowest.backward);
        self.span(SpanKind::Exposed(Axis::Tensor), micros * slowest.waits.tensor);
        self.span(SpanKind::Exposed(Axis::Expert), micros * slowest.waits.expert);
        self.span(SpanKind::Exposed(Axis::Context), micros * slowest.waits.context);
        self.span(SpanKind::Offload, micros * slowest.waits.host);
        self.inner_traffic();
        self.pipeline(micros);
        self.data(micros);
        self.update();
        let t = self.context.tuning;
        let nodes = self.context.layout.world.div_ceil(self.context.machine.node_devices.max(1)) as f64;
        let sum: f64 = self.spans.iter().map(|span| span.seconds).sum();
        self.span(SpanKind::Other, sum * (t.other + t.straggle * nodes.max(1.0).log2()));
        self.finish()
    }

    /// Stages that wait for each other, and what they send.
    fn pipeline(&mut self, micros: f64) {
        let d = self.context.job.degrees;
        let p = d.pipeline.max(1);
        if p == 1 {
            return;
        }
        let chunks = d.chunks.max(1) as f64;
        let parts = self.stages.iter().zip(&self.micros).map(|(stage, micro)| (stage.of as usize, micro.parts()));
        let parts: Vec<[f64; 3]> = parts.flat_map(|(of, parts)| std::iter::repeat_n(parts, of)).collect();
        let idle = pipeline::idle(d.schedule, chunks, micros, &parts, self.micros[self.slowest].all());
        self.span(SpanKind::Bubble, idle);
        let c = &self.context;
        // Stages send each tensor rank's share and gather it on the other side.
        let share = d.tensor.max(1) as f64;
        let bytes = c.tokens(false) * c.model.hidden as f64 * c.job.precision.compute.bytes() / share;
        let wait = if c.drive.overlap_sends { 0.0 } else { c.tuning.send_wait };
        let once = seconds(Collective::Send, bytes, c.layout.neighbours, c.machine) + wait;
        let calls = 2.0 * micros * chunks;
        let hidden = if c.drive.overlap_sends && chunks > 1.0 { 0.8 } else { 0.0 };
        let along = 2.0 * (p as f64 - 1.0);
        self.span(SpanKind::Exposed(Axis::Pipeline), once * (calls * (1.0 - hidden) + along));
        self.row(Axis::Pipeline, Collective::Send, calls, bytes, 2);
    }

    pub(super) fn row(&mut self, axis: Axis, kind: Collective, calls: f64, bytes: f64, ranks: usize) {
        if ranks > 1 && calls > 0.0 && bytes > 0.0 {
            let payload = calls * bytes;
            self.traffic.push(Traffic { axis, kind, calls, payload, wire: kind.wire(payload, ranks) });
        }
    }

    /// Traffic within blocks.
    fn inner_traffic(&mut self) {
        let c = self.context;
        let micros = c.job.batch.accumulation.max(1) as f64;
        let again = |unit: &Unit| 1.0 + unit.recompute.tensor / (unit.forward.tensor + unit.backward.tensor).max(1e-12);
        let stage = self.stages[self.slowest].clone();
        for (count, unit) in &stage.units {
            let calls = unit.collectives;
            let times = count * micros;
            let tensor = times * calls.tensor * again(unit);
            if c.job.degrees.sequence {
                self.row(Axis::Tensor, Collective::AllGather, tensor, calls.tensor_bytes, c.layout.tensor.ranks);
                self.row(Axis::Tensor, Collective::ReduceScatter, tensor, calls.tensor_bytes, c.layout.tensor.ranks);
            } else {
                self.row(Axis::Tensor, Collective::AllReduce, tensor, calls.tensor_bytes, c.layout.tensor.ranks);
            }
            self.row(
                Axis::Expert,
                Collective::AllToAll,
                times * calls.expert,
                calls.expert_bytes,
                c.layout.expert.ranks,
            );
            self.row(
                Axis::Context,
                Collective::Send,
                times * calls.context,
                calls.context_bytes,
                c.layout.context.ranks,
            );
        }
    }

    fn update(&mut self) {
        let c = &self.context;
        let stage = &self.stages[self.slowest];
        let sum = |f: fn(&Unit) -> f64| stage.units.iter().map(|(count, unit)| count * f(unit)).sum::<f64>();
        let (dense, sparse) = match c.job.peft {
            Peft::None => (sum(|u| u.dense), sum(|u| u.sparse)),
            Peft::Adapters { trainable, .. } => {
                let all = if trainable > 0 { trainable as f64 } else { 0.01 * sum(|u| u.dense) };
                (all / c.job.degrees.pipeline.max(1) as f64, 0.0)
            }
        };
        let split = c.job.sharding.optimizer.max(1) as f64;
        let experts = if split > 1.0 { c.layout.expert_data.ranks as f64 } else { 1.0 };
        let Update { device, host } = update(c, dense / split + sparse / experts, dense + sparse);
        self.span(SpanKind::Optimizer, device);
        self.span(SpanKind::Offload, host);
    }

    fn finish(self) -> Time {
        let c = &self.context;
        let job = c.job;
        let step: f64 = self.spans.iter().map(|span| span.seconds).sum();
        let sequences = job.batch.micro as f64 * job.batch.accumulation.max(1) as f64 * job.degrees.data.max(1) as f64;
        let decoder = match c.model.kind {
            Kind::EncoderDecoder { decoder_seq, .. } => decoder_seq as f64,
            _ => 0.0,
        };
        let tokens = sequences * (job.batch.seq as f64 + decoder);
        // FLOPs of all ranks: those of one rank of each stage, times the ranks that share it.
        let p = job.degrees.pipeline.max(1) as f64;
        let ranks = c.layout.world as f64 / p * job.batch.accumulation.max(1) as f64;
        let (mut model, mut again) = (0.0, 0.0);
        for stage in &self.stages {
            for (count, unit) in &stage.units {
                model += stage.of * count * (unit.forward.flops + unit.backward.flops);
                again += stage.of * count * unit.recompute.flops;
            }
        }
        Time {
            step,
            spans: self.spans,
            traffic: self.traffic,
            model_flops: model * ranks,
            hardware_flops: (model + again) * ranks,
            tokens_per_second_per_device: if step > 0.0 { tokens / step / c.layout.world.max(1) as f64 } else { 0.0 },
        }
    }
}

fn micro(context: &Context<'_>, stage: &Stage) -> Micro {
    let mut sum = Micro::default();
    for (count, unit) in &stage.units {
        let backward = context.busy(&unit.backward, true);
        sum.forward += count * context.busy(&unit.forward, false);
        sum.backward += count * backward;
        sum.weights += count * backward * unit.backward.weights / unit.backward.busy.max(f64::MIN_POSITIVE);
        sum.ahead += count * unit.forward.waits();
        sum.recompute += count * context.busy(&unit.recompute, false);
        for phase in [&unit.forward, &unit.backward, &unit.recompute] {
            sum.waits.add(*phase, *count);
        }
    }
    sum
}

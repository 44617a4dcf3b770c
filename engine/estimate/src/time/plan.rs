//! A step from its units: the slowest stage, the schedule over stages, what the data axes move beside it, the update.

use super::block::{Context, Phase, Unit};
use super::layout::Layout;
use super::queue::{self, Waited};
use super::update::{Update, update};
use super::{Axis, Span, SpanKind, Time, Traffic};
use crate::collective::{Collective, Group, seconds};
use crate::job::{Job, Kind, Number, Peft, Place, Shape};
use crate::machine::Machine;
use crate::roofline::Roofline;
use crate::tuning::{Drive, Fusion, Tuning};

/// Units of a rank's stage: (how many, what each costs). Fractions stand for kinds that are mixed over stages.
type Stage = Vec<(f64, Unit)>;

/// The step of a job.
pub(super) fn step(job: &Job, machine: &Machine, tuning: &Tuning) -> Time {
    let stand_in =
        (job.model.layers == 0 || matches!(job.model.kind, Kind::Count { .. })).then(|| stand_in(&job.model));
    let model = stand_in.as_ref().unwrap_or(&job.model);
    let layout = Layout::of(job, machine);
    let drive = Drive::of(job.stack);
    let roof = Roofline { device: &machine.device, tuning };
    let context = Context { job, model, machine, layout: &layout, tuning, drive, roof };
    let stages = stages(&context);
    Plan::new(context, stages).time()
}

/// A decoder of so many parameters where no more is known: 128 elements of width per layer, as models of that size have.
fn stand_in(model: &Shape) -> Shape {
    let parameters = model.stated_parameters.max(1_000_000) as f64;
    let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt().round().max(2.0);
    let hidden = ((parameters / (12.0 * layers)).sqrt() / 64.0).round().max(1.0) * 64.0;
    let heads = (hidden / 128.0).max(1.0) as usize;
    Shape {
        kind: Kind::Decoder,
        layers: layers as usize,
        hidden: hidden as usize,
        heads,
        kv_heads: heads,
        head_dim: hidden as usize / heads,
        ffn: 4 * hidden as usize,
        gated: false,
        causal: true,
        experts: None,
        latent: None,
        ..model.clone()
    }
}

/// The first stage, one of the middle and the last.
fn stages(context: &Context<'_>) -> [Stage; 3] {
    let d = &context.job.degrees;
    let stages = d.pipeline.max(1);
    let kinds = context.model.blocks();
    let total: usize = kinds.iter().map(|kind| kind.count).sum::<usize>() + context.model.ahead;
    let total = total.max(1) as f64;
    let p = stages as f64;
    // Blocks of the first, a middle and the last stage. Where they do not divide but would with embedding and head
    // counted as blocks, those stand for a block each.
    let (first, middle, last) = match (d.first_stage, d.last_stage) {
        _ if stages == 1 => (total, 0.0, 0.0),
        (0, 0) if total % p != 0.0 && (total + 2.0) % p == 0.0 => {
            let all = (total + 2.0) / p;
            (all - 1.0, all, all - 1.0)
        }
        (0, 0) => (total / p, (total / p).ceil(), (total / p).floor()),
        (first, last) => {
            let mean = total / p;
            let first = if first > 0 { first as f64 } else { mean };
            let last = if last > 0 { last as f64 } else { mean };
            (first, if stages > 2 { (total - first - last) / (p - 2.0) } else { 0.0 }, last)
        }
    };
    let units: Vec<(f64, Unit)> = kinds
        .iter()
        .map(|kind| {
            let more = if kind.sparse || kinds.len() == 1 { context.model.ahead } else { 0 };
            ((kind.count + more) as f64 / total, context.block(kind))
        })
        .collect();
    let blocks = |count: f64| units.iter().map(|(share, unit)| (share * count, *unit)).collect::<Stage>();
    let (embedding, head) = (context.embedding(), context.head());
    let mut list = [blocks(first), blocks(middle), blocks(last)];
    list[0].insert(0, (1.0, embedding));
    list[if stages == 1 { 0 } else { 2 }].push((1.0 + context.model.ahead as f64, head));
    if context.drive.copy_bytes(context.tuning) > 0.0 && context.job.sharding.parameters > 1 {
        for (_, unit) in list.iter_mut().flatten() {
            copy(context, unit);
        }
    }
    list
}

/// Between sharded parameters and the buffers that collectives work on.
fn copy(context: &Context<'_>, unit: &mut Unit) {
    let bytes = context.drive.copy_bytes(context.tuning);
    let gathered = context.roof.pass((unit.dense + unit.sparse) * bytes);
    unit.forward.busy += gathered;
    unit.backward.busy += context.roof.pass(unit.trained * bytes);
    if context.job.sharding.reshard_after_forward {
        unit.backward.busy += gathered;
    }
}

/// Seconds of a stage and micro-batch, by what they go to.
#[derive(Clone, Copy, Default)]
struct Micro {
    forward: f64,
    backward: f64,
    recompute: f64,
    waits: Phase,
}

impl Micro {
    fn all(&self) -> f64 {
        self.forward + self.backward + self.recompute + self.waits.waits()
    }
}

struct Plan<'a> {
    context: Context<'a>,
    stages: [Stage; 3],
    /// Which of them is the slowest.
    slowest: usize,
    micros: [Micro; 3],
    spans: Vec<Span>,
    traffic: Vec<Traffic>,
}

impl<'a> Plan<'a> {
    fn new(context: Context<'a>, stages: [Stage; 3]) -> Plan<'a> {
        let mut plan =
            Plan { context, stages, slowest: 0, micros: Default::default(), spans: Vec::new(), traffic: Vec::new() };
        for (slot, stage) in plan.micros.iter_mut().zip(&plan.stages) {
            *slot = micro(&context, stage);
        }
        let of = |which: usize| plan.micros[which].all();
        plan.slowest = (0..3).fold(0, |best, which| if of(which) > of(best) { which } else { best });
        plan
    }

    fn span(&mut self, kind: SpanKind, seconds: f64) {
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
        let [first, middle, last] = &self.micros;
        let all = first.all() + last.all() + (p as f64 - 2.0) * middle.all();
        self.span(SpanKind::Bubble, (all - self.micros[self.slowest].all()).max(0.0) / chunks);
        let c = &self.context;
        // Stages send each tensor rank's share and gather it on the other side.
        let share = d.tensor.max(1) as f64;
        let bytes = c.tokens(false) * c.model.hidden as f64 * c.job.precision.compute.bytes() / share;
        let once = seconds(Collective::Send, bytes, c.layout.neighbours, c.machine);
        let calls = 2.0 * micros * chunks;
        let hidden = if c.drive.overlap_sends && chunks > 1.0 { 0.8 } else { 0.0 };
        let along = 2.0 * (p as f64 - 1.0);
        self.span(SpanKind::Exposed(Axis::Pipeline), once * (calls * (1.0 - hidden) + along));
        self.row(Axis::Pipeline, Collective::Send, calls, bytes, 2);
    }

    fn row(&mut self, axis: Axis, kind: Collective, calls: f64, bytes: f64, ranks: usize) {
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
        for (count, unit) in &stage {
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

    /// Gathers and reductions along the data axes.
    fn data(&mut self, micros: f64) {
        let c = self.context;
        let sharding = &c.job.sharding;
        let sharded = sharding.parameters > 1;
        // Split gradients are reduced each time they are made; Megatron-like stacks with stages add them up first.
        let each = sharded || (sharding.gradients > 1 && c.job.degrees.pipeline <= 1);
        let moves = self.moves();
        let ahead = if c.drive.prefetch { sharding.prefetch.max(1) } else { 1 };
        let queue = |gather: bool, reduce: bool| -> (Waited, f64) {
            let units: Vec<queue::Unit> = moves
                .iter()
                .map(|m| queue::Unit {
                    gather_forward: if gather { m.queue.gather_forward } else { 0.0 },
                    gather_backward: if gather { m.queue.gather_backward } else { 0.0 },
                    reduce: if reduce { m.queue.reduce } else { 0.0 },
                    ..m.queue
                })
                .collect();
            let total = units.iter().map(|u| u.count as f64 * (u.gather_forward + u.gather_backward + u.reduce)).sum();
            (queue::run(&units, ahead), total)
        };
        let mut exposed = 0.0;
        let mut settle = |(waited, total): (Waited, f64), overlapped: bool, times: f64| {
            let alone = if overlapped { waited.exposed } else { total };
            let mut beside = if overlapped { waited.hidden } else { 0.0 };
            let mut stands = alone;
            if !c.drive.prefetch {
                let more = c.tuning.deepspeed_exposed * beside;
                stands += more;
                beside -= more;
            }
            exposed += times * (stands + c.tuning.contention * beside);
        };
        if each {
            settle(queue(sharded, true), true, micros);
        } else {
            settle(queue(false, true), c.drive.overlap_reduce, 1.0);
        }
        if !sharded && sharding.optimizer > 1 {
            settle(queue(true, false), c.drive.overlap_gather, 1.0);
        }
        self.span(SpanKind::Exposed(Axis::Data), exposed);
        let times = if each { micros } else { 1.0 };
        for m in &moves {
            let count = m.queue.count as f64;
            let gathers =
                f64::from(u8::from(m.queue.gather_forward > 0.0)) + f64::from(u8::from(m.queue.gather_backward > 0.0));
            let often = if sharded { micros } else { 1.0 };
            self.row(Axis::Data, Collective::AllGather, often * count * gathers, m.gather_bytes, m.gather_group.ranks);
            let kind = if sharding.optimizer > 1 || each { Collective::ReduceScatter } else { Collective::AllReduce };
            self.row(Axis::Data, kind, times * count, m.reduce_bytes, m.reduce_group.ranks);
        }
    }

    /// What each unit of the slowest stage gathers and reduces.
    fn moves(&self) -> Vec<Move> {
        let c = &self.context;
        let (job, layout, machine) = (c.job, c.layout, c.machine);
        let sharding = &job.sharding;
        let sharded = sharding.parameters > 1;
        // DeepSpeed gathers parameter by parameter, with little ahead.
        let slow = if c.drive.prefetch || !sharded || layout.data.nodes() < 2 {
            1.0
        } else {
            1.0 / c.tuning.deepspeed_network
        };
        let element = match job.peft {
            _ if sharding.gather_bytes > 0.0 => sharding.gather_bytes,
            Peft::Adapters { base, .. } => base.bytes(),
            Peft::None => job.precision.compute.bytes(),
        };
        let wire = if sharding.reduce_bytes > 0.0 { sharding.reduce_bytes } else { job.precision.reduce };
        let link = (machine.host.bandwidth * machine.host.reached).max(1.0);
        let group = if sharded { layout.shard } else { layout.data };
        let mut list = Vec::new();
        for (count, unit) in &self.stages[self.slowest] {
            let number = count.round().max(0.0) as usize;
            if number == 0 {
                continue;
            }
            // Kinds that are mixed over stages: whole units, each with its share of the time.
            let scale = count / number as f64;
            let price = |what, dense: f64, sparse: f64, group: Group| {
                scale
                    * slow
                    * (seconds(what, dense, group, machine) + seconds(what, sparse, layout.expert_data, machine))
            };
            let mut gather = price(Collective::AllGather, unit.dense * element, unit.sparse * element, group);
            if sharded && job.offload.parameters != Place::Device {
                gather += scale * (unit.dense + unit.sparse) * element / group.ranks as f64 / link;
            }
            let mut again = match sharding.parked {
                parked if parked > 1 => {
                    price(Collective::AllGather, unit.dense * element, unit.sparse * element, layout.parked)
                }
                _ if sharded && sharding.reshard_after_forward => gather,
                _ => 0.0,
            };
            if !sharded {
                again = 0.0;
            }
            let share = if unit.dense + unit.sparse > 0.0 { unit.trained / (unit.dense + unit.sparse) } else { 0.0 };
            let (dense, sparse) = (unit.dense * share * wire, unit.sparse * share * wire);
            let scattered = sharded || sharding.gradients > 1 || sharding.optimizer > 1;
            let what = if scattered { Collective::ReduceScatter } else { Collective::AllReduce };
            let mut reduce = price(what, dense, sparse, group);
            if sharded && layout.replicas.ranks > 1 {
                reduce += scale * seconds(Collective::AllReduce, dense / group.ranks as f64, layout.replicas, machine);
            }
            let gathers = sharded || sharding.optimizer > 1;
            let (forward, backward) = (unit.forward, unit.backward);
            list.push(Move {
                queue: queue::Unit {
                    count: number,
                    forward: scale * (busy(c, &forward, false) + forward.waits()),
                    backward: scale
                        * (busy(c, &backward, true)
                            + backward.waits()
                            + busy(c, &unit.recompute, false)
                            + unit.recompute.waits()),
                    gather_forward: if gathers { gather } else { 0.0 },
                    gather_backward: again,
                    reduce,
                },
                gather_bytes: (unit.dense + unit.sparse) * element,
                reduce_bytes: dense + sparse,
                gather_group: group,
                reduce_group: group,
            });
        }
        list
    }

    fn update(&mut self) {
        let c = &self.context;
        let stage = &self.stages[self.slowest];
        let sum = |f: fn(&Unit) -> f64| stage.iter().map(|(count, unit)| count * f(unit)).sum::<f64>();
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
        let weights = [1.0, (p - 2.0).max(0.0), if p > 1.0 { 1.0 } else { 0.0 }];
        let (mut model, mut again) = (0.0, 0.0);
        for (stage, weight) in self.stages.iter().zip(weights) {
            for (count, unit) in stage {
                model += weight * count * (unit.forward.flops + unit.backward.flops);
                again += weight * count * unit.recompute.flops;
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

/// A unit's collectives along the data axes.
struct Move {
    queue: queue::Unit,
    gather_bytes: f64,
    reduce_bytes: f64,
    gather_group: Group,
    reduce_group: Group,
}

/// Seconds of a phase's kernels: those of the device with the gaps between them, or of the host that starts them.
fn busy(context: &Context<'_>, phase: &Phase, backward: bool) -> f64 {
    let t = context.tuning;
    let host = if context.drive.fusion == Fusion::Eager { t.host_eager } else { t.host_fused };
    // Backward is started from C++.
    let host = if backward { 0.7 * host } else { host };
    (phase.busy + phase.kernels * context.roof.device.launch * 0.5).max(phase.kernels * host)
}

fn micro(context: &Context<'_>, stage: &Stage) -> Micro {
    let mut sum = Micro::default();
    for (count, unit) in stage {
        sum.forward += count * busy(context, &unit.forward, false);
        sum.backward += count * busy(context, &unit.backward, true);
        sum.recompute += count * busy(context, &unit.recompute, false);
        for phase in [&unit.forward, &unit.backward, &unit.recompute] {
            sum.waits.add(*phase, *count);
        }
    }
    let _ = Number::F32;
    sum
}

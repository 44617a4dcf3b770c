//! What one unit of the model costs a rank for one micro-batch: a block, the embedding, the head.

mod ends;
mod exchange;
mod work;

use crate::framework::{Drive, Fusion};
use crate::job::{Job, Kind, Number, Peft, Shape};
use crate::layout::{Layout, expert_tensor};
use crate::machine::Machine;
use crate::roofline::{Product, Roofline};
use crate::shape::{BlockKind, Matrix, Role};
use crate::tuning::Tuning;

/// Everything that prices a unit.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub job: &'a Job,
    pub model: &'a Shape,
    pub machine: &'a Machine,
    pub layout: &'a Layout,
    pub tuning: &'a Tuning,
    pub drive: Drive,
    pub roof: Roofline<'a>,
}

/// Seconds of a phase of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Phase {
    /// Kernels on the device.
    pub busy: f64,
    /// How many of them.
    pub kernels: f64,
    /// Of `busy`, what makes the gradients of weights.
    pub weights: f64,
    /// FLOPs of products and attention, of this rank.
    pub flops: f64,
    /// Tensor parallel collectives.
    pub tensor: f64,
    /// Exchanges with experts.
    pub expert: f64,
    /// Rings of keys and values.
    pub context: f64,
    /// The weights' and activations' way from and to the host.
    pub host: f64,
}

impl Phase {
    pub fn add(&mut self, other: Phase, times: f64) {
        self.busy += times * other.busy;
        self.weights += times * other.weights;
        self.kernels += times * other.kernels;
        self.flops += times * other.flops;
        self.tensor += times * other.tensor;
        self.expert += times * other.expert;
        self.context += times * other.context;
        self.host += times * other.host;
    }

    /// Communication that compute waits for within the unit.
    pub fn waits(&self) -> f64 {
        self.tensor + self.expert + self.context + self.host
    }

    pub(super) fn kernel(&mut self, seconds: f64) {
        self.busy += seconds;
        self.kernels += 1.0;
    }
}

/// A unit of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Unit {
    pub forward: Phase,
    pub backward: Phase,
    pub recompute: Phase,
    /// Parameters of a rank beside those of experts.
    pub dense: f64,
    /// Parameters of experts of a rank.
    pub sparse: f64,
    /// Those of `dense` and `sparse` together that train.
    pub trained: f64,
    /// What its ranks exchange.
    pub collectives: Calls,
}

/// Collectives of a unit and micro-batch: calls forward and backward (with what is made again) and bytes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Calls {
    pub tensor: f64,
    pub tensor_bytes: f64,
    pub expert: f64,
    pub expert_bytes: f64,
    pub context: f64,
    pub context_bytes: f64,
}

impl Context<'_> {
    pub(super) fn form(&self) -> Number {
        self.job.precision.products
    }

    pub(super) fn bytes(&self) -> f64 {
        self.job.precision.compute.bytes()
    }

    /// Twice the bytes where autocast keeps the residual stream and what is made of it in f32.
    pub(super) fn wide(&self) -> f64 {
        if self.job.autocasts() { 2.0 } else { 1.0 }
    }

    pub(super) fn tensor(&self) -> f64 {
        self.job.degrees.tensor.max(1) as f64
    }

    /// Ranks that split what lies between the products.
    pub(super) fn between(&self) -> f64 {
        if self.job.degrees.sequence { self.tensor() } else { 1.0 }
    }

    pub(super) fn frozen(&self) -> bool {
        !matches!(self.job.peft, Peft::None)
    }

    /// Tokens of a micro-batch on a rank, of the stack that a block belongs to.
    pub fn tokens(&self, cross: bool) -> f64 {
        let seq = match self.model.kind {
            Kind::EncoderDecoder { decoder_seq, .. } if cross => decoder_seq,
            _ => self.job.batch.seq,
        };
        seq as f64 * self.job.batch.micro as f64 / self.job.degrees.context.max(1) as f64
    }

    /// A product with its backward: (forward, backward).
    pub(super) fn product(&self, m: f64, n: f64, k: f64, count: f64, form: Number) -> (Phase, Phase) {
        let bytes = self.bytes();
        let roof = &self.roof;
        let flops = 2.0 * m * n * k * count;
        let mut forward = Phase { flops, ..Phase::default() };
        forward.kernel(roof.product(Product { m, n, k, count, out_bytes: bytes }, form));
        let mut backward = Phase { flops, ..Phase::default() };
        backward.kernel(roof.product(Product { m, n: k, k: n, count, out_bytes: bytes }, form));
        if !self.frozen() {
            // The gradient of the weights; added up in f32 by the product itself, or written and added by a pass.
            let out_bytes = if self.drive.fused_accumulation { 8.0 } else { bytes };
            // Rows in memory are those of n and k here, too: sums over any number of tokens start where they should.
            let tokens = (m / 16.0).ceil() * 16.0;
            let before = backward.busy;
            backward.kernel(roof.product(Product { m: n, n: k, k: tokens, count, out_bytes }, form));
            backward.flops += flops;
            if !self.drive.fused_accumulation && self.job.batch.accumulation > 1 && self.kept_gradients() {
                backward.kernel(roof.pass(n * k * count * (2.0 * self.job.precision.gradients + bytes)));
            }
            backward.weights = backward.busy - before;
        }
        if self.job.autocasts() {
            let cast = roof.pass(n * k * count * 6.0);
            forward.kernel(cast);
            backward.kernel(cast);
        }
        if form == Number::Fp8 {
            // Casts with a transposed copy: of the input forward, of the gradient backward. Weights are cast once a step
            // where they stay, each time where they are gathered.
            let cast = self.tuning.cast_bytes;
            let times = if self.job.sharding.parameters > 1 { 1.0 } else { 1.0 / self.job.batch.accumulation as f64 };
            forward.kernel(roof.pass(count * (cast * m * k + 4.0 * times * n * k)));
            backward.kernel(roof.pass(count * cast * m * n));
            forward.kernels += 2.0;
            backward.kernels += 2.0;
        }
        (forward, backward)
    }

    /// Whether gradients are added up where they were made (no reduction per micro-batch).
    fn kept_gradients(&self) -> bool {
        self.job.sharding.gradients <= 1
    }

    /// What a frozen matrix takes beside its product: the conversion of a base in few bits to the compute type, and its adapters.
    /// On this rank the matrix has `copies` of n outputs and k inputs, and m tokens in all.
    fn frozen_matrix(&self, matrix: &Matrix, (m, n, k, copies): (f64, f64, f64, f64)) -> (Phase, Phase) {
        let Peft::Adapters { rank, base, targets, .. } = self.job.peft else { return Default::default() };
        let stored = match matrix.role {
            Role::ExpertUp | Role::ExpertDown => self.job.frozen_expert_bytes(),
            _ => base.bytes(),
        };
        let roof = &self.roof;
        let form = self.job.precision.compute;
        let bytes = self.bytes();
        let (mut forward, mut backward) = (Phase::default(), Phase::default());
        if stored < bytes {
            let seconds = roof.pass(copies * n * k * (stored + bytes));
            forward.kernel(seconds);
            backward.kernel(seconds);
        }
        let (count, outputs) = self.model.adapted(targets, matrix);
        if count == 0.0 {
            return (forward, backward);
        }
        // Each adapter reads the input; together they write to `n` outputs.
        let n = n * outputs / matrix.outputs as f64;
        // A pass over the result, which the product itself does where kernels are fused.
        let pass =
            |width: f64| roof.pass(if self.drive.fusion == Fusion::Eager { 3.0 } else { 1.0 } * bytes * m * width);
        forward.kernels += count;
        backward.kernels += count;
        if rank == 0 {
            // Factors scale what a matrix writes, and what the MLP's last one reads.
            let scaled = if let Role::Down | Role::ExpertDown = matrix.role { k } else { n };
            forward.busy += pass(scaled);
            backward.busy += 2.0 * pass(scaled);
        } else {
            forward.busy += pass(n);
            backward.busy += pass(k * count);
            let (m, r, n) = (m / copies, rank as f64, n / count);
            let narrow =
                |a, b, c| count * roof.product(Product { m: a, n: b, k: c, count: copies, out_bytes: bytes }, form);
            forward.busy += narrow(m, r, k) + narrow(m, n, r);
            forward.flops = 2.0 * m * r * (n + k) * count * copies;
            backward.busy += narrow(m, r, n) + narrow(n, r, m) + narrow(m, k, r) + narrow(r, k, m);
            backward.flops = 2.0 * forward.flops;
            forward.kernels += 4.0 * count;
            backward.kernels += 6.0 * count;
        }
        (forward, backward)
    }

    /// Seconds that the host takes to gather an expert's matrix by itself: gate and up are two.
    fn expert_wait(&self, matrix: &Matrix) -> f64 {
        let is_single = !self.drive.grouped_experts && self.job.framework.memory.gathered.live_parameters > 0.0;
        let gates = if matrix.role == Role::ExpertUp && self.model.gated { 2.0 } else { 1.0 };
        if is_single && self.job.sharding.parameters > 1 { gates * self.drive.gather_wait } else { 0.0 }
    }

    /// Rows, columns, sums and copies of a matrix on this rank.
    fn split(&self, matrix: &Matrix, tokens: f64) -> (f64, f64, f64, f64) {
        let t = self.tensor();
        let (inputs, outputs) = (matrix.inputs as f64, matrix.outputs as f64);
        let d = &self.job.degrees;
        match matrix.role {
            Role::Qkv | Role::Up | Role::Head => (tokens, (outputs / t).ceil(), inputs, 1.0),
            Role::Output | Role::Down => (tokens, outputs, (inputs / t).ceil(), 1.0),
            Role::Whole => (tokens / self.between(), outputs, inputs, 1.0),
            Role::ExpertUp | Role::ExpertDown => {
                let etp = expert_tensor(d) as f64;
                let local = (matrix.copies as f64 / d.expert.max(1) as f64).max(1.0);
                let imbalance = self.model.experts.as_ref().map_or(1.0, |e| e.imbalance.max(1.0));
                // Rows are padded to what products want.
                let rows = (tokens * matrix.active * etp / t / local * imbalance / 16.0).ceil() * 16.0;
                match matrix.role {
                    Role::ExpertUp => (rows, (outputs / etp).ceil(), inputs, local),
                    _ => (rows, outputs, (inputs / etp).ceil(), local),
                }
            }
        }
    }

    /// A block of a kind.
    pub fn block(&self, kind: &BlockKind) -> Unit {
        let tokens = self.tokens(kind.cross);
        let mut unit = Unit { dense: kind.others as f64, ..Unit::default() };
        // Forward and backward of attention's matrices and of the MLP's.
        let (mut around, mut mlp) = ([Phase::default(); 2], [Phase::default(); 2]);
        for matrix in &kind.matrices {
            let (m, n, k, count) = self.split(matrix, tokens);
            let is_expert = matches!(matrix.role, Role::ExpertUp | Role::ExpertDown);
            let alone = if is_expert && !self.drive.grouped_experts { count } else { 1.0 };
            let (mut forward, mut backward) = (Phase::default(), Phase::default());
            let (once, back) = self.product(m, n, k, count / alone, self.form());
            forward.add(once, alone);
            backward.add(back, alone);
            if is_expert {
                let wait = alone * self.expert_wait(matrix);
                forward.busy += wait;
                backward.busy += wait;
                // Rows that are padding, or that the mean rank has not, are no work of the model.
                let etp = expert_tensor(&self.job.degrees) as f64;
                let useful = tokens * matrix.active * etp / self.tensor() / (m * count).max(1.0);
                forward.flops *= useful.min(1.0);
                backward.flops *= useful.min(1.0);
            }
            if self.model.bias && !self.frozen() && self.drive.fusion == Fusion::Eager {
                // The gradient of a bias is a sum over all rows.
                backward.kernel(self.roof.pass(m * n * count * self.bytes()));
            }
            let (more_forward, more_backward) = self.frozen_matrix(matrix, (m * count, n, k, count));
            let part = match matrix.role {
                Role::Qkv | Role::Output | Role::Whole => &mut around,
                _ => &mut mlp,
            };
            for (slot, phase) in [(0, forward), (0, more_forward), (1, backward), (1, more_backward)] {
                part[slot].add(phase, 1.0);
            }
            match matrix.role {
                Role::ExpertUp | Role::ExpertDown => unit.sparse += n * k * count,
                _ => unit.dense += n * k * count,
            }
        }
        let core = self.core(kind, tokens);
        let passes = self.passes(kind, tokens);
        let router = self.router(kind, tokens);
        for part in [around, mlp, core, passes, router] {
            unit.forward.add(part[0], 1.0);
            unit.backward.add(part[1], 1.0);
        }
        self.communicate(kind, tokens, &mut unit);
        self.park(tokens, &mut unit);
        unit.recompute = self.again(&unit, [around[0], mlp[0], core[0], passes[0], router[0]]);
        unit.trained = if self.frozen() { 0.0 } else { unit.dense + unit.sparse };
        unit
    }
}

impl Context<'_> {
    /// Seconds of a phase's kernels: those of the device with the gaps between them, or of the host that starts them.
    pub(super) fn busy(&self, phase: &Phase, backward: bool) -> f64 {
        let t = self.tuning;
        let host = if self.drive.fusion == Fusion::Eager { t.host_eager } else { t.host_fused };
        // Backward is started from C++.
        let host = if backward { 0.7 * host } else { host };
        self.device(phase).max(phase.kernels * host)
    }

    /// The same of a host that is never late.
    pub(super) fn device(&self, phase: &Phase) -> f64 {
        phase.busy + phase.kernels * self.roof.device.launch * 0.5
    }
}

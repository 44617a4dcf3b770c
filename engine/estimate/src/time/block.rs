//! What one unit of the model costs a rank for one micro-batch: a block, the embedding, the head.

use super::layout::{Layout, expert_tensor};
use crate::collective::{Collective, Group, seconds};
use crate::job::{Attention, Job, Kind, Number, Peft, Recompute, Shape, Stack};
use crate::machine::Machine;
use crate::roofline::{Heads, Product, Roofline};
use crate::shape::{BlockKind, Matrix, Role};
use crate::tuning::{Drive, Fusion, Tuning};

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

    fn kernel(&mut self, seconds: f64) {
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
    /// Whether the rank's own weights of this unit are read for backward, too.
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

impl<'a> Context<'a> {
    fn form(&self) -> Number {
        self.job.precision.products
    }

    fn bytes(&self) -> f64 {
        self.job.precision.compute.bytes()
    }

    /// Twice the bytes where autocast keeps the residual stream and what is made of it in f32.
    fn wide(&self) -> f64 {
        if self.autocast() { 2.0 } else { 1.0 }
    }

    /// Weights in f32 that are cast for each product, eagerly.
    fn autocast(&self) -> bool {
        let p = &self.job.precision;
        p.weights.bytes() > p.compute.bytes() && self.drive.autocast
    }

    fn tensor(&self) -> f64 {
        self.job.degrees.tensor.max(1) as f64
    }

    /// Ranks that split what lies between the products.
    fn between(&self) -> f64 {
        if self.job.degrees.sequence { self.tensor() } else { 1.0 }
    }

    fn frozen(&self) -> bool {
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
    fn product(&self, m: f64, n: f64, k: f64, count: f64, form: Number) -> (Phase, Phase) {
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
            backward.kernel(roof.product(Product { m: n, n: k, k: m, count, out_bytes }, form));
            backward.flops += flops;
            if !self.drive.fused_accumulation && self.job.batch.accumulation > 1 && self.kept_gradients() {
                backward.kernel(roof.pass(n * k * count * (2.0 * self.job.precision.gradients + bytes)));
            }
        }
        if self.autocast() {
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

    /// Adapters beside a frozen matrix, and the base's way back to numbers that are computed with.
    fn adapter(&self, role: Role, m: f64, n: f64, k: f64) -> (Phase, Phase) {
        let Peft::Adapters { rank, base, .. } = self.job.peft else { return Default::default() };
        if self.job.stack == Stack::MegatronCore && role != Role::Qkv {
            // Its recipes adapt queries, keys and values alone.
            return Default::default();
        }
        let roof = &self.roof;
        let r = if rank == 0 { 16.0 } else { rank as f64 };
        let form = self.job.precision.compute;
        let bytes = self.bytes();
        let (mut forward, mut backward) = (Phase::default(), Phase::default());
        if base.bytes() < bytes {
            let seconds = roof.pass(n * k * (base.bytes() + bytes));
            forward.kernel(seconds);
            backward.kernel(seconds);
        }
        let narrow = |a, b, c| roof.product(Product { m: a, n: b, k: c, count: 1.0, out_bytes: bytes }, form);
        forward.kernel(narrow(m, r, k));
        forward.kernel(narrow(m, n, r));
        // The sum with the base's result: by the product itself where kernels are fused.
        let add = if self.drive.fusion == Fusion::Eager { 3.0 } else { 1.0 };
        forward.kernel(roof.pass(add * bytes * m * n));
        forward.flops = 2.0 * m * r * (n + k);
        backward.kernel(narrow(m, r, n) + narrow(n, r, m));
        backward.kernel(narrow(m, k, r) + narrow(r, k, m));
        backward.kernel(roof.pass(add * bytes * m * k));
        backward.flops = 2.0 * forward.flops;
        forward.kernels += 2.0;
        backward.kernels += 4.0;
        (forward, backward)
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
        let mut unit = Unit::default();
        let (mut matrices, mut attention_matrices) = ([Phase::default(); 2], [Phase::default(); 2]);
        let mut mlp = [Phase::default(); 2];
        for matrix in &kind.matrices {
            let (m, n, k, count) = self.split(matrix, tokens);
            let (forward, mut backward) = self.product(m, n, k, count, self.form());
            if self.model.bias && !self.frozen() && self.drive.fusion == Fusion::Eager {
                // The gradient of a bias is a sum over all rows.
                backward.kernel(self.roof.pass(m * n * count * self.bytes()));
            }
            let (more_forward, more_backward) = self.adapter(matrix.role, m * count, n, k);
            let (part, router) = match matrix.role {
                Role::Qkv | Role::Output => (&mut attention_matrices, false),
                Role::Whole => (&mut attention_matrices, true),
                _ => (&mut mlp, false),
            };
            let _ = router;
            for (slot, phases) in part.iter_mut().zip([[forward, more_forward], [backward, more_backward]]) {
                slot.add(phases[0], 1.0);
                slot.add(phases[1], 1.0);
            }
            let elements = n * k * count;
            match matrix.role {
                Role::ExpertUp | Role::ExpertDown => unit.sparse += elements,
                _ => unit.dense += elements,
            }
        }
        unit.dense += kind.others as f64;
        for (sum, parts) in matrices.iter_mut().zip([[attention_matrices[0], mlp[0]], [attention_matrices[1], mlp[1]]])
        {
            sum.add(parts[0], 1.0);
            sum.add(parts[1], 1.0);
        }
        let core = self.core(kind, tokens);
        let passes = self.passes(kind, tokens);
        let router = self.router(kind, tokens);
        for (phase, parts) in [(&mut unit.forward, 0), (&mut unit.backward, 1)] {
            for part in [matrices[parts], core[parts], passes[parts], router[parts]] {
                phase.add(part, 1.0);
            }
        }
        self.communicate(kind, tokens, &mut unit);
        let again = self.again(&unit, [attention_matrices[0], mlp[0], core[0], passes[0], router[0]]);
        unit.recompute = again;
        unit.trained = match self.job.peft {
            Peft::None => unit.dense + unit.sparse,
            Peft::Adapters { .. } => 0.0,
        };
        unit
    }

    /// Attention proper, of one or (with cross-attention) two calls.
    fn core(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let model = self.model;
        let d = &self.job.degrees;
        let (seq, context) = (self.job.batch.seq as f64, d.context.max(1) as f64);
        let own = match model.kind {
            Kind::EncoderDecoder { decoder_seq, .. } if kind.cross => decoder_seq as f64,
            _ => seq,
        };
        let (width, value) = match model.latent {
            Some(latent) => ((latent.qk_dim + latent.rope_dim) as f64, latent.v_dim as f64),
            None => (model.head_dim as f64, model.head_dim as f64),
        };
        let encoder = matches!(model.kind, Kind::EncoderDecoder { .. }) && !kind.cross;
        let keys = if model.window > 0 { own.min(model.window as f64) } else { own };
        let call = Heads {
            batch: self.job.batch.micro as f64,
            heads: (model.heads as f64 / self.tensor()).max(1.0),
            width,
            value_width: value,
            queries: own / context,
            keys,
            causal: model.causal && !encoder && (model.window == 0 || model.window as f64 >= own),
            dropout: model.dropout,
            fused_softmax: self.drive.fusion != Fusion::Eager,
        };
        let kernel = self.job.attention;
        let mut phases = [Phase::default(); 2];
        let mut put = |call: Heads| {
            let (forward, backward) = self.roof.attention(call, kernel, self.job.precision.compute);
            let slow = if kernel == Attention::Flash(1) { self.drive.attention(self.tuning) } else { 1.0 };
            // Autocast takes softmax in f32.
            let slow = if kernel == Attention::Naive { slow / self.wide() } else { slow };
            let (forward, backward) = (forward / slow, backward / slow);
            let kernels = if kernel == Attention::Naive { 5.0 } else { 1.0 };
            phases[0].add(Phase { busy: forward, kernels, flops: call.flops(), ..Phase::default() }, 1.0);
            let back = 2.0 * call.flops();
            phases[1].add(Phase { busy: backward, kernels: 2.0 * kernels, flops: back, ..Phase::default() }, 1.0);
        };
        put(call);
        if kind.cross {
            put(Heads { keys: seq, causal: false, ..call });
        }
        // Queries, keys and values are turned and laid out anew before attention, its result after it.
        let heads = (model.query_width() + 2 * model.kv_width() + model.value_width()) as f64 / self.tensor();
        let times = if self.drive.fusion == Fusion::Eager { 4.0 } else { 2.0 };
        let turned = if model.positions == 0 { times } else { 0.5 * times };
        let seconds = self.roof.pass(tokens * heads * self.bytes() * turned);
        for phase in &mut phases {
            phase.kernel(seconds);
            phase.kernels += turned;
        }
        phases
    }

    /// Element-wise work: norms, residuals, dropout, activations.
    fn passes(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let model = self.model;
        let fusion = self.drive.fusion;
        let norms = if kind.cross { 3.0 } else { 2.0 };
        let hidden = model.hidden as f64 / self.between();
        // Elements read and written per element of the residual stream, by norm and residual: a norm without mean is a
        // chain of kernels in f32 where nobody fused it.
        let (norm, norm_back, norm_kernels) = match (fusion, model.norm_bias) {
            (Fusion::Eager, false) => (9.0, 12.0, 7.0),
            (Fusion::Eager, true) | (Fusion::Fused, _) => (2.0, 4.0, 1.0),
            (Fusion::Compiled, _) => (1.5, 3.0, 1.0),
        };
        let drop = match (model.dropout, fusion) {
            (false, _) => 0.0,
            (true, Fusion::Eager) => 2.5,
            (true, _) => 0.5,
        };
        let residual = if fusion == Fusion::Compiled { 2.0 } else { 3.0 };
        let wide = self.active_width(kind) / self.tensor();
        let (act, act_back, act_kernels) = match (model.gated, fusion) {
            (true, Fusion::Eager) => (5.0, 8.0, 2.0),
            (true, _) => (3.0, 5.0, 1.0),
            // GELU by its formula is a chain of kernels in trainers that fuse nothing.
            (false, Fusion::Eager) if !self.drive.gelu => (15.0, 18.0, 8.0),
            (false, _) => (2.0, 3.0, 1.0),
        };
        let bytes = self.bytes() * tokens * self.wide();
        let forward = norms * (norm + residual + drop) * hidden + act * wide;
        let backward = norms * (norm_back + 2.0 + drop) * hidden + act_back * wide;
        let kernels = norms * (norm_kernels + 1.0 + if drop > 0.0 { 1.0 } else { 0.0 }) + act_kernels;
        let phase =
            |elements: f64, kernels: f64| Phase { busy: self.roof.pass(elements * bytes), kernels, ..Phase::default() };
        [phase(forward, kernels), phase(backward, 1.5 * kernels)]
    }

    /// Elements of a token between the MLP's matrices, over all experts that it goes to.
    fn active_width(&self, kind: &BlockKind) -> f64 {
        match (&self.model.experts, kind.sparse) {
            (Some(experts), true) => {
                // Experts hold tokens / tensor x etp rows of ffn / etp: as if split over tensor.
                (experts.ffn * experts.top + experts.shared_ffn) as f64
            }
            _ => self.model.ffn as f64,
        }
    }

    /// Routing: probabilities, permutations, the weighted sum.
    fn router(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let Some(experts) = self.model.experts.as_ref().filter(|_| kind.sparse) else { return Default::default() };
        let rows = tokens / self.tensor() * experts.top as f64;
        let seconds = self.roof.pass(rows * self.model.hidden as f64 * self.bytes() * self.tuning.router_passes);
        let kernels = self.tuning.router_kernels;
        let forward = Phase { busy: seconds, kernels, ..Phase::default() };
        [forward, Phase { kernels: 1.5 * kernels, ..forward }]
    }

    /// What a block's ranks exchange.
    fn communicate(&self, kind: &BlockKind, tokens: f64, unit: &mut Unit) {
        let d = &self.job.degrees;
        let bytes = self.bytes();
        let stream = tokens * self.model.hidden as f64 * bytes;
        if d.tensor > 1 {
            let sparse_alone = kind.sparse && expert_tensor(d) <= 1;
            let places = if kind.cross {
                3.0
            } else if sparse_alone {
                1.0
            } else {
                2.0
            };
            let price = |what| seconds(what, stream, self.layout.tensor, self.machine);
            let once = if d.sequence {
                price(Collective::AllGather) + price(Collective::ReduceScatter)
            } else {
                price(Collective::AllReduce)
            };
            let hidden = if self.drive.overlap_tensor { self.tuning.tensor_hidden } else { 0.0 };
            let exposed = places * once * (1.0 - hidden);
            unit.forward.tensor += exposed;
            // Backward gathers the input once more for the weights' gradient under sequence parallelism; it hides.
            unit.backward.tensor += exposed;
            unit.collectives.tensor = 2.0 * places;
            unit.collectives.tensor_bytes = stream;
        }
        if let Some(experts) = self.model.experts.as_ref().filter(|_| kind.sparse && d.expert > 1) {
            let rows = tokens / self.tensor() * experts.top as f64 * experts.imbalance.max(1.0);
            let group = self.layout.expert;
            let payload = rows * self.model.hidden as f64 * bytes;
            // A token goes to a node once, whatever the number of its experts there.
            let (m, top) = (group.nodes() as f64, experts.top as f64);
            let once_a_node = (m - 1.0) * (1.0 - (1.0 - 1.0 / m).powf(top));
            let distinct = if m > 1.0 { (once_a_node / (top * (1.0 - 1.0 / m))).min(1.0) } else { 1.0 };
            let once = seconds(Collective::AllToAll, payload * distinct, group, self.machine);
            let exposed = 2.0 * once * (1.0 - self.tuning.expert_hidden);
            unit.forward.expert += exposed;
            unit.backward.expert += exposed;
            unit.collectives.expert = 4.0;
            unit.collectives.expert_bytes = payload * distinct;
        }
        if d.context > 1 {
            // Keys and values go round the ring beside attention; backward sends their gradients, too.
            let kv = 2.0 * tokens * self.model.kv_width() as f64 / self.tensor() * bytes;
            let ring = Group { ranks: 2, per_node: if self.layout.context.nodes() > 1 { 1 } else { 2 } };
            let steps = (d.context - 1) as f64;
            let once = steps * seconds(Collective::Send, kv, ring, self.machine);
            // What attention of the same time does not hide.
            let core = self.core(kind, tokens);
            unit.forward.context += (once - core[0].busy).max(0.0) + 0.1 * once.min(core[0].busy);
            unit.backward.context += (2.0 * once - core[1].busy).max(0.0) + 0.1 * (2.0 * once).min(core[1].busy);
            unit.collectives.context = 3.0 * steps;
            unit.collectives.context_bytes = kv;
        }
    }

    /// What backward makes again: parts are attention's products, the MLP's, attention, passes, routing.
    fn again(&self, unit: &Unit, parts: [Phase; 5]) -> Phase {
        let [attention, mlp, core, passes, router] = parts;
        let mut again = Phase::default();
        match &self.job.recompute {
            Recompute::None => {}
            Recompute::Full { .. } => again = unit.forward,
            Recompute::SomeBlocks { of } => again.add(unit.forward, 1.0 / (*of).max(1) as f64),
            Recompute::Core => again.add(core, 1.0),
            Recompute::PerOp => {
                again.add(attention, 0.5);
                again.add(mlp, 0.5);
                again.add(passes, 1.0);
            }
            Recompute::Modules(names) => {
                for name in names {
                    match name.as_str() {
                        "core_attn" => again.add(core, 1.0),
                        "mlp" => again.add(mlp, 1.0),
                        "moe" => {
                            again.add(mlp, 1.0);
                            again.add(router, 1.0);
                            again.expert += unit.forward.expert;
                        }
                        "moe_act" | "layernorm" => again.add(passes, 0.3),
                        "mla_up_proj" => again.add(attention, 0.4),
                        _ => {}
                    }
                }
            }
        }
        again
    }

    /// The embedding: a lookup.
    pub fn embedding(&self) -> Unit {
        let elements = self.tokens(false) * self.model.hidden as f64;
        let bytes = self.bytes();
        let mut unit = Unit::default();
        unit.forward.kernel(self.roof.pass(2.0 * elements * bytes));
        unit.backward.kernel(self.roof.pass(elements * (bytes + 8.0)));
        unit.dense = self.model.embedding_parameters() as f64 / self.tensor();
        unit.trained = if self.frozen() { 0.0 } else { unit.dense };
        unit
    }

    /// The last norm, the head and the loss.
    pub fn head(&self) -> Unit {
        let decoder = matches!(self.model.kind, Kind::EncoderDecoder { .. });
        let tokens = self.tokens(decoder);
        let vocab = (self.model.vocab as f64 / self.tensor()).ceil();
        // Libraries pad the vocabulary or pay for rows that are not aligned; nearly all pad.
        let padded = (vocab / 8.0).ceil() * 8.0;
        let form = self.job.precision.compute;
        let (forward, backward) = self.product(tokens, padded, self.model.hidden as f64, 1.0, form);
        let mut unit = Unit { forward, backward, ..Unit::default() };
        // Bytes per logit: cast to f32, softmax and its gradient, and back.
        let (there, back) = match self.drive.fusion {
            Fusion::Eager => (14.0, 14.0),
            Fusion::Fused => (8.0, 8.0),
            Fusion::Compiled => (6.0, 4.0),
        };
        unit.forward.kernel(self.roof.pass(tokens * padded * there));
        unit.backward.kernel(self.roof.pass(tokens * padded * back));
        unit.dense = self.model.head_parameters() as f64 / self.tensor();
        unit.trained = if self.frozen() { 0.0 } else { unit.dense };
        unit
    }
}

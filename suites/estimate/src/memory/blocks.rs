//! What a block's forward keeps for its backward, for one micro-batch on one rank.

use super::Habits;
use crate::job::{Attention, Job, Kind, Peft, Recompute, Targets};
use crate::shape::{BlockKind, Matrix, Role};

/// Tensors of a block, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    /// Inputs of its norms: the residual stream.
    pub residual: f64,
    /// What norms make.
    pub normed: f64,
    /// Queries, keys, values.
    pub qkv: f64,
    /// Bottlenecks of latent attention.
    pub latent: f64,
    /// Scores' softmax, its dropout's mask and result.
    pub scores: f64,
    /// Attention's result.
    pub context: f64,
    /// Masks of the dropouts beside the residual stream.
    pub masks: f64,
    /// What the MLP's first product makes.
    pub up: f64,
    /// What the second reads.
    pub act: f64,
    /// The router, and tokens on their way to experts and back.
    pub dispatch: f64,
    /// What experts read.
    pub expert_in: f64,
    /// What an expert's first product makes.
    pub expert_up: f64,
    /// What its second reads.
    pub expert_act: f64,
}

impl Kept {
    /// All of it.
    pub fn all(&self) -> f64 {
        let attention = self.residual + self.normed + self.qkv + self.latent + self.scores + self.context + self.masks;
        attention + self.up + self.act + self.dispatch + self.expert_in + self.expert_up + self.expert_act
    }
}

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// With an MLP; of the encoder, where there are two stacks.
    Dense,
    /// With experts.
    Sparse,
    /// Of a decoder beside an encoder.
    Cross,
}

/// Tokens of a micro-batch on one context rank, and those that a token sees, of a kind of block.
fn tokens(job: &Job, which: Which) -> (f64, f64) {
    let context = job.degrees.context.max(1) as f64;
    let seq = match (job.model.kind, which) {
        (Kind::EncoderDecoder { decoder_seq, .. }, Which::Cross) => decoder_seq as f64,
        _ => job.batch.seq as f64,
    };
    (job.batch.micro as f64 * seq / context, seq)
}

/// All that a block's forward keeps where nothing is made again.
pub fn block(job: &Job, habits: &Habits, which: Which) -> Kept {
    let model = &job.model;
    let (tokens, seen) = tokens(job, which);
    let c = job.precision.compute.bytes();
    let tensor = job.degrees.tensor.max(1) as f64;
    let between = if job.degrees.sequence { tensor } else { 1.0 };
    let wide = tokens * model.hidden as f64 / between;
    let heads = model.heads as f64 / tensor;
    let norms = if which == Which::Cross { 3.0 } else { 2.0 };
    // Scores in memory: softmax, and with dropout its mask (a byte) and its result. Under autocast softmax is in f32, and the product
    // reads a copy.
    let score_bytes = match (job.autocasts(), model.dropout) {
        (false, false) => c,
        (false, true) => 2.0 * c + 1.0,
        (true, false) => 4.0 + c,
        (true, true) => 4.0 + c + 1.0,
    };
    let naive = |keys: f64| match job.attention {
        Attention::Naive => score_bytes * heads * tokens * keys,
        // One f32 per token and head.
        Attention::Flash(_) => 4.0 * heads * tokens,
    };
    let (query, kv) = (model.query_width() as f64, 2.0 * model.kv_width() as f64);
    let qkv = match model.latent {
        Some(l) => 2.0 * query + (model.heads * l.v_dim) as f64,
        None => query + kv,
    };
    let mut kept = Kept {
        residual: norms * stream(job) * wide,
        normed: norms * habits.norm / 2.0 * c * wide,
        qkv: c * tokens * qkv / tensor,
        scores: naive(seen),
        context: c * tokens * model.value_width() as f64 / tensor,
        masks: if model.dropout { norms * wide } else { 0.0 },
        ..Kept::default()
    };
    if job.autocasts() {
        // Autocast caches copies of weights and not of inputs: each product reads a new copy. Decoders without a gate have one
        // product for queries, keys and values (GPT-2, GPT-NeoX, BLOOM, MPT), others three. Blocks with cross-attention have two
        // copies each of what the encoder made.
        let encoded = if which == Which::Cross { 2.0 * job.batch.micro as f64 * job.batch.seq as f64 } else { 0.0 };
        let more = match (model.kind, model.gated) {
            (Kind::Decoder, false) => 0.0,
            (_, false) => 2.0,
            (_, true) => 3.0,
        };
        kept.normed += c * (more * wide + encoded / job.degrees.context.max(1) as f64 * model.hidden as f64 / between);
    }
    // Whether what a frozen product reads stays: for its adapter, or, quantised, for nothing.
    let (reads, keeps_all) = match job.peft {
        Peft::Adapters { base, .. } if base.bytes() < c && job.framework.memory.quantised_inputs => {
            (Targets::ALL, true)
        }
        Peft::Adapters { targets, .. } => (targets, false),
        Peft::None => (Targets::ALL, true),
    };
    if job.peft != Peft::None {
        // Frozen weights need no inputs of theirs: norms keep their f32 copies, adapters what they read.
        let attention = match model.latent {
            // Projections of bottlenecks read these, which are kept in any case.
            Some(latent) if !keeps_all => latent.q_rank == 0 && reads.query,
            _ => reads.read_attention_input(),
        };
        let crossed = which == Which::Cross && (reads.query || reads.fused && attention);
        let inputs = [attention, crossed, reads.up || (reads.gate && model.gated)];
        let inputs = inputs.into_iter().filter(|is_read| *is_read).count() as f64;
        kept.residual = 0.0;
        kept.normed = (norms * 4.0 + c * inputs) * wide;
    }
    if let Some(l) = model.latent {
        // Bottlenecks before and after their norms, whole on every rank but for the sequence.
        kept.latent = c * tokens / between * 2.0 * (l.q_rank + l.kv_rank + l.rope_dim) as f64;
    }
    if which == Which::Cross {
        let keys = job.batch.seq as f64;
        let encoded = job.batch.micro as f64 * keys / job.degrees.context.max(1) as f64;
        kept.qkv += c * (tokens * query + encoded * kv) / tensor;
        kept.context += c * tokens * model.value_width() as f64 / tensor;
        kept.scores += naive(keys);
    }
    match (&model.experts, which) {
        (Some(_), Which::Sparse) => experts(job, habits, &mut kept, tokens, c),
        _ => {
            kept.up = c * tokens * up_width(job, habits, model.ffn) / tensor;
            kept.act = c * tokens * model.ffn as f64 / tensor;
        }
    }
    if !reads.down {
        (kept.act, kept.expert_act) = (0.0, 0.0);
    }
    if !reads.read_mlp_input() {
        kept.expert_in = 0.0;
    }
    kept
}

/// Bytes of an element of the residual stream.
fn stream(job: &Job) -> f64 {
    if job.autocasts() { 4.0 } else { job.precision.compute.bytes() }
}

/// Elements of a token that an MLP of a width keeps before its last product's input.
fn up_width(job: &Job, habits: &Habits, ffn: usize) -> f64 {
    let inputs = if job.model.gated { 2.0 } else { 1.0 };
    (inputs + habits.activation) * ffn as f64
}

fn experts(job: &Job, habits: &Habits, kept: &mut Kept, tokens: f64, c: f64) {
    let model = &job.model;
    let Some(experts) = &model.experts else { return };
    let (tensor, hidden) = (job.degrees.tensor.max(1) as f64, model.hidden as f64);
    let split = job.degrees.expert_tensor.max(1) as f64;
    let between = if job.degrees.sequence { tensor } else { 1.0 };
    let own = tokens / between;
    let sent = own * experts.top as f64;
    // Tokens at a rank's experts: its fair share, once per rank that shares an expert's matrices.
    let at_experts = sent * experts.imbalance.max(1.0) * split;
    // The router reads tokens in f32; tokens in the order of experts; the sum of what comes back.
    kept.dispatch = own * hidden * (4.0 + c) + sent * hidden * c;
    kept.expert_in = c * at_experts * hidden;
    let copies = if model.gated { 2.0 } else { 1.0 };
    kept.expert_up = c * at_experts * (copies * experts.ffn as f64) / split;
    kept.expert_act = c * at_experts * experts.ffn as f64 / split;
    // What experts make, before it is weighed.
    kept.dispatch += c * at_experts * hidden;
    if experts.shared_ffn > 0 {
        kept.up = c * tokens * up_width(job, habits, experts.shared_ffn) / tensor;
        kept.act = c * tokens * experts.shared_ffn as f64 / tensor;
    }
}

/// What gradients of weights are made of, of a block whose backward is in two parts: the inputs of its products and the gradients of
/// their outputs.
pub fn for_weights(job: &Job, which: Which) -> f64 {
    if job.peft != Peft::None {
        return 0.0;
    }
    let kinds = job.model.blocks();
    let is_it = |kind: &&BlockKind| match which {
        Which::Dense => !kind.sparse && !kind.cross,
        Which::Sparse => kind.sparse,
        Which::Cross => kind.cross,
    };
    let (tokens, _) = tokens(job, which);
    let tensor = job.degrees.tensor.max(1) as f64;
    let between = if job.degrees.sequence { tensor } else { 1.0 };
    let elements = |matrix: &Matrix| {
        let (inputs, outputs) = (matrix.inputs as f64, matrix.outputs as f64);
        matrix.active
            * match matrix.role {
                Role::Qkv | Role::Up | Role::Head => inputs / between + outputs / tensor,
                Role::Output | Role::Down => inputs / tensor + outputs / between,
                Role::Whole => (inputs + outputs) / between,
                Role::ExpertUp | Role::ExpertDown => (inputs + outputs) / tensor,
            }
    };
    let of_block: f64 = kinds.iter().find(is_it).map_or(0.0, |kind| kind.matrices.iter().map(elements).sum());
    job.precision.compute.bytes() * tokens * of_block
}

/// What stays under the job's policy, of an average block.
pub fn stays(job: &Job, whole: &Kept, which: Which) -> f64 {
    let model = &job.model;
    let all = whole.all();
    let (tokens, _) = tokens(job, which);
    let tensor = job.degrees.tensor.max(1) as f64;
    let c = job.precision.compute.bytes();
    let between = if job.degrees.sequence { tensor } else { 1.0 };
    let input = stream(job) * tokens * model.hidden as f64 / between;
    match &job.recompute {
        Recompute::None => all,
        Recompute::Full { every, partitioned } => {
            let split = if *partitioned && !job.degrees.sequence { tensor } else { 1.0 };
            input / split / (*every).max(1) as f64
        }
        Recompute::SomeBlocks { of } => {
            let share = 1.0 / (*of).max(1) as f64;
            share * input + (1.0 - share) * all
        }
        Recompute::Core => all - whole.scores,
        Recompute::PerOp => {
            // Attention's result and every second product's: queries, values, gate, down (torchtitan's list of operations).
            let products = (model.query_width() + model.kv_width() + model.ffn) as f64 / tensor;
            input + whole.context + c * tokens * products + c * tokens * model.hidden as f64 / between
        }
        Recompute::Modules(names) => all - dropped(whole, names, which, model.latent.is_some()),
    }
}

fn dropped(whole: &Kept, names: &[String], which: Which, is_latent: bool) -> f64 {
    let of = |name: &String| match name.as_str() {
        "core_attn" => whole.scores,
        "layernorm" => whole.normed,
        "mla_up_proj" if is_latent => whole.qkv,
        // Shared experts are no MLP of a dense block.
        "mlp" if which != Which::Sparse => whole.up + whole.act,
        "mlp_act" if which != Which::Sparse => whole.act,
        "moe_act" => whole.expert_act,
        "moe" => whole.dispatch + whole.expert_in + whole.expert_up + whole.expert_act,
        "shared_experts" if which == Which::Sparse => whole.up + whole.act,
        _ => 0.0,
    };
    names.iter().map(of).sum::<f64>().min(whole.all())
}

/// Bytes of activations per block and micro-batch by the published formula: sbh(34 + 5as/h) of 16 bits without splits,
/// sbh(10 + 24/t + 5as/(ht)) with tensor parallelism, all over t with sequence parallelism; selective recompute drops the
/// scores, full keeps 2sbh.
pub fn formula_bytes(job: &Job) -> f64 {
    let s = job.batch.seq as f64;
    let sbh = s * job.batch.micro as f64 * job.model.hidden as f64;
    let (t, heads) = (job.degrees.tensor.max(1) as f64, job.model.heads as f64);
    let naive = job.attention == Attention::Naive && job.recompute != Recompute::Core;
    let scores = if naive { 5.0 * heads * s / job.model.hidden as f64 } else { 0.0 };
    if matches!(job.recompute, Recompute::Full { .. }) {
        return 2.0 * sbh;
    }
    let between = if job.degrees.sequence { t } else { 1.0 };
    sbh * (10.0 / between + (24.0 + scores) / t)
}

//! A plan: where every byte of the model lives and what each rank does in a step. The engine runs its actions, the
//! estimate is what walking them says.

pub mod offload;
pub mod pipeline;
pub mod placement;
pub mod schedule;

use crate::action::stream::Stream;
use crate::action::{Action, EvaluationActions};
use crate::config::{AttentionKind, Base, Cell, Linear, MemoryTier, Mlp, Positions, PricedModel};
use crate::mesh::strategy;
use crate::mesh::strategy::{MeshError, Sharding};
use crate::mesh::{Axis, Mesh};
use crate::model::layers::Batch;
use crate::model::{Layout, fused_in};
use crate::observe::outcome::Estimate;
use crate::plan::schedule::Policy;
use std::sync::Arc;

/// A combination that cannot be run, with the key and the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct PlanError {
    pub key: &'static str,
    /// What is wrong, and what would do.
    pub reason: String,
}

impl From<MeshError> for PlanError {
    fn from(MeshError { key, reason, .. }: MeshError) -> PlanError {
        PlanError { key, reason }
    }
}

/// What is known of a cell before it runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Units and layers of the whole model; plans of like cells share them.
    pub layout: Arc<Layout>,
    pub mesh: Mesh,
    pub sharding: Sharding,
    pub policy: Policy,
    /// Where the stages have what the norm of the gradients is summed from.
    pub squares: Squares,
    /// By stage of the pipeline: what its ranks do. Ranks of a stage do the same on other data and on other parts of the state, so
    /// there are as many stage plans as stages, however many ranks there are.
    pub stage_plans: Vec<StagePlan>,
}

impl Plan {
    /// What a rank does.
    pub fn stage_plan_of(&self, rank: usize) -> &StagePlan {
        &self.stage_plans[self.mesh.place(rank).at(Axis::Pipeline)]
    }

    /// Bytes that a rank has in use on its device at most.
    pub fn device_peak(&self, rank: usize) -> u64 {
        self.stage_plan_of(rank).estimate.ledgers[MemoryTier::Device].total_peak()
    }
}

/// What the ranks of a stage do, and what it takes.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Units and layers of the stage.
    pub layout: Arc<Layout>,
    /// Micro-batches that have gone forward and not yet backward, at most.
    pub in_flight: usize,
    /// By layer: whether forward keeps its input.
    pub keeps_input: Vec<bool>,
    /// By layer: whether something reads the gradient of its input.
    pub wants_gradient: Vec<bool>,
    pub actions: Vec<Action>,
    /// An evaluation; empty where there is none.
    pub evaluation: EvaluationActions,
    pub estimate: Estimate,
}

/// Where the stages of a pipeline have the sums of squares of the model's gradients.
#[derive(Clone, Debug, Default)]
pub struct Squares {
    /// By trainable unit of the model: its stage, and its place among the trainable units of that.
    pub order: Vec<[usize; 2]>,
    /// Trainable units of the stage that has most.
    pub most: usize,
}

/// The shape of a stream in a rank's micro-batch.
pub fn batch(cell: &Cell, stream: Stream, first_sample: u64) -> Batch {
    let documents = cell.data.within_documents();
    let (rows, seq, seed) = (cell.train.micro_batch, seq(cell, stream), cell.train.seed);
    Batch { rows, seq, first_sample, first_token: first_sample.wrapping_mul(seq as u64), seed, documents }
}

/// Tokens of a stream's sequence.
pub(crate) fn seq(cell: &Cell, stream: Stream) -> usize {
    match (stream, cell.priced.as_ref().and_then(|priced| priced.model.as_ref())) {
        (Stream::Decoder, Some(PricedModel::EncoderDecoder { decoder_seq_len, .. })) => *decoder_seq_len,
        _ => cell.train.seq_len,
    }
}

/// Whether the cell's model has an encoder beside its decoder.
pub(crate) fn has_encoder(cell: &Cell) -> bool {
    matches!(cell.priced.as_ref().and_then(|priced| priced.model.as_ref()), Some(PricedModel::EncoderDecoder { .. }))
}

/// Buffers of u32 that hold a micro-batch: ids and targets; where documents start, if sequences hold several; and the places
/// in them, if learned positions read those.
pub(crate) fn token_buffers(cell: &Cell) -> usize {
    match cell.data.within_documents() {
        false => 2,
        true => 3 + usize::from(cell.model.form.positions == Positions::Learned),
    }
}

/// Units times micro-batches of the longest step that is planned; its list of actions takes some hundred megabytes.
const MOST_COMPUTES: usize = 1 << 20;
/// Units of the largest model that is planned.
const MOST_UNITS: usize = 1 << 16;

/// Refuses what is priced and not run.
pub(crate) fn runs(cell: &Cell) -> Result<(), PlanError> {
    let Some((key, word)) = cell.first_priced_key() else { return Ok(()) };
    let remedy = cell.priced.as_ref().filter(|_| key == "model.path").and_then(|priced| priced.remedy());
    let remedy = remedy.map(|text| format!(" ({text})")).unwrap_or_default();
    let reason = format!("{word} is priced by `zbench plan` and not run by this version of zbench{remedy}");
    Err(PlanError { key, reason })
}

/// Refuses what cannot be, before any size is computed from it.
pub(crate) fn check(cell: &Cell) -> Result<(), PlanError> {
    let fail = |key, reason: String| Err(PlanError { key, reason });
    let (train, model) = (&cell.train, &cell.model);
    for (key, value) in [
        ("train.micro_batch", train.micro_batch),
        ("train.seq_len", train.seq_len),
        ("train.accumulation", train.accumulation),
        ("train.steps", train.steps),
        ("parallel.ranks", cell.parallel.ranks),
        ("model.hidden_size", model.hidden_size),
        ("model.intermediate_size", model.intermediate_size),
        ("model.num_attention_heads", model.num_attention_heads),
        ("model.num_key_value_heads", model.num_key_value_heads),
        ("model.head_dim", model.head_dim),
        ("model.vocab_size", model.vocab_size),
    ] {
        if value == 0 {
            return fail(key, "is 0; at least 1 is needed".into());
        }
    }
    // Before anything goes over the layers.
    let units = model.num_hidden_layers.saturating_add(2);
    if units > MOST_UNITS {
        return fail("model.num_hidden_layers", format!("is above the {MOST_UNITS} units that are planned"));
    }
    if let Some(experts) = &model.experts {
        let (top, count) = (experts.num_experts_per_tok, experts.num_experts);
        if top == 0 || top > count || experts.moe_intermediate_size == 0 {
            return fail("model.num_experts_per_tok", format!("{top} of {count} experts cannot be; 1 to {count} can"));
        }
    }
    strategy::divides(&cell.parallel, model, model.num_hidden_layers, train.seq_len)?;
    let lora = &cell.lora;
    if lora.on() && (lora.targets.is_empty() || model.num_hidden_layers == 0) {
        return fail("lora.targets", "name no layer of the model, so nothing would train".into());
    }
    if !model.num_attention_heads.is_multiple_of(model.num_key_value_heads) {
        let (heads, kv) = (model.num_attention_heads, model.num_key_value_heads);
        return fail("model.num_key_value_heads", format!("{kv} does not divide num_attention_heads = {heads}"));
    }
    if model.form.positions == Positions::Rotary && !model.head_dim.is_multiple_of(2) {
        return fail("model.head_dim", format!("{} is odd; the rotary embedding pairs elements", model.head_dim));
    }
    if model.sliding_window == Some(0) {
        return fail("model.sliding_window", "is 0; a token sees at least itself".into());
    }
    let parts = [Linear::QProj, Linear::KProj, Linear::VProj];
    let fused = fused_in(model, Linear::QProj).filter(|_| lora.on());
    for (key, layers) in [("lora.targets", &lora.targets), ("lora.feedforward", &lora.feedforward)] {
        let there: Vec<&Linear> = parts.iter().filter(|part| layers.contains(part)).collect();
        if let (Some(fused), Some(part), true) = (fused, there.first(), there.len() < parts.len()) {
            let reason = format!(
                "name {} alone, which the family {:?} stores inside {fused}: adapters on a part of a tensor have no place \
                 in PEFT's layout; name {fused}",
                part.name(),
                model.family
            );
            return fail(key, reason);
        }
    }
    let expert = [Linear::GateProj, Linear::UpProj, Linear::DownProj].into_iter().find(|l| lora.targets.contains(l));
    if let (true, Some(target), 1..) = (lora.on(), expert, model.sparse_blocks()) {
        let reason = format!(
            "name {}, which blocks with experts have one of per expert: PEFT adapts those by target_parameters, which zbench \
             does not have; q_proj, k_proj, v_proj and o_proj can be adapted",
            target.name()
        );
        return fail("lora.targets", reason);
    }
    if lora.use_dora && lora.dropout > 0.0 {
        let reason = "stands beside lora.use_dora, which here has no dropout; write 0";
        return fail("lora.dropout", reason.into());
    }
    if lora.use_dora && lora.base.and_then(Base::packing).is_some() {
        let reason = "stands beside a lora.base in few bits, over which DoRA is not there; write \"bf16\"";
        return fail("lora.use_dora", reason.into());
    }
    if let (true, Some(fused), true) = (lora.use_dora, fused, lora.targets.contains(&Linear::QProj)) {
        let reason = format!("is not there for {fused}, which holds queries, keys and values; name other lora.targets");
        return fail("lora.use_dora", reason);
    }
    if lora.on() && model.save.is_some() {
        let reason = "stands beside adapters: lora.save writes them, lora.merge the model with them merged";
        return fail("model.save", reason.into());
    }
    let gated = matches!(model.form.mlp, Mlp::Swiglu | Mlp::GegluTanh);
    if lora.on() && !gated && lora.targets.iter().all(|&target| target == Linear::GateProj) {
        return fail("lora.targets", "name gate_proj alone, and this model's MLP has none".into());
    }
    if let Some(most) = model.most_tokens().filter(|most| train.seq_len > *most) {
        return fail(
            "train.seq_len",
            format!("{} exceeds the model's max_position_embeddings = {most}", train.seq_len),
        );
    }
    let widest = [
        model.hidden_size,
        model.intermediate_size,
        model.vocab_size,
        model.num_attention_heads.saturating_mul(model.head_dim),
        model.experts.as_ref().map_or(0, |experts| {
            let widest = experts.moe_intermediate_size.max(model.hidden_size);
            experts.num_experts_per_tok.saturating_mul(widest).max(experts.num_experts)
        }),
        match cell.memory.attention {
            AttentionKind::Naive => model.num_attention_heads.saturating_mul(train.seq_len),
            AttentionKind::Flash => model.num_attention_heads,
        },
    ];
    let widest = widest.into_iter().max().unwrap_or(1);
    let rows = train.micro_batch.checked_mul(train.seq_len);
    let bytes = rows.and_then(|r| r.checked_mul(widest)).and_then(|e| e.checked_mul(64));
    if bytes.is_none_or(|b| b > 1 << 56) {
        return fail(
            "train.micro_batch",
            "times train.seq_len and the model's width is more bytes than a machine addresses".into(),
        );
    }
    let matrices = model.experts.as_ref().map_or(1, |experts| experts.num_experts);
    let block = model.hidden_size.checked_mul(widest.max(model.hidden_size)).and_then(|e| e.checked_mul(64));
    let block = block.and_then(|b| b.checked_mul(matrices));
    let all = block.and_then(|b| b.checked_mul(model.num_hidden_layers.saturating_add(2)));
    if units.saturating_mul(train.accumulation) > MOST_COMPUTES {
        let (given, most) = (train.accumulation, MOST_COMPUTES / units);
        let reason = format!("{given} is above the {most} micro-batches that are planned for so many layers");
        return fail("train.accumulation", reason);
    }
    if all.is_none_or(|b| b > 1 << 56) || cell.parallel.ranks > 1 << 20 {
        return fail("model.hidden_size", "and the model's other sizes are more bytes than a machine addresses".into());
    }
    Ok(())
}

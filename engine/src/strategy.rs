//! The sharding strategies as one table. ZeRO's stages, FSDP and its hybrids differ in these values and in nothing else.

use crate::config::{Degrees, Model, Parallel, Strategy};
use crate::mesh::{Axes, Mesh};

/// When gathered weights are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshard {
    /// As soon as their slot is wanted.
    AfterForward,
    /// When the micro-batch's backward has used them.
    AfterBackward,
    /// Not at all: every rank has all of them.
    Never,
}

/// Over which axes a strategy splits what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Weights at home.
    pub parameters: Axes,
    pub gradients: Axes,
    /// Master weights and moments; at least as fine as the other two.
    pub optimizer: Axes,
    pub reshard: Reshard,
}

impl Sharding {
    pub fn of(strategy: Strategy) -> Sharding {
        use Reshard::{AfterBackward, AfterForward, Never};
        const WHOLE: Axes = Axes::NONE;
        const SHARD: Axes = Axes::SHARD;
        const DATA: Axes = Axes::DATA;
        let (parameters, gradients, optimizer, reshard) = match strategy {
            Strategy::Ddp => (WHOLE, WHOLE, WHOLE, Never),
            Strategy::Zero1 => (WHOLE, WHOLE, SHARD, Never),
            Strategy::Zero2 => (WHOLE, SHARD, SHARD, Never),
            Strategy::Zero3 => (SHARD, SHARD, SHARD, AfterForward),
            Strategy::Fsdp => (SHARD, SHARD, SHARD, AfterForward),
            Strategy::FsdpGradOp => (SHARD, SHARD, SHARD, AfterBackward),
            Strategy::Hsdp => (SHARD, SHARD, SHARD, AfterForward),
            Strategy::HsdpFullOptimizer => (SHARD, SHARD, DATA, AfterForward),
        };
        Sharding { parameters, gradients, optimizer, reshard }
    }
}

/// Why ranks and degrees make no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct MeshError {
    /// The key to change.
    pub key: &'static str,
    /// The key that it contradicts.
    pub other: &'static str,
    /// What is wrong, and the nearest values that would do.
    pub reason: String,
}

/// The mesh of a configuration.
///
/// # Errors
/// The degrees do not multiply to the ranks.
pub fn mesh(parallel: &Parallel) -> Result<Mesh, MeshError> {
    let Parallel { ranks, shard, strategy, degrees, .. } = *parallel;
    let Degrees { tensor, sequence, pipeline, context, expert, expert_tensor, .. } = degrees;
    let misfit = |key, other, reason: String| Err(MeshError { key, other, reason });
    if ranks == 0 {
        return misfit("parallel.ranks", "parallel.ranks", "is 0; at least 1 rank is needed".into());
    }
    for (key, degree) in [
        ("parallel.tensor", tensor),
        ("parallel.pipeline", pipeline),
        ("parallel.context", context),
        ("parallel.expert", expert),
        ("parallel.expert_tensor", expert_tensor),
    ] {
        if degree == 0 {
            return misfit(key, key, "is 0; at least 1 is needed".into());
        }
    }
    let replica = degrees.ranks_per_replica();
    if !ranks.is_multiple_of(replica) {
        let nearest = nearest(ranks, ranks.saturating_add(replica), |ranks| ranks.is_multiple_of(replica));
        let reason = format!("{ranks} is not a multiple of tensor × pipeline × context = {replica}; write {nearest}");
        return misfit("parallel.ranks", "parallel.tensor", reason);
    }
    if sequence != 1 && sequence != tensor {
        let reason = format!(
            "{sequence} is neither 1 nor parallel.tensor = {tensor}: sequence parallelism splits over the same ranks; \
             write 1 or {tensor}"
        );
        return misfit("parallel.sequence", "parallel.tensor", reason);
    }
    let data = ranks / replica;
    if strategy.is_hybrid() && (shard == 0 || !data.is_multiple_of(shard)) {
        let nearest = nearest(shard, data, |shard| data.is_multiple_of(shard));
        let reason = match replica {
            1 => format!("{shard} does not divide parallel.ranks = {ranks}; write {nearest}"),
            _ => format!("{shard} does not divide the {data} data-parallel ranks; write {nearest}"),
        };
        return misfit("parallel.shard", "parallel.ranks", reason);
    }
    let stage = ranks / pipeline;
    if !stage.is_multiple_of(expert) {
        let nearest = nearest(expert, stage, |expert| stage.is_multiple_of(expert));
        let reason = format!("{expert} does not divide the {stage} ranks of a stage; write {nearest}");
        return misfit("parallel.expert", "parallel.ranks", reason);
    }
    if !(stage / expert).is_multiple_of(expert_tensor) {
        let each = stage / expert;
        let nearest = nearest(expert_tensor, each, |degree| each.is_multiple_of(degree));
        let reason = format!(
            "{expert_tensor} does not divide the {each} ranks of a stage that have the same experts; write {nearest}"
        );
        return misfit("parallel.expert_tensor", "parallel.expert", reason);
    }
    let mesh = if strategy.is_hybrid() { Mesh::hybrid(shard, data / shard) } else { Mesh::data(data) };
    Ok(mesh.with([tensor, context, pipeline], [expert, expert_tensor]))
}

/// Whether a model can be cut as its degrees say. `blocks` are those of all its stacks, `seq` is the sequence's length.
///
/// # Errors
/// A size of the model is not a multiple of its degree.
pub fn divides(degrees: &Degrees, model: &Model, blocks: usize, seq: usize) -> Result<(), MeshError> {
    let Degrees { tensor, pipeline, virtual_stages, context, expert, .. } = *degrees;
    let misfit = |key, other, reason: String| Err(MeshError { key, other, reason });
    let (heads, kv) = (model.num_attention_heads, model.num_key_value_heads);
    // Ranks beyond the heads of keys and values hold copies of them.
    let cuts_heads =
        |tensor: usize| heads.is_multiple_of(tensor) && (kv.is_multiple_of(tensor) || tensor.is_multiple_of(kv.max(1)));
    if !cuts_heads(tensor) {
        let reason = format!(
            "{tensor} does not divide model.num_attention_heads = {heads} and model.num_key_value_heads = {kv}; write {}",
            nearest(tensor, heads, cuts_heads)
        );
        return misfit("parallel.tensor", "model.num_attention_heads", reason);
    }
    if pipeline > blocks.max(1) {
        let most = blocks.max(1);
        let reason = format!("{pipeline} is above model.num_hidden_layers = {blocks}; write {most} or fewer");
        return misfit("parallel.pipeline", "model.num_hidden_layers", reason);
    }
    // The embedding and the head may be parts of their own.
    if pipeline.saturating_mul(virtual_stages) > blocks + 2 {
        let reason = format!(
            "{virtual_stages} on each of parallel.pipeline = {pipeline} stages are more parts than the model's {blocks} \
             blocks, embedding and head; write {} or fewer",
            (blocks + 2) / pipeline
        );
        return misfit("parallel.virtual_stages", "parallel.pipeline", reason);
    }
    if !seq.is_multiple_of(context) {
        let nearest = nearest(context, seq, |context| seq.is_multiple_of(context));
        let reason = format!("{context} does not divide train.seq_len = {seq}; write {nearest}");
        return misfit("parallel.context", "train.seq_len", reason);
    }
    let experts = model.experts.as_ref().filter(|_| model.sparse_blocks() > 0).map_or(1, |experts| experts.num_experts);
    if !experts.is_multiple_of(expert) {
        let reason = match experts {
            1 => format!("is {expert} and the model has no experts; leave it out"),
            _ => {
                let nearest = nearest(expert, experts, |expert| experts.is_multiple_of(expert));
                format!("{expert} does not divide model.num_experts = {experts}; write {nearest}")
            }
        };
        return misfit("parallel.expert", "model.num_experts", reason);
    }
    Ok(())
}

/// The values on both sides of `given`, from 1 to `most`, that fit, in words.
fn nearest(given: usize, most: usize, fits: impl Fn(usize) -> bool) -> String {
    let below = (1..given.min(most.saturating_add(1))).rev().find(|value| fits(*value));
    let above = (given.saturating_add(1)..=most).find(|value| fits(*value));
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => "1".into(),
    }
}

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
    for (key, count) in [
        ("parallel.ranks", ranks),
        ("parallel.tensor", tensor),
        ("parallel.pipeline", pipeline),
        ("parallel.context", context),
        ("parallel.expert", expert),
        ("parallel.expert_tensor", expert_tensor),
    ] {
        if count == 0 {
            return misfit(key, key, "is 0; write 1 or more".into());
        }
    }
    let product = "parallel.tensor × parallel.pipeline × parallel.context";
    let replica = tensor.checked_mul(pipeline).and_then(|ranks| ranks.checked_mul(context));
    let Some(replica) = replica.filter(|replica| ranks.is_multiple_of(*replica)) else {
        let of = format!("{product} = {tensor} × {pipeline} × {context}");
        let reason = match replica {
            Some(replica) => {
                let given = ranks / replica;
                let ways = multiples(given, replica);
                let smaller = if given == 0 { ", or smaller degrees" } else { "" };
                format!("{ranks} is not a multiple of {of} = {replica}; write {ways}{smaller}")
            }
            None => format!("{ranks} is not a multiple of {of}; write smaller degrees"),
        };
        return misfit("parallel.ranks", "parallel.tensor", reason);
    };
    if sequence != 1 && sequence != tensor {
        let ways = if tensor == 1 { "1".into() } else { format!("1 or {tensor}") };
        let reason = format!(
            "{sequence} is neither 1 nor parallel.tensor = {tensor}: sequence parallelism splits over the same ranks; \
             write {ways}"
        );
        return misfit("parallel.sequence", "parallel.tensor", reason);
    }
    let data = ranks / replica;
    if strategy.is_hybrid() && (shard == 0 || !data.is_multiple_of(shard)) {
        let ways = divisors_near(shard, data, |_| true);
        let reason = match replica {
            1 => format!("{shard} does not divide parallel.ranks = {ranks}; write {ways}"),
            _ => format!(
                "{shard} does not divide the {data} data-parallel ranks, which are parallel.ranks / ({product}) = \
                 {ranks} / {replica}; write {ways}"
            ),
        };
        return misfit("parallel.shard", "parallel.ranks", reason);
    }
    let stage = ranks / pipeline;
    if !stage.is_multiple_of(expert) {
        let ways = divisors_near(expert, stage, |_| true);
        let reason = match pipeline {
            1 => format!("{expert} does not divide parallel.ranks = {ranks}; write {ways}"),
            _ => format!(
                "{expert} does not divide the {stage} ranks of a stage, which are parallel.ranks / parallel.pipeline = \
                 {ranks} / {pipeline}; write {ways}"
            ),
        };
        return misfit("parallel.expert", "parallel.ranks", reason);
    }
    let same = stage / expert;
    if !same.is_multiple_of(expert_tensor) {
        let ways = divisors_near(expert_tensor, same, |_| true);
        let reason = format!(
            "{expert_tensor} does not divide the {same} ranks of a stage that have the same experts, which are \
             parallel.ranks / parallel.pipeline / parallel.expert = {ranks} / {pipeline} / {expert}; write {ways}"
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
pub fn divides(parallel: &Parallel, model: &Model, blocks: usize, seq: usize) -> Result<(), MeshError> {
    let Degrees { tensor, pipeline, virtual_stages, context, expert, .. } = parallel.degrees;
    let misfit = |key, other, reason: String| Err(MeshError { key, other, reason });
    let (heads, kv) = (model.num_attention_heads, model.num_key_value_heads);
    // Ranks beyond the heads of keys and values hold copies of them.
    let cuts_heads =
        |tensor: usize| heads.is_multiple_of(tensor) && (kv.is_multiple_of(tensor) || tensor.is_multiple_of(kv.max(1)));
    if !cuts_heads(tensor) {
        let ways = divisors_near(tensor, heads, cuts_heads);
        return match heads.is_multiple_of(tensor) {
            false => misfit(
                "parallel.tensor",
                "model.num_attention_heads",
                format!("{tensor} does not divide model.num_attention_heads = {heads}; write {ways}"),
            ),
            true => misfit(
                "parallel.tensor",
                "model.num_key_value_heads",
                format!(
                    "{tensor} neither divides model.num_key_value_heads = {kv} nor is a multiple of it; write {ways}"
                ),
            ),
        };
    }
    let of_model = format!("the model's {blocks} blocks (model.num_hidden_layers)");
    if pipeline > blocks.max(1) {
        let most = blocks.max(1);
        return misfit(
            "parallel.pipeline",
            "model.num_hidden_layers",
            format!("{pipeline} stages are more than {of_model}; write {most} or fewer"),
        );
    }
    // The embedding and the head may be parts of their own.
    let most = blocks.saturating_add(2);
    let parts = pipeline.saturating_mul(virtual_stages);
    if parts > most {
        let way = match most / pipeline {
            0 | 1 => "parallel.pipeline_schedule = \"1f1b\", which has one on each, or fewer stages".to_string(),
            most => format!("{most} or fewer"),
        };
        let reason = format!(
            "{virtual_stages} on each of parallel.pipeline = {pipeline} stages are {parts} parts, more than {of_model}, \
             embedding and head; write {way}"
        );
        return misfit("parallel.virtual_stages", "parallel.pipeline", reason);
    }
    let split = &parallel.pipeline_split;
    let rises = split.first() == Some(&0) && split.is_sorted_by(|one, next| one < next);
    if !split.is_empty() && (split.len() != parts || !rises || split.last() >= Some(&blocks)) {
        let reason = format!(
            "{split:?} does not cut {of_model} into parallel.pipeline × parallel.virtual_stages = {parts} parts; write the first block of \
             each part, from 0 on and below {blocks}, as {:?}, or leave it out",
            (0..parts).map(|part| part * blocks / parts).collect::<Vec<_>>()
        );
        return misfit("parallel.pipeline_split", "parallel.pipeline", reason);
    }
    if !seq.is_multiple_of(context) {
        let ways = divisors_near(context, seq, |_| true);
        let reason = format!("{context} does not divide train.seq_len = {seq}; write {ways}");
        return misfit("parallel.context", "train.seq_len", reason);
    }
    let experts = model.experts.as_ref().filter(|_| model.sparse_blocks() > 0).map_or(1, |experts| experts.num_experts);
    if !experts.is_multiple_of(expert) {
        let reason = match experts {
            1 => format!("is {expert} and the model has no experts; write 1, or leave it out"),
            _ => {
                let ways = divisors_near(expert, experts, |_| true);
                format!("{expert} does not divide model.num_experts = {experts}; write {ways}")
            }
        };
        return misfit("parallel.expert", "model.num_experts", reason);
    }
    Ok(())
}

/// The multiples of `of` on both sides, in words: `count` of them and one more.
pub(crate) fn multiples(count: usize, of: usize) -> String {
    let below = Some(count * of).filter(|below| *below > 0);
    let above = count.checked_add(1).and_then(|count| count.checked_mul(of));
    sides(below, above)
}

/// Divisors up to this one, and what they leave, are looked at: all of a number of 32 bits.
const MOST_DIVISOR: usize = 1 << 16;

/// The divisors of `of` on both sides of `given` that fit, in words.
pub(crate) fn divisors_near(given: usize, of: usize, fits: impl Fn(usize) -> bool) -> String {
    let (mut below, mut above) = (None, None);
    let small = (1..=MOST_DIVISOR).take_while(|small| small * small <= of).filter(|small| of.is_multiple_of(*small));
    for divisor in small.flat_map(|small| [small, of / small]).filter(|divisor| fits(*divisor)) {
        if divisor < given {
            below = below.max(Some(divisor));
        } else {
            above = Some(above.map_or(divisor, |above: usize| above.min(divisor)));
        }
    }
    sides(below, above)
}

fn sides(below: Option<usize>, above: Option<usize>) -> String {
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => "1".into(),
    }
}

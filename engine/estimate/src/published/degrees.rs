//! Ranks along each axis, batches and what is split, of a row.

use super::flags::{Flags, layout};
use super::row::Row;
use super::words::any;
use crate::job::{Batch, Degrees, Order, Placement, Shape, Sharding, Stack};

/// Ranks along each axis; `devices` is how many there are, 0 = not said.
pub fn degrees(row: &Row, flags: &Flags, shape: &Shape, stack: Stack, devices: usize) -> Result<Degrees, String> {
    let axis = |name: &str| row.positive(name).unwrap_or(1);
    let (tensor, pipeline, context, expert) = (axis("tp"), axis("pp"), axis("cp"), axis("ep"));
    let model = tensor.checked_mul(pipeline).and_then(|n| n.checked_mul(context)).ok_or("degrees overflow")?;
    let data = match row.positive("dp") {
        Some(data) => data,
        None if devices > 0 && devices >= model => devices / model,
        None => 1,
    };
    if devices > 0 && data.saturating_mul(model) > devices {
        return Err(format!("data x tensor x pipeline x context = {} ranks on {devices} devices", data * model));
    }
    let sequence = match row.words("sp").as_str() {
        // torchtitan's tensor parallelism splits the sequence between matrices, too.
        "" if matches!(stack, Stack::Fsdp2 | Stack::Fsdp2Compiled) => true,
        "" => flags.has("sequence-parallel") || (tensor > 1 && (context > 1 || expert > 1)),
        text => any(text, &["y", "true", "on", "1"]),
    };
    let mut degrees = Degrees {
        data,
        tensor,
        sequence: sequence && tensor > 1,
        pipeline,
        chunks: if pipeline > 1 { axis("vpp") } else { 1 },
        schedule: Order::OneFOneB,
        context,
        expert,
        expert_tensor: flags.count("expert-tensor-parallel-size").filter(|n| *n > 0).unwrap_or(tensor),
        first_stage: flags.count("decoder-first-pipeline-num-layers").unwrap_or(0),
        last_stage: flags.count("decoder-last-pipeline-num-layers").unwrap_or(0),
        placement: Placement::DataInside,
    };
    if any(&row.words("notes"), &["gpipe"]) {
        degrees.schedule = Order::GPipe;
    }
    if let Some(chunks) = flags.text("pipeline-model-parallel-layout").and_then(layout) {
        let all = chunks.iter().sum::<usize>() == shape.layers;
        if all && pipeline > 1 && chunks.len() % pipeline == 0 {
            let stage = |which: usize| chunks.iter().skip(which).step_by(pipeline).sum();
            degrees.chunks = chunks.len() / pipeline;
            degrees.first_stage = stage(0);
            degrees.last_stage = stage(pipeline - 1);
        }
    }
    Ok(degrees)
}

/// Sequences of a step on one data-parallel rank, as micro-batches.
pub fn batch(row: &Row, degrees: &Degrees, shape: &Shape, stack: Stack, assumed: &mut Vec<String>) -> Batch {
    let seq = row.pair("seq").map_or(0, |pair| pair.0);
    let seq = if seq > 0 {
        seq
    } else {
        // Trainers' runs that do not say are short fine-tuning ones.
        let usual = match () {
            () if shape.positions > 0 => shape.positions,
            () if matches!(stack, Stack::Torch | Stack::Deepspeed) && row.text("framework").is_empty() => 256,
            () => 2048,
        };
        assumed.push(format!("sequences of {usual} tokens"));
        usual
    };
    let global = row.positive("global_batch");
    let per_rank = global.map(|global| global as f64 / degrees.data.max(1) as f64);
    let (micro, accumulation) = match (row.positive("micro_batch"), row.positive("grad_accum"), per_rank) {
        (Some(micro), Some(accumulation), _) => (micro, accumulation),
        (Some(micro), None, Some(all)) => (micro, ((all / micro as f64).round() as usize).max(1)),
        (Some(micro), None, None) => (micro, 1),
        (None, Some(accumulation), Some(all)) => (((all / accumulation as f64).ceil() as usize).max(1), accumulation),
        (None, Some(accumulation), None) => (1, accumulation),
        (None, None, Some(all)) => {
            let micro = if degrees.pipeline > 1 || degrees.tensor > 1 { 1 } else { (all as usize).clamp(1, 4) };
            assumed.push(format!("a micro-batch of {micro}"));
            (micro, ((all / micro as f64).round() as usize).max(1))
        }
        (None, None, None) => {
            assumed.push("a micro-batch of 1".into());
            (1, if degrees.pipeline > 1 { 4 * degrees.pipeline } else { 1 })
        }
    };
    Batch { seq, micro, accumulation }
}

/// What is split over the data axes; `node` is the devices of a node.
pub fn sharding(text: &str, degrees: &Degrees, stack: Stack, node: usize) -> Sharding {
    let has = |words: &[&str]| any(text, words);
    let ranks = degrees.data.saturating_mul(degrees.context).max(1);
    let inside = node.clamp(1, ranks);
    let mut sharding = match () {
        () if has(&["hsdp", "hybrid"]) => Sharding::zero(3, inside),
        () if has(&["mics"]) => Sharding::zero(3, inside),
        () if has(&["no_shard", "no-shard"]) => Sharding::whole(),
        () if has(&["grad_op", "grad-op", "shard_grad", "zero2", "zero-2", "stage 2"]) => Sharding::zero(2, ranks),
        () if has(&["zero3", "zero-3", "stage 3", "zero++", "full", "optim_grads_params"]) => Sharding::zero(3, ranks),
        () if has(&["optim_grads"]) => Sharding::zero(2, ranks),
        () if has(&["fsdp"]) => Sharding::zero(3, ranks),
        () if has(&["zero1", "zero-1", "stage 1", "dist-opt", "distributed opt", "optim"]) => Sharding::zero(1, ranks),
        () if has(&["zero"]) => Sharding::zero(1, ranks),
        () if text.is_empty()
            && matches!(stack, Stack::Fsdp1 | Stack::Fsdp1Compiled | Stack::Fsdp2 | Stack::Fsdp2Compiled) =>
        {
            Sharding::zero(3, ranks)
        }
        () => Sharding::whole(),
    };
    if has(&["grad_op", "grad-op", "shard_grad"]) {
        // FSDP's: the weights at home are split, and stay gathered from forward to backward.
        sharding = Sharding { reshard_after_forward: false, ..Sharding::zero(3, ranks) };
    }
    if has(&["zero++", "hpz"]) {
        sharding.parked = inside;
    }
    if has(&["zero++", "qwz"]) {
        sharding.gather_bytes = 1.0;
    }
    if has(&["zero++", "qgz"]) {
        sharding.reduce_bytes = 0.5;
    }
    sharding
}

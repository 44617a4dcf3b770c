//! Rows that evaluate a formula of the literature: DeepSpeed's estimators, ZeRO-Infinity's working memory, volumes.

use super::job::{Expressed, Refused};
use super::limits::model_states;
use super::row::Row;
use super::words::any;
use crate::deepspeed::{Formula, Line, Offloaded, zero2, zero3};
use crate::job::{Job, Kind, Number, Peft, Place};
use crate::memory::{formula_bytes, memory};

/// DeepSpeed's estimate for a row, in GiB: per GPU, or of the host per node.
pub fn estimator(row: &Row, expressed: &Expressed, host: bool) -> Result<f64, Refused> {
    let job = &expressed.job;
    let parameters = job.model.stated_parameters as f64;
    let notes = row.words("notes");
    let gpus = expressed.devices.max(1) as f64;
    let per_node = expressed.node.max(1) as f64;
    let nodes = (gpus / per_node).max(1.0);
    let offloaded = match (job.offload.parameters, job.offload.optimizer) {
        (Place::Device, Place::Device) => Offloaded::Nothing,
        (Place::Device, _) => Offloaded::Optimizer,
        _ => Offloaded::ParametersAndOptimizer,
    };
    let sharding = row.words("sharding");
    let lines = if any(&sharding, &["zero2", "zero-2", "stage 2"]) {
        let older = any(&notes, &["stale", "older", "documented"]);
        zero2(parameters, per_node, nodes, if older { Formula::Documented } else { Formula::Current })
    } else if any(&sharding, &["zero3", "zero-3", "stage 3"]) {
        let Kind::Count { largest_layer } = job.model.kind else { return Err("no largest layer is given".into()) };
        zero3(parameters, largest_layer as f64, per_node, nodes)
    } else {
        return Err("DeepSpeed estimates ZeRO-2 and ZeRO-3 alone".into());
    };
    let init = match () {
        () if any(&notes, &["zero_init=1", "zero_init=true"]) => Some(true),
        () if any(&notes, &["zero_init=0", "zero_init=false"]) => Some(false),
        () => None,
    };
    let fits = |line: &&Line| {
        line.offloaded == offloaded && (init.is_none() || line.zero_init.is_none() || line.zero_init == init)
    };
    let line = lines.iter().find(fits).ok_or("the estimator has no line of this kind")?;
    Ok(if host { line.host_gib } else { line.gpu_gib })
}

/// Parameters: those stated, where they are.
fn parameters(job: &Job) -> f64 {
    if job.model.stated_parameters > 0 { job.model.stated_parameters as f64 } else { job.model.parameters() as f64 }
}

/// Tokens of a micro-batch.
fn tokens(job: &Job) -> f64 {
    job.batch.micro as f64 * job.batch.seq as f64
}

/// ZeRO-Infinity's bytes of a block's activations per token: 16 h + 2 a s.
fn per_token(job: &Job) -> f64 {
    16.0 * job.model.hidden as f64 + 2.0 * job.model.heads as f64 * job.batch.seq as f64
}

/// The bytes (or elements) that a row of such a quantity states; none where the quantity is another.
pub fn formula(row: &Row, expressed: &Expressed) -> Option<Result<f64, Refused>> {
    let job = &expressed.job;
    let (hidden, layers) = (job.model.hidden as f64, job.model.layers as f64);
    let value = match row.words("quantity").as_str() {
        "model_states_per_gpu" => model_states(&memory(job)),
        "optimizer_states_per_gpu" => {
            let bytes = if job.precision.master > 0.0 { 12.0 } else { job.precision.moments };
            bytes * parameters(job) / job.sharding.optimizer.max(1) as f64
        }
        "activation_bytes_per_layer_per_microbatch" => formula_bytes(job),
        // 16-bit weights and gradients, master copy, moments and f32 gradients: 20 bytes per parameter (ZeRO-Infinity).
        "model_states_total" => 20.0 * 12.0 * layers * hidden * hidden,
        "activations_total" => 2.0 * tokens(job) * layers * per_token(job),
        "activation_checkpoints_total" | "activation_checkpoint_memory" => 2.0 * tokens(job) * layers * hidden,
        "activation_checkpoint_memory_per_gpu" => {
            let split = match job.recompute {
                crate::job::Recompute::Full { partitioned: true, .. } => job.degrees.tensor.max(1) as f64,
                _ => 1.0,
            };
            2.0 * tokens(job) * layers * hidden / split
        }
        // The largest product's weights and gradients, h by 4 h.
        "model_state_working_memory_per_gpu" => 16.0 * hidden * hidden,
        "activation_working_memory_per_gpu" => tokens(job) * per_token(job),
        "activation_memory" => checkpointed(job),
        "memory_saved_by_output_deallocation_first_stage" => 2.0 * tokens(job) * hidden * job.degrees.pipeline as f64,
        "comm_volume_per_step_per_gpu" => volume(job),
        "lora_parameters" => return Some(adapter_bytes(row, job)),
        "model_memory_4bit" => quantised(job),
        "total_finetune_memory_16bit" | "total_training_memory_all_gpus" => match (stated_bytes(row), &job.peft) {
            (Some(bytes), _) => bytes * parameters(job),
            // Adapters are small beside 16-bit weights.
            (None, Peft::Adapters { .. }) => 2.0 * parameters(job),
            (None, Peft::None) => 16.0 * parameters(job),
        },
        "total_finetune_memory_qlora" => memory(job).allocated(),
        "estimator_gpu_per_gpu" => return Some(estimator(row, expressed, false).map(|gib| gib * super::limits::GIB)),
        "estimator_cpu_per_node" => return Some(estimator(row, expressed, true).map(|gib| gib * super::limits::GIB)),
        other => return general(other, job).map(Ok),
    };
    Some(Ok(value))
}

/// Quantities under other names, by keywords: weights, gradients, optimizer state, activations of a rank.
fn general(quantity: &str, job: &Job) -> Option<f64> {
    let has = |words: &[&str]| any(quantity, words);
    let share = |bytes: f64, ranks: usize| bytes * parameters(job) / ranks.max(1) as f64;
    if has(&["peak", "after_step", "allocated", "reserved", "fits"]) {
        return None;
    }
    if has(&["weights", "model_memory", "params_memory", "parameter_memory", "parameters_per_gpu"]) {
        let bytes = if has(&["fp32"]) { 4.0 } else { job.precision.compute.bytes() };
        return Some(share(bytes, job.sharding.parameters));
    }
    if has(&["gradient"]) {
        return Some(share(job.precision.gradients, job.sharding.gradients));
    }
    if has(&["optimizer"]) {
        return Some(share(job.precision.master + job.precision.moments, job.sharding.optimizer));
    }
    if has(&["activation"]) {
        return Some(memory(job).worst().by(crate::memory::Category::Activations));
    }
    None
}

/// Bytes per parameter that a row reckons with: `18 bytes x 40e9`, `20 bytes/param`.
fn stated_bytes(row: &Row) -> Option<f64> {
    let text = row.words("measure");
    let before = text.split(" bytes").next().filter(|before| before.len() < text.len())?;
    before.rsplit(' ').next()?.parse().ok().filter(|n: &f64| (0.1..=64.0).contains(n))
}

/// Activations with a checkpoint every square root of the layers: those inputs, and a group's blocks.
fn checkpointed(job: &Job) -> f64 {
    let layers = job.model.layers as f64;
    let group = layers.sqrt().ceil();
    2.0 * tokens(job) * job.model.hidden as f64 * (layers / group) + formula_bytes(&without(job)) * group
}

fn without(job: &Job) -> Job {
    Job { recompute: crate::job::Recompute::Core, ..job.clone() }
}

/// Elements that a rank sends per step over those of the model, for many ranks.
fn volume(job: &Job) -> f64 {
    if job.sharding.parameters > 1 || job.sharding.reshard_after_forward {
        let gathers = if job.sharding.parked > 1 { 1.0 } else { 2.0 };
        return gathers + 1.0;
    }
    2.0
}

/// Weights of blocks in 4 bits, ends in 16, adapters in 16.
fn quantised(job: &Job) -> f64 {
    let ends = (job.model.embedding_parameters() + job.model.head_parameters()) as f64;
    let blocks = job.model.parameters() as f64 - ends;
    blocks * Number::Nf4.bytes() + 2.0 * ends
}

/// Bytes of adapters in 16 bits: of the share that the notes state (`0.2% of the weights`), or of their rank.
fn adapter_bytes(row: &Row, job: &Job) -> Result<f64, Refused> {
    let notes = row.words("notes");
    let share = notes.split('%').next().filter(|before| before.len() < notes.len());
    let share = share.and_then(|before| before.rsplit(' ').next()).and_then(|n| n.parse::<f64>().ok());
    if let Some(share) = share {
        return Ok(2.0 * share / 100.0 * parameters(job));
    }
    match job.peft {
        Peft::Adapters { .. } => Ok(2.0 * crate::memory::Counts::of(job).adapters),
        Peft::None => Err("the row names no adapters".into()),
    }
}

/// How many times more memory attention takes with its scores than without: queries, keys, values, result and their
/// gradients are 16 bytes per token and element of a head; the scores' softmax, dropout mask and result 5 per pair.
pub fn attention_factor(row: &Row) -> Result<f64, Refused> {
    let seq = row.pair("seq").ok_or("the row gives no sequence length")?.0 as f64;
    let notes = row.words("notes");
    let after = notes.split("head dim").nth(1).map(str::trim_start);
    let digits = after.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    let width = digits.and_then(|digits| digits.parse::<f64>().ok()).filter(|n| *n > 0.0).unwrap_or(64.0);
    Ok(1.0 + 5.0 * seq / (16.0 * width))
}

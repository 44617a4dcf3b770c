//! A row as a job on a machine.

use super::degrees::{batch, degrees, sharding};
use super::flags::Flags;
use super::row::Row;
use super::shape::shape;
use super::words::{self, any};
use crate::job::{Attention, Job, Loss, Number, Peft, Shape, Stack};
use thiserror::Error;

/// Why a row cannot be expressed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Refused(pub String);

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused(reason)
    }
}

impl From<&str> for Refused {
    fn from(reason: &str) -> Refused {
        Refused(reason.into())
    }
}

/// A row as a job on a machine.
#[derive(Clone, Debug)]
pub struct Expressed {
    /// The job.
    pub job: Job,
    /// The machine's profile; none where the row names no device.
    pub machine: Option<&'static str>,
    /// Devices; 0 = not said.
    pub devices: usize,
    /// Devices of a node.
    pub node: usize,
    /// Bits per second, in units of 1e9, of a node's network, where the row states them.
    pub inter_gbps: Option<f64>,
    /// Gigabytes of a device's memory, where the row states them.
    pub gigabytes: Option<f64>,
    /// What the row does not say and was taken to be usual.
    pub assumed: Vec<String>,
    /// Flags of the notes.
    pub flags: Flags,
}

/// Devices of a node where the row does not say: as many as the machines of its kind have.
fn usual_node(machine: Option<&str>, devices: usize) -> usize {
    let most = match machine {
        Some("gb200" | "gb300") => 4,
        _ => 8,
    };
    devices.clamp(1, most)
}

/// A row as a job.
pub fn express(row: &Row) -> Result<Expressed, Refused> {
    express_with(row, None)
}

/// A row as a job of another model than its own (for rows that ask how large a model can be).
pub fn express_with(row: &Row, other: Option<Shape>) -> Result<Expressed, Refused> {
    let mut assumed = Vec::new();
    let notes = row.words("notes");
    let flags = Flags::of(row.text("notes"));
    let gpu = row.words("gpu");
    let gigabytes = row.number("gpu_mem_gb").filter(|n| *n > 0.0);
    let machine = match gpu.as_str() {
        "" => None,
        gpu => Some(words::machine(gpu, gigabytes.unwrap_or(0.0))?),
    };
    let sharding_text = row.words("sharding");
    let compiled = row.words("compile").starts_with('y');
    let framework = row.words("framework");
    // Where no framework is named, notes may name one.
    let named = if framework.is_empty() && notes.contains("deepspeed") { "deepspeed" } else { framework.as_str() };
    let stack = words::stack(named, compiled, &sharding_text, &gpu);
    let model = match other {
        Some(model) => model,
        None => shape(row, &flags, stack, &mut assumed)?,
    };
    let devices = row.count("n_gpus").unwrap_or(0);
    let degrees = degrees(row, &flags, &model, stack, devices)?;
    let node = match row.positive("n_nodes") {
        Some(nodes) if devices > 0 => devices.div_ceil(nodes),
        _ => usual_node(machine, devices),
    };
    let batch = batch(row, &degrees, &model, stack, &mut assumed);
    let peft = peft(row, &notes, &model);
    let adapters = peft != Peft::None;
    let mut precision = words::precision(&row.words("precision"), &notes, stack, adapters);
    if adapters && any(&row.words("precision"), &["bf16 weights", "fp32 adapters"]) {
        precision.gradients = 4.0;
    }
    if flags.text("optimizer").is_some_and(|name| name.contains("muon")) {
        // One moment for matrices; Adam's two for what is not a matrix of a block is small beside it.
        precision.moments = 4.0;
    }
    let modules = flags.list("recompute-modules");
    let mut split = sharding(&sharding_text, &degrees, stack, node);
    if let Some(instances) = flags.count("num-distributed-optimizer-instances").filter(|n| *n > 1) {
        split.optimizer = (split.optimizer / instances).max(1);
    }
    if precision.moments == 4.0 && flags.text("optimizer").is_some() {
        // Muon's matrices are not flattened, so they are not split.
        split.optimizer = 1;
    }
    let mut attention = words::attention(&row.words("attention"), stack, &row.words("framework"), batch.seq);
    if flags.text("transformer-impl") == Some("local") && row.words("attention") == "auto" {
        attention = Attention::Naive;
    }
    let job = Job {
        sharding: split,
        recompute: words::recompute(&row.words("recompute"), &modules, stack, &row.words("framework")),
        attention,
        offload: words::offload(&row.words("offload"), stack),
        loss: loss(row, &flags, stack, machine),
        model,
        batch,
        degrees,
        precision,
        peft,
        stack,
        split: Vec::new(),
    };
    let inter_gbps = row.number("inter_gbps_per_node").filter(|n| *n > 0.0);
    Ok(Expressed { job, machine, devices, node, inter_gbps, gigabytes, assumed, flags })
}

/// How the loss is made: Megatron's flag; torchtitan compiles it since early 2025, which is since there are rows of newer
/// devices than the H100.
fn loss(row: &Row, flags: &Flags, stack: Stack, machine: Option<&str>) -> Loss {
    if flags.has("cross-entropy-loss-fusion") {
        return Loss::Fused;
    }
    if any(&row.words("framework"), &["composer", "llm-foundry", "llm foundry", "flash-attention"]) {
        // Their models' default is flash-attention's fused cross-entropy.
        return Loss::Fused;
    }
    let newer = machine.is_some_and(|name| any(name, &["b200", "b300", "h200", "mi300"]));
    let dated = any(&row.words("source"), &["2025", "2026"]) || any(&row.words("source_ref"), &["_2025", "_2026"]);
    if stack == Stack::Fsdp2Compiled && (newer || dated) { Loss::Fused } else { Loss::Logits }
}

/// Adapters: `lora`, `qlora`, `lora r16`, `lora 9175040 trainable`.
fn peft(row: &Row, notes: &str, model: &Shape) -> Peft {
    let text = row.words("peft");
    if text.is_empty() || any(&text, &["none", "full-finetuning", "full finetun"]) {
        return Peft::None;
    }
    let numbers = text.split([' ', ',', '=']);
    let trainable = numbers.filter_map(|word| word.parse::<u64>().ok()).find(|n| *n > 1000).unwrap_or(0);
    let trainable = match trainable {
        // A scale per key, value and element of the MLP's width; a hundred virtual tokens.
        0 if text.contains("ia3") => (model.layers * (2 * model.kv_width() + model.ffn)) as u64,
        0 if text.contains("prompt") => 100 * model.hidden as u64,
        stated => stated,
    };
    let rank = text.split([' ', ',']).filter_map(|word| {
        let digits = word.strip_prefix("rank").or_else(|| word.strip_prefix('r'))?;
        digits.trim_start_matches('=').parse::<usize>().ok()
    });
    let rank = rank.clone().next().unwrap_or(match () {
        () if trainable > 0 => 0,
        // QLoRA's own; PEFT's default.
        () if any(&text, &["qlora"]) || any(&row.words("framework"), &["qlora"]) => 64,
        () => 8,
    });
    let precision = row.words("precision");
    let base = if any(&text, &["qlora", "4-bit", "4bit", "nf4"]) {
        Number::Nf4
    } else if any(&text, &["8-bit", "8bit", "int8"]) || any(notes, &["load_in_8bit"]) {
        Number::Int8
    } else if precision.starts_with("fp32") {
        Number::F32
    } else {
        Number::Bf16
    };
    let full = any(&precision, &["fp32 adapters", "fp32"]) || row.words("framework").is_empty();
    Peft::Adapters { trainable, rank, base, weight_bytes: if full { 4.0 } else { 2.0 } }
}

//! A row as a job on a machine.

use super::degrees::{batch, degrees, sharding};
use super::flags::Flags;
use super::row::Row;
use super::shape::shape;
use super::words::{self, any};
use crate::job::{Job, Loss, Number, Peft, Shape};
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
    let stack = words::stack(&row.words("framework"), compiled, &sharding_text, &gpu);
    let model = match other {
        Some(model) => model,
        None => shape(row, &flags, stack, &mut assumed)?,
    };
    let devices = row.count("n_gpus").unwrap_or(0);
    let degrees = degrees(row, &flags, &model, devices)?;
    let node = match row.positive("n_nodes") {
        Some(nodes) if devices > 0 => devices.div_ceil(nodes),
        _ => usual_node(machine, devices),
    };
    let batch = batch(row, &degrees, &model, &mut assumed);
    let peft = peft(row, &notes);
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
    let job = Job {
        sharding: sharding(&sharding_text, &degrees, stack, node),
        recompute: words::recompute(&row.words("recompute"), &modules, stack),
        attention: words::attention(&row.words("attention"), stack, batch.seq),
        offload: words::offload(&row.words("offload")),
        loss: if flags.has("cross-entropy-loss-fusion") { Loss::Fused } else { Loss::Logits },
        model,
        batch,
        degrees,
        precision,
        peft,
        stack,
    };
    let inter_gbps = row.number("inter_gbps_per_node").filter(|n| *n > 0.0);
    Ok(Expressed { job, machine, devices, node, inter_gbps, gigabytes, assumed, flags })
}

/// Adapters: `lora`, `qlora`, `lora r16`, `lora 9175040 trainable`.
fn peft(row: &Row, notes: &str) -> Peft {
    let text = row.words("peft");
    if text.is_empty() || any(&text, &["none", "full-finetuning", "full finetun"]) {
        return Peft::None;
    }
    let numbers = text.split([' ', ',', '=']);
    let trainable = numbers.filter_map(|word| word.parse::<u64>().ok()).find(|n| *n > 1000).unwrap_or(0);
    let rank = text.split([' ', ',']).filter_map(|word| {
        let digits = word.strip_prefix("rank").or_else(|| word.strip_prefix('r'))?;
        digits.trim_start_matches('=').parse::<usize>().ok()
    });
    let rank = rank.clone().next().unwrap_or(if trainable > 0 { 0 } else { 64 });
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

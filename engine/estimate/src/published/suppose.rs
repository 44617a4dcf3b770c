//! What rows of speed leave out and say between their lines.

use super::job::Expressed;
use super::row::Row;
use super::words::any;
use crate::job::{Attention, Number, Peft, Recompute, Sharding, Stack};
use crate::machine::Machine;

/// Tokens of a micro-batch that fill a device, where a row does not say how many there were: whoever publishes a speed has
/// filled it.
const FILLED: usize = 16_384;

/// What a row that states a speed leaves out and says between its lines.
pub(super) fn suppose(row: &Row, expressed: &mut Expressed, machine: &Machine) {
    software(row, expressed, machine);
    let job = &mut expressed.job;
    let said = |column: &str| row.positive(column).is_some();
    if !said("micro_batch") && !said("grad_accum") && job.degrees.pipeline <= 1 {
        let fills = (FILLED / job.batch.seq.max(1)).max(1);
        match row.positive("global_batch") {
            Some(global) => {
                let all = global.div_ceil(job.degrees.data.max(1)).max(1);
                let micro = fills.min(all);
                job.batch.micro = micro;
                job.batch.accumulation = all.div_ceil(micro);
            }
            None => {
                job.batch.micro = fills;
                job.batch.accumulation = 4;
            }
        }
    }
    // LLM Foundry's attention was Triton's in 2023, whatever its tables call it.
    if any(&row.words("framework"), &["composer", "foundry"]) && job.attention == Attention::Flash(2) {
        job.attention = Attention::Flash(1);
    }
    // Trainers that compile unless they are told not to.
    if any(&row.words("framework"), &["nanogpt", "nanochat"]) && row.text("compile").is_empty() {
        job.stack = Stack::TorchCompiled;
        job.attention = Attention::Flash(2);
    }
    if any(&row.words("model"), &["one layer", "single layer"]) {
        // A layer alone has no head.
        job.model.vocab = 0;
    }
    let interleaves = job.stack == Stack::MegatronCore || any(&row.words("notes"), &["interleav"]);
    if row.text("vpp").is_empty() && job.degrees.pipeline > 1 && interleaves {
        // Megatron's users interleave as far as layers divide.
        let (layers, stages) = (job.model.layers, job.degrees.pipeline);
        // Embedding and head may stand for a layer each.
        let ends = !layers.is_multiple_of(stages) && (layers + 2).is_multiple_of(stages);
        let each = if ends { (layers + 2) / stages } else { layers / stages };
        let chunks = (1..=8.min(each)).rev().find(|chunks| each.is_multiple_of(*chunks));
        job.degrees.chunks = chunks.unwrap_or(1);
    }
    // HFU over MFU says how much was made again.
    if let (Some(mfu), Some(hfu)) = (row.number("mfu_pct"), row.number("hfu_pct")) {
        let full = hfu > 1.25 * mfu && mfu > 0.0;
        if full && !matches!(job.recompute, Recompute::Full { .. } | Recompute::None) {
            job.recompute = Recompute::Full { every: 1, partitioned: false };
        }
    }
}

/// Who names no software runs none that could not do it.
fn software(row: &Row, expressed: &mut Expressed, machine: &Machine) {
    let job = &mut expressed.job;
    let d = job.degrees;
    let unnamed = row.text("framework").is_empty() || any(&row.words("framework"), &["parallel"]);
    let hot = machine.device.compute.contains_key(&Number::Fp8);
    if unnamed && job.stack != Stack::MegatronCore && (d.pipeline > 1 || d.tensor > 1) {
        // Stages and shares of matrices are Megatron's, or made after it.
        job.stack = if hot { Stack::MegatronCore } else { Stack::MegatronLm };
    } else if unnamed && job.stack == Stack::Torch && expressed.devices >= MANY {
        job.stack = Stack::TorchCompiled;
        if row.text("attention").is_empty() {
            job.attention = Attention::Flash(2);
        }
    }
    let states = 16.0 * job.model.parameters() as f64 / (d.tensor * d.pipeline).max(1) as f64;
    let whole = job.sharding == Sharding::whole() && row.text("sharding").is_empty() && job.peft == Peft::None;
    if whole && d.data > 1 && states > machine.device.memory as f64 {
        // A model that fits nowhere whole was split.
        job.sharding = Sharding::zero(3, d.data);
    }
}

/// Devices from which trainers are no longer those of a tutorial.
const MANY: usize = 64;

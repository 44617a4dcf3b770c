//! Rows that ask how much fits: the largest model, the largest micro-batch. Both are found by bisection over the memory of
//! the job.

use super::job::{Expressed, Refused, express_with};
use super::row::Row;
use super::shape::{count_of, gpt_of};
use super::words::{any, device_gigabytes};
use crate::job::{Job, Place, Recompute};
use crate::memory::{Memory, memory};

/// Gibibyte.
pub const GIB: f64 = 1_073_741_824.0;

/// What of a device's rated memory a program can have: the driver keeps about a hundredth (`torch.cuda.mem_get_info`: 79.2
/// of 80 GiB of an A100, 23.65 of 24 of a Titan RTX).
const USABLE: f64 = 0.99;

/// Bytes of host memory that a text states: `1.5TB CPU`.
fn host_bytes(text: &str) -> Option<f64> {
    let before = text.split("tb cpu").next().filter(|before| before.len() < text.len())?;
    let number = before.trim_end().rsplit(|c: char| !(c.is_ascii_digit() || c == '.')).next()?;
    number.parse::<f64>().ok().filter(|n| *n > 0.0).map(|n| n * 1e12)
}

/// Bytes that a program can have of a row's device.
pub fn capacity(row: &Row, expressed: &Expressed) -> Option<f64> {
    if let Some(gib) = usable(&row.words("measure")) {
        return Some(gib * GIB);
    }
    let rated = expressed.gigabytes.or_else(|| expressed.machine.map(device_gigabytes))?;
    Some(rated * GIB * USABLE)
}

/// `(23.65 GiB usable)`, `fits 23.70 GiB`.
fn usable(measure: &str) -> Option<f64> {
    let before = measure.split("gib").next().filter(|before| before.len() < measure.len())?;
    before.trim_end().rsplit([' ', '(']).next()?.parse().ok().filter(|n: &f64| *n > 0.0)
}

/// Bytes of weights, gradients and optimizer state at the worst stage.
pub fn model_states(of: &Memory) -> f64 {
    of.stages.iter().map(|stage| stage.states).fold(0.0, f64::max)
}

/// The largest micro-batch that fits; 0 where not even one does.
pub fn micro_batch(expressed: &Expressed, capacity: f64) -> f64 {
    let takes = |micro: usize| {
        let mut job: Job = expressed.job.clone();
        job.batch.micro = micro;
        memory(&job).needs() <= capacity
    };
    largest(1 << 20, |n| takes(n as usize)) as f64
}

/// The longest sequence that fits.
pub fn sequence(expressed: &Expressed, capacity: f64) -> f64 {
    let takes = |seq: usize| {
        let mut job: Job = expressed.job.clone();
        job.batch.seq = seq;
        memory(&job).needs() <= capacity
    };
    largest(1 << 26, |n| takes(n as usize)) as f64
}

/// The largest number of parameters that fits.
pub fn parameters(row: &Row) -> Result<f64, Refused> {
    let states_only = any(&row.words("measure"), &["states only", "model states"]);
    let gigabytes = row.number("gpu_mem_gb");
    let first = express_with(row, Some(count_of(1_000_000)))?;
    // A formula's bound is in decimal gigabytes of the rated size.
    let capacity = match gigabytes {
        Some(gigabytes) if states_only => gigabytes * 1e9,
        _ => capacity(row, &first).ok_or("the row gives neither a device nor its memory")?,
    };
    let host = host_bytes(&row.words("notes"));
    let takes = |parameters: u64| {
        let shape = if states_only { count_of(parameters) } else { gpt_of(parameters) };
        express_with(row, Some(shape)).is_ok_and(|mut expressed| {
            if row.text("recompute").is_empty() {
                // Nobody who tries how large a model can be keeps its activations.
                expressed.job.recompute = Recompute::Full { every: 1, partitioned: false };
            }
            let memory = memory(&expressed.job);
            let bytes = if states_only { model_states(&memory) } else { memory.needs() };
            // What is offloaded has to fit there, by DeepSpeed's own count of 18 bytes and half as much again.
            let offloaded = expressed.job.offload.parameters != Place::Device;
            let fits_host = host.is_none_or(|host| !offloaded || 27.0 * parameters as f64 <= host);
            bytes <= capacity && fits_host
        })
    };
    Ok(largest(1 << 46, takes) as f64)
}

/// The largest number up to a bound for which something holds that holds for all smaller ones.
fn largest(bound: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, bound);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

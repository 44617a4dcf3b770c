//! Rows that ask how much fits: the largest model, the largest micro-batch. Both are found by bisection over the memory of
//! the job.

use super::job::{Expressed, Refused, express_with};
use super::row::Row;
use super::shape::{count_of, gpt_of};
use super::words::{any, device_gigabytes};
use crate::job::Job;
use crate::memory::{Category, Memory, memory};

/// Gibibyte.
pub const GIB: f64 = 1_073_741_824.0;

/// What of a device's rated memory a program can have: the driver keeps about a hundredth (`torch.cuda.mem_get_info`: 79.2
/// of 80 GiB of an A100, 23.65 of 24 of a Titan RTX).
const USABLE: f64 = 0.99;

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

/// Bytes that a job takes on its device.
pub fn on_device(of: &Memory) -> f64 {
    of.device()
}

/// Bytes of weights, gradients and optimizer state at the worst stage.
pub fn model_states(of: &Memory) -> f64 {
    let stage = of.worst();
    [Category::Parameters, Category::Gradients, Category::Optimizer].iter().map(|category| stage.by(*category)).sum()
}

/// The largest micro-batch that fits; 0 where not even one does.
pub fn micro_batch(expressed: &Expressed, capacity: f64) -> f64 {
    let takes = |micro: usize| {
        let mut job: Job = expressed.job.clone();
        job.batch.micro = micro;
        on_device(&memory(&job)) <= capacity
    };
    largest(1 << 20, |n| takes(n as usize)) as f64
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
    let takes = |parameters: u64| {
        let shape = if states_only { count_of(parameters) } else { gpt_of(parameters) };
        express_with(row, Some(shape)).is_ok_and(|expressed| {
            let memory = memory(&expressed.job);
            let bytes = if states_only { model_states(&memory) } else { on_device(&memory) };
            bytes <= capacity
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

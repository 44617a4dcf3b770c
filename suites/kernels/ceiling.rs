//! The ceiling beside a measurement.

use super::Device;
use zbench_host::{devices, machine};
use zbench_kernels::DType;
use zbench_kernels::cpu::peak;
use zbench_reports::bench::Ceiling;

/// Seconds of each measurement of the peak: some hundred stretches, of which the best counts.
const PEAK_SECONDS: f64 = 0.05;

/// Measures before and after `work`, on as many threads; of a GPU its data sheet's dense rate.
pub fn beside<T, E>(hardware: &Device, dtype: DType, work: impl FnOnce() -> Result<T, E>) -> Result<(T, Ceiling), E> {
    if hardware.device == "cuda" {
        let result = work()?;
        let (gflops, reason) = match devices::data_sheet_flops(0, dtype) {
            Ok(flops) => (Some(flops / 1e9), String::new()),
            Err(reason) => (None, reason),
        };
        let ceiling = Ceiling { dtype: dtype.name().into(), gflops, before: gflops, after: gflops, reason };
        return Ok((result, ceiling));
    }
    let threads = hardware.threads_per_rank;
    let cores = machine::cores();
    // Threads that share a core each take their best stretch while the other waits: their sum is no ceiling.
    let peak = || if threads <= cores { peak::measure(threads, dtype, PEAK_SECONDS) } else { None };
    let before = peak();
    let result = work()?;
    let after = peak();
    let highest = before.zip(after).map(|(before, after)| before.max(after));
    let reason = match highest {
        Some(_) => String::new(),
        None if threads > cores => format!("{threads} threads on {cores} cores have no ceiling of their own"),
        None => format!("there is no loop for {dtype} on this processor"),
    };
    let giga = |rate: Option<f64>| rate.map(|rate| rate / 1e9);
    let ceiling =
        Ceiling { dtype: dtype.name().into(), gflops: giga(highest), before: giga(before), after: giga(after), reason };
    Ok((result, ceiling))
}

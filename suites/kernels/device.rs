//! What computes, whether its memory is free, and the times of its calls.

use super::Device;
use super::clock::Samples;
use crate::bench::BenchError;
use std::sync::Arc;
use zbench_host::{devices, machine};
use zbench_kernels::{Attention, Cpu, Cuda, KernelError, Kernels};
use zbench_predict::planned::gib;
use zbench_reports::bench::Timing;
use zbench_reports::stats;

/// Of the memory that is free now so much may be used.
const FREE_SHARE: f64 = 0.9;

/// Whether that many bytes are free now: what is touched beyond that ends the process. A device's arena says so itself.
pub(crate) fn fits_now(kernels: &dyn Kernels, needed: u64) -> Result<(), BenchError> {
    if !kernels.is_host() {
        return Ok(());
    }
    match machine::memory_bytes("MemAvailable") {
        Some(free) if needed as f64 > free as f64 * FREE_SHARE => {
            Err(BenchError::Busy { needed: gib(needed), available: gib(free) })
        }
        _ => Ok(()),
    }
}

/// The kernels that a question is asked of: on exactly as many threads, or on the first GPU.
pub(crate) fn kernels(hardware: &Device) -> Result<Arc<dyn Kernels>, BenchError> {
    if hardware.device == "cuda" {
        let machine = devices::machine(0).map_err(BenchError::Device)?;
        return Ok(Arc::new(Cuda::new(machine).map_err(KernelError::from)?));
    }
    let (wanted, cpu) = (hardware.threads_per_rank, Cpu::new(hardware.threads_per_rank));
    match cpu.threads() {
        given if given == wanted => Ok(Arc::new(cpu)),
        given => Err(BenchError::Threads { wanted, given }),
    }
}

/// Kernels on the first GPU that take attention's forward for Hopper's own instructions, which do this operation there.
pub(super) fn hopper_kernels(hardware: &Device, op: &Attention) -> Result<Arc<dyn Kernels>, BenchError> {
    let refused =
        |why: String| BenchError::Device(format!("--kernel flash-hopper: {why}; leave it out for the other kernels"));
    if hardware.device != "cuda" {
        return Err(refused("it is for GPUs (--device cuda)".into()));
    }
    if devices::on_host() {
        return Err(refused(format!(
            "it runs on a GPU alone, and {}=1 puts kernels on the processor",
            devices::ON_HOST
        )));
    }
    let machine = devices::machine(0).map_err(BenchError::Device)?;
    let kernels = Cuda::new(machine).map_err(KernelError::from)?.prefer_hopper_attention(true);
    kernels.hopper_kernel(op).map_err(refused)?;
    Ok(Arc::new(kernels))
}

/// Times as records have them.
pub(super) fn timing(samples: &Samples, flops: u64, ceiling_gflops: Option<f64>) -> Timing {
    let us: Vec<f64> = samples.seconds.iter().map(|seconds| seconds * 1e6).collect();
    let at = |percent| stats::percentile(&us, percent).unwrap_or(f64::NAN);
    let median_us = at(50.0);
    let gflops = flops as f64 / median_us / 1e3;
    Timing {
        flops,
        calls_per_sample: samples.calls,
        samples: us.len() as u64,
        median_us,
        p10_us: at(10.0),
        p90_us: at(90.0),
        gflops,
        share: ceiling_gflops.map(|ceiling| gflops / ceiling),
        ..Timing::default()
    }
}

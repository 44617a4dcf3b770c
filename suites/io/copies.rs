//! Copies of tensors between host memory and a device's, each of which waits for the one before.

use super::{CopyCell, result};
use crate::bench::{BenchError, BenchResult, Limits};
use crate::kernels::Device;
use crate::kernels::device::{fits_now, kernels};
use crate::kernels::numbers::random;
use std::time::{Duration, Instant};
use zbench_host::machine;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels};
use zbench_reports::bench::io::{Measured, Pass};

/// Caches that the tensors of one side fill, so that memory is measured.
const CACHES: u64 = 4;
/// Where the system does not say how large its last cache is.
const USUAL_CACHE: u64 = 32 << 20;
/// Bytes of one side at most, if one tensor is not larger.
const MOST: u64 = 1 << 30;

/// Measures a cell.
pub fn measure(cell: &CopyCell, limits: &Limits<'_>) -> Result<BenchResult, BenchError> {
    let device = &cell.hardware.device;
    let kernels = &*kernels(&Device { device: device.clone(), threads_per_rank: 1 })?;
    let size = cell.io.size;
    let count = CACHES * machine::last_level_cache_bytes().unwrap_or(USUAL_CACHE);
    let count = count.min(MOST).div_ceil(size).max(1);
    fits_now(kernels, size.saturating_mul(count).saturating_mul(2))?;
    let (host, far) = (Arena::host(None)?, kernels.arena(None, 1)?);
    let len = usize::try_from(size / DType::F32.size() as u64).unwrap_or(usize::MAX);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for seed in 0..count {
        limits.check()?;
        there.push(random(&far, kernels, Category::Workspace, DType::F32, len, seed)?);
        here.push(host.alloc(Category::Workspace, DType::F32, len)?);
    }
    let time = Duration::from_secs_f64(cell.io.seconds);
    let mut measured = Measured { device: kernels.name(), is_host: kernels.is_host(), ..Measured::default() };
    let mut passes = Vec::new();
    // From the device first: then the host has the tensors, and what comes back can be compared.
    for direction in ["from_device", "to_device"] {
        let mut copy = |place: usize| match direction {
            "from_device" => kernels.download(there[place].view(), here[place].view_mut()),
            _ => kernels.upload(here[place].view(), there[place].view_mut()),
        };
        // Pages that were never touched are not measured.
        (0..count as usize).try_for_each(&mut copy)?;
        kernels.synchronize()?;
        let (begin, mut done) = (Instant::now(), 0);
        while done == 0 || begin.elapsed() < time {
            limits.check()?;
            copy(done % count as usize)?;
            done += 1;
        }
        kernels.synchronize()?;
        let (bytes, seconds) = (done as u64 * size, begin.elapsed().as_secs_f64());
        passes.push(Pass { pattern: String::new(), direction: direction.into(), bytes, seconds, fio_gb_s: None });
    }
    passes.reverse();
    measured.passes = passes;
    let wrong = compare(kernels, &here, &there, limits)?;
    Ok(BenchResult { wrong, ..result(&measured) })
}

/// What is wrong with tensors that went to the device, if something is.
fn compare(
    kernels: &dyn Kernels,
    here: &[Buffer],
    there: &[Buffer],
    limits: &Limits<'_>,
) -> Result<Option<String>, BenchError> {
    let arena = Arena::host(None)?;
    for (number, (here, there)) in here.iter().zip(there).enumerate() {
        limits.check()?;
        let mut back = arena.alloc(Category::Workspace, here.dtype(), here.len())?;
        kernels.download(there.view(), back.view_mut())?;
        if back.view().as_bytes()? != here.view().as_bytes()? {
            return Ok(Some(format!("tensor {number} came back from the device with other bytes")));
        }
    }
    Ok(None)
}

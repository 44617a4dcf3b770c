//! `calibrate --device cuda`: measures a GPU, prints and records whatever came out, and writes a profile only where rounds
//! agreed and there is a data sheet to have a share of.

use super::{LIMIT, empty, keep, state, teller};
use crate::Global;
use crate::commands::signals::stop_flag;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use zbench_config::profile::default_path;
use zbench_estimate::profile;
use zbench_host::environment::devices::driver;
use zbench_host::environment::root::Root;
use zbench_host::{devices, exit, machine};
use zbench_kernels::cuda::gpu::dotted;
use zbench_kernels::memory::device::Device;
use zbench_reports::bench::DeviceCeilings;
use zbench_reports::record::Record;
use zbench_reports::{Notebook, units};
use zbench_runner::record::emulated_device;
use zbench_suites::bench::Limits;
use zbench_suites::bench::{seen, watched};
use zbench_suites::calibrate::args::CalibrateArgs;
use zbench_suites::calibrate::device::profile::Target;
use zbench_suites::calibrate::device::{Wanted, measure};
use zbench_suites::calibrate::judge;

/// Rows and columns of products, on a GPU and where a processor does its work.
const SIDE: [u32; 2] = [8192, 64];
/// Bytes of each of two buffers, likewise: many times the last cache.
const MEMORY: [u64; 2] = [1 << 30, 256 << 10];
/// The two buffers take at most half of the memory that is free: products need the rest.
const FREE_SHARE: u64 = 4;

pub(super) fn calibrate(global: &Global, arguments: &CalibrateArgs) -> Result<u8> {
    let gpu = arguments.gpu.unwrap_or(0) as usize;
    let device = match open(gpu) {
        Ok(device) => device,
        Err(reason) => {
            zbench_host::say!("nothing is measured: {reason}");
            zbench_host::say!(
                "`zbench doctor` lists what this machine has for CUDA, and how to get the rest (docs/cuda.md)"
            );
            return Ok(exit::NOT_MEASURED);
        }
    };
    let wanted = wanted(arguments, gpu, &*device)?;
    let name = device.props().name.clone();
    let builtin = if devices::on_host() { None } else { profile::of_product(&name) };
    let path = path(arguments, builtin.unwrap_or(&name));
    // Checked now, as it would only fail after the measurement.
    let target = if devices::on_host() { None } else { Target::open(&path, builtin, &name)? };
    let notebook = Notebook::open(&global.notebook)?;
    notebook.check_writable()?;
    let stop = stop_flag()?;
    let limits = Limits { stop: &stop, deadline: Instant::now() + LIMIT, parts: None };
    let rated = target.as_ref().map(|target| &target.machine);
    let watches = if devices::on_host() { 0 } else { gpu + 1 };
    let (measured, mut sampled) = watched(watches, || measure(&device, &wanted, rated, &limits, &mut teller(global)));
    let Ok(ceilings) = measured else {
        zbench_host::say!("stopped; nothing is kept of unfinished rounds");
        return Ok(exit::INTERRUPTED);
    };
    // Samples of other GPUs do not count.
    sampled.gpus.retain(|of| of.gpu == gpu);
    let reasons = judge::why_not_device(&ceilings, &sampled);
    let mut record = record(&wanted, &ceilings);
    seen(&mut record, &sampled);
    if devices::on_host() {
        emulated_device(&mut record);
    }
    keep(global, &notebook, &mut record, &reasons.iter().collect::<Vec<_>>())?;
    reasons.iter().for_each(|reason| zbench_host::say!("too noisy: {reason}"));
    if arguments.no_save {
        return Ok(if reasons.is_empty() { exit::SUCCESS } else { exit::INCONCLUSIVE });
    }
    let Some(target) = target else {
        match devices::on_host() {
            true => {
                zbench_host::say!(
                    "nothing is saved: the kernels ran on the processor, whose speed says nothing of a GPU's"
                )
            }
            false => zbench_host::say!(
                "nothing is saved: no profile that zbench comes with is of {name}, and a profile's figures are shares of a data \
                 sheet's; write one with its peaks (docs/machines.md) and name it with --save FILE"
            ),
        }
        return Ok(exit::INCONCLUSIVE);
    };
    if !reasons.is_empty() {
        let advice = "let nobody else use the GPU and try again, or measure more rounds";
        zbench_host::say!("{} is left as it was; {advice}", path.display());
        return Ok(exit::INCONCLUSIVE);
    }
    let left = target.save(&ceilings, &source(&record))?;
    zbench_host::say!("saved into {}; plan with hardware.profile = {:?}", path.display(), profile_name(&path));
    left.iter().for_each(|reason| zbench_host::say!("{reason}"));
    Ok(if left.is_empty() { exit::SUCCESS } else { exit::INCONCLUSIVE })
}

fn open(gpu: usize) -> Result<Arc<dyn Device>, String> {
    let device = devices::machine(gpu)?;
    match devices::count() {
        Ok(count) if gpu >= count => {
            Err(format!("--gpu {gpu}: there is {}, counted from 0", units::plural(count, "GPU", "GPUs")))
        }
        _ => Ok(device),
    }
}

fn wanted(arguments: &CalibrateArgs, gpu: usize, device: &dyn Device) -> Result<Wanted> {
    let which = usize::from(devices::on_host());
    let room = device.props().memory_bytes / FREE_SHARE;
    let bytes = arguments.memory.unwrap_or(MEMORY[which].min(room));
    if bytes > room {
        bail!(
            "--memory {}: two such buffers are more than half of the memory that GPU {gpu} has free; write {} or less",
            units::memory(bytes as f64),
            units::memory(room as f64)
        );
    }
    Ok(Wanted {
        gpu,
        rounds: arguments.rounds as usize,
        side: arguments.side.unwrap_or(SIDE[which]) as usize,
        memory_bytes: usize::try_from(bytes)?,
    })
}

/// Path of the profile, named after the host and the GPU.
fn path(arguments: &CalibrateArgs, gpu: &str) -> PathBuf {
    let default = || default_path(&format!("{}-{gpu}", machine::host_name()));
    arguments.save.clone().unwrap_or_else(default)
}

fn profile_name(path: &std::path::Path) -> String {
    path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The source that is stated beside every value.
fn source(record: &Record) -> String {
    let day = record.started.split('T').next().unwrap_or_default();
    let cuda = || devices::probe().driver.as_ref().ok().map(|driver| format!("CUDA {}", dotted(driver.version())));
    let driver = driver(&Root::system()).map(|version| format!("driver {version}")).or_else(cuda);
    let driver = driver.map_or_else(String::new, |driver| format!(", {driver}"));
    format!("measured by zbench calibrate --device cuda, zbench {}, {day}{driver}", env!("CARGO_PKG_VERSION"))
}

fn record(wanted: &Wanted, ceilings: &DeviceCeilings) -> Record {
    let mut record = empty(json!({
        "suite": "calibrate",
        "device": "cuda",
        "gpu": wanted.gpu,
        "rounds": wanted.rounds,
        "side": wanted.side,
        "memory_bytes": wanted.memory_bytes,
    }));
    for of in &ceilings.rates {
        let (metric, scale) = of.metric();
        state(&mut record, &metric, scale, of.rate.as_ref(), &of.name, &ceilings.unstated);
    }
    if let Ok(value) = serde_json::to_value(ceilings) {
        record.extra.insert("device_ceilings".into(), value);
    }
    // The algorithms of matrix products are part of the measurement.
    if let Some(gpu) = devices::gpu(wanted.gpu) {
        let products: Vec<String> = gpu.products().iter().map(|chosen| format!("{chosen:?}")).collect();
        record.extra.insert("products".into(), products.into());
    }
    record
}

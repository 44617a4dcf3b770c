//! What a measurement becomes: a timing, a record.

use super::clock::Samples;
use super::{Answer, BenchError, Device};
use serde_json::Value;
use std::sync::Arc;
use zbench_host::sampling::Sampler;
use zbench_host::sampling::sampled::{BUSY_SHARE, LEAST_SECONDS, Sampled};
use zbench_host::{devices, machine};
use zbench_kernels::{Attention, Cpu, Cuda, KernelError, Kernels};
use zbench_predict::planned::gib;
use zbench_reports::bench::Timing;
use zbench_reports::record::{Outcome, Record, Status};
use zbench_reports::stats;
use zbench_runner::Header;

/// Of the memory that is free now so much may be used.
const FREE_SHARE: f64 = 0.9;

/// Whether that many bytes are free now: what is touched beyond that ends the process. A device's arena says so itself.
pub(super) fn fits_now(kernels: &dyn Kernels, needed: u64) -> Result<(), BenchError> {
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
pub(super) fn kernels(hardware: &Device) -> Result<Arc<dyn Kernels>, BenchError> {
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

/// A record with everything but its numbers.
pub fn blank(header: &Header, key: &str, cell: Value, trial: u32, outcome: Outcome) -> Record {
    let started = jiff::Timestamp::now().to_string();
    let unique = format!("{key} {trial} {started} {}", std::process::id());
    let id = blake3::hash(unique.as_bytes()).to_hex()[..12].to_string();
    let mut record = Record::new(id, key, &header.name, outcome);
    record.trial = trial;
    record.cell = cell;
    record.environment = header.environment.clone();
    record.command = header.command.clone();
    record.started = started;
    if !header.question.is_empty() {
        record.extra.insert("question".into(), header.question.clone().into());
    }
    record
}

/// Watches the machine, and so many GPUs of it, during `work`; what it saw that spoils timings becomes flags of the record.
pub fn watched<T>(gpus: usize, work: impl FnOnce() -> T) -> (T, Sampled) {
    let sampler = Sampler::start(gpus);
    let result = work();
    (result, sampler.finish())
}

/// What was seen meanwhile, into the record.
pub fn seen(record: &mut Record, sampled: &Sampled) {
    if let Ok(value) = serde_json::to_value(sampled) {
        record.extra.insert("sampled".into(), value);
    }
    for (flag, words) in sampled.flags() {
        record.validity.push(flag.into());
        record.notes.push(words);
    }
    let others = sampled.others_share.filter(|_| !sampled.shares_cores && sampled.seconds >= LEAST_SECONDS);
    if let Some(share) = others.filter(|share| *share > BUSY_SHARE) {
        record.validity.push("busy_machine".into());
        record.notes.push(format!(
            "Other processes used {:.0} % of the cores during the run (limit {:.0} %).",
            share * 100.0,
            BUSY_SHARE * 100.0
        ));
    }
}

/// The answer, into the record.
pub fn answered(record: &mut Record, answer: &Answer) {
    if let Some(wrong) = &answer.wrong {
        record.outcome = Outcome::ended(Status::Failed, format!("wrong result: {wrong}"), None);
    }
    for timing in answer.timings.iter().filter(|timing| timing.samples > 0) {
        let name = match timing.pass.as_str() {
            "" => String::new(),
            pass => format!("{}_{pass}_", timing.kernel),
        };
        record.state(&format!("{name}median_us"), timing.median_us);
        record.state(&format!("{name}p10_us"), timing.p10_us);
        record.state(&format!("{name}p90_us"), timing.p90_us);
        record.state(&format!("{name}gflops"), timing.gflops);
        let share = format!("{name}share_of_ceiling");
        match timing.share {
            Some(value) => record.state(&share, value),
            None => record.leave_unstated(&share, answer.ceiling.reason.clone()),
        }
        record.state(&format!("{name}error_of_bound"), timing.worst);
        for (what, bytes) in [("saved_bytes", timing.saved_bytes), ("workspace_bytes", timing.workspace_bytes)] {
            if let Some(bytes) = bytes {
                record.state(&format!("{name}{what}"), bytes as f64);
            }
        }
    }
    for timing in answer.timings.iter().filter(|timing| timing.samples == 0) {
        record.leave_unstated(&format!("{}_{}_median_us", timing.kernel, timing.pass), timing.trouble.clone());
    }
    for (name, value) in &answer.metrics {
        match value {
            Ok(value) => record.state(name, *value),
            Err(reason) => record.leave_unstated(name, reason.clone()),
        }
    }
    record.notes.extend(answer.notes.iter().cloned());
    if let Some((name, section)) = &answer.section {
        record.extra.insert(name.clone(), section.clone());
        return;
    }
    match answer.ceiling.gflops {
        Some(gflops) => record.state("ceiling_gflops", gflops),
        None => record.leave_unstated("ceiling_gflops", answer.ceiling.reason.clone()),
    }
    for (name, value) in [
        ("timings", serde_json::to_value(&answer.timings)),
        ("ceiling", serde_json::to_value(&answer.ceiling)),
        ("instructions", serde_json::to_value(zbench_kernels::peak::describe())),
    ] {
        if let Ok(value) = value {
            record.extra.insert(name.into(), value);
        }
    }
}

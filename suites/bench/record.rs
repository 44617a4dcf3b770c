//! Writes results into records.

use super::BenchResult;
use zbench_host::sampling::Sampler;
use zbench_host::sampling::sampled::{BUSY_SHARE, LEAST_SECONDS, Sampled};
use zbench_reports::record::{Outcome, Record, Status};

/// Samples the machine's load, and that of `gpus` GPUs, during `work`.
pub fn watched<T>(gpus: usize, work: impl FnOnce() -> T) -> (T, Sampled) {
    let sampler = Sampler::start(gpus);
    let result = work();
    (result, sampler.finish())
}

/// Adds the samples to a record, with a flag and a note for everything that makes timings unreliable.
pub fn seen(record: &mut Record, sampled: &Sampled) {
    if let Ok(value) = serde_json::to_value(sampled) {
        record.extra.insert("sampled".into(), value);
    }
    let mut flags = sampled.flags();
    let others = sampled.others_share.filter(|_| !sampled.shares_cores && sampled.seconds >= LEAST_SECONDS);
    if let Some(share) = others.filter(|share| *share > BUSY_SHARE) {
        let (share, limit) = (share * 100.0, BUSY_SHARE * 100.0);
        let note = format!("Other processes used {share:.0} % of the cores during the run (limit {limit:.0} %).");
        flags.push(("busy_machine", note));
    }
    for (flag, note) in flags {
        record.validity.push(flag.into());
        record.notes.push(note);
    }
}

/// Adds a result to a record.
pub(crate) fn fill(record: &mut Record, result: &BenchResult) {
    if let Some(other) = &result.record {
        return copy_results(record, other);
    }
    if let Some(wrong) = &result.wrong {
        record.outcome = Outcome::ended(Status::Failed, format!("wrong result: {wrong}"), None);
    }
    for timing in result.timings.iter().filter(|timing| timing.samples > 0) {
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
            None => record.leave_unstated(&share, result.ceiling.reason.clone()),
        }
        record.state(&format!("{name}error_of_bound"), timing.worst);
        for (what, bytes) in [("saved_bytes", timing.saved_bytes), ("workspace_bytes", timing.workspace_bytes)] {
            if let Some(bytes) = bytes {
                record.state(&format!("{name}{what}"), bytes as f64);
            }
        }
    }
    for timing in result.timings.iter().filter(|timing| timing.samples == 0) {
        record.leave_unstated(&format!("{}_{}_median_us", timing.kernel, timing.pass), timing.trouble.clone());
    }
    for (name, value) in &result.metrics {
        match value {
            Ok(value) => record.state(name, *value),
            Err(reason) => record.leave_unstated(name, reason.clone()),
        }
    }
    record.notes.extend(result.notes.iter().cloned());
    if let Some((name, section)) = &result.section {
        record.extra.insert(name.clone(), section.clone());
        return;
    }
    match result.ceiling.gflops {
        Some(gflops) => record.state("ceiling_gflops", gflops),
        None => record.leave_unstated("ceiling_gflops", result.ceiling.reason.clone()),
    }
    for (name, value) in [
        ("timings", serde_json::to_value(&result.timings)),
        ("ceiling", serde_json::to_value(&result.ceiling)),
        ("instructions", serde_json::to_value(zbench_kernels::cpu::peak::describe())),
    ] {
        if let Ok(value) = value {
            record.extra.insert(name.into(), value);
        }
    }
}

/// Copies the results of another record. Its command measures the same again.
fn copy_results(record: &mut Record, other: &Record) {
    record.outcome = other.outcome.clone();
    record.metrics = other.metrics.clone();
    record.ranks.clone_from(&other.ranks);
    record.command.clone_from(&other.command);
    record.validity.extend(other.validity.iter().cloned());
    record.notes.extend(other.notes.iter().cloned());
    record.extra.extend(other.extra.clone());
}

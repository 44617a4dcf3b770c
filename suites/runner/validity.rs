//! What was sampled while a cell ran, in its record.

use crate::protocol::End;
use std::collections::BTreeSet;
use zbench_host::sampling::sampled::Sampled;
use zbench_reports::IndexEntry;
use zbench_reports::record::Record;

/// Flags of what another trial would show again.
const LASTING: [&str; 3] = ["cpu_quota", "emulated_device", "not_reproducible"];

/// Whether a trial was measured and does not count because of what the machine did meanwhile, so that another may count.
pub fn is_worth_repeating(record: &IndexEntry) -> bool {
    let mut flags = record.excluding_flags().peekable();
    record.is_measured() && flags.peek().is_some() && flags.all(|flag| !LASTING.contains(&flag))
}

/// What was sampled, into the record: the numbers, the flags with their sentences, and the energy of a token.
pub fn add(record: &mut Record, sampled: &Sampled, end: &End) {
    if let Ok(value) = serde_json::to_value(sampled) {
        record.extra.insert("sampled".into(), value);
    }
    for (flag, words) in sampled.flags() {
        record.validity.push(flag.into());
        record.notes.push(words);
    }
    let tokens: u64 = record.timed_steps().map(|step| step.tokens).sum();
    match joules(sampled, end) {
        _ if !record.is_measured() => {
            let reason = format!("the cell ended early: {}", record.outcome.reason);
            record.leave_unstated("joules_per_token", reason);
        }
        Ok(joules) if tokens > 0 => record.state("joules_per_token", joules / tokens as f64),
        Ok(_) => record.leave_unstated("joules_per_token", "no timed step ended"),
        Err(reason) => record.leave_unstated("joules_per_token", reason),
    }
}

/// Energy of all tokens of the timed steps: of the GPUs where ranks are on GPUs (the hosts' share is in `sampled`), else of the
/// processors of the host. `sampled` is of rank 0's host alone.
fn joules(sampled: &Sampled, end: &End) -> Result<f64, String> {
    let of_gpus =
        "a GPU tells no energy, or where the timed steps began is not known (train.untimed_steps of 1 or more)";
    if let Some(gpu) = end.gpu.as_ref().filter(|_| end.ranks.iter().any(|rank| rank.gpu.is_some())) {
        return gpu.timed_joules.ok_or_else(|| of_gpus.into());
    }
    if !sampled.gpus.is_empty() {
        return sampled.gpus.iter().map(|gpu| gpu.timed_joules).sum::<Option<f64>>().ok_or_else(|| of_gpus.into());
    }
    if end.gpu.is_some() {
        return Err("NVML tells of no GPU here (zbench doctor says why)".into());
    }
    let hosts: BTreeSet<&str> = end.ranks.iter().map(|rank| rank.host.as_str()).collect();
    if hosts.len() > 1 {
        return Err(format!(
            "the ranks were on {} hosts, and energy was read on the host of rank 0 alone",
            hosts.len()
        ));
    }
    match (&sampled.why_no_energy, sampled.timed_joules) {
        (Some(why), _) => Err(why.clone()),
        (None, Some(joules)) => Ok(joules),
        (None, None) => Err("where the timed steps began is not known: set train.untimed_steps to 1 or more".into()),
    }
}

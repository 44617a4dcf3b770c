//! Before the first row: who is there, how large buffers may be, and what of it is told.

use super::BenchError;
use super::bench::Member;
use super::exchange::Exchange;
use super::plan::Plan;
use zbench_engine::comm::Communicator;
use zbench_reports::collectives::{Device, Settings};

/// Assumed where the system does not state its last-level cache.
pub const CACHE_GUESS: u64 = 32 << 20;

/// Who is there: a line for each rank, known to all.
pub fn devices(member: &Member<'_>, exchange: &Exchange<'_>, color: usize) -> Result<Vec<Device>, BenchError> {
    let hosts = exchange.texts(member.host)?;
    let infos = exchange.texts(member.device)?;
    let numbers = exchange.numbers(&[f64::from(std::process::id()), color as f64])?;
    let device = |rank: usize| Device {
        rank,
        group: numbers[rank][1] as usize,
        pid: numbers[rank][0] as u32,
        hostname: hosts[rank].clone(),
        device: hosts[..rank].iter().filter(|host| **host == hosts[rank]).count(),
        device_hex: "cpu".into(),
        device_info: infos[rank].clone(),
    };
    Ok((0..hosts.len()).map(device).collect())
}

/// The largest size that every host can hold twice for each of its ranks, of whole elements.
pub fn largest(
    member: &Member<'_>,
    plan: &Plan,
    exchange: &Exchange<'_>,
    devices: &[Device],
    ranks: usize,
) -> Result<u64, BenchError> {
    let own = &devices[member.world.rank()].hostname;
    let on_host = devices.iter().filter(|device| device.hostname == *own).count() as u64;
    let of_rank = exchange.number((member.memory_bytes / on_host) as f64)?;
    let least = of_rank.into_iter().fold(f64::INFINITY, f64::min) as u64;
    // The unalignment, the guard and the stride of a slot come on top.
    let holds = (least / 2).saturating_sub(1 << 20);
    let granule = (8 * ranks) as u64;
    Ok(if plan.max_bytes > holds { holds / granule * granule } else { plan.max_bytes })
}

/// What is told of a run before its first row.
pub fn settings(
    member: &Member<'_>,
    plan: &Plan,
    group: &dyn Communicator,
    devices: &[Device],
    largest: u64,
    rotation_bytes: u64,
) -> Settings {
    let mut hosts: Vec<&str> = devices.iter().map(|device| device.hostname.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let cache = match member.cache_bytes {
        Some(bytes) => format!("a last-level cache of {}", mib(bytes)),
        None => format!("an assumed last-level cache of {} (the system does not say)", mib(CACHE_GUESS)),
    };
    let buffers = if plan.hot {
        "hot: every iteration uses the same memory, which caches may hold".to_string()
    } else {
        let each = mib(rotation_bytes.max(largest));
        format!("rotate: each iteration uses the next memory of 2 regions of {each} a rank, chosen by {cache}")
    };
    Settings {
        backend: member.world.backend().into(),
        ranks: member.world.size(),
        group_ranks: group.size(),
        hosts: hosts.len(),
        formed: member.formed.into(),
        algorithm: plan.algorithm.clone(),
        link: plan.link.clone(),
        threads_per_rank: member.threads,
        nthreads: member.local_ranks.div_ceil(plan.ngpus),
        ngpus: plan.ngpus,
        minimum_bytes: plan.min_bytes.min(largest),
        maximum_bytes: largest,
        step_factor: plan.step_factor,
        step_bytes: plan.step_bytes,
        warmup_iters: plan.warmup,
        iterations: plan.iters,
        aggregated_iterations: plan.aggregate,
        validation: plan.check,
        blocking: plan.blocking,
        per_iteration: plan.per_iteration,
        per_iteration_skip: plan.skip,
        unalign: plan.unalign,
        cpu_time: plan.cpu_time,
        timestamps: plan.timestamps,
        timing: plan.timing(),
        buffers,
        reduced_from: (largest < plan.max_bytes).then_some(plan.max_bytes),
        minimum_bandwidth: plan.min_bandwidth,
    }
}

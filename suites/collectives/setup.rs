//! Before the first row: who is there, how large buffers may be, and what of it is told.

use super::CollectiveError;
use super::exchange::Exchange;
use super::member::Member;
use super::plan::Plan;
use zbench_collectives::Communicator;
use zbench_reports::collectives::{Device, Settings};

/// What a line says of ranks whose buffers lie in the host's memory.
pub const CORES: &str = "cpu";

/// Who is there: a line for each rank, known to all.
pub fn devices(member: &Member<'_>, exchange: &Exchange<'_>, color: usize) -> Result<Vec<Device>, CollectiveError> {
    let place = member.place;
    let hosts = exchange.texts(&place.host)?;
    let infos = exchange.texts(&place.device)?;
    let buses = exchange.texts(place.gpu.as_ref().map_or(CORES, |gpu| &gpu.bus))?;
    let number = place.gpu.as_ref().map_or(0, |gpu| gpu.number);
    let numbers = exchange.numbers(&[f64::from(std::process::id()), color as f64, number as f64])?;
    let device_of = |rank: usize| match buses[rank] == CORES {
        true => hosts[..rank].iter().filter(|host| **host == hosts[rank]).count(),
        false => numbers[rank][2] as usize,
    };
    let device = |rank: usize| Device {
        rank,
        group: numbers[rank][1] as usize,
        pid: numbers[rank][0] as u32,
        hostname: hosts[rank].clone(),
        device: device_of(rank),
        device_hex: buses[rank].clone(),
        device_info: infos[rank].clone(),
    };
    Ok((0..hosts.len()).map(device).collect())
}

/// Ranks whose buffers lie in the same memory as a rank's, with itself: those of its host, or of its GPU.
pub fn sharers(devices: &[Device], rank: usize) -> u64 {
    let own = &devices[rank];
    let shares =
        |other: &&Device| other.hostname == own.hostname && (own.device_hex == CORES || own.device == other.device);
    devices.iter().filter(shares).count() as u64
}

/// The largest size that every memory can hold twice for each of its ranks, of whole elements.
pub fn largest(
    member: &Member<'_>,
    plan: &Plan,
    exchange: &Exchange<'_>,
    devices: &[Device],
    ranks: usize,
) -> Result<u64, CollectiveError> {
    let own = member.place.holds(plan, sharers(devices, member.world.rank()));
    let of_rank = exchange.number(own as f64)?;
    let holds = of_rank.into_iter().fold(f64::INFINITY, f64::min) as u64;
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
    let cache = &member.place.cache.words;
    let buffers = if plan.hot {
        "hot: every iteration uses the same memory, which caches may hold".to_string()
    } else {
        let each = mib(rotation_bytes.max(largest));
        format!("rotate: each iteration uses the next memory of 2 regions of {each} a rank, chosen by {cache}")
    };
    let ngpus = plan.nccl.ngpus.unwrap_or(1) as usize;
    Settings {
        backend: member.world.backend().into(),
        ranks: member.world.size(),
        group_ranks: group.size(),
        hosts: hosts.len(),
        formed: member.formed.into(),
        algorithm: plan.algorithm.clone(),
        link: plan.link.clone(),
        threads_per_rank: member.threads,
        nthreads: member.local_ranks.div_ceil(ngpus),
        ngpus,
        minimum_bytes: plan.nccl.min_bytes.min(largest),
        maximum_bytes: largest,
        step_factor: plan.step_factor,
        step_bytes: plan.step_bytes,
        warmup_iters: plan.nccl.warmup_iters,
        iterations: plan.nccl.iters,
        aggregated_iterations: plan.nccl.agg_iters,
        validation: plan.nccl.check,
        blocking: plan.nccl.blocking,
        per_iteration: plan.per_iteration,
        per_iteration_skip: plan.nccl.per_iter_skip,
        unalign: plan.nccl.unalign as usize,
        cpu_time: plan.nccl.cpu_time > 0,
        timestamps: plan.nccl.timestamps > 0,
        timing: match member.place.gpu {
            None => plan.timing(),
            // NCCL's calls are waited for where they are made (engine/collectives/src/nccl/ordered.rs).
            Some(_) if member.world.backend() == "nccl" => format!("{}; the host waits for each call", plan.timing()),
            Some(_) => format!("{}; until the device has done what it was asked for", plan.timing()),
        },
        buffers,
        reduced_from: (largest < plan.max_bytes).then_some(plan.max_bytes),
        minimum_bandwidth: plan.min_bandwidth,
    }
}

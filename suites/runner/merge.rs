//! From what each rank's process said to the end of the cell, as if its ranks had been threads of one process.

use crate::gpu_info::GpuInfo;
use crate::protocol::{End, Ended, RankFailure, RankResult};
use zbench_engine::run::launch_ranks::{cause_of, slowest};
use zbench_host::machine::{self, BusySeconds};
use zbench_reports::record::Step;

/// The end of a cell whose ranks said this, in rank order; `steps` are those of rank 0.
pub fn merge(said: Vec<RankResult>, mut steps: Vec<Step>) -> End {
    let failure = failure(&said);
    let slowest = slowest(said.iter().map(|rank| &rank.end.step_ms[..]));
    steps.iter_mut().filter(|step| step.timed).zip(&slowest).for_each(|(step, ms)| step.ms = step.ms.max(*ms));
    let sum = |of: fn(&RankResult) -> Option<u64>| said.iter().map(of).sum::<Option<u64>>();
    let measured = || said.iter().filter(|rank| !rank.peak_flops.is_empty());
    let gpus: Vec<&GpuInfo> = said.iter().filter_map(|rank| rank.end.gpu.as_ref()).collect();
    // Every rank measures its own GPU, and what counts is a GPU's; the cores are those of all hosts.
    let parts = if gpus.is_empty() { 1 } else { gpus.len() } as f64;
    let peaks = peaks(measured().map(|rank| &rank.peak_flops[..]));
    End {
        gpu: GpuInfo::of_all(&gpus),
        failure,
        steps,
        kernels: said.first().map(|rank| rank.kernels.clone()).unwrap_or_default(),
        peak_flops: peaks.into_iter().map(|peak| peak.map(|peak| peak / parts)).collect(),
        peak_threads: measured().map(|rank| rank.peak_threads).sum(),
        peak_quota: measured().filter_map(|rank| rank.peak_quota).reduce(f64::min),
        peak_rss_bytes: sum(|rank| rank.rss_bytes),
        swap_bytes: sum(|rank| rank.swap_bytes),
        others_share: others_share(&said),
        stopped: said.iter().any(|rank| rank.end.stopped),
        ranks: said.into_iter().filter(|rank| rank.end.pid.is_some()).map(|rank| rank.end).collect(),
    }
}

/// The sum over those that measured, before and after; absent where one of them could not.
fn peaks<'a>(hosts: impl Iterator<Item = &'a [Option<f64>]>) -> Vec<Option<f64>> {
    let mut sums: Vec<Option<f64>> = Vec::new();
    for host in hosts {
        sums.resize(sums.len().max(host.len()), Some(0.0));
        sums.iter_mut().zip(host).for_each(|(sum, host)| *sum = sum.zip(*host).map(|(sum, host)| sum + host));
    }
    sums
}

/// The busiest host's share of work that was none of its ranks'.
fn others_share(said: &[RankResult]) -> Option<f64> {
    let of_host = |host: &str| {
        let ranks: Option<Vec<BusySeconds>> = said.iter().filter(|r| r.host == host).map(|rank| rank.busy).collect();
        let ranks = ranks?;
        let longest = ranks.iter().max_by(|a, b| a.wall.total_cmp(&b.wall))?;
        longest.others_share(ranks.iter().map(|rank| rank.own).sum())
    };
    let shares: Option<Vec<f64>> = said.iter().map(|rank| of_host(&rank.host)).collect();
    shares?.into_iter().reduce(f64::max)
}

/// The cause, who it was about, and what the others were doing when they noticed.
fn failure(said: &[RankResult]) -> Option<Ended> {
    let cause = cause_of(said.iter().map(|rank| rank.failure.as_ref().map(|failure| failure.standing)))?;
    let RankFailure { status, source, reason, missing, .. } = said[cause].failure.as_ref()?;
    let mut reason = reason.clone();
    for rank in missing {
        if let Some(RankResult { host, end, .. }) = said.get(*rank).filter(|_| *rank != cause)
            && let Some(pid) = end.pid
        {
            reason.push_str(&format!("; rank {rank} is process {pid} on {host}"));
        }
    }
    // One that died cannot say in which call: those who waited for it can.
    let waiting = |rank: &&RankResult| rank.failure.as_ref().is_some_and(|failure| failure.missing.contains(&cause));
    if missing.is_empty()
        && let Some(failure) = said.iter().find(waiting).and_then(|rank| rank.failure.as_ref())
    {
        reason.push_str(&format!("; {}", failure.reason));
    }
    Some(Ended { status: *status, reason, source: *source })
}

/// What is said for a rank whose process ended without a word.
pub fn dead(rank: usize, pid: u32, failure: RankFailure) -> RankResult {
    let host = machine::host_name();
    let mut said = RankResult { failure: Some(failure), ..RankResult::default() };
    said.end.rank = rank;
    said.end.host = machine::host_hash(&host);
    said.end.pid = Some(pid);
    said.host = host;
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_engine::run::launch_ranks::Standing;
    use zbench_reports::record::Status;

    fn rank(number: usize, host: &str) -> RankResult {
        let mut said =
            RankResult { host: host.into(), kernels: "cpu".into(), rss_bytes: Some(100), ..RankResult::default() };
        (said.end.rank, said.end.pid) = (number, Some(1000 + number as u32));
        said.end.step_ms = vec![1.0 + number as f64, 9.0 - number as f64];
        said.busy = Some(BusySeconds { wall: 2.0, all: 3.0, own: 1.0, cores: 2 });
        if number.is_multiple_of(2) {
            (said.peak_flops, said.peak_threads) = (vec![Some(10.0), Some(20.0)], 2);
        }
        said
    }

    fn world() -> Vec<RankResult> {
        vec![rank(0, "a"), rank(1, "a"), rank(2, "b"), rank(3, "b")]
    }

    fn failed(standing: Standing, reason: &str, missing: &[usize]) -> Option<RankFailure> {
        let (reason, missing) = (reason.to_string(), missing.to_vec());
        Some(RankFailure { standing, status: Status::Failed, source: None, reason, missing })
    }

    #[test]
    fn numbers_of_processes_are_those_of_a_cell() {
        let step = |step, timed| Step {
            step,
            timed,
            loss: 1.0,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 0.5,
            tokens: 1,
            extra: Default::default(),
        };
        let end = merge(world(), vec![step(1, false), step(2, true), step(3, true)]);
        assert_eq!(end.steps.iter().map(|step| step.ms).collect::<Vec<_>>(), [0.5, 4.0, 9.0], "the slowest rank's");
        assert_eq!((end.peak_flops, end.peak_threads), (vec![Some(20.0), Some(40.0)], 4), "the sum over hosts");
        assert_eq!((end.peak_rss_bytes, end.ranks.len(), end.kernels.as_str()), (Some(400), 4, "cpu"));
        // 3 s of work in 2 s on 2 cores, 2 s of it by the host's two ranks.
        assert_eq!(end.others_share, Some(0.25));
        assert!(end.failure.is_none());
        let mut world = world();
        (world[1].rss_bytes, world[2].peak_flops[1]) = (None, None);
        let end = merge(world, Vec::new());
        assert_eq!((end.peak_rss_bytes, end.peak_flops), (None, vec![Some(20.0), None]), "no sum of what is not known");
    }

    #[test]
    fn facts_of_the_gpus_of_all_ranks_are_kept() {
        let mut world = world();
        for (number, rank) in world.iter_mut().enumerate() {
            rank.peak_flops = vec![Some(600.0 + 100.0 * number as f64), Some(700.0)];
            rank.end.gpu = Some(GpuInfo {
                name: "H100".into(),
                data_sheet_flops: Some(989.0),
                used_bytes: Some(number as u64),
                products: vec!["a".into(), format!("b{}", number % 2)],
                timed_joules: Some(100.0),
                ..GpuInfo::default()
            });
        }
        let end = merge(world.clone(), Vec::new());
        assert_eq!(end.peak_flops, vec![Some(750.0), Some(700.0)], "of one GPU, not of all");
        let gpu = end.gpu.unwrap();
        assert_eq!((gpu.name.as_str(), gpu.data_sheet_flops, gpu.timed_joules), ("H100", Some(989.0), Some(400.0)));
        assert_eq!((gpu.used_bytes, gpu.products.join(" ").as_str()), (Some(3), "a b0 b1"));
        world[2].end.gpu.as_mut().unwrap().timed_joules = None;
        world[3].end.gpu.as_mut().unwrap().name = "H200".into();
        let gpu = merge(world, Vec::new()).gpu.unwrap();
        assert_eq!((gpu.timed_joules, gpu.name.as_str()), (None, "H100 and H200"), "no sum of what is not known");
    }

    #[test]
    fn the_cause_is_what_a_rank_found_and_the_others_say_where() {
        let mut ranks = world();
        ranks[0].failure = failed(Standing::Heard, "rank 0: all_reduce number 7 of data: rank 3 is gone", &[3]);
        ranks[3].failure = failed(Standing::Found, "rank 3 (pid 1003 on b) was ended by SIGKILL", &[]);
        let reason = merge(ranks, Vec::new()).failure.unwrap().reason;
        let wanted = "rank 3 (pid 1003 on b) was ended by SIGKILL; rank 0: all_reduce number 7 of data: rank 3 is gone";
        assert_eq!(reason, wanted);
        let mut ranks = world();
        ranks[1].failure = failed(Standing::Heard, "rank 1 did not end", &[]);
        ranks[2].failure = failed(Standing::Stalled, "rank 2: all_gather number 4 of data: waited 3 s for [1]", &[1]);
        let reason = merge(ranks, Vec::new()).failure.unwrap().reason;
        assert!(reason.starts_with("rank 2: all_gather number 4"), "{reason}");
        assert!(reason.ends_with("; rank 1 is process 1001 on a"), "{reason}");
    }
}

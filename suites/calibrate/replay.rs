//! The collectives of a step without the step: what is left of a call's time in training when this is taken away is what
//! ranks wait for each other.

use std::sync::Arc;
use std::time::Instant;
use zbench_collectives::{Collective, CollectiveKind, CommError, Communicator, group};
use zbench_engine::config::Cell;
use zbench_engine::run::launch_ranks::kernels;
use zbench_kernels::threads::spawn;
use zbench_kernels::{Kernels, View, ViewMut};

/// Times over the list; the first finds its memory and does not count.
const REPEATS: usize = 9;

/// Seconds of these collectives, least disturbed, among the ranks of a cell, all of which are threads of this process, one after the other.
///
/// # Errors
/// What failed, in words.
pub fn seconds(cell: &Cell, calls: &[Collective]) -> Result<f64, String> {
    let kernels = kernels(cell, &zbench_host::devices::machine).map_err(|error| error.to_string())?;
    let members = group("replay", kernels.clone(), cell.parallel.stall).map_err(|error| error.to_string())?;
    let ran: Vec<Result<Vec<f64>, String>> = std::thread::scope(|scope| {
        let one = |(member, kernels): (_, Arc<dyn Kernels>)| {
            spawn::start_scoped(scope, "rank", move || rank(&member, &*kernels, calls))
        };
        let threads: Vec<_> = members.into_iter().zip(kernels).map(one).collect();
        // A rank that has no thread has left the group, so that the others do not wait for it.
        let ended = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<Vec<f64>, String>>>| match thread
        {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err("a rank panicked".into())),
            Err(error) => Err(format!("a rank's thread cannot be started: {error}")),
        };
        threads.into_iter().map(ended).collect()
    });
    let times: Vec<Vec<f64>> = ran.into_iter().collect::<Result<_, _>>()?;
    // A round lasts as long as its slowest rank takes.
    let slowest = (1..REPEATS).map(|round| times.iter().map(|of_rank| of_rank[round]).fold(0.0, f64::max));
    Ok(slowest.min_by(f64::total_cmp).unwrap_or(0.0))
}

fn rank(comm: &dyn Communicator, kernels: &dyn Kernels, calls: &[Collective]) -> Result<Vec<f64>, String> {
    let _settled = kernels.pin_thread();
    let len = |call: &Collective| call.bytes as usize / 4;
    let most = calls.iter().map(len).max().unwrap_or(0);
    let mut large: Vec<f32> = (0..most).map(|i| (i * 7919 % 1021) as f32 / 1021.0 - 0.5).collect();
    let mut part: Vec<f32> = large[..most / comm.size()].to_vec();
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        comm.barrier().map_err(|error| error.to_string())?;
        let begin = Instant::now();
        for call in calls {
            perform(comm, call, &mut large[..len(call)], &mut part).map_err(|error| error.to_string())?;
        }
        times.push(begin.elapsed().as_secs_f64());
        // Sums grow from round to round; not into numbers that are slow.
        large.iter_mut().for_each(|x| *x = x.clamp(-0.5, 0.5));
    }
    Ok(times)
}

fn perform(comm: &dyn Communicator, call: &Collective, large: &mut [f32], part: &mut [f32]) -> Result<(), CommError> {
    let part = &mut part[..large.len() / comm.size()];
    match (call.kind, call.in_place) {
        (CollectiveKind::AllGather, true) => comm.all_gather_in_place(ViewMut::of(large)),
        (CollectiveKind::AllGather, false) => comm.all_gather(View::of(part), ViewMut::of(large)),
        (CollectiveKind::ReduceScatter, true) => comm.reduce_scatter_in_place(ViewMut::of(large)),
        (CollectiveKind::ReduceScatter, false) => comm.reduce_scatter(View::of(large), ViewMut::of(part), false),
        _ => comm.all_reduce(ViewMut::of(large)),
    }
}

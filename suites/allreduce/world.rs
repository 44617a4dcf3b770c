//! The seam between the test and whoever makes ranks: everything else works on a communicator and does not know where it
//! came from.

use super::args::AllreduceArgs;
use super::bench::Member;
use super::{BenchError, bench};
use crate::runner::machine;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use zbench_engine::comm::{CommError, Communicator, group};
use zbench_kernels::{Arena, Cpu, Kernels};

/// Ranks where nobody says how many.
const RANKS: usize = 2;
/// The share of the available memory that buffers may take.
const MEMORY_SHARE: f64 = 0.8;

/// What world is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What moves the bytes.
    pub backend: String,
    /// How many ranks.
    pub ranks: usize,
    /// Threads of a rank's kernels.
    pub threads: usize,
    /// Longest wait for other ranks.
    pub timeout: Duration,
}

impl Wanted {
    /// From the command line.
    ///
    /// # Errors
    /// What this version does not have, or what contradicts itself.
    pub fn new(args: &AllreduceArgs) -> Result<Wanted, String> {
        let nccl = &args.nccl;
        let product = match (nccl.nthreads, nccl.ngpus) {
            (None, None) => None,
            (t, g) => Some(t.unwrap_or(1) as usize * g.unwrap_or(1) as usize),
        };
        if let (Some(ranks), Some(product)) = (args.ranks, product)
            && ranks != product
        {
            return Err(format!("--ranks {ranks} and -t, -g say {product}; give one of them"));
        }
        let ranks = args.ranks.or(product).unwrap_or(RANKS);
        if ranks == 0 || ranks > 4096 {
            return Err(format!("--ranks {ranks}: from 1 to 4096"));
        }
        if args.backend != "local" {
            return Err(format!("--backend `{}` is not in this build; it has local (ranks as threads)", args.backend));
        }
        if args.processes {
            return Err("--processes is not in this build; ranks are threads".into());
        }
        if !["auto", "direct"].contains(&args.algorithm.as_str()) {
            return Err(format!(
                "--algorithm `{}`: backend local has auto and direct, which are the same",
                args.algorithm
            ));
        }
        let link = [args.link_bandwidth.map(|_| "--link-bandwidth"), args.link_latency.map(|_| "--link-latency")];
        let link = link.into_iter().chain([args.ranks_per_node.map(|_| "--ranks-per-node")]).flatten().next();
        if let Some(flag) = link {
            return Err(format!("{flag}: emulated links are not in this build"));
        }
        let threads = args.threads.unwrap_or((machine::cores() / ranks).max(1));
        if threads == 0 {
            return Err("--threads 0: a rank needs a thread".into());
        }
        Ok(Wanted { backend: args.backend.clone(), ranks, threads, timeout: nccl.timeout })
    }
}

/// Runs `work` on every rank of the world that are this process's, and returns what each of them made of it.
///
/// # Errors
/// The first cause, where ranks failed: not what the others heard of it.
pub fn run<T: Send>(
    wanted: &Wanted,
    work: &(dyn Fn(&Member<'_>) -> Result<T, BenchError> + Sync),
) -> Result<Vec<T>, BenchError> {
    let kernels = (0..wanted.ranks).map(|_| Arc::new(Cpu::new(wanted.threads)) as Arc<dyn Kernels>).collect();
    let arenas: Vec<Arena> = (0..wanted.ranks).map(|_| Arena::host(None)).collect::<Result<Vec<_>, _>>()?;
    let available = machine::memory_bytes("MemAvailable").unwrap_or(1 << 30);
    let memory_bytes = (available as f64 * MEMORY_SHARE) as u64 / wanted.ranks as u64;
    let (cache_bytes, host) = (machine::last_level_cache_bytes(), machine::host_name());
    let device = machine::cpu_model().unwrap_or_else(|| "unknown processor".into());
    let formed = "threads of one process";
    let comms = group("world", kernels, wanted.timeout)?;
    // Arenas outlive all threads: a rank that fails takes no memory away under those that still read it.
    let results: Vec<Result<T, BenchError>> = std::thread::scope(|scope| {
        let start = |(comm, arena)| {
            let member = (comm, arena, host.as_str(), device.as_str());
            scope.spawn(move || {
                let (comm, arena, host, device): (Box<dyn Communicator>, &Arena, &str, &str) = member;
                let member = Member {
                    world: &*comm,
                    arena,
                    formed,
                    threads: wanted.threads,
                    local_ranks: wanted.ranks,
                    memory_bytes,
                    cache_bytes,
                    host,
                    device,
                };
                one(&member, work)
            })
        };
        let comms = comms.into_iter().map(|comm| Box::new(comm) as Box<dyn Communicator>);
        let threads: Vec<_> = comms.zip(&arenas).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(BenchError::Impossible("a rank panicked".into())))
        };
        threads.into_iter().map(join).collect()
    });
    cause(results)
}

/// One rank: whatever ends it ends the others too, which hear the reason.
fn one<T>(member: &Member<'_>, work: &(dyn Fn(&Member<'_>) -> Result<T, BenchError> + Sync)) -> Result<T, BenchError> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| work(member))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
        Err(BenchError::Impossible(format!("rank {} panicked: {text}", member.world.rank())))
    });
    if let Err(error) = &result {
        member.world.abort(&error.to_string());
    }
    result
}

/// All results, or the first error that is no echo of another rank's.
fn cause<T>(results: Vec<Result<T, BenchError>>) -> Result<Vec<T>, BenchError> {
    let is_echo = |error: &BenchError| matches!(error, BenchError::Comm(CommError::Aborted { .. }));
    let (mut done, mut first, mut echo) = (Vec::new(), None, None);
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error) if is_echo(&error) => drop(echo.get_or_insert(error)),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    first.or(echo).map_or(Ok(done), Err)
}

/// The whole test on every rank of this process.
pub fn test(
    wanted: &Wanted,
    plan: &super::plan::Plan,
    watch: &dyn super::Watch,
) -> Result<Vec<bench::Finish>, BenchError> {
    run(wanted, &|member| bench::rank_main(member, plan, watch))
}

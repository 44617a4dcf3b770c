//! Inside a rank's process: reads its job, meets the others, trains, says what was measured.

use crate::child_process::{BROKEN, read_job, say, stop_order};
use crate::gpu_info::GpuInfo;
use crate::loading::Watch;
use crate::protocol::{self, Event, RankEnd, RankFailure, RankJob, RankResult};
use crate::turns::token::Token;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zbench_collectives::{CommError, Communicator, HostStaged, RendezvousError};
use zbench_engine::compute::error::StepError;
use zbench_engine::compute::hardware;
use zbench_engine::config::{Backend, DeviceKind};
use zbench_engine::observe::outcome::{Cause, Happening, LoadPhase, Report};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::{Ended, RankError, Standing, groups, train_rank};
use zbench_engine::run::train_loop::{Control, Pace};
use zbench_host::devices;
use zbench_host::machine::{self, Busy};
use zbench_host::sampling::TimedEnergy;
use zbench_kernels::{Arena, Kernels};
use zbench_launch::{Choice, LaunchError, Options, Source as Launcher, World};

/// The whole life of a rank's process; its exit status.
pub fn main() -> u8 {
    stop_order();
    say(&Event::Ready);
    let job: RankJob = match read_job(&mut std::io::stdin()) {
        Ok(job) => job,
        Err(reason) => {
            zbench_host::say!("{reason}");
            return BROKEN;
        }
    };
    let said = run(&job, None, &|event| say(event));
    say(&Event::Rank(Box::new(said)));
    0
}

/// Trains one rank, over `comm` where the caller has one already, and says how it went.
pub fn run(job: &RankJob, comm: Option<Box<dyn Communicator>>, say: &(dyn Fn(&Event) + Sync)) -> RankResult {
    let _span = tracing::info_span!(target: "zbench::span", "rank", rank = job.rank).entered();
    let host = machine::host_name();
    let mut said = RankResult { host: host.clone(), ..RankResult::default() };
    let watch = Watch::default();
    let on_gpu = job.cell.hardware.device == DeviceKind::Cuda && !devices::on_host();
    let number = devices::of_rank(job.seat.index);
    let energy = Mutex::new(TimedEnergy::default());
    let probe = |moment: LoadPhase| {
        watch.tell(moment);
        if let (LoadPhase::StepEnds { timed }, true) = (moment, on_gpu) {
            lock(&energy).step(timed, devices::reading(number).and_then(|reading| reading.energy_mj.ok()));
        }
    };
    match train(job, comm, say, (&watch, &probe), &mut said) {
        Ok(ended) => {
            let (end, failure) = match ended.result {
                Ok((report, kernels)) => {
                    said.kernels = kernels;
                    (RankEnd::from(&report), None)
                }
                Err(error) => (RankEnd::of_ledgers(job.rank, &ended.ledgers), Some(failure(error, job.rank, &host))),
            };
            (said.end, said.failure) = (end, failure);
        }
        Err(failure) => {
            let reason = format!("rank {} on {host}: {}", job.rank, failure.reason);
            said.failure = Some(RankFailure { reason, ..failure });
        }
    }
    if job.cell.hardware.device == DeviceKind::Cuda {
        said.end.gpu = Some(GpuInfo { timed_joules: lock(&energy).joules(), ..GpuInfo::of_cell(&job.cell, number) });
    }
    if let Some(seen) = watch.resident() {
        said.end.loading = said.end.loading.take().map(|loading| loading.of_process(seen));
    }
    (said.end.rank, said.end.pid) = (job.rank, Some(std::process::id()));
    said.end.host = machine::host_hash(&host);
    said.swap_bytes = machine::status_bytes("VmSwap");
    said.own_seconds = machine::own_seconds();
    said
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The measurements around the training of a rank, and its end.
fn train(
    job: &RankJob,
    comm: Option<Box<dyn Communicator>>,
    say: &(dyn Fn(&Event) + Sync),
    (watch, probe): (&Watch, &(dyn Fn(LoadPhase) + Sync)),
    said: &mut RankResult,
) -> Result<Ended<Report>, RankFailure> {
    let cell = &job.cell;
    let kernels: Arc<dyn Kernels> = hardware::kernels(cell, job.seat, &|seat| devices::machine(devices::of_rank(seat)))
        .map_err(|error| error.to_string())?;
    let plan = Plan::new(cell, &*kernels).map_err(|error| error.to_string())?;
    let cores = if job.cores.is_empty() { machine::core_numbers() } else { job.cores.clone() };
    let measure = || match cell.hardware.device {
        DeviceKind::Cuda => devices::measured_flops(devices::of_rank(job.seat.index), cell.precision.compute).ok(),
        DeviceKind::Cpu => machine::peak_flops(&cores, job.peak_threads, cell.precision.compute, job.peak_seconds),
    };
    // Each rank measures its own GPU, the first one of a host its cores.
    let measures = job.peak_threads > 0 || cell.hardware.device == DeviceKind::Cuda;
    if measures {
        // Before the ranks meet, so that the cores are this rank's alone.
        (said.peak_flops, said.peak_threads) = (vec![measure()], job.peak_threads);
        said.peak_quota = machine::quota_below(job.peak_threads);
    }
    let meets = comm.is_none();
    let (capacity, planned) = (cell.memory.capacity, plan.device_peak(job.rank));
    let shared = cell.parallel.backend == Backend::Shm;
    let (comm, arena) = match comm {
        Some(comm) => (comm, kernels.arena_for(capacity, planned, 1).map_err(|error| error.to_string())?),
        // NCCL takes memory of the device when it connects; what is free after that is the arena's.
        None if cell.parallel.backend == Backend::Nccl => {
            let groups = groups(plan.mesh, job.rank);
            let (world, options) = meeting(job)?;
            let comm = zbench_launch::connect_gpus(&world, kernels.clone(), &groups, &options).map_err(not_met)?;
            let arena = kernels.arena_for(capacity, planned, 1).map_err(|error| error.to_string())?;
            let comm: Box<dyn Communicator> = Box::new(HostStaged::new(comm, kernels.clone(), arena.clone()));
            (comm, arena)
        }
        None => {
            let arena =
                if shared { Arena::shared_for(capacity, planned) } else { kernels.arena_for(capacity, planned, 1) };
            let arena = arena.map_err(|error| error.to_string())?;
            (connect(job, kernels.clone(), &arena)?, arena)
        }
    };
    if meets {
        say(&Event::Met);
    }
    let busy = Busy::start(cores.len());
    let tell = |happening: &Happening| say(&protocol::event(happening));
    let account = arena.clone();
    let trace = protocol::tracing(job.trace_steps);
    let token = job.turns.as_ref().map(|place| Token::new(place, cell.parallel.ranks));
    let pace = token.as_ref().map(|token| token as &dyn Pace);
    let control = Control { stop: super::child_process::stop_order(), tell: &tell, trace, pace };
    let ended = train_rank(cell, &plan, comm, kernels, arena, control, Some(probe));
    said.busy = busy.filter(|_| job.turns.is_none()).and_then(Busy::seconds);
    let earlier = watch.resident().map_or(0, |seen| seen.earlier);
    said.rss_bytes = resident(shared.then(|| account.high_water()), earlier);
    if measures {
        said.peak_flops.push(measure());
    }
    Ok(ended)
}

/// Meets the other ranks where the job says.
fn connect(job: &RankJob, kernels: Arc<dyn Kernels>, arena: &Arena) -> Result<Box<dyn Communicator>, RankFailure> {
    let choice = match job.cell.parallel.backend {
        Backend::Shm => Choice::Shm,
        Backend::Tcp => Choice::Tcp,
        Backend::Mpi => Choice::Mpi,
        Backend::Nccl => Choice::Nccl,
        Backend::Local | Backend::Device => {
            return Err("ranks of this backend are threads, not processes".to_string().into());
        }
    };
    let (world, options) = meeting(job)?;
    zbench_launch::connect(&world, choice, kernels, arena, &options).map_err(not_met)
}

/// Why a rank has not met the others. That another one is missing is no cause where that one says why.
fn not_met(error: LaunchError) -> RankFailure {
    let (standing, missing) = match &error {
        LaunchError::Rendezvous(error) | LaunchError::Comm(CommError::Rendezvous(error)) => match error {
            RendezvousError::Lost { rank, .. } => (Standing::Heard, vec![*rank]),
            RendezvousError::Ended { .. } => (Standing::Heard, Vec::new()),
            RendezvousError::Missing { missing, .. } => (Standing::Stalled, missing.clone()),
            _ => (Standing::Found, Vec::new()),
        },
        _ => (Standing::Found, Vec::new()),
    };
    RankFailure { missing, ..RankFailure::new(standing, None, error.to_string()) }
}

/// Who the ranks are and where they meet, and how long they wait.
fn meeting(job: &RankJob) -> Result<(World, Options), String> {
    let parallel = &job.cell.parallel;
    let (host, port, token) = job.meeting.clone().ok_or("the job says no place to meet")?;
    let world = World {
        rank: job.rank,
        size: parallel.ranks,
        local_rank: Some(job.seat.index),
        local_size: Some(job.seat.ranks),
        host: Some(host),
        port,
        token,
        secret: true,
        source: Launcher::Ours,
        launcher: String::new(),
        notes: Vec::new(),
    };
    Ok((world, Options { timeout: parallel.stall, stall: parallel.stall, quiet: true, stop: None }))
}

/// The most this process had resident. In a world of shared memory other ranks' pages count here too as soon as this process
/// has read them; there it is what is its own now, and of its arena all that was ever touched.
fn resident(own_shared: Option<u64>, earlier: u64) -> Option<u64> {
    match own_shared {
        // Where loading was watched, the system's peak began anew then.
        None => Some(machine::status_bytes("VmHWM")?.max(earlier)),
        Some(own) => Some(machine::status_bytes("RssAnon")? + machine::status_bytes("RssFile")? + own),
    }
}

/// An engine's error as others are told of it.
fn failure(error: RankError, rank: usize, host: &str) -> RankFailure {
    let standing = error.standing();
    let missing = match &error {
        RankError::Step(StepError::Comm(CommError::Stalled { missing, .. })) => missing.clone(),
        RankError::Step(StepError::Comm(CommError::Aborted { rank, .. })) => vec![*rank],
        _ => Vec::new(),
    };
    let cause = error.cause(rank);
    let (status, source) = protocol::status_of(&cause);
    let reason = match &cause {
        Cause::Failed { rank, reason } => format!("rank {rank} on {host}: {reason}"),
        other => other.to_string(),
    };
    RankFailure { standing, status, source, reason, missing }
}

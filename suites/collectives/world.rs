//! The seam between the test and whoever makes ranks: everything else works on a communicator and does not know where it
//! came from.

use super::bench::{self, Finish};
use super::gpus::{self, Nccl, RankDevice};
use super::member::Member;
use super::place::Place;
use super::plan::Plan;
use super::world_spec::{LaunchMode, MemoryKind, WorldSpec};
use super::{CollectiveError, Watch};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zbench_collectives::compose::Composed;
use zbench_collectives::link;
use zbench_collectives::{CommError, Communicator, Shared, group};
use zbench_host::devices;
use zbench_kernels::threads::spawn;
use zbench_kernels::{Arena, Cpu, Kernels};
use zbench_launch::{Choice, Exit, Io, Options, Start, World};

/// How long ranks that live may go on after one has died: to notice, to say so, and to write down what they have.
const GRACE: Duration = Duration::from_secs(3);

/// The whole test on every rank that is this process's.
///
/// # Errors
/// The first cause, where ranks failed: not what the others heard of it.
pub fn test(wanted: &WorldSpec, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Finish>, CollectiveError> {
    match &wanted.way {
        LaunchMode::Member(world, choice) => member(wanted, world, *choice, plan, watch).map(|finish| vec![finish]),
        LaunchMode::Threads | LaunchMode::Start => by_threads(wanted, plan, watch),
    }
}

/// The communicator that is measured, and the one for control messages where that is another: these must arrive unchanged.
struct Communicators {
    comm: Box<dyn Communicator>,
    control: Option<Box<dyn Communicator>>,
}

/// Adds the emulated links and the composed algorithm to a communicator of the world.
fn wrapped(
    comm: Box<dyn Communicator>,
    control: Option<Box<dyn Communicator>>,
    wanted: &WorldSpec,
    device: &RankDevice,
) -> Result<Communicators, CommError> {
    let comm = link::wrap(comm, wanted.link.as_ref())?;
    let Some((algorithm, node)) = wanted.composed else { return Ok(Communicators { comm, control }) };
    let control = control.map_or_else(|| comm.split(0, comm.rank(), "talk"), Ok)?;
    let comm = Box::new(Composed::new(comm, algorithm, node, device.kernels.clone(), device.arena.clone())?);
    Ok(Communicators { comm, control: Some(control) })
}

impl RankDevice {
    /// On this host's cores, with buffers in this arena.
    fn here(wanted: &WorldSpec, arena: Arena) -> RankDevice {
        RankDevice {
            kernels: Arc::new(Cpu::new(wanted.threads)),
            host_arena: arena.clone(),
            arena,
            place: Place::here(),
        }
    }

    fn member<'a>(
        &'a self,
        comms: &'a Communicators,
        formed: &'a str,
        local_ranks: usize,
        wanted: &WorldSpec,
    ) -> Member<'a> {
        let RankDevice { kernels, arena, host_arena, place } = self;
        let world = &*comms.comm;
        let control = comms.control.as_ref().map_or(world, |control| &**control);
        Member {
            world,
            control,
            kernels: &**kernels,
            arena,
            host_arena,
            place,
            formed,
            threads: wanted.threads,
            local_ranks,
        }
    }
}

/// Gives the calling thread a core of its own where there is one for every rank here, as mpirun does: two ranks on one core
/// wait for each other. Ranks of several threads, and those of a launcher that has bound them already, stay as they are.
fn bind(wanted: &WorldSpec, local_rank: usize, here: usize) -> bool {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let Some(core) = cores.get(local_rank).filter(|_| wanted.bind && wanted.threads == 1 && here <= cores.len()) else {
        return false;
    };
    let mut own = CpuSet::new();
    own.set(*core);
    sched_setaffinity(None, &own).is_ok()
}

fn formed(what: &str, bound: bool) -> String {
    if bound { format!("{what}, each bound to a core") } else { what.to_owned() }
}

/// This process is a rank of a launch.
fn member(
    wanted: &WorldSpec,
    world: &World,
    choice: Choice,
    plan: &Plan,
    watch: &dyn Watch,
) -> Result<Finish, CollectiveError> {
    let device = match (wanted.on, choice) {
        (MemoryKind::Nccl, _) => gpus::rank_device(plan, devices::of_rank(world.local_rank.unwrap_or(world.rank)), 1)?,
        (_, Choice::Mpi) => RankDevice::here(wanted, Arena::host(None)?),
        _ => RankDevice::here(wanted, Arena::shared(None)?),
    };
    let WorldSpec { timeout, quiet, .. } = *wanted;
    let options = Options { timeout, stall: timeout, quiet, stop: Some(wanted.stop.clone()) };
    let comm = zbench_launch::connect(world, choice, device.kernels.clone(), &device.arena, &options)?;
    let comms = wrapped(comm, None, wanted, &device)?;
    let bound = world.local_rank.zip(world.local_size).is_some_and(|(rank, here)| bind(wanted, rank, here));
    let gpus = if wanted.on == MemoryKind::Nccl { " with a GPU" } else { "" };
    let formed = formed(&format!("a process{gpus} each, started by {}", world.source.name()), bound);
    one(&device.member(&comms, &formed, 1, wanted), plan, watch)
}

/// Ranks of a group of threads.
fn boxed(ranks: Vec<Shared>) -> impl Iterator<Item = Box<dyn Communicator>> {
    ranks.into_iter().map(|rank| -> Box<dyn Communicator> { Box::new(rank) })
}

/// All ranks are threads.
fn by_threads(wanted: &WorldSpec, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Finish>, CollectiveError> {
    let (ranks, timeout) = (wanted.ranks, wanted.timeout);
    let arena = |rank: usize| {
        let of =
            |error| CollectiveError::Unsupported(format!("rank {rank} of {ranks} threads of one process: {error}"));
        Arena::host(None).map_err(of)
    };
    let device = |rank: usize| match wanted.on {
        MemoryKind::Host => Ok(RankDevice::here(wanted, arena(rank)?)),
        MemoryKind::Device => gpus::rank_device(plan, 0, ranks),
        MemoryKind::Nccl => gpus::rank_device(plan, rank, 1),
    };
    let rank_devices: Vec<RankDevice> = (0..ranks).map(device).collect::<Result<Vec<_>, CollectiveError>>()?;
    let kernels: Vec<Arc<dyn Kernels>> = rank_devices.iter().map(|device| device.kernels.clone()).collect();
    // What ranks tell each other lies on the host; so does all that is measured there.
    let control = || group("talk", (0..ranks).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect(), timeout);
    let nccl = if wanted.on == MemoryKind::Nccl { Some(Nccl::load()?) } else { None };
    let comms: Vec<_> = match wanted.on {
        MemoryKind::Host => boxed(group("world", kernels, timeout)?).map(|comm| (comm, None)).collect(),
        MemoryKind::Device => boxed(group("world", kernels, timeout)?).zip(boxed(control()?).map(Some)).collect(),
        // Each rank's thread makes its NCCL communicator over this one.
        MemoryKind::Nccl => boxed(control()?).map(|control| (control, None)).collect(),
    };
    let what = match wanted.on {
        MemoryKind::Host => "threads of one process",
        MemoryKind::Device if devices::on_host() => {
            "threads of one process that share the processor as they would a GPU"
        }
        MemoryKind::Device => "threads of one process that share a GPU",
        MemoryKind::Nccl => "threads of one process with a GPU each",
    };
    type Comms = (Box<dyn Communicator>, Option<Box<dyn Communicator>>);
    let work = |rank: usize, (comm, control): Comms, device: &RankDevice| {
        let bound = bind(wanted, rank, ranks);
        let (comm, control) = match &nccl {
            Some(nccl) => (nccl.join(&*comm, comm.rank(), device.kernels.clone(), timeout)?, Some(comm)),
            None => (comm, control),
        };
        let comms = wrapped(comm, control, wanted, device)?;
        one(&device.member(&comms, &formed(what, bound), ranks, wanted), plan, watch)
    };
    // Arenas outlive all threads: a rank that fails takes no memory away under those that still read it.
    let results = std::thread::scope(|scope| {
        let start = |(rank, (comms, device))| {
            let work = &work;
            let started = spawn::start_scoped(scope, &format!("rank {rank}"), move || work(rank, comms, device));
            started.map_err(|error| CollectiveError::Thread { rank, error })
        };
        let threads: Vec<_> = comms.into_iter().zip(&rank_devices).enumerate().map(start).collect();
        // A rank that has no thread has left the group, so that the others do not wait for it.
        let join =
            |thread: Result<std::thread::ScopedJoinHandle<'_, Result<Finish, CollectiveError>>, CollectiveError>| {
                thread?.join().unwrap_or_else(|_| Err(CollectiveError::Unsupported("a rank panicked".into())))
            };
        threads.into_iter().map(join).collect()
    });
    cause(results)
}

/// One rank: whatever ends it ends the others too, which hear the reason.
fn one(member: &Member<'_>, plan: &Plan, watch: &dyn Watch) -> Result<Finish, CollectiveError> {
    let work = AssertUnwindSafe(|| bench::rank_main(member, plan, watch));
    let result = std::panic::catch_unwind(work).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
        Err(CollectiveError::Panic { rank: member.world.rank(), text })
    });
    if let Err(error) = &result {
        member.world.abort(&error.to_string());
        member.control.abort(&error.to_string());
    }
    result
}

/// Whether an error only says that another rank had one.
pub fn is_consequence(error: &CollectiveError) -> bool {
    matches!(error, CollectiveError::Comm(CommError::Aborted { .. }))
}

/// All results, or the first error that is no echo of another rank's.
fn cause(results: Vec<Result<Finish, CollectiveError>>) -> Result<Vec<Finish>, CollectiveError> {
    let (mut done, mut first, mut echo) = (Vec::new(), None, None);
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error) if is_consequence(&error) => drop(echo.get_or_insert(error)),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    first.or(echo).map_or(Ok(done), Err)
}

/// Starts the ranks as processes of this program with the same arguments, and waits for them. The exit code of rank 0,
/// which prints and records, and what is to be said of ranks that ended otherwise.
///
/// # Errors
/// A process could not be started.
pub fn start(wanted: &WorldSpec, stop: &AtomicBool) -> Result<(Option<u8>, Vec<String>), zbench_launch::LaunchError> {
    let program = std::env::current_exe().map_err(zbench_launch::LaunchError::system("the path of zbench itself"))?;
    let arguments = std::env::args_os().skip(1).collect();
    let ranks = zbench_launch::spawn(&Start::here(program, arguments, wanted.ranks, Io::Inherit)?)?;
    let exits = ranks.supervise(GRACE, stop);
    let first = exits.iter().find(|exit| exit.rank == 0).and_then(|exit| match exit.exit {
        Exit::Code(code) => u8::try_from(code).ok(),
        Exit::Signal(_) | Exit::Ended(_) => None,
    });
    let died = exits.iter().filter(|exit| !matches!(exit.exit, Exit::Code(_)));
    Ok((first, died.map(ToString::to_string).collect()))
}

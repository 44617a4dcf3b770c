//! The seam between the test and whoever makes ranks: everything else works on a communicator and does not know where it
//! came from.

use super::args::AllreduceArgs;
use super::bench::{self, Finish, Member};
use super::gpus::{self, Nccl, RankDevice};
use super::place::Place;
use super::plan::Plan;
use super::{CollectiveError, Watch};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zbench_engine::comm::compose::{Algorithm, Composed};
use zbench_engine::comm::link::{self, LinkSpec};
use zbench_engine::comm::{CommError, Communicator, Shared, group};
use zbench_engine::threads;
use zbench_host::{devices, machine};
use zbench_kernels::{Arena, Cpu, Kernels, MOST_THREADS};
use zbench_launch::{Choice, Exit, Io, Options, Start, World};

/// Ranks where nobody says how many.
const RANKS: usize = 2;
/// How long ranks that live may go on after one has died: to notice, to say so, and to write down what they have.
const GRACE: Duration = Duration::from_secs(3);

/// What makes the ranks.
#[derive(Clone, Debug)]
pub enum LaunchMode {
    /// All are threads of this process.
    Threads,
    /// This process is one of them.
    Member(World, Choice),
    /// This process starts them, and is none of them.
    Start,
}

/// In what memory the ranks' buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Their hosts'.
    Host,
    /// That of a GPU which they share.
    Device,
    /// That of a GPU which each has for itself.
    Nccl,
}

impl MemoryKind {
    /// What `--backend` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryKind::Host => "local",
            MemoryKind::Device => "device",
            MemoryKind::Nccl => "nccl",
        }
    }
}

/// What world is wanted.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// What makes the ranks.
    pub way: LaunchMode,
    /// In what memory their buffers lie.
    pub on: MemoryKind,
    /// How many ranks.
    pub ranks: usize,
    /// Ranks may be given cores of their own.
    pub bind: bool,
    /// Threads of a rank's kernels.
    pub threads: usize,
    /// Longest wait for other ranks.
    pub timeout: Duration,
    /// Whether rank 0 says what was decided.
    pub quiet: bool,
    /// Emulated links between nodes.
    pub link: Option<LinkSpec>,
    /// How some collectives are composed, and the ranks of a node.
    pub composed: Option<(Algorithm, usize)>,
}

impl WorldSpec {
    /// From the command line and the launcher's variables.
    ///
    /// # Errors
    /// What this build does not have, or what contradicts itself.
    pub fn new(args: &AllreduceArgs, launched: Option<World>, quiet: bool) -> Result<WorldSpec, String> {
        // A single process that a launcher started may start ranks itself. One that zbench started is the rank, and would start
        // itself again without end.
        let launched = launched.filter(|world| world.size > 1 || world.source == zbench_launch::Source::Ours);
        let asked = ranks(args)?;
        let way = way(args, launched)?;
        let ranks = match &way {
            LaunchMode::Member(world, _) => world.size,
            _ => asked.unwrap_or(RANKS),
        };
        if let (LaunchMode::Member(world, _), Some(asked)) = (&way, asked)
            && asked != ranks
        {
            let source = world.source.name();
            return Err(format!(
                "{asked} ranks are asked for, and {source} started {ranks}; leave --ranks, -t and -g out"
            ));
        }
        let here = match &way {
            LaunchMode::Member(world, _) => world.local_size.unwrap_or(world.size),
            _ => ranks,
        };
        let on = match args.backend.as_deref() {
            Some("device") => MemoryKind::Device,
            Some("nccl") => MemoryKind::Nccl,
            _ => MemoryKind::Host,
        };
        on_gpus(args, on)?;
        let threads = match on {
            MemoryKind::Host => args.threads.unwrap_or((machine::cores() / here).max(1)),
            MemoryKind::Device | MemoryKind::Nccl => 1,
        };
        if threads == 0 {
            return Err("--threads 0: a rank needs a thread".into());
        }
        if here.saturating_mul(threads) > MOST_THREADS {
            return Err(format!(
                "--threads {threads}: {here} ranks on this machine would have more than {MOST_THREADS} threads together; lower \
                 it or --ranks"
            ));
        }
        let link = link(args)?;
        let composed = composed(args)?;
        let nodes = link.map(|link| link.ranks_per_node).or(composed.map(|(_, node)| node));
        if nodes.is_some_and(|node| node == 0 || !ranks.is_multiple_of(node)) {
            let node = nodes.unwrap_or(0);
            return Err(format!("--ranks-per-node {node} does not divide {ranks} ranks; write a divisor of it"));
        }
        // NCCL's own threads keep to the cores of the thread that starts them, and would share its one.
        let bind = !args.no_bind && on == MemoryKind::Host;
        Ok(WorldSpec { way, on, ranks, threads, bind, timeout: args.nccl.timeout, quiet, link, composed })
    }
}

/// How many ranks the command line says, if it does.
fn ranks(args: &AllreduceArgs) -> Result<Option<usize>, String> {
    let product = match (args.nccl.nthreads, args.nccl.ngpus) {
        (None, None) => None,
        (t, g) => Some(t.unwrap_or(1) as usize * g.unwrap_or(1) as usize),
    };
    match (args.ranks, product) {
        (Some(ranks), Some(product)) if ranks != product => {
            Err(format!("--ranks {ranks} and -t, -g say {product}; give one of them"))
        }
        (Some(ranks), _) | (None, Some(ranks)) if !(1..=4096).contains(&ranks) => {
            Err(format!("--ranks {ranks}: from 1 to 4096"))
        }
        (ranks, product) => Ok(ranks.or(product)),
    }
}

/// What has no meaning where buffers lie on GPUs.
fn on_gpus(args: &AllreduceArgs, on: MemoryKind) -> Result<(), String> {
    let name = on.name();
    if on == MemoryKind::Host {
        return Ok(());
    }
    if args.threads.is_some() {
        return Err(format!("--threads: kernels of a GPU have none to share out; leave it out with --backend {name}"));
    }
    if args.link_bandwidth.is_some() {
        return Err(format!(
            "--link-bandwidth: a call of --backend {name} returns before a GPU has done it, so no emulated link can delay it; \
             emulate links over local, shm or tcp"
        ));
    }
    let pairs = args.bisect || args.collective.as_deref().is_some_and(|all| all.split(',').any(|name| name == "pairs"));
    if on == MemoryKind::Device && pairs {
        return Err(
            "--backend device: its ranks share one GPU, so there are no links for pairs and --bisect to judge; use \
                    --backend nccl"
                .into(),
        );
    }
    if on == MemoryKind::Device && args.expect.is_some() {
        return Err(
            "--expect: ranks of --backend device share one GPU, and published figures are of links between GPUs; use \
                    --backend nccl"
                .into(),
        );
    }
    if args.save.is_some() && devices::on_host() {
        let on_host = devices::ON_HOST;
        return Err(format!(
            "--save: with {on_host}=1 the processor runs the kernels, and its times say nothing of a GPU"
        ));
    }
    Ok(())
}

fn way(args: &AllreduceArgs, launched: Option<World>) -> Result<LaunchMode, String> {
    let backend = args.backend.as_deref();
    let choice = match backend {
        None | Some("auto" | "local" | "device") => Choice::Auto,
        Some("shm") => Choice::Shm,
        Some("tcp") => Choice::Tcp,
        Some("mpi") => Choice::Mpi,
        Some("nccl") => Choice::Nccl,
        Some(other) => return Err(format!("--backend `{other}`: there are local, shm, tcp, mpi, nccl and device")),
    };
    match (launched, backend) {
        (Some(world), Some(name @ ("local" | "device"))) => Err(format!(
            "--backend {name} runs all ranks in one process, and {} started {}; each would measure alone. {}, or start zbench \
             by itself",
            world.source.name(),
            world.size,
            if name == "local" { "Leave --backend out" } else { "Use --backend nccl" }
        )),
        (Some(world), _) => Ok(LaunchMode::Member(world, choice)),
        (None, Some("mpi")) => {
            Err("--backend mpi: start it with mpirun, as mpirun -n 4 zbench allreduce --backend mpi".into())
        }
        (None, Some(name @ ("local" | "device"))) if args.processes => {
            Err(format!("--processes and --backend {name} exclude each other"))
        }
        (None, Some("shm" | "tcp")) => Ok(LaunchMode::Start),
        (None, _) if args.processes => Ok(LaunchMode::Start),
        (None, _) => Ok(LaunchMode::Threads),
    }
}

fn link(args: &AllreduceArgs) -> Result<Option<LinkSpec>, String> {
    match (args.link_bandwidth, args.link_latency, args.ranks_per_node) {
        (None, None, _) => Ok(None),
        (None, Some(_), _) => Err("--link-latency needs --link-bandwidth too".into()),
        (Some(_), _, None) => Err("--link-bandwidth needs --ranks-per-node, which says where the nodes end".into()),
        (Some(bandwidth), latency, Some(ranks_per_node)) => {
            Ok(Some(LinkSpec { bandwidth, latency: latency.unwrap_or(0.0), ranks_per_node }))
        }
    }
}

fn composed(args: &AllreduceArgs) -> Result<Option<(Algorithm, usize)>, String> {
    let name = args.algorithm.as_str();
    match (Algorithm::find(name), args.ranks_per_node) {
        (Some(algorithm), Some(node)) => Ok(Some((algorithm, node))),
        (Some(_), None) => Err(format!("--algorithm {name} needs --ranks-per-node, which says where the nodes end")),
        (None, _) if name == "auto" => Ok(None),
        (None, _) => {
            let all = Algorithm::ALL.map(Algorithm::name).join(", ");
            Err(format!("--algorithm `{name}`: there are auto (the backend chooses by size), {all}"))
        }
    }
}

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

/// What is measured, and what ranks talk through where that is another: what they say must arrive as it is.
struct Dressed {
    comm: Box<dyn Communicator>,
    control: Option<Box<dyn Communicator>>,
}

/// Links and compositions over a communicator of the world.
fn dressed(
    comm: Box<dyn Communicator>,
    control: Option<Box<dyn Communicator>>,
    wanted: &WorldSpec,
    seat: &RankDevice,
) -> Result<Dressed, CommError> {
    let comm = link::wrap(comm, wanted.link.as_ref())?;
    let Some((algorithm, node)) = wanted.composed else { return Ok(Dressed { comm, control }) };
    let control = control.map_or_else(|| comm.split(0, comm.rank(), "talk"), Ok)?;
    let comm = Box::new(Composed::new(comm, algorithm, node, seat.kernels.clone(), seat.arena.clone())?);
    Ok(Dressed { comm, control: Some(control) })
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
        dressed: &'a Dressed,
        formed: &'a str,
        local_ranks: usize,
        wanted: &WorldSpec,
    ) -> Member<'a> {
        let RankDevice { kernels, arena, host_arena, place } = self;
        let world = &*dressed.comm;
        let control = dressed.control.as_ref().map_or(world, |control| &**control);
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
    let seat = match (wanted.on, choice) {
        (MemoryKind::Nccl, _) => gpus::seat(plan, devices::of_rank(world.local_rank.unwrap_or(world.rank)), 1)?,
        (_, Choice::Mpi) => RankDevice::here(wanted, Arena::host(None)?),
        _ => RankDevice::here(wanted, Arena::shared(None)?),
    };
    let options = Options { timeout: wanted.timeout, stall: wanted.timeout, quiet: wanted.quiet };
    let comm = zbench_launch::connect(world, choice, seat.kernels.clone(), &seat.arena, &options)?;
    let comm = dressed(comm, None, wanted, &seat)?;
    let bound = world.local_rank.zip(world.local_size).is_some_and(|(rank, here)| bind(wanted, rank, here));
    let gpus = if wanted.on == MemoryKind::Nccl { " with a GPU" } else { "" };
    let formed = formed(&format!("a process{gpus} each, started by {}", world.source.name()), bound);
    one(&seat.member(&comm, &formed, 1, wanted), plan, watch)
}

/// How a thread comes to its communicator.
enum Joining<'a> {
    /// It is there.
    Made { comm: Box<dyn Communicator>, control: Option<Box<dyn Communicator>> },
    /// It is made over the one of what ranks tell each other.
    Nccl { nccl: &'a Nccl, control: Box<dyn Communicator> },
}

impl Joining<'_> {
    fn join(self, wanted: &WorldSpec, seat: &RankDevice) -> Result<Dressed, CommError> {
        match self {
            Joining::Made { comm, control } => dressed(comm, control, wanted, seat),
            Joining::Nccl { nccl, control } => {
                let comm = nccl.join(&*control, control.rank(), seat.kernels.clone(), wanted.timeout)?;
                dressed(comm, Some(control), wanted, seat)
            }
        }
    }
}

/// Ranks of a group of threads.
fn boxed(ranks: Vec<Shared>) -> impl Iterator<Item = Box<dyn Communicator>> {
    ranks.into_iter().map(|rank| -> Box<dyn Communicator> { Box::new(rank) })
}

/// All ranks are threads.
fn by_threads(wanted: &WorldSpec, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Finish>, CollectiveError> {
    let (ranks, timeout) = (wanted.ranks, wanted.timeout);
    let arena = |rank: usize| {
        let of = |error| CollectiveError::Impossible(format!("rank {rank} of {ranks} threads of one process: {error}"));
        Arena::host(None).map_err(of)
    };
    let seat = |rank: usize| match wanted.on {
        MemoryKind::Host => Ok(RankDevice::here(wanted, arena(rank)?)),
        MemoryKind::Device => gpus::seat(plan, 0, ranks),
        MemoryKind::Nccl => gpus::seat(plan, rank, 1),
    };
    let seats: Vec<RankDevice> = (0..ranks).map(seat).collect::<Result<Vec<_>, CollectiveError>>()?;
    let kernels: Vec<Arc<dyn Kernels>> = seats.iter().map(|seat| seat.kernels.clone()).collect();
    // What ranks tell each other lies on the host; so does all that is measured there.
    let control = || group("talk", (0..ranks).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect(), timeout);
    let nccl = if wanted.on == MemoryKind::Nccl { Some(Nccl::load()?) } else { None };
    let made = |(comm, control)| Joining::Made { comm, control };
    let joining: Vec<Joining<'_>> = match (wanted.on, &nccl) {
        (MemoryKind::Device, _) => {
            boxed(group("world", kernels, timeout)?).zip(boxed(control()?).map(Some)).map(made).collect()
        }
        (_, Some(nccl)) => boxed(control()?).map(|control| Joining::Nccl { nccl, control }).collect(),
        (_, None) => boxed(group("world", kernels, timeout)?).map(|comm| made((comm, None))).collect(),
    };
    let what = match wanted.on {
        MemoryKind::Host => "threads of one process",
        MemoryKind::Device if devices::on_host() => {
            "threads of one process that share the processor as they would a GPU"
        }
        MemoryKind::Device => "threads of one process that share a GPU",
        MemoryKind::Nccl => "threads of one process with a GPU each",
    };
    let work = |rank: usize, joining: Joining<'_>, seat: &RankDevice| {
        let bound = bind(wanted, rank, ranks);
        let comm = joining.join(wanted, seat)?;
        one(&seat.member(&comm, &formed(what, bound), ranks, wanted), plan, watch)
    };
    // Arenas outlive all threads: a rank that fails takes no memory away under those that still read it.
    let results = std::thread::scope(|scope| {
        let start = |(rank, (joining, seat))| {
            let work = &work;
            let started = threads::start_scoped(scope, &format!("rank {rank}"), move || work(rank, joining, seat));
            started.map_err(|error| CollectiveError::Thread { rank, error })
        };
        let threads: Vec<_> = joining.into_iter().zip(&seats).enumerate().map(start).collect();
        // A rank that has no thread has left the group, so that the others do not wait for it.
        let join =
            |thread: Result<std::thread::ScopedJoinHandle<'_, Result<Finish, CollectiveError>>, CollectiveError>| {
                thread?.join().unwrap_or_else(|_| Err(CollectiveError::Impossible("a rank panicked".into())))
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
pub fn is_echo(error: &CollectiveError) -> bool {
    matches!(error, CollectiveError::Comm(CommError::Aborted { .. }))
}

/// All results, or the first error that is no echo of another rank's.
fn cause(results: Vec<Result<Finish, CollectiveError>>) -> Result<Vec<Finish>, CollectiveError> {
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

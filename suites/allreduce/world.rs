//! The seam between the test and whoever makes ranks: everything else works on a communicator and does not know where it
//! came from.

use super::args::AllreduceArgs;
use super::bench::{self, Finish, Member};
use super::plan::Plan;
use super::{BenchError, Watch};
use crate::launch::{self, Choice, Exit, Io, Options, Start, World};
use crate::runner::machine;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zbench_engine::comm::compose::{Algorithm, Composed};
use zbench_engine::comm::link::{self, LinkSpec};
use zbench_engine::comm::{CommError, Communicator, group};
use zbench_kernels::{Arena, Cpu, Kernels};

/// Ranks where nobody says how many.
const RANKS: usize = 2;
/// The share of the available memory that buffers may take.
const MEMORY_SHARE: f64 = 0.8;
/// How long ranks that live may go on after one has died: to notice, to say so, and to write down what they have.
const GRACE: Duration = Duration::from_secs(3);

/// What makes the ranks.
#[derive(Clone, Debug)]
pub enum Way {
    /// All are threads of this process.
    Threads,
    /// This process is one of them.
    Member(World, Choice),
    /// This process starts them, and is none of them.
    Start,
}

/// What world is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What makes the ranks.
    pub way: Way,
    /// How many ranks.
    pub ranks: usize,
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

impl Wanted {
    /// From the command line and the launcher's variables.
    ///
    /// # Errors
    /// What this build does not have, or what contradicts itself.
    pub fn new(args: &AllreduceArgs, launched: Option<World>, quiet: bool) -> Result<Wanted, String> {
        let launched = launched.filter(|world| world.size > 1);
        let asked = ranks(args)?;
        let way = way(args, launched)?;
        let ranks = match &way {
            Way::Member(world, _) => world.size,
            _ => asked.unwrap_or(RANKS),
        };
        if let (Way::Member(world, _), Some(asked)) = (&way, asked)
            && asked != ranks
        {
            let source = world.source.name();
            return Err(format!(
                "{asked} ranks are asked for, and {source} started {ranks}; leave --ranks, -t and -g out"
            ));
        }
        let here = match &way {
            Way::Member(world, _) => world.local_size.unwrap_or(world.size),
            _ => ranks,
        };
        let threads = args.threads.unwrap_or((machine::cores() / here).max(1));
        if threads == 0 {
            return Err("--threads 0: a rank needs a thread".into());
        }
        let link = link(args)?;
        let composed = composed(args)?;
        let nodes = link.map(|link| link.ranks_per_node).or(composed.map(|(_, node)| node));
        if nodes.is_some_and(|node| node == 0 || !ranks.is_multiple_of(node)) {
            return Err(format!("--ranks-per-node {}: {ranks} ranks are no whole nodes of it", nodes.unwrap_or(0)));
        }
        Ok(Wanted { way, ranks, threads, timeout: args.nccl.timeout, quiet, link, composed })
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

fn way(args: &AllreduceArgs, launched: Option<World>) -> Result<Way, String> {
    let backend = args.backend.as_deref();
    let choice = match backend {
        None | Some("auto" | "local") => Choice::Auto,
        Some("shm") => Choice::Shm,
        Some("tcp") => Choice::Tcp,
        Some("mpi") => Choice::Mpi,
        Some(other @ ("nccl" | "device")) => {
            return Err(format!("--backend {other} needs buffers on a GPU, which this version cannot fill or check"));
        }
        Some(other) => return Err(format!("--backend `{other}`: there are local, shm, tcp, mpi, nccl and device")),
    };
    match (launched, backend) {
        (Some(world), Some("local")) => Err(format!(
            "--backend local runs all ranks in one process, and {} started {}; each would measure alone. Leave --backend out, \
             or start zbench by itself",
            world.source.name(),
            world.size
        )),
        (Some(world), _) => Ok(Way::Member(world, choice)),
        (None, Some("mpi")) => {
            Err("--backend mpi: start it with mpirun, as mpirun -n 4 zbench allreduce --backend mpi".into())
        }
        (None, Some("local")) if args.processes => Err("--processes and --backend local exclude each other".into()),
        (None, Some("shm" | "tcp")) => Ok(Way::Start),
        (None, _) if args.processes => Ok(Way::Start),
        (None, _) => Ok(Way::Threads),
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
pub fn test(wanted: &Wanted, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Finish>, BenchError> {
    match &wanted.way {
        Way::Member(world, choice) => member(wanted, world, *choice, plan, watch).map(|finish| vec![finish]),
        Way::Threads | Way::Start => threads(wanted, plan, watch),
    }
}

/// What is measured, and what ranks talk through where that is another: what they say must arrive as it is.
struct Dressed {
    comm: Box<dyn Communicator>,
    talk: Option<Box<dyn Communicator>>,
}

/// Links and compositions over a communicator of the world.
fn dressed(
    comm: Box<dyn Communicator>,
    wanted: &Wanted,
    kernels: Arc<dyn Kernels>,
    arena: &Arena,
) -> Result<Dressed, CommError> {
    let comm = link::wrap(comm, wanted.link.as_ref())?;
    let Some((algorithm, node)) = wanted.composed else { return Ok(Dressed { comm, talk: None }) };
    let talk = comm.split(0, comm.rank(), "talk")?;
    let comm = Box::new(Composed::new(comm, algorithm, node, kernels, arena.clone())?);
    Ok(Dressed { comm, talk: Some(talk) })
}

/// What every rank is told of where it runs.
struct Place {
    memory_bytes: u64,
    cache_bytes: Option<u64>,
    host: String,
    device: String,
}

impl Place {
    fn here() -> Place {
        let available = machine::memory_bytes("MemAvailable").unwrap_or(1 << 30);
        Place {
            memory_bytes: (available as f64 * MEMORY_SHARE) as u64,
            cache_bytes: machine::last_level_cache_bytes(),
            host: machine::host_name(),
            device: machine::cpu_model().unwrap_or_else(|| "unknown processor".into()),
        }
    }

    fn member<'a>(
        &'a self,
        dressed: &'a Dressed,
        arena: &'a Arena,
        formed: &'a str,
        local_ranks: usize,
        wanted: &Wanted,
    ) -> Member<'a> {
        let Place { memory_bytes, cache_bytes, host, device } = self;
        let (threads, memory_bytes, cache_bytes) = (wanted.threads, *memory_bytes, *cache_bytes);
        let world = &*dressed.comm;
        let talk = dressed.talk.as_ref().map_or(world, |talk| &**talk);
        Member { world, talk, arena, formed, threads, local_ranks, memory_bytes, cache_bytes, host, device }
    }
}

/// This process is a rank of a launch.
fn member(
    wanted: &Wanted,
    world: &World,
    choice: Choice,
    plan: &Plan,
    watch: &dyn Watch,
) -> Result<Finish, BenchError> {
    let place = Place::here();
    let kernels: Arc<dyn Kernels> = Arc::new(Cpu::new(wanted.threads));
    let arena = if choice == Choice::Mpi { Arena::host(None)? } else { Arena::shared(None)? };
    let options = Options { timeout: wanted.timeout, stall: wanted.timeout, quiet: wanted.quiet };
    let comm = launch::connect(world, choice, kernels.clone(), &arena, &options)?;
    let comm = dressed(comm, wanted, kernels, &arena)?;
    let formed = format!("a process each, started by {}", world.source.name());
    one(&place.member(&comm, &arena, &formed, 1, wanted), plan, watch)
}

/// All ranks are threads.
fn threads(wanted: &Wanted, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Finish>, BenchError> {
    let place = Place::here();
    let kernels: Vec<Arc<dyn Kernels>> =
        (0..wanted.ranks).map(|_| Arc::new(Cpu::new(wanted.threads)) as Arc<dyn Kernels>).collect();
    let arenas: Vec<Arena> = (0..wanted.ranks).map(|_| Arena::host(None)).collect::<Result<Vec<_>, _>>()?;
    let comms = group("world", kernels.clone(), wanted.timeout)?;
    let work = |comm: Box<dyn Communicator>, kernels: Arc<dyn Kernels>, arena: &Arena| {
        let comm = dressed(comm, wanted, kernels, arena)?;
        one(&place.member(&comm, arena, "threads of one process", wanted.ranks, wanted), plan, watch)
    };
    // Arenas outlive all threads: a rank that fails takes no memory away under those that still read it.
    let results = std::thread::scope(|scope| {
        let start = |((comm, kernels), arena)| {
            let (comm, work): (Box<dyn Communicator>, _) = (Box::new(comm), &work);
            scope.spawn(move || work(comm, kernels, arena))
        };
        let threads: Vec<_> = comms.into_iter().zip(kernels).zip(&arenas).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Finish, BenchError>>| {
            thread.join().unwrap_or_else(|_| Err(BenchError::Impossible("a rank panicked".into())))
        };
        threads.into_iter().map(join).collect()
    });
    cause(results)
}

/// One rank: whatever ends it ends the others too, which hear the reason.
fn one(member: &Member<'_>, plan: &Plan, watch: &dyn Watch) -> Result<Finish, BenchError> {
    let work = AssertUnwindSafe(|| bench::rank_main(member, plan, watch));
    let result = std::panic::catch_unwind(work).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
        Err(BenchError::Panic { rank: member.world.rank(), text })
    });
    if let Err(error) = &result {
        member.world.abort(&error.to_string());
    }
    result
}

/// Whether an error only says that another rank had one.
pub fn is_echo(error: &BenchError) -> bool {
    matches!(error, BenchError::Comm(CommError::Aborted { .. }))
}

/// All results, or the first error that is no echo of another rank's.
fn cause(results: Vec<Result<Finish, BenchError>>) -> Result<Vec<Finish>, BenchError> {
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
pub fn start(wanted: &Wanted, stop: &AtomicBool) -> Result<(Option<u8>, Vec<String>), launch::LaunchError> {
    let program = std::env::current_exe().map_err(launch::LaunchError::system("the path of zbench itself"))?;
    let arguments = std::env::args_os().skip(1).collect();
    let ranks = launch::spawn(&Start::here(program, arguments, wanted.ranks, Io::Inherit)?)?;
    let exits = ranks.supervise(GRACE, stop);
    let first = exits.iter().find(|exit| exit.rank == 0).and_then(|exit| match exit.exit {
        Exit::Code(code) => u8::try_from(code).ok(),
        Exit::Signal(_) | Exit::Ended(_) => None,
    });
    let died = exits.iter().filter(|exit| !matches!(exit.exit, Exit::Code(_)));
    Ok((first, died.map(ToString::to_string).collect()))
}

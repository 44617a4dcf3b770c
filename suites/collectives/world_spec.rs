//! What world of ranks the command line and a launcher ask for.

use super::args::AllreduceArgs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zbench_collectives::compose::Algorithm;
use zbench_collectives::link::LinkSpec;
use zbench_host::{devices, machine};
use zbench_kernels::MOST_THREADS;
use zbench_launch::{Choice, World};

/// Ranks where nobody says how many.
const RANKS: usize = 2;

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
    /// Ends the wait for ranks of a launch when it is set.
    pub stop: Arc<AtomicBool>,
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
        let way = launch_mode(args, launched)?;
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
        let (timeout, stop) = (args.nccl.timeout, Arc::default());
        Ok(WorldSpec { way, on, ranks, threads, bind, timeout, stop, quiet, link, composed })
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

fn launch_mode(args: &AllreduceArgs, launched: Option<World>) -> Result<LaunchMode, String> {
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

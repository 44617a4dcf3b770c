//! From a place in a launch to a communicator: meet the others, see that it is they, choose what moves the bytes.

use super::{LaunchError, World};
use std::sync::Arc;
use std::time::Duration;
use zbench_engine::comm::{self, Communicator, Meeting, Rendezvous, TcpOptions};
use zbench_kernels::{Arena, Kernels};

/// What moves the bytes between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Shared memory where all ranks run on one host, else sockets.
    Auto,
    /// Shared memory.
    Shm,
    /// Sockets.
    Tcp,
    /// What mpirun has set up.
    Mpi,
    /// NCCL, between GPUs.
    Nccl,
}

/// How long ranks wait, and what they say.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// For each other at the start.
    pub timeout: Duration,
    /// In a collective.
    pub stall: Duration,
    /// Rank 0 does not print the decision.
    pub quiet: bool,
}

/// Meets the ranks of the launch and gives the communicator of all of them. For [`Choice::Shm`] (and [`Choice::Auto`] on one
/// host) `arena` must be [`Arena::shared`].
///
/// # Errors
/// Ranks that do not come, a world of another size than the launcher's, a backend that cannot be had.
pub fn connect(
    world: &World,
    choice: Choice,
    kernels: Arc<dyn Kernels>,
    arena: &Arena,
    options: &Options,
) -> Result<Box<dyn Communicator>, LaunchError> {
    let (comm, where_to) = if choice == Choice::Mpi {
        (mpi(kernels, options)?, String::new())
    } else {
        let mut met = meet(world, options)?;
        let shared = choice == Choice::Shm || choice == Choice::Auto && met.one_host();
        let hosts = met.hosts().iter().collect::<std::collections::BTreeSet<_>>().len();
        let where_to = format!(" on {hosts} host{}", if hosts == 1 { "" } else { "s" });
        let comm = match (choice, shared) {
            (Choice::Nccl, _) => nccl(world, met, kernels, arena, options)?,
            (_, true) => shm(&mut met, kernels, arena, options)?,
            (_, false) => tcp(met, kernels, options)?,
        };
        (comm, where_to)
    };
    let formed = (comm.rank(), comm.size());
    if formed != (world.rank, world.size) {
        return Err(LaunchError::Formed {
            formed,
            launched: (world.rank, world.size),
            source_name: world.source.name(),
        });
    }
    if world.rank == 0 && !options.quiet {
        crate::say!("{}; {} ranks over {}{where_to}", world.describe(), world.size, comm.backend());
    }
    Ok(comm)
}

/// The ranks of a launch, who have found each other.
///
/// # Errors
/// Nobody says where to meet, or somebody does not come.
pub fn meet(world: &World, options: &Options) -> Result<Rendezvous, LaunchError> {
    let (host, port) = world.meeting()?;
    let World { rank, size, token, .. } = world;
    let meeting = Meeting {
        rank: *rank,
        size: *size,
        host: host.to_string(),
        port,
        token: token.clone(),
        timeout: options.timeout,
    };
    let met = Rendezvous::join(&meeting)?;
    for refused in met.refused() {
        crate::say!("refused at the meeting: {refused}");
    }
    Ok(met)
}

fn shm(
    met: &mut Rendezvous,
    kernels: Arc<dyn Kernels>,
    arena: &Arena,
    options: &Options,
) -> Result<Box<dyn Communicator>, LaunchError> {
    let (rank, size) = (met.rank(), met.size());
    let mut exchange = |own: &[u8]| met.exchange(own).map_err(|error| error.to_string());
    Ok(Box::new(comm::shm(rank, size, &mut exchange, kernels, arena, options.stall)?))
}

fn tcp(met: Rendezvous, kernels: Arc<dyn Kernels>, options: &Options) -> Result<Box<dyn Communicator>, LaunchError> {
    let options = TcpOptions { stall: options.stall, ..TcpOptions::default() };
    Ok(Box::new(comm::tcp(met, kernels, options)?))
}

/// NCCL between processes that have met over sockets, on the GPU of the rank's kernels. Its library is loaded here.
fn nccl(
    world: &World,
    met: Rendezvous,
    kernels: Arc<dyn Kernels>,
    arena: &Arena,
    options: &Options,
) -> Result<Box<dyn Communicator>, LaunchError> {
    use zbench_engine::comm::nccl::{Api, Device, Driver, Ordered, Search, nccl_over};
    let failed = |reason: String| LaunchError::Comm(comm::CommError::Invalid { operation: "nccl", reason });
    let base = comm::tcp(
        met,
        Arc::new(zbench_kernels::Cpu::new(1)),
        TcpOptions { stall: options.stall, ..TcpOptions::default() },
    )?;
    let api = Api::load(&Search::new(|name| std::env::var_os(name))).map_err(|error| failed(error.to_string()))?;
    let driver = Driver::load().map_err(|error| failed(error.to_string()))?;
    let device =
        Device::new(driver, world.local_rank.unwrap_or(world.rank)).map_err(|error| failed(error.to_string()))?;
    let comm = nccl_over(&base, &api, &device, options.stall)?;
    let ordered = Box::new(Ordered::new(comm, kernels.clone()));
    Ok(Box::new(comm::Carried::new(ordered, kernels, arena.clone())))
}

#[cfg(feature = "mpi")]
fn mpi(kernels: Arc<dyn Kernels>, options: &Options) -> Result<Box<dyn Communicator>, LaunchError> {
    Ok(Box::new(comm::mpi::mpi(kernels, options.stall)?))
}

#[cfg(not(feature = "mpi"))]
fn mpi(_: Arc<dyn Kernels>, _: &Options) -> Result<Box<dyn Communicator>, LaunchError> {
    Err(LaunchError::NotBuilt { backend: "mpi", how: HOW_TO_HAVE_MPI })
}

/// What to do without the feature.
pub const HOW_TO_HAVE_MPI: &str =
    "build zbench with cargo build --release --features mpi, which needs an MPI library and its mpicc";

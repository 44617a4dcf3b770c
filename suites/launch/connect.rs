//! From a place in a launch to a communicator: meet the others, see that it is they, choose what moves the bytes.

use crate::{LaunchError, World};
use ::zbench_collectives as comm;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tracing::{debug, info};
use zbench_collectives::GroupName;
use zbench_collectives::{Communicator, Meeting, Rendezvous, TcpOptions};
use zbench_host::devices;
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
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// For each other at the start.
    pub timeout: Duration,
    /// In a collective.
    pub stall: Duration,
    /// Rank 0 does not print the decision.
    pub quiet: bool,
    /// Ends the wait for ranks at the start when it is set.
    pub stop: Option<Arc<AtomicBool>>,
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
            (Choice::Nccl, _) => {
                let comm = nccl(world, met, kernels.clone(), &[], options)?;
                Box::new(comm::HostStaged::new(comm, kernels, arena.clone()))
            }
            (_, true) => shm(&mut met, kernels, arena, options)?,
            (_, false) => tcp(met, kernels, options)?,
        };
        (comm, where_to)
    };
    settled(world, options, comm, &where_to)
}

/// As [`connect`] over NCCL, for buffers of the GPU alone and before its memory is taken: this group and those that will be split
/// off it (colors, keys and axes) are connected when it returns, and have what they need.
///
/// # Errors
/// As [`connect`].
pub fn connect_gpus(
    world: &World,
    kernels: Arc<dyn Kernels>,
    groups: &[(usize, usize, GroupName)],
    options: &Options,
) -> Result<Box<dyn Communicator>, LaunchError> {
    let met = meet(world, options)?;
    let comm = nccl(world, met, kernels, groups, options)?;
    settled(world, options, comm, "")
}

/// Whether the group is the launcher's; rank 0 says what was formed.
fn settled(
    world: &World,
    options: &Options,
    comm: Box<dyn Communicator>,
    where_to: &str,
) -> Result<Box<dyn Communicator>, LaunchError> {
    let formed = (comm.rank(), comm.size());
    if formed != (world.rank, world.size) {
        return Err(LaunchError::Formed {
            formed,
            launched: (world.rank, world.size),
            source_name: world.source.name(),
        });
    }
    info!(target: "zbench::launch", rank = world.rank, size = world.size, backend = comm.backend(), "ranks are connected");
    if world.rank == 0 && !options.quiet {
        zbench_host::say!("{}; {} ranks over {}{where_to}", world.describe(), world.size, comm.backend());
    }
    Ok(comm)
}

/// The ranks of a launch, who have found each other.
///
/// # Errors
/// Nobody says where to meet, or somebody does not come.
pub fn meet(world: &World, options: &Options) -> Result<Rendezvous, LaunchError> {
    let (host, port) = world.meeting()?;
    if let (0, Some(warning)) = (world.rank, world.warning()) {
        zbench_host::say!("warning: {warning}");
    }
    let World { rank, size, token, .. } = world;
    let meeting = Meeting {
        rank: *rank,
        size: *size,
        host: host.to_string(),
        port,
        token: token.clone(),
        timeout: options.timeout,
        everywhere: world.listens_everywhere(),
        launcher: world.launcher.clone(),
        stop: options.stop.clone(),
        tell: Some(|words| zbench_host::say!("{words}")),
    };
    debug!(target: "zbench::launch", rank, size, host, port, "rendezvous begins");
    let met = Rendezvous::join(&meeting)?;
    debug!(target: "zbench::launch", rank, size, "rendezvous is complete");
    let what = if *rank == 0 { "refused at the meeting".into() } else { format!("rank {rank}, at the meeting") };
    for refused in met.refused() {
        zbench_host::say!("{what}: {refused}");
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
    mut met: Rendezvous,
    kernels: Arc<dyn Kernels>,
    groups: &[(usize, usize, GroupName)],
    options: &Options,
) -> Result<Box<dyn Communicator>, LaunchError> {
    use zbench_collectives::nccl::{Api, Device, Ordered, Search, load_driver, nccl_over};
    let failed = |reason: String| LaunchError::Comm(comm::CommError::Invalid { operation: "nccl", reason });
    let number = devices::of_rank(world.local_rank.unwrap_or(world.rank));
    let own = devices::gpu(number).map(|gpu| gpu.about().uuid.clone()).unwrap_or_default();
    let all = met.exchange(own.as_bytes())?;
    different_gpus(met.hosts(), &all).map_err(failed)?;
    let base = comm::tcp(
        met,
        Arc::new(zbench_kernels::Cpu::new(1)),
        TcpOptions { stall: options.stall, ..TcpOptions::default() },
    )?;
    let api = Api::load(&Search::new(|name| std::env::var_os(name))).map_err(|error| failed(error.to_string()))?;
    let driver = load_driver().map_err(|error| failed(error.to_string()))?;
    let device = Device::new(driver, number).map_err(|error| failed(error.to_string()))?;
    let comm = nccl_over(&base, &api, &device, options.stall)?;
    comm.prepare(groups)?;
    Ok(Box::new(Ordered::new(comm, kernels)))
}

/// Whether each rank has a GPU of its own, by the ids that all ranks have told. Where a launcher shows each process one GPU
/// nothing else tells that it is not the same one.
fn different_gpus(hosts: &[String], ids: &[Vec<u8>]) -> Result<(), String> {
    for (rank, id) in ids.iter().enumerate().filter(|(_, id)| !id.is_empty()) {
        let host = hosts.get(rank).map(String::as_str).unwrap_or_default();
        let same = |other: &usize| ids[*other] == *id && hosts.get(*other).map(String::as_str) == Some(host);
        if let Some(other) = (0..rank).find(same) {
            return Err(format!(
                "ranks {other} and {rank} are both on {} of {host}, and NCCL needs a GPU for each; show each process a GPU of its \
                 own (srun --gpus-per-task=1) or all of the host's, or let the ranks share one with parallel.backend = \"device\"",
                String::from_utf8_lossy(id)
            ));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_of_one_gpu_are_named() {
        let ids = |ids: &[&str]| ids.iter().map(|id| id.as_bytes().to_vec()).collect::<Vec<_>>();
        let hosts = ["a", "a", "b", "b"].map(String::from);
        assert_eq!(different_gpus(&hosts, &ids(&["GPU-1", "GPU-2", "GPU-3", "GPU-4"])), Ok(()));
        assert_eq!(different_gpus(&hosts, &ids(&["", "", "", ""])), Ok(()), "kernels that are on no GPU");
        let said = different_gpus(&hosts, &ids(&["GPU-1", "GPU-2", "GPU-3", "GPU-3"])).unwrap_err();
        assert!(said.contains("ranks 2 and 3 are both on GPU-3 of b") && said.contains("--gpus-per-task=1"), "{said}");
    }
}

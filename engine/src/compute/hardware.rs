//! The kernels that a cell asks for: how many threads, which instructions, which cores.

use crate::config::{Cell, DeviceKind, Hardware, MemoryTier, Pin};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use zbench_kernels::memory::device::Device;
use zbench_kernels::memory::dry_device::DryDevice;
use zbench_kernels::threads::affinity;
use zbench_kernels::{Cpu, Cuda, KernelError, Kernels, MOST_THREADS, Setup, SetupError};

/// Gives a machine that runs CUDA by its number, 0 for the first GPU; the reason where there is none. The engine looks for no
/// libraries: whoever calls it has.
pub type Machines<'a> = &'a (dyn Fn(usize) -> Result<Arc<dyn Device>, String> + Sync);

/// No machine that runs CUDA.
///
/// # Errors
/// Always.
pub fn no_machines(_: usize) -> Result<Arc<dyn Device>, String> {
    Err("this program was given no GPU".into())
}

/// Where a rank stands among the ranks of a cell on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// How many of them come before it.
    pub index: usize,
    pub ranks: usize,
    /// Whether the rank is a process of its own, which its launcher may have put on cores.
    pub process: bool,
    /// How many of the ranks that may use this rank's cores come before it.
    pub place: usize,
    /// Ranks that may use this rank's cores, itself included.
    pub sharers: usize,
}

impl Seat {
    /// A rank that is alone on its host.
    pub const ALONE: Seat = Seat::of(0, 1, true);

    /// A rank of a host whose ranks all use the same cores.
    pub const fn of(index: usize, ranks: usize, process: bool) -> Seat {
        Seat { index, ranks, process, place: index, sharers: ranks }
    }
}

/// Why this machine has no kernels for a cell.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    #[error("hardware.device = \"cuda\": {0}")]
    Device(String),
    /// The device has no room for a rank's queue, or cannot compile kernels.
    #[error("hardware.device = \"cuda\": {0}")]
    Kernels(#[from] KernelError),
    /// Instructions that this CPU lacks, or a core that the system does not give.
    #[error("hardware: {0}")]
    Setup(#[from] SetupError),
    #[error(
        "hardware.threads_per_rank = {threads}: {ranks} ranks of so many threads on this machine; from 1 to {MOST_THREADS} \
         threads of all ranks together are started, so lower hardware.threads_per_rank or parallel.ranks"
    )]
    Threads { ranks: usize, threads: usize },
    #[error(
        "hardware.pin = \"cores\": {ranks} ranks of {threads} threads on this machine need {needed} cores, and zbench may use {cores}; \
         lower hardware.threads_per_rank or parallel.ranks, or set hardware.pin = \"none\"",
        needed = .ranks.saturating_mul(*.threads)
    )]
    Cores { ranks: usize, threads: usize, cores: usize },
}

/// Kernels for planning: what they say of scratch sizes is what a rank's kernels say. They keep to no core.
///
/// # Errors
/// This machine has none for any rank.
pub fn planner(cell: &Cell) -> Result<Arc<dyn Kernels>, HardwareError> {
    if cell.hardware.device == DeviceKind::Cuda {
        return on(Arc::new(DryDevice::h100()), None);
    }
    Ok(Arc::new(Cpu::with(&setup(&cell.hardware, Seat::ALONE, None)?)?))
}

/// Kernels of a GPU. A rank's threads are for what is offloaded.
fn on(machine: Arc<dyn Device>, host: Option<Cpu>) -> Result<Arc<dyn Kernels>, HardwareError> {
    let kernels = Cuda::new(machine).map_err(KernelError::from)?;
    Ok(Arc::new(match host {
        Some(host) => kernels.with_host(host),
        None => kernels,
    }))
}

/// The kernels of the rank at a seat.
///
/// # Errors
/// This machine has none for it.
pub fn kernels(cell: &Cell, seat: Seat, machines: Machines<'_>) -> Result<Arc<dyn Kernels>, HardwareError> {
    if cell.hardware.device == DeviceKind::Cuda {
        // Threads of a process share one GPU, whose memory they all reach; processes have one each.
        let number = if seat.process { seat.index } else { 0 };
        let machine = machines(number).map_err(HardwareError::Device)?;
        let offloads = cell.memory.offload_optimizer != MemoryTier::Device;
        return on(machine, if offloads { Some(cpu(cell, seat)?) } else { None });
    }
    Ok(Arc::new(cpu(cell, seat)?))
}

fn cpu(cell: &Cell, seat: Seat) -> Result<Cpu, HardwareError> {
    let cores = cores(&cell.hardware, seat, &affinity::available())?;
    Ok(Cpu::with(&setup(&cell.hardware, seat, cores)?)?)
}

/// Whether `ranks` ranks of a cell may have their threads on this machine, and one of `available` cores for each where they ask
/// for one.
///
/// # Errors
/// They may not.
pub fn enough_cores(cell: &Cell, ranks: usize, available: &[usize]) -> Result<(), HardwareError> {
    few_enough(ranks, cell.hardware.threads_per_rank)?;
    if cell.hardware.pin == Pin::None {
        return Ok(());
    }
    cores(&cell.hardware, Seat::of(0, ranks, false), available).map(|_| ())
}

fn setup(hardware: &Hardware, seat: Seat, cores: Option<Vec<usize>>) -> Result<Setup, HardwareError> {
    let threads = hardware.threads_per_rank;
    few_enough(seat.ranks, threads)?;
    let beside = seat.sharers.saturating_sub(1).saturating_mul(threads);
    Ok(Setup { threads, instructions: hardware.instructions.clone(), cores, beside })
}

/// Asked of every cell, also one that comes from a record and not from a configuration, whose keys have limits of their own.
fn few_enough(ranks: usize, threads: usize) -> Result<(), HardwareError> {
    let few = threads > 0 && ranks.checked_mul(threads).is_some_and(|all| all <= MOST_THREADS);
    if few { Ok(()) } else { Err(HardwareError::Threads { ranks, threads }) }
}

/// The cores of a rank's threads among those that may be used: the ranks that share them take them in order.
fn cores(hardware: &Hardware, seat: Seat, available: &[usize]) -> Result<Option<Vec<usize>>, HardwareError> {
    if hardware.pin == Pin::None {
        return Ok(None);
    }
    let threads = hardware.threads_per_rank;
    let from = |first: usize| available.get(first..first.checked_add(threads)?).map(<[usize]>::to_vec);
    let own = match available.len() >= seat.sharers.saturating_mul(threads) {
        true => from(seat.place.saturating_mul(threads)),
        // The launcher has shared the cores out already, as mpirun does: these are this rank's alone.
        false if seat.process => from(0),
        false => None,
    };
    own.map(Some).ok_or(HardwareError::Cores { ranks: seat.ranks, threads, cores: available.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(threads: usize, index: usize, ranks: usize, process: bool, available: &[usize]) -> Option<Vec<usize>> {
        let hardware = Hardware { pin: Pin::Cores, ..Hardware::cpu(threads) };
        cores(&hardware, Seat::of(index, ranks, process), available).ok().map(|cores| cores.unwrap())
    }

    #[test]
    fn ranks_take_disjoint_cores_in_order() {
        let available = [1, 2, 5, 6, 7];
        assert_eq!(taken(2, 0, 2, false, &available), Some(vec![1, 2]));
        assert_eq!(taken(2, 1, 2, true, &available), Some(vec![5, 6]));
        assert_eq!(taken(1, 4, 5, false, &available), Some(vec![7]));
    }

    #[test]
    fn a_launcher_that_shared_the_cores_out_is_followed_and_threads_are_not() {
        assert_eq!(taken(1, 1, 2, true, &[3]), Some(vec![3]));
        assert_eq!(taken(1, 1, 2, false, &[3]), None);
        assert_eq!(taken(2, 0, 2, true, &[3]), None);
        assert_eq!(taken(1, 0, 1, false, &[]), None);
        // The fourth rank of a host whose launcher has put two on each of two sockets.
        let hardware = Hardware { pin: Pin::Cores, ..Hardware::cpu(1) };
        let second_of_socket = Seat { place: 1, sharers: 2, ..Seat::of(3, 4, true) };
        assert_eq!(cores(&hardware, second_of_socket, &[4, 6]).unwrap(), Some(vec![6]));
        let hardware = Hardware { pin: Pin::Cores, ..Hardware::cpu(3) };
        let error = cores(&hardware, Seat::of(0, 2, false), &[0, 1]).unwrap_err().to_string();
        assert!(error.contains("need 6 cores") && error.contains("may use 2"), "{error}");
        assert_eq!(cores(&Hardware::cpu(9), Seat::ALONE, &[0]).unwrap(), None);
    }

    #[test]
    fn neighbours_are_the_other_ranks_threads() {
        let seat = Seat::of(1, 3, true);
        let beside = |seat| setup(&Hardware::cpu(2), seat, None).unwrap().beside;
        assert_eq!((beside(seat), beside(Seat::ALONE)), (4, 0));
        assert_eq!(beside(Seat { place: 0, sharers: 1, ..seat }), 0, "the others have cores of their own");
    }

    #[test]
    fn more_threads_than_a_process_can_have_are_refused_before_one_is_started() {
        let refused = |ranks, threads| {
            let seat = Seat::of(0, ranks, false);
            setup(&Hardware::cpu(threads), seat, None).err().map(|error| error.to_string())
        };
        assert_eq!((refused(1, 1), refused(2, 4096), refused(8, 1024)), (None, None, None));
        for (ranks, threads) in [(8, 4096), (1, usize::MAX), (usize::MAX, 2), (1, 0)] {
            let error = refused(ranks, threads).unwrap();
            assert!(error.contains(&format!("hardware.threads_per_rank = {threads}: {ranks} ranks")), "{error}");
        }
    }
}

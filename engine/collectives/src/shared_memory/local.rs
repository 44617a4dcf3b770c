//! Worlds of threads.

use super::board::{Board, Control, control_bytes};
use super::shared::Shared;
use super::space::{Marks, Space};
use crate::{Result, invalid};
use std::sync::Arc;
use std::time::Duration;
use zbench_kernels::threads::sync::SpinPolicy;
use zbench_kernels::{Kernels, Region};

/// How ranks wait when there are `ranks` of them on this host.
pub(crate) fn spin_policy(ranks: usize) -> SpinPolicy {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // A rank that spins on a core which another rank needs only makes it later. A few microseconds cover a peer that is
    // about to come; then whoever else wants the core gets it, and only after that is a system call to sleep worth it.
    let (rounds, yields) = if ranks <= cores { (100, 200) } else { (10, 100) };
    SpinPolicy { rounds, spin: Duration::ZERO, yields }
}

/// A group of as many ranks as there are `kernels`, for threads of this process. A rank that waits longer than `stall`
/// for others ends the group.
///
/// # Errors
/// There is no address space for the memory in which they meet, or their device has no room for their queues.
pub fn group(name: &str, kernels: Vec<Arc<dyn Kernels>>, stall: Duration) -> Result<Vec<Shared>> {
    let size = kernels.len();
    let region = Region::reserve(control_bytes()).map_err(|error| invalid("local", error))?;
    let control = Control::new(Arc::new(region), size)?;
    let ranks: Vec<usize> = (0..size).collect();
    let board = Board::make(&control, name, &ranks)?;
    let on_device = kernels.iter().any(|kernels| !kernels.is_host());
    let space = Arc::new(Space::Threads(Marks::new(on_device)));
    let member = |(rank, kernels)| Shared::new(board.clone(), rank, space.clone(), kernels, spin_policy(size), stall);
    kernels.into_iter().enumerate().map(member).collect()
}

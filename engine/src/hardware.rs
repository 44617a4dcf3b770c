//! The kernels that a cell asks for: how many threads, which instructions, which cores.

use crate::config::{Cell, DeviceKind, Pin};
use serde::{Deserialize, Serialize};
use zbench_kernels::{Cpu, Setup, SetupError, affinity};

/// Where a rank stands among the ranks of a cell on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// How many of them come before it.
    pub index: usize,
    /// How many there are.
    pub ranks: usize,
    /// Whether the rank is a process of its own, which its launcher may have put on cores.
    pub process: bool,
}

impl Seat {
    /// A rank that is alone on its host.
    pub const ALONE: Seat = Seat { index: 0, ranks: 1, process: true };
}

/// Why a cell's kernels are not to be had here.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// A device that this version cannot use.
    #[error("hardware.device = \"cuda\" is not built yet; use \"cpu\"")]
    Device,
    /// Instructions that this CPU lacks, or a core that the system does not give.
    #[error("hardware: {0}")]
    Setup(#[from] SetupError),
    /// Fewer cores than threads that want one each.
    #[error(
        "hardware.pin = \"cores\": {ranks} ranks of {threads} threads on this machine need {needed} cores, and zbench may use {cores}; \
         lower hardware.threads_per_rank or parallel.ranks, or set hardware.pin = \"none\"",
        needed = .ranks * .threads
    )]
    Cores {
        /// Ranks on this machine.
        ranks: usize,
        /// Threads of each.
        threads: usize,
        /// Cores that this process may use.
        cores: usize,
    },
}

/// Kernels for planning: what they say of scratch sizes is what a rank's kernels say. They keep to no core.
///
/// # Errors
/// No rank could have them here.
pub fn planner(cell: &Cell) -> Result<Cpu, HardwareError> {
    Ok(Cpu::with(&Setup { cores: None, ..setup(cell, Seat::ALONE, &[])? })?)
}

/// The kernels of the rank at a seat.
///
/// # Errors
/// They are not to be had here.
pub fn cpu(cell: &Cell, seat: Seat) -> Result<Cpu, HardwareError> {
    if cell.hardware.device == DeviceKind::Cuda {
        return Err(HardwareError::Device);
    }
    Ok(Cpu::with(&setup(cell, seat, &affinity::available())?)?)
}

/// Whether `ranks` ranks of a cell find a core for each thread on this machine, where they ask for one.
///
/// # Errors
/// They do not.
pub fn enough_cores(cell: &Cell, ranks: usize) -> Result<(), HardwareError> {
    cores(cell, Seat { index: 0, ranks, process: false }, &affinity::available()).map(|_| ())
}

fn setup(cell: &Cell, seat: Seat, available: &[usize]) -> Result<Setup, HardwareError> {
    let threads = cell.hardware.threads_per_rank;
    let cores = if available.is_empty() { None } else { cores(cell, seat, available)? };
    let instructions = cell.hardware.instructions.clone();
    Ok(Setup { threads, instructions, cores, beside: seat.ranks.saturating_sub(1).saturating_mul(threads) })
}

/// The cores of a rank's threads among those that may be used: the ranks of a host take them in order.
fn cores(cell: &Cell, seat: Seat, available: &[usize]) -> Result<Option<Vec<usize>>, HardwareError> {
    if cell.hardware.pin == Pin::None {
        return Ok(None);
    }
    let threads = cell.hardware.threads_per_rank;
    let own = |from: usize| available.get(from..from.checked_add(threads)?).map(<[usize]>::to_vec);
    let needed = seat.ranks.saturating_mul(threads);
    let cores = match available.len() >= needed {
        true => own(seat.index * threads),
        // The launcher has shared the cores out already, as mpirun does: these are this rank's alone.
        false if seat.process => own(0),
        false => None,
    };
    cores.map(Some).ok_or(HardwareError::Cores { ranks: seat.ranks, threads, cores: available.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(threads: usize, pin: Pin) -> Cell {
        let mut cell = crate::config::tests_cell();
        cell.hardware.threads_per_rank = threads;
        cell.hardware.pin = pin;
        cell
    }
}

//! Offload: state that lives in the host's memory or on a disk, is brought to where it is used, and is taken back
//! (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity, Rajbhandari et al. 2021).
//!
//! The plan says when a move begins and when it is waited for ([`schedule`]). Buffers on the way are part of the ledgers: those
//! of the device and of the host count as [`Category::Communication`](zbench_kernels::Category::Communication). Every move is counted by what it moves and between
//! which tiers ([`crate::memory::moves::Moves`]).

pub mod schedule;

use crate::config::{Cell, MemoryTier};
use crate::mesh::Axes;
use crate::mesh::strategy::Sharding;
use crate::plan::PlanError;

/// Refuses what no rank can offload.
///
/// # Errors
/// Weights that every rank has whole stay on the device, as do those that replicas update in parts.
pub fn check(cell: &Cell, sharding: &Sharding) -> Result<(), PlanError> {
    let fits = sharding.parameters == Axes::SHARD && sharding.optimizer == Axes::SHARD;
    if cell.memory.offload_parameters == MemoryTier::Device || fits {
        return Ok(());
    }
    let reason = format!(
        "needs weights that are split over the ranks that gather them, and parallel.strategy = {:?} has none; write \"zero3\", \"fsdp\" or \"hsdp\", or \"none\" here",
        cell.parallel.strategy.name()
    );
    Err(PlanError { key: "memory.offload_parameters", reason })
}

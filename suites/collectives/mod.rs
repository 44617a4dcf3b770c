//! The interconnect test. Every rank, thread or process, runs [`bench::rank_main`] on a communicator that somebody else
//! made ([`world`]); results come together through the same communicator, and rank 0 hands them to a [`Watch`].
//! Flags and what follows from them are in [`args`] and [`plan`], nccl-tests' definitions in [`collective`], the data and
//! its check in [`data`], what is concluded from times in [`fit`], [`judge`] and [`expect`].

pub mod args;
pub mod bench;
mod buffers;
pub(crate) mod cell;
mod collective;
mod data;
mod exchange;
pub mod expect;
pub mod fit;
pub mod gpus;
mod judge;
mod member;
mod memory;
mod pairs;
mod place;
pub mod plan;
pub mod record;
mod setup;
mod split;
#[cfg(test)]
mod tests;
pub mod world;
pub mod world_spec;

use zbench_collectives::CommError;
use zbench_kernels::{ArenaError, KernelError, OutOfMemory};
use zbench_launch::LaunchError;
use zbench_reports::collectives::{Device, Pairs, Row, Settings};

/// Why a rank could not go on.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A collective failed; the group is at its end.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The buffers do not fit.
    #[error("{0}; give a smaller -e, or --buffers hot")]
    Memory(#[from] OutOfMemory),
    /// No memory to begin with.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The data could not be written or compared.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The ranks did not find each other.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A GPU could not be had, or not what ranks need there.
    #[error("{0}")]
    Gpu(String),
    /// The system starts no more threads.
    #[error("the thread of rank {rank} cannot be started: {error}")]
    Thread {
        /// Whose.
        rank: usize,
        /// What it said, and what to do.
        error: std::io::Error,
    },
    /// A rank broke an assumption of its own.
    #[error("rank {rank} panicked: {text}")]
    Panic {
        /// Which.
        rank: usize,
        /// What it said.
        text: String,
    },
    /// What was asked for and the ranks that there are do not go together.
    #[error("{0}")]
    Unsupported(String),
}

/// Told by rank 0 of everything measured, as soon as it is, so that a failure takes nothing away.
pub trait Watch: Sync {
    /// Whether to end before the next row. Asked on every rank; one yes ends all.
    fn stop(&self) -> bool;
    /// The ranks have found each other.
    fn begin(&self, _settings: &Settings, _devices: &[Device]) {}
    /// The rows that follow are of this collective.
    fn section(&self, _collective: &str) {}
    /// A row was measured.
    fn row(&self, _row: Row) {}
    /// Something that a reader should know about the section.
    fn note(&self, _note: String) {}
    /// No more rows of it; `stopped` if somebody asked to end before the last.
    fn end_section(&self, _stopped: bool) {}
    /// Every pair of ranks was measured.
    fn pairs(&self, _pairs: Pairs) {}
}

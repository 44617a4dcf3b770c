//! How ranks talk. One trait, and implementations that move bytes in their own way.
//!
//! A sum over ranks is a balanced tree in rank order ([`zbench_kernels::Kernels::reduce`]), whatever the collective and
//! however the buffer is split, so that `local` gives the same bits for every strategy.

// Ranks read each other's memory here, and nowhere else; every block gives its SAFETY reason.
#![allow(unsafe_code)]

mod check;
mod local;
mod metered;
mod moves;
mod null;
mod protocol;
mod slots;
mod sync;

pub use local::{Local, group};
pub use metered::Metered;
pub use null::Null;

use zbench_kernels::{Buffer, KernelError, View, ViewMut};

/// Why a collective failed. All ranks of the group get an error, the first one the cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// Another rank ended before the collective was complete.
    #[error("rank {rank} of {group} ended the run: {reason}")]
    Aborted {
        /// The group's name.
        group: String,
        /// The rank that gave up.
        rank: usize,
        /// Why it did.
        reason: String,
    },
    /// Ranks that did not arrive in time.
    #[error("{operation} number {sequence} of {group}: waited {seconds} s for rank(s) {missing:?}")]
    Stalled {
        /// The group's name.
        group: String,
        /// The collective.
        operation: &'static str,
        /// Its number in the group's program order.
        sequence: u64,
        /// Ranks that had not arrived.
        missing: Vec<usize>,
        /// How long the others waited.
        seconds: u64,
    },
    /// Ranks called different collectives, or the same with different sizes or types.
    #[error("collective number {sequence} of {group} does not match: rank {rank} called {theirs}, this rank {ours}")]
    Mismatch {
        /// The group's name.
        group: String,
        /// Number in the group's program order.
        sequence: u64,
        /// The rank that differs.
        rank: usize,
        /// What it called.
        theirs: String,
        /// What this rank called.
        ours: String,
    },
    /// Buffers that do not fit the collective.
    #[error("{operation}: {reason}")]
    Invalid {
        /// The collective.
        operation: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The sum could not be computed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What a collective returns.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// A collective that owns its buffers while it runs, and gives them back when it is done.
#[derive(Debug)]
pub enum Request {
    /// `recv` = all ranks' `send`, in rank order; `recv.len() == size * send.len()`.
    AllGather {
        /// This rank's part.
        send: Buffer,
        /// The whole.
        recv: Buffer,
    },
    /// `recv` = (recv +) this rank's part of the sum of all `send`; `send.len() == size * recv.len()`.
    ReduceScatter {
        /// This rank's summand.
        send: Buffer,
        /// This rank's part of the sum; may be of another float type.
        recv: Buffer,
        /// Add to `recv` instead of overwriting it.
        accumulate: bool,
    },
    /// `buffer` = the sum of all ranks' `buffer`.
    AllReduce {
        /// Summand, then sum.
        buffer: Buffer,
    },
}

/// A collective under way. Not waiting for it ends the group: dropping it aborts, and returns when no peer reads its
/// buffers any more.
#[must_use = "a started collective must be waited for"]
pub struct Ticket {
    pub(crate) sequence: u64,
    /// Taken by `wait`.
    pub(crate) request: Option<Request>,
    /// Who must be told when the ticket is dropped instead.
    pub(crate) owner: Option<std::sync::Arc<dyn Abandon>>,
}

/// Told of tickets that nobody waited for.
pub(crate) trait Abandon: Send + Sync {
    /// Returns when nobody uses the ticket's buffers any more.
    fn abandoned(&self, sequence: u64);
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let (Some(_), Some(owner)) = (&self.request, &self.owner) {
            owner.abandoned(self.sequence);
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("sequence", &self.sequence)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// The ranks of a group, as one of them sees it. All ranks call the same collectives in the same order.
///
/// Sums are in f32 (f64 for f64 buffers) whatever type travels. Zero-length buffers are fine.
pub trait Communicator: Send {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// `buffer` = the sum over ranks.
    fn all_reduce(&self, buffer: ViewMut<'_>) -> Result<()>;

    /// `recv` = (recv +) this rank's part of the sum over ranks of `send`; `send.len() == size * recv.len()`. `recv` may
    /// be of another float type than `send`.
    fn reduce_scatter(&self, send: View<'_>, recv: ViewMut<'_>, accumulate: bool) -> Result<()>;

    /// As `reduce_scatter` with `recv` the `rank`-th of `size` equal parts of `buffer`; the other parts are left as they were.
    fn reduce_scatter_in_place(&self, buffer: ViewMut<'_>) -> Result<()>;

    /// `recv` = all ranks' `send` in rank order; `recv.len() == size * send.len()`.
    fn all_gather(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()>;

    /// As `all_gather` with `send` the `rank`-th of `size` equal parts of `buffer`.
    fn all_gather_in_place(&self, buffer: ViewMut<'_>) -> Result<()>;

    /// `buffer` = the root's.
    fn broadcast(&self, buffer: ViewMut<'_>, root: usize) -> Result<()>;

    /// Part `i` of `recv` = part `rank` of rank `i`'s `send`; both in `size` equal parts.
    fn all_to_all(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()>;

    /// Gives `buffer` to rank `to`, which calls `recv`; returns when it has been read.
    fn send(&self, buffer: View<'_>, to: usize) -> Result<()>;

    /// Takes what rank `from` sends; lengths and types must agree.
    fn recv(&self, buffer: ViewMut<'_>, from: usize) -> Result<()>;

    /// Returns when all ranks have called it.
    fn barrier(&self) -> Result<()>;

    /// Starts a collective; several may be under way, and all ranks start them in the same order.
    fn start(&self, request: Request) -> Result<Ticket>;

    /// Finishes a collective and gives its buffers back.
    fn wait(&self, ticket: Ticket) -> Result<Request>;

    /// The group of the ranks that give the same `color`, ordered by `key`, then by rank. A collective call.
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>>;

    /// Ends the group: every rank that waits or comes gets [`CommError::Aborted`]. The first reason stays.
    fn abort(&self, reason: &str);

    /// Bytes this rank has read from and written to other ranks' memory so far (not through tickets' bookkeeping).
    fn wire_bytes(&self) -> u64;
}

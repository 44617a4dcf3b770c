//! How ranks talk. One trait, and implementations that move bytes in their own way.
//!
//! A sum over ranks is a balanced tree in rank order ([`zbench_kernels::Kernels::reduce`]), whatever the collective and
//! however the buffer is split, so that `local` gives the same bits for every strategy.

mod call;
mod cause;
pub mod compose;
mod group_name;
mod host_staged;
pub mod link;
mod metered;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod nccl;
mod null;
mod progress;
mod raw;
mod rendezvous;
mod shared_memory;
mod tcp;
mod ticket;
mod uneven;

pub use call::{Call, CollectiveKind, Kind, OwnedCall, Shape};
pub use group_name::GroupName;
pub use host_staged::HostStaged;
pub use metered::{Metered, Seen, Totals, Traffic};
pub use null::{Collective, CollectiveLog, Null};
pub use rendezvous::{MAX_BLOB_BYTES, Meeting, Rendezvous, RendezvousError};
pub use shared_memory::{Exchange, Shared, group, shm};
pub use tcp::{Tcp, TcpOptions, tcp};
pub use ticket::Ticket;
pub(crate) use ticket::{Abandon, Started, why_abandoned};
pub use uneven::all_to_all_v;

pub use zbench_kernels::ReduceOp;
use zbench_kernels::{KernelError, View, ViewMut};

/// Why a collective failed. All ranks of the group get an error, the first one the cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// Another rank ended before the collective was complete.
    #[error("rank {rank} of {group} ended the run: {reason}")]
    Aborted { group: String, rank: usize, reason: String },
    /// Ranks that did not arrive in time.
    #[error("{operation} number {sequence} of {group}: waited {seconds} s for rank(s) {missing:?}")]
    Stalled { group: String, operation: &'static str, sequence: u64, missing: Vec<usize>, seconds: u64 },
    /// Ranks called different collectives, or the same with different sizes or types.
    #[error("collective number {sequence} of {group} does not match: rank {rank} called {theirs}, this rank {ours}")]
    Mismatch { group: String, sequence: u64, rank: usize, theirs: String, ours: String },
    /// Buffers or operands that do not fit the collective. The group goes on.
    #[error("{operation}: {reason}")]
    Invalid { operation: &'static str, reason: String },
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

pub(crate) fn invalid(operation: &'static str, reason: impl std::fmt::Display) -> CommError {
    CommError::Invalid { operation, reason: reason.to_string() }
}

/// An all-reduce of at most this many bytes takes one round on `local`, `shm` and `tcp`: every rank reads every other's
/// buffer and sums all of it. Larger ones are reduced in parts, which then go to all. A plan counts on it
/// ([`Null`]). Two ranks receive the same bytes either way.
pub const ONE_ROUND_BYTES: usize = shared_memory::EAGER_BYTES;

pub type Result<T, E = CommError> = std::result::Result<T, E>;

#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub rank: usize,
    pub size: usize,
    /// What moves the bytes: `local`, `device`, `shm`, `tcp`, `mpi`, `nccl`, `null`.
    pub backend: &'static str,
}

/// The ranks of a group, as one of them sees it. All ranks call the same collectives in the same order.
///
/// Sums are in f32 (f64 for f64 buffers, i64 for integers) whatever type travels. Zero-length buffers are fine.
pub trait Communicator: Send {
    fn member(&self) -> Member;

    /// The algorithm that carries a call whose largest buffer has `bytes`, for reports.
    fn algorithm(&self, _kind: Kind, _bytes: u64) -> &'static str {
        "direct"
    }

    /// Performs a collective; returns when this rank may use its buffers again.
    ///
    /// # Errors
    /// As [`CommError`] says. After any but `Invalid` the group is at its end.
    fn call(&self, call: Call<'_>) -> Result<()>;

    /// Starts a collective; several may be under way, and all ranks start them in the same order.
    fn start(&self, request: OwnedCall) -> Result<Ticket>;

    /// Finishes a collective and gives its buffers back.
    fn wait(&self, ticket: Ticket) -> Result<OwnedCall>;

    /// The group of the ranks that give the same `color`, ordered by `key`, then by rank. A collective call.
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>>;

    /// Ends the group: every rank that waits or comes gets [`CommError::Aborted`]. The first reason stays.
    fn abort(&self, reason: &str);

    /// Bytes that this rank has read from and written to other ranks' memory, or received, so far. Each byte that crosses counts
    /// once, on the side that asks for it.
    fn wire_bytes(&self) -> u64;

    /// How this rank's calls in this group fared on emulated links; `None` where links are real.
    fn link_use(&self) -> Option<link::LinkUse> {
        None
    }

    fn rank(&self) -> usize {
        self.member().rank
    }

    fn size(&self) -> usize {
        self.member().size
    }

    fn backend(&self) -> &'static str {
        self.member().backend
    }

    /// `buffer` = the sum over ranks.
    fn all_reduce(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.call(Call::in_place(Kind::AllReduce { op: ReduceOp::Sum }, buffer))
    }

    /// `recv` = (recv +) this rank's part of the sum over ranks of `send`; `send.len() == size * recv.len()`. `recv` may
    /// be of another float type than `send`.
    fn reduce_scatter(&self, send: View<'_>, recv: ViewMut<'_>, accumulate: bool) -> Result<()> {
        self.call(Call::new(Kind::ReduceScatter { op: ReduceOp::Sum, accumulate }, send, recv))
    }

    /// As `reduce_scatter` with `recv` the `rank`-th of `size` equal parts of `buffer`; the other parts are left as they were.
    fn reduce_scatter_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.call(Call::in_place(Kind::ReduceScatter { op: ReduceOp::Sum, accumulate: false }, buffer))
    }

    /// `recv` = all ranks' `send` in rank order; `recv.len() == size * send.len()`.
    fn all_gather(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        self.call(Call::new(Kind::AllGather, send, recv))
    }

    /// As `all_gather` with `send` the `rank`-th of `size` equal parts of `buffer`.
    fn all_gather_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.call(Call::in_place(Kind::AllGather, buffer))
    }

    /// `buffer` = the root's.
    fn broadcast(&self, buffer: ViewMut<'_>, root: usize) -> Result<()> {
        self.call(Call::in_place(Kind::Broadcast { root }, buffer))
    }

    /// Part `i` of `recv` = part `rank` of rank `i`'s `send`; both in `size` equal parts.
    fn all_to_all(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        self.call(Call::new(Kind::AllToAll, send, recv))
    }

    /// Gives `buffer` to rank `to`, which calls `recv`; returns when it has been read.
    fn send(&self, buffer: View<'_>, to: usize) -> Result<()> {
        self.call(Call::giving(Kind::Send { to }, buffer))
    }

    /// Takes what rank `from` sends; lengths and types must agree.
    fn recv(&self, buffer: ViewMut<'_>, from: usize) -> Result<()> {
        self.call(Call::in_place(Kind::Recv { from }, buffer))
    }

    /// Returns when all ranks have called it.
    fn barrier(&self) -> Result<()> {
        self.call(Call::barrier())
    }
}

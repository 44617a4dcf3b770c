//! What ranks ask of each other: one value for every collective, so that each backend and wrapper has one way in.

mod check;

use super::Result;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use zbench_kernels::{Buffer, DType, ReduceOp, View, ViewMut};

/// The collectives, by NCCL's meanings. `n` is the number of ranks, `part` an n-th of a buffer in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `recv` = `op` over all ranks' `send`.
    AllReduce { op: ReduceOp },
    /// `recv` = this rank's part of `op` over all ranks' `send`, added to what is in `recv` where `accumulate` says so.
    ReduceScatter { op: ReduceOp, accumulate: bool },
    /// `recv` = all ranks' `send` in rank order.
    AllGather,
    /// Every rank's `recv` = the root's `send`.
    Broadcast { root: usize },
    /// The root's `recv` = `op` over all ranks' `send`.
    Reduce { op: ReduceOp, root: usize },
    /// The root's `recv` = all ranks' `send` in rank order.
    Gather { root: usize },
    /// `recv` = this rank's part of the root's `send`.
    Scatter { root: usize },
    /// Part `i` of `recv` = part `rank` of rank `i`'s `send`.
    AllToAll,
    /// Gives `send` to a rank that receives; returns when it may be changed.
    Send { to: usize },
    /// Takes what a rank sends.
    Recv { from: usize },
    /// `Send` and `Recv` at once, so that a ring of ranks does not wait for itself.
    SendRecv { to: usize, from: usize },
    /// Returns when all ranks have called it.
    Barrier,
}

/// A [`Kind`] without its operands. The declaration order, alphabetical by name, is the order of rows in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    #[serde(rename = "sendrecv")]
    SendRecv,
}

impl CollectiveKind {
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Barrier => "barrier",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Recv => "recv",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::Scatter => "scatter",
            CollectiveKind::Send => "send",
            CollectiveKind::SendRecv => "sendrecv",
        }
    }

    /// Whether all ranks of the group take part; else it is a matter of two.
    pub(crate) const fn is_collective(self) -> bool {
        !matches!(self, CollectiveKind::Send | CollectiveKind::Recv | CollectiveKind::SendRecv)
    }

    pub(crate) fn find(name: &str) -> Option<CollectiveKind> {
        let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
        CollectiveKind::deserialize(name).ok()
    }

    /// A call in words, for the error when ranks do not agree. `operands` are those of [`Kind::operands`].
    pub(crate) fn describe(self, operands: (ReduceOp, bool, usize), send: Shape, recv: Shape) -> String {
        let shape = |(dtype, len): Shape| format!("{len} {dtype}");
        let ((op, accumulate, root), name, send, recv) = (operands, self.name(), shape(send), shape(recv));
        let op = if op == ReduceOp::Sum { String::new() } else { format!(" ({op})") };
        match self {
            CollectiveKind::AllReduce => format!("{name}{op} of {recv}"),
            CollectiveKind::ReduceScatter if accumulate => format!("{name}{op} of {send} onto {recv}"),
            CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll => {
                format!("{name}{op} of {send} to {recv}")
            }
            CollectiveKind::Broadcast | CollectiveKind::Scatter => format!("{name} of {recv} from rank {root}"),
            CollectiveKind::Reduce | CollectiveKind::Gather => format!("{name}{op} of {send} to rank {root}"),
            CollectiveKind::Send | CollectiveKind::SendRecv => format!("{name} of {send}"),
            CollectiveKind::Recv => format!("{name} of {recv}"),
            CollectiveKind::Barrier => name.to_owned(),
        }
    }
}

impl Kind {
    pub const fn collective(self) -> CollectiveKind {
        match self {
            Kind::AllReduce { .. } => CollectiveKind::AllReduce,
            Kind::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            Kind::AllGather => CollectiveKind::AllGather,
            Kind::Broadcast { .. } => CollectiveKind::Broadcast,
            Kind::Reduce { .. } => CollectiveKind::Reduce,
            Kind::Gather { .. } => CollectiveKind::Gather,
            Kind::Scatter { .. } => CollectiveKind::Scatter,
            Kind::AllToAll => CollectiveKind::AllToAll,
            Kind::Send { .. } => CollectiveKind::Send,
            Kind::Recv { .. } => CollectiveKind::Recv,
            Kind::SendRecv { .. } => CollectiveKind::SendRecv,
            Kind::Barrier => CollectiveKind::Barrier,
        }
    }

    pub const fn name(self) -> &'static str {
        self.collective().name()
    }

    /// Whether all ranks of the group take part; else it is a matter of two.
    pub const fn is_collective(self) -> bool {
        self.collective().is_collective()
    }

    /// How it combines (a sum where it does not), whether onto what is there, and the root (0 where there is none).
    pub(crate) const fn operands(self) -> (ReduceOp, bool, usize) {
        match self {
            Kind::AllReduce { op } => (op, false, 0),
            Kind::ReduceScatter { op, accumulate } => (op, accumulate, 0),
            Kind::Reduce { op, root } => (op, false, root),
            Kind::Broadcast { root } | Kind::Gather { root } | Kind::Scatter { root } => (ReduceOp::Sum, false, root),
            _ => (ReduceOp::Sum, false, 0),
        }
    }

    /// How it combines what ranks give, if it does.
    pub const fn op(self) -> Option<ReduceOp> {
        match self {
            Kind::AllReduce { op } | Kind::ReduceScatter { op, .. } | Kind::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }
}

/// A collective with this rank's buffers.
///
/// | kind | `send` | `recv` | in place (`send` is absent) |
/// | --- | --- | --- | --- |
/// | all_reduce | whole | whole | `recv` is the summand too |
/// | reduce_scatter | whole | part, may be of another float type | `recv` is the whole; its part `rank` gets the result, the rest stays |
/// | all_gather | part | whole | part `rank` of `recv` is the summand |
/// | broadcast | the root's, ignored elsewhere | whole | the root's `recv` is what it gives |
/// | reduce | whole | the root's, absent elsewhere | the root's `recv` is its summand |
/// | gather | part | the root's whole, absent elsewhere | part `rank` of the root's `recv` is its own |
/// | scatter | the root's whole, ignored elsewhere | part; absent at the root: its part stays where it is | |
/// | all_to_all | whole | whole | `recv` is both |
/// | send, recv, sendrecv | what is given | what is taken | |
/// | barrier | | | |
#[derive(Debug)]
pub struct Call<'a> {
    pub kind: Kind,
    pub send: Option<View<'a>>,
    pub recv: Option<ViewMut<'a>>,
}

/// A buffer's type and length.
pub type Shape = (DType, usize);

impl<'a> Call<'a> {
    pub fn new(kind: Kind, send: View<'a>, recv: ViewMut<'a>) -> Call<'a> {
        Call { kind, send: Some(send), recv: Some(recv) }
    }

    pub fn in_place(kind: Kind, recv: ViewMut<'a>) -> Call<'a> {
        Call { kind, send: None, recv: Some(recv) }
    }

    pub fn giving(kind: Kind, send: View<'a>) -> Call<'a> {
        Call { kind, send: Some(send), recv: None }
    }

    pub fn barrier() -> Call<'static> {
        Call { kind: Kind::Barrier, send: None, recv: None }
    }

    pub fn send_shape(&self) -> Option<Shape> {
        self.send.map(|view| (view.dtype(), view.len()))
    }

    pub fn recv_shape(&self) -> Option<Shape> {
        self.recv.as_ref().map(|view| (view.dtype(), view.len()))
    }

    /// Whether the buffers fit the collective, on this rank's side. Every backend asks this first.
    ///
    /// # Errors
    /// [`super::CommError::Invalid`] says what does not fit.
    pub fn check(&self, rank: usize, size: usize) -> Result<()> {
        check::call(self.kind, rank, size, self.send_shape(), self.recv_shape())
    }

    /// What the collective is about, in bytes: the whole buffer, which all-reduce passes twice (to reduce and to gather),
    /// nothing for a barrier.
    pub fn payload_bytes(&self, size: usize) -> u64 {
        let bytes = |shape: Option<Shape>| shape.map_or(0, |(dtype, len)| (dtype.size() * len) as u64);
        let (send, recv) = (bytes(self.send_shape()), bytes(self.recv_shape()));
        match self.kind {
            Kind::AllReduce { .. } => 2 * recv,
            Kind::AllGather | Kind::Broadcast { .. } | Kind::AllToAll | Kind::Recv { .. } => recv,
            Kind::ReduceScatter { .. } if self.send.is_none() => recv,
            Kind::Reduce { .. } => send.max(recv),
            Kind::Gather { .. } => recv.max(size as u64 * send),
            Kind::Scatter { .. } => send.max(size as u64 * recv),
            Kind::ReduceScatter { .. } | Kind::Send { .. } | Kind::SendRecv { .. } => send,
            Kind::Barrier => 0,
        }
    }
}

/// A call that owns its buffers while it runs, and gives them back when it is done. Made by its constructors alone: of what
/// training overlaps with computing.
#[derive(Debug)]
#[non_exhaustive]
pub struct OwnedCall {
    pub kind: Kind,
    /// What this rank gives, unless that is `recv`.
    pub send: Option<Buffer>,
    /// What it takes; `None` where it only gives.
    pub recv: Option<Buffer>,
}

impl OwnedCall {
    /// `recv` = all ranks' `send`, in rank order; `recv.len() == size * send.len()`.
    pub fn all_gather(send: Buffer, recv: Buffer) -> OwnedCall {
        OwnedCall { kind: Kind::AllGather, send: Some(send), recv: Some(recv) }
    }

    /// `recv` = (recv +) this rank's part of the sum of all `send`; `send.len() == size * recv.len()`. `recv` may be of another
    /// float type.
    pub fn reduce_scatter(send: Buffer, recv: Buffer, accumulate: bool) -> OwnedCall {
        OwnedCall { kind: Kind::ReduceScatter { op: ReduceOp::Sum, accumulate }, send: Some(send), recv: Some(recv) }
    }

    /// As [`OwnedCall::reduce_scatter`] with the result in this rank's part of `buffer`; the other parts are left as they were.
    pub fn reduce_scatter_in_place(buffer: Buffer) -> OwnedCall {
        let kind = Kind::ReduceScatter { op: ReduceOp::Sum, accumulate: false };
        OwnedCall { kind, send: None, recv: Some(buffer) }
    }

    /// `buffer` = the sum of all ranks' `buffer`.
    pub fn all_reduce(buffer: Buffer) -> OwnedCall {
        OwnedCall { kind: Kind::AllReduce { op: ReduceOp::Sum }, send: None, recv: Some(buffer) }
    }

    /// Gives `buffer` to rank `to`. It is complete when the buffer may be changed again, which the receiver brings about alone.
    pub fn send(buffer: Buffer, to: usize) -> OwnedCall {
        OwnedCall { kind: Kind::Send { to }, send: Some(buffer), recv: None }
    }

    /// `buffer` = what rank `from` sends; lengths and types must agree.
    pub fn recv(buffer: Buffer, from: usize) -> OwnedCall {
        OwnedCall { kind: Kind::Recv { from }, send: None, recv: Some(buffer) }
    }

    pub fn as_call(&mut self) -> Call<'_> {
        let (send, recv) = (self.send.as_ref().map(Buffer::view), self.recv.as_mut().map(Buffer::view_mut));
        Call { kind: self.kind, send, recv }
    }

    /// Whether all buffers lie where the host can reach them.
    pub(crate) fn is_on_host(&self) -> bool {
        [&self.send, &self.recv].into_iter().flatten().all(|buffer| buffer.view().is_on_host())
    }
}

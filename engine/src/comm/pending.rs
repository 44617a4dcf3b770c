//! What a rank of a world that shares memory keeps of its calls under way.

use super::board::{Board, CallGroup, EAGER_BYTES};
use super::call::{Call, Kind};
use super::moves::{SCRATCH_WORDS, Seen, What};
use super::raw::RawSlice;
use super::space::Bounce;
use std::sync::Arc;
use zbench_kernels::device::Event;

/// What a rank works with; everything is used again from call to call.
pub(super) struct PendingCalls {
    pub(super) open: Vec<Open>,
    /// The next number of each group's calls.
    pub(super) numbers: Vec<(CallGroup, u64)>,
    /// Calls that came to their end and are not asked for yet.
    pub(super) finished: Vec<Finished>,
    /// Where the members' buffers of the call being worked on lie.
    pub(super) seen: Vec<Seen>,
    pub(super) scratch: Box<[u64]>,
    /// The name that the split under way gives, and what it has made: the board, and this rank's place.
    pub(super) split_name: String,
    pub(super) formed: Option<(Board, usize)>,
}

pub(super) struct Open {
    pub(super) group: CallGroup,
    pub(super) sequence: u64,
    pub(super) stage: u8,
    /// The stage after its last piece of work.
    pub(super) last: u8,
    /// What ranks give lies beside their posts; else all must have come to the last stage before this rank may go.
    pub(super) eager: bool,
    pub(super) what: What,
    pub(super) moved: u64,
    /// Stand-ins for buffers that peers cannot reach.
    pub(super) bounce: Option<Bounce>,
}

pub(super) struct Finished {
    pub(super) group: CallGroup,
    pub(super) sequence: u64,
    pub(super) moved: u64,
    /// Marks of a device behind which all members have done their part.
    pub(super) marks: Vec<Arc<dyn Event>>,
}

/// What a rank waits for: all members at this stage of a call.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) group: CallGroup,
    pub(super) sequence: u64,
    pub(super) stage: u8,
    pub(super) operation: &'static str,
}

impl PendingCalls {
    pub(super) fn new() -> PendingCalls {
        PendingCalls {
            open: Vec::new(),
            numbers: vec![(CallGroup::All, 0)],
            finished: Vec::new(),
            seen: Vec::new(),
            scratch: vec![0; SCRATCH_WORDS].into(),
            split_name: String::new(),
            formed: None,
        }
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = Wait> {
        self.open.iter().map(|open| Wait {
            group: open.group,
            sequence: open.sequence,
            stage: open.stage,
            operation: open.what.name(),
        })
    }
}

/// Bytes that this rank writes beside its post, when the call is small enough for that on all ranks.
pub(super) fn eager_bytes(kind: Kind, rank: usize, size: usize, send: RawSlice, recv: RawSlice) -> Option<usize> {
    if !(send.on_host && recv.on_host) {
        return None;
    }
    let (given, most) = match kind {
        Kind::Broadcast { root } => (if rank == root { send.bytes() } else { 0 }, recv.bytes()),
        Kind::Scatter { root } if rank != root => (0, recv.bytes().saturating_mul(size)),
        Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } | Kind::Barrier => return None,
        _ => (send.bytes(), send.bytes()),
    };
    (most <= EAGER_BYTES).then_some(given)
}

/// Buffers as the collective uses them, in place or not: what this rank gives, and where it wants the result.
pub(super) fn buffers(call: &Call<'_>, rank: usize, size: usize) -> (RawSlice, RawSlice) {
    let send = call.send.map(RawSlice::of);
    let recv = call.recv.as_ref().map(RawSlice::of_mut);
    let both = |send: Option<RawSlice>, recv: Option<RawSlice>| {
        (send.unwrap_or(RawSlice::empty()), recv.unwrap_or(RawSlice::empty()))
    };
    match call.kind {
        Kind::AllReduce { .. } | Kind::AllToAll => both(send.or(recv), recv),
        Kind::ReduceScatter { .. } if send.is_none() => both(recv, recv.map(|whole| whole.part(rank, size))),
        Kind::AllGather => both(send.or(recv.map(|whole| whole.part(rank, size))), recv),
        Kind::Broadcast { root } if rank == root => both(send.or(recv), recv),
        Kind::Broadcast { .. } => both(None, recv),
        Kind::Reduce { root, .. } if rank == root => both(send.or(recv), recv),
        Kind::Reduce { .. } => both(send, None),
        Kind::Gather { root } if rank == root => both(send.or(recv.map(|whole| whole.part(rank, size))), recv),
        Kind::Gather { .. } => both(send, None),
        // In place the root's part stays where it is: it takes nothing, of the same type.
        Kind::Scatter { root } if rank == root => both(send, recv.or(send.map(|whole| whole.slice(0..0)))),
        Kind::Scatter { .. } => both(None, recv),
        _ => both(send, recv),
    }
}

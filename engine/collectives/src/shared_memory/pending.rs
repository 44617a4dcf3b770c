//! What a rank of a world that shares memory keeps of its calls under way, in all of its groups.

use super::board::{Board, CallGroup, EAGER_BYTES};
use super::moves::{SCRATCH_WORDS, Seen, What};
use super::protocol::{LEFT, POSTED};
use super::space::Bounce;
use crate::call::{Call, Kind};
use crate::raw::RawSlice;
use crate::{CommError, Result, invalid};
use std::sync::Arc;
use zbench_kernels::memory::device::Event;

/// A group, as one of its ranks knows it.
pub(super) struct Group {
    pub(super) board: Board,
    pub(super) rank: usize,
}

/// The calls under way; everything is used again from call to call.
pub(crate) struct PendingCalls {
    pub(super) open: Vec<Open>,
    pub(super) tools: Tools,
    next_id: u64,
    /// Calls that came to their end and are not asked for yet.
    finished: Vec<Finished>,
    /// Why this rank's calls go no further, where it was not told by another.
    pub(super) failed: Option<CommError>,
}

/// What a piece of work needs.
pub(super) struct Tools {
    /// Of each group, and of each pair in it.
    pub(super) numbers: Vec<Numbers>,
    /// Where the members' buffers of the call being worked on lie.
    pub(super) seen: Vec<Seen>,
    pub(super) scratch: Box<[u64]>,
    /// The name that the split under way gives, and what it has made: the board, and this rank's place.
    pub(super) split_name: String,
    pub(super) formed: Option<(Board, usize)>,
}

/// The calls of a group, found by its place in the world's memory, or of a pair in it.
pub(super) struct Numbers {
    group: u64,
    line: CallGroup,
    next: u64,
    /// The number of calls that all members were seen to have left.
    pub(super) left: u64,
}

pub(super) struct Open {
    pub(super) id: u64,
    pub(super) group: Arc<Group>,
    pub(super) line: CallGroup,
    /// Which of the rank's [`Numbers`] are those of its group or pair.
    pub(super) numbers: usize,
    pub(super) sequence: u64,
    /// 0 until the slots for it are free and it is posted.
    pub(super) stage: u8,
    /// The stage after its last piece of work.
    pub(super) last: u8,
    /// What ranks give lies beside their posts; else all must have come to the last stage before this rank may go.
    pub(super) eager: Option<usize>,
    pub(super) what: What,
    /// The caller's buffers.
    pub(super) send: RawSlice,
    pub(super) recv: RawSlice,
    /// On a device, what the caller had asked for before this call.
    pub(super) before: Option<Arc<dyn Event>>,
    /// The members were seen to agree.
    pub(super) agreed: bool,
    pub(super) moved: u64,
    /// Stand-ins for buffers that peers cannot reach.
    pub(super) bounce: Option<Bounce>,
    /// The rank may be elsewhere meanwhile.
    pub(super) started: bool,
}

pub(super) struct Finished {
    id: u64,
    pub(super) moved: u64,
    /// Marks of a device behind which all members have done their part.
    pub(super) marks: Vec<Arc<dyn Event>>,
}

/// What a rank waits for: all members at this stage of a call.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) id: u64,
    pub(super) group: &'a Group,
    pub(super) line: CallGroup,
    pub(super) sequence: u64,
    pub(super) stage: u8,
    pub(super) operation: &'static str,
}

impl Open {
    /// `None` where nothing is in the way.
    pub(super) fn wait(&self) -> Option<Wait<'_>> {
        let Open { id, line, sequence, stage, .. } = *self;
        let (group, operation) = (&*self.group, self.what.name());
        if stage > 0 {
            return Some(Wait { id, group, line, sequence, stage, operation });
        }
        let sequence = sequence.checked_sub(Board::depth(line))?;
        Some(Wait { id, group, line, sequence, stage: LEFT, operation: "a collective" })
    }

    /// Whether there is something to do: it can be posted, or all members have come as far as this rank.
    pub(super) fn can_go_on(&self) -> bool {
        let Ok(slots) = self.group.board.line(self.line) else { return false };
        if self.stage == 0 { slots.vacant(self.sequence, &mut 0) } else { slots.reached(self.sequence, self.stage) }
    }
}

impl PendingCalls {
    pub(super) fn new() -> PendingCalls {
        let (seen, scratch, split_name) = (Vec::new(), vec![0; SCRATCH_WORDS].into(), String::new());
        let tools = Tools { numbers: Vec::new(), seen, scratch, split_name, formed: None };
        // Room from the beginning: what is first late in a later step takes no memory then.
        let (open, finished) = (Vec::with_capacity(16), Vec::with_capacity(16));
        PendingCalls { open, tools, next_id: 0, finished, failed: None }
    }

    /// Opens a call, which is not posted yet. What finds it again.
    pub(super) fn open(&mut self, group: &Arc<Group>, line: CallGroup, what: What, of: Buffers, started: bool) -> u64 {
        let call = self.next(group, line, what, of, started);
        let id = call.id;
        self.open.push(call);
        id
    }

    /// The next call of a group, which is not among the open ones yet.
    #[inline(always)]
    pub(super) fn next(&mut self, group: &Arc<Group>, line: CallGroup, what: What, of: Buffers, started: bool) -> Open {
        let Buffers { send, recv, before } = of;
        let offset = group.board.offset();
        let known = |known: &Numbers| (known.group, known.line) == (offset, line);
        let all = &mut self.tools.numbers;
        let numbers = all.iter().position(known).unwrap_or_else(|| {
            all.push(Numbers { group: offset, line, next: 0, left: 0 });
            all.len() - 1
        });
        let (sequence, id) = (all[numbers].next, self.next_id);
        all[numbers].next += 1;
        self.next_id += 1;
        let eager = match what {
            What::Call(kind) => eager_bytes(kind, group.rank, group.board.size(), send, recv),
            What::Split(..) => None,
        };
        let works = match what {
            What::Split(..) => 2,
            What::Call(Kind::Barrier) => 0,
            What::Call(_) => 1,
        };
        Open {
            id,
            group: group.clone(),
            line,
            numbers,
            sequence,
            stage: 0,
            last: POSTED + works,
            eager,
            what,
            send,
            recv,
            before,
            agreed: false,
            moved: 0,
            bounce: None,
            started,
        }
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        self.open.iter().filter_map(Open::wait)
    }

    /// Ends the call at `index`: behind `marks` all members have done their part.
    pub(super) fn close(&mut self, index: usize, marks: Vec<Arc<dyn Event>>) {
        let Open { id, moved, bounce, .. } = self.open.swap_remove(index);
        if let Some(bounce) = bounce {
            bounce.give_back();
        }
        self.finished.push(Finished { id, moved, marks });
    }

    /// What came of a call, if it has come to its end; an error where nobody knows of it.
    pub(super) fn finished(&mut self, id: u64) -> Result<Option<Finished>> {
        if let Some(at) = self.finished.iter().position(|done| done.id == id) {
            return Ok(Some(self.finished.swap_remove(at)));
        }
        match self.open.iter().any(|open| open.id == id) {
            true => Ok(None),
            false => Err(invalid("wait", format!("call {id} is not under way"))),
        }
    }

    /// The rank has given a call up; its buffers are not touched any more.
    pub(super) fn forget(&mut self, id: u64) {
        self.open.retain(|open| open.id != id);
        self.finished.retain(|done| done.id != id);
    }

    /// Whether a call has come to its end and nobody has asked for it.
    pub(super) fn is_finished(&self, id: u64) -> bool {
        self.finished.iter().any(|done| done.id == id)
    }
}

/// A call's buffers, and what was asked of a device before it.
pub(super) struct Buffers {
    pub(super) send: RawSlice,
    pub(super) recv: RawSlice,
    pub(super) before: Option<Arc<dyn Event>>,
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
pub(crate) fn buffers(call: &Call<'_>, rank: usize, size: usize) -> (RawSlice, RawSlice) {
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

//! A call as its algorithm sees it: frames are queued to and from the members, and awaited. Who moves them is `drive`.

use super::frame::CHUNK_BYTES;
use crate::raw::RawSlice;
use std::future::poll_fn;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// What goes in one frame each.
pub(super) fn frames(what: RawSlice) -> impl Iterator<Item = RawSlice> {
    what.pieces(CHUNK_BYTES / what.dtype.size())
}

/// The ranks of a group, as one of them sees it.
pub(super) struct Group {
    pub name: String,
    /// World ranks of the members.
    pub members: Vec<usize>,
    /// This rank's place among them.
    pub rank: usize,
}

/// A call among the members of a group. Frames between two ranks are numbered, and go over the lanes by turns.
///
/// The memory of queued pieces must stay until their tag has been waited for or the call has been closed; it is up to the
/// algorithms that no piece is written while it is sent, or used while it is received.
pub(super) struct Exchange {
    pub group: Arc<Group>,
    pub rank: usize,
    shared: Arc<Mutex<Shared>>,
}

/// What an algorithm has asked for and not got yet. The algorithm runs under the lock of the rank's state, so that the lock
/// here is always free; it only shows the compiler as much.
#[derive(Default)]
pub(super) struct Shared {
    pub orders: Vec<Order>,
    /// Pieces under way by tag.
    pub tags: Vec<u32>,
    /// All of them.
    pub open: usize,
    /// Members that have not said yet that they are ready to take, where the call must not end before.
    pub awaited: usize,
    /// The algorithm goes on when all orders so far have been looked at, which clears this.
    pub again: bool,
    pub staging: Staging,
}

pub(super) enum Order {
    /// One frame to a member, or the place of one frame from it.
    Piece {
        other: usize,
        what: RawSlice,
        tag: u32,
        out: bool,
    },
    Want(usize),
    AwaitWant(usize),
}

pub(super) fn open(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    pub(super) fn new(group: Arc<Group>, shared: Arc<Mutex<Shared>>) -> Exchange {
        Exchange { rank: group.rank, group, shared }
    }

    pub(super) fn size(&self) -> usize {
        self.group.members.len()
    }

    /// The other members, beginning with the next, so that not all turn to one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size());
        (1..size).map(move |step| (rank + step) % size)
    }

    pub(super) fn tag(&self) -> u32 {
        let mut shared = open(&self.shared);
        shared.tags.push(0);
        shared.tags.len() as u32 - 1
    }

    /// Queues one frame to a member.
    pub(super) fn send(&self, to: usize, what: RawSlice, tag: u32) {
        self.queue(to, what, tag, true);
    }

    /// Queues the place of one frame from a member.
    pub(super) fn recv(&self, from: usize, what: RawSlice, tag: u32) {
        self.queue(from, what, tag, false);
    }

    fn queue(&self, other: usize, what: RawSlice, tag: u32, out: bool) {
        let mut shared = open(&self.shared);
        shared.tags[tag as usize] += 1;
        shared.open += 1;
        shared.orders.push(Order::Piece { other, what, tag, out });
    }

    /// Tells a member that gives and would hear nothing of this rank else that this rank is in the call.
    pub(super) fn want(&self, from: usize) {
        open(&self.shared).orders.push(Order::Want(from));
    }

    /// The call ends only when this member has said that it wants what it is given.
    pub(super) fn await_want(&self, to: usize) {
        let mut shared = open(&self.shared);
        shared.awaited += 1;
        shared.orders.push(Order::AwaitWant(to));
    }

    /// Room for chunks on their way. One piece of it per call.
    pub(super) fn staging(&self, bytes: usize) -> NonNull<u8> {
        open(&self.shared).staging.room(bytes)
    }

    /// Ready when all pieces with this tag are through.
    pub(super) async fn wait(&self, tag: u32) {
        self.until(|shared| shared.tags[tag as usize] == 0).await;
    }

    /// Ready when all is through.
    pub(super) async fn finish(&self) {
        self.until(|shared| shared.open == 0 && shared.awaited == 0).await;
    }

    async fn until(&self, ready: impl Fn(&Shared) -> bool) {
        poll_fn(|_| if ready(&open(&self.shared)) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Lets what has been queued so far begin to move before the algorithm goes on.
    pub(super) async fn progress(&self) {
        open(&self.shared).again = true;
        self.until(|shared| !shared.again).await;
    }
}

/// Room for the chunks of one call on their way.
#[derive(Default)]
pub(super) struct Staging(Vec<Line>);

/// Memory for chunks on their way, aligned for any kernel.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "its bytes are reached by address")] [u8; 64]);

impl Staging {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn room(&mut self, bytes: usize) -> NonNull<u8> {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0 = vec![Line([0; 64]); lines];
        }
        NonNull::from(self.0.as_mut_slice()).cast()
    }
}

/// Staging memory in slices of equal length.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    base: RawSlice,
    each: usize,
}

impl Slots {
    /// `count` slots of at least `each` elements of the type of `like`.
    pub(super) fn new(exchange: &Exchange, like: RawSlice, each: usize, count: usize) -> Slots {
        let each = each.next_multiple_of(64);
        let len = each * count;
        let ptr = exchange.staging(len * like.dtype.size());
        Slots { base: RawSlice { ptr, len, ..like }, each }
    }

    /// The first `len` elements of a slot.
    pub(super) fn get(&self, index: usize, len: usize) -> RawSlice {
        self.base.slice(index * self.each..index * self.each + len)
    }
}

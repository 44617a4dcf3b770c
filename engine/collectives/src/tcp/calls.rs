//! The calls under way, from their beginning to their end: what their algorithms order is queued, and what came before they were
//! begun is found.

use super::control::{WANT, say};
use super::exchange::{Exchange, Group, Order, Shared, open};
use super::frame::Signature;
use super::lane::{Broken, Early, Piece};
use super::mesh::Mesh;
use crate::raw::RawSlice;
use crate::{CommError, Result, invalid, why_abandoned};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// As many calls as a step has under way at a time; the staging of more is freed.
const MAX_SPARE: usize = 4;

/// The algorithm of a call.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What this rank gives and takes in a call: the same for collectives, apart for pairs.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub give: Signature,
    pub take: Signature,
    /// World ranks of the others of a pair.
    pub to: Option<usize>,
    pub from: Option<usize>,
}

pub(super) struct Open {
    /// Its number on this rank.
    pub id: u64,
    pub group: Arc<Group>,
    pub terms: Terms,
    pub shared: Arc<Mutex<Shared>>,
    /// By member.
    pub sides: Vec<Side>,
    /// Payload that has come.
    pub received: u64,
    /// What its algorithm waits for may have happened.
    pub stirred: bool,
    /// Why it cannot come to its end.
    pub failed: Option<CommError>,
    /// Gone while it is at work, and at the end.
    pub work: Option<Work>,
    /// What its algorithm came to; `Err` is a panic, for whoever waits for the call.
    pub outcome: Option<std::thread::Result<Result<()>>>,
}

/// What a call has with one member.
#[derive(Default)]
pub(super) struct Side {
    pub given: Counter,
    pub taken: Counter,
    /// A frame of it has come.
    pub came: bool,
    /// It has said that it is ready to take.
    pub wanted: bool,
    /// It has been told that this rank is.
    pub told: bool,
    /// The call does not end before it has said so.
    pub awaited: bool,
    /// What it must be ready for.
    pub held: VecDeque<Piece>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Counter {
    pub frames: u32,
    pub bytes: u64,
}

impl Side {
    /// Whether the member should have sent a frame that has not come.
    pub(super) fn is_missed(&self) -> bool {
        self.taken.frames > 0 && !self.came
    }

    pub(super) fn waits_for_word(&self) -> bool {
        self.awaited || !self.held.is_empty()
    }
}

impl Open {
    /// The place of a rank that may send frames of this call, by its world rank.
    pub(super) fn giver(&self, world: usize) -> Option<usize> {
        self.member(world, self.terms.from)
    }

    /// The place of a rank that may want frames of this call.
    pub(super) fn taker(&self, world: usize) -> Option<usize> {
        self.member(world, self.terms.to)
    }

    fn member(&self, world: usize, only: Option<usize>) -> Option<usize> {
        if self.terms.take.is_of_pair() && only != Some(world) {
            return None;
        }
        self.group.members.iter().position(|member| *member == world)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.failed.is_some() || self.outcome.is_some()
    }
}

impl Mesh {
    pub(super) fn call(&self, id: u64) -> Option<&Open> {
        self.calls.iter().find(|call| call.id == id)
    }

    pub(super) fn call_mut(&mut self, id: u64) -> Option<&mut Open> {
        self.calls.iter_mut().find(|call| call.id == id)
    }

    /// Whether calls are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.ended.is_none() && self.calls.iter().any(|call| !call.is_settled())
    }

    /// Whether a call may begin. Who has been away first hears what has happened meanwhile.
    fn ready(&mut self, terms: &Terms) -> Result<()> {
        if let Some(cause) = &self.ended {
            return Err(cause.clone());
        }
        if self.last.elapsed() > super::AWAY {
            self.current = Some(terms.take); // errors speak of it
            let news = self.news();
            self.current = None;
            news?;
        }
        Ok(())
    }

    /// Begins a call, whose rank waits for it (`blocking`) or goes elsewhere. `work` is its algorithm.
    pub(super) fn begin(
        &mut self,
        group: &Arc<Group>,
        mut terms: Terms,
        blocking: bool,
        work: impl FnOnce(Exchange) -> Work,
    ) -> Result<u64> {
        self.ready(&terms)?;
        (terms.give.blocking, terms.take.blocking) = (blocking, blocking);
        let id = self.next_call;
        self.next_call += 1;
        let staging = self.spare.pop().unwrap_or_default();
        let shared = Arc::new(Mutex::new(Shared { staging, ..Shared::default() }));
        self.calls.push(Open {
            id,
            group: group.clone(),
            terms,
            shared: shared.clone(),
            sides: group.members.iter().map(|_| Side::default()).collect(),
            received: 0,
            stirred: true,
            failed: None,
            work: Some(work(Exchange::new(group.clone(), shared))),
            outcome: None,
        });
        self.compare(id);
        Ok(id)
    }

    /// Whether what has come before the call was begun belongs to this call as this rank knows it.
    fn compare(&mut self, id: u64) {
        let Some(call) = self.calls.iter_mut().find(|call| call.id == id) else { return };
        let Terms { give, take, .. } = call.terms;
        let mut other = None;
        for peer in &mut self.peers {
            if !peer.wants.is_empty()
                && let Some(member) = call.taker(peer.rank)
                && let Some(at) = peer.wants.iter().position(|want| want.key() == give.key())
            {
                let want = peer.wants.remove(at);
                call.sides[member].wanted = true;
                other = other.or((want != give).then_some((member, want, give)));
            }
            if !peer.early.is_empty()
                && let Some(member) = call.giver(peer.rank)
            {
                let mut frames = peer.early.iter().map(|frame| frame.header.signature);
                let theirs = frames.find(|theirs| theirs.key() == take.key() && *theirs != take);
                other = other.or(theirs.map(|theirs| (member, theirs, take)));
            }
        }
        if let Some((member, theirs, ours)) = other {
            self.mismatch(id, member, &theirs, ours);
        }
    }

    /// Does what the algorithm of the call at this place has ordered since it was looked at last.
    pub(super) fn take_orders(&mut self, at: usize) {
        let shared = self.calls[at].shared.clone();
        let mut orders = std::mem::take(&mut open(&shared).orders);
        for order in orders.drain(..) {
            match order {
                Order::Piece { other, what, tag, out } => self.queue(at, other, what, tag, out),
                Order::Want(from) => self.tell(at, from),
                Order::AwaitWant(to) if self.calls[at].sides[to].wanted => {
                    open(&shared).awaited -= 1;
                    self.calls[at].stirred = true;
                }
                Order::AwaitWant(to) => self.calls[at].sides[to].awaited = true,
            }
        }
        let mut shared = open(&shared);
        shared.orders = orders;
        self.calls[at].stirred |= std::mem::take(&mut shared.again);
    }

    fn queue(&mut self, at: usize, other: usize, what: RawSlice, tag: u32, out: bool) {
        let call = &mut self.calls[at];
        let (world, key, side) = (call.group.members[other], call.terms.take.key(), &mut call.sides[other]);
        let counter = if out { &mut side.given } else { &mut side.taken };
        let (index, offset) = (counter.frames, counter.bytes);
        counter.frames += 1;
        counter.bytes += what.bytes() as u64;
        let piece =
            Piece { at: what.ptr.as_ptr(), len: what.bytes(), call: call.id, member: other, index, tag, offset };
        let peer = &mut self.peers[world];
        let lane = index as usize % peer.lanes.len();
        if out && index > 0 && !side.wanted {
            // More than one frame only to who is in the call, so that nobody keeps more for a call he has not begun.
            side.held.push_back(piece);
        } else if out {
            peer.lanes[lane].push(piece);
        } else {
            let has_come = |frame: &Early| frame.header.signature.key() == key && frame.header.index == index;
            match peer.early.iter().position(has_come) {
                Some(at) => {
                    let frame = peer.early.swap_remove(at);
                    self.put(world, lane, piece, &frame);
                }
                None => peer.lanes[lane].incoming.push_back(piece),
            }
            if index == 1 {
                self.tell(at, other);
            }
        }
    }

    /// Tells a member, once, that this rank is ready to take what it gives.
    fn tell(&mut self, at: usize, member: usize) {
        let call = &mut self.calls[at];
        if !std::mem::replace(&mut call.sides[member].told, true) {
            say(&self.peers[call.group.members[member]], WANT, &call.terms.take.encode());
        }
    }

    /// A rank has said that it is ready to take.
    pub(super) fn wanted(&mut self, world: usize, want: Signature) {
        let taker = |call: &Open| if call.terms.give.key() == want.key() { call.taker(world) } else { None };
        let found = self.calls.iter_mut().find_map(|call| taker(call).map(|member| (call, member)));
        let peer = &mut self.peers[world];
        let Some((call, member)) = found else {
            match peer.owed.iter().position(|owed| owed.key() == want.key()) {
                Some(at) => drop(peer.owed.swap_remove(at)),
                None => peer.wants.push(want),
            }
            return;
        };
        if want != call.terms.give {
            let (id, give) = (call.id, call.terms.give);
            self.mismatch(id, member, &want, give);
            return;
        }
        let side = &mut call.sides[member];
        side.wanted = true;
        if std::mem::take(&mut side.awaited) {
            open(&call.shared).awaited -= 1;
        }
        for piece in side.held.drain(..) {
            let lane = piece.index as usize % peer.lanes.len();
            peer.lanes[lane].push(piece);
        }
        call.stirred = true;
    }

    /// A piece is through.
    pub(super) fn done(&mut self, piece: Piece, out: bool) {
        let Some(call) = self.call_mut(piece.call) else { return };
        let mut shared = open(&call.shared);
        shared.tags[piece.tag as usize] -= 1;
        shared.open -= 1;
        call.stirred |= shared.tags[piece.tag as usize] == 0;
        drop(shared);
        if !out {
            call.received += piece.len as u64;
            call.sides[piece.member].came = true;
        }
    }

    /// Puts a frame that came early into its place.
    pub(super) fn put(&mut self, world: usize, lane: usize, piece: Piece, frame: &Early) {
        if !piece.put(&frame.payload) {
            self.broken(world, lane, unexpected(&frame.header, &piece));
        } else if self.options.checksum && super::frame::checksum(&frame.payload) != frame.header.checksum {
            self.broken(world, lane, Broken::Corrupt(piece));
        } else {
            self.done(piece, false);
        }
    }

    /// Forgets a call. Nothing uses its buffers any more. If it is not at its end, the world is.
    pub(super) fn close(&mut self, id: u64) -> Option<Open> {
        let at = self.calls.iter().position(|call| call.id == id)?;
        let call = self.calls.remove(at);
        if !matches!(call.outcome, Some(Ok(Ok(())))) {
            if self.ended.is_none() {
                self.abort(why_abandoned());
            }
            self.peers.iter_mut().flat_map(|peer| &mut peer.lanes).for_each(|lane| lane.forget(id));
        } else if let (true, Some(to)) = (call.terms.give.is_of_pair(), call.terms.to) {
            // A started send of one frame does not wait for the word, which will come.
            if call.taker(to).is_some_and(|to| !call.sides[to].wanted) {
                self.peers[to].owed.push(call.terms.give);
            }
        }
        let staging = std::mem::take(&mut open(&call.shared).staging);
        if !staging.is_empty() && self.spare.len() < MAX_SPARE {
            self.spare.push(staging);
        }
        Some(call)
    }
}

pub(super) fn unexpected(header: &super::frame::Header, piece: &Piece) -> Broken {
    let (index, bytes, wanted, len) = (header.index, header.bytes, piece.index, piece.len);
    Broken::Garbage(format!("frame {index} of {bytes} bytes where frame {wanted} of {len} bytes was expected"))
}

/// A call that is closed when this is dropped: on every way out of it, panics included.
struct Closing<'a> {
    mesh: &'a mut Mesh,
    id: u64,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        (self.mesh.current, self.mesh.last) = (None, Instant::now());
        self.mesh.close(self.id);
    }
}

impl Mesh {
    /// Drives all calls until this one is at its end, and closes it. The bytes that came.
    pub(super) fn complete(&mut self, id: u64) -> Result<u64> {
        let closing = Closing { mesh: self, id };
        closing.mesh.drive(id)?;
        let call = closing.mesh.close(id);
        let (outcome, received) = call.map_or((None, 0), |call| (call.outcome, call.received));
        match outcome {
            Some(Ok(result)) => result.map(|()| received),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(invalid("wait", "the collective was waited for before")),
        }
    }
}

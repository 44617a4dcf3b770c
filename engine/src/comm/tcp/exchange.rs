//! One call at work: frames queued to and from the members, moved as the sockets allow, and what is done when they do not.

use super::control::timespec;
use super::frame::Signature;
use super::lane::{Broken, Lane, Piece, Turn};
use super::mesh::Mesh;
use crate::comm::cause::WORLD;
use crate::comm::raw::RawSlice;
use crate::comm::{CommError, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Bytes of one frame at most. Small enough that a chunk is still in the cache when it is summed and sent on.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Longest sleep between two looks at the clock.
const NAP: Duration = Duration::from_millis(500);
/// How long a call goes on without any byte moved after the world has ended: what ranks sent before may be on its way.
const LAST_BYTES: Duration = Duration::from_millis(500);

/// What goes in one frame each.
pub(super) fn frames(what: RawSlice) -> impl Iterator<Item = RawSlice> {
    what.pieces(CHUNK_BYTES / what.dtype.size())
}

/// A call among the members of a group. Frames between two ranks are numbered, and go over the lanes by turns, so that both
/// sides know which lane carries which frame.
///
/// The memory of queued pieces must stay until their tag has been waited for or this value is dropped; it is up to the
/// algorithms that no piece is written while it is sent, or used while it is received.
pub(super) struct Exchange<'a> {
    pub mesh: &'a mut Mesh,
    /// World ranks of the group, and this rank's place among them.
    pub members: &'a [usize],
    pub rank: usize,
    group: &'a str,
    /// What this rank gives and takes: the same for collectives, apart for pairs.
    give: Signature,
    take: Signature,
    /// Pieces under way by tag.
    tags: Vec<u32>,
    open: usize,
    given: Vec<Counter>,
    taken: Vec<Counter>,
    /// Members that have not said yet that they are ready to take.
    awaited: Vec<usize>,
    /// Payload that has come.
    pub received: u64,
    idle_since: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Counter {
    frames: u32,
    bytes: u64,
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.mesh.current = None;
        for peer in self.mesh.peers_mut() {
            peer.lanes.iter_mut().for_each(Lane::clear);
        }
    }
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        mesh: &'a mut Mesh,
        members: &'a [usize],
        rank: usize,
        group: &'a str,
        give: Signature,
        take: Signature,
    ) -> Exchange<'a> {
        mesh.current = Some(take);
        let counters = vec![Counter::default(); members.len()];
        let (given, taken) = (counters.clone(), counters);
        let (tags, awaited) = (Vec::new(), Vec::new());
        let (open, received, idle_since) = (0, 0, None);
        Exchange { mesh, members, rank, group, give, take, tags, open, given, taken, awaited, received, idle_since }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// The other members, beginning with the next, so that not all turn to one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size());
        (1..size).map(move |step| (rank + step) % size)
    }

    pub(super) fn tag(&mut self) -> u32 {
        self.tags.push(0);
        self.tags.len() as u32 - 1
    }

    /// Queues one frame to a member.
    pub(super) fn send(&mut self, to: usize, what: RawSlice, tag: u32) {
        self.queue(to, what, tag, true);
    }

    /// Queues the place of one frame from a member.
    pub(super) fn recv(&mut self, from: usize, what: RawSlice, tag: u32) {
        self.queue(from, what, tag, false);
    }

    /// As `send`, in as many frames as needed.
    pub(super) fn send_all(&mut self, to: usize, what: RawSlice, tag: u32) {
        frames(what).for_each(|chunk| self.send(to, chunk, tag));
    }

    /// As `recv`, in as many frames as needed.
    pub(super) fn recv_all(&mut self, from: usize, what: RawSlice, tag: u32) {
        frames(what).for_each(|chunk| self.recv(from, chunk, tag));
    }

    fn queue(&mut self, other: usize, what: RawSlice, tag: u32, out: bool) {
        let counter = if out { &mut self.given[other] } else { &mut self.taken[other] };
        let (index, offset) = (counter.frames, counter.bytes);
        counter.frames += 1;
        counter.bytes += what.bytes() as u64;
        self.tags[tag as usize] += 1;
        self.open += 1;
        if let Some(peer) = &mut self.mesh.peers[self.members[other]] {
            let lane = index as usize % peer.lanes.len();
            let Lane { out: to_send, incoming, .. } = &mut peer.lanes[lane];
            let piece = Piece { at: what.ptr.as_ptr(), len: what.bytes(), index, tag, offset };
            (if out { to_send } else { incoming }).push_back(piece);
        }
    }

    /// Tells a member that gives and would hear nothing of this rank else that this rank is in the call.
    pub(super) fn want(&mut self, from: usize) {
        self.mesh.want(self.members[from], &self.take);
    }

    /// The call ends only when this member has said that it wants what it is given.
    pub(super) fn await_want(&mut self, to: usize) {
        self.awaited.push(to);
    }

    /// Returns when all pieces with this tag are through.
    pub(super) fn wait(&mut self, tag: u32) -> Result<()> {
        while self.tags[tag as usize] > 0 {
            self.turn()?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        while self.open > 0 || !self.awaited.is_empty() {
            self.turn()?;
        }
        Ok(())
    }

    /// Moves what can be moved, and waits a while if nothing can.
    fn turn(&mut self) -> Result<()> {
        if self.progress()? {
            self.idle_since = None;
            return Ok(());
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let idle = since.elapsed();
        if idle < self.mesh.spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let stall = self.mesh.options.stall;
        match &self.mesh.ended {
            Some(cause) if idle >= LAST_BYTES => Err(cause.clone()),
            Some(_) => self.sleep(LAST_BYTES - idle),
            None if idle >= stall => self.stalled(),
            None => self.sleep((stall - idle).min(NAP)),
        }
    }

    /// One turn of every lane that has work. Whether anything moved.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        let sums = self.mesh.options.checksum;
        for member in self.others() {
            let world = self.members[member];
            let lanes = self.mesh.peers[world].as_ref().map_or(0, |peer| peer.lanes.len());
            for lane in 0..lanes {
                for out in [true, false] {
                    let Some(peer) = &mut self.mesh.peers[world] else { continue };
                    let lane = &mut peer.lanes[lane];
                    let turn = if out { lane.flush(&self.give, sums) } else { lane.fill(&self.take, sums) };
                    match turn {
                        Ok(Turn::Blocked) => continue,
                        Ok(Turn::Moved) => {}
                        Ok(Turn::Done(piece)) => {
                            self.tags[piece.tag as usize] -= 1;
                            self.open -= 1;
                            self.received += if out { 0 } else { piece.len as u64 };
                        }
                        Err(broken) => return Err(self.broken(member, broken)),
                    }
                    moved = true;
                }
            }
        }
        Ok(self.hear_wants()? || moved)
    }

    fn hear_wants(&mut self) -> Result<bool> {
        let before = self.awaited.len();
        for index in (0..before).rev() {
            let member = self.awaited[index];
            let world = self.members[member];
            if self.mesh.peers[world].as_ref().is_some_and(|peer| peer.wants.is_empty()) {
                self.hear(world)?;
            }
            let Some(peer) = &mut self.mesh.peers[world] else { continue };
            if peer.wants.is_empty() {
                if peer.departed {
                    return Err(self.broken(member, Broken::Closed(String::new())));
                }
                continue;
            }
            let want = peer.wants.remove(0);
            if want != self.give {
                return Err(self.mismatch(member, &want, self.give));
            }
            self.awaited.swap_remove(index);
        }
        Ok(self.awaited.len() < before)
    }

    fn hear(&mut self, world: usize) -> Result<()> {
        let take = self.take;
        self.mesh.hear(world, &|| during(&take))
    }

    /// Sleeps until a socket has news or room, and hears what ranks say.
    fn sleep(&mut self, longest: Duration) -> Result<()> {
        let awaited: Vec<usize> = self.awaited.iter().map(|member| self.members[*member]).collect();
        let mut watched = Vec::new();
        let mut fds = Vec::new();
        for peer in self.mesh.peers.iter().flatten() {
            if !peer.closed {
                watched.push(peer.rank);
                fds.push(PollFd::from_borrowed_fd(peer.control.as_fd(), PollFlags::IN));
            }
        }
        for peer in self.mesh.peers.iter().flatten() {
            for lane in &peer.lanes {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, !lane.incoming.is_empty() || awaited.contains(&peer.rank));
                flags.set(PollFlags::OUT, !lane.out.is_empty());
                if !flags.is_empty() {
                    fds.push(PollFd::from_borrowed_fd(lane.stream.as_fd(), flags));
                }
            }
        }
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&timespec(longest)));
        let news: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (rank, _) in watched.into_iter().zip(news).filter(|(_, news)| *news) {
            self.hear(rank)?;
        }
        self.uninvited()
    }

    /// A member that should say it is ready to take and sends data in the same call instead, or the other way round, believes
    /// it to be another call.
    fn uninvited(&mut self) -> Result<()> {
        for member in self.others() {
            let Some(peer) = &self.mesh.peers[self.members[member]] else { continue };
            let said = if self.awaited.contains(&member) { peer.lanes[0].peek() } else { peer.wants.first().copied() };
            let Some(theirs) = said else { continue };
            let same = (theirs.group, theirs.sequence) == (self.give.group, self.give.sequence);
            let pair = theirs.is_of_pair() || self.give.is_of_pair();
            if same && !pair && theirs != self.give {
                return Err(self.mismatch(member, &theirs, self.give));
            }
        }
        Ok(())
    }

    /// Nothing has moved for too long: asks the members whether they wait too, and names those that do not answer. Where this
    /// rank waits for some of them, it is these; where all answer, those it waits for.
    fn stalled(&mut self) -> Result<()> {
        let stall = self.mesh.options.stall;
        self.mesh.ask(self.members);
        let until = Instant::now() + (stall / 4).clamp(Duration::from_millis(50), Duration::from_secs(2));
        while Instant::now() < until && !self.others().all(|place| self.answers(place)) {
            self.sleep(Duration::from_millis(10))?;
            if let Some(cause) = &self.mesh.ended {
                return Err(cause.clone());
            }
            if self.progress()? {
                self.idle_since = None;
                return Ok(());
            }
        }
        let silent: Vec<usize> = self.others().filter(|place| !self.answers(*place)).collect();
        let waited: Vec<usize> = self.others().filter(|place| self.waits_for(*place)).collect();
        let both: Vec<usize> = silent.iter().copied().filter(|place| waited.contains(place)).collect();
        let mut missing = [both, silent, waited].into_iter().find(|places| !places.is_empty()).unwrap_or_default();
        missing.sort_unstable();
        let (group, sequence) = (self.group.to_owned(), self.take.sequence);
        let seconds = stall.as_secs_f64().ceil() as u64;
        let stalled = CommError::Stalled { group, operation: self.take.name(), sequence, missing, seconds };
        Err(self.mesh.end(stalled, None))
    }

    fn answers(&self, member: usize) -> bool {
        self.mesh.peers[self.members[member]].as_ref().is_some_and(|peer| peer.waits)
    }

    fn waits_for(&self, member: usize) -> bool {
        let mut lanes = self.mesh.peers[self.members[member]].iter().flat_map(|peer| &peer.lanes);
        lanes.any(|lane| !lane.incoming.is_empty() || !lane.out.is_empty()) || self.awaited.contains(&member)
    }

    fn broken(&mut self, member: usize, broken: Broken) -> CommError {
        let world = self.members[member];
        let take = self.take;
        let call = || during(&take);
        // Another rank may have said why before: then what is broken here is a consequence.
        if let (false, Err(cause)) = (matches!(broken, Broken::Closed(_)), self.mesh.news(&call)) {
            return cause;
        }
        let bad = |mesh: &mut Mesh, what: String| {
            let who = mesh.peers[world].as_ref().map(|peer| format!("host {}, pid {}", peer.host, peer.pid));
            let reason = format!("{}, sent {what} in {}", who.unwrap_or_default(), call());
            mesh.end(CommError::Aborted { group: WORLD.into(), rank: world, reason }, None)
        };
        match broken {
            Broken::Closed(how) if how.is_empty() => self.mesh.lost(world, "closed its connection", &call),
            Broken::Closed(how) => self.mesh.lost(world, &format!("closed its connection ({how})"), &call),
            Broken::Garbage(what) => bad(self.mesh, what),
            Broken::Corrupt(piece) => {
                let (from, to) = (piece.offset, piece.offset + piece.len as u64);
                bad(self.mesh, format!("bytes {from} to {to} of its data with a wrong checksum"))
            }
            Broken::Mismatch(theirs) => self.mismatch(member, &theirs, take),
        }
    }

    fn mismatch(&mut self, member: usize, theirs: &Signature, ours: Signature) -> CommError {
        let mismatch = CommError::Mismatch {
            group: self.group.to_owned(),
            sequence: ours.sequence,
            rank: member,
            theirs: theirs.describe_beside(&ours),
            ours: ours.describe(),
        };
        self.mesh.end(mismatch, Some((self.members[member], self.rank)))
    }
}

pub(super) fn during(signature: &Signature) -> String {
    format!("{} number {}", signature.name(), signature.sequence)
}

//! Moving what calls have ordered: all calls of a rank together, by whoever holds the lock of its mesh.

use super::calls::{Open, unexpected};
use super::frame::{CHUNK_BYTES, Header};
use super::lane::{Broken, Early, Piece, Route, Socket, Turn};
use super::mesh::Mesh;
use crate::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Longest sleep between two looks at the clock.
pub(super) const NAP: Duration = Duration::from_millis(500);
/// How long a call goes on without any byte moved after the world has ended: what ranks sent before may be on its way.
const LAST_BYTES: Duration = Duration::from_millis(500);

/// What to watch of a socket.
pub(super) struct Watched {
    pub socket: Socket,
    pub flags: PollFlags,
    /// Whose it is, and which lane; the line of control without.
    world: usize,
    lane: Option<usize>,
}

impl Mesh {
    /// Drives all calls until this one is at its end.
    pub(super) fn drive(&mut self, id: u64) -> Result<()> {
        self.current = self.call(id).map(|call| call.terms.take);
        let mut idle_since = None;
        loop {
            // First, since a call that has failed may have got all it needs.
            let carried = self.carry();
            match self.call(id) {
                None => return Ok(()),
                Some(call) if call.outcome.is_some() => return Ok(()),
                Some(Open { failed: Some(cause), .. }) => return Err(cause.clone()),
                Some(_) => {}
            }
            if self.turn() || carried || self.call(id).is_none_or(|call| call.stirred || call.is_settled()) {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            let idle = since.elapsed();
            if idle < self.spin {
                std::hint::spin_loop();
                continue;
            }
            let stall = self.options.stall;
            match &self.ended {
                Some(cause) if idle >= LAST_BYTES => return Err(cause.clone()),
                Some(_) => self.sleep(LAST_BYTES - idle),
                None if idle >= stall => {
                    self.stalled(id)?;
                    idle_since = None;
                }
                None => {
                    self.crossed(id);
                    self.sleep((stall - idle).min(NAP));
                }
            }
        }
    }

    /// Lets the algorithms go on for which something has happened, and does what they order. Whether there were any.
    fn carry(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            if !call.stirred || call.outcome.is_some() {
                continue;
            }
            let Some(mut work) = call.work.take() else { continue };
            (call.stirred, any) = (false, true);
            // What a panic leaves is not looked at again.
            let poll = AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            let outcome = match catch_unwind(poll) {
                Ok(Poll::Pending) => {
                    call.work = Some(work);
                    self.take_orders(at);
                    continue;
                }
                Ok(Poll::Ready(result)) => Ok(result),
                Err(panic) => Err(panic),
            };
            call.outcome = Some(outcome);
            match &call.outcome {
                Some(Ok(Err(error))) => {
                    let reason = error.to_string();
                    self.abort(&reason);
                }
                Some(Err(_)) => self.abort("panicked"),
                _ => {}
            }
        }
        any
    }

    /// Moves what can be moved at once. Whether anything was.
    pub(super) fn turn(&mut self) -> bool {
        let mut moved = self.carry();
        for world in 0..self.peers.len() {
            for lane in 0..self.peers[world].lanes.len() {
                moved |= self.turn_lane(world, lane, true);
                moved |= self.turn_lane(world, lane, false);
            }
        }
        self.hear_awaited() || moved
    }

    /// Moves what one lane can at once, out or in. Whether anything was.
    fn turn_lane(&mut self, world: usize, number: usize, out: bool) -> bool {
        let Mesh { calls, peers, options, .. } = self;
        let lane = &mut peers[world].lanes[number];
        let turn = if out && lane.dead && lane.pieces().next().is_some() {
            Err(Broken::Closed(String::new()))
        } else if out && lane.has_out() {
            let signature = |id| calls.iter().find(|call| call.id == id).map(|call| call.terms.give);
            lane.flush(signature, options.checksum)
        } else if !out && lane.expects() {
            lane.fill(|header, incoming| route(calls, world, header, incoming), options.checksum)
        } else {
            return false;
        };
        match turn {
            Ok(Turn::Blocked) => return false,
            Ok(Turn::Moved) => {}
            Ok(Turn::Done(piece)) => self.done(piece, out),
            Ok(Turn::Kept(frame)) => self.came_early(world, number, frame),
            Err(broken) => return self.broken(world, number, broken),
        }
        true
    }

    /// A frame without a place is complete. Its call may have been begun, and its place be known, meanwhile.
    fn came_early(&mut self, world: usize, number: usize, frame: Early) {
        let Mesh { calls, peers, .. } = self;
        let peer = &mut peers[world];
        match route(calls, world, &frame.header, &mut peer.lanes[number].incoming) {
            Ok(Route::Place(piece)) => self.put(world, number, piece, &frame),
            Ok(Route::Keep | Route::Hold) => peer.early.push(frame),
            Err(broken) => drop(self.broken(world, number, broken)),
        }
    }

    /// Hears from those without whose word calls do not go on.
    fn hear_awaited(&mut self) -> bool {
        let mut heard = false;
        for at in 0..self.calls.len() {
            for member in 0..self.calls[at].sides.len() {
                let call = &self.calls[at];
                if call.failed.is_some() || !call.sides[member].waits_for_word() {
                    continue;
                }
                let (id, world) = (call.id, call.group.members[member]);
                self.hear(world);
                let waits = self.calls[at].sides[member].waits_for_word();
                heard |= !waits;
                if waits && self.peers[world].departed {
                    let cause = self.lost(world, "closed its connection", Some(id));
                    self.fail(id, cause);
                }
            }
        }
        heard
    }

    /// What a sleeper has to watch: what ranks say, what comes, and where there is room for what is to go.
    pub(super) fn watched(&self) -> Vec<Watched> {
        let mut watched = Vec::new();
        for peer in &self.peers {
            if let Some(socket) = peer.control.clone().filter(|_| !peer.closed) {
                watched.push(Watched { socket, flags: PollFlags::IN, world: peer.rank, lane: None });
            }
            for (number, lane) in peer.lanes.iter().enumerate().filter(|(_, lane)| !lane.dead) {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, !lane.is_held());
                flags.set(PollFlags::OUT, lane.has_out());
                if !flags.is_empty() {
                    let (socket, world, lane) = (lane.stream.clone(), peer.rank, Some(number));
                    watched.push(Watched { socket, flags, world, lane });
                }
            }
        }
        watched
    }

    /// Sleeps until a socket has news or room, and hears what ranks say.
    pub(super) fn sleep(&mut self, longest: Duration) {
        let watched = self.watched();
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|one| PollFd::new(&one.socket, one.flags)).collect();
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
        let news: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (one, _) in watched.iter().zip(news).filter(|(_, news)| *news) {
            match one.lane {
                Some(lane) => self.peers[one.world].lanes[lane].readable = true,
                None => self.hear(one.world),
            }
        }
    }

    /// After a sleep of the thread, which cannot tell what has happened: looks at everything.
    pub(super) fn look_around(&mut self) {
        self.peers.iter_mut().flat_map(|peer| &mut peer.lanes).for_each(|lane| lane.readable = true);
        (0..self.peers.len()).for_each(|world| self.hear(world));
    }
}

/// Where a frame from a rank goes.
fn route(calls: &[Open], world: usize, header: &Header, incoming: &mut VecDeque<Piece>) -> Result<Route, Broken> {
    let theirs = &header.signature;
    let call = calls.iter().find(|call| call.terms.take.key() == theirs.key() && call.giver(world).is_some());
    let fits = header.bytes <= CHUNK_BYTES as u64;
    let Some(call) = call else {
        // Nobody sends more than one frame before this rank is in the call.
        if header.index == 0 && fits {
            return Ok(Route::Keep);
        }
        let (index, bytes, call) = (header.index, header.bytes, theirs.describe());
        return Err(Broken::Garbage(format!("frame {index} of {bytes} bytes of {call}, which is not under way")));
    };
    if *theirs != call.terms.take {
        return Err(Broken::Mismatch(call.id, *theirs));
    }
    match incoming.iter().position(|piece| piece.call == call.id) {
        Some(at) if (incoming[at].index, incoming[at].len as u64) == (header.index, header.bytes) => {
            Ok(incoming.remove(at).map_or(Route::Hold, Route::Place))
        }
        Some(at) => Err(unexpected(header, &incoming[at])),
        None if !fits => Err(Broken::Garbage(format!("frame {} of {} bytes", header.index, header.bytes))),
        // Its place will be known when the call has come so far; other calls' frames may have to get past it until then.
        None if calls.len() > 1 => Ok(Route::Keep),
        None => Ok(Route::Hold),
    }
}

//! What is done when calls do not go on: who is named, and which calls end.

use super::frame::Signature;
use super::lane::Broken;
use super::mesh::Mesh;
use crate::{CollectiveKind, CommError, Result};
use std::time::{Duration, Instant};

impl Mesh {
    /// The call cannot come to its end. The first cause stays.
    pub(super) fn fail(&mut self, id: u64, cause: CommError) {
        if let Some(call) = self.call_mut(id) {
            call.failed.get_or_insert(cause);
        }
    }

    /// Fails the calls with this rank.
    pub(super) fn fail_with(&mut self, world: usize, cause: &CommError) {
        for call in self.calls.iter_mut().filter(|call| call.giver(world).or(call.taker(world)).is_some()) {
            if call.outcome.is_none() {
                call.failed.get_or_insert_with(|| cause.clone());
            }
        }
    }

    /// The call that errors speak of: this one, or that which the rank is inside, or any.
    pub(super) fn during(&self, id: Option<u64>) -> String {
        let this = id.and_then(|id| self.call(id)).or(self.calls.first().filter(|_| self.current.is_none()));
        match this.map(|call| call.terms.take).or(self.current) {
            Some(call) => format!("{} number {}", call.name(), call.sequence),
            None => "no call".into(),
        }
    }

    /// A lane is of no more use. Fails the calls that need it; whether there are any.
    pub(super) fn broken(&mut self, world: usize, number: usize, broken: Broken) -> bool {
        let lane = &mut self.peers[world].lanes[number];
        lane.dead = true;
        let mut ids: Vec<u64> = lane.pieces().map(|piece| piece.call).collect();
        match &broken {
            Broken::Corrupt(piece) => ids.insert(0, piece.call),
            Broken::Mismatch(id, _) => ids.insert(0, *id),
            _ => {}
        }
        ids.dedup();
        ids.retain(|id| self.call(*id).is_some_and(|call| !call.is_settled()));
        let closed = matches!(broken, Broken::Closed(_));
        if closed && ids.is_empty() {
            return false; // it may have left when all it had to do was done
        }
        // Another rank may have said why before: then what is broken here is a consequence.
        let cause = match (closed, self.news()) {
            (false, Err(cause)) => cause,
            _ => self.cause(world, ids.first().copied(), broken),
        };
        ids.into_iter().for_each(|id| self.fail(id, cause.clone()));
        if !closed {
            self.fail_with(world, &cause);
        }
        true
    }

    fn cause(&mut self, world: usize, id: Option<u64>, broken: Broken) -> CommError {
        let bad = |mesh: &mut Mesh, what: String| {
            let reason = format!("{}, sent {what} in {}", mesh.peers[world].process(), mesh.during(id));
            mesh.blame(world, reason)
        };
        match broken {
            Broken::Closed(how) if how.is_empty() => self.lost(world, "closed its connection", id),
            Broken::Closed(how) => self.lost(world, &format!("closed its connection ({how})"), id),
            Broken::Garbage(what) => bad(self, what),
            Broken::Corrupt(piece) => {
                let (from, to) = (piece.offset, piece.offset + piece.len as u64);
                bad(self, format!("bytes {from} to {to} of its data with a wrong checksum"))
            }
            Broken::Mismatch(id, theirs) => match self.call(id).map(|call| (call.terms.take, call.giver(world))) {
                Some((take, Some(member))) => self.mismatch(id, member, &theirs, take),
                _ => bad(self, format!("a frame of {}", theirs.describe())),
            },
        }
    }

    pub(super) fn mismatch(&mut self, id: u64, member: usize, theirs: &Signature, ours: Signature) -> CommError {
        let Some(call) = self.call(id) else { return crate::invalid("tcp", "no such call") };
        let world = call.group.members[member];
        let mismatch = CommError::Mismatch {
            group: call.group.name.clone(),
            sequence: ours.sequence,
            rank: member,
            theirs: theirs.describe_beside(&ours),
            ours: ours.describe(),
        };
        let cause = self.end(mismatch, Some((world, self.rank)));
        self.fail(id, cause.clone());
        cause
    }

    /// Whether a rank that this call waits for is inside a call that this rank has not begun, and has not begun this one: then
    /// each waits for the other for ever. It has not, if its first frame would have come before: first frames of all calls
    /// come in the order in which they are begun, except of broadcasts, which may be passed on late.
    pub(super) fn crossed(&mut self, id: u64) {
        let Some(call) = self.call(id) else { return };
        let ours = call.terms.take;
        if ours.kind == Some(CollectiveKind::Broadcast) {
            return;
        }
        let missed = call.sides.iter().enumerate().filter(|(_, side)| side.is_missed());
        let crossed = missed.map(|(member, _)| member).find_map(|member| {
            let peer = &self.peers[call.group.members[member]];
            let mut early = peer.early.iter().map(|frame| frame.header).filter(|header| header.index == 0);
            let begun = |theirs: &Signature| self.calls.iter().any(|call| call.terms.take.key() == theirs.key());
            let theirs = early.find(|header| header.signature.blocking && !begun(&header.signature))?;
            Some((member, theirs.signature))
        });
        if let Some((member, theirs)) = crossed {
            self.mismatch(id, member, &theirs, ours);
        }
    }

    /// Nothing has moved for too long: asks the members whether they wait too, and names those that do not answer. Where this
    /// rank waits for some of them, it is these; where all answer, those it waits for.
    pub(super) fn stalled(&mut self, id: u64) -> Result<()> {
        let Some(group) = self.call(id).map(|call| call.group.clone()) else { return Ok(()) };
        let stall = self.options.stall;
        self.ask(&group.members);
        let others = || (0..group.members.len()).filter(|place| *place != group.rank);
        let answers = |mesh: &Mesh, place: usize| mesh.peers[group.members[place]].waits;
        let until = Instant::now() + (stall / 4).clamp(Duration::from_millis(50), Duration::from_secs(2));
        while Instant::now() < until && !others().all(|place| answers(self, place)) {
            self.sleep(Duration::from_millis(10));
            if let Some(cause) = &self.ended {
                return Err(cause.clone());
            }
            if self.turn() {
                return Ok(());
            }
        }
        let silent: Vec<usize> = others().filter(|place| !answers(self, *place)).collect();
        let waited: Vec<usize> = others().filter(|place| self.waits_for(id, *place)).collect();
        let both: Vec<usize> = silent.iter().copied().filter(|place| waited.contains(place)).collect();
        let mut missing = [both, silent, waited].into_iter().find(|places| !places.is_empty()).unwrap_or_default();
        missing.sort_unstable();
        let Some(take) = self.call(id).map(|call| call.terms.take) else { return Ok(()) };
        let (group, sequence) = (group.name.clone(), take.sequence);
        let seconds = stall.as_secs_f64().ceil() as u64;
        let stalled = CommError::Stalled { group, operation: take.name(), sequence, missing, seconds };
        Err(self.end(stalled, None))
    }

    fn waits_for(&self, id: u64, member: usize) -> bool {
        let Some(call) = self.call(id) else { return false };
        let mut lanes = self.peers[call.group.members[member]].lanes.iter();
        lanes.any(|lane| lane.pieces().any(|piece| piece.call == id)) || call.sides[member].waits_for_word()
    }
}

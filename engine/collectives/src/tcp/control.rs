//! What ranks tell each other beside the data: that they are ready, that they leave, and why the world ends.

use super::frame::Signature;
use super::mesh::{Mesh, Peer};
use crate::cause::{Sides, WORLD, decode, encode};
use crate::{CommError, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// How long to wait for a peer's reason when its connection has ended before it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The rank is ready to take frames of the call with this signature.
pub(super) const WANT: u8 = 1;
const BYE: u8 = 2;
const END: u8 = 3;
const ASK: u8 = 4;
const HERE: u8 = 5;

impl Mesh {
    /// Ends the world, unless it has ended; says so to all. The first cause stays and is returned.
    pub(super) fn end(&mut self, cause: CommError, sides: Option<Sides>) -> CommError {
        if let Some(first) = &self.ended {
            return first.clone();
        }
        let words = encode(&cause, self.rank, sides);
        self.end_saying(cause, words.as_bytes())
    }

    fn end_saying(&mut self, cause: CommError, words: &[u8]) -> CommError {
        self.ended = Some(cause.clone());
        self.peers.iter_mut().filter(|peer| !peer.departed).for_each(|peer| say(peer, END, words));
        cause
    }

    /// Ends the world because of a rank.
    pub(super) fn blame(&mut self, rank: usize, reason: String) -> CommError {
        self.end(CommError::Aborted { group: WORLD.into(), rank, reason }, None)
    }

    /// Ends the world with this rank as the one that gave up.
    pub(super) fn abort(&mut self, reason: &str) {
        self.blame(self.rank, reason.to_owned());
    }

    /// Asks ranks whether they wait in a call: who computes, or does nothing any more, does not answer.
    pub(super) fn ask(&mut self, ranks: &[usize]) {
        for rank in ranks {
            self.peers[*rank].waits = false;
            say(&self.peers[*rank], ASK, &[]);
        }
    }

    /// Takes what a rank has said so far; does not wait. That it has ended the world is no error yet: a call whose data are on
    /// their way comes to its end.
    pub(super) fn hear(&mut self, rank: usize) {
        self.listen(rank);
        if self.ended.is_none() && self.peers[rank].closed && !self.peers[rank].departed {
            let cause = self.lost(rank, "closed its connection", None);
            self.fail_with(rank, &cause);
        }
    }

    /// Takes what all ranks have said so far. An error if the world has ended.
    pub(super) fn news(&mut self) -> Result<()> {
        (0..self.peers.len()).for_each(|rank| self.hear(rank));
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The end of the world because a rank's connection is of no more use. Its own reason, if it gave one, comes first.
    pub(super) fn lost(&mut self, rank: usize, how: &str, call: Option<u64>) -> CommError {
        let begin = Instant::now();
        loop {
            self.listen(rank);
            let peer = &self.peers[rank];
            if self.ended.is_some() || peer.closed || peer.departed || begin.elapsed() > LAST_WORDS {
                break;
            }
            if let Some(control) = &peer.control {
                let _ =
                    poll(&mut [PollFd::new(control, PollFlags::IN)], Timespec::try_from(LAST_WORDS / 10).ok().as_ref());
            }
        }
        let peer = &self.peers[rank];
        let how = if peer.departed { "left the group" } else { how };
        let reason = format!("{}, {how} in {}", peer.process(), self.during(call));
        self.blame(rank, reason)
    }

    fn listen(&mut self, rank: usize) {
        let peer = &mut self.peers[rank];
        let Some(mut control) = peer.control.as_deref() else { return };
        let mut bytes = [0; 4096];
        while !peer.closed {
            match control.read(&mut bytes) {
                Ok(0) => peer.closed = true,
                Ok(count) => peer.heard.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => peer.closed = true,
            }
        }
        let mut heard = std::mem::take(&mut peer.heard);
        let mut at = 0;
        while let Some((kind, words)) = message(&heard[at..]) {
            at += 3 + words.len();
            self.understand(rank, kind, words);
        }
        heard.drain(..at);
        self.peers[rank].heard = heard;
    }

    fn understand(&mut self, rank: usize, kind: u8, words: &[u8]) {
        let current = self.current;
        let peer = &mut self.peers[rank];
        match (kind, words.len()) {
            (WANT, 40) => {
                if let Some(want) = words.first_chunk().and_then(Signature::decode) {
                    self.wanted(rank, want);
                }
            }
            (BYE, 0) => peer.departed = true,
            (ASK, 0) if current.is_some() => say(peer, HERE, &[]),
            (ASK, 0) => {}
            (HERE, 0) => peer.waits = true,
            (END, _) => {
                let told = self.told(words).unwrap_or_else(|| CommError::Aborted {
                    group: WORLD.into(),
                    rank,
                    reason: "it gave a reason that cannot be read".into(),
                });
                if self.ended.is_none() {
                    self.end_saying(told, words); // for those who hear of this rank first
                }
            }
            _ => {
                let reason = format!("{}, said what no rank says", peer.process());
                self.blame(rank, reason);
            }
        }
    }

    /// Why another rank ends the world, as this one sees it in the call that it is about.
    fn told(&self, words: &[u8]) -> Option<CommError> {
        let told = |call: Option<&Signature>| decode(words, self.rank, call.map(Signature::describe).as_deref());
        let open = self.calls.iter().map(|call| &call.terms.take);
        let mut seen = self.current.iter().chain(open).filter_map(|call| told(Some(call)));
        seen.find(|cause| matches!(cause, CommError::Mismatch { .. })).or_else(|| told(None))
    }
}

impl Drop for Mesh {
    /// Says that this rank leaves, and takes what the others still say, so that closing cuts off nothing.
    fn drop(&mut self) {
        for peer in &mut self.peers {
            if self.ended.is_none() {
                say(peer, BYE, &[]);
            }
            let mut rest = [0; 1024];
            while peer.control.as_deref().is_some_and(|mut control| matches!(control.read(&mut rest), Ok(1..))) {}
        }
    }
}

/// The first whole message: what kind, and its words.
fn message(heard: &[u8]) -> Option<(u8, &[u8])> {
    let (head, rest) = heard.split_first_chunk::<3>()?;
    let words = rest.get(..usize::from(u16::from_le_bytes([head[1], head[2]])))?;
    Some((head[0], words))
}

/// Says something to a rank. Nobody waits for it: a rank that hears nothing any more is noticed elsewhere.
pub(super) fn say(peer: &Peer, kind: u8, words: &[u8]) {
    let Some(mut control) = peer.control.as_deref() else { return };
    let len = (words.len() as u16).to_le_bytes();
    let bytes = [&[kind, len[0], len[1]], words].concat();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match control.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let room =
                    poll(&mut [PollFd::new(&control, PollFlags::OUT)], Timespec::try_from(LAST_WORDS).ok().as_ref());
                if !matches!(room, Ok(1..)) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

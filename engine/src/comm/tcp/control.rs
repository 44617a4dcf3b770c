//! What ranks tell each other beside the data: that they are ready, that they leave, and why the world ends.

use super::frame::{Signature, known_name};
use super::mesh::{Mesh, Peer};
use crate::comm::{CommError, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// The name of the group of all ranks.
pub(super) const WORLD: &str = "world";
/// How long to wait for a peer's reason when its connection has ended before it.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest text of a cause that travels.
const MAX_TEXT: usize = 2000;

const WANT: u8 = 1;
const BYE: u8 = 2;
const END: u8 = 3;
const ASK: u8 = 4;
const HERE: u8 = 5;

/// How a rank that ends the world by a mismatch is seen from the others: the world rank it names, and its own place in the
/// group.
pub(super) type Sides = (usize, usize);

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
        self.peers_mut().filter(|peer| !peer.departed).for_each(|peer| say(peer, END, words));
        cause
    }

    /// Ends the world with this rank as the one that gave up.
    pub(super) fn abort(&mut self, reason: &str) {
        let cause = CommError::Aborted { group: WORLD.into(), rank: self.rank, reason: reason.to_owned() };
        self.end(cause, None);
    }

    /// Says that this rank leaves, and takes what the others still say, so that closing cuts off nothing.
    pub(super) fn leave(&mut self) {
        for rank in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[rank] else { continue };
            if self.ended.is_none() {
                say(peer, BYE, &[]);
            }
            let mut rest = [0; 1024];
            while matches!(peer.control.read(&mut rest), Ok(1..)) {}
        }
    }

    /// Tells a rank that this one is ready to take what it gives.
    pub(super) fn want(&mut self, rank: usize, signature: &Signature) {
        let mut words = [0; 40];
        signature.encode(&mut words);
        if let Some(peer) = &mut self.peers[rank] {
            say(peer, WANT, &words);
        }
    }

    /// Asks ranks whether they wait in a call: who computes, or does nothing any more, does not answer.
    pub(super) fn ask(&mut self, ranks: &[usize]) {
        for rank in ranks {
            if let Some(peer) = &mut self.peers[*rank] {
                peer.waits = false;
                say(peer, ASK, &[]);
            }
        }
    }

    /// Takes what a rank has said so far; does not wait. That it has ended the world is no error yet: a call whose data are on
    /// their way comes to its end. `during` names the call in the error.
    pub(super) fn hear(&mut self, rank: usize, during: &dyn Fn() -> String) -> Result<()> {
        self.listen(rank);
        match &self.peers[rank] {
            Some(peer) if peer.closed && !peer.departed && self.ended.is_none() => {
                Err(self.lost(rank, "closed its connection", during))
            }
            _ => Ok(()),
        }
    }

    /// Takes what all ranks have said so far. An error if the world has ended.
    pub(super) fn news(&mut self, during: &dyn Fn() -> String) -> Result<()> {
        for rank in 0..self.peers.len() {
            self.hear(rank, during)?;
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The end of the world because a rank's connection is of no more use. Its own reason, if it gave one, comes first.
    pub(super) fn lost(&mut self, rank: usize, how: &str, during: &dyn Fn() -> String) -> CommError {
        let begin = Instant::now();
        loop {
            self.listen(rank);
            let silent = self.peers[rank].as_ref().is_some_and(|peer| !peer.closed && !peer.departed);
            if self.ended.is_some() || !silent || begin.elapsed() > LAST_WORDS {
                break;
            }
            if let Some(peer) = &self.peers[rank] {
                let _ = poll(&mut [PollFd::new(&peer.control, PollFlags::IN)], Some(&timespec(LAST_WORDS / 10)));
            }
        }
        let Some(peer) = &self.peers[rank] else { return CommError::Invalid { operation: "tcp", reason: how.into() } };
        let (host, pid) = (&peer.host, peer.pid);
        let how = if peer.departed { "left the group" } else { how };
        let reason = format!("host {host}, pid {pid}, {how} in {}", during());
        self.end(CommError::Aborted { group: WORLD.into(), rank, reason }, None)
    }

    fn listen(&mut self, rank: usize) {
        let Some(peer) = &mut self.peers[rank] else { return };
        let mut bytes = [0; 4096];
        while !peer.closed {
            match peer.control.read(&mut bytes) {
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
        if let Some(peer) = &mut self.peers[rank] {
            peer.heard = heard;
        }
    }

    fn understand(&mut self, rank: usize, kind: u8, words: &[u8]) {
        let (current, own) = (self.current, self.rank);
        let Some(peer) = &mut self.peers[rank] else { return };
        match (kind, words.len()) {
            (WANT, 40) => {
                let signature = words.first_chunk().and_then(Signature::decode);
                peer.wants.extend(signature);
            }
            (BYE, 0) => peer.departed = true,
            (ASK, 0) if current.is_some() => say(peer, HERE, &[]),
            (ASK, 0) => {}
            (HERE, 0) => peer.waits = true,
            (END, _) => {
                let call = current.map(|call| call.describe());
                let told = decode(words, own, call.as_deref()).unwrap_or_else(|| CommError::Aborted {
                    group: WORLD.into(),
                    rank,
                    reason: "it gave a reason that cannot be read".into(),
                });
                if self.ended.is_none() {
                    self.end_saying(told, words); // for those who hear of this rank first
                }
            }
            _ => {
                let reason = format!("host {}, pid {}, said what no rank says", peer.host, peer.pid);
                self.end(CommError::Aborted { group: WORLD.into(), rank, reason }, None);
            }
        }
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().min(1 << 30) as i64, tv_nsec: time.subsec_nanos().into() }
}

/// The first whole message: what kind, and its words.
fn message(heard: &[u8]) -> Option<(u8, &[u8])> {
    let (head, rest) = heard.split_first_chunk::<3>()?;
    let words = rest.get(..usize::from(u16::from_le_bytes([head[1], head[2]])))?;
    Some((head[0], words))
}

/// Says something to a rank. Nobody waits for it: a rank that hears nothing any more is noticed elsewhere.
fn say(peer: &mut Peer, kind: u8, words: &[u8]) {
    let len = (words.len() as u16).to_le_bytes();
    let bytes = [&[kind, len[0], len[1]], words].concat();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match peer.control.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let room = poll(&mut [PollFd::new(&peer.control, PollFlags::OUT)], Some(&timespec(LAST_WORDS)));
                if !matches!(room, Ok(1..)) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// A cause as text: fields that end with a zero.
fn encode(cause: &CommError, own: usize, sides: Option<Sides>) -> String {
    let cut = |text: &str| text.chars().filter(|c| *c != '\0').take(MAX_TEXT).collect::<String>();
    let fields = match cause {
        CommError::Aborted { group, rank, reason } => vec!["aborted".into(), cut(group), rank.to_string(), cut(reason)],
        CommError::Stalled { group, operation, sequence, missing, seconds } => {
            let missing: Vec<String> = missing.iter().take(200).map(usize::to_string).collect();
            let (sequence, seconds) = (sequence.to_string(), seconds.to_string());
            vec!["stalled".into(), cut(group), (*operation).into(), sequence, missing.join(","), seconds]
        }
        CommError::Mismatch { group, sequence, rank, theirs, ours } => {
            let (named, place) = sides.unwrap_or((usize::MAX, *rank));
            let numbers = [*rank, named, own, place].map(|number| number.to_string());
            let mut fields = vec!["mismatch".into(), cut(group), sequence.to_string()];
            fields.extend(numbers);
            fields.extend([cut(theirs), cut(ours)]);
            fields
        }
        other => vec!["aborted".into(), WORLD.into(), own.to_string(), cut(&other.to_string())],
    };
    fields.join("\0")
}

/// What a rank says, as this one sees it, which is `own` in the world and in the given call.
fn decode(words: &[u8], own: usize, call: Option<&str>) -> Option<CommError> {
    let text = String::from_utf8_lossy(words);
    let mut fields = text.split('\0');
    let mut next = || fields.next().map(str::to_owned);
    match next()?.as_str() {
        "aborted" => Some(CommError::Aborted { group: next()?, rank: next()?.parse().ok()?, reason: next()? }),
        "stalled" => Some(CommError::Stalled {
            group: next()?,
            operation: known_name(&next()?),
            sequence: next()?.parse().ok()?,
            missing: next()?.split(',').filter_map(|rank| rank.parse().ok()).collect(),
            seconds: next()?.parse().ok()?,
        }),
        "mismatch" => {
            let (group, sequence) = (next()?, next()?.parse().ok()?);
            let mut number = || next()?.parse::<usize>().ok();
            let (rank, named, teller, place) = (number()?, number()?, number()?, number()?);
            let (theirs, ours) = (next()?, next()?);
            // The rank that is named sees it from the other side, and so does who called what that rank called.
            Some(if named == own || call == Some(&theirs) {
                CommError::Mismatch { group, sequence, rank: place, theirs: ours, ours: theirs }
            } else if call == Some(&ours) {
                CommError::Mismatch { group, sequence, rank, theirs, ours }
            } else {
                let calls = format!("rank {rank} called {theirs}, rank {place} {ours}");
                let reason = format!("collective number {sequence} of {group} does not match: {calls}");
                CommError::Aborted { group: WORLD.into(), rank: teller, reason }
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_arrive_as_they_were_and_mismatches_from_the_other_side() {
        let group = || "row".to_owned();
        let aborted = CommError::Aborted { group: group(), rank: 3, reason: "the disk is full".into() };
        let (sequence, seconds) = (12, 5);
        let stalled =
            CommError::Stalled { group: group(), operation: "all_gather", sequence, missing: vec![1, 7], seconds };
        for cause in [aborted, stalled] {
            assert_eq!(decode(encode(&cause, 5, None).as_bytes(), 0, None), Some(cause));
        }
        let mismatch = |rank, theirs: &str, ours: &str| CommError::Mismatch {
            group: group(),
            sequence,
            rank,
            theirs: theirs.into(),
            ours: ours.into(),
        };
        // World rank 6, place 1 in its group, names world rank 9, place 2.
        let words = encode(&mismatch(2, "barrier", "all_reduce"), 6, Some((9, 1)));
        let seen = |own, call| decode(words.as_bytes(), own, call).unwrap();
        assert_eq!(seen(9, Some("barrier")), mismatch(1, "all_reduce", "barrier"));
        assert_eq!(seen(4, Some("barrier")), mismatch(1, "all_reduce", "barrier"));
        assert_eq!(seen(4, Some("all_reduce")), mismatch(2, "barrier", "all_reduce"));
        let CommError::Aborted { rank: 6, reason, .. } = seen(4, None) else { panic!("{}", seen(4, None)) };
        assert!(reason.ends_with("does not match: rank 2 called barrier, rank 1 all_reduce"), "{reason}");
        let long = CommError::Aborted { group: group(), rank: 3, reason: "\0x".repeat(100_000) };
        assert!(encode(&long, 0, None).len() < usize::from(u16::MAX));
        for garbage in [&b""[..], b"aborted", b"stalled\0a", b"mismatch\0a\0b", &[0xff; 40]] {
            assert_eq!(decode(garbage, 0, None), None);
        }
    }
}

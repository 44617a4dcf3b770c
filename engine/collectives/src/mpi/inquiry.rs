//! Who did not come? MPI does not say. So a rank that gives up tells all others of its group what it waits in, and collects
//! their answers for a short while: who does not answer is missing, or busy elsewhere. A rank that waits, or that comes late, and
//! finds such a message gives up too, so that a group ends within one stall limit.
//!
//! Whoever calls a function of this module that calls MPI holds the lock of the process's calls (`flights.rs`).

// Calls of MPI's.
#![allow(unsafe_code)]

use super::flight::{Flight, Tags};
use super::group::Group;
use crate::CommError;
use mpi::ffi;
use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::time::Duration;

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// It failed, which is the cause; else it waits.
    failed: bool,
    /// The number of the collective it is at.
    number: u64,
    /// What it waits in, or why it failed.
    text: String,
}

/// A message: a flag, a number, text, and zeros.
const BYTES: usize = 512;
const TEXT: usize = 9;

impl Answer {
    pub(super) fn failed(number: u64, reason: &str) -> Answer {
        Answer { failed: true, number, text: reason.to_owned() }
    }

    pub(super) fn waiting(flight: &Flight) -> Answer {
        Answer { failed: false, number: flight.number, text: flight.describe() }
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.failed.into();
        bytes[1..TEXT].copy_from_slice(&self.number.to_le_bytes());
        let text = &self.text.as_bytes()[..self.text.len().min(BYTES - TEXT)];
        bytes[TEXT..TEXT + text.len()].copy_from_slice(text);
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Answer {
        let number = bytes[1..TEXT].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let text = String::from_utf8_lossy(&bytes[TEXT..]).trim_end_matches(['\0', '\u{fffd}']).to_owned();
        Answer { failed: bytes[0] != 0, number, text }
    }
}

impl Group {
    /// Whether another rank has said something: ranks are silent until one gives up.
    pub(super) fn heard(&self) -> bool {
        let mut there = 0;
        // SAFETY: a live communicator and a live output; the status is not asked for.
        let result = unsafe {
            let (source, status) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_STATUS_IGNORE);
            ffi::MPI_Iprobe(source, Tags::ANSWER, self.comm.0, &mut there, status)
        };
        result == ffi::MPI_SUCCESS as c_int && there != 0
    }

    /// Tells every other rank. The message stays in memory, since nobody waits until it is read.
    pub(super) fn tell(&self, answer: &Answer) {
        let message: &'static [u8; BYTES] = Box::leak(Box::new(answer.encode()));
        for to in (0..self.size).filter(|rank| *rank != self.rank) {
            // SAFETY: the message lives for ever; the request is never looked at again. Should it fail, the others stall, as
            // they would have without it.
            unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (buffer, count, kind) = (message.as_ptr().cast(), BYTES as c_int, ffi::RSMPI_UINT8_T);
                ffi::MPI_Isend(buffer, count, kind, to as c_int, Tags::ANSWER, self.comm.0, &mut request);
            }
        }
    }

    /// One message, if there is any, and who sent it.
    fn listen(&self) -> Option<(usize, Answer)> {
        if !self.heard() {
            return None;
        }
        let mut bytes = [0; BYTES];
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: a message is there, so this does not wait; it has BYTES bytes, as all with this tag; MPI fills the status in.
        let (result, status) = unsafe {
            let (source, kind, count) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_UINT8_T, BYTES as c_int);
            let buffer = bytes.as_mut_ptr().cast();
            let result = ffi::MPI_Recv(buffer, count, kind, source, Tags::ANSWER, self.comm.0, status.as_mut_ptr());
            (result, status.assume_init())
        };
        (result == ffi::MPI_SUCCESS as c_int).then(|| (status.MPI_SOURCE as usize, Answer::decode(&bytes)))
    }
}

/// What a rank that gives up in a call hears from the others of its group.
pub(super) struct Inquiry<'a> {
    group: &'a Group,
    flight: &'a Flight,
    /// The rank comes when the others have given up.
    late: bool,
    answers: Vec<Option<Answer>>,
}

impl<'a> Inquiry<'a> {
    /// Tells the others what this rank waits in, unless it comes late.
    pub(super) fn begin(group: &'a Group, flight: &'a Flight, late: bool) -> Inquiry<'a> {
        let own = Answer::waiting(flight);
        if !late {
            group.tell(&own);
        }
        let mut answers: Vec<Option<Answer>> = vec![None; group.size];
        answers[group.rank] = Some(own);
        Inquiry { group, flight, late, answers }
    }

    /// How long it is worth while to listen.
    pub(super) fn patience(&self) -> Duration {
        (self.group.settings.stall / 4).clamp(Duration::from_millis(200), Duration::from_secs(2))
    }

    pub(super) fn is_complete(&self) -> bool {
        self.answers.iter().all(Option::is_some)
    }

    /// Hears one rank. Whether there was anything to hear.
    pub(super) fn listen(&mut self) -> bool {
        let Some((from, answer)) = self.group.listen() else { return false };
        // The first word counts: a rank that failed may give up a second time.
        self.answers[from].get_or_insert(answer);
        true
    }

    /// Why the group ends, as far as it is known.
    pub(super) fn conclude(&self) -> CommError {
        let Inquiry { group, flight, late, ref answers } = *self;
        let (own, seconds, group) = (group.rank, group.settings.stall.as_secs(), group.name.clone());
        let others = || answers.iter().enumerate().filter(|(rank, _)| *rank != own);
        let told = || others().filter_map(|(rank, answer)| answer.as_ref().map(|answer| (rank, answer)));
        if let Some((rank, answer)) = told().find(|(_, answer)| answer.failed) {
            return CommError::Aborted { group, rank, reason: answer.text.clone() };
        }
        let ours = flight.describe();
        let differs =
            |answer: &Answer| flight.kind.is_collective() && answer.number == flight.number && answer.text != ours;
        if let Some((rank, answer)) = told().find(|(_, answer)| differs(answer)) {
            let theirs = answer.text.clone();
            return CommError::Mismatch { group, sequence: flight.number, rank, theirs, ours };
        }
        if late && let Some((rank, answer)) = told().next() {
            let reason = format!("it gave up waiting in {} number {}", answer.text, answer.number);
            return CommError::Aborted { group, rank, reason };
        }
        let missing: Vec<usize> = others().filter(|(_, answer)| answer.is_none()).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            let told: Vec<String> =
                told().map(|(rank, at)| format!("rank {rank} {} number {}", at.text, at.number)).collect();
            let reason = format!("it waited {seconds} s in {ours} number {}, and {}", flight.number, told.join(", "));
            return CommError::Aborted { group, rank: own, reason };
        }
        CommError::Stalled { group, operation: flight.kind.name(), sequence: flight.number, missing, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_as_they_were_sent() {
        for answer in [Answer::failed(u64::MAX - 7, "the disk is full"), Answer::failed(0, "")] {
            assert_eq!(Answer::decode(&answer.encode()), answer);
        }
        let long = Answer::failed(1, &"ü".repeat(BYTES));
        let short = Answer::decode(&long.encode());
        assert!(short.text.len() > BYTES - 16 && long.text.starts_with(&short.text), "cut, never broken");
    }
}

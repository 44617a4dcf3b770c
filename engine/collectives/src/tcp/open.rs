//! The calls under way, as the mesh keeps them: from their beginning, through what is ordered, sent and received, to their end.

use super::exchange::{Group, Shared};
use super::frame::Signature;
use super::lane::Piece;
use crate::{CommError, Result};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

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

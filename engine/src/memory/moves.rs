//! What was moved between tiers.

use crate::config::MemoryTier;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zbench_kernels::Category;

/// Moves of one kind: of so many bytes between two tiers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// What was moved: the weights, the gradients, the optimizer's state, what forward keeps.
    pub what: Category,
    pub from: MemoryTier,
    pub to: MemoryTier,
    pub moves: f64,
    pub bytes: f64,
}

/// The moves of a rank. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Moves(Arc<Mutex<Noted>>);

/// What is known of the moves so far.
#[derive(Clone, Debug, Default)]
struct Noted {
    rows: Vec<Transfer>,
    /// In order, where they are listed.
    events: Option<Vec<MoveEvent>>,
    /// The number of the last transfer of a disk that was listed.
    transfer: u64,
}

/// A move, counted when it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    pub what: Category,
    pub from: MemoryTier,
    pub to: MemoryTier,
    pub bytes: u64,
}

/// Something that happens to moves, as a dry run lists it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MoveEvent {
    /// The rank copies between device and host.
    Copy(Move),
    /// A transfer of the disk begins, beside the rank's work.
    Start { transfer: u64, of: Move },
    /// The rank waits for the transfer of this number.
    Wait { transfer: u64 },
}

/// A transfer of a disk that nothing carries: a dry run notes when it is waited for.
#[derive(Debug)]
pub struct DryTransfer {
    moves: Moves,
    transfer: u64,
}

impl DryTransfer {
    pub fn wait(self) {
        if let Some(events) = &mut self.moves.noted().events {
            events.push(MoveEvent::Wait { transfer: self.transfer });
        }
    }
}

impl Moves {
    pub fn count(&self, of: Move) {
        let Move { what, from, to, bytes } = of;
        self.add(&Transfer { what, from, to, moves: 1.0, bytes: bytes as f64 });
        let Noted { events, transfer, .. } = &mut *self.noted();
        let Some(events) = events else { return };
        events.push(match [from, to].contains(&MemoryTier::Disk) {
            true => {
                *transfer += 1;
                MoveEvent::Start { transfer: *transfer, of }
            }
            false => MoveEvent::Copy(of),
        });
    }

    /// A copy that moves nothing to another tier takes its time, and is not counted.
    pub fn note_copy(&self, of: Move) {
        if let Some(events) = &mut self.noted().events {
            events.push(MoveEvent::Copy(of));
        }
    }

    /// Lists what follows in order.
    pub fn list_events(&self) {
        self.noted().events.get_or_insert_default();
    }

    /// What happened since this was last asked; nothing where it is not listed.
    pub fn take_events(&self) -> Vec<MoveEvent> {
        self.noted().events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The transfer of a disk that was counted last, for a dry run.
    pub fn last_transfer(&self) -> DryTransfer {
        DryTransfer { moves: self.clone(), transfer: self.noted().transfer }
    }

    /// Counts moves that were counted between two moments so many times again.
    pub fn count_again(&self, before: &[Transfer], after: &[Transfer], times: usize) {
        for row in after {
            let was = before.iter().find(|was| was.is_like(row));
            let more = |of: fn(&Transfer) -> f64| times as f64 * (of(row) - was.map_or(0.0, of));
            self.add(&Transfer { moves: more(|row| row.moves), bytes: more(|row| row.bytes), ..row.clone() });
        }
    }

    fn add(&self, more: &Transfer) {
        let rows = &mut self.noted().rows;
        match rows.iter_mut().find(|row| row.is_like(more)) {
            Some(row) => (row.moves, row.bytes) = (row.moves + more.moves, row.bytes + more.bytes),
            None => rows.push(more.clone()),
        }
    }

    /// What was moved so far, in the order of categories and tiers.
    pub fn counted(&self) -> Vec<Transfer> {
        let mut rows: Vec<Transfer> = self.noted().rows.iter().filter(|row| row.moves > 0.0).cloned().collect();
        rows.sort_by_key(|row| (row.what, row.from as usize, row.to as usize));
        rows
    }

    /// Nothing was moved.
    pub fn reset(&self) {
        self.noted().rows.clear();
    }

    /// Work whose moves are not counted.
    pub fn uncounted<T>(&self, work: impl FnOnce() -> T) -> T {
        let noted = self.noted().clone();
        let result = work();
        *self.noted() = noted;
        result
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transfer {
    fn is_like(&self, other: &Transfer) -> bool {
        (self.what, self.from, self.to) == (other.what, other.from, other.to)
    }
}

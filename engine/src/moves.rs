//! What was moved between homes.

use crate::config::Home;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zbench_kernels::Category;

/// Moves of one kind: of so many bytes between two homes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// What was moved: the weights, the gradients, the optimizer's state, what forward keeps.
    pub what: Category,
    pub from: Home,
    pub to: Home,
    pub moves: f64,
    pub bytes: f64,
}

/// The moves of a rank. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Moves(Arc<Mutex<Vec<Transfer>>>);

/// A move, counted when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub what: Category,
    pub from: Home,
    pub to: Home,
    pub bytes: u64,
}

impl Moves {
    pub fn count(&self, Move { what, from, to, bytes }: Move) {
        self.add(&Transfer { what, from, to, moves: 1.0, bytes: bytes as f64 });
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
        let mut rows = self.rows();
        match rows.iter_mut().find(|row| row.is_like(more)) {
            Some(row) => (row.moves, row.bytes) = (row.moves + more.moves, row.bytes + more.bytes),
            None => rows.push(more.clone()),
        }
    }

    /// What was moved so far, in the order of categories and homes.
    pub fn counted(&self) -> Vec<Transfer> {
        let mut rows: Vec<Transfer> = self.rows().iter().filter(|row| row.moves > 0.0).cloned().collect();
        rows.sort_by_key(|row| (row.what, row.from as usize, row.to as usize));
        rows
    }

    /// Nothing was moved.
    pub fn reset(&self) {
        self.rows().clear();
    }

    /// Work whose moves are not counted.
    pub fn uncounted<T>(&self, work: impl FnOnce() -> T) -> T {
        let counted = self.rows().clone();
        let result = work();
        *self.rows() = counted;
        result
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Transfer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transfer {
    fn is_like(&self, other: &Transfer) -> bool {
        (self.what, self.from, self.to) == (other.what, other.from, other.to)
    }
}

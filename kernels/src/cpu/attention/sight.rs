//! Which keys a query sees.

use crate::op::Attention;
use std::ops::Range;

/// What the queries of an operation see.
#[derive(Clone, Copy)]
pub(super) struct Sight {
    window: usize,
}

impl Sight {
    pub fn of(op: &Attention) -> Sight {
        Sight { window: op.window.unwrap_or(usize::MAX) }
    }

    /// The first key that the query at `row` of a sequence sees; its own is the last. It never falls from one row to the
    /// next.
    pub fn first(&self, _batch: usize, row: usize) -> usize {
        (row + 1).saturating_sub(self.window)
    }

    /// The keys that any of the queries `rows` sees.
    pub fn any(&self, batch: usize, rows: &Range<usize>) -> Range<usize> {
        self.first(batch, rows.start)..rows.end
    }

    /// Whether all queries `rows` see all `keys`.
    pub fn all(&self, batch: usize, rows: &Range<usize>, keys: &Range<usize>) -> bool {
        keys.end <= rows.start + 1 && self.first(batch, rows.end - 1) <= keys.start
    }
}

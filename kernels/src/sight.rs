//! Which keys a query sees.

use crate::op::Attention;
use std::ops::Range;

/// What the queries of an operation see: the keys up to their own, as far back as the window and their document reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    window: usize,
    seq: usize,
    /// For every token the place in its sequence at which its document starts.
    starts: Option<&'a [u32]>,
}

impl<'a> Sight<'a> {
    /// The starts are those that [`crate::check::documents`] let through.
    pub fn of(op: &Attention, starts: Option<&'a [u32]>) -> Sight<'a> {
        Sight { window: op.window.unwrap_or(usize::MAX), seq: op.seq, starts }
    }

    /// The first key that the query at `row` of a sequence sees; its own is the last. It never falls from one row to the
    /// next.
    #[inline]
    pub fn first(&self, batch: usize, row: usize) -> usize {
        let start = self.starts.map_or(0, |starts| starts[batch * self.seq + row] as usize);
        (row + 1).saturating_sub(self.window).max(start)
    }

    /// The keys that the query at `row` sees.
    pub fn seen(&self, batch: usize, row: usize) -> Range<usize> {
        self.first(batch, row)..row + 1
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

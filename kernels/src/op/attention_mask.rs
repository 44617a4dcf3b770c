//! Which keys a query sees.

use crate::op::Attention;
use std::ops::Range;

/// What the queries of an operation see. Of causal attention it is the keys up to their own, as far back as the window and their
/// document reach; else it is all keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionMask<'a> {
    window: usize,
    seq: usize,
    /// How many keys there are, where all queries see all of them.
    all_of: Option<usize>,
    /// For every token the place in its sequence at which its document starts.
    starts: Option<&'a [u32]>,
}

impl<'a> AttentionMask<'a> {
    /// The starts are those that [`crate::backend::check::documents`] let through.
    pub fn of(op: &Attention, starts: Option<&'a [u32]>) -> AttentionMask<'a> {
        let all_of = (!op.causal).then_some(op.kv_seq);
        AttentionMask { window: op.window.unwrap_or(usize::MAX), seq: op.seq, all_of, starts }
    }

    /// The first key that the query at `row` of a sequence sees. It never falls from one row to the next.
    #[inline]
    pub fn first(&self, batch: usize, row: usize) -> usize {
        let start = self.starts.map_or(0, |starts| starts[batch * self.seq + row] as usize);
        (row + 1).saturating_sub(self.window).max(start)
    }

    /// One past the last key that the query at `row` sees. It never falls from one row to the next.
    #[inline]
    pub fn end(&self, row: usize) -> usize {
        self.all_of.unwrap_or(row + 1)
    }

    /// The keys that the query at `row` sees.
    pub fn seen(&self, batch: usize, row: usize) -> Range<usize> {
        self.first(batch, row)..self.end(row)
    }

    /// The keys that any of the queries `rows`, of which there is at least one, sees.
    pub fn any(&self, batch: usize, rows: &Range<usize>) -> Range<usize> {
        self.first(batch, rows.start)..self.end(rows.end - 1)
    }

    /// Whether all queries `rows` see all `keys`.
    pub fn all(&self, batch: usize, rows: &Range<usize>, keys: &Range<usize>) -> bool {
        keys.end <= self.end(rows.start) && self.first(batch, rows.end - 1) <= keys.start
    }
}

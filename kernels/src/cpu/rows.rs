//! Kernels that work on whole rows: rotation and tables.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::fma;
use super::map::typed;
use super::stream::{CHUNK, Shared, elements};
use crate::numerics::round::Float32;
use crate::op::*;
use crate::{Element, View, ViewMut, no_scratch};
use std::ops::Range;

/// Rows per part so that a part is worth a thread.
pub(super) fn grain(cols: usize) -> usize {
    (16 * CHUNK).div_ceil(cols.max(1))
}

/// Columns per part: whole cache lines of the narrowest type.
pub(super) const COLUMNS: usize = 32;

impl Cpu {
    pub(super) fn run_rope(&self, op: &Rope, x: ViewMut, cos: &[f32], sin: &[f32]) {
        let (half, heads) = (op.head_dim / 2, op.heads);
        let sign = if op.inverse { -1.0 } else { 1.0 };
        if heads == 0 || half == 0 {
            return;
        }
        let width = heads * op.head_dim;
        typed!(op.dtype, T => {
            self.each_row(op.rows, width, x, no_scratch(), #[inline(always)] move |fused, row, x: &mut [T], []| {
                let table = row % op.seq * half..(row % op.seq + 1) * half;
                let (cos, sin) = (&cos[table.clone()], &sin[table]);
                for head in x.chunks_exact_mut(op.head_dim) {
                    let (low, high) = head.split_at_mut(half);
                    rotate(fused, low, high, cos, sin, sign);
                }
            })
        })
    }

    /// Calls `each(fused, row, x, kept)` with every row of `x`, `cols` elements each, and its numbers in the `N` parts of
    /// `kept`, which hold one for each row.
    pub(super) fn each_row<T: Element, const N: usize>(
        &self,
        rows: usize,
        cols: usize,
        x: ViewMut,
        kept: ViewMut,
        each: impl Fn(bool, usize, &mut [T], [&mut f32; N]) + Sync + Copy,
    ) {
        let (x, kept) = (Shared::new(x), Shared::new(kept));
        self.pool.split(rows, grain(cols), |_, part| {
            // SAFETY: each row belongs to one thread, in all parts of what is kept.
            let (x, mut kept) = unsafe {
                let kept = |i: usize| kept.elements::<f32>(i * rows + part.start..i * rows + part.end);
                (x.elements::<T>(part.start * cols..part.end * cols), std::array::from_fn::<_, N, _>(kept))
            };
            self.level.run(
                #[inline(always)]
                |fused| {
                    let own = each;
                    for (number, row) in part.enumerate() {
                        let kept = kept.each_mut().map(|kept| &mut kept[number]);
                        own(fused, row, &mut x[number * cols..][..cols], kept);
                    }
                },
            );
        });
    }

    /// `to[row] = from[source(row)]`, rows of `cols` elements of one type, which are copied as bytes; zeros where there is no source.
    pub(super) fn copy_rows(
        &self,
        rows: usize,
        cols: usize,
        from: View,
        to: ViewMut,
        source: impl Fn(usize) -> Option<usize> + Sync,
    ) {
        let (bytes, to) = (cols * from.dtype().size(), Shared::new(to));
        self.pool.split(rows, grain(cols), |_, rows| {
            for row in rows {
                // SAFETY: each row belongs to one thread.
                let to = unsafe { to.part(row * cols..(row + 1) * cols) };
                let Some(source) = source(row) else {
                    // SAFETY: so many bytes; zeros are the number 0 in every type.
                    unsafe { to.ptr().write_bytes(0, bytes) };
                    continue;
                };
                let from = from.slice(source * cols..(source + 1) * cols);
                // SAFETY: both hold `cols` elements of one type; the output is lent for writing, so they are apart.
                unsafe { to.ptr().copy_from_nonoverlapping(from.ptr(), bytes) };
            }
        });
    }

    pub(super) fn run_embedding(&self, op: &Embedding, ids: &[u32], table: View, out: ViewMut) {
        self.copy_rows(op.rows, op.cols, table, out, |row| op.vocab.find(ids[row]));
    }

    /// Threads take columns, so the rows of one token are added in order.
    pub(super) fn run_embedding_backward(&self, op: &Embedding, ids: &[u32], dy: View, dtable: ViewMut) {
        let cols = op.cols;
        typed!(op.dtype, T => typed!(dtable.dtype(), G => {
            let (dy, dtable) = (elements::<T>(&dy), Shared::new(dtable));
            self.pool.split(cols, COLUMNS, |_, range| {
                self.level.run(
                    #[inline(always)]
                    |_| {
                        for (row, id) in ids.iter().enumerate() {
                            let Some(at) = op.vocab.find(*id).filter(|_| op.padding != Some(*id)) else { continue };
                            // SAFETY: each column belongs to one thread.
                            let sums = unsafe { dtable.elements::<G>(shift(&range, at * cols)) };
                            for (sum, dy) in sums.iter_mut().zip(&dy[shift(&range, row * cols)]) {
                                *sum = G::narrow(sum.widen() + dy.widen());
                            }
                        }
                    },
                );
            });
        }))
    }
}

/// Turns the pairs of one head.
#[inline(always)]
fn rotate<T: Float32>(fused: bool, low: &mut [T], high: &mut [T], cos: &[f32], sin: &[f32], sign: f32) {
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (a, b, sin) = (low.widen(), high.widen(), sin * sign);
        *low = T::narrow(fma(fused, a, *cos, -(b * sin)));
        *high = T::narrow(fma(fused, b, *cos, a * sin));
    }
}

/// A range of a row's columns, as a range of the buffer.
pub(super) fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

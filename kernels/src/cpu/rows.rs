//! Kernels that work on whole rows: rotation and tables.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::fma;
use super::map::typed;
use super::stream::{CHUNK, Shared, elements};
use crate::op::*;
use crate::round::Float32;
use crate::{View, ViewMut};
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
            let x = Shared::new(x);
            self.pool.split(op.rows, grain(width), |_, rows| {
                // SAFETY: each row belongs to one thread.
                let x = unsafe { x.elements::<T>(rows.start * width..rows.end * width) };
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        for (row, x) in rows.zip(x.chunks_exact_mut(width)) {
                            let table = row % op.seq * half..(row % op.seq + 1) * half;
                            let (cos, sin) = (&cos[table.clone()], &sin[table]);
                            for head in x.chunks_exact_mut(op.head_dim) {
                                let (low, high) = head.split_at_mut(half);
                                rotate(fused, low, high, cos, sin, sign);
                            }
                        }
                    },
                );
            });
        })
    }

    /// Rows are copied as bytes: table and output have one type.
    pub(super) fn run_embedding(&self, op: &Embedding, ids: &[u32], table: View, out: ViewMut) {
        let (cols, bytes) = (op.cols, op.cols * op.dtype.size());
        let out = Shared::new(out);
        self.pool.split(op.rows, grain(cols), |_, rows| {
            for row in rows {
                let start = ids[row] as usize * cols;
                let from = table.slice(start..start + cols);
                // SAFETY: each row belongs to one thread.
                let to = unsafe { out.part(row * cols..(row + 1) * cols) };
                // SAFETY: both hold `cols` elements of one type; the output is lent for writing, so they are apart.
                unsafe { to.ptr().copy_from_nonoverlapping(from.ptr(), bytes) };
            }
        });
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
                            if op.padding == Some(*id) {
                                continue;
                            }
                            // SAFETY: each column belongs to one thread.
                            let sums = unsafe { dtable.elements::<G>(shift(&range, *id as usize * cols)) };
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

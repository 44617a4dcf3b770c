//! Root-mean-square normalisation, reciprocal norms, and sums over rows.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::{LANES, fma, fold, fold_rows, merge};
use super::map::typed;
use super::rows::{COLUMNS, grain};
use super::stream::{CHUNK, Shared, chunks, close, elements, open};
use crate::numerics::round::Float32;
use crate::op::{RmsNorm, RowInvNorm};
use crate::{View, ViewMut, no_scratch};
use std::ops::Range;

/// Rows summed in f32 before they are added to the total, which keeps the error of long sums small.
const BLOCK: usize = 64;

impl Cpu {
    pub(super) fn run_rms_norm(&self, op: &RmsNorm, x: View, w: View, y: ViewMut, rstd: ViewMut) {
        let (cols, eps) = (op.cols, op.eps);
        typed!(op.dtype, T => {
            let (x, w) = (elements::<T>(&x), &elements::<T>(&w)[..cols]);
            self.each_row(op.rows, cols, y, rstd, #[inline(always)] move |fused, row, y: &mut [T], [rstd]| {
                let x = &x[row * cols..][..cols];
                let mean = f64::from(squares(fused, x)) / cols as f64;
                let scale = (1.0 / (mean + eps).sqrt()) as f32;
                for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                    *y = T::narrow(x.widen() * scale * w.widen());
                }
                *rstd = scale;
            });
        })
    }

    pub(super) fn run_row_inv_norm(&self, op: &RowInvNorm, x: View, s: ViewMut) {
        let cols = op.cols;
        typed!(op.dtype, T => {
            let (x, s) = (elements::<T>(&x), Shared::new(s));
            self.pool.split(op.rows, grain(cols), |_, rows| {
                // SAFETY: each row belongs to one thread.
                let slots = unsafe { s.elements::<f32>(rows.clone()) };
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        for (row, slot) in rows.zip(slots) {
                            let sum = squares(fused, &x[row * cols..][..cols]);
                            *slot = (1.0 / f64::from(sum).sqrt()) as f32;
                        }
                    },
                );
            });
        })
    }

    pub(super) fn run_rms_norm_backward(
        &self,
        op: &RmsNorm,
        [x, w, dy]: [View; 3],
        rstd: &[f32],
        dx: ViewMut,
        dw: Option<ViewMut>,
    ) {
        let cols = op.cols;
        typed!(op.dtype, T => {
            let (x, w, dy) = (elements::<T>(&x), &elements::<T>(&w)[..cols], elements::<T>(&dy));
            self.each_row(op.rows, cols, dx, no_scratch(), #[inline(always)] move |fused, row, dx: &mut [T], []| {
                let at = row * cols..(row + 1) * cols;
                let (x, dy, scale) = (&x[at.clone()], &dy[at], rstd[row]);
                let mut lanes = [0.0; LANES];
                fold_rows(&mut lanes, [x, w, dy], #[inline(always)] |sum, [x, w, dy]| fma(fused, dy, x * w, sum));
                let mean = f64::from(merge(lanes, add)) / cols as f64;
                let pull = (-mean * f64::from(scale) * f64::from(scale) * f64::from(scale)) as f32;
                for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(w) {
                    let through = fma(fused, x.widen(), pull, dy.widen() * w.widen() * scale);
                    *dx = T::narrow(dx.widen() + through);
                }
            });
            if let Some(dw) = dw {
                self.sum_rows(op.rows, cols, 1, dw, #[inline(always)] |fused, row, at, sums| {
                    let (x, dy, scale) = (&x[at.clone()], &dy[at], rstd[row]);
                    for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                        *sum = fma(fused, dy.widen() * scale, x.widen(), *sum);
                    }
                });
            }
        })
    }

    /// `into[r % period] += row r`, where `add(fused, r, at, sums)` adds to `sums` what stands at `at` of a tensor of
    /// `rows` by `cols`. Threads take columns, so that every column is summed over rows in one order.
    pub(super) fn sum_rows(
        &self,
        rows: usize,
        cols: usize,
        period: usize,
        into: ViewMut,
        add: impl Fn(bool, usize, Range<usize>, &mut [f32]) + Sync,
    ) {
        let (level, into) = (self.level, Shared::new(into));
        self.pool.split(cols, COLUMNS, |_, range| {
            let mut target = [0.0; CHUNK];
            for chunk in chunks(range) {
                for first in 0..period.min(rows) {
                    let (mut total, mut block) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
                    let (total, block) = (&mut total[..chunk.len()], &mut block[..chunk.len()]);
                    level.run(
                        #[inline(always)]
                        |fused| {
                            let mut row = first;
                            while row < rows {
                                for _ in 0..BLOCK {
                                    if row < rows {
                                        add(fused, row, row * cols + chunk.start..row * cols + chunk.end, block);
                                        row = row.saturating_add(period);
                                    }
                                }
                                for (total, sum) in total.iter_mut().zip(&mut *block) {
                                    *total += *sum;
                                    *sum = 0.0;
                                }
                            }
                        },
                    );
                    // SAFETY: each column belongs to one thread.
                    let mut part = unsafe { into.part(first * cols + chunk.start..first * cols + chunk.end) };
                    let sums = open(level, &mut part, &mut target, true);
                    sums.iter_mut().zip(&*total).for_each(|(sum, total)| *sum += total);
                    close(level, &mut part, &target);
                }
            }
        });
    }
}

/// The sum of the squares of a row.
#[inline(always)]
fn squares<T: Float32>(fused: bool, x: &[T]) -> f32 {
    let mut lanes = [0.0; LANES];
    fold(
        &mut lanes,
        x,
        #[inline(always)]
        |sum, x| fma(fused, x, x, sum),
    );
    merge(lanes, add)
}

#[inline(always)]
pub(super) fn add(a: f32, b: f32) -> f32 {
    a + b
}

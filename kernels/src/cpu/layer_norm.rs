//! Normalisation with mean, and rows added to rows.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::{LANES, fma, fold, fold3, merge};
use super::map::typed;
use super::rms_norm::add;
use super::rows::grain;
use super::stream::{Shared, elements};
use crate::op::{BiasAdd, LayerNorm, ScaleColumns};
use crate::round::Float32;
use crate::{View, ViewMut};

impl Cpu {
    pub(super) fn run_layer_norm(
        &self,
        op: &LayerNorm,
        x: View,
        w: View,
        b: Option<View>,
        y: ViewMut,
        statistics: ViewMut,
    ) {
        let (cols, count) = (op.cols, op.rows);
        typed!(op.dtype, T => {
            let (x, w) = (elements::<T>(&x), &elements::<T>(&w)[..cols]);
            let b = b.map(|b| &elements::<T>(&b)[..cols]);
            let (y, statistics) = (Shared::new(y), Shared::new(statistics));
            self.pool.split(count, grain(cols), |_, rows| {
                let all = rows.start * cols..rows.end * cols;
                // SAFETY: each row belongs to one thread, in both halves of the statistics.
                let (y, means, rstds) = unsafe {
                    let rstds = statistics.floats(count + rows.start..count + rows.end);
                    (y.elements::<T>(all.clone()), statistics.floats(rows), rstds)
                };
                let x = &x[all];
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        for (row, (of_mean, of_rstd)) in means.iter_mut().zip(rstds).enumerate() {
                            let (x, y) = (&x[row * cols..][..cols], &mut y[row * cols..][..cols]);
                            let (mean, rstd) = moments(fused, x, op.eps);
                            (*of_mean, *of_rstd) = (mean, rstd);
                            match b {
                                Some(b) => {
                                    for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
                                        let normal = (x.widen() - mean) * rstd;
                                        *y = T::narrow(fma(fused, normal, w.widen(), b.widen()));
                                    }
                                }
                                None => {
                                    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                                        *y = T::narrow((x.widen() - mean) * rstd * w.widen());
                                    }
                                }
                            }
                        }
                    },
                );
            });
        })
    }

    pub(super) fn run_layer_norm_backward(
        &self,
        op: &LayerNorm,
        [x, w, dy]: [View; 3],
        statistics: &[f32],
        dx: ViewMut,
        [dw, db]: [Option<ViewMut>; 2],
    ) {
        let cols = op.cols;
        let (means, rstds) = statistics.split_at(op.rows);
        typed!(op.dtype, T => {
            let (x, w, dy) = (elements::<T>(&x), &elements::<T>(&w)[..cols], elements::<T>(&dy));
            let dx = Shared::new(dx);
            self.pool.split(op.rows, grain(cols), |_, rows| {
                // SAFETY: each row belongs to one thread.
                let dx = unsafe { dx.elements::<T>(rows.start * cols..rows.end * cols) };
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        for (number, row) in rows.enumerate() {
                            let at = row * cols..(row + 1) * cols;
                            let (x, dy, mean, rstd) = (&x[at.clone()], &dy[at], means[row], rstds[row]);
                            let (mut plain, mut along) = ([0.0; LANES], [0.0; LANES]);
                            fold3(
                                &mut plain,
                                [x, w, dy],
                                #[inline(always)]
                                |sum, [_, w, dy]| sum + dy * w,
                            );
                            fold3(
                                &mut along,
                                [x, w, dy],
                                #[inline(always)]
                                |sum, [x, w, dy]| fma(fused, dy * w, (x - mean) * rstd, sum),
                            );
                            let (plain, along) = (average(plain, cols), average(along, cols));
                            let dx = &mut dx[number * cols..][..cols];
                            for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(w) {
                                let normal = (x.widen() - mean) * rstd;
                                let through = fma(fused, -normal, along, dy.widen() * w.widen() - plain);
                                *dx = T::narrow(fma(fused, through, rstd, dx.widen()));
                            }
                        }
                    },
                );
            });
            if let Some(dw) = dw {
                self.sum_rows(op.rows, cols, 1, dw, #[inline(always)] |fused, row, at, sums| {
                    let (x, dy, mean, rstd) = (&x[at.clone()], &dy[at], means[row], rstds[row]);
                    for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                        *sum = fma(fused, dy.widen(), (x.widen() - mean) * rstd, *sum);
                    }
                });
            }
            if let Some(db) = db {
                self.sum_rows(op.rows, cols, 1, db, plain_rows(dy));
            }
        })
    }

    pub(super) fn run_bias_add(&self, op: &BiasAdd, table: View, x: ViewMut) {
        let (cols, period) = (op.cols, op.period);
        typed!(op.dtype, T => self.change_rows(
            op.rows,
            cols,
            x,
            elements::<T>(&table),
            #[inline(always)]
            |row| row % period * cols,
            #[inline(always)]
            |x, table| x + table,
        ))
    }

    pub(super) fn run_bias_add_backward(&self, op: &BiasAdd, dy: View, dtable: ViewMut) {
        typed!(op.dtype, T => self.sum_rows(op.rows, op.cols, op.period, dtable, plain_rows(elements::<T>(&dy))))
    }

    pub(super) fn run_scale_columns(&self, op: &ScaleColumns, w: View, x: ViewMut) {
        typed!(op.dtype, T => self.change_rows(
            op.rows,
            op.cols,
            x,
            elements::<T>(&w),
            #[inline(always)]
            |_| 0,
            #[inline(always)]
            |x, w| x * w,
        ))
    }

    pub(super) fn run_scale_columns_backward(&self, op: &ScaleColumns, x: View, dy: View, dw: ViewMut) {
        typed!(op.dtype, T => {
            let (x, dy) = (elements::<T>(&x), elements::<T>(&dy));
            self.sum_rows(op.rows, op.cols, 1, dw, #[inline(always)] |fused, _, at, sums| {
                for ((sum, x), dy) in sums.iter_mut().zip(&x[at.clone()]).zip(&dy[at]) {
                    *sum = fma(fused, dy.widen(), x.widen(), *sum);
                }
            })
        })
    }

    /// `x[r] = f(x[r], table[start(r)..])`, element by element.
    fn change_rows<T: Float32>(
        &self,
        rows: usize,
        cols: usize,
        x: ViewMut,
        table: &[T],
        start: impl Fn(usize) -> usize + Sync,
        f: impl Fn(f32, f32) -> f32 + Sync,
    ) {
        let x = Shared::new(x);
        self.pool.split(rows, grain(cols), |_, rows| {
            // SAFETY: each row belongs to one thread.
            let x = unsafe { x.elements::<T>(rows.start * cols..rows.end * cols) };
            self.level.run(
                #[inline(always)]
                |_| {
                    for (number, row) in rows.enumerate() {
                        let table = &table[start(row)..][..cols];
                        for (x, table) in x[number * cols..][..cols].iter_mut().zip(table) {
                            *x = T::narrow(f(x.widen(), table.widen()));
                        }
                    }
                },
            );
        });
    }
}

/// What [`Cpu::sum_rows`] adds for rows of a tensor as they are.
#[inline(always)]
fn plain_rows<T: Float32>(dy: &[T]) -> impl Fn(bool, usize, std::ops::Range<usize>, &mut [f32]) + Sync {
    #[inline(always)]
    move |_, _, at, sums| {
        for (sum, dy) in sums.iter_mut().zip(&dy[at]) {
            *sum += dy.widen();
        }
    }
}

/// Mean and reciprocal deviation of a row. The variance is that of differences: the mean square less the squared mean
/// would cancel.
#[inline(always)]
fn moments<T: Float32>(fused: bool, x: &[T], eps: f64) -> (f32, f32) {
    let mut lanes = [0.0; LANES];
    fold(&mut lanes, x, add);
    let mean = average(lanes, x.len());
    let mut lanes = [0.0; LANES];
    fold(
        &mut lanes,
        x,
        #[inline(always)]
        |sum, x| fma(fused, x - mean, x - mean, sum),
    );
    let variance = f64::from(merge(lanes, add)) / x.len() as f64;
    (mean, (1.0 / (variance + eps).sqrt()) as f32)
}

#[inline(always)]
fn average(lanes: [f32; LANES], cols: usize) -> f32 {
    (f64::from(merge(lanes, add)) / cols as f64) as f32
}

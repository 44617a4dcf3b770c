//! Normalisation with mean, and rows added to rows.

use super::Cpu;
use super::level::{LANES, fma, fold, fold_rows, merge};
use super::map::typed;
use super::rms_norm::add;
use super::stream::elements;
use crate::numerics::round::Float32;
use crate::op::{BiasAdd, LayerNorm, ScaleColumns};
use crate::{View, ViewMut, no_scratch};

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
        let (cols, eps) = (op.cols, op.eps);
        typed!(op.dtype, T => {
            let (x, w) = (elements::<T>(&x), &elements::<T>(&w)[..cols]);
            let b = b.map(|b| &elements::<T>(&b)[..cols]);
            self.each_row(op.rows, cols, y, statistics, #[inline(always)] move |fused, row, y: &mut [T], kept| {
                let x = &x[row * cols..][..cols];
                let (mean, rstd) = moments(fused, x, eps);
                let [of_mean, of_rstd] = kept;
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
            self.each_row(op.rows, cols, dx, no_scratch(), #[inline(always)] move |fused, row, dx: &mut [T], []| {
                let at = row * cols..(row + 1) * cols;
                let (x, dy, mean, rstd) = (&x[at.clone()], &dy[at], means[row], rstds[row]);
                let (mut plain, mut along) = ([0.0; LANES], [0.0; LANES]);
                fold_rows(&mut plain, [x, w, dy], #[inline(always)] |sum, [_, w, dy]| sum + dy * w);
                fold_rows(&mut along, [x, w, dy], #[inline(always)] |sum, [x, w, dy]| {
                    fma(fused, dy * w, (x - mean) * rstd, sum)
                });
                let (plain, along) = (average(plain, cols), average(along, cols));
                for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(w) {
                    let normal = (x.widen() - mean) * rstd;
                    let through = fma(fused, -normal, along, dy.widen() * w.widen() - plain);
                    *dx = T::narrow(fma(fused, through, rstd, dx.widen()));
                }
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
        typed!(op.dtype, T => {
            let table = elements::<T>(&table);
            self.each_row(op.rows, cols, x, no_scratch(), #[inline(always)] move |_, row, x: &mut [T], []| {
                for (x, add) in x.iter_mut().zip(&table[row % period * cols..][..cols]) {
                    *x = T::narrow(x.widen() + add.widen());
                }
            });
        })
    }

    pub(super) fn run_bias_add_backward(&self, op: &BiasAdd, dy: View, dtable: ViewMut) {
        typed!(op.dtype, T => self.sum_rows(op.rows, op.cols, op.period, dtable, plain_rows(elements::<T>(&dy))))
    }

    pub(super) fn run_scale_columns(&self, op: &ScaleColumns, w: View, x: ViewMut) {
        typed!(op.dtype, T => {
            let w = &elements::<T>(&w)[..op.cols];
            self.each_row(op.rows, op.cols, x, no_scratch(), #[inline(always)] move |_, _, x: &mut [T], []| {
                for (x, w) in x.iter_mut().zip(w) {
                    *x = T::narrow(x.widen() * w.widen());
                }
            });
        })
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

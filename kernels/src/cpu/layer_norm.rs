//! Normalisation with mean, and rows added to rows.

use super::Cpu;
use super::level::{LANES, fma, fold, fold2, merge};
use super::rows::{COLUMNS, grain, shift};
use super::stream::{CHUNK, Shared, chunks, close, load, open};
use crate::op::{AddRows, LayerNorm, MulRows};
use crate::{View, ViewMut};

/// Rows summed in f32 before they are added to the total, which keeps the error of long sums small.
const BLOCK: usize = 64;

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
        let (level, cols, rows) = (self.level, op.cols, op.rows);
        let (y, statistics) = (Shared::new(y), Shared::new(statistics));
        self.pool.split(rows, grain(cols), |_, part| {
            let [mut xs, mut ws, mut bs, mut target] = [[0.0; CHUNK]; 4];
            for row in part {
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let x = load(level, x.slice(shift(&chunk, row * cols)), &mut xs);
                    level.run(
                        #[inline(always)]
                        |_| fold(&mut lanes, x, |sum, x| sum + x),
                    );
                }
                let mean = (f64::from(merge(lanes, |a, b| a + b)) / cols as f64) as f32;
                // The variance is that of differences: the mean square less the squared mean would cancel.
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let x = load(level, x.slice(shift(&chunk, row * cols)), &mut xs);
                    level.run(
                        #[inline(always)]
                        |fused| fold(&mut lanes, x, |sum, x| fma(fused, x - mean, x - mean, sum)),
                    );
                }
                let variance = f64::from(merge(lanes, |a, b| a + b)) / cols as f64;
                let rstd = (1.0 / (variance + op.eps).sqrt()) as f32;
                // SAFETY: each row belongs to one thread, in both halves of the statistics.
                unsafe {
                    statistics.floats(row..row + 1)[0] = mean;
                    statistics.floats(rows + row..rows + row + 1)[0] = rstd;
                }
                for chunk in chunks(0..cols) {
                    let at = shift(&chunk, row * cols);
                    let x = load(level, x.slice(at.clone()), &mut xs);
                    let w = load(level, w.slice(chunk.clone()), &mut ws);
                    let b = match b {
                        Some(b) => load(level, b.slice(chunk), &mut bs),
                        None => &bs[..x.len()],
                    };
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { y.part(at) };
                    let y = open(level, &mut part, &mut target, false);
                    level.run(
                        #[inline(always)]
                        |fused| {
                            for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
                                *y = fma(fused, (x - mean) * rstd, *w, *b);
                            }
                        },
                    );
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_layer_norm_backward(
        &self,
        op: &LayerNorm,
        x: View,
        w: View,
        statistics: &[f32],
        dy: View,
        dx: ViewMut,
        dw: Option<ViewMut>,
        db: Option<ViewMut>,
    ) {
        let (level, cols, rows) = (self.level, op.cols, op.rows);
        let dx = Shared::new(dx);
        self.pool.split(rows, grain(cols), |_, part| {
            let [mut xs, mut ws, mut dys, mut target] = [[0.0; CHUNK]; 4];
            for row in part {
                let (mean, rstd) = (statistics[row], statistics[rows + row]);
                let (mut plain, mut along) = ([0.0; LANES], [0.0; LANES]);
                for chunk in chunks(0..cols) {
                    let at = shift(&chunk, row * cols);
                    let (x, dy) = (load(level, x.slice(at.clone()), &mut xs), load(level, dy.slice(at), &mut dys));
                    let w = load(level, w.slice(chunk), &mut ws);
                    let (mut products, mut normals) = ([0.0; CHUNK], [0.0; CHUNK]);
                    let len = x.len();
                    level.run(
                        #[inline(always)]
                        |fused| {
                            products.iter_mut().zip(dy).zip(w).for_each(|((p, dy), w)| *p = dy * w);
                            normals.iter_mut().zip(x).for_each(|(n, x)| *n = (x - mean) * rstd);
                            fold(&mut plain, &products[..len], |sum, p| sum + p);
                            fold2(&mut along, &products[..len], &normals[..len], |sum, p, n| fma(fused, p, n, sum));
                        },
                    );
                }
                let average = |lanes| (f64::from(merge(lanes, |a, b| a + b)) / cols as f64) as f32;
                let (plain, along) = (average(plain), average(along));
                for chunk in chunks(0..cols) {
                    let at = shift(&chunk, row * cols);
                    let x = load(level, x.slice(at.clone()), &mut xs);
                    let dy = load(level, dy.slice(at.clone()), &mut dys);
                    let w = load(level, w.slice(chunk), &mut ws);
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { dx.part(at) };
                    let dx = open(level, &mut part, &mut target, true);
                    level.run(
                        #[inline(always)]
                        |fused| {
                            for (((dx, x), dy), w) in dx.iter_mut().zip(x).zip(dy).zip(w) {
                                let normal = (x - mean) * rstd;
                                *dx = fma(fused, fma(fused, -normal, along, dy * w - plain), rstd, *dx);
                            }
                        },
                    );
                    close(level, &mut part, &target);
                }
            }
        });
        if let Some(dw) = dw {
            self.sum_columns(rows, cols, 1, dy, dw, |row, at| {
                let mut xs = [0.0; CHUNK];
                let x = load(level, x.slice(at), &mut xs);
                let (mean, rstd) = (statistics[row], statistics[rows + row]);
                let mut normals = [0.0; CHUNK];
                normals.iter_mut().zip(x).for_each(|(n, x)| *n = (x - mean) * rstd);
                normals
            });
        }
        if let Some(db) = db {
            self.sum_columns(rows, cols, 1, dy, db, |_, _| [1.0; CHUNK]);
        }
    }

    pub(super) fn run_add_rows(&self, op: &AddRows, table: View, x: ViewMut) {
        let (level, cols, x) = (self.level, op.cols, Shared::new(x));
        self.pool.split(op.rows, grain(cols), |_, rows| {
            let [mut source, mut target] = [[0.0; CHUNK]; 2];
            for row in rows {
                for chunk in chunks(0..cols) {
                    let table = load(level, table.slice(shift(&chunk, row % op.period * cols)), &mut source);
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { x.part(shift(&chunk, row * cols)) };
                    let x = open(level, &mut part, &mut target, true);
                    level.run(
                        #[inline(always)]
                        |_| x.iter_mut().zip(table).for_each(|(x, table)| *x += table),
                    );
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_add_rows_backward(&self, op: &AddRows, dy: View, dtable: ViewMut) {
        self.sum_columns(op.rows, op.cols, op.period, dy, dtable, |_, _| [1.0; CHUNK]);
    }

    pub(super) fn run_mul_rows(&self, op: &MulRows, w: View, x: ViewMut) {
        let (level, cols, x) = (self.level, op.cols, Shared::new(x));
        self.pool.split(op.rows, grain(cols), |_, rows| {
            let [mut source, mut target] = [[0.0; CHUNK]; 2];
            for row in rows {
                for chunk in chunks(0..cols) {
                    let w = load(level, w.slice(chunk.clone()), &mut source);
                    // SAFETY: each row belongs to one thread.
                    let mut part = unsafe { x.part(shift(&chunk, row * cols)) };
                    let x = open(level, &mut part, &mut target, true);
                    level.run(
                        #[inline(always)]
                        |_| x.iter_mut().zip(w).for_each(|(x, w)| *x *= w),
                    );
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_mul_rows_backward(&self, op: &MulRows, x: View, dy: View, dw: ViewMut) {
        let level = self.level;
        self.sum_columns(op.rows, op.cols, 1, dy, dw, |_, at| {
            let [mut xs, mut factors] = [[0.0; CHUNK]; 2];
            let x = load(level, x.slice(at), &mut xs);
            factors[..x.len()].copy_from_slice(x);
            factors
        });
    }

    /// `into[r % period] += factor(r) * dy[r]`. Threads take columns, so every column is summed over rows in one order.
    /// `factor` is told the row and where its columns lie in a tensor like `dy`.
    fn sum_columns(
        &self,
        rows: usize,
        cols: usize,
        period: usize,
        dy: View,
        into: ViewMut,
        factor: impl Fn(usize, std::ops::Range<usize>) -> [f32; CHUNK] + Sync,
    ) {
        let (level, into) = (self.level, Shared::new(into));
        self.pool.split(cols, COLUMNS, |_, range| {
            let [mut dys, mut target] = [[0.0; CHUNK]; 2];
            for chunk in chunks(range) {
                for first in 0..period.min(rows) {
                    let (mut total, mut block) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
                    let (size, count) = (chunk.len(), (rows - first).div_ceil(period));
                    for (number, row) in (first..rows).step_by(period).enumerate() {
                        let at = shift(&chunk, row * cols);
                        let dy = load(level, dy.slice(at.clone()), &mut dys);
                        let factors = factor(row, at);
                        let last = number % BLOCK == BLOCK - 1 || number + 1 == count;
                        level.run(
                            #[inline(always)]
                            |fused| {
                                for ((sum, dy), factor) in block[..size].iter_mut().zip(dy).zip(&factors) {
                                    *sum = fma(fused, *dy, *factor, *sum);
                                }
                                if last {
                                    total.iter_mut().zip(&block).for_each(|(total, sum)| *total += sum);
                                    block = [0.0; CHUNK];
                                }
                            },
                        );
                    }
                    // SAFETY: each column belongs to one thread.
                    let mut part = unsafe { into.part(shift(&chunk, first * cols)) };
                    let sums = open(level, &mut part, &mut target, true);
                    sums.iter_mut().zip(&total).for_each(|(sum, total)| *sum += total);
                    close(level, &mut part, &target);
                }
            }
        });
    }
}

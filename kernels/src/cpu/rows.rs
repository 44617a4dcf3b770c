//! Kernels that work on whole rows: normalisation, rotation, tables and the loss.

use super::Cpu;
use super::level::{LANES, exp, fma, fold, fold2, merge};
use super::stream::{CHUNK, Shared, chunks, close, load, open};
use crate::op::*;
use crate::{View, ViewMut};
use std::ops::Range;

/// Rows per part so that a part is worth a thread.
pub(super) fn grain(cols: usize) -> usize {
    (16 * CHUNK).div_ceil(cols.max(1))
}

/// Columns per part: whole cache lines of the narrowest type.
pub(super) const COLUMNS: usize = 32;

impl Cpu {
    pub(super) fn run_rms_norm(&self, op: &RmsNorm, x: View, w: View, y: ViewMut, rstd: ViewMut) {
        let (level, cols) = (self.level, op.cols);
        let (y, rstd) = (Shared::new(y), Shared::new(rstd));
        self.pool.split(op.rows, grain(cols), |_, rows| {
            let (mut buffer, mut weights, mut target) = ([0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]);
            for row in rows {
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let x = load(level, x.slice(shift(&chunk, row * cols)), &mut buffer);
                    level.run(
                        #[inline(always)]
                        |fused| fold(&mut lanes, x, |sum, x| fma(fused, x, x, sum)),
                    );
                }
                let mean = f64::from(merge(lanes, |a, b| a + b)) / cols as f64;
                let scale = (1.0 / (mean + op.eps).sqrt()) as f32;
                // SAFETY: each row belongs to one thread.
                let saved = unsafe { rstd.floats(row..row + 1) };
                saved[0] = scale;
                for chunk in chunks(0..cols) {
                    let x = load(level, x.slice(shift(&chunk, row * cols)), &mut buffer);
                    let w = load(level, w.slice(chunk.clone()), &mut weights);
                    // SAFETY: as above.
                    let mut part = unsafe { y.part(shift(&chunk, row * cols)) };
                    let y = open(level, &mut part, &mut target, false);
                    level.run(
                        #[inline(always)]
                        |_| y.iter_mut().zip(x).zip(w).for_each(|((y, x), w)| *y = x * scale * w),
                    );
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_inverse_norms(&self, op: &InverseNorms, x: View, s: ViewMut) {
        let (level, cols, s) = (self.level, op.cols, Shared::new(s));
        self.pool.split(op.rows, grain(cols), |_, rows| {
            let mut buffer = [0.0; CHUNK];
            for row in rows {
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let x = load(level, x.slice(shift(&chunk, row * cols)), &mut buffer);
                    level.run(
                        #[inline(always)]
                        |fused| fold(&mut lanes, x, |sum, x| fma(fused, x, x, sum)),
                    );
                }
                // SAFETY: each row belongs to one thread.
                let slot = unsafe { s.floats(row..row + 1) };
                slot[0] = (1.0 / f64::from(merge(lanes, |a, b| a + b)).sqrt()) as f32;
            }
        });
    }

    pub(super) fn run_rms_norm_backward(
        &self,
        op: &RmsNorm,
        x: View,
        w: View,
        rstd: &[f32],
        dy: View,
        dx: ViewMut,
        dw: Option<ViewMut>,
    ) {
        let (level, cols) = (self.level, op.cols);
        let dx = Shared::new(dx);
        self.pool.split(op.rows, grain(cols), |_, rows| {
            let (mut xs, mut ws, mut dys, mut target) = ([0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]);
            for row in rows {
                let mut lanes = [0.0; LANES];
                for chunk in chunks(0..cols) {
                    let at = shift(&chunk, row * cols);
                    let (x, dy) = (load(level, x.slice(at.clone()), &mut xs), load(level, dy.slice(at), &mut dys));
                    let w = load(level, w.slice(chunk), &mut ws);
                    let mut products = [0.0; CHUNK];
                    level.run(
                        #[inline(always)]
                        |fused| {
                            products.iter_mut().zip(x).zip(w).for_each(|((p, x), w)| *p = x * w);
                            fold2(&mut lanes, dy, &products[..dy.len()], |sum, dy, p| fma(fused, dy, p, sum));
                        },
                    );
                }
                let scale = rstd[row];
                let mean = f64::from(merge(lanes, |a, b| a + b)) / cols as f64;
                let pull = (-mean * f64::from(scale).powi(3)) as f32;
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
                                *dx += fma(fused, *x, pull, dy * w * scale);
                            }
                        },
                    );
                    close(level, &mut part, &target);
                }
            }
        });
        if let Some(dw) = dw {
            self.norm_weight_gradient(op, x, rstd, dy, dw);
        }
    }

    /// Threads take columns, so every column is summed over rows in one order.
    fn norm_weight_gradient(&self, op: &RmsNorm, x: View, rstd: &[f32], dy: View, dw: ViewMut) {
        /// Rows summed in f32 before they are added to the total, which keeps the error of long sums small.
        const BLOCK: usize = 64;
        let (level, cols, dw) = (self.level, op.cols, Shared::new(dw));
        self.pool.split(cols, COLUMNS, |_, range| {
            let (mut xs, mut dys, mut target) = ([0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]);
            for chunk in chunks(range) {
                let (mut total, mut block) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
                let size = chunk.len();
                for (row, scale) in rstd[..op.rows].iter().enumerate() {
                    let at = shift(&chunk, row * cols);
                    let x = load(level, x.slice(at.clone()), &mut xs);
                    let dy = load(level, dy.slice(at), &mut dys);
                    let last = row % BLOCK == BLOCK - 1 || row + 1 == op.rows;
                    level.run(
                        #[inline(always)]
                        |fused| {
                            for ((sum, x), dy) in block[..size].iter_mut().zip(x).zip(dy) {
                                *sum = fma(fused, dy * scale, *x, *sum);
                            }
                            if last {
                                total.iter_mut().zip(&block).for_each(|(total, sum)| *total += sum);
                                block = [0.0; CHUNK];
                            }
                        },
                    );
                }
                // SAFETY: each column belongs to one thread.
                let mut part = unsafe { dw.part(chunk) };
                let dw = open(level, &mut part, &mut target, true);
                dw.iter_mut().zip(&total).for_each(|(dw, total)| *dw += total);
                close(level, &mut part, &target);
            }
        });
    }

    pub(super) fn run_rope(&self, op: &Rope, x: ViewMut, cos: &[f32], sin: &[f32]) {
        let (level, half) = (self.level, op.head_dim / 2);
        let sign = if op.inverse { -1.0 } else { 1.0 };
        let x = Shared::new(x);
        if op.heads == 0 || half == 0 {
            return;
        }
        self.pool.split(op.rows, grain(op.heads * op.head_dim), |_, rows| {
            let (mut lows, mut highs) = ([0.0; CHUNK], [0.0; CHUNK]);
            for row in rows {
                let table = row % op.seq * half;
                let (cos, sin) = (&cos[table..table + half], &sin[table..table + half]);
                for head in 0..op.heads {
                    let start = (row * op.heads + head) * op.head_dim;
                    for chunk in chunks(0..half) {
                        // SAFETY: each row belongs to one thread, and the halves of a head do not overlap.
                        let (mut low, mut high) =
                            unsafe { (x.part(shift(&chunk, start)), x.part(shift(&chunk, start + half))) };
                        let a = open(level, &mut low, &mut lows, true);
                        let b = open(level, &mut high, &mut highs, true);
                        let (cos, sin) = (&cos[chunk.clone()], &sin[chunk]);
                        level.run(
                            #[inline(always)]
                            |fused| {
                                for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                                    let s = s * sign;
                                    (*a, *b) = (fma(fused, *a, *c, -(*b * s)), fma(fused, *b, *c, *a * s));
                                }
                            },
                        );
                        close(level, &mut low, &lows);
                        close(level, &mut high, &highs);
                    }
                }
            }
        });
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
        let (level, cols, dtable) = (self.level, op.cols, Shared::new(dtable));
        self.pool.split(cols, COLUMNS, |_, range| {
            let (mut source, mut target) = ([0.0; CHUNK], [0.0; CHUNK]);
            for (row, id) in ids.iter().enumerate().filter(|(_, id)| op.padding != Some(**id)) {
                for chunk in chunks(range.clone()) {
                    let dy = load(level, dy.slice(shift(&chunk, row * cols)), &mut source);
                    // SAFETY: each column belongs to one thread.
                    let mut part = unsafe { dtable.part(shift(&chunk, *id as usize * cols)) };
                    let sum = open(level, &mut part, &mut target, true);
                    level.run(
                        #[inline(always)]
                        |_| sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy),
                    );
                    close(level, &mut part, &target);
                }
            }
        });
    }

    pub(super) fn run_cross_entropy(&self, op: &CrossEntropy, logits: ViewMut, targets: &[u32], losses: ViewMut) {
        let vocab = op.vocab;
        let (logits, losses) = (Shared::new(logits), Shared::new(losses));
        self.pool.split(op.rows, grain(vocab), |_, rows| {
            for row in rows {
                // SAFETY: each row belongs to one thread.
                let (x, loss) = unsafe { (logits.floats(row * vocab..(row + 1) * vocab), losses.floats(row..row + 1)) };
                loss[0] = if targets[row] == u32::MAX {
                    x.fill(0.0);
                    0.0
                } else {
                    self.cross_entropy_row(x, targets[row] as usize, op.scale)
                };
            }
        });
    }

    fn cross_entropy_row(&self, x: &mut [f32], target: usize, scale: f64) -> f32 {
        let mut tops = [f32::NEG_INFINITY; LANES];
        let mut sums = [0.0; LANES];
        let wanted = x[target];
        let top = self.level.run(
            #[inline(always)]
            |fused| {
                fold(&mut tops, x, |a, b| if b > a { b } else { a });
                let top = merge(tops, |a, b| if b > a { b } else { a });
                x.iter_mut().for_each(|x| *x = exp(fused, *x - top));
                fold(&mut sums, x, |sum, x| sum + x);
                top
            },
        );
        let sum = f64::from(merge(sums, |a, b| a + b));
        let factor = (scale / sum) as f32;
        self.level.run(
            #[inline(always)]
            |_| x.iter_mut().for_each(|x| *x *= factor),
        );
        x[target] -= scale as f32;
        (f64::from(top) + sum.ln() - f64::from(wanted)) as f32
    }
}

/// A range of a row's columns, as a range of the buffer.
pub(super) fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

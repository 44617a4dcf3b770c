//! The loss: logits to their gradient, in the buffer where they lie.

#![allow(unsafe_code, reason = "gradients take the place of the logits they are computed from")]

use super::Cpu;
use super::level::{LANES, Level, exp, fold, merge};
use super::map::typed;
use super::rms_norm::add;
use super::rows::grain;
use super::stream::{CHUNK, Shared, elements};
use crate::numerics::round::Float32;
use crate::op::{CrossEntropy, VocabParallelCrossEntropy, VocabParallelStats};
use crate::{DType, View, ViewMut};

/// Rows of logits that become their gradient.
struct Rows {
    rows: usize,
    /// Columns that are words.
    valid: usize,
    pitch: usize,
    scale: f64,
    gradient: DType,
}

/// What a row with a target needs to become its gradient, once its logits are `e^(x - top)`.
struct Softmax {
    /// Sum of the exponentials of the whole row.
    sum: f64,
    loss: f32,
    /// The column of the target, if it is one of these.
    target: Option<usize>,
}

/// What a row is multiplied by, and the column of its target with what stands there.
type Finish = (f32, Option<(usize, f32)>);

impl Cpu {
    pub(super) fn run_cross_entropy(&self, op: &CrossEntropy, logits: ViewMut, targets: &[u32], losses: ViewMut) {
        let (pitch, scale, gradient) = (op.row_pitch(), op.scale, op.gradient);
        let rows = Rows { rows: op.rows, valid: op.vocab, pitch, scale, gradient };
        self.gradients(&rows, logits, targets, losses, |_, target, x| {
            let target = target as usize;
            let wanted = x[target];
            let (top, sum) = exponentials(self.level, x);
            Softmax { sum, loss: loss(top, sum, wanted), target: Some(target) }
        });
    }

    pub(super) fn run_loss_parts(&self, op: &VocabParallelStats, logits: View, targets: &[u32], statistics: ViewMut) {
        let (valid, pitch) = (op.vocab.valid(), op.row_pitch());
        let (logits, statistics) = (elements::<f32>(&logits), Shared::new(statistics));
        self.pool.split(op.rows, grain(valid), |_, rows| {
            for row in rows {
                let x = &logits[row * pitch..row * pitch + valid];
                let (top, sum) = maximum_and_sum(self.level, x);
                let wanted = op.vocab.find(targets[row]).map_or(0.0, |at| x[at]);
                let range = row * VocabParallelStats::NUMBERS..(row + 1) * VocabParallelStats::NUMBERS;
                // SAFETY: each row belongs to one thread.
                unsafe { statistics.elements::<f32>(range) }.copy_from_slice(&[top, sum, wanted]);
            }
        });
    }

    pub(super) fn run_loss_of_parts(
        &self,
        op: &VocabParallelCrossEntropy,
        logits: ViewMut,
        targets: &[u32],
        statistics: &[f32],
        losses: ViewMut,
    ) {
        let VocabParallelCrossEntropy { part, ranks, scale, gradient } = *op;
        let rows = Rows { rows: part.rows, valid: part.vocab.valid(), pitch: part.row_pitch(), scale, gradient };
        self.gradients(&rows, logits, targets, losses, |row, target, x| {
            let parts = (0..ranks).map(|rank| {
                let numbers = &statistics[(rank * part.rows + row) * VocabParallelStats::NUMBERS..]
                    [..VocabParallelStats::NUMBERS];
                (numbers[0], numbers[1], numbers[2])
            });
            let (top, sum, wanted) = self.level.run(
                #[inline(always)]
                |fused| {
                    let top = parts.clone().fold(f32::NEG_INFINITY, |top, (own, ..)| larger(top, own));
                    let (mut sum, mut wanted) = (0.0, 0.0);
                    for (own, part, target) in parts {
                        // A part without words adds nothing, also where no part has any.
                        sum += f64::from(part) * f64::from(exp(fused, own - finite(top)));
                        wanted += target;
                    }
                    for x in &mut *x {
                        *x = exp(fused, *x - top);
                    }
                    (top, sum, wanted)
                },
            );
            Softmax { sum, loss: loss(top, sum, wanted), target: part.vocab.find(target) }
        });
    }

    /// Replaces logits by their gradient. `softmax(row, target, x)` puts `e^(x - top)` in the place of a row that has a target.
    ///
    /// Where the gradient is narrower than the logits, row `r` of it lies where logits of a row before `r` lay. So rows go
    /// in waves: of the rows below `2 n` those from `n` on, whose gradients take the place of rows that are done with.
    /// Inside a wave no row is read where another is written, and threads share it as they like.
    fn gradients(
        &self,
        of: &Rows,
        logits: ViewMut,
        targets: &[u32],
        losses: ViewMut,
        softmax: impl Fn(usize, u32, &mut [f32]) -> Softmax + Sync,
    ) {
        let Rows { rows: count, valid, pitch, scale, gradient } = *of;
        let (logits, losses) = (Shared::new(logits), Shared::new(losses));
        let mut done = 0;
        while done < count {
            let end = match gradient {
                DType::F32 => count,
                _ => (2 * done).clamp(1, count),
            };
            self.pool.split(end - done, grain(valid), |_, rows| {
                let rows = done + rows.start..done + rows.end;
                for (row, target) in rows.clone().zip(&targets[rows]) {
                    // SAFETY: each row belongs to one thread, and its logits are apart from all gradients of this wave but
                    // those of the first row, which is a wave of its own.
                    let (x, loss) = unsafe {
                        (logits.elements::<f32>(row * pitch..row * pitch + valid), losses.elements::<f32>(row..row + 1))
                    };
                    let softmax = (*target != u32::MAX).then(|| softmax(row, *target, x));
                    loss[0] = softmax.as_ref().map_or(0.0, |softmax| softmax.loss);
                    let finish = softmax.map(|Softmax { sum, target, .. }| {
                        let factor = (scale / sum) as f32;
                        (factor, target.map(|target| (target, x[target] * factor - scale as f32)))
                    });
                    typed!(gradient, G => {
                        let front = logits.address().cast::<G>().wrapping_add(row * pitch);
                        // SAFETY: the gradient's row lies in the logits' buffer, and but for the first row apart from `x`.
                        unsafe { write_back(self.level, row == 0, x, front, finish) }
                        // SAFETY: what lies behind the row belongs to it, and `x` is not used again.
                        unsafe { std::slice::from_raw_parts_mut(front.wrapping_add(valid), pitch - valid) }.fill(G::narrow(0.0));
                    });
                }
            });
            done = end;
        }
    }
}

fn loss(top: f32, sum: f64, wanted: f32) -> f32 {
    (f64::from(top) + sum.ln() - f64::from(wanted)) as f32
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// A maximum that can be subtracted: where all is -infinity, the difference would be NaN.
#[inline(always)]
fn finite(top: f32) -> f32 {
    if top == f32::NEG_INFINITY { 0.0 } else { top }
}

#[inline(always)]
fn maximum(x: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    fold(&mut tops, x, larger);
    merge(tops, larger)
}

/// Puts `e^(x - top)` in the place of a row; gives the maximum and their sum.
fn exponentials(level: Level, x: &mut [f32]) -> (f32, f64) {
    level.run(
        #[inline(always)]
        |fused| {
            let (top, mut sums) = (maximum(x), [0.0; LANES]);
            // A chunk is still in the nearest cache when it is summed.
            for chunk in x.chunks_mut(CHUNK) {
                for x in &mut *chunk {
                    *x = exp(fused, *x - top);
                }
                fold(&mut sums, chunk, add);
            }
            (top, f64::from(merge(sums, add)))
        },
    )
}

/// The maximum of a row and the sum of `e^(x - top)`, with the bits of [`exponentials`]. All may be -infinity, or nothing.
fn maximum_and_sum(level: Level, x: &[f32]) -> (f32, f32) {
    level.run(
        #[inline(always)]
        |fused| {
            let (top, mut sums, mut buffer) = (maximum(x), [0.0; LANES], [0.0f32; CHUNK]);
            let shift = finite(top);
            for chunk in x.chunks(CHUNK) {
                let buffer = &mut buffer[..chunk.len()];
                for (to, x) in buffer.iter_mut().zip(chunk) {
                    *to = exp(fused, x - shift);
                }
                fold(&mut sums, buffer, add);
            }
            (top, merge(sums, add))
        },
    )
}

/// Writes the gradient of a row to `to`: `factor` times `x`, but what is given at the target, if the row has it; zeros where
/// nothing is given.
///
/// # Safety
/// As many elements of G as `x` has may be written at `to`, by nobody else. They are `x` itself where G is f32, begin where
/// it begins if `first` is set, and else lie apart from it.
unsafe fn write_back<G: Float32>(level: Level, first: bool, x: &mut [f32], to: *mut G, finish: Option<Finish>) {
    let (from, len) = (x.as_mut_ptr(), x.len());
    let Some((factor, target)) = finish else {
        // SAFETY: as the caller says; `x` is not used again.
        return unsafe { std::slice::from_raw_parts_mut(to, len) }.fill(G::narrow(0.0));
    };
    if G::DTYPE == DType::F32 {
        level.run(
            #[inline(always)]
            |_| {
                for x in x {
                    *x *= factor;
                }
            },
        );
    } else if first {
        let mut buffer = [0.0f32; CHUNK];
        for start in (0..len).step_by(CHUNK) {
            let size = CHUNK.min(len - start);
            // A chunk is read before it is written, and what is written lies before what is still to be read.
            // SAFETY: inside the row.
            unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(from.add(start), size) };
            // SAFETY: inside the gradient's row, and no other reference to it is in use.
            let into = unsafe { std::slice::from_raw_parts_mut(to.add(start), size) };
            scaled(level, &buffer[..size], into, factor);
        }
    } else {
        // SAFETY: as the caller says, apart from `x`.
        scaled(level, x, unsafe { std::slice::from_raw_parts_mut(to, len) }, factor);
    }
    if let Some((target, at_target)) = target {
        // SAFETY: the target is one of the row.
        unsafe { to.add(target).write(G::narrow(at_target)) };
    }
}

fn scaled<G: Float32>(level: Level, from: &[f32], into: &mut [G], factor: f32) {
    level.run(
        #[inline(always)]
        |_| {
            let own = factor;
            for (into, from) in into.iter_mut().zip(from) {
                *into = G::narrow(from * own);
            }
        },
    );
}

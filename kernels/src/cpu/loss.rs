//! The loss: logits to their gradient, in the buffer where they lie.

#![allow(unsafe_code, reason = "gradients take the place of the logits they are computed from")]

use super::Cpu;
use super::level::{LANES, Level, exp, fold, merge};
use super::map::typed;
use super::rms_norm::add;
use super::rows::grain;
use super::stream::{CHUNK, Shared};
use crate::op::CrossEntropy;
use crate::round::Float32;
use crate::{DType, ViewMut};

impl Cpu {
    /// Where the gradient is narrower than the logits, row `r` of it lies where logits of a row before `r` lay. So rows go
    /// in waves: of the rows below `2 n` those from `n` on, whose gradients take the place of rows that are done with.
    /// Inside a wave no row is read where another is written, and threads share it as they like.
    pub(super) fn run_cross_entropy(&self, op: &CrossEntropy, logits: ViewMut, targets: &[u32], losses: ViewMut) {
        let (vocab, pitch) = (op.vocab, op.row_pitch());
        let (logits, losses) = (Shared::new(logits), Shared::new(losses));
        let mut done = 0;
        while done < op.rows {
            let end = match op.gradient {
                DType::F32 => op.rows,
                _ => (2 * done).clamp(1, op.rows),
            };
            self.pool.split(end - done, grain(vocab), |_, rows| {
                let rows = done + rows.start..done + rows.end;
                for (row, target) in rows.clone().zip(&targets[rows]) {
                    // SAFETY: each row belongs to one thread, and its logits are apart from all gradients of this wave but
                    // those of the first row, which is a wave of its own.
                    let (x, loss) = unsafe {
                        (logits.elements::<f32>(row * pitch..row * pitch + vocab), losses.elements::<f32>(row..row + 1))
                    };
                    let target = Some(*target as usize).filter(|_| *target != u32::MAX);
                    let sum = target.map(|target| exponentials(self.level, x, target));
                    loss[0] = sum.map_or(0.0, |(_, loss)| loss);
                    // What the row is multiplied by, and what stands at the target.
                    let finish = target.zip(sum).map(|(target, (sum, _))| {
                        let factor = (op.scale / sum) as f32;
                        (factor, target, x[target] * factor - op.scale as f32)
                    });
                    typed!(op.gradient, G => {
                        let front = logits.address().cast::<G>().wrapping_add(row * pitch);
                        // SAFETY: the gradient's row lies in the logits' buffer, and but for the first row apart from `x`.
                        unsafe { settle(self.level, row == 0, x, front, finish) }
                        // SAFETY: what lies behind the row belongs to it, and `x` is not used again.
                        unsafe { std::slice::from_raw_parts_mut(front.wrapping_add(vocab), pitch - vocab) }.fill(G::narrow(0.0));
                    });
                }
            });
            done = end;
        }
    }
}

/// Puts `e^(x - top)` in the place of a row; gives their sum, and the loss of the target.
fn exponentials(level: Level, x: &mut [f32], target: usize) -> (f64, f32) {
    #[inline(always)]
    fn larger(a: f32, b: f32) -> f32 {
        if b > a { b } else { a }
    }
    let wanted = x[target];
    let (top, sum) = level.run(
        #[inline(always)]
        |fused| {
            let mut tops = [f32::NEG_INFINITY; LANES];
            fold(&mut tops, x, larger);
            let top = merge(tops, larger);
            let mut sums = [0.0; LANES];
            // A chunk is still in the nearest cache when it is summed.
            for chunk in x.chunks_mut(CHUNK) {
                for x in &mut *chunk {
                    *x = exp(fused, *x - top);
                }
                fold(&mut sums, chunk, add);
            }
            (top, f64::from(merge(sums, add)))
        },
    );
    (sum, (f64::from(top) + sum.ln() - f64::from(wanted)) as f32)
}

/// Writes the gradient of a row to `to`: `factor` times `x`, but what is given at the target; zeros where there is none.
///
/// # Safety
/// As many elements of G as `x` has may be written at `to`, by nobody else. They are `x` itself where G is f32, begin where
/// it begins if `first` is set, and else lie apart from it.
unsafe fn settle<G: Float32>(level: Level, first: bool, x: &mut [f32], to: *mut G, finish: Option<(f32, usize, f32)>) {
    let (from, len) = (x.as_mut_ptr(), x.len());
    let Some((factor, target, at_target)) = finish else {
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
    // SAFETY: the target is one of the row.
    unsafe { to.add(target).write(G::narrow(at_target)) };
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

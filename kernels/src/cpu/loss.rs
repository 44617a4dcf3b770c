//! The loss: logits to their gradient, in the buffer where they lie.

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
        let vocab = op.vocab;
        let (logits, losses) = (Shared::new(logits), Shared::new(losses));
        let mut done = 0;
        while done < op.rows {
            let end = match op.gradient {
                DType::F32 => op.rows,
                _ => (2 * done).clamp(1, op.rows),
            };
            self.pool.split(end - done, grain(vocab), |_, rows| {
                for row in done + rows.start..done + rows.end {
                    // SAFETY: each row belongs to one thread, and its logits are apart from the gradients of this wave,
                    // except of the first row, which is a wave of its own; `settle` reads before it writes.
                    let (x, loss) =
                        unsafe { (logits.floats(row * vocab..(row + 1) * vocab), losses.floats(row..row + 1)) };
                    let (factor, target) = match targets[row] {
                        u32::MAX => {
                            loss[0] = 0.0;
                            (None, 0)
                        }
                        target => {
                            let (sum, of_target) = exponentials(self.level, x, target as usize);
                            loss[0] = of_target;
                            (Some((op.scale / sum) as f32), target as usize)
                        }
                    };
                    let at = x.as_mut_ptr();
                    // SAFETY: the gradient's row lies inside the logits, of which it has the front.
                    typed!(op.gradient, G => unsafe {
                        let to = logits.address().cast::<G>().add(row * vocab);
                        settle(self.level, at, to, vocab, factor, target, op.scale as f32)
                    });
                }
            });
            done = end;
        }
    }
}

/// Puts `e^(x - top)` in the place of a row; gives their sum, and the loss of the target.
fn exponentials(level: Level, x: &mut [f32], target: usize) -> (f64, f32) {
    let wanted = x[target];
    let (top, sum) = level.run(
        #[inline(always)]
        |fused| {
            #[inline(always)]
            fn larger(a: f32, b: f32) -> f32 {
                if b > a { b } else { a }
            }
            let mut tops = [f32::NEG_INFINITY; LANES];
            fold(&mut tops, x, larger);
            let top = merge(tops, larger);
            let mut sums = [0.0; LANES];
            let mut blocks = x.chunks_exact_mut(LANES);
            for block in &mut blocks {
                for i in 0..LANES {
                    block[i] = exp(fused, block[i] - top);
                    sums[i] += block[i];
                }
            }
            for (sum, x) in sums.iter_mut().zip(blocks.into_remainder()) {
                *x = exp(fused, *x - top);
                *sum += *x;
            }
            (top, f64::from(merge(sums, add)))
        },
    );
    (sum, (f64::from(top) + sum.ln() - f64::from(wanted)) as f32)
}

/// Writes `factor` times the row at `from` to `to`, less `scale` at the target; zeros without a factor.
///
/// # Safety
/// `len` floats may be read at `from` and elements of G written at `to`, by nobody else; `to` is not behind `from`, or
/// apart from it.
unsafe fn settle<G: Float32>(
    level: Level,
    from: *const f32,
    to: *mut G,
    len: usize,
    factor: Option<f32>,
    target: usize,
    scale: f32,
) {
    let mut buffer = [0.0f32; CHUNK];
    for start in (0..len).step_by(CHUNK) {
        let size = CHUNK.min(len - start);
        let values = &mut buffer[..size];
        // A chunk is read before it is written, and what is written lies before what is still to be read.
        // SAFETY: inside the row.
        unsafe { values.as_mut_ptr().copy_from_nonoverlapping(from.add(start), size) };
        // SAFETY: inside the gradient's row, and no other reference to it is in use.
        let into = unsafe { std::slice::from_raw_parts_mut(to.add(start), size) };
        level.run(
            #[inline(always)]
            |_| match factor {
                Some(factor) => {
                    for value in &mut *values {
                        *value *= factor;
                    }
                    if (start..start + size).contains(&target) {
                        values[target - start] -= scale;
                    }
                    for (into, value) in into.iter_mut().zip(&*values) {
                        *into = G::narrow(*value);
                    }
                }
                None => into.fill(G::narrow(0.0)),
            },
        );
    }
}

//! The optimizer's pass.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::{Level, fma};
use super::map::typed;
use super::stream::{CHUNK, GRAIN, Shared, chunks, close, elements, load, narrow, open};
use crate::numerics::philox;
use crate::numerics::philox::RandomStream;
use crate::numerics::round::Float32;
use crate::numerics::stochastic;
use crate::op::{AdamW, Rounding};
use crate::{View, ViewMut};

/// The constants of a step, each rounded once. Laid out as kernels/cuda/elementwise.cu has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Step {
    factor: f32,
    keep: f32,
    new1: f32,
    old2: f32,
    new2: f32,
    rate: f32,
    spread: f32,
    eps: f32,
}

impl Step {
    pub(crate) fn of(op: &AdamW) -> Step {
        let bias1 = 1.0 - op.beta1.powf(op.step as f64);
        let bias2 = 1.0 - op.beta2.powf(op.step as f64);
        Step {
            factor: (op.grad_scale * op.clip) as f32,
            keep: (1.0 - op.lr * op.weight_decay) as f32,
            new1: (1.0 - op.beta1) as f32,
            old2: op.beta2 as f32,
            new2: (1.0 - op.beta2) as f32,
            rate: (op.lr / bias1) as f32,
            spread: (1.0 / bias2.sqrt()) as f32,
            eps: op.eps as f32,
        }
    }

    /// Parameters and moments after the step.
    #[inline(always)]
    fn update<P: Float32, G: Float32>(self, fused: bool, p: &mut [P], m: &mut [P], v: &mut [P], g: &[G]) {
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g.widen() * self.factor;
            let first = fma(fused, self.new1, g - m.widen(), m.widen());
            let second = fma(fused, self.old2, v.widen(), self.new2 * g * g);
            let under = fma(fused, second.sqrt(), self.spread, self.eps);
            *p = P::narrow(p.widen() * self.keep - self.rate * first / under);
            (*m, *v) = (P::narrow(first), P::narrow(second));
        }
    }
}

impl Cpu {
    pub(super) fn run_adamw(&self, op: &AdamW, p: ViewMut, m: ViewMut, v: ViewMut, g: View, copy: Option<ViewMut>) {
        let (level, step) = (self.level, Step::of(op));
        let [p, m, v] = [p, m, v].map(Shared::new);
        let copy = copy.map(Shared::new);
        let one_type = op.parameters == op.moments && op.parameters == op.gradients;
        self.pool.split(op.len, GRAIN, |_, range| {
            for chunk in chunks(range) {
                let g = g.slice(chunk.clone());
                // SAFETY: chunks of all threads are disjoint.
                let mut parts = [&p, &m, &v].map(|all| unsafe { all.part(chunk.clone()) });
                if one_type && op.rounding == Rounding::Nearest {
                    in_place(level, &step, &mut parts, g);
                } else {
                    by_chunk(level, &step, op, &mut parts, g, chunk.start);
                }
                if let Some(copy) = &copy {
                    // What was written is still in the nearest cache.
                    let mut buffer = [0.0; CHUNK];
                    let source = load(level, parts[0].as_view(), &mut buffer);
                    // SAFETY: chunks of all threads are disjoint.
                    narrow(level, source, &mut unsafe { copy.part(chunk) });
                }
            }
        });
    }
}

/// All of one type: from and to where they lie.
fn in_place(level: Level, step: &Step, [p, m, v]: &mut [ViewMut; 3], g: View) {
    typed!(g.dtype(), T => {
        // The types were compared with that of `g`.
        let [p, m, v] = [p, m, v].map(|part| part.as_slice_mut::<T>().unwrap_or_default());
        level.run(
            #[inline(always)]
            |fused| step.update(fused, p, m, v, elements::<T>(&g)),
        );
    })
}

/// Types that differ, and rounding by chance: in f32, a chunk at a time.
fn by_chunk(level: Level, step: &Step, op: &AdamW, parts: &mut [ViewMut; 3], g: View, start: usize) {
    let mut buffers = [[0.0; CHUNK]; 4];
    let [of_p, of_m, of_v, of_g] = &mut buffers;
    let [p, m, v] = parts;
    let (m, v) = (open(level, m, of_m, true), open(level, v, of_v, true));
    let (p, g) = (open(level, p, of_p, true), load(level, g, of_g));
    level.run(
        #[inline(always)]
        |fused| {
            step.update(fused, p, m, v, g);
            if let Rounding::Stochastic { seed, first } = op.rounding {
                let mut words = [0; CHUNK];
                let words = &mut words[..p.len()];
                philox::stretch(seed, RandomStream::Rounding, op.step, first.wrapping_add(start as u64), words);
                for (p, word) in p.iter_mut().zip(&*words) {
                    *p = stochastic::round(op.parameters, *p, *word);
                }
            }
        },
    );
    for (part, buffer) in parts.iter_mut().zip(&buffers) {
        close(level, part, buffer);
    }
}

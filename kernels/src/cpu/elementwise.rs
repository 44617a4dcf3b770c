//! Kernels that compute each element from the same element of their operands.

use super::Cpu;
use super::level::{activation, fma};
use super::stream::{CHUNK, Shared, chunks, load, narrow, stream};
use crate::op::*;
use crate::philox::{self, Stream};
use crate::{View, ViewMut, stochastic};

impl Cpu {
    pub(super) fn run_swiglu(&self, op: &Swiglu, gate: View, up: View, act: ViewMut) {
        // A function to a loop, so that loops have no branches.
        match op.act {
            Act::Silu => self.gated(
                op.len,
                gate,
                up,
                act,
                #[inline(always)]
                |fused, x| activation(fused, Act::Silu, x),
            ),
            Act::Gelu => self.gated(
                op.len,
                gate,
                up,
                act,
                #[inline(always)]
                |fused, x| activation(fused, Act::Gelu, x),
            ),
            Act::GeluTanh => self.gated(
                op.len,
                gate,
                up,
                act,
                #[inline(always)]
                |fused, x| activation(fused, Act::GeluTanh, x),
            ),
        }
    }

    #[inline]
    fn gated(&self, len: usize, gate: View, up: View, act: ViewMut, f: impl Fn(bool, f32) -> (f32, f32) + Sync) {
        stream(
            &self.pool,
            self.level,
            len,
            [act],
            false,
            [gate, up],
            #[inline(always)]
            |fused, _, [act], [gate, up]| {
                for ((act, gate), up) in act.iter_mut().zip(gate).zip(up) {
                    *act = gate * f(fused, *gate).0 * up;
                }
            },
        );
    }

    pub(super) fn run_swiglu_backward(
        &self,
        op: &Swiglu,
        gate: View,
        up: View,
        dact: View,
        dgate: ViewMut,
        dup: ViewMut,
    ) {
        let (ins, outs) = ([gate, up, dact], [dgate, dup]);
        match op.act {
            Act::Silu => self.gated_backward(
                op.len,
                ins,
                outs,
                #[inline(always)]
                |fused, x| activation(fused, Act::Silu, x),
            ),
            Act::Gelu => self.gated_backward(
                op.len,
                ins,
                outs,
                #[inline(always)]
                |fused, x| activation(fused, Act::Gelu, x),
            ),
            Act::GeluTanh => self.gated_backward(
                op.len,
                ins,
                outs,
                #[inline(always)]
                |fused, x| activation(fused, Act::GeluTanh, x),
            ),
        }
    }

    #[inline]
    fn gated_backward(
        &self,
        len: usize,
        ins: [View; 3],
        outs: [ViewMut; 2],
        f: impl Fn(bool, f32) -> (f32, f32) + Sync,
    ) {
        stream(
            &self.pool,
            self.level,
            len,
            outs,
            false,
            ins,
            #[inline(always)]
            |fused, _, [dgate, dup], [gate, up, dact]| {
                let len = dgate.len();
                let (dup, gate, up, dact) = (&mut dup[..len], &gate[..len], &up[..len], &dact[..len]);
                for i in 0..len {
                    let (s, slope) = f(fused, gate[i]);
                    dgate[i] = dact[i] * up[i] * slope;
                    dup[i] = dact[i] * gate[i] * s;
                }
            },
        );
    }

    pub(super) fn run_activate(&self, op: &Activate, x: View, y: ViewMut) {
        match op.act {
            Act::Silu => self.plain(
                op.len,
                x,
                y,
                #[inline(always)]
                |fused, x| activation(fused, Act::Silu, x),
            ),
            Act::Gelu => self.plain(
                op.len,
                x,
                y,
                #[inline(always)]
                |fused, x| activation(fused, Act::Gelu, x),
            ),
            Act::GeluTanh => self.plain(
                op.len,
                x,
                y,
                #[inline(always)]
                |fused, x| activation(fused, Act::GeluTanh, x),
            ),
        }
    }

    #[inline]
    fn plain(&self, len: usize, x: View, y: ViewMut, f: impl Fn(bool, f32) -> (f32, f32) + Sync) {
        stream(
            &self.pool,
            self.level,
            len,
            [y],
            false,
            [x],
            #[inline(always)]
            |fused, _, [y], [x]| y.iter_mut().zip(x).for_each(|(y, x)| *y = x * f(fused, *x).0),
        );
    }

    pub(super) fn run_activate_backward(&self, op: &Activate, x: View, dy: View, dx: ViewMut) {
        match op.act {
            Act::Silu => self.plain_backward(
                op.len,
                x,
                dy,
                dx,
                #[inline(always)]
                |fused, x| activation(fused, Act::Silu, x),
            ),
            Act::Gelu => self.plain_backward(
                op.len,
                x,
                dy,
                dx,
                #[inline(always)]
                |fused, x| activation(fused, Act::Gelu, x),
            ),
            Act::GeluTanh => self.plain_backward(
                op.len,
                x,
                dy,
                dx,
                #[inline(always)]
                |fused, x| activation(fused, Act::GeluTanh, x),
            ),
        }
    }

    #[inline]
    fn plain_backward(&self, len: usize, x: View, dy: View, dx: ViewMut, f: impl Fn(bool, f32) -> (f32, f32) + Sync) {
        stream(
            &self.pool,
            self.level,
            len,
            [dx],
            false,
            [x, dy],
            #[inline(always)]
            |fused, _, [dx], [x, dy]| {
                dx.iter_mut().zip(x).zip(dy).for_each(|((dx, x), dy)| *dx = dy * f(fused, *x).1);
            },
        );
    }

    pub(super) fn run_adamw(&self, op: &AdamW, p: ViewMut, m: ViewMut, v: ViewMut, g: View) {
        let bias1 = 1.0 - op.beta1.powf(op.step as f64);
        let bias2 = 1.0 - op.beta2.powf(op.step as f64);
        // Each constant is rounded once.
        let factor = (op.grad_scale * op.clip) as f32;
        let keep = (1.0 - op.lr * op.weight_decay) as f32;
        let (new1, old2, new2) = ((1.0 - op.beta1) as f32, op.beta2 as f32, (1.0 - op.beta2) as f32);
        let (rate, spread, eps) = ((op.lr / bias1) as f32, (1.0 / bias2.sqrt()) as f32, op.eps as f32);
        stream(
            &self.pool,
            self.level,
            op.len,
            [p, m, v],
            true,
            [g],
            #[inline(always)]
            |fused, start, [p, m, v], [g]| {
                let len = p.len();
                let (m, v, g) = (&mut m[..len], &mut v[..len], &g[..len]);
                for i in 0..len {
                    let g = g[i] * factor;
                    let first = fma(fused, new1, g - m[i], m[i]);
                    let second = fma(fused, old2, v[i], new2 * g * g);
                    (m[i], v[i]) = (first, second);
                    p[i] = p[i] * keep - rate * first / fma(fused, second.sqrt(), spread, eps);
                }
                if let Rounding::Stochastic { seed, first } = op.rounding {
                    philox::each(
                        first.wrapping_add(start as u64),
                        len,
                        |block| philox::words_of_step(seed, Stream::Rounding, op.step, block),
                        |i, word| p[i] = stochastic::round(op.parameters, p[i], word),
                    );
                }
            },
        );
    }

    pub(super) fn run_dropout(&self, op: &Dropout, x: View, y: ViewMut) {
        let threshold = philox::threshold(op.p);
        let scale = (1.0 / (1.0 - op.p)) as f32;
        stream(
            &self.pool,
            self.level,
            op.len,
            [y],
            false,
            [x],
            #[inline(always)]
            |_, start, [y], [x]| {
                philox::each(
                    op.first.wrapping_add(start as u64),
                    y.len(),
                    |block| philox::words(op.seed, Stream::Dropout, block),
                    |i, word| y[i] = if u64::from(word) < threshold { 0.0 } else { x[i] * scale },
                );
            },
        );
    }

    pub(super) fn run_normal(&self, op: &Normal, dst: ViewMut) {
        let std = op.std as f32;
        stream(&self.pool, self.level, op.len, [dst], false, [], |_, start, [dst], []| {
            let first = op.first.wrapping_add(start as u64);
            philox::each(first, dst.len(), |block| philox::normals(op.seed, block), |i, x| dst[i] = std * x);
        });
    }

    pub(super) fn run_fill(&self, dst: ViewMut, value: f64) {
        let len = dst.len();
        let value = value as f32;
        stream(&self.pool, self.level, len, [dst], false, [], |_, _, [dst], []| dst.fill(value));
    }

    /// A change of type needs no arithmetic: the chunk is loaded as f32 and rounded into its place.
    pub(super) fn run_cast(&self, src: View, dst: ViewMut) {
        let (len, dst) = (dst.len(), Shared::new(dst));
        self.pool.split(len, 16 * CHUNK, |_, range| {
            let mut buffer = [0.0; CHUNK];
            for chunk in chunks(range) {
                let source = load(self.level, src.slice(chunk.clone()), &mut buffer);
                // SAFETY: chunks of all threads are disjoint.
                narrow(self.level, source, &mut unsafe { dst.part(chunk) });
            }
        });
    }

    pub(super) fn run_add(&self, a: View, b: View, dst: ViewMut) {
        let len = dst.len();
        stream(
            &self.pool,
            self.level,
            len,
            [dst],
            false,
            [a, b],
            #[inline(always)]
            |_, _, [dst], [a, b]| dst.iter_mut().zip(a).zip(b).for_each(|((dst, a), b)| *dst = a + b),
        );
    }

    pub(super) fn run_accumulate(&self, alpha: f64, src: View, dst: ViewMut) {
        let (len, alpha) = (dst.len(), alpha as f32);
        stream(
            &self.pool,
            self.level,
            len,
            [dst],
            true,
            [src],
            #[inline(always)]
            |fused, _, [dst], [src]| {
                dst.iter_mut().zip(src).for_each(|(dst, src)| *dst = fma(fused, alpha, *src, *dst))
            },
        );
    }

    pub(super) fn run_scale(&self, alpha: f64, dst: ViewMut) {
        let (len, alpha) = (dst.len(), alpha as f32);
        stream(
            &self.pool,
            self.level,
            len,
            [dst],
            true,
            [],
            #[inline(always)]
            |_, _, [dst], []| dst.iter_mut().for_each(|dst| *dst *= alpha),
        );
    }

    /// The sum of `term` of all elements in f64. The elements are cut into [`PARTS`] parts by the length alone; a part
    /// is summed in 16 lanes, and the parts are added in order.
    pub(super) fn run_sum(&self, x: View, term: impl Fn(f64) -> f64 + Sync) -> f64 {
        const PARTS: usize = 1024;
        const LANES: usize = 16;
        // A multiple of the chunk, so that lanes start over nowhere else.
        let size = x.len().div_ceil(PARTS).div_ceil(CHUNK).max(1) * CHUNK;
        let count = x.len().div_ceil(size);
        let mut sums = [0.0f64; PARTS];
        let shared = Shared::new(ViewMut::of(&mut sums));
        self.pool.split(count, 1, |_, range| {
            let mut buffer = [0.0; CHUNK];
            for part in range {
                let mut lanes = [0.0f64; LANES];
                for chunk in chunks(part * size..((part + 1) * size).min(x.len())) {
                    let values = load(self.level, x.slice(chunk), &mut buffer);
                    self.level.run(
                        #[inline(always)]
                        |_| {
                            let mut own = lanes;
                            let mut blocks = values.chunks_exact(LANES);
                            for block in &mut blocks {
                                for i in 0..LANES {
                                    own[i] += term(f64::from(block[i]));
                                }
                            }
                            for (lane, x) in own.iter_mut().zip(blocks.remainder()) {
                                *lane += term(f64::from(*x));
                            }
                            lanes = own;
                        },
                    );
                }
                // SAFETY: each part is summed by one thread.
                let mut slot = unsafe { shared.part(part..part + 1) };
                if let Ok([slot]) = slot.as_slice_mut::<f64>() {
                    *slot = lanes.iter().sum();
                }
            }
        });
        sums[..count].iter().sum()
    }
}

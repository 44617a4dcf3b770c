//! Kernels that compute each element from the same element of their operands.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::{activation, fma};
use super::map::typed;
use super::stream::{CHUNK, GRAIN, Shared, chunks, close, elements, load, narrow, open};
use crate::numerics::philox;
use crate::numerics::philox::RandomStream;
use crate::numerics::round::Float32;
use crate::op::*;
use crate::{DType, View, ViewMut};

/// `$body` with `$a` standing for the activation as a constant, so that loops have no branches.
macro_rules! by_act {
    ($act:expr, $a:ident => $body:expr) => {
        match $act {
            Activation::Silu => {
                const $a: Activation = Activation::Silu;
                $body
            }
            Activation::Gelu => {
                const $a: Activation = Activation::Gelu;
                $body
            }
            Activation::GeluTanh => {
                const $a: Activation = Activation::GeluTanh;
                $body
            }
        }
    };
}

impl Cpu {
    pub(super) fn run_gated_activation(&self, op: &GatedActivation, gate: View, up: View, act: ViewMut) {
        by_act!(op.act, ACT => self.map(op.len, [gate, up], [act], #[inline(always)] |fused, [gate, up]| {
            [gate * activation(fused, ACT, gate).0 * up]
        }))
    }

    pub(super) fn run_gated_activation_backward(&self, op: &GatedActivation, reads: [View; 3], writes: [ViewMut; 2]) {
        by_act!(op.act, ACT => self.map(op.len, reads, writes, #[inline(always)] |fused, [gate, up, dact]| {
            let (share, slope) = activation(fused, ACT, gate);
            [dact * up * slope, dact * gate * share]
        }))
    }

    pub(super) fn run_pointwise_activation(&self, op: &PointwiseActivation, x: View, y: ViewMut) {
        by_act!(op.act, ACT => self.map(op.len, [x], [y], #[inline(always)] |fused, [x]| {
            [x * activation(fused, ACT, x).0]
        }))
    }

    pub(super) fn run_pointwise_activation_backward(&self, op: &PointwiseActivation, x: View, dy: View, dx: ViewMut) {
        by_act!(op.act, ACT => self.map(op.len, [x, dy], [dx], #[inline(always)] |fused, [x, dy]| {
            [dy * activation(fused, ACT, x).1]
        }))
    }

    pub(super) fn run_dropout(&self, op: &Dropout, x: View, y: ViewMut) {
        let threshold = philox::threshold(op.p);
        let scale = (1.0 / (1.0 - op.p)) as f32;
        typed!(op.dtype, T => {
            let (x, y) = (elements::<T>(&x), Shared::new(y));
            self.pool.split(op.len, GRAIN, |_, range| {
                let mut words = [0; CHUNK];
                for chunk in chunks(range) {
                    let first = op.first.wrapping_add(chunk.start as u64);
                    // SAFETY: chunks of all threads are disjoint.
                    let (x, y) = (&x[chunk.clone()], unsafe { y.elements::<T>(chunk) });
                    self.level.run(
                        #[inline(always)]
                        |_| {
                            let (threshold, scale) = (threshold, scale);
                            philox::stretch(op.seed, RandomStream::Dropout, 0, first, &mut words[..y.len()]);
                            for ((y, x), word) in y.iter_mut().zip(x).zip(&words) {
                                let kept = if u64::from(*word) < threshold { 0.0 } else { x.widen() * scale };
                                *y = T::narrow(kept);
                            }
                        },
                    );
                }
            });
        })
    }

    pub(super) fn run_normal(&self, op: &Normal, dst: ViewMut) {
        let (std, dst) = (op.std as f32, Shared::new(dst));
        self.pool.split(op.len, GRAIN, |_, range| {
            let mut buffer = [0.0; CHUNK];
            for chunk in chunks(range) {
                let first = op.first.wrapping_add(chunk.start as u64);
                // SAFETY: chunks of all threads are disjoint.
                let mut part = unsafe { dst.part(chunk) };
                let values = open(self.level, &mut part, &mut buffer, false);
                philox::each(first, values.len(), |block| philox::normals(op.seed, block), |i, x| values[i] = std * x);
                close(self.level, &mut part, &buffer);
            }
        });
    }

    pub(super) fn run_fill(&self, dst: ViewMut, value: f64) {
        let value = value as f32;
        self.update(
            dst,
            #[inline(always)]
            move |_| value,
        );
    }

    /// One type is copied; else an element is read as f32 and rounded into its place.
    pub(super) fn run_cast(&self, src: View, dst: ViewMut) {
        let (len, from, to) = (dst.len(), src.dtype(), dst.dtype());
        if from != to && (from == DType::F16 || to == DType::F16) {
            return self.cast_halves(src, dst);
        }
        if from != to {
            return self.update_from(
                src,
                dst,
                #[inline(always)]
                move |_, _, src| src,
            );
        }
        let (size, dst) = (from.size(), Shared::new(dst));
        self.pool.split(len, GRAIN, |_, range| {
            // SAFETY: ranges of all threads are disjoint.
            let to = unsafe { dst.part(range.clone()) };
            // SAFETY: both hold the range in one type; the output is lent for writing, so they are apart.
            unsafe { to.ptr().copy_from_nonoverlapping(src.slice(range.clone()).ptr(), range.len() * size) };
        });
    }

    /// By way of a chunk in f32, since the instructions for halves are no part of loops.
    fn cast_halves(&self, src: View, dst: ViewMut) {
        let (len, dst) = (dst.len(), Shared::new(dst));
        self.pool.split(len, GRAIN, |_, range| {
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
        self.map(
            len,
            [a, b],
            [dst],
            #[inline(always)]
            move |_, [a, b]| [a + b],
        );
    }

    pub(super) fn run_accumulate(&self, alpha: f64, src: View, dst: ViewMut) {
        let alpha = alpha as f32;
        self.update_from(
            src,
            dst,
            #[inline(always)]
            move |fused, dst, src| fma(fused, alpha, src, dst),
        );
    }

    pub(super) fn run_scale(&self, alpha: f64, dst: ViewMut) {
        let alpha = alpha as f32;
        self.update(
            dst,
            #[inline(always)]
            move |dst| dst * alpha,
        );
    }

    /// The sum of `term` of all elements in f64. The elements are cut into [`PARTS`] parts by the length alone; a part
    /// is summed in 16 lanes, and the parts are added in order.
    pub(super) fn run_sum(&self, x: View, term: impl Fn(f64) -> f64 + Sync) -> f64 {
        const PARTS: usize = 1024;
        // A multiple of the lanes, so that they start over nowhere else.
        let size = x.len().div_ceil(PARTS).div_ceil(CHUNK).max(1) * CHUNK;
        let count = x.len().div_ceil(size);
        let mut sums = [0.0f64; PARTS];
        let shared = Shared::new(ViewMut::of(&mut sums));
        typed!(x.dtype(), T => {
            let x = elements::<T>(&x);
            self.pool.split(count, 1, |_, range| {
                for part in range {
                    let values = &x[part * size..((part + 1) * size).min(x.len())];
                    let sum = self.level.run(
                        #[inline(always)]
                        |_| sum_lanes(values, &term),
                    );
                    // SAFETY: each part is summed by one thread.
                    unsafe { shared.elements::<f64>(part..part + 1)[0] = sum };
                }
            });
        });
        sums[..count].iter().sum()
    }
}

impl Cpu {
    /// The sum of elements or of their squares in the order in which kernels/cuda/reduce.cu adds them up, so that it does not matter
    /// on which side of a copy it is taken: `most` blocks of 256 threads, each of which adds eight elements of every tile of its block;
    /// a warp's threads add up by halves, warps and blocks in order.
    pub(crate) fn sum_as_cuda(&self, x: View, squares: bool, most: usize) -> f64 {
        const EACH: usize = 8;
        const THREADS: usize = 256;
        const WARP: usize = 32;
        const TILE: usize = THREADS * EACH;
        let blocks = x.len().div_ceil(TILE).min(most);
        let mut sums = vec![0.0f64; blocks];
        let shared = Shared::new(ViewMut::of(&mut sums));
        typed!(x.dtype(), T => {
            let x = elements::<T>(&x);
            self.pool.split(blocks, 1, |_, range| {
                for block in range {
                    let mut threads = [0.0f64; THREADS];
                    for tile in x.chunks(TILE).skip(block).step_by(blocks) {
                        for (sum, values) in threads.iter_mut().zip(tile.chunks(EACH)) {
                            for value in values {
                                let value = f64::from(value.widen());
                                // A product of two f32 is exact.
                                *sum += if squares { value * value } else { value };
                            }
                        }
                    }
                    let mut all = 0.0;
                    for warp in threads.as_chunks_mut::<WARP>().0 {
                        let mut half = WARP / 2;
                        while half > 0 {
                            let (low, high) = warp.split_at_mut(half);
                            low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
                            half /= 2;
                        }
                        all += warp[0];
                    }
                    // SAFETY: each block is summed by one thread.
                    unsafe { shared.elements::<f64>(block..block + 1)[0] = all };
                }
            });
        });
        sums.iter().fold(0.0, |all, sum| all + sum)
    }
}

/// The sum of `term` in 16 lanes, which are added in order.
#[inline(always)]
fn sum_lanes<T: Float32>(values: &[T], term: impl Fn(f64) -> f64) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0f64; LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for i in 0..LANES {
            lanes[i] += term(f64::from(block[i].widen()));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(blocks.remainder()) {
        *lane += term(f64::from(x.widen()));
    }
    lanes.iter().sum()
}

//! Traffic, activations, dropout, the optimizer.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, DeviceSlice, arguments, runs};
use super::mixed::Staged;
use crate::cpu::adamw::Step;
use crate::numerics::philox;
use crate::op::*;
use crate::{Cpu, Kernels, Result, View, ViewMut, no_scratch};

const THREADS: u32 = 256;
/// Elements that a block takes at a time: eight for each thread.
const TILE: usize = THREADS as usize * 8;

// SAFETY: eight f32, laid out alike in C.
unsafe impl Argument for Step {}

/// Starts a kernel that goes through elements, whose last parameter is their number.
macro_rules! each {
    ($self:ident, $kernel:literal, $len:expr, [$($value:expr),*]) => {
        $self.launch($kernel, [$self.blocks($len, TILE), 1, 1], THREADS, 0, arguments![$($value,)* $len])
    };
}

/// An activation's number in the kernels.
const fn number(act: Activation) -> u32 {
    match act {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
    }
}

impl Cuda {
    /// The operations that go through elements once; `None` if `op` is not one of them.
    pub(super) fn run_elementwise(&self, op: &Op, reads: &[View<'_>], writes: &[ViewMut<'_>]) -> Option<Result<()>> {
        let ([a, b, c], [x, y, z, copy]) = runs(reads, writes);
        // SAFETY: the kernels' parameters; the operands were checked against the operation's table.
        let done = unsafe {
            match op {
                Op::Fill(op, value) => {
                    let grid = [self.blocks(op.len, TILE), 1, 1];
                    self.launch("fill", grid, THREADS, 0, arguments![x, op.len, *value as f32])
                }
                Op::Accumulate(op, alpha) => each!(self, "accumulate", op.len, [*alpha as f32, a, x]),
                Op::Add(op) => each!(self, "add", op.len, [a, b, x]),
                Op::Scale(op, alpha) => each!(self, "scale", op.len, [*alpha as f32, x]),
                Op::PointwiseActivation(op) => each!(self, "activate", op.len, [number(op.act), a, x]),
                Op::PointwiseActivationBackward(op) => {
                    each!(self, "activate_backward", op.len, [number(op.act), a, b, x])
                }
                Op::GatedActivation(op) => each!(self, "swiglu", op.len, [number(op.act), a, b, x]),
                Op::GatedActivationBackward(op) => {
                    each!(self, "swiglu_backward", op.len, [number(op.act), a, b, c, x, y])
                }
                Op::Dropout(op) => {
                    let (threshold, scale) = (philox::threshold(op.p), (1.0 / (1.0 - op.p)) as f32);
                    each!(self, "dropout", op.len, [op.seed, op.first, threshold, scale, a, x])
                }
                Op::AdamW(op) => {
                    let (chance, seed, first) = match op.rounding {
                        Rounding::Nearest => (0u32, 0, 0),
                        Rounding::Stochastic { seed, first } => (1, seed, first),
                    };
                    each!(self, "adamw", op.len, [Step::of(op), chance, seed, first, op.step, x, y, z, a, copy])
                }
                _ => return None,
            }
        };
        Some(done)
    }

    /// One type is copied; else an element is read as f32 and rounded into its place.
    pub(super) fn run_cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        if src.dtype() == dst.dtype() {
            return self.copy(src, dst);
        }
        let (len, from, to) = (dst.len(), DeviceSlice::of(&src), DeviceSlice::of(&dst));
        // SAFETY: the kernel's parameters, and both hold `len` elements (checked).
        unsafe { each!(self, "cast", len, [from, to]) }
    }

    /// Drawn on the host, so that the bits are those of every other device, by as many threads as there is work and there are
    /// cores for, and sent in pieces: no part of a step.
    pub(super) fn run_normal(&self, op: &Normal, mut dst: ViewMut<'_>) -> Result<()> {
        const PIECE: usize = 1 << 22;
        const LEAST: usize = 1 << 16;
        let mut staged = Staged::new(op.dtype, op.len.min(PIECE));
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let cpu = Cpu::new(cores.min(op.len.min(PIECE).div_ceil(LEAST)));
        for start in (0..op.len).step_by(PIECE) {
            let len = PIECE.min(op.len - start);
            let piece = Normal { len, first: op.first.wrapping_add(start as u64), ..*op };
            cpu.run(&Op::Normal(piece), &[], &mut [staged.view_mut(len)], no_scratch())?;
            self.upload(staged.view(len), dst.slice_mut(start..start + len))?;
        }
        Ok(())
    }
}

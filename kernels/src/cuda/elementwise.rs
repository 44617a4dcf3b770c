//! Traffic, activations, dropout, the optimizer.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, Run, arguments, runs};
use crate::cpu::adamw::Step;
use crate::device::Address;
use crate::op::*;
use crate::philox;
use crate::round::Float32;
use crate::{DType, Kernels, Result, View, ViewMut};
use half::{bf16, f16};
use std::sync::{Mutex, PoisonError};

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
        let (len, from, to) = (dst.len(), Run::of(&src), Run::of(&dst));
        // SAFETY: the kernel's parameters, and both hold `len` elements (checked).
        unsafe { each!(self, "cast", len, [from, to]) }
    }

    /// Drawn on the host, so that the bits are those of every other device, and sent in pieces: no part of a step.
    pub(super) fn run_normal(&self, op: &Normal, dst: Run) -> Result<()> {
        const PIECE: usize = 1 << 22;
        let mut bytes = vec![0u8; op.len.min(PIECE) * op.dtype.size()];
        for start in (0..op.len).step_by(PIECE) {
            let len = PIECE.min(op.len - start);
            let piece = &mut bytes[..len * op.dtype.size()];
            draw(op, start, piece);
            // SAFETY: `dst` holds `len` elements from `start` on (checked).
            unsafe { self.stream.upload(piece, dst.address() + (start * op.dtype.size()) as Address)? };
        }
        Ok(())
    }
}

/// The elements from `start` on, as bytes, by as many threads as there is work and there are cores for.
fn draw(op: &Normal, start: usize, bytes: &mut [u8]) {
    const LEAST: usize = 1 << 16;
    let size = op.dtype.size();
    let len = bytes.len() / size;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let part = len.div_ceil(cores).max(LEAST);
    let run = |number: usize, bytes: &mut [u8]| {
        let first = op.first.wrapping_add((start + number * part) as u64);
        match op.dtype {
            DType::Bf16 => draw_as::<bf16>(op, first, bytes),
            DType::F16 => draw_as::<f16>(op, first, bytes),
            _ => draw_as::<f32>(op, first, bytes),
        }
    };
    let others = (len.div_ceil(part).max(1) - 1).min(cores);
    let parts = Mutex::new(bytes.chunks_mut(part * size).enumerate());
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(next).for_each(|(number, bytes)| run(number, bytes));
    std::thread::scope(|scope| {
        // Where the system starts no more threads, those that are there do the work.
        (0..others).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
}

fn draw_as<T: Float32>(op: &Normal, first: u64, bytes: &mut [u8]) {
    let std = op.std as f32;
    let mut slots = bytes.chunks_exact_mut(size_of::<T>());
    let len = slots.len();
    philox::each(
        first,
        len,
        |block| philox::normals(op.seed, block),
        |_, x| {
            if let Some(slot) = slots.next() {
                slot.copy_from_slice(bytemuck::bytes_of(&T::narrow(std * x)));
            }
        },
    );
}

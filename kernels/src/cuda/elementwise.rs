//! Traffic, activations, dropout, the optimizer.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, Run, arguments};
use crate::cpu::adamw::Step;
use crate::op::*;
use crate::philox;
use crate::round::Float32;
use crate::{DType, Result, View, ViewMut};
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
        $self.launch($kernel, [$self.blocks($len, TILE), 1, 1], THREADS, 0, arguments![$($value,)* $len as u64])
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
    pub(super) fn run_fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        let (len, value) = (dst.len(), value as f32);
        let grid = [self.blocks(len, TILE), 1, 1];
        // SAFETY: the kernel's parameters, and `dst` holds `len` elements.
        unsafe { self.launch("fill", grid, THREADS, 0, arguments![Run::of_mut(&dst), len as u64, value]) }
    }

    pub(super) fn run_accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let (len, alpha) = (dst.len(), alpha as f32);
        // SAFETY: the kernel's parameters, and both hold `len` elements (checked).
        unsafe { each!(self, "accumulate", len, [alpha, Run::of(&src), Run::of_mut(&dst)]) }
    }

    pub(super) fn run_add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let len = dst.len();
        let (a, b, to) = (Run::of(&a), Run::of(&b), Run::of_mut(&dst));
        // SAFETY: the kernel's parameters, and all hold `len` elements (checked).
        unsafe { each!(self, "add", len, [a, b, to]) }
    }

    pub(super) fn run_scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        let (len, alpha) = (dst.len(), alpha as f32);
        // SAFETY: the kernel's parameters, and `dst` holds `len` elements.
        unsafe { each!(self, "scale", len, [alpha, Run::of_mut(&dst)]) }
    }

    /// One type is copied; else an element is read as f32 and rounded into its place.
    pub(super) fn run_cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let (len, from, to) = (dst.len(), Run::of(&src), Run::of_mut(&dst));
        if src.dtype() == dst.dtype() {
            let (from, to) = (src.ptr().as_ptr().addr() as u64, dst.ptr().as_ptr().addr() as u64);
            // SAFETY: both hold as many bytes of the device's, and `dst` is lent for writing, so they are apart.
            return Ok(unsafe { self.stream.copy(from, to, len * dst.dtype().size()) }?);
        }
        // SAFETY: the kernel's parameters, and both hold `len` elements (checked).
        unsafe { each!(self, "cast", len, [from, to]) }
    }

    pub(super) fn run_pointwise_activation(&self, op: &PointwiseActivation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (x, y) = (Run::of(&x), Run::of_mut(&y));
        // SAFETY: the kernel's parameters, and both hold the operation's elements (checked).
        unsafe { each!(self, "activate", op.len, [number(op.act), x, y]) }
    }

    pub(super) fn run_pointwise_activation_backward(
        &self,
        op: &PointwiseActivation,
        x: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (x, dy, dx) = (Run::of(&x), Run::of(&dy), Run::of_mut(&dx));
        // SAFETY: the kernel's parameters, and all hold the operation's elements (checked).
        unsafe { each!(self, "activate_backward", op.len, [number(op.act), x, dy, dx]) }
    }

    pub(super) fn run_gated_activation(
        &self,
        op: &GatedActivation,
        gate: View<'_>,
        up: View<'_>,
        act: ViewMut<'_>,
    ) -> Result<()> {
        let (gate, up, act) = (Run::of(&gate), Run::of(&up), Run::of_mut(&act));
        // SAFETY: the kernel's parameters, and all hold the operation's elements (checked).
        unsafe { each!(self, "swiglu", op.len, [number(op.act), gate, up, act]) }
    }

    pub(super) fn run_gated_activation_backward(
        &self,
        op: &GatedActivation,
        gate: View<'_>,
        up: View<'_>,
        dact: View<'_>,
        dgate: ViewMut<'_>,
        dup: ViewMut<'_>,
    ) -> Result<()> {
        let (gate, up, dact) = (Run::of(&gate), Run::of(&up), Run::of(&dact));
        let (dgate, dup) = (Run::of_mut(&dgate), Run::of_mut(&dup));
        // SAFETY: the kernel's parameters, and all hold the operation's elements (checked).
        unsafe { each!(self, "swiglu_backward", op.len, [number(op.act), gate, up, dact, dgate, dup]) }
    }

    pub(super) fn run_dropout(&self, op: &Dropout, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (threshold, scale) = (philox::threshold(op.p), (1.0 / (1.0 - op.p)) as f32);
        // SAFETY: the kernel's parameters, and both hold the operation's elements (checked).
        unsafe { each!(self, "dropout", op.len, [op.seed, op.first, threshold, scale, Run::of(&x), Run::of_mut(&y)]) }
    }

    pub(super) fn run_adamw(
        &self,
        op: &AdamW,
        p: ViewMut<'_>,
        m: ViewMut<'_>,
        v: ViewMut<'_>,
        g: View<'_>,
        copy: Option<ViewMut<'_>>,
    ) -> Result<()> {
        let (chance, seed, first) = match op.rounding {
            Rounding::Nearest => (0u32, 0, 0),
            Rounding::Stochastic { seed, first } => (1, seed, first),
        };
        let [p, m, v] = [p, m, v].map(|view| Run::of_mut(&view));
        let (g, copy) = (Run::of(&g), copy.map_or(Run::none(DType::F32), |view| Run::of_mut(&view)));
        // SAFETY: the kernel's parameters, and all hold the operation's elements (checked), except a copy that there is none of.
        unsafe { each!(self, "adamw", op.len, [Step::of(op), chance, seed, first, op.step, p, m, v, g, copy]) }
    }

    /// Drawn on the host, so that the bits are those of every other device, and sent in pieces: no part of a step.
    pub(super) fn run_normal(&self, op: &Normal, mut dst: ViewMut<'_>) -> Result<()> {
        const PIECE: usize = 1 << 22;
        let mut bytes = vec![0u8; op.len.min(PIECE) * op.dtype.size()];
        for start in (0..op.len).step_by(PIECE) {
            let len = PIECE.min(op.len - start);
            let piece = &mut bytes[..len * op.dtype.size()];
            draw(op, start, piece);
            let to = dst.slice_mut(start..start + len).ptr().as_ptr().addr() as u64;
            // SAFETY: `dst` holds `len` elements from `start` on (checked).
            unsafe { self.stream.upload(piece, to)? };
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

//! Reductions: of several buffers to one, and of a buffer to a number.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, DeviceSlice, FAULT_WORDS, arguments, number};
use super::readback::{SUM_WORDS, ScalarReadback};
use crate::backend::write_sums;
use crate::memory::device::Address;
use crate::{DType, ReduceOp, Result, Sum, View, ViewMut};

const THREADS: u32 = 256;
/// Elements that a block takes at a time, at most.
const TILE: usize = THREADS as usize * 8;

/// Sources whose addresses go to the kernel with its parameters.
const MOST: usize = 256;

/// As kernels/cuda/reduce.cu has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sources {
    at: [Address; MOST],
    dtype: [u8; MOST],
    /// Runs of all sources where they are more, else 0.
    table: Address,
}

// SAFETY: laid out alike in C.
unsafe impl Argument for Sources {}

/// What is done to the joined elements, as kernels/cuda/reduce.cu has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Finish<A> {
    share: A,
    count: u32,
    average: u32,
    accumulate: u32,
}

// SAFETY: laid out alike in C.
unsafe impl Argument for Finish<f32> {}
// SAFETY: laid out alike in C.
unsafe impl Argument for Finish<f64> {}
// SAFETY: laid out alike in C.
unsafe impl Argument for Finish<i64> {}

impl Sources {
    /// Up to [`MOST`] of them.
    fn of(sources: &[View<'_>]) -> Sources {
        let mut all = Sources { at: [0; MOST], dtype: [0; MOST], table: 0 };
        for ((at, dtype), source) in all.at.iter_mut().zip(&mut all.dtype).zip(sources) {
            (*at, *dtype) = (source.ptr().as_ptr() as Address, number(source.dtype()) as u8);
        }
        all
    }
}

impl Cuda {
    pub(super) fn run_reduce(
        &self,
        op: ReduceOp,
        sources: &[View<'_>],
        accumulate: bool,
        dst: ViewMut<'_>,
    ) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        let mut given = Sources::of(sources);
        if sources.len() <= MOST {
            return self.start_reduce(op, sources, given, accumulate, dst);
        }
        // More than any machine has ranks: slow, but right.
        let runs: Vec<DeviceSlice> = sources.iter().map(|source| DeviceSlice::of(source)).collect();
        // SAFETY: a run is plain numbers without a gap between them.
        let bytes = unsafe { std::slice::from_raw_parts(runs.as_ptr().cast::<u8>(), size_of_val(&*runs)) };
        given.table = self.device.allocate(bytes.len())?;
        // SAFETY: the table was just made, of as many bytes.
        let sent = unsafe { self.stream.upload(bytes, given.table) };
        let done = sent.map_err(Into::into).and_then(|()| self.start_reduce(op, sources, given, accumulate, dst));
        let done = done.and(self.stream.synchronize().map_err(Into::into));
        // SAFETY: made above, and the stream has done what was asked of it.
        unsafe { self.device.free(given.table, bytes.len()) };
        done
    }

    fn start_reduce(
        &self,
        op: ReduceOp,
        sources: &[View<'_>],
        given: Sources,
        accumulate: bool,
        dst: ViewMut<'_>,
    ) -> Result<()> {
        let joining = match op {
            ReduceOp::Sum | ReduceOp::Avg => 0u32,
            ReduceOp::Prod => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
        };
        let (count, len, to) = (sources.len() as u32, dst.len(), DeviceSlice::of(&dst));
        let grid = |tile: usize| [self.blocks(len, tile), 1, 1];
        let (average, accumulate) = (u32::from(op == ReduceOp::Avg), u32::from(accumulate));
        let doubles = dst.dtype() == DType::F64 || sources.iter().any(|source| source.dtype() == DType::F64);
        if !dst.dtype().is_float() {
            let finish = Finish { share: 0i64, count, average, accumulate };
            // SAFETY: the kernel's parameters, and all hold `len` elements of one type (checked).
            unsafe {
                self.launch("reduce_integers", grid(TILE / 2), THREADS, 0, arguments![given, joining, finish, to, len])
            }
        } else if doubles {
            let finish = Finish { share: 1.0 / sources.len() as f64, count, average, accumulate };
            // SAFETY: the kernel's parameters, and all hold `len` floats (checked).
            unsafe {
                self.launch("reduce_doubles", grid(TILE / 2), THREADS, 0, arguments![given, joining, finish, to, len])
            }
        } else {
            let finish = Finish { share: 1.0 / sources.len() as f32, count, average, accumulate };
            // SAFETY: as above, and none of f64.
            unsafe { self.launch("reduce_floats", grid(TILE), THREADS, 0, arguments![given, joining, finish, to, len]) }
        }
    }

    /// The sum of elements, or of their squares: of each block its own, which the host adds in their order. How many there
    /// are depends on the length alone.
    pub(super) fn run_sum(&self, x: View<'_>, squares: bool) -> Result<f64> {
        let readback = self.readback();
        let blocks = self.start_sum(&readback, x, squares)?;
        // What kernels have found wrong comes with them.
        let mut sums = [0.0; SUM_WORDS];
        self.doubles(&readback, readback.sums, &mut sums[..blocks])?;
        Ok(sums[..blocks].iter().fold(0.0, |all, sum| all + sum))
    }

    /// The blocks' sums, and how many there are.
    fn start_sum(&self, readback: &ScalarReadback, x: View<'_>, squares: bool) -> Result<usize> {
        let (len, squares, sums) = (x.len(), u32::from(squares), readback.sums);
        let blocks = len.div_ceil(TILE).min(SUM_WORDS);
        // SAFETY: the kernel's parameters; `x` holds `len` elements, and there is room for as many sums.
        unsafe { self.launch("sum", [blocks, 1, 1], THREADS, 0, arguments![DeviceSlice::of(&x), squares, sums, len])? };
        Ok(blocks)
    }

    /// As [`Cuda::run_sum`], to the bit, into a slot of the device's.
    pub(super) fn run_sum_async(&self, x: View<'_>, squares: bool) -> Result<Sum> {
        let mut readback = self.readback();
        let Some((to, number)) = readback.take() else {
            drop(readback);
            return self.run_sum(x, squares).map(Sum::Known);
        };
        let (blocks, sums) = (self.start_sum(&readback, x, squares)? as u32, readback.sums);
        // SAFETY: the kernel's parameters; so many sums are there, and the slot is nobody else's.
        unsafe { self.launch("sum_partials", [1, 1, 1], 32, 0, arguments![sums, blocks, to])? };
        Ok(Sum::Slot(number))
    }

    /// What slots hold, which are free again.
    pub(super) fn run_read_scalars(&self, sums: &[Sum], to: &mut [f64]) -> Result<()> {
        let mut readback = self.readback();
        let mut slots = [0.0; SUM_WORDS];
        let slots = &mut slots[..readback.len()];
        let read = self.doubles(&readback, readback.slots, slots);
        let told = read.and_then(|()| write_sums(sums, to, |number| Some(slots[readback.slot(number)?])));
        readback.free(sums.iter().filter_map(|sum| if let Sum::Slot(number) = sum { Some(*number) } else { None }));
        told
    }

    /// As many f64 of those behind the fault's words; what kernels have found wrong comes with them.
    fn doubles(&self, readback: &ScalarReadback, from: Address, to: &mut [f64]) -> Result<()> {
        let before = (from - readback.faults) as usize;
        let mut bytes = [0u8; 256 + 2 * SUM_WORDS * 8];
        let bytes = &mut bytes[..before + size_of_val(to)];
        // SAFETY: both lie in the stream's own memory, one behind the other.
        unsafe { self.stream.download(readback.faults, bytes)? };
        self.found(readback, &bytes[..FAULT_WORDS * 4])?;
        for (to, bytes) in to.iter_mut().zip(bytes[before..].as_chunks::<8>().0) {
            *to = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

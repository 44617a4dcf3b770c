//! What every device does: the trait [`Kernels`], the operands that it checks, costs, and a device that computes nothing.

pub(crate) mod check;
pub(crate) mod cost;
pub(crate) mod dry;
pub(crate) mod operands;
pub(crate) mod stopwatch;

use crate::memory::copy;
use crate::memory::device::Event;
use crate::op::*;
use crate::threads::affinity::Pinned;
use crate::{Arena, ArenaError, CopyStreams, DType, ReduceOp, View, ViewMut};
use std::sync::Arc;

/// Why an operation was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An operand has another element type than the operation says.
    #[error("a buffer of {wanted} was expected, {given} given")]
    DType { wanted: DType, given: DType },
    /// An operand is too short, or the shape cannot be.
    #[error("{op}: {operand} has {given} elements, {wanted} needed")]
    Shape { op: &'static str, operand: &'static str, wanted: usize, given: usize },
    /// Operands do not fit each other, or hold an invalid value.
    #[error("{op}: {reason}")]
    Invalid {
        op: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The host cannot read or write device memory.
    #[error("the elements lie in a device's memory, which the host cannot reach; copy them (upload, download)")]
    NotOnHost,
    /// The elements are a place in a file.
    #[error("the elements lie in a file, which no kernel reaches; read them into memory (disk::File::start_read)")]
    InFile,
    /// The device failed at `call`, and says why.
    #[error("{device}: {call}: {reason}")]
    Device { device: String, call: String, reason: String },
    /// This device has no such kernel for this type.
    #[error("{device} kernels cannot do {op} in {dtype}")]
    Unsupported { device: &'static str, op: &'static str, dtype: DType },
}

/// The result of a sum, which the host may not have yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sum {
    /// Its value is on the host already.
    Known(f64),
    /// Its value is in this slot on the device.
    Slot(u32),
}

/// Writes the value of each sum to `to`; `slot` reads the device's slots.
pub(crate) fn write_sums(sums: &[Sum], to: &mut [f64], slot: impl Fn(u32) -> Option<f64>) -> Result<()> {
    let invalid = |reason| Err(KernelError::Invalid { op: "known", reason });
    if sums.len() != to.len() {
        return invalid(format!("{} sums do not go to {} places", sums.len(), to.len()));
    }
    for (sum, to) in sums.iter().zip(to) {
        *to = match sum {
            Sum::Known(value) => *value,
            Sum::Slot(number) => match slot(*number) {
                Some(value) => value,
                None => return invalid(format!("sum {number} is not one of those asked for since the last time")),
            },
        };
    }
    Ok(())
}

/// What a kernel returns.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// The operations of one device.
///
/// Shapes are in the operation; operands are flat views, row-major and contiguous. Sums run in an order that depends on shapes and
/// the number of threads alone, and an element-wise kernel gives an element the same bits wherever it sits in a buffer.
pub trait Kernels: Send + Sync {
    /// What runs them, for records: `cpu avx512`, `reference`.
    fn name(&self) -> String;

    /// Threads that share one operation.
    fn threads(&self) -> usize;

    /// Pins the calling thread to its core until the guard is dropped. `None` where threads are not pinned.
    fn pin_thread(&self) -> Option<Pinned> {
        None
    }

    /// An arena in the memory of this device, which `sharers` ranks share. `capacity` limits the bytes in use; without it, the
    /// limit is this rank's share of the device's memory.
    ///
    /// # Errors
    /// There is no such memory.
    fn arena(&self, capacity: Option<u64>, _sharers: usize) -> Result<Arena, ArenaError> {
        Arena::host(capacity)
    }

    /// As [`Kernels::arena`] for at most so many bytes in use, as a plan says: where address space is limited, no more is reserved than
    /// that needs.
    ///
    /// # Errors
    /// There is no such memory.
    fn arena_for(&self, capacity: Option<u64>, planned: u64, sharers: usize) -> Result<Arena, ArenaError> {
        if self.is_host() { Arena::host_for(capacity, planned) } else { self.arena(capacity, sharers) }
    }

    /// An arena of host memory, of so many bytes where it must be allocated as a whole: what [`Kernels::copy_streams`] copy from and
    /// to.
    ///
    /// # Errors
    /// There is no such memory.
    fn host_arena(&self, bytes: u64) -> Result<Arena, ArenaError> {
        Arena::host_for(None, bytes)
    }

    /// Streams for copies between this device and the host's arena; `None` where both are one memory.
    ///
    /// # Errors
    /// The device has no memory for streams.
    fn copy_streams(&self) -> Result<Option<CopyStreams>> {
        Ok(None)
    }

    /// Whether operands are in host memory and every call returns when its work is done.
    fn is_host(&self) -> bool {
        true
    }

    /// Copies from the host to the device, in stream order. Types and lengths must agree. `src` may be changed when this returns.
    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("upload", src, dst)
    }

    /// Copies from the device to the host and waits for it. Types and lengths must agree. Returns errors of earlier asynchronous
    /// work.
    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("download", src, dst)
    }

    /// `dst = src` in stream order, wherever the two lie; waits where one is on the host and not the device's. Types and lengths
    /// must agree.
    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("copy", src, dst)
    }

    /// Waits until all work is done. Returns errors of earlier asynchronous work.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// The same device with a stream of its own, for transfers that overlap with computation. `None` where the device has one
    /// stream only.
    ///
    /// # Errors
    /// The device has no memory for another stream.
    fn new_stream(&self) -> Result<Option<Arc<dyn Kernels>>> {
        Ok(None)
    }

    /// Records an event behind the work so far; `None` where every call returns when its work is done.
    ///
    /// # Errors
    /// The device failed.
    fn record_event(&self) -> Result<Option<Arc<dyn Event>>> {
        Ok(None)
    }

    /// Starts a profiler range for this thread; `None` ends it.
    fn profiler_range(&self, _name: Option<&str>) {}

    /// Later work waits for that event of the same device. Where every call returns when its work is done, this one returns when the
    /// event has come.
    ///
    /// # Errors
    /// The device failed.
    fn wait_event(&self, event: &dyn Event) -> Result<()> {
        Ok(event.wait()?)
    }

    /// Elements of logits to compute at a time: enough for a fast product, few enough for the memory they take.
    fn logits_chunk_len(&self) -> usize {
        1 << 23
    }

    /// Elements from one row of `columns` logits to the next with which products are fast; `columns` where that makes no difference.
    fn logits_pitch(&self, columns: usize) -> usize {
        columns
    }

    /// Elements of f32 that `op` needs as scratch.
    fn workspace(&self, op: &Op) -> usize;

    /// Elements of f32 that B of `op` takes in the form in which products read it, where making that form costs time that
    /// keeping it saves; `None` where it does not. It depends on k, n and the types alone.
    fn prepacked_len(&self, op: &Gemm) -> Option<usize>;

    /// Performs an operation. [`Op::operands`] lists what it reads and writes; `reads` and `writes` are in that order. An operand
    /// shorter than its shape is an error, a longer one is used from its start. `scratch` holds at least [`Kernels::workspace`]
    /// elements of f32, whose contents mean nothing before and after.
    ///
    /// # Errors
    /// The operands are not those of the table, the device has no such kernel, or the data cannot be (an id outside the vocabulary).
    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()>;

    /// The result of [`Op::Sum`] or [`Op::SumSquares`]: the sum in f64, in an order fixed by the length. A device goes on
    /// meanwhile; [`Kernels::read_scalars`] tells the value.
    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum>;

    /// The values of sums that were asked for, by anyone, to as many places. What this thread has asked for before and does not
    /// ask to be told here is forgotten.
    fn read_scalars(&self, sums: &[Sum], to: &mut [f64]) -> Result<()> {
        write_sums(sums, to, |_| None)
    }

    /// `dst[i] = value`.
    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        self.run(&Op::fill(&dst, value), &[], &mut [dst], no_scratch())
    }

    /// `dst = src`, rounded to nearest even where the type narrows. Lengths must agree.
    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.run(&Op::cast(&src, &dst), &[src], &mut [dst], no_scratch())
    }

    /// `dst = a + b`; one type, lengths must agree.
    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let shape = Elementwise::new(2, a.dtype(), &dst);
        self.run(&Op::Add(shape), &[a, b], &mut [dst], no_scratch())
    }

    /// `dst += alpha * src`; types may differ, lengths must agree.
    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.run(&Op::accumulate(alpha, &src, &dst), &[src], &mut [dst], no_scratch())
    }

    /// `dst *= alpha`.
    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        self.run(&Op::scale(alpha, &dst), &[], &mut [dst], no_scratch())
    }

    /// See [`Reduce`]. Lengths must agree.
    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        let from = sources.first().map_or(dst.dtype(), |source| source.dtype());
        let op = Reduce { len: dst.len(), sources: sources.len(), op, accumulate, from, to: dst.dtype() };
        self.run(&Op::Reduce(op), sources, &mut [dst], no_scratch())
    }
}

/// For operations that need none.
pub fn no_scratch() -> ViewMut<'static> {
    ViewMut::of::<f32>(&mut [])
}

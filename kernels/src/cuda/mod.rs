//! Kernels written in CUDA: on a GPU, or on the processor to check them. Storage in f32, bf16 or f16, arithmetic in f32.
//!
//! What an operation does stands in `kernels/cuda/*.cu`; here it is checked, cut into blocks of threads, and started. The same
//! code starts it on every [`Device`].

mod elementwise;
mod embedding;
mod experts;
mod flash;
pub mod folder;
mod gemm;
pub mod gpu;
mod grouped;
mod hopper;
pub mod host;
mod launch;
mod loss;
mod mixed;
mod packed;
mod quantize;
mod readback;
mod reduce;
mod rows;
pub mod sources;

use crate::backend::operands;
use crate::backend::operands::DeviceTypes;
use crate::memory::copy;
use crate::memory::device::{Device, DeviceError, Event, Stream};
use crate::op::*;
use crate::threads::affinity::Pinned;
use crate::{Arena, ArenaError, CopyStreams, Cpu, DType, KernelError, Kernels, Result, Sum, View, ViewMut};
use launch::{DeviceSlice, runs};
use std::sync::Arc;

/// Kernels of one rank on a CUDA device: a stream of its own, in whose order its operations are done.
///
/// Calls return when their work is queued. What the host can only find out later (an id outside the vocabulary, a fault of the
/// device) comes out of the next call that waits: [`Kernels::download`], [`Kernels::synchronize`] and sums to a number.
pub struct Cuda {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    stream_scratch: launch::StreamScratch,
    /// For what lies on the host.
    host: Cpu,
    /// Whether attention may take the kernels for Hopper.
    hopper_attention: bool,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({})", self.device.name())
    }
}

impl From<DeviceError> for KernelError {
    fn from(error: DeviceError) -> KernelError {
        KernelError::Device { device: error.device, call: error.call, reason: error.reason }
    }
}

/// These kernels know f32 and what widens to it.
const DEVICE: DeviceTypes =
    DeviceTypes { name: "cuda", computes: |dtype| matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) };

impl Cuda {
    /// Kernels with a stream of their own on a device.
    ///
    /// # Errors
    /// The device has no room for another stream, or cannot compile the kernels.
    pub fn new(device: Arc<dyn Device>) -> Result<Cuda, DeviceError> {
        let stream = device.new_stream()?;
        let stream_scratch = launch::StreamScratch::new(&device, &*stream)?;
        Ok(Cuda { device, stream, stream_scratch, host: Cpu::new(1), hopper_attention: false })
    }

    /// The same with these kernels for what lies on the host: the update of what is offloaded, and sums of it.
    pub fn with_host(self, host: Cpu) -> Cuda {
        Cuda { host, ..self }
    }

    /// Whether attention's forward takes the kernel for Hopper's own instructions where it can: on a GPU of compute capability
    /// 9.0, bf16, heads of 64 or 128, a causal mask, a positive scale, no documents, no ALiBi, no window shorter than the
    /// sequence. Elsewhere the other kernels do it. Off unless asked for: this kernel has been compiled but never run, so
    /// compare its results with the other's before you trust it.
    pub fn prefer_hopper_attention(mut self, prefer: bool) -> Cuda {
        self.hopper_attention = prefer;
        self
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Its stream.
    pub fn stream(&self) -> &dyn Stream {
        &*self.stream
    }
}

#[allow(unsafe_code, reason = "copies take addresses in the machine's memory")]
impl Kernels for Cuda {
    fn name(&self) -> String {
        self.device.name()
    }

    fn threads(&self) -> usize {
        1
    }

    fn arena(&self, capacity: Option<u64>, sharers: usize) -> Result<Arena, ArenaError> {
        // What connections have taken since the device was opened is not there any more. Ranks that share it divide what was free
        // before the first of them took its part.
        let bytes = match sharers {
            0 | 1 => self.device.free_bytes().map_err(|error| ArenaError::Device {
                bytes: self.device.props().memory_bytes,
                reason: error.to_string(),
            })?,
            _ => self.device.props().memory_bytes / sharers as u64,
        };
        Arena::on(self.device.clone(), capacity, bytes)
    }

    fn host_arena(&self, bytes: u64) -> Result<Arena, ArenaError> {
        Arena::pinned(self.device.clone(), bytes)
    }

    fn copy_streams(&self) -> Result<Option<CopyStreams>> {
        CopyStreams::new(&*self.device).map(Some)
    }

    fn is_host(&self) -> bool {
        false
    }

    fn pin_thread(&self) -> Option<Pinned> {
        self.host.pin_thread()
    }

    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("upload", &src, &dst)?;
        if self.is_away(dst.is_on_host()) {
            return copy::plain("upload", src, dst);
        }
        // SAFETY: `dst` holds as many bytes of the device's.
        Ok(unsafe { self.stream.upload(src.as_bytes()?, DeviceSlice::of(&dst).address()) }?)
    }

    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("download", &src, &dst)?;
        if self.is_away(src.is_on_host()) {
            return copy::plain("download", src, dst);
        }
        let to = dst.into_bytes_mut()?;
        // SAFETY: `src` holds as many bytes of the device's.
        unsafe { self.stream.download(DeviceSlice::of(&src).address(), to)? };
        self.settled()
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("copy", &src, &dst)?;
        if self.is_away(src.is_on_host()) {
            return self.upload(src, dst);
        }
        if self.is_away(dst.is_on_host()) {
            return self.download(src, dst);
        }
        let (from, to) = (DeviceSlice::of(&src).address(), DeviceSlice::of(&dst).address());
        // SAFETY: both hold as many bytes of the device's, and `dst` is lent for writing, so they are apart.
        Ok(unsafe { self.stream.copy(from, to, src.len() * src.dtype().size()) }?)
    }

    fn synchronize(&self) -> Result<()> {
        self.settled()
    }

    fn new_stream(&self) -> Result<Option<Arc<dyn Kernels>>> {
        Ok(Some(Arc::new(Cuda::new(self.device.clone())?)))
    }

    fn record_event(&self) -> Result<Option<Arc<dyn Event>>> {
        Ok(Some(self.stream.record_event()?.into()))
    }

    fn profiler_range(&self, name: Option<&str>) {
        self.device.profiler_range(name);
    }

    fn wait_event(&self, event: &dyn Event) -> Result<()> {
        Ok(self.stream.wait_event(event)?)
    }

    /// Tensor cores read rows that begin at multiples of 16 bytes; others take several times as long (measured on an H200: 95 in place
    /// of 660 TFLOP/s with GPT-2's vocabulary of 50,257).
    fn logits_pitch(&self, columns: usize) -> usize {
        if columns.is_multiple_of(8) { columns } else { columns.next_multiple_of(64) }
    }

    fn logits_chunk_len(&self) -> usize {
        1 << 28
    }

    fn workspace(&self, op: &Op) -> usize {
        match op {
            Op::Gemm(op) => gemm::workspace(op, self.device.blas_workspace()),
            Op::AttentionBackward(op) | Op::NaiveAttention(op) | Op::NaiveAttentionBackward(op) => flash::lines(op),
            _ => 0,
        }
    }

    fn prepacked_len(&self, _: &Gemm) -> Option<usize> {
        None
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        operands::check(DEVICE, op, reads, writes)?;
        operands::check_scratch(op, &scratch, self.workspace(op))?;
        if self.is_for_host(op, reads, writes)? {
            return self.host.run(op, reads, writes, scratch);
        }
        if let Some(done) = self.run_elementwise(op, reads, writes).or_else(|| self.run_rows(op, reads, writes)) {
            return done;
        }
        let workspace = DeviceSlice::of(&scratch);
        let ([a, b, c, d, e, f, g], [x, y, z]) = runs(reads, writes);
        match (op, reads, writes) {
            (Op::Cast(_), [src], [dst]) => self.cast_anywhere(*src, dst.reborrow()),
            (Op::Normal(op), _, [dst]) => self.run_normal(op, dst.reborrow()),
            (Op::Reduce(op), sources, [dst]) => self.run_reduce(op.op, sources, op.accumulate, dst.reborrow()),
            (Op::Unpack(op), [record], [dst]) => self.unpack_anywhere(op, *record, dst.reborrow()),
            (Op::Gemm(op), ..) => self.run_gemm(op, [a, b, x], &scratch),
            (Op::Attention(op), ..) => self.run_attention(op, [a, b, c], d, [x, y]),
            (Op::AttentionBackward(op), ..) => {
                self.run_attention_backward(op, [a, b, c], [d, e, f, g], [x, y, z], workspace)
            }
            (Op::NaiveAttention(op), ..) => self.run_naive_attention(op, [a, b, c], d, [x, y], workspace),
            (Op::NaiveAttentionBackward(op), ..) => {
                self.run_naive_attention_backward(op, [a, b, c], [d, e], [x, y, z], workspace)
            }
            (Op::Embedding(op), ..) => self.run_embedding(op, [a, b, x]),
            (Op::EmbeddingBackward(op), ..) => self.run_embedding_backward(op, [a, b, x]),
            // A loss in half precision says nothing; these are defined for f32 and f64 alone.
            (Op::CrossEntropy(op), ..) if op.dtype == DType::F32 => self.run_cross_entropy(op, [a, x, y]),
            (Op::VocabParallelStats(op), ..) if op.dtype == DType::F32 => self.run_loss_parts(op, [a, b, x]),
            (Op::VocabParallelCrossEntropy(op), ..) if op.part.dtype == DType::F32 => {
                self.run_loss_of_parts(op, [a, b, x, y])
            }
            (Op::Quantize(op), ..) => self.run_quantize(op, [a, x, y]),
            (Op::Dequantize(op), ..) => self.run_dequantize(op, [a, b, x]),
            (Op::Pack(op), ..) => self.run_pack(op, [a, x, y]),
            (Op::Route(op), ..) => self.run_route(op, a, x, y),
            (Op::RouteBackward(op), ..) => self.run_route_backward(op, [a, b, c, x]),
            (Op::Dispatch(op), ..) => self.run_dispatch(op, [a, b, x]),
            (Op::Combine(op), ..) => self.run_combine(op, [a, b, c, x]),
            (Op::RouterWeightBackward(op), ..) => self.run_router_weight_backward(op, [a, b, x, y, z]),
            (Op::GroupedGemm(op), ..) => self.run_grouped_gemm(op, a, [b, c, x]),
            (op, ..) => Err(operands::not_run(DEVICE, op)),
        }
    }

    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        operands::check(DEVICE, op, &[x], &[])?;
        if self.is_away(x.is_on_host()) {
            let sum = |squares| Ok(Sum::Known(self.host.sum_as_cuda(x, squares, readback::SUM_WORDS)));
            return match op {
                Op::Sum(_) => sum(false),
                Op::SumSquares(_) => sum(true),
                _ => Err(operands::not_run(DEVICE, op)),
            };
        }
        match op {
            Op::Sum(_) => self.run_sum_async(x, false),
            Op::SumSquares(_) => self.run_sum_async(x, true),
            _ => Err(operands::not_run(DEVICE, op)),
        }
    }

    fn read_scalars(&self, sums: &[Sum], to: &mut [f64]) -> Result<()> {
        self.run_read_scalars(sums, to)
    }
}

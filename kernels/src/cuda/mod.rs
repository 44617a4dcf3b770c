//! Kernels written in CUDA: on a GPU, or on the processor to check them. Storage in f32, bf16 or f16, arithmetic in f32.
//!
//! What an operation does stands in `kernels/cuda/*.cu`; here it is checked, cut into blocks of threads, and started. The same
//! code starts it on every [`Machine`].

mod attention;
pub mod blueprint;
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
mod late;
mod launch;
pub mod machine;
mod mixed;
mod packed;
mod quantize;
mod reduce;
mod rows;
pub mod sources;
mod telling;

use crate::op::*;
use crate::packed::{self as packing, Packed};
use crate::{Arena, ArenaError, Cpu, DType, KernelError, Kernels, ReduceOp, Result, Sum, View, ViewMut, check, copy};
use machine::{Address, Machine, MachineError, Mark, Queue};
use std::sync::Arc;

/// Kernels of one rank on a machine that runs CUDA: a queue of its own, in whose order its operations are done.
///
/// Calls return when their work is queued. What the host can only find out later (an id outside the vocabulary, a fault of the
/// device) comes out of the next call that waits: [`Kernels::download`], [`Kernels::synchronize`] and sums to a number.
pub struct Cuda {
    machine: Arc<dyn Machine>,
    queue: Box<dyn Queue>,
    own: launch::Own,
    /// For what lies on the host.
    host: Cpu,
    /// Whether attention may take the kernels for Hopper.
    hopper_attention: bool,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({})", self.machine.name())
    }
}

impl From<MachineError> for KernelError {
    fn from(error: MachineError) -> KernelError {
        KernelError::Device { device: error.machine, call: error.call, reason: error.reason }
    }
}

/// These kernels know f32 and what widens to it.
fn supported(op: &'static str, dtypes: &[DType]) -> Result<()> {
    match dtypes.iter().find(|dtype| **dtype == DType::F64 || !dtype.is_float()) {
        Some(&dtype) => Err(KernelError::Unsupported { device: "cuda", op, dtype }),
        None => Ok(()),
    }
}

impl Cuda {
    /// Kernels with a queue of their own on a machine.
    ///
    /// # Errors
    /// The machine has no room for another queue, or cannot compile the kernels.
    pub fn new(machine: Arc<dyn Machine>) -> Result<Cuda, MachineError> {
        let queue = machine.queue()?;
        let own = launch::Own::new(&machine, &*queue)?;
        Ok(Cuda { machine, queue, own, host: Cpu::new(1), hopper_attention: false })
    }

    /// Whether attention's forward takes the kernel for Hopper's own instructions where it can: on a GPU of compute capability
    /// 9.0, bf16, heads of 64 or 128, a positive scale, no documents, no ALiBi, no window shorter than the sequence. Elsewhere
    /// the other kernels do it. Off unless asked for: this kernel has been compiled but never run, so compare its results with
    /// the other's before you trust it.
    pub fn prefer_hopper_attention(mut self, prefer: bool) -> Cuda {
        self.hopper_attention = prefer;
        self
    }

    /// The machine.
    pub fn machine(&self) -> &Arc<dyn Machine> {
        &self.machine
    }

    /// Its queue.
    pub fn queue(&self) -> &dyn Queue {
        &*self.queue
    }
}

impl Kernels for Cuda {
    fn name(&self) -> String {
        self.machine.name()
    }

    fn threads(&self) -> usize {
        1
    }

    fn arena(&self, capacity: Option<u64>, sharers: usize) -> Result<Arena, ArenaError> {
        // What connections have taken since the machine was opened is not there any more. Ranks that share it divide what was free
        // before the first of them took its part.
        let bytes = match sharers {
            0 | 1 => self.machine.free_bytes().map_err(|error| ArenaError::Device {
                bytes: self.machine.facts().memory_bytes,
                reason: error.to_string(),
            })?,
            _ => self.machine.facts().memory_bytes / sharers as u64,
        };
        Arena::on(self.machine.clone(), capacity, bytes)
    }

    fn is_host(&self) -> bool {
        false
    }

    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("upload", &src, &dst)?;
        // SAFETY: `dst` holds as many bytes of the machine's.
        Ok(unsafe { self.queue.upload(src.as_bytes()?, dst.ptr().as_ptr() as Address) }?)
    }

    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("download", &src, &dst)?;
        let to = dst.into_bytes_mut()?;
        // SAFETY: `src` holds as many bytes of the machine's.
        unsafe { self.queue.download(src.ptr().as_ptr() as Address, to)? };
        self.settled()
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("copy", &src, &dst)?;
        let (from, to) = (src.ptr().as_ptr() as Address, dst.ptr().as_ptr() as Address);
        // SAFETY: both hold as many bytes of the machine's, and `dst` is lent for writing, so they are apart.
        Ok(unsafe { self.queue.copy(from, to, src.len() * src.dtype().size()) }?)
    }

    fn synchronize(&self) -> Result<()> {
        self.settled()
    }

    fn beside(&self) -> Result<Option<Arc<dyn Kernels>>> {
        Ok(Some(Arc::new(Cuda::new(self.machine.clone())?)))
    }

    fn mark(&self) -> Result<Option<Arc<dyn Mark>>> {
        Ok(Some(self.queue.mark()?.into()))
    }

    fn show(&self, name: Option<&str>) {
        self.machine.show(name);
    }

    fn follow(&self, mark: &dyn Mark) -> Result<()> {
        Ok(self.queue.follow(mark)?)
    }

    fn passing_elements(&self) -> usize {
        1 << 28
    }

    fn workspace(&self, op: &Op) -> usize {
        match op {
            Op::Gemm(op) => gemm::workspace(op, self.machine.product_workspace()),
            Op::Attention(op) => flash::forward_workspace(op),
            Op::AttentionBackward(op) => flash::backward_workspace(op),
            Op::NaiveAttention(op) => flash::naive_workspace(op),
            Op::NaiveAttentionBackward(op) => flash::naive_backward_workspace(op),
            _ => 0,
        }
    }
    fn gemm(&self, op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, workspace: ViewMut<'_>) -> Result<()> {
        supported("gemm", &[op.a, op.b, op.c])?;
        check::gemm(op, &a, &b, &c)?;
        check::operand("gemm", "workspace", &workspace, DType::F32, self.workspace(&Op::Gemm(*op)))?;
        self.run_gemm(op, a, b, c, workspace)
    }

    fn prepacked_len(&self, _: &Gemm) -> Option<usize> {
        None
    }

    fn prepack(&self, op: &Gemm, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(KernelError::Unsupported { device: "cuda", op: "prepack", dtype: op.b })
    }

    fn gemm_prepacked(&self, op: &Gemm, _: View<'_>, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(KernelError::Unsupported { device: "cuda", op: "gemm_prepacked", dtype: op.b })
    }
    fn rms_norm(&self, op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) -> Result<()> {
        supported("rms_norm", &[op.dtype])?;
        check::rms_norm(op, &x, &w, &y, &rstd)?;
        self.run_rms_norm(op, x, w, y, rstd)
    }

    fn rms_norm_backward(
        &self,
        op: &RmsNorm,
        x: View<'_>,
        w: View<'_>,
        rstd: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dw: Option<ViewMut<'_>>,
    ) -> Result<()> {
        supported("rms_norm_backward", &[op.dtype, op.gradient.unwrap_or(op.dtype)])?;
        check::rms_norm_backward(op, &x, &w, &rstd, &dy, &dx, dw.as_ref())?;
        self.run_rms_norm_backward(op, x, w, rstd, dy, dx, dw)
    }

    fn layer_norm(
        &self,
        op: &LayerNorm,
        x: View<'_>,
        w: View<'_>,
        b: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) -> Result<()> {
        supported("layer_norm", &[op.dtype])?;
        check::layer_norm(op, &x, &w, b.as_ref(), &y, &statistics)?;
        self.run_layer_norm(op, x, w, b, y, statistics)
    }

    fn layer_norm_backward(
        &self,
        op: &LayerNorm,
        x: View<'_>,
        w: View<'_>,
        statistics: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dw: Option<ViewMut<'_>>,
        db: Option<ViewMut<'_>>,
    ) -> Result<()> {
        supported("layer_norm_backward", &[op.dtype, op.gradient.unwrap_or(op.dtype)])?;
        check::layer_norm_backward(op, &x, &w, &statistics, &dy, &dx, dw.as_ref(), db.as_ref())?;
        self.run_layer_norm_backward(op, x, w, statistics, dy, dx, dw, db)
    }

    fn add_rows(&self, op: &AddRows, table: View<'_>, x: ViewMut<'_>) -> Result<()> {
        supported("add_rows", &[op.dtype])?;
        check::add_rows(op, &table, &x)?;
        self.run_add_rows(op, table, x)
    }

    fn add_rows_backward(&self, op: &AddRows, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        supported("add_rows_backward", &[op.dtype, dtable.dtype()])?;
        check::add_rows_backward(op, &dy, &dtable)?;
        self.run_add_rows_backward(op, dy, dtable)
    }

    fn mul_rows(&self, op: &MulRows, w: View<'_>, x: ViewMut<'_>) -> Result<()> {
        supported("mul_rows", &[op.dtype])?;
        check::mul_rows(op, &w, &x)?;
        self.run_mul_rows(op, w, x)
    }

    fn mul_rows_backward(&self, op: &MulRows, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) -> Result<()> {
        supported("mul_rows_backward", &[op.dtype, dw.dtype()])?;
        check::mul_rows_backward(op, &x, &dy, &dw)?;
        self.run_mul_rows_backward(op, x, dy, dw)
    }

    fn inverse_norms(&self, op: &InverseNorms, x: View<'_>, s: ViewMut<'_>) -> Result<()> {
        supported("inverse_norms", &[op.dtype])?;
        check::inverse_norms(op, &x, &s)?;
        self.run_inverse_norms(op, x, s)
    }

    fn rope(&self, op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) -> Result<()> {
        supported("rope", &[op.dtype])?;
        check::rope(op, &x, &cos, &sin)?;
        self.run_rope(op, x, cos, sin)
    }

    fn attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.checked_attention(op, None, [q, k, v], out, lse, workspace)
    }

    fn attention_backward(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: View<'_>,
        lse: View<'_>,
        dout: View<'_>,
        dq: ViewMut<'_>,
        dk: ViewMut<'_>,
        dv: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.checked_attention_backward(op, None, [q, k, v], [out, lse, dout], [dq, dk, dv], workspace)
    }

    fn naive_attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.checked_naive_attention(op, None, [q, k, v], out, probs, workspace)
    }

    fn naive_attention_backward(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        probs: View<'_>,
        dout: View<'_>,
        dq: ViewMut<'_>,
        dk: ViewMut<'_>,
        dv: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        let name = "naive_attention_backward";
        supported(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::operand(name, "q", &q, op.dtype, sizes.q)?;
        check::operand(name, "k", &k, op.dtype, sizes.kv)?;
        check::operand(name, "v", &v, op.dtype, sizes.kv)?;
        check::operand(name, "probs", &probs, op.dtype, sizes.probs)?;
        check::operand(name, "dout", &dout, op.dtype, sizes.q)?;
        check::operand(name, "dq", &dq, op.dtype, sizes.q)?;
        check::operand(name, "dk", &dk, op.dtype, sizes.kv)?;
        check::operand(name, "dv", &dv, op.dtype, sizes.kv)?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::NaiveAttentionBackward(*op)))?;
        self.run_naive_attention_backward(op, [q, k, v], [probs, dout], [dq, dk, dv], workspace)
    }

    fn swiglu(&self, op: &Swiglu, gate: View<'_>, up: View<'_>, act: ViewMut<'_>) -> Result<()> {
        supported("swiglu", &[op.dtype])?;
        check::swiglu(op, &gate, &up, &act)?;
        self.run_swiglu(op, gate, up, act)
    }

    fn swiglu_backward(
        &self,
        op: &Swiglu,
        gate: View<'_>,
        up: View<'_>,
        dact: View<'_>,
        dgate: ViewMut<'_>,
        dup: ViewMut<'_>,
    ) -> Result<()> {
        supported("swiglu_backward", &[op.dtype])?;
        check::swiglu_backward(op, &gate, &up, &dact, &dgate, &dup)?;
        self.run_swiglu_backward(op, gate, up, dact, dgate, dup)
    }

    fn activate(&self, op: &Activate, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        supported("activate", &[op.dtype])?;
        check::activate(op, &x, &y)?;
        self.run_activate(op, x, y)
    }

    fn activate_backward(&self, op: &Activate, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) -> Result<()> {
        supported("activate_backward", &[op.dtype])?;
        check::activate_backward(op, &x, &dy, &dx)?;
        self.run_activate_backward(op, x, dy, dx)
    }

    fn embedding(&self, op: &Embedding, ids: View<'_>, table: View<'_>, out: ViewMut<'_>) -> Result<()> {
        supported("embedding", &[op.dtype])?;
        check::embedding_shapes(op, &ids, &table, &out)?;
        self.run_embedding(op, ids, table, out)
    }

    fn embedding_backward(&self, op: &Embedding, ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        supported("embedding_backward", &[op.dtype, dtable.dtype()])?;
        check::embedding_backward_shapes(op, &ids, &dy, &dtable)?;
        self.run_embedding_backward(op, ids, dy, dtable)
    }

    fn cross_entropy(
        &self,
        op: &CrossEntropy,
        logits: ViewMut<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        // A loss in half precision says nothing; the operation is defined for f32 and f64 alone.
        if op.dtype != DType::F32 {
            return Err(KernelError::Unsupported { device: "cuda", op: "cross_entropy", dtype: op.dtype });
        }
        supported("cross_entropy", &[op.gradient])?;
        check::cross_entropy_shapes(op, &logits, &targets, &losses)?;
        self.run_cross_entropy(op, logits, targets, losses)
    }

    fn adamw(
        &self,
        op: &AdamW,
        p: ViewMut<'_>,
        m: ViewMut<'_>,
        v: ViewMut<'_>,
        g: View<'_>,
        copy: Option<ViewMut<'_>>,
    ) -> Result<()> {
        supported("adamw", &[op.parameters, op.gradients, op.moments, op.copy.unwrap_or(op.parameters)])?;
        check::adamw(op, &p, &m, &v, &g, copy.as_ref())?;
        self.run_adamw(op, p, m, v, g, copy)
    }

    fn dropout(&self, op: &Dropout, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        supported("dropout", &[op.dtype])?;
        check::dropout(op, &x, &y)?;
        self.run_dropout(op, x, y)
    }

    fn normal(&self, op: &Normal, dst: ViewMut<'_>) -> Result<()> {
        supported("normal", &[op.dtype])?;
        check::operand("normal", "dst", &dst, op.dtype, op.len)?;
        self.normal_anywhere(op, dst)
    }

    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        supported("fill", &[dst.dtype()])?;
        self.fill_anywhere(dst, value)
    }

    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("cast", &[src.dtype(), dst.dtype()])?;
        check::same_length("cast", "src", &src, dst.len())?;
        self.cast_anywhere(src, dst)
    }

    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("add", &[dst.dtype()])?;
        check::add(&a, &b, &dst)?;
        self.run_add(a, b, dst)
    }

    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("accumulate", &[src.dtype(), dst.dtype()])?;
        check::same_length("accumulate", "src", &src, dst.len())?;
        self.run_accumulate(alpha, src, dst)
    }

    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        supported("scale", &[dst.dtype()])?;
        self.run_scale(alpha, dst)
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        supported("sum", &[x.dtype()])?;
        self.run_sum(x, false)
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        supported("sum_squares", &[x.dtype()])?;
        self.run_sum(x, true)
    }

    fn sum_later(&self, x: View<'_>) -> Result<Sum> {
        supported("sum", &[x.dtype()])?;
        self.run_sum_later(x, false)
    }

    fn sum_squares_later(&self, x: View<'_>) -> Result<Sum> {
        supported("sum_squares", &[x.dtype()])?;
        self.run_sum_later(x, true)
    }

    fn known(&self, sums: &[Sum], to: &mut [f64]) -> Result<()> {
        self.run_known(sums, to)
    }

    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        check::reduce(op, sources, accumulate, &dst)?;
        self.reduce_anywhere(op, sources, accumulate, dst)
    }

    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        check::quantize("cuda", "quantize", op, &src, &values, &scales)?;
        self.run_quantize(op, src, values, scales)
    }

    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        check::quantize("cuda", "dequantize", op, &dst, &values, &scales)?;
        self.run_dequantize(op, values, scales, dst, accumulate)
    }

    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        packing::check_pack("cuda", matrix, &src, &codes, &scales)?;
        self.pack_anywhere(matrix, src, codes, scales)
    }

    fn unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        packing::check_unpack("cuda", op, &record, &dst)?;
        self.unpack_anywhere(op, record, dst)
    }
}

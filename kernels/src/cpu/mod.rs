//! Kernels on cores: f32 arithmetic on f32, bf16 and f16 buffers, several threads to an operation.

pub(crate) mod adamw;
mod attention;
mod elementwise;
mod experts;
mod gemm;
mod halves;
mod layer_norm;
pub(crate) mod level;
mod loss;
mod map;
pub(crate) mod matmul;
mod naive;
mod packed;
mod quantize;
mod reduce;
mod rms_norm;
mod rows;
mod stream;

use crate::affinity::Pinned;
use crate::op::*;
use crate::packed::{self as packing, Packed};
use crate::pool::Pool;
use crate::{DType, KernelError, Kernels, ReduceOp, Result, View, ViewMut, check};
use level::Level;
use matmul::path::Path;

/// Kernels on the cores of this machine. Storage in f32, bf16 or f16, arithmetic in f32; f64 is for
/// [`Reference`](crate::Reference), except that [`Kernels::reduce`] takes every type. The best vector instructions of the CPU are chosen when it is made.
pub struct Cpu {
    pool: Pool,
    level: Level,
    path: Path,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({}, {} threads)", self.path.name(), self.pool.threads())
    }
}

impl Cpu {
    /// Kernels that share each operation among `threads` threads, the caller included; 0 counts as 1. When the system
    /// refuses more threads there are fewer: ask [`Kernels::threads`].
    pub fn new(threads: usize) -> Cpu {
        Cpu { pool: Pool::new(threads.max(1)), level: Level::detect(), path: Path::detect() }
    }

    /// As [`Cpu::new`] with these instructions and none better: a name of [`peak::describe`](crate::peak::describe).
    /// `None` when this CPU lacks them. Products of f32 and f16 keep the best: their library chooses for itself.
    pub fn with_instructions(threads: usize, instructions: &str) -> Option<Cpu> {
        let path = Path::available().into_iter().find(|path| path.name() == instructions)?;
        Some(Cpu { pool: Pool::new(threads.max(1)), level: path.level(), path })
    }

    /// The same kernels on other threads.
    pub(crate) fn with_pool(self, pool: Pool) -> Cpu {
        Cpu { pool, ..self }
    }

    /// The cores that each thread may use.
    #[cfg(test)]
    pub(crate) fn cores_of_threads(&self) -> Vec<Vec<usize>> {
        let cores: Vec<_> = (0..self.pool.threads()).map(|_| std::sync::Mutex::default()).collect();
        self.pool.run(|index| *cores[index].lock().unwrap() = crate::affinity::available());
        cores.into_iter().map(|cores| cores.into_inner().unwrap()).collect()
    }
}

/// These kernels know f32 and what widens to it.
fn supported(op: &'static str, dtypes: &[DType]) -> Result<()> {
    match dtypes.iter().find(|dtype| **dtype == DType::F64 || !dtype.is_float()) {
        Some(&dtype) => Err(KernelError::Unsupported { device: "cpu", op, dtype }),
        None => Ok(()),
    }
}

/// Elements of B prepacked.
fn prepacked(op: &Gemm) -> Result<usize> {
    let dtype = if op.a == op.b { op.a } else { op.b };
    matmul::prepacked_len(op).ok_or(KernelError::Unsupported { device: "cpu", op: "prepack", dtype })
}

impl Kernels for Cpu {
    fn name(&self) -> String {
        format!("cpu {}", self.path.name())
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn settle(&self) -> Option<Pinned> {
        self.pool.settle()
    }

    fn workspace(&self, op: &Op) -> usize {
        let threads = self.pool.threads();
        match op {
            Op::Gemm(op) => self.product_workspace(op),
            Op::GemmPrepacked(op) => matmul::workspace(op, self.path, threads, true),
            // All rows may fall to one expert.
            Op::GroupedGemm(op) => self.grouped_workspace(&op.product(op.rows)),
            Op::Attention(op) => attention::forward_workspace(op, self.path, threads),
            Op::AttentionBackward(op) => attention::backward_workspace(op, self.path, threads),
            Op::NaiveAttention(op) => threads.saturating_mul(naive::forward_scratch(op)),
            Op::NaiveAttentionBackward(op) => threads.saturating_mul(naive::backward_scratch(op)),
            _ => 0,
        }
    }

    fn gemm(&self, op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, workspace: ViewMut<'_>) -> Result<()> {
        supported("gemm", &[op.a, op.b, op.c])?;
        check::gemm(op, &a, &b, &c)?;
        check::operand("gemm", "workspace", &workspace, DType::F32, self.workspace(&Op::Gemm(*op)))?;
        self.run_gemm(op, a, b, c, workspace);
        Ok(())
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        matmul::prepacked_len(op)
    }

    fn prepack(&self, op: &Gemm, b: View<'_>, to: ViewMut<'_>) -> Result<()> {
        check::operand("prepack", "b", &b, op.b, op.k.saturating_mul(op.n))?;
        check::operand("prepack", "to", &to, DType::F32, prepacked(op)?)?;
        self.run_prepack(op, b, to);
        Ok(())
    }

    fn gemm_prepacked(
        &self,
        op: &Gemm,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        let name = "gemm_prepacked";
        supported(name, &[op.c])?;
        check::operand(name, "a", &a, op.a, op.m.saturating_mul(op.k))?;
        check::operand(name, "b", &b, DType::F32, prepacked(op)?)?;
        check::operand(name, "c", &c, op.c, op.m.saturating_mul(op.n))?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::GemmPrepacked(*op)))?;
        self.run_matmul(op, a, matmul::Right::Prepacked(b), c, workspace);
        Ok(())
    }

    fn rms_norm(&self, op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) -> Result<()> {
        supported("rms_norm", &[op.dtype])?;
        check::rms_norm(op, &x, &w, &y, &rstd)?;
        self.run_rms_norm(op, x, w, y, rstd);
        Ok(())
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
        self.run_rms_norm_backward(op, x, w, rstd.as_slice()?, dy, dx, dw);
        Ok(())
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
        self.run_layer_norm(op, x, w, b, y, statistics);
        Ok(())
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
        self.run_layer_norm_backward(op, x, w, statistics.as_slice()?, dy, dx, dw, db);
        Ok(())
    }

    fn add_rows(&self, op: &AddRows, table: View<'_>, x: ViewMut<'_>) -> Result<()> {
        supported("add_rows", &[op.dtype])?;
        check::add_rows(op, &table, &x)?;
        self.run_add_rows(op, table, x);
        Ok(())
    }

    fn add_rows_backward(&self, op: &AddRows, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        supported("add_rows_backward", &[op.dtype, dtable.dtype()])?;
        check::add_rows_backward(op, &dy, &dtable)?;
        self.run_add_rows_backward(op, dy, dtable);
        Ok(())
    }

    fn mul_rows(&self, op: &MulRows, w: View<'_>, x: ViewMut<'_>) -> Result<()> {
        supported("mul_rows", &[op.dtype])?;
        check::mul_rows(op, &w, &x)?;
        self.run_mul_rows(op, w, x);
        Ok(())
    }

    fn mul_rows_backward(&self, op: &MulRows, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) -> Result<()> {
        supported("mul_rows_backward", &[op.dtype, dw.dtype()])?;
        check::mul_rows_backward(op, &x, &dy, &dw)?;
        self.run_mul_rows_backward(op, x, dy, dw);
        Ok(())
    }

    fn inverse_norms(&self, op: &InverseNorms, x: View<'_>, s: ViewMut<'_>) -> Result<()> {
        supported("inverse_norms", &[op.dtype])?;
        check::inverse_norms(op, &x, &s)?;
        self.run_inverse_norms(op, x, s);
        Ok(())
    }

    fn rope(&self, op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) -> Result<()> {
        supported("rope", &[op.dtype])?;
        check::rope(op, &x, &cos, &sin)?;
        self.run_rope(op, x, cos.as_slice()?, sin.as_slice()?);
        Ok(())
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
        self.run_naive_attention_backward(op, q, k, v, probs, dout, dq, dk, dv, workspace);
        Ok(())
    }

    fn swiglu(&self, op: &Swiglu, gate: View<'_>, up: View<'_>, act: ViewMut<'_>) -> Result<()> {
        supported("swiglu", &[op.dtype])?;
        check::swiglu(op, &gate, &up, &act)?;
        self.run_swiglu(op, gate, up, act);
        Ok(())
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
        self.run_swiglu_backward(op, gate, up, dact, dgate, dup);
        Ok(())
    }

    fn activate(&self, op: &Activate, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        supported("activate", &[op.dtype])?;
        check::activate(op, &x, &y)?;
        self.run_activate(op, x, y);
        Ok(())
    }

    fn activate_backward(&self, op: &Activate, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) -> Result<()> {
        supported("activate_backward", &[op.dtype])?;
        check::activate_backward(op, &x, &dy, &dx)?;
        self.run_activate_backward(op, x, dy, dx);
        Ok(())
    }

    fn embedding(&self, op: &Embedding, ids: View<'_>, table: View<'_>, out: ViewMut<'_>) -> Result<()> {
        supported("embedding", &[op.dtype])?;
        let ids = check::embedding(op, &ids, &table, &out)?;
        self.run_embedding(op, ids, table, out);
        Ok(())
    }

    fn embedding_backward(&self, op: &Embedding, ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        supported("embedding_backward", &[op.dtype, dtable.dtype()])?;
        let ids = check::embedding_backward(op, &ids, &dy, &dtable)?;
        self.run_embedding_backward(op, ids, dy, dtable);
        Ok(())
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
            return Err(KernelError::Unsupported { device: "cpu", op: "cross_entropy", dtype: op.dtype });
        }
        supported("cross_entropy", &[op.gradient])?;
        let targets = check::cross_entropy(op, &logits, &targets, &losses)?;
        self.run_cross_entropy(op, logits, targets, losses);
        Ok(())
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
        self.run_adamw(op, p, m, v, g, copy);
        Ok(())
    }

    fn dropout(&self, op: &Dropout, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        supported("dropout", &[op.dtype])?;
        check::dropout(op, &x, &y)?;
        self.run_dropout(op, x, y);
        Ok(())
    }

    fn normal(&self, op: &Normal, dst: ViewMut<'_>) -> Result<()> {
        supported("normal", &[op.dtype])?;
        check::operand("normal", "dst", &dst, op.dtype, op.len)?;
        self.run_normal(op, dst);
        Ok(())
    }

    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        supported("fill", &[dst.dtype()])?;
        self.run_fill(dst, value);
        Ok(())
    }

    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("cast", &[src.dtype(), dst.dtype()])?;
        check::same_length("cast", "src", &src, dst.len())?;
        self.run_cast(src, dst);
        Ok(())
    }

    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("add", &[dst.dtype()])?;
        check::add(&a, &b, &dst)?;
        self.run_add(a, b, dst);
        Ok(())
    }

    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        supported("accumulate", &[src.dtype(), dst.dtype()])?;
        check::same_length("accumulate", "src", &src, dst.len())?;
        self.run_accumulate(alpha, src, dst);
        Ok(())
    }

    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        supported("scale", &[dst.dtype()])?;
        self.run_scale(alpha, dst);
        Ok(())
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        supported("sum", &[x.dtype()])?;
        Ok(self.run_sum(
            x,
            #[inline(always)]
            |x| x,
        ))
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        supported("sum_squares", &[x.dtype()])?;
        Ok(self.run_sum(
            x,
            #[inline(always)]
            |x| x * x,
        ))
    }

    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        check::reduce(op, sources, accumulate, &dst)?;
        self.run_reduce(op, sources, accumulate, dst);
        Ok(())
    }

    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        check::quantize("cpu", "quantize", op, &src, &values, &scales)?;
        self.run_quantize(op, src, values, scales);
        Ok(())
    }

    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        check::quantize("cpu", "dequantize", op, &dst, &values, &scales)?;
        self.run_dequantize(op, values.as_slice()?, scales.as_slice()?, dst, accumulate);
        Ok(())
    }

    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        packing::check_pack("cpu", matrix, &src, &codes, &scales)?;
        self.run_pack(matrix, src, codes, scales);
        Ok(())
    }

    fn unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        packing::check_unpack("cpu", op, &record, &dst)?;
        let (codes, scales) = packing::open(&op.matrix, &record)?;
        self.run_unpack(op, codes, scales, dst.into_slice(0..op.matrix.len()));
        Ok(())
    }
}

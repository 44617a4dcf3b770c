use crate::affinity::Pinned;
use crate::cuda::machine::Mark;
use crate::op::*;
use crate::packed::{Packed, Unpack};
use crate::{Arena, ArenaError, DType, DocumentKernels, ExpertKernels, ReduceOp, View, ViewMut, copy};
use std::sync::Arc;

/// Why a kernel refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An operand has another element type than the operation says.
    #[error("a buffer of {wanted} was expected, {given} given")]
    DType {
        /// Type the operation wants.
        wanted: DType,
        /// Type of the buffer.
        given: DType,
    },
    /// An operand is too short, or the shape cannot be.
    #[error("{op}: {operand} has {given} elements, {wanted} needed")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// Elements the shape needs.
        wanted: usize,
        /// Elements given.
        given: usize,
    },
    /// The operands do not go together, or hold a value that cannot be.
    #[error("{op}: {reason}")]
    Invalid {
        /// The operation.
        op: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The host was to read or write what lies in the memory of a device.
    #[error("the elements lie in a device's memory, which the host cannot reach; copy them (upload, download)")]
    NotOnHost,
    /// The device failed.
    #[error("{device}: {call}: {reason}")]
    Device {
        /// Which.
        device: String,
        /// What it was doing.
        call: String,
        /// What it says.
        reason: String,
    },
    /// This device has no such kernel for this type.
    #[error("{device} kernels cannot do {op} in {dtype}")]
    Unsupported {
        /// The device.
        device: &'static str,
        /// The operation.
        op: &'static str,
        /// The type.
        dtype: DType,
    },
}

/// A sum to a number that the host may not know yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sum {
    /// It is known.
    Known(f64),
    /// It lies in this slot of the device's.
    Slot(u32),
}

/// Writes the values of sums to as many places; `slot` knows what the device's slots hold.
pub(crate) fn tell(sums: &[Sum], to: &mut [f64], slot: impl Fn(u32) -> Option<f64>) -> Result<()> {
    let invalid = |reason| Err(KernelError::Invalid { op: "known", reason });
    if sums.len() != to.len() {
        return invalid(format!("{} sums do not go to {} places", sums.len(), to.len()));
    }
    for (sum, to) in sums.iter().zip(to) {
        *to = match sum {
            Sum::Known(value) => *value,
            Sum::Slot(number) => match slot(*number) {
                Some(value) => value,
                None => return invalid(format!("slot {number} is not one of those asked for since the last time")),
            },
        };
    }
    Ok(())
}

/// What a kernel returns.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// The operations of one device.
///
/// Shapes are in the operation; operands are flat views, row-major and contiguous. An operand shorter than its shape is
/// an error, a longer one is used from its start. `workspace` operands hold at least [`Kernels::workspace`] elements of
/// f32 (f64 where the operation computes in f64) and are scratch. Sums run in an order that depends on shapes and the number of threads alone,
/// and an element-wise kernel gives an element the same bits wherever it sits in a buffer.
pub trait Kernels: ExpertKernels + DocumentKernels + Send + Sync {
    /// What runs them, for records: `cpu avx512`, `reference`.
    fn name(&self) -> String;

    /// Threads that share one operation.
    fn threads(&self) -> usize;

    /// Puts the calling thread, which is to call these kernels, on the core that is meant for it, until the guard is
    /// dropped. `None` where threads go where the system puts them.
    fn settle(&self) -> Option<Pinned> {
        None
    }

    /// Memory for what these kernels work on, of a device that so many ranks share. With a capacity, a request that would put
    /// more than that many bytes in use fails; without one, this rank's share of a device's memory is the limit.
    ///
    /// # Errors
    /// There is no such memory.
    fn arena(&self, capacity: Option<u64>, _sharers: usize) -> Result<Arena, ArenaError> {
        Arena::host(capacity)
    }

    /// Whether the host can reach what these kernels work on, and every call has done its work when it returns.
    fn is_host(&self) -> bool {
        true
    }

    /// Copies elements of the host to where these kernels work, behind what has been asked for so far. One type, lengths
    /// must agree. `src` may be changed when this returns.
    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("upload", src, dst)
    }

    /// Copies elements to the host when all that has been asked for so far is done. One type, lengths must agree. What the
    /// device found wrong since the last time comes out here.
    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("download", src, dst)
    }

    /// `dst = src`, both where these kernels work, in its turn. One type, lengths must agree.
    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::plain("copy", src, dst)
    }

    /// Waits until all that has been asked for is done. What the device found wrong since the last time comes out here.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// The same operations in an order of their own, beside these: for what moves while these compute. `None` where there is
    /// one order only.
    ///
    /// # Errors
    /// The device has no room for another queue.
    fn beside(&self) -> Result<Option<Arc<dyn Kernels>>> {
        Ok(None)
    }

    /// A mark behind what has been asked for so far; `None` where every call has done its work when it returns.
    ///
    /// # Errors
    /// The device failed.
    fn mark(&self) -> Result<Option<Arc<dyn Mark>>> {
        Ok(None)
    }

    /// What is asked for from now on begins after that mark of the same device.
    ///
    /// # Errors
    /// The device failed.
    fn follow(&self, _mark: &dyn Mark) -> Result<()> {
        Ok(())
    }

    /// Elements of a passing matrix, as of logits, that are worth making at a time: large enough for a product to be fast, small
    /// enough for the memory that they take.
    fn passing_elements(&self) -> usize {
        1 << 23
    }

    /// Elements of scratch that `op` needs (f32, or f64 when it computes in f64).
    fn workspace(&self, op: &Op) -> usize;

    /// See [`Gemm`].
    fn gemm(&self, op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, workspace: ViewMut<'_>) -> Result<()>;

    /// Elements of f32 that B of `op` takes in the form in which products read it, where making that form costs time that
    /// keeping it saves; `None` where it does not. It depends on k, n and the types alone.
    fn prepacked_len(&self, op: &Gemm) -> Option<usize>;

    /// Writes that form of B, for products with the same n, k, `trans_b` and types.
    fn prepack(&self, op: &Gemm, b: View<'_>, to: ViewMut<'_>) -> Result<()>;

    /// As [`Kernels::gemm`] with B prepacked: the same bits.
    fn gemm_prepacked(&self, op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, workspace: ViewMut<'_>)
    -> Result<()>;

    /// `x [rows,cols]`, `w [cols]` to `y [rows,cols]` and `rstd [rows]`.
    fn rms_norm(&self, op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) -> Result<()>;

    /// `dx += ...` (it already holds the residual's gradient), `dw += ...` unless the weight is frozen.
    fn rms_norm_backward(
        &self,
        op: &RmsNorm,
        x: View<'_>,
        w: View<'_>,
        rstd: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dw: Option<ViewMut<'_>>,
    ) -> Result<()>;

    /// `x [rows,cols]`, `w [cols]`, `b [cols]` if there is a bias, to `y [rows,cols]` and `statistics [2,rows]`: the
    /// means, then the reciprocal deviations.
    fn layer_norm(
        &self,
        op: &LayerNorm,
        x: View<'_>,
        w: View<'_>,
        b: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) -> Result<()>;

    /// `dx += ...`, and `dw += ...`, `db += ...` unless they are frozen.
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
    ) -> Result<()>;

    /// See [`AddRows`]; `table` holds `period` vectors or more.
    fn add_rows(&self, op: &AddRows, table: View<'_>, x: ViewMut<'_>) -> Result<()>;

    /// `dtable[r % period] += dy[r]`, rows in an order fixed by the shape.
    fn add_rows_backward(&self, op: &AddRows, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()>;

    /// See [`MulRows`]; `w` holds `cols` elements or more.
    fn mul_rows(&self, op: &MulRows, w: View<'_>, x: ViewMut<'_>) -> Result<()>;

    /// `dw[c] += sum of dy[r, c] * x[r, c]`, rows in an order fixed by the shape.
    fn mul_rows_backward(&self, op: &MulRows, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) -> Result<()>;

    /// See [`InverseNorms`]; `s` holds `rows` elements or more.
    fn inverse_norms(&self, op: &InverseNorms, x: View<'_>, s: ViewMut<'_>) -> Result<()>;

    /// Rotates `x [rows, heads*head_dim]` in place; `cos`, `sin` are `[seq, head_dim/2]`.
    fn rope(&self, op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) -> Result<()>;

    /// Memory linear in the sequence; `lse [batch, heads, seq]` is the log-sum-exp of the scaled scores.
    fn attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()>;

    /// Writes `dq`, `dk`, `dv`; recomputes the probabilities from `lse`.
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
    ) -> Result<()>;

    /// As [`Kernels::attention`], storing `probs [batch, heads, seq, seq]`.
    fn naive_attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()>;

    /// Writes `dq`, `dk`, `dv` from the stored probabilities.
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
    ) -> Result<()>;

    /// See [`Swiglu`].
    fn swiglu(&self, op: &Swiglu, gate: View<'_>, up: View<'_>, act: ViewMut<'_>) -> Result<()>;

    /// Writes `dgate` and `dup`.
    fn swiglu_backward(
        &self,
        op: &Swiglu,
        gate: View<'_>,
        up: View<'_>,
        dact: View<'_>,
        dgate: ViewMut<'_>,
        dup: ViewMut<'_>,
    ) -> Result<()>;

    /// See [`Activate`].
    fn activate(&self, op: &Activate, x: View<'_>, y: ViewMut<'_>) -> Result<()>;

    /// Writes `dx`.
    fn activate_backward(&self, op: &Activate, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) -> Result<()>;

    /// `ids [rows]` of u32, `table [vocab,cols]`, `out [rows,cols]`.
    fn embedding(&self, op: &Embedding, ids: View<'_>, table: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// `dtable[ids[r]] += dy[r]`, rows in order.
    fn embedding_backward(&self, op: &Embedding, ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()>;

    /// Replaces `logits [rows,vocab]` by their scaled gradient, in the type of the operation, and writes `losses [rows]`. A
    /// target of `u32::MAX` is ignored: no loss, no gradient.
    fn cross_entropy(
        &self,
        op: &CrossEntropy,
        logits: ViewMut<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()>;

    /// Updates parameters `p` and moments `m`, `v` from gradients `g`; writes the parameters to `copy` where the operation
    /// names its type.
    fn adamw(
        &self,
        op: &AdamW,
        p: ViewMut<'_>,
        m: ViewMut<'_>,
        v: ViewMut<'_>,
        g: View<'_>,
        copy: Option<ViewMut<'_>>,
    ) -> Result<()>;

    /// See [`Dropout`].
    fn dropout(&self, op: &Dropout, x: View<'_>, y: ViewMut<'_>) -> Result<()>;

    /// See [`Normal`].
    fn normal(&self, op: &Normal, dst: ViewMut<'_>) -> Result<()>;

    /// `dst[i] = value`.
    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()>;

    /// `dst = src`, rounded to nearest even where the type narrows. Lengths must agree.
    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()>;

    /// `dst = a + b`; one type, lengths must agree.
    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()>;

    /// `dst += alpha * src`; types may differ, lengths must agree.
    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()>;

    /// `dst *= alpha`.
    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()>;

    /// Sum of all elements in f64, in an order fixed by the length.
    fn sum(&self, x: View<'_>) -> Result<f64>;

    /// Sum of squares in f64, in an order fixed by the length.
    fn sum_squares(&self, x: View<'_>) -> Result<f64>;

    /// As [`Kernels::sum`], told by [`Kernels::known`]: a device goes on meanwhile.
    fn sum_later(&self, x: View<'_>) -> Result<Sum> {
        self.sum(x).map(Sum::Known)
    }

    /// As [`Kernels::sum_squares`], told by [`Kernels::known`].
    fn sum_squares_later(&self, x: View<'_>) -> Result<Sum> {
        self.sum_squares(x).map(Sum::Known)
    }

    /// The values of sums that were asked for since the last call of this, and of no others, to as many places.
    fn known(&self, sums: &[Sum], to: &mut [f64]) -> Result<()> {
        tell(sums, to, |_| None)
    }

    /// `dst = (dst +) s0 op s1 op ...`, element by element as a balanced tree in the order given: pairs, then pairs of
    /// pairs, the odd one carried up. Lengths must agree.
    ///
    /// Floats, whose types may differ, are joined in f32 (f64 when any of them is f64) and rounded once into `dst`; an
    /// average is the sum times `1/n`, rounded to that type too. The smaller or larger of a number and a NaN is the
    /// number. Integers have one type, wrap around, and their average is the quotient of the exact sum, cut off towards
    /// zero. `accumulate` is for sums and averages of floats.
    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()>;

    /// See [`Quantize`]. `src` is f32, bf16 or f16; `values` of i8 and `scales` of f32 hold [`Quantize::values_len`] and
    /// [`Quantize::scales_len`] of its length or more.
    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()>;

    /// `dst = (dst +) value * scale`, in f32 and rounded once; lengths are those of `dst`, which is f32, bf16 or f16.
    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()>;

    /// Codes and scales of whole blocks of a matrix, from its first element or that of any block on; the last may be
    /// short. See [`Packing`](crate::Packing). `src` is f32, bf16 or f16, `codes` i8, `scales` f32 (not coded yet: see
    /// [`DoubleScales`](crate::DoubleScales)).
    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()>;

    /// See [`Unpack`]: `record` of i8 holds the matrix's [`Fields`](crate::Fields), `dst` is f32, bf16 or f16.
    fn unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()>;
}

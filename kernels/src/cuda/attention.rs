//! Attention: in tiles with an online softmax, and the plain way that stores its probabilities. Checks; [`super::flash`] starts
//! the kernels.

use super::{Cuda, supported};
use crate::op::*;
use crate::{DType, DocumentKernels, Kernels, Result, View, ViewMut, check};

impl Cuda {
    /// Forward, within documents if `starts` are given.
    pub(super) fn checked_attention(
        &self,
        op: &Attention,
        starts: Option<View>,
        [q, k, v]: [View; 3],
        out: ViewMut,
        lse: ViewMut,
        workspace: ViewMut,
    ) -> Result<()> {
        let name = "attention";
        supported(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::documents_shape(name, op, starts.as_ref())?;
        check::operand(name, "q", &q, op.dtype, sizes.q)?;
        check::operand(name, "k", &k, op.dtype, sizes.kv)?;
        check::operand(name, "v", &v, op.dtype, sizes.kv)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        check::operand(name, "lse", &lse, DType::F32, sizes.lse)?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::Attention(*op)))?;
        self.run_attention(op, starts, [q, k, v], out, lse, workspace)
    }

    /// Backward.
    pub(super) fn checked_attention_backward(
        &self,
        op: &Attention,
        starts: Option<View>,
        [q, k, v]: [View; 3],
        [out, lse, dout]: [View; 3],
        [dq, dk, dv]: [ViewMut; 3],
        workspace: ViewMut,
    ) -> Result<()> {
        let name = "attention_backward";
        supported(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::documents_shape(name, op, starts.as_ref())?;
        check::operand(name, "q", &q, op.dtype, sizes.q)?;
        check::operand(name, "k", &k, op.dtype, sizes.kv)?;
        check::operand(name, "v", &v, op.dtype, sizes.kv)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        check::operand(name, "lse", &lse, DType::F32, sizes.lse)?;
        check::operand(name, "dout", &dout, op.dtype, sizes.q)?;
        check::operand(name, "dq", &dq, op.dtype, sizes.q)?;
        check::operand(name, "dk", &dk, op.dtype, sizes.kv)?;
        check::operand(name, "dv", &dv, op.dtype, sizes.kv)?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::AttentionBackward(*op)))?;
        self.run_attention_backward(op, starts, [q, k, v], [out, lse, dout], [dq, dk, dv], workspace)
    }

    /// Forward that stores its probabilities.
    pub(super) fn checked_naive_attention(
        &self,
        op: &Attention,
        starts: Option<View>,
        [q, k, v]: [View; 3],
        out: ViewMut,
        probs: ViewMut,
        workspace: ViewMut,
    ) -> Result<()> {
        let name = "naive_attention";
        supported(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::documents_shape(name, op, starts.as_ref())?;
        check::operand(name, "q", &q, op.dtype, sizes.q)?;
        check::operand(name, "k", &k, op.dtype, sizes.kv)?;
        check::operand(name, "v", &v, op.dtype, sizes.kv)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        check::operand(name, "probs", &probs, op.dtype, sizes.probs)?;
        check::operand(name, "workspace", &workspace, DType::F32, self.workspace(&Op::NaiveAttention(*op)))?;
        self.run_naive_attention(op, starts, [q, k, v], out, probs, workspace)
    }
}

impl DocumentKernels for Cuda {
    fn attention_in_documents(
        &self,
        op: &Attention,
        starts: View<'_>,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.checked_attention(op, Some(starts), [q, k, v], out, lse, workspace)
    }

    fn attention_in_documents_backward(
        &self,
        op: &Attention,
        starts: View<'_>,
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
        self.checked_attention_backward(op, Some(starts), [q, k, v], [out, lse, dout], [dq, dk, dv], workspace)
    }

    fn naive_attention_in_documents(
        &self,
        op: &Attention,
        starts: View<'_>,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.checked_naive_attention(op, Some(starts), [q, k, v], out, probs, workspace)
    }
}

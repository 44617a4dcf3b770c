//! Attention within documents, beside [`Kernels`](crate::Kernels), whose rules hold here too.

use crate::op::Attention;
use crate::{Result, View, ViewMut};

/// What a device does where sequences hold several documents, packed one after the other, that must not see each other.
///
/// `starts [batch, seq]`, u32, holds for every token the place in its sequence at which its document starts: 0 for the
/// first document, and never less than for the token before. A query sees what [`Kernels`](crate::Kernels) would let it
/// see, from there on. Scratch is as there. Where stored probabilities are given back the backward needs no starts:
/// [`Kernels::naive_attention_backward`](crate::Kernels::naive_attention_backward) finds zeros.
pub trait DocumentKernels {
    /// As [`Kernels::attention`](crate::Kernels::attention).
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
    ) -> Result<()>;

    /// As [`Kernels::attention_backward`](crate::Kernels::attention_backward).
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
    ) -> Result<()>;

    /// As [`Kernels::naive_attention`](crate::Kernels::naive_attention).
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
    ) -> Result<()>;
}

//! Cross-attention: a decoder's tokens attend to an encoder's output.

use super::{Block, CORE};
use crate::compute::error::{Result, StepError};
use crate::model::layers::context::{LayerContext, Memory};
use crate::model::layers::{Grads, LinearSpec, Norm, Weights};
use zbench_kernels::{Attention, Buffer, Op, View};

/// Attention over the encoder's output, behind a norm and around a residual. Heads are those of the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cross {
    pub norm: Norm,
    pub q: LinearSpec,
    /// Read the encoder's output.
    pub k: LinearSpec,
    pub v: LinearSpec,
    pub o: LinearSpec,
}

/// What forward keeps of cross-attention for backward.
#[derive(Debug)]
pub struct CrossSaved {
    /// Normalised input and its statistics.
    norm: [Buffer; 2],
    /// Queries, and the keys and values of the encoder's tokens.
    qkv: [Buffer; 3],
    /// Output and log-sum-exp.
    attention: [Buffer; 2],
}

impl CrossSaved {
    pub(super) fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let CrossSaved { norm, qkv, attention } = self;
        norm.iter_mut().chain(qkv).chain(attention)
    }

    /// Attention's output.
    pub(super) fn output(&self) -> View<'_> {
        self.attention[0].view()
    }
}

impl Block {
    /// Cross-attention and what it reads, of blocks that have it.
    pub(super) fn over_memory<'e>(&'e self, ex: &'e LayerContext<'_>) -> Result<Option<(&'e Cross, &'e Memory<'e>)>> {
        let Some(cross) = &self.cross else { return Ok(None) };
        let none = || StepError::Bug("cross-attention has no encoder's output to read");
        Ok(Some((cross, ex.memory.as_ref().ok_or_else(none)?)))
    }

    fn cross_op(&self, ex: &LayerContext<'_>, memory: &Memory<'_>) -> Attention {
        let of_self = self.attention(ex);
        Attention { kv_seq: memory.batch.seq, causal: false, window: None, alibi: None, ..of_self }
    }

    /// `input + o(attention(q(norm(input)), k(memory), v(memory)))`.
    pub(super) fn cross(
        &self,
        cross: &Cross,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        memory: &Memory<'_>,
        input: &Buffer,
    ) -> Result<(Buffer, CrossSaved)> {
        let saved = self.cross_saved(cross, ex, w, memory, input)?;
        let output = cross.o.forward_onto(ex, w, saved.attention[0].view(), input)?;
        Ok((output, saved))
    }

    /// What backward reads of it.
    pub(super) fn cross_saved(
        &self,
        cross: &Cross,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        memory: &Memory<'_>,
        input: &Buffer,
    ) -> Result<CrossSaved> {
        let (of_memory, queries, keys) = (ex.on(memory.batch), ex.batch.tokens(), memory.batch.tokens());
        let d = &self.dims;
        let norm = cross.norm.forward(ex, w, queries, input.view())?;
        let mut q = ex.activation(queries * d.heads * d.head_dim)?;
        cross.q.forward(ex, w, norm[0].view(), false, q.view_mut())?;
        let mut k = ex.activation(keys * d.kv_heads * d.head_dim)?;
        cross.k.forward(&of_memory, w, memory.values, false, k.view_mut())?;
        let mut v = ex.activation(keys * d.kv_heads * d.head_dim)?;
        cross.v.forward(&of_memory, w, memory.values, false, v.view_mut())?;
        let op = self.cross_op(ex, memory);
        let mut out = ex.activation(queries * d.heads * d.head_dim)?;
        let mut statistics = ex.statistic(op.rows())?;
        let reads = [q.view(), k.view(), v.view()];
        ex.run(CORE, &Op::Attention(op), &reads, &mut [out.view_mut(), statistics.view_mut()])?;
        Ok(CrossSaved { norm, qkv: [q, k, v], attention: [out, statistics] })
    }

    /// Adds the gradient of the input to `dy`, which is that of the output, and the gradient of the encoder's output to
    /// `dmemory`, which the first block to go backward makes.
    #[expect(clippy::too_many_arguments, reason = "two inputs, their gradients, weights and theirs")]
    pub(super) fn cross_backward(
        &self,
        cross: &Cross,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        memory: &Memory<'_>,
        (input, saved): (&Buffer, CrossSaved),
        dy: &mut Buffer,
        dmemory: &mut Option<Buffer>,
    ) -> Result<()> {
        let (of_memory, queries, keys) = (ex.on(memory.batch), ex.batch.tokens(), memory.batch.tokens());
        let d = &self.dims;
        let CrossSaved { norm: [norm, of_norm], qkv: [q, k, v], attention: [out, statistics] } = saved;
        let mut dout = ex.activation(queries * d.heads * d.head_dim)?;
        cross.o.backward(ex, w, g, [out.view(), dy.view()], false, dout.view_mut())?;
        let mut dq = ex.activation(queries * d.heads * d.head_dim)?;
        let mut dk = ex.activation(keys * d.kv_heads * d.head_dim)?;
        let mut dv = ex.activation(keys * d.kv_heads * d.head_dim)?;
        let reads = [q.view(), k.view(), v.view(), out.view(), statistics.view(), dout.view()];
        let op = Op::AttentionBackward(self.cross_op(ex, memory));
        ex.run(CORE, &op, &reads, &mut [dq.view_mut(), dk.view_mut(), dv.view_mut()])?;
        drop((q, k, v));
        drop((out, statistics, dout));
        let mut dnorm = ex.activation(queries * d.hidden)?;
        cross.q.backward(ex, w, g, [norm.view(), dq.view()], false, dnorm.view_mut())?;
        drop((dq, norm));
        let dnorm = cross.q.complete(ex, dnorm)?;
        cross.norm.backward(ex, w, g, queries, [input, &of_norm, &dnorm], dy.view_mut())?;
        drop(dnorm);
        let begun = dmemory.is_some();
        let mut sum = match dmemory.take() {
            Some(sum) => sum,
            None => ex.activation(keys * d.hidden)?,
        };
        cross.k.backward(&of_memory, w, g, [memory.values, dk.view()], begun, sum.view_mut())?;
        cross.v.backward(&of_memory, w, g, [memory.values, dv.view()], true, sum.view_mut())?;
        *dmemory = Some(sum);
        Ok(())
    }
}

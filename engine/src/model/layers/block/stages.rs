//! The stages of a block: each makes one of the tensors that may be kept, and the output.

use super::{Block, CORE, GateUp, POINTWISE, Qkv};
use crate::compute::error::Result;
use crate::config::{AttentionKind, Positions};
use crate::mesh::Axis;
use crate::model::layers::context::{DocumentMask, LayerContext};
use crate::model::layers::experts::Routing;
use crate::model::layers::{Batch, TensorSplit, Weights};
use zbench_collectives::Communicator;
use zbench_kernels::{AlibiHeads, Attention, Buffer, DType, GatedActivation, Op, PointwiseActivation, Rope};

impl Block {
    pub(super) fn flash(&self) -> bool {
        self.dims.attention == AttentionKind::Flash
    }

    pub(super) fn rotary(&self) -> bool {
        self.dims.positions == Positions::Rotary
    }

    pub(super) fn rope(&self, rows: usize, seq: usize, heads: usize, inverse: bool, dtype: DType) -> Rope {
        Rope { rows, seq, heads, head_dim: self.dims.head_dim, inverse, dtype }
    }

    pub(super) fn swiglu(&self, n: usize, dtype: DType) -> GatedActivation {
        GatedActivation { len: n * self.dims.intermediate, act: self.dims.act, dtype }
    }

    pub(super) fn activate(&self, n: usize, dtype: DType) -> PointwiseActivation {
        PointwiseActivation { len: n * self.dims.intermediate, act: self.dims.act, dtype }
    }

    pub(super) fn attention(&self, ex: &LayerContext<'_>) -> Attention {
        let (batch, d) = (&ex.batch, &self.dims);
        // Ranks of the tensor axis have as many heads each, in their order.
        let alibi = AlibiHeads {
            first: self.q.cut.place(ex) * d.heads,
            heads: ex.group(Axis::Tensor).map_or(1, |group| group.size()) * d.heads,
        };
        Attention {
            batch: batch.rows,
            seq: batch.seq,
            kv_seq: batch.seq,
            causal: d.causal,
            heads: d.heads,
            kv_heads: d.kv_heads,
            head_dim: d.head_dim,
            scale: 1.0 / (d.head_dim as f64).sqrt(),
            window: d.window,
            alibi: (d.positions == Positions::Alibi).then_some(alibi),
            dtype: ex.compute,
        }
    }

    /// Elements of the log-sum-exp, or of the probabilities.
    pub(super) fn attention_statistics(&self, batch: &Batch) -> usize {
        let rows = batch.rows * self.dims.heads * batch.seq;
        if self.flash() { rows } else { rows * batch.seq }
    }

    pub(super) fn qkv(&self, ex: &LayerContext<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<Qkv> {
        let (n, d) = (ex.batch.tokens(), &self.dims);
        let norm = ex.all_tokens(norm)?;
        let mut q = ex.activation(n * d.heads * d.head_dim)?;
        self.q.forward(ex, w, norm.view(), false, q.view_mut())?;
        let mut k = ex.activation(n * d.kv_heads * d.head_dim)?;
        self.k.forward(ex, w, norm.view(), false, k.view_mut())?;
        let mut v = ex.activation(n * d.kv_heads * d.head_dim)?;
        self.v.forward(ex, w, norm.view(), false, v.view_mut())?;
        if let Some(adapter) = &self.qkv_adapter {
            adapter.forward(ex, w, norm.view(), [q.view_mut(), k.view_mut(), v.view_mut()])?;
        }
        let mut raw = None;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            let [normal_q, of_q] = q_norm.forward(ex, w, n * d.heads, q.view())?;
            let [normal_k, of_k] = k_norm.forward(ex, w, n * d.kv_heads, k.view())?;
            let (raw_q, raw_k) = (std::mem::replace(&mut q, normal_q), std::mem::replace(&mut k, normal_k));
            raw = Some([[raw_q, of_q], [raw_k, of_k]]);
        }
        self.rotate(ex, [&mut q, &mut k], false)?;
        Ok(Qkv { q, k, v, raw })
    }

    pub(super) fn attend(&self, ex: &LayerContext<'_>, Qkv { q, k, v, .. }: &Qkv) -> Result<[Buffer; 2]> {
        let op = self.attention(ex);
        let mut out = ex.activation(ex.batch.tokens() * self.dims.heads * self.dims.head_dim)?;
        let len = self.attention_statistics(&ex.batch);
        let (op, mut statistics) = match self.flash() {
            true => (Op::Attention(op), ex.statistic(len)?),
            false => (Op::NaiveAttention(op), ex.activation(len)?),
        };
        let (q, k, v, mut writes) = (q.view(), k.view(), v.view(), [out.view_mut(), statistics.view_mut()]);
        match ex.documents {
            Some(DocumentMask { starts, .. }) => ex.run(CORE, &op, &[q, k, v, starts], &mut writes)?,
            None => ex.run(CORE, &op, &[q, k, v], &mut writes)?,
        }
        Ok([out, statistics])
    }

    pub(super) fn attend_backward(
        &self,
        ex: &LayerContext<'_>,
        Qkv { q, k, v, .. }: &Qkv,
        [out, statistics]: [&Buffer; 2],
        dout: &Buffer,
        gradients: [&mut Buffer; 3],
    ) -> Result<()> {
        let op = self.attention(ex);
        let (q, k, v, dout) = (q.view(), k.view(), v.view(), dout.view());
        let (out, statistics, mut writes) = (out.view(), statistics.view(), gradients.map(Buffer::view_mut));
        match (self.flash(), ex.documents) {
            (true, Some(DocumentMask { starts, .. })) => {
                let reads = [q, k, v, out, statistics, dout, starts];
                ex.run(CORE, &Op::AttentionBackward(op), &reads, &mut writes)
            }
            (true, None) => ex.run(CORE, &Op::AttentionBackward(op), &[q, k, v, out, statistics, dout], &mut writes),
            // What a token does not see has the probability 0, so documents need no care here.
            (false, _) => ex.run(CORE, &Op::NaiveAttentionBackward(op), &[q, k, v, statistics, dout], &mut writes),
        }
    }

    /// Rotary positions of queries and keys or of their gradients, where the block has such.
    pub(super) fn rotate(&self, ex: &LayerContext<'_>, [q, k]: [&mut Buffer; 2], inverse: bool) -> Result<()> {
        if !self.rotary() {
            return Ok(());
        }
        for (buffer, heads) in [(q, self.dims.heads), (k, self.dims.kv_heads)] {
            let op = self.rope(ex.batch.tokens(), ex.batch.seq, heads, inverse, ex.compute);
            ex.run(POINTWISE, &Op::Rope(op), &[ex.cos, ex.sin], &mut [buffer.view_mut()])?;
        }
        Ok(())
    }

    pub(super) fn residual(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        input: &Buffer,
        attention: &Buffer,
    ) -> Result<Buffer> {
        match self.has_one_sum() {
            true => self.o.term(ex, w, attention.view()),
            false => self.o.forward_onto(ex, w, attention.view(), input),
        }
    }

    /// Whether attention and MLP, side by side, are terms of one sum over the ranks that share their matrices. Then what
    /// [`Block::residual`] makes is attention's term.
    pub(super) fn has_one_sum(&self) -> bool {
        self.dims.parallel && self.experts.is_none() && matches!(self.down.cut, TensorSplit::RowParallel(_))
    }

    pub(super) fn gate_up(&self, ex: &LayerContext<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<GateUp> {
        if let Some(experts) = &self.experts {
            return self.experts_gate_up(experts, ex, w, norm);
        }
        let (len, norm) = (ex.batch.tokens() * self.dims.intermediate, ex.all_tokens(norm)?);
        let gate = match &self.gate {
            Some(linear) => {
                let mut gate = ex.activation(len)?;
                linear.forward(ex, w, norm.view(), false, gate.view_mut())?;
                Some(gate)
            }
            None => None,
        };
        let mut up = ex.activation(len)?;
        self.up.forward(ex, w, norm.view(), false, up.view_mut())?;
        Ok(GateUp { gate, up, routing: None })
    }

    pub(super) fn activation(&self, ex: &LayerContext<'_>, GateUp { gate, up, .. }: &GateUp) -> Result<Buffer> {
        let n = self.mlp_rows(ex.batch.tokens());
        let mut activation = ex.activation(n * self.dims.intermediate)?;
        match gate {
            Some(gate) => {
                let op = Op::GatedActivation(self.swiglu(n, ex.compute));
                ex.run(POINTWISE, &op, &[gate.view(), up.view()], &mut [activation.view_mut()])?;
            }
            None => {
                let op = Op::PointwiseActivation(self.activate(n, ex.compute));
                ex.run(POINTWISE, &op, &[up.view()], &mut [activation.view_mut()])?;
            }
        }
        Ok(activation)
    }

    /// What goes to the next block; the block's input is there where attention and MLP are one sum.
    pub(super) fn output(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        routing: Option<&Routing>,
        [input, residual]: [Option<&Buffer>; 2],
        activation: &Buffer,
    ) -> Result<Buffer> {
        let residual = super::first(&residual);
        if let (true, TensorSplit::RowParallel(axis)) = (self.has_one_sum(), self.down.cut) {
            let (input_len, width) = (self.down.input, self.down.out);
            let mut output = ex.sum_in_chunks(axis, width, |ex, tokens, mut terms| {
                let read = activation.slice(tokens.start * input_len..tokens.end * input_len);
                self.down.add_term(ex, w, read, false, terms.reborrow())?;
                ex.accumulate(POINTWISE, residual.slice(tokens.start * width..tokens.end * width), terms)
            })?;
            for linear in [&self.o, &self.down] {
                linear.add_bias_to(ex, w, ex.own_tokens().len(), output.view_mut())?;
            }
            ex.accumulate(POINTWISE, super::first(&input).view(), output.view_mut())?;
            return Ok(output);
        }
        if let (Some(experts), Some(routing)) = (&self.experts, routing) {
            return self.experts_output(experts, ex, w, routing, residual, activation);
        }
        self.down.forward_onto(ex, w, activation.view(), residual)
    }
}

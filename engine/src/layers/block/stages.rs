//! The stages of a block: each makes one of the tensors that may be kept, and the output.

use super::{Block, CORE, GateUp, POINTWISE, Qkv};
use crate::config::{AttentionKind, Positions};
use crate::layers::Batch;
use crate::layers::exec::{self, Exec, InDocuments, Result};
use crate::layers::experts::Routing;
use crate::layers::sketch::{Piece, Sketch};
use crate::model::Weights;
use zbench_kernels::{Activate, Attention, Buffer, DType, Op, Rope, Swiglu};

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

    pub(super) fn swiglu(&self, n: usize, dtype: DType) -> Swiglu {
        Swiglu { len: n * self.dims.intermediate, act: self.dims.act, dtype }
    }

    pub(super) fn activate(&self, n: usize, dtype: DType) -> Activate {
        Activate { len: n * self.dims.intermediate, act: self.dims.act, dtype }
    }

    pub(super) fn attention(&self, batch: &Batch, dtype: DType) -> Attention {
        let d = &self.dims;
        Attention {
            batch: batch.rows,
            seq: batch.seq,
            heads: d.heads,
            kv_heads: d.kv_heads,
            head_dim: d.head_dim,
            scale: 1.0 / (d.head_dim as f64).sqrt(),
            window: d.window,
            alibi: d.positions == Positions::Alibi,
            dtype,
        }
    }

    /// Elements of the log-sum-exp, or of the probabilities.
    pub(super) fn attention_statistics(&self, batch: &Batch) -> usize {
        let rows = batch.rows * self.dims.heads * batch.seq;
        if self.flash() { rows } else { rows * batch.seq }
    }

    pub(super) fn qkv(&self, ex: &Exec<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<Qkv<Buffer>> {
        let (n, d) = (ex.batch.tokens(), &self.dims);
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
        if self.rotary() {
            let seq = ex.batch.seq;
            ex.kernels.rope(&self.rope(n, seq, d.heads, false, ex.compute), q.view_mut(), ex.cos, ex.sin)?;
            ex.kernels.rope(&self.rope(n, seq, d.kv_heads, false, ex.compute), k.view_mut(), ex.cos, ex.sin)?;
        }
        Ok(Qkv { q, k, v, raw })
    }

    pub(super) fn qkv_stated(&self, s: &mut Sketch<'_>) -> Qkv<Piece> {
        let (n, d) = (s.batch.tokens(), self.dims);
        let mut q = s.activation(n * d.heads * d.head_dim);
        self.q.forward_stated(s, false);
        let mut k = s.activation(n * d.kv_heads * d.head_dim);
        self.k.forward_stated(s, false);
        let v = s.activation(n * d.kv_heads * d.head_dim);
        self.v.forward_stated(s, false);
        if let Some(adapter) = &self.qkv_adapter {
            adapter.forward_stated(s);
        }
        let mut raw = None;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            let [normal_q, of_q] = q_norm.forward_stated(s, n * d.heads);
            let [normal_k, of_k] = k_norm.forward_stated(s, n * d.kv_heads);
            let (raw_q, raw_k) = (std::mem::replace(&mut q, normal_q), std::mem::replace(&mut k, normal_k));
            raw = Some([[raw_q, of_q], [raw_k, of_k]]);
        }
        if self.rotary() {
            for heads in [d.heads, d.kv_heads] {
                s.op(POINTWISE, Op::Rope(self.rope(n, s.batch.seq, heads, false, s.compute)));
            }
        }
        Qkv { q, k, v, raw }
    }

    pub(super) fn attend(&self, ex: &Exec<'_>, Qkv { q, k, v, .. }: &Qkv<Buffer>) -> Result<[Buffer; 2]> {
        let op = self.attention(&ex.batch, ex.compute);
        let mut out = ex.activation(ex.batch.tokens() * self.dims.heads * self.dims.head_dim)?;
        let statistics = self.attention_statistics(&ex.batch);
        let (q, k, v) = (q.view(), k.view(), v.view());
        if self.flash() {
            let mut lse = ex.statistic(statistics)?;
            let mut scratch = ex.scratch(&Op::Attention(op))?;
            let (to, lse_to, scratch) = (out.view_mut(), lse.view_mut(), scratch.view_mut());
            match ex.documents {
                Some(d) => ex.kernels.attention_in_documents(&op, d.starts, q, k, v, to, lse_to, scratch)?,
                None => ex.kernels.attention(&op, q, k, v, to, lse_to, scratch)?,
            }
            return Ok([out, lse]);
        }
        let mut probs = ex.activation(statistics)?;
        let mut scratch = ex.scratch(&Op::NaiveAttention(op))?;
        let (to, probs_to, scratch) = (out.view_mut(), probs.view_mut(), scratch.view_mut());
        match ex.documents {
            Some(d) => ex.kernels.naive_attention_in_documents(&op, d.starts, q, k, v, to, probs_to, scratch)?,
            None => ex.kernels.naive_attention(&op, q, k, v, to, probs_to, scratch)?,
        }
        Ok([out, probs])
    }

    pub(super) fn attend_stated(&self, s: &mut Sketch<'_>) -> [Piece; 2] {
        let op = self.attention(&s.batch, s.compute);
        let out = s.activation(s.batch.tokens() * self.dims.heads * self.dims.head_dim);
        let statistics = self.attention_statistics(&s.batch);
        if self.flash() {
            let lse = s.statistic(statistics);
            s.op(CORE, Op::Attention(op));
            return [out, lse];
        }
        let probs = s.activation(statistics);
        s.op(CORE, Op::NaiveAttention(op));
        [out, probs]
    }

    pub(super) fn attend_backward(
        &self,
        ex: &Exec<'_>,
        Qkv { q, k, v, .. }: &Qkv<Buffer>,
        out: &Buffer,
        statistics: &Buffer,
        dout: &Buffer,
        [dq, dk, dv]: [&mut Buffer; 3],
    ) -> Result<()> {
        let op = self.attention(&ex.batch, ex.compute);
        let (q, k, v, dout) = (q.view(), k.view(), v.view(), dout.view());
        let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        if self.flash() {
            let mut scratch = ex.scratch(&Op::AttentionBackward(op))?;
            let (out, lse, scratch) = (out.view(), statistics.view(), scratch.view_mut());
            match ex.documents {
                Some(InDocuments { starts, .. }) => ex
                    .kernels
                    .attention_in_documents_backward(&op, starts, q, k, v, out, lse, dout, dq, dk, dv, scratch)?,
                None => ex.kernels.attention_backward(&op, q, k, v, out, lse, dout, dq, dk, dv, scratch)?,
            }
            return Ok(());
        }
        // What a token does not see has the probability 0, so documents need no care here.
        let mut scratch = ex.scratch(&Op::NaiveAttentionBackward(op))?;
        let (probs, scratch) = (statistics.view(), scratch.view_mut());
        Ok(ex.kernels.naive_attention_backward(&op, q, k, v, probs, dout, dq, dk, dv, scratch)?)
    }

    pub(super) fn residual(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        input: &Buffer,
        attention: &Buffer,
    ) -> Result<Buffer> {
        let mut residual = ex.activation(ex.batch.tokens() * self.dims.hidden)?;
        ex.kernels.cast(input.view(), residual.view_mut())?;
        self.o.forward(ex, w, attention.view(), true, residual.view_mut())?;
        Ok(residual)
    }

    pub(super) fn residual_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let len = s.batch.tokens() * self.dims.hidden;
        let residual = s.activation(len);
        s.op(POINTWISE, exec::cast(len, s.compute, s.compute));
        self.o.forward_stated(s, true);
        residual
    }

    pub(super) fn gate_up(&self, ex: &Exec<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<GateUp<Buffer>> {
        if let Some(experts) = &self.experts {
            return self.experts_gate_up(experts, ex, w, norm);
        }
        let len = ex.batch.tokens() * self.dims.intermediate;
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

    pub(super) fn gate_up_stated(&self, s: &mut Sketch<'_>) -> GateUp<Piece> {
        if let Some(experts) = &self.experts {
            return self.experts_gate_up_stated(experts, s);
        }
        let len = s.batch.tokens() * self.dims.intermediate;
        let gate = self.gate.as_ref().map(|linear| {
            let gate = s.activation(len);
            linear.forward_stated(s, false);
            gate
        });
        let up = s.activation(len);
        self.up.forward_stated(s, false);
        GateUp { gate, up, routing: None }
    }

    pub(super) fn activation(&self, ex: &Exec<'_>, GateUp { gate, up, .. }: &GateUp<Buffer>) -> Result<Buffer> {
        let n = self.mlp_rows(ex.batch.tokens());
        let mut activation = ex.activation(n * self.dims.intermediate)?;
        match gate {
            Some(gate) => {
                let op = self.swiglu(n, ex.compute);
                ex.kernels.swiglu(&op, gate.view(), up.view(), activation.view_mut())?;
            }
            None => ex.kernels.activate(&self.activate(n, ex.compute), up.view(), activation.view_mut())?,
        }
        Ok(activation)
    }

    pub(super) fn activation_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let n = self.mlp_rows(s.batch.tokens());
        let activation = s.activation(n * self.dims.intermediate);
        s.op(
            POINTWISE,
            match self.gate {
                Some(_) => Op::Swiglu(self.swiglu(n, s.compute)),
                None => Op::Activate(self.activate(n, s.compute)),
            },
        );
        activation
    }

    pub(super) fn output(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        routing: Option<&Routing<Buffer>>,
        residual: &Buffer,
        activation: &Buffer,
    ) -> Result<Buffer> {
        if let (Some(experts), Some(routing)) = (&self.experts, routing) {
            return self.experts_output(experts, ex, w, routing, residual, activation);
        }
        let mut output = ex.activation(ex.batch.tokens() * self.dims.hidden)?;
        ex.kernels.cast(residual.view(), output.view_mut())?;
        self.down.forward(ex, w, activation.view(), true, output.view_mut())?;
        Ok(output)
    }

    pub(super) fn output_stated(&self, s: &mut Sketch<'_>) -> Piece {
        if let Some(experts) = &self.experts {
            return self.experts_output_stated(experts, s);
        }
        let len = s.batch.tokens() * self.dims.hidden;
        let output = s.activation(len);
        s.op(POINTWISE, exec::cast(len, s.compute, s.compute));
        self.down.forward_stated(s, true);
        output
    }
}

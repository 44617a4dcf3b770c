//! The backward of a block.

use super::{Block, CORE, GateUp, POINTWISE, Qkv, Saved, take};
use crate::layers::exec::{Exec, Result};
use crate::layers::sketch::{Piece, Sketch};
use crate::model::{Grads, Weights};
use zbench_kernels::{Buffer, Op, View};

impl Block {
    /// The gradient of the input from that of the output; adds the gradients of the weights. Every saved tensor is
    /// freed at its last use.
    ///
    /// Where attention and MLP stand side by side, both read the gradient of the output: what the MLP's norm has to add
    /// to it waits until attention is done.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        mut saved: Saved<Buffer>,
        mut dy: Buffer,
    ) -> Result<Buffer> {
        let (n, d, k) = (ex.batch.tokens(), &self.dims, ex.kernels);
        let dmlp = self.mlp_backward(ex, w, g, &mut saved, &dy)?;
        let (mut shared, mut waiting) = (None, None);
        match &self.mlp_norm {
            None => shared = Some(dmlp),
            Some(norm) => {
                let [y, statistics] = take(&mut saved.mlp_norm);
                drop(y);
                if d.parallel {
                    waiting = Some((norm, statistics, dmlp));
                } else {
                    let residual = take(&mut saved.residual);
                    norm.backward(ex, w, g, n, &residual, &statistics, &dmlp, dy.view_mut())?;
                    drop(dmlp);
                }
            }
        }

        let mut dout = ex.activation(n * d.heads * d.head_dim)?;
        let [out, statistics] = take(&mut saved.attention);
        self.o.backward(ex, w, g, out.view(), dy.view(), false, dout.view_mut())?;
        let mut dq = ex.activation(n * d.heads * d.head_dim)?;
        let mut dk = ex.activation(n * d.kv_heads * d.head_dim)?;
        let mut dv = ex.activation(n * d.kv_heads * d.head_dim)?;
        let qkv = take(&mut saved.qkv);
        self.attend_backward(ex, &qkv, &out, &statistics, &dout, [&mut dq, &mut dk, &mut dv])?;
        let Qkv { q, k: key, v, raw } = qkv;
        drop((q, key, v));
        drop((out, statistics, dout));
        if self.rotary() {
            k.rope(&self.rope(n, ex.batch.seq, d.heads, true, ex.compute), dq.view_mut(), ex.cos, ex.sin)?;
            k.rope(&self.rope(n, ex.batch.seq, d.kv_heads, true, ex.compute), dk.view_mut(), ex.cos, ex.sin)?;
        }
        if let (Some(q_norm), Some(k_norm), Some([[q, of_q], [key, of_k]])) = (&self.q_norm, &self.k_norm, raw) {
            dq = q_norm.backward_alone(ex, w, g, n * d.heads, &q, &of_q, &dq)?;
            drop((q, of_q));
            dk = k_norm.backward_alone(ex, w, g, n * d.kv_heads, &key, &of_k, &dk)?;
        }
        let begun = shared.is_some();
        let mut dnorm = match shared {
            Some(dnorm) => dnorm,
            None => ex.activation(n * d.hidden)?,
        };
        let [norm, statistics] = take(&mut saved.attention_norm);
        self.q.backward(ex, w, g, norm.view(), dq.view(), begun, dnorm.view_mut())?;
        self.k.backward(ex, w, g, norm.view(), dk.view(), true, dnorm.view_mut())?;
        self.v.backward(ex, w, g, norm.view(), dv.view(), true, dnorm.view_mut())?;
        if let Some(adapter) = &self.qkv_adapter {
            adapter.backward(ex, w, g, norm.view(), [dq.view(), dk.view(), dv.view()], dnorm.view_mut())?;
        }
        drop((dq, dk, dv, norm));
        let input = take(&mut saved.input);
        self.attention_norm.backward(ex, w, g, n, &input, &statistics, &dnorm, dy.view_mut())?;
        if let Some((norm, statistics, dmlp)) = waiting {
            norm.backward(ex, w, g, n, &input, &statistics, &dmlp, dy.view_mut())?;
        }
        Ok(dy)
    }

    /// The gradient of what the MLP's projections read.
    fn mlp_backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        saved: &mut Saved<Buffer>,
        dy: &Buffer,
    ) -> Result<Buffer> {
        if let Some(experts) = &self.experts {
            return self.experts_backward(experts, ex, w, g, saved, dy);
        }
        let (n, d, k) = (ex.batch.tokens(), &self.dims, ex.kernels);
        let mut dact = ex.activation(n * d.intermediate)?;
        let activation = saved.activation.take();
        let input = activation.as_ref().map_or(View::of::<f32>(&[]), Buffer::view);
        self.down.backward(ex, w, g, input, dy.view(), false, dact.view_mut())?;
        drop(activation);
        let GateUp { gate, up, .. } = take(&mut saved.gate_up);
        let (mut dgate, mut dup) = (None, None);
        if let Some(gate) = gate {
            let dgate = dgate.insert(ex.activation(n * d.intermediate)?);
            let dup = dup.insert(ex.activation(n * d.intermediate)?);
            let op = self.swiglu(n, ex.compute);
            k.swiglu_backward(&op, gate.view(), up.view(), dact.view(), dgate.view_mut(), dup.view_mut())?;
        } else {
            let dup = dup.insert(ex.activation(n * d.intermediate)?);
            k.activate_backward(&self.activate(n, ex.compute), up.view(), dact.view(), dup.view_mut())?;
        }
        drop((dact, up));
        let dup = take(&mut dup);
        let mut dnorm = ex.activation(n * d.hidden)?;
        let norm = if self.mlp_norm.is_some() { &saved.mlp_norm } else { &saved.attention_norm };
        let norm = super::first(norm)[0].view();
        if let (Some(linear), Some(dgate)) = (&self.gate, &dgate) {
            linear.backward(ex, w, g, norm, dgate.view(), false, dnorm.view_mut())?;
        }
        self.up.backward(ex, w, g, norm, dup.view(), self.gate.is_some(), dnorm.view_mut())?;
        Ok(dnorm)
    }

    /// States `backward`; the gradient's piece goes through.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, mut saved: Saved<Piece>, dy: Piece) -> Piece {
        let (n, d) = (s.batch.tokens(), self.dims);
        let dmlp = self.mlp_backward_stated(s, &mut saved);
        let (mut shared, mut waiting) = (None, None);
        match &self.mlp_norm {
            None => shared = Some(dmlp),
            Some(norm) => {
                let [y, statistics] = take(&mut saved.mlp_norm);
                s.free(y);
                if d.parallel {
                    waiting = Some((norm, statistics, dmlp));
                } else {
                    norm.backward_stated(s, n);
                    s.free_all([take(&mut saved.residual), statistics, dmlp]);
                }
            }
        }

        let dout = s.activation(n * d.heads * d.head_dim);
        self.o.backward_stated(s, false);
        let mut dq = s.activation(n * d.heads * d.head_dim);
        let mut dk = s.activation(n * d.kv_heads * d.head_dim);
        let dv = s.activation(n * d.kv_heads * d.head_dim);
        let op = self.attention(&s.batch, s.compute);
        s.op(CORE, if self.flash() { Op::AttentionBackward(op) } else { Op::NaiveAttentionBackward(op) });
        let Qkv { q, k, v, raw } = take(&mut saved.qkv);
        s.free_all([q, k, v].into_iter().chain(take(&mut saved.attention)).chain([dout]));
        if self.rotary() {
            for heads in [d.heads, d.kv_heads] {
                s.op(POINTWISE, Op::Rope(self.rope(n, s.batch.seq, heads, true, s.compute)));
            }
        }
        if let (Some(q_norm), Some(k_norm), Some([raw_q, raw_k])) = (&self.q_norm, &self.k_norm, raw) {
            for (norm, heads, gradient, raw) in
                [(q_norm, d.heads, &mut dq, raw_q), (k_norm, d.kv_heads, &mut dk, raw_k)]
            {
                let through = norm.backward_alone_stated(s, n * heads);
                s.free(std::mem::replace(gradient, through));
                s.free_all(raw);
            }
        }
        let begun = shared.is_some();
        let dnorm = shared.unwrap_or_else(|| s.activation(n * d.hidden));
        self.q.backward_stated(s, begun);
        self.k.backward_stated(s, true);
        self.v.backward_stated(s, true);
        if let Some(adapter) = &self.qkv_adapter {
            adapter.backward_stated(s);
        }
        let [norm, statistics] = take(&mut saved.attention_norm);
        s.free_all([dq, dk, dv, norm]);
        self.attention_norm.backward_stated(s, n);
        if let Some((norm, statistics, dmlp)) = waiting {
            norm.backward_stated(s, n);
            s.free_all([statistics, dmlp]);
        }
        s.free_all([take(&mut saved.input), statistics, dnorm]);
        dy
    }

    fn mlp_backward_stated(&self, s: &mut Sketch<'_>, saved: &mut Saved<Piece>) -> Piece {
        if let Some(experts) = &self.experts {
            return self.experts_backward_stated(experts, s, saved);
        }
        let (n, d) = (s.batch.tokens(), self.dims);
        let dact = s.activation(n * d.intermediate);
        self.down.backward_stated(s, false);
        s.free_all(saved.activation.take());
        let gate_up = take(&mut saved.gate_up);
        let dgate = gate_up.gate.is_some().then(|| s.activation(n * d.intermediate));
        let dup = s.activation(n * d.intermediate);
        s.op(
            POINTWISE,
            match dgate {
                Some(_) => Op::SwigluBackward(self.swiglu(n, s.compute)),
                None => Op::ActivateBackward(self.activate(n, s.compute)),
            },
        );
        s.free_all([dact].into_iter().chain(gate_up.all()));
        let dnorm = s.activation(n * d.hidden);
        if let Some(linear) = &self.gate {
            linear.backward_stated(s, false);
        }
        self.up.backward_stated(s, self.gate.is_some());
        s.free_all(dgate.into_iter().chain([dup]));
        dnorm
    }
}

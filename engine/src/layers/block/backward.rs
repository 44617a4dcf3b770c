//! The backward of a block.

use super::{Block, GateUp, POINTWISE, Qkv, Saved, take};
use crate::error::Result;
use crate::layers::exec::Exec;
use crate::layers::{Grads, Weights};
use zbench_kernels::{Buffer, Op, View};

impl Block {
    /// The gradient of the input from that of the output; adds the gradients of the weights. Every saved tensor is
    /// freed at its last use.
    ///
    /// `dmemory` is the gradient of what cross-attention reads, to which it adds.
    ///
    /// Where attention and MLP stand side by side, both read the gradient of the output: what the MLP's norm has to add
    /// to it waits until attention is done.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        mut saved: Saved,
        mut dy: Buffer,
        dmemory: &mut Option<Buffer>,
    ) -> Result<Buffer> {
        let (n, d) = (ex.batch.tokens(), &self.dims);
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
                    norm.backward(ex, w, g, n, [&residual, &statistics, &dmlp], dy.view_mut())?;
                    drop(dmlp);
                }
            }
        }

        if let Some((cross, memory)) = self.over_memory(ex)? {
            let (input, made) = take(&mut saved.cross);
            self.cross_backward(cross, ex, w, g, memory, (&input, made), &mut dy, dmemory)?;
        }
        let mut dout = ex.activation(n * d.heads * d.head_dim)?;
        let [out, statistics] = take(&mut saved.attention);
        self.o.backward(ex, w, g, [out.view(), dy.view()], false, dout.view_mut())?;
        let mut dq = ex.activation(n * d.heads * d.head_dim)?;
        let mut dk = ex.activation(n * d.kv_heads * d.head_dim)?;
        let mut dv = ex.activation(n * d.kv_heads * d.head_dim)?;
        let qkv = take(&mut saved.qkv);
        self.attend_backward(ex, &qkv, [&out, &statistics], &dout, [&mut dq, &mut dk, &mut dv])?;
        let Qkv { q, k, v, raw } = qkv;
        drop((q, k, v));
        drop((out, statistics, dout));
        self.rotate(ex, [&mut dq, &mut dk], true)?;
        if let (Some(q_norm), Some(k_norm), Some([[q, of_q], [key, of_k]])) = (&self.q_norm, &self.k_norm, raw) {
            dq = q_norm.backward_alone(ex, w, g, n * d.heads, [&q, &of_q, &dq])?;
            drop((q, of_q));
            dk = k_norm.backward_alone(ex, w, g, n * d.kv_heads, [&key, &of_k, &dk])?;
        }
        let begun = shared.is_some();
        let mut dnorm = match shared {
            Some(dnorm) => dnorm,
            None => ex.activation(n * d.hidden)?,
        };
        let [norm, statistics] = take(&mut saved.attention_norm);
        self.q.backward(ex, w, g, [norm.view(), dq.view()], begun, dnorm.view_mut())?;
        self.k.backward(ex, w, g, [norm.view(), dk.view()], true, dnorm.view_mut())?;
        self.v.backward(ex, w, g, [norm.view(), dv.view()], true, dnorm.view_mut())?;
        if let Some(adapter) = &self.qkv_adapter {
            adapter.backward(ex, w, g, norm.view(), [dq.view(), dk.view(), dv.view()], dnorm.view_mut())?;
        }
        drop((dq, dk, dv, norm));
        self.q.complete(ex, &mut dnorm)?;
        let input = take(&mut saved.input);
        self.attention_norm.backward(ex, w, g, n, [&input, &statistics, &dnorm], dy.view_mut())?;
        if let Some((norm, statistics, dmlp)) = waiting {
            norm.backward(ex, w, g, n, [&input, &statistics, &dmlp], dy.view_mut())?;
        }
        Ok(dy)
    }

    /// The gradient of what the MLP's projections read.
    fn mlp_backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        saved: &mut Saved,
        dy: &Buffer,
    ) -> Result<Buffer> {
        if let Some(experts) = &self.experts {
            return self.experts_backward(experts, ex, w, g, saved, dy);
        }
        let (n, d) = (ex.batch.tokens(), &self.dims);
        let mut dact = ex.activation(n * d.intermediate)?;
        let activation = saved.activation.take();
        let input = activation.as_ref().map_or(View::of::<f32>(&[]), Buffer::view);
        self.down.backward(ex, w, g, [input, dy.view()], false, dact.view_mut())?;
        drop(activation);
        let GateUp { gate, up, .. } = take(&mut saved.gate_up);
        let (mut dgate, mut dup) = (None, None);
        if let Some(gate) = gate {
            let dgate = dgate.insert(ex.activation(n * d.intermediate)?);
            let dup = dup.insert(ex.activation(n * d.intermediate)?);
            let op = Op::GatedActivationBackward(self.swiglu(n, ex.compute));
            let reads = [gate.view(), up.view(), dact.view()];
            ex.run(POINTWISE, &op, &reads, &mut [dgate.view_mut(), dup.view_mut()])?;
        } else {
            let dup = dup.insert(ex.activation(n * d.intermediate)?);
            let op = Op::PointwiseActivationBackward(self.activate(n, ex.compute));
            ex.run(POINTWISE, &op, &[up.view(), dact.view()], &mut [dup.view_mut()])?;
        }
        drop((dact, up));
        let dup = take(&mut dup);
        let mut dnorm = ex.activation(n * d.hidden)?;
        let norm = if self.mlp_norm.is_some() { &saved.mlp_norm } else { &saved.attention_norm };
        let norm = super::first(norm)[0].view();
        if let (Some(linear), Some(dgate)) = (&self.gate, &dgate) {
            linear.backward(ex, w, g, [norm, dgate.view()], false, dnorm.view_mut())?;
        }
        self.up.backward(ex, w, g, [norm, dup.view()], self.gate.is_some(), dnorm.view_mut())?;
        if self.mlp_norm.is_some() {
            // Else attention adds its own first.
            self.up.complete(ex, &mut dnorm)?;
        }
        Ok(dnorm)
    }
}

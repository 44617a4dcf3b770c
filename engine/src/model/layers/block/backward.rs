//! The backward of a block.

use super::{Block, GateUp, POINTWISE, Qkv, Saved, take};
use crate::compute::error::{Result, StepError};
use crate::model::layers::context::LayerContext;
use crate::model::layers::norm::TERM as NORMS;
use crate::model::layers::{Deferred, Grads, Weights};
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
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        mut saved: Saved,
        mut dy: Buffer,
        dmemory: &mut Option<Buffer>,
    ) -> Result<Buffer> {
        let (n, own, d) = (ex.batch.tokens(), ex.own_tokens().len(), &self.dims);
        let dmlp = self.mlp_backward(ex, w, g, &mut saved, &dy)?;
        let (mut shared, mut waiting) = (None, None);
        match &self.mlp_norm {
            None => shared = Some(dmlp),
            Some(norm) => {
                let [y, statistics] = take(&mut saved.mlp_norm);
                g.keep(y, |deferred| &mut deferred.mlp_norm);
                if d.parallel {
                    waiting = Some((norm, statistics, dmlp));
                } else {
                    let residual = take(&mut saved.residual);
                    keep_gradient(ex, g, &mut dy, |deferred| &mut deferred.doutput)?;
                    norm.backward(ex, w, g, own, [&residual, &statistics, &dmlp], dy.view_mut())?;
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
        let dresidual = ex.all_tokens(&dy)?;
        self.o.backward(ex, w, g, [out.view(), dresidual.view()], false, dout.view_mut())?;
        drop(dresidual);
        let mut dq = ex.activation(n * d.heads * d.head_dim)?;
        let mut dk = ex.activation(n * d.kv_heads * d.head_dim)?;
        let mut dv = ex.activation(n * d.kv_heads * d.head_dim)?;
        let qkv = take(&mut saved.qkv);
        self.attend_backward(ex, &qkv, [&out, &statistics], &dout, [&mut dq, &mut dk, &mut dv])?;
        let Qkv { q, k, v, raw } = qkv;
        drop((q, k, v));
        g.keep(out, |deferred| &mut deferred.attention);
        drop((statistics, dout));
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
        let read = ex.all_tokens(&norm)?;
        self.q.backward_input(ex, w, g, [read.view(), dq.view()], begun, dnorm.view_mut())?;
        self.k.backward_input(ex, w, g, [read.view(), dk.view()], true, dnorm.view_mut())?;
        self.v.backward_input(ex, w, g, [read.view(), dv.view()], true, dnorm.view_mut())?;
        if let Some(adapter) = &self.qkv_adapter {
            adapter.backward(ex, w, g, read.view(), [dq.view(), dk.view(), dv.view()], dnorm.view_mut())?;
        }
        let dnorm = self.q.complete_beside(ex, dnorm, || {
            for (linear, dy) in [(&self.q, &dq), (&self.k, &dk), (&self.v, &dv)] {
                linear.weight_gradient_now(ex, g, [read.view(), dy.view()])?;
            }
            drop(read);
            g.keep(dq, |deferred| &mut deferred.dq);
            g.keep(dk, |deferred| &mut deferred.dk);
            g.keep(dv, |deferred| &mut deferred.dv);
            Ok(())
        })?;
        g.keep(norm, |deferred| &mut deferred.attention_norm);
        let input = take(&mut saved.input);
        match d.parallel {
            true => keep_gradient(ex, g, &mut dy, |deferred| &mut deferred.doutput)?,
            false => keep_gradient(ex, g, &mut dy, |deferred| &mut deferred.dresidual)?,
        }
        self.attention_norm.backward(ex, w, g, own, [&input, &statistics, &dnorm], dy.view_mut())?;
        if let Some((norm, statistics, dmlp)) = waiting {
            norm.backward(ex, w, g, own, [&input, &statistics, &dmlp], dy.view_mut())?;
        }
        Ok(dy)
    }

    /// The gradient of what the MLP's projections read.
    fn mlp_backward(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        saved: &mut Saved,
        dy: &Buffer,
    ) -> Result<Buffer> {
        if let Some(experts) = &self.experts {
            return self.experts_backward(experts, ex, w, g, saved, dy);
        }
        let (n, d) = (ex.batch.tokens(), &self.dims);
        let dy = ex.all_tokens(dy)?;
        let mut dact = ex.activation(n * d.intermediate)?;
        let activation = saved.activation.take();
        let input = activation.as_ref().map_or(View::of::<f32>(&[]), Buffer::view);
        self.down.backward(ex, w, g, [input, dy.view()], false, dact.view_mut())?;
        drop(dy);
        activation.into_iter().for_each(|activation| g.keep(activation, |deferred| &mut deferred.activation));
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
        let norm = ex.all_tokens(&super::first(norm)[0])?;
        if let (Some(linear), Some(dgate)) = (&self.gate, &dgate) {
            linear.backward_input(ex, w, g, [norm.view(), dgate.view()], false, dnorm.view_mut())?;
        }
        self.up.backward_input(ex, w, g, [norm.view(), dup.view()], self.gate.is_some(), dnorm.view_mut())?;
        let gradients = || {
            if let (Some(linear), Some(dgate)) = (&self.gate, &dgate) {
                linear.weight_gradient_now(ex, g, [norm.view(), dgate.view()])?;
            }
            self.up.weight_gradient_now(ex, g, [norm.view(), dup.view()])?;
            drop(norm);
            dgate.into_iter().for_each(|dgate| g.keep(dgate, |deferred| &mut deferred.dgate));
            g.keep(dup, |deferred| &mut deferred.dup);
            Ok(())
        };
        // Without a norm of the MLP's own, attention adds its part first.
        if self.mlp_norm.is_some() {
            self.up.complete_beside(ex, dnorm, gradients)
        } else {
            gradients().map(|()| dnorm)
        }
    }

    /// Adds the gradients of the weights from what `backward` has kept for them.
    pub fn weight_gradients(&self, ex: &LayerContext<'_>, g: &mut Grads<'_>, deferred: Deferred) -> Result<()> {
        let Deferred { activation, mlp_norm, attention, attention_norm, .. } = &deferred;
        let Deferred { doutput, dgate, dup, dresidual, dq, dk, dv, sums, .. } = &deferred;
        // Side by side, attention and MLP add to the same stream, and may read the same.
        let (mlp_norm, dresidual) =
            (mlp_norm.as_ref().or(attention_norm.as_ref()), dresidual.as_ref().or(doutput.as_ref()));
        let dy = ex.all_tokens(kept(doutput.as_ref())?)?;
        self.down.weight_gradient(ex, g, [kept(activation.as_ref())?.view(), dy.view()])?;
        drop(dy);
        let x = ex.all_tokens(kept(mlp_norm)?)?;
        if let Some(gate) = &self.gate {
            gate.weight_gradient(ex, g, [x.view(), kept(dgate.as_ref())?.view()])?;
        }
        self.up.weight_gradient(ex, g, [x.view(), kept(dup.as_ref())?.view()])?;
        drop(x);
        let dy = ex.all_tokens(kept(dresidual)?)?;
        self.o.weight_gradient(ex, g, [kept(attention.as_ref())?.view(), dy.view()])?;
        drop(dy);
        let x = ex.all_tokens(kept(attention_norm.as_ref())?)?;
        for (linear, dy) in [(&self.q, dq), (&self.k, dk), (&self.v, dv)] {
            linear.weight_gradient(ex, g, [x.view(), kept(dy.as_ref())?.view()])?;
        }
        drop(x);
        for (place, sum) in sums {
            g.get(place).map_or(Ok(()), |gradient| ex.accumulate(NORMS, sum.view(), gradient))?;
        }
        Ok(())
    }
}

/// What backward has kept for the gradients of weights.
fn kept(buffer: Option<&Buffer>) -> Result<&Buffer> {
    buffer.ok_or(StepError::Bug("a product's operands are not kept for its weight"))
}

/// Where the gradients of weights are computed later, keeps that of the residual stream, to which a norm is about to add its own.
fn keep_gradient(
    ex: &LayerContext<'_>,
    g: &mut Grads<'_>,
    dy: &mut Buffer,
    place: fn(&mut Deferred) -> &mut Option<Buffer>,
) -> Result<()> {
    if g.deferred().is_some() {
        let mut copy = ex.activation(dy.len())?;
        ex.cast(POINTWISE, dy.view(), copy.view_mut())?;
        g.keep(std::mem::replace(dy, copy), place);
    }
    Ok(())
}

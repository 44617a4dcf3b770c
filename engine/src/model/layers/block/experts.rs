//! The MLP's part of a block whose MLP is a mixture of experts.

use super::{Block, GateUp, POINTWISE, Saved, take};
use crate::compute::error::Result;
use crate::model::layers::context::LayerContext;
use crate::model::layers::experts::{Experts, Routing};
use crate::model::layers::{FlatKind, Grads, TensorSplit, Weights};
use zbench_kernels::{Buffer, Op};

impl Block {
    /// Rows that the MLP computes: tokens, or their slots at experts.
    pub(super) fn mlp_rows(&self, tokens: usize) -> usize {
        self.experts.as_ref().map_or(tokens, |experts| experts.slots(tokens))
    }

    /// Whether backward reads what `down` reads: for its gradient, or for that of the weights of experts.
    pub(super) fn reads_activation(&self) -> bool {
        self.experts.is_some() || self.down.reads_input()
    }

    pub(super) fn experts_gate_up(
        &self,
        experts: &Experts,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        norm: &Buffer,
    ) -> Result<GateUp> {
        let norm = ex.all_tokens(norm)?;
        let routing = experts.route(ex, w, norm.view())?;
        let rows = experts.dispatch(ex, &routing, self.dims.hidden, norm.view())?;
        let rows = experts.send_rows(ex, &routing, self.dims.hidden, rows)?;
        let w = w.of_second();
        let gate = self.gate.as_ref().map(|gate| experts.forward(ex, w, &routing, gate, rows.view())).transpose()?;
        let up = experts.forward(ex, w, &routing, &self.up, rows.view())?;
        Ok(GateUp { gate, up, routing: Some(routing) })
    }

    pub(super) fn experts_output(
        &self,
        experts: &Experts,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        routing: &Routing,
        residual: &Buffer,
        activation: &Buffer,
    ) -> Result<Buffer> {
        let rows = experts.forward(ex, w.of_second(), routing, &self.down, activation.view())?;
        let rows = experts.return_rows(ex, routing, self.dims.hidden, rows)?;
        let mut output = ex.activation(ex.batch.tokens() * self.dims.hidden)?;
        let TensorSplit::RowParallel(axis) = self.down.cut else {
            ex.cast(POINTWISE, residual.view(), output.view_mut())?;
            experts.combine(ex, routing, self.dims.hidden, true, rows.view(), output.view_mut())?;
            return Ok(output);
        };
        ex.fill(POINTWISE, output.view_mut(), 0.0)?;
        experts.combine(ex, routing, self.dims.hidden, true, rows.view(), output.view_mut())?;
        drop(rows);
        let mut output = ex.sum_of_tokens(axis, output)?;
        ex.accumulate(POINTWISE, residual.view(), output.view_mut())?;
        Ok(output)
    }

    /// The gradient of what the router and the experts read.
    ///
    /// A token's output is `sum of weight * down(activation)`. The gradient of a weight is `dy . down(activation)`, which is
    /// that of the activation without the weight, times the activation: so the rows that `down` made are not needed again.
    pub(super) fn experts_backward(
        &self,
        experts: &Experts,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        saved: &mut Saved,
        dy: &Buffer,
    ) -> Result<Buffer> {
        let (n, d) = (ex.batch.tokens(), &self.dims);
        let wide = experts.slots(n) * d.intermediate;
        let GateUp { mut gate, up, mut routing } = take(&mut saved.gate_up);
        let (gate, routing) = (take(&mut gate), take(&mut routing));
        let mut activation = take(&mut saved.activation);

        let dy = ex.all_tokens(dy)?;
        let rows = experts.dispatch(ex, &routing, d.hidden, dy.view())?;
        drop(dy);
        let rows = experts.send_rows(ex, &routing, d.hidden, rows)?;
        let (of_experts, mut grads) = (w.of_second(), g.of_second());
        let mut dact = ex.activation(wide)?;
        experts.input(ex, of_experts, &routing, &self.down, rows.view(), (false, dact.view_mut()))?;
        let dweights = experts.weigh(ex, &routing, d.intermediate, &mut activation, &mut dact)?;
        experts.weight(ex, &mut grads, &routing, &self.down, rows.view(), activation.view())?;
        drop((rows, activation));
        let dlogits = experts.route_backward(ex, &routing, &dweights)?;
        drop(dweights);

        let (mut dgate, mut dup) = (ex.activation(wide)?, ex.activation(wide)?);
        let op = Op::GatedActivationBackward(self.swiglu(experts.slots(n), ex.compute));
        let reads = [gate.view(), up.view(), dact.view()];
        ex.run(POINTWISE, &op, &reads, &mut [dgate.view_mut(), dup.view_mut()])?;
        drop((dact, gate, up));
        let norm = if self.mlp_norm.is_some() { &saved.mlp_norm } else { &saved.attention_norm };
        let norm = ex.all_tokens(&super::first(norm)[0])?;
        let gate_proj = super::first(&self.gate);
        if self.up.weight.part == FlatKind::Trainable {
            let rows = experts.dispatch(ex, &routing, d.hidden, norm.view())?;
            let rows = experts.send_rows(ex, &routing, d.hidden, rows)?;
            experts.weight(ex, &mut grads, &routing, gate_proj, dgate.view(), rows.view())?;
            experts.weight(ex, &mut grads, &routing, &self.up, dup.view(), rows.view())?;
        }
        let mut through = ex.activation(experts.slots(n) * d.hidden)?;
        experts.input(ex, of_experts, &routing, gate_proj, dgate.view(), (false, through.view_mut()))?;
        experts.input(ex, of_experts, &routing, &self.up, dup.view(), (true, through.view_mut()))?;
        drop((dgate, dup));
        let through = experts.return_rows(ex, &routing, d.hidden, through)?;
        let mut dnorm = ex.activation(n * d.hidden)?;
        experts.combine(ex, &routing, d.hidden, false, through.view(), dnorm.view_mut())?;
        drop(through);
        experts.router.backward(ex, w, g, [norm.view(), dlogits.view()], true, dnorm.view_mut())?;
        drop(norm);
        if self.mlp_norm.is_some() { self.up.complete(ex, dnorm) } else { Ok(dnorm) }
    }
}

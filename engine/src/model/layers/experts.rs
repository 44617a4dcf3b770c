//! Experts in place of an MLP: a router, and for each projection a stack of one matrix per expert.
//!
//! Every token goes to the same number of experts, so the rows that all experts compute together are known to a plan; how
//! many of them are whose is not. A *slot* is one token's row at one expert; slots are sorted by expert, an expert's by token.

use super::context::LayerContext;
use super::linear::LinearSpec;
use crate::compute::error::Result;
use crate::model::layers::{Grads, Weights};
use zbench_kernels::{Buffer, Category, Combine, DType, Grouped, GroupedGemm, Op, Route, Slots, View, ViewMut};

/// Which experts a block has, and how tokens come to them.
///
/// A projection of all experts is a [`LinearSpec`] whose weight is the whole stack `[count, out, input]`: one view, which
/// cuts into runs of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The router `[count, hidden]`.
    pub router: LinearSpec,
    pub count: usize,
    /// Ranks that share them; each has as many, in the order of the ranks.
    pub ranks: usize,
    /// Experts that a token goes to.
    pub top: usize,
    /// A token's weights add up to one.
    pub normalised: bool,
    /// Weights are rounded to the compute type.
    pub rounded: bool,
}

#[derive(Debug)]
pub struct Routing {
    /// The router's logits `[tokens, count]`.
    pub logits: Buffer,
    /// Weights of each token's experts.
    pub weights: Buffer,
    /// See [`Route::indices_len`].
    pub indices: Buffer,
    /// Where ranks share the experts: the rows that have come to those of this rank.
    pub arrived: Option<Arrived>,
}

/// Rows of all ranks' tokens at the experts of this one.
#[derive(Debug)]
pub struct Arrived {
    /// As [`Routing::indices`] has them, of tokens that each go to one of the rank's experts.
    pub indices: Buffer,
    /// Each row's weight.
    pub weights: Buffer,
}

pub(super) const TERM: &str = "routing";

impl Experts {
    pub fn slots(&self, tokens: usize) -> usize {
        tokens * self.top
    }

    fn route_op(&self, rows: usize, dtype: DType) -> Route {
        let Experts { count: experts, top, normalised, rounded, .. } = *self;
        Route { rows, experts, top, normalised, rounded, dtype }
    }

    /// Experts that this rank has.
    fn own(&self) -> usize {
        self.count / self.ranks
    }

    /// The rows that have come to this rank as tokens that each go to one of its experts.
    pub(super) fn arrived_op(&self, tokens: usize, dtype: DType) -> Route {
        let (rows, experts) = (self.slots(tokens), self.own());
        Route { rows, experts, top: 1, normalised: false, rounded: false, dtype }
    }

    pub(super) fn arrived_slots(&self, tokens: usize, cols: usize, dtype: DType) -> Slots {
        Slots { rows: self.slots(tokens), top: 1, experts: self.own(), cols, dtype }
    }

    fn slots_op(&self, rows: usize, cols: usize, dtype: DType) -> Slots {
        Slots { rows, top: self.top, experts: self.count, cols, dtype }
    }

    /// The router's word on every token.
    pub fn route(&self, ex: &LayerContext<'_>, w: &Weights<'_>, x: View<'_>) -> Result<Routing> {
        let op = self.route_op(ex.batch.tokens(), ex.compute);
        let mut logits = ex.activation(op.rows * op.experts)?;
        self.router.forward(ex, w, x, false, logits.view_mut())?;
        let mut weights = ex.statistic(op.slots())?;
        let mut indices = ex.alloc(Category::Activations, DType::U32, op.indices_len())?;
        ex.run(TERM, &Op::Route(op), &[logits.view()], &mut [weights.view_mut(), indices.view_mut()])?;
        let arrived = self.exchange_choices(ex, &op, &weights)?;
        Ok(Routing { logits, weights, indices, arrived })
    }

    /// The gradient of the logits from that of the weights.
    pub fn route_backward(&self, ex: &LayerContext<'_>, routing: &Routing, dweights: &Buffer) -> Result<Buffer> {
        let op = self.route_op(ex.batch.tokens(), ex.compute);
        let mut dlogits = ex.activation(op.rows * op.experts)?;
        let (logits, indices) = (routing.logits.view(), routing.indices.view());
        let reads = [logits, indices, dweights.view()];
        ex.run(TERM, &Op::RouteBackward(op), &reads, &mut [dlogits.view_mut()])?;
        Ok(dlogits)
    }

    /// Each slot's row: tokens `x [tokens, cols]` to `[slots, cols]`.
    pub fn dispatch(&self, ex: &LayerContext<'_>, routing: &Routing, cols: usize, x: View<'_>) -> Result<Buffer> {
        let op = self.slots_op(ex.batch.tokens(), cols, ex.compute);
        let mut rows = ex.activation(op.slots() * cols)?;
        ex.run(TERM, &Op::Dispatch(op), &[routing.indices.view(), x], &mut [rows.view_mut()])?;
        Ok(rows)
    }

    /// Slots back to their tokens: with their weights onto `y` (forward), or as they are in its place (backward).
    pub fn combine(
        &self,
        ex: &LayerContext<'_>,
        routing: &Routing,
        cols: usize,
        forward: bool,
        rows: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let slots = self.slots_op(ex.batch.tokens(), cols, ex.compute);
        let op = Op::Combine(Combine { slots, weighted: forward, accumulate: forward });
        let reads = [routing.indices.view(), rows, routing.weights.view()];
        ex.run(TERM, &op, if forward { &reads } else { &reads[..2] }, &mut [y])
    }

    /// The gradient of the weights, and the weights onto what they stand before: see [`Op::RouterWeightBackward`].
    pub fn weigh(
        &self,
        ex: &LayerContext<'_>,
        routing: &Routing,
        cols: usize,
        x: &mut Buffer,
        dx: &mut Buffer,
    ) -> Result<Buffer> {
        let tokens = ex.batch.tokens();
        let (op, indices, weights) = match &routing.arrived {
            None => (self.slots_op(tokens, cols, ex.compute), &routing.indices, &routing.weights),
            Some(Arrived { indices, weights }) => (self.arrived_slots(tokens, cols, ex.compute), indices, weights),
        };
        let mut dweights = ex.statistic(op.slots())?;
        let reads = [indices.view(), weights.view()];
        let mut writes = [x.view_mut(), dx.view_mut(), dweights.view_mut()];
        ex.run(TERM, &Op::RouterWeightBackward(op), &reads, &mut writes)?;
        self.exchange(ex, dweights)
    }

    fn product(&self, tokens: usize, linear: &LinearSpec, form: Grouped, types: [DType; 3]) -> GroupedGemm {
        let (rows, [a, b, c]) = (self.slots(tokens), types);
        let LinearSpec { out, input, .. } = *linear;
        // Gradients of weights are added to those of earlier micro-batches.
        GroupedGemm { rows, groups: self.own(), out, input, form, accumulate: form == Grouped::Weight, a, b, c }
    }

    fn multiply(
        &self,
        ex: &LayerContext<'_>,
        op: GroupedGemm,
        routing: &Routing,
        linear: &LinearSpec,
        [a, b]: [View<'_>; 2],
        c: ViewMut<'_>,
    ) -> Result<()> {
        let tokens = ex.batch.tokens();
        let (op_of_rows, indices) = match &routing.arrived {
            None => (self.route_op(tokens, ex.compute), routing.indices.view()),
            Some(arrived) => (self.arrived_op(tokens, ex.compute), arrived.indices.view()),
        };
        let offsets = op_of_rows.offsets(&indices);
        ex.run(linear.name, &Op::GroupedGemm(op), &[offsets, a, b], &mut [c])
    }

    /// `y = x W^T`, each slot with its expert's matrix.
    pub fn forward(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        routing: &Routing,
        linear: &LinearSpec,
        x: View<'_>,
    ) -> Result<Buffer> {
        let mut y = ex.activation(self.slots(ex.batch.tokens()) * linear.out)?;
        let op = self.product(ex.batch.tokens(), linear, Grouped::Forward, [ex.compute; 3]);
        self.multiply(ex, op, routing, linear, [x, w.get(&linear.weight)], y.view_mut())?;
        Ok(y)
    }

    /// `dx (+)= dy W`.
    pub fn input(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        routing: &Routing,
        linear: &LinearSpec,
        dy: View<'_>,
        (accumulate, dx): (bool, ViewMut<'_>),
    ) -> Result<()> {
        let op = self.product(ex.batch.tokens(), linear, Grouped::Input, [ex.compute; 3]);
        self.multiply(ex, GroupedGemm { accumulate, ..op }, routing, linear, [dy, w.get(&linear.weight)], dx)
    }

    /// `dW += dy^T x` where the stack trains. An expert without a token gets nothing.
    pub fn weight(
        &self,
        ex: &LayerContext<'_>,
        grads: &mut Grads<'_>,
        routing: &Routing,
        linear: &LinearSpec,
        dy: View<'_>,
        x: View<'_>,
    ) -> Result<()> {
        let Some(dw) = grads.get(&linear.weight) else { return Ok(()) };
        let types = [ex.compute, ex.compute, ex.gradients];
        let op = self.product(ex.batch.tokens(), linear, Grouped::Weight, types);
        self.multiply(ex, op, routing, linear, [dy, x], dw)
    }
}

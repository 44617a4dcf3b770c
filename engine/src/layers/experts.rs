//! Experts in place of an MLP: a router, and for each projection a stack of one matrix per expert.
//!
//! Every token goes to the same number of experts, so the rows that all experts compute together are known to a plan; how
//! many of them are whose is not. A *slot* is one token's row at one expert; slots are sorted by expert, an expert's by token.

use super::exec::{Exec, Result};
use super::linear::LinearSpec;
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Part, Weights};
use zbench_kernels::{Buffer, Category, Combine, DType, Grouped, GroupedGemm, Op, Route, Slots, View, ViewMut};

/// Which experts a block has, and how tokens come to them.
///
/// A projection of all experts is a [`LinearSpec`] whose weight is the whole stack `[count, out, input]`: one view, which
/// cuts into runs of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The router `[count, hidden]`.
    pub router: LinearSpec,
    /// Experts.
    pub count: usize,
    /// Experts that a token goes to.
    pub top: usize,
    /// A token's weights add up to one.
    pub normalised: bool,
    /// Weights are rounded to the compute type.
    pub rounded: bool,
}

/// Where tokens went. `T` is a buffer in a run, a stated piece in a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing<T> {
    /// The router's logits `[tokens, count]`.
    pub logits: T,
    /// Weights of each token's experts.
    pub weights: T,
    /// See [`Route::indices_len`].
    pub indices: T,
}

impl<T> Routing<T> {
    pub(super) fn all(self) -> [T; 3] {
        [self.logits, self.weights, self.indices]
    }
}

const TERM: &str = "routing";

impl Experts {
    /// Slots of `tokens`.
    pub fn slots(&self, tokens: usize) -> usize {
        tokens * self.top
    }

    fn route_op(&self, rows: usize, dtype: DType) -> Route {
        let Experts { count: experts, top, normalised, rounded, .. } = *self;
        Route { rows, experts, top, normalised, rounded, dtype }
    }

    fn slots_op(&self, rows: usize, cols: usize, dtype: DType) -> Slots {
        Slots { rows, top: self.top, experts: self.count, cols, dtype }
    }

    /// The router's word on every token.
    pub fn route(&self, ex: &Exec<'_>, w: &Weights<'_>, x: View<'_>) -> Result<Routing<Buffer>> {
        let op = self.route_op(ex.batch.tokens(), ex.compute);
        let mut logits = ex.activation(op.rows * op.experts)?;
        self.router.forward(ex, w, x, false, logits.view_mut())?;
        let mut weights = ex.statistic(op.slots())?;
        let mut indices = ex.arena.alloc(Category::Activations, DType::U32, op.indices_len())?;
        ex.kernels.route(&op, logits.view(), weights.view_mut(), indices.view_mut())?;
        Ok(Routing { logits, weights, indices })
    }

    /// States `route`.
    pub fn route_stated(&self, s: &mut Sketch<'_>) -> Routing<Piece> {
        let op = self.route_op(s.batch.tokens(), s.compute);
        let logits = s.activation(op.rows * op.experts);
        self.router.forward_stated(s, false);
        let weights = s.statistic(op.slots());
        let indices = s.alloc(Category::Activations, DType::U32, op.indices_len());
        s.op(TERM, Op::Route(op));
        Routing { logits, weights, indices }
    }

    /// The gradient of the logits from that of the weights.
    pub fn route_backward(&self, ex: &Exec<'_>, routing: &Routing<Buffer>, dweights: &Buffer) -> Result<Buffer> {
        let op = self.route_op(ex.batch.tokens(), ex.compute);
        let mut dlogits = ex.activation(op.rows * op.experts)?;
        let (logits, indices) = (routing.logits.view(), routing.indices.view());
        ex.kernels.route_backward(&op, logits, indices, dweights.view(), dlogits.view_mut())?;
        Ok(dlogits)
    }

    /// States `route_backward`.
    pub fn route_backward_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let op = self.route_op(s.batch.tokens(), s.compute);
        let dlogits = s.activation(op.rows * op.experts);
        s.op(TERM, Op::RouteBackward(op));
        dlogits
    }

    /// Each slot's row: tokens `x [tokens, cols]` to `[slots, cols]`.
    pub fn dispatch(&self, ex: &Exec<'_>, routing: &Routing<Buffer>, cols: usize, x: View<'_>) -> Result<Buffer> {
        let op = self.slots_op(ex.batch.tokens(), cols, ex.compute);
        let mut rows = ex.activation(op.slots() * cols)?;
        ex.kernels.dispatch(&op, routing.indices.view(), x, rows.view_mut())?;
        Ok(rows)
    }

    /// States `dispatch`.
    pub fn dispatch_stated(&self, s: &mut Sketch<'_>, cols: usize) -> Piece {
        let op = self.slots_op(s.batch.tokens(), cols, s.compute);
        let rows = s.activation(op.slots() * cols);
        s.op(TERM, Op::Dispatch(op));
        rows
    }

    /// Slots back to their tokens: with their weights onto `y` (forward), or as they are in its place (backward).
    pub fn combine(
        &self,
        ex: &Exec<'_>,
        routing: &Routing<Buffer>,
        cols: usize,
        forward: bool,
        rows: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let slots = self.slots_op(ex.batch.tokens(), cols, ex.compute);
        let op = Combine { slots, weighted: forward, accumulate: forward };
        let weights = forward.then(|| routing.weights.view());
        Ok(ex.kernels.combine(&op, routing.indices.view(), rows, weights, y)?)
    }

    /// States `combine`.
    pub fn combine_stated(&self, s: &mut Sketch<'_>, cols: usize, forward: bool) {
        let slots = self.slots_op(s.batch.tokens(), cols, s.compute);
        s.op(TERM, Op::Combine(Combine { slots, weighted: forward, accumulate: forward }));
    }

    /// The gradient of the weights, and the weights onto what they stand before: see [`zbench_kernels::ExpertKernels::weigh`].
    pub fn weigh(
        &self,
        ex: &Exec<'_>,
        routing: &Routing<Buffer>,
        cols: usize,
        x: &mut Buffer,
        dx: &mut Buffer,
    ) -> Result<Buffer> {
        let op = self.slots_op(ex.batch.tokens(), cols, ex.compute);
        let mut dweights = ex.statistic(op.slots())?;
        let (indices, weights) = (routing.indices.view(), routing.weights.view());
        ex.kernels.weigh(&op, indices, weights, x.view_mut(), dx.view_mut(), dweights.view_mut())?;
        Ok(dweights)
    }

    /// States `weigh`.
    pub fn weigh_stated(&self, s: &mut Sketch<'_>, cols: usize) -> Piece {
        let op = self.slots_op(s.batch.tokens(), cols, s.compute);
        let dweights = s.statistic(op.slots());
        s.op(TERM, Op::Weigh(op));
        dweights
    }

    fn product(&self, tokens: usize, linear: &LinearSpec, form: Grouped, types: [DType; 3]) -> GroupedGemm {
        let (rows, [a, b, c]) = (self.slots(tokens), types);
        let LinearSpec { out, input, .. } = *linear;
        // Gradients of weights are added to those of earlier micro-batches.
        GroupedGemm { rows, groups: self.count, out, input, form, accumulate: form == Grouped::Weight, a, b, c }
    }

    fn run(
        &self,
        ex: &Exec<'_>,
        op: GroupedGemm,
        routing: &Routing<Buffer>,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
    ) -> Result<()> {
        let offsets = self.route_op(ex.batch.tokens(), ex.compute).offsets(&routing.indices.view());
        let mut scratch = ex.scratch(&Op::GroupedGemm(op))?;
        Ok(ex.kernels.grouped_gemm(&op, offsets, a, b, c, scratch.view_mut())?)
    }

    /// `y = x W^T`, each slot with its expert's matrix.
    pub fn forward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        routing: &Routing<Buffer>,
        linear: &LinearSpec,
        x: View<'_>,
    ) -> Result<Buffer> {
        let mut y = ex.activation(self.slots(ex.batch.tokens()) * linear.out)?;
        let op = self.product(ex.batch.tokens(), linear, Grouped::Forward, [ex.compute; 3]);
        self.run(ex, op, routing, x, w.get(&linear.weight), y.view_mut())?;
        Ok(y)
    }

    /// States `forward`.
    pub fn forward_stated(&self, s: &mut Sketch<'_>, linear: &LinearSpec) -> Piece {
        let y = s.activation(self.slots(s.batch.tokens()) * linear.out);
        s.op(linear.name, Op::GroupedGemm(self.product(s.batch.tokens(), linear, Grouped::Forward, [s.compute; 3])));
        y
    }

    /// `dx (+)= dy W`.
    pub fn input(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        routing: &Routing<Buffer>,
        linear: &LinearSpec,
        dy: View<'_>,
        accumulate: bool,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let op = self.product(ex.batch.tokens(), linear, Grouped::Input, [ex.compute; 3]);
        self.run(ex, GroupedGemm { accumulate, ..op }, routing, dy, w.get(&linear.weight), dx)
    }

    /// States `input`.
    pub fn input_stated(&self, s: &mut Sketch<'_>, linear: &LinearSpec, accumulate: bool) {
        let op = self.product(s.batch.tokens(), linear, Grouped::Input, [s.compute; 3]);
        s.op(linear.name, Op::GroupedGemm(GroupedGemm { accumulate, ..op }));
    }

    /// `dW += dy^T x` where the stack trains. An expert without a token gets nothing.
    pub fn weight(
        &self,
        ex: &Exec<'_>,
        grads: &mut Grads<'_>,
        routing: &Routing<Buffer>,
        linear: &LinearSpec,
        dy: View<'_>,
        x: View<'_>,
    ) -> Result<()> {
        let Some(dw) = grads.get(&linear.weight) else { return Ok(()) };
        let types = [ex.compute, ex.compute, ex.gradients];
        let op = self.product(ex.batch.tokens(), linear, Grouped::Weight, types);
        self.run(ex, op, routing, dy, x, dw)
    }

    /// States `weight`.
    pub fn weight_stated(&self, s: &mut Sketch<'_>, linear: &LinearSpec) {
        if linear.weight.part == Part::Trainable {
            let types = [s.compute, s.compute, s.gradients];
            s.op(linear.name, Op::GroupedGemm(self.product(s.batch.tokens(), linear, Grouped::Weight, types)));
        }
    }
}

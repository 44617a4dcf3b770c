//! A linear layer, with or without a bias and an adapter.

mod factors;
mod magnitude;
mod matrix;

pub use factors::Factors;
pub use magnitude::Magnitude;

use super::adapter::AdapterSpec;
use super::context::{LayerContext, POINTWISE, product_forward, product_input, product_weight};
use super::prepacked;
use super::tensor_split::TensorSplit;
use crate::compute::error::Result;
use crate::model::layers::{FlatKind, FlatRange, Grads, Weights};
use zbench_kernels::{BiasAdd, Buffer, DType, Op, Packed, View, ViewMut};

/// `y = x W^T (+ b) (+ scale * dropout(x) A^T B^T)`, or with factors on x or y.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearSpec {
    /// W `[out, input]`.
    pub weight: FlatRange,
    /// How W is kept, where that is in few bits.
    pub packed: Option<Packed>,
    /// b `[out]`.
    pub bias: Option<FlatRange>,
    pub out: usize,
    pub input: usize,
    /// What this rank has of W; `out` and `input` are its own.
    pub cut: TensorSplit,
    /// The low-rank adapter, if the layer has one of its own.
    pub adapter: Option<AdapterSpec>,
    /// The factors of IA3, if the layer has them.
    pub factors: Option<Factors>,
    /// The magnitudes of DoRA, beside the adapter.
    pub magnitude: Option<Magnitude>,
    /// Its name in the FLOP ledger.
    pub name: &'static str,
}

impl LinearSpec {
    /// Whether backward reads the layer's input: a frozen weight without an adapter has no gradient that needs it.
    pub fn reads_input(&self) -> bool {
        self.weight.part == FlatKind::Trainable || self.adapter.is_some() || self.factors.is_some()
    }

    fn bias_op(&self, rows: usize, dtype: DType) -> BiasAdd {
        BiasAdd { rows, period: 1, cols: self.out, dtype }
    }

    /// `y (+)= layer(x)`.
    pub fn forward(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        if let Some(factors) = &self.factors {
            return factors.forward(ex, self, weights, x, accumulate, y);
        }
        if let (Some(magnitude), Some(adapter)) = (&self.magnitude, &self.adapter) {
            return magnitude.forward(ex, (self, adapter), weights, x, (accumulate, y));
        }
        self.product(ex, weights, x, accumulate, y.reborrow())?;
        self.adapter.map_or(Ok(()), |adapter| adapter.forward(ex, weights, x, [y]))
    }

    /// `base + layer(x)` in a new buffer.
    pub fn forward_onto(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        base: &Buffer,
    ) -> Result<Buffer> {
        let TensorSplit::RowParallel(axis) = self.cut else {
            let mut y = ex.activation(base.len())?;
            ex.cast(POINTWISE, base.view(), y.view_mut())?;
            self.forward(ex, weights, x, true, y.view_mut())?;
            return Ok(y);
        };
        let mut y = ex.sum_in_chunks(axis, self.out, |ex, tokens, y| {
            self.add_term(ex, weights, x.slice(tokens.start * self.input..tokens.end * self.input), false, y)
        })?;
        // What lies beside the product is added once, to the sum over ranks.
        self.add_bias_to(ex, weights, ex.own_tokens().len(), y.view_mut())?;
        ex.accumulate(POINTWISE, base.view(), y.view_mut())?;
        Ok(y)
    }

    /// This rank's term of the sum that a product is whose columns ranks share, with its adapter's and without the bias.
    pub(super) fn term(&self, ex: &LayerContext<'_>, weights: &Weights<'_>, x: View<'_>) -> Result<Buffer> {
        let mut y = ex.activation(ex.batch.tokens() * self.out)?;
        self.add_term(ex, weights, x, false, y.view_mut())?;
        Ok(y)
    }

    /// The same in `y`, or added to it.
    pub(super) fn add_term(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        if let Some(factors) = &self.factors {
            return factors.add_term(ex, self, weights, x, (accumulate, y));
        }
        self.times(ex, weights, x, accumulate, y.reborrow())?;
        self.adapter.map_or(Ok(()), |adapter| adapter.forward(ex, weights, x, [y]))
    }

    /// Makes the gradient of the input whole, to which all layers that read it have added theirs.
    pub fn complete(&self, ex: &LayerContext<'_>, dx: Buffer) -> Result<Buffer> {
        self.complete_beside(ex, dx, || Ok(()))
    }

    /// The same, and does `work` that does not read it, beside the sum where that may be.
    pub fn complete_beside(
        &self,
        ex: &LayerContext<'_>,
        dx: Buffer,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Buffer> {
        match self.cut {
            TensorSplit::ColumnParallel(axis) => ex.sum_beside(axis, dx, work),
            TensorSplit::Replicated | TensorSplit::RowParallel(_) => work().map(|()| dx),
        }
    }

    /// `dx (+)= ` the gradient of the input; adds the gradients of the weights that train.
    pub fn backward(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        [x, dy]: [View<'_>; 2],
        accumulate: bool,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        self.backward_input(ex, weights, grads, [x, dy], accumulate, dx)?;
        self.weight_gradient_now(ex, grads, [x, dy])
    }

    /// The same without the gradients of the layer's own weights and bias.
    pub fn backward_input(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        [x, dy]: [View<'_>; 2],
        accumulate: bool,
        mut dx: ViewMut<'_>,
    ) -> Result<()> {
        if let Some(factors) = &self.factors {
            return factors.backward(ex, self, weights, grads, [x, dy], (accumulate, dx));
        }
        if let (Some(magnitude), Some(adapter)) = (&self.magnitude, &self.adapter) {
            return magnitude.backward(ex, (self, adapter), weights, grads, [x, dy], (accumulate, dx));
        }
        self.product_backward(ex, weights, dy, accumulate, dx.reborrow())?;
        self.adapter.map_or(Ok(()), |adapter| adapter.backward(ex, weights, grads, x, [dy], dx))
    }

    /// `y (+)= x W^T (+ b)`.
    pub(super) fn product(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        self.times(ex, weights, x, accumulate, y.reborrow())?;
        self.add_bias(ex, weights, y)
    }

    /// `y (+)= x W^T`.
    pub(super) fn times(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let op = product_forward(ex.batch.tokens(), self.out, self.input, accumulate, ex.compute);
        let matrix = self.matrix(ex, weights)?;
        prepacked::product(ex, self.name, weights, &self.weight, op, [x, matrix.view()], y)
    }

    /// `y += b`, if there is one.
    pub(super) fn add_bias(&self, ex: &LayerContext<'_>, weights: &Weights<'_>, y: ViewMut<'_>) -> Result<()> {
        self.add_bias_to(ex, weights, ex.batch.tokens(), y)
    }

    /// The same on so many tokens.
    pub(super) fn add_bias_to(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        tokens: usize,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let Some(bias) = &self.bias else { return Ok(()) };
        let op = Op::BiasAdd(self.bias_op(tokens, ex.compute));
        ex.run(self.name, &op, &[weights.get(bias)], &mut [y])
    }

    /// `dx (+)= dy W`.
    pub(super) fn product_backward(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        dy: View<'_>,
        accumulate: bool,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let op = product_input(n, self.out, self.input, accumulate, ex.compute);
        let matrix = self.matrix(ex, weights)?;
        prepacked::product(ex, self.name, weights, &self.weight, op, [dy, matrix.view()], dx)
    }

    /// As [`LinearSpec::weight_gradient`], unless that is deferred: then the block keeps x and dy.
    pub fn weight_gradient_now(
        &self,
        ex: &LayerContext<'_>,
        grads: &mut Grads<'_>,
        [x, dy]: [View<'_>; 2],
    ) -> Result<()> {
        if grads.deferred().is_none() { self.weight_gradient(ex, grads, [x, dy]) } else { Ok(()) }
    }

    /// Adds the gradients of the weight and of the bias, where they train.
    pub fn weight_gradient(&self, ex: &LayerContext<'_>, grads: &mut Grads<'_>, [x, dy]: [View<'_>; 2]) -> Result<()> {
        let n = ex.batch.tokens();
        if let Some(dw) = grads.get(&self.weight) {
            ex.gemm(self.name, product_weight(n, self.out, self.input, ex.compute, ex.gradients), dy, x, dw)?;
        }
        if let Some(db) = self.bias.as_ref().and_then(|bias| grads.get(bias)) {
            ex.run(self.name, &Op::BiasAddBackward(self.bias_op(n, ex.compute)), &[dy], &mut [db])?;
        }
        Ok(())
    }
}

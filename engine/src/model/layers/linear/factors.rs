//! Factors on what a linear layer gives or reads (IA3).

use super::LinearSpec;
use crate::compute::error::Result;
use crate::model::layers::adapter::ADAPTER;
use crate::model::layers::context::LayerContext;
use crate::model::layers::{FlatRange, Grads, Weights};
use zbench_kernels::{Buffer, DType, Op, ScaleColumns, View, ViewMut};

/// IA3: learned factors of what a layer gives, bias included, or of what it reads. The layer's own weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// `[out, 1]`, or `[1, input]` in a feedforward layer.
    pub l: FlatRange,
    /// They are on the input.
    pub feedforward: bool,
}

impl Factors {
    fn op(&self, linear: &LinearSpec, rows: usize, dtype: DType) -> ScaleColumns {
        ScaleColumns { rows, cols: if self.feedforward { linear.input } else { linear.out }, dtype }
    }

    /// `y (+)= layer(x)` with the factors.
    pub(super) fn forward(
        &self,
        ex: &LayerContext<'_>,
        linear: &LinearSpec,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let (op, l) = (Op::ScaleColumns(self.op(linear, n, ex.compute)), weights.get(&self.l));
        if self.feedforward {
            let mut scaled = ex.activation(n * linear.input)?;
            ex.cast(ADAPTER, x, scaled.view_mut())?;
            ex.run(ADAPTER, &op, &[l], &mut [scaled.view_mut()])?;
            return linear.product(ex, weights, scaled.view(), accumulate, y);
        }
        let mut own = if accumulate { Some(ex.activation(n * linear.out)?) } else { None };
        let mut to = own.as_mut().map_or_else(|| y.reborrow(), Buffer::view_mut);
        linear.product(ex, weights, x, false, to.reborrow())?;
        ex.run(ADAPTER, &op, &[l], &mut [to])?;
        own.map_or(Ok(()), |own| ex.accumulate(ADAPTER, own.view(), y))
    }

    /// The layer's product without its bias, with the factors on what it reads: those on its output are refused where ranks share its
    /// columns.
    pub(super) fn add_term(
        &self,
        ex: &LayerContext<'_>,
        linear: &LinearSpec,
        weights: &Weights<'_>,
        x: View<'_>,
        (accumulate, y): (bool, ViewMut<'_>),
    ) -> Result<()> {
        let (n, l) = (ex.batch.tokens(), weights.get(&self.l));
        let mut scaled = ex.activation(n * linear.input)?;
        ex.cast(ADAPTER, x, scaled.view_mut())?;
        ex.run(ADAPTER, &Op::ScaleColumns(self.op(linear, n, ex.compute)), &[l], &mut [scaled.view_mut()])?;
        linear.times(ex, weights, scaled.view(), accumulate, y)
    }

    /// `dx (+)=` the gradient of the input; adds the factors'. That of factors on the output needs the output without
    /// them, which is made again.
    pub(super) fn backward(
        &self,
        ex: &LayerContext<'_>,
        linear: &LinearSpec,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        [x, dy]: [View<'_>; 2],
        (accumulate, mut dx): (bool, ViewMut<'_>),
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let (op, l) = (self.op(linear, n, ex.compute), weights.get(&self.l));
        if !self.feedforward {
            let mut own = ex.activation(n * linear.out)?;
            ex.again(|| linear.product(ex, weights, x, false, own.view_mut()))?;
            if let Some(dl) = grads.get(&self.l) {
                ex.run(ADAPTER, &Op::ScaleColumnsBackward(op), &[own.view(), dy], &mut [dl])?;
            }
            ex.cast(ADAPTER, dy, own.view_mut())?;
            ex.run(ADAPTER, &Op::ScaleColumns(op), &[l], &mut [own.view_mut()])?;
            return linear.product_backward(ex, weights, own.view(), accumulate, dx);
        }
        let mut own = if accumulate { Some(ex.activation(n * linear.input)?) } else { None };
        let mut through = own.as_mut().map_or_else(|| dx.reborrow(), Buffer::view_mut);
        linear.product_backward(ex, weights, dy, false, through.reborrow())?;
        if let Some(dl) = grads.get(&self.l) {
            ex.run(ADAPTER, &Op::ScaleColumnsBackward(op), &[x, through.as_view()], &mut [dl])?;
        }
        ex.run(ADAPTER, &Op::ScaleColumns(op), &[l], &mut [through])?;
        own.map_or(Ok(()), |own| ex.accumulate(ADAPTER, own.view(), dx))
    }
}

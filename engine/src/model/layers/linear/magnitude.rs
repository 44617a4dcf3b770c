//! DoRA: `y = m / |W + scale B A| * (x W^T + scale x A^T B^T) + b`. The norms are of rows, and constants to the gradient as
//! in PEFT (section 4.3 of the paper): they follow A and B without pulling at them.

use super::LinearSpec;
use crate::compute::error::Result;
use crate::model::layers::adapter::{ADAPTER, AdapterSpec};
use crate::model::layers::context::LayerContext;
use crate::model::layers::{FlatRange, Grads, Weights};
use zbench_kernels::{Buffer, DType, Gemm, Op, RowInvNorm, ScaleColumns, View, ViewMut};

/// Learned norms of the rows of what a layer and its adapter make together. The layer's own weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitude {
    /// m `[out]`.
    pub m: FlatRange,
}

impl Magnitude {
    /// `W += scale B A`.
    fn merge(&self, linear: &LinearSpec, adapter: &AdapterSpec, dtype: DType) -> Gemm {
        let (m, n, k) = (linear.out, linear.input, adapter.rank);
        let alpha = adapter.scale;
        Gemm { m, n, k, alpha, accumulate: true, a: dtype, b: dtype, c: dtype, ..Gemm::DENSE }
    }

    /// One factor for each element of a row of `out`.
    fn columns(&self, linear: &LinearSpec, rows: usize, dtype: DType) -> ScaleColumns {
        ScaleColumns { rows, cols: linear.out, dtype }
    }

    /// The reciprocal norms, and m times them: the factors of the output.
    fn factors(
        &self,
        ex: &LayerContext<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        weights: &Weights<'_>,
    ) -> Result<[Buffer; 2]> {
        let (rows, cols, dtype) = (linear.out, linear.input, ex.compute);
        let mut merged = ex.activation(rows * cols)?;
        ex.cast(ADAPTER, weights.get(&linear.weight), merged.view_mut())?;
        let (a, [(b, _)]) = (weights.get(&adapter.a), adapter.b);
        ex.gemm(ADAPTER, self.merge(linear, adapter, dtype), weights.get(&b), a, merged.view_mut())?;
        let mut inverse = ex.statistic(rows)?;
        let op = Op::RowInvNorm(RowInvNorm { rows, cols, dtype });
        ex.run(ADAPTER, &op, &[merged.view()], &mut [inverse.view_mut()])?;
        drop(merged);
        let mut wide = ex.statistic(rows)?;
        ex.cast(ADAPTER, weights.get(&self.m), wide.view_mut())?;
        let op = Op::ScaleColumns(self.columns(linear, 1, dtype.accumulator()));
        ex.run(ADAPTER, &op, &[inverse.view()], &mut [wide.view_mut()])?;
        let mut factors = ex.activation(rows)?;
        ex.cast(ADAPTER, wide.view(), factors.view_mut())?;
        Ok([inverse, factors])
    }

    /// `y (+)= layer(x)`.
    pub(super) fn forward(
        &self,
        ex: &LayerContext<'_>,
        (linear, adapter): (&LinearSpec, &AdapterSpec),
        weights: &Weights<'_>,
        x: View<'_>,
        (accumulate, mut y): (bool, ViewMut<'_>),
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let [inverse, factors] = self.factors(ex, linear, adapter, weights)?;
        drop(inverse);
        let mut own = if accumulate { Some(ex.activation(n * linear.out)?) } else { None };
        let mut to = own.as_mut().map_or_else(|| y.reborrow(), Buffer::view_mut);
        linear.times(ex, weights, x, false, to.reborrow())?;
        adapter.forward(ex, weights, x, [to.reborrow()])?;
        ex.run(ADAPTER, &Op::ScaleColumns(self.columns(linear, n, ex.compute)), &[factors.view()], &mut [to])?;
        if let Some(own) = own {
            ex.accumulate(ADAPTER, own.view(), y.reborrow())?;
        }
        linear.add_bias(ex, weights, y)
    }

    /// `dx (+)=` the gradient of the input; adds those of A, B and m. The output without m is made again.
    pub(super) fn backward(
        &self,
        ex: &LayerContext<'_>,
        (linear, adapter): (&LinearSpec, &AdapterSpec),
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        [x, dy]: [View<'_>; 2],
        (accumulate, mut dx): (bool, ViewMut<'_>),
    ) -> Result<()> {
        let (n, wide_type) = (ex.batch.tokens(), ex.compute.accumulator());
        let columns = self.columns(linear, n, ex.compute);
        let [inverse, factors] = ex.again(|| self.factors(ex, linear, adapter, weights))?;
        let mut own = ex.activation(n * linear.out)?;
        ex.again(|| {
            linear.times(ex, weights, x, false, own.view_mut())?;
            adapter.forward(ex, weights, x, [own.view_mut()])
        })?;
        if let Some(dm) = grads.get(&self.m) {
            let mut sums = ex.statistic(linear.out)?;
            ex.fill(ADAPTER, sums.view_mut(), 0.0)?;
            let mut gradient = [sums.view_mut()];
            ex.run(ADAPTER, &Op::ScaleColumnsBackward(columns), &[own.view(), dy], &mut gradient)?;
            let scales = Op::ScaleColumns(self.columns(linear, 1, wide_type));
            ex.run(ADAPTER, &scales, &[inverse.view()], &mut gradient)?;
            ex.accumulate(ADAPTER, sums.view(), dm)?;
        }
        ex.cast(ADAPTER, dy, own.view_mut())?;
        ex.run(ADAPTER, &Op::ScaleColumns(columns), &[factors.view()], &mut [own.view_mut()])?;
        linear.product_backward(ex, weights, own.view(), accumulate, dx.reborrow())?;
        adapter.backward(ex, weights, grads, x, [own.view()], dx)
    }
}

//! DoRA: `y = m / |W + scale B A| * (x W^T + scale x A^T B^T) + b`. The norms are of rows, and constants to the gradient as
//! in PEFT (section 4.3 of the paper): they follow A and B without pulling at them.

use super::adapter::{ADAPTER, AdapterSpec};
use super::exec::{self, Exec, Result};
use super::linear::LinearSpec;
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Place, Weights};
use zbench_kernels::{Buffer, DType, Gemm, InverseNorms, MulRows, Op, View, ViewMut};

/// Learned norms of the rows of what a layer and its adapter make together. The layer's own weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitude {
    /// m `[out]`.
    pub m: Place,
}

impl Magnitude {
    /// `W += scale B A`.
    fn merge(&self, linear: &LinearSpec, adapter: &AdapterSpec, dtype: DType) -> Gemm {
        let (m, n, k) = (linear.out, linear.input, adapter.rank);
        let alpha = adapter.scale;
        Gemm { m, n, k, trans_a: false, trans_b: false, alpha, accumulate: true, a: dtype, b: dtype, c: dtype }
    }

    /// One factor for each element of a row of `out`.
    fn columns(&self, linear: &LinearSpec, rows: usize, dtype: DType) -> MulRows {
        MulRows { rows, cols: linear.out, dtype }
    }

    /// The reciprocal norms, and m times them: the factors of the output.
    fn factors(
        &self,
        ex: &Exec<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        weights: &Weights<'_>,
    ) -> Result<[Buffer; 2]> {
        let (rows, cols, dtype) = (linear.out, linear.input, ex.compute);
        let mut merged = ex.activation(rows * cols)?;
        ex.kernels.cast(weights.get(&linear.weight), merged.view_mut())?;
        let (a, [(b, _)]) = (weights.get(&adapter.a), adapter.b);
        ex.gemm(self.merge(linear, adapter, dtype), weights.get(&b), a, merged.view_mut())?;
        let mut inverse = ex.statistic(rows)?;
        ex.kernels.inverse_norms(&InverseNorms { rows, cols, dtype }, merged.view(), inverse.view_mut())?;
        drop(merged);
        let mut wide = ex.statistic(rows)?;
        ex.kernels.cast(weights.get(&self.m), wide.view_mut())?;
        ex.kernels.mul_rows(&self.columns(linear, 1, dtype.accumulator()), inverse.view(), wide.view_mut())?;
        let mut factors = ex.activation(rows)?;
        ex.kernels.cast(wide.view(), factors.view_mut())?;
        Ok([inverse, factors])
    }

    fn factors_stated(&self, s: &mut Sketch<'_>, linear: &LinearSpec, adapter: &AdapterSpec) -> [Piece; 2] {
        let (rows, cols, dtype) = (linear.out, linear.input, s.compute);
        let wide_type = dtype.accumulator();
        let merged = s.activation(rows * cols);
        s.op(ADAPTER, exec::cast(rows * cols, dtype, dtype));
        s.op(ADAPTER, Op::Gemm(self.merge(linear, adapter, dtype)));
        let inverse = s.statistic(rows);
        s.op(ADAPTER, Op::InverseNorms(InverseNorms { rows, cols, dtype }));
        s.free(merged);
        let wide = s.statistic(rows);
        s.op(ADAPTER, exec::cast(rows, dtype, wide_type));
        s.op(ADAPTER, Op::MulRows(self.columns(linear, 1, wide_type)));
        let factors = s.activation(rows);
        s.op(ADAPTER, exec::cast(rows, wide_type, dtype));
        s.free(wide);
        [inverse, factors]
    }

    /// `y (+)= layer(x)`.
    pub(super) fn forward(
        &self,
        ex: &Exec<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let [inverse, factors] = self.factors(ex, linear, adapter, weights)?;
        drop(inverse);
        let mut own = if accumulate { Some(ex.activation(n * linear.out)?) } else { None };
        let mut to = own.as_mut().map_or_else(|| y.reborrow(), Buffer::view_mut);
        linear.times(ex, weights, x, false, to.reborrow())?;
        adapter.forward(ex, weights, x, [to.reborrow()])?;
        ex.kernels.mul_rows(&self.columns(linear, n, ex.compute), factors.view(), to)?;
        if let Some(own) = own {
            ex.kernels.accumulate(1.0, own.view(), y.reborrow())?;
        }
        linear.add_bias(ex, weights, y)
    }

    /// States `forward`.
    pub(super) fn forward_stated(
        &self,
        s: &mut Sketch<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        accumulate: bool,
    ) {
        let n = s.batch.tokens();
        let [inverse, factors] = self.factors_stated(s, linear, adapter);
        s.free(inverse);
        let own = accumulate.then(|| s.activation(n * linear.out));
        linear.times_stated(s, false);
        adapter.forward_stated(s);
        s.op(ADAPTER, Op::MulRows(self.columns(linear, n, s.compute)));
        if own.is_some() {
            s.op(ADAPTER, exec::accumulate(n * linear.out, s.compute, s.compute));
        }
        linear.add_bias_stated(s);
        s.free_all(own.into_iter().chain([factors]));
    }

    /// `dx (+)=` the gradient of the input; adds those of A, B and m. The output without m is made again.
    pub(super) fn backward(
        &self,
        ex: &Exec<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        x: View<'_>,
        dy: View<'_>,
        accumulate: bool,
        mut dx: ViewMut<'_>,
    ) -> Result<()> {
        let (n, wide_type) = (ex.batch.tokens(), ex.compute.accumulator());
        let columns = self.columns(linear, n, ex.compute);
        let [inverse, factors] = self.factors(ex, linear, adapter, weights)?;
        let mut own = ex.activation(n * linear.out)?;
        linear.times(ex, weights, x, false, own.view_mut())?;
        adapter.forward(ex, weights, x, [own.view_mut()])?;
        if let Some(dm) = grads.get(&self.m) {
            let mut sums = ex.statistic(linear.out)?;
            ex.kernels.fill(sums.view_mut(), 0.0)?;
            ex.kernels.mul_rows_backward(&columns, own.view(), dy, sums.view_mut())?;
            ex.kernels.mul_rows(&self.columns(linear, 1, wide_type), inverse.view(), sums.view_mut())?;
            ex.kernels.accumulate(1.0, sums.view(), dm)?;
        }
        ex.kernels.cast(dy, own.view_mut())?;
        ex.kernels.mul_rows(&columns, factors.view(), own.view_mut())?;
        linear.product_backward(ex, weights, grads, x, own.view(), accumulate, dx.reborrow())?;
        adapter.backward(ex, weights, grads, x, [own.view()], dx)
    }

    /// States `backward`.
    pub(super) fn backward_stated(
        &self,
        s: &mut Sketch<'_>,
        linear: &LinearSpec,
        adapter: &AdapterSpec,
        accumulate: bool,
    ) {
        let (n, wide_type) = (s.batch.tokens(), s.compute.accumulator());
        let columns = self.columns(linear, n, s.compute);
        let factors = s.again(|s| self.factors_stated(s, linear, adapter));
        let own = s.activation(n * linear.out);
        s.again(|s| {
            linear.times_stated(s, false);
            adapter.forward_stated(s);
        });
        let sums = s.statistic(linear.out);
        s.op(ADAPTER, exec::fill(linear.out, wide_type));
        s.op(ADAPTER, Op::MulRowsBackward(columns));
        s.op(ADAPTER, Op::MulRows(self.columns(linear, 1, wide_type)));
        s.op(ADAPTER, exec::accumulate(linear.out, wide_type, s.gradients));
        s.free(sums);
        s.op(ADAPTER, exec::cast(n * linear.out, s.compute, s.compute));
        s.op(ADAPTER, Op::MulRows(columns));
        linear.product_backward_stated(s, accumulate);
        adapter.backward_stated(s);
        s.free(own);
        s.free_all(factors);
    }
}

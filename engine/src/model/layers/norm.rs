//! A norm of either kind, before attention or MLP, on heads, on the embeddings or below the output matrix.

use super::context::LayerContext;
use crate::compute::error::Result;
use crate::config::NormKind;
use crate::model::layers::{Deferred, FlatRange, Grads, Weights};
use zbench_kernels::{Buffer, Category, DType, LayerNorm, Op, RmsNorm, View, ViewMut};

/// A norm over vectors of `cols`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// By the mean square, or to mean 0 and variance 1.
    pub kind: NormKind,
    /// The weight `[cols]`.
    pub weight: FlatRange,
    /// The bias `[cols]`, behind the weight.
    pub bias: Option<FlatRange>,
    pub cols: usize,
    /// Added to the mean square or variance.
    pub eps: f64,
}

pub(super) const TERM: &str = "norms";

impl Norm {
    /// The normalised vectors, and the statistics that backward reads.
    pub fn forward(&self, ex: &LayerContext<'_>, w: &Weights<'_>, rows: usize, x: View<'_>) -> Result<[Buffer; 2]> {
        let mut y = ex.activation(rows * self.cols)?;
        let mut statistics = ex.statistic(self.statistics(rows))?;
        let (weight, to, saved) = (w.get(&self.weight), y.view_mut(), statistics.view_mut());
        let op = self.op(rows, ex.compute, None, false);
        match &self.bias {
            Some(bias) => ex.run(TERM, &op, &[x, weight, w.get(bias)], &mut [to, saved])?,
            None => ex.run(TERM, &op, &[x, weight], &mut [to, saved])?,
        }
        Ok([y, statistics])
    }

    /// `dx += ` the gradient of the input; adds the gradients of the weights that train.
    pub fn backward(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        rows: usize,
        [x, statistics, dy]: [&Buffer; 3],
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (x, weight, saved, dy) = (x.view(), w.get(&self.weight), statistics.view(), dy.view());
        let reads = [x, weight, saved, dy];
        if let Some(deferred) = g.deferred() {
            return self.backward_later(ex, deferred, rows, &reads, dx);
        }
        let (dw, db) = g.pair(&self.weight, self.bias.as_ref());
        let gradient = dw.is_some().then_some(ex.gradients);
        let op = self.op(rows, ex.compute, gradient, true);
        match (dw, db) {
            (Some(dw), Some(db)) => ex.run(TERM, &op, &reads, &mut [dx, dw, db]),
            (Some(dw), None) => ex.run(TERM, &op, &reads, &mut [dx, dw]),
            (None, _) => ex.run(TERM, &op, &reads, &mut [dx]),
        }
    }

    /// As `backward` with the gradients of the weights, which all train, in buffers that are added later.
    fn backward_later(
        &self,
        ex: &LayerContext<'_>,
        deferred: &mut Deferred,
        rows: usize,
        reads: &[View<'_>],
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let dtype = ex.gradients.accumulator();
        let mut sums = Vec::with_capacity(2);
        for place in [Some(self.weight), self.bias].into_iter().flatten() {
            let mut sum = ex.alloc(Category::Activations, dtype, place.len)?;
            ex.fill(TERM, sum.view_mut(), 0.0)?;
            sums.push((place, sum));
        }
        let mut writes: Vec<ViewMut<'_>> = vec![dx];
        writes.extend(sums.iter_mut().map(|(_, sum)| sum.view_mut()));
        ex.run(TERM, &self.op(rows, ex.compute, Some(dtype), true), reads, &mut writes)?;
        drop(writes);
        deferred.sums.extend(sums);
        Ok(())
    }

    /// As `backward` where nothing is to be added to: the gradient of the input in a buffer of its own.
    pub fn backward_alone(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        rows: usize,
        [x, statistics, dy]: [&Buffer; 3],
    ) -> Result<Buffer> {
        let mut dx = ex.activation(rows * self.cols)?;
        ex.fill(TERM, dx.view_mut(), 0.0)?;
        self.backward(ex, w, g, rows, [x, statistics, dy], dx.view_mut())?;
        Ok(dx)
    }

    /// Reciprocal deviations, and the means of the kind that takes them off.
    fn statistics(&self, rows: usize) -> usize {
        match self.kind {
            NormKind::Rms => rows,
            NormKind::Layer => 2 * rows,
        }
    }

    fn op(&self, rows: usize, dtype: DType, gradient: Option<DType>, backward: bool) -> Op {
        let (cols, eps) = (self.cols, self.eps);
        let rms = RmsNorm { rows, cols, eps, dtype, gradient };
        let layer = LayerNorm { rows, cols, eps, bias: self.bias.is_some(), dtype, gradient };
        match (self.kind, backward) {
            (NormKind::Rms, false) => Op::RmsNorm(rms),
            (NormKind::Rms, true) => Op::RmsNormBackward(rms),
            (NormKind::Layer, false) => Op::LayerNorm(layer),
            (NormKind::Layer, true) => Op::LayerNormBackward(layer),
        }
    }
}

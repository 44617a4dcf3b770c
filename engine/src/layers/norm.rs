//! A norm of either kind, before attention or MLP, on heads, on the embeddings or below the output matrix.

use super::exec::{self, Exec, Result};
use super::sketch::{Piece, Sketch};
use crate::config::NormKind;
use crate::model::{Grads, Part, Place, Weights};
use zbench_kernels::{Buffer, DType, LayerNorm, Op, RmsNorm, View, ViewMut};

/// A norm over vectors of `cols`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// By the mean square, or to mean 0 and variance 1.
    pub kind: NormKind,
    /// The weight `[cols]`.
    pub weight: Place,
    /// The bias `[cols]`, behind the weight.
    pub bias: Option<Place>,
    /// Elements of a vector.
    pub cols: usize,
    /// Added to the mean square or variance.
    pub eps: f64,
}

const TERM: &str = "norms";

impl Norm {
    /// The normalised vectors, and the statistics that backward reads.
    pub fn forward(&self, ex: &Exec<'_>, w: &Weights<'_>, rows: usize, x: View<'_>) -> Result<[Buffer; 2]> {
        let mut y = ex.activation(rows * self.cols)?;
        let mut statistics = ex.statistic(self.statistics(rows))?;
        let (weight, to, saved) = (w.get(&self.weight), y.view_mut(), statistics.view_mut());
        match self.kind {
            NormKind::Rms => ex.kernels.rms_norm(&self.rms(rows, ex.compute, None), x, weight, to, saved)?,
            NormKind::Layer => {
                let bias = self.bias.as_ref().map(|bias| w.get(bias));
                ex.kernels.layer_norm(&self.layer(rows, ex.compute, None), x, weight, bias, to, saved)?;
            }
        }
        Ok([y, statistics])
    }

    /// States `forward`.
    pub fn forward_stated(&self, s: &mut Sketch<'_>, rows: usize) -> [Piece; 2] {
        let y = s.activation(rows * self.cols);
        let statistics = s.statistic(self.statistics(rows));
        s.op(
            TERM,
            match self.kind {
                NormKind::Rms => Op::RmsNorm(self.rms(rows, s.compute, None)),
                NormKind::Layer => Op::LayerNorm(self.layer(rows, s.compute, None)),
            },
        );
        [y, statistics]
    }

    /// `dx += ` the gradient of the input; adds the gradients of the weights that train.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        rows: usize,
        x: &Buffer,
        statistics: &Buffer,
        dy: &Buffer,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (dw, db) = g.pair(&self.weight, self.bias.as_ref());
        let gradient = dw.is_some().then_some(ex.gradients);
        let (x, weight, saved, dy) = (x.view(), w.get(&self.weight), statistics.view(), dy.view());
        match self.kind {
            NormKind::Rms => {
                let op = self.rms(rows, ex.compute, gradient);
                ex.kernels.rms_norm_backward(&op, x, weight, saved, dy, dx, dw)?;
            }
            NormKind::Layer => {
                let op = self.layer(rows, ex.compute, gradient);
                ex.kernels.layer_norm_backward(&op, x, weight, saved, dy, dx, dw, db)?;
            }
        }
        Ok(())
    }

    /// States `backward`.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, rows: usize) {
        let gradient = (self.weight.part == Part::Trainable).then_some(s.gradients);
        s.op(
            TERM,
            match self.kind {
                NormKind::Rms => Op::RmsNormBackward(self.rms(rows, s.compute, gradient)),
                NormKind::Layer => Op::LayerNormBackward(self.layer(rows, s.compute, gradient)),
            },
        );
    }

    /// As `backward` where nothing is to be added to: the gradient of the input in a buffer of its own.
    pub fn backward_alone(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        rows: usize,
        x: &Buffer,
        statistics: &Buffer,
        dy: &Buffer,
    ) -> Result<Buffer> {
        let mut dx = ex.activation(rows * self.cols)?;
        ex.kernels.fill(dx.view_mut(), 0.0)?;
        self.backward(ex, w, g, rows, x, statistics, dy, dx.view_mut())?;
        Ok(dx)
    }

    /// States `backward_alone`.
    pub fn backward_alone_stated(&self, s: &mut Sketch<'_>, rows: usize) -> Piece {
        let dx = s.activation(rows * self.cols);
        s.op(TERM, exec::fill(rows * self.cols, s.compute));
        self.backward_stated(s, rows);
        dx
    }

    /// Reciprocal deviations, and the means of the kind that takes them off.
    fn statistics(&self, rows: usize) -> usize {
        match self.kind {
            NormKind::Rms => rows,
            NormKind::Layer => 2 * rows,
        }
    }

    fn rms(&self, rows: usize, dtype: DType, gradient: Option<DType>) -> RmsNorm {
        RmsNorm { rows, cols: self.cols, eps: self.eps, dtype, gradient }
    }

    fn layer(&self, rows: usize, dtype: DType, gradient: Option<DType>) -> LayerNorm {
        LayerNorm { rows, cols: self.cols, eps: self.eps, bias: self.bias.is_some(), dtype, gradient }
    }
}

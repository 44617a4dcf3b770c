//! The top of the model: the last norm, the output matrix and the loss, forward and backward in one.
//!
//! Logits are made, turned into their gradient in place and used up in chunks of tokens, so that the whole
//! `[tokens, vocab]` matrix never exists.

use super::exec::{self, Exec, Result};
use super::norm::Norm;
use super::prepacked;
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Part, Place, Weights};
use zbench_kernels::{Buffer, CrossEntropy, DType, Gemm, Kernels, Op, Sum, View};

/// `logits = norm(x) W^T`, and the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The norm, in the head's unit.
    pub norm: Norm,
    /// W `[vocab, hidden]`, in the head's unit, or in the embedding's when tied.
    pub matrix: Place,
    /// W is the embedding's table.
    pub tied: bool,
    /// Rows of W.
    pub vocab: usize,
    /// Elements of a row.
    pub hidden: usize,
}

impl Head {
    /// The gradient by `x` of `scale` times the sum over tokens of the cross-entropy, which is added to `sums` in parts. `w`, `g` are the head's unit's,
    /// `matrix_w`, `matrix_g` those of the unit that holds W (the embedding's when tied).
    pub fn loss(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        matrix_w: &Weights<'_>,
        g: &mut Grads<'_>,
        mut tied_g: Option<&mut Grads<'_>>,
        x: Buffer,
        targets: View<'_>,
        scale: f64,
        sums: &mut Vec<Sum>,
    ) -> Result<Buffer> {
        let (n, hidden) = (ex.batch.tokens(), self.hidden);
        let [y, statistics] = self.norm.forward(ex, w, n, x.view())?;
        let mut dy = ex.activation(n * hidden)?;
        for start in (0..n).step_by(self.chunk(ex.kernels, n)) {
            let rows = self.chunk(ex.kernels, n).min(n - start);
            let span = start * hidden..(start + rows) * hidden;
            let matrix = matrix_w.get(&self.matrix);
            let mut logits = ex.statistic(rows * self.vocab)?;
            let (op, rows_of_y) = (self.logits(rows, ex.compute), y.slice(span.clone()));
            prepacked::product(ex, matrix_w, &self.matrix, op, rows_of_y, matrix, logits.view_mut())?;
            let mut losses = ex.statistic(rows)?;
            let op = self.cross_entropy(rows, scale, ex.compute);
            let wanted = targets.slice(start..start + rows);
            ex.kernels.cross_entropy(&op, logits.view_mut(), wanted, losses.view_mut())?;
            sums.push(ex.kernels.sum_later(losses.view())?);
            drop(losses);
            // It lies where the logits lay, in their type or in front of the buffer.
            let gradient = logits.view().reinterpret(ex.compute)?;
            let op = exec::product_input(rows, self.vocab, hidden, false, ex.compute);
            prepacked::product(ex, matrix_w, &self.matrix, op, gradient, matrix, dy.slice_mut(span.clone()))?;
            let dw = match &mut tied_g {
                Some(table) => table.get(&self.matrix),
                None => g.get(&self.matrix),
            };
            if let Some(dw) = dw {
                let op = exec::product_weight(rows, self.vocab, hidden, ex.compute, ex.gradients);
                ex.gemm(op, gradient, y.slice(span), dw)?;
            }
        }
        drop(y);
        let dx = self.norm.backward_alone(ex, w, g, n, &x, &statistics, &dy)?;
        Ok(dx)
    }

    /// States `loss`. All of it stands under forward, since it is one action.
    pub fn loss_stated(&self, s: &mut Sketch<'_>, x: Piece, scale: f64) -> Piece {
        let (n, hidden) = (s.batch.tokens(), self.hidden);
        let [y, statistics] = self.norm.forward_stated(s, n);
        let dy = s.activation(n * hidden);
        self.chunks_stated(s, |s, rows| {
            let logits = s.statistic(rows * self.vocab);
            prepacked::product_stated(s, "lm_head", &self.matrix, self.logits(rows, s.compute));
            let losses = s.statistic(rows);
            s.op("loss", Op::CrossEntropy(self.cross_entropy(rows, scale, s.compute)));
            s.op("loss", exec::sum(rows, s.compute.accumulator()));
            s.free(losses);
            let op = exec::product_input(rows, self.vocab, hidden, false, s.compute);
            prepacked::product_stated(s, "lm_head", &self.matrix, op);
            if self.matrix.part == Part::Trainable {
                s.op("lm_head", Op::Gemm(exec::product_weight(rows, self.vocab, hidden, s.compute, s.gradients)));
            }
            s.free(logits);
        });
        s.free(y);
        let dx = self.norm.backward_alone_stated(s, n);
        s.free_all([x, statistics, dy]);
        dx
    }

    /// The sum over tokens of the cross-entropy alone, in parts, by the operations that [`Head::loss`] has for it.
    pub fn score(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        matrix_w: &Weights<'_>,
        x: Buffer,
        targets: View<'_>,
        sums: &mut Vec<Sum>,
    ) -> Result<()> {
        let (n, hidden) = (ex.batch.tokens(), self.hidden);
        let [y, statistics] = self.norm.forward(ex, w, n, x.view())?;
        drop((x, statistics));
        for start in (0..n).step_by(self.chunk(ex.kernels, n)) {
            let rows = self.chunk(ex.kernels, n).min(n - start);
            let mut logits = ex.statistic(rows * self.vocab)?;
            let (op, rows_of_y) = (self.logits(rows, ex.compute), y.slice(start * hidden..(start + rows) * hidden));
            let matrix = matrix_w.get(&self.matrix);
            prepacked::product(ex, matrix_w, &self.matrix, op, rows_of_y, matrix, logits.view_mut())?;
            let mut losses = ex.statistic(rows)?;
            // The gradient takes the logits' place, and nobody reads it.
            let op = self.cross_entropy(rows, 1.0, ex.compute);
            let wanted = targets.slice(start..start + rows);
            ex.kernels.cross_entropy(&op, logits.view_mut(), wanted, losses.view_mut())?;
            sums.push(ex.kernels.sum_later(losses.view())?);
        }
        Ok(())
    }

    /// States `score`.
    pub fn score_stated(&self, s: &mut Sketch<'_>, x: Piece) {
        let n = s.batch.tokens();
        let [y, statistics] = self.norm.forward_stated(s, n);
        s.free_all([x, statistics]);
        self.chunks_stated(s, |s, rows| {
            let logits = s.statistic(rows * self.vocab);
            prepacked::product_stated(s, "lm_head", &self.matrix, self.logits(rows, s.compute));
            let losses = s.statistic(rows);
            s.op("loss", Op::CrossEntropy(self.cross_entropy(rows, 1.0, s.compute)));
            s.op("loss", exec::sum(rows, s.compute.accumulator()));
            s.free_all([losses, logits]);
        });
        s.free(y);
    }

    /// States what is done with each chunk of tokens; chunks of the same length are alike.
    fn chunks_stated(&self, s: &mut Sketch<'_>, mut state: impl FnMut(&mut Sketch<'_>, usize)) {
        let n = s.batch.tokens();
        let chunk = self.chunk(s.kernels(), n);
        s.times(n / chunk, |s| state(s, chunk));
        if !n.is_multiple_of(chunk) {
            state(s, n % chunk);
        }
    }

    /// Tokens whose logits exist at a time: one at least.
    fn chunk(&self, kernels: &dyn Kernels, tokens: usize) -> usize {
        (kernels.passing_elements() / self.vocab).clamp(1, tokens.max(1))
    }

    /// The product that makes the logits of `rows` tokens.
    pub(super) fn logits(&self, rows: usize, dtype: DType) -> Gemm {
        Gemm { c: dtype.accumulator(), ..exec::product_forward(rows, self.vocab, self.hidden, false, dtype) }
    }

    fn cross_entropy(&self, rows: usize, scale: f64, compute: DType) -> CrossEntropy {
        CrossEntropy { rows, vocab: self.vocab, scale, dtype: compute.accumulator(), gradient: compute }
    }
}

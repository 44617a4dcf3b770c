//! The top of the model: the last norm, the output matrix and the loss, forward and backward in one.
//!
//! Logits are made, turned into their gradient in place and used up in chunks of tokens, so that the whole
//! `[tokens, vocab]` matrix never exists.

use super::context::{self, LayerContext};
use super::norm::Norm;
use super::prepacked;
use super::tensor_split::TensorSplit;
use crate::compute::error::Result;
use crate::model::layers::{FlatRange, Grads, Weights};
use std::ops::Range;
use zbench_collectives::Communicator;
use zbench_kernels::{
    Buffer, CrossEntropy, DType, Gemm, Kernels, Op, Sum, View, ViewMut, VocabParallelCrossEntropy, VocabParallelStats,
};

/// `logits = norm(x) W^T`, and the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The norm, in the head's unit.
    pub norm: Norm,
    /// W `[vocab, hidden]`, in the head's unit, or in the embedding's when tied.
    pub matrix: FlatRange,
    /// W is the embedding's table.
    pub tied: bool,
    pub local_vocab: usize,
    /// Words of the whole vocabulary.
    pub vocab_size: usize,
    /// How ranks share W; `local_vocab` is what this one has.
    pub cut: TensorSplit,
    pub hidden: usize,
}

#[derive(Clone, Copy)]
pub struct HeadWeights<'a> {
    /// Of the head's unit.
    pub own: &'a Weights<'a>,
    /// Of the unit that holds W: the embedding's when tied.
    pub of_matrix: &'a Weights<'a>,
}

pub struct HeadGrads<'g> {
    /// Of the head's unit.
    pub own: &'g mut Grads<'g>,
    /// Of the embedding's unit, when W is its table.
    pub tied: Option<&'g mut Grads<'g>>,
}

/// Words of the vocabulary, of whose multiples products of logits are fast.
const ALIGNED: usize = 64;

const TERM: &str = "lm_head";
const LOSS: &str = "loss";

impl Head {
    /// The gradient by `x` of `scale` times the sum over tokens of the cross-entropy, which is added to `sums` in parts. All of it
    /// counts as forward, since it is one action.
    pub fn loss(
        &self,
        ex: &LayerContext<'_>,
        weights: HeadWeights<'_>,
        mut grads: HeadGrads<'_>,
        x: Buffer,
        (targets, scale): (View<'_>, f64),
        sums: &mut Vec<Sum>,
    ) -> Result<Buffer> {
        let (n, own, hidden) = (ex.batch.tokens(), ex.own_tokens().len(), self.hidden);
        let HeadWeights { own: w, of_matrix } = weights;
        let [y, statistics] = self.norm.forward(ex, w, own, x.view())?;
        let y = ex.whole_tokens(y)?;
        let mut dy = ex.activation(n * hidden)?;
        self.chunks(ex, |start, rows| {
            let span = start * hidden..(start + rows) * hidden;
            let matrix = of_matrix.get(&self.matrix);
            let logits =
                self.losses(ex, of_matrix, y.slice(span.clone()), targets.slice(start..start + rows), scale, sums)?;
            // It lies where the logits lay, in their type or in front of the buffer.
            let gradient = logits.view().reinterpret(ex.compute)?;
            let pitch_a = self.pitch(ex.kernels);
            for part in self.parts(ex.kernels) {
                let of_part = part.start * hidden..part.end * hidden;
                let op = context::product_input(rows, part.len(), hidden, part.start > 0, ex.compute);
                let (op, gradient) = (Gemm { pitch_a, ..op }, gradient.slice(part.start..gradient.len()));
                let (operands, dy) = ([gradient, matrix.slice(of_part.clone())], dy.slice_mut(span.clone()));
                self.product(ex, of_matrix, op, operands, dy)?;
                let of_matrix_grads = grads.tied.as_deref_mut().unwrap_or(&mut *grads.own);
                if let Some(mut dw) = of_matrix_grads.get(&self.matrix) {
                    let op = context::product_weight(rows, part.len(), hidden, ex.compute, ex.gradients);
                    let op = Gemm { pitch_a, ..op };
                    ex.gemm(TERM, op, gradient, y.slice(span.clone()), dw.slice_mut(of_part))?;
                }
            }
            Ok(())
        })?;
        drop(y);
        if let TensorSplit::ColumnParallel(axis) = self.cut {
            dy = ex.sum_of_tokens(axis, dy)?;
        }
        self.norm.backward_alone(ex, w, grads.own, own, [&x, &statistics, &dy])
    }

    /// The sum over tokens of the cross-entropy alone, in parts, by the operations that [`Head::loss`] has for it.
    pub fn score(
        &self,
        ex: &LayerContext<'_>,
        weights: HeadWeights<'_>,
        x: Buffer,
        targets: View<'_>,
        sums: &mut Vec<Sum>,
    ) -> Result<()> {
        let hidden = self.hidden;
        let HeadWeights { own: w, of_matrix } = weights;
        let [y, statistics] = self.norm.forward(ex, w, ex.own_tokens().len(), x.view())?;
        drop((x, statistics));
        let y = ex.whole_tokens(y)?;
        self.chunks(ex, |start, rows| {
            // The gradient takes the logits' place, and nobody reads it.
            let rows_of_y = y.slice(start * hidden..(start + rows) * hidden);
            self.losses(ex, of_matrix, rows_of_y, targets.slice(start..start + rows), 1.0, sums).map(drop)
        })
    }

    /// Adds the losses of tokens whose last hidden states are `y` to `sums`; the gradient of their logits.
    fn losses(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        y: View<'_>,
        targets: View<'_>,
        scale: f64,
        sums: &mut Vec<Sum>,
    ) -> Result<Buffer> {
        let (rows, dtype) = (targets.len(), ex.compute.accumulator());
        let pitch = self.pitch(ex.kernels);
        let mut logits = ex.statistic(rows * pitch)?;
        let matrix = weights.get(&self.matrix);
        for part in self.parts(ex.kernels) {
            let operands = [y, matrix.slice(part.start * self.hidden..part.end * self.hidden)];
            let op = Gemm { n: part.len(), pitch_c: pitch, ..self.logits(rows, ex.compute) };
            self.product(ex, weights, op, operands, logits.slice_mut(part.start..rows * pitch))?;
        }
        let mut losses = ex.statistic(rows)?;
        let mut writes = [logits.view_mut(), losses.view_mut()];
        let group = if let TensorSplit::ColumnParallel(axis) = self.cut { ex.group(axis) } else { None };
        if let Some(group) = group {
            let part = VocabParallelStats {
                rows,
                vocab: self.cut.vocab_part(ex, self.local_vocab, self.vocab_size),
                dtype,
                pitch,
            };
            let mut own = ex.statistic(rows * VocabParallelStats::NUMBERS)?;
            ex.run(LOSS, &Op::VocabParallelStats(part), &[targets, writes[0].as_view()], &mut [own.view_mut()])?;
            let mut all = ex.statistic(group.size() * own.len())?;
            ex.waiting(|| group.all_gather(own.view(), all.view_mut()))?;
            let op = VocabParallelCrossEntropy { part, ranks: group.size(), scale, gradient: ex.compute };
            ex.run(LOSS, &Op::VocabParallelCrossEntropy(op), &[targets, all.view()], &mut writes)?;
        } else {
            let op = CrossEntropy { rows, vocab: self.local_vocab, scale, dtype, gradient: ex.compute, pitch };
            ex.run(LOSS, &Op::CrossEntropy(op), &[targets], &mut writes)?;
        }
        sums.push(ex.sum(LOSS, losses.view())?);
        Ok(logits)
    }

    /// Elements from one row of logits to the next.
    fn pitch(&self, kernels: &dyn Kernels) -> usize {
        kernels.logits_pitch(self.local_vocab)
    }

    /// The vocabulary in the parts that products take: where rows of logits lie apart, as many words as products are fast with, and the
    /// rest.
    fn parts(&self, kernels: &dyn Kernels) -> impl Iterator<Item = Range<usize>> + use<> {
        let whole = if self.pitch(kernels) == self.local_vocab {
            self.local_vocab
        } else {
            self.local_vocab / ALIGNED * ALIGNED
        };
        [0..whole, whole..self.local_vocab].into_iter().filter(|part| !part.is_empty())
    }

    /// A product with the matrix, in the form in which it is kept where all of it is taken.
    fn product(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        op: Gemm,
        operands: [View<'_>; 2],
        to: ViewMut<'_>,
    ) -> Result<()> {
        if op.is_dense() {
            return prepacked::product(ex, TERM, weights, &self.matrix, op, operands, to);
        }
        let [a, b] = operands;
        ex.gemm(TERM, op, a, b, to)
    }

    /// Does `work` for one chunk of tokens after the other: which is the first, and how many there are.
    fn chunks(&self, ex: &LayerContext<'_>, mut work: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
        let n = ex.batch.tokens();
        let chunk = self.chunk(ex.kernels, n);
        ex.times(n / chunk, |number| work(number * chunk, chunk))?;
        match n % chunk {
            0 => Ok(()),
            rest => work(n - rest, rest),
        }
    }

    /// Tokens whose logits exist at a time: one at least.
    fn chunk(&self, kernels: &dyn Kernels, tokens: usize) -> usize {
        (kernels.logits_chunk_len() / self.pitch(kernels)).clamp(1, tokens.max(1))
    }

    /// The product that makes the logits of `rows` tokens.
    pub fn logits(&self, rows: usize, dtype: DType) -> Gemm {
        Gemm { c: dtype.accumulator(), ..context::product_forward(rows, self.local_vocab, self.hidden, false, dtype) }
    }
}

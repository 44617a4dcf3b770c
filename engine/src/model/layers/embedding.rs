//! The bottom of the model: a table look-up, and what some families do to its result.

use super::context::LayerContext;
use super::norm::Norm;
use super::tensor_split::TensorSplit;
use crate::compute::error::Result;
use crate::model::layers::{FlatRange, Grads, Weights};
use zbench_kernels::{BiasAdd, Buffer, DType, Op, View, VocabPart};

/// `x[t] = norm(scale * table[ids[t]] + positions[t % seq])`; where sequences hold several documents, the position is the
/// place in the document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// The table `[vocab, hidden]`: what this rank has of it.
    pub table: FlatRange,
    pub local_vocab: usize,
    /// Words of the whole vocabulary.
    pub vocab_size: usize,
    /// How ranks share the table.
    pub cut: TensorSplit,
    /// The token whose row has no gradient from look-ups.
    pub padding: Option<u32>,
    pub hidden: usize,
    /// Learned positions `[longest sequence, hidden]`. Where the embedding has a second unit, they and the norm are in that.
    pub positions: Option<FlatRange>,
    /// The norm behind the sum.
    pub norm: Option<Norm>,
    /// Factor on the look-up.
    pub scale: Option<f64>,
}

const TERM: &str = "embedding";

impl Embedding {
    pub fn reads_weights(&self) -> bool {
        self.norm.is_some()
    }

    fn op(&self, rows: usize, dtype: DType) -> zbench_kernels::Embedding {
        let vocab = VocabPart::whole(self.vocab_size);
        zbench_kernels::Embedding { rows, cols: self.hidden, vocab, padding: self.padding, dtype }
    }

    /// The look-up in what this rank has of the table.
    fn own_op(&self, ex: &LayerContext<'_>) -> zbench_kernels::Embedding {
        let vocab = self.cut.vocab_part(ex, self.local_vocab, self.vocab_size);
        zbench_kernels::Embedding { vocab, ..self.op(ex.batch.tokens(), ex.compute) }
    }

    /// The look-up of positions where they are places in documents.
    fn place_op(&self, positions: &FlatRange, rows: usize, dtype: DType) -> zbench_kernels::Embedding {
        let vocab = VocabPart::whole(positions.len / self.hidden);
        zbench_kernels::Embedding { vocab, padding: None, ..self.op(rows, dtype) }
    }

    fn places(&self, batch: &super::Batch, dtype: DType) -> BiasAdd {
        BiasAdd { rows: batch.tokens(), period: batch.seq, cols: self.hidden, dtype }
    }

    /// The residual stream at its start.
    pub fn forward(&self, ex: &LayerContext<'_>, w: &Weights<'_>, ids: View<'_>) -> Result<Buffer> {
        let sum = self.sum(ex, w, ids)?;
        let made = match &self.norm {
            Some(norm) => {
                let [y, _] = norm.forward(ex, w.of_second(), ex.batch.tokens(), sum.view())?;
                y
            }
            None => sum,
        };
        let own = ex.own_tokens();
        if own.len() == ex.batch.tokens() {
            return Ok(made);
        }
        let mut part = ex.activation(own.len() * self.hidden)?;
        ex.cast(TERM, made.slice(own.start * self.hidden..own.end * self.hidden), part.view_mut())?;
        Ok(part)
    }

    fn sum(&self, ex: &LayerContext<'_>, w: &Weights<'_>, ids: View<'_>) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut out = ex.activation(n * self.hidden)?;
        ex.run(TERM, &Op::Embedding(self.own_op(ex)), &[ids, w.get(&self.table)], &mut [out.view_mut()])?;
        if let TensorSplit::ColumnParallel(axis) = self.cut {
            // Every word is on one rank; the others have zeros.
            ex.sum_over(axis, &mut out)?;
        }
        if let Some(scale) = self.scale {
            ex.scale(TERM, scale, out.view_mut())?;
        }
        match (&self.positions, ex.places()) {
            (Some(positions), Some(places)) => {
                let mut of_places = ex.activation(n * self.hidden)?;
                let op = Op::Embedding(self.place_op(positions, n, ex.compute));
                ex.run(TERM, &op, &[places, w.of_second().get(positions)], &mut [of_places.view_mut()])?;
                ex.accumulate(TERM, of_places.view(), out.view_mut())?;
            }
            (Some(positions), None) => {
                let op = Op::BiasAdd(self.places(&ex.batch, ex.compute));
                ex.run(TERM, &op, &[w.of_second().get(positions)], &mut [out.view_mut()])?;
            }
            (None, _) => {}
        }
        Ok(out)
    }

    /// Adds the gradients of what trains. The norm's input is looked up again: kept, it would live through the whole step.
    pub fn backward(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        ids: View<'_>,
        mut dx: Buffer,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        dx = ex.whole_tokens(dx)?;
        if let Some(norm) = &self.norm {
            let (sum, statistics) = ex.again(|| {
                let sum = self.sum(ex, w, ids)?;
                let [_, statistics] = norm.forward(ex, w.of_second(), n, sum.view())?;
                Ok((sum, statistics))
            })?;
            dx = norm.backward_alone(ex, w.of_second(), &mut g.of_second(), n, [&sum, &statistics, &dx])?;
        }
        let mut second = g.of_second();
        let of_positions = self.positions.as_ref().and_then(|place| Some((place, second.get(place)?)));
        if let Some((positions, dpositions)) = of_positions {
            match ex.places() {
                Some(places) => {
                    let op = Op::EmbeddingBackward(self.place_op(positions, n, ex.compute));
                    ex.run(TERM, &op, &[places, dx.view()], &mut [dpositions])?;
                }
                None => {
                    let op = Op::BiasAddBackward(self.places(&ex.batch, ex.compute));
                    ex.run(TERM, &op, &[dx.view()], &mut [dpositions])?;
                }
            }
        }
        if let Some(scale) = self.scale {
            ex.scale(TERM, scale, dx.view_mut())?;
        }
        let Some(dtable) = g.get(&self.table) else { return Ok(()) };
        ex.run(TERM, &Op::EmbeddingBackward(self.own_op(ex)), &[ids, dx.view()], &mut [dtable])
    }
}

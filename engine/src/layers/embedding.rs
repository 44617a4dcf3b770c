//! The bottom of the model: a table look-up, and what some families do to its result.

use super::exec::{self, Exec, Result};
use super::norm::Norm;
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Place, Weights};
use zbench_kernels::{AddRows, Buffer, DType, Op, View};

/// `x[t] = norm(scale * table[ids[t]] + positions[t % seq])`; where sequences hold several documents, the position is the
/// place in the document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// The table `[vocab, hidden]`.
    pub table: Place,
    /// Rows of the table.
    pub vocab: usize,
    /// The token whose row has no gradient from look-ups.
    pub padding: Option<u32>,
    /// Elements of a row.
    pub hidden: usize,
    /// Learned positions `[longest sequence, hidden]`.
    pub positions: Option<Place>,
    /// The norm behind the sum.
    pub norm: Option<Norm>,
    /// Factor on the look-up.
    pub scale: Option<f64>,
}

const TERM: &str = "embedding";

impl Embedding {
    /// Whether backward reads the unit's weights.
    pub fn reads_weights(&self) -> bool {
        self.norm.is_some()
    }

    fn op(&self, rows: usize, dtype: DType) -> zbench_kernels::Embedding {
        zbench_kernels::Embedding { rows, cols: self.hidden, vocab: self.vocab, padding: self.padding, dtype }
    }

    /// The look-up of positions where they are places in documents.
    fn place_op(&self, positions: &Place, rows: usize, dtype: DType) -> zbench_kernels::Embedding {
        let vocab = positions.len / self.hidden;
        zbench_kernels::Embedding { rows, cols: self.hidden, vocab, padding: None, dtype }
    }

    fn places(&self, batch: &super::Batch, dtype: DType) -> AddRows {
        AddRows { rows: batch.tokens(), period: batch.seq, cols: self.hidden, dtype }
    }

    /// The residual stream at its start.
    pub fn forward(&self, ex: &Exec<'_>, w: &Weights<'_>, ids: View<'_>) -> Result<Buffer> {
        let sum = self.sum(ex, w, ids)?;
        let Some(norm) = &self.norm else { return Ok(sum) };
        let [y, _] = norm.forward(ex, w, ex.batch.tokens(), sum.view())?;
        Ok(y)
    }

    /// States `forward`.
    pub fn forward_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let sum = self.sum_stated(s);
        let Some(norm) = &self.norm else { return sum };
        let [y, statistics] = norm.forward_stated(s, s.batch.tokens());
        s.free_all([statistics, sum]);
        y
    }

    fn sum(&self, ex: &Exec<'_>, w: &Weights<'_>, ids: View<'_>) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut out = ex.activation(n * self.hidden)?;
        ex.kernels.embedding(&self.op(n, ex.compute), ids, w.get(&self.table), out.view_mut())?;
        if let Some(scale) = self.scale {
            ex.kernels.scale(scale, out.view_mut())?;
        }
        match (&self.positions, ex.places()) {
            (Some(positions), Some(places)) => {
                let mut of_places = ex.activation(n * self.hidden)?;
                let op = self.place_op(positions, n, ex.compute);
                ex.kernels.embedding(&op, places, w.get(positions), of_places.view_mut())?;
                ex.kernels.accumulate(1.0, of_places.view(), out.view_mut())?;
            }
            (Some(positions), None) => {
                ex.kernels.add_rows(&self.places(&ex.batch, ex.compute), w.get(positions), out.view_mut())?;
            }
            (None, _) => {}
        }
        Ok(out)
    }

    fn sum_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let n = s.batch.tokens();
        let out = s.activation(n * self.hidden);
        s.op(TERM, Op::Embedding(self.op(n, s.compute)));
        if self.scale.is_some() {
            s.op(TERM, exec::scale(n * self.hidden, s.compute));
        }
        match &self.positions {
            Some(positions) if s.batch.documents => {
                let of_places = s.activation(n * self.hidden);
                s.op(TERM, Op::Embedding(self.place_op(positions, n, s.compute)));
                s.op(TERM, exec::accumulate(n * self.hidden, s.compute, s.compute));
                s.free(of_places);
            }
            Some(_) => s.op(TERM, Op::AddRows(self.places(&s.batch, s.compute))),
            None => {}
        }
        out
    }

    /// Adds the gradients of what trains. The norm's input is looked up again: kept, it would live through the whole step.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        ids: View<'_>,
        mut dx: Buffer,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        if let Some(norm) = &self.norm {
            let sum = self.sum(ex, w, ids)?;
            let [y, statistics] = norm.forward(ex, w, n, sum.view())?;
            drop(y);
            dx = norm.backward_alone(ex, w, g, n, &sum, &statistics, &dx)?;
        }
        if let Some((positions, dpositions)) = self.positions.as_ref().and_then(|place| Some((place, g.get(place)?))) {
            match ex.places() {
                Some(places) => {
                    let op = self.place_op(positions, n, ex.compute);
                    ex.kernels.embedding_backward(&op, places, dx.view(), dpositions)?;
                }
                None => ex.kernels.add_rows_backward(&self.places(&ex.batch, ex.compute), dx.view(), dpositions)?,
            }
        }
        if let Some(scale) = self.scale {
            ex.kernels.scale(scale, dx.view_mut())?;
        }
        let Some(dtable) = g.get(&self.table) else { return Ok(()) };
        Ok(ex.kernels.embedding_backward(&self.op(n, ex.compute), ids, dx.view(), dtable)?)
    }

    /// States `backward`, which is planned only where the table trains.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, mut dx: Piece) {
        let n = s.batch.tokens();
        if let Some(norm) = &self.norm {
            let (sum, statistics) = s.again(|s| {
                let sum = self.sum_stated(s);
                let [y, statistics] = norm.forward_stated(s, n);
                s.free(y);
                (sum, statistics)
            });
            let through = norm.backward_alone_stated(s, n);
            s.free_all([statistics, sum, dx]);
            dx = through;
        }
        match &self.positions {
            Some(positions) if s.batch.documents => {
                s.op(TERM, Op::EmbeddingBackward(self.place_op(positions, n, s.compute)));
            }
            Some(_) => s.op(TERM, Op::AddRowsBackward(self.places(&s.batch, s.compute))),
            None => {}
        }
        if self.scale.is_some() {
            s.op(TERM, exec::scale(n * self.hidden, s.compute));
        }
        s.op(TERM, Op::EmbeddingBackward(self.op(n, s.compute)));
        s.free(dx);
    }
}

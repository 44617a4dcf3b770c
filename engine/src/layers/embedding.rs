//! The table look-up at the bottom of the model.

use super::exec::{Exec, Result};
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Place, Weights};
use zbench_kernels::{Buffer, Op, View};

/// `x[t] = table[ids[t]]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// The table `[vocab, hidden]`.
    pub table: Place,
    /// Rows of the table.
    pub vocab: usize,
    /// Elements of a row.
    pub hidden: usize,
}

impl Embedding {
    fn op(&self, rows: usize, dtype: zbench_kernels::DType) -> zbench_kernels::Embedding {
        zbench_kernels::Embedding { rows, cols: self.hidden, vocab: self.vocab, dtype }
    }

    /// The residual stream at its start.
    pub fn forward(&self, ex: &Exec<'_>, w: &Weights<'_>, ids: View<'_>) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut out = ex.activation(n * self.hidden)?;
        ex.kernels.embedding(&self.op(n, ex.compute), ids, w.get(&self.table), out.view_mut())?;
        Ok(out)
    }

    /// States `forward`.
    pub fn forward_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let n = s.batch.tokens();
        let out = s.activation(n * self.hidden);
        s.op("embedding", Op::Embedding(self.op(n, s.compute)));
        out
    }

    /// Adds the table's gradient.
    pub fn backward(&self, ex: &Exec<'_>, g: &mut Grads<'_>, ids: View<'_>, dx: Buffer) -> Result<()> {
        let Some(dtable) = g.get(&self.table) else { return Ok(()) };
        Ok(ex.kernels.embedding_backward(&self.op(ex.batch.tokens(), ex.compute), ids, dx.view(), dtable)?)
    }

    /// States `backward`, which is planned only where the table trains.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, dx: Piece) {
        s.op("embedding", Op::EmbeddingBackward(self.op(s.batch.tokens(), s.compute)));
        s.free(dx);
    }
}

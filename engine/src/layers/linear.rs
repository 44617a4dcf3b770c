//! A linear layer, with or without a bias and a low-rank adapter.

use super::exec::{Batch, Exec, Result, accumulate as accumulate_op, product_forward, product_input, product_weight};
use super::sketch::{Piece, Sketch};
use crate::model::{Grads, Part, Place, Weights};
use zbench_kernels::{AddRows, Buffer, DType, Dropout, Gemm, Op, Packed, View, ViewMut};

/// `y = x W^T (+ b) (+ scale * dropout(x) A^T B^T)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearSpec {
    /// W `[out, input]`.
    pub weight: Place,
    /// How W is kept, where that is in few bits.
    pub packed: Option<Packed>,
    /// b `[out]`.
    pub bias: Option<Place>,
    /// Elements of an output vector.
    pub out: usize,
    /// Elements of an input vector.
    pub input: usize,
    /// The adapter, if the layer has one.
    pub adapter: Option<AdapterSpec>,
    /// Its name in the FLOP ledger.
    pub name: &'static str,
}

/// A low-rank adapter. Backward recomputes `dropout(x)` and its product with A: they are a small share of the layer's
/// work, and keeping them would cost memory in every policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterSpec {
    /// A `[rank, input]`.
    pub a: Place,
    /// B `[out, rank]`.
    pub b: Place,
    /// Rows of A.
    pub rank: usize,
    /// alpha / rank.
    pub scale: f32,
    /// Chance that an element of the adapter's input is zeroed.
    pub dropout: f64,
    /// The stream of the dropout's random numbers.
    pub stream: u64,
}

const ADAPTER: &str = "adapters";

impl LinearSpec {
    /// Whether backward reads the layer's input: a frozen weight without an adapter has no gradient that needs it.
    pub fn reads_input(&self) -> bool {
        self.weight.part == Part::Trainable || self.adapter.is_some()
    }

    fn bias_op(&self, rows: usize, dtype: DType) -> AddRows {
        AddRows { rows, period: 1, cols: self.out, dtype }
    }

    /// `y (+)= layer(x)`.
    pub fn forward(
        &self,
        ex: &Exec<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        accumulate: bool,
        mut y: ViewMut<'_>,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let op = product_forward(n, self.out, self.input, accumulate, ex.compute);
        let matrix = self.matrix(ex, weights)?;
        ex.gemm(op, x, matrix.view(), y.reborrow())?;
        drop(matrix);
        if let Some(bias) = &self.bias {
            ex.kernels.add_rows(&self.bias_op(n, ex.compute), weights.get(bias), y.reborrow())?;
        }
        let Some(adapter) = &self.adapter else { return Ok(()) };
        let dropped = adapter.dropped(ex, self.input, x)?;
        let x = dropped.as_ref().map_or(x, Buffer::view);
        let low = adapter.reduce(ex, self.input, weights, x)?;
        ex.gemm(adapter.expand(n, self.out, ex.compute), low.view(), weights.get(&adapter.b), y)
    }

    /// States `forward`.
    pub fn forward_stated(&self, s: &mut Sketch<'_>, accumulate: bool) {
        let n = s.batch.tokens();
        let matrix = self.matrix_stated(s);
        s.op(self.name, Op::Gemm(product_forward(n, self.out, self.input, accumulate, s.compute)));
        s.free_all(matrix);
        if self.bias.is_some() {
            s.op(self.name, Op::AddRows(self.bias_op(n, s.compute)));
        }
        let Some(adapter) = &self.adapter else { return };
        let dropped = adapter.dropped_stated(s, self.input);
        let low = adapter.reduce_stated(s, self.input);
        s.op(ADAPTER, Op::Gemm(adapter.expand(n, self.out, s.compute)));
        s.free(low);
        s.free_all(dropped);
    }

    /// `dx (+)= ` the gradient of the input; adds the gradients of the weights that train.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        x: View<'_>,
        dy: View<'_>,
        accumulate: bool,
        mut dx: ViewMut<'_>,
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let op = product_input(n, self.out, self.input, accumulate, ex.compute);
        let matrix = self.matrix(ex, weights)?;
        ex.gemm(op, dy, matrix.view(), dx.reborrow())?;
        drop(matrix);
        if let Some(dw) = grads.get(&self.weight) {
            ex.gemm(product_weight(n, self.out, self.input, ex.compute, ex.gradients), dy, x, dw)?;
        }
        if let Some(db) = self.bias.as_ref().and_then(|bias| grads.get(bias)) {
            ex.kernels.add_rows_backward(&self.bias_op(n, ex.compute), dy, db)?;
        }
        let Some(adapter) = &self.adapter else { return Ok(()) };
        adapter.backward(ex, self, weights, grads, x, dy, dx)
    }

    /// States `backward`.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, accumulate: bool) {
        let n = s.batch.tokens();
        let matrix = self.matrix_stated(s);
        s.op(self.name, Op::Gemm(product_input(n, self.out, self.input, accumulate, s.compute)));
        s.free_all(matrix);
        if self.weight.part == Part::Trainable {
            s.op(self.name, Op::Gemm(product_weight(n, self.out, self.input, s.compute, s.gradients)));
        }
        if self.bias.is_some_and(|bias| bias.part == Part::Trainable) {
            s.op(self.name, Op::AddRowsBackward(self.bias_op(n, s.compute)));
        }
        if let Some(adapter) = &self.adapter {
            adapter.backward_stated(s, self);
        }
    }
}

impl AdapterSpec {
    fn dropout_op(&self, batch: &Batch, input: usize, dtype: DType) -> Dropout {
        let first = batch.first_sample.wrapping_mul(batch.seq as u64).wrapping_mul(input as u64);
        let seed = batch.seed ^ self.stream.rotate_left(32);
        Dropout { len: batch.tokens() * input, p: self.dropout, seed, first, dtype }
    }

    fn dropped(&self, ex: &Exec<'_>, input: usize, x: View<'_>) -> Result<Option<Buffer>> {
        if self.dropout == 0.0 {
            return Ok(None);
        }
        let mut dropped = ex.activation(ex.batch.tokens() * input)?;
        ex.kernels.dropout(&self.dropout_op(&ex.batch, input, ex.compute), x, dropped.view_mut())?;
        Ok(Some(dropped))
    }

    fn dropped_stated(&self, s: &mut Sketch<'_>, input: usize) -> Option<Piece> {
        (self.dropout != 0.0).then(|| {
            let piece = s.activation(s.batch.tokens() * input);
            s.op(ADAPTER, Op::Dropout(self.dropout_op(&s.batch, input, s.compute)));
            piece
        })
    }

    /// `x A^T`.
    fn reduce(&self, ex: &Exec<'_>, input: usize, weights: &Weights<'_>, x: View<'_>) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut low = ex.activation(n * self.rank)?;
        let op = product_forward(n, self.rank, input, false, ex.compute);
        ex.gemm(op, x, weights.get(&self.a), low.view_mut())?;
        Ok(low)
    }

    fn reduce_stated(&self, s: &mut Sketch<'_>, input: usize) -> Piece {
        let n = s.batch.tokens();
        let low = s.activation(n * self.rank);
        s.op(ADAPTER, Op::Gemm(product_forward(n, self.rank, input, false, s.compute)));
        low
    }

    /// `y += scale * low B^T`.
    fn expand(&self, n: usize, out: usize, dtype: DType) -> Gemm {
        Gemm { alpha: self.scale, ..product_forward(n, out, self.rank, true, dtype) }
    }

    fn backward(
        &self,
        ex: &Exec<'_>,
        linear: &LinearSpec,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        x: View<'_>,
        dy: View<'_>,
        mut dx: ViewMut<'_>,
    ) -> Result<()> {
        let (n, out, input) = (ex.batch.tokens(), linear.out, linear.input);
        let dropped = self.dropped(ex, input, x)?;
        let x = dropped.as_ref().map_or(x, Buffer::view);
        let low = self.reduce(ex, input, weights, x)?;
        if let Some(db) = grads.get(&self.b) {
            let op = Gemm { alpha: self.scale, ..product_weight(n, out, self.rank, ex.compute, ex.gradients) };
            ex.gemm(op, dy, low.view(), db)?;
        }
        drop(low);
        let mut dlow = ex.activation(n * self.rank)?;
        let op = Gemm { alpha: self.scale, ..product_input(n, out, self.rank, false, ex.compute) };
        ex.gemm(op, dy, weights.get(&self.b), dlow.view_mut())?;
        if let Some(da) = grads.get(&self.a) {
            ex.gemm(product_weight(n, self.rank, input, ex.compute, ex.gradients), dlow.view(), x, da)?;
        }
        let back = product_input(n, self.rank, input, dropped.is_none(), ex.compute);
        let Some(mut through) = dropped else {
            return ex.gemm(back, dlow.view(), weights.get(&self.a), dx);
        };
        // The dropped input is not needed any more: its buffer takes the gradient, then the same mask.
        ex.gemm(back, dlow.view(), weights.get(&self.a), through.view_mut())?;
        let mut masked = ex.activation(n * input)?;
        ex.kernels.dropout(&self.dropout_op(&ex.batch, input, ex.compute), through.view(), masked.view_mut())?;
        Ok(ex.kernels.accumulate(1.0, masked.view(), dx.reborrow())?)
    }

    fn backward_stated(&self, s: &mut Sketch<'_>, linear: &LinearSpec) {
        let (n, out, input) = (s.batch.tokens(), linear.out, linear.input);
        let dropped = self.dropped_stated(s, input);
        let low = s.again(|s| self.reduce_stated(s, input));
        s.op(
            ADAPTER,
            Op::Gemm(Gemm { alpha: self.scale, ..product_weight(n, out, self.rank, s.compute, s.gradients) }),
        );
        s.free(low);
        let dlow = s.activation(n * self.rank);
        s.op(ADAPTER, Op::Gemm(Gemm { alpha: self.scale, ..product_input(n, out, self.rank, false, s.compute) }));
        s.op(ADAPTER, Op::Gemm(product_weight(n, self.rank, input, s.compute, s.gradients)));
        s.op(ADAPTER, Op::Gemm(product_input(n, self.rank, input, dropped.is_none(), s.compute)));
        if let Some(through) = dropped {
            let masked = s.activation(n * input);
            s.op(ADAPTER, Op::Dropout(self.dropout_op(&s.batch, input, s.compute)));
            s.op(ADAPTER, accumulate_op(n * input, s.compute, s.compute));
            s.free(masked);
            s.free(through);
        }
        s.free(dlow);
    }
}

//! Low-rank products beside linear layers (LoRA).

use super::context::{LayerContext, product_forward, product_input, product_weight};
use super::tensor_split::TensorSplit;
use crate::compute::error::Result;
use crate::model::layers::{FlatRange, Grads, Weights};
use zbench_kernels::{Buffer, DType, Dropout, Gemm, Op, View, ViewMut};

/// `scale * dropout(x) A^T B^T` for `N` layers that read the same x: each has its own B. More than one where a family
/// fuses them into one tensor: PEFT's adapter of that tensor has one A, and drops out of x once.
///
/// Backward makes `dropout(x)` and its product with A again: they are a small share of the layer's work, and keeping them
/// would cost memory in every policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterSpec<const N: usize = 1> {
    /// A `[rank, input]`.
    pub a: FlatRange,
    /// B `[out, rank]` and its rows, of each layer.
    pub b: [(FlatRange, usize); N],
    /// What this rank has of the layers: of their rows, it has those of B; of their columns, those of A.
    pub cut: TensorSplit,
    pub input: usize,
    pub rank: usize,
    /// alpha / rank, or alpha over the root of rank.
    pub scale: f32,
    /// Chance that an element of the adapter's input is zeroed.
    pub dropout: f64,
    /// The stream of the dropout's random numbers.
    pub stream: u64,
}

pub(super) const ADAPTER: &str = "adapters";

impl<const N: usize> AdapterSpec<N> {
    /// `y += adapter(x)` for every layer's y.
    pub fn forward(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        x: View<'_>,
        ys: [ViewMut<'_>; N],
    ) -> Result<()> {
        let n = ex.batch.tokens();
        let dropped = self.dropped(ex, x)?;
        let x = dropped.as_ref().map_or(x, Buffer::view);
        let low = self.reduce(ex, weights, x)?;
        for ((b, out), y) in self.b.iter().zip(ys) {
            ex.gemm(ADAPTER, self.expand(n, *out, ex.compute), low.view(), weights.get(b), y)?;
        }
        Ok(())
    }

    /// Ranks that read columns of their own drop at random independently of each other.
    fn dropout_op(&self, ex: &LayerContext<'_>) -> Dropout {
        let (batch, dtype) = (&ex.batch, ex.compute);
        let first = batch.first_token.wrapping_mul(self.input as u64);
        let rank = if let TensorSplit::RowParallel(_) = self.cut { self.cut.place(ex) as u64 } else { 0 };
        let seed = batch.seed ^ self.stream.wrapping_add(rank);
        Dropout { len: batch.tokens() * self.input, p: self.dropout, seed, first, dtype }
    }

    fn dropped(&self, ex: &LayerContext<'_>, x: View<'_>) -> Result<Option<Buffer>> {
        if self.dropout == 0.0 || ex.evaluates {
            return Ok(None);
        }
        let mut dropped = ex.activation(ex.batch.tokens() * self.input)?;
        let op = Op::Dropout(self.dropout_op(ex));
        ex.run(ADAPTER, &op, &[x], &mut [dropped.view_mut()])?;
        Ok(Some(dropped))
    }

    /// `x A^T`.
    fn reduce(&self, ex: &LayerContext<'_>, weights: &Weights<'_>, x: View<'_>) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut low = ex.activation(n * self.rank)?;
        let op = product_forward(n, self.rank, self.input, false, ex.compute);
        ex.gemm(ADAPTER, op, x, weights.get(&self.a), low.view_mut())?;
        Ok(low)
    }

    /// `y += scale * low B^T`.
    fn expand(&self, n: usize, out: usize, dtype: DType) -> Gemm {
        Gemm { alpha: self.scale, ..product_forward(n, out, self.rank, true, dtype) }
    }

    /// The gradient of B.
    fn b_gradient(&self, n: usize, out: usize, dtype: DType, gradients: DType) -> Gemm {
        Gemm { alpha: self.scale, ..product_weight(n, out, self.rank, dtype, gradients) }
    }

    /// The gradient of `x A^T`, summed over the layers.
    fn low_gradient(&self, n: usize, out: usize, number: usize, dtype: DType) -> Gemm {
        Gemm { alpha: self.scale, ..product_input(n, out, self.rank, number > 0, dtype) }
    }

    /// `dx +=` the gradient of the input; adds the gradients of A and of every B.
    pub fn backward(
        &self,
        ex: &LayerContext<'_>,
        weights: &Weights<'_>,
        grads: &mut Grads<'_>,
        x: View<'_>,
        dys: [View<'_>; N],
        mut dx: ViewMut<'_>,
    ) -> Result<()> {
        let (n, input) = (ex.batch.tokens(), self.input);
        let dropped = self.dropped(ex, x)?;
        let x = dropped.as_ref().map_or(x, Buffer::view);
        let low = ex.again(|| self.reduce(ex, weights, x))?;
        for ((b, out), dy) in self.b.iter().zip(dys) {
            if let Some(db) = grads.get(b) {
                ex.gemm(ADAPTER, self.b_gradient(n, *out, ex.compute, ex.gradients), dy, low.view(), db)?;
            }
        }
        drop(low);
        let mut dlow = ex.activation(n * self.rank)?;
        for (number, ((b, out), dy)) in self.b.iter().zip(dys).enumerate() {
            ex.gemm(ADAPTER, self.low_gradient(n, *out, number, ex.compute), dy, weights.get(b), dlow.view_mut())?;
        }
        if let Some(da) = grads.get(&self.a) {
            ex.gemm(ADAPTER, product_weight(n, self.rank, input, ex.compute, ex.gradients), dlow.view(), x, da)?;
        }
        let back = product_input(n, self.rank, input, dropped.is_none(), ex.compute);
        let Some(mut through) = dropped else {
            return ex.gemm(ADAPTER, back, dlow.view(), weights.get(&self.a), dx);
        };
        // The dropped input is not needed any more: its buffer takes the gradient, then the same mask.
        ex.gemm(ADAPTER, back, dlow.view(), weights.get(&self.a), through.view_mut())?;
        let mut masked = ex.activation(n * input)?;
        let op = Op::Dropout(self.dropout_op(ex));
        ex.run(ADAPTER, &op, &[through.view()], &mut [masked.view_mut()])?;
        ex.accumulate(ADAPTER, masked.view(), dx.reborrow())
    }
}

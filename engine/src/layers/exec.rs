//! What a layer works with while it runs: a device and the shape of the batch.

use crate::comm::{Comms, Communicator, Metered};
use crate::device::Device;
use crate::error::Result;
use crate::mesh::{Axes, Axis};
use std::ops::{Deref, Range};
use zbench_kernels::{Buffer, Category, DType, Gemm, View};

/// The shape of a rank's micro-batch, and the numbers that make dropout the same for every rank count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub rows: usize,
    pub seq: usize,
    /// Number of the first sequence in the run.
    pub first_sample: u64,
    pub seed: u64,
    /// Sequences hold several documents, which do not see each other.
    pub documents: bool,
}

impl Batch {
    pub fn tokens(&self) -> usize {
        self.rows * self.seq
    }
}

/// Kernels, memory and batch: what forward and backward run on.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    pub device: Device<'a>,
    pub batch: Batch,
    /// Type of weights in use, activations and their gradients.
    pub compute: DType,
    pub gradients: DType,
    /// Nothing is dropped at random: the model is looked at, not trained.
    pub evaluates: bool,
    /// The groups of the rank, in which layers that are cut talk.
    pub comms: Option<&'a Comms>,
    /// Sequence parallelism: of the residual stream each tensor rank has its own tokens alone.
    pub sequence: bool,
    /// What cross-attention reads, where there is an encoder.
    pub memory: Option<Memory<'a>>,
    /// Rotary tables `[seq, head_dim/2]`.
    pub cos: View<'a>,
    pub sin: View<'a>,
    /// Where sequences hold several documents: what they are to layers.
    pub documents: Option<DocumentMask<'a>>,
}

/// Where the tokens of a micro-batch stand, of which each sequence holds several documents.
#[derive(Clone, Copy)]
pub struct DocumentMask<'a> {
    /// `[rows, seq]`: the place in the sequence at which the token's document starts.
    pub starts: View<'a>,
    /// `[rows, seq]`: the token's place in its document; only where learned positions read it.
    pub positions: Option<View<'a>>,
}

/// An encoder's output.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// `[tokens, hidden]`.
    pub values: View<'a>,
    /// Of the encoder's tokens.
    pub batch: Batch,
}

impl<'a> Deref for Exec<'a> {
    type Target = Device<'a>;

    fn deref(&self) -> &Device<'a> {
        &self.device
    }
}

impl<'a> Exec<'a> {
    /// The tokens' places in their documents, where learned positions are looked up by them.
    pub fn places(&self) -> Option<View<'a>> {
        self.documents.and_then(|documents| documents.positions)
    }

    /// The same on other tokens.
    #[must_use]
    pub fn on(self, batch: Batch) -> Exec<'a> {
        Exec { batch, ..self }
    }

    /// The group of an axis; `None` where this rank is alone on it.
    pub fn group(&self, axis: Axis) -> Option<&'a Metered> {
        self.comms.and_then(|comms| comms.over(Axes::of(&[axis])))
    }

    /// This rank's number among those of an axis.
    pub fn place_on(&self, axis: Axis) -> usize {
        self.group(axis).map_or(0, |group| group.rank())
    }

    /// Sums a buffer over the ranks of an axis.
    pub fn sum_over(&self, axis: Axis, buffer: &mut Buffer) -> Result<()> {
        Ok(self.group(axis).map_or(Ok(()), |group| group.all_reduce(buffer.view_mut()))?)
    }

    /// The ranks that share the tokens of the residual stream; `None` where each has all of them.
    fn of_tokens(&self) -> Option<&'a Metered> {
        self.group(Axis::Tensor).filter(|_| self.sequence)
    }

    /// Which of the micro-batch's tokens this rank has of the residual stream.
    pub fn own_tokens(&self) -> Range<usize> {
        let (ranks, rank) = self.of_tokens().map_or((1, 0), |group| (group.size(), group.rank()));
        let count = self.batch.tokens() / ranks;
        rank * count..(rank + 1) * count
    }

    /// The sum over the ranks of an axis of what each has found for all tokens: of the tokens that are this rank's own.
    pub fn sum_of_tokens(&self, axis: Axis, mut terms: Buffer) -> Result<Buffer> {
        let Some(group) = self.of_tokens() else {
            self.sum_over(axis, &mut terms)?;
            return Ok(terms);
        };
        let mut own = self.alloc(Category::Activations, terms.dtype(), terms.len() / group.size())?;
        group.reduce_scatter(terms.view(), own.view_mut(), false)?;
        Ok(own)
    }

    /// The same in place of what this rank has.
    pub fn whole_tokens(&self, own: Buffer) -> Result<Buffer> {
        if let AllTokens::Gathered(all) = self.all_tokens(&own)? {
            return Ok(all);
        }
        Ok(own)
    }

    /// What all ranks have of the residual stream, where each has its own tokens.
    pub fn all_tokens<'b>(&self, own: &'b Buffer) -> Result<AllTokens<'b>> {
        let Some(group) = self.of_tokens() else { return Ok(AllTokens::Here(own)) };
        let mut all = self.alloc(Category::Activations, own.dtype(), own.len() * group.size())?;
        group.all_gather(own.view(), all.view_mut())?;
        Ok(AllTokens::Gathered(all))
    }

    /// A buffer of the flow between layers, in the compute type.
    pub fn activation(&self, len: usize) -> Result<Buffer> {
        self.alloc(Category::Activations, self.compute, len)
    }

    /// A small buffer in the accumulator type of the compute type.
    pub fn statistic(&self, len: usize) -> Result<Buffer> {
        self.alloc(Category::Activations, self.compute.accumulator(), len)
    }
}

/// A buffer that has all tokens.
pub enum AllTokens<'a> {
    Here(&'a Buffer),
    Gathered(Buffer),
}

impl AllTokens<'_> {
    pub fn view(&self) -> View<'_> {
        match self {
            AllTokens::Here(buffer) => buffer.view(),
            AllTokens::Gathered(buffer) => buffer.view(),
        }
    }
}

/// Term of operations on elements in the FLOP ledger.
pub(super) const POINTWISE: &str = "element-wise";

/// `y[tokens,out] = x[tokens,input] W^T`, both of type `dtype`.
pub fn product_forward(tokens: usize, out: usize, input: usize, accumulate: bool, dtype: DType) -> Gemm {
    let (m, n, k) = (tokens, out, input);
    Gemm { m, n, k, trans_b: true, accumulate, a: dtype, b: dtype, c: dtype, ..Gemm::DENSE }
}

/// `dx[tokens,input] = dy[tokens,out] W`.
pub fn product_input(tokens: usize, out: usize, input: usize, accumulate: bool, dtype: DType) -> Gemm {
    let (m, n, k) = (tokens, input, out);
    Gemm { m, n, k, accumulate, a: dtype, b: dtype, c: dtype, ..Gemm::DENSE }
}

/// `dW[out,input] += dy^T x`, into the gradients' type.
pub fn product_weight(tokens: usize, out: usize, input: usize, dtype: DType, gradients: DType) -> Gemm {
    let (m, n, k) = (out, input, tokens);
    Gemm { m, n, k, trans_a: true, accumulate: true, a: dtype, b: dtype, c: gradients, ..Gemm::DENSE }
}

//! What a layer works with while it runs: a device and the shape of the batch.

use crate::action::span::Waits;
use crate::compute::context::ComputeContext;
use crate::compute::error::{Result, StepError};
use crate::compute::recorder::Overlap;
use crate::mesh::comms::Comms;
use crate::mesh::{Axes, Axis};
use std::ops::{Deref, Range};
use zbench_collectives::{Communicator, Metered, OwnedCall, Ticket};
use zbench_kernels::{Buffer, Category, DType, Gemm, View, ViewMut};

/// The shape of a rank's micro-batch, and the numbers that make dropout the same for every rank count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub rows: usize,
    pub seq: usize,
    /// Number of the first sequence in the run.
    pub first_sample: u64,
    /// Number of its first token in the run.
    pub first_token: u64,
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
pub struct LayerContext<'a> {
    pub device: ComputeContext<'a>,
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
    /// Into how many chunks of tokens sums over tensor ranks are split, so that each travels while the next chunk is multiplied.
    pub tensor_chunks: usize,
    /// Who is told of waits for other ranks.
    pub waits: Option<&'a dyn Waits>,
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

impl<'a> Deref for LayerContext<'a> {
    type Target = ComputeContext<'a>;

    fn deref(&self) -> &ComputeContext<'a> {
        &self.device
    }
}

impl<'a> LayerContext<'a> {
    /// The tokens' places in their documents, where learned positions are looked up by them.
    pub fn places(&self) -> Option<View<'a>> {
        self.documents.and_then(|documents| documents.positions)
    }

    /// The same on other tokens.
    #[must_use]
    pub fn on(self, batch: Batch) -> LayerContext<'a> {
        LayerContext { batch, ..self }
    }

    /// The same on some of the tokens, for operations that take each token by itself.
    #[must_use]
    pub fn on_tokens(self, tokens: Range<usize>) -> LayerContext<'a> {
        let first_token = self.batch.first_token.wrapping_add(tokens.start as u64);
        self.on(Batch { rows: 1, seq: tokens.len(), first_token, ..self.batch })
    }

    /// The group of an axis; `None` where this rank is alone on it.
    pub fn group(&self, axis: Axis) -> Option<&'a Metered> {
        self.comms.and_then(|comms| comms.over(Axes::of(&[axis])))
    }

    /// This rank's number among those of an axis.
    pub fn place_on(&self, axis: Axis) -> usize {
        self.group(axis).map_or(0, |group| group.rank())
    }

    /// What `work` waits for other ranks is booked as waiting.
    pub fn waiting<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if let Some(waits) = self.waits {
            waits.begin();
        }
        let result = work();
        if let Some(waits) = self.waits {
            waits.end();
        }
        result
    }

    /// Sums a buffer over the ranks of an axis.
    pub fn sum_over(&self, axis: Axis, buffer: &mut Buffer) -> Result<()> {
        let Some(group) = self.group(axis) else { return Ok(()) };
        Ok(self.waiting(|| group.all_reduce(buffer.view_mut()))?)
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
        self.waiting(|| group.reduce_scatter(terms.view(), own.view_mut(), false))?;
        Ok(own)
    }

    /// As [`LayerContext::sum_of_tokens`] of terms of `width` elements for each token, which `term` makes for the tokens it is given. In several
    /// chunks, the sum of one travels while the terms of the next are made. Each chunk has as many tokens of every rank's own.
    pub fn sum_in_chunks(
        &self,
        axis: Axis,
        width: usize,
        mut term: impl FnMut(&LayerContext<'_>, Range<usize>, ViewMut<'_>) -> Result<()>,
    ) -> Result<Buffer> {
        let (tokens, of_tokens) = (self.batch.tokens(), self.of_tokens());
        let Some(group) = of_tokens.or(self.group(axis)).filter(|_| self.tensor_chunks > 1) else {
            let mut terms = self.activation(tokens * width)?;
            term(self, 0..tokens, terms.view_mut())?;
            return self.sum_of_tokens(axis, terms);
        };
        let shares = of_tokens.map_or(1, |group| group.size());
        let (share, len) = (tokens / shares, tokens / shares / self.tensor_chunks);
        let mut sums = self.activation(share * width)?;
        let mut land = |chunk: usize, ticket| -> Result<()> {
            let sum = self.finish(group, ticket)?;
            let place = chunk * len * width..(chunk + 1) * len * width;
            self.cast(POINTWISE, sum.view(), sums.slice_mut(place))
        };
        let mut before = None;
        for chunk in 0..self.tensor_chunks {
            let mut terms = self.activation(shares * len * width)?;
            for part in 0..shares {
                let first = part * share + chunk * len;
                let place = part * len * width..(part + 1) * len * width;
                let tokens = first..first + len;
                term(&self.on_tokens(tokens.clone()), tokens, terms.slice_mut(place))?;
            }
            let ticket = self.start_sum(group, terms)?;
            if let Some((chunk, ticket)) = before.replace((chunk, ticket)) {
                land(chunk, ticket)?;
            }
        }
        before.map_or(Ok(()), |(chunk, ticket)| land(chunk, ticket))?;
        Ok(sums)
    }

    /// As [`LayerContext::sum_of_tokens`]. Where sums are split into chunks, this one travels while `work` is done; else it follows.
    pub fn sum_beside(&self, axis: Axis, terms: Buffer, work: impl FnOnce() -> Result<()>) -> Result<Buffer> {
        let Some(group) = self.of_tokens().or(self.group(axis)).filter(|_| self.tensor_chunks > 1) else {
            work()?;
            return self.sum_of_tokens(axis, terms);
        };
        let ticket = self.start_sum(group, terms)?;
        work()?;
        self.finish(group, ticket)
    }

    /// Starts the sum of what each rank of a group has found for some tokens, which travels while the layer goes on.
    fn start_sum(&self, group: &Metered, terms: Buffer) -> Result<Ticket> {
        let call = if self.sequence {
            let own = self.alloc(Category::Activations, terms.dtype(), terms.len() / group.size())?;
            OwnedCall::reduce_scatter(terms, own, false)
        } else {
            OwnedCall::all_reduce(terms)
        };
        if let Some(recorder) = self.recorder {
            recorder.note(Overlap::Starts);
        }
        Ok(self.waiting(|| group.start(call))?)
    }

    /// What a collective has given that was started.
    fn finish(&self, group: &Metered, ticket: Ticket) -> Result<Buffer> {
        if let Some(recorder) = self.recorder {
            recorder.note(Overlap::Waits);
        }
        let call = self.waiting(|| group.wait(ticket))?;
        call.recv.ok_or(StepError::Bug("a sum of tokens has no result"))
    }

    /// What all ranks have of the residual stream, in place of this rank's own.
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
        self.waiting(|| group.all_gather(own.view(), all.view_mut()))?;
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

/// What all ranks have of the residual stream, `[tokens, width]`.
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

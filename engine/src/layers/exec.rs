//! What a layer works with while it runs: kernels, memory, the shape of the batch.

use crate::comm::CommError;
use crate::outcome::Worse;
use zbench_kernels::{
    Arena, Buffer, Category, DType, Gemm, KernelError, Kernels, Move, Op, OutOfMemory, View, ViewMut,
};

/// Why a step ended early.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StepError {
    /// The arena is full.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Tokens or weights could not be read.
    #[error("{0}")]
    Input(String),
    /// Loss or norm is not finite, or gradients overflow at the smallest loss scale.
    #[error("step {step}: {what} is {value}")]
    Diverged {
        /// The step.
        step: u64,
        /// `loss`, `grad_norm` or `loss_scale`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// The loss has long been far above its smallest.
    #[error("{0}")]
    Worse(Worse),
}

/// What a layer returns.
pub type Result<T, E = StepError> = std::result::Result<T, E>;

/// The shape of a rank's micro-batch, and the numbers that make dropout the same for every rank count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Sequences.
    pub rows: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Number of the first sequence in the run.
    pub first_sample: u64,
    /// Of dropout.
    pub seed: u64,
    /// Sequences hold several documents, which do not see each other.
    pub documents: bool,
}

impl Batch {
    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.rows * self.seq
    }
}

/// Kernels, memory and batch: what forward and backward run on.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    /// The device's operations.
    pub kernels: &'a dyn Kernels,
    /// The rank's memory.
    pub arena: &'a Arena,
    /// The micro-batch.
    pub batch: Batch,
    /// Type of weights in use, activations and their gradients.
    pub compute: DType,
    /// Type of accumulated gradients.
    pub gradients: DType,
    /// Nothing is dropped at random: the model is looked at, not trained.
    pub evaluates: bool,
    /// Rotary tables `[seq, head_dim/2]`.
    pub cos: View<'a>,
    /// As `cos`.
    pub sin: View<'a>,
    /// Where sequences hold several documents: what they are to layers.
    pub documents: Option<InDocuments<'a>>,
}

/// Where the tokens of a micro-batch stand, of which each sequence holds several documents.
#[derive(Clone, Copy)]
pub struct InDocuments<'a> {
    /// `[rows, seq]`: the place in the sequence at which the token's document starts.
    pub starts: View<'a>,
    /// `[rows, seq]`: the token's place in its document; only where learned positions read it.
    pub positions: Option<View<'a>>,
}

impl<'a> Exec<'a> {
    /// The tokens' places in their documents, where learned positions are looked up by them.
    pub fn places(&self) -> Option<View<'a>> {
        self.documents.and_then(|documents| documents.positions)
    }

    /// A buffer of the flow between layers, in the compute type.
    pub fn activation(&self, len: usize) -> Result<Buffer> {
        Ok(self.arena.alloc(Category::Activations, self.compute, len)?)
    }

    /// A small buffer in the accumulator type of the compute type.
    pub fn statistic(&self, len: usize) -> Result<Buffer> {
        Ok(self.arena.alloc(Category::Activations, self.compute.accumulator(), len)?)
    }

    /// Scratch of one operation.
    pub fn scratch(&self, op: &Op) -> Result<Buffer> {
        let len = self.kernels.workspace(op);
        Ok(self.arena.alloc(Category::Workspace, self.compute.accumulator(), len)?)
    }

    /// A matrix product with its scratch.
    pub fn gemm(&self, op: Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>) -> Result<()> {
        let mut scratch = self.scratch(&Op::Gemm(op))?;
        Ok(self.kernels.gemm(&op, a, b, c, scratch.view_mut())?)
    }
}

/// `y[tokens,out] = x[tokens,input] W^T`, both of type `dtype`.
pub fn product_forward(tokens: usize, out: usize, input: usize, accumulate: bool, dtype: DType) -> Gemm {
    let (m, n, k) = (tokens, out, input);
    Gemm { m, n, k, trans_a: false, trans_b: true, alpha: 1.0, accumulate, a: dtype, b: dtype, c: dtype }
}

/// `dx[tokens,input] = dy[tokens,out] W`.
pub fn product_input(tokens: usize, out: usize, input: usize, accumulate: bool, dtype: DType) -> Gemm {
    let (m, n, k) = (tokens, input, out);
    Gemm { m, n, k, trans_a: false, trans_b: false, alpha: 1.0, accumulate, a: dtype, b: dtype, c: dtype }
}

/// `dW[out,input] += dy^T x`, into the gradients' type.
pub fn product_weight(tokens: usize, out: usize, input: usize, dtype: DType, gradients: DType) -> Gemm {
    let (m, n, k) = (out, input, tokens);
    Gemm { m, n, k, trans_a: true, trans_b: false, alpha: 1.0, accumulate: true, a: dtype, b: dtype, c: gradients }
}

/// The statement of a change of type or copy.
pub fn cast(len: usize, from: DType, to: DType) -> Op {
    Op::Cast(Move { len, sources: 1, from, to })
}

/// The statement of a fill.
pub fn fill(len: usize, dtype: DType) -> Op {
    Op::Fill(Move { len, sources: 0, from: dtype, to: dtype })
}

/// The statement of `dst *= alpha`.
pub fn scale(len: usize, dtype: DType) -> Op {
    Op::Scale(Move { len, sources: 1, from: dtype, to: dtype })
}

/// The statement of `dst += alpha * src`.
pub fn accumulate(len: usize, from: DType, to: DType) -> Op {
    Op::Accumulate(Move { len, sources: 1, from, to })
}

/// The statement of a sum to a number.
pub fn sum(len: usize, from: DType) -> Op {
    Op::Sum(Move { len, sources: 1, from, to: DType::F64 })
}

/// The statement of a sum of squares.
pub fn sum_squares(len: usize, from: DType) -> Op {
    Op::SumSquares(Move { len, sources: 1, from, to: DType::F64 })
}

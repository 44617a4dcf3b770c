//! How the ranks of an axis split a tensor, in Megatron's words, and what each of them has of its gradient.

use super::context::LayerContext;
use crate::mesh::Axis;
use zbench_kernels::VocabPart;

/// What of a matrix `[out, input]`, or of a vector `[out]`, the ranks of an axis have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorSplit {
    /// All of it, the same on every rank.
    Replicated,
    /// Rows of the matrix as stored. Each rank makes its own part of the output; the gradients of the input that the ranks find add up to the whole one.
    ColumnParallel(Axis),
    /// Columns of the matrix as stored. Each rank reads its own part of the input; the outputs that the ranks make add up to the whole one.
    RowParallel(Axis),
}

impl TensorSplit {
    /// The number of this rank among those that share the tensor.
    pub fn place(self, ex: &LayerContext<'_>) -> usize {
        match self {
            TensorSplit::Replicated => 0,
            TensorSplit::ColumnParallel(axis) | TensorSplit::RowParallel(axis) => ex.place_on(axis),
        }
    }

    /// Which of so many words this rank has, of whose table it has `len` rows.
    pub fn vocab_part(self, ex: &LayerContext<'_>, len: usize, vocab_size: usize) -> VocabPart {
        VocabPart { first: self.place(ex) * len, len, vocab_size }
    }
}

/// What a rank's backward finds of the gradient of a tensor that is [`TensorSplit::Replicated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// All of it: every rank of the axis finds the same.
    Complete,
    /// Its own part of the sum over this axis.
    Partial(Axis),
}

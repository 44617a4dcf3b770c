//! How ranks of an axis share a tensor, and what each of them has of its gradient.

use super::exec::Exec;
use crate::mesh::Axis;
use zbench_kernels::VocabPart;

/// What of a matrix `[out, input]`, or of a vector `[out]`, the ranks of an axis have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it, the same on every rank.
    Same,
    /// Rows, which Megatron calls column-parallel: each rank makes its own part of the output. The gradients of the input that they find add up to the whole one.
    Rows(Axis),
    /// Columns, which Megatron calls row-parallel: each rank reads its own part of the input. The outputs that they make add up to the whole one.
    Columns(Axis),
}

impl Cut {
    /// The number of this rank among those that share the tensor.
    pub fn place(self, ex: &Exec<'_>) -> usize {
        match self {
            Cut::Same => 0,
            Cut::Rows(axis) | Cut::Columns(axis) => ex.place_on(axis),
        }
    }

    /// Which of so many words this rank has, of whose table it has `len` rows.
    pub fn words(self, ex: &Exec<'_>, len: usize, words: usize) -> VocabPart {
        VocabPart { first: self.place(ex) * len, len, words }
    }
}

/// What a rank's backward finds of the gradient of a tensor that is [`Cut::Same`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// All of it: every rank of the axis finds the same.
    Complete,
    /// Its own part of the sum over this axis.
    Partial(Axis),
}

//! The operations of a mixture of experts: where each token goes, rows there and back, one matrix product per expert.
//!
//! A token goes to `top` experts, so there are `rows x top` *choices*; choice `row * top + j` is the j-th of a row. A *slot*
//! is a choice's place when all choices are sorted by expert, those of one expert in the order of tokens. How many slots an
//! expert has is known only when the router has spoken; how many there are in all is not.

use super::{Gemm, elements};
use crate::{DType, View};
use std::ops::Range;

/// From a router's logits `[rows, experts]` to each row's `top` experts and their weights.
///
/// Experts are ordered by their logits, of equal ones the lower number first (a NaN counts as the largest). A weight is the
/// softmax over all experts, or over those chosen if `normalised`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub rows: usize,
    pub experts: usize,
    /// Experts that a token goes to.
    pub top: usize,
    /// A token's weights add up to one.
    pub normalised: bool,
    /// Weights are rounded to `dtype`.
    pub rounded: bool,
    /// Type of the logits and their gradient; weights and their gradients are f32 (f64 for f64).
    pub dtype: DType,
}

impl Route {
    pub const fn slots(&self) -> usize {
        self.rows.saturating_mul(self.top)
    }

    /// Elements of u32 that say where tokens go: for each choice its expert, for each slot its choice, for each choice its
    /// slot, and the first slot of each expert with the end behind the last.
    pub const fn indices_len(&self) -> usize {
        self.slots().saturating_mul(3).saturating_add(self.experts).saturating_add(1)
    }

    /// The last part of the indices: expert `e` has slots `offsets[e]..offsets[e + 1]`. Panics when the view is shorter.
    pub fn offsets<'a>(&self, indices: &View<'a>) -> View<'a> {
        indices.slice(3 * self.slots()..self.indices_len())
    }
}

/// Rows between tokens and slots: to slots, or weighted in their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub rows: usize,
    pub top: usize,
    pub experts: usize,
    pub cols: usize,
    /// Type of the rows; weights are f32 (f64 for f64).
    pub dtype: DType,
}

impl Slots {
    /// As [`Route::indices_len`].
    pub const fn indices_len(&self) -> usize {
        self.slots().saturating_mul(3).saturating_add(self.experts).saturating_add(1)
    }

    /// Slots in all.
    pub const fn slots(&self) -> usize {
        self.rows.saturating_mul(self.top)
    }
}

/// `y[row] = (y[row] +) sum over j of (weight *) x[slot of choice j]`, in the order of choices, rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    pub slots: Slots,
    /// Whether choices have weights; else each counts as it is.
    pub weighted: bool,
    /// Add to y instead of overwriting it.
    pub accumulate: bool,
}

/// Which product of a layer that every expert has a matrix `[out, input]` of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouped {
    /// `C[rows, out] = A[rows, input] W^T`.
    Forward,
    /// `C[rows, input] = A[rows, out] W`: the gradient of the input.
    Input,
    /// `C[groups, out, input] = A[rows, out]^T B[rows, input]`: the gradient of the matrices.
    Weight,
}

/// Matrix products of groups of rows, each with its own matrix; the sizes of the groups are data, their sum is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedGemm {
    pub rows: usize,
    pub groups: usize,
    /// Rows of a matrix.
    pub out: usize,
    /// Columns of a matrix.
    pub input: usize,
    pub form: Grouped,
    /// Add to C instead of overwriting it.
    pub accumulate: bool,
    pub a: DType,
    /// Type of B: the matrices, of `Weight` the rows of the input.
    pub b: DType,
    /// Type of C; a product into a narrower type is rounded once.
    pub c: DType,
}

impl GroupedGemm {
    /// Elements of A, B and C.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let (out, input) = (elements(&[self.rows, self.out]), elements(&[self.rows, self.input]));
        let matrices = elements(&[self.groups, self.out, self.input]);
        match self.form {
            Grouped::Forward => [input, matrices, out],
            Grouped::Input => [out, matrices, input],
            Grouped::Weight => [out, input, matrices],
        }
    }

    /// The product of a group of `rows`.
    pub(crate) fn product(&self, rows: usize) -> Gemm {
        let GroupedGemm { out, input, accumulate, a, b, c, .. } = *self;
        let ([m, n, k], trans_a, trans_b) = match self.form {
            Grouped::Forward => ([rows, out, input], false, true),
            Grouped::Input => ([rows, input, out], false, false),
            Grouped::Weight => ([out, input, rows], true, false),
        };
        Gemm { m, n, k, trans_a, trans_b, alpha: 1.0, accumulate, a, b, c, ..Gemm::DENSE }
    }

    /// The product of one group, and where its operands lie.
    pub fn one(&self, group: usize, rows: Range<usize>) -> (Gemm, [Range<usize>; 3]) {
        let (out, input) = (self.out, self.input);
        let of = |cols: usize| rows.start * cols..rows.end * cols;
        let matrix = group * out * input..(group + 1) * out * input;
        let ranges = match self.form {
            Grouped::Forward => [of(input), matrix, of(out)],
            Grouped::Input => [of(out), matrix, of(input)],
            Grouped::Weight => [of(out), of(input), matrix],
        };
        (self.product(rows.len()), ranges)
    }
}

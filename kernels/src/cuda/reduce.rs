//! Reductions: of several buffers to one, and of a buffer to a number.

use super::Cuda;
use crate::{ReduceOp, Result, View, ViewMut};

impl Cuda {
    pub(super) fn run_reduce(&self, _: ReduceOp, _: &[View<'_>], _: bool, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("reduce"))
    }

    /// The sum of elements, or of their squares.
    pub(super) fn run_sum(&self, _: View<'_>, _squares: bool) -> Result<f64> {
        Err(super::missing("sum"))
    }
}

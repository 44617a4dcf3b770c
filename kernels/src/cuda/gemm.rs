//! Matrix products: the vendor's library, and kernels of our own where it has none.

use super::Cuda;
use crate::op::Gemm;
use crate::{Result, View, ViewMut};

/// Elements of f32 that a product may use.
pub(super) fn workspace(_: &Gemm) -> usize {
    0
}

impl Cuda {
    pub(super) fn run_gemm(&self, _: &Gemm, _: View<'_>, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("gemm"))
    }
}

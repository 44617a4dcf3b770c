//! The matrix of a linear layer, in the type that products read.

use super::LinearSpec;
use crate::compute::error::Result;
use crate::model::layers::Weights;
use crate::model::layers::context::LayerContext;
use zbench_kernels::{Buffer, Category, Op, Unpack, View};

/// A matrix as it is kept, or unpacked for one product.
pub(super) enum Matrix<'a> {
    SavedTensor(View<'a>),
    Unpacked(Buffer),
}

impl Matrix<'_> {
    pub fn view(&self) -> View<'_> {
        match self {
            Matrix::SavedTensor(view) => *view,
            Matrix::Unpacked(buffer) => buffer.view(),
        }
    }
}

impl LinearSpec {
    /// W, unpacked if it is kept in few bits. It lasts for one product: backward unpacks it again.
    pub(super) fn matrix<'a>(&self, ex: &LayerContext<'_>, weights: &Weights<'a>) -> Result<Matrix<'a>> {
        let kept = weights.get(&self.weight);
        let Some(packed) = self.packed else { return Ok(Matrix::SavedTensor(kept)) };
        let mut whole = ex.alloc(Category::Workspace, ex.compute, packed.len())?;
        let op = Unpack { matrix: packed, dtype: ex.compute };
        ex.run("unpack", &Op::Unpack(op), &[kept], &mut [whole.view_mut()])?;
        Ok(Matrix::Unpacked(whole))
    }
}

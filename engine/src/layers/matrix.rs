//! The matrix of a linear layer, in the type that products read.

use super::exec::{Exec, Result};
use super::linear::LinearSpec;
use super::sketch::{Piece, Sketch};
use crate::model::Weights;
use zbench_kernels::{Buffer, Category, DType, Op, Packed, Unpack, View};

/// A matrix as it is kept, or unpacked for one product.
pub(super) enum Matrix<'a> {
    Kept(View<'a>),
    Unpacked(Buffer),
}

impl Matrix<'_> {
    pub fn view(&self) -> View<'_> {
        match self {
            Matrix::Kept(view) => *view,
            Matrix::Unpacked(buffer) => buffer.view(),
        }
    }
}

fn unpack(matrix: Packed, dtype: DType) -> Unpack {
    Unpack { matrix, dtype }
}

impl LinearSpec {
    /// W, unpacked if it is kept in few bits. It lasts for one product: backward unpacks it again.
    pub(super) fn matrix<'a>(&self, ex: &Exec<'_>, weights: &Weights<'a>) -> Result<Matrix<'a>> {
        let kept = weights.get(&self.weight);
        let Some(packed) = self.packed else { return Ok(Matrix::Kept(kept)) };
        let mut whole = ex.arena.alloc(Category::Workspace, ex.compute, packed.len())?;
        ex.kernels.unpack(&unpack(packed, ex.compute), kept, whole.view_mut())?;
        Ok(Matrix::Unpacked(whole))
    }

    /// States `matrix`.
    pub(super) fn matrix_stated(&self, s: &mut Sketch<'_>) -> Option<Piece> {
        let packed = self.packed?;
        let whole = s.alloc(Category::Workspace, s.compute, packed.len());
        s.op("unpack", Op::Unpack(unpack(packed, s.compute)));
        Some(whole)
    }
}

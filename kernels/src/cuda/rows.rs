//! What goes row by row: norms, biases, rotary embedding, the embedding, the loss.

use super::Cuda;
use crate::op::*;
use crate::{Result, View, ViewMut};

impl Cuda {
    pub(super) fn run_rms_norm(
        &self,
        _: &RmsNorm,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Err(super::missing("rms_norm"))
    }

    pub(super) fn run_rms_norm_backward(
        &self,
        _: &RmsNorm,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: Option<ViewMut<'_>>,
    ) -> Result<()> {
        Err(super::missing("rms_norm_backward"))
    }

    pub(super) fn run_layer_norm(
        &self,
        _: &LayerNorm,
        _: View<'_>,
        _: View<'_>,
        _: Option<View<'_>>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Err(super::missing("layer_norm"))
    }

    pub(super) fn run_layer_norm_backward(
        &self,
        _: &LayerNorm,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: Option<ViewMut<'_>>,
        _: Option<ViewMut<'_>>,
    ) -> Result<()> {
        Err(super::missing("layer_norm_backward"))
    }

    pub(super) fn run_add_rows(&self, _: &AddRows, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("add_rows"))
    }

    pub(super) fn run_add_rows_backward(&self, _: &AddRows, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("add_rows_backward"))
    }

    pub(super) fn run_mul_rows(&self, _: &MulRows, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("mul_rows"))
    }

    pub(super) fn run_mul_rows_backward(&self, _: &MulRows, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("mul_rows_backward"))
    }

    pub(super) fn run_inverse_norms(&self, _: &InverseNorms, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("inverse_norms"))
    }

    pub(super) fn run_rope(&self, _: &Rope, _: ViewMut<'_>, _: View<'_>, _: View<'_>) -> Result<()> {
        Err(super::missing("rope"))
    }

    pub(super) fn run_embedding(&self, _: &Embedding, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("embedding"))
    }

    pub(super) fn run_embedding_backward(&self, _: &Embedding, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("embedding_backward"))
    }

    pub(super) fn run_cross_entropy(
        &self,
        _: &CrossEntropy,
        _: ViewMut<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Err(super::missing("cross_entropy"))
    }
}

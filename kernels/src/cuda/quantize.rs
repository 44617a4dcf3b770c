//! Block quantisation.

use super::Cuda;
use crate::op::Quantize;
use crate::{Result, View, ViewMut};

impl Cuda {
    pub(super) fn run_quantize(&self, _: &Quantize, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("quantize"))
    }

    pub(super) fn run_dequantize(&self, _: &Quantize, _: View<'_>, _: View<'_>, _: ViewMut<'_>, _: bool) -> Result<()> {
        Err(super::missing("dequantize"))
    }
}

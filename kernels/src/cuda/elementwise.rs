//! Traffic, activations, dropout, the optimizer.

use super::Cuda;
use super::launch::{Run, arguments};
use crate::op::*;
use crate::{Result, View, ViewMut};

impl Cuda {
    pub(super) fn run_fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        let (len, value) = (dst.len() as u64, value as f32);
        let grid = [self.blocks(dst.len(), 256 * 8), 1, 1];
        // SAFETY: the kernel's parameters, and `dst` holds `len` elements.
        unsafe { self.launch("fill", grid, 256, 0, arguments![Run::of_mut(&dst), len, value]) }
    }
}

impl Cuda {
    pub(super) fn run_accumulate(&self, _: f64, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("accumulate"))
    }

    pub(super) fn run_activate(&self, _: &Activate, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("activate"))
    }

    pub(super) fn run_activate_backward(&self, _: &Activate, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("activate_backward"))
    }

    pub(super) fn run_adamw(
        &self,
        _: &AdamW,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: View<'_>,
        _: Option<ViewMut<'_>>,
    ) -> Result<()> {
        Err(super::missing("adamw"))
    }

    pub(super) fn run_add(&self, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("add"))
    }

    pub(super) fn run_cast(&self, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("cast"))
    }

    pub(super) fn run_dropout(&self, _: &Dropout, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("dropout"))
    }

    pub(super) fn run_normal(&self, _: &Normal, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("normal"))
    }

    pub(super) fn run_scale(&self, _: f64, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("scale"))
    }

    pub(super) fn run_swiglu(&self, _: &Swiglu, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("swiglu"))
    }

    pub(super) fn run_swiglu_backward(
        &self,
        _: &Swiglu,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Err(super::missing("swiglu_backward"))
    }
}

//! Matrices in few bits.

use super::Cuda;
use crate::packed::{Packed, Unpack};
use crate::{Result, View, ViewMut};

impl Cuda {
    pub(super) fn run_pack(&self, _: &Packed, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("pack"))
    }

    pub(super) fn run_unpack(&self, _: &Unpack, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(super::missing("unpack"))
    }
}

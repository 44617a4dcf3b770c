//! A device that computes nothing: its kernels check their operands and say what scratch they would need, its arena counts bytes that
//! are not there. A step that runs on it costs what it would on the device that it stands for.

use crate::backend::operands;
use crate::backend::operands::DeviceTypes;
use crate::memory::copy;
use crate::memory::dry_device::DryDevice;
use crate::{Arena, ArenaError, DType, Gemm, KernelError, Kernels, Op, Result, Sum, View, ViewMut};
use std::sync::Arc;

const DEVICE: DeviceTypes = DeviceTypes { name: "dry", computes: DType::is_float };

/// Kernels that stand for others and compute nothing.
#[derive(Clone, Copy)]
pub struct Dry<'a>(pub &'a dyn Kernels);

impl Kernels for Dry<'_> {
    fn name(&self) -> String {
        format!("{} (dry)", self.0.name())
    }

    fn threads(&self) -> usize {
        self.0.threads()
    }

    fn arena(&self, _: Option<u64>, _: usize) -> Result<Arena, ArenaError> {
        Arena::dry()
    }

    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("upload", &src, &dst)
    }

    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("download", &src, &dst)
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        copy::alike("copy", &src, &dst)
    }

    fn logits_pitch(&self, columns: usize) -> usize {
        self.0.logits_pitch(columns)
    }

    fn logits_chunk_len(&self) -> usize {
        self.0.logits_chunk_len()
    }

    fn workspace(&self, op: &Op) -> usize {
        self.0.workspace(op)
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        self.0.prepacked_len(op)
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        operands::check(DEVICE, op, reads, writes)?;
        // How long a packed matrix is, its device says.
        let packed = match op {
            Op::Prepack(gemm) => Some(("to", gemm, writes[0].len())),
            Op::GemmPrepacked(gemm) => Some(("b", gemm, reads[1].len())),
            _ => None,
        };
        if let Some((operand, gemm, given)) = packed
            && let wanted = self.prepacked_len(gemm).unwrap_or(usize::MAX)
            && given < wanted
        {
            return Err(KernelError::Shape { op: op.name(), operand, wanted, given });
        }
        operands::check_scratch(op, &scratch, self.workspace(op))
    }

    /// Every sum is 0.
    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        operands::check(DEVICE, op, &[x], &[])?;
        Ok(Sum::Known(0.0))
    }
}

impl Arena {
    /// An arena that has no memory and counts bytes as any other. Its buffers are views of a device that cannot be read.
    ///
    /// # Errors
    /// None in practice: nothing is asked of the system.
    pub fn dry() -> Result<Arena, ArenaError> {
        const ALL: u64 = 1 << 62;
        Ok(Arena::on(Arc::new(DryDevice::h100()), Some(ALL), ALL)?.without_places())
    }
}

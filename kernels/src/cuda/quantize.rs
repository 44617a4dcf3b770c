//! Block quantisation.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Run, arguments};
use crate::device::Address;
use crate::op::{QuantFormat, Quantize};
use crate::{Result, View, ViewMut};

const THREADS: u32 = 256;
/// Elements that a block of threads takes at a time: eight for each thread.
const TILE: usize = THREADS as usize * 8;
/// The longest blocks that a warp, or a part of one, takes as a whole.
const WARP_BLOCK: usize = 4096;

/// A format's number in the kernels.
const fn number(format: QuantFormat) -> u32 {
    match format {
        QuantFormat::Int8 => 0,
        QuantFormat::Int4 => 1,
    }
}

impl Cuda {
    pub(super) fn run_quantize(
        &self,
        op: &Quantize,
        src: View<'_>,
        values: ViewMut<'_>,
        scales: ViewMut<'_>,
    ) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        let (len, count, format) = (src.len(), op.scales_len(src.len()), number(op.format));
        let block = op.block.min(len);
        let (to, kept) = (values.ptr().as_ptr() as Address, scales.ptr().as_ptr() as Address);
        let (from, elements, each) = (Run::of(&src), len as u64, block as u64);
        if block.is_multiple_of(8) && block <= WARP_BLOCK {
            let lanes = (block / 8).next_power_of_two().min(32);
            let grid = [self.blocks(count * lanes, THREADS as usize), 1, 1];
            let (name, lanes) = ("quantize_blocks", lanes as u32);
            // SAFETY: the kernel's parameters; values and scales have room for what `len` elements make (checked).
            return unsafe {
                self.launch(name, grid, THREADS, 0, arguments![from, elements, each, format, lanes, to, kept])
            };
        }
        let grid = [self.blocks(len, TILE), 1, 1];
        // SAFETY: there is room for `count` scales (checked); what the kernels read of them was written by those before.
        unsafe {
            self.stream.memset(kept, 0, count * size_of::<f32>())?;
            self.launch("quantize_absmax", grid, THREADS, 0, arguments![from, elements, each, kept])?;
            let few = [self.blocks(count, THREADS as usize), 1, 1];
            self.launch("quantize_scales", few, THREADS, 0, arguments![kept, count as u64, format])?;
            self.launch("quantize_values", grid, THREADS, 0, arguments![from, elements, each, format, to, kept])
        }
    }

    pub(super) fn run_dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let len = dst.len();
        let (from, scales) = (values.ptr().as_ptr() as Address, scales.ptr().as_ptr() as Address);
        let (block, format, add) = (op.block.min(len.max(1)) as u64, number(op.format), u32::from(accumulate));
        let grid = [self.blocks(len, TILE), 1, 1];
        let (to, len) = (Run::of_mut(&dst), len as u64);
        // SAFETY: the kernel's parameters; values and scales are those of `len` elements (checked).
        unsafe { self.launch("dequantize", grid, THREADS, 0, arguments![from, scales, block, format, add, to, len]) }
    }
}

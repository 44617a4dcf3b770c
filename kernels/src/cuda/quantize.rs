//! Block quantisation.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{DeviceSlice, arguments};
use crate::Result;
use crate::op::{QuantFormat, QuantizeBlocks};

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
    pub(super) fn run_quantize(&self, op: &QuantizeBlocks, [src, values, scales]: [DeviceSlice; 3]) -> Result<()> {
        let (len, count, format) = (op.len, op.by.scales_len(op.len), number(op.by.format));
        if len == 0 {
            return Ok(());
        }
        let block = op.by.block.min(len);
        let (values, scales) = (values.address(), scales.address());
        if block.is_multiple_of(8) && block <= WARP_BLOCK {
            let lanes = (block / 8).next_power_of_two().min(32);
            let grid = [self.blocks(count * lanes, THREADS as usize), 1, 1];
            let lanes = lanes as u32;
            let arguments = arguments![src, len, block, format, lanes, values, scales];
            // SAFETY: the kernel's parameters; values and scales have room for what `len` elements make (checked).
            return unsafe { self.launch("quantize_blocks", grid, THREADS, 0, arguments) };
        }
        let grid = [self.blocks(len, TILE), 1, 1];
        // SAFETY: there is room for `count` scales (checked); what the kernels read of them was written by those before.
        unsafe {
            self.stream.memset(scales, 0, count * size_of::<f32>())?;
            self.launch("quantize_absmax", grid, THREADS, 0, arguments![src, len, block, scales])?;
            let few = [self.blocks(count, THREADS as usize), 1, 1];
            self.launch("quantize_scales", few, THREADS, 0, arguments![scales, count, format])?;
            self.launch("quantize_values", grid, THREADS, 0, arguments![src, len, block, format, values, scales])
        }
    }

    pub(super) fn run_dequantize(&self, op: &QuantizeBlocks, [values, scales, dst]: [DeviceSlice; 3]) -> Result<()> {
        let QuantizeBlocks { by, len, accumulate, .. } = *op;
        let (values, scales, block) = (values.address(), scales.address(), by.block.min(len.max(1)));
        let (format, add) = (number(by.format), u32::from(accumulate));
        let arguments = arguments![values, scales, block, format, add, dst, len];
        // SAFETY: the kernel's parameters; values and scales are those of `len` elements (checked).
        unsafe { self.launch("dequantize", [self.blocks(len, TILE), 1, 1], THREADS, 0, arguments) }
    }
}

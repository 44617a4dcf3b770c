//! Matrices in few bits.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{DeviceSlice, arguments};
use crate::memory::device::Address;
use crate::numerics::packed::{NF4_BLOCK, Pack, Packing, Unpack};
use crate::{DType, Result, View};

const THREADS: u32 = 256;
/// Elements that a block of threads takes at a time: eight for each thread.
const TILE: usize = THREADS as usize * 8;

impl Cuda {
    pub(super) fn run_pack(&self, op: &Pack, [src, codes, scales]: [DeviceSlice; 3]) -> Result<()> {
        let (len, codes, scales) = (op.len, codes.address(), scales.address());
        match op.matrix.packing {
            Packing::Nf4 | Packing::Nf4Double => {
                let grid = [self.blocks(len.div_ceil(NF4_BLOCK), TILE / NF4_BLOCK), 1, 1];
                // SAFETY: the kernel's parameters; there is room for codes and scales of `len` elements (checked).
                unsafe { self.launch("pack_nf4", grid, THREADS, 0, arguments![src, len, codes, scales]) }
            }
            Packing::Int8 => {
                let cols = op.matrix.cols.max(1);
                let grid = [self.blocks(len.div_ceil(cols), 1), 1, 1];
                // SAFETY: as above.
                unsafe { self.launch("pack_int8", grid, THREADS, 0, arguments![src, len, cols, codes, scales]) }
            }
        }
    }

    pub(super) fn run_unpack(&self, op: &Unpack, record: View<'_>, dst: DeviceSlice) -> Result<()> {
        let (fields, len) = (op.matrix.fields(), op.matrix.len());
        let codes = DeviceSlice::of(&record.slice(fields.codes)).address();
        let scales = record.slice(fields.scales);
        let floats = |bytes: View<'_>| bytes.reinterpret(DType::F32).map(|floats| DeviceSlice::of(&floats).address());
        let (grid, none) = ([self.blocks(len, TILE), 1, 1], 0u64);
        // SAFETY: the kernels' parameters; the record has the matrix's fields, and `dst` its elements (checked).
        unsafe {
            match op.matrix.packing {
                Packing::Nf4Double => {
                    let (coded, second) =
                        (DeviceSlice::of(&scales).address(), floats(record.slice(fields.second.clone()))?);
                    // The last of them is the offset.
                    let offset = second + (fields.second.len() - size_of::<f32>()) as Address;
                    let arguments = arguments![codes, none, coded, second, offset, dst, len];
                    self.launch("unpack_nf4", grid, THREADS, 0, arguments)
                }
                Packing::Nf4 => {
                    let scales = floats(scales)?;
                    let arguments = arguments![codes, scales, none, none, none, dst, len];
                    self.launch("unpack_nf4", grid, THREADS, 0, arguments)
                }
                Packing::Int8 => {
                    let (scales, cols) = (floats(scales)?, op.matrix.cols.max(1));
                    self.launch("unpack_int8", grid, THREADS, 0, arguments![codes, scales, cols, dst, len])
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cuda::sources::Source;
    use crate::numerics::packed::{DYNAMIC, NF4};

    /// The numbers of a table in the kernels' source.
    fn table(name: &str) -> Vec<u32> {
        let text = Source::of("unpack_nf4").unwrap().text;
        let (_, rest) = text.split_once(&format!("const float {name}[")).unwrap();
        let (_, rest) = rest.split_once('{').unwrap();
        let (numbers, _) = rest.split_once('}').unwrap();
        let entries = numbers.split(',').map(|word| word.trim().trim_end_matches('f')).filter(|word| !word.is_empty());
        entries.map(|word| word.parse::<f32>().unwrap().to_bits()).collect()
    }

    #[test]
    fn the_kernels_tables_are_those_of_the_cores() {
        assert_eq!(table("NF4"), NF4.map(f32::to_bits));
        assert_eq!(table("DYNAMIC"), DYNAMIC.map(f32::to_bits));
    }
}

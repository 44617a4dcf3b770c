//! Matrices in few bits.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Run, arguments};
use crate::device::Address;
use crate::packed::{NF4_BLOCK, Packed, Packing, Unpack};
use crate::{DType, Result, View, ViewMut};

const THREADS: u32 = 256;
/// Elements that a block of threads takes at a time: eight for each thread.
const TILE: usize = THREADS as usize * 8;

impl Cuda {
    pub(super) fn run_pack(
        &self,
        matrix: &Packed,
        src: View<'_>,
        codes: ViewMut<'_>,
        scales: ViewMut<'_>,
    ) -> Result<()> {
        let (from, len) = (Run::of(&src), src.len() as u64);
        let (to, kept) = (codes.ptr().as_ptr() as Address, scales.ptr().as_ptr() as Address);
        match matrix.packing {
            Packing::Nf4 | Packing::Nf4Double => {
                let grid = [self.blocks(src.len().div_ceil(NF4_BLOCK), TILE / NF4_BLOCK), 1, 1];
                // SAFETY: the kernel's parameters; there is room for codes and scales of `len` elements (checked).
                unsafe { self.launch("pack_nf4", grid, THREADS, 0, arguments![from, len, to, kept]) }
            }
            Packing::Int8 => {
                let cols = matrix.cols.max(1);
                let grid = [self.blocks(src.len().div_ceil(cols), 1), 1, 1];
                // SAFETY: as above.
                unsafe { self.launch("pack_int8", grid, THREADS, 0, arguments![from, len, cols as u64, to, kept]) }
            }
        }
    }

    pub(super) fn run_unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let (fields, len) = (op.matrix.fields(), op.matrix.len());
        let codes = record.slice(fields.codes).ptr().as_ptr() as Address;
        let scales = record.slice(fields.scales);
        let grid = [self.blocks(len, TILE), 1, 1];
        let (to, elements, none) = (Run::of_mut(&dst), len as u64, 0u64);
        match op.matrix.packing {
            Packing::Nf4Double => {
                let coded = scales.ptr().as_ptr() as Address;
                let second = record.slice(fields.second).reinterpret(DType::F32)?;
                let offset = second.slice(second.len() - 1..second.len()).ptr().as_ptr() as Address;
                let second = second.ptr().as_ptr() as Address;
                // SAFETY: the kernel's parameters; the record has the matrix's fields, and `dst` its elements (checked).
                unsafe {
                    let arguments = arguments![codes, none, coded, second, offset, to, elements];
                    self.launch("unpack_nf4", grid, THREADS, 0, arguments)
                }
            }
            Packing::Nf4 => {
                let scales = scales.reinterpret(DType::F32)?.ptr().as_ptr() as Address;
                // SAFETY: as above.
                unsafe {
                    let arguments = arguments![codes, scales, none, none, none, to, elements];
                    self.launch("unpack_nf4", grid, THREADS, 0, arguments)
                }
            }
            Packing::Int8 => {
                let scales = scales.reinterpret(DType::F32)?.ptr().as_ptr() as Address;
                let cols = op.matrix.cols.max(1) as u64;
                // SAFETY: as above.
                unsafe { self.launch("unpack_int8", grid, THREADS, 0, arguments![codes, scales, cols, to, elements]) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cuda::sources::Source;
    use crate::packed::{DYNAMIC, NF4};

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

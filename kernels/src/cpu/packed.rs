//! Frozen matrices to 4 or 8 bits and back.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::quantize::{largest, quotients};
use super::stream::{CHUNK, Shared, chunks, close, load, open};
use crate::numerics::packed;
use crate::numerics::packed::{NF4, NF4_BLOCK, NF4_MIDDLES, Packed, Packing, Scales, Unpack};
use crate::{View, ViewMut};

/// Chunks that are worth waking another thread for.
const GRAIN: usize = 16;

/// Both entries of a byte of codes.
static PAIRS: [[f32; 2]; 256] = {
    let (mut pairs, mut byte) = ([[0.0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [NF4[byte >> 4], NF4[byte & 15]];
        byte += 1;
    }
    pairs
};

impl Cpu {
    pub(super) fn run_pack(&self, matrix: &Packed, src: View, codes: ViewMut, scales: ViewMut) {
        match matrix.packing {
            Packing::Nf4 | Packing::Nf4Double => self.pack_nf4(src, codes, scales),
            Packing::Int8 => self.pack_int8(matrix.cols.max(1), src, codes, scales),
        }
    }

    fn pack_int8(&self, cols: usize, src: View, codes: ViewMut, scales: ViewMut) {
        let (codes, scales) = (Shared::new(codes), Shared::new(scales));
        self.pool.split(src.len().div_ceil(cols), (GRAIN * CHUNK).div_ceil(cols), |_, rows| {
            let mut buffer = [0.0; CHUNK];
            for number in rows {
                let row = number * cols..((number + 1) * cols).min(src.len());
                let scale = packed::scale_of(largest(self.level, src.slice(row.clone()), &mut buffer).to_bits());
                // SAFETY: each row, so each scale, is one thread's.
                let slot = unsafe { scales.elements::<f32>(number..number + 1) };
                slot[0] = scale;
                // A product with a NaN is none with a code: such a row has zeros.
                let inverse = packed::int8_inverse(scale);
                for chunk in chunks(row) {
                    let x = load(self.level, src.slice(chunk.clone()), &mut buffer);
                    // SAFETY: as above.
                    let mut bytes = unsafe { codes.part(chunk) };
                    match bytes.as_slice_mut::<i8>() {
                        Ok(bytes) if inverse > 0.0 => quotients(self.level, x, inverse, bytes),
                        Ok(bytes) => bytes.fill(0),
                        Err(_) => {}
                    }
                }
            }
        });
    }

    fn pack_nf4(&self, src: View, codes: ViewMut, scales: ViewMut) {
        let (codes, scales) = (Shared::new(codes), Shared::new(scales));
        self.pool.split(src.len().div_ceil(CHUNK), GRAIN, |_, units| {
            let mut buffer = [0.0; CHUNK];
            for unit in units {
                let chunk = unit * CHUNK..((unit + 1) * CHUNK).min(src.len());
                let x = load(self.level, src.slice(chunk.clone()), &mut buffer);
                // SAFETY: chunks are whole blocks and whole bytes of codes, and each is one thread's.
                let mut bytes = unsafe { codes.part(chunk.start / 2..chunk.end.div_ceil(2)) };
                let bytes = bytes.as_slice_mut::<i8>().unwrap_or_default();
                // SAFETY: as above.
                let kept = unsafe { scales.elements::<f32>(chunk.start / NF4_BLOCK..chunk.end.div_ceil(NF4_BLOCK)) };
                for ((block, bytes), scale) in x.chunks(NF4_BLOCK).zip(bytes.chunks_mut(NF4_BLOCK / 2)).zip(kept) {
                    *scale = self.code_block(block, bytes);
                }
            }
        });
    }

    /// Codes a block; its scale.
    fn code_block(&self, block: &[f32], bytes: &mut [i8]) -> f32 {
        let mut codes = [0u8; NF4_BLOCK];
        let scale = self.level.run(
            #[inline(always)]
            |_| {
                let mut most = 0;
                for x in block {
                    most = most.max(x.to_bits() & 0x7fff_ffff);
                }
                let scale = packed::scale_of(most);
                let inverse = packed::inverse(scale);
                for (code, x) in codes.iter_mut().zip(block) {
                    let value = x * inverse;
                    *code = NF4_MIDDLES.iter().map(|middle| u8::from(value > *middle)).sum();
                }
                scale
            },
        );
        // The low half of the last byte stays 0 where the elements are odd in number.
        codes[block.len()..].fill(0);
        for (byte, [high, low]) in bytes.iter_mut().zip(codes.as_chunks::<2>().0) {
            *byte = (high << 4 | low) as i8;
        }
        scale
    }

    pub(super) fn run_unpack(&self, op: &Unpack, codes: &[i8], scales: Scales<'_>, dst: ViewMut) {
        match op.matrix.packing {
            Packing::Nf4 | Packing::Nf4Double => self.unpack_nf4(codes, &scales, dst),
            Packing::Int8 => self.unpack_int8(op.matrix.cols.max(1), codes, &scales, dst),
        }
    }

    fn unpack_int8(&self, cols: usize, codes: &[i8], scales: &Scales<'_>, dst: ViewMut) {
        let (len, dst) = (dst.len(), Shared::new(dst));
        self.pool.split(len.div_ceil(cols), (GRAIN * CHUNK).div_ceil(cols), |_, rows| {
            let mut buffer = [0.0; CHUNK];
            for number in rows {
                let scale = scales.get(number);
                for chunk in chunks(number * cols..((number + 1) * cols).min(len)) {
                    let codes = &codes[chunk.clone()];
                    // SAFETY: rows, and so their chunks, are disjoint.
                    let mut target = unsafe { dst.part(chunk) };
                    let out = open(self.level, &mut target, &mut buffer, false);
                    self.level.run(
                        #[inline(always)]
                        |_| {
                            let all = out.iter_mut().zip(codes);
                            all.for_each(|(out, code)| *out = f32::from(*code) * scale * packed::INT8_STEP);
                        },
                    );
                    close(self.level, &mut target, &buffer);
                }
            }
        });
    }

    fn unpack_nf4(&self, codes: &[i8], scales: &Scales<'_>, dst: ViewMut) {
        let (len, dst) = (dst.len(), Shared::new(dst));
        self.pool.split(len.div_ceil(CHUNK), GRAIN, |_, units| {
            let mut buffer = [0.0; CHUNK];
            for unit in units {
                let chunk = unit * CHUNK..((unit + 1) * CHUNK).min(len);
                let bytes = &codes[chunk.start / 2..chunk.end.div_ceil(2)];
                let first = chunk.start / NF4_BLOCK;
                // SAFETY: chunks of all threads are disjoint.
                let mut target = unsafe { dst.part(chunk) };
                let out = open(self.level, &mut target, &mut buffer, false);
                let blocks = out.chunks_mut(NF4_BLOCK).zip(bytes.chunks(NF4_BLOCK / 2));
                for (number, (block, bytes)) in blocks.enumerate() {
                    let scale = scales.get(first + number);
                    self.level.run(
                        #[inline(always)]
                        |_| {
                            let (pairs, last) = block.as_chunks_mut::<2>();
                            for (pair, byte) in pairs.iter_mut().zip(bytes) {
                                let [high, low] = PAIRS[usize::from(*byte as u8)];
                                *pair = [high * scale, low * scale];
                            }
                            if let ([last], Some(byte)) = (last, bytes.last()) {
                                *last = PAIRS[usize::from(*byte as u8)][0] * scale;
                            }
                        },
                    );
                }
                close(self.level, &mut target, &buffer);
            }
        });
    }
}

//! Block quantisation: floats to small integers with a scale for each block, and back.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::Level;
use super::stream::{CHUNK, Shared, chunks, close, load, open};
use crate::op::{QuantFormat, Quantize};
use crate::{View, ViewMut};
use std::ops::Range;

/// The least that is worth waking another thread for.
const GRAIN: usize = 16 * CHUNK;

impl Cpu {
    pub(super) fn run_quantize(&self, op: &Quantize, src: View, values: ViewMut, scales: ViewMut) {
        let (values, scales) = (Shared::new(values), Shared::new(scales));
        self.split_blocks(op, src.len(), |blocks| {
            let (mut buffer, mut kept) = ([0.0; CHUNK], [0i8; CHUNK]);
            for block in blocks {
                let scale = op.scale(largest(self.level, src.slice(block.clone()), &mut buffer));
                let number = block.start / op.block;
                // SAFETY: each block, so each scale, is one thread's.
                let slot = unsafe { scales.elements::<f32>(number..number + 1) };
                slot[0] = scale;
                for chunk in chunks(block) {
                    let kept = &mut kept[..chunk.len()];
                    if scale > 0.0 {
                        let x = load(self.level, src.slice(chunk.clone()), &mut buffer);
                        quotients(self.level, x, 1.0 / scale, kept);
                    } else {
                        kept.fill(0);
                    }
                    // SAFETY: threads' parts begin at even elements, so no two write one byte.
                    let mut bytes = unsafe { values.part(bytes(op.format, &chunk)) };
                    let bytes = bytes.as_slice_mut::<i8>().unwrap_or_default();
                    match op.format {
                        QuantFormat::Int8 => bytes.copy_from_slice(kept),
                        QuantFormat::Int4 => pack(self.level, kept, chunk.start % 2 == 1, bytes),
                    }
                }
            }
        });
    }

    pub(super) fn run_dequantize(
        &self,
        op: &Quantize,
        values: &[i8],
        scales: &[f32],
        dst: ViewMut<'_>,
        accumulate: bool,
    ) {
        let (len, dst) = (dst.len(), Shared::new(dst));
        self.split_blocks(op, len, |blocks| {
            let (mut buffer, mut unpacked) = ([0.0; CHUNK], [0i8; CHUNK]);
            for (scale, chunk) in
                blocks.flat_map(|block| chunks(block.clone()).map(move |c| (block.start / op.block, c)))
            {
                let bytes = &values[bytes(op.format, &chunk)];
                let kept = match op.format {
                    QuantFormat::Int8 => bytes,
                    QuantFormat::Int4 => {
                        let unpacked = &mut unpacked[..chunk.len()];
                        unpack(self.level, bytes, chunk.start % 2 == 1, unpacked);
                        unpacked
                    }
                };
                // SAFETY: blocks, and so their chunks, are disjoint.
                let mut target = unsafe { dst.part(chunk) };
                let out = open(self.level, &mut target, &mut buffer, accumulate);
                multiply(self.level, kept, scales[scale], accumulate, out);
                close(self.level, &mut target, &buffer);
            }
        });
    }

    /// Gives each thread its blocks, as ranges of elements. The first begins at an even element.
    fn split_blocks(&self, op: &Quantize, len: usize, part: impl Fn(&mut dyn Iterator<Item = Range<usize>>) + Sync) {
        if len == 0 {
            return;
        }
        let size = op.block.min(len);
        let unit = if size % 2 == 1 { 2 * size } else { size };
        self.pool.split(len.div_ceil(unit), GRAIN.div_ceil(unit), |_, units| {
            let end = (units.end * unit).min(len);
            let starts = (units.start * unit..end).step_by(size);
            part(&mut starts.map(|start| start..(start + size).min(end)));
        });
    }
}

/// The bytes in which the values of these elements lie.
fn bytes(format: QuantFormat, elements: &Range<usize>) -> Range<usize> {
    match format {
        QuantFormat::Int8 => elements.clone(),
        QuantFormat::Int4 => elements.start / 2..elements.end.div_ceil(2),
    }
}

/// The largest magnitude of a block, or something that is not finite if there is such a thing in it. The bits of floats
/// without sign are in the order of their values, infinity and NaN last, so this is a maximum of integers.
pub(super) fn largest(level: Level, block: View, buffer: &mut [f32; CHUNK]) -> f32 {
    let mut most = 0;
    for chunk in chunks(0..block.len()) {
        let x = load(level, block.slice(chunk), buffer);
        most = level.run(
            #[inline(always)]
            |_| {
                let mut most = most;
                for x in x {
                    most = most.max(x.to_bits() & 0x7fff_ffff);
                }
                most
            },
        );
    }
    f32::from_bits(most)
}

/// `x * inverse`, rounded to the nearest integer, ties to even. None is larger than the format's limit: `inverse` is at
/// most a few units in the last place above the limit divided by the largest `x`.
pub(super) fn quotients(level: Level, x: &[f32], inverse: f32, out: &mut [i8]) {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    level.run(
        #[inline(always)]
        |_| {
            for (out, x) in out.iter_mut().zip(x) {
                *out = (x * inverse + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i8;
            }
        },
    );
}

/// `out = (out +) values * scale`.
fn multiply(level: Level, values: &[i8], scale: f32, accumulate: bool, out: &mut [f32]) {
    level.run(
        #[inline(always)]
        |_| {
            let all = out.iter_mut().zip(values);
            if accumulate {
                all.for_each(|(out, value)| *out += f32::from(*value) * scale);
            } else {
                all.for_each(|(out, value)| *out = f32::from(*value) * scale);
            }
        },
    );
}

/// Two values to a byte, the low nibble first. `odd`: the first value is the high half of a byte begun before.
fn pack(level: Level, values: &[i8], odd: bool, bytes: &mut [i8]) {
    let (first, values) = values.split_at(usize::from(odd));
    let (begun, bytes) = bytes.split_at_mut(usize::from(odd));
    begun.iter_mut().zip(first).for_each(|(byte, high)| *byte = (*byte & 15) | (high << 4));
    let (pairs, last) = values.as_chunks::<2>();
    let (whole, half) = bytes.split_at_mut(pairs.len());
    level.run(
        #[inline(always)]
        |_| whole.iter_mut().zip(pairs).for_each(|(byte, [low, high])| *byte = (low & 15) | (high << 4)),
    );
    half.iter_mut().zip(last).for_each(|(byte, low)| *byte = low & 15);
}

/// Undoes [`pack`].
fn unpack(level: Level, bytes: &[i8], odd: bool, values: &mut [i8]) {
    let (first, values) = values.split_at_mut(usize::from(odd));
    let (begun, bytes) = bytes.split_at(usize::from(odd));
    first.iter_mut().zip(begun).for_each(|(high, byte)| *high = byte >> 4);
    let (pairs, last) = values.as_chunks_mut::<2>();
    let (whole, half) = bytes.split_at(pairs.len());
    level.run(
        #[inline(always)]
        |_| pairs.iter_mut().zip(whole).for_each(|(pair, byte)| *pair = [(byte << 4) >> 4, byte >> 4]),
    );
    last.iter_mut().zip(half).for_each(|(low, byte)| *low = (byte << 4) >> 4);
}

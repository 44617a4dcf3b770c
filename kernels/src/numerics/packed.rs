//! Matrices kept in few bits: what is stored of one, where in its run of bytes, and the two published tables.

use crate::{DType, View};
use std::ops::Range;

/// How a matrix is kept in few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Blocks of 64 elements in row-major order. A block's scale is its largest magnitude, in f32; an element's code is
    /// the number of the entry of [`NF4`] nearest to `x * (1/scale)` in f32, the lower of two that are equally near; it
    /// stands for `entry * scale`. Of two elements in a byte the first has the high four bits, as bitsandbytes stores
    /// them. A block that holds an infinity or a NaN has scale NaN and comes back as NaN throughout.
    Nf4,
    /// As [`Packing::Nf4`] with the scales in 8 bits: see [`DoubleScales`].
    Nf4Double,
    /// Each row in whole numbers from -127 to 127: LLM.int8's weights, without its columns of outliers. A row's scale
    /// is its largest magnitude; a code is `x * (1/scale * 127)` in f32, rounded to even; it stands for
    /// `code * scale * (1/127)`, from the left. A row below 3.8e-37 is kept as zeros; one that holds an infinity or a NaN comes back as NaN.
    Int8,
}

/// Elements of a block of NF4.
pub const NF4_BLOCK: usize = 64;
/// Scales of a block of the second level.
pub const DOUBLE_BLOCK: usize = 256;
/// Where the fields of a record begin: at multiples of this many bytes.
const ALIGNED: usize = 64;

/// NormalFloat of 4 bits (QLoRA, appendix E): quantiles of the normal distribution, with an exact zero.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Half way between neighbours of [`NF4`], in f32: a value above the `i`-th has a code above `i`.
pub(crate) const NF4_MIDDLES: [f32; 15] = {
    let (mut middles, mut i) = ([0.0; 15], 0);
    while i < 15 {
        middles[i] = (NF4[i] + NF4[i + 1]) / 2.0;
        i += 1;
    }
    middles
};

/// The signed dynamic 8-bit type of the second level ("8-bit approximations for parallelism in deep learning", as
/// bitsandbytes lays it out): seven decades, the smallest of one value, each of twice as many as the one below.
pub const DYNAMIC: [f32; 256] = {
    const DECADES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
    let (mut map, mut at, mut decade) = ([0.0; 256], 128, 0);
    while decade < 7 {
        // Means of neighbours among `count + 1` numbers at equal distances from 0.1 to 1.
        let count = 1 << decade;
        let mut i = 0;
        while i < count {
            let value = DECADES[decade] * ((spaced(i, count) + spaced(i + 1, count)) / 2.0);
            map[at] = value;
            map[254 - at] = -value;
            at += 1;
            i += 1;
        }
        decade += 1;
    }
    map[255] = 1.0;
    map
};

/// Number `i` of `count + 1` from 0.1 to 1, counted from the nearer end, each rounded once.
const fn spaced(i: usize, count: usize) -> f32 {
    let step = (1.0 - 0.1f32) / count as f32;
    match i < count.div_ceil(2) {
        true => (0.1f32 as f64 + step as f64 * i as f64) as f32,
        false => (1.0 - step as f64 * (count - i) as f64) as f32,
    }
}

/// A matrix in few bits: one run of bytes that holds its codes, then its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    pub packing: Packing,
    pub rows: usize,
    pub cols: usize,
}

/// Where the fields of a matrix's record lie in its bytes. Each begins at a multiple of 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    pub codes: Range<usize>,
    /// Scales: f32, or a byte each where they are coded too.
    pub scales: Range<usize>,
    /// Of coded scales: the f32 scales of the second level, then the offset.
    pub second: Range<usize>,
    pub bytes: usize,
}

impl Packed {
    pub const fn len(&self) -> usize {
        self.rows * self.cols
    }

    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements that share a scale.
    pub const fn block(&self) -> usize {
        match self.packing {
            Packing::Nf4 | Packing::Nf4Double => NF4_BLOCK,
            Packing::Int8 => self.cols,
        }
    }

    pub const fn blocks(&self) -> usize {
        if self.cols == 0 { 0 } else { self.len().div_ceil(self.block()) }
    }

    /// Bytes of the codes of the first `len` elements.
    pub const fn codes_len(&self, len: usize) -> usize {
        match self.packing {
            Packing::Nf4 | Packing::Nf4Double => len.div_ceil(2),
            Packing::Int8 => len,
        }
    }

    /// The elements whose codes lie in these bytes of the codes.
    pub fn elements(&self, codes: Range<usize>) -> Range<usize> {
        let each = match self.packing {
            Packing::Nf4 | Packing::Nf4Double => 2,
            Packing::Int8 => 1,
        };
        (codes.start * each).min(self.len())..(codes.end * each).min(self.len())
    }

    pub fn fields(&self) -> Fields {
        let codes = 0..self.codes_len(self.len());
        let start = codes.end.next_multiple_of(ALIGNED);
        let doubled = self.packing == Packing::Nf4Double;
        let scales = start..start + self.blocks() * if doubled { 1 } else { 4 };
        let start = scales.end.next_multiple_of(ALIGNED);
        let second = start..start + if doubled { 4 * (self.blocks().div_ceil(DOUBLE_BLOCK) + 1) } else { 0 };
        let bytes = second.end.next_multiple_of(ALIGNED);
        Fields { codes, scales, second, bytes }
    }
}

/// Codes and scales of whole blocks of a matrix, from its first element or that of any block on; the last may be short. Scales are
/// f32, not coded yet: see [`DoubleScales`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack {
    pub matrix: Packed,
    pub len: usize,
    /// Type of the part: f32, bf16 or f16.
    pub dtype: DType,
}

/// A packed matrix as floats: `dst = entry * scale` for every element, in f32, rounded once more into a narrower type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpack {
    pub matrix: Packed,
    pub dtype: DType,
}

/// Scales in 8 bits each, as bitsandbytes' double quantisation (`bnb_4bit_use_double_quant`) has them: their mean is
/// taken off, and of each 256 the rest is coded as the nearest of [`DYNAMIC`] times the largest magnitude among them. A
/// scale comes back as `entry * second + offset`, rounded after each step.
#[derive(Clone, Debug, PartialEq)]
pub struct DoubleScales {
    pub codes: Vec<u8>,
    /// The largest magnitude of each 256.
    pub second: Vec<f32>,
    pub offset: f32,
}

impl DoubleScales {
    /// Codes scales. Their mean is summed in f64 in their order and rounded once.
    pub fn of(scales: &[f32]) -> DoubleScales {
        let sum: f64 = scales.iter().map(|scale| f64::from(*scale)).sum();
        DoubleScales::around((sum / scales.len().max(1) as f64) as f32, scales)
    }

    /// Codes scales by their distance from `offset`.
    pub fn around(offset: f32, scales: &[f32]) -> DoubleScales {
        let (mut codes, mut second) = (Vec::with_capacity(scales.len()), Vec::new());
        for block in scales.chunks(DOUBLE_BLOCK) {
            let largest = largest(block.iter().map(|scale| scale - offset));
            second.push(largest);
            let inverse = inverse(largest);
            codes.extend(block.iter().map(|scale| nearest((scale - offset) * inverse)));
        }
        DoubleScales { codes, second, offset }
    }
}

/// The number of the entry of [`DYNAMIC`] nearest to `value`; the lower one of two.
fn nearest(value: f32) -> u8 {
    let above = DYNAMIC.partition_point(|entry| *entry < value);
    let middle = |i: usize| (DYNAMIC[i] + DYNAMIC[i + 1]) / 2.0;
    match above {
        0 => 0,
        256 => 255,
        _ => (above - usize::from(value <= middle(above - 1))) as u8,
    }
}

/// The largest magnitude; NaN where something is not finite.
pub(crate) fn largest(values: impl Iterator<Item = f32>) -> f32 {
    let most = values.fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
    scale_of(most)
}

/// A scale from the bits of the largest magnitude.
pub(crate) fn scale_of(bits: u32) -> f32 {
    let largest = f32::from_bits(bits);
    if largest.is_finite() { largest } else { f32::NAN }
}

/// What values are multiplied with before they are coded. A block of zeros keeps its zeros.
pub(crate) fn inverse(largest: f32) -> f32 {
    1.0 / if largest < 1e-38 { 1e-38 } else { largest }
}

/// What a row's values are multiplied with before they are coded in 8 bits. 0 where there is no such number: of a row
/// of (all but) zeros, whose codes are zeros then.
pub fn int8_inverse(largest: f32) -> f32 {
    // In two roundings, as PyTorch divides a number by a tensor.
    let inverse = 1.0 / largest * 127.0;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The last factor of a value in 8 bits.
pub const INT8_STEP: f32 = 1.0 / 127.0;

/// The scales of a record, as they are stored.
pub(crate) enum Scales<'a> {
    Plain(&'a [f32]),
    Double { codes: &'a [i8], second: &'a [f32], offset: f32 },
}

impl Scales<'_> {
    #[inline]
    pub fn get(&self, block: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales[block],
            Scales::Double { codes, second, offset } => {
                DYNAMIC[usize::from(codes[block] as u8)] * second[block / DOUBLE_BLOCK] + offset
            }
        }
    }
}

/// The codes and scales of a record, checked.
pub(crate) fn open<'a>(matrix: &Packed, record: &View<'a>) -> crate::Result<(&'a [i8], Scales<'a>)> {
    let fields = matrix.fields();
    let codes = record.slice(fields.codes).as_slice()?;
    let scales = record.slice(fields.scales);
    if matrix.packing != Packing::Nf4Double {
        return Ok((codes, Scales::Plain(scales.reinterpret(DType::F32)?.as_slice()?)));
    }
    let second: &[f32] = record.slice(fields.second).reinterpret(DType::F32)?.as_slice()?;
    let (offset, second) = second.split_last().map_or((0.0, second), |(last, rest)| (*last, rest));
    Ok((codes, Scales::Double { codes: scales.as_slice()?, second, offset }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_that_its_formula_says() {
        let fields = |packing, rows, cols| Packed { packing, rows, cols }.fields();
        // 0.5 + 1/64 + 4/(64*256) bytes an element, and the offset.
        let double = fields(Packing::Nf4Double, 512, 1024);
        assert_eq!((double.codes, double.scales), (0..262_144, 262_144..270_336));
        assert_eq!((double.second, double.bytes), (270_336..270_336 + 4 * 33, 270_336 + 192));
        let plain = fields(Packing::Nf4, 512, 1024);
        assert_eq!((plain.scales, plain.second.len(), plain.bytes), (262_144..294_912, 0, 294_912));
        assert_eq!(fields(Packing::Int8, 512, 1024).bytes, 524_288 + 2048);
        let odd = fields(Packing::Nf4Double, 3, 43);
        assert_eq!((odd.codes, odd.scales, odd.second, odd.bytes), (0..65, 128..131, 192..200, 256));
        assert_eq!(fields(Packing::Int8, 0, 7).bytes, 0);
    }

    #[test]
    fn tables_are_sorted_and_the_nearest_is_found() {
        assert!(NF4.is_sorted() && DYNAMIC.is_sorted());
        assert_eq!((DYNAMIC[127], DYNAMIC[255], DYNAMIC[254], DYNAMIC[0]), (0.0, 1.0, 0.992_968_74, -0.992_968_74));
        for i in 0..4001 {
            let value = (i as f32 - 2000.0) / 1990.0;
            let found = DYNAMIC[usize::from(nearest(value))];
            let least = DYNAMIC.iter().map(|entry| (entry - value).abs()).fold(f32::MAX, f32::min);
            assert!((found - value).abs() <= least * (1.0 + 1e-6), "{value}: {found}");
        }
        for (i, entry) in DYNAMIC.iter().enumerate() {
            assert_eq!(usize::from(nearest(*entry)), i);
        }
    }
}

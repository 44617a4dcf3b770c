//! Elements as the little-endian bytes of a file, and back.

use super::StoredType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use zbench_kernels::DType;

/// The type that files store such elements in: f32 for all that is not in 16 bits.
pub(crate) fn stored_type(dtype: DType) -> StoredType {
    match dtype {
        DType::Bf16 => StoredType::BF16,
        DType::F16 => StoredType::F16,
        _ => StoredType::F32,
    }
}

/// Writes elements as the bytes of as many in the type of a file, rounded to nearest even.
pub(crate) fn encode(dtype: DType, values: &[f32], to: &mut [u8]) {
    fn each<const N: usize>(values: &[f32], to: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
        to.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, value)| *to = convert(*value));
    }
    match dtype {
        DType::Bf16 => each(values, to, |value| bf16::from_f32(value).to_le_bytes()),
        DType::F16 => each(values, to, |value| f16::from_f32(value).to_le_bytes()),
        _ => each(values, to, f32::to_le_bytes),
    }
}

/// Converts little-endian bytes to as many f32.
pub(crate) type Decode = fn(&[u8], &mut [f32]);

/// The conversion of a stored type; `None` for types that weights do not have.
pub(crate) fn decoder(dtype: StoredType) -> Option<Decode> {
    fn each<const N: usize>(bytes: &[u8], dst: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
        let (values, _) = bytes.as_chunks::<N>();
        for (to, value) in dst.iter_mut().zip(values) {
            *to = convert(*value);
        }
    }
    /// In pieces that lie in registers and the nearest cache: the processor's own conversion takes a slice.
    fn halves(bytes: &[u8], dst: &mut [f32]) {
        const PIECE: usize = 64;
        let mut piece = [f16::ZERO; PIECE];
        for (dst, bytes) in dst.chunks_mut(PIECE).zip(bytes.chunks(2 * PIECE)) {
            let (values, _) = bytes.as_chunks::<2>();
            piece.iter_mut().zip(values).for_each(|(half, bytes)| *half = f16::from_le_bytes(*bytes));
            piece[..dst.len()].convert_to_f32_slice(dst);
        }
    }
    match dtype {
        StoredType::F32 => Some(|bytes, dst| each(bytes, dst, f32::from_le_bytes)),
        // The upper half of a single, bit by bit.
        StoredType::BF16 => {
            Some(|bytes, dst| each(bytes, dst, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)))
        }
        StoredType::F16 => Some(halves),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 65536 values of both halves, against the conversion of one value.
    #[test]
    fn every_half_converts_exactly() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let convert = |dtype| {
            let mut values = vec![0f32; 1 << 16];
            decoder(dtype).unwrap()(&bytes, &mut values);
            values
        };
        for (bits, value) in (0..=u16::MAX).zip(convert(StoredType::F16)) {
            let wanted = f16::from_bits(bits).to_f32();
            assert!(value.to_bits() == wanted.to_bits() || (value.is_nan() && wanted.is_nan()), "f16 {bits:#x}");
        }
        for (bits, value) in (0..=u16::MAX).zip(convert(StoredType::BF16)) {
            let wanted = half::bf16::from_bits(bits).to_f32();
            assert!(value.to_bits() == wanted.to_bits() || (value.is_nan() && wanted.is_nan()), "bf16 {bits:#x}");
        }
    }
}

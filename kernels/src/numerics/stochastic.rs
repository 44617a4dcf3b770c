//! Stochastic rounding to a 16-bit type: up with the chance of the distance from below, so that the mean of many roundings
//! is the value itself, and an update far below half a unit in the last place is not lost but happens now and then.

use crate::DType;

/// `value` rounded to one of its two neighbours in `dtype`, away from zero where the fraction that is cut off and
/// `word / 2^32` make one or more. The result is exact in `dtype`; what is exact already stays, and so does what is no finite number.
/// Types of more than 16 bits are left as they are.
#[inline(always)]
pub(crate) fn round(dtype: DType, value: f32, word: u32) -> f32 {
    match dtype {
        // The exponents are those of f32: adding a random fraction to the bits that go carries into those that stay.
        DType::Bf16 => cut(value, 16, word),
        DType::F16 if value.abs() >= SMALLEST_NORMAL_F16 => cut(value, 13, word),
        DType::F16 => {
            // Subnormal halves stand 2^-24 apart. Scaling by a power of two and taking the floor are exact.
            let units = value.abs() * 16_777_216.0;
            let cut = f64::from(units - units.floor()) * 4_294_967_296.0;
            let up = if cut + f64::from(word) >= 4_294_967_296.0 { 1.0 } else { 0.0 };
            ((units.floor() + up) / 16_777_216.0).copysign(value)
        }
        _ => value,
    }
}

/// 2^-14.
const SMALLEST_NORMAL_F16: f32 = 6.103_515_6e-5;

/// Cuts the last `places` bits of a finite value, after adding the upper `places` bits of `word` to them.
#[inline(always)]
fn cut(value: f32, places: u32, word: u32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(word >> (32 - places)) & !((1 << places) - 1);
    if value.is_finite() { f32::from_bits(rounded) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::philox;
    use crate::numerics::philox::RandomStream;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// As f64, and the neighbours of a value towards zero and away from it.
    fn neighbours(dtype: DType, value: f32) -> (f64, f64) {
        let near = match dtype {
            DType::Bf16 => bf16::from_f32(value).to_f64(),
            _ => f16::from_f32(value).to_f64(),
        };
        let step = |by: i32| match dtype {
            DType::Bf16 => bf16::from_bits((bf16::from_f32(value).to_bits() as i32 + by) as u16).to_f64(),
            _ => f16::from_bits((f16::from_f32(value).to_bits() as i32 + by) as u16).to_f64(),
        };
        match near.abs().total_cmp(&f64::from(value).abs()) {
            std::cmp::Ordering::Equal => (near, near),
            std::cmp::Ordering::Less => (near, step(1)),
            std::cmp::Ordering::Greater => (step(-1), near),
        }
    }

    fn values(dtype: DType) -> impl Strategy<Value = f32> {
        // Finite in the type, subnormals of it and of f32 included.
        let most = if dtype == DType::Bf16 { 0x7f7f_0000u32 } else { 0x477f_e000 };
        (0..most, any::<bool>()).prop_map(|(bits, minus)| f32::from_bits(bits | u32::from(minus) << 31))
    }

    fn check(dtype: DType, value: f32, word: u32) -> Result<(), TestCaseError> {
        let (low, high) = neighbours(dtype, value);
        let got = f64::from(round(dtype, value, word));
        if low == high {
            prop_assert_eq!(got.to_bits(), f64::from(value).to_bits(), "{} is exact", value);
            return Ok(());
        }
        let fraction = (f64::from(value) - low) / (high - low);
        // As many places of the word count as are cut off; a draw within the last of them of the edge may fall either way.
        let edge = if dtype == DType::Bf16 { 2f64.powi(-16) } else { 2f64.powi(-13) };
        let draw = f64::from(word) / 2f64.powi(32);
        prop_assert!(got == low || got == high, "{value} gave {got}, between {low} and {high}");
        if (draw + fraction - 1.0).abs() > edge {
            prop_assert_eq!(got == high, draw + fraction > 1.0, "{} with {}", value, draw);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn a_value_goes_to_a_neighbour_by_the_draw_and_stays_if_it_is_one(
            b in values(DType::Bf16), h in values(DType::F16), word: u32, exact: u16,
        ) {
            check(DType::Bf16, b, word)?;
            check(DType::F16, h, word)?;
            let (b, h) = (bf16::from_bits(exact), f16::from_bits(exact));
            prop_assert_eq!(round(DType::Bf16, b.to_f32(), word).to_bits(), b.to_f32().to_bits());
            prop_assert_eq!(round(DType::F16, h.to_f32(), word).to_bits(), h.to_f32().to_bits());
            prop_assert_eq!(round(DType::F32, f32::from_bits(word & 0x7f7f_ffff), word), f32::from_bits(word & 0x7f7f_ffff));
        }
    }

    /// The mean of n draws lies within five standard errors of the value: the unit in the last place times
    /// 5 sqrt(p (1 - p) / n), and the 2^-13 or 2^-16 of a unit that the draw itself resolves.
    #[test]
    fn the_mean_of_many_roundings_is_the_value() {
        let n = 40_000;
        for dtype in [DType::Bf16, DType::F16] {
            for value in [1.001f32, -1.001, 0.123_456_79, 3.0e-6, -4.2e-5, 1.0 + 1.0 / 1024.0 / 16.0, 1e-8] {
                let (low, high) = neighbours(dtype, value);
                let unit = (high - low).abs();
                let p = (f64::from(value) - low).abs() / unit;
                let words = (0..n / 4).flat_map(|block| philox::words(7, RandomStream::Rounding, block));
                let mean = words.map(|word| f64::from(round(dtype, value, word))).sum::<f64>() / n as f64;
                let most = unit * (5.0 * (p * (1.0 - p) / n as f64).sqrt() + 2f64.powi(-13));
                assert!((mean - f64::from(value)).abs() <= most, "{dtype}: {value} becomes {mean}");
                assert!(unit * p.min(1.0 - p) > 0.0, "{value} is exact: the test would show nothing");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays() {
        for dtype in [DType::Bf16, DType::F16] {
            assert_eq!(round(dtype, f32::INFINITY, u32::MAX), f32::INFINITY);
            assert_eq!(round(dtype, f32::NEG_INFINITY, 9), f32::NEG_INFINITY);
            assert!(round(dtype, f32::NAN, u32::MAX).is_nan());
        }
    }
}

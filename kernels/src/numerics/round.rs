//! Conversions between float types, each rounding once to nearest even.
//!
//! Written as plain integer arithmetic without branches, so that loops over them vectorise and a lane gets the same
//! bits as a scalar.

use half::{bf16, f16};

/// An element type that is stored narrow or wide but computed in f32.
pub(crate) trait Float32: crate::Element + Send + Sync {
    /// The value as f32; exact.
    fn widen(self) -> f32;
    /// The nearest value of this type, ties to even.
    fn narrow(value: f32) -> Self;
}

impl Float32 for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Float32 for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        let bits = value.to_bits();
        // Adding just under half of the last kept place, and one more when that place is odd, carries as rounding does.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // The carry could turn a NaN into an infinity or zero; a quiet NaN keeps its sign instead.
        let quiet = bits | 0x0040_0000;
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        bf16::from_bits(((if nan { quiet } else { rounded }) >> 16) as u16)
    }
}

impl Float32 for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        // The exponent is 112 too small; a multiplication repairs it for subnormals too, exactly.
        let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let special = magnitude | 0x7f80_0000;
        let value = if magnitude >= 0x7c00 << 13 { special } else { finite.to_bits() };
        f32::from_bits(value | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let large = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        // Below the smallest normal half, adding 0.5 puts the last place of the sum where that of a subnormal half is.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add((magnitude >> 13) & 1) >> 13;
        let below = if magnitude < 0x3880_0000 { small } else { normal };
        let result = if magnitude >= 0x4780_0000 { large } else { below };
        f16::from_bits((result | (bits >> 16) & 0x8000) as u16)
    }
}

/// `value` as f32, rounded to odd: rounding that again to a type of at most 22 fraction bits gives the nearest of it.
pub fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // The nearest is even and inexact: its odd neighbour on the other side of `value` holds what was cut off.
    let away = (value.abs() > f64::from(near).abs()) as u32;
    let bits = near.to_bits();
    if near == 0.0 {
        return f32::from_bits((value.is_sign_negative() as u32) << 31 | 1);
    }
    f32::from_bits(if away == 1 { bits + 1 } else { bits - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_half_widens_as_the_half_crate_says_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(h.is_nan() && h.widen().is_nan() || h.widen().to_bits() == h.to_f32().to_bits(), "{bits:x}");
            assert!(b.is_nan() && b.widen().is_nan() || b.widen().to_bits() == b.to_f32().to_bits(), "{bits:x}");
            assert!(h.is_nan() && f16::narrow(h.widen()).is_nan() || f16::narrow(h.widen()) == h);
            assert!(b.is_nan() && bf16::narrow(b.widen()).is_nan() || bf16::narrow(b.widen()) == b);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn narrowing_is_what_the_half_crate_does(bits: u32) {
            let x = f32::from_bits(bits);
            prop_assume!(!x.is_nan());
            prop_assert_eq!(f16::narrow(x).to_bits(), f16::from_f32_const(x).to_bits());
            prop_assert_eq!(bf16::narrow(x).to_bits(), bf16::from_f32_const(x).to_bits());
        }

        #[test]
        fn rounding_by_way_of_odd_is_rounding_once(bits: u16, nudge in -3i64..=3) {
            // Half-way points between neighbours, and values a hair's breadth off them, are where rounding twice errs.
            let (low, high) = (bf16::from_bits(bits & 0x7ffe), bf16::from_bits((bits & 0x7ffe) + 1));
            prop_assume!(low.is_finite() && high.is_finite());
            let middle = (low.to_f64() + high.to_f64()) / 2.0;
            let x = f64::from_bits((middle.to_bits() as i64 + nudge) as u64);
            let expected = if nudge > 0 { high } else { low };
            prop_assert_eq!(bf16::narrow(to_odd(x)).to_bits(), expected.to_bits());
            prop_assert_eq!(bf16::narrow(to_odd(-x)).to_bits(), expected.to_bits() | 0x8000);
        }
    }
}

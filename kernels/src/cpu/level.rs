//! Which vector instructions this CPU has, and how loops are compiled for them.

#![allow(unsafe_code, reason = "vector instructions that the CPU was asked for")]
#![allow(clippy::needless_range_loop, reason = "lanes of several rows are taken by number")]

use crate::numerics::round::Float32;
use crate::op::Activation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512 F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2, fused multiply-add and conversions of halves.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every CPU of this architecture has.
    Portable,
}

impl Level {
    /// The best that this CPU has.
    pub fn detect() -> Level {
        Level::available().pop().unwrap_or(Level::Portable)
    }

    /// All that this CPU has, the plainest first.
    pub fn available() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("bmi2") && has!("f16c");
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
            let found = [(true, Level::Portable), (avx2, Level::Avx2), (avx2 && wide, Level::Avx512)];
            found.into_iter().filter_map(|(has, level)| has.then_some(level)).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Level::Portable]
    }

    /// Runs `body` compiled for these instructions. It is told whether [`fma`] may fuse. What it calls must be
    /// `#[inline(always)]`, else it is compiled for the portable set.
    #[inline]
    pub fn run<R>(self, body: impl FnOnce(bool) -> R) -> R {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` found these features.
            Level::Avx512 => unsafe { avx512(body) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { avx2(body) },
            Level::Portable => body(cfg!(any(target_feature = "fma", target_arch = "aarch64"))),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
fn avx512<R>(body: impl FnOnce(bool) -> R) -> R {
    body(true)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2")]
fn avx2<R>(body: impl FnOnce(bool) -> R) -> R {
    body(true)
}

/// `a * b + c`, rounded once where the instructions fuse and twice where fusing would be a slow library call.
#[inline(always)]
pub(crate) fn fma(fused: bool, a: f32, b: f32, c: f32) -> f32 {
    if fused { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` within 2 units in the last place, without branches, so that every lane of every vector gets the same bits.
///
/// Cody and Waite: `x = n ln 2 + r` with ln 2 in two parts, a polynomial of degree 7 in `r` for `|r| <= ln 2 / 2`
/// (Taylor's coefficients, whose error there is below 2^-27), and two factors of `2^(n/2)`, which also reach the
/// subnormals. Above 88.73 it is infinite, below -104 it is zero, of a NaN it is a NaN.
#[inline(always)]
pub(crate) fn exp(fused: bool, x: f32) -> f32 {
    let (p, shifted) = reduced(fused, x.clamp(-105.0, 89.0));
    let n = shifted.wrapping_sub(MAGIC.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    p * power(half) * power(n.wrapping_sub(half))
}

/// Adding 1.5 * 2^23 leaves the integer nearest to the addend in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// `e^r` of [`exp`], between 0.7 and 1.5, and the bits of `n` plus [`MAGIC`].
#[inline(always)]
fn reduced(fused: bool, x: f32) -> (f32, u32) {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = fma(fused, x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = fma(fused, n, -LN2_LOW, fma(fused, n, -LN2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = fma(fused, p, r, c);
    }
    (fma(fused, p * r, r, r) + 1.0, shifted.to_bits())
}

/// `1 / (1 + e^-x)`, and 0 below -87, where it is less than 2^-125. The power of two is added to the bits of the exponent,
/// which [`exp`], with its subnormals, cannot do. What comes of a NaN may be a number: activations multiply it by the NaN.
#[inline(always)]
pub(crate) fn sigmoid(fused: bool, x: f32) -> f32 {
    let (p, shifted) = reduced(fused, (-x).clamp(-87.0, 87.0));
    let share = 1.0 / (1.0 + f32::from_bits(p.to_bits().wrapping_add(shifted << 23)));
    if x < -87.0 { 0.0 } else { share }
}

/// What an activation lets through of `x`, and its slope: `act(x) = x * share`.
#[inline(always)]
pub(crate) fn activation(fused: bool, act: Activation, x: f32) -> (f32, f32) {
    match act {
        Activation::Silu => {
            let s = sigmoid(fused, x);
            (s, s * fma(fused, x, 1.0 - s, 1.0))
        }
        Activation::Gelu => {
            let (share, density) = normal(fused, x);
            (share, fma(fused, x, density, share))
        }
        Activation::GeluTanh => {
            // (1 + tanh u) / 2 is the sigmoid of 2u.
            const TWICE: f32 = 1.595_769;
            const CUBIC: f32 = 0.044_715;
            let square = x * x;
            let s = sigmoid(fused, TWICE * x * fma(fused, CUBIC, square, 1.0));
            let inner = TWICE * fma(fused, 3.0 * CUBIC, square, 1.0);
            (s, fma(fused, x * inner, s * (1.0 - s), s))
        }
    }
}

/// The standard normal distribution and its density, within 2e-7: Abramowitz and Stegun, formula 7.1.26, whose error is
/// below 1.5e-7.
#[inline(always)]
fn normal(fused: bool, x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / fma(fused, 0.327_591_1, z, 1.0);
    let mut p = 1.061_405_4;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_73, 0.254_829_6] {
        p = fma(fused, p, t, c);
    }
    let falloff = exp(fused, -z * z);
    let beyond = 0.5 * p * t * falloff;
    let share = if x < 0.0 { beyond } else { 1.0 - beyond };
    (share, falloff * (0.5 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2))
}

/// Lanes of a reduction: element `i` of a row always goes to lane `i % LANES`, and lanes are merged in one order.
pub(crate) const LANES: usize = 32;

/// Merges lanes pairwise.
#[inline(always)]
pub(crate) fn merge(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Folds elements into their lanes; `x` starts at lane 0.
#[inline(always)]
pub(crate) fn fold<T: Float32>(lanes: &mut [f32; LANES], x: &[T], step: impl Fn(f32, f32) -> f32) {
    let mut own = *lanes;
    let mut blocks = x.chunks_exact(LANES);
    for block in &mut blocks {
        for i in 0..LANES {
            own[i] = step(own[i], block[i].widen());
        }
    }
    for (lane, x) in own.iter_mut().zip(blocks.remainder()) {
        *lane = step(*lane, x.widen());
    }
    *lanes = own;
    if size_of::<T>() < size_of::<f32>() {
        // Lanes are in memory from here on. Where the compiler sees that they will be merged in pairs and has conversions
        // to place besides, it keeps pairs all the way, and the loop has vectors of two.
        std::hint::black_box(lanes);
    }
}

/// As [`fold`] over several rows of one length.
#[inline(always)]
pub(crate) fn fold_rows<T: Float32, const N: usize>(
    lanes: &mut [f32; LANES],
    rows: [&[T]; N],
    step: impl Fn(f32, [f32; N]) -> f32,
) {
    let len = rows[0].len();
    let mut own = *lanes;
    let parts = rows.map(|row| row[..len].as_chunks::<LANES>());
    for number in 0..len / LANES {
        let mut blocks = [&parts[0].0[number]; N];
        for n in 1..N {
            blocks[n] = &parts[n].0[number];
        }
        for i in 0..LANES {
            let mut values = [0.0; N];
            for n in 0..N {
                values[n] = blocks[n][i].widen();
            }
            own[i] = step(own[i], values);
        }
    }
    for i in 0..len % LANES {
        let mut values = [0.0; N];
        for n in 0..N {
            values[n] = parts[n].1[i].widen();
        }
        own[i] = step(own[i], values);
    }
    *lanes = own;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for fused in [false, true] {
            let mut worst = 0.0f64;
            let mut x = -87.0f32;
            while x < 88.7 {
                let exact = f64::from(x).exp();
                let unit = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
                worst = worst.max((f64::from(exp(fused, x)) - exact).abs() / unit);
                x += 0.000_731;
            }
            assert!(worst <= 2.0, "{worst} units with fused = {fused}");
        }
    }

    #[test]
    fn exp_at_the_ends() {
        for fused in [false, true] {
            let exp = |x| exp(fused, x);
            assert_eq!(exp(0.0), 1.0);
            assert_eq!((exp(f32::INFINITY), exp(1e30), exp(89.0)), (f32::INFINITY, f32::INFINITY, f32::INFINITY));
            assert_eq!((exp(f32::NEG_INFINITY), exp(-1e30), exp(-104.5)), (0.0, 0.0, 0.0));
            assert!(exp(f32::NAN).is_nan());
            let subnormal = exp(-100.0);
            assert!((f64::from(subnormal) - (-100f64).exp()).abs() <= 1.5e-45, "{subnormal:e}");
        }
    }

    #[test]
    fn sigmoid_is_within_three_units_in_the_last_place() {
        for fused in [false, true] {
            let mut x = -87.0f32;
            while x < 200.0 {
                let exact = 1.0 / (1.0 + f64::from(-x).exp());
                let unit = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
                let off = (f64::from(sigmoid(fused, x)) - exact).abs() / unit;
                assert!(off <= 3.0, "{off} units at {x} with fused = {fused}");
                x += 0.000_731;
            }
            for x in [-88.0, -104.0, -1e30, f32::NEG_INFINITY] {
                assert!((0.0..=1e-37).contains(&sigmoid(fused, x)), "{x}");
            }
            assert_eq!((sigmoid(fused, f32::INFINITY), sigmoid(fused, 0.0)), (1.0, 0.5));
            for act in [Activation::Silu, Activation::GeluTanh] {
                for nan in [f32::NAN, f32::from_bits(0x7fc0_01ff), f32::from_bits(0xff80_0001)] {
                    let (share, slope) = activation(fused, act, nan);
                    assert!((nan * share).is_nan() && slope.is_nan(), "{act:?}");
                }
            }
        }
    }

    #[test]
    fn a_level_gives_lanes_and_tails_the_same_bits() {
        Level::available().into_iter().for_each(same_bits);
    }

    fn same_bits(level: Level) {
        let x: Vec<f32> = (0..203).map(|i| (i as f32 - 100.0) * 0.37).collect();
        let mut whole = vec![0.0; x.len()];
        let apply = |x: &[f32], y: &mut [f32]| {
            level.run(
                #[inline(always)]
                |fused| y.iter_mut().zip(x).for_each(|(y, x)| *y = exp(fused, *x)),
            );
        };
        apply(&x, &mut whole);
        for start in 0..x.len() {
            let mut part = vec![0.0; (x.len() - start).min(21)];
            apply(&x[start..start + part.len()], &mut part);
            assert!(part.iter().zip(&whole[start..]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

//! Element types as the suite needs them, and what each rank gives.

use half::{bf16, f16};
use zbench_collectives::ReduceOp;
use zbench_kernels::Element;

/// An element type with what the oracle has to know.
pub trait Sample: Element + Send + Sync {
    /// Whether it is an integer.
    const INTEGER: bool;
    /// The distance from 1 to the next number; 0 for integers.
    const EPSILON: f64;
    /// The smallest positive number; 0 for integers.
    const TINY: f64;

    /// The nearest element; integers wrap.
    fn of(value: f64) -> Self;
    /// Its value, exactly.
    fn get(self) -> f64;
    /// Its low bits as an integer; wraps.
    fn wrap(value: i64) -> Self;
    /// Its bits, so that equal means equal.
    fn bits(self) -> u64;
}

macro_rules! floats {
    ($($t:ty: $digits:expr, $lowest:expr, $of:expr, $get:expr;)*) => {
        $(impl Sample for $t {
            const INTEGER: bool = false;
            const EPSILON: f64 = power($digits);
            const TINY: f64 = power($lowest);
            fn of(value: f64) -> Self { $of(value) }
            fn get(self) -> f64 { $get(self) }
            fn wrap(value: i64) -> Self { $of(value as f64) }
            fn bits(self) -> u64 { self.to_bits().into() }
        })*
    };
}
floats! {
    f64: -52, -1022, |v| v, |v| v;
    f32: -23, -149, |v| v as f32, f64::from;
    // By way of f32: `half`'s conversions from f64 drop the low bits first, and so take some numbers for ties.
    bf16: -7, -133, |v| bf16::from_f32(v as f32), bf16::to_f64;
    f16: -10, -24, |v| f16::from_f32(v as f32), f16::to_f64;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Sample for $t {
            const INTEGER: bool = true;
            const EPSILON: f64 = 0.0;
            const TINY: f64 = 0.0;
            fn of(value: f64) -> Self { value as i64 as $t }
            fn get(self) -> f64 { self.into() }
            fn wrap(value: i64) -> Self { value as $t }
            fn bits(self) -> u64 { self as u64 }
        })*
    };
}
integers!(i32, i8, u32);

/// Two to a power.
const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent as i64) as u64) << 52)
}

/// What rank `rank` gives at index `i` under `seed`: any integer; floats of both signs and very different size, so that
/// another order of sums gives other bits; floats near 1 for products, so that they stay finite.
pub fn value<T: Sample>(seed: u64, rank: usize, i: usize, op: Option<ReduceOp>) -> T {
    let bits = mixed(seed ^ mixed((rank as u64) << 40 ^ i as u64));
    if T::INTEGER {
        return T::wrap(bits as i64);
    }
    let fraction = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
    if op == Some(ReduceOp::Prod) {
        return T::of(sign * (0.75 + fraction / 2.0));
    }
    let exponent = (bits >> 1) % 12;
    T::of(sign * (fraction + 0.5) * (1 << exponent) as f64)
}

/// As [`value`], for the first `len` indices.
pub fn values<T: Sample>(seed: u64, rank: usize, len: usize, op: Option<ReduceOp>) -> Vec<T> {
    (0..len).map(|i| value(seed, rank, i, op)).collect()
}

/// Steele and others' splitmix64.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

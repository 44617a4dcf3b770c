//! Activation functions `x * share(x)` in f64.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};
use zbench_kernels::Activation;

/// sqrt(2/pi), and the cubic's coefficient, of the approximation with tanh.
const TANH: (f64, f64) = (FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.044715);

/// What an activation lets through of `x`.
pub(super) fn share(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => sigmoid(x),
        Activation::Gelu => 0.5 * erfc(-x * FRAC_1_SQRT_2),
        Activation::GeluTanh => sigmoid(2.0 * TANH.0 * (x + TANH.1 * x * x * x)),
    }
}

/// The derivative of `x * share(x)`.
pub(super) fn slope(act: Activation, x: f64) -> f64 {
    let s = share(act, x);
    match act {
        Activation::Silu => s * (1.0 + x * (1.0 - s)),
        Activation::Gelu => s + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Activation::GeluTanh => s + x * s * (1.0 - s) * 2.0 * TANH.0 * (1.0 + 3.0 * TANH.1 * x * x),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The complementary error function: the power series of erf around 0, whose terms all have one sign, and beyond it the
/// continued fraction of erfc.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return 1.0 - FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    // From the innermost fraction outwards; 60 levels are more than f64 needs here.
    let tail = (1..=60).rev().fold(x, |tail, k| x + 0.5 * f64::from(k) / tail);
    (-x * x).exp() * 0.5 * FRAC_2_SQRT_PI / tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Abramowitz and Stegun, table 7.1, to its ten digits.
    #[test]
    fn erfc_is_the_tabulated_one() {
        for (x, erf) in [(0.0, 0.0), (0.1, 0.1124629160), (0.5, 0.5204998778), (1.0, 0.8427007929), (2.0, 0.9953222650)]
        {
            assert!((1.0 - erfc(x) - erf).abs() < 1e-10 && (erfc(-x) - 1.0 - erf).abs() < 1e-10, "{x}");
        }
        // Both branches meet.
        let (below, above) = (erfc(2.5 - 1e-12), erfc(2.5));
        assert!((below / above - 1.0).abs() < 1e-10, "{below} {above}");
        assert!((erfc(5.0) / 1.537459794428e-12 - 1.0).abs() < 1e-11);
    }
}

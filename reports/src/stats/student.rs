//! Student's t, and Welch's interval of a difference.

use super::{Interval, mean, variance};

/// Student's t at 97.5 % for any number of degrees of freedom above 0, whole or not: half of a 95 % interval, in standard
/// errors. Infinite for none, NaN for NaN.
pub fn student_t(degrees: f64) -> f64 {
    if degrees.is_nan() || degrees <= 0.0 {
        return if degrees.is_nan() { f64::NAN } else { f64::INFINITY };
    }
    if degrees > 1e7 { NORMAL } else { student_t_above(degrees, TAIL) }
}

/// The t that Student's distribution exceeds with probability `tail` (above 0, at most a half), for degrees of freedom
/// above 0, whole or not.
pub(crate) fn student_t_above(degrees: f64, tail: f64) -> f64 {
    // The tail falls with t: halve until two neighbours are left. t of a tenth of a degree is about 1e12.
    let (mut low, mut high) = (0.0f64, 1e15f64);
    for _ in 0..200 {
        let middle =
            if high > 4.0 * (low + 1.0) { ((low + 1.0) * (high + 1.0)).sqrt() - 1.0 } else { (low + high) / 2.0 };
        if middle <= low || middle >= high {
            break;
        }
        if upper_tail(middle, degrees) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// What lies above the limit on one side.
const TAIL: f64 = 0.025;
/// The normal distribution's limit.
const NORMAL: f64 = 1.959_963_984_540_054;

/// P(T > t) for t >= 0: half the regularised incomplete beta function of (v/2, 1/2) at v / (v + t^2).
fn upper_tail(t: f64, degrees: f64) -> f64 {
    0.5 * incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// The regularised incomplete beta function, by its continued fraction on the side where that converges fast.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * continued_fraction(x, a, b) / a
    } else {
        1.0 - front * continued_fraction(1.0 - x, b, a) / b
    }
}

/// Lentz's evaluation from the front; a denominator of zero becomes tiny instead.
fn continued_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let kept = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut c, mut d) = (1.0, 1.0 / kept(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for step in 1..10_000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / kept(1.0 + even * d);
        c = kept(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / kept(1.0 + odd * d);
        c = kept(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    fraction
}

/// ln Γ(x) for x > 0: Stirling's series, after Γ(x) = Γ(x + k) / (x (x + 1) … (x + k - 1)) has made x large enough.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

/// The sample variance over n: the square of the mean's standard error. Needs two values.
fn squared_error(values: &[f64]) -> Option<f64> {
    Some(variance(values)? / values.len() as f64)
}

/// Welch's 95 % interval of mean(b) - mean(a), with the degrees of freedom of Satterthwaite: the two sides may vary
/// differently and be of different size. `None` where a side has fewer than two values or one that is not finite.
pub fn difference(a: &[f64], b: &[f64]) -> Option<Interval> {
    let mid = mean(b)? - mean(a)?;
    let (of_a, of_b) = (squared_error(a)?, squared_error(b)?);
    let error = of_a + of_b;
    if !mid.is_finite() || !error.is_finite() {
        return None;
    }
    if error == 0.0 {
        return Some(Interval { low: mid, mid, high: mid });
    }
    // As shares of the error, so that very small and very large errors have squares.
    let part = |error_of: f64, count: usize| (error_of / error).powi(2) / (count as f64 - 1.0);
    let degrees = 1.0 / (part(of_a, a.len()) + part(of_b, b.len()));
    let half = student_t(degrees) * error.sqrt();
    half.is_finite().then_some(Interval { low: mid - half, mid, high: mid + half })
}

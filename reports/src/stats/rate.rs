//! How fast a cell is: the median over its trials, with an interval of what its trials differ by.

use super::{Interval, mean, median, student_t, variance};

/// A median of three trials or more varies more than their mean, by the square root of pi / 2 where they are many and
/// normal, and by less where they are few.
const OF_A_MEDIAN: f64 = std::f64::consts::FRAC_PI_2;

/// The median over trials of work over time, with its 95 % interval; each trial is the work and time of its steps. Trials
/// whose rate is no finite number above 0 are left out; `None` if none is left.
///
/// The interval is the median plus and minus `t sqrt(c v / n)`: n trials, Student's t at 97.5 % with n - 1 degrees of freedom,
/// c = 1 for two trials and pi / 2 for more, and v the larger of two variances: that of the trials' rates, and the mean over
/// trials of the variance that the differences between its steps give a rate. Its lower limit is never below 0.
///
/// One trial says nothing of how trials differ: its interval has no upper limit ([`Interval::is_bounded`]).
///
/// Fewer trials of the same v always give a wider interval. And whatever the rates are, the mean of the squared half widths
/// over all ways to take one trial away is larger than the square of the half width of them all, because v without one
/// trial is, in the mean over that trial, at least v, and t² / n rises.
pub fn rate(trials: &[Vec<(f64, f64)>]) -> Option<Interval> {
    let (rates, of_steps): (Vec<f64>, Vec<f64>) = trials.iter().filter_map(|steps| rate_of(steps)).unzip();
    let mid = median(&rates)?;
    let count = rates.len() as f64;
    let spread = variance(&rates).unwrap_or(0.0).max(mean(&of_steps)?);
    let factor = if rates.len() > 2 { OF_A_MEDIAN } else { 1.0 };
    let half = match rates.len() {
        1 => f64::INFINITY,
        _ => student_t(count - 1.0) * (factor * spread / count).sqrt(),
    };
    Some(Interval { low: (mid - half).max(0.0), mid, high: mid + half })
}

/// The rate of a trial, and the variance that the differences between its steps give it: that of a ratio of two sums. A
/// single step shows none.
fn rate_of(steps: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (work, time) = steps.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
    let rate = Some(work / time).filter(|rate| rate.is_finite() && *rate > 0.0)?;
    let count = steps.len() as f64;
    let squares: f64 = steps.iter().map(|step| (step.0 / work - step.1 / time).powi(2)).sum();
    let of_steps = if steps.len() > 1 { rate * rate * squares * count / (count - 1.0) } else { 0.0 };
    Some((rate, of_steps))
}

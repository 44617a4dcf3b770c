//! The ratio of two sides, with an interval over trials and steps.

use std::cmp::Ordering;

use super::{ENOUGH, Interval, RESAMPLES, SEED, difference, median_in_place};
use crate::random::Random;

/// How B stands to A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median over A's trials.
    pub a: f64,
    /// Median over B's trials.
    pub b: f64,
    /// `b / a` with its 95 % interval; from 0 and without an upper limit where a side has one trial.
    pub ratio: Interval,
    /// How many trials of A and of B it rests on.
    pub trials: (usize, usize),
}

impl Ratio {
    /// Whether one of the sides has one trial only: nothing is known of how trials differ, so there is no interval and
    /// nothing may be claimed.
    pub fn has_too_few_trials(&self) -> bool {
        self.trials.0.min(self.trials.1) < 2
    }
}

/// How many resamples of its steps stand for a trial.
const INNER: usize = 250;

/// The ratio of the medians over trials, B to A, of a statistic of a trial's steps, with its 95 % interval: two-level
/// bootstrap of the logarithm, and for fewer than ten trials on a side Welch's interval of the mean logarithms taken in.
///
/// Two levels, because steps of one run resemble each other more than steps of two runs. Of each trial's steps 250 resamples
/// are drawn first; then each of 2000 resamples draws, for either side, as many trials as there are and one resample of the
/// steps of each.
///
/// The result does not depend on the order of the trials, and exchanging A and B inverts it: half of the resamples are
/// drawn with the two streams of random numbers exchanged. Trials whose statistic is not finite and above 0 are
/// left out; `None` where a side has none left.
pub fn ratio<T: Clone + PartialOrd>(a: &[Vec<T>], b: &[Vec<T>], of_trial: impl Fn(&[T]) -> f64) -> Option<Ratio> {
    let (a, b) = (Side::new(a, &of_trial), Side::new(b, &of_trial));
    let (mid_a, mid_b) = (a.median()?, b.median()?);
    let trials = (a.values.len(), b.values.len());
    // Where a ratio is beyond what numbers hold, the largest or smallest number stands for it.
    let mid = (mid_b / mid_a).clamp(f64::MIN_POSITIVE, f64::MAX);
    if trials.0.min(trials.1) < 2 {
        let ratio = Interval { low: 0.0, mid, high: f64::INFINITY };
        return Some(Ratio { a: mid_a, b: mid_b, ratio, trials });
    }
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for (stream_a, stream_b) in [(1, 2), (2, 1)] {
        let (mut random_a, mut random_b) = (stream(stream_a), stream(stream_b));
        let mut drawn = Vec::new();
        for _ in 0..RESAMPLES / 2 {
            let of_a = a.draw(&mut random_a, &mut drawn);
            ratios.push(b.draw(&mut random_b, &mut drawn) / of_a);
        }
    }
    // The same count is cut off on both sides. Logarithms have the same order, and need not be taken.
    let cut = RESAMPLES / 40 - 1;
    let (_, low, rest) = ratios.select_nth_unstable_by(cut, f64::total_cmp);
    let low = *low;
    let (_, high, _) = rest.select_nth_unstable_by(RESAMPLES - 2 - 2 * cut, f64::total_cmp);
    let (mut low, mut high) = (low.min(mid), high.min(f64::MAX).max(mid));
    if trials.0.min(trials.1) < ENOUGH {
        let logs = |side: &Side| side.values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
        if let Some(welch) = difference(&logs(&a), &logs(&b)) {
            let log = mid_b.ln() - mid_a.ln();
            let limit = |limit: f64| (mid * (limit - log).exp()).min(f64::MAX);
            (low, high) = (low.min(limit(welch.low)), high.max(limit(welch.high)));
        }
    }
    let ratio = Interval { low, mid, high };
    Some(Ratio { a: mid_a, b: mid_b, ratio, trials })
}

fn stream(number: u64) -> Random {
    Random::new(SEED ^ number.wrapping_mul(0xa076_1d64_78bd_642f))
}

/// The trials of one side: what each states, and what resamples of its steps state.
struct Side {
    values: Vec<f64>,
    /// As many for each trial, so that one number draws a trial and a resample of its steps.
    resampled: Vec<f64>,
}

impl Side {
    fn new<T: Clone + PartialOrd>(trials: &[Vec<T>], of_trial: &impl Fn(&[T]) -> f64) -> Self {
        let is_usable = |value: &f64| value.is_finite() && *value > 0.0;
        let stated = trials.iter().filter(|steps| !steps.is_empty()).map(|steps| (of_trial(steps), steps));
        let mut trials: Vec<(f64, &Vec<T>)> = stated.filter(|(value, _)| is_usable(value)).collect();
        // In an order of their own, so that it does not matter in which they came.
        let by_steps = |a: &Vec<T>, b: &Vec<T>| a.partial_cmp(b).unwrap_or(Ordering::Equal);
        trials.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| by_steps(a.1, b.1)));
        // What trials state holds the noise of their steps once already; to add it whole would count it twice. Over many
        // trials the bootstrap of trials alone has its variance short by a part in their number: deviations shrunk so
        // make up for that part.
        let shrink = 1.0 / (trials.len() as f64).sqrt();
        let count = if trials.iter().any(|(_, steps)| steps.len() > 1) { INNER } else { 1 };
        let mut resampled = Vec::with_capacity(trials.len() * count);
        let mut drawn = Vec::new();
        for (place, (value, steps)) in trials.iter().enumerate() {
            let mut random = stream(3 + place as u64);
            for _ in 0..count {
                drawn.clear();
                drawn.extend((0..steps.len()).map(|_| steps[random.below(steps.len())].clone()));
                let of_drawn = Some(of_trial(&drawn)).filter(is_usable).unwrap_or(*value);
                resampled.push(value + (of_drawn - value) * shrink);
            }
        }
        Self { values: trials.into_iter().map(|(value, _)| value).collect(), resampled }
    }

    fn median(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| median_in_place(&mut self.values.clone()))
    }

    /// The median of one resample.
    fn draw(&self, random: &mut Random, drawn: &mut Vec<f64>) -> f64 {
        drawn.clear();
        drawn.extend(self.values.iter().map(|_| self.resampled[random.below(self.resampled.len())]));
        median_in_place(drawn)
    }
}

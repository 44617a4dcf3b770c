//! Medians, spread, bootstrap intervals, ratios and ties.

mod random;
mod ratio;
mod student;

use random::SplitMix64;

pub use ratio::{Ratio, ratio};
pub use student::{difference, interval_of_mean, student_t};

/// Mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The value below which `percent` of the values lie, by linear interpolation between the two nearest (the inclusive
/// definition: 0 is the least and 100 the greatest value). `None` of nothing. Values must not be NaN.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile_of_sorted(&sorted, percent)
}

fn percentile_of_sorted(sorted: &[f64], percent: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = percent.clamp(0.0, 100.0) / 100.0 * last as f64;
    let (below, above) = (place.floor() as usize, (place.ceil() as usize).min(last));
    let share = place - below as f64;
    // Equal neighbours are returned as they are: a weighted sum of two equal numbers may differ in the last bit.
    if sorted[below] == sorted[above] {
        return Some(sorted[below]);
    }
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

/// Median; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50.0)
}

/// The median of at least one value, in whatever order they are left; NaN counts as the largest.
fn median_in_place(values: &mut [f64]) -> f64 {
    // Three trials are the usual case, and this is the innermost loop of a comparison.
    if let [a, b, c] = *values {
        return a.min(b).max(a.max(b).min(c));
    }
    let is_odd = !values.len().is_multiple_of(2);
    let (below, middle, _) = values.select_nth_unstable_by(values.len() / 2, f64::total_cmp);
    let middle = *middle;
    if is_odd {
        return middle;
    }
    let before = below.iter().copied().max_by(f64::total_cmp).unwrap_or(middle);
    if before == middle { middle } else { before / 2.0 + middle / 2.0 }
}

/// Coefficient of variation: sample standard deviation (n - 1) over the mean, as a fraction. `None` for fewer than two
/// values or a mean of zero.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    if values.len() < 2 || mean == 0.0 {
        return None;
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt() / mean.abs())
}

/// A value with the limits between which it is believed to lie; `low <= mid <= high`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower limit.
    pub low: f64,
    /// The value itself.
    pub mid: f64,
    /// Upper limit.
    pub high: f64,
}

impl Interval {
    /// Whether the two have a value in common; touching counts.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// How many resamples an interval is made from.
pub const RESAMPLES: usize = 2000;
/// The share of resamples that lie inside an interval, percent.
pub const CONFIDENCE: f64 = 95.0;
const SEED: u64 = 0x7a62_656e_6368;

/// The median over trials of a statistic of a trial's steps, with its bootstrap percentile interval ([`CONFIDENCE`]).
///
/// Two levels, because steps of one run resemble each other more than steps of two runs: each resample draws as many
/// trials as there are, with replacement, then in each of them as many steps as it has, with replacement, and takes the
/// median of `of_trial` over them. The seed is fixed, so the same records give the same interval.
///
/// A percentile interval of three trials is close to their range and would cover about 75 % of the time, so up to nine
/// trials Student's interval of their mean is taken in as well. With one trial the interval holds the noise between
/// steps only, and with one step it has no width. Reports say so. Empty trials and those whose statistic is not finite are left out; `None` if none
/// is left.
pub fn bootstrap<T: Clone>(trials: &[Vec<T>], of_trial: impl Fn(&[T]) -> f64) -> Option<Interval> {
    let trials: Vec<&Vec<T>> = trials.iter().filter(|steps| !steps.is_empty() && of_trial(steps).is_finite()).collect();
    let values: Vec<f64> = trials.iter().map(|steps| of_trial(steps)).collect();
    let mid = median(&values)?;

    let mut random = SplitMix64(SEED);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut drawn = Vec::new();
    let mut of_drawn = Vec::with_capacity(trials.len());
    for _ in 0..RESAMPLES {
        of_drawn.clear();
        for _ in 0..trials.len() {
            let steps = trials[random.below(trials.len())];
            drawn.clear();
            drawn.extend((0..steps.len()).map(|_| steps[random.below(steps.len())].clone()));
            of_drawn.push(of_trial(&drawn));
        }
        medians.extend(median(&of_drawn).filter(|value| value.is_finite()));
    }
    medians.sort_by(f64::total_cmp);
    let tail = (100.0 - CONFIDENCE) / 2.0;
    let low = percentile_of_sorted(&medians, tail).unwrap_or(mid).min(mid);
    let high = percentile_of_sorted(&medians, 100.0 - tail).unwrap_or(mid).max(mid);
    let (low, high) = widened_for_few(&values, low, high);
    Some(Interval { low, mid, high })
}

/// From this many trials on the bootstrap stands alone.
pub(crate) const ENOUGH: usize = 10;

/// Takes in Student's interval of the mean where there are two to nine trials. A bound of numbers that are never negative
/// is not either.
fn widened_for_few(values: &[f64], low: f64, high: f64) -> (f64, f64) {
    let Some(student) = interval_of_mean(values).filter(|_| values.len() < ENOUGH) else { return (low, high) };
    let least = if values.iter().all(|value| *value >= 0.0) { 0.0 } else { f64::NEG_INFINITY };
    (low.min(student.low.max(least)), high.max(student.high))
}

/// Where a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// 1 for the best and all that are tied with it; then 1 plus the number of cells in better groups.
    pub rank: usize,
    /// Whether others have the same rank.
    pub tied: bool,
}

impl Place {
    /// `1`, or `1=` when tied.
    pub fn label(&self) -> String {
        format!("{}{}", self.rank, if self.tied { "=" } else { "" })
    }
}

/// Ranks by value, the highest first, with ties.
///
/// Cells are ordered by their median. The first is the best of the first group, and *every* cell whose interval overlaps
/// the interval of that best cell is tied with it. The best of the remaining cells opens the next group, and so on. So
/// "tied for first" means exactly: the intervals overlap that of the highest median. The rank of a group is 1 plus the
/// number of cells in the groups before it.
///
/// Ranks need not follow the medians: two cells of a group need not overlap each other, cells of different groups may
/// overlap as long as neither is the best of the better group, and a cell with a wide interval can be tied with the best
/// though a cell of a higher median, whose interval is narrow, is not. A report therefore orders its rows by the median
/// and names such cells.
pub fn places(cells: &[Interval]) -> Vec<Place> {
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by(|&a, &b| cells[b].mid.total_cmp(&cells[a].mid));
    let mut places = vec![Place { rank: 0, tied: false }; cells.len()];
    let mut rank = 1;
    while let Some(&best) = order.first() {
        let (group, rest): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|&cell| cell == best || cells[cell].overlaps(&cells[best]));
        for &cell in &group {
            places[cell] = Place { rank, tied: group.len() > 1 };
        }
        rank += group.len();
        order = rest;
    }
    places
}

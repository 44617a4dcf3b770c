//! Medians, spread, intervals, ratios and ties.

mod rate;
mod ratio;
mod student;

pub use rate::rate;
pub use ratio::{Ratio, ratio};
pub(crate) use student::student_t_above;
pub use student::{difference, student_t};

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

pub(crate) fn percentile_of_sorted(sorted: &[f64], percent: f64) -> Option<f64> {
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
pub(crate) fn median_in_place(values: &mut [f64]) -> f64 {
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

/// Sample variance (n - 1); `None` for fewer than two values.
fn variance(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() - 1) as f64)
}

/// Coefficient of variation: sample standard deviation (n - 1) over the mean, as a fraction. `None` for fewer than two
/// values or a mean of zero.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|mean| *mean != 0.0)?;
    Some(variance(values)?.sqrt() / mean.abs())
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
    /// Whether both limits are numbers. Those of a single trial are not: nothing is known of how trials differ.
    pub fn is_bounded(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// Whether the two have a value in common; touching counts.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// How many resamples the interval of a ratio is made from.
const RESAMPLES: usize = 2000;
const SEED: u64 = 0x7a62_656e_6368;
/// From this many trials on the bootstrap of a ratio stands alone.
pub(crate) const ENOUGH: usize = 10;

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

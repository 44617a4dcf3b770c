//! Medians that outliers hardly move. All are exact: negated values give the negated result, in any order.

use crate::stats;

/// The median; the values are reordered. 0 for none.
pub fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() { 0.0 } else { stats::median_in_place(values) }
}

/// The median distance from the median, times 1.4826: the standard deviation, were the values normal.
pub fn deviation(values: &[f64]) -> f64 {
    let mut own = values.to_vec();
    let centre = median(&mut own);
    own.iter_mut().for_each(|value| *value = (*value - centre).abs());
    1.4826 * median(&mut own)
}

/// Up to this many averages are written down and sorted.
const FEW: usize = 4096;

/// Hodges and Lehmann's estimate of location (the pseudo-median): the median of the averages of all pairs of values, each
/// value also paired with itself. 0 for no values.
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len();
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else {
        return 0.0;
    };
    // The average at the rank sought lies in low..=high; both close in until few averages are left between them.
    let all = count * (count + 1) / 2;
    let (mut low, mut high) = (first, last);
    let (mut below, mut up_to) = (0, all);
    while up_to - below > FEW {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        let counted = averages_up_to(&sorted, middle);
        // Ranks are counted from 0: the two in the middle are (all - 1) / 2 and all / 2.
        if counted <= (all - 1) / 2 {
            (low, below) = (middle, counted);
        } else if counted > all / 2 {
            (high, up_to) = (middle, counted);
        } else {
            // The two in the middle lie on different sides.
            let lower = edge(&sorted, middle, true);
            let upper = edge(&sorted, middle, false);
            return (lower + upper) / 2.0;
        }
    }
    let everything = below == 0;
    let mut left = Vec::with_capacity(up_to - below);
    for (at, &one) in sorted.iter().enumerate() {
        let averages = sorted[at..].iter().map(|&other| (one + other) / 2.0);
        left.extend(averages.filter(|&average| (everything || average > low) && average <= high));
    }
    left.sort_unstable_by(f64::total_cmp);
    (left[(all - 1) / 2 - below] + left[all / 2 - below]) / 2.0
}

/// How many averages are at most `limit`.
fn averages_up_to(sorted: &[f64], limit: f64) -> usize {
    let (mut counted, mut end) = (0, sorted.len());
    for (at, &one) in sorted.iter().enumerate() {
        while end > at && (one + sorted[end - 1]) / 2.0 > limit {
            end -= 1;
        }
        if end <= at {
            break;
        }
        counted += end - at;
    }
    counted
}

/// The largest average that is at most `limit`, or the smallest above it.
fn edge(sorted: &[f64], limit: f64, under: bool) -> f64 {
    let mut best = if under { f64::NEG_INFINITY } else { f64::INFINITY };
    for (at, &one) in sorted.iter().enumerate() {
        let rest = &sorted[at..];
        let first_above = rest.partition_point(|&other| (one + other) / 2.0 <= limit);
        if under && first_above > 0 {
            best = best.max((one + rest[first_above - 1]) / 2.0);
        } else if !under && first_above < rest.len() {
            best = best.min((one + rest[first_above]) / 2.0);
        }
    }
    best
}

//! Speed against a cost such as memory.

use super::Verdict;

/// The points that no other makes pointless, by speed, the fastest first. A point is left out if another costs less and is
/// shown to be faster or equal, or costs the same and is shown to be faster. `verdict(a, b)` is that of b against a. Points
/// whose cost is not finite are left out: nothing is known of them.
pub fn frontier(points: &[(f64, f64)], verdict: impl Fn(usize, usize) -> Verdict) -> Vec<usize> {
    let known: Vec<usize> = (0..points.len()).filter(|&point| points[point].1.is_finite()).collect();
    let dominated = |point: usize| {
        known.iter().any(|&other| {
            let (own, its) = (points[point].1, points[other].1);
            other != point
                && its <= own
                && match verdict(point, other) {
                    Verdict::Faster => true,
                    Verdict::Equal => its < own,
                    Verdict::Slower | Verdict::Undecided => false,
                }
        })
    };
    let mut kept: Vec<usize> = known.iter().copied().filter(|&point| !dominated(point)).collect();
    kept.sort_by(|&a, &b| points[b].0.total_cmp(&points[a].0).then(a.cmp(&b)));
    kept
}

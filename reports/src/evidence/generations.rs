//! How far a mean can be off because its parts differ: generations of processes, or matched pairs of cells.

use super::Rules;
use crate::stats::student_t_above;

/// A part of the data, with its own estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The estimate, a logarithm.
    pub estimate: f64,
    /// How much it counts: its number of rounds. Above 0.
    pub weight: f64,
}

/// The weighted mean of the parts and the half width of its interval. None without parts.
///
/// The variance of a part is pooled from the parts (G of them in effect, with N = sum of weights n: G = N^2 / sum of n^2)
/// and from an assumed standard deviation that counts as `Rules::PRIOR` degrees of freedom. The half width is Student's t at half of
/// alpha times the root of variance / G.
pub fn interval(rules: &Rules, parts: &[Part], assumed_sd: f64) -> Option<(f64, f64)> {
    let total: f64 = parts.iter().map(|part| part.weight).sum();
    let squares: f64 = parts.iter().map(|part| part.weight * part.weight).sum();
    if parts.is_empty() || !(total > 0.0 && squares > 0.0) {
        return None;
    }
    let mean = parts.iter().map(|part| part.weight * part.estimate).sum::<f64>() / total;
    let (effective, usual) = (total * total / squares, squares / total);
    let spread: f64 = parts.iter().map(|part| part.weight / usual * (part.estimate - mean).powi(2)).sum();
    let degrees = Rules::PRIOR + effective - 1.0;
    let variance = (Rules::PRIOR * assumed_sd * assumed_sd + spread) / degrees;
    Some((mean, student_t_above(degrees, rules.alpha / 2.0) * (variance / effective).sqrt()))
}

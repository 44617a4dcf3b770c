//! The effect of a factor over matched pairs of cells.

use serde::{Deserialize, Serialize};

use super::generations::{Part, interval};
use super::{Comparison, Rules};

/// How a factor changes the speed, over pairs of cells that differ in it and in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// How many pairs have a bounded ratio.
    pub pairs: usize,
    /// The geometric mean of their ratios (speed with the factor's second value, divided by that with its first).
    pub ratio: f64,
    /// Lower limit of the mean (98 % with the default alpha).
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// The smallest ratio of a pair.
    pub smallest: f64,
    /// The largest ratio of a pair.
    pub largest: f64,
}

/// The effect over matched pairs: each comparison is of a cell (B) with the one that differs from it in the factor (A). Pairs
/// count alike, so that the effect is that of an average pair. None if no pair has limits.
///
/// The half width of its interval is the largest of three: by how the pairs differ and by how processes of one program do; by how
/// well each pair is known, from the pairs' own limits; and `stray`, by how much a cell may stray from itself in the same session
/// ([`super::stray`]). A few pairs that agree by chance, on a machine where single ratios are far off, are therefore no effect.
pub fn effect(rules: &Rules, pairs: &[Comparison], stray: f64) -> Option<Effect> {
    let known: Vec<(f64, f64, f64)> =
        pairs.iter().filter_map(|pair| Some((pair.ratio?.ln(), pair.low?.ln(), pair.high?.ln()))).collect();
    let count = known.len() as f64;
    let smallest = known.iter().map(|(middle, ..)| *middle).min_by(f64::total_cmp)?;
    let largest = known.iter().map(|(middle, ..)| *middle).max_by(f64::total_cmp)?;
    let (mean, low, high) = match known[..] {
        [only] => only,
        _ => {
            let parts: Vec<Part> = known.iter().map(|(middle, ..)| Part { estimate: *middle, weight: 1.0 }).collect();
            let (mean, between) = interval(rules, &parts, rules.instance_sd * std::f64::consts::SQRT_2)?;
            let squares = known.iter().map(|(middle, low, high)| (high - middle).max(middle - low).powi(2));
            let half = between.max(squares.sum::<f64>().sqrt() / count);
            (mean, mean - half, mean + half)
        }
    };
    Some(Effect {
        pairs: known.len(),
        ratio: mean.exp(),
        low: low.min(mean - stray).exp(),
        high: high.max(mean + stray).exp(),
        smallest: smallest.exp(),
        largest: largest.exp(),
    })
}

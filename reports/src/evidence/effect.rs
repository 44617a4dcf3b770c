//! The effect of a factor over matched pairs of cells.

use serde::{Deserialize, Serialize};

use super::generations::{Part, interval};
use super::{Comparison, Rules};

/// How a factor changes the speed, over pairs of cells that differ in it and in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// How many pairs have a ratio.
    pub pairs: usize,
    /// The geometric mean of their ratios (speed with the factor's second value, divided by that with its first).
    pub ratio: f64,
    /// Lower limit of the mean, by how the pairs differ and by how processes of one program do (98 % with the default alpha).
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// The smallest ratio of a pair.
    pub smallest: f64,
    /// The largest ratio of a pair.
    pub largest: f64,
}

/// The effect over matched pairs: each comparison is of a cell (B) with the one that differs from it in the factor (A). Pairs
/// count alike, so that the effect is that of an average pair. None if no pair has a ratio. A single pair has the limits of
/// its own comparison, and no effect while those are missing.
pub fn effect(rules: &Rules, pairs: &[Comparison]) -> Option<Effect> {
    let ratios: Vec<f64> = pairs.iter().filter_map(|pair| pair.ratio).collect();
    let smallest = ratios.iter().copied().min_by(f64::total_cmp)?;
    let largest = ratios.iter().copied().max_by(f64::total_cmp)?;
    let (ratio, low, high) = if ratios.len() == 1 {
        let pair = pairs.iter().find(|pair| pair.ratio.is_some())?;
        (pair.ratio?, pair.low?, pair.high?)
    } else {
        let parts: Vec<Part> = ratios.iter().map(|ratio| Part { estimate: ratio.ln(), weight: 1.0 }).collect();
        let (mean, half) = interval(rules, &parts, rules.instance_sd * std::f64::consts::SQRT_2)?;
        (mean.exp(), (mean - half).exp(), (mean + half).exp())
    };
    Some(Effect { pairs: ratios.len(), ratio, low, high, smallest, largest })
}

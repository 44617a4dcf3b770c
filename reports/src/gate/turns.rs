//! Turns of both sides: the record of a round, and the comparison of the speeds that follows from all rounds.

use super::decision::{Look, side_of};
use super::ranks::Shift;
use super::rules::{Bound, Rule};
use crate::evidence::{self, Comparison, Pair};
use crate::{stats, units};
use serde::{Deserialize, Serialize};

/// The metric that turns measure.
pub const SPEED: &str = "tokens_per_second";

/// Seconds of a generation of processes, its start included. Processes of one program differ for their whole life, so that
/// a verdict needs about four generations; shorter ones would spend much of their time on starting.
const GENERATION_SECONDS: f64 = 6.0;

/// How many generations of processes so many seconds are divided into: two at least.
pub fn generations(seconds: f64) -> u32 {
    // A number that is too large for the type becomes its largest.
    (seconds / GENERATION_SECONDS).max(2.0) as u32
}

/// One round: a turn of each side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Counted from 1 over all generations.
    pub round: u32,
    /// Generation of processes, from 1.
    pub generation: u32,
    /// False where other processes used the cores.
    pub counted: bool,
    /// Whether the baseline's turn came first.
    pub baseline_first: bool,
    /// Time of the baseline's turn per token.
    pub baseline_seconds_per_token: f64,
    /// Time of the candidate's turn per token.
    pub candidate_seconds_per_token: f64,
    /// The share of all cores that other processes used.
    pub others: f64,
    /// Wall time from the end of the round before to the end of this one; of the first round of a generation with the start of
    /// its processes.
    pub seconds: f64,
    /// Whether a gate looks at all rounds so far after this one.
    pub looked: bool,
}

/// The rounds so far.
#[derive(Debug, Clone)]
pub struct Score {
    pair: Pair,
    rates: Vec<f64>,
    slower: usize,
    discarded: usize,
}

impl Score {
    /// No round yet. A false difference is claimed with probability `alpha` at most.
    pub fn new(alpha: f64) -> Self {
        let pair = Pair::new(evidence::Rules { alpha, ..evidence::Rules::default() });
        Self { pair, rates: Vec::new(), slower: 0, discarded: 0 }
    }

    /// Adds a round.
    pub fn push(&mut self, round: &Round) {
        if !round.counted {
            self.discarded += 1;
            return;
        }
        let difference = round.candidate_seconds_per_token.ln() - round.baseline_seconds_per_token.ln();
        self.slower += usize::from(difference > 0.0);
        self.rates.push(1.0 / round.baseline_seconds_per_token);
        self.pair.push(round.generation, difference);
    }

    /// The candidate against the baseline.
    pub fn comparison(&self) -> Comparison {
        self.pair.comparison()
    }

    /// Whether the rounds decide on which side of a rule's band the candidate lies.
    pub fn is_decided(&self, rule: &Rule) -> bool {
        let Bound::Band { slower, faster } = rule.bound else { return false };
        let (upper, lower) = (slower.ln_1p(), -faster.ln_1p());
        let (is_above, is_below) = (|limit| self.pair.is_above(limit), |limit| self.pair.is_below(limit));
        // To find the limits takes long, to see that the edges of the band lie between them does not.
        if !(is_above(upper) || is_below(lower) || is_above(lower) && is_below(upper)) {
            return false;
        }
        look(&self.comparison(), rule).is_some_and(|(look, _)| look.verdict.is_some())
    }

    /// The result so far. `stopped` says that the user stopped it.
    pub fn turns(&self, stopped: bool) -> Turns {
        Turns {
            comparison: self.comparison(),
            slower: self.slower,
            discarded: self.discarded,
            baseline: stats::median(&self.rates).unwrap_or(f64::NAN),
            stopped,
        }
    }
}

/// The comparison of the speeds of both sides by their turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turns {
    /// The candidate against the baseline.
    pub comparison: Comparison,
    /// Rounds in which the candidate was slower.
    pub slower: usize,
    /// Rounds that were discarded, as other processes used the cores.
    pub discarded: usize,
    /// Median speed of the baseline, in tokens per second.
    pub baseline: f64,
    /// The user stopped it.
    pub stopped: bool,
}

/// A comparison by turns as a look at a metric of speed, and how much slower its band lets it be; none where it has no band.
pub(super) fn look(comparison: &Comparison, rule: &Rule) -> Option<(Look, f64)> {
    let Bound::Band { slower, faster } = rule.bound else { return None };
    let Comparison { ratio, low, high, rounds, .. } = *comparison;
    let mut look = Look { used: rounds, ..Look::default() };
    match (ratio, low, high) {
        (Some(ratio), Some(low), Some(high)) => {
            // A cost is the time, so that the limits change places.
            let shift = Shift { low: -high.ln(), mid: -ratio.ln(), high: -low.ln() };
            look.verdict = side_of(&shift, slower, faster);
            look.shift = Some(shift);
        }
        _ => look.why_not = format!("there are {}, which bound nothing", units::plural(rounds, "round", "rounds")),
    }
    Some((look, slower))
}

/// Whether a rule is about the speed that turns measure.
pub fn is_speed(rule: &Rule) -> bool {
    rule.metric.name == SPEED && matches!(rule.bound, Bound::Band { .. })
}

//! The rules of a gate, as its file states them; reading the file is for the command.

use super::metric::{Figure, Kind, Metric};
use super::verdict::Verdict;

/// How far a metric may move before it is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// A noisy metric: how many times slower or faster than the baseline is still the same, as shares.
    Band {
        /// 0.025: it may cost 1.025 times as much.
        slower: f64,
        /// 0.025: it may cost as much divided by 1.025.
        faster: f64,
    },
    /// An exact metric: how much more or less is still the same, as shares of the baseline; both 0 for equal numbers.
    Tolerance {
        /// More than the baseline.
        more: f64,
        /// Less than the baseline.
        less: f64,
    },
    /// Losses: the largest relative difference of a step; 0 for equal bits.
    Losses(f64),
}

impl Bound {
    /// What a metric has when its rule says nothing.
    pub fn default_of(kind: Kind) -> Self {
        match kind {
            Kind::Noisy => Self::Band { slower: 0.025, faster: 0.025 },
            Kind::Exact => Self::Tolerance { more: 0.0, less: 0.0 },
            Kind::Losses => Self::Losses(0.0),
        }
    }
}

/// One metric and its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// What is watched.
    pub metric: &'static Metric,
    /// How far it may move.
    pub bound: Bound,
}

/// Everything that decides how a gate judges.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The metrics, in the order of the file.
    pub metrics: Vec<Rule>,
    /// How the steps of a trial become its speed.
    pub figure: Figure,
    /// Seconds that all measuring may take, reruns included.
    pub time_budget: f64,
    /// Pairs before the first look, and the least that make a verdict.
    pub min_pairs: usize,
    /// Pairs of one set at most.
    pub max_pairs: usize,
    /// The chance, over all looks, all noisy metrics and all cells together, that every interval holds the truth.
    pub confidence: f64,
    /// How many further sets of pairs must agree before a regression or improvement is final.
    pub confirm: usize,
    /// Verdicts that fail the gate.
    pub fail_on: Vec<Verdict>,
}

impl Default for Rules {
    fn default() -> Self {
        let names = ["tokens_per_second", "peak_memory_bytes", "wire_bytes", "loss"];
        let rule = |metric: &'static Metric| Rule { metric, bound: Bound::default_of(metric.kind) };
        Self {
            metrics: names.iter().filter_map(|name| super::metric::find(name)).map(rule).collect(),
            figure: Figure::LowerQuartile,
            time_budget: 180.0,
            min_pairs: 10,
            max_pairs: 120,
            confidence: 0.98,
            confirm: 1,
            fail_on: vec![Verdict::Regression, Verdict::Inconclusive, Verdict::NotMeasured],
        }
    }
}

impl Rules {
    /// How many pairs there are at each look: half as many again each time, up to the most.
    pub fn looks(&self) -> Vec<usize> {
        let most = self.max_pairs.max(self.min_pairs);
        let mut looks = vec![self.min_pairs];
        while let Some(last) = looks.last().copied().filter(|last| *last < most) {
            looks.push((last * 3).div_ceil(2).max(last + 1).min(most));
        }
        looks
    }

    /// The share of the error budget that one look at one metric may spend: equal parts, which hold whatever the looks
    /// have to do with each other. Beside those of [`Rules::looks`] there is one at the end of the time that the first set has
    /// where reruns follow; the end of the budget takes the place of a look that would have come later. `rows` are the noisy metrics of
    /// all cells.
    pub fn alpha(&self, rows: usize) -> f64 {
        let looks = self.looks().len() + usize::from(self.confirm > 0);
        (1.0 - self.confidence) / (looks * rows.max(1)) as f64
    }

    /// How many of the metrics are noisy.
    pub fn noisy(&self) -> usize {
        self.metrics.iter().filter(|rule| rule.metric.kind == Kind::Noisy).count()
    }
}

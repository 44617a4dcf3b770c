//! From samples to a verdict: one look at one metric.

use super::metric::Figure;
use super::ranks::{self, Shift};
use super::rules::{Bound, Rule};
use super::trial::Trial;
use super::verdict::Verdict;
use crate::random::Random;
use crate::{stats, units};

/// Trials of both sides. Where they are pairs, trial i of the baseline was measured beside trial i of the candidate; otherwise
/// the baseline was measured earlier.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// Trials of the baseline.
    pub base: Vec<Trial>,
    /// Trials of the candidate.
    pub now: Vec<Trial>,
    /// Whether they are pairs.
    pub paired: bool,
}

/// The least number of records that show how a side varies.
pub const LEAST_BASELINE: usize = 3;

/// The result of one look at a noisy metric.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Look {
    /// The verdict; absent while more has to be measured.
    pub verdict: Option<Verdict>,
    /// Logarithm of the ratio of costs, candidate to baseline, with its limits.
    pub shift: Option<Shift>,
    /// How far the ratio of the same program to itself strays from 1 on this machine, as a logarithm.
    pub floor: Option<f64>,
    /// By how much both limits were moved outwards because of it.
    pub widened: f64,
    /// Pairs, or trials of the candidate, that counted.
    pub used: usize,
    /// Why there is no verdict.
    pub why_not: String,
}

impl Look {
    fn nothing(used: usize, why_not: impl Into<String>) -> Self {
        Self { used, why_not: why_not.into(), ..Self::default() }
    }
}

impl Samples {
    /// Pairs, or trials of the candidate, whose times count.
    pub fn clean(&self) -> usize {
        if self.paired {
            self.base.iter().zip(&self.now).filter(|(base, now)| base.is_clean() && now.is_clean()).count()
        } else {
            self.now.iter().filter(|trial| trial.is_clean()).count()
        }
    }

    /// A look at a noisy metric that may err with chance `alpha`.
    pub fn look(&self, rule: &Rule, figure: Figure, alpha: f64) -> Look {
        let Bound::Band { slower, faster } = rule.bound else { return Look::nothing(0, "it is not noisy") };
        let cost = |trial: &Trial| trial.value(rule.metric, figure).map(|value| rule.metric.log_cost(value));
        let (base, now) = self.costs(&cost);
        let missing = || self.why_missing(&cost);
        if self.paired {
            let differences: Vec<f64> = base.iter().zip(&now).map(|(base, now)| now - base).collect();
            let Some(shift) = ranks::paired(&differences, alpha) else { return Look::nothing(0, missing()) };
            let (floor, widened) = self.floor_of_pairs(&cost, alpha);
            return judged(shift, floor, widened, differences.len(), slower, faster);
        }
        if base.len() < LEAST_BASELINE {
            let why = if base.is_empty() {
                missing()
            } else {
                let trials = units::plural(base.len(), "usable trial", "usable trials");
                format!("the baseline has {trials}, and at least {LEAST_BASELINE} are needed")
            };
            return Look::nothing(now.len(), why);
        }
        let Some(shift) = ranks::unpaired(&base, &now, alpha) else { return Look::nothing(0, missing()) };
        // Two sessions differ by more than the trials of either: what can be seen of that is how far their halves drift.
        let drift = halves(&base).max(halves(&now));
        judged(shift, Some(drift), drift, now.len(), slower, faster)
    }

    /// The costs that count: of pairs whose both trials are clean and have the metric, or of each side's clean trials.
    fn costs(&self, cost: &impl Fn(&Trial) -> Result<f64, String>) -> (Vec<f64>, Vec<f64>) {
        let clean = |trial: &Trial| trial.is_clean().then(|| cost(trial).ok()).flatten();
        if self.paired {
            return self.base.iter().zip(&self.now).filter_map(|(base, now)| Some((clean(base)?, clean(now)?))).unzip();
        }
        (self.base.iter().filter_map(clean).collect(), self.now.iter().filter_map(clean).collect())
    }

    fn why_missing(&self, cost: &impl Fn(&Trial) -> Result<f64, String>) -> String {
        for (side, trials) in [("the baseline", &self.base), ("the candidate", &self.now)] {
            if trials.is_empty() {
                return format!("{side} has no trial");
            }
            if !trials.iter().any(Trial::is_clean) {
                return format!("no trial of {side} counts");
            }
            let mut reasons = trials.iter().filter(|trial| trial.is_clean()).map(cost);
            if reasons.clone().all(|value| value.is_err())
                && let Some(Err(reason)) = reasons.next()
            {
                return format!("{side}: {reason}");
            }
        }
        "no pair has it on both sides".into()
    }

    /// An A/A comparison out of the same trials: successive trials of one side, in an order that chance decides. How wide
    /// its interval is, and how far zero lies outside of it, which is by how much the machine deceives.
    fn floor_of_pairs(&self, cost: &impl Fn(&Trial) -> Result<f64, String>, alpha: f64) -> (Option<f64>, f64) {
        let mut random = Random::new(0x6161);
        let mut differences = Vec::new();
        for side in [&self.base, &self.now] {
            let costs: Vec<f64> =
                side.iter().filter(|trial| trial.is_clean()).filter_map(|trial| cost(trial).ok()).collect();
            let (two, _) = costs.as_chunks::<2>();
            differences.extend(two.iter().map(|[a, b]| if random.coin() { b - a } else { a - b }));
        }
        let shift = ranks::paired(&differences, alpha).filter(|shift| shift.low.is_finite() && shift.high.is_finite());
        shift.map_or((None, 0.0), |shift| (Some((shift.high - shift.low) / 2.0), shift.distance_of_zero()))
    }

    /// A look at an exact metric; it always has a verdict.
    pub fn exact(&self, rule: &Rule, figure: Figure) -> Exact {
        let values = |trials: &[Trial]| -> Vec<f64> {
            trials.iter().filter(|t| t.is_measured()).filter_map(|t| t.value(rule.metric, figure).ok()).collect()
        };
        match rule.bound {
            Bound::Losses(tolerance) => self.losses(tolerance),
            Bound::Tolerance { more, less } => {
                let (base, now) = (values(&self.base), values(&self.now));
                let (Some(a), Some(b)) = (stats::median(&base), stats::median(&now)) else {
                    let why_not = |trial: &Trial| {
                        if trial.is_measured() {
                            trial.value(rule.metric, figure).err()
                        } else {
                            Some("not measured".into())
                        }
                    };
                    let (side, trials) =
                        if base.is_empty() { ("the baseline", &self.base) } else { ("the candidate", &self.now) };
                    let why = trials.iter().find_map(why_not).unwrap_or_else(|| "no trial".into());
                    return Exact::not_measured(format!("{side}: {why}"));
                };
                let verdict = match b - a {
                    difference if difference > more * a.abs() => Verdict::Regression,
                    difference if -difference > less * a.abs() => Verdict::Improvement,
                    _ => Verdict::Pass,
                };
                let varies = |values: &[f64]| values.iter().any(|value| value != &values[0]);
                let words =
                    if varies(&base) || varies(&now) { "it varies between trials; medians are compared" } else { "" };
                Exact { verdict, base: Some(a), now: Some(b), used: now.len(), words: words.into() }
            }
            Bound::Band { .. } => Exact::not_measured("it is noisy"),
        }
    }

    /// The losses of every trial of the candidate beside the baseline's.
    fn losses(&self, tolerance: f64) -> Exact {
        let runs = |trials: &[Trial]| -> Vec<Vec<Option<f64>>> {
            trials.iter().filter(|t| t.is_measured() && !t.losses.is_empty()).map(|t| t.losses.clone()).collect()
        };
        let (base, now) = (runs(&self.base), runs(&self.now));
        let (Some(reference), false) = (base.first(), now.is_empty()) else {
            let side = if base.is_empty() { "baseline" } else { "candidate" };
            return Exact::not_measured(format!("the {side} has no losses"));
        };
        let regression =
            |words: String| Exact { verdict: Verdict::Regression, used: now.len(), words, ..Exact::default() };
        let mut largest = 0.0f64;
        for run in base.iter().chain(&now) {
            if run.len() != reference.len() {
                return regression(format!("{} steps, and {} in the baseline", run.len(), reference.len()));
            }
            for (step, (a, b)) in reference.iter().zip(run).enumerate() {
                let (Some(a), Some(b)) = (a, b) else {
                    return regression(format!("the loss of step {} is not finite", step + 1));
                };
                if a != b {
                    largest = largest.max((a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
                }
            }
        }
        let last = |run: &[Option<f64>]| run.last().copied().flatten();
        let verdict = if largest > tolerance { Verdict::Regression } else { Verdict::Pass };
        let words = if largest == 0.0 {
            format!("{} steps, the same bits", reference.len())
        } else {
            format!("largest relative difference of a step {largest:.3e}")
        };
        Exact { verdict, base: last(reference), now: now.last().and_then(|run| last(run)), used: now.len(), words }
    }
}

/// The result of a look at an exact metric.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exact {
    /// The verdict.
    pub verdict: Verdict,
    /// The baseline's value.
    pub base: Option<f64>,
    /// The candidate's.
    pub now: Option<f64>,
    /// Trials of the candidate.
    pub used: usize,
    /// What a reader should know beside.
    pub words: String,
}

impl Exact {
    fn not_measured(words: impl Into<String>) -> Self {
        Self { words: words.into(), ..Self::default() }
    }
}

/// How far the two halves of a sample are apart.
fn halves(values: &[f64]) -> f64 {
    let (first, second) = values.split_at(values.len() / 2);
    ranks::unpaired(first, second, 1.0).map_or(0.0, |shift| shift.mid.abs())
}

fn judged(shift: Shift, floor: Option<f64>, widened: f64, used: usize, slower: f64, faster: f64) -> Look {
    let shift = shift.widened(widened);
    let verdict = side_of(&shift, slower, faster);
    Look { verdict, shift: Some(shift), floor, widened, used, why_not: String::new() }
}

/// The rule: a verdict needs the whole interval on one side of the band's edges, or between them.
pub(super) fn side_of(shift: &Shift, slower: f64, faster: f64) -> Option<Verdict> {
    let (upper, lower) = (slower.ln_1p(), -faster.ln_1p());
    if shift.low > upper {
        Some(Verdict::Regression)
    } else if shift.high < lower {
        Some(Verdict::Improvement)
    } else if shift.low >= lower && shift.high <= upper {
        Some(Verdict::Pass)
    } else {
        None
    }
}

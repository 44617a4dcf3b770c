//! How often the gate itself errs: its procedure on stored samples of one program against itself, as they were and with
//! a slow-down put in.

use super::metric::Kind;
use super::procedure::{Bench, Opponent, Question, Side, judge};
use super::random::Random;
use super::ranks;
use super::report::Ratio;
use super::rules::Rules;
use super::trial::Trial;
use super::verdict::{self, Verdict};
use serde::{Deserialize, Serialize};

/// Two trials that were measured one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolPair {
    /// `aa` for the same program and cell on both sides, `slow` where the second was made slower.
    pub arm: String,
    /// Whether `a` was measured first.
    pub a_first: bool,
    /// One trial.
    pub a: Trial,
    /// The other; of the arm `slow` the slower.
    pub b: Trial,
}

/// What many replays came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// What was replayed, in words.
    pub what: String,
    /// How many times as long the candidate took; measured where it was not put in.
    pub factor: f64,
    /// Whether the slow-down was measured, and not multiplied into samples.
    pub measured: bool,
    /// Comparisons.
    pub runs: usize,
    /// Each verdict.
    pub verdicts: Vec<Rate>,
    /// Regressions and improvements together.
    pub alarms: Rate,
    /// Mean pairs of a comparison, reruns included.
    pub mean_pairs: f64,
    /// Mean seconds of a comparison.
    pub mean_seconds: f64,
    /// The longest.
    pub most_seconds: f64,
    /// Comparisons whose last pairs came from the pool's beginning again.
    pub wrapped: usize,
}

/// How often something happened, with 95 % limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// What.
    pub what: String,
    /// How often.
    pub count: usize,
    /// As a share.
    pub share: f64,
    /// Lower limit of the share (Clopper and Pearson).
    pub low: f64,
    /// Upper limit.
    pub high: f64,
}

impl Rate {
    fn of(what: &str, count: usize, runs: usize) -> Self {
        let (low, high) = ranks::binomial_limits(count, runs, 0.95);
        Self { what: what.into(), count, share: count as f64 / runs.max(1) as f64, low, high }
    }
}

impl Rates {
    /// How often this was said.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.verdicts.iter().find(|rate| rate.what == verdict.name()).map_or(0, |rate| rate.count)
    }
}

/// Which comparisons to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay<'a> {
    /// In words.
    pub what: &'a str,
    /// The candidate's times are multiplied by it.
    pub factor: f64,
    /// How many.
    pub runs: usize,
    /// Where they begin in the pool, which trial plays which side.
    pub seed: u64,
}

/// Replays comparisons, each over pairs that follow each other in the pool from a place that chance decides; at its end
/// the pool begins again. In pairs of the same program chance also decides, for a whole comparison, which of the two is
/// the candidate. Nothing where the pool is empty.
pub fn replay(rules: &Rules, pairs: &[PoolPair], replay: &Replay) -> Option<Rates> {
    let noisy = Rules {
        metrics: rules.metrics.iter().copied().filter(|rule| rule.metric.kind == Kind::Noisy).collect(),
        ..rules.clone()
    };
    if pairs.is_empty() || replay.runs == 0 || noisy.metrics.is_empty() {
        return None;
    }
    let mut random = Random::new(replay.seed);
    let mut counts = [0usize; Verdict::ALL.len()];
    let (mut alarms, mut used, mut seconds, mut most, mut wrapped) = (0, 0usize, 0.0, 0.0f64, 0);
    for _ in 0..replay.runs {
        let start = random.below(pairs.len());
        let swapped = random.coin() && pairs[0].arm == "aa";
        let mut bench = Stored { pairs, at: start, swapped, factor: replay.factor, taken: [false; 2], clock: 0.0 };
        let question = Question {
            rules: &noisy,
            cell: "pool".into(),
            key: String::new(),
            opponent: Opponent::Live,
            noisy_rows: noisy.noisy(),
            seconds: rules.time_budget,
            seed: random.bits(),
        };
        let report = judge(&question, &mut bench);
        let verdict = verdict::worst(report.rows.iter().map(|row| row.verdict));
        counts[verdict as usize] += 1;
        let is_alarm = |verdict| matches!(verdict, Verdict::Regression | Verdict::Improvement);
        alarms += usize::from(report.rows.iter().any(|row| is_alarm(row.verdict)));
        used += report.candidate_trials;
        seconds += report.seconds;
        most = most.max(report.seconds);
        wrapped += usize::from(bench.at > pairs.len());
    }
    let runs = replay.runs;
    Some(Rates {
        what: replay.what.into(),
        factor: replay.factor,
        measured: false,
        runs,
        verdicts: Verdict::ALL
            .iter()
            .map(|verdict| Rate::of(verdict.name(), counts[*verdict as usize], runs))
            .collect(),
        alarms: Rate::of("alarms", alarms, runs),
        mean_pairs: used as f64 / runs as f64,
        mean_seconds: seconds / runs as f64,
        most_seconds: most,
        wrapped,
    })
}

/// How many times as long the second of all pairs takes, by the first noisy rule, with 99 % limits.
pub fn true_factor(rules: &Rules, pairs: &[PoolPair]) -> Option<Ratio> {
    let rule = rules.metrics.iter().find(|rule| rule.metric.kind == Kind::Noisy)?;
    let cost = |trial: &Trial| Some(rule.metric.log_cost(rule.metric.value(trial, rules.figure).ok()?));
    let clean = pairs.iter().filter(|pair| pair.a.is_clean() && pair.b.is_clean());
    let differences: Vec<f64> = clean.filter_map(|pair| Some(cost(&pair.b)? - cost(&pair.a)?)).collect();
    ranks::paired(&differences, 0.01).map(|shift| Ratio::of(&shift, false))
}

/// A bench that hands out what was measured before.
struct Stored<'a> {
    pairs: &'a [PoolPair],
    at: usize,
    swapped: bool,
    factor: f64,
    taken: [bool; 2],
    clock: f64,
}

impl Bench for Stored<'_> {
    fn trial(&mut self, side: Side) -> Option<Trial> {
        let place = usize::from(side == Side::Candidate);
        if self.taken[place] {
            self.at += 1;
            self.taken = [false; 2];
        }
        self.taken[place] = true;
        let pair = &self.pairs[self.at % self.pairs.len()];
        let is_second = (side == Side::Candidate) != self.swapped;
        let trial = if is_second { &pair.b } else { &pair.a };
        self.clock += trial.seconds;
        Some(if side == Side::Candidate { slowed(trial, self.factor) } else { trial.clone() })
    }

    fn seconds(&mut self) -> f64 {
        self.clock
    }
}

/// The trial as it would be if all its steps took so many times as long.
pub fn slowed(trial: &Trial, factor: f64) -> Trial {
    let mut slow = trial.clone();
    slow.step_ms.iter_mut().for_each(|ms| *ms *= factor);
    for metric in super::metric::METRICS.iter().filter(|metric| metric.kind == Kind::Noisy) {
        // Memory does not change with time.
        if let Some(value) = trial.values.number(metric.name).filter(|_| !metric.name.ends_with("_bytes")) {
            slow.values.set(metric.name, if metric.more_is_better { value / factor } else { value * factor });
        }
    }
    slow
}

/// What the gate promises of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// In words.
    pub what: String,
    /// What was seen.
    pub seen: f64,
    /// The limit.
    pub limit: f64,
    /// Whether it was kept.
    pub kept: bool,
}

/// The promises: at most 2 % alarms of the same program, 95 % of slow-downs of 5 % caught, none of them passed, the time
/// budget kept.
pub fn promises(rules: &Rules, rates: &[Rates]) -> Vec<Promise> {
    let mut promises = Vec::new();
    let mut at_most =
        |what: String, seen: f64, limit: f64| promises.push(Promise { what, seen, limit, kept: seen <= limit });
    for rate in rates {
        let share = |verdict| rate.count(verdict) as f64 / rate.runs.max(1) as f64;
        if rate.factor == 1.0 {
            at_most(format!("alarms, {}", rate.what), rate.alarms.share, 0.02);
        }
        // What really was made slower counts as 5 % where it came out at that or more.
        if rate.factor >= 1.05 {
            at_most(format!("not caught, {}", rate.what), 1.0 - share(Verdict::Regression), 0.05);
            at_most(format!("passed, {}", rate.what), share(Verdict::Pass) + share(Verdict::Improvement), 0.0);
        }
        at_most(format!("longest comparison in seconds, {}", rate.what), rate.most_seconds, rules.time_budget);
    }
    promises
}

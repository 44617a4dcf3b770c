//! How often the gate itself errs: its procedure on stored samples of one program against itself, as measured and with a
//! slow-down multiplied in.

use super::metric::Kind;
use super::procedure::{Bench, Opponent, Question, judge};
use super::ranks;
use super::report::Ratio;
use super::rules::{Rule, Rules};
use super::trial::{Side, Trial};
use super::turns::{Round, Score, Turns, is_speed};
use super::verdict::{self, Verdict};
use crate::random::Random;
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

impl PoolPair {
    fn is_clean(&self) -> bool {
        self.a.is_clean() && self.b.is_clean()
    }

    fn seconds(&self) -> f64 {
        self.a.seconds + self.b.seconds
    }
}

/// The measurements of one arm of a pool.
#[derive(Debug, Clone, PartialEq)]
pub enum Measured {
    /// Pairs of trials, in the order measured.
    Trials(Vec<PoolPair>),
    /// Turns.
    Turns {
        /// A trial of the baseline and one of the candidate: what a gate measures before its turns takes as long as these.
        trials: Box<[Trial; 2]>,
        /// The rounds of each generation of processes.
        generations: Vec<Vec<Round>>,
    },
}

impl Measured {
    /// Pairs, of trials or of turns.
    pub fn pairs(&self) -> usize {
        match self {
            Self::Trials(pairs) => pairs.len(),
            Self::Turns { generations, .. } => generations.iter().map(Vec::len).sum(),
        }
    }

    /// Generations of processes that took turns.
    pub fn generations(&self) -> usize {
        match self {
            Self::Trials(_) => 0,
            Self::Turns { generations, .. } => generations.len(),
        }
    }

    /// Pairs that do not count: with a trial that has a validity flag, or under foreign load.
    pub fn left_out(&self) -> usize {
        match self {
            Self::Trials(pairs) => pairs.iter().filter(|pair| !pair.is_clean()).count(),
            Self::Turns { generations, .. } => generations.iter().flatten().filter(|round| !round.counted).count(),
        }
    }

    /// Seconds that measuring them took.
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Trials(pairs) => pairs.iter().map(PoolPair::seconds).sum(),
            Self::Turns { generations, .. } => generations.iter().flatten().map(|round| round.seconds).sum(),
        }
    }

    /// Whether they have values of a metric.
    fn has(&self, rule: &Rule) -> bool {
        match self {
            Self::Trials(_) => rule.metric.kind == Kind::Noisy,
            Self::Turns { .. } => is_speed(rule),
        }
    }

    /// How many independent units there are. Processes of one program differ for their whole life, so the units of turns are
    /// generations; those of trials are pairs.
    fn units(&self) -> usize {
        match self {
            Self::Trials(pairs) => pairs.len(),
            Self::Turns { generations, .. } => generations.len(),
        }
    }

    /// How many times as long the second side takes, by the first metric that they have, with 99 % limits.
    pub fn true_factor(&self, rules: &Rules) -> Option<Ratio> {
        let rule = rules.metrics.iter().find(|rule| self.has(rule))?;
        match self {
            Self::Trials(pairs) => {
                let cost = |trial: &Trial| Some(rule.metric.log_cost(trial.value(rule.metric, rules.figure).ok()?));
                let clean = pairs.iter().filter(|pair| pair.is_clean());
                let differences: Vec<f64> = clean.filter_map(|pair| Some(cost(&pair.b)? - cost(&pair.a)?)).collect();
                ranks::paired(&differences, 0.01).map(|shift| Ratio::of(&shift, false))
            }
            Self::Turns { generations, .. } => {
                let mut score = Score::new(0.01);
                generations.iter().flatten().for_each(|round| score.push(round));
                let found = score.comparison();
                // Of speeds: the factor is that of times.
                let inverse = |value: Option<f64>| value.map(f64::recip);
                found.ratio.map(|ratio| Ratio {
                    low: inverse(found.high),
                    mid: ratio.recip(),
                    high: inverse(found.low),
                })
            }
        }
    }
}

/// The results of many replays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// What was replayed, in words.
    pub what: String,
    /// How many times as long the candidate took: the factor multiplied in, or the measured one.
    pub factor: f64,
    /// Whether the slow-down was measured, and not multiplied into samples.
    pub measured: bool,
    /// Comparisons.
    pub runs: usize,
    /// Each verdict.
    pub verdicts: Vec<Rate>,
    /// Regressions and improvements together.
    pub alarms: Rate,
    /// Mean pairs of a comparison, of trials (reruns included) or of turns.
    pub mean_pairs: f64,
    /// Mean seconds of a comparison.
    pub mean_seconds: f64,
    /// The longest.
    pub most_seconds: f64,
    /// Comparisons that wanted more than the pool holds: pairs of trials came from its beginning again, of turns there were no more.
    pub wrapped: usize,
    /// How many comparisons that have nothing in common the pool holds: its pairs of trials, or its generations of turns, by those
    /// that a comparison took in the mean. The limits of all shares are those of so many comparisons.
    pub independent: f64,
    /// Verdicts other than inconclusive per minute of machine time.
    pub decided_per_minute: f64,
    /// Wrong verdicts per minute of machine time: false alarms where both sides are the same; otherwise all that is no regression.
    pub wrong_per_minute: f64,
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
    /// Lower limit of the share (Clopper and Pearson), of as many comparisons as are independent of each other.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
}

impl Rate {
    fn of(what: &str, count: usize, runs: usize, independent: f64) -> Self {
        let share = count as f64 / runs.max(1) as f64;
        // Replays beyond what the pool holds add nothing; parts of a comparison are rounded to the wider side.
        let all = (independent.floor() as usize).clamp(1, runs.max(1));
        let hits = share * all as f64;
        let (low, _) = ranks::binomial_limits(hits.floor() as usize, all, 0.95);
        let (_, high) = ranks::binomial_limits(hits.ceil() as usize, all, 0.95);
        Self { what: what.into(), count, share, low, high }
    }
}

impl Rates {
    /// How often this was the verdict.
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
    /// Whether the arm is one of the same program on both sides.
    pub is_aa: bool,
    /// How many.
    pub runs: usize,
    /// Decides what they take from the pool, and which side is the candidate.
    pub seed: u64,
}

/// Replays comparisons. Of pairs of trials each takes those that follow each other in the pool from a random place; at its end
/// the pool begins again. Of turns each takes whole generations in random order, none twice. In arms of the same program
/// chance also decides, for a whole comparison, which side is the candidate. Nothing where the pool is empty.
pub fn replay(rules: &Rules, measured: &Measured, replay: &Replay) -> Option<Rates> {
    let rules =
        Rules { metrics: rules.metrics.iter().copied().filter(|rule| measured.has(rule)).collect(), ..rules.clone() };
    if measured.pairs() == 0 || replay.runs == 0 || rules.metrics.is_empty() {
        return None;
    }
    let mut random = Random::new(replay.seed);
    let mut counts = [0usize; Verdict::ALL.len()];
    let (mut alarms, mut pairs, mut units, mut seconds, mut most, mut wrapped) = (0, 0usize, 0usize, 0.0, 0.0f64, 0);
    for _ in 0..replay.runs {
        let mut bench = Stored::new(measured, replay, &mut random);
        // The first trial of each side does not count, and takes its time.
        bench.clock = bench.first_trials();
        let question = Question {
            rules: &rules,
            cell: "pool".into(),
            key: String::new(),
            opponent: Opponent::Live,
            noisy_rows: rules.noisy(),
            seconds: rules.time_budget - bench.clock,
            seed: random.bits(),
        };
        let report = judge(&question, &mut bench);
        let verdict = verdict::worst(report.rows.iter().map(|row| row.verdict));
        counts[verdict as usize] += 1;
        alarms += usize::from(report.rows.iter().any(|row| row.verdict.is_change()));
        pairs += bench.pairs;
        units += bench.units;
        seconds += bench.clock;
        most = most.max(bench.clock);
        wrapped += usize::from(bench.is_exhausted);
    }
    let runs = replay.runs;
    let independent = measured.units() as f64 * runs as f64 / units.max(1) as f64;
    let minutes = seconds / 60.0;
    let per_minute = |count: usize| if minutes > 0.0 { count as f64 / minutes } else { 0.0 };
    let decided = runs - counts[Verdict::Inconclusive as usize] - counts[Verdict::NotMeasured as usize];
    let wrong = if replay.is_aa && replay.factor == 1.0 { alarms } else { runs - counts[Verdict::Regression as usize] };
    let rate = |what: &str, count: usize| Rate::of(what, count, runs, independent);
    Some(Rates {
        what: replay.what.into(),
        factor: replay.factor,
        measured: false,
        runs,
        verdicts: Verdict::ALL.iter().map(|verdict| rate(verdict.name(), counts[*verdict as usize])).collect(),
        alarms: rate("alarms", alarms),
        mean_pairs: pairs as f64 / runs as f64,
        mean_seconds: seconds / runs as f64,
        most_seconds: most,
        wrapped,
        independent,
        decided_per_minute: per_minute(decided),
        wrong_per_minute: per_minute(wrong),
    })
}

/// A bench that hands out what was measured before.
struct Stored<'a> {
    measured: &'a Measured,
    /// Where pairs of trials begin.
    start: usize,
    /// The order of generations.
    order: Vec<usize>,
    swapped: bool,
    factor: f64,
    taken: [bool; 2],
    clock: f64,
    /// Pairs handed out, of trials that are compared or of turns.
    pairs: usize,
    /// Pairs of trials or generations handed out.
    units: usize,
    is_exhausted: bool,
}

impl<'a> Stored<'a> {
    fn new(measured: &'a Measured, replay: &Replay, random: &mut Random) -> Self {
        let mut order: Vec<usize> = (0..measured.generations()).collect();
        let start = random.below(measured.units());
        random.shuffle(&mut order);
        Self {
            measured,
            start,
            order,
            swapped: replay.is_aa && random.coin(),
            factor: replay.factor,
            taken: [false; 2],
            clock: 0.0,
            pairs: 0,
            units: 0,
            is_exhausted: false,
        }
    }

    /// The seconds of the first trial of each side.
    fn first_trials(&self) -> f64 {
        match self.measured {
            Measured::Turns { trials, .. } => trials[0].seconds + trials[1].seconds,
            Measured::Trials(pairs) => pairs[self.start].seconds(),
        }
    }
}

impl Bench for Stored<'_> {
    fn trial(&mut self, side: Side) -> Option<Trial> {
        let place = usize::from(side == Side::Candidate);
        let is_second = (side == Side::Candidate) != self.swapped;
        let trial = match self.measured {
            Measured::Turns { trials, .. } => &trials[usize::from(is_second)],
            Measured::Trials(pairs) => {
                if self.units == 0 || self.taken[place] {
                    self.units += 1;
                    self.pairs += 1;
                    self.taken = [false; 2];
                }
                self.taken[place] = true;
                self.is_exhausted |= self.start + self.units > pairs.len();
                let pair = &pairs[(self.start + self.units - 1) % pairs.len()];
                if is_second { &pair.b } else { &pair.a }
            }
        };
        self.clock += trial.seconds;
        Some(if side == Side::Candidate { slowed(trial, self.factor) } else { trial.clone() })
    }

    fn takes_turns(&self) -> bool {
        matches!(self.measured, Measured::Turns { .. })
    }

    fn turns(&mut self, alpha: f64, seconds: f64, is_decided: &dyn Fn(&Score) -> bool) -> Result<Turns, String> {
        let Measured::Turns { generations, .. } = self.measured else { return Err("the pool is one of trials".into()) };
        let end = self.clock + seconds;
        let mut score = Score::new(alpha);
        for (number, place) in self.order.iter().enumerate() {
            self.units += 1;
            for stored in &generations[*place] {
                // The gate on the machine begins no round after its end; here none is taken that ended after it.
                if self.clock + stored.seconds > end {
                    return Ok(score.turns(false));
                }
                self.clock += stored.seconds;
                self.pairs += 1;
                let mut round = Round { generation: number as u32 + 1, ..*stored };
                if self.swapped {
                    (round.baseline_seconds_per_token, round.candidate_seconds_per_token) =
                        (stored.candidate_seconds_per_token, stored.baseline_seconds_per_token);
                }
                round.candidate_seconds_per_token *= self.factor;
                score.push(&round);
                if round.looked && is_decided(&score) {
                    return Ok(score.turns(false));
                }
            }
        }
        self.is_exhausted = true;
        Ok(score.turns(false))
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
    /// The observed value.
    pub seen: f64,
    /// The limit.
    pub limit: f64,
    /// Whether the observed value is within the limit. That shows no more than the limits of a share do.
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

//! The procedure: measure pairs, look, go on until every metric has its verdict or the time is over; then once more for
//! what is a regression or an improvement. What measures is behind [`Bench`], so that it runs on stored samples and in
//! simulations as it runs on the machine.

use super::decision::{Look, Samples, at_the_end, side_of};
use super::random::Random;
use super::ranks::Shift;
use super::report::{CellReport, Class, Row};
use super::rows::{self, Judged};
use super::rules::{Bound, Rule, Rules};
use super::trial::Trial;
use super::verdict::Verdict;
use crate::evidence::Comparison;
use crate::record::Status;
use crate::units;

/// Which side a trial is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is compared with.
    Baseline,
    /// What is judged.
    Candidate,
}

impl Side {
    /// `baseline` or `candidate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
        }
    }
}

/// What turns of both sides say of their speed.
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

impl Turns {
    /// As a look at a metric of speed.
    fn look(&self, rule: &Rule) -> Option<Look> {
        let Bound::Band { slower, faster } = rule.bound else { return None };
        let Comparison { ratio, low, high, rounds, .. } = self.comparison;
        let mut look =
            Look { verdict: None, shift: None, floor: None, widened: 0.0, used: rounds, why_not: String::new() };
        match (ratio, low, high) {
            (Some(ratio), Some(low), Some(high)) => {
                // A cost is the time, so that the limits change places.
                let shift = Shift { low: -high.ln(), mid: -ratio.ln(), high: -low.ln() };
                look.verdict = side_of(&shift, slower, faster);
                look.shift = Some(shift);
            }
            _ => look.why_not = format!("there are {}, which bound nothing", units::plural(rounds, "round", "rounds")),
        }
        Some(look)
    }
}

/// Something that measures, and its clock.
pub trait Bench {
    /// A trial; nothing when the user asked to stop.
    fn trial(&mut self, side: Side) -> Option<Trial>;
    /// Whether both sides can be resident and take turns, so that their speed is compared in pairs of neighbouring turns.
    fn takes_turns(&self) -> bool {
        false
    }
    /// Turns of both sides until `is_decided` or for so many seconds; a false difference is claimed with chance `alpha` at most.
    /// Nothing when none could be taken.
    fn turns(&mut self, _alpha: f64, _seconds: f64, _is_decided: &dyn Fn(&Comparison) -> bool) -> Option<Turns> {
        None
    }
    /// Seconds since some moment.
    fn seconds(&mut self) -> f64;
    /// How far it is.
    fn progress(&mut self, _words: &str) {}
}

/// What the candidate is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Opponent {
    /// Trials that are measured beside it.
    Live,
    /// Trials of a baseline.
    Stored(Vec<Trial>),
}

/// One cell to judge.
#[derive(Debug)]
pub struct Question<'a> {
    /// The rules.
    pub rules: &'a Rules,
    /// The cell, in words.
    pub cell: String,
    /// Its key.
    pub key: String,
    /// What it is compared with.
    pub opponent: Opponent,
    /// Noisy metrics of all cells of the gate: they share one error budget.
    pub noisy_rows: usize,
    /// Seconds that this cell may take.
    pub seconds: f64,
    /// Decides which side goes first.
    pub seed: u64,
}

/// A set may need this many times its pairs where trials do not count.
const SPARE: usize = 2;

/// What ended the measuring of a set.
#[derive(Debug, Clone, PartialEq)]
enum End {
    /// Every metric has its verdict, or the budget is spent.
    Done,
    /// The user.
    Stopped,
    /// A trial that did not run to its end, nor when it was repeated: what there is of the baseline and the candidate.
    Unmeasured(Option<Box<Trial>>, Option<Box<Trial>>),
}

/// One set of samples and what it says of each metric, by its place in the rules.
struct Set {
    samples: Samples,
    looks: Vec<Option<(Verdict, Look)>>,
    end: End,
}

/// Judges one cell by measuring.
pub fn judge(question: &Question, bench: &mut dyn Bench) -> CellReport {
    let start = bench.seconds();
    let mut run =
        Run { question, bench, end: start + question.seconds, random: Random::new(question.seed), lost: Vec::new() };
    let rules = question.rules;
    let mut noisy: Vec<bool> = rules.metrics.iter().map(|rule| matches!(rule.bound, Bound::Band { .. })).collect();
    // Speed is compared by turns where both sides can take them; trials say the rest.
    let is_speed = |rule: &Rule| rule.metric.name == SPEED && matches!(rule.bound, Bound::Band { .. });
    let by_turns = (run.bench.takes_turns() && question.opponent == Opponent::Live)
        .then(|| rules.metrics.iter().position(is_speed))
        .flatten();
    by_turns.into_iter().for_each(|place| noisy[place] = false);
    let first_end = start + question.seconds / (1 + rules.confirm) as f64;
    let mut sets = vec![run.set(&noisy, first_end, 1)];
    let is_change = |set: &Set, place: usize| {
        set.looks[place].as_ref().is_some_and(|(v, _)| matches!(v, Verdict::Regression | Verdict::Improvement))
    };
    for rerun in 0..rules.confirm {
        let last = &sets[sets.len() - 1];
        let first = &sets[0];
        let again: Vec<bool> =
            (0..noisy.len()).map(|i| noisy[i] && is_change(first, i) && agrees(first, last, i)).collect();
        if last.end != End::Done || !again.contains(&true) {
            break;
        }
        let now = run.bench.seconds();
        let end = now + (run.end - now) / (rules.confirm - rerun) as f64;
        sets.push(run.set(&again, end, rerun + 2));
    }
    let ran = sets.iter().all(|set| set.end == End::Done);
    let turns = by_turns.filter(|_| ran).and_then(|place| run.turns(place));
    let seconds = run.bench.seconds() - start;
    let lost = run.lost;
    conclude(question, sets, turns, rules.confirm, lost, seconds)
}

/// The metric that turns measure.
const SPEED: &str = "tokens_per_second";

/// Whether a later set says of a metric what the first said.
fn agrees(first: &Set, later: &Set, place: usize) -> bool {
    let verdict = |set: &Set| set.looks[place].as_ref().map(|(verdict, _)| *verdict);
    verdict(first) == verdict(later)
}

/// Judges one cell from records of both sides: one look, nothing to repeat.
pub fn judge_records(question: &Question, candidate: Vec<Trial>) -> CellReport {
    let Opponent::Stored(base) = &question.opponent else {
        return conclude(question, Vec::new(), None, 0, Vec::new(), 0.0);
    };
    let rules = question.rules;
    let samples = Samples { base: base.clone(), now: candidate, paired: false };
    let best = |trials: &[Trial]| trials.iter().find(|trial| trial.is_measured()).or(trials.last()).cloned();
    let is_measured = |trial: &Option<Trial>| trial.as_ref().is_some_and(Trial::is_measured);
    let (before, now) = (best(&samples.base), best(&samples.now));
    let end = match (is_measured(&before) && is_measured(&now), now) {
        (false, Some(now)) => End::Unmeasured(before.map(Box::new), Some(Box::new(now))),
        _ => End::Done,
    };
    let alpha = (1.0 - rules.confidence) / question.noisy_rows.max(1) as f64;
    let look = |rule: &Rule| {
        let Bound::Band { slower, .. } = rule.bound else { return None };
        let look = samples.look(rule, rules.figure, alpha);
        let too_few = look.used < LEAST_RECORDS || look.shift.is_none();
        let verdict =
            if too_few { Verdict::NotMeasured } else { look.verdict.unwrap_or(last_word(rules, &look, slower)) };
        Some((verdict, look))
    };
    let looks = rules.metrics.iter().map(look).collect();
    conclude(question, vec![Set { samples, looks, end }], None, 0, Vec::new(), 0.0)
}

/// Records of a candidate that are too few to say how it varies.
const LEAST_RECORDS: usize = super::decision::LEAST_BASELINE;

fn last_word(rules: &Rules, look: &Look, slower: f64) -> Verdict {
    // Who wants improvements to fail wants to know whether this is one.
    if rules.fail_on.contains(&Verdict::Improvement) {
        return Verdict::Inconclusive;
    }
    at_the_end(look.shift.as_ref(), slower)
}

struct Run<'a, 'b> {
    question: &'a Question<'a>,
    bench: &'b mut dyn Bench,
    end: f64,
    random: Random,
    lost: Vec<(Side, Trial)>,
}

impl Run<'_, '_> {
    /// Measures until the wanted metrics have their verdicts, or until `end`.
    fn set(&mut self, wanted: &[bool], end: f64, number: usize) -> Set {
        let rules = self.question.rules;
        let (base, paired) = match &self.question.opponent {
            Opponent::Live => (Vec::new(), true),
            Opponent::Stored(trials) => (trials.clone(), false),
        };
        let samples = Samples { base, now: Vec::new(), paired };
        let mut set = Set { samples, looks: vec![None; wanted.len()], end: End::Done };
        if !paired && !set.samples.base.iter().any(Trial::is_measured) {
            // There is nothing to compare with but whether it runs.
            set.end = match self.settled(Side::Candidate) {
                Some(now) => End::Unmeasured(None, Some(Box::new(now))),
                None => End::Stopped,
            };
        }
        let looks = if wanted.contains(&true) { rules.looks() } else { vec![EXACT_PAIRS] };
        let alpha = rules.alpha(self.question.noisy_rows);
        let (mut out_of_time, mut longest) = (false, 0.0f64);
        for (place, count) in looks.iter().enumerate() {
            while set.end == End::Done && !out_of_time && set.samples.clean() < *count {
                self.tell(number, &set, *count);
                let before = self.bench.seconds();
                set.end = self.measure(&mut set.samples);
                let after = self.bench.seconds();
                // The next may take as long as the longest so far.
                longest = longest.max(after - before);
                out_of_time = after + longest > end || set.samples.now.len() >= SPARE * rules.max_pairs.max(1);
            }
            let is_last = place + 1 == looks.len() || out_of_time || set.end != End::Done;
            look_at(rules, &mut set, wanted, alpha, is_last);
            let open = |(place, wanted): (usize, &bool)| *wanted && set.looks[place].is_none();
            if is_last || !wanted.iter().enumerate().any(open) {
                break;
            }
        }
        set
    }

    /// Turns until the speed has its verdict, for what is left of the time.
    fn turns(&mut self, place: usize) -> Option<(usize, Verdict, Look, Turns)> {
        let rules = self.question.rules;
        let rule = &rules.metrics[place];
        let Bound::Band { slower, .. } = rule.bound else { return None };
        let alpha = (1.0 - rules.confidence) / self.question.noisy_rows.max(1) as f64;
        let seconds = self.end - self.bench.seconds();
        let verdict_of = |comparison: &Comparison| {
            let turns = Turns { comparison: *comparison, slower: 0, discarded: 0, baseline: 0.0, stopped: false };
            turns.look(rule).and_then(|look| look.verdict)
        };
        let turns = self.bench.turns(alpha, seconds, &|comparison| verdict_of(comparison).is_some())?;
        let look = turns.look(rule)?;
        let verdict = match look.verdict {
            Some(verdict) => verdict,
            None if look.shift.is_none() => Verdict::NotMeasured,
            None if turns.stopped => Verdict::Inconclusive,
            None => last_word(rules, &look, slower),
        };
        Some((place, verdict, look, turns))
    }

    /// One pair, in an order that a coin decides; or one trial of the candidate.
    fn measure(&mut self, samples: &mut Samples) -> End {
        let mut order = vec![Side::Candidate];
        if samples.paired {
            order.insert(usize::from(self.random.coin()), Side::Baseline);
        }
        let (mut base, mut now) = (None, None);
        for side in order {
            let Some(trial) = self.settled(side) else { return End::Stopped };
            *(if side == Side::Baseline { &mut base } else { &mut now }) = Some(trial);
        }
        // Both are there now: whether it fitted before is known whichever went first.
        if [&base, &now].into_iter().flatten().all(Trial::is_measured) {
            samples.base.extend(base);
            samples.now.extend(now);
            return End::Done;
        }
        End::Unmeasured(base.map(Box::new), now.map(Box::new))
    }

    /// A trial; one that was not measured is repeated as often as the rules confirm. Nothing when it was stopped.
    fn settled(&mut self, side: Side) -> Option<Trial> {
        let mut repeats = self.question.rules.confirm;
        loop {
            let trial = self.bench.trial(side)?;
            // What cannot be here is not other the second time.
            if trial.is_measured() || repeats == 0 || trial.status == Status::Skipped {
                return Some(trial);
            }
            self.lost.push((side, trial));
            repeats -= 1;
        }
    }

    fn tell(&mut self, number: usize, set: &Set, next: usize) {
        let clean = set.samples.clean();
        let what = if set.samples.paired { "pair" } else { "trial" };
        let rerun = if number > 1 { format!(", set {number} to confirm") } else { String::new() };
        let words = format!("{}{rerun}: {what} {}, next look at {next}", self.question.cell, clean + 1);
        self.bench.progress(&words);
    }
}

/// Pairs for rules that name nothing noisy.
const EXACT_PAIRS: usize = 2;

/// Looks at what has no verdict yet.
fn look_at(rules: &Rules, set: &mut Set, wanted: &[bool], alpha: f64, is_last: bool) {
    for (place, rule) in rules.metrics.iter().enumerate() {
        let Bound::Band { slower, .. } = rule.bound else { continue };
        if !wanted[place] || set.looks[place].is_some() {
            continue;
        }
        let look = set.samples.look(rule, rules.figure, alpha);
        let verdict = match look.verdict {
            _ if look.used < rules.min_pairs || look.shift.is_none() => is_last.then_some(Verdict::NotMeasured),
            Some(verdict) => Some(verdict),
            None if !is_last => None,
            None if set.end == End::Stopped => Some(Verdict::Inconclusive),
            None => Some(last_word(rules, &look, slower)),
        };
        set.looks[place] = verdict.map(|verdict| (verdict, look));
    }
}

/// Rows from all sets.
fn conclude(
    question: &Question,
    sets: Vec<Set>,
    turns: Option<(usize, Verdict, Look, Turns)>,
    due: usize,
    lost: Vec<(Side, Trial)>,
    seconds: f64,
) -> CellReport {
    let (cell, key) = (&question.cell, &question.key);
    let interrupted = sets.iter().any(|set| set.end == End::Stopped) || turns.iter().any(|(.., turns)| turns.stopped);
    let ends = sets.iter().find_map(|set| match &set.end {
        End::Unmeasured(base, now) => {
            // The baseline of records fits when any of them does.
            let known = &set.samples.base;
            let of_records = || known.iter().find(|trial| trial.is_measured()).or(known.last());
            Some((base.as_deref().or_else(of_records), now.as_deref()))
        }
        _ => None,
    });
    let fitness = ends.and_then(|(base, now)| rows::fitness(base, now));
    let mut rows: Vec<Row> = fitness
        .iter()
        .map(|(class, verdict, words)| Row::of_cell(cell, key, *class, *verdict, words.clone()))
        .collect();
    // A change of fit is told by itself: there is nothing to compare the other numbers with.
    let is_change =
        fitness.as_ref().is_some_and(|(class, verdict, _)| *class == Class::Fit && *verdict != Verdict::Pass);
    if !is_change {
        for (place, rule) in question.rules.metrics.iter().enumerate() {
            let samples: Vec<&Samples> = sets.iter().map(|set| &set.samples).collect();
            if let Some((_, verdict, look, turns)) = turns.as_ref().filter(|(of, ..)| *of == place) {
                let looked = (*verdict, look.clone());
                let looks = vec![&looked];
                let judged = Judged { cell, key, rule, rules: question.rules, looks, samples, due: 0, interrupted };
                rows.push(rows::of_turns(&judged, turns));
                continue;
            }
            let looks: Vec<&(Verdict, Look)> = sets.iter().filter_map(|set| set.looks[place].as_ref()).collect();
            rows.push(rows::row(&Judged { cell, key, rule, rules: question.rules, looks, samples, due, interrupted }));
        }
    }
    CellReport {
        cell: cell.clone(),
        key: key.clone(),
        rows,
        left_out: rows::left_out(sets.iter().map(|set| &set.samples), &lost),
        baseline_trials: sets.iter().map(|set| set.samples.base.len()).sum::<usize>()
            / if stored(question) { sets.len().max(1) } else { 1 },
        candidate_trials: sets.iter().map(|set| set.samples.now.len()).sum(),
        seconds,
        interrupted,
    }
}

fn stored(question: &Question) -> bool {
    matches!(question.opponent, Opponent::Stored(_))
}

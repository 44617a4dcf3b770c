//! The procedure: measure pairs, look, go on until every metric has its verdict or the time is over; then once more for
//! what is a regression or an improvement. What measures is behind [`Bench`], so that it runs on stored samples and in
//! simulations as it runs on the machine.

use super::decision::{LEAST_BASELINE, Look, Samples};
use super::report::{CellReport, Class, Row};
use super::rows::{self, Evidence};
use super::rules::{Bound, Rule, Rules};
use super::trial::{Side, Trial};
use super::turns::{self, Score, Turns};
use super::verdict::Verdict;
use crate::random::Random;
use crate::record::Status;

/// Something that measures, and its clock.
pub trait Bench {
    /// A trial; nothing when the user asked to stop.
    fn trial(&mut self, side: Side) -> Option<Trial>;
    /// Whether both sides can be resident and take turns, so that their speed is compared in pairs of neighbouring turns.
    fn takes_turns(&self) -> bool {
        false
    }
    /// Turns of both sides until `is_decided` or for so many seconds; a false difference is claimed with probability `alpha` at
    /// most.
    ///
    /// # Errors
    /// Why none could be taken, or none that count.
    fn turns(&mut self, _alpha: f64, _seconds: f64, _is_decided: &dyn Fn(&Score) -> bool) -> Result<Turns, String> {
        Err("its sides take no turns".into())
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
    /// A trial did not run to its end, and did not when it was repeated. The trials of the baseline and of the candidate, as far
    /// as there are any.
    Unmeasured(Box<[Option<Trial>; 2]>),
}

/// One set of samples and its verdict on each metric, by the place of the metric in the rules.
struct Set {
    samples: Samples,
    looks: Vec<Option<(Verdict, Look)>>,
    end: End,
}

impl Set {
    /// Whether a metric changed by this set, which further sets have to confirm.
    fn is_change(&self, place: usize) -> bool {
        self.looks[place].as_ref().is_some_and(|(verdict, _)| verdict.is_change())
    }

    /// Whether one of the wanted metrics has no verdict yet.
    fn is_open(&self, wanted: &[bool]) -> bool {
        wanted.iter().zip(&self.looks).any(|(wanted, look)| *wanted && look.is_none())
    }
}

/// Judges one cell by measuring.
pub fn judge(question: &Question, bench: &mut dyn Bench) -> CellReport {
    let start = bench.seconds();
    let rules = question.rules;
    let mut noisy: Vec<bool> = rules.metrics.iter().map(|rule| matches!(rule.bound, Bound::Band { .. })).collect();
    // Speed is compared by turns where both sides can take them, all else by trials.
    let by_turns = (bench.takes_turns() && question.opponent == Opponent::Live)
        .then(|| rules.metrics.iter().position(turns::is_speed))
        .flatten();
    if let Some(place) = by_turns {
        noisy[place] = false;
    }
    // Where noisy metrics are left to trials, half of the time is theirs and the other half that of the turns.
    let of_trials = question.seconds / if by_turns.is_some() && noisy.contains(&true) { 2.0 } else { 1.0 };
    let mut run = Run { question, bench, end: start + of_trials, random: Random::new(question.seed), lost: Vec::new() };
    let mut sets = vec![run.set(&noisy, start + of_trials / (1 + rules.confirm) as f64, 1)];
    for rerun in 0..rules.confirm {
        let last = &sets[sets.len() - 1];
        let first = &sets[0];
        let again: Vec<bool> =
            (0..noisy.len()).map(|i| noisy[i] && first.is_change(i) && agrees(first, last, i)).collect();
        if last.end != End::Done || !again.contains(&true) {
            break;
        }
        let now = run.bench.seconds();
        let end = now + (run.end - now) / (rules.confirm - rerun) as f64;
        sets.push(run.set(&again, end, rerun + 2));
    }
    let ran = sets.iter().all(|set| set.end == End::Done);
    let turns = by_turns.filter(|_| ran).map(|place| (place, run.turns(place, start + question.seconds)));
    let seconds = run.bench.seconds() - start;
    let lost = run.lost;
    conclude(question, sets, turns, rules.confirm, lost, seconds)
}

/// Whether a later set has the same verdict on a metric as the first.
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
    let end = match (best(&samples.base), best(&samples.now)) {
        (Some(before), Some(now)) if before.is_measured() && now.is_measured() => End::Done,
        (_, None) => End::Done,
        (before, now) => End::Unmeasured(Box::new([before.cloned(), now.cloned()])),
    };
    let alpha = (1.0 - rules.confidence) / question.noisy_rows.max(1) as f64;
    let look = |rule: &Rule| {
        let Bound::Band { slower, .. } = rule.bound else { return None };
        let look = samples.look(rule, rules.figure, alpha);
        let too_few = look.used < LEAST_BASELINE || look.shift.is_none();
        let verdict =
            if too_few { Verdict::NotMeasured } else { look.verdict.unwrap_or(last_verdict(rules, &look, slower)) };
        Some((verdict, look))
    };
    let looks = rules.metrics.iter().map(look).collect();
    conclude(question, vec![Set { samples, looks, end }], None, 0, Vec::new(), 0.0)
}

/// A trial that was measured, or else the last.
fn best(trials: &[Trial]) -> Option<&Trial> {
    trials.iter().find(|trial| trial.is_measured()).or(trials.last())
}

/// The verdict when the budget has ended and the data have not decided. An interval that reaches beyond the better edge of the
/// band alone is no regression, whatever else it is.
fn last_verdict(rules: &Rules, look: &Look, slower: f64) -> Verdict {
    // Who wants improvements to fail wants to know whether this is one.
    let improvements_pass = !rules.fail_on.contains(&Verdict::Improvement);
    match look.shift {
        Some(shift) if improvements_pass && shift.high <= slower.ln_1p() => Verdict::Pass,
        _ => Verdict::Inconclusive,
    }
}

/// The result of the turns, or why none were taken.
type TurnsResult = Result<((Verdict, Look), Turns), String>;

struct Run<'a, 'b> {
    question: &'a Question<'a>,
    bench: &'b mut dyn Bench,
    end: f64,
    random: Random,
    lost: Vec<(Side, Trial)>,
}

impl Run<'_, '_> {
    /// Measures until the wanted metrics have their verdicts, or until `end`. The first set goes on to the end of all time where
    /// metrics are open and none changed, since there is nothing then to measure again.
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
            set.end = match self.repeated_trial(Side::Candidate) {
                now @ Some(_) => End::Unmeasured(Box::new([None, now])),
                None => End::Stopped,
            };
        }
        let looks = if wanted.contains(&true) { rules.looks() } else { vec![EXACT_PAIRS] };
        let alpha = rules.alpha(self.question.noisy_rows);
        let is_change = |set: &Set| (0..wanted.len()).any(|place| wanted[place] && set.is_change(place));
        let (mut end, mut went_on, mut longest) = (end, false, 0.0f64);
        for (place, count) in looks.iter().enumerate() {
            let mut is_out = self.until(&mut set, *count, end, number, &mut longest);
            if is_out && number == 1 && end < self.end && set.end == End::Done {
                look_at(rules, &mut set, wanted, alpha, false);
                if set.is_open(wanted) && !is_change(&set) {
                    (end, went_on) = (self.end, true);
                    is_out = self.until(&mut set, *count, end, number, &mut longest);
                }
            }
            let is_last = place + 1 == looks.len() || is_out || set.end != End::Done;
            look_at(rules, &mut set, wanted, alpha, is_last);
            if is_last || !set.is_open(wanted) {
                break;
            }
            if went_on && is_change(&set) {
                // What time is left is for the rerun, so this look is the last for all metrics.
                look_at(rules, &mut set, wanted, alpha, true);
                break;
            }
        }
        set
    }

    /// Measures until so many pairs or trials count; true where the time or the number of trials ended before.
    fn until(&mut self, set: &mut Set, count: usize, end: f64, number: usize, longest: &mut f64) -> bool {
        let most = SPARE * self.question.rules.max_pairs.max(1);
        while set.end == End::Done && set.samples.clean() < count {
            let before = self.bench.seconds();
            // The next may take as long as the longest so far.
            if set.samples.now.len() >= most || *longest > 0.0 && before + *longest > end {
                return true;
            }
            self.show_progress(number, set, count);
            set.end = self.measure(&mut set.samples);
            *longest = longest.max(self.bench.seconds() - before);
        }
        false
    }

    /// Turns until the speed has its verdict, at most until `end`.
    fn turns(&mut self, place: usize, end: f64) -> TurnsResult {
        let rules = self.question.rules;
        let rule = &rules.metrics[place];
        let alpha = (1.0 - rules.confidence) / self.question.noisy_rows.max(1) as f64;
        let seconds = end - self.bench.seconds();
        let turns = self.bench.turns(alpha, seconds, &|score| score.is_decided(rule))?;
        let (look, slower) = turns::look(&turns.comparison, rule).ok_or("its rule has no band")?;
        let verdict = match look.verdict {
            Some(verdict) => verdict,
            None if look.shift.is_none() => Verdict::NotMeasured,
            None if turns.stopped => Verdict::Inconclusive,
            None => last_verdict(rules, &look, slower),
        };
        Ok(((verdict, look), turns))
    }

    /// Measures one pair, in an order that a coin decides; or one trial of the candidate.
    fn measure(&mut self, samples: &mut Samples) -> End {
        let mut order = vec![Side::Candidate];
        if samples.paired {
            order.insert(usize::from(self.random.coin()), Side::Baseline);
        }
        let (mut base, mut now) = (None, None);
        for side in order {
            let Some(trial) = self.repeated_trial(side) else { return End::Stopped };
            *(if side == Side::Baseline { &mut base } else { &mut now }) = Some(trial);
        }
        // Both are there now: whether it fitted before is known whichever went first.
        if [&base, &now].into_iter().flatten().all(Trial::is_measured) {
            samples.base.extend(base);
            samples.now.extend(now);
            return End::Done;
        }
        End::Unmeasured(Box::new([base, now]))
    }

    /// A trial; one that was not measured is repeated as often as the rules confirm. Nothing when it was stopped.
    fn repeated_trial(&mut self, side: Side) -> Option<Trial> {
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

    fn show_progress(&mut self, number: usize, set: &Set, next: usize) {
        let clean = set.samples.clean();
        let what = if set.samples.paired { "pair" } else { "trial" };
        let rerun = if number > 1 { format!(", set {number} to confirm") } else { String::new() };
        let words = format!("{}{rerun}: {what} {}, next look at {next}", self.question.cell, clean + 1);
        self.bench.progress(&words);
    }
}

/// Pairs for rules that name nothing noisy.
const EXACT_PAIRS: usize = 2;

/// Looks at the metrics that have no verdict yet.
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
            None => Some(last_verdict(rules, &look, slower)),
        };
        set.looks[place] = verdict.map(|verdict| (verdict, look));
    }
}

/// The report from all sets.
fn conclude(
    question: &Question,
    sets: Vec<Set>,
    turns: Option<(usize, TurnsResult)>,
    due: usize,
    lost: Vec<(Side, Trial)>,
    seconds: f64,
) -> CellReport {
    let (cell, key) = (&question.cell, &question.key);
    let is_stored = matches!(question.opponent, Opponent::Stored(_));
    let interrupted = sets.iter().any(|set| set.end == End::Stopped)
        || turns.iter().any(|(_, result)| result.as_ref().is_ok_and(|(_, turns)| turns.stopped));
    let fitness = sets.iter().find_map(|set| match &set.end {
        // The baseline of records fits when any of them does.
        End::Unmeasured(last) => rows::fitness(last[0].as_ref().or_else(|| best(&set.samples.base)), last[1].as_ref()),
        _ => None,
    });
    let of_cell = |(class, verdict, words)| Row::of_cell(cell, key, class, verdict, words);
    let mut rows: Vec<Row> = fitness.map(of_cell).into_iter().collect();
    // A change of fit has a row by itself: there is nothing to compare the other numbers with.
    let is_change = rows.iter().any(|row| row.class == Class::Fit && row.verdict != Verdict::Pass);
    if !is_change {
        let samples: Vec<&Samples> = sets.iter().map(|set| &set.samples).collect();
        for (place, rule) in question.rules.metrics.iter().enumerate() {
            let evidence = |looks, due| Evidence {
                cell,
                key,
                rule,
                rules: question.rules,
                looks,
                samples: &samples,
                due,
                interrupted,
            };
            rows.push(match &turns {
                Some((of, result)) if *of == place => {
                    let looks = result.iter().map(|(look, _)| look).collect();
                    rows::of_turns(&evidence(looks, 0), result.as_ref().map(|(_, turns)| turns))
                }
                _ => rows::row(&evidence(sets.iter().filter_map(|set| set.looks[place].as_ref()).collect(), due)),
            });
        }
    }
    CellReport {
        cell: cell.clone(),
        key: key.clone(),
        rows,
        left_out: rows::left_out(sets.iter().map(|set| &set.samples), &lost),
        busy: Vec::new(),
        baseline_trials: sets.iter().map(|set| set.samples.base.len()).sum::<usize>()
            / if is_stored { sets.len().max(1) } else { 1 },
        candidate_trials: sets.iter().map(|set| set.samples.now.len()).sum(),
        seconds,
        interrupted,
    }
}

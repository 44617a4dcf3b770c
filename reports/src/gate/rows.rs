//! One row from the looks of all sets, with the verdict in words.

use super::decision::{Look, Samples};
use super::metric::Kind;
use super::report::{Class, LeftOut, OfTurns, Ratio, Row, SetRow};
use super::rules::{Rule, Rules};
use super::trial::{Side, Trial};
use super::turns::Turns;
use super::verdict::Verdict;
use crate::record::Status;
use crate::{stats, units};
use indexmap::IndexMap;

/// The data behind a row.
pub(super) struct Evidence<'a> {
    pub cell: &'a str,
    pub key: &'a str,
    pub rule: &'a Rule,
    pub rules: &'a Rules,
    /// The verdicts of the sets that looked at the metric, in their order.
    pub looks: Vec<&'a (Verdict, Look)>,
    pub samples: &'a [&'a Samples],
    /// Reruns that a change needs before it is final.
    pub due: usize,
    pub interrupted: bool,
}

/// The row of a metric.
pub(super) fn row(evidence: &Evidence) -> Row {
    let Evidence { cell, key, rule, .. } = evidence;
    let class = Class::from(rule.metric.kind);
    let blank = Row { class, band: Ratio::band(rule), ..Row::blank(cell, key, rule.metric.name) };
    match rule.metric.kind {
        Kind::Noisy => noisy(evidence, blank),
        Kind::Exact | Kind::Losses => exact(evidence, blank),
    }
}

/// The row of a metric of speed that was compared by turns. Its candidate is the baseline times the ratio, since the ratio is that
/// of neighbouring turns and not of two medians. Where none were taken it says why.
pub(super) fn of_turns(evidence: &Evidence, turns: Result<&Turns, &String>) -> Row {
    let mut row = row(evidence);
    let turns = match turns {
        Ok(turns) => turns,
        // The figures of the trials beside are no comparison.
        Err(why) => return Row { words: why.clone(), baseline: None, candidate: None, ..row },
    };
    let Turns { comparison, slower, discarded, baseline, .. } = turns;
    row.baseline = Some(*baseline).filter(|rate| rate.is_finite());
    row.candidate = row.baseline.zip(comparison.ratio).map(|(rate, ratio)| rate * ratio);
    let lost = match discarded {
        0 => String::new(),
        count => format!(
            "; {} more discarded, since other processes used the cores",
            units::plural(*count, "round", "rounds")
        ),
    };
    row.words = format!(
        "{}; the candidate was slower in {slower} of {}, {} of processes{lost}",
        row.words,
        units::plural(comparison.rounds, "round", "rounds"),
        units::plural(comparison.generations, "generation", "generations"),
    );
    let (rounds, generations) = (comparison.rounds, comparison.generations);
    row.turns = Some(OfTurns { rounds, generations, slower: *slower, discarded: *discarded });
    row
}

fn exact(evidence: &Evidence, blank: Row) -> Row {
    // All sets measured the same numbers.
    let mut all = Samples::default();
    for samples in evidence.samples {
        all.now.extend(samples.now.iter().cloned());
        if all.base.is_empty() || samples.paired {
            all.base.extend(samples.base.iter().cloned());
        }
    }
    let found = all.exact(evidence.rule, evidence.rules.figure);
    let ratio = found.base.zip(found.now).filter(|(base, _)| *base != 0.0 && evidence.rule.metric.kind == Kind::Exact);
    let of = |(base, now): (f64, f64)| Ratio { low: Some(now / base), mid: now / base, high: Some(now / base) };
    Row {
        verdict: found.verdict,
        baseline: found.base,
        candidate: found.now,
        ratio: ratio.map(of),
        used: found.used,
        words: found.words,
        ..blank
    }
}

fn noisy(evidence: &Evidence, blank: Row) -> Row {
    let Evidence { rule, rules, looks, .. } = evidence;
    let median = |side: fn(&Samples) -> &Vec<Trial>| {
        let trials = evidence.samples.iter().flat_map(|samples| side(samples)).filter(|trial| trial.is_clean());
        let values: Vec<f64> = trials.filter_map(|trial| trial.value(rule.metric, rules.figure).ok()).collect();
        stats::median(&values)
    };
    let row = Row { baseline: median(|s| &s.base), candidate: median(|s| &s.now), ..blank };
    let Some((first, _)) = looks.first() else {
        return Row { words: "nothing was measured".into(), ..row };
    };
    let ratio = |look: &Look| look.shift.map(|shift| Ratio::of(&shift, rule.metric.more_is_better));
    let sets: Vec<SetRow> =
        looks.iter().map(|(verdict, look)| SetRow { verdict: *verdict, used: look.used, ratio: ratio(look) }).collect();
    // The set that was measured to confirm was not chosen for what it says, so its ratio is the one to state.
    let (last, look) = looks[looks.len() - 1];
    let (verdict, words) = conclusion(evidence, *first, *last, look);
    Row {
        verdict,
        ratio: ratio(look),
        used: sets.iter().map(|set| set.used).sum(),
        reruns: sets.len() - 1,
        noise_floor: look.floor.map(f64::exp_m1),
        widened: look.widened.exp_m1(),
        words,
        sets,
        ..row
    }
}

fn conclusion(evidence: &Evidence, first: Verdict, last: Verdict, look: &Look) -> (Verdict, String) {
    let rules = evidence.rules;
    let sets = evidence.looks.len();
    let is_change = first.is_change();
    match first {
        Verdict::NotMeasured if !look.why_not.is_empty() => (first, look.why_not.clone()),
        Verdict::NotMeasured => {
            let valid = match evidence.samples.iter().any(|samples| samples.paired) {
                true => units::plural(look.used, "valid pair", "valid pairs"),
                false => units::plural(look.used, "valid trial", "valid trials"),
            };
            (first, format!("there are {valid}, and at least {} are needed", rules.min_pairs))
        }
        _ if is_change && last != first => {
            let words = format!("{} in the first set and {} in the rerun", first.words(), last.words());
            (Verdict::Inconclusive, words)
        }
        _ if is_change && sets <= evidence.due => {
            let why = if evidence.interrupted { "it was stopped before" } else { "there was no time for" };
            (Verdict::Inconclusive, format!("{} in the first set, and {why} the rerun that confirms it", first.words()))
        }
        _ if is_change => (first, format!("{}{}", speed(look), reruns(sets))),
        Verdict::Inconclusive if evidence.interrupted => (first, "it was stopped before the data said which".into()),
        Verdict::Inconclusive => (first, format!("the budget ended before the data said which: {}", speed(look))),
        Verdict::Pass if look.verdict.is_none() => {
            (first, "no slower than the band allows; whether it is faster is open".into())
        }
        _ => (first, "within the band".into()),
    }
}

fn reruns(sets: usize) -> String {
    match sets {
        1 => String::new(),
        sets => format!(", confirmed by {}", units::plural(sets - 1, "rerun", "reruns")),
    }
}

/// `4.8 % worse`, by what it costs.
fn speed(look: &Look) -> String {
    let Some(shift) = look.shift else { return "nothing".into() };
    let share = units::percent(shift.mid.abs().exp_m1());
    match shift.mid {
        mid if mid > 0.0 => format!("{share} worse"),
        _ => format!("{share} better"),
    }
}

/// Why a cell could not be measured, as a row about the cell; nothing where both sides ran.
pub(super) fn fitness(base: Option<&Trial>, now: Option<&Trial>) -> Option<(Class, Verdict, String)> {
    use Status::{Diverged, Failed, OutOfMemory, Skipped, TimedOut};
    let reason = |trial: Option<&Trial>| trial.map_or(String::new(), |trial| trial.reason.clone());
    let run = |verdict, side: Side, trial: Option<&Trial>| {
        let what = trial.map_or("is not there", |trial| trial.status.words());
        Some((Class::Run, verdict, format!("the {}: {what}: {}", side.name(), reason(trial))))
    };
    let fit = |verdict, words: String| Some((Class::Fit, verdict, words));
    match (base.map(|trial| trial.status), now.map(|trial| trial.status)) {
        (_, Some(Failed | TimedOut | Diverged)) => run(Verdict::Failed, Side::Candidate, now),
        (Some(Failed | TimedOut | Diverged), _) => run(Verdict::Failed, Side::Baseline, base),
        (_, Some(Skipped)) => run(Verdict::NotMeasured, Side::Candidate, now),
        (Some(Skipped), _) => run(Verdict::NotMeasured, Side::Baseline, base),
        (Some(OutOfMemory), Some(OutOfMemory)) => fit(Verdict::Pass, "out of memory on both sides".into()),
        (_, Some(OutOfMemory)) => {
            fit(Verdict::Regression, format!("it fitted, and is now out of memory: {}", reason(now)))
        }
        (Some(OutOfMemory), Some(Status::Measured)) => {
            fit(Verdict::Improvement, format!("it fits now, and was out of memory: {}", reason(base)))
        }
        _ => None,
    }
}

/// Trials that did not count, by side and reason.
pub(super) fn left_out<'a>(samples: impl Iterator<Item = &'a Samples> + Clone, lost: &[(Side, Trial)]) -> Vec<LeftOut> {
    let mut counts: IndexMap<(&str, String), usize> = IndexMap::new();
    let mut count = |side: Side, trial: &Trial| {
        let why = if trial.is_measured() { trial.flags.join(", ") } else { trial.status.words().to_string() };
        *counts.entry((side.name(), why)).or_default() += 1;
    };
    let mut flagged = |side: Side, trials: &[Trial]| {
        trials.iter().filter(|trial| !trial.is_clean()).for_each(|trial| count(side, trial));
    };
    for (place, samples) in samples.enumerate() {
        if samples.paired || place == 0 {
            flagged(Side::Baseline, &samples.base);
        }
        flagged(Side::Candidate, &samples.now);
    }
    lost.iter().for_each(|(side, trial)| count(*side, trial));
    counts.into_iter().map(|((side, why), count)| LeftOut { side: side.into(), why, count }).collect()
}

//! What to do after a gate, by its verdict.

use super::report::{CellReport, Class, LeftOut, Report, Row};
use super::verdict::Verdict;
use crate::record::{LOAD_FLAGS, others};

/// Time that is worth advising is at most this many times what the gate had.
const MOST_TIMES: f64 = 16.0;
/// An interval that is wider than so many bands is undecided for its width, wherever its middle lies.
const NOISY: f64 = 2.0;

/// The next step in one sentence; empty where there is none. `explain` says how a regression is explained.
pub fn next(report: &Report, explain: &str) -> String {
    if report.interrupted {
        return "it was stopped, so run the same command again".into();
    }
    let Some(row) = report.rows().find(|row| row.verdict == report.verdict) else { return String::new() };
    let step = match row.verdict {
        Verdict::Inconclusive => inconclusive(report, row),
        Verdict::NotMeasured => not_measured(report, row),
        Verdict::Regression => explain.to_string(),
        Verdict::Failed => "run the cell by itself with `zbench run` to see its whole output".into(),
        Verdict::Pass | Verdict::Improvement => return String::new(),
    };
    if step.is_empty() { step } else { format!("{}: {step}", row.metric) }
}

/// What is discarded for the load of others, where that is most of it.
fn quieter(row: &Row, cell: Option<&CellReport>) -> Option<String> {
    let busy = cell.map_or(&[][..], |cell| &cell.busy);
    let who = if busy.is_empty() { String::new() } else { format!(" ({})", others::names(busy)) };
    let (lost, all, what) = match row.turns {
        Some(turns) => (turns.discarded, turns.discarded + turns.rounds, "rounds"),
        None => {
            let cell = cell.filter(|_| row.class == Class::Noisy)?;
            let is_load = |left: &&LeftOut| left.why.split(", ").all(|flag| LOAD_FLAGS.contains(&flag));
            let lost = cell.left_out.iter().filter(is_load).map(|left| left.count).sum();
            (lost, cell.baseline_trials + cell.candidate_trials, "trials")
        }
    };
    (2 * lost > all || lost > row.used).then(|| {
        format!(
            "other processes used the cores in {lost} of {all} {what}{who}; stop them and run it again, or count these {what}, too, with \
             `--allow-load`"
        )
    })
}

fn inconclusive(report: &Report, row: &Row) -> String {
    let cell = cell_of(report, row);
    let budget = |times: f64| format!("`--time-budget {}`", time(times * report.time_budget_seconds));
    if let Some(words) = quieter(row, cell) {
        return words;
    }
    if row.sets.windows(2).any(|sets| sets[0].verdict != sets[1].verdict) {
        return format!("its sets of samples disagree; run it again where less else runs, or with {}", budget(2.0));
    }
    let bounds = row.ratio.and_then(|ratio| Some((ratio.low?, ratio.mid, ratio.high?)));
    let band = row.band.and_then(|band| Some((band.low?, band.high?)));
    let (Some((low, mid, high)), Some((from, to))) = (bounds, band) else {
        return format!("there are too few samples for an interval; {} would give more", budget(2.0));
    };
    let left = format!("the ratio may lie from {low:.4} to {high:.4}, and the band is {from:.4} to {to:.4}");
    if row.sets.iter().any(|set| set.verdict != Verdict::Inconclusive) {
        return format!("{left}; there was no time to confirm that: {}", budget(2.0));
    }
    // The interval has to fit between its middle and the nearest edge, and it shrinks with the square root of the time.
    let room = (mid.ln() - from.ln()).abs().min((mid.ln() - to.ln()).abs());
    let half = (mid.ln() - low.ln()).max(high.ln() - mid.ln());
    let times = (half / room).powi(2).max(1.25);
    if times <= MOST_TIMES {
        return format!(
            "{left}; its width shrinks with the square root of time, so that {} should decide it",
            budget(times)
        );
    }
    let wide = (high / low).ln() / (to / from).ln();
    if wide.is_finite() && wide > NOISY {
        return format!(
            "{left}; this is too noisy to decide: the interval is {wide:.0} times as wide as the band. Run it again where less else \
             runs, or with more steps in a trial"
        );
    }
    format!(
        "{left}; the ratio is so near the edge of the band that time will not decide it: change slower or faster of \
         [metrics.{}] in {}, or accept it",
        row.metric, report.rules
    )
}

fn cell_of<'r>(report: &'r Report, row: &Row) -> Option<&'r CellReport> {
    report.cells.iter().find(|cell| cell.key == row.key && cell.cell == row.cell)
}

fn not_measured(report: &Report, row: &Row) -> String {
    let why = &row.words;
    let cell = cell_of(report, row);
    let left_out: usize = cell.map_or(0, |cell| cell.left_out.iter().map(|left| left.count).sum());
    let trials = cell.map_or(0, |cell| cell.baseline_trials + cell.candidate_trials);
    if let Some(words) = quieter(row, cell) {
        return words;
    }
    if 2 * left_out > trials {
        return format!("{why}: most trials did not count; run it again where less else runs");
    }
    if row.used > 0 || row.turns.is_some() {
        return format!("{why}: `--time-budget {}` would give more", time(2.0 * report.time_budget_seconds));
    }
    format!("{why}; leave the metric out of {} if the cell cannot have it, else measure again", report.rules)
}

/// As `--time-budget` takes it, rounded up to what people would write.
fn time(seconds: f64) -> String {
    let seconds = seconds.max(1.0);
    match seconds {
        s if s <= 90.0 => format!("{:.0}s", (s / 5.0).ceil() * 5.0),
        s if s <= 5400.0 => format!("{:.0}min", (s / 60.0).ceil()),
        s => format!("{:.0}h", (s / 3600.0).ceil()),
    }
}

/// How the two sides were measured, in words; `both` names them.
pub fn how(cells: &[CellReport], both: &str) -> String {
    if cells.iter().any(|cell| cell.rows.iter().any(|row| row.turns.is_some())) {
        format!("tokens_per_second by turns of both {both}, the rest by pairs of trials, in one job, in random order")
    } else {
        format!("pairs of trials of both {both} in one job, in random order")
    }
}

//! What is not decided, and what a larger budget would decide.

use super::time;
use crate::grid::{Cell, Grid};
use crate::turns_analysis::TurnsAnalysis;
use crate::units;

/// Open pairs whose limits are computed at most, because that takes time.
const MOST_PAIRS: usize = 60;
/// The proposed budget is for pairs that differ by this or more.
const WORTH: f64 = 0.03;
/// A larger multiple of the budget is not proposed.
const MOST_TIMES: f64 = 20.0;

/// The sentence; empty where nothing is open.
pub fn sentence(grid: &Grid) -> String {
    match &grid.turned {
        Some(turned) => by_turns(turned),
        None => by_trials(grid),
    }
}

fn by_turns(turned: &TurnsAnalysis) -> String {
    let open = turned.open_pairs();
    if open.is_empty() {
        return String::new();
    }
    let stride = open.len().div_ceil(MOST_PAIRS);
    // For each pair: its difference, and the multiple of the time that would decide it. Limits narrow with the root of the time.
    let pairs = open.iter().step_by(stride).filter_map(|(a, b)| {
        let pair = turned.pair(a, b)?;
        let apart = pair.ratio?.ln().abs();
        let half = pair.low.zip(pair.high).map_or(f64::INFINITY, |(low, high)| (high / low).ln() / 2.0);
        let room = apart - pair.least;
        Some((apart, if room > 0.0 { (half / room).powi(2).max(1.0) } else { f64::INFINITY }))
    });
    let pairs: Vec<(f64, f64)> = pairs.collect();
    let count = units::plural(open.len(), "pair", "pairs");
    if pairs.is_empty() {
        return format!("{count} never took turns in one round.");
    }
    let mut text = count;
    let mut apart: Vec<f64> = pairs.iter().map(|(apart, _)| *apart).collect();
    apart.sort_by(f64::total_cmp);
    let most = apart[(apart.len() - 1) * 3 / 4].exp() - 1.0;
    text += &match open.len() {
        1 => format!(", about {} apart", share(most)),
        _ => format!(", mostly closer than {}", share(most)),
    };
    let mut times: Vec<f64> =
        pairs.iter().filter(|(apart, _)| *apart >= WORTH.ln_1p()).map(|(_, times)| *times).collect();
    times.sort_by(f64::total_cmp);
    // A larger budget measures nothing where every experiment ended by itself.
    let stopped = &turned.course.stopped;
    if !stopped.is_empty() && stopped.iter().all(|stopped| stopped == "decided") {
        return text
            + ". The run ended as each pair alone was decided; all claims together need more. A larger --budget measures nothing: \
               use a smaller --decide, or --fresh.";
    }
    let spent = turned.course.budget.unwrap_or(turned.course.seconds).max(1.0);
    text += &match times.get(times.len() / 2) {
        None => format!("; none seems to differ by {} or more.", share(WORTH)),
        Some(half) if *half <= MOST_TIMES => {
            let which =
                if times.len() == 1 { "it".to_string() } else { format!("half of those above {}", share(WORTH)) };
            format!(": the same command with --budget {} should decide {which}.", budget(spent * half.max(1.5)))
        }
        Some(_) => format!("; more than {MOST_TIMES} times the {} spent would be needed for most.", time(spent)),
    };
    text
}

/// `3 %`, or `3.4 %` below ten percent.
fn share(value: f64) -> String {
    let percent = value * 100.0;
    let decimals = usize::from(percent < 9.95 && (percent - percent.round()).abs() > 0.05);
    format!("{percent:.decimals$} %")
}

/// A round number of seconds or minutes, not below.
fn budget(seconds: f64) -> String {
    match seconds {
        short if short <= 120.0 => format!("{:.0}s", (short / 10.0).ceil() * 10.0),
        long => format!("{:.0}m", (long / 60.0).ceil()),
    }
}

fn by_trials(grid: &Grid) -> String {
    let cells: Vec<&Cell> = grid.ranked().collect();
    let overlaps = |a: &Cell, b: &Cell| a.interval().zip(b.interval()).is_some_and(|(a, b)| a.overlaps(&b));
    let behind = |(place, a): (usize, &&Cell)| cells[place + 1..].iter().filter(|b| overlaps(a, b)).count();
    let open: usize = cells.iter().enumerate().map(behind).sum();
    let why_not =
        grid.measured().flat_map(|cell| &cell.used).find_map(|record| record.turns.as_ref()?.why_not.as_deref());
    let next = match why_not {
        Some(why) => format!("These cells did not take turns: {}.", why.trim_end_matches('.')),
        None => "Cells that take turns are decided much sooner: zbench grid FILE without --trials.".to_string(),
    };
    match (open, cells.len() * cells.len().saturating_sub(1) / 2) {
        (0, _) => String::new(),
        (open, all) => format!("the 95 % intervals of {open} of {all} pairs overlap. {next}"),
    }
}

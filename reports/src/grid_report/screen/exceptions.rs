//! What was not measured or is not ranked, grouped by reason, a line for each group.

use super::super::{ranking, words};
use crate::grid::Grid;
use crate::record::{Record, Status, Verdict};
use crate::units;

/// Statuses in the order in which they are told: what has to be looked at comes first.
const ORDER: [Status; 5] = [Status::Failed, Status::Diverged, Status::TimedOut, Status::OutOfMemory, Status::Skipped];
/// So many reasons for which measured cells are not ranked are told.
const REASONS: usize = 2;
/// So many cells of a group are named.
const NAMED: usize = 2;

/// Labels and texts.
pub fn all(grid: &Grid) -> Vec<(String, String)> {
    let mut items: Vec<(String, String)> = Vec::new();
    items.extend(ORDER.iter().filter_map(|status| ended(grid, *status)));
    items.extend(failed_parity(grid));
    items.extend(flagged(grid));
    items.extend(unranked(grid));
    items
}

/// The trials that ended in this way, with the reason of most of them.
fn ended(grid: &Grid, status: Status) -> Option<(String, String)> {
    let mut cells: Vec<&str> = Vec::new();
    let mut reasons: Vec<(String, &str, usize)> = Vec::new();
    let mut trials = 0;
    for cell in &grid.cells {
        for record in cell.trials.iter().filter(|record| record.outcome.status == status) {
            trials += 1;
            if cells.last() != Some(&cell.short.as_str()) {
                cells.push(&cell.short);
            }
            let shape = super::super::without_numbers(&record.outcome.reason);
            match reasons.iter_mut().find(|(other, ..)| *other == shape) {
                Some((_, _, count)) => *count += 1,
                None => reasons.push((shape, &record.outcome.reason, 1)),
            }
        }
    }
    let most = reasons.iter().rev().max_by_key(|(_, _, count)| *count)?;
    let reason = if most.1.trim().is_empty() { "no reason was recorded" } else { most.1.trim_end_matches('.') };
    let mut text = units::plural(cells.len(), "cell", "cells");
    if trials > cells.len() {
        text += &format!(", {trials} trials");
    }
    text += &format!(" ({}): {reason}", names(&cells));
    text += &match reasons.len() - 1 {
        0 => ".".to_string(),
        more => format!(". {} beside it.", units::plural(more, "other reason", "other reasons")),
    };
    Some((status.words().to_uppercase(), text))
}

/// The cells, and of more than two the first and a count.
fn names(cells: &[&str]) -> String {
    match cells.len() {
        0..=NAMED => cells.join("; "),
        all => format!("{}; and {} more", cells[0], all - 1),
    }
}

fn failed_parity(grid: &Grid) -> Option<(String, String)> {
    let failed: Vec<_> = grid.measured().filter(|cell| cell.verdict == Verdict::Failed).collect();
    if failed.is_empty() {
        return None;
    }
    let largest = failed.iter().filter_map(|cell| words::largest_difference(cell)).fold(0.0, f64::max);
    let labels: Vec<&str> = failed.iter().map(|cell| cell.short.as_str()).collect();
    let text = format!(
        "{} not ranked ({}): losses differ from the reference by up to {}.",
        units::plural(failed.len(), "cell is", "cells are"),
        names(&labels),
        units::number(largest)
    );
    Some(("WRONG LOSS".into(), text))
}

/// Trials with validity flags, all flags in one line.
fn flagged(grid: &Grid) -> Option<(String, String)> {
    let measured: Vec<&Record> =
        grid.measured().flat_map(|cell| &cell.trials).copied().filter(|record| record.is_measured()).collect();
    let mut flags: Vec<(&str, usize)> = Vec::new();
    for flag in measured.iter().flat_map(|record| record.excluding_flags()) {
        match flags.iter_mut().find(|(other, _)| *other == flag) {
            Some((_, count)) => *count += 1,
            None => flags.push((flag, 1)),
        }
    }
    if flags.is_empty() {
        return None;
    }
    let count = measured.iter().filter(|record| record.excluding_flags().next().is_some()).count();
    let reasons: Vec<String> =
        flags.iter().map(|(flag, count)| format!("{} in {count}", ranking::flag_words(flag))).collect();
    Some(("FLAGGED".into(), format!("{count} of {} trials do not count: {}.", measured.len(), units::list(&reasons))))
}

/// Measured cells without a rank for another reason than those above.
fn unranked(grid: &Grid) -> Vec<(String, String)> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for cell in grid.measured().filter(|cell| cell.verdict != Verdict::Failed) {
        let Some(reason) = cell.unranked.as_deref() else { continue };
        if cell.used.iter().all(|record| record.excluding_flags().next().is_some()) {
            continue;
        }
        match reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, cells)) => cells.push(&cell.short),
            None => reasons.push((reason, vec![&cell.short])),
        }
    }
    let told = |(reason, cells): (&str, Vec<&str>)| {
        let count = units::plural(cells.len(), "cell", "cells");
        ("NOT RANKED".to_string(), format!("{count} ({}): {reason}.", names(&cells)))
    };
    reasons.into_iter().take(REASONS).map(told).collect()
}

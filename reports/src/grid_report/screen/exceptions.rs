//! What was not measured or is not ranked, grouped by reason, a line for each group.

use super::super::{ranking, words};
use crate::gather::{counted, distinct, grouped};
use crate::grid::{Cell, Grid};
use crate::phrase::names_or_count;
use crate::record::{Record, Status, Verdict};
use crate::units;

/// Statuses in the order of the lines: what must be looked at comes first.
const ORDER: [Status; 5] = [Status::Failed, Status::Diverged, Status::TimedOut, Status::OutOfMemory, Status::Skipped];
/// Reasons why measured cells are not ranked, at most.
const REASONS: usize = 2;
/// Cells of a group that are named at most.
const NAMED: usize = 1;

/// Labels and texts.
pub fn all(grid: &Grid) -> Vec<(String, String)> {
    let ended = ORDER.iter().filter_map(|status| ended(grid, *status));
    ended.chain(failed_parity(grid)).chain(flagged(grid)).chain(unranked(grid)).collect()
}

/// The trials that ended with this status, with the most frequent reason.
fn ended(grid: &Grid, status: Status) -> Option<(String, String)> {
    let has_ended = |record: &&&Record| record.outcome.status == status;
    let trials: Vec<(&str, &str)> = grid
        .cells
        .iter()
        .flat_map(|cell| {
            cell.trials.iter().filter(has_ended).map(|record| (&cell.short[..], &record.outcome.reason[..]))
        })
        .collect();
    let cells = distinct(trials.iter().map(|(cell, _)| *cell));
    let reasons = grouped(trials.iter().map(|(_, reason)| (super::super::without_numbers(reason), *reason)));
    // Of equally frequent ones the first.
    let (_, most) = reasons.iter().rev().max_by_key(|(_, all)| all.len())?;
    let reason = if most[0].trim().is_empty() { "no reason was recorded" } else { most[0].trim_end_matches('.') };
    let mut text = units::plural(cells.len(), "cell", "cells");
    if trials.len() > cells.len() {
        text += &format!(", {} trials", trials.len());
    }
    text += &format!(" ({}): {reason}", names_or_count(&cells, NAMED));
    text += &match reasons.len() - 1 {
        0 => ".".to_string(),
        more => format!(". {} beside it.", units::plural(more, "other reason", "other reasons")),
    };
    Some((status.words().to_uppercase(), text))
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
        names_or_count(&labels, NAMED),
        units::number(largest)
    );
    Some(("WRONG LOSS".into(), text))
}

/// Trials with validity flags, all flags in one line.
fn flagged(grid: &Grid) -> Option<(String, String)> {
    let measured: Vec<&Record> =
        grid.measured().flat_map(|cell| &cell.trials).copied().filter(|record| record.is_measured()).collect();
    let flags = counted(measured.iter().flat_map(|record| record.excluding_flags()));
    let count = measured.iter().filter(|record| record.excluding_flags().next().is_some()).count();
    let reason = |(flag, count): &(&str, usize)| format!("{} in {count}", ranking::flag_words(flag));
    let reasons = units::list(&flags.iter().map(reason).collect::<Vec<_>>());
    let text = format!("{count} of {} trials do not count: {reasons}.", measured.len());
    (!flags.is_empty()).then(|| ("FLAGGED".into(), text))
}

/// Measured cells without a rank for other reasons than those above.
fn unranked(grid: &Grid) -> Vec<(String, String)> {
    let is_flagged = |cell: &Cell| cell.used.iter().all(|record| record.excluding_flags().next().is_some());
    let others = grid.measured().filter(|cell| cell.verdict != Verdict::Failed && !is_flagged(cell));
    let reasons = grouped(others.filter_map(|cell| Some((cell.unranked.as_deref()?, &cell.short))));
    let line = |(reason, cells): (&str, Vec<&String>)| {
        let count = units::plural(cells.len(), "cell", "cells");
        ("NOT RANKED".to_string(), format!("{count} ({}): {reason}.", names_or_count(&cells, NAMED)))
    };
    reasons.into_iter().take(REASONS).map(line).collect()
}

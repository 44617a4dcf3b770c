//! The screen of cells of which none was measured: what fits, and the predictions.

use super::super::planned::{Plan, capacity, plans};
use crate::document::{Entry, Table, Tone};
use crate::estimate_report;
use crate::grid::Grid;
use crate::units;

/// Rows at most: a grid that did not run needs fewer lines.
const MOST_ROWS: usize = 8;

/// Why nothing ran, how much fits, and which cell is predicted to be the fastest.
pub fn answer(grid: &Grid) -> String {
    let plans = plans(grid);
    let mut text = "Nothing was measured; the reasons are below.".to_string();
    if plans.is_empty() {
        return text;
    }
    let (all, capacity) = (units::plural(plans.len(), "cell", "cells"), capacity(&plans));
    text += &match plans.iter().filter(|plan| plan.fits()).count() {
        0 => format!(" By the plan none of {all} fits {capacity}."),
        count => format!(" By the plan {count} of {all} fit {capacity}."),
    };
    let rows: Vec<_> = plans.iter().map(|plan| plan.estimate.clone()).collect();
    if let Some(fastest) = estimate_report::fastest(&rows) {
        text += &format!(" {fastest}");
    }
    text
}

/// The plans: those that fit first, by speed, then by their excess.
pub fn table(grid: &Grid, rows: usize) -> (Table, String) {
    let mut plans = plans(grid);
    let speed = |plan: &Plan| plan.estimate.tokens_per_second.unwrap_or(0.0);
    plans.sort_by(|a, b| {
        let fits = b.fits().cmp(&a.fits());
        fits.then(speed(b).total_cmp(&speed(a))).then(a.excess().cmp(&b.excess()))
    });
    let shown = &plans[..plans.len().min(rows.min(MOST_ROWS))];
    let mut table = Table::of("plan", shown);
    table.words("fits", |plan| match plan.fits() {
        true => Entry::words("yes").toned(Tone::Good),
        false => Entry::words("no").toned(Tone::Warning),
    });
    table.words("cell", |plan| &plan.cell.label);
    table.memory("peak/rank", |plan| Some(plan.total));
    table.numbers("of capacity", "fraction", |plan| Entry::number(plan.share(), units::percent(plan.share())));
    table.numbers("step", "ms", |plan| Entry::maybe(plan.estimate.step_ms, |ms| units::duration(ms / 1e3)));
    table.numbers("tokens/s", "tokens/s", |plan| Entry::maybe(plan.estimate.tokens_per_second, units::quantity));
    table.numbers("MFU", "fraction", |plan| Entry::maybe(plan.estimate.mfu, units::percent));
    let more = match plans.len() - shown.len() {
        0 => String::new(),
        count => format!("{count} more; zbench report --full has all {}.", plans.len()),
    };
    (table.build(), more)
}

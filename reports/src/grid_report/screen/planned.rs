//! The screen of cells of which none was measured: what fits, what it would take, and what keeps it from running here.

use super::super::planned::{Plan, plans};
use crate::document::{Column, Entry, Table, Tone};
use crate::estimate_report;
use crate::grid::Grid;
use crate::units;

/// So many rows at most: a grid that did not run is answered in fewer lines.
const MOST_ROWS: usize = 8;

/// Why nothing ran, how much fits, and which is predicted to be the fastest.
pub fn answer(grid: &Grid) -> String {
    let plans = plans(grid);
    let mut text = "Nothing was measured; the reasons are below.".to_string();
    if plans.is_empty() {
        return text;
    }
    let count = plans.iter().filter(|plan| plan.fits()).count();
    let capacity = match plans.windows(2).all(|pair| pair[0].capacity == pair[1].capacity) {
        true => format!("the {} of a rank", units::memory(plans[0].capacity as f64)),
        false => "what its ranks may use".to_string(),
    };
    text += &match count {
        0 => format!(" By the plan none of {} fits {capacity}.", units::plural(plans.len(), "cell", "cells")),
        count => format!(" By the plan {count} of {} fit {capacity}.", units::plural(plans.len(), "cell", "cells")),
    };
    let rows: Vec<_> = plans.iter().map(|plan| plan.estimate.clone()).collect();
    if let Some(fastest) = estimate_report::fastest(&rows) {
        text += &format!(" {fastest}");
    }
    text
}

/// The plans: those that fit first, by speed, then by how much is too much.
pub fn table(grid: &Grid, rows: usize) -> (Table, String) {
    let mut plans = plans(grid);
    let speed = |plan: &Plan| plan.estimate.tokens_per_second.unwrap_or(0.0);
    plans.sort_by(|a, b| {
        let fits = b.fits().cmp(&a.fits());
        fits.then(speed(b).total_cmp(&speed(a))).then(a.excess().cmp(&b.excess()))
    });
    let mut table = Table::new(
        "plan",
        vec![
            Column::words("fits"),
            Column::words("cell"),
            Column::numbers("peak/rank", "bytes"),
            Column::numbers("of capacity", "fraction"),
            Column::numbers("step", "ms"),
            Column::numbers("tokens/s", "tokens/s"),
            Column::numbers("MFU", "fraction"),
        ],
    );
    for plan in plans.iter().take(rows.min(MOST_ROWS)) {
        let (fits, tone) = if plan.fits() { ("yes", Tone::Good) } else { ("no", Tone::Warning) };
        table.row(vec![
            Entry::words(fits).toned(tone),
            Entry::words(&plan.cell.label),
            Entry::memory(Some(plan.total)),
            Entry::number(plan.share(), units::percent(plan.share())),
            Entry::maybe(plan.estimate.step_ms, |ms| units::duration(ms / 1e3)),
            Entry::maybe(plan.estimate.tokens_per_second, units::quantity),
            Entry::maybe(plan.estimate.mfu, units::percent),
        ]);
    }
    let more = match plans.len() - table.rows.len() {
        0 => String::new(),
        count => format!("{count} more; zbench report --full has all {}.", plans.len()),
    };
    (table, more)
}

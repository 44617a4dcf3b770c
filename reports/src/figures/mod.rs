//! The plots of a report, made from records. A figure is made where the data for it are, and not otherwise.

mod course;
mod loss;
mod memory;
mod pareto;
mod predicted;
mod speed;
mod time;

pub(crate) use course::course;
pub(crate) use loss::losses;
pub(crate) use memory::memory;
pub(crate) use pareto::{dominated, pareto};
pub(crate) use predicted::{predicted_memory, predicted_step, predicted_wire};
pub(crate) use speed::{mfu, spread, tokens_per_second};
pub(crate) use time::{time, waterfall};

use crate::document::Tone;
use crate::grid::{Cell, Grid};
use crate::plot::{Figure, MOST_ROWS, Plot};
use crate::record::Verdict;

/// So many names stand in a sentence; of more, the count is given.
const NAMED: usize = 3;

/// A figure of these cells: the ids of all their used records, or of their last one where nothing ran.
fn figure(name: &str, title: &str, caption: String, plot: Plot, cells: &[&Cell]) -> Figure {
    let ids = |cell: &&Cell| -> Vec<String> {
        let used: Vec<String> = cell.used.iter().map(|record| record.id.clone()).collect();
        if used.is_empty() { vec![cell.record().id.clone()] } else { used }
    };
    let records = cells.iter().flat_map(ids).collect();
    Figure { name: name.to_string(), title: title.to_string(), caption, plot, records }
}

/// The cells with a place in a plot of rows: those that a condition holds for, the fastest first, and what to say where they
/// are too many.
fn chosen<'g, 'a>(grid: &'g Grid<'a>, fits: impl Fn(&Cell<'a>) -> bool) -> (Vec<&'g Cell<'a>>, String) {
    let all: Vec<&Cell> = grid.cells.iter().filter(|cell| fits(cell)).collect();
    let count = all.len();
    if count <= MOST_ROWS {
        return (all, String::new());
    }
    let shown = all.into_iter().take(MOST_ROWS).collect();
    let said = format!(
        " Shown are {MOST_ROWS} of {count} cells, the first in the order of the tables (by median tokens/s); the tables have all."
    );
    (shown, said)
}

/// How a cell's number is to be taken.
fn tone(cell: &Cell) -> Tone {
    match (cell.verdict, cell.place) {
        (Verdict::Failed, _) => Tone::Struck,
        (_, None) => Tone::Warning,
        (_, Some(place)) if place.rank == 1 => Tone::Good,
        _ => Tone::Plain,
    }
}

/// The id of the record that stands for a cell.
fn id(cell: &Cell) -> String {
    cell.record().id.clone()
}

/// `a; b`, and of many the first and a count.
fn named(names: &[String]) -> String {
    match names.len().saturating_sub(NAMED) {
        0 | 1 => names.join("; "),
        more => format!("{}; and {more} more", names[..NAMED].join("; ")),
    }
}

/// From the least to the greatest, or the one there is; nothing of nothing.
fn range(values: impl Iterator<Item = f64>, show: impl Fn(f64) -> String) -> Option<String> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    (low <= high).then(|| match (show(low), show(high)) {
        (low, high) if low == high => low,
        (low, high) => format!("{low} to {high}"),
    })
}

//! The plots of a report, made from records. A figure without data is not made.

mod loss;
mod memory;
mod pareto;
mod predicted;
mod run_loss;
mod speed;
mod time;
mod timelines;

pub(crate) use loss::losses;
pub(crate) use memory::memory;
pub(crate) use pareto::{dominated, pareto};
pub(crate) use predicted::{predicted_memory, predicted_step, predicted_wire};
pub(crate) use run_loss::run_loss;
pub(crate) use speed::{mfu, spread, tokens_per_second};
pub(crate) use time::{spans, time, waterfall};
pub(crate) use timelines::timelines;

use crate::document::Tone;
use crate::grid::{Cell, Grid};
use crate::plot::{Figure, MOST_ROWS, Plot};
use crate::record::Verdict;

/// Names in a sentence at most.
const NAMED: usize = 3;

/// A figure of these cells: the ids of all their used records, or of their last one where nothing ran.
fn figure(name: &str, title: &str, caption: String, plot: Plot, cells: &[&Cell]) -> Figure {
    let ids = |cell: &&Cell| -> Vec<String> {
        let used: Vec<String> = cell.used.iter().map(|record| record.id.clone()).collect();
        if used.is_empty() { vec![id(cell)] } else { used }
    };
    Figure::new(name, title, caption, plot, cells.iter().flat_map(ids).collect())
}

/// The cells that a plot of rows shows: those for which a condition holds, the fastest first, and a remark where not all are shown.
fn chosen<'g, 'a>(grid: &'g Grid<'a>, fits: impl Fn(&Cell<'a>) -> bool) -> (Vec<&'g Cell<'a>>, String) {
    let all: Vec<&Cell> = grid.cells.iter().filter(|cell| fits(cell)).collect();
    let count = all.len();
    if count <= MOST_ROWS {
        return (all, String::new());
    }
    let shown = all.into_iter().take(MOST_ROWS).collect();
    let remark = format!(
        " Shown are {MOST_ROWS} of {count} cells, the first in the order of the tables (by median tokens/s); the tables have all."
    );
    (shown, remark)
}

/// How to read a cell's number.
fn tone(cell: &Cell) -> Tone {
    match (cell.verdict, cell.place) {
        (Verdict::Failed, _) => Tone::Struck,
        (_, None) => Tone::Warning,
        (_, Some(place)) if place.rank == 1 => Tone::Good,
        _ => Tone::Plain,
    }
}

/// The id of the record that represents a cell.
fn id(cell: &Cell) -> String {
    cell.record().id.clone()
}

//! Where the time of a step goes.

use super::{NAMED, chosen, figure, id};
use crate::gather::distinct;
use crate::grid::{Cell, Grid};
use crate::phrase::names_or_count;
use crate::plot::{Axis, Figure, Panel, Plot, StackRow, Stacks, Unit, Waterfalls, drawable};
use crate::units;

/// Waterfalls that are drawn at most.
const PANELS: usize = 4;

/// The spans in which some measured cell spends time, in the order of the records, and those in which none does.
pub fn spans<'a>(grid: &Grid<'a>) -> (Vec<&'a str>, Vec<&'a str>) {
    let all = || grid.measured().flat_map(|cell| &cell.used).flat_map(|record| record.time.iter());
    let used = distinct(all().filter(|(_, ms)| ms.is_some_and(|ms| ms > 0.0)).map(|(name, _)| name));
    distinct(all().map(|(name, _)| name)).into_iter().partition(|name| used.contains(name))
}

fn lengths(cell: &Cell, names: &[&str]) -> Vec<f64> {
    names.iter().map(|name| cell.span_ms(name).and_then(drawable).unwrap_or(0.0).max(0.0)).collect()
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn not_spent(empty: &[&str]) -> String {
    let empty: Vec<String> = empty.iter().map(|name| words(name)).collect();
    if empty.is_empty() { String::new() } else { format!(" No cell spends time in: {}.", empty.join(", ")) }
}

/// The spans of a step for every cell.
pub fn time(grid: &Grid) -> Option<Figure> {
    let (names, empty) = spans(grid);
    let has = |cell: &Cell| !cell.used.is_empty() && lengths(cell, &names).iter().any(|ms| *ms > 0.0);
    let (cells, selection) = chosen(grid, has);
    if cells.is_empty() {
        return None;
    }
    let row = |cell: &&Cell| StackRow {
        label: cell.label.clone(),
        parts: lengths(cell, &names),
        limit: None,
        is_plan: false,
        record: id(cell),
    };
    let rows: Vec<StackRow> = cells.iter().map(row).collect();
    let caption = format!(
        "{} Milliseconds of a step of the slowest rank, mean over steps and trials; the spans add up to the step.{}{selection}",
        exposed(&names, &rows),
        not_spent(&empty)
    );
    let plot = Plot::Stacks(Stacks {
        axis: Axis::linear("time of a step", Unit::Milliseconds),
        series: names.iter().map(|name| words(name)).collect(),
        limit: String::new(),
        planned: String::new(),
        rows,
    });
    Some(figure("time", "Where the time of a step goes", caption, plot, &cells))
}

/// The share of the step that exposed communication takes: the least and the greatest.
fn exposed(names: &[&str], rows: &[StackRow]) -> String {
    let share = |row: &StackRow| {
        let exposed: f64 =
            names.iter().zip(&row.parts).filter(|(name, _)| name.starts_with("exposed_")).map(|(_, ms)| ms).sum();
        exposed / row.sum().max(f64::MIN_POSITIVE)
    };
    let by_share = |a: &&StackRow, b: &&StackRow| share(a).total_cmp(&share(b));
    match (rows.iter().min_by(by_share), rows.iter().max_by(by_share)) {
        (Some(least), Some(most)) if share(most) > 0.0 && least.label != most.label => format!(
            "Exposed communication takes from {} of the step ({}) to {} ({}).",
            units::percent(share(least)),
            least.label,
            units::percent(share(most)),
            most.label
        ),
        (Some(only), _) if share(only) > 0.0 => {
            format!("Exposed communication takes {} of the step.", units::percent(share(only)))
        }
        _ => "No communication is exposed.".to_string(),
    }
}

/// The spans one after the other, for the fastest cell of each strategy.
pub fn waterfall(grid: &Grid) -> Option<Figure> {
    let (names, empty) = spans(grid);
    let has = |cell: &&Cell| lengths(cell, &names).iter().any(|ms| *ms > 0.0);
    let mut cells: Vec<&Cell> = Vec::new();
    // A full fine-tune represents its strategy where there is one: an adapter run is other work.
    for adapters in [false, true] {
        for cell in grid.measured().filter(has).filter(|cell| cell.has_adapter() == adapters) {
            if !cells.iter().any(|other| other.strategy() == cell.strategy()) {
                cells.push(cell);
            }
        }
    }
    let strategies = cells.len();
    cells.truncate(PANELS);
    let panel = |cell: &&Cell| Panel {
        label: cell.label.clone(),
        spans: names.iter().map(|name| words(name)).zip(lengths(cell, &names)).collect(),
        record: id(cell),
    };
    let panels: Vec<Panel> = cells.iter().map(panel).collect();
    let most = panels.iter().map(|panel| {
        let (name, ms) =
            panel.spans.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(("", 0.0), |(name, ms)| (name.as_str(), *ms));
        let all: f64 = panel.spans.iter().map(|(_, ms)| ms).sum();
        format!("{}: {name}, {}", panel.label, units::percent(ms / all.max(f64::MIN_POSITIVE)))
    });
    let most: Vec<String> = most.collect();
    let which = match (strategies, grid.measured().count()) {
        (_, 1) => String::new(),
        (all, _) if all > PANELS => {
            format!(" Shown is the first full fine-tune in the tables of each of {PANELS} out of {all} strategies.")
        }
        _ => " Shown is the first full fine-tune in the tables of each strategy.".to_string(),
    };
    let caption = format!(
        "The longest span of {}. Each bar begins where the one above it ends, and the last is the whole step: milliseconds of the slowest rank, \
         mean over steps and trials.{}{which}",
        names_or_count(&most, NAMED),
        not_spent(&empty)
    );
    let plot = Plot::Waterfalls(Waterfalls { axis: Axis::linear("since the step began", Unit::Milliseconds), panels });
    (!cells.is_empty()).then(|| figure("waterfall", "A step, span by span", caption, plot, &cells))
}

//! The table of a screen: the best, the frontier and the reference.

use std::collections::HashSet;

use serde_json::Value;

use super::answer;
use super::frontier::{self, Cost};
use crate::document::{Column, Entry, Table, Tone};
use crate::gather::distinct;
use crate::grid::{Cell, Grid};
use crate::record::Verdict;
use crate::units;

/// At most so many rows, and a remark on the others.
pub fn of_cells(grid: &Grid, rows: usize) -> (Table, String) {
    let by_turns = grid.turned.is_some();
    let mut columns = vec![Column::words("place")];
    if by_turns {
        columns.push(Column::words("tie"));
    }
    // The least important column is last: a narrow terminal leaves it out first.
    columns.extend([
        Column::words("cell"),
        Column::numbers(if by_turns { "x reference (98 %)" } else { "x reference" }, ""),
        Column::numbers("peak/rank", "bytes"),
    ]);
    let shown: Vec<&Cell> = grid.measured().filter(|cell| cell.verdict != Verdict::Failed).collect();
    // What lives elsewhere than on the device has columns where something does.
    let homes: Vec<&str> =
        ["host", "disk"].into_iter().filter(|home| shown.iter().any(|cell| elsewhere(cell, home).is_some())).collect();
    columns.extend(homes.iter().map(|home| Column::numbers(format!("{home}/rank"), "bytes")));
    let has_stages = shown.iter().any(|cell| bubble(cell).is_some());
    columns.extend(has_stages.then(|| Column::numbers("bubble", "")));
    columns.extend([
        Column::numbers(if by_turns { "tokens/s" } else { "tokens/s (95 %)" }, "tokens/s"),
        Column::numbers("wire/step", "bytes"),
        Column::numbers("loss", "nats"),
    ]);
    let mut table = Table::new("answer", columns);
    let chosen = chosen(grid, &shown, rows);
    let kinds = if by_turns { answer::kinds(grid) } else { Vec::new() };
    let mut before = None;
    for cell in shown.iter().filter(|cell| chosen.contains(cell.key)) {
        // Cells of another kind are ranked among themselves.
        let kind = kinds.iter().position(|(cells, _)| cells.iter().any(|other| other.key == cell.key));
        if let Some(kind) = kind.filter(|kind| before.is_some_and(|before| before != *kind)) {
            let words = format!("{}, among themselves:", answer::plural(&kinds[kind].1));
            let mut row = vec![Entry::words(""), Entry::words(""), Entry::words(words)];
            row.resize_with(table.columns.len(), || Entry { text: String::new(), ..Entry::nothing() });
            table.row(row);
        }
        before = kind.or(before);
        table.row(row(grid, cell, &homes, has_stages));
    }
    let more = match shown.len() - chosen.len() {
        0 => String::new(),
        count => format!("{count} more between and below; zbench report --full has all {}.", shown.len()),
    };
    (table, more)
}

/// The first cells, the reference, the frontier of memory, then the fastest of the others.
fn chosen<'c>(grid: &'c Grid, shown: &[&'c Cell], rows: usize) -> HashSet<&'c str> {
    let front = frontier::front(grid, Cost::Memory);
    let first = shown.first().map(|cell| cell.key);
    let heads = answer::kinds(grid).into_iter().filter_map(|(cells, _)| cells.first().map(|cell| cell.key));
    let wanted = first.into_iter().chain(heads).chain(grid.base().map(|cell| cell.key));
    let wanted = wanted.chain(front.into_iter().map(|cell| cell.key)).chain(shown.iter().map(|cell| cell.key));
    distinct(wanted).into_iter().take(rows).collect()
}

/// Peak bytes of a rank in a home beside the device, if something lived there.
fn elsewhere(cell: &Cell, home: &str) -> Option<u64> {
    cell.record().extra.get("offload")?.get(home)?.get("total")?.get("peak_bytes")?.as_u64()
}

/// The share of time in which the stages of a pipeline wait, where there are some.
fn bubble(cell: &Cell) -> Option<f64> {
    cell.record().metrics.number("bubble")
}

fn row(grid: &Grid, cell: &Cell, homes: &[&str], has_stages: bool) -> Vec<Entry> {
    let is_base = grid.base().is_some_and(|base| base.key == cell.key);
    let tone = match cell.place {
        Some(place) if place.rank == 1 && !place.tied => Tone::Good,
        None => Tone::Warning,
        _ => Tone::Plain,
    };
    let mut entries = vec![Entry::words(rank(grid, cell)).toned(tone)];
    let mut ratio = match is_base {
        true => Entry::words("reference"),
        false => Entry::maybe(grid.base().and_then(|base| grid.ratio(base, cell)), |ratio| format!("{ratio:.2}")),
    };
    let mut speed = Entry::maybe(cell.speed.map(|speed| speed.mid), units::number);
    match &grid.turned {
        Some(turned) => {
            entries.push(Entry::words(if cell.place.is_some() { turned.tie(cell.key) } else { String::new() }));
            let limits = turned.against_reference(cell.key).and_then(|pair| pair.low.zip(pair.high));
            if let Some((low, high)) = limits.filter(|_| !is_base && cell.place.is_some()) {
                ratio.text += &format!(" ({}-{})", multiple(low), multiple(high));
            }
        }
        None => {
            if let Some(limits) = cell.interval() {
                speed.text += &format!(" ({}-{})", units::number(limits.low), units::number(limits.high));
            }
        }
    }
    entries.extend([Entry::words(&cell.short), ratio, Entry::memory(cell.peak_bytes())]);
    entries.extend(homes.iter().map(|home| Entry::memory(elsewhere(cell, home))));
    entries.extend(has_stages.then(|| Entry::maybe(bubble(cell), units::percent)));
    entries.extend([
        speed,
        Entry::measured(cell.wire_bytes(), cell.record().wire_is_planned(), units::traffic),
        Entry::maybe(loss(cell), |loss| format!("{loss:.4}")),
    ]);
    entries
}

/// A limit of a ratio, short.
fn multiple(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}") } else { units::number(ratio) }
}

/// `1`, `2-6`; of trials marked where several cells share it.
pub fn rank(grid: &Grid, cell: &Cell) -> String {
    let by_turns = grid.turned.as_ref().and_then(|turned| turned.rank(cell.key));
    match (by_turns, cell.place) {
        (Some((best, worst)), Some(_)) if best == worst => best.to_string(),
        (Some((best, worst)), Some(_)) => format!("{best}-{worst}"),
        (None, Some(place)) => place.label(),
        _ => units::NOTHING.to_string(),
    }
}

/// The loss at the last step of the configuration; turns train beyond it.
fn loss(cell: &Cell) -> Option<f64> {
    let record = cell.record();
    let number = |path: &str| record.setting(path).and_then(Value::as_u64);
    let last = number("train.steps").map(|steps| steps + number("train.untimed_steps").unwrap_or(0));
    let at = |last: u64| {
        let mut steps = cell.used.iter().flat_map(|record| &record.steps);
        steps.find(|step| step.step == last).map(|step| step.loss)
    };
    match record.taken_turns() {
        Some(_) => last.and_then(at),
        None => cell.metric("loss_last"),
    }
}

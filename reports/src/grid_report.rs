//! The comparison of a grid's cells: an answer in words, then the tables behind it.

mod cells;
mod labels;
mod tables;
mod words;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::document::{Column, Document, Entry, Table};
use crate::record::Record;
use crate::units;
use cells::Grid;

/// Compares the cells of these records. `question` is what the grid was to find out.
///
/// Trials are gathered by key; every record appears, whatever its outcome. Ranks are by tokens per second with ties as
/// in [`crate::stats::places`]; a cell that fails loss parity or has only trials with validity flags is not ranked.
pub fn comparison(records: &[Record], question: Option<&str>) -> Document {
    let title = records.iter().map(|record| record.name.as_str()).find(|name| !name.is_empty()).unwrap_or("comparison");
    let mut document = Document::new(title);
    if let Some(question) = question.map(str::trim).filter(|question| !question.is_empty()) {
        document.paragraph(format!("Question: {question}"));
    }
    if records.is_empty() {
        document.paragraph("There are no records to compare.");
        return document;
    }
    let grid = Grid::new(records);
    answer(&mut document, &grid);
    cell_tables(&mut document, &grid);
    machine(&mut document, records);
    document.heading("Repeating this");
    document.paragraph("Each row can be run again from its record alone; zbench show ID prints all of a record.");
    document.table(tables::repeat(&grid));
    document
}

fn answer(document: &mut Document, grid: &Grid) {
    document.list(words::caveats(grid));
    document.heading("Answer");
    document.paragraph(words::fastest(grid));
    for text in words::different_work(grid).into_iter().chain(words::unmeasured(grid)) {
        document.paragraph(text);
    }
    let strategies = words::strategies(grid);
    if !strategies.is_empty() {
        document.paragraph("What each strategy costs:");
        document.list(strategies);
    }
    let effects = words::effects(grid);
    if !effects.is_empty() {
        document.paragraph("What the other keys change:");
        document.list(effects);
    }
    document.paragraph(words::parity(grid));
    for text in words::plan(grid) {
        document.paragraph(text);
    }
}

fn cell_tables(document: &mut Document, grid: &Grid) {
    let speed = tables::speed(grid);
    if !speed.rows.is_empty() {
        document.heading("Cells");
        document.table(speed);
        document.paragraph(words::intervals(grid));
    }
    if !grid.axes.following.is_empty() {
        let paths: Vec<String> = grid.axes.following.iter().map(|axis| axis.path.clone()).collect();
        document
            .paragraph(format!("Keys that differ too, and follow from those in the labels: {}.", units::list(&paths)));
    }
    document.list(tables::left_out(grid));
    let parts = [
        ("Not ranked: loss parity failed", tables::failed_parity(grid)),
        ("Not measured", tables::unmeasured(grid)),
        ("Memory", tables::memory(grid)),
        ("Time of a step", tables::time(grid)),
        ("Communication", tables::communication(grid)),
    ];
    for (heading, table) in parts {
        if let Some(table) = table {
            document.heading(heading);
            document.table(table);
        }
    }
    let unstated = unstated(grid);
    if !unstated.is_empty() {
        document.heading("Not stated, and why");
        document.list(unstated);
    }
    let notes = notes(grid);
    if !notes.is_empty() {
        document.heading("Notes of the records");
        document.list(notes);
    }
}

/// Metrics without a value, by reason.
fn unstated(grid: &Grid) -> Vec<String> {
    let pairs = |record: &Record| -> Vec<(String, String)> {
        record.unstated.iter().map(|(metric, reason)| (reason.clone(), metric.to_string())).collect()
    };
    let mut by_reason: Vec<(String, Vec<String>, usize)> = Vec::new();
    for cell in grid.measured() {
        let mut counted: Vec<String> = Vec::new();
        for (reason, metric) in cell.used.iter().flat_map(|record| pairs(record)) {
            let place = by_reason.iter().position(|(other, ..)| *other == reason).unwrap_or_else(|| {
                by_reason.push((reason.clone(), Vec::new(), 0));
                by_reason.len() - 1
            });
            if !by_reason[place].1.contains(&metric) {
                by_reason[place].1.push(metric);
            }
            if !counted.contains(&reason) {
                by_reason[place].2 += 1;
                counted.push(reason);
            }
        }
    }
    by_reason
        .into_iter()
        .map(|(reason, metrics, cells)| {
            format!("{} ({}): {reason}", units::list(&metrics), units::plural(cells, "cell", "cells"))
        })
        .collect()
}

/// What the records say about themselves, equal remarks once.
fn notes(grid: &Grid) -> Vec<String> {
    let mut notes: Vec<(&str, usize)> = Vec::new();
    for note in grid.cells.iter().flat_map(|cell| &cell.trials).flat_map(|record| &record.notes) {
        match notes.iter_mut().find(|(other, _)| other == note) {
            Some((_, count)) => *count += 1,
            None => notes.push((note, 1)),
        }
    }
    notes.into_iter().map(|(note, count)| format!("{note} ({})", units::plural(count, "record", "records"))).collect()
}

/// The environment of the first record, and in what the others differ.
fn machine(document: &mut Document, records: &[Record]) {
    document.heading("Machine");
    let flat: Vec<Vec<(String, Value)>> = records.iter().map(|record| flatten(&record.environment)).collect();
    if flat.iter().all(Vec::is_empty) {
        document.paragraph("The records do not describe their machine.");
        return;
    }
    let mut table = Table::new("environment", vec![Column::words("what"), Column::words("value")]);
    for (path, value) in &flat[0] {
        table.row(vec![Entry::words(path), Entry::json(value)]);
    }
    document.table(table);
    // A key on which all agree occurs once for each record, always with the first value.
    let mut agreeing: BTreeMap<&str, (&Value, usize)> = BTreeMap::new();
    for (path, value) in flat.iter().flatten() {
        let (first, count) = agreeing.entry(path).or_insert((value, 0));
        *count += usize::from(*first == value);
    }
    let differing: Vec<String> =
        agreeing.into_iter().filter(|(_, (_, count))| *count < flat.len()).map(|(path, _)| path.to_string()).collect();
    if !differing.is_empty() {
        document.paragraph(format!(
            "The table is that of the first record; the records do not agree in: {}.",
            units::list(&differing)
        ));
    }
}

/// Dotted paths and plain values; lists stay whole.
pub(crate) fn flatten(table: &Map<String, Value>) -> Vec<(String, Value)> {
    let mut rows = Vec::new();
    for (key, value) in table {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                rows.extend(flatten(inner).into_iter().map(|(path, value)| (format!("{key}.{path}"), value)));
            }
            value => rows.push((key.clone(), value.clone())),
        }
    }
    rows
}

pub(crate) use labels::{first_letters, telling_length};

//! The comparison of a grid's cells: an answer in words, then the tables behind it.

mod bits;
mod carry_over;
mod loading;
mod machine;
mod packing;
mod planned;
mod precision;
mod ranking;
mod screen;
mod tables;
mod words;

use std::collections::HashMap;

use crate::bench;
use crate::collectives::document as collectives;
use crate::document::{Block, Document};
use crate::figures;
use crate::max_batch_report;
use crate::record::Record;
use crate::screen::Room;
use crate::{steady, units};

/// Compares the cells of these records. `question` is what the grid was to find out.
///
/// The question, the answer in words, the machine and what was not measured come first; then the tables and plots behind
/// the answer, and the command that repeats each row.
///
/// Trials are gathered by key; every record appears, whatever its outcome. Rows are in the order of the median tokens per
/// second, ranks with ties as in [`crate::stats::places`]; a cell that fails loss parity or has only trials with validity
/// flags is not ranked. Cells that did not run are answered for by their plan. Records that only show that a value next to the
/// largest of a search does not fit are told with that search ([`crate::max_batch`]) and are no cells.
/// Records of the interconnect test and of the kernels are no cells: they have sections of their own.
pub fn comparison(records: &[Record], question: Option<&str>) -> Document {
    comparison_in(records, question, Room::SCREEN)
}

/// The same with a screen for this room.
pub fn comparison_in(records: &[Record], question: Option<&str>, room: Room) -> Document {
    let (links, others): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| collectives::is_of_suite(record));
    let (kernels, cells): (Vec<&Record>, Vec<&Record>) =
        others.into_iter().partition(|record| bench::suite(record).is_some());
    let apart: Vec<&Record> = links.iter().chain(&kernels).copied().collect();
    if apart.is_empty() {
        return of_cells(&cells, question, "", room);
    }
    let title = if links.is_empty() { bench::title(&kernels) } else { "Interconnect" };
    let mut document = match cells.is_empty() {
        true => Document::new(title),
        false => of_cells(&cells, question, &also(links.len(), kernels.len()), room),
    };
    if cells.is_empty() {
        asked(&mut document, question);
        document.heading("Machine");
        machine::words(&mut document, &apart);
    }
    collectives::report(&mut document, &links);
    bench::report(&mut document, &kernels);
    if cells.is_empty() {
        document.heading("Environment");
        machine::table(&mut document, &apart);
    }
    document
}

/// What records of other suites are told of on the screen.
fn also(links: usize, kernels: usize) -> String {
    let count = |count: usize, what: &str| match count {
        0 => None,
        count => Some(format!("{} of {what}", units::plural(count, "record", "records"))),
    };
    let parts: Vec<String> =
        [count(links, "the interconnect"), count(kernels, "kernels")].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("{}: zbench report --full.", units::list(&parts)) }
}

fn asked(document: &mut Document, question: Option<&str>) {
    match question.map(str::trim).filter(|question| !question.is_empty()) {
        Some(question) => document.paragraph(format!("Question: {question}")),
        None => document.paragraph("No question is stated; `question = \"…\"` in the configuration puts one here."),
    }
}

fn of_cells(records: &[&Record], question: Option<&str>, also: &str, room: Room) -> Document {
    let title = records.iter().map(|record| record.name.as_str()).find(|name| !name.is_empty()).unwrap_or("comparison");
    let mut document = Document::new(title);
    asked(&mut document, question);
    if records.is_empty() {
        document.paragraph("There are no records to compare.");
        return document;
    }
    let apart = max_batch_report::is_shown_apart(records);
    let (next, records): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| apart.contains(record.id.as_str()));
    let records = &records[..];
    let grid = Grid::new(records);
    let limits = max_batch_report::add(&mut document, &[records, &next].concat(), &grid);
    document.screen = Some(screen::screen(&grid, records, also, &limits, room));
    answer(&mut document, &grid);
    document.heading("Machine");
    machine::words(&mut document, records);
    not_measured(&mut document, &grid);
    cell_tables(&mut document, &grid);
    document.heading("Environment");
    machine::table(&mut document, records);
    document.heading("Repeating this");
    document
        .paragraph("Each row that ran can be run again from its record alone; zbench show ID prints all of a record.");
    document.table(tables::repeat(&grid));
    made_by(&mut document, &grid, records);
    document
}

/// What was skipped or ended otherwise, and why; what was measured and not used, and why.
fn not_measured(document: &mut Document, grid: &Grid) {
    document.heading("Not measured, and why");
    match tables::unmeasured(grid) {
        Some(table) => document.table(table),
        None => document.paragraph("Every cell of these records was measured; none was skipped."),
    }
    let parts = [
        ("Not ranked: loss parity failed", tables::failed_parity(grid)),
        ("Trials with validity flags", tables::flagged(grid)),
    ];
    for (heading, table) in parts {
        if let Some(table) = table {
            document.heading(heading);
            document.table(table);
        }
    }
}

fn answer(document: &mut Document, grid: &Grid) {
    document.list(words::caveats(grid));
    document.heading("Answer");
    let is_measured = grid.measured().next().is_some();
    if is_measured {
        strategies_and_fastest(document, grid);
    }
    let has_plan = planned::answer(document, grid);
    if !is_measured && !has_plan {
        document.paragraph("No cell is ranked; the tables below say why.");
    }
    if let Some(text) = words::unmeasured(grid) {
        document.paragraph(text);
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

/// Where strategies are compared they come first; then who is fastest, and what that rests on.
fn strategies_and_fastest(document: &mut Document, grid: &Grid) {
    let strategies = words::strategies(grid);
    let compares_strategies = strategies.len() > 1;
    let costs = |document: &mut Document| {
        if !strategies.is_empty() {
            document.paragraph(words::strategies_title(grid));
            document.list(strategies.clone());
        }
    };
    if compares_strategies {
        costs(document);
    }
    let fastest = match &grid.turned {
        Some(turned) => screen::answer_by_turns(grid, turned),
        None => ranking::fastest(grid),
    };
    for text in fastest {
        document.paragraph(text);
    }
    if !compares_strategies {
        costs(document);
    }
    for text in
        [ranking::trials(grid), ranking::different_work(grid), ranking::batches(grid), ranking::shared_cores(grid)]
            .into_iter()
            .flatten()
    {
        document.paragraph(text);
    }
}

fn cell_tables(document: &mut Document, grid: &Grid) {
    let speed = tables::speed(grid);
    if !speed.rows.is_empty() {
        document.heading("Cells");
        if let Some(turned) = &grid.turned {
            document.table(speed);
            document.paragraph(ranking::of_turns(turned));
            carry_over::sentences(grid).into_iter().for_each(|text| document.paragraph(text));
        } else {
            document.figure(figures::tokens_per_second(grid));
            document.table(speed);
            document.paragraph(ranking::intervals(grid));
            document.list(ranking::wide(grid));
            let used: Vec<&Record> = grid.measured().flat_map(|cell| cell.used.iter().copied()).collect();
            steady::warning(&used).into_iter().for_each(|text| document.paragraph(text));
        }
        document.figure(figures::mfu(grid));
    }
    if !grid.axes.following.is_empty() {
        let paths: Vec<String> = grid.axes.following.iter().map(|axis| axis.path.clone()).collect();
        document
            .paragraph(format!("Keys that differ too, and follow from those in the labels: {}.", units::list(&paths)));
    }
    // By turns the one plot of the screen shows it.
    let by_trials = grid.turned.is_none();
    let (pareto, dominated) = if by_trials { (figures::pareto(grid), figures::dominated(grid)) } else { (None, None) };
    let parts = [
        ("Speed against memory", pareto, None, dominated),
        ("Memory", figures::memory(grid), None, tables::memory(grid)),
        ("Time of a step", figures::time(grid), figures::waterfall(grid), tables::time(grid)),
        ("Step times", figures::spread(grid), None, None),
        ("Communication", None, None, tables::communication(grid)),
        ("Losses", figures::losses(grid), None, None),
        ("Precision", None, None, precision::table(grid)),
        ("Loading", None, None, loading::table(grid)),
        ("Packing", None, None, packing::table(grid)),
        ("Plan against measurement", figures::predicted_memory(grid), figures::predicted_wire(grid), None),
        ("Plan against measurement: time", figures::predicted_step(grid), None, None),
    ];
    for (heading, first, second, table) in parts {
        if first.is_some() || second.is_some() || table.is_some() {
            document.heading(heading);
            document.figure(first);
            document.figure(second);
            document.blocks.extend(table.map(Block::Table));
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

/// What the records say about themselves. Remarks that differ in their numbers alone are told once.
fn notes(grid: &Grid) -> Vec<String> {
    struct Remark<'r> {
        first: &'r str,
        varies: bool,
        records: usize,
    }
    let mut notes: Vec<(String, Remark)> = Vec::new();
    for cell in &grid.cells {
        let own = cell.trials.iter().flat_map(|record| &record.notes);
        for note in own.filter(|note| !planned::says(cell, note)) {
            let shape = without_numbers(note);
            match notes.iter_mut().find(|(other, _)| *other == shape) {
                Some((_, remark)) => {
                    remark.varies |= remark.first != note;
                    remark.records += 1;
                }
                None => notes.push((shape, Remark { first: note, varies: false, records: 1 })),
            }
        }
    }
    let told = |remark: &Remark| {
        let records = units::plural(remark.records, "record", "records");
        match remark.varies {
            true => format!("{} ({records}, their numbers differ)", remark.first),
            false => format!("{} ({records})", remark.first),
        }
    };
    notes.iter().map(|(_, remark)| told(remark)).collect()
}

/// The text with `#` for every row of digits and points in it.
fn without_numbers(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    let mut in_number = false;
    for letter in text.chars() {
        let continues = letter.is_ascii_digit() || (in_number && letter == '.');
        match (continues, in_number) {
            (true, false) => shape.push('#'),
            (true, true) => {}
            (false, _) => shape.push(letter),
        }
        in_number = continues;
    }
    shape
}

/// The command that made the records: one line where all share it, else a table of commands.
fn made_by(document: &mut Document, grid: &Grid, records: &[&Record]) {
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut commands: Vec<(&str, Vec<&Record>)> = Vec::new();
    for record in records {
        let place = *index.entry(&record.command).or_insert(commands.len());
        if place == commands.len() {
            commands.push((&record.command, Vec::new()));
        }
        commands[place].1.push(record);
    }
    match &commands[..] {
        [("", _)] => document.paragraph("The records do not say which command made them."),
        [(command, _)] => {
            document.paragraph("All records were made by:");
            document.code(*command);
        }
        _ => document.table(tables::made_by(&commands, grid)),
    }
}

use crate::grid::Grid;
pub use crate::grid::Kind;
pub use crate::grid::labels::{each_setting, labels_of, plainest};
pub(crate) use ranking::flag_words;

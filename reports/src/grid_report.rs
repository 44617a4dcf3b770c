//! The comparison of a grid's cells: an answer in words, then the tables behind it.

mod bits;
mod carry_over;
mod drive;
mod loading;
mod machine;
mod packing;
mod pipeline;
mod planned;
mod precision;
mod ranking;
mod screen;
mod tables;
mod words;

use crate::bench;
use crate::collectives::document as collectives;
use crate::document::Document;
use crate::figures;
use crate::gather::{distinct, grouped};
pub use crate::grid::Kind;
pub use crate::grid::labels::{each_setting, labels_of, plainest, told_apart};
use crate::grid::{Cell, Grid};
use crate::max_batch_report;
use crate::record::Record;
use crate::screen::Room;
use crate::{units, warm_up};
pub(crate) use ranking::flag_words;

/// Compares the cells of these records. `question` is what the grid is to find out.
///
/// The question, the answer in words, the machine and what was not measured come first; then the tables and plots behind
/// the answer, and the command that repeats each row.
///
/// Trials are gathered by key; every record appears, whatever its outcome. Rows are in the order of the median tokens per
/// second, ranks with ties as in [`crate::stats::places`]; a cell that fails loss parity or has only trials with validity
/// flags is not ranked. Cells that did not run are reported by their plan. Records that only show that the next value of a search
/// does not fit are part of that search ([`crate::max_batch`]) and no cells. Records of the interconnect test and of the kernels
/// are no cells, either: they have sections of their own.
pub fn comparison(records: &[Record], question: Option<&str>) -> Document {
    comparison_in(records, question, Room::SCREEN)
}

/// The same, with a screen for this room.
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

/// The screen's remark on records of other suites.
fn also(links: usize, kernels: usize) -> String {
    let counts = [(links, "the interconnect"), (kernels, "kernels")].into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> =
        counts.map(|(count, what)| format!("{} of {what}", units::plural(count, "record", "records"))).collect();
    format!("{}: zbench report --full.", units::list(&parts))
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

/// What was not measured, and why; what was measured and not used, and why.
fn not_measured(document: &mut Document, grid: &Grid) {
    document.heading("Not measured, and why");
    match tables::unmeasured(grid) {
        Some(table) => document.table(table),
        None => document.paragraph("Every cell of these records was measured; none was skipped."),
    }
    document.headed_table("Not ranked: loss parity failed", tables::failed_parity(grid));
    document.headed_table("Trials with validity flags", tables::flagged(grid));
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
    document.paragraphs(words::unmeasured(grid));
    let effects = words::effects(grid);
    if !effects.is_empty() {
        document.paragraph("What the other keys change:");
        document.list(effects);
    }
    document.paragraph(words::parity(grid));
    document.paragraphs(words::plan(grid));
}

/// The costs of strategies, first if there are several to compare; which cell is fastest, and how sure that is.
fn strategies_and_fastest(document: &mut Document, grid: &Grid) {
    let strategies = words::strategies(grid);
    let compares_strategies = strategies.len() > 1;
    let add_costs = |document: &mut Document| {
        if !strategies.is_empty() {
            document.paragraph(words::strategies_title(grid));
            document.list(strategies.clone());
        }
    };
    if compares_strategies {
        add_costs(document);
    }
    document.paragraphs(match (screen::nothing_counts(grid), &grid.turned) {
        (Some(words), _) => vec![words],
        (None, Some(turned)) => screen::answer_by_turns(grid, turned),
        (None, None) => ranking::fastest(grid),
    });
    if !compares_strategies {
        add_costs(document);
    }
    let remarks =
        [ranking::trials(grid), ranking::different_work(grid), ranking::batches(grid), ranking::shared_cores(grid)];
    document.paragraphs(remarks.into_iter().flatten());
}

fn cell_tables(document: &mut Document, grid: &Grid) {
    let speed = tables::speed(grid);
    if !speed.rows.is_empty() {
        document.heading("Cells");
        if let Some(turned) = &grid.turned {
            document.table(speed);
            document.paragraph(ranking::of_turns(turned));
            document.paragraphs(carry_over::sentences(grid));
        } else {
            document.figure(figures::tokens_per_second(grid));
            document.table(speed);
            document.paragraph(ranking::intervals(grid));
            document.list(ranking::wide(grid));
            let used: Vec<&Record> = grid.measured().flat_map(|cell| cell.used.iter().copied()).collect();
            document.paragraphs(warm_up::warning(&used));
        }
        document.figure(figures::mfu(grid));
    }
    if !grid.axes.dependent.is_empty() {
        let paths: Vec<String> = grid.axes.dependent.iter().map(|axis| axis.path.clone()).collect();
        document
            .paragraph(format!("Keys that differ too, and follow from those in the labels: {}.", units::list(&paths)));
    }
    // By turns the plot of the screen shows this.
    let by_trials = grid.turned.is_none();
    let (pareto, dominated) = if by_trials { (figures::pareto(grid), figures::dominated(grid)) } else { (None, None) };
    let parts = [
        ("Speed against memory", pareto, None, dominated),
        ("Memory", figures::memory(grid), None, tables::memory(grid)),
        ("Time of a step", figures::time(grid), figures::waterfall(grid), tables::time(grid)),
        ("Pipeline", figures::timelines(grid), None, pipeline::table(grid)),
        ("Step times", figures::spread(grid), None, None),
        ("Communication", None, None, tables::communication(grid)),
        ("Drive of offloaded state", None, None, drive::table(grid)),
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
            document.table(table);
        }
    }
    document.headed_list("Not stated, and why", unstated(grid));
    document.headed_list("Notes of the records", notes(grid));
}

/// Metrics without a value, by reason.
fn unstated(grid: &Grid) -> Vec<String> {
    let mut reasons = Vec::new();
    for cell in grid.measured() {
        let metrics = cell.used.iter().flat_map(|record| record.unstated.iter());
        reasons.extend(grouped(metrics.map(|(metric, reason)| (reason, metric.to_string()))));
    }
    let line = |(reason, cells): (&String, Vec<Vec<String>>)| {
        let count = units::plural(cells.len(), "cell", "cells");
        format!("{} ({count}): {reason}", units::list(&distinct(cells.into_iter().flatten())))
    };
    grouped(reasons).into_iter().map(line).collect()
}

/// The notes of the records. Notes that differ only in their numbers are stated once.
fn notes(grid: &Grid) -> Vec<String> {
    let of_cell = |cell: &Cell| -> Vec<String> {
        let own = cell.trials.iter().flat_map(|record| &record.notes);
        own.filter(|note| !planned::says(cell, note)).cloned().collect()
    };
    let all = grid.cells.iter().flat_map(of_cell).map(|note| (without_numbers(&note), note));
    let line = |(_, notes): (String, Vec<String>)| {
        let records = units::plural(notes.len(), "record", "records");
        let differ = if notes.iter().any(|note| *note != notes[0]) { ", their numbers differ" } else { "" };
        format!("{} ({records}{differ})", notes[0])
    };
    grouped(all).into_iter().map(line).collect()
}

/// The text with `#` in place of every number.
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
    match &grouped(records.iter().map(|record| (record.command.as_str(), *record)))[..] {
        [("", _)] => document.paragraph("The records do not say which command made them."),
        [(command, _)] => {
            document.paragraph("All records were made by:");
            document.code(*command);
        }
        commands => document.table(tables::made_by(commands, grid)),
    }
}

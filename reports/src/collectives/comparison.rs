//! The report of a grid over collectives: which cell has most bandwidth, which has the lowest latency, and by how much.

use super::document;
use crate::document::{Document, Entry, Table, Tone};
use crate::gather::grouped;
use crate::grid::labels::labels_of;
use crate::label;
use crate::record::{Record, Status};
use crate::screen::{MOST_LINES, Room, Screen};
use crate::units;
use serde_json::Value;

/// Lines of a screen that are not rows of its table.
const OTHER_LINES: usize = 18;

/// The trials of one cell.
struct Cell<'a> {
    collective: String,
    /// As `zbench list` shows it.
    label: String,
    records: Vec<&'a Record>,
}

/// Values of trials: the median, the least and the largest.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Cell<'_> {
    fn measured(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().copied().filter(|record| record.is_measured())
    }

    /// A trial without a result.
    fn unmeasured(&self) -> Option<&Record> {
        self.records.iter().copied().find(|record| !record.is_measured())
    }

    /// Its label among the cells of its collective.
    fn name(&self) -> String {
        let own = format!("collective={}", self.collective);
        label::of_terms(label::split(&self.label).into_iter().filter(|term| *term != own))
    }

    fn spread(&self, metric: &str) -> Option<Spread> {
        let values: Vec<f64> = self.measured().filter_map(|record| record.metrics.number(metric)).collect();
        let at = |percent| crate::stats::percentile(&values, percent);
        Some(Spread { median: at(50.0)?, low: at(0.0)?, high: at(100.0)? })
    }

    fn busbw(&self) -> Option<Spread> {
        self.spread(&format!("{}_busbw_gb_s", self.collective))
    }
}

/// The report of these records: a screen for this room, and all details.
pub fn comparison(records: &[Record], question: &str, room: Room) -> Document {
    let all: Vec<&Record> = records.iter().collect();
    let title =
        records.iter().map(|record| record.name.as_str()).find(|name| !name.is_empty()).unwrap_or("collectives");
    let mut document = Document::new(title);
    if !question.is_empty() {
        document.paragraph(format!("Question: {question}"));
    }
    let cells = cells(&all);
    document.heading("Comparison");
    document.table(table(&cells, usize::MAX, true));
    document::report(&mut document, &all);
    document.screen = Some(screen(&cells, room));
    document
}

fn cells<'a>(records: &[&'a Record]) -> Vec<Cell<'a>> {
    let labelled = records.iter().zip(labels_of(records)).map(|(&record, label)| (&record.key, (record, label)));
    let cell = |(_, trials): (_, Vec<(&'a Record, String)>)| {
        let (records, labels): (Vec<&Record>, Vec<String>) = trials.into_iter().unzip();
        // A combination that is no cell has its settings as they were written.
        let stated = records[0].setting("collective").or_else(|| records[0].setting("collectives.collective"));
        let collective = stated.and_then(Value::as_str).unwrap_or_default().to_string();
        Cell { collective, label: labels[0].clone(), records }
    };
    grouped(labelled).into_iter().map(cell).collect()
}

/// The cells with most bandwidth first; so many of them at most.
fn table(cells: &[Cell<'_>], most: usize, has_outcome: bool) -> Table {
    let rows: Vec<&Cell<'_>> = by_bandwidth(cells).into_iter().take(most).collect();
    let median = |cell: &Cell, metric: &str| cell.spread(metric).map(|spread| spread.median);
    let range = |of: Spread| format!("{} to {}", units::number(of.low), units::number(of.high));
    let bytes = |cell: &Cell| median(cell, "largest_bytes").map(|bytes| bytes as u64);
    let mut table = Table::of("comparison", &rows);
    table.words("cell", |cell| &cell.label);
    table.numbers("trials", "", |cell| cell.measured().count());
    table.numbers("busbw", "GB/s", |cell| Entry::maybe(cell.busbw().map(|of| of.median), units::number));
    table.words("of trials", |cell| cell.busbw().map(range));
    table.memory("at", |cell| bytes(cell));
    table.numbers("latency", "us", |cell| Entry::maybe(median(cell, "latency_us"), units::number));
    table.numbers("average busbw", "GB/s", |cell| Entry::maybe(median(cell, "average_busbw_gb_s"), units::number));
    if has_outcome {
        table.words("outcome", |cell| match cell.unmeasured() {
            Some(record) => Entry::words(record.outcome.status.words()).toned(Tone::Warning),
            None => Entry::words("measured"),
        });
    }
    table.build()
}

fn by_bandwidth<'a, 'r>(cells: &'a [Cell<'r>]) -> Vec<&'a Cell<'r>> {
    let mut sorted: Vec<&Cell<'_>> = cells.iter().collect();
    let rate = |cell: &Cell<'_>| cell.busbw().map_or(f64::NEG_INFINITY, |spread| spread.median);
    // The sort is stable: equal cells stay in the order of the grid.
    sorted.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    sorted
}

fn screen(cells: &[Cell<'_>], room: Room) -> Screen {
    let mut screen = Screen::default();
    screen.said("FASTEST", fastest(cells), 5);
    screen.said("LATENCY", quickest(cells), 4);
    let rows = room.lines.min(MOST_LINES).saturating_sub(OTHER_LINES).max(1);
    let measured = cells.iter().filter(|cell| cell.busbw().is_some()).count();
    let has_outcome = cells.iter().any(|cell| cell.busbw().is_some() && cell.unmeasured().is_some());
    screen.table(table(cells, rows.min(measured), has_outcome));
    if measured > rows {
        screen.said("", format!("and {} more; --full shows all", units::plural(measured - rows, "cell", "cells")), 1);
    }
    screen.said("FAILED", reasons(cells, |status| status != Status::Skipped), 4);
    screen.said("SKIPPED", reasons(cells, |status| status == Status::Skipped), 4);
    screen.said(
        "HOW",
        "busbw at the largest size and latency at the smallest, in place where there is such a call, medians of the trials; \
         busbw = algbw x nccl-tests' factor, one way, GB = 10^9 bytes.",
        2,
    );
    screen.said(
        "MORE",
        "the same command with --full has every size and fit; --format html draws bus bandwidth over size.",
        2,
    );
    let newest: Vec<&Record> = cells.iter().filter_map(|cell| cell.measured().last()).collect();
    screen.figures = super::figure::bandwidth(&newest).into_iter().take(1).collect();
    screen
}

/// Why cells of this status have no result: a cell by its name, several with the same reason by their number.
fn reasons(cells: &[Cell<'_>], of: impl Fn(Status) -> bool) -> String {
    let failed = cells.iter().filter_map(|cell| Some((&cell.unmeasured()?.outcome, cell)));
    let failed = failed.filter(|(outcome, _)| of(outcome.status)).map(|(outcome, cell)| (&outcome.reason, cell));
    let text = |(reason, group): (&String, Vec<&Cell<'_>>)| match &group[..] {
        [cell] => format!("{}: {reason}", cell.label),
        several => format!("{}: {reason}", units::plural(several.len(), "cell", "cells")),
    };
    grouped(failed).into_iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The cells of each collective, those with most bandwidth first.
fn by_collective<'a, 'r>(cells: &'a [Cell<'r>]) -> Vec<(&'a str, Vec<&'a Cell<'r>>)> {
    grouped(by_bandwidth(cells).into_iter().map(|cell| (cell.collective.as_str(), cell)))
}

/// The cell with most bandwidth for each collective, and the cells that cannot be distinguished from it by their trials.
fn fastest(cells: &[Cell<'_>]) -> String {
    let of = |(collective, sorted): (&str, Vec<&Cell<'_>>)| {
        let (best, spread) = sorted.first().and_then(|cell| Some((cell, cell.busbw()?)))?;
        let near = |cell: &&&Cell<'_>| cell.busbw().is_some_and(|other| other.high >= spread.low);
        let others: Vec<String> = sorted[1..].iter().filter(near).map(|cell| cell.name()).collect();
        let overlap = match others.len() {
            0 if sorted.len() == 1 => String::new(),
            0 => ", no trial of another reaches its slowest".into(),
            count if count > 3 => format!(", trials of {count} others overlap with its own"),
            _ => format!(", trials of {} overlap with its own", others.join("; ")),
        };
        Some(format!("{collective}: {} with {} GB/s{overlap}.", best.name(), units::number(spread.median)))
    };
    let sentences: Vec<String> = by_collective(cells).into_iter().filter_map(of).collect();
    if sentences.is_empty() { "no cell was measured".into() } else { sentences.join(" ") }
}

/// The cell with the lowest latency for each collective, at the smallest size.
fn quickest(cells: &[Cell<'_>]) -> String {
    let of = |(collective, group): (&str, Vec<&Cell<'_>>)| {
        let timed = group.into_iter().filter_map(|cell| Some((cell, cell.spread("latency_us")?)));
        let (cell, spread) = timed.min_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
        let [median, low, high] = [spread.median, spread.low, spread.high].map(units::number);
        Some(format!("{collective}: {} with {median} us ({low} to {high}).", cell.name()))
    };
    by_collective(cells).into_iter().filter_map(of).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use serde_json::json;

    fn record(key: &str, backend: &str, ranks: u64, busbw: f64, latency: f64) -> Record {
        let mut record = Record::new(format!("{key}{busbw}"), key, "links", Outcome::measured());
        record.cell = json!({ "suite": "collectives", "collective": "all_reduce", "backend": backend, "parallel": { "ranks": ranks } });
        record.state("all_reduce_busbw_gb_s", busbw);
        record.state("latency_us", latency);
        record.state("largest_bytes", 1048576.0);
        record.state("average_busbw_gb_s", busbw / 2.0);
        record
    }

    fn said(screen: &Screen, word: &str) -> String {
        let text = |part: &crate::screen::Part| match part {
            crate::screen::Part::Said { label, text, .. } if label == word => Some(text.clone()),
            _ => None,
        };
        screen.parts.iter().find_map(text).unwrap_or_default()
    }

    #[test]
    fn the_fastest_cell_stands_first_and_overlapping_trials_are_named() {
        let records = [
            record("a", "local", 2, 5.0, 2.0),
            record("b", "shm", 2, 9.0, 4.0),
            record("b", "shm", 2, 7.0, 5.0),
            record("c", "tcp", 2, 8.0, 30.0),
        ];
        let document = comparison(&records, "which?", Room::SCREEN);
        let screen = document.screen.as_ref().unwrap();
        assert_eq!(
            said(screen, "FASTEST"),
            "all_reduce: backend=shm with 8.00 GB/s, trials of backend=tcp overlap with its own."
        );
        assert!(said(screen, "LATENCY").starts_with("all_reduce: backend=local with 2"), "{}", said(screen, "LATENCY"));
        let rows: Vec<&str> = document.tables().next().unwrap().rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(rows, ["backend=shm", "backend=tcp", "backend=local"]);
    }

    #[test]
    fn a_failed_cell_is_said_with_its_reason_and_ranks_nowhere() {
        let mut failed = record("b", "shm", 2, 50.0, 1.0);
        failed.outcome = Outcome::ended(Status::Failed, "wrong data", None);
        let screen = screen(&cells(&[&record("a", "local", 2, 5.0, 2.0), &failed]), Room::SCREEN);
        assert!(
            said(&screen, "FASTEST").starts_with("all_reduce: backend=local with 5.00"),
            "{}",
            said(&screen, "FASTEST")
        );
        assert_eq!(said(&screen, "FAILED"), "backend=shm: wrong data");
    }
}

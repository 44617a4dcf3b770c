//! The section on a grid's searches: the largest value of each combination, in words and as a table.

mod row;

use crate::document::{Document, Entry, Table, Tone};
use crate::estimate::EstimateRow;
use crate::gather::grouped;
use crate::grid::Grid;
use crate::max_batch::{Of, Search};
use crate::phrase::first_names;
use crate::record::{Record, Status};
use crate::stats::Interval;
use crate::units;
use row::{Row, rows, rows_of_estimates};

pub(crate) use row::is_shown_apart;

/// Searches in sentences at most; the table has all.
const TOLD: usize = 24;

/// Adds what the searches of these records found, and returns a summary, empty where there are none. `grid` has their cells.
pub(crate) fn add(document: &mut Document, records: &[&Record], grid: &Grid) -> String {
    sections(document, &rows(records, grid), Some(grid)).join(" ")
}

/// Adds what the searches of these estimates found.
pub fn of_estimates(document: &mut Document, estimates: &[EstimateRow]) {
    sections(document, &rows_of_estimates(estimates), None);
}

/// Adds a section for each searched key, and returns their summaries.
fn sections(document: &mut Document, rows: &[Row], grid: Option<&Grid>) -> Vec<String> {
    let mut summaries = Vec::new();
    for (_, rows) in grouped(rows.iter().map(|row| (&row.search.key, row.clone()))) {
        let name = rows[0].search.name().to_string();
        document.heading(format!("Largest {name}"));
        summaries.push(summary(&name, &rows));
        document.paragraph(summary(&name, &rows));
        document.list(rows.iter().filter_map(|row| against_ddp(&name, row, &rows)).take(TOLD).collect());
        document.list(remarks(&name, &rows));
        document.table(table(&name, &rows, grid));
    }
    summaries
}

fn number(value: u64) -> String {
    units::count(value)
}

/// What fits, and why nothing larger does.
fn summary(name: &str, rows: &[Row]) -> String {
    let capacity = rows.first().and_then(|row| row.search.capacity);
    let room = match capacity {
        Some(bytes) if rows.iter().all(|row| row.search.capacity == capacity) => {
            format!("the {} of a rank", units::memory(bytes as f64))
        }
        None if rows.iter().all(|row| row.search.capacity.is_none()) => "the memory of this machine".into(),
        _ => "what its ranks may use".into(),
    };
    let value = |row: &Row| row.search.value.map_or("none".into(), number);
    let parts: Vec<String> = rows.iter().map(|row| format!("{} {}", row.label, value(row))).collect();
    format!("The largest {name} that fits {room}: {}.{}", first_names(&parts, TOLD), evidence(rows))
}

fn evidence(rows: &[Row]) -> String {
    let found: Vec<&Row> = rows.iter().filter(|row| row.search.value.is_some()).collect();
    let ended = |status: Status| found.iter().filter(|row| row.next_with(status).is_some()).count();
    let (refused, no_cell, ran) = (ended(Status::OutOfMemory), ended(Status::Skipped), ended(Status::Measured));
    let open = found.iter().filter(|row| row.is_open()).count();
    let planned = found.len() - refused - open - no_cell - ran;
    let parts: Vec<String> = [
        (refused, "was run and was out of memory in ", ""),
        (planned, "does not fit by the plan in ", ""),
        (no_cell, "is no configuration in ", ""),
        (ran, "ran in ", " although its plan does not fit"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, what, more)| format!("{what}{}{more}", of(count, found.len())))
    .collect();
    let next = if parts.is_empty() { String::new() } else { format!(" The next value {}.", units::list(&parts)) };
    let end = match open {
        0 => String::new(),
        open => format!(" In {} everything that was to be tried fits: the limit is above.", of(open, found.len())),
    };
    next + &end
}

fn of(some: usize, all: usize) -> String {
    match (some, all) {
        (1, 1) => "the one search".into(),
        (some, all) if some == all => units::all(all, "searches"),
        (some, all) => format!("{some} of {} searches", all),
    }
}

/// A search against that of ddp.
fn against_ddp(name: &str, row: &Row, rows: &[Row]) -> Option<String> {
    let reference = row.reference(rows).filter(|reference| !std::ptr::eq(*reference, row))?;
    let value = row.search.value?;
    let Some(base) = reference.search.value.filter(|base| *base > 0) else {
        return Some(format!("{} fits a {name} of {}; ddp does not fit at all.", row.label, number(value)));
    };
    if reference.is_at_least() {
        // The limit of ddp is not memory: there is nothing to compare with.
        return None;
    }
    let least = if row.is_at_least() { "at least " } else { "" };
    let fits = format!(
        "{} fits {least}{} times the {name} of ddp ({} against {})",
        row.label,
        units::number(value as f64 / base as f64),
        number(value),
        number(base)
    );
    let speed = match (row.speed, reference.speed) {
        // One trial is compared with nothing.
        (Some(own), Some(other)) if !own.is_bounded() || !other.is_bounded() => String::new(),
        (Some(own), Some(other)) => {
            let overlap = if own.overlaps(&other) { "; their 95 % intervals overlap" } else { "" };
            format!(" and trains {} times the tokens per second at it{overlap}", units::number(own.mid / other.mid))
        }
        _ => match (row.predicted_speed, reference.predicted_speed) {
            (Some(own), Some(other)) if other > 0.0 && row.speed.is_none() => {
                format!(" and is predicted to train {} times the tokens per second at it", units::number(own / other))
            }
            _ => String::new(),
        },
    };
    Some(format!("{fits}{speed}."))
}

/// Remarks on single searches.
fn remarks(name: &str, rows: &[Row]) -> Vec<String> {
    let mut items = Vec::new();
    // Mostly all have the same value that is no configuration.
    let mut no_cells: Vec<(String, &str)> = Vec::new();
    for row in rows {
        let Search { smallest, reason, .. } = &row.search;
        if row.search.value.is_none() {
            let what = match &row.search.bytes {
                Some(bytes) => format!("even {name} = {} takes {}", number(*smallest), units::memory(*bytes as f64)),
                None => format!("no {name} was found"),
            };
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            items.push(format!("{}: {what}{why}.", row.label));
        }
        if let Some((value, reason)) = &row.refuted_plan {
            items.push(format!(
                "{}: {name} = {} fits by its plan and was out of memory all the same ({reason}); what is said of it was \
                 found by runs.",
                row.label,
                number(*value)
            ));
        }
        if let Some(next) = row.next_with(Status::Measured) {
            items.push(format!(
                "{}: {name} = {} ran although its plan does not fit; the plan is wrong by that much.",
                row.label,
                number(next.value)
            ));
        }
        if let Some(next) = row.next_with(Status::Skipped) {
            let what = format!("{name} = {} was not tried: {}", number(next.value), next.reason);
            no_cells.push((what, &row.label));
        }
    }
    items.extend(grouped(no_cells).into_iter().map(|(what, labels)| match labels[..] {
        [label] => format!("{label}: {what}."),
        _ => format!("In {}: {what}.", of(labels.len(), rows.len())),
    }));
    items
}

fn table(name: &str, rows: &[Row], grid: Option<&Grid>) -> Table {
    let whole = |value: u64| Entry::whole(value, number(value));
    let fitting = |row: &'_ Row| row.search.value.is_some();
    let mut table = Table::of(format!("largest {name}"), rows);
    table.words("cell", |row| &row.label);
    table.numbers(format!("largest {name}"), "", |row| match row.search.value {
        Some(value) if row.is_open() => Entry::whole(value, format!("{} or more", number(value))),
        Some(value) => whole(value),
        None => Entry { text: "none".into(), ..Entry::nothing() }.toned(Tone::Warning),
    });
    table.numbers("global batch", "sequences", |row| row.search.global_batch.filter(|_| fitting(row)).map(whole));
    table.memory("capacity", |row| row.search.capacity);
    table.memory("predicted peak", |row| row.search.bytes);
    let has_measured = rows.iter().any(|row| row.measured.is_some() || row.speed.is_some());
    if has_measured {
        table.memory("measured peak", |row| row.measured);
    }
    table.numbers("next", "", |row| row.search.next.as_ref().map(|next| whole(next.value)));
    table.memory("would take", |row| row.search.next.as_ref().and_then(|next| next.bytes));
    table.words("and", outcome_of_next);
    if has_measured {
        table.numbers("tokens/s", "tokens/s", |row| Entry::maybe(row.speed.map(|speed| speed.mid), units::number));
    }
    if rows.iter().any(|row| row.predicted_speed.is_some()) {
        let speed = |row: &Row| row.predicted_speed.filter(|_| fitting(row));
        table.numbers("predicted tokens/s", "tokens/s", |row| Entry::maybe(speed(row), units::number));
    }
    if rows.iter().any(|row| row.reference(rows).is_some_and(|other| !std::ptr::eq(other, row))) {
        let ratio = |row: &Row, value: &dyn Fn(&Row) -> Option<f64>| {
            let reference = row.reference(rows).filter(|_| fitting(row))?;
            Some(value(row)? / value(reference).filter(|other| *other > 0.0)?)
        };
        let value = |row: &Row| row.search.value.map(|value| value as f64);
        table.numbers(format!("× ddp: {name}"), "", |row| Entry::maybe(ratio(row, &value), units::number));
        // Measured against measured, else predicted against predicted. One trial is compared with nothing.
        let measured = |row: &Row| row.speed.filter(Interval::is_bounded).map(|speed| speed.mid);
        table.numbers("× ddp: tokens/s", "", |row| {
            let speed =
                if row.speed.is_some() { ratio(row, &measured) } else { ratio(row, &|row| row.predicted_speed) };
            Entry::maybe(speed, units::number)
        });
    }
    table.words("found by", |row| match row.search.of {
        _ if !fitting(row) => "-",
        Of::Plan => "plan",
        Of::Run => "run",
    });
    table.words("its cell", |row| &row.status);
    if let Some(grid) = grid {
        table.words("record", |row| row.record.as_ref().map(|id| grid.short_id(id)));
    }
    table.build().caption(caption(name, rows))
}

fn caption(name: &str, rows: &[Row]) -> String {
    let Some(Search { multiple, smallest, .. }) = rows.first().map(|row| &row.search) else { return String::new() };
    let steps = match multiple {
        1 => String::new(),
        multiple => format!(" {name} is a multiple of {multiple}, from {smallest}."),
    };
    let fixed = match rows.iter().any(|row| row.search.fixed_batch) {
        true => {
            " The global batch is stated: only values that divide a rank's share of it are tried, and a larger one means \
                 fewer of them."
        }
        false => " The global batch grows with it, so these are different trainings: speeds compare, losses do not.",
    };
    let fixed = if name == "micro_batch" { fixed } else { "" };
    format!(
        "Memory of the largest rank; the next value is the smallest that was to be tried above the largest that fits.{steps}{fixed}"
    )
}

/// How the next value ended.
fn outcome_of_next(row: &Row) -> String {
    let Some(next) = &row.search.next else {
        return if row.is_open() { format!("all up to {} fit", number(row.search.most)) } else { String::new() };
    };
    match next.outcome.as_deref() {
        Some("out_of_memory") => "out of memory when run".into(),
        Some("skipped") => "is no configuration".into(),
        Some("measured") => "ran all the same".into(),
        Some(other) => other.replace('_', " "),
        None => "too much by the plan".into(),
    }
}

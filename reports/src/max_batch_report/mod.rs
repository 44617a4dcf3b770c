//! The section of a grid that searches: the largest value of each combination, in words and as a table.

mod row;

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::estimate::EstimateRow;
use crate::grid::Grid;
use crate::max_batch::{Of, Search};
use crate::record::{Record, Status};
use crate::stats::Interval;
use crate::units;
use row::{Row, rows, rows_of_estimates};

pub(crate) use row::is_shown_apart;

/// So many searches are told one by one in words; the table has all.
const TOLD: usize = 24;

/// Adds what the searches of these records found, and returns it in short; nothing where there are none. `grid` has their cells.
pub(crate) fn add(document: &mut Document, records: &[&Record], grid: &Grid) -> String {
    sections(document, &rows(records, grid), Some(grid)).join(" ")
}

/// Adds what the searches of these estimates found; nothing where there are none.
pub fn of_estimates(document: &mut Document, estimates: &[EstimateRow]) {
    sections(document, &rows_of_estimates(estimates), None);
}

/// One for each searched key.
fn sections(document: &mut Document, rows: &[Row], grid: Option<&Grid>) -> Vec<String> {
    let mut summaries = Vec::new();
    let mut keys: Vec<&str> = Vec::new();
    for row in rows {
        if !keys.contains(&row.search.key.as_str()) {
            keys.push(&row.search.key);
        }
    }
    for key in keys {
        let rows: Vec<Row> = rows.iter().filter(|row| row.search.key == key).cloned().collect();
        let Some(name) = rows.first().map(|row| row.search.name().to_string()) else { continue };
        document.heading(format!("Largest {name}"));
        summaries.push(summary(&name, &rows));
        document.paragraph(summary(&name, &rows));
        let told: Vec<String> = rows.iter().filter_map(|row| against(&name, row, &rows)).take(TOLD).collect();
        if !told.is_empty() {
            document.list(told);
        }
        let remarks = remarks(&name, &rows);
        if !remarks.is_empty() {
            document.list(remarks);
        }
        document.table(table(&name, &rows, grid));
    }
    summaries
}

fn number(value: u64) -> String {
    units::count(value)
}

/// What fits, and how it is known that no more does.
fn summary(name: &str, rows: &[Row]) -> String {
    let capacity = rows.first().and_then(|row| row.search.capacity);
    let room = match capacity {
        Some(bytes) if rows.iter().all(|row| row.search.capacity == capacity) => {
            format!("the {} of a rank", units::memory(bytes as f64))
        }
        None if rows.iter().all(|row| row.search.capacity.is_none()) => "the memory of this machine".into(),
        _ => "what its ranks may use".into(),
    };
    let parts: Vec<String> = rows
        .iter()
        .take(TOLD)
        .map(|row| match row.search.value {
            Some(value) => format!("{} {}", row.label, number(value)),
            None => format!("{} none", row.label),
        })
        .collect();
    let more = rows.len().checked_sub(TOLD).filter(|more| *more > 0);
    let more = more.map(|more| format!("; and {more} more")).unwrap_or_default();
    format!("The largest {name} that fits {room}: {}{more}.{}", parts.join("; "), evidence(rows))
}

fn evidence(rows: &[Row]) -> String {
    let outcome = |row: &&Row, status: Status| {
        row.search.next.as_ref().is_some_and(|next| next.outcome.as_deref() == Some(status.name()))
    };
    let found: Vec<&Row> = rows.iter().filter(|row| row.search.value.is_some()).collect();
    let refused = found.iter().filter(|row| outcome(row, Status::OutOfMemory)).count();
    let open = found.iter().filter(|row| row.is_open()).count();
    let no_cell = found.iter().filter(|row| outcome(row, Status::Skipped)).count();
    let ran_all_the_same = found.iter().filter(|row| outcome(row, Status::Measured)).count();
    let planned = found.len() - refused - open - no_cell - ran_all_the_same;
    let mut parts = Vec::new();
    if refused > 0 {
        parts.push(format!("was run and was out of memory in {}", of(refused, found.len())));
    }
    if planned > 0 {
        parts.push(format!("does not fit by the plan in {}", of(planned, found.len())));
    }
    if no_cell > 0 {
        parts.push(format!("is no configuration in {}", of(no_cell, found.len())));
    }
    if ran_all_the_same > 0 {
        parts.push(format!("ran in {} although its plan does not fit", of(ran_all_the_same, found.len())));
    }
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

/// One search against that of ddp, in words.
fn against(name: &str, row: &Row, rows: &[Row]) -> Option<String> {
    let reference = row.reference(rows).filter(|reference| !std::ptr::eq(*reference, row))?;
    let value = row.search.value?;
    let Some(base) = reference.search.value.filter(|base| *base > 0) else {
        return Some(format!("{} fits a {name} of {}; ddp does not fit at all.", row.label, number(value)));
    };
    if reference.is_at_least() {
        // Memory is not what limits ddp: there is nothing to compare with.
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

/// What a reader must know of single searches.
fn remarks(name: &str, rows: &[Row]) -> Vec<String> {
    let mut items = Vec::new();
    // What is no configuration is mostly the same for all.
    let mut no_cells: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let Search { smallest, next, reason, .. } = &row.search;
        if row.search.value.is_none() {
            let what = match &row.search.bytes {
                Some(bytes) => format!("even {name} = {} takes {}", number(*smallest), units::memory(*bytes as f64)),
                None => format!("no {name} was found"),
            };
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            items.push(format!("{}: {what}{why}.", row.label));
        }
        if let Some((value, reason)) = &row.fell_short {
            items.push(format!(
                "{}: {name} = {} fits by its plan and was out of memory all the same ({reason}); what is said of it was \
                 found by runs.",
                row.label,
                number(*value)
            ));
        }
        let is = |status: Status| next.as_ref().filter(|next| next.outcome.as_deref() == Some(status.name()));
        if let Some(next) = is(Status::Measured) {
            items.push(format!(
                "{}: {name} = {} ran although its plan does not fit; the plan is wrong by that much.",
                row.label,
                number(next.value)
            ));
        }
        if let Some(next) = is(Status::Skipped) {
            let what = format!("{name} = {} was not tried: {}", number(next.value), next.reason);
            match no_cells.iter_mut().find(|(known, _)| *known == what) {
                Some((_, labels)) => labels.push(&row.label),
                None => no_cells.push((what, vec![&row.label])),
            }
        }
    }
    items.extend(no_cells.into_iter().map(|(what, labels)| match labels[..] {
        [label] => format!("{label}: {what}."),
        _ => format!("In {}: {what}.", of(labels.len(), rows.len())),
    }));
    items
}

fn table(name: &str, rows: &[Row], grid: Option<&Grid>) -> Table {
    let has_measured = rows.iter().any(|row| row.measured.is_some() || row.speed.is_some());
    let predicts = rows.iter().any(|row| row.predicted_speed.is_some());
    let compares = rows.iter().any(|row| row.reference(rows).is_some_and(|other| !std::ptr::eq(other, row)));
    let mut columns = vec![
        Column::words("cell"),
        Column::numbers(format!("largest {name}"), ""),
        Column::numbers("global batch", "sequences"),
        Column::numbers("capacity", "bytes"),
        Column::numbers("predicted peak", "bytes"),
    ];
    columns.extend(has_measured.then(|| Column::numbers("measured peak", "bytes")));
    columns.extend([Column::numbers("next", ""), Column::numbers("would take", "bytes"), Column::words("and")]);
    columns.extend(has_measured.then(|| Column::numbers("tokens/s", "tokens/s")));
    columns.extend(predicts.then(|| Column::numbers("predicted tokens/s", "tokens/s")));
    columns.extend(compares.then(|| Column::numbers(format!("× ddp: {name}"), "")));
    columns.extend(compares.then(|| Column::numbers("× ddp: tokens/s", "")));
    columns.extend([Column::words("found by"), Column::words("its cell")]);
    columns.extend(grid.map(|_| Column::words("record")));
    let mut table = Table::new(format!("largest {name}"), columns).caption(caption(name, rows));
    for row in rows {
        table.row(entries(row, rows, [has_measured, predicts, compares], grid));
    }
    table
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

fn entries(row: &Row, rows: &[Row], [has_measured, predicts, compares]: [bool; 3], grid: Option<&Grid>) -> Vec<Entry> {
    let Search { value, next, capacity, bytes, .. } = &row.search;
    let whole = |value: Option<u64>| value.map_or_else(Entry::nothing, |value| Entry::whole(value, number(value)));
    let reference = row.reference(rows).filter(|_| value.is_some());
    let times = |own: Option<f64>, other: Option<f64>| {
        let ratio = own.zip(other).filter(|(_, other)| *other > 0.0).map(|(own, other)| own / other);
        Entry::maybe(ratio, units::number)
    };
    let is_open = row.is_open();
    let largest = match value {
        Some(value) if is_open => Entry::whole(*value, format!("{} or more", number(*value))),
        None => Entry { text: "none".into(), ..Entry::nothing() }.toned(Tone::Warning),
        value => whole(*value),
    };
    let mut list = vec![
        Entry::words(&row.label),
        largest,
        whole(row.search.global_batch.filter(|_| value.is_some())),
        Entry::memory(*capacity),
        Entry::memory(*bytes),
    ];
    list.extend(has_measured.then(|| Entry::memory(row.measured)));
    list.push(whole(next.as_ref().map(|next| next.value)));
    list.push(Entry::memory(next.as_ref().and_then(|next| next.bytes)));
    list.push(Entry::words(became(row)));
    let speed = row.speed.map(|speed| speed.mid);
    list.extend(has_measured.then(|| Entry::maybe(speed, units::number)));
    list.extend(predicts.then(|| Entry::maybe(row.predicted_speed.filter(|_| value.is_some()), units::number)));
    if compares {
        let of = |row: &Row| row.search.value.map(|value| value as f64);
        list.push(times(of(row), reference.and_then(of)));
        // Measured against measured, else predicted against predicted. One trial is compared with nothing.
        let of_trials = |row: &Row| row.speed.filter(Interval::is_bounded).map(|speed| speed.mid);
        list.push(match (row.speed, reference) {
            (Some(_), other) => times(of_trials(row), other.and_then(of_trials)),
            (None, Some(other)) => times(row.predicted_speed, other.predicted_speed),
            (None, None) => Entry::nothing(),
        });
    }
    let found = match (row.search.of, value) {
        (_, None) => "-",
        (Of::Plan, _) => "plan",
        (Of::Run, _) => "run",
    };
    list.push(Entry::words(found));
    list.push(Entry::words(&row.status));
    list.extend(grid.map(|grid| row.record.as_ref().map_or_else(Entry::nothing, |id| Entry::words(grid.short_id(id)))));
    list
}

/// What became of the next value.
fn became(row: &Row) -> String {
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

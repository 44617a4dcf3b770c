//! Estimates on one screen: what fits, the fastest, one table by speed, and why the rest does not fit.

use super::{EstimateRow, figures, step, subject, summary};
use crate::document::{Entry, Table, Tone};
use crate::gather::{counted, grouped};
use crate::label;
use crate::phrase::range;
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// Rows of the table at most, and at least.
const ROWS: (usize, usize) = (24, 4);
/// Groups of cells that do not fit, at most.
const MOST_GROUPS: usize = 8;
/// Reasons why cells have no speed, or are not run here, at most.
const MOST_REASONS: usize = 3;

/// The screen for this room. It ends with `next`: labels and what to do next.
pub fn screen(rows: &[EstimateRow], room: Room, next: &[(&str, String)]) -> Screen {
    let groups = misfits(rows, MOST_GROUPS);
    let (slow, here, loading) = (without_speed(rows), reasons(rows), loading(rows));
    let unlike = in_cells(rows.iter().map(|row| row.not_compared.as_str()));
    let assumed = in_cells(rows.iter().flat_map(|row| &row.assumed).map(String::as_str));
    let short = &shortened(rows)[..];
    let mut order: Vec<&EstimateRow> = short.iter().filter(|row| row.fits != Some(false)).collect();
    let speed = |row: &EstimateRow| row.tokens_per_second.unwrap_or(f64::NEG_INFINITY);
    let bytes = |row: &EstimateRow| row.total_bytes.unwrap_or(u64::MAX);
    order.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then(bytes(a).cmp(&bytes(b))));
    let kinds = step::kinds(order.iter().copied());
    let answer = [subject(rows), Some(summary(rows)), cautions(rows), step::answer(short)];
    let answer = answer.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let compose = |count: usize| {
        let mut screen = Screen::default();
        screen.said("ANSWER", &answer, 10);
        for reason in &slow {
            screen.said("NO SPEED", reason, 2);
        }
        // Each kind has half of the rows, or what the other leaves.
        let mut left = count;
        for (place, (cells, kind)) in kinds.iter().enumerate() {
            let others: usize = kinds[place + 1..].iter().map(|(cells, _)| cells.len()).sum();
            let rows = cells.len().min(left - others.min(left / 2));
            screen.table(table(cells, kind, rows));
            left -= rows;
        }
        let more = order.len().saturating_sub(count);
        if more > 0 {
            let by = if slow.is_empty() { "by speed" } else { "by memory" };
            screen.said("", format!("{more} more of {} that fit or may, {by}; --full shows all.", order.len()), 1);
        }
        for group in &groups {
            screen.said("DOES NOT FIT", group, 2);
        }
        for reason in &unlike {
            screen.said("NOT COMPARED", reason, 2);
        }
        for text in &assumed {
            screen.said("ASSUMED", text, 2);
        }
        for text in &loading {
            screen.said("LOADING", text, 2);
        }
        for reason in &here {
            screen.said("NOT HERE", reason, 2);
        }
        for (label, text) in next {
            screen.said(label, text, 2);
        }
        screen
    };
    let mut screen = fitting(room, order.len().min(ROWS.0), order.len().min(ROWS.1), compose);
    screen.figures = figures::all(short);
    screen
}

/// Rows with the shortest labels that a table needs.
fn shortened(rows: &[EstimateRow]) -> Vec<EstimateRow> {
    let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    let short = |(row, label): (&EstimateRow, String)| EstimateRow {
        label: if label.is_empty() { "the cell".into() } else { label },
        ..row.clone()
    };
    rows.iter().zip(label::shortened(&labels)).map(short).collect()
}

/// The first `count` rows. What is unknown for all rows has no column. The least important column is last, because a narrow
/// terminal leaves it out first.
fn table(order: &[&EstimateRow], kind: &'static str, count: usize) -> Table {
    let has = |known: &dyn Fn(&EstimateRow) -> bool| order.iter().any(|row| known(row));
    let has_speed = has(&|row| row.step_ms.is_some());
    let fits = |row: &EstimateRow| match (row.fits, row.total_bytes, row.capacity_bytes) {
        (Some(true), Some(total), Some(capacity)) if total <= capacity => {
            let doubt = if row.uncertain { "uncertain, " } else { "" };
            format!("{doubt}{} free", units::memory((capacity - total) as f64))
        }
        (Some(true), ..) => "yes".to_string(),
        _ => "no limit known".to_string(),
    };
    let mut table = Table::of("screen", &order[..count.min(order.len())]);
    table.words(if kind.is_empty() { "cell" } else { kind }, |row| row.marked_label());
    if has(&|row| row.fits.is_some()) {
        table.words("fits", |row| fits(row));
    }
    table.memory("peak", |row| row.total_bytes);
    if has(&|row| row.host_bytes.is_some()) {
        table.memory("host/node", |row| row.host_bytes);
    }
    if has(&|row| row.disk_bytes.is_some()) {
        table.memory("disk/node", |row| row.disk_bytes);
    }
    if has_speed {
        table.numbers("step", "ms", |row| Entry::maybe(row.step_ms, |ms| units::duration(ms / 1e3)));
        table.numbers("tokens/s", "tokens/s", |row| {
            let is_first = std::ptr::eq(*row, order[0]) && row.tokens_per_second.is_some();
            let tone = if is_first { Tone::Good } else { Tone::Plain };
            Entry::maybe(row.tokens_per_second, units::quantity).toned(tone)
        });
        table.numbers("MFU", "fraction", |row| Entry::maybe(row.mfu, units::percent));
    } else if has(&|row| row.wire_bytes.is_some_and(|bytes| bytes > 0.0)) {
        table.numbers("wire/step", "bytes", |row| Entry::maybe(row.wire_bytes, units::traffic));
    }
    if has(&|row| row.step_ms_band.is_some()) {
        table.words("80 % band of the step", |row| row.step_band().unwrap_or_default());
    }
    table.build()
}

/// Why cells have no predicted speed, each reason once.
fn without_speed(rows: &[EstimateRow]) -> Vec<String> {
    let untimed = rows.iter().filter(|row| row.step_ms.is_none() && row.total_bytes.is_some());
    of_cells(untimed.map(|row| row.time_source.as_str()), rows.len())
}

/// Cautions about the speeds, each once.
fn cautions(rows: &[EstimateRow]) -> Option<String> {
    let said = of_cells(rows.iter().flat_map(|row| &row.cautions).map(String::as_str), rows.len());
    (!said.is_empty()).then(|| said.join(" "))
}

/// The first reasons as sentences, each behind its number of cells where it is not of all.
fn of_cells<'t>(reasons: impl Iterator<Item = &'t str>, all: usize) -> Vec<String> {
    let of = |count: usize| if count == all { String::new() } else { units::plural(count, "cell: ", "cells: ") };
    let line = |(reason, count): (&str, usize)| format!("{}{}.", of(count), reason.trim_end_matches('.'));
    first_reasons(reasons).into_iter().map(line).collect()
}

/// The first reasons that are not empty, each with its number of cells.
fn first_reasons<'t>(reasons: impl Iterator<Item = &'t str>) -> Vec<(&'t str, usize)> {
    let mut counted = counted(reasons.filter(|reason| !reason.is_empty()));
    counted.truncate(MOST_REASONS);
    counted
}

/// A strategy, whether its host's memory is what is too small, and the bytes of that memory.
type Limit = (String, bool, Option<u64>);

/// Cells that do not fit: a line for each strategy and limit (a device's memory or its host's), at most `most`, and the number of
/// others. Where the labels name no strategy, all cells have the same one.
fn misfits(rows: &[EstimateRow], most: usize) -> Vec<String> {
    // The strategy is the first term of a label, and the only one without a key.
    let strategy = |row: &EstimateRow| {
        let first = label::split(&row.label)[0];
        if first.contains('=') { String::new() } else { first.to_string() }
    };
    let is_of_host = |row: &EstimateRow| row.total_bytes <= row.capacity_bytes && row.host_excess() > 0;
    let limit = |row: &EstimateRow| if is_of_host(row) { row.host_capacity_bytes } else { row.capacity_bytes };
    let misfits = rows.iter().filter(|row| row.fits == Some(false));
    let groups = grouped(misfits.map(|row| ((strategy(row), is_of_host(row), limit(row)), row)));
    let of_group = |(place, (key, own)): (usize, &(Limit, Vec<&EstimateRow>))| {
        let (name, of_host, capacity) = key;
        let of_strategy = rows.iter().filter(|row| strategy(row) == *name).count();
        let needs = own.iter().filter_map(|row| if *of_host { row.host_bytes } else { row.total_bytes });
        let range = range(needs.map(|bytes| bytes as f64), units::memory).unwrap_or_else(|| units::memory(0.0));
        let capacity = capacity.map_or("-".into(), |bytes| units::memory(bytes as f64));
        let name_and = if name.is_empty() { String::new() } else { format!("{name} ") };
        let what = match (own.len(), of_strategy) {
            (1, 1) => format!("the only {name_and}cell needs"),
            (own, all) if own == all => format!("all {all} {name_and}cells need"),
            (1, all) => format!("1 of {all} {name_and}cells needs"),
            (own, all) => format!("{own} of {all} {name_and}cells need"),
        };
        let of = if *of_host {
            format!("{range} of a node's host memory of {capacity}")
        } else {
            format!("{range} of {capacity}")
        };
        // One piece of advice is enough.
        let advice = own.iter().map(|row| &row.advice).find(|advice| place == 0 && !advice.is_empty());
        let advice = advice.map_or(".".into(), |advice| format!(". Cheapest change of one: {advice}"));
        format!("{what} {of}{advice}")
    };
    let mut lines: Vec<String> = groups.iter().enumerate().take(most).map(of_group).collect();
    if groups.len() > most {
        let left = units::plural(groups.len() - most, "other strategy or limit", "other strategies or limits");
        lines.push(format!("cells of {left}."));
    }
    lines
}

/// Cells whose software reads more weights into a node's host than it has memory, by software and memory.
fn loading(rows: &[EstimateRow]) -> Vec<String> {
    let needs = |row: &EstimateRow| row.memory_figures.get("load_host").copied().unwrap_or(0.0);
    let too_large = |row: &&EstimateRow| row.host_capacity_bytes.is_some_and(|capacity| needs(row) > capacity as f64);
    let groups = grouped(rows.iter().filter(too_large).map(|row| ((&row.software, row.host_capacity_bytes), row)));
    let line = |((software, capacity), cells): &((&String, Option<u64>), Vec<&EstimateRow>)| {
        let capacity = units::memory(capacity.unwrap_or_default() as f64);
        let range = range(cells.iter().map(|row| needs(row)), units::memory).unwrap_or_default();
        format!(
            "{}: while {software} reads the weights, a node's host needs {range} of {capacity}; let each rank read its own part.",
            units::plural(cells.len(), "cell", "cells")
        )
    };
    groups.iter().take(MOST_REASONS).map(line).collect()
}

/// Why cells that would fit are not run here, each reason once.
fn reasons(rows: &[EstimateRow]) -> Vec<String> {
    let skipped = rows.iter().filter(|row| row.fits != Some(false));
    // After a semicolon a reason is that of one cell only.
    let common = skipped.map(|row| row.reason.split(';').next().unwrap_or_default());
    in_cells(common)
}

/// The first reasons that are not empty, each behind its number of cells.
pub(super) fn in_cells<'t>(reasons: impl Iterator<Item = &'t str>) -> Vec<String> {
    let line = |(reason, count): (&str, usize)| format!("{}: {reason}", units::plural(count, "cell", "cells"));
    first_reasons(reasons).into_iter().map(line).collect()
}

//! Estimates on one screen: what fits, the fastest, one table by speed, and why the rest does not fit.

use super::{EstimateRow, figures, step, summary};
use crate::document::{Column, Entry, Table, Tone};
use crate::label;
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// Rows of the table at most, and at least.
const ROWS: (usize, usize) = (24, 4);
/// Groups of cells that do not fit.
const MOST_GROUPS: usize = 8;
/// Reasons why cells have no speed, or are not run here.
const MOST_REASONS: usize = 3;

/// The screen for this room; `next` are words in capitals and what to do then.
pub fn screen(rows: &[EstimateRow], room: Room, next: &[(&str, String)]) -> Screen {
    let groups = misfits(rows, MOST_GROUPS);
    let (slow, here) = (without_speed(rows), reasons(rows));
    let short = &shortened(rows)[..];
    let mut order: Vec<&EstimateRow> = short.iter().filter(|row| row.fits != Some(false)).collect();
    let speed = |row: &EstimateRow| row.tokens_per_second.unwrap_or(f64::NEG_INFINITY);
    let bytes = |row: &EstimateRow| row.total_bytes.unwrap_or(u64::MAX);
    order.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then(bytes(a).cmp(&bytes(b))));
    let answer: Vec<String> = [Some(summary(rows)), step::answer(short)].into_iter().flatten().collect();
    let answer = answer.join(" ");
    let compose = |count: usize| {
        let mut screen = Screen::default();
        screen.said("ANSWER", &answer, 6);
        for reason in &slow {
            screen.said("NO SPEED", reason, 2);
        }
        screen.table(table(&order, count));
        let more = order.len().saturating_sub(count);
        if more > 0 {
            let by = if slow.is_empty() { "by speed" } else { "by memory" };
            screen.said("", format!("{more} more of {} that fit or may, {by}; --full shows all.", order.len()), 1);
        }
        for group in &groups {
            screen.said("DOES NOT FIT", group, 2);
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

/// Rows with labels as short as a table needs them.
fn shortened(rows: &[EstimateRow]) -> Vec<EstimateRow> {
    let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    let short = |(row, label): (&EstimateRow, String)| EstimateRow {
        label: if label.is_empty() { "the cell".into() } else { label },
        ..row.clone()
    };
    rows.iter().zip(label::shortened(&labels)).map(short).collect()
}

/// What is known of no row has no column; what matters least is last, as a narrow terminal leaves it out first.
fn table(order: &[&EstimateRow], count: usize) -> Table {
    let has = |known: &dyn Fn(&EstimateRow) -> bool| order.iter().any(|row| known(row));
    let has_limit = has(&|row| row.fits.is_some());
    let has_speed = has(&|row| row.step_ms.is_some());
    let has_band = has(&|row| row.step_ms_band.is_some());
    let has_wire = !has_speed && has(&|row| row.wire_bytes.is_some_and(|bytes| bytes > 0.0));
    let mut columns = vec![Column::words("cell")];
    columns.extend(has_limit.then(|| Column::words("fits")));
    columns.push(Column::numbers("peak", "bytes"));
    if has_speed {
        let (step, speed) = (Column::numbers("step", "ms"), Column::numbers("tokens/s", "tokens/s"));
        columns.extend([step, speed, Column::numbers("MFU", "fraction")]);
    }
    columns.extend(has_wire.then(|| Column::numbers("wire/step", "bytes")));
    columns.extend(has_band.then(|| Column::words("80 % band of the step")));
    let mut table = Table::new("screen", columns);
    for (place, row) in order.iter().take(count).enumerate() {
        let tone = if place == 0 && row.tokens_per_second.is_some() { Tone::Good } else { Tone::Plain };
        let fits = match (row.fits, row.total_bytes, row.capacity_bytes) {
            (Some(true), Some(total), Some(capacity)) if total <= capacity => {
                format!("{} free", units::memory((capacity - total) as f64))
            }
            (Some(true), ..) => "yes".to_string(),
            _ => "no limit known".to_string(),
        };
        let mut entries = vec![Entry::words(row.marked_label())];
        entries.extend(has_limit.then(|| Entry::words(fits)));
        entries.push(Entry::memory(row.total_bytes));
        if has_speed {
            entries.extend([
                Entry::maybe(row.step_ms, |ms| units::duration(ms / 1e3)),
                Entry::maybe(row.tokens_per_second, units::quantity).toned(tone),
                Entry::maybe(row.mfu, units::percent),
            ]);
        }
        entries.extend(has_wire.then(|| Entry::maybe(row.wire_bytes, units::traffic)));
        entries.extend(has_band.then(|| Entry::words(row.step_band().unwrap_or_default())));
        table.row(entries);
    }
    table
}

/// Why cells have no predicted speed, each reason once.
fn without_speed(rows: &[EstimateRow]) -> Vec<String> {
    let untimed = rows.iter().filter(|row| row.step_ms.is_none() && row.total_bytes.is_some());
    let of_all = |count: usize| if count == rows.len() { String::new() } else { format!("{count} cells: ") };
    counted(untimed.map(|row| row.time_source.as_str()))
        .into_iter()
        .map(|(reason, count)| format!("{}{}.", of_all(count), reason.trim_end_matches('.')))
        .collect()
}

/// Texts that are not empty with how often they occur, the first ones.
fn counted<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<(&'t str, usize)> {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        match counted.iter_mut().find(|(other, _)| *other == text) {
            Some((_, count)) => *count += 1,
            None => counted.push((text, 1)),
        }
    }
    counted.truncate(MOST_REASONS);
    counted
}

/// Cells that do not fit, a line for each strategy: `most` of them, and the count of those left out. Where the labels name no
/// strategy, all cells have the same one.
fn misfits(rows: &[EstimateRow], most: usize) -> Vec<String> {
    // The strategy stands first in a label and is the only term without a key.
    let strategy = |row: &EstimateRow| {
        label::split(&row.label)
            .first()
            .filter(|term| !term.contains('='))
            .map_or(String::new(), |term| term.to_string())
    };
    let misfits: Vec<&EstimateRow> = rows.iter().filter(|row| row.fits == Some(false)).collect();
    let mut names: Vec<String> = Vec::new();
    for row in &misfits {
        if !names.contains(&strategy(row)) {
            names.push(strategy(row));
        }
    }
    let group = |name: &String| {
        let own: Vec<&EstimateRow> = misfits.iter().copied().filter(|row| strategy(row) == *name).collect();
        let of_strategy = rows.iter().filter(|row| strategy(row) == *name).count();
        let needs: Vec<u64> = own.iter().filter_map(|row| row.total_bytes).collect();
        let (low, high) = (needs.iter().min().copied().unwrap_or(0), needs.iter().max().copied().unwrap_or(0));
        let capacity = own.iter().find_map(|row| row.capacity_bytes).map_or("-".into(), |c| units::memory(c as f64));
        let range = match low == high {
            true => units::memory(low as f64),
            false => format!("{} to {}", units::memory(low as f64), units::memory(high as f64)),
        };
        let name_and = if name.is_empty() { String::new() } else { format!("{name} ") };
        let what = match (own.len(), of_strategy) {
            (1, 1) => format!("the only {name_and}cell needs"),
            (own, all) if own == all => format!("all {all} {name_and}cells need"),
            (1, all) => format!("1 of {all} {name_and}cells needs"),
            (own, all) => format!("{own} of {all} {name_and}cells need"),
        };
        // One way out is enough.
        let advice = own
            .iter()
            .filter(|_| Some(name) == names.first())
            .map(|row| row.advice.as_str())
            .find(|advice| !advice.is_empty());
        let advice = advice.map_or(".".into(), |advice| format!(". Cheapest change of one: {advice}"));
        format!("{what} {range} of {capacity}{advice}")
    };
    let mut groups: Vec<String> = names.iter().take(most).map(group).collect();
    if names.len() > most {
        let left = units::plural(names.len() - most, "other strategy", "other strategies");
        groups.push(format!("cells of {left}."));
    }
    groups
}

/// Why cells that would fit are not run here, each reason once.
fn reasons(rows: &[EstimateRow]) -> Vec<String> {
    let skipped = rows.iter().filter(|row| row.fits != Some(false));
    // What follows is of the one cell.
    let own = skipped.map(|row| row.reason.split(';').next().unwrap_or_default());
    let line = |(reason, count): (&str, usize)| format!("{}: {reason}", units::plural(count, "cell", "cells"));
    counted(own).into_iter().map(line).collect()
}

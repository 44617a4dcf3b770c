//! Estimates on one screen: what fits, the fastest, one table by speed, and why the rest does not fit.

use super::{EstimateRow, band_column, step, summary};
use crate::document::cut::height;
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::units;

/// Rows of the table at least.
const LEAST_ROWS: usize = 2;
/// Groups of cells that do not fit.
const MOST_GROUPS: usize = 8;

/// The document, in so many lines of a screen at most; `next` is what to do then.
pub fn screen(rows: &[EstimateRow], lines: usize, next: &[String]) -> Document {
    let misfits = |most: usize| misfits(rows, most);
    let rows = &shortened(rows)[..];
    let mut order: Vec<&EstimateRow> = rows.iter().filter(|row| row.fits != Some(false)).collect();
    let speed = |row: &EstimateRow| row.tokens_per_second.unwrap_or(f64::NEG_INFINITY);
    let bytes = |row: &EstimateRow| row.total_bytes.unwrap_or(u64::MAX);
    order.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then(bytes(a).cmp(&bytes(b))));
    let build = |groups: usize, count: usize| document(rows, &order, &misfits(groups), count, next);
    let fits = |groups: usize, count: usize| height(&build(groups, count)) <= lines;
    // The table keeps its least rows; groups are left out where both do not fit.
    let groups = (1..=MOST_GROUPS).rev().find(|groups| fits(*groups, LEAST_ROWS)).unwrap_or(1);
    let count = (LEAST_ROWS..=order.len().min(lines)).rev().find(|count| fits(groups, *count)).unwrap_or(LEAST_ROWS);
    build(groups, count)
}

/// Rows whose labels leave out what nearly all cells have, and what only says again what another key says.
fn shortened(rows: &[EstimateRow]) -> Vec<EstimateRow> {
    const NEARLY_ALL: f64 = 0.8;
    let parts: Vec<Vec<&str>> = rows.iter().map(|row| row.label.split(' ').collect()).collect();
    let having = |part: &str| -> Vec<usize> { (0..rows.len()).filter(|row| parts[*row].contains(&part)).collect() };
    let mut kept: Vec<(&str, Vec<usize>)> = Vec::new();
    for part in parts.iter().flatten().copied() {
        if kept.iter().any(|(other, _)| *other == part) {
            continue;
        }
        let own = having(part);
        let is_usual = own.len() as f64 >= NEARLY_ALL * rows.len() as f64 && rows.len() > 1;
        if !is_usual && !kept.iter().any(|(_, others)| *others == own) {
            kept.push((part, own));
        }
    }
    let is_kept = |part: &&&str| kept.iter().any(|(other, _)| *other == **part);
    let short = |(row, parts): (&EstimateRow, &Vec<&str>)| {
        let label = parts.iter().filter(is_kept).map(|part| part.strip_prefix("strategy=").unwrap_or(part));
        let label = label.collect::<Vec<&str>>().join(" ");
        let label = if label.is_empty() { row.label.clone() } else { label };
        EstimateRow { label: if label.is_empty() { "the cell".into() } else { label }, ..row.clone() }
    };
    rows.iter().zip(&parts).map(short).collect()
}

fn document(
    rows: &[EstimateRow],
    order: &[&EstimateRow],
    groups: &[String],
    count: usize,
    next: &[String],
) -> Document {
    let mut document = Document::new(summary(rows));
    if let Some(answer) = step::answer(rows) {
        document.paragraph(answer);
    }
    if !order.is_empty() {
        document.table(table(order, count));
    }
    let mut notes = groups.to_vec();
    notes.extend(reasons(rows));
    notes.extend(next.iter().cloned());
    document.list(notes);
    document
}

fn table(order: &[&EstimateRow], count: usize) -> Table {
    let has_band = order.iter().any(|row| row.step_ms_band.is_some());
    let columns = vec![
        Column::words("cell"),
        Column::words("fits"),
        Column::numbers("peak", "bytes"),
        Column::numbers("step", "ms"),
        band_column("80 % band", has_band),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("MFU", "fraction"),
    ];
    let mut table = Table::new("screen", columns);
    if order.len() > count {
        table.caption =
            format!("The first {count} of {} cells that fit or may, by speed; --full shows all:", order.len());
    }
    for (place, row) in order.iter().take(count).enumerate() {
        let tone = if place == 0 && row.tokens_per_second.is_some() { Tone::Good } else { Tone::Plain };
        let fits = match (row.fits, row.total_bytes, row.capacity_bytes) {
            (Some(true), Some(total), Some(capacity)) if total <= capacity => {
                format!("{} free", units::memory((capacity - total) as f64))
            }
            (Some(true), ..) => "yes".to_string(),
            _ => "no limit known".to_string(),
        };
        table.row(vec![
            Entry::words(row.marked_label()),
            Entry::words(fits),
            Entry::memory(row.total_bytes),
            Entry::maybe(row.step_ms, |ms| units::duration(ms / 1e3)),
            Entry::words(row.step_band().unwrap_or_default()),
            Entry::maybe(row.tokens_per_second, units::quantity).toned(tone),
            Entry::maybe(row.mfu, units::percent),
        ]);
    }
    table
}

/// Cells that do not fit, a line for each strategy: `most` of them, and the count of those left out. Where the labels name no
/// strategy, all cells have the same one.
fn misfits(rows: &[EstimateRow], most: usize) -> Vec<String> {
    let strategy = |row: &EstimateRow| {
        row.label.split(' ').find_map(|part| part.strip_prefix("strategy=")).unwrap_or_default().to_string()
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
        let what = match (own.len(), of_strategy) {
            (1, 1) => "the only cell needs".to_string(),
            (own, all) if own == all => format!("all {all} cells need"),
            (1, all) => format!("1 of {all} cells needs"),
            (own, all) => format!("{own} of {all} cells need"),
        };
        // One way out is enough.
        let advice = own
            .iter()
            .filter(|_| Some(name) == names.first())
            .map(|row| row.advice.as_str())
            .find(|advice| !advice.is_empty());
        let advice = advice.map_or(String::new(), |advice| format!(". Cheapest change of one: {advice}"));
        let label = format!("DOES NOT FIT {name}");
        format!("{}: {what} {range} of {capacity}{advice}", label.trim_end())
    };
    let mut groups: Vec<String> = names.iter().take(most).map(group).collect();
    if names.len() > most {
        let left = units::plural(names.len() - most, "other strategy", "other strategies");
        groups.push(format!("DOES NOT FIT: cells of {left}"));
    }
    groups
}

/// Why cells that would fit are not run here, each reason once.
fn reasons(rows: &[EstimateRow]) -> Vec<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for row in rows.iter().filter(|row| row.fits != Some(false) && !row.reason.is_empty()) {
        // What follows is of the one cell.
        let own = row.reason.split(';').next().unwrap_or_default();
        match reasons.iter_mut().find(|(reason, _)| *reason == own) {
            Some((_, count)) => *count += 1,
            None => reasons.push((own, 1)),
        }
    }
    let line = |(reason, count): &(&str, usize)| {
        format!("NOT HERE {}: {}", units::plural(*count, "cell", "cells"), reason.chars().take(220).collect::<String>())
    };
    reasons.iter().take(3).map(line).collect()
}

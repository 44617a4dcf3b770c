//! The plots of estimates: memory against capacity, speed against memory.

use super::EstimateRow;
use crate::gather::{distinct, extent};
use crate::plot::{Axis, Cloud, Dot, Figure, MOST_ROWS, Plot, Scatter, StackRow, Stacks, Unit, drawable};
use crate::units;

/// Peaks and speeds that differ by less than this are one bar or one mark.
const ALIKE: f64 = 0.01;

/// Peaks of so many times the capacity are in the caption and not drawn.
const FAR: f64 = 2.0;
/// Peaks that differ by more than this factor are drawn on a logarithmic axis.
const WIDE: f64 = 8.0;

/// The plots for which enough is known.
pub fn all(rows: &[EstimateRow]) -> Vec<Figure> {
    [memory(rows), speed(rows)].into_iter().flatten().collect()
}

/// Cells that are alike: the first and their number.
struct Group<'r> {
    first: &'r EstimateRow,
    count: usize,
}

impl Group<'_> {
    fn label(&self) -> String {
        let name = self.first.marked_label();
        if self.count == 1 { name } else { format!("{name} and {} like it", self.count - 1) }
    }
}

/// Gathers rows that are alike to the first row of a group.
fn grouped<'r>(rows: &[&'r EstimateRow], is_alike: impl Fn(&EstimateRow, &EstimateRow) -> bool) -> Vec<Group<'r>> {
    let mut groups: Vec<Group> = Vec::new();
    for &row in rows {
        match groups.iter_mut().find(|group| is_alike(group.first, row)) {
            Some(group) => group.count += 1,
            None => groups.push(Group { first: row, count: 1 }),
        }
    }
    groups
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= ALIKE * a.abs().max(b.abs())
}

fn bytes(row: &EstimateRow) -> f64 {
    row.total_bytes.map_or(0.0, |bytes| bytes as f64)
}

fn same_memory(a: &EstimateRow, b: &EstimateRow) -> bool {
    near(bytes(a), bytes(b)) && a.capacity_bytes == b.capacity_bytes
}

/// The predicted peak of every cell by category beside what a rank may use, the smallest first.
fn memory(rows: &[EstimateRow]) -> Option<Figure> {
    let mut known: Vec<&EstimateRow> = rows.iter().filter(|row| row.total_bytes.is_some()).collect();
    known.sort_by(|a, b| bytes(a).total_cmp(&bytes(b)));
    // Peaks far beyond the capacity would leave the others no room.
    let is_far = |row: &&EstimateRow| row.capacity_bytes.is_some_and(|limit| bytes(row) > FAR * limit as f64);
    let (far, drawn): (Vec<&EstimateRow>, Vec<&EstimateRow>) = known.into_iter().partition(is_far);
    let groups = grouped(&drawn, same_memory);
    let categories = groups.iter().flat_map(|group| group.first.categories().iter());
    let series = distinct(categories.filter(|(_, bytes)| **bytes > 0).map(|(name, _)| name.to_string()));
    if series.is_empty() {
        return None;
    }
    let row = |group: &Group| StackRow {
        label: group.label(),
        parts: series.iter().map(|name| group.first.categories().get(name).copied().unwrap_or(0) as f64).collect(),
        limit: group.first.capacity_bytes.map(|bytes| bytes as f64),
        is_plan: false,
        record: String::new(),
    };
    let shown = groups.len().min(MOST_ROWS);
    let fit = rows.iter().filter(|row| row.fits == Some(true)).count();
    let mut caption =
        "Predicted peak of the largest rank by category, the smallest first; cells whose peaks differ by less than \
                       1 % are one bar."
            .to_string();
    caption += &match extent(rows.iter().filter_map(|row| row.capacity_bytes).map(|bytes| bytes as f64)) {
        None => " No capacity is stated.".to_string(),
        Some((low, high)) if low == high => format!(
            " The black line is the capacity of a rank, {}: {fit} of {} fit.",
            units::memory(low),
            units::plural(rows.len(), "cell", "cells")
        ),
        Some(_) => format!(" Black lines are the capacity of a rank: {fit} of {} fit.", rows.len()),
    };
    if let (Some(first), Some(last)) = (far.first(), far.last()) {
        let most = units::memory(bytes(last));
        let range = if far.len() == 1 { most } else { format!("{} to {most}", units::memory(bytes(first))) };
        let cells = units::plural(far.len(), "cell that needs", "cells that need");
        caption += &format!(" Not drawn: {cells} {range}.");
    }
    if shown < groups.len() {
        caption += &format!(" The first {shown} of {} bars.", groups.len());
    }
    let rows = groups.iter().take(shown).map(row).collect();
    let plot = Plot::Stacks(Stacks {
        axis: Axis::linear("memory of the largest rank", Unit::Memory),
        series,
        limit: "capacity".into(),
        planned: String::new(),
        rows,
    });
    Some(Figure::new("plan-memory", "Memory against capacity", caption, plot, Vec::new()))
}

/// Predicted speed over predicted peak: what fits, what does not, and the line of capacity.
fn speed(rows: &[EstimateRow]) -> Option<Figure> {
    let tokens = |row: &EstimateRow| row.tokens_per_second.unwrap_or(0.0);
    let is_known = |row: &&EstimateRow| {
        row.total_bytes.is_some()
            && drawable(bytes(row)).is_some()
            && drawable(tokens(row)).is_some_and(|speed| speed > 0.0)
    };
    let mut known: Vec<&EstimateRow> = rows.iter().filter(is_known).collect();
    if known.len() < 2 {
        return None;
    }
    known.sort_by(|a, b| tokens(b).total_cmp(&tokens(a)).then(bytes(a).total_cmp(&bytes(b))));
    let groups = grouped(&known, |a, b| same_memory(a, b) && near(tokens(a), tokens(b)) && a.fits == b.fits);
    // On the frontier: smaller than all that are faster and fit.
    let mut smallest = f64::INFINITY;
    let groups: Vec<(Group, bool)> = groups
        .into_iter()
        .map(|group| {
            let on_front = group.first.fits != Some(false) && bytes(group.first) < smallest;
            smallest = if on_front { bytes(group.first) } else { smallest };
            (group, on_front)
        })
        .collect();
    let dot = |(group, on_front): &(Group, bool)| Dot {
        x: bytes(group.first),
        y: tokens(group.first),
        limits: None,
        label: group.label(),
        stands_out: *on_front,
        record: String::new(),
    };
    let cloud = |label: &str, wanted: &dyn Fn(&Group, bool) -> bool| Cloud {
        label: label.to_string(),
        dots: groups.iter().filter(|(group, on_front)| wanted(group, *on_front)).map(dot).collect(),
    };
    let mut clouds = vec![
        cloud("on the frontier", &|_, on_front| on_front),
        cloud("fits or may", &|group, on_front| group.first.fits != Some(false) && !on_front),
        cloud("does not fit", &|group, _| group.first.fits == Some(false)),
    ];
    clouds.retain(|cloud| !cloud.dots.is_empty());
    let mut front: Vec<(f64, f64)> = groups
        .iter()
        .filter(|(_, on_front)| *on_front)
        .map(|(group, _)| (bytes(group.first), tokens(group.first)))
        .collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut capacities: Vec<u64> = rows.iter().filter_map(|row| row.capacity_bytes).collect();
    capacities.dedup();
    let limit = if let [one] = capacities[..] { Some(one as f64) } else { None };
    let mut caption = "Predicted tokens per second of all ranks over the predicted peak of the largest rank. Of what fits, nothing is \
                       both faster and smaller than the cells on the frontier."
        .to_string();
    if let Some(limit) = limit {
        caption += &format!(" Right of the line, {}, nothing fits.", units::memory(limit));
    }
    if groups.len() < known.len() {
        caption += " Cells of equal speed and memory are one mark.";
    }
    let (least, most) = extent(known.iter().map(|row| bytes(row)))?;
    let title = "memory of the largest rank";
    let is_wide = least > 0.0 && most > WIDE * least;
    let x = if is_wide { Axis::logarithmic(title, Unit::Memory) } else { Axis::linear(title, Unit::Memory) };
    let y = Axis::linear("tokens per second", Unit::TokensPerSecond);
    let plot = Plot::Scatter(Scatter { close: true, front, limit, ..Scatter::new(x, y, clouds) });
    Some(Figure::new("plan-speed", "Speed against memory", caption, plot, Vec::new()))
}

//! The plots of estimates: memory against capacity, speed against memory.

use super::EstimateRow;
use crate::plot::{Axis, Cloud, Dot, Figure, MOST_ROWS, Plot, Scatter, StackRow, Stacks, Unit, drawable};
use crate::units;

/// Peaks and speeds closer than this are one bar or one mark.
const ALIKE: f64 = 0.01;

/// Peaks of so many times the capacity are told and not drawn as bars.
const FAR: f64 = 2.0;
/// Peaks that differ by more than this factor are drawn on a logarithmic axis.
const WIDE: f64 = 8.0;

/// Those for which enough is known.
pub fn all(rows: &[EstimateRow]) -> Vec<Figure> {
    [memory(rows), speed(rows)].into_iter().flatten().collect()
}

/// Cells that are alike, the first by name.
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

/// Rows that `is_alike` says are no different from the first of a group, in one group.
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
    if known.is_empty() {
        return None;
    }
    known.sort_by(|a, b| bytes(a).total_cmp(&bytes(b)));
    // Those far beyond would leave the others no room.
    let is_far = |row: &&EstimateRow| row.capacity_bytes.is_some_and(|limit| bytes(row) > FAR * limit as f64);
    let (far, drawn): (Vec<&EstimateRow>, Vec<&EstimateRow>) = known.into_iter().partition(is_far);
    let groups = grouped(&drawn, same_memory);
    let parts = |row: &EstimateRow| if row.at_peak.is_empty() { row.memory.clone() } else { row.at_peak.clone() };
    let mut series: Vec<String> = Vec::new();
    for group in &groups {
        for (name, bytes) in parts(group.first).iter() {
            if *bytes > 0 && !series.iter().any(|other| other == name) {
                series.push(name.to_string());
            }
        }
    }
    if series.is_empty() {
        return None;
    }
    let row = |group: &Group| {
        let parts = parts(group.first);
        StackRow {
            label: group.label(),
            parts: series.iter().map(|name| parts.get(name).copied().unwrap_or(0) as f64).collect(),
            limit: group.first.capacity_bytes.map(|bytes| bytes as f64),
            is_plan: false,
            record: String::new(),
        }
    };
    let shown = groups.len().min(MOST_ROWS);
    let fit = rows.iter().filter(|row| row.fits == Some(true)).count();
    let mut caption =
        "Predicted peak of the largest rank by category, the smallest first; cells whose peaks differ by less than \
                       1 % are one bar."
            .to_string();
    let capacities: Vec<u64> = rows.iter().filter_map(|row| row.capacity_bytes).collect();
    caption += &match capacities.iter().min().zip(capacities.iter().max()) {
        None => " No capacity is stated.".to_string(),
        Some((low, high)) if low == high => {
            format!(
                " The black line is the capacity of a rank, {}: {fit} of {} fit.",
                units::memory(*low as f64),
                units::plural(rows.len(), "cell", "cells")
            )
        }
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
    Some(Figure {
        name: "plan-memory".into(),
        title: "Memory against capacity".into(),
        caption,
        plot: Plot::Stacks(Stacks {
            axis: Axis::linear("memory of the largest rank", Unit::Memory),
            series: series.clone(),
            limit: "capacity".into(),
            planned: String::new(),
            rows: groups.iter().take(shown).map(row).collect(),
        }),
        records: Vec::new(),
    })
}

/// Predicted speed over predicted peak, what fits and what does not, and the line of capacity.
fn speed(rows: &[EstimateRow]) -> Option<Figure> {
    let tokens = |row: &EstimateRow| row.tokens_per_second.unwrap_or(0.0);
    let is_known = |row: &&EstimateRow| {
        let numbers = row.total_bytes.map(|bytes| bytes as f64).zip(row.tokens_per_second);
        numbers.is_some_and(|(bytes, speed)| drawable(bytes).is_some() && drawable(speed).is_some() && speed > 0.0)
    };
    let mut known: Vec<&EstimateRow> = rows.iter().filter(is_known).collect();
    if known.len() < 2 {
        return None;
    }
    known.sort_by(|a, b| tokens(b).total_cmp(&tokens(a)).then(bytes(a).total_cmp(&bytes(b))));
    let groups = grouped(&known, |a, b| same_memory(a, b) && near(tokens(a), tokens(b)) && a.fits == b.fits);
    // Smaller than all that are faster and fit.
    let mut smallest = f64::INFINITY;
    let on_front: Vec<bool> = groups
        .iter()
        .map(|group| {
            let is_best = group.first.fits != Some(false) && bytes(group.first) < smallest;
            smallest = if is_best { bytes(group.first) } else { smallest };
            is_best
        })
        .collect();
    let dot = |group: &Group, stands_out: bool| Dot {
        x: bytes(group.first),
        y: tokens(group.first),
        limits: None,
        label: group.label(),
        stands_out,
        record: String::new(),
    };
    let cloud = |label: &str, wanted: &dyn Fn(&Group, bool) -> bool| Cloud {
        label: label.to_string(),
        dots: groups.iter().zip(&on_front).filter(|(g, front)| wanted(g, **front)).map(|(g, f)| dot(g, *f)).collect(),
    };
    let clouds = [
        cloud("on the frontier", &|_, front| front),
        cloud("fits or may", &|group, front| group.first.fits != Some(false) && !front),
        cloud("does not fit", &|group, _| group.first.fits == Some(false)),
    ];
    let mut front: Vec<(f64, f64)> = groups
        .iter()
        .zip(&on_front)
        .filter(|(_, front)| **front)
        .map(|(group, _)| (bytes(group.first), tokens(group.first)))
        .collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut capacities: Vec<u64> = rows.iter().filter_map(|row| row.capacity_bytes).collect();
    capacities.dedup();
    let title = "memory of the largest rank";
    let peaks = || known.iter().map(|row| bytes(row));
    let least = peaks().fold(f64::INFINITY, f64::min);
    let is_wide = least > 0.0 && peaks().fold(0.0, f64::max) > WIDE * least;
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
    Some(Figure {
        name: "plan-speed".into(),
        title: "Speed against memory".into(),
        caption,
        plot: Plot::Scatter(Scatter {
            x: if is_wide { Axis::logarithmic(title, Unit::Memory) } else { Axis::linear(title, Unit::Memory) },
            y: Axis::linear("tokens per second", Unit::TokensPerSecond),
            clouds: clouds.into_iter().filter(|cloud| !cloud.dots.is_empty()).collect(),
            diagonal: false,
            close: true,
            front,
            limit,
        }),
        records: Vec::new(),
    })
}

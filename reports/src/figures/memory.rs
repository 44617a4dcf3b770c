//! Memory by category against the capacity.

use super::{chosen, figure, id};
use crate::grid::{Cell, Grid};
use crate::phrase::range;
use crate::plot::{Axis, Figure, Plot, StackRow, Stacks, Unit};
use crate::record::Category;
use crate::units;
use serde_json::Value;

/// Memory by category at the moment the largest rank's total peaks, against its capacity; the plan where nothing ran.
pub fn memory(grid: &Grid) -> Option<Figure> {
    let (cells, selection) = chosen(grid, |cell| parts(cell).is_some());
    let rows: Vec<StackRow> = cells.iter().filter_map(|cell| row(cell)).collect();
    let sums = |is_plan: bool| rows.iter().filter(move |row| row.is_plan == is_plan).map(StackRow::sum);
    let has_plan = rows.iter().any(|row| row.is_plan);
    let mut caption = match range(sums(false), units::memory) {
        Some(range) => format!("Measured peaks of the largest rank: {range}."),
        None => "Nothing was measured; the plan's peaks of the largest rank are shown.".to_string(),
    };
    caption += &largest_category(&rows).unwrap_or_default();
    caption += &capacity(&rows);
    caption += " Measured bars are the categories at the moment their sum peaks, so they add up to the peak.";
    if has_plan {
        caption += " Pale bars are plans of cells that did not run: each category's own peak, so they may add up to more than the peak.";
    }
    caption += " MiB are 2^20 bytes.";
    let plot = Plot::Stacks(Stacks {
        axis: Axis::linear("memory of the largest rank", Unit::Memory),
        series: Category::ALL.iter().map(|category| category.name().to_string()).collect(),
        limit: "capacity".into(),
        planned: "planned only".into(),
        rows,
    });
    (!cells.is_empty()).then(|| figure("memory", "Memory by category", caption + &selection, plot, &cells))
}

/// Bytes by category, and whether they are planned.
fn parts(cell: &Cell) -> Option<(Vec<f64>, bool)> {
    let categories = |bytes: &dyn Fn(Category) -> Option<u64>| -> Option<Vec<f64>> {
        let parts: Vec<Option<u64>> = Category::ALL.into_iter().map(bytes).collect();
        parts.iter().any(Option::is_some).then(|| parts.iter().map(|part| part.unwrap_or(0) as f64).collect())
    };
    if let Some(most) =
        cell.used.iter().max_by_key(|record| record.memory.total.as_ref().and_then(|total| total.peak_bytes))
    {
        let at_peak = categories(&|category| most.memory.get(category)?.at_peak_bytes);
        return Some((at_peak.or_else(|| categories(&|category| most.memory.get(category)?.peak_bytes))?, false));
    }
    Some((categories(&|category| cell.category_prediction(category))?, true))
}

fn row(cell: &Cell) -> Option<StackRow> {
    let (parts, is_plan) = parts(cell)?;
    Some(StackRow { label: cell.label.clone(), parts, limit: capacity_of(cell), is_plan, record: id(cell) })
}

/// What a rank may use, by the configuration or else the estimate.
fn capacity_of(cell: &Cell) -> Option<f64> {
    let record = cell.record();
    let stated = [record.setting("memory.capacity"), record.estimate.get("capacity_bytes")];
    let bytes = stated.into_iter().flatten().filter_map(Value::as_u64).find(|bytes| *bytes > 0);
    bytes.map(|bytes| bytes as f64)
}

fn largest_category(rows: &[StackRow]) -> Option<String> {
    let top = rows.iter().max_by(|a, b| a.sum().total_cmp(&b.sum()))?;
    let (place, part) = top.parts.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    (top.sum() > 0.0).then(|| {
        format!(
            " Most: {}, of which {} is {} ({}).",
            top.label,
            units::percent(part / top.sum()),
            Category::ALL[place].name(),
            units::memory(*part)
        )
    })
}

fn capacity(rows: &[StackRow]) -> String {
    let largest = rows.iter().map(StackRow::sum).fold(0.0, f64::max);
    let limits: Vec<f64> = rows.iter().filter_map(|row| row.limit).collect();
    let Some(range) = range(limits.iter().copied(), units::memory) else {
        return " No capacity is stated.".to_string();
    };
    let above = rows.iter().filter(|row| row.limit.is_some_and(|limit| row.sum() > limit)).count();
    let verdict = match above {
        0 => "every bar ends below its own".to_string(),
        count => format!("{} beyond", units::plural(count, "bar goes", "bars go")),
    };
    match limits.iter().any(|limit| crate::plot::is_near(*limit, largest)) {
        true => format!(" Capacity of a rank (black line): {range}; {verdict}."),
        false => format!(" Capacity of a rank: {range}, far right of the drawing."),
    }
}

//! Predictions against measurements.

use std::collections::HashSet;

use super::{figure, id};
use crate::grid::{Cell, Grid};
use crate::plot::{Axis, Cloud, Dot, Figure, MOST_LINES, Plot, Scatter, Unit, drawable};
use crate::record::Category;
use crate::units;

/// Points of one kind at most; those farthest from the prediction first.
const MOST_DOTS: usize = 100;

/// A number that was predicted and measured.
struct Pair<'g, 'a> {
    kind: String,
    cell: &'g Cell<'a>,
    predicted: f64,
    measured: f64,
}

impl Pair<'_, '_> {
    fn error(&self) -> f64 {
        self.measured / self.predicted - 1.0
    }
}

/// Peak memory by category.
pub fn predicted_memory(grid: &Grid) -> Option<Figure> {
    let of_category = |cell, category: Category| {
        let (predicted, measured) = (Cell::category_prediction(cell, category)?, cell.category_peak(category)?);
        pair(cell, category.name(), predicted as f64, measured as f64)
    };
    let of_cell = |cell| Category::ALL.into_iter().filter_map(move |category| of_category(cell, category));
    let pairs: Vec<Pair> = grid.measured().flat_map(of_cell).collect();
    let axes = ("predicted peak", "measured peak", Unit::Memory);
    let what = "peaks of categories (largest rank)";
    against_plan("memory-plan", "Memory: predicted against measured", what, axes, pairs)
}

/// Bytes on the wire by collective.
pub fn predicted_wire(grid: &Grid) -> Option<Figure> {
    let of_cell = |cell| {
        let record = Cell::record(cell);
        let entries = record.communication.iter().filter(|_| !record.wire_is_planned());
        entries.filter_map(move |entry| pair(cell, &entry.kind, entry.predicted_wire_bytes?, entry.wire_bytes))
    };
    let pairs: Vec<Pair> = grid.measured().flat_map(of_cell).collect();
    let axes = ("predicted bytes on the wire", "measured bytes on the wire", Unit::Traffic);
    let what = "bytes on the wire of collectives (largest rank, per step)";
    against_plan("wire-plan", "Traffic: predicted against measured", what, axes, pairs)
}

/// The time of a step, where the estimate has one.
pub fn predicted_step(grid: &Grid) -> Option<Figure> {
    let of_cell = |cell| {
        let predicted = Cell::record(cell).estimate.get("step_ms").and_then(serde_json::Value::as_f64)?;
        pair(cell, "step", predicted, cell.metric("step_ms_p50")?)
    };
    let pairs: Vec<Pair> = grid.measured().filter_map(of_cell).collect();
    let axes = ("predicted time of a step", "measured median of a step", Unit::Milliseconds);
    against_plan("step-plan", "Time of a step: predicted against measured", "step times (median)", axes, pairs)
}

/// `None` where one of the numbers cannot be drawn on a logarithmic axis.
fn pair<'g, 'a>(cell: &'g Cell<'a>, kind: &str, predicted: f64, measured: f64) -> Option<Pair<'g, 'a>> {
    let (predicted, measured) = (drawable(predicted)?, drawable(measured)?);
    (predicted > 0.0 && measured > 0.0).then(|| Pair { kind: kind.to_string(), cell, predicted, measured })
}

fn against_plan(
    name: &str,
    title: &str,
    what: &str,
    (x, y, unit): (&str, &str, Unit),
    mut pairs: Vec<Pair>,
) -> Option<Figure> {
    let all = pairs.len();
    let equal = pairs.iter().filter(|pair| pair.predicted == pair.measured).count();
    let worst = pairs.iter().max_by(|a, b| a.error().abs().total_cmp(&b.error().abs()))?;
    let (cell, error) = (&worst.cell.label, units::change(worst.error()));
    let mut caption = match all - equal {
        _ if unit == Unit::Milliseconds => format!("Farthest off of {all} {what}: {cell}, {error} against the plan."),
        0 if all == 2 => format!("Both {what} are equal to the plan's, to the byte."),
        0 => format!("All {all} {what} are equal to the plan's, to the byte."),
        _ => format!(
            "{equal} of {all} {what} are equal to the plan's. Farthest off: {} of {cell}, {error} against the plan.",
            worst.kind
        ),
    };
    caption +=
        " On the dashed line both are equal; above it more was measured than predicted. Both axes are logarithmic.";
    pairs.sort_by(|a, b| b.error().abs().total_cmp(&a.error().abs()));
    let mut clouds: Vec<Cloud> = Vec::new();
    let mut seen: HashSet<(String, u64, u64)> = HashSet::new();
    let mut cells: Vec<&Cell> = Vec::new();
    let mut too_many = false;
    for pair in &pairs {
        if !seen.insert((pair.kind.clone(), pair.predicted.to_bits(), pair.measured.to_bits())) {
            continue;
        }
        let place = clouds.iter().position(|cloud| cloud.label == pair.kind).unwrap_or_else(|| {
            clouds.push(Cloud { label: pair.kind.clone(), dots: Vec::new() });
            clouds.len() - 1
        });
        if place >= MOST_LINES || clouds[place].dots.len() >= MOST_DOTS {
            too_many = true;
            continue;
        }
        clouds[place].dots.push(Dot {
            x: pair.predicted,
            y: pair.measured,
            limits: None,
            label: pair.cell.label.clone(),
            stands_out: false,
            record: id(pair.cell),
        });
        if !cells.iter().any(|cell| cell.key == pair.cell.key) {
            cells.push(pair.cell);
        }
    }
    clouds.truncate(MOST_LINES);
    if unit == Unit::Memory {
        clouds.sort_by_key(|cloud| Category::ALL.iter().position(|category| category.name() == cloud.label));
    }
    if too_many {
        caption += &format!(" Drawn are up to {MOST_DOTS} of each kind, those farthest off first.");
    }
    let (x, y) = (Axis::logarithmic(x, unit), Axis::logarithmic(y, unit));
    let plot = Plot::Scatter(Scatter { diagonal: true, ..Scatter::new(x, y, clouds) });
    Some(figure(name, title, caption, plot, &cells))
}

//! Loss parity: a cell's losses beside those of the grid's ddp cell that differs in nothing else but how state is split
//! and what is kept.

use super::plan::Planned;
use crate::grid::{canonical, plain};
use serde_json::Value;
use std::collections::HashMap;
use zbench_engine::config::{Cell, Precision, Strategy};
use zbench_kernels::DType;
use zbench_reports::record::{Parity, Record, Step, Verdict};

/// Largest relative difference of a step's loss, by the type that rounds most. f32: sums in another order over accumulated
/// micro-batches. The short types: a rounding of their mantissa may fall differently in a step and grow over few.
pub const TOLERANCE: &[(DType, f64)] =
    &[(DType::F64, 1e-9), (DType::F32, 1e-5), (DType::F16, 5e-3), (DType::Bf16, 2e-2)];

/// The tolerance of a precision: that of the type which rounds most among compute, accumulated and travelling gradients.
pub fn tolerance(precision: &Precision) -> f64 {
    let of = |dtype| TOLERANCE.iter().find(|(known, _)| *known == dtype).map_or(0.0, |(_, tolerance)| *tolerance);
    [precision.compute, precision.gradients, precision.reduce].into_iter().map(of).fold(0.0, f64::max)
}

/// What cells must share to be comparable: everything but strategy, shard, prefetch, backend, checkpointing, attention
/// kernel, capacity, emulated nodes and threads.
pub fn class(cell: &Cell) -> String {
    let mut value = plain(cell);
    let unlike = [
        ("parallel", &["strategy", "shard", "prefetch", "ranks_per_node", "backend", "stall"][..]),
        ("memory", &["checkpointing", "attention", "capacity", "prepack"]),
        ("hardware", &["threads_per_rank"]),
    ];
    for (section, keys) in unlike {
        if let Some(Value::Object(section)) = value.get_mut(section) {
            section.retain(|key, _| !keys.contains(&key.as_str()));
        }
    }
    if let Value::Object(cell) = &mut value {
        cell.remove("read_ahead");
    }
    canonical(&value)
}

/// The reference among cells of one class: the first ddp cell.
pub fn is_reference(cell: &Cell) -> bool {
    cell.parallel.strategy == Strategy::Ddp
}

/// The cell of a command with whose losses this one's are compared: the first reference of its class.
pub fn reference_of(cell: &Cell, cells: &[Planned]) -> Option<usize> {
    let own = class(cell);
    let is_it = |planned: &Planned| planned.cell().is_some_and(|other| is_reference(other) && class(other) == own);
    cells.iter().position(is_it)
}

/// The same for each cell at once.
pub fn references_of(cells: &[Planned]) -> Vec<Option<usize>> {
    let classes: Vec<Option<String>> = cells.iter().map(|planned| planned.cell().map(class)).collect();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, planned) in cells.iter().enumerate() {
        if let (Some(class), true) = (&classes[index], planned.cell().is_some_and(is_reference)) {
            first.entry(class).or_insert(index);
        }
    }
    classes.iter().map(|class| first.get(class.as_deref()?).copied()).collect()
}

/// The measured reference records of a notebook with their classes, in its order: the newest stands last. A record
/// whose cell this version cannot read is none.
pub fn references(records: &[Record]) -> Vec<(String, Record)> {
    let of = |record: &Record| {
        let cell: Cell = serde_json::from_value(record.cell.clone()).ok()?;
        (record.is_measured() && is_reference(&cell)).then(|| (class(&cell), record.clone()))
    };
    records.iter().filter_map(of).collect()
}

/// Compares a record with its reference's, when there is one.
pub fn compare(record: &Record, reference: Option<&Record>, precision: &Precision) -> Parity {
    let Some(reference) = reference else { return Parity::default() };
    let mut parity = Parity { reference: Some(reference.id.clone()), ..Parity::default() };
    if reference.key == record.key {
        return Parity { verdict: Verdict::Reference, ..parity };
    }
    let tolerance = tolerance(precision);
    parity.extra.insert("tolerance".into(), tolerance.into());
    let Some(difference) = difference(&record.steps, &reference.steps, |step| step.loss) else {
        parity
            .extra
            .insert("reason".into(), "the losses cannot be compared: other steps, or a loss that is not finite".into());
        return Parity { verdict: Verdict::Failed, ..parity };
    };
    let norms = self::difference(&record.steps, &reference.steps, norm);
    parity.max_loss_difference = Some(difference);
    parity.extra.insert("max_grad_norm_difference".into(), norms.into());
    parity.verdict = match difference {
        0.0 if norms == Some(0.0) => Verdict::Identical,
        d if d <= tolerance => Verdict::WithinTolerance,
        _ => Verdict::Failed,
    };
    parity
}

/// The gradient norm; nothing for a step that was skipped because it had none.
pub fn norm(step: &Step) -> f64 {
    if step.is_skipped() { 0.0 } else { step.grad_norm }
}

/// Largest relative difference over the steps; absent when the runs are not of the same steps or a value is not finite.
pub fn difference(a: &[Step], b: &[Step], value: impl Fn(&Step) -> f64) -> Option<f64> {
    if a.is_empty() || a.len() != b.len() {
        return None;
    }
    a.iter().zip(b).try_fold(0.0f64, |most, (a, b)| {
        let (x, y) = (value(a), value(b));
        let relative = if x == y { 0.0 } else { (x - y).abs() / y.abs().max(f64::MIN_POSITIVE) };
        (a.step == b.step && x.is_finite() && y.is_finite()).then(|| most.max(relative))
    })
}

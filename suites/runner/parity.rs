//! Loss parity: a cell's losses beside those of the grid's ddp cell that differs in nothing else but how state is split
//! and what is kept.

use serde_json::Value;
use std::collections::HashMap;
use zbench_config::grid::{canonical, plain};
use zbench_engine::config::{Cell, Precision, Strategy};
use zbench_engine::parity::{Point, compare as compare_points};
use zbench_predict::planned::Planned;
use zbench_reports::record::{Parity, Record, Step, Verdict};

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
    let Some(compared) = compare_points(precision, &points(&record.steps), &points(&reference.steps)) else {
        parity
            .extra
            .insert("reason".into(), "the losses cannot be compared: other steps, or a loss that is not finite".into());
        return Parity { verdict: Verdict::Failed, ..parity };
    };
    let [tolerance, norm_tolerance] = compared.allowed;
    parity.max_loss_difference = Some(compared.loss);
    parity.extra.insert("tolerance".into(), tolerance.into());
    parity.extra.insert("grad_norm_tolerance".into(), norm_tolerance.into());
    parity.extra.insert("max_grad_norm_difference".into(), compared.norm.into());
    parity.verdict = match compared.outside {
        Some(outside) => {
            parity.extra.insert("reason".into(), outside.into());
            Verdict::Failed
        }
        None if is_identical(&record.steps, &reference.steps) => Verdict::Identical,
        None => Verdict::WithinTolerance,
    };
    parity
}

fn points(steps: &[Step]) -> Vec<Point> {
    let point = |step: &Step| Point {
        step: step.step,
        loss: step.loss,
        norm: step.grad_norm,
        lr: step.lr,
        skipped: step.is_skipped(),
    };
    steps.iter().map(point).collect()
}

/// Whether all losses and gradient norms are equal to the bit.
fn is_identical(a: &[Step], b: &[Step]) -> bool {
    difference(a, b, |step| step.loss) == Some(0.0) && difference(a, b, norm) == Some(0.0)
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

//! What the stages of a pipeline wait and keep, by schedule.

use super::tables;
use crate::document::{Entry, Table, Tone};
use crate::grid::{Cell, Grid};
use crate::record::{Bytes, Stage};
use crate::table::TableBuilder;
use crate::units;
use serde_json::Value;

/// The time in which stages wait, and their activations, measured and as planned; nothing without stages.
pub fn table(grid: &Grid) -> Option<Table> {
    let cells: Vec<&Cell> = grid.cells.iter().filter(|cell| !cell.record().stages.is_empty()).collect();
    let number = |cell: &Cell, key: &str| cell.record().setting(key).and_then(Value::as_u64).filter(|of| *of > 0);
    let planned = |cell: &Cell, name: &str| cell.record().estimate.get(name).and_then(Value::as_f64);
    let ms = |ms: f64| format!("{} ms", units::number(ms));
    let mut table = Table::of("pipeline", &cells);
    table.words("cell", |cell| &cell.label);
    table.words("schedule", |cell| cell.schedule());
    table.numbers("stages", "", |cell| cell.record().stages.len());
    table.numbers("chunks", "", |cell| number(cell, "parallel.virtual_stages").unwrap_or(1));
    table.numbers("micro-batches", "", |cell| number(cell, "train.accumulation").unwrap_or(1));
    table.numbers("bubble", "fraction", |cell| Entry::maybe(cell.metric("bubble"), units::percent));
    table.numbers("bubble, plan", "fraction", |cell| Entry::maybe(planned(cell, "bubble"), units::percent));
    table.numbers("first forward to last backward", "ms", |cell| Entry::maybe(cell.metric("pipeline_ms"), ms));
    table.numbers("that time, plan", "ms", |cell| Entry::maybe(planned(cell, "pipeline_ms"), ms));
    activations(&mut table, &cells);
    table.words("record", |cell| grid.short_id(&cell.record().id));
    table.words("repeat", |cell| tables::repeat_command(grid, cell.record())).for_machines = true;
    table
        .build()
        .caption(
            "The bubble is the share of the time from the first forward to the last backward in which ranks do not compute. \
             Activations: the peak of each stage's largest rank, from the first stage to the last; the plan stands beside \
             where it differs, and alone where nothing ran.",
        )
        .non_empty()
}

fn activations(table: &mut TableBuilder<&Cell>, cells: &[&Cell]) {
    table.words("peak activations by stage", |cell| by_stage(cell));
    let most = cells.iter().map(|cell| cell.record().stages.len()).max().unwrap_or(0);
    for stage in 0..most {
        let of = move |cell: &Cell, bytes: fn(&Bytes) -> Option<u64>| {
            cell.record().stages.get(stage).and_then(|stage| bytes(&stage.activations))
        };
        let title = format!("activations, stage {stage}");
        table.memory(&title, |cell| of(cell, |bytes| bytes.peak_bytes)).for_machines = true;
        table.memory(format!("{title}, plan"), |cell| of(cell, |bytes| bytes.predicted_bytes)).for_machines = true;
    }
}

/// `4.10 MiB, 3.20 MiB`.
fn by_stage(cell: &Cell) -> Entry {
    let all = |bytes: fn(&Bytes) -> Option<u64>| -> Option<Vec<u64>> {
        cell.record().stages.iter().map(|stage: &Stage| bytes(&stage.activations)).collect()
    };
    let words = |list: &[u64]| list.iter().map(|bytes| units::memory(*bytes as f64)).collect::<Vec<_>>().join(", ");
    match (all(|bytes| bytes.predicted_bytes), all(|bytes| bytes.peak_bytes)) {
        (Some(planned), Some(measured)) if planned != measured => {
            Entry::words(format!("{} (plan {})", words(&measured), words(&planned))).toned(Tone::Warning)
        }
        (_, Some(measured)) => Entry::words(words(&measured)),
        (Some(planned), None) => Entry::words(format!("plan {}", words(&planned))),
        (None, None) => Entry::nothing(),
    }
}

//! Transfers of the drive on which state lives, beside what the drive gives: the table of cells that offload to a disk.

use crate::document::{Entry, Table};
use crate::grid::{Cell, Grid};
use crate::units;
use serde_json::Value;

/// One row for each measured cell with a drive.
pub fn table(grid: &Grid) -> Option<Table> {
    let of = |cell| Some(Row { cell, drive: cell.record().extra.get("offload")?.get("drive")? });
    let rows: Vec<Row> = grid.measured().filter_map(of).collect();
    let mut table = Table::of("drive", &rows);
    for (title, key) in [("read", "read_bytes"), ("written", "written_bytes")] {
        table.numbers(title, "bytes", move |row| Entry::maybe(row.number(key), units::traffic));
    }
    let busy = |row: &Row| row.number("busy_ms").map(|ms| ms / 1e3);
    table.numbers("busy", "s", |row| Entry::maybe(busy(row), units::duration));
    let waited = |row: &Row| row.cell.record().time.number("offload").map(|ms| ms / 1e3);
    table.numbers("waited", "s", |row| Entry::maybe(waited(row), units::duration));
    table.numbers("GB/s", "GB/s", |row| Entry::maybe(row.number("gb_s"), units::number));
    table.numbers("ceiling", "GB/s", |row| Entry::maybe(row.number("ceiling_gb_s"), units::number));
    table.numbers("share", "", |row| Entry::maybe(row.number("share"), units::percent));
    table.words("ceiling from", |row| row.words("ceiling_from").or_else(|| row.words("no_ceiling")).unwrap_or("-"));
    table.words("cell", |row| &row.cell.label);
    table
        .build()
        .caption(
            "Per step: bytes of the rank whose drive was busy longest, the time in which a transfer of it was under way, and the time \
             that the rank waited for moves (the span offload). GB/s are those of all ranks of its host together while the drive was \
             busy; the ceiling is what the drive gives for the same mix of reads and writes, and the share is the one over the other: \
             small where ranks ask for less than the drive gives.",
        )
        .non_empty()
}

struct Row<'r> {
    cell: &'r Cell<'r>,
    drive: &'r Value,
}

impl<'r> Row<'r> {
    fn number(&self, key: &str) -> Option<f64> {
        self.drive.get(key).and_then(Value::as_f64)
    }

    fn words(&self, key: &str) -> Option<&'r str> {
        self.drive.get(key).and_then(Value::as_str)
    }
}

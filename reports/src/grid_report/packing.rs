//! What packing documents gains over padding them: the table of a grid over sequences of documents.

use serde_json::Value;

use crate::document::{Column, Entry, Table};
use crate::grid::{Cell, Grid};
use crate::units;

/// One row for each measured cell whose sequences are of documents.
pub fn table(grid: &Grid) -> Option<Table> {
    let cells: Vec<&Cell> = grid.measured().filter(|cell| cell.metric("padding_share").is_some()).collect();
    if cells.is_empty() {
        return None;
    }
    let columns = vec![
        Column::words("packing"),
        Column::numbers("tokens of documents", "tokens/s"),
        Column::numbers("tokens with a loss", "tokens/s"),
        Column::numbers("places", "places/s"),
        Column::numbers("padding", "fraction"),
        Column::numbers("sequences", ""),
        Column::numbers("against padded", "times"),
        Column::words("cell"),
    ];
    let mut table = Table::new("packing", columns).caption(
        "A place is a token of a sequence, padding or not. Speed is counted in tokens of documents (tokens_per_second) and in \
         tokens that have a loss; against padded: tokens with a loss per second over those of the cell that pads and is alike \
         otherwise.",
    );
    for cell in &cells {
        let targets = |cell: &Cell| cell.metric("target_tokens_per_second");
        let padded = cells.iter().find(|other| packing(other) == "padded" && is_alike(cell, other));
        let gain = padded.and_then(|padded| Some(targets(cell)? / targets(padded)?)).filter(|gain| gain.is_finite());
        let sequences = cell.record().extra.get("documents").and_then(|found| found.get("sequences"));
        table.row(vec![
            Entry::words(packing(cell)),
            Entry::maybe(cell.metric("tokens_per_second"), units::quantity),
            Entry::maybe(targets(cell), units::quantity),
            Entry::maybe(cell.metric("places_per_second"), units::quantity),
            Entry::maybe(cell.metric("padding_share"), units::percent),
            Entry::maybe(sequences.and_then(Value::as_f64), units::quantity),
            Entry::maybe(gain, |gain| format!("{gain:.2}")),
            Entry::words(&cell.label),
        ]);
    }
    Some(table)
}

fn packing<'r>(cell: &Cell<'r>) -> &'r str {
    cell.record().setting("data.packing").and_then(Value::as_str).unwrap_or_default()
}

/// Whether two cells differ in packing alone.
fn is_alike(a: &Cell, b: &Cell) -> bool {
    let rest = |cell: &Cell| {
        let mut settings = cell.record().cell.clone();
        if let Some(Value::Object(data)) = settings.get_mut("data") {
            data.remove("packing");
        }
        settings
    };
    rest(a) == rest(b)
}

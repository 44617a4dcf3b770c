//! The gain of packing documents over padding them: the table of a grid over sequences of documents.

use serde_json::Value;

use crate::document::{Entry, Table};
use crate::grid::{Cell, Grid};
use crate::units;

/// One row for each measured cell whose sequences are made of documents.
pub fn table(grid: &Grid) -> Option<Table> {
    let cells: Vec<&Cell> = grid.measured().filter(|cell| cell.metric("padding_share").is_some()).collect();
    let metric = |cell: &Cell, name: &str| Entry::maybe(cell.metric(name), units::quantity);
    let targets = |cell: &Cell| cell.metric("target_tokens_per_second");
    let gain = |cell: &Cell| {
        let padded = cells.iter().find(|other| packing(other) == "padded" && is_alike(cell, other))?;
        Some(targets(cell)? / targets(padded)?)
    };
    let sequences = |cell: &Cell| cell.record().extra.get("documents")?.get("sequences")?.as_f64();
    let mut table = Table::of("packing", &cells);
    table.words("packing", |cell| packing(cell));
    table.numbers("tokens of documents", "tokens/s", |cell| metric(cell, "tokens_per_second"));
    table.numbers("tokens with a loss", "tokens/s", |cell| metric(cell, "target_tokens_per_second"));
    table.numbers("places", "places/s", |cell| metric(cell, "places_per_second"));
    table.numbers("padding", "fraction", |cell| Entry::maybe(cell.metric("padding_share"), units::percent));
    table.numbers("sequences", "", |cell| Entry::maybe(sequences(cell), units::quantity));
    table.numbers("against padded", "times", |cell| Entry::maybe(gain(cell), |gain| format!("{gain:.2}")));
    table.words("cell", |cell| &cell.label);
    table
        .build()
        .caption(
            "A place is a token of a sequence, padding or not. Speed is counted in tokens of documents (tokens_per_second) and in \
             tokens that have a loss; against padded: tokens with a loss per second over those of the cell that pads and is alike \
             otherwise.",
        )
        .non_empty()
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

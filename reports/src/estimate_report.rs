//! Estimates of cells that have not run: what `grid --dry-run` and `plan` print.

mod explain;
mod figures;
mod published;
mod screen;
mod search;
mod step;

pub use explain::{Sum, Term, explain};
pub use published::{Family, FitsOrNot, PublishedRow, Unexpressed, Validation, validation};
pub use search::{Candidate, Searched, searched};
pub(crate) use step::answer as fastest;
pub use step::what_if;

pub use crate::estimate::{EstimateRow, EstimateTraffic};

use crate::document::{Block, Column, Document, Entry, Table, Tone};
use crate::grid::labels::{first_letters, telling_length};
use crate::max_batch_report;
use crate::screen::Room;
use crate::units;

/// The estimates of a grid: a screen for this room, which ends with `next` (words in capitals and what to do then); behind it whether
/// each cell fits and why, its time, memory by category and traffic. What a search of the grid found stands above its cells.
pub fn estimates(rows: &[EstimateRow], room: Room, next: &[(&str, String)]) -> Document {
    let mut document = Document::new("Estimates");
    if rows.is_empty() {
        document.paragraph("There are no cells to estimate.");
        return document;
    }
    max_batch_report::of_estimates(&mut document, rows);
    if rows.iter().any(|row| row.search.is_some()) {
        document.paragraph(summary(rows));
        document.blocks.extend(step::answer(rows).map(Block::Paragraph));
    } else {
        document.screen = Some(screen::screen(rows, room, next));
        document.heading("Every cell");
    }
    document.table(cells(rows));
    step::speed(&mut document, rows);
    let mut reasons: Vec<String> = rows
        .iter()
        .filter(|row| !row.reason.is_empty() || !row.advice.is_empty())
        .map(|row| {
            let parts: Vec<&str> = [row.reason.trim_end_matches('.'), row.advice.as_str()]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect();
            format!("{} ({}): {}", row.marked_label(), row.status, parts.join(". Cheapest change: "))
        })
        .collect();
    if !reasons.is_empty() {
        document.heading("Reasons and advice");
        let more = reasons.len().saturating_sub(MOST_REASONS);
        reasons.truncate(MOST_REASONS);
        if more > 0 {
            reasons.push(format!("and of {more} more, in --format csv and json"));
        }
        document.list(reasons);
    }
    if let Some(table) = memory(rows) {
        document.heading("Predicted memory by category");
        document.table(table);
    }
    step::traffic(&mut document, rows);
    document
}

/// Where bands come from, as a sentence behind a caption; nothing where there is no band. Cells whose memory is known to the byte
/// name one band less than others: the longest text has all.
pub(crate) fn of_bands<'r>(rows: impl Iterator<Item = &'r EstimateRow>) -> String {
    match rows.map(|row| row.band_source.as_str()).max_by_key(|source| source.len()) {
        None | Some("") => String::new(),
        Some(source) => format!(" {source}."),
    }
}

/// The column of a band; for machines alone where no row has one.
pub(crate) fn band_column(title: &str, has_bands: bool) -> Column {
    let column = Column::words(title);
    if has_bands { column } else { column.for_machines() }
}

/// So many cells' reasons are written out.
const MOST_REASONS: usize = 12;

fn summary(rows: &[EstimateRow]) -> String {
    let count = |fits: Option<bool>| rows.iter().filter(|row| row.fits == fits).count();
    let (fit, not, unknown) = (count(Some(true)), count(Some(false)), count(None));
    let mut parts = Vec::new();
    if fit > 0 {
        parts.push(format!("{fit} {}", if fit == 1 { "fits" } else { "fit" }));
    }
    if not > 0 {
        parts.push(format!("{not} {} not fit", if not == 1 { "does" } else { "do" }));
    }
    if unknown > 0 {
        let of_unknown = || rows.iter().filter(|row| row.fits.is_none());
        let states_none = of_unknown().all(|row| row.capacity_bytes.is_none());
        let predicts_none = of_unknown().all(|row| row.total_bytes.is_none());
        let why = match (predicts_none, states_none) {
            (true, _) => "no memory is predicted",
            (false, true) => "no memory capacity is stated",
            (false, false) => "no memory capacity is stated or no memory is predicted",
        };
        parts.push(format!("{unknown} cannot be judged because {why}"));
    }
    let mut text =
        format!("Of {}, {}. Nothing was run.", units::plural(rows.len(), "cell", "cells"), units::list(&parts));
    let proxies = rows.iter().filter(|row| row.proxy).count();
    if proxies > 0 {
        text += &format!(
            " PROXY: {} marked [proxy]; sizes are not the target's.",
            units::plural(proxies, "scaled-down stand-in is", "scaled-down stand-ins are")
        );
    }
    text
}

fn cells(rows: &[EstimateRow]) -> Table {
    let columns = vec![
        Column::words("cell"),
        Column::words("status"),
        Column::numbers("predicted peak", "bytes"),
        band_column("80 % band", rows.iter().any(|row| row.total_bytes_band.is_some())),
        Column::numbers("capacity", "bytes"),
        Column::words("fits"),
        Column::numbers("wire per step", "bytes"),
        Column::numbers("model FLOPs per step", "FLOP"),
        Column::words("key"),
        Column::words("reason").for_machines(),
        Column::words("cheapest change").for_machines(),
    ];
    let mut table = Table::new("estimates", columns).caption(format!(
        "Per rank, of the largest; model FLOPs of all ranks together, exact matrix products with the causal half of attention.{}",
        of_bands(rows.iter())
    ));
    let length = telling_length(rows.iter().map(|row| row.key.as_str()));
    for row in rows {
        let tone = if row.fits == Some(false) { Tone::Warning } else { Tone::Plain };
        let fits = match (row.fits, row.total_bytes, row.capacity_bytes) {
            (Some(false), Some(total), Some(capacity)) if total > capacity => {
                format!("no, {} too much", units::memory((total - capacity) as f64))
            }
            (Some(false), _, _) if row.host_excess() > 0 => {
                format!("no, {} of host memory too much", units::memory(row.host_excess() as f64))
            }
            (Some(true), Some(total), Some(capacity)) if total <= capacity => {
                format!("yes, {} to spare", units::memory((capacity - total) as f64))
            }
            (Some(fits), _, _) => if fits { "yes" } else { "no" }.to_string(),
            (None, _, _) => "not known".to_string(),
        };
        table.row(vec![
            Entry::words(row.marked_label()),
            Entry::words(&row.status),
            Entry::memory(row.total_bytes),
            Entry::words(row.memory_band().unwrap_or_default()),
            Entry::memory(row.capacity_bytes),
            Entry::words(fits).toned(tone),
            Entry::maybe(row.wire_bytes, units::traffic),
            Entry::maybe(row.model_flops, units::flops),
            Entry { text: first_letters(&row.key, length).to_string(), ..Entry::words(&row.key) },
            Entry::words(&row.reason),
            Entry::words(&row.advice),
        ]);
    }
    table
}

fn memory(rows: &[EstimateRow]) -> Option<Table> {
    let mut categories: Vec<&str> = Vec::new();
    for name in rows.iter().flat_map(|row| row.memory.names()) {
        if !categories.contains(&name) {
            categories.push(name);
        }
    }
    if categories.is_empty() {
        return None;
    }
    let mut columns = vec![Column::words("cell")];
    columns.extend(categories.iter().map(|name| Column::numbers(*name, "bytes")));
    columns.push(Column::numbers("all together", "bytes"));
    let (staged, hosted, stored) = (
        rows.iter().any(|row| row.peak_stage.is_some()),
        rows.iter().any(|row| row.host_bytes.is_some()),
        rows.iter().any(|row| row.disk_bytes.is_some()),
    );
    columns.extend(staged.then(|| Column::words("stage")));
    columns.extend(hosted.then(|| Column::numbers("host, per node", "bytes")));
    columns.extend(stored.then(|| Column::numbers("disk, per node", "bytes")));
    let mut table = Table::new("predicted memory", columns)
        .caption("Of the largest rank at the moment of its peak; of a pipeline that of the stage which takes most.")
        .detail();
    for row in rows.iter().filter(|row| !row.memory.is_empty()) {
        let mut entries = vec![Entry::words(row.marked_label())];
        let bytes = if row.at_peak.is_empty() { &row.memory } else { &row.at_peak };
        entries.extend(categories.iter().map(|name| Entry::memory(bytes.get(name).copied())));
        entries.push(Entry::memory(row.total_bytes));
        let stage = || row.peak_stage.map(|[stage, of]| Entry::words(format!("{} of {of}", stage + 1)));
        entries.extend(staged.then(|| stage().unwrap_or_else(Entry::nothing)));
        entries.extend(hosted.then(|| Entry::memory(row.host_bytes)));
        entries.extend(stored.then(|| Entry::memory(row.disk_bytes)));
        table.row(entries);
    }
    Some(table)
}

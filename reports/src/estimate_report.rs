//! Estimates of cells that have not run, as `grid --dry-run` and `plan` print them.

mod advice;
mod collectives;
mod explain;
mod figures;
mod published;
mod screen;
mod search;
mod step;

pub use advice::{Advice, Asked, Cost};
pub use collectives::{CollectiveRow, collectives};
pub use explain::{Sum, Term, explain};
pub use published::{BandScore, Family, FitsOrNot, KindScore, PublishedRow, Unexpressed, Validation, validation};
pub use search::{Alternative, Candidate, Searched, name, searched};
pub(crate) use step::answer as fastest;
pub use step::what_if;

pub use crate::estimate::{EstimateRow, EstimateTraffic, Subject};

use crate::document::{Document, Entry, Table, Tone};
use crate::gather::distinct;
use crate::grid::labels::{first_letters, telling_length};
use crate::max_batch_report;
use crate::screen::Room;
use crate::units;

/// The estimates of a grid: a screen for this room, then whether each cell fits and why, its time, memory by category and traffic.
/// The screen ends with `next`: labels and what to do next. The results of a search come before the cells.
pub fn estimates(rows: &[EstimateRow], room: Room, next: &[(&str, String)]) -> Document {
    let mut document = Document::new("Estimates");
    if rows.is_empty() {
        document.paragraph("There are no cells to estimate.");
        return document;
    }
    max_batch_report::of_estimates(&mut document, rows);
    if rows.iter().any(|row| row.search.is_some()) {
        document.paragraphs(subject(rows));
        document.paragraph(summary(rows));
        document.paragraphs(step::answer(rows));
    } else {
        document.screen = Some(screen::screen(rows, room, next));
        document.heading("Every cell");
    }
    document.table(cells(rows));
    step::add_speed(&mut document, rows);
    document.headed_list("Reasons and advice", reasons(rows));
    document.headed_table("Predicted memory by category", memory(rows));
    if rows.iter().any(|row| !row.memory_figures.is_empty()) {
        document.headed_table("Predicted memory as programs report it", figures_of_memory(rows));
    }
    document.headed_table("Predicted traffic", step::traffic(rows));
    document
}

/// What programs print of a device's memory, of the stage that takes most.
fn figures_of_memory(rows: &[EstimateRow]) -> Table {
    let rows: Vec<&EstimateRow> = rows.iter().filter(|row| !row.memory_figures.is_empty()).collect();
    let mut table = Table::of("memory figures", &rows);
    table.words("cell", |row| row.marked_label());
    for (name, words) in [
        ("allocated", "allocated, peak"),
        ("reserved", "reserved, peak"),
        ("device", "device, peak"),
        ("after_step", "allocated between steps"),
        ("load", "while weights are read"),
        ("load_host", "of a node's host meanwhile"),
    ] {
        table.memory(words, |row| row.memory_figures.get(name).map(|bytes| bytes.max(0.0).round() as u64));
    }
    let caption = "As torch.cuda.max_memory_allocated, max_memory_reserved and nvidia-smi print it; what has to fit is the peak of the \
                   first table.";
    table.build().caption(caption).detail()
}

fn reasons(rows: &[EstimateRow]) -> Vec<String> {
    let reason = |row: &EstimateRow| {
        let mut parts = vec![row.reason.trim_end_matches('.'), row.advice.as_str()];
        parts.retain(|part| !part.is_empty());
        let text = format!("{} ({}): {}", row.marked_label(), row.status, parts.join(". Cheapest change: "));
        (!parts.is_empty()).then_some(text)
    };
    let mut reasons: Vec<String> = rows.iter().filter_map(reason).collect();
    let more = reasons.len().saturating_sub(MOST_REASONS);
    reasons.truncate(MOST_REASONS);
    if more > 0 {
        reasons.push(format!("and of {more} more, in --format csv and json"));
    }
    reasons
}

/// Where bands come from and which cells they were not compared with, as the last sentences of a caption; empty without bands. Cells
/// whose memory is known to the byte name one band less than others, so the longest source has all.
pub(crate) fn of_bands<'r>(rows: impl Iterator<Item = &'r EstimateRow> + Clone) -> String {
    let source = rows.clone().map(|row| row.band_source.as_str()).max_by_key(|source| source.len());
    let source = source.filter(|words| !words.is_empty()).map(|words| format!(" {words}."));
    let assumed = screen::in_cells(rows.clone().flat_map(|row| &row.assumed).map(String::as_str));
    let unlike = screen::in_cells(rows.map(|row| row.not_compared.as_str()));
    let unlike = unlike.iter().map(|words| format!(" Not compared: {words}."));
    source.into_iter().chain(unlike).chain(assumed.iter().map(|words| format!(" Assumed: {words}."))).collect()
}

/// Cells whose reasons are listed at most.
const MOST_REASONS: usize = 12;

/// First sentence of a plan: names of the rows, and how many of them no published result is like.
fn subject(rows: &[EstimateRow]) -> Option<String> {
    let unlike = rows.iter().filter(|row| !row.not_compared.is_empty()).count();
    Subject::words(rows.iter().filter_map(|row| row.subject.as_ref()), unlike, rows.len())
}

fn summary(rows: &[EstimateRow]) -> String {
    let count = |fits: Option<bool>| rows.iter().filter(|row| row.fits == fits).count();
    let uncertain = rows.iter().filter(|row| row.uncertain).count();
    let (fit, not, unknown) = (count(Some(true)) - uncertain, count(Some(false)), count(None));
    let mut parts = Vec::new();
    if fit > 0 {
        parts.push(format!("{fit} {}", if fit == 1 { "fits" } else { "fit" }));
    }
    if uncertain > 0 {
        let be = if uncertain == 1 { "is" } else { "are" };
        parts.push(format!("{uncertain} {be} uncertain (the band of the peak passes the capacity)"));
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
    let length = telling_length(rows.iter().map(|row| row.key.as_str()));
    let fits = |row: &EstimateRow| match (row.fits, row.total_bytes, row.capacity_bytes) {
        (Some(false), Some(total), Some(capacity)) if total > capacity => {
            format!("no, {} too much", units::memory((total - capacity) as f64))
        }
        (Some(false), _, _) if row.host_excess() > 0 => {
            format!("no, {} of host memory too much", units::memory(row.host_excess() as f64))
        }
        (Some(true), Some(total), Some(capacity)) if total <= capacity => {
            let word = if row.uncertain { "uncertain" } else { "yes" };
            format!("{word}, {} to spare", units::memory((capacity - total) as f64))
        }
        (Some(fits), _, _) => if fits { "yes" } else { "no" }.to_string(),
        (None, _, _) => "not known".to_string(),
    };
    let is_in_doubt = |row: &EstimateRow| row.fits == Some(false) || row.uncertain;
    let tone = |row: &EstimateRow| if is_in_doubt(row) { Tone::Warning } else { Tone::Plain };
    let has_bands = rows.iter().any(|row| row.total_bytes_band.is_some());
    let mut table = Table::of("estimates", rows);
    table.words("cell", EstimateRow::marked_label);
    table.words("status", |row| &row.status);
    table.memory("predicted peak", |row| row.total_bytes);
    table.words("80 % band", |row| row.memory_band().unwrap_or_default()).for_machines = !has_bands;
    table.memory("capacity", |row| row.capacity_bytes);
    table.words("fits", |row| Entry::words(fits(row)).toned(tone(row)));
    table.numbers("wire per step", "bytes", |row| Entry::maybe(row.wire_bytes, units::traffic));
    table.numbers("model FLOPs per step", "FLOP", |row| Entry::maybe(row.model_flops, units::flops));
    table.words("key", |row| Entry::shortened(&row.key, first_letters(&row.key, length)));
    table.words("reason", |row| &row.reason).for_machines = true;
    table.words("cheapest change", |row| &row.advice).for_machines = true;
    table.build().caption(format!(
        "Per rank, of the largest; model FLOPs of all ranks together, exact matrix products with the causal half of attention.{}",
        of_bands(rows.iter())
    ))
}

fn memory(rows: &[EstimateRow]) -> Table {
    let rows: Vec<&EstimateRow> = rows.iter().filter(|row| !row.memory.is_empty()).collect();
    let mut table = Table::of("predicted memory", &rows);
    table.words("cell", |row| row.marked_label());
    for name in distinct(rows.iter().flat_map(|row| row.memory.names())) {
        table.memory(name, |row| row.categories().get(name).copied());
    }
    table.memory("all together", |row| row.total_bytes);
    if rows.iter().any(|row| row.peak_stage.is_some()) {
        table.words("stage", |row| row.peak_stage.map(|[stage, of]| format!("{stage} of {of}")));
    }
    if rows.iter().any(|row| row.host_bytes.is_some()) {
        table.memory("host, per node", |row| row.host_bytes);
    }
    if rows.iter().any(|row| row.disk_bytes.is_some()) {
        table.memory("disk, per node", |row| row.disk_bytes);
    }
    table
        .build()
        .caption("Of the largest rank at the moment of its peak; of a pipeline that of the stage which takes most.")
        .detail()
}

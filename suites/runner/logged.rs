//! What the runner tells the log: the grid, its trials and how they ended.

use crate::{Header, SuiteCell, Summary};
use tracing::info;
use tracing::span::EnteredSpan;
use zbench_reports::record::Record;

/// A grid begins, or a run of one cell.
pub(crate) fn grid_begins(header: &Header, cells: usize, how: &str) {
    info!(target: "zbench::runner", name = header.name, cells, measured_by = how, "grid begins");
}

/// It has ended.
pub(crate) fn grid_ends(summary: &Summary) {
    let Summary { appended, left_out, interrupted, .. } = summary;
    info!(target: "zbench::runner", appended, left_out, interrupted, "grid ends");
}

/// The span of a trial: every event until it is dropped carries the cell's label, its key and the trial's number.
pub(crate) fn trial<C: SuiteCell>(cell: &C, trial: u32) -> EnteredSpan {
    let (label, key) = (cell.label(), cell.key());
    tracing::info_span!(target: "zbench::span", "trial", label, cell = key, trial).entered()
}

/// The trial begins that the span is of.
pub(crate) fn trial_begins() {
    info!(target: "zbench::runner", "trial begins");
}

/// It has ended, and its record is on disk.
pub(crate) fn trial_ends(record: &Record) {
    let (id, status, reason) = (&record.id, record.outcome.status.words(), record.outcome.reason.as_str());
    match reason {
        "" => info!(target: "zbench::runner", id, outcome = status, "trial ends"),
        _ => info!(target: "zbench::runner", id, outcome = status, reason, "trial ends"),
    }
}

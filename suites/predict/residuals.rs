//! What a notebook's own records say about predictions: the residuals, and a table `[corrections]` that a profile gets
//! when somebody asks for it (`zbench calibrate --from-notebook`), never by itself.

use crate::time::TimeProfile;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use zbench_config::grid::of_plain;
use zbench_config::profile::corrections::{Corrections, Residual};
use zbench_engine::planner::Planner;
use zbench_host::machine;
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::estimate_report::EstimateRow;
use zbench_reports::record::{Category, Record};
use zbench_reports::{Index, IndexEntry, Notebook, stats};

/// A span that takes less than this share of its step says nothing about the span: a late wake-up is more.
const LEAST_SHARE: f64 = 0.02;
/// A span is corrected by as many records as this, or not.
pub const FEWEST: usize = 3;

/// Why a record is left out whose time is not the machine's.
const EMULATED: &str = "times over emulated links, and of an emulated pace, are not this machine's";

/// All of a notebook's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residuals {
    /// Of whole steps.
    pub step: Option<Residual>,
    /// How far each of them was off, whichever way: 0.1 = a tenth.
    pub step_errors: Vec<f64>,
    /// Of the time by span.
    pub spans: Vec<Residual>,
    /// Of the peak of memory by category.
    pub memory: Vec<Residual>,
    /// Records that could be predicted.
    pub records: usize,
    /// Records that could not, and why, each reason once.
    pub left_out: Vec<String>,
}

impl Residuals {
    /// Of records that were measured on this host, against what a profile says of their cells. Other hosts' are passed
    /// over.
    pub fn of<R: Borrow<Record>>(records: impl IntoIterator<Item = R>, host: &str, profile: &TimeProfile) -> Residuals {
        let mut ratios: BTreeMap<(u8, String), Vec<f64>> = BTreeMap::new();
        let (mut residuals, planner) = (Residuals::default(), Planner::default());
        for record in records {
            let record = record.borrow();
            if !record.is_measured() || host_of(record) != Some(host) {
                continue;
            }
            for category in Category::ALL {
                let bytes = record.memory.get(category);
                let pair = bytes.and_then(|bytes| Some((bytes.peak_bytes? as f64, bytes.predicted_bytes? as f64)));
                if let Some((measured, predicted)) = pair.filter(|(_, predicted)| *predicted > 0.0) {
                    ratios.entry((2, category.name().into())).or_default().push(measured / predicted);
                }
            }
            let Some(measured) = record.metrics.number("step_ms_p50") else { continue };
            let Ok(cell) = of_plain(&record.cell) else { continue };
            let is_emulated = cell.link.is_some() || cell.pace.is_some();
            let time = if is_emulated { Err(EMULATED.into()) } else { profile.time(&planner, &cell) };
            let time = match time {
                Ok(time) => time,
                Err(reason) => {
                    if !residuals.left_out.contains(&reason) {
                        residuals.left_out.push(reason);
                    }
                    continue;
                }
            };
            residuals.records += 1;
            ratios.entry((0, "step".into())).or_default().push(measured / time.step_ms);
            residuals.step_errors.push((measured / time.step_ms - 1.0).abs());
            for (name, predicted) in time.spans.iter().filter(|(_, ms)| **ms > LEAST_SHARE * time.step_ms) {
                let found = record.time.number(name);
                // Where ranks take turns on cores, the system decides under which span a turn is waited for: what is known
                // is the whole.
                let ratio =
                    if profile.is_crowded(&cell) { measured / time.step_ms } else { found.unwrap_or(0.0) / predicted };
                if found.is_some() {
                    ratios.entry((1, name.into())).or_default().push(ratio);
                }
            }
        }
        for ((kind, name), ratios) in ratios {
            let at = |percent| stats::percentile(&ratios, percent).unwrap_or(1.0);
            let residual = Residual { name, factor: at(50.0), low: at(25.0), high: at(75.0), records: ratios.len() };
            match kind {
                0 => residuals.step = Some(residual),
                1 => residuals.spans.push(residual),
                _ => residuals.memory.push(residual),
            }
        }
        residuals
    }

    /// Three of four steps were not farther off than this; nothing of fewer than [`FEWEST`].
    pub fn step_error(&self) -> Option<f64> {
        let enough = self.step_errors.len() >= FEWEST;
        stats::percentile(&self.step_errors, 75.0).filter(|_| enough)
    }

    /// Corrections of the spans that enough records have; `made` is when.
    pub fn corrections(&self, made: &str) -> Corrections {
        let enough = self.spans.iter().filter(|span| span.records >= FEWEST && span.factor > 0.0);
        Corrections { made: made.into(), spans: enough.cloned().collect() }
    }

    /// For a reader.
    pub fn document(&self) -> Document {
        let mut document = Document::new("Measured over predicted");
        document.paragraph(format!(
            "Of {} of this machine's records, uncorrected predictions from its profile: 1 is right, above it more was \
             measured. The quarters are those of the records.",
            self.records
        ));
        let columns = ["what", "records", "median", "lower quarter", "upper quarter"];
        let columns = columns.iter().enumerate().map(|(index, title)| match index {
            0 => Column::words(*title),
            _ => Column::numbers(*title, ""),
        });
        let mut table = Table::new("residuals", columns.collect());
        let named = |what: &str, of: &Residual| (format!("{what} {}", of.name), of.clone());
        let all = self.step.iter().map(|of| named("time of a", of));
        let all = all.chain(self.spans.iter().map(|of| named("time:", of)));
        for (name, of) in all.chain(self.memory.iter().map(|of| named("memory:", of))) {
            let number = |value: f64| Entry::number(value, format!("{value:.3}"));
            let records = Entry::whole(of.records as u64, of.records.to_string());
            table.row(vec![Entry::words(name), records, number(of.factor), number(of.low), number(of.high)]);
        }
        document.table(table);
        if !self.left_out.is_empty() {
            document.heading("Records without a prediction");
            document.list(self.left_out.clone());
        }
        document
    }
}

fn host_of(record: &Record) -> Option<&str> {
    record.environment.get("host").and_then(serde_json::Value::as_str)
}

/// The measured records of a host.
pub fn of_host<'i>(index: &'i Index, host: &str) -> impl Iterator<Item = &'i IndexEntry> {
    let is_of = move |record: &&IndexEntry| {
        record.is_measured() && record.stated("host").and_then(serde_json::Value::as_str) == Some(host)
    };
    index.records.iter().filter(is_of)
}

/// This host as records name it.
pub fn this_host() -> String {
    let environment = machine::environment();
    environment.get("host").and_then(serde_json::Value::as_str).unwrap_or_default().to_string()
}

/// Error bars: how far steps that the notebook holds of this machine were from what its profile says of their cells.
/// Nothing where there are too few, or no profile.
pub fn with_errors(rows: &mut [EstimateRow], notebook: &Notebook) {
    let wanted = |row: &EstimateRow| row.step_ms.is_some() && row.step_error.is_none();
    if !rows.iter().any(wanted) {
        return;
    }
    let Ok(profile) = TimeProfile::of_this_machine().map(TimeProfile::without_measuring) else { return };
    // Without a readable notebook there are no error bars.
    let (host, index) = (this_host(), notebook.index().unwrap_or_default());
    let records = notebook.each(of_host(&index, &host)).flatten();
    let error = Residuals::of(records, &host, &profile).step_error();
    rows.iter_mut().filter(|row| wanted(row)).for_each(|row| row.step_error = error);
}

#[cfg(test)]
mod tests;

//! What a notebook's own records say about predictions: the residuals, and a table `[corrections]` that a profile gets
//! when somebody asks for it (`zbench calibrate --from-notebook`), never by itself.

use crate::allreduce::profile::{ProfileError, merge};
use crate::config::kind::number;
use crate::runner::machine;
use crate::runner::time::TimeProfile;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::path::Path;
use toml::Value;
use zbench_engine::config::Cell;
use zbench_engine::outcome::Span;
use zbench_engine::plan::Planner;
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::record::{Category, Record};
use zbench_reports::stats;

/// A span that takes less than this share of its step says nothing about the span: a late wake-up is more.
const LEAST_SHARE: f64 = 0.02;
/// A span is corrected by as many records as this, or not.
pub const FEWEST: usize = 3;

/// Measured over predicted, of one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residual {
    /// What.
    pub name: String,
    /// The median of the records.
    pub factor: f64,
    /// The quarter below and the quarter above.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// How many records.
    pub records: usize,
}

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
    pub fn of(records: &[Record], host: &str, profile: &TimeProfile) -> Residuals {
        let mut ratios: BTreeMap<(u8, String), Vec<f64>> = BTreeMap::new();
        let (mut residuals, planner) = (Residuals::default(), Planner::default());
        for record in records.iter().filter(|record| record.is_measured() && host_of(record) == Some(host)) {
            for category in Category::ALL {
                let bytes = record.memory.get(category);
                let pair = bytes.and_then(|bytes| Some((bytes.peak_bytes? as f64, bytes.predicted_bytes? as f64)));
                if let Some((measured, predicted)) = pair.filter(|(_, predicted)| *predicted > 0.0) {
                    ratios.entry((2, category.name().into())).or_default().push(measured / predicted);
                }
            }
            let Some(measured) = record.metrics.number("step_ms_p50") else { continue };
            let Ok(cell) = serde_json::from_value::<Cell>(record.cell.clone()) else { continue };
            let time = match profile.time(&planner, &cell) {
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
            for (name, predicted) in time.spans.iter().filter(|(_, ms)| *ms > LEAST_SHARE * time.step_ms) {
                let found = record.time.number(name);
                // Where ranks take turns on cores, the system decides under which span a turn is waited for: what is known
                // is the whole.
                let ratio =
                    if profile.is_crowded(&cell) { measured / time.step_ms } else { found.unwrap_or(0.0) / predicted };
                if found.is_some() {
                    ratios.entry((1, (*name).into())).or_default().push(ratio);
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

/// This host as records name it.
pub fn this_host() -> String {
    let environment = machine::environment();
    environment.get("host").and_then(serde_json::Value::as_str).unwrap_or_default().to_string()
}

/// Factors on the spans of predicted times, and what they rest on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections {
    /// When they were made.
    pub made: String,
    /// By span; spans that are not here are left as they are.
    pub spans: Vec<Residual>,
}

impl Corrections {
    /// Of the spans that enough records have.
    pub fn from_residuals(residuals: &Residuals, made: &str) -> Corrections {
        let enough = residuals.spans.iter().filter(|span| span.records >= FEWEST && span.factor > 0.0);
        Corrections { made: made.into(), spans: enough.cloned().collect() }
    }

    /// In the order of [`Span::ALL`], 1 where nothing is corrected.
    pub fn factors(&self) -> [f64; 10] {
        Span::ALL.map(|span| self.spans.iter().find(|of| of.name == span.name()).map_or(1.0, |of| of.factor))
    }
}

impl fmt::Display for Corrections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrected by the notebook's records ({}):", self.made)?;
        for (index, of) in self.spans.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let Residual { name, factor, low, high, records } = of;
            write!(f, "{comma} {name} x{factor:.2} ({low:.2} to {high:.2}, {records} records)")?;
        }
        Ok(())
    }
}

/// Writes corrections into a profile, in the place of earlier ones.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
pub fn save(path: &Path, corrections: &Corrections) -> Result<(), ProfileError> {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text = format!("[corrections]\nmade = {}\nspans = [\n", quoted(&corrections.made));
    for Residual { name, factor, low, high, records } in &corrections.spans {
        let _ = writeln!(
            text,
            "    {{ of = {}, factor = {factor:?}, low = {low:?}, high = {high:?}, records = {records} }},",
            quoted(name)
        );
    }
    text.push_str("]\n");
    merge(path, "measured by zbench calibrate", "corrections", &|heading| heading == "[corrections]", &text)
}

/// The corrections that a profile's `corrections` holds.
///
/// # Errors
/// What is not as [`save`] writes it, in words.
pub fn of_value(value: &Value) -> Result<Corrections, String> {
    let wrong = || "corrections is not as zbench calibrate --from-notebook writes it".to_string();
    let one = |entry: &Value| {
        let of = |key: &str| entry.get(key).and_then(number).filter(|factor| *factor > 0.0);
        let name =
            entry.get("of").and_then(Value::as_str).filter(|name| Span::ALL.iter().any(|s| s.name() == *name))?;
        let records = entry.get("records").and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok())?;
        Some(Residual { name: name.into(), factor: of("factor")?, low: of("low")?, high: of("high")?, records })
    };
    let made = value.get("made").and_then(Value::as_str).ok_or_else(wrong)?;
    let spans = value.get("spans").and_then(Value::as_array).ok_or_else(wrong)?;
    let spans = spans.iter().map(|entry| one(entry).ok_or_else(wrong)).collect::<Result<_, _>>()?;
    Ok(Corrections { made: made.into(), spans })
}

#[cfg(test)]
#[path = "corrections/tests.rs"]
mod tests;

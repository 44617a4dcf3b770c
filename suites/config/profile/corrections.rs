//! Correction factors of predicted times, from a notebook's records: the table `[corrections]` of a machine profile.

use super::{ProfileError, merge};
use crate::kind::number;
use std::fmt;
use std::fmt::Write;
use std::path::Path;
use toml::Value;
use zbench_engine::action::span::Span;
use zbench_engine::observe::outcome::BySpan;

/// Measured time over predicted time of one span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residual {
    /// Name of the span.
    pub name: String,
    /// The median of the records.
    pub factor: f64,
    /// Lower quartile.
    pub low: f64,
    /// Upper quartile.
    pub high: f64,
    /// Number of records.
    pub records: usize,
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
    /// 1 where nothing is corrected.
    pub fn factors(&self) -> BySpan<f64> {
        BySpan::of(|span| self.spans.iter().find(|of| of.name == span.name()).map_or(1.0, |of| of.factor))
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
    merge(path, "zbench calibrate", "cpu", "corrections", &|heading| heading == "[corrections]", &text)
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
mod tests;

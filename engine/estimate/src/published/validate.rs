//! Files of published rows: what each row states beside what is predicted for it.

use super::guess::Guess;
use super::job::Refused;
use super::row::{self, Row, RowError};
use super::score::Outcome;
use super::{collectives, kernels, memory, throughput};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the rows of a file are about; its columns say which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A quantity of memory, its value and unit.
    Memory,
    /// Tokens per second, time of a step, FLOP/s.
    Throughput,
    /// Bandwidth or time of a collective.
    Collectives,
    /// FLOP/s of one kernel.
    Kernels,
}

impl Kind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Throughput => "throughput",
            Kind::Collectives => "collectives",
            Kind::Kernels => "kernels",
        }
    }

    fn of(row: &Row) -> Option<Kind> {
        let has = |column: &str| row.has(column);
        if has("quantity") && has("value") {
            Some(Kind::Memory)
        } else if has("op") && has("size_bytes") {
            Some(Kind::Collectives)
        } else if has("kernel") {
            Some(Kind::Kernels)
        } else if has("tokens_per_s_per_gpu") || has("step_time_s") || has("tflops_per_gpu") {
            Some(Kind::Throughput)
        } else {
            None
        }
    }
}

/// Why a folder cannot be validated.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder or a file in it cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is no CSV.
    #[error("{path}: {source}", path = path.display())]
    Row {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: RowError,
    },
    /// No file of the folder is known.
    #[error(
        "{path} has no CSV file of published results; such files have the columns of tests/published (docs/estimator.md)",
        path = path.display()
    )]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
}

/// Outcomes of all CSV files of a folder, by what they are about.
///
/// # Errors
/// The folder or a file in it cannot be read, or none is known.
pub fn folder(path: &Path) -> Result<Vec<(Kind, Vec<Outcome>)>, FolderError> {
    let read = |path: &Path, source| FolderError::Read { path: path.into(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| read(path, error))? {
        let file = entry.map_err(|error| read(path, error))?.path();
        // A pipe would be waited for.
        if file.is_file() && file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
            files.push(file);
        }
    }
    files.sort();
    let mut found: Vec<(Kind, Vec<Outcome>)> = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).map_err(|error| read(&file, error))?;
        let rows = match row::read(&String::from_utf8_lossy(&bytes)) {
            Ok(rows) => rows,
            // A table of something else.
            Err(RowError::NoId) => continue,
            Err(source) => return Err(FolderError::Row { path: file, source }),
        };
        let Some(kind) = rows.first().and_then(Kind::of) else { continue };
        let outcomes = rows.iter().map(|row| outcome(kind, row));
        match found.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, list)) => list.extend(outcomes),
            None => found.push((kind, outcomes.collect())),
        }
    }
    found.sort_by_key(|(kind, _)| *kind);
    if found.is_empty() { Err(FolderError::Nothing { path: path.into() }) } else { Ok(found) }
}

/// What a row states beside what is predicted for it.
pub fn outcome(kind: Kind, row: &Row) -> Outcome {
    match kind {
        Kind::Memory => memory::predict(row),
        Kind::Throughput => {
            let quantity = ["tokens_per_s_per_gpu", "step_time_s", "tflops_per_gpu"]
                .into_iter()
                .find(|column| !row.text(column).is_empty())
                .unwrap_or("tokens_per_s_per_gpu");
            let mut outcome = of_guess(row, quantity, row.text(quantity), throughput::predict(row));
            if let Some(memory) = memory::beside_throughput(row) {
                outcome.fits = memory.fits;
            }
            outcome
        }
        Kind::Collectives => {
            let quantity =
                ["busbw_gbs", "algbw_gbs", "time_us"].into_iter().find(|column| !row.text(column).is_empty());
            let quantity = quantity.unwrap_or("busbw_gbs");
            of_guess(row, quantity, row.text(quantity), collectives::predict(row))
        }
        Kind::Kernels => of_guess(row, "tflops", row.text("tflops"), kernels::predict(row)),
    }
}

/// Units by quantity, as the columns' names say.
fn unit(quantity: &str) -> &'static str {
    match quantity {
        "tokens_per_s_per_gpu" => "tokens/s",
        "step_time_s" => "s",
        "tflops_per_gpu" | "tflops" => "TFLOP/s",
        "mfu_pct" | "hfu_pct" => "%",
        "busbw_gbs" | "algbw_gbs" | "gbs" => "GB/s",
        "time_us" => "us",
        _ => "",
    }
}

fn of_guess(row: &Row, quantity: &str, value: &str, guess: Result<Guess, Refused>) -> Outcome {
    let quantity = guess.as_ref().map_or(quantity, |guess| guess.quantity);
    let value = if row.text(quantity).is_empty() { value } else { row.text(quantity) };
    let mut outcome = Outcome::of(row, quantity, unit(quantity), value);
    match guess {
        Ok(guess) => {
            // Nothing moves over a link that is not there.
            outcome.predicted = Some(guess.predicted).filter(|value| value.is_finite() && *value > 0.0);
            if outcome.predicted.is_none() {
                outcome.reason = "the machine has no link between its devices, or the prediction is no number".into();
                return outcome;
            }
            let why = not_scored(row, &outcome, guess.one_sided);
            outcome.scored = why.is_none();
            outcome.reason = why.unwrap_or_default();
        }
        Err(refused) => outcome.reason = refused.0,
    }
    outcome
}

fn not_scored(row: &Row, outcome: &Outcome, one_sided: bool) -> Option<String> {
    if row.words("suspect") == "yes" {
        return Some("suspect: the source contradicts itself".into());
    }
    if row.words("provenance") == "memory-unverified" {
        return Some("cited from memory".into());
    }
    if one_sided || !row.text("bound").is_empty() {
        return Some(format!("one-sided: {}", row.text("bound")));
    }
    if outcome.published.is_none_or(|value| value <= 0.0) {
        return Some("states no number".into());
    }
    None
}

/// Rows of a family that are paired each with each; of more, so many are taken evenly.
const PAIRED: usize = 1000;

/// Of all pairs of scored rows of one family and quantity whose published values are more than 5 % apart: those that are
/// predicted the same way round, and all.
pub fn directions_right<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> (usize, usize) {
    let mut groups: BTreeMap<(&str, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.into_iter().filter(|outcome| outcome.scored) {
        groups.entry((&outcome.family, &outcome.quantity)).or_default().push(outcome);
    }
    let (mut right, mut all) = (0, 0);
    for group in groups.into_values() {
        let step = group.len().div_ceil(PAIRED).max(1);
        let rows: Vec<&Outcome> = group.into_iter().step_by(step).collect();
        for (a, b) in rows.iter().enumerate().flat_map(|(i, a)| rows[i + 1..].iter().map(move |b| (a, b))) {
            let (Some(x), Some(y), Some(p), Some(q)) = (a.published, b.published, a.predicted, b.predicted) else {
                continue;
            };
            if x.max(y) / x.min(y) > 1.05 {
                all += 1;
                right += usize::from((x > y) == (p > q));
            }
        }
    }
    (right, all)
}

//! The baseline: trials of a side that is not measured now, and whether they may be compared with what is.

use super::report::GATE_SCHEMA;
use super::trial::{self, Trial};
use crate::environment::{self, Aspect, Difference};
use crate::record::{Record, Status};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A baseline file, as `gate --update` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Version of this file.
    pub gate_baseline: u32,
    /// Where it comes from.
    pub provenance: Provenance,
    /// The cells.
    pub cells: Vec<BaselineCell>,
}

/// Where a baseline comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// When it was written, RFC 3339.
    pub written: String,
    /// The command.
    pub command: String,
    /// Commit of the program, where it knows it.
    pub commit: Option<String>,
    /// blake3 of the program.
    pub program: Option<String>,
    /// The rules' file and its blake3.
    pub rules: String,
    /// Anything else.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Trials of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineCell {
    /// Key of the configuration.
    pub key: String,
    /// The cell, in words.
    #[serde(default)]
    pub label: String,
    /// The resolved configuration.
    #[serde(default)]
    pub cell: Value,
    /// Machine and program.
    #[serde(default)]
    pub environment: Map<String, Value>,
    /// The trials, in their order.
    pub trials: Vec<Trial>,
}

/// Why a baseline cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BaselineError {
    /// It is no baseline file.
    #[error("it is no baseline: {0}; write one with zbench gate RULES --update, or name a notebook")]
    NotOne(String),
    /// Of another version.
    #[error(
        "its schema is {found} and this zbench reads {GATE_SCHEMA}: the schemas differ; write it anew with zbench gate RULES --update"
    )]
    Schema {
        /// The version it states.
        found: u64,
    },
}

impl Baseline {
    /// Reads a baseline file.
    ///
    /// # Errors
    /// It is something else, or of another version.
    pub fn parse(text: &str) -> Result<Self, BaselineError> {
        let value: Value = serde_json::from_str(text).map_err(|error| BaselineError::NotOne(error.to_string()))?;
        let version =
            value.get("gate_baseline").ok_or_else(|| BaselineError::NotOne("it has no gate_baseline".into()))?;
        match version.as_u64() {
            Some(found) if found != u64::from(GATE_SCHEMA) => return Err(BaselineError::Schema { found }),
            Some(_) => {}
            None => return Err(BaselineError::NotOne("gate_baseline is no number".into())),
        }
        serde_json::from_value(value).map_err(|error| BaselineError::NotOne(error.to_string()))
    }

    /// The file's text: a line for each trial, so that a change of it can be read.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut copy = self.clone();
        let mut lines: Vec<Vec<String>> = Vec::new();
        for cell in &mut copy.cells {
            trial::compact(&mut cell.trials);
            let trials = std::mem::take(&mut cell.trials);
            lines.push(trials.iter().map(serde_json::to_string).collect::<Result<_, _>>()?);
        }
        let mut text = serde_json::to_string_pretty(&copy)?;
        for lines in lines {
            let list = format!("\"trials\": [\n        {}\n      ]", lines.join(",\n        "));
            text = text.replacen("\"trials\": []", &list, 1);
        }
        text.push('\n');
        Ok(text)
    }
}

/// The cells of records, in the order in which their first record was written. Skipped trials say nothing and are left out.
pub fn cells_of(records: &[Record]) -> Vec<BaselineCell> {
    let mut cells: IndexMap<&str, BaselineCell> = IndexMap::new();
    for record in records.iter().filter(|record| record.outcome.status != Status::Skipped) {
        let new = || BaselineCell {
            key: record.key.clone(),
            label: record.name.clone(),
            cell: record.cell.clone(),
            environment: record.environment.clone(),
            trials: Vec::new(),
        };
        cells.entry(&record.key).or_insert_with(new).trials.push(Trial::of(record, 0.0));
    }
    cells.into_values().collect()
}

/// The differences between two machines that forbid a comparison, and those that a reader should know of. An entry that only
/// one side states does not forbid a comparison: an older version did not look.
pub fn machines(a: &Map<String, Value>, b: &Map<String, Value>) -> (Vec<String>, Vec<String>) {
    let forbids = |d: &Difference| d.aspect == Aspect::Hardware && d.has_both();
    let lasting = environment::differences(a, b).into_iter().filter(|d| d.aspect != Aspect::State);
    let (forbidding, notable): (Vec<_>, Vec<_>) = lasting.partition(forbids);
    (words(&forbidding), words(&notable))
}

/// In which entries two configurations differ, in words: those that both state, then those that only one does.
pub fn configurations(a: &Value, b: &Value) -> (Vec<String>, Vec<String>) {
    let table = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let (stated, alone): (Vec<_>, Vec<_>) =
        environment::differences(&table(a), &table(b)).into_iter().partition(Difference::has_both);
    (words(&stated), words(&alone))
}

fn words(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(Difference::words).collect()
}

//! Entries of the index: enough of a record to list it, to select it and to decide whether its trial is settled.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::record::{ADDED, REMOVED, Record, Remark, Source, Status, Verdict, excluding};
use crate::{bench, environment};

/// The position of a line in the file of records, and the first 64 bits of its BLAKE3 hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub at: u64,
    pub bytes: u64,
    pub hash: u64,
}

/// A record in short. [`Notebook::record`](super::Notebook::record) reads all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexEntry {
    /// As in the record.
    pub id: String,
    /// As in the record.
    pub key: String,
    /// As in the record.
    pub name: String,
    /// As in the record.
    pub trial: u32,
    /// As in the record.
    pub started: String,
    /// The status of its outcome.
    pub status: Status,
    /// The reason of its outcome; empty when measured.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The source of its outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The resolved configuration; records of equal ones share it.
    #[serde(skip)]
    pub cell: Arc<Value>,
    /// The part of the environment that says where a record counts, as an object; see [`environment::of_place`].
    #[serde(skip)]
    pub environment: Arc<Value>,
    /// The description of a record of kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The label that the grid gave the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The metric of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The metric of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<f64>,
    /// The verdict on its losses.
    pub parity: Verdict,
    /// All validity flags, those that only label included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// The number of its steps.
    pub steps: usize,
    /// The experiment of its turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// True if its turns measured something, as [`Record::taken_turns`] says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_turns: bool,
    /// True for the second set of processes of a reference.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub twin: bool,
    #[serde(skip)]
    pub(super) place: Place,
}

impl IndexEntry {
    /// The entry of any record, in a notebook or not.
    pub fn of(record: &Record) -> IndexEntry {
        let environment = Value::Object(environment::of_place(&record.environment));
        IndexEntry {
            cell: Arc::new(record.cell.clone()),
            environment: Arc::new(environment),
            ..IndexEntry::without_settings(record)
        }
    }

    /// The entry without configuration and environment, which records share.
    pub(super) fn without_settings(record: &Record) -> IndexEntry {
        let turns = record.turns.as_ref();
        IndexEntry {
            id: record.id.clone(),
            key: record.key.clone(),
            name: record.name.clone(),
            trial: record.trial,
            started: record.started.clone(),
            status: record.outcome.status,
            reason: record.outcome.reason.clone(),
            source: record.outcome.source,
            label: bench::label(record),
            written: record.estimate.get("label").and_then(Value::as_str).map(str::to_string),
            tokens_per_second: record.metrics.number("tokens_per_second"),
            peak_memory_bytes: record.metrics.number("peak_memory_bytes"),
            parity: record.parity.verdict,
            flags: record.validity.clone(),
            steps: record.steps.len(),
            experiment: turns.map(|turns| turns.experiment.clone()),
            has_turns: record.taken_turns().is_some(),
            twin: record.is_twin(),
            ..IndexEntry::default()
        }
    }

    /// True if the cell ran to its end.
    pub fn is_measured(&self) -> bool {
        self.status == Status::Measured
    }

    /// Validity flags that keep it out of rankings and comparisons.
    pub fn excluding_flags(&self) -> impl Iterator<Item = &str> {
        excluding(&self.flags, self.has_turns)
    }

    /// The value at a dotted path of the resolved configuration.
    pub fn setting(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&*self.cell, |value, part| value.get(part))
    }

    /// An entry of the part of the environment that is kept.
    pub fn stated(&self, name: &str) -> Option<&Value> {
        self.environment.get(name)
    }

    /// A reason why the record does not count `here`, if there is one; see [`environment::why_not_the_same`].
    pub fn why_not_the_same(&self, here: &Map<String, Value>) -> Option<String> {
        self.environment.as_object().and_then(|then| environment::why_not_the_same(then, here))
    }
}

/// The remark with its tags and without its text. Without a time the text stays, as it is then the identity of the remark.
pub(super) fn short(mut remark: Remark) -> Remark {
    remark.extra.retain(|key, _| [ADDED, REMOVED].contains(&key.as_str()));
    if !remark.when.is_empty() {
        remark.text = String::new();
    }
    remark
}

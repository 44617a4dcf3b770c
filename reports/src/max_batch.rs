//! The largest value of a key that fits, as a search of a grid found it.

use serde::{Deserialize, Serialize};

use crate::named::Named;
use crate::record::Record;

/// Key of a record's search beside its other keys.
pub const KEY: &str = "search";

/// What a search says of one cell: the cell with the largest value that fits, or the one with the next, which is run to
/// show that it does not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The searched key, as `train.micro_batch`.
    pub key: String,
    /// Its value in the limit; `None` where not even the smallest fits.
    pub value: Option<u64>,
    /// How the value was found.
    #[serde(default)]
    pub of: Of,
    /// Whether this cell is the limit or the one next to it.
    #[serde(default)]
    pub role: Role,
    /// The next larger value; `None` where no larger one was to be tried.
    #[serde(default)]
    pub next: Option<Next>,
    /// What a rank may use, bytes; `None` where the memory of the machine is what limits.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// Predicted peak of a rank at the value, or at the smallest where none fits.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Why none fits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The smallest value that was to be tried.
    #[serde(default)]
    pub smallest: u64,
    /// The largest.
    #[serde(default)]
    pub most: u64,
    /// What the values are multiples of.
    #[serde(default)]
    pub multiple: u64,
    /// Hash of everything else that was written for the cell: equal for the cells of one search.
    #[serde(default)]
    pub combination: String,
    /// What tells this search from the others of its grid.
    #[serde(default)]
    pub axes: Named<String>,
    /// Sequences of a step over all ranks, at the value.
    #[serde(default)]
    pub global_batch: Option<u64>,
    /// Whether the configuration states them: a larger micro-batch then means fewer of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed_batch: bool,
}

/// Who found a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The plan: it fits there, and the next does not.
    #[default]
    Plan,
    /// Runs, because one that was planned to fit did not.
    Run,
}

/// Which of the two cells of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The largest that fits.
    #[default]
    Limit,
    /// The next, which is run to show that it does not.
    Next,
}

/// The value after the largest that fits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Next {
    /// It.
    pub value: u64,
    /// What it would take of a rank, predicted.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// What became of it where it was tried: a record's status; `skipped` where it is no configuration.
    #[serde(default)]
    pub outcome: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The keys whose values searches of these records have found, and what follows from them.
pub(crate) fn keys(records: &[&Record]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for search in records.iter().filter_map(|record| Search::of(record)) {
        let follows = search.fixed_batch.then(|| "train.accumulation".to_string());
        for key in std::iter::once(search.key).chain(follows) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

impl Search {
    /// That of a record; `None` where it is of none, or of a later version that says it otherwise.
    pub fn of(record: &Record) -> Option<Search> {
        serde_json::from_value(record.extra.get(KEY)?.clone()).ok()
    }

    /// Puts it into a record.
    pub fn put(&self, record: &mut Record) {
        record.extra.insert(KEY.into(), serde_json::to_value(self).unwrap_or_default());
    }

    /// The key without its section: `micro_batch`.
    pub fn name(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }
}

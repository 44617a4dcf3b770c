//! The largest value of a key that fits, as found by a search of a grid.

use serde::{Deserialize, Serialize};

use crate::gather::distinct;
use crate::label::last_part;
use crate::ordered_map::OrderedMap;
use crate::record::Record;

/// The key of a search in a record.
pub const KEY: &str = "search";

/// What a search found of one cell: the cell with the largest value that fits, or that with the next value, which is run to show
/// that it does not fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The searched key, as `train.micro_batch`.
    pub key: String,
    /// The largest value that fits; `None` where not even the smallest does.
    pub value: Option<u64>,
    /// What found the value.
    #[serde(default)]
    pub of: Of,
    /// Whether this cell has the largest value that fits or the next one.
    #[serde(default)]
    pub role: Role,
    /// The next larger value; `None` where the search has no larger one.
    #[serde(default)]
    pub next: Option<Next>,
    /// Bytes that a rank may use; `None` where the memory of the machine is the limit.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// Predicted peak of a rank at the value, or at the smallest one where none fits.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Why none fits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The smallest value of the search.
    #[serde(default)]
    pub smallest: u64,
    /// The largest value of the search.
    #[serde(default)]
    pub most: u64,
    /// The number of which all values are multiples.
    #[serde(default)]
    pub multiple: u64,
    /// Hash of all other settings of the cell: equal for the cells of one search.
    #[serde(default)]
    pub combination: String,
    /// The settings in which the searches of the grid differ.
    #[serde(default)]
    pub axes: OrderedMap<String>,
    /// Sequences of a step over all ranks, at the value.
    #[serde(default)]
    pub global_batch: Option<u64>,
    /// Whether the configuration states the global batch: a larger micro-batch then means fewer micro-batches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed_batch: bool,
}

/// What found a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The plan, by which the value fits and the next one does not.
    #[default]
    Plan,
    /// Runs, because a value that fits by its plan did not.
    Run,
}

/// Which of the two cells of a search a cell is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// That with the largest value that fits.
    #[default]
    Limit,
    /// That with the next value, which is run to show that it does not fit.
    Next,
}

/// The value after the largest that fits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Next {
    /// The value.
    pub value: u64,
    /// Predicted peak of a rank.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// How it ended if it was tried: a record's status; `skipped` where it is no valid configuration.
    #[serde(default)]
    pub outcome: Option<String>,
    /// The reason for the outcome.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The keys whose values were found by searches of these records, and the keys that depend on them.
pub(crate) fn keys(records: &[&Record]) -> Vec<String> {
    let of_search = |search: Search| {
        let dependent = search.fixed_batch.then(|| "train.accumulation".to_string());
        std::iter::once(search.key).chain(dependent)
    };
    distinct(records.iter().filter_map(|record| Search::of(record)).flat_map(of_search))
}

impl Search {
    /// The search of a record; `None` where it has none that this version can read.
    pub fn of(record: &Record) -> Option<Search> {
        Search::deserialize(record.extra.get(KEY)?).ok()
    }

    /// Writes it into a record.
    pub fn put(&self, record: &mut Record) {
        record.extra.insert(KEY.into(), serde_json::to_value(self).unwrap_or_default());
    }

    /// The key without its section: `micro_batch`.
    pub fn name(&self) -> &str {
        last_part(&self.key)
    }
}

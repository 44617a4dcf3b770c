//! Merges the records of another notebook.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Index, IndexEntry, Notebook, StoreError, line_of};
use crate::record::{Record, Remark};

/// The result of a merge.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Merged {
    /// Records that were added.
    pub added: usize,
    /// Records that this notebook already had.
    pub known: usize,
    /// Ids of records that differ from the record of the same id in this notebook. They were not added.
    pub conflicts: Vec<String>,
    /// Remarks that were added.
    pub remarks_added: usize,
    /// Remarks that this notebook already had.
    pub remarks_known: usize,
}

impl Notebook {
    /// Adds the records and remarks that the notebook does not have, all of them or none. Records are the same if their ids are equal;
    /// remarks are the same if they were made on the same record at the same moment. So a redacted copy is not added beside its
    /// original.
    pub fn merge(&self, records: &[Record], remarks: &[Remark]) -> Result<Merged, StoreError> {
        self.append_lines(|here: &Index| {
            let mut merged = Merged::default();
            let mut lines = Vec::new();
            let by_id: BTreeMap<&str, &IndexEntry> =
                here.records.iter().map(|record| (record.id.as_str(), record)).collect();
            let unreadable: BTreeSet<&str> = here.unreadable.iter().filter_map(|line| line.id.as_deref()).collect();
            for record in records {
                match by_id.get(record.id.as_str()) {
                    Some(known) if measured(&self.record(known)?) == measured(record) => merged.known += 1,
                    Some(_) => merged.conflicts.push(record.id.clone()),
                    None if unreadable.contains(record.id.as_str()) => merged.conflicts.push(record.id.clone()),
                    None => {
                        lines.extend(line_of(&record.id, record)?);
                        merged.added += 1;
                    }
                }
            }
            let mut known: BTreeSet<(&str, &str, &str)> = here.remarks().map(identity).collect();
            for remark in remarks {
                if known.insert(identity(remark)) {
                    lines.extend(line_of(&remark.note_for, remark)?);
                    merged.remarks_added += 1;
                } else {
                    merged.remarks_known += 1;
                }
            }
            Ok((lines, merged))
        })
    }
}

/// The parts of a record that no redaction changes.
fn measured(record: &Record) -> Option<Value> {
    let Record { key, trial, started, metrics, steps, .. } = record;
    serde_json::to_value((key, trial, started, metrics, steps, record.outcome.status)).ok()
}

fn identity(remark: &Remark) -> (&str, &str, &str) {
    let text = if remark.when.is_empty() { remark.text.as_str() } else { "" };
    (&remark.note_for, &remark.when, text)
}

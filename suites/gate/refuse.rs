//! What may not be compared: other hardware, other configurations, other schemas. The difference is always named.

use super::baseline::Stored;
use anyhow::{Result, bail};
use serde_json::{Map, Value};
use zbench_reports::gate::baseline::{BaselineCell, configurations, machines};
use zbench_reports::record::Record;

/// The cell of a side with that key.
///
/// # Errors
/// There is none: the difference is named.
pub fn same_key<'s>(stored: &'s Stored, key: &str, cell: &Value) -> Result<&'s BaselineCell> {
    if let Some(found) = stored.cell(key) {
        return Ok(found);
    }
    let difference = |other: &BaselineCell| {
        let (stated, alone) = configurations(&other.cell, cell);
        [stated, alone].concat()
    };
    let nearest = stored.cells.iter().map(difference).min_by_key(Vec::len).unwrap_or_default();
    let named = if nearest.is_empty() {
        "the files that the configuration names have changed".to_string()
    } else {
        nearest.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ")
    };
    bail!(
        "the configurations differ, so nothing is compared: {} has no cell of key {key}. The nearest differs in {named}. \
         Write the baseline anew (--update), or compare two configurations with --candidate-set",
        stored.words
    )
}

/// Differences named in an error.
const SHOWN: usize = 6;

/// What differs about two machines and does not matter, as a note.
///
/// # Errors
/// It is not the same hardware.
pub fn same_machine(a: &Map<String, Value>, b: &Map<String, Value>) -> Result<Vec<String>> {
    let (forbids, told) = machines(a, b);
    if !forbids.is_empty() {
        bail!(
            "the machines differ, so nothing is compared: {}. Measure a baseline on this machine, or use --against PROGRAM",
            forbids.join("; ")
        );
    }
    Ok(if told.is_empty() {
        Vec::new()
    } else {
        vec![format!("Different about the environment: {}.", told.join("; "))]
    })
}

/// What two programs make of one file. A key that one of them does not know is a note.
///
/// # Errors
/// Different cells, or records of different schemas.
pub fn same_configuration(a: &Record, b: &Record) -> Result<Option<String>> {
    if a.schema != b.schema {
        bail!(
            "the schemas differ, so nothing is compared: the records of the one program have {}, of the other {}",
            a.schema,
            b.schema
        );
    }
    if a.key == b.key {
        return Ok(None);
    }
    let (stated, alone) = configurations(&a.cell, &b.cell);
    if !stated.is_empty() || alone.is_empty() {
        let named = if stated.is_empty() { "their keys".into() } else { stated.join("; ") };
        bail!("the two programs make different cells of the configuration, so nothing is compared: {named}");
    }
    Ok(Some(format!("One of the programs does not state: {}.", alone.join("; "))))
}

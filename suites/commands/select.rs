//! Which records of a notebook a command is about.

use anyhow::Result;
use serde_json::Value;
use zbench_reports::Notebook;
use zbench_reports::record::Record;

/// The records that `what` stands for: ids or their beginnings, and `key=value` filters (terms joined by commas, all of
/// which must hold). Nothing stands for all.
///
/// # Errors
/// An id that no record has, or several have.
pub fn select(notebook: &Notebook, mut records: Vec<Record>, what: &[String]) -> Result<Vec<Record>> {
    let (filters, ids): (Vec<&String>, Vec<&String>) = what.iter().partition(|word| word.contains('='));
    for filter in filters {
        let terms: Vec<(&str, &str)> = filter.split(',').filter_map(|term| term.split_once('=')).collect();
        records.retain(|record| terms.iter().all(|(key, value)| has(record, key.trim(), value.trim())));
    }
    if !ids.is_empty() {
        let found: Vec<Record> = ids.iter().map(|id| notebook.find(id)).collect::<Result<_, _>>()?;
        records.retain(|record| found.iter().any(|wanted| wanted.id == record.id));
    }
    Ok(records)
}

/// Whether a record has a value: of its own, or of its configuration.
fn has(record: &Record, key: &str, wanted: &str) -> bool {
    let own = match key {
        "name" => Some(record.name.clone()),
        "key" => Some(record.key.clone()),
        "status" => Some(record.outcome.status.name().to_string()),
        "trial" => Some(record.trial.to_string()),
        _ => None,
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    own.or_else(|| record.setting(key).map(text)).is_some_and(|value| value == wanted)
}

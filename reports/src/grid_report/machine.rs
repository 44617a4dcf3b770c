//! The machine that records were made on: in a sentence, and in full.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::{Column, Document, Entry, Table};
use crate::environment::{Aspect, aspect, flatten};
use crate::record::Record;
use crate::units;

/// Paths at which a part of the sentence is looked for, and how it is said.
type Part = (&'static [&'static str], fn(&Value) -> Option<String>);

const PARTS: [Part; 8] = [
    (&["cpu.model", "cpu.name", "cpu"], word),
    (&["cores", "cpu.cores"], |value| Some(units::plural(value.as_u64()? as usize, "core", "cores"))),
    (&["memory_bytes", "memory.bytes", "memory.total_bytes"], |value| {
        Some(units::memory(value.as_f64()?) + " of memory")
    }),
    (&["gpu.name", "gpu.model", "gpu", "gpus.0.name"], word),
    (&["os", "os.name"], word),
    (&["kernel", "os.kernel"], |value| Some(format!("kernel {}", word(value)?))),
    (&["host", "hostname"], |value| Some(format!("host {}", word(value)?))),
    (&["zbench", "zbench.version"], |value| Some(format!("zbench {}", word(value)?))),
];

fn word(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_string)
}

/// The machine in a sentence, and in what records differ.
pub fn words(document: &mut Document, records: &[&Record]) {
    let flat = environments(records);
    let Some(first) = flat.iter().find(|environment| !environment.is_empty()) else {
        document.paragraph("The records do not describe their machine.");
        return;
    };
    let value = |path: &&str| first.iter().find(|(other, _)| other == path).map(|(_, value)| value);
    let part = |(paths, say): &Part| paths.iter().filter_map(value).find_map(say);
    let mut parts: Vec<String> = PARTS.iter().filter_map(part).collect();
    if let Some(commit) = value(&"commit").and_then(word) {
        parts.push(format!("commit {commit}"));
    }
    if !parts.is_empty() {
        document.paragraph(format!("{}. The whole environment stands below.", parts.join(", ")));
    }
    let differing = differing_paths(&flat);
    if !differing.is_empty() {
        document.paragraph(format!("The records do not agree in: {}.", units::list(&differing)));
    }
}

/// The machine in few words, and whether records disagree on what matters for time.
pub fn short(records: &[&Record]) -> String {
    let flat = environments(records);
    let Some(first) = flat.iter().find(|environment| !environment.is_empty()) else { return String::new() };
    let value = |path: &&str| first.iter().find(|(other, _)| other == path).map(|(_, value)| value);
    let part = |(paths, say): &Part| paths.iter().filter_map(value).find_map(say);
    let parts: Vec<String> = PARTS[..4].iter().filter_map(part).collect();
    let mut text = if parts.is_empty() { String::new() } else { format!("{}.", parts.join(", ")) };
    let mut differing: Vec<&str> = Vec::new();
    let all = differing_paths(&flat);
    for path in &all {
        let first = path.split('.').next().unwrap_or(path);
        if aspect(path) != Aspect::State && !differing.contains(&first) {
            differing.push(first);
        }
    }
    if !differing.is_empty() {
        let names: Vec<String> = differing.iter().take(4).map(|name| name.to_string()).collect();
        let more = if differing.len() > names.len() { ", …" } else { "" };
        text += &format!(" The records differ in {}{more}.", names.join(", "));
    }
    text.trim().to_string()
}

/// The environment of the first record.
pub fn table(document: &mut Document, records: &[&Record]) {
    let flat = environments(&records[..records.len().min(1)]);
    if flat.iter().all(Vec::is_empty) {
        document.paragraph("The first record does not describe its machine.");
        return;
    }
    let mut table = Table::new("environment", vec![Column::words("what"), Column::words("value")]);
    if let Some(first) = records.first() {
        table = table.caption(format!("As the record {} states it.", first.id));
    }
    for (path, value) in flat.iter().flatten() {
        table.row(vec![Entry::words(path), Entry::json(value)]);
    }
    document.table(table);
}

/// Environments as paths and values. Most records of a notebook have the environment of the one before: those are left out.
fn environments(records: &[&Record]) -> Vec<Vec<(String, Value)>> {
    let mut flat: Vec<Vec<(String, Value)>> = Vec::new();
    let mut before = None;
    for record in records {
        if before != Some(&record.environment) {
            flat.push(flatten(&record.environment));
        }
        before = Some(&record.environment);
    }
    flat
}

/// A key on which all agree occurs once for each environment, always with the first value.
fn differing_paths(flat: &[Vec<(String, Value)>]) -> Vec<String> {
    let mut agreeing: BTreeMap<&str, (&Value, usize)> = BTreeMap::new();
    for (path, value) in flat.iter().flatten() {
        let (first, count) = agreeing.entry(path).or_insert((value, 0));
        *count += usize::from(*first == value);
    }
    agreeing.into_iter().filter(|(_, (_, count))| *count < flat.len()).map(|(path, _)| path.to_string()).collect()
}

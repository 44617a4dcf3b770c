//! The machine of the records: in a sentence and in full.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::{Document, Table};
use crate::environment::{Aspect, aspect, flatten};
use crate::gather::distinct;
use crate::record::Record;
use crate::units;

/// The paths where a part of the description may be, and its words.
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

/// These parts of the machine's description in a list, and the commit if `with_commit`.
fn description(environment: &[(String, Value)], parts: &[Part], with_commit: bool) -> String {
    let value = |path: &&str| environment.iter().find(|(other, _)| other == path).map(|(_, value)| value);
    let commit = value(&"commit").filter(|_| with_commit).and_then(word).map(|commit| format!("commit {commit}"));
    let parts = parts.iter().filter_map(|(paths, words)| paths.iter().filter_map(value).find_map(words));
    parts.chain(commit).collect::<Vec<String>>().join(", ")
}

/// Adds the machine in a sentence, and the keys in which records differ.
pub fn words(document: &mut Document, records: &[&Record]) {
    let flat = environments(records);
    let Some(first) = flat.iter().find(|environment| !environment.is_empty()) else {
        document.paragraph("The records do not describe their machine.");
        return;
    };
    let text = description(first, &PARTS, true);
    if !text.is_empty() {
        document.paragraph(format!("{text}. The whole environment stands below."));
    }
    let differing = differing_paths(&flat);
    if !differing.is_empty() {
        document.paragraph(format!("The records do not agree in: {}.", units::list(&differing)));
    }
}

/// The machine in a few words, and whether records disagree in what matters for time.
pub fn short(records: &[&Record]) -> String {
    let flat = environments(records);
    let Some(first) = flat.iter().find(|environment| !environment.is_empty()) else { return String::new() };
    let mut text = description(first, &PARTS[..4], false);
    if !text.is_empty() {
        text += ".";
    }
    let differing = differing_paths(&flat);
    let matters = differing.iter().filter(|path| aspect(path) != Aspect::State);
    let names = distinct(matters.map(|path| path.split('.').next().unwrap_or(path)));
    if !names.is_empty() {
        let more = if names.len() > 4 { ", …" } else { "" };
        text += &format!(" The records differ in {}{more}.", names[..names.len().min(4)].join(", "));
    }
    text.trim().to_string()
}

/// Adds the environment of the first measured record.
pub fn table(document: &mut Document, records: &[&Record]) {
    let Some(first) = stating(records).into_iter().find(|record| !record.environment.is_empty()) else {
        document.paragraph("The records do not describe their machine.");
        return;
    };
    let rows = flatten(&first.environment);
    let mut table = Table::of("environment", &rows);
    table.words("what", |(path, _)| path);
    table.words("value", |(_, value)| value);
    document.table(table.build().caption(format!("As the record {} states it.", first.id)));
}

/// The measured records; where there are none, all. What was skipped or failed does not say which kernels ran.
fn stating<'r>(records: &[&'r Record]) -> Vec<&'r Record> {
    let measured: Vec<&Record> = records.iter().copied().filter(|record| record.is_measured()).collect();
    if measured.is_empty() { records.to_vec() } else { measured }
}

/// Environments as paths and values. An environment equal to that of the record before is left out, as most are.
fn environments(records: &[&Record]) -> Vec<Vec<(String, Value)>> {
    let mut flat: Vec<Vec<(String, Value)>> = Vec::new();
    let mut before = None;
    for record in stating(records) {
        if before != Some(&record.environment) {
            flat.push(flatten(&record.environment));
        }
        before = Some(&record.environment);
    }
    flat
}

/// The keys in which environments differ. Other keys occur once in each environment, always with the same value.
fn differing_paths(flat: &[Vec<(String, Value)>]) -> Vec<String> {
    let mut agreeing: BTreeMap<&str, (&Value, usize)> = BTreeMap::new();
    for (path, value) in flat.iter().flatten() {
        let (first, count) = agreeing.entry(path).or_insert((value, 0));
        *count += usize::from(*first == value);
    }
    agreeing.into_iter().filter(|(_, (_, count))| *count < flat.len()).map(|(path, _)| path.to_string()).collect()
}

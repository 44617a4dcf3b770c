//! Where two records were made, and in what the places differ.

use crate::record::Record;
use crate::units;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::{Map, Value};

/// What a difference between two environments means for their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// Another machine: timings of the two say nothing about the program.
    Hardware,
    /// Another system, library or build on the same kind of machine.
    Software,
    /// How the machine was just then: its load, its clocks.
    State,
    /// No part of the environment: a setting of the cell.
    Setting,
}

/// One entry in which two environments or two configurations differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Dotted path of the entry.
    pub path: String,
    /// What kind of entry it is.
    pub aspect: Aspect,
    /// The value of the first, null when it has none; of several records the list of their values, where they differ.
    pub a: Value,
    /// The value of the second.
    pub b: Value,
}

/// First words of paths that describe the machine itself.
const HARDWARE: &str = "
    cpu cores caches simd memory_bytes numa gpu gpus nics topology architecture accelerators nodes virtualisation
    limits";
/// First words of paths that describe system, libraries and build.
const SOFTWARE: &str = "
    os kernel host container microcode mitigations transparent_huge_pages driver libraries variables zbench commit
    features rustc profile binary kernels";
/// First words of paths that describe a moment.
const STATE: &str = "load_average state uptime temperature clocks";

/// What a path of an environment is about, where this version knows it.
pub fn known_aspect(path: &str) -> Option<Aspect> {
    let first = path.split('.').next().unwrap_or(path);
    let of = |list: &str, aspect| list.split_whitespace().any(|word| word == first).then_some(aspect);
    of(HARDWARE, Aspect::Hardware).or(of(SOFTWARE, Aspect::Software)).or(of(STATE, Aspect::State))
}

/// What a path of an environment is about. An unknown one is software: it is told, and does not refuse a comparison.
pub fn aspect(path: &str) -> Aspect {
    known_aspect(path).unwrap_or(Aspect::Software)
}

impl Aspect {
    /// The word in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
            Self::State => "state",
            Self::Setting => "setting",
        }
    }
}

/// Why numbers measured `then` do not stand for those of `now`: another machine, another build profile, another commit
/// (another version, where a commit is not stated). Nothing when they do. What one of the two does not state contradicts
/// nothing: records of older versions say less about their machine.
pub fn why_not_the_same(then: &Map<String, Value>, now: &Map<String, Value>) -> Option<String> {
    let all: Vec<Difference> = differences(then, now).into_iter().filter(Difference::has_both).collect();
    if let Some(hardware) = all.iter().find(|difference| difference.aspect == Aspect::Hardware) {
        return Some(format!("another machine ({})", hardware.words()));
    }
    let of = |path: &str| all.iter().find(|difference| difference.path == path);
    let both_have_commits = [then, now].iter().all(|map| map.get("commit").is_some_and(Value::is_string));
    let build = if both_have_commits { "commit" } else { "zbench" };
    [("profile", "another build profile"), (build, "another build")]
        .into_iter()
        .find_map(|(path, words)| Some(format!("{words} ({})", of(path)?.words())))
}

/// The entries by which [`why_not_the_same`] decides, and the host.
pub fn of_place(environment: &Map<String, Value>) -> Map<String, Value> {
    let decides = |name: &str| {
        known_aspect(name) == Some(Aspect::Hardware) || ["profile", "commit", "zbench", "host"].contains(&name)
    };
    environment.iter().filter(|(name, _)| decides(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Every entry in which the environments differ, hardware first, else in the order of the first.
pub fn differences(a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<Difference> {
    let (a, b) = (flatten(a), flatten(b));
    let value = |of: &[(String, Value)], path: &str| {
        of.iter().find(|(known, _)| known == path).map_or(Value::Null, |(_, value)| value.clone())
    };
    let mut paths: Vec<&String> = a.iter().map(|(path, _)| path).collect();
    paths.extend(b.iter().map(|(path, _)| path).filter(|path| !a.iter().any(|(known, _)| known == *path)));
    let mut differences: Vec<Difference> = paths
        .into_iter()
        .map(|path| Difference { path: path.clone(), aspect: aspect(path), a: value(&a, path), b: value(&b, path) })
        .filter(|difference| difference.a != difference.b)
        .collect();
    differences.sort_by_key(|difference| difference.aspect);
    differences
}

/// The same between two sets of records: an entry differs when the sets of its values do. Each side's value is its
/// only one, or the list of them.
pub fn differences_of_sets(a: &[&Record], b: &[&Record]) -> Vec<Difference> {
    differences(&together(a), &together(b))
}

/// One environment for several records: where they disagree, the entry is the list of their values, written once each.
fn together(records: &[&Record]) -> Map<String, Value> {
    let mut values: IndexMap<String, Vec<Value>> = IndexMap::new();
    for (path, value) in records.iter().flat_map(|record| flatten(&record.environment)) {
        let list = values.entry(path).or_default();
        if !list.contains(&value) {
            list.push(value);
        }
    }
    values
        .into_iter()
        .map(|(path, mut list)| {
            list.sort_by_key(Value::to_string);
            let only = if list.len() == 1 { list.remove(0) } else { Value::Array(list) };
            (path, only)
        })
        .collect()
}

impl Difference {
    /// Whether both sides state the entry.
    pub fn has_both(&self) -> bool {
        !self.a.is_null() && !self.b.is_null()
    }

    /// `cores: 2, then 4`.
    pub fn words(&self) -> String {
        let text = |value: &Value| match value {
            Value::Null => units::NOTHING.to_string(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("{}: {}, then {}", self.path, text(&self.a), text(&self.b))
    }
}

/// Dotted paths and plain values; lists stay whole.
pub fn flatten(table: &Map<String, Value>) -> Vec<(String, Value)> {
    let mut rows = Vec::new();
    for (key, value) in table {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                rows.extend(flatten(inner).into_iter().map(|(path, value)| (format!("{key}.{path}"), value)));
            }
            value => rows.push((key.clone(), value.clone())),
        }
    }
    rows
}

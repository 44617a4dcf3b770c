//! A cell onto the file that it came of: what zbench speaks of is the cell's, and the rest stays as it was.

use super::{ExportError, Exported, Target, accelerate, deepspeed};
use crate::config::ConfigError;
use crate::config::keys as ours;
use crate::foreign::draft::{Made, same};
use crate::foreign::{Draft, Format, Options, Row, Verdict, parse};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A file whose keys stay where the cell has none.
pub struct Base<'a> {
    /// Its name.
    pub source: &'a str,
    /// What is in it.
    pub bytes: &'a [u8],
}

/// Writes a cell as [`super::export`] does, onto the file. What is then written was read back as the same cell.
///
/// # Errors
/// The cell cannot be exported. The file is none that the program reads, is refused by `import`, or has keys that contradict the cell.
pub fn onto(cell: &Value, name: &str, target: Target, base: &Base<'_>) -> Result<Exported, ExportError> {
    let about = |message: String| ExportError::Base(ConfigError::about(base.source, message));
    let wanted = match target {
        Target::DeepSpeed => Format::DeepSpeed,
        Target::Accelerate => Format::Accelerate,
        Target::Torchtitan => return Err(about("torchtitan's files are not read; leave --base out".into())),
    };
    let file = parse(base.source, base.bytes, &Options::default())?;
    if file.format != wanted {
        let (found, wanted) = (file.format.name(), wanted.name());
        return Err(about(format!("is no {wanted}: it is a {found}; name one, or leave --base out")));
    }
    let by_deepspeed = file.rows.iter().any(|row| row.key == "distributed_type" && row.value == "DEEPSPEED");
    let exported = super::write(cell, name, target, by_deepspeed)?;
    let title = format!("{name} onto {}", base.source);
    let text = |keys: &Map<String, Value>| match target {
        Target::Accelerate => accelerate::text(keys, &title),
        _ => deepspeed::text(keys),
    };
    let new = Side::of(read(&exported.text)?);
    let old = Side::of(file);
    let is_cell = |keys: &Map<String, Value>| read(&text(keys)).is_ok_and(|draft| Side::of(draft).made == new.made);
    let least = least(&old, &new);
    let keys = if is_cell(&least) { least } else { all(&old, &new) };
    let merged = text(&keys);
    agree(base.source, &merged, &new.made)?;
    let mut notes = exported.notes;
    notes.push(told(base.source, &old.keys, &keys));
    Ok(Exported { text: merged, rows: exported.rows, notes })
}

/// A file as `import` reads it.
struct Side {
    rows: Vec<Row>,
    keys: Map<String, Value>,
    /// The settings that are not zbench's defaults.
    made: BTreeMap<&'static str, String>,
}

impl Side {
    fn of(draft: Draft) -> Side {
        let mut keys = Map::new();
        draft.rows.iter().for_each(|row| deepspeed::put(&mut keys, &row.key, row.value.clone()));
        let is_default = |made: &Made| {
            let default = ours::default_of(made.key).and_then(|default| serde_json::to_value(default).ok());
            default.zip(serde_json::to_value(&made.value).ok()).is_some_and(|(default, made)| same(&default, &made))
        };
        let made = draft.made.iter().filter(|made| !is_default(made));
        let made = made.map(|made| (made.key, made.value.to_string())).collect();
        Side { rows: draft.rows, keys, made }
    }

    /// The keys that became one of these settings.
    fn keys_of<'s>(&'s self, settings: &'s [&str]) -> impl Iterator<Item = &'s Row> {
        self.rows.iter().filter(|row| row.becomes.iter().any(|(key, _)| settings.contains(&key.as_str())))
    }
}

/// The file, but for the keys by which it would be another cell.
fn least(old: &Side, new: &Side) -> Map<String, Value> {
    let mut differ = differences(&old.made, &new.made);
    // Ranks follow from the sizes of batches.
    if differ.contains(&"parallel.ranks") {
        differ.extend(["train.micro_batch", "train.accumulation"]);
    }
    let mut keys = old.keys.clone();
    old.keys_of(&differ).for_each(|row| remove(&mut keys, &row.key, new));
    let rows: Vec<&Row> = new.keys_of(&differ).collect();
    rows.iter().for_each(|row| deepspeed::put(&mut keys, &row.key, row.value.clone()));
    in_order(&old.keys, keys)
}

/// Every key that zbench speaks of as the export has it, and those of which it does not as the file has them.
fn all(old: &Side, new: &Side) -> Map<String, Value> {
    let is_spoken = |row: &&Row| row.verdict == Verdict::Used || !row.becomes.is_empty();
    let mut keys = old.keys.clone();
    old.rows.iter().filter(is_spoken).for_each(|row| remove(&mut keys, &row.key, new));
    new.rows.iter().for_each(|row| deepspeed::put(&mut keys, &row.key, row.value.clone()));
    in_order(&old.keys, keys)
}

/// Takes a key out, and with it a section of which the export has nothing, as that of an offload.
fn remove(keys: &mut Map<String, Value>, path: &str, new: &Side) {
    let section = path.rsplit_once('.').map(|(section, _)| section).filter(|section| at(&new.keys, section).is_none());
    take(keys, section.unwrap_or(path));
}

fn at<'v>(keys: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = keys.get(first)?;
    rest.map_or(Some(value), |rest| rest.split('.').try_fold(value, |value, name| value.get(name)))
}

/// Takes a key out, and a table that is empty without it.
fn take(keys: &mut Map<String, Value>, path: &str) {
    match path.split_once('.') {
        None => drop(keys.shift_remove(path)),
        Some((first, rest)) => {
            if let Some(Value::Object(inner)) = keys.get_mut(first) {
                take(inner, rest);
                if inner.is_empty() {
                    keys.shift_remove(first);
                }
            }
        }
    }
}

/// The keys in the order of another table, then those that it does not have.
fn in_order(like: &Map<String, Value>, mut keys: Map<String, Value>) -> Map<String, Value> {
    let mut ordered = Map::new();
    for (name, like) in like {
        let value = match (like, keys.shift_remove(name)) {
            (Value::Object(like), Some(Value::Object(value))) => Value::Object(in_order(like, value)),
            (_, Some(value)) => value,
            (_, None) => continue,
        };
        ordered.insert(name.clone(), value);
    }
    ordered.extend(keys);
    ordered
}

fn flatten<'v>(keys: &'v Map<String, Value>, prefix: &str, into: &mut BTreeMap<String, &'v Value>) {
    for (name, value) in keys {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(inner, &path, into),
            _ => drop(into.insert(path, value)),
        }
    }
}

/// What `import` makes of a text.
fn read(text: &str) -> Result<Draft, ConfigError> {
    parse("the export", text.as_bytes(), &Options::default())
}

type Settings = BTreeMap<&'static str, String>;

fn differences<'s>(one: &'s Settings, other: &'s Settings) -> Vec<&'s str> {
    let all: BTreeSet<&str> = one.keys().chain(other.keys()).copied().collect();
    all.into_iter().filter(|key| one.get(key) != other.get(key)).collect()
}

/// The text is the cell that is wanted.
fn agree(source: &str, text: &str, wanted: &Settings) -> Result<(), ConfigError> {
    const INSTEAD: &str = "take those keys out of it, or leave --base out";
    let draft = read(text).map_err(|error| {
        ConfigError::about(source, format!("has keys that cannot stand beside the cell's: {error}; {INSTEAD}"))
    })?;
    let made = Side::of(draft).made;
    match &differences(&made, wanted)[..] {
        [] => Ok(()),
        differ => Err(ConfigError::about(
            source,
            format!("has keys by which {} would be another; {INSTEAD}", differ.join(", ")),
        )),
    }
}

fn told(source: &str, old: &Map<String, Value>, new: &Map<String, Value>) -> String {
    let [mut before, mut after] = [BTreeMap::new(), BTreeMap::new()];
    flatten(old, "", &mut before);
    flatten(new, "", &mut after);
    let is_kept = |key: &String| before.get(key).zip(after.get(key)).is_some_and(|(a, b)| same(a, b));
    let list = |keys: Vec<&String>| match keys.is_empty() {
        true => "none".to_string(),
        false => keys.into_iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    };
    let changed = list(after.keys().filter(|key| !is_kept(key)).collect());
    let gone = list(before.keys().filter(|key| !after.contains_key(*key)).collect());
    format!(
        "of {source} these keys are new or have other values: {changed}; these are gone: {gone}; the others stay as they were"
    )
}

//! A cell onto the file that it came of: the keys by which the file would be another cell get the cell's values, the rest stays.
//!
//! The file and what becomes of it are read by `import` again and again, and compared with the cell setting by setting, until
//! every setting that the program's files can state is the cell's.

use super::view::View;
use super::{ExportError, Exported, Like, Target, accelerate, deepspeed};
use crate::config::ConfigError;
use crate::foreign::draft::same;
use crate::foreign::node::Node;
use crate::foreign::{Draft, Format, Options, Row, Verdict, json, parse, toml, tree, utf8};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A file whose keys stay where the cell is what they say.
pub struct Base<'a> {
    /// Its name.
    pub source: &'a str,
    /// What is in it.
    pub bytes: &'a [u8],
}

/// More than any file needs: settings, what contradicts them, sections.
const ROUNDS: usize = 5;

/// Writes a cell as [`super::export`] does, onto the file.
///
/// # Errors
/// The cell cannot be exported. The file is none that the program reads, is refused by `import`, has keys that contradict the
/// cell, or keys with points in their names.
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
    let words = utf8(base.bytes).map_err(about)?;
    let (root, _) = tree(base.source, words)?;
    if let Some(key) = pointed(&root) {
        return Err(about(format!(
            "has a key with a point in its name, {key:?}, which cannot be told from two keys; rename it"
        )));
    }
    let Value::Object(before) = root.json() else { return Err(about("holds no keys".into())) };

    let exported = super::write(cell, name, target, like(&file))?;
    let title = format!("{name} onto {}", base.source);
    let is_yaml = target == Target::Accelerate && json::first(words) != Some('{');
    let text = |keys: &Map<String, Value>| match is_yaml {
        true => accelerate::text(keys, &title),
        false => deepspeed::text(keys),
    };
    let read = |keys: &Map<String, Value>| parse(base.source, text(keys).as_bytes(), &Options::default());
    let (new, _) = tree(name, &exported.text)?;
    let Value::Object(new) = new.json() else { return Err(about("is put beneath nothing".into())) };
    let mut merge = Merge::new(cell, &exported, new, before.clone(), &file);
    let mut draft = file;
    for _ in 0..ROUNDS {
        if !merge.step(&draft)? {
            break;
        }
        draft = match read(&merge.keys) {
            Ok(draft) => draft,
            Err(_) => {
                merge.whole_sections();
                read(&merge.keys).map_err(|error| about(format!("cannot hold this cell: {}", unplaced(&error))))?
            }
        };
    }
    let left = merge.left(&draft)?;
    if !left.is_empty() {
        let left = left.into_iter().collect::<Vec<_>>().join(", ");
        return Err(about(format!(
            "has keys beside which {left} cannot be the cell's; take them out, or leave --base out"
        )));
    }
    let text = text(&merge.keys);
    let (rows, mut notes) = merge.rows(exported);
    notes.push(told(base.source, &before, &merge.keys));
    notes.extend(stand_ins(&draft));
    Ok(Exported { text, rows, notes })
}

/// How the file says what it says, which the export then does, too.
fn like(file: &Draft) -> Like {
    let is = |key: &str, value: Value| file.rows.iter().any(|row| row.key == key && row.value == value);
    if is("distributed_type", "DEEPSPEED".into()) {
        Like::DeepSpeed
    } else if is("fsdp_config.fsdp_version", 2.into()) {
        Like::Fsdp2
    } else {
        Like::Any
    }
}

struct Merge {
    wants: View,
    rows: Vec<Row>,
    new: Map<String, Value>,
    keys: Map<String, Value>,
    /// What had no equivalent in the file before.
    known: BTreeSet<String>,
    /// Batches are numbers in it, which ranks must fit.
    counts: bool,
    /// Settings that were seen to differ, and how often.
    seen: BTreeMap<String, usize>,
    touched: BTreeSet<String>,
}

impl Merge {
    fn new(
        cell: &Value,
        exported: &Exported,
        new: Map<String, Value>,
        keys: Map<String, Value>,
        file: &Draft,
    ) -> Merge {
        let known = file.rows.iter().filter(|row| row.verdict == Verdict::NoEquivalent);
        Merge {
            wants: View::new(cell),
            rows: exported.rows.clone(),
            known: known.map(|row| row.key.clone()).collect(),
            counts: keys.get("train_batch_size").is_some_and(Value::is_number) || keys.contains_key("num_processes"),
            new,
            keys,
            seen: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Settings of the file that are not the cell's, of those that such files state.
    fn differ(&self, draft: &Draft) -> Result<BTreeSet<String>, ConfigError> {
        let has = View::new(&toml::cell(draft)?);
        // Nothing said of an offload is none; FSDP's whole sharding and ZeRO's stage 3 are one.
        let said = |view: &View, key: &str| match (key, view.value(key)) {
            ("parallel.strategy", Some(strategy)) if strategy == "zero3" => Some("fsdp".into()),
            (_, Some(value)) if value == "none" => None,
            (_, value) => value.cloned(),
        };
        let is_other = |key: &str| match (said(&has, key), said(&self.wants, key)) {
            (Some(a), Some(b)) => !same(&a, &b),
            (None, None) => false,
            // A disk has a folder even where the cell does not say which.
            _ => key != "memory.offload_path",
        };
        let stated = self.rows.iter().filter(|row| row.verdict != Verdict::Ignored);
        let stated = stated.filter(|row| !row.becomes.is_empty() || row.verdict == Verdict::Default);
        let made = draft.rows.iter().flat_map(|row| &row.becomes).map(|(key, _)| key.as_str());
        let all: BTreeSet<&str> = stated.map(|row| row.key.as_str()).chain(made).collect();
        let is_open = |key: &&str| (*key != "parallel.ranks" || self.counts) && !key.starts_with("model.");
        Ok(all.into_iter().filter(is_open).filter(|key| is_other(key)).map(str::to_string).collect())
    }

    /// Those of them that must not be left: what the export says without a loss.
    fn left(&self, draft: &Draft) -> Result<BTreeSet<String>, ConfigError> {
        let is_said = |key: &String| self.rows.iter().any(|row| row.key == *key && row.verdict == Verdict::Used);
        Ok(self.differ(draft)?.into_iter().filter(is_said).collect())
    }

    /// Settings that go together: a file states them by the same keys.
    fn group<'k>(&self, key: &'k str) -> Vec<&'k str> {
        const GROUPS: [&[&str]; 3] = [
            &["parallel.ranks", "train.micro_batch", "train.accumulation"],
            &["parallel.strategy", "parallel.shard"],
            &["train.lr_schedule", "train.lr_warmup_steps", "train.lr_min"],
        ];
        let batch = usize::from(!self.counts);
        GROUPS[batch..].iter().find(|group| group.contains(&key)).map_or(vec![key], |group| group.to_vec())
    }

    /// Gives what differs the cell's values; false where nothing is left to do.
    fn step(&mut self, draft: &Draft) -> Result<bool, ConfigError> {
        let mut work = BTreeSet::new();
        for key in self.differ(draft)? {
            let times = self.seen.get(&key).copied().unwrap_or(0);
            if times < 2 {
                work.extend(self.group(&key).into_iter().map(|key| (key.to_string(), times > 0)));
                self.seen.insert(key, times + 1);
            }
        }
        let is_precision = work.iter().any(|(key, _)| key.starts_with("precision."));
        let is_meant =
            |key: &str| work.iter().any(|(of, _)| of == key) || (is_precision && key.starts_with("precision."));
        let again: BTreeSet<&str> = work.iter().filter(|(_, again)| *again).map(|(key, _)| key.as_str()).collect();
        let mut edits = Vec::new();
        for row in &draft.rows {
            let makes = |key: &str| row.becomes.iter().any(|(made, _)| made == key);
            let is_stale = row.becomes.iter().any(|(key, _)| is_meant(key)) && at(&self.new, &row.key).is_none();
            let is_stubborn = again.iter().any(|key| makes(key));
            // What it changes there has no likeness here, and did not stand in the file.
            let is_lost = row.verdict == Verdict::NoEquivalent && !self.known.contains(&row.key);
            if is_stale || is_stubborn || is_lost {
                edits.push((row.key.clone(), at(&self.new, &row.key).cloned()));
            }
        }
        for row in self.rows.iter().filter(|row| is_meant(&row.key)) {
            for (path, _) in &row.becomes {
                if let Some((path, value)) = self.place(path)
                    && !(path.ends_with("nvme_path")
                        && at(&self.keys, &path).is_some_and(Value::is_string)
                        && self.wants.text("memory.offload_path").is_empty())
                {
                    edits.push((path, Some(value)));
                }
            }
        }
        let before = self.keys.clone();
        if is_meant("parallel.strategy") {
            self.change_kind();
        }
        for (path, value) in edits {
            match value {
                Some(value) => put(&mut self.keys, &path, value),
                None => take(&mut self.keys, &path),
            }
            self.touched.insert(path);
        }
        Ok(self.keys != before)
    }

    /// A file of accelerate for another program beneath it has that one's section, and no longer the other's.
    fn change_kind(&mut self) {
        const KIND: &str = "distributed_type";
        let Some(kind) = self.new.get(KIND).filter(|kind| self.keys.get(KIND) != Some(kind)).cloned() else { return };
        self.keys.insert(KIND.into(), kind);
        for section in ["fsdp_config", "deepspeed_config", "parallelism_config"] {
            match self.new.get(section) {
                Some(table) => drop(self.keys.insert(section.into(), table.clone())),
                None => drop(self.keys.shift_remove(section)),
            }
        }
    }

    /// Where the export has a key: rows of accelerate name it without its section.
    fn place(&self, path: &str) -> Option<(String, Value)> {
        if let Some(value) = at(&self.new, path) {
            return Some((path.to_string(), value.clone()));
        }
        let inside =
            |(section, table): (&String, &Value)| Some((format!("{section}.{path}"), table.get(path)?.clone()));
        self.new.iter().find_map(inside)
    }

    /// Beside what was changed `import` wants more, or less: sections that were touched become those of the export.
    fn whole_sections(&mut self) {
        let touched = self.touched.clone();
        let above = touched.iter().flat_map(|path| path.match_indices('.').map(|(end, _)| &path[..end]));
        for section in above.collect::<BTreeSet<&str>>() {
            match at(&self.new, section).cloned() {
                Some(Value::Object(table)) => {
                    for (name, value) in table.into_iter().filter(|(_, value)| !value.is_object()) {
                        put(&mut self.keys, &format!("{section}.{name}"), value);
                    }
                }
                _ => take(&mut self.keys, section),
            }
        }
    }

    /// What is said of the settings that were changed, and what a reader must know of them.
    fn rows(&self, exported: Exported) -> (Vec<Row>, Vec<String>) {
        let is_written = |row: &Row| {
            row.becomes.iter().all(|(path, _)| {
                self.place(path).is_some_and(|(path, value)| at(&self.keys, &path).is_some_and(|now| same(now, &value)))
            })
        };
        let is_changed = |row: &Row| self.seen.contains_key(&row.key) && is_written(row);
        let rows = self.rows.iter().filter(|row| is_changed(row)).cloned().collect();
        let is_of_file = |note: &String| note.contains("nvme_path is") || note.contains("state fsdp_transformer");
        let notes = exported.notes.into_iter().filter(|note| !self.seen.is_empty() && !is_of_file(note));
        (rows, notes.collect())
    }
}

fn pointed(node: &Node) -> Option<String> {
    let inside = |node: &Node| pointed(node);
    node.table()?
        .iter()
        .find_map(|(key, node)| if key.name.contains('.') { Some(key.name.clone()) } else { inside(node) })
}

fn at<'v>(keys: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let value = keys.get(first)?;
    rest.map_or(Some(value), |rest| rest.split('.').try_fold(value, |value, name| value.get(name)))
}

/// Puts a value under a key with points; a section that is null begins to be one.
fn put(keys: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((first, rest)) = path.split_once('.') else {
        keys.insert(path.into(), value);
        return;
    };
    let inner = keys.entry(first).or_insert(Value::Null);
    if !inner.is_object() {
        *inner = Value::Object(Map::new());
    }
    if let Value::Object(inner) = inner {
        put(inner, rest, value);
    }
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

/// Every key with points and what stands there.
fn flatten<'v>(keys: &'v Map<String, Value>, prefix: &str, into: &mut BTreeMap<String, &'v Value>) {
    for (name, value) in keys {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(inner, &path, into),
            _ => drop(into.insert(path, value)),
        }
    }
}

/// Errors without places, which are those of a text that nobody has.
fn unplaced(error: &ConfigError) -> String {
    let told = |problem: &crate::config::Problem| format!("{}: {}", problem.key, problem.message);
    error.0.iter().map(told).collect::<Vec<_>>().join("; ")
}

fn told(source: &str, old: &Map<String, Value>, new: &Map<String, Value>) -> String {
    let [mut before, mut after] = [BTreeMap::new(), BTreeMap::new()];
    flatten(old, "", &mut before);
    flatten(new, "", &mut after);
    let is_kept = |key: &String| before.get(key).zip(after.get(key)).is_some_and(|(a, b)| a == b);
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

/// Keys of which zbench has only the nearest, and which therefore are not what the cell trained with.
fn stand_ins(draft: &Draft) -> Option<String> {
    let rows = draft.rows.iter().filter(|row| row.verdict == Verdict::NoEquivalent && !row.becomes.is_empty());
    let list: Vec<String> = rows.map(|row| format!("{} = {}", row.key, row.value)).collect();
    (!list.is_empty())
        .then(|| format!("the file's own stays where the cell has the nearest of it and no more: {}", list.join(", ")))
}

//! A cell onto the file that it came of: the keys by which the file would be another cell get the cell's values, the rest stays.
//!
//! The file and what becomes of it are read by `import` again and again, and compared with the cell setting by setting, until
//! every setting that the program's files can state is the cell's.

use super::paths::{at, flatten, pointed, put, take};
use super::view::View;
use super::{ExportError, Exported, Like, Target, accelerate, deepspeed};
use crate::interop::draft::same;
use crate::interop::{Draft, Format, Options, Row, Verdict, json, parse, toml, tree, utf8};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use zbench_config::ConfigError;

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
        Target::Torchtitan => {
            return Err(about("--base is for files of DeepSpeed and accelerate; leave it out".into()));
        }
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
    merge.tell_unsaid(&draft)?;
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
    let draft = read(&merge.keys).map_err(|error| about(format!("cannot hold this cell: {}", unplaced(&error))))?;
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
    /// What `import` reads of the export without the file, where it takes that.
    alone: Option<Draft>,
    /// Settings that differ from the file's and that such files have no keys for.
    unsaid: Vec<Row>,
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
            alone: parse("the export", exported.text.as_bytes(), &Options::default()).ok(),
            unsaid: Vec::new(),
            rows: exported.rows.clone(),
            known: known.map(|row| row.key.clone()).collect(),
            counts: keys.get("train_batch_size").is_some_and(Value::is_number) || keys.contains_key("num_processes"),
            new,
            keys,
            seen: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Whether a setting of what a file makes is not the cell's.
    fn is_other(&self, has: &View, key: &str) -> bool {
        // Nothing said of an offload is none; FSDP's whole sharding and ZeRO's stage 3 are one.
        let said = |view: &View, key: &str| match (key, view.value(key)) {
            ("parallel.strategy", Some(strategy)) if strategy == "zero3" => Some("fsdp".into()),
            (_, Some(value)) if value == "none" || value == "device" => None,
            (_, value) => value.cloned(),
        };
        match (said(has, key), said(&self.wants, key)) {
            (Some(a), Some(b)) => !same(&a, &b),
            (None, None) => false,
            // A disk has a folder even where the cell does not say which.
            _ => key != "memory.offload_path",
        }
    }

    /// Settings of the file that are not the cell's, of those that such files state.
    fn differ(&self, draft: &Draft) -> Result<BTreeSet<String>, ConfigError> {
        let has = View::new(&toml::cell(draft)?);
        let stated = self.rows.iter().filter(|row| row.verdict != Verdict::Ignored);
        let stated = stated.filter(|row| !row.becomes.is_empty() || row.verdict == Verdict::Default);
        let made = draft.rows.iter().flat_map(|row| &row.becomes).map(|(key, _)| key.as_str());
        let all: BTreeSet<&str> = stated.map(|row| row.key.as_str()).chain(made).collect();
        let is_open = |key: &&str| (*key != "parallel.ranks" || self.counts) && !key.starts_with("model.");
        Ok(all.into_iter().filter(is_open).filter(|key| self.is_other(&has, key)).map(str::to_string).collect())
    }

    /// Settings that are not the file's and have no keys in such files: the table says so, and the file cannot.
    fn tell_unsaid(&mut self, draft: &Draft) -> Result<(), ConfigError> {
        let has = View::new(&toml::cell(draft)?);
        // The model and the data are never in such files.
        let is_scripts =
            |key: &str| ["model.", "data.", "lora.", "train.seq_len"].iter().any(|section| key.starts_with(section));
        let is_unsaid = |row: &&Row| row.verdict == Verdict::NoEquivalent && row.becomes.is_empty();
        let rows = self.rows.iter().filter(is_unsaid);
        self.unsaid = rows.filter(|row| !is_scripts(&row.key) && self.is_other(&has, &row.key)).cloned().collect();
        Ok(())
    }

    /// Those of them that must not be left: what a file of the export alone says so that `import` reads it.
    fn left(&self, draft: &Draft) -> Result<BTreeSet<String>, ConfigError> {
        let plain = self.alone.as_ref().map(|draft| self.differ(draft)).transpose()?.unwrap_or_default();
        Ok(self.differ(draft)?.into_iter().filter(|key| !plain.contains(key)).collect())
    }

    /// Settings that go with this one: a file states them by the same keys. A rate stands alone, a course needs its rate.
    fn group<'k>(&self, key: &'k str) -> Vec<&'k str> {
        const GROUPS: [&[&str]; 3] = [
            &["parallel.ranks", "train.micro_batch", "train.accumulation"],
            &["parallel.strategy", "parallel.shard"],
            &["train.lr_schedule", "train.lr_warmup_steps", "train.lr_min", "train.lr"],
        ];
        if key == "train.lr" {
            return vec![key];
        }
        let batch = usize::from(!self.counts);
        GROUPS[batch..].iter().find(|group| group.contains(&key)).map_or(vec![key], |group| group.to_vec())
    }

    /// Gives what differs the cell's values; false where nothing is left to do.
    fn step(&mut self, draft: &Draft) -> Result<bool, ConfigError> {
        let mut work = BTreeSet::new();
        for key in self.differ(draft)? {
            let times = self.seen.get(&key).copied().unwrap_or(0);
            if times < 2 {
                work.extend(self.group(&key).into_iter().map(str::to_string));
                self.seen.insert(key, times + 1);
            }
        }
        let is_precision = work.iter().any(|key: &String| key.starts_with("precision."));
        let is_meant = |key: &str| work.contains(key) || (is_precision && key.starts_with("precision."));
        let mut edits = Vec::new();
        for row in &draft.rows {
            let is_stale = row.becomes.iter().any(|(key, _)| is_meant(key));
            // What it changes there has no likeness here, and did not stand in the file.
            let is_lost = row.key.starts_with("optimizer.")
                && row.verdict == Verdict::NoEquivalent
                && !self.known.contains(&row.key);
            if is_stale || is_lost {
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
        let of_mesh = ["parallel.strategy", "parallel.shard", "parallel.tensor", "parallel.context", "parallel.ranks"];
        if of_mesh.iter().any(|key| is_meant(key)) {
            self.change_version();
            self.state_mesh();
        }
        // A scheduler takes the parameters of its type alone, as does another optimizer.
        if is_meant("train.lr_schedule") && at(&self.new, "scheduler.type") != at(&self.keys, "scheduler.type") {
            self.take_over("scheduler");
        }
        let stands_in = |row: &Row| row.key == "optimizer.type" && row.verdict == Verdict::NoEquivalent;
        if ["train.betas", "train.eps"].iter().any(|key| is_meant(key)) && draft.rows.iter().any(stands_in) {
            self.take_over("optimizer");
        }
        for (path, value) in edits {
            let path = self.own(&path);
            match value {
                Some(value) => put(&mut self.keys, &path, value),
                None => take(&mut self.keys, &path),
            }
            self.touched.insert(path);
        }
        Ok(self.keys != before)
    }

    /// The section as the export has it.
    fn take_over(&mut self, section: &str) {
        match self.new.get(section).cloned() {
            Some(table) => drop(self.keys.insert(section.into(), table)),
            None => drop(self.keys.shift_remove(section)),
        }
    }

    /// Keys of FSDP's other version: the mesh is in the second alone.
    fn change_version(&mut self) {
        const VERSION: &str = "fsdp_config.fsdp_version";
        let version = |keys: &Map<String, Value>| at(keys, VERSION).and_then(Value::as_u64).unwrap_or(1);
        if !self.new.contains_key("fsdp_config") || version(&self.new) == version(&self.keys) {
            return;
        }
        let of_versions = [
            "version",
            "sharding_strategy",
            "reshard_after_forward",
            "backward_prefetch",
            "forward_prefetch",
            "use_orig_params",
            "sync_module_states",
        ];
        for name in of_versions.map(|name| format!("fsdp_config.fsdp_{name}")) {
            let own = self.own(&name);
            match at(&self.new, &name).cloned() {
                Some(value) => put(&mut self.keys, &own, value),
                None => take(&mut self.keys, &own),
            }
        }
        self.state_ranks();
    }

    /// The sizes of a mesh make up the ranks, so that all of them are stated.
    fn state_mesh(&mut self) {
        let Some(Value::Object(sizes)) = self.new.get("parallelism_config").cloned() else { return };
        let is_mesh = |(name, size): (&String, &Value)| !name.ends_with("dp_shard_size") && size.as_u64() > Some(1);
        if self.keys.contains_key("parallelism_config") || sizes.iter().any(is_mesh) {
            sizes.into_iter().for_each(|(name, size)| put(&mut self.keys, &format!("parallelism_config.{name}"), size));
        }
    }

    /// With several processes their number must be there.
    fn state_ranks(&mut self) {
        if let Some(ranks) = self.new.get("num_processes").filter(|_| !self.keys.contains_key("num_processes")) {
            self.keys.insert("num_processes".into(), ranks.clone());
        }
    }

    /// The key as the file has it: some leave the prefix of fsdp_config's keys out.
    fn own(&self, path: &str) -> String {
        let short = path.strip_prefix("fsdp_config.fsdp_").map(|name| format!("fsdp_config.{name}"));
        short.filter(|short| at(&self.keys, short).is_some()).unwrap_or_else(|| path.to_string())
    }

    /// A file of accelerate for another program beneath it has that one's section, and no longer the other's.
    fn change_kind(&mut self) {
        const KIND: &str = "distributed_type";
        let Some(kind) = self.new.get(KIND).filter(|kind| self.keys.get(KIND) != Some(kind)).cloned() else { return };
        self.keys.insert(KIND.into(), kind);
        self.state_ranks();
        for section in ["fsdp_config", "deepspeed_config", "parallelism_config"] {
            let is_empty = |table: &Value| table.as_object().is_none_or(Map::is_empty);
            match (self.new.contains_key(section), self.keys.get(section).is_none_or(is_empty)) {
                (true, true) | (false, false) => self.take_over(section),
                _ => {}
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
                        let path = format!("{section}.{name}");
                        if at(&self.keys, &self.own(&path)).is_none() {
                            put(&mut self.keys, &path, value);
                        }
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
                self.place(path)
                    .is_some_and(|(path, value)| at(&self.keys, &self.own(&path)).is_some_and(|now| same(now, &value)))
            })
        };
        let is_changed = |row: &Row| self.seen.contains_key(&row.key) && is_written(row);
        let rows = self.rows.iter().filter(|row| is_changed(row)).chain(&self.unsaid).cloned().collect();
        let mut values = BTreeMap::new();
        flatten(&self.keys, "", &mut values);
        let has_placeholder = values.values().any(|value| **value == "/local_nvme");
        let is_of_file = |note: &String| {
            (note.contains("nvme_path is") && !has_placeholder) || note.contains("state fsdp_transformer")
        };
        (rows, exported.notes.into_iter().filter(|note| !is_of_file(note)).collect())
    }
}

/// Errors without places, which are those of a text that nobody has.
fn unplaced(error: &ConfigError) -> String {
    let told = |problem: &zbench_config::Problem| format!("{}: {}", problem.key, problem.message);
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

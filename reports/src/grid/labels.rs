//! Names for cells, made from the configuration keys in which they differ.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::Cell;
use crate::bench;
use crate::gather::{counted, distinct, grouped};
pub use crate::label::STRATEGY;
use crate::label::{self, UNSET};
use crate::phrase::first_names;
use crate::record::{Record, Status};
use crate::store::IndexEntry;

const SHORTEST_ID: usize = 8;

/// A record, or its entry in an index, as labels use it.
pub trait Labelled {
    /// The title of the notebook entry.
    fn name(&self) -> &str;
    /// The hash of the configuration.
    fn key(&self) -> &str;
    /// The resolved configuration.
    fn cell(&self) -> &Value;
    /// The description of a record of kernels, which have no other label.
    fn description(&self) -> Option<Cow<'_, str>>;
    /// True for a skipped cell, whose configuration may be what was written and no more.
    fn is_skipped(&self) -> bool;
}

impl Labelled for Record {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn cell(&self) -> &Value {
        &self.cell
    }

    fn description(&self) -> Option<Cow<'_, str>> {
        bench::label(self).map(Cow::from)
    }

    fn is_skipped(&self) -> bool {
        self.outcome.status == Status::Skipped
    }
}

impl Labelled for IndexEntry {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn cell(&self) -> &Value {
        &self.cell
    }

    fn description(&self) -> Option<Cow<'_, str>> {
        self.label.as_deref().map(Cow::from)
    }

    fn is_skipped(&self) -> bool {
        self.status == Status::Skipped
    }
}

/// A configuration key whose value differs between cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Dotted path in the cell.
    pub path: String,
    /// What it is called in labels: the last part of the path, or all of it where that alone misleads.
    pub name: String,
    /// Its value as text, one for each cell; [`UNSET`] where the key is absent or null.
    pub values: Vec<String>,
}

impl Axis {
    /// The values in the order in which they first occur.
    pub fn distinct(&self) -> Vec<&str> {
        distinct(self.values.iter().map(String::as_str))
    }
}

/// Keys of ranks that train on the same sequences.
const SHARING: [&str; 3] = ["parallel.tensor", "parallel.sequence", "parallel.pipeline"];

/// The keys in which cells differ.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Axes {
    /// Enough keys to distinguish all cells that differ; the strategy first.
    pub main: Vec<Axis>,
    /// Further keys, whose values follow from those of the main ones (the shard of hsdp).
    pub dependent: Vec<Axis>,
}

/// The keys in which the configurations of these records differ.
pub fn axes(cells: &[&impl Labelled]) -> Axes {
    axes_but(cells, &[])
}

/// The same, where the values of these keys were found by a search: they come last, so that they are main keys only where no other key
/// is.
pub fn axes_but(cells: &[&impl Labelled], found_keys: &[String]) -> Axes {
    let mut found = Vec::new();
    let is_skipped: Vec<bool> = cells.iter().map(|cell| cell.is_skipped()).collect();
    differing("", &cells.iter().map(|cell| Some(cell.cell())).collect::<Vec<_>>(), &is_skipped, &mut found);
    name(&mut found, cells);
    // A stable sort: the other keys keep the order of the configuration. How many ranks share a sequence comes before accumulation, which
    // follows from it where the global batch is stated.
    let is_shared = |axis: &Axis| SHARING.contains(&axis.path.as_str());
    found.sort_by_key(|axis| (found_keys.contains(&axis.path), axis.path != STRATEGY, !is_shared(axis)));

    let mut axes = Axes::default();
    let mut groups = vec![0usize; cells.len()];
    let mut group_count = cells.len().min(1);
    for axis in found {
        let mut index: HashMap<(usize, &str), usize> = HashMap::new();
        let refined: Vec<usize> = groups
            .iter()
            .zip(&axis.values)
            .map(|(&group, value)| {
                let next = index.len();
                *index.entry((group, value)).or_insert(next)
            })
            .collect();
        let refined_count = index.len();
        if refined_count > group_count {
            (groups, group_count) = (refined, refined_count);
            axes.main.push(axis);
        } else {
            axes.dependent.push(axis);
        }
    }
    axes
}

/// Names axes by the last part of their path, unless another key of any cell ends in the same part.
fn name(axes: &mut [Axis], cells: &[&impl Labelled]) {
    let mut paths: BTreeSet<String> = axes.iter().map(|axis| axis.path.clone()).collect();
    for cell in cells {
        each_setting(cell.cell(), &mut |path, value| {
            if !value.is_object() {
                paths.insert(path.to_string());
            }
        });
    }
    let uses = uses(paths.iter().map(|path| label::last_part(path)));
    for axis in axes {
        axis.name = label::name(&axis.path, uses[label::last_part(&axis.path)] > 1).to_string();
    }
}

/// Calls `see` for every key of a configuration with its whole name and its value, tables included.
pub fn each_setting(cell: &Value, see: &mut dyn FnMut(&str, &Value)) {
    visit("", cell, see);
}

fn visit(path: &str, value: &Value, see: &mut dyn FnMut(&str, &Value)) {
    see(path, value);
    for (key, value) in value.as_object().into_iter().flatten() {
        visit(&joined(path, key), value, see);
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// Finds axes: paths at which the values of cells differ and are not all tables. A skipped cell may be what was written and no more, so
/// what it lacks is not known.
fn differing(path: &str, values: &[Option<&Value>], is_skipped: &[bool], found: &mut Vec<Axis>) {
    let is_null = |value: &Option<&Value>| value.is_none_or(Value::is_null);
    let has_usual = label::has_usual(path);
    let known = values.iter().zip(is_skipped).filter(|(value, skipped)| value.is_some() || !**skipped || has_usual);
    let known: Vec<&Option<&Value>> = known.map(|(value, _)| value).collect();
    let text = |value: &Option<&Value>| label::value(path, value.unwrap_or(&Value::Null));
    let is_same = |a: &Option<&Value>, b: &Option<&Value>| {
        a == b || (is_null(a) && is_null(b)) || (has_usual && text(a) == text(b))
    };
    if known.windows(2).all(|pair| is_same(pair[0], pair[1])) {
        return;
    }
    if values.iter().all(|value| is_null(value) || value.is_some_and(Value::is_object)) {
        let tables = values.iter().filter_map(|value| value.and_then(Value::as_object));
        for key in distinct(tables.flat_map(|table| table.keys())) {
            let inner: Vec<Option<&Value>> =
                values.iter().map(|value| value.and_then(|table| table.get(key))).collect();
            differing(&joined(path, key), &inner, is_skipped, found);
        }
        return;
    }
    let values = values.iter().map(|value| label::value(path, value.unwrap_or(&Value::Null))).collect();
    found.push(Axis { path: path.to_string(), name: String::new(), values });
}

/// Whether a configuration trains adapters (LoRA, or IA3, which has no rank) beside frozen weights.
pub fn has_adapter(cell: &Value) -> bool {
    let is_ia3 = cell.pointer("/lora/method").is_some_and(|method| method == "ia3");
    is_ia3 || cell.pointer("/lora/rank").and_then(Value::as_f64).is_some_and(|rank| rank > 0.0)
}

/// One label for each cell: `zero3, checkpointing=full, lora.rank=8`. A key that says nothing about a cell (unset, or of the section
/// lora where there is no adapter) is left out if the label is still unique. Labels that are equal nevertheless get the beginning of
/// the cell's key; a cell that differs in nothing has the label `fallback`.
pub fn labels(axes: &Axes, cells: &[&Value], keys: &[&str], fallback: &str) -> Vec<String> {
    let says_nothing = |axis: &Axis, cell: usize| {
        axis.values[cell] == UNSET || (axis.path.starts_with("lora.") && !has_adapter(cells[cell]))
    };
    let label = |cell: usize, keep: &dyn Fn(&Axis) -> bool| {
        let kept = axes.main.iter().filter(|axis| keep(axis));
        label::of_terms(kept.map(|axis| label::term(&axis.path, &axis.name, &axis.values[cell])))
    };
    let mut labels: Vec<String> = (0..keys.len()).map(|cell| label(cell, &|axis| !says_nothing(axis, cell))).collect();
    let first = labels.clone();
    let uses_of_first = uses(first.iter().map(String::as_str));
    for (cell, text) in labels.iter_mut().enumerate() {
        if text.is_empty() || uses_of_first[text.as_str()] > 1 {
            *text = label(cell, &|_| true);
        }
        if text.is_empty() {
            *text = fallback.to_string();
        }
    }
    told_apart(labels, keys)
}

/// These labels, where equal ones of cells with different keys get the beginning of the key.
pub fn told_apart(mut labels: Vec<String>, keys: &[&str]) -> Vec<String> {
    let pairs = distinct(labels.iter().map(String::as_str).zip(keys.iter().copied()));
    let uses = uses(pairs.into_iter().map(|(label, _)| label));
    let shared: Vec<bool> = labels.iter().map(|label| uses[label.as_str()] > 1).collect();
    let length = telling_length(keys.iter().copied());
    for ((label, key), _) in labels.iter_mut().zip(keys).zip(shared).filter(|(_, is_shared)| *is_shared) {
        let key = first_letters(key, length);
        *label = if label.is_empty() { key.into() } else { format!("{label} ({key})") };
    }
    labels
}

/// The label of a cell that differs in nothing: its strategy, or its title where it has none.
pub fn fallback(record: &impl Labelled) -> &str {
    let strategy = record.cell().pointer("/parallel/strategy").and_then(Value::as_str);
    strategy.filter(|strategy| !strategy.is_empty()).unwrap_or(record.name())
}

/// The labels of these cells, given one record of each, by the keys in which they differ.
pub fn of_cells(cells: &[&impl Labelled]) -> (Axes, Vec<String>) {
    let settings: Vec<&Value> = cells.iter().map(|cell| cell.cell()).collect();
    let keys: Vec<&str> = cells.iter().map(|cell| cell.key()).collect();
    let axes = axes(cells);
    let fallback = cells.first().map_or("", |cell| fallback(*cell));
    let labels = labels(&axes, &settings, &keys, fallback);
    (axes, labels)
}

/// The label of each record among those of the same title, without settings that are off, as reports show it; for kernels a
/// description.
pub fn labels_of(records: &[&impl Labelled]) -> Vec<String> {
    let description = |record: &&_| Labelled::description(*record).unwrap_or_default().into_owned();
    let mut labels: Vec<String> = records.iter().map(description).collect();
    let (unlabelled, labelled): (Vec<usize>, Vec<usize>) = (0..records.len()).partition(|&at| labels[at].is_empty());
    for (_, places) in grouped(labelled.into_iter().map(|at| (records[at].name(), at))) {
        let keys: Vec<&str> = places.iter().map(|&at| records[at].key()).collect();
        let own = told_apart(places.iter().map(|&at| labels[at].clone()).collect(), &keys);
        places.into_iter().zip(own).for_each(|(at, label)| labels[at] = label);
    }
    for (_, of_name) in grouped(unlabelled.into_iter().map(|at| (records[at].name(), at))) {
        let cells = grouped(of_name.into_iter().map(|at| (records[at].key(), at)));
        let (axes, whole) = of_cells(&cells.iter().map(|(_, places)| records[places[0]]).collect::<Vec<_>>());
        for ((_, places), short) in cells.into_iter().zip(short(&axes, &whole)) {
            places.into_iter().for_each(|at| labels[at] = short.clone());
        }
    }
    labels
}

/// The only one of these cells in which all main keys are off, except those for which `is_named` holds: the cell to which a label
/// without settings that are off belongs.
pub fn plainest<'r, L: Labelled>(cells: &[&'r L], is_named: &dyn Fn(&str) -> bool) -> Option<&'r L> {
    let settings: Vec<&Value> = cells.iter().map(|cell| cell.cell()).collect();
    let axes = axes(cells);
    let is_off = |axis: &Axis, cell: usize| {
        let has_none = axis.path.starts_with("lora.") && !has_adapter(settings[cell]);
        is_named(&axis.path) || has_none || label::is_off(&axis.values[cell])
    };
    let mut plain = (0..cells.len()).filter(|&cell| axes.main.iter().all(|axis| is_off(axis, cell)));
    let first = plain.next()?;
    plain.next().is_none().then_some(cells[first])
}

/// The labels without settings that are off, where they stay unique.
pub fn short(axes: &Axes, labels: &[String]) -> Vec<String> {
    let is_off = |part: &str| {
        let value = axes.main.iter().find_map(|axis| part.strip_prefix(axis.name.as_str())?.strip_prefix('='));
        value.is_some_and(label::is_off)
    };
    let short = |label: &String| {
        let short = label::of_terms(label::split(label).into_iter().filter(|part| !is_off(part)));
        if short.is_empty() { label.clone() } else { short }
    };
    let names: Vec<String> = labels.iter().map(short).collect();
    let uses = uses(names.iter().map(String::as_str));
    names.iter().zip(labels).map(|(name, label)| if uses[name.as_str()] > 1 { label } else { name }.clone()).collect()
}

/// How often each text occurs.
fn uses<'t>(texts: impl Iterator<Item = &'t str>) -> HashMap<&'t str, usize> {
    counted(texts).into_iter().collect()
}

/// The number of letters with which the beginnings of these ids are unique, at least eight. Commands accept such a beginning as long as
/// the notebook has no other ids that begin with it.
pub fn telling_length<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    let mut ids: Vec<&str> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |pair: &[&str]| pair[0].chars().zip(pair[1].chars()).take_while(|(a, b)| a == b).count();
    // In sorted order the longest common beginning is that of two neighbours.
    ids.windows(2).map(|pair| common(pair) + 1).max().unwrap_or(0).max(SHORTEST_ID)
}

/// The first letters of an id.
pub fn first_letters(id: &str, count: usize) -> &str {
    id.char_indices().nth(count).map_or(id, |(end, _)| &id[..end])
}

/// Names in a sentence at most: one with thousands of names cannot be read.
pub const MOST_NAMES: usize = 20;

/// The labels of the first cells, and the number of others.
pub fn first_labels<'c, 'a: 'c>(cells: impl IntoIterator<Item = &'c Cell<'a>>) -> String {
    first_names(&cells.into_iter().map(|cell| &cell.label).collect::<Vec<_>>(), MOST_NAMES)
}

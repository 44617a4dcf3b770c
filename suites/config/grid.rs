//! Expansion of a document into cells: the product of the axes in the order of the file (the first axis varies
//! slowest), less what is excluded, then the includes.

use crate::files::Files;
use crate::foreign::has_weights;
use crate::keys::{self, Key};
use crate::kind::{Kind, shown};
use crate::{Axis, ConfigError, Context, Document, Problem, Refusal, Resolved, Search, Setting, Settings, resolve};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeSet;
use zbench_engine::config::{Cell, Data};
use zbench_reports::Record;
use zbench_reports::grid_report::{labels_of, told_apart};
use zbench_reports::label::{self, Term};
use zbench_reports::record::Outcome;

/// One cell of a grid, or the reason why it cannot be.
#[derive(Clone, Debug)]
pub struct GridCell {
    /// Hash of the resolved configuration and of the contents of the files it names.
    pub key: String,
    /// What varies: the cell's values of the grid's axes, for a reader.
    pub label: String,
    /// The configuration, or why there is none.
    pub resolved: Result<Resolved, Refusal>,
    /// What was written for it.
    pub settings: Settings,
}

impl GridCell {
    /// The name of the strategy, as it was written; none of a combination that is no cell. The engine has none for `zero++`.
    pub fn strategy(&self) -> Option<&str> {
        let written = self.settings.get(label::STRATEGY).and_then(|setting| setting.value.as_str());
        self.resolved.as_ref().ok().map(|resolved| written.unwrap_or(resolved.cell.parallel.strategy.name()))
    }
}

/// More combinations than this is a typing error, unless `--max-cells` says otherwise.
pub const MOST_CELLS: usize = 10_000;
/// More are expanded for nobody: a cell takes kilobytes until it is planned.
pub const MOST_CELLS_EVER: usize = 100_000;
/// Combinations times excludes: every one is compared with every other.
const MOST_COMPARISONS: usize = 10_000_000;

/// Cells that a grid may have.
pub fn max_cells(text: &str) -> Result<usize, String> {
    let most = MOST_CELLS_EVER;
    text.parse().ok().filter(|cells| *cells <= most).ok_or_else(|| format!("write a whole number up to {most}"))
}

/// Expands a document. Only cells that have all the values of `only` are kept.
///
/// # Errors
/// Values that are wrong whatever the grid says refuse the whole file; so do absent or broken files that cells name,
/// more cells than `most`, and a search ([`expand_to_search`]).
pub fn expand(
    document: &Document,
    only: &[Axis],
    most: usize,
    context: &Context,
    files: &mut Files,
) -> Result<Vec<GridCell>, ConfigError> {
    refuse_search(document, "is for `zbench grid` and `zbench plan`")?;
    expand_to_search(document, only, most, context, files)
}

/// A search where cells must be known before anything is planned.
fn refuse_search(document: &Document, why: &str) -> Result<(), ConfigError> {
    let Some(search) = &document.search else { return Ok(()) };
    let source = document.path.display().to_string();
    let message = format!("{why}; leave it out, or state a value with --set {}=N", search.key);
    Err(ConfigError(vec![Problem { source, place: search.place, key: "grid.search".into(), message }]))
}

/// As [`expand`]; where the document searches a key, its cells have the smallest value that is tried.
///
/// # Errors
/// As [`expand`], but for the search; a term of `only` with the searched key.
pub fn expand_to_search(
    document: &Document,
    only: &[Axis],
    most: usize,
    context: &Context,
    files: &mut Files,
) -> Result<Vec<GridCell>, ConfigError> {
    let source = document.path.display().to_string();
    if let Some(search) = document.search.filter(|search| only.iter().any(|axis| axis.key == search.key)) {
        let message =
            format!("--only names {0}, which is searched; write --set {0}=N to state one value instead", search.key);
        return Err(ConfigError(vec![Problem { source, place: search.place, key: "grid.search".into(), message }]));
    }
    let Combinations { all, in_product, varying } = combined(document, most)?;
    let (mut cells, mut seen, mut problems) = (Vec::new(), BTreeSet::new(), Vec::<Problem>::new());
    for (index, mut settings) in all.into_iter().enumerate() {
        if let Some(search) = &document.search {
            settings.insert(search.key, searched(search, search.multiple));
        }
        let resolved = resolve_with_files(&settings, context, files);
        let cell_json = resolved.as_ref().ok().map(|resolved| plain(&resolved.cell));
        let has = |axes: &[Axis]| axes.iter().all(|axis| has_one_of(axis, &settings, cell_json.as_ref()));
        let excluded = index < in_product && document.excludes.iter().any(|exclude| has(exclude));
        if excluded || !has(only) {
            continue;
        }
        if let Err(refusal) = &resolved
            && !refusal.from_grid
        {
            let by_set = settings.get(refusal.key.as_str()).is_some_and(|setting| setting.place.is_none());
            let source = if by_set { "--set".to_string() } else { source.clone() };
            let problem =
                Problem { source, place: refusal.place, key: refusal.key.clone(), message: refusal.message.clone() };
            if !problems.contains(&problem) {
                problems.push(problem);
            }
            continue;
        }
        let key = combination_key(&resolved, &settings, files);
        if has_key(only, &key) && seen.insert(key.clone()) {
            let label = label(&varying, &settings, cell_json.as_ref());
            cells.push(GridCell { key, label, resolved, settings });
        }
    }
    if !problems.is_empty() {
        return Err(ConfigError(problems));
    }
    if cells.len() > most {
        let message =
            format!("the grid has {} cells and --max-cells is {most}; narrow it with --only or --set", cells.len());
        return Err(ConfigError::about(source, message));
    }
    // Values that are long or rounded look alike in labels.
    let keys: Vec<&str> = cells.iter().map(|cell| cell.key.as_str()).collect();
    let labels = told_apart(cells.iter().map(|cell| cell.label.clone()).collect(), &keys);
    cells.iter_mut().zip(labels).for_each(|(cell, label)| cell.label = label);
    Ok(cells)
}

/// A value of the searched key, as an axis would give it: where it cannot be, a cell is skipped and no file refused.
pub fn searched(search: &Search, value: usize) -> Setting {
    // Its most is below 2^31.
    Setting { value: toml::Value::Integer(value as i64), place: search.place, from_grid: true }
}

/// All combinations of a document's axes and includes, before excludes and `--only`.
struct Combinations {
    all: Vec<Settings>,
    /// Number of combinations of the axes, which come first.
    in_product: usize,
    /// Keys that are an axis somewhere.
    varying: Vec<&'static str>,
}

fn combined(document: &Document, most: usize) -> Result<Combinations, ConfigError> {
    let source = document.path.display().to_string();
    let include_sizes = document.includes.iter().map(|axes| size(axes)).fold(0usize, usize::saturating_add);
    let in_product = if document.has_product { size(&document.axes) } else { 0 };
    let size = in_product.saturating_add(include_sizes);
    let most = most.clamp(MOST_CELLS, MOST_CELLS_EVER);
    if size > most {
        let message = format!("the grid has {size} combinations; shorten an axis (at most {most} are expanded)");
        return Err(ConfigError::about(source, message));
    }
    if size.saturating_mul(document.excludes.len()) > MOST_COMPARISONS {
        let excludes = document.excludes.len();
        let message = format!(
            "{size} combinations and {excludes} [[grid.exclude]] are too many to compare; shorten an axis or join excludes"
        );
        return Err(ConfigError::about(source, message));
    }
    let mut all = Vec::new();
    if document.has_product {
        all.extend(product(&document.base, &document.axes));
    }
    for include in &document.includes {
        all.extend(product(&document.base, include));
    }
    Ok(Combinations { all, in_product, varying: varying(document) })
}

/// The keys that are an axis somewhere in the document.
pub fn varying(document: &Document) -> Vec<&'static str> {
    let mut varying: Vec<&'static str> = Vec::new();
    for axis in document.axes.iter().chain(document.includes.iter().flatten()) {
        if !varying.contains(&axis.key) {
            varying.push(axis.key);
        }
    }
    varying
}

/// The settings of every combination that `only` and the excludes leave, as they are written, with their labels: for
/// suites whose cells are no training cells.
///
/// # Errors
/// More combinations than `most`.
pub fn combinations(document: &Document, only: &[Axis], most: usize) -> Result<Vec<(String, Settings)>, ConfigError> {
    refuse_search(document, "is for cells that train")?;
    let Combinations { all, in_product, varying } = combined(document, most)?;
    let has = |axes: &[Axis], settings: &Settings| axes.iter().all(|axis| has_one_of(axis, settings, None));
    let is_left = |(index, settings): &(usize, Settings)| {
        let excluded = *index < in_product && document.excludes.iter().any(|exclude| has(exclude, settings));
        !excluded && has(only, settings)
    };
    let named = |(_, settings): (usize, Settings)| (label(&varying, &settings, None), settings);
    Ok(all.into_iter().enumerate().filter(is_left).map(named).collect())
}

fn size(axes: &[Axis]) -> usize {
    axes.iter().map(|axis| axis.values.len()).fold(1, usize::saturating_mul)
}

/// Every combination; the last axis varies fastest.
fn product(base: &Settings, axes: &[Axis]) -> Vec<Settings> {
    let mut combinations = vec![base.clone()];
    for axis in axes {
        let with = |settings: &Settings, value: &Setting| {
            let mut settings = settings.clone();
            settings.insert(axis.key, value.clone());
            settings
        };
        combinations = combinations.iter().flat_map(|s| axis.values.iter().map(move |value| with(s, value))).collect();
    }
    combinations
}

/// Resolves one combination. A file that is absent or broken refuses the whole configuration, wherever its name came from.
pub fn resolve_with_files(settings: &Settings, context: &Context, files: &mut Files) -> Result<Resolved, Refusal> {
    let resolved = resolve(settings, context)?;
    let mut read = Cow::Borrowed(&resolved.cell);
    if context.is_priced && read.model.weights.as_ref().is_some_and(|folder| !has_weights(folder)) {
        read.to_mut().model.weights = None;
    }
    files.check(&read).map_err(|(key, message)| {
        let place = settings.get(key).and_then(|setting| setting.place);
        Refusal { key: key.into(), message, place, from_grid: false }
    })?;
    Ok(resolved)
}

/// Name of a cell's key among the terms of `--only`.
pub const CELL_KEY: &str = "key";
/// The key of the only one of a grid's cells that a table calls by this text as a whole, whether it prints labels in full or
/// shortened. The terms of such a label may be true of further cells.
pub fn called(cells: &[GridCell], text: &str) -> Option<String> {
    let of_record = |cell: &GridCell| {
        let mut record = Record::new(&cell.key, &cell.key, "", Outcome::measured());
        record.cell = plain(&cell.resolved.as_ref().ok()?.cell);
        Some(record)
    };
    let records: Vec<Record> = cells.iter().filter_map(of_record).collect();
    // Labels of records tell those cells alone apart that there are records of.
    let is_of_all = records.len() == cells.len();
    let of_records = if is_of_all { labels_of(&records.iter().collect::<Vec<_>>()) } else { Vec::new() };
    let whole: Vec<&str> = cells.iter().map(|cell| cell.label.as_str()).collect();
    let short = label::shortened(&whole);
    let of_cells = cells.iter().zip(whole.iter().zip(&short));
    let names = of_cells.flat_map(|(cell, (whole, short))| [(&cell.key, *whole), (&cell.key, short.as_str())]);
    let names = names.chain(records.iter().zip(&of_records).map(|(record, label)| (&record.key, label.as_str())));
    let found: BTreeSet<&String> = names.filter(|(_, name)| label::is_same(name, text)).map(|(key, _)| key).collect();
    if found.len() == 1 { found.into_iter().next().cloned() } else { None }
}

/// Shortest prefix of a cell's key that `--only` accepts.
const SHORTEST_KEY: usize = 4;

/// Terms of `--only`, joined by commas as in a label: `key=value`, where the last part of a key will do if no other key of the
/// grid ends in the same, a strategy alone, or the beginning of a cell's key. Several values of one key are alternatives.
pub fn parse_only(text: &str, document: &Document) -> Result<Vec<Axis>, ConfigError> {
    let mut axes: Vec<Axis> = Vec::new();
    let refuse = |message: String| ConfigError::about(format!("--only {text}"), message);
    for term in label::read(text) {
        let (key, value) = match term {
            Term::Pair(name, value) => {
                let value = crate::plain::bare(value);
                (key_of(name, &value, document).map_err(refuse)?, value)
            }
            Term::Word(word) if is_strategy(word) => (label::STRATEGY, word.into()),
            Term::Word(word) if word.len() >= SHORTEST_KEY && word.chars().all(|c| c.is_ascii_hexdigit()) => {
                (CELL_KEY, word.into())
            }
            Term::Word(word) => {
                return Err(refuse(format!(
                    "\"{word}\" has no value, and is no strategy and no beginning of a cell's key; write terms joined by commas, as \
                     zero3, checkpointing=full"
                )));
            }
        };
        let value = Setting { value, place: None, from_grid: false };
        match axes.iter_mut().find(|axis| axis.key == key) {
            Some(axis) => axis.values.push(value),
            None => axes.push(Axis { key, values: vec![value] }),
        }
    }
    if axes.is_empty() {
        return Err(refuse("has no term; write terms joined by commas, as zero3, checkpointing=full".into()));
    }
    Ok(axes)
}

fn is_strategy(word: &str) -> bool {
    matches!(keys::find(label::STRATEGY).map(|key| &key.kind), Some(Kind::Choice(names)) if names.contains(&word))
}

/// The key of this name, or the only one that ends in it; of several the one that the document varies, or that takes the value.
fn key_of(name: &str, value: &toml::Value, document: &Document) -> Result<&'static str, String> {
    if name == CELL_KEY {
        return Ok(CELL_KEY);
    }
    if let Some(key) = keys::find(name) {
        return Ok(key.name);
    }
    let all: Vec<&Key> =
        keys::KEYS.iter().copied().filter(|key| !name.is_empty() && label::is_key(key.name, name)).collect();
    let varying = varying(document);
    let names = |keys: Vec<&Key>| keys.into_iter().map(|key| key.name).collect::<Vec<&'static str>>();
    let varied = names(all.iter().copied().filter(|key| varying.contains(&key.name)).collect());
    let taking = names(all.iter().copied().filter(|key| key.kind.check(value).is_ok()).collect());
    match (&names(all)[..], &varied[..], &taking[..]) {
        ([one], ..) | (_, [one], _) | (_, _, [one]) => Ok(one),
        ([], ..) => {
            let hint = keys::nearest(name).map(|key| format!("; did you mean {key}?")).unwrap_or_default();
            Err(format!("unknown key {name}{hint}"))
        }
        (several, ..) => Err(format!("{name} may be {}; write one of them in full", several.join(" or "))),
    }
}

/// Whether a cell's key is one of those that `--only` asks for.
pub fn has_key(only: &[Axis], key: &str) -> bool {
    let asked = only.iter().find(|axis| axis.key == CELL_KEY);
    let begins = |wanted: &Setting| wanted.value.as_str().is_some_and(|wanted| key.starts_with(wanted));
    asked.is_none_or(|axis| axis.values.iter().any(begins))
}

/// Most values of an axis that are listed.
const LISTED: usize = 12;

/// Why no cell is left, with the values that there are: of the terms of `--only` that ask for none of them, else of all axes.
pub fn none_left(document: &Document, only: &[Axis]) -> String {
    let varied = || document.axes.iter().chain(document.includes.iter().flatten());
    // What cells have of a key: the values of the grid, else the one of the file, else the default.
    let there = |key: &str| -> Vec<toml::Value> {
        // Includes that do not state the key have it from the file, as all cells do of a key that is no axis.
        let is_axis = document.axes.iter().any(|axis| axis.key == key);
        let of_file = || document.base.get(key).map(|set| set.value.clone()).or_else(|| keys::default_of(key).cloned());
        let mut values: Vec<toml::Value> = if is_axis { Vec::new() } else { of_file().into_iter().collect() };
        let of_grid =
            varied().filter(|axis| axis.key == key).flat_map(|axis| &axis.values).map(|set| set.value.clone());
        for value in of_grid {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    };
    // What follows "cells have".
    let list = |key: &str, values: &[toml::Value]| {
        let mut words: Vec<String> = values.iter().take(LISTED).map(shown).collect();
        if values.len() > LISTED {
            words.push(format!("and {} more", values.len() - LISTED));
        }
        if words.is_empty() { format!("no value of {key}") } else { format!("{key} = {}", words.join(", ")) }
    };
    let same = |wanted: &Setting, value: &toml::Value| json(&wanted.value) == json(value);
    let absent =
        |axis: &&Axis| !there(axis.key).iter().any(|value| axis.values.iter().any(|wanted| same(wanted, value)));
    let asked: Vec<String> = only
        .iter()
        .filter(absent)
        .map(|axis| {
            let wanted: Vec<String> = axis.values.iter().map(|set| shown(&set.value)).collect();
            if axis.key == CELL_KEY {
                return format!(
                    "--only asks for cells whose key begins with {}, and no key does; `zbench plan FILE --format json` shows the keys",
                    wanted.join(" or ")
                );
            }
            format!(
                "--only asks for {} = {}, and cells have {}",
                axis.key,
                wanted.join(" or "),
                list(axis.key, &there(axis.key))
            )
        })
        .collect();
    if !asked.is_empty() {
        return format!("no cell is left: {}", asked.join("; "));
    }
    let why = match only.is_empty() {
        true => "[[grid.exclude]] leaves out every combination",
        false => "no combination has all that --only asks for and is not left out by [[grid.exclude]]",
    };
    let is_asked = |key: &&str| only.is_empty() || only.iter().any(|term| term.key == *key);
    let values: Vec<String> =
        varying(document).into_iter().filter(is_asked).map(|key| list(key, &there(key))).collect();
    format!("no cell is left: {why} of {}", values.join("; "))
}

/// A key's value in the resolved cell. A strategy keeps the name that was written: the engine has none for `zero++`.
fn resolved(key: &str, written: &Option<Value>, cell: Option<&Value>) -> Option<Value> {
    let is_named = key == label::STRATEGY && written.is_some();
    cell.filter(|_| !is_named)?.pointer(&format!("/{}", key.replace('.', "/"))).cloned()
}

/// Whether the cell has one of the axis' values: as resolved, else as written, else by default.
fn has_one_of(axis: &Axis, settings: &Settings, cell: Option<&Value>) -> bool {
    if axis.key == CELL_KEY {
        // Keys are compared later, as they need the resolved cell.
        return true;
    }
    let written = settings.get(axis.key).map(|setting| json(&setting.value));
    let default = || keys::default_of(axis.key).map(json);
    let Some(value) = resolved(axis.key, &written, cell).or_else(|| written.clone()).or_else(default) else {
        return false;
    };
    let kind = keys::find(axis.key).map(|key| &key.kind);
    let number = |value: &Value| match value {
        Value::String(text) => kind?.quantity(text),
        other => other.as_f64(),
    };
    let same = |wanted: &Value, value: &Value| match (wanted, number(wanted), number(value)) {
        // 0.02ms and 20us differ in the last bit.
        (_, Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs().max(b.abs()),
        // As labels show it.
        (Value::String(text), ..) => label::is_value(axis.key, value, text),
        _ => wanted == value,
    };
    axis.values.iter().any(|wanted| {
        let wanted = json(&wanted.value);
        same(&wanted, &value) || written.as_ref().is_some_and(|written| same(&wanted, written))
    })
}

/// A TOML value as JSON; numbers that JSON has not are refused before they come here.
fn json(value: &toml::Value) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// A cell as plain data, for records.
pub fn plain(cell: &Cell) -> Value {
    let mut value = serde_json::to_value(cell).unwrap_or(Value::Null);
    for (section, name) in [("/parallel", "degrees"), ("", "priced")] {
        value.pointer_mut(section).and_then(Value::as_object_mut).map(|section| section.remove(name));
    }
    // What else a cell that runs states of these changes nothing, so its key does not depend on it.
    if !cell.is_priced() {
        let degrees = &cell.parallel.degrees;
        for (name, ranks) in [("tensor", degrees.tensor), ("sequence", degrees.sequence)] {
            if ranks > 1 {
                value["parallel"][name] = ranks.into();
            }
        }
        if degrees.pipeline > 1 {
            value["parallel"]["pipeline"] = degrees.pipeline.into();
            value["parallel"]["pipeline_schedule"] = serde_json::to_value(degrees.schedule()).unwrap_or(Value::Null);
            value["parallel"]["virtual_stages"] = degrees.virtual_stages.into();
        }
        return value;
    }
    let priced = cell.priced.as_deref().cloned().unwrap_or_default();
    let options = [serde_json::to_value(cell.parallel.degrees), serde_json::to_value(priced)];
    let priced: Map<String, Value> =
        options.into_iter().filter_map(|part| part.ok()?.as_object().cloned()).flatten().collect();
    // Priced options are placed in the sections of their keys, as if the engine had them.
    let parked = priced.get("parked").and_then(Value::as_u64).unwrap_or(1);
    for (name, of) in priced {
        let (section, name) = match name.as_str() {
            "flash_generation" => {
                value["memory"]["attention"] = format!("flash{of}").into();
                continue;
            }
            "model" => ("model", "priced"),
            name @ ("dropout" | "left_out") => ("model", name),
            name @ ("loss" | "recompute") => ("memory", name),
            name @ ("products" | "main_gradients") => ("precision", name),
            name @ ("optimizer" | "optimizer_in_backward") => ("train", name),
            name @ ("trainable" | "adapter_dtype") => ("lora", name),
            name => ("parallel", name),
        };
        value[section][name] = of;
    }
    value["memory"]["partition_activations"] = cell.memory.partition_activations.into();
    if parked > 1 {
        value["parallel"]["strategy"] = "zero++".into();
    }
    value
}

/// The cell that plain data describes: [`plain`] of a cell that runs, read back.
///
/// # Errors
/// It is that of another version, or of a cell that is priced.
pub fn of_plain(value: &Value) -> Result<Cell, serde_json::Error> {
    let mut value = value.clone();
    if let Some(parallel) = value.get_mut("parallel").and_then(Value::as_object_mut) {
        let stated = STATED.iter().filter_map(|name| Some((name.to_string(), parallel.remove(*name)?)));
        let degrees: Map<String, Value> = stated.collect();
        if !degrees.is_empty() {
            parallel.insert("degrees".into(), degrees.into());
        }
    }
    serde_json::from_value(value)
}

/// The degrees that stand in plain data of cells that run, where they are above 1.
const STATED: [&str; 5] = ["tensor", "sequence", "pipeline", "pipeline_schedule", "virtual_stages"];

/// Sections of suites that train nothing.
const OTHER_SUITES: [&str; 4] = ["attention.", "checkpoint.", "gemm.", "io."];

/// What varies, as `zero3, checkpointing=full`; a key of an include that this cell does not state is left out. Values are those of
/// the resolved cell where it has the key, so that a record of it has the same label.
fn label(varying: &[&'static str], settings: &Settings, cell: Option<&Value>) -> String {
    let is_of_others = |key: &str| OTHER_SUITES.iter().any(|section| key.starts_with(section));
    let is_shared = |key: &str| {
        let ends_alike = |other: &str| other != key && label::last_part(other) == label::last_part(key);
        varying.iter().any(|other| ends_alike(other))
            || keys::KEYS.iter().any(|other| ends_alike(other.name) && is_of_others(other.name) == is_of_others(key))
    };
    let term = |key: &&'static str| {
        let written = Some(json(&settings.get(key)?.value));
        let value = resolved(key, &written, cell).filter(|value| !value.is_null()).or(written)?;
        Some(label::term(key, label::name(key, is_shared(key)), &label::value(key, &value)))
    };
    let (first, others): (Vec<&'static str>, Vec<&'static str>) =
        varying.iter().partition(|key| **key == label::STRATEGY);
    label::of_terms(first.iter().chain(&others).filter_map(term))
}

/// What tells cells apart, a text for each cell in words that `--only` takes: every key with a plain value that is not the
/// same in all of them, written or by default.
pub fn differences(cells: &[GridCell]) -> Vec<String> {
    let value = |cell: &GridCell, key: &str| match cell
        .settings
        .get(key)
        .map(|setting| &setting.value)
        .or_else(|| keys::default_of(key))?
    {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Array(_) | toml::Value::Table(_) => None,
        other => Some(other.to_string()),
    };
    let written: BTreeSet<&'static str> = cells.iter().flat_map(|cell| cell.settings.keys().copied()).collect();
    let differs = |key: &&str| cells.windows(2).any(|pair| value(&pair[0], key) != value(&pair[1], key));
    let keys: Vec<&str> = written.into_iter().filter(differs).collect();
    let term = |cell: &GridCell, key: &str| value(cell, key).map(|value| format!("{key}={value}"));
    cells.iter().map(|cell| keys.iter().filter_map(|key| term(cell, key)).collect::<Vec<_>>().join(",")).collect()
}

/// JSON text with the keys of every object sorted: one text for one value.
pub fn canonical(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

/// The key of a cell: a hash of its canonical text, in which every file stands by its content.
pub fn cell_key(cell: &Cell, files: &mut Files) -> String {
    let mut cell = cell.clone();
    let mut by_content = |path: &mut std::path::PathBuf| *path = files.hash(path).into();
    match &mut cell.data {
        Data::Synthetic {} => {}
        Data::Tokens { path, .. } => by_content(path),
        Data::Text { path, tokenizer, .. } => {
            by_content(path);
            by_content(tokenizer);
        }
        Data::Documents(documents) => {
            documents.files.iter_mut().for_each(|file| by_content(&mut file.path));
            by_content(&mut documents.tokenizer);
        }
    }
    for path in cell.model.weights.iter_mut().chain(&mut cell.lora.path) {
        by_content(path);
    }
    // No price depends on the folder of what lives on a disk; a run does.
    if cell.is_priced() {
        cell.memory.offload_path = None;
    }
    if let Some(saving) = &mut cell.checkpoint {
        // The folder of checkpoints does not change the cell.
        (saving.dir, saving.resume) = Default::default();
    }
    plain_key(&plain(&cell))
}

/// The key of a combination: of its cell, else of what was written for it.
pub fn combination_key(resolved: &Result<Resolved, Refusal>, settings: &Settings, files: &mut Files) -> String {
    match resolved {
        Ok(resolved) => cell_key(&resolved.cell, files),
        Err(_) => settings_key(settings),
    }
}

/// The key of a combination that resolves to no cell: a hash of what was written for it.
pub fn settings_key(settings: &Settings) -> String {
    let pairs: serde_json::Map<String, Value> =
        settings.iter().map(|(key, setting)| (key.to_string(), json(&setting.value))).collect();
    plain_key(&Value::Object(pairs))
}

/// The key of a cell that is stated as plain data.
pub fn plain_key(cell: &Value) -> String {
    hash(&canonical(cell))
}

/// 16 hex digits of a text.
pub fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_string()
}

//! Which records of a notebook a command is about.

use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use zbench_reports::Notebook;
use zbench_reports::compare::Side;
use zbench_reports::record::Record;
use zbench_reports::store::RECORDS;

/// The records that `what` stands for: ids or their beginnings, and `key=value` filters (terms joined by commas, all of
/// which must hold). Nothing stands for all.
///
/// # Errors
/// An id that no record has, or several have.
pub fn select(notebook: &Notebook, mut records: Vec<Record>, what: &[String]) -> Result<Vec<Record>> {
    let (filters, ids): (Vec<&String>, Vec<&String>) = what.iter().partition(|word| word.contains('='));
    for filter in filters {
        let terms = terms(filter);
        records.retain(|record| terms.iter().all(|(key, value)| has(record, key, value)));
    }
    if !ids.is_empty() {
        let found: Vec<Record> = ids.iter().map(|id| notebook.find(id)).collect::<Result<_, _>>()?;
        records.retain(|record| found.iter().any(|wanted| wanted.id == record.id));
    }
    Ok(records)
}

fn terms(filter: &str) -> Vec<(&str, &str)> {
    let pairs = filter.split(',').filter_map(|term| term.split_once('='));
    pairs.map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// Whether a record has a value: of its own, or of its configuration. A commit may be given by its beginning, or in full
/// where the record has its beginning.
fn has(record: &Record, key: &str, wanted: &str) -> bool {
    let Some(value) = value_of(record, key) else { return false };
    match key {
        "commit" => !wanted.is_empty() && (value.starts_with(wanted) || wanted.starts_with(&value)),
        _ => value == wanted,
    }
}

fn value_of(record: &Record, key: &str) -> Option<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    match key {
        "id" => Some(record.id.clone()),
        "name" => Some(record.name.clone()),
        "key" => Some(record.key.clone()),
        "status" => Some(record.outcome.status.name().to_string()),
        "trial" => Some(record.trial.to_string()),
        "commit" => {
            record.environment.get("commit").and_then(Value::as_str).filter(|c| !c.is_empty()).map(str::to_string)
        }
        _ => record.setting(key).map(text),
    }
}

/// The notebooks that a command reads, each once.
pub struct Books {
    default: PathBuf,
    read: HashMap<PathBuf, Vec<Record>>,
}

/// A selector taken apart: the notebook, and what of it; `None` is all.
struct Located<'s> {
    folder: PathBuf,
    rest: Option<&'s str>,
}

impl Books {
    /// None is read yet.
    pub fn new(default: &Path) -> Self {
        Self { default: default.to_path_buf(), read: HashMap::new() }
    }

    /// Reads the notebook that a selector is about, unless that has been done.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn read(&mut self, selector: &str) -> Result<()> {
        let Located { folder, rest } = self.locate(selector)?;
        // A word alone may be a folder and an id.
        if rest.is_none() && !is_path(selector) && is_notebook(&self.default) {
            self.read_folder(self.default.clone())?;
        }
        self.read_folder(folder)
    }

    fn read_folder(&mut self, folder: PathBuf) -> Result<()> {
        if let Entry::Vacant(place) = self.read.entry(folder) {
            let contents = Notebook::open(place.key())?.read()?;
            for warning in contents.warnings() {
                crate::say!("warning: {}: {warning}", place.key().display());
            }
            place.insert(contents.records);
        }
        Ok(())
    }

    /// The records that a selector stands for: a notebook's folder, `FOLDER:selector`, a filter, a record, a cell. Its
    /// notebook has been [`read`](Self::read).
    ///
    /// # Errors
    /// A selector that stands for nothing, or for several things; says as what it was tried.
    pub fn side(&self, selector: &str) -> Result<Side<'_>> {
        let Located { folder, rest } = self.locate(selector)?;
        let records = self.read.get(&folder).map_or(&[][..], |records| records);
        let chosen = match rest {
            Some(rest) => chosen(records, &folder, rest)?,
            None => self.whole(records, selector.trim())?,
        };
        Ok(Side { selector: selector.trim().into(), records: chosen })
    }

    fn locate<'s>(&self, selector: &'s str) -> Result<Located<'s>> {
        let selector = selector.trim();
        if selector.is_empty() {
            bail!("a selector is empty; name a record, a cell, a filter as name=TITLE, or a notebook's folder");
        }
        let as_folder = Path::new(selector);
        if is_notebook(as_folder) {
            return Ok(Located { folder: as_folder.into(), rest: None });
        }
        // The longest folder first: a colon may be part of its name.
        let cut = selector.rmatch_indices(':').find(|(place, _)| is_notebook(Path::new(&selector[..*place])));
        if let Some((place, _)) = cut {
            let rest = selector[place + 1..].trim();
            if rest.is_empty() {
                bail!("`{selector}` ends with a colon; write a filter behind it, or leave it out");
            }
            return Ok(Located { folder: selector[..place].into(), rest: Some(rest) });
        }
        if as_folder.is_dir() && is_path(selector) {
            bail!("{selector} is a folder without {RECORDS}, so it is no notebook");
        }
        if !self.default.is_dir() {
            bail!(
                "`{selector}` is no notebook's folder, and there is no notebook in {} that could hold it; name one with \
                 --notebook DIR, or write DIR:{selector}",
                self.default.display()
            );
        }
        Ok(Located { folder: self.default.clone(), rest: Some(selector) })
    }

    /// All of a notebook.
    fn whole<'a>(&'a self, records: &'a [Record], selector: &str) -> Result<Vec<&'a Record>> {
        let others = self.read.get(&self.default).filter(|_| !is_path(selector));
        let (ids, keys) = others.map_or_else(Default::default, |records| beginnings(records, selector));
        if let Some(other) = ids.first().or(keys.first()) {
            bail!(
                "`{selector}` is the folder of a notebook and also the beginning of {other}; write ./{selector} for the folder"
            );
        }
        if records.is_empty() {
            bail!("the notebook {selector} holds no records");
        }
        Ok(records.iter().collect())
    }
}

fn is_path(selector: &str) -> bool {
    selector.contains(['/', '.'])
}

fn is_notebook(folder: &Path) -> bool {
    folder.join(RECORDS).is_file()
}

/// Ids and keys that begin so, each once and in order.
fn beginnings<'a>(records: &'a [Record], prefix: &str) -> (Vec<&'a str>, Vec<&'a str>) {
    let collect = |of: fn(&Record) -> &str| {
        let mut found: Vec<&str> = records.iter().map(of).filter(|name| name.starts_with(prefix)).collect();
        found.sort_unstable();
        found.dedup();
        // A whole name wins over longer ones.
        if found.contains(&prefix) { vec![found[0]] } else { found }
    };
    (collect(|record| &record.id), collect(|record| &record.key))
}

/// What a filter, an id or a key stands for in a notebook.
fn chosen<'a>(records: &'a [Record], folder: &Path, text: &str) -> Result<Vec<&'a Record>> {
    if text.contains('=') {
        return filtered(records, folder, text);
    }
    let (ids, keys) = beginnings(records, text);
    let few = |names: &[&str]| {
        let shown = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        if names.len() > 4 { format!("{shown}, …") } else { shown }
    };
    match (&ids[..], &keys[..]) {
        ([id], []) => Ok(records.iter().filter(|record| record.id == *id).collect()),
        ([], [key]) => Ok(records.iter().filter(|record| record.key == *key).collect()),
        ([], []) => bail!(
            "`{text}` matches nothing: it is not the folder of a notebook (one with {RECORDS}), and neither an id of the {} nor a \
             key of the {} in {} begins with it. `zbench list` shows ids and keys; name=TITLE selects a grid, commit=HASH a commit",
            plural(records.len(), "record"),
            count_of_keys(records),
            folder.display()
        ),
        (ids, keys) => {
            let mut things = Vec::new();
            if !ids.is_empty() {
                things.push(format!("{} ({})", plural(ids.len(), "record"), few(ids)));
            }
            if !keys.is_empty() {
                things.push(format!("{} ({})", plural(keys.len(), "cell"), few(keys)));
            }
            bail!("`{text}` stands for {}; give more letters", things.join(" and for "))
        }
    }
}

fn plural(count: usize, one: &str) -> String {
    zbench_reports::units::plural(count, one, &format!("{one}s"))
}

fn count_of_keys(records: &[Record]) -> String {
    let keys: std::collections::HashSet<&str> = records.iter().map(|record| record.key.as_str()).collect();
    plural(keys.len(), "cell")
}

fn filtered<'a>(records: &'a [Record], folder: &Path, filter: &str) -> Result<Vec<&'a Record>> {
    if let Some(term) = filter.split(',').find(|term| term.split_once('=').is_none_or(|(key, _)| key.trim().is_empty()))
    {
        bail!("`{term}` in `{filter}` is no key=value; a filter is terms joined by commas, all of which must hold");
    }
    let terms = terms(filter);
    let found: Vec<&Record> =
        records.iter().filter(|record| terms.iter().all(|(key, value)| has(record, key, value))).collect();
    if found.is_empty() {
        bail!("{}", why_none(records, folder, filter, &terms));
    }
    let mut commits: Vec<String> = found.iter().filter_map(|record| value_of(record, "commit")).collect();
    commits.sort_unstable();
    commits.dedup();
    if let (Some((_, wanted)), true) = (terms.iter().find(|(key, _)| *key == "commit"), commits.len() > 1) {
        bail!("commit={wanted} stands for {} commits ({}); give more letters", commits.len(), commits.join(", "));
    }
    Ok(found)
}

/// The first term that no record has, and what the records have instead.
fn why_none(records: &[Record], folder: &Path, filter: &str, terms: &[(&str, &str)]) -> String {
    let folder = folder.display();
    for (key, value) in terms {
        if records.iter().any(|record| has(record, key, value)) {
            continue;
        }
        let mut values: Vec<String> = records.iter().filter_map(|record| value_of(record, key)).collect();
        values.sort_unstable();
        values.dedup();
        let more = if values.len() > 8 { ", …" } else { "" };
        values.truncate(8);
        return match values.is_empty() {
            true => format!(
                "no record of {folder} has a value of `{key}`; a filter's keys are name, id, key, status, trial, commit, and keys \
                 of the configuration as parallel.strategy"
            ),
            false => format!("no record of {folder} has {key}={value}; there are: {}{more}", values.join(", ")),
        };
    }
    format!("no record of {folder} has all of {filter}; each term alone has some")
}

//! Which records of a notebook a command is about.

use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::HashMap;
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

impl Books {
    /// None is read yet.
    pub fn new(default: &Path) -> Self {
        Self { default: default.to_path_buf(), read: HashMap::new() }
    }

    /// The records that a selector stands for: a notebook's folder, `FOLDER:selector`, a filter, a record, a cell.
    ///
    /// # Errors
    /// A selector that stands for nothing, or for several things; says as what it was tried.
    pub fn side(&mut self, selector: &str) -> Result<Side> {
        let selector = selector.trim();
        if selector.is_empty() {
            bail!("a selector is empty; name a record, a cell, a filter as name=TITLE, or a notebook's folder");
        }
        let as_folder = Path::new(selector);
        if is_notebook(as_folder) {
            return self.folder(selector, as_folder);
        }
        // The longest folder first: a colon may be part of its name.
        let cut = selector.rmatch_indices(':').find(|(place, _)| is_notebook(Path::new(&selector[..*place])));
        if let Some((place, _)) = cut {
            let (folder, rest) = (Path::new(&selector[..place]), selector[place + 1..].trim());
            if rest.is_empty() {
                bail!("`{selector}` ends with a colon; write a filter behind it, or leave it out");
            }
            let records = chosen(self.records(folder)?, folder, rest, &format!("{rest} in {}", folder.display()))?;
            return Ok(Side { selector: selector.into(), records });
        }
        if as_folder.is_dir() && selector.contains(['/', '.']) {
            bail!("{selector} is a folder without {RECORDS}, so it is no notebook");
        }
        let default = self.default.clone();
        if !default.is_dir() {
            bail!(
                "`{selector}` is no notebook's folder, and there is no notebook in {} that could hold it; name one with \
                 --notebook DIR, or write DIR:{selector}",
                default.display()
            );
        }
        let records = chosen(self.records(&default)?, &default, selector, selector)?;
        Ok(Side { selector: selector.into(), records })
    }

    fn folder(&mut self, selector: &str, folder: &Path) -> Result<Side> {
        // A word alone may be an id as well.
        if !selector.contains(['/', '.']) && self.default.is_dir() {
            let default = self.default.clone();
            let (ids, keys) = beginnings(self.records(&default)?, selector);
            if let Some(other) = ids.first().or(keys.first()) {
                bail!(
                    "`{selector}` is a notebook's folder, and {other} begins so too; write ./{selector} for the folder"
                );
            }
        }
        let records = self.records(folder)?.to_vec();
        if records.is_empty() {
            bail!("the notebook {selector} holds no records");
        }
        Ok(Side { selector: selector.into(), records })
    }

    fn records(&mut self, folder: &Path) -> Result<&[Record]> {
        if !self.read.contains_key(folder) {
            let contents = Notebook::open(folder)?.read()?;
            for warning in contents.warnings() {
                crate::say!("warning: {}: {warning}", folder.display());
            }
            self.read.insert(folder.to_path_buf(), contents.records);
        }
        Ok(&self.read[folder])
    }
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
fn chosen(records: &[Record], folder: &Path, text: &str, shown: &str) -> Result<Vec<Record>> {
    if text.contains('=') {
        return filtered(records, folder, text);
    }
    let (ids, keys) = beginnings(records, text);
    let few = |names: &[&str]| {
        let shown = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        if names.len() > 4 { format!("{shown}, …") } else { shown }
    };
    match (&ids[..], &keys[..]) {
        ([id], []) => Ok(records.iter().filter(|record| record.id == *id).cloned().collect()),
        ([], [key]) => Ok(records.iter().filter(|record| record.key == *key).cloned().collect()),
        ([], []) => bail!(
            "`{shown}` is nothing: tried as a notebook's folder (none with {RECORDS}), as a record's id (none of {} in {} begins \
             so) and as a cell's key (nor of {}); `zbench list` shows ids and keys; a grid is name=TITLE, a commit commit=HASH",
            records.len(),
            folder.display(),
            count_of_keys(records)
        ),
        (ids, keys) => {
            let mut things = Vec::new();
            if !ids.is_empty() {
                things.push(format!("{} ({})", plural(ids.len(), "record"), few(ids)));
            }
            if !keys.is_empty() {
                things.push(format!("{} ({})", plural(keys.len(), "cell"), few(keys)));
            }
            bail!("`{shown}` stands for {}; give more letters", things.join(" and for "))
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

fn filtered(records: &[Record], folder: &Path, filter: &str) -> Result<Vec<Record>> {
    if let Some(term) = filter.split(',').find(|term| term.split_once('=').is_none_or(|(key, _)| key.trim().is_empty()))
    {
        bail!("`{term}` in `{filter}` is no key=value; a filter is terms joined by commas, all of which must hold");
    }
    let terms = terms(filter);
    let found: Vec<Record> =
        records.iter().filter(|record| terms.iter().all(|(key, value)| has(record, key, value))).cloned().collect();
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

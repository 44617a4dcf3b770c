//! Which records of a notebook a command is about.

use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zbench_config::keys;
use zbench_reports::label::{self, Term};
use zbench_reports::record::Record;
use zbench_reports::store::RECORDS;
use zbench_reports::{Index, IndexEntry, Notebook, grid_report};

/// The records that `what` stands for: words of `key=value` terms alone narrow, each of them; others (ids, keys of cells, strategies,
/// labels) name records, all of which are taken. Nothing stands for all.
///
/// # Errors
/// A word that names nothing, or an id that several records have.
pub fn select<'i>(
    notebook: &Notebook,
    index: &'i Index,
    mut records: Vec<&'i IndexEntry>,
    what: &[String],
) -> Result<Vec<&'i IndexEntry>> {
    if what.is_empty() {
        return Ok(records);
    }
    let is_filter = |word: &&String| label::read(word).iter().all(|term| matches!(term, Term::Pair(..)));
    let (filters, names): (Vec<&String>, Vec<&String>) =
        what.iter().partition(|word| is_filter(word) && !is_label(&records, word));
    let all: Vec<&IndexEntry> = index.records.iter().collect();
    let mut wanted: HashSet<&str> = HashSet::new();
    for name in &names {
        let found = named(&records, name)?;
        wanted.extend(found.iter().map(|record| record.id.as_str()));
        // A record that other terms leave out exists all the same.
        if found.is_empty() && named(&all, name)?.is_empty() {
            wanted.extend(one(notebook, index, name)?.into_iter().map(|record| record.id.as_str()));
        }
    }
    for filter in filters {
        if let Some(key) = unknown_key(&all, filter) {
            bail!("no record of {} has a value of `{key}`; {KEYS_OF_FILTERS}", notebook.directory().display());
        }
        let held: HashSet<&str> =
            holding(&records, &label::read(filter))?.iter().map(|record| record.id.as_str()).collect();
        records.retain(|record| held.contains(record.id.as_str()));
    }
    records.retain(|record| names.is_empty() || wanted.contains(record.id.as_str()));
    Ok(records)
}

/// The record, or the records of the one cell, that a word stands for, the newest last.
///
/// # Errors
/// It stands for nothing, or for several cells, which are listed.
pub fn one<'i>(notebook: &Notebook, index: &'i Index, text: &str) -> Result<Vec<&'i IndexEntry>> {
    let text = text.trim();
    if text.is_empty() {
        bail!("the selector is empty; write the beginning of a record's id, or a label that `zbench list` shows");
    }
    let all: Vec<&IndexEntry> = index.records.iter().collect();
    let records = &all[..];
    if is_id(records, text) {
        return Ok(vec![notebook.find_in(index, text)?]);
    }
    let terms = label::read(text);
    let found = of_one_cell(records, text, named(records, text)?);
    let mut keys = HashSet::new();
    let cells: Vec<&IndexEntry> = found.iter().copied().filter(|record| keys.insert(record.key.as_str())).collect();
    let is_named = |path: &str| {
        terms.iter().any(|term| match term {
            Term::Pair(key, _) => label::is_key(path, key),
            Term::Word(_) => path == label::STRATEGY,
        })
    };
    let chosen = match &cells[..] {
        [] if matches!(terms[..], [Term::Word(_)]) => return Ok(vec![notebook.find_in(index, text)?]),
        [] => bail!("{}", why_none(records, notebook.directory(), text, &terms)),
        [only] => *only,
        several => match grid_report::plainest(several, &is_named) {
            Some(plain) => plain,
            None => bail!("{}", candidates(text, records, several)),
        },
    };
    // The second set of a reference's processes is no cell of its own.
    let mut records: Vec<&IndexEntry> = found.into_iter().filter(|record| record.key == chosen.key).collect();
    records.sort_by(|a, b| (!a.twin, &a.started).cmp(&(!b.twin, &b.started)));
    Ok(records)
}

/// What a filter may ask for.
const KEYS_OF_FILTERS: &str = "a filter's keys are name, id, key, status, trial, commit, and keys of the configuration as \
                               parallel.strategy";

/// The first key of a filter that neither a record nor a configuration has. A notebook without records tells nothing.
fn unknown_key<'t>(all: &[&IndexEntry], filter: &'t str) -> Option<&'t str> {
    let is_known = |typed: &str, value: &str| {
        OWN.contains(&typed)
            || !typed.is_empty() && keys::KEYS.iter().any(|key| label::is_key(key.name, typed))
            || all.iter().any(|record| record.setting(typed).is_some() || has(record, typed, Term::Pair(typed, value)))
            || cells(all).any(|cell| {
                let mut held = false;
                grid_report::each_setting(cell, &mut |path, _| {
                    held |= !typed.is_empty() && label::is_key(path, typed);
                });
                held
            })
    };
    label::read(filter).into_iter().find_map(|term| match term {
        Term::Pair(key, value) if !all.is_empty() && !is_known(key, value) => Some(key),
        _ => None,
    })
}

/// Most cells that are listed for an ambiguous word.
const LISTED: usize = 8;

/// The cells by their labels among all records, so that each is accepted.
fn candidates(text: &str, all: &[&IndexEntry], cells: &[&IndexEntry]) -> String {
    let names_differ = cells.iter().any(|cell| cell.name != cells[0].name);
    let labels: HashMap<&str, String> =
        all.iter().map(|record| record.key.as_str()).zip(grid_report::labels_of(all)).collect();
    let line = |cell: &&IndexEntry| match names_differ {
        true => format!("\n  \"{}, name={}\"", labels[cell.key.as_str()], cell.name),
        false => format!("\n  \"{}\"", labels[cell.key.as_str()]),
    };
    let mut lines: Vec<String> = cells.iter().take(LISTED).map(line).collect();
    if cells.len() > LISTED {
        lines.push(format!("\n  and {} more", cells.len() - LISTED));
    }
    format!("`{text}` stands for {} cells; name one of them, or a record's id:{}", cells.len(), lines.concat())
}

/// Whether a word is the beginning of an id, and nothing else that comes before one.
fn is_id(records: &[&IndexEntry], text: &str) -> bool {
    !is_label(records, text) && records.iter().any(|record| record.id.starts_with(text)) && !is_strategy(records, text)
}

fn is_strategy(records: &[&IndexEntry], text: &str) -> bool {
    records.iter().any(|record| record.setting(label::STRATEGY).is_some_and(|strategy| strategy == text))
}

/// Whether a text is, as a whole, the label of a record of kernels or a record's name.
fn is_label(records: &[&IndexEntry], text: &str) -> bool {
    records.iter().any(|record| has_label(record, text))
}

fn has_label(record: &IndexEntry, text: &str) -> bool {
    !text.is_empty() && (record.name == text || record.label.as_deref() == Some(text))
}

/// The records that a label, a filter, a strategy, a name, or the beginning of an id or a key stands for; none where there are
/// none.
fn named<'a>(records: &[&'a IndexEntry], text: &str) -> Result<Vec<&'a IndexEntry>> {
    let text = text.trim();
    if is_label(records, text) {
        return Ok(records.iter().copied().filter(|record| has_label(record, text)).collect());
    }
    match label::read(text)[..] {
        [Term::Word(word)] if !is_strategy(records, word) => begun(records, word),
        ref terms => holding(records, terms),
    }
}

/// The records of the only cell that a table calls by this text as a whole, where its terms stand for several cells or for none; else
/// those that were found.
fn of_one_cell<'a>(records: &[&'a IndexEntry], text: &str, found: Vec<&'a IndexEntry>) -> Vec<&'a IndexEntry> {
    let is_one = found.first().is_some_and(|first| found.iter().all(|record| record.key == first.key));
    if is_one || found.iter().any(|record| record.name == text) {
        return found;
    }
    let of_grid = |record: &IndexEntry| record.written.as_deref().is_some_and(|label| label::is_same(label, text));
    let labels = records.iter().zip(grid_report::labels_of(records));
    let called: Vec<&IndexEntry> = labels
        .filter(|(record, label)| label::is_same(label, text) || of_grid(record))
        .map(|(record, _)| *record)
        .collect();
    match called.first() {
        Some(first) if called.iter().all(|record| record.key == first.key) => {
            records.iter().copied().filter(|record| record.key == first.key).collect()
        }
        _ => found,
    }
}

/// The record or the cell whose id or key begins so.
fn begun<'a>(records: &[&'a IndexEntry], text: &str) -> Result<Vec<&'a IndexEntry>> {
    let (ids, keys) = beginnings(records, text);
    let few = |names: &[&str]| {
        let shown = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        if names.len() > 4 { format!("{shown}, …") } else { shown }
    };
    match (&ids[..], &keys[..]) {
        ([id], []) => Ok(records.iter().copied().filter(|record| record.id == *id).collect()),
        ([], [key]) => Ok(records.iter().copied().filter(|record| record.key == *key).collect()),
        ([], []) => Ok(Vec::new()),
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

/// The records of which all terms hold; several terms of one key are alternatives.
fn holding<'a>(records: &[&'a IndexEntry], terms: &[Term]) -> Result<Vec<&'a IndexEntry>> {
    let paths = terms.iter().map(|term| path_of(records, *term)).collect::<Result<Vec<String>>>()?;
    let holds = |record: &IndexEntry| {
        paths.iter().all(|path| {
            let mut of_key = terms.iter().zip(&paths).filter(|(_, other)| *other == path);
            of_key.any(|(term, path)| has(record, path, *term))
        })
    };
    Ok(records.iter().copied().filter(|record| holds(record)).collect())
}

/// Path of words that are not strategies: names, ids and keys.
const NAMES: &str = "";

/// What a term is about: a record's own key, or the whole name of the configuration's key.
fn path_of(records: &[&IndexEntry], term: Term) -> Result<String> {
    let (typed, value) = match term {
        Term::Word(word) if is_strategy(records, word) => return Ok(label::STRATEGY.into()),
        Term::Word(_) => return Ok(NAMES.into()),
        Term::Pair(typed, value) => (typed, value),
    };
    if OWN.contains(&typed) || records.iter().any(|record| record.setting(typed).is_some()) {
        return Ok(typed.into());
    }
    let mut paths: BTreeMap<String, bool> = BTreeMap::new();
    for cell in cells(records) {
        grid_report::each_setting(cell, &mut |path, held| {
            if label::is_key(path, typed) {
                *paths.entry(path.to_string()).or_default() |= label::is_value(path, held, value);
            }
        });
    }
    let with_value: Vec<&String> = paths.iter().filter(|(_, holds)| **holds).map(|(path, _)| path).collect();
    match &with_value[..] {
        [] => Ok(paths.keys().next().cloned().unwrap_or_else(|| typed.into())),
        [path] => Ok(path.to_string()),
        several => {
            let several: Vec<&str> = several.iter().map(|path| path.as_str()).collect();
            bail!("`{typed}` may be {}; write one of them in full", several.join(" or "))
        }
    }
}

/// The configurations of these records; of those that share one, it is seen once.
fn cells<'a>(records: &[&'a IndexEntry]) -> impl Iterator<Item = &'a Value> {
    let mut seen = HashSet::new();
    records.iter().map(|record| &record.cell).filter(move |cell| seen.insert(Arc::as_ptr(cell))).map(|cell| &**cell)
}

/// Keys of a record itself.
const OWN: [&str; 6] = ["id", "name", "key", "status", "trial", "commit"];

/// Whether a term holds of a record. A commit may be given by its beginning, or in full where the record has its beginning. What the
/// grid called the cell counts as well: not every key that is written is a key of the resolved cell.
fn has(record: &IndexEntry, path: &str, term: Term) -> bool {
    let (typed, wanted) = match term {
        Term::Word(word) if path == NAMES => {
            return record.id.starts_with(word) || record.key.starts_with(word) || has_label(record, word);
        }
        Term::Word(word) => (path, word),
        Term::Pair(typed, wanted) => (typed, wanted),
    };
    let holds = match (path, value_of(record, path)) {
        ("commit", Some(value)) => !wanted.is_empty() && (value.starts_with(wanted) || wanted.starts_with(&value)),
        (path, Some(value)) if OWN.contains(&path) => value == wanted,
        (path, _) => label::is_value(path, record.setting(path).unwrap_or(&Value::Null), wanted),
    };
    let is_written = |text: &str| {
        label::read(text).iter().any(|term| match term {
            Term::Pair(key, value) => {
                (*key == typed || label::is_key(typed, key)) && label::is_value(typed, &Value::from(*value), wanted)
            }
            Term::Word(_) => false,
        })
    };
    holds || record.written.as_deref().is_some_and(|text| !OWN.contains(&path) && is_written(text))
}

fn value_of(record: &IndexEntry, key: &str) -> Option<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    match key {
        "id" => Some(record.id.clone()),
        "name" => Some(record.name.clone()),
        "key" => Some(record.key.clone()),
        "status" => Some(record.status.name().to_string()),
        "trial" => Some(record.trial.to_string()),
        "commit" => record.stated("commit").and_then(Value::as_str).filter(|c| !c.is_empty()).map(str::to_string),
        _ => record.setting(key).map(text),
    }
}

/// The notebooks that a command reads, each only once.
pub struct NotebookSet {
    default: PathBuf,
    read: HashMap<PathBuf, (Notebook, Arc<Index>)>,
}

/// A selector taken apart: the notebook, and what of it; `None` is all.
struct Located<'s> {
    folder: PathBuf,
    rest: Option<&'s str>,
}

impl NotebookSet {
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
            let notebook = Notebook::open(place.key())?;
            let index = notebook.index()?;
            for warning in index.warnings() {
                zbench_host::say!("warning: {}: {warning}", place.key().display());
            }
            place.insert((notebook, index));
        }
        Ok(())
    }

    /// The records that a selector stands for: a notebook's folder, `FOLDER:selector`, a filter, a record, a cell. Its
    /// notebook has been [`read`](Self::read).
    ///
    /// # Errors
    /// A selector that stands for nothing, or for several things; says as what it was tried.
    pub fn side(&self, selector: &str) -> Result<Vec<Record>> {
        let Located { folder, rest } = self.locate(selector)?;
        let Some((notebook, index)) = self.read.get(&folder) else { return Ok(Vec::new()) };
        let records: Vec<&IndexEntry> = index.records.iter().collect();
        let chosen = match rest {
            Some(rest) => chosen(&records, &folder, rest)?,
            None => self.whole(records, selector.trim())?,
        };
        Ok(notebook.whole(chosen)?)
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
    fn whole<'a>(&'a self, records: Vec<&'a IndexEntry>, selector: &str) -> Result<Vec<&'a IndexEntry>> {
        let others = self.read.get(&self.default).filter(|_| !is_path(selector));
        let others: Vec<&IndexEntry> = others.iter().flat_map(|(_, index)| &index.records).collect();
        let (ids, keys) = beginnings(&others, selector);
        if let Some(other) = ids.first().or(keys.first()) {
            bail!(
                "`{selector}` is the folder of a notebook and also the beginning of {other}; write ./{selector} for the folder"
            );
        }
        if records.is_empty() {
            bail!("the notebook {selector} holds no records");
        }
        Ok(records)
    }
}

fn is_path(selector: &str) -> bool {
    selector.contains(['/', '.'])
}

fn is_notebook(folder: &Path) -> bool {
    folder.join(RECORDS).is_file()
}

/// Ids and keys that begin so, each once and in order.
fn beginnings<'a>(records: &[&'a IndexEntry], prefix: &str) -> (Vec<&'a str>, Vec<&'a str>) {
    let collect = |of: fn(&'a IndexEntry) -> &'a str| {
        let mut found: Vec<&str> = records.iter().copied().map(of).filter(|name| name.starts_with(prefix)).collect();
        found.sort_unstable();
        found.dedup();
        // A whole name wins over longer ones.
        if found.contains(&prefix) { vec![found[0]] } else { found }
    };
    (collect(|record| &record.id), collect(|record| &record.key))
}

/// What a selector stands for in a notebook.
fn chosen<'a>(records: &[&'a IndexEntry], folder: &Path, text: &str) -> Result<Vec<&'a IndexEntry>> {
    let terms = label::read(text);
    let found = of_one_cell(records, text, named(records, text)?);
    if found.is_empty() {
        match terms[..] {
            [Term::Word(_)] => bail!(
                "`{text}` matches nothing: it is not the folder of a notebook (one with {RECORDS}), no label, and neither an id of the \
                 {} nor a key of the {} in {} begins with it. `zbench list` shows ids, keys and labels; name=TITLE selects a grid, \
                 commit=HASH a commit",
                plural(records.len(), "record"),
                plural(records.iter().map(|record| &record.key).collect::<HashSet<_>>().len(), "cell"),
                folder.display()
            ),
            _ => bail!("{}", why_none(records, folder, text, &terms)),
        }
    }
    let mut commits: Vec<String> = found.iter().filter_map(|record| value_of(record, "commit")).collect();
    commits.sort_unstable();
    commits.dedup();
    let wanted = terms.iter().find_map(|term| match term {
        Term::Pair("commit", wanted) => Some(wanted),
        _ => None,
    });
    if let (Some(wanted), true) = (wanted, commits.len() > 1) {
        bail!("commit={wanted} stands for {} commits ({}); give more letters", commits.len(), commits.join(", "));
    }
    Ok(found)
}

fn plural(count: usize, one: &str) -> String {
    zbench_reports::units::plural(count, one, &format!("{one}s"))
}

/// The first term that no record has, and what the records have instead.
fn why_none(records: &[&IndexEntry], folder: &Path, text: &str, terms: &[Term]) -> String {
    let folder = folder.display();
    for term in terms {
        let Ok(path) = path_of(records, *term) else { continue };
        if records.iter().any(|record| has(record, &path, *term)) {
            continue;
        }
        let Term::Pair(key, value) = term else {
            let Term::Word(word) = term else { continue };
            return format!(
                "no record of {folder} has `{word}` of `{text}`: it is no key=value, and no strategy, name, id or key of a record"
            );
        };
        let mut values: Vec<String> = records.iter().filter_map(|record| value_of(record, &path)).collect();
        values.sort_unstable();
        values.dedup();
        let more = if values.len() > 8 { ", …" } else { "" };
        values.truncate(8);
        return match values.is_empty() {
            true => format!("no record of {folder} has a value of `{key}`; {KEYS_OF_FILTERS}"),
            false => format!("no record of {folder} has {key}={value}; there are: {}{more}", values.join(", ")),
        };
    }
    format!("no record of {folder} has all of {text}; each term alone has some")
}

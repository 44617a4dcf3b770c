//! A configuration file as settings with their places: parsed, with known keys and checked values. Combinations of
//! values are checked by [`super::resolve`].

mod search;

pub use search::Search;

use crate::keys::{self, Key};
use crate::kind::Kind;
use crate::places::{Place, Places};
use crate::plain::{bare, plain};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::Value;
use toml::de::{DeTable, DeValue};
use zbench_estimate::spelling;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Its place in the file; `None` for `--set`.
    pub place: Option<Place>,
    /// Whether an axis or an include of the grid gave it.
    pub from_grid: bool,
}

/// Settings by key.
pub type Settings = BTreeMap<&'static str, Setting>;

/// One axis of a grid.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The key that varies.
    pub key: &'static str,
    /// Its values, in the order of the file.
    pub values: Vec<Setting>,
}

/// A parsed file.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// The file.
    pub path: PathBuf,
    /// Settings outside the grid, `--set` included.
    pub base: Settings,
    /// Axes in the order of the file.
    pub axes: Vec<Axis>,
    /// A combination that has one of the values of each of these keys is left out.
    pub excludes: Vec<Vec<Axis>>,
    /// Cells beside the product, each a small grid of its own.
    pub includes: Vec<Vec<Axis>>,
    /// False for a file with includes and without axes: its cells are the includes. `--set` does not change that, as an
    /// axis that it narrows to one value is still one.
    pub has_product: bool,
    /// The key that is searched for the largest value that fits, for every combination.
    pub search: Option<Search>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The file, or `--set`.
    pub source: String,
    /// Where, when it is in the file.
    pub place: Option<Place>,
    /// The key, when it is about one.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(place) = self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<Problem>);

impl ConfigError {
    /// An error about a file as a whole.
    pub fn about(source: impl Into<String>, message: impl Into<String>) -> ConfigError {
        let (source, message) = (source.into(), message.into());
        ConfigError(vec![Problem { source, place: None, key: String::new(), message }])
    }
}

impl Document {
    /// Reads a file and applies `--set` arguments.
    pub fn read(path: &Path, set: &[String]) -> Result<Document, ConfigError> {
        let name = path.display().to_string();
        let bytes = zbench_engine::formats::files::bounded(path)
            .map_err(|error| ConfigError::about(&name, format!("cannot be read: {error}; name a TOML file")))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            ConfigError::about(&name, format!("is not UTF-8 text (byte {offset}); save it as UTF-8"))
        })?;
        Document::parse(path, &text, set)
    }

    /// Parses a file's text; `path` names it in errors and is where relative paths start.
    pub fn parse(path: &Path, text: &str, set: &[String]) -> Result<Document, ConfigError> {
        let source = path.display().to_string();
        let mut reader =
            Reader { source, places: Places::of(text), problems: Vec::new(), more: 0, parts: Default::default() };
        let document = Document { path: path.into(), has_product: true, ..Document::default() };
        let mut document = match DeTable::parse(text) {
            Ok(table) => reader.document(document, table.get_ref()),
            Err(error) => {
                let place = error.span().map(|span| reader.place(span.start));
                reader.problem(place, "", format!("not TOML: {}", error.message().trim()));
                document
            }
        };
        reader.overrides(&mut document, set);
        document.search = reader.finish_search(&document);
        if reader.more > 0 {
            let message = format!("{} more problems are left out; mend these first", reader.more);
            reader.problems.push(Problem { source: reader.source.clone(), place: None, key: String::new(), message });
        }
        if reader.problems.is_empty() { Ok(document) } else { Err(ConfigError(reader.problems)) }
    }

    /// The folder where the file's relative paths start.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// Collects what is wrong instead of stopping at the first.
struct Reader<'a> {
    source: String,
    places: Places<'a>,
    problems: Vec<Problem>,
    /// Number of problems beyond [`MOST_PROBLEMS`].
    more: usize,
    /// The keys of the search as written.
    parts: search::Parts,
}

/// Most problems of one file that are reported.
const MOST_PROBLEMS: usize = 100;

/// A known key and what was written for it.
type Found<'v, 'i> = (&'static Key, Place, &'v Spanned<DeValue<'i>>);

impl Reader<'_> {
    fn problem(&mut self, place: Option<Place>, key: &str, message: String) {
        if self.is_full() {
            self.more += 1;
            return;
        }
        self.problems.push(Problem { source: self.source.clone(), place, key: key.into(), message });
    }

    fn place(&self, offset: usize) -> Place {
        self.places.at(offset)
    }

    /// Whether there are enough problems: hints for more are not looked up.
    fn is_full(&self) -> bool {
        self.problems.len() >= MOST_PROBLEMS
    }

    fn document(&mut self, mut document: Document, table: &DeTable<'_>) -> Document {
        for (key, place, value) in self.flatten(table, "", &["grid"]) {
            if let Some(setting) = self.setting(key, value.get_ref(), place, false)
                && document.base.insert(key.name, setting).is_some()
            {
                self.problem(Some(place), key.name, "is given twice; keep one of them".into());
            }
        }
        let Some((_, grid)) = table.iter().find(|(name, _)| name.get_ref() == "grid") else { return document };
        let place = self.place(grid.span().start);
        let Some(grid) = grid.get_ref().as_table() else {
            self.problem(Some(place), "grid", "is not a table; write [grid] and an axis on each line below".into());
            return document;
        };
        document.axes = self.axes(grid, &search::WORDS, true);
        self.search(grid);
        document.excludes = self.tables(grid, "exclude");
        document.includes = self.tables(grid, "include");
        document.has_product = !document.axes.is_empty() || document.includes.is_empty();
        document
    }

    /// The known keys of a table in the order of the file; unknown ones become problems. `skip` are tables that are
    /// not configuration.
    fn flatten<'v, 'i>(&mut self, table: &'v DeTable<'i>, prefix: &str, skip: &[&str]) -> Vec<Found<'v, 'i>> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut found = Vec::new();
        for (name, value) in entries {
            if prefix.is_empty() && skip.contains(&name.get_ref().as_ref()) {
                continue;
            }
            let path =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            let place = self.place(name.span().start);
            if let Some(key) = keys::find(&path) {
                found.push((key, place, value));
            } else if keys::is_section(&path) {
                match value.get_ref().as_table() {
                    // A section without keys states nothing; within another it stands for a value that is not there.
                    Some(inner) if inner.is_empty() && !prefix.is_empty() => {
                        let first = keys::KEYS.iter().find(|key| key.name.starts_with(&format!("{path}.")));
                        let first = first.map_or(String::new(), |key| format!("write {}, or ", key.name));
                        self.problem(Some(place), &path, format!("is empty and says nothing; {first}leave it out"));
                    }
                    Some(inner) => found.extend(self.flatten(inner, &path, skip)),
                    None => {
                        let message =
                            format!("is a section, not a value; write [{path}] and its keys on the lines below");
                        self.problem(Some(place), &path, message);
                    }
                }
            } else {
                self.unknown(place, &path, value.get_ref().is_table(), if prefix.is_empty() { skip } else { &[] });
            }
        }
        found
    }

    /// `words` are the names that are allowed here beside keys.
    fn unknown(&mut self, place: Place, path: &str, is_table: bool, words: &[&str]) {
        if self.is_full() {
            return self.problem(Some(place), path, String::new());
        }
        let word = spelling::nearest(path, words.iter().copied());
        let hint = match (is_table, keys::nearest_section(path), word, keys::nearest(path)) {
            (true, Some(section), ..) => format!("unknown section; did you mean [{section}]?"),
            (_, _, Some(word), _) => format!("unknown key; did you mean {word}?"),
            (_, _, None, Some(key)) => format!("unknown key; did you mean {key}?"),
            _ => "unknown key; docs/configuration.md lists all keys".into(),
        };
        self.problem(Some(place), path, hint);
    }

    /// One value of a key, checked.
    fn setting(&mut self, key: &Key, value: &DeValue<'_>, place: Place, from_grid: bool) -> Option<Setting> {
        match plain(value).and_then(|value| key.kind.check(&value).map(|()| value)) {
            Ok(value) => Some(Setting { value, place: Some(place), from_grid }),
            Err(message) => {
                self.problem(Some(place), key.name, message);
                None
            }
        }
    }

    /// The axes of a table. If lists are not required, a valid single value is an axis of one value.
    fn axes(&mut self, table: &DeTable<'_>, skip: &[&str], lists: bool) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        for (key, place, value) in self.flatten(table, "", skip) {
            if axes.iter().any(|axis| axis.key == key.name) {
                self.problem(Some(place), key.name, "is an axis twice; keep one of them".into());
                continue;
            }
            let single = plain(value.get_ref()).is_ok_and(|value| key.kind.check(&value).is_ok());
            let values = match value.get_ref().as_array() {
                Some(list) if lists || !single => {
                    if list.is_empty() {
                        self.problem(Some(place), key.name, "the axis is empty; give at least one value".into());
                    }
                    let items: Vec<_> =
                        list.iter().map(|item| (self.place(item.span().start), item.get_ref())).collect();
                    items.into_iter().filter_map(|(place, item)| self.setting(key, item, place, true)).collect()
                }
                _ if lists => {
                    let message = "an axis is a list of values; write [ … ], or move the key out of [grid]".to_string();
                    self.problem(Some(place), key.name, message);
                    continue;
                }
                _ => self.setting(key, value.get_ref(), place, true).into_iter().collect(),
            };
            axes.push(Axis { key: key.name, values });
        }
        axes
    }

    /// `[[grid.exclude]]` or `[[grid.include]]`.
    fn tables(&mut self, grid: &DeTable<'_>, name: &str) -> Vec<Vec<Axis>> {
        let Some((_, value)) = grid.iter().find(|(key, _)| key.get_ref() == name) else { return Vec::new() };
        let place = self.place(value.span().start);
        let Some(list) = value.get_ref().as_array() else {
            let message = format!("is not a list of tables; write [[grid.{name}]] and keys on the lines below");
            self.problem(Some(place), &format!("grid.{name}"), message);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in list.iter() {
            match item.get_ref().as_table() {
                Some(table) if !table.is_empty() => tables.push(self.axes(table, &[], false)),
                _ => {
                    let place = self.place(item.span().start);
                    let message = format!("needs a table with at least one key; write [[grid.{name}]] and keys below");
                    self.problem(Some(place), &format!("grid.{name}"), message);
                }
            }
        }
        tables
    }

    /// `--set key=value`: wins over the file, and narrows an axis to one value.
    fn overrides(&mut self, document: &mut Document, set: &[String]) {
        for argument in set {
            let source = format!("--set {argument}");
            let of_search = argument.split_once('=').and_then(|(name, text)| self.parts.set(name, text, &source));
            let mut refuse = |key: &str, message: String| {
                self.problems.push(Problem { source: source.clone(), place: None, key: key.into(), message });
            };
            let Some((name, text)) = argument.split_once('=') else {
                refuse("", "has no value; write --set key=value".into());
                continue;
            };
            let name = name.trim();
            if let Some(taken) = of_search {
                taken.unwrap_or_else(|message| refuse(name, message));
                continue;
            }
            let Some(key) = keys::find(name) else {
                let hint = keys::nearest(name)
                    .map_or("docs/configuration.md lists all keys".into(), |key| format!("did you mean {key}?"));
                refuse(name, format!("unknown key; {hint}"));
                continue;
            };
            let mut value = bare(text.trim());
            if matches!(key.kind, Kind::Text | Kind::Path | Kind::Choice(_)) && !value.is_str() {
                value = Value::String(text.trim().into());
            }
            match key.kind.check(&value) {
                Ok(()) => {
                    document.set(key.name, value);
                    self.parts.narrow(key.name);
                }
                Err(message) => refuse(name, message),
            }
        }
    }
}

impl Document {
    fn set(&mut self, key: &'static str, value: Value) {
        self.axes.retain(|axis| axis.key != key);
        for include in &mut self.includes {
            include.retain(|axis| axis.key != key);
        }
        self.base.insert(key, Setting { value, place: None, from_grid: false });
    }
}

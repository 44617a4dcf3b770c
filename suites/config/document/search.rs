//! `search`, `search_max` and `search_multiple` of `[grid]`: the key whose largest value that fits is asked for. Cells get
//! their values in [`zbench_suites::max_batch`].

use super::{Document, Place, Problem, Reader};
use crate::keys;
use crate::kind::Kind;
use crate::plain::{bare, plain};
use toml::Value;
use toml::de::DeTable;
use zbench_estimate::spelling;

/// What `[grid]` has beside axes.
pub(super) const WORDS: [&str; 5] = ["exclude", "include", KEY, MOST, MULTIPLE];
const KEY: &str = "search";
const MOST: &str = "search_max";
const MULTIPLE: &str = "search_multiple";

/// Keys that can be searched, the most that is tried and the multiples.
const SEARCHED: [(&str, usize, usize); 2] = [("train.micro_batch", 1 << 16, 1), ("train.seq_len", 1 << 20, 64)];
const COUNT: Kind = Kind::Count { min: 1, max: 1 << 31 };

/// A key of which each combination of the grid gets the largest value that fits its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// The key.
    pub key: &'static str,
    /// The most that is tried.
    pub most: usize,
    /// Values are multiples of this, and begin with it.
    pub multiple: usize,
    /// Where it stands.
    pub place: Option<Place>,
}

impl Search {
    /// The key without its section.
    pub fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }
}

/// The keys of a search as written, before they are checked together.
#[derive(Default)]
pub(super) struct Parts {
    key: Option<Part<&'static str>>,
    most: Option<Part<usize>>,
    multiple: Option<Part<usize>>,
}

/// A value with its source and place.
#[derive(Clone)]
struct Part<T> {
    value: T,
    source: String,
    place: Option<Place>,
}

impl Reader<'_> {
    /// The words of a search in `[grid]`.
    pub(super) fn search(&mut self, grid: &DeTable<'_>) {
        for (name, value) in grid.iter() {
            let word = name.get_ref().as_ref();
            if ![KEY, MOST, MULTIPLE].contains(&word) {
                continue;
            }
            let place = self.place(value.span().start);
            let source = self.source.clone();
            let taken = plain(value.get_ref()).and_then(|value| self.parts.take(word, &value, &source, Some(place)));
            if let Err(message) = taken {
                self.problem(Some(place), &format!("grid.{word}"), message);
            }
        }
    }

    /// The search of the document. Problems are reported.
    pub(super) fn finish_search(&mut self, document: &Document) -> Option<Search> {
        let Parts { key, most, multiple } = std::mem::take(&mut self.parts);
        let mut refuse = |part: (&str, Option<Place>), word: &str, message: String| {
            let (source, place) = (part.0.to_string(), part.1);
            self.problems.push(Problem { source, place, key: format!("grid.{word}"), message });
        };
        let Some(searched) = key else {
            for (part, word) in [(&most, MOST), (&multiple, MULTIPLE)] {
                if let Some(part) = part {
                    let message = "has no effect without a search; write search = \"micro_batch\", or leave it out";
                    refuse((&part.source, part.place), word, message.into());
                }
            }
            return None;
        };
        let key = searched.value;
        let at = (searched.source.as_str(), searched.place);
        let names = |tables: &[Vec<super::Axis>]| tables.iter().flatten().any(|axis| axis.key == key);
        let beside = [
            (document.axes.iter().any(|axis| axis.key == key), "an axis of the grid"),
            (names(&document.includes), "named in [[grid.include]]"),
            (names(&document.excludes), "named in [[grid.exclude]]"),
        ];
        if let Some((_, what)) = beside.iter().find(|(is_so, _)| *is_so) {
            refuse(at, KEY, format!("{key} is searched, and {what}; leave out one of the two"));
            return None;
        }
        let (_, default_most, default_multiple) = SEARCHED.into_iter().find(|(name, ..)| *name == key)?;
        let (multiple_of, most_of) = (
            multiple.as_ref().map_or(default_multiple, |part| part.value),
            most.as_ref().map_or(default_most, |part| part.value),
        );
        if most_of < multiple_of {
            // The error is about the key that the user wrote.
            let (part, word) = if most.is_some() { (&most, MOST) } else { (&multiple, MULTIPLE) };
            let place = part.as_ref().map_or(at, |part| (part.source.as_str(), part.place));
            let message =
                format!("search_max = {most_of} is below search_multiple = {multiple_of}: there is no value to try");
            refuse(place, word, message);
            return None;
        }
        Some(Search { key, most: most_of, multiple: multiple_of, place: searched.place })
    }
}

impl Parts {
    /// `--set grid.search=…`; `None` if the name belongs to no search.
    pub(super) fn set(&mut self, name: &str, text: &str, source: &str) -> Option<Result<(), String>> {
        let word = name.trim().strip_prefix("grid.").filter(|word| [KEY, MOST, MULTIPLE].contains(word))?;
        Some(self.take(word, &bare(text.trim()), source, None))
    }

    /// A key that `--set` gives a value is no longer searched, just as it is no longer an axis.
    pub(super) fn narrow(&mut self, key: &str) {
        if self.key.as_ref().is_some_and(|searched| searched.value == key) {
            *self = Parts::default();
        }
    }

    fn take(&mut self, word: &str, value: &Value, source: &str, place: Option<Place>) -> Result<(), String> {
        let source = source.to_string();
        if word == KEY {
            let key = searched(value)?;
            self.key = Some(Part { value: key, source, place });
            return Ok(());
        }
        COUNT.check(value)?;
        // The kind has refused values that do not fit.
        let value = value.as_integer().and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
        let part = Some(Part { value, source, place });
        if word == MOST {
            self.most = part
        } else {
            self.multiple = part
        }
        Ok(())
    }
}

/// The key that a value of `search` means.
fn searched(value: &Value) -> Result<&'static str, String> {
    let last = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    let names: Vec<&'static str> = SEARCHED.iter().map(|(key, ..)| last(key)).collect();
    let all = format!("\"{}\"", names.join("\" or \""));
    let Some(text) = value.as_str() else {
        return Err(format!("{value} is no name of a key; write {all}"));
    };
    let found = SEARCHED.iter().map(|(key, ..)| *key).find(|key| *key == text || last(key) == text);
    found.ok_or_else(|| {
        let near = spelling::nearest(text, SEARCHED.iter().flat_map(|(key, ..)| [*key, last(key)]));
        match (near, keys::find(text).or_else(|| keys::nearest(text).and_then(keys::find))) {
            (Some(name), _) => format!("\"{text}\" cannot be searched; did you mean \"{name}\"?"),
            (None, Some(key)) => format!("{} cannot be searched; write {all}, or make it an axis", key.name),
            (None, None) => format!("\"{text}\" cannot be searched; write {all}"),
        }
    })
}

//! The keys of other programs' configurations: what each may hold, what it is when absent, and what becomes of it here.
//! docs/import-keys.md is the table; it has the defaults of DeepSpeed's code at commit edaa7221 (August 2026) and of
//! accelerate's at commit 16cb6eb8 (July 2026), and keys that DeepSpeed 0.19.8 and accelerate 1.15.0 have added.

use super::node::{Node, Value};
use std::sync::LazyLock;
pub use zbench_config::kind::hint;
pub use zbench_estimate::spelling::nearest;

/// The page with a table for each format.
pub const DOCUMENT: &str = include_str!("../../docs/import-keys.md");

/// DeepSpeed's keys.
pub static DEEPSPEED: LazyLock<Vec<Spec>> = LazyLock::new(|| read("DeepSpeed JSON"));
/// accelerate's keys.
pub static ACCELERATE: LazyLock<Vec<Spec>> = LazyLock::new(|| read("accelerate YAML"));
/// torchtitan's keys.
pub static TORCHTITAN: LazyLock<Vec<Spec>> = LazyLock::new(|| read("torchtitan TOML"));

/// Keys of accelerate's deepspeed_config whose value may be left to the training script.
pub const AUTO: &[&str] = &["deepspeed_config.gradient_accumulation_steps", "deepspeed_config.gradient_clipping"];

/// One key.
#[derive(Debug)]
pub struct Spec {
    /// The key, with the sections that it stands under in front.
    pub key: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// The same in words.
    pub holds: &'static str,
    /// What it is when absent, as JSON; empty where that is nothing or depends.
    pub default: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It is converted into settings.
    Becomes,
    /// It changes nothing that is measured or predicted; why.
    Ignored(&'static str),
    /// It matters there and has no equivalent here; why.
    Without(&'static str),
    /// It is an error: what replaced it.
    Gone(&'static str),
    /// It is a table of keys, which are listed below it.
    Section,
}

/// What a key may hold. Null stands for absent everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// true or false; in YAML also yes and no as texts.
    Bool,
    /// A whole number from this on; `5e8` is one.
    Whole(i64),
    /// A number from this on.
    Number(f64),
    /// A number from this on, or the word none.
    NumberOrNone(f64),
    /// Two numbers.
    Pair,
    /// Text.
    Text,
    /// One of these words, in letters of any size; of some their number, from 1, stands for them too.
    Word(&'static [&'static str]),
    /// A list, or a text with commas.
    List,
    /// Keys of its own.
    Table,
    /// Anything.
    Any,
}

/// The rows of one table of the page, each section in front of its first key.
fn read(title: &str) -> Vec<Spec> {
    let table = DOCUMENT.split("\n## ").find(|part| part.starts_with(title)).unwrap_or_default();
    let mut specs: Vec<Spec> = Vec::new();
    for spec in table.lines().filter_map(Spec::of_row) {
        for (end, _) in spec.key.match_indices('.') {
            let section = &spec.key[..end];
            if specs.iter().all(|spec| spec.key != section) {
                let (kind, holds) = (Kind::Table, "a table of keys");
                specs.push(Spec { key: section, kind, holds, default: "", fate: Fate::Section });
            }
        }
        specs.push(spec);
    }
    specs
}

impl Kind {
    fn of_words(words: &'static str) -> Option<Kind> {
        Some(match words {
            "true or false" => Kind::Bool,
            "two numbers, as [0.9, 0.999]" => Kind::Pair,
            "a text" => Kind::Text,
            "a list" => Kind::List,
            "a table of keys" => Kind::Table,
            "anything" | "" => Kind::Any,
            words if words.starts_with('"') => {
                Kind::Word(words.split(", ").map(|word| word.trim_matches('"')).collect::<Vec<_>>().leak())
            }
            words => match words.strip_prefix("a whole number from ") {
                Some(least) => Kind::Whole(least.parse().ok()?),
                None => {
                    let least = words.strip_prefix("a number from ")?;
                    match least.strip_suffix(", or \"none\"") {
                        Some(least) => Kind::NumberOrNone(least.parse().ok()?),
                        None => Kind::Number(least.parse().ok()?),
                    }
                }
            },
        })
    }
}

impl Spec {
    /// A row of the page; other lines are none.
    fn of_row(row: &'static str) -> Option<Spec> {
        let cells: Vec<&'static str> = row.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [key, holds, default, verdict, why] = cells[..] else { return None };
        let fate = match verdict {
            "used" => Fate::Becomes,
            "ignored" => Fate::Ignored(why),
            "no equivalent" => Fate::Without(why),
            "error: deprecated" => Fate::Gone(why),
            _ => return None,
        };
        let kind = Kind::of_words(holds)?;
        Some(Spec { key: key.trim_matches('`'), kind, holds, default: default.trim_matches('`'), fate })
    }

    /// The section that the key stands in, empty at the top, and its name there.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.key.rsplit_once('.').unwrap_or(("", self.key))
    }

    /// Whether a value can stand here; `Err` says what is wrong and what would be right.
    pub fn check(&self, node: &Node) -> Result<(), String> {
        let holds = self.holds;
        let wrong = || Err(format!("is {} ({}); write {holds}", node.what(), node.shown()));
        match (self.kind, &node.value) {
            (_, Value::Null) | (Kind::Any, _) | (Kind::Table, Value::Table(_)) => Ok(()),
            (Kind::Bool, _) if truth(node).is_some() => Ok(()),
            (Kind::Whole(least), _) => match node.whole() {
                Some(whole) if whole >= least => Ok(()),
                Some(whole) => Err(format!("{whole} is too small; write {holds}")),
                None => wrong(),
            },
            (Kind::NumberOrNone(_), Value::Text(text)) if text.eq_ignore_ascii_case("none") => Ok(()),
            (Kind::Number(least) | Kind::NumberOrNone(least), _) => match node.number() {
                Some(number) if number >= least => Ok(()),
                Some(number) => Err(format!("{number} is too small; write {holds}")),
                None => wrong(),
            },
            (Kind::Pair, Value::List(list)) if list.len() == 2 && list.iter().all(|item| item.number().is_some()) => {
                Ok(())
            }
            (Kind::Word(words), _) => match (word(words, node), node.text()) {
                (Some(_), _) => Ok(()),
                (None, Some(text)) => {
                    Err(format!("\"{}\" is none of {holds}{}", text.escape_debug(), hint(text, words)))
                }
                (None, None) => wrong(),
            },
            (Kind::Text, Value::Text(_)) | (Kind::List, Value::List(_) | Value::Text(_)) => Ok(()),
            _ => wrong(),
        }
    }
}

/// true, false, and what YAML's older and newer readers make of yes and no.
pub fn truth(node: &Node) -> Option<bool> {
    match &node.value {
        Value::Bool(value) => Some(*value),
        Value::Text(text) => match text.to_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// The word as the table has it. A bare `no` of YAML is false to some readers.
pub fn word(words: &[&'static str], node: &Node) -> Option<&'static str> {
    let named = |text: &str| words.iter().find(|word| word.eq_ignore_ascii_case(text)).copied();
    match &node.value {
        Value::Text(text) => named(text),
        Value::Bool(false) => named("no"),
        // PyTorch's enumerations count from 1, and older files have the number.
        Value::Int(index) if words.first().is_some_and(|first| *first == "FULL_SHARD") => {
            usize::try_from(*index).ok().and_then(|index| words.get(index.checked_sub(1)?)).copied()
        }
        _ => None,
    }
}

/// Where else a key of this name stands, be it a section; at the top rather than in a section.
pub fn elsewhere(specs: &[Spec], name: &str) -> Option<&'static str> {
    let is_there = |spec: &&Spec| spec.parts().1 == name && !matches!(spec.fate, Fate::Gone(_));
    specs.iter().filter(is_there).map(|spec| spec.key).min_by_key(|key| key.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_page_is_a_key() {
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `")).count();
        let keys: Vec<&Spec> = DEEPSPEED
            .iter()
            .chain(ACCELERATE.iter())
            .chain(TORCHTITAN.iter())
            .filter(|spec| spec.fate != Fate::Section)
            .collect();
        assert_eq!(keys.len(), rows);
        assert!(rows > 300);
        for spec in keys {
            let is_default = spec.default.is_empty() || serde_json::from_str::<serde_json::Value>(spec.default).is_ok();
            assert!(is_default, "{}: {} is no JSON", spec.key, spec.default);
        }
    }
}

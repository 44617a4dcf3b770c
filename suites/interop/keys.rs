//! What a foreign format's keys are, as data: name, what it may hold, what it is when absent, and what becomes of it here.

use super::node::{Node, Value};
use std::fmt;
pub use zbench_config::kind::hint;
pub use zbench_estimate::profile::nearest;

/// One key.
pub struct Spec {
    /// Its name, without those that it stands under.
    pub key: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What it is when absent, as JSON; empty where that is nothing or depends.
    pub default: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a key.
pub enum Fate {
    /// Settings, which code makes. The words say which keys, for documentation.
    Becomes(&'static str),
    /// Nothing that is measured or predicted; why.
    Ignored(&'static str),
    /// Nothing, though it matters there; why.
    Without(&'static str),
    /// An error: what replaced it.
    Gone(&'static str),
    /// A table of keys.
    Holds(&'static [Spec]),
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

impl fmt::Display for Kind {
    /// As messages and documentation put it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bool => f.write_str("true or false"),
            Kind::Whole(least) => write!(f, "a whole number from {least}"),
            Kind::Number(least) if *least == f64::MIN => f.write_str("a number"),
            Kind::Number(least) => write!(f, "a number from {least}"),
            Kind::NumberOrNone(least) => write!(f, "a number from {least}, or \"none\""),
            Kind::Pair => f.write_str("two numbers, as [0.9, 0.999]"),
            Kind::Text => f.write_str("a text"),
            Kind::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                f.write_str(&quoted.join(", "))
            }
            Kind::List => f.write_str("a list"),
            Kind::Table => f.write_str("a table of keys"),
            Kind::Any => f.write_str("anything"),
        }
    }
}

impl Kind {
    /// Whether a value can stand here; `Err` says what is wrong and what would be right.
    pub fn check(&self, node: &Node) -> Result<(), String> {
        let wrong = || Err(format!("is {} ({}); write {self}", node.what(), node.shown()));
        match (self, &node.value) {
            (_, Value::Null) | (Kind::Any, _) | (Kind::Table, Value::Table(_)) => Ok(()),
            (Kind::Bool, _) if truth(node).is_some() => Ok(()),
            (Kind::Whole(least), _) => match node.whole() {
                Some(whole) if whole >= *least => Ok(()),
                Some(whole) => Err(format!("{whole} is too small; write {self}")),
                None => wrong(),
            },
            (Kind::NumberOrNone(_), Value::Text(text)) if text.eq_ignore_ascii_case("none") => Ok(()),
            (Kind::Number(least) | Kind::NumberOrNone(least), _) => match node.number() {
                Some(number) if number >= *least => Ok(()),
                Some(number) => Err(format!("{number} is too small; write {self}")),
                None => wrong(),
            },
            (Kind::Pair, Value::List(list)) if list.len() == 2 && list.iter().all(|item| item.number().is_some()) => {
                Ok(())
            }
            (Kind::Text, Value::Text(_)) => Ok(()),
            (Kind::Word(words), _) => match word(words, node) {
                Some(_) => Ok(()),
                None => match node.text() {
                    Some(text) => Err(format!("\"{}\" is none of {self}{}", text.escape_debug(), hint(text, words))),
                    None => wrong(),
                },
            },
            (Kind::List, Value::List(_) | Value::Text(_)) => Ok(()),
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

/// A key that becomes settings.
pub const fn becomes(key: &'static str, kind: Kind, default: &'static str, what: &'static str) -> Spec {
    Spec { key, kind, default, fate: Fate::Becomes(what) }
}

/// A key that changes nothing here.
pub const fn ignored(key: &'static str, kind: Kind, default: &'static str, why: &'static str) -> Spec {
    Spec { key, kind, default, fate: Fate::Ignored(why) }
}

/// A key without equivalent.
pub const fn without(key: &'static str, kind: Kind, default: &'static str, why: &'static str) -> Spec {
    Spec { key, kind, default, fate: Fate::Without(why) }
}

/// A key that something replaced.
pub const fn gone(key: &'static str, instead: &'static str) -> Spec {
    Spec { key, kind: Kind::Any, default: "", fate: Fate::Gone(instead) }
}

/// A table of keys.
pub const fn holds(key: &'static str, keys: &'static [Spec]) -> Spec {
    Spec { key, kind: Kind::Table, default: "", fate: Fate::Holds(keys) }
}

/// Where else a key of this name stands, be it a section.
pub fn elsewhere(specs: &'static [Spec], name: &str) -> Option<String> {
    let under = |spec: &'static Spec| match spec.fate {
        Fate::Holds(inner) => elsewhere(inner, name).map(|below| format!("{}.{below}", spec.key)),
        _ => None,
    };
    let is_there = specs.iter().any(|spec| spec.key == name && !matches!(spec.fate, Fate::Gone(_)));
    is_there.then(|| name.to_string()).or_else(|| specs.iter().find_map(under))
}

/// All keys of a table and those below it, with those that they stand under in front.
pub fn flat(specs: &'static [Spec]) -> Vec<(String, &'static Spec)> {
    let mut all = Vec::new();
    for spec in specs {
        match spec.fate {
            Fate::Holds(inner) => {
                all.extend(flat(inner).into_iter().map(|(name, below)| (format!("{}.{name}", spec.key), below)));
            }
            _ => all.push((spec.key.to_string(), spec)),
        }
    }
    all
}

/// docs/import-keys.md: a table for each format.
pub fn document() -> String {
    let mut text = String::from(
        "# Keys of other programs\n\nGenerated by `zbench import --keys`; a test keeps it true. [import.md](import.md) says how the \
         verdicts are meant. A key that is not here is an error. A key of the columns \"no equivalent\" or \"ignored\" that states \
         its own default is reported as `default`.\n",
    );
    let formats: [(&str, &'static [Spec]); 2] =
        [("DeepSpeed JSON", super::deepspeed::keys::TOP), ("accelerate YAML", super::accelerate::keys::TOP)];
    for (title, specs) in formats {
        text += &format!(
            "\n## {title}\n\n| key | holds | default | verdict | becomes, or why not |\n| --- | --- | --- | --- | --- |\n"
        );
        for (name, spec) in flat(specs) {
            let (verdict, what) = match spec.fate {
                Fate::Becomes(what) => ("used", what),
                Fate::Ignored(why) => ("ignored", why),
                Fate::Without(why) => ("no equivalent", why),
                Fate::Gone(instead) => ("error: deprecated", instead),
                Fate::Holds(_) => continue,
            };
            let default = if spec.default.is_empty() { String::new() } else { format!("`{}`", spec.default) };
            let kind = if matches!(spec.fate, Fate::Gone(_)) { String::new() } else { spec.kind.to_string() };
            text += &format!("| `{name}` | {kind} | {default} | {verdict} | {what} |\n");
        }
    }
    text
}

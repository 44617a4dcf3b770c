//! YAML with the place of every key and value.

use super::json::ParseError;
use super::node::{Key, Node, Value};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Location, Spanned};
use std::fmt;
use zbench_config::Place;

/// Reads the one document of a text.
///
/// # Errors
/// It is no YAML, or several documents. A key that stands twice is there twice.
pub fn parse(text: &str) -> Result<Node, ParseError> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let read: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        // Behind the first line the parser shows the file, which the reader has.
        let whole = error.to_string();
        let message = whole.lines().find(|line| !line.trim().is_empty()).unwrap_or("unreadable").trim().to_string();
        // Advice to programmers stands behind a comma.
        let message = message.split(", set ").next().unwrap_or_default().to_string();
        let place = error.location().map_or(Place { line: 1, column: 1 }, place);
        ParseError { place, key: String::new(), message: format!("not YAML: {message}; write `key: value` lines") }
    })?;
    node(read)
}

/// Keeps the last of several entries with one key, as Python's readers do, and notes the lines.
pub(super) fn last_of_each(table: &mut Node, notes: &mut Vec<String>) {
    let Value::Table(entries) = &mut table.value else { return };
    let all = std::mem::take(entries);
    for (key, value) in all {
        if let Some(at) = entries.iter().position(|(other, _)| other.name == key.name) {
            let (name, lines) = (&key.name, [entries[at].0.place.line, key.place.line]);
            notes.push(format!("{name} stands in lines {} and {} and counts as in the last", lines[0], lines[1]));
            entries.remove(at);
        }
        entries.push((key, value));
    }
    entries.iter_mut().for_each(|(_, value)| last_of_each(value, notes));
}

fn place(location: Location) -> Place {
    // Files are far shorter than 2^32 lines.
    Place { line: location.line().max(1) as usize, column: location.column().max(1) as usize }
}

/// A value whose keys and values know their places.
enum Tree {
    Plain(Value),
    List(Vec<Spanned<Tree>>),
    Table(Vec<(Spanned<String>, Spanned<Tree>)>),
}

fn node(tree: Spanned<Tree>) -> Result<Node, ParseError> {
    let place_of = place(tree.referenced);
    let value = match tree.value {
        Tree::Plain(Value::Float(number)) if !number.is_finite() => {
            let message = format!("{number} is no number of a configuration; write a finite one");
            return Err(ParseError { place: place_of, key: String::new(), message });
        }
        Tree::Plain(value) => value,
        Tree::List(list) => Value::List(list.into_iter().map(node).collect::<Result<_, _>>()?),
        Tree::Table(table) => {
            let entry = |(key, value): (Spanned<String>, Spanned<Tree>)| {
                Ok((Key { place: place(key.referenced), name: key.value }, node(value)?))
            };
            Value::Table(table.into_iter().map(entry).collect::<Result<_, _>>()?)
        }
    };
    Ok(Node { value, place: place_of })
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Tree, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Tree, D::Error> {
        Tree::deserialize(from)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Plain(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Tree, E> {
        Ok(Tree::Plain(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Text(value.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = from.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut table = Vec::new();
        while let Some(entry) = from.next_entry()? {
            table.push(entry);
        }
        Ok(Tree::Table(table))
    }
}

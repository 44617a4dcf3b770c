//! What a JSON or YAML file holds, every key and value with its place.

use serde_json::Value as Json;
use zbench_config::Place;

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it begins.
    pub place: Place,
}

/// A key and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key.
    pub name: String,
    /// Where it stands.
    pub place: Place,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// true or false.
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    /// Any other finite number.
    Float(f64),
    /// Text.
    Text(String),
    /// Values in order.
    List(Vec<Node>),
    /// Keys and values in the order of the file; no key twice.
    Table(Vec<(Key, Node)>),
}

impl Node {
    /// The keys of a table.
    pub fn table(&self) -> Option<&[(Key, Node)]> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The value of a key of this table.
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.table()?.iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Int(whole) => Some(whole as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// The whole number; `5e8` is one, as these tools take it.
    pub fn whole(&self) -> Option<i64> {
        match self.value {
            Value::Int(whole) => Some(whole),
            // Up to 2^53 every whole number is exact, and is not changed by the cast.
            Value::Float(number) if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => {
                Some(number as i64)
            }
            _ => None,
        }
    }

    /// The value without places.
    pub fn json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(whole) => Json::from(*whole),
            // 2e8 is a count, and looks like one.
            Value::Float(number) if number.fract() == 0.0 && (1e6..9e15).contains(number) => Json::from(*number as i64),
            Value::Float(number) => Json::from(*number),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(list) => Json::Array(list.iter().map(Node::json).collect()),
            Value::Table(table) => {
                Json::Object(table.iter().map(|(key, node)| (key.name.clone(), node.json())).collect())
            }
        }
    }

    /// What it is, for messages: `a text`.
    pub fn what(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// How it looks in a message or a table: as JSON, on one line, not too long.
    pub fn shown(&self) -> String {
        let text = self.json().to_string();
        match text.char_indices().nth(60) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

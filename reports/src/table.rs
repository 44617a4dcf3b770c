//! Tables without a format: columns, rows, and entries with a text for people and a value for machines.

use serde::Serialize;
use serde_json::Value;

use crate::units;

/// Columns and rows. Every row has as many entries as there are columns; [`Table::row`] sees to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Table {
    /// Short name, for machines: `cells`, `memory`.
    pub name: String,
    /// What the reader must know to read it; may be empty.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Entry>>,
    /// It goes into what others say shortly: where it is long a terminal names it and does not print it.
    pub is_detail: bool,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    /// What people read at its top.
    pub title: String,
    /// Unit of the entries' values for machines (`bytes`, `ms`, `fraction`); empty when they have none.
    pub unit: String,
    /// Which side entries are set against.
    pub align: Align,
    /// Left out where people read: more precise, or redundant, but good to have in CSV and JSON.
    pub for_machines: bool,
}

/// Which side the entries of a column are set against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

impl Column {
    /// A column of words.
    pub fn words(title: impl Into<String>) -> Self {
        Self { title: title.into(), unit: String::new(), align: Align::Left, for_machines: false }
    }

    /// A column of numbers whose values have this unit.
    pub fn numbers(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { title: title.into(), unit: unit.into(), align: Align::Right, for_machines: false }
    }

    /// The same column, left out where people read.
    pub fn for_machines(mut self) -> Self {
        self.for_machines = true;
        self
    }

    /// The title with its unit, as machines read it: `peak memory (bytes)`.
    pub fn full_title(&self) -> String {
        if self.unit.is_empty() { self.title.clone() } else { format!("{} ({})", self.title, self.unit) }
    }
}

/// One entry of a table: the text for people and the value for machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// What people read, with its unit where the column's title does not state it.
    pub text: String,
    /// What machines read, in the column's unit; null when there is none.
    pub value: Value,
    /// How it is to be taken.
    pub tone: Tone,
}

/// How an entry is to be taken; colour where there is colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// The best of its column.
    Good,
    /// Something to look at.
    Warning,
    /// A result that must not be used: struck out where that is possible.
    Struck,
}

impl Entry {
    /// Words; the value is the same text.
    pub fn words(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: Value::from(text.clone()), text, tone: Tone::Plain }
    }

    /// A number, with its text for people. One that is not finite has no value.
    pub fn number(value: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), value: Value::from(value), tone: Tone::Plain }
    }

    /// A whole number, with its text for people.
    pub fn whole(value: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), value: Value::from(value), tone: Tone::Plain }
    }

    /// Nothing: a dash for people, null for machines.
    pub fn nothing() -> Self {
        Self { text: units::NOTHING.to_string(), value: Value::Null, tone: Tone::Plain }
    }

    /// A number shown by `text`, or nothing.
    pub fn maybe(value: Option<f64>, text: impl Fn(f64) -> String) -> Self {
        match value.filter(|value| value.is_finite()) {
            Some(value) => Self::number(value, text(value)),
            None => Self::nothing(),
        }
    }

    /// A measured number, or null under the word that it is planned only.
    pub fn measured(value: Option<f64>, is_planned: bool, text: impl Fn(f64) -> String) -> Self {
        if is_planned { Self { text: "planned".into(), ..Self::nothing() } } else { Self::maybe(value, text) }
    }

    /// Bytes of memory shown in powers of 1024, or nothing.
    pub fn memory(bytes: Option<u64>) -> Self {
        bytes.map_or_else(Self::nothing, |bytes| Self::whole(bytes, units::memory(bytes as f64)))
    }

    /// Any JSON value: text as it is, the rest as JSON.
    pub fn json(value: &Value) -> Self {
        match value {
            Value::Null => Self::nothing(),
            Value::String(text) => Self::words(text.clone()),
            other => Self { text: other.to_string(), value: other.clone(), tone: Tone::Plain },
        }
    }

    /// The same entry in another tone.
    pub fn toned(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }
}

impl Table {
    /// A table without rows.
    pub fn new(name: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { name: name.into(), caption: String::new(), columns, rows: Vec::new(), is_detail: false }
    }

    /// The same table with a caption.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// The same table as one of details.
    pub fn detail(mut self) -> Self {
        self.is_detail = true;
        self
    }

    /// Adds a row; entries that are missing are empty, those too many are dropped.
    pub fn row(&mut self, mut entries: Vec<Entry>) {
        entries.resize_with(self.columns.len(), Entry::nothing);
        self.rows.push(entries);
    }

    /// The places of the columns that people read.
    pub fn shown(&self) -> impl Iterator<Item = usize> {
        (0..self.columns.len()).filter(|&place| !self.columns[place].for_machines)
    }
}

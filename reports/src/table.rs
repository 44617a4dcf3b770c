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
    /// It has the details behind other tables: where it is long, a terminal prints the number of its rows only.
    pub is_detail: bool,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    /// Its heading where people read it.
    pub title: String,
    /// Unit of the entries' values for machines (`bytes`, `ms`, `fraction`); empty when they have none.
    pub unit: String,
    /// How its entries are aligned.
    pub align: Align,
    /// In CSV and JSON only: more precise than another column, or redundant.
    pub for_machines: bool,
}

/// Alignment of a column's entries.
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

    /// The same column, in CSV and JSON only.
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
    /// How to read it.
    pub tone: Tone,
}

/// How to read an entry; renderers show it by colour where they can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// The best of its column.
    Good,
    /// Something to check.
    Warning,
    /// A result that must not be used: struck through where the format can.
    Struck,
}

impl Entry {
    /// Text; the value is the same.
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

    /// The beginning of an id or a key for people, all of it for machines.
    pub fn shortened(whole: &str, shown: &str) -> Self {
        Self { text: shown.to_string(), ..Self::words(whole) }
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

    /// A measured number; `planned` and null where it is planned only.
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

impl From<String> for Entry {
    fn from(text: String) -> Self {
        Self::words(text)
    }
}

impl From<&String> for Entry {
    fn from(text: &String) -> Self {
        Self::words(text)
    }
}

impl From<&str> for Entry {
    fn from(text: &str) -> Self {
        Self::words(text)
    }
}

/// Text as it is, the rest as JSON.
impl From<&Value> for Entry {
    fn from(value: &Value) -> Self {
        Self::json(value)
    }
}

/// A count, written without separators.
impl From<u64> for Entry {
    fn from(count: u64) -> Self {
        Self::whole(count, count.to_string())
    }
}

impl From<usize> for Entry {
    fn from(count: usize) -> Self {
        Self::from(count as u64)
    }
}

impl<T: Into<Entry>> From<Option<T>> for Entry {
    fn from(entry: Option<T>) -> Self {
        entry.map_or_else(Self::nothing, Into::into)
    }
}

impl Table {
    /// A table without rows.
    pub fn new(name: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { name: name.into(), columns, ..Self::default() }
    }

    /// A table with one row for each of these, to be filled column by column.
    pub fn of<R>(name: impl Into<String>, rows: &[R]) -> TableBuilder<'_, R> {
        TableBuilder { table: Self { rows: vec![Vec::new(); rows.len()], ..Self::new(name, Vec::new()) }, rows }
    }

    /// The same table with a caption.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// The same table, marked as one of details.
    pub fn detail(mut self) -> Self {
        self.is_detail = true;
        self
    }

    /// The table, unless it has no rows.
    pub fn non_empty(self) -> Option<Self> {
        (!self.rows.is_empty()).then_some(self)
    }

    /// Adds a row; missing entries are empty, surplus ones are dropped.
    pub fn row(&mut self, mut entries: Vec<Entry>) {
        entries.resize_with(self.columns.len(), Entry::nothing);
        self.rows.push(entries);
    }

    /// Adds a column whose entry in each row is what `entry` makes of the row's place, and returns it, so that its properties can
    /// be changed. Not generic: there are hundreds of columns, and each would be compiled by itself.
    fn column(&mut self, column: Column, entry: &dyn Fn(usize) -> Entry) -> &mut Column {
        for (place, entries) in self.rows.iter_mut().enumerate() {
            entries.push(entry(place));
        }
        let place = self.columns.len();
        self.columns.push(column);
        &mut self.columns[place]
    }

    /// The places of the columns that people read.
    pub fn shown(&self) -> impl Iterator<Item = usize> {
        (0..self.columns.len()).filter(|&place| !self.columns[place].for_machines)
    }
}

/// A table that is filled column by column, so that the title of a column and what stands in it are written in one place.
pub struct TableBuilder<'r, R> {
    table: Table,
    rows: &'r [R],
}

impl<'r, R> TableBuilder<'r, R> {
    /// Adds a column of words: what `entry` makes of each row.
    pub fn words<E: Into<Entry>>(&mut self, title: impl Into<String>, entry: impl Fn(&'r R) -> E) -> &mut Column {
        self.column(Column::words(title), entry)
    }

    /// Adds a column of numbers whose values have this unit.
    pub fn numbers<E: Into<Entry>>(
        &mut self,
        title: impl Into<String>,
        unit: &str,
        entry: impl Fn(&'r R) -> E,
    ) -> &mut Column {
        self.column(Column::numbers(title, unit), entry)
    }

    /// Adds a column of bytes of memory.
    pub fn memory(&mut self, title: impl Into<String>, bytes: impl Fn(&'r R) -> Option<u64>) -> &mut Column {
        self.numbers(title, "bytes", |row| Entry::memory(bytes(row)))
    }

    fn column<E: Into<Entry>>(&mut self, column: Column, entry: impl Fn(&'r R) -> E) -> &mut Column {
        let rows = self.rows;
        self.table.column(column, &|row| entry(&rows[row]).into())
    }

    /// The finished table.
    pub fn build(self) -> Table {
        self.table
    }
}

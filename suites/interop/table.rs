//! The rows of an import or an export as a document.

use super::{Row, Verdict};
use serde_json::{Value, json};
use zbench_reports::Document;
use zbench_reports::document::{Column, Entry, Table, Tone};
use zbench_reports::units::plural;

/// What the two sides are called.
pub struct Sides<'a> {
    /// The title of the document.
    pub title: String,
    /// The file or the cell that the keys are of.
    pub from: &'a str,
    /// Whose keys they became.
    pub to: &'a str,
}

/// Title, a count of verdicts, the table, the notes.
pub fn document(sides: &Sides<'_>, rows: &[Row], notes: &[String]) -> Document {
    let mut document = Document::new(sides.title.clone());
    document.paragraph(counted(rows));
    let columns = vec![
        Column::words(format!("{} key", sides.from)),
        Column::words("value"),
        Column::words("verdict"),
        Column::words(format!("{} key = value", sides.to)),
        Column::words("reason"),
    ];
    let mut table = Table::new("keys", columns);
    for row in rows {
        let tone = if row.verdict == Verdict::NoEquivalent { Tone::Warning } else { Tone::Plain };
        let becomes: Vec<String> = row.becomes.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        table.row(vec![
            Entry::words(row.key.clone()),
            Entry { text: short(&row.value), value: row.value.clone(), tone: Tone::Plain },
            Entry::words(row.verdict.name()).toned(tone),
            if becomes.is_empty() { Entry::nothing() } else { Entry::words(becomes.join(", ")) },
            Entry::words(row.reason.clone()),
        ]);
    }
    document.table(table);
    document.list(notes.to_vec());
    document
}

/// `12 keys: 5 used, 3 default, …`.
pub fn counted(rows: &[Row]) -> String {
    let count = |verdict: Verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let verdicts = [Verdict::Used, Verdict::Default, Verdict::Ignored, Verdict::NoEquivalent];
    let parts: Vec<String> = verdicts.map(|verdict| format!("{} {}", count(verdict), verdict.name())).to_vec();
    format!("{}: {}.", plural(rows.len(), "key", "keys"), parts.join(", "))
}

fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A row as a line of JSON.
pub fn line(row: &Row) -> Value {
    let becomes: serde_json::Map<String, Value> =
        row.becomes.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
    json!({
        "key": row.key, "value": row.value, "verdict": row.verdict, "becomes": becomes, "reason": row.reason,
        "line": row.place.map(|place| place.line), "column": row.place.map(|place| place.column),
    })
}

//! CSV: the tables of a document and the data of its plots, numbers as they are.

use serde_json::Value;

use crate::document::{Block, Document, Entry, Table};
use crate::text::printable;

/// All tables and the data of all plots, in order, separated by empty lines. The first column of each has the table's name, so that
/// one of them is easily selected; titles have the unit. Text outside tables is left out, and so is the shortened table of a screen:
/// later tables have all of it.
pub fn render(document: &Document) -> String {
    let figures = document.screen.iter().flat_map(|screen| &screen.figures).map(|figure| render_table(&figure.data()));
    let blocks = document.blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(render_table(table)),
        Block::Figure(figure) => Some(render_table(&figure.data())),
        _ => None,
    });
    figures.chain(blocks).collect::<Vec<String>>().join("\n")
}

/// One table: a header, then the rows. Absent values are empty. Characters that act on a terminal are escaped, because names may come
/// from anywhere.
pub fn render_table(table: &Table) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = std::iter::once("table".to_string()).chain(table.columns.iter().map(|column| column.full_title()));
    let field = |entry: &Entry| match &entry.value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    // Writing to memory cannot fail, and all rows have the width of the header.
    let plain = |field: String| printable(&field).into_owned();
    writer.write_record(header.map(plain)).expect("a header in memory");
    for row in &table.rows {
        let fields = std::iter::once(table.name.clone()).chain(row.iter().map(field));
        writer.write_record(fields.map(plain)).expect("a row in memory");
    }
    let bytes = writer.into_inner().expect("the writer's memory");
    String::from_utf8(bytes).expect("CSV made of text is text")
}

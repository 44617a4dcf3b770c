//! CSV: the tables of a document and the data of its plots, numbers as they are.

use serde_json::Value;

use crate::document::{Block, Document, Table};
use crate::text::printable;

/// All tables and the data of all plots, in order, an empty line between two. The first column of each holds the table's name, so
/// that one of them is easily picked out; a title holds the unit. Words outside of tables are left out, and so is the cut table of a
/// screen: the tables behind it have all of it.
pub fn render(document: &Document) -> String {
    let first = document.screen.iter().flat_map(|screen| &screen.figures);
    let tables = first.map(|figure| render_table(&figure.data()));
    let tables: Vec<String> = tables
        .chain(document.blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(render_table(table)),
            Block::Figure(figure) => Some(render_table(&figure.data())),
            _ => None,
        }))
        .collect();
    tables.join("\n")
}

/// One table: a header, then the rows. Absent values are empty. Names may come from anywhere: what acts on a terminal is shown by
/// its number.
pub fn render_table(table: &Table) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = std::iter::once("table".to_string()).chain(table.columns.iter().map(|column| column.full_title()));
    let rows = table.rows.iter().map(|row| {
        let fields = row.iter().map(|entry| match &entry.value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        std::iter::once(table.name.clone()).chain(fields).collect::<Vec<String>>()
    });
    // Writing to memory cannot fail, and all rows have the width of the header.
    let plain = |field: String| printable(&field).into_owned();
    writer.write_record(header.map(plain)).expect("a header in memory");
    for row in rows {
        writer.write_record(row.into_iter().map(plain)).expect("a row in memory");
    }
    let bytes = writer.into_inner().expect("the writer's memory");
    String::from_utf8(bytes).expect("CSV made of text is text")
}

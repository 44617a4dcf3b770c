//! Text for a terminal of a given width, with or without colour.

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement};

use super::{one_line, several_lines};
use crate::document::{Align, Block, Document, Entry, Table, Tone};

/// What the terminal can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Columns; text is wrapped to it. Tables get narrower by wrapping inside their cells, down to a letter per line.
    pub width: u16,
    /// Whether escape sequences for bold and colour may be used.
    pub color: bool,
}

/// The whole document; ends with a line end.
pub fn render(document: &Document, terminal: Terminal) -> String {
    let mut parts = Vec::new();
    if !document.title.is_empty() {
        parts.push(bold(&wrapped(&one_line(&document.title), "", terminal), terminal));
    }
    for block in &document.blocks {
        parts.push(match block {
            Block::Heading { text, .. } => bold(&wrapped(&one_line(text), "", terminal), terminal),
            Block::Paragraph(text) => wrapped(&several_lines(text), "", terminal),
            Block::List(items) => {
                let items: Vec<String> = items.iter().map(|item| wrapped(&one_line(item), "-", terminal)).collect();
                items.join("\n")
            }
            Block::Table(table) => render_table(table, terminal),
            Block::Code(text) => {
                several_lines(text).lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
            }
        });
    }
    parts.join("\n\n") + "\n"
}

fn render_table(table: &Table, terminal: Terminal) -> String {
    let shown: Vec<usize> = table.shown().collect();
    let align = |place: usize| match table.columns[place].align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    };
    let mut text = new_table(UTF8_FULL_CONDENSED, terminal);
    text.set_header(shown.iter().map(|&place| {
        Cell::new(one_line(&table.columns[place].title)).set_alignment(align(place)).add_attribute(Attribute::Bold)
    }));
    for row in &table.rows {
        text.add_row(shown.iter().map(|&place| styled(&row[place]).set_alignment(align(place))));
    }
    let body = text.trim_fmt();
    if table.caption.is_empty() {
        body
    } else {
        format!("{}\n{body}", wrapped(&one_line(&table.caption), "", terminal))
    }
}

/// Attributes are ignored where colour is off.
fn styled(entry: &Entry) -> Cell {
    let cell = Cell::new(one_line(&entry.text));
    match entry.tone {
        Tone::Plain => cell,
        Tone::Good => cell.fg(Color::Green),
        Tone::Warning => cell.fg(Color::Yellow),
        Tone::Struck => cell.add_attribute(Attribute::CrossedOut),
    }
}

fn new_table(style: comfy_table::TableStyle, terminal: Terminal) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic).set_width(terminal.width.max(1));
    if terminal.color {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// Running text is a table of one row without lines: it wraps by the same display widths as tables do.
fn wrapped(text: &str, bullet: &str, terminal: Terminal) -> String {
    let mut table = new_table(NOTHING, terminal);
    let cells = if bullet.is_empty() { vec![text] } else { vec![bullet, text] };
    table.add_row(cells);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table.trim_fmt()
}

fn bold(text: &str, terminal: Terminal) -> String {
    if !terminal.color {
        return text.to_string();
    }
    text.lines().map(|line| format!("\u{1b}[1m{line}\u{1b}[0m")).collect::<Vec<_>>().join("\n")
}

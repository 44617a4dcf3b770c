//! Text for a terminal of a given width, with or without colour.

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement};

use super::spark;
use crate::document::{Align, Block, Column, Document, Entry, Table, Tone};
use crate::screen::layout;
use crate::text::{columns, one_line, several_lines};

/// Longer tables of details are not printed on a terminal.
const MOST_DETAILS: usize = 40;

/// What the terminal can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Columns. Text is wrapped to this width; a wider table continues below itself.
    pub width: u16,
    /// Whether escape sequences for bold and colour may be used.
    pub color: bool,
}

/// The whole document; ends with a line end.
pub fn render(document: &Document, terminal: Terminal) -> String {
    let mut parts = Vec::new();
    if let Some(screen) = &document.screen {
        parts.push(layout::lines(screen, terminal.width, terminal.color).join("\n"));
    } else if !document.title.is_empty() {
        parts.push(heading(&document.title, terminal));
    }
    for block in &document.blocks {
        parts.push(match block {
            Block::Heading { text, .. } => heading(text, terminal),
            Block::Paragraph(text) => wrapped(&several_lines(text), "", terminal),
            Block::List(items) => {
                let items: Vec<String> = items.iter().map(|item| wrapped(&one_line(item), "-", terminal)).collect();
                items.join("\n")
            }
            Block::Table(table) if table.is_detail && table.rows.len() > MOST_DETAILS => {
                let count = table.rows.len();
                let text =
                    format!("{count} rows: --format markdown, csv or html has them; so has this for fewer cells.");
                wrapped(&text, "", terminal)
            }
            Block::Table(table) => render_table(table, terminal),
            Block::Code(text) => {
                several_lines(text).lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
            }
            // In place of a plot there is its caption. Curves over steps are drawn in a line of text each.
            Block::Figure(figure) => {
                let caption = wrapped(&one_line(&format!("{}. {}", figure.title, figure.caption)), "", terminal);
                let curves = spark::curves(&figure.plot).into_iter().map(|curve| one_line(&curve));
                std::iter::once(caption).chain(curves).collect::<Vec<_>>().join("\n")
            }
        });
    }
    parts.join("\n\n") + "\n"
}

/// A title or a heading, bold in colour, wrapped.
pub fn heading(text: &str, terminal: Terminal) -> String {
    bold(&wrapped(&one_line(text), "", terminal), terminal)
}

/// A table that is too wide continues below itself with its first column repeated, so that no number is broken.
fn render_table(table: &Table, terminal: Terminal) -> String {
    let shown: Vec<usize> = table.shown().collect();
    let mut parts = Vec::new();
    if !table.caption.is_empty() {
        parts.push(wrapped(&one_line(&table.caption), "", terminal));
    }
    let widths: Vec<(usize, Width)> = shown.iter().map(|&place| (place, width(table, place, terminal))).collect();
    if let Some((first, rest)) = widths.split_first() {
        for piece in pieces(*first, rest, terminal) {
            parts.push(render_piece(table, &piece, terminal));
        }
    }
    parts.join("\n")
}

/// The width of a column in letters, and whether some of its entries are longer and wrap.
#[derive(Clone, Copy)]
pub(super) struct Width {
    pub letters: u16,
    pub wraps: bool,
}

fn width(table: &Table, place: usize, terminal: Terminal) -> Width {
    let widest = table.rows.iter().map(|row| columns(&one_line(&row[place].text))).max();
    let is_first = table.shown().next() == Some(place);
    width_of(&table.columns[place], widest.unwrap_or(0), is_first, terminal)
}

/// Numbers and short words get their full width, titles that of their longest word; long texts may wrap. `widest` is the width of the
/// widest entry in letters.
pub(super) fn width_of(column: &Column, widest: usize, is_first: bool, terminal: Terminal) -> Width {
    let title = one_line(&column.title).split(' ').map(columns).max().unwrap_or(0);
    let letters = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let (title, entries) = (letters(title), letters(widest));
    let limit = match (column.align, is_first) {
        (Align::Right, _) => u16::MAX,
        // Columns that wrap share the room that others leave, so this is the least width of a label.
        (Align::Left, true) => (terminal.width / 5).max(LONGEST_WORDS / 2),
        (Align::Left, false) => LONGEST_WORDS.min(terminal.width / 2),
    };
    Width { letters: entries.min(limit).max(title).max(1), wraps: entries > limit }
}

const LONGEST_WORDS: u16 = 40;
/// Padding and the line between columns.
const AROUND: u32 = 3;

/// The columns of each part of a table that is too wide.
pub(super) fn pieces(first: (usize, Width), rest: &[(usize, Width)], terminal: Terminal) -> Vec<Vec<(usize, Width)>> {
    let room = |column: &(usize, Width)| u32::from(column.1.letters) + AROUND;
    let mut pieces = vec![vec![first]];
    let mut used = 1 + room(&first);
    for column in rest {
        let is_full = used + room(column) > u32::from(terminal.width);
        // A piece has at least one column beside the repeated one, however narrow the terminal is.
        if is_full && pieces.last().is_some_and(|piece| piece.len() > 1) {
            pieces.push(vec![first]);
            used = 1 + room(&first);
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(*column);
        }
        used += room(column);
    }
    pieces
}

fn render_piece(table: &Table, piece: &[(usize, Width)], terminal: Terminal) -> String {
    let align = |place: usize| match table.columns[place].align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    };
    let mut text = new_table(UTF8_FULL_CONDENSED, terminal);
    text.set_header(piece.iter().map(|&(place, _)| {
        Cell::new(one_line(&table.columns[place].title)).set_alignment(align(place)).add_attribute(Attribute::Bold)
    }));
    for row in &table.rows {
        text.add_row(piece.iter().map(|&(place, _)| styled(&row[place]).set_alignment(align(place))));
    }
    for (column, (_, width)) in text.column_iter_mut().zip(piece) {
        // Columns that wrap share the room that the others leave.
        if !width.wraps {
            let with_padding = width.letters.saturating_add(2);
            column.set_constraint(ColumnConstraint::Absolute(comfy_table::Width::Fixed(with_padding)));
        }
    }
    text.trim_fmt()
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

/// Running text as a table of one row without lines, so that it wraps by the same display widths as tables.
fn wrapped(text: &str, bullet: &str, terminal: Terminal) -> String {
    let mut table = new_table(NOTHING, terminal);
    table.add_row(if bullet.is_empty() { vec![text] } else { vec![bullet, text] });
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

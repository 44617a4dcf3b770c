//! Tables of very many rows for a terminal. They look like those of [`terminal`](super::terminal), but are written row by row, and
//! only the texts of their entries are in memory.

use std::io::{self, Write};
use std::ops::Range;

use super::terminal::{Terminal, Width, pieces, width_of};
use crate::screen::layout::wrapped;
use crate::table::{Align, Column, Table, Tone};
use crate::text::{columns, one_line};

/// Rows that are made at a time.
pub const ROWS_AT_ONCE: usize = 1000;

/// Parts of so many rows, of all of them.
pub fn parts(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(ROWS_AT_ONCE).map(move |begin| begin..rows.min(begin + ROWS_AT_ONCE))
}

/// Writes a table of so many rows, of which `part` makes some.
///
/// # Errors
/// The rows cannot be written.
pub fn write(
    out: &mut dyn Write,
    rows: usize,
    part: &dyn Fn(Range<usize>) -> Table,
    terminal: Terminal,
) -> io::Result<()> {
    let shown = part(0..0);
    let shown: Vec<Column> = shown.shown().map(|place| shown.columns[place].clone()).collect();
    let mut texts = Texts { columns: shown.len(), ..Texts::default() };
    let mut widest = vec![0; shown.len()];
    for table in parts(rows).map(part) {
        let places: Vec<usize> = table.shown().collect();
        for row in &table.rows {
            for (&place, widest) in places.iter().zip(&mut widest) {
                let text = one_line(&row[place].text);
                *widest = columns(&text).max(*widest);
                texts.text.push_str(&text);
                texts.ends.push((texts.text.len(), row[place].tone));
            }
        }
    }
    let widths = shown.iter().zip(&widest).enumerate();
    let widths: Vec<(usize, Width)> =
        widths.map(|(place, (column, &widest))| (place, width_of(column, widest, place == 0, terminal))).collect();
    let Some((first, rest)) = widths.split_first() else { return Ok(()) };
    for piece in pieces(*first, rest, terminal) {
        write_piece(out, rows, &texts, &shown, &with_room(&piece, &widest, terminal), terminal)?;
    }
    Ok(())
}

/// The texts of all entries one behind the other, with their ends.
#[derive(Default)]
struct Texts {
    text: String,
    ends: Vec<(usize, Tone)>,
    columns: usize,
}

impl Texts {
    fn of(&self, row: usize, column: usize) -> (&str, Tone) {
        let place = row * self.columns + column;
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before].0);
        let (end, tone) = self.ends[place];
        (&self.text[begin..end], tone)
    }
}

/// The columns of a piece, each with its width. Columns that wrap share the room that the others leave.
fn with_room(piece: &[(usize, Width)], widest: &[usize], terminal: Terminal) -> Vec<(usize, usize)> {
    let used: usize = piece.iter().map(|(_, width)| usize::from(width.letters) + 3).sum();
    let wrapping = piece.iter().filter(|(_, width)| width.wraps).count().max(1);
    let share = usize::from(terminal.width).saturating_sub(used + 1) / wrapping;
    let width = |&(place, width): &(usize, Width)| match width.wraps {
        true => (place, widest[place].min(usize::from(width.letters) + share)),
        false => (place, usize::from(width.letters)),
    };
    piece.iter().map(width).collect()
}

fn write_piece(
    out: &mut dyn Write,
    rows: usize,
    texts: &Texts,
    columns: &[Column],
    piece: &[(usize, usize)],
    terminal: Terminal,
) -> io::Result<()> {
    let line = |[begin, between, end, fill]: [&str; 4]| {
        let parts: Vec<String> = piece.iter().map(|(_, width)| fill.repeat(width + 2)).collect();
        format!("{begin}{}{end}\n", parts.join(between))
    };
    let style = |tone: Tone| match tone {
        _ if !terminal.color => ["", ""],
        Tone::Plain => ["", ""],
        Tone::Good => ["\u{1b}[38;5;10m", "\u{1b}[39m"],
        Tone::Warning => ["\u{1b}[38;5;11m", "\u{1b}[39m"],
        Tone::Struck => ["\u{1b}[9m", "\u{1b}[0m"],
    };
    let bold = if terminal.color { ["\u{1b}[1m", "\u{1b}[0m"] } else { ["", ""] };
    let aligns: Vec<Align> = piece.iter().map(|&(place, _)| columns[place].align).collect();
    let mut text = line(["┌", "┬", "┐", "─"]);
    let titles: Vec<String> = piece.iter().map(|&(place, _)| one_line(&columns[place].title)).collect();
    row(&mut text, piece, &aligns, &|cell| (&titles[cell], bold));
    text.push_str(&line(["╞", "╪", "╡", "═"]));
    for place in 0..rows {
        row(&mut text, piece, &aligns, &|cell| {
            let (text, tone) = texts.of(place, piece[cell].0);
            (text, style(tone))
        });
        if text.len() > 1 << 16 {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    text.push_str(&line(["└", "┴", "┘", "─"]));
    out.write_all(text.as_bytes())
}

/// Adds the lines of a row. `cell`: the text of a column and what stands around it.
fn row<'t>(
    text: &mut String,
    piece: &[(usize, usize)],
    aligns: &[Align],
    cell: &dyn Fn(usize) -> (&'t str, [&'static str; 2]),
) {
    let mut add = |place: usize, shown: &str, [before, behind]: [&str; 2]| {
        let pad = piece[place].1.saturating_sub(columns(shown));
        let (left, right) = if aligns[place] == Align::Right { (pad, 0) } else { (0, pad) };
        text.push_str(if place == 0 { "│" } else { "┆" });
        text.push_str(if shown.is_empty() { "" } else { before });
        text.extend(std::iter::repeat_n(' ', left + 1));
        text.push_str(shown);
        text.extend(std::iter::repeat_n(' ', right + 1));
        text.push_str(if shown.is_empty() { "" } else { behind });
        text.push_str(if place + 1 == piece.len() { "│\n" } else { "" });
    };
    if (0..piece.len()).all(|place| columns(cell(place).0) <= piece[place].1) {
        (0..piece.len()).for_each(|place| add(place, cell(place).0, cell(place).1));
        return;
    }
    let lines = |place: usize| wrapped(cell(place).0, piece[place].1, piece[place].1);
    let cells: Vec<Vec<String>> = (0..piece.len()).map(lines).collect();
    for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
        for (place, lines) in cells.iter().enumerate() {
            add(place, lines.get(line).map_or("", String::as_str), cell(place).1);
        }
    }
}

//! Screens as lines of text: texts with labels, wrapped with an indent, and tables without frames.

use std::cmp::Reverse;

use super::{Part, Screen};
use crate::table::{Align, Entry, Table, Tone};
use crate::text::{columns, one_line};

/// Where texts begin; a longer label is followed by one space.
const INDENT: usize = 9;
/// Spaces between two columns.
const GAP: usize = 2;
/// Columns after the names that are kept before names are wrapped.
const KEPT: usize = 3;
/// The least width of a column that wraps.
const SHORTEST: usize = 16;

/// The lines of a screen of this width; with bold labels and coloured entries if `color`.
pub fn lines(screen: &Screen, width: u16, color: bool) -> Vec<String> {
    let width = usize::from(width).max(2 * INDENT);
    let lines = |part: &Part| match part {
        Part::Said { label, text, most_lines } => text_lines(label, text, *most_lines, width, color),
        Part::Table(table) => table_lines(table, width, color),
    };
    screen.parts.iter().flat_map(lines).collect()
}

/// The longest beginning of a text that fits.
fn fitting_part(text: &str, room: usize) -> &str {
    let mut used = 0;
    for (place, symbol) in text.char_indices() {
        used += if symbol.is_ascii() { 1 } else { columns(symbol.encode_utf8(&mut [0; 4])) };
        if used > room {
            return &text[..place];
        }
    }
    text
}

fn text_lines(label: &str, text: &str, most_lines: usize, width: usize, color: bool) -> Vec<String> {
    let label = one_line(label);
    let first = if label.is_empty() { INDENT } else { (columns(&label) + 1).max(INDENT) };
    let mut rows = wrapped(&one_line(text), width.saturating_sub(first).max(INDENT), width - INDENT);
    if rows.len() > most_lines.max(1) {
        const MORE: &str = " … (--full has all)";
        rows.truncate(most_lines.max(1));
        let room = if rows.len() == 1 { width.saturating_sub(first) } else { width - INDENT };
        if let Some(last) = rows.last_mut() {
            let kept = fitting_part(last, room.saturating_sub(columns(MORE)));
            let is_whole = kept.len() == last.trim_end().len();
            *last = format!("{}{MORE}", whole_words(kept, is_whole).trim_end_matches([' ', ',', ';', ':']));
        }
    }
    let pad = " ".repeat(first - columns(&label));
    let head = format!("{}{pad}", style(&label, if label.is_empty() { "" } else { "1" }, color));
    let indents = std::iter::once(head).chain(std::iter::repeat(" ".repeat(INDENT)));
    indents.zip(rows).map(|(indent, row)| indent + row.trim_end()).collect()
}

/// The text up to the end of its last sentence or item, or up to its last word if that would leave out more than half of it.
/// `ends_at_word` says that its last word is complete.
fn whole_words(text: &str, ends_at_word: bool) -> &str {
    let ends = [text.rfind(". ").map(|at| at + 1), text.rfind("; "), Some(text.len()).filter(|_| text.ends_with('.'))];
    match ends.into_iter().flatten().max() {
        Some(end) if 2 * end >= text.len() => &text[..end],
        _ if ends_at_word => text,
        _ => text.rfind(' ').map_or(text, |end| &text[..end]),
    }
}

/// The text in lines; a word longer than a line is broken. The first line may have another width.
pub(crate) fn wrapped(text: &str, first: usize, others: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut word = word;
        loop {
            let room = if rows.len() == 1 { first } else { others };
            let gap = usize::from(used > 0);
            let Some(row) = rows.last_mut() else { break };
            let length = columns(word);
            if used + gap + length <= room {
                row.push_str(if gap == 1 { " " } else { "" });
                row.push_str(word);
                used += gap + length;
                break;
            }
            if used == 0 {
                let part = fitting_part(word, room);
                // A letter wider than the line is a line of its own.
                let end = if part.is_empty() { word.chars().next().map_or(0, char::len_utf8) } else { part.len() };
                row.push_str(&word[..end]);
                word = &word[end..];
                if word.is_empty() {
                    used = room;
                    break;
                }
            }
            rows.push(String::new());
            used = 0;
        }
    }
    rows
}

/// The header and the rows. If they are too wide, columns are left out from the right until [`KEPT`] are left after the widest column
/// of words. Then that column is wrapped, because rows with cut names would look alike. Then more columns are left out.
fn table_lines(table: &Table, width: usize, color: bool) -> Vec<String> {
    let mut shown: Vec<usize> = table.shown().collect();
    let text = |entry: &Entry| one_line(&entry.text);
    let widest = |place: usize| {
        let entries = table.rows.iter().map(|row| columns(&text(&row[place])));
        entries.chain([columns(&one_line(&table.columns[place].title))]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = shown.iter().map(|&place| widest(place)).collect();
    let total = |widths: &[usize]| 1 + widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    let is_words = |place: usize| table.columns[place].align == Align::Left;
    let longest = (0..shown.len()).filter(|&at| is_words(shown[at])).max_by_key(|&at| (widths[at], Reverse(at)));
    // A name is not wrapped to less than a third of the line while another column can be left out.
    let least = |behind: usize| if behind > 2 { (width / 3).max(SHORTEST) } else { SHORTEST };
    loop {
        let surplus = total(&widths).saturating_sub(width);
        match longest {
            _ if surplus == 0 || shown.len() == 1 => break,
            Some(at) if at < shown.len() && shown.len() <= at + 1 + KEPT && widths[at] > least(shown.len() - at) => {
                widths[at] -= surplus.min(widths[at] - least(shown.len() - at));
            }
            _ => {
                shown.pop();
                widths.pop();
                longest.filter(|&at| at < shown.len()).into_iter().for_each(|at| widths[at] = widest(shown[at]));
            }
        }
    }
    let room = |at: usize| widths[at].min(width.saturating_sub(1));
    let line = |cells: &[(String, &'static str)]| {
        let mut line = String::from(" ");
        for (at, (cell, escape)) in cells.iter().enumerate() {
            let pad = " ".repeat(room(at).saturating_sub(columns(cell)));
            let gap = if at == 0 { "" } else { "  " };
            let cell = style(cell, escape, color);
            match is_words(shown[at]) {
                true => line += &format!("{gap}{cell}{pad}"),
                false => line += &format!("{gap}{pad}{cell}"),
            }
        }
        line.trim_end().to_string()
    };
    // A row has as many lines as the entry that wraps most.
    let row = |cells: Vec<(String, &'static str)>, lines: &mut Vec<String>| {
        let wrapped: Vec<Vec<String>> =
            cells.iter().enumerate().map(|(at, (cell, _))| wrapped(cell, room(at).max(1), room(at).max(1))).collect();
        for part in 0..wrapped.iter().map(Vec::len).max().unwrap_or(0) {
            let of_part = |(cells, (_, escape)): (&Vec<String>, &(String, &'static str))| {
                (cells.get(part).cloned().unwrap_or_default(), *escape)
            };
            lines.push(line(&wrapped.iter().zip(&cells).map(of_part).collect::<Vec<_>>()));
        }
    };
    let mut lines = Vec::new();
    row(shown.iter().map(|&place| (one_line(&table.columns[place].title), "1")).collect(), &mut lines);
    for entries in &table.rows {
        row(shown.iter().map(|&place| (text(&entries[place]), escape(entries[place].tone))).collect(), &mut lines);
    }
    lines
}

fn escape(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "32",
        Tone::Warning => "33",
        Tone::Struck => "9",
    }
}

fn style(text: &str, escape: &str, color: bool) -> String {
    if color && !escape.is_empty() { format!("\u{1b}[{escape}m{text}\u{1b}[0m") } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Column;

    #[test]
    fn words_are_wrapped_behind_their_label_and_cut_where_they_take_too_many_lines() {
        let mut screen = Screen::default();
        screen.said("ANSWER", "one two three four five six seven", 9);
        assert_eq!(lines(&screen, 24, false), ["ANSWER   one two three", "         four five six", "         seven"]);
        screen.parts.clear();
        screen.said("SAME MODEL", "one two three four five six seven eight nine ten eleven twelve", 2);
        let cut = lines(&screen, 40, false);
        assert_eq!(cut, ["SAME MODEL one two three four five six", "         seven eight … (--full has all)"]);
        screen.parts.clear();
        screen.said("A", "one two three. four five six seven eight. nine", 1);
        assert_eq!(lines(&screen, 48, false), ["A        one two three. … (--full has all)"]);
        screen.parts.clear();
        screen.said("", "abcdefghijklmnopqrstuvwxyz", 9);
        assert_eq!(lines(&screen, 20, false), ["         abcdefghijk", "         lmnopqrstuv", "         wxyz"]);
        screen.parts.clear();
        screen.said("A", "漢字漢字漢字漢字漢字漢字", 9);
        assert!(lines(&screen, 20, false).iter().all(|line| columns(line) <= 20));
    }

    #[test]
    fn a_table_that_is_too_wide_loses_columns_first_and_then_wraps_names() {
        let titles = vec![
            Column::numbers("n", ""),
            Column::words("cell"),
            Column::numbers("speed", ""),
            Column::numbers("loss", ""),
        ];
        let mut table = Table::new("t", titles);
        table.row(vec![
            Entry::whole(1, "1"),
            Entry::words("a name of thirty letters, about"),
            Entry::whole(7, "7,000"),
            Entry::whole(1, "1.25"),
        ]);
        let mut screen = Screen::default();
        screen.table(table);
        assert_eq!(
            lines(&screen, 60, false),
            [" n  cell                             speed  loss", " 1  a name of thirty letters, about  7,000  1.25"]
        );
        assert_eq!(
            lines(&screen, 45, false),
            [
                " n  cell                          speed  loss",
                " 1  a name of thirty letters,     7,000  1.25",
                "    about"
            ]
        );
        assert_eq!(
            lines(&screen, 32, false),
            [" n  cell                   speed", " 1  a name of thirty       7,000", "    letters, about"]
        );
        assert!(lines(&screen, 20, false).iter().all(|line| columns(line) <= 20));
    }

    #[test]
    fn the_widest_column_of_words_may_be_the_last() {
        let titles = vec![Column::words("cell"), Column::numbers("step", ""), Column::words("band of the step")];
        let mut table = Table::new("t", titles);
        table.row(vec![Entry::words("ddp"), Entry::whole(1, "1.25 s"), Entry::words("from 1.00 s to 1.50 s, or more")]);
        let mut screen = Screen::default();
        screen.table(table);
        for width in 20..60 {
            assert!(lines(&screen, width, false).iter().all(|line| columns(line) <= usize::from(width)), "{width}");
        }
    }
}

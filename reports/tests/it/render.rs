//! Renderers on text that would break them.

use proptest::collection::vec;
use proptest::prelude::*;
use zbench_reports::Document;
use zbench_reports::document::{Block, Column, Entry, Table, Tone};
use zbench_reports::render::terminal::Terminal;
use zbench_reports::render::{csv, json, long, markdown, terminal};
use zbench_reports::units;

use super::any::{number, text};

fn entry() -> impl Strategy<Value = Entry> {
    let tone = proptest::sample::select(vec![Tone::Plain, Tone::Good, Tone::Warning, Tone::Struck]);
    let plain = prop_oneof![
        text().prop_map(Entry::words),
        (number(), text()).prop_map(|(value, text)| Entry::number(value, text)),
        proptest::option::of(any::<u64>()).prop_map(Entry::memory),
    ];
    (plain, tone).prop_map(|(entry, tone)| entry.toned(tone))
}

fn table() -> impl Strategy<Value = Table> {
    (text(), text(), vec((text(), any::<bool>(), any::<bool>()), 1..5), vec(vec(entry(), 0..6), 0..4)).prop_map(
        |(name, caption, columns, rows)| {
            let columns = columns.into_iter().map(|(title, is_number, for_machines)| {
                let column = if is_number { Column::numbers(title, "bytes") } else { Column::words(title) };
                if for_machines { column.for_machines() } else { column }
            });
            let mut table = Table::new(name, columns.collect()).caption(caption);
            rows.into_iter().for_each(|row| table.row(row));
            table
        },
    )
}

fn document() -> impl Strategy<Value = Document> {
    let block = prop_oneof![
        (any::<u8>(), text()).prop_map(|(level, text)| Block::Heading { level, text }),
        text().prop_map(Block::Paragraph),
        vec(text(), 0..4).prop_map(Block::List),
        table().prop_map(Block::Table),
        text().prop_map(Block::Code),
    ];
    (text(), vec(block, 0..5)).prop_map(|(title, blocks)| Document { title, screen: None, blocks })
}

/// Pipes that are not escaped, fences left out: as many as a row's columns and one more.
fn bare_pipes(line: &str) -> usize {
    let mut escaped = false;
    line.chars()
        .filter(|&symbol| {
            let is_bare = symbol == '|' && !escaped;
            escaped = symbol == '\\' && !escaped;
            is_bare
        })
        .count()
}

/// A text in CSV: what acts on a terminal is there by its number.
fn shown(text: &str) -> String {
    let turns = |symbol: char| {
        "\u{200e}\u{200f}\u{61c}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}"
            .contains(symbol)
    };
    let of = |symbol: char| match symbol {
        '\n' | '\t' => symbol.to_string(),
        symbol if symbol.is_control() || turns(symbol) => format!("\\u{{{:x}}}", u32::from(symbol)),
        symbol => symbol.to_string(),
    };
    text.replace("\r\n", "\n").chars().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_panics_and_nothing_acts_on_a_terminal(document in document(), width in 0u16..300, color in any::<bool>()) {
        let shown = terminal::render(&document, Terminal { width, color });
        if !color {
            prop_assert!(!shown.contains('\u{1b}'), "{shown:?}");
        }
        prop_assert!(!shown.contains(['\r', '\0', '\u{202e}']), "{:?}", shown);
        let shown = markdown::render(&document);
        prop_assert!(!shown.contains(['\u{1b}', '\r', '\0']), "{:?}", shown);
        if !document.blocks.iter().any(|block| matches!(block, Block::Code(_))) {
            prop_assert!(!shown.contains(['<', '>']), "HTML: {:?}", shown);
        }
        csv::render(&document);
        let value: serde_json::Value = serde_json::from_str(&json::render(&document)).unwrap();
        prop_assert_eq!(value["blocks"].as_array().unwrap().len(), document.blocks.len());
        prop_assert!(!json::render(&document).contains('\n'));
    }

    #[test]
    fn a_markdown_table_keeps_its_shape(mut table in table()) {
        table.caption.clear();
        let shown = table.shown().count();
        let rows = table.rows.len();
        let document = Document { blocks: vec![Block::Table(table)], ..Document::default() };
        let rendered = markdown::render(&document);
        let lines: Vec<&str> = rendered.lines().collect();
        prop_assert_eq!(lines.len(), rows + 2);
        for line in lines {
            prop_assert_eq!(bare_pipes(line), shown.max(1) + 1, "{}", line);
        }
    }

    #[test]
    fn csv_gives_back_every_value_as_it_is_shown(table in table()) {
        let rendered = csv::render_table(&table);
        let mut fields = Vec::new();
        let mut field = String::new();
        let mut quoted = false;
        let mut symbols = rendered.chars().peekable();
        // A reader of its own for RFC 4180, so that the writer is not checked by its own twin.
        while let Some(symbol) = symbols.next() {
            match symbol {
                '"' if quoted && symbols.peek() == Some(&'"') => field.push(symbols.next().unwrap()),
                '"' => quoted = !quoted,
                ',' | '\n' if !quoted => fields.push(std::mem::take(&mut field)),
                symbol => field.push(symbol),
            }
        }
        let width = table.columns.len() + 1;
        prop_assert_eq!(fields.len(), width * (table.rows.len() + 1));
        for (row, read) in table.rows.iter().zip(fields.chunks(width).skip(1)) {
            prop_assert_eq!(&read[0], &shown(&table.name));
            for (entry, read) in row.iter().zip(&read[1..]) {
                let value = entry.value.as_str().map(str::to_string).unwrap_or_else(|| match entry.value.is_null() {
                    true => String::new(),
                    false => entry.value.to_string(),
                });
                prop_assert_eq!(read, &shown(&value));
            }
        }
    }

    #[test]
    fn any_number_has_a_text(value in number()) {
        for text in [units::number(value), units::memory(value), units::traffic(value), units::percent(value), units::change(value)] {
            prop_assert!(!text.is_empty() && !text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}

#[test]
fn numbers_have_three_digits_and_units() {
    // A finite fraction whose percentage is no number.
    assert_eq!([units::percent(-1.1e308), units::change(1e308)], ["-", "-"]);
    let shown = [0.0, 12345.6, 123.4, 99.96, 12.34, 9.996, 1.234, 0.01234, 1.234e-7, -1234.5].map(units::number);
    assert_eq!(shown, ["0", "12,346", "123", "100", "12.3", "10.0", "1.23", "0.0123", "1.23e-7", "-1,234"]);
    assert_eq!(
        [0.0, 1023.0, 1536.0, 1.5 * (1u64 << 30) as f64].map(units::memory),
        ["0 B", "1,023 B", "1.50 KiB", "1.50 GiB"]
    );
    assert_eq!([999.0, 1500.0, 2.5e9].map(units::traffic), ["999 B", "1.50 kB", "2.50 GB"]);
    assert_eq!([0.1234, 1.0].map(units::percent), ["12.3 %", "100.0 %"]);
    assert_eq!([0.5, -0.034, 0.0001, -0.0001].map(units::change), ["+50 %", "-3.4 %", "0.0 %", "0.0 %"]);
    assert_eq!(units::count(1234567), "1,234,567");
    assert_eq!(units::plural(1, "cell", "cells"), "1 cell");
    assert_eq!(units::list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
}

#[test]
fn wide_letters_keep_a_terminal_table_aligned() {
    let mut table = Table::new("t", vec![Column::words("name"), Column::numbers("n", "")]);
    for name in ["ascii", "漢字漢字", "é|`"] {
        table.row(vec![Entry::words(name), Entry::whole(1, "1")]);
    }
    let mut document = Document::new("");
    document.table(table);
    let shown = terminal::render(&document, Terminal { width: 80, color: false });
    assert_eq!(
        shown,
        "┌──────────┬───┐\n\
         │ name     ┆ n │\n\
         ╞══════════╪═══╡\n\
         │ ascii    ┆ 1 │\n\
         │ 漢字漢字 ┆ 1 │\n\
         │ é|`      ┆ 1 │\n\
         └──────────┴───┘\n"
    );
}

#[test]
fn columns_for_machines_are_in_csv_only_with_their_unit() {
    let mut table = Table::new("t", vec![Column::words("a"), Column::numbers("b", "bytes").for_machines()]);
    table.row(vec![Entry::words("x, y"), Entry::memory(Some(2048))]);
    let mut document = Document::new("title");
    document.table(table);
    assert_eq!(csv::render(&document), "table,a,b (bytes)\nt,\"x, y\",2048\n");
    assert_eq!(markdown::render(&document), "# title\n\n| a |\n| :--- |\n| x, y |\n");
}

#[test]
fn text_is_wrapped_to_the_terminal() {
    let mut document = Document::new("");
    document.paragraph("one two three four five six seven");
    document.list(vec!["alpha beta gamma delta".into()]);
    let shown = terminal::render(&document, Terminal { width: 16, color: false });
    assert!(shown.lines().all(|line| line.chars().count() <= 16), "{shown}");
    assert!(shown.contains("\n- alpha") && shown.contains("\n  gamma"), "{shown}");
}

/// A table that is written row by row looks like one that is made as a whole.
#[test]
fn long_tables_look_like_others() {
    let part = |places: std::ops::Range<usize>| {
        let rows: Vec<usize> = places.collect();
        let mut table = Table::of("t", &rows);
        table.words("record of all", |row| format!("id{row}"));
        table.numbers("tokens/s", "tokens/s", |row| *row);
        table.words("machine", |_| "none").for_machines = true;
        table
            .words("outcome", |row| Entry::words("né\u{7}").toned(if *row == 7 { Tone::Warning } else { Tone::Plain }));
        for column in 0..5 {
            table.numbers(format!("column {column}"), "", |row| 1_000_000 * row);
        }
        // A text that wraps.
        table.words("flags", |row| if *row == 3 { "a number of words and ".repeat(4) } else { String::new() });
        table.build()
    };
    let mut document = Document::new("");
    document.table(part(0..1500));
    for terminal in [(60, false), (80, true), (200, false)].map(|(width, color)| Terminal { width, color }) {
        let mut written = Vec::new();
        long::write(&mut written, 1500, &part, terminal).unwrap();
        let written = String::from_utf8(written).unwrap();
        let whole = terminal::render(&document, terminal);
        let differing = written.lines().zip(whole.lines()).find(|(a, b)| a != b);
        assert_eq!((differing, written.lines().count()), (None, whole.lines().count()), "{terminal:?}");
    }
}

#[test]
fn numbers_are_never_broken_however_narrow_the_terminal() {
    let columns = (0..8).map(|place| Column::numbers(format!("column {place}"), "bytes"));
    let mut table = Table::new("t", std::iter::once(Column::words("cell")).chain(columns).collect());
    let numbers = (0..8u64).map(|place| Entry::whole(place, format!("{place}23,456,789")));
    table.row(
        std::iter::once(Entry::words("a long label of several words that may be wrapped")).chain(numbers).collect(),
    );
    let mut document = Document::new("");
    document.table(table);
    for width in [40, 60, 80, 120, 200] {
        let shown = terminal::render(&document, Terminal { width, color: false });
        for place in 0..8 {
            assert!(shown.contains(&format!(" {place}23,456,789 ")), "{width}:\n{shown}");
        }
        assert!(shown.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}:\n{shown}");
    }
}

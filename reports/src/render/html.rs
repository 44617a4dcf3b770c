//! HTML: one file with everything in it. Nothing is loaded, nothing is run: styles and drawings are inside, there is no
//! script, and the page forbids itself to fetch anything.

use std::fmt::Write;

use crate::document::{Align, Block, Column, Document, Entry, Table, Tone};
use crate::plot::Figure;
use crate::plot::svg::{Layout, SHAPES, Theme, inline, style};
use crate::screen::{Part, Screen};
use crate::text::{one_line, several_lines, xml};

const PAGE: &str = include_str!("html/page.css");

/// So many rows of a table are written, and so many items of a list: a page of a notebook of ten thousand records stays
/// small enough to be sent and opened. What is left out is said.
pub const MOST_ROWS: usize = 400;
/// Above so many headings there is a list of them.
const HEADINGS: usize = 3;

/// The whole page.
pub fn render(document: &Document) -> String {
    let has_figures = document.figures().next().is_some();
    let title = if document.title.trim().is_empty() { "zbench" } else { &document.title };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"generator\" content=\"zbench\"/>\n<title>{}</title>\n<style>\n{PAGE}",
        xml(title)
    );
    if has_figures {
        let (light, dark) = (style(Theme::Light), style(Theme::Dark));
        let _ = writeln!(page, "{SHAPES}{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}");
    }
    let _ = write!(page, "</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n", xml(title));
    match &document.screen {
        Some(screen) => {
            let first = document.blocks.iter().position(is_heading).unwrap_or(document.blocks.len());
            let (before, parts) = document.blocks.split_at(first);
            before.iter().for_each(|block| render_block(&mut page, block, 0, false));
            render_screen(&mut page, screen);
            folded(&mut page, parts);
        }
        None => open(&mut page, document),
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Everything in the order of the document.
fn open(page: &mut String, document: &Document) {
    let mut headings = 0;
    let mut has_contents = false;
    for block in &document.blocks {
        if is_heading(block) {
            headings += 1;
            // After what stands before the answer, so that the question is read first.
            if headings == 1 {
                contents(page, document);
                has_contents = true;
            }
        }
        render_block(page, block, headings, has_contents);
    }
}

/// The answer: words behind their labels, the plots before the first table.
fn render_screen(page: &mut String, screen: &Screen) {
    let mut figures = screen.figures.iter();
    let mut after_table = false;
    let mut is_list = false;
    let mut set_list = |page: &mut String, wanted: bool| {
        if is_list != wanted {
            page.push_str(if wanted { "<dl>\n" } else { "</dl>\n" });
            is_list = wanted;
        }
    };
    for part in &screen.parts {
        match part {
            Part::Said { label, text, .. } if label.is_empty() && after_table => {
                let _ = writeln!(page, "<p class=\"note\">{}</p>", xml(text));
            }
            Part::Said { label, text, .. } => {
                set_list(page, true);
                let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", xml(label), xml(text));
            }
            Part::Table(table) => {
                set_list(page, false);
                figures.by_ref().for_each(|figure| render_figure(page, figure));
                render_table(page, table);
            }
        }
        after_table = matches!(part, Part::Table(_));
    }
    set_list(page, false);
    figures.for_each(|figure| render_figure(page, figure));
}

fn is_heading(block: &Block) -> bool {
    matches!(block, Block::Heading { level: 0..=1, .. })
}

/// What stands behind the answer: a part for each heading, which opens when it is asked for. The first block is a heading.
fn folded(page: &mut String, blocks: &[Block]) {
    let mut rest = blocks;
    let mut number = 0;
    while let [Block::Heading { text, .. }, behind @ ..] = rest {
        number += 1;
        let end = behind.iter().position(is_heading).unwrap_or(behind.len());
        let _ = writeln!(page, "<details id=\"part-{number}\"><summary>{}</summary>", xml(text));
        behind[..end].iter().for_each(|block| render_block(page, block, number, true));
        page.push_str("</details>\n");
        rest = &behind[end..];
    }
}

fn contents(page: &mut String, document: &Document) {
    let headings: Vec<&str> = document
        .blocks
        .iter()
        .filter_map(|block| match block {
            Block::Heading { level: 0..=1, text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    if headings.len() <= HEADINGS {
        return;
    }
    page.push_str("<nav aria-label=\"Contents\"><ul>\n");
    for (place, text) in headings.iter().enumerate() {
        let _ = writeln!(page, "<li><a href=\"#part-{}\">{}</a></li>", place + 1, xml(text));
    }
    page.push_str("</ul></nav>\n");
}

fn render_block(page: &mut String, block: &Block, part: usize, in_parts: bool) {
    let _ = match block {
        Block::Heading { level: 0..=1, text } => writeln!(page, "<h2 id=\"part-{part}\">{}</h2>", xml(text)),
        Block::Heading { level, text } => {
            let level = u32::from(*level).min(5) + 1;
            writeln!(page, "<h{level}>{}</h{level}>", xml(text))
        }
        Block::Paragraph(text) if !in_parts => writeln!(page, "<p class=\"lead\">{}</p>", xml(text)),
        Block::Paragraph(text) => writeln!(page, "<p>{}</p>", xml(text)),
        Block::List(items) => {
            list(page, items);
            Ok(())
        }
        Block::Table(table) => {
            render_table(page, table);
            Ok(())
        }
        Block::Code(text) => writeln!(page, "<pre tabindex=\"0\"><code>{}</code></pre>", code(text)),
        Block::Figure(figure) => {
            render_figure(page, figure);
            Ok(())
        }
    };
}

/// Text that keeps its lines.
fn code(text: &str) -> String {
    let lines: Vec<String> = several_lines(text).lines().map(xml).collect();
    lines.join("\n")
}

fn list(page: &mut String, items: &[String]) {
    page.push_str("<ul>\n");
    for item in items.iter().take(MOST_ROWS) {
        let _ = writeln!(page, "<li>{}</li>", xml(item));
    }
    page.push_str("</ul>\n");
    if items.len() > MOST_ROWS {
        let _ = writeln!(
            page,
            "<p class=\"note\">The first {MOST_ROWS} of {} items; --format markdown has all.</p>",
            items.len()
        );
    }
}

/// A table in a box of its own that scrolls, so that the page never does. What is said about it stands before the box, where
/// it wraps; the caption itself has its name, for those who hear the page.
fn render_table(page: &mut String, table: &Table) {
    let shown: Vec<usize> = table.shown().collect();
    if shown.is_empty() {
        return;
    }
    let mut note = one_line(&table.caption);
    if table.rows.len() > MOST_ROWS {
        let _ = write!(note, " Shown are the first {MOST_ROWS} of {} rows; --format csv has all.", table.rows.len());
    }
    if !note.trim().is_empty() {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", xml(note.trim()));
    }
    let name = if table.name.trim().is_empty() { "table" } else { &table.name };
    let _ = writeln!(
        page,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table><caption>{}</caption>\n<thead><tr>",
        xml(name),
        xml(name)
    );
    for &place in &shown {
        let column = &table.columns[place];
        let class = if column.align == Align::Right { " class=\"r\"" } else { "" };
        let _ = write!(page, "<th scope=\"col\"{class}>{}</th>", xml(&column.title));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let wraps: Vec<bool> =
        table.columns.iter().enumerate().map(|(place, column)| is_long(table, place, column)).collect();
    for row in table.rows.iter().take(MOST_ROWS) {
        page.push_str("<tr>");
        for (number, &place) in shown.iter().enumerate() {
            cell(page, &row[place], &table.columns[place], number == 0, wraps[place]);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// Words too long for one line.
fn is_long(table: &Table, place: usize, column: &Column) -> bool {
    const LONG: usize = 48;
    column.align == Align::Left
        && table.rows.iter().take(MOST_ROWS).any(|row| row[place].text.char_indices().nth(LONG).is_some())
}

fn cell(page: &mut String, entry: &Entry, column: &Column, is_first: bool, wraps: bool) {
    let mut classes: Vec<&str> = Vec::new();
    if column.align == Align::Right {
        classes.push("r");
    }
    if wraps {
        classes.push("x");
    }
    let text = xml(&entry.text);
    let text = match entry.tone {
        Tone::Plain => text,
        Tone::Good => {
            classes.push("good");
            text
        }
        Tone::Warning => {
            classes.push("warn");
            text
        }
        Tone::Struck => {
            classes.push("bad");
            format!("<s>{text}</s>")
        }
    };
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{}\"", classes.join(" ")) };
    let _ = match is_first {
        true => write!(page, "<th scope=\"row\"{class}>{text}</th>"),
        false => write!(page, "<td{class}>{text}</td>"),
    };
}

fn render_figure(page: &mut String, figure: &Figure) {
    let _ = write!(
        page,
        "<figure id=\"figure-{}\">\n<h3>{}</h3>\n{}{}<figcaption>{} {}</figcaption>\n</figure>\n",
        xml(&figure.name),
        xml(&figure.title),
        inline(figure, Layout::Wide),
        inline(figure, Layout::Narrow),
        xml(&figure.caption),
        xml(&figure.made_from())
    );
}

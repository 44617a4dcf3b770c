//! HTML: one file that contains everything. Styles and drawings are inside, there is no script, and the page's security policy forbids
//! to fetch anything.

use std::fmt::Write;

use crate::document::{Align, Block, Column, Document, Entry, Table, Tone};
use crate::plot::Figure;
use crate::plot::svg::{Layout, SHAPES, Theme, inline, style};
use crate::screen::{Part, Screen};
use crate::text::{one_line, several_lines, xml};

const PAGE: &str = include_str!("html/page.css");

/// Rows of a table and items of a list at most, so that the page of a notebook of ten thousand records can be sent and opened. A note
/// states what is left out.
pub const MOST_ROWS: usize = 400;
/// Pages with more headings have a table of contents.
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
            // The question, which has no heading, comes before the contents.
            if headings == 1 {
                contents(page, document);
                has_contents = true;
            }
        }
        render_block(page, block, headings, has_contents);
    }
}

/// The answer: texts with their labels, and the plots before the first table.
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

/// The details after the answer: a part for each heading, which opens on request. The first block is a heading.
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
    let headings = document.blocks.iter().filter_map(|block| match block {
        Block::Heading { level: 0..=1, text } => Some(text.as_str()),
        _ => None,
    });
    let headings: Vec<&str> = headings.collect();
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
    match block {
        Block::Heading { level: 0..=1, text } => *page += &format!("<h2 id=\"part-{part}\">{}</h2>\n", xml(text)),
        Block::Heading { level, text } => {
            let level = u32::from(*level).min(5) + 1;
            *page += &format!("<h{level}>{}</h{level}>\n", xml(text));
        }
        Block::Paragraph(text) if !in_parts => *page += &format!("<p class=\"lead\">{}</p>\n", xml(text)),
        Block::Paragraph(text) => *page += &format!("<p>{}</p>\n", xml(text)),
        Block::List(items) => list(page, items),
        Block::Table(table) => render_table(page, table),
        Block::Code(text) => {
            let lines: Vec<String> = several_lines(text).lines().map(xml).collect();
            *page += &format!("<pre tabindex=\"0\"><code>{}</code></pre>\n", lines.join("\n"));
        }
        Block::Figure(figure) => render_figure(page, figure),
    }
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

/// A table in a box that scrolls, so that the page does not. Its caption is before the box, where it wraps; the caption element has
/// the table's name, for screen readers.
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
    let wraps: Vec<bool> = (0..table.columns.len()).map(|place| is_long(table, place)).collect();
    for row in table.rows.iter().take(MOST_ROWS) {
        page.push_str("<tr>");
        for (number, &place) in shown.iter().enumerate() {
            cell(page, &row[place], &table.columns[place], number == 0, wraps[place]);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// Whether a column has words too long for one line.
fn is_long(table: &Table, place: usize) -> bool {
    const LONG: usize = 48;
    table.columns[place].align == Align::Left
        && table.rows.iter().take(MOST_ROWS).any(|row| row[place].text.char_indices().nth(LONG).is_some())
}

fn cell(page: &mut String, entry: &Entry, column: &Column, is_first: bool, wraps: bool) {
    let tone = match entry.tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Warning => "warn",
        Tone::Struck => "bad",
    };
    let mut classes = vec![if column.align == Align::Right { "r" } else { "" }, if wraps { "x" } else { "" }, tone];
    classes.retain(|class| !class.is_empty());
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{}\"", classes.join(" ")) };
    let text = xml(&entry.text);
    let text = if entry.tone == Tone::Struck { format!("<s>{text}</s>") } else { text };
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

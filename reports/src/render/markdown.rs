//! Markdown with pipe tables (GitHub's).

use crate::document::{Align, Block, Document, Table, Tone};
use crate::plot::Figure;
use crate::screen::Part;
use crate::text::{one_line, several_lines};

/// The whole document; ends with a line end. Plots are their words.
pub fn render(document: &Document) -> String {
    render_linked(document, &|_| None)
}

/// The same, with a link to the picture of each plot for which there is one.
pub fn render_linked(document: &Document, picture: &dyn Fn(&Figure) -> Option<String>) -> String {
    let mut parts = Vec::new();
    if !document.title.is_empty() {
        parts.push(format!("# {}", escape(&document.title)));
    }
    for part in document.screen.iter().flat_map(|screen| &screen.parts) {
        parts.push(match part {
            Part::Said { label, text, .. } if label.is_empty() => escape(text),
            Part::Said { label, text, .. } => format!("**{}** {}", escape(label), escape(text)),
            Part::Table(table) => render_table(table),
        });
    }
    for figure in document.screen.iter().flat_map(|screen| &screen.figures) {
        parts.push(render_figure(figure, picture(figure)));
    }
    for block in &document.blocks {
        parts.push(match block {
            Block::Heading { level, text } => {
                format!("{} {}", "#".repeat(usize::from(*level).clamp(1, 5) + 1), escape(text))
            }
            Block::Paragraph(text) => escape(text),
            Block::List(items) => items.iter().map(|item| format!("- {}", escape(item))).collect::<Vec<_>>().join("\n"),
            Block::Table(table) => render_table(table),
            Block::Code(text) => fenced(text),
            Block::Figure(figure) => render_figure(figure, picture(figure)),
        });
    }
    parts.join("\n\n") + "\n"
}

fn render_figure(figure: &Figure, picture: Option<String>) -> String {
    let words = format!("**{}.** {} {}", escape(&figure.title), escape(&figure.caption), escape(&figure.made_from()));
    match picture {
        // Between angle brackets a path may hold spaces; what would end it is written by its number.
        Some(path) => {
            let path = one_line(&path).replace('%', "%25").replace('<', "%3C").replace('>', "%3E");
            format!("![{}](<{path}>)\n\n{}", escape(&figure.title), words.trim_end())
        }
        None => words.trim_end().to_string(),
    }
}

fn render_table(table: &Table) -> String {
    let shown: Vec<usize> = table.shown().collect();
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let mut lines = Vec::new();
    if !table.caption.is_empty() {
        lines.push(escape(&table.caption));
        lines.push(String::new());
    }
    lines.push(line(shown.iter().map(|&place| escape(&table.columns[place].title)).collect()));
    let rule = |&place: &usize| if table.columns[place].align == Align::Left { ":---" } else { "---:" }.to_string();
    lines.push(line(shown.iter().map(rule).collect()));
    for row in &table.rows {
        let entry = |&place: &usize| {
            let text = escape(&row[place].text);
            match row[place].tone {
                Tone::Plain | Tone::Warning => text,
                Tone::Good => format!("**{text}**"),
                Tone::Struck => format!("~~{text}~~"),
            }
        };
        lines.push(line(shown.iter().map(entry).collect()));
    }
    lines.join("\n")
}

/// One line in which nothing is markup. Underscores inside words are no markup and stay as they are. What makes HTML is written as an
/// entity: not every program that reads Markdown takes a backslash before it.
fn escape(text: &str) -> String {
    let text = one_line(text);
    let text = text.trim();
    let mut escaped = String::with_capacity(text.len());
    let mut before = ' ';
    let mut symbols = text.chars().peekable();
    while let Some(symbol) = symbols.next() {
        let after = symbols.peek().copied().unwrap_or(' ');
        let entity = match symbol {
            '<' => "&lt;",
            '>' => "&gt;",
            '&' => "&amp;",
            _ => "",
        };
        let is_markup = match symbol {
            '\\' | '|' | '`' | '*' | '[' | ']' | '~' => true,
            '_' => !(before.is_alphanumeric() && after.is_alphanumeric()),
            // At the start of a line these would open a heading, a list or a rule; a dash alone is an empty entry.
            '#' | '-' | '+' => escaped.is_empty() && text.len() > 1 && (after == ' ' || after == symbol),
            '.' | ')' => after == ' ' && !escaped.is_empty() && escaped.bytes().all(|byte| byte.is_ascii_digit()),
            _ => false,
        };
        if is_markup {
            escaped.push('\\');
        }
        if entity.is_empty() {
            escaped.push(symbol)
        } else {
            escaped.push_str(entity)
        }
        before = symbol;
    }
    escaped
}

/// A fence longer than any run of backticks inside.
fn fenced(text: &str) -> String {
    let text = several_lines(text);
    let longest = text.split(|symbol| symbol != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end_matches('\n'))
}

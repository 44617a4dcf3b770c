//! Text that is safe to show: on a terminal, in HTML and in XML; and its width.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Text on one line: line ends and tabs become spaces, and other control characters (escape sequences that a record may
/// hold, marks that turn the direction of writing) are shown by their number, so that no text can act on a terminal.
pub(crate) fn one_line(text: &str) -> String {
    if is_plain(text) { text.to_string() } else { visible(text, false) }
}

/// Whether it is printable ASCII, as most texts of long tables are: each letter takes a column and is shown as it is.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// The same, but line ends stay and tabs become four spaces.
pub(crate) fn several_lines(text: &str) -> String {
    visible(text, true)
}

fn visible(text: &str, keep_lines: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for symbol in text.replace("\r\n", "\n").chars() {
        match symbol {
            '\n' if keep_lines => clean.push('\n'),
            '\t' if keep_lines => clean.push_str("    "),
            '\n' | '\r' | '\t' => clean.push(' '),
            symbol if acts(symbol) => clean.extend(symbol.escape_unicode()),
            symbol => clean.push(symbol),
        }
    }
    clean
}

/// Whether a character acts on a terminal: control characters, and marks that turn the direction of writing.
pub(crate) fn acts(symbol: char) -> bool {
    symbol.is_control()
        || matches!(symbol, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text for any reader that may be a terminal: line ends and tabs stay, everything else that acts on a terminal is shown by its
/// number, as `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    let text = if text.contains("\r\n") { Cow::from(text.replace("\r\n", "\n")) } else { Cow::from(text) };
    let acts = |symbol: char| !matches!(symbol, '\n' | '\t') && acts(symbol);
    if !text.contains(acts) {
        return text;
    }
    let shown = |symbol: char| if acts(symbol) { symbol.escape_unicode().to_string() } else { symbol.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// The text with a capital letter at its beginning.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// One line of text for HTML, XML and the values of their attributes: nothing in it is markup.
pub(crate) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for symbol in one_line(text).chars() {
        match symbol {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // No XML document may hold these two, however they are written.
            '\u{fffe}' | '\u{ffff}' => escaped.extend(symbol.escape_unicode()),
            symbol => escaped.push(symbol),
        }
    }
    escaped
}

/// The columns that a text without line ends takes on a terminal.
pub(crate) fn columns(text: &str) -> usize {
    if is_plain(text) { text.len() } else { text.width() }
}

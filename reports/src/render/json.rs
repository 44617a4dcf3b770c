//! JSON: the document with all of its fields.

use crate::document::Document;

/// One object on one line, without a line end: `title`, and `blocks` of `{kind, content}`.
pub fn render(document: &Document) -> String {
    // Strings, numbers and lists only: their serialisation cannot fail.
    escaped(&serde_json::to_string(document).expect("a document has a JSON form"))
}

/// The same JSON with all characters escaped that act on a terminal. serde_json escapes those below U+0020; others can only be in
/// strings.
pub fn escaped(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for symbol in json.chars() {
        if symbol != '\n' && crate::text::acts(symbol) {
            clean.push_str(&format!("\\u{:04x}", u32::from(symbol)));
        } else {
            clean.push(symbol);
        }
    }
    clean
}

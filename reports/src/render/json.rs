//! JSON: the document as it is.

use crate::document::Document;

/// One object on one line, without a line end: `title`, and `blocks` of `{kind, content}`.
pub fn render(document: &Document) -> String {
    // Strings, numbers and lists only: their serialisation cannot fail.
    escaped(&serde_json::to_string(document).expect("a document has a JSON form"))
}

/// JSON text with the same values, in which nothing acts on a terminal. serde_json escapes what is below U+0020; the others that
/// act can be in its strings only.
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

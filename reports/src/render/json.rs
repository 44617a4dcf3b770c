//! JSON: the document as it is.

use crate::document::Document;

/// One object on one line, without a line end: `title`, and `blocks` of `{kind, content}`.
pub fn render(document: &Document) -> String {
    // Strings, numbers and lists only: their serialisation cannot fail.
    serde_json::to_string(document).expect("a document has a JSON form")
}

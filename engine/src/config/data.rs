//! Where tokens come from.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "lowercase", deny_unknown_fields)]
pub enum Data {
    /// A seeded generator (engine::data documents it).
    Synthetic {},
    /// Little-endian records of seq_len + 1 tokens, in file order, wrapping.
    Tokens {
        /// The file.
        path: PathBuf,
        /// `u16` or `u32`.
        dtype: TokenType,
        /// Every epoch in an order of its own, drawn from the seed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shuffle: bool,
    },
    /// A text, tokenized as one stream and cut into records of seq_len + 1 tokens.
    Text {
        /// The file, UTF-8.
        path: PathBuf,
        /// A Hugging Face tokenizer.json.
        tokenizer: PathBuf,
        /// Every epoch in an order of its own, drawn from the seed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shuffle: bool,
    },
    /// Documents or conversations of one or several files, each a line of JSON.
    Documents(Box<Documents>),
}

impl Data {
    /// Whether a sequence holds several documents that do not see each other.
    pub fn within_documents(&self) -> bool {
        matches!(self, Data::Documents(documents) if documents.packing == DocumentPacking::Packed)
    }
}

/// Documents of one or several files, and how they become sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// The files, with their shares.
    pub files: Vec<DocumentFile>,
    /// A Hugging Face tokenizer.json.
    pub tokenizer: PathBuf,
    /// How documents become sequences.
    pub packing: DocumentPacking,
    /// Every epoch in an order of its own, drawn from the seed.
    pub shuffle: bool,
    /// How the messages of a conversation become text.
    pub template: Template,
    /// Which tokens of a conversation have a loss.
    pub answers: Answers,
    /// The token behind every document; absent = that of the tokenizer, or none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// One file of documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentFile {
    /// The file: UTF-8, one JSON object per line.
    pub path: PathBuf,
    /// What a line holds.
    pub form: DocumentForm,
    /// The key of a line's text.
    pub field: String,
    /// Share of the sequences that are of this file, relative to the others.
    pub weight: f64,
}

/// What a line of a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentForm {
    /// `{"text": "…"}`; the key is `field`.
    Jsonl,
    /// `{"messages": [{"role": "…", "content": "…"}, …]}` or `{"prompt": "…", "completion": "…"}`.
    Chat,
}

/// How documents become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentPacking {
    /// As many whole documents to a sequence as fit; none sees another.
    Packed,
    /// One document to a sequence, padded to its end.
    Padded,
    /// One after the other as a stream, cut anywhere; what came before is seen.
    Stream,
}

/// How the messages of a conversation become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Template {
    /// `<|im_start|>role\ncontent<|im_end|>\n`.
    ChatMl,
    /// `role: content\n`, for tokenizers without special tokens.
    Plain,
}

/// Which tokens of a conversation have a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answers {
    /// Those of the assistant's messages, and the mark that ends each.
    Only,
    /// All.
    All,
}

/// Width of a token in a raw file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
}

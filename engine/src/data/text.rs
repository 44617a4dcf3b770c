//! A text through a tokenizer, as one stream of tokens.
//!
//! The text is read and tokenized in pieces of about 64 KiB, since a tokenizer holds some hundred bytes for every byte
//! that it is working on. Pieces end between two lines that both have text, where tokenizers cut anyway; no special
//! tokens are added, and neither truncation nor padding that the tokenizer's file asks for is done.

use super::DataError;
use super::error::open_file;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::{ModelWrapper, Tokenizer};

const PIECE_BYTES: usize = 64 * 1024;
/// A line longer than this is cut at a space, or between two characters.
const MOST_PIECE_BYTES: usize = 1024 * 1024;

/// What tokenizers call the token that ends a text.
const END_OF_TEXT: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"];

/// All tokens of a text, each below `vocab_size`.
pub(super) fn tokenize(path: &Path, tokenizer: &Path, vocab_size: usize) -> Result<Vec<u32>, DataError> {
    let model = Checked::open(tokenizer, vocab_size)?;
    let mut file = open_file(path, "path")?;
    let unreadable = |source| DataError::io("read", path, "path", source);
    let mut tokens = Vec::new();
    let mut pending: Vec<u8> = Vec::new();
    let mut offset = 0u64;
    loop {
        let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut pending).map_err(unreadable)?;
        let at_end = read == 0;
        let valid = match std::str::from_utf8(&pending) {
            Ok(text) => text,
            // A character cut off by the end of this read is completed by the next.
            Err(error) if error.error_len().is_none() && !at_end => {
                std::str::from_utf8(&pending[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                return Err(DataError::NotUtf8 { path: path.into(), byte: offset + error.valid_up_to() as u64 });
            }
        };
        let cut = if at_end { valid.len() } else { piece_end(valid) };
        model.encode(&valid[..cut], &mut tokens)?;
        pending.drain(..cut);
        offset += cut as u64;
        if at_end {
            return Ok(tokens);
        }
    }
}

/// Where the piece in front of `text` ends; 0 if more of its line should be read first.
fn piece_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let between_lines = bytes.windows(3).rposition(|window| {
        let [before, newline, after] = window else { return false };
        *newline == b'\n' && !before.is_ascii_whitespace() && !after.is_ascii_whitespace()
    });
    if let Some(before) = between_lines {
        return before + 2;
    }
    if bytes.len() < MOST_PIECE_BYTES {
        return 0;
    }
    let space = bytes.iter().rposition(u8::is_ascii_whitespace).filter(|space| *space > 0);
    space.unwrap_or(bytes.len())
}

/// A tokenizer whose tokens the model has.
pub(super) struct Checked<'a> {
    tokenizer: Tokenizer,
    path: &'a Path,
    vocab_size: usize,
}

impl<'a> Checked<'a> {
    pub fn open(path: &'a Path, vocab_size: usize) -> Result<Checked<'a>, DataError> {
        let bad = |reason: String| DataError::Tokenizer { path: path.into(), reason };
        let mut bytes = Vec::new();
        let read = open_file(path, "tokenizer")?.read_to_end(&mut bytes);
        read.map_err(|source| DataError::io("read", path, "tokenizer", source))?;
        // Looked at as JSON first: on text that is none, the library may panic instead of saying where.
        serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).map_err(|error| bad(error.to_string()))?;
        let parse = || Tokenizer::from_bytes(&bytes).map_err(|error| error.to_string());
        let mut tokenizer = contain(parse).map_err(bad)?;
        tokenizer.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        tokenizer.with_padding(None);
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
            && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(bad("its model.dropout makes tokens a matter of chance; set it to null".into()));
        }
        // Identifiers may have gaps, so the largest counts, not how many there are.
        let needed = tokenizer.get_vocab(true).values().max().map_or(0, |largest| u64::from(*largest) + 1);
        if needed > vocab_size as u64 {
            return Err(DataError::VocabularyTooSmall { path: path.into(), tokenizer: needed, model: vocab_size });
        }
        Ok(Checked { tokenizer, path, vocab_size })
    }

    /// The token that ends a text, by its usual names; none if the tokenizer has none of them.
    pub fn end_of_text(&self) -> Option<u32> {
        END_OF_TEXT.iter().find_map(|name| self.tokenizer.token_to_id(name))
    }

    /// Tokens of a whole text, piece by piece.
    pub fn encode_all(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        let mut rest = text;
        while rest.len() > PIECE_BYTES {
            let mut look = PIECE_BYTES;
            let cut = loop {
                let window = &rest[..rest.floor_char_boundary(look)];
                match piece_end(window) {
                    0 if window.len() < rest.len() => look += PIECE_BYTES,
                    0 => break rest.len(),
                    cut => break cut,
                }
            };
            self.encode(&rest[..cut], tokens)?;
            rest = &rest[cut..];
        }
        if rest.is_empty() { Ok(()) } else { self.encode(rest, tokens) }
    }

    fn encode(&self, piece: &str, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        let encode = || self.tokenizer.encode_fast(piece, false).map_err(|error| error.to_string());
        let bad = |reason: String| DataError::Tokenizer { path: self.path.into(), reason };
        let encoding = contain(encode).map_err(bad)?;
        if let Some(token) = encoding.get_ids().iter().find(|token| **token as usize >= self.vocab_size) {
            return Err(bad(format!("it made token {token}, which is not in its own vocabulary")));
        }
        tokens.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// Calls into the tokenizers crate, which panics on some malformed files, and makes an error of it.
fn contain<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What the call was building is dropped with the panic, so nothing half-made is seen afterwards.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("the tokenizers library failed on it".into()))
}

//! What can be wrong with data.

use std::path::{Path, PathBuf};

/// Why a source cannot be used. Every message names the file and the place in it.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{field} is 0; it must be at least 1")]
    Zero { field: &'static str },
    #[error("train.seq_len = {seq_len} is too large: a record holds one token more")]
    TooLong { seq_len: usize },
    #[error("{}: cannot {doing}: {source}; check data.{key}", .path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        /// The key that names the path.
        key: &'static str,
        source: std::io::Error,
    },
    #[error("{}: is not a regular file; give the path of a file in data.{key}", .path.display())]
    NotAFile { path: PathBuf, key: &'static str },
    #[error(
        "{}: has {bytes} bytes, which is no whole number of tokens of {width} bytes; is data.dtype right, or the file \
         truncated?", .path.display()
    )]
    Ragged { path: PathBuf, bytes: u64, width: u64 },
    #[error(
        "{}: has {tokens} tokens, less than one record of {record} (train.seq_len + 1); use more data or a shorter \
         seq_len", .path.display()
    )]
    TooShort { path: PathBuf, tokens: u64, record: u64 },
    #[error("{}: line {line} {reason}", .path.display())]
    Line {
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        reason: String,
    },
    #[error("{}: holds no document; every line must be one JSON object", .path.display())]
    NoDocuments { path: PathBuf },
    #[error(
        "{}: none of its {documents} documents has a token with a loss: they are shorter than two tokens, or conversations \
         without an answer (role assistant, or data.loss_on = \"all\")", .path.display()
    )]
    NoLoss { path: PathBuf, documents: u64 },
    #[error("data.files names {count} files; 1 to {most} can be mixed")]
    Files { count: usize, most: usize },
    #[error("{}: has the weight {weight}; it must be above 0", .path.display())]
    Weight { path: PathBuf, weight: f64 },
    #[error("data.document_end = {token} is outside the model's vocabulary of {vocab_size}")]
    DocumentEnd { token: u32, vocab_size: usize },
    #[error(
        "{}: has {sequences} sequence(s) of train.seq_len tokens, and an evaluation needs one that is not trained on; use \
         more data or a shorter train.seq_len, or leave train.eval_every out", .path.display()
    )]
    TooFewToHoldOut { path: PathBuf, sequences: u64 },
    /// Held-out sequences were asked for and there are none: a mistake of the caller, not of the data.
    #[error("held-out sequences were asked for, and nothing is held out")]
    NothingHeldOut,
    #[error(
        "{}: token {token} at position {position} of record {record} is outside the model's vocabulary of {vocab_size}; \
         use the model's tokenizer, the right data.dtype, or a larger model.vocab_size", .path.display()
    )]
    OutsideVocabulary {
        path: PathBuf,
        token: u32,
        /// The record, from 0.
        record: u64,
        /// The token's place in it, from 0.
        position: u64,
        vocab_size: usize,
    },
    #[error("{}: is not UTF-8 text: byte {byte} starts no character; convert the file to UTF-8", .path.display())]
    NotUtf8 { path: PathBuf, byte: u64 },
    #[error("{}: cannot be used as a tokenizer: {reason}; data.tokenizer takes a Hugging Face tokenizer.json",
        .path.display())]
    Tokenizer { path: PathBuf, reason: String },
    #[error(
        "{}: the tokenizer needs a vocabulary of {tokenizer}, the model has model.vocab_size = {model}; raise it, or use \
         a smaller tokenizer", .path.display()
    )]
    VocabularyTooSmall { path: PathBuf, tokenizer: u64, model: usize },
    #[error("cannot start a thread to read ahead: {source}; set data.prefetch = 0")]
    Thread { source: std::io::Error },
    /// A buffer of the wrong size: a mistake of the caller, not of the data.
    #[error("{rows} rows of {seq_len} tokens were asked for into {inputs} inputs and {targets} targets")]
    Buffers { rows: usize, seq_len: usize, inputs: usize, targets: usize },
}

impl DataError {
    pub(super) fn io(doing: &'static str, path: &Path, key: &'static str, source: std::io::Error) -> DataError {
        DataError::Io { doing, path: path.into(), key, source }
    }
}

/// Opens a regular file. Its kind is asked before opening: opening a pipe would wait for its writer.
pub(super) fn open_file(path: &Path, key: &'static str) -> Result<std::fs::File, DataError> {
    let io = |source| DataError::io("open", path, key, source);
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(DataError::NotAFile { path: path.into(), key });
    }
    std::fs::File::open(path).map_err(io)
}

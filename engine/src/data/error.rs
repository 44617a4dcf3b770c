//! What can be wrong with data.

use std::path::{Path, PathBuf};

/// Why a source cannot be used. Every message names the file and the place in it.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A size that cannot be 0 is.
    #[error("{field} is 0; it must be at least 1")]
    Zero { field: &'static str },
    /// A sequence whose record cannot be counted.
    #[error("train.seq_len = {seq_len} is too large: a record holds one token more")]
    TooLong { seq_len: usize },
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}; check data.{key}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// The key that names the path.
        key: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// A folder or a device, where a file is needed.
    #[error("{}: is not a regular file; give the path of a file in data.{key}", .path.display())]
    NotAFile {
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
    },
    /// A file that does not divide into tokens.
    #[error(
        "{}: has {bytes} bytes, which is no whole number of tokens of {width} bytes; is data.dtype right, or the file \
         truncated?", .path.display()
    )]
    Ragged {
        path: PathBuf,
        bytes: u64,
        /// Bytes of a token.
        width: u64,
    },
    /// Not even one record.
    #[error(
        "{}: has {tokens} tokens, less than one record of {record} (train.seq_len + 1); use more data or a shorter \
         seq_len", .path.display()
    )]
    TooShort {
        path: PathBuf,
        /// Tokens in it.
        tokens: u64,
        /// Tokens of a record.
        record: u64,
    },
    /// A line that is no document.
    #[error("{}: line {line} {reason}", .path.display())]
    Line {
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A file of documents without one.
    #[error("{}: holds no document; every line must be one JSON object", .path.display())]
    NoDocuments { path: PathBuf },
    /// Documents that nothing can be learnt from.
    #[error(
        "{}: none of its {documents} documents has a token with a loss: they are shorter than two tokens, or conversations \
         without an answer (role assistant, or data.loss_on = \"all\")", .path.display()
    )]
    NoLoss {
        path: PathBuf,
        /// Documents in it.
        documents: u64,
    },
    /// Too few files or too many.
    #[error("data.files names {count} files; 1 to {most} can be mixed")]
    Files {
        count: usize,
        /// At most so many.
        most: usize,
    },
    /// A weight that is no share.
    #[error("{}: has the weight {weight}; it must be above 0", .path.display())]
    Weight { path: PathBuf, weight: f64 },
    /// A token behind documents that the model does not have.
    #[error("data.document_end = {token} is outside the model's vocabulary of {vocab_size}")]
    DocumentEnd {
        token: u32,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// Not enough to train and to evaluate.
    #[error(
        "{}: has {sequences} sequence(s) of train.seq_len tokens, and an evaluation needs one that is not trained on; use \
         more data or a shorter train.seq_len, or leave train.eval_every out", .path.display()
    )]
    TooFewToHoldOut {
        path: PathBuf,
        /// Sequences in it.
        sequences: u64,
    },
    /// Held-out sequences were asked for and there are none: a mistake of the caller, not of the data.
    #[error("held-out sequences were asked for, and nothing is held out")]
    NothingHeldOut,
    /// A token that the model does not have.
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
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// The text is not UTF-8.
    #[error("{}: is not UTF-8 text: byte {byte} starts no character; convert the file to UTF-8", .path.display())]
    NotUtf8 {
        path: PathBuf,
        /// Offset of the first bad byte.
        byte: u64,
    },
    /// The tokenizer cannot be read or used.
    #[error("{}: cannot be used as a tokenizer: {reason}; data.tokenizer takes a Hugging Face tokenizer.json",
        .path.display())]
    Tokenizer { path: PathBuf, reason: String },
    /// A tokenizer that makes tokens which the model does not have.
    #[error(
        "{}: the tokenizer needs a vocabulary of {tokenizer}, the model has model.vocab_size = {model}; raise it, or use \
         a smaller tokenizer", .path.display()
    )]
    VocabularyTooSmall {
        /// The tokenizer's file.
        path: PathBuf,
        /// Its largest token + 1.
        tokenizer: u64,
        model: usize,
    },
    /// No thread to read ahead on.
    #[error("cannot start a thread to read ahead: {source}; set data.prefetch = 0")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// A buffer of the wrong size: a mistake of the caller, not of the data.
    #[error("{rows} rows of {seq_len} tokens were asked for into {inputs} inputs and {targets} targets")]
    Buffers {
        /// Samples asked for.
        rows: usize,
        /// Tokens of a sample.
        seq_len: usize,
        /// Room for inputs.
        inputs: usize,
        /// Room for targets.
        targets: usize,
    },
}

/// Opens a regular file. Its kind is asked before opening: opening a pipe would wait for its writer.
pub(super) fn open_file(path: &Path, key: &'static str) -> Result<std::fs::File, DataError> {
    let io = |source| DataError::Io { doing: "open", path: path.into(), key, source };
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(DataError::NotAFile { path: path.into(), key });
    }
    std::fs::File::open(path).map_err(io)
}

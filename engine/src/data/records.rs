//! Tokens in records of one length, on disk or in memory, read round and round.

use super::DataError;
use super::error::open_file;
use crate::config::TokenType;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Token files up to this size are read through when they are opened; larger ones are checked as they are used.
pub const SCAN_BYTES: u64 = 256 << 20;

const BUFFER_BYTES: usize = 16 * 1024;

/// A stream of tokens cut into records.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    store: Store,
    tokens: u64,
    record_len: u64,
    vocab_size: usize,
}

#[derive(Debug)]
enum Store {
    /// Read by position, so that the file takes no memory of this process and ranks share one handle.
    File(File, TokenType),
    Memory(Vec<u32>),
}

impl Records {
    pub fn open(path: &Path, dtype: TokenType, vocab_size: usize, record_len: usize) -> Result<Records, DataError> {
        let file = open_file(path, "path")?;
        let bytes = file.metadata().map_err(|source| DataError::io("read", path, "path", source))?.len();
        let width = width(dtype) as u64;
        if !bytes.is_multiple_of(width) {
            return Err(DataError::Ragged { path: path.into(), bytes, width });
        }
        let records = Records::new(path, Store::File(file, dtype), bytes / width, vocab_size, record_len)?;
        if bytes <= SCAN_BYTES {
            records.visit(0, records.tokens, |_| {})?;
        }
        Ok(records)
    }

    /// Records of tokens in memory that were made from `path`.
    pub fn from_tokens(
        path: &Path,
        tokens: Vec<u32>,
        vocab_size: usize,
        record_len: usize,
    ) -> Result<Records, DataError> {
        let count = tokens.len() as u64;
        Records::new(path, Store::Memory(tokens), count, vocab_size, record_len)
    }

    fn new(path: &Path, store: Store, tokens: u64, vocab_size: usize, record_len: usize) -> Result<Records, DataError> {
        let record_len = record_len as u64;
        if tokens < record_len {
            return Err(DataError::TooShort { path: path.into(), tokens, record: record_len });
        }
        Ok(Records { path: path.into(), store, tokens, record_len, vocab_size })
    }

    pub fn count(&self) -> u64 {
        self.tokens / self.record_len
    }

    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a record, which must be there: all but its last token to `inputs`, all but its first to `targets`.
    pub fn fill(&self, record: u64, inputs: &mut [u32], targets: &mut [u32]) -> Result<(), DataError> {
        let begin = record * self.record_len;
        let mut place = 0;
        self.visit(begin, self.record_len, |token| {
            if let Some(input) = inputs.get_mut(place) {
                *input = token;
            }
            if let Some(target) = place.checked_sub(1).and_then(|before| targets.get_mut(before)) {
                *target = token;
            }
            place += 1;
        })
    }

    /// Hands `count` tokens from `begin` on to `each`, in order, after checking them against the vocabulary.
    fn visit(&self, begin: u64, count: u64, mut each: impl FnMut(u32)) -> Result<(), DataError> {
        let mut at = begin;
        let mut check = |token: u32| {
            if token as usize >= self.vocab_size {
                return Err(self.outside(token, at));
            }
            at += 1;
            each(token);
            Ok(())
        };
        match &self.store {
            Store::Memory(tokens) => {
                // Callers stay inside `tokens`, which a Vec holds, so both fit in usize.
                tokens[begin as usize..(begin + count) as usize].iter().try_for_each(|token| check(*token))
            }
            Store::File(file, dtype) => {
                let width = width(*dtype);
                let mut buffer = [0u8; BUFFER_BYTES];
                let (mut position, mut left) = (begin * width as u64, count * width as u64);
                while left > 0 {
                    let bytes = &mut buffer[..left.min(BUFFER_BYTES as u64) as usize];
                    file.read_exact_at(bytes, position)
                        .map_err(|source| DataError::io("read", &self.path, "path", source))?;
                    match dtype {
                        TokenType::U16 => {
                            let tokens = bytes.as_chunks().0.iter();
                            tokens.map(|b| u32::from(u16::from_le_bytes(*b))).try_for_each(&mut check)?;
                        }
                        TokenType::U32 => {
                            bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).try_for_each(&mut check)?;
                        }
                    }
                    position += bytes.len() as u64;
                    left -= bytes.len() as u64;
                }
                Ok(())
            }
        }
    }

    fn outside(&self, token: u32, at: u64) -> DataError {
        DataError::OutsideVocabulary {
            path: self.path.clone(),
            token,
            record: at / self.record_len,
            position: at % self.record_len,
            vocab_size: self.vocab_size,
        }
    }
}

const fn width(dtype: TokenType) -> usize {
    match dtype {
        TokenType::U16 => 2,
        TokenType::U32 => 4,
    }
}

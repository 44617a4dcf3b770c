//! Where tokens come from. Sample `g` of a run is the same tokens whatever the strategy, the rank count or the
//! accumulation: the caller numbers samples over the global batch, and a source knows nothing of ranks.
//!
//! Three sources. *Synthetic*: a seeded generator, [`synthetic`]. *Tokens*: a raw file of little-endian tokens, cut into
//! records of `seq_len + 1`, in file order, wrapping; tokens behind the last whole record are not used. *Text*: a text
//! and a tokenizer.json, tokenized as one stream and cut in the same way. A record's first `seq_len` tokens are the
//! inputs, its last `seq_len` the targets.

mod error;
mod records;
pub mod synthetic;
mod text;

pub use error::DataError;
pub use records::SCAN_BYTES;

use crate::config::Data;
use records::Records;
use synthetic::Synthetic;

/// An opened source of samples; may be shared between ranks.
#[derive(Debug)]
pub struct Source {
    kind: Kind,
    vocab_size: usize,
    seq_len: usize,
}

#[derive(Debug)]
enum Kind {
    Synthetic(Synthetic),
    Records(Records),
}

impl Source {
    /// Opens and checks a source. A text is tokenized here; a token file of up to [`SCAN_BYTES`] is read through once,
    /// so that a token outside the vocabulary is found before training starts.
    ///
    /// # Errors
    /// A file that is absent, unreadable, of an impossible length or shorter than one record, a text that is not UTF-8,
    /// a tokenizer that does not parse, or tokens that the model's vocabulary does not have: each names the file, the
    /// place in it, and what to do.
    pub fn open(data: &Data, vocab_size: usize, seq_len: usize, seed: u64) -> Result<Source, DataError> {
        if vocab_size == 0 || seq_len == 0 {
            let field = if seq_len == 0 { "train.seq_len" } else { "model.vocab_size" };
            return Err(DataError::Zero { field });
        }
        let record_len = seq_len.checked_add(1).ok_or(DataError::TooLong { seq_len })?;
        let kind = match data {
            Data::Synthetic {} => Kind::Synthetic(Synthetic::new(vocab_size, seed)),
            Data::Tokens { path, dtype, .. } => Kind::Records(Records::open(path, *dtype, vocab_size, record_len)?),
            Data::Text { path, tokenizer, .. } => {
                let tokens = text::tokenize(path, tokenizer, vocab_size)?;
                Kind::Records(Records::from_tokens(path, tokens, vocab_size, record_len)?)
            }
            Data::Documents(_) => return Err(DataError::Zero { field: "data.source" }),
        };
        Ok(Source { kind, vocab_size, seq_len })
    }

    /// Writes samples `first_sample .. first_sample + rows`, row by row: `inputs` and `targets` are `[rows, seq_len]`.
    ///
    /// # Errors
    /// Buffers of another size, a file that cannot be read any more, or a token that the vocabulary does not have.
    pub fn fill(
        &self,
        first_sample: u64,
        rows: usize,
        inputs: &mut [u32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        if rows.checked_mul(self.seq_len) != Some(inputs.len()) || inputs.len() != targets.len() {
            let (inputs, targets, seq_len) = (inputs.len(), targets.len(), self.seq_len);
            return Err(DataError::Buffers { rows, seq_len, inputs, targets });
        }
        let both = inputs.chunks_exact_mut(self.seq_len).zip(targets.chunks_exact_mut(self.seq_len));
        for (row, (inputs, targets)) in both.enumerate() {
            let sample = first_sample.wrapping_add(row as u64);
            match &self.kind {
                Kind::Synthetic(generator) => generator.fill(sample, inputs, targets),
                Kind::Records(records) => records.fill(sample, inputs, targets)?,
            }
        }
        Ok(())
    }

    /// Whole records before the source wraps; absent for a generator.
    pub fn records(&self) -> Option<u64> {
        match &self.kind {
            Kind::Synthetic(_) => None,
            Kind::Records(records) => Some(records.count()),
        }
    }

    /// Tokens in the source, those behind the last whole record included; absent for a generator.
    pub fn tokens(&self) -> Option<u64> {
        match &self.kind {
            Kind::Synthetic(_) => None,
            Kind::Records(records) => Some(records.tokens()),
        }
    }

    /// The vocabulary that all its tokens are in.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

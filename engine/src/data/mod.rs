//! Where tokens come from. Sample `g` of a run is the same tokens whatever the strategy, the rank count or the
//! accumulation: the caller numbers samples over the global batch, and a source knows nothing of ranks. What a sample holds
//! is a function of its number alone, so a run goes on in the middle of an epoch by going on with the number.
//!
//! Four sources. *Synthetic*: a seeded generator, [`synthetic`]. *Tokens*: a raw file of little-endian tokens, cut into
//! records of `seq_len + 1`, wrapping; tokens behind the last whole record are not used. *Text*: a text
//! and a tokenizer.json, tokenized as one stream and cut in the same way. A record's first `seq_len` tokens are the
//! inputs, its last `seq_len` the targets. *Documents*: lines of JSON, packed, padded or as a stream; see docs/data.md.

mod ahead;
mod documents;
mod error;
mod lines;
mod mix;
mod order;
mod pieces;
mod records;
pub mod synthetic;
mod text;

pub use ahead::Prefetcher;
pub use documents::{Found, NO_TARGET};
pub use error::DataError;
pub use lines::MOST_LINE_BYTES;
pub use order::Order;
pub use records::SCAN_BYTES;

use crate::config::Data;
use documents::Corpus;
use records::Records;
use std::path::Path;
use std::sync::Arc;
use synthetic::Synthetic;

/// An opened source of samples; may be shared between ranks, and a clone is the same source.
#[derive(Clone, Debug)]
pub struct Source {
    kind: Kind,
    seq_len: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Synthetic(Synthetic),
    Records(Stream),
    Documents(Arc<Corpus>),
}

#[derive(Clone, Debug)]
struct Stream {
    records: Arc<Records>,
    /// Every epoch has an order of its own, drawn from this.
    shuffle: Option<u64>,
    /// Records at the end that training does not see.
    held: u64,
}

/// The buffers that samples are written to: `seq_len` elements for each row.
pub struct Row<'a> {
    pub inputs: &'a mut [u32],
    /// The tokens after them, [`NO_TARGET`] where there is no loss.
    pub targets: &'a mut [u32],
    /// The place in the sequence at which each token's document starts, if that is wanted: 0 everywhere but in documents.
    pub starts: Option<&'a mut [u32]>,
}

/// What sequences hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Tokens that are of documents, or of whatever the source has.
    pub real: u64,
    /// Places without a token of the source.
    pub padding: u64,
    /// Targets that have a loss.
    pub targets: u64,
}

impl Source {
    /// Opens and checks a source. A text and documents are tokenized here; a token file of up to [`SCAN_BYTES`] is read
    /// through once, so that a token outside the vocabulary is found before training starts.
    ///
    /// # Errors
    /// A file that is absent, unreadable, of an impossible length or shorter than one record, a text that is not UTF-8, a
    /// line that is no document, a tokenizer that does not parse, or tokens that the model's vocabulary does not have: each
    /// names the file, the place in it, and what to do.
    pub fn open(data: &Data, vocab_size: usize, seq_len: usize, seed: u64) -> Result<Source, DataError> {
        if vocab_size == 0 || seq_len == 0 {
            let field = if seq_len == 0 { "train.seq_len" } else { "model.vocab_size" };
            return Err(DataError::Zero { field });
        }
        let record_len = seq_len.checked_add(1).ok_or(DataError::TooLong { seq_len })?;
        let stream = |records, shuffle: bool| {
            Kind::Records(Stream { records: Arc::new(records), shuffle: shuffle.then_some(seed), held: 0 })
        };
        let kind = match data {
            Data::Synthetic {} => Kind::Synthetic(Synthetic::new(vocab_size, seed)),
            Data::Tokens { path, dtype, shuffle } => {
                stream(Records::open(path, *dtype, vocab_size, record_len)?, *shuffle)
            }
            Data::Text { path, tokenizer, shuffle } => {
                let tokens = text::tokenize(path, tokenizer, vocab_size)?;
                stream(Records::from_tokens(path, tokens, vocab_size, record_len)?, *shuffle)
            }
            Data::Documents(documents) => {
                Kind::Documents(Arc::new(Corpus::open(documents, vocab_size, seq_len, seed)?))
            }
        };
        Ok(Source { kind, seq_len })
    }

    /// Keeps the last sequences from training, for evaluations: `share` of them (of every file's, where documents are of
    /// several), rounded up, one at least, and never all. [`Source::fill_rows`] then draws from the others alone. A generator keeps
    /// none back: what is held out are the samples from 2^43 on, which no training run reaches.
    ///
    /// # Errors
    /// Fewer than two sequences are there.
    pub fn hold_out(mut self, share: f64) -> Result<Source, DataError> {
        match &mut self.kind {
            Kind::Synthetic(_) => {}
            Kind::Records(stream) => stream.held = held(stream.records.path(), stream.records.count(), share)?,
            Kind::Documents(corpus) => Arc::make_mut(corpus).hold_out(share)?,
        }
        Ok(self)
    }

    /// Writes samples `first .. first + rows` of training, or held-out sequences (each modulo their number), row by row: all
    /// buffers are `[rows, seq_len]`.
    ///
    /// # Errors
    /// Buffers of another size, a file that cannot be read any more, a token that the vocabulary does not have, or held-out
    /// sequences where nothing was held out.
    pub fn fill_rows(&self, held_out: bool, first: u64, rows: usize, to: Row<'_>) -> Result<(), DataError> {
        let Row { inputs, targets, mut starts } = to;
        let seq_len = self.seq_len;
        let all = starts.as_ref().map_or(inputs.len(), |starts| starts.len());
        if rows.checked_mul(seq_len) != Some(inputs.len()) || inputs.len() != targets.len() || inputs.len() != all {
            let (inputs, targets) = (inputs.len(), targets.len());
            return Err(DataError::Buffers { rows, seq_len, inputs, targets });
        }
        let both = inputs.chunks_exact_mut(seq_len).zip(targets.chunks_exact_mut(seq_len));
        for (row, (inputs, targets)) in both.enumerate() {
            let sample = first.wrapping_add(row as u64);
            let starts = starts.as_mut().map(|starts| &mut starts[row * seq_len..(row + 1) * seq_len]);
            self.row(held_out, sample, Row { inputs, targets, starts })?;
        }
        Ok(())
    }

    fn row(&self, held_out: bool, sample: u64, row: Row<'_>) -> Result<(), DataError> {
        match &self.kind {
            Kind::Documents(corpus) => return corpus.fill(held_out, sample, row),
            Kind::Synthetic(generator) => {
                let sample = if held_out { HELD_OUT + sample % HELD_OUT } else { sample };
                generator.fill(sample, row.inputs, row.targets);
            }
            Kind::Records(stream) => stream.records.fill(stream.record(held_out, sample)?, row.inputs, row.targets)?,
        }
        if let Some(starts) = row.starts {
            starts.fill(0);
        }
        Ok(())
    }

    /// What samples `first .. first + rows` hold, of training or held out.
    ///
    /// # Errors
    /// Held-out ones are asked for, and there are none.
    pub fn counts(&self, held_out: bool, first: u64, rows: usize) -> Result<Counts, DataError> {
        let Kind::Documents(corpus) = &self.kind else {
            let tokens = (rows as u64).saturating_mul(self.seq_len as u64);
            return Ok(Counts { real: tokens, padding: 0, targets: tokens });
        };
        (0..rows as u64).try_fold(Counts::default(), |sum, row| {
            let one = corpus.counts(held_out, first.wrapping_add(row))?;
            let Counts { real, padding, targets } = sum;
            Ok(Counts { real: real + one.real, padding: padding + one.padding, targets: targets + one.targets })
        })
    }

    /// Whether [`Source::counts`] may differ from one sample to the next.
    pub fn has_documents(&self) -> bool {
        matches!(self.kind, Kind::Documents(_))
    }

    /// Whether reading a sample takes long enough to do it ahead: where files are read, or documents put together.
    pub fn worth_reading_ahead(&self) -> bool {
        !matches!(self.kind, Kind::Synthetic(_))
    }

    /// What was found in documents; absent for other sources.
    pub fn found(&self) -> Option<Found> {
        match &self.kind {
            Kind::Documents(corpus) => Some(corpus.found()),
            _ => None,
        }
    }

    /// Whole records, or sequences of documents, before training wraps, those that are held out not counted; absent for a
    /// generator.
    pub fn records(&self) -> Option<u64> {
        self.sequences().map(|(trained, _)| trained)
    }

    /// Sequences that are held out; absent for a generator, which has as many as are asked for.
    pub fn held_out(&self) -> Option<u64> {
        self.sequences().map(|(_, held)| held)
    }

    fn sequences(&self) -> Option<(u64, u64)> {
        match &self.kind {
            Kind::Synthetic(_) => None,
            Kind::Records(stream) => Some((stream.records.count() - stream.held, stream.held)),
            Kind::Documents(corpus) => Some(corpus.sequences()),
        }
    }

    /// Tokens in the source, those behind the last whole record included; absent for a generator.
    pub fn tokens(&self) -> Option<u64> {
        match &self.kind {
            Kind::Synthetic(_) => None,
            Kind::Records(stream) => Some(stream.records.tokens()),
            Kind::Documents(corpus) => Some(corpus.found().tokens),
        }
    }

    pub fn seq_len(&self) -> usize {
        self.seq_len
    }
}

impl Stream {
    /// The number of the record that a sample is read from.
    fn record(&self, held_out: bool, sample: u64) -> Result<u64, DataError> {
        let trained = self.records.count() - self.held;
        if held_out {
            let place = sample.checked_rem(self.held).ok_or(DataError::NothingHeldOut)?;
            return Ok(trained + place);
        }
        let (epoch, place) = (sample / trained, sample % trained);
        Ok(self.shuffle.map_or(place, |seed| Order::new(seed, 0, epoch, trained).at(place)))
    }
}

/// The generator's first held-out sample. Its formula has 44 bits for a sample's number.
const HELD_OUT: u64 = 1 << 43;

/// How many of a file's sequences are held out.
fn held(path: &Path, sequences: u64, share: f64) -> Result<u64, DataError> {
    if sequences < 2 {
        return Err(DataError::TooFewToHoldOut { path: path.into(), sequences });
    }
    // A share that is no share at all is held to what can be.
    Ok(((share * sequences as f64).ceil() as u64).clamp(1, sequences - 1))
}

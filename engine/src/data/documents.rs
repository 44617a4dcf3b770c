//! Documents of one or several files, as sequences.
//!
//! All files are read and tokenized when they are opened: of a token its number is kept (2 bytes where the vocabulary
//! allows, else 4), and a bit that says whether it has a loss where some have none. Which tokens a sequence holds is worked
//! out then, too; what is read later is a function of the sequence's number.

use super::lines::{Lines, Segment};
use super::mix::{Mix, PERIOD};
use super::order::Order;
use super::pieces::{self, Piece};
use super::text::Checked;
use super::{Counts, DataError, Row, held};
use crate::config::{Answers, DocumentFile, DocumentPacking, Documents};
use serde::{Deserialize, Serialize};

/// A target that has no loss.
pub const NO_TARGET: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct Corpus {
    files: Vec<Sequences>,
    mix: Mix,
    seed: u64,
    shuffle: bool,
    /// The token at places of padding.
    pad: u32,
    seq_len: u32,
}

/// Counts of what documents hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Lines with a document.
    pub documents: u64,
    /// Tokens, ends of documents included.
    pub tokens: u64,
    /// Documents that do not fit a sequence and are cut into pieces.
    pub cut: u64,
    /// Documents without a token that has a loss: left out.
    pub without_loss: u64,
    /// Sequences, those that are held out included.
    pub sequences: u64,
    /// Tokens of all sequences that are of documents, not padding.
    pub real_tokens: u64,
}

#[derive(Clone, Debug)]
struct Sequences {
    tokens: Tokens,
    pieces: Vec<Piece>,
    /// Where each sequence's pieces end.
    ends: Vec<usize>,
    held: u64,
    found: Found,
    path: std::path::PathBuf,
}

/// Tokens, and which of them have a loss.
#[derive(Clone, Debug)]
struct Tokens {
    ids: Ids,
    /// A bit for each; absent where all have one.
    loss: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
enum Ids {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Tokens {
    fn new(vocab_size: usize) -> Tokens {
        let narrow = vocab_size <= 1 << 16;
        Tokens { ids: if narrow { Ids::Narrow(Vec::new()) } else { Ids::Wide(Vec::new()) }, loss: None }
    }

    fn len(&self) -> u64 {
        match &self.ids {
            Ids::Narrow(ids) => ids.len() as u64,
            Ids::Wide(ids) => ids.len() as u64,
        }
    }

    fn push(&mut self, tokens: &[u32], loss: bool) {
        let before = self.len() as usize;
        match &mut self.ids {
            Ids::Narrow(ids) => ids.extend(tokens.iter().map(|token| *token as u16)),
            Ids::Wide(ids) => ids.extend_from_slice(tokens),
        }
        let all = before + tokens.len();
        if !loss && self.loss.is_none() {
            let mut bits = vec![u64::MAX; before / 64];
            bits.push((1u64 << (before % 64)) - 1);
            self.loss = Some(bits);
        }
        if let Some(bits) = &mut self.loss {
            bits.resize(all / 64 + 1, 0);
            if loss {
                (before..all).for_each(|at| bits[at / 64] |= 1 << (at % 64));
            }
        }
    }

    fn id(&self, at: u64) -> u32 {
        match &self.ids {
            Ids::Narrow(ids) => u32::from(ids[at as usize]),
            Ids::Wide(ids) => ids[at as usize],
        }
    }

    fn has_loss(&self, at: u64) -> bool {
        self.loss.as_ref().is_none_or(|bits| bits[at as usize / 64] >> (at % 64) & 1 == 1)
    }

    /// How many targets of a piece have a loss.
    fn targets(&self, piece: &Piece) -> u32 {
        let count = piece.len - u32::from(!piece.more);
        if self.loss.is_none() {
            return count;
        }
        (1..=u64::from(count)).filter(|at| self.has_loss(piece.begin + at)).count() as u32
    }
}

impl Corpus {
    pub fn open(documents: &Documents, vocab_size: usize, seq_len: usize, seed: u64) -> Result<Corpus, DataError> {
        let Some(seq_len) = u32::try_from(seq_len).ok().filter(|len| *len < u32::MAX) else {
            return Err(DataError::TooLong { seq_len });
        };
        let count = documents.files.len();
        if count == 0 || count > PERIOD {
            return Err(DataError::Files { count, most: PERIOD });
        }
        if let Some(file) = documents.files.iter().find(|file| !(file.weight > 0.0 && file.weight.is_finite())) {
            return Err(DataError::Weight { path: file.path.clone(), weight: file.weight });
        }
        let model = Checked::open(&documents.tokenizer, vocab_size)?;
        let end = match documents.end {
            Some(token) if token as usize >= vocab_size => return Err(DataError::DocumentEnd { token, vocab_size }),
            Some(token) => Some(token),
            None => model.end_of_text(),
        };
        let read = |file| Sequences::read(file, documents, &model, end, vocab_size, seq_len);
        let files: Vec<Sequences> = documents.files.iter().map(read).collect::<Result<_, _>>()?;
        let weights: Vec<f64> = documents.files.iter().map(|file| file.weight).collect();
        let mix = Mix::new(&weights);
        Ok(Corpus { files, mix, seed, shuffle: documents.shuffle, pad: end.unwrap_or(0), seq_len })
    }

    /// Keeps the last sequences of every file from training.
    pub fn hold_out(&mut self, share: f64) -> Result<(), DataError> {
        for file in &mut self.files {
            file.held = held(&file.path, file.count(), share)?;
        }
        Ok(())
    }

    /// Sequences that are trained on before the first of the files is read again, and those that are held out.
    pub fn sequences(&self) -> (u64, u64) {
        let trained = self.files.iter().map(|file| file.count() - file.held).sum();
        (trained, self.files.iter().map(|file| file.held).sum())
    }

    pub fn found(&self) -> Found {
        self.files.iter().fold(Found::default(), |sum, Sequences { found, .. }| Found {
            documents: sum.documents + found.documents,
            tokens: sum.tokens + found.tokens,
            cut: sum.cut + found.cut,
            without_loss: sum.without_loss + found.without_loss,
            sequences: sum.sequences + found.sequences,
            real_tokens: sum.real_tokens + found.real_tokens,
        })
    }

    /// Writes a sequence of training, or a held-out one.
    pub fn fill(&self, held_out: bool, number: u64, row: Row<'_>) -> Result<(), DataError> {
        let (file, sequence) = self.sequence(held_out, number)?;
        file.fill(sequence, self.pad, row);
        Ok(())
    }

    pub fn counts(&self, held_out: bool, number: u64) -> Result<Counts, DataError> {
        let (file, sequence) = self.sequence(held_out, number)?;
        let pieces = file.pieces(sequence);
        let sum = |of: fn(&Piece) -> u32| pieces.iter().map(|piece| u64::from(of(piece))).sum::<u64>();
        let real = sum(|piece| piece.len);
        Ok(Counts { real, padding: u64::from(self.seq_len) - real, targets: sum(|piece| piece.targets) })
    }

    /// The file and the sequence that a number stands for.
    fn sequence(&self, held_out: bool, number: u64) -> Result<(&Sequences, u64), DataError> {
        if held_out {
            let (_, all) = self.sequences();
            if all == 0 {
                return Err(DataError::NothingHeldOut);
            }
            let (file, which) = self.mix.turn(number % all);
            let file = &self.files[file];
            return Ok((file, file.count() - file.held + which % file.held));
        }
        let (stream, which) = self.mix.turn(number);
        let file = &self.files[stream];
        let trained = file.count() - file.held;
        let (epoch, place) = (which / trained, which % trained);
        let order = Order::new(self.seed, stream as u64, epoch, trained);
        Ok((file, if self.shuffle { order.at(place) } else { place }))
    }
}

impl Sequences {
    fn read(
        file: &DocumentFile,
        documents: &Documents,
        model: &Checked<'_>,
        end: Option<u32>,
        vocab_size: usize,
        seq_len: u32,
    ) -> Result<Sequences, DataError> {
        let mut tokens = Tokens::new(vocab_size);
        let (mut pieces, mut found) = (Vec::new(), Found::default());
        let mut made = Vec::new();
        let key = if documents.files.len() > 1 { "files" } else { "path" };
        let mut lines = Lines::open(file, documents.template, key)?;
        let has_loss = |answer: bool| answer || documents.answers == Answers::All;
        let stream = documents.packing == DocumentPacking::Stream;
        while let Some((segments, end_answers)) = lines.next()? {
            let begin = tokens.len();
            for Segment { text, answer } in segments {
                made.clear();
                model.encode_all(&text, &mut made)?;
                tokens.push(&made, has_loss(answer));
            }
            if let Some(end) = end {
                tokens.push(&[end], has_loss(end_answers));
            }
            found.documents += 1;
            let (mut parts, mut targets) = (0, 0);
            pieces::cut(begin, tokens.len() - begin, seq_len, |mut piece| {
                piece.targets = tokens.targets(&piece);
                (parts, targets) = (parts + 1, targets + u64::from(piece.targets));
                // A piece without a loss teaches nothing.
                if !stream && piece.targets > 0 {
                    pieces.push(piece);
                }
            });
            if !stream {
                found.cut += u64::from(parts > 1);
                found.without_loss += u64::from(targets == 0);
            }
        }
        found.tokens = tokens.len();
        if found.documents == 0 {
            return Err(DataError::NoDocuments { path: file.path.clone() });
        }
        let ends = match documents.packing {
            DocumentPacking::Packed => pieces::pack(&mut pieces, seq_len),
            DocumentPacking::Padded => (1..=pieces.len()).collect(),
            DocumentPacking::Stream => {
                let record = u64::from(seq_len) + 1;
                if tokens.len() < record {
                    return Err(DataError::TooShort { path: file.path.clone(), tokens: tokens.len(), record });
                }
                for number in 0..tokens.len() / record {
                    let mut piece = Piece { begin: number * record, len: seq_len, targets: 0, more: true };
                    piece.targets = tokens.targets(&piece);
                    if piece.targets > 0 {
                        pieces.push(piece);
                    }
                }
                (1..=pieces.len()).collect()
            }
        };
        if ends.is_empty() {
            return Err(DataError::NoLoss { path: file.path.clone(), documents: found.documents });
        }
        found.sequences = ends.len() as u64;
        found.real_tokens = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        Ok(Sequences { tokens, pieces, ends, held: 0, found, path: file.path.clone() })
    }

    fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    fn pieces(&self, sequence: u64) -> &[Piece] {
        let sequence = sequence as usize;
        let begin = sequence.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[begin..self.ends[sequence]]
    }

    fn fill(&self, sequence: u64, pad: u32, Row { inputs, targets, mut starts }: Row<'_>) {
        let mut at = 0;
        for piece in self.pieces(sequence) {
            let len = piece.len as usize;
            for (place, begin) in (at..at + len).zip(piece.begin..) {
                let known = place + 1 < at + len || piece.more;
                inputs[place] = self.tokens.id(begin);
                targets[place] =
                    if known && self.tokens.has_loss(begin + 1) { self.tokens.id(begin + 1) } else { NO_TARGET };
            }
            if let Some(starts) = &mut starts {
                starts[at..at + len].fill(at as u32);
            }
            at += len;
        }
        inputs[at..].fill(pad);
        targets[at..].fill(NO_TARGET);
        if let Some(starts) = starts {
            // Padding sees itself alone.
            starts.iter_mut().enumerate().skip(at).for_each(|(place, start)| *start = place as u32);
        }
    }
}

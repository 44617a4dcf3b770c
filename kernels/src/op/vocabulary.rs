//! The table of words and the loss over them, whole or in parts that ranks have.

use crate::DType;

/// The words of a table or of logits: all of a vocabulary, or a rank's part where ranks share one (tensor parallelism).
///
/// Parts have one length on all ranks. So the last of them may be longer than what is left of the vocabulary: rows and columns
/// from [`VocabPart::valid`] on are padding and stand for no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabPart {
    /// The id of the part's first word.
    pub first: usize,
    /// Rows of the table, columns of the logits.
    pub len: usize,
    /// Words of the whole vocabulary; an id at or above it is an error.
    pub vocab_size: usize,
}

impl VocabPart {
    pub const fn whole(vocab_size: usize) -> VocabPart {
        VocabPart { first: 0, len: vocab_size, vocab_size }
    }

    /// How many words the part has, padding left out.
    pub fn valid(&self) -> usize {
        self.vocab_size.saturating_sub(self.first).min(self.len)
    }

    /// Where the part has the word with this id; `None` if the word is another rank's.
    #[inline]
    pub fn find(&self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|at| *at < self.valid())
    }
}

/// `out[r] = table[ids[r]]`. The words of other parts have rows of zeros, so that the sum over the ranks is the look-up in the
/// whole table, and no gradient here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    pub rows: usize,
    pub cols: usize,
    /// The words that the table has.
    pub vocab: VocabPart,
    /// The id whose vector has no gradient, where there is one: padding.
    pub padding: Option<u32>,
    /// Type of table and output (forward), of the incoming gradient (backward).
    pub dtype: DType,
}

/// Softmax cross-entropy over `rows` of `vocab` logits. The logits are replaced by `scale * (softmax - one_hot)`; a narrower
/// gradient takes the front of their buffer, rows one behind the other, and leaves the rest unspecified. The target `u32::MAX`
/// means that a row has none: its loss and its gradient are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    pub rows: usize,
    pub vocab: usize,
    pub scale: f64,
    /// Type of the logits and of the losses: f32 or f64.
    pub dtype: DType,
    /// Type of the gradient: that of the logits, or a narrower one.
    pub gradient: DType,
    /// Elements from one row of logits to the next, and from one row of the gradient to the next; 0: rows follow each other. The
    /// gradient is 0 between them.
    pub pitch: usize,
}

impl CrossEntropy {
    /// Elements from one row to the next.
    pub fn row_pitch(&self) -> usize {
        if self.pitch == 0 { self.vocab } else { self.pitch }
    }
}

/// The first half of a cross-entropy over logits that ranks share: what the other ranks must know of a rank's columns, three
/// numbers for each row. They are the maximum over the part's words, the sum of `e^(logit - maximum)`, and the target's logit, or
/// 0 where the part does not have the target. A part without words has a maximum of -infinity and a sum of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabParallelStats {
    pub rows: usize,
    /// The words of the columns. Targets are ids of the whole vocabulary.
    pub vocab: VocabPart,
    /// Type of the logits: f32 or f64. The three numbers have its accumulator's.
    pub dtype: DType,
    /// Elements from one row of logits to the next; 0: rows follow each other.
    pub pitch: usize,
}

impl VocabParallelStats {
    /// Numbers that are kept of a row.
    pub const NUMBERS: usize = 3;

    /// Elements from one row to the next.
    pub fn row_pitch(&self) -> usize {
        if self.pitch == 0 { self.vocab.len } else { self.pitch }
    }
}

/// The second half: from the numbers of all ranks, in their order, the losses of whole rows, and the gradient in the place of the
/// rank's logits, as [`CrossEntropy`] has them. The gradient of padding is 0. Losses have the same bits on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VocabParallelCrossEntropy {
    /// What the first half was given on this rank.
    pub part: VocabParallelStats,
    /// Ranks that share the vocabulary.
    pub ranks: usize,
    pub scale: f64,
    /// Type of the gradient: that of the logits, or a narrower one.
    pub gradient: DType,
}

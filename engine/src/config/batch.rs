//! The global batch of a cell, and how it is divided.

use super::Cell;

/// How the sequences of a step are divided among ranks and micro-batches. The same sequences can be divided in several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchDivision {
    /// Ranks that read sequences of their own. The ranks of a model-parallel group read the same ones.
    pub data_ranks: usize,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per step.
    pub accumulation: usize,
}

impl BatchDivision {
    /// Sequences of a step over all ranks: the global batch.
    pub fn sequences(&self) -> u64 {
        let Self { data_ranks, micro_batch, accumulation } = *self;
        [data_ranks, micro_batch, accumulation].into_iter().fold(1, |all, each| all.saturating_mul(each as u64))
    }
}

impl Cell {
    /// How its global batch is divided.
    pub fn batch_division(&self) -> BatchDivision {
        BatchDivision {
            data_ranks: self.parallel.ranks / self.parallel.degrees.ranks_per_replica().max(1),
            micro_batch: self.train.micro_batch,
            accumulation: self.train.accumulation,
        }
    }
}

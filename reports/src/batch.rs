//! The effective batch, and what a change of it asks of the learning rate.

use crate::record::Record;
use crate::units;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a step averages its gradient over, and how far it goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Ranks.
    pub ranks: u64,
    /// Tensor ranks, which have the same sequences; 1 without.
    pub tensor: u64,
    /// Stages of the pipeline, through which a sequence goes; 1 without.
    pub stages: u64,
    /// Sequences per rank and micro-batch.
    pub micro_batch: u64,
    /// Micro-batches per step.
    pub accumulation: u64,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Peak learning rate.
    pub lr: f64,
}

impl Batch {
    /// That of a record of training; `None` where the configuration has none.
    pub fn of(record: &Record) -> Option<Batch> {
        let count = |path: &str| record.setting(path).and_then(Value::as_u64);
        Some(Batch {
            ranks: count("parallel.ranks")?,
            tensor: count("parallel.tensor").unwrap_or(1),
            stages: count("parallel.pipeline").unwrap_or(1),
            micro_batch: count("train.micro_batch")?,
            accumulation: count("train.accumulation")?,
            seq_len: count("train.seq_len")?,
            lr: record.setting("train.lr").and_then(Value::as_f64)?,
        })
    }

    /// Sequences of a step, over all ranks.
    pub fn sequences(&self) -> u64 {
        let data = self.ranks / (self.tensor.max(1) * self.stages.max(1));
        data.saturating_mul(self.micro_batch).saturating_mul(self.accumulation)
    }

    /// Tokens of a step, over all ranks.
    pub fn tokens(&self) -> u64 {
        self.sequences().saturating_mul(self.seq_len)
    }
}

/// The effective batch in words, with how it comes about where it is one and the same.
pub fn effective(batches: &[Batch]) -> Option<String> {
    let (first, sizes) = (batches.first()?, sizes(batches));
    if let [(sequences, _)] = sizes[..] {
        let tokens: Vec<u64> = batches.iter().map(Batch::tokens).collect();
        let tokens = match (tokens.iter().min(), tokens.iter().max()) {
            (Some(low), Some(high)) if low != high => format!("{} to {}", units::count(*low), units::count(*high)),
            _ => units::count(first.tokens()),
        };
        let one = |batch: &Batch| (batch.ranks, batch.tensor, batch.stages, batch.micro_batch, batch.accumulation);
        let divided = |name, by: u64| if by > 1 { format!(" / {name} {by}") } else { String::new() };
        let (tensor, stages) = (divided("tensor", first.tensor), divided("pipeline", first.stages));
        let made = match batches.iter().all(|batch| one(batch) == one(first)) {
            true => format!(
                " = ranks {}{tensor}{stages} x micro_batch {} x accumulation {}",
                first.ranks, first.micro_batch, first.accumulation
            ),
            false => String::new(),
        };
        return Some(format!("effective batch: {}{made}, {tokens} tokens a step", plural(sequences)));
    }
    let all: Vec<String> = sizes.iter().map(|(sequences, _)| units::count(*sequences)).collect();
    Some(format!("effective batch: {} sequences, by cell", units::list(&all)))
}

/// What to think of where cells have different batches and one learning rate; `None` where nothing is to be said.
///
/// The factors are the field's two rules, of which neither holds everywhere: linear (Goyal et al. 2017, found for SGD) and
/// the square root (Malladi et al. 2022, for Adam).
pub fn advice(batches: &[Batch]) -> Option<String> {
    let sizes = sizes(batches);
    let (low, rates) = sizes.first()?;
    // A rate that some batches share and others do not is still one that was not thought of for each.
    let shared = rates.iter().find(|lr| sizes.iter().skip(1).any(|(_, others)| others.contains(lr)))?;
    const SHOWN: usize = 3;
    let scaled = |(sequences, _): &(u64, Vec<f64>)| {
        let factor = *sequences as f64 / *low as f64;
        format!("{} or {} at {}", rate(shared * factor), rate(shared * factor.sqrt()), units::count(*sequences))
    };
    let affected: Vec<&(u64, Vec<f64>)> = sizes.iter().skip(1).filter(|(_, rates)| rates.contains(shared)).collect();
    let mut examples: Vec<String> = affected.iter().take(SHOWN).map(|size| scaled(size)).collect();
    if affected.len() > SHOWN {
        examples.push("so on".into());
    }
    Some(format!(
        "The effective batch differs between cells ({} to {}) and the learning rate does not ({}): their losses are those of \
         different trainings. To compare losses hold train.global_batch. To compare trainings give each batch its rate; from {} at \
         {} the linear rule (Goyal et al. 2017) and the square root (Malladi et al. 2022, for Adam) make {}. They are starting \
         points: nothing is changed for you.",
        units::count(*low),
        plural(affected.last().map_or(*low, |(sequences, _)| *sequences)),
        rate(*shared),
        rate(*shared),
        plural(*low),
        units::list(&examples),
    ))
}

/// The batches by size, each with its learning rates.
fn sizes(batches: &[Batch]) -> Vec<(u64, Vec<f64>)> {
    let mut sizes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for batch in batches {
        let rates = sizes.entry(batch.sequences()).or_default();
        if !rates.contains(&batch.lr) {
            rates.push(batch.lr);
        }
    }
    sizes.into_iter().collect()
}

fn plural(sequences: u64) -> String {
    format!("{} sequence{}", units::count(sequences), if sequences == 1 { "" } else { "s" })
}

/// A learning rate to three digits.
fn rate(lr: f64) -> String {
    let rounded: f64 = format!("{lr:.2e}").parse().unwrap_or(lr);
    format!("{rounded:e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(ranks: u64, micro_batch: u64, lr: f64) -> Batch {
        Batch { ranks, tensor: 1, stages: 1, micro_batch, accumulation: 2, seq_len: 512, lr }
    }

    #[test]
    fn one_batch_is_spelled_out_and_needs_no_advice() {
        let same = [batch(2, 4, 1e-3), batch(2, 4, 2e-3)];
        let words = effective(&same).unwrap();
        assert_eq!(
            words,
            "effective batch: 16 sequences = ranks 2 x micro_batch 4 x accumulation 2, 8,192 tokens a step"
        );
        assert_eq!(advice(&same), None);
        // A sequence goes through all stages, and tensor ranks have the same ones.
        let staged = effective(&[Batch { tensor: 2, stages: 4, ..batch(16, 1, 1e-3) }]).unwrap();
        assert_eq!(
            staged,
            "effective batch: 4 sequences = ranks 16 / tensor 2 / pipeline 4 x micro_batch 1 x accumulation 2, 2,048 tokens a step"
        );
        // The same batch shared out differently is the same training.
        let shared = [batch(2, 4, 1e-3), batch(4, 2, 1e-3)];
        assert_eq!(effective(&shared).unwrap(), "effective batch: 16 sequences, 8,192 tokens a step");
        assert_eq!(advice(&shared), None);
        assert_eq!((effective(&[]), advice(&[])), (None, None));
    }

    #[test]
    fn several_batches_at_one_rate_are_told_with_both_rules() {
        let grid = [batch(1, 4, 1e-3), batch(4, 4, 1e-3), batch(2, 4, 5e-4)];
        assert_eq!(effective(&grid).unwrap(), "effective batch: 8, 16 and 32 sequences, by cell");
        let text = advice(&grid).unwrap();
        // 8 -> 32 is a factor of four: 4e-3, or 2e-3 by the root. The cell of 16 has a rate of its own.
        assert!(text.contains("(8 to 32 sequences)") && text.contains("4e-3 or 2e-3 at 32"), "{text}");
        assert!(!text.contains("at 16"), "{text}");
    }

    #[test]
    fn rates_that_follow_the_batch_are_left_alone() {
        assert_eq!(advice(&[batch(1, 4, 1e-3), batch(2, 4, 2e-3), batch(4, 4, 4e-3)]), None);
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let huge = Batch {
            ranks: u64::MAX,
            tensor: 1,
            stages: 1,
            micro_batch: 2,
            accumulation: 3,
            seq_len: u64::MAX,
            lr: 1e300,
        };
        assert_eq!(huge.tokens(), u64::MAX);
        assert!(advice(&[batch(1, 1, 1e300), huge]).is_some());
    }
}

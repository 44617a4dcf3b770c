use super::values::{read, write};
use zbench_kernels::*;

pub(super) fn cross_entropy(op: &CrossEntropy, logits: ViewMut, targets: &[u32], mut losses: ViewMut) -> Result<()> {
    let (vocab, pitch) = (op.vocab, op.row_pitch());
    let mut values = read(&logits.as_view(), op.rows * pitch);
    let mut out = vec![0.0; op.rows];
    for (r, target) in targets.iter().enumerate() {
        let (row, between) = values[r * pitch..(r + 1) * pitch].split_at_mut(vocab);
        between.fill(0.0);
        if *target == u32::MAX {
            row.fill(0.0);
            continue;
        }
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
        out[r] = top + sum.ln() - row[*target as usize];
        row.iter_mut().for_each(|x| *x = op.scale * (*x - top).exp() / sum);
        row[*target as usize] -= op.scale;
    }
    write(&mut logits.into_reinterpreted(op.gradient)?, &values)?;
    write(&mut losses, &out)
}

pub(super) fn parts(op: &VocabParallelStats, targets: &[u32], logits: &View, statistics: &mut ViewMut) -> Result<()> {
    let (valid, pitch) = (op.vocab.valid(), op.row_pitch());
    let values = read(logits, op.rows * pitch);
    let mut out = Vec::with_capacity(op.rows * VocabParallelStats::NUMBERS);
    for (r, target) in targets.iter().enumerate() {
        let row = &values[r * pitch..r * pitch + valid];
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = if top == f64::NEG_INFINITY { 0.0 } else { row.iter().map(|x| (x - top).exp()).sum() };
        out.extend([top, sum, op.vocab.find(*target).map_or(0.0, |at| row[at])]);
    }
    write(statistics, &out)
}

pub(super) fn of_parts(
    op: &VocabParallelCrossEntropy,
    targets: &[u32],
    statistics: &View,
    logits: ViewMut,
    losses: &mut ViewMut,
) -> Result<()> {
    let VocabParallelCrossEntropy { part, ranks, scale, gradient } = *op;
    let (valid, pitch) = (part.vocab.valid(), part.row_pitch());
    let numbers = read(statistics, ranks * part.rows * VocabParallelStats::NUMBERS);
    let mut values = read(&logits.as_view(), part.rows * pitch);
    let mut out = vec![0.0; part.rows];
    for (r, target) in targets.iter().enumerate() {
        let (row, padding) = values[r * pitch..(r + 1) * pitch].split_at_mut(valid);
        padding.fill(0.0);
        if *target == u32::MAX {
            row.fill(0.0);
            continue;
        }
        let of_rank = |rank: usize| {
            &numbers[(rank * part.rows + r) * VocabParallelStats::NUMBERS..][..VocabParallelStats::NUMBERS]
        };
        let top = (0..ranks).map(|rank| of_rank(rank)[0]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..ranks).map(|rank| of_rank(rank)[1] * (of_rank(rank)[0] - top).exp()).sum();
        out[r] = top + sum.ln() - (0..ranks).map(|rank| of_rank(rank)[2]).sum::<f64>();
        row.iter_mut().for_each(|x| *x = scale * (*x - top).exp() / sum);
        if let Some(at) = part.vocab.find(*target) {
            row[at] -= scale;
        }
    }
    write(&mut logits.into_reinterpreted(gradient)?, &values)?;
    write(losses, &out)
}

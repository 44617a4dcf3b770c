//! Pipeline stages: which blocks they have and how many micro-batches are in flight on them.

use crate::job::{Job, Kind, Order};

/// A stage before anything is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its number.
    pub index: usize,
    /// Stages in all.
    pub of: usize,
    /// Blocks with an MLP (of the encoder, where there are two stacks).
    pub dense: f64,
    /// Blocks with experts.
    pub sparse: f64,
    /// Blocks of a decoder beside an encoder.
    pub cross: f64,
    /// Micro-batches whose tensors it holds at once; those of a part of its blocks count as that part.
    pub flight: f64,
    /// Micro-batches beside them whose gradients of weights are not computed yet.
    pub waiting: f64,
}

impl Part {
    /// Whether it has the embedding.
    pub fn first(&self) -> bool {
        self.index == 0
    }

    /// Whether it has the head.
    pub fn last(&self) -> bool {
        self.index + 1 == self.of
    }

    /// Its blocks.
    pub fn blocks(&self) -> f64 {
        self.dense + self.sparse + self.cross
    }
}

/// Blocks of a stage where the cut is not stated.
fn blocks_of(job: &Job, index: usize, blocks: usize) -> f64 {
    let p = job.degrees.pipeline;
    if p > 2 && !blocks.is_multiple_of(p) && (blocks + 2).is_multiple_of(p) {
        // So many blocks are chosen for the embedding and the head to count as one each.
        let ends = usize::from(index == 0 || index + 1 == p);
        return ((blocks + 2) / p - ends) as f64;
    }
    if job.degrees.chunks > 1 {
        return blocks as f64 / p as f64;
    }
    // An uneven rest: the first stages get one more, as launchers deal them.
    (blocks / p + usize::from(index < blocks % p)) as f64
}

/// Micro-batches in flight on a stage, in units of all its blocks.
fn flight(job: &Job, index: usize) -> f64 {
    let (p, chunks, all) = (job.degrees.pipeline, job.degrees.chunks.max(1), job.batch.accumulation.max(1));
    if p == 1 {
        return 1.0;
    }
    match job.degrees.schedule {
        Order::GPipe => return all as f64,
        Order::Naive => return 1.0,
        Order::OneFOneB | Order::ZeroBubble => {}
    }
    if chunks == 1 {
        return (p - index).min(all) as f64;
    }
    // Interleaved 1F1B: 2 (p - 1 - index) + (chunks - 1) group chunks are made before the first backward, and one more.
    // A group is p micro-batches, or all of them where they are no multiple of p.
    let group = if all.is_multiple_of(p) { p } else { all };
    let warm = 2 * (p - 1 - index) + (chunks - 1) * group + 1;
    warm.min(all * chunks) as f64 / chunks as f64
}

/// Micro-batches behind their gradient of the input and before those of the weights, when most are in flight: stage `index` computes
/// the latter so many micro-batches later (Qi et al. 2023).
fn waiting(job: &Job, index: usize) -> f64 {
    let (p, all) = (job.degrees.pipeline, job.batch.accumulation.max(1));
    match job.degrees.schedule {
        Order::ZeroBubble if p > 1 => index.min(all - (p - index).min(all)) as f64,
        _ => 0.0,
    }
}

/// The blocks of each kind of a stage whose blocks are stated.
fn stated(job: &Job, index: usize, dense: usize, plain: usize) -> Option<[f64; 3]> {
    let runs = job.stated_blocks(index)?;
    let within = |from: usize, until: usize| -> usize {
        runs.iter().map(|run| run.end.min(until).saturating_sub(run.start.max(from))).sum()
    };
    Some([within(0, dense), within(dense, plain), within(plain, usize::MAX)].map(|count| count as f64))
}

/// The stages that differ: the first, the second for those in the middle, the last; all of them where the cut is stated.
pub fn kinds(job: &Job) -> Vec<Part> {
    let p = job.degrees.pipeline.max(1);
    let indices = match p {
        _ if !job.split.is_empty() => (0..p).collect(),
        1 => vec![0],
        2 => vec![0, 1],
        // Later stages hold less, but for gradients of weights that wait longer.
        _ if job.degrees.schedule == Order::ZeroBubble && p > 3 => vec![0, 1, p - 2, p - 1],
        _ => vec![0, 1, p - 1],
    };
    let model = &job.model;
    let (plain, cross) = match model.kind {
        Kind::EncoderDecoder { decoder_layers, .. } => (model.layers, decoder_layers),
        Kind::Decoder => (model.layers, 0),
        Kind::Count { .. } => (0, 0),
    };
    let dense_all = model.experts.as_ref().map_or(plain, |experts| experts.dense_layers.min(plain));
    let all = plain + cross;
    indices
        .into_iter()
        .map(|index| {
            let (flight, waiting) = (flight(job, index), waiting(job, index));
            if let Some([dense, sparse, cross]) = stated(job, index, dense_all, plain) {
                return Part { index, of: p, dense, sparse, cross, flight, waiting };
            }
            let blocks = if p == 1 { all as f64 } else { blocks_of(job, index, all) };
            let cross_here = if p == 1 {
                cross as f64
            } else {
                // Encoder first: the last stages have the decoder's blocks.
                let before = index as f64 * all as f64 / p as f64;
                (before + blocks - plain as f64).clamp(0.0, blocks)
            };
            let plain_here = blocks - cross_here.min(cross as f64);
            let dense = dense_here(dense_all as f64, plain as f64, plain_here, index, p, job.degrees.chunks);
            let cross = blocks - plain_here;
            Part { index, of: p, dense, sparse: plain_here - dense, cross, flight, waiting }
        })
        .collect()
}

/// Blocks with an MLP on a stage of a model whose first `dense` blocks have one.
fn dense_here(dense: f64, plain: f64, here: f64, index: usize, p: usize, chunks: usize) -> f64 {
    if dense >= plain {
        return here;
    }
    if index == 0 {
        // With several chunks a stage's first chunk alone stands at the model's start.
        let at_start = if chunks > 1 { (here / chunks as f64).max(1.0).ceil() } else { here };
        return if p == 1 { dense } else { dense.min(at_start.max(dense.min(here))) };
    }
    (dense - index as f64 * plain / p as f64).clamp(0.0, here)
}

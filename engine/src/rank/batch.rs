//! The micro-batch in flight: which it is, what it holds, and how its tokens come to be there.

use super::{Flow, Inputs, Rank, Result};
use crate::data::{Ahead, Counts, Row};
use crate::layers::{Batch, InDocuments, StepError};
use crate::plan;
use zbench_kernels::{Buffer, Category, DType, View};

/// Where the tokens of a micro-batch stand, of which each sequence holds several documents; nothing for others.
#[derive(Default)]
pub(super) struct Standing {
    /// The place in its sequence at which a token's document starts.
    starts: Option<Buffer>,
    /// The token's place in its document, where learned positions are looked up by it.
    places: Option<Buffer>,
}

impl Standing {
    /// As layers read it.
    pub(super) fn view(&self) -> Option<InDocuments<'_>> {
        let positions = self.places.as_ref().map(Buffer::view);
        self.starts.as_ref().map(|starts| InDocuments { starts: starts.view(), positions })
    }
}

/// The thread that reads a rank's micro-batches ahead, where that is wanted and worth one.
pub(super) fn read_ahead(inputs: &Inputs<'_>) -> Result<Option<Ahead>> {
    let Inputs { cell, source, .. } = *inputs;
    if cell.read_ahead == 0 || !source.worth_reading_ahead() {
        return Ok(None);
    }
    let (rows, ranks) = (cell.train.micro_batch, cell.parallel.ranks as u64);
    let ahead = Ahead::start(source, rows, ranks * rows as u64, cell.read_ahead, cell.data.within_documents());
    ahead.map(Some).map_err(|error| StepError::Input(error.to_string()))
}

impl Rank<'_> {
    /// The micro-batch in flight. Its first sequence has the same number in the whole run whatever the strategy. Held-out
    /// sequences have numbers of their own, the same in every evaluation.
    pub(super) fn batch(&self) -> Batch {
        let Inputs { cell, .. } = *self.inputs;
        let (ranks, rows) = (cell.parallel.ranks as u64, cell.train.micro_batch as u64);
        let before = if self.flow.evaluates { 0 } else { self.samples };
        plan::batch(cell, before + (self.flow.micro as u64 * ranks + self.number as u64) * rows)
    }

    /// What the step's global batch holds, and so the weight of a token's loss. It follows from the samples' numbers, so
    /// all ranks work out the same.
    pub(super) fn count(&mut self) -> Result<()> {
        let Inputs { cell, source, .. } = *self.inputs;
        let parts = cell.parallel.ranks * cell.train.accumulation;
        let counts = source.has_documents().then(|| source.counts(false, self.samples, parts * cell.train.micro_batch));
        self.flow.counts = counts.transpose().map_err(|error| StepError::Input(error.to_string()))?;
        // Without a single target there is no loss and no gradient, whatever they are multiplied by.
        let mean = |counts: Counts| parts as f64 / counts.targets.max(1) as f64;
        self.flow.mean = self.flow.counts.map_or(1.0 / self.batch().tokens() as f64, mean);
        Ok(())
    }

    /// Gives the micro-batch's buffers back.
    pub(crate) fn unload(&mut self) {
        (self.flow.ids, self.flow.targets) = (None, None);
        self.standing = Standing::default();
    }

    /// Fetches the micro-batch.
    pub(super) fn load(&mut self) -> Result<()> {
        self.unload();
        let batch = self.batch();
        let alloc = || self.arena.alloc(Category::Workspace, DType::U32, batch.tokens());
        let (mut ids, mut targets) = (alloc()?, alloc()?);
        let mut standing = Standing::default();
        let buffers = plan::token_buffers(self.inputs.cell);
        if buffers > 2 {
            standing.starts = Some(alloc()?);
        }
        if buffers > 3 {
            standing.places = Some(alloc()?);
        }
        let tokens = batch.tokens();
        let (own_ids, own_targets, own_starts) = &mut self.flow.read;
        own_ids.resize(tokens, 0);
        own_targets.resize(tokens, 0);
        own_starts.resize(if standing.starts.is_some() { tokens } else { 0 }, 0);
        let starts = standing.starts.is_some().then_some(&mut own_starts[..]);
        let row = Row { inputs: own_ids, targets: own_targets, starts };
        let evaluates = self.flow.evaluates;
        let read = match self.ahead.as_ref().filter(|_| !evaluates) {
            Some(ahead) => ahead.take(batch.first_sample, row),
            None => self.inputs.source.fill_rows(evaluates, batch.first_sample, batch.rows, row),
        };
        read.map_err(|error| StepError::Input(error.to_string()))?;
        let kernels = &*self.kernels;
        kernels.upload(View::of(own_ids), ids.view_mut())?;
        kernels.upload(View::of(own_targets), targets.view_mut())?;
        if let Some(starts) = &mut standing.starts {
            kernels.upload(View::of(own_starts), starts.view_mut())?;
        }
        if let Some(places) = &mut standing.places {
            // The starts have served; what follows from them takes their room.
            for starts in own_starts.chunks_mut(batch.seq) {
                starts.iter_mut().zip(0u32..).for_each(|(start, at)| *start = at - *start);
            }
            kernels.upload(View::of(own_starts), places.view_mut())?;
        }
        let Flow { ids: flow_ids, targets: flow_targets, .. } = &mut self.flow;
        (*flow_ids, *flow_targets) = (Some(ids), Some(targets));
        self.standing = standing;
        Ok(())
    }
}

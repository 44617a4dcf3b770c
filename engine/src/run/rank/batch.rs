//! Where a rank's tokens come from.

use crate::action::stream::Stream;
use crate::checkpoint::inputs::Inputs;
use crate::compute::error::{Result, StepError};
use crate::data::{Counts, Prefetcher, Row, Source};
use crate::exec::{Executor, TokenSource, Tokens};
use crate::mesh::Axes;
use crate::model::layers::Batch;
use zbench_kernels::View;

pub(super) struct Reader<'a> {
    source: &'a Source,
    /// Reads them before they are wanted, where that is worth a thread.
    ahead: Option<Prefetcher>,
    /// Ids, targets and where documents start, as they are read.
    read: (Vec<u32>, Vec<u32>, Vec<u32>),
    /// What the global batch holds, where it is of documents.
    pub counts: Option<Counts>,
}

impl<'a> Reader<'a> {
    pub fn new(inputs: &Inputs<'a>) -> Result<Reader<'a>> {
        let Inputs { cell, source, .. } = *inputs;
        let (rows, ranks) = (cell.train.micro_batch, inputs.plan.mesh.size(Axes::SAMPLES) as u64);
        let worth = cell.read_ahead > 0 && source.worth_reading_ahead();
        let start =
            || Prefetcher::start(source, rows, ranks * rows as u64, cell.read_ahead, cell.data.within_documents());
        let ahead = worth.then(start).transpose().map_err(|error| StepError::Input(error.to_string()))?;
        Ok(Reader { source, ahead, read: Default::default(), counts: None })
    }

    /// What the next step's global batch holds, and so the weight of a token's loss. It follows from the samples' numbers, so
    /// all ranks work out the same.
    pub fn count(&mut self, executor: &Executor<'_>) -> Result<f64> {
        let (cell, samples) = (executor.context.cell, executor.progress.samples);
        let parts = executor.state.sample_ranks() * cell.train.accumulation;
        let counts =
            self.source.has_documents().then(|| self.source.counts(false, samples, parts * cell.train.micro_batch));
        self.counts = counts.transpose().map_err(|error| StepError::Input(error.to_string()))?;
        // Without a single target there is no loss and no gradient, whatever they are multiplied by.
        let mean = |counts: Counts| parts as f64 / counts.targets.max(1) as f64;
        Ok(self.counts.map_or(1.0 / executor.batch(0, Stream::Decoder).tokens() as f64, mean))
    }
}

impl TokenSource for Reader<'_> {
    fn fill(&mut self, executor: &Executor<'_>, batch: Batch, tokens: &mut Tokens) -> Result<()> {
        let (ids, targets, starts) = &mut self.read;
        let len = batch.tokens();
        ids.resize(len, 0);
        targets.resize(len, 0);
        starts.resize(if tokens.starts.is_some() { len } else { 0 }, 0);
        let own_starts = tokens.starts.is_some().then_some(&mut starts[..]);
        let row = Row { inputs: ids, targets, starts: own_starts };
        let evaluates = executor.step_state.evaluates;
        let read = match self.ahead.as_ref().filter(|_| !evaluates) {
            Some(ahead) => ahead.take(batch.first_sample, row),
            None => self.source.fill_rows(evaluates, batch.first_sample, batch.rows, row),
        };
        read.map_err(|error| StepError::Input(error.to_string()))?;
        let kernels = executor.context.device().kernels;
        kernels.upload(View::of(ids), tokens.ids.view_mut())?;
        kernels.upload(View::of(targets), tokens.targets.view_mut())?;
        if let Some(to) = &mut tokens.starts {
            kernels.upload(View::of(starts), to.view_mut())?;
        }
        if let Some(to) = &mut tokens.places {
            // The starts have served; what follows from them takes their room.
            for starts in starts.chunks_mut(batch.seq) {
                starts.iter_mut().zip(0u32..).for_each(|(start, at)| *start = at - *start);
            }
            kernels.upload(View::of(starts), to.view_mut())?;
        }
        Ok(())
    }
}

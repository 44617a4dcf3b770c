//! The tokens of a micro-batch.

use super::Executor;
use crate::action::stream::Stream;
use crate::compute::error::Result;
use crate::model::layers::{Batch, DocumentMask};
use crate::plan;
use zbench_kernels::{Buffer, Category, DType, View};

/// Tokens where layers read them, each buffer `[rows, seq]` of u32.
pub struct Tokens {
    /// What goes in.
    pub ids: Buffer,
    /// What is to come out.
    pub targets: Buffer,
    /// What goes into an encoder.
    pub source: Option<Buffer>,
    /// Where sequences hold several documents: the place in its sequence at which a token's document starts.
    pub starts: Option<Buffer>,
    /// The token's place in its document, where learned positions are looked up by it.
    pub places: Option<Buffer>,
}

impl Tokens {
    /// What an embedding looks up to begin a stream.
    pub(super) fn ids_of(&self, stream: Stream) -> View<'_> {
        let source = self.source.as_ref().filter(|_| stream == Stream::Encoder);
        source.unwrap_or(&self.ids).view()
    }

    /// As layers read documents.
    pub(super) fn documents(&self) -> Option<DocumentMask<'_>> {
        let positions = self.places.as_ref().map(Buffer::view);
        self.starts.as_ref().map(|starts| DocumentMask { starts: starts.view(), positions })
    }
}

pub trait TokenSource {
    /// Fills the buffers of a micro-batch.
    ///
    /// # Errors
    /// Tokens cannot be read.
    fn fill(&mut self, executor: &Executor<'_>, batch: Batch, tokens: &mut Tokens) -> Result<()>;
}

/// No tokens: for dry runs.
impl TokenSource for () {
    fn fill(&mut self, _: &Executor<'_>, _: Batch, _: &mut Tokens) -> Result<()> {
        Ok(())
    }
}

impl Executor<'_> {
    pub(super) fn load(&mut self, micro: usize, source: &mut dyn TokenSource) -> Result<()> {
        self.step_state.of_mut(micro).tokens = None;
        let batch = self.batch(micro, Stream::Decoder);
        let of = |batch: Batch| self.context.device().alloc(Category::Workspace, DType::U32, batch.tokens());
        let alloc = || of(batch);
        let count = plan::token_buffers(self.context.cell);
        let (ids, targets) = (alloc()?, alloc()?);
        let starts = (count > 2).then(alloc).transpose()?;
        let places = (count > 3).then(alloc).transpose()?;
        let of_encoder =
            plan::has_encoder(self.context.cell).then(|| of(self.batch(micro, Stream::Encoder))).transpose()?;
        let mut tokens = Tokens { ids, targets, source: of_encoder, starts, places };
        source.fill(self, batch, &mut tokens)?;
        self.step_state.of_mut(micro).tokens = Some(tokens);
        Ok(())
    }
}

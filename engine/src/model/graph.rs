//! The graph of layers: which unit's weights a layer has, which streams it reads and writes.

use crate::action::stream::Stream;
use crate::model::layers::{Block, Embedding, Head, Norm};
use std::sync::Arc;

/// A layer of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub kind: LayerKind,
    /// The unit of its weights.
    pub unit: usize,
    /// A unit of which it reads a matrix, and which is the embedding's: of a head that is tied.
    pub shares: Option<usize>,
    /// A second unit of its own weights: the experts of a block, where ranks share them; what an embedding has beside its table, where
    /// both ends of a pipeline have that.
    pub second: Option<usize>,
    /// What it takes; an embedding takes tokens.
    pub reads: Stream,
    /// What its cross-attention reads beside that.
    pub memory: Option<Stream>,
    /// What it makes; a head makes the loss.
    pub writes: Stream,
}

#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    Embedding(Embedding),
    Block(Arc<Block>),
    /// The norm at the end of an encoder.
    Norm(Norm),
    Head(Head),
}

impl Layer {
    /// A layer that reads and writes one stream, with a unit of its own.
    pub fn on(stream: Stream, unit: usize, kind: LayerKind) -> Layer {
        Layer { kind, unit, shares: None, second: None, reads: stream, memory: None, writes: stream }
    }

    /// The units whose weights it reads.
    pub fn units(&self) -> impl Iterator<Item = usize> + use<> {
        [Some(self.unit), self.shares, self.second].into_iter().flatten()
    }

    /// Whether it reads and writes a stream; an embedding reads tokens, a head makes a loss.
    pub fn is_inner(&self) -> bool {
        !matches!(self.kind, LayerKind::Embedding(_) | LayerKind::Head(_))
    }

    /// The block, where it is one.
    pub fn block(&self) -> Option<&Arc<Block>> {
        match &self.kind {
            LayerKind::Block(block) => Some(block),
            _ => None,
        }
    }
}

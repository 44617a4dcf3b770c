//! The graph of layers: which unit's weights a layer has, which streams it reads and writes.

use crate::layers::{Block, Embedding, Head, Norm};
use crate::stream::Stream;
use std::sync::Arc;

/// A layer of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub kind: LayerKind,
    /// The unit of its weights.
    pub unit: usize,
    /// Another layer's unit, of which it reads a matrix: the embedding's, of a head that is tied.
    pub shares: Option<usize>,
    /// The unit of its experts, where they are one of their own.
    pub experts: Option<usize>,
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
        Layer { kind, unit, shares: None, experts: None, reads: stream, memory: None, writes: stream }
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

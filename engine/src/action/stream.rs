//! What flows between layers.

use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// What flows between layers: the residual stream of a stack of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Of the decoder, the only one of most models.
    Decoder,
    /// Of the encoder; its output is what cross-attention reads.
    Encoder,
}

impl Stream {
    pub const ALL: [Stream; 2] = [Stream::Decoder, Stream::Encoder];
}

/// One value for each stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByStream<T>([T; 2]);

impl<T> Index<Stream> for ByStream<T> {
    type Output = T;

    fn index(&self, stream: Stream) -> &T {
        &self.0[stream as usize]
    }
}

impl<T> IndexMut<Stream> for ByStream<T> {
    fn index_mut(&mut self, stream: Stream) -> &mut T {
        &mut self.0[stream as usize]
    }
}

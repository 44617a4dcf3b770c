//! The layers, forward and backward written by hand. A layer is a value that knows which tensors it reads; `forward`
//! returns what backward needs, `backward` consumes it.
//!
//! Beside what it does, every layer *states* what it does: the buffers it asks for and the operations it issues, in order,
//! told to a [`Sketch`]. A plan is made of what is stated; a run of what is done; tests hold the two against each other.

mod adapter;
mod block;
mod embedding;
pub(crate) mod exec;
mod experts;
mod head;
mod linear;
mod magnitude;
mod matrix;
mod norm;
pub mod prepacked;
mod sketch;

pub use adapter::{AdapterSpec, Factors};
pub use block::{Block, BlockGrad, Dims, GateUp, Kept, Qkv, Saved};
pub use embedding::Embedding;
pub use exec::{Batch, Exec, InDocuments, StepError};
pub use experts::{Experts, Routing};
pub use head::Head;
pub use linear::LinearSpec;
pub use magnitude::Magnitude;
pub use norm::Norm;
pub use sketch::{Effect, Phase, Piece, Sketch, Stated};

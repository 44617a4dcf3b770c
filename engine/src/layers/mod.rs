//! The layers, forward and backward written by hand. A layer is a value that knows which tensors it reads; `forward`
//! returns what backward needs, `backward` consumes it.

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

pub use adapter::{AdapterSpec, Factors};
pub use block::{Block, BlockGrad, Dims, GateUp, Kept, Qkv, Saved};
pub use embedding::Embedding;
pub use exec::{Batch, Exec, InDocuments};
pub use experts::{Experts, Routing};
pub use head::{Head, HeadGrads, HeadWeights};
pub use linear::LinearSpec;
pub use magnitude::Magnitude;
pub use norm::Norm;

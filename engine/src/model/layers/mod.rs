//! The layers, forward and backward written by hand. A layer is a value that knows which tensors it reads; `forward`
//! returns what backward needs, `backward` consumes it.

mod adapter;
mod block;
pub(crate) mod context;
mod embedding;
mod exchange;
mod experts;
mod head;
mod linear;
mod norm;
pub mod prepacked;
mod tensor_split;
mod weights;

pub use adapter::AdapterSpec;
pub(crate) use block::eviction;
pub use block::{Block, BlockGrad, Cross, CrossSaved, Dims, GateUp, Qkv, Saved, SavedTensor};
pub use context::{Batch, DocumentMask, LayerContext, Memory, product_forward, product_input};
pub use embedding::Embedding;
pub use experts::{Arrived, Experts, Routing};
pub use head::{Head, HeadGrads, HeadWeights};
pub use linear::{Factors, LinearSpec, Magnitude};
pub use norm::Norm;
pub use tensor_split::{Gradient, TensorSplit};
pub use weights::{Deferred, FlatKind, FlatRange, Grads, Weights};

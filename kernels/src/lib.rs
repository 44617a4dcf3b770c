//! Memory and mathematics on one device.
//!
//! This crate knows buffers and shapes, and nothing of models or ranks. [`Arena`] hands out [`Buffer`]s and counts
//! every byte by [`Category`]; [`Kernels`] is the list of operations a device can do, each described by a plain
//! [`Op`] value, so that a plan can state an operation that is carried out later, or never. [`Cpu`] carries them out
//! on cores, [`Reference`] slowly in f64, as the oracle of every kernel test.

// Memory and SIMD need it; every block gives its SAFETY reason.
#![allow(unsafe_code)]

pub mod affinity;
// The harness of the tests in tests/, which some tests inside use too, names this crate from outside.
#[cfg(test)]
extern crate self as zbench_kernels;

mod arena;
mod by_name;
mod check;
pub mod copy;
mod cost;
mod cpu;
pub mod cuda;
pub mod device;
mod dry;
mod dtype;
mod kernels;
mod ledger;
mod op;
mod operands;
mod packed;
pub mod peak;
pub mod philox;
mod pool;
mod reduce_op;
mod reference;
mod region;
mod round;
pub mod scratch;
mod setup;
mod sight;
mod stochastic;
mod stopwatch;
pub mod sync;
mod view;

pub use arena::{Arena, Buffer, Change, OutOfMemory};
pub use by_name::ByName;
pub use cpu::Cpu;
pub use cuda::Cuda;
pub use dry::{Dry, Footprint};
pub use dtype::{DType, Element};
pub use kernels::{KernelError, Kernels, Result, Sum, no_scratch};
pub use ledger::{Category, GRANULE_BYTES, Ledger, Swing, footprint};
pub use op::{
    Activation, AdamW, Attention, BiasAdd, Combine, CrossEntropy, Dropout, Elementwise, Embedding, GatedActivation,
    Gemm, Grouped, GroupedGemm, LayerNorm, Normal, Op, PointwiseActivation, QuantFormat, Quantize, QuantizeBlocks,
    Reduce, RmsNorm, Rope, Rounding, Route, RowInvNorm, ScaleColumns, Slots, alibi_slope,
};
pub use operands::{Access, Elements, Operand, Operands};
pub use packed::{DOUBLE_BLOCK, DYNAMIC, DoubleScales, Fields, NF4, NF4_BLOCK, Pack, Packed, Packing, Unpack};
pub use pool::MOST_THREADS;
pub use reduce_op::{ReduceOp, UnknownReduceOp};
pub use reference::Reference;
pub use region::{ArenaError, Region};
pub use setup::{INSTRUCTIONS, Setup, SetupError};
pub use stopwatch::{Stopwatch, Timed};
pub use view::{View, ViewMut};

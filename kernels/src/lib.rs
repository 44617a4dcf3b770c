//! Memory and mathematics on one device.
//!
//! This crate knows buffers and shapes, and nothing of models or ranks. [`Arena`] hands out [`Buffer`]s and counts
//! every byte by [`Category`]; [`Kernels`] runs the operations of a device, each described by a plain [`Op`] value.
//! [`Cpu`] runs them on cores, [`Cuda`] on GPUs; [`Dry`] checks their operands and computes nothing, so that a plan runs
//! the same operations as a training step. What tests compare them with is in kernels/testing, a crate that no release
//! compiles. [`disk::File`] holds what a rank keeps outside of memory.

pub mod affinity;
mod arena;
mod attention_mask;
mod check;
pub mod copy;
mod cost;
mod cpu;
pub mod cuda;
pub mod device;
pub mod disk;
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
mod region;
mod round;
mod setup;
pub mod spawn;
mod stochastic;
mod stopwatch;
pub mod sync;
mod transfer;
mod view;

pub use arena::{Arena, Buffer, Change, OutOfMemory};
pub use cpu::Cpu;
pub use cuda::Cuda;
pub use dry::Dry;
pub use dtype::{DType, Element};
pub use kernels::{KernelError, Kernels, Result, Sum, no_scratch};
pub use ledger::{Category, GRANULE_BYTES, Ledger, MemoryDelta, PAGE_BYTES, footprint, footprint_pages};
pub use op::{
    Activation, AdamW, AlibiHeads, Attention, BiasAdd, Combine, CrossEntropy, Dropout, Elementwise, Embedding,
    GatedActivation, Gemm, Grouped, GroupedGemm, LayerNorm, Normal, Op, PointwiseActivation, QuantFormat, Quantize,
    QuantizeBlocks, Reduce, RmsNorm, Rope, Rounding, Route, RowInvNorm, ScaleColumns, Slots, VocabParallelCrossEntropy,
    VocabParallelStats, VocabPart, alibi_slope,
};
pub use operands::{Access, Elements, Operand, Operands};
pub use packed::{DOUBLE_BLOCK, DYNAMIC, DoubleScales, Fields, NF4, NF4_BLOCK, Pack, Packed, Packing, Unpack};
pub use pool::{MOST_THREADS, work_alone};
pub use reduce_op::{ReduceOp, UnknownReduceOp};
pub use region::{ArenaError, Region, address_space_left};
pub use setup::{INSTRUCTIONS, Setup, SetupError};
pub use stopwatch::{Stopwatch, Timed, TimedCopy};
pub use transfer::CopyStreams;
pub use view::{Extent, View, ViewMut};

/// What kernels/testing needs of the inside. Nobody else should: nothing is promised of it.
#[doc(hidden)]
pub mod internals {
    pub use crate::packed::{INT8_STEP, int8_inverse};
    pub use crate::round::to_odd;
    pub mod check {
        pub use crate::check::*;
    }
    pub mod operands {
        pub use crate::operands::*;
    }
}

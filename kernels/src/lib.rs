//! Memory and mathematics on one device.
//!
//! This crate knows buffers and shapes, and nothing of models or ranks. [`Arena`] hands out [`Buffer`]s and counts
//! every byte by [`Category`]; [`Kernels`] runs the operations of a device, each described by a plain [`Op`] value.
//! [`Cpu`] runs them on cores, [`Cuda`] on GPUs; [`Dry`] checks their operands and computes nothing, so that a plan runs
//! the same operations as a training step. What tests compare them with is in kernels/testing, a crate that no release
//! compiles. [`disk::File`] holds what a rank keeps outside of memory.
//!
//! The folders:
//!
//! | folder | subject |
//! | --- | --- |
//! | [`numerics`] | number formats, rounding, random numbers |
//! | [`op`] | what a kernel is asked to do, as plain data |
//! | [`memory`] | regions, arenas, buffers, views, copies, devices |
//! | [`threads`] | threads, their cores, and what they wait with |
//! | [`backend`] | the trait [`Kernels`], operands, costs, the dry run |
//! | [`disk`] | files of offloaded state |
//! | [`cpu`] | kernels for cores |
//! | [`cuda`] | kernels for GPUs |

mod backend;
pub mod cpu;
pub mod cuda;
pub mod disk;
pub mod memory;
pub mod numerics;
mod op;
pub mod threads;

pub use backend::dry::Dry;
pub use backend::operands::{Access, Elements, Operand, Operands};
pub use backend::stopwatch::{Stopwatch, Timed, TimedCopy};
pub use backend::{KernelError, Kernels, Result, Sum, no_scratch};
pub use cpu::Cpu;
pub use cpu::setup::{INSTRUCTIONS, Setup, SetupError};
pub use cuda::Cuda;
pub use memory::arena::{Arena, Buffer, Change, OutOfMemory};
pub use memory::ledger::{Category, GRANULE_BYTES, Ledger, MemoryDelta, PAGE_BYTES, footprint, footprint_pages};
pub use memory::region::{ArenaError, Region, address_space_left};
pub use memory::transfer::CopyStreams;
pub use memory::view::{Extent, View, ViewMut};
pub use numerics::dtype::{DType, Element};
pub use numerics::packed::{
    DOUBLE_BLOCK, DYNAMIC, DoubleScales, Fields, NF4, NF4_BLOCK, Pack, Packed, Packing, Unpack,
};
pub use numerics::reduce_op::{ReduceOp, UnknownReduceOp};
pub use op::{
    Activation, AdamW, AlibiHeads, Attention, BiasAdd, Combine, CrossEntropy, Dropout, Elementwise, Embedding,
    GatedActivation, Gemm, Grouped, GroupedGemm, LayerNorm, Normal, Op, PointwiseActivation, QuantFormat, Quantize,
    QuantizeBlocks, Reduce, RmsNorm, Rope, Rounding, Route, RowInvNorm, ScaleColumns, Slots, VocabParallelCrossEntropy,
    VocabParallelStats, VocabPart, alibi_slope,
};
pub use threads::pool::{MOST_THREADS, work_alone};

/// What kernels/testing needs of the inside. Nobody else should: nothing is promised of it.
#[doc(hidden)]
pub mod internals {
    pub use crate::numerics::packed::{INT8_STEP, int8_inverse};
    pub use crate::numerics::round::to_odd;
    pub mod check {
        pub use crate::backend::check::*;
    }
    pub mod operands {
        pub use crate::backend::operands::*;
    }
}

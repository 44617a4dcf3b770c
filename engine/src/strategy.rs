//! The sharding strategies as one table. ZeRO's stages, FSDP and its hybrids differ in these values and in nothing else.

use crate::config::{Parallel, Strategy};
use crate::mesh::{Mesh, Split};

/// When gathered weights are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshard {
    /// As soon as their slot is wanted.
    AfterForward,
    /// When the micro-batch's backward has used them.
    AfterBackward,
    /// Not at all: every rank has all of them.
    Never,
}

/// What a strategy splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Weights at home.
    pub parameters: Split,
    pub gradients: Split,
    /// Master weights and moments; at least as fine as the other two.
    pub optimizer: Split,
    pub reshard: Reshard,
}

impl Sharding {
    pub fn of(strategy: Strategy) -> Sharding {
        use Reshard::{AfterBackward, AfterForward, Never};
        use Split::{Shard, Whole, World};
        let (parameters, gradients, optimizer, reshard) = match strategy {
            Strategy::Ddp => (Whole, Whole, Whole, Never),
            Strategy::Zero1 => (Whole, Whole, Shard, Never),
            Strategy::Zero2 => (Whole, Shard, Shard, Never),
            Strategy::Zero3 => (Shard, Shard, Shard, AfterForward),
            Strategy::Fsdp => (Shard, Shard, Shard, AfterForward),
            Strategy::FsdpGradOp => (Shard, Shard, Shard, AfterBackward),
            Strategy::Hsdp => (Shard, Shard, Shard, AfterForward),
            Strategy::HsdpFullOptimizer => (Shard, Shard, World, AfterForward),
        };
        Sharding { parameters, gradients, optimizer, reshard }
    }
}

/// The mesh of a configuration; `Err` says which key is wrong.
pub fn mesh(parallel: &Parallel) -> Result<Mesh, String> {
    let Parallel { ranks, shard, strategy, .. } = *parallel;
    if ranks == 0 {
        return Err("parallel.ranks is 0; at least 1 rank is needed".into());
    }
    if !strategy.is_hybrid() {
        return Ok(Mesh { outer: 1, inner: ranks, hybrid: false });
    }
    if shard == 0 || !ranks.is_multiple_of(shard) {
        return Err(format!(
            "parallel.shard = {shard} does not divide parallel.ranks = {ranks}; set shard to a divisor, such as {}",
            (1..=ranks / 2).rev().find(|d| ranks.is_multiple_of(*d)).unwrap_or(1)
        ));
    }
    Ok(Mesh { outer: ranks / shard, inner: shard, hybrid: true })
}

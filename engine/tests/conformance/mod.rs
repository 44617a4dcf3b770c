//! What every communicator has to do, whatever moves the bytes. A test binary includes this folder by `#[path]`, makes a
//! communicator on every rank (a thread, a process, an MPI rank), and every rank calls [`all`] with its own. A rank that finds
//! something wrong panics with backend, kind, type, operation, length, rank and the first index that differs; the caller sees
//! to it that the other ranks end too.
//!
//! Reductions and moves go through every type, in place and out of place, at these lengths (of a whole, or of a part where the
//! collective has parts): none, one, odd ones, one of several cache lines, one of several blocks, one above 300 KiB. Roots:
//! every rank up to 1000 elements, the first and the last above.
//!
//! The oracle of a reduction is computed from the ranks' seeds, in i64 for integers, which wrap. For floats it is either the
//! balanced tree in rank order, bit for bit, or f64 arithmetic and a tolerance that was written down before any backend ran:
//!
//! `|got - oracle| <= n * eps(accumulator) * sum|terms| + eps(type) * |oracle| + the type's smallest number`
//!
//! with `|product|` in place of the sum for products, one more step for averages, and nothing at all for the smallest and the
//! largest. The accumulator is f32 (f64 if a side is f64), or the type that travels where [`Options::narrow_sums`] says so.

// Not every binary uses every part.
#![allow(dead_code, unused_imports)]

mod case;
mod faults;
mod groups;
mod moves;
mod oracle;
mod pairs;
mod reductions;
mod refusals;
mod sample;

pub use faults::{aborts, leaves, mismatches, stalls};

use half::{bf16, f16};
use sample::Sample;
use zbench_collectives::{Communicator, ReduceOp};
use zbench_kernels::DType;
use zbench_test_tiers::{Tier, tier};

/// What a backend promises.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether floats of a type are joined as the balanced tree in rank order, bit for bit.
    pub exact_order: fn(DType) -> bool,
    /// Partial results are rounded to the type that travels, as in NCCL's rings of half precision.
    pub narrow_sums: bool,
    /// A reduce-scatter may accumulate and may change the type; where it may not, it must be refused and leave the group well.
    pub mixed: bool,
    /// Bytes move. Where they do not (`null`), calls are accepted, refused as anywhere, and leave every buffer as it was.
    pub moves: bool,
}

/// Our own backends: one order of sums, all types.
pub const EXACT: Options = Options { exact_order: |_| true, narrow_sums: false, mixed: true, moves: true };
/// A library's own sums, in an order it does not tell.
pub const NEAR: Options = Options { exact_order: |_| false, ..EXACT };
/// Only shapes are looked at.
pub const SHAPES: Options = Options { moves: false, ..EXACT };

/// Everything that leaves the group alive. Every rank calls it.
pub fn all(comm: &dyn Communicator, options: &Options) {
    calls(comm, options);
    of_groups(comm, options);
}

/// Groups of groups, several collectives under way, and late ranks.
pub fn of_groups(comm: &dyn Communicator, options: &Options) {
    groups::rows_and_columns(comm);
    groups::orders_of_keys(comm);
    groups::in_flight(comm, options);
    groups::one_rank_late(comm);
    comm.barrier().unwrap_or_else(|error| panic!("{}: the last barrier: {error}", comm.backend()));
}

/// Every kind of call once through all types, operations, lengths and roots; all that `null` can do.
pub fn calls(comm: &dyn Communicator, options: &Options) {
    reductions_of::<f32>(comm, options);
    reductions_of::<f64>(comm, options);
    reductions_of::<f16>(comm, options);
    reductions_of::<bf16>(comm, options);
    reductions_of::<i32>(comm, options);
    reductions_of::<i8>(comm, options);
    reductions::mixed(comm, options);
    moves_of::<f32>(comm, options);
    moves_of::<f64>(comm, options);
    moves_of::<f16>(comm, options);
    moves_of::<bf16>(comm, options);
    moves_of::<i32>(comm, options);
    moves_of::<i8>(comm, options);
    moves_of::<u32>(comm, options); // token ids travel too
    refusals::all(comm, options);
}

fn reductions_of<T: Sample>(comm: &dyn Communicator, options: &Options) {
    for op in reductions::OPS {
        // Below the full tier only sums are long.
        let is_tried = |len: &usize| *len <= 1000 || op == ReduceOp::Sum || tier() == Tier::Full;
        for len in lengths::<T>(1).into_iter().filter(is_tried) {
            reductions::all_reduce::<T>(comm, options, op, len);
            reductions::reduce::<T>(comm, options, op, len);
        }
        for len in lengths::<T>(comm.size()).into_iter().filter(is_tried) {
            reductions::reduce_scatter::<T>(comm, options, op, len);
        }
    }
}

fn moves_of<T: Sample>(comm: &dyn Communicator, options: &Options) {
    lengths::<T>(comm.size()).into_iter().for_each(|len| moves_of_parts::<T>(comm, options, len));
    lengths::<T>(1).into_iter().for_each(|len| moves_of_wholes::<T>(comm, options, len));
}

/// What only moves, where a part has `len` elements.
pub fn moves_of_parts<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    moves::all_gather::<T>(comm, options, len);
    moves::gather::<T>(comm, options, len);
    moves::scatter::<T>(comm, options, len);
    moves::all_to_all::<T>(comm, options, len);
}

/// What only moves, of `len` elements.
pub fn moves_of_wholes<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    moves::broadcast::<T>(comm, options, len);
    pairs::ring::<T>(comm, options, len);
}

/// The lengths of a part; the last one makes a whole of `parts` of them larger than 300 KiB. Below the full tier f32 alone has long ones.
fn lengths<T: Sample>(parts: usize) -> Vec<usize> {
    let mut all = vec![0, 1, 3, 17, 1000, 9001, (300 << 10) / size_of::<T>() / parts + 13];
    match T::DTYPE {
        _ if tier() == Tier::Full => {}
        DType::F32 => drop(all.remove(5)),
        _ => all.truncate(5),
    }
    all
}

/// The roots that a length is tried with.
fn roots(size: usize, len: usize) -> Vec<usize> {
    if len <= 1000 {
        (0..size).collect()
    } else if size == 1 {
        vec![0]
    } else {
        vec![0, size - 1]
    }
}

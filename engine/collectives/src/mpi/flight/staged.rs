//! Reductions that MPI does not know: each rank gets its part of all summands, joins them with our kernels as the balanced
//! tree in rank order, and passes the result on. Messages go between every two ranks under the call's own tag, so that ranks may
//! come to the second phase of several calls in different orders.

// Buffers of a call under way, without lifetimes.
#![allow(unsafe_code)]

use super::{Flight, Next, Tags};
use crate::mpi::combines;
use crate::mpi::group::Group;
use crate::raw::{RawSlice, reduce_range};
use crate::{Call, Kind, ReduceOp, Result};
use std::ops::Range;
use zbench_kernels::View;

/// Whether a call goes this way. All ranks decide alike, since kind, types and lengths agree.
pub(in crate::mpi) fn wanted(group: &Group, call: &Call<'_>) -> bool {
    let (Some(op), Some((dtype, len))) = (call.kind.op(), call.send_shape().or(call.recv_shape())) else {
        return false;
    };
    let Kind::ReduceScatter { accumulate, .. } = call.kind else { return !combines(op, dtype) };
    let other = call.recv_shape().is_some_and(|recv| recv.0 != dtype);
    accumulate || other || !combines(op, dtype) || len > group.settings.largest_count
}

/// What follows when the summands are there.
pub(in crate::mpi) struct Join {
    op: ReduceOp,
    accumulate: bool,
    /// The summands of this rank's part, one slot per rank.
    summands: RawSlice,
    /// Where the part of the result goes.
    to: RawSlice,
    onward: Onward,
}

/// Who needs the parts of the result.
enum Onward {
    Nobody,
    /// All ranks, into this run.
    All(RawSlice),
    /// The root, into `whole`, which only the root has.
    Root {
        root: usize,
        whole: Option<RawSlice>,
        len: usize,
    },
}

pub(in crate::mpi) fn post(group: &Group, flight: &mut Flight, call: &mut Call<'_>) -> Result<()> {
    let (rank, size) = (group.rank, group.size);
    let send = call.send.map(RawSlice::of);
    let recv = call.recv.as_ref().map(RawSlice::of_mut);
    let Some(whole) = send.or(recv) else { unreachable!("a reduction without its buffers") };
    let len = whole.len;
    let part = |rank: usize| reduce_range(len, rank, size);
    match (call.kind, recv) {
        (Kind::AllReduce { op }, Some(recv)) => {
            let summands = flight.stage(whole.dtype, part(rank).len() * size);
            let to = recv.slice(part(rank));
            let join = Join { op, accumulate: false, summands, to, onward: Onward::All(recv) };
            spread(group, flight, whole, part, join)
        }
        (Kind::ReduceScatter { op, accumulate }, Some(recv)) => {
            let own = len / size;
            let summands = flight.stage(whole.dtype, len);
            let to = if send.is_some() { recv } else { recv.part(rank, size) };
            let join = Join { op, accumulate, summands, to, onward: Onward::Nobody };
            spread(group, flight, whole, |rank| rank * own..(rank + 1) * own, join)
        }
        (Kind::Reduce { op, root }, recv) => {
            // One slot more, for the result on its way to the root.
            let own = part(rank).len();
            let staging = flight.stage(whole.dtype, own * (size + 1));
            let whole_result = recv.filter(|_| rank == root);
            let to = whole_result.map_or(staging.slice(own * size..own * (size + 1)), |recv| recv.slice(part(rank)));
            let onward = Onward::Root { root, whole: whole_result, len };
            let join = Join { op, accumulate: false, summands: staging.slice(0..own * size), to, onward };
            spread(group, flight, whole, part, join)
        }
        (kind, _) => unreachable!("{kind:?} is no reduction with its buffers"),
    }
}

/// The first phase: every rank's part of this rank's summand goes to that rank.
fn spread(
    group: &Group,
    flight: &mut Flight,
    whole: RawSlice,
    part: impl Fn(usize) -> Range<usize>,
    join: Join,
) -> Result<()> {
    let (rank, size, tag) = (group.rank, group.size, Tags::staged(flight.number, 0));
    let summands = join.summands;
    flight.next = Next::Join(join);
    // SAFETY: the staging is the flight's own and has a slot for this rank's part.
    unsafe { whole.slice(part(rank)).copy_to(summands.part(rank, size)) };
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        flight.take(group, summands.part(from, size), from, tag)?;
        flight.give(group, whole.slice(part(to)), to, tag)?;
    }
    Ok(())
}

impl Join {
    /// Joins the summands and begins the second phase.
    pub(in crate::mpi) fn carry_out(self, group: &Group, flight: &mut Flight) -> Result<()> {
        let (rank, size, tag) = (group.rank, group.size, Tags::staged(flight.number, 1));
        if self.to.len > 0 {
            // SAFETY: MPI is done with the staging; nobody writes it while it is read.
            let slot = |rank| unsafe { self.summands.part(rank, size).view() };
            let summands: Vec<View<'_>> = (0..size).map(slot).collect();
            // SAFETY: the result is the call's own, MPI has sent what was there before, and no slot lies on it.
            let to = unsafe { self.to.view_mut() };
            group.kernels.reduce(self.op, &summands, self.accumulate, to)?;
        }
        match self.onward {
            Onward::Nobody => Ok(()),
            Onward::All(whole) => (1..size).try_for_each(|step| {
                let (to, from) = ((rank + step) % size, (rank + size - step) % size);
                flight.take(group, whole.slice(reduce_range(whole.len, from, size)), from, tag)?;
                flight.give(group, self.to, to, tag)
            }),
            Onward::Root { root, whole: None, .. } => flight.give(group, self.to, root, tag),
            Onward::Root { whole: Some(whole), len, .. } => (0..size)
                .filter(|from| *from != rank)
                .try_for_each(|from| flight.take(group, whole.slice(reduce_range(len, from, size)), from, tag)),
        }
    }
}

//! Calls that MPI carries out itself.

// Calls of MPI's.
#![allow(unsafe_code)]

use super::flight::{Flight, Next, Tags, address, counted};
use super::group::Group;
use crate::raw::RawSlice;
use crate::{Call, Kind, ReduceOp, Result};
use mpi::ffi;
use std::os::raw::{c_int, c_void};
use zbench_kernels::DType;

/// MPI's names of a type and an operation that it combines; an average begins as a sum.
fn names(op: ReduceOp, dtype: DType) -> (ffi::MPI_Datatype, ffi::MPI_Op) {
    // SAFETY: constants of the library.
    unsafe {
        let dtype = match dtype {
            DType::F64 => ffi::RSMPI_DOUBLE,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::U32 => ffi::RSMPI_UINT32_T,
            DType::I8 => ffi::RSMPI_INT8_T,
            _ => ffi::RSMPI_FLOAT,
        };
        let op = match op {
            ReduceOp::Sum | ReduceOp::Avg => ffi::RSMPI_SUM,
            ReduceOp::Prod => ffi::RSMPI_PROD,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Max => ffi::RSMPI_MAX,
        };
        (dtype, op)
    }
}

/// Posts a call. The caller keeps `flight` after an error, too: MPI may still use its memory.
pub(super) fn post(group: &Group, flight: &mut Flight, call: &mut Call<'_>) -> Result<()> {
    let send = call.send.map(RawSlice::of);
    let recv = call.recv.as_ref().map(RawSlice::of_mut);
    let (rank, size) = (group.rank, group.size);
    match (call.kind, send, recv) {
        (Kind::Barrier, ..) => flight.post(group, "MPI_Ibarrier", None, |request| {
            // SAFETY: a live communicator.
            unsafe { ffi::MPI_Ibarrier(group.comm.0, request) }
        }),
        (Kind::AllReduce { op }, send, recv) => reduce(group, flight, op, None, send, recv),
        (Kind::Reduce { op, root }, send, recv) => reduce(group, flight, op, Some(root), send, recv),
        (Kind::ReduceScatter { op, .. }, send, Some(recv)) => reduce_scatter(group, flight, op, send, recv),
        (Kind::AllGather, send, Some(recv)) => {
            if recv.len > group.settings.largest_count {
                let own = send.unwrap_or(recv.part(rank, size));
                return exchange(group, flight, |_| Some(own), |from| Some(recv.part(from, size)));
            }
            flight.wire += share(group, recv);
            let (from, part) = source(group, flight, send, recv.part(rank, size));
            flight.post(group, "MPI_Iallgather", None, |request| {
                let ((count, kind), to) = (counted(part), address(recv));
                // SAFETY: both buffers stay until the flight is done, and have as many elements as are said.
                unsafe { ffi::MPI_Iallgather(from, count, kind, to, count, kind, group.comm.0, request) }
            })
        }
        (Kind::Gather { root }, send, recv) => gather(group, flight, root, send, recv),
        (Kind::Scatter { root }, send, recv) => scatter(group, flight, root, send, recv),
        (Kind::AllToAll, send, Some(recv)) => {
            let from = send.unwrap_or_else(|| copied(flight, recv));
            if recv.len > group.settings.largest_count {
                return exchange(group, flight, |to| Some(from.part(to, size)), |peer| Some(recv.part(peer, size)));
            }
            flight.wire += share(group, recv);
            flight.post(group, "MPI_Ialltoall", None, |request| {
                let (count, kind) = counted(recv.part(0, size));
                let (from, to) = (address(from), address(recv));
                // SAFETY: as above; the two are apart.
                unsafe { ffi::MPI_Ialltoall(from, count, kind, to, count, kind, group.comm.0, request) }
            })
        }
        (Kind::Broadcast { root }, send, Some(recv)) => {
            if rank != root {
                flight.wire += recv.bytes() as u64;
            } else if let Some(send) = send {
                // SAFETY: the call's own buffers: one read, one written, of equal length.
                unsafe { send.copy_to(recv) };
            }
            recv.pieces(group.settings.largest_count).try_for_each(|piece| {
                flight.post(group, "MPI_Ibcast", None, |request| {
                    let (count, kind) = counted(piece);
                    // SAFETY: the buffers stay until the flight is done.
                    unsafe { ffi::MPI_Ibcast(address(piece), count, kind, root as c_int, group.comm.0, request) }
                })
            })
        }
        (Kind::Send { to }, Some(send), _) => flight.give(group, send, to, Tags::PAIR),
        (Kind::Recv { from }, _, Some(recv)) => flight.take(group, recv, from, Tags::PAIR),
        (Kind::SendRecv { to, from }, Some(send), Some(recv)) => {
            flight.take(group, recv, from, Tags::PAIR)?;
            flight.give(group, send, to, Tags::PAIR)
        }
        // `Call::check` has refused every other combination.
        (kind, ..) => unreachable!("{kind:?} without its buffers"),
    }
}

/// What a ring's pass over a buffer receives on one rank.
fn share(group: &Group, whole: RawSlice) -> u64 {
    (whole.bytes() as u64 / group.size as u64) * (group.size as u64 - 1)
}

/// A copy in the flight's own memory.
fn copied(flight: &mut Flight, run: RawSlice) -> RawSlice {
    let copy = flight.stage(run.dtype, run.len);
    // SAFETY: the run is the call's own, and the copy has just been made.
    unsafe { run.copy_to(copy) };
    copy
}

/// Where MPI reads this rank's contribution, and which run it is: `send`, or `own` in place, or a copy of it where the library's
/// way to say "in place" is not known.
fn source(group: &Group, flight: &mut Flight, send: Option<RawSlice>, own: RawSlice) -> (*const c_void, RawSlice) {
    match (send, group.in_place()) {
        (Some(send), _) => (address(send).cast_const(), send),
        (None, Some(in_place)) => (in_place, own),
        (None, None) => {
            let copy = copied(flight, own);
            (address(copy).cast_const(), copy)
        }
    }
}

fn divide(flight: &mut Flight, op: ReduceOp, run: RawSlice) {
    if op == ReduceOp::Avg {
        flight.next = Next::Divide(run);
    }
}

/// To the root, or to all where there is none.
fn reduce(
    group: &Group,
    flight: &mut Flight,
    op: ReduceOp,
    root: Option<usize>,
    send: Option<RawSlice>,
    recv: Option<RawSlice>,
) -> Result<()> {
    let most = group.settings.largest_count;
    let recv = recv.filter(|_| root.is_none_or(|root| group.rank == root));
    let Some(own) = recv.or(send) else { unreachable!("a reduction without its buffers") };
    flight.wire += share(group, own) * if recv.is_some() { 2 } else { 1 };
    let (from, run) = source(group, flight, send, own);
    let (dtype, name) = names(op, own.dtype);
    let call = if root.is_some() { "MPI_Ireduce" } else { "MPI_Iallreduce" };
    for (piece, to) in run.pieces(most).zip(own.pieces(most)) {
        // "In place" is the same word for every piece.
        let from = if recv.is_some() && run.ptr == own.ptr { from } else { address(piece).cast_const() };
        let (to, count) = (recv.map_or(std::ptr::null_mut(), |_| address(to)), piece.len as c_int);
        flight.post(group, call, None, |request| {
            // SAFETY: the buffers stay until the flight is done; where there is a root, only its `to` is looked at.
            unsafe {
                match root {
                    None => ffi::MPI_Iallreduce(from, to, count, dtype, name, group.comm.0, request),
                    Some(root) => ffi::MPI_Ireduce(from, to, count, dtype, name, root as c_int, group.comm.0, request),
                }
            }
        })?;
    }
    if let Some(recv) = recv {
        divide(flight, op, recv);
    }
    Ok(())
}

/// In place goes through the staging: MPI would put the result at the front, where other ranks' parts have to stay.
fn reduce_scatter(
    group: &Group,
    flight: &mut Flight,
    op: ReduceOp,
    send: Option<RawSlice>,
    recv: RawSlice,
) -> Result<()> {
    let whole = send.unwrap_or(recv);
    let to = if send.is_some() { recv } else { flight.stage(recv.dtype, recv.len / group.size) };
    flight.wire += share(group, whole);
    let (dtype, name) = names(op, recv.dtype);
    flight.post(group, "MPI_Ireduce_scatter_block", None, |request| {
        let (from, count) = (address(whole).cast_const(), to.len as c_int);
        // SAFETY: both buffers stay until the flight is done, and are apart.
        unsafe { ffi::MPI_Ireduce_scatter_block(from, address(to), count, dtype, name, group.comm.0, request) }
    })?;
    if send.is_some() {
        divide(flight, op, recv);
    } else {
        flight.next = Next::CopyTo(recv.part(group.rank, group.size), op == ReduceOp::Avg);
    }
    Ok(())
}

fn gather(
    group: &Group,
    flight: &mut Flight,
    root: usize,
    send: Option<RawSlice>,
    recv: Option<RawSlice>,
) -> Result<()> {
    let (rank, size) = (group.rank, group.size);
    let recv = recv.filter(|_| rank == root);
    let own = send.or(recv.map(|whole| whole.part(rank, size)));
    let Some(own) = own else { unreachable!("gather without its buffers") };
    if own.len * size > group.settings.largest_count {
        let give = |to| (to == root).then_some(own);
        return exchange(group, flight, give, |from| recv.map(|whole| whole.part(from, size)));
    }
    flight.wire += recv.map_or(0, |whole| share(group, whole));
    let to = recv.map_or(std::ptr::null_mut(), address);
    let (from, part) = source(group, flight, send, own);
    flight.post(group, "MPI_Igather", None, |request| {
        let ((count, kind), root) = (counted(part), root as c_int);
        // SAFETY: both buffers stay until the flight is done; only the root's `to` is looked at.
        unsafe { ffi::MPI_Igather(from, count, kind, to, count, kind, root, group.comm.0, request) }
    })
}

fn scatter(
    group: &Group,
    flight: &mut Flight,
    root: usize,
    send: Option<RawSlice>,
    recv: Option<RawSlice>,
) -> Result<()> {
    let (rank, size) = (group.rank, group.size);
    let send = send.filter(|_| rank == root);
    let own = recv.or(send.map(|whole| whole.part(rank, size)));
    let Some(own) = own else { unreachable!("scatter without its buffers") };
    if own.len * size > group.settings.largest_count {
        let give = |to| send.map(|whole| whole.part(to, size));
        return exchange(group, flight, give, |from| recv.filter(|_| from == root));
    }
    flight.wire += if rank == root { 0 } else { own.bytes() as u64 };
    let to = match (recv, group.in_place()) {
        (Some(recv), _) => address(recv),
        (None, Some(in_place)) => in_place.cast_mut(),
        (None, None) => address(flight.stage(own.dtype, own.len)),
    };
    let from = send.map_or(std::ptr::null(), |whole| address(whole).cast_const());
    flight.post(group, "MPI_Iscatter", None, |request| {
        let ((count, kind), root) = (counted(own), root as c_int);
        // SAFETY: both buffers stay until the flight is done; only the root's `from` is looked at.
        unsafe { ffi::MPI_Iscatter(from, count, kind, to, count, kind, root, group.comm.0, request) }
    })
}

/// Parts that are too long for one call, between every two ranks: what each gives to whom, and where it takes it.
pub(super) fn exchange(
    group: &Group,
    flight: &mut Flight,
    give: impl Fn(usize) -> Option<RawSlice>,
    take: impl Fn(usize) -> Option<RawSlice>,
) -> Result<()> {
    let tag = Tags::staged(flight.number, 0);
    if let (Some(from), Some(to)) = (give(group.rank), take(group.rank))
        && from.ptr != to.ptr
    {
        // SAFETY: the call's own buffers, of equal length; where they are one, `ptr` says so.
        unsafe { from.copy_to(to) };
    }
    for step in 1..group.size {
        let (to, from) = ((group.rank + step) % group.size, (group.rank + group.size - step) % group.size);
        if let Some(run) = take(from) {
            flight.take(group, run, from, tag)?;
        }
        if let Some(run) = give(to) {
            flight.give(group, run, to, tag)?;
        }
    }
    Ok(())
}

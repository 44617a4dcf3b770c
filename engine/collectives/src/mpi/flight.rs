//! A call under way: the MPI requests it waits for, and what follows when they are complete.

// Calls of MPI's, over buffers that stay until the flight is done.
#![allow(unsafe_code)]

pub(super) mod staged;

use super::group::Group;
use super::world::check;
use crate::raw::RawSlice;
use crate::{Call, CommError, Kind, Result};
use mpi::ffi;
use staged::Join;
use std::os::raw::{c_int, c_void};
use std::ptr::NonNull;
use zbench_kernels::{DType, ViewMut};

/// The address of nothing.
const NOWHERE: usize = 4096;

/// A buffer as MPI takes it. Where there are no elements the address may be any, and Open MPI's word for "in place" is 1: not that.
pub(super) fn address(run: RawSlice) -> *mut c_void {
    if run.len == 0 { NOWHERE as *mut c_void } else { run.ptr.as_ptr().cast() }
}

/// Tags of messages between two ranks. Collectives have none: MPI keeps them apart by their order.
pub(super) struct Tags;

impl Tags {
    /// `send` and `recv`, which keep their order by themselves.
    pub(super) const PAIR: c_int = 1;
    /// What ranks tell each other when one gives up.
    pub(super) const ANSWER: c_int = 2;
    /// Most calls of a group under way at a time, so that no two of them have one tag. Every library allows tags up to 32767.
    pub(super) const IN_FLIGHT: usize = 4096;

    /// The messages of one phase (0 or 1) of a staged call.
    pub(super) fn staged(sequence: u64, phase: c_int) -> c_int {
        16 + 2 * (sequence % Self::IN_FLIGHT as u64) as c_int + phase
    }
}

/// What follows when the requests are complete.
pub(super) enum Next {
    Done,
    /// The sum becomes an average.
    Divide(RawSlice),
    /// The result lies at the front of the staging; afterwards it may have to become an average.
    CopyTo(RawSlice, bool),
    /// All summands have arrived.
    Join(Join),
}

pub(super) struct Flight {
    /// Its number among the group's collectives, the same on all ranks; among this rank's exchanges for those of two.
    pub number: u64,
    pub kind: Kind,
    dtype: Option<DType>,
    payload: u64,
    requests: Vec<ffi::MPI_Request>,
    /// Bytes that each request has to receive, where MPI tells.
    expected: Vec<Option<usize>>,
    /// Memory of the call itself: words, so that every type is aligned.
    staging: Vec<u64>,
    pub next: Next,
    pub wire: u64,
    pub done: bool,
}

// SAFETY: request handles are used under the lock of `Flights` only, and slices as RawSlice says.
unsafe impl Send for Flight {}

impl Flight {
    pub(super) fn new(number: u64, call: &Call<'_>, size: usize) -> Flight {
        let shape = call.send_shape().or(call.recv_shape());
        Flight {
            number,
            kind: call.kind,
            dtype: shape.map(|shape| shape.0),
            payload: call.payload_bytes(size),
            requests: Vec::new(),
            expected: Vec::new(),
            staging: Vec::new(),
            next: Next::Done,
            wire: 0,
            done: false,
        }
    }

    /// The call in words, the same on all ranks that call the same.
    pub(super) fn describe(&self) -> String {
        let twice = if matches!(self.kind, Kind::AllReduce { .. }) { 2 } else { 1 };
        let Some(dtype) = self.dtype else { return self.kind.name().to_owned() };
        format!("{:?} of {} x {dtype}", self.kind, self.payload / twice / dtype.size() as u64)
    }

    /// Memory that lives as long as the flight; asked for once.
    pub(super) fn stage(&mut self, dtype: DType, len: usize) -> RawSlice {
        debug_assert!(self.staging.is_empty(), "staged twice");
        self.staging = vec![0; (len * dtype.size()).div_ceil(8)];
        self.staged(dtype, len)
    }

    fn staged(&mut self, dtype: DType, len: usize) -> RawSlice {
        assert!(len * dtype.size() <= self.staging.len() * 8);
        RawSlice { ptr: NonNull::from(self.staging.as_mut_slice()).cast(), len, dtype, on_host: true }
    }

    /// Adds the request that `post` writes; the call is named in its error.
    pub(super) fn post(
        &mut self,
        group: &Group,
        call: &str,
        expected: Option<usize>,
        post: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let result = post(&mut request);
        group.explain(self, check(call, result))?;
        self.requests.push(request);
        self.expected.push(expected);
        Ok(())
    }

    /// Gives a run to a rank, in pieces that MPI can count.
    pub(super) fn give(&mut self, group: &Group, run: RawSlice, to: usize, tag: c_int) -> Result<()> {
        for piece in run.pieces(group.settings.largest_count) {
            self.post(group, "MPI_Isend", None, |request| {
                // SAFETY: the buffers stay until the flight is done.
                unsafe {
                    let (count, kind) = counted(piece);
                    ffi::MPI_Isend(address(piece), count, kind, to as c_int, tag, group.comm.0, request)
                }
            })?;
        }
        Ok(())
    }

    /// Takes a run from a rank, in the pieces that it gives.
    pub(super) fn take(&mut self, group: &Group, run: RawSlice, from: usize, tag: c_int) -> Result<()> {
        self.wire += if from == group.rank { 0 } else { run.bytes() as u64 };
        for piece in run.pieces(group.settings.largest_count) {
            self.post(group, "MPI_Irecv", Some(piece.bytes()), |request| {
                // SAFETY: the buffers stay until the flight is done, and nobody else uses them.
                unsafe {
                    let (count, kind) = counted(piece);
                    ffi::MPI_Irecv(address(piece), count, kind, from as c_int, tag, group.comm.0, request)
                }
            })?;
        }
        Ok(())
    }

    /// Goes on as far as it can without waiting. Whether anything was complete.
    pub(super) fn advance(&mut self, group: &Group) -> Result<bool> {
        let mut any = false;
        while !self.done && self.arrived(group)? {
            any = true;
            match std::mem::replace(&mut self.next, Next::Done) {
                Next::Done => (self.done, self.staging) = (true, Vec::new()),
                // SAFETY: MPI is done with the run, which is this call's own.
                Next::Divide(run) => divide(unsafe { run.view_mut() }, group.size)?,
                Next::CopyTo(run, divide) => {
                    // SAFETY: both are this call's own, the staging is apart, and MPI is done with both.
                    unsafe { self.staged(run.dtype, run.len).copy_to(run) };
                    if divide {
                        self.next = Next::Divide(run);
                    }
                }
                Next::Join(join) => join.carry_out(group, self)?,
            }
        }
        Ok(any)
    }

    fn arrived(&mut self, group: &Group) -> Result<bool> {
        if self.requests.is_empty() {
            return Ok(true);
        }
        let mut statuses = Vec::with_capacity(self.requests.len());
        let mut complete = 0;
        // SAFETY: as many statuses as requests have room, and both arrays are live. Statuses are plain numbers that MPI fills in when
        // it says that all are complete.
        let result = unsafe {
            let count = self.requests.len() as c_int;
            ffi::MPI_Testall(count, self.requests.as_mut_ptr(), &mut complete, statuses.as_mut_ptr())
        };
        if result == ffi::MPI_ERR_IN_STATUS as c_int {
            // SAFETY: in this case all statuses are filled in.
            unsafe { statuses.set_len(self.requests.len()) };
            let worst = statuses.iter().map(|status: &ffi::MPI_Status| status.MPI_ERROR).find(|code| *code != 0);
            group.explain(self, check("MPI_Testall", worst.unwrap_or(result)))?;
        }
        group.explain(self, check("MPI_Testall", result))?;
        if complete == 0 {
            return Ok(false);
        }
        // SAFETY: all are complete, so all statuses are filled in.
        unsafe { statuses.set_len(self.requests.len()) };
        for (status, expected) in statuses.iter().zip(&self.expected) {
            let Some(expected) = *expected else { continue };
            let mut bytes = 0;
            // SAFETY: a status that MPI filled in.
            unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut bytes) };
            // More than an int holds is "undefined", a negative number.
            if bytes >= 0 && bytes as usize != expected {
                let from = status.MPI_SOURCE;
                let reason = format!("rank {from} sent {bytes} bytes where {expected} were expected");
                return group.explain(self, Err(CommError::Invalid { operation: "mpi", reason })).map(|()| false);
            }
        }
        self.requests.clear();
        self.expected.clear();
        Ok(true)
    }
}

/// One multiplication makes an average of a sum.
fn divide(mut sum: ViewMut<'_>, count: usize) -> Result<()> {
    if sum.dtype() == DType::F64 {
        let part = 1.0 / count as f64;
        sum.as_slice_mut::<f64>()?.iter_mut().for_each(|x| *x *= part);
    } else {
        let part = 1.0 / count as f32;
        sum.as_slice_mut::<f32>()?.iter_mut().for_each(|x| *x *= part);
    }
    Ok(())
}

/// Count and type for moving a run, which MPI need not understand.
pub(super) fn counted(run: RawSlice) -> (c_int, ffi::MPI_Datatype) {
    // SAFETY: constants of the library.
    let kind = unsafe {
        match run.dtype.size() {
            8 => ffi::RSMPI_UINT64_T,
            4 => ffi::RSMPI_UINT32_T,
            2 => ffi::RSMPI_UINT16_T,
            _ => ffi::RSMPI_UINT8_T,
        }
    };
    (run.len as c_int, kind)
}

impl Group {
    /// An error of MPI as one of the group's: MPI's codes do not tell whose fault it is, so this rank says that it gives up.
    fn explain(&self, flight: &Flight, result: Result<()>) -> Result<()> {
        result.map_err(|error| {
            let reason = match error {
                CommError::Invalid { reason, .. } => reason,
                other => other.to_string(),
            };
            let reason = format!("{} number {}: {reason}", flight.describe(), flight.number);
            CommError::Aborted { group: self.name.clone(), rank: self.rank, reason }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_under_way_have_tags_of_their_own() {
        let tags: std::collections::BTreeSet<c_int> = (0..Tags::IN_FLIGHT as u64)
            .flat_map(|sequence| [0, 1].map(|phase| Tags::staged(sequence, phase)))
            .collect();
        assert_eq!(tags.len(), 2 * Tags::IN_FLIGHT);
        assert!(tags.first() > Some(&Tags::ANSWER) && tags.last() <= Some(&32767));
    }
}

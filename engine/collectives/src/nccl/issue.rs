//! A call as NCCL's calls on a stream.

// Calls of NCCL's.
#![allow(unsafe_code)]

use super::api::{NcclError, data_type, reduction};
use super::driver::{DriverError, Memory, Stream};
use super::handle::Handle;
use crate::raw::RawSlice;
use crate::{Call, Kind};
use cudarc::nccl::sys::ncclRedOp_t;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use zbench_kernels::{DType, ReduceOp};

/// Why a call could not be put on the stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum IssueError {
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

type Result<T, E = IssueError> = std::result::Result<T, E>;

/// A buffer's address as NCCL takes it.
fn address(run: RawSlice) -> *mut c_void {
    run.ptr.as_ptr().cast()
}

/// One rank at the point of making a call.
pub(super) struct Issue<'a> {
    pub handle: &'a Handle,
    pub stream: &'a Stream,
    pub rank: usize,
    pub size: usize,
    /// Four bytes of the device, for barriers.
    pub token: &'a Memory,
}

impl Issue<'_> {
    /// Puts a call on the stream; gives memory that has to live until it is done, if it needs any. The caller has checked the
    /// shapes, and keeps the buffers in their place.
    pub(super) fn issue(&self, call: &mut Call<'_>) -> Result<Option<Memory>> {
        let send = call.send.map(RawSlice::of);
        let recv = call.recv.as_ref().map(RawSlice::of_mut);
        match (call.kind, send, recv) {
            (Kind::AllToAll, None, Some(recv)) => return self.all_to_all_in_place(recv).map(Some),
            (kind, send, recv) => self.plain(kind, send, recv)?,
        }
        Ok(None)
    }

    /// NCCL's operator. The mean of one rank's values is their sum, which NCCL copies: its kernel for the mean of one rank leaves the last
    /// elements of some odd counts unwritten (9,001 of f32, NCCL 2.28.9).
    fn reduction(&self, op: ReduceOp) -> ncclRedOp_t {
        reduction(if self.size == 1 && op == ReduceOp::Avg { ReduceOp::Sum } else { op })
    }

    fn plain(&self, kind: Kind, send: Option<RawSlice>, recv: Option<RawSlice>) -> Result<(), NcclError> {
        let (table, comm, stream) = (&self.handle.api().table, self.handle.raw(), self.stream.handle());
        let (rank, size) = (self.rank, self.size);
        let begun = |call, code| self.handle.begun(call, code);
        // SAFETY of every call below: the communicator is live and the stream is of its device; the buffers are device memory of as
        // many elements as the shapes say (`Call::check`), and stay until the stream has come past the call.
        match (kind, send, recv) {
            (Kind::Barrier, ..) => {
                let token = self.token.address() as *mut c_void;
                // SAFETY: as above; the token has four bytes.
                begun("ncclAllReduce", unsafe {
                    (table.all_reduce)(token, token, 1, data_type(DType::I32), reduction(ReduceOp::Max), comm, stream)
                })
            }
            (Kind::AllReduce { op }, send, Some(recv)) => {
                let (from, to, op) = (address(send.unwrap_or(recv)), address(recv), self.reduction(op));
                let (len, dtype) = (recv.len, data_type(recv.dtype));
                // SAFETY: as above.
                begun("ncclAllReduce", unsafe { (table.all_reduce)(from, to, len, dtype, op, comm, stream) })
            }
            (Kind::Reduce { op, root }, send, recv) => {
                let recv = recv.filter(|_| rank == root);
                let Some(own) = send.or(recv) else { unreachable!("reduce without its buffers") };
                let (from, to, op) = (address(own), address(recv.unwrap_or(own)), self.reduction(op));
                let (len, dtype, root) = (own.len, data_type(own.dtype), root as c_int);
                // SAFETY: as above; `to` is written on the root only.
                begun("ncclReduce", unsafe { (table.reduce)(from, to, len, dtype, op, root, comm, stream) })
            }
            (Kind::ReduceScatter { op, .. }, send, Some(recv)) => {
                let (whole, part) = send.map_or((recv, recv.part(rank, size)), |send| (send, recv));
                let (from, to, op) = (address(whole), address(part), self.reduction(op));
                let (len, dtype) = (part.len, data_type(part.dtype));
                // SAFETY: as above.
                begun("ncclReduceScatter", unsafe { (table.reduce_scatter)(from, to, len, dtype, op, comm, stream) })
            }
            (Kind::AllGather, send, Some(recv)) => {
                let part = send.unwrap_or(recv.part(rank, size));
                let (from, to, len, dtype) = (address(part), address(recv), part.len, data_type(part.dtype));
                // SAFETY: as above.
                begun("ncclAllGather", unsafe { (table.all_gather)(from, to, len, dtype, comm, stream) })
            }
            (Kind::Broadcast { root }, send, Some(recv)) => {
                let from = address(send.filter(|_| rank == root).unwrap_or(recv));
                let (to, len, dtype, root) = (address(recv), recv.len, data_type(recv.dtype), root as c_int);
                // SAFETY: as above; `from` is read on the root only.
                begun("ncclBroadcast", unsafe { (table.broadcast)(from, to, len, dtype, root, comm, stream) })
            }
            (Kind::Gather { root }, send, recv) => self.handle.grouped(|| {
                if let Some(send) = send {
                    self.give(send, root)?;
                }
                let Some(whole) = recv.filter(|_| rank == root) else { return Ok(()) };
                let others = (0..size).filter(|from| send.is_some() || *from != rank);
                others.into_iter().try_for_each(|from| self.take(whole.part(from, size), from))
            }),
            (Kind::Scatter { root }, send, recv) => self.handle.grouped(|| {
                if let Some(whole) = send.filter(|_| rank == root) {
                    let others = (0..size).filter(|to| recv.is_some() || *to != rank);
                    others.into_iter().try_for_each(|to| self.give(whole.part(to, size), to))?;
                }
                recv.map_or(Ok(()), |recv| self.take(recv, root))
            }),
            (Kind::AllToAll, Some(send), Some(recv)) => self.exchange(send, recv),
            (Kind::Send { to }, Some(send), _) => self.give(send, to),
            (Kind::Recv { from }, _, Some(recv)) => self.take(recv, from),
            (Kind::SendRecv { to, from }, Some(send), Some(recv)) => {
                self.handle.grouped(|| self.give(send, to).and_then(|()| self.take(recv, from)))
            }
            // `Call::check` has refused every other combination.
            (kind, ..) => unreachable!("{kind:?} without its buffers"),
        }
    }

    fn give(&self, run: RawSlice, to: usize) -> Result<(), NcclError> {
        let (table, comm, stream) = (&self.handle.api().table, self.handle.raw(), self.stream.handle());
        // SAFETY: as in `plain`.
        let code = unsafe { (table.send)(address(run), run.len, data_type(run.dtype), to as c_int, comm, stream) };
        self.handle.begun("ncclSend", code)
    }

    fn take(&self, run: RawSlice, from: usize) -> Result<(), NcclError> {
        let (table, comm, stream) = (&self.handle.api().table, self.handle.raw(), self.stream.handle());
        // SAFETY: as in `plain`.
        let code = unsafe { (table.recv)(address(run), run.len, data_type(run.dtype), from as c_int, comm, stream) };
        self.handle.begun("ncclRecv", code)
    }

    fn exchange(&self, send: RawSlice, recv: RawSlice) -> Result<(), NcclError> {
        let size = self.size;
        self.handle.grouped(|| {
            (0..size).try_for_each(|peer| {
                self.give(send.part(peer, size), peer)?;
                self.take(recv.part(peer, size), peer)
            })
        })
    }

    /// NCCL cannot send from where it receives: what is sent is copied aside.
    fn all_to_all_in_place(&self, recv: RawSlice) -> Result<Memory> {
        let aside = Memory::new(self.stream.device(), recv.bytes())?;
        if recv.bytes() > 0 {
            // SAFETY: device memory of as many bytes; the caller keeps both until the stream is done.
            unsafe { self.stream.copy(address(recv) as u64, aside.address(), recv.bytes())? };
        }
        let ptr = NonNull::new(aside.address() as *mut u8).unwrap_or(recv.ptr);
        self.exchange(RawSlice { ptr, ..recv }, recv)?;
        Ok(aside)
    }
}

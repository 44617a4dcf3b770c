//! Whether buffers fit a collective, for every implementation alike.

use super::{Kind, Shape};
use crate::{CommError, Result};
use zbench_kernels::{DType, ReduceOp};

/// One rank's side of a call: its kind and its buffers.
struct Side {
    name: &'static str,
    rank: usize,
    size: usize,
    send: Option<Shape>,
    recv: Option<Shape>,
}

pub(super) fn call(kind: Kind, rank: usize, size: usize, send: Option<Shape>, recv: Option<Shape>) -> Result<()> {
    let side = Side { name: kind.name(), rank, size, send, recv };
    match kind {
        Kind::AllReduce { op } => {
            let recv = side.recv()?;
            side.combines(op, recv.0, false)?;
            send.map_or(Ok(()), |send| side.equal(send, recv))
        }
        Kind::ReduceScatter { op, accumulate } => {
            let recv = side.recv()?;
            side.combines(op, recv.0, accumulate)?;
            let Some(send) = send else { return side.divisible(recv.1) };
            side.combines(op, send.0, accumulate)?;
            if !send.0.is_float() || !recv.0.is_float() {
                side.same_type(send, recv)?;
            }
            side.parts(("recv", recv.1), ("send", send.1))
        }
        Kind::AllGather => {
            let recv = side.recv()?;
            let Some(send) = send else { return side.divisible(recv.1) };
            side.same_type(send, recv)?;
            side.parts(("send", send.1), ("recv", recv.1))
        }
        Kind::Broadcast { root } => {
            side.known("root", root)?;
            let recv = side.recv()?;
            send.filter(|_| rank == root).map_or(Ok(()), |send| side.equal(send, recv))
        }
        Kind::Reduce { op, root } => {
            side.known("root", root)?;
            let own = if rank == root { side.recv()? } else { side.send()? };
            side.combines(op, own.0, false)?;
            send.map_or(Ok(()), |send| side.equal(send, own))
        }
        Kind::Gather { root } => {
            side.known("root", root)?;
            if rank != root {
                return side.send().map(|_| ());
            }
            let recv = side.recv()?;
            let Some(send) = send else { return side.divisible(recv.1) };
            side.same_type(send, recv)?;
            side.parts(("send", send.1), ("recv", recv.1))
        }
        Kind::Scatter { root } => {
            side.known("root", root)?;
            if rank != root {
                return side.recv().map(|_| ());
            }
            let send = side.send()?;
            let Some(recv) = recv else { return side.divisible(send.1) };
            side.same_type(send, recv)?;
            side.parts(("recv", recv.1), ("send", send.1))
        }
        Kind::AllToAll => {
            let recv = side.recv()?;
            side.divisible(recv.1)?;
            send.map_or(Ok(()), |send| side.equal(send, recv))
        }
        Kind::Send { to } => side.peer(to).and_then(|()| side.send().map(|_| ())),
        Kind::Recv { from } => side.peer(from).and_then(|()| side.recv().map(|_| ())),
        Kind::SendRecv { to, from } => {
            side.peer(to)?;
            side.peer(from)?;
            side.send()?;
            side.recv().map(|_| ())
        }
        Kind::Barrier => Ok(()),
    }
}

impl Side {
    fn invalid(&self, reason: String) -> CommError {
        CommError::Invalid { operation: self.name, reason }
    }

    fn send(&self) -> Result<Shape> {
        self.send.ok_or_else(|| self.invalid(format!("rank {} has to give a send buffer", self.rank)))
    }

    fn recv(&self) -> Result<Shape> {
        self.recv.ok_or_else(|| self.invalid(format!("rank {} has to give a recv buffer", self.rank)))
    }

    /// Adding to what is there is meant for the sums of floats.
    fn combines(&self, op: ReduceOp, dtype: DType, accumulate: bool) -> Result<()> {
        let sums = matches!(op, ReduceOp::Sum | ReduceOp::Avg) && dtype.is_float();
        if !accumulate || sums {
            return Ok(());
        }
        Err(self.invalid(format!("{op} of {dtype} cannot be added to what is there; sums and averages of floats can")))
    }

    /// `whole == size * part`, without overflow.
    fn parts(&self, part: (&str, usize), whole: (&str, usize)) -> Result<()> {
        if part.1.checked_mul(self.size) == Some(whole.1) {
            return Ok(());
        }
        let (part, part_len, whole, whole_len) = (part.0, part.1, whole.0, whole.1);
        let needed =
            format!("{whole} has {whole_len} elements, {} ranks times {part}'s {part_len} are needed", self.size);
        Err(self.invalid(needed))
    }

    fn divisible(&self, len: usize) -> Result<()> {
        if len.is_multiple_of(self.size) {
            return Ok(());
        }
        Err(self.invalid(format!("{len} elements are no {} equal parts; pad the buffer", self.size)))
    }

    fn same_type(&self, send: Shape, recv: Shape) -> Result<()> {
        if send.0 == recv.0 {
            return Ok(());
        }
        Err(self.invalid(format!("send is {} and recv {}; one type is needed", send.0, recv.0)))
    }

    fn equal(&self, send: Shape, recv: Shape) -> Result<()> {
        self.same_type(send, recv)?;
        if send.1 == recv.1 {
            return Ok(());
        }
        Err(self.invalid(format!("send has {} elements and recv {}", send.1, recv.1)))
    }

    fn known(&self, what: &str, rank: usize) -> Result<()> {
        if rank < self.size {
            return Ok(());
        }
        Err(self.invalid(format!("{what} {rank} is not one of the {} ranks", self.size)))
    }

    fn peer(&self, peer: usize) -> Result<()> {
        self.known("peer", peer)?;
        if peer != self.rank {
            return Ok(());
        }
        Err(self.invalid(format!("rank {peer} cannot exchange with itself")))
    }
}

//! NCCL calls in the order of a rank's kernels: a call begins when the kernels that were launched before it are done, and is
//! complete when it returns. A started collective is carried out in `start`: nothing overlaps with it yet.

use super::Nccl;
use crate::comm::{Call, CommError, Communicator, Kind, Member, Null, OwnedCall, Result, Ticket};
use std::sync::Arc;
use zbench_kernels::{Kernels, ReduceOp};

/// A rank of a group of GPUs whose buffers its kernels work on.
pub struct Ordered {
    inner: Box<dyn Communicator>,
    kernels: Arc<dyn Kernels>,
    /// Numbers tickets that only carry the buffers.
    tickets: Null,
}

impl Ordered {
    /// `inner` for the buffers of `kernels`, on the same device.
    pub fn new(inner: Nccl, kernels: Arc<dyn Kernels>) -> Ordered {
        Ordered::of(Box::new(inner), kernels)
    }

    fn of(inner: Box<dyn Communicator>, kernels: Arc<dyn Kernels>) -> Ordered {
        let tickets = Null::new(inner.rank(), inner.size());
        Ordered { inner, kernels, tickets }
    }

    /// A sum onto what is there, or of another type than what travels: NCCL sums in place of this rank's summand, a kernel does
    /// the rest.
    fn reduce_scatter(&self, request: &mut OwnedCall) -> Result<bool> {
        let OwnedCall { kind: Kind::ReduceScatter { accumulate, .. }, send: Some(send), recv: Some(recv) } = request
        else {
            return Ok(false);
        };
        if !*accumulate && send.dtype() == recv.dtype() {
            return Ok(false);
        }
        let kind = Kind::ReduceScatter { op: ReduceOp::Sum, accumulate: false };
        self.call(Call::in_place(kind, send.view_mut()))?;
        let part = recv.len() * self.rank()..recv.len() * (self.rank() + 1);
        match *accumulate {
            true => self.kernels.accumulate(1.0, send.slice(part), recv.view_mut())?,
            false => self.kernels.cast(send.slice(part), recv.view_mut())?,
        }
        Ok(true)
    }
}

impl Communicator for Ordered {
    fn member(&self) -> Member {
        self.inner.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.inner.algorithm(kind, bytes)
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        self.kernels.synchronize()?;
        self.inner.call(call)
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        request.as_call().check(self.rank(), self.size())?;
        if !self.reduce_scatter(&mut request)? {
            self.call(request.as_call())?;
        }
        self.tickets.start(request)
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        self.tickets.wait(ticket)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>, CommError> {
        let inner = self.inner.split(color, key, name)?;
        Ok(Box::new(Ordered::of(inner, self.kernels.clone())))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }
}

//! Calls in the order of a rank's kernels. A call begins, on the group's own stream, when the kernels that were launched before it are
//! done; the host does not wait for them. Kernels that are launched between `start` and `wait` run beside the call. `wait` polls,
//! so that a call that does not end is noticed, and what is launched after it finds the result.

use super::Nccl;
use crate::{Call, Communicator, Kind, Member, OwnedCall, Result, Started, Ticket};
use std::sync::Arc;
use zbench_kernels::memory::device::Event;
use zbench_kernels::{Buffer, Kernels};

/// A group with a stream of its own.
pub trait InOrder: Communicator + Sized + 'static {
    /// The calls from here on begin after an event of the kernels' stream.
    ///
    /// # Errors
    /// The event is another device's, or what the driver says.
    fn follow(&self, event: Arc<dyn Event>) -> Result<()>;

    /// As [`Communicator::split`].
    ///
    /// # Errors
    /// As [`Communicator::split`].
    fn split_off(&self, color: usize, key: usize, name: &str) -> Result<Self>;
}

/// A rank of a group whose buffers its kernels work on.
pub struct Ordered<C = Nccl> {
    inner: C,
    kernels: Arc<dyn Kernels>,
    /// What `wait` does with the sums of calls that NCCL does not do as they are asked for.
    unfinished: Started<Unfinished>,
}

/// Where a sum goes, and whether it is added to what is there.
struct Unfinished {
    kind: Kind,
    recv: Buffer,
}

impl<C: InOrder> Ordered<C> {
    /// `inner` for the buffers of `kernels`, on the same device.
    pub fn new(inner: C, kernels: Arc<dyn Kernels>) -> Ordered<C> {
        Ordered { inner, kernels, unfinished: Started::default() }
    }

    fn follow(&self) -> Result<()> {
        match self.kernels.record_event()? {
            Some(event) => self.inner.follow(event),
            None => Ok(self.kernels.synchronize()?),
        }
    }
}

impl<C: InOrder> Communicator for Ordered<C> {
    fn member(&self) -> Member {
        self.inner.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.inner.algorithm(kind, bytes)
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        self.follow()?;
        self.inner.call(call)
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        request.as_call().check(self.rank(), self.size())?;
        self.follow()?;
        match request {
            // A sum onto what is there, or of another type than what travels: NCCL sums in place of this rank's summand, and a
            // kernel does the rest.
            OwnedCall { kind: kind @ Kind::ReduceScatter { op, accumulate }, send: Some(send), recv: Some(recv) }
                if accumulate || send.dtype() != recv.dtype() =>
            {
                let in_place = Kind::ReduceScatter { op, accumulate: false };
                let ticket = self.inner.start(OwnedCall { kind: in_place, send: None, recv: Some(send) })?;
                self.unfinished.put(ticket.sequence, Unfinished { kind, recv });
                Ok(ticket)
            }
            request => self.inner.start(request),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        let unfinished = self.unfinished.take(ticket.sequence);
        let mut done = self.inner.wait(ticket)?;
        let Some(Unfinished { kind, mut recv }) = unfinished else { return Ok(done) };
        if let Some(sums) = &done.recv {
            let part = sums.slice(recv.len() * self.rank()..recv.len() * (self.rank() + 1));
            match kind {
                Kind::ReduceScatter { accumulate: true, .. } => self.kernels.accumulate(1.0, part, recv.view_mut())?,
                _ => self.kernels.cast(part, recv.view_mut())?,
            }
        }
        Ok(OwnedCall { kind, send: done.recv.take(), recv: Some(recv) })
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let inner = self.inner.split_off(color, key, name)?;
        Ok(Box::new(Ordered::new(inner, self.kernels.clone())))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }
}

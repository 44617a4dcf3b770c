//! Host buffers over a communicator of device buffers: every call copies them to the device and back. For checks, and for the
//! few words that ranks exchange outside of steps.

use super::link::LinkUse;
use super::{Call, Communicator, Kind, Member, OwnedCall, Result, Started, Ticket, invalid};
use std::sync::Arc;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, View};

/// Stages host buffers in the memory of its kernels' device; buffers that lie there already are used where they are.
pub struct HostStaged {
    inner: Box<dyn Communicator>,
    kernels: Arc<dyn Kernels>,
    arena: Arena,
    /// What was started with host buffers.
    started: Started<OwnedCall>,
}

impl HostStaged {
    /// `inner` takes buffers of the kernels' device; the copies of host buffers lie in `arena`.
    pub fn new(inner: Box<dyn Communicator>, kernels: Arc<dyn Kernels>, arena: Arena) -> HostStaged {
        HostStaged { inner, kernels, arena, started: Started::default() }
    }

    fn room(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let buffer = self.arena.alloc(Category::Communication, dtype, len);
        buffer.map_err(|error| invalid("host staging", error))
    }

    /// A copy of host elements on the device.
    fn staged(&self, view: View<'_>) -> Result<Buffer> {
        let mut there = self.room(view.dtype(), view.len())?;
        self.kernels.upload(view, there.view_mut())?;
        Ok(there)
    }
}

impl Communicator for HostStaged {
    fn member(&self) -> Member {
        self.inner.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.inner.algorithm(kind, bytes)
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank(), self.size())?;
        let Call { kind, send, recv } = call;
        let on_host = send.is_none_or(|view| view.is_on_host()) && recv.as_ref().is_none_or(|view| view.is_on_host());
        if !on_host {
            return self.inner.call(Call { kind, send, recv });
        }
        let sent = send.map(|view| self.staged(view)).transpose()?;
        let mut received = recv.as_ref().map(|view| self.staged(view.as_view())).transpose()?;
        let (send, there) = (sent.as_ref().map(Buffer::view), received.as_mut().map(Buffer::view_mut));
        self.inner.call(Call { kind, send, recv: there })?;
        if let (Some(there), Some(view)) = (&received, recv) {
            self.kernels.download(there.view(), view)?;
        }
        Ok(())
    }

    fn start(&self, request: OwnedCall) -> Result<Ticket> {
        if !request.is_on_host() {
            return self.inner.start(request);
        }
        let staged = |buffer: &Option<Buffer>| buffer.as_ref().map(|buffer| self.staged(buffer.view())).transpose();
        let twin = OwnedCall { kind: request.kind, send: staged(&request.send)?, recv: staged(&request.recv)? };
        let ticket = self.inner.start(twin)?;
        self.started.put(ticket.sequence, request);
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        let sequence = ticket.sequence;
        let twin = self.inner.wait(ticket)?;
        let Some(mut request) = self.started.take(sequence) else { return Ok(twin) };
        if let (Some(there), Some(here)) = (&twin.recv, &mut request.recv) {
            self.kernels.download(there.view(), here.view_mut())?;
        }
        Ok(request)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let inner = self.inner.split(color, key, name)?;
        Ok(Box::new(HostStaged::new(inner, self.kernels.clone(), self.arena.clone())))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }

    fn link_use(&self) -> Option<LinkUse> {
        self.inner.link_use()
    }
}

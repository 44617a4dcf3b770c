//! NCCL for buffers in host memory: every call carries them to the device and back. For checks, not for speed.

use super::{Device, DriverError, Memory};
use crate::comm::{Call, CommError, Communicator, Null, Request, Result, Ticket};
use std::ptr::NonNull;
use std::sync::Arc;
use zbench_kernels::{View, ViewMut};

/// A communicator of device buffers as one of host buffers. A started collective is carried out where it is started.
pub struct Hosted {
    inner: Box<dyn Communicator>,
    device: Arc<Device>,
}

/// A copy of host elements on the device.
fn carried(device: &Arc<Device>, view: &View<'_>) -> Result<Memory, DriverError> {
    // SAFETY: a view is so many bytes of initialised plain numbers.
    let bytes = unsafe { std::slice::from_raw_parts(view.ptr().as_ptr(), view.len() * view.dtype().size()) };
    let mut memory = Memory::new(device, bytes.len())?;
    memory.write(bytes)?;
    Ok(memory)
}

fn at(memory: &Memory) -> NonNull<u8> {
    NonNull::new(memory.address() as *mut u8).unwrap_or(NonNull::dangling())
}

impl Hosted {
    /// `inner`, whose buffers are memory of `device`, for host buffers.
    pub fn new(inner: Box<dyn Communicator>, device: &Arc<Device>) -> Hosted {
        Hosted { inner, device: device.clone() }
    }

    fn failed(&self, error: &DriverError) -> CommError {
        CommError::Aborted { group: "hosted".into(), rank: self.rank(), reason: error.to_string() }
    }
}

impl Communicator for Hosted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank(), self.size())?;
        let Call { kind, send, recv } = call;
        let carry = |view: &View<'_>| carried(&self.device, view).map_err(|error| self.failed(&error));
        let sent = send.as_ref().map(carry).transpose()?;
        let received = recv.as_ref().map(|view| carry(&view.as_view())).transpose()?;
        let inside = Call {
            kind,
            // SAFETY: device memory of the view's size, which only the device looks at.
            send: sent
                .as_ref()
                .zip(send)
                .map(|(memory, view)| unsafe { View::from_raw(at(memory), view.dtype(), view.len()) }),
            // SAFETY: as above.
            recv: received
                .as_ref()
                .zip(recv.as_ref())
                .map(|(memory, view)| unsafe { ViewMut::from_raw(at(memory), view.dtype(), view.len()) }),
        };
        self.inner.call(inside)?;
        let (Some(memory), Some(view)) = (received, recv) else { return Ok(()) };
        let len = view.len() * view.dtype().size();
        // SAFETY: the view is this call's own, of so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(view.ptr().as_ptr(), len) };
        memory.read(bytes).map_err(|error| self.failed(&error))
    }

    fn start(&self, mut request: Request) -> Result<Ticket> {
        self.call(request.as_call())?;
        // A ticket that only carries the buffers.
        Null::new(self.rank(), self.size()).start(request)
    }

    fn wait(&self, ticket: Ticket) -> Result<Request> {
        Null::new(self.rank(), self.size()).wait(ticket)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let inner = self.inner.split(color, key, name)?;
        Ok(Box::new(Hosted::new(inner, &self.device)))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }
}

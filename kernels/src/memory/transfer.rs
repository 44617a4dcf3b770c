//! Copies between a device and pinned memory of its host that go on beside both.
//!
//! Each way has a stream of its own. A copy begins when the device has done what it was asked for before, since that makes what is
//! copied, or still uses the memory that is written. It is over when its event has come:
//!
//! - Of the host's buffer that cannot be forgotten. The buffer knows its copies and waits for them: before the host reads what is being
//!   written, before it writes what is being read or written, and before its memory is given back.
//! - The device's memory is reused in the order of the device's stream. So whoever started the copy lets that stream wait for the event
//!   ([`Kernels::wait_event`]) before the device reads what came, and before memory is given back that the copy reads.

#![allow(unsafe_code, reason = "copies take addresses")]

use crate::memory::copy;
use crate::memory::device::{Device, Event, Stream};
use crate::{Buffer, KernelError, Kernels, Result, View, ViewMut};
use std::ops::Range;
use std::sync::Arc;

/// The copies of a buffer of pinned memory that may be under way. Of each kind the last is enough: it comes after those before it.
#[derive(Default)]
pub(crate) struct UnderWay {
    read: Option<Arc<dyn Event>>,
    write: Option<Arc<dyn Event>>,
}

impl std::fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnderWay(read {}, write {})", self.read.is_some(), self.write.is_some())
    }
}

/// Waits for a copy. A device that fails copies nothing any more, and says so to the next who waits for it.
fn wait(event: Option<&Arc<dyn Event>>) {
    if let Some(event) = event {
        let _ = event.wait();
    }
}

impl UnderWay {
    /// Waits until nobody writes the buffer.
    pub(crate) fn written(&self) {
        wait(self.write.as_ref());
    }

    /// Waits until nobody reads or writes the buffer.
    pub(crate) fn end(&mut self) {
        wait(self.read.take().as_ref());
        wait(self.write.take().as_ref());
    }

    /// What a stream is asked for from now on comes after these copies.
    fn before(&self, stream: &dyn Stream) -> Result<()> {
        for event in self.read.iter().chain(&self.write) {
            stream.wait_event(&**event)?;
        }
        Ok(())
    }
}

/// Two streams of a device: to it, and from it.
pub struct CopyStreams {
    to_device: Box<dyn Stream>,
    to_host: Box<dyn Stream>,
}

impl std::fmt::Debug for CopyStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CopyStreams")
    }
}

/// Refuses what no device copies while the host goes on.
fn fits(op: &'static str, host: &Buffer, part: &Range<usize>, device_is_on_host: bool) -> Result<()> {
    let refused = |reason| Err(KernelError::Invalid { op, reason });
    if !host.is_pinned() {
        return refused("the host's buffer is not of pinned memory; take it from Kernels::host_arena".into());
    }
    if device_is_on_host {
        return refused("the device's elements lie in host memory; copy those with Kernels::copy".into());
    }
    if part.start > part.end || part.end > host.len() {
        return refused(format!("{part:?} is no part of {} elements", host.len()));
    }
    Ok(())
}

impl CopyStreams {
    pub(crate) fn new(device: &dyn Device) -> Result<CopyStreams> {
        Ok(CopyStreams { to_device: device.new_stream()?, to_host: device.new_stream()? })
    }

    /// Starts to copy a part of a host buffer to the device: the event behind it. Types and lengths must agree.
    ///
    /// # Errors
    /// The buffer is not pinned, or the device failed.
    pub fn upload(
        &self,
        device: &dyn Kernels,
        from: &mut Buffer,
        part: Range<usize>,
        to: ViewMut<'_>,
    ) -> Result<Arc<dyn Event>> {
        fits("upload", from, &part, to.is_on_host())?;
        let stream = &*self.to_device;
        from.copies.before(stream)?;
        after(stream, device)?;
        // SAFETY: a place among the buffer's elements (checked), which nobody reads here.
        let source = unsafe { from.lend() }.slice(part);
        copy::alike("upload", &source, &to)?;
        let bytes = source.len() * source.dtype().size();
        // SAFETY: `to` holds as many bytes of the device's. The buffer waits for the event before the host writes it or its memory
        // is given back; its arena keeps the memory pinned.
        unsafe { stream.upload_pinned(address(&source), address(&to), bytes)? };
        let done = behind(stream)?;
        from.copies.read = Some(done.clone());
        Ok(done)
    }

    /// Starts to copy from the device to a part of a host buffer: the event behind it. Types and lengths must agree. What is read on
    /// the device must stay until its stream has waited for the event.
    ///
    /// # Errors
    /// The buffer is not pinned, or the device failed.
    pub fn download(
        &self,
        device: &dyn Kernels,
        from: View<'_>,
        to: &mut Buffer,
        part: Range<usize>,
    ) -> Result<Arc<dyn Event>> {
        fits("download", to, &part, from.is_on_host())?;
        let stream = &*self.to_host;
        to.copies.before(stream)?;
        after(stream, device)?;
        // SAFETY: a place among the buffer's elements (checked), which nobody reads or writes here.
        let target = unsafe { to.lend() }.slice(part);
        if (from.dtype(), from.len()) != (target.dtype(), target.len()) {
            let (given, wanted) = (from.len(), target.len());
            return Err(KernelError::Shape { op: "download", operand: "from", wanted, given });
        }
        let bytes = from.len() * from.dtype().size();
        // SAFETY: `from` holds as many bytes of the device's. The buffer waits for the event before the host reads or writes it or its
        // memory is given back; its arena keeps the memory pinned.
        unsafe { stream.download_pinned(address(&from), address(&target), bytes)? };
        let done = behind(stream)?;
        to.copies.write = Some(done.clone());
        Ok(done)
    }
}

/// The event behind a copy that was queued. Without one nobody could wait for the copy, so that its end is waited for.
fn behind(stream: &dyn Stream) -> Result<Arc<dyn Event>> {
    match stream.record_event() {
        Ok(event) => Ok(event.into()),
        Err(error) => {
            // A device that cannot be waited for either has stopped.
            let _ = stream.synchronize();
            Err(error.into())
        }
    }
}

/// What a stream is asked for from now on begins after the work that the device was asked for so far.
fn after(stream: &dyn Stream, device: &dyn Kernels) -> Result<()> {
    device.record_event()?.map_or(Ok(()), |event| Ok(stream.wait_event(&*event)?))
}

fn address(extent: &crate::Extent) -> u64 {
    extent.ptr().as_ptr() as u64
}

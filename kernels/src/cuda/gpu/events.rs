//! Moments in a queue.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::driver::NOT_READY;
use super::{DriverTable, Gpu, Inner};
use crate::memory::device::{Event, Result};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use std::any::Any;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// An event: what was asked for before it has been done once it is reached.
pub struct GpuEvent {
    gpu: Gpu,
    handle: CUevent,
    /// Whether times between it and others can be told; such ones are used again.
    timed: bool,
}

// SAFETY: a handle of the driver's, which any thread may use.
unsafe impl Send for GpuEvent {}
// SAFETY: as above.
unsafe impl Sync for GpuEvent {}

impl Inner {
    fn event(&self, flags: CUevent_flags) -> Result<CUevent> {
        // SAFETY: a live output.
        let create = |table: &DriverTable, event: &mut CUevent| unsafe { (table.event_create)(event, flags as u32) };
        self.output("cuEventCreate", std::ptr::null_mut(), create)
    }
}

impl GpuEvent {
    /// One that tells times.
    pub(super) fn timed(gpu: &Gpu) -> Result<GpuEvent> {
        gpu.0.enter()?;
        let kept = gpu.0.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let handle = kept.map_or_else(|| gpu.0.event(CUevent_flags::CU_EVENT_DEFAULT), Ok)?;
        Ok(GpuEvent { gpu: gpu.clone(), handle, timed: true })
    }

    /// One that is only waited for.
    pub(super) fn plain(gpu: &Gpu) -> Result<GpuEvent> {
        gpu.0.enter()?;
        let handle = gpu.0.event(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(GpuEvent { gpu: gpu.clone(), handle, timed: false })
    }

    /// Puts it behind what the stream was asked for so far.
    ///
    /// # Safety
    /// The stream is the same device's, and lives.
    pub(super) unsafe fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.gpu.0.call("cuEventRecord", |table| unsafe { (table.event_record)(self.handle, stream) })
    }

    /// Later work on `stream`, which its owner has made in the primary context of the device, waits for this event.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The stream lives, and is of the event's device.
    pub unsafe fn block(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.hold_back(&self.gpu, stream) }
    }

    /// What the stream is asked for from now on begins after it.
    ///
    /// # Safety
    /// The stream lives, and is of `gpu`.
    pub(super) unsafe fn hold_back(&self, gpu: &Gpu, stream: CUstream) -> Result<()> {
        if !Arc::ptr_eq(&gpu.0, &self.gpu.0) {
            return Err(gpu.0.error("cuStreamWaitEvent", "the event is another device's"));
        }
        // SAFETY: the caller's promise. The driver keeps what the event stands for: it may be used again afterwards.
        gpu.0.call("cuStreamWaitEvent", |table| unsafe { (table.stream_wait)(stream, self.handle, 0) })
    }
}

impl Drop for GpuEvent {
    fn drop(&mut self) {
        if self.timed {
            self.gpu.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(self.handle);
        } else if self.gpu.0.enter().is_ok() {
            // SAFETY: this value's own. The driver waits with it until it was reached.
            unsafe { (self.gpu.0.driver.table.event_destroy)(self.handle) };
        }
    }
}

impl Event for GpuEvent {
    fn wait(&self) -> Result<()> {
        // SAFETY: a live event.
        self.gpu.0.call("cuEventSynchronize", |table| unsafe { (table.event_synchronize)(self.handle) })
    }

    fn query(&self) -> Result<bool> {
        self.gpu.0.enter()?;
        // SAFETY: a live event.
        match unsafe { (self.gpu.0.driver.table.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.gpu.0.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn elapsed(&self, earlier: &dyn Event) -> Result<Duration> {
        const CALL: &str = "cuEventElapsedTime";
        let inner = &self.gpu.0;
        let earlier = earlier.as_any().downcast_ref::<GpuEvent>().filter(|event| Arc::ptr_eq(&event.gpu.0, inner));
        let earlier = earlier.ok_or_else(|| inner.error(CALL, "the event is another device's"))?;
        inner.enter()?;
        // SAFETY: a live output and live events.
        let ask = |table: &DriverTable, to: &mut f32| unsafe { (table.event_elapsed)(to, earlier.handle, self.handle) };
        let milliseconds = inner.output(CALL, 0.0, ask)?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! What a communicator needs of the CUDA driver: a device's context, a stream, events, memory.

// Calls of the CUDA driver's.
#![allow(unsafe_code)]

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUevent_flags, CUstream, CUstream_flags};
use cudarc::nccl::sys::cudaStream_t;
use std::ffi::c_int;
use std::sync::Arc;
use zbench_kernels::cuda::gpu::{self, Absent, Driver, GpuEvent, NOT_READY};
use zbench_kernels::memory::device::{DeviceError, Event};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Absent(#[from] Absent),
    #[error(transparent)]
    Call(#[from] gpu::DriverError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

type Result<T, E = DriverError> = std::result::Result<T, E>;

/// Loads the driver and starts it.
///
/// # Errors
/// [`DriverError`]: no driver, or one that finds no device.
pub fn load_driver() -> Result<Arc<Driver>> {
    let driver = Driver::load(&gpu::Search::default())?;
    // SAFETY: the first call, as the driver wants it.
    driver.check("cuInit", unsafe { (driver.table.init)(0) })?;
    Ok(Arc::new(driver))
}

/// A GPU and its primary context, which all users of the process share.
pub struct Device {
    driver: Arc<Driver>,
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: driver handles may be used from any thread that has set the context, as every method does.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: Arc<Driver>, ordinal: usize) -> Result<Arc<Device>> {
        let (device, mut context) = (driver.device(ordinal as c_int)?, std::ptr::null_mut());
        // SAFETY: a live output, and a device that the driver has just named.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.table.context_retain)(&mut context, device) })?;
        Ok(Arc::new(Device { driver, device, context }))
    }

    /// Makes this thread's calls go to this device, NCCL's too.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: a context that is held until this is dropped.
        Ok(self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.table.context_set)(self.context) })?)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: released once, when no stream, event or memory holds the device any more.
        unsafe { (self.driver.table.context_release)(self.device) };
    }
}

pub struct Stream {
    device: Arc<Device>,
    handle: CUstream,
}

// SAFETY: as for `Device`.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the highest priority: the few blocks of a collective go before those of large kernels, which then need not
    /// be at their end first.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        device.enter()?;
        let (table, mut handle) = (&device.driver.table, std::ptr::null_mut());
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: live outputs.
        let code = unsafe { (table.stream_priorities)(&mut lowest, &mut highest) };
        device.driver.check("cuCtxGetStreamPriorityRange", code)?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32; // does not wait for the legacy stream
        // SAFETY: a live output.
        let code = unsafe { (table.stream_create_with_priority)(&mut handle, flags, highest) };
        device.driver.check("cuStreamCreateWithPriority", code)?;
        Ok(Stream { device: device.clone(), handle })
    }

    /// Later work on this stream waits for an event of the kernels on the same GPU. Gives false if the event is not one of a GPU.
    pub(super) fn follow(&self, event: &dyn Event) -> Result<bool> {
        let Some(event) = event.as_any().downcast_ref::<GpuEvent>() else { return Ok(false) };
        // SAFETY: the stream lives, and is of the GPU that the group's kernels run on.
        unsafe { event.block(self.handle) }?;
        Ok(true)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn handle(&self) -> cudaStream_t {
        self.handle.cast()
    }

    /// A mark after what has been asked for so far.
    pub(super) fn mark(&self) -> Result<Mark> {
        self.device.enter()?;
        let (table, mut handle) = (&self.device.driver.table, std::ptr::null_mut());
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a live output.
        self.device.driver.check("cuEventCreate", unsafe { (table.event_create)(&mut handle, flags) })?;
        let mark = Mark { device: self.device.clone(), handle };
        // SAFETY: a live event and a live stream of one context.
        self.device.driver.check("cuEventRecord", unsafe { (table.event_record)(mark.handle, self.handle) })?;
        Ok(mark)
    }

    /// Copies `bytes` from one device address to another, in order.
    ///
    /// # Safety
    /// Both hold `bytes` until the stream is done, and nobody else uses `to` meanwhile.
    pub(super) unsafe fn copy(&self, from: CUdeviceptr, to: CUdeviceptr, bytes: usize) -> Result<()> {
        self.device.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.device.driver.table.copy_on_device)(to, from, bytes, self.handle) };
        Ok(self.device.driver.check("cuMemcpyDtoDAsync", code)?)
    }

    pub(super) fn zero(&self, memory: &mut Memory) -> Result<()> {
        self.device.enter()?;
        // SAFETY: memory of so many bytes, which nobody else uses.
        let code = unsafe { (self.device.driver.table.set)(memory.address, 0, memory.bytes, self.handle) };
        Ok(self.device.driver.check("cuMemsetD8Async", code)?)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the last use of the handle; the driver finishes what is under way.
        unsafe { (self.device.driver.table.stream_destroy)(self.handle) };
    }
}

pub(super) struct Mark {
    device: Arc<Device>,
    handle: CUevent,
}

// SAFETY: as for `Device`.
unsafe impl Send for Mark {}

impl Mark {
    /// Whether the stream has come so far.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.device.enter()?;
        // SAFETY: a live event.
        match unsafe { (self.device.driver.table.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => Ok(self.device.driver.check("cuEventQuery", code).map(|()| true)?),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the last use of the handle.
        unsafe { (self.device.driver.table.event_destroy)(self.handle) };
    }
}

pub struct Memory {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// At least one byte, so that every memory has an address.
    ///
    /// # Errors
    /// What the driver says, as when there is no room.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Memory> {
        device.enter()?;
        let mut address = 0;
        // SAFETY: a live output.
        let code = unsafe { (device.driver.table.memory_allocate)(&mut address, bytes.max(1)) };
        device.driver.check("cuMemAlloc", code)?;
        Ok(Memory { device: device.clone(), address, bytes })
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the last use of the address; the driver waits for work that uses it.
            unsafe { (self.device.driver.table.memory_free)(self.address) };
        }
    }
}

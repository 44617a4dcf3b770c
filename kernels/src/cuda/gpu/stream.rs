//! Work in order: a stream of the device's.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::staging::Staging;
use super::{Gpu, GpuEvent, Inner};
use crate::memory::device::{Address, Arguments, DeviceError, Event, Launch, Result, Stream};
use crate::op::Gemm;
use cudarc::driver::sys::{CUstream, CUstream_flags};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// A stream that runs beside all others: it does not wait for the default one, nor that for it.
pub struct GpuStream {
    gpu: Gpu,
    handle: CUstream,
    staging: Mutex<Staging>,
}

// SAFETY: a handle of the driver's, which any thread may use; staging is behind a lock.
unsafe impl Send for GpuStream {}
// SAFETY: as above.
unsafe impl Sync for GpuStream {}

impl GpuStream {
    pub(super) fn new(gpu: &Gpu) -> Result<GpuStream> {
        let staging = Mutex::new(Staging::new(gpu)?);
        let (mut handle, flags) = (std::ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: a live output.
        gpu.0.call("cuStreamCreate", |table| unsafe { (table.stream_create)(&mut handle, flags) })?;
        Ok(GpuStream { gpu: gpu.clone(), handle, staging })
    }

    /// The driver's handle, for libraries that put work into the stream, such as NCCL. It lives as long as this does.
    pub fn raw(&self) -> *mut c_void {
        self.handle.cast()
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        // What fails here fails because the device has.
        if self.gpu.0.enter().is_ok() {
            // SAFETY: this value's own. Copies from and to the staging memory, which goes next, are waited for.
            unsafe {
                (self.gpu.0.driver.table.stream_synchronize)(self.handle);
                (self.gpu.0.driver.table.stream_destroy)(self.handle);
            }
        }
    }
}

impl Stream for GpuStream {
    unsafe fn launch(&self, launch: &Launch, arguments: Arguments<'_>) -> Result<()> {
        let inner = &self.gpu.0;
        let kernel = inner.kernel(launch.kernel)?;
        if let Some(reason) = Inner::refusal(launch, &kernel, inner.facts.shared_bytes) {
            return Err(inner.error(launch.kernel, reason));
        }
        let Launch { grid: [x, y, z], threads, shared, .. } = *launch;
        let (function, parameters, extra) = (kernel.function, arguments.pointers.as_mut_ptr(), std::ptr::null_mut());
        inner.enter()?;
        // SAFETY: the caller's promise for the arguments, which the driver copies before it returns.
        let code = unsafe {
            (inner.driver.table.launch)(function, x, y, z, threads, 1, 1, shared, self.handle, parameters, extra)
        };
        let call = || format!("cuLaunchKernel {}", launch.kernel);
        inner.check("cuLaunchKernel", code).map_err(|error| DeviceError { call: call(), ..error })
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.gpu.0.call("cuMemcpyDtoDAsync", |table| unsafe { (table.copy_on_device)(to, from, bytes, self.handle) })
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        self.gpu.0.enter()?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise, and a stream of this device's.
        unsafe { staging.upload(&self.gpu, self.handle, from, to) }
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.gpu.0.enter()?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise, and a stream of this device's.
        unsafe { staging.download(&self.gpu, self.handle, from, to) }
    }

    unsafe fn upload_pinned(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (call, from) = ("cuMemcpyHtoDAsync", from as *const c_void);
        // SAFETY: the caller's promise.
        self.gpu.0.call(call, |table| unsafe { (table.copy_to_device)(to, from, bytes, self.handle) })
    }

    unsafe fn download_pinned(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (call, to) = ("cuMemcpyDtoHAsync", to as *mut c_void);
        // SAFETY: the caller's promise.
        self.gpu.0.call(call, |table| unsafe { (table.copy_to_host)(to, from, bytes, self.handle) })
    }

    unsafe fn memset(&self, to: Address, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.gpu.0.call("cuMemsetD8Async", |table| unsafe { (table.set)(to, value, bytes, self.handle) })
    }

    unsafe fn blas_gemm(
        &self,
        op: &Gemm,
        a: Address,
        b: Address,
        c: Address,
        workspace: Address,
        workspace_bytes: usize,
    ) -> Result<bool> {
        let Some(products) = &self.gpu.0.products else {
            if op.m > 0 && op.n > 0 && op.k > 0 {
                self.gpu.0.fell_back(op, || "there is no cuBLASLt".into());
            }
            return Ok(false);
        };
        self.gpu.0.enter()?;
        // SAFETY: the caller's promise, and a stream of this device's.
        unsafe { products.product(&self.gpu, self.handle.cast(), op, [a, b, c], (workspace, workspace_bytes)) }
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream.
        self.gpu.0.call("cuStreamSynchronize", |table| unsafe { (table.stream_synchronize)(self.handle) })
    }

    fn record_event(&self) -> Result<Box<dyn Event>> {
        let event = GpuEvent::timed(&self.gpu)?;
        // SAFETY: a live stream of this device's.
        unsafe { event.record(self.handle)? };
        Ok(Box::new(event))
    }

    fn wait_event(&self, mark: &dyn Event) -> Result<()> {
        let event = mark.as_any().downcast_ref::<GpuEvent>();
        let event = event.ok_or_else(|| self.gpu.0.error("cuStreamWaitEvent", "the event is another device's"))?;
        // SAFETY: a live stream of this device's.
        unsafe { event.hold_back(&self.gpu, self.handle) }
    }
}

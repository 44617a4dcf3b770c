//! Memory of the host that devices reach, and what the driver says of the device's.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::{Gpu, Inner};
use crate::device::{Address, DeviceError, Result};
use std::ptr::NonNull;

/// What the driver says of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody uses.
    pub free_bytes: u64,
    /// All bytes that can be asked for.
    pub total_bytes: u64,
}

impl MemoryInfo {
    /// Bytes in use, by all processes and the driver itself.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }
}

impl Inner {
    pub(super) fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: live outputs.
        self.call("cuMemGetInfo", |table| unsafe { (table.memory_info)(&mut free, &mut total) })?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    /// Pinned memory of the host, with unspecified contents, at a multiple of the size of a page.
    pub(super) fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        let mut at = std::ptr::null_mut();
        // SAFETY: a live output. Without flags the memory is mapped for all devices, as 64-bit systems have one address space.
        let done = self.call("cuMemHostAlloc", |table| unsafe { (table.host_allocate)(&mut at, bytes.max(1), 0) });
        done.map_err(|error| DeviceError { reason: format!("{bytes} bytes: {}", error.reason), ..error })?;
        match at.is_null() {
            true => Err(self.error("cuMemHostAlloc", "it lies at address 0")),
            false => Ok(at as Address),
        }
    }
}

/// Memory of the host that stays where it is: a device copies from and to it at full speed, and its kernels reach it under the
/// same address, slowly. Freed when it goes; what a device still does with it has to be done by then.
#[derive(Debug)]
pub struct Pinned {
    gpu: Gpu,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that this value owns.
unsafe impl Send for Pinned {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Pinned {}

impl Gpu {
    /// Pinned memory of zeros, at a multiple of the size of a page.
    ///
    /// # Errors
    /// The host has no such memory left, or a limit forbids it (`ulimit -l`).
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let at = self.0.allocate_pinned(bytes)? as *mut u8;
        let at = NonNull::new(at).ok_or_else(|| self.0.error("cuMemHostAlloc", "it lies at address 0"))?;
        // SAFETY: memory just made, of as many bytes.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { gpu: self.clone(), at, bytes })
    }
}

impl Pinned {
    /// Where it begins, for the host and for devices.
    pub fn address(&self) -> Address {
        self.at.as_ptr() as Address
    }

    /// Its bytes. A device that writes to them meanwhile has to be waited for first.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialised memory of this value's.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    /// Its bytes, to write. A device that uses them has to be waited for first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and lent for writing.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // What fails here fails because the device has.
        if self.gpu.0.enter().is_ok() {
            // SAFETY: made by `pinned`, and freed once.
            unsafe { (self.gpu.0.driver.table.host_free)(self.at.as_ptr().cast()) };
        }
    }
}

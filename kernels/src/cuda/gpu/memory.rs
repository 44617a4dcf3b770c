//! Memory of the host that devices reach, and what the driver says of the device's.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::{Gpu, Inner};
use crate::memory::device::{Address, DeviceError, Result};
use crate::memory::ledger::PAGE_BYTES;
use std::ptr::NonNull;

const PAGE: usize = PAGE_BYTES as usize;

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
    ///
    /// The driver promises no alignment: a driver of CUDA 13 cuts small allocations out of larger ones at any multiple of 512
    /// bytes. A page more is allocated, and the driver's own address is kept in the eight bytes before the one returned.
    pub(super) fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        let all = bytes.saturating_add(PAGE);
        let mut at = std::ptr::null_mut();
        // SAFETY: a live output. Without flags the memory is mapped for all devices, as 64-bit systems have one address space.
        let done = self.call("cuMemHostAlloc", |table| unsafe { (table.host_allocate)(&mut at, all, 0) });
        done.map_err(|error| DeviceError { reason: format!("{bytes} bytes: {}", error.reason), ..error })?;
        let own = at as Address;
        if own == 0 || !own.is_multiple_of(8) {
            return Err(self.error("cuMemHostAlloc", format!("it lies at address {own}")));
        }
        let aligned = own - own % PAGE as Address + PAGE as Address;
        // SAFETY: 8 to 4096 bytes lie between the two addresses, and `bytes` behind the second one.
        unsafe { (aligned as *mut Address).sub(1).write(own) };
        Ok(aligned)
    }

    /// Frees what [`Inner::allocate_pinned`] has returned, once, when no copy uses it any more. What fails here fails because
    /// the device has.
    pub(super) fn free_pinned(&self, address: Address) {
        if self.enter().is_ok() {
            // SAFETY: written by `allocate_pinned`.
            let own = unsafe { (address as *const Address).sub(1).read() };
            // SAFETY: the driver's own address.
            unsafe { (self.driver.table.host_free)(own as *mut _) };
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
        self.gpu.0.free_pinned(self.at.as_ptr() as Address);
    }
}

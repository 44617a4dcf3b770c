//! The way between a slice of the host and the device: through pinned memory, so that copies run while the host goes on.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::{Gpu, GpuEvent, Pinned};
use crate::memory::device::{Address, Event, Result};
use cudarc::driver::sys::CUstream;

/// Bytes of a slot. Two of them keep both sides of a long copy busy.
pub(super) const SLOT_BYTES: usize = 4 << 20;
/// What begins in a slot begins at a multiple of this.
const ALIGNMENT: usize = 256;

/// Pinned memory that copies take turns in.
struct Slot {
    memory: Pinned,
    /// Behind the last copy that uses the slot.
    done: GpuEvent,
    /// Bytes taken since the slot was last empty.
    taken: usize,
}

/// Two slots. Short uploads share one, so that the host waits for the device only once per [`SLOT_BYTES`].
pub(super) struct Staging {
    slots: [Slot; 2],
    current: usize,
}

impl Slot {
    fn new(gpu: &Gpu) -> Result<Slot> {
        Ok(Slot { memory: gpu.pinned(SLOT_BYTES)?, done: GpuEvent::plain(gpu)?, taken: 0 })
    }

    /// Waits for the copies that use it.
    fn empty(&mut self) -> Result<()> {
        if self.taken > 0 {
            self.done.wait()?;
            self.taken = 0;
        }
        Ok(())
    }
}

impl Staging {
    pub(super) fn new(gpu: &Gpu) -> Result<Staging> {
        Ok(Staging { slots: [Slot::new(gpu)?, Slot::new(gpu)?], current: 0 })
    }

    /// Copies to the device; returns when `from` may change.
    ///
    /// # Safety
    /// `to` is the device's, of as many bytes; the stream is its and lives.
    pub(super) unsafe fn upload(&mut self, gpu: &Gpu, stream: CUstream, from: &[u8], to: Address) -> Result<()> {
        for (i, chunk) in from.chunks(SLOT_BYTES).enumerate() {
            if self.slots[self.current].taken + chunk.len() > SLOT_BYTES {
                self.current = 1 - self.current;
                self.slots[self.current].empty()?;
            }
            let slot = &mut self.slots[self.current];
            let at = slot.taken;
            slot.memory.bytes_mut()[at..at + chunk.len()].copy_from_slice(chunk);
            // Taken even if what follows fails: the copy may have begun.
            slot.taken = (at + chunk.len()).next_multiple_of(ALIGNMENT);
            let (host, device) = (slot.memory.address() + at as Address, to + (i * SLOT_BYTES) as Address);
            // SAFETY: both hold as many bytes; nothing writes to the slot's before it was waited for.
            unsafe {
                let code = (gpu.0.driver.table.copy_to_device)(device, host as *const _, chunk.len(), stream);
                gpu.0.check("cuMemcpyHtoDAsync", code)?;
                slot.done.record(stream)?;
            }
        }
        Ok(())
    }

    /// Copies to the host, and waits until that is done.
    ///
    /// # Safety
    /// `from` is the device's, of as many bytes; the stream is its and lives.
    pub(super) unsafe fn download(&mut self, gpu: &Gpu, stream: CUstream, from: Address, to: &mut [u8]) -> Result<()> {
        self.slots.iter_mut().try_for_each(Slot::empty)?;
        let bytes = to.len();
        let length = |chunk: usize| (bytes - chunk * SLOT_BYTES).min(SLOT_BYTES);
        let start = |slots: &mut [Slot; 2], chunk: usize| {
            let slot = &mut slots[chunk % 2];
            slot.taken = SLOT_BYTES;
            let (host, device) = (slot.memory.address() as *mut _, from + (chunk * SLOT_BYTES) as Address);
            // SAFETY: both hold as many bytes; the slot is empty.
            unsafe {
                let code = (gpu.0.driver.table.copy_to_host)(host, device, length(chunk), stream);
                gpu.0.check("cuMemcpyDtoHAsync", code)?;
                slot.done.record(stream)
            }
        };
        let chunks = bytes.div_ceil(SLOT_BYTES);
        if chunks > 0 {
            start(&mut self.slots, 0)?;
        }
        for chunk in 0..chunks {
            // The next one runs while this one is taken out.
            if chunk + 1 < chunks {
                start(&mut self.slots, chunk + 1)?;
            }
            let slot = &mut self.slots[chunk % 2];
            slot.empty()?;
            let at = chunk * SLOT_BYTES;
            to[at..at + length(chunk)].copy_from_slice(&slot.memory.bytes()[..length(chunk)]);
        }
        Ok(())
    }
}

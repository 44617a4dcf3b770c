//! Activations that live elsewhere: what forward has kept of a layer goes after forward and comes back before backward.

use super::Resources;
use super::offloaded_tensor::{Copying, Pages};
use crate::action::Kept;
use crate::compute::error::{Result, StepError};
use crate::config::MemoryTier;
use crate::model::layers::Saved;
use crate::model::layers::eviction::places_of;
use std::collections::VecDeque;
use zbench_kernels::{Buffer, Category};

/// Which of a layer's saved tensors are elsewhere, and what of them is on its way, in the order of their buffers.
#[derive(Default)]
pub struct OffloadedActivations {
    /// Places of the block, as a set of bits.
    away: u16,
    going: VecDeque<OnTheWay>,
    coming: VecDeque<OnTheWay>,
}

enum OnTheWay {
    /// Between the device and the host's memory. Where it comes from is kept until it has arrived.
    Copied(Buffer, Copying),
    /// Between the host's memory and the disk.
    Pages(Pages),
}

impl OffloadedActivations {
    /// Begins to take a layer's saved tensors to their tier. In their place stands where they are.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn store(&mut self, res: Resources<'_>, tier: MemoryTier, saved: &mut Saved, what: Kept) -> Result<()> {
        let places = places_of(what) & saved.places() & !self.away;
        self.away |= places;
        saved.each_buffer(places, &mut |buffer| {
            let (dtype, len) = (buffer.dtype(), buffer.len());
            if tier == MemoryTier::Host {
                let mut copy = res.alloc_at(tier, Category::Activations, dtype, len)?;
                let copying = res.download(Category::Activations, buffer.view(), &mut copy, 0..len)?;
                self.going.push_back(OnTheWay::Copied(std::mem::replace(buffer, copy), copying));
                return Ok(());
            }
            let mut pages = res.host_pages(dtype, len)?;
            res.download(Category::Activations, buffer.view(), &mut pages, 0..len)?.wait()?;
            res.count_move(Category::Activations, MemoryTier::Host, MemoryTier::Disk, buffer);
            let place = res.alloc_at(tier, Category::Activations, dtype, len)?;
            self.going.push_back(OnTheWay::Pages(Pages::write(res, &place, pages)?));
            *buffer = place;
            Ok(())
        })
    }

    /// Waits until they are there.
    ///
    /// # Errors
    /// The disk or the device has failed.
    pub fn wait_store(&mut self, res: Resources<'_>) -> Result<()> {
        self.going.drain(..).try_for_each(|going| going.arrive(res).map(drop))
    }

    /// Begins to bring them back.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn fetch(&mut self, res: Resources<'_>, tier: MemoryTier, saved: &mut Saved) -> Result<()> {
        self.wait_store(res)?;
        saved.each_buffer(self.away, &mut |buffer| {
            if tier == MemoryTier::Host {
                let copying = back(res, buffer)?;
                self.coming.push_back(copying);
                return Ok(());
            }
            let pages = res.host_pages(buffer.dtype(), buffer.len())?;
            res.count_move(Category::Activations, MemoryTier::Disk, MemoryTier::Host, buffer);
            self.coming.push_back(OnTheWay::Pages(Pages::read(res, buffer, pages)?));
            Ok(())
        })
    }

    /// Waits until they are on the device; nothing where they are.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn land(&mut self, res: Resources<'_>, saved: &mut Saved) -> Result<()> {
        if self.coming.is_empty() {
            return Ok(());
        }
        let none = || StepError::Bug("a saved tensor is missing on the disk");
        saved.each_buffer(std::mem::take(&mut self.away), &mut |buffer| {
            let Some(pages) = self.coming.pop_front().ok_or_else(none)?.arrive(res)? else { return Ok(()) };
            *buffer = pages;
            back(res, buffer)?.arrive(res).map(drop)
        })
    }
}

/// Begins to put a buffer of the host on the device.
fn back(res: Resources<'_>, buffer: &mut Buffer) -> Result<OnTheWay> {
    let len = buffer.len();
    let mut copy = res.alloc(Category::Activations, buffer.dtype(), len)?;
    let copying = res.upload(Category::Activations, buffer, 0..len, copy.view_mut())?;
    Ok(OnTheWay::Copied(std::mem::replace(buffer, copy), copying))
}

impl OnTheWay {
    /// Waits for it. Of a copy the device waits, and where it came from is given back; pages are returned.
    fn arrive(self, res: Resources<'_>) -> Result<Option<Buffer>> {
        match self {
            OnTheWay::Copied(_from, copying) => copying.before_device(res).map(|()| None),
            OnTheWay::Pages(pages) => pages.wait().map(Some),
        }
    }
}

//! A tensor that lives in a memory tier, and its copy where it is used.

use super::Resources;
use crate::compute::error::{Result, StepError};
use crate::config::MemoryTier;
use crate::memory::host_link::Way;
use crate::memory::moves::{DryTransfer, Move};
use std::ops::Range;
use std::sync::Arc;
use zbench_kernels::disk::Transfer;
use zbench_kernels::memory::device::Event;
use zbench_kernels::{Buffer, Category, DType, View, ViewMut};

/// A tensor of a tier. Where it is used elsewhere, a part of it is copied there.
pub struct OffloadedTensor {
    tier: MemoryTier,
    category: Category,
    dtype: DType,
    /// Away while a collective reads it.
    stored: Option<Buffer>,
    used: Option<Used>,
}

/// The copy of a part, where it is used.
struct Used {
    part: Range<usize>,
    state: Flight,
}

/// A buffer that may be on its way.
pub enum Flight {
    /// It is where it is used.
    Here(Buffer),
    /// It is copied there, or from there to where it lives.
    Copying(Buffer, Copying),
    /// It comes from the disk into host memory.
    Coming(Pages),
    /// It goes from host memory to the disk.
    Going(Pages),
}

/// A copy between the device and the host's memory, which goes on until somebody waits for it.
///
/// Buffers of the host wait for their copies by themselves ([`zbench_kernels::CopyStreams`]). The device's memory is used in the order
/// of its stream: one of the two methods comes before the device reads what was copied, and before memory is given back that is being
/// copied.
#[must_use = "the device does not wait for it by itself"]
pub struct Copying(Option<Arc<dyn Event>>);

impl Copying {
    /// What the device is asked for from now on comes after the copy.
    ///
    /// # Errors
    /// The device has failed.
    pub fn before_device(self, res: Resources<'_>) -> Result<()> {
        self.0.map_or(Ok(()), |event| Ok(res.kernels.wait_event(&*event)?))
    }

    /// Waits for it: what the host does from now on comes after the copy, and what the device is asked for, too.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait(self) -> Result<()> {
        self.0.map_or(Ok(()), |event| Ok(event.wait().map_err(zbench_kernels::KernelError::from)?))
    }

    /// The one or the other, by who uses what was copied.
    fn before(self, res: Resources<'_>, at: MemoryTier) -> Result<()> {
        if at == MemoryTier::Device { self.before_device(res) } else { self.wait() }
    }
}

/// Pages of host memory between memory and disk.
pub enum Pages {
    Transfer(Transfer),
    /// Nothing carries them: a dry run.
    Dry(Buffer, DryTransfer),
}

impl Pages {
    /// Begins to fill pages from their place on the disk. The move was counted just before.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn read(res: Resources<'_>, place: &Buffer, pages: Buffer) -> Result<Pages> {
        Ok(match res.tiers.file() {
            Some(file) => Pages::Transfer(file.start_read(place.offset(), pages)?),
            None => Pages::Dry(pages, res.tiers.moves().last_transfer()),
        })
    }

    /// Begins to write pages to their place on the disk. The move was counted just before.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn write(res: Resources<'_>, place: &Buffer, pages: Buffer) -> Result<Pages> {
        Ok(match res.tiers.file() {
            Some(file) => Pages::Transfer(file.start_write(place.offset(), pages)?),
            None => Pages::Dry(pages, res.tiers.moves().last_transfer()),
        })
    }

    /// Waits for them.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn wait(self) -> Result<Buffer> {
        match self {
            Pages::Transfer(transfer) => Ok(transfer.wait()?),
            Pages::Dry(buffer, transfer) => {
                transfer.wait();
                Ok(buffer)
            }
        }
    }
}

impl Flight {
    /// Waits for it where it is used; of a copy to the device the device waits, not the host. What comes from the disk for the device
    /// is copied there now.
    ///
    /// # Errors
    /// The disk has failed, or there is no memory on the device.
    pub fn land(self, res: Resources<'_>, at: MemoryTier, what: Category) -> Result<Buffer> {
        let mut pages = match self {
            Flight::Here(buffer) => return Ok(buffer),
            Flight::Copying(buffer, copying) => {
                copying.before(res, at)?;
                return Ok(buffer);
            }
            Flight::Coming(pages) => pages.wait()?,
            Flight::Going(pages) => return pages.wait(),
        };
        if at == MemoryTier::Host {
            return Ok(pages);
        }
        let len = pages.len();
        let mut copy = res.alloc_at(at, Category::Communication, pages.dtype(), len)?;
        res.upload(what, &mut pages, 0..len, copy.view_mut())?.before_device(res)?;
        Ok(copy)
    }

    /// Waits until nobody uses the copy; its memory is given back.
    fn wait_store(self, res: Resources<'_>) -> Result<()> {
        match self {
            Flight::Here(_) => Ok(()),
            Flight::Copying(_copy, copying) => copying.before_device(res),
            Flight::Coming(pages) | Flight::Going(pages) => pages.wait().map(drop),
        }
    }
}

impl OffloadedTensor {
    /// A tensor with unspecified contents.
    ///
    /// # Errors
    /// Its tier is full.
    pub fn new(
        res: Resources<'_>,
        tier: MemoryTier,
        category: Category,
        dtype: DType,
        len: usize,
    ) -> Result<OffloadedTensor> {
        let stored = Some(res.alloc_at(tier, category, dtype, len)?);
        Ok(OffloadedTensor { tier, category, dtype, stored, used: None })
    }

    fn stored(&self) -> Result<&Buffer> {
        self.stored.as_ref().ok_or_else(away)
    }

    /// All of it, where it lies in memory: what lives on a disk is there while it is [`open`](OffloadedTensor::open).
    pub fn buffer(&self) -> Option<&Buffer> {
        match (self.tier, &self.used) {
            (MemoryTier::Disk, Some(Used { state: Flight::Here(buffer), .. })) => Some(buffer),
            (MemoryTier::Disk, _) => None,
            _ => self.stored.as_ref(),
        }
    }

    /// The same for writing.
    pub fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match (self.tier, &mut self.used) {
            (MemoryTier::Disk, Some(Used { state: Flight::Here(buffer), .. })) => Some(buffer),
            (MemoryTier::Disk, _) => None,
            _ => self.stored.as_mut(),
        }
    }

    /// Brings what lives on a disk into host memory, outside of a step.
    ///
    /// # Errors
    /// There is no memory for it, or the disk has failed.
    pub fn open(&mut self, res: Resources<'_>) -> Result<()> {
        if self.tier != MemoryTier::Disk {
            return Ok(());
        }
        let all = 0..self.stored()?.len();
        res.tiers.uncounted(|| {
            self.fetch(res, MemoryTier::Host, all, true)?;
            self.land(res, MemoryTier::Host)
        })
    }

    /// Frees that memory; with `writes`, when the disk has what was changed.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn close(&mut self, res: Resources<'_>, writes: bool) -> Result<()> {
        if self.tier != MemoryTier::Disk {
            return Ok(());
        }
        res.tiers.uncounted(|| {
            if writes {
                self.store(res, MemoryTier::Host)?;
            }
            self.wait_store(res)
        })
    }

    /// Takes the memory of what lives on the device, for a collective that reads it.
    pub fn take(&mut self) -> Option<Buffer> {
        self.stored.take()
    }

    /// Whether it was taken.
    pub fn is_taken(&self) -> bool {
        self.stored.is_none()
    }

    /// Gives it back.
    pub fn put(&mut self, buffer: Buffer) {
        self.stored = Some(buffer);
    }

    /// Begins to copy all of it to where it is used, into a buffer of its own.
    ///
    /// # Errors
    /// There is no memory for the copy, or the disk has failed.
    pub fn copy_to(&mut self, res: Resources<'_>, at: MemoryTier) -> Result<Flight> {
        self.copy_part(res, at, 0..self.stored()?.len())
    }

    fn copy_part(&mut self, res: Resources<'_>, at: MemoryTier, part: Range<usize>) -> Result<Flight> {
        let stored = self.stored.as_mut().ok_or_else(away)?;
        if self.tier == MemoryTier::Disk {
            let pages = res.host_pages(stored.dtype(), stored.len())?;
            res.count_move(self.category, MemoryTier::Disk, MemoryTier::Host, &pages);
            return Ok(Flight::Coming(Pages::read(res, stored, pages)?));
        }
        let mut copy = res.alloc_at(at, Category::Communication, stored.dtype(), part.len())?;
        let copying = match at {
            MemoryTier::Device => res.upload(self.category, stored, part, copy.view_mut())?,
            _ => res.download(self.category, stored.slice(part.clone()), &mut copy, 0..part.len())?,
        };
        Ok(Flight::Copying(copy, copying))
    }

    /// Begins to bring a part of it to where it is used; nothing where it lives there. Without `reads` its contents do not
    /// matter: all of the part will be written.
    ///
    /// # Errors
    /// As of [`OffloadedTensor::copy_to`].
    pub fn fetch(&mut self, res: Resources<'_>, at: MemoryTier, part: Range<usize>, reads: bool) -> Result<()> {
        if at == self.tier {
            return Ok(());
        }
        let state = match reads {
            true => self.copy_part(res, at, part.clone())?,
            false if at == MemoryTier::Host => Flight::Here(res.host_pages(self.dtype, part.len())?),
            false => Flight::Here(res.alloc_at(at, Category::Communication, self.dtype, part.len())?),
        };
        self.used = Some(Used { part, state });
        Ok(())
    }

    /// Waits for what was fetched.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn land(&mut self, res: Resources<'_>, at: MemoryTier) -> Result<()> {
        if let Some(Used { part, state }) = self.used.take() {
            self.used = Some(Used { part, state: Flight::Here(state.land(res, at, self.category)?) });
        }
        Ok(())
    }

    /// A part of it where it is used, for reading and writing. What was fetched has landed.
    ///
    /// # Errors
    /// It was not fetched: a bug.
    pub fn part_mut(&mut self, at: MemoryTier, part: Range<usize>) -> Result<ViewMut<'_>> {
        if at == self.tier {
            return Ok(self.stored.as_mut().ok_or_else(away)?.slice_mut(part));
        }
        match &mut self.used {
            Some(Used { part: fetched, state: Flight::Here(buffer) }) => {
                Ok(buffer.slice_mut(part.start - fetched.start..part.end - fetched.start))
            }
            _ => Err(away()),
        }
    }

    /// Begins to take what was fetched back to where it lives.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn store(&mut self, res: Resources<'_>, from: MemoryTier) -> Result<()> {
        let Some(Used { part, state }) = self.used.take() else { return Ok(()) };
        let mut copy = state.land(res, from, self.category)?;
        if self.tier == MemoryTier::Disk {
            if from != MemoryTier::Host {
                let len = copy.len();
                let mut pages = res.host_pages(copy.dtype(), len)?;
                res.download(self.category, copy.view(), &mut pages, 0..len)?.wait()?;
                copy = pages;
            }
            res.count_move(self.category, MemoryTier::Host, MemoryTier::Disk, &copy);
            let pages = Pages::write(res, self.stored()?, copy)?;
            self.used = Some(Used { part, state: Flight::Going(pages) });
            return Ok(());
        }
        let (stored, len) = (self.stored.as_mut().ok_or_else(away)?, copy.len());
        let copying = match from {
            MemoryTier::Device => res.download(self.category, copy.view(), stored, part.clone())?,
            _ => res.upload(self.category, &mut copy, 0..len, stored.slice_mut(part.clone()))?,
        };
        self.used = Some(Used { part, state: Flight::Copying(copy, copying) });
        Ok(())
    }

    /// Waits until it is there, and frees the copy.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn wait_store(&mut self, res: Resources<'_>) -> Result<()> {
        match self.used.take() {
            Some(Used { state, .. }) => state.wait_store(res),
            None => Ok(()),
        }
    }
}

fn away() -> StepError {
    StepError::Bug("a tensor is used where it has not been brought")
}

impl Resources<'_> {
    /// Pages of host memory, which a disk can read and write, with unspecified contents.
    pub(super) fn host_pages(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let host = self.tiers.arena(MemoryTier::Host).ok_or_else(away)?;
        Ok(host.alloc_pages(Category::Communication, dtype, len)?)
    }

    /// Counts a move of all of a buffer.
    pub fn count_move(&self, what: Category, from: MemoryTier, to: MemoryTier, buffer: &Buffer) {
        self.count_bytes(what, from, to, buffer.len() * buffer.dtype().size());
    }

    fn count_bytes(&self, what: Category, from: MemoryTier, to: MemoryTier, bytes: usize) {
        self.tiers.moves().count(Move { what, from, to, bytes: bytes as u64 });
    }

    /// A copy within one memory, which is over when it returns, unless a link is emulated.
    fn over_link(&self, way: Way, bytes: usize, copy: impl FnOnce() -> Result<()>) -> Result<Option<Arc<dyn Event>>> {
        let Some(link) = self.tiers.link() else { return copy().map(|()| None) };
        let begun = link.begin(way, bytes as u64);
        copy()?;
        Ok(Some(link.carried(begun)))
    }

    /// Begins to copy a part of a buffer of the host to the device.
    ///
    /// # Errors
    /// The device has failed.
    pub fn upload(&self, what: Category, from: &mut Buffer, part: Range<usize>, to: ViewMut<'_>) -> Result<Copying> {
        let bytes = part.len() * from.dtype().size();
        self.count_bytes(what, MemoryTier::Host, MemoryTier::Device, bytes);
        Ok(Copying(match self.tiers.streams() {
            Some(streams) => Some(streams.upload(self.kernels, from, part, to)?),
            None => self.over_link(Way::ToDevice, bytes, || Ok(self.kernels.copy(from.slice(part), to)?))?,
        }))
    }

    /// Begins to copy from the device to a part of a buffer of the host.
    ///
    /// # Errors
    /// The device has failed.
    pub fn download(&self, what: Category, from: View<'_>, to: &mut Buffer, part: Range<usize>) -> Result<Copying> {
        let bytes = part.len() * from.dtype().size();
        self.count_bytes(what, MemoryTier::Device, MemoryTier::Host, bytes);
        Ok(Copying(match self.tiers.streams() {
            Some(streams) => Some(streams.download(self.kernels, from, to, part)?),
            None => self.over_link(Way::ToHost, bytes, || Ok(self.kernels.copy(from, to.slice_mut(part))?))?,
        }))
    }
}

//! Data in a rank's buffers. Those in the host's memory are written and compared in place; those of a device are written and
//! compared on the host, and copied in blocks.

use super::CollectiveError;
use super::data::{self, Expected, Mismatch, Pattern};
use std::ops::Range;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, View, ViewMut};

/// Elements copied at a time.
const BLOCK: usize = 4 << 20;

/// Access to a rank's buffers.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    kernels: &'a dyn Kernels,
    host_arena: &'a Arena,
    block: usize,
}

impl<'a> Memory<'a> {
    /// For buffers of these kernels; copies to and from a device pass through `host_arena`.
    pub fn new(kernels: &'a dyn Kernels, host_arena: &'a Arena) -> Memory<'a> {
        Memory { kernels, host_arena, block: BLOCK }
    }

    /// A buffer on the host for one block of `len` elements.
    fn stage(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError> {
        Ok(self.host_arena.alloc(Category::Workspace, dtype, len.min(self.block))?)
    }

    /// The blocks of so many elements.
    fn blocks(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let block = self.block;
        (0..len).step_by(block).map(move |from| from..len.min(from + block))
    }

    /// Writes each block on the host and copies it to the device.
    fn upload_blocks(
        &self,
        into: &mut ViewMut<'_>,
        mut write: impl FnMut(&mut ViewMut<'_>, usize) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut stage = self.stage(into.dtype(), into.len())?;
        for range in self.blocks(into.len()) {
            write(&mut stage.slice_mut(0..range.len()), range.start)?;
            self.kernels.upload(stage.slice(0..range.len()), into.slice_mut(range))?;
        }
        Ok(())
    }

    /// As [`data::fill`].
    pub fn fill(
        &self,
        into: &mut ViewMut<'_>,
        pattern: Pattern,
        rank: usize,
        first: u64,
    ) -> Result<(), CollectiveError> {
        if into.is_on_host() {
            return Ok(data::fill(into, pattern, rank, first)?);
        }
        self.upload_blocks(into, |block, at| Ok(data::fill(block, pattern, rank, first + at as u64)?))
    }

    /// Random data all over a region, for calls that are timed and not checked: on a device one block of it again and again,
    /// since the host would take longer to make it all than what is to be measured.
    pub fn fill_repeating(
        &self,
        mut into: ViewMut<'_>,
        pattern: Pattern,
        rank: usize,
        first: u64,
    ) -> Result<(), CollectiveError> {
        if into.is_on_host() {
            return self.fill(&mut into, pattern, rank, first);
        }
        let mut done = into.len().min(self.block);
        self.fill(&mut into.slice_mut(0..done), pattern, rank, first)?;
        while done < into.len() {
            let (made, rest) = into.reborrow().split_at(done);
            let len = done.min(rest.len());
            self.kernels.copy(made.as_view().slice(0..len), rest.into_slice(0..len))?;
            done += len;
        }
        Ok(())
    }

    /// As [`data::poison`].
    pub fn poison(&self, into: &mut ViewMut<'_>) -> Result<(), CollectiveError> {
        if into.is_on_host() {
            return Ok(data::poison(into)?);
        }
        self.upload_blocks(into, |block, _| Ok(data::poison(block)?))
    }

    /// As [`data::compare`].
    pub fn compare(
        &self,
        found: View<'_>,
        range: Range<usize>,
        guard: Range<usize>,
        expected: impl Fn(u64) -> Expected,
    ) -> Result<Mismatch, CollectiveError> {
        if found.is_on_host() {
            return Ok(data::compare(found, range, guard, expected)?);
        }
        let mut stage = self.stage(found.dtype(), range.len().max(guard.len()))?;
        let mut all = Mismatch::default();
        for block in self.blocks(range.len()) {
            let (at, len) = (block.start, block.len());
            let there = found.slice(range.start + at..range.start + block.end);
            self.kernels.download(there, stage.slice_mut(0..len))?;
            let part = data::compare(stage.view(), 0..len, 0..0, |index| expected(at as u64 + index))?;
            all.join(part, at as u64);
        }
        let len = guard.len();
        self.kernels.download(found.slice(guard.clone()), stage.slice_mut(0..len))?;
        all.join(data::compare(stage.view(), 0..0, 0..len, expected)?, (guard.start - range.start) as u64);
        Ok(all)
    }
}

#[cfg(test)]
impl Memory<'_> {
    /// The same in smaller blocks.
    pub fn of_blocks(self, block: usize) -> Self {
        Memory { block, ..self }
    }
}

//! The memory that calls work on. Successive iterations use successive slots of a region larger than the last-level
//! cache, so that a cache does not flatter the result; with hot buffers all use one slot.

use super::CollectiveError;
use super::data::Pattern;
use super::memory::Memory;
use std::cell::Cell;
use zbench_kernels::{Arena, Buffer, Category, DType, View, ViewMut};

/// Elements behind a result that nobody may write.
pub const GUARD: usize = 16;

/// Slots begin a whole number of these apart: neighbouring lines, which hardware fetches together, are in one slot.
const STRIDE_BYTES: usize = 4096 + 64;

/// A rank's two regions.
pub struct Buffers {
    send: Buffer,
    recv: Buffer,
    unalign: usize,
    next: Cell<usize>,
}

/// The memory of one call.
pub struct Slot<'a> {
    /// What is given.
    pub send: View<'a>,
    /// What is got.
    pub recv: ViewMut<'a>,
}

impl Buffers {
    /// Regions for buffers of up to `largest` elements that rotate through `rotation_bytes`, filled with random numbers.
    pub fn new(
        arena: &Arena,
        memory: Memory<'_>,
        dtype: DType,
        largest: usize,
        rotation_bytes: u64,
        unalign: usize,
        fill: (Pattern, usize),
    ) -> Result<Buffers, CollectiveError> {
        let rotation = usize::try_from(rotation_bytes).unwrap_or(usize::MAX) / dtype.size();
        let len = largest.saturating_add(unalign + GUARD).max(rotation);
        let region = || arena.alloc(Category::Communication, dtype, len);
        let (mut send, mut recv) = (region()?, region()?);
        let (pattern, rank) = fill;
        memory.fill_repeating(send.view_mut(), pattern, rank, 0)?;
        memory.fill_repeating(recv.view_mut(), pattern, rank, len as u64)?;
        Ok(Buffers { send, recv, unalign, next: Cell::new(0) })
    }

    pub fn dtype(&self) -> DType {
        self.send.dtype()
    }

    /// How many slots of `len` elements there are.
    pub fn slots(&self, len: usize) -> usize {
        (self.send.len() / self.stride(len)).max(1)
    }

    fn stride(&self, len: usize) -> usize {
        let bytes = (len + self.unalign + GUARD) * self.dtype().size();
        bytes.next_multiple_of(STRIDE_BYTES) / self.dtype().size()
    }

    /// The slot after the one given out last, with room for `len` elements; always the same one where `hot`.
    pub fn next(&mut self, len: usize, hot: bool) -> Slot<'_> {
        let index = if hot { 0 } else { self.next.get() % self.slots(len) };
        self.next.set(index + 1);
        self.slot(len, index)
    }

    /// The first slot, where data is checked.
    pub fn first(&mut self, len: usize) -> Slot<'_> {
        self.slot(len, 0)
    }

    /// What is received in the first slot, guard included.
    pub fn receiving(&mut self, len: usize) -> ViewMut<'_> {
        self.slot(len, 0).recv
    }

    /// What is given in the first slot.
    pub fn sending(&mut self, len: usize) -> ViewMut<'_> {
        self.send.slice_mut(self.unalign..self.unalign + len)
    }

    fn slot(&mut self, len: usize, index: usize) -> Slot<'_> {
        let from = index * self.stride(len) + self.unalign;
        // The last slot's stride may reach over the end; what it holds does not.
        let range = from..(from + len + GUARD).min(self.send.len());
        Slot { send: self.send.slice(range.clone()), recv: self.recv.slice_mut(range) }
    }
}

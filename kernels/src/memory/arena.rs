#![allow(unsafe_code, reason = "buffers are addresses in a region")]

use crate::GRANULE_BYTES;
use crate::memory::device::Device;
use crate::memory::ledger::{Category, Ledger, MemoryDelta, PAGE_BYTES, multiple_of};
use crate::memory::region::{ArenaError, Region, address_space_left};
use crate::memory::transfer::UnderWay;
use crate::memory::view::Extent;
use crate::{DType, View, ViewMut};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A request that the arena's capacity does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requested} bytes of {category} do not fit, {live} of {capacity} bytes are in use ({})",
    .by_category.iter().map(|(c, b)| format!("{c} {b}")).collect::<Vec<_>>().join(", ")
)]
pub struct OutOfMemory {
    /// What the memory was for.
    pub category: Category,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes in use before the request.
    pub live: u64,
    /// Bytes the arena may hold.
    pub capacity: u64,
    /// Bytes in use by category.
    pub by_category: Vec<(Category, u64)>,
}

/// The memory of one rank: every byte that a step uses is asked for here, and counted.
///
/// The arena reserves address space once and places buffers in it by best fit, so that memory which was used before is
/// used again and the process's resident size follows the arena's. A capacity turns it into a card of that size.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    region: Arc<Region>,
    capacity: u64,
    /// Whether `capacity` was asked for, or is only all there is.
    bounded: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Free runs of the region: offset and bytes, by offset; adjacent ones are merged. They are few, and a list that has
    /// its room takes no block from the heap when a step asks for memory.
    free: Vec<(u64, u64)>,
    /// The end of the highest buffer ever placed.
    high_water: u64,
    ledger: Ledger,
    /// Where somebody watches: what has changed since.
    changes: Option<Vec<Change>>,
    /// Where changes are summed up: those since then.
    swing: Option<MemoryDelta>,
    /// Buffers have no place of their own, as there is no memory.
    is_placeless: bool,
}

/// From this moment on an arena had so many bytes of a category in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The moment.
    pub at: Instant,
    /// Of what.
    pub category: Category,
    /// Bytes.
    pub live: u64,
}

/// Of limited address space, an arena of which nothing is planned may use this part, and reserves twice as much.
const LIMITED_PART: u64 = 16;
/// Bytes of limited address space that an arena reserves beside what is planned: pages and runs in which nothing fits.
const SPARE: u64 = 16 << 20;

/// Free runs that an arena has room for from the beginning; a step has some tens.
const RUNS: usize = 1024;

impl Arena {
    /// An arena in host memory. With a capacity, a request that would put more than that many bytes in use fails.
    pub fn host(capacity: Option<u64>) -> Result<Arena, ArenaError> {
        Arena::over(capacity, None, Region::reserve)
    }

    /// As [`Arena::host`] for at most so many bytes in use, as a plan says: more address space is reserved where nothing limits it.
    pub fn host_for(capacity: Option<u64>, planned: u64) -> Result<Arena, ArenaError> {
        Arena::over(capacity, Some(planned), Region::reserve)
    }

    /// As [`Arena::host`] in memory that other processes can map: see [`Arena::region`] and [`Region::fd`]. Each arena
    /// takes one file descriptor.
    pub fn shared(capacity: Option<u64>) -> Result<Arena, ArenaError> {
        Arena::over(capacity, None, Region::shared)
    }

    /// As [`Arena::shared`] for at most so many bytes in use, as [`Arena::host_for`].
    pub fn shared_for(capacity: Option<u64>, planned: u64) -> Result<Arena, ArenaError> {
        Arena::over(capacity, Some(planned), Region::shared)
    }

    /// As [`Arena::host`] in the memory of a CUDA device: one allocation of so many bytes, of which no more than the
    /// capacity are in use at a time. Of a capacity that is less than half of them it takes twice, as room for fragmentation.
    ///
    /// # Errors
    /// The device has no such memory left.
    pub fn on(device: Arc<dyn Device>, capacity: Option<u64>, bytes: u64) -> Result<Arena, ArenaError> {
        let bytes = capacity.map_or(bytes, |capacity| bytes.min(capacity.saturating_mul(2).max(GRANULE_BYTES)));
        let region = Region::on(device, bytes)?;
        Ok(Arena::of(region, capacity.unwrap_or(bytes), capacity.is_some()))
    }

    /// As [`Arena::host`] in memory that is pinned for a device's copies ([`CopyStreams`](crate::CopyStreams)): one allocation of so
    /// many bytes, all of which may be in use.
    ///
    /// # Errors
    /// The host has no such memory left.
    pub fn pinned(device: Arc<dyn Device>, bytes: u64) -> Result<Arena, ArenaError> {
        let bytes = bytes.max(GRANULE_BYTES);
        Ok(Arena::of(Region::pinned(device, bytes)?, bytes, false))
    }

    /// An arena that has no memory but gives places in a file, and counts their bytes as any other. Its buffers cannot be read
    /// or computed with; [`Buffer::offset`] says which bytes of the file they are, and [`Arena::high_water`] how long it must be.
    pub fn file(capacity: Option<u64>) -> Arena {
        let region = Region::places();
        let all = region.bytes();
        Arena::of(region, capacity.unwrap_or(all), capacity.is_some())
    }

    /// The same for an arena that has no memory.
    pub(crate) fn without_places(self) -> Arena {
        self.state().is_placeless = true;
        self
    }

    fn over(
        capacity: Option<u64>,
        planned: Option<u64>,
        reserve: fn(u64) -> Result<Region, ArenaError>,
    ) -> Result<Arena, ArenaError> {
        let machine = physical_memory();
        let most = capacity.map_or(machine, |capacity| capacity.min(machine));
        // Room to spare keeps fragmentation from failing a request that the capacity allows. Address space is free unless it is limited:
        // then other arenas, stacks and the heap need their parts of it.
        let (wanted, less) = match address_space_left() {
            None => {
                let wanted = most.saturating_mul(2).max(1 << 30);
                (wanted, wanted / 4)
            }
            Some(left) => {
                let planned = planned.or(capacity).unwrap_or(left / LIMITED_PART).min(most);
                (planned.saturating_mul(2).saturating_add(SPARE), planned.saturating_add(SPARE))
            }
        };
        let region = reserve(wanted).or_else(|_| reserve(less))?;
        let capacity_of_all = machine.min(region.bytes());
        Ok(Arena::of(region, capacity.unwrap_or(capacity_of_all), capacity.is_some()))
    }

    fn of(region: Region, capacity: u64, bounded: bool) -> Arena {
        let mut free = Vec::with_capacity(RUNS);
        free.push((0, region.bytes()));
        let state = Mutex::new(State { free, ..State::default() });
        Arena(Arc::new(Inner { region: Arc::new(region), capacity, bounded, state }))
    }

    /// A buffer of `len` elements whose contents are unspecified (but initialised) bytes.
    pub fn alloc(&self, category: Category, dtype: DType, len: usize) -> Result<Buffer, OutOfMemory> {
        self.alloc_by(GRANULE_BYTES, category, dtype, len)
    }

    /// As [`Arena::alloc`] in whole pages: the buffer begins at a multiple of [`PAGE_BYTES`] in the region, and counts for a
    /// multiple of it ([`footprint_pages`](crate::footprint_pages)). A disk transfers such buffers without a copy.
    pub fn alloc_pages(&self, category: Category, dtype: DType, len: usize) -> Result<Buffer, OutOfMemory> {
        self.alloc_by(PAGE_BYTES, category, dtype, len)
    }

    fn alloc_by(&self, unit: u64, category: Category, dtype: DType, len: usize) -> Result<Buffer, OutOfMemory> {
        let mut state = self.state();
        let bytes = multiple_of(unit, dtype, len).unwrap_or(u64::MAX);
        let live = state.ledger.live_total();
        let fits = live.checked_add(bytes).is_some_and(|sum| sum <= self.0.capacity);
        let Some(offset) = fits.then(|| state.place(bytes, unit)).flatten() else {
            let by_category = Category::ALL.map(|c| (c, state.ledger.live(c))).to_vec();
            let capacity = self.0.capacity;
            return Err(OutOfMemory { category, requested: bytes, live, capacity, by_category });
        };
        state.count(category, bytes, false);
        drop(state);
        // SAFETY: `place` returned an offset with room for `bytes` inside the region, whose addresses do not wrap around. It may
        // be no memory of the host, and then the address is only counted.
        let ptr = unsafe { NonNull::new_unchecked(self.0.region.base().as_ptr().wrapping_add(offset as usize)) };
        if cfg!(debug_assertions) && self.0.region.is_writable() {
            // All bits set is a NaN in every float type, so reading what was never written shows.
            // SAFETY: the bytes are ours alone: `place` took them off the free list.
            unsafe { ptr.as_ptr().write_bytes(0xff, bytes as usize) };
        }
        let extent = Extent::new(ptr, dtype, len, self.0.region.home());
        Ok(Buffer { arena: self.clone(), extent, offset, bytes, category, copies: UnderWay::default() })
    }

    /// What is and was in use.
    pub fn ledger(&self) -> Ledger {
        self.state().ledger.clone()
    }

    /// From now on every change is written down, beginning with what is in use.
    pub fn watch(&self) {
        let at = Instant::now();
        let mut state = self.state();
        let mut changes = Vec::with_capacity(2048);
        changes.extend(Category::ALL.map(|category| Change { at, category, live: state.ledger.live(category) }));
        state.changes = Some(changes);
    }

    /// What was written down; nothing is from now on.
    pub fn watched(&self) -> Vec<Change> {
        self.state().changes.take().unwrap_or_default()
    }

    /// What `work` does to the ledger, whatever was in use before.
    pub fn record_change<T>(&self, work: impl FnOnce() -> T) -> (T, MemoryDelta) {
        self.state().swing = Some(MemoryDelta::default());
        let result = work();
        (result, self.state().swing.take().unwrap_or_default())
    }

    /// Counts a change again that was recorded, without allocating anything.
    pub fn replay_change(&self, swing: &MemoryDelta) {
        self.state().ledger.swing(swing);
    }

    /// Bytes of address space ever used: live bytes at their peak, and what fragmentation added.
    pub fn high_water(&self) -> u64 {
        self.state().high_water
    }

    /// The capacity that was asked for, if one was.
    pub fn capacity(&self) -> Option<u64> {
        self.0.bounded.then_some(self.0.capacity)
    }

    /// Keeps the memory mapped. Ranks hold each other's guards, so that one which fails while its peers read from it
    /// takes no memory away under them.
    pub fn region(&self) -> Arc<Region> {
        self.0.region.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes `bytes` from a multiple of `unit` on, from the smallest free run that holds them.
    fn place(&mut self, bytes: u64, unit: u64) -> Option<u64> {
        if bytes == 0 || self.is_placeless {
            return Some(0);
        }
        let fits = |&(start, run): &(u64, u64)| run.checked_sub(start.next_multiple_of(unit) - start) >= Some(bytes);
        let fitting = self.free.iter().enumerate().filter(|(_, free)| fits(free));
        let (place, &(start, run)) = fitting.min_by_key(|(_, (start, run))| (*run, *start))?;
        let offset = start.next_multiple_of(unit);
        // What is left of the run: before and behind.
        match (offset - start, start + run - (offset + bytes)) {
            (0, 0) => drop(self.free.remove(place)),
            (0, behind) => self.free[place] = (offset + bytes, behind),
            (before, behind) => {
                self.free[place] = (start, before);
                if behind > 0 {
                    self.free.insert(place + 1, (offset + bytes, behind));
                }
            }
        }
        self.high_water = self.high_water.max(offset + bytes);
        Some(offset)
    }

    /// Counts a request of `bytes`, or a release.
    fn count(&mut self, category: Category, bytes: u64, gives_back: bool) {
        match gives_back {
            true => self.ledger.sub(category, bytes),
            false => self.ledger.add(category, bytes),
        }
        match (&mut self.swing, gives_back) {
            (Some(swing), true) => swing.sub(category, bytes),
            (Some(swing), false) => swing.add(category, bytes),
            (None, _) => {}
        }
        if let Some(changes) = &mut self.changes {
            changes.push(Change { at: Instant::now(), category, live: self.ledger.live(category) });
        }
    }

    fn give_back(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 || self.is_placeless {
            return;
        }
        let place = self.free.partition_point(|(start, _)| *start < offset);
        let follows = place > 0 && self.free[place - 1].0 + self.free[place - 1].1 == offset;
        let precedes = self.free.get(place).is_some_and(|(start, _)| *start == offset + bytes);
        match (follows, precedes) {
            (true, true) => {
                let (_, after) = self.free.remove(place);
                self.free[place - 1].1 += bytes + after;
            }
            (true, false) => self.free[place - 1].1 += bytes,
            (false, true) => self.free[place] = (offset, self.free[place].1 + bytes),
            (false, false) => self.free.insert(place, (offset, bytes)),
        }
    }
}

/// Memory of an arena, given back when dropped.
#[derive(Debug)]
pub struct Buffer {
    arena: Arena,
    extent: Extent,
    offset: u64,
    bytes: u64,
    category: Category,
    /// Copies of pinned memory that go on while the host does.
    pub(crate) copies: UnderWay,
}

impl Deref for Buffer {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        &self.extent
    }
}

impl Buffer {
    /// What the buffer is counted as.
    pub fn category(&self) -> Category {
        self.category
    }

    /// Bytes from the beginning of the arena's region, or of the file whose place it is. 0 where the arena only counts.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that it counts for.
    pub fn footprint(&self) -> u64 {
        self.bytes
    }

    /// Whether it is host memory that a device copies from and to while the host goes on.
    pub fn is_pinned(&self) -> bool {
        self.arena.0.region.is_pinned()
    }

    /// All elements. Waits for a copy that writes them.
    pub fn view(&self) -> View<'_> {
        self.copies.written();
        // SAFETY: the buffer owns `len` elements, aligned to 64 bytes; memory from the system is initialised.
        unsafe { self.extent.lend() }
    }

    /// All elements, for writing. Waits for copies that read or write them.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.copies.end();
        // SAFETY: as `view`, and &mut self is the only access.
        unsafe { self.extent.lend_mut() }
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub fn slice(&self, range: Range<usize>) -> View<'_> {
        self.view().slice(range)
    }

    /// The elements of `range`, for writing. Panics when it is out of bounds, as a slice would.
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        self.view_mut().into_slice(range)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Nobody gets the memory while a copy uses it.
        self.copies.end();
        let mut state = self.arena.state();
        state.give_back(self.offset, self.bytes);
        state.count(self.category, self.bytes, true);
    }
}

/// Bytes of memory in this machine; a large guess where the system does not say.
fn physical_memory() -> u64 {
    // SAFETY: sysconf reads two numbers.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    if pages > 0 && size > 0 { pages as u64 * size as u64 } else { 16 << 30 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelError, Kernels, footprint_pages};

    type Make = fn(Option<u64>) -> Result<Arena, ArenaError>;
    const KINDS: [Make; 2] = [Arena::host, Arena::shared];

    #[test]
    fn counts_live_and_peak_bytes_by_category() {
        for make in KINDS {
            let arena = make(None).unwrap();
            let a = arena.alloc(Category::Parameters, DType::F32, 100).unwrap();
            let b = arena.alloc(Category::Workspace, DType::Bf16, 1).unwrap();
            drop(a);
            let _c = arena.alloc(Category::Parameters, DType::F32, 16).unwrap();
            let ledger = arena.ledger();
            assert_eq!((ledger.live(Category::Parameters), ledger.peak(Category::Parameters)), (64, 448));
            assert_eq!(ledger.live(Category::Workspace), 64);
            assert_eq!(ledger.total_peak(), 512);
            assert_eq!(ledger.at_peak(Category::Parameters), 448);
            drop(b);
            assert_eq!(arena.ledger().live_total(), 64);
        }
    }

    #[test]
    fn a_capacity_refuses_with_the_whole_account() {
        for make in KINDS {
            let arena = make(Some(1024)).unwrap();
            let _a = arena.alloc(Category::Gradients, DType::F32, 192).unwrap();
            let error = arena.alloc(Category::Activations, DType::F32, 65).unwrap_err();
            assert_eq!((error.requested, error.live, error.capacity), (320, 768, 1024));
            assert!(error.to_string().contains("activations") && error.to_string().contains("gradients 768"));
            arena.alloc(Category::Activations, DType::F32, 64).unwrap();
        }
    }

    #[test]
    fn who_watches_sees_every_change_and_others_leave_no_trace() {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let before = arena.alloc(Category::Parameters, DType::F32, 16).unwrap();
        assert!(arena.watched().is_empty());
        arena.watch();
        let within = arena.alloc(Category::Workspace, DType::F32, 32).unwrap();
        drop(before);
        let changes = arena.watched();
        drop(within);
        assert!(arena.watched().is_empty());
        let (first, then) = changes.split_at(6);
        let at_first: Vec<(Category, u64)> = first.iter().map(|change| (change.category, change.live)).collect();
        let live = |category| if category == Category::Parameters { 64 } else { 0 };
        assert_eq!(at_first, Category::ALL.map(|category| (category, live(category))).to_vec());
        let then: Vec<(Category, u64)> = then.iter().map(|change| (change.category, change.live)).collect();
        assert_eq!(then, [(Category::Workspace, 128), (Category::Parameters, 0)]);
        assert!(changes.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[test]
    fn an_absurd_size_is_an_error() {
        for make in KINDS {
            let arena = make(None).unwrap();
            assert!(arena.alloc(Category::Workspace, DType::F32, usize::MAX / 2).is_err());
        }
    }

    #[test]
    fn whatever_the_order_free_runs_are_apart_sorted_and_add_up() {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let mut buffers = Vec::new();
        for step in 0..2000u64 {
            let [a, b] = [0, 1].map(|i| crate::numerics::philox::normals(9, 2 * step + i)[0].to_bits() as usize);
            if buffers.len() < 40 && a % 5 < 3 {
                let alloc = if b % 3 == 0 { Arena::alloc_pages } else { Arena::alloc };
                buffers.push(alloc(&arena, Category::Workspace, DType::F32, b % 900).unwrap());
            } else if !buffers.is_empty() {
                drop(buffers.swap_remove(b % buffers.len()));
            }
            let state = arena.state();
            assert!(state.free.is_sorted_by(|x, y| x.0 + x.1 < y.0), "runs touch: {:?}", state.free);
            let free: u64 = state.free.iter().map(|(_, run)| run).sum();
            assert_eq!(free + state.ledger.live_total(), arena.region().bytes());
            let mut taken: Vec<_> = buffers.iter().filter(|b| b.bytes > 0).map(|b| (b.offset, b.bytes)).collect();
            taken.extend(&state.free);
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "a gap or an overlap");
        }
    }

    #[test]
    fn pages_begin_at_pages_whatever_lies_around_them() {
        for make in KINDS {
            let arena = make(Some(1 << 20)).unwrap();
            let small = arena.alloc(Category::Workspace, DType::F32, 1).unwrap();
            let pages = arena.alloc_pages(Category::Optimizer, DType::F32, 1025).unwrap();
            assert_eq!((pages.offset(), pages.footprint(), arena.high_water()), (4096, 8192, 12288));
            assert_eq!(footprint_pages(DType::F32, 1025), Some(8192));
            assert!((pages.ptr().as_ptr() as usize).is_multiple_of(4096));
            assert_eq!(arena.ledger().live_total(), 64 + 8192);
            // The room before it is used, and is the smallest that fits.
            let between = arena.alloc(Category::Workspace, DType::F32, 1008).unwrap();
            assert_eq!((between.offset(), between.footprint()), (64, 4032));
            drop(small);
            // 4160 bytes lie free, but no whole page from a page's beginning on until the room between is free, too.
            drop(between);
            let first = arena.alloc_pages(Category::Optimizer, DType::I8, 1).unwrap();
            assert_eq!((first.offset(), first.footprint()), (0, 4096));
            drop((first, pages));
            assert_eq!(arena.ledger().live_total(), 0);
            assert_eq!(arena.state().free, [(0, arena.region().bytes())]);
        }
    }

    #[test]
    fn a_dry_arena_counts_pages_as_any_other() {
        let (dry, host) = (Arena::dry().unwrap(), Arena::host(None).unwrap());
        for arena in [&dry, &host] {
            let _a = arena.alloc_pages(Category::Optimizer, DType::Bf16, 5000).unwrap();
            let _b = arena.alloc(Category::Optimizer, DType::Bf16, 5000).unwrap();
        }
        assert_eq!(dry.ledger(), host.ledger());
        assert_eq!(dry.ledger().total_peak(), 12288 + 10048);
    }

    #[test]
    fn places_in_a_file_are_counted_and_reached_by_nobody() {
        let arena = Arena::file(Some(1 << 50));
        let mut a = arena.alloc_pages(Category::Optimizer, DType::F32, 1 << 40).unwrap();
        let b = arena.alloc_pages(Category::Parameters, DType::F32, 100).unwrap();
        assert_eq!((a.offset(), b.offset(), arena.high_water()), (0, 1 << 42, (1 << 42) + 4096));
        assert_eq!(arena.ledger().live(Category::Optimizer), 1 << 42);
        assert!(!a.is_on_host() && a.is_in_file());
        assert_eq!(a.view().as_bytes().unwrap_err(), KernelError::InFile);
        assert_eq!(a.view_mut().as_slice_mut::<f32>().unwrap_err(), KernelError::InFile);
        let host = Arena::host(None).unwrap();
        let mut here = host.alloc(Category::Parameters, DType::F32, 100).unwrap();
        let cpu = crate::Cpu::new(1);
        assert_eq!(cpu.fill(a.slice_mut(0..100), 1.0), Err(KernelError::InFile));
        assert_eq!(cpu.download(b.view(), here.view_mut()), Err(KernelError::InFile));
        assert_eq!(cpu.upload(here.view(), a.slice_mut(0..100)), Err(KernelError::InFile));
        assert_eq!(crate::memory::copy::stream(b.view(), here.view_mut()), Err(KernelError::InFile));
        let full = Arena::file(Some(8192));
        assert!(full.alloc_pages(Category::Optimizer, DType::F32, 2049).is_err());
        // Places are used again.
        drop(b);
        assert_eq!(arena.alloc_pages(Category::Parameters, DType::F32, 100).unwrap().offset(), 1 << 42);
    }

    #[test]
    fn freed_memory_is_merged_and_used_again() {
        for make in KINDS {
            let arena = make(Some(1 << 20)).unwrap();
            let buffers: Vec<_> = (0..8).map(|_| arena.alloc(Category::Workspace, DType::F32, 1024).unwrap()).collect();
            let mark = arena.high_water();
            drop(buffers);
            let _whole = arena.alloc(Category::Workspace, DType::F32, 8 * 1024).unwrap();
            assert_eq!(arena.high_water(), mark);
        }
    }
}

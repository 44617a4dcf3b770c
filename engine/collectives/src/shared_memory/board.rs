//! Where ranks meet: one mapping of zeroed memory that all ranks of a world share, threads or processes alike, and the
//! boards of its groups in it. Offsets, not addresses, are what ranks tell each other.

// Values in memory that several processes map.
#![allow(unsafe_code)]

use super::protocol::{LeftCalls, Line, POSTED, RankFlags, Slot, WorldState};
use crate::shared_memory::moves::Posted;
use crate::{CommError, Result, invalid};
use std::ptr::NonNull;
use std::sync::Arc;
use zbench_kernels::threads::sync::{AtomicU32, AtomicU64, Ordering};
use zbench_kernels::{Region, address_space_left};

/// Bytes of the mapping: address space, of which only what is used becomes memory.
pub(crate) const CONTROL_BYTES: u64 = 512 << 20;

/// Bytes of a new mapping: [`CONTROL_BYTES`], or an eighth of what a limit on address space leaves.
pub(crate) fn control_bytes() -> u64 {
    address_space_left().map_or(CONTROL_BYTES, |left| CONTROL_BYTES.min(left / 8))
}

/// Calls of a group, and of a pair of its ranks, that can be under way.
const DEPTH: usize = 16;
const PAIR_DEPTH: usize = 4;
/// What a rank can give by writing it beside its post.
pub(crate) const EAGER_BYTES: usize = 8 << 10;
const CAUSE_BYTES: usize = 2048;
const NAME_BYTES: usize = 88;

#[repr(C, align(128))]
struct Header {
    /// Bytes given out behind the flags.
    used: AtomicU64,
    ended: AtomicU32,
    cause_bytes: AtomicU32,
}

pub(crate) struct Control {
    region: Arc<Region>,
    /// Bytes of the region that are used.
    bytes: u64,
    ranks: usize,
}

/// A group's part of it, followed by its arrays.
#[repr(C, align(128))]
struct Head {
    size: u64,
    name_bytes: u64,
    name: [u8; NAME_BYTES],
}

#[derive(Clone)]
pub(crate) struct Board {
    control: Arc<Control>,
    at: u64,
    size: usize,
}

/// Who takes part in a call; each group numbers its calls from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CallGroup {
    All,
    Pair { from: usize, to: usize },
}

impl CallGroup {
    /// Where a rank stands among the members.
    #[inline]
    pub(crate) fn place(self, rank: usize) -> usize {
        match self {
            CallGroup::All => rank,
            CallGroup::Pair { from, .. } => usize::from(rank != from),
        }
    }

    #[inline]
    pub(crate) fn member(self, place: usize) -> usize {
        match self {
            CallGroup::All => place,
            CallGroup::Pair { from, to } => [from, to][place],
        }
    }
}

/// What the line of a call group takes: how many calls each member has left, then the slots.
#[inline]
fn line_bytes(members: usize, depth: usize) -> u64 {
    padded(members * (size_of::<LeftCalls>() + depth * size_of::<Slot<Posted>>()))
}

#[inline]
fn padded(bytes: usize) -> u64 {
    bytes.next_multiple_of(128) as u64
}

#[cold]
fn damaged(at: u64, bytes: u64, all: u64) -> CommError {
    let reason = format!(
        "{bytes} bytes at {at:#x} do not lie in the {all} bytes in which the ranks meet; another rank has damaged them"
    );
    invalid("shared memory", reason)
}

impl Control {
    /// Takes zeroed memory, or memory that another rank of the same world has taken. It must have room for the layout and
    /// the flags of all ranks.
    pub(crate) fn new(region: Arc<Region>, ranks: usize) -> Result<Arc<Control>> {
        let flags = (ranks as u64).saturating_mul(size_of::<RankFlags>() as u64);
        let bytes = region.bytes().min(CONTROL_BYTES);
        if Control::flags_at().saturating_add(flags) > bytes {
            let reason = format!(
                "{bytes} bytes are too few for {ranks} ranks to meet in; use fewer ranks, or raise a limit on address space (ulimit -v)"
            );
            return Err(invalid("split", reason));
        }
        Ok(Arc::new(Control { region, bytes, ranks }))
    }

    /// `count` values from `at` on; an error where they do not lie in the memory. Offsets come from memory that all ranks
    /// write, so they are checked in every build.
    ///
    /// # Safety
    /// Values of `T` lie there, zeroed memory included, and all that change are atomic.
    #[inline(always)]
    unsafe fn slice<T>(&self, at: u64, count: usize) -> Result<&[T]> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        self.check(at, bytes, align_of::<T>() as u64)?;
        // SAFETY: inside the mapping and aligned (checked above), and of this type, as the caller says; the mapping lives as
        // long as self.
        Ok(unsafe { std::slice::from_raw_parts(self.region.base().add(at as usize).cast().as_ptr(), count) })
    }

    /// That `bytes` from `at` on lie in the memory, aligned.
    #[inline(always)]
    fn check(&self, at: u64, bytes: u64, align: u64) -> Result<()> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes) && at.is_multiple_of(align);
        if fits { Ok(()) } else { Err(damaged(at, bytes, self.bytes)) }
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header begins the mapping; zero is a valid value of all its fields.
        unsafe { &self.slice(0, 1).expect("the header fits")[0] }
    }

    #[inline]
    fn cause_at() -> u64 {
        padded(size_of::<Header>())
    }

    #[inline]
    fn flags_at() -> u64 {
        Control::cause_at() + padded(CAUSE_BYTES)
    }

    #[inline]
    pub(crate) fn world(&self) -> WorldState<'_> {
        // SAFETY: the flags follow the cause; zero is a valid value of all of them.
        let flags: &[RankFlags] =
            unsafe { self.slice(Control::flags_at(), self.ranks) }.expect("`new` has checked that they fit");
        WorldState { flags, ended: &self.header().ended }
    }

    /// Takes zeroed bytes for good. A world makes few groups, so nothing is given back before its end.
    fn take(&self, bytes: u64) -> Result<u64> {
        let first = Control::flags_at() + padded(self.ranks * size_of::<RankFlags>());
        let at = first.saturating_add(self.header().used.fetch_add(bytes, Ordering::Relaxed));
        if at.saturating_add(bytes) <= self.bytes {
            return Ok(at);
        }
        let reason = format!(
            "the {} bytes in which the groups of {} ranks meet are used up; use fewer ranks or groups, or raise a limit on address space (ulimit -v)",
            self.bytes, self.ranks
        );
        Err(invalid("split", reason))
    }

    /// Ends the world with a cause in words that only this process understands; the first one stays.
    pub(crate) fn end(&self, cause: &str) {
        let world = self.world();
        if !world.close() {
            return;
        }
        let bytes = &cause.as_bytes()[..cause.floor_char_boundary(CAUSE_BYTES)];
        // SAFETY: `close` lets one rank through, and readers wait for `announce`; the text fits.
        unsafe {
            let text = self.region.base().add(Control::cause_at() as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), text.as_ptr(), bytes.len());
        }
        self.header().cause_bytes.store(bytes.len() as u32, Ordering::Relaxed);
        world.announce();
    }

    #[inline]
    pub(crate) fn cause(&self) -> Option<String> {
        let ended = self.world().ended;
        if ended.load(Ordering::Acquire) == 0 {
            return None;
        }
        let begin = std::time::Instant::now();
        loop {
            match ended.load(Ordering::Acquire) {
                // Its writer may have died while it wrote.
                1 if begin.elapsed().as_secs() < 1 => std::thread::yield_now(),
                1 => return Some(String::new()),
                _ => break,
            }
        }
        let bytes = (self.header().cause_bytes.load(Ordering::Relaxed) as usize).min(CAUSE_BYTES);
        // SAFETY: written before the world was announced ended, and never again.
        let text = unsafe { self.slice::<u8>(Control::cause_at(), bytes) }.ok()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

impl Board {
    /// Makes the board of a group; `roots` are its members' numbers in the world.
    pub(crate) fn make(control: &Arc<Control>, name: &str, roots: &[usize]) -> Result<Board> {
        let size = roots.len();
        let blank = Board { control: control.clone(), at: 0, size };
        let at = control.take(blank.bytes())?;
        control.check(at, blank.bytes(), align_of::<Head>() as u64)?;
        let board = Board { at, ..blank };
        let name = &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES)];
        let head = board.control.region.base();
        // SAFETY: the bytes were just taken, and nobody else knows of them.
        unsafe {
            let head = head.add(at as usize).cast::<Head>().as_mut();
            (head.size, head.name_bytes) = (size as u64, name.len() as u64);
            head.name[..name.len()].copy_from_slice(name);
        }
        let numbers: &[AtomicU32] = board.numbers();
        roots.iter().zip(numbers).for_each(|(root, number)| number.store(*root as u32, Ordering::Relaxed));
        Ok(board)
    }

    /// The first group of a world, which `make` has placed before any other.
    pub(crate) fn first(control: &Arc<Control>) -> Result<Board> {
        Board::at(control, Control::flags_at() + padded(control.ranks * size_of::<RankFlags>()))
    }

    /// A board that another rank has made. All of it lies in the memory, so that nothing that follows from its offset and
    /// size lies elsewhere.
    pub(crate) fn at(control: &Arc<Control>, at: u64) -> Result<Board> {
        // SAFETY: a head was written there before its offset was told, and any bytes are one.
        let size = unsafe { control.slice::<Head>(at, 1)?[0].size };
        let size = usize::try_from(size).ok().filter(|size| (1..=control.ranks).contains(size)).ok_or_else(|| {
            let ranks = control.ranks;
            let reason = format!("the group at {at:#x} has {size} of {ranks} ranks; another rank has damaged it");
            invalid("shared memory", reason)
        })?;
        let board = Board { control: control.clone(), at, size };
        control.check(at, board.bytes(), align_of::<Head>() as u64)?;
        Ok(board)
    }

    fn bytes(&self) -> u64 {
        self.eager_at(DEPTH * self.size) + 128
    }

    /// What finds it again in this world.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn name(&self) -> String {
        // SAFETY: a head lies there, and is not written any more.
        let Ok([head]) = (unsafe { self.control.slice::<Head>(self.at, 1) }) else { return String::new() };
        String::from_utf8_lossy(&head.name[..(head.name_bytes as usize).min(NAME_BYTES)]).into_owned()
    }

    /// The members' numbers in the world, then whether they have left.
    #[inline]
    fn numbers(&self) -> &[AtomicU32] {
        // SAFETY: the array follows the head.
        let numbers = unsafe { self.control.slice(self.at + padded(size_of::<Head>()), 2 * self.size) };
        numbers.expect("`make` and `at` have checked that all of the board fits")
    }

    #[inline]
    pub(crate) fn root(&self, rank: usize) -> usize {
        self.roots()[rank].load(Ordering::Relaxed) as usize
    }

    /// The members' numbers in the world.
    #[inline]
    pub(crate) fn roots(&self) -> &[AtomicU32] {
        &self.numbers()[..self.size]
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.numbers()[self.size + rank].load(Ordering::Acquire) != 0
    }

    pub(crate) fn leave(&self, rank: usize) {
        self.numbers()[self.size + rank].store(1, Ordering::Release);
    }

    #[inline]
    fn pairs_at(&self) -> u64 {
        padded(size_of::<Head>()) + padded(2 * self.size * 4)
    }

    #[inline]
    fn slots_at(&self) -> u64 {
        self.pairs_at() + padded(self.size * self.size * 8)
    }

    /// Where the eager bytes of a slot of the whole group lie, from the board's beginning.
    #[inline]
    fn eager_at(&self, slot: usize) -> u64 {
        self.slots_at() + line_bytes(self.size, DEPTH) + (slot * EAGER_BYTES) as u64
    }

    /// The slots of a call group, made when first asked for.
    #[inline(always)]
    pub(crate) fn line(&self, group: CallGroup) -> Result<Line<'_, Posted>> {
        match group {
            // SAFETY: the line lies there (`bytes`).
            CallGroup::All => unsafe { self.line_at(self.at + self.slots_at(), self.size, DEPTH) },
            CallGroup::Pair { from, to } => self.line_of_pair(from, to),
        }
    }

    #[inline(never)]
    fn line_of_pair(&self, from: usize, to: usize) -> Result<Line<'_, Posted>> {
        // SAFETY: the table of pairs lies there, size times size offsets.
        let pairs: &[AtomicU64] = unsafe { self.control.slice(self.at + self.pairs_at(), self.size * self.size) }?;
        let known = &pairs[from * self.size + to];
        let mut at = known.load(Ordering::Acquire);
        if at == 0 {
            // Both may make one; the first to say so wins, and the other's is never used.
            let made = self.control.take(line_bytes(2, PAIR_DEPTH))?;
            at = known
                .compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire)
                .map_or_else(|there| there, |_| made);
        }
        // SAFETY: the line of a pair was taken at this offset.
        unsafe { self.line_at(at, 2, PAIR_DEPTH) }
    }

    /// # Safety
    /// A line of so many members and calls lies there, zeroed or in use as such.
    #[inline(always)]
    unsafe fn line_at(&self, at: u64, members: usize, depth: usize) -> Result<Line<'_, Posted>> {
        let slots_at = at.saturating_add((members * size_of::<LeftCalls>()) as u64);
        // SAFETY: as the caller says; zero is valid for both, of a member that has left no call, and of a call before the first.
        unsafe {
            let (left, slots) = (self.control.slice(at, members)?, self.control.slice(slots_at, depth * members)?);
            Ok(Line::new(slots, left, depth as u64))
        }
    }

    /// Calls of a call group that can be under way.
    #[inline]
    pub(crate) fn depth(group: CallGroup) -> u64 {
        match group {
            CallGroup::All => DEPTH as u64,
            CallGroup::Pair { .. } => PAIR_DEPTH as u64,
        }
    }

    /// Where a member's eager bytes for a call of the whole group lie, `bytes` of them.
    #[inline]
    pub(crate) fn eager(&self, sequence: u64, rank: usize, bytes: usize) -> Result<NonNull<u8>> {
        if rank >= self.size || bytes > EAGER_BYTES {
            let reason = format!("rank {rank} of {} has no {bytes} bytes beside its post", self.size);
            return Err(invalid("shared memory", reason));
        }
        let slot = (sequence % DEPTH as u64) as usize * self.size + rank;
        // SAFETY: all of the board lies in the mapping (`make`, `at`), and the slot is one of its own.
        Ok(unsafe { self.control.region.base().add((self.at + self.eager_at(slot)) as usize) })
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Members that have not come to this stage of a call.
    pub(crate) fn missing(&self, group: CallGroup, sequence: u64, stage: u8) -> impl Iterator<Item = usize> {
        let stage = stage.max(POSTED);
        // Not a list: ranks look for each other in the middle of steps, which take nothing from the heap.
        self.line(group).into_iter().flat_map(move |line| {
            let away = move |place: &usize| !line.has(*place, sequence, stage);
            (0..line.members()).filter(away).map(move |place| group.member(place))
        })
    }
}

#[cfg(test)]
mod tests;

//! How ranks find each other's memory: threads by address, processes by the regions they have mapped.

// Addresses that other ranks have posted become memory of this process.
#![allow(unsafe_code)]

use super::board::CallGroup;
use super::moves::{BufferRef, Posted, Seen};
use crate::raw::RawSlice;
use crate::{Result, invalid};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use zbench_kernels::memory::device::Event;
use zbench_kernels::{Arena, Buffer, Category, DType, Region};

/// Bits of a token that say where in its region a run lies; those above say which region.
const OFFSET_BITS: u32 = 56;

pub(crate) enum Space {
    /// All of it: they are threads. On a device they also share the marks of their queues.
    Threads(Marks),
    /// What they have mapped: they are processes.
    Processes(Processes),
}

/// Marks of the members of a call, by the call and the member: behind what they give, then behind the work they have done.
/// Those of calls that all have left are written over.
pub(crate) struct Marks {
    /// Whether the ranks compute on a device, whose work goes on when a call returns.
    pub on_device: bool,
    table: Mutex<HashMap<Place, Arc<dyn Event>>>,
}

/// Of a group (by its address), a call group in it, a call's number in it modulo the calls that may be under way, a member; given or done.
pub(crate) type Place = (u64, CallGroup, u64, usize, bool);

impl Marks {
    pub(crate) fn new(on_device: bool) -> Marks {
        Marks { on_device, table: Mutex::default() }
    }

    pub(crate) fn put(&self, place: Place, mark: Arc<dyn Event>) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).insert(place, mark);
    }

    pub(crate) fn get(&self, place: &Place) -> Option<Arc<dyn Event>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).get(place).cloned()
    }
}

/// The memory of processes, as one of them has mapped it.
pub(crate) struct Processes {
    pub own: usize,
    /// By process: its arena, then what it uses for buffers that are elsewhere. Its own are mapped a second time only by
    /// the others.
    pub regions: Vec<Vec<Arc<Region>>>,
    pub stand_ins: Arena,
    /// By process: what tells of its death, and its name in words.
    pub lives: Vec<(OwnedFd, String)>,
}

/// Stand-ins for buffers that peers cannot reach.
pub(crate) struct Bounce {
    runs: Vec<(Buffer, RawSlice, bool)>,
}

impl Bounce {
    pub(crate) fn give_back(self) {
        for (buffer, home, written) in self.runs {
            if written {
                // SAFETY: `home` is the caller's buffer, which it lends until the call has ended, and as long as the stand-in.
                unsafe { std::ptr::copy_nonoverlapping(buffer.view().ptr().as_ptr(), home.ptr.as_ptr(), home.bytes()) };
            }
        }
    }
}

fn addresses(raw: RawSlice) -> Range<usize> {
    let start = raw.ptr.as_ptr() as usize;
    start..start + raw.bytes()
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Space {
    /// The marks of ranks that compute on one device.
    #[inline]
    pub(crate) fn marks(&self) -> Option<&Marks> {
        match self {
            Space::Threads(marks) if marks.on_device => Some(marks),
            _ => None,
        }
    }

    pub(crate) fn backend(&self) -> &'static str {
        match self {
            Space::Threads(marks) if marks.on_device => "device",
            Space::Threads(_) => "local",
            Space::Processes(_) => "shm",
        }
    }

    /// Whether ranks are processes, each with mappings of its own.
    pub(crate) fn is_of_processes(&self) -> bool {
        matches!(self, Space::Processes(_))
    }

    /// How a rank died, if it has; a thread tells so itself.
    pub(crate) fn death(&self, rank: usize) -> Option<String> {
        let Space::Processes(Processes { lives, .. }) = self else { return None };
        let (life, name) = &lives[rank];
        let mut watched = [PollFd::new(life, PollFlags::IN)];
        let died = poll(&mut watched, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0);
        died.then(|| format!("{name} died"))
    }

    /// A run of this process that was posted by its address.
    #[inline]
    pub(crate) fn own(buffer_ref: BufferRef) -> RawSlice {
        let ptr = NonNull::new(buffer_ref.at as *mut u8).unwrap_or(NonNull::<u64>::dangling().cast());
        RawSlice { ptr, len: buffer_ref.len, dtype: buffer_ref.dtype, on_host: buffer_ref.on_host }
    }

    /// Where others find these buffers. What they cannot reach gets a stand-in, which holds a copy already.
    pub(crate) fn reachable(&self, send: RawSlice, recv: RawSlice) -> Result<(BufferRef, BufferRef, Option<Bounce>)> {
        let Space::Processes(processes) = self else {
            return Ok((BufferRef::by_address(send), BufferRef::by_address(recv), None));
        };
        if let (Some(send), Some(recv)) = (processes.token(send), processes.token(recv)) {
            return Ok((send, recv, None));
        }
        let (from, to) = (addresses(send), addresses(recv));
        if !overlap(&from, &to) {
            let mut runs = Vec::new();
            let send = processes.stand_in(send, false, &mut runs)?;
            let recv = processes.stand_in(recv, true, &mut runs)?;
            return Ok((send, recv, Some(Bounce { runs })));
        }
        // In place: one of the two contains the other, and both are within one stand-in.
        let whole = if from.len() >= to.len() { send } else { recv };
        let mut runs = Vec::new();
        let stand_in = processes.stand_in(whole, true, &mut runs)?;
        let base = addresses(whole).start;
        let within = |raw: RawSlice| BufferRef {
            at: stand_in.at + (addresses(raw).start - base) as u64,
            ..BufferRef::by_address(raw)
        };
        Ok((within(send), within(recv), Some(Bounce { runs })))
    }

    /// Where a member's buffers lie in this process.
    pub(crate) fn seen(&self, rank: usize, post: &Posted) -> Result<Seen> {
        let Space::Processes(processes) = self else {
            return Ok(Seen { send: Space::own(post.send), recv: Space::own(post.recv) });
        };
        Ok(Seen { send: processes.resolve(rank, post.send)?, recv: processes.resolve(rank, post.recv)? })
    }
}

impl Processes {
    /// The token of a run in this process's own regions.
    fn token(&self, raw: RawSlice) -> Option<BufferRef> {
        let buffer_ref = |at: u64| BufferRef { at, len: raw.len, dtype: raw.dtype, on_host: true };
        if raw.bytes() == 0 {
            return Some(buffer_ref(0));
        }
        let run = addresses(raw);
        self.regions[self.own].iter().enumerate().find_map(|(index, region)| {
            let base = region.base().as_ptr() as usize;
            let inside = base <= run.start && run.end <= base + region.bytes() as usize;
            inside.then(|| buffer_ref((index as u64) << OFFSET_BITS | (run.start - base) as u64))
        })
    }

    fn stand_in(&self, raw: RawSlice, written: bool, runs: &mut Vec<(Buffer, RawSlice, bool)>) -> Result<BufferRef> {
        if let Some(buffer_ref) = self.token(raw) {
            return Ok(buffer_ref);
        }
        let none = |reason: &dyn std::fmt::Display| invalid("a stand-in in shared memory", reason);
        let buffer = self.stand_ins.alloc(Category::Communication, DType::I8, raw.bytes());
        let buffer = buffer.map_err(|error| none(&error))?;
        // SAFETY: the caller's buffer is live and the stand-in is new and as long.
        unsafe { std::ptr::copy_nonoverlapping(raw.ptr.as_ptr(), buffer.view().ptr().as_ptr(), raw.bytes()) };
        let there = RawSlice { ptr: buffer.view().ptr(), ..raw };
        let buffer_ref = self.token(there).ok_or_else(|| none(&"its arena is not among the regions"))?;
        runs.push((buffer, raw, written));
        Ok(buffer_ref)
    }

    fn resolve(&self, rank: usize, buffer_ref: BufferRef) -> Result<RawSlice> {
        if buffer_ref.len == 0 {
            return Ok(RawSlice { dtype: buffer_ref.dtype, ..RawSlice::empty() });
        }
        let (index, offset) = ((buffer_ref.at >> OFFSET_BITS) as usize, buffer_ref.at & ((1 << OFFSET_BITS) - 1));
        let bytes =
            buffer_ref.len.checked_mul(buffer_ref.dtype.size()).and_then(|bytes| (bytes as u64).checked_add(offset));
        let aligned = offset.is_multiple_of(buffer_ref.dtype.size() as u64);
        let inside = |region: &&Arc<Region>| aligned && bytes.is_some_and(|end| end <= region.bytes());
        let region = self.regions[rank].get(index).filter(inside);
        let outside = || {
            let at = buffer_ref.at;
            let reason = format!("rank {rank} says that its buffer lies at {at:#x}, which is in none of its regions");
            invalid("a post", reason)
        };
        let region = region.ok_or_else(outside)?;
        // SAFETY: the offset lies in the region (checked above).
        let ptr = unsafe { region.base().add(offset as usize) };
        Ok(RawSlice { ptr, len: buffer_ref.len, dtype: buffer_ref.dtype, on_host: true })
    }
}

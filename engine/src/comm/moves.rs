//! What ranks post, and the reading of each other's memory: copies and sums, in blocks, counted where they happen.

use super::slots::{Line, POSTED, Post};
use super::{CommError, Result};
use std::ops::Range;
use std::ptr::NonNull;
use zbench_kernels::{DType, Kernels, ReduceOp, View, ViewMut};

/// Bytes between two looks at the abort flag.
const BLOCK_BYTES: usize = 256 << 10;
/// Words of the scratch in which a rank keeps its own summand while it overwrites it: 32 KiB.
pub(crate) const SCRATCH_WORDS: usize = 4096;
/// All-reduce splits its buffer at multiples of this many elements, so that no cache line has two writers.
const PART_ELEMENTS: usize = 16;

/// Where a run of elements lies, whoever owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
}

// SAFETY: an address and a length. Reading there is guarded by the protocol (see protocol.rs).
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// No elements.
    pub(crate) fn none() -> Raw {
        Raw { ptr: NonNull::<u64>::dangling().cast(), len: 0, dtype: DType::F32 }
    }

    pub(crate) fn of(view: View<'_>) -> Raw {
        Raw { ptr: view.ptr(), len: view.len(), dtype: view.dtype() }
    }

    pub(crate) fn of_mut(view: &ViewMut<'_>) -> Raw {
        Raw { ptr: view.ptr(), len: view.len(), dtype: view.dtype() }
    }

    /// The elements of `range`; it is cut to what is there, so that no post of a peer can lead outside its buffer.
    pub(crate) fn slice(self, range: Range<usize>) -> Raw {
        let start = range.start.min(self.len);
        let len = range.end.clamp(start, self.len) - start;
        // SAFETY: start is at most `len`, so the address stays inside the run or one past it.
        Raw { ptr: unsafe { self.ptr.add(start * self.dtype.size()) }, len, dtype: self.dtype }
    }

    /// The `index`-th of `count` equal parts.
    pub(crate) fn part(self, index: usize, count: usize) -> Raw {
        let len = self.len / count;
        self.slice(index * len..(index + 1) * len)
    }

    fn bytes(self) -> usize {
        self.len * self.dtype.size()
    }
}

/// The collective of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `send` = `recv` = the buffer.
    AllReduce,
    /// In place where `recv` is this rank's part of `send`.
    ReduceScatter {
        accumulate: bool,
    },
    /// In place where `send` is this rank's part of `recv`.
    AllGather,
    /// `send` = `recv` = the buffer.
    Broadcast {
        root: usize,
    },
    AllToAll,
    /// The two sides of a pair.
    Send,
    Recv,
    Barrier,
    Split,
}

impl Kind {
    /// The stage at which the collective is complete: one more than its pieces of work.
    pub(crate) fn last_stage(self) -> u8 {
        match self {
            Kind::Barrier => POSTED,
            Kind::AllReduce => POSTED + 2,
            _ => POSTED + 1,
        }
    }
}

/// What one rank posts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub kind: Kind,
    pub send: Raw,
    pub recv: Raw,
    pub color: usize,
    pub key: usize,
}

impl Posted {
    pub(crate) fn new(kind: Kind, send: Raw, recv: Raw) -> Posted {
        Posted { kind, send, recv, color: 0, key: 0 }
    }
}

impl Post for Posted {
    fn operation(&self) -> &'static str {
        match self.kind {
            Kind::AllReduce => "all_reduce",
            Kind::ReduceScatter { .. } => "reduce_scatter",
            Kind::AllGather => "all_gather",
            Kind::Broadcast { .. } => "broadcast",
            Kind::AllToAll => "all_to_all",
            Kind::Send => "send",
            Kind::Recv => "recv",
            Kind::Barrier => "barrier",
            Kind::Split => "split",
        }
    }

    fn agrees(&self, other: &Posted) -> bool {
        let sends = |a: &Posted, b: &Posted| (a.send.dtype, a.send.len) == (b.send.dtype, b.send.len);
        let recvs = |a: &Posted, b: &Posted| (a.recv.dtype, a.recv.len) == (b.recv.dtype, b.recv.len);
        match (self.kind, other.kind) {
            (Kind::Send, Kind::Recv) => (self.send.dtype, self.send.len) == (other.recv.dtype, other.recv.len),
            (Kind::Recv, Kind::Send) => other.agrees(self),
            (ours, theirs) => ours == theirs && sends(self, other) && recvs(self, other),
        }
    }

    fn describe(&self) -> String {
        let raw = |raw: Raw| format!("{} {}", raw.len, raw.dtype);
        let (name, send, recv) = (self.operation(), raw(self.send), raw(self.recv));
        match self.kind {
            Kind::AllReduce | Kind::Send => format!("{name} of {send}"),
            Kind::Recv => format!("{name} of {recv}"),
            Kind::ReduceScatter { accumulate: true } => format!("{name} of {send} onto {recv}"),
            Kind::ReduceScatter { accumulate: false } | Kind::AllGather | Kind::AllToAll => {
                format!("{name} of {send} to {recv}")
            }
            Kind::Broadcast { root } => format!("{name} of {send} from rank {root}"),
            Kind::Barrier | Kind::Split => name.to_owned(),
        }
    }
}

/// One rank at work on one call.
pub(crate) struct Mover<'a> {
    /// This rank's place on the line.
    pub rank: usize,
    pub kernels: &'a dyn Kernels,
    /// [`SCRATCH_WORDS`] words.
    pub scratch: &'a mut [u64],
    /// Whether the world has ended, and why: looked at before every block.
    pub ended: &'a dyn Fn() -> Option<CommError>,
    /// Bytes read from other ranks' memory.
    pub wire: u64,
}

impl Mover<'_> {
    /// The work that follows `stage`. `posts` are the members', in the order of their places.
    ///
    /// # Safety
    /// The posts must have been made from live views or buffers that agree, all members must have reached `stage`, and
    /// none may pass the stage after next (a [`super::protocol::Reading`] guard is held).
    pub(crate) unsafe fn work(&mut self, line: Line, stage: u8, posts: &[Posted]) -> Result<()> {
        let own = posts[self.rank];
        let size = posts.len();
        match own.kind {
            Kind::AllReduce if stage == POSTED => {
                let range = reduce_range(own.send.len, self.rank, size);
                // SAFETY: until all ranks are done with this work, part r of any buffer is used by rank r alone.
                unsafe { self.sum(posts, range.clone(), own.recv.slice(range), false) }
            }
            Kind::AllReduce => self.gather(posts, own.recv, |rank| {
                let range = reduce_range(own.send.len, rank, size);
                (posts[rank].recv.slice(range.clone()), range.start)
            }),
            Kind::ReduceScatter { accumulate } => {
                let len = own.send.len / size;
                // SAFETY: only this rank reads part `rank` of any `send`, and `recv` is its own.
                unsafe { self.sum(posts, self.rank * len..(self.rank + 1) * len, own.recv, accumulate) }
            }
            Kind::AllGather => self.gather(posts, own.recv, |rank| (posts[rank].send, rank * own.send.len)),
            Kind::AllToAll => {
                let (own_rank, len) = (self.rank, own.send.len / size);
                self.gather(posts, own.recv, |rank| (posts[rank].send.part(own_rank, size), rank * len))
            }
            Kind::Broadcast { root } if root != self.rank => self.copy_from(root, posts[root].send, own.recv),
            Kind::Recv if line != Line::All => self.copy_from(0, posts[0].send, own.recv),
            Kind::Broadcast { .. } | Kind::Send | Kind::Recv | Kind::Barrier | Kind::Split => Ok(()),
        }
    }

    /// Copies every rank's run to its offset in `whole`, starting with the next rank so that not all read one memory.
    fn gather(&mut self, posts: &[Posted], whole: Raw, run: impl Fn(usize) -> (Raw, usize)) -> Result<()> {
        for i in 1..=posts.len() {
            let rank = (self.rank + i) % posts.len();
            let (from, offset) = run(rank);
            self.copy_from(rank, from, whole.slice(offset..offset + from.len))?;
        }
        Ok(())
    }

    /// Copies a run of the rank at `place`; only called by `work`, whose conditions make both runs live and apart.
    fn copy_from(&mut self, place: usize, from: Raw, to: Raw) -> Result<()> {
        if from.ptr == to.ptr {
            return Ok(()); // in place
        }
        let bytes = from.bytes().min(to.bytes());
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            self.check()?;
            let len = BLOCK_BYTES.min(bytes - start);
            // SAFETY: both runs hold `bytes` bytes. Nobody writes `from` at this stage (`work`), and `to` is this rank's own
            // memory, another buffer or another part of one.
            unsafe { std::ptr::copy_nonoverlapping(from.ptr.as_ptr().add(start), to.ptr.as_ptr().add(start), len) };
            if place != self.rank {
                self.wire += len as u64;
            }
        }
        Ok(())
    }

    /// `dst` = (`dst` +) the sum over ranks of `range` of what they send, block by block. Where `dst` lies on this rank's
    /// summand, the summand is first copied aside, since a kernel's operands may not overlap.
    ///
    /// # Safety
    /// As for [`Mover::work`]; and nobody else may use `dst`, nor write `range` of any `send`.
    unsafe fn sum(&mut self, posts: &[Posted], range: Range<usize>, dst: Raw, accumulate: bool) -> Result<()> {
        let own = posts[self.rank].send.slice(range.clone());
        let in_place = own.ptr == dst.ptr;
        let block = if in_place { SCRATCH_WORDS * 8 } else { BLOCK_BYTES } / own.dtype.size();
        let mut sources = Vec::with_capacity(posts.len());
        for start in range.clone().step_by(block) {
            self.check()?;
            let end = range.end.min(start + block);
            sources.clear();
            for (rank, post) in posts.iter().enumerate() {
                let mut source = post.send.slice(start..end);
                if rank != self.rank {
                    self.wire += source.bytes() as u64;
                } else if in_place {
                    source = self.set_aside(source);
                }
                // SAFETY: a slice of a live post (or of the scratch), which nobody writes at this stage.
                sources.push(unsafe { View::from_raw(source.ptr, source.dtype, source.len) });
            }
            let out = dst.slice(start - range.start..end - range.start);
            // SAFETY: `dst` is this rank's alone, and no source lies on it.
            let out = unsafe { ViewMut::from_raw(out.ptr, out.dtype, out.len) };
            self.kernels.reduce(ReduceOp::Sum, &sources, accumulate, out)?;
        }
        Ok(())
    }

    fn set_aside(&mut self, source: Raw) -> Raw {
        let scratch = NonNull::from(&mut *self.scratch).cast::<u8>();
        // SAFETY: a block is at most as large as the scratch, which is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(source.ptr.as_ptr(), scratch.as_ptr(), source.bytes()) };
        Raw { ptr: scratch, ..source }
    }

    fn check(&self) -> Result<()> {
        (self.ended)().map_or(Ok(()), Err)
    }
}

/// The elements that `rank` sums in an all-reduce: equal parts, rounded up so that the last ranks may have less or none.
fn reduce_range(len: usize, rank: usize, size: usize) -> Range<usize> {
    let part = len.div_ceil(size).next_multiple_of(PART_ELEMENTS);
    let bound = |r: usize| part.saturating_mul(r).min(len);
    bound(rank)..bound(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_all_reduce_cover_the_buffer_once() {
        for (len, size) in [(0, 3), (1, 1), (1, 8), (15, 2), (16, 2), (17, 2), (100, 3), (4097, 6), (1 << 20, 8)] {
            let ranges: Vec<_> = (0..size).map(|rank| reduce_range(len, rank, size)).collect();
            assert_eq!((ranges[0].start, ranges[size - 1].end), (0, len), "{len} over {size}");
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{len} over {size}");
        }
    }

    #[test]
    fn a_slice_never_leaves_its_run() {
        let data = [0f32; 10];
        let raw = Raw::of(View::of(&data));
        assert_eq!(raw.slice(4..20).len, 6);
        assert_eq!(raw.slice(20..30).len, 0);
        assert_eq!(raw.part(2, 3).bytes(), 12);
    }
}

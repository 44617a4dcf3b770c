//! What ranks post, and the reading and writing of each other's memory: copies and sums, in blocks, counted where they
//! happen.

// Ranks read and write each other's memory here.
#![allow(unsafe_code)]

use crate::call::Kind;
use crate::cause::SPLIT;
use crate::raw::{RawSlice, reduce_range};
use crate::{CommError, Result};
use std::ops::Range;
use std::ptr::NonNull;
use zbench_kernels::memory::copy::stream;
use zbench_kernels::{DType, Kernels, ReduceOp, View, ViewMut};

/// Bytes between two looks at whether the world has ended.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a sum that several ranks get: small enough to stay in the first cache while it is handed out.
pub(crate) const SCRATCH_WORDS: usize = 2048;
/// Copies of at least this many bytes go past the caches, which could not keep them.
const STREAM_BYTES: usize = 8 << 20;

/// Where a buffer lies, as all ranks understand it: an address among threads, region and offset among processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferRef {
    pub at: u64,
    pub len: usize,
    pub dtype: DType,
    pub on_host: bool,
}

impl BufferRef {
    #[inline]
    pub(crate) fn by_address(raw: RawSlice) -> BufferRef {
        BufferRef { at: raw.ptr.as_ptr() as u64, len: raw.len, dtype: raw.dtype, on_host: raw.on_host }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Call(Kind),
    /// By color and key.
    Split(u64, u64),
}

/// What one rank posts: buffers as the collective uses them, in place or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub what: What,
    pub send: BufferRef,
    pub recv: BufferRef,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Call(kind) => kind.name(),
            What::Split(..) => SPLIT,
        }
    }
}

impl Posted {
    /// What all ranks must have alike: type and length of the buffer that all have.
    #[inline]
    fn common(&self, size: usize) -> (DType, usize) {
        let shape = |buffer_ref: BufferRef, parts: usize| (buffer_ref.dtype, buffer_ref.len / parts);
        match self.what {
            What::Call(Kind::Scatter { .. }) if self.send.len > 0 => shape(self.send, size),
            What::Call(Kind::AllReduce { .. } | Kind::Broadcast { .. } | Kind::Scatter { .. } | Kind::AllToAll) => {
                shape(self.recv, 1)
            }
            _ => shape(self.send, 1),
        }
    }

    #[inline]
    pub(crate) fn agrees(&self, other: &Posted, size: usize) -> bool {
        let shape = |buffer_ref: BufferRef| (buffer_ref.dtype, buffer_ref.len);
        match (self.what, other.what) {
            (What::Call(Kind::Send { .. }), What::Call(Kind::Recv { .. })) => shape(self.send) == shape(other.recv),
            (What::Call(Kind::Recv { .. }), What::Call(Kind::Send { .. })) => other.agrees(self, size),
            (What::Split(..), What::Split(..)) => true,
            (What::Call(Kind::ReduceScatter { .. }), _) if self.recv.dtype != other.recv.dtype => false,
            (ours, theirs) => ours == theirs && self.common(size) == other.common(size),
        }
    }

    /// The call in words, for the error when two do not agree.
    pub(crate) fn describe(&self) -> String {
        let shape = |buffer: BufferRef| (buffer.dtype, buffer.len);
        match self.what {
            What::Call(kind) => kind.collective().describe(kind.operands(), shape(self.send), shape(self.recv)),
            What::Split(..) => SPLIT.to_owned(),
        }
    }
}

/// Where a member's buffers lie in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub send: RawSlice,
    pub recv: RawSlice,
}

/// Ranks whose summands need no list on the heap.
const FEW: usize = 16;

pub(crate) struct Mover<'a> {
    /// This rank's place among the members.
    pub rank: usize,
    pub kernels: &'a dyn Kernels,
    /// [`SCRATCH_WORDS`] words.
    pub scratch: &'a mut [u64],
    /// Whether the world has ended, and why: looked at before every block.
    pub ended: &'a dyn Fn() -> Option<CommError>,
    /// Bytes read from other ranks' memory and written to it.
    pub wire: u64,
}

impl Mover<'_> {
    /// The one piece of work of a call.
    ///
    /// # Safety
    /// The members' buffers are live and agree, all members have posted, and none will use the parts that this rank writes
    /// or change those it reads before it is told that this work is done (an `Inside` guard is held).
    pub(crate) unsafe fn work(&mut self, kind: Kind, eager: bool, seen: &[Seen]) -> Result<()> {
        let (rank, size, own) = (self.rank, seen.len(), seen[self.rank]);
        match kind {
            // SAFETY: each rank reads what all have given and writes its own `recv`.
            Kind::AllReduce { op } if eager => unsafe {
                self.sum(op, seen, 0..own.recv.len, 1, |_| (rank, own.recv), false)
            },
            Kind::AllReduce { op } => {
                let range = reduce_range(own.recv.len, rank, size);
                // SAFETY: part r of any buffer is read and written by rank r alone.
                unsafe { self.sum_to_all(op, seen, range) }
            }
            Kind::ReduceScatter { op, accumulate } => {
                let len = own.send.len / size;
                // SAFETY: only this rank reads part `rank` of any `send`, and `recv` is its own.
                unsafe { self.sum(op, seen, rank * len..(rank + 1) * len, 1, |_| (rank, own.recv), accumulate) }
            }
            // What this rank gives lies beside its post already.
            Kind::Reduce { root, .. } | Kind::Gather { root } if eager && rank != root => Ok(()),
            Kind::Reduce { op, root } => {
                let whole = 0..own.send.len;
                let range = if eager { whole } else { reduce_range(own.send.len, rank, size) };
                let out = seen[root].recv.slice(range.clone());
                // SAFETY: this rank alone writes this range of the root's `recv`, and reads it of any `send`.
                unsafe { self.sum(op, seen, range, 1, |_| (root, out), false) }
            }
            Kind::AllGather => self.collect(seen, own.recv, |_, seen| seen.send),
            Kind::AllToAll if own.send.ptr == own.recv.ptr => self.exchange(seen),
            Kind::AllToAll => self.collect(seen, own.recv, |_, seen| seen.send.part(rank, size)),
            Kind::Broadcast { root } => self.copy(root, seen[root].send, rank, own.recv),
            Kind::Gather { .. } if eager => self.collect(seen, own.recv, |_, seen| seen.send),
            Kind::Gather { root } => self.copy(rank, own.send, root, seen[root].recv.part(rank, size)),
            Kind::Scatter { root } => self.copy(root, seen[root].send.part(rank, size), rank, own.recv),
            Kind::Recv { .. } => self.copy(0, seen[0].send, 1, own.recv),
            Kind::Send { .. } | Kind::SendRecv { .. } | Kind::Barrier => Ok(()),
        }
    }

    /// Copies what every rank gives to its part of `whole`, starting with the next rank so that not all read one memory.
    fn collect(&mut self, seen: &[Seen], whole: RawSlice, given: impl Fn(usize, Seen) -> RawSlice) -> Result<()> {
        for i in 1..=seen.len() {
            let rank = (self.rank + i) % seen.len();
            self.copy(rank, given(rank, seen[rank]), self.rank, whole.part(rank, seen.len()))?;
        }
        Ok(())
    }

    /// All-to-all in place: of each two ranks one swaps their parts.
    fn exchange(&mut self, seen: &[Seen]) -> Result<()> {
        let (rank, size) = (self.rank, seen.len());
        for other in (0..size).filter(|other| swaps(rank, *other)) {
            let (ours, theirs) = (seen[rank].recv.part(other, size), seen[other].recv.part(rank, size));
            if !ours.on_host {
                self.exchange_on_device(ours, theirs)?;
                continue;
            }
            let block = SCRATCH_WORDS * 8;
            for start in (0..ours.bytes()).step_by(block) {
                self.check()?;
                let len = block.min(ours.bytes() - start);
                let aside = self.scratch.as_mut_ptr().cast::<u8>();
                // SAFETY: this rank alone uses these two parts until it has said that it is done; the scratch holds a block.
                unsafe {
                    let (ours, theirs) = (ours.ptr.as_ptr().add(start), theirs.ptr.as_ptr().add(start));
                    std::ptr::copy_nonoverlapping(theirs, aside, len);
                    std::ptr::copy_nonoverlapping(ours, theirs, len);
                    std::ptr::copy_nonoverlapping(aside, ours, len);
                }
                self.wire += 2 * len as u64;
            }
        }
        Ok(())
    }

    /// Swaps two slices of a device's memory by way of the host: slow, but nothing that trains exchanges in place.
    fn exchange_on_device(&mut self, ours: RawSlice, theirs: RawSlice) -> Result<()> {
        let (ours, theirs) = (ours.as_bytes(), theirs.as_bytes());
        let mut aside = vec![0i8; theirs.len];
        // SAFETY: this rank alone uses these two parts until it has said that it is done.
        unsafe {
            self.kernels.download(theirs.view(), ViewMut::of(&mut aside))?;
            self.kernels.copy(ours.view(), theirs.view_mut())?;
            self.kernels.upload(View::of(&aside), ours.view_mut())?;
        }
        self.wire += 2 * ours.len as u64;
        Ok(())
    }

    /// Copies a slice of one rank to another; only called by `work`, whose conditions make both live and apart.
    fn copy(&mut self, giver: usize, from: RawSlice, taker: usize, to: RawSlice) -> Result<()> {
        if from.ptr == to.ptr {
            return Ok(()); // in place
        }
        let bytes = from.bytes().min(to.bytes());
        if !to.on_host {
            self.check()?;
            let (from, to) = (from.as_bytes().slice(0..bytes), to.as_bytes().slice(0..bytes));
            // SAFETY: as below.
            unsafe { self.kernels.copy(from.view(), to.view_mut())? };
            self.wire += if giver == taker { 0 } else { bytes as u64 };
            return Ok(());
        }
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            self.check()?;
            let len = BLOCK_BYTES.min(bytes - start);
            // SAFETY: both hold `bytes` bytes, nobody writes `from` and nobody else uses `to` (`work`).
            unsafe { move_bytes(from.ptr.add(start), to.ptr.add(start), len, bytes >= STREAM_BYTES)? };
            if giver != taker {
                self.wire += len as u64;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Mover::work`]; and nobody else may use `range` of any buffer.
    unsafe fn sum_to_all(&mut self, op: ReduceOp, seen: &[Seen], range: Range<usize>) -> Result<()> {
        let (rank, part) = (self.rank, range.clone());
        let out = |i: usize| {
            let next = (rank + i) % seen.len();
            (next, seen[next].recv.slice(part.clone()))
        };
        // SAFETY: as the caller says.
        unsafe { self.sum(op, seen, range, seen.len(), out, false) }
    }

    /// `range` of what all ranks give, combined, to every one of `count` outs (a rank and where it wants it). Block by block:
    /// where an out may lie on a summand, the result is made aside, since a kernel's operands may not overlap.
    ///
    /// # Safety
    /// As for [`Mover::work`]; and nobody else may use the outs, nor write `range` of any `send`.
    unsafe fn sum(
        &mut self,
        op: ReduceOp,
        seen: &[Seen],
        range: Range<usize>,
        count: usize,
        out: impl Fn(usize) -> (usize, RawSlice),
        accumulate: bool,
    ) -> Result<()> {
        let dtype = seen[self.rank].send.dtype;
        let outs = || (0..count).map(&out);
        let (first_rank, first) = out(0);
        let overlaps = |(rank, out): (usize, RawSlice)| out.ptr == seen[rank].send.slice(range.clone()).ptr;
        // A device's kernel reads an element of all its sources before it writes it, so that a source may be the result too.
        if !first.on_host {
            // SAFETY: as the caller says.
            return unsafe { self.sum_on_device(op, seen, range, outs(), accumulate) };
        }
        let direct = count == 1 && !overlaps((first_rank, first));
        let widest = outs().map(|(_, out)| out.dtype.size()).fold(dtype.size(), usize::max);
        let block = if direct { BLOCK_BYTES } else { SCRATCH_WORDS * 8 } / widest;
        let past_caches = !outs().any(overlaps) && range.len() * dtype.size() * count >= STREAM_BYTES;
        // Few ranks need no block of the heap.
        let none = View::of::<f32>(&[]);
        let (mut few, mut many) = ([none; FEW], Vec::new());
        let sources = if seen.len() <= FEW {
            &mut few[..seen.len()]
        } else {
            many.resize(seen.len(), none);
            &mut many[..]
        };
        for start in range.clone().step_by(block) {
            self.check()?;
            let end = range.end.min(start + block);
            for (rank, member) in seen.iter().enumerate() {
                let source = member.send.slice(start..end);
                self.wire += if rank == self.rank { 0 } else { source.bytes() as u64 };
                // SAFETY: a slice of a live buffer, which nobody writes before this rank does, below.
                sources[rank] = unsafe { View::from_raw(source.ptr, source.dtype, source.len) };
            }
            let part = start - range.start..end - range.start;
            if direct {
                let out = first.slice(part);
                // SAFETY: the outs are this rank's alone for now, and no source lies on it.
                let view = unsafe { ViewMut::from_raw(out.ptr, out.dtype, out.len) };
                self.kernels.reduce(op, sources, accumulate, view)?;
                self.wire += if first_rank == self.rank { 0 } else { out.bytes() as u64 };
                continue;
            }
            let aside = NonNull::from(&mut *self.scratch).cast::<u8>();
            // SAFETY: the scratch holds a block of the widest type, and nobody else knows of it.
            let made = unsafe { ViewMut::from_raw(aside, first.dtype, end - start) };
            self.kernels.reduce(op, sources, accumulate, made)?;
            for (rank, out) in outs() {
                let out = out.slice(part.clone());
                // SAFETY: the summands that may lie there have been read.
                unsafe { move_bytes(aside, out.ptr, out.bytes(), past_caches)? };
                self.wire += if rank == self.rank { 0 } else { out.bytes() as u64 };
            }
        }
        Ok(())
    }

    /// As [`Mover::sum`] in a device's memory: summed to the first out, and copied from there to the others.
    ///
    /// # Safety
    /// As there.
    unsafe fn sum_on_device(
        &mut self,
        op: ReduceOp,
        seen: &[Seen],
        range: Range<usize>,
        mut outs: impl Iterator<Item = (usize, RawSlice)>,
        accumulate: bool,
    ) -> Result<()> {
        self.check()?;
        let Some((rank, first)) = outs.next().filter(|(_, out)| out.len > 0) else { return Ok(()) };
        let mut sources = Vec::with_capacity(seen.len());
        for (rank, member) in seen.iter().enumerate() {
            let source = member.send.slice(range.clone());
            self.wire += if rank == self.rank { 0 } else { source.bytes() as u64 };
            // SAFETY: a slice of a live buffer, which nobody writes before this rank does, below.
            sources.push(unsafe { source.view() });
        }
        // SAFETY: the outs are this rank's alone for now; a source that lies there is read element by element before it is
        // written.
        self.kernels.reduce(op, &sources, accumulate, unsafe { first.view_mut() })?;
        self.wire += if rank == self.rank { 0 } else { first.bytes() as u64 };
        for (rank, out) in outs {
            if out.ptr != first.ptr {
                // SAFETY: the summands that may lie there have been read.
                unsafe { self.kernels.copy(first.view(), out.view_mut())? };
            }
            self.wire += if rank == self.rank { 0 } else { out.bytes() as u64 };
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        (self.ended)().map_or(Ok(()), Err)
    }
}

/// Whether `rank` is the one of the two that swaps their parts: about half of the pairs each.
fn swaps(rank: usize, other: usize) -> bool {
    other != rank && (other < rank) == ((other + rank) % 2 == 1)
}

/// # Safety
/// Both hold `len` bytes and do not overlap; nobody writes the first or uses the second.
unsafe fn move_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize, past_caches: bool) -> Result<()> {
    if !past_caches {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) };
        return Ok(());
    }
    // SAFETY: as the caller says; bytes have no alignment.
    let (from, to) = unsafe { (View::from_raw(from, DType::I8, len), ViewMut::from_raw(to, DType::I8, len)) };
    Ok(stream(from, to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ranks_one_swaps() {
        for size in 1..9 {
            for a in 0..size {
                for b in 0..size {
                    assert_eq!(a != b, swaps(a, b) != swaps(b, a), "{a} and {b} of {size}");
                }
            }
        }
    }
}

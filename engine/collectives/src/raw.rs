//! Elements in memory by address alone, without a lifetime: a collective reads one part of a buffer while it writes another,
//! and peers write into it. Also how an all-reduce divides its buffer among the ranks.

// Addresses become views again here; each function states what its caller has to promise.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use zbench_kernels::{DType, View, ViewMut};

/// Reductions divide their buffers at multiples of this many elements, so that no cache line has two writers.
pub(crate) const PART_ELEMENTS: usize = 16;

/// The elements that `rank` of `size` reduces: equal parts, rounded up, so that the last ranks may have fewer or none.
pub(crate) fn reduce_range(len: usize, rank: usize, size: usize) -> Range<usize> {
    let part = len.div_ceil(size).next_multiple_of(PART_ELEMENTS);
    let bound = |rank: usize| part.saturating_mul(rank).min(len);
    bound(rank)..bound(rank + 1)
}

/// Elements of one type that lie in a row, in memory that this process can name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSlice {
    pub ptr: NonNull<u8>,
    pub len: usize,
    pub dtype: DType,
    /// Else it lies in the memory of the device that the ranks share.
    pub on_host: bool,
}

// SAFETY: an address and a length. Whoever made it keeps the memory in place, and the backend's protocol says who may use it.
unsafe impl Send for RawSlice {}

impl RawSlice {
    #[inline]
    pub(crate) fn empty() -> RawSlice {
        RawSlice { ptr: NonNull::<u64>::dangling().cast(), len: 0, dtype: DType::F32, on_host: true }
    }

    #[inline]
    pub(crate) fn of(view: View<'_>) -> RawSlice {
        RawSlice { ptr: view.ptr(), len: view.len(), dtype: view.dtype(), on_host: view.is_on_host() }
    }

    #[inline]
    pub(crate) fn of_mut(view: &ViewMut<'_>) -> RawSlice {
        RawSlice { ptr: view.ptr(), len: view.len(), dtype: view.dtype(), on_host: view.is_on_host() }
    }

    /// The elements of `range`, cut to what is there, so that no post of a peer can lead outside its buffer.
    #[inline]
    pub(crate) fn slice(self, range: Range<usize>) -> RawSlice {
        let start = range.start.min(self.len);
        let len = range.end.clamp(start, self.len) - start;
        // SAFETY: start is at most `len`, so the address stays inside or one past the end.
        RawSlice { ptr: unsafe { self.ptr.add(start * self.dtype.size()) }, len, ..self }
    }

    /// The `index`-th of `count` equal parts.
    #[inline]
    pub(crate) fn part(self, index: usize, count: usize) -> RawSlice {
        let len = self.len / count;
        self.slice(index * len..(index + 1) * len)
    }

    /// Pieces of at most `len` elements that make up this slice: one at least, be it empty, so that the peer hears of it.
    pub(crate) fn pieces(self, len: usize) -> impl Iterator<Item = RawSlice> {
        (0..self.len.div_ceil(len).max(1)).map(move |index| self.slice(index * len..(index + 1) * len))
    }

    pub(crate) fn as_bytes(self) -> RawSlice {
        RawSlice { len: self.bytes(), dtype: DType::I8, ..self }
    }

    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.len * self.dtype.size()
    }

    /// # Safety
    /// The memory is live and initialised, and nobody writes it during `'a`.
    pub(crate) unsafe fn view<'a>(self) -> View<'a> {
        let of = if self.on_host { View::from_raw } else { View::on_device };
        // SAFETY: as the caller says.
        unsafe { of(self.ptr, self.dtype, self.len) }
    }

    /// # Safety
    /// As for `view`, and nobody else uses the memory during `'a`.
    pub(crate) unsafe fn view_mut<'a>(self) -> ViewMut<'a> {
        let of = if self.on_host { ViewMut::from_raw } else { ViewMut::on_device };
        // SAFETY: as the caller says.
        unsafe { of(self.ptr, self.dtype, self.len) }
    }

    /// Copies host memory to a slice of as many bytes, unless that is the same one.
    ///
    /// # Safety
    /// Both are live host memory, and nobody else writes this slice or uses `to`. They are the same or do not overlap.
    pub(crate) unsafe fn copy_to(self, to: RawSlice) {
        assert_eq!(self.bytes(), to.bytes());
        if self.ptr != to.ptr {
            // SAFETY: the caller's promise, and equal lengths.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr(), to.ptr.as_ptr(), self.bytes()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_reduction_cover_the_buffer_once_and_share_no_cache_line() {
        for (len, size) in [(0, 3), (1, 1), (1, 8), (15, 2), (16, 2), (17, 2), (100, 3), (4097, 6), (1 << 20, 8)] {
            let ranges: Vec<_> = (0..size).map(|rank| reduce_range(len, rank, size)).collect();
            assert_eq!((ranges[0].start, ranges[size - 1].end), (0, len), "{len} over {size}");
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{len} over {size}");
            assert!(ranges.iter().all(|part| part.end == len || part.end % 16 == 0), "{len} over {size}");
        }
    }

    #[test]
    fn a_slice_never_leaves_its_buffer() {
        let data = [0f32; 10];
        let raw = RawSlice::of(View::of(&data));
        assert_eq!(raw.slice(4..20).len, 6);
        assert_eq!(raw.slice(20..30).len, 0);
        assert_eq!(raw.part(2, 3).bytes(), 12);
    }

    #[test]
    fn pieces_cover_a_slice_once() {
        let mut data = [0i32; 10];
        let raw = RawSlice::of_mut(&ViewMut::of(&mut data));
        let lengths = |most| raw.pieces(most).map(|piece| piece.len).collect::<Vec<_>>();
        assert_eq!((lengths(4), lengths(10), lengths(100)), (vec![4, 4, 2], vec![10], vec![10]));
        assert_eq!(raw.slice(3..3).pieces(4).map(|piece| piece.len).collect::<Vec<_>>(), [0]);
        let last = raw.pieces(4).nth(2).unwrap();
        assert_eq!(last.ptr.as_ptr() as usize - raw.ptr.as_ptr() as usize, 32);
    }
}

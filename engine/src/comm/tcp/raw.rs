//! Where the elements of a call lie, without their lifetimes: a collective sends from one part of a buffer while it receives
//! into another.

use std::ops::Range;
use zbench_kernels::{DType, View, ViewMut};

/// A run of elements that live as long as the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    pub at: *mut u8,
    pub len: usize,
    pub dtype: DType,
}

impl Raw {
    pub(super) fn of(view: View<'_>) -> Raw {
        Raw { at: view.ptr().as_ptr(), len: view.len(), dtype: view.dtype() }
    }

    pub(super) fn of_mut(view: &ViewMut<'_>) -> Raw {
        Raw { at: view.ptr().as_ptr(), len: view.len(), dtype: view.dtype() }
    }

    pub(super) fn bytes(self) -> usize {
        self.len * self.dtype.size()
    }

    /// The elements of `range`, cut to what is there.
    pub(super) fn slice(self, range: Range<usize>) -> Raw {
        let start = range.start.min(self.len);
        let len = range.end.clamp(start, self.len) - start;
        // SAFETY: start is at most `len`, so the address stays inside the run or one past it.
        Raw { at: unsafe { self.at.add(start * self.dtype.size()) }, len, ..self }
    }

    /// The `index`-th of `count` equal parts.
    pub(super) fn part(self, index: usize, count: usize) -> Raw {
        let len = self.len / count;
        self.slice(index * len..(index + 1) * len)
    }

    /// The runs of at most `bytes` bytes that make up this one: one at least, be it empty.
    pub(super) fn chunks(self, bytes: usize) -> impl Iterator<Item = Raw> {
        let step = (bytes / self.dtype.size()).max(1);
        (0..self.len.div_ceil(step).max(1)).map(move |index| self.slice(index * step..(index + 1) * step))
    }

    /// # Safety
    /// The memory must be alive, initialised, aligned for its type, and not written during `'a`.
    pub(super) unsafe fn view<'a>(self) -> View<'a> {
        // SAFETY: the caller's promise; an address of a view is never null.
        unsafe { View::from_raw(std::ptr::NonNull::new_unchecked(self.at), self.dtype, self.len) }
    }

    /// # Safety
    /// As for `view`, and nobody else may use the memory during `'a`.
    pub(super) unsafe fn view_mut<'a>(self) -> ViewMut<'a> {
        // SAFETY: the caller's promise; an address of a view is never null.
        unsafe { ViewMut::from_raw(std::ptr::NonNull::new_unchecked(self.at), self.dtype, self.len) }
    }

    /// Copies as many bytes as both have.
    ///
    /// # Safety
    /// Both must be alive, and nobody else may write this run or use `to`. They may be the same run, but not overlap else.
    pub(super) unsafe fn copy_to(self, to: Raw) {
        if self.at != to.at {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(self.at, to.at, self.bytes().min(to.bytes())) };
        }
    }
}

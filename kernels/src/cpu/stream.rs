//! Passes over buffers: in chunks that stay in the nearest cache, as f32 whatever the type, split over the threads.

#![allow(unsafe_code, reason = "parts of one buffer for several threads")]

use super::level::Level;
use crate::memory::view::Extent;
use crate::numerics::round::Float32;
use crate::{DType, Element, View, ViewMut};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements of a chunk: 2 KiB of f32 for each operand.
pub(super) const CHUNK: usize = 512;

/// The least that is worth waking another thread for, and where threads' parts are cut: a multiple of [`CHUNK`].
pub(super) const GRAIN: usize = 16 * CHUNK;

/// A buffer that several threads write, each in ranges of its own.
pub(super) struct Shared<'a> {
    span: Extent,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Shared<'a> {
    pub fn new(view: ViewMut<'a>) -> Shared<'a> {
        Shared { span: *view, life: PhantomData }
    }

    /// Where the first element lies, for buffers that hold f32.
    pub fn address(&self) -> *mut f32 {
        self.span.ptr().as_ptr().cast()
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No other part that is in use may overlap it.
    pub unsafe fn part(&self, range: Range<usize>) -> ViewMut<'_> {
        let part = self.span.part(range);
        // SAFETY: inside the view this was made of, and the caller says that nobody else uses it.
        unsafe { ViewMut::from_raw(part.ptr(), part.dtype(), part.len()) }
    }

    /// As [`Shared::part`], of a buffer that is known to hold T.
    ///
    /// # Safety
    /// As `part`.
    #[allow(
        clippy::mut_from_ref,
        reason = "threads share the view and take parts that do not overlap, as the caller promises"
    )]
    pub unsafe fn elements<T: Element>(&self, range: Range<usize>) -> &mut [T] {
        assert!(self.span.dtype() == T::DTYPE);
        let part = self.span.part(range);
        // SAFETY: inside the view, of its type, and the caller says that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(part.ptr().as_ptr().cast(), part.len()) }
    }
}

/// The elements as T, for a view that is known to hold T.
pub(super) fn elements<'a, T: Float32>(view: &View<'a>) -> &'a [T] {
    // Callers match on the type first.
    view.as_slice().unwrap_or_default()
}

fn elements_mut<'a, T: Float32>(view: &'a mut ViewMut) -> &'a mut [T] {
    view.as_slice_mut().unwrap_or_default()
}

/// The elements as f32: themselves, or converted into `buffer`, which is as long.
pub(super) fn load<'b>(level: Level, view: View<'b>, buffer: &'b mut [f32]) -> &'b [f32] {
    match view.dtype() {
        DType::F32 => elements(&view),
        _ => {
            let buffer = &mut buffer[..view.len()];
            widen(level, view, buffer);
            buffer
        }
    }
}

/// Converts all elements to f32.
pub(super) fn widen(level: Level, view: View<'_>, into: &mut [f32]) {
    fn all<T: Float32>(level: Level, from: &[T], into: &mut [f32]) {
        level.run(
            #[inline(always)]
            |_| {
                for (to, from) in into.iter_mut().zip(from) {
                    *to = from.widen();
                }
            },
        );
    }
    match view.dtype() {
        DType::F32 => all(level, elements::<f32>(&view), into),
        DType::Bf16 => all(level, elements::<bf16>(&view), into),
        DType::F16 => super::halves::widen(level, elements(&view), into),
        DType::F64 | DType::U32 | DType::I32 | DType::I8 => unreachable!("refused before any kernel starts"),
    }
}

/// Rounds all of `from` into the view's type.
pub(super) fn narrow(level: Level, from: &[f32], view: &mut ViewMut<'_>) {
    fn all<T: Float32>(level: Level, from: &[f32], into: &mut [T]) {
        level.run(
            #[inline(always)]
            |_| {
                for (to, from) in into.iter_mut().zip(from) {
                    *to = T::narrow(*from);
                }
            },
        );
    }
    match view.dtype() {
        DType::F32 => all(level, from, elements_mut::<f32>(view)),
        DType::Bf16 => all(level, from, elements_mut::<bf16>(view)),
        DType::F16 => super::halves::narrow(level, from, elements_mut(view)),
        DType::F64 | DType::U32 | DType::I32 | DType::I8 => unreachable!("refused before any kernel starts"),
    }
}

/// A range of a destination as f32: in place, or a buffer that [`close`] rounds back.
pub(super) fn open<'b>(level: Level, view: &'b mut ViewMut, buffer: &'b mut [f32], read: bool) -> &'b mut [f32] {
    if view.dtype() == DType::F32 {
        return elements_mut(view);
    }
    let buffer = &mut buffer[..view.len()];
    if read {
        widen(level, view.as_view(), buffer);
    }
    buffer
}

/// Ends what [`open`] began.
pub(super) fn close(level: Level, view: &mut ViewMut, buffer: &[f32]) {
    if view.dtype() != DType::F32 {
        narrow(level, &buffer[..view.len()], view);
    }
}

pub(super) fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(CHUNK).map(move |start| start..(start + CHUNK).min(range.end))
}

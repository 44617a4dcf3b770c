#![warn(missing_docs)]
#![allow(unsafe_code, reason = "views are addresses with a length")]

use crate::{DType, Element, KernelError};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// A borrowed run of elements in device memory. Shapes live in the operation, not here.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    on_host: bool,
    life: PhantomData<&'a [u8]>,
}

/// A borrowed run of elements in device memory that may be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    on_host: bool,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a View is a shared borrow of plain bytes, as &[u8] is.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: a ViewMut is an exclusive borrow of plain bytes, as &mut [u8] is.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: as above; nothing can be written through &ViewMut.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> View<'a> {
    /// A view of memory that the caller knows to be readable.
    ///
    /// # Safety
    /// `ptr` must be aligned for `dtype` and point to `len` initialised elements that nobody writes during `'a`.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> View<'a> {
        View { ptr, len, dtype, on_host: true, life: PhantomData }
    }

    /// As [`View::from_raw`] in the memory of a device, which the host cannot read.
    ///
    /// # Safety
    /// As there, for the device that the view is given to.
    pub unsafe fn on_device(ptr: NonNull<u8>, dtype: DType, len: usize) -> View<'a> {
        View { ptr, len, dtype, on_host: false, life: PhantomData }
    }

    /// The elements of a slice in host memory.
    pub fn of<T: Element>(slice: &'a [T]) -> View<'a> {
        let ptr = NonNull::from(slice).cast();
        View { ptr, len: slice.len(), dtype: T::DTYPE, on_host: true, life: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the host can reach the elements.
    pub fn is_on_host(&self) -> bool {
        self.on_host
    }

    /// Where the first element lies.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub fn slice(&self, range: Range<usize>) -> View<'a> {
        check(&range, self.len);
        // SAFETY: the range lies inside this view (checked above).
        let ptr = unsafe { self.ptr.add(range.start * self.dtype.size()) };
        View { ptr, len: range.len(), ..*self }
    }

    /// The same bytes as elements of another type: for records that hold several. An error where they do not fit it.
    pub fn reinterpret(&self, dtype: DType) -> Result<View<'a>, KernelError> {
        let len = reinterpreted(self.ptr, self.len, self.dtype, dtype)?;
        // Elements are plain bytes: every pattern of bits is one, and the address is aligned for them.
        Ok(View { len, dtype, ..*self })
    }

    /// The elements' bytes, as the host keeps them; an error where it cannot read them.
    pub fn as_bytes(&self) -> Result<&'a [u8], KernelError> {
        if !self.on_host {
            return Err(KernelError::NotOnHost);
        }
        // SAFETY: a view points to `len` initialised elements of `dtype`, which are plain bytes without padding.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len * self.dtype.size()) })
    }

    /// The elements as a Rust slice; an error when the type is another.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], KernelError> {
        expect::<T>(self.dtype, self.on_host)?;
        // SAFETY: a view points to `len` initialised elements of `dtype`, which is T's, and Pod types have no bad bits.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), self.len) })
    }
}

impl<'a> ViewMut<'a> {
    /// A view of memory that the caller knows to be writable.
    ///
    /// # Safety
    /// `ptr` must be aligned for `dtype` and point to `len` initialised elements that nobody else uses during `'a`.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> ViewMut<'a> {
        ViewMut { ptr, len, dtype, on_host: true, life: PhantomData }
    }

    /// As [`ViewMut::from_raw`] in the memory of a device, which the host cannot write.
    ///
    /// # Safety
    /// As there, for the device that the view is given to.
    pub unsafe fn on_device(ptr: NonNull<u8>, dtype: DType, len: usize) -> ViewMut<'a> {
        ViewMut { ptr, len, dtype, on_host: false, life: PhantomData }
    }

    /// The elements of a slice in host memory.
    pub fn of<T: Element>(slice: &'a mut [T]) -> ViewMut<'a> {
        let len = slice.len();
        ViewMut { ptr: NonNull::from(slice).cast(), len, dtype: T::DTYPE, on_host: true, life: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the host can reach the elements.
    pub fn is_on_host(&self) -> bool {
        self.on_host
    }

    /// Where the first element lies.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Reads what this may write.
    pub fn as_view(&self) -> View<'_> {
        View { ptr: self.ptr, len: self.len, dtype: self.dtype, on_host: self.on_host, life: PhantomData }
    }

    /// The same elements, lent for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { ptr: self.ptr, len: self.len, dtype: self.dtype, on_host: self.on_host, life: PhantomData }
    }

    /// The elements of `range`, lent for a shorter time. Panics when it is out of bounds, as a slice would.
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        self.reborrow().into_slice(range)
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub fn into_slice(self, range: Range<usize>) -> ViewMut<'a> {
        check(&range, self.len);
        // SAFETY: the range lies inside this view (checked above).
        let ptr = unsafe { self.ptr.add(range.start * self.dtype.size()) };
        ViewMut { ptr, len: range.len(), ..self }
    }

    /// The elements before `middle` and those from it on. Panics when it is out of bounds.
    pub fn split_at(self, middle: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        check(&(0..middle), self.len);
        // SAFETY: the two halves do not overlap and lie inside this view.
        let ptr = unsafe { self.ptr.add(middle * self.dtype.size()) };
        let tail = ViewMut { ptr, len: self.len - middle, on_host: self.on_host, dtype: self.dtype, life: PhantomData };
        (ViewMut { len: middle, ..self }, tail)
    }

    /// As [`View::reinterpret`].
    pub fn into_reinterpreted(self, dtype: DType) -> Result<ViewMut<'a>, KernelError> {
        let len = reinterpreted(self.ptr, self.len, self.dtype, dtype)?;
        Ok(ViewMut { len, dtype, ..self })
    }

    /// The elements' bytes, for as long as they are lent; an error where the host cannot write them.
    pub fn into_bytes_mut(self) -> Result<&'a mut [u8], KernelError> {
        if !self.on_host {
            return Err(KernelError::NotOnHost);
        }
        // SAFETY: `len` initialised elements of plain bytes, of which this view, which ends here, was the only user.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len * self.dtype.size()) })
    }

    /// The elements as a Rust slice for as long as they are lent; an error when the type is another.
    pub fn into_slice_mut<T: Element>(self) -> Result<&'a mut [T], KernelError> {
        expect::<T>(self.dtype, self.on_host)?;
        // SAFETY: as View::as_slice, and this view, which ends here, was the only user of the memory.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len) })
    }

    /// The elements as a Rust slice; an error when the type is another.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T], KernelError> {
        expect::<T>(self.dtype, self.on_host)?;
        // SAFETY: as View::as_slice, and this view is the only user of the memory.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len) })
    }
}

/// Elements of type `to` that lie in `len` of type `from`.
fn reinterpreted(ptr: NonNull<u8>, len: usize, from: DType, to: DType) -> Result<usize, KernelError> {
    let (op, bytes, size, at) = ("reinterpret", len * from.size(), to.size(), ptr.addr());
    if !bytes.is_multiple_of(size) || !at.get().is_multiple_of(size) {
        let reason =
            format!("{bytes} bytes at address {at} are no elements of {to}; begin and end at multiples of {size}");
        return Err(KernelError::Invalid { op, reason });
    }
    Ok(bytes / size)
}

fn check(range: &Range<usize>, len: usize) {
    assert!(range.start <= range.end && range.end <= len, "{range:?} of a view of {len} elements");
}

fn expect<T: Element>(dtype: DType, on_host: bool) -> Result<(), KernelError> {
    if !on_host {
        return Err(KernelError::NotOnHost);
    }
    if T::DTYPE == dtype { Ok(()) } else { Err(KernelError::DType { wanted: T::DTYPE, given: dtype }) }
}

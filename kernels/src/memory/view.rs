#![allow(unsafe_code, reason = "views are addresses with a length")]

use crate::{DType, Element, KernelError};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

/// Who reaches elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Host,
    Device,
    /// Nobody: they are a place in a file, and their address is none of memory.
    File,
}

/// Where elements lie, how many there are and of which type: what a [`View`], a [`ViewMut`] and a
/// [`Buffer`](crate::Buffer) have in common.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    ptr: NonNull<u8>,
    len: usize,
    dtype: DType,
    home: Home,
}

// SAFETY: an address and a length; what lies there is guarded by the views and buffers that have it.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl Extent {
    pub(crate) fn new(ptr: NonNull<u8>, dtype: DType, len: usize, home: Home) -> Extent {
        Extent { ptr, len, dtype, home }
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
        self.home == Home::Host
    }

    /// Whether the elements are a place in a file, which nobody reaches: see [`Arena::file`](crate::Arena::file).
    pub fn is_in_file(&self) -> bool {
        self.home == Home::File
    }

    /// An error where the host cannot reach the elements.
    pub(crate) fn expect_on_host(&self) -> Result<(), KernelError> {
        match self.home {
            Home::Host => Ok(()),
            Home::Device => Err(KernelError::NotOnHost),
            Home::File => Err(KernelError::InFile),
        }
    }

    /// A view of these elements.
    ///
    /// # Safety
    /// As for [`View::from_raw`], wherever they lie.
    pub(crate) unsafe fn lend<'a>(self) -> View<'a> {
        View { extent: self, life: PhantomData }
    }

    /// As [`Extent::lend`], for writing.
    ///
    /// # Safety
    /// As for [`ViewMut::from_raw`], wherever they lie.
    pub(crate) unsafe fn lend_mut<'a>(self) -> ViewMut<'a> {
        ViewMut { extent: self, life: PhantomData }
    }

    /// Where the first element lies.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub(crate) fn part(self, range: Range<usize>) -> Extent {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a view of {} elements", self.len);
        // SAFETY: the range lies inside these elements (checked above), which may be a device's or a file's: no memory of the
        // host, whose addresses are only counted.
        let ptr = unsafe { NonNull::new_unchecked(self.ptr.as_ptr().wrapping_add(range.start * self.dtype.size())) };
        Extent { ptr, len: range.len(), ..self }
    }

    fn reinterpret(self, dtype: DType) -> Result<Extent, KernelError> {
        let (op, bytes, size, at) = ("reinterpret", self.len * self.dtype.size(), dtype.size(), self.ptr.addr());
        if !bytes.is_multiple_of(size) || !at.get().is_multiple_of(size) {
            let reason = format!(
                "{bytes} bytes at address {at} are no elements of {dtype}; begin and end at multiples of {size}"
            );
            return Err(KernelError::Invalid { op, reason });
        }
        // Elements are plain bytes: every pattern of bits is one, and the address is aligned for them.
        Ok(Extent { len: bytes / size, dtype, ..self })
    }

    /// An error where the host cannot reach the elements, or they are not of type T.
    fn expect<T: Element>(&self) -> Result<(), KernelError> {
        self.expect_on_host()?;
        if T::DTYPE == self.dtype { Ok(()) } else { Err(KernelError::DType { wanted: T::DTYPE, given: self.dtype }) }
    }
}

/// A borrowed run of elements in device memory. Shapes live in the operation, not here.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    extent: Extent,
    life: PhantomData<&'a [u8]>,
}

/// A borrowed run of elements in device memory that may be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    extent: Extent,
    life: PhantomData<&'a mut [u8]>,
}

impl Deref for View<'_> {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        &self.extent
    }
}

impl Deref for ViewMut<'_> {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        &self.extent
    }
}

impl<'a> View<'a> {
    /// A view of memory that the caller knows to be readable.
    ///
    /// # Safety
    /// `ptr` must be aligned for `dtype` and point to `len` initialised elements that nobody writes during `'a`.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> View<'a> {
        View { extent: Extent::new(ptr, dtype, len, Home::Host), life: PhantomData }
    }

    /// As [`View::from_raw`] in the memory of a device, which the host cannot read.
    ///
    /// # Safety
    /// As there, for the device that the view is given to.
    pub unsafe fn on_device(ptr: NonNull<u8>, dtype: DType, len: usize) -> View<'a> {
        View { extent: Extent::new(ptr, dtype, len, Home::Device), life: PhantomData }
    }

    /// The elements of a slice in host memory.
    pub fn of<T: Element>(slice: &'a [T]) -> View<'a> {
        View { extent: Extent::new(NonNull::from(slice).cast(), T::DTYPE, slice.len(), Home::Host), life: PhantomData }
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub fn slice(&self, range: Range<usize>) -> View<'a> {
        View { extent: self.extent.part(range), ..*self }
    }

    /// The same bytes as elements of another type: for records that hold several. An error where they do not fit it.
    pub fn reinterpret(&self, dtype: DType) -> Result<View<'a>, KernelError> {
        Ok(View { extent: self.extent.reinterpret(dtype)?, ..*self })
    }

    /// The elements' bytes, as the host keeps them; an error where it cannot read them.
    pub fn as_bytes(&self) -> Result<&'a [u8], KernelError> {
        self.expect_on_host()?;
        // SAFETY: a view points to `len` initialised elements of `dtype`, which are plain bytes without padding.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len * self.dtype.size()) })
    }

    /// The elements as a Rust slice; an error when the type is another.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], KernelError> {
        self.expect::<T>()?;
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
        ViewMut { extent: Extent::new(ptr, dtype, len, Home::Host), life: PhantomData }
    }

    /// As [`ViewMut::from_raw`] in the memory of a device, which the host cannot write.
    ///
    /// # Safety
    /// As there, for the device that the view is given to.
    pub unsafe fn on_device(ptr: NonNull<u8>, dtype: DType, len: usize) -> ViewMut<'a> {
        ViewMut { extent: Extent::new(ptr, dtype, len, Home::Device), life: PhantomData }
    }

    /// The elements of a slice in host memory.
    pub fn of<T: Element>(slice: &'a mut [T]) -> ViewMut<'a> {
        let len = slice.len();
        ViewMut { extent: Extent::new(NonNull::from(slice).cast(), T::DTYPE, len, Home::Host), life: PhantomData }
    }

    /// Reads what this may write.
    pub fn as_view(&self) -> View<'_> {
        View { extent: self.extent, life: PhantomData }
    }

    /// The same elements, lent for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { extent: self.extent, life: PhantomData }
    }

    /// The elements of `range`, lent for a shorter time. Panics when it is out of bounds, as a slice would.
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_> {
        self.reborrow().into_slice(range)
    }

    /// The elements of `range`. Panics when it is out of bounds, as a slice would.
    pub fn into_slice(self, range: Range<usize>) -> ViewMut<'a> {
        ViewMut { extent: self.extent.part(range), ..self }
    }

    /// The elements before `middle` and those from it on. Panics when it is out of bounds.
    pub fn split_at(self, middle: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let (head, tail) = (self.extent.part(0..middle), self.extent.part(middle..self.len));
        // The two halves do not overlap.
        (ViewMut { extent: head, life: PhantomData }, ViewMut { extent: tail, life: PhantomData })
    }

    /// As [`View::reinterpret`].
    pub fn into_reinterpreted(self, dtype: DType) -> Result<ViewMut<'a>, KernelError> {
        Ok(ViewMut { extent: self.extent.reinterpret(dtype)?, ..self })
    }

    /// The elements' bytes, for as long as they are lent; an error where the host cannot write them.
    pub fn into_bytes_mut(self) -> Result<&'a mut [u8], KernelError> {
        self.expect_on_host()?;
        // SAFETY: `len` initialised elements of plain bytes, of which this view, which ends here, was the only user.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len * self.dtype.size()) })
    }

    /// The elements as a Rust slice for as long as they are lent; an error when the type is another.
    pub fn into_slice_mut<T: Element>(self) -> Result<&'a mut [T], KernelError> {
        self.expect::<T>()?;
        // SAFETY: as View::as_slice, and this view, which ends here, was the only user of the memory.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len) })
    }

    /// The elements as a Rust slice; an error when the type is another.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T], KernelError> {
        self.reborrow().into_slice_mut()
    }
}

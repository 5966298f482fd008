//! Where kernels and passes store.

use core::mem::MaybeUninit;

/// The end of `count` parts, `step` apart, of which the last has `len` elements. It is `usize::MAX`, and so
/// beyond the end of any slice, if it is outside of the address space.
#[inline]
pub(crate) fn end(count: usize, step: usize, len: usize) -> usize {
    count.saturating_sub(1).saturating_mul(step).saturating_add(len)
}

/// A region of the output that one tile writes. Its holder alone has the right to write the elements
/// that it names.
#[derive(Debug)]
pub struct Dest<'a, T> {
    y: *mut T,
    len: usize,
    life: core::marker::PhantomData<&'a mut T>,
}

impl<'a, T> Dest<'a, T> {
    /// The elements `y[..len]`.
    ///
    /// # Safety
    /// Memory: `y` is valid for writes of `len` elements during `'a`. Nobody else reads or
    /// writes, during `'a`, those of these elements that the holder is going to write. Others may
    /// write the remaining elements of the range at the same time.
    #[must_use]
    pub unsafe fn new(y: *mut T, len: usize) -> Self {
        Self { y, len, life: core::marker::PhantomData }
    }

    /// The elements of a slice.
    #[must_use]
    pub fn from_slice(y: &'a mut [T]) -> Self {
        Self { y: y.as_mut_ptr(), len: y.len(), life: core::marker::PhantomData }
    }

    /// The elements of a slice, which may be uninitialised.
    pub(crate) fn from_uninit(y: &'a mut [MaybeUninit<T>]) -> Self {
        Self { y: y.as_mut_ptr().cast(), len: y.len(), life: core::marker::PhantomData }
    }

    /// The elements from `offset` on, for as long as `self` is borrowed.
    ///
    /// # Panics
    /// If `offset` is beyond the end.
    #[must_use]
    pub fn from(&mut self, offset: usize) -> Dest<'_, T> {
        assert!(offset <= self.len, "the offset is beyond the end");
        // The part has no more rights than the whole, and its borrow ends before the whole is
        // used again.
        Dest { y: self.y.wrapping_add(offset), len: self.len - offset, life: core::marker::PhantomData }
    }

    /// The elements `at..at + len`, which the holder is going to write.
    ///
    /// # Panics
    /// If they end behind the destination.
    pub(crate) fn row(&mut self, at: usize, len: usize) -> &mut [MaybeUninit<T>] {
        assert!(at <= self.len && len <= self.len - at, "the row ends beyond the destination");
        // SAFETY: in bounds by the assertion. Nobody else accesses what the holder is going to write,
        // and the borrow of the holder ends with the slice. The elements may be uninitialised.
        unsafe { core::slice::from_raw_parts_mut(self.y.add(at).cast(), len) }
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.y
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

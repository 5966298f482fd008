//! The output tensor, shared by the tasks of one run, each of which writes elements of its own.
#![expect(
    unsafe_code,
    reason = "tasks on several threads write interleaved rows of one slice, which no safe split of it can express"
)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use convoke_kernels::Dest;

/// An output tensor that is being written.
///
/// Every lowering splits the output among its tasks so that no element belongs to two of them; that is the contract that makes the accesses
/// below sound, and that the tests of dirty outputs and of thread counts check.
pub(crate) struct Output<'a, T> {
    y: *mut T,
    len: usize,
    life: PhantomData<&'a mut [MaybeUninit<T>]>,
}

// SAFETY: an Output is the exclusive borrow of a slice of plain data; tasks on other threads write disjoint elements of it (see above).
unsafe impl<T: Send> Sync for Output<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Output<'_, T> {}

impl<'a, T: Copy> Output<'a, T> {
    pub(crate) fn new(y: &'a mut [MaybeUninit<T>]) -> Self {
        Self { y: y.as_mut_ptr().cast(), len: y.len(), life: PhantomData }
    }

    /// The tensor from element `offset` on, for a kernel that writes the calling task's elements of it, and only those.
    pub(crate) fn dest(&self, offset: usize) -> Dest<'_, T> {
        assert!(offset <= self.len);
        // SAFETY: in bounds by the assertion; the elements written are the calling task's own by the contract of this type.
        unsafe { Dest::new(self.y.add(offset), self.len - offset) }
    }

    /// `len` consecutive elements from `offset` on, all of which are the calling task's own.
    #[expect(clippy::mut_from_ref, reason = "each element has one task, by the contract of this type")]
    pub(crate) fn row(&self, offset: usize, len: usize) -> &mut [MaybeUninit<T>] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: in bounds by the assertion; the elements are the calling task's own by the contract of this type.
        unsafe { core::slice::from_raw_parts_mut(self.y.add(offset).cast(), len) }
    }

    /// Writes element `offset`, which is the calling task's own.
    pub(crate) fn write(&self, offset: usize, value: T) {
        assert!(offset < self.len);
        // SAFETY: in bounds by the assertion; the element is the calling task's own by the contract of this type.
        unsafe { self.y.add(offset).write(value) };
    }
}

/// The slice, initialised: for the end of a run that wrote every element.
pub(crate) fn assume_init<T: Copy>(y: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: MaybeUninit<T> has T's layout; the caller is Plan::run_uninit, at whose end every element has been written.
    unsafe { &mut *(core::ptr::from_mut(y) as *mut [T]) }
}

/// An initialised slice as one that a run may write. A run only writes values, so that it stays initialised.
pub(crate) fn as_uninit<T: Copy>(y: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: MaybeUninit<T> has T's layout, and no user of the result writes uninitialised values: kernels store computed values only.
    unsafe { &mut *(core::ptr::from_mut(y) as *mut [MaybeUninit<T>]) }
}

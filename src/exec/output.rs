//! The output tensor, shared by the tasks of one run, each of which writes elements of its own.
#![expect(
    unsafe_code,
    reason = "tasks on several threads write interleaved rows of one slice, which no safe split of it can express"
)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use convoke_kernels::Dest;

use super::{Line, Threads};
use crate::element::Element;
use crate::lower::{Io, Lowering};
use crate::plan::Packing;

/// Where a run writes Y: memory of the caller.
pub(crate) enum Target<'y, T> {
    /// Stays initialised, because a run only writes values.
    Init(&'y mut [T]),
    /// Need not be initialised before.
    Uninit(&'y mut [MaybeUninit<T>]),
}

/// What a run reads.
pub(crate) struct Inputs<'a, T: Element> {
    pub(crate) x: &'a [T],
    pub(crate) packed: &'a Packing<T>,
    pub(crate) residual: Option<&'a [T]>,
}

impl<'y, T: Element> Target<'y, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Init(y) => y.len(),
            Self::Uninit(y) => y.len(),
        }
    }

    /// Runs all tasks of a lowering, each thread with `share` lines of scratch; gives Y back, initialised.
    ///
    /// This and [`Output`] are sound by what every [`Lowering`] keeps: its tasks together write every element of Y, each in exactly one of them.
    pub(crate) fn fill(
        self,
        lowering: &dyn Lowering<T>,
        inputs: &Inputs<'_, T>,
        threads: Threads<'_>,
        scratch: &mut [Line],
        share: usize,
    ) -> &'y mut [T] {
        let (y, len) = match self {
            Self::Init(y) => (y.as_mut_ptr(), y.len()),
            Self::Uninit(y) => (y.as_mut_ptr().cast(), y.len()),
        };
        let Inputs { x, packed, residual } = *inputs;
        let (weights, bias, is_finite) = (packed.values(), &*packed.bias, packed.is_finite);
        let io = Io { x, weights, bias, is_finite, residual, y: Output { y, len, life: PhantomData } };
        threads.for_each(lowering.tasks(), scratch, share, &|task, scratch| lowering.run(task, &io, scratch));
        // SAFETY: the slice is the one that was handed in, borrowed for 'y, and no task accesses it any more. Every element is initialised: each
        // of 0..tasks() has returned, and together they write all of them.
        unsafe { core::slice::from_raw_parts_mut(y, len) }
    }
}

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

impl<T: Copy> Output<'_, T> {
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

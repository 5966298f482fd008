//! Who may write which elements of Y. All unsafe code about Y is in this file.
//!
//! A run takes a split of Y among tasks that is [`Proven`]: each element of Y has one task. A task gets
//! a [`Region`], the right to write its part. Nothing else can write Y.
//!
//! Memory safety rests on what `Lowering::run` promises: a task writes every element of its region and
//! no other, and writes an element before it applies an activation to it. Types cannot express this,
//! because kernels write through pointers. So every access is checked to lie within Y, and the tests
//! fill Y with NaN first. With debug assertions, accesses are also checked to lie within the task's
//! patches, unless these are more than [`MOST_PATCHES`].
#![expect(
    unsafe_code,
    reason = "tasks on several threads write interleaved rows of one slice, which no safe split of it can express"
)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;

use convoke_kernels::activation::ActivationKernel;
use convoke_kernels::{Dest, Isa, Residual, stream};

use super::split::{Proven, Shape, Split};
use super::{Line, Threads};
use crate::Element;
use crate::spec::Strides;

/// Where a run writes Y.
pub(crate) enum Target<'y, T> {
    /// Stays initialised, because a run writes only values.
    Init(&'y mut [T]),
    Uninit(&'y mut [MaybeUninit<T>]),
}

impl<'y, T: Copy + Send> Target<'y, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Init(y) => y.len(),
            Self::Uninit(y) => y.len(),
        }
    }

    pub(crate) fn is_init(&self) -> bool {
        matches!(self, Self::Init(_))
    }

    /// Y as it was, if no element of it is one of a pixel.
    ///
    /// # Panics
    /// If elements would stay uninitialised.
    pub(crate) fn without_writes(self) -> &'y mut [T] {
        match self {
            Self::Init(y) => y,
            Self::Uninit(y) => {
                assert!(y.is_empty(), "every element of Y is one of a pixel");
                &mut []
            }
        }
    }

    /// Runs all tasks of a split for each of some images, on `slots` of the threads, each with `share`
    /// lines of scratch, and gives Y back, initialised.
    ///
    /// `run` executes one task of an image. Memory safety rests on it: unless it panics, it must write
    /// every element of the task's region, and no other element.
    ///
    /// # Panics
    /// If Y is shorter than the images, or if elements between them would stay uninitialised.
    pub(crate) fn fill<S: Split + ?Sized>(
        self,
        split: &Proven<'_, S>,
        (images, strides): (SpacedImages, Strides),
        (threads, slots): (Threads<'_>, usize),
        (scratch, share): (&mut [Line], usize),
        run: &(impl Fn(usize, usize, Region<'_, T>, &mut [Line]) + Sync),
    ) -> &'y mut [T] {
        let (y, y_len, is_init) = match self {
            Self::Init(y) => (y.as_mut_ptr(), y.len(), true),
            Self::Uninit(y) => (y.as_mut_ptr().cast(), y.len(), false),
        };
        let (shape, split, len) = (split.shape(), split.split(), images.len);
        assert_eq!(Some(len), shape.span(&strides), "the split is one of an image");
        assert!(is_init || len == shape.len(), "every element of Y is one of a pixel");
        assert!(images.stride >= len && images.span() <= y_len, "the images are within Y");
        assert!(is_init || images.count * len == y_len, "every element of Y is one of an image");
        for image in 0..images.count {
            // SAFETY: the image is within Y.
            let y = Shared(unsafe { y.add(image * images.stride) });
            threads.for_each(slots, split.tasks(), scratch, share, &|task, scratch: &mut [Line]| {
                let is_checked = cfg!(debug_assertions) && has_few_patches(&split, task);
                let region = Region {
                    y: y.pointer(),
                    len,
                    is_init,
                    split: &split,
                    shape,
                    strides,
                    task,
                    is_checked,
                    life: PhantomData,
                };
                run(image, task, region, scratch);
            });
        }
        // SAFETY: the slice is the one that was handed in, borrowed for 'y, and no task accesses it
        // any more. Every element is initialised: it was before, or it is one of an image. There, each
        // task has written its region, as `run` promises, and together the regions are the image,
        // because the split is proven.
        unsafe { core::slice::from_raw_parts_mut(y, y_len) }
    }
}

/// The images of a tensor, or its whole batch as one, each contiguous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpacedImages {
    pub(crate) count: usize,
    pub(crate) len: usize,
    pub(crate) stride: usize,
}

impl SpacedImages {
    pub(crate) fn get<'a, T>(&self, tensor: &'a [T], image: usize) -> &'a [T] {
        &tensor[image * self.stride..][..self.len]
    }

    /// Elements from the beginning of the first image to the end of the last one.
    pub(crate) fn span(&self) -> usize {
        self.checked_span().expect("images are within a slice")
    }

    /// The same. None if the address space is smaller.
    pub(crate) fn checked_span(&self) -> Option<usize> {
        match self.count.checked_sub(1) {
            Some(others) => others.checked_mul(self.stride)?.checked_add(self.len),
            None => Some(0),
        }
    }
}

/// Accesses are checked for up to so many patches of a task, because each check looks at all of them.
const MOST_PATCHES: usize = 1 << 12;

fn has_few_patches(split: &dyn Split, task: usize) -> bool {
    let mut count = 0;
    split.patches(task, &mut |_| count += 1);
    count <= MOST_PATCHES
}

/// The beginning of Y, for all threads.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    fn pointer(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer is that of an exclusive borrow of plain data; threads write disjoint elements
// through it, because each uses it in a Region alone, and those of a proven split are disjoint.
unsafe impl<T: Send> Sync for Shared<T> {}

/// What a kernel call stores: rows of `len` neighbouring elements. For each of two dimensions there are
/// `count` of them, `step` apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stores {
    at: usize,
    len: usize,
    dims: [(usize, usize); 2],
}

impl Stores {
    /// One row, from element `at` of Y on.
    pub(crate) fn row(at: usize, len: usize) -> Self {
        Self { at, len, dims: [(1, 0); 2] }
    }

    /// Repeats it `count` times, `step` elements apart. Can be called twice, for two dimensions.
    pub(crate) fn times(self, count: usize, step: usize) -> Self {
        debug_assert_eq!(self.dims[0], (1, 0), "two dimensions");
        Self { dims: [self.dims[1], (count, step)], ..self }
    }
}

/// The right of one task to write its part of Y.
pub(crate) struct Region<'a, T> {
    y: *mut T,
    len: usize,
    /// Whether Y is initialised before the run.
    is_init: bool,
    split: &'a dyn Split,
    shape: &'a Shape,
    strides: Strides,
    task: usize,
    /// Whether accesses are checked against the patches.
    is_checked: bool,
    life: PhantomData<&'a mut [MaybeUninit<T>]>,
}

impl<T: Element> Region<'_, T> {
    /// Rounds finished sums, and stores them from element `at` on.
    pub(crate) fn store(&self, isa: Isa, sums: &[T::Acc], at: usize) {
        self.check(at, sums.len());
        assert!(at <= self.len && sums.len() <= self.len - at);
        // SAFETY: in bounds by the assertion, and initialised or not, as `MaybeUninit` allows. The
        // elements are this task's and no other task's, because regions are disjoint. No other
        // reference to them exists: the slice ends with this function, and all other accesses are
        // through pointers.
        let row = unsafe { core::slice::from_raw_parts_mut(self.y.add(at).cast::<MaybeUninit<T>>(), sums.len()) };
        stream::narrow(isa, sums, row);
    }

    /// Rounds finished sums, and stores `columns` of rows of `pitch` sums. Row i goes to Y from `at + i
    /// * ld` on.
    pub(crate) fn store_rows(
        &self,
        isa: Isa,
        (sums, pitch): (&[T::Acc], usize),
        columns: Range<usize>,
        (at, ld): (usize, usize),
    ) {
        if columns.is_empty() {
            return;
        }
        let rows = sums.len().div_ceil(pitch);
        let mut y = self.dest(at, [Stores::row(at, columns.len()).times(rows, ld)]);
        stream::narrow_rows(isa, (rows, columns.len()), (&sums[columns.start..], pitch), (&mut y, ld));
    }

    /// Applies an activation to what a call has just stored, if Y has the computing type.
    pub(crate) fn activate(&self, activation: ActivationKernel<T::Acc>, stores: Stores) {
        let Stores { at, len, dims: [(outer, outer_step), (rows, step)] } = stores;
        for at in (0..outer).map(|i| at + i * outer_step) {
            let Some(mut y) = T::dest_as_acc(self.dest(at, [Stores::row(at, len).times(rows, step)])) else { return };
            // SAFETY: the call has written the elements.
            unsafe { activation.rows(&mut y, (rows, len), step) };
        }
    }
}

impl<T: Copy> Region<'_, T> {
    pub(crate) fn shape(&self) -> &Shape {
        self.shape
    }

    /// Y from element `at` on, for a kernel call that stores only what `stores` lists: nothing, if it
    /// only prefetches.
    #[inline(always)]
    pub(crate) fn dest(&self, at: usize, stores: impl IntoIterator<Item = Stores>) -> Dest<'_, T> {
        if cfg!(debug_assertions) && self.is_checked {
            for Stores { at: first, len, dims: [outer, inner] } in stores {
                debug_assert!(first >= at, "element {first} is before {at}");
                for row in (0..outer.0).flat_map(|o| (0..inner.0).map(move |i| o * outer.1 + i * inner.1)) {
                    self.check(first + row, len);
                }
            }
        }
        assert!(at <= self.len);
        // SAFETY: in bounds by the assertion. The elements that are written are this task's,
        // because they are in its region, and no other task's, because regions are disjoint.
        unsafe { Dest::new(self.y.add(at), self.len - at) }
    }

    /// What Y holds, as the residual of a kernel call that stores by this `dest`.
    ///
    /// # Panics
    /// If Y was not initialised before the run.
    pub(crate) fn residual<'d, A>(&self, dest: &Dest<'d, A>) -> Residual<'d, A> {
        assert!(self.is_init, "Y holds no residual");
        // SAFETY: all elements of Y are initialised.
        unsafe { Residual::of_dest(dest) }
    }

    /// Copies what Y holds from element `at` on.
    ///
    /// # Panics
    /// If Y was not initialised before the run.
    pub(crate) fn read(&self, at: usize, values: &mut [T]) {
        self.check(at, values.len());
        assert!(self.is_init, "Y holds no residual");
        assert!(at <= self.len && values.len() <= self.len - at);
        // SAFETY: in bounds by the assertion, and initialised. No other task writes the elements,
        // because regions are disjoint, and nobody has a reference to them.
        unsafe { values.as_mut_ptr().copy_from_nonoverlapping(self.y.add(at), values.len()) };
    }

    pub(crate) fn write(&self, at: usize, value: T) {
        self.check(at, 1);
        assert!(at < self.len);
        // SAFETY: as in `dest`.
        unsafe { self.y.add(at).write(value) };
    }

    /// Asserts that `len` neighbouring elements from `at` on are this task's.
    fn check(&self, at: usize, len: usize) {
        if cfg!(debug_assertions) && self.is_checked && len > 0 {
            let mut is_own = false;
            let (shape, strides) = (self.shape, &self.strides);
            self.split.patches(self.task, &mut |patch| {
                is_own |= match shape.has_planes(strides) {
                    true => patch.contains(shape, at, len),
                    false => (at..at + len).all(|at| patch.contains_in_pixel(shape, strides, at)),
                };
            });
            debug_assert!(is_own, "elements {at}..{} are not those of task {}", at + len, self.task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::listed::{check, every_second};
    use super::*;

    const ONE_OF_24: (SpacedImages, Strides) =
        (SpacedImages { count: 1, len: 24, stride: 24 }, Strides { image: 12, channel: 4, position: 1 });

    #[test]
    fn a_region_gives_its_own_elements() {
        let split = check(&[&[every_second(0)], &[every_second(1)]]).unwrap();
        let y = &mut [MaybeUninit::uninit(); 24];
        let run = |_: usize, task: usize, region: Region<'_, u8>, _: &mut [Line]| {
            for plane in 0..6 {
                region.write(4 * plane + task, task as u8);
                _ = region.dest(4 * plane + task + 2, [Stores::row(4 * plane + task + 2, 1)]);
                region.write(4 * plane + task + 2, task as u8);
            }
        };
        let y = Target::Uninit(y).fill(&split.proven().unwrap(), ONE_OF_24, (Threads::Serial, 1), (&mut [], 0), &run);
        assert_eq!(y[..4], [0, 1, 0, 1]);
    }

    /// Runs the first of two tasks, which has every second of 24 elements.
    #[cfg(debug_assertions)]
    fn with_every_second(run: impl Fn(Region<'_, f32>) + Sync) {
        let split = check(&[&[every_second(0)], &[every_second(1)]]).unwrap();
        let run = |_: usize, task: usize, region: Region<'_, f32>, _: &mut [Line]| {
            if task == 0 {
                run(region);
            }
        };
        Target::Init(&mut [0.0; 24]).fill(
            &split.proven().unwrap(),
            ONE_OF_24,
            (Threads::Serial, 1),
            (&mut [], 0),
            &run,
        );
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 1..2 are not those of task 0")]
    fn another_tasks_element_is_refused() {
        with_every_second(|region| region.write(1, 1.0));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 1..2 are not those of task 0")]
    fn a_row_of_many_that_is_another_tasks_is_refused() {
        with_every_second(|region| region.store_rows(Isa::Portable, (&[1.0, 2.0], 1), 0..1, (0, 1)));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 0..2 are not those of task 0")]
    fn a_row_that_reaches_into_another_tasks_is_refused() {
        with_every_second(|region| region.store(Isa::Portable, &[1.0, 2.0], 0));
    }

    /// Kernels assert that what they store is within it.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the offset is beyond the end")]
    fn a_kernels_destination_ends_where_y_does() {
        with_every_second(|region| _ = region.dest(20, []).from(5));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 5..6 are not those of task 0")]
    fn a_kernels_stores_are_checked_one_by_one() {
        with_every_second(|region| _ = region.dest(0, [Stores::row(0, 1).times(2, 5)]));
    }
}

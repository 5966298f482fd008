//! Who may write which elements of Y. All unsafe code about Y is in this file.
//!
//! A [`Split`] says, as plain data, which part of Y each task writes: a few [`Patch`]es, boxes of
//! images, channels and positions. A task is handed a [`Region`], the right to write its part, and
//! Y can be written through it alone.
//!
//! These things are checked:
//!
//! - Every access lies within Y. This bound is always checked.
//! - The patches of all tasks have as many elements as Y, within Y ([`count`]). That is checked
//!   whenever a layer is planned, and a split without tasks is refused in every run.
//! - The patches of all tasks are disjoint, and together they are Y ([`prove`]). With debug
//!   assertions this is checked whenever a layer is planned, unless its Y is very large. The
//!   command `convoke-tools plans`, which CI runs, checks it for all its plans, whatever their Y.
//! - Every access lies within the task's patches. With debug assertions this is checked, unless a
//!   task has more than [`MOST_PATCHES`] patches.
#![expect(
    unsafe_code,
    reason = "tasks on several threads write interleaved rows of one slice, which no safe split of it can express"
)]

use alloc::format;
use alloc::string::String;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;

use convoke_kernels::{Dest, Isa, stream};

use super::{Line, Threads};
use crate::{Element, Geometry};

/// The sizes of Y that offsets are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    /// Positions of a channel, over all spatial axes.
    pub(crate) positions: usize,
}

impl Shape {
    pub(crate) fn of(geometry: &Geometry) -> Self {
        Self { images: geometry.batch, channels: geometry.out_channels, positions: geometry.output_spatial() }
    }
}

/// Places along one axis: `count` of them, `step` apart, of an axis of `size` places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) size: usize,
    pub(crate) start: usize,
    pub(crate) step: usize,
    pub(crate) count: usize,
}

impl Span {
    /// Neighbouring places.
    pub(crate) fn new(range: Range<usize>, size: usize) -> Self {
        Self { size, start: range.start, step: 1, count: range.len() }
    }

    /// All places of an axis.
    pub(crate) fn whole(size: usize) -> Self {
        Self::new(0..size, size)
    }

    /// Whether the places exist on the axis.
    fn is_within(&self) -> bool {
        self.count == 0 || self.start + (self.count - 1) * self.step < self.size
    }

    fn contains(&self, place: usize) -> bool {
        place.checked_sub(self.start).is_some_and(|at| at % self.step == 0 && at / self.step < self.count)
    }

    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { start, step, count, .. } = *self;
        (0..count).map(move |i| start + i * step)
    }
}

/// A box of Y: all combinations of some images, channels, and places along three axes.
///
/// The product of the axes' sizes is the number of positions of a channel. A lowering that knows a
/// position by one number has two axes of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) images: Range<usize>,
    pub(crate) channels: Range<usize>,
    pub(crate) axes: [Span; 3],
}

impl Patch {
    /// Neighbouring positions of some channels, of `size` positions each.
    pub(crate) fn rows(images: Range<usize>, channels: Range<usize>, positions: Range<usize>, size: usize) -> Self {
        Self { images, channels, axes: [Span::whole(1), Span::whole(1), Span::new(positions, size)] }
    }

    /// Calls `patch` with the boxes of any number of axes: the places along axis i are `span(i)`.
    /// Of more than three axes, each place of the first ones makes a box of its own.
    pub(crate) fn for_each_box(
        images: Range<usize>,
        channels: &Range<usize>,
        axes: usize,
        span: impl Fn(usize) -> Span,
        patch: &mut dyn FnMut(Patch),
    ) {
        let axis = |from_last: usize| axes.checked_sub(from_last + 1).map_or(Span::whole(1), &span);
        let first = axes.saturating_sub(3);
        let boxes: usize = (0..first).map(|i| span(i).count).product();
        let (places, inner) = ((0..first).map(|i| span(i).size).product::<usize>(), axis(2));
        for index in 0..boxes {
            let (mut rest, mut place, mut step) = (index, 0, 1);
            for span in (0..first).rev().map(&span) {
                place += (span.start + rest % span.count * span.step) * step;
                rest /= span.count;
                step *= span.size;
            }
            let outer = Span { size: places * inner.size, start: place * inner.size + inner.start, ..inner };
            patch(Self { images: images.clone(), channels: channels.clone(), axes: [outer, axis(1), axis(0)] });
        }
    }

    /// Whether all its places exist in Y.
    fn is_within(&self, shape: &Shape) -> bool {
        let positions: usize = self.axes.iter().map(|span| span.size).product();
        self.images.end <= shape.images
            && self.channels.end <= shape.channels
            && positions == shape.positions
            && self.axes.iter().all(Span::is_within)
    }

    /// Whether elements `at..at + len` belong to it: each row that they lie in is looked at.
    fn contains(&self, shape: &Shape, mut at: usize, mut len: usize) -> bool {
        while len > 0 {
            let of_row = len.min(self.axes[2].size - at % self.axes[2].size);
            if !self.contains_in_row(shape, at, of_row) {
                return false;
            }
            (at, len) = (at + of_row, len - of_row);
        }
        true
    }

    /// Whether elements of one row belong to it.
    fn contains_in_row(&self, shape: &Shape, at: usize, len: usize) -> bool {
        let [outer, inner, last] = &self.axes;
        let (plane, position) = (at / shape.positions, at % shape.positions);
        let (image, channel) = (plane / shape.channels, plane % shape.channels);
        let (rest, place) = (position / last.size, position % last.size);
        self.images.contains(&image)
            && self.channels.contains(&channel)
            && outer.contains(rest / inner.size)
            && inner.contains(rest % inner.size)
            && last.contains(place)
            && (len == 1 || last.step == 1 && place + len <= last.start + last.count)
    }

    /// Calls `run` with the first element and the length of each row of it.
    fn for_each_run(&self, shape: &Shape, mut run: impl FnMut(usize, usize)) {
        let [outer, inner, last] = self.axes;
        for plane in
            self.images.clone().flat_map(|image| self.channels.clone().map(move |c| image * shape.channels + c))
        {
            for row in outer.places().flat_map(|o| inner.places().map(move |i| o * inner.size + i)) {
                let at = plane * shape.positions + row * last.size;
                if last.step == 1 {
                    run(at + last.start, last.count);
                } else {
                    last.places().for_each(|place| run(at + place, 1));
                }
            }
        }
    }
}

/// How the elements of Y are shared among tasks.
///
/// The parts of all tasks are disjoint, and together they are Y. Memory safety rests on it.
pub(crate) trait Split: Send + Sync {
    /// Number of tasks, which are independent of each other.
    fn tasks(&self) -> usize;

    /// Calls `patch` with each part of Y that task number `task` writes.
    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch));
}

/// Checks that the patches of a split lie within Y, and have as many elements. It takes a step for
/// each patch.
///
/// # Errors
/// The first patch that is not within Y, or both numbers of elements.
pub(crate) fn count(split: &dyn Split, shape: &Shape) -> Result<(), String> {
    let (mut elements, mut outside) = (0_usize, None);
    for task in 0..split.tasks() {
        split.patches(task, &mut |patch| {
            if !patch.is_within(shape) {
                outside.get_or_insert_with(|| format!("{patch:?} of task {task} is not within {shape:?}"));
            }
            let places: usize = patch.axes.iter().map(|span| span.count).product();
            elements += patch.images.len() * patch.channels.len() * places;
        });
    }
    match (outside, shape.images * shape.channels * shape.positions) {
        (Some(outside), _) => Err(outside),
        (None, len) if elements != len => Err(format!("the tasks have {elements} elements, Y has {len}")),
        (None, _) => Ok(()),
    }
}

/// Checks that the patches of a split are disjoint and cover Y. Takes a byte of memory for each
/// element of Y.
///
/// # Errors
/// The first element that has two tasks, lies outside Y, or has none.
pub(crate) fn prove(split: &dyn Split, shape: &Shape) -> Result<(), String> {
    let len = shape.images * shape.channels * shape.positions;
    let mut is_taken = alloc::vec![false; len];
    let mut error = None;
    for task in 0..split.tasks() {
        split.patches(task, &mut |patch| {
            let axes: usize = patch.axes.iter().map(|span| span.size).product();
            if axes != shape.positions {
                error.get_or_insert(format!("{patch:?} of task {task} has not the positions of {shape:?}"));
                return;
            }
            patch.for_each_run(shape, |at, count| {
                for element in at..at + count {
                    match is_taken.get_mut(element) {
                        Some(taken) if !*taken => *taken = true,
                        Some(_) => {
                            error.get_or_insert(format!("element {element} has two owners, the later is task {task}"));
                        }
                        None => {
                            error.get_or_insert(format!("element {element} of task {task} is outside Y"));
                        }
                    }
                }
            });
        });
    }
    match (error, is_taken.iter().position(|taken| !taken)) {
        (Some(error), _) => Err(error),
        (None, Some(element)) => Err(format!("element {element} has no task")),
        (None, None) => Ok(()),
    }
}

/// Where a run writes Y: memory of the caller.
pub(crate) enum Target<'y, T> {
    /// Stays initialised, because a run only writes values.
    Init(&'y mut [T]),
    /// Need not be initialised before.
    Uninit(&'y mut [MaybeUninit<T>]),
}

impl<'y, T: Copy + Send> Target<'y, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Init(y) => y.len(),
            Self::Uninit(y) => y.len(),
        }
    }

    /// Runs all tasks of a split, each thread with `share` lines of scratch, and gives Y back,
    /// initialised.
    ///
    /// `run` executes one task: it writes every element of the task's region.
    pub(crate) fn fill(
        self,
        split: &dyn Split,
        shape: &Shape,
        threads: Threads<'_>,
        (scratch, share): (&mut [Line], usize),
        run: &(impl Fn(usize, Region<'_, T>, &mut [Line]) + Sync),
    ) -> &'y mut [T] {
        let (y, len) = match self {
            Self::Init(y) => (y.as_mut_ptr(), y.len()),
            Self::Uninit(y) => (y.as_mut_ptr().cast(), y.len()),
        };
        assert_eq!(len, shape.images * shape.channels * shape.positions, "the shape is that of Y");
        assert!(split.tasks() > 0 || len == 0, "without tasks nothing would be written");
        let y = Shared(y);
        threads.for_each(split.tasks(), scratch, share, &|task, scratch: &mut [Line]| {
            let is_checked = cfg!(debug_assertions) && has_few_patches(split, task);
            run(task, Region { y: y.pointer(), len, split, shape, task, is_checked, life: PhantomData }, scratch);
        });
        // SAFETY: the slice is the one that was handed in, borrowed for 'y, and no task accesses it
        // any more. Every element is initialised: each task has written its region, and together
        // the regions are Y.
        unsafe { core::slice::from_raw_parts_mut(y.pointer(), len) }
    }
}

/// Patches of a task up to which its accesses are checked: each access looks at all of them.
const MOST_PATCHES: usize = 1 << 12;

fn has_few_patches(split: &dyn Split, task: usize) -> bool {
    let mut count = 0;
    split.patches(task, &mut |_| count += 1);
    count <= MOST_PATCHES
}

/// The beginning of Y, known to all threads.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    fn pointer(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer is that of an exclusive borrow of plain data; threads write disjoint elements
// through it, because each uses it in a Region alone, and those of a split are disjoint.
unsafe impl<T: Send> Sync for Shared<T> {}

/// What a kernel call stores: in rows of `len` neighbouring elements, of which there are `count`
/// that are `step` apart, for each of its dimensions.
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

    /// The same `count` times, `step` elements apart; twice at the most.
    pub(crate) fn times(self, count: usize, step: usize) -> Self {
        debug_assert_eq!(self.dims[0], (1, 0), "two dimensions");
        Self { dims: [self.dims[1], (count, step)], ..self }
    }
}

/// The right of one task to write its part of Y.
pub(crate) struct Region<'a, T> {
    y: *mut T,
    len: usize,
    split: &'a dyn Split,
    shape: &'a Shape,
    task: usize,
    /// Whether accesses are checked against the patches.
    is_checked: bool,
    life: PhantomData<&'a mut [MaybeUninit<T>]>,
}

impl<T: Element> Region<'_, T> {
    /// Rounds finished sums to T, and stores them from element `at` on.
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
}

impl<T: Copy> Region<'_, T> {
    pub(crate) fn shape(&self) -> &Shape {
        self.shape
    }

    /// Y from element `at` on, for a kernel call that stores what `stores` lists, and nothing else.
    /// A call that only prefetches lists nothing.
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

    /// Writes element `at`.
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
            self.split.patches(self.task, &mut |patch| is_own |= patch.contains(self.shape, at, len));
            debug_assert!(is_own, "elements {at}..{} are not those of task {}", at + len, self.task);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Tasks that are given patch by patch.
    struct Listed(Vec<Vec<Patch>>);

    impl Split for Listed {
        fn tasks(&self) -> usize {
            self.0.len()
        }

        fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
            self.0[task].iter().cloned().for_each(patch);
        }
    }

    const SHAPE: Shape = Shape { images: 2, channels: 3, positions: 4 };

    fn listed(tasks: &[&[Patch]]) -> Listed {
        Listed(tasks.iter().map(|patches| patches.to_vec()).collect())
    }

    /// A row of every second position, from `start` on.
    fn every_second(start: usize) -> Patch {
        let last = Span { size: 4, start, step: 2, count: 2 };
        Patch { images: 0..2, channels: 0..3, axes: [Span::whole(1), Span::whole(1), last] }
    }

    #[test]
    fn splits_that_share_out_all_of_y_are_proved() {
        let rows = |images: Range<usize>, channels: Range<usize>| Patch::rows(images, channels, 0..4, 4);
        assert_eq!(prove(&listed(&[&[rows(0..2, 0..3)]]), &SHAPE), Ok(()));
        assert_eq!(prove(&listed(&[&[rows(0..1, 0..3)], &[rows(1..2, 0..1), rows(1..2, 1..3)]]), &SHAPE), Ok(()));
        assert_eq!(prove(&listed(&[&[every_second(0)], &[every_second(1)]]), &SHAPE), Ok(()));
    }

    #[test]
    fn overlaps_gaps_and_elements_outside_are_found() {
        let whole = Patch::rows(0..2, 0..3, 0..4, 4);
        let overlap =
            prove(&listed(&[core::slice::from_ref(&whole), &[Patch::rows(1..2, 2..3, 3..4, 4)]]), &SHAPE).unwrap_err();
        assert_eq!(overlap, "element 23 has two owners, the later is task 1");
        let gap = listed(&[&[every_second(0)], &[]]);
        assert_eq!(prove(&gap, &SHAPE).unwrap_err(), "element 1 has no task");
        assert_eq!(count(&gap, &SHAPE).unwrap_err(), "the tasks have 12 elements, Y has 24");
        let outside = prove(&listed(&[&[whole], &[Patch::rows(2..3, 0..1, 0..1, 4)]]), &SHAPE).unwrap_err();
        assert_eq!(outside, "element 24 of task 1 is outside Y");
        let beyond = Patch::rows(0..2, 0..3, 1..5, 4);
        assert!(
            count(&listed(&[&[beyond]]), &SHAPE)
                .unwrap_err()
                .ends_with("of task 0 is not within Shape { images: 2, channels: 3, positions: 4 }")
        );
    }

    #[test]
    fn a_region_gives_its_own_elements() {
        let split = listed(&[&[every_second(0)], &[every_second(1)]]);
        let y = &mut [MaybeUninit::uninit(); 24];
        let run = |task: usize, region: Region<'_, u8>, _: &mut [Line]| {
            for plane in 0..6 {
                region.write(4 * plane + task, task as u8);
                _ = region.dest(4 * plane + task + 2, [Stores::row(4 * plane + task + 2, 1)]);
                region.write(4 * plane + task + 2, task as u8);
            }
        };
        let y = Target::Uninit(y).fill(&split, &SHAPE, Threads::Serial, (&mut [], 0), &run);
        assert_eq!(y[..4], [0, 1, 0, 1]);
    }

    /// Runs one task on 24 elements, of which it has every second one.
    #[cfg(debug_assertions)]
    fn with_every_second(run: impl Fn(Region<'_, f32>) + Sync) {
        let split = listed(&[&[every_second(0)]]);
        let run = |_: usize, region: Region<'_, f32>, _: &mut [Line]| run(region);
        Target::Init(&mut [0.0; 24]).fill(&split, &SHAPE, Threads::Serial, (&mut [], 0), &run);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 1..2 are not those of task 0")]
    fn another_tasks_element_is_refused() {
        with_every_second(|region| region.write(1, 1.0));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 0..2 are not those of task 0")]
    fn a_row_that_reaches_into_another_tasks_is_refused() {
        with_every_second(|region| region.store(Isa::Portable, &[1.0, 2.0], 0));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "elements 5..6 are not those of task 0")]
    fn a_kernels_stores_are_checked_one_by_one() {
        with_every_second(|region| _ = region.dest(0, [Stores::row(0, 1).times(2, 5)]));
    }
}

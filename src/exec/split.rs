//! How the elements of Y are shared among tasks, and the proof that each element has one task.
//!
//! A [`Split`] says, as plain data, which part of Y each task writes: a few [`Patch`]es, boxes of
//! images, channels and positions. The parts must be disjoint and cover Y. Memory safety rests on it.
//!
//! [`Proven`] is a split that was checked, in release builds too, and a run accepts no other. A plan
//! keeps its split as [`Tasks`], whose first run checks it. The check compares two sums. Element i of Y
//! stands for the value z^i modulo a prime. The elements of a patch add up to a product of geometric
//! series, which takes at most a few hundred multiplications, however large the patch is. If the patches
//! add up to the sum of the elements 0, 1, 2, ... of Y, each element was counted once. (Two different
//! polynomials in z have few values in common: the lemma of Schwartz and Zippel. For a random z, a wrong
//! split of 2^30 elements passes with a chance of 2^-31. Our z is fixed, and stands for a random one.)
//! [`prove`] is the same check element by element, for tests.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::Geometry;
use crate::spec::Strides;

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

    /// Elements of Y.
    pub(crate) fn len(&self) -> usize {
        self.images * self.channels * self.positions
    }

    /// Elements from the first to the last one, if Y lies so. None if elements may share a place, or the address
    /// space is smaller.
    pub(crate) fn span(&self, strides: &Strides) -> Option<usize> {
        let Self { images, channels, positions } = *self;
        if self.len() == 0 {
            return Some(0);
        }
        let mut dims = [(strides.channel, channels), (strides.position, positions), (strides.image, images)];
        dims.sort_unstable();
        let mut end = 0;
        for (step, len) in dims.into_iter().filter(|(_, len)| *len > 1) {
            if step < end.max(1) {
                return None;
            }
            end = step.checked_mul(len)?;
        }
        strides.span(images, channels, positions)
    }

    /// Whether the positions of a channel are neighbours.
    pub(super) fn has_planes(&self, strides: &Strides) -> bool {
        strides.position == 1 && strides.channel == self.positions
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) size: usize,
    pub(crate) start: usize,
    pub(crate) step: usize,
    pub(crate) count: usize,
}

impl Span {
    pub(crate) fn new(range: Range<usize>, size: usize) -> Self {
        Self { size, start: range.start, step: 1, count: range.len() }
    }

    pub(crate) fn whole(size: usize) -> Self {
        Self::new(0..size, size)
    }

    fn is_within(&self) -> bool {
        let Some(steps) = self.count.checked_sub(1) else { return true };
        let last = steps.checked_mul(self.step).and_then(|reach| reach.checked_add(self.start));
        self.step > 0 && last.is_some_and(|last| last < self.size)
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
/// The product of the axes' sizes is the number of positions of a channel. If positions are plain
/// numbers, two of the axes have one place.
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

    /// Calls `patch` with the boxes of any number of axes, with the places `span(i)` along axis i. If
    /// there are more than three, each place of the first ones makes a box of its own.
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

    fn is_within(&self, shape: &Shape) -> bool {
        let positions = self.axes.iter().try_fold(1_usize, |product, span| product.checked_mul(span.size));
        self.images.end <= shape.images
            && self.channels.end <= shape.channels
            && positions == Some(shape.positions)
            && self.axes.iter().all(Span::is_within)
    }

    fn len(&self) -> usize {
        self.images.len() * self.channels.len() * self.axes.iter().map(|span| span.count).product::<usize>()
    }

    /// Its first element, and the step and count of each dimension.
    fn dimensions(&self, shape: &Shape) -> (usize, [(usize, usize); 5]) {
        let [outer, inner, last] = &self.axes;
        let (images, channels) = (&self.images, &self.channels);
        let steps = [shape.channels * shape.positions, shape.positions, inner.size * last.size, last.size, 1];
        let starts = [images.start, channels.start, outer.start, inner.start, last.start];
        let strides = [1, 1, outer.step, inner.step, last.step];
        let counts = [images.len(), channels.len(), outer.count, inner.count, last.count];
        let first = starts.iter().zip(steps).map(|(start, step)| start * step).sum();
        (first, core::array::from_fn(|i| (steps[i] * strides[i], counts[i])))
    }

    /// Whether elements `at..at + len` belong to it, row by row.
    pub(super) fn contains(&self, shape: &Shape, mut at: usize, mut len: usize) -> bool {
        while len > 0 {
            let of_row = len.min(self.axes[2].size - at % self.axes[2].size);
            if !self.contains_in_row(shape, at, of_row) {
                return false;
            }
            (at, len) = (at + of_row, len - of_row);
        }
        true
    }

    /// Whether the element that lies at `at`, where the channels of a pixel are neighbours, belongs to it.
    pub(super) fn contains_in_pixel(&self, shape: &Shape, strides: &Strides, at: usize) -> bool {
        let (pixel, channel) = (at / strides.position, at % strides.position);
        let plane = pixel / shape.positions * shape.channels + channel;
        channel < shape.channels && self.contains_in_row(shape, plane * shape.positions + pixel % shape.positions, 1)
    }

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

    /// Calls `run` with the first element and the length of each row.
    pub(crate) fn for_each_run(&self, shape: &Shape, mut run: impl FnMut(usize, usize)) {
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
/// The parts of all tasks are disjoint and cover Y. Both methods must always give the same answers.
pub(crate) trait Split: Send + Sync {
    /// Number of tasks, which are independent of each other.
    fn tasks(&self) -> usize;

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch));
}

impl<S: Split + ?Sized> Split for &S {
    fn tasks(&self) -> usize {
        (**self).tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        (**self).patches(task, patch);
    }
}

/// The tasks of a plan: a split, which is checked before the first run.
///
/// The check takes a step for each patch. It is not part of planning, because layers that never run may
/// have billions of patches. The first run writes each patch anyway.
pub(crate) struct Tasks<S: ?Sized> {
    is_proven: AtomicBool,
    split: Box<S>,
    shape: Shape,
}

impl<S: Split + ?Sized> Tasks<S> {
    pub(crate) fn new(split: Box<S>, shape: Shape) -> Self {
        Self { is_proven: AtomicBool::new(false), split, shape }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The split, checked the first time.
    ///
    /// # Errors
    /// The first patch that is not within Y; that elements have no task, or several.
    pub(crate) fn proven(&self) -> Result<Proven<'_, S>, String> {
        // The flag orders no other memory: what it says never changes.
        if !self.is_proven.load(Ordering::Relaxed) {
            check(&*self.split, &self.shape)?;
            self.is_proven.store(true, Ordering::Relaxed);
        }
        Ok(Proven { split: &self.split, shape: &self.shape })
    }
}

impl<S: ?Sized> Deref for Tasks<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.split
    }
}

/// A split that gives each element of Y one task.
pub(crate) struct Proven<'a, S: ?Sized> {
    split: &'a S,
    shape: &'a Shape,
}

impl<'a, S: ?Sized> Proven<'a, S> {
    pub(super) fn split(&self) -> &'a S {
        self.split
    }

    pub(super) fn shape(&self) -> &'a Shape {
        self.shape
    }
}

/// Checks that each element of Y has one task, by the sums of [`fingerprint`].
fn check<S: Split + ?Sized>(split: &S, shape: &Shape) -> Result<(), String> {
    let (mut elements, mut sum, mut error) = (0_usize, fingerprint::Fingerprint::default(), None);
    for task in 0..split.tasks() {
        split.patches(task, &mut |patch| {
            if patch.is_within(shape) {
                elements = patch.len().saturating_add(elements);
                sum.add(&patch, shape);
            } else {
                error.get_or_insert_with(|| outside(&patch, task, shape));
            }
        });
    }
    let len = shape.len();
    match error {
        Some(error) => Err(error),
        None if elements != len => Err(format!("the tasks have {elements} elements, Y has {len}")),
        None if sum.value() != fingerprint::Fingerprint::of_first(len) => {
            Err(format!("the tasks have {len} elements, as Y, but some of them twice"))
        }
        None => Ok(()),
    }
}

fn outside(patch: &Patch, task: usize, shape: &Shape) -> String {
    format!("{patch:?} of task {task} is not within {shape:?}")
}

/// Sums of powers of one number z modulo a prime.
mod fingerprint {
    use super::{Patch, Shape};

    /// The Mersenne prime 2^61 - 1: products are reduced by shifts.
    const PRIME: u64 = (1 << 61) - 1;

    /// z to the powers of two. Nothing is known of z, except that it was not chosen for any split.
    const POWERS: [u64; 64] = {
        let mut powers = [0x0123_4567_89ab_cdef; 64];
        let mut i = 1;
        while i < 64 {
            powers[i] = multiply(powers[i - 1], powers[i - 1]);
            i += 1;
        }
        powers
    };

    const fn reduce(value: u64) -> u64 {
        let value = (value & PRIME) + (value >> 61);
        if value >= PRIME { value - PRIME } else { value }
    }

    const fn add(a: u64, b: u64) -> u64 {
        reduce(a + b)
    }

    const fn multiply(a: u64, b: u64) -> u64 {
        let product = a as u128 * b as u128;
        reduce((product as u64 & PRIME) + (product >> 61) as u64)
    }

    fn power(mut exponent: usize) -> u64 {
        let mut power = 1;
        while exponent != 0 {
            power = multiply(power, POWERS[exponent.trailing_zeros() as usize]);
            exponent &= exponent - 1;
        }
        power
    }

    /// 1 + q + q^2 + ..., with `count` terms, where q is z to the power of `step`.
    fn series(step: usize, count: usize) -> u64 {
        if count == 0 {
            return 0;
        }
        let q = power(step);
        let (mut sum, mut next) = (1, q);
        // The sum of 2n terms is (1 + q^n) times that of n terms.
        for bit in (0..count.ilog2()).rev() {
            sum = multiply(sum, add(1, next));
            next = multiply(next, next);
            if count >> bit & 1 == 1 {
                sum = add(sum, next);
                next = multiply(next, q);
            }
        }
        sum
    }

    #[derive(Default)]
    pub(super) struct Fingerprint {
        value: u64,
        /// For each dimension the last step, count and series. Neighbouring patches mostly have the same
        /// sizes.
        last: [(usize, usize, u64); 5],
    }

    impl Fingerprint {
        pub(super) fn add(&mut self, patch: &Patch, shape: &Shape) {
            if patch.len() == 0 {
                return;
            }
            let (first, dimensions) = patch.dimensions(shape);
            let mut product = power(first);
            for ((step, count), last) in dimensions.into_iter().zip(&mut self.last) {
                if count != 1 {
                    if (last.0, last.1) != (step, count) {
                        *last = (step, count, series(step, count));
                    }
                    product = multiply(product, last.2);
                }
            }
            self.value = add(self.value, product);
        }

        pub(super) fn value(&self) -> u64 {
            self.value
        }

        pub(super) fn of_first(len: usize) -> u64 {
            series(1, len)
        }
    }
}

/// Checks that the patches of a split are disjoint and cover Y, with a byte of memory for each element.
///
/// # Errors
/// The first patch that is not within Y, or the first element that has two tasks or none.
pub(crate) fn prove(split: &dyn Split, shape: &Shape) -> Result<(), String> {
    let mut is_taken = alloc::vec![false; shape.len()];
    let mut error = None;
    for task in 0..split.tasks() {
        split.patches(task, &mut |patch| {
            if !patch.is_within(shape) {
                error.get_or_insert_with(|| outside(&patch, task, shape));
                return;
            }
            patch.for_each_run(shape, |at, count| {
                let run = &mut is_taken[at..at + count];
                // A sum has no early exit, so that LLVM vectorises it.
                if run.iter().map(|taken| usize::from(*taken)).sum::<usize>() > 0 {
                    let twice = at + run.iter().position(|taken| *taken).unwrap_or(0);
                    error.get_or_insert_with(|| format!("element {twice} has two tasks, the later is task {task}"));
                }
                run.fill(true);
            });
        });
    }
    match (error, is_taken.iter().position(|taken| !taken)) {
        (Some(error), _) => Err(error),
        (None, Some(element)) => Err(format!("element {element} has no task")),
        (None, None) => Ok(()),
    }
}

/// Splits for tests.
#[cfg(test)]
pub(super) mod listed {
    use alloc::vec::Vec;

    use super::*;

    pub(crate) const SHAPE: Shape = Shape { images: 2, channels: 3, positions: 4 };

    /// Tasks that are given patch by patch.
    pub(crate) struct Listed(Vec<Vec<Patch>>);

    impl Split for Listed {
        fn tasks(&self) -> usize {
            self.0.len()
        }

        fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
            self.0[task].iter().cloned().for_each(patch);
        }
    }

    /// Checks tasks both ways. They agree, and the messages are those of both.
    pub(crate) fn check(tasks: &[&[Patch]]) -> Result<Tasks<Listed>, [String; 2]> {
        let split = Listed(tasks.iter().map(|patches| patches.to_vec()).collect());
        let proved = prove(&split, &SHAPE);
        let tasks = Tasks::new(Box::new(split), SHAPE);
        let proven = tasks.proven().map(|_| ());
        assert_eq!(proved.is_ok(), proven.is_ok());
        proven.map(|()| tasks).map_err(|error| [error, proved.unwrap_err()])
    }

    /// A row of every second position, from `start` on.
    pub(crate) fn every_second(start: usize) -> Patch {
        let last = Span { size: 4, start, step: 2, count: 2 };
        Patch { images: 0..2, channels: 0..3, axes: [Span::whole(1), Span::whole(1), last] }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::listed::{check, every_second};
    use super::*;

    fn sum<'a>(patches: impl IntoIterator<Item = &'a Patch>, shape: &Shape) -> u64 {
        let mut sum = fingerprint::Fingerprint::default();
        patches.into_iter().for_each(|patch| sum.add(patch, shape));
        sum.value()
    }

    fn rows(images: Range<usize>, channels: Range<usize>) -> Patch {
        Patch::rows(images, channels, 0..4, 4)
    }

    #[test]
    fn splits_that_share_out_all_of_y_are_proven() {
        let splits: [&[&[Patch]]; 3] = [
            &[&[rows(0..2, 0..3)]],
            &[&[rows(0..1, 0..3)], &[rows(1..2, 0..1), rows(1..2, 1..3)]],
            &[&[every_second(0)], &[every_second(1)]],
        ];
        for split in splits {
            assert_eq!(check(split).err(), None, "{split:?}");
        }
    }

    #[test]
    fn overlaps_gaps_and_elements_outside_are_found() {
        let outside = " of task 1 is not within Shape { images: 2, channels: 3, positions: 4 }";
        let along = |last: Span| Patch { axes: [Span::whole(1), Span::whole(1), last], ..rows(0..1, 0..1) };
        // The last of its places is the first one of the next channel.
        let spills_over = along(Span::new(2..5, 4));
        let overflows = along(Span { size: 4, start: 1, step: usize::MAX, count: usize::MAX });
        let stands_still = along(Span { size: 4, start: 1, step: 0, count: 2 });
        let refused: [(&[&[Patch]], [&str; 2]); 9] = [
            (&[&[rows(0..2, 0..3)], &[spills_over]], [outside; 2]),
            (&[&[rows(0..2, 0..3)], &[overflows]], [outside; 2]),
            (&[&[rows(0..2, 0..3)], &[stands_still]], [outside; 2]),
            (
                &[&[rows(0..2, 0..3)], &[Patch::rows(1..2, 2..3, 3..4, 4)]],
                ["the tasks have 25 elements, Y has 24", "element 23 has two tasks, the later is task 1"],
            ),
            (
                &[&[Patch::rows(0..1, 1..2, 2..3, 4)], &[rows(0..2, 0..3)]],
                ["the tasks have 25 elements, Y has 24", "element 6 has two tasks, the later is task 1"],
            ),
            (
                &[&[every_second(0)], &[every_second(0)]],
                [
                    "the tasks have 24 elements, as Y, but some of them twice",
                    "element 0 has two tasks, the later is task 1",
                ],
            ),
            (&[&[every_second(0)], &[]], ["the tasks have 12 elements, Y has 24", "element 1 has no task"]),
            (&[&[rows(0..2, 0..3)], &[rows(2..3, 0..1)]], [outside; 2]),
            (&[], ["the tasks have 0 elements, Y has 24", "element 0 has no task"]),
        ];
        for (split, expected) in refused {
            let found = check(split).err().unwrap();
            assert!(found.iter().zip(expected).all(|(found, expected)| found.ends_with(expected)), "{found:?}");
        }
    }

    /// Layers may have any number of spatial axes, of which boxes have three.
    #[test]
    fn boxes_of_any_number_of_axes_are_the_product_of_their_spans() {
        let spans = [
            Span { size: 3, start: 0, step: 2, count: 2 },
            Span { size: 5, start: 1, step: 3, count: 2 },
            Span { size: 4, start: 1, step: 2, count: 2 },
            Span { size: 2, start: 1, step: 1, count: 1 },
            Span { size: 6, start: 2, step: 1, count: 3 },
        ];
        for first in 0..=spans.len() {
            let spans = &spans[first..];
            let shape = Shape { images: 2, channels: 3, positions: spans.iter().map(|span| span.size).product() };
            let (images, channels) = (1..2, 1..3);
            let mut elements = Vec::new();
            Patch::for_each_box(images, &channels, spans.len(), |i| spans[i], &mut |patch| {
                assert!(patch.is_within(&shape), "{patch:?}");
                patch.for_each_run(&shape, |at, count| elements.extend(at..at + count));
            });
            let mut places = alloc::vec![0];
            for span in spans {
                places = places.iter().flat_map(|at| span.places().map(move |place| at * span.size + place)).collect();
            }
            let planes = channels.map(|channel| shape.channels + channel);
            let expected: Vec<_> =
                planes.flat_map(|plane| places.iter().map(move |place| plane * shape.positions + place)).collect();
            elements.sort_unstable();
            assert_eq!(elements, expected, "{} axes", spans.len());
        }
    }

    #[test]
    fn a_patch_contains_its_own_elements_alone() {
        let shape = Shape { images: 3, channels: 3, positions: 24 };
        let span = |size, start, step, count| Span { size, start, step, count };
        let lasts = [span(4, 1, 1, 2), span(4, 0, 1, 4), span(4, 1, 2, 2), span(4, 3, 1, 1)];
        let inners = [(span(3, 0, 2, 2), 1..2), (span(3, 0, 1, 3), 1..3)];
        for (last, (inner, channels)) in lasts.into_iter().flat_map(|last| inners.clone().map(|inner| (last, inner))) {
            let patch = Patch { images: 0..2, channels, axes: [span(2, 1, 1, 1), inner, last] };
            let mut is_own = alloc::vec![false; shape.len()];
            patch.for_each_run(&shape, |at, count| is_own[at..at + count].fill(true));
            for (at, len) in (0..shape.len()).flat_map(|at| (0..=12.min(shape.len() - at)).map(move |len| (at, len))) {
                let expected = is_own[at..at + len].iter().all(|own| *own);
                assert_eq!(patch.contains(&shape, at, len), expected, "{patch:?}: {len} elements from {at} on");
            }
        }
    }

    /// The sum of a box is that of its elements, and boxes of other elements have other sums.
    #[test]
    fn fingerprints_tell_boxes_apart() {
        let shape = Shape { images: 3, channels: 4, positions: 30 };
        let spans = |size: usize| {
            let starts = 0..size;
            starts.flat_map(move |start| {
                (1..=size - start).flat_map(move |step| {
                    (1..=(size - start).div_ceil(step)).map(move |count| Span { size, start, step, count })
                })
            })
        };
        let mut seen = BTreeMap::new();
        for (outer, inner, last) in spans(2).flat_map(|o| spans(3).flat_map(move |i| spans(5).map(move |l| (o, i, l))))
        {
            for (images, channels) in [(0..1, 0..4), (0..2, 1..3), (1..3, 2..3), (0..3, 0..4)] {
                let patch = Patch { images, channels, axes: [outer, inner, last] };
                let mut elements = Vec::new();
                patch.for_each_run(&shape, |at, count| elements.extend(at..at + count));
                elements.sort_unstable();
                assert_eq!(elements.len(), patch.len());
                let print = sum([&patch], &shape);
                let single = |element: &usize| Patch::rows(0..1, 0..1, *element..element + 1, 360);
                let singles: Vec<_> = elements.iter().map(single).collect();
                let one_by_one = sum(&singles, &Shape { images: 1, channels: 1, positions: 360 });
                assert_eq!(print, one_by_one, "{patch:?}");
                assert_eq!(*seen.entry(print).or_insert_with(|| elements.clone()), elements, "{patch:?}");
            }
        }
        assert!(seen.len() > 1000, "{} sets of elements", seen.len());
    }
}

//! The steps of k that the products of a tile's values have. Steps whose transformed filters are
//! zero are left out.
//!
//! The value at infinity is the product with a filter's last tap. A filter with fewer taps than the
//! tile allows is zero there. With a stride, such filters belong to the phases that meet fewer
//! taps: F(5x5, 2x2) for 3x3 taps and stride 2 has 121 products instead of 144, because three of
//! the four phases have a tap less. With a longer kernel they are the parts that have `outputs`
//! taps where the tile allows more. So each value has its own list of steps; there are at most four
//! different lists.

use alloc::vec::Vec;

use convoke_kernels::Real;

use super::scheme::{AxisFilters, Scheme};
use super::view::WinogradView;

/// Some steps of k that follow each other. They are channels of one phase down: for each channel of
/// X, its first phases along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepSegment {
    /// Which of the filters that the kernel is cut into, down and along.
    pub(super) filter: [usize; 2],
    /// The phase down.
    down: usize,
    /// The number of phases along, which may be 0.
    along: usize,
    /// Steps before it.
    first: usize,
}

/// The steps of k of all values of a tile, for one slice of the outer axis.
pub(super) struct TileSteps {
    /// Channels of X, and the strides.
    channels: usize,
    strides: [usize; 2],
    /// Values of a tile, down and along.
    values: [usize; 2],
    /// Filters that the kernel is cut into along.
    filters: usize,
    /// The different lists. Each has a segment for each filter and each phase down.
    lists: Vec<Vec<StepSegment>>,
    /// The list of values at neither infinity (0), at infinity along (1), down (2), and both (3).
    list_of: [usize; 4],
}

impl TileSteps {
    pub(super) fn new<T: Real>(view: &WinogradView, scheme: &Scheme<T>) -> Self {
        let [s_down, s_along] = view.strides;
        let channels = view.channels / (s_down * s_along);
        // How many phases of an axis meet taps of a filter, and how many meet as many as the tile
        // allows. Later phases meet fewer taps, never more.
        let phases = |axis: usize, parts: &AxisFilters| -> Vec<_> {
            let meet = |part: usize, least: usize| {
                let taps = parts.taps(part);
                let present = |phase: usize| taps.end.min(view.phase_taps(axis, phase)).saturating_sub(taps.start);
                (0..view.strides[axis]).take_while(|phase| present(*phase) >= least).count()
            };
            (0..parts.count).map(|part| [meet(part, 1), meet(part, parts.tile.taps())]).collect()
        };
        let (phases_down, phases_along) = (phases(0, &scheme.down), phases(1, &scheme.along));
        let mut lists: Vec<Vec<StepSegment>> = Vec::new();
        let list_of = core::array::from_fn(|class| {
            let (mut list, mut first) = (Vec::with_capacity(phases_down.len() * phases_along.len() * s_down), 0);
            for (i, phases_down) in phases_down.iter().enumerate() {
                for (j, phases_along) in phases_along.iter().enumerate() {
                    for down in 0..s_down {
                        let along = if down < phases_down[class / 2] { phases_along[class % 2] } else { 0 };
                        list.push(StepSegment { filter: [i, j], down, along, first });
                        first += along * channels;
                    }
                }
            }
            lists.iter().position(|other| *other == list).unwrap_or_else(|| {
                lists.push(list);
                lists.len() - 1
            })
        });
        let values = [scheme.kernel.down().values, scheme.kernel.along().values];
        Self { channels, strides: view.strides, values, filters: scheme.along.count, lists, list_of }
    }

    /// The different lists.
    pub(super) fn lists(&self) -> &[Vec<StepSegment>] {
        &self.lists
    }

    /// The channels of a segment's steps.
    pub(super) fn channels(&self, segment: &StepSegment) -> impl Iterator<Item = usize> {
        let (first, phases) = (segment.down * self.channels, self.strides[1]);
        let along = segment.along;
        (first..first + self.channels).flat_map(move |c| (0..along).map(move |phase| c * phases + phase))
    }

    /// Which of the lists a value has.
    pub(super) fn list_of(&self, value: usize) -> usize {
        let [down, along] = self.values;
        let at_end = |place: usize, values: usize| usize::from(values > 1 && place + 1 == values);
        self.list_of[2 * at_end(value / along, down) + at_end(value % along, along)]
    }

    /// The number of steps of a value.
    pub(super) fn count(&self, value: usize) -> usize {
        self.of_list(&self.lists[self.list_of(value)])
    }

    /// The number of steps of a list.
    pub(super) fn of_list(&self, list: &[StepSegment]) -> usize {
        list.iter().map(|segment| segment.along * self.channels).sum()
    }

    /// The number of steps of all values.
    pub(super) fn all(&self) -> usize {
        (0..self.values[0] * self.values[1]).map(|value| self.count(value)).sum()
    }

    /// The place of channel `channel` of a filter among the steps of a value; none where the
    /// product is zero.
    pub(super) fn find(&self, value: usize, filter: [usize; 2], channel: usize) -> Option<usize> {
        let (c, phase) = (channel / self.strides[1], channel % self.strides[1]);
        let (down, c) = (c / self.channels, c % self.channels);
        let place = (filter[0] * self.filters + filter[1]) * self.strides[0] + down;
        let segment = &self.lists[self.list_of(value)][place];
        (phase < segment.along).then_some(segment.first + c * segment.along + phase)
    }
}

//! Which steps of k the products of a tile's values have: those whose transformed filters are not zero anyway.
//!
//! The value at infinity is the product with a filter's last tap. Filters that have a tap less than the tile allows have zeros there: of a stride, the phases
//! that meet fewer taps (of 3x3 taps with stride 2, all but one of four: with F(5x5, 2x2) 121 products are left of 144), and the parts of a longer kernel that
//! take `outputs` taps where the tile allows more. So each value has a list of steps of its own; there are at most four different ones.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::Real;

use super::shape::{Parts, Scheme, View};

/// Steps of k that follow each other: channels that one filter is multiplied with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Which of the filters that the kernel is cut into, down and along.
    pub(super) filter: [usize; 2],
    pub(super) channels: Range<usize>,
}

/// The steps of k of all values of a tile, for one slice of the outer axis.
pub(super) struct Steps {
    /// Values of a tile, down and along.
    values: [usize; 2],
    /// The different lists, and how many steps each has.
    lists: Vec<(Vec<Segment>, usize)>,
    /// Which list values have that are at infinity along (1), down (2).
    list_of: [usize; 4],
}

impl Steps {
    pub(super) fn new<T: Real>(view: &View, scheme: &Scheme<T>) -> Self {
        let [s_down, s_along] = view.strides;
        let channels = view.channels / (s_down * s_along);
        let mut lists: Vec<(Vec<Segment>, usize)> = Vec::new();
        let list_of = core::array::from_fn(|class| {
            let is_there = |axis: usize, parts: &Parts, part: usize, phase: usize| {
                let taps = view.phase_taps(axis, phase);
                let present = parts.taps(part).end.min(taps).saturating_sub(parts.taps(part).start);
                present > 0 && (class & (2 >> axis) == 0 || present == parts.tile.taps())
            };
            let mut list: Vec<Segment> = Vec::new();
            for i in 0..scheme.down.count {
                for j in 0..scheme.along.count {
                    for phase in 0..s_down * s_along {
                        if !is_there(0, &scheme.down, i, phase / s_along)
                            || !is_there(1, &scheme.along, j, phase % s_along)
                        {
                            continue;
                        }
                        let channels = phase * channels..(phase + 1) * channels;
                        match list.last_mut() {
                            Some(last) if last.filter == [i, j] && last.channels.end == channels.start => {
                                last.channels.end = channels.end;
                            }
                            _ => list.push(Segment { filter: [i, j], channels }),
                        }
                    }
                }
            }
            lists.iter().position(|(other, _)| *other == list).unwrap_or_else(|| {
                let count = list.iter().map(|segment| segment.channels.len()).sum();
                lists.push((list, count));
                lists.len() - 1
            })
        });
        Self { values: [scheme.kernel.down().values, scheme.kernel.along().values], lists, list_of }
    }

    /// The different lists.
    pub(super) fn lists(&self) -> impl Iterator<Item = &[Segment]> {
        self.lists.iter().map(|(list, _)| &list[..])
    }

    /// Which of the lists value `value` has.
    pub(super) fn list_of(&self, value: usize) -> usize {
        let [down, along] = self.values;
        let at_end = |place: usize, values: usize| usize::from(values > 1 && place + 1 == values);
        self.list_of[2 * at_end(value / along, down) + at_end(value % along, along)]
    }

    /// Steps of a value.
    pub(super) fn count(&self, value: usize) -> usize {
        self.lists[self.list_of(value)].1
    }

    /// Steps of all values.
    pub(super) fn all(&self) -> usize {
        (0..self.values[0] * self.values[1]).map(|value| self.count(value)).sum()
    }

    /// The place among the steps of a value that channel `channel` of a filter has; none where that is zero.
    pub(super) fn find(&self, value: usize, filter: [usize; 2], channel: usize) -> Option<usize> {
        let mut first = 0;
        for segment in &self.lists[self.list_of(value)].0 {
            if segment.filter == filter && segment.channels.contains(&channel) {
                return Some(first + channel - segment.channels.start);
            }
            first += segment.channels.len();
        }
        None
    }
}

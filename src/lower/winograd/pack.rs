//! Packed filters: transformed for tiles, and as they are for tiles that are computed directly.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::winograd::filter_rows;
use convoke_kernels::{Real, winograd::MOST_VALUES};

use super::scheme::{AxisFilters, Scheme};
use super::steps::TileSteps;
use super::view::WinogradView;
use crate::lower::channel_tiles::ChannelTiles;

/// Where things are in the packed filters of a group. For each panel of filters there are
/// `[value][step of k][filter]`. Behind all panels is what the
/// [operator](super::operator::WinogradOperator) keeps for tiles that are computed directly.
///
/// A value has the same steps of k for each slice (a tap of the depth axis), slice after slice.
pub(super) struct PackedLayout {
    /// Filters, filled up to whole vectors.
    padded: usize,
    pub(super) steps: TileSteps,
    values: Vec<PackedValue>,
    /// Steps of k of all values and slices.
    all: usize,
    /// Values for tiles that are computed directly.
    direct_len: usize,
}

impl PackedLayout {
    /// None if the group's values do not fit the address space.
    pub(super) fn new<T: Real>(
        view: &WinogradView,
        scheme: &Scheme<T>,
        padded: usize,
        direct_len: usize,
    ) -> Option<Self> {
        let (steps, slices) = (TileSteps::new(view, scheme), view.roles.depth.kernel);
        let (mut values, mut all) = (Vec::with_capacity(scheme.kernel.values()), 0_usize);
        for value in 0..scheme.kernel.values() {
            let count = steps.count(value);
            values.push(PackedValue { list: steps.list_of(value), count, start: all });
            all = count.checked_mul(slices)?.checked_add(all)?;
        }
        let layout = Self { padded, steps, values, all, direct_len };
        let transformed = all.checked_mul(padded)?;
        let len = transformed.checked_add(direct_len)?.checked_mul(view.groups)?;
        (len <= isize::MAX as usize / 8).then_some(layout)
    }

    /// The number of values of a group.
    pub(super) fn group_len(&self) -> usize {
        self.padded * self.all + self.direct_len
    }

    /// The transformed filters of the panel of `nr` filters that begins with filter `first`.
    pub(super) fn panel(&self, first: usize, nr: usize) -> Range<usize> {
        first * self.all..(first + nr) * self.all
    }

    pub(super) fn value(&self, value: usize) -> &PackedValue {
        &self.values[value]
    }

    /// The values for tiles that are computed directly.
    pub(super) fn direct(&self) -> Range<usize> {
        self.padded * self.all..self.group_len()
    }
}

/// The steps of k of one value.
pub(super) struct PackedValue {
    /// Which of the lists of steps it has, and the number of steps of that list.
    pub(super) list: usize,
    pub(super) count: usize,
    /// Where its steps begin among all steps of a panel.
    start: usize,
}

impl PackedValue {
    /// The steps of some slices, among all steps of a panel.
    pub(super) fn steps(&self, slices: &Range<usize>) -> Range<usize> {
        self.start + slices.start * self.count..self.start + slices.end * self.count
    }
}

/// Packed filters of one panel.
#[derive(Clone, Copy)]
pub(super) struct PanelFilters<'a, T> {
    /// `[step of k][filter]`.
    pub(super) weights: &'a [T],
    /// Filters of the panel, with those that fill it up.
    pub(super) nr: usize,
}

/// Packs the transformed filters of one group. `filter` gives the taps of a filter for a channel of
/// the view, in the order of the axes.
pub(super) fn pack<T: Real>(
    view: &WinogradView,
    scheme: &Scheme<T>,
    layout: &PackedLayout,
    tiles: &ChannelTiles<T>,
    filter: impl Fn(usize, usize, &mut [T]),
    packed: &mut [T],
) {
    let (depth, down, along) = (view.roles.depth.kernel, view.roles.down.kernel, view.roles.along.kernel);
    // The transform of an axis: a row for each value, with a factor for each tap. It is the same
    // for all filters.
    let rows_of = |parts: &AxisFilters| filter_rows(parts.tile.values, parts.tile.taps());
    let (g_down, g_along) = (rows_of(&scheme.down), rows_of(&scheme.along));
    let (volume, most_rows) = (depth * down * along, tiles.nr().min(view.rows));
    let mut taps = vec![T::ZERO; volume];
    // The filters of a panel lie side by side, so that LLVM makes vectors of them, and a panel is
    // written in the order of memory.
    let mut sides = vec![0.0; volume * most_rows];
    let mut half = vec![0.0; MOST_VALUES * MOST_VALUES * most_rows];
    let mut products = vec![0.0; most_rows];
    packed[..layout.direct().start].fill(T::ZERO);
    for first in (0..view.rows).step_by(tiles.nr()) {
        let nr = tiles.panel(view.rows - first);
        let rows = most_rows.min(view.rows - first);
        let panel = layout.panel(first, nr).start;
        for c in 0..view.channels {
            for row in 0..rows {
                filter(first + row, c, &mut taps);
                place_beside(&taps, &mut sides, row, rows);
            }
            for kd in 0..depth {
                let side = |kv: usize, kh: usize| &sides[((kd * down + kv) * along + kh) * rows..][..rows];
                for i in 0..scheme.down.count {
                    let taps_down = scheme.down.taps(i);
                    for j in 0..scheme.along.count {
                        let taps_along = scheme.along.taps(j);
                        let place = |v: usize, k: usize| (v * MOST_VALUES + k) * most_rows;
                        for (v, g) in g_down.iter().enumerate() {
                            for (k, kh) in taps_along.clone().enumerate() {
                                let sums = &mut half[place(v, k)..][..rows];
                                weighted_sums(g, taps_down.clone().map(|kv| side(kv, kh)), sums);
                            }
                        }
                        for v in 0..g_down.len() {
                            for (h, g) in g_along.iter().enumerate() {
                                let value = v * g_along.len() + h;
                                let Some(step) = layout.steps.find(value, [i, j], c) else { continue };
                                let halves = (0..taps_along.len()).map(|k| &half[place(v, k)..][..rows]);
                                weighted_sums(g, halves, &mut products[..rows]);
                                let at = panel + (layout.value(value).steps(&(kd..kd)).start + step) * nr;
                                for (packed, product) in packed[at..].iter_mut().zip(&products[..rows]) {
                                    *packed = T::from_f64(*product);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Puts the taps of filter `row` beside those of the other `rows` of a panel.
fn place_beside<T: Real>(taps: &[T], sides: &mut [f64], row: usize, rows: usize) {
    for (side, w) in sides.chunks_exact_mut(rows).zip(taps) {
        side[row] = w.to_f64();
    }
}

/// The sums of some columns, each times a factor.
fn weighted_sums<'a>(factors: &[f64], columns: impl Iterator<Item = &'a [f64]>, sums: &mut [f64]) {
    // What changes no sum, whatever its sign.
    sums.fill(-0.0);
    for (factor, column) in factors.iter().zip(columns) {
        for (sum, value) in sums.iter_mut().zip(column) {
            *sum += factor * value;
        }
    }
}

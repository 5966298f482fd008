//! Packed filters: transformed for tiles, and W itself for outputs that are computed by the definition.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::winograd::{MOST_VALUES, filter_rows};

use super::tiles::{AxisFilters, Scheme, TileSteps};
use super::view::WinogradView;
use crate::conv::channel_tiles::ChannelTiles;

/// The places in the packed filters. For each group and panel of filters there are `[value][step of
/// k][filter]`. W follows behind all groups.
///
/// For each value, the steps of k are ordered by slice (a tap of the depth axis), and then as [`TileSteps`] says. All
/// slices have the same steps.
pub(super) struct PackedLayout {
    /// Filters of a group, rounded up to whole vectors.
    padded: usize,
    pub(super) steps: TileSteps,
    values: Vec<PackedValue>,
    /// Steps of k of all values and slices.
    all: usize,
    /// Values of all groups, and of W.
    transformed_len: usize,
    w_len: usize,
}

impl PackedLayout {
    /// None if the values exceed the address space.
    pub(super) fn new<T: Real>(view: &WinogradView, scheme: &Scheme<T>, padded: usize, w_len: usize) -> Option<Self> {
        let (steps, slices) = (TileSteps::new(view, scheme), view.roles.depth.kernel);
        let (mut values, mut all) = (Vec::with_capacity(scheme.kernel.values()), 0_usize);
        for value in 0..scheme.kernel.values() {
            let list = steps.list_of(value);
            let count = steps.count(list);
            values.push(PackedValue { list, count, start: all });
            all = count.checked_mul(slices)?.checked_add(all)?;
        }
        let transformed_len = all.checked_mul(padded)?.checked_mul(view.groups)?;
        let layout = Self { padded, steps, values, all, transformed_len, w_len };
        (transformed_len.checked_add(w_len)? <= isize::MAX as usize / 8).then_some(layout)
    }

    pub(super) fn len(&self) -> usize {
        self.transformed_len + self.w_len
    }

    /// The range of W.
    pub(super) fn w(&self) -> Range<usize> {
        self.transformed_len..self.len()
    }

    /// The transformed filters of the panel of `nr` filters from `first` on.
    fn panel(&self, group: usize, first: usize, nr: usize) -> Range<usize> {
        let begin = (group * self.padded + first) * self.all;
        begin..begin + nr * self.all
    }

    /// The same for some slices of a value.
    pub(super) fn filters(
        &self,
        group: usize,
        (first, nr): (usize, usize),
        value: usize,
        slices: &Range<usize>,
    ) -> Range<usize> {
        let (begin, steps) = (self.panel(group, first, nr).start, self.values[value].steps(slices));
        begin + steps.start * nr..begin + steps.end * nr
    }

    /// Whether some value has a list of steps.
    pub(super) fn has_list(&self, list: usize) -> bool {
        self.values.iter().any(|value| value.list == list)
    }

    pub(super) fn value(&self, value: usize) -> &PackedValue {
        &self.values[value]
    }
}

pub(super) struct PackedValue {
    /// The number of its list of steps, and the steps of that list.
    pub(super) list: usize,
    count: usize,
    /// Where its steps begin among those of a panel.
    start: usize,
}

impl PackedValue {
    /// The steps of some slices, among those of a panel.
    fn steps(&self, slices: &Range<usize>) -> Range<usize> {
        self.start + slices.start * self.count..self.start + slices.end * self.count
    }
}

/// Packs the transformed filters of one group. `filter` returns the taps of a filter for a channel of
/// the view, in the order of the axes.
pub(super) fn pack<T: Real>(
    view: &WinogradView,
    scheme: &Scheme<T>,
    layout: &PackedLayout,
    tiles: &ChannelTiles<T>,
    group: usize,
    filter: impl Fn(usize, usize, &mut [T]),
    packed: &mut [T],
) {
    let (depth, down, along) = (view.roles.depth.kernel, view.roles.down.kernel, view.roles.along.kernel);
    // The transform of an axis, for all filters: a row for each value, with a factor for each tap.
    let rows_of = |filters: &AxisFilters| filter_rows(filters.tile.values, filters.tile.taps());
    let (g_down, g_along) = (rows_of(&scheme.down), rows_of(&scheme.along));
    let (volume, most_rows) = (depth * down * along, tiles.nr().min(view.filters));
    let mut taps = vec![T::ZERO; volume];
    // The filters of a panel lie side by side, so that LLVM vectorises, and writes are in the order of
    // memory.
    let mut sides = vec![0.0; volume * most_rows];
    let mut half = vec![0.0; MOST_VALUES * MOST_VALUES * most_rows];
    let mut products = vec![0.0; most_rows];
    for first in (0..view.filters).step_by(tiles.nr()) {
        let nr = tiles.panel(view.filters - first);
        let rows = most_rows.min(view.filters - first);
        let panel = &mut packed[layout.panel(group, first, nr)];
        panel.fill(T::ZERO);
        for c in 0..view.channels {
            for row in 0..rows {
                filter(first + row, c, &mut taps);
                sides.chunks_exact_mut(rows).zip(&taps).for_each(|(side, w)| side[row] = w.to_f64());
            }
            for kd in 0..depth {
                let side = |kv: usize, kh: usize| &sides[((kd * down + kv) * along + kh) * rows..][..rows];
                for [i, j] in (0..scheme.down.count).flat_map(|i| (0..scheme.along.count).map(move |j| [i, j])) {
                    let (taps_down, taps_along) = (scheme.down.taps(i), scheme.along.taps(j));
                    let place = |v: usize, k: usize| (v * MOST_VALUES + k) * most_rows;
                    for (v, g) in g_down.iter().enumerate() {
                        for (k, kh) in taps_along.clone().enumerate() {
                            let sums = &mut half[place(v, k)..][..rows];
                            weighted_sums(g, taps_down.clone().map(|kv| side(kv, kh)), sums);
                        }
                    }
                    for value in 0..scheme.kernel.values() {
                        let (v, g) = (value / g_along.len(), &g_along[value % g_along.len()]);
                        let of_value = layout.value(value);
                        let Some(step) = layout.steps.find(of_value.list, [i, j], c) else { continue };
                        let halves = (0..taps_along.len()).map(|k| &half[place(v, k)..][..rows]);
                        weighted_sums(g, halves, &mut products[..rows]);
                        let at = (of_value.steps(&(kd..kd)).start + step) * nr;
                        for (packed, product) in panel[at..].iter_mut().zip(&products[..rows]) {
                            *packed = T::from_f64(*product);
                        }
                    }
                }
            }
        }
    }
}

fn weighted_sums<'a>(factors: &[f64], columns: impl Iterator<Item = &'a [f64]>, sums: &mut [f64]) {
    // -0.0 changes no sum, whatever its sign.
    sums.fill(-0.0);
    for (factor, column) in factors.iter().zip(columns) {
        for (sum, value) in sums.iter_mut().zip(column) {
            *sum += factor * value;
        }
    }
}

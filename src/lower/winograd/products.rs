//! The products of transformed tiles and filters: a GEMM for each value.

use core::ops::Range;

use convoke_kernels::{Real, RowOffsetsRef};

use super::block_size::BlockSize;
use super::common::WinogradCore;
use super::pack::{PackedValue, PanelFilters};
use super::scratch::WinogradScratch;
use super::shares::PanelPiece;
use super::tables::{GemmCalls, TileTask};
use super::together::MOST_SLICES;
use crate::element::Element;
use crate::lower::channel_tiles::Fetch;

/// The most steps of k that are summed in one go. The sums of such blocks are then added: one long
/// running sum would err more, and the filters of a block stay in the L1 cache for all tiles.
const MOST_STEPS: usize = 192;

/// What a slice of Y sees of X.
#[derive(Clone, Default)]
struct SliceTaps {
    /// The taps of the depth axis that meet X.
    taps: Range<usize>,
    /// The slot of the slice of X that tap 0 meets, or would meet.
    slot: usize,
}

impl<T: Element> WinogradCore<T> {
    /// The padded slices of X that a slice of Y sees, without those that are padding.
    pub(super) fn slices_seen(&self, slice: usize) -> Range<usize> {
        let depth = &self.view.roles.depth;
        let (begin, taps) = (slice * depth.stride, depth.taps_of_output(slice));
        begin + taps.start..begin + taps.end
    }

    /// Where the products of a slice and a panel begin, of those that are multiplied together.
    pub(super) fn products_at(&self, slice: usize, panel: usize) -> usize {
        (slice * self.blocking.together.panels + panel) * self.pieces.product_panel
    }

    /// Multiplies all values of the tiles by the filters of some panels, for some rows of tiles and
    /// some slices of Y.
    pub(super) fn multiply(
        &self,
        weights: &[T::Acc],
        task: &TileTask<'_, T::Acc>,
        PanelPiece { panels, rows }: PanelPiece,
        slices: Range<usize>,
        scratch: &mut WinogradScratch<'_, T::Acc>,
    ) {
        let (layout, kernel) = (&self.layout, self.blocking.scheme.kernel);
        let values = kernel.values();
        // The filters of one panel for some taps of one value: none behind the last panel.
        let filters = |panel: usize, value: usize, taps: &Range<usize>| {
            let first = panel * self.tiles.nr();
            if first >= self.view.rows {
                return PanelFilters { weights: &[][..], nr: self.tiles.nr() };
            }
            let nr = self.tiles.panel(self.view.rows - first);
            let (begin, steps) = (layout.panel(first, nr).start, layout.value(value).steps(taps));
            PanelFilters { weights: &weights[begin + steps.start * nr..begin + steps.end * nr], nr }
        };
        // Values that are zero in the last row of tiles have no calls where there is no other row.
        let block = task.block;
        let drops = |value: usize| block.planes.drops(value / kernel.along().values);
        let calls = block.calls(&rows);
        let has_calls = |value: &usize| !drops(*value) || !calls.short_calls.all.is_empty();
        let next_of = |value: usize| (value..values).find(has_calls);
        let mut seen: [SliceTaps; MOST_SLICES] = Default::default();
        let seen = &mut seen[..slices.len()];
        let (depth, slots) = (&self.view.roles.depth, self.slots());
        for (seen, slice) in seen.iter_mut().zip(slices) {
            *seen = SliceTaps { taps: depth.taps_of_output(slice), slot: slice * depth.stride % slots };
        }
        // The taps of all slices: those of the first and of the last one may be fewer.
        let all_taps = seen.iter().map(|seen| seen.taps.clone()).filter(|taps| !taps.is_empty());
        let all_taps = all_taps.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        for value in 0..values {
            let PackedValue { list, count, .. } = *layout.value(value);
            let v = &scratch.v[value * block.v_plane..];
            let is_short = drops(value);
            for panel in panels.clone() {
                let (panel_next, value_next) = if panel + 1 < panels.end {
                    (panel + 1, value)
                } else if let Some(value) = next_of(value + 1) {
                    (panels.start, value)
                } else {
                    (panels.end, next_of(0).unwrap_or(0))
                };
                let next = filters(panel_next, value_next, &all_taps).weights;
                let calls = if is_short { &calls.short_calls } else { &calls.calls };
                let nr = self.tiles.panel(self.view.rows - panel * self.tiles.nr());
                // The calls for all slices share in fetching.
                let first = calls.all.first().map(|first| first.kernel(nr));
                let mut fetch = first.map(|first| Fetch::new(next, calls.all.len() * seen.len(), first, calls.rate));
                for (i, SliceTaps { taps, slot }) in seen.iter().enumerate() {
                    let koff = block.koff[list].rows((slot + taps.start) * count..(slot + taps.end) * count);
                    let at = self.products_at(i, panel - panels.start) + value * self.pieces.product_plane;
                    let products = &mut scratch.products[at..][..self.pieces.product_plane];
                    if let Some(fetch) = &mut fetch {
                        multiply_value(calls, koff, v, filters(panel, value, taps), fetch, products);
                    }
                    if is_short && rows.end == block.size.all_rows().end {
                        clear_last_rows(&block.size, nr, products);
                    }
                }
            }
        }
    }
}

/// Clears the products of the last row of tiles of each image.
fn clear_last_rows<T: Real>(size: &BlockSize, nr: usize, products: &mut [T]) {
    let BlockSize { images, rows, columns, .. } = *size;
    for image in products[..images * rows * columns * nr].chunks_exact_mut(rows * columns * nr) {
        image[(rows - 1) * columns * nr..].fill(T::ZERO);
    }
}

/// Multiplies one value of tiles, `v`, by the filters of a panel.
fn multiply_value<T: Real>(
    calls: &GemmCalls<T>,
    koff: RowOffsetsRef<'_>,
    v: &[T],
    PanelFilters { weights, nr }: PanelFilters<'_, T>,
    fetch: &mut Fetch<'_, T>,
    products: &mut [T],
) {
    let steps = koff.len();
    let kc = if steps <= MOST_STEPS { steps.max(1) } else { steps.div_ceil(steps.div_ceil(MOST_STEPS)) };
    for run in calls.all.chunks(calls.of_run) {
        for k in (0..steps.max(1)).step_by(kc) {
            let block_of_k = k..(k + kc).min(steps);
            let koff = if steps <= MOST_STEPS { koff } else { koff.rows(block_of_k.clone()) };
            let w = &weights[k * nr..block_of_k.end * nr];
            for call in run {
                // Without steps of k nothing is read.
                let x = v.get(call.v..).unwrap_or(&[]);
                let tile = &mut products[call.tile * nr..(call.tile + call.count) * nr];
                call.kernel(nr).partial(x, koff, w, fetch.during(koff.len()), tile, k > 0);
            }
        }
    }
}

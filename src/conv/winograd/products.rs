//! The products of transformed tiles and filters: a GEMM for each value.

use alloc::vec::Vec;
use core::array;
use core::ops::Range;

use convoke_kernels::catalogue::pixel_widths;
use convoke_kernels::{ChannelKernel, Isa, PixelInput, PixelKernel, PixelTaps, Real, RowOffsets};

use super::blocking::BlockSize;
use super::pack::PackedLayout;
use super::tiles::{LISTS, Scheme};
use super::view::WinogradView;
use crate::conv::channel_tiles::{ChannelTiles, PanelPrefetch, Rate};
use crate::conv::contract::Request;
use crate::element::Element;

/// Steps of k that are summed at a time, at most. A longer running sum would have larger errors, and the
/// filters of so many steps stay in the L1 cache for all tiles.
const MOST_STEPS: usize = 192;

/// The products of the blocks of one size.
pub(super) enum BlockProducts<T: Real> {
    /// Tiles are neighbours in V: `[value][channel][tile]`.
    Tiles(TileProducts<T>),
    /// Channels are: `[value][phase of the strides][tile][channel]`.
    Pixels(PixelProducts<T>),
}

impl<T: Real> BlockProducts<T> {
    /// For `slots` slots of slices of X. Values with short GEMMs lack the last row of tiles if `leaves_out`. None if a
    /// kernel is lacking.
    pub(super) fn new(
        request: &Request<'_, impl Element<Acc = T>>,
        (view, scheme): (&WinogradView, &Scheme<T>),
        layout: &PackedLayout,
        (size, slots): (&BlockSize, usize),
        leaves_out: bool,
    ) -> Option<Self> {
        Some(match view.reads_pixels {
            true => Self::Pixels(PixelProducts::new(request.isa(), (view, scheme), layout, (size, slots), leaves_out)?),
            false => Self::Tiles(TileProducts::new(request, (view, scheme), layout, (size, slots), leaves_out)?),
        })
    }

    /// Whether a value has no products.
    pub(super) fn is_empty(&self, is_short: bool) -> bool {
        match self {
            Self::Tiles(tiles) => tiles.calls[usize::from(is_short)].all.is_empty(),
            Self::Pixels(pixels) => pixels.gemms[usize::from(is_short)].first.is_empty(),
        }
    }

    /// The prefetching of the filters `next` while a value is multiplied `times` times by a panel of `nr` filters. None
    /// if kernels fetch their own.
    pub(super) fn prefetch<'w>(
        &self,
        is_short: bool,
        next: &'w [T],
        (nr, times): (usize, usize),
    ) -> Option<PanelPrefetch<'w, T>> {
        let Self::Tiles(tiles) = self else { return None };
        let calls = &tiles.calls[usize::from(is_short)];
        let first = calls.all.first()?.kernel(nr);
        Some(PanelPrefetch::new(next, calls.all.len() * times, first, calls.rate))
    }

    /// Multiplies the tiles of one value, which begin in `v`, by the weights `[step of k][filter]` of a panel of `nr`
    /// filters. `slots` are those of the slices that the steps read, counted on where the ring ends.
    pub(super) fn multiply(
        &self,
        (list, is_short): (usize, bool),
        (v, slots): (&[T], Range<usize>),
        (weights, nr): (&[T], usize),
        prefetch: &mut Option<PanelPrefetch<'_, T>>,
        products: &mut [T],
    ) {
        match self {
            Self::Tiles(tiles) => tiles.multiply((list, is_short), (v, slots), (weights, nr), prefetch, products),
            Self::Pixels(pixels) => pixels.multiply((list, is_short), (v, slots), (weights, nr), products),
        }
    }
}

/// `steps` cut into as few nearly equal parts as have at most `most` steps each: the length of all but the last.
fn part(steps: usize, most: usize) -> usize {
    steps.div_ceil(steps.div_ceil(most).max(1)).max(1)
}

/// A kernel call for some tiles of a GEMM. The tiles are the kernel's pixels.
struct GemmCall<T: Real> {
    /// The first tile's place among the transformed ones.
    v: usize,
    /// Its place among the products.
    tile: usize,
    count: usize,
    /// The kernels for wide panels and for narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
}

impl<T: Real> GemmCall<T> {
    fn kernel(&self, nr: usize) -> &'static ChannelKernel<T> {
        self.kernels[usize::from(nr < self.kernels[0].nr())]
    }
}

/// The calls for one value and one panel: GEMM after GEMM, `of_gemm` calls each.
struct GemmCalls<T: Real> {
    all: Vec<GemmCall<T>>,
    of_gemm: usize,
    rate: Rate,
}

impl<T: Real> GemmCalls<T> {
    fn new(request: &Request<'_, impl Element<Acc = T>>, size: &BlockSize, is_short: bool) -> Option<Self> {
        let (first, rows) = size.gemms(is_short);
        if rows == 0 {
            return Some(Self { all: Vec::new(), of_gemm: 1, rate: Rate::new(request.machine) });
        }
        let tiles = ChannelTiles::new(request.machine, rows * size.columns)?;
        let call = |row: usize, t: usize| {
            let pixels = tiles.pixels(t);
            let kernels = [tiles.nr(), 1].map(|channels| tiles.kernel(pixels.len(), channels));
            let (v, tile) = (size.row_start(row) + pixels.start, row * size.columns + pixels.start);
            GemmCall { v, tile, count: pixels.len(), kernels }
        };
        let all = first.flat_map(|row| (0..tiles.count).map(move |t| (row, t))).map(|(row, t)| call(row, t)).collect();
        Some(Self { all, of_gemm: tiles.count, rate: tiles.rate() })
    }
}

/// The products of tiles that are neighbours.
pub(super) struct TileProducts<T: Real> {
    /// The calls for values with products in all rows of tiles, and for short ones.
    calls: [GemmCalls<T>; 2],
    /// The row offsets of each list of steps, and the steps of a slice. The slots of slices form a ring. The first slots
    /// occur twice, so that slots that wrap around are contiguous.
    koff: [(RowOffsets, usize); LISTS],
}

impl<T: Real> TileProducts<T> {
    fn new(
        request: &Request<'_, impl Element<Acc = T>>,
        (view, scheme): (&WinogradView, &Scheme<T>),
        layout: &PackedLayout,
        (size, slots): (&BlockSize, usize),
        leaves_out: bool,
    ) -> Option<Self> {
        let (slot_len, taps) = (size.slot_len(scheme, view.channels), view.roles.depth.kernel);
        let koff = array::from_fn(|list| {
            if !layout.has_list(list) {
                return (RowOffsets::new(Vec::new()), 0);
            }
            let count = layout.steps.count(list);
            let mut koff = Vec::with_capacity((slots + taps - 1) * count);
            for slot in (0..slots + taps - 1).map(|slot| slot % slots * slot_len) {
                let place = |(filter, channel)| {
                    (slot + size.place(filter) + view.row_of_v(channel) * size.input_tiles()) as u32
                };
                koff.extend(layout.steps.steps(list).map(place));
            }
            (RowOffsets::new(koff), count)
        });
        let calls = [GemmCalls::new(request, size, false)?, GemmCalls::new(request, size, leaves_out)?];
        Some(Self { calls, koff })
    }

    fn multiply(
        &self,
        (list, is_short): (usize, bool),
        (v, slots): (&[T], Range<usize>),
        (weights, nr): (&[T], usize),
        prefetch: &mut Option<PanelPrefetch<'_, T>>,
        products: &mut [T],
    ) {
        let Some(prefetch) = prefetch else { return };
        let (koff, count) = &self.koff[list];
        let koff = koff.rows(slots.start * count..slots.end * count);
        let (steps, calls) = (koff.len(), &self.calls[usize::from(is_short)]);
        let kc = part(steps, MOST_STEPS);
        for gemm in calls.all.chunks(calls.of_gemm) {
            for k in (0..steps.max(1)).step_by(kc) {
                let block_of_k = k..(k + kc).min(steps);
                let koff = if steps <= MOST_STEPS { koff } else { koff.rows(block_of_k.clone()) };
                let w = &weights[k * nr..block_of_k.end * nr];
                for call in gemm {
                    // With no steps of k, `v` may be empty.
                    let x = v.get(call.v..).unwrap_or(&[]);
                    let tile = &mut products[call.tile * nr..(call.tile + call.count) * nr];
                    call.kernel(nr).partial(x, koff, w, prefetch.during(koff.len()), tile, k > 0);
                }
            }
        }
    }
}

/// Some tiles of a GEMM, the same for all GEMMs of a value, in calls of as many pixels each.
struct PixelRun<T: Real> {
    first: usize,
    pixels: usize,
    calls: usize,
    /// The kernels for wide panels and for narrow ones.
    kernels: [&'static PixelKernel<T>; 2],
    /// The table of each list of steps. Its taps are filters and phases.
    tables: [Vec<u32>; LISTS],
}

/// The GEMMs of a value.
struct PixelGemms<T: Real> {
    /// The first tile of each, among the transformed ones and among the products.
    first: Vec<(usize, usize)>,
    runs: Vec<PixelRun<T>>,
}

/// The cut of `width` tiles into runs of wider and of narrower calls, with their kernels for wide panels and for narrow ones.
/// None if there are no kernels.
fn pixel_runs<T: Real>(isa: Isa, width: usize) -> Option<Vec<PixelRun<T>>> {
    let mut widths = pixel_widths::<T>(isa);
    let narrow = widths.next()?;
    let wide = widths.last().unwrap_or(narrow);
    let calls = width.div_ceil(wide.len().min(narrow.len())).max(1);
    let (pixels, wider) = (width / calls, width % calls);
    let cut = [(0, pixels + 1, wider), (wider * (pixels + 1), pixels, calls - wider)];
    let runs = cut.into_iter().filter(|(_, pixels, calls)| pixels * calls > 0).map(|(first, pixels, calls)| {
        let kernels = [&wide[pixels - 1], &narrow[pixels - 1]];
        PixelRun { first, pixels, calls, kernels, tables: Default::default() }
    });
    Some(runs.collect())
}

/// The name of the kernel that does most of the work.
pub(super) fn pixel_kernel_name<T: Real>(isa: Isa, width: usize) -> Option<&'static str> {
    Some(pixel_runs::<T>(isa, width)?.first()?.kernels[0].name())
}

/// The products of tiles whose channels are neighbours.
pub(super) struct PixelProducts<T: Real> {
    /// The GEMMs of values with products in all rows of tiles, and of short ones.
    gemms: [PixelGemms<T>; 2],
    slots: usize,
    slot_len: usize,
    /// Channels of a tap, and of a block of K.
    channels: usize,
    channel_part: usize,
    /// Taps of each list, and of a block of K.
    taps: [(usize, usize); LISTS],
}

impl<T: Real> PixelProducts<T> {
    fn new(
        isa: Isa,
        (view, scheme): (&WinogradView, &Scheme<T>),
        layout: &PackedLayout,
        (size, slots): (&BlockSize, usize),
        leaves_out: bool,
    ) -> Option<Self> {
        let channels = layout.steps.channels();
        let taps = array::from_fn(|list| {
            let taps = if layout.has_list(list) { layout.steps.taps(list).count() } else { 0 };
            (taps, part(taps, (MOST_STEPS / channels.max(1)).max(1)))
        });
        let table = |list: usize, pixels: usize| {
            let (count, of_block): (usize, usize) = taps[list];
            let all = layout.steps.taps(list).take(count).enumerate();
            let entries = all.flat_map(|(i, (filter, phase))| {
                let first = phase * size.input_tiles() + size.place(filter);
                let places = (first..first + pixels).map(|tile| (tile * channels) as u32);
                core::iter::once((i % of_block) as u32).chain(places)
            });
            entries.collect()
        };
        let gemms = |is_short: bool| {
            let (first, rows) = size.gemms(is_short);
            let mut runs = pixel_runs(isa, rows * size.columns)?;
            for run in &mut runs {
                run.tables = array::from_fn(|list| table(list, run.pixels));
            }
            let first = first.map(|row| (size.row_start(row), row * size.columns)).collect();
            Some(PixelGemms { first, runs })
        };
        Some(Self {
            gemms: [gemms(false)?, gemms(leaves_out)?],
            slots,
            slot_len: size.slot_len(scheme, view.channels),
            channels,
            channel_part: part(channels, MOST_STEPS),
            taps,
        })
    }

    fn multiply(
        &self,
        (list, is_short): (usize, bool),
        (v, slots): (&[T], Range<usize>),
        (weights, nr): (&[T], usize),
        products: &mut [T],
    ) {
        let (gemms, channels) = (&self.gemms[usize::from(is_short)], self.channels);
        let (taps, taps_of_block) = self.taps[list];
        if slots.len() * taps * channels == 0 {
            return products.fill(T::ZERO);
        }
        let mut weights = weights;
        for slot in slots.clone() {
            let v = v.get(slot % self.slots * self.slot_len..).unwrap_or(&[]);
            let blocks = (0..taps).step_by(taps_of_block);
            for (tap, c) in blocks.flat_map(|tap| (0..channels).step_by(self.channel_part).map(move |c| (tap, c))) {
                let (end, count) = ((tap + taps_of_block).min(taps), self.channel_part.min(channels - c));
                let accumulates = (slot, tap, c) != (slots.start, 0, 0);
                let (w, rest) = weights.split_at((end - tap) * count * nr);
                weights = rest;
                for ((place, tile), run) in
                    gemms.first.iter().flat_map(|first| gemms.runs.iter().map(move |run| (first, run)))
                {
                    let table = &run.tables[list][tap * (1 + run.pixels)..end * (1 + run.pixels)];
                    let taps =
                        PixelTaps::new(table, 1, run.pixels).repeated(run.calls, run.pixels * channels).in_order();
                    let x = v.get((place + run.first) * channels + c..).unwrap_or(&[]);
                    let kernel = run.kernels[usize::from(nr < run.kernels[0].nr())];
                    let x = PixelInput { x, zeros: &[], channels: count, taps };
                    kernel.partial(&x, w, &mut products[(tile + run.first) * nr..], accumulates);
                }
            }
        }
    }
}

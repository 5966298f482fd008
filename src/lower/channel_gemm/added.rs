//! ConvTranspose with vectors along output channels: for few positions of X, where vectors along
//! positions would run half empty, and weights are most of what is read.
//!
//! The products of M = positions of X, N = M/group, K = C/group for each tap, image and group: none
//! is with padding, and none is garbage. A tap's products are added, by the kernel that makes them,
//! where they belong in the sums of a panel of channels: `[tap of the last axis][phases of the
//! other axes][their positions][position of X on the last axis][NR]`, in which the pixels of a tile
//! are neighbours whatever the tap. What remains of col2im is to add the taps of the last axis, row
//! by row, on the way into Y. Where X is one position, the images of a band are the pixels; if the
//! kernel covers Y exactly, the axes are taken for one, and no taps are added. Weights are packed
//! in the order in which they are read, once for a band of images: `[panels][blocks of
//! K][taps][K][NR]`. Accepts every ConvTranspose where a task's scratch fits [`MOST_BYTES`]: X in
//! blocks of K and tiles, the sums of a panel, a row of Y by phases, and a tile.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Ahead, Isa, Real, RowOffsets, stream};

use super::last_steps::LastSteps;
use super::weights::Weights;
use crate::blas::Blocks;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::channel_tiles::{ChannelTiles, Fetch};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::planes::for_each_position;
use crate::lower::shares::Part;
use crate::lower::sink::{Finish, Sink};
use crate::machine::Machine;
use crate::{Axis, Geometry};

/// Bytes of a task's scratch, at the most: a limit of memory.
const MOST_BYTES: usize = 4 << 20;
/// Bytes of a task's scratch, about, where there are more images than one: it stays in the L2
/// cache.
fn band_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}
/// Taps of all axes, at the most, that are taken for one axis: a row of Y by phases has as many
/// pixels.
const MOST_MERGED: usize = 1 << 10;
/// Images of a band, at the most.
const MOST_IMAGES: usize = 64;

/// Where tap `k` adds inputs: to which phase, and how many positions further on. (Output o is
/// position `(o + pad) / stride` of phase `(o + pad) % stride`.)
fn place(axis: &Axis, k: usize) -> (usize, usize) {
    (k * axis.dilation % axis.stride, k * axis.dilation / axis.stride)
}

/// Positions of a phase that taps reach; none if they exceed the address space.
fn reached(axis: &Axis) -> Option<usize> {
    ((axis.kernel - 1).checked_mul(axis.dilation)? / axis.stride).checked_add(axis.input)
}

/// An axis before the last.
#[derive(Clone, Copy)]
struct Outer {
    axis: Axis,
    /// Positions of a phase that taps reach.
    positions: usize,
}

impl Outer {
    fn new(axis: &Axis) -> Option<Self> {
        Some(Self { axis: *axis, positions: reached(axis)? })
    }
}

/// Elements, in pixels, of a panel's sums, and of a row of Y by phases: of each phase so many
/// positions.
#[derive(Clone, Copy)]
struct Lens {
    sums: usize,
    row: usize,
    positions: usize,
}

impl Lens {
    /// None if they do not fit the address space.
    fn new(outer: &[Outer], last: &Axis) -> Option<Self> {
        let of_outer = outer
            .iter()
            .try_fold(1_usize, |n, outer| n.checked_mul(outer.axis.stride)?.checked_mul(outer.positions))?;
        let sums = of_outer.checked_mul(last.kernel)?.checked_mul(last.input)?;
        let outputs = last.output.checked_add(last.pad_begin)?.div_ceil(last.stride);
        let positions = reached(last)?.max(outputs);
        Some(Self { sums, row: positions.checked_mul(last.stride)?, positions })
    }
}

/// The geometry with the axes merged into one, if X is one position and the kernel covers Y
/// exactly: every output has a tap of its own, so that Y's rows need not be told apart.
fn merged(geometry: &Geometry) -> Option<Geometry> {
    let is_covered = |axis: &Axis| {
        axis.input == 1 && axis.output == axis.kernel && axis.pad_begin == 0 && (axis.dilation == 1 || axis.kernel == 1)
    };
    let taps = geometry.kernel_volume();
    (taps <= MOST_MERGED && geometry.axes.iter().all(is_covered)).then(|| {
        let axis = Axis { kernel: taps, output: taps, ..Axis::UNIT };
        Geometry { axes: alloc::vec![axis], ..geometry.clone() }
    })
}

/// The offer, with weights packed in blocks of `block` channels.
pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, block: usize, most: usize) -> Answer<'a, T> {
    let (machine, prices) = (request.machine, request.machine.prices());
    let merged = merged(request.geometry);
    let is_merged = merged.is_some();
    let geometry = merged.unwrap_or_else(|| request.geometry.clone());
    let (channels_out, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
    let (spatial, taps, bytes) = (geometry.input_spatial(), geometry.kernel_volume(), size_of::<T::Acc>());
    let (last, before) = geometry.axes.split_last().expect("at least one axis");
    let too_large = || alloc::format!("X, or what a panel of channels sums, takes more than {MOST_BYTES} bytes");
    let outer = before.iter().map(Outer::new).collect::<Option<Vec<_>>>().ok_or_else(too_large)?;
    let lens = Lens::new(&outer, last).ok_or_else(too_large)?;
    // The last two axes are one run of pixels: sums have no gaps between their rows. Of an X
    // without positions there is none.
    let joined = &geometry.axes[geometry.axes.len().saturating_sub(2)..];
    let pixels = joined.iter().map(|axis| axis.input).product::<usize>().max(1);
    let tiles_of = |width: usize| {
        ChannelTiles::<T::Acc>::new(machine, width).ok_or_else(|| String::from("no kernel for this tile"))
    };
    let stores = tiles_of(last.output)?;
    let nr = stores.nr().min(stores.padded(channels_out));
    let beside = lens.row.saturating_add(stores.pixels(0).len()).saturating_mul(nr);
    let of_image = lens.sums.saturating_mul(nr).saturating_add(channels.saturating_mul(spatial));
    let scratch = |images: usize| of_image.saturating_mul(images).saturating_add(beside).saturating_mul(bytes);
    if scratch(1) > MOST_BYTES {
        return Err(too_large());
    }
    let weights = Weights::new(&geometry, (channels_out, taps), stores.panels, block)?;
    let images =
        (2..=geometry.batch.min(MOST_IMAGES)).rev().find(|images| scratch(*images) <= band_bytes(machine).min(most));
    let bands = Blocks::new(geometry.batch, images.unwrap_or(1));
    let is_joined = spatial == 1;
    let tiles = match is_joined {
        true => [tiles_of(bands.size())?, tiles_of(bands.last().len())?],
        false => [tiles_of(pixels)?, tiles_of(pixels)?],
    };
    let panels = channels_out.div_ceil(weights.nr);
    let units = bands.count() * geometry.group;
    let splits = if request.threads == 1 { 1 } else { (2 * request.threads).div_ceil(units).clamp(1, panels.max(1)) };
    let lens_of_task =
        [channels * spatial * bands.size(), lens.sums * nr * bands.size(), lens.row * nr, stores.pixels(0).len() * nr];
    let (runs, k_blocks, images) = (spatial / pixels, channels.div_ceil(block), geometry.batch as f64);
    let vectors = channels_out.div_ceil(stores.lanes()) as f64;
    // Of an image, or of a band whose images are the pixels.
    let rows_of_pixels = if is_joined { bands.count() as f64 } else { images };
    // Products of sizes as f64: they may exceed usize.
    let product = |sizes: &[usize]| sizes.iter().map(|size| *size as f64).product::<f64>();
    let arithmetic = rows_of_pixels
        * (tiles[0].cycles(machine, channels_out) * product(&[channels, taps, runs]) * prices.added_tiles
            + product(&[tiles[0].count, runs, taps, panels, k_blocks]) * prices.kernel_call_cycles)
        + images * product(&[taps, spatial, k_blocks]) * vectors * prices.sum_cycles;
    let adding = (outer.iter().map(|o| o.axis.output).product::<usize>() * (last.kernel * last.input + lens.row))
        as f64
        * prices.added_cycles
        + geometry.output_spatial() as f64 * (prices.transposed_store_cycles + prices.added_cycles)
        + lens.sums as f64 * prices.added_cycles;
    let read = product(&[weights.group_len(), bytes, bands.count()]);
    let fetching = machine.fetch_weights(read, product(&[weights.len(), bytes])).cycles();
    let cycles = machine.overlapped(arithmetic + images * adding * vectors, fetching)
        + images * product(&[channels, spatial, splits]) * prices.pack_cycles;
    Ok(Offer::old(
        request.machine,
        geometry.group as f64 * (cycles + product(&[bands.count(), splits]) * prices.task_cycles) / machine.clock_ghz,
        lens_of_task.map(lines_for::<T::Acc>).iter().fold(0, |sum, lines| sum.saturating_add(*lines)),
        Box::new(move || {
            let edge = channels - k_blocks.saturating_sub(1) * block;
            let rows = tiles.map(|tiles| {
                let widths = [tiles.pixels(0).len(), tiles.pixels(tiles.count - 1).len()];
                let koff = widths.map(|width| (width, [block, edge].map(|block| RowOffsets::packed(block, width))));
                Row { tiles, koff }
            });
            let mut added = Added {
                geometry,
                isa: request.isa(),
                finish: Finish::new(request),
                taps: Vec::with_capacity(taps),
                runs: Vec::with_capacity(runs),
                nothing: RowOffsets::new(Vec::new()),
                outer,
                lens,
                weights,
                bands,
                is_joined,
                is_merged,
                rows,
                stores,
                splits,
                lens_of_task,
            };
            added.make_tables();
            Box::new(added)
        }),
    ))
}

/// A row of pixels that are multiplied.
struct Row<A: Real> {
    tiles: ChannelTiles<A>,
    /// The rows of a block of X, for each width of a tile: of a full block of K, and of the last
    /// one.
    koff: [(usize, [RowOffsets; 2]); 2],
}

impl<A: Real> Row<A> {
    fn koff(&self, pixels: usize, is_last: bool) -> &RowOffsets {
        &self.koff[usize::from(self.koff[0].0 != pixels)].1[usize::from(is_last)]
    }
}

/// A panel's sums of one image: all of `sums`, or every `step`-th pixel from the `first` on.
#[derive(Clone, Copy)]
struct Sums<'a, A> {
    sums: &'a [A],
    first: usize,
    step: usize,
    /// Values of a pixel.
    width: usize,
}

impl<A> Sums<'_, A> {
    /// Where those of tap `k` of the last axis begin that are `at` pixels behind its first one, of
    /// `of_tap`.
    fn at(&self, k: usize, at: usize, of_tap: usize) -> usize {
        ((k * of_tap + at) * self.step + self.first) * self.width
    }
}

struct Added<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// The axes before the last.
    outer: Vec<Outer>,
    lens: Lens,
    /// Where each tap's sums begin, and what a run of pixels is behind the first one, in pixels.
    taps: Vec<usize>,
    runs: Vec<usize>,
    weights: Weights,
    /// Images that share a read of the weights.
    bands: Blocks,
    /// Whether X is one position, and the images of a band are the pixels.
    is_joined: bool,
    /// Whether the axes are one, whose outputs have a tap each.
    is_merged: bool,
    /// Of the pixels of a run of X, or of a full band and of the last one.
    rows: [Row<T::Acc>; 2],
    /// Of the pixels of a row of Y.
    stores: ChannelTiles<T::Acc>,
    /// No rows of X.
    nothing: RowOffsets,
    /// Shares that the panels are split into.
    splits: usize,
    /// Values of scratch: X, sums, a row by phases, a tile.
    lens_of_task: [usize; 4],
}

impl<T: Element> Added<T> {
    /// Where the sums of phases and positions of the axes before the last begin, in those of a tap
    /// of the last one.
    fn sums_at(&self, places: impl Iterator<Item = (usize, usize)>) -> usize {
        let (mut phase, mut position) = (0, 0);
        for (outer, (r, v)) in self.outer.iter().zip(places) {
            phase = phase * outer.axis.stride + r;
            position = position * outer.positions + v;
        }
        (phase * self.outer.iter().map(|outer| outer.positions).product::<usize>() + position) * self.last().input
    }

    /// The same for row `y` of Y; none if no tap reaches it.
    fn sums_of_row(&self, mut y: usize) -> Option<usize> {
        let (mut phase, mut position, mut phases, mut positions) = (0, 0, 1, 1);
        for outer in self.outer.iter().rev() {
            let o = y % outer.axis.output + outer.axis.pad_begin;
            y /= outer.axis.output;
            if o / outer.axis.stride >= outer.positions {
                return None;
            }
            phase += o % outer.axis.stride * phases;
            position += o / outer.axis.stride * positions;
            phases *= outer.axis.stride;
            positions *= outer.positions;
        }
        Some((phase * positions + position) * self.last().input)
    }

    fn last(&self) -> &Axis {
        &self.geometry.axes[self.outer.len()]
    }

    /// Pixels of the sums of a tap of the last axis.
    fn of_tap(&self) -> usize {
        self.lens.sums / self.last().kernel
    }

    fn make_tables(&mut self) {
        let axes = &self.geometry.axes;
        let of_tap = self.of_tap();
        let kernels: Vec<_> = axes.iter().map(|axis| axis.kernel).collect();
        let mut taps = core::mem::take(&mut self.taps);
        for_each_position(&kernels, |k| {
            let places = k.iter().zip(&self.outer).map(|(k, outer)| place(&outer.axis, *k));
            taps.push(k[self.outer.len()] * of_tap + self.sums_at(places));
        });
        let inputs: Vec<_> = axes[..self.outer.len().saturating_sub(1)].iter().map(|axis| axis.input).collect();
        let mut runs = core::mem::take(&mut self.runs);
        if self.geometry.input_spatial() > 0 {
            for_each_position(&inputs, |x| runs.push(self.sums_at(x.iter().map(|x| (0, *x)).chain([(0, 0)]))));
        }
        (self.taps, self.runs) = (taps, runs);
    }

    /// The sums of a row of Y of one image, by phases, from those of the taps of the last axis.
    fn add_taps(&self, sums: Sums<'_, T::Acc>, at: usize, row: &mut [T::Acc]) {
        let (last, width) = (self.last(), sums.width);
        let len = last.input * width;
        row.fill(T::Acc::ZERO);
        for k in 0..last.kernel {
            let (phase, shift) = place(last, k);
            let row = &mut row[(phase * self.lens.positions + shift) * width..][..len];
            stream::add_assign(self.isa, row, &sums.sums[sums.at(k, at, self.of_tap())..][..len]);
        }
    }

    /// Finishes a tile of pixels of a row of Y from element `at` on, of as many channels as there
    /// are biases.
    fn store(&self, sink: &Sink<'_, '_, T>, tile: &mut [T::Acc], bias: &[T::Acc], at: usize) {
        let kernel = self.stores.kernel(tile.len() / self.stores.panel(bias.len()), bias.len());
        let koff = self.nothing.rows(0..0);
        LastSteps { x: &[], koff, w: &[], ahead: Ahead::NONE, accumulate: true, bias }.finish(kernel, tile, at, sink);
    }

    /// Finishes a panel's sums of one image into Y, whose first element of the panel is `at`.
    fn store_panel(
        &self,
        sink: &Sink<'_, '_, T>,
        sums: Sums<'_, T::Acc>,
        bias: &[T::Acc],
        at: usize,
        (row, tile): (&mut [T::Acc], &mut [T::Acc]),
    ) {
        let (last, width) = (self.last(), sums.width);
        let row = &mut row[..self.lens.row * width];
        // Of one position, no two taps meet: their sums are the row's.
        let is_alone = last.input == 1 && last.dilation == 1;
        for y in 0..self.geometry.output_spatial() / last.output {
            let from = self.sums_of_row(y);
            match from {
                Some(at) if !is_alone => self.add_taps(sums, at, row),
                _ => row.fill(T::Acc::ZERO),
            }
            for t in 0..self.stores.count {
                let pixels = self.stores.pixels(t);
                let tile = &mut tile[..pixels.len() * width];
                for (pixel, o) in tile.chunks_exact_mut(width).zip(pixels.clone()) {
                    let o = o + last.pad_begin;
                    let source = match from {
                        Some(at) if is_alone && o < last.kernel => &sums.sums[sums.at(o, at, self.of_tap())..],
                        _ => &row[(o % last.stride * self.lens.positions + o / last.stride) * width..],
                    };
                    pixel.copy_from_slice(&source[..width]);
                }
                self.store(sink, tile, bias, at + y * last.output + pixels.start);
            }
        }
    }
}

impl<T: Element> Split for Added<T> {
    fn tasks(&self) -> usize {
        self.bands.count() * self.weights.groups * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.weights.part((task, self.tasks()), self.splits);
        let positions = self.geometry.output_spatial();
        patch(Patch::rows(self.bands.range(part.image), self.weights.channels_of(&part), 0..positions, positions));
    }
}

impl<T: Element> Lowering<T> for Added<T> {
    fn layout(&self) -> WeightLayout {
        self.weights.layout()
    }

    fn describe(&self) -> String {
        alloc::format!(
            "{}, taps added in place, {} images of {} pixels at a time, panels in {} shares",
            self.kernel(),
            self.bands.size(),
            self.geometry.input_spatial(),
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        self.rows[0].tiles.name()
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        self.weights.len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let Weights { rows, channels, taps, .. } = self.weights;
        self.weights
            .pack_by(packed, |group, row, c, tap| w[((group * channels + c) * rows + row) * taps + tap].to_acc());
    }

    /// One share of the panels, for one group of one band of images.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Weights { rows, channels, block, nr, .. } = self.weights;
        let Part { image: band, group, panels, .. } = self.weights.part((task, self.tasks()), self.splits);
        let images = self.bands.range(band);
        let mut arena = Arena::new(scratch);
        let [x, sums, row, tile] = self.lens_of_task.map(|len| arena.take::<T::Acc>(len));
        let of_pixels = &self.rows[usize::from(self.is_joined && images.len() != self.bands.size())];
        let tiles = &of_pixels.tiles;
        let (spatial, pixels) = (geometry.input_spatial(), tiles.width);
        // What has a row of pixels of its own, and how many pixels are at a place of the sums.
        let (count, step) = if self.is_joined { (1, images.len()) } else { (images.len(), 1) };
        let blocks = || (0..channels).step_by(block).map(|first| first..(first + block).min(channels));
        // A block of K has all images, an image all runs of pixels, a run all tiles, each
        // [channels][pixels].
        let x_at = |first: usize, width: usize, image: usize, run: usize, pixel: usize| {
            (first * images.len() + image * width) * spatial + (run * pixels + pixel) * width
        };
        for k in blocks() {
            for t in 0..if self.is_joined { tiles.count } else { 0 } {
                let tile = tiles.pixels(t);
                let packed = &mut x[x_at(k.start, k.len(), 0, 0, tile.start)..][..k.len() * tile.len()];
                for (packed, c) in packed.chunks_exact_mut(tile.len()).zip(k.clone()) {
                    for (value, image) in packed.iter_mut().zip(images.start + tile.start..) {
                        *value = io.x[image * geometry.in_channels + group * channels + c].to_acc();
                    }
                }
            }
            for (i, image) in images.clone().enumerate().take(if self.is_joined { 0 } else { count }) {
                let source = (image * geometry.in_channels + group * channels + k.start) * spatial;
                for (run, t) in (0..self.runs.len()).flat_map(|run| (0..tiles.count).map(move |t| (run, t))) {
                    let tile = tiles.pixels(t);
                    let packed = &mut x[x_at(k.start, k.len(), i, run, tile.start)..][..k.len() * tile.len()];
                    let source = &io.x[source + run * pixels + tile.start..];
                    stream::pack_rows(self.isa, source, spatial, tile.len(), tile.len(), packed);
                }
            }
        }
        let weights = self.weights.of_group(io.weights, group);
        let sink = self.finish.sink(io);
        // Of a single position, the sums of all taps are a row of pixels, in the order of the
        // packed weights.
        let is_row = self.is_merged && images.len() == 1;
        for p in panels {
            let first = p * nr;
            let width = tiles.panel(rows - first);
            let live = width.min(rows - first);
            let mut w = &weights[first * self.weights.steps()..];
            let sums = &mut sums[..self.lens.sums * images.len() * width];
            sums.fill(T::Acc::ZERO);
            for k in blocks() {
                if is_row {
                    let (taps, next) = w.split_at(self.taps.len() * k.len() * width);
                    w = next;
                    let koff = of_pixels.koff(1, k.len() != block).rows(0..k.len());
                    tiles.kernel(1, live).panels(self.taps.len(), &x[k.start..k.end], koff, taps, sums, true);
                    continue;
                }
                for at in &self.taps {
                    let (tap, next) = w.split_at(k.len() * width);
                    w = next;
                    // While the first tiles are multiplied, the next tap's weights are fetched.
                    let next = &next[..next.len().min(tap.len())];
                    let calls = count * self.runs.len() * tiles.count;
                    let mut fetch = Fetch::behind(next, calls, tiles.kernel(tiles.pixels(0).len(), live), tiles.rate());
                    for image in 0..count {
                        for (run, behind) in self.runs.iter().enumerate() {
                            for t in 0..tiles.count {
                                let tile = tiles.pixels(t);
                                let kernel = tiles.kernel(tile.len(), live);
                                let to = (image * self.lens.sums + (at + behind) * step + tile.start) * width;
                                let koff = of_pixels.koff(tile.len(), k.len() != block);
                                let x = &x[x_at(k.start, k.len(), image, run, tile.start)..][..k.len() * tile.len()];
                                let sums = &mut sums[to..to + tile.len() * width];
                                kernel.partial(x, koff.rows(0..k.len()), tap, fetch.during(k.len()), sums, true);
                            }
                        }
                    }
                }
            }
            let channel = group * rows + first;
            let (bias, y) = (&io.bias[channel..channel + live], channel * geometry.output_spatial());
            if is_row {
                let at = images.start * geometry.out_channels * geometry.output_spatial() + y;
                for pixels in (0..self.stores.count).map(|t| self.stores.pixels(t)) {
                    let tile = &mut sums[pixels.start * width..pixels.end * width];
                    self.store(&sink, tile, bias, at + pixels.start);
                }
                continue;
            }
            let len = self.lens.sums * width;
            for (i, image) in images.clone().enumerate() {
                let (sums, first_pixel) = if self.is_joined { (&*sums, i) } else { (&sums[i * len..][..len], 0) };
                let sums = Sums { sums, first: first_pixel, step, width };
                let at = image * geometry.out_channels * geometry.output_spatial() + y;
                self.store_panel(&sink, sums, bias, at, (&mut *row, &mut *tile));
            }
        }
    }
}

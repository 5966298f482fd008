//! Conv of stride 1 by Winograd's minimal filtering, fused by blocks of tiles.
//!
//! A tile of m x m outputs takes n x n products for each pair of channels, n = m + r - 1, instead of m x m x r x r: with F(4x4, 3x3) 36 instead of 144. For
//! each of the n x n values, the products are a GEMM: M = M/group, N = tiles, K = C/group (times taps of the depth axis, and times filters that a
//! longer kernel is cut into). The order is by blocks of tiles, so that their transformed values stay in the L2 cache: transform the block for all
//! channels; then for each panel of channels of Y, multiply all values, and take the products back into Y.
//!
//! Accepts Conv with one to three spatial axes of stride 1; the outermost of three may have a stride, and no dilation: its taps are steps of k, of which
//! there are at most 8192. A layer with dilation d is d interleaved ones on each axis.
//! Scratch for a task: the transformed values of one block, `values * C/group * tiles` (for each tap of the depth axis), and the products of one
//! panel: independent of the image's size.
//!
//! Sums of products of transformed values err more than direct sums, and NaN and infinities spread over a tile. So tiles whose results are
//! not finite are computed again directly, and all tiles are where weights are not finite.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the transforms are in `convoke_kernels::winograd`.

mod choice;
mod direct;
mod pack;
mod shape;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::winograd::{Border, Pixels, Products, Source};
use convoke_kernels::{Ahead, Dest, Epilogue, Isa, Real, stream, winograd_kernels};

use super::channel_tiles::Tiles;
use super::cost::CLOCK;
use super::finish::Finish;
use super::{Answer, Io, Layout, Lowering, Offer, Request};
use crate::element::Element;
use crate::exec::{Arena, Line, lines_for};
use crate::plan::Accuracy;
use crate::{Geometry, Op};
use choice::Choice;
use direct::Direct;
use pack::PackedLayout;
use shape::{Block, Extent, Phase, Roles, Scheme, depth_tasks, distance, phases, spread};

/// Steps of k that are summed one after the other.
const KC: usize = 192;
/// Bytes of Y from which on its reader will not find it in the L2 cache, so that it is written past the caches.
const PAST_CACHE_BYTES: usize = 4 << 20;
/// Values of a tile along an axis beyond which the error leaves `Accuracy::Standard`.
const STANDARD_VALUES: usize = 6;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if request.accuracy == Accuracy::Strict {
        return Err(String::from("errs more than direct sums, which Accuracy::Strict excludes"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let roles = Roles::new(geometry)?;
    let mut best: Option<Choice<T::Acc>> = None;
    for kernel in winograd_kernels::<T::Acc>(request.isa) {
        let (down, along) = (kernel.down(), kernel.along());
        if request.layout.is_some_and(|layout| layout[..4] != [down.values, down.outputs, along.values, along.outputs])
        {
            continue;
        }
        // Weights that are packed already were packed under an accuracy that allowed it.
        let is_allowed = request.accuracy == Accuracy::Fast || request.layout.is_some();
        if down.values.max(along.values) > STANDARD_VALUES && !is_allowed {
            continue;
        }
        let Some(scheme) = Scheme::new(kernel, &roles) else { continue };
        // Results must not depend on the number of threads: the tile is chosen for one.
        if let Some(choice) = Choice::new::<T>(request, &roles, scheme, 1)
            && best.as_ref().is_none_or(|best| choice.cycles < best.cycles)
        {
            best = Some(choice);
        }
    }
    let no_kernel = || String::from("no kernel for this block of tiles");
    let Some(Choice { scheme, cycles, .. }) = best else {
        return Err(String::from("no tile suits the kernel's size, or the steps of k are too many"));
    };
    let choice = Choice::new::<T>(request, &roles, scheme, request.threads).ok_or_else(no_kernel)?;
    let tiles = Tiles::<T::Acc>::new(request.isa, choice.extent.runs().1).ok_or_else(no_kernel)?;
    let padded = tiles.padded(geometry.out_channels_per_group());
    let layout = PackedLayout::new(geometry, &roles, &scheme, padded);
    let packed = layout.checked_group_len().and_then(|len| len.checked_mul(geometry.group));
    if packed.is_none_or(|len| len > isize::MAX as usize / 8) {
        return Err(String::from("the packed weights do not fit the address space"));
    }
    let slots = roles.depth.kernel;
    let channels = geometry.in_channels_per_group();
    let (grid_rows, grid_columns) = scheme.grid(&roles);
    if !Block::fits(&scheme, choice.extent, channels, slots) {
        return Err(String::from("the steps of k are too many, or the block's offsets exceed 32 bits"));
    }
    let first = Block::new(request.isa, &scheme, choice.extent, channels, slots).ok_or_else(no_kernel)?;
    let direct = Direct::new(request.isa, geometry, &roles, &scheme).ok_or_else(no_kernel)?;
    let sizes = Sizes::new::<T>(&roles, &scheme, &first, &tiles, &direct);
    Ok(Offer {
        cost: cycles / CLOCK,
        lines: sizes.lines::<T>(),
        build: Box::new(move || {
            let grid = Grid {
                images: geometry.batch.div_ceil(choice.extent.images),
                rows: grid_rows.div_ceil(choice.extent.rows),
                columns: grid_columns.div_ceil(choice.extent.columns),
            };
            let rest = |whole: usize, part: usize| if whole.is_multiple_of(part) { part } else { whole % part };
            let images = rest(geometry.batch, choice.extent.images);
            let (rows, columns) = (rest(grid_rows, choice.extent.rows), rest(grid_columns, choice.extent.columns));
            let mut blocks = alloc::vec![first];
            // For each axis, whether a block is the last on it.
            let kinds = core::array::from_fn(|kind| {
                let full = &choice.extent;
                let extent = Extent::new(
                    &scheme,
                    if kind & 4 == 0 { full.images } else { images },
                    if kind & 2 == 0 { full.rows } else { rows },
                    if kind & 1 == 0 { full.columns } else { columns },
                );
                blocks.iter().position(|block| block.extent == extent).unwrap_or_else(|| {
                    let block = Block::new(request.isa, &scheme, extent, channels, slots);
                    blocks.push(block.expect("a smaller block of tiles has kernels, too"));
                    blocks.len() - 1
                })
            });
            Box::new(Winograd {
                geometry: geometry.clone(),
                isa: request.isa,
                activation: request.activation,
                clamp: request.direct_clamp(),
                roles,
                scheme,
                grid,
                blocks,
                kinds,
                tiles,
                layout,
                direct,
                splits: choice.splits,
                sizes,
            })
        }),
    })
}

/// Elements of the pieces of a task's scratch.
struct Sizes {
    planes: usize,
    v: usize,
    products: usize,
    product_plane: usize,
    /// Rows of X, where they are converted first.
    rows_in: usize,
    /// Rows of pixels, where kernels cannot write them into Y.
    rows_out: usize,
    row_out: usize,
    patch: usize,
    marks: usize,
}

impl Sizes {
    fn new<T: Element>(
        roles: &Roles,
        scheme: &Scheme<T::Acc>,
        block: &Block<T::Acc>,
        tiles: &Tiles<T::Acc>,
        direct: &Direct<T::Acc>,
    ) -> Self {
        let lanes = scheme.kernel.lanes();
        let product_plane = spread(block.extent.tiles() * tiles.nr(), lanes);
        let row_out = block.extent.columns * scheme.along.tile.outputs;
        Self {
            planes: block.planes.len(),
            v: block.slot_len(scheme) * roles.depth.kernel,
            products: product_plane * scheme.kernel.values(),
            product_plane,
            rows_in: if T::DIRECT && distance(&roles.along) == 1 {
                0
            } else {
                block.planes.rows() * block.planes.row_len()
            },
            rows_out: lanes * scheme.down.tile.outputs * row_out,
            row_out,
            patch: direct.scratch_len(tiles.nr()),
            marks: block.extent.columns,
        }
    }

    fn lines<T: Element>(&self) -> usize {
        let values = [self.planes, self.v, self.products, self.rows_in, self.rows_out, self.patch];
        let lines = values.iter().fold(0_usize, |sum, len| sum.saturating_add(lines_for::<T::Acc>(*len)));
        lines.saturating_add(lines_for::<u8>(self.marks))
    }
}

/// Numbers of blocks.
struct Grid {
    images: usize,
    rows: usize,
    columns: usize,
}

struct Winograd<T: Element> {
    geometry: Geometry,
    isa: Isa,
    activation: stream::Activation<T::Acc>,
    /// The bounds of the clamp, where kernels write into Y.
    clamp: Option<(T::Acc, T::Acc)>,
    roles: Roles,
    scheme: Scheme<T::Acc>,
    grid: Grid,
    /// The full block first.
    blocks: alloc::vec::Vec<Block<T::Acc>>,
    /// Which of the blocks it is, for those that are the last on the axis of images (4), down (2), along (1).
    kinds: [usize; 8],
    tiles: Tiles<T::Acc>,
    layout: PackedLayout,
    direct: Direct<T::Acc>,
    /// Shares that the panels of channels are split into.
    splits: usize,
    sizes: Sizes,
}

/// One task: a block of tiles of one group, for a share of the panels.
struct Task<'a, T: Real> {
    /// The first image.
    image: usize,
    group: usize,
    /// Slices of Y.
    slices: Range<usize>,
    panels: Range<usize>,
    block: &'a Block<T>,
    /// The phases of the axes, and the first row and column of tiles in them.
    down: Phase,
    along: Phase,
    row: usize,
    column: usize,
}

/// The scratch of a task.
struct Scratch<'a, T> {
    planes: &'a mut [T],
    v: &'a mut [T],
    products: &'a mut [T],
    rows_in: &'a mut [T],
    rows_out: &'a mut [T],
    patch: &'a mut [T],
    marks: &'a mut [u8],
}

impl<T: Element> Winograd<T> {
    fn task(&self, task: usize) -> Task<'_, T::Acc> {
        let (rest, split) = (task / self.splits, task % self.splits);
        let depths = depth_tasks(&self.roles);
        let (rest, depth) = (rest / depths, rest % depths);
        let (rest, along) = (rest / self.grid.columns, rest % self.grid.columns);
        let (rest, down) = (rest / self.grid.rows, rest % self.grid.rows);
        let (rest, group) = (rest / self.geometry.group, rest % self.geometry.group);
        // Phases outermost: tasks that run at the same time should not write to the same cache lines.
        let (rest, images) = (rest / self.grid.images, rest % self.grid.images);
        let (phase_down, phase_along) = (rest / phases(&self.roles.along), rest % phases(&self.roles.along));
        let count = self.geometry.out_channels_per_group().div_ceil(self.tiles.nr());
        let is_last = |at: usize, of: usize| usize::from(at + 1 == of);
        let kind = 4 * is_last(images, self.grid.images)
            + 2 * is_last(down, self.grid.rows)
            + is_last(along, self.grid.columns);
        Task {
            image: images * self.blocks[0].extent.images,
            group,
            slices: if depths == 1 { 0..self.roles.depth.output } else { depth..depth + 1 },
            panels: split * count / self.splits..(split + 1) * count / self.splits,
            block: &self.blocks[self.kinds[kind]],
            down: Phase::new(&self.roles.down, phase_down),
            along: Phase::new(&self.roles.along, phase_along),
            row: down * self.blocks[0].extent.rows,
            column: along * self.blocks[0].extent.columns,
        }
    }

    /// Transforms the tiles of one slice of X, for all channels.
    fn transform(&self, io: &Io<'_, T>, task: &Task<'_, T::Acc>, slice: usize, scratch: &mut Scratch<'_, T::Acc>) {
        let (geometry, block) = (&self.geometry, task.block);
        let Roles { depth, down, along } = &self.roles;
        let channels = geometry.in_channels_per_group();
        // The padded position of the block's first row and element in their phases, and what is not padding.
        let (y, x) = (task.row * self.scheme.down.tile.outputs, task.column * self.scheme.along.tile.outputs);
        let live_rows = task.down.live(y, block.planes.rows());
        let live = task.along.live(x, block.planes.row_len());
        let is_empty = live_rows.is_empty() || live.is_empty();
        let (live_rows, live) = if is_empty { (0..0, 0..0) } else { (live_rows, live) };
        let first_row = if is_empty { 0 } else { task.down.place(y + live_rows.start) - down.pad_begin };
        let first = if is_empty { 0 } else { task.along.place(x + live.start) - along.pad_begin };
        let slot = slice % depth.kernel;
        let v = &mut scratch.v[slot * block.slot_len(&self.scheme)..][..block.slot_len(&self.scheme)];
        let plane = down.input * along.input;
        // The source of the call behind this one, nearly always.
        let next = if block.extent.images > 1 { geometry.in_channels } else { 1 } * depth.input * plane;
        let border = Border::new(self.scheme.kernel, &block.planes, live_rows.clone(), live.clone());
        for (c, image) in (0..channels).flat_map(|c| (0..block.extent.images).map(move |image| (c, image))) {
            let channel = ((task.image + image) * geometry.in_channels + task.group * channels + c) * depth.input;
            let begin = (channel + slice - depth.pad_begin) * plane + first_row * along.input;
            let row_stride = task.down.step * along.input;
            let len = if is_empty { 0 } else { (live_rows.len() - 1) * row_stride + along.input };
            let rows = if is_empty { &[] } else { &io.x[begin..begin + len] };
            let rows = rows.get(first..).unwrap_or(&[]);
            let source = match T::as_acc(rows) {
                Some(x) if task.along.step == 1 => Source { x, row_stride, next },
                _ => {
                    let converted = &mut scratch.rows_in[..live_rows.len() * live.len()];
                    for (r, row) in converted.chunks_exact_mut(live.len().max(1)).enumerate() {
                        stream::widen_strided(self.isa, &rows[r * row_stride..], task.along.step, row);
                    }
                    Source { x: converted, row_stride: live.len(), next }
                }
            };
            self.scheme.kernel.split(&source, &border, scratch.planes);
            let v = &mut v[c * block.extent.input_tiles() + image * block.extent.image_input_tiles()..];
            self.scheme.kernel.input(scratch.planes, &block.planes, v, block.v_plane);
        }
    }

    /// Multiplies all values of one panel: over the slices `taps` of the depth axis, the first of which is in slot `slot`.
    fn multiply(
        &self,
        weights: &[T::Acc],
        task: &Task<'_, T::Acc>,
        panel: usize,
        taps: Range<usize>,
        slot: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (block, layout) = (task.block, &self.layout);
        let first = panel * self.tiles.nr();
        let live = self.geometry.out_channels_per_group() - first;
        let nr = self.tiles.panel(live);
        let filters = &weights[layout.panel(first, nr)];
        let per_slice = layout.steps / self.roles.depth.kernel;
        let steps = taps.len() * per_slice;
        let koff = slot * per_slice..slot * per_slice + steps;
        let len = steps * nr;
        let (runs, width) = block.extent.runs();
        let kc = steps.div_ceil(steps.div_ceil(KC).max(1)).max(1);
        for value in 0..self.scheme.kernel.values() {
            let begin = (value * layout.steps + taps.start * per_slice) * nr;
            let w = &filters[begin..begin + len];
            // While these filters are multiplied, the next value's are fetched: a line with each step of k.
            let mut ahead = weights.get(layout.panel(first, nr).start + begin + layout.steps * nr..).unwrap_or(&[]);
            ahead = &ahead[..len.min(ahead.len())];
            for run in 0..runs {
                // In blocks, whose sums are added: one long running sum would err more, and a block's filters stay in the L1 cache for all tiles.
                for k in (0..steps.max(1)).step_by(kc) {
                    let block_of_k = k..(k + kc).min(steps);
                    let koff = block.koff.rows(koff.start + k..koff.start + block_of_k.end);
                    let w = &w[k * nr..block_of_k.end * nr];
                    for t in 0..block.pixels.count {
                        let pixels = block.pixels.pixels(t);
                        let kernel = block.pixels.kernel(pixels.len(), live);
                        let x = value * block.v_plane + block.extent.row_start(run) + pixels.start;
                        // Without steps of k nothing is read.
                        let x = scratch.v.get(x..).unwrap_or(&[]);
                        let at = value * self.sizes.product_plane + (run * width + pixels.start) * nr;
                        let tile = &mut scratch.products[at..at + pixels.len() * nr];
                        kernel.partial(x, koff, w, Ahead::lines(ahead), tile, k > 0);
                        ahead = ahead.get(koff.len() * Ahead::LINE / size_of::<T::Acc>()..).unwrap_or(&[]);
                    }
                }
            }
        }
    }

    /// Takes the products of one panel back into slice `slice` of Y.
    fn take_back(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        panel: usize,
        slice: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (geometry, block, lanes) = (&self.geometry, task.block, self.tiles.lanes());
        let (down, along) = (&self.roles.down, &self.roles.along);
        let channels = geometry.out_channels_per_group();
        let first = panel * self.tiles.nr();
        let live = self.tiles.nr().min(channels - first);
        let nr = self.tiles.panel(channels - first);
        let (m_down, m_along) = (self.scheme.down.tile.outputs, self.scheme.along.tile.outputs);
        let x = task.column * m_along;
        // Later phases may have a row or column of tiles less.
        let width = (block.extent.columns * m_along).min(task.along.output.saturating_sub(x));
        let tiles = width.div_ceil(m_along);
        let past_cache = geometry.output_len() * size_of::<T>() >= PAST_CACHE_BYTES;
        let marks = &mut scratch.marks[..tiles];
        marks.fill(0);
        for row in 0..block.extent.images * block.extent.rows {
            let image = task.image + row / block.extent.rows;
            let y = (task.row + row % block.extent.rows) * m_down;
            let height = m_down.min(task.down.output.saturating_sub(y));
            if height == 0 || width == 0 {
                continue;
            }
            let mut is_good = true;
            for vector in (0..live).step_by(lanes) {
                let channel = task.group * channels + first + vector;
                let count = lanes.min(live - vector);
                let bias = &io.bias[channel..channel + count];
                let products = Products {
                    values: &scratch.products[row * block.extent.columns * nr + vector..],
                    tile_step: nr,
                    plane: self.sizes.product_plane,
                    tiles,
                };
                let plane = (image * geometry.out_channels + channel) * self.roles.depth.output + slice;
                let at = (plane * down.output + task.down.place(y)) * along.output + task.along.place(x);
                let row_step = task.down.step * along.output;
                let pixels = Pixels {
                    channels: count,
                    channel_step: geometry.output_spatial(),
                    row_step,
                    width,
                    height,
                    past_cache,
                };
                is_good &= if let Some((lo, hi)) = self.clamp
                    && task.along.step == 1
                    && let Some(mut dest) = T::dest_as_acc(io.y.dest(at))
                {
                    let residual = io.residual.and_then(T::as_acc).map(|r| &r[at..]);
                    self.scheme.kernel.output(
                        &products,
                        &pixels,
                        &mut dest,
                        &Epilogue { bias, residual, lo, hi },
                        marks,
                    )
                } else {
                    let row_out = self.sizes.row_out;
                    let pixels =
                        Pixels { channel_step: m_down * row_out, row_step: row_out, past_cache: false, ..pixels };
                    let mut dest = Dest::from_slice(&mut *scratch.rows_out);
                    // The bias is added below, with what else the kernel cannot do.
                    let (lo, hi) = (T::Acc::NEG_INFINITY, T::Acc::INFINITY);
                    let epilogue = Epilogue { bias: &self.direct.zeros[..count], residual: None, lo, hi };
                    let is_good = self.scheme.kernel.output(&products, &pixels, &mut dest, &epilogue, marks);
                    let finish = Finish { isa: self.isa, activation: self.activation, io };
                    for (c, bias) in bias.iter().enumerate() {
                        for i in 0..height {
                            let row = &mut scratch.rows_out[(c * m_down + i) * row_out..][..width];
                            let at = at + c * geometry.output_spatial() + i * row_step;
                            finish.strided(row, *bias, at, task.along.step);
                        }
                    }
                    is_good
                };
            }
            if !is_good {
                for (tile, mark) in marks.iter_mut().enumerate() {
                    if core::mem::take(mark) != 0 {
                        self.recompute(io, task, panel, slice, (row, tile), scratch.patch);
                    }
                }
            }
        }
    }

    /// Computes one tile of one panel directly: that in row `row`, counted over the block's images, and column `column`.
    fn recompute(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        panel: usize,
        slice: usize,
        (row, column): (usize, usize),
        patch: &mut [T::Acc],
    ) {
        let first = panel * self.tiles.nr();
        let channels = self.geometry.out_channels_per_group();
        let nr = self.tiles.panel(channels - first);
        let group = &io.weights[task.group * self.layout.group_len()..][..self.layout.group_len()];
        let rows = task.block.extent.rows;
        let tile = direct::Tile {
            image: task.image + row / rows,
            group: task.group,
            slice,
            down: task.down,
            along: task.along,
            y: (task.row + row % rows) * self.scheme.down.tile.outputs,
            x: (task.column + column) * self.scheme.along.tile.outputs,
            channels: first..(first + self.tiles.nr()).min(channels),
        };
        let filters = &group[self.layout.direct_panel(first, nr)];
        let finish = Finish { isa: self.isa, activation: self.activation, io };
        self.direct.compute(&self.geometry, &self.roles, &tile, filters, nr, patch, &finish);
    }
}

impl<T: Element> Lowering<T> for Winograd<T> {
    fn layout(&self) -> Layout {
        let (down, along) = (self.scheme.down.tile, self.scheme.along.tile);
        alloc::vec![down.values, down.outputs, along.values, along.outputs]
    }

    fn describe(&self) -> String {
        let extent = &self.blocks[0].extent;
        format!(
            "{} by {}, {} filters, blocks of {} x {} tiles, {} blocks, panels in {} shares",
            self.kernel(),
            self.tiles.name(),
            self.scheme.filters(),
            extent.rows,
            extent.columns,
            self.grid.rows * self.grid.columns,
            self.splits
        )
    }

    fn kernel(&self) -> &str {
        self.scheme.kernel.name()
    }

    fn packed_len(&self, geometry: &Geometry) -> usize {
        geometry.group * self.layout.group_len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let group_len = self.layout.group_len();
        if group_len == 0 {
            return;
        }
        let w_len = self.geometry.weight_len() / self.geometry.group;
        for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
            let w = &w[group * w_len..(group + 1) * w_len];
            pack::pack(w, &self.geometry, &self.roles, &self.scheme, &self.layout, &self.tiles, packed);
        }
    }

    fn tasks(&self) -> usize {
        let phases = phases(&self.roles.down) * phases(&self.roles.along);
        let Grid { images, rows, columns } = self.grid;
        images * self.geometry.group * rows * columns * depth_tasks(&self.roles) * phases * self.splits
    }

    /// One share of the panels, for one block of tiles of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let task = self.task(task);
        let mut arena = Arena::new(scratch);
        let sizes = &self.sizes;
        let mut scratch = Scratch {
            planes: arena.take(sizes.planes),
            v: arena.take(sizes.v),
            products: arena.take(sizes.products),
            rows_in: arena.take(sizes.rows_in),
            rows_out: arena.take(sizes.rows_out),
            patch: arena.take(sizes.patch),
            marks: arena.take(sizes.marks),
        };
        let extent = task.block.extent;
        let depth = self.roles.depth;
        if !io.is_finite {
            for slice in task.slices.clone() {
                for panel in task.panels.clone() {
                    for tile in 0..extent.tiles() {
                        let place = (tile / extent.columns, tile % extent.columns);
                        self.recompute(io, &task, panel, slice, place, scratch.patch);
                    }
                }
            }
            return;
        }
        let group = &io.weights[task.group * self.layout.group_len()..][..self.layout.group_len()];
        let mut next = 0;
        for slice in task.slices.clone() {
            // Padded positions of the slices that are read, then without padding.
            let begin = slice * depth.stride;
            let live = begin.max(depth.pad_begin)..(begin + depth.kernel).min(depth.pad_begin + depth.input);
            next = next.max(live.start);
            while next < live.end {
                self.transform(io, &task, next, &mut scratch);
                next += 1;
            }
            let taps = if live.is_empty() { 0..0 } else { live.start - begin..live.end - begin };
            let slot = live.start % depth.kernel;
            for panel in task.panels.clone() {
                self.multiply(group, &task, panel, taps.clone(), slot, &mut scratch);
                self.take_back(io, &task, panel, slice, &mut scratch);
            }
        }
    }
}

//! The tasks of a layer: they transform a block of tiles, multiply it, and transform it back into Y.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::winograd::{Pixels, Planes, Products};
use convoke_kernels::{Dest, Epilogue, Isa, Real, activation_kernel};

use super::blocking::{BlockPlace, BlockSize, Blocking, MOST_SLICES, spread};
use super::cost::CostModel;
use super::pack::{self, PackedLayout};
use super::products::BlockProducts;
use super::view::{SubImage, WinogradView, distance};
use crate::conv::channel_tiles::ChannelTiles;
use crate::conv::contract::{Io, Lowering, Request};
use crate::conv::store::Finish;
use crate::element::{Compute, Element};
use crate::exec::split::{Patch, Shape, Split};
use crate::exec::{Arena, Ledger, Line, Piece, share};
use crate::{Geometry, reference};

/// How Conv and ConvTranspose differ: the taps of filters, and where outputs go in Y.
pub(super) trait TileOperator<T: Element>: Send + Sync {
    /// The taps of filter `row` of a group for channel `c` of the view, in the order of its axes. `w` is
    /// the group's W.
    fn filter(&self, core: &Winograd<T>, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]);

    /// Calls `patch` with the parts of Y of some outputs of the view.
    fn patches(&self, core: &Winograd<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch));

    /// Stores the products of a row of tiles into Y. Returns whether all sums were finite. Tiles with
    /// other sums are marked, and are not stored if Y holds the residual, which is still needed.
    fn store(
        &self,
        core: &Winograd<T>,
        io: &Io<'_, T>,
        row: &TileRow<'_, T::Acc>,
        scratch: RowScratch<'_, T::Acc>,
    ) -> bool;
}

/// A layer's view, `interleaved` as in [`ScratchPieces::book`], and the operator.
pub(super) type OperatorView<T> = (WinogradView, usize, Box<dyn TileOperator<T>>);

/// Outputs of the view: some filters of a group, and a box of a sub-image, which may reach beyond its
/// end.
pub(super) struct OutputBox {
    pub(super) sub: SubImage,
    pub(super) group: usize,
    pub(super) filters: Range<usize>,
    pub(super) slices: Range<usize>,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// The products of a row of tiles with a vector of filters, and their outputs.
pub(super) struct TileRow<'a, T: Real> {
    pub(super) products: Products<'a, T>,
    pub(super) sub: SubImage,
    pub(super) group: usize,
    pub(super) slice: usize,
    /// The first row and element in the sub-image, and their numbers.
    pub(super) y: usize,
    pub(super) x: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) filters: Range<usize>,
}

impl<T: Real> TileRow<'_, T> {
    /// Where its pixels go, with channels, rows and pixels of a row at these distances.
    pub(super) fn pixels(
        &self,
        (channel_step, row_step, pixel_step): (usize, usize, usize),
        past_cache: bool,
    ) -> Pixels {
        let Self { height, width, .. } = *self;
        Pixels { channels: self.filters.len(), channel_step, row_step, pixel_step, width, height, past_cache }
    }
}

/// Scratch for a [`TileRow`].
pub(super) struct RowScratch<'a, T> {
    /// Rows of pixels, at the places that [`Winograd::row_at`] says, or pixels, if their channels are neighbours.
    pub(super) rows: &'a mut [T],
    /// Interleaved rows of Y, or pixels that are finished before they are rounded.
    pub(super) interleaved: &'a mut [T],
    /// Which tiles are not finite.
    pub(super) marks: &'a mut [u8],
}

/// The tables of all blocks of one size.
pub(super) struct BlockTables<T: Real> {
    pub(super) size: BlockSize,
    pub(super) planes: Planes,
    products: BlockProducts<T>,
    /// The distance of two values' transformed tiles.
    pub(super) v_plane: usize,
}

impl<T: Real> BlockTables<T> {
    /// None if a kernel is lacking. The block must [fit](BlockSize::fits) `slots` slots.
    fn new(
        request: &Request<'_, impl Element<Acc = T>>,
        model: &CostModel<'_, T>,
        view: &WinogradView,
        layout: &PackedLayout,
        (size, slots): (BlockSize, usize),
    ) -> Option<Self> {
        let scheme = &model.scheme;
        // The last row is left out, unless the GEMMs then become so small that they take longer.
        let leaves_out = model.gemms(&size, size.spare > 0).cycles() < model.gemms(&size, false).cycles();
        let products = BlockProducts::new(request, (view, scheme), layout, (&size, slots), leaves_out)?;
        Some(Self { planes: size.planes(scheme), products, v_plane: size.v_plane(scheme, view.channels), size })
    }
}

/// What a task computes: a block of tiles of one group, for some panels.
pub(super) struct TileTask<'a, T: Real> {
    pub(super) place: BlockPlace,
    pub(super) block: &'a BlockTables<T>,
    pub(super) group: usize,
    slices: Range<usize>,
    panels: Range<usize>,
}

/// The pieces of a task's scratch, and the distances in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchPieces<A> {
    planes: Piece<A>,
    v: Piece<A>,
    products: Piece<A>,
    rows_in: Piece<A>,
    zeros: Piece<A>,
    rows_out: Piece<A>,
    interleaved: Piece<A>,
    marks: Piece<u8>,
    /// The distance of the products of two panels.
    product_panel: usize,
    /// The distance of the products of two values with a panel.
    product_plane: usize,
    /// Elements of a row of pixels.
    row_out: usize,
}

impl<A: Compute> ScratchPieces<A> {
    /// Books scratch for all blocks, and panels of `nr` filters. `interleaved` is how many elements of Y
    /// a pixel of a vector of filters has, if rows or pixels of Y are finished in scratch; otherwise 0.
    pub(super) fn book<T: Element<Acc = A>>(
        ledger: &mut Ledger,
        view: &WinogradView,
        blocking: &Blocking<A>,
        nr: usize,
        interleaved: usize,
    ) -> Self {
        let Blocking { scheme, blocks, chunk, .. } = blocking;
        let (lanes, largest) = (scheme.kernel.lanes(), blocks.largest());
        let planes = largest.planes(scheme);
        let pixel = if view.reads_pixels { view.pixel(lanes) } else { 0 };
        let is_spare = scheme.spare(&view.roles) > 0;
        let rows_in = match view.reads_pixels {
            // The rows that a row of tiles reads.
            true if !T::DIRECT || pixel > view.channels_of_phase() || is_spare => {
                scheme.down.tile.values * (planes.row_len() * pixel).next_multiple_of(lanes)
            }
            false if !T::DIRECT || distance(&view.roles.along) > 1 || view.strides[1] > 1 => {
                planes.rows() * planes.row_len() * largest.images * view.strides[1]
            }
            _ => 0,
        };
        let product_plane = spread(largest.tiles() * nr, lanes);
        let product_panel = product_plane * scheme.kernel.values();
        let row_out = largest.columns * scheme.along.tile.outputs;
        let slots = chunk.slots(&view.roles.depth);
        Self {
            planes: ledger.book("planes", if view.reads_pixels { 0 } else { planes.scratch_len() }),
            v: ledger.book("transformed tiles", largest.slot_len(scheme, view.channels) * slots),
            products: ledger.book("products", product_panel * chunk.panels * chunk.slices),
            rows_in: ledger.book("rows of X", rows_in),
            zeros: ledger.book("zeros", pixel),
            rows_out: ledger.book("rows of pixels", lanes * scheme.down.tile.outputs * row_out),
            interleaved: ledger.book("rows of Y", interleaved.saturating_mul(row_out)),
            marks: ledger.book("marks", largest.columns),
            product_panel,
            product_plane,
            row_out,
        }
    }

    fn take<'a>(&self, scratch: &'a mut [Line]) -> Scratch<'a, A> {
        let mut arena = Arena::new(scratch);
        Scratch {
            planes: arena.get(self.planes),
            v: arena.get(self.v),
            products: arena.get(self.products),
            rows_in: arena.get(self.rows_in),
            zeros: arena.get(self.zeros),
            rows_out: arena.get(self.rows_out),
            interleaved: arena.get(self.interleaved),
            marks: arena.get(self.marks),
        }
    }
}

pub(super) struct Scratch<'a, A> {
    /// Planes of one channel of X, halfway through its transform.
    pub(super) planes: &'a mut [A],
    pub(super) v: &'a mut [A],
    products: &'a mut [A],
    /// Rows of X, if they are converted or deinterleaved first: of all images of a block; or of a row of tiles, if X has
    /// its channels last.
    pub(super) rows_in: &'a mut [A],
    /// A pixel of padding.
    pub(super) zeros: &'a mut [A],
    /// Rows of pixels that kernels cannot write into Y.
    rows_out: &'a mut [A],
    /// Interleaved rows of Y, or pixels that are finished before they are rounded.
    interleaved: &'a mut [A],
    /// Which tiles of a row have sums that are not finite.
    marks: &'a mut [u8],
}

/// A layer by Winograd's algorithm.
pub(super) struct Winograd<T: Element> {
    pub(super) isa: Isa,
    pub(super) geometry: Geometry,
    pub(super) finish: Finish<T::Acc>,
    pub(super) view: WinogradView,
    pub(super) blocking: Blocking<T::Acc>,
    /// By size of blocks.
    tables: Vec<BlockTables<T::Acc>>,
    /// The tiles of the kernels.
    tiles: ChannelTiles<T::Acc>,
    layout: PackedLayout,
    pieces: ScratchPieces<T::Acc>,
    operator: Box<dyn TileOperator<T>>,
}

impl<T: Element> Winograd<T> {
    /// Makes the tables.
    ///
    /// # Panics
    /// If a kernel is lacking: the blocking must have been estimated.
    pub(super) fn new(
        request: &Request<'_, T>,
        view: WinogradView,
        blocking: Blocking<T::Acc>,
        (tiles, layout, pieces): (ChannelTiles<T::Acc>, PackedLayout, ScratchPieces<T::Acc>),
        operator: Box<dyn TileOperator<T>>,
    ) -> Self {
        let slots = blocking.chunk.slots(&view.roles.depth);
        let model = CostModel::new(request.machine, &view, blocking.scheme).expect("a layer that was estimated");
        let mut tables: Vec<BlockTables<T::Acc>> = Vec::new();
        for (size, _) in blocking.blocks.sizes() {
            if tables.iter().all(|block| block.size != size) {
                let block = BlockTables::new(request, &model, &view, &layout, (size, slots));
                tables.push(block.expect("the kernels that were estimated"));
            }
        }
        let (isa, geometry, finish) = (request.isa(), request.geometry.clone(), Finish::new(request));
        Self { isa, geometry, finish, view, blocking, tables, tiles, layout, pieces, operator }
    }

    fn task(&self, task: usize) -> TileTask<'_, T::Acc> {
        let WinogradView { groups, ref roles, .. } = self.view;
        let Blocking { ref blocks, parts, .. } = self.blocking;
        let depths = roles.depth_tasks();
        // From the innermost index outwards. The parts of the panels are outermost, so that the
        // neighbouring tasks of a thread use the same filters.
        let mut rest = task;
        let mut next = |count: usize| {
            let digit = rest % count;
            rest /= count;
            digit
        };
        let (depth, block) = (next(depths), next(blocks.of_image()));
        let (group, images) = (next(groups), next(blocks.of_batch()));
        let place = blocks.place(images, block);
        let block = self.tables.iter().find(|block| block.size == place.size);
        TileTask {
            place,
            block: block.expect("tables of each size"),
            group,
            slices: if depths == 1 { 0..roles.depth.output } else { depth..depth + 1 },
            panels: share(self.view.filters.div_ceil(self.tiles.nr()), parts, next(parts)),
        }
    }

    fn outputs(&self, task: &TileTask<'_, T::Acc>, image: usize, rows: Range<usize>) -> OutputBox {
        let (place, [m_down, m_along]) = (&task.place, self.blocking.scheme.outputs());
        let filter = |panel: usize| (panel * self.tiles.nr()).min(self.view.filters);
        OutputBox {
            sub: SubImage::new(&self.view.roles, place.image + image),
            group: task.group,
            filters: filter(task.panels.start)..filter(task.panels.end),
            slices: task.slices.clone(),
            rows: (place.row + rows.start) * m_down..(place.row + rows.end) * m_down,
            columns: place.column * m_along..(place.column + place.size.columns) * m_along,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.blocking.chunk.slots(&self.view.roles.depth)
    }

    /// Where row i of filter c begins in the scratch for rows of pixels.
    pub(super) fn row_at(&self, c: usize, i: usize) -> usize {
        (c * self.blocking.scheme.down.tile.outputs + i) * self.pieces.row_out
    }

    /// Transforms products back into rows of scratch. Returns whether all sums were finite.
    pub(super) fn store_rows(
        &self,
        row: &TileRow<'_, T::Acc>,
        epilogue: &Epilogue<'_, T::Acc>,
        rows: &mut [T::Acc],
        marks: &mut [u8],
    ) -> bool {
        self.store_in(row, (self.row_at(1, 0), self.row_at(0, 1), 1), epilogue, rows, marks)
    }

    /// The same, with channels, rows and pixels of a row at these distances.
    pub(super) fn store_in(
        &self,
        row: &TileRow<'_, T::Acc>,
        steps: (usize, usize, usize),
        epilogue: &Epilogue<'_, T::Acc>,
        scratch: &mut [T::Acc],
        marks: &mut [u8],
    ) -> bool {
        let (kernel, pixels) = (self.blocking.scheme.kernel, row.pixels(steps, false));
        kernel.output(&row.products, &pixels, &mut Dest::from_slice(scratch), epilogue, marks)
    }

    /// The pixels of the unmarked tiles of a row, as ranges that count from its first pixel.
    pub(super) fn good_pixels<'m>(
        &self,
        row: &TileRow<'_, T::Acc>,
        marks: &'m [u8],
    ) -> impl Iterator<Item = Range<usize>> + use<'m, T> {
        let (m, width) = (self.blocking.scheme.along.tile.outputs, row.width);
        let mut tile = 0;
        marks.chunk_by(|a, b| a == b).filter_map(move |alike| {
            let first = tile;
            tile += alike.len();
            (alike[0] == 0).then(|| first * m..(tile * m).min(width))
        })
    }

    /// Where the products of a slice and a panel of a chunk begin.
    fn products_at(&self, slice: usize, panel: usize) -> usize {
        (slice * self.blocking.chunk.panels + panel) * self.pieces.product_panel
    }

    /// The first filter of a panel, and its filters, padding included.
    fn panel(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.tiles.nr();
        (first, self.tiles.panel(self.view.filters - first))
    }

    /// Multiplies all values of the tiles by some panels, for some slices of Y.
    fn multiply(
        &self,
        weights: &[T::Acc],
        task: &TileTask<'_, T::Acc>,
        panels: &Range<usize>,
        slices: &Range<usize>,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (block, kernel) = (task.block, self.blocking.scheme.kernel);
        let (depth, slots) = (&self.view.roles.depth, self.slots());
        let filters = |panel: usize, value: usize, taps: &Range<usize>| {
            &weights[self.layout.filters(task.group, self.panel(panel), value, taps)]
        };
        // The taps of the depth axis that meet X, for each slice and for all of them. The first and the
        // last slice may have fewer.
        let mut seen: [Range<usize>; MOST_SLICES] = Default::default();
        let seen = &mut seen[..slices.len()];
        seen.iter_mut().zip(slices.clone()).for_each(|(seen, slice)| *seen = depth.taps_of_output(slice));
        let all_taps = seen.iter().filter(|taps| !taps.is_empty()).cloned();
        let all_taps = all_taps.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        // Values that are zero in the last row of tiles have no calls if there is no other row.
        let is_short = |value: usize| block.planes.spare().drops(value / kernel.along().values);
        let is_empty = |value: usize| block.products.is_empty(is_short(value));
        let next_of = |value: usize| (value..kernel.values()).find(|value| !is_empty(*value));
        for value in 0..kernel.values() {
            let steps = (self.layout.value(value).list, is_short(value));
            let v = &scratch.v[value * block.v_plane..];
            for panel in panels.clone() {
                // What is multiplied next is prefetched: the next panel, value, or chunk.
                let next = match next_of(value + 1) {
                    _ if panel + 1 < panels.end => Some((panel + 1, value)),
                    Some(value) => Some((panels.start, value)),
                    None if panels.end * self.tiles.nr() < self.view.filters => {
                        Some((panels.end, next_of(0).unwrap_or(0)))
                    }
                    None => None,
                };
                let next = next.map_or(&[][..], |(panel, value)| filters(panel, value, &all_taps));
                let nr = self.panel(panel).1;
                // The calls for all slices share the prefetching.
                let mut prefetch = block.products.prefetch(steps.1, next, (nr, seen.len()));
                for (i, taps) in seen.iter().enumerate() {
                    // The slot of the slice of X that tap 0 meets, or would meet.
                    let slot = (slices.start + i) * depth.stride % slots;
                    let slots = slot + taps.start..slot + taps.end;
                    let at = self.products_at(i, panel - panels.start) + value * self.pieces.product_plane;
                    let products = &mut scratch.products[at..][..self.pieces.product_plane];
                    if !is_empty(value) {
                        let weights = (filters(panel, value, taps), nr);
                        block.products.multiply(steps, (v, slots), weights, &mut prefetch, products);
                    }
                    if is_short(value) {
                        clear_last_rows(&block.size, nr, products);
                    }
                }
            }
        }
    }

    /// Transforms the products of one panel and one slice, from `products` in the scratch on, back into
    /// Y.
    fn take_back(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        (panel, slice): (usize, usize),
        products: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let BlockSize { images, rows, columns, .. } = task.block.size;
        let (lanes, (first, nr)) = (self.tiles.lanes(), self.panel(panel));
        let real = self.tiles.nr().min(self.view.filters - first);
        let [_, m_along] = self.blocking.scheme.outputs();
        for (image, row) in (0..images).flat_map(|image| (0..rows).map(move |row| (image, row))) {
            let part = self.outputs(task, image, row..row + 1);
            let (sub, y, x) = (part.sub, part.rows.start, part.columns.start);
            // Later phases may have one row or column of tiles less.
            let height = part.rows.end.min(sub.down.output).saturating_sub(y);
            let width = part.columns.end.min(sub.along.output).saturating_sub(x);
            if height == 0 || width == 0 {
                continue;
            }
            let (group, tiles) = (task.group, width.div_ceil(m_along));
            for vector in (0..real).step_by(lanes) {
                let values = &scratch.products[products + (image * rows + row) * columns * nr + vector..];
                let products = Products { values, tile_step: nr, plane: self.pieces.product_plane, tiles };
                let filters = first + vector..first + real.min(vector + lanes);
                let marks = &mut scratch.marks[..tiles];
                marks.fill(0);
                let tile_row = TileRow { products, sub, group, slice, y, x, height, width, filters: filters.clone() };
                let of_row = RowScratch { rows: scratch.rows_out, interleaved: scratch.interleaved, marks };
                if !self.operator.store(self, io, &tile_row, of_row) {
                    for tile in (0..tiles).filter(|tile| scratch.marks[*tile] != 0) {
                        let columns = x + tile * m_along..x + (tile + 1) * m_along;
                        let (slices, rows) = (slice..slice + 1, part.rows.clone());
                        self.define(io, &OutputBox { filters: filters.clone(), slices, rows, columns, ..part });
                    }
                }
            }
        }
    }

    /// Computes the outputs of a tile whose sums are not finite by the definition.
    fn define(&self, io: &Io<'_, T>, part: &OutputBox) {
        let (geometry, w) = (&self.geometry, &io.weights[self.layout.w()]);
        let activation = activation_kernel(Isa::Portable, self.finish.activation().to_f64());
        let (channels, positions) = (geometry.out_channels, geometry.output_spatial());
        // Elements are counted as if channels came first.
        let mut element = |index: usize| {
            let place @ (n, m, position) =
                (index / positions / channels, index / positions % channels, index % positions);
            let x = |n, c, position| io.x[io.strides.x.at(n, c, position)].to_acc().to_f64();
            let sum = reference::sum(geometry, place, io.bias[m].to_f64(), x, |at| w[at].to_f64());
            let residual = io.residual_of(place).to_f64();
            let at = io.strides.y.at(n, m, position);
            io.y.write(at, T::round_from_f64(activation.apply(sum.value + residual)));
        };
        self.operator.patches(self, part, &mut |patch| {
            patch.for_each_run(&Shape::of(geometry), |first, len| (first..first + len).for_each(&mut element));
        });
    }
}

/// Clears the products of the last row of tiles of each image.
fn clear_last_rows<T: Real>(size: &BlockSize, nr: usize, products: &mut [T]) {
    let BlockSize { images, rows, columns, .. } = *size;
    for image in products[..images * rows * columns * nr].chunks_exact_mut(rows * columns * nr) {
        image[(rows - 1) * columns * nr..].fill(T::ZERO);
    }
}

impl<T: Element> Split for Winograd<T> {
    fn tasks(&self) -> usize {
        self.blocking.tasks(&self.view)
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let task = self.task(task);
        let BlockSize { images, rows, .. } = task.block.size;
        (0..images).for_each(|image| self.operator.patches(self, &self.outputs(&task, image, 0..rows), patch));
    }
}

impl<T: Element> Lowering<T> for Winograd<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (view, scheme, layout) = (&self.view, &self.blocking.scheme, &self.layout);
        let w_len = w.len() / view.groups;
        for group in 0..view.groups {
            let w = &w[group * w_len..(group + 1) * w_len];
            let filter = |row: usize, c: usize, taps: &mut [T::Acc]| self.operator.filter(self, w, row, c, taps);
            pack::pack(view, scheme, layout, &self.tiles, group, filter, packed);
        }
        for (packed, w) in packed[layout.w()].iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let (task, chunk) = (&self.task(task), &self.blocking.chunk);
        let mut scratch = self.pieces.take(scratch);
        // The first padded slice of X that is not transformed yet.
        let mut next = 0;
        for first in task.slices.clone().step_by(chunk.slices) {
            let slices = first..(first + chunk.slices).min(task.slices.end);
            for slice in slices.clone() {
                let (begin, taps) = (slice * self.view.roles.depth.stride, self.view.roles.depth.taps_of_output(slice));
                next = next.max(begin + taps.start);
                (next..begin + taps.end).for_each(|slice| self.transform(io, task, slice, &mut scratch));
                next = next.max(begin + taps.end);
            }
            for first in task.panels.clone().step_by(chunk.panels) {
                let panels = first..(first + chunk.panels).min(task.panels.end);
                self.multiply(io.weights, task, &panels, &slices, &mut scratch);
                for (slice, panel) in slices.clone().flat_map(|slice| panels.clone().map(move |panel| (slice, panel))) {
                    let products = self.products_at(slice - slices.start, panel - first);
                    self.take_back(io, task, (panel, slice), products, &mut scratch);
                }
            }
        }
    }
}

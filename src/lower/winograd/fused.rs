//! What all layers have in common: blocks of tiles are transformed, multiplied and taken back into
//! Y.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::winograd_kernels;
use convoke_kernels::winograd::{self, Pixels, Products};
use convoke_kernels::{Dest, Isa, Real, RowOffsetsRef};

use super::blocks::{Block, Blocks, Calls, Cut, Extent, Place, Task};
use super::choice::Choice;
use super::direct::Tile;
use super::pack::{self, PackedLayout, Value};
use super::shape::{STANDARD_VALUES, Scheme, SubImage, View, depth_tasks, distance, has_whole_rows, is_ragged, spread};
use super::shares::{self, Piece};
use crate::Geometry;
use crate::choice::Accuracy;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::channel_tiles::{ChannelTiles, Fetch};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::{self, WeightLayout};
use crate::lower::sink::no_epilogue;

/// Steps of k that are summed one after the other.
const KC: usize = 192;
/// What tells the operators apart: where the taps of filters come from, and where the values of Y
/// go.
pub(super) trait Layer<T: Element>: Send + Sync {
    /// The taps of filter `row` of a group for channel `c` of X, in the order of the view's axes;
    /// `w` is the group's W.
    fn filter(&self, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]);

    /// Packs what tiles that are computed directly need of the group's W.
    fn pack_direct(&self, core: &Core<T>, w: &[T], packed: &mut [T::Acc]);

    /// Calls `patch` with the parts of Y that some outputs of the view are.
    fn patches(&self, core: &Core<T>, part: &Outputs, patch: &mut dyn FnMut(Patch));

    /// Takes the products of a strip back into Y. Returns whether all sums were finite; those of
    /// marked tiles were not.
    fn store(&self, core: &Core<T>, io: &Io<'_, T>, strip: &Strip<'_, T::Acc>, rows: Rows<'_, T::Acc>) -> bool;

    /// Computes a tile of some filters directly.
    fn compute(&self, core: &Core<T>, io: &Io<'_, T>, task: &Task<'_, T::Acc>, tile: &Tile, scratch: &mut [T::Acc]);
}

/// What a layer needs of packed weights and scratch, in values.
pub(super) struct Needs {
    /// For tiles that are computed directly: packed values of a group, and scratch.
    pub(super) direct_len: usize,
    pub(super) scratch: usize,
    /// A row of Y, in elements of a row of a strip: where such rows are put together before they go
    /// to Y.
    pub(super) row: usize,
}

/// The offer for a view of the layer; `layer` makes what the tiles of the chosen scheme need, or
/// fails where a kernel is lacking.
pub(super) fn offer_view<'a, T: Element>(
    request: &'a Request<'a, T>,
    view: View,
    layer: impl FnOnce(&Scheme<T::Acc>, &ChannelTiles<T::Acc>) -> Option<(Box<dyn Layer<T>>, Needs)>,
) -> Answer<'a, T> {
    let (machine, roles) = (request.machine, &view.roles);
    let mut best: Option<Choice<T::Acc>> = None;
    for kernel in winograd_kernels::<T::Acc>(request.isa()) {
        let (down, along) = (kernel.down(), kernel.along());
        let own = WeightLayout::Winograd { down: tile_layout(down), along: tile_layout(along) };
        if request.layout.is_some_and(|packed| *packed != own) {
            continue;
        }
        // Weights that are packed already were packed under an accuracy that allowed it.
        let is_allowed = request.accuracy == Accuracy::Fast || request.layout.is_some();
        if kernel.values() > STANDARD_VALUES && !is_allowed {
            continue;
        }
        let is_lines = view.past_cache && roles.along.output.is_multiple_of(kernel.lanes());
        if is_lines && request.layout.is_none() && is_ragged(kernel) && has_whole_rows(kernel) {
            continue;
        }
        let Some(scheme) = Scheme::new(kernel, roles) else { continue };
        // Results must not depend on the number of threads: the tile is chosen for one.
        if let Some(choice) = Choice::new::<T>(request, &view, scheme, 1)
            && best.as_ref().is_none_or(|best| choice.cycles < best.cycles)
        {
            best = Some(choice);
        }
    }
    let no_kernel = || String::from("no kernel for this block of tiles");
    let Some(Choice { scheme, cycles, .. }) = best else {
        let (down, along) = (roles.down.kernel, roles.along.kernel);
        let (channels, depth) = (view.channels, roles.depth.kernel);
        return Err(format!(
            "no tile suits a kernel of {down}x{along} taps, or {channels} channels times {depth} taps of an outer axis are too many"
        ));
    };
    let choice = Choice::new::<T>(request, &view, scheme, request.threads).ok_or_else(no_kernel)?;
    let Choice { blocks, splits, together, .. } = choice;
    let first = blocks.place(0, 0).extent;
    let tiles = ChannelTiles::<T::Acc>::new(machine, first.run_len()).ok_or_else(no_kernel)?;
    let slots = roles.depth.kernel;
    let fit = |extent: Extent, _| Block::fits(&scheme, extent, view.channels, slots).then_some(());
    if blocks.for_each_size(fit).is_none() {
        return Err(String::from("the steps of k are too many, or the block's offsets exceed 32 bits"));
    }
    let (layer, needs) = layer(&scheme, &tiles).ok_or_else(no_kernel)?;
    let padded = tiles.padded(view.rows);
    let Some(layout) = PackedLayout::new(&view, &scheme, padded, needs.direct_len) else {
        return Err(String::from("the packed weights do not fit the address space"));
    };
    let sizes = Sizes::new::<T>(&view, &scheme, &blocks, &tiles, together, &needs);
    let bytes = |values: usize| values.saturating_mul(size_of::<T::Acc>());
    let far = machine
        .far_weights(bytes(request.geometry.weight_len()), bytes(view.groups.saturating_mul(layout.group_len())));
    Ok(Offer::old(
        request.machine,
        far * cycles / machine.clock_ghz,
        sizes.lines::<T>(),
        Box::new(move || {
            let mut tables: Vec<Block<T::Acc>> = Vec::new();
            let all = blocks.for_each_size(|extent, _| {
                if tables.iter().all(|block| block.extent != extent) {
                    let cuts = shares::cuts(&extent, view.rows.div_ceil(tiles.nr()), splits);
                    tables.push(Block::new(machine, &scheme, &layout.steps, extent, view.channels, slots, cuts)?);
                }
                Some(())
            });
            all.expect("the kernels that were estimated");
            let zeros = alloc::vec![T::Acc::ZERO; tiles.lanes()];
            Box::new(Winograd {
                core: Core {
                    isa: request.isa(),
                    view,
                    scheme,
                    blocks,
                    tables,
                    tiles,
                    layout,
                    splits,
                    together,
                    sizes,
                    zeros,
                },
                layer,
            })
        }),
    ))
}

fn tile_layout(tile: winograd::Tile) -> layout::Tile {
    layout::Tile { values: tile.values, outputs: tile.outputs }
}

/// Elements of the pieces of a task's scratch.
pub(super) struct Sizes {
    pub(super) planes: usize,
    pub(super) v: usize,
    pub(super) products: usize,
    /// Of one panel, and of one value of it.
    pub(super) product_panel: usize,
    pub(super) product_plane: usize,
    /// Rows of X, where they are converted first, or of all phases of a stride, of all images of a
    /// block.
    pub(super) rows_in: usize,
    /// Rows of pixels, where kernels cannot write them into Y; and a row of Y.
    pub(super) rows_out: usize,
    pub(super) row_out: usize,
    pub(super) row: usize,
    pub(super) direct: usize,
    pub(super) marks: usize,
}

impl Sizes {
    /// Enough for each of the blocks.
    fn new<T: Element>(
        view: &View,
        scheme: &Scheme<T::Acc>,
        blocks: &Blocks,
        tiles: &ChannelTiles<T::Acc>,
        together: usize,
        needs: &Needs,
    ) -> Self {
        let lanes = scheme.kernel.lanes();
        let (mut planes, mut v, mut picked) = (0, 0, 0);
        let (mut places, mut columns) = (0, 0);
        blocks.for_each_size(|extent, _| {
            let of = extent.planes(scheme);
            planes = planes.max(of.len());
            v = v.max(extent.slot_len(scheme, view.channels));
            picked = picked.max(of.rows() * of.row_len() * extent.images);
            places = places.max(extent.tiles());
            columns = columns.max(extent.columns);
            Some(())
        });
        let product_plane = spread(places * tiles.nr(), lanes);
        let product_panel = product_plane * scheme.kernel.values();
        let row_out = columns * scheme.along.tile.outputs;
        Self {
            planes,
            v: v * view.roles.depth.kernel,
            products: product_panel * together,
            product_panel,
            product_plane,
            rows_in: if T::DIRECT && distance(&view.roles.along) == 1 && view.strides[1] == 1 {
                0
            } else {
                picked * view.strides[1]
            },
            rows_out: lanes * scheme.down.tile.outputs * row_out,
            row_out,
            row: needs.row.saturating_mul(row_out),
            direct: needs.scratch,
            marks: columns,
        }
    }

    fn lines<T: Element>(&self) -> usize {
        let values = [self.planes, self.v, self.products, self.rows_in, self.rows_out, self.row, self.direct];
        let lines = values.iter().fold(0_usize, |sum, len| sum.saturating_add(lines_for::<T::Acc>(*len)));
        lines.saturating_add(lines_for::<u8>(self.marks))
    }
}

pub(super) struct Winograd<T: Element> {
    pub(super) core: Core<T>,
    pub(super) layer: Box<dyn Layer<T>>,
}

/// What is common to all layers.
pub(super) struct Core<T: Element> {
    pub(super) isa: Isa,
    pub(super) view: View,
    pub(super) scheme: Scheme<T::Acc>,
    pub(super) blocks: Blocks,
    /// For each size of blocks.
    pub(super) tables: Vec<Block<T::Acc>>,
    pub(super) tiles: ChannelTiles<T::Acc>,
    pub(super) layout: PackedLayout,
    /// Shares that the panels of filters are split into.
    pub(super) splits: usize,
    /// Panels whose products are kept, so that each value's transformed tiles are read once for all
    /// of them.
    pub(super) together: usize,
    pub(super) sizes: Sizes,
    /// A vector of zeros, where kernels ask for a bias that is added later.
    pub(super) zeros: Vec<T::Acc>,
}

/// The scratch of a task.
pub(super) struct Scratch<'a, T> {
    pub(super) planes: &'a mut [T],
    pub(super) v: &'a mut [T],
    pub(super) products: &'a mut [T],
    pub(super) rows_in: &'a mut [T],
    pub(super) rows_out: &'a mut [T],
    pub(super) row: &'a mut [T],
    pub(super) direct: &'a mut [T],
    pub(super) marks: &'a mut [u8],
}

/// The products of a row of tiles for a vector of filters, and the part of the view's output that
/// they are.
pub(super) struct Strip<'a, T: Real> {
    pub(super) products: Products<'a, T>,
    pub(super) task: &'a Task<'a, T>,
    pub(super) sub: SubImage,
    pub(super) slice: usize,
    /// The first row and element in the sub-image, and how many there are.
    pub(super) y: usize,
    pub(super) x: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    /// The filters of the group.
    pub(super) filters: Range<usize>,
}

/// Outputs of the view: some filters of a group, and a box of a sub-image. Its rows and columns may
/// reach beyond the sub-image's end.
pub(super) struct Outputs {
    pub(super) sub: SubImage,
    pub(super) group: usize,
    pub(super) filters: Range<usize>,
    pub(super) slices: Range<usize>,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// Scratch for a [`Strip`].
pub(super) struct Rows<'a, T> {
    /// Row i of filter c is at `(c * outputs + i) * Sizes::row_out`, with the tile's outputs down.
    pub(super) rows: &'a mut [T],
    /// A row of Y.
    pub(super) row: &'a mut [T],
    /// Tiles that are not finite.
    pub(super) marks: &'a mut [u8],
}

impl<T: Element> Core<T> {
    fn task(&self, task: usize) -> Task<'_, T::Acc> {
        let View { groups, ref roles, .. } = self.view;
        let depths = depth_tasks(roles);
        // From the inside out. Neighbours are one thread's: with the shares of the panels
        // outermost, a thread uses the same filters for all of its blocks.
        let mut rest = task;
        let mut next = |count: usize| {
            let digit = rest % count;
            rest /= count;
            digit
        };
        let (depth, block) = (next(depths), next(self.blocks.of_image()));
        let (group, images) = (next(groups), next(self.blocks.of_batch()));
        let split = next(self.splits);
        let Place { image, row, column, extent } = self.blocks.place(images, block);
        let block = self.tables.iter().find(|block| block.extent == extent);
        Task {
            first: image,
            group,
            slices: if depths == 1 { 0..roles.depth.output } else { depth..depth + 1 },
            split,
            block: block.expect("a block of each size"),
            row,
            column,
        }
    }

    /// What a task has of the panels.
    fn pieces(&self, task: &Task<'_, T::Acc>) -> impl Iterator<Item = Piece> {
        let panels = self.view.rows.div_ceil(self.tiles.nr());
        shares::pieces(&task.block.extent, panels, (task.split, self.splits))
    }

    /// Where row i of filter c of a strip is put, before it goes to Y.
    pub(super) fn row_at(&self, c: usize, i: usize) -> usize {
        (c * self.scheme.down.tile.outputs + i) * self.sizes.row_out
    }

    /// Takes the products of a strip back into rows of scratch, as they are.
    pub(super) fn store_rows(&self, strip: &Strip<'_, T::Acc>, rows: &mut [T::Acc], marks: &mut [u8]) -> bool {
        let channels = strip.filters.len();
        let pixels = Pixels {
            channels,
            channel_step: self.row_at(1, 0),
            row_step: self.row_at(0, 1),
            width: strip.width,
            height: strip.height,
            past_cache: false,
        };
        let epilogue = no_epilogue(&self.zeros[..channels]);
        self.scheme.kernel.output(&strip.products, &pixels, &mut Dest::from_slice(rows), &epilogue, marks)
    }

    /// The packed weights of a group.
    pub(super) fn group<'w>(&self, weights: &'w [T::Acc], group: usize) -> &'w [T::Acc] {
        &weights[group * self.layout.group_len()..][..self.layout.group_len()]
    }

    /// Multiplies all values of some panels, for some rows of tiles: over the slices `taps` of the
    /// depth axis, the first of which is in slot `slot`.
    fn multiply(
        &self,
        weights: &[T::Acc],
        task: &Task<'_, T::Acc>,
        Piece { panels, rows }: Piece,
        taps: Range<usize>,
        slot: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let layout = &self.layout;
        let values = self.scheme.kernel.values();
        // The filters of one panel for one value: none behind the last panel.
        let filters = |panel: usize, value: usize| {
            let first = panel * self.tiles.nr();
            if first >= self.view.rows {
                return &[][..];
            }
            let nr = self.tiles.panel(self.view.rows - first);
            let (begin, steps) = (layout.panel(first, nr).start, layout.value(value).steps(&taps));
            &weights[begin + steps.start * nr..begin + steps.end * nr]
        };
        // Of one row of tiles, values that are zero there have no products.
        let block = task.block;
        let drops = |value: usize| block.planes.drops(value / self.scheme.kernel.along().values);
        let calls = block.calls(&rows);
        let has_calls = |value: &usize| !drops(*value) || !calls.short_calls.all.is_empty();
        let next_of = |value: usize| (value..values).find(has_calls);
        for value in 0..values {
            let Value { list, count, .. } = *layout.value(value);
            let koff = task.block.koff[list].rows(slot * count..(slot + taps.len()) * count);
            let v = &scratch.v[value * task.block.v_plane..];
            let is_short = drops(value);
            for panel in panels.clone() {
                let next = if panel + 1 < panels.end {
                    filters(panel + 1, value)
                } else if let Some(value) = next_of(value + 1) {
                    filters(panels.start, value)
                } else {
                    filters(panels.end, next_of(0).unwrap_or(0))
                };
                let at = (panel - panels.start) * self.sizes.product_panel + value * self.sizes.product_plane;
                let products = &mut scratch.products[at..][..self.sizes.product_plane];
                let nr = self.tiles.panel(self.view.rows - panel * self.tiles.nr());
                let calls = if is_short { &calls.short_calls } else { &calls.calls };
                multiply_value(calls, koff, v, (filters(panel, value), nr), next, products);
                if is_short && rows.end == block.extent.all_rows().end {
                    let Extent { images, rows, columns, .. } = task.block.extent;
                    for image in products[..images * rows * columns * nr].chunks_exact_mut(rows * columns * nr) {
                        image[(rows - 1) * columns * nr..].fill(T::Acc::ZERO);
                    }
                }
            }
        }
    }
}

/// Multiplies one value of tiles, `v`, by the filters of a panel of `nr`; meanwhile, `next` is
/// fetched.
pub(super) fn multiply_value<T: Real>(
    calls: &Calls<T>,
    koff: RowOffsetsRef<'_>,
    v: &[T],
    (w, nr): (&[T], usize),
    next: &[T],
    products: &mut [T],
) {
    let steps = koff.len();
    // In blocks, whose sums are added: one long running sum would err more, and a block's filters
    // stay in the L1 cache for all tiles.
    let kc = if steps <= KC { steps.max(1) } else { steps.div_ceil(steps.div_ceil(KC)) };
    let Some(first) = calls.all.first() else { return };
    let mut fetch = Fetch::new(next, calls.all.len(), first.kernel(nr), calls.rate);
    for run in calls.all.chunks(calls.of_run) {
        for k in (0..steps.max(1)).step_by(kc) {
            let block_of_k = k..(k + kc).min(steps);
            let koff = if steps <= KC { koff } else { koff.rows(block_of_k.clone()) };
            let w = &w[k * nr..block_of_k.end * nr];
            for call in run {
                // Without steps of k nothing is read.
                let x = v.get(call.v..).unwrap_or(&[]);
                let tile = &mut products[call.tile * nr..(call.tile + call.count) * nr];
                call.kernel(nr).partial(x, koff, w, fetch.during(koff.len()), tile, k > 0);
            }
        }
    }
}

impl<T: Element> Winograd<T> {
    /// Takes the products of some rows of tiles of one panel, which begin at `products` in the
    /// scratch, back into slice `slice` of Y.
    fn take_back(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        (panel, rows): (usize, &Range<usize>),
        products: usize,
        slice: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let core = &self.core;
        let (block, lanes) = (task.block, core.tiles.lanes());
        let first = panel * core.tiles.nr();
        let live = core.tiles.nr().min(core.view.rows - first);
        let nr = core.tiles.panel(core.view.rows - first);
        let (m_down, m_along) = (core.scheme.down.tile.outputs, core.scheme.along.tile.outputs);
        for row in rows.clone() {
            let columns = block.extent.own_columns(row % block.extent.rows);
            let sub = SubImage::new(&core.view.roles, task.first + row / block.extent.rows);
            let (y, x) = ((task.row + row % block.extent.rows) * m_down, (task.column + columns.start) * m_along);
            // Later phases may have a row or column of tiles less.
            let height = m_down.min(sub.down.output.saturating_sub(y));
            let width = (columns.len() * m_along).min(sub.along.output.saturating_sub(x));
            if height == 0 || width == 0 {
                continue;
            }
            let tiles = width.div_ceil(m_along);
            let marks = &mut scratch.marks[..tiles];
            marks.fill(0);
            let mut is_good = true;
            for vector in (0..live).step_by(lanes) {
                let products = Products {
                    values: &scratch.products[products + (row * block.extent.columns + columns.start) * nr + vector..],
                    tile_step: nr,
                    plane: core.sizes.product_plane,
                    tiles,
                };
                let filters = first + vector..first + live.min(vector + lanes);
                let strip = Strip { products, task, sub, slice, y, x, height, width, filters };
                let rows = Rows { rows: scratch.rows_out, row: scratch.row, marks };
                is_good &= self.layer.store(core, io, &strip, rows);
            }
            if !is_good {
                for (tile, mark) in marks.iter_mut().enumerate() {
                    if core::mem::take(mark) != 0 {
                        self.recompute(io, task, panel, slice, (row, columns.start + tile), scratch.direct);
                    }
                }
            }
        }
    }

    /// Computes one tile of one panel directly: that in row `row`, counted over the block's images,
    /// and column `column`.
    fn recompute(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        panel: usize,
        slice: usize,
        (row, column): (usize, usize),
        scratch: &mut [T::Acc],
    ) {
        let core = &self.core;
        let first = panel * core.tiles.nr();
        let rows = task.block.extent.rows;
        let tile = Tile {
            sub: SubImage::new(&core.view.roles, task.first + row / rows),
            slice,
            y: (task.row + row % rows) * core.scheme.down.tile.outputs,
            x: (task.column + column) * core.scheme.along.tile.outputs,
            filters: first..(first + core.tiles.nr()).min(core.view.rows),
        };
        self.layer.compute(core, io, task, &tile, scratch);
    }
}

impl<T: Element> Split for Winograd<T> {
    fn tasks(&self) -> usize {
        let Core { view, blocks, .. } = &self.core;
        let blocks = blocks.of_batch() * view.groups * blocks.of_image();
        blocks * depth_tasks(&view.roles) * self.core.splits
    }

    /// A box for each row of tiles and run of panels.
    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let core = &self.core;
        let task = core.task(task);
        let extent = &task.block.extent;
        let (m_down, m_along) = (core.scheme.down.tile.outputs, core.scheme.along.tile.outputs);
        for Piece { panels, rows } in core.pieces(&task) {
            let filter = |panel: usize| (panel * core.tiles.nr()).min(core.view.rows);
            for row in rows {
                let (y, columns) = (task.row + row % extent.rows, extent.own_columns(row % extent.rows));
                let part = Outputs {
                    sub: SubImage::new(&core.view.roles, task.first + row / extent.rows),
                    group: task.group,
                    filters: filter(panels.start)..filter(panels.end),
                    slices: task.slices.clone(),
                    rows: y * m_down..(y + 1) * m_down,
                    columns: (task.column + columns.start) * m_along..(task.column + columns.end) * m_along,
                };
                self.layer.patches(core, &part, patch);
            }
        }
    }
}

impl<T: Element> Lowering<T> for Winograd<T> {
    fn layout(&self) -> WeightLayout {
        let (down, along) = (self.core.scheme.down.tile, self.core.scheme.along.tile);
        WeightLayout::Winograd { down: tile_layout(down), along: tile_layout(along) }
    }

    fn describe(&self) -> String {
        let core = &self.core;
        let extent = core.blocks.place(0, 0).extent;
        let size = match core.blocks.cut() {
            Cut::Tiles => format!("{}", extent.own_tiles()),
            Cut::Rows if extent.images > 1 => format!("{} x {} x {}", extent.images, extent.rows, extent.columns),
            Cut::Rows | Cut::Columns => format!("{} x {}", extent.rows, extent.columns),
        };
        format!(
            "{} by {}, {} filters, blocks of {size} tiles, {} blocks, panels in {} shares, {} together",
            self.kernel(),
            core.tiles.name(),
            core.scheme.filters(),
            core.blocks.of_image(),
            core.splits,
            core.together
        )
    }

    fn kernel(&self) -> &'static str {
        self.core.scheme.kernel.name()
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        self.core.view.groups * self.core.layout.group_len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let Core { view, scheme, layout, tiles, .. } = &self.core;
        let group_len = layout.group_len();
        if group_len == 0 {
            return;
        }
        let w_len = w.len() / view.groups;
        for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
            let w = &w[group * w_len..(group + 1) * w_len];
            let filter = |row: usize, c: usize, taps: &mut [T::Acc]| self.layer.filter(w, row, c, taps);
            pack::pack(view, scheme, layout, tiles, filter, packed);
            self.layer.pack_direct(&self.core, w, &mut packed[layout.direct()]);
        }
    }

    /// One share of the panels, for one block of tiles of one group.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let core = &self.core;
        let task = core.task(task);
        let mut arena = Arena::new(scratch);
        let sizes = &core.sizes;
        let mut scratch = Scratch {
            planes: arena.take(sizes.planes),
            v: arena.take(sizes.v),
            products: arena.take(sizes.products),
            rows_in: arena.take(sizes.rows_in),
            rows_out: arena.take(sizes.rows_out),
            row: arena.take(sizes.row),
            direct: arena.take(sizes.direct),
            marks: arena.take(sizes.marks),
        };
        let extent = task.block.extent;
        let depth = core.view.roles.depth;
        // Smaller blocks may have fewer parts than there are shares.
        if core.pieces(&task).next().is_none() {
            return;
        }
        if !io.is_finite {
            for slice in task.slices.clone() {
                for Piece { panels, rows } in core.pieces(&task) {
                    for (panel, row) in panels.flat_map(|panel| rows.clone().map(move |row| (panel, row))) {
                        for column in extent.own_columns(row % extent.rows) {
                            self.recompute(io, &task, panel, slice, (row, column), scratch.direct);
                        }
                    }
                }
            }
            return;
        }
        let group = core.group(io.weights, task.group);
        let mut next = 0;
        for slice in task.slices.clone() {
            // Padded positions of the slices that are read, then without padding.
            let begin = slice * depth.stride;
            let live = begin.max(depth.pad_begin)..(begin + depth.kernel).min(depth.pad_begin + depth.input);
            next = next.max(live.start);
            while next < live.end {
                core.transform(io, &task, next, &mut scratch);
                next += 1;
            }
            let taps = if live.is_empty() { 0..0 } else { live.start - begin..live.end - begin };
            let slot = live.start % depth.kernel;
            for Piece { panels, rows } in core.pieces(&task) {
                for first in panels.clone().step_by(core.together) {
                    let panels = first..(first + core.together).min(panels.end);
                    let piece = Piece { panels: panels.clone(), rows: rows.clone() };
                    core.multiply(group, &task, piece, taps.clone(), slot, &mut scratch);
                    for panel in panels {
                        let products = (panel - first) * core.sizes.product_panel;
                        self.take_back(io, &task, (panel, &rows), products, slice, &mut scratch);
                    }
                }
            }
        }
    }
}

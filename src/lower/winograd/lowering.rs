//! The tasks of a layer: a block of tiles is transformed, multiplied and taken back into Y.

use alloc::boxed::Box;
use core::ops::Range;

use convoke_kernels::winograd::Products;

use super::common::{StripScratch, TileStrip, WinogradCore};
use super::direct::DirectTile;
use super::operator::{OutputBox, WinogradOperator};
use super::pack;
use super::scratch::WinogradScratch;
use super::shares::PanelPiece;
use super::tables::TileTask;
use super::view::SubImage;
use crate::element::Element;
use crate::exec::Line;
use crate::exec::split::{Patch, Split};
use crate::lower::contract::{Io, Lowering};

pub(super) struct Winograd<T: Element> {
    pub(super) core: WinogradCore<T>,
    pub(super) operator: Box<dyn WinogradOperator<T>>,
}

/// A slice of Y that a task computes.
struct SliceRun<'a, 'b, T: Element> {
    io: &'a Io<'b, T>,
    task: &'a TileTask<'a, T::Acc>,
    slice: usize,
}

impl<T: Element> Winograd<T> {
    /// Computes the slices of Y of a turn. `next` is the first padded slice of X that is not transformed yet.
    fn run_slices(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        slices: Range<usize>,
        next: &mut usize,
        scratch: &mut WinogradScratch<'_, T::Acc>,
    ) {
        let (core, group) = (&self.core, self.core.group(io.weights, task.group));
        for slice in slices.clone() {
            let seen = core.slices_seen(slice);
            *next = (*next).max(seen.start);
            while *next < seen.end {
                core.transform(io, task, *next, scratch);
                *next += 1;
            }
        }
        let together = core.blocking.together.panels;
        for PanelPiece { panels, rows } in core.pieces(task) {
            for first in panels.clone().step_by(together) {
                let panels = first..(first + together).min(panels.end);
                let piece = PanelPiece { panels: panels.clone(), rows: rows.clone() };
                core.multiply(group, task, piece, slices.clone(), scratch);
                for slice in slices.clone() {
                    for panel in panels.clone() {
                        let products = core.products_at(slice - slices.start, panel - first);
                        self.take_back(&SliceRun { io, task, slice }, panel, &rows, products, scratch);
                    }
                }
            }
        }
    }

    /// Takes the products of some rows of tiles of one panel back into Y. They begin at `products`
    /// in the scratch.
    fn take_back(
        &self,
        run: &SliceRun<'_, '_, T>,
        panel: usize,
        rows: &Range<usize>,
        products: usize,
        scratch: &mut WinogradScratch<'_, T::Acc>,
    ) {
        let (core, &SliceRun { io, task, slice }) = (&self.core, run);
        let (block, lanes) = (task.block, core.tiles.lanes());
        let first = panel * core.tiles.nr();
        let live = core.tiles.nr().min(core.view.rows - first);
        let nr = core.tiles.panel(core.view.rows - first);
        let scheme = &core.blocking.scheme;
        let (m_down, m_along) = (scheme.down.tile.outputs, scheme.along.tile.outputs);
        for row in rows.clone() {
            let columns = block.size.own_columns(row % block.size.rows);
            let sub = SubImage::new(&core.view.roles, task.first + row / block.size.rows);
            let (y, x) = ((task.row + row % block.size.rows) * m_down, (task.column + columns.start) * m_along);
            // Later phases may have one row or column of tiles less.
            let height = m_down.min(sub.down.output.saturating_sub(y));
            let width = (columns.len() * m_along).min(sub.along.output.saturating_sub(x));
            if height == 0 || width == 0 {
                continue;
            }
            let tiles = width.div_ceil(m_along);
            for vector in (0..live).step_by(lanes) {
                let products = Products {
                    values: &scratch.products[products + (row * block.size.columns + columns.start) * nr + vector..],
                    tile_step: nr,
                    plane: core.pieces.product_plane,
                    tiles,
                };
                let filters = first + vector..first + live.min(vector + lanes);
                let marks = &mut scratch.marks[..tiles];
                marks.fill(0);
                let strip = TileStrip { products, task, sub, slice, y, x, height, width, filters: filters.clone() };
                let rows = StripScratch { rows: scratch.rows_out, interleaved: scratch.interleaved, marks };
                if !self.operator.store(core, io, &strip, rows) {
                    for tile in (0..tiles).filter(|tile| scratch.marks[*tile] != 0) {
                        self.compute_directly(run, filters.clone(), row, columns.start + tile, scratch.direct);
                    }
                }
            }
        }
    }

    /// Computes one slice of Y directly, tile by tile.
    fn compute_slice_directly(&self, run: &SliceRun<'_, '_, T>, scratch: &mut [T::Acc]) {
        let size = &run.task.block.size;
        for PanelPiece { panels, rows } in self.core.pieces(run.task) {
            for (panel, row) in panels.flat_map(|panel| rows.clone().map(move |row| (panel, row))) {
                let first = panel * self.core.tiles.nr();
                let filters = first..(first + self.core.tiles.nr()).min(self.core.view.rows);
                for column in size.own_columns(row % size.rows) {
                    self.compute_directly(run, filters.clone(), row, column, scratch);
                }
            }
        }
    }

    /// Computes one tile directly, for some filters of a panel. Its row is counted over the block's
    /// images.
    fn compute_directly(
        &self,
        run: &SliceRun<'_, '_, T>,
        filters: Range<usize>,
        row: usize,
        column: usize,
        scratch: &mut [T::Acc],
    ) {
        let (core, &SliceRun { io, task, slice }) = (&self.core, run);
        let (rows, scheme) = (task.block.size.rows, &core.blocking.scheme);
        let tile = DirectTile {
            sub: SubImage::new(&core.view.roles, task.first + row / rows),
            group: task.group,
            slice,
            y: (task.row + row % rows) * scheme.down.tile.outputs,
            x: (task.column + column) * scheme.along.tile.outputs,
            panel: filters.start / core.tiles.nr() * core.tiles.nr(),
            filters,
        };
        self.operator.compute(core, io, &tile, scratch);
    }
}

impl<T: Element> Split for Winograd<T> {
    fn tasks(&self) -> usize {
        self.core.blocking.tasks(&self.core.view)
    }

    /// One box for each row of tiles of each piece of the panels.
    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let core = &self.core;
        let task = core.task(task);
        let (size, scheme) = (&task.block.size, &core.blocking.scheme);
        let (m_down, m_along) = (scheme.down.tile.outputs, scheme.along.tile.outputs);
        for PanelPiece { panels, rows } in core.pieces(&task) {
            let filter = |panel: usize| (panel * core.tiles.nr()).min(core.view.rows);
            for row in rows {
                let (y, columns) = (task.row + row % size.rows, size.own_columns(row % size.rows));
                let part = OutputBox {
                    sub: SubImage::new(&core.view.roles, task.first + row / size.rows),
                    group: task.group,
                    filters: filter(panels.start)..filter(panels.end),
                    slices: task.slices.clone(),
                    rows: y * m_down..(y + 1) * m_down,
                    columns: (task.column + columns.start) * m_along..(task.column + columns.end) * m_along,
                };
                self.operator.patches(core, &part, patch);
            }
        }
    }
}

impl<T: Element> Lowering<T> for Winograd<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let WinogradCore { view, blocking, layout, tiles, .. } = &self.core;
        let group_len = layout.group_len();
        if group_len == 0 {
            return;
        }
        let w_len = w.len() / view.groups;
        for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
            let w = &w[group * w_len..(group + 1) * w_len];
            let filter = |row: usize, c: usize, taps: &mut [T::Acc]| self.operator.filter(w, row, c, taps);
            pack::pack(view, &blocking.scheme, layout, tiles, filter, packed);
            self.operator.pack_direct(&self.core, w, &mut packed[layout.direct()]);
        }
    }

    /// One share of the panels, for one block of tiles of one group.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let core = &self.core;
        let task = &core.task(task);
        let mut scratch = core.pieces.take(scratch);
        // Smaller blocks may have fewer parts than there are shares.
        if core.pieces(task).next().is_none() {
            return;
        }
        let mut next = 0;
        let together = core.blocking.together.slices;
        for first in task.slices.clone().step_by(together) {
            let slices = first..(first + together).min(task.slices.end);
            self.run_slices(io, task, slices, &mut next, &mut scratch);
        }
    }
}

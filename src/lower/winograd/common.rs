//! What Conv and ConvTranspose have in common: the tables of a layer, and what its tasks are.

use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::winograd::{Pixels, Products};
use convoke_kernels::{Dest, Epilogue, Isa, Real};

use super::blocks::BlockPlace;
use super::estimate::WinogradBlocking;
use super::pack::PackedLayout;
use super::scratch::ScratchPieces;
use super::shares::{self, PanelPiece};
use super::tables::{BlockTables, TileTask};
use super::view::{SubImage, WinogradView, depth_tasks};
use crate::element::Element;
use crate::lower::channel_tiles::ChannelTiles;
use crate::lower::contract::Request;

pub(super) struct WinogradCore<T: Element> {
    pub(super) isa: Isa,
    pub(super) view: WinogradView,
    pub(super) blocking: WinogradBlocking<T::Acc>,
    /// For each size of blocks.
    tables: Vec<BlockTables<T::Acc>>,
    /// The tiles of kernels that the products of a block are cut into.
    pub(super) tiles: ChannelTiles<T::Acc>,
    pub(super) layout: PackedLayout,
    pub(super) pieces: ScratchPieces<T::Acc>,
}

/// The products of a row of tiles with a vector of filters, and the part of the view's output that
/// they become.
pub(super) struct TileStrip<'a, T: Real> {
    pub(super) products: Products<'a, T>,
    pub(super) task: &'a TileTask<'a, T>,
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

/// Scratch for a [`TileStrip`].
pub(super) struct StripScratch<'a, T> {
    /// Rows of pixels. [`WinogradCore::row_at`] says where each of them is.
    pub(super) rows: &'a mut [T],
    /// Interleaved rows of Y.
    pub(super) interleaved: &'a mut [T],
    /// Which tiles are not finite.
    pub(super) marks: &'a mut [u8],
}

impl<T: Element> WinogradCore<T> {
    /// Makes the tables.
    ///
    /// # Panics
    /// If a kernel is lacking: the blocking must have been estimated.
    pub(super) fn new(
        request: &Request<'_, T>,
        view: WinogradView,
        blocking: WinogradBlocking<T::Acc>,
        tiles: ChannelTiles<T::Acc>,
        layout: PackedLayout,
        pieces: ScratchPieces<T::Acc>,
    ) -> Self {
        let WinogradBlocking { scheme, blocks, splits, together } = &blocking;
        let slots = together.slots(&view.roles.depth);
        let mut tables: Vec<BlockTables<T::Acc>> = Vec::new();
        let all = blocks.for_each_size(|size, _| {
            if tables.iter().all(|block| block.size != size) {
                let cuts = shares::cuts(&size, view.rows.div_ceil(tiles.nr()), *splits);
                tables.push(BlockTables::new(request.machine, &view, scheme, &layout.steps, (size, slots), cuts)?);
            }
            Some(())
        });
        all.expect("the kernels that were estimated");
        Self { isa: request.isa(), view, blocking, tables, tiles, layout, pieces }
    }

    /// What task number `task` computes.
    pub(super) fn task(&self, task: usize) -> TileTask<'_, T::Acc> {
        let WinogradView { groups, ref roles, .. } = self.view;
        let blocks = &self.blocking.blocks;
        let depths = depth_tasks(roles);
        // From the innermost digit outwards. A thread's tasks are neighbours: with the shares of
        // the panels outermost, it uses the same filters for all of its blocks.
        let mut rest = task;
        let mut next = |count: usize| {
            let digit = rest % count;
            rest /= count;
            digit
        };
        let (depth, block) = (next(depths), next(blocks.of_image()));
        let (group, images) = (next(groups), next(blocks.of_batch()));
        let split = next(self.blocking.splits);
        let BlockPlace { image, row, column, size } = blocks.place(images, block);
        let block = self.tables.iter().find(|block| block.size == size);
        TileTask {
            first: image,
            group,
            slices: if depths == 1 { 0..roles.depth.output } else { depth..depth + 1 },
            split,
            block: block.expect("tables of each size"),
            row,
            column,
        }
    }

    /// The number of slots in the ring of slices of X.
    pub(super) fn slots(&self) -> usize {
        self.blocking.together.slots(&self.view.roles.depth)
    }

    /// A task's pieces of the panels.
    pub(super) fn pieces(&self, task: &TileTask<'_, T::Acc>) -> impl Iterator<Item = PanelPiece> {
        let panels = self.view.rows.div_ceil(self.tiles.nr());
        shares::pieces(&task.block.size, panels, (task.split, self.blocking.splits))
    }

    /// Where row i of filter c of a strip begins in the scratch for rows of pixels.
    pub(super) fn row_at(&self, c: usize, i: usize) -> usize {
        (c * self.blocking.scheme.down.tile.outputs + i) * self.pieces.row_out
    }

    /// Takes the products of a strip back into rows of scratch. Returns whether all sums were
    /// finite.
    pub(super) fn store_rows(
        &self,
        strip: &TileStrip<'_, T::Acc>,
        epilogue: &Epilogue<'_, T::Acc>,
        rows: &mut [T::Acc],
        marks: &mut [u8],
    ) -> bool {
        let channels = strip.filters.len();
        let pixels = Pixels {
            channels,
            channel_step: self.row_at(1, 0),
            row_step: self.row_at(0, 1),
            width: strip.width,
            height: strip.height,
            past_cache: false,
        };
        self.blocking.scheme.kernel.output(&strip.products, &pixels, &mut Dest::from_slice(rows), epilogue, marks)
    }

    /// The pixels of a strip's tiles that are not marked, in runs of neighbours. They are counted
    /// from the strip's first one.
    pub(super) fn good_pixels<'m>(
        &self,
        strip: &TileStrip<'_, T::Acc>,
        marks: &'m [u8],
    ) -> impl Iterator<Item = Range<usize>> + use<'m, T> {
        let (m, width) = (self.blocking.scheme.along.tile.outputs, strip.width);
        let mut tile = 0;
        marks.chunk_by(|a, b| a == b).filter_map(move |run| {
            let first = tile;
            tile += run.len();
            (run[0] == 0).then(|| first * m..(tile * m).min(width))
        })
    }

    /// The packed weights of a group.
    pub(super) fn group<'w>(&self, weights: &'w [T::Acc], group: usize) -> &'w [T::Acc] {
        &weights[group * self.layout.group_len()..][..self.layout.group_len()]
    }
}

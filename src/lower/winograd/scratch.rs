//! The scratch of a task.

use super::block_size::spread;
use super::estimate::WinogradBlocking;
use super::view::{WinogradView, distance};
use crate::element::{Compute, Element};
use crate::exec::{Arena, Ledger, Line, Piece};

/// What an operator needs of packed weights and scratch, in values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OperatorNeeds {
    /// Packed values of a group, for tiles that are computed directly.
    pub(super) direct_len: usize,
    /// Scratch for such a tile.
    pub(super) direct_scratch: usize,
    /// Elements of Y, in all channels of a vector of filters, for each pixel of a strip's row, where
    /// rows of Y are interleaved before they go to Y; otherwise 0.
    pub(super) interleaved: usize,
}

/// The pieces of a task's scratch, and the distances in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchPieces<A> {
    planes: Piece<A>,
    v: Piece<A>,
    products: Piece<A>,
    rows_in: Piece<A>,
    rows_out: Piece<A>,
    interleaved: Piece<A>,
    direct: Piece<A>,
    marks: Piece<u8>,
    /// Elements from the products of one panel to those of the next.
    pub(super) product_panel: usize,
    /// Elements from the products of one value with a panel to those of the next value.
    pub(super) product_plane: usize,
    /// Elements of a row of pixels of a strip.
    pub(super) row_out: usize,
}

impl<A: Compute> ScratchPieces<A> {
    /// Books enough for each of the blocks; panels have `nr` filters.
    pub(super) fn book<T: Element<Acc = A>>(
        ledger: &mut Ledger,
        view: &WinogradView,
        blocking: &WinogradBlocking<A>,
        nr: usize,
        needs: &OperatorNeeds,
    ) -> Self {
        let WinogradBlocking { scheme, blocks, together, .. } = blocking;
        let lanes = scheme.kernel.lanes();
        let (mut planes, mut slot, mut picked, mut places, mut columns) = (0, 0, 0, 0, 0);
        blocks.for_each_size(|size, _| {
            let of = size.planes(scheme);
            planes = planes.max(of.len());
            slot = slot.max(size.slot_len(scheme, view.channels));
            picked = picked.max(of.rows() * of.row_len() * size.images);
            places = places.max(size.tiles());
            columns = columns.max(size.columns);
            Some(())
        });
        let product_plane = spread(places * nr, lanes);
        let product_panel = product_plane * scheme.kernel.values();
        let row_out = columns * scheme.along.tile.outputs;
        let is_read_in_place = T::DIRECT && distance(&view.roles.along) == 1 && view.strides[1] == 1;
        Self {
            planes: ledger.book("planes", planes),
            v: ledger.book("transformed tiles", slot * together.slots(&view.roles.depth)),
            products: ledger.book("products", product_panel * together.panels * together.slices),
            rows_in: ledger.book("rows of X", if is_read_in_place { 0 } else { picked * view.strides[1] }),
            rows_out: ledger.book("rows of pixels", lanes * scheme.down.tile.outputs * row_out),
            interleaved: ledger.book("rows of Y", needs.interleaved.saturating_mul(row_out)),
            direct: ledger.book("direct sums", needs.direct_scratch),
            marks: ledger.book("marks", columns),
            product_panel,
            product_plane,
            row_out,
        }
    }

    /// The pieces in a task's share of the workspace.
    pub(super) fn take<'a>(&self, scratch: &'a mut [Line]) -> WinogradScratch<'a, A> {
        let mut arena = Arena::new(scratch);
        WinogradScratch {
            planes: arena.get(self.planes),
            v: arena.get(self.v),
            products: arena.get(self.products),
            rows_in: arena.get(self.rows_in),
            rows_out: arena.get(self.rows_out),
            interleaved: arena.get(self.interleaved),
            direct: arena.get(self.direct),
            marks: arena.get(self.marks),
        }
    }
}

/// The scratch of a task in a run.
pub(super) struct WinogradScratch<'a, A> {
    /// Planes of one channel of X, in the middle of its transform.
    pub(super) planes: &'a mut [A],
    /// Transformed tiles.
    pub(super) v: &'a mut [A],
    pub(super) products: &'a mut [A],
    /// Rows of X of all images of a block, where they are converted first, or phases of a stride
    /// are picked from them.
    pub(super) rows_in: &'a mut [A],
    /// Rows of pixels, where kernels cannot write these into Y.
    pub(super) rows_out: &'a mut [A],
    /// Interleaved rows of Y.
    pub(super) interleaved: &'a mut [A],
    /// For a tile that is computed directly.
    pub(super) direct: &'a mut [A],
    /// Which tiles of a row are not finite.
    pub(super) marks: &'a mut [u8],
}

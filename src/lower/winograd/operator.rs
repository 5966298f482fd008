//! What tells Conv and ConvTranspose apart.

use core::ops::Range;

use super::common::{StripScratch, TileStrip, WinogradCore};
use super::direct::DirectTile;
use super::view::SubImage;
use crate::element::Element;
use crate::exec::split::Patch;
use crate::lower::contract::Io;

/// An operator over the view: where the taps of filters come from, and where the values of Y go.
pub(super) trait WinogradOperator<T: Element>: Send + Sync {
    /// The taps of filter `row` of a group for channel `c` of the view, in the order of the view's
    /// axes; `w` is the group's W.
    fn filter(&self, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]);

    /// Packs what tiles that are computed directly need of the group's W.
    fn pack_direct(&self, core: &WinogradCore<T>, w: &[T], packed: &mut [T::Acc]);

    /// Calls `patch` with the parts of Y that some outputs of the view are.
    fn patches(&self, core: &WinogradCore<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch));

    /// Takes the products of a strip back into Y. Returns whether all sums were finite. The tiles
    /// whose sums were not are marked. They are not stored if Y holds the residual, which is still
    /// needed.
    fn store(
        &self,
        core: &WinogradCore<T>,
        io: &Io<'_, T>,
        strip: &TileStrip<'_, T::Acc>,
        scratch: StripScratch<'_, T::Acc>,
    ) -> bool;

    /// Computes a tile of some filters directly.
    fn compute(&self, core: &WinogradCore<T>, io: &Io<'_, T>, tile: &DirectTile, scratch: &mut [T::Acc]);
}

/// Outputs of the view: some filters of a group, and a box of a sub-image. Its rows and columns may
/// reach beyond the sub-image's end.
pub(super) struct OutputBox {
    pub(super) sub: SubImage,
    pub(super) group: usize,
    pub(super) filters: Range<usize>,
    pub(super) slices: Range<usize>,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

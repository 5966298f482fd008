//! The backend of this crate's own micro-kernels.

use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Dest, Prefetch, RowOffsets, StoreMap};

use super::blocks::Product;
use crate::conv::contract::no_kernel;
use crate::conv::macro_kernel::{SpatialTiles, lanes};
use crate::conv::store::no_epilogue;
use crate::element::Compute;
use crate::machine::Machine;

pub(super) struct Native<A: Compute> {
    tiles: SpatialTiles<A>,
    koff: RowOffsets,
    map: StoreMap,
    /// A bias for rows without one.
    zeros: Vec<A>,
}

impl<A: Compute> Native<A> {
    /// A GEMM for `rows` rows and at most `k` steps. `mr` fixes the height of panels.
    ///
    /// # Errors
    /// The reason why the kernels cannot do it.
    pub(super) fn new(
        machine: &Machine,
        (rows, k, ld): (usize, usize, usize),
        mr: Option<usize>,
    ) -> Result<Self, String> {
        if k.checked_mul(ld).is_none_or(|len| u32::try_from(len).is_err()) {
            return Err(alloc::format!("{k} rows of B, of {ld} values each, exceed 32-bit offsets"));
        }
        let tiles =
            SpatialTiles::choose(machine, rows, ld / lanes::<A>(machine.isa()), mr, 1.0).ok_or_else(no_kernel)?;
        let map = StoreMap::contiguous(ld, tiles.lanes);
        Ok(Self { tiles, koff: RowOffsets::packed(k, ld), map, zeros: alloc::vec![A::ZERO; rows] })
    }

    pub(super) fn name(&self) -> &'static str {
        self.tiles.name()
    }

    /// The height of panels, which the packed A depends on.
    pub(super) fn mr(&self) -> usize {
        self.tiles.mr()
    }

    pub(super) fn tile_len(&self) -> usize {
        self.tiles.tile_len()
    }

    pub(super) fn pack(&self, k: usize, packed: &mut [A], element: impl Fn(usize, usize) -> A) {
        self.tiles.pack(k, packed, element);
    }

    /// `tile` is scratch.
    pub(super) fn multiply(&self, product: Product<'_, A>, tile: &mut [A]) {
        let Product { k, n, a: packed, b, c, ld, accumulate, .. } = product;
        let lanes = self.tiles.lanes;
        let epilogue = no_epilogue(&self.zeros);
        self.tiles.for_each(0..self.tiles.panels.count(), n.div_ceil(lanes), |kernel, run, vector| {
            // If K is empty, B may be, too.
            let b = b.get(vector * lanes..).unwrap_or(&[]);
            let (koff, prefetch, map) = (self.koff.rows(0..k), Prefetch::NONE, &self.map);
            if !accumulate {
                let rows = self.tiles.panels.rows(&run);
                let (a, mut y) = (&packed[rows.start * k..rows.end * k], Dest::from_slice(&mut c[rows.start * ld..]));
                let panels = run.len();
                return kernel.activate_panels(
                    panels, a, b, koff, prefetch, tile, false, &mut y, ld, map, vector, &epilogue, None,
                );
            }
            for panel in run {
                let row = self.tiles.panels.start(panel);
                let a = &packed[row * k..(row + kernel.mr()) * k];
                let c = &mut c[row * ld..];
                let sums = c[vector * lanes..].chunks(ld);
                for (tile, sums) in tile.chunks_exact_mut(kernel.nr()).zip(sums).take(kernel.mr()) {
                    tile.copy_from_slice(&sums[..kernel.nr()]);
                }
                let mut y = Dest::from_slice(c);
                kernel.activate_panels(1, a, b, koff, prefetch, tile, true, &mut y, ld, map, vector, &epilogue, None);
            }
        });
    }
}

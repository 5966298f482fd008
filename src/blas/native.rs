//! The backend of this crate's own micro-kernels.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::{Ahead, Dest, RowOffsets, StoreMap};

use super::gemm::{Backend, Gemm, Product, Size};
use crate::element::Compute;
use crate::lower::engine::{SpatialTiles, lanes};
use crate::lower::sink::no_epilogue;
use crate::machine::Machine;

struct Native<A: Compute> {
    size: Size,
    tiles: SpatialTiles<A>,
    koff: RowOffsets,
    map: StoreMap,
    /// A bias for each row of a product to which nothing is added.
    zeros: Vec<A>,
}

/// # Errors
/// The reason why the kernels cannot do it.
pub(crate) fn backend<A: Compute>(machine: &Machine, size: Size, mr: Option<usize>) -> Result<Backend<A>, String> {
    if size.k.checked_mul(size.ld).is_none_or(|len| u32::try_from(len).is_err()) {
        return Err(alloc::format!("{} rows of B, of {} values each, exceed 32-bit offsets", size.k, size.ld));
    }
    let vectors = size.ld / lanes::<A>(machine.isa());
    let tiles = SpatialTiles::choose(machine, size.rows, vectors, mr, |_| 1.0)
        .ok_or_else(|| String::from("no kernel for this tile"))?;
    Ok(Backend {
        kernel: tiles.name(),
        layout: tiles.mr(),
        tile_len: tiles.tile_len(),
        build: Box::new(move || {
            Box::new(Native {
                size,
                koff: RowOffsets::packed(size.k, size.ld),
                map: StoreMap::contiguous(size.ld, tiles.lanes),
                zeros: alloc::vec![A::ZERO; size.rows],
                tiles,
            })
        }),
    })
}

impl<A: Compute> Gemm<A> for Native<A> {
    fn pack(&self, k: usize, packed: &mut [A], element: &dyn Fn(usize, usize) -> A) {
        self.tiles.pack(k, packed, element);
    }

    fn multiply(&self, product: Product<'_, A>, c: &mut [A], tile: &mut [A]) {
        let Product { packed, k, b, n, accumulate } = product;
        let (ld, lanes) = (self.size.ld, self.tiles.lanes);
        let epilogue = no_epilogue(&self.zeros);
        self.tiles.for_each(0..self.tiles.panels.count(), n.div_ceil(lanes), |kernel, run, vector| {
            // If K is empty, B may be, too.
            let b = b.get(vector * lanes..).unwrap_or(&[]);
            let (koff, ahead, map) = (self.koff.rows(0..k), Ahead::NONE, &self.map);
            if !accumulate {
                let rows = self.tiles.panels.start(run.start)..self.tiles.panels.start(run.end);
                let (a, mut y) = (&packed[rows.start * k..rows.end * k], Dest::from_slice(&mut c[rows.start * ld..]));
                let panels = run.len();
                return kernel
                    .activate_panels(panels, a, b, koff, ahead, tile, false, &mut y, ld, map, vector, &epilogue, None);
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
                kernel.activate_panels(1, a, b, koff, ahead, tile, true, &mut y, ld, map, vector, &epilogue, None);
            }
        });
    }
}

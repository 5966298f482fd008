//! The macro-kernel of the GEMM lowerings: panels of packed weights times a chunk of columns.
//!
//! C = A B. A is the packed weights, MR rows a panel. Kernels read B through row offsets: it may be
//! shifted views of padded planes, rows of X itself, or packed panels. K is cut into blocks. Between
//! blocks the tiles of C stay in scratch, and the last block finishes them into Y. Each element adds its
//! products in the order of k, so that results do not depend on how the work is split.

use alloc::string::String;
use alloc::vec::Vec;
use core::iter;
use core::ops::Range;

use convoke_kernels::catalogue::{spatial_kernels, spatial_widths};
use convoke_kernels::{Isa, Prefetch, Real, RowOffsetsRef, SpatialKernel, StoreMap};

use super::store::{OutputStore, TilePlace, WholeStore};
use crate::conv::contract::Request;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::machine::{Item, Machine, Work};
use crate::units::Count;

/// Bytes of a block of A (MC x KC). It stays in the L2 cache, beside B and the sums.
pub(crate) fn a_block_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// Up to so many steps of k, storing takes longer than multiplying.
pub(crate) const FEW_STEPS: usize = 96;
/// Rows of Y that the first level of the TLB holds, if each is in a page of its own.
const TLB_ROWS: usize = 64;

/// Rows of A, cut into panels of nearly equal height: the first `taller` panels have one row more
/// than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPanels {
    count: usize,
    height: usize,
    taller: usize,
}

impl RowPanels {
    /// As few panels of at most `mr` rows as possible, whose heights differ by at most one.
    pub(crate) fn new(rows: usize, mr: usize) -> Self {
        let count = rows.div_ceil(mr);
        let (height, taller) = (rows.checked_div(count).unwrap_or(0), rows.checked_rem(count).unwrap_or(0));
        Self { count, height, taller }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The first row of panel `p`; the number of all rows for `p == count`.
    pub(crate) fn start(&self, p: usize) -> usize {
        p * self.height + p.min(self.taller)
    }

    pub(crate) fn height(&self, p: usize) -> usize {
        self.height + usize::from(self.is_taller(p))
    }

    pub(crate) fn is_taller(&self, p: usize) -> bool {
        p < self.taller
    }

    /// Some panels, as the taller ones and the others, if there are any.
    #[inline]
    pub(crate) fn runs(&self, panels: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let runs = [panels.start..panels.end.min(self.taller), panels.start.max(self.taller)..panels.end];
        runs.into_iter().filter(|run| !run.is_empty())
    }

    pub(crate) fn rows(&self, panels: &Range<usize>) -> Range<usize> {
        self.start(panels.start)..self.start(panels.end)
    }

    /// Packs a matrix of `k` columns, which `element` returns, panel by panel, each `[k][height]`.
    pub(crate) fn pack<T>(&self, k: usize, packed: &mut [T], element: impl Fn(usize, usize) -> T) {
        for p in 0..self.count() {
            let (row, height) = (self.start(p), self.height(p));
            let panel = &mut packed[row * k..(row + height) * k];
            for (k, step) in panel.chunks_exact_mut(height.max(1)).enumerate() {
                for (i, value) in step.iter_mut().enumerate() {
                    *value = element(row + i, k);
                }
            }
        }
    }
}

/// The kernels for tiles of some widths, the widest first. Those of a width are ordered by their rows.
pub(crate) struct TileWidths<T: Real>(Vec<&'static [SpatialKernel<T>]>);

impl<T: Real> TileWidths<T> {
    /// Those of `widths`, the narrowest of which comes first, that have kernels of `rows` rows.
    pub(crate) fn new(widths: &[&'static [SpatialKernel<T>]], rows: usize) -> Self {
        Self(widths.iter().rev().copied().filter(|kernels| kernels.len() >= rows).collect())
    }

    /// The widest kernels of at most `vectors` vectors.
    pub(crate) fn of(&self, vectors: usize) -> &'static [SpatialKernel<T>] {
        // The last width is one vector, which the tables have for every number of rows.
        self.0.iter().find(|kernels| kernels[0].nrv() <= vectors).unwrap_or(&self.0[self.0.len() - 1])
    }

    pub(crate) fn widest(&self) -> &'static [SpatialKernel<T>] {
        self.0[0]
    }

    /// The kernels for `vectors` vectors of columns, and the number of column tiles of each width.
    pub(crate) fn cover(&self, mut vectors: usize) -> impl Iterator<Item = (&'static [SpatialKernel<T>], usize)> {
        iter::from_fn(move || {
            let kernels = self.of(vectors);
            let nrv = kernels[0].nrv();
            let count = if nrv == self.widest()[0].nrv() { vectors / nrv } else { vectors.min(1) };
            vectors -= count * nrv;
            (count > 0).then_some((kernels, count))
        })
    }
}

/// The panels of one A, and their kernels.
pub(crate) struct SpatialTiles<T: Real> {
    pub(crate) panels: RowPanels,
    pub(crate) lanes: usize,
    widths: TileWidths<T>,
    /// Bytes of a block of A, which stays in the L2 cache.
    a_block_bytes: usize,
    /// Panels of A of more bytes than these come from beyond the L1, or the L2 cache.
    large_bytes: usize,
    far_bytes: usize,
}

/// Estimated cycles of one step of k of a tile. Each load of a vector takes `vector_slots` slots of a
/// load port.
pub(crate) fn spatial_cycles<T: Real>(machine: &Machine, kernel: &SpatialKernel<T>, vector_slots: f64) -> f64 {
    let scalars = kernel.loads() - kernel.nrv();
    machine.tile_cycles(kernel.fmas(), scalars as f64 + kernel.nrv() as f64 * vector_slots)
}

impl<T: Real> SpatialTiles<T> {
    /// The kernels of panels with at most `mr` rows each, in some widths.
    fn new(machine: &Machine, panels: RowPanels, widths: &[&'static [SpatialKernel<T>]]) -> Self {
        let widths = TileWidths::new(widths, panels.height(0));
        Self {
            panels,
            lanes: widths.widest()[0].lanes(),
            widths,
            a_block_bytes: a_block_bytes(machine),
            large_bytes: machine.l1_bytes,
            far_bytes: machine.l2_bytes / 4 * 3,
        }
    }

    /// The tile that takes the fewest cycles for `rows` rows of A and `vectors` vectors of
    /// columns. Each load of a vector of B takes `vector_slots` slots of a port. With `mr`, only
    /// tiles of that panel height are looked at.
    pub(crate) fn choose(
        machine: &Machine,
        rows: usize,
        vectors: usize,
        mr: Option<usize>,
        vector_slots: f64,
    ) -> Option<Self> {
        let mut best: Option<(f64, Self)> = None;
        let widths: Vec<_> = spatial_widths::<T>(machine.isa()).collect();
        for (i, kernel) in widths.iter().enumerate().flat_map(|(i, kernels)| kernels.iter().map(move |k| (i, k))) {
            // Panels of nearly equal height may be lower than the kernel's tile. Another kernel then
            // gives the same panels.
            let panels = RowPanels::new(rows, kernel.mr());
            if mr.is_some_and(|mr| kernel.mr() != mr) || panels.height(0) != kernel.mr() {
                continue;
            }
            let tiles = Self::new(machine, panels, &widths[..=i]);
            let cycles = tiles.cycles(machine, vectors, vector_slots);
            if best.as_ref().is_none_or(|(least, _)| cycles < *least) {
                best = Some((cycles, tiles));
            }
        }
        best.map(|(_, tiles)| tiles)
    }

    /// The panel height that packing depends on.
    pub(crate) fn mr(&self) -> usize {
        self.panels.height(0)
    }

    /// Estimated cycles of one step of k, over all rows and `vectors` vectors of columns, each of which
    /// takes `vector_slots` slots of a load port.
    fn cycles(&self, machine: &Machine, vectors: usize, vector_slots: f64) -> f64 {
        let column_tile = |kernels: &[SpatialKernel<T>]| {
            let tile = |p: usize| spatial_cycles(machine, &kernels[self.panels.height(p) - 1], vector_slots);
            self.panels.runs(&(0..self.panels.count)).map(|run| run.len() as f64 * tile(run.start)).sum::<f64>()
        };
        self.widths.cover(vectors).map(|(kernels, count)| count as f64 * column_tile(kernels)).sum()
    }

    /// The multiply-adds of `k` steps, over all rows and `vectors` vectors of columns.
    pub(crate) fn work(&self, machine: &Machine, vectors: usize, k: usize, vector_slots: f64) -> Work {
        Item::ARITHMETIC_CYCLES.times(self.cycles(machine, vectors, vector_slots) * k as f64)
    }

    /// The work of the same beside multiply-adds: calls for each block of K, and storing.
    pub(crate) fn finish_work(&self, vectors: usize, k_blocks: usize) -> Work {
        // As f64: hostile sizes may exceed usize.
        let calls = k_blocks as f64 * self.panels.count as f64 * vectors.div_ceil(self.widest()) as f64;
        let rows = self.panels.start(self.panels.count) as f64;
        Item::KERNEL_CALLS.times(calls) + Item::STORED_VECTORS.times(rows * vectors as f64)
    }

    pub(crate) fn widest(&self) -> usize {
        self.widths.widest()[0].nrv()
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn name(&self) -> &'static str {
        self.widths.widest()[self.mr() - 1].name()
    }

    pub(crate) fn describe(&self) -> String {
        alloc::format!("{} in {}", self.name(), Count(self.panels.count(), "panel"))
    }

    pub(crate) fn tile_len(&self) -> usize {
        self.mr() * self.widest() * self.lanes
    }
}

/// Elements of a vector.
pub(crate) fn lanes<T: Real>(isa: Isa) -> usize {
    spatial_kernels::<T>(isa).first().map_or(1, SpatialKernel::lanes)
}

/// The products of a materialised lowering. An image has `positions` columns, at most `columns` of
/// them at a time.
pub(crate) fn products_work<E: Element>(request: &Request<'_, E>, (positions, columns): (usize, usize)) -> Work {
    let (geometry, machine) = (request.geometry, request.machine);
    let lanes = lanes::<E::Acc>(request.isa());
    // The last register of a row may be nearly empty.
    let registers = positions.div_ceil(lanes) as f64 / positions.max(1) as f64;
    let weights = geometry.weight_len() as f64 * size_of::<E::Acc>() as f64;
    let reads = geometry.batch as f64 * positions.div_ceil(columns) as f64;
    Item::BLAS_FMAS.times(geometry.macs() as f64 * registers) + machine.fetch_weights(weights * reads, weights)
}

/// The A of one call of the macro-kernel: some panels over one block of K.
pub(crate) struct Rows<'a, A> {
    /// The packed weights of the group. Panel p begins at `start(p) * k_total`, and its step k is
    /// `k * height(p)` further on.
    pub(crate) a: &'a [A],
    pub(crate) k_total: usize,
    pub(crate) k: Range<usize>,
    /// Whether this block of K is the first one, and the last one.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) panels: Range<usize>,
    pub(crate) bias: &'a [A],
}

impl<A> Rows<'_, A> {
    /// Whether K is one block.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_first && self.is_last
    }
}

/// The columns of one call of the macro-kernel: B, and where they go in Y.
pub(crate) struct Columns<'a, A> {
    /// Row k of vector j begins at `koff[k] + j * LANES`.
    pub(crate) b: &'a [A],
    pub(crate) koff: RowOffsetsRef<'a>,
    /// The rows of the next columns, where the L2 cache lacks them. Each panel of A prefetches one line
    /// of each row.
    pub(crate) prefetch: Prefetch,
    /// Where vectors go in Y.
    pub(crate) map: &'a StoreMap,
    /// The vectors of the map that are computed.
    pub(crate) range: Range<usize>,
    /// The element of Y that row 0 of the group and offset 0 of the map go to.
    pub(crate) at: usize,
    pub(crate) ldy: usize,
}

/// The operands of the tiles of some panels and one width of columns.
struct Operands<'a, A> {
    rows: &'a Rows<'a, A>,
    columns: &'a Columns<'a, A>,
    /// B from the first vector of the tiles on.
    b: &'a [A],
    /// The number of that vector in the map.
    vector: usize,
    prefetch: Prefetch,
}

impl<A: Real> Operands<'_, A> {
    /// Sums one tile, at row `row`, with the weights `a`. The last block of K finishes it into Y.
    fn tile<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        (row, a): (usize, &[A]),
        tile: &mut [A],
        store: &OutputStore<'_, '_, T>,
    ) {
        let Self { rows, columns, b, vector, prefetch } = *self;
        let accumulate = !rows.is_first;
        if !rows.is_last {
            return kernel.partial(a, b, columns.koff, prefetch, tile, accumulate);
        }
        let of = row..row + kernel.mr();
        if let Some((mut y, epilogue, activation)) = self.direct(kernel, of.clone(), store) {
            let (koff, y, ldy, map) = (columns.koff, &mut y, columns.ldy, columns.map);
            kernel
                .activate_panels(1, a, b, koff, prefetch, tile, accumulate, y, ldy, map, vector, &epilogue, activation);
        } else {
            kernel.finish_tile(a, b, columns.koff, prefetch, tile, accumulate, &store.staging(&rows.bias[of]));
            let tile = &mut tile[..kernel.mr() * kernel.nr()];
            let Columns { at, ldy, map, .. } = *columns;
            let place = TilePlace { at: at + row * ldy, ldy, map, first: vector, lanes: kernel.lanes() };
            store.staged_tile(tile, kernel.nr(), &place);
        }
    }

    /// Finishes the tiles of several panels, of rows `of`, in one call over the whole of K. Returns
    /// false, and does nothing, where kernels do not store into Y.
    fn panels<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        tile: &mut [A],
        store: &OutputStore<'_, '_, T>,
    ) -> bool {
        let Self { rows, columns, b, vector, prefetch } = *self;
        let Some((mut y, epilogue, activation)) = self.direct(kernel, of.clone(), store) else { return false };
        let (panels, a) = (of.len() / kernel.mr(), &rows.a[of.start * rows.k_total..of.end * rows.k_total]);
        let (koff, y, ldy, map) = (columns.koff, &mut y, columns.ldy, columns.map);
        kernel.activate_panels(panels, a, b, koff, prefetch, tile, false, y, ldy, map, vector, &epilogue, activation);
        true
    }

    /// Where a kernel stores the rows `of`, and its epilogue. None where kernels do not store into Y.
    #[inline(always)]
    fn direct<'s, T: Element<Acc = A>>(
        &'s self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        store: &'s OutputStore<'_, '_, T>,
    ) -> Option<WholeStore<'s, A>> {
        let Columns { at, ldy, map, .. } = *self.columns;
        let (at, rows) = (at + of.start * ldy, of.len());
        let vectors = map.columns().iter().skip(self.vector).take(kernel.nrv());
        let stores = vectors.map(move |v| Stores::row(at + v.offset, v.mask.count_ones() as usize).times(rows, ldy));
        store.whole(at, &self.rows.bias[of], stores)
    }
}

impl<T: Real> SpatialTiles<T> {
    /// Values of scratch that [`multiply`](Self::multiply) needs: one tile, or the tiles of all
    /// `panels` and `vectors` where K has several blocks.
    pub(crate) fn scratch_len(&self, panels: Range<usize>, vectors: usize, k_blocks: usize) -> usize {
        if k_blocks <= 1 {
            return self.tile_len();
        }
        (self.panels.start(panels.end) - self.panels.start(panels.start)) * vectors * self.lanes
    }

    /// Panels that [`multiply`](Self::multiply) takes over all `vectors` of columns before it goes on to the
    /// next ones: those whose weights stay in the L2 cache. If storing takes longer than the product of `k`
    /// steps, also at most those whose rows of Y stay in the TLB.
    fn group_panels(&self, k: usize, vectors: usize) -> usize {
        let panel_bytes = k * self.mr() * size_of::<T>();
        let of_weights = (self.a_block_bytes / panel_bytes.max(1)).max(1);
        let is_store_bound = k <= FEW_STEPS && vectors > self.widest();
        let of_rows = if is_store_bound { (TLB_ROWS / self.mr()).max(1) } else { usize::MAX };
        of_weights.min(of_rows)
    }

    /// Multiplies panels of A by columns. The outer loop is over columns one tile wide, which stay in
    /// the L1 cache; the inner loop over panels.
    ///
    /// `tiles` keeps the sums between blocks of K. For all blocks, calls for the same columns must pass
    /// the same part of it and the same `range`.
    pub(crate) fn multiply<E: Element<Acc = T>>(
        &self,
        rows: &Rows<'_, T>,
        columns: &Columns<'_, T>,
        tiles: &mut [T],
        store: &OutputStore<'_, '_, E>,
    ) where
        T: crate::element::Compute,
    {
        let blocked = !rows.is_whole();
        let (first_row, vectors) = (self.panels.start(rows.panels.start), columns.range.len());
        let panel_bytes = rows.k.len() * self.mr() * size_of::<T>();
        let groups = rows.panels.len().div_ceil(self.group_panels(rows.k.len(), vectors));
        let count = rows.panels.len().div_ceil(groups.max(1)).max(1);
        let exceeds = |bytes: usize| panel_bytes * rows.panels.len() > bytes;
        let (is_large, is_far) = (exceeds(self.large_bytes), exceeds(self.far_bytes));
        // Each panel prefetches another line of the columns that come next.
        let (mut line, mut panels_before) = (0, 0);
        for first in rows.panels.clone().step_by(count) {
            let group = first..(first + count).min(rows.panels.end);
            self.for_each(group.clone(), vectors, |kernel, run, vector| {
                // With no steps of k, B may be empty.
                let b = columns.b.get(vector * self.lanes..).unwrap_or(&[]);
                let (height, at) = (kernel.mr(), columns.range.start + vector);
                let of = self.panels.start(run.start)..self.panels.start(run.end);
                let operands = |prefetch| Operands { rows, columns, b, vector: at, prefetch };
                // With the first columns of a block, panels may not be in the cache: other layers may
                // have run since the last call. Then the next panel of A is prefetched in place of
                // columns.
                let prefetches_a = is_far || (is_large && at == 0);
                let is_one_call = !blocked && !prefetches_a && rows.k.len() == rows.k_total;
                if is_one_call
                    && operands(columns.prefetch.after_panels(panels_before)).panels(kernel, of, tiles, store)
                {
                    panels_before += run.len();
                    return;
                }
                for panel in run {
                    let row = self.panels.start(panel);
                    let a = row * rows.k_total;
                    let a = &rows.a[a + rows.k.start * height..a + rows.k.end * height];
                    let kept = if blocked { ((row - first_row) * vectors + height * vector) * self.lanes } else { 0 };
                    let tile = &mut tiles[kept..kept + height * kernel.nr()];
                    let prefetch = if prefetches_a {
                        let next = if panel + 1 < group.end { panel + 1 } else { group.start };
                        let next = self.panels.start(next) * rows.k_total + rows.k.start * self.panels.height(next);
                        Prefetch::lines(&rows.a[next..])
                    } else {
                        line = if (line + 2) * Prefetch::LINE > kernel.nr() * size_of::<T>() { 0 } else { line + 1 };
                        columns.prefetch.line(line)
                    };
                    operands(prefetch).tile(kernel, (row, a), tile, store);
                }
            });
        }
    }

    /// Calls `tiles(kernel, run of panels, first vector)` for each width of columns, and each run of
    /// panels of equal height.
    #[inline]
    pub(crate) fn for_each(
        &self,
        panels: Range<usize>,
        vectors: usize,
        mut tiles: impl FnMut(&'static SpatialKernel<T>, Range<usize>, usize),
    ) {
        let mut vector = 0;
        while vector < vectors {
            let kernels = self.widths.of(vectors - vector);
            for run in self.panels.runs(&panels) {
                tiles(&kernels[self.panels.height(run.start) - 1], run, vector);
            }
            vector += kernels[0].nrv();
        }
    }

    pub(crate) fn pack(&self, k: usize, packed: &mut [T], element: impl Fn(usize, usize) -> T) {
        self.panels.pack(k, packed, element);
    }
}

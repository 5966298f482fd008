//! The macro-kernel that the GEMM lowerings share: panels of packed weights times a block of
//! columns, tile by tile.
//!
//! C = A B, with A the packed weights, MR rows a panel, and B a block of columns that is read
//! through row offsets: shifted views of padded planes, rows of X itself, or packed panels. K is
//! blocked; between K blocks the tiles of C are kept in scratch memory, each contiguous, and the
//! last K block finishes them into Y. Every element sees its products in the order of k, whatever
//! the tiles: results do not depend on how the work is split.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::spatial_kernels;
use convoke_kernels::{Ahead, Isa, Real, RowOffsetsRef, SpatialKernel, StoreMap};

use super::sink::{DirectStore, Sink, TilePlace};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::contract::Request;
use crate::machine::{Item, Machine, Prices, Work};

/// Bytes of a block of A (MC x KC) that is kept in the L2 cache, beside B and the sums.
pub(crate) fn a_block_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// Steps of k of a product that is bound by its stores (10 steps, 512 rows of 3199 columns: 82
/// instead of 33 GFLOP/s; 27 steps, 64 rows of 50,176: 148 instead of 138), and rows from which on
/// their pages are too many for the first level's TLB.
pub(crate) const FEW_STEPS: usize = 96;
const MANY_ROWS: usize = 64;

/// Rows of A, cut into panels of nearly equal height: the first `taller` panels have one row more
/// than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPanels {
    count: usize,
    height: usize,
    taller: usize,
}

impl RowPanels {
    /// As few panels of at most `mr` rows as possible, whose heights differ by at most one: no
    /// panel is left with a row or two.
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
        self.height + usize::from(p < self.taller)
    }

    /// The panel that a row is in.
    pub(crate) fn panel_of(&self, row: usize) -> usize {
        let of_taller = self.taller * (self.height + 1);
        if row < of_taller { row / (self.height + 1) } else { self.taller + (row - of_taller) / self.height }
    }

    /// Packs a matrix of `k` columns, given by an accessor, panel by panel, each `[k][height]`.
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

    /// The heights of the first, tallest panel, and of the last, lowest one.
    fn heights(&self) -> (usize, usize) {
        (self.height + usize::from(self.taller > 0), self.height)
    }
}

/// The kernels for the panels of one A: for each width, one for the taller panels and one for the
/// others.
pub(crate) struct SpatialTiles<T: Real> {
    pub(crate) panels: RowPanels,
    pub(crate) lanes: usize,
    widths: Vec<TileWidth<T>>,
    /// Bytes of a block of A that is kept in the L2 cache, and of panels of A from which on they
    /// come from beyond it.
    a_block_bytes: usize,
    far_bytes: usize,
}

/// The two kernels of one width; `nrv` vectors.
struct TileWidth<T: Real> {
    nrv: usize,
    tall: &'static SpatialKernel<T>,
    low: &'static SpatialKernel<T>,
}

impl<T: Real> SpatialTiles<T> {
    /// The kernels of panels with at most `mr` rows each, in widths of at most `max_nrv` vectors;
    /// none if a kernel is lacking.
    fn new(machine: &Machine, rows: usize, mr: usize, max_nrv: usize) -> Option<Self> {
        let panels = RowPanels::new(rows, mr);
        let kernels = spatial_kernels::<T>(machine.isa());
        let find = |mr: usize, nrv: usize| kernels.iter().find(|k| k.mr() == mr && k.nrv() == nrv);
        let (tall, low) = panels.heights();
        let mut widths: Vec<_> = (1..=max_nrv)
            .filter_map(|nrv| {
                let tall = find(tall, nrv)?;
                Some(TileWidth { nrv, tall, low: find(low, nrv).unwrap_or(tall) })
            })
            .collect();
        widths.reverse();
        let lanes = kernels.first()?.lanes();
        let (a_block_bytes, far_bytes) = (a_block_bytes(machine), machine.l2_bytes / 4 * 3);
        (!widths.is_empty()).then_some(Self { panels, lanes, widths, a_block_bytes, far_bytes })
    }

    /// The tile that takes the fewest cycles for `rows` of A and `vectors` of columns, times a
    /// `factor` of the kernel; with `mr`, only tiles of that panel height.
    pub(crate) fn choose(
        machine: &Machine,
        rows: usize,
        vectors: usize,
        mr: Option<usize>,
        factor: impl Fn(&SpatialKernel<T>) -> f64,
    ) -> Option<Self> {
        let mut best: Option<(f64, Self)> = None;
        for kernel in spatial_kernels::<T>(machine.isa()) {
            if mr.is_some_and(|mr| kernel.mr() != mr) || kernel.mr() > rows.max(1) {
                continue;
            }
            let Some(tiles) = Self::new(machine, rows, kernel.mr(), kernel.nrv()) else { continue };
            if tiles.widths[0].nrv != kernel.nrv() {
                continue;
            }
            // Panels may be lower than what they were asked for.
            let cycles = tiles.cycles(machine, vectors) * factor(tiles.widths[0].tall);
            if best.as_ref().is_none_or(|(least, _)| cycles < *least) {
                best = Some((cycles, tiles));
            }
        }
        best.map(|(_, tiles)| tiles)
    }

    /// The panel height that packing depends on.
    pub(crate) fn mr(&self) -> usize {
        self.panels.heights().0
    }

    /// Estimated cycles for one step of k over all rows and `vectors` of columns.
    pub(crate) fn cycles(&self, machine: &Machine, vectors: usize) -> f64 {
        let (taller, lower) = (self.panels.taller, self.panels.count - self.panels.taller);
        let mut cycles = 0.0;
        let mut at = 0;
        while at < vectors {
            let width = self.width(vectors - at);
            let repeat = if width.nrv == self.widths[0].nrv { (vectors - at) / width.nrv } else { 1 };
            let tile = |kernel: &SpatialKernel<T>| machine.tile_cycles(kernel.fmas(), kernel.loads());
            cycles += repeat as f64 * (taller as f64 * tile(width.tall) + lower as f64 * tile(width.low));
            at += repeat * width.nrv;
        }
        cycles
    }

    /// Estimated cycles beside the steps of k, over all rows and `vectors` of columns: calls for
    /// each block of k, and sums on their way into Y.
    pub(crate) fn finish_cycles(&self, prices: &Prices, vectors: usize, k_blocks: usize) -> f64 {
        // As f64: hostile sizes may exceed usize.
        let calls = k_blocks as f64 * self.panels.count as f64 * vectors.div_ceil(self.widest()) as f64;
        let rows = self.panels.start(self.panels.count) as f64;
        calls * prices.kernel_call_cycles + rows * vectors as f64 * prices.store_cycles
    }

    /// The multiply-adds of `k` steps over all rows and `vectors` of columns.
    pub(crate) fn work(&self, machine: &Machine, vectors: usize, k: usize) -> Work {
        machine.work(Item::ArithmeticCycles, self.cycles(machine, vectors) * k as f64)
    }

    /// What they take beside the steps of k: calls for each block of k, and sums on their way into
    /// Y.
    pub(crate) fn finish_work(&self, machine: &Machine, vectors: usize, k_blocks: usize) -> Work {
        // As f64: hostile sizes may exceed usize.
        let calls = k_blocks as f64 * self.panels.count as f64 * vectors.div_ceil(self.widest()) as f64;
        let rows = self.panels.start(self.panels.count) as f64;
        machine.work(Item::KernelCalls, calls) + machine.work(Item::StoredVectors, rows * vectors as f64)
    }

    /// The widest kernels of at most `vectors` vectors.
    fn width(&self, vectors: usize) -> &TileWidth<T> {
        // A width of one vector is in every list, because the tables have it for every height.
        self.widths.iter().find(|w| w.nrv <= vectors).unwrap_or(&self.widths[self.widths.len() - 1])
    }

    /// The widest tile, in vectors.
    pub(crate) fn widest(&self) -> usize {
        self.widths[0].nrv
    }

    /// The name of the kernel that does most of the work.
    pub(crate) fn name(&self) -> &'static str {
        self.widths[0].tall.name()
    }

    pub(crate) fn describe(&self) -> String {
        alloc::format!("{} in {} panels", self.name(), self.panels.count())
    }

    /// Values that a tile needs.
    pub(crate) fn tile_len(&self) -> usize {
        self.mr() * self.widest() * self.lanes
    }
}

/// Elements of a vector.
pub(crate) fn lanes<T: Real>(isa: Isa) -> usize {
    spatial_kernels::<T>(isa).first().map_or(1, SpatialKernel::lanes)
}

/// The products of a materialised lowering, whose multiply-adds are `fmas`: of `positions` columns
/// for each image, at most `columns` at a time.
pub(crate) fn products_work<E: Element>(
    request: &Request<'_, E>,
    (positions, columns): (usize, usize),
    fmas: Item,
) -> Work {
    let (geometry, machine) = (request.geometry, request.machine);
    let lanes = lanes::<E::Acc>(request.isa());
    // The last of a row's registers may be nearly empty.
    let registers = positions.div_ceil(lanes) as f64 / positions.max(1) as f64;
    // Nothing fetches weights ahead of these products.
    let weights = geometry.weight_len() as f64 * size_of::<E::Acc>() as f64;
    let reads = (geometry.batch * positions.div_ceil(columns)) as f64;
    machine.work(fmas, geometry.macs() as f64 * registers) + machine.fetch_weights(weights * reads, weights)
}

/// The packed weights' part in a call of the macro-kernel: panels of A over one block of k.
pub(crate) struct Rows<'a, A> {
    /// Packed A of the group: panel p begins at `start(p) * k_total`, step k of it `k * height(p)`
    /// further on.
    pub(crate) a: &'a [A],
    pub(crate) k_total: usize,
    pub(crate) k: Range<usize>,
    pub(crate) panels: Range<usize>,
    /// One value for each row of the group.
    pub(crate) bias: &'a [A],
}

impl<A> Rows<'_, A> {
    /// Whether there is no block of k before this one.
    fn is_first(&self) -> bool {
        self.k.start == 0
    }

    /// Whether there is no block of k behind this one.
    fn is_last(&self) -> bool {
        self.k.end == self.k_total
    }
}

/// The columns' part: where they are read and written.
pub(crate) struct Columns<'a, A> {
    /// Row k of the first vector is at `koff[k]`, vector j's `j * LANES` further on.
    pub(crate) b: &'a [A],
    pub(crate) koff: RowOffsetsRef<'a>,
    /// The rows of the columns that come next, as far as they are not in the L2 cache: each panel
    /// of A fetches one of their lines.
    pub(crate) ahead: Ahead,
    /// Where vectors go; those of `range` are computed.
    pub(crate) map: &'a StoreMap,
    pub(crate) range: Range<usize>,
    /// The output element that row 0 of the group, offset 0 of the map, goes to.
    pub(crate) at: usize,
    /// Output elements from one row to the next.
    pub(crate) ldy: usize,
}

/// The operands of the tiles of some panels and one width of columns.
struct Operands<'a, A> {
    rows: &'a Rows<'a, A>,
    columns: &'a Columns<'a, A>,
    /// The columns, from the first vector on, and which vector that is.
    b: &'a [A],
    vector: usize,
    ahead: Ahead,
}

impl<A: Real> Operands<'_, A> {
    /// Sums the tile of `kernel` at row `row`, whose weights are `a`; finishes it in the last block
    /// of k.
    fn tile<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        (row, a): (usize, &[A]),
        tile: &mut [A],
        sink: &Sink<'_, '_, T>,
    ) {
        let Self { rows, columns, b, vector, ahead } = *self;
        let accumulate = !rows.is_first();
        if !rows.is_last() {
            return kernel.partial(a, b, columns.koff, ahead, tile, accumulate);
        }
        let of = row..row + kernel.mr();
        if let Some((mut y, epilogue)) = self.direct(kernel, of.clone(), sink) {
            let (koff, ldy, map) = (columns.koff, columns.ldy, columns.map);
            kernel.finish(a, b, koff, ahead, tile, accumulate, &mut y, ldy, map, vector, &epilogue);
        } else {
            kernel.partial(a, b, columns.koff, ahead, tile, accumulate);
            let tile = &mut tile[..kernel.mr() * kernel.nr()];
            let Columns { at, ldy, map, .. } = *columns;
            let place = TilePlace { at: at + row * ldy, ldy, map, first: vector, lanes: kernel.lanes() };
            sink.tile(tile, kernel.nr(), &rows.bias[of], &place);
        }
    }

    /// Finishes the tiles of the panels of rows `of`, of equal height, over the whole of K, in one
    /// call. Does nothing and says so where kernels do not store tiles themselves.
    fn panels<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        tile: &mut [A],
        sink: &Sink<'_, '_, T>,
    ) -> bool {
        let Self { rows, columns, b, vector, ahead } = *self;
        let Some((mut y, epilogue)) = self.direct(kernel, of.clone(), sink) else { return false };
        let (panels, a) = (of.len() / kernel.mr(), &rows.a[of.start * rows.k_total..of.end * rows.k_total]);
        let Columns { koff, map, ldy, .. } = *columns;
        kernel.finish_panels(panels, a, b, koff, ahead, tile, &mut y, ldy, map, vector, &epilogue);
        true
    }

    /// Where kernels store rows of the group themselves, and what they add; nothing where they do
    /// not.
    #[inline(always)]
    fn direct<'s, T: Element<Acc = A>>(
        &'s self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        sink: &'s Sink<'_, '_, T>,
    ) -> Option<DirectStore<'s, A>> {
        let Columns { at, ldy, map, .. } = *self.columns;
        let (at, rows) = (at + of.start * ldy, of.len());
        let vectors = map.columns().iter().skip(self.vector).take(kernel.nrv());
        let stores = vectors.map(move |v| Stores::row(at + v.offset, v.mask.count_ones() as usize).times(rows, ldy));
        sink.direct(at, &self.rows.bias[of], stores)
    }
}

impl<T: Real> SpatialTiles<T> {
    /// Values of scratch that [`multiply`](Self::multiply) needs: one tile, or, where K is blocked,
    /// the tiles of all `panels` and `vectors`.
    pub(crate) fn scratch_len(&self, panels: Range<usize>, vectors: usize, k_blocks: usize) -> usize {
        if k_blocks <= 1 {
            return self.tile_len();
        }
        (self.panels.start(panels.end) - self.panels.start(panels.start)) * vectors * self.lanes
    }

    /// Whether storing takes longest, with `k` steps: that goes faster row after row of Y than
    /// across its rows, and [`multiply`](Self::multiply) takes panel after panel, for all columns,
    /// where they are more than a tile's.
    pub(crate) fn is_store_bound(&self, k: usize) -> bool {
        k <= FEW_STEPS && self.panels.start(self.panels.count()) >= MANY_ROWS
    }

    /// Multiplies panels of A by columns: for each tile's width of columns, which stays in the L1
    /// cache, all panels.
    ///
    /// `tiles` keeps the sums between blocks of k; calls for the same columns must pass the same
    /// part of it, and the same `range`s.
    pub(crate) fn multiply<E: Element<Acc = T>>(
        &self,
        rows: &Rows<'_, T>,
        columns: &Columns<'_, T>,
        tiles: &mut [T],
        sink: &Sink<'_, '_, E>,
    ) where
        T: crate::element::Compute,
    {
        let blocked = !(rows.is_first() && rows.is_last());
        let (first_row, vectors) = (self.panels.start(rows.panels.start), columns.range.len());
        // Panels of A that stay in the L2 cache while all columns pass.
        let panel_bytes = rows.k.len() * self.mr() * size_of::<T>();
        let share = (self.a_block_bytes / panel_bytes.max(1)).max(1);
        let count = rows.panels.len().div_ceil(rows.panels.len().div_ceil(share).max(1)).max(1);
        // Of one tile's width there are no rows to go along.
        let is_wide = vectors > self.widest();
        let count = if is_wide && self.is_store_bound(rows.k.len()) { 1 } else { count };
        // Then the next panel of A is fetched instead of columns.
        let is_far = panel_bytes * rows.panels.len() > self.far_bytes;
        // Of the columns, each panel fetches another line.
        let (mut line, mut turns) = (0, 0);
        for first in rows.panels.clone().step_by(count) {
            let group = first..(first + count).min(rows.panels.end);
            self.for_each(group.clone(), vectors, |kernel, run, vector| {
                // Without steps of k, B has no rows: nothing is read.
                let b = columns.b.get(vector * self.lanes..).unwrap_or(&[]);
                let (height, at) = (kernel.mr(), columns.range.start + vector);
                let of = self.panels.start(run.start)..self.panels.start(run.end);
                let operands = |ahead| Operands { rows, columns, b, vector: at, ahead };
                if !blocked && !is_far && operands(columns.ahead.turns(turns)).panels(kernel, of, tiles, sink) {
                    turns += run.len();
                    return;
                }
                for panel in run {
                    let row = self.panels.start(panel);
                    let a = row * rows.k_total;
                    let a = &rows.a[a + rows.k.start * height..a + rows.k.end * height];
                    let kept = if blocked { ((row - first_row) * vectors + height * vector) * self.lanes } else { 0 };
                    let tile = &mut tiles[kept..kept + height * kernel.nr()];
                    let ahead = if is_far {
                        let next = if panel + 1 < group.end { panel + 1 } else { group.start };
                        let next = self.panels.start(next) * rows.k_total + rows.k.start * self.panels.height(next);
                        Ahead::lines(&rows.a[next..])
                    } else {
                        line = if (line + 2) * Ahead::LINE > kernel.nr() * size_of::<T>() { 0 } else { line + 1 };
                        columns.ahead.line(line)
                    };
                    operands(ahead).tile(kernel, (row, a), tile, sink);
                }
            });
        }
    }

    /// Calls `tiles(kernel, run of panels, first vector)` for each width of columns and each run of
    /// panels of equal height, until those of all `panels` have passed.
    #[inline]
    pub(crate) fn for_each(
        &self,
        panels: Range<usize>,
        vectors: usize,
        mut tiles: impl FnMut(&'static SpatialKernel<T>, Range<usize>, usize),
    ) {
        let taller = panels.start..panels.end.min(self.panels.taller);
        let lower = panels.start.max(self.panels.taller)..panels.end;
        let mut vector = 0;
        while vector < vectors {
            let width = self.width(vectors - vector);
            for (kernel, run) in [(width.tall, &taller), (width.low, &lower)] {
                if !run.is_empty() {
                    tiles(kernel, run.clone(), vector);
                }
            }
            vector += width.nrv;
        }
    }

    /// Packs a matrix of `k` columns, given by an accessor, into the panels' layout.
    pub(crate) fn pack(&self, k: usize, packed: &mut [T], element: impl Fn(usize, usize) -> T) {
        self.panels.pack(k, packed, element);
    }
}

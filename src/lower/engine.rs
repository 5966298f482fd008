//! The macro-kernel that the GEMM lowerings share: panels of packed weights times a block of
//! columns, tile by tile.
//!
//! C = A B. A is the packed weights, MR rows a panel. B is a block of columns, which kernels read
//! through row offsets: shifted views of padded planes, rows of X itself, or packed panels. K is
//! in blocks. Between two blocks of K the tiles of C are kept in scratch memory, each contiguous,
//! and the last block of K finishes them into Y. The products of every element are added in the
//! order of k, whatever the tiles, and so results do not depend on how the work is split.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::{spatial_kernels, spatial_widths};
use convoke_kernels::{Ahead, Isa, Real, RowOffsetsRef, SpatialKernel, StoreMap};

use super::sink::{Sink, TilePlace, WholeStore};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::lower::contract::Request;
use crate::machine::{Item, Machine, Work};
use crate::units::Count;

/// Bytes of a block of A (MC x KC): it stays in the L2 cache, beside B and the sums.
pub(crate) fn a_block_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// The most steps of k for which stores take longer than products.
pub(crate) const FEW_STEPS: usize = 96;
/// The fewest rows of Y that exceed the first level of the TLB, if each row is in a page of its
/// own.
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
        self.height + usize::from(self.is_taller(p))
    }

    /// Whether panel `p` is one of the taller ones.
    pub(crate) fn is_taller(&self, p: usize) -> bool {
        p < self.taller
    }

    /// The taller ones and the lower ones of some panels.
    pub(crate) fn runs(&self, panels: &Range<usize>) -> [Range<usize>; 2] {
        [panels.start..panels.end.min(self.taller), panels.start.max(self.taller)..panels.end]
    }

    /// The rows of some panels.
    pub(crate) fn rows(&self, panels: &Range<usize>) -> Range<usize> {
        self.start(panels.start)..self.start(panels.end)
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
    /// Bytes of a block of A, which stays in the L2 cache.
    a_block_bytes: usize,
    /// Bytes of panels of A from which on they come from beyond the L1 cache, and from beyond the L2
    /// cache.
    large_bytes: usize,
    far_bytes: usize,
}

/// Estimated cycles of one step of k of a tile. Each load of a vector takes `vector_slots` slots of a
/// load port.
pub(crate) fn spatial_cycles<T: Real>(machine: &Machine, kernel: &SpatialKernel<T>, vector_slots: f64) -> f64 {
    let scalars = kernel.loads() - kernel.nrv();
    machine.tile_cycles(kernel.fmas(), scalars as f64 + kernel.nrv() as f64 * vector_slots)
}

/// The two kernels for tiles that are `nrv` vectors wide.
struct TileWidth<T: Real> {
    nrv: usize,
    tall: &'static SpatialKernel<T>,
    low: &'static SpatialKernel<T>,
}

impl<T: Real> SpatialTiles<T> {
    /// The kernels of panels with at most `mr` rows each, in some widths. None if a kernel is
    /// lacking.
    fn new(machine: &Machine, rows: usize, mr: usize, widths: &[&'static [SpatialKernel<T>]]) -> Option<Self> {
        let panels = RowPanels::new(rows, mr);
        let (tall, low) = panels.heights();
        let of_width = |kernels: &&'static [SpatialKernel<T>]| {
            let tall = kernels.get(tall.checked_sub(1)?)?;
            let low = low.checked_sub(1).and_then(|low| kernels.get(low)).unwrap_or(tall);
            Some(TileWidth { nrv: tall.nrv(), tall, low })
        };
        let lanes = widths.first()?[0].lanes();
        let widths: Vec<_> = widths.iter().rev().filter_map(of_width).collect();
        let (large_bytes, far_bytes) = (machine.l1_bytes, machine.l2_bytes / 4 * 3);
        let a_block_bytes = a_block_bytes(machine);
        (!widths.is_empty()).then_some(Self { panels, lanes, widths, a_block_bytes, large_bytes, far_bytes })
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
            // Panels of nearly equal height may be lower than the tile. Such a choice is another
            // one's double.
            let is_double = RowPanels::new(rows, kernel.mr()).heights().0 != kernel.mr();
            if mr.is_some_and(|mr| kernel.mr() != mr) || kernel.mr() > rows.max(1) || is_double {
                continue;
            }
            let Some(tiles) = Self::new(machine, rows, kernel.mr(), &widths[..=i]) else { continue };
            if tiles.widths[0].nrv != kernel.nrv() {
                continue;
            }
            let cycles = tiles.cycles(machine, vectors, vector_slots);
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

    /// Estimated cycles of one step of k, over all rows and `vectors` vectors of columns, each of which
    /// takes `vector_slots` slots of a load port.
    fn cycles(&self, machine: &Machine, vectors: usize, vector_slots: f64) -> f64 {
        let (taller, lower) = (self.panels.taller, self.panels.count - self.panels.taller);
        let mut cycles = 0.0;
        let mut at = 0;
        while at < vectors {
            let width = self.width(vectors - at);
            let repeat = if width.nrv == self.widths[0].nrv { (vectors - at) / width.nrv } else { 1 };
            let tile = |kernel: &SpatialKernel<T>| spatial_cycles(machine, kernel, vector_slots);
            cycles += repeat as f64 * (taller as f64 * tile(width.tall) + lower as f64 * tile(width.low));
            at += repeat * width.nrv;
        }
        cycles
    }

    /// The multiply-adds of `k` steps, over all rows and `vectors` vectors of columns.
    pub(crate) fn work(&self, machine: &Machine, vectors: usize, k: usize, vector_slots: f64) -> Work {
        machine.work(Item::ArithmeticCycles, self.cycles(machine, vectors, vector_slots) * k as f64)
    }

    /// What the same takes beside multiply-adds: calls for each block of K, and the way of sums
    /// into Y.
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
        alloc::format!("{} in {}", self.name(), Count(self.panels.count(), "panel"))
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

/// The products of a materialised lowering, whose multiply-adds count as `fmas`: `positions`
/// columns for each image, at most `columns` at a time.
pub(crate) fn products_work<E: Element>(request: &Request<'_, E>, (positions, columns): (usize, usize)) -> Work {
    let (geometry, machine) = (request.geometry, request.machine);
    let lanes = lanes::<E::Acc>(request.isa());
    // The last register of a row may be nearly empty.
    let registers = positions.div_ceil(lanes) as f64 / positions.max(1) as f64;
    // Nothing fetches weights ahead of these products.
    let weights = geometry.weight_len() as f64 * size_of::<E::Acc>() as f64;
    let reads = geometry.batch as f64 * positions.div_ceil(columns) as f64;
    machine.work(Item::BlasFmas, geometry.macs() as f64 * registers) + machine.fetch_weights(weights * reads, weights)
}

/// The rows of one call of the macro-kernel: panels of packed weights, over one block of K.
pub(crate) struct Rows<'a, A> {
    /// The packed weights of the group. Panel p begins at `start(p) * k_total`, and its step k is
    /// `k * height(p)` further on.
    pub(crate) a: &'a [A],
    pub(crate) k_total: usize,
    pub(crate) k: Range<usize>,
    /// Whether these are the first steps of K that are multiplied, and the last.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) panels: Range<usize>,
    /// One value for each row of the group.
    pub(crate) bias: &'a [A],
}

impl<A> Rows<'_, A> {
    /// Whether these steps are all that are multiplied.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_first && self.is_last
    }
}

/// The columns of one call of the macro-kernel: where they are read and written.
pub(crate) struct Columns<'a, A> {
    /// Row k of vector j begins at `koff[k] + j * LANES`.
    pub(crate) b: &'a [A],
    pub(crate) koff: RowOffsetsRef<'a>,
    /// The rows of the columns that come next, where these are not in the L2 cache. Each panel of
    /// A fetches one of their lines.
    pub(crate) ahead: Ahead,
    /// Where vectors go in Y.
    pub(crate) map: &'a StoreMap,
    /// The vectors of the map that are computed.
    pub(crate) range: Range<usize>,
    /// The element of Y that row 0 of the group and offset 0 of the map go to.
    pub(crate) at: usize,
    /// Elements of Y from one row to the next.
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
    ahead: Ahead,
}

impl<A: Real> Operands<'_, A> {
    /// Sums the tile of `kernel` at row `row`, whose weights are `a`. The last block of K
    /// finishes it into Y.
    fn tile<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        (row, a): (usize, &[A]),
        tile: &mut [A],
        sink: &Sink<'_, '_, T>,
    ) {
        let Self { rows, columns, b, vector, ahead } = *self;
        let accumulate = !rows.is_first;
        if !rows.is_last {
            return kernel.partial(a, b, columns.koff, ahead, tile, accumulate);
        }
        let of = row..row + kernel.mr();
        if let Some((mut y, epilogue, activation)) = self.direct(kernel, of.clone(), sink) {
            let (koff, y, ldy, map) = (columns.koff, &mut y, columns.ldy, columns.map);
            kernel.activate_panels(1, a, b, koff, ahead, tile, accumulate, y, ldy, map, vector, &epilogue, activation);
        } else {
            kernel.finish_tile(a, b, columns.koff, ahead, tile, accumulate, &sink.staging(&rows.bias[of]));
            let tile = &mut tile[..kernel.mr() * kernel.nr()];
            let Columns { at, ldy, map, .. } = *columns;
            let place = TilePlace { at: at + row * ldy, ldy, map, first: vector, lanes: kernel.lanes() };
            sink.staged_tile(tile, kernel.nr(), &place);
        }
    }

    /// Finishes the tiles of several panels of equal height in one call, over the whole of K. The
    /// panels have the rows `of`. Where kernels do not store tiles themselves, it does nothing
    /// and returns false.
    fn panels<T: Element<Acc = A>>(
        &self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        tile: &mut [A],
        sink: &Sink<'_, '_, T>,
    ) -> bool {
        let Self { rows, columns, b, vector, ahead } = *self;
        let Some((mut y, epilogue, activation)) = self.direct(kernel, of.clone(), sink) else { return false };
        let (panels, a) = (of.len() / kernel.mr(), &rows.a[of.start * rows.k_total..of.end * rows.k_total]);
        let (koff, y, ldy, map) = (columns.koff, &mut y, columns.ldy, columns.map);
        kernel.activate_panels(panels, a, b, koff, ahead, tile, false, y, ldy, map, vector, &epilogue, activation);
        true
    }

    /// Where a kernel stores the rows `of` of the group itself, and what follows its sums. None where
    /// kernels do not store tiles themselves.
    #[inline(always)]
    fn direct<'s, T: Element<Acc = A>>(
        &'s self,
        kernel: &SpatialKernel<A>,
        of: Range<usize>,
        sink: &'s Sink<'_, '_, T>,
    ) -> Option<WholeStore<'s, A>> {
        let Columns { at, ldy, map, .. } = *self.columns;
        let (at, rows) = (at + of.start * ldy, of.len());
        let vectors = map.columns().iter().skip(self.vector).take(kernel.nrv());
        let stores = vectors.map(move |v| Stores::row(at + v.offset, v.mask.count_ones() as usize).times(rows, ldy));
        sink.whole(at, &self.rows.bias[of], stores)
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

    /// Whether storing takes longest in a product of `k` steps. It is faster along rows of Y than
    /// across them, and so [`multiply`](Self::multiply) takes one panel after the other over all
    /// columns, where these are more than one tile is wide.
    fn is_store_bound(&self, k: usize) -> bool {
        k <= FEW_STEPS && self.panels.start(self.panels.count()) >= MANY_ROWS
    }

    /// Multiplies panels of A by columns. All panels take their turn on columns one tile wide,
    /// which stay in the L1 cache.
    ///
    /// `tiles` keeps the sums between blocks of K. Calls for the same columns must pass the same
    /// part of it, and the same `range`.
    pub(crate) fn multiply<E: Element<Acc = T>>(
        &self,
        rows: &Rows<'_, T>,
        columns: &Columns<'_, T>,
        tiles: &mut [T],
        sink: &Sink<'_, '_, E>,
    ) where
        T: crate::element::Compute,
    {
        let blocked = !rows.is_whole();
        let (first_row, vectors) = (self.panels.start(rows.panels.start), columns.range.len());
        // Panels of A that stay in the L2 cache while all columns pass.
        let panel_bytes = rows.k.len() * self.mr() * size_of::<T>();
        let share = (self.a_block_bytes / panel_bytes.max(1)).max(1);
        let count = rows.panels.len().div_ceil(rows.panels.len().div_ceil(share).max(1)).max(1);
        // Columns that are one tile wide have no long rows to go along.
        let is_wide = vectors > self.widest();
        let count = if is_wide && self.is_store_bound(rows.k.len()) { 1 } else { count };
        let exceeds = |bytes: usize| panel_bytes * rows.panels.len() > bytes;
        let (is_large, is_far) = (exceeds(self.large_bytes), exceeds(self.far_bytes));
        // Each panel fetches another line of the columns that come next.
        let (mut line, mut turns) = (0, 0);
        for first in rows.panels.clone().step_by(count) {
            let group = first..(first + count).min(rows.panels.end);
            self.for_each(group.clone(), vectors, |kernel, run, vector| {
                // Without steps of k, B has no rows: nothing is read.
                let b = columns.b.get(vector * self.lanes..).unwrap_or(&[]);
                let (height, at) = (kernel.mr(), columns.range.start + vector);
                let of = self.panels.start(run.start)..self.panels.start(run.end);
                let operands = |ahead| Operands { rows, columns, b, vector: at, ahead };
                // With the first columns of a block, panels may come from far away: other layers
                // may have been there since the last run. Then the next panel of A is fetched instead
                // of columns.
                let fetches_a = is_far || (is_large && at == 0);
                // Several panels follow one another in memory with all their steps.
                let is_one_call = !blocked && !fetches_a && rows.k.len() == rows.k_total;
                if is_one_call && operands(columns.ahead.turns(turns)).panels(kernel, of, tiles, sink) {
                    turns += run.len();
                    return;
                }
                for panel in run {
                    let row = self.panels.start(panel);
                    let a = row * rows.k_total;
                    let a = &rows.a[a + rows.k.start * height..a + rows.k.end * height];
                    let kept = if blocked { ((row - first_row) * vectors + height * vector) * self.lanes } else { 0 };
                    let tile = &mut tiles[kept..kept + height * kernel.nr()];
                    let ahead = if fetches_a {
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

    /// Calls `tiles(kernel, run of panels, first vector)` for each width of columns and each run
    /// of panels of equal height among `panels`.
    #[inline]
    pub(crate) fn for_each(
        &self,
        panels: Range<usize>,
        vectors: usize,
        mut tiles: impl FnMut(&'static SpatialKernel<T>, Range<usize>, usize),
    ) {
        let [taller, lower] = self.panels.runs(&panels);
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

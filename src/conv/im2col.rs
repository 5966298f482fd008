//! Conv with an im2col matrix, made a tile of columns at a time, and a BLAS: the textbook lowering.
//!
//! M = M/group, K = C/group * kernel volume (channels, then taps, the order of W), N = output positions,
//! for each image and group; M and K in blocks of at most [`MOST_ROWS_AND_STEPS`]. Accepts every Conv.
//! Scratch of a task: a tile of the matrix and one of the product, each of at most [`tile_bytes`] or
//! [`LEAST_COLUMNS`] columns.

use alloc::boxed::Box;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::layout::WeightLayout;
use super::macro_kernel::products_work;
use super::shares::{GemmSplit, Part};
use super::store::Finish;
use super::view;
use crate::Geometry;
use crate::blas::{BlockedGemm, Blocks, Tiles};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine};
use crate::units::Count;

/// Bytes of a tile of the matrix, and of the product, about. Both stay in the L2 cache.
fn tile_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}
/// Columns of a tile, at least. With fewer, the kernels of a BLAS could not share their loads.
const LEAST_COLUMNS: usize = 64;
/// Columns of a tile, at least, if the limit of the workspace excludes more: a slow product is better
/// than none.
const LEAST_LIMITED_COLUMNS: usize = 16;
/// Columns of a tile, at most. They bound the tiles of layers with few rows and steps of K.
const MOST_COLUMNS: usize = 4096;
/// Rows of a product and steps of K, at most: a layer may have millions of channels, and tiles of
/// [`LEAST_COLUMNS`] then take half a MiB (in f64 twice that). It must not depend on the machine,
/// because packed weights depend on it. Each block of rows makes the matrix again, which costs little
/// beside the product.
const MOST_ROWS_AND_STEPS: usize = 2048;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas, most_bytes: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let k_total = geometry.in_channels_per_group() * geometry.kernel_volume();
    let (rows, k) = (
        Blocks::new(geometry.out_channels_per_group(), MOST_ROWS_AND_STEPS),
        Blocks::new(k_total, MOST_ROWS_AND_STEPS),
    );
    let positions = geometry.output_spatial();
    let tile_bytes = tile_bytes(machine);
    let columns = tile_bytes.min(most_bytes) / size_of::<T::Acc>() / rows.size().max(k.size());
    let least = if most_bytes < tile_bytes { LEAST_LIMITED_COLUMNS } else { LEAST_COLUMNS };
    let columns = Blocks::new(positions, columns.clamp(least, MOST_COLUMNS));

    let packed = match request.layout {
        None => None,
        Some(WeightLayout::Blas { blas: packed, panels }) if *packed == blas => Some(*panels),
        Some(other) => return Err(other.mismatch()),
    };
    let gemm = BlockedGemm::<T::Acc>::new((blas, machine), (rows, k, columns.size()), packed)?;

    let (images, groups, panels) = (geometry.batch, geometry.group, rows.count());
    let split = GemmSplit { images, groups, columns: columns.count(), panels, shares: panels };

    let mut scratch = Ledger::default();
    let [matrix, product, tile] = gemm.lens();
    let pieces = [scratch.book("im2col matrix", matrix), scratch.book("product", product), scratch.book("tile", tile)];
    let elements = k_total as f64 * geometry.output_len() as f64 / rows.size() as f64;
    let recipe = Recipe {
        kernel: gemm.kernel(),
        details: alloc::format!(
            "{}, {} at a time, K in blocks of {}",
            gemm.kernel(),
            Count(columns.size(), "column"),
            k.size()
        ),
        layout: WeightLayout::Blas { blas, panels: gemm.layout() },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: products_work(request, (positions, columns.size())) + Item::IM2COL_ELEMENTS.times(elements),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let geometry = geometry.clone();
        Box::new(Im2col { geometry, isa, finish, gemm, rows, columns, split, pieces })
    });
    Ok(Offer { recipe, build })
}

struct Im2col<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    gemm: BlockedGemm<T::Acc>,
    rows: Blocks,
    columns: Blocks,
    /// A share of the panels is one block of rows.
    split: GemmSplit,
    /// A tile of the matrix, one of the product, and the scratch of the backend.
    pieces: [Piece<T::Acc>; 3],
}

impl<T: Element> Split for Im2col<T> {
    fn tasks(&self) -> usize {
        self.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.split.part(task);
        patch(part.patch(&self.geometry, self.rows.range(part.panels.start), self.columns.range(part.columns)));
    }
}

impl<T: Element> Lowering<T> for Im2col<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let k_total = self.geometry.in_channels_per_group() * self.geometry.kernel_volume();
        let rows = self.geometry.out_channels_per_group();
        self.gemm.pack(self.geometry.group, packed, |group, row, k| w[(group * rows + row) * k_total + k].to_acc());
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.split.part(task);
        let (block, columns) = (panels.start, self.columns.range(columns));
        let mut arena = Arena::new(scratch);
        let [matrix, product, tile] = self.pieces.map(|piece| arena.get(piece));
        let channels = geometry.in_channels_per_group();
        let x = &io.x[geometry.input_offset(image, group * channels, 0)..];
        let tiles = Tiles { b: matrix, c: &mut *product, tile };
        self.gemm.multiply(io.weights, (group, block), columns.len(), tiles, |k, matrix| {
            self.make_columns(x, &k, &columns, matrix);
        });
        let store = self.finish.store(io);
        let first = group * geometry.out_channels_per_group();
        for (row, sums) in self.rows.range(block).zip(product.chunks_exact_mut(self.gemm.ld)) {
            store.row(&mut sums[..columns.len()], (image, first + row, columns.start));
        }
    }
}

impl<T: Element> Im2col<T> {
    /// Makes rows `k` of the im2col matrix for some output positions, a run of outputs of the last axis
    /// at a time.
    fn make_columns(&self, x: &[T], k: &Range<usize>, positions: &Range<usize>, matrix: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (taps, spatial) = (geometry.kernel_volume(), geometry.input_spatial());
        let (last, outer) = geometry.axes.split_last().expect("a geometry has an axis");
        for (row, columns) in k.clone().zip(matrix.chunks_exact_mut(self.gemm.ld)) {
            let (channel, tap) = (row / taps, row % taps);
            let x = &x[channel * spatial..(channel + 1) * spatial];
            let mut done = 0;
            while done < positions.len() {
                let position = positions.start + done;
                let o = position % last.output;
                let run = (last.output - o).min(positions.len() - done);
                let out = &mut columns[done..done + run];
                done += run;
                let rows = (position / last.output, tap / last.kernel);
                let source = view::row_met(outer, rows, |i| outer[i].output, |i| 0..outer[i].input);
                let width = if source.is_some() { last.input } else { 0 };
                let seen = view::meeting(last, tap % last.kernel, o..o + run, &(0..width));
                out[..seen.start - o].fill(T::Acc::ZERO);
                out[seen.end - o..].fill(T::Acc::ZERO);
                if let Some(source) = source.filter(|_| !seen.is_empty()) {
                    let first = seen.start * last.stride + tap % last.kernel * last.dilation - last.pad_begin;
                    let x = &x[source * last.input + first..];
                    stream::widen_strided(self.isa, x, last.stride, &mut out[seen.start - o..seen.end - o]);
                }
            }
        }
    }
}

//! Conv with the im2col matrix made, a tile of columns at a time, and multiplied by a BLAS: the
//! textbook lowering.
//!
//! M = M/group, K = C/group * kernel volume (channels, then taps, as W lies), N = output positions,
//! for each image and group; M and K in blocks of at most [`MOST_ROWS_AND_STEPS`]. Accepts every
//! Conv. Scratch for a task: a tile of the im2col matrix and one of the product, each of at most
//! [`tile_bytes`] or [`LEAST_COLUMNS`] columns.

use alloc::boxed::Box;
use core::ops::Range;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::engine::products_work;
use super::layout::WeightLayout;
use super::shares::{GemmSplit, Part};
use super::sink::Finish;
use crate::Geometry;
use crate::blas::{self, Blocks, Gemm, Product, Size};
use crate::choice::Blas;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine};
use crate::units::Count;

/// Bytes of a tile of the im2col matrix, about, and of a tile of the product: both stay in the L2
/// cache.
fn tile_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}
/// The fewest columns of a tile. With fewer, a product would be too narrow for the kernels of a
/// BLAS to share their loads.
const LEAST_COLUMNS: usize = 64;
/// The fewest columns of a tile under a limit of the workspace that excludes wider ones: a slow
/// product is better than none.
const LEAST_LIMITED_COLUMNS: usize = 16;
/// The most columns of a tile. They bound the tiles of layers with few rows and steps of K.
const MOST_COLUMNS: usize = 4096;
/// The most rows of a product and steps of K, so that tiles of [`LEAST_COLUMNS`] take half a MiB
/// (in f64 twice that): a layer may have millions of channels. Packed weights depend on it, and so
/// it depends on no machine. Each row block makes the im2col matrix again, which then costs little
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
    let ld = blas::leading_dimension(columns.size());

    let packed = match request.layout {
        None => [None; 2],
        Some(WeightLayout::Blas { blas: packed, panels }) if *packed == blas => panels.map(Some),
        Some(other) => return Err(other.mismatch()),
    };
    let backend = |rows: usize, packed: Option<usize>| {
        blas::backend::<T::Acc>(blas, machine, Size { rows, k: k.size(), ld }, packed)
    };
    let backends = [backend(rows.size(), packed[0])?, backend(rows.last().len(), packed[1])?];

    let (images, groups, panels) = (geometry.batch, geometry.group, rows.count());
    let split = GemmSplit { images, groups, columns: columns.count(), panels, shares: panels };

    let mut scratch = Ledger::default();
    let matrix = scratch.book("im2col matrix", k.size() * ld);
    let product = scratch.book("product", rows.size() * ld);
    let tile = scratch.book("tile", backends[0].tile_len.max(backends[1].tile_len));
    let elements = k_total as f64 * geometry.output_len() as f64 / rows.size() as f64;
    let recipe = Recipe {
        kernel: backends[0].kernel,
        details: alloc::format!(
            "{}, {} at a time, K in blocks of {}",
            backends[0].kernel,
            Count(columns.size(), "column"),
            k.size()
        ),
        layout: WeightLayout::Blas { blas, panels: [backends[0].layout, backends[1].layout] },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: products_work(request, (positions, columns.size()), Item::Im2colFmas)
            + machine.work(Item::Im2colElements, elements),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let gemms = backends.map(|backend| (backend.build)());
        let geometry = geometry.clone();
        Box::new(Im2col { geometry, isa, finish, gemms, rows, k, columns, split, ld, matrix, product, tile })
    });
    Ok(Offer { recipe, build })
}

struct Im2col<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    /// For a full block of rows, and for the last one.
    gemms: [Box<dyn Gemm<T::Acc>>; 2],
    rows: Blocks,
    k: Blocks,
    columns: Blocks,
    /// A share of the panels is one block of rows.
    split: GemmSplit,
    /// Elements from one row of a tile to the next.
    ld: usize,
    matrix: Piece<T::Acc>,
    product: Piece<T::Acc>,
    /// Scratch of the backend.
    tile: Piece<T::Acc>,
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
        let k_total = self.k.last().end;
        for group in 0..self.geometry.group {
            for index in 0..self.rows.count() {
                for k in self.k.iter() {
                    let (rows, range) = self.packed_range(group, index, &k);
                    self.gemm(index).pack(k.len(), &mut packed[range], &|row, p| {
                        w[(rows.start + row) * k_total + k.start + p].to_acc()
                    });
                }
            }
        }
    }

    /// One tile of columns of one block of rows of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.split.part(task);
        let (index, columns) = (panels.start, self.columns.range(columns));
        let mut arena = Arena::new(scratch);
        let (matrix, product, tile) = (arena.get(self.matrix), arena.get(self.product), arena.get(self.tile));
        let channels = geometry.in_channels_per_group();
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        for k in self.k.iter() {
            self.make_columns(x, &k, &columns, matrix);
            let (_, range) = self.packed_range(group, index, &k);
            let (packed, accumulate) = (&io.weights[range], k.start > 0);
            let operands = Product { packed, k: k.len(), b: matrix, n: columns.len(), accumulate };
            self.gemm(index).multiply(operands, product, tile);
        }
        let sink = self.finish.sink(io);
        let first = group * geometry.out_channels_per_group();
        for (row, sums) in self.rows.range(index).zip(product.chunks_exact_mut(self.ld)) {
            let channel = first + row;
            let at = (image * geometry.out_channels + channel) * geometry.output_spatial() + columns.start;
            sink.row(&mut sums[..columns.len()], io.bias[channel], at);
        }
    }
}

impl<T: Element> Im2col<T> {
    /// The GEMM of a block of rows.
    fn gemm(&self, index: usize) -> &dyn Gemm<T::Acc> {
        &*self.gemms[usize::from(index + 1 == self.rows.count())]
    }

    /// Returns the rows of W that block `index` of a group has, and where the packed weights of
    /// these rows are for the block `k` of K.
    fn packed_range(&self, group: usize, index: usize, k: &Range<usize>) -> (Range<usize>, Range<usize>) {
        let (rows, k_total) = (self.rows.range(index), self.k.last().end);
        let first = group * self.geometry.out_channels_per_group() + rows.start;
        let at = |k: usize| first * k_total + rows.len() * k;
        (first..first + rows.len(), at(k.start)..at(k.end))
    }

    /// Makes rows `k` of the im2col matrix for the output positions `positions`: in each row one
    /// run of outputs of the last axis at a time.
    fn make_columns(&self, x: &[T], k: &Range<usize>, positions: &Range<usize>, matrix: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (taps, spatial) = (geometry.kernel_volume(), geometry.input_spatial());
        let last = &geometry.axes[geometry.axes.len() - 1];
        for (row, columns) in k.clone().zip(matrix.chunks_exact_mut(self.ld)) {
            let (channel, tap) = (row / taps, row % taps);
            let x = &x[channel * spatial..(channel + 1) * spatial];
            let reach = tap % last.kernel * last.dilation;
            let mut done = 0;
            while done < positions.len() {
                let position = positions.start + done;
                let o = position % last.output;
                let run = (last.output - o).min(positions.len() - done);
                let out = &mut columns[done..done + run];
                done += run;
                let Some(source) = source_row(geometry, position / last.output, tap / last.kernel) else {
                    out.fill(T::Acc::ZERO);
                    continue;
                };
                let x = &x[source * last.input..(source + 1) * last.input];
                // Outputs o + e of the run that see an input element: pad_begin <= begin + e *
                // stride < pad_begin + input.
                let begin = o * last.stride + reach;
                let from = last.pad_begin.saturating_sub(begin).div_ceil(last.stride).min(run);
                let to = (last.pad_begin + last.input).saturating_sub(begin).div_ceil(last.stride).clamp(from, run);
                out[..from].fill(T::Acc::ZERO);
                out[to..].fill(T::Acc::ZERO);
                if from < to {
                    let x = &x[begin + from * last.stride - last.pad_begin..];
                    stream::widen_strided(self.isa, x, last.stride, &mut out[from..to]);
                }
            }
        }
    }
}

/// The row of X, over the axes before the last, that a row of outputs sees through a tap; none
/// where it is padding.
fn source_row(geometry: &Geometry, mut outputs: usize, mut tap: usize) -> Option<usize> {
    let (mut at, mut step) = (0, 1);
    for axis in geometry.axes[..geometry.axes.len() - 1].iter().rev() {
        let (o, k) = (outputs % axis.output, tap % axis.kernel);
        (outputs, tap) = (outputs / axis.output, tap / axis.kernel);
        let i = (o * axis.stride + k * axis.dilation).checked_sub(axis.pad_begin)?;
        if i >= axis.input {
            return None;
        }
        // Wraps only beside an axis without positions, where the row is padding in the end.
        at = i.wrapping_mul(step).wrapping_add(at);
        step = step.wrapping_mul(axis.input);
    }
    Some(at)
}

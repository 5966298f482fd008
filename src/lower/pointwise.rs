//! Conv with a 1x1 kernel, stride 1 and no padding: GEMM on X as it stands.
//!
//! M = M/group, K = C/group, N = input positions, for each image and group. Row k of B is channel k
//! of X: read in place, unless many panels of A share it and its rows fall into the same cache
//! sets, or begin beside cache lines; then, and for 16-bit types, through a packed panel. Scratch
//! for a task: one panel, and the sums of its columns where K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

use convoke_kernels::stream;
use convoke_kernels::{Ahead, Isa, RowOffsets, SpatialKernel, StoreMap};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::engine::{Columns, Rows, SpatialTiles, lanes};
use super::layout::WeightLayout;
use super::shares::{GemmSplit, Part, TASKS_PER_THREAD, even_share};
use super::sink::Finish;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Kind, Machine, Work};
use crate::units::Count;
use crate::{Axis, Geometry};

/// Steps of k in a block, at most: a panel of B of 32 columns of `f32` then just fills the L1
/// cache.
fn most_steps(machine: &Machine) -> usize {
    machine.l1_bytes / (32 * size_of::<f32>())
}
/// Panels of A from which on packing B can pay: each reads it once more.
const PACK_PANELS: usize = 3;
/// The same where X does not begin at a cache line, though its rows are whole lines: every vector
/// that is read in place then crosses into the next one.
const PACK_PANELS_OFF_LINE: usize = 8;
/// Rows of X whose distance is a multiple of this many bytes fall into a quarter of the L1 cache's
/// sets, or fewer, and drive one another out; otherwise reading them in place is as fast as reading
/// a packed panel, and the packing is saved.
const CONFLICT_BYTES: usize = 1024;
/// Rows of X whose lines stay in the L1 cache, even if they fall into the same set.
const FEW_ROWS: usize = 8;
/// The share of the time with blocks of columns that shares of panels must stay below.
const WORTH_IT: f64 = 0.97;
/// Bytes of the sums of one task, at most: with a block of A they stay in the L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

/// Conv with kernel 1, stride 1 and no padding.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    for (i, axis) in geometry.axes.iter().enumerate() {
        let Axis { kernel, stride, pad_begin, pad_end, .. } = axis;
        if (*kernel, *stride, pad_begin + pad_end) != (1, 1, 0) {
            return Err(alloc::format!(
                "spatial axis {i} has kernel {kernel}, stride {stride}, pads {pad_begin} + {pad_end}, only kernel 1, stride 1 and no padding can be"
            ));
        }
    }
    Ok(())
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let (k_total, positions) = (geometry.in_channels_per_group(), geometry.input_spatial());
    let kc = k_total.div_ceil(k_total.div_ceil(most_steps(machine)).max(1));
    if u32::try_from(kc.saturating_mul(positions)).is_err() {
        return Err(alloc::format!("{kc} rows of X, of {positions} positions each, exceed 32-bit offsets"));
    }
    let tiles = tiles(request, kc)?;
    let source = Source::new::<T>(geometry, &tiles);
    let blocking = PointwiseSearch { request, tiles: &tiles, source, kc, most_bytes }.best();

    let mut scratch = Ledger::default();
    let panel = scratch.book("panel of B", kc * tiles.widest() * tiles.lanes);
    let vectors = blocking.task_vectors.min(positions.div_ceil(tiles.lanes));
    let sums = scratch.book("sums", tiles.scratch_len(0..blocking.split.share_panels(), vectors, blocking.k_blocks));
    let recipe = Recipe {
        kernel: tiles.name(),
        details: alloc::format!(
            "{}, X {source}, K in blocks of {kc}, columns in {}, weights in {}",
            tiles.describe(),
            Count(blocking.split.columns, "part"),
            Count(blocking.split.shares, "part")
        ),
        layout: WeightLayout::Panels { mr: tiles.mr() },
        packed_len: geometry.weight_len(),
        tasks: blocking.split.tasks(),
        scratch,
        work: blocking.work(request, &tiles, source),
    };
    let build: Build<'a, T> = Box::new(move || {
        let task_vectors = blocking.task_vectors;
        let in_place = (0..kc).map(|k| u32::try_from(k * positions).expect("checked above")).collect();
        let last = positions - (blocking.split.columns - 1) * task_vectors * tiles.lanes;
        Box::new(Pointwise {
            geometry: geometry.clone(),
            isa: request.isa(),
            finish: Finish::new(request),
            packed: RowOffsets::packed(kc, tiles.widest() * tiles.lanes),
            in_place: RowOffsets::new(in_place),
            maps: [(task_vectors * tiles.lanes).min(positions), last]
                .map(|columns| StoreMap::contiguous(columns, tiles.lanes)),
            tiles,
            blocking,
            source,
            panel,
            sums,
        })
    });
    Ok(Offer { recipe, build })
}

/// The cheapest tile: one whose panel of B leaves the L1 cache counts for more than its cycles.
fn tiles<T: Element>(request: &Request<'_, T>, kc: usize) -> Result<SpatialTiles<T::Acc>, String> {
    let (geometry, machine) = (request.geometry, request.machine);
    let mr = match request.layout {
        None => None,
        Some(WeightLayout::Panels { mr }) => Some(*mr),
        Some(other) => return Err(other.mismatch()),
    };
    let weight = |kernel: &SpatialKernel<T::Acc>| {
        let is_near = kc * kernel.nr() * size_of::<T::Acc>() <= machine.l1_bytes;
        if is_near { 1.0 } else { machine.prices().far_panel }
    };
    let vectors = geometry.input_spatial().div_ceil(lanes::<T::Acc>(request.isa()));
    SpatialTiles::choose(machine, geometry.out_channels_per_group(), vectors, mr, weight)
        .ok_or_else(|| String::from("no kernel for this tile"))
}

/// How the product is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Blocking {
    /// Steps of k in a block, and blocks.
    kc: usize,
    k_blocks: usize,
    /// Vectors of columns of a task.
    task_vectors: usize,
    split: GemmSplit,
}

/// The search for the best cut.
struct PointwiseSearch<'a, T: Element> {
    request: &'a Request<'a, T>,
    tiles: &'a SpatialTiles<T::Acc>,
    source: Source,
    /// Steps of k in a block.
    kc: usize,
    /// Bytes that the sums of a task take at most.
    most_bytes: usize,
}

impl<T: Element> PointwiseSearch<'_, T> {
    /// The cut whose busiest thread ends first: threads share out the columns, or the panels.
    fn best(&self) -> Blocking {
        let (threads, by_columns) = (self.request.threads, self.by_columns());
        if threads == 1 || threads > self.tiles.panels.count() {
            return by_columns;
        }
        let by_panels = self.by_panels();
        // Of columns there are several tasks for each thread, which is better if a thread is late.
        let is_sooner = self.latency_cycles(&by_panels) < WORTH_IT * self.latency_cycles(&by_columns);
        if is_sooner { by_panels } else { by_columns }
    }

    /// Columns of a task are whole tiles, enough for every thread to have a few tasks.
    fn by_columns(&self) -> Blocking {
        let Self { request, tiles, .. } = self;
        let (geometry, threads, widest) = (request.geometry, request.threads, tiles.widest());
        let (vectors, images) = (self.vectors(), geometry.batch * geometry.group);
        let of_task = (vectors * images).div_ceil(if threads == 1 { 1 } else { TASKS_PER_THREAD * threads });
        let most_tiles = self.most_vectors(1).min(of_task).div_ceil(widest);
        let task_vectors = even_share(vectors.div_ceil(widest), most_tiles, images, threads) * widest;
        let blocks = images * vectors.div_ceil(task_vectors);
        let shares =
            if threads == 1 { 1 } else { (2 * threads).div_ceil(blocks).clamp(1, tiles.panels.count().max(1)) };
        self.blocking(task_vectors, shares)
    }

    /// Each thread has a share of the panels, for as many columns as the sums of a task allow. So
    /// threads write whole rows of Y. Where rows are cut, two threads write the cache line in which
    /// one ends and the other begins.
    fn by_panels(&self) -> Blocking {
        let (shares, widest) = (self.request.threads, self.tiles.widest());
        let most_tiles = self.most_vectors(shares).min(self.vectors()).div_ceil(widest);
        self.blocking(most_tiles.max(1) * widest, shares)
    }

    /// Blocks of `task_vectors` vectors of columns, and panels in `shares` shares.
    fn blocking(&self, task_vectors: usize, shares: usize) -> Blocking {
        let Self { request, tiles, kc, .. } = *self;
        let (geometry, k_total) = (request.geometry, request.geometry.in_channels_per_group());
        let (columns, panels) = (self.vectors().div_ceil(task_vectors), tiles.panels.count());
        Blocking {
            kc,
            k_blocks: k_total.div_ceil(kc.max(1)).max(1),
            task_vectors,
            split: GemmSplit { images: geometry.batch, groups: geometry.group, columns, panels, shares },
        }
    }

    /// Cycles until the busiest thread is done. Beside its tasks, it reads what other threads read
    /// too: the weights, or with several shares of them the columns.
    fn latency_cycles(&self, blocking: &Blocking) -> f64 {
        let Self { request, tiles, .. } = self;
        let (geometry, machine, threads) = (request.geometry, request.machine, request.threads);
        let Blocking { split, task_vectors, .. } = blocking;
        let of_part = |part: &Part| {
            let columns = (self.vectors() - part.columns * task_vectors).min(*task_vectors);
            tiles.panels.rows(&part.panels).len() * columns
        };
        let own = blocking.work(request, tiles, self.source) * (split.unevenness(threads, of_part) / threads as f64);
        let read = if split.shares == 1 {
            let groups = (geometry.batch * geometry.group).div_ceil(threads).min(geometry.group);
            (geometry.weight_len() / geometry.group) as f64 * groups as f64 * size_of::<T::Acc>() as f64
        } else {
            geometry.input_len() as f64 * size_of::<T>() as f64
        };
        let reading = read / machine.l3_bytes_per_cycle;
        machine.together(own, Work::of(Kind::Fetches, reading)).cycles()
    }

    /// Vectors of columns of an image.
    fn vectors(&self) -> usize {
        self.request.geometry.input_spatial().div_ceil(self.tiles.lanes)
    }

    /// Vectors of columns whose sums a task keeps in the L2 cache, with panels in `shares` shares.
    fn most_vectors(&self, shares: usize) -> usize {
        let panels = &self.tiles.panels;
        let rows = panels.rows(&(0..panels.count().div_ceil(shares))).len();
        let bytes = sums_bytes(self.request.machine).min(self.most_bytes);
        bytes / size_of::<T::Acc>() / self.tiles.lanes / rows.max(1)
    }
}

impl Blocking {
    /// What all tasks take.
    fn work<T: Element>(&self, request: &Request<'_, T>, tiles: &SpatialTiles<T::Acc>, source: Source) -> Work {
        let (geometry, machine) = (request.geometry, request.machine);
        let (rows, k_total) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let vectors = geometry.input_spatial().div_ceil(tiles.lanes);
        // As f64: hostile sizes may exceed usize.
        let packed = k_total as f64 * (vectors * tiles.lanes) as f64 * self.split.shares as f64;
        let packed = if source == Source::Packed { packed } else { 0.0 };
        let of_image = tiles.work(machine, vectors, k_total)
            + tiles.finish_work(machine, vectors, self.k_blocks)
            + machine.work(Item::PackedElements, packed)
            + machine.work(Item::KeptVectors, (self.k_blocks - 1) as f64 * (rows * vectors) as f64)
            + machine.work(Item::Tasks, 1.0);
        of_image * (geometry.batch * geometry.group) as f64
    }
}

/// Where kernels read the rows of B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// In a packed panel.
    Packed,
    /// In X itself.
    InPlace,
    /// In X itself, if the caller's X begins at a cache line. Only a run knows that address.
    InPlaceIfAligned,
}

impl Source {
    fn new<T: Element>(geometry: &Geometry, tiles: &SpatialTiles<T::Acc>) -> Self {
        let (row_bytes, panels) = (geometry.input_spatial() * size_of::<T>(), tiles.panels.count());
        let is_in_conflict = geometry.in_channels_per_group() > FEW_ROWS
            && row_bytes.is_multiple_of(CONFLICT_BYTES)
            && panels >= PACK_PANELS;
        if !T::DIRECT || is_in_conflict {
            Self::Packed
        } else if panels >= PACK_PANELS_OFF_LINE && row_bytes.is_multiple_of(Ahead::LINE) {
            Self::InPlaceIfAligned
        } else {
            Self::InPlace
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packed => "packed",
            Self::InPlace => "in place",
            Self::InPlaceIfAligned => "in place, packed where X does not begin at a cache line",
        })
    }
}

struct Pointwise<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    tiles: SpatialTiles<T::Acc>,
    blocking: Blocking,
    source: Source,
    /// Rows of a packed panel.
    packed: RowOffsets,
    /// Rows of X.
    in_place: RowOffsets,
    /// Where columns go: in a full block of them, and in the last one. Tables of the whole image
    /// would take memory, and time to plan, in proportion to it.
    maps: [StoreMap; 2],
    panel: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

impl<T: Element> Split for Pointwise<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let (positions, block_len) = (self.geometry.output_spatial(), self.blocking.task_vectors * self.tiles.lanes);
        let columns = part.columns * block_len..positions.min((part.columns + 1) * block_len);
        patch(part.patch(&self.geometry, self.tiles.panels.rows(&part.panels), columns));
    }
}

impl<T: Element> Lowering<T> for Pointwise<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (rows, k_total) = (self.geometry.out_channels_per_group(), self.geometry.in_channels_per_group());
        if rows * k_total == 0 {
            return;
        }
        for (w, packed) in w.chunks_exact(rows * k_total).zip(packed.chunks_exact_mut(rows * k_total)) {
            self.tiles.pack(k_total, packed, |row, k| w[row * k_total + k].to_acc());
        }
    }

    /// One share of the panels, for one block of columns of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let (geometry, lanes) = (&self.geometry, self.tiles.lanes);
        let Blocking { kc, k_blocks, task_vectors, split } = self.blocking;
        let widest = self.tiles.widest();
        let Part { image, group, columns: block, panels } = split.part(task);
        let (rows, k_total) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let positions = geometry.input_spatial();
        let mut arena = Arena::new(scratch);
        let (panel, sums) = (arena.get(self.panel), arena.get(self.sums));
        let sink = self.finish.sink(io);
        let x = &io.x[(image * geometry.in_channels + group * k_total) * positions..];
        let is_in_place = match self.source {
            Source::Packed => false,
            Source::InPlace => true,
            Source::InPlaceIfAligned => x.as_ptr().addr().is_multiple_of(Ahead::LINE),
        };
        let map = &self.maps[usize::from(block + 1 == split.columns)];
        let (vectors, start) = (map.columns().len(), block * task_vectors * lanes);
        let height = self.tiles.panels.start(panels.end) - self.tiles.panels.start(panels.start);
        // Without channels there is still the bias to be stored: one empty block.
        for k in (0..k_total.max(1)).step_by(kc.max(1)) {
            let rows = Rows {
                a: &io.weights[group * rows * k_total..(group + 1) * rows * k_total],
                k_total,
                k: k..(k + kc).min(k_total),
                panels: panels.clone(),
                bias: &io.bias[group * rows..(group + 1) * rows],
            };
            for first in (0..vectors).step_by(widest) {
                let range = first..(first + widest).min(vectors);
                let column = start + first * lanes;
                let x = x.get(k * positions + column..).unwrap_or(&[]);
                let nr = range.len() * lanes;
                let (b, koff) = match self.rows_in_place(x, nr).filter(|_| is_in_place) {
                    Some(x) => (x, &self.in_place),
                    None => {
                        // The kernels ask for a whole block of rows, of which the last block of k
                        // has fewer.
                        let (pitch, columns) = (widest * lanes, nr.min(positions - column));
                        let filled = &mut panel[..rows.k.len() * pitch];
                        stream::pack_rows(self.isa, x, positions, columns, pitch, filled);
                        (&*panel, &self.packed)
                    }
                };
                let columns = Columns {
                    b,
                    koff: koff.rows(0..rows.k.len()),
                    ahead: Ahead::rows(x.get(nr..).unwrap_or(&[]), positions),
                    map,
                    range,
                    at: (image * geometry.out_channels + group * rows.bias.len()) * positions + start,
                    ldy: positions,
                };
                let kept = if k_blocks > 1 { first * lanes * height } else { 0 };
                self.tiles.multiply(&rows, &columns, &mut sums[kept..], &sink);
            }
        }
    }
}

impl<T: Element> Pointwise<T> {
    /// The rows of B of `nr` columns in X, if kernels can read them: X has their type, and the
    /// vectors of the last row end within X.
    fn rows_in_place<'x>(&self, x: &'x [T], nr: usize) -> Option<&'x [T::Acc]> {
        let readable = (self.blocking.kc.max(1) - 1) * self.geometry.input_spatial() + nr;
        T::as_acc(x).filter(|x| x.len() >= readable)
    }
}

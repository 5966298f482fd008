//! Conv with a 1x1 kernel, stride 1 and no padding: GEMM on X as it stands.
//!
//! M = M/group, K = C/group, N = input positions, for each image and group. Row k of B is channel k
//! of X: read in place, unless many panels of A share it and its rows fall into the same cache
//! sets, or begin beside cache lines; then, and for 16-bit types, through a packed panel. Scratch
//! for a task: one panel, and the sums of its columns where K has several blocks.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::stream;
use convoke_kernels::{Ahead, Isa, RowOffsets, SpatialKernel, StoreMap};

use super::engine::{Columns, Rows, Tiles, lanes};
use super::sink::Finish;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::contract::{Answer, Io, Layout, Lowering, Offer, Request};
use crate::lower::shares::{Part, even_share};
use crate::machine::Machine;
use crate::{Axis, Geometry, Op};

/// Steps of k in a block, at the most: a panel of B of 32 columns of `f32` then just fills the L1
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
/// Steps of k up to which more than one tile's width of columns is multiplied in one call (3 to 64
/// channels, 225x225: 66 instead of 55 GFLOP/s; from 24 steps on nothing is gained, and with 64 it
/// is 5 % slower).
const STRIP_STEPS: usize = 16;
/// Bytes of the sums of one task, at the most: with a block of A they stay in the L2 cache.
fn sums_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 4
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let prices = machine.prices();
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if let Some(axis) =
        geometry.axes.iter().position(|a| a.kernel != 1 || a.stride != 1 || a.pad_begin + a.pad_end != 0)
    {
        let Axis { kernel, stride, pad_begin, pad_end, .. } = geometry.axes[axis];
        let found = alloc::format!("kernel {kernel}, stride {stride}, pads {pad_begin} + {pad_end}");
        return Err(alloc::format!("spatial axis {axis} has {found}, only kernel 1, stride 1 and no padding can be"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let (rows, k_total, positions) =
        (geometry.out_channels_per_group(), geometry.in_channels_per_group(), geometry.input_spatial());
    let lanes = lanes::<T::Acc>(request.isa());
    let vectors = positions.div_ceil(lanes);
    let mr = request.layout.map(|layout| layout[0]);
    let k_blocks = k_total.div_ceil(most_steps(machine)).max(1);
    let kc = k_total.div_ceil(k_blocks);
    let weight = |kernel: &SpatialKernel<T::Acc>| {
        let is_near = kc * kernel.nr() * size_of::<T::Acc>() <= machine.l1_bytes;
        if is_near { 1.0 } else { prices.far_panel }
    };
    let tiles = Tiles::<T::Acc>::choose(machine, rows, vectors, mr, weight)
        .ok_or_else(|| String::from("no kernel for this tile"))?;
    if u32::try_from(kc.saturating_mul(positions)).is_err() {
        return Err(alloc::format!("{kc} rows of X, of {positions} positions each, exceed 32-bit offsets"));
    }
    // Columns of a task: whole tiles, enough for every thread to have a few tasks, the sums
    // bounded.
    let widest = tiles.widest();
    let images = geometry.batch * geometry.group;
    let bound = sums_bytes(machine).min(most) / size_of::<T::Acc>() / lanes / rows.max(1);
    let share = (vectors * images).div_ceil(if request.threads == 1 { 1 } else { 4 * request.threads });
    let most_tiles = bound.min(share).div_ceil(widest);
    let task_vectors = even_share(vectors.div_ceil(widest), most_tiles, images, request.threads) * widest;
    let blocks = vectors.div_ceil(task_vectors);
    let block_len = task_vectors.min(vectors) * lanes;
    let splits = if request.threads == 1 {
        1
    } else {
        (2 * request.threads).div_ceil(images * blocks).clamp(1, tiles.panels.count().max(1))
    };
    let in_conflict = k_total > FEW_ROWS
        && (positions * size_of::<T>()).is_multiple_of(CONFLICT_BYTES)
        && tiles.panels.count() >= PACK_PANELS;
    let is_packed = !T::DIRECT || in_conflict;
    // Vectors of columns that are multiplied in one call: where storing takes longest, all of a
    // task's, so that long rows of Y are written one after the other.
    let is_store_bound = T::DIRECT && k_total <= STRIP_STEPS && tiles.is_store_bound(k_total);
    let strip = if is_store_bound { task_vectors } else { widest };
    let panel_len = kc * strip * lanes;
    let share_panels = tiles.panels.count().div_ceil(splits);
    let tiles_len = tiles.scratch_len(0..share_panels, task_vectors.min(vectors), k_blocks);
    let packing = if is_packed { (k_total * vectors * lanes) as f64 * prices.pack_cycles * splits as f64 } else { 0.0 };
    let sums = (k_blocks - 1) as f64 * (rows * vectors) as f64 * prices.sum_cycles;
    let cycles = tiles.cycles(machine, vectors) * k_total as f64
        + tiles.finish_cycles(prices, vectors, k_blocks)
        + packing
        + sums
        + prices.task_cycles;
    Ok(Offer {
        cost: images as f64 * cycles / machine.clock_ghz,
        lines: lines_for::<T::Acc>(panel_len).saturating_add(lines_for::<T::Acc>(tiles_len)),
        build: Box::new(move || {
            let in_place = (0..kc).map(|k| u32::try_from(k * positions).expect("bounded above")).collect();
            Box::new(Pointwise {
                geometry: geometry.clone(),
                isa: request.isa(),
                finish: Finish::new(request),
                packed: RowOffsets::packed(kc, strip * lanes),
                in_place: RowOffsets::new(in_place),
                maps: [block_len.min(positions), positions - (blocks - 1) * block_len]
                    .map(|columns| StoreMap::contiguous(columns, lanes)),
                tiles,
                lanes,
                kc,
                strip,
                task_vectors,
                blocks,
                splits,
                is_packed,
                panel_len,
                tiles_len,
            })
        }),
    })
}

struct Pointwise<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    tiles: Tiles<T::Acc>,
    lanes: usize,
    /// Rows of a packed panel.
    packed: RowOffsets,
    /// Rows of X.
    in_place: RowOffsets,
    /// Where columns go: in a full block of them, and in the last one. Tables of the whole image
    /// would take memory, and time to plan, in proportion to it.
    maps: [StoreMap; 2],
    /// Steps of k in a block.
    kc: usize,
    /// Vectors of columns that are multiplied in one call.
    strip: usize,
    /// Vectors of columns of a task, and tasks along the columns.
    task_vectors: usize,
    blocks: usize,
    /// Shares that the panels of A are split into.
    splits: usize,
    is_packed: bool,
    panel_len: usize,
    tiles_len: usize,
}

impl<T: Element> Pointwise<T> {
    fn part(&self, task: usize) -> Part {
        let count = self.tiles.panels.count();
        Part::new((task, self.tasks()), self.geometry.group, self.blocks, count, self.splits)
    }
}

impl<T: Element> Split for Pointwise<T> {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group * self.blocks * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.part(task);
        let (positions, block_len) = (self.geometry.output_spatial(), self.task_vectors * self.lanes);
        let columns = part.columns * block_len..positions.min((part.columns + 1) * block_len);
        let panels = &self.tiles.panels;
        patch(part.patch(&self.geometry, panels.start(part.panels.start)..panels.start(part.panels.end), columns));
    }
}

impl<T: Element> Lowering<T> for Pointwise<T> {
    fn layout(&self) -> Layout {
        alloc::vec![self.tiles.mr()]
    }

    fn describe(&self) -> String {
        let b = if self.is_packed { "packed" } else { "in place" };
        alloc::format!(
            "{}, B {b}, K in blocks of {}, {} blocks of columns, panels in {} shares",
            self.tiles.describe(),
            self.kc,
            self.blocks,
            self.splits
        )
    }

    fn kernel(&self) -> &str {
        self.tiles.name()
    }

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
        let geometry = &self.geometry;
        let Part { image, group, columns: block, panels } = self.part(task);
        let count = self.tiles.panels.count();
        let (rows, k_total) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let positions = geometry.input_spatial();
        let mut arena = Arena::new(scratch);
        let panel = arena.take::<T::Acc>(self.panel_len);
        let tiles = arena.take::<T::Acc>(self.tiles_len);
        let height = self.tiles.panels.start(panels.end) - self.tiles.panels.start(panels.start);
        let sink = self.finish.sink(io);
        let x = &io.x[(image * geometry.in_channels + group * k_total) * positions..];
        let crosses_lines = count >= PACK_PANELS_OFF_LINE
            && !x.as_ptr().addr().is_multiple_of(Ahead::LINE)
            && (positions * size_of::<T>()).is_multiple_of(Ahead::LINE);
        let is_packed = self.is_packed || crosses_lines;
        let map = &self.maps[usize::from(block + 1 == self.blocks)];
        let vectors = map.columns().len();
        let start = block * self.task_vectors * self.lanes;
        let is_blocked = self.kc < k_total;
        // Without channels there is still the bias to be stored: one empty block.
        for k in (0..k_total.max(1)).step_by(self.kc.max(1)) {
            let k = k..(k + self.kc).min(k_total);
            let rows = Rows {
                a: &io.weights[group * rows * k_total..(group + 1) * rows * k_total],
                k_total,
                k: k.clone(),
                panels: panels.clone(),
                bias: &io.bias[group * rows..(group + 1) * rows],
            };
            for first in (0..vectors).step_by(self.strip) {
                let range = first..(first + self.strip).min(vectors);
                let column = start + first * self.lanes;
                let x = x.get(k.start * positions + column..).unwrap_or(&[]);
                let nr = range.len() * self.lanes;
                // In place only where the last row's vectors, too, end within X.
                let readable = (self.kc.max(1) - 1) * positions + nr;
                let (b, koff) = match T::as_acc(x).filter(|x| !is_packed && x.len() >= readable) {
                    Some(x) => (x, &self.in_place),
                    None => {
                        // The kernels ask for a whole block of rows, of which the last block of k
                        // has fewer.
                        let pitch = self.strip * self.lanes;
                        stream::pack_rows(
                            self.isa,
                            x,
                            positions,
                            nr.min(positions - column),
                            pitch,
                            &mut panel[..k.len() * pitch],
                        );
                        (&*panel, &self.packed)
                    }
                };
                let kept = if is_blocked { first * self.lanes * height } else { 0 };
                let columns = Columns {
                    b,
                    koff: koff.rows(0..k.len()),
                    ahead: Ahead::rows(x.get(nr..).unwrap_or(&[]), positions),
                    map,
                    range,
                    at: (image * geometry.out_channels + group * rows.bias.len()) * positions + start,
                    ldy: positions,
                };
                self.tiles.multiply(&rows, &columns, &mut tiles[kept..], &sink);
            }
        }
    }
}

//! Conv as GEMM with vectors along output positions, without an im2col matrix.
//!
//! M = M/group, K = C/group * kernel volume, N = output positions, for each image and group. K is
//! ordered by blocks of channels, then taps, then channels of the block. Accepts every Conv. Layers
//! differ only in the source of B ([`source`]):
//!
//! - For a 1x1 kernel of stride 1 without padding, rows of B are rows of X. They are read in place, or
//!   through a packed panel.
//! - Otherwise they are shifted views of padded planes, which are a copy of a block of channels for one
//!   chunk of the output ([`planes`]). Taps that see only padding are left out.
//!
//! Makes no offer if the offsets in B do not fit 32 bits. Scratch of a task: the planes or the panel,
//! and the sums of the chunk if K has several blocks.

mod search;
mod source;

use alloc::boxed::Box;
use core::ops::Range;

use convoke_kernels::{Isa, Prefetch, StoreMap};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use super::layout::WeightLayout;
use super::macro_kernel::{Columns, Rows, SpatialTiles};
use super::panels::StepOrder;
use super::shares::Part;
use super::store::{Finish, OutputStore};
use crate::Geometry;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::units::Count;
use search::{GemmBlocking, GemmChoice};
use source::GemmSource;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let GemmChoice { blocking, tiles, work } = GemmChoice::best(request, most_bytes)?;
    let split = blocking.split;
    let mut scratch = Ledger::default();
    let copy = scratch.book(blocking.source.name(), blocking.source.copy_len(blocking.k.size(), &tiles));
    let sums = scratch.book("sums", tiles.scratch_len(0..split.share_panels(), blocking.vectors, blocking.k_parts));
    let recipe = Recipe {
        kernel: tiles.name(),
        details: alloc::format!(
            "{}, X {}, K in blocks of {}, {}, weights in {}",
            tiles.describe(),
            blocking.source,
            blocking.k.size() * geometry.kernel_volume(),
            Count(split.columns, "chunk"),
            Count(split.shares, "part")
        ),
        layout: WeightLayout::Panels { mr: tiles.mr(), block: blocking.packed_block },
        packed_len: geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work,
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        let source = GemmSource::new(blocking.source, blocking.k, geometry, &tiles);
        let (maps, geometry) = (source.maps(tiles.lanes), geometry.clone());
        Box::new(Gemm { geometry, isa, finish, maps, tiles, blocking, source, copy, sums })
    });
    Ok(Offer { recipe, build })
}

struct Gemm<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    tiles: SpatialTiles<T::Acc>,
    blocking: GemmBlocking,
    source: GemmSource,
    /// Where columns go: of a full chunk, and of the last one along the axis that is cut.
    maps: [StoreMap; 2],
    copy: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

struct GemmTask<'a, 'io, T: Element> {
    io: &'a Io<'io, T>,
    store: OutputStore<'a, 'io, T>,
    group: usize,
    panels: Range<usize>,
    map: &'a StoreMap,
    /// Where row 0 of the group and the chunk's first column go in Y.
    at: usize,
}

impl<T: Element> Gemm<T> {
    /// The rows of A of a task, over the steps `k` of K, with whether these are the first and the last
    /// of K.
    fn rows<'a>(
        &self,
        task: &GemmTask<'a, '_, T>,
        k: Range<usize>,
        (is_first, is_last): (bool, bool),
    ) -> Rows<'a, T::Acc> {
        let (rows, group) = (self.geometry.out_channels_per_group(), task.group);
        let k_total = self.geometry.in_channels_per_group() * self.geometry.kernel_volume();
        Rows {
            a: &task.io.weights[group * rows * k_total..(group + 1) * rows * k_total],
            k_total,
            k,
            is_first,
            is_last,
            panels: task.panels.clone(),
            bias: &task.io.bias[group * rows..(group + 1) * rows],
        }
    }

    /// Multiplies planes of the input channels `channels`, a run of taps at a time.
    fn multiply_planes(
        &self,
        task: &GemmTask<'_, '_, T>,
        source: &source::SourcePlanes,
        channels: Range<usize>,
        planes: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let (width, all) = (channels.len(), self.geometry.in_channels_per_group());
        let (first, koff) = (channels.start * self.geometry.kernel_volume(), source.koff(width));
        let mut done = 0;
        for (i, taps) in source.taps.iter().enumerate() {
            let steps = done..done + taps.len() * width;
            done = steps.end;
            let is_last = channels.end == all && i + 1 == source.taps.len();
            let k = first + taps.start * width..first + taps.end * width;
            let rows = self.rows(task, k, (channels.start == 0 && i == 0, is_last));
            let columns = Columns {
                b: planes,
                koff: koff.rows(steps),
                prefetch: Prefetch::NONE,
                map: task.map,
                range: 0..task.map.columns().len(),
                at: task.at,
                ldy: self.geometry.output_spatial(),
            };
            self.tiles.multiply(&rows, &columns, sums, &task.store);
        }
    }

    /// Multiplies rows of `x` of the input channels `channels`, one tile's width at a time. `x` begins
    /// with the first channel and the chunk's first position; channels are `positions` elements apart.
    fn multiply_rows(
        &self,
        task: &GemmTask<'_, '_, T>,
        source: &source::SourceRows,
        channels: Range<usize>,
        (x, positions): (&[T], usize),
        (panel, sums): (&mut [T::Acc], &mut [T::Acc]),
    ) {
        let (lanes, widest, ldy) = (self.tiles.lanes, self.tiles.widest(), self.geometry.output_spatial());
        let height = self.tiles.panels.rows(&task.panels).len();
        let is_last = channels.end == self.geometry.in_channels_per_group();
        let rows = self.rows(task, channels.clone(), (channels.start == 0, is_last));
        let (vectors, reads_in_place) = (task.map.columns().len(), source.reads_in_place(x));
        for first in (0..vectors).step_by(widest) {
            let range = first..(first + widest).min(vectors);
            let (column, nr) = (first * lanes, range.len() * lanes);
            let x = x.get(column..).unwrap_or(&[]);
            let (b, koff) = match source.in_place(x, nr).filter(|_| reads_in_place) {
                Some(x) => (x, &source.in_place),
                None => {
                    source.pack(self.isa, x, (channels.len(), nr.min(positions - column)), panel);
                    (&*panel, &source.packed)
                }
            };
            let columns = Columns {
                b,
                koff: koff.rows(0..channels.len()),
                prefetch: Prefetch::rows(x.get(nr..).unwrap_or(&[]), ldy),
                map: task.map,
                range,
                at: task.at,
                ldy,
            };
            let kept = if rows.is_whole() { 0 } else { column * height };
            self.tiles.multiply(&rows, &columns, &mut sums[kept..], &task.store);
        }
    }
}

impl<T: Element> Split for Gemm<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        let (rows, positions) = (self.tiles.panels.rows(&part.panels), self.source.positions(part.columns));
        patch(part.patch(&self.geometry, rows, positions));
    }
}

impl<T: Element> Lowering<T> for Gemm<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let (taps, channels) = (self.geometry.kernel_volume(), self.geometry.in_channels_per_group());
        let (rows, k_total) = (self.geometry.out_channels_per_group(), channels * taps);
        if rows * k_total == 0 {
            return;
        }
        let (panels, order) = (&self.tiles.panels, StepOrder { channels, taps, block: self.blocking.packed_block });
        for (w, packed) in w.chunks_exact(rows * k_total).zip(packed.chunks_exact_mut(rows * k_total)) {
            for p in 0..panels.count() {
                let (first, height) = (panels.start(p) * k_total, panels.height(p));
                let (w, packed) = (&w[first..][..height * k_total], &mut packed[first..][..height * k_total]);
                order.pack(self.isa, w, (height, height), packed);
            }
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Part { image, group, columns, panels } = self.blocking.split.part(task);
        let mut arena = Arena::new(scratch);
        let (copy, sums) = (arena.get(self.copy), arena.get(self.sums));
        let (rows, channels) = (geometry.out_channels_per_group(), geometry.in_channels_per_group());
        let input = geometry.input_spatial();
        let (x, start) =
            (&io.x[geometry.input_offset(image, group * channels, 0)..], self.source.positions(columns).start);
        let task = GemmTask {
            io,
            store: self.finish.store(io),
            group,
            panels,
            map: &self.maps[usize::from(self.source.is_edge(columns))],
            at: geometry.output_offset(image, group * rows, start),
        };
        // Without channels, one empty block stores the bias.
        for block in self.blocking.k.iter() {
            let x = x.get(block.start * input..).unwrap_or(&[]);
            match &self.source {
                GemmSource::Planes(source) => {
                    let planes = &mut copy[..block.len() * source.planes.channel_len];
                    source.planes.fill(self.isa, &source.planes.chunk(columns), x, planes);
                    self.multiply_planes(&task, source, block, copy, sums);
                }
                GemmSource::Rows(source) => {
                    let x = x.get(start..).unwrap_or(&[]);
                    self.multiply_rows(&task, source, block, (x, input - start), (copy, sums));
                }
            }
        }
    }
}

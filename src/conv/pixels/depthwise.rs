//! Layers of groups with few channels, such as depthwise ones, with vectors along channels. With one channel of X and m
//! of Y a group, channel c of Y reads channel c / m of X. Groups with several channels of X have as many of Y, and are
//! parts of a vector.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::catalogue::pixel_depthwise_kernels;
use convoke_kernels::{DepthwisePixelKernel, Isa, MOST_GROUP, Real};

use super::chunk::{ChunkScratch, PixelChunk};
use super::rows::RowGroup;
use super::source::Widened;
use super::tiling::{PixelTiling, TileNeeds, XValues};
use crate::blas::Blocks;
use crate::conv::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use crate::conv::layout::WeightLayout;
use crate::conv::shares::{GemmSplit, Part, TASKS_PER_THREAD};
use crate::conv::store::{Finish, OutputStore, PixelPlace};
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Geometry, Layout, Op};

/// Channels of a block of weights, at most, if a group has no more: of small images, the rows that the next rows read
/// again stay near.
const MOST_CHANNELS: usize = 128;

/// The kernels, by pixels.
type DepthwiseHeights<A> = &'static [DepthwisePixelKernel<A>];

/// Whether each group has one channel of X, or a few of X and of Y, which are then parts of pixels.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let is_last = [geometry.x_layout, geometry.y_layout].contains(&Layout::ChannelsLast);
    match (geometry.in_channels_per_group(), geometry.out_channels_per_group()) {
        (1, _) => Ok(()),
        (c, m) if c == m && c.is_power_of_two() && c <= MOST_GROUP && is_last => Ok(()),
        (c, m) => Err(alloc::format!(
            "{c} input and {m} output channels a group, must be 1 input channel, or, with channels last in X or Y, \
             as many of both: a power of 2 up to {MOST_GROUP}"
        )),
    }
}

/// The kernel of the largest tile.
fn largest<A: Real>(kernels: DepthwiseHeights<A>, geometry: &Geometry) -> Option<&'static DepthwisePixelKernel<A>> {
    kernels.iter().rfind(|kernel| kernel.takes_groups(geometry.in_channels_per_group()))
}

/// How a layer is cut.
pub(super) struct DepthwiseBlocking {
    pub(super) tiling: PixelTiling,
    pub(super) channels: Blocks,
    pub(super) split: GemmSplit,
    /// Tiles of a call, at most.
    pub(super) group: usize,
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let kernels = pixel_depthwise_kernels::<T::Acc>(request.isa());
    let kernel = largest(kernels, request.geometry).ok_or_else(|| String::from("no kernel for these groups"))?;
    let x = XValues::of::<T>();
    let blocking = DepthwiseBlocking::new(
        (request.geometry, request.machine, request.threads),
        (x, kernel.mr()),
        (false, most_bytes),
    )?;
    let layout = WeightLayout::ChannelBlocks { channels: blocking.channels.size() };
    if let Some(packed) = request.layout.filter(|packed| **packed != layout) {
        return Err(packed.mismatch());
    }
    let DepthwiseBlocking { tiling, channels, split, group } = &blocking;
    let mut scratch = Ledger::default();
    let chunk = tiling.book(&mut scratch, channels.size());
    let staged = if blocking.is_stored() { 0 } else { group * kernel.mr() * channels.size() };
    let finished = scratch.book("finished sums", staged);
    let rows = scratch.book("transposed sums", staged);
    let recipe = Recipe {
        kernel: kernel.name(),
        details: alloc::format!(
            "X {}, {} of {}, {}",
            tiling.source,
            Count(channels.count(), "block"),
            Count(channels.size(), "channel"),
            Count(split.columns, "chunk")
        ),
        layout,
        packed_len: request.geometry.weight_len(),
        tasks: split.tasks(),
        scratch,
        work: blocking.work(request.machine, kernels),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        Box::new(DepthwisePixels { isa, finish, kernels, blocking, chunk, finished, rows })
    });
    Ok(Offer { recipe, build })
}

impl DepthwiseBlocking {
    /// For kernels of `pixels` pixels, which read such values of X. Copies of X have all channels, or those of a block.
    pub(super) fn new(
        (geometry, machine, threads): (&Geometry, &Machine, usize),
        (x, pixels): (XValues, usize),
        (copies_all, most_bytes): (bool, usize),
    ) -> Result<Self, String> {
        // Blocks of whole groups, and of whole cache lines.
        let (c, m) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        let repeats = if c == 1 { m } else { 1 };
        let line = size_of::<Line>() / x.bytes;
        let unit = if line.is_multiple_of(m) { line / m } else { 1 };
        let channels = Blocks::new(geometry.group, (MOST_CHANNELS / m).max(1)).of_multiples(unit).times(m);
        let parts = channels.count();
        // A copy of one block has no gaps between pixels.
        let all = geometry.group * m;
        let of_task = if copies_all { all } else { channels.size().min(all) };
        let needs = TileNeeds { pixels, in_rows: true, channels: of_task, repeats, parts, is_joined: false, x };
        let tiling = PixelTiling::new((geometry, machine, threads), &needs, most_bytes)?;
        let columns = tiling.chunks();
        let mut split = GemmSplit { images: 1, groups: 1, columns, panels: parts, shares: 1 };
        if threads > 1 {
            split.shares = (TASKS_PER_THREAD * threads).div_ceil(columns.max(1)).clamp(1, parts.max(1));
        }
        let near = machine.l1_bytes / (pixels * channels.size() * x.bytes);
        let mut new = Self { tiling, channels, split, group: near.max(1) };
        if new.is_stored() {
            new.group = usize::MAX;
        }
        Ok(new)
    }

    /// Whether kernels store into Y.
    fn is_stored(&self) -> bool {
        self.tiling.x.is_direct && self.tiling.geometry.y_layout == Layout::ChannelsLast
    }

    fn work<A: Real>(&self, machine: &Machine, kernels: DepthwiseHeights<A>) -> Work {
        let channels = self.channels.size();
        let lanes = kernels[0].lanes();
        let vectors = channels.div_ceil(lanes);
        // Each channel of a group is spread over its lanes, which takes as long as a load.
        let group = self.tiling.geometry.in_channels_per_group() as f64;
        let of_tile = |phase: &super::tiling::TiledPhase, pixels: usize| {
            let taps = phase.phase.taps() as f64 * group;
            let (sums, of_block) = ((pixels * vectors) as f64, kernels[0].nr() / lanes);
            // Each product loads X, and each tap its weights.
            let loads = taps * (sums + vectors as f64);
            let wait = taps * machine.fma_latency_cycles * vectors.div_ceil(of_block) as f64;
            Item::ARITHMETIC_CYCLES.times(machine.longest_cycles(taps * sums, loads, wait))
                + Item::STORED_VECTORS.times(sums)
                + Item::KERNEL_CALLS.times(1.0)
        };
        let (parts, shares) = (self.channels.count(), self.split.shares);
        let computing = (self.tiling.tiles_work(of_tile) + self.tiling.finish_work((channels, vectors))) * parts as f64;
        let reading = self.tiling.reading_work((parts, shares), lanes);
        computing + reading + Item::TASKS.times(self.split.tasks() as f64)
    }
}

/// Packs W in blocks of channels. `value` gives an element, by its output channel and its place in W.
pub(super) fn pack_blocks<A>(
    geometry: &Geometry,
    channels: &Blocks,
    value: impl Fn(usize, usize) -> A,
    packed: &mut [A],
) {
    let (taps, group) = (geometry.kernel_volume(), geometry.in_channels_per_group());
    let len = taps * group;
    for block in channels.iter() {
        let packed = &mut packed[block.start * len..block.end * len];
        for (i, packed) in packed.chunks_exact_mut(block.len()).enumerate() {
            let (tap, c) = (i / group, i % group);
            for (channel, packed) in block.clone().zip(packed) {
                // W of ConvTranspose has the channels of X outside.
                let (first, m) = (channel - channel % group, channel % group);
                let (outer, inner) = if geometry.op == Op::Conv { (m, c) } else { (c, m) };
                *packed = value(channel, (first + outer) * len + inner * taps + tap);
            }
        }
    }
}

struct DepthwisePixels<T: Element> {
    isa: Isa,
    finish: Finish<T::Acc>,
    kernels: DepthwiseHeights<T::Acc>,
    blocking: DepthwiseBlocking,
    chunk: ChunkScratch<T::Acc>,
    finished: Piece<T::Acc>,
    rows: Piece<T::Acc>,
}

impl<T: Element> DepthwisePixels<T> {
    /// Sums a block of channels of some tiles. `x` begins with the block's first channel.
    fn sum(
        &self,
        (chunk, tiles, x): (&PixelChunk<'_, T::Acc>, &RowGroup, &[T::Acc]),
        channels: Range<usize>,
        store: &OutputStore<'_, '_, T>,
        (finished, rows): (&mut [T::Acc], &mut [T::Acc]),
    ) {
        let (geometry, len) = (&self.blocking.tiling.geometry, channels.len());
        let group = geometry.in_channels_per_group();
        let taps = geometry.kernel_volume() * group;
        let w = (&store.io.weights[channels.start * taps..channels.end * taps], group);
        let place = PixelPlace { channels, ..tiles.place.clone() };
        store.pixels(&place, len, (finished, rows), |y, ld, epilogue| {
            chunk.for_each_height(tiles, (x, len), |pixels, x| self.kernels[pixels - 1].run(x, w, y, ld, epilogue));
        });
    }
}

impl<T: Element> Split for DepthwisePixels<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let Part { columns, panels, .. } = self.blocking.split.part(task);
        self.blocking.tiling.patches((columns, &self.blocking.channels.span(&panels)), patch);
    }
}

impl<T: Element> Lowering<T> for DepthwisePixels<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let DepthwiseBlocking { tiling, channels, .. } = &self.blocking;
        pack_blocks(&tiling.geometry, channels, |_, index| w[index].to_acc(), packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let Part { columns, panels, .. } = self.blocking.split.part(task);
        let mut arena = Arena::new(scratch);
        let tiling = &self.blocking.tiling;
        let x = Widened { isa: self.isa, x: io.x };
        let (chunk, mut copy) = tiling.open(columns, (&x, &io.strides.x), (&mut arena, &self.chunk));
        let (finished, rows, store) = (arena.get(self.finished), arena.get(self.rows), self.finish.store(io));
        for blocks in tiling.read_parts(panels) {
            let read = self.blocking.channels.span(&blocks);
            let x = chunk.read(&x, &read, &mut copy);
            for channels in blocks.map(|block| self.blocking.channels.range(block)) {
                let x = x.get(channels.start - read.start..).unwrap_or(&[]);
                for tiles in chunk.row_groups(self.blocking.group) {
                    self.sum((&chunk, &tiles, x), channels.clone(), &store, (&mut *finished, &mut *rows));
                }
            }
        }
    }
}

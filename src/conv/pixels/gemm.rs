//! GEMM with vectors along output channels, for pixels anywhere in X.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::catalogue::pixel_widths;
use convoke_kernels::{Isa, PixelInput, PixelKernel, Real};

use super::chunk::{ChunkScratch, PixelChunk, TileGroup};
use super::source::Widened;
use super::tiling::{PixelTiling, TileNeeds, TiledPhase, XValues};
use crate::conv::channel_weights::ChannelWeights;
use crate::conv::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use crate::conv::shares::{GemmSplit, Part};
use crate::conv::store::{Finish, OutputStore, PixelPlace};
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Geometry, Layout, Op};

/// Channels of a tap below which the taps of a row are joined, if that can be: with fewer, the places of
/// pixels would be looked up for a few steps of k each.
const FEW_CHANNELS: usize = 16;

/// The kernels for panels of one width, by pixels.
type PixelHeights<T> = &'static [PixelKernel<T>];

/// How a layer is cut.
struct PixelBlocking<A: Real> {
    weights: ChannelWeights,
    tiling: PixelTiling,
    split: GemmSplit,
    /// The kernels of a narrow panel, and of a wide one.
    kernels: [PixelHeights<A>; 2],
    /// Tiles that a call multiplies, at most, and those whose sums are kept in memory.
    group: usize,
    kept: usize,
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let blocking = PixelBlocking::new(request, most_bytes)?;
    let (weights, split, tiling) = (&blocking.weights, blocking.split, &blocking.tiling);
    let mut scratch = Ledger::default();
    let chunk = tiling.book(&mut scratch, weights.k.size() * tiling.taps_of_call());
    let tile_len = blocking.most_pixels() * weights.nr();
    let sums = scratch.book("sums", blocking.kept * tile_len);
    // Of tiles that kernels do not store into Y.
    let staged = if tiling.is_stored::<T>() { 0 } else { blocking.group * tile_len };
    let finished = scratch.book("finished sums", staged);
    let rows =
        scratch.book("transposed sums", if tiling.geometry.y_layout == Layout::ChannelsFirst { staged } else { 0 });
    let recipe = Recipe {
        kernel: blocking.kernels[1][blocking.most_pixels() - 1].name(),
        details: alloc::format!(
            "X {}, {}, K in blocks of {}, {}, weights in {}",
            tiling.source,
            Count(tiling.phases.len(), "phase"),
            weights.k.size() * weights.taps,
            Count(split.columns, "chunk"),
            Count(split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: split.tasks(),
        scratch,
        work: blocking.work(request),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (isa, finish) = (request.isa(), Finish::new(request));
        Box::new(PixelGemm { isa, finish, blocking, chunk, sums, finished, rows })
    });
    Ok(Offer { recipe, build })
}

impl<A: Real> PixelBlocking<A> {
    fn new<T: Element<Acc = A>>(request: &Request<'_, T>, most_bytes: usize) -> Result<Self, String> {
        let Request { geometry, machine, threads, .. } = *request;
        let weights = ChannelWeights::new(request)?;
        let mut widths = pixel_widths::<A>(request.isa());
        let narrow = widths.next().ok_or_else(|| String::from("no kernel for this tile"))?;
        let kernels = [narrow, widths.last().unwrap_or(narrow)];
        let pixels = kernels[0].len().min(kernels[1].len());
        let is_joined = weights.k.count() == 1 && joins_taps(geometry, geometry.in_channels);
        let (channels, parts) = (weights.channels, weights.parts(machine, size_of::<A>()));
        let x = XValues::of::<T>();
        let needs = TileNeeds { pixels, in_rows: false, channels, repeats: 1, parts, is_joined, x };
        let tiling = PixelTiling::new((geometry, machine, threads), &needs, most_bytes)?;
        // Sums that are kept stay in the L1 cache.
        let near = (machine.l1_bytes / 4 / (pixels * weights.nr() * size_of::<A>())).max(1);
        let (is_stored, is_whole) = (tiling.is_stored::<T>(), weights.k.count() == 1);
        let group = if is_stored && is_whole { usize::MAX } else { near };
        let kept = if is_whole { 1 } else { near };
        // Tasks have panels of several groups, so that they write the tables of a chunk once.
        let (columns, panels) = (tiling.chunks(), geometry.group * weights.count());
        let split = GemmSplit::of_chunks(columns, panels, threads);
        Ok(Self { weights, tiling, split, kernels, group, kept })
    }

    /// Pixels of a tile, at most.
    fn most_pixels(&self) -> usize {
        self.kernels[0].len().min(self.kernels[1].len())
    }

    fn work<T: Element<Acc = A>>(&self, request: &Request<'_, T>) -> Work {
        let Request { geometry, machine, .. } = *request;
        let (weights, lanes) = (&self.weights, self.weights.panels.lanes);
        let computing = (self.tiling.tiles_work(|phase, pixels| self.tile_work(machine, phase, pixels))
            + self.tiling.finish_work((weights.rows, weights.vectors())))
            * geometry.group as f64
            + self.tiling.reading_work((geometry.group, self.split.shares), lanes);
        let bytes = (geometry.weight_len() * size_of::<A>()) as f64;
        let fetching = machine.fetch_weights(bytes * self.tiling.reads_of_weights(), bytes);
        machine.overlapped(computing, fetching) + Item::TASKS.times(self.split.tasks() as f64)
    }

    /// The products of a tile of one group of channels.
    fn tile_work(&self, machine: &Machine, phase: &TiledPhase, pixels: usize) -> Work {
        let weights = &self.weights;
        let rest = weights.rows % weights.nr();
        let narrow = usize::from(rest > 0 && weights.panels.panel(rest).1);
        let cycles = |kernels: PixelHeights<A>| {
            let kernel = &kernels[pixels - 1];
            // Places are read once for a tap, and not with each step.
            machine.tile_cycles(kernel.fmas(), kernel.loads() as f64 - 1.0)
        };
        let of_step =
            cycles(self.kernels[0]) * narrow as f64 + cycles(self.kernels[1]) * (weights.count() - narrow) as f64;
        let blocks = weights.k.count();
        let taps = phase.phase.visible_taps(&self.tiling.geometry, pixels);
        Item::ARITHMETIC_CYCLES.times(of_step * taps * weights.channels as f64)
            + Item::STORED_VECTORS.times((pixels * weights.vectors() * blocks) as f64)
            + Item::KERNEL_CALLS.times((weights.count() * blocks) as f64)
    }
}

/// Whether the pixels that the taps of a row read are neighbours, and take few steps of k: `steps`.
pub(super) fn joins_taps(geometry: &Geometry, steps: usize) -> bool {
    let last = geometry.axes.last();
    geometry.op == Op::Conv
        && geometry.group == 1
        && steps < FEW_CHANNELS
        && last.is_some_and(|last| last.kernel > 1 && last.dilation == 1)
}

/// Scratch for the sums of tiles.
struct PixelScratch<'a, A> {
    /// Sums between blocks of K.
    sums: &'a mut [A],
    /// Finished sums that kernels do not store into Y, by pixels and by channels.
    finished: &'a mut [A],
    rows: &'a mut [A],
}

struct PixelGemm<T: Element> {
    isa: Isa,
    finish: Finish<T::Acc>,
    blocking: PixelBlocking<T::Acc>,
    chunk: ChunkScratch<T::Acc>,
    sums: Piece<T::Acc>,
    finished: Piece<T::Acc>,
    rows: Piece<T::Acc>,
}

impl<T: Element> PixelGemm<T> {
    /// Multiplies panel `p` of a group by some tiles of a chunk. `x` begins with the group's first channel.
    fn multiply(
        &self,
        (chunk, tiles, x): (&PixelChunk<'_, T::Acc>, &TileGroup<'_>, &[T::Acc]),
        (group, p): (usize, usize),
        store: &OutputStore<'_, '_, T>,
        PixelScratch { sums, finished, rows: transposed }: &mut PixelScratch<'_, T::Acc>,
    ) {
        let weights = &self.blocking.weights;
        let rows = weights.rows_of(&(p..p + 1));
        let (nr, is_narrow) = weights.panels.panel(rows.len());
        let (k, step) = (weights.steps(), weights.taps * nr);
        let panel = &weights.of_group(store.io.weights, group)[rows.start * k..][..nr * k];
        let channels = group * weights.rows + rows.start..group * weights.rows + rows.end;
        let kernel = &self.blocking.kernels[usize::from(!is_narrow)][tiles.pixels - 1];
        let (m, place) = (channels.len(), PixelPlace { channels, ..tiles.place.clone() });
        for block in weights.k.iter() {
            let x = x.get(block.start + tiles.offset..).unwrap_or(&[]);
            let x = PixelInput { x, zeros: chunk.zeros, channels: block.len() * chunk.joined(), taps: tiles.taps };
            let (w, accumulate) = (&panel[block.start * step..block.end * step], block.start > 0);
            if block.end < weights.channels {
                kernel.partial(&x, w, sums, accumulate);
                continue;
            }
            if store.planes(&place, |y, ldy, end| kernel.finish_planes(&x, w, sums, accumulate, y, ldy, m, end)) {
                continue;
            }
            let staged = (&mut **finished, &mut **transposed);
            store.pixels(&place, nr, staged, |y, ld, end| kernel.finish(&x, w, sums, accumulate, y, ld, m, end));
        }
    }
}

impl<T: Element> Split for PixelGemm<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let Part { columns, panels, .. } = self.blocking.split.part(task);
        self.blocking.tiling.patches((columns, &self.blocking.weights.outputs_of(&panels)), patch);
    }
}

impl<T: Element> Lowering<T> for PixelGemm<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.blocking.weights.pack(self.isa, self.blocking.tiling.geometry.op, w, packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let Part { columns, panels, .. } = self.blocking.split.part(task);
        let PixelBlocking { weights, tiling, .. } = &self.blocking;
        let mut arena = Arena::new(scratch);
        let x = Widened { isa: self.isa, x: io.x };
        let (chunk, mut copy) = tiling.open(columns, (&x, &io.strides.x), (&mut arena, &self.chunk));
        let (sums, finished, rows) = (arena.get(self.sums), arena.get(self.finished), arena.get(self.rows));
        let (store, mut scratch) = (self.finish.store(io), PixelScratch { sums, finished, rows });
        let (c, count) = (weights.channels, weights.count());
        for groups in tiling.read_parts(panels.start / count..panels.end.div_ceil(count)) {
            let x = chunk.read(&x, &(groups.start * c..groups.end * c), &mut copy);
            let panels = panels.start.max(groups.start * count)..panels.end.min(groups.end * count);
            chunk.for_each_batch(self.blocking.group, |batch| {
                for panel in panels.clone() {
                    let (group, p) = (panel / count, panel % count);
                    let x = x.get((group - groups.start) * c..).unwrap_or(&[]);
                    for tiles in batch.iter().flatten() {
                        self.multiply((&chunk, tiles, x), (group, p), &store, &mut scratch);
                    }
                }
            });
        }
    }
}

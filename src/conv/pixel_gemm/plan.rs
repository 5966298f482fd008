//! How Y is cut into tiles, groups of tiles, chunks and tasks.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::pixel_widths;
use convoke_kernels::{PixelKernel, PixelTaps, Real};

use super::lowering::PixelGemm;
use super::source::{PixelSource, RowCopy};
use super::taps::{AxisWindow, PixelPhase};
use crate::conv::channel_gemm::ChannelWeights;
use crate::conv::contract::{Answer, Build, Offer, Recipe, Request};
use crate::conv::macro_kernel::RowPanels;
use crate::conv::shares::{GemmSplit, TASKS_PER_THREAD};
use crate::conv::store::Finish;
use crate::element::Element;
use crate::exec::Ledger;
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Geometry, Layout};

/// Channels of a tap below which the taps of a row are joined, if that can be: with fewer, the places of
/// pixels would be looked up for a few steps of k each.
const FEW_CHANNELS: usize = 16;
/// Entries of the table of a tile, at most.
const MOST_ENTRIES: usize = 1 << 16;

/// The kernels for panels of one width, by pixels.
pub(super) type Kernels<T> = &'static [PixelKernel<T>];

/// The tiles of a phase: its pixels, in rows of tiles. If pixels of all rows are neighbours in Y, they are one
/// row.
#[derive(Debug, Clone)]
pub(super) struct PhaseTiles {
    pub(super) phase: PixelPhase,
    /// Rows of tiles, of all images, and how each is cut into tiles.
    pub(super) rows: usize,
    pub(super) cut: RowPanels,
    /// Pixels from one row of tiles to the next.
    pub(super) pixels: usize,
    /// Tiles of a chunk.
    pub(super) chunk: usize,
}

impl PhaseTiles {
    pub(super) fn tiles(&self) -> usize {
        self.rows * self.cut.count()
    }

    pub(super) fn chunks(&self) -> usize {
        self.tiles().div_ceil(self.chunk)
    }

    pub(super) fn tiles_of(&self, chunk: usize) -> Range<usize> {
        chunk * self.chunk..((chunk + 1) * self.chunk).min(self.tiles())
    }

    /// The first pixel of a tile, counted over all rows of tiles, and its pixels.
    pub(super) fn tile(&self, tile: usize) -> (usize, usize) {
        let (row, tile) = (tile / self.cut.count(), tile % self.cut.count());
        (row * self.pixels + self.cut.start(tile), self.cut.height(tile))
    }

    /// The first pixel of some tiles, and the pixel behind the last.
    pub(super) fn pixels_of(&self, tiles: &Range<usize>) -> Range<usize> {
        let (last, height) = self.tile(tiles.end - 1);
        self.tile(tiles.start).0..last + height
    }
}

/// How a layer is cut.
pub(super) struct PixelBlocking<A: Real> {
    pub(super) weights: ChannelWeights,
    pub(super) source: PixelSource,
    pub(super) phases: Vec<PhaseTiles>,
    pub(super) split: GemmSplit,
    /// The kernels of a narrow panel, and of a wide one.
    pub(super) kernels: [Kernels<A>; 2],
    /// Tiles that a call multiplies, at most: their sums stay in the L1 cache.
    pub(super) group: usize,
    /// Entries of the table of a tile, and tiles of a chunk, at most.
    pub(super) entries: usize,
    pub(super) chunk: usize,
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let blocking = PixelBlocking::new(request, most_bytes)?;
    let (weights, split) = (&blocking.weights, blocking.split);
    let finish = Finish::new(request);
    let mut scratch = Ledger::default();
    let copy = scratch.book("rows of X", blocking.source.copy_len());
    let widened = scratch.book("widened rows", blocking.widened_len(request));
    let zeros = scratch.book("zeros", blocking.channels_of_call());
    let tile_len = blocking.group * blocking.most_pixels() * weights.nr();
    let sums = scratch.book("sums", tile_len);
    let finished = scratch.book("finished sums", if blocking.stores_pixels::<T>(geometry) { 0 } else { tile_len });
    let rows = scratch.book("transposed sums", if blocking.transposes_sums(geometry) { tile_len } else { 0 });
    let table = scratch.book("places", blocking.chunk * blocking.entries);
    let counts = scratch.book("taps", blocking.chunk);
    let outer = scratch.book("window", geometry.axes.len() - 1);
    let recipe = Recipe {
        kernel: blocking.kernels[1][blocking.most_pixels() - 1].name(),
        details: alloc::format!(
            "X {}, {}, K in blocks of {}, {}, weights in {}",
            match blocking.source {
                PixelSource::InPlace { .. } => "in place",
                PixelSource::Copy(_) => "in copied rows",
            },
            Count(blocking.phases.len(), "phase"),
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
        let (isa, geometry) = (request.isa(), request.geometry.clone());
        Box::new(PixelGemm { isa, geometry, finish, blocking, copy, widened, zeros, sums, finished, rows, table, counts, outer })
    });
    Ok(Offer { recipe, build })
}

impl<A: Real> PixelBlocking<A> {
    fn new<T: Element<Acc = A>>(request: &Request<'_, T>, most_bytes: usize) -> Result<Self, String> {
        let Request { geometry, machine, threads, .. } = *request;
        let weights = ChannelWeights::new(request)?;
        if geometry.input_len() >= PixelTaps::ZEROS as usize {
            return Err(alloc::format!("X has {} elements, at most {}", geometry.input_len(), PixelTaps::ZEROS - 1));
        }
        let phases = PixelPhase::all(geometry).ok_or_else(|| String::from("the strides have too many phases"))?;
        let mut widths = pixel_widths::<A>(request.isa());
        let narrow = widths.next().ok_or_else(|| String::from("no kernel for this tile"))?;
        let kernels = [narrow, widths.last().unwrap_or(narrow)];
        let most_pixels = kernels[0].len().min(kernels[1].len());
        let is_joined = weights.k.count() == 1 && joins_taps(geometry);
        let (is_copied, pads) = (!T::DIRECT || geometry.x_layout != Layout::ChannelsLast, geometry.axes.last().is_some_and(crate::Axis::is_padded));
        let source = match is_copied || (is_joined && pads) {
            true => PixelSource::Copy(RowCopy { channels: weights.channels, is_joined, most_len: 0 }),
            false => PixelSource::InPlace { is_joined },
        };
        let taps = phases.iter().map(PixelPhase::taps).max().unwrap_or(0);
        let entries = taps.saturating_mul(1 + most_pixels);
        if entries > MOST_ENTRIES {
            return Err(alloc::format!("a tile has {taps} taps, whose places exceed {MOST_ENTRIES}"));
        }
        let group = (machine.l1_bytes / 4 / (most_pixels * weights.nr() * size_of::<A>())).max(1);
        let mut new = Self {
            weights,
            source,
            phases: Vec::new(),
            split: GemmSplit { images: 1, groups: geometry.group, columns: 0, panels: weights.count(), shares: 1 },
            kernels,
            group,
            entries,
            chunk: 0,
        };
        let chunk = new.chunk_tiles(request, &phases, most_bytes);
        new.phases = phases.into_iter().map(|phase| new.phase_tiles(geometry, phase, chunk)).collect();
        new.chunk = new.phases.iter().map(|phase| phase.chunk).max().unwrap_or(1);
        new.split.columns = new.phases.iter().map(PhaseTiles::chunks).sum();
        let tasks = new.split.tasks();
        if threads > 1 && tasks < TASKS_PER_THREAD * threads {
            new.split.shares = (TASKS_PER_THREAD * threads).div_ceil(tasks.max(1)).clamp(1, new.split.panels.max(1));
        }
        if let PixelSource::Copy(copy) = &mut new.source {
            let mut outer = alloc::vec![AxisWindow::default(); geometry.axes.len() - 1];
            let mut window = |phase: &PhaseTiles, chunk: usize| {
                let pixels = phase.pixels_of(&phase.tiles_of(chunk));
                phase.phase.window(geometry, &pixels, is_joined, &mut outer).pixels()
            };
            let mut most = 0;
            for phase in &new.phases {
                most = (0..phase.chunks()).map(|chunk| window(phase, chunk)).fold(most, usize::max);
            }
            copy.most_len = most.saturating_mul(copy.channels);
            if copy.most_len >= PixelTaps::ZEROS as usize {
                return Err(alloc::format!("a copy of X has {} elements, at most {}", copy.most_len, PixelTaps::ZEROS - 1));
            }
        }
        Ok(new)
    }

    /// Tiles of a chunk: what they read of X, and their tables, stay in the L2 cache, and each thread has
    /// several chunks.
    fn chunk_tiles<T: Element<Acc = A>>(&self, request: &Request<'_, T>, phases: &[PixelPhase], most_bytes: usize) -> usize {
        let Request { geometry, machine, threads, .. } = *request;
        let pixels = (geometry.batch * geometry.input_spatial()) as f64 * phases.len() as f64;
        let outputs = (geometry.batch * geometry.output_spatial()).max(1) as f64;
        let of_tile = self.most_pixels() as f64 * (pixels / outputs) * (geometry.in_channels_per_group() * size_of::<A>()) as f64
            + (self.entries * size_of::<u32>()) as f64;
        let bytes = (machine.block_l2_bytes() / 4).min(most_bytes) as f64;
        let tiles = (outputs / self.most_pixels() as f64).ceil() as usize;
        let of_thread = if threads == 1 { tiles } else { (tiles * geometry.group).div_ceil(TASKS_PER_THREAD * threads) };
        ((bytes / of_tile) as usize).min(of_thread).clamp(1, tiles.max(1))
    }

    fn phase_tiles(&self, geometry: &Geometry, phase: PixelPhase, chunk: usize) -> PhaseTiles {
        let rows = geometry.batch * phase.rows();
        let (rows, pixels) = match (phase.is_dense(), geometry.y_layout) {
            (true, Layout::ChannelsLast) => (1, rows * phase.last().count),
            (true, Layout::ChannelsFirst) => (geometry.batch, phase.rows() * phase.last().count),
            (false, _) => (rows, phase.last().count),
        };
        let cut = RowPanels::new(pixels, self.most_pixels());
        let tiles = rows * cut.count();
        // Chunks of equal numbers of tiles.
        let chunk = tiles.div_ceil(tiles.div_ceil(chunk).max(1)).max(1);
        PhaseTiles { phase, rows, cut, pixels, chunk }
    }

    /// Pixels of a tile, at most.
    pub(super) fn most_pixels(&self) -> usize {
        self.kernels[0].len().min(self.kernels[1].len())
    }

    /// Values of a row of X on the way from rows of channels of another type.
    fn widened_len<T: Element<Acc = A>>(&self, request: &Request<'_, T>) -> usize {
        match self.source {
            PixelSource::Copy(copy) if !T::DIRECT && request.geometry.x_layout != Layout::ChannelsLast => {
                copy.most_len
            }
            _ => 0,
        }
    }

    /// Whether kernels store into Y.
    fn stores_pixels<T: Element>(&self, geometry: &Geometry) -> bool {
        T::DIRECT && geometry.y_layout == Layout::ChannelsLast
    }

    fn transposes_sums(&self, geometry: &Geometry) -> bool {
        geometry.y_layout != Layout::ChannelsLast
    }

    /// Steps of k of one tap of a call, at most.
    fn channels_of_call(&self) -> usize {
        self.weights.k.size() * self.taps_of_call()
    }

    /// Taps of the kernel that are one tap of a call.
    pub(super) fn taps_of_call(&self) -> usize {
        let last = |phase: &PhaseTiles| phase.phase.last().taps();
        if self.source.is_joined() { self.phases.first().map_or(1, last) } else { 1 }
    }

    fn work<T: Element<Acc = A>>(&self, request: &Request<'_, T>) -> Work {
        let Request { geometry, machine, .. } = *request;
        let of_phase = |phase: &PhaseTiles| self.phase_work(machine, phase) + self.finish_work(geometry, phase);
        let computing = self.phases.iter().map(of_phase).fold(Work::default(), |sum, work| sum + work);
        let copied = match self.source {
            PixelSource::InPlace { .. } => 0.0,
            PixelSource::Copy(copy) => copy.most_len as f64 * (self.split.columns * self.split.shares) as f64,
        };
        let copying = match geometry.x_layout {
            Layout::ChannelsLast => Item::COPIED_ELEMENTS.times(copied),
            Layout::ChannelsFirst => Item::GATHERED_VECTORS.times(copied / self.weights.panels.lanes as f64),
        };
        let bytes = (geometry.weight_len() * size_of::<A>()) as f64;
        let fetching = machine.fetch_weights(bytes * self.split.columns as f64, bytes);
        machine.overlapped((computing + copying) * geometry.group as f64, fetching)
            + Item::TASKS.times(self.split.tasks() as f64)
    }

    /// The way of finished sums of one group of channels into a Y whose channels come first.
    fn finish_work(&self, geometry: &Geometry, phase: &PhaseTiles) -> Work {
        let pixels = (phase.rows * phase.pixels) as f64;
        match (geometry.y_layout, phase.phase.is_dense()) {
            (Layout::ChannelsLast, _) => Work::default(),
            (_, true) => Item::TRANSPOSED_VECTORS.times(pixels * self.weights.vectors() as f64),
            (_, false) => Item::SCATTERED_ELEMENTS.times(pixels * self.weights.rows as f64),
        }
    }

    /// The products of one group of channels.
    fn phase_work(&self, machine: &Machine, phase: &PhaseTiles) -> Work {
        let weights = &self.weights;
        let rest = weights.rows % weights.nr();
        let narrow = usize::from(rest > 0 && weights.panels.panel(rest).1);
        let steps = (phase.phase.taps() * weights.channels) as f64;
        let of_tile = |pixels: usize| {
            let cycles = |kernels: Kernels<A>| {
                let kernel = &kernels[pixels - 1];
                // Places are read once for a tap, and not with each step.
                machine.tile_cycles(kernel.fmas(), kernel.loads() as f64 - 1.0)
            };
            let of_step = cycles(self.kernels[0]) * narrow as f64
                + cycles(self.kernels[1]) * (weights.count() - narrow) as f64;
            let vectors = (pixels * weights.vectors() * weights.k.count()) as f64;
            let calls = (weights.count() * weights.k.count()) as f64;
            let places = (phase.phase.taps() * (1 + pixels)) as f64;
            Item::ARITHMETIC_CYCLES.times(of_step * steps)
                + Item::STORED_VECTORS.times(vectors)
                + Item::KERNEL_CALLS.times(calls)
                + Item::COPIED_ELEMENTS.times(places)
        };
        let runs = phase.cut.runs(&(0..phase.cut.count()));
        let of_row = runs.map(|run| of_tile(phase.cut.height(run.start)) * run.len() as f64);
        of_row.fold(Work::default(), |sum, work| sum + work) * phase.rows as f64
    }
}

/// Whether the pixels that the taps of a row read are neighbours, and have few channels.
fn joins_taps(geometry: &Geometry) -> bool {
    let last = geometry.axes.last();
    geometry.op == crate::Op::Conv
        && geometry.group == 1
        && geometry.in_channels < FEW_CHANNELS
        && last.is_some_and(|last| last.kernel > 1 && last.dilation == 1)
}

//! Conv whose kernel covers X exactly, with images as pixels: a classifier's last layers, and
//! squeeze-excitation blocks.
//!
//! Such a layer reads mostly weights. Image by image they would be read once for each image; here they
//! are read once for a block of images. M = images, N = M/group, K = C/group * kernel volume, for each
//! group. K is in blocks, so that the values of the images stay in the L1 cache. Scratch of a task: the
//! images of a block of K, transposed, and the sums of at most [`MOST_PANELS`] panels.

use alloc::boxed::Box;
use core::ops::Range;

use convoke_kernels::{Isa, Real, RowOffsets, stream};

use super::weights::ChannelWeights;
use crate::blas::Blocks;
use crate::conv::channel_tiles::{ChannelTiles, PanelPrefetch};
use crate::conv::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request, no_kernel};
use crate::conv::planes::{chunk_bytes, step_of};
use crate::conv::shares::{GemmSplit, Part};
use crate::conv::store::Finish;
use crate::element::Element;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece};
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Axis, Geometry, Op};

/// Values of X in a block of K, over all images of a small batch: a third of the L1 cache in `f32`.
fn block_values(machine: &Machine) -> usize {
    machine.l1_bytes / 3 / size_of::<f32>()
}
/// Steps of k in a block, at least. With fewer, sums would be written and read too often.
const LEAST_STEPS: usize = 256;
/// Panels of a task, at most: a limit of its sums.
const MOST_PANELS: usize = 64;

/// Whether the kernel covers X exactly. An image then lies in memory in the order of k, as a row of the
/// product's matrix.
pub(super) fn is_covered(geometry: &Geometry) -> bool {
    let is_covered =
        |axis: &Axis| axis.input == axis.kernel && !axis.is_padded() && (axis.dilation == 1 || axis.kernel == 1);
    geometry.axes.iter().all(is_covered)
}

pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let machine = request.machine;
    let weights = ChannelWeights::new(request)?;
    let blocking = ImagesBlocking::new(request, &weights, most_bytes);
    let ImagesBlocking { image_blocks, k, split } = blocking;
    let tiles = image_blocks.lens().map(|images| ChannelTiles::<T::Acc>::new(machine, images));
    let [Some(full), Some(last)] = tiles else { return Err(no_kernel()) };
    let tiles = [full, last];
    let mut scratch = Ledger::default();
    let transposed = scratch.book("images", image_blocks.size() * k.size());
    let sums = scratch.book("sums", image_blocks.size() * split.share_panels() * weights.nr());
    let full = blocking.image_block_work(machine, &weights, &tiles[0]) * (image_blocks.count() - 1) as f64;
    let last = blocking.image_block_work(machine, &weights, &tiles[1]);
    let kernel = tiles[0].name();
    let recipe = Recipe {
        kernel,
        details: alloc::format!(
            "{kernel}, {} at a time as pixels, K in blocks of {}, weights in {}",
            Count(image_blocks.size(), "image"),
            k.size(),
            Count(split.shares, "part")
        ),
        layout: weights.layout(),
        packed_len: weights.len(),
        tasks: split.tasks(),
        scratch,
        work: (full + last) * weights.groups as f64,
    };
    let build: Build<'a, T> = Box::new(move || {
        let koff = [&tiles[0], &tiles[1]].map(|tiles| RowOffsets::packed(k.size(), tiles.width));
        let (isa, finish) = (request.isa(), Finish::new(request));
        Box::new(Images { isa, finish, weights, blocking, tiles, koff, transposed, sums })
    });
    Ok(Offer { recipe, build })
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ImagesBlocking {
    image_blocks: Blocks,
    k: Blocks,
    split: GemmSplit,
}

impl ImagesBlocking {
    fn new<T: Element>(request: &Request<'_, T>, weights: &ChannelWeights, most_bytes: usize) -> Self {
        let (batch, machine) = (request.geometry.batch, request.machine);
        let (steps, panels, value_bytes) = (weights.steps(), weights.count(), size_of::<T::Acc>());
        let of_threads = if request.threads == 1 { 1 } else { request.threads.div_ceil(batch * weights.groups) };
        let shares = panels.div_ceil(MOST_PANELS).max(of_threads).min(panels);
        let share_rows = panels.div_ceil(shares) * weights.nr();
        // It depends on the whole batch, so that no sum depends on a limit or on threads.
        let kc = steps.clamp(1, (block_values(machine) / batch).max(LEAST_STEPS));
        let block_bytes = chunk_bytes(machine);
        let fits = |images: &usize| (images * kc + images * share_rows) * value_bytes <= block_bytes.min(most_bytes);
        let most_images = batch.min(block_bytes / value_bytes / LEAST_STEPS);
        let image_blocks = Blocks::new(batch, (1..=most_images).rev().find(fits).unwrap_or(1));
        let split = GemmSplit { images: image_blocks.count(), groups: weights.groups, columns: 1, panels, shares };
        Self { image_blocks, k: Blocks::new(steps, kc), split }
    }

    fn image_block_work<A: Real>(&self, machine: &Machine, weights: &ChannelWeights, tiles: &ChannelTiles<A>) -> Work {
        let (steps, k_blocks) = (weights.steps(), self.k.count());
        // Sums are written with the bias, kept between blocks of K, and read to be stored.
        let kept = (tiles.width * weights.vectors()) as f64 * (2 + k_blocks) as f64;
        Item::ARITHMETIC_CYCLES.times(tiles.cycles(machine, weights.rows, false) * steps as f64)
            + Item::KERNEL_CALLS.times((tiles.count * weights.count() * k_blocks) as f64)
            + Item::STORED_VECTORS.times(kept)
            + Item::SCATTERED_ELEMENTS.times((tiles.width * steps * self.split.shares) as f64)
            + Item::TASKS.times(self.split.shares as f64)
    }
}

struct Images<T: Element> {
    isa: Isa,
    finish: Finish<T::Acc>,
    weights: ChannelWeights,
    blocking: ImagesBlocking,
    /// The tiles of a full block, and of the last one.
    tiles: [ChannelTiles<T::Acc>; 2],
    /// The row offsets of transposed images, for the same blocks.
    koff: [RowOffsets; 2],
    transposed: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

/// One task: some panels of one group, for one block of images.
struct ImagesTask<'a, A: Real> {
    images: Range<usize>,
    group: usize,
    panels: Range<usize>,
    tiles: &'a ChannelTiles<A>,
    koff: &'a RowOffsets,
    weights: &'a ChannelWeights,
}

/// The sums of one panel, or of several: one row for each image.
struct ImageSums {
    at: usize,
    /// The channels of the group that they belong to.
    channels: Range<usize>,
    /// Values of a row, the padding of the last panel included.
    width: usize,
}

impl<A: Real> ImagesTask<'_, A> {
    fn channel(&self, panel: usize) -> usize {
        panel * self.weights.nr()
    }

    /// Channels of a panel, padding included.
    fn width(&self, panel: usize) -> usize {
        self.tiles.panel(self.weights.rows - self.channel(panel))
    }

    /// Where the sums of a panel begin. Those of its images follow one another.
    fn sums_at(&self, panel: usize) -> usize {
        (panel - self.panels.start) * self.tiles.width * self.weights.nr()
    }

    /// The sums, panel by panel. A single image has one row of all panels.
    fn sums(&self) -> impl Iterator<Item = ImageSums> + '_ {
        let joined = if self.tiles.width == 1 { self.panels.len().max(1) } else { 1 };
        self.panels.clone().step_by(joined).map(move |panel| {
            let (start, end) = (self.channel(panel), self.channel(panel + joined));
            let channels = start..end.min(self.weights.rows);
            ImageSums { at: self.sums_at(panel), channels, width: end.min(self.weights.padded) - start }
        })
    }

    /// The beginning of an image and the group in X, or in Y, with `len` values for each channel.
    fn at(&self, image: usize, len: usize) -> usize {
        (image * self.weights.groups + self.group) * len
    }
}

impl<T: Element> Images<T> {
    /// Writes the bias as the first sums.
    fn begin(&self, task: &ImagesTask<'_, T::Acc>, bias: &[T::Acc], sums: &mut [T::Acc]) {
        for ImageSums { at, channels, width } in task.sums() {
            for row in sums[at..][..task.tiles.width * width].chunks_exact_mut(width) {
                let (body, rest) = row.split_at_mut(channels.len());
                body.copy_from_slice(&bias[task.group * self.weights.rows..][channels.clone()]);
                rest.fill(T::Acc::ZERO);
            }
        }
    }

    /// Transposes the images of one block of K, so that images are neighbours.
    fn transpose(&self, task: &ImagesTask<'_, T::Acc>, x: &[T], k: &Range<usize>, transposed: &mut [T::Acc]) {
        let ChannelWeights { channels, k: blocks, taps, .. } = self.weights;
        let (steps, width) = (self.weights.steps(), task.tiles.width);
        for (i, image) in task.images.clone().enumerate() {
            let row = &x[task.at(image, steps)..][..steps];
            if taps == 1 && width == 1 {
                stream::widen(self.isa, &row[k.clone()], &mut transposed[..k.len()]);
                continue;
            }
            for (pixels, k) in transposed.chunks_exact_mut(width).zip(k.clone()) {
                let (tap, c) = if taps == 1 { (0, k) } else { step_of(k, channels, taps, blocks.size()) };
                pixels[i] = row[c * taps + tap].to_acc();
            }
        }
    }

    /// Multiplies one block of K.
    fn multiply(
        &self,
        task: &ImagesTask<'_, T::Acc>,
        weights: &[T::Acc],
        k: &Range<usize>,
        x: &[T::Acc],
        sums: &mut [T::Acc],
    ) {
        let (tiles, steps, nr) = (task.tiles, self.weights.steps(), self.weights.nr());
        let koff = task.koff.rows(0..k.len());
        // A single image is multiplied by all wide panels in one call: with the whole of K, they and
        // their sums follow one another.
        let is_one_call = tiles.width == 1 && k.len() == steps;
        let wide = task.panels.clone().take_while(|p| is_one_call && task.width(*p) == nr).count();
        if wide > 0 {
            let w = &weights[task.channel(task.panels.start) * steps..];
            tiles.kernel(1, nr).panels(wide, x, koff, w, sums, true);
        }
        for p in task.panels.clone().skip(wide) {
            let of_panel = |p: usize| {
                let panel = &weights[task.channel(p) * steps..];
                &panel[k.start * task.width(p)..k.end * task.width(p)]
            };
            let (width, channels) = (task.width(p), self.weights.rows - task.channel(p));
            let next = if p + 1 < task.panels.end { of_panel(p + 1) } else { &[] };
            // With several blocks of K, the panel's own next block follows in memory.
            let prefetch = if k.len() == steps { PanelPrefetch::behind } else { PanelPrefetch::new };
            let kernel = tiles.kernel(tiles.pixels(0).len(), channels);
            let mut prefetch = prefetch(next, tiles.count, kernel, tiles.rate());
            for t in 0..tiles.count {
                let pixels = tiles.pixels(t);
                let tile = &mut sums[task.sums_at(p) + pixels.start * width..][..pixels.len() * width];
                let (kernel, x) = (tiles.kernel(pixels.len(), channels), &x[pixels.start..]);
                kernel.partial(x, koff, of_panel(p), prefetch.during(k.len()), tile, true);
            }
        }
    }
}

impl<T: Element> Split for Images<T> {
    fn tasks(&self) -> usize {
        self.blocking.split.tasks()
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.blocking.split.part(task);
        patch(Patch::rows(self.blocking.image_blocks.range(part.image), self.weights.channels_of(&part), 0..1, 1));
    }
}

impl<T: Element> Lowering<T> for Images<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(Op::Conv, w, packed);
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let ImagesBlocking { image_blocks, k, split } = &self.blocking;
        let Part { image: image_block, group, panels, .. } = split.part(task);
        let images = image_blocks.range(image_block);
        let is_last = usize::from(images.len() != image_blocks.size());
        let (tiles, koff) = (&self.tiles[is_last], &self.koff[is_last]);
        let task = ImagesTask { images, group, panels, tiles, koff, weights: &self.weights };
        let mut arena = Arena::new(scratch);
        let (transposed, sums) = (arena.get(self.transposed), arena.get(self.sums));
        self.begin(&task, io.bias, sums);
        let weights = self.weights.of_group(io.weights, group);
        for k in k.iter().filter(|k| !k.is_empty()) {
            self.transpose(&task, io.x, &k, transposed);
            self.multiply(&task, weights, &k, transposed, sums);
        }
        let store = self.finish.store(io);
        for ImageSums { at, channels, width } in task.sums() {
            let rows = sums[at..][..task.tiles.width * width].chunks_exact_mut(width);
            for (image, sums) in task.images.clone().zip(rows) {
                let at = task.at(image, self.weights.rows) + channels.start;
                store.row(&mut sums[..channels.len()], T::Acc::ZERO, at);
            }
        }
    }
}

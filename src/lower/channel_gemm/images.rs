//! Images as pixels, where the kernel covers X exactly: a classifier's last layers,
//! squeeze-excitation blocks.
//!
//! Weights are what is read most of. Image by image they would be read as often as there are
//! images; here, once for a band of them: the product of M = images, N = M/group and K = C/group *
//! kernel volume for each group, with the panels of weights of [`channel_gemm`](super). K is
//! blocked, so that the images' values stay in the L1 cache. Scratch for a task: the images of a
//! block of K, transposed, and the sums of at most [`MOST_PANELS`] panels.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::{Isa, Real, RowOffsets, stream};

use super::weights::Weights;
use crate::blas::Blocks;
use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Arena, Line, lines_for};
use crate::lower::channel_tiles::{ChannelTiles, Fetch};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::planes::step_of;
use crate::lower::shares::Part;
use crate::lower::sink::Finish;
use crate::machine::Machine;
use crate::{Axis, Geometry};

/// Values of X in a block of K, over all images of a small batch: in f32 a third of the L1 cache.
fn block_values(machine: &Machine) -> usize {
    machine.l1_bytes / 3 / size_of::<f32>()
}
/// Steps of K in a block, at the least.
const KC: usize = 256;
/// Panels of a task, at the most.
const MOST_PANELS: usize = 64;
/// Bytes of a task's scratch, about: it stays in the L2 cache.
fn most_bytes(machine: &Machine) -> usize {
    machine.block_l2_bytes() / 2
}

/// Whether the kernel covers X exactly, so that an image is a row of the product's matrix as it
/// lies in memory.
pub(super) fn covers(geometry: &Geometry) -> bool {
    let is_covered = |axis: &Axis| {
        axis.input == axis.kernel && axis.pad_begin + axis.pad_end == 0 && (axis.dilation == 1 || axis.kernel == 1)
    };
    geometry.axes.iter().all(is_covered)
}

/// The offer for a geometry that is [covered](covers), with weights packed in blocks of `block`
/// channels.
pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, block: usize, most: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let (prices, most_bytes) = (machine.prices(), most_bytes(machine));
    let tiles = |images: usize| {
        ChannelTiles::<T::Acc>::new(machine, images).ok_or_else(|| String::from("no kernel for this tile"))
    };
    let product = (geometry.out_channels_per_group(), geometry.kernel_volume());
    let weights = Weights::new(geometry, product, tiles(1)?.panels, block)?;
    let (steps, panels, bytes) = (weights.steps(), weights.rows.div_ceil(weights.nr), size_of::<T::Acc>());
    let threads = if request.threads == 1 { 1 } else { request.threads.div_ceil(geometry.batch * geometry.group) };
    let splits = panels.div_ceil(MOST_PANELS).max(threads).min(panels);
    let share = panels.div_ceil(splits) * weights.nr;
    // By the batch, not by a band: no sum depends on a limit, or on threads.
    let kc = steps.clamp(1, (block_values(machine) / geometry.batch).max(KC));
    let lens = |images: usize| [images * kc, images * share];
    let fits = |images: &usize| lens(*images).iter().sum::<usize>() * bytes <= most_bytes.min(most);
    let images = (1..=geometry.batch.min(most_bytes / bytes / KC)).rev().find(fits).unwrap_or(1);
    let bands = Blocks::new(geometry.batch, images);
    let (lens, k) = (lens(bands.size()), Blocks::new(steps, kc));
    let tiles = [tiles(bands.size())?, tiles(bands.last().len())?];
    let cycles = |tiles: &ChannelTiles<T::Acc>| {
        let calls = (tiles.count * panels * k.count()) as f64 * prices.kernel_call_cycles;
        // Written with the bias, kept between blocks of K, read to be finished.
        let sums =
            (tiles.width * weights.rows.div_ceil(tiles.lanes())) as f64 * prices.sum_cycles * (2 + k.count()) as f64;
        let copies = (tiles.width * steps * splits) as f64;
        tiles.cycles(machine, weights.rows) * steps as f64 + calls + sums + copies + prices.task_cycles * splits as f64
    };
    let cycles = (bands.count() - 1) as f64 * cycles(&tiles[0]) + cycles(&tiles[1]);
    Ok(Offer::old(
        request.machine,
        weights.groups as f64 * cycles / machine.clock_ghz,
        lens.map(lines_for::<T::Acc>).iter().fold(0, |sum, lines| sum.saturating_add(*lines)),
        Box::new(move || {
            let koff = [&tiles[0], &tiles[1]].map(|tiles| RowOffsets::packed(k.size(), tiles.width));
            let (isa, finish) = (request.isa(), Finish::new(request));
            Box::new(Images { isa, finish, weights, bands, tiles, koff, k, splits, lens })
        }),
    ))
}

struct Images<T: Element> {
    isa: Isa,
    finish: Finish<T::Acc>,
    weights: Weights,
    /// Images that share a read of the weights.
    bands: Blocks,
    /// For a full band, and for the last one: the tiles, and the rows of transposed X.
    tiles: [ChannelTiles<T::Acc>; 2],
    koff: [RowOffsets; 2],
    /// Blocks of K.
    k: Blocks,
    /// Shares that the panels of weights are split into.
    splits: usize,
    /// Values of scratch: X, and sums.
    lens: [usize; 2],
}

impl<T: Element> Split for Images<T> {
    fn tasks(&self) -> usize {
        self.bands.count() * self.weights.groups * self.splits
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let part = self.weights.part((task, self.tasks()), self.splits);
        patch(Patch::rows(self.bands.range(part.image), self.weights.channels_of(&part), 0..1, 1));
    }
}

impl<T: Element> Lowering<T> for Images<T> {
    fn layout(&self) -> WeightLayout {
        self.weights.layout()
    }

    fn describe(&self) -> String {
        alloc::format!(
            "{}, {} images at a time as pixels, K in blocks of {}, panels in {} shares",
            self.kernel(),
            self.bands.size(),
            self.k.size(),
            self.splits
        )
    }

    fn kernel(&self) -> &'static str {
        self.tiles[0].name()
    }

    fn packed_len(&self, _: &Geometry) -> usize {
        self.weights.len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        self.weights.pack(w, packed);
    }

    /// One share of the panels, for one group of one band of images.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let Weights { groups, rows, channels, block, taps, nr, .. } = self.weights;
        let steps = self.weights.steps();
        let Part { image: band, group, panels, .. } = self.weights.part((task, self.tasks()), self.splits);
        let images = self.bands.range(band);
        let is_last = usize::from(images.len() != self.bands.size());
        let (tiles, koff) = (&self.tiles[is_last], &self.koff[is_last]);
        let mut arena = Arena::new(scratch);
        let (x, sums) = (arena.take::<T::Acc>(self.lens[0]), arena.take::<T::Acc>(self.lens[1]));
        let weights = self.weights.of_group(io.weights, group);
        let channel = |p: usize| p * nr;
        let width = |p: usize| tiles.panel(rows - channel(p));
        // The sums of a panel: images, one behind the other. Those of a single image are one row
        // over all panels, for what begins and ends them.
        let sums_at = |p: usize| (p - panels.start) * tiles.width * nr;
        let joined = if tiles.width == 1 { panels.len().max(1) } else { 1 };
        let spans = || {
            panels.clone().step_by(joined).map(|p| {
                let end = channel(p + joined);
                (p, channel(p)..end.min(rows), end.min(self.weights.padded) - channel(p))
            })
        };
        for (p, channels, padded) in spans() {
            for row in sums[sums_at(p)..][..tiles.width * padded].chunks_exact_mut(padded) {
                let (body, rest) = row.split_at_mut(channels.len());
                body.copy_from_slice(&io.bias[group * rows..][channels.clone()]);
                rest.fill(T::Acc::ZERO);
            }
        }
        // Without channels there is nothing but the bias.
        for k in self.k.iter().filter(|k| !k.is_empty()) {
            for (i, image) in images.clone().enumerate() {
                let row = &io.x[(image * groups + group) * steps..][..steps];
                if taps == 1 && tiles.width == 1 {
                    stream::widen(self.isa, &row[k.clone()], &mut x[..k.len()]);
                    continue;
                }
                for (x, k) in x.chunks_exact_mut(tiles.width).zip(k.clone()) {
                    let (tap, c) = if taps == 1 { (0, k) } else { step_of(k, channels, taps, block) };
                    x[i] = row[c * taps + tap].to_acc();
                }
            }
            // Of a single image, the wide panels are multiplied in one call: with all of K, they
            // and their sums lie one behind the other.
            let is_one_call = tiles.width == 1 && k.len() == steps;
            let wide = panels.clone().take_while(|p| is_one_call && width(*p) == nr).count();
            if wide > 0 {
                let w = &weights[channel(panels.start) * steps..];
                tiles.kernel(1, nr).panels(wide, x, koff.rows(0..k.len()), w, sums, true);
            }
            for p in panels.clone().skip(wide) {
                let of_panel = |p: usize| {
                    let panel = &weights[channel(p) * steps..];
                    &panel[k.start * width(p)..k.end * width(p)]
                };
                // While a panel is multiplied, the next one is fetched.
                let next = if p + 1 < panels.end { of_panel(p + 1) } else { &[] };
                let kernel = tiles.kernel(tiles.pixels(0).len(), rows - channel(p));
                // Of several blocks of K, a panel's next one lies behind the first, and not the
                // next panel.
                let fetch = if k.len() == steps { Fetch::behind } else { Fetch::new };
                let mut fetch = fetch(next, tiles.count, kernel, tiles.rate());
                for t in 0..tiles.count {
                    let pixels = tiles.pixels(t);
                    let kernel = tiles.kernel(pixels.len(), rows - channel(p));
                    let tile = &mut sums[sums_at(p) + pixels.start * width(p)..][..pixels.len() * width(p)];
                    let (x, koff) = (&x[pixels.start..], koff.rows(0..k.len()));
                    kernel.partial(x, koff, of_panel(p), fetch.during(k.len()), tile, true);
                }
            }
        }
        let sink = self.finish.sink(io);
        for (p, channels, padded) in spans() {
            let sums = sums[sums_at(p)..][..tiles.width * padded].chunks_exact_mut(padded);
            for (image, sums) in images.clone().zip(sums) {
                let at = (image * groups + group) * rows + channels.start;
                sink.row(&mut sums[..channels.len()], T::Acc::ZERO, at);
            }
        }
    }
}

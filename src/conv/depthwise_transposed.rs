//! Depthwise ConvTranspose of stride 2 with a short kernel, straight from X.
//!
//! There is no GEMM: an output is a sum of few products (4 for a 4x4 kernel). Kernels read X itself, and
//! write Y once, in whole vectors. Rows of X shorter than [`DepthwiseTransposedKernel::LEAST_WIDTH`] are
//! left to [`exact`].
//!
//! A unit of work is a chunk of output rows of one channel of one image; with one thread, all its rows.
//! Scratch of a task: the rows of X of a chunk, if X is of a 16-bit type, and the chunk's sums, if
//! kernels cannot store into Y.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::{Range, RangeInclusive};

use convoke_kernels::catalogue::depthwise_transposed_kernels;
use convoke_kernels::stream;
use convoke_kernels::{DepthwiseTransposedInput, DepthwiseTransposedKernel, DepthwiseTransposedOutput, Dest, Isa};

use super::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request, last_axes};
use super::exact;
use super::layout::WeightLayout;
use super::shares::TASKS_PER_THREAD;
use super::store::Finish;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Split};
use crate::exec::{Arena, Ledger, Line, Piece, share};
use crate::machine::{Item, Machine, Work};
use crate::units::Count;
use crate::{Axis, Geometry};

const TAPS: RangeInclusive<usize> = 2..=5;

const STRIDE: usize = 2;

/// An axis has fewer positions than this, padding included. Kernels multiply two such numbers, which
/// must not overflow.
const MOST_PLACES: usize = DepthwiseTransposedKernel::<f32>::MOST_PLACES;

/// Bytes of the sums of a chunk, if kernels cannot store into Y. They stay in the L1 cache, beside X's
/// rows.
fn chunk_bytes(machine: &Machine) -> usize {
    machine.l1_bytes / 3 * 2
}

/// Bytes of a task's scratch, at most: a limit of memory.
const MOST_BYTES: usize = 4 << 20;

/// Output rows of a chunk, at least, if a channel is cut: neighbouring chunks read some of the same rows
/// of X.
const LEAST_CHUNK_ROWS: usize = 8;

/// ConvTranspose with one channel a group, on one or two axes, of stride 2, without dilation, and with 2
/// to 5 taps: equally many on both axes, or only on W.
pub(crate) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let (inputs, outputs) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    if (inputs, outputs) != (1, 1) {
        return Err(alloc::format!("{inputs} input and {outputs} output channels a group, only 1 and 1"));
    }
    let (h, w) = last_axes(geometry)?;
    let is_short = |axis: &Axis| axis.stride == STRIDE && TAPS.contains(&axis.kernel);
    let is_square = is_short(&h) && h.kernel == w.kernel;
    let is_row = (h.stride, h.kernel) == (1, 1);
    if !is_short(&w) || !(is_square || is_row) || h.dilation > 1 || w.dilation > 1 {
        return Err(alloc::format!(
            "no kernel for {}x{} taps of strides {} and {}, dilations {} and {}",
            h.kernel,
            w.kernel,
            h.stride,
            w.stride,
            h.dilation,
            w.dilation
        ));
    }
    let places = [h.input, w.input, w.output, w.pad_begin, h.output.saturating_add(h.pad_begin)];
    if let Some(most) = places.into_iter().max().filter(|place| *place >= MOST_PLACES) {
        return Err(alloc::format!("an axis has {most} places, only fewer than {MOST_PLACES} can be"));
    }
    Ok(())
}

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let (h, w) = last_axes(geometry)?;
    if w.input < DepthwiseTransposedKernel::<T::Acc>::LEAST_WIDTH {
        // Such rows gain nothing from kernels, but packed weights have to serve every size.
        return Ok(exact::offer(request));
    }
    let serves = |k: &&DepthwiseTransposedKernel<T::Acc>| k.stride() == h.stride && k.kernel() == (h.kernel, w.kernel);
    let kernel = depthwise_transposed_kernels::<T::Acc>(request.isa())
        .iter()
        .find(serves)
        .ok_or_else(|| String::from("no kernels for this instruction set"))?;
    let finish = Finish::new(request);
    let chunks = DepthwiseTransposedChunks::new(request, (&h, &w), finish.is_direct(), most_bytes);

    let mut scratch = Ledger::default();
    let seen = if T::DIRECT { 0 } else { rows_seen(&h, chunks.rows) * w.input };
    let sums = if finish.is_direct() { 0 } else { chunks.rows * w.output };
    if (seen + sums) * size_of::<T::Acc>() > MOST_BYTES {
        return Err(alloc::format!("rows of X and of the output exceed {MOST_BYTES} bytes"));
    }
    let (seen, sums) = (scratch.book("rows of X", seen), scratch.book("sums", sums));
    let recipe = Recipe {
        kernel: kernel.name(),
        details: alloc::format!(
            "{}, {} of {}, {} in all",
            kernel.name(),
            Count(chunks.count, "chunk"),
            Count(chunks.rows, "row"),
            Count(chunks.units(), "unit")
        ),
        layout: WeightLayout::AsGiven,
        packed_len: geometry.weight_len(),
        tasks: chunks.tasks,
        scratch,
        work: chunks.work(request.machine, (&h, &w), kernel.lanes()),
    };
    let build: Build<'a, T> = Box::new(move || {
        let (geometry, isa) = (geometry.clone(), request.isa());
        Box::new(DepthwiseTransposed { geometry, isa, finish, kernel, h, w, chunks, seen, sums })
    });
    Ok(Offer { recipe, build })
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct DepthwiseTransposedChunks {
    channels: usize,
    /// Output rows of a chunk, and chunks of a channel.
    rows: usize,
    count: usize,
    tasks: usize,
}

impl DepthwiseTransposedChunks {
    /// Cuts a channel if there are too few channels for the threads, or if its sums, which kernels
    /// cannot store into Y, would leave the cache. The sums take at most `most_bytes`.
    fn new<T: Element>(request: &Request<'_, T>, (h, w): (&Axis, &Axis), is_direct: bool, most_bytes: usize) -> Self {
        let channels = request.geometry.batch * request.geometry.group;
        let tasks = TASKS_PER_THREAD * request.threads;
        let chunks = if request.threads == 1 { 1 } else { tasks.div_ceil(channels) };
        let mut rows = h.output.div_ceil(chunks).max(LEAST_CHUNK_ROWS);
        if !is_direct {
            rows = rows.min(chunk_bytes(request.machine).min(most_bytes) / (w.output * size_of::<T::Acc>()));
        }
        let rows = rows.clamp(1, h.output);
        let count = h.output.div_ceil(rows);
        Self { channels, rows, count, tasks: tasks.min(channels * count) }
    }

    fn units(&self) -> usize {
        self.channels * self.count
    }

    fn work(&self, machine: &Machine, (h, w): (&Axis, &Axis), lanes: usize) -> Work {
        // A step makes a pair of vectors of a row, with all their phases.
        let steps = (h.output + h.pad_begin % h.stride).div_ceil(h.stride) * w.output.div_ceil(2 * lanes);
        let step = Item::ARITHMETIC_CYCLES.times((h.kernel * w.kernel) as f64 / machine.fmas_per_cycle)
            + Item::STORED_VECTORS.times(2.0 * h.stride as f64);
        let channel = step * steps as f64 + Item::KERNEL_CALLS.times(self.count as f64);
        channel * self.channels as f64 + Item::TASKS.times(1.0)
    }
}

struct DepthwiseTransposed<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    kernel: &'static DepthwiseTransposedKernel<T::Acc>,
    h: Axis,
    w: Axis,
    chunks: DepthwiseTransposedChunks,
    /// The rows of X that a chunk reads, and its sums.
    seen: Piece<T::Acc>,
    sums: Piece<T::Acc>,
}

impl<T: Element> DepthwiseTransposed<T> {
    /// The channel, counted over the images, and the output rows of a unit.
    fn unit(&self, unit: usize) -> (usize, Range<usize>) {
        let DepthwiseTransposedChunks { rows, count, .. } = self.chunks;
        let (channel, chunk) = (unit / count, unit % count);
        (channel, chunk * rows..((chunk + 1) * rows).min(self.h.output))
    }

    /// What a task computes: rows of some channels of one image at a time. These are all whole channels
    /// of the task, or a chunk of one channel. For 16-bit types it is one channel.
    fn parts(&self, task: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut units = share(self.chunks.units(), self.chunks.tasks, task);
        core::iter::from_fn(move || {
            let (plane, rows) = self.unit(units.next()?);
            let mut planes = plane..plane + 1;
            if self.chunks.count == 1 && T::DIRECT {
                planes.end = units.end.min((plane / self.geometry.group + 1) * self.geometry.group);
                units.start = planes.end;
            }
            Some((planes, rows))
        })
    }

    /// Computes output rows `rows` of the channels `planes` of one image; channels count over the
    /// images.
    fn planes(&self, io: &Io<'_, T>, planes: Range<usize>, rows: Range<usize>, [seen, sums]: [&mut [T::Acc]; 2]) {
        let Self { h, w, .. } = self;
        let (spatial, out_spatial, taps) =
            (h.input * w.input, self.geometry.output_spatial(), self.geometry.kernel_volume());
        let first = planes.start % self.geometry.out_channels;
        let channels = first..first + planes.len();
        let weights = &io.weights[channels.start * taps..channels.end * taps];
        let at = planes.start * out_spatial + rows.start * w.output;
        let mut output = DepthwiseTransposedOutput {
            width: w.output,
            cropped: w.pad_begin,
            row: rows.start + h.pad_begin,
            rows: rows.len(),
            plane: out_spatial,
        };
        let store = self.finish.store(io);
        let stores = [Stores::row(at, rows.len() * w.output).times(planes.len(), out_spatial)];
        let (x, bias) = (&io.x[planes.start * spatial..], &io.bias[channels]);
        let stored = T::as_acc(x).and_then(|x| {
            store.direct(at, bias, stores, |mut y, epilogue| {
                self.kernel.run(&self.input(planes.len(), x, h.input, weights), &mut y, &output, &epilogue);
            })
        });
        if stored.is_some() {
            return;
        }
        // X is of a 16-bit type, and there is one plane. Only the rows that the chunk reads are
        // converted, and passed to the kernel.
        let top = (output.row / h.stride).saturating_sub(rows_before(h)).min(h.input);
        let end = ((output.row + rows.len() - 1) / h.stride + 1).clamp(top, h.input);
        output.row -= top * h.stride;
        let (x, sums) = (&x[top * w.input..end * w.input], &mut sums[..rows.len() * w.output]);
        let seen = &mut seen[..x.len()];
        stream::widen(self.isa, x, seen);
        let input = self.input(1, seen, end - top, weights);
        self.kernel.run(&input, &mut Dest::from_slice(sums), &output, &store.staging(bias));
        store.staged_row(sums, at);
    }

    /// What a call reads: the first `height` rows of `planes` channels, from `x` on.
    fn input<'a>(
        &self,
        planes: usize,
        x: &'a [T::Acc],
        height: usize,
        w: &'a [T::Acc],
    ) -> DepthwiseTransposedInput<'a, T::Acc> {
        DepthwiseTransposedInput { planes, x, x_plane: self.geometry.input_spatial(), height, width: self.w.input, w }
    }
}

/// Positions of X that an output reads before its last one, at most.
fn rows_before(axis: &Axis) -> usize {
    axis.kernel.div_ceil(axis.stride) - 1
}

/// Positions of X that `outputs` neighbours read, at most.
fn rows_seen(axis: &Axis, outputs: usize) -> usize {
    (outputs / axis.stride + 2 + rows_before(axis)).min(axis.input)
}

impl<T: Element> Split for DepthwiseTransposed<T> {
    fn tasks(&self) -> usize {
        self.chunks.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (channels, width) = (self.geometry.out_channels, self.w.output);
        for (planes, rows) in self.parts(task) {
            let (image, first) = (planes.start / channels, planes.start % channels);
            let positions = rows.start * width..rows.end * width;
            let channels = first..first + planes.len();
            patch(Patch::rows(image..image + 1, channels, positions, self.geometry.output_spatial()));
        }
    }
}

impl<T: Element> Lowering<T> for DepthwiseTransposed<T> {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let (seen, sums) = (arena.get(self.seen), arena.get(self.sums));
        for (planes, rows) in self.parts(task) {
            self.planes(io, planes, rows, [&mut *seen, &mut *sums]);
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_kernels::Isa;
    use convoke_kernels::catalogue::depthwise_transposed_kernels;

    use super::accepts;
    use crate::ConvTranspose;

    #[test]
    fn accepts_what_there_are_kernels_for() {
        let sizes = || (1..=6).flat_map(|kernel| (1..=3).map(move |stride| (kernel, stride)));
        for (h, w) in sizes().flat_map(|h| sizes().map(move |w| (h, w))) {
            let operator = ConvTranspose::new([3, 1, h.0, w.0]).group(3).strides([h.1, w.1]);
            let is_accepted = accepts(&operator.geometry(&[1, 3, 8, 8]).unwrap()).is_ok();
            for kernels in
                Isa::ALL.map(depthwise_transposed_kernels::<f32>).into_iter().filter(|kernels| !kernels.is_empty())
            {
                let is_there = kernels.iter().any(|k| (k.stride() as i64, k.kernel(), w.1) == (h.1, (h.0, w.0), 2));
                assert_eq!(is_accepted, is_there, "{h:?} {w:?}");
            }
        }
    }
}

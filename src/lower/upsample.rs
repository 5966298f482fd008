//! Depthwise ConvTranspose of stride 2 with a short kernel, straight from X: learned and bilinear
//! upsampling.
//!
//! No GEMM: a channel has K = kernel volume / phases products an output, 4 of a 4x4 kernel. Accepts
//! ConvTranspose of one channel a group on one or two axes, of stride 2, without dilation, whose
//! kernel has a kernel of the table ([`UpsampleKernel`]: square ones of 2 to 5 taps, and one axis
//! alone). X is read where it lies, and Y written once, in whole vectors. Rows of X that are
//! shorter than [`UpsampleKernel::LEAST_WIDTH`] are summed by the definition.
//!
//! A unit of work is a band of output rows of one channel of one image; with one thread, that is
//! all rows. Scratch for a task: of 16-bit types the rows of X that a band sees, and where kernels
//! cannot store into Y, the band's sums.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::catalogue::upsample_kernels;
use convoke_kernels::stream;
use convoke_kernels::{Dest, Isa, Real, UpsampleInput, UpsampleKernel, UpsampleOutput};

use super::sink::{Finish, no_epilogue};
use crate::element::Element;
use crate::exec::region::{Patch, Split, Stores};
use crate::exec::{Arena, Line, lines_for, share};
use crate::lower::contract::{Answer, Io, Lowering, Offer, Request};
use crate::lower::layout::WeightLayout;
use crate::lower::shares::TASKS_PER_THREAD;

use crate::machine::Machine;
use crate::{Axis, Geometry, Op, reference};

/// Bytes of the sums of a band where kernels cannot store into Y: they stay in the L1 cache,
/// beside X's rows.
fn band_bytes(machine: &Machine) -> usize {
    machine.l1_bytes / 3 * 2
}

/// Bytes of scratch, at the most: a limit of memory.
const MOST_BYTES: usize = 4 << 20;

/// Rows of a band, at the least, where a channel is shared: the first of them read again what the
/// band before has read.
const LEAST_BAND: usize = 8;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most: usize) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let prices = machine.prices();
    if geometry.op != Op::ConvTranspose {
        return Err(String::from("only for ConvTranspose"));
    }
    let (inputs, outputs) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    if (inputs, outputs) != (1, 1) {
        return Err(alloc::format!("{inputs} input and {outputs} output channels a group, only 1 and 1"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let (h, w) = match geometry.axes[..] {
        [w] => (Axis::UNIT, w),
        [h, w] => (h, w),
        _ => return Err(alloc::format!("{} spatial axes, only one or two", geometry.axes.len())),
    };
    let kernels = upsample_kernels::<T::Acc>(request.isa());
    let serves = |k: &&UpsampleKernel<T::Acc>| k.stride() == h.stride && k.kernel() == (h.kernel, w.kernel);
    let is_dense = h.dilation == 1 && w.dilation == 1;
    let Some(kernel) = kernels.iter().find(serves).filter(|_| is_dense && w.stride == 2) else {
        return Err(alloc::format!(
            "no kernel for {}x{} taps of strides {} and {}, dilations {} and {}",
            h.kernel,
            w.kernel,
            h.stride,
            w.stride,
            h.dilation,
            w.dilation
        ));
    };
    // Shorter rows are not worth kernels, but weights that are packed for this algorithm serve
    // every size.
    let is_short = w.input < UpsampleKernel::<T::Acc>::LEAST_WIDTH;
    let places = [h.input, w.input, w.output, w.pad_begin, h.output.saturating_add(h.pad_begin)];
    if places.iter().any(|n| *n >= UpsampleKernel::<T::Acc>::MOST_PLACES) {
        return Err(String::from("an axis is too long"));
    }
    let planes = geometry.batch * geometry.group;
    let finish = Finish::new(request);
    let bytes = size_of::<T::Acc>();
    // Bands where channels are too few for the threads, or what kernels cannot store should stay in
    // a cache.
    let shared = if request.threads == 1 { 1 } else { (TASKS_PER_THREAD * request.threads).div_ceil(planes) };
    let mut extent = h.output.div_ceil(shared).max(LEAST_BAND);
    if !finish.is_direct() {
        extent = extent.min(band_bytes(machine).min(most) / (w.output * bytes));
    }
    let extent = extent.clamp(1, h.output);
    let staged = if T::DIRECT { 0 } else { (extent / h.stride + 2 + rows_before(&h)).min(h.input) * w.input };
    let sums = if finish.is_direct() { 0 } else { extent * w.output };
    if (staged + sums) * bytes > MOST_BYTES {
        return Err(alloc::format!("rows of X and of the output exceed {MOST_BYTES} bytes"));
    }
    let bands = h.output.div_ceil(extent);
    let units = planes * bands;
    let lens = [staged, sums];
    // Of each pair of vectors of output and each step: multiply-adds, and the rest.
    let steps = (h.output + h.pad_begin % h.stride).div_ceil(h.stride) * w.output.div_ceil(2 * kernel.lanes());
    let step = (h.kernel * w.kernel) as f64 / machine.fmas_per_cycle + h.stride as f64 * prices.upsample_cycles;
    let through = if finish.is_direct() { 0.0 } else { 2.0 * h.stride as f64 * prices.upsample_cycles };
    let cycles = planes as f64 * (steps as f64 * (step + through) + prices.upsample_plane_cycles * bands as f64)
        + prices.task_cycles;
    Ok(Offer::old(
        request.machine,
        if is_short {
            prices.naive_fma_cycles * geometry.macs() as f64 / machine.clock_ghz
        } else {
            cycles / machine.clock_ghz
        },
        lens.iter().map(|len| lines_for::<T::Acc>(*len)).sum(),
        Box::new(move || {
            Box::new(Upsample {
                geometry: geometry.clone(),
                isa: request.isa(),
                finish,
                kernel,
                h,
                w,
                is_short,
                extent,
                bands,
                units,
                tasks: units.min(TASKS_PER_THREAD * request.threads),
                lens,
            })
        }),
    ))
}

struct Upsample<T: Element> {
    geometry: Geometry,
    isa: Isa,
    finish: Finish<T::Acc>,
    kernel: &'static UpsampleKernel<T::Acc>,
    h: Axis,
    w: Axis,
    /// Whether rows of X are too short for the kernel.
    is_short: bool,
    /// Rows of a band, and bands of a channel.
    extent: usize,
    bands: usize,
    units: usize,
    tasks: usize,
    /// Values of scratch: rows of X, and sums.
    lens: [usize; 2],
}

impl<T: Element> Upsample<T> {
    /// The channel, counted over the images, and the output rows of a unit.
    fn unit(&self, unit: usize) -> (usize, Range<usize>) {
        let (plane, band) = (unit / self.bands, unit % self.bands);
        (plane, band * self.extent..((band + 1) * self.extent).min(self.h.output))
    }

    /// Output rows `rows` of the channels `planes`, counted over the images, of one image.
    fn planes(&self, io: &Io<'_, T>, planes: Range<usize>, rows: Range<usize>, [staged, sums]: [&mut [T::Acc]; 2]) {
        let Self { h, w, .. } = self;
        let (spatial, out_spatial, taps) =
            (h.input * w.input, self.geometry.output_spatial(), self.geometry.kernel_volume());
        let first = planes.start % self.geometry.out_channels;
        let channels = first..first + planes.len();
        let weights = &io.weights[channels.start * taps..channels.end * taps];
        let at = planes.start * out_spatial + rows.start * w.output;
        let mut output = UpsampleOutput {
            width: w.output,
            cropped: w.pad_begin,
            row: rows.start + h.pad_begin,
            rows: rows.len(),
            plane: out_spatial,
        };
        let sink = self.finish.sink(io);
        let stores = [Stores::row(at, rows.len() * w.output).times(planes.len(), out_spatial)];
        if let Some(x) = T::as_acc(&io.x[planes.start * spatial..])
            && let Some((mut y, epilogue)) = sink.direct(at, &io.bias[channels], stores)
        {
            let input = self.input(planes.len(), x, h.input, weights);
            return self.kernel.run(&input, &mut y, &output, &epilogue);
        }
        // The rows of X that are seen.
        let seen = (output.row / h.stride).saturating_sub(rows_before(h)).min(h.input);
        let end = ((output.row + rows.len() - 1) / h.stride + 1).clamp(seen, h.input);
        output.row -= seen * h.stride;
        let zero = [T::Acc::ZERO];
        let epilogue = no_epilogue(&zero);
        for (i, plane) in planes.enumerate() {
            let x = &io.x[plane * spatial..][seen * w.input..end * w.input];
            let x = match T::as_acc(x) {
                Some(x) => x,
                None => {
                    stream::widen(self.isa, x, &mut staged[..x.len()]);
                    &staged[..x.len()]
                }
            };
            let input = self.input(1, x, end - seen, &weights[i * taps..(i + 1) * taps]);
            let sums = &mut sums[..rows.len() * w.output];
            self.kernel.run(&input, &mut Dest::from_slice(sums), &output, &epilogue);
            sink.row(sums, io.bias[first + i], at + i * out_spatial);
        }
    }

    /// What a call reads: channels whose planes begin with the same `height` rows.
    fn input<'a>(&self, planes: usize, x: &'a [T::Acc], height: usize, w: &'a [T::Acc]) -> UpsampleInput<'a, T::Acc> {
        UpsampleInput { planes, x, x_plane: self.geometry.input_spatial(), height, width: self.w.input, w }
    }

    /// Computes outputs by the definition: all of them if rows are short, and otherwise anew those
    /// some of whose taps have no input, because beside weights that are not finite, a product with
    /// zero would not be zero.
    fn define(&self, io: &Io<'_, T>, planes: Range<usize>, rows: Range<usize>) {
        let activation = self.finish.activation().to_f64();
        for plane in planes {
            let bias = io.bias[plane % self.geometry.out_channels].to_f64();
            for row in rows.clone() {
                let is_inside = !self.is_short && has_all_inputs(&self.h, row);
                for column in (0..self.w.output).filter(|o| !is_inside || !has_all_inputs(&self.w, *o)) {
                    let index = plane * self.geometry.output_spatial() + row * self.w.output + column;
                    let x = |at: usize| io.x[at].to_acc().to_f64();
                    let sum = reference::sum(&self.geometry, index, bias, x, |at| io.weights[at].to_f64());
                    let residual = io.residual.map_or(0.0, |r| r[index].to_acc().to_f64());
                    io.y.write(index, T::round_from_f64(activation.apply(sum.value + residual)));
                }
            }
        }
    }
}

/// Positions of X that an output sees before the last one, at the most.
fn rows_before(axis: &Axis) -> usize {
    axis.kernel.div_ceil(axis.stride) - 1
}

/// Whether all taps of the phase of output `o` have an input.
fn has_all_inputs(axis: &Axis, o: usize) -> bool {
    let at = o + axis.pad_begin;
    let mut taps = (at % axis.stride..axis.kernel).step_by(axis.stride);
    taps.all(|k| at.checked_sub(k).is_some_and(|reach| reach / axis.stride < axis.input))
}

impl<T: Element> Split for Upsample<T> {
    fn tasks(&self) -> usize {
        self.tasks
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (channels, width) = (self.geometry.out_channels, self.w.output);
        for (plane, rows) in share(self.units, self.tasks, task).map(|unit| self.unit(unit)) {
            let (image, channel) = (plane / channels, plane % channels);
            let positions = rows.start * width..rows.end * width;
            patch(Patch::rows(image..image + 1, channel..channel + 1, positions, self.geometry.output_spatial()));
        }
    }
}

impl<T: Element> Lowering<T> for Upsample<T> {
    fn layout(&self) -> WeightLayout {
        WeightLayout::AsGiven
    }

    fn describe(&self) -> String {
        alloc::format!("{}, {} bands of {} rows, {} units", self.kernel.name(), self.bands, self.extent, self.units)
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    /// A share of the units.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let mut arena = Arena::new(scratch);
        let [staged, sums] = self.lens.map(|len| arena.take::<T::Acc>(len));
        let units = share(self.units, self.tasks, task);
        let mut unit = units.start;
        while unit < units.end {
            let (plane, rows) = self.unit(unit);
            // Whole channels of an image together.
            let image = (plane / self.geometry.group + 1) * self.geometry.group;
            let planes = plane..if self.bands == 1 { units.end.min(image) } else { plane + 1 };
            unit += planes.len();
            if !self.is_short {
                self.planes(io, planes.clone(), rows.clone(), [&mut *staged, &mut *sums]);
            }
            if self.is_short || !io.is_finite {
                self.define(io, planes, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::has_all_inputs;
    use crate::Axis;

    #[test]
    fn outputs_have_all_inputs_where_the_definition_has() {
        for (kernel, pad_begin) in (2..=5).flat_map(|kernel| (0..7).map(move |pad| (kernel, pad))) {
            let axis = Axis { input: 4, kernel, output: 12, stride: 2, dilation: 1, pad_begin, pad_end: 0 };
            // As if X went on at both ends.
            let wide = Axis { input: 40, output: 40, pad_begin: pad_begin + 20, ..axis };
            let taps = |axis: &Axis, o: usize| {
                let has_input = |k: &usize| (0..axis.input).any(|x| axis.output_position(x, *k) == Some(o));
                (0..kernel).filter(has_input).count()
            };
            for o in 0..axis.output {
                assert_eq!(has_all_inputs(&axis, o), taps(&axis, o) == taps(&wide, o), "{axis:?}, output {o}");
            }
        }
    }
}

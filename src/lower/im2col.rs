//! Conv with the im2col matrix made, a tile of columns at a time, and multiplied by a BLAS: the textbook lowering.
//!
//! M = M/group, K = C/group * kernel volume (channels, then taps, as W lies), N = output positions, for each image and group. Accepts every
//! Conv. Scratch for a task: a tile of the im2col matrix and the product, each of at most [`TILE_BYTES`] or one vector of columns.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::stream;
use convoke_kernels::{Isa, Real};

use super::cost::{IM2COL_ELEMENT, IM2COL_FMA};
use super::finish::Finish;
use super::{Answer, Io, Layout, Lowering, Offer, Request};
use crate::blas::{self, Gemm, Size};
use crate::element::Element;
use crate::exec::{Arena, Line, lines_for};
use crate::plan::Blas;
use crate::{Geometry, Op};

/// Bytes of a tile of the im2col matrix, about, and of a tile of the product.
const TILE_BYTES: usize = 512 << 10;

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>, blas: Blas) -> Answer<'a, T> {
    let geometry = request.geometry;
    if geometry.op != Op::Conv {
        return Err(String::from("only for Conv"));
    }
    if geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    let (rows, k) = (geometry.out_channels_per_group(), geometry.in_channels_per_group() * geometry.kernel_volume());
    let positions = geometry.output_spatial();
    let columns = (TILE_BYTES / size_of::<T::Acc>() / rows.max(k).max(1)).clamp(64, 4096).min(positions);
    let size = Size { rows, k, ld: blas::leading_dimension(columns) };
    if k.checked_mul(size.ld).is_none() || rows.checked_mul(size.ld).is_none() {
        return Err(String::from("a tile of the im2col matrix does not fit the address space"));
    }
    let gemm = blas::backend::<T::Acc>(blas, request.isa, size, request.layout.map(|layout| layout[0]))?;
    let elements = k as f64 * geometry.output_len() as f64 / rows.max(1) as f64;
    let lines = [k * size.ld, rows * size.ld, gemm.tile_len()]
        .map(lines_for::<T::Acc>)
        .into_iter()
        .fold(0, usize::saturating_add);
    Ok(Offer {
        cost: geometry.macs() as f64 * IM2COL_FMA + elements * IM2COL_ELEMENT,
        lines,
        build: Box::new(move || {
            let blocks = positions.div_ceil(columns);
            let (isa, activation) = (request.isa, request.activation);
            Box::new(Im2col { geometry: geometry.clone(), isa, activation, gemm, size, columns, blocks })
        }),
    })
}

struct Im2col<T: Element> {
    geometry: Geometry,
    isa: Isa,
    activation: stream::Activation<T::Acc>,
    gemm: Box<dyn Gemm<T::Acc>>,
    size: Size,
    /// Columns of a tile, and tiles of an image and group.
    columns: usize,
    blocks: usize,
}

impl<T: Element> Lowering<T> for Im2col<T> {
    fn layout(&self) -> Layout {
        alloc::vec![self.gemm.layout()]
    }

    fn describe(&self) -> String {
        alloc::format!("{}, {} columns at a time", self.gemm.kernel(), self.columns)
    }

    fn kernel(&self) -> &str {
        self.gemm.kernel()
    }

    fn packed_len(&self) -> usize {
        self.geometry.weight_len()
    }

    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        let Size { rows, k, .. } = self.size;
        if rows * k == 0 {
            return;
        }
        for (w, packed) in w.chunks_exact(rows * k).zip(packed.chunks_exact_mut(rows * k)) {
            self.gemm.pack(packed, &|row, p| w[row * k + p].to_acc());
        }
    }

    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.group * self.blocks
    }

    /// One tile of columns of one group of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, scratch: &mut [Line]) {
        let geometry = &self.geometry;
        let Size { rows, k, ld } = self.size;
        let (plane, block) = (task / self.blocks, task % self.blocks);
        let (image, group) = (plane / geometry.group, plane % geometry.group);
        let mut arena = Arena::new(scratch);
        let matrix = arena.take::<T::Acc>(k * ld);
        let product = arena.take::<T::Acc>(rows * ld);
        let tile = arena.take::<T::Acc>(self.gemm.tile_len());
        let positions = geometry.output_spatial();
        let first = block * self.columns;
        let n = self.columns.min(positions - first);
        let channels = geometry.in_channels_per_group();
        let x = &io.x[(image * geometry.in_channels + group * channels) * geometry.input_spatial()..];
        self.make_columns(x, first, n, matrix);
        let packed = &io.weights[group * rows * k..(group + 1) * rows * k];
        self.gemm.multiply(packed, matrix, n, product, tile);
        let finish = Finish { isa: self.isa, activation: self.activation, io };
        for (i, sums) in product.chunks_exact_mut(ld).enumerate() {
            let channel = group * rows + i;
            finish.row(&mut sums[..n], io.bias[channel], (image * geometry.out_channels + channel) * positions + first);
        }
    }
}

impl<T: Element> Im2col<T> {
    /// Makes the columns of output positions `first..first + n`: row by row, and in each row one run of outputs of the last axis at a time.
    fn make_columns(&self, x: &[T], first: usize, n: usize, matrix: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let (taps, spatial) = (geometry.kernel_volume(), geometry.input_spatial());
        let last = &geometry.axes[geometry.axes.len() - 1];
        for (row, columns) in matrix.chunks_exact_mut(self.size.ld).enumerate() {
            let (channel, tap) = (row / taps, row % taps);
            let x = &x[channel * spatial..(channel + 1) * spatial];
            let reach = tap % last.kernel * last.dilation;
            let mut done = 0;
            while done < n {
                let position = first + done;
                let o = position % last.output;
                let run = (last.output - o).min(n - done);
                let out = &mut columns[done..done + run];
                done += run;
                let Some(source) = source_row(geometry, position / last.output, tap / last.kernel) else {
                    out.fill(T::Acc::ZERO);
                    continue;
                };
                let x = &x[source * last.input..(source + 1) * last.input];
                // Outputs o + e of the run that see an input element: pad_begin <= begin + e * stride < pad_begin + input.
                let begin = o * last.stride + reach;
                let from = last.pad_begin.saturating_sub(begin).div_ceil(last.stride).min(run);
                let to = (last.pad_begin + last.input).saturating_sub(begin).div_ceil(last.stride).clamp(from, run);
                out[..from].fill(T::Acc::ZERO);
                out[to..].fill(T::Acc::ZERO);
                if from < to {
                    let x = &x[begin + from * last.stride - last.pad_begin..];
                    stream::widen_strided(self.isa, x, last.stride, &mut out[from..to]);
                }
            }
        }
    }
}

/// The row of X, over the axes before the last, that a row of outputs sees through a tap; none where it is padding.
fn source_row(geometry: &Geometry, mut outputs: usize, mut tap: usize) -> Option<usize> {
    let (mut at, mut step) = (0, 1);
    for axis in geometry.axes[..geometry.axes.len() - 1].iter().rev() {
        let (o, k) = (outputs % axis.output, tap % axis.kernel);
        (outputs, tap) = (outputs / axis.output, tap / axis.kernel);
        let i = (o * axis.stride + k * axis.dilation).checked_sub(axis.pad_begin)?;
        if i >= axis.input {
            return None;
        }
        // Wraps only beside an axis without positions, where the row is padding in the end.
        at = i.wrapping_mul(step).wrapping_add(at);
        step = step.wrapping_mul(axis.input);
    }
    Some(at)
}

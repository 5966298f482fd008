//! ConvTranspose: the phases of its strides are filters over the same tiles, and are interleaved on
//! their way into Y.
//!
//! Along an axis of stride s, tap k = t * s + q adds input x to element x * s + k of the output
//! before it is cropped. So the s elements from v * s on, a cell, all read the inputs v, v - 1, and
//! so on: element q through the taps t * s + q. That is a convolution of stride 1 with ceil(kernel
//! / s) taps and s filters, whose outputs are cells; of filters that have a tap less, it is zero. A
//! tile is transformed once for all phases, of which F(5x5, 2x2) takes 36 products instead of 100
//! where the kernel is twice the stride.
//!
//! Filter `(m * phases of the other axes + their phase) * s + q` is phase q of the last axis for
//! output channel m: the phases of a row are neighbours in a vector.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::weave::{Run, Strands};
use convoke_kernels::{Dest, Real, WeaveKernel};

use convoke_kernels::catalogue::weave_kernels;

use super::blocks::Task;
use super::direct::Tile;
use super::fused::{Core, Layer, Needs, Outputs, Rows, Strip, offer_view};
use super::shape::{Roles, View};
use crate::element::Element;
use crate::exec::region::{Patch, Span, Stores};
use crate::lower::contract::{Answer, Io, Request};
use crate::lower::sink::{Finish, no_epilogue};
use crate::{Axis, Geometry};

/// The places of a row's phases: one after the other. A vector has no more lanes.
const SLOTS: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Filters of a group, at the most: beyond, their number might not fit the address space.
const MOST_FILTERS: usize = 1 << 20;

pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let geometry = request.geometry;
    let cells = geometry.axes.iter().enumerate().map(|(i, axis)| Cells::new(i, axis)).collect::<Result<Vec<_>, _>>()?;
    let cells = match *cells {
        [along] => [Cells::ABSENT, Cells::ABSENT, along],
        [down, along] => [Cells::ABSENT, down, along],
        [depth, down, along] => [depth, down, along],
        _ => return Err(alloc::format!("{} spatial axes, only one to three can be", cells.len())),
    };
    let axes = cells.map(|cells| cells.view);
    let phases = cells.iter().try_fold(1_usize, |n, cells| n.checked_mul(cells.stride));
    let rows = phases.and_then(|n| n.checked_mul(geometry.out_channels_per_group()));
    let Some(rows) = rows.filter(|rows| *rows <= MOST_FILTERS) else {
        return Err(alloc::format!("phases of the strides times output channels of a group exceed {MOST_FILTERS}"));
    };
    let roles = Roles::new(&axes)?;
    let view = View {
        batch: geometry.batch,
        groups: geometry.group,
        channels: geometry.in_channels_per_group(),
        rows,
        has_phases: true,
        past_cache: false,
        strides: [1, 1],
        taps: [roles.down.kernel, roles.along.kernel],
        roles,
    };
    let Some(weave) = weave_kernels::<T::Acc>(request.isa()).first() else {
        return Err(String::from("no kernel that interleaves"));
    };
    let along = cells[2].stride;
    if view.rows > 0 && !weave.lanes().is_multiple_of(along) {
        let (axis, lanes) = (geometry.axes.len() - 1, weave.lanes());
        return Err(alloc::format!(
            "spatial axis {axis} has stride {along}, which does not divide a vector's {lanes} lanes"
        ));
    }
    offer_view(request, view, |scheme, _| {
        let direct_len = geometry.weight_len() / geometry.group;
        let finish = Finish::new(request);
        let row = if finish.is_direct() { 0 } else { along };
        let needs = Needs { direct_len, scratch: scheme.along.tile.outputs, row };
        Some((Box::new(Transposed { geometry: geometry.clone(), finish, cells, weave }), needs))
    })
}

/// An axis by cells.
#[derive(Clone, Copy)]
struct Cells {
    /// Elements of a cell, and taps.
    stride: usize,
    kernel: usize,
    /// Elements of the first cell that are cropped.
    cropped: usize,
    /// Elements of the output.
    output: usize,
    /// The axis of the view: its outputs are cells.
    view: Axis,
}

impl Cells {
    /// A spatial axis that is not there.
    const ABSENT: Self = Self { stride: 1, kernel: 1, cropped: 0, output: 1, view: Axis::UNIT };

    /// # Errors
    /// Why the axis is not one for cells.
    fn new(index: usize, axis: &Axis) -> Result<Self, String> {
        if axis.dilation != 1 && axis.kernel != 1 {
            return Err(alloc::format!("spatial axis {index} has dilation {}, only 1 can be", axis.dilation));
        }
        let stride = axis.stride;
        let taps = axis.kernel.div_ceil(stride);
        let first = axis.pad_begin / stride;
        let Some(pad_begin) = (taps - 1).checked_sub(first) else {
            let (pad, most) = (axis.pad_begin, taps * stride - 1);
            return Err(alloc::format!(
                "spatial axis {index} has {pad} pads at its beginning, more than {most} crop whole tiles"
            ));
        };
        let cropped = axis.pad_begin % stride;
        let output = (cropped + axis.output).div_ceil(stride);
        let pad_end = (output + taps - 1).saturating_sub(pad_begin + axis.input);
        let view = Axis { input: axis.input, output, kernel: taps, stride: 1, dilation: 1, pad_begin, pad_end };
        Ok(Self { stride, kernel: axis.kernel, cropped, output: axis.output, view })
    }

    /// The element of Y's axis that is phase `q` of cell `cell`; none where it is cropped.
    fn element(&self, cell: usize, q: usize) -> Option<usize> {
        (cell * self.stride + q).checked_sub(self.cropped).filter(|element| *element < self.output)
    }

    /// The elements of Y's axis that are phase `q` of some cells.
    fn elements(&self, cells: &Range<usize>, q: usize) -> Span {
        // Cells that are cropped are the first or the last ones.
        let cells = cells.start..cells.end.min(self.view.output).max(cells.start);
        let from = cells.clone().find_map(|cell| self.element(cell, q));
        let count = cells.filter(|cell| self.element(*cell, q).is_some()).count();
        Span { size: self.output, start: from.unwrap_or(0), step: self.stride, count }
    }

    /// The elements of Y's axis that are in some cells.
    fn whole_cells(&self, cells: &Range<usize>) -> Span {
        let until = |cell: usize| (cell * self.stride).saturating_sub(self.cropped).min(self.output);
        Span::new(until(cells.start)..until(cells.end), self.output)
    }

    /// The tap of the axis that tap `t` of the view is for phase `q`; none where the phase has a
    /// tap less.
    fn tap(&self, t: usize, q: usize) -> Option<usize> {
        Some((self.view.kernel - 1 - t) * self.stride + q).filter(|k| *k < self.kernel)
    }

    /// The input that tap `t` of the view reads for cell `cell`; none where that is padding.
    fn input(&self, cell: usize, t: usize) -> Option<usize> {
        (cell + t).checked_sub(self.view.pad_begin).filter(|x| *x < self.view.input)
    }
}

/// A filter: an output channel of the group, and a phase of each axis.
#[derive(Clone, Copy)]
struct Filter {
    channel: usize,
    q: [usize; 3],
}

/// The channels of Y whose rows of phase `phase` of the axes before the last are among `heads`:
/// rows, counted by channels and then by `phases`.
fn channels_of_phase(heads: &Range<usize>, phase: usize, phases: usize) -> Range<usize> {
    let until = |head: usize| head.saturating_sub(phase).div_ceil(phases);
    until(heads.start)..until(heads.end)
}

struct Transposed<T: Element> {
    geometry: Geometry,
    finish: Finish<T::Acc>,
    cells: [Cells; 3],
    weave: &'static WeaveKernel<T::Acc>,
}

impl<T: Element> Transposed<T> {
    fn filter_of(&self, row: usize) -> Filter {
        let [depth, down, along] = self.cells.map(|cells| cells.stride);
        let (rest, q_along) = (row / along, row % along);
        let (rest, q_down) = (rest / down, rest % down);
        Filter { channel: rest / depth, q: [rest % depth, q_down, q_along] }
    }

    /// Where a weight is in the group's W, for the tap of each axis.
    fn weight(&self, c: usize, channel: usize, taps: [usize; 3]) -> usize {
        let [_, down, along] = self.cells.map(|cells| cells.kernel);
        let tap = (taps[0] * down + taps[1]) * along + taps[2];
        (c * self.geometry.out_channels_per_group() + channel) * self.geometry.kernel_volume() + tap
    }

    /// The first element of Y of a row.
    fn row_of_y(&self, image: usize, channel: usize, (slice, row): (usize, usize)) -> usize {
        let [_, down, along] = self.cells.map(|cells| cells.output);
        (image * self.geometry.out_channels + channel) * self.geometry.output_spatial() + (slice * down + row) * along
    }
}

impl<T: Element> Layer<T> for Transposed<T> {
    fn filter(&self, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let Filter { channel, q } = self.filter_of(row);
        let [_, down, along] = self.cells.map(|cells| cells.view.kernel);
        for (i, tap) in taps.iter_mut().enumerate() {
            let t = [i / along / down, i / along % down, i % along];
            let k: [_; 3] = core::array::from_fn(|axis| self.cells[axis].tap(t[axis], q[axis]));
            *tap = match k {
                [Some(depth), Some(down), Some(along)] => w[self.weight(c, channel, [depth, down, along])].to_acc(),
                _ => T::Acc::ZERO,
            };
        }
    }

    /// W as it is.
    fn pack_direct(&self, _: &Core<T>, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    /// Filters are the phases of each channel of Y: along, whole cells are neighbours; on the other
    /// axes, each phase has every stride-th element.
    fn patches(&self, _: &Core<T>, part: &Outputs, patch: &mut dyn FnMut(Patch)) {
        let [depth, down, along] = &self.cells;
        let outer = depth.stride * down.stride;
        let heads = part.filters.start / along.stride..part.filters.end / along.stride;
        for phase in 0..outer {
            let channels = channels_of_phase(&heads, phase, outer);
            let first = part.group * self.geometry.out_channels_per_group();
            patch(Patch {
                images: part.sub.image..part.sub.image + 1,
                channels: first + channels.start..first + channels.end,
                axes: [
                    depth.elements(&part.slices, phase / down.stride),
                    down.elements(&part.rows, phase % down.stride),
                    along.whole_cells(&part.columns),
                ],
            });
        }
    }

    fn store(&self, core: &Core<T>, io: &Io<'_, T>, strip: &Strip<'_, T::Acc>, rows: Rows<'_, T::Acc>) -> bool {
        let is_good = core.store_rows(strip, &mut *rows.rows, rows.marks);
        let [depth, down, along] = &self.cells;
        let outer = depth.stride * down.stride;
        // The elements of Y's rows, and the phase that the first one is.
        let begin = (strip.x * along.stride).saturating_sub(along.cropped);
        let end = ((strip.x + strip.width) * along.stride - along.cropped).min(along.output);
        let phase = begin + along.cropped - strip.x * along.stride;
        let run = [Run { from: 0, phase, at: begin, len: end.saturating_sub(begin) }];
        // Whole rows: their phases are neighbours, and no vector ends among them.
        let heads = strip.filters.start / along.stride..strip.filters.end / along.stride;
        let lane = core.row_at(1, 0);
        let sink = self.finish.sink(io);
        for phase in 0..outer {
            // The channels of Y whose row of this phase is here.
            let channels = channels_of_phase(&heads, phase, outer);
            if channels.is_empty() {
                continue;
            }
            let Some(slice) = depth.element(strip.slice, phase / down.stride) else { continue };
            let first = (channels.start * outer + phase - heads.start) * along.stride;
            for i in 0..strip.height {
                let Some(row) = down.element(strip.y + i, phase % down.stride) else { continue };
                let sums = &rows.rows[core.row_at(first, i)..];
                let slots = &SLOTS[..along.stride];
                let strands = Strands { sums, slots, step: lane, pitch: outer * along.stride * lane };
                let channel = strip.task.group * self.geometry.out_channels_per_group() + channels.start;
                let at = self.row_of_y(strip.sub.image, channel, (slice, row));
                let bias = &io.bias[channel..channel + channels.len()];
                let stores = [Stores::row(at + begin, run[0].len).times(bias.len(), self.geometry.output_spatial())];
                if let Some((mut y, epilogue)) = sink.direct(at, bias, stores) {
                    self.weave.run(&strands, &run, &epilogue, &mut y, self.geometry.output_spatial());
                    continue;
                }
                for (c, bias) in bias.iter().enumerate() {
                    let sums = &strands.sums[c * strands.pitch..];
                    let row = &mut rows.row[..run[0].len];
                    let plain = no_epilogue(&core.zeros[..1]);
                    let runs = [Run { at: 0, ..run[0] }];
                    self.weave.run(&Strands { sums, ..strands }, &runs, &plain, &mut Dest::from_slice(row), 0);
                    sink.row(row, *bias, at + c * self.geometry.output_spatial() + begin);
                }
            }
        }
        is_good
    }

    /// Only contributions that exist: neither padding nor taps that a phase has less are multiplied
    /// by what may not be finite.
    fn compute(&self, core: &Core<T>, io: &Io<'_, T>, task: &Task<'_, T::Acc>, tile: &Tile, scratch: &mut [T::Acc]) {
        let w = &core.group(io.weights, task.group)[core.layout.direct()];
        let sink = self.finish.sink(io);
        let Roles { down, along, .. } = &core.view.roles;
        let rows = tile.y..down.output.min(tile.y + core.scheme.down.tile.outputs);
        let columns = tile.x..along.output.min(tile.x + core.scheme.along.tile.outputs);
        for filter in tile.filters.clone().map(|row| self.filter_of(row)) {
            let channel = task.group * self.geometry.out_channels_per_group() + filter.channel;
            let Some(slice) = self.cells[0].element(tile.slice, filter.q[0]) else { continue };
            for y in rows.clone() {
                let Some(row) = self.cells[1].element(y, filter.q[1]) else { continue };
                let sums = &mut scratch[..columns.len()];
                sums.fill(T::Acc::ZERO);
                self.sum(io, w, (task.group, tile.sub.image), filter, (tile.slice, y, columns.clone()), sums);
                // Cells that are cropped are the first or the last ones.
                let of_y = |x: usize| self.cells[2].element(x, filter.q[2]);
                let mut live = columns.clone().filter(|x| of_y(*x).is_some());
                let Some(first) = live.next() else { continue };
                let last = live.next_back().unwrap_or(first);
                let sums = &mut sums[first - tile.x..=last - tile.x];
                let at = self.row_of_y(tile.sub.image, channel, (slice, row)) + of_y(first).unwrap_or(0);
                sink.strided(sums, io.bias[channel], at, self.cells[2].stride);
            }
        }
    }
}

impl<T: Element> Transposed<T> {
    /// Adds the products of one filter to `sums`, for the cells `columns` of one row of cells.
    fn sum(
        &self,
        io: &Io<'_, T>,
        w: &[T::Acc],
        (group, image): (usize, usize),
        filter: Filter,
        (slice, row, columns): (usize, usize, Range<usize>),
        sums: &mut [T::Acc],
    ) {
        let [depth, down, along] = &self.cells;
        let channels = self.geometry.in_channels_per_group();
        let Filter { channel, q } = filter;
        for t_depth in 0..depth.view.kernel {
            let (Some(k_depth), Some(z)) = (depth.tap(t_depth, q[0]), depth.input(slice, t_depth)) else { continue };
            for t_down in 0..down.view.kernel {
                let (Some(k_down), Some(y)) = (down.tap(t_down, q[1]), down.input(row, t_down)) else { continue };
                for t in 0..along.view.kernel {
                    let Some(k) = along.tap(t, q[2]) else { continue };
                    for c in 0..channels {
                        let w = w[self.weight(c, channel, [k_depth, k_down, k])];
                        let plane = image * self.geometry.in_channels + group * channels + c;
                        let begin = ((plane * depth.view.input + z) * down.view.input + y) * along.view.input;
                        let x = &io.x[begin..begin + along.view.input];
                        for (sum, cell) in sums.iter_mut().zip(columns.clone()) {
                            if let Some(at) = along.input(cell, t) {
                                *sum = *sum + w * x[at].to_acc();
                            }
                        }
                    }
                }
            }
        }
    }
}

//! ConvTranspose: the phases of its strides are filters over the same tiles, and are interleaved on
//! their way into Y.
//!
//! Along an axis of stride s, tap k = t * s + q adds input x to element x * s + k of the output
//! before it is cropped. The s elements from v * s on are called a cell. All of them read the
//! inputs v, v - 1, and so on; element q reads them through the taps t * s + q. That is a
//! convolution of stride 1 with ceil(kernel / s) taps and s filters, whose outputs are cells.
//! Filters with a tap less are zero there. A tile is transformed once for all phases: F(5x5, 2x2)
//! takes 36 products for a phase instead of 100, where the kernel is twice the stride.
//!
//! Filter `(m * phases of the other axes + their phase) * s + q` is phase q of the last axis for
//! output channel m. So the phases of a row are neighbours in a vector.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::array;
use core::ops::Range;

use convoke_kernels::catalogue::weave_kernels;
use convoke_kernels::weave::{Run, Strands};
use convoke_kernels::{Dest, Real, WeaveKernel};

use super::cells::CellAxis;
use super::common::{StripScratch, TileStrip, WinogradCore};
use super::direct::DirectTile;
use super::operator::{OutputBox, WinogradOperator};
use super::recipe::{BuildOperator, offer_view};
use super::scratch::OperatorNeeds;
use super::view::{AxisRoles, PixelStores, WinogradView};
use crate::Geometry;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::Patch;
use crate::lower::contract::{Answer, Io, Request};
use crate::lower::sink::{Finish, no_epilogue};

/// The lanes of the widest vectors that any instruction set has.
const MOST_LANES: usize = 16;
/// The places of a row's phases: one after the other.
const SLOTS: [usize; MOST_LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// The most filters of a group. More might not fit the address space.
const MOST_FILTERS: usize = 1 << 20;

pub(super) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let cells = cells(geometry)?;
    view(geometry, &cells)?.check_steps()?;
    check_lanes(&cells[2], MOST_LANES, "the widest vectors")
}

/// The axes by cells.
///
/// # Errors
/// The rule that an axis breaks.
fn cells(geometry: &Geometry) -> Result<[CellAxis; 3], String> {
    let axes = geometry.axes.iter().enumerate();
    let cells = axes.map(|(i, axis)| CellAxis::new(i, axis)).collect::<Result<Vec<_>, _>>()?;
    match *cells {
        [along] => Ok([CellAxis::ABSENT, CellAxis::ABSENT, along]),
        [down, along] => Ok([CellAxis::ABSENT, down, along]),
        [depth, down, along] => Ok([depth, down, along]),
        _ => Err(format!("{} spatial axes, only one to three can be", cells.len())),
    }
}

/// The layer with the phases of its strides as filters.
///
/// # Errors
/// The rule that the layer breaks.
fn view(geometry: &Geometry, cells: &[CellAxis; 3]) -> Result<WinogradView, String> {
    let phases = cells.iter().try_fold(1_usize, |n, cells| n.checked_mul(cells.stride));
    let rows = phases.and_then(|n| n.checked_mul(geometry.out_channels_per_group()));
    let Some(rows) = rows.filter(|rows| *rows <= MOST_FILTERS) else {
        return Err(format!("phases of the strides times output channels of a group exceed {MOST_FILTERS}"));
    };
    let roles = AxisRoles::new(&cells.map(|cells| cells.view))?;
    Ok(WinogradView {
        batch: geometry.batch,
        groups: geometry.group,
        channels: geometry.in_channels_per_group(),
        strides: [1, 1],
        taps: [roles.down.kernel, roles.along.kernel],
        rows,
        stores: PixelStores::Interleaved,
        roles,
    })
}

/// Checks that the phases of the last axis fill whole vectors of `lanes` lanes. `vectors` says in
/// words which vectors these are.
///
/// # Errors
/// The stride that does not divide the lanes.
fn check_lanes(cells: &CellAxis, lanes: usize, vectors: &str) -> Result<(), String> {
    match lanes.is_multiple_of(cells.stride) {
        true => Ok(()),
        false => Err(format!(
            "spatial axis {} has stride {}, which does not divide the {lanes} lanes of {vectors}",
            cells.index, cells.stride
        )),
    }
}

pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let cells = cells(geometry)?;
    let view = view(geometry, &cells)?;
    let Some(weave) = weave_kernels::<T::Acc>(request.isa()).first() else {
        return Err(String::from("no kernel that interleaves"));
    };
    check_lanes(&cells[2], weave.lanes(), "this instruction set's vectors")?;
    offer_view(request, view, most_bytes, |scheme, _| {
        let direct_len = geometry.weight_len() / geometry.group;
        // A vector of filters is `lanes / stride` channels, which have `stride` elements of Y for each
        // pixel.
        let interleaved = if Finish::new(request).is_direct() { 0 } else { scheme.kernel.lanes() };
        let needs = OperatorNeeds { direct_len, direct_scratch: scheme.along.tile.outputs, interleaved };
        let build: BuildOperator<'a, T> = Box::new(move |_| {
            let (geometry, finish) = (geometry.clone(), Finish::new(request));
            Box::new(WinogradTransposed { geometry, finish, cells, weave })
        });
        Some((build, needs))
    })
}

/// A filter: an output channel of the group, and a phase of each axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PhaseFilter {
    channel: usize,
    q: [usize; 3],
}

/// The channels of Y that have their row of phase `phase` among the rows `heads`. Rows are counted
/// over channels, and for each channel over the `phases` of the axes before the last.
fn channels_of_phase(heads: &Range<usize>, phase: usize, phases: usize) -> Range<usize> {
    let until = |head: usize| head.saturating_sub(phase).div_ceil(phases);
    until(heads.start)..until(heads.end)
}

struct WinogradTransposed<T: Element> {
    geometry: Geometry,
    finish: Finish<T::Acc>,
    cells: [CellAxis; 3],
    weave: &'static WeaveKernel<T::Acc>,
}

impl<T: Element> WinogradTransposed<T> {
    fn filter_of(&self, row: usize) -> PhaseFilter {
        let [depth, down, along] = self.cells.map(|cells| cells.stride);
        let (rest, q_along) = (row / along, row % along);
        let (rest, q_down) = (rest / down, rest % down);
        PhaseFilter { channel: rest / depth, q: [rest % depth, q_down, q_along] }
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

impl<T: Element> WinogradOperator<T> for WinogradTransposed<T> {
    fn filter(&self, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let PhaseFilter { channel, q } = self.filter_of(row);
        let [_, down, along] = self.cells.map(|cells| cells.view.kernel);
        for (i, tap) in taps.iter_mut().enumerate() {
            let t = [i / along / down, i / along % down, i % along];
            let k: [_; 3] = array::from_fn(|axis| self.cells[axis].tap(t[axis], q[axis]));
            *tap = match k {
                [Some(depth), Some(down), Some(along)] => w[self.weight(c, channel, [depth, down, along])].to_acc(),
                _ => T::Acc::ZERO,
            };
        }
    }

    /// W as it is.
    fn pack_direct(&self, _: &WinogradCore<T>, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    /// Filters are the phases of each channel of Y. Along, all phases of a cell are here. On the
    /// other axes, a phase has every stride-th element.
    fn patches(&self, _: &WinogradCore<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch)) {
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

    fn store(
        &self,
        core: &WinogradCore<T>,
        io: &Io<'_, T>,
        strip: &TileStrip<'_, T::Acc>,
        scratch: StripScratch<'_, T::Acc>,
    ) -> bool {
        let zeros = [T::Acc::ZERO; MOST_LANES];
        let plain = no_epilogue(&zeros[..strip.filters.len()]);
        let is_good = core.store_rows(strip, &plain, &mut *scratch.rows, scratch.marks);
        for good in core.good_pixels(strip, scratch.marks) {
            self.interleave(core, io, strip, good, (scratch.rows, scratch.interleaved));
        }
        is_good
    }

    /// Only contributions that exist. What may not be finite is multiplied neither by padding nor
    /// by taps that a phase does not have.
    fn compute(&self, core: &WinogradCore<T>, io: &Io<'_, T>, tile: &DirectTile, scratch: &mut [T::Acc]) {
        let geometry = &self.geometry;
        let channels = geometry.in_channels_per_group();
        let first = (tile.sub.image * geometry.in_channels + tile.group * channels) * geometry.input_spatial();
        let x = &io.x[first..first + channels * geometry.input_spatial()];
        let w = &core.group(io.weights, tile.group)[core.layout.direct()];
        let sink = self.finish.sink(io);
        let (AxisRoles { down, along, .. }, scheme) = (&core.view.roles, &core.blocking.scheme);
        let rows = tile.y..down.output.min(tile.y + scheme.down.tile.outputs);
        let columns = tile.x..along.output.min(tile.x + scheme.along.tile.outputs);
        for filter in tile.filters.clone().map(|row| self.filter_of(row)) {
            let channel = tile.group * geometry.out_channels_per_group() + filter.channel;
            let Some(slice) = self.cells[0].element(tile.slice, filter.q[0]) else { continue };
            for y in rows.clone() {
                let Some(row) = self.cells[1].element(y, filter.q[1]) else { continue };
                let sums = &mut scratch[..columns.len()];
                sums.fill(T::Acc::ZERO);
                self.sum((x, w), filter, [tile.slice, y, tile.x], sums);
                // Cropped cells are the first or the last ones.
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

impl<T: Element> WinogradTransposed<T> {
    /// Interleaves the phases of some cells of a strip, and stores them. The cells are counted from
    /// the strip's first one. There is scratch for rows of Y.
    fn interleave(
        &self,
        core: &WinogradCore<T>,
        io: &Io<'_, T>,
        strip: &TileStrip<'_, T::Acc>,
        cells: Range<usize>,
        (rows, scratch): (&[T::Acc], &mut [T::Acc]),
    ) {
        let [depth, down, along] = &self.cells;
        let outer = depth.stride * down.stride;
        // The elements of Y's rows, and the phase of the first one.
        let (first, last) = ((strip.x + cells.start) * along.stride, (strip.x + cells.end) * along.stride);
        let begin = first.saturating_sub(along.cropped);
        let end = (last - along.cropped).min(along.output);
        let phase = begin + along.cropped - first;
        let run = [Run { from: cells.start, phase, at: begin, len: end.saturating_sub(begin) }];
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
                let sums = &rows[core.row_at(first, i)..];
                let slots = &SLOTS[..along.stride];
                let strands = Strands { sums, slots, step: lane, pitch: outer * along.stride * lane };
                let channel = strip.task.group * self.geometry.out_channels_per_group() + channels.start;
                let at = self.row_of_y(strip.sub.image, channel, (slice, row));
                let bias = &io.bias[channel..channel + channels.len()];
                let stores = [Stores::row(at + begin, run[0].len).times(bias.len(), self.geometry.output_spatial())];
                let stored = sink.direct(at, bias, stores, |mut y, epilogue| {
                    self.weave.run(&strands, &run, &epilogue, &mut y, self.geometry.output_spatial());
                });
                if stored.is_some() {
                    continue;
                }
                let (len, staged) = (run[0].len, [Run { at: 0, ..run[0] }]);
                let staged_rows = &mut scratch[..bias.len() * len];
                if !staged_rows.is_empty() {
                    let mut dest = Dest::from_slice(staged_rows);
                    self.weave.run(&strands, &staged, &sink.staging(bias), &mut dest, len);
                    sink.staged_rows(staged_rows, len, (at + begin, self.geometry.output_spatial()));
                }
            }
        }
    }

    /// Adds the products of one filter with a group's X and W of one image to `sums`, for the cells
    /// of a row from `cell` on (its slice, row and column).
    fn sum(&self, (x, w): (&[T], &[T::Acc]), filter: PhaseFilter, cell: [usize; 3], sums: &mut [T::Acc]) {
        let [depth, down, along] = &self.cells;
        let [slice, row, column] = cell;
        let PhaseFilter { channel, q } = filter;
        for t_depth in 0..depth.view.kernel {
            let (Some(k_depth), Some(z)) = (depth.tap(t_depth, q[0]), depth.input(slice, t_depth)) else { continue };
            for t_down in 0..down.view.kernel {
                let (Some(k_down), Some(y)) = (down.tap(t_down, q[1]), down.input(row, t_down)) else { continue };
                for t in 0..along.view.kernel {
                    let Some(k) = along.tap(t, q[2]) else { continue };
                    for c in 0..self.geometry.in_channels_per_group() {
                        let w = w[self.weight(c, channel, [k_depth, k_down, k])];
                        let begin = ((c * depth.view.input + z) * down.view.input + y) * along.view.input;
                        let x = &x[begin..begin + along.view.input];
                        for (sum, cell) in sums.iter_mut().zip(column..) {
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

//! ConvTranspose: the phases of its strides are filters over the same tiles, which are interleaved into
//! Y.
//!
//! Along an axis of stride s, tap k = t * s + q adds input x to element x * s + k of the output before
//! it is cropped. The s elements from v * s on are the phases of position v. All of them read the inputs
//! v, v - 1, ...; phase q reads them through the taps t * s + q. So the axis is a convolution of stride
//! 1 with ceil(kernel / s) taps and s filters, whose outputs are positions. Filters with a tap less have
//! a zero there. A tile is transformed once for all phases: F(5x5, 2x2) takes 36 products for a phase
//! instead of 100, if the kernel is twice the stride.
//!
//! Filter `(m * phases of the other axes + their phase) * s + q` is phase q of the last axis for
//! output channel m. So the phases of a row are neighbours in a vector.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::catalogue::interleave_kernels;
use convoke_kernels::interleave::{OutputRun, PhaseRows};
use convoke_kernels::{Dest, InterleaveKernel, Real};

use super::run::{OperatorView, OutputBox, RowScratch, TileOperator, TileRow, Winograd};
use super::view::{AxisRoles, PixelStores, WinogradView};
use crate::conv::contract::{Io, Request};
use crate::conv::store::{Finish, no_epilogue};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Span};
use crate::{Axis, Geometry};

/// Lanes of the widest vectors of all instruction sets.
const MOST_LANES: usize = 16;
const SLOTS: [usize; MOST_LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Filters of a group, at most: more might not fit the address space.
const MOST_FILTERS: usize = 1 << 20;

/// A spatial axis by its phases.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PhasedAxis {
    /// Its index among the spatial axes.
    index: usize,
    stride: usize,
    kernel: usize,
    /// Cropped phases of the first position.
    cropped: usize,
    output: usize,
    /// The axis of the view, whose outputs are positions.
    view: Axis,
}

impl PhasedAxis {
    /// Takes the place of an axis that the layer lacks.
    const ABSENT: Self = Self { index: 0, stride: 1, kernel: 1, cropped: 0, output: 1, view: Axis::UNIT };

    /// # Errors
    /// Why the axis has no phases that serve.
    fn new(index: usize, axis: &Axis) -> Result<Self, String> {
        if axis.dilation != 1 && axis.kernel != 1 {
            return Err(format!("spatial axis {index} has dilation {}, only 1 can be", axis.dilation));
        }
        let stride = axis.stride;
        let taps = axis.kernel.div_ceil(stride);
        let first = axis.pad_begin / stride;
        let Some(pad_begin) = (taps - 1).checked_sub(first) else {
            let (pad, most) = (axis.pad_begin, taps * stride - 1);
            return Err(format!(
                "spatial axis {index} has {pad} pads at its beginning, more than {most} crop whole tiles"
            ));
        };
        let cropped = axis.pad_begin % stride;
        let output = (cropped + axis.output).div_ceil(stride);
        let pad_end = (output + taps - 1).saturating_sub(pad_begin + axis.input);
        let view = Axis { input: axis.input, output, kernel: taps, stride: 1, dilation: 1, pad_begin, pad_end };
        Ok(Self { index, stride, kernel: axis.kernel, cropped, output: axis.output, view })
    }

    /// The element of Y's axis that is phase `q` of a position. None if it is cropped.
    fn element(&self, position: usize, q: usize) -> Option<usize> {
        (position * self.stride + q).checked_sub(self.cropped).filter(|element| *element < self.output)
    }

    /// The elements of Y's axis that are phase `q` of some positions.
    fn elements(&self, positions: &Range<usize>, q: usize) -> Span {
        // Cropped positions are the first or the last ones.
        let positions = positions.start..positions.end.min(self.view.output).max(positions.start);
        let from = positions.clone().find_map(|position| self.element(position, q));
        let count = positions.filter(|position| self.element(*position, q).is_some()).count();
        Span { size: self.output, start: from.unwrap_or(0), step: self.stride, count }
    }

    /// The elements of Y's axis that are any phase of some positions.
    fn all_phases(&self, positions: &Range<usize>) -> Range<usize> {
        let until = |position: usize| (position * self.stride).saturating_sub(self.cropped).min(self.output);
        until(positions.start)..until(positions.end)
    }

    /// The tap of the axis for tap `t` of the view in phase `q`. None if the phase has a tap less.
    fn tap(&self, t: usize, q: usize) -> Option<usize> {
        Some((self.view.kernel - 1 - t) * self.stride + q).filter(|k| *k < self.kernel)
    }
}

pub(super) fn accepts(geometry: &Geometry) -> Result<(), String> {
    let axes = phased(geometry)?;
    view(geometry, &axes)?.check_steps()?;
    check_lanes(&axes[2], MOST_LANES, "the widest vectors")
}

/// The axes by their phases.
///
/// # Errors
/// The rule that an axis breaks.
fn phased(geometry: &Geometry) -> Result<[PhasedAxis; 3], String> {
    let axes = geometry.axes.iter().enumerate();
    let axes = axes.map(|(i, axis)| PhasedAxis::new(i, axis)).collect::<Result<Vec<_>, _>>()?;
    match *axes {
        [along] => Ok([PhasedAxis::ABSENT, PhasedAxis::ABSENT, along]),
        [down, along] => Ok([PhasedAxis::ABSENT, down, along]),
        [depth, down, along] => Ok([depth, down, along]),
        _ => Err(format!("{} spatial axes, only one to three can be", axes.len())),
    }
}

/// The layer with the phases of its strides as filters.
///
/// # Errors
/// The rule that the layer breaks.
fn view(geometry: &Geometry, axes: &[PhasedAxis; 3]) -> Result<WinogradView, String> {
    let phases = axes.iter().try_fold(1_usize, |n, axis| n.checked_mul(axis.stride));
    let filters = phases.and_then(|n| n.checked_mul(geometry.out_channels_per_group()));
    let Some(filters) = filters.filter(|filters| *filters <= MOST_FILTERS) else {
        return Err(format!("phases of the strides times output channels of a group exceed {MOST_FILTERS}"));
    };
    let roles = AxisRoles::new(&axes.map(|axis| axis.view))?;
    Ok(WinogradView {
        batch: geometry.batch,
        groups: geometry.group,
        channels: geometry.in_channels_per_group(),
        strides: [1, 1],
        taps: [roles.down.kernel, roles.along.kernel],
        filters,
        stores: PixelStores::Interleaved,
        roles,
    })
}

/// Checks that the phases of the last axis fill whole vectors of `lanes` lanes; `vectors` names these.
///
/// # Errors
/// The stride that does not divide the lanes.
fn check_lanes(axis: &PhasedAxis, lanes: usize, vectors: &str) -> Result<(), String> {
    match lanes.is_multiple_of(axis.stride) {
        true => Ok(()),
        false => Err(format!(
            "spatial axis {} has stride {}, which does not divide the {lanes} lanes of {vectors}",
            axis.index, axis.stride
        )),
    }
}

/// # Errors
/// The rule that the layer breaks, or what the instruction set lacks.
pub(super) fn view_of<T: Element>(request: &Request<'_, T>) -> Result<OperatorView<T>, String> {
    let axes = phased(request.geometry)?;
    let view = view(request.geometry, &axes)?;
    let Some(interleave) = interleave_kernels::<T::Acc>(request.isa()).first() else {
        return Err(String::from("no kernel that interleaves"));
    };
    check_lanes(&axes[2], interleave.lanes(), "this instruction set's vectors")?;
    // A vector of filters is `lanes / stride` channels, with `stride` elements of Y for each pixel.
    let interleaved = if Finish::new(request).is_direct() { 0 } else { interleave.lanes() };
    Ok((view, interleaved, Box::new(WinogradTransposed { axes, interleave })))
}

/// The channels of Y whose row of phase `phase` is among the rows `heads`. These count, for each
/// channel, the `phases` of the axes before the last.
fn channels_of_phase(heads: &Range<usize>, phase: usize, phases: usize) -> Range<usize> {
    let until = |head: usize| head.saturating_sub(phase).div_ceil(phases);
    until(heads.start)..until(heads.end)
}

struct WinogradTransposed<A: Real> {
    axes: [PhasedAxis; 3],
    interleave: &'static InterleaveKernel<A>,
}

impl<T: Element> TileOperator<T> for WinogradTransposed<T::Acc> {
    fn filter(&self, core: &Winograd<T>, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let [depth, down, along] = &self.axes;
        let (rest, q_along) = (row / along.stride, row % along.stride);
        let (rest, q_down) = (rest / down.stride, rest % down.stride);
        let (channel, q_depth) = (rest / depth.stride, rest % depth.stride);
        let first = (c * core.geometry.out_channels_per_group() + channel) * core.geometry.kernel_volume();
        for (i, tap) in taps.iter_mut().enumerate() {
            let (rest, t_along) = (i / along.view.kernel, i % along.view.kernel);
            let (t_depth, t_down) = (rest / down.view.kernel, rest % down.view.kernel);
            *tap = match (depth.tap(t_depth, q_depth), down.tap(t_down, q_down), along.tap(t_along, q_along)) {
                (Some(k), Some(k_down), Some(k_along)) => {
                    w[first + (k * down.kernel + k_down) * along.kernel + k_along].to_acc()
                }
                _ => T::Acc::ZERO,
            };
        }
    }

    /// Along, all phases of a position are in the part. On the other axes, a phase is every stride-th
    /// element.
    fn patches(&self, core: &Winograd<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch)) {
        let [depth, down, along] = &self.axes;
        let outer = depth.stride * down.stride;
        let heads = part.filters.start / along.stride..part.filters.end / along.stride;
        for phase in 0..outer {
            let channels = channels_of_phase(&heads, phase, outer);
            let first = part.group * core.geometry.out_channels_per_group();
            patch(Patch {
                images: part.sub.image..part.sub.image + 1,
                channels: first + channels.start..first + channels.end,
                axes: [
                    depth.elements(&part.slices, phase / down.stride),
                    down.elements(&part.rows, phase % down.stride),
                    Span::new(along.all_phases(&part.columns), along.output),
                ],
            });
        }
    }

    fn store(
        &self,
        core: &Winograd<T>,
        io: &Io<'_, T>,
        row: &TileRow<'_, T::Acc>,
        scratch: RowScratch<'_, T::Acc>,
    ) -> bool {
        let zeros = [T::Acc::ZERO; MOST_LANES];
        let plain = no_epilogue(&zeros[..row.filters.len()]);
        let is_good = core.store_rows(row, &plain, &mut *scratch.rows, scratch.marks);
        for good in core.good_pixels(row, scratch.marks) {
            self.interleave(core, io, row, good, (scratch.rows, scratch.interleaved));
        }
        is_good
    }
}

impl<A: Real> WinogradTransposed<A> {
    /// Interleaves the phases of some positions of a row of tiles, counted from its first one, and
    /// stores them.
    fn interleave<T: Element<Acc = A>>(
        &self,
        core: &Winograd<T>,
        io: &Io<'_, T>,
        row: &TileRow<'_, A>,
        positions: Range<usize>,
        (rows, scratch): (&[A], &mut [A]),
    ) {
        let ([depth, down, along], geometry) = (&self.axes, &core.geometry);
        let outer = depth.stride * down.stride;
        // The elements of Y's rows, and the phase of the first one.
        let Range { start: begin, end } = along.all_phases(&(row.x + positions.start..row.x + positions.end));
        let phase = begin + along.cropped - (row.x + positions.start) * along.stride;
        let run = [OutputRun { from: positions.start, phase, at: begin, len: end.saturating_sub(begin) }];
        // Whole rows: all phases of a position are in one vector.
        let heads = row.filters.start / along.stride..row.filters.end / along.stride;
        let (lane, plane) = (core.row_at(1, 0), geometry.output_spatial());
        let store = core.finish.store(io);
        for phase in 0..outer {
            let channels = channels_of_phase(&heads, phase, outer);
            if channels.is_empty() {
                continue;
            }
            let Some(slice) = depth.element(row.slice, phase / down.stride) else { continue };
            let first = (channels.start * outer + phase - heads.start) * along.stride;
            let channel = row.group * geometry.out_channels_per_group() + channels.start;
            let bias = &io.bias[channel..channel + channels.len()];
            for i in 0..row.height {
                let Some(y) = down.element(row.y + i, phase % down.stride) else { continue };
                let sums = &rows[core.row_at(first, i)..];
                let slots = &SLOTS[..along.stride];
                let phase_rows = PhaseRows { sums, slots, step: lane, pitch: outer * along.stride * lane };
                let at = (row.sub.image * geometry.out_channels + channel) * plane
                    + (slice * down.output + y) * along.output;
                let stores = [Stores::row(at + begin, run[0].len).times(bias.len(), plane)];
                let stored = store.direct(at, bias, stores, |mut y, epilogue| {
                    self.interleave.run(&phase_rows, &run, &epilogue, &mut y, plane);
                });
                if stored.is_some() {
                    continue;
                }
                let (len, staged) = (run[0].len, [OutputRun { at: 0, ..run[0] }]);
                let staged_rows = &mut scratch[..bias.len() * len];
                if !staged_rows.is_empty() {
                    let mut dest = Dest::from_slice(staged_rows);
                    self.interleave.run(&phase_rows, &staged, &store.staging(bias), &mut dest, len);
                    store.staged_rows(staged_rows, len, (at + begin, plane));
                }
            }
        }
    }
}

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
use core::ops::Range;

use convoke_kernels::catalogue::interleave_kernels;
use convoke_kernels::interleave::{OutputRun, PhaseRows};
use convoke_kernels::{Dest, InterleaveKernel, Real};

use super::run::{OperatorView, OutputBox, RowScratch, TileOperator, TileRow, Winograd};
use super::view::{AxisRoles, PixelStores, WinogradView, three};
use crate::conv::contract::{Io, Request};
use crate::conv::store::{Finish, no_epilogue};
use crate::conv::view::OutputPhases;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Span};
use crate::{Axis, Geometry, Layout};

/// Lanes of the widest vectors of all instruction sets.
const MOST_LANES: usize = 16;
const SLOTS: [usize; MOST_LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Filters of a group, at most: more might not fit the address space.
const MOST_FILTERS: usize = 1 << 20;

/// The elements of Y's axis that are phase `q` of some positions.
fn elements(phases: &OutputPhases, positions: &Range<usize>, q: usize) -> Span {
    // Cropped positions are the first or the last ones.
    let positions = positions.start..positions.end.min(phases.positions).max(positions.start);
    let start = positions.clone().find_map(|position| phases.output(position, q)).unwrap_or(0);
    let count = positions.filter(|position| phases.output(*position, q).is_some()).count();
    Span { size: phases.axis.output, start, step: phases.axis.stride, count }
}

/// The tap of the axis for tap `t` of the view in phase `q`. None if the phase has a tap less.
fn tap(phases: &OutputPhases, t: usize, q: usize) -> Option<usize> {
    Some((phases.reach - t) * phases.axis.stride + q).filter(|k| *k < phases.axis.kernel)
}

/// The axis of the view, whose outputs are positions.
fn view_axis(phases: &OutputPhases) -> Axis {
    let pad_begin = phases.first.unsigned_abs();
    let pad_end = (phases.positions + phases.reach).saturating_sub(pad_begin + phases.axis.input);
    Axis { kernel: phases.reach + 1, dilation: 1, pad_begin, pad_end, ..phases.as_conv() }
}

pub(super) fn accepts(geometry: &Geometry) -> Result<(), String> {
    if geometry.y_layout == Layout::ChannelsLast {
        return Err(String::from("Y has its channels last, only for Conv"));
    }
    view(geometry, &phased(geometry)?)?.check_steps()?;
    check_lanes(geometry, MOST_LANES, "the widest vectors")
}

/// The axes by their phases.
///
/// # Errors
/// The rule that an axis breaks.
fn phased(geometry: &Geometry) -> Result<[OutputPhases; 3], String> {
    for (index, axis) in geometry.axes.iter().enumerate() {
        if axis.dilation != 1 && axis.kernel != 1 {
            return Err(format!("spatial axis {index} has dilation {}, only 1 can be", axis.dilation));
        }
        if OutputPhases::new(axis, 0).first > 0 {
            let (pad, most) = (axis.pad_begin, axis.kernel.next_multiple_of(axis.stride) - 1);
            return Err(format!(
                "spatial axis {index} has {pad} pads at its beginning, more than {most} crop whole tiles"
            ));
        }
    }
    Ok(three(&geometry.axes)?.map(|axis| OutputPhases::new(&axis, 0)))
}

/// The layer with the phases of its strides as filters.
///
/// # Errors
/// The rule that the layer breaks.
fn view(geometry: &Geometry, axes: &[OutputPhases; 3]) -> Result<WinogradView, String> {
    let phases = axes.iter().try_fold(1_usize, |n, axis| n.checked_mul(axis.axis.stride));
    let filters = phases.and_then(|n| n.checked_mul(geometry.out_channels_per_group()));
    let Some(filters) = filters.filter(|filters| *filters <= MOST_FILTERS) else {
        return Err(format!("phases of the strides times output channels of a group exceed {MOST_FILTERS}"));
    };
    let roles = AxisRoles::new(axes.each_ref().map(view_axis))?;
    Ok(WinogradView {
        batch: geometry.batch,
        groups: geometry.group,
        channels: geometry.in_channels_per_group(),
        strides: [1, 1],
        taps: [roles.down.kernel, roles.along.kernel],
        filters,
        stores: PixelStores::Interleaved,
        roles,
        reads_pixels: geometry.x_layout == Layout::ChannelsLast,
    })
}

/// Checks that the phases of the last axis fill whole vectors of `lanes` lanes; `vectors` names these.
///
/// # Errors
/// The stride that does not divide the lanes.
fn check_lanes(geometry: &Geometry, lanes: usize, vectors: &str) -> Result<(), String> {
    let last = geometry.axes.len() - 1;
    match geometry.axes[last].stride {
        stride if lanes.is_multiple_of(stride) => Ok(()),
        stride => Err(format!(
            "spatial axis {last} has stride {stride}, which does not divide the {lanes} lanes of {vectors}"
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
    check_lanes(request.geometry, interleave.lanes(), "this instruction set's vectors")?;
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
    axes: [OutputPhases; 3],
    interleave: &'static InterleaveKernel<A>,
}

impl<T: Element> TileOperator<T> for WinogradTransposed<T::Acc> {
    fn filter(&self, core: &Winograd<T>, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let [depth, down, along] = &self.axes;
        let ([s_depth, s_down, s_along], [t_down, t_along]) = (self.strides(), core.view.taps);
        let (rest, q_along) = (row / s_along, row % s_along);
        let (rest, q_down) = (rest / s_down, rest % s_down);
        let (channel, q_depth) = (rest / s_depth, rest % s_depth);
        let first = (c * core.geometry.out_channels_per_group() + channel) * core.geometry.kernel_volume();
        for (i, value) in taps.iter_mut().enumerate() {
            let (rest, at_along) = (i / t_along, i % t_along);
            let (at_depth, at_down) = (rest / t_down, rest % t_down);
            let k = (tap(depth, at_depth, q_depth), tap(down, at_down, q_down), tap(along, at_along, q_along));
            *value = match k {
                (Some(k), Some(k_down), Some(k_along)) => {
                    w[first + (k * down.axis.kernel + k_down) * along.axis.kernel + k_along].to_acc()
                }
                _ => T::Acc::ZERO,
            };
        }
    }

    /// Along, all phases of a position are in the part. On the other axes, a phase is every stride-th
    /// element.
    fn patches(&self, core: &Winograd<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch)) {
        let ([depth, down, along], [s_depth, s_down, s_along]) = (&self.axes, self.strides());
        let outer = s_depth * s_down;
        let heads = part.filters.start / s_along..part.filters.end / s_along;
        for phase in 0..outer {
            let channels = channels_of_phase(&heads, phase, outer);
            let first = part.group * core.geometry.out_channels_per_group();
            patch(Patch {
                images: part.sub.image..part.sub.image + 1,
                channels: first + channels.start..first + channels.end,
                axes: [
                    elements(depth, &part.slices, phase / s_down),
                    elements(down, &part.rows, phase % s_down),
                    Span::new(along.outputs(&part.columns), along.axis.output),
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
    fn strides(&self) -> [usize; 3] {
        self.axes.each_ref().map(|axis| axis.axis.stride)
    }

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
        let [s_depth, s_down, s_along] = self.strides();
        let outer = s_depth * s_down;
        // The elements of Y's rows, and the phase of the first one.
        let Range { start: begin, end } = along.outputs(&(row.x + positions.start..row.x + positions.end));
        let phase = along.output_place(row.x + positions.start, begin);
        let run = [OutputRun { from: positions.start, phase, at: begin, len: end.saturating_sub(begin) }];
        // Whole rows: all phases of a position are in one vector.
        let heads = row.filters.start / s_along..row.filters.end / s_along;
        let (lane, plane) = (core.row_at(1, 0), geometry.output_spatial());
        let store = core.finish.store(io);
        for phase in 0..outer {
            let channels = channels_of_phase(&heads, phase, outer);
            if channels.is_empty() {
                continue;
            }
            let Some(slice) = depth.output(row.slice, phase / s_down) else { continue };
            let first = (channels.start * outer + phase - heads.start) * s_along;
            let channel = row.group * geometry.out_channels_per_group() + channels.start;
            let bias = &io.bias[channel..channel + channels.len()];
            for i in 0..row.height {
                let Some(y) = down.output(row.y + i, phase % s_down) else { continue };
                let sums = &rows[core.row_at(first, i)..];
                let slots = &SLOTS[..s_along];
                let phase_rows = PhaseRows { sums, slots, step: lane, pitch: outer * s_along * lane };
                let at = (row.sub.image * geometry.out_channels + channel) * plane
                    + (slice * down.axis.output + y) * along.axis.output;
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

//! Conv: filters are channels of Y, and each vector of them writes its pixels straight into Y.
//!
//! With stride s on an axis, output o reads the padded elements s * o + k. The elements of one
//! phase k mod s are s apart. Taken as channels of their own, the phases turn the layer into one of
//! stride 1, with s times the channels and ceil(kernel / s) taps, some of which are zeros. 3x3 taps
//! of stride 2 take 144 products for 5x5 outputs by F(5x5, 2x2), instead of 225.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::winograd::Pixels;

use super::common::{StripScratch, TileStrip, WinogradCore};
use super::direct::{DirectTile, DirectTiles};
use super::operator::{OutputBox, WinogradOperator};
use super::pack::PanelFilters;
use super::recipe::{BuildOperator, offer_view};
use super::scratch::OperatorNeeds;
use super::view::{AxisRoles, MOST_STRIDE, PixelStores, WinogradPhase, WinogradView, tiled_kernel};
use crate::element::Element;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Span};
use crate::lower::contract::{Answer, Io, Request};
use crate::lower::sink::Finish;
use crate::{Axis, Geometry};

pub(super) fn accepts(geometry: &Geometry) -> Result<(), String> {
    view(geometry)?.check_steps()
}

/// The layer with the phases of its strides as channels.
///
/// # Errors
/// The rule that the layer breaks.
pub(super) fn view(geometry: &Geometry) -> Result<WinogradView, String> {
    let mut axes = geometry.axes.to_vec();
    let mut strides = [1, 1];
    for ((index, axis), stride) in axes.iter_mut().enumerate().rev().zip(strides.iter_mut().rev()) {
        // A longer stride than the kernel leaves elements of X unread.
        if axis.stride > 1 && axis.stride < axis.kernel && axis.stride <= MOST_STRIDE && axis.dilation == 1 {
            *stride = axis.stride;
            (axis.kernel, axis.stride) = (axis.kernel.div_ceil(axis.stride), 1);
        } else if axis.stride > 1 {
            let Axis { kernel, stride, dilation, .. } = *axis;
            return Err(alloc::format!(
                "spatial axis {index} has stride {stride}, kernel {kernel}, dilation {dilation}: strides other than 1 must be at most \
                 {MOST_STRIDE}, shorter than the kernel, and without dilation"
            ));
        }
    }
    let phases = strides[0] * strides[1];
    let channels = geometry.in_channels_per_group().checked_mul(phases);
    Ok(WinogradView {
        batch: geometry.batch,
        groups: geometry.group,
        channels: channels.ok_or_else(|| String::from("too many channels"))?,
        strides,
        taps: tiled_kernel(geometry),
        rows: geometry.out_channels_per_group(),
        stores: PixelStores::Rows,
        roles: AxisRoles::new(&axes)?,
    })
}

pub(super) fn offer<'a, T: Element>(request: &'a Request<'a, T>, most_bytes: usize) -> Answer<'a, T> {
    let geometry = request.geometry;
    let is_large = geometry.output_len() * size_of::<T>() >= request.machine.near_y_bytes();
    // Other activations than clamps read what was stored.
    let is_left = is_large && Finish::new(request).is_clamp();
    let stores = if is_left { PixelStores::RowsPastCache } else { PixelStores::Rows };
    let view = WinogradView { stores, ..view(geometry)? };
    offer_view(request, view, most_bytes, |scheme, tiles| {
        let steps = geometry.in_channels_per_group().checked_mul(geometry.kernel_volume())?;
        let direct_len = tiles.padded(view.rows).checked_mul(steps)?;
        let direct_scratch = DirectTiles::scratch_len(geometry, &view, scheme, tiles.nr())?;
        let build: BuildOperator<'a, T> = Box::new(move |scheme| {
            let (geometry, finish) = (geometry.clone(), Finish::new(request));
            let direct = DirectTiles::new(request, &view, scheme);
            Box::new(WinogradConv { geometry, finish, strides: view.strides, direct, steps })
        });
        Some((build, OperatorNeeds { direct_len, direct_scratch, interleaved: 0 }))
    })
}

struct WinogradConv<T: Element> {
    geometry: Geometry,
    finish: Finish<T::Acc>,
    strides: [usize; 2],
    direct: DirectTiles<T::Acc>,
    /// Steps of k of the direct filters: channels of X times taps.
    steps: usize,
}

impl<T: Element> WinogradOperator<T> for WinogradConv<T> {
    fn filter(&self, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let [s_down, s_along] = self.strides;
        let (c, phase_along) = (c / s_along, c % s_along);
        let channels = self.geometry.in_channels_per_group();
        let (phase_down, c) = (c / channels, c % channels);
        let w = &w[row * self.steps + c * self.geometry.kernel_volume()..][..self.geometry.kernel_volume()];
        if s_down * s_along == 1 {
            for (tap, w) in taps.iter_mut().zip(w) {
                *tap = w.to_acc();
            }
            return;
        }
        let [down, along] = tiled_kernel(&self.geometry);
        let [t_down, t_along] = [down.div_ceil(s_down), along.div_ceil(s_along)];
        for (i, tap) in taps.iter_mut().enumerate() {
            let k_down = i / t_along % t_down * s_down + phase_down;
            let k_along = i % t_along * s_along + phase_along;
            let is_there = k_down < down && k_along < along;
            let at = (i / t_along / t_down * down + k_down) * along + k_along;
            *tap = if is_there { w[at].to_acc() } else { T::Acc::ZERO };
        }
    }

    /// The panels of direct filters are `[channel of X][tap][filter]`.
    fn pack_direct(&self, core: &WinogradCore<T>, w: &[T], packed: &mut [T::Acc]) {
        packed.fill(T::Acc::ZERO);
        for row in 0..core.view.rows {
            let first = row / core.tiles.nr() * core.tiles.nr();
            let nr = core.tiles.panel(core.view.rows - first);
            let panel = &mut packed[first * self.steps..];
            for (step, w) in w[row * self.steps..][..self.steps].iter().enumerate() {
                panel[step * nr + row - first] = w.to_acc();
            }
        }
    }

    /// Filters are channels of Y.
    fn patches(&self, core: &WinogradCore<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch)) {
        let AxisRoles { depth, down, along } = &core.view.roles;
        let (sub, first) = (&part.sub, part.group * core.view.rows);
        let of_phase = |axis: &Axis, phase: &WinogradPhase, outputs: &Range<usize>| {
            let outputs = outputs.start..outputs.end.min(phase.output).max(outputs.start);
            Span { size: axis.output, start: phase.place(outputs.start), step: phase.step, count: outputs.len() }
        };
        patch(Patch {
            images: sub.image..sub.image + 1,
            channels: first + part.filters.start..first + part.filters.end,
            axes: [
                Span::new(part.slices.clone(), depth.output),
                of_phase(down, &sub.down, &part.rows),
                of_phase(along, &sub.along, &part.columns),
            ],
        });
    }

    fn store(
        &self,
        core: &WinogradCore<T>,
        io: &Io<'_, T>,
        strip: &TileStrip<'_, T::Acc>,
        scratch: StripScratch<'_, T::Acc>,
    ) -> bool {
        let (geometry, task, sub) = (&self.geometry, strip.task, &strip.sub);
        let AxisRoles { depth, down, along } = &core.view.roles;
        let channel = task.group * core.view.rows + strip.filters.start;
        let count = strip.filters.len();
        let bias = &io.bias[channel..channel + count];
        let plane = (sub.image * geometry.out_channels + channel) * depth.output + strip.slice;
        let at = (plane * down.output + sub.down.place(strip.y)) * along.output + sub.along.place(strip.x);
        let row_step = sub.down.step * along.output;
        let pixels = Pixels {
            channels: count,
            channel_step: geometry.output_spatial(),
            row_step,
            width: strip.width,
            height: strip.height,
            past_cache: core.view.stores == PixelStores::RowsPastCache,
        };
        let sink = self.finish.sink(io);
        let stores = [Stores::row(at, strip.width).times(count, pixels.channel_step).times(strip.height, row_step)];
        if sub.along.step == 1
            && let Some(is_good) = sink.direct_at_first(at, bias, stores, |mut y, epilogue| {
                core.blocking.scheme.kernel.output(&strip.products, &pixels, &mut y, &epilogue, &mut *scratch.marks)
            })
        {
            return is_good;
        }
        let is_good = core.store_rows(strip, &sink.staging(bias), &mut *scratch.rows, scratch.marks);
        let pitch = core.row_at(0, 1);
        for c in 0..count {
            let rows = &mut scratch.rows[core.row_at(c, 0)..core.row_at(c, strip.height)];
            let at = at + c * pixels.channel_step;
            if sub.along.step == 1 {
                sink.staged_runs(rows, (pitch, row_step), |store| {
                    core.good_pixels(strip, scratch.marks).for_each(|good| store(good.clone(), at + good.start));
                });
                continue;
            }
            for good in core.good_pixels(strip, scratch.marks) {
                let at = at + good.start * sub.along.step;
                for (i, row) in rows.chunks_mut(pitch).enumerate() {
                    sink.staged_strided(&mut row[good.clone()], at + i * row_step, sub.along.step);
                }
            }
        }
        is_good
    }

    fn compute(&self, core: &WinogradCore<T>, io: &Io<'_, T>, tile: &DirectTile, scratch: &mut [T::Acc]) {
        let first = tile.panel;
        let nr = core.tiles.panel(core.view.rows - first);
        let weights = &core.group(io.weights, tile.group)[core.layout.direct()];
        let weights = &weights[first * self.steps..(first + nr) * self.steps];
        self.direct.compute(&core.view, tile, PanelFilters { weights, nr }, scratch, &self.finish.sink(io));
    }
}

//! Conv: filters are channels of Y, whose pixels kernels write straight into Y.
//!
//! With stride s on an axis, output o reads the padded elements s * o + k. Each phase k mod s becomes a
//! channel of its own. The layer then has stride 1, s times the channels, and ceil(kernel / s) taps,
//! some of which are zeros. For 3x3 taps and stride 2, F(5x5, 2x2) takes 144 products for 5x5 outputs,
//! instead of 225.

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use convoke_kernels::Real;

use super::run::{OperatorView, OutputBox, RowScratch, TileOperator, TileRow, Winograd};
use super::view::{AxisRoles, MOST_STRIDE, PixelStores, WinogradPhase, WinogradView, three};
use crate::conv::contract::{Io, Request};
use crate::conv::macro_kernel::lanes;
use crate::conv::store::{Finish, OutputStore, PixelPlace};
use crate::element::Element;
use crate::exec::Line;
use crate::exec::region::Stores;
use crate::exec::split::{Patch, Span};
use crate::machine::NEAR_Y_BYTES;
use crate::{Axis, Geometry, Layout};

pub(super) fn accepts(geometry: &Geometry) -> Result<(), String> {
    view(geometry)?.check_steps()
}

/// The layer with the phases of its strides as channels.
///
/// # Errors
/// The rule that the layer breaks.
pub(super) fn view(geometry: &Geometry) -> Result<WinogradView, String> {
    let mut axes = geometry.axes.to_vec();
    let (mut strides, mut taps) = ([1, 1], [1, 1]);
    let last = strides.iter_mut().zip(&mut taps).rev();
    for ((index, axis), (stride, taps)) in axes.iter_mut().enumerate().rev().zip(last) {
        *taps = axis.kernel;
        // A stride longer than the kernel leaves elements of X unread.
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
        taps,
        filters: geometry.out_channels_per_group(),
        stores: if geometry.y_layout == Layout::ChannelsLast { PixelStores::Pixels } else { PixelStores::Rows },
        roles: AxisRoles::new(three(&axes)?)?,
        reads_pixels: geometry.x_layout == Layout::ChannelsLast,
    })
}

/// # Errors
/// The rule that the layer breaks.
pub(super) fn view_of<T: Element>(request: &Request<'_, T>) -> Result<OperatorView<T>, String> {
    let geometry = request.geometry;
    let is_large = geometry.output_len() * size_of::<T>() >= NEAR_Y_BYTES;
    // Some CPUs write a line to memory several times if a store past the caches has a part of it.
    let is_whole_line = lanes::<T::Acc>(request.isa()) * size_of::<T>() == size_of::<Line>();
    // Activations other than clamps read what was stored.
    let is_left = is_large && is_whole_line && Finish::new(request).is_clamp();
    let mut view = view(geometry)?;
    if is_left && view.stores == PixelStores::Rows {
        view.stores = PixelStores::RowsPastCache;
    }
    // A pixel of a vector of filters, where it is finished before it is rounded.
    let is_finished = view.stores == PixelStores::Pixels && !T::DIRECT;
    Ok((view, usize::from(is_finished) * lanes::<T::Acc>(request.isa()), Box::new(WinogradConv)))
}

struct WinogradConv;

impl<T: Element> TileOperator<T> for WinogradConv {
    fn filter(&self, core: &Winograd<T>, w: &[T], row: usize, c: usize, taps: &mut [T::Acc]) {
        let (volume, channels) = (core.geometry.kernel_volume(), core.geometry.in_channels_per_group());
        let ([s_down, s_along], [down, along]) = (core.view.strides, core.view.taps);
        let (phase, c) = (c / channels, c % channels);
        let (phase_down, phase_along) = (phase / s_along, phase % s_along);
        let w = &w[(row * channels + c) * volume..][..volume];
        if s_down * s_along == 1 {
            taps.iter_mut().zip(w).for_each(|(tap, w)| *tap = w.to_acc());
            return;
        }
        let [t_down, t_along] = [down.div_ceil(s_down), along.div_ceil(s_along)];
        for (i, tap) in taps.iter_mut().enumerate() {
            let k_down = i / t_along % t_down * s_down + phase_down;
            let k_along = i % t_along * s_along + phase_along;
            let is_there = k_down < down && k_along < along;
            let at = (i / t_along / t_down * down + k_down) * along + k_along;
            *tap = if is_there { w[at].to_acc() } else { T::Acc::ZERO };
        }
    }

    fn patches(&self, core: &Winograd<T>, part: &OutputBox, patch: &mut dyn FnMut(Patch)) {
        let AxisRoles { depth, down, along } = &core.view.roles;
        let (sub, first) = (&part.sub, part.group * core.view.filters);
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
        core: &Winograd<T>,
        io: &Io<'_, T>,
        row: &TileRow<'_, T::Acc>,
        scratch: RowScratch<'_, T::Acc>,
    ) -> bool {
        let (sub, AxisRoles { down, along, .. }) = (&row.sub, &core.view.roles);
        let channel = row.group * core.view.filters + row.filters.start;
        let count = row.filters.len();
        let bias = &io.bias[channel..channel + count];
        let store = core.finish.store(io);
        let strides = &io.strides.y;
        let first = (row.slice * down.output + sub.down.place(row.y)) * along.output + sub.along.place(row.x);
        let at = strides.at(sub.image, channel, first);
        let (row_step, pixel_step) =
            (sub.down.step * along.output * strides.position, sub.along.step * strides.position);
        let channel_step = strides.channel;
        let rows = match core.view.stores {
            PixelStores::Pixels => Stores::row(at, count).times(row.width, pixel_step),
            _ => Stores::row(at, row.width).times(count, channel_step),
        };
        let stores = [rows.times(row.height, row_step)];
        let pixels = row.pixels((channel_step, row_step, pixel_step), core.view.stores == PixelStores::RowsPastCache);
        // A residual whose pixels are further apart is not at the same places as Y.
        if (pixel_step == 1 || channel_step == 1)
            && !store.is_residual_in_y()
            && (store.has_no_residual() || io.strides.residual == *strides)
            && let Some(is_good) = store.direct(at, bias, stores, |mut y, epilogue| {
                core.blocking.scheme.kernel.output(&row.products, &pixels, &mut y, &epilogue, &mut *scratch.marks)
            })
        {
            return is_good;
        }
        if core.view.stores == PixelStores::Pixels {
            return store_pixels(core, &store, row, scratch);
        }
        let is_good = core.store_rows(row, &store.staging(bias), &mut *scratch.rows, scratch.marks);
        let pitch = core.row_at(0, 1);
        for c in 0..count {
            let rows = &mut scratch.rows[core.row_at(c, 0)..core.row_at(c, row.height)];
            let at = at + c * channel_step;
            if sub.along.step == 1 {
                store.staged_runs(rows, (pitch, row_step), |store| {
                    core.good_pixels(row, scratch.marks).for_each(|good| store(good.clone(), at + good.start));
                });
                continue;
            }
            for good in core.good_pixels(row, scratch.marks) {
                let at = at + good.start * sub.along.step;
                for (i, row) in rows.chunks_mut(pitch).enumerate() {
                    store.staged_strided(&mut row[good.clone()], at + i * row_step, sub.along.step);
                }
            }
        }
        is_good
    }
}

/// Stores the products of a row of tiles into a Y whose channels come last, where kernels cannot: they store pixels in
/// scratch.
fn store_pixels<T: Element>(
    core: &Winograd<T>,
    store: &OutputStore<'_, '_, T>,
    row: &TileRow<'_, T::Acc>,
    RowScratch { rows: pixels, interleaved: finished, marks }: RowScratch<'_, T::Acc>,
) -> bool {
    let (geometry, sub, AxisRoles { depth, down, along }) = (&core.geometry, &row.sub, &core.view.roles);
    let channel = row.group * core.view.filters + row.filters.start;
    let (count, channels) = (row.filters.len(), channel..channel + row.filters.len());
    let bias = store.staging(&store.io.bias[channels.clone()]);
    let is_good = core.store_in(row, (1, row.width * count, count), &bias, pixels, marks);
    for (good, i) in core.good_pixels(row, marks).flat_map(|good| (0..row.height).map(move |i| (good.clone(), i))) {
        let sums = &pixels[(i * row.width + good.start) * count..][..good.len() * count];
        let slice = (sub.image * depth.output + row.slice) * down.output;
        let place = PixelPlace {
            layout: Layout::ChannelsLast,
            positions: geometry.output_spatial(),
            pixel: (slice + sub.down.place(row.y + i)) * along.output + sub.along.place(row.x + good.start),
            step: sub.along.step,
            count: good.len(),
            channels: channels.clone(),
        };
        store.pixels(&place, count, (&mut *finished, &mut []), |y, ld, epilogue| {
            epilogue.finish((sums, count), y, ld, (good.len(), count));
        });
    }
    is_good
}

//! From X to transformed tiles.

use core::array;
use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::interleave::{Deinterleave, PhaseCopy, SourceRow};
use convoke_kernels::winograd::{Border, TileSource};

use super::blocking::MOST_IMAGES;
use super::run::{Scratch, TileTask, Winograd};
use super::view::{MOST_STRIDE, SubImage, WinogradPhase, distance};
use crate::conv::contract::Io;
use crate::conv::planes::{deinterleave_rows, rows_of_channels};
use crate::element::Element;

/// Different borders of a block's windows, at most. Over the phases of an axis, the padding at the
/// beginning gets shorter once, and that at the end longer once. That makes three borders for each axis,
/// and one for windows that read nothing of X.
const MOST_BORDERS: usize = 10;

/// The part of a plane of X that the tiles of a block read in a [sub-image](SubImage).
#[derive(Debug, Clone, Copy, Default)]
struct InputWindow {
    /// The first row's beginning in X, for the first channel of the group; and its first pixel, over all images.
    begin: usize,
    pixel: usize,
    /// Rows, and elements of each, that are not padding.
    rows: usize,
    elements: usize,
    /// The first of these elements in its row. With a stride, whose padding is copied, it may lie before
    /// the row.
    first: isize,
    /// The number of its border.
    border: usize,
}

impl InputWindow {
    fn len(&self) -> usize {
        self.rows * self.elements
    }
}

/// The different borders of a block's windows, by the rows and elements that are not padding.
#[derive(Default)]
struct Borders([Option<([Range<usize>; 2], Border)>; MOST_BORDERS]);

impl Borders {
    /// The number of the border of these rows and elements. Calls `new` if there is none yet.
    fn find(&mut self, seen: [Range<usize>; 2], new: impl FnOnce([Range<usize>; 2]) -> Border) -> usize {
        let found = self.0.iter().position(|border| border.as_ref().is_none_or(|(other, _)| *other == seen));
        let found = found.expect("no more than there are beginnings and ends of padding on both axes");
        self.0[found].get_or_insert_with(|| (seen.clone(), new(seen)));
        found
    }

    fn get(&self, number: usize) -> &Border {
        &self.0[number].as_ref().expect("made when it was found").1
    }
}

/// Where a window is copied, by phases. Those of each channel are `of_channel` elements apart.
struct CopiedRows<'a, A> {
    rows: &'a mut [A],
    phases: &'a [PhaseCopy],
    of_channel: usize,
}

struct RowsOfX<'x, T> {
    x: &'x [T],
    channel_len: usize,
    row_len: usize,
    /// Elements from one row of a window to the next, and from one element to the next.
    row_stride: usize,
    step: usize,
    /// The distance, nearly always, to what the next call reads.
    next: usize,
}

impl<'x, T: Element> RowsOfX<'x, T> {
    fn new(x: &'x [T], core: &Winograd<T>, images: usize) -> Self {
        let (roles, [s_down, s_along]) = (&core.view.roles, core.view.strides);
        let channel_len = core.geometry.input_spatial();
        // The next call reads the next image of a batch, or the next channel.
        let is_batch = images > 1 && roles.sub_images(1) == 1;
        Self {
            x,
            channel_len,
            row_len: roles.along.input,
            row_stride: if s_down == 1 { distance(&roles.down) } else { s_down } * roles.along.input,
            step: if s_along == 1 { distance(&roles.along) } else { s_along },
            next: if is_batch { core.geometry.in_channels } else { 1 } * channel_len,
        }
    }

    /// The rows of a window of channel `c`, as whole rows.
    #[inline(always)]
    fn window(&self, window: &InputWindow, c: usize) -> &'x [T] {
        if window.len() == 0 {
            return &[];
        }
        &self.x[window.begin + c * self.channel_len..][..(window.rows - 1) * self.row_stride + self.row_len]
    }

    /// How a window's elements are deinterleaved into `phases`.
    fn deinterleaving<'p>(&self, window: &InputWindow, phases: &'p [PhaseCopy]) -> Deinterleave<'p> {
        Deinterleave {
            planes: 1,
            src_pitch: 0,
            dst_pitch: 0,
            rows: &[],
            width: self.row_len,
            first: window.first,
            stride: self.step,
            phases,
            len: window.elements,
            prefetch_distance: self.next,
        }
    }
}

impl<T: Element> Winograd<T> {
    /// Transforms the tiles of one slice of X, for all channels.
    pub(super) fn transform(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        slice: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        for phase in 0..self.view.strides[0] {
            self.transform_phase(io, task, slice, phase, scratch);
        }
    }

    /// Transforms the tiles of one slice, for the channels of phase `phase` of the stride down.
    fn transform_phase(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        slice: usize,
        phase: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (view, block, scheme) = (&self.view, task.block, &self.blocking.scheme);
        let (images, stride, channels) = (block.size.images, view.strides[1], self.geometry.in_channels_per_group());
        let mut borders = Borders::default();
        let mut windows = [InputWindow::default(); MOST_IMAGES];
        let windows = &mut windows[..images];
        for (i, window) in windows.iter_mut().enumerate() {
            *window = self.window(task, (i, slice), phase, &mut borders);
        }
        let slot_len = block.size.slot_len(scheme, view.channels);
        let v = &mut scratch.v[slice % self.slots() * slot_len..][..slot_len];
        let rows_of_x = RowsOfX::new(io.x, self, images);
        let phases_len = windows.iter().map(InputWindow::len).max().unwrap_or(0);
        let phases: [_; MOST_STRIDE] = array::from_fn(|offset| PhaseCopy { offset, dst: offset * phases_len });
        let in_place = T::DIRECT && rows_of_x.step == 1 && !view.transposes;
        let of_channel = if in_place { 0 } else { images * stride * phases_len };
        let at_once = if view.transposes { scheme.kernel.lanes() } else { 1 };
        for c in 0..channels {
            if of_channel > 0 && c % at_once == 0 {
                for (i, window) in windows.iter().enumerate() {
                    let rows = &mut scratch.rows_in[i * stride * phases_len..];
                    let rows = CopiedRows { rows, phases: &phases[..stride], of_channel };
                    let channels = c..(c + at_once).min(channels);
                    match view.transposes {
                        true => self.transpose_window(io, &rows_of_x, (window, task.group, channels), rows),
                        false => self.deinterleave_window(&rows_of_x, (window, c), rows),
                    }
                }
            }
            let phase_rows = &scratch.rows_in[c % at_once * of_channel..][..of_channel];
            // In the order of memory: whole vectors are written, and the next call overwrites what is
            // too much.
            for (phase_along, (image, window)) in
                (0..stride).flat_map(|phase| windows.iter().enumerate().map(move |window| (phase, window)))
            {
                let source = match in_place.then(|| T::as_acc(rows_of_x.window(window, c))).flatten() {
                    Some(x) => {
                        let x = x.get(window.first as usize..).unwrap_or(&[]);
                        TileSource { x, row_stride: rows_of_x.row_stride, next: rows_of_x.next }
                    }
                    None => {
                        let x = &phase_rows[(image * stride + phase_along) * phases_len..][..window.len()];
                        TileSource { x, row_stride: window.elements, next: 0 }
                    }
                };
                let channel = (phase * channels + c) * stride + phase_along;
                let v = &mut v[channel * block.size.input_tiles() + image * block.size.image_input_tiles()..];
                scheme.kernel.input(&source, borders.get(window.border), scratch.planes, v, block.v_plane);
            }
        }
    }

    /// Copies channel `c` of a window of an X whose channels come first.
    fn deinterleave_window(
        &self,
        rows_of_x: &RowsOfX<'_, T>,
        (window, c): (&InputWindow, usize),
        CopiedRows { rows, phases, .. }: CopiedRows<'_, T::Acc>,
    ) {
        let of_row = |r: usize| SourceRow { src: Some(r * rows_of_x.row_stride), dst: r * window.elements };
        let copy = rows_of_x.deinterleaving(window, phases);
        deinterleave_rows(self.isa, rows_of_x.window(window, c), &copy, (0..window.rows).map(of_row), rows);
    }

    /// Copies some channels of a window of an X whose channels come last, as rows by channels.
    fn transpose_window(
        &self,
        io: &Io<'_, T>,
        rows_of_x: &RowsOfX<'_, T>,
        (window, group, channels): (&InputWindow, usize, Range<usize>),
        CopiedRows { rows, phases, of_channel }: CopiedRows<'_, T::Acc>,
    ) {
        let (strides, step) = (&io.strides.x, rows_of_x.step);
        let (channel, count) = (group * self.geometry.in_channels_per_group() + channels.start, channels.len());
        for (phase, r) in phases.iter().flat_map(|phase| (0..window.rows).map(move |r| (phase, r))) {
            let first = window.first + phase.offset as isize;
            // With a stride, padding is copied.
            let before = (-first).max(0).unsigned_abs().div_ceil(step).min(window.elements);
            let end = (rows_of_x.row_len as isize - first).max(0).unsigned_abs().div_ceil(step).min(window.elements);
            let inside = before..end.max(before);
            let rows = &mut rows[phase.dst + r * window.elements..];
            for c in 0..count {
                let row = &mut rows[c * of_channel..][..window.elements];
                row[..inside.start].fill(T::Acc::ZERO);
                row[inside.end..].fill(T::Acc::ZERO);
            }
            if inside.is_empty() {
                continue;
            }
            let column = (first + (inside.start * step) as isize).unsigned_abs();
            let pixel = window.pixel + r * rows_of_x.row_stride + column;
            let (x, x_pixel) = (&io.x[strides.at(0, channel, pixel)..], step * strides.position);
            let size = (inside.len(), count);
            rows_of_channels(self.isa, size, (x, x_pixel), (&mut rows[inside.start..], of_channel));
        }
    }

    /// The part of a slice of X that the block's tiles read in one image, or its rows of phase `phase`
    /// of a stride. Adds its border to `borders` if it is new.
    fn window(
        &self,
        task: &TileTask<'_, T::Acc>,
        (image, slice): (usize, usize),
        phase: usize,
        borders: &mut Borders,
    ) -> InputWindow {
        let (roles, [s_down, stride]) = (&self.view.roles, self.view.strides);
        let (depth, down, along, planes) = (&roles.depth, &roles.down, &roles.along, &task.block.planes);
        let sub = SubImage::new(roles, task.place.image + image);
        let down_phase = if s_down == 1 { sub.down } else { WinogradPhase::of_stride(down, phase, s_down) };
        // The padded position of the block's first row and element in their phases.
        let [m_down, m_along] = self.blocking.scheme.outputs();
        let (y, x) = (task.place.row * m_down, task.place.column * m_along);
        let rows = down_phase.inside(y, planes.rows());
        let elements = if stride == 1 { sub.along.inside(x, planes.row_len()) } else { 0..planes.row_len() };
        let is_empty = rows.is_empty() || elements.is_empty();
        let (rows, elements) = if is_empty { (0..0, 0..0) } else { (rows, elements) };
        let new = |[rows, elements]: [_; 2]| Border::new(self.blocking.scheme.kernel, planes, rows, elements);
        let border = borders.find([rows.clone(), elements.clone()], new);
        if is_empty {
            return InputWindow { border, ..InputWindow::default() };
        }
        let first_row = down_phase.place(y + rows.start) - down.pad_begin;
        let first = if stride == 1 {
            (sub.along.place(x + elements.start) - along.pad_begin) as isize
        } else {
            (x * stride) as isize - along.pad_begin as isize
        };
        let channel = (sub.image * self.view.groups + task.group) * self.geometry.in_channels_per_group();
        let row_of = |plane: usize| (plane * depth.input + slice - depth.pad_begin) * down.input + first_row;
        let (begin, pixel) = (row_of(channel) * along.input, row_of(sub.image) * along.input);
        InputWindow { begin, pixel, rows: rows.len(), elements: elements.len(), first, border }
    }
}

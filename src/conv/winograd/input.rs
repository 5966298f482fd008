//! From X to transformed tiles.

use core::array;
use core::ops::Range;

use convoke_kernels::Real;
use convoke_kernels::interleave::{Deinterleave, PhaseCopy, SourceRow};
use convoke_kernels::winograd::{Border, MOST_VALUES, TilePixels, TileSource};

use super::blocking::MOST_IMAGES;
use super::run::{Scratch, TileTask, Winograd};
use super::tiles::Scheme;
use super::view::{AxisRoles, MOST_STRIDE, SubImage, distance};
use crate::conv::contract::Io;
use crate::conv::pixels::widen_pixels;
use crate::conv::planes::deinterleave_rows;
use crate::element::Element;

/// Different borders of a block's windows, at most. Over the phases of an axis, the padding at the
/// beginning gets shorter once, and that at the end longer once. That makes three borders for each axis,
/// and one for windows that read nothing of X.
const MOST_BORDERS: usize = 10;

/// The part of a plane of X that the tiles of a block read in a [sub-image](SubImage).
#[derive(Debug, Clone, Copy, Default)]
struct InputWindow {
    /// The first row's beginning in X, for the first channel of the group.
    begin: usize,
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
        if self.view.reads_pixels {
            return self.transform_pixels(io, task, slice, scratch);
        }
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
        let in_place = T::DIRECT && rows_of_x.step == 1;
        for c in 0..channels {
            if !in_place {
                for (i, window) in windows.iter().enumerate() {
                    let rows = &mut scratch.rows_in[i * stride * phases_len..];
                    let of_row = |r: usize| SourceRow { src: Some(r * rows_of_x.row_stride), dst: r * window.elements };
                    let copy = rows_of_x.deinterleaving(window, &phases[..stride]);
                    let of_rows = (0..window.rows).map(of_row);
                    deinterleave_rows(self.isa, rows_of_x.window(window, c), &copy, of_rows, rows);
                }
            }
            let phase_rows = &*scratch.rows_in;
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

    /// Transforms the tiles of one slice of an X whose channels come last.
    fn transform_pixels(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        slice: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (view, block, scheme) = (&self.view, task.block, &self.blocking.scheme);
        let (size, channels) = (&block.size, view.channels_of_phase());
        let ([rows, columns], slot_len) = (size.input(), size.slot_len(scheme, view.channels));
        let v = &mut scratch.v[slice % self.slots() * slot_len..][..slot_len];
        scratch.zeros.fill(T::Acc::ZERO);
        // In the order of memory: where a tile has less than a vector of channels, the next one overwrites what is too
        // much.
        for phase in 0..view.strides[0] * view.strides[1] {
            for (image, row) in (0..size.images).flat_map(|image| (0..rows).map(move |row| (image, row))) {
                let tile = phase * size.input_tiles() + image * size.image_input_tiles() + row * columns;
                let source = self.pixel_rows(io, task, (slice, phase), (image, row), (scratch.rows_in, scratch.zeros));
                scheme.kernel.input_pixels(&source, columns, &mut v[tile * channels..], block.v_plane);
            }
        }
    }

    /// The rows of X that row `row` of the tiles of an image reads, in a phase of the strides. They are copied if they
    /// are no vectors of the type of sums, or if some of them are [free](convoke_kernels::winograd::Spare).
    fn pixel_rows<'s>(
        &self,
        io: &Io<'s, T>,
        task: &TileTask<'_, T::Acc>,
        (slice, phase): (usize, usize),
        (image, row): (usize, usize),
        (copy, zeros): (&'s mut [T::Acc], &'s [T::Acc]),
    ) -> TilePixels<'s, T::Acc> {
        let (view, size, Scheme { kernel, down: of_axis, .. }) = (&self.view, &task.block.size, &self.blocking.scheme);
        let (AxisRoles { depth, down: axis, along: axis_along }, [s_down, s_along]) = (&view.roles, view.strides);
        let sub = SubImage::new(&view.roles, task.place.image + image);
        let down = sub.down.in_stride(axis, phase / s_along, s_down);
        let along = sub.along.in_stride(axis_along, phase % s_along, s_along);
        let [m_down, m_along] = self.blocking.scheme.outputs();
        let (y, x) = ((task.place.row + row) * m_down, task.place.column * m_along);
        let known = of_axis.tile.values - if row + 1 == size.rows { size.spare } else { 0 };
        let (live, inside) = (down.inside(y, known), along.inside(x, task.block.planes.row_len()));
        let (channels, pixel) = (view.channels_of_phase(), view.pixel(kernel.lanes()));
        let mut source = TilePixels { rows: [None; MOST_VALUES], inside, step: pixel, channels, zeros };
        if live.is_empty() || source.inside.is_empty() {
            return source;
        }
        let (width, step) = (source.inside.len(), along.step * io.strides.x.position);
        let column = along.place(x + source.inside.start) - axis_along.pad_begin;
        let row_of_x = |i: usize| {
            let row = (slice - depth.pad_begin) * axis.input + down.place(y + i) - axis.pad_begin;
            io.strides.x.at(sub.image, task.group * channels, row * axis_along.input + column)
        };
        if let Some(x) = T::as_acc(io.x).filter(|_| pixel == channels && known == of_axis.tile.values) {
            live.for_each(|i| source.rows[i] = x.get(row_of_x(i)..));
            return TilePixels { step, ..source };
        }
        let row_len = (width * pixel).next_multiple_of(kernel.lanes());
        let copy = &mut copy[..of_axis.tile.values * row_len];
        for i in live.clone() {
            let to = (&mut copy[i * row_len..][..width * pixel], pixel);
            widen_pixels(self.isa, (&io.x[row_of_x(i)..], step), channels, to);
        }
        if known < of_axis.tile.values {
            kernel.extend(task.block.planes.spare(), &live, copy);
        }
        for (i, row) in copy.chunks_exact(row_len).enumerate().filter(|(i, _)| live.contains(i) || *i >= known) {
            source.rows[i] = Some(row);
        }
        source
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
        let down_phase = sub.down.in_stride(down, phase, s_down);
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
        let begin = ((channel * depth.input + slice - depth.pad_begin) * down.input + first_row) * along.input;
        InputWindow { begin, rows: rows.len(), elements: elements.len(), first, border }
    }
}

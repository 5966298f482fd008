//! From X to transformed tiles.

use core::array;
use core::ops::Range;

use convoke_kernels::weave::{PhasePick, Picks, RowPick};
use convoke_kernels::winograd::{Border, Planes, TileSource};
use convoke_kernels::{Isa, Real, WinogradKernel};

use super::blocking::MOST_IMAGES;
use super::run::{Scratch, TileTask, Winograd};
use super::view::{AxisRoles, MOST_STRIDE, SubImage, WinogradPhase, WinogradView, distance};
use crate::element::Element;
use crate::lower::contract::Io;
use crate::lower::planes::pick_rows;

/// The most different borders of a block's windows. From one phase of an axis to the next, the
/// padding at the beginning becomes shorter once, and the padding at the end longer once. So there
/// are three borders of each axis, and one for windows that see nothing of X.
const MOST_BORDERS: usize = 10;

/// What the tiles of a block see of a plane of X in a [sub-image](SubImage).
#[derive(Debug, Clone, Copy, PartialEq)]
struct InputWindow {
    image: usize,
    /// Where the first row begins in the plane.
    begin: usize,
    /// Rows, and elements of each, that are not padding.
    rows: usize,
    elements: usize,
    /// The first of these elements in its row. With a stride, whose padding is copied, it may lie
    /// before the row.
    first: isize,
    /// Which of the borders it has.
    border: usize,
}

impl InputWindow {
    const EMPTY: Self = Self { image: 0, begin: 0, rows: 0, elements: 0, first: 0, border: 0 };

    fn len(&self) -> usize {
        self.rows * self.elements
    }
}

/// The borders of a block's windows, many of which are alike.
#[derive(Default)]
struct SeenBorders([Option<SeenBorder>; MOST_BORDERS]);

/// The rows of a block and their elements that are not padding, and the border that this makes.
struct SeenBorder {
    rows: Range<usize>,
    elements: Range<usize>,
    border: Border,
}

impl SeenBorders {
    /// The index of the border of these rows and elements.
    fn find<T: Real>(
        &mut self,
        kernel: &WinogradKernel<T>,
        planes: &Planes,
        rows: &Range<usize>,
        elements: &Range<usize>,
    ) -> usize {
        let is_this = |seen: &SeenBorder| seen.rows == *rows && seen.elements == *elements;
        let found = self.0.iter().position(|seen| seen.as_ref().is_none_or(is_this));
        let found = found.expect("no more than there are beginnings and ends of padding on both axes");
        self.0[found].get_or_insert_with(|| {
            let border = Border::new(kernel, planes, rows.clone(), elements.clone());
            SeenBorder { rows: rows.clone(), elements: elements.clone(), border }
        });
        found
    }

    fn get(&self, index: usize) -> &Border {
        &self.0[index].as_ref().expect("made when it was found").border
    }
}

/// Where the rows of X are that a task's windows see.
struct RowsOfX<'x, T> {
    x: &'x [T],
    /// The number of the plane of the group's first channel in the first image, at the slice.
    plane: usize,
    /// Planes from one image to the next, and from one channel to the next.
    image_planes: usize,
    channel_planes: usize,
    /// Elements of a plane, and of a row.
    plane_len: usize,
    row_len: usize,
    /// Elements from one row of a window to the next, and from one element to the next.
    row_stride: usize,
    step: usize,
    /// Elements from a window to what the next call reads, nearly always.
    next: usize,
}

impl<'x, T: Element> RowsOfX<'x, T> {
    fn new(x: &'x [T], view: &WinogradView, task: &TileTask<'_, T::Acc>, slice: usize) -> Self {
        let AxisRoles { depth, down, along } = &view.roles;
        let [s_down, s_along] = view.strides;
        let channels = view.channels / (s_down * s_along);
        let plane_len = down.input * along.input;
        // The next call is for the next image of a batch, or for the next channel.
        let is_batch = task.block.size.images > 1 && view.roles.sub_images(1) == 1;
        let planes_further = if is_batch { view.groups * channels } else { 1 };
        Self {
            x,
            plane: task.group * channels * depth.input + slice - depth.pad_begin,
            image_planes: view.groups * channels * depth.input,
            channel_planes: depth.input,
            plane_len,
            row_len: along.input,
            row_stride: if s_down == 1 { distance(down) } else { s_down } * along.input,
            step: if s_along == 1 { distance(along) } else { s_along },
            next: planes_further * depth.input * plane_len,
        }
    }

    /// What a window sees of channel `c`, from its first row on: whole rows.
    #[inline(always)]
    fn window(&self, window: &InputWindow, c: usize) -> &'x [T] {
        if window.len() == 0 {
            return &[];
        }
        let plane = self.plane + window.image * self.image_planes + c * self.channel_planes;
        let begin = plane * self.plane_len + window.begin;
        &self.x[begin..begin + (window.rows - 1) * self.row_stride + self.row_len]
    }

    /// Copies a window's elements of channel `c`, by `phases`.
    fn pick(&self, isa: Isa, window: &InputWindow, c: usize, phases: &[PhasePick], picked: &mut [T::Acc]) {
        let picks = Picks {
            planes: 1,
            src_pitch: 0,
            dst_pitch: 0,
            rows: &[],
            width: self.row_len,
            first: window.first,
            stride: self.step,
            phases,
            len: window.elements,
            ahead: self.next,
        };
        let rows = (0..window.rows).map(|r| RowPick { src: Some(r * self.row_stride), dst: r * window.elements });
        pick_rows(isa, self.window(window, c), &picks, rows, picked);
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

    /// Transforms the tiles of one slice for the channels that are phase `phase` of the stride
    /// down.
    fn transform_phase(
        &self,
        io: &Io<'_, T>,
        task: &TileTask<'_, T::Acc>,
        slice: usize,
        phase: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (view, block, scheme) = (&self.view, task.block, &self.blocking.scheme);
        let (images, stride) = (block.size.images, view.strides[1]);
        let channels = view.channels / (view.strides[0] * stride);
        let mut borders = SeenBorders::default();
        let mut windows = [InputWindow::EMPTY; MOST_IMAGES];
        let windows = &mut windows[..images];
        for (i, window) in windows.iter_mut().enumerate() {
            *window = self.window(task, SubImage::new(&view.roles, task.first + i), phase, &mut borders);
        }
        let slot_len = block.size.slot_len(scheme, view.channels);
        let v = &mut scratch.v[slice % self.slots() * slot_len..][..slot_len];
        let rows_of_x = RowsOfX::new(io.x, view, task, slice);
        let picked_len = windows.iter().map(InputWindow::len).max().unwrap_or(0);
        let phases: [_; MOST_STRIDE] = array::from_fn(|offset| PhasePick { offset, dst: offset * picked_len });
        let in_place = T::DIRECT && rows_of_x.step == 1;
        for c in 0..channels {
            let picked = &mut scratch.rows_in[..if in_place { 0 } else { images * stride * picked_len }];
            if picked_len > 0 {
                for (window, picked) in windows.iter().zip(picked.chunks_exact_mut(stride * picked_len)) {
                    rows_of_x.pick(self.isa, window, c, &phases[..stride], picked);
                }
            }
            // In the order of memory: whole vectors are written, and the next call overwrites what
            // is too much.
            for (phase_along, (image, window)) in
                (0..stride).flat_map(|phase| windows.iter().enumerate().map(move |window| (phase, window)))
            {
                let source = match T::as_acc(rows_of_x.window(window, c)).filter(|_| in_place) {
                    Some(x) => {
                        let x = x.get(window.first as usize..).unwrap_or(&[]);
                        TileSource { x, row_stride: rows_of_x.row_stride, next: rows_of_x.next }
                    }
                    None => {
                        let x = &picked[(image * stride + phase_along) * picked_len..][..window.len()];
                        TileSource { x, row_stride: window.elements, next: 0 }
                    }
                };
                let channel = (phase * channels + c) * stride + phase_along;
                let v = &mut v[channel * block.size.input_tiles() + image * block.size.image_input_tiles()..];
                scheme.kernel.input(&source, borders.get(window.border), scratch.planes, v, block.v_plane);
            }
        }
    }

    /// What the block's tiles see of X in a sub-image, or of its rows of phase `phase` of a stride.
    /// Its border is added to `borders` if it is not there.
    fn window(
        &self,
        task: &TileTask<'_, T::Acc>,
        sub: SubImage,
        phase: usize,
        borders: &mut SeenBorders,
    ) -> InputWindow {
        let WinogradView { strides: [s_down, stride], roles: AxisRoles { ref down, ref along, .. }, .. } = self.view;
        let (planes, [m_down, m_along]) = (&task.block.planes, self.blocking.scheme.outputs());
        let down_phase = if s_down == 1 { sub.down } else { WinogradPhase::of_stride(down, phase, s_down) };
        // The padded position of the block's first row and element in their phases.
        let (y, x) = (task.row * m_down, task.column * m_along);
        let rows = down_phase.live(y, planes.rows());
        // What is not padding. Phases of a stride are copied with their padding.
        let elements = if stride == 1 { sub.along.live(x, planes.row_len()) } else { 0..planes.row_len() };
        let is_empty = rows.is_empty() || elements.is_empty();
        let (rows, elements) = if is_empty { (0..0, 0..0) } else { (rows, elements) };
        let border = borders.find(self.blocking.scheme.kernel, planes, &rows, &elements);
        if is_empty {
            return InputWindow { image: sub.image, border, ..InputWindow::EMPTY };
        }
        let first_row = down_phase.place(y + rows.start) - down.pad_begin;
        let first = if stride == 1 {
            (sub.along.place(x + elements.start) - along.pad_begin) as isize
        } else {
            (x * stride) as isize - along.pad_begin as isize
        };
        let begin = first_row * along.input;
        InputWindow { image: sub.image, begin, rows: rows.len(), elements: elements.len(), first, border }
    }
}

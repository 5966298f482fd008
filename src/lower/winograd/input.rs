//! From X to transformed tiles.

use core::ops::Range;

use convoke_kernels::weave::{PhasePick, Picks, RowPick};
use convoke_kernels::winograd::{Border, Planes, Source};
use convoke_kernels::{Real, WinogradKernel};

use super::blocks::Task;
use super::choice::MOST_TILES;
use super::fused::{Core, Scratch};
use super::shape::{MOST_STRIDE, Phase, Roles, SubImage, View, distance};
use crate::element::Element;
use crate::lower::contract::Io;
use crate::lower::planes::pick_rows;

/// Sub-images of a block, at the most: each has a tile.
const MOST_IMAGES: usize = MOST_TILES;
/// Borders that they have, at the most: from one phase of an axis to the next, the padding at its
/// beginning becomes shorter once, and that at its end longer, so that there are three of each
/// axis; and one without anything of X.
const MOST_BORDERS: usize = 10;

/// What the tiles of a block see of a plane of X in a [sub-image](SubImage).
#[derive(Clone, Copy)]
struct Window {
    image: usize,
    /// The first element of the first row.
    begin: usize,
    /// Rows, and elements of each, that are not padding.
    rows: usize,
    elements: usize,
    /// The first of these elements; of a stride, whose padding is copied, it may lie before the
    /// row.
    first: isize,
    /// Which of the borders it has.
    border: usize,
}

impl Window {
    const EMPTY: Self = Self { image: 0, begin: 0, rows: 0, elements: 0, first: 0, border: 0 };

    fn len(&self) -> usize {
        self.rows * self.elements
    }
}

/// The borders of a block's windows, of which many are alike.
#[derive(Default)]
struct Borders([Option<Seen>; MOST_BORDERS]);

/// Rows of a block and elements of them that are not padding, and their border.
struct Seen {
    rows: Range<usize>,
    elements: Range<usize>,
    border: Border,
}

impl Borders {
    /// Which one is that of these rows and elements.
    fn find<T: Real>(
        &mut self,
        kernel: &WinogradKernel<T>,
        planes: &Planes,
        rows: &Range<usize>,
        elements: &Range<usize>,
    ) -> usize {
        let is_this = |seen: &Seen| seen.rows == *rows && seen.elements == *elements;
        let found = self.0.iter().position(|seen| seen.as_ref().is_none_or(is_this));
        let found = found.expect("no more than there are beginnings and ends of padding on both axes");
        self.0[found].get_or_insert_with(|| {
            let border = Border::new(kernel, planes, rows.clone(), elements.clone());
            Seen { rows: rows.clone(), elements: elements.clone(), border }
        });
        found
    }

    fn get(&self, index: usize) -> &Border {
        &self.0[index].as_ref().expect("made when it was found").border
    }
}

impl<T: Element> Core<T> {
    /// Transforms the tiles of one slice of X, for all channels.
    pub(super) fn transform(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        slice: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        for phase in 0..self.view.strides[0] {
            self.transform_rows(io, task, slice, phase, scratch);
        }
    }

    /// Transforms the tiles of one slice for all channels of X, from its rows of phase `phase` of
    /// the stride.
    fn transform_rows(
        &self,
        io: &Io<'_, T>,
        task: &Task<'_, T::Acc>,
        slice: usize,
        phase: usize,
        scratch: &mut Scratch<'_, T::Acc>,
    ) {
        let (view, block) = (&self.view, task.block);
        let Roles { depth, down, along } = &view.roles;
        let stride = view.strides[1];
        let channels = view.channels / (view.strides[0] * stride);
        let images = block.extent.images;
        let mut borders = Borders::default();
        // Of one image, which most blocks have, the others need not be cleared.
        let (mut one, mut many);
        let windows = if images == 1 {
            one = [Window::EMPTY];
            &mut one[..]
        } else {
            many = [Window::EMPTY; MOST_IMAGES];
            &mut many[..images]
        };
        for (i, window) in windows.iter_mut().enumerate() {
            *window = self.window(task, SubImage::new(&view.roles, task.first + i), phase, &mut borders);
        }
        let slot = slice % depth.kernel;
        let slot_len = block.extent.slot_len(&self.scheme, view.channels);
        let v = &mut scratch.v[slot * slot_len..][..slot_len];
        let plane = down.input * along.input;
        let all = view.groups * channels;
        // The source of the call behind this one, nearly always.
        let is_batch = images > 1 && SubImage::count(&view.roles, 1) == 1;
        let planes_further = if is_batch { all } else { 1 };
        let next = planes_further * depth.input * plane;
        let row_stride = if view.strides[0] == 1 { distance(down) } else { view.strides[0] } * along.input;
        let step = if stride == 1 { distance(along) } else { stride };
        // Of a stride, all phases; of a dilation, the sub-image's.
        let picked_len = windows.iter().map(Window::len).max().unwrap_or(0);
        let mut phases = [PhasePick { offset: 0, dst: 0 }; MOST_STRIDE];
        for (offset, pick) in phases.iter_mut().enumerate() {
            *pick = PhasePick { offset, dst: offset * picked_len };
        }
        let in_place = T::DIRECT && step == 1;
        for c in 0..channels {
            let rows_of = |window: &Window| {
                let of_x = window.image * all + task.group * channels + c;
                let begin = (of_x * depth.input + slice - depth.pad_begin) * plane + window.begin;
                let rows = window.rows;
                if window.len() == 0 { &[] } else { &io.x[begin..begin + (rows - 1) * row_stride + along.input] }
            };
            let picked = &mut scratch.rows_in[..if in_place { 0 } else { images * stride * picked_len }];
            if picked_len > 0 {
                for (window, picked) in windows.iter().zip(picked.chunks_exact_mut(stride * picked_len)) {
                    let picks = Picks {
                        planes: 1,
                        src_pitch: 0,
                        dst_pitch: 0,
                        rows: &[],
                        width: along.input,
                        first: window.first,
                        stride: step,
                        phases: &phases[..stride],
                        len: window.elements,
                        ahead: next,
                    };
                    let rows =
                        (0..window.rows).map(|r| RowPick { src: Some(r * row_stride), dst: r * window.elements });
                    pick_rows(self.isa, rows_of(window), &picks, rows, picked);
                }
            }
            // In the order of what is written: that is whole vectors, of which others overwrite
            // what is too much.
            for (phase_along, (image, window)) in
                (0..stride).flat_map(|phase| windows.iter().enumerate().map(move |window| (phase, window)))
            {
                let source = match T::as_acc(rows_of(window)).filter(|_| in_place) {
                    Some(x) => Source { x: x.get(window.first as usize..).unwrap_or(&[]), row_stride, next },
                    None => {
                        let x = &picked[(image * stride + phase_along) * picked_len..][..window.len()];
                        Source { x, row_stride: window.elements, next: 0 }
                    }
                };
                let channel = (phase * channels + c) * stride + phase_along;
                let v = &mut v[channel * block.extent.input_tiles() + image * block.extent.image_input_tiles()..];
                self.scheme.kernel.input(&source, borders.get(window.border), scratch.planes, v, block.v_plane);
            }
        }
    }

    /// What the block's tiles see of X in a sub-image, or of its rows of phase `phase` of a stride.
    /// Its border is added to `borders`, if it is not there.
    fn window(&self, task: &Task<'_, T::Acc>, sub: SubImage, phase: usize, borders: &mut Borders) -> Window {
        let View { strides: [s_down, stride], roles: Roles { ref down, ref along, .. }, .. } = self.view;
        let planes = &task.block.planes;
        let down_phase = if s_down == 1 { sub.down } else { Phase::of_stride(down, phase, s_down) };
        // The padded position of the block's first row and element in their phases, and what is not
        // padding.
        let (y, x) = (task.row * self.scheme.down.tile.outputs, task.column * self.scheme.along.tile.outputs);
        let rows = down_phase.live(y, planes.rows());
        // Phases of a stride are copied with their padding.
        let elements = if stride == 1 { sub.along.live(x, planes.row_len()) } else { 0..planes.row_len() };
        let is_empty = rows.is_empty() || elements.is_empty();
        let (rows, elements) = if is_empty { (0..0, 0..0) } else { (rows, elements) };
        let border = borders.find(self.scheme.kernel, planes, &rows, &elements);
        if is_empty {
            return Window { image: sub.image, border, ..Window::EMPTY };
        }
        let first_row = down_phase.place(y + rows.start) - down.pad_begin;
        let first = if stride == 1 {
            (sub.along.place(x + elements.start) - along.pad_begin) as isize
        } else {
            (x * stride) as isize - along.pad_begin as isize
        };
        let begin = first_row * along.input;
        Window { image: sub.image, begin, rows: rows.len(), elements: elements.len(), first, border }
    }
}

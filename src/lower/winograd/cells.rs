//! The axes of ConvTranspose, cut into cells.
//!
//! The s elements of the uncropped output from v * s on, for a stride of s, are a cell. All of them
//! read the same inputs.

use alloc::format;
use alloc::string::String;
use core::ops::Range;

use crate::Axis;
use crate::exec::split::Span;

/// A spatial axis by cells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CellAxis {
    /// Which of the spatial axes it is.
    pub(super) index: usize,
    /// Elements of a cell.
    pub(super) stride: usize,
    /// Taps.
    pub(super) kernel: usize,
    /// Elements of the first cell that are cropped.
    pub(super) cropped: usize,
    /// Elements of the output.
    pub(super) output: usize,
    /// The axis of the view. Its outputs are cells.
    pub(super) view: Axis,
}

impl CellAxis {
    /// A spatial axis that is not there.
    pub(super) const ABSENT: Self = Self { index: 0, stride: 1, kernel: 1, cropped: 0, output: 1, view: Axis::UNIT };

    /// # Errors
    /// Why the axis is not one for cells.
    pub(super) fn new(index: usize, axis: &Axis) -> Result<Self, String> {
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

    /// The element of Y's axis that is phase `q` of a cell; none where it is cropped.
    pub(super) fn element(&self, cell: usize, q: usize) -> Option<usize> {
        (cell * self.stride + q).checked_sub(self.cropped).filter(|element| *element < self.output)
    }

    /// The elements of Y's axis that are phase `q` of some cells.
    pub(super) fn elements(&self, cells: &Range<usize>, q: usize) -> Span {
        // Cropped cells are the first or the last ones.
        let cells = cells.start..cells.end.min(self.view.output).max(cells.start);
        let from = cells.clone().find_map(|cell| self.element(cell, q));
        let count = cells.filter(|cell| self.element(*cell, q).is_some()).count();
        Span { size: self.output, start: from.unwrap_or(0), step: self.stride, count }
    }

    /// The elements of Y's axis that are in some cells.
    pub(super) fn whole_cells(&self, cells: &Range<usize>) -> Span {
        let until = |cell: usize| (cell * self.stride).saturating_sub(self.cropped).min(self.output);
        Span::new(until(cells.start)..until(cells.end), self.output)
    }

    /// The tap of the axis that tap `t` of the view stands for in phase `q`; none where the phase
    /// has a tap less.
    pub(super) fn tap(&self, t: usize, q: usize) -> Option<usize> {
        Some((self.view.kernel - 1 - t) * self.stride + q).filter(|k| *k < self.kernel)
    }

    /// The input that tap `t` of the view reads for a cell; none where that is padding.
    pub(super) fn input(&self, cell: usize, t: usize) -> Option<usize> {
        (cell + t).checked_sub(self.view.pad_begin).filter(|x| *x < self.view.input)
    }
}

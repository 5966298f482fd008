//! Which pixels of X the pixels of Y read, and through which taps.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use convoke_kernels::PixelTaps;

use crate::{Axis, Geometry, Op};

/// Outputs of an axis that read X through the same taps: all outputs of Conv, or those of one phase of
/// ConvTranspose's stride. Output number j is `first + j * step`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OutputLine {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    /// Inputs from what an output reads through a tap to what the next output reads.
    advance: usize,
    /// Each tap, with the input that output 0 reads through it. It may lie outside of X.
    taps: Vec<(usize, isize)>,
}

impl OutputLine {
    /// The lines of an axis, which hold each output once.
    fn of(op: Op, axis: &Axis) -> Vec<Self> {
        let reach = |tap: usize| (tap * axis.dilation) as isize;
        if op == Op::Conv {
            let taps = (0..axis.kernel).map(|tap| (tap, reach(tap) - axis.pad_begin as isize)).collect();
            return vec![Self { first: 0, step: 1, count: axis.output, advance: axis.stride, taps }];
        }
        let phase = |first: usize| {
            let place = first + axis.pad_begin;
            let is_met = |tap: &usize| tap * axis.dilation % axis.stride == place % axis.stride;
            let input = |tap: usize| (place as isize - reach(tap)).div_euclid(axis.stride as isize);
            Self {
                first,
                step: axis.stride,
                count: (axis.output - first).div_ceil(axis.stride),
                advance: 1,
                taps: (0..axis.kernel).filter(is_met).map(|tap| (tap, input(tap))).collect(),
            }
        };
        (0..axis.stride.min(axis.output)).map(phase).collect()
    }

    pub(super) fn taps(&self) -> usize {
        self.taps.len()
    }

    /// The input that an output reads through a tap.
    fn input(&self, output: usize, at: isize) -> isize {
        (output * self.advance) as isize + at
    }

    /// The inputs that some outputs read, cut to those of X.
    fn inputs(&self, outputs: &Range<usize>, input: usize) -> Range<usize> {
        let ats = || self.taps.iter().map(|(_, at)| *at);
        let (Some(least), Some(most)) = (ats().min(), ats().max()) else { return 0..0 };
        let inside = |at: isize| at.clamp(0, input as isize) as usize;
        let start = inside(self.input(outputs.start, least));
        start..inside(self.input(outputs.end.saturating_sub(1), most) + 1).max(start)
    }
}

/// A phase of Y: the outputs of one line of each axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PixelPhase {
    lines: Vec<OutputLine>,
}

/// The furthest that an axis may reach: its inputs and outputs are numbers with a sign.
const MOST_REACH: usize = isize::MAX as usize >> 3;

/// Whether the places of an axis can be computed.
fn is_in_reach(axis: &Axis) -> bool {
    let reaches = [
        axis.kernel.checked_mul(axis.dilation),
        axis.output.checked_mul(axis.stride),
        axis.input.checked_mul(axis.stride),
        axis.pad_begin.checked_add(axis.output),
    ];
    reaches.iter().all(|reach| reach.is_some_and(|reach| reach <= MOST_REACH))
}

/// Phases of Y, at most.
pub(super) const MOST_PHASES: usize = 1 << 10;

impl PixelPhase {
    /// All phases of a layer that have outputs. None if they are too many, or reach too far.
    pub(super) fn all(geometry: &Geometry) -> Option<Vec<Self>> {
        let strides = geometry.axes.iter().map(|axis| if geometry.op == Op::Conv { 1 } else { axis.stride.min(axis.output) });
        let count = strides.fold(1_usize, |count, stride| count.saturating_mul(stride));
        if count > MOST_PHASES || !geometry.axes.iter().all(is_in_reach) {
            return None;
        }
        let mut phases = vec![Self { lines: Vec::new() }];
        for axis in &geometry.axes {
            let lines = OutputLine::of(geometry.op, axis);
            let with = |phase: &Self, line: &OutputLine| {
                Self { lines: phase.lines.iter().chain([line]).cloned().collect() }
            };
            phases = phases.iter().flat_map(|phase| lines.iter().map(move |line| with(phase, line))).collect();
        }
        Some(phases)
    }

    pub(super) fn last(&self) -> &OutputLine {
        &self.lines[self.lines.len() - 1]
    }

    pub(super) fn outer(&self) -> &[OutputLine] {
        &self.lines[..self.lines.len() - 1]
    }

    /// Rows along the last axis of an image.
    pub(super) fn rows(&self) -> usize {
        self.outer().iter().map(|line| line.count).product()
    }

    /// Taps of the kernel that belong to the phase.
    pub(super) fn taps(&self) -> usize {
        self.lines.iter().map(|line| line.taps.len()).product()
    }

    /// Whether consecutive pixels of the phase are neighbours in Y, over the ends of rows too.
    pub(super) fn is_dense(&self) -> bool {
        self.lines.iter().all(|line| line.step == 1)
    }

    /// The output on each axis before the last of row `row` of an image: its number over these axes.
    pub(super) fn outer_output(&self, geometry: &Geometry, mut row: usize) -> usize {
        let (mut at, mut step) = (0, 1);
        for (line, axis) in self.outer().iter().zip(&geometry.axes).rev() {
            at += (line.first + row % line.count * line.step) * step;
            row /= line.count;
            step *= axis.output;
        }
        at
    }

    /// The part of X that some pixels of the phase read. They are counted over its rows in all images. If the
    /// taps of a row are joined, padding belongs to it.
    pub(super) fn window(&self, geometry: &Geometry, pixels: &Range<usize>, is_joined: bool) -> InputWindow {
        let (last, axis) = (self.last(), geometry.axes[geometry.axes.len() - 1]);
        let rows = pixels.start / last.count..pixels.end.div_ceil(last.count);
        let outputs = match rows.len() {
            1 => pixels.start % last.count..(pixels.end - 1) % last.count + 1,
            _ => 0..last.count,
        };
        let columns = match (is_joined, last.taps.first(), last.taps.last()) {
            (true, Some((_, first)), Some((_, end))) => {
                last.input(outputs.start, *first)..last.input(outputs.end - 1, *end) + 1
            }
            _ => {
                let inputs = last.inputs(&outputs, axis.input);
                inputs.start as isize..inputs.end as isize
            }
        };
        InputWindow { rows: self.input_rows(geometry, &rows), columns }
    }

    /// The rows of X, over all axes before the last and all images, that some rows of the phase read.
    fn input_rows(&self, geometry: &Geometry, rows: &Range<usize>) -> Range<usize> {
        if geometry.input_len() == 0 {
            return 0..0;
        }
        let (mut first, mut last) = (rows.start, rows.end.saturating_sub(1));
        let (mut start, mut end, mut step) = (0, 1, 1);
        for (line, axis) in self.outer().iter().zip(&geometry.axes).rev() {
            let (outer_first, outer_last) = (first / line.count, last / line.count);
            // Rows that reach beyond an end of this axis may need all of it.
            let outputs = if outer_first == outer_last { first % line.count..last % line.count + 1 } else { 0..line.count };
            let inputs = line.inputs(&outputs, axis.input);
            start += inputs.start * step;
            end += inputs.end.saturating_sub(1) * step;
            step *= axis.input;
            (first, last) = (outer_first, outer_last);
        }
        // What is left are images.
        first * step + start..last * step + end
    }
}

/// A part of X: rows, over all axes before the last and all images, and columns of each. Columns outside of X
/// are padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputWindow {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<isize>,
}

impl InputWindow {
    pub(super) fn pixels(&self) -> usize {
        self.rows.len().saturating_mul(self.columns.len())
    }
}

/// How the rows of X lie, or of their copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPlaces {
    /// The first row and the first column that there are.
    pub(super) first: usize,
    pub(super) column: isize,
    /// Elements from one row to the next, and from one pixel to the next.
    pub(super) row: usize,
    pub(super) pixel: usize,
    /// Whether a tap of the last axis stands for all of them: their pixels are neighbours in memory.
    pub(super) is_joined: bool,
}

/// Writes the tables of the tiles of a phase.
pub(super) struct TableWriter<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) phase: &'a PixelPhase,
    pub(super) places: RowPlaces,
}

impl TableWriter<'_> {
    /// Writes `[taps][1 + pixels]` for `pixels` pixels from pixel `first` of row `row` on, and returns the
    /// number of taps. Taps that see only padding are left out.
    pub(super) fn write(&self, (row, first): (usize, usize), pixels: usize, entries: &mut [u32]) -> usize {
        let (count, mut done) = (self.phase.last().count, 0);
        let mut taps = 0;
        while done < pixels {
            let (row, first) = (row + (first + done) / count, (first + done) % count);
            let len = (count - first).min(pixels - done);
            taps = self.write_segment(row, first..first + len, entries, 1 + pixels, 1 + done);
            done += len;
        }
        let mut kept = 0;
        for tap in 0..taps {
            let entry = tap * (1 + pixels)..(tap + 1) * (1 + pixels);
            if entries[entry.start + 1..entry.end].iter().any(|place| *place < PixelTaps::ZEROS) {
                entries.copy_within(entry, kept * (1 + pixels));
                kept += 1;
            }
        }
        kept
    }

    /// Writes the entries of pixels of one row, from column `column` of a table of `pitch` columns on.
    fn write_segment(
        &self,
        row: usize,
        outputs: Range<usize>,
        entries: &mut [u32],
        pitch: usize,
        column: usize,
    ) -> usize {
        let (axes, last) = (&self.geometry.axes, self.phase.last());
        let RowPlaces { first, column: first_column, row: row_step, pixel, is_joined } = self.places;
        let (kernel, input) = (axes[axes.len() - 1].kernel, axes[axes.len() - 1].input);
        let taps = if is_joined { &last.taps[..1] } else { &last.taps[..] };
        let (rows, len) = (self.phase.rows(), outputs.len());
        let mut rest = entries.chunks_exact_mut(pitch);
        let mut written = 0;
        for_each_row(self.phase.outer(), axes, row % rows, (0, Some(row / rows)), &mut |number, source| {
            let begin = source.map_or(PixelTaps::ZEROS, |source| ((source - first) * row_step) as u32);
            for (tap, at) in taps {
                let Some(entry) = rest.next() else { return };
                written += 1;
                entry[0] = if is_joined { number } else { number * kernel + tap } as u32;
                let mut from = last.input(outputs.start, *at);
                for place in &mut entry[column..column + len] {
                    let is_inside = is_joined || (0..input as isize).contains(&from);
                    *place = begin + match is_inside {
                        true => ((from - first_column) as usize * pixel) as u32,
                        false => PixelTaps::ZEROS,
                    };
                    from += last.advance as isize;
                }
            }
        });
        written
    }
}

/// Calls `row` for each combination of taps of `lines`, with its number and the row of X that row `index` of
/// the outputs reads through it. None if that is padding.
fn for_each_row(
    lines: &[OutputLine],
    axes: &[Axis],
    index: usize,
    (number, source): (usize, Option<usize>),
    row: &mut dyn FnMut(usize, Option<usize>),
) {
    let [line, rest @ ..] = lines else { return row(number, source) };
    let inner: usize = rest.iter().map(|line| line.count).product();
    let (output, index) = (index / inner, index % inner);
    for (tap, at) in &line.taps {
        let input = usize::try_from(line.input(output, *at)).ok().filter(|input| *input < axes[0].input);
        let source = source.and_then(|source| Some(source * axes[0].input + input?));
        for_each_row(rest, &axes[1..], index, (number * axes[0].kernel + tap, source), row);
    }
}

//! Which pixels of X the pixels of Y read, and through which taps.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use bytemuck::{Pod, Zeroable};
use convoke_kernels::{PixelColumns, PixelTaps};

use crate::conv::view::place;
use crate::{Axis, Geometry, Op};

/// Outputs of an axis that read X through the same taps: all outputs of Conv, or those of one phase of
/// ConvTranspose's stride. Output number j is `first + j * step`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OutputLine {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    /// Inputs from what an output reads through a tap to what the next output reads.
    pub(super) advance: usize,
    /// Each tap, with the input that output 0 reads through it. It may lie outside of X.
    taps: Vec<(usize, isize)>,
}

impl OutputLine {
    /// The lines of an axis, which hold each output once.
    fn of(op: Op, axis: &Axis) -> Vec<Self> {
        if op == Op::Conv {
            let at = |tap: usize| (tap * axis.dilation) as isize - axis.pad_begin as isize;
            let taps = (0..axis.kernel).map(|tap| (tap, at(tap))).collect();
            return vec![Self { first: 0, step: 1, count: axis.output, advance: axis.stride, taps }];
        }
        let phase = |first: usize| {
            let (before, met) = ((first + axis.pad_begin) / axis.stride, (first + axis.pad_begin) % axis.stride);
            let at = |tap: usize| {
                let (phase, shift) = place(axis, tap);
                (phase == met).then_some((tap, before as isize - shift as isize))
            };
            Self {
                first,
                step: axis.stride,
                count: (axis.output - first).div_ceil(axis.stride),
                advance: 1,
                taps: (0..axis.kernel).filter_map(at).collect(),
            }
        };
        (0..axis.stride.min(axis.output)).map(phase).collect()
    }

    pub(super) fn taps(&self) -> usize {
        self.taps.len()
    }

    /// Taps that are not padding, in the mean of all runs of `run` outputs: for a run if they are not for one of
    /// its outputs. X has `input` inputs.
    fn visible_taps(&self, input: usize, run: usize) -> f64 {
        let first = |at: isize| (-at).max(0) as usize;
        let outputs = |at: isize| first(at - input as isize).div_ceil(self.advance) - first(at).div_ceil(self.advance);
        let share = |at: isize| {
            let visible = outputs(at).min(self.count);
            if visible == 0 { 0.0 } else { ((visible + run - 1) as f64 / self.count as f64).min(1.0) }
        };
        self.taps.iter().map(|(_, at)| share(*at)).sum()
    }

    /// The taps in the order of the inputs that they read, as all are equally far apart: the first one with what output 0
    /// reads through it, and what lies between one and the next, as taps and as inputs.
    fn ordered(&self) -> ((usize, isize), (isize, usize)) {
        let (step, spacing) = match self.taps[..] {
            [(tap, at), (next, next_at), ..] => (next as isize - tap as isize, next_at - at),
            _ => (0, 0),
        };
        let first = if spacing < 0 { self.taps.last() } else { self.taps.first() };
        (first.copied().unwrap_or((0, 0)), (if spacing < 0 { -step } else { step }, spacing.unsigned_abs()))
    }

    /// What the outputs from number `output` on read of a row of `count` columns, which begins with input `start`. Its
    /// columns are `pixel` elements apart.
    pub(super) fn columns(&self, output: usize, start: isize, (count, pixel): (usize, usize)) -> PixelColumns {
        let ((_, at), (step, spacing)) = self.ordered();
        let (taps, advance, first) = (self.taps.len(), self.advance, self.input(output, at) - start);
        PixelColumns { first, advance, taps, spacing, step, count, pixel }
    }

    /// The input that an output reads through a tap.
    fn input(&self, output: usize, at: isize) -> isize {
        (output * self.advance) as isize + at
    }

    /// The first and the last input that output 0 reads. None without taps.
    fn reach(&self) -> Option<(isize, isize)> {
        let ats = || self.taps.iter().map(|(_, at)| *at);
        ats().min().zip(ats().max())
    }

    /// Inputs that `outputs` neighbouring outputs read, at most, of an axis of `input`.
    fn most_inputs(&self, outputs: usize, input: usize) -> usize {
        let Some((least, most)) = self.reach() else { return 0 };
        (outputs.saturating_sub(1).saturating_mul(self.advance)).saturating_add((most - least) as usize + 1).min(input)
    }

    /// The inputs that some outputs read, cut to those of X.
    fn inputs(&self, outputs: &Range<usize>, input: usize) -> Range<usize> {
        let Some((least, most)) = self.reach() else { return 0..0 };
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
        // The last tap reaches furthest.
        axis.kernel.saturating_sub(1).checked_mul(axis.dilation),
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
        let strides =
            geometry.axes.iter().map(|axis| if geometry.op == Op::Conv { 1 } else { axis.stride.min(axis.output) });
        let count = strides.fold(1_usize, |count, stride| count.saturating_mul(stride));
        if count > MOST_PHASES || !geometry.axes.iter().all(is_in_reach) {
            return None;
        }
        let mut phases = vec![Self { lines: Vec::new() }];
        for axis in &geometry.axes {
            let lines = OutputLine::of(geometry.op, axis);
            let with =
                |phase: &Self, line: &OutputLine| Self { lines: phase.lines.iter().chain([line]).cloned().collect() };
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

    /// Planes of the last two axes of an image.
    pub(super) fn planes(&self) -> usize {
        let outer = self.outer();
        outer.iter().take(outer.len().saturating_sub(1)).map(|line| line.count).product()
    }

    /// Rows of taps of the kernel that belong to the phase.
    pub(super) fn row_taps(&self) -> usize {
        self.outer().iter().map(|line| line.taps.len()).product()
    }

    /// The number of the phase's first tap among all of the kernel. None without taps.
    pub(super) fn first_tap(&self, axes: &[Axis]) -> Option<usize> {
        let mut lines = self.lines.iter().zip(axes);
        lines.try_fold(0, |number, (line, axis)| Some(number * axis.kernel + line.taps.first()?.0))
    }

    /// Taps of the kernel that belong to the phase.
    pub(super) fn taps(&self) -> usize {
        self.lines.iter().map(|line| line.taps.len()).product()
    }

    /// Taps of a tile of `pixels` pixels that are not padding, in the mean.
    pub(super) fn visible_taps(&self, geometry: &Geometry, pixels: usize) -> f64 {
        let last = self.lines.len() - 1;
        let of_axis = |(i, (line, axis)): (usize, (&OutputLine, &Axis))| {
            line.visible_taps(axis.input, if i == last { pixels } else { 1 })
        };
        self.lines.iter().zip(&geometry.axes).enumerate().map(of_axis).product()
    }

    /// Whether consecutive pixels of the phase are neighbours in Y, over the ends of rows too.
    pub(super) fn is_dense(&self) -> bool {
        self.lines.iter().all(|line| line.step == 1)
    }

    /// Where a pixel of the phase lies in Y. Both are counted over all images.
    pub(super) fn output_pixel(&self, geometry: &Geometry, pixel: usize) -> usize {
        let (mut index, mut at, mut step) = (pixel, 0, 1);
        for (line, axis) in self.lines.iter().zip(&geometry.axes).rev() {
            at += (line.first + index % line.count * line.step) * step;
            (index, step) = (index / line.count, step * axis.output);
        }
        at + index * step
    }

    /// The part of X that some pixels of the phase read. They are counted over its rows in all images. If the
    /// taps of a row are joined, padding belongs to it. `outer` has room for the axes before the last.
    pub(super) fn window<'a>(
        &self,
        geometry: &Geometry,
        pixels: &Range<usize>,
        is_joined: bool,
        outer: &'a mut [AxisWindow],
    ) -> PixelWindow<'a> {
        let (last, axis) = (self.last(), geometry.axes[geometry.axes.len() - 1]);
        let (mut first, mut end) = (pixels.start / last.count, (pixels.end - 1) / last.count);
        let outputs = match first == end {
            true => pixels.start % last.count..(pixels.end - 1) % last.count + 1,
            false => 0..last.count,
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
        for ((line, axis), window) in self.outer().iter().zip(&geometry.axes).zip(outer.iter_mut()).rev() {
            let (before_first, before_end) = (first / line.count, end / line.count);
            // Rows that reach beyond an end of this axis may need all of it.
            let outputs =
                if before_first == before_end { first % line.count..end % line.count + 1 } else { 0..line.count };
            let inputs = line.inputs(&outputs, axis.input);
            *window = [inputs.start, inputs.len()];
            (first, end) = (before_first, before_end);
        }
        // What is left are images.
        PixelWindow { images: first..end + 1, outer, columns }
    }

    /// Pixels of the [`window`](Self::window) of `pixels` neighbouring pixels of an image, or of one of its
    /// `planes`, at most.
    pub(super) fn most_window(&self, geometry: &Geometry, (pixels, planes): (usize, bool), is_joined: bool) -> usize {
        let (axes, all) = (&geometry.axes, if planes { self.rows() / self.planes() } else { self.rows() });
        // Neighbours begin and end within rows.
        let mut rows = (pixels.saturating_sub(1) / self.last().count + 2).min(all);
        let columns = if all == 1 { pixels.min(self.last().count) } else { self.last().count };
        let last = if is_joined { usize::MAX } else { axes[axes.len() - 1].input };
        let mut window = self.last().most_inputs(columns, last);
        let mut outside = all;
        for (line, axis) in self.outer().iter().zip(axes).rev() {
            // The axes outside of a plane have one output.
            let count = if planes && outside == 1 { 1 } else { line.count };
            outside /= count;
            // Rows that reach beyond an end of this axis may need all of it.
            let outputs = if outside == 1 { rows.min(count) } else { count };
            window = window.saturating_mul(line.most_inputs(outputs, axis.input));
            rows = (rows.saturating_sub(1) / count + 2).min(outside);
        }
        window
    }
}

/// The first input of an axis, and how many there are.
pub(super) type AxisWindow = [usize; 2];

/// A part of X: some inputs of each axis. Columns, the inputs of the last axis, may be padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PixelWindow<'a> {
    images: Range<usize>,
    outer: &'a [AxisWindow],
    pub(super) columns: Range<isize>,
}

impl<'a> PixelWindow<'a> {
    /// All of X. `outer` has room for the axes before the last.
    pub(super) fn whole(geometry: &Geometry, outer: &'a mut [AxisWindow]) -> Self {
        for (window, axis) in outer.iter_mut().zip(&geometry.axes) {
            *window = [0, axis.input];
        }
        let columns = 0..geometry.axes[geometry.axes.len() - 1].input as isize;
        Self { images: 0..geometry.batch, outer, columns }
    }

    /// Rows along the last axis.
    pub(super) fn rows(&self) -> usize {
        let outer = self.outer.iter().fold(1_usize, |rows, [_, len]| rows.saturating_mul(*len));
        self.images.len().saturating_mul(outer)
    }

    /// The image of a row of the window, and its number among the rows of the image.
    fn row(&self, geometry: &Geometry, mut index: usize) -> (usize, usize) {
        let (mut row, mut step) = (0, 1);
        for ([first, len], axis) in self.outer.iter().zip(&geometry.axes).rev() {
            row += (first + index % len) * step;
            (index, step) = (index / len, step * axis.input);
        }
        (self.images.start + index, row)
    }

    /// Calls `run` for each run of rows of an image without gaps between their pixels, in order: with the
    /// image, the first row's number in it, and their number.
    pub(super) fn for_each_run(&self, geometry: &Geometry, mut run: impl FnMut(usize, usize, usize)) {
        let whole_row = self.columns == (0..geometry.axes[geometry.axes.len() - 1].input as isize);
        let (mut rows, mut is_whole) = (1, whole_row);
        for ([_, len], axis) in self.outer.iter().zip(&geometry.axes).rev().take_while(|_| whole_row) {
            rows *= if is_whole { *len } else { 1 };
            is_whole &= *len == axis.input;
        }
        for first in (0..self.rows()).step_by(rows.max(1)) {
            let (image, row) = self.row(geometry, first);
            run(image, row, rows);
        }
    }
}

/// How the rows of X lie, or of their copy.
#[derive(Debug, Clone)]
pub(super) struct RowPlaces<'a> {
    /// The rows that there are, and the columns of each.
    pub(super) window: PixelWindow<'a>,
    /// Elements from one row to the next, and from one pixel to the next.
    pub(super) row: usize,
    pub(super) pixel: usize,
    /// Whether a tap of the last axis stands for all of them: their pixels are neighbours in memory.
    pub(super) is_joined: bool,
}

/// Tiles of a chunk that follow one another: `count` tiles with as many tables, `repeats` times.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TableRun {
    /// The first pixel, and the pixels of each tile.
    pub(super) at: usize,
    pub(super) pixels: usize,
    pub(super) count: usize,
    pub(super) repeats: usize,
    /// Elements of X from the places of one time to those of the next.
    pub(super) shift: usize,
    /// Where the tables begin, and the taps of each.
    pub(super) begin: usize,
    pub(super) taps: usize,
}

/// Writes the tables of the tiles of a phase.
pub(super) struct TableWriter<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) phase: &'a PixelPhase,
    pub(super) places: &'a RowPlaces<'a>,
    /// Whether taps that see only padding count too.
    pub(super) counts_padding: bool,
}

impl TableWriter<'_> {
    /// Writes `[taps][1 + pixels]` for `pixels` pixels from pixel `first` of row `row` on, and returns the
    /// number of taps. Taps that see only padding are left out, unless they count.
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
            let places = &entries[entry.start + 1..entry.end];
            if self.counts_padding || places.iter().any(|place| *place < PixelTaps::ZEROS) {
                if kept < tap {
                    entries.copy_within(entry, kept * (1 + pixels));
                }
                kept += 1;
            }
        }
        kept
    }

    /// How many tiles of `pixels` pixels follow one another from pixel `first` of a row on, and read the same
    /// columns of X, each as many columns further on: none reads padding.
    pub(super) fn alike(&self, first: usize, pixels: usize) -> usize {
        let (last, input) = (self.phase.last(), self.geometry.axes[self.geometry.axes.len() - 1].input);
        let of_row = (last.count - first) / pixels;
        let Some((least, most)) = last.reach() else { return of_row.max(1) };
        if self.places.is_joined {
            return of_row.max(1);
        }
        let behind = input as isize - 1 - last.input(first + pixels - 1, most);
        if last.input(first, least) < 0 || behind < 0 {
            return 1;
        }
        of_row.min(1 + behind as usize / (pixels * last.advance)).max(1)
    }

    /// The row of the window that a row of the phase reads through its first taps. None if a tap is padding: the
    /// tables of two rows without padding differ by a shift.
    pub(super) fn first_row(&self, row: usize) -> Option<usize> {
        let (mut index, mut at, mut step) = (row % self.phase.rows(), 0, 1);
        let axes = self.phase.outer().iter().zip(&self.geometry.axes).zip(self.places.window.outer);
        for ((line, axis), [first, len]) in axes.rev() {
            let output = index % line.count;
            let (least, most) = line.reach()?;
            let inputs = (line.input(output, least), line.input(output, most));
            if inputs.0 < 0 || inputs.1 >= axis.input as isize {
                return None;
            }
            at += (inputs.0 as usize - first) * step;
            (index, step) = (index / line.count, step * len);
        }
        Some(at + (row / self.phase.rows() - self.places.window.images.start) * step)
    }

    /// Writes the number of the first tap of each row of the kernel, and behind them where the rows of X begin that some
    /// rows of the phase read, `[rows][row_taps]`. Returns both.
    pub(super) fn write_rows<'t>(&self, rows: Range<usize>, table: &'t mut [u32]) -> &'t [u32] {
        let row_taps = self.phase.row_taps();
        let table = &mut table[..(1 + rows.len()) * row_taps];
        let (numbers, places) = table.split_at_mut(row_taps);
        let RowPlaces { window, row: row_step, .. } = self.places;
        let (axes, of_image) = (&self.geometry.axes, self.phase.rows());
        let (kernel, ((tap, _), _)) = (axes[axes.len() - 1].kernel, self.phase.last().ordered());
        let outer = OuterRows { lines: self.phase.outer(), axes, window: window.outer };
        for (row, places) in rows.zip(places.chunks_exact_mut(row_taps.max(1))) {
            let mut entries = numbers.iter_mut().zip(places);
            let image = row / of_image - window.images.start;
            outer.for_each(row % of_image, (0, Some(image)), &mut |number, source| {
                if let Some((first, place)) = entries.next() {
                    *first = (number * kernel + tap) as u32;
                    *place = source.map_or(PixelTaps::ZEROS, |source| (source * row_step) as u32);
                }
            });
        }
        table
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
        let RowPlaces { window, row: row_step, pixel, is_joined } = self.places;
        let (kernel, input) = (axes[axes.len() - 1].kernel, axes[axes.len() - 1].input);
        let taps = if *is_joined { &last.taps[..1] } else { &last.taps[..] };
        let len = outputs.len();
        let mut rest = entries.chunks_exact_mut(pitch);
        let mut written = 0;
        let rows = OuterRows { lines: self.phase.outer(), axes, window: window.outer };
        rows.for_each(
            row % self.phase.rows(),
            (0, Some(row / self.phase.rows() - window.images.start)),
            &mut |number, source| {
                let begin = source.map_or(PixelTaps::ZEROS, |source| (source * row_step) as u32);
                for (tap, at) in taps {
                    let Some(entry) = rest.next() else { return };
                    written += 1;
                    entry[0] = if *is_joined { number } else { number * kernel + tap } as u32;
                    let from = last.input(outputs.start, *at);
                    let mut place = ((from - window.columns.start) as usize).wrapping_mul(*pixel) as u32;
                    // Numbers of inputs before X wrap to great ones.
                    let (mut input, end) = if *is_joined { (0, 1) } else { (from as usize, input) };
                    let (inputs, places) = (if *is_joined { 0 } else { last.advance }, last.advance * pixel);
                    for entry in &mut entry[column..column + len] {
                        *entry = begin + if input < end { place } else { PixelTaps::ZEROS };
                        input = input.wrapping_add(inputs);
                        place = place.wrapping_add(places as u32);
                    }
                }
            },
        );
        written
    }
}

/// The axes before the last: their outputs, and a window of their inputs.
#[derive(Clone, Copy)]
struct OuterRows<'a> {
    lines: &'a [OutputLine],
    axes: &'a [Axis],
    window: &'a [AxisWindow],
}

impl OuterRows<'_> {
    /// Calls `row` for each combination of taps, with its number and the row of the window that row `index`
    /// of the outputs reads through it. None if that is padding.
    fn for_each(
        self,
        index: usize,
        (number, source): (usize, Option<usize>),
        row: &mut dyn FnMut(usize, Option<usize>),
    ) {
        let (Some((line, lines)), Some(([first, len], window))) = (self.lines.split_first(), self.window.split_first())
        else {
            return row(number, source);
        };
        let (axis, rest) = (&self.axes[0], Self { lines, axes: &self.axes[1..], window });
        let inner: usize = lines.iter().map(|line| line.count).product();
        let (output, index) = (index / inner, index % inner);
        for (tap, at) in &line.taps {
            let input = usize::try_from(line.input(output, *at)).ok().filter(|input| *input < axis.input);
            let source = source.and_then(|source| Some(source * len + input? - first));
            rest.for_each(index, (number * axis.kernel + tap, source), row);
        }
    }
}

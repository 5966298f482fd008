//! What a region computes besides convolutions: loops over pixels, which the compiler makes vectors of.

use convoke::Layout;
use pulp::Arch;
use wide::u8x16;

use crate::region::bytes::{Blend, Blending, ByteScale, Lines, RANGES, Table};
use crate::region::program::Windows;
use crate::region::unit::{Mean, Sources};

/// Pixels with channels last, so many elements from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Pixels<'a, T = f32> {
    pub(crate) elements: &'a [T],
    pub(crate) step: usize,
    pub(crate) channels: usize,
}

impl<'a, T> Pixels<'a, T> {
    #[inline(always)]
    pub(crate) fn get(&self, pixel: usize) -> &'a [T] {
        &self.elements[pixel * self.step..][..self.channels]
    }
}

/// Pixels of Y that a thread writes, from one on.
pub(crate) struct Part<'a, T = f32> {
    pub(crate) elements: &'a mut [T],
    pub(crate) step: usize,
    pub(crate) channels: usize,
    pub(crate) first: usize,
}

impl<T> Part<'_, T> {
    /// Has `compute` write each pixel, of which it gets the number.
    #[inline(always)]
    fn each(self, mut compute: impl FnMut(usize, &mut [T])) {
        for (i, pixel) in self.elements.chunks_mut(self.step).enumerate() {
            compute(self.first + i, &mut pixel[..self.channels]);
        }
    }
}

/// Channels that are computed together: a vector of the usual CPU. Most tensors have too few for what the compiler would
/// make of a loop over all of them.
const LANES: usize = 8;

/// Elements of copies of pixels, which are computed together.
const COPIED: usize = 512;

/// `y[i] = of(one[i], other[i])`.
#[inline(always)]
fn zip<X: Copy, Y>(one: &[X], other: &[X], y: &mut [Y], of: impl Fn(X, X) -> Y) {
    let ((ones, one), (others, other)) = (one.as_chunks::<LANES>(), other.as_chunks::<LANES>());
    let (vectors, y) = y.as_chunks_mut::<LANES>();
    for ((y, one), other) in vectors.iter_mut().zip(ones).zip(others) {
        *y = std::array::from_fn(|i| of(one[i], other[i]));
    }
    for ((y, one), other) in y.iter_mut().zip(one).zip(other) {
        *y = of(*one, *other);
    }
}

/// `x * by`, where `of_factors` pixels have the same factors.
pub(crate) fn product(x: Pixels<'_>, by: Pixels<'_>, of_factors: usize, y: Part<'_>) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            y.each(|pixel, y| zip(x.get(pixel), by.get(pixel / of_factors), y, |x, by| x * by));
        },
    );
}

/// `x`, or where it is negative `x * slope`.
pub(crate) fn slopes(x: Pixels<'_>, slopes: &[f32], y: Part<'_>) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            y.each(|pixel, y| zip(x.get(pixel), slopes, y, |x, slope| if x < 0.0 { x * slope } else { x }));
        },
    );
}

/// Bytes through a table.
pub(crate) fn look_up(x: Pixels<'_, u8>, table: &Table, y: Part<'_, u8>) {
    if [x.step, y.step] == [y.channels; 2] {
        let x = &x.elements[y.first * y.channels..];
        y.elements.copy_from_slice(&x[..y.elements.len()]);
        return convoke::look_up(table, y.elements);
    }
    // Pixels are looked up side by side, because they have few channels where they lie apart.
    let Part { elements, step, channels, mut first } = y;
    let Some(count) = COPIED.checked_div(channels) else { return };
    let mut block = [0; COPIED];
    for pixels in elements.chunks_mut(step * count.max(1)) {
        let count = pixels.len().div_ceil(step);
        let Some(block) = block.get_mut(..count * channels) else {
            copy_pixel(x.get(first), &mut pixels[..channels]);
            convoke::look_up(table, &mut pixels[..channels]);
            first += 1;
            continue;
        };
        for (i, copy) in block.chunks_exact_mut(channels).enumerate() {
            copy_pixel(x.get(first + i), copy);
        }
        convoke::look_up(table, block);
        for (y, copy) in pixels.chunks_mut(step).zip(block.chunks_exact(channels)) {
            copy_pixel(copy, &mut y[..channels]);
        }
        first += count;
    }
}

/// Bytes of whole images from a layout into the other one, perhaps through a table.
pub(crate) fn reorder(
    x: &[u8],
    (channels, positions): (usize, usize),
    to: Layout,
    y: &mut [u8],
    table: Option<&Table>,
) {
    let (rows, columns) = if to == Layout::ChannelsLast { (channels, positions) } else { (positions, channels) };
    for (x, y) in x.chunks_exact(channels * positions).zip(y.chunks_exact_mut(channels * positions)) {
        transpose(x, (rows, columns), y);
    }
    if let Some(table) = table {
        convoke::look_up(table, y);
    }
}

/// Rows and columns of a block that is transposed in registers.
const BLOCK: usize = 16;

/// Transposes a matrix. Its last blocks overlap those before them.
fn transpose(x: &[u8], (rows, columns): (usize, usize), y: &mut [u8]) {
    if rows < BLOCK {
        for (i, x) in x.chunks_exact(columns).enumerate() {
            y[i..].iter_mut().step_by(rows).zip(x).for_each(|(y, x)| *y = *x);
        }
        return;
    }
    if columns < BLOCK {
        for (j, y) in y.chunks_exact_mut(rows).enumerate() {
            y.iter_mut().zip(x[j..].iter().step_by(columns)).for_each(|(y, x)| *y = *x);
        }
        return;
    }
    let begins = |len: usize| (0..len).step_by(BLOCK).map(move |begin| begin.min(len - BLOCK));
    for (column, row) in begins(columns).flat_map(|column| begins(rows).map(move |row| (column, row))) {
        let (x, y) = (&x[row * columns + column..], &mut y[column * rows + row..]);
        let mut block = [u8x16::default(); BLOCK];
        for i in 0..BLOCK {
            block[i] = u8x16::new(*x[i * columns..].first_chunk().expect("a row ends in X"));
        }
        let block = rotated(rotated(rotated(rotated(block))));
        for j in 0..BLOCK {
            *y[j * rows..].first_chunk_mut().expect("a row ends in Y") = block[j].to_array();
        }
    }
}

/// Moves on, by one bit in a circle, the addresses of bytes, whose upper half is the row: four times that is a transposition.
#[inline(always)]
fn rotated(block: [u8x16; BLOCK]) -> [u8x16; BLOCK] {
    let mut to = block;
    for i in 0..BLOCK / 2 {
        to[2 * i] = u8x16::unpack_low(block[i], block[i + BLOCK / 2]);
        to[2 * i + 1] = u8x16::unpack_high(block[i], block[i + BLOCK / 2]);
    }
    to
}

/// The sum or the product of two tensors of bytes, where `of_factors` pixels have the same pixel of the second one.
pub(crate) fn blend_bytes(x: Pixels<'_, u8>, by: Pixels<'_, u8>, of_factors: usize, blend: &Blend, y: Part<'_, u8>) {
    let Blend { op, of: [one, other], y: scale, offset } = *blend;
    match op {
        Blending::Sum => for_each_pair(
            (x, by, of_factors),
            y,
            #[inline(always)]
            move |x, by| scale.byte(one.number(x) + other.number(by) + offset),
        ),
        Blending::Product => for_each_pair(
            (x, by, of_factors),
            y,
            #[inline(always)]
            move |x, by| scale.byte(one.number(x) * other.number(by) + offset),
        ),
    }
}

/// What the lines of each channel say of bytes. Pixels without gaps are read many at a time.
pub(crate) fn lines(x: Pixels<'_, u8>, lines: &Lines, y: Part<'_, u8>) {
    let is_dense = [x.step, y.step] == [y.channels; 2];
    Arch::new().dispatch(
        #[inline(always)]
        || {
            if is_dense {
                let most = lines.above.len();
                let x = x.elements[y.first * y.channels..].chunks(most);
                y.elements.chunks_mut(most).zip(x).for_each(|(y, x)| lines_of(lines, x, y));
            } else {
                y.each(|pixel, y| lines_of(lines, x.get(pixel), y));
            }
        },
    );
}

#[inline(always)]
fn lines_of(lines: &Lines, x: &[u8], y: &mut [u8]) {
    let (of, scale) = (lines.of, lines.y);
    let lines = lines.above.iter().zip(&lines.below).zip(&lines.shifts);
    for ((y, x), ((above, below), shift)) in y.iter_mut().zip(x).zip(lines) {
        let number = of.number(*x);
        let slope = if number < 0.0 { *below } else { *above };
        *y = scale.byte(number * slope + *shift);
    }
}

/// The least and the largest number of each of some parts of X. What is no number is left out.
pub(crate) fn ranges(x: Pixels<'_>, pixels: usize, y: Part<'_>) {
    let of_part = pixels.div_ceil(RANGES);
    Arch::new().dispatch(
        #[inline(always)]
        || {
            y.each(|part, y| {
                let (begin, end) = ((part * of_part).min(pixels), ((part + 1) * of_part).min(pixels));
                let mut range = [[0.0; LANES]; 2];
                if x.step == x.channels {
                    widen(&mut range, &x.elements[begin * x.step..end * x.step]);
                } else {
                    (begin..end).for_each(|pixel| widen(&mut range, x.get(pixel)));
                }
                y[0] = range[0].into_iter().fold(0.0, smaller);
                y[1] = range[1].into_iter().fold(0.0, larger);
            });
        },
    );
}

/// Widens ranges, each of every so many numbers, to those of more numbers.
#[inline(always)]
fn widen([least, most]: &mut [[f32; LANES]; 2], x: &[f32]) {
    let (vectors, rest) = x.as_chunks::<LANES>();
    for x in vectors {
        *least = std::array::from_fn(|i| smaller(least[i], x[i]));
        *most = std::array::from_fn(|i| larger(most[i], x[i]));
    }
    for x in rest {
        (least[0], most[0]) = (smaller(least[0], *x), larger(most[0], *x));
    }
}

#[inline(always)]
fn smaller(y: f32, x: f32) -> f32 {
    if x < y { x } else { y }
}

/// Floats as bytes.
pub(crate) fn quantise(x: Pixels<'_>, scale: ByteScale, y: Part<'_, u8>) {
    for_each_pair(
        (x, x, 1),
        y,
        #[inline(always)]
        move |x, _| scale.byte(x),
    );
}

/// Bytes as floats.
pub(crate) fn dequantise(x: Pixels<'_, u8>, scale: ByteScale, y: Part<'_>) {
    for_each_pair(
        (x, x, 1),
        y,
        #[inline(always)]
        move |x, _| scale.number(x),
    );
}

/// What `of` says of each element, and of the one at its place in another pixel. Rows without gaps are one.
#[inline(always)]
fn for_each_pair<'a, X: Copy + 'a, Y>(
    (x, other, of_other): (Pixels<'a, X>, Pixels<'a, X>, usize),
    y: Part<'_, Y>,
    of: impl Fn(X, X) -> Y + Copy,
) {
    let are_rows = of_other > 1 || [x.step, other.step, y.step] != [y.channels; 3];
    // Copies of a pixel that many pixels read: vectors have more bytes than most pixels have channels.
    let is_dense = [x.step, y.step] == [y.channels; 2];
    let copies = if is_dense { COPIED.checked_div(y.channels).unwrap_or(0).min(of_other) } else { 0 };
    Arch::new().dispatch(
        #[inline(always)]
        || {
            // In registers: bytes that are written may be anything else, for what the compiler knows.
            let compute = of;
            if copies > 1 {
                let (channels, mut first, mut y) = (y.channels, y.first, y.elements);
                while !y.is_empty() {
                    let pixels = (y.len() / channels).min(of_other - first % of_other);
                    let mut copied = [x.elements[0]; COPIED];
                    let copied = &mut copied[..copies * channels];
                    copied
                        .chunks_exact_mut(channels)
                        .for_each(|copy| copy.copy_from_slice(other.get(first / of_other)));
                    let x = x.elements[first * channels..].chunks(copied.len());
                    let of_pixel = y.split_off_mut(..pixels * channels).unwrap_or_default();
                    for (y, x) in of_pixel.chunks_mut(copied.len()).zip(x) {
                        pairs(x, copied, y, compute);
                    }
                    first += pixels;
                }
            } else if are_rows {
                y.each(
                    #[inline(always)]
                    |pixel, y| pairs(x.get(pixel), other.get(pixel / of_other), y, compute),
                );
            } else {
                let first = y.first * y.channels;
                pairs(&x.elements[first..], &other.elements[first..], y.elements, compute);
            }
        },
    );
}

/// As [`zip`], for bytes, of which a vector has many.
#[inline(always)]
fn pairs<X: Copy, Y>(one: &[X], other: &[X], y: &mut [Y], of: impl Fn(X, X) -> Y) {
    for ((y, one), other) in y.iter_mut().zip(one).zip(other) {
        *y = of(*one, *other);
    }
}

pub(crate) fn copy<T: Copy>(x: Pixels<'_, T>, y: Part<'_, T>) {
    y.each(|pixel, y| copy_pixel(x.get(pixel), y));
}

/// Some channels of each pixel. Vectors are made of those of every second channel, and of two runs of channels by turns:
/// of halves and shuffles of them.
pub(crate) fn pick<T: Copy>(x: Pixels<'_, T>, channels: &[usize], y: Part<'_, T>) {
    let first = channels.first().copied().unwrap_or(0);
    let are_each_second = channels.windows(2).all(|pair| pair[1] == pair[0] + 2);
    let other = channels.get(1).copied().unwrap_or(0);
    let are_two_runs =
        channels.len().is_multiple_of(2) && channels.windows(3).all(|channels| channels[2] == channels[0] + 1);
    Arch::new().dispatch(
        #[inline(always)]
        || {
            y.each(|pixel, y| {
                let x = x.get(pixel);
                if are_each_second && first.is_multiple_of(2) {
                    each_second::<T, 0>(&x[first..], y);
                } else if are_each_second {
                    each_second::<T, 1>(&x[first - 1..], y);
                } else if are_two_runs {
                    for (pair, (one, other)) in y.as_chunks_mut().0.iter_mut().zip(x[first..].iter().zip(&x[other..])) {
                        *pair = [*one, *other];
                    }
                } else {
                    for (y, channel) in y.iter_mut().zip(channels) {
                        *y = x[*channel];
                    }
                }
            });
        },
    );
}

/// The first or the second of each pair.
#[inline(always)]
fn each_second<T: Copy, const PLACE: usize>(x: &[T], y: &mut [T]) {
    let pairs = x.as_chunks::<{ 2 * LANES }>().0;
    for (y, x) in y.as_chunks_mut::<LANES>().0.iter_mut().zip(pairs) {
        *y = std::array::from_fn(|i| x[2 * i + PLACE]);
    }
    let done = pairs.len().min(y.len() / LANES) * LANES;
    for (i, y) in y.iter_mut().enumerate().skip(done) {
        *y = x[2 * i + PLACE];
    }
}

/// Most pixels are too short for a call of `memcpy`.
#[inline(always)]
fn copy_pixel<T: Copy>(x: &[T], y: &mut [T]) {
    zip(x, x, y, |x, _| x);
}

/// Pixels between four others.
pub(crate) fn resize(x: Pixels<'_>, x_sizes: [usize; 2], sources: &[Sources; 2], y: Part<'_>) {
    between_pixels(x, x_sizes, sources, y, blend);
}

/// The nearest pixels.
pub(crate) fn resize_bytes(x: Pixels<'_, u8>, x_sizes: [usize; 2], sources: &[Sources; 2], y: Part<'_, u8>) {
    between_pixels(x, x_sizes, sources, y, |nearest, _, _, y| copy_pixel(nearest, y));
}

/// Pixels for which `blend` has two others, and the share of the second one.
#[inline(always)]
fn between_pixels<T: Copy + Default>(
    x: Pixels<'_, T>,
    [height, width]: [usize; 2],
    sources: &[Sources; 2],
    y: Part<'_, T>,
    blend: impl Fn(&[T], &[T], f32, &mut [T]),
) {
    let [rows, columns] = sources;
    let Part { elements, step, channels, first } = y;
    let mut pixels = elements.chunks_mut(step);
    let mut at = first;
    let mut between = Vec::new();
    Arch::new().dispatch(
        #[inline(always)]
        || {
            while pixels.len() > 0 {
                let (row, column) = (at / columns.len(), at % columns.len());
                let (above, below, share) = rows[row % rows.len()];
                let of_row = |source: usize| (row / rows.len() * height + source) * width;
                // A row between two rows, unless it is one of them.
                let blended = above != below && share != 0.0;
                if blended {
                    between.resize(width * channels, T::default());
                    for (i, y) in between.chunks_exact_mut(channels).enumerate() {
                        blend(x.get(of_row(above) + i), x.get(of_row(below) + i), share, y);
                    }
                }
                let source = |column: usize| match blended {
                    true => &between[column * channels..][..channels],
                    false => x.get(of_row(above) + column),
                };
                for (&(left, right, share), y) in columns[column..].iter().zip(&mut pixels) {
                    let y = &mut y[..channels];
                    match left == right || share == 0.0 {
                        true => copy_pixel(source(left), y),
                        false => blend(source(left), source(right), share, y),
                    }
                    at += 1;
                }
            }
        },
    );
}

/// Numbers between those of two vectors, by the share of the second one.
#[inline(always)]
fn blend(one: &[f32], other: &[f32], share: f32, y: &mut [f32]) {
    zip(one, other, y, |one, other| one * (1.0 - share) + other * share);
}

/// The maximum or the mean of each window.
pub(crate) fn pool(x: Pixels<'_>, windows: &Windows, y: Part<'_>) {
    for_each_window(windows, y, |taps, y| match windows.mean {
        None => reduce(x, taps, y, f32::NEG_INFINITY, larger),
        Some(mean) => {
            reduce(x, taps, y, 0.0, |y, x| y + x);
            let of_window = if mean == Mean::OfWindow { windows.volume } else { taps.rows.len() * taps.count };
            y.iter_mut().for_each(|y| *y /= of_window as f32);
        }
    });
}

/// The maximum of each window.
pub(crate) fn pool_bytes(x: Pixels<'_, u8>, windows: &Windows, y: Part<'_, u8>) {
    for_each_window(windows, y, |taps, y| reduce(x, taps, y, 0, larger));
}

#[inline(always)]
fn larger<T: PartialOrd>(y: T, x: T) -> T {
    if x > y { x } else { y }
}

/// Has `compute` write the pixel of each window.
#[inline(always)]
fn for_each_window<T>(windows: &Windows, y: Part<'_, T>, compute: impl Fn(Taps<'_>, &mut [T])) {
    let (width, dilation) = (windows.width(), windows.dilation());
    let Part { elements, step, channels, first } = y;
    let (mut row, mut begin) = (first / width, first % width);
    let (mut pixels, mut rows) = (elements.chunks_mut(step), Vec::new());
    Arch::new().dispatch(
        #[inline(always)]
        || {
            while pixels.len() > 0 {
                windows.rows(row, &mut rows);
                for (column, y) in (begin..width).zip(&mut pixels) {
                    let (first, count) = windows.columns(column);
                    compute(Taps { rows: &rows, first, count, dilation }, &mut y[..channels]);
                }
                (row, begin) = (row + 1, 0);
            }
        },
    );
}

/// Pixels of X: so many of each row, from one on.
#[derive(Clone, Copy)]
struct Taps<'a> {
    rows: &'a [usize],
    first: usize,
    count: usize,
    dilation: usize,
}

/// What some pixels come to: as many channels at a time as there are, so that sums of many vectors hide the latency.
#[inline(always)]
fn reduce<T: Copy>(x: Pixels<'_, T>, taps: Taps<'_>, y: &mut [T], zero: T, add: impl Fn(T, T) -> T) {
    let mut channel = 0;
    let y = reduce_by::<T, { 4 * LANES }>(x, taps, &mut channel, y, zero, &add);
    let y = reduce_by::<T, { 2 * LANES }>(x, taps, &mut channel, y, zero, &add);
    let y = reduce_by::<T, LANES>(x, taps, &mut channel, y, zero, &add);
    reduce_by::<T, 1>(x, taps, &mut channel, y, zero, &add);
}

/// The same, `N` channels at a time from one on. Returns those that are left.
#[inline(always)]
fn reduce_by<'y, T: Copy, const N: usize>(
    x: Pixels<'_, T>,
    taps: Taps<'_>,
    channel: &mut usize,
    y: &'y mut [T],
    zero: T,
    add: impl Fn(T, T) -> T,
) -> &'y mut [T] {
    let (vectors, rest) = y.as_chunks_mut::<N>();
    for y in vectors {
        *y = reduced(x, taps, *channel, zero, &add);
        *channel += N;
    }
    rest
}

/// The same of `N` channels. Rows are added to each other, so that the rounding errors of large windows stay small.
#[inline(always)]
fn reduced<T: Copy, const N: usize>(
    x: Pixels<'_, T>,
    taps: Taps<'_>,
    channel: usize,
    zero: T,
    add: impl Fn(T, T) -> T,
) -> [T; N] {
    let mut all = [zero; N];
    for row in taps.rows {
        let mut sums = [zero; N];
        let mut at = (row + taps.first) * x.step + channel;
        for _ in 0..taps.count {
            let x_of_tap: &[T; N] = x.elements[at..].first_chunk().expect("the channels of a pixel");
            for (sum, x) in sums.iter_mut().zip(x_of_tap) {
                *sum = add(*sum, *x);
            }
            at += taps.dilation * x.step;
        }
        for (all, sum) in all.iter_mut().zip(sums) {
            *all = add(*all, sum);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{COPIED, Part, Pixels, for_each_pair, look_up, transpose};

    /// So many pixels of bytes, each with a gap behind it.
    fn pixels(count: usize, channels: usize, gap: usize) -> Vec<u8> {
        (0..count * (channels + gap)).map(|i| (i * 37 % 251) as u8).collect()
    }

    #[test]
    fn tables_are_looked_up_for_pixels_with_and_without_gaps() {
        let table = std::array::from_fn(|byte| 255 - byte as u8);
        for (channels, gap, of_y) in [(3, 0, 2), (16, 5, 0), (40, 1, 1), (COPIED + 9, 2, 3), (7, 0, 0)] {
            let (count, first) = (150, 11);
            let (x, mut y) = (pixels(count, channels, gap), pixels(count - first, channels, of_y));
            let before = y.clone();
            let of_x = Pixels { elements: &x, step: channels + gap, channels };
            look_up(of_x, &table, Part { elements: &mut y, step: channels + of_y, channels, first });
            for (i, y) in y.iter().enumerate() {
                let (pixel, c) = (i / (channels + of_y), i % (channels + of_y));
                let looked_up = || 255 - x[(first + pixel) * (channels + gap) + c];
                assert_eq!(*y, if c < channels { looked_up() } else { before[i] }, "{channels} channels, byte {i}");
            }
        }
    }

    #[test]
    fn pixels_that_many_read_are_the_same_for_all_of_them() {
        for (channels, of_other, gap) in [(16, 30, 0), (3, 2, 0), (1, 7, 0), (16, 30, 4), (COPIED, 5, 0), (5, 1, 0)] {
            let (count, first) = (4 * of_other, of_other / 2 + 1);
            let (x, other) = (pixels(count, channels, gap), pixels(4, channels, 1));
            let mut y = vec![0; (count - first) * channels];
            let of = |elements, step| Pixels { elements, step, channels };
            // A part that begins within an image.
            for_each_pair(
                (of(&x[..], channels + gap), of(&other[..], channels + 1), of_other),
                Part { elements: &mut y[..], step: channels, channels, first },
                |x: u8, other: u8| x.wrapping_mul(3).wrapping_add(other),
            );
            for (i, y) in y.iter().enumerate() {
                let (pixel, c) = (first + i / channels, i % channels);
                let x = x[pixel * (channels + gap) + c].wrapping_mul(3);
                let expected = x.wrapping_add(other[pixel / of_other * (channels + 1) + c]);
                assert_eq!(*y, expected, "{channels} channels, {of_other} pixels an image, byte {i}");
            }
        }
    }

    #[test]
    fn matrices_of_bytes_are_transposed() {
        for rows in [1, 2, 3, 15, 16, 17, 40] {
            for columns in [1, 2, 3, 15, 16, 17, 40] {
                let x: Vec<u8> = (0..rows * columns).map(|i| (i * 7 % 251) as u8).collect();
                let mut y = vec![0; x.len()];
                transpose(&x, (rows, columns), &mut y);
                let expected: Vec<u8> = (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
                assert_eq!(y, expected, "{rows} rows of {columns}");
            }
        }
    }
}

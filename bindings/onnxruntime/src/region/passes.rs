//! What a region computes besides convolutions: loops over pixels, which the compiler makes vectors of.

use pulp::Arch;

use crate::region::program::Windows;
use crate::region::unit::{Mean, Sources};

/// Pixels with channels last, so many elements from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Pixels<'a> {
    pub(crate) elements: &'a [f32],
    pub(crate) step: usize,
    pub(crate) channels: usize,
}

impl<'a> Pixels<'a> {
    #[inline(always)]
    pub(crate) fn get(&self, pixel: usize) -> &'a [f32] {
        &self.elements[pixel * self.step..][..self.channels]
    }
}

/// Pixels of Y that a thread writes, from one on.
pub(crate) struct Part<'a> {
    pub(crate) elements: &'a mut [f32],
    pub(crate) step: usize,
    pub(crate) channels: usize,
    pub(crate) first: usize,
}

impl Part<'_> {
    /// Has `compute` write each pixel, of which it gets the number.
    #[inline(always)]
    fn each(self, mut compute: impl FnMut(usize, &mut [f32])) {
        for (i, pixel) in self.elements.chunks_mut(self.step).enumerate() {
            compute(self.first + i, &mut pixel[..self.channels]);
        }
    }
}

/// Channels that are computed together: a vector of the usual CPU. Most tensors have too few for what the compiler would
/// make of a loop over all of them.
const LANES: usize = 8;

/// `y[i] = of(one[i], other[i])`.
#[inline(always)]
fn zip(one: &[f32], other: &[f32], y: &mut [f32], of: impl Fn(f32, f32) -> f32) {
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

pub(crate) fn copy(x: Pixels<'_>, y: Part<'_>) {
    y.each(|pixel, y| copy_pixel(x.get(pixel), y));
}

/// Some channels of each pixel. Vectors are made of those of every second channel, and of two runs of channels by turns:
/// of halves and shuffles of them.
pub(crate) fn pick(x: Pixels<'_>, channels: &[usize], y: Part<'_>) {
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
                    each_second::<0>(&x[first..], y);
                } else if are_each_second {
                    each_second::<1>(&x[first - 1..], y);
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
fn each_second<const PLACE: usize>(x: &[f32], y: &mut [f32]) {
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
fn copy_pixel(x: &[f32], y: &mut [f32]) {
    zip(x, x, y, |x, _| x);
}

/// Pixels between four others.
pub(crate) fn resize(x: Pixels<'_>, [height, width]: [usize; 2], sources: &[Sources; 2], y: Part<'_>) {
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
                    between.resize(width * channels, 0.0);
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
                    let (taps, y) = (Taps { rows: &rows, first, count, dilation }, &mut y[..channels]);
                    match windows.mean {
                        None => reduce(x, taps, y, f32::NEG_INFINITY, |y, x| if x > y { x } else { y }),
                        Some(mean) => {
                            reduce(x, taps, y, 0.0, |y, x| y + x);
                            let of_window = if mean == Mean::OfWindow { windows.volume } else { rows.len() * count };
                            y.iter_mut().for_each(|y| *y /= of_window as f32);
                        }
                    }
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
fn reduce(x: Pixels<'_>, taps: Taps<'_>, y: &mut [f32], zero: f32, add: impl Fn(f32, f32) -> f32) {
    let mut channel = 0;
    let y = reduce_by::<{ 4 * LANES }>(x, taps, &mut channel, y, zero, &add);
    let y = reduce_by::<{ 2 * LANES }>(x, taps, &mut channel, y, zero, &add);
    let y = reduce_by::<LANES>(x, taps, &mut channel, y, zero, &add);
    reduce_by::<1>(x, taps, &mut channel, y, zero, &add);
}

/// The same, `N` channels at a time from one on. Returns those that are left.
#[inline(always)]
fn reduce_by<'y, const N: usize>(
    x: Pixels<'_>,
    taps: Taps<'_>,
    channel: &mut usize,
    y: &'y mut [f32],
    zero: f32,
    add: impl Fn(f32, f32) -> f32,
) -> &'y mut [f32] {
    let (vectors, rest) = y.as_chunks_mut::<N>();
    for y in vectors {
        *y = reduced(x, taps, *channel, zero, &add);
        *channel += N;
    }
    rest
}

/// The same of `N` channels. Rows are added to each other, so that the rounding errors of large windows stay small.
#[inline(always)]
fn reduced<const N: usize>(
    x: Pixels<'_>,
    taps: Taps<'_>,
    channel: usize,
    zero: f32,
    add: impl Fn(f32, f32) -> f32,
) -> [f32; N] {
    let mut all = [zero; N];
    for row in taps.rows {
        let mut sums = [zero; N];
        let mut at = (row + taps.first) * x.step + channel;
        for _ in 0..taps.count {
            let x_of_tap: &[f32; N] = x.elements[at..].first_chunk().expect("the channels of a pixel");
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

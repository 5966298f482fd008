//! Checks every depthwise kernel with vectors along channels, on every ISA of this CPU, against loops by the
//! definition.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Numbers, UNTOUCHED};
use convoke_kernels::activation::Activation;
use convoke_kernels::{
    DepthwisePixelKernel, Dest, Isa, PixelColumns, PixelEpilogue, PixelRows, PixelTaps, Real, Residual,
    activation_kernel, pixel_depthwise_kernels,
};

/// Calls `check` for every kernel of every ISA of this CPU, of both types.
macro_rules! for_each_kernel {
    ($check:ident) => {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            pixel_depthwise_kernels::<f32>(isa).iter().for_each($check);
            pixel_depthwise_kernels::<f64>(isa).iter().for_each($check);
        }
    };
}

#[test]
fn every_available_isa_has_all_heights() {
    fn check<T: Real>(isa: Isa) {
        let kernels = pixel_depthwise_kernels::<T>(isa);
        assert!(!kernels.is_empty(), "{isa}");
        for (i, kernel) in kernels.iter().enumerate() {
            assert_eq!(kernel.name(), format!("{}_pixel_dw_{}x{}", T::NAME, kernel.mr(), kernel.nr()));
            assert_eq!((kernel.isa(), kernel.mr()), (isa, i + 1));
            assert!(kernel.nr().is_multiple_of(kernel.lanes()) && kernel.nr() <= kernels[0].nr());
            // The smallest tile takes all groups that divide a vector, and others none.
            assert!((1..40).all(|group| {
                let is_part = [2, 4, 8].contains(&group) && kernel.lanes().is_multiple_of(group);
                kernels[0].takes_groups(group) == (group == 1 || is_part)
            }));
        }
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        check::<f32>(isa);
        check::<f64>(isa);
    }
}

/// Taps of a row of the kernel.
const TAPS: [usize; 8] = [0, 1, 2, 3, 4, 5, 7, 8];
/// Columns from one pixel to the next, and from one tap to the next.
const LATTICES: [(usize, usize); 7] = [(1, 1), (2, 1), (2, 2), (4, 2), (1, 2), (3, 1), (3, 2)];
/// Columns of padding that the tiles of a row read before X and behind it. If that is negative, X has columns there
/// which they do not read. X has none where tiles read nothing but padding.
const PADDING: [(isize, isize); 7] = [(-1, -2), (2, 2), (3, 0), (0, 1), (4, 999), (999, -1003), (-1003, 999)];
/// Rows of X.
const ROWS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Added {
    Nothing,
    /// A tensor whose pixels are as far apart as those of Y, or further.
    Tensor(usize),
    /// What Y holds.
    Y,
}

/// What a call computes.
#[derive(Debug, Clone, Copy)]
struct Layer {
    channels: usize,
    group: usize,
    rows: usize,
    tiles: usize,
    from: usize,
    /// Pixels of a row of Y beside those of its tiles.
    gap: usize,
    row_taps: usize,
    taps: usize,
    lattice: (usize, usize),
    step: isize,
    padding: (isize, isize),
    added: Added,
    activation: Activation<f64>,
}

impl Layer {
    /// A layer of these taps. The rest is random.
    fn new(numbers: &mut Numbers, (channels, group): (usize, usize), taps: usize) -> Self {
        let activations =
            [Activation::Clamp(-0.5, 0.25), Activation::LeakyRelu(0.125), Activation::IDENTITY, Activation::HardSwish];
        Self {
            channels,
            group,
            rows: one_of(numbers, [1, 2, 3]),
            tiles: one_of(numbers, [1, 2, 3]),
            from: one_of(numbers, [0, 1, 3]),
            gap: one_of(numbers, [0, 2]),
            row_taps: one_of(numbers, [0, 1, 2, 3]),
            taps,
            lattice: (1, 1),
            step: one_of(numbers, [1, 2, -1, -2]),
            padding: (0, 0),
            added: one_of(numbers, [Added::Nothing, Added::Tensor(0), Added::Tensor(4), Added::Y]),
            activation: one_of(numbers, activations),
        }
    }

    /// What a row of pixels reads in tiles of `mr` pixels.
    fn columns(&self, mr: usize) -> PixelColumns {
        let Self { taps, lattice: (advance, spacing), step, padding: (before, behind), .. } = *self;
        let read = (self.from + self.tiles * mr - 1) * advance + taps.saturating_sub(1) * spacing + 1;
        let count = (read as isize - before - behind).max(0) as usize;
        // There are two elements between pixels.
        PixelColumns { first: -before, advance, taps, spacing, step, count, pixel: self.channels + 2 }
    }

    /// The number of the first tap of a row of the kernel. Not all numbers occur, and each at most once.
    fn number(&self, row_tap: usize) -> usize {
        let more = self.taps.saturating_sub(1) * self.step.unsigned_abs();
        let least = 1 + (self.row_taps - 1 - row_tap) * (more + 2);
        if self.step < 0 { least + more } else { least }
    }

    /// The row of X that a row of pixels reads through a row of the kernel. None if that is padding.
    fn source(row: usize, row_tap: usize) -> Option<usize> {
        ((row + row_tap) % 3 != 2).then_some((2 * row + row_tap) % ROWS)
    }

    /// Where a row of X begins. There is a pixel before each, and one behind the last.
    fn place(row: usize, columns: &PixelColumns) -> usize {
        (1 + row * (columns.count + 1)) * columns.pixel
    }

    /// X, whose pixels have random values. All between them is NaN.
    fn x<T: Real>(numbers: &mut Numbers, channels: usize, columns: &PixelColumns) -> Vec<T> {
        let mut x = vec![T::from_f64(f64::NAN); Self::place(ROWS, columns)];
        for row in 0..ROWS {
            let row = &mut x[Self::place(row, columns)..][..columns.count * columns.pixel];
            row.chunks_exact_mut(columns.pixel)
                .for_each(|pixel| pixel[..channels].copy_from_slice(&numbers.vec(channels)));
        }
        x
    }

    /// The sum of the products of channel `c` of pixel `i` of a row.
    fn sum<T: Real>(&self, (row, i, c): (usize, usize, usize), columns: &PixelColumns, (x, w): (&[T], &[T])) -> f64 {
        let PixelColumns { first, advance, taps, spacing, step, count, pixel } = *columns;
        let (channels, group, mut sum) = (self.channels, self.group, 0.0);
        for (row_tap, tap) in (0..self.row_taps).flat_map(|row_tap| (0..taps).map(move |tap| (row_tap, tap))) {
            let column = first + (i * advance + tap * spacing) as isize;
            let Some(source) = Self::source(row, row_tap).filter(|_| (0..count as isize).contains(&column)) else {
                continue;
            };
            let number = self.number(row_tap).wrapping_add_signed(tap as isize * step);
            // The channels of X of the same group.
            let x = &x[Self::place(source, columns) + column as usize * pixel + c / group * group..][..group];
            let w = w[number * group * channels + c..].iter().step_by(channels);
            sum += x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64()).sum::<f64>();
        }
        sum
    }
}

/// An entry of a list.
fn one_of<T: Copy, const N: usize>(numbers: &mut Numbers, list: [T; N]) -> T {
    list[((numbers.next() + 1.0) / 2.0 * N as f64) as usize]
}

#[test]
fn pixels_are_sums_over_taps_of_each_channel() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let mut numbers = Numbers(kernel.mr() as u32);
        let groups = [1, 2, 4, 8].into_iter().filter(|group| kernel.takes_groups(*group));
        for group in groups {
            let cases = TAPS.len() * LATTICES.len() * PADDING.len();
            // All numbers of channels take turns, and meet each padding, because there are 7 of these. Groups of
            // several channels have more products, and so fewer cases.
            for case in (0..cases).step_by(if group == 1 { 1 } else { 5 }) {
                let channels = group * (1 + case % (3 * kernel.lanes() / group));
                let taps = TAPS[case / (LATTICES.len() * PADDING.len())];
                let lattice = LATTICES[case / PADDING.len() % LATTICES.len()];
                let padding = PADDING[case % PADDING.len()];
                let new = Layer::new(&mut numbers, (channels, group), taps);
                layer(kernel, &mut numbers, Layer { lattice, padding, ..new });
            }
        }
    }
    for_each_kernel!(check);
}

/// Runs a layer, and compares all of Y with the definition.
fn layer<T: Real>(kernel: &DepthwisePixelKernel<T>, numbers: &mut Numbers, layer: Layer) {
    let Layer { channels, group, rows, tiles, from, gap, row_taps, taps, added, activation, .. } = layer;
    let (width, of_row, columns) = (tiles * kernel.mr() + gap, from + tiles * kernel.mr(), layer.columns(kernel.mr()));
    let (pixels, ld) = ((rows - 1) * width + of_row, channels + 3);
    let x: Vec<T> = Layer::x(numbers, channels, &columns);
    // Rows of taps have the number of weights that they need, and some more.
    let w: Vec<T> = numbers.vec((row_taps * (taps * layer.step.unsigned_abs() + 2) + 1) * group * channels);
    let (bias, zeros): (Vec<T>, _) = (numbers.vec(channels), vec![T::ZERO; channels]);
    let residual_ld = if let Added::Tensor(more) = added { ld + more } else { ld };
    let tensor: Vec<T> = numbers.vec((pixels - 1) * residual_ld + channels);
    let mut y = vec![T::from_f64(UNTOUCHED); (pixels + 1) * ld];
    if added == Added::Y {
        let rows = y.chunks_mut(ld).zip(tensor.chunks(ld));
        rows.for_each(|(y, row)| y[..channels].copy_from_slice(&row[..channels]));
    }
    let before = y.clone();

    let numbers: Vec<_> = (0..row_taps).map(|row_tap| layer.number(row_tap) as u32).collect();
    let places = (0..rows).flat_map(|row| (0..row_taps).map(move |row_tap| (row, row_tap)));
    let place = |(row, row_tap)| match Layer::source(row, row_tap) {
        Some(source) => Layer::place(source, &columns) as u32,
        None => PixelTaps::ZEROS + row_tap as u32,
    };
    let places: Vec<_> = places.map(place).collect();
    let (numbers, places) = (&numbers[..], &places[..]);
    let operand = PixelRows {
        x: &x,
        zeros: &zeros,
        channels,
        rows,
        width,
        tiles,
        from,
        numbers,
        places,
        columns,
        prefetches_next: true,
    };
    let in_type = match activation {
        Activation::Clamp(lo, hi) => Activation::Clamp(T::from_f64(lo), T::from_f64(hi)),
        Activation::LeakyRelu(alpha) => Activation::LeakyRelu(T::from_f64(alpha)),
        _ => Activation::HardSwish,
    };
    let mut dest = Dest::from_slice(&mut y);
    let residual = match added {
        Added::Nothing => Residual::NONE,
        Added::Tensor(_) => tensor.as_slice().into(),
        // SAFETY: the elements of a slice are initialised.
        Added::Y => unsafe { Residual::of_dest(&dest) },
    };
    let activation_kernel = activation_kernel(kernel.isa(), in_type);
    let epilogue = PixelEpilogue { bias: &bias, residual, residual_ld, activation: activation_kernel };
    kernel.run(&operand, (&w, group), &mut dest, ld, &epilogue);

    for (at, (got, before)) in y.iter().zip(&before).enumerate() {
        let (pixel, c, got) = (at / ld, at % ld, got.to_f64());
        let what = || format!("{kernel:?}, {layer:?}, pixel {pixel}, channel {c}");
        let place = |row: usize| Some((row, pixel.checked_sub(row * width).filter(|i| (from..of_row).contains(i))?));
        let Some((row, i)) = (0..rows).find_map(place).filter(|_| c < channels) else {
            assert_eq!(got, before.to_f64(), "{}: written", what());
            continue;
        };
        let residual = if added == Added::Nothing { 0.0 } else { tensor[pixel * residual_ld + c].to_f64() };
        let sum = layer.sum((row, i, c), &columns, (&x, &w)) + bias[c].to_f64() + residual;
        let want = match activation {
            Activation::Clamp(lo, hi) => sum.clamp(lo, hi),
            Activation::LeakyRelu(alpha) => {
                if sum < 0.0 {
                    alpha * sum
                } else {
                    sum
                }
            }
            _ => sum * (sum / 6.0 + 0.5).clamp(0.0, 1.0),
        };
        let products = row_taps * taps * group;
        let bound = (products + 8) as f64 * T::UNIT_ROUNDOFF * (products + 3) as f64;
        assert!((got - want).abs() <= bound, "{}: {got} instead of {want}", what());
    }
}

/// What a kernel stores with a bias, whose channels are those of X. Pixels of Y are neighbours.
fn stored<T: Real>(
    kernel: &DepthwisePixelKernel<T>,
    x: &PixelRows<'_, T>,
    (w, group): (&[T], usize),
    bias: &[T],
    activation: Activation<T>,
) -> Vec<T> {
    let mut y = vec![T::ZERO; (x.rows.max(1) - 1) * x.width + x.from + x.tiles * kernel.mr()];
    y = y.repeat(x.channels);
    let activation = activation_kernel(kernel.isa(), activation);
    let epilogue = PixelEpilogue { bias, residual: Residual::NONE, residual_ld: 0, activation };
    kernel.run(x, (w, group), &mut Dest::from_slice(&mut y), x.channels, &epilogue);
    y
}

#[test]
fn nan_and_infinities_pass() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        // All columns of X are alike, and all taps.
        let (mr, channels) = (kernel.mr(), 3);
        let x = [T::from_f64(f64::NAN), T::INFINITY, T::ONE].repeat(3 * mr + 5);
        for (taps, advance) in [1, 3, 4, 5].into_iter().flat_map(|taps| [(taps, 1), (taps, 2), (taps, 3)]) {
            let w = [T::ONE, T::ONE, T::INFINITY].repeat(taps);
            for (place, count) in [(0, 3 * mr + 5), (0, 0), (PixelTaps::ZEROS, 3 * mr + 5)] {
                let columns = PixelColumns { first: 0, advance, taps, spacing: 1, step: 1, count, pixel: channels };
                let operand = PixelRows {
                    x: &x,
                    zeros: &[T::ZERO; 3],
                    channels,
                    rows: 1,
                    width: mr,
                    tiles: 1,
                    from: 0,
                    numbers: &[0],
                    places: &[place],
                    columns,
                    prefetches_next: false,
                };
                let y = stored(kernel, &operand, (&w, 1), &[T::ONE; 3], Activation::Clamp(T::ZERO, T::from_f64(6.0)));
                for pixel in y.chunks(channels).map(|pixel| [0, 1, 2].map(|c| pixel[c].to_f64())) {
                    let is_right = match (place, count) {
                        // Columns that a row does not have are zeros, whose products may be left out.
                        (0, 0) => pixel[..2] == [1.0; 2] && (pixel[2] == 1.0 || pixel[2].is_nan()),
                        (0, _) => pixel[0].is_nan() && pixel[1..] == [6.0; 2],
                        // A row of padding is left out, and its weights with it.
                        _ => pixel == [1.0; 3],
                    };
                    assert!(is_right, "{kernel:?}: {pixel:?} of {place}, {columns:?}");
                }
            }
        }
    }
    for_each_kernel!(check);
}

/// Kernels of all heights have the same sums of finite weights, to the bit, whether tiles are inside of X or at its edges.
#[test]
fn sums_do_not_depend_on_tiles() {
    fn check<T: Real>(isa: Isa) {
        let (kernels, mut numbers) = (pixel_depthwise_kernels::<T>(isa), Numbers(61));
        let nr = kernels[0].nr();
        for ((advance, spacing), taps) in LATTICES.into_iter().flat_map(|lattice| TAPS.map(|taps| (lattice, taps))) {
            for (channels, group) in [(1, 1), (nr + 3, 1), (nr + 2, 2)] {
                let wide = Wide::<T>::new(&mut numbers, (channels, group), (advance, spacing), taps);
                let want = wide.bits(&kernels[0], false);
                for kernel in kernels.iter().filter(|kernel| kernel.takes_groups(group)) {
                    for has_padding in [false, true] {
                        let what =
                            format!("{kernel:?}, padding {has_padding}, {channels} channels, {:?}", wide.columns);
                        assert_eq!(wide.bits(kernel, has_padding), want, "{what}");
                    }
                }
            }
        }
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        check::<f32>(isa);
        check::<f64>(isa);
    }
}

/// A row of X that begins and ends with zeros, and is read twice.
struct Wide<T> {
    x: Vec<T>,
    w: Vec<T>,
    bias: Vec<T>,
    group: usize,
    columns: PixelColumns,
    /// Columns up to the last zeros.
    filled: usize,
}

impl<T: Real> Wide<T> {
    /// Pixels that are compared.
    const PIXELS: usize = 24;
    /// Columns of zeros at the beginning.
    const ZEROS: usize = 3;
    /// Pixels of a tile, at most.
    const MOST_MR: usize = 16;

    fn new(
        numbers: &mut Numbers,
        (channels, group): (usize, usize),
        (advance, spacing): (usize, usize),
        taps: usize,
    ) -> Self {
        // The last of the pixels read zeros, as do those that fill the last tile.
        let filled = (Self::PIXELS - 2) * advance + 1;
        let count = (Self::PIXELS + Self::MOST_MR) * advance + taps * spacing;
        let mut x = vec![T::ZERO; count * channels];
        let filled_part = &mut x[Self::ZEROS * channels..filled * channels];
        filled_part.copy_from_slice(&numbers.vec(filled_part.len()));
        let columns = PixelColumns { first: 0, advance, taps, spacing, step: 1, count, pixel: channels };
        let (w, bias) = (numbers.vec(2 * taps * group * channels), numbers.vec(channels));
        Self { x, w, bias, group, columns, filled }
    }

    /// The bits of the pixels. With padding the zeros are no part of the row.
    fn bits(&self, kernel: &DepthwisePixelKernel<T>, has_padding: bool) -> Vec<u64> {
        let Self { x, w, bias, group, columns, filled } = self;
        let (channels, mut columns, mut place) = (bias.len(), *columns, 0);
        if has_padding {
            (columns.first, columns.count) = (-(Self::ZEROS as isize), filled - Self::ZEROS);
            place = (Self::ZEROS * channels) as u32;
        }
        let operand = PixelRows {
            x,
            zeros: &vec![T::ZERO; channels],
            channels,
            rows: 1,
            width: 0,
            tiles: Self::PIXELS.div_ceil(kernel.mr()),
            from: 0,
            numbers: &[0, columns.taps as u32],
            places: &[place; 2],
            columns,
            prefetches_next: false,
        };
        let y = stored(kernel, &operand, (w, *group), bias, Activation::IDENTITY);
        y[..Self::PIXELS * channels].iter().map(|y| y.to_f64().to_bits()).collect()
    }
}

/// The lengths of X, zeros, weights, bias, residual and Y.
type Lens = [usize; 6];

/// Elements from one pixel to the next in the residual, beside the channels.
const RESIDUAL_GAP: usize = 2;

/// Lengths with which a call of two rows of two tiles is not refused, and no shorter ones.
fn needed<T: Real>(kernel: &DepthwisePixelKernel<T>, channels: usize) -> Lens {
    let pixels = 4 * kernel.mr() + 2;
    let end = |ld: usize| (pixels - 1) * ld + channels;
    [41 + 6 * (channels + 1) + channels, channels, 9 * channels, channels, end(channels + RESIDUAL_GAP), end(channels)]
}

/// The message by which a call is refused, if it is. `change` makes it one of other sizes.
fn refusal<T: Real>(
    kernel: &DepthwisePixelKernel<T>,
    channels: usize,
    lens: Lens,
    change: impl Fn(&mut PixelRows<'_, T>, &mut usize),
) -> Option<String> {
    let call = || {
        let [x, zeros, w, bias, residual, mut y] = lens.map(|len| vec![T::ZERO; len]);
        // Seven columns, the first of which lies before X. The highest number of a tap is 8.
        let columns =
            PixelColumns { first: -1, advance: 1, taps: 3, spacing: 1, step: -2, count: 7, pixel: channels + 1 };
        let mut operand = PixelRows {
            x: &x,
            zeros: &zeros,
            channels,
            rows: 2,
            width: 2 * kernel.mr() + 1,
            tiles: 2,
            from: 1,
            numbers: &[5, 8],
            places: &[30, PixelTaps::ZEROS, 0, 41],
            columns,
            prefetches_next: true,
        };
        let mut ld = channels;
        change(&mut operand, &mut ld);
        let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
        let (residual, residual_ld) = (residual.as_slice().into(), channels + RESIDUAL_GAP);
        let epilogue = PixelEpilogue { bias: &bias, residual, residual_ld, activation };
        kernel.run(&operand, (&w, 1), &mut Dest::from_slice(&mut y), ld, &epilogue);
    };
    let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    Some(message.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic has a message"))
}

#[test]
fn short_slices_are_refused() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let (mr, channels) = (kernel.mr(), kernel.nr() + 1);
        let lens = needed(kernel, channels);
        assert_eq!(refusal(kernel, channels, lens, |_, _| ()), None, "{kernel:?}");
        let reasons = [
            "a row ends beyond the slice of X",
            "too few zeros",
            "too few weights",
            "too few biases",
            "the residual is too short",
            "the destination is too short",
        ];
        for (i, reason) in reasons.into_iter().enumerate() {
            let mut short = lens;
            short[i] -= 1;
            let message = refusal(kernel, channels, short, |_, _| ()).expect("refused");
            assert!(message.contains(reason), "{kernel:?}: {message}, not {reason}");
        }
        let refused = |reason: &str, change: fn(&mut PixelRows<'_, T>, &mut usize)| {
            let message = refusal(kernel, channels, lens.map(|len| 4 * len), change).expect("refused");
            assert!(message.contains(reason), "{kernel:?}: {message}, not {reason}");
        };
        refused("pixels of Y overlap", |_, ld| *ld -= 1);
        refused("rows of Y overlap", |x, _| x.width -= 2);
        refused("each row has a place", |x, _| x.places = &x.places[1..]);
        refused("each row has a place", |x, _| x.rows = 3);
        refused("columns of X are in the same place", |x, _| x.columns.pixel = 0);
        // The number of the last tap of a row would be below zero.
        refused("numbers of taps overflow", |x, _| x.numbers = &[5, 3]);
        // One row has nothing to overlap with.
        let one = |x: &mut PixelRows<'_, T>, _: &mut usize| (x.rows, x.width, x.places) = (1, mr, &x.places[..2]);
        assert_eq!(refusal(kernel, channels, lens, one), None, "{kernel:?}");
    }
    for_each_kernel!(check);
}

/// Sizes near the end of the address space are refused by a check, or do no harm. Kernels of all ISAs have the same
/// checks.
#[test]
fn sizes_beyond_the_address_space_are_refused() {
    type Change = fn(&mut PixelRows<'_, f32>, &mut usize, usize);
    const SIZES: [(&str, Change); 13] = [
        ("ld", |_, ld, size| *ld = size),
        ("rows", |x, _, size| x.rows = size),
        ("width", |x, _, size| x.width = size),
        ("tiles", |x, _, size| x.tiles = size),
        ("from", |x, _, size| x.from = size),
        ("first", |x, _, size| x.columns.first = size as isize),
        ("advance", |x, _, size| x.columns.advance = size),
        ("taps", |x, _, size| x.columns.taps = size),
        ("spacing", |x, _, size| x.columns.spacing = size),
        ("step", |x, _, size| x.columns.step = size as isize),
        ("count", |x, _, size| x.columns.count = size),
        ("pixel", |x, _, size| x.columns.pixel = size),
        ("count and pixel", |x, _, size| (x.columns.count, x.columns.pixel) = (size, size)),
    ];
    const MAX: usize = isize::MAX as usize;
    const HUGE: [usize; 7] = [usize::MAX, usize::MAX - 1, MAX, MAX + 1, MAX + 2, MAX / 2, MAX / 8];
    for kernel in pixel_depthwise_kernels::<f32>(Isa::Portable) {
        let (channels, lens) = (1, needed(kernel, 1).map(|len| 4 * len));
        let what = |name: &str, size: usize| format!("{kernel:?}: {name} of {size}");
        for ((name, change), size) in SIZES.into_iter().flat_map(|change| HUGE.map(|size| (change, size))) {
            // As numbers with signs, the greatest are -1 and -2.
            let is_small = ["first", "step"].contains(&name) && size > usize::MAX - 2;
            let message = refusal(kernel, channels, lens, |x, ld| change(x, ld, size));
            // Columns may be any distance apart, as long as they have numbers: they are padding.
            let is_distance = name == "first" || ["advance", "spacing"].contains(&name) && size <= MAX;
            assert!(message.is_some() != is_small || is_distance, "{}", what(name, size));
            // Beside other sizes, some of which leave nothing to compute.
            for ((other_name, other), other_size) in
                SIZES.into_iter().flat_map(|other| [0, 1, MAX, MAX + 1, usize::MAX].map(|size| (other, size)))
            {
                let message = refusal(kernel, channels, lens, |x, ld| {
                    other(x, ld, other_size);
                    change(x, ld, size);
                });
                let is_overflow = message.is_some_and(|message| message.starts_with("attempt to "));
                assert!(!is_overflow, "{}, {}", what(name, size), what(other_name, other_size));
            }
        }
    }
}

/// Numbers of taps and of columns count, and not what they are once they have wrapped around.
#[test]
fn numbers_that_wrap_around_are_refused() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let refused = |reason: &str, columns: PixelColumns| {
            let message = refusal(kernel, 1, needed(kernel, 1), |x, _| x.columns = columns).expect("refused");
            assert!(message.contains(reason), "{kernel:?}: {message}, not {reason}");
        };
        let columns = PixelColumns { first: 0, advance: 1, taps: 3, spacing: 0, step: 1, count: 0, pixel: 0 };
        for taps in [usize::MAX, usize::MAX - 1, isize::MAX as usize + 1] {
            refused("numbers of taps overflow", PixelColumns { taps, ..columns });
        }
        // The last column has no number.
        let advance = usize::MAX / (2 * kernel.mr() + 1) - 1;
        refused("columns are too far away", PixelColumns { advance, ..columns });
    }
    for_each_kernel!(check);
}

#[test]
fn without_tiles_nothing_is_written() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let zeros = [T::ZERO; 2];
        for (rows, tiles) in [(0, 0), (0, 2), (2, 0)] {
            let operand = PixelRows { rows, tiles, ..without_taps(kernel.mr(), &zeros) };
            let activation = activation_kernel(kernel.isa(), Activation::Tanh);
            let epilogue = PixelEpilogue { bias: &[T::ONE; 2], residual: Residual::NONE, residual_ld: 0, activation };
            let mut y = [T::ZERO; 2];
            kernel.run(&operand, (&[], 1), &mut Dest::from_slice(&mut y), 2, &epilogue);
            assert_eq!(y.map(|y| y.to_f64()), [0.0; 2], "{kernel:?}");
        }
    }
    for_each_kernel!(check);
}

#[test]
fn without_taps_pixels_are_biases() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let zeros = [T::ZERO; 2];
        let operand = without_taps(kernel.mr(), &zeros);
        // A number of a row without taps is none of weights.
        let columns = PixelColumns { taps: 0, ..operand.columns };
        let with_rows = PixelRows { numbers: &[u32::MAX], places: &[0, 7], columns, ..operand };
        for operand in [operand, with_rows] {
            let y = stored(kernel, &operand, (&[], 1), &[T::ONE; 2], Activation::IDENTITY);
            assert!(y.len() == 12 * kernel.mr() && y.iter().all(|y| y.to_f64() == 1.0), "{kernel:?}");
        }
    }
    for_each_kernel!(check);
}

/// Two rows of three tiles of two channels. The kernel has no rows, and so no taps.
fn without_taps<T: Real>(mr: usize, zeros: &[T]) -> PixelRows<'_, T> {
    let columns = PixelColumns { first: -7, advance: 2, taps: 3, spacing: 1, step: 1, count: 0, pixel: 2 };
    let width = 3 * mr;
    PixelRows {
        x: &[],
        zeros,
        channels: 2,
        rows: 2,
        width,
        tiles: 3,
        from: 0,
        numbers: &[],
        places: &[],
        columns,
        prefetches_next: false,
    }
}

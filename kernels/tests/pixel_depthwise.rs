//! Checks every depthwise kernel with vectors along channels, on every ISA of this CPU, against loops by the
//! definition.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Numbers, UNTOUCHED};
use convoke_kernels::activation::Activation;
use convoke_kernels::{
    DepthwisePixelKernel, Dest, Isa, PixelEpilogue, PixelInput, PixelTaps, Real, Residual, activation_kernel,
    pixel_depthwise_kernels,
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

/// Tiles of a table.
const TILES: usize = 2;
/// Pixels of X.
const PIXELS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Added {
    Nothing,
    /// A tensor whose pixels are as far apart as those of Y, or further.
    Tensor(usize),
    /// What Y holds.
    Y,
}

#[derive(Debug, Clone, Copy)]
struct Layer {
    channels: usize,
    group: usize,
    taps: usize,
    added: Added,
    activation: Activation<f64>,
}

/// The pixel of X that a pixel of Y reads through a tap. None if that is padding.
fn source(tap: usize, pixel: usize) -> Option<usize> {
    (!(tap + pixel).is_multiple_of(4)).then_some((7 * pixel + 3 * tap) % PIXELS)
}

/// The number of a tap. Not all numbers occur.
fn number(tap: usize, taps: usize) -> usize {
    2 * (taps - 1 - tap)
}

/// A table of [`TILES`] tiles of `mr` pixels. Pixels of X are `step` elements apart.
fn table(mr: usize, taps: usize, step: usize) -> Vec<u32> {
    let place = |tap, pixel| source(tap, pixel).map_or(PixelTaps::ZEROS + tap as u32, |pixel| (pixel * step) as u32);
    let tile = |tile: usize| {
        let entry = move |tap: usize| {
            [number(tap, taps) as u32].into_iter().chain((0..mr).map(move |i| place(tap, tile * mr + i)))
        };
        (0..taps).flat_map(entry)
    };
    (0..TILES).flat_map(tile).collect()
}

#[test]
fn pixels_are_sums_over_taps_of_each_channel() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let added = [Added::Nothing, Added::Tensor(0), Added::Tensor(4), Added::Y];
        let activations =
            [Activation::Clamp(-0.5, 0.25), Activation::LeakyRelu(0.125), Activation::IDENTITY, Activation::HardSwish];
        let mut case = 0;
        let groups = [1, 2, 4, 8].into_iter().filter(|group| kernel.takes_groups(*group));
        let sizes = groups.flat_map(|group| (1..=3 * kernel.lanes()).map(move |channels| (group, channels)));
        for (group, channels) in sizes.filter(|(group, channels)| channels.is_multiple_of(*group)) {
            for taps in [0, 1, 9, 25] {
                // All pairs occur, because the lists take turns at different paces.
                let (added, activation) = (added[case % 4], activations[case / 4 % 4]);
                layer(kernel, Layer { channels, group, taps, added, activation });
                case += 1 + channels / group % 2;
            }
        }
    }
    for_each_kernel!(check);
}

/// Runs a layer, and compares all of Y with the definition.
fn layer<T: Real>(kernel: &DepthwisePixelKernel<T>, layer: Layer) {
    let Layer { channels, group, taps, added, activation } = layer;
    let (mr, count) = (kernel.mr(), TILES * kernel.mr());
    let mut numbers = Numbers(1 + channels as u32);
    // What lies between pixels would show in a sum.
    let (step, ld) = (channels + 2, channels + 3);
    let mut x: Vec<T> = numbers.vec(PIXELS * step);
    x.iter_mut().enumerate().filter(|(i, _)| i % step >= channels).for_each(|(_, x)| *x = T::from_f64(f64::NAN));
    let w: Vec<T> = numbers.vec((2 * taps).saturating_sub(1) * group * channels);
    let (bias, zeros): (Vec<T>, _) = (numbers.vec(channels), vec![T::ZERO; channels]);
    let residual_ld = if let Added::Tensor(more) = added { ld + more } else { ld };
    let tensor: Vec<T> = numbers.vec((count - 1) * residual_ld + channels);
    let mut y = vec![T::from_f64(UNTOUCHED); (count - 1) * ld + channels + 3];
    if added == Added::Y {
        let rows = y.chunks_mut(ld).zip(tensor.chunks(ld));
        rows.for_each(|(y, row)| y[..channels].copy_from_slice(&row[..channels]));
    }

    let entries = table(mr, taps, step);
    let pixels = PixelInput { x: &x, zeros: &zeros, channels, taps: PixelTaps::new(&entries, TILES, mr) };
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
    kernel.run(&pixels, (&w, group), &mut dest, ld, &epilogue);

    for (at, got) in y.iter().enumerate() {
        let (pixel, c, got) = (at / ld, at % ld, got.to_f64());
        let what = format!("{kernel:?}, {layer:?}, pixel {pixel}, channel {c}");
        if c >= channels {
            assert_eq!(got, UNTOUCHED, "{what}: written");
            continue;
        }
        // The channels of X of the same group.
        let product = |(tap, k): (usize, usize)| {
            let x = source(tap, pixel).map_or(0.0, |source| x[source * step + c / group * group + k].to_f64());
            x * w[(number(tap, taps) * group + k) * channels + c].to_f64()
        };
        let products = (0..taps).flat_map(|tap| (0..group).map(move |k| (tap, k)));
        let residual = if added == Added::Nothing { 0.0 } else { tensor[pixel * residual_ld + c].to_f64() };
        let sum = products.map(product).sum::<f64>() + bias[c].to_f64() + residual;
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
        let bound = (taps * group + 8) as f64 * T::UNIT_ROUNDOFF * (taps * group + 3) as f64;
        assert!((got - want).abs() <= bound, "{what}: {got} instead of {want}");
    }
}

#[test]
fn nan_and_infinities_pass() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        // One tap, which all pixels of one tile read. The weight of padding counts too.
        let (mr, channels) = (kernel.mr(), 3);
        let x = [T::from_f64(f64::NAN), T::INFINITY, T::ONE];
        for place in [0, PixelTaps::ZEROS] {
            let entries: Vec<u32> = [0].into_iter().chain((0..mr).map(|_| place)).collect();
            let taps = PixelTaps::new(&entries, 1, mr);
            let pixels = PixelInput { x: &x, zeros: &[T::ZERO; 3], channels, taps };
            let activation = activation_kernel(kernel.isa(), Activation::Clamp(T::ZERO, T::from_f64(6.0)));
            let epilogue = PixelEpilogue { bias: &[T::ONE; 3], residual: Residual::NONE, residual_ld: 0, activation };
            let w = [T::ONE, T::ONE, T::INFINITY];
            let mut y = vec![T::ZERO; mr * channels];
            kernel.run(&pixels, (&w, 1), &mut Dest::from_slice(&mut y), channels, &epilogue);
            for row in y.chunks(channels).map(|row| [row[0].to_f64(), row[1].to_f64(), row[2].to_f64()]) {
                match place {
                    0 => assert!(row[0].is_nan() && row[1] == 6.0 && row[2] == 6.0, "{kernel:?}: {row:?}"),
                    _ => assert!(row[0] == 1.0 && row[1] == 1.0 && row[2].is_nan(), "{kernel:?}: {row:?}"),
                }
            }
        }
    }
    for_each_kernel!(check);
}

#[test]
fn short_slices_are_refused() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let (mr, taps, channels) = (kernel.mr(), 9, kernel.nr() + 1);
        let count = TILES * mr;
        let entries = table(mr, taps, channels);
        let furthest =
            entries.chunks(1 + mr).flat_map(|tap| &tap[1..]).filter(|place| **place < PixelTaps::ZEROS).max();
        let (step, residual_ld) = (channels, channels + 2);
        let lens = [
            *furthest.unwrap() as usize + channels,
            channels,
            (number(0, taps) + 1) * channels,
            channels,
            (count - 1) * residual_ld + channels,
            (count - 1) * step + channels,
        ];
        let refused = |lens: [usize; 6], pixels: usize, ld: usize| {
            let call = || {
                let [x, zeros, w, bias, residual, y] = lens.map(|len| vec![T::ZERO; len]);
                let mut y = y;
                let entries = table(pixels, taps, channels);
                let taps = PixelTaps::new(&entries, TILES, pixels);
                let pixels = PixelInput { x: &x, zeros: &zeros, channels, taps };
                let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
                let residual = residual.as_slice().into();
                let epilogue = PixelEpilogue { bias: &bias, residual, residual_ld, activation };
                kernel.run(&pixels, (&w, 1), &mut Dest::from_slice(&mut y), ld, &epilogue);
            };
            catch_unwind(AssertUnwindSafe(call)).is_err()
        };
        assert!(!refused(lens, mr, step), "{kernel:?}");
        for i in 0..lens.len() {
            let mut short = lens;
            short[i] -= 1;
            assert!(refused(short, mr, step), "{kernel:?}: slice {i}");
        }
        assert!(refused(lens, mr, channels - 1), "{kernel:?}: pixels of Y overlap");
        assert!(refused(lens.map(|len| 4 * len), mr + 1, step), "{kernel:?}: a table of other tiles");
        assert!(refused(lens, mr, usize::MAX), "{kernel:?}: beyond the address space");
    }
    for_each_kernel!(check);
}

#[test]
fn repeated_tiles_read_x_further_on() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        // Two tiles of one tap, twice. X has as many values as pixels that are read, and two more.
        let mr = kernel.mr();
        let tile = |first: usize| [0].into_iter().chain(first as u32..(first + mr) as u32);
        let entries: Vec<u32> = tile(0).chain(tile(mr)).collect();
        let x: Vec<T> = (0..2 * mr + 2).map(|value| T::from_f64(value as f64)).collect();
        let taps = PixelTaps::new(&entries, 2, mr).repeated(2, 2);
        let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
        let epilogue = PixelEpilogue { bias: &[T::ZERO], residual: Residual::NONE, residual_ld: 0, activation };
        let mut y = vec![T::ZERO; 4 * mr];
        let pixels = PixelInput { x: &x, zeros: &[], channels: 1, taps };
        kernel.run(&pixels, (&[T::ONE], 1), &mut Dest::from_slice(&mut y), 1, &epilogue);
        let wants = (0..4 * mr).map(|i| if i < 2 * mr { i } else { i - 2 * mr + 2 });
        assert!(y.iter().zip(wants).all(|(y, want)| y.to_f64() == want as f64), "{kernel:?}: {y:?}");
    }
    for_each_kernel!(check);
}

/// Taps of a row that are summed together have the sums of taps one by one, to the bit.
#[test]
fn taps_of_a_row_share_their_pixels() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let (mr, mut numbers) = (kernel.mr(), Numbers(61));
        let widths = [2, 3, 4, 5, 6, 7, 8, 11];
        for (width, channels) in widths.into_iter().flat_map(|width| [1, kernel.nr() + 3].map(|c| (width, c))) {
            // Two rows of taps, the second of which begins with two pixels of padding.
            let place = |row: usize, at: usize| match row * 40 + at {
                40 | 41 => PixelTaps::ZEROS,
                at => (at * channels) as u32,
            };
            let taps = (0..2).flat_map(|row| (0..width).map(move |tap| (row, tap)));
            let entry = |(row, tap): (usize, usize)| {
                [(row * width + tap) as u32].into_iter().chain((0..mr).map(move |i| place(row, tap + i)))
            };
            let entries: Vec<u32> = taps.flat_map(entry).collect();
            let (x, zeros) = (numbers.vec::<T>(80 * channels), vec![T::ZERO; channels]);
            let (w, bias) = (numbers.vec::<T>(2 * width * channels), numbers.vec::<T>(channels));
            let sums = |taps: PixelTaps<'_>| {
                let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
                let epilogue = PixelEpilogue { bias: &bias, residual: Residual::NONE, residual_ld: 0, activation };
                let mut y = vec![T::ZERO; mr * channels];
                let pixels = PixelInput { x: &x, zeros: &zeros, channels, taps };
                kernel.run(&pixels, (&w, 1), &mut Dest::from_slice(&mut y), channels, &epilogue);
                y
            };
            let taps = PixelTaps::new(&entries, 1, mr);
            assert_eq!(sums(taps.shifted(width)), sums(taps), "{kernel:?}, {width} taps, {channels} channels");
            // A number of taps that does not divide all of them is none.
            assert_eq!(sums(taps.shifted(2 * width - 1)), sums(taps), "{kernel:?}, {width} taps, {channels} channels");
        }
    }
    for_each_kernel!(check);
}

#[test]
fn a_tap_number_is_no_place() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        // X has one element, and there are more taps than that.
        let entries: Vec<u32> = [7].into_iter().chain((0..kernel.mr()).map(|_| 0)).collect();
        let (taps, x, w) = (PixelTaps::new(&entries, 1, kernel.mr()), [T::ONE], [T::ONE; 8]);
        let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
        let epilogue = PixelEpilogue { bias: &[T::ONE], residual: Residual::NONE, residual_ld: 0, activation };
        let mut y = vec![T::ZERO; kernel.mr()];
        let pixels = PixelInput { x: &x, zeros: &[], channels: 1, taps };
        kernel.run(&pixels, (&w, 1), &mut Dest::from_slice(&mut y), 1, &epilogue);
        assert!(y.iter().all(|y| y.to_f64() == 2.0), "{kernel:?}: {y:?}");
    }
    for_each_kernel!(check);
}

#[test]
fn a_table_without_tiles_writes_nothing() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let taps = PixelTaps::new(&[], 0, kernel.mr());
        assert_eq!(taps.len(), 0);
        let activation = activation_kernel(kernel.isa(), Activation::Tanh);
        let epilogue = PixelEpilogue { bias: &[T::ONE], residual: Residual::NONE, residual_ld: 0, activation };
        let mut y = [T::ZERO];
        let pixels = PixelInput { x: &[], zeros: &[], channels: 1, taps };
        kernel.run(&pixels, (&[], 1), &mut Dest::from_slice(&mut y), 1, &epilogue);
        assert_eq!(y[0].to_f64(), 0.0, "{kernel:?}");
    }
    for_each_kernel!(check);
}

#[test]
fn tiles_without_taps_are_repeated_at_any_distance() {
    fn check<T: Real>(kernel: &DepthwisePixelKernel<T>) {
        let taps = PixelTaps::new(&[], 2, kernel.mr()).repeated(3, usize::MAX);
        let activation = activation_kernel(kernel.isa(), Activation::IDENTITY);
        let epilogue = PixelEpilogue { bias: &[T::ONE], residual: Residual::NONE, residual_ld: 0, activation };
        let mut y = vec![T::ZERO; 6 * kernel.mr()];
        let pixels = PixelInput { x: &[], zeros: &[], channels: 1, taps };
        kernel.run(&pixels, (&[], 1), &mut Dest::from_slice(&mut y), 1, &epilogue);
        assert!(y.iter().all(|y| y.to_f64() == 1.0), "{kernel:?}");
    }
    for_each_kernel!(check);
}

//! Checks the GEMM kernels for pixels anywhere in X, and the transposition, on every ISA of this CPU, against
//! loops by their definition.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Numbers, UNTOUCHED};
use convoke_kernels::activation::Activation;
use convoke_kernels::{
    Dest, Epilogue, Isa, PixelEpilogue, PixelInput, PixelKernel, PixelTaps, Real, Residual, activation_kernel,
    pixel_kernels, transpose,
};

/// Channels of a block: none, one, an odd number, and many.
const CHANNELS: [usize; 4] = [0, 1, 7, 130];
/// Tiles of a call.
const TILES: usize = 3;
/// Pixels of X.
const PLACES: usize = 19;

fn on_every_isa(check: impl FnMut(Isa)) {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).for_each(check);
}

/// A value that no sum may contain, and no call may write.
fn guard<T: Real>() -> T {
    T::from_f64(f64::NAN)
}

/// The message by which a call is refused.
fn refusal(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("refused");
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    message.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic has a message")
}

#[test]
fn every_available_isa_has_kernels_of_all_types() {
    fn check<T: Real>(isa: Isa) {
        assert!(!pixel_kernels::<T>(isa).is_empty(), "{isa}");
        for k in pixel_kernels::<T>(isa) {
            assert_eq!(k.name(), format!("{}_pixel_gemm_{}x{}", T::NAME, k.mr(), k.nr()));
            assert_eq!(k.isa(), isa, "{k:?}");
        }
    }
    on_every_isa(check::<f32>);
    on_every_isa(check::<f64>);
}

/// The operands of a call, and its sums.
struct Case<T> {
    /// Pixels with a distance of two elements more than they have channels. Between them are guards.
    x: Vec<T>,
    zeros: Vec<T>,
    w: Vec<T>,
    channels: usize,
    taps: usize,
    table: Vec<u32>,
    /// The sum of each element of the tiles, and the sum of the products' magnitudes.
    sums: Vec<(f64, f64)>,
}

impl<T: Real> Case<T> {
    fn new(kernel: &PixelKernel<T>, taps: usize, channels: usize) -> Self {
        let (mr, nr, mut numbers) = (kernel.mr(), kernel.nr(), Numbers(17));
        let pixel = channels + 2;
        let mut x: Vec<T> = vec![guard(); PLACES * pixel - 2];
        for x in x.chunks_mut(pixel) {
            x[..channels].copy_from_slice(&numbers.vec(channels));
        }
        // The weights have a tap more than a tile, and tiles take them in different orders.
        let w: Vec<T> = numbers.vec((taps + 1) * channels * nr);
        let (mut table, mut sums) = (Vec::new(), vec![(0.0, 0.0); TILES * mr * nr]);
        for (tile, tap) in (0..TILES).flat_map(|tile| (0..taps).map(move |tap| (tile, tap))) {
            let number = (tap * 2 + tile) % (taps + 1);
            table.push(number as u32);
            for i in 0..mr {
                let at = (tile * 5 + tap * 3 + i * 7) % PLACES;
                let place = (at * pixel) as u32;
                // The sum of a place and of ZEROS is zeros too.
                let is_padding = (tile + tap + i) % 4 == 1;
                table.push(if is_padding { PixelTaps::ZEROS + place } else { place });
                if is_padding {
                    continue;
                }
                for c in 0..nr {
                    let (sum, magnitude) = &mut sums[(tile * mr + i) * nr + c];
                    for k in 0..channels {
                        let product = x[at * pixel + k].to_f64() * w[(number * channels + k) * nr + c].to_f64();
                        (*sum, *magnitude) = (*sum + product, *magnitude + product.abs());
                    }
                }
            }
        }
        Self { x, zeros: vec![T::ZERO; channels], w, channels, taps, table, sums }
    }

    fn pixels(&self, kernel: &PixelKernel<T>) -> PixelInput<'_, T> {
        let taps = PixelTaps::new(&self.table, TILES, kernel.mr());
        assert_eq!((taps.len(), taps.is_empty()), (self.taps, self.taps == 0));
        PixelInput { x: &self.x, zeros: &self.zeros, channels: self.channels, taps }
    }

    fn assert_close(&self, got: T, want: f64, magnitude: f64, what: &str) {
        let bound = (self.taps * self.channels + 6) as f64 * T::UNIT_ROUNDOFF * (magnitude + 4.0);
        let error = (got.to_f64() - want).abs();
        assert!(error <= bound, "{what}, {} taps of {}: {got}, not {want}", self.taps, self.channels);
    }

    fn partial(&self, kernel: &PixelKernel<T>, before: &[T], accumulate: bool) {
        let mut tile = if accumulate { before.to_vec() } else { vec![guard(); before.len()] };
        kernel.partial(&self.pixels(kernel), &self.w, &mut tile, accumulate);
        for (at, got) in tile.iter().enumerate() {
            let old = if accumulate { before[at].to_f64() } else { 0.0 };
            let (sum, magnitude) = self.sums[at];
            self.assert_close(*got, sum + old, magnitude, &format!("{kernel:?} at {at}"));
        }
    }

    fn finish(&self, kernel: &PixelKernel<T>, before: &[T], variant: Variant<T>) {
        let Variant { channels, with_residual, activation, accumulate } = variant;
        let (nr, pixels, mut numbers) = (kernel.nr(), TILES * kernel.mr(), Numbers(19));
        let (ld, residual_ld) = (channels + 3, channels + 1);
        let bias: Vec<T> = numbers.vec(channels);
        let mut residual = vec![guard(); (pixels - 1) * residual_ld + channels];
        for residual in residual.chunks_mut(residual_ld) {
            residual[..channels].copy_from_slice(&numbers.vec(channels));
        }
        let mut y = vec![T::from_f64(UNTOUCHED); (pixels - 1) * ld + channels];
        // Tiles that are finished at once are not kept.
        let mut tile = if accumulate { before.to_vec() } else { vec![guard(); before.len() / TILES] };
        let activation = activation_kernel(kernel.isa(), activation);
        let added = with_residual.then_some(residual.as_slice()).into();
        let epilogue = PixelEpilogue { bias: &bias, residual: added, residual_ld, activation };
        let (x, dest) = (self.pixels(kernel), &mut Dest::from_slice(&mut y));
        kernel.finish(&x, &self.w, &mut tile, accumulate, dest, ld, channels, &epilogue);
        for (at, got) in y.iter().enumerate() {
            let (i, c) = (at / ld, at % ld);
            let what = format!("{kernel:?}, {variant:?}, pixel {i}, channel {c}");
            if c >= channels {
                assert_eq!(got.to_f64(), UNTOUCHED, "{what} was written");
                continue;
            }
            let (sum, magnitude) = self.sums[i * nr + c];
            let old = if accumulate { before[i * nr + c].to_f64() } else { 0.0 };
            let added = if with_residual { residual[i * residual_ld + c].to_f64() } else { 0.0 };
            let want = activation.apply(T::from_f64(sum + old + bias[c].to_f64() + added));
            self.assert_close(*got, want.to_f64(), magnitude, &what);
        }
    }
}

impl<T: Real> Case<T> {
    fn finish_planes(&self, kernel: &PixelKernel<T>, before: &[T], variant: Variant<T>) {
        let Variant { channels, with_residual, accumulate, .. } = variant;
        let (nr, pixels, mut numbers) = (kernel.nr(), TILES * kernel.mr(), Numbers(31));
        let ldy = pixels + 3;
        let bias: Vec<T> = numbers.vec(channels);
        let residual: Vec<T> = numbers.vec((channels - 1) * ldy + pixels);
        let mut y = vec![T::from_f64(UNTOUCHED); residual.len()];
        // Tiles that are finished at once are not kept.
        let mut tile = if accumulate { before.to_vec() } else { vec![guard(); before.len() / TILES] };
        let (lo, hi) = (T::from_f64(-0.75), T::from_f64(1.25));
        let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(residual.as_slice()).into(), lo, hi };
        let (x, dest) = (self.pixels(kernel), &mut Dest::from_slice(&mut y));
        kernel.finish_planes(&x, &self.w, &mut tile, accumulate, dest, ldy, channels, &epilogue);
        for (at, got) in y.iter().enumerate() {
            let (c, i) = (at / ldy, at % ldy);
            let what = format!("{kernel:?}, planes, {variant:?}, pixel {i}, channel {c}");
            if i >= pixels {
                assert_eq!(got.to_f64(), UNTOUCHED, "{what} was written");
                continue;
            }
            let (sum, magnitude) = self.sums[i * nr + c];
            let old = if accumulate { before[i * nr + c].to_f64() } else { 0.0 };
            let added = if with_residual { residual[at].to_f64() } else { 0.0 };
            let want = (sum + old + bias[c].to_f64() + added).clamp(-0.75, 1.25);
            self.assert_close(*got, want, magnitude, &what);
        }
    }
}

/// How a tile is finished.
#[derive(Debug, Clone, Copy)]
struct Variant<T> {
    channels: usize,
    with_residual: bool,
    activation: Activation<T>,
    accumulate: bool,
}

impl<T: Real> Variant<T> {
    /// Whole vectors of channels and parts, with and without what a call may have.
    fn all(nr: usize) -> impl Iterator<Item = Self> {
        let clamp = Activation::Clamp(T::from_f64(-0.75), T::from_f64(1.25));
        let leaky = Activation::LeakyRelu(T::from_f64(0.25));
        let variants = [
            (nr, false, clamp, false),
            (nr, true, clamp, true),
            (nr, true, leaky, false),
            (nr / 2 + 1, true, clamp, false),
            (nr - 1, false, leaky, true),
            (1, true, leaky, true),
            (1, false, clamp, false),
        ];
        let variants = variants.into_iter().filter(|(channels, ..)| *channels > 0);
        variants.map(|(channels, with_residual, activation, accumulate)| Self {
            channels,
            with_residual,
            activation,
            accumulate,
        })
    }
}

#[test]
fn tiles_are_products_and_are_finished_where_pixels_are_and_nowhere_else() {
    fn check<T: Real>(isa: Isa) {
        for kernel in pixel_kernels::<T>(isa) {
            let before: Vec<T> = Numbers(23).vec(TILES * kernel.mr() * kernel.nr());
            for (taps, channels) in [0, 1, 4].into_iter().flat_map(|taps| CHANNELS.map(|channels| (taps, channels))) {
                let case = Case::new(kernel, taps, channels);
                case.partial(kernel, &before, false);
                case.partial(kernel, &before, true);
                for variant in Variant::all(kernel.nr()) {
                    case.finish(kernel, &before, variant);
                    case.finish_planes(kernel, &before, variant);
                }
            }
        }
    }
    on_every_isa(check::<f32>);
    on_every_isa(check::<f64>);
}

/// Tiles of a call have the sums of one call each, to the bit.
#[test]
fn tiles_do_not_depend_on_one_another() {
    on_every_isa(|isa| {
        for kernel in pixel_kernels::<f32>(isa) {
            let (case, size) = (Case::new(kernel, 4, 7), kernel.mr() * kernel.nr());
            let (mut together, mut each) = (vec![0.0; TILES * size], vec![0.0; TILES * size]);
            kernel.partial(&case.pixels(kernel), &case.w, &mut together, false);
            let tables = case.table.chunks_exact(case.table.len() / TILES);
            for (table, tile) in tables.zip(each.chunks_exact_mut(size)) {
                let x = PixelInput { taps: PixelTaps::new(table, 1, kernel.mr()), ..case.pixels(kernel) };
                kernel.partial(&x, &case.w, tile, false);
            }
            assert_eq!(together, each, "{kernel:?}");
        }
    });
}

/// Sums in the order of their steps do not depend on how many pixels a tile has.
#[test]
fn sums_in_order_are_the_same_in_all_tiles() {
    on_every_isa(|isa| {
        let (channels, mut numbers) = (37, Numbers(29));
        let (x, table): (Vec<f32>, Vec<u32>) = (numbers.vec(channels), vec![0; 99]);
        for of_width in pixel_kernels::<f32>(isa).chunk_by(|a, b| a.nr() == b.nr()) {
            let nr = of_width[0].nr();
            let w: Vec<f32> = numbers.vec(channels * nr);
            let rows = of_width.iter().flat_map(|kernel| {
                let taps = PixelTaps::new(&table[..1 + kernel.mr()], 1, kernel.mr()).in_order();
                let mut tile = vec![0.0; kernel.mr() * nr];
                kernel.partial(&PixelInput { x: &x, zeros: &[], channels, taps }, &w, &mut tile, false);
                tile.chunks(nr).map(<[f32]>::to_vec).collect::<Vec<_>>()
            });
            let rows: Vec<_> = rows.collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{isa}: tiles of {nr} channels");
        }
    });
}

/// Tiles that are repeated have the sums of one call each time, for an X that begins further on, to the bit.
#[test]
fn repeated_tiles_read_x_further_on() {
    const REPEATS: usize = 4;
    on_every_isa(|isa| {
        for (kernel, tiles) in pixel_kernels::<f32>(isa).iter().flat_map(|kernel| [(kernel, 1), (kernel, 2)]) {
            let (mr, size, shift) = (kernel.mr(), tiles * kernel.mr() * kernel.nr(), 11);
            let case = Case::new(kernel, 4, 7);
            let table = &case.table[..case.table.len() / TILES * tiles];
            let x: Vec<f32> = Numbers(37).vec(case.x.len() + (REPEATS - 1) * shift);
            let operand = |x, repeats| {
                let taps = PixelTaps::new(table, tiles, mr).repeated(repeats, shift);
                assert_eq!(taps.len(), case.taps);
                PixelInput { x, zeros: &case.zeros, channels: case.channels, taps }
            };
            let (mut together, mut each) = (vec![0.0; REPEATS * size], vec![0.0; REPEATS * size]);
            kernel.partial(&operand(&x, REPEATS), &case.w, &mut together, false);
            for (i, sums) in each.chunks_exact_mut(size).enumerate() {
                kernel.partial(&operand(&x[i * shift..], 1), &case.w, sums, false);
            }
            assert_eq!(together, each, "{kernel:?}");
            let place = |entry: &[u32]| entry[1..].iter().copied().filter(|place| *place < PixelTaps::ZEROS).max();
            let furthest = table.chunks_exact(1 + mr).filter_map(place).max().expect("a place") as usize;
            let end = furthest + (REPEATS - 1) * shift + case.channels;
            kernel.partial(&operand(&x[..end], REPEATS), &case.w, &mut together, false);
            let mut call = |x, len: usize| kernel.partial(&operand(x, REPEATS), &case.w, &mut together[..len], false);
            let short = refusal(|| call(&x[..end - 1], REPEATS * size));
            assert!(short.contains("a pixel ends beyond the slice of X"), "{short}");
            let short = refusal(|| call(&x[..end], REPEATS * size - 1));
            assert!(short.contains("the tile is too short"), "{short}");
        }
    });
}

#[test]
fn nan_passes_the_clamp() {
    on_every_isa(|isa| {
        for kernel in pixel_kernels::<f32>(isa) {
            let (mr, nr) = (kernel.mr(), kernel.nr());
            let table = vec![0; 1 + mr];
            let taps = PixelTaps::new(&table, 1, mr);
            let x = PixelInput { x: &[f32::NAN], zeros: &[0.0], channels: 1, taps };
            let (w, bias, mut tile, mut y) = (vec![1.0; nr], vec![0.0; nr], vec![0.0; mr * nr], vec![0.0; mr * nr]);
            for channels in [nr, 1] {
                let activation = activation_kernel(isa, Activation::Clamp(0.0, 6.0));
                let epilogue = PixelEpilogue { bias: &bias, residual: Residual::NONE, residual_ld: 0, activation };
                let dest = &mut Dest::from_slice(&mut y);
                kernel.finish(&x, &w, &mut tile, false, dest, nr, channels, &epilogue);
                assert!(y.chunks(nr).all(|y| y[..channels].iter().all(|y| y.is_nan())), "{kernel:?}");
            }
        }
    });
}

/// Each slice of a call in turn is one element too short.
#[test]
fn slices_too_short_are_refused() {
    let kernel = pixel_kernels::<f32>(Isa::Portable).iter().find(|kernel| kernel.mr() == 3).expect("a kernel");
    let (mr, nr, channels, ld) = (kernel.mr(), kernel.nr(), 5, kernel.nr() + 2);
    // Two tiles of two taps. The highest number of a tap is 2, the furthest place 20.
    let table = [[2, 20, 4, PixelTaps::ZEROS + 9], [0, 1, 2, 3]].as_flattened().repeat(2);
    let end = (2 * mr - 1) * ld + nr;
    let lengths = [20 + channels, channels, 3 * channels * nr, 2 * mr * nr, end, nr, end];
    let call = |lengths: [usize; 7]| {
        let [x, zeros, w, mut tile, mut y, bias, residual] = lengths.map(|len| vec![1.0; len]);
        let x = PixelInput { x: &x, zeros: &zeros, channels, taps: PixelTaps::new(&table, 2, mr) };
        let (residual, activation) = (residual[..].into(), activation_kernel(Isa::Portable, Activation::IDENTITY));
        let epilogue = PixelEpilogue { bias: &bias, residual, residual_ld: ld, activation };
        kernel.finish(&x, &w, &mut tile, true, &mut Dest::from_slice(&mut y), ld, nr, &epilogue);
    };
    call(lengths);
    let reasons = [
        "a pixel ends beyond the slice of X",
        "too few zeros",
        "the panel of W is too short",
        "the tile is too short",
        "the destination is too short",
        "too few biases",
        "the residual is too short",
    ];
    for (i, reason) in reasons.into_iter().enumerate() {
        let mut lengths = lengths;
        lengths[i] -= 1;
        let message = refusal(|| call(lengths));
        assert!(message.contains(reason), "{message}, not {reason}");
    }
}

/// The same with a Y whose channels come first.
#[test]
fn slices_too_short_for_planes_are_refused() {
    let kernel = pixel_kernels::<f32>(Isa::Portable).iter().find(|kernel| kernel.mr() == 3).expect("a kernel");
    let (mr, nr, ldy) = (kernel.mr(), kernel.nr(), 9);
    let table = [0, 0, 2, 4].repeat(2);
    let end = (nr - 1) * ldy + 2 * mr;
    let call = |channels: usize, [y, bias, residual]: [usize; 3], ldy: usize| {
        let x = PixelInput { x: &[1.0; 6], zeros: &[], channels: 2, taps: PixelTaps::new(&table, 2, mr) };
        let [mut y, bias, residual] = [y, bias, residual].map(|len| vec![1.0; len]);
        let epilogue = Epilogue { bias: &bias, residual: residual[..].into(), lo: 0.0, hi: 1.0 };
        let (w, mut tile, dest) = (vec![1.0; 2 * nr], vec![0.0; 2 * mr * nr], &mut Dest::from_slice(&mut y));
        kernel.finish_planes(&x, &w, &mut tile, false, dest, ldy, channels, &epilogue);
    };
    let refused = |why: &str, channels: usize, lengths: [usize; 3], ldy: usize| {
        let message = refusal(|| call(channels, lengths, ldy));
        assert!(message.contains(why), "{message}, not {why}");
    };
    call(nr, [end, nr, end], ldy);
    refused("the destination is too short", nr, [end - 1, nr, end], ldy);
    refused("too few biases", nr, [end, nr - 1, end], ldy);
    refused("the residual is too short", nr, [end, nr, end - 1], ldy);
    refused("the destination is too short", nr, [end, nr, end], usize::MAX);
    refused("channels of this tile", 0, [end, nr, end], ldy);
    refused("channels of this tile", nr + 1, [end, nr, end], ldy);
}

#[test]
fn calls_that_cannot_be_are_refused() {
    const HUGE: usize = usize::MAX;
    let kernel = pixel_kernels::<f32>(Isa::Portable).iter().find(|kernel| kernel.mr() == 2).expect("a kernel");
    let (nr, bias) = (kernel.nr(), vec![0.0; kernel.nr()]);
    let refused = |why: &str, entries: &[u32], [tiles, pixels, depth]: [usize; 3], [ld, channels]: [usize; 2]| {
        let message = refusal(|| {
            let x =
                PixelInput { x: &[0.0; 99], zeros: &[], channels: depth, taps: PixelTaps::new(entries, tiles, pixels) };
            let activation = activation_kernel(Isa::Portable, Activation::IDENTITY);
            let epilogue = PixelEpilogue { bias: &bias, residual: Residual::NONE, residual_ld: 0, activation };
            let (w, mut tile, mut y) = (vec![0.0; 99 * nr], vec![0.0; 2 * nr], vec![0.0; 2 * nr]);
            kernel.finish(&x, &w, &mut tile, false, &mut Dest::from_slice(&mut y), ld, channels, &epilogue);
        });
        assert!(message.contains(why), "{message}, not {why}");
    };
    let tap = [0, 1, 2];
    refused("the table ends within a tap", &tap[..2], [1, 2, 3], [nr, nr]);
    refused("the table ends within a tap", &tap, [2, 2, 3], [nr, nr]);
    refused("the table ends within a tap", &tap, [0, 2, 3], [nr, nr]);
    refused("the table ends within a tap", &tap, [1, HUGE, 3], [nr, nr]);
    refused("the table ends within a tap", &tap, [HUGE, HUGE, 3], [nr, nr]);
    refused("another number of pixels", &tap[..2], [1, 1, 3], [nr, nr]);
    refused("channels of this tile", &tap, [1, 2, 3], [nr, 0]);
    refused("channels of this tile", &tap, [1, 2, 3], [nr + 1, nr + 1]);
    refused("pixels of Y overlap", &tap, [1, 2, 3], [nr - 1, nr]);
    refused("the destination is too short", &tap, [1, 2, 3], [HUGE, nr]);
    refused("the destination is too short", &[], [HUGE / 4, 2, 3], [nr, nr]);
    refused("a pixel ends beyond the slice of X", &tap, [1, 2, HUGE], [nr, nr]);
    refused("too few zeros", &[0, PixelTaps::ZEROS, 0], [1, 2, 1], [nr, nr]);
    refused("the panel of W is too short", &[u32::MAX, 1, 2], [1, 2, 3], [nr, nr]);
    let far = refusal(|| {
        let taps = PixelTaps::new(&tap, 1, 2).repeated(HUGE, HUGE);
        let x = PixelInput { x: &[0.0; 99], zeros: &[], channels: 3, taps };
        kernel.partial(&x, &vec![0.0; 3 * nr], &mut vec![0.0; 2 * nr], false);
    });
    assert!(far.contains("a pixel ends beyond the slice of X"), "{far}");
    // No tiles, however often, are none.
    let none = PixelInput { x: &[], zeros: &[], channels: 3, taps: PixelTaps::new(&[], 0, 2).repeated(HUGE, 1) };
    kernel.partial(&none, &[], &mut [], false);
}

/// Sizes up to some blocks of vectors, with parts of a block at each end, and elements between rows.
#[test]
fn matrices_are_transposed_and_nothing_else_is_written() {
    fn check<T: Real>(isa: Isa) {
        for (rows, columns) in (0..=40).flat_map(|rows| (rows % 3..=40).step_by(3).map(move |columns| (rows, columns)))
        {
            for (src_gap, dst_gap) in [(0, 0), (3, 5)] {
                let (src_ld, dst_ld) = (columns + src_gap, rows + dst_gap);
                let end = |count: usize, ld: usize, len: usize| count.saturating_sub(1) * ld + len;
                let src: Vec<T> = Numbers(29).vec(end(rows, src_ld, columns));
                let mut dst = vec![T::from_f64(UNTOUCHED); end(columns, dst_ld, rows)];
                transpose(isa, (rows, columns), (&src, src_ld), (&mut dst, dst_ld));
                for (at, got) in dst.iter().enumerate() {
                    let (j, i) = (at / dst_ld, at % dst_ld);
                    let want = if i < rows && columns > 0 { src[i * src_ld + j].to_f64() } else { UNTOUCHED };
                    assert_eq!(got.to_f64(), want, "{isa}, {} {rows} x {columns}, at {at}", T::NAME);
                }
            }
        }
    }
    on_every_isa(check::<f32>);
    on_every_isa(check::<f64>);
}

#[test]
fn transpositions_that_do_not_fit_are_refused() {
    const HUGE: usize = usize::MAX;
    let call = |size: (usize, usize), [src, src_ld]: [usize; 2], [dst, dst_ld]: [usize; 2]| {
        transpose(Isa::Portable, size, (&vec![0.0_f32; src], src_ld), (&mut vec![0.0; dst], dst_ld));
    };
    let refused = |why: &str, size: (usize, usize), src: [usize; 2], dst: [usize; 2]| {
        let message = refusal(|| call(size, src, dst));
        assert!(message.contains(why), "{message}, not {why}");
    };
    call((3, 4), [2 * 5 + 4, 5], [3 * 6 + 3, 6]);
    refused("the source is too short", (3, 4), [2 * 5 + 3, 5], [3 * 6 + 3, 6]);
    refused("the destination is too short", (3, 4), [2 * 5 + 4, 5], [3 * 6 + 2, 6]);
    refused("the source is too short", (3, 4), [99, HUGE], [99, 6]);
    refused("the destination is too short", (3, 4), [99, 5], [99, HUGE]);
    refused("the source is too short", (HUGE, 4), [99, 5], [99, 6]);
    refused("the source is too short", (3, HUGE), [99, 5], [99, 6]);
    // Without elements there is nothing to do.
    call((0, HUGE), [0, HUGE], [0, HUGE]);
    call((HUGE, 0), [0, HUGE], [0, HUGE]);
}

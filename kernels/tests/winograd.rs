//! Checks every Winograd kernel of the table, on every ISA of this CPU: its matrices, and that it
//! touches nothing else.

mod common;

use common::{Numbers, UNTOUCHED};
use convoke_kernels::winograd::{
    Border, MOST_VALUES, Pixels, Planes, Products, Spare, Tile, TilePixels, TileSource, filter_rows,
};
use convoke_kernels::{Dest, Epilogue, Isa, Real, Residual, WinogradKernel, winograd_kernels};

fn for_each_kernel<T: Real>(mut check: impl FnMut(&'static WinogradKernel<T>)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        winograd_kernels::<T>(isa).iter().for_each(&mut check);
    }
}

/// Rows and columns of tiles: one, a few, whole vectors, and vectors with a rest.
const BLOCKS: [(usize, usize); 7] = [(1, 1), (2, 3), (3, 16), (2, 17), (1, 40), (5, 7), (1, 70)];

/// One channel of X with padding around it, and its transformed tiles.
struct Input<T> {
    /// Padded rows and elements, with zeros for padding.
    padded: Vec<Vec<T>>,
    v: Vec<T>,
    v_plane: usize,
}

impl<T: Real> Input<T> {
    fn new(kernel: &WinogradKernel<T>, (rows, columns): (usize, usize), pads: [usize; 4], spare: usize) -> Self {
        let shape = Planes::new(kernel, rows, columns, spare);
        let mut numbers = Numbers(7);
        let live_rows = pads[0].min(shape.rows())..shape.rows() - pads[1].min(shape.rows() - pads[0].min(shape.rows()));
        let live =
            pads[2].min(shape.row_len())..shape.row_len() - pads[3].min(shape.row_len() - pads[2].min(shape.row_len()));
        let stride = live.len() + 3;
        let x: Vec<T> = numbers.vec(live_rows.len().saturating_sub(1) * stride + live.len());
        let padded = (0..shape.rows())
            .map(|r| {
                let element = |e: usize| match live_rows.contains(&r) && live.contains(&e) {
                    true => x[(r - live_rows.start) * stride + e - live.start],
                    false => T::ZERO,
                };
                (0..shape.row_len()).map(element).collect()
            })
            .collect();
        let mut planes = vec![T::from_f64(f64::NAN); shape.scratch_len()];
        let source = TileSource { x: &x, row_stride: stride, next: 1 << 20 };
        let border = Border::new(kernel, &shape, live_rows, live);
        let v_plane = shape.tiles() + kernel.lanes() + 4;
        let mut v = vec![T::from_f64(UNTOUCHED); kernel.values() * v_plane];
        kernel.input(&source, &border, &mut planes, &mut v, v_plane);
        Self { padded, v, v_plane }
    }
}

/// The filter's taps down and along.
fn taps<T: Real>(kernel: &WinogradKernel<T>) -> (usize, usize) {
    (kernel.down().taps(), kernel.along().taps())
}

/// Checks the convolution for every output of a block: input transform, products with a
/// transformed filter, and output transform.
fn convolves<T: Real>(kernel: &'static WinogradKernel<T>, tolerance: f64) {
    let (down, along) = taps(kernel);
    let (n, m) = ((kernel.down().values, kernel.along().values), (kernel.down().outputs, kernel.along().outputs));
    let lanes = kernel.lanes();
    // Numbers of unwanted outputs in the last row of tiles: any number below all.
    let spares = 0..m.0;
    for (block, spare) in BLOCKS.into_iter().flat_map(|block| spares.clone().map(move |spare| (block, spare))) {
        let dropped = Spare::new(kernel.down(), spare);
        let count = (0..n.0).filter(|value| dropped.drops(*value)).count();
        assert_eq!(count, spare, "{kernel:?}: as many values as outputs");
        for pads in [[0; 4], [1, 1, 1, 1], [0, 2, 20, 3]] {
            let input = Input::new(kernel, block, pads, spare);
            let tiles = block.0 * block.1;
            let Input { v, v_plane, .. } = &input;
            for plane in v.chunks(*v_plane) {
                let behind = &plane[tiles + lanes - 1..];
                assert!(behind.iter().all(|x| x.to_f64() == UNTOUCHED), "{kernel:?}: wrote behind the tiles");
            }
            // One filter for each channel of Y.
            let mut numbers = Numbers(11);
            let filters: Vec<Vec<f64>> =
                (0..lanes).map(|_| (0..down * along).map(|_| numbers.next()).collect()).collect();
            let (g_down, g_along) = (filter_rows(n.0, down), filter_rows(n.1, along));
            let transformed = |w: &[f64], i: usize, j: usize| -> f64 {
                let term = |a: usize, b: usize| g_down[i][a] * w[a * along + b] * g_along[j][b];
                (0..down).flat_map(|a| (0..along).map(move |b| (a, b))).map(|(a, b)| term(a, b)).sum()
            };
            let plane = tiles * lanes;
            let mut products = vec![T::ZERO; kernel.values() * plane];
            for (xi, products) in products.chunks_exact_mut(plane).enumerate() {
                for (t, products) in products.chunks_exact_mut(lanes).enumerate() {
                    if t >= tiles - block.1 && dropped.drops(xi / n.1) {
                        let value = v[xi * v_plane + t].to_f64();
                        assert!(value.abs() < 100.0 * tolerance, "{kernel:?}: {value} with {spare} outputs to spare");
                        continue;
                    }
                    for (product, w) in products.iter_mut().zip(&filters) {
                        *product = T::from_f64(v[xi * v_plane + t].to_f64() * transformed(w, xi / n.1, xi % n.1));
                    }
                }
            }
            for row in 0..block.0 {
                let products =
                    Products { values: &products[row * block.1 * lanes..], tile_step: lanes, plane, tiles: block.1 };
                check_pixels(
                    kernel,
                    &products,
                    if row + 1 == block.0 { spare } else { 0 },
                    |c, i, j| {
                        let at = |a: usize, b: usize| {
                            input.padded[row * m.0 + i + a][j + b].to_f64() * filters[c][a * along + b]
                        };
                        (0..down).flat_map(|a| (0..along).map(move |b| (a, b))).map(|(a, b)| at(a, b)).sum()
                    },
                    tolerance,
                );
            }
        }
    }
}

/// Checks that the output transform writes `want` with bias, residual and clamp into the pixels
/// that exist, and nothing elsewhere.
fn check_pixels<T: Real>(
    kernel: &WinogradKernel<T>,
    products: &Products<'_, T>,
    spare: usize,
    want: impl Fn(usize, usize, usize) -> f64,
    tolerance: f64,
) {
    let lanes = kernel.lanes();
    let whole = products.tiles * kernel.along().outputs;
    let cases = [
        (lanes, 0, 0, false, false),
        (lanes, 0, 0, false, true),
        (lanes, 1, 1, false, false),
        (1, 0, 1, true, false),
        (lanes - 1, 0, 0, true, false),
    ];
    // Pixels of a row are neighbours, or the channels of a pixel.
    for ((channels, cut_rows, cut, with_residual, past_cache), is_last) in
        cases.into_iter().flat_map(|case| [(case, false), (case, true)])
    {
        let height = (kernel.down().outputs - spare.max(cut_rows).min(kernel.down().outputs - 1)).max(1);
        let width = whole - cut.min(kernel.along().outputs - 1);
        let pixel_step = if is_last { 2 * lanes } else { 1 };
        let row_step = (whole.next_multiple_of(lanes) + lanes) * pixel_step;
        let channel_step = if is_last { 1 } else { row_step * kernel.down().outputs + lanes };
        let len = (channels - 1) * channel_step + (height - 1) * row_step + (width - 1) * pixel_step + 1;
        // The memory is aligned, so that stores past the caches are possible.
        let mut memory = vec![T::from_f64(UNTOUCHED); len + 2 * lanes];
        let skip = memory.as_ptr().align_offset(64).min(lanes);
        let y = &mut memory[skip..];
        let mut numbers = Numbers(23);
        let (bias, residual): (Vec<T>, Vec<T>) = (numbers.vec(channels), numbers.vec(len));
        let (lo, hi) = (T::from_f64(-0.5), T::from_f64(0.75));
        let pixels = Pixels { channels, channel_step, row_step, pixel_step, width, height, past_cache };
        let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(&residual[..]).into(), lo, hi };
        let mut bad = vec![0; products.tiles];
        let is_good = kernel.output(products, &pixels, &mut Dest::from_slice(&mut y[..len]), &epilogue, &mut bad);
        assert!(is_good && bad.iter().all(|b| *b == 0), "{kernel:?}: finite products are marked");
        for (at, got) in y.iter().enumerate() {
            let (c, i, j) = match is_last {
                true => (at % pixel_step, at / row_step, at % row_step / pixel_step),
                false => (at / channel_step, at % channel_step / row_step, at % channel_step % row_step),
            };
            if c < channels && i < height && j < width {
                let residual = if with_residual { residual[at].to_f64() } else { 0.0 };
                let want = (want(c, i, j) + bias[c].to_f64() + residual).clamp(-0.5, 0.75);
                assert!(
                    (got.to_f64() - want).abs() <= tolerance,
                    "{kernel:?}: {got} instead of {want} at {c}, {i}, {j}"
                );
            } else {
                assert_eq!(got.to_f64(), UNTOUCHED, "{kernel:?}: wrote beside the pixels");
            }
        }
    }
}

#[test]
fn transforms_and_products_are_the_convolution_in_f64() {
    for_each_kernel::<f64>(|kernel| convolves(kernel, 1e-12));
}

#[test]
fn transforms_and_products_are_the_convolution_in_f32() {
    for_each_kernel::<f32>(|kernel| convolves(kernel, 2e-4));
}

#[test]
fn the_transformed_filter_of_known_points_is_lavin_and_grays() {
    assert_eq!(filter_rows(1, 1), [[1.0]]);
    // F(4, 3) with the points 0, +-sqrt(1/2), +-sqrt(2), infinity.
    let rows = filter_rows(6, 3);
    let (a, b) = (0.5_f64.sqrt(), 2_f64.sqrt());
    let want = [
        [1.0, 0.0, 0.0],
        [-2.0 / 3.0, -2.0 / 3.0 * a, -1.0 / 3.0],
        [-2.0 / 3.0, 2.0 / 3.0 * a, -1.0 / 3.0],
        [1.0 / 6.0, b / 6.0, 1.0 / 3.0],
        [1.0 / 6.0, -b / 6.0, 1.0 / 3.0],
        [0.0, 0.0, 1.0],
    ];
    for (row, want) in rows.iter().zip(want) {
        assert!(row.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-15), "{row:?} instead of {want:?}");
    }
}

#[test]
fn tiles_that_are_not_finite_are_marked_and_no_others() {
    fn check<T: Real>() {
        for_each_kernel::<T>(|kernel| {
            let (lanes, tiles) = (kernel.lanes(), 11);
            let plane = tiles * lanes;
            for (special, is_infinite) in [(f64::NAN, false), (f64::INFINITY, true), (f64::NEG_INFINITY, true)] {
                for xi in 0..kernel.values() {
                    let mut products = vec![T::ONE; kernel.values() * plane];
                    products[xi * plane + 5 * lanes + lanes - 1] = T::from_f64(special);
                    let products = Products { values: &products, tile_step: lanes, plane, tiles };
                    let width = tiles * kernel.along().outputs;
                    let height = kernel.down().outputs;
                    let pixels = Pixels {
                        channels: lanes,
                        channel_step: width * height,
                        row_step: width,
                        pixel_step: 1,
                        width,
                        height,
                        past_cache: false,
                    };
                    let mut y = vec![T::ZERO; lanes * width * height];
                    let bias = vec![T::ZERO; lanes];
                    // A clamp hides an infinity from the pixels, but not from the mark.
                    let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::ZERO, hi: T::ONE };
                    let mut bad = vec![0; tiles];
                    let is_good = kernel.output(&products, &pixels, &mut Dest::from_slice(&mut y), &epilogue, &mut bad);
                    let marked: Vec<_> = bad.iter().enumerate().filter(|(_, b)| **b != 0).map(|(t, _)| t).collect();
                    assert!(
                        !is_good && marked == [5],
                        "{kernel:?}: {special} ({is_infinite}) in value {xi} marks {marked:?}"
                    );
                }
            }
        });
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn every_isa_has_the_same_tiles_with_names_that_say_them() {
    fn tiles<T: Real>(isa: Isa) -> Vec<(Tile, Tile)> {
        winograd_kernels::<T>(isa).iter().map(|k| (k.down(), k.along())).collect()
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert!(tiles::<f32>(isa) == tiles::<f32>(Isa::Portable) && tiles::<f64>(isa) == tiles::<f32>(isa), "{isa}");
        for k in winograd_kernels::<f32>(isa) {
            let (down, along) = (k.down(), k.along());
            let (outputs, taps) = ((down.outputs, along.outputs), (down.taps(), along.taps()));
            assert_eq!(k.name(), format!("f32_winograd_f{}x{}_{}x{}", outputs.0, outputs.1, taps.0, taps.1));
        }
    }
}

/// Whether a call panics.
fn panics(call: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(call).is_err()
}

/// The transformed tiles of a block of `columns` tiles with the rows `x`. `pads` elements at the
/// ends of rows are padding. The block begins at column `from` of a wider block.
fn transformed<T: Real>(
    kernel: &WinogradKernel<T>,
    x: &[Vec<T>],
    (from, columns): (usize, usize),
    live: &std::ops::Range<usize>,
    spare: usize,
) -> Vec<Vec<T>> {
    let rows = (x.len() - kernel.down().values) / kernel.down().outputs + 1;
    let shape = Planes::new(kernel, rows, columns, spare);
    let first = from * kernel.along().outputs;
    let inside = live.start.saturating_sub(first)..live.end.saturating_sub(first).min(shape.row_len());
    let flat: Vec<T> = x.iter().flat_map(|row| row[first + inside.start..first + inside.end].to_vec()).collect();
    let border = Border::new(kernel, &shape, 0..shape.rows(), inside.clone());
    let (mut planes, v_plane) = (vec![T::ZERO; shape.scratch_len()], shape.tiles() + kernel.lanes());
    let mut v = vec![T::ZERO; kernel.values() * v_plane];
    // Any address may be prefetched.
    let source = TileSource { x: &flat, row_stride: inside.len(), next: usize::MAX };
    kernel.input(&source, &border, &mut planes, &mut v, v_plane);
    v.chunks(v_plane).map(|values| values[..shape.tiles()].to_vec()).collect()
}

#[test]
fn wide_blocks_and_narrow_ones_have_the_same_bits() {
    fn check<T: Real>() {
        for_each_kernel::<T>(|kernel| {
            let (wide, narrow) = (2 * kernel.lanes() + 3, (kernel.lanes() / 2).max(1));
            let row_len = (wide - 1) * kernel.along().outputs + kernel.along().values;
            let rows = 2;
            let height = (rows - 1) * kernel.down().outputs + kernel.down().values;
            for spare in [0, kernel.down().outputs / 2] {
                let mut numbers = Numbers(5);
                let x: Vec<Vec<T>> = (0..height).map(|_| numbers.vec(row_len)).collect();
                for live in [0..row_len, 1..row_len - 1] {
                    let all = transformed(kernel, &x, (0, wide), &live, spare);
                    for from in (0..wide).step_by(narrow) {
                        let columns = narrow.min(wide - from);
                        let part = transformed(kernel, &x, (from, columns), &live, spare);
                        for (values, part) in all.iter().zip(&part) {
                            for row in 0..rows {
                                let of_wide = &values[row * wide + from..][..columns];
                                let bits = |v: &[T]| v.iter().map(|v| v.to_f64().to_bits()).collect::<Vec<_>>();
                                let part = bits(&part[row * columns..][..columns]);
                                assert_eq!(bits(of_wide), part, "{kernel:?}, {live:?}, tiles from {from} on");
                            }
                        }
                    }
                }
            }
        });
    }
    check::<f32>();
    check::<f64>();
}

/// The transformed tiles of a row whose pixels have `channels` channels, `[value][tile][channel]`. Rows and elements other
/// than the live ones are padding.
fn transformed_pixels<T: Real>(
    kernel: &WinogradKernel<T>,
    x: &[Vec<Vec<T>>],
    (tiles, channels): (usize, usize),
    (live, inside): (&std::ops::Range<usize>, &std::ops::Range<usize>),
    spare: usize,
) -> Vec<T> {
    let (values, lanes) = (kernel.down().values, kernel.lanes());
    let pixel = channels.max(lanes);
    // Between pixels are guards, unless rows are extended.
    let step = if spare > 0 { pixel } else { pixel + 2 };
    let len = (inside.len() * step).next_multiple_of(if spare > 0 { lanes } else { 1 });
    let mut rows = vec![T::from_f64(f64::NAN); values * len];
    for (i, row) in rows.chunks_mut(len).enumerate().filter(|(i, _)| live.contains(i)) {
        for (e, to) in inside.clone().zip(row.chunks_mut(step)) {
            (0..channels).for_each(|c| to[c] = x[c][i][e]);
        }
    }
    kernel.extend(&Spare::new(kernel.down(), spare), live, &mut rows[..if spare > 0 { values * len } else { 0 }]);
    let mut source =
        TilePixels { rows: [None; MOST_VALUES], inside: inside.clone(), step, channels, zeros: &vec![T::ZERO; pixel] };
    for i in (0..values).filter(|i| live.contains(i) || *i >= values - spare) {
        source.rows[i] = Some(&rows[i * len..][..(inside.len() - 1) * step + pixel]);
    }
    let v_plane = tiles * channels + 2 * lanes;
    let behind = pixel - channels;
    let mut v = vec![T::from_f64(UNTOUCHED); (kernel.values() - 1) * v_plane + tiles * channels + behind];
    kernel.input_pixels(&source, tiles, &mut v, v_plane);
    let of_value = |value: &[T]| {
        let behind = value.get(tiles * channels + behind..).unwrap_or(&[]);
        assert!(behind.iter().all(|x| x.to_f64() == UNTOUCHED), "{kernel:?}: wrote behind the tiles");
        value[..tiles * channels].to_vec()
    };
    let transformed = v.chunks(v_plane).flat_map(of_value).collect();

    let refuses = |source: TilePixels<'_, T>, len: usize| {
        let mut v = v.clone();
        panics(std::panic::AssertUnwindSafe(|| kernel.input_pixels(&source, tiles, &mut v[..len], v_plane)))
    };
    assert!(!refuses(source.clone(), v.len()) && refuses(source.clone(), v.len() - 1), "{kernel:?}");
    assert!(refuses(TilePixels { zeros: &source.zeros[1..], ..source.clone() }, v.len()), "{kernel:?}");
    let is_too_far = refuses(TilePixels { step: usize::MAX, ..source.clone() }, v.len());
    assert_eq!(is_too_far, inside.len() > 1, "{kernel:?}");
    source.rows[live.start] = source.rows[live.start].map(|row| &row[1..]);
    assert!(refuses(source, v.len()), "{kernel:?}");
    transformed
}

#[test]
fn vectors_of_channels_have_the_same_bits_as_vectors_of_tiles() {
    fn check<T: Real>() {
        for_each_kernel::<T>(|kernel| {
            let (height, tiles, lanes) = (kernel.down().values, 3, kernel.lanes());
            let row_len = (tiles - 1) * kernel.along().outputs + kernel.along().values;
            for (channels, spare) in [1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3]
                .into_iter()
                .flat_map(|channels| [(channels, 0), (channels, kernel.down().outputs / 2)])
            {
                let known = height - spare;
                for (live, inside) in [(0..known, 0..row_len), (known - 1..known, 1..row_len - 1), (0..1, 2..3)] {
                    let mut numbers = Numbers(5);
                    let row = |i: usize, numbers: &mut Numbers| match live.contains(&i) {
                        true => numbers.vec(row_len),
                        false => vec![T::ZERO; row_len],
                    };
                    let x: Vec<Vec<Vec<T>>> =
                        (0..channels).map(|_| (0..height).map(|i| row(i, &mut numbers)).collect()).collect();
                    let got = transformed_pixels(kernel, &x, (tiles, channels), (&live, &inside), spare);
                    for (c, x) in x.iter().enumerate() {
                        let want = transformed(kernel, x, (0, tiles), &inside, spare).concat();
                        let bits =
                            |v: &mut dyn Iterator<Item = &T>| v.map(|v| v.to_f64().to_bits()).collect::<Vec<_>>();
                        let got = bits(&mut got.iter().skip(c).step_by(channels));
                        assert_eq!(got, bits(&mut want.iter()), "{kernel:?}, {channels} channels, {spare} spare");
                    }
                }
            }
        });
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn masks_of_another_way_through_the_rows_are_refused() {
    fn pair<A: Real, B: Real>() {
        let isas = || Isa::ALL.into_iter().filter(|isa| isa.is_available());
        for (one, other) in isas().flat_map(|one| isas().map(move |other| (one, other))) {
            for (kernel, foreign) in winograd_kernels::<A>(one).iter().flat_map(|kernel| {
                let is_like = |k: &&WinogradKernel<B>| {
                    (k.down(), k.along(), k.lanes()) == (kernel.down(), kernel.along(), kernel.lanes())
                };
                winograd_kernels::<B>(other).iter().filter(is_like).map(move |foreign| (kernel, foreign))
            }) {
                let shape = Planes::new(kernel, 2, kernel.lanes() + 1, 0);
                let border = Border::new(kernel, &shape, 0..shape.rows(), 1..shape.row_len());
                let x = vec![B::ZERO; shape.rows() * shape.row_len()];
                let (mut planes, v_plane) = (vec![B::ZERO; shape.scratch_len()], shape.tiles() + kernel.lanes());
                let mut v = vec![B::from_f64(UNTOUCHED); kernel.values() * v_plane];
                let source = TileSource { x: &x, row_stride: shape.row_len(), next: 0 };
                let refused = panics(std::panic::AssertUnwindSafe(|| {
                    foreign.input(&source, &border, &mut planes, &mut v, v_plane);
                }));
                // AVX-512 transforms wide rows in another way than the other ISAs.
                let is_mask = kernel.name().contains("_3x3")
                    && one == Isa::Avx512
                    && other != Isa::Avx512
                    && ["f2x2", "f4x2", "f4x4"].iter().any(|tile| kernel.name().contains(tile));
                assert_eq!(refused, is_mask, "{kernel:?} for {foreign:?}");
            }
        }
    }
    pair::<f32, f32>();
    pair::<f64, f32>();
    pair::<f32, f64>();
    pair::<f64, f64>();
}

#[test]
fn planes_and_borders_of_other_kernels_are_refused() {
    let portable = winograd_kernels::<f32>(Isa::Portable);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for kernel in winograd_kernels::<f32>(isa) {
            let shape = Planes::new(kernel, 2, 3, 0);
            let border = Border::new(kernel, &shape, 0..shape.rows(), 0..shape.row_len());
            let x = vec![0.0_f32; shape.rows() * shape.row_len()];
            for other in portable.iter().filter(|other| {
                (other.down(), other.along(), other.lanes()) != (kernel.down(), kernel.along(), kernel.lanes())
            }) {
                let foreign = Planes::new(other, 2, 3, 0);
                let foreign_border = Border::new(other, &foreign, 0..foreign.rows(), 0..foreign.row_len());
                let len = shape.scratch_len().max(foreign.scratch_len());
                let source = || TileSource { x: &x, row_stride: 0, next: 0 };
                let (mut planes, mut v) = (vec![0.0; len], vec![0.0; 1 << 16]);
                assert!(
                    panics(move || kernel.input(&source(), &foreign_border, &mut planes, &mut v, 64)),
                    "{kernel:?}, {other:?}"
                );
                assert!(panics(|| drop(Border::new(kernel, &foreign, 0..1, 0..1))), "{kernel:?}, {other:?}");
            }
            // Sizes that overflow, for any width of `usize`.
            const HUGE: usize = 1 << (usize::BITS - 1);
            const HUGE_ROOT: usize = 1 << (usize::BITS / 2);
            let v_plane = shape.tiles() + kernel.lanes();
            let v_len = (kernel.values() - 1) * v_plane + shape.tiles() + kernel.lanes() - 1;
            let refuses = |x: &[f32], planes: usize, v: usize| {
                let source = TileSource { x, row_stride: shape.row_len(), next: 0 };
                let (mut planes, mut v) = (vec![0.0; planes], vec![0.0; v]);
                panics(std::panic::AssertUnwindSafe(|| kernel.input(&source, &border, &mut planes, &mut v, v_plane)))
            };
            assert!(!refuses(&x, shape.scratch_len(), v_len), "{kernel:?}");
            assert!(refuses(&x[1..], shape.scratch_len(), v_len), "{kernel:?}");
            assert!(refuses(&x, shape.scratch_len() - 1, v_len), "{kernel:?}");
            assert!(refuses(&x, shape.scratch_len(), v_len - 1), "{kernel:?}");
            for (rows, columns) in [(0, 1), (1, 0), (1, HUGE), (HUGE / 2, 4), (HUGE_ROOT, HUGE_ROOT)] {
                assert!(
                    panics(|| assert!(Planes::new(kernel, rows, columns, 0).scratch_len() > 0)),
                    "{kernel:?}: {rows} x {columns}"
                );
            }
        }
    }
}

//! Checks every kernel of several output channels of the table, on every ISA of this CPU, against
//! loops by the definition.

use convoke_kernels::{
    Dest, Epilogue, FlatInput, FlatTaps, GroupedKernel, Isa, Prefetch, Real, Residual, grouped_kernels,
};

/// Deterministic values in (-1, 1).
fn values<T: Real>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f64(((i * 7919 + seed * 104_729) % 2003) as f64 / 1001.5 - 1.0)).collect()
}

/// Marks elements that nothing may write.
const UNTOUCHED: f64 = 12345.0;

/// Number of input channels: more than one, and odd.
const CHANNELS: usize = 3;

/// Calls `check` for every kernel of every ISA of this CPU, of both types.
macro_rules! for_each_kernel {
    ($check:ident) => {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            grouped_kernels::<f32>(isa).iter().for_each($check);
            grouped_kernels::<f64>(isa).iter().for_each($check);
        }
    };
}

#[test]
fn every_available_isa_has_kernels_that_say_what_they_are() {
    fn check<T: Real>(isa: Isa) {
        let kernels = grouped_kernels::<T>(isa);
        assert!(!kernels.is_empty(), "{isa}");
        for kernel in kernels {
            assert_eq!(kernel.name(), format!("{}_group_{}x{}", T::NAME, kernel.mr(), kernel.nr()));
            assert_eq!((kernel.isa(), kernel.nr()), (isa, kernel.nrv() * kernel.lanes()));
        }
        let heights = |mr: usize| kernels.iter().any(|kernel| kernel.mr() == mr);
        assert!(heights(2) && heights(3), "{isa}: any number of channels from 2 on is a sum of 2 and 3");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        check::<f32>(isa);
        check::<f64>(isa);
    }
}

/// Rows of X and of Y, and elements of a row. For each axis, the first tap's position, the
/// distance of taps, and their number.
struct Layer {
    height: usize,
    outputs: usize,
    width: usize,
    rows: (isize, isize, usize),
    columns: (isize, isize, usize),
}

/// The planes and positions of taps. Taps of odd number lie in a plane that is `gap` elements
/// further on.
fn places((first, step, count): (isize, isize, usize), gap: usize) -> Vec<(usize, isize)> {
    (0..count).map(|k| (k % 2 * gap, first + k as isize * step)).collect()
}

#[test]
fn tiles_are_sums_over_channels_and_taps() {
    fn check<T: Real>(kernel: &GroupedKernel<T>) {
        let lanes = kernel.lanes();
        // Rows that are shorter than vectors, than the kernel and than its shifts; rows that are
        // about as long as a vector; and planes of many tiles, with tiles in the middle that see
        // no border.
        for width in [1, 2, 5, lanes - 1, lanes, lanes + 1, 2 * lanes + 3] {
            for height in [1, 2, 7, 60 * lanes / width] {
                let same = Layer { height, outputs: height, width, rows: (-1, 1, 3), columns: (-1, 1, 3) };
                tiles(kernel, &same, true);
                tiles(kernel, &same, false);
                tiles(kernel, &Layer { rows: (0, 1, 1), columns: (0, 1, 1), ..same }, false);
                tiles(kernel, &Layer { rows: (-4, 3, 3), columns: (-3, 2, 4), ..same }, false);
                // Fewer rows of Y than of X, and more.
                tiles(kernel, &Layer { rows: (0, 1, 2), outputs: height.max(2) - 1, ..same }, false);
                tiles(kernel, &Layer { rows: (-5, 1, 3), outputs: height + 8, ..same }, true);
            }
        }
    }
    for_each_kernel!(check);
}

/// Runs all positions of a layer in two calls. Rows of the destination are some elements apart.
fn tiles<T: Real>(kernel: &GroupedKernel<T>, layer: &Layer, with_residual: bool) {
    let &Layer { height, outputs, width, rows, columns } = layer;
    // Neighbouring taps see planes of their own, as they do with strides: four for each channel.
    let (mr, plane) = (kernel.mr(), height * width);
    let (rows, columns) = (places(rows, plane), places(columns, 2 * plane));
    let pitch = 4 * plane + 5;
    let taps = FlatTaps::new(kernel.lanes(), (CHANNELS, pitch), (height, width), outputs, &rows, &columns).unwrap();
    let (steps, len) = (CHANNELS * rows.len() * columns.len(), outputs * width);
    assert_eq!((taps.steps(), taps.outputs()), (steps, len));
    let (x, w) = (values::<T>(CHANNELS * pitch, 1), values::<T>(steps * mr, 2));
    let (bias, ldy) = (values::<T>(mr, 3), len + 3);
    let residual = values::<T>(mr * ldy, 4);
    let (lo, hi) = (T::from_f64(-1.5), T::from_f64(2.5));
    let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(residual.as_slice()).into(), lo, hi };
    let mut y = vec![T::from_f64(UNTOUCHED); mr * ldy];
    // The first call may end within a tile.
    let count = len.div_ceil(kernel.lanes());
    for (first, vectors) in [(0, count / 2), (count / 2, count - count / 2)] {
        let input = FlatInput { taps: &taps, w: &w, x: &x, prefetch: Prefetch::lines(&x), first, vectors };
        let mut y = Dest::from_slice(&mut y);
        let from = first * kernel.lanes();
        kernel.run(&input, &mut y.from(from), ldy, &epilogue.from(from));
    }
    for (at, got) in y.iter().enumerate() {
        let (m, position) = (at / ldy, at % ldy);
        let what = format!("{kernel:?}, {height}x{width}, rows {rows:?}, columns {columns:?}, row {m}, {position}");
        if position >= len {
            assert_eq!(got.to_f64(), UNTOUCHED, "{what}: written");
            continue;
        }
        let (mut sum, mut step) = (bias[m].to_f64(), 0);
        for column in &columns {
            for channel in 0..CHANNELS {
                for row in &rows {
                    let (r, c) = ((position / width) as isize + row.1, (position % width) as isize + column.1);
                    if (0..height as isize).contains(&r) && (0..width as isize).contains(&c) {
                        let x = x[channel * pitch + row.0 + column.0 + r as usize * width + c as usize];
                        sum += x.to_f64() * w[step * mr + m].to_f64();
                    }
                    step += 1;
                }
            }
        }
        sum += if with_residual { residual[at].to_f64() } else { 0.0 };
        let bound = (steps + 4) as f64 * T::UNIT_ROUNDOFF * (steps + 3) as f64;
        assert!((got.to_f64() - sum.clamp(-1.5, 2.5)).abs() <= bound, "{what}: {got} instead of {sum}");
    }
}

#[test]
fn padding_is_zero_whatever_lies_there() {
    fn check<T: Real>(kernel: &GroupedKernel<T>) {
        // The last element of each row is infinite. A shift brings it to the first output of the
        // next row, which must not see it.
        let (width, height) = (kernel.lanes() + 1, 40);
        let taps =
            FlatTaps::new(kernel.lanes(), (1, height * width), (height, width), height, &[(0, 0)], &[(0, -1)]).unwrap();
        let x: Vec<T> =
            (0..width * height).map(|i| if i % width == width - 1 { T::INFINITY } else { T::ONE }).collect();
        let (w, zeros) = (vec![T::ONE; kernel.mr()], vec![T::ZERO; kernel.mr()]);
        let vectors = (width * height).div_ceil(kernel.lanes());
        let epilogue = Epilogue { bias: &zeros, residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
        let mut y = vec![T::ZERO; kernel.mr() * width * height];
        let input = FlatInput { taps: &taps, w: &w, x: &x, prefetch: Prefetch::NONE, first: 0, vectors };
        kernel.run(&input, &mut Dest::from_slice(&mut y), width * height, &epilogue);
        for (i, got) in y.iter().enumerate() {
            let want = if i % width == 0 { 0.0 } else { 1.0 };
            assert_eq!(got.to_f64(), want, "{kernel:?}, element {i}");
        }
    }
    for_each_kernel!(check);
}

#[test]
fn tables_that_would_be_too_large_are_refused() {
    let table = |width: usize, height: usize, rows: &[isize], columns: &[isize]| {
        let at = |list: &[isize]| list.iter().map(|position| (0, *position)).collect::<Vec<_>>();
        FlatTaps::new(8, (2, height * width), (height, width), height, &at(rows), &at(columns)).is_some()
    };
    let planes = |pitch: usize| FlatTaps::new(8, (2, pitch), (3, 5), 3, &[(0, 0), (15, 0)], &[(30, 0)]);
    assert!(planes(60).is_some() && planes(59).is_none(), "a plane that ends behind its channel");
    assert!(table(FlatTaps::MOST_WIDTH, 3, &[-1, 0, 1], &[-1, 0, 1]));
    assert!(!table(FlatTaps::MOST_WIDTH + 1, 3, &[0], &[0]));
    assert!(!table(0, 3, &[0], &[0]) && !table(4, 0, &[0], &[0]));
    assert!(!table(4, 1 << 29, &[0], &[0]), "offsets beyond 32 bits");
    assert!(!table(4, 4, &[isize::MAX / 2], &[0]) && !table(4, 4, &[0], &[isize::MIN]));
}

#[test]
fn short_slices_are_refused() {
    fn check<T: Real>(kernel: &GroupedKernel<T>) {
        let (width, mr) = (kernel.nr() + 1, kernel.mr());
        let table = |lanes: usize| FlatTaps::new(lanes, (2, 2 * width), (2, width), 2, &[(0, 0)], &[(0, 0)]).unwrap();
        let (taps, other) = (table(kernel.lanes()), table(kernel.lanes() + 1));
        let vectors = (2 * width).div_ceil(kernel.lanes());
        // Refused in turn: a slice with one element too few, a tile too many, and a table for
        // other vectors.
        let refused = |taps: &FlatTaps, first: usize, lens: [usize; 5]| {
            let call = || {
                let [w, x, y, bias, residual] = lens.map(|len| vec![T::ZERO; len]);
                let mut y = y;
                let input = FlatInput {
                    taps,
                    w: &w,
                    x: &x,
                    prefetch: Prefetch::NONE,
                    first,
                    vectors: kernel.nrv().min(vectors - first.min(vectors - 1)),
                };
                let residual = Some(residual.as_slice());
                let epilogue = Epilogue { bias: &bias, residual: residual.into(), lo: T::ZERO, hi: T::ONE };
                kernel.run(&input, &mut Dest::from_slice(&mut y), 2 * width, &epilogue);
            };
            std::panic::catch_unwind(call).is_err()
        };
        let written = (mr - 1) * 2 * width + kernel.nr();
        let lens = [2 * mr, 4 * width, written, mr, written];
        assert!(!refused(&taps, 0, lens), "{kernel:?}");
        for i in 0..lens.len() {
            let mut short = lens;
            short[i] -= 1;
            assert!(refused(&taps, 0, short), "{kernel:?}: slice {i}");
        }
        assert!(!refused(&taps, vectors - 1, lens) && refused(&taps, vectors, lens), "{kernel:?}");
        assert!(refused(&taps, usize::MAX, lens) && refused(&other, 0, lens), "{kernel:?}");
    }
    for_each_kernel!(check);
}

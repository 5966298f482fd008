//! Checks every direct kernel of the table, and the copies before and after them, on every ISA of
//! this CPU, against loops by their definition.

use convoke_kernels::{
    DepthwiseInput, DepthwiseKernel, DepthwiseKernels, DepthwiseOutput, Dest, DirectInput, DirectTable, Epilogue, Isa,
    MOST_TAPS, Real, Residual, Slots, TapTable, depthwise_kernels,
};

/// Deterministic values in (-1, 1).
fn values<T: Real>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f64(((i * 7919 + seed * 104_729) % 2003) as f64 / 1001.5 - 1.0)).collect()
}

/// Marks elements that nothing may write.
const UNTOUCHED: f64 = 12345.0;

/// Calls `check` for the kernels of every ISA of this CPU, of both types.
macro_rules! for_each_family {
    ($check:ident) => {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            depthwise_kernels::<f32>(isa).map($check);
            depthwise_kernels::<f64>(isa).map($check);
        }
    };
}

fn assert_close<T: Real>(got: T, want: f64, terms: usize, what: &str) {
    let bound = (terms + 4) as f64 * T::UNIT_ROUNDOFF * (terms + 3) as f64;
    assert!((got.to_f64() - want).abs() <= bound, "{what}: {got} instead of {want}");
}

#[test]
fn every_available_isa_has_kernels_of_every_height() {
    fn check<T: Real>(family: &DepthwiseKernels<T>) {
        assert!(!family.rows().is_empty() && !family.channels().is_empty());
        let (rows, narrow) = ((family.rows(), "dw", family.lanes()), (family.narrow(), "dw", family.lanes() / 2));
        for (kernels, op, lanes) in [rows, narrow, (family.channels(), "dwt", family.lanes())] {
            for (i, k) in kernels.iter().enumerate() {
                let tile = if op == "dw" { (k.mr(), k.lanes()) } else { (k.lanes(), k.mr()) };
                assert_eq!(k.name(), format!("{}_{op}_{}x{}", T::NAME, tile.0, tile.1));
                assert_eq!((k.mr(), k.lanes(), k.isa()), (i + 1, lanes, family.rows()[0].isa()));
            }
        }
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert!(depthwise_kernels::<f32>(isa).is_some() && depthwise_kernels::<f64>(isa).is_some(), "{isa}");
    }
    for_each_family!(check);
}

#[test]
fn tiles_are_sums_over_tap_columns() {
    fn check<T: Real>(family: &DepthwiseKernels<T>) {
        for (kernels, weight) in [(family.rows(), 1), (family.narrow(), 1), (family.channels(), family.lanes())] {
            for kernel in kernels {
                for taps in 1..=MOST_TAPS {
                    tile(kernel, weight, &[(taps, 3)], true);
                }
                tile(kernel, weight, &[(2, 3), (1, 3)], false);
                tile(kernel, weight, &[(3, 1)], true);
                tile(kernel, weight, &[], false);
            }
        }
    }
    for_each_family!(check);
}

/// Two planes of two tiles below one another, in rows that end within a vector. `groups` are
/// pairs of a number of taps and a number of columns.
fn tile<T: Real>(kernel: &DepthwiseKernel<T>, weight: usize, groups: &[(usize, usize)], with_residual: bool) {
    let (mr, lanes, planes, tiles) = (kernel.mr(), kernel.lanes(), 2, 2);
    let (step, width) = (5 * lanes, if weight == 1 { 2 * lanes + 3 } else { 2 * lanes });
    let column = |g: usize, c: usize| (g * 7 + c * 3 + 1) as u32;
    let list: Vec<_> =
        groups.iter().enumerate().map(|(g, &(taps, n))| (taps, (0..n).map(|c| column(g, c)).collect())).collect();
    let taps = TapTable::new(&list, step);
    let count: usize = groups.iter().map(|(taps, columns)| taps * columns).sum();
    assert_eq!(taps.weights(), count);
    let x_plane = (tiles * mr + MOST_TAPS) * step;
    let (x, w) = (values::<T>(planes * x_plane + 8 * lanes, 1), values::<T>(planes * count * weight, 2));
    let (row, plane) = (width + 2, tiles * mr * (width + 2));
    let (bias, residual) = (values::<T>(planes, 3), values::<T>(planes * plane, 4));
    let mut y = vec![T::from_f64(UNTOUCHED); planes * plane];
    let (lo, hi) = (T::from_f64(-1.5), T::from_f64(2.5));
    let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(residual.as_slice()).into(), lo, hi };
    let input = DepthwiseInput {
        taps: &taps,
        groups: 0..groups.len(),
        w: &w,
        w_plane: count * weight,
        x: &x,
        x_plane,
        x_vector: lanes,
        planes,
        tiles,
    };
    kernel.run(&input, &mut Dest::from_slice(&mut y), &DepthwiseOutput { width, row, plane }, &epilogue);
    for (at, got) in y.iter().enumerate() {
        let (p, r, o) = (at / plane, at % plane / row, at % row);
        let what = format!("{kernel:?}, groups {groups:?}, plane {p}, row {r}, position {o}");
        if o >= width {
            assert_eq!(got.to_f64(), UNTOUCHED, "{what}: written");
            continue;
        }
        let (mut sum, mut index) = (bias[p].to_f64(), 0);
        for (g, &(taps, columns)) in groups.iter().enumerate() {
            for c in 0..columns {
                for k in 0..taps {
                    let x = x[p * x_plane + (r + k) * step + column(g, c) as usize + o].to_f64();
                    let lane = if weight == 1 { 0 } else { o % lanes };
                    sum += x * w[(p * count + index) * weight + lane].to_f64();
                    index += 1;
                }
            }
        }
        sum += if with_residual { residual[at].to_f64() } else { 0.0 };
        assert_close(*got, sum.clamp(-1.5, 2.5), count, &what);
    }
}

#[test]
fn tiles_straight_from_x_leave_padding_out() {
    fn check<T: Real>(family: &DepthwiseKernels<T>) {
        let mut strided = 0;
        for kernel in family.rows().iter().chain(family.narrow()) {
            for width in
                [1, 3, 4, 5, kernel.lanes(), 2 * kernel.lanes() - 1, 3 * kernel.lanes() + 2, 7 * kernel.lanes() - 2]
            {
                for (taps, pad) in [(1, 0), (2, 1), (3, 1), (5, 2), (7, 3), (3, 0), (5, 4)] {
                    if width + 2 * pad >= taps {
                        direct(kernel, (2, width), (taps, 1), pad, false);
                        strided += usize::from(direct(kernel, (2, width), (taps, 2), pad, false));
                    }
                }
            }
            // Three columns of their own have special code. They are also run with a residual and
            // a clamp.
            let lanes = kernel.lanes();
            for width in
                [4, 5, lanes + 1, 2 * lanes - 1, 2 * lanes, 2 * lanes + 1, 4 * lanes - 1, 4 * lanes, 6 * lanes + 3]
            {
                for pad in [0, 1, 2] {
                    for (stride, is_finished) in [(1, false), (1, true), (2, false), (2, true)] {
                        direct(kernel, (1, width), (3, stride), pad, is_finished);
                    }
                }
            }
        }
        // The portable tier has 16 registers and takes two for a vector, which is too few for
        // stride 2.
        let has_room = family.rows()[0].isa() != Isa::Portable;
        assert_eq!(strided > 0, has_room, "{family:?}: {strided} layers with stride 2");
    }
    for_each_family!(check);
}

/// Runs a square kernel with the same padding at all ends. The channels hold just the rows that
/// are needed. There may be a residual and a clamp. Returns false if the kernel does not serve.
fn direct<T: Real>(
    kernel: &DepthwiseKernel<T>,
    (channels, width): (usize, usize),
    (taps, stride): (usize, usize),
    pad: usize,
    is_finished: bool,
) -> bool {
    let (planes, tiles) = (2, 3);
    let rows = tiles * kernel.mr();
    let Some(height) = ((rows - 1) * stride + taps).checked_sub(2 * pad) else { return false };
    let columns: Vec<isize> = (0..taps).map(|c| c as isize - pad as isize).collect();
    let outputs = (width + 2 * pad - taps) / stride + 1;
    let vectors = outputs.div_ceil(kernel.lanes());
    let Some(table) = DirectTable::new(taps, stride, &columns, (channels, height * width), width)
        .filter(|t| t.serves(outputs, kernel))
    else {
        // A kernel refuses only where vectors in between reach beyond the row, and with stride 2.
        let is_beyond =
            (vectors - 1) * kernel.lanes() * stride + taps - pad > width + 1 || kernel.lanes() * stride < pad;
        assert!(is_beyond || stride == 2 || width < 4, "{kernel:?}: width {width}, {taps} taps refused");
        return false;
    };
    let weights = channels * taps * taps;
    let (x, w) = (values::<T>(planes * channels * height * width, 1), values::<T>(planes * weights, 2));
    let bias = values::<T>(planes, 3);
    let mut y = vec![T::from_f64(UNTOUCHED); planes * rows * outputs];
    let residual = values::<T>(y.len(), 4);
    let mut epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
    if is_finished {
        epilogue = Epilogue { residual: residual[..].into(), lo: T::ZERO, hi: T::ONE, ..epilogue };
    }
    let input = DirectInput {
        table: &table,
        row: -(pad as isize),
        height,
        w: &w,
        w_plane: weights,
        x: &x,
        x_plane: channels * height * width,
        planes,
        tiles,
    };
    let output = DepthwiseOutput { width: outputs, row: outputs, plane: rows * outputs };
    kernel.run_direct(&input, &mut Dest::from_slice(&mut y), &output, &epilogue);
    for (at, got) in y.iter().enumerate() {
        let (p, r, o) = (at / (rows * outputs), at / outputs % rows, at % outputs);
        let mut sum = bias[p].to_f64();
        for column in 0..channels * taps {
            for k in 0..taps {
                let channel = p * channels + column / taps;
                let (row, position) = (r * stride + k, o * stride + column % taps);
                let (row, position) = (row.checked_sub(pad), position.checked_sub(pad));
                let (Some(row), Some(position)) = (row, position) else { continue };
                if row < height && position < width {
                    let x = x[(channel * height + row) * width + position].to_f64();
                    // With stride 2, the weights of even rows come first.
                    let (even, index) = (taps.div_ceil(2), k / 2);
                    let w_at = match (stride, k % 2) {
                        (1, _) => column * taps + k,
                        (_, 0) => column * even + index,
                        _ => channels * taps * even + column * (taps - even) + index,
                    };
                    sum += x * w[p * weights + w_at].to_f64();
                }
            }
        }
        if is_finished {
            sum = (sum + residual[at].to_f64()).clamp(0.0, 1.0);
        }
        let what =
            format!("{kernel:?}, stride {stride}, pads {pad}, width {width}, {taps} taps, row {r}, position {o}");
        assert_close(*got, sum, weights, &what);
    }
    true
}

#[test]
fn channels_are_gathered_and_scattered() {
    fn check<T: Real>(family: &DepthwiseKernels<T>) {
        let lanes = family.lanes();
        for (channels, len) in [(1, 1), (lanes - 1, lanes + 3), (lanes, lanes), (lanes, 3 * lanes - 1)] {
            let (step, places) = (len + 4, 2 * len);
            let src = values::<T>(channels * step, 6);
            // Every other place, in descending order.
            let slots = Slots::new((0..len).map(|i| ((places - 1 - 2 * i) * lanes) as u32).collect());
            let mut dst = vec![T::from_f64(UNTOUCHED); places * lanes];
            family.gather(&src, step, channels, &slots, 0..len, &mut dst);
            for (at, got) in dst.iter().enumerate() {
                let (place, lane) = (at / lanes, at % lanes);
                let want = match (place % 2, lane < channels) {
                    (0, _) => UNTOUCHED,
                    (_, true) => src[lane * step + (places - 1 - place) / 2].to_f64(),
                    (_, false) => 0.0,
                };
                assert_eq!(got.to_f64(), want, "{family:?}, {channels} channels, place {place}, lane {lane}");
            }
            let (vectors, bias) = (values::<T>(len * lanes, 7), values::<T>(channels, 8));
            let ldy = len + 2;
            let residual = values::<T>(channels * ldy, 9);
            let mut y = vec![T::from_f64(UNTOUCHED); channels * ldy];
            let epilogue = Epilogue { bias: &bias, residual: residual[..].into(), lo: T::from_f64(-1.0), hi: T::ONE };
            family.scatter(&vectors, &mut Dest::from_slice(&mut y), ldy, &epilogue);
            for (at, got) in y.iter().enumerate() {
                let (c, i) = (at / ldy, at % ldy);
                if i >= len {
                    assert_eq!(got.to_f64(), UNTOUCHED);
                    continue;
                }
                let want = vectors[i * lanes + c].to_f64() + bias[c].to_f64() + residual[at].to_f64();
                assert_close(*got, want.clamp(-1.0, 1.0), 1, &format!("{family:?}, channel {c}, position {i}"));
            }
        }
    }
    for_each_family!(check);
}

#[test]
fn short_slices_are_refused() {
    let family = depthwise_kernels::<f32>(Isa::Portable).unwrap();
    let (kernel, lanes) = (&family.rows()[1], family.lanes());
    let taps = TapTable::new(&[(3, vec![0, 1, 2])], lanes + 2);
    let refused = |w: usize, x: usize, y: usize| {
        let call = || {
            let (w, x, mut y) = (vec![0.0; w], vec![0.0; x], vec![0.0; y]);
            let input = DepthwiseInput {
                taps: &taps,
                groups: 0..1,
                w: &w,
                w_plane: 0,
                x: &x,
                x_plane: 0,
                x_vector: lanes,
                planes: 1,
                tiles: 1,
            };
            let epilogue = Epilogue { bias: &[0.0], residual: Residual::NONE, lo: 0.0, hi: 1.0 };
            let output = DepthwiseOutput { width: lanes, row: lanes, plane: 0 };
            kernel.run(&input, &mut Dest::from_slice(&mut y), &output, &epilogue);
        };
        std::panic::catch_unwind(call).is_err()
    };
    let (x, y) = (3 * (lanes + 2) + 2 + lanes, 2 * lanes);
    assert!(!refused(9, x, y));
    assert!(refused(8, x, y));
    assert!(refused(9, x - 1, y));
    assert!(refused(9, x, y - 1));
}

#[test]
fn calls_that_would_read_beside_x_are_refused() {
    fn check<T: Real>(family: &DepthwiseKernels<T>) {
        for kernel in family.rows().iter().chain(family.narrow()) {
            let (mr, width, planes) = (kernel.mr(), kernel.lanes() + 3, 2);
            for (taps, stride) in [(3, 1), (7, 1), (3, 2), (5, 2)] {
                let reach = (taps / 2) as isize;
                let columns: Vec<isize> = (-reach..=reach).collect();
                let height = (mr - 1) * stride + 1;
                let outputs = (width - 1) / stride + 1;
                let table = DirectTable::new(taps, stride, &columns, (1, 0), width).unwrap();
                if !table.serves(outputs, kernel) {
                    continue;
                }
                // Whether a call is refused with these lengths of slices, this row seen first, and
                // this number of tiles.
                let refused = |[w, x, y, bias, residual]: [usize; 5], row: isize, tiles: usize| {
                    let call = || {
                        let [w, x, bias, residual] = [w, x, bias, residual].map(|len| vec![T::ZERO; len]);
                        let mut y = vec![T::ZERO; y];
                        let input = DirectInput {
                            table: &table,
                            row,
                            height,
                            w: &w,
                            w_plane: taps * taps,
                            x: &x,
                            x_plane: height * width,
                            planes,
                            tiles,
                        };
                        let epilogue = Epilogue { bias: &bias, residual: residual[..].into(), lo: T::ZERO, hi: T::ONE };
                        let output = DepthwiseOutput { width: outputs, row: outputs, plane: mr * outputs };
                        kernel.run_direct(&input, &mut Dest::from_slice(&mut y), &output, &epilogue);
                    };
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
                };
                let written = planes * mr * outputs;
                let lens = [planes * taps * taps, planes * height * width, written, planes, written];
                let what = format!("{kernel:?}, {taps} taps, stride {stride}");
                assert!(!refused(lens, -reach, 1), "{what}");
                for i in 0..lens.len() {
                    let mut short = lens;
                    short[i] -= 1;
                    assert!(refused(short, -reach, 1), "{what}: slice {i}");
                }
                // Rows beyond a column's reach before and behind X, and beyond the address space.
                assert!(refused(lens, -(taps as isize), 1) && refused(lens, height as isize, 1), "{what}");
                assert!(refused(lens, isize::MIN, 1) && refused(lens, isize::MAX, 1), "{what}");
                assert!(refused(lens, -reach, 2) && refused(lens, -reach, usize::MAX / mr), "{what}");
            }
        }
        // Kernels along channels do not read X.
        let table = DirectTable::new(3, 1, &[0], (1, 0), 8).unwrap();
        assert!(family.channels().iter().all(|kernel| !table.serves(8, kernel)));
    }
    for_each_family!(check);
}

//! Checks depthwise transposed convolution against loops, on every ISA, for every size of kernel
//! and crop, and for parts of the rows.

mod common;

use common::{Numbers, UNTOUCHED};
use convoke_kernels::{
    DepthwiseTransposedInput, DepthwiseTransposedKernel, DepthwiseTransposedOutput, Dest, Epilogue, Isa, Real,
    Residual, depthwise_transposed_kernels,
};

fn on_every_kernel<T: Real>(mut check: impl FnMut(&'static DepthwiseTransposedKernel<T>)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels = depthwise_transposed_kernels::<T>(isa);
        assert!(kernels.iter().all(|k| k.isa() == isa && k.name().starts_with(T::NAME)));
        assert!(!kernels.is_empty());
        kernels.iter().for_each(&mut check);
    }
}

/// One element of the output before the clamp, by the definition.
fn element<T: Real>(
    kernel: &DepthwiseTransposedKernel<T>,
    input: &DepthwiseTransposedInput<'_, T>,
    output: &DepthwiseTransposedOutput,
    [plane, row, column]: [usize; 3],
) -> f64 {
    let (kh, kw) = kernel.kernel();
    let mut sum = 0.0;
    for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
        // Before cropping, an input adds to its position times the stride, plus the tap.
        let place = |o: usize, k: usize, stride: usize, len: usize| {
            let reach = o.checked_sub(k)?;
            (reach % stride == 0 && reach / stride < len).then_some(reach / stride)
        };
        let y = place(output.row + row, i, kernel.stride(), input.height);
        let x = place(output.cropped + column, j, 2, input.width);
        if let Some((y, x)) = y.zip(x) {
            let at = plane * input.x_plane + y * input.width + x;
            sum += input.x[at].to_f64() * input.w[(plane * kh + i) * kw + j].to_f64();
        }
    }
    sum
}

fn check<T: Real>(widths: &[usize]) {
    let mut numbers = Numbers(7);
    on_every_kernel::<T>(|kernel| {
        let (kh, kw) = kernel.kernel();
        for (case, &width) in widths.iter().enumerate() {
            for cropped in 0..6 {
                let (planes, height) = (1 + case % 3, [1, 2, 5, 8][(case + cropped) % 4]);
                let natural = (height - 1) * kernel.stride() + kh;
                // Rows of the output: all of them, all but both ends, all and a tail that no
                // input reaches, and one in the middle.
                let (row, rows) =
                    [(0, natural), (1, natural.max(3) - 2), (0, natural + 2), (natural / 2, 1)][(case + cropped) % 4];
                let out_width = (2 * width + kw + [0, 1, 3][case % 3]).saturating_sub(2 + cropped + case % 2).max(1);
                // All slices end with the last row.
                let (x_plane, plane) = (height * width + 3, rows * out_width + 2);
                let x = numbers.vec::<T>((planes - 1) * x_plane + height * width);
                let (w, bias) = (numbers.vec::<T>(planes * kh * kw), numbers.vec::<T>(planes));
                let len = (planes - 1) * plane + rows * out_width;
                let residual = numbers.vec::<T>(len);
                let input = DepthwiseTransposedInput { planes, x: &x, x_plane, height, width, w: &w };
                let output = DepthwiseTransposedOutput { width: out_width, cropped, row, rows, plane };
                let infinite = (T::NEG_INFINITY, T::INFINITY);
                let bounds = (T::from_f64(-0.5), T::from_f64(0.75));
                for (residual, (lo, hi)) in [(None, infinite), (Some(&residual[..]), bounds)] {
                    let mut y = vec![T::from_f64(UNTOUCHED); len];
                    let epilogue = Epilogue { bias: &bias, residual: residual.into(), lo, hi };
                    kernel.run(&input, &mut Dest::from_slice(&mut y), &output, &epilogue);
                    for (i, y) in y.iter().enumerate() {
                        let (p, rest) = (i / plane, i % plane);
                        let want = if rest >= rows * out_width {
                            UNTOUCHED
                        } else {
                            let sum = element(kernel, &input, &output, [p, rest / out_width, rest % out_width]);
                            let sum = sum + bias[p].to_f64() + residual.map_or(0.0, |r| r[i].to_f64());
                            sum.clamp(lo.to_f64(), hi.to_f64())
                        };
                        let error = (y.to_f64() - want).abs();
                        assert!(
                            error <= 64.0 * T::UNIT_ROUNDOFF * want.abs().max(4.0),
                            "{kernel:?}, X {height}x{width}, {output:?}: element {i} is {y}, expected {want}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn sums_are_the_definition_s() {
    let widths: Vec<_> = (4..20).chain([31, 32, 33, 34, 47, 63, 64, 65]).collect();
    check::<f32>(&widths);
    check::<f64>(&widths);
}

#[test]
fn values_that_are_not_finite_stay_where_the_definition_has_them() {
    on_every_kernel::<f32>(|kernel| {
        let (kh, kw) = kernel.kernel();
        let (height, width) = (3, 40);
        let (w, bias) = (vec![1.0; kh * kw], [0.5]);
        let output = DepthwiseTransposedOutput { width: 2 * width, cropped: 1, row: 0, rows: kh, plane: 0 };
        for (at, value) in [(0, f32::NAN), (17, f32::INFINITY), (width + 39, f32::NAN)] {
            let mut x = vec![0.25; height * width];
            x[at] = value;
            let input = DepthwiseTransposedInput { planes: 1, x: &x, x_plane: 0, height, width, w: &w };
            let mut y = vec![0.0; kh * 2 * width];
            let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: f32::NEG_INFINITY, hi: f32::INFINITY };
            kernel.run(&input, &mut Dest::from_slice(&mut y), &output, &epilogue);
            for (i, y) in y.iter().enumerate() {
                let want = element(kernel, &input, &output, [0, i / (2 * width), i % (2 * width)]);
                assert_eq!(y.is_finite(), want.is_finite(), "{kernel:?}: element {i} is {y}, expected {want}");
            }
        }
    });
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let kernel = &depthwise_transposed_kernels::<f32>(Isa::Portable)[0];
    let x = [0.0; 40];
    let fits = DepthwiseTransposedInput { planes: 2, x: &x, x_plane: 20, height: 4, width: 5, w: &x[..8] };
    let whole = DepthwiseTransposedOutput { width: 10, cropped: 0, row: 0, rows: 8, plane: 80 };
    let refused = |change: fn(&mut DepthwiseTransposedInput<'_, f32>, &mut DepthwiseTransposedOutput),
                   planes: usize,
                   residual: usize| {
        let (mut input, mut output) = (fits, whole);
        change(&mut input, &mut output);
        let residual = vec![0.0; residual];
        let epilogue = Epilogue {
            bias: &[0.0; 2][..planes],
            residual: residual[..].into(),
            lo: f32::NEG_INFINITY,
            hi: f32::INFINITY,
        };
        let call = || kernel.run(&input, &mut Dest::from_slice(&mut [0.0; 160]), &output, &epilogue);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!refused(|_, _| (), 2, 160));
    assert!(refused(|_, _| (), 1, 160));
    assert!(refused(|_, _| (), 2, 159));
    assert!(refused(|input, _| input.planes = 3, 2, 160));
    assert!(refused(|input, _| input.planes = usize::MAX, 2, 160));
    assert!(refused(|input, _| input.x = &input.x[1..], 2, 160));
    assert!(refused(|input, _| input.x_plane = 21, 2, 160));
    assert!(refused(|input, _| input.height = 5, 2, 160));
    assert!(refused(|input, _| input.height = usize::MAX, 2, 160));
    assert!(refused(|input, _| input.width = 6, 2, 160));
    assert!(refused(|input, _| input.width = 3, 2, 160));
    assert!(refused(|input, _| input.w = &input.w[1..], 2, 160));
    assert!(refused(|_, output| output.rows = 9, 2, 160));
    assert!(refused(|_, output| output.rows = usize::MAX, 2, 160));
    assert!(refused(|_, output| output.width = 11, 2, 160));
    assert!(refused(|_, output| output.plane = 81, 2, 160));
    assert!(refused(|_, output| output.row = usize::MAX, 2, 160));
    assert!(refused(|_, output| output.cropped = usize::MAX, 2, 160));
    // Calls with nothing to do.
    assert!(!refused(|input, _| (input.planes, input.x) = (0, &[]), 2, 0));
    assert!(!refused(|_, output| output.rows = 0, 2, 0));
}

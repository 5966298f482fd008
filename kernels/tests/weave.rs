//! Weaving kernels against loops, on every ISA, for any number of phases and every length of runs.

use convoke_kernels::weave::{MOST_VECTORS, RowPick, Run, Strands, Sum};
use convoke_kernels::{Dest, Epilogue, Isa, Real, RowOffsets, WeaveKernel, weave_kernels};

/// What no kernel may write.
const UNTOUCHED: f64 = 99.0;

fn values<T: Real>(n: usize, seed: usize) -> Vec<T> {
    (0..n).map(|i| T::from_f64(((i * 37 + seed * 11) % 61) as f64 / 8.0 - 3.0)).collect()
}

fn on_every_kernel<T: Real>(mut check: impl FnMut(&'static WeaveKernel<T>)) {
    for isa in Isa::ALL {
        let kernels = weave_kernels::<T>(isa);
        assert!(kernels.iter().all(|k| k.isa() == isa && k.name().starts_with(T::NAME)));
        kernels.iter().for_each(&mut check);
    }
}

fn clamp<T: Real>(x: T, lo: T, hi: T) -> T {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// Checks a result: the runs' elements as `want` says, the others untouched.
fn compare<T: Real>(
    y: &[T],
    ldy: usize,
    runs: &[Run],
    rows: usize,
    context: &str,
    want: impl Fn(usize, usize, usize) -> T,
) {
    let mut expected = vec![T::from_f64(UNTOUCHED); y.len()];
    for c in 0..rows {
        for (r, run) in runs.iter().enumerate() {
            for i in 0..run.len {
                expected[c * ldy + run.at + i] = want(c, r, i);
            }
        }
    }
    for (i, (y, e)) in y.iter().zip(&expected).enumerate() {
        assert!((y.to_f64() - e.to_f64()).abs() <= 1e-3, "{context}: element {i} is {y}, expected {e}");
    }
}

fn weave<T: Real>() {
    on_every_kernel::<T>(|kernel| {
        for phases in 1..=9 {
            for len in (0..40).chain([63, 64, 65, 127, 128, 129, 150, 300]) {
                let (rows, nr) = (3, 2 + len);
                let slots: Vec<_> = (0..phases).map(|p| (p * 5 + 2) % phases).collect();
                let sums = values::<T>(phases * rows * nr, len);
                let runs = [
                    Run { from: 1, phase: 0, at: 2, len },
                    Run { from: 0, phase: len % phases, at: len + 5, len: len / 2 },
                ];
                let ldy = 2 * len + 7;
                let residual = values::<T>(rows * ldy, 5);
                let bias = values::<T>(rows, 9);
                for residual in [None, Some(&residual[..])] {
                    let (lo, hi) = (T::from_f64(-2.0), T::from_f64(2.5));
                    let mut y = vec![T::from_f64(UNTOUCHED); rows * ldy];
                    let strands = Strands { sums: &sums, slots: &slots, step: rows * nr, pitch: nr };
                    let finish = Epilogue { bias: &bias, residual, lo, hi };
                    kernel.run(&strands, &runs, &finish, &mut Dest::from_slice(&mut y), ldy);
                    let context = format!("{kernel:?}, {phases} phases, {len} elements");
                    compare(&y, ldy, &runs, rows, &context, |c, r, i| {
                        let element = runs[r].phase + i;
                        let at = slots[element % phases] * rows * nr + c * nr + runs[r].from + element / phases;
                        let added = residual.map_or(T::ZERO, |residual| residual[c * ldy + runs[r].at + i]);
                        clamp(sums[at] + bias[c] + added, lo, hi)
                    });
                }
            }
        }
    });
}

fn sum<T: Real>() {
    on_every_kernel::<T>(|kernel| {
        for phases in [1, 2, 4, 8] {
            for len in (0..40).chain([63, 64, 65, 127, 128, 129, 150, 300]) {
                // The last phase has no taps.
                let taps = |p: usize| if p + 1 == phases && phases > 1 { 0 } else { 1 + p % 3 };
                let koff: Vec<_> =
                    (0..phases).map(|p| RowOffsets::new((0..taps(p)).map(|k| (k * 7 + p) as u32).collect())).collect();
                let w: Vec<_> = (0..phases).map(|p| values::<T>(taps(p), p)).collect();
                let sums: Vec<_> = (0..phases).map(|p| Sum { w: &w[p], koff: koff[p].rows(0..taps(p)) }).collect();
                let x = values::<T>(40 + len + (MOST_VECTORS + 1) * 16, 3);
                let runs = [
                    Run { from: 1, phase: 0, at: 2, len },
                    Run { from: 9, phase: len % phases, at: len + 5, len: len / 2 },
                ];
                let residual = values::<T>(2 * len + 7, 5);
                for residual in [None, Some(&residual[..])] {
                    let (bias, lo, hi) = (T::from_f64(0.5), T::from_f64(-5.0), T::from_f64(6.0));
                    let mut y = vec![T::from_f64(UNTOUCHED); 2 * len + 7];
                    let finish = Epilogue { bias: &[bias], residual, lo, hi };
                    kernel.sum(&x, &sums, &runs, &finish, &mut Dest::from_slice(&mut y));
                    let context = format!("{kernel:?}, {phases} phases, {len} elements");
                    compare(&y, 0, &runs, 1, &context, |_, r, i| {
                        let element = runs[r].phase + i;
                        let p = element % phases;
                        let product = |k: usize| w[p][k] * x[k * 7 + p + runs[r].from + element / phases];
                        let total = (0..taps(p)).map(product).fold(bias, |sum, product| sum + product);
                        clamp(total + residual.map_or(T::ZERO, |residual| residual[runs[r].at + i]), lo, hi)
                    });
                }
            }
        }
    });
}

fn pick<T: Real>() {
    on_every_kernel::<T>(|kernel| {
        for stride in 1..=9 {
            for n in (0..40).chain([63, 64, 65, 130]) {
                // The source ends with the last element that is picked, the destination with the last row.
                let (from, behind, space) = (n % 4, (n * 7) % 37, 3);
                let span = if n == 0 { 0 } else { (n - 1) * stride + 1 };
                let src = values::<T>(5 + 2 * span, n);
                let row = |r: usize| {
                    let len = from + n + behind;
                    RowPick { src: 5 + r * span, dst: r * (len + space), len, live: [from, from + n] }
                };
                let rows = [row(0), row(1)];
                let mut dst = vec![T::from_f64(UNTOUCHED); rows[1].dst + rows[1].len];
                kernel.pick(&src, stride, n, &rows, &mut dst);
                let mut expected = vec![T::from_f64(UNTOUCHED); dst.len()];
                for row in rows {
                    for i in 0..row.len {
                        let is_live = (from..from + n).contains(&i);
                        expected[row.dst + i] = if is_live { src[row.src + (i - from) * stride] } else { T::ZERO };
                    }
                }
                assert!(dst == expected, "{kernel:?}, stride {stride}, {n} elements");
            }
        }
    });
}

#[test]
fn picked_rows_are_padded_and_nothing_else_is_written() {
    pick::<f32>();
    pick::<f64>();
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let kernel = &weave_kernels::<f32>(Isa::Portable)[0];
    let refused = |row: RowPick, stride: usize| {
        let call = || kernel.pick(&[0.0; 10], stride, 0, &[row], &mut [0.0; 8]);
        std::panic::catch_unwind(call).is_err()
    };
    let row = RowPick { src: 1, dst: 2, len: 6, live: [1, 4] };
    assert!(!refused(row, 4));
    assert!(refused(row, 5));
    assert!(refused(row, 0));
    assert!(refused(RowPick { dst: 3, ..row }, 1));
    assert!(refused(RowPick { live: [4, 1], ..row }, 1));
    assert!(refused(RowPick { live: [1, 7], ..row }, 1));
    assert!(refused(RowPick { src: usize::MAX, ..row }, 4));
}

#[test]
fn weaving_is_exact_for_any_phases() {
    weave::<f32>();
    weave::<f64>();
}

#[test]
fn sums_are_woven() {
    sum::<f32>();
    sum::<f64>();
}

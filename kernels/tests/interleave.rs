//! Checks interleaving kernels against loops, on every ISA, for any number of phases and every length
//! of runs.

use convoke_kernels::interleave::{Deinterleave, MOST_VECTORS, OutputRun, PhaseCopy, PhaseRows, SourceRow, Sum};
use convoke_kernels::{Dest, Epilogue, InterleaveKernel, Isa, Real, RowOffsets, interleave_kernels};

/// Marks elements that no kernel may write.
const UNTOUCHED: f64 = 99.0;

fn values<T: Real>(n: usize, seed: usize) -> Vec<T> {
    (0..n).map(|i| T::from_f64(((i * 37 + seed * 11) % 61) as f64 / 8.0 - 3.0)).collect()
}

fn on_every_kernel<T: Real>(mut check: impl FnMut(&'static InterleaveKernel<T>)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels = interleave_kernels::<T>(isa);
        assert!(kernels.iter().all(|k| k.isa() == isa && k.name().starts_with(T::NAME)));
        kernels.iter().for_each(&mut check);
    }
}

fn clamp<T: Real>(x: T, lo: T, hi: T) -> T {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// Checks a result: the runs' elements are as `want` says, and the others are untouched.
fn compare<T: Real>(
    y: &[T],
    ldy: usize,
    runs: &[OutputRun],
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

fn interleave<T: Real>() {
    on_every_kernel::<T>(|kernel| {
        for phases in 1..=9 {
            for len in (0..40).chain([63, 64, 65, 127, 128, 129, 150, 300]) {
                let (rows, nr) = (3, 2 + len);
                let slots: Vec<_> = (0..phases).map(|p| (p * 5 + 2) % phases).collect();
                let sums = values::<T>(phases * rows * nr, len);
                let runs = [
                    OutputRun { from: 1, phase: 0, at: 2, len },
                    OutputRun { from: 0, phase: len % phases, at: len + 5, len: len / 2 },
                ];
                let ldy = 2 * len + 7;
                let residual = values::<T>(rows * ldy, 5);
                let bias = values::<T>(rows, 9);
                for residual in [None, Some(&residual[..])] {
                    let (lo, hi) = (T::from_f64(-2.0), T::from_f64(2.5));
                    let mut y = vec![T::from_f64(UNTOUCHED); rows * ldy];
                    let phase_rows = PhaseRows { sums: &sums, slots: &slots, step: rows * nr, pitch: nr };
                    let finish = Epilogue { bias: &bias, residual: residual.into(), lo, hi };
                    kernel.run(&phase_rows, &runs, &finish, &mut Dest::from_slice(&mut y), ldy);
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
                    OutputRun { from: 1, phase: 0, at: 2, len },
                    OutputRun { from: 9, phase: len % phases, at: len + 5, len: len / 2 },
                ];
                let residual = values::<T>(2 * len + 7, 5);
                for residual in [None, Some(&residual[..])] {
                    let (bias, lo, hi) = (T::from_f64(0.5), T::from_f64(-5.0), T::from_f64(6.0));
                    let mut y = vec![T::from_f64(UNTOUCHED); 2 * len + 7];
                    let finish = Epilogue { bias: &[bias], residual: residual.into(), lo, hi };
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

/// Checks that the phases of some rows and planes go where they should, with zeros where rows
/// have no elements, and that nothing else is written.
fn deinterleave<T: Real>() {
    on_every_kernel::<T>(|kernel| {
        for (stride, chosen) in
            (1..=20).flat_map(|stride| [0, 1, 2, 3].map(|chosen| (stride, chosen))).chain([(33, 3), (64, 0)])
        {
            // One phase, all phases, every other phase, and all but the first.
            let offsets: Vec<_> = match chosen {
                0 => vec![stride - 1],
                1 => (0..stride).collect(),
                2 => (0..stride).step_by(2).collect(),
                _ => (stride.min(2) - 1..stride).collect(),
            };
            for (case, width) in (0..20).chain([31, 32, 33, 64, 130]).enumerate() {
                let first = [0, -1, -3, 2, -40][case % 5];
                let len = (width / stride + [0, 1, 2, 19][case % 4]).max(1);
                let (space, planes) = (3, 1 + case % 3);
                // The source ends with the last row, the destination with the last phase.
                let rows = [
                    SourceRow { src: Some(5 + width), dst: 0 },
                    SourceRow { src: None, dst: len + space },
                    SourceRow { src: Some(5), dst: 2 * (len + space) },
                ];
                let phase_pitch = 3 * (len + space);
                let phase = |(i, offset): (usize, &usize)| PhaseCopy {
                    offset: *offset,
                    dst: (offsets.len() - 1 - i) * phase_pitch,
                };
                let phases: Vec<_> = offsets.iter().enumerate().map(phase).collect();
                let (src_pitch, dst_pitch) = (2 * width + 1, phases.len() * phase_pitch + 2);
                let src = values::<T>((planes - 1) * src_pitch + 5 + 2 * width, case);
                let mut dst = vec![T::from_f64(UNTOUCHED); planes * dst_pitch - 2 - space];
                let copy = Deinterleave {
                    planes,
                    src_pitch,
                    dst_pitch,
                    rows: &rows,
                    width,
                    first,
                    stride,
                    phases: &phases,
                    len,
                    prefetch_distance: case % 2 * 1000,
                };
                kernel.deinterleave(&src, &copy, &mut dst);
                let mut expected = vec![T::from_f64(UNTOUCHED); dst.len()];
                for plane in 0..planes {
                    for (row, phase) in rows.iter().flat_map(|row| phases.iter().map(move |phase| (row, phase))) {
                        for i in 0..len {
                            let position = usize::try_from(first + (phase.offset + i * stride) as isize).ok();
                            let place = row.src.zip(position.filter(|position| *position < width));
                            expected[plane * dst_pitch + row.dst + phase.dst + i] =
                                place.map_or(T::ZERO, |(row, position)| src[plane * src_pitch + row + position]);
                        }
                    }
                }
                assert!(dst == expected, "{kernel:?}, {copy:?}");
            }
        }
    });
}

#[test]
fn deinterleaved_phases_are_padded_and_nothing_else_is_written() {
    deinterleave::<f32>();
    deinterleave::<f64>();
}

#[test]
fn deinterleaves_that_do_not_fit_are_refused() {
    let kernel = &interleave_kernels::<f32>(Isa::Portable)[0];
    let row = SourceRow { src: Some(1), dst: 2 };
    let refused = |row: SourceRow, change: fn(&mut Deinterleave<'_>)| {
        let phases = [PhaseCopy { offset: 0, dst: 0 }, PhaseCopy { offset: 1, dst: 7 }];
        let mut copy = Deinterleave {
            planes: 2,
            src_pitch: 10,
            dst_pitch: 16,
            rows: &[row],
            width: 8,
            first: -1,
            stride: 2,
            phases: &phases,
            len: 5,
            prefetch_distance: 0,
        };
        change(&mut copy);
        let call = || kernel.deinterleave(&[0.0; 19], &copy, &mut [0.0; 30]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!refused(row, |_| ()));
    assert!(refused(SourceRow { src: Some(2), ..row }, |_| ()));
    assert!(refused(SourceRow { src: Some(usize::MAX), ..row }, |_| ()));
    assert!(refused(SourceRow { dst: 3, ..row }, |_| ()));
    assert!(refused(SourceRow { dst: usize::MAX, ..row }, |_| ()));
    assert!(refused(row, |copy| copy.planes = 3));
    assert!(refused(row, |copy| copy.planes = usize::MAX));
    assert!(refused(row, |copy| copy.dst_pitch = 17));
    assert!(refused(row, |copy| copy.src_pitch = 11));
    assert!(refused(row, |copy| copy.width = 9));
    assert!(refused(row, |copy| copy.len = 6));
    assert!(refused(row, |copy| copy.stride = 0));
    // The second phase does not belong to this stride.
    assert!(refused(row, |copy| copy.stride = 1));
    assert!(refused(row, |copy| copy.stride = usize::MAX));
    assert!(refused(row, |copy| copy.first = isize::MIN));
    assert!(refused(row, |copy| copy.first = isize::MAX));
    assert!(refused(row, |copy| copy.phases = &[PhaseCopy { offset: 1, dst: 0 }, PhaseCopy { offset: 0, dst: 0 }]));
    // Calls with nothing to do.
    assert!(!refused(SourceRow { src: Some(99), ..row }, |copy| copy.planes = 0));
    // Rows that are all padding have no place in the source.
    assert!(!refused(SourceRow { src: None, ..row }, |copy| copy.src_pitch = usize::MAX));
}

#[test]
fn interleaving_is_exact_for_any_phases() {
    interleave::<f32>();
    interleave::<f64>();
}

#[test]
fn sums_are_interleaved() {
    sum::<f32>();
    sum::<f64>();
}

#[test]
fn prefetching_writes_nothing() {
    on_every_kernel::<f32>(|kernel| {
        let runs = [OutputRun { from: 0, phase: 0, at: 60, len: 40 }, OutputRun { from: 0, phase: 0, at: 9, len: 40 }];
        let mut y = [UNTOUCHED as f32; 300];
        kernel.prefetch(&runs, 3, &Dest::from_slice(&mut y), 100);
        assert_eq!(y, [UNTOUCHED as f32; 300]);
    });
}

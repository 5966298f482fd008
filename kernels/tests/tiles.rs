//! Checks every micro-kernel of the table, on every ISA of this CPU, against loops by its
//! definition.

mod common;

use common::{Numbers, UNTOUCHED};
use convoke_kernels::activation::Activation;
use convoke_kernels::{
    ChannelKernel, Column, Dest, Epilogue, Isa, Prefetch, Real, Residual, RowOffsets, SpatialKernel, StoreMap,
    activation_kernel, channel_kernels, spatial_kernels,
};

/// Steps of k: none, one, an odd number, and many.
const DEPTHS: [usize; 4] = [0, 1, 7, 130];

fn assert_close<T: Real>(got: T, want: f64, magnitude: f64, depth: usize, what: &str) {
    let bound = (depth + 4) as f64 * T::UNIT_ROUNDOFF * (magnitude + 1.0);
    assert!((got.to_f64() - want).abs() <= bound, "{what}: {got} instead of {want}, bound {bound}");
}

/// The product of a packed panel of A and rows of B, added to what the tile held before; and the
/// sum of the products' magnitudes.
fn product(terms: impl Iterator<Item = (f64, f64)>, before: f64) -> (f64, f64) {
    terms.fold((before, before.abs()), |(sum, magnitude), (a, b)| (sum + a * b, magnitude + (a * b).abs()))
}

#[test]
fn every_available_isa_has_kernels_of_all_kinds_and_types() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert!(!spatial_kernels::<f32>(isa).is_empty() && !spatial_kernels::<f64>(isa).is_empty(), "{isa}");
        assert!(!channel_kernels::<f32>(isa).is_empty() && !channel_kernels::<f64>(isa).is_empty(), "{isa}");
    }
}

#[test]
fn names_say_type_operation_and_tile() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for k in spatial_kernels::<f32>(isa) {
            assert_eq!(k.name(), format!("f32_gemm_{}x{}", k.mr(), k.nr()));
        }
        for k in channel_kernels::<f64>(isa) {
            assert_eq!(k.name(), format!("f64_channel_gemm_{}x{}", k.nr(), k.mr()));
        }
    }
}

#[test]
fn spatial_tiles_are_products() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in spatial_kernels::<T>(isa) {
                for depth in DEPTHS {
                    for accumulate in [false, true] {
                        spatial_partial(kernel, depth, accumulate);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn spatial_partial<T: Real>(kernel: &SpatialKernel<T>, depth: usize, accumulate: bool) {
    let (mr, nr, mut numbers) = (kernel.mr(), kernel.nr(), Numbers(7));
    // Rows that overlap and are in no order, as those of shifted views.
    let offsets: Vec<u32> = (0..depth as u32).map(|k| (k * 37 + 5) % 101).collect();
    let (a, b): (Vec<T>, Vec<T>) = (numbers.vec(depth * mr), numbers.vec(101 + nr));
    // Without accumulation the tile's old values are not read.
    let before: Vec<T> = if accumulate { numbers.vec(mr * nr) } else { vec![T::from_f64(f64::NAN); mr * nr] };
    let (mut tile, rows) = (before.clone(), RowOffsets::new(offsets.clone()));
    kernel.partial(&a, &b, rows.rows(0..depth), Prefetch::rows(&a, 3), &mut tile, accumulate);
    let bias: Vec<T> = numbers.vec(mr);
    let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::from_f64(-0.75), hi: T::from_f64(1.25) };
    let mut finished = before.clone();
    kernel.finish_tile(&a, &b, rows.rows(0..depth), Prefetch::rows(&a, 3), &mut finished, accumulate, &epilogue);
    for (at, (got, finished)) in tile.iter().zip(&finished).enumerate() {
        let (i, j) = (at / nr, at % nr);
        let terms = (0..depth).map(|k| (a[k * mr + i].to_f64(), b[offsets[k] as usize + j].to_f64()));
        let (want, magnitude) = product(terms, if accumulate { before[at].to_f64() } else { 0.0 });
        let what = format!("{kernel:?} depth {depth} at {i},{j}");
        assert_close(*got, want, magnitude, depth, &what);
        let clamped = (want + bias[i].to_f64()).clamp(-0.75, 1.25);
        assert_close(*finished, clamped, magnitude + 2.0, depth, &format!("{what}, finished"));
    }
}

#[test]
#[should_panic(expected = "no residual")]
fn a_tile_that_is_finished_in_place_has_no_residual() {
    let kernel = &spatial_kernels::<f32>(Isa::Portable)[0];
    let (mut tile, residual) = (vec![0.0; kernel.mr() * kernel.nr()], vec![0.0; kernel.mr() * kernel.nr()]);
    let epilogue = Epilogue { bias: &[0.0; 14], residual: Some(residual.as_slice()).into(), lo: 0.0, hi: 1.0 };
    let none = RowOffsets::new(Vec::new());
    kernel.finish_tile(&[], &[], none.rows(0..0), Prefetch::NONE, &mut tile, false, &epilogue);
}

#[test]
#[should_panic(expected = "too few biases")]
fn a_tile_that_is_finished_in_place_has_a_bias_for_each_row() {
    let kernel = &spatial_kernels::<f32>(Isa::Portable)[0];
    let mut tile = vec![0.0; kernel.mr() * kernel.nr()];
    let epilogue = Epilogue { bias: &[], residual: Residual::NONE, lo: 0.0, hi: 1.0 };
    let none = RowOffsets::new(Vec::new());
    kernel.finish_tile(&[], &[], none.rows(0..0), Prefetch::NONE, &mut tile, false, &epilogue);
}

#[test]
fn spatial_tiles_are_finished_where_the_map_says_and_nowhere_else() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in spatial_kernels::<T>(isa) {
                for with_residual in [false, true] {
                    for gaps in [false, true] {
                        spatial_finish(kernel, with_residual, gaps);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn spatial_finish<T: Real>(kernel: &SpatialKernel<T>, with_residual: bool, gaps: bool) {
    let (mr, nr, lanes, depth) = (kernel.mr(), kernel.nr(), kernel.lanes(), 5);
    let mut numbers = Numbers(11);
    // Every third lane is garbage, or none.
    let masks: Vec<u32> = (0..kernel.nrv())
        .map(|j| {
            (0..lanes).filter(|lane| !(gaps && (j * lanes + lane) % 3 == 1)).fold(0, |mask, lane| mask | 1 << lane)
        })
        .collect();
    let mut offset = 2;
    let columns: Vec<Column> = masks
        .iter()
        .map(|&mask| {
            let column = Column { offset, mask };
            offset += mask.count_ones() as usize;
            column
        })
        .collect();
    let (ldy, map) = (offset + 3, StoreMap::new(columns.clone(), lanes));
    let (a, b, bias): (Vec<T>, Vec<T>, Vec<T>) = (numbers.vec(depth * mr), numbers.vec(depth * nr), numbers.vec(mr));
    let residual: Vec<T> = numbers.vec(mr * ldy);
    let mut y = vec![T::from_f64(UNTOUCHED); mr * ldy];
    let mut tile = vec![T::ZERO; mr * nr];
    let (lo, hi) = (T::from_f64(-0.75), T::from_f64(1.25));
    let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(residual.as_slice()).into(), lo, hi };
    let rows = RowOffsets::packed(depth, nr);
    kernel.activate_panels(
        1,
        &a,
        &b,
        rows.rows(0..depth),
        Prefetch::lines(&b),
        &mut tile,
        false,
        &mut Dest::from_slice(&mut y),
        ldy,
        &map,
        0,
        &epilogue,
        None,
    );
    let mut expected = vec![None; mr * ldy];
    for i in 0..mr {
        for (j, column) in columns.iter().enumerate() {
            let live = (0..lanes).filter(|lane| column.mask >> lane & 1 == 1);
            for (to, lane) in live.enumerate() {
                let terms = (0..depth).map(|k| (a[k * mr + i].to_f64(), b[k * nr + j * lanes + lane].to_f64()));
                let at = i * ldy + column.offset + to;
                let (sum, magnitude) = product(terms, bias[i].to_f64());
                let sum = sum + if with_residual { residual[at].to_f64() } else { 0.0 };
                expected[at] = Some((sum.clamp(-0.75, 1.25), magnitude + 1.0));
            }
        }
    }
    for (at, (got, expected)) in y.iter().zip(expected).enumerate() {
        match expected {
            Some((want, magnitude)) => assert_close(*got, want, magnitude, depth, &format!("{kernel:?} at {at}")),
            None => assert_eq!(got.to_f64(), UNTOUCHED, "{kernel:?} wrote {at}"),
        }
    }
}

#[test]
fn pairs_of_spatial_tiles_are_interleaved_where_the_places_say_and_nowhere_else() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in spatial_kernels::<T>(isa).iter().filter(|kernel| kernel.mr() % 2 == 0) {
                for depth in DEPTHS {
                    for accumulate in [false, true] {
                        spatial_pairs(kernel, depth, accumulate);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn spatial_pairs<T: Real>(kernel: &SpatialKernel<T>, depth: usize, accumulate: bool) {
    let (mr, nr, lanes, pairs) = (kernel.mr(), kernel.nr(), kernel.lanes(), kernel.mr() / 2);
    let mut numbers = Numbers(13);
    // Vectors that are in no order, with gaps between them, and not aligned.
    let places: Vec<usize> = (0..kernel.nrv()).map(|j| 3 + (kernel.nrv() - 1 - j) * (2 * lanes + 1)).collect();
    let ldy = 3 + kernel.nrv() * (2 * lanes + 1) + 2;
    let (a, b): (Vec<T>, Vec<T>) = (numbers.vec(depth * mr), numbers.vec(depth * nr));
    let (bias, before): (Vec<T>, Vec<T>) = (numbers.vec(pairs), numbers.vec(mr * nr));
    let mut tile = if accumulate { before.clone() } else { vec![T::from_f64(f64::NAN); mr * nr] };
    let mut y = vec![T::from_f64(UNTOUCHED); pairs * ldy];
    let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::from_f64(-0.75), hi: T::from_f64(1.25) };
    let rows = RowOffsets::packed(depth, nr);
    let mut dest = Dest::from_slice(&mut y);
    kernel.finish_pairs(
        &a,
        &b,
        rows.rows(0..depth),
        Prefetch::NONE,
        &mut tile,
        accumulate,
        &mut dest,
        ldy,
        &places,
        &epilogue,
    );
    let mut expected = vec![None; pairs * ldy];
    for (i, j, lane) in (0..mr).flat_map(|i| (0..nr).map(move |column| (i, column / lanes, column % lanes))) {
        let (pair, phase, column) = (i % pairs, i / pairs, j * lanes + lane);
        let terms = (0..depth).map(|k| (a[k * mr + i].to_f64(), b[k * nr + column].to_f64()));
        let old = if accumulate { before[i * nr + column].to_f64() } else { 0.0 };
        let (sum, magnitude) = product(terms, old + bias[pair].to_f64());
        expected[pair * ldy + places[j] + 2 * lane + phase] = Some((sum.clamp(-0.75, 1.25), magnitude + 2.0));
    }
    for (at, (got, expected)) in y.iter().zip(expected).enumerate() {
        let what = format!("{kernel:?} depth {depth} at {at}");
        match expected {
            Some((want, magnitude)) => assert_close(*got, want, magnitude, depth, &what),
            None => assert_eq!(got.to_f64(), UNTOUCHED, "wrote {what}"),
        }
    }
}

#[test]
fn pairs_that_do_not_fit_are_refused() {
    let kernels = spatial_kernels::<f32>(Isa::Portable);
    let refused = |mr: usize, place: usize, residual: bool, why: &str| {
        let kernel =
            kernels.iter().find(|kernel| kernel.mr() == mr && kernel.nrv() == 1).expect("a kernel of one vector");
        let (lanes, bias, mut y) = (kernel.lanes(), vec![0.0; mr], vec![0.0; 2 * kernel.lanes() + 1]);
        let other = y.clone();
        let epilogue = Epilogue { bias: &bias, residual: residual.then_some(&other[..]).into(), lo: 0.0, hi: 1.0 };
        let (a, b, mut tile, rows) =
            (vec![1.0; mr], vec![1.0; lanes], vec![0.0; mr * lanes], RowOffsets::packed(1, lanes));
        let run = std::panic::AssertUnwindSafe(|| {
            let mut dest = Dest::from_slice(&mut y);
            let rows = rows.rows(0..1);
            kernel.finish_pairs(&a, &b, rows, Prefetch::NONE, &mut tile, false, &mut dest, 0, &[place], &epilogue);
        });
        let panic = std::panic::catch_unwind(run).expect_err("refused");
        assert!(panic.downcast_ref::<&str>().is_some_and(|message| message.contains(why)), "{why}");
    };
    refused(3, 0, false, "rows come in pairs");
    refused(2, 2, false, "the destination is too short");
    refused(2, usize::MAX - 3, false, "the destination is too short");
    refused(2, 0, true, "no residual");
}

/// Each slice of a call in turn is one element too short.
#[test]
fn slices_too_short_for_spatial_tiles_are_refused() {
    let kernel = spatial_kernels::<f32>(Isa::Portable).iter().find(|kernel| kernel.mr() == 3).expect("a kernel");
    let (mr, nr, depth, ldy) = (kernel.mr(), kernel.nr(), 4, kernel.nr() + 3);
    let map = StoreMap::contiguous(nr, kernel.lanes());
    let lengths = [depth * mr, depth * nr, mr * nr, 2 * ldy + nr, mr, 2 * ldy + nr];
    let call = |lengths: [usize; 6]| {
        let [a, b, mut tile, mut y, bias, residual] = lengths.map(|len| vec![1.0; len]);
        let rows = RowOffsets::packed(depth, nr);
        let epilogue = Epilogue { bias: &bias, residual: residual[..].into(), lo: 0.0, hi: 9.0 };
        let (dest, koff, prefetch) = (&mut Dest::from_slice(&mut y), rows.rows(0..depth), Prefetch::NONE);
        kernel.activate_panels(1, &a, &b, koff, prefetch, &mut tile, false, dest, ldy, &map, 0, &epilogue, None);
    };
    call(lengths);
    let reasons = [
        "the panels of A are too short",
        "the rows of B end beyond its slice",
        "the tile is too short",
        "the destination is too short",
        "too few biases",
        "the residual is too short",
    ];
    for (i, reason) in reasons.into_iter().enumerate() {
        let mut lengths = lengths;
        lengths[i] -= 1;
        let panic = std::panic::catch_unwind(|| call(lengths)).expect_err(reason);
        let message = panic.downcast_ref::<&str>().expect("a message");
        assert!(message.contains(reason), "{message}, not {reason}");
    }
}

#[test]
fn channel_tiles_are_products_and_are_finished_as_rows_of_pixels() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in channel_kernels::<T>(isa) {
                for depth in DEPTHS {
                    for channels in [1, kernel.nr() / 2 + 1, kernel.nr()] {
                        channel(kernel, depth, channels, depth % 2 == 1);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn channel<T: Real>(kernel: &ChannelKernel<T>, depth: usize, channels: usize, with_residual: bool) {
    let (mr, nr, mut numbers) = (kernel.mr(), kernel.nr(), Numbers(5));
    let offsets: Vec<u32> = (0..depth as u32).map(|k| (k * 37 + 5) % 101).collect();
    let (rows, end) = (RowOffsets::new(offsets.clone()), offsets.iter().max().map_or(0, |max| *max as usize + 1));
    let x: Vec<T> = numbers.vec(end + mr - 1);
    let w: Vec<T> = numbers.vec(depth * nr);
    let what = |i: usize, c: usize| format!("{kernel:?} depth {depth}, pixel {i}, channel {c}");
    let sum = |i: usize, c: usize, before: f64| {
        product((0..depth).map(|k| (x[offsets[k] as usize + i].to_f64(), w[k * nr + c].to_f64())), before)
    };
    let before: Vec<T> = numbers.vec(mr * nr);
    for accumulate in [false, true] {
        let partial = |prefetch: Prefetch| {
            let mut tile = if accumulate { before.clone() } else { vec![T::from_f64(f64::NAN); mr * nr] };
            kernel.partial(&x, rows.rows(0..depth), &w, prefetch, &mut tile, accumulate);
            tile
        };
        let tile = partial(Prefetch::NONE);
        for (at, got) in tile.iter().enumerate() {
            let (want, magnitude) = sum(at / nr, at % nr, if accumulate { before[at].to_f64() } else { 0.0 });
            assert_close(*got, want, magnitude, depth, &what(at / nr, at % nr));
        }
        // Each way of prefetching has a loop of its own.
        for prefetch in [Prefetch::STREAM, Prefetch::lines(&x), Prefetch::pairs(&w)] {
            assert_eq!(partial(prefetch), tile, "{kernel:?} depth {depth}, {prefetch:?}");
        }
    }
    let ldy = mr + 2;
    let (bias, residual): (Vec<T>, Vec<T>) = (numbers.vec(channels), numbers.vec(channels * ldy));
    let mut y = vec![T::from_f64(UNTOUCHED); channels * ldy];
    let (lo, hi) = (T::from_f64(-0.75), T::from_f64(1.25));
    let epilogue = Epilogue { bias: &bias, residual: with_residual.then_some(residual.as_slice()).into(), lo, hi };
    let mut tile = before.clone();
    kernel.finish(
        &x,
        rows.rows(0..depth),
        &w,
        Prefetch::lines(&x),
        &mut tile,
        true,
        &mut Dest::from_slice(&mut y),
        ldy,
        channels,
        &epilogue,
    );
    for (at, got) in y.iter().enumerate() {
        let (c, i) = (at / ldy, at % ldy);
        if i >= mr {
            assert_eq!(got.to_f64(), UNTOUCHED, "{} wrote {at}", what(i, c));
            continue;
        }
        let (want, magnitude) = sum(i, c, before[i * nr + c].to_f64());
        let want = want + bias[c].to_f64() + if with_residual { residual[at].to_f64() } else { 0.0 };
        assert_close(*got, want.clamp(-0.75, 1.25), magnitude + 2.0, depth, &what(i, c));
    }
}

#[test]
fn panels_in_one_call_have_the_sums_of_calls_for_each() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in channel_kernels::<T>(isa).iter().filter(|kernel| kernel.mr() == 1) {
                for (depth, panels) in DEPTHS.iter().flat_map(|depth| (0..6).map(move |panels| (*depth, panels))) {
                    let (nr, mut numbers) = (kernel.nr(), Numbers(6));
                    let rows = RowOffsets::new((0..depth as u32).map(|k| (k * 37 + 5) % 101).collect());
                    let (x, w): (Vec<T>, Vec<T>) = (numbers.vec(101), numbers.vec(panels * depth * nr));
                    for accumulate in [false, true] {
                        let mut sums: Vec<T> = numbers.vec(panels * nr + 1);
                        let mut wanted = sums.clone();
                        for (panel, tile) in wanted[..panels * nr].chunks_exact_mut(nr).enumerate() {
                            let w = &w[panel * depth * nr..];
                            kernel.partial(&x, rows.rows(0..depth), w, Prefetch::NONE, tile, accumulate);
                        }
                        kernel.panels(panels, &x, rows.rows(0..depth), &w, &mut sums, accumulate);
                        assert_eq!(sums, wanted, "{kernel:?} depth {depth}, {panels} panels");
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn panels_in_one_call_are_refused_where_a_slice_is_too_short() {
    let kernels = channel_kernels::<f32>(Isa::Portable);
    let refused = |mr: usize, panels: usize, w: usize, tile: usize, why: &str| {
        let kernel = kernels.iter().find(|kernel| kernel.mr() == mr).expect("a tile of so many pixels");
        let (rows, nr) = (RowOffsets::packed(3, mr), kernel.nr());
        let (x, w, mut tile) = (vec![0.0; 3 * mr], vec![0.0; 3 * nr * w], vec![0.0; mr * nr * tile]);
        let run = std::panic::AssertUnwindSafe(|| kernel.panels(panels, &x, rows.rows(0..3), &w, &mut tile, false));
        let panic = std::panic::catch_unwind(run).expect_err("refused");
        assert!(panic.downcast_ref::<&str>().is_some_and(|message| message.contains(why)), "{why}");
    };
    refused(2, 1, 1, 1, "a kernel of one pixel");
    refused(1, 3, 2, 3, "the panels of W are too short");
    refused(1, 3, 3, 2, "the tile is too short");
    refused(1, usize::MAX, 3, 3, "too short");
}

#[test]
fn panels_are_finished_in_one_call_as_by_calls_for_each() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in spatial_kernels::<T>(isa) {
                for (depth, panels) in DEPTHS.iter().flat_map(|depth| (0..6).map(move |panels| (*depth, panels))) {
                    for (with_residual, gaps) in [(false, false), (false, true), (true, false), (true, true)] {
                        spatial_panels(kernel, depth, panels, with_residual, gaps);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn spatial_panels<T: Real>(kernel: &SpatialKernel<T>, depth: usize, panels: usize, with_residual: bool, gaps: bool) {
    let (mr, nr, lanes, mut numbers) = (kernel.mr(), kernel.nr(), kernel.lanes(), Numbers(12));
    // A block of columns in the middle of a row, or rows of one column less than a vector.
    let live = if gaps { lanes - usize::from(lanes > 1) } else { lanes };
    let column = |j: usize| Column { offset: 3 + j * live, mask: ((1_u64 << live) - 1) as u32 };
    let map = StoreMap::new((0..kernel.nrv() + 2).map(column).collect(), lanes);
    let (ldy, rows) = (map.end() + 2, panels * mr);
    let (a, b, bias): (Vec<T>, Vec<T>, Vec<T>) =
        (numbers.vec(rows * depth), numbers.vec(depth * nr), numbers.vec(rows));
    // One row more than needed, because there is a destination even without panels.
    let residual: Vec<T> = numbers.vec(rows * ldy + map.end());
    let (lo, hi) = (T::from_f64(-0.75), T::from_f64(1.25));
    let koff = RowOffsets::packed(depth, nr);
    let run = |y: &mut [T], panels: usize, panel: usize| {
        let row = panel * mr;
        let residual = with_residual.then_some(&residual[row * ldy..]);
        let epilogue = Epilogue { bias: &bias[row..], residual: residual.into(), lo, hi };
        let mut y = Dest::from_slice(&mut y[row * ldy..]);
        let (koff, prefetch, tile) = (koff.rows(0..depth), Prefetch::lines(&b), &mut vec![T::ZERO; mr * nr]);
        let a = &a[row * depth..];
        kernel.activate_panels(panels, a, &b, koff, prefetch, tile, false, &mut y, ldy, &map, 1, &epilogue, None);
    };
    let untouched = vec![T::from_f64(UNTOUCHED); rows * ldy + map.end()];
    let (mut together, mut each) = (untouched.clone(), untouched.clone());
    run(&mut together, panels, 0);
    for panel in 0..panels {
        run(&mut each, 1, panel);
    }
    assert_eq!(together, each, "{kernel:?} depth {depth}, {panels} panels");
    let written = together.iter().zip(&untouched).filter(|(got, before)| got != before).count();
    assert_eq!(written, rows * kernel.nrv() * live, "{kernel:?} depth {depth}, {panels} panels");
}

#[test]
fn panels_are_activated_as_what_was_stored_would_be() {
    fn check<T: Real>() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for kernel in spatial_kernels::<T>(isa) {
                for (with_residual, gaps) in [(false, false), (false, true), (true, false), (true, true)] {
                    for activation in [Activation::LeakyRelu(T::from_f64(0.25)), Activation::Silu] {
                        activated_panels(kernel, with_residual, gaps, activation);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
}

fn activated_panels<T: Real>(kernel: &SpatialKernel<T>, with_residual: bool, gaps: bool, activation: Activation<T>) {
    let (mr, nr, lanes, panels, depth) = (kernel.mr(), kernel.nr(), kernel.lanes(), 2, 5);
    let live = if gaps { lanes - usize::from(lanes > 1) } else { lanes };
    let column = |j: usize| Column { offset: 1 + j * live, mask: ((1_u64 << live) - 1) as u32 };
    let map = StoreMap::new((0..kernel.nrv()).map(column).collect(), lanes);
    let (ldy, rows, koff, mut numbers) = (map.end() + 2, panels * mr, RowOffsets::packed(depth, nr), Numbers(14));
    let (a, b, bias): (Vec<T>, Vec<T>, Vec<T>) =
        (numbers.vec(rows * depth), numbers.vec(depth * nr), numbers.vec(rows));
    let residual: Vec<T> = numbers.vec(rows * ldy);
    let residual = with_residual.then_some(&residual[..]);
    // Bounds that would be seen: the activation takes their place.
    let run = |activation: Option<Activation<T>>, (lo, hi): (T, T)| {
        let activation = activation.map(|activation| activation_kernel(kernel.isa(), activation));
        let epilogue = Epilogue { bias: &bias, residual: residual.into(), lo, hi };
        let (mut y, mut tile) = (vec![T::from_f64(UNTOUCHED); rows * ldy], vec![T::ZERO; mr * nr]);
        let (koff, dest) = (koff.rows(0..depth), &mut Dest::from_slice(&mut y));
        let (prefetch, tile) = (Prefetch::NONE, &mut tile);
        kernel.activate_panels(panels, &a, &b, koff, prefetch, tile, false, dest, ldy, &map, 0, &epilogue, activation);
        y
    };
    let got = run(Some(activation), (T::ZERO, T::ZERO));
    let mut want = run(None, (T::NEG_INFINITY, T::INFINITY));
    for value in want.iter_mut().filter(|value| value.to_f64() != UNTOUCHED) {
        *value = activation_kernel(kernel.isa(), activation).apply(*value);
    }
    assert_eq!(got, want, "{kernel:?} {activation:?} residual {with_residual} gaps {gaps}");
}

#[test]
fn panels_that_do_not_fit_are_refused() {
    let kernel = &spatial_kernels::<f32>(Isa::Portable)[0];
    let (mr, nr) = (kernel.mr(), kernel.nr());
    let refused = |panels: usize, [a, y, bias, residual]: [usize; 4]| {
        let (a, b, mut y) = (vec![0.0; a], vec![0.0; 2 * nr], vec![0.0; y]);
        let (bias, residual) = (vec![0.0; bias], vec![0.0; residual]);
        let epilogue = Epilogue { bias: &bias, residual: residual[..].into(), lo: 0.0, hi: 1.0 };
        let (koff, map, mut tile) =
            (RowOffsets::packed(2, nr), StoreMap::contiguous(nr, kernel.lanes()), vec![0.0; mr * nr]);
        let (koff, mut y) = (koff.rows(0..2), Dest::from_slice(&mut y));
        let call = std::panic::AssertUnwindSafe(|| {
            let (prefetch, tile, y) = (Prefetch::NONE, &mut tile, &mut y);
            kernel.activate_panels(panels, &a, &b, koff, prefetch, tile, false, y, nr, &map, 0, &epilogue, None);
        });
        let panic = std::panic::catch_unwind(call).err();
        panic.map(|panic| *panic.downcast_ref::<&str>().expect("a message without values"))
    };
    let rows = 3 * mr;
    let fits = [2 * rows, rows * nr, rows, rows * nr];
    assert_eq!(refused(3, fits), None);
    let rules = [
        "the panels of A are too short",
        "the destination is too short",
        "too few biases",
        "the residual is too short",
    ];
    for (short, rule) in rules.into_iter().enumerate() {
        let mut sizes = fits;
        sizes[short] -= 1;
        assert_eq!(refused(3, sizes), Some(rule));
        assert!(refused(4, fits).is_some() && refused(usize::MAX, fits).is_some());
    }
}

#[test]
fn nan_passes_the_clamp() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for kernel in spatial_kernels::<f32>(isa) {
            let (mr, nr) = (kernel.mr(), kernel.nr());
            let (a, b) = (vec![f32::NAN; mr], vec![1.0; nr]);
            for residual in [None, Some(vec![1.0; mr * nr])] {
                let mut y = vec![0.0; mr * nr];
                let bias = vec![0.0; mr];
                let epilogue = Epilogue { bias: &bias, residual: residual.as_deref().into(), lo: 0.0, hi: 6.0 };
                let (rows, map) = (RowOffsets::packed(1, nr), StoreMap::contiguous(nr, kernel.lanes()));
                let mut dest = Dest::from_slice(&mut y);
                let (koff, prefetch, tile) = (rows.rows(0..1), Prefetch::NONE, &mut vec![0.0; mr * nr]);
                kernel.activate_panels(1, &a, &b, koff, prefetch, tile, false, &mut dest, nr, &map, 0, &epilogue, None);
                assert!(y.iter().all(|y| y.is_nan()), "{kernel:?}");
            }
        }
    }
}

#[test]
fn short_slices_are_refused() {
    let kernel = &spatial_kernels::<f32>(Isa::Portable)[0];
    let (mr, nr) = (kernel.mr(), kernel.nr());
    let rows = RowOffsets::packed(3, nr);
    let refused = |a: usize, b: usize, tile: usize| {
        let call = || {
            kernel.partial(&vec![0.0; a], &vec![0.0; b], rows.rows(0..3), Prefetch::NONE, &mut vec![0.0; tile], false);
        };
        std::panic::catch_unwind(call).is_err()
    };
    assert!(!refused(3 * mr, 3 * nr, mr * nr));
    assert!(refused(3 * mr - 1, 3 * nr, mr * nr));
    assert!(refused(3 * mr, 3 * nr - 1, mr * nr));
    assert!(refused(3 * mr, 3 * nr, mr * nr - 1));
}

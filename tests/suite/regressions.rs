//! One test for each bug that was found, with a description of the bug.

use crate::common::operands::bits;
use crate::common::{Combination, Context, Layer, Operands, Oracle, is_short, isas, layer};
use convoke::Layout::{ChannelsFirst, ChannelsLast};
use convoke::{Activation, Algorithm, Conv, ConvTranspose, ErrorKind, Planner, Run, Workspace, f16};
use convoke_tools::data::Scalar;
use convoke_tools::{has_foreign_blas, named};

/// Asserts that every algorithm that accepts the layer is right on it, in every element type.
fn check(layer: &Layer) {
    fn check_type<T: Scalar>(layer: &Layer) {
        let geometry = layer.geometry();
        let operands = Operands::<T>::uniform(&geometry, 1).with_bias(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            assert_eq!(
                oracle.check(combination.algorithm, Activation::None, &operands.run(&plan)),
                Ok(()),
                "{combination}: {layer}"
            );
        }
    }
    for_each_type!(check_type(layer));
}

/// The same of a layer with sizes so large that algorithms may refuse it, though not all of them.
#[cfg(target_pointer_width = "64")]
fn check_huge(layer: &Layer) {
    let geometry = layer.geometry();
    let operands = Operands::<f32>::uniform(&geometry, 1).with_bias(&geometry);
    let oracle = Oracle::new(&geometry, &operands);
    let forced = Combination::all().map(Combination::planner);
    let plans = forced.filter_map(|planner| planner.plan(layer.operator.clone(), &layer.x_shape).ok());
    for plan in plans.chain([Planner::new().plan(layer.operator.clone(), &layer.x_shape).unwrap()]) {
        let _context = Context(|| format!("{layer}\n{plan:?}"));
        assert_eq!(oracle.check(plan.algorithm(), Activation::None, &operands.run(&plan)), Ok(()));
    }
}

/// Without channels B has no rows. The native GEMM sliced it at the tile's first column all the
/// same.
#[test]
fn layers_without_input_channels_and_more_than_one_vector_of_columns() {
    check(&layer(Conv::new([3, 0, 1]), [1, 0, 9]));
    check(&layer(Conv::new([3, 0, 3, 3]).pads([1, 1, 1, 1]), [2, 0, 40, 41]));
    check(&layer(ConvTranspose::new([0, 3, 3, 3]), [1, 0, 8, 8]));
}

/// Pointwise used the offsets of a full block of K for the smaller last block. 257 channels are
/// blocks of 129 and 128.
#[test]
fn pointwise_with_a_last_block_of_channels_that_is_smaller_than_the_others() {
    check(&layer(Conv::new([17, 257, 1, 1]), [1, 257, 7, 7]));
    check(&layer(Conv::new([40, 769, 1]), [2, 769, 50]));
}

/// The native BLAS chose the tile that weights are packed for by the width of the product. So
/// plans for other input sizes rejected the weights.
#[test]
fn weights_packed_for_a_small_product_fit_a_wide_one() {
    let planner = Planner::new().algorithm(named("im2col:native"));
    let conv = Conv::new([20, 6, 3, 3]).pads([1, 1, 1, 1]);
    let small = planner.plan::<f32>(conv.clone(), &[1, 6, 7, 9]).unwrap();
    let packed = small.pack(&vec![1.0; 20 * 6 * 9], None).unwrap();
    for width in 1..100 {
        let plan = Planner::new().packed_for(&packed).plan::<f32>(conv.clone(), &[1, 6, 30, width]);
        assert!(plan.is_ok(), "width {width}: {plan:?}");
    }
}

/// col2im's tiles of positions began at its chunk of the output. Plans for another number of
/// threads have other chunks, and summed in another order.
#[test]
fn col2im_sums_in_one_order_whatever_its_chunks() {
    let conv = ConvTranspose::new([24, 11, 3, 3]);
    let geometry = conv.geometry(&[1, 24, 31, 29]).unwrap();
    let operands = Operands::<f32>::uniform(&geometry, 2);
    let run = |threads: usize| {
        let planner = Planner::new().algorithm(named("col2im:native")).threads(threads);
        operands.run(&planner.plan::<f32>(conv.clone(), &[1, 24, 31, 29]).unwrap())
    };
    assert!((2..=8).all(|threads| run(threads) == run(1)));
}

/// A one-shot call allocated Y, and touched it, before it checked X. A wrong shape of terabytes
/// ended the process instead of being reported.
#[test]
#[cfg(target_pointer_width = "64")]
fn one_shot_calls_check_x_before_they_allocate() {
    let conv = Conv::new([1, 1, 1]).pads([1 << 40, 0]);
    let error = convoke::conv(&conv, &[1, 1, 2], &[1.0_f32], &[1.0], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BufferLength);
}

/// Without input channels, a tile's columns began beyond the end of B if tails of several widths
/// followed one another.
#[test]
fn no_channels_at_any_width() {
    for positions in 1..=400 {
        for m in 1..=3 {
            for algorithm in [named("gemm"), named("pixel-gemm")] {
                let plan =
                    Planner::new().algorithm(algorithm).plan::<f32>(Conv::new([m, 0, 1]), &[1, 0, positions]).unwrap();
                let packed = plan.pack(&[], Some(&vec![1.5; m])).unwrap();
                let mut y = vec![f32::NAN; m * positions];
                plan.run(Run::new(&[], &packed, &mut y)).unwrap();
                assert!(y.iter().all(|y| *y == 1.5), "{algorithm}, {m} channels, {positions} positions");
            }
        }
    }
}

/// Planning kept a number for each panel of A, and allocated terabytes for a W of 2^40 rows.
#[test]
#[cfg(target_pointer_width = "64")]
fn absurd_channel_counts_are_planned_or_refused_at_once() {
    for m in [1_usize << 20, 1 << 28, 1 << 31, 1 << 40] {
        let begin = std::time::Instant::now();
        let _ = Planner::new().plan::<f32>(Conv::new([m, 1, 1]), &[1, 1, 1]);
        assert!(begin.elapsed().as_millis() < 500, "{m} output channels took {:?}", begin.elapsed());
    }
}

/// The workspace of a GEMM with 2^57 channels overflowed to a few bytes, which is below every
/// limit.
#[test]
#[cfg(target_pointer_width = "64")]
fn absurd_workspaces_exceed_the_limit() {
    for algorithm in Algorithm::all().filter(|a| *a != named("naive")) {
        let planner = Planner::new().algorithm(algorithm).workspace_limit(1_000_000);
        assert!(planner.plan::<f64>(Conv::new([1, 1 << 57, 1]), &[1, 1 << 57, 1]).is_err(), "{algorithm}");
        assert!(planner.plan::<f64>(ConvTranspose::new([1 << 57, 1, 1]), &[1, 1 << 57, 1]).is_err(), "{algorithm}");
    }
}

/// With dilations that make planes 2^64 - 1 elements long, their length overflowed to 16
/// elements. Only one tap meets input, so that no plane is needed.
#[test]
#[cfg(target_pointer_width = "64")]
fn planes_of_wrapping_size_are_refused_or_not_needed() {
    let far = 6_148_914_691_236_517_204;
    let conv = Conv::new([1, 1, 2, 2]).dilations([2, far]).pads([2, far, 0, 0]);
    for algorithm in [named("gemm"), named("pixel-gemm")] {
        let plan = Planner::new().algorithm(algorithm).plan::<f32>(conv.clone(), &[1, 1, 1, 1]);
        let Ok(plan) = plan else { continue };
        let packed = plan.pack(&[1.0, 2.0, 3.0, 4.0], None).unwrap();
        let mut y = [0.0];
        plan.run(Run::new(&[2.0], &packed, &mut y).workspace(&mut Workspace::for_plan(&plan).unwrap())).unwrap();
        assert_eq!(y, [8.0], "{algorithm}");
    }
}

/// Twice a thread count near 2^63 overflowed to zero, and the work was divided by it.
#[test]
fn plans_for_absurd_thread_counts_are_made() {
    for threads in [Planner::MOST_THREADS, Planner::MOST_THREADS - 1] {
        let free = Planner::new().threads(threads);
        // An algorithm may need more than each thread's share of the workspace.
        for planner in Algorithm::all().map(|algorithm| free.clone().algorithm(algorithm)) {
            let _ = planner.plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 9, 9]);
            let _ = planner.plan::<f32>(ConvTranspose::new([8, 8, 2, 2]), &[1, 8, 9, 9]);
        }
        let conv = free.plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 9, 9]).unwrap();
        let transposed = free.plan::<f32>(ConvTranspose::new([8, 8, 2, 2]), &[1, 8, 9, 9]).unwrap();
        assert_eq!([conv.geometry().output_len(), transposed.geometry().output_len()], [648, 800]);
    }
}

/// The products of spatial sizes overflowed if an axis had no positions.
#[test]
#[cfg(target_pointer_width = "64")]
fn huge_axes_beside_an_empty_one() {
    let (huge, mut runs) = (1 << 40, 0);
    for algorithm in Algorithm::all() {
        let conv = Conv::new([2, 1, 1, 1, 1]).pads([1, 0, 0, 1, 0, 0]);
        // Two images are too large to be stored with their padding, and are only planned. An
        // empty image is run.
        let _ = Planner::new().algorithm(algorithm).plan::<f32>(conv.clone(), &[1, 1, 0, huge, huge]);
        let Ok(plan) = Planner::new().algorithm(algorithm).plan::<f32>(conv, &[0, 1, 0, huge, 1]) else { continue };
        let packed = plan.pack(&[1.0, 1.0], None).unwrap();
        plan.run(Run::new(&[], &packed, &mut [])).unwrap();
        runs += 1;
    }
    assert!(runs > 0);
}

/// With zero channels, a kernel beyond the address space was accepted.
#[test]
#[cfg(target_pointer_width = "64")]
fn absurd_kernels_beside_zero_channels_are_refused() {
    let conv = Conv::new([4, 0, 1 << 62]).pads([1 << 61, 1 << 61]);
    assert_eq!(conv.geometry(&[1, 0, 1]).unwrap_err().kind(), ErrorKind::Overflow);
}

/// The layout of packed weights was passed to an algorithm that another call had chosen, and that
/// read another layout from it.
#[test]
fn packed_for_followed_by_another_algorithm() {
    let conv = Conv::new([4, 4, 1, 1]);
    for packed_by in [named("naive"), named("gemm"), named("pixel-gemm")] {
        let plan = Planner::new().algorithm(packed_by).plan::<f32>(conv.clone(), &[1, 4, 5, 5]).unwrap();
        let packed = plan.pack(&[0.5; 16], None).unwrap();
        for algorithm in Algorithm::all() {
            let _ = Planner::new().packed_for(&packed).algorithm(algorithm).plan::<f32>(conv.clone(), &[1, 4, 6, 6]);
        }
    }
}

/// The naive lowering rounded to f32 before it rounded to the 16-bit type.
#[test]
fn naive_rounds_once() {
    // 1 + 2^-11 + 2^-40 is just above the middle of two f16. Rounded to f32 first, it is the
    // middle, and would be rounded down.
    let (x, w) = (
        [f16::from_f64(1.0), f16::from_f64(2.0_f64.powi(-11)), f16::from_f64(2.0_f64.powi(-20))],
        [1.0, 1.0, 2.0_f64.powi(-20)],
    );
    let w = w.map(f16::from_f64);
    let plan = Planner::new().algorithm(named("naive")).plan::<f16>(Conv::new([1, 3, 1]), &[1, 3, 1]).unwrap();
    let packed = plan.pack(&w, None).unwrap();
    let mut y = [f16::ZERO];
    plan.run(Run::new(&x, &packed, &mut y)).unwrap();
    assert_eq!(y[0].to_f64(), 1.0 + 2.0_f64.powi(-10));
}

/// The phase of each tap was searched for among the phases of earlier taps. That took hours for
/// strides of millions.
#[test]
#[cfg(target_pointer_width = "64")]
fn phases_of_long_strides_are_not_searched_for() {
    let kernel = if is_short() { 50_000_usize } else { 200_000 };
    let begin = std::time::Instant::now();
    let conv = Conv::new([1, 1, kernel]).strides([kernel as i64]);
    let _ = Planner::new().algorithm(named("gemm")).plan::<f32>(conv, &[1, 1, 2 * kernel]).unwrap();
    // The search would take 20 seconds. With a quarter of the taps it would
    // take about as long on an emulator.
    assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
}

/// The phases of taps repeat after stride / gcd(stride, dilation) taps. Here they repeat within
/// the kernel, on one axis or on both.
#[test]
fn phases_that_come_back_within_the_kernel() {
    check(&layer(Conv::new([3, 2, 7, 5]).strides([6, 4]).dilations([4, 6]), [1, 2, 40, 43]));
    check(&layer(Conv::new([3, 2, 7, 5]).strides([4, 3]).dilations([4, 2]), [1, 2, 40, 43]));
}

/// col2im held at least one whole position of the outermost axis. Now rows and planes that are
/// too large are cut along the next axis.
#[test]
fn col2im_with_slices_too_large_for_one_chunk() {
    for layer in [
        layer(ConvTranspose::new([2, 64, 1, 2, 2]).strides([1, 2, 1]), [1, 2, 2, 2, 8200]),
        layer(ConvTranspose::new([1, 64, 1, 2, 2]).strides([1, 1, 2]).pads([0, 1, 0, 0, 0, 1]), [1, 1, 2, 2, 8300]),
    ] {
        let geometry = layer.geometry();
        let operands = Operands::<f32>::uniform(&geometry, 3).with_bias(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        let mut expected = None;
        for threads in [1, 4] {
            let planner = Planner::new().algorithm(named("col2im:native")).threads(threads);
            let plan = planner.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
            assert!(plan.workspace_bytes() < threads * (8 << 20), "{plan:?}");
            let y = operands.run(&plan);
            assert_eq!(oracle.check(plan.algorithm(), Activation::None, &y), Ok(()), "{layer}\n{plan:?}");
            assert!(*expected.get_or_insert_with(|| y.clone()) == y, "{layer}: {threads} threads");
        }
    }
}

/// If no input reached a chunk of the output, col2im computed with a position outside of X. It was
/// beyond X by a dilation, and multiplying it by the positions of the other axes overflowed.
#[test]
#[cfg(target_pointer_width = "64")]
fn col2im_with_chunks_that_no_input_reaches() {
    let far = 1_i64 << 60;
    let conv = ConvTranspose::new([1, 1, 1, 1]).dilations([2 * far, 1]).output_padding([2 * far - 1, 0]).pads([
        far,
        0,
        far - 1,
        0,
    ]);
    for name in ["col2im:native", "col2im:gemm", "col2im:matrixmultiply"] {
        let planner = Planner::new().algorithm(named(name));
        let plan = match planner.plan::<f32>(conv.clone(), &[1, 1, 1, 1024]) {
            Ok(plan) => plan,
            Err(error) => {
                assert!(name != "col2im:native" && error.to_string().contains("Cargo feature"), "{error}");
                continue;
            }
        };
        assert_eq!(plan.geometry().output_shape(), [1, 1, 1, 1024]);
        let packed = plan.pack(&[2.0], Some(&[0.5])).unwrap();
        let mut y = vec![f32::NAN; 1024];
        plan.run(Run::new(&[1.0; 1024], &packed, &mut y)).unwrap();
        assert!(y.iter().all(|y| *y == 0.5), "{name}");
    }
}

/// Only Winograd considered the workspace limit. The others sized chunks and tiles by the caches
/// alone. If those did not fit, they were dropped, and ordinary layers were left to the naive
/// loops.
#[test]
fn a_moderate_workspace_limit_does_not_lead_to_the_naive_loops() {
    const LIMIT: usize = 200_000;
    let layers = [
        layer(Conv::new([128, 128, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 128, 56, 56]),
        layer(ConvTranspose::new([512, 256, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 512, 8, 8]),
        layer(ConvTranspose::new([128, 64, 2, 2]).strides([2, 2]), [1, 128, 64, 64]),
        layer(Conv::new([96, 1, 3, 3]).group(96).pads([1, 1, 1, 1]), [1, 96, 112, 112]),
        layer(Conv::new([256, 256, 1, 1]), [1, 256, 56, 56]),
    ];
    for layer in &layers {
        for isa in isas() {
            let planner = Planner::new().isa(isa).workspace_limit(LIMIT);
            let plan = planner.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
            assert_ne!(plan.algorithm(), named("naive"), "{isa}: {layer}: {}", plan.explain());
            assert!(plan.workspace_bytes() <= LIMIT, "{isa}: {layer}");
        }
    }
}

/// With less scratch, an algorithm still sums every element in the same order. Winograd took other
/// tiles under a limit, and depthwise could take vectors along the other axis.
#[test]
fn a_workspace_limit_does_not_change_a_bit() {
    /// The number of plans that took less than they wanted.
    fn check_type<T: Scalar>(layer: &Layer) -> usize {
        let operands = Operands::<T>::uniform(&layer.geometry(), 7);
        // The foreign backends promise nothing, and the naive loops have no scratch.
        let is_held = |c: &Combination| c.algorithm != named("naive") && !has_foreign_blas(c.algorithm);
        let parts: &[usize] = if is_short() { &[3] } else { &[2, 3, 5, 8] };
        let mut smaller = 0;
        for combination in Combination::all().filter(is_held) {
            let Some(free) = combination.plan::<T>(layer, |planner| planner) else { continue };
            let y = bits(&operands.run(&free));
            for limit in parts.iter().map(|part| free.workspace_bytes() / part) {
                let planner = combination.planner().workspace_limit(limit);
                let Ok(plan) = planner.plan::<T>(layer.operator.clone(), &layer.x_shape) else { continue };
                assert!(plan.workspace_bytes() <= limit, "{combination}: {layer}");
                assert!(bits(&operands.run(&plan)) == y, "{combination}: {layer}: {limit} bytes");
                smaller += usize::from(limit > 0);
            }
        }
        smaller
    }

    let layers = [
        layer(Conv::new([40, 70, 3, 3]).strides([2, 1]).pads([1, 1, 1, 1]), [1, 70, 41, 57]),
        layer(Conv::new([24, 300, 1, 1]), [2, 300, 30, 31]),
        layer(Conv::new([48, 2, 3, 3]).group(24).pads([1, 1, 1, 1]), [1, 48, 60, 61]),
        // Wide channels that are widened as a whole from 16-bit types.
        layer(Conv::new([32, 1, 5, 5]).group(32).pads([2, 2, 2, 2]), [1, 32, 90, 9]),
        // The tile that is best without a limit has blocks of many bytes.
        layer(Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]), [1, 64, 57, 60]),
        layer(ConvTranspose::new([70, 24, 3, 3]).strides([2, 2]), [1, 70, 21, 33]),
        // Images are the pixels of these layers. With a limit, fewer images are taken at a time.
        layer(Conv::new([600, 1000, 1, 1]), [12, 1000, 1, 1]),
        layer(ConvTranspose::new([1000, 70, 3, 3]), [12, 1000, 1, 1]),
    ];
    let mut smaller = layers.iter().map(check_type::<f32>).sum::<usize>();
    if !is_short() {
        smaller += layers.iter().map(check_type::<f16>).sum::<usize>();
    }
    assert!(smaller > 0, "no plan took less than it wanted");
}

/// The verdict on the pick said that it was not picked, and all estimates of small layers were
/// printed as 0 or 1 us.
#[test]
fn verdicts_tell_small_estimates_apart_and_have_nothing_against_the_pick() {
    let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 4, 4]).unwrap();
    let verdicts = plan.explain().verdicts();
    for verdict in verdicts {
        let is_pick = verdict.algorithm == plan.algorithm();
        assert_eq!(verdict.reason.is_empty(), is_pick, "{verdict:?}");
        if let Some(cost) = verdict.cost.filter(|cost| !is_pick && (100.0..999.0).contains(cost)) {
            assert!(verdict.reason.starts_with(&format!("estimated at {cost:.0} ns, the pick at ")), "{verdict:?}");
        }
    }
    assert!(verdicts.iter().any(|v| v.reason.contains(" ns,")), "a small layer");
}

/// Tiles that share vectors multiplied rows of padding, which other tiles leave out. So the sign
/// of a zero depended on how rows are shared among threads.
#[test]
fn zeros_keep_their_sign_however_rows_are_shared() {
    let conv = Conv::new([1, 1, 5, 5]).pads([2, 2, 2, 2]);
    // At the top row, the taps on X give -0 for an input of 0, and the other taps would give 0.
    let w: Vec<_> = (0..25).map(|tap| if tap < 10 { 1.0 } else { -1.0 }).collect();
    let x = vec![0.0_f32; 56 * 40];
    for isa in isas() {
        let mut expected: Option<Vec<u64>> = None;
        for threads in [1, 2, 4, 100] {
            let planner = Planner::new().isa(isa).algorithm(named("depthwise")).threads(threads);
            let plan = planner.plan::<f32>(conv.clone(), &[1, 1, 56, 40]).unwrap();
            let packed = plan.pack(&w, Some(&[-0.0])).unwrap();
            let mut workspace = Workspace::for_plan(&plan).unwrap();
            let mut y = vec![1.0; x.len()];
            plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace)).unwrap();
            assert!(y[..40].iter().all(|y| y.is_sign_negative()), "{isa}: {plan:?}");
            let y = bits(&y);
            assert_eq!(*expected.get_or_insert_with(|| y.clone()), y, "{isa}, {threads} threads");
        }
    }
}

/// Rows of pixels of 3-D layers are counted over all outer axes. Where the padded output exceeds
/// the input, the next row can begin before the one before it, whose distance was subtracted
/// nevertheless.
#[test]
fn rows_that_go_backwards_are_not_paired() {
    let dilated = Conv::new([1, 3, 2, 1, 2]).dilations([3, 1, 4]).pads([2, 1, 0, 2, 1, 3]);
    let plain = Conv::new([1, 26, 1, 1, 1]).pads([0, 1, 0, 1, 1, 0]);
    for (conv, shape) in [(dilated, [1, 3, 2, 1, 4]), (plain, [2, 26, 2, 1, 2])] {
        check(&layer(conv, shape));
    }
}

/// A kernel of one tap lets any dilation pass. `depthwise` multiplied it by the rows of a tile.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_huge_dilation_of_a_single_tap() {
    for (stride, dilation) in [(2, 1_i64 << 62), (3, 6 << 60), (1, i64::MAX), (2, i64::MAX - 1)] {
        check(&layer(Conv::new([2, 1, 1]).strides([stride]).dilations([dilation]), [1, 1, 5]));
        check(&layer(Conv::new([2, 1, 1, 1]).strides([stride, 1]).dilations([dilation, 1]), [1, 1, 5, 3]));
        check(&layer(ConvTranspose::new([1, 2, 1]).strides([stride]).dilations([dilation]), [1, 1, 5]));
    }
}

/// Kernels that copy phases of a stride refused positions near the end of the address space, though
/// plans had accepted the planes.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_stride_near_the_end_of_the_address_space() {
    let one = Conv::new([4, 16, 3, 3]).pads([1, 1, 1, 1]).strides([1, i64::MAX - 1]);
    let two = Conv::new([4, 16, 3, 3]).pads([1, 1 << 62, 1, 1]).strides([1, 1 << 62]);
    // Chunks that begin far along the last axis.
    let chunks = Conv::new([4, 16, 3, 3]).pads([1, 1, 1, 1 << 62]).strides([1, 1 << 62]);
    for conv in [one, two, chunks] {
        check_huge(&layer(conv, [1, 16, 40, 3]));
    }
    let many = Conv::new([4, 16, 3]).pads([0, 1023 << 53]).strides([1 << 53]);
    check_huge(&layer(many, [1, 16, 3]));
}

/// Estimates and tables of these layers overflowed, which panicked where overflows are checked.
#[test]
#[cfg(target_pointer_width = "64")]
fn estimates_of_huge_layers_do_not_overflow() {
    check_huge(&layer(Conv::new([1, 1, 2, 1]).dilations([1 << 62, 1]).pads([1 << 62, 0, 0, 0]), [1, 1, 5, 3]));
    check_huge(&layer(Conv::new([1, 1, 1, 1]).strides([1 << 62, 1]), [1, 1, 5, 64]));
    let transposed = ConvTranspose::new([0, 8, 2, 7]).group(64).strides([2, 16_384]).dilations([3, 1]).pads([
        3,
        8,
        0,
        4_611_686_018_427_371_518,
    ]);
    let conv = Conv::new([32, 8, 7, 2, 16, 5]).group(2).strides([2, 3, 1 << 54, 3]).dilations([1, 3, 1, 2]).pads([
        0,
        0,
        36_028_797_018_963_981,
        5,
        65_539,
        824_633_720_834,
        0,
        4,
    ]);
    for algorithm in Algorithm::all() {
        // They are too large to be run.
        let planner = Planner::new().algorithm(algorithm);
        let _ = planner.plan::<f32>(transposed.clone(), &[1 << 40, 0, 8, 1 << 48]);
        let _ = planner.plan::<f32>(conv.clone(), &[1, 16, 2, 0, 3, 0]);
    }
    let _plan = Planner::new().plan::<f32>(transposed, &[1 << 40, 0, 8, 1 << 48]).unwrap();
    let _plan = Planner::new().plan::<f32>(conv, &[1, 16, 2, 0, 3, 0]).unwrap();
    // Threads that share out the weights would each pack all of X. The second layer exceeds 32 bits.
    let pointwise = |threads: usize| Planner::new().algorithm(named("gemm")).threads(threads);
    let _ = pointwise(4096).plan::<f16>(Conv::new([1 << 17, 1 << 31, 1]), &[1, 1 << 31, 1 << 21]);
    let _plan = pointwise(17).plan::<f16>(Conv::new([128, 1024, 1, 1]), &[1, 1024, 500, 500]).unwrap();
}

/// Winograd tried an even number of images for each thread that was more than a block may have.
#[test]
fn winograd_tries_no_more_images_than_a_block_has() {
    let padded = Conv::new([1, 16, 2, 6]).dilations([1, 31]).pads([0, 128, 0, 128]);
    check(&layer(padded, [1, 16, 2, 1000]));
    let grouped = Conv::new([6, 4, 2, 2]).group(3).pads([1, 3, 1, 1]);
    check(&layer(grouped, [15, 12, 2, 38]));
}

/// The naive loops, which a tiny workspace limit leaves alone, tried every tap for every output. Of
/// a long stride's taps nearly all contribute nothing.
#[test]
fn the_naive_loops_take_the_time_of_products_that_exist() {
    let begin = std::time::Instant::now();
    let layer = layer(ConvTranspose::new([1, 1, 30_000]).strides([30_000]), [1, 1, 4]);
    let plan = Planner::new().algorithm(named("naive")).plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    let operands = Operands::uniform(plan.geometry(), 71);
    let y = operands.run(&plan);
    assert_eq!((y[0], y[119_999]), (operands.x[0] * operands.w[0], operands.x[3] * operands.w[29_999]));
    // The taps of the first axis were tried where the second one had none.
    let layer = self::layer(ConvTranspose::new([1, 1, 1000, 1]).strides([1, 100]), [1, 1, 1000, 4]);
    let plan = Planner::new().algorithm(named("naive")).plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    let operands = Operands::uniform(plan.geometry(), 72);
    let y = operands.run(&plan);
    assert_eq!((y[0], y[1]), (operands.x[0] * operands.w[0], 0.0));
    // Emulated, it takes longer than these 2 seconds on a busy machine.
    let most = if is_short() { 20 } else { 2 };
    assert!(begin.elapsed().as_secs() < most, "{:?}", begin.elapsed());
}

/// Where values are not finite, some lowerings stored an output, and then stored it again, computed
/// directly. With the residual in Y, the second sum had the first one added.
#[test]
fn a_residual_in_y_is_added_once_where_values_are_not_finite() {
    let winograd = layer(Conv::new([40, 3, 3, 3]).pads([1, 1, 1, 1]), [1, 3, 23, 29]);
    let winograd_transposed =
        layer(ConvTranspose::new([16, 5, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 16, 9, 21]);
    let transposed = layer(ConvTranspose::new([3, 6, 3, 3]).strides([3, 2]).output_shape([22, 20]), [1, 3, 7, 9]);
    let depthwise_transposed =
        layer(ConvTranspose::new([3, 1, 4, 4]).group(3).strides([2, 2]).pads([1, 1, 1, 1]), [1, 3, 9, 40]);
    for (layer, is_weight) in
        [(winograd, false), (winograd_transposed, false), (transposed, true), (depthwise_transposed, true)]
    {
        let geometry = layer.geometry();
        let mut operands = Operands::<f32>::uniform(&geometry, 83).with_bias(&geometry).with_residual(&geometry);
        let poisoned = if is_weight { &mut operands.w } else { &mut operands.x };
        let middle = poisoned.len() / 2;
        poisoned[middle] = f32::INFINITY;
        let oracle = Oracle::new(&geometry, &operands);
        for combination in Combination::all() {
            for activation in [Activation::None, Activation::Tanh] {
                let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.activation(activation)) else {
                    continue;
                };
                let y = operands.run_both_ways(&plan);
                assert_eq!(oracle.check(combination.algorithm, activation, &y), Ok(()), "{combination}: {layer}");
            }
        }
    }
}

/// A check of copied rows refused rows whose zeros, which fill up the last vector, reach into the
/// next row. `grouped` copies the phases of stride 2 so.
#[test]
fn grouped_rows_of_stride_two_that_end_within_a_vector() {
    let conv = |stride: i64| Conv::new([8, 4, 3, 3]).group(2).strides([stride, 2]).pads([1, 1, 1, 1]);
    check(&layer(conv(1), [1, 8, 9, 10]));
    check(&layer(conv(2), [2, 8, 28, 28]));
}

/// Winograd's filters of finite weights may exceed the range of their type. The weights are then packed as
/// they are, which the plan refused to run.
#[test]
fn weights_whose_transforms_overflow_are_accepted() {
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    for planner in [Planner::new(), Planner::new().algorithm(named("winograd"))] {
        let plan = planner.plan::<f32>(conv.clone(), &[1, 64, 16, 16]).unwrap();
        let packed = plan.pack(&vec![2e38; 64 * 64 * 9], None).unwrap();
        assert_eq!(plan.accepts(&packed), Ok(()));
        let (x, mut y) = (vec![1e-38; 64 * 256], vec![0.0; 64 * 256]);
        plan.run(Run::new(&x, &packed, &mut y)).unwrap();
        assert!((y[17] - 1152.0).abs() < 0.01, "{}", y[17]);
    }
}

/// Elements of a 16-bit type are converted a stride at a time where many phases are picked. A stride
/// longer than the buffer for that panicked.
#[test]
fn long_strides_of_16_bit_types() {
    let layer = layer(Conv::new([1, 1, 1, 140]).strides([1, 1100]), [1, 1, 1, 5000]);
    let operands = Operands::<f16>::uniform(&layer.geometry(), 5);
    let oracle = Oracle::new(&layer.geometry(), &operands);
    for combination in Combination::all() {
        let Some(plan) = combination.plan::<f16>(&layer, |planner| planner) else { continue };
        let checked = oracle.check(combination.algorithm, Activation::None, &operands.run(&plan));
        assert_eq!(checked, Ok(()), "{combination}");
    }
}

/// Without input channels, the runs of taps that meet input wrote more tiles than there was scratch for.
#[test]
fn no_channels_and_taps_on_padding_alone() {
    let layer = layer(Conv::new([40, 0, 3, 3]).dilations([1, 8]).pads([1, 8, 1, 8]), [1, 0, 8, 8]);
    let operands = Operands::<f32>::uniform(&layer.geometry(), 5).with_bias(&layer.geometry());
    let oracle = Oracle::new(&layer.geometry(), &operands);
    for combination in Combination::all() {
        let Some(plan) = combination.plan::<f32>(&layer, |planner| planner) else { continue };
        let checked = oracle.check(combination.algorithm, Activation::None, &operands.run(&plan));
        assert_eq!(checked, Ok(()), "{combination}");
    }
}

/// A depthwise layer of a 16-bit type whose converted channels exceed the limit was computed from planes,
/// in another order of sums.
#[test]
fn a_limit_does_not_change_the_bits_of_depthwise_layers() {
    for strides in [[1, 1], [2, 2]] {
        let conv = Conv::new([4, 1, 3, 3]).group(4).strides(strides).pads([1, 1, 1, 1]);
        let layer = layer(conv, [1, 4, 224, 224]);
        let operands = Operands::<f16>::uniform(&layer.geometry(), 5);
        for combination in Combination::all().filter(|c| c.algorithm == named("depthwise")) {
            let free = combination.plan::<f16>(&layer, |planner| planner).unwrap();
            let limited = combination.planner().workspace_limit(128 << 10);
            match limited.plan::<f16>(layer.operator.clone(), &layer.x_shape) {
                Ok(limited) => {
                    assert!(bits(&operands.run(&free)) == bits(&operands.run(&limited)), "{combination}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Workspace, "{combination}: {error}"),
            }
        }
    }
}

/// The places of taps that are 2^31 inputs and more apart were computed in 32 bits.
#[test]
#[cfg(target_pointer_width = "64")]
fn taps_that_reach_beyond_32_bits_are_padding() {
    const FAR: i64 = 1 << 31;
    let conv = Conv::new([1, 1, 3]).dilations([2 * FAR]).pads([4 * FAR, 4]);
    let transposed = ConvTranspose::new([1, 1, 3]).dilations([FAR]).pads([2 * FAR + 4, 1]);
    for layer in [layer(conv, [1, 1, 8]), layer(transposed, [1, 1, 8])].map(Layer::channels_last) {
        let operands = Operands::<f32>::uniform(&layer.geometry(), 5).with_bias(&layer.geometry());
        let oracle = Oracle::new(&layer.geometry(), &operands);
        let of_pixels = Combination::all().filter(|combination| combination.algorithm.name().starts_with("pixel-"));
        for combination in of_pixels {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner) else { continue };
            let checked = oracle.check(combination.algorithm, Activation::None, &operands.run(&plan));
            assert_eq!(checked, Ok(()), "{combination}");
        }
    }
}

/// A phase of the stride whose taps all read padding has no pixels of X. Rows of a 16-bit type were converted
/// for it all the same.
#[test]
fn phases_that_read_only_padding_copy_no_rows() {
    check(&layer(ConvTranspose::new([1, 1, 2]).strides([2]).output_padding([1]).pads([4, 0]), [1, 1, 2]));
}

/// A first `pixel-depthwise` without tables compared addresses, and refused columns whose distance in bytes has no number.
#[test]
#[cfg(target_pointer_width = "64")]
fn columns_of_many_channels_may_be_far_away() {
    let conv = Conv::new([4, 1, 1, 2]).group(4).dilations([1, 1 << 59]).pads([0, 1 << 59, 0, 0]);
    check_huge(&layer(conv, [1, 4, 2, 3]));
}

/// An X without channels may have any pixel stride, as nothing is read. `pixel-gemm` looked for its pixels, and panicked.
#[test]
fn an_x_without_channels_may_have_any_pixel_stride() {
    fn check<T: Scalar>() {
        let layers = [
            layer(Conv::new([3, 0, 1, 1]).strides([2, 1]), [2, 0, 3, 10]),
            layer(Conv::new([3, 0, 3, 3]).pads([1, 1, 1, 1]), [2, 0, 3, 10]),
            layer(ConvTranspose::new([0, 3, 2, 2]), [2, 0, 3, 10]),
        ];
        let bias = [1.0, 2.0, 3.0].map(T::from_f64);
        for (layer, combination) in
            layers.map(Layer::channels_last).iter().flat_map(|layer| Combination::all().map(move |c| (layer, c)))
        {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            let packed = plan.pack(&[], Some(&bias)).unwrap();
            for pixel in [3, usize::MAX / 128] {
                let mut y = vec![T::from_f64(f64::NAN); plan.geometry().output_len()];
                plan.run(Run::new(&[], &packed, &mut y).x_pixel_stride(pixel).x_image_stride(30 * pixel)).unwrap();
                assert!(y.chunks(3).all(|pixel| bits(pixel) == bits(&bias)), "{combination}: {layer}");
            }
        }
    }
    for_each_type!(check());
}

/// Where taps are joined, `pixel-gemm` copies rows with their padding. Pixels that read padding alone lay beyond an
/// end of X, and the length of what was to be filled before X was negative, or longer than the row.
#[test]
fn pixels_of_joined_taps_may_read_padding_alone() {
    fn check<T: Scalar>() {
        let conv = |pads: [i64; 2]| Conv::new([13, 13, 3]).strides([5]).pads(pads);
        for (pads, x_layout) in
            [[0, 300], [300, 0], [200, 200]].into_iter().flat_map(|p| [(p, ChannelsFirst), (p, ChannelsLast)])
        {
            let layer = layer(conv(pads), [1, 13, 3]).with_layouts([x_layout, ChannelsLast]);
            let geometry = layer.geometry();
            let operands = Operands::<T>::uniform(&geometry, 1).with_bias(&geometry);
            let oracle = Oracle::new(&geometry, &operands);
            let mut is_copied = false;
            for combination in Combination::distinct() {
                // Chunks for several threads are small.
                let Some(plan) = combination.plan::<T>(&layer, |planner| planner.threads(4)) else { continue };
                is_copied |= combination.algorithm == named("pixel-gemm")
                    && format!("{:#}", plan.explain()).contains("in copied rows");
                let y = operands.run(&plan);
                assert_eq!(oracle.check(combination.algorithm, Activation::None, &y), Ok(()), "{combination}: {layer}");
            }
            assert!(is_copied, "no copy of rows: {layer}");
        }
    }
    for_each_type!(check());
}

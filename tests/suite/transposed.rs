//! ConvTranspose with phases, borders and tails: every algorithm on every ISA, compared with the
//! reference.

use crate::common::{Combination, Context, Layer, Operands, Oracle, accepts, layer};
use convoke::{Activation, AutoPad, ConvTranspose, ErrorKind, Isa, Threads, bf16, f16};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// Runs layers on every combination that accepts them, with bias and residual, with plans for 1
/// and 3 threads.
fn check<T: Scalar>(layers: &[Layer], prepare: impl Fn(&mut Operands<T>)) {
    for layer in layers {
        let geometry = layer.geometry();
        let mut operands = Operands::<T>::uniform(&geometry, 11).with_bias(&geometry).with_residual(&geometry);
        prepare(&mut operands);
        let oracle = Oracle::new(&geometry, &operands);
        for combination in Combination::all().filter(|c| accepts(c.algorithm, &geometry)) {
            let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
            for threads in [1, 3] {
                let plan = combination.plan::<T>(layer, |planner| planner.threads(threads)).expect("it accepts");
                let difference = oracle.check(combination.algorithm, Activation::None, &operands.run(&plan));
                assert_eq!(difference, Ok(()), "{combination}, {}: {layer}", T::DTYPE);
            }
        }
    }
}

/// Kernels interleave the two phases of a stride of 2 straight into Y if there is no residual and
/// each vector of a tile lies in one row. Other tiles go through scratch.
#[test]
fn pairs_of_phases() {
    let layers = [
        // Rows of whole vectors, of parts of vectors, and several rows in a vector; panels of
        // unequal height.
        layer(two([200, 24, 2, 2], 2), [2, 200, 5, 32]),
        layer(two([201, 20, 2, 2], 2), [1, 201, 6, 57]),
        layer(two([230, 64, 2, 2], 2), [1, 230, 9, 28]),
        layer(two([200, 27, 2, 2], 2), [1, 200, 11, 5]),
        // Rows that are cut at both ends and begin with the second phase; only bias beyond the
        // last output of the taps; groups; one row, one column.
        layer(two([60, 24, 4, 4], 2).pads([1; 4]), [1, 60, 4, 50]),
        layer(two([205, 24, 2, 2], 2).pads([0, 1, 1, 0]), [1, 205, 4, 50]),
        layer(two([205, 24, 2, 2], 2).output_padding([1, 1]), [1, 205, 3, 48]),
        layer(two([400, 12, 2, 2], 2).group(2), [3, 400, 1, 40]),
        layer(ConvTranspose::new([203, 24, 2]).strides([2]), [2, 203, 130]),
        layer(ConvTranspose::new([204, 21, 2, 2, 2]).strides([2, 2, 2]), [1, 204, 3, 4, 16]),
        // The panels exceed the L2 cache, and pass one by one over all column tiles.
        layer(two([340, 100, 2, 2], 2), [1, 340, 3, 32]),
        // K has two blocks, whose sums are kept, so that no pairs are made.
        layer(two([370, 12, 2, 2], 2), [1, 370, 3, 32]),
    ];
    fn check<T: Scalar>(layers: &[Layer]) {
        for combination in Combination::all().filter(|c| c.algorithm == named("transposed")) {
            // The number of layers with pairs.
            let mut paired = 0;
            for layer in layers {
                let geometry = layer.geometry();
                let operands = Operands::<T>::uniform(&geometry, 17).with_bias(&geometry);
                let oracle = Oracle::new(&geometry, &operands);
                for activation in [Activation::None, Activation::Clip { min: -0.5, max: 0.75 }, Activation::Silu] {
                    let _context = Context(|| format!("{combination}, {}, {activation:?}: {layer}", T::DTYPE));
                    let plan = combination
                        .plan::<T>(layer, |planner| planner.threads(2).activation(activation))
                        .expect("it accepts");
                    let is_paired = format!("{:#}", plan.explain()).contains("stored in pairs");
                    paired += usize::from(is_paired && activation == Activation::None);
                    let difference = oracle.check(combination.algorithm, activation, &operands.run(&plan));
                    assert_eq!(difference, Ok(()), "{combination}, {}, {activation:?}: {layer}", T::DTYPE);
                }
            }
            let is_direct = matches!(T::DTYPE, convoke::DType::F32 | convoke::DType::F64);
            assert!(if is_direct { paired >= 7 } else { paired == 0 }, "{combination}, {}: {paired}", T::DTYPE);
        }
    }
    for_each_type!(check(&layers));
}

/// If Y is large, its lines are prefetched before pairs are stored, and all panels pass over a column tile
/// before the next one.
#[test]
fn pairs_of_phases_of_a_large_output() {
    // Rows of X that are not a multiple of vectors.
    let layer = layer(two([104, 17, 2, 2], 2), [1, 104, 132, 122]);
    let geometry = layer.geometry();
    assert!(geometry.output_len() * 4 > 4 << 20);
    let operands = Operands::<f32>::uniform(&geometry, 17).with_bias(&geometry);
    let oracle = Oracle::new(&geometry, &operands);
    for combination in Combination::all().filter(|c| c.algorithm == named("transposed")) {
        let plan = combination.plan::<f32>(&layer, |planner| planner.threads(2)).expect("it accepts");
        assert!(
            format!("{:#}", plan.explain()).contains("stored in pairs") || combination.isa == Isa::Portable,
            "{combination}"
        );
        assert_eq!(
            oracle.check(combination.algorithm, Activation::None, &operands.run(&plan)),
            Ok(()),
            "{combination}"
        );
    }
}

fn two(w_shape: [usize; 4], stride: i64) -> ConvTranspose {
    ConvTranspose::new(w_shape).strides([stride; 2])
}

/// The outputs of all channels of a panel are more than the store is given at a time.
#[test]
fn long_strides_are_staged_some_channels_at_a_time() {
    let layers = [
        layer(ConvTranspose::new([40, 30, 3]).strides([300]), [1, 40, 70]),
        layer(ConvTranspose::new([40, 30, 24]).strides([24]).pads([3, 5]), [1, 40, 70]),
        layer(ConvTranspose::new([24, 33, 2, 5]).strides([2, 90]).pads([1, 0, 0, 2]), [1, 24, 3, 40]),
        layer(ConvTranspose::new([24, 64, 1, 1]).strides([1, 200]), [2, 24, 2, 33]),
    ];
    check::<f16>(&layers, |_| ());
    check::<bf16>(&layers, |_| ());
}

#[test]
fn zero_tails_have_the_bias() {
    let layers = [
        layer(two([5, 3, 3, 3], 3).output_shape([17, 16]), [1, 5, 5, 5]),
        layer(two([5, 20, 2, 2], 4).output_padding([3, 2]), [2, 5, 3, 4]),
        layer(ConvTranspose::new([4, 2, 3]).strides([7]).output_padding([6]), [1, 4, 9]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn one_pixel_in() {
    let layers = [
        layer(two([20, 33, 4, 4], 1), [1, 20, 1, 1]),
        layer(two([20, 33, 4, 4], 2).pads([1; 4]), [1, 20, 1, 1]),
        layer(two([6, 4, 3, 3], 2).output_padding([1, 1]), [3, 6, 1, 1]),
        // The kernels cover Y, of several images and groups, with each tap apart.
        layer(two([20, 37, 3, 2], 2).group(2), [71, 20, 1, 1]),
        layer(two([9, 35, 3, 4], 2).pads([1, 1, 0, 1]).output_padding([1, 1]), [3, 9, 5, 1]),
        layer(two([6, 9, 3, 3], 1).dilations([1, 2]), [2, 6, 1, 1]),
        // Images are the positions: several blocks of K, shares of many outputs, blocks of images,
        // crops that differ at both ends.
        layer(two([600, 130, 4, 4], 1), [1, 600, 1, 1]),
        layer(two([6, 9, 5, 3], 2).group(3).pads([2, 0, 1, 1]), [40, 6, 1, 1]),
        layer(ConvTranspose::new([3, 5, 7]).strides([4]).pads([0, 2]), [9, 3, 1]),
        layer(ConvTranspose::new([6, 4, 3, 3, 2]).strides([2, 3, 2]), [1, 6, 1, 1, 1]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn small_maps() {
    let layers = [
        // Several blocks of K with a smaller last one, panels with a narrow last one, runs of
        // rows, and blocks of images.
        layer(two([300, 40, 4, 4], 2).pads([1; 4]), [1, 300, 4, 5]),
        layer(two([9, 35, 3, 3], 2).pads([1, 0, 0, 1]).output_padding([1, 1]), [19, 9, 5, 3]),
        layer(ConvTranspose::new([18, 17, 11]).strides([5]).pads([3, 2]).group(2), [2, 18, 31]),
        layer(ConvTranspose::new([5, 6, 3, 2, 3]).strides([2, 3, 1]).pads([1, 0, 1, 0, 1, 1]), [2, 5, 3, 4, 5]),
        layer(ConvTranspose::new([2, 3, 2, 3, 1, 2]).strides([1, 2, 2, 3]), [2, 2, 3, 2, 4, 2]),
        // Outputs beyond all taps, on each axis.
        layer(two([4, 5, 2, 1], 4).output_padding([3, 3]), [1, 4, 3, 2]),
        layer(two([4, 5, 3, 2], 2).dilations([3, 2]).pads([2, 1, 3, 0]), [1, 4, 4, 3]),
        layer(two([3, 6, 3, 3], 1), [1, 3, 0, 4]),
        layer(two([3, 6, 3, 3], 1), [1, 3, 4, 0]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn phases_without_taps_have_the_bias() {
    let layers = [
        layer(two([5, 15, 1, 1], 3), [1, 5, 6, 7]),
        layer(two([5, 15, 2, 2], 5).pads([1, 0, 0, 1]), [1, 5, 6, 7]),
        // A dilation that shares a divisor with the stride, with any length of the kernel.
        layer(two([5, 3, 4, 4], 4).dilations([2, 4]).pads([3, 5, 1, 2]), [1, 5, 6, 7]),
        layer(ConvTranspose::new([3, 2, 2, 1, 2]).strides([3, 4, 5]), [2, 3, 2, 3, 4]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn long_strides_and_kernels() {
    let layers = [
        layer(ConvTranspose::new([9, 1, 512]).strides([128]), [1, 9, 40]),
        layer(ConvTranspose::new([9, 2, 12]).strides([6]).pads([3, 3]).output_padding([1]), [1, 9, 300]),
        layer(two([21, 21, 16, 16], 8), [1, 21, 5, 6]),
        // One tap in each phase: blocks of K divide the channels rather than the steps.
        layer(two([370, 9, 2, 2], 2), [1, 370, 7, 40]),
        layer(two([6, 1, 9, 9], 4).pads([4; 4]).output_padding([3, 3]), [1, 6, 13, 20]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn few_products_an_output() {
    let layers = [
        layer(two([33, 1, 4, 4], 2).group(33).pads([1; 4]), [2, 33, 13, 40]),
        layer(two([6, 1, 3, 3], 2).group(6).pads([1; 4]).output_padding([1, 1]), [1, 6, 9, 70]),
        layer(two([6, 2, 2, 2], 4).group(3).dilations([1, 3]), [1, 6, 5, 9]),
        layer(ConvTranspose::new([5, 1, 9]).group(5).strides([8]).pads([3, 2]), [1, 5, 2000]),
        layer(ConvTranspose::new([4, 1, 3, 2, 2]).group(4).strides([2, 1, 2]), [1, 4, 3, 4, 5]),
        layer(two([7, 1, 3, 3], 1).group(7).pads([1; 4]), [1, 7, 20, 21]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn depthwise_upsampling() {
    let mut layers = Vec::new();
    // Widths next to one vector, narrower rows, asymmetric crops, tails, several images.
    for width in [4, 7, 8, 13, 15, 16, 17, 30, 33] {
        layers.push(layer(two([3, 1, 4, 4], 2).group(3).pads([1; 4]), [2, 3, 5, width]));
        layers.push(layer(two([5, 1, 3, 3], 2).group(5).pads([1; 4]).output_padding([1, 1]), [1, 5, 9, width]));
        layers.push(layer(two([2, 1, 2, 2], 2).group(2).pads([0, 1, 1, 0]), [1, 2, 6, width]));
        layers.push(layer(two([2, 1, 5, 5], 2).group(2).pads([2, 3, 1, 0]).output_padding([0, 1]), [1, 2, 7, width]));
        layers.push(layer(ConvTranspose::new([3, 1, 4]).group(3).strides([2]).pads([1, 1]), [2, 3, width]));
    }
    layers.extend([
        // The output is a tail, or the middle of a row.
        layer(two([2, 1, 4, 4], 2).group(2).pads([5, 9, 8, 6]), [1, 2, 20, 40]),
        layer(two([2, 1, 3, 3], 2).group(2).auto_pad(AutoPad::SameUpper).output_padding([1, 1]), [1, 2, 6, 35]),
        layer(ConvTranspose::new([3, 1, 5]).group(3).strides([2]).pads([3, 2]), [1, 3, 300]),
        // Chunks of one channel.
        layer(two([1, 1, 4, 4], 2).pads([1; 4]), [1, 1, 90, 70]),
        // Layers that the kernels do not accept, because of short rows or for other reasons.
        layer(two([4, 1, 4, 3], 2).group(4).pads([1; 4]), [1, 4, 6, 9]),
        layer(two([4, 1, 4, 4], 2).group(4).dilations([1, 2]), [1, 4, 6, 9]),
        layer(two([4, 1, 4, 4], 2).group(4).pads([1; 4]), [1, 4, 6, 3]),
        layer(two([4, 1, 6, 6], 2).group(4).pads([2; 4]), [1, 4, 6, 9]),
        layer(two([4, 2, 4, 4], 2).group(4).pads([1; 4]), [1, 4, 6, 9]),
        layer(ConvTranspose::new([4, 1, 4, 4]).group(4).strides([2, 1]), [1, 4, 6, 9]),
        layer(ConvTranspose::new([4, 1, 2, 2, 2]).group(4).strides([2, 2, 2]), [1, 4, 3, 4, 9]),
    ]);
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn pads_beyond_the_kernel_cut_the_image() {
    let layers = [
        layer(two([4, 5, 3, 3], 2).pads([7, 9, 8, 6]), [1, 4, 12, 13]),
        layer(ConvTranspose::new([4, 5, 1]).pads([3, 2]), [1, 4, 30]),
    ];
    for_each_type!(check(&layers, |_| ()));
}

#[test]
fn weights_that_are_not_finite_count_only_where_they_meet_an_input() {
    let layers = [
        layer(two([3, 20, 4, 4], 2).pads([1; 4]), [1, 3, 5, 6]),
        layer(two([6, 4, 3, 3], 2).group(2).pads([1; 4]).output_padding([1, 1]), [2, 6, 4, 5]),
        layer(two([3, 4, 5, 3], 1).pads([2, 1, 2, 1]), [1, 3, 6, 6]),
        layer(two([5, 1, 4, 4], 2).group(5).pads([1; 4]), [1, 5, 6, 19]),
        layer(two([6, 1, 3, 3], 2).group(6).pads([0, 1, 1, 0]).output_padding([1, 1]), [2, 6, 5, 20]),
        layer(ConvTranspose::new([7, 1, 5]).group(7).strides([2]).pads([2, 1]), [1, 7, 33]),
        layer(ConvTranspose::new([150, 3, 4]).strides([2]).pads([2, 0]), [1, 150, 20]),
        layer(ConvTranspose::new([3, 2, 3, 3, 2]).strides([2, 2, 1]), [1, 3, 3, 3, 3]),
        layer(two([8, 6, 3, 4], 1).group(2).pads([1, 0, 0, 2]), [3, 8, 1, 1]),
    ];
    fn spoil<T: Scalar>(operands: &mut Operands<T>) {
        for (i, w) in operands.w.iter_mut().enumerate().filter(|(i, _)| i % 13 == 5) {
            *w = T::from_f64([f64::INFINITY, f64::NEG_INFINITY, f64::NAN][i % 3]);
        }
    }
    check::<f32>(&layers, spoil);
    check::<f64>(&layers, spoil);
    check::<convoke::f16>(&layers, spoil);
    check::<convoke::bf16>(&layers, spoil);
}

/// Weights are packed by the phases of the padded Y, and so their pads do not matter, except where a phase
/// is counted from a later position.
#[test]
fn weights_packed_for_other_pads_fit_or_are_rejected() {
    let layer_of = |pad: i64| layer(two([3, 4, 6, 6], 3).pads([pad; 4]), [1, 3, 8, 8]);
    let layers: Vec<_> = (0..4).map(layer_of).collect();
    let mut fitting = 0;
    for combination in Combination::all().filter(|c| c.algorithm == named("transposed")) {
        for (packed_for, other) in layers.iter().flat_map(|one| layers.iter().map(move |other| (one, other))) {
            let plan = combination.plan::<f32>(packed_for, |planner| planner).unwrap();
            let operands = Operands::<f32>::uniform(&other.geometry(), 3);
            let packed = Operands::<f32>::uniform(plan.geometry(), 3).pack(&plan);
            match combination.planner().packed_for(&packed).plan::<f32>(other.operator.clone(), &other.x_shape) {
                Ok(plan) => {
                    let y = operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
                    let oracle = Oracle::new(plan.geometry(), &operands);
                    assert_eq!(oracle.check(combination.algorithm, Activation::None, &y), Ok(()), "{combination}");
                    fitting += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::PackedMismatch, "{error}"),
            }
        }
    }
    assert!(fitting > 0);
}

//! One test for each bug that was found, with its story.

mod common;

use common::{Combination, Layer, Operands, Oracle, layer};
use convoke::{Activation, Algorithm, Blas, Conv, ConvTranspose, ErrorKind, Planner};
use convoke_tools::data::Scalar;

/// Every algorithm that accepts the layer is right on it, in every element type.
fn check(layer: &Layer) {
    fn check_type<T: Scalar>(layer: &Layer) {
        let geometry = layer.geometry();
        let operands = Operands::<T>::uniform(&geometry, 1).with_bias(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            assert_eq!(oracle.check(Activation::None, &operands.run(&plan)), Ok(()), "{combination}: {layer}");
        }
    }
    for_each_type!(check_type(layer));
}

/// The native GEMM sliced B, which has no rows without channels, at the tile's first column.
#[test]
fn layers_without_input_channels_and_more_than_one_vector_of_columns() {
    check(&layer(Conv::new([3, 0, 1]), [1, 0, 9]));
    check(&layer(Conv::new([3, 0, 3, 3]).pads([1, 1, 1, 1]), [2, 0, 40, 41]));
    check(&layer(ConvTranspose::new([0, 3, 3, 3]), [1, 0, 8, 8]));
}

/// Pointwise handed a panel of the last block's rows to a kernel together with the offsets of a full block's: 257 channels are blocks of 129
/// and 128.
#[test]
fn pointwise_with_a_last_block_of_channels_that_is_smaller_than_the_others() {
    check(&layer(Conv::new([17, 257, 1, 1]), [1, 257, 7, 7]));
    check(&layer(Conv::new([40, 769, 1]), [2, 769, 50]));
}

/// The native BLAS chose the tile that weights are packed for by the width of the product, so that plans for other input sizes rejected them.
#[test]
fn weights_packed_for_a_small_product_fit_a_wide_one() {
    let planner = Planner::new().algorithm(Algorithm::Im2col(Blas::Native));
    let conv = Conv::new([20, 6, 3, 3]).pads([1, 1, 1, 1]);
    let small = planner.plan::<f32>(conv.clone(), &[1, 6, 7, 9]).unwrap();
    let packed = small.pack(&vec![1.0; 20 * 6 * 9], None).unwrap();
    for width in 1..100 {
        let plan = Planner::new().packed_for(&packed).plan::<f32>(conv.clone(), &[1, 6, 30, width]);
        assert!(plan.is_ok(), "width {width}: {plan:?}");
    }
}

/// The tiles of positions that col2im multiplies began where its band of the output did, so that plans for another number of threads, which have
/// other bands, summed up in another order.
#[test]
fn col2im_sums_in_one_order_whatever_its_bands() {
    let conv = ConvTranspose::new([24, 11, 3, 3]);
    let geometry = conv.geometry(&[1, 24, 31, 29]).unwrap();
    let operands = Operands::<f32>::uniform(&geometry, 2);
    let run = |threads: usize| {
        let planner = Planner::new().algorithm(Algorithm::Col2im(Blas::Native)).threads(threads);
        operands.run(&planner.plan::<f32>(conv.clone(), &[1, 24, 31, 29]).unwrap())
    };
    assert!((2..=8).all(|threads| run(threads) == run(1)));
}

/// A one-shot call allocated Y, and touched it, before it looked at X: a wrong shape of terabytes ended the process instead of being reported.
#[test]
fn one_shot_calls_check_x_before_they_allocate() {
    let conv = Conv::new([1, 1, 1]).pads([1 << 40, 0]);
    let error = convoke::conv(&conv, &[1, 1, 2], &[1.0_f32], &[1.0], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BufferLength);
}

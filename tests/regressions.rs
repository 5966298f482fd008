//! One test for each bug that was found, with its story.

mod common;

use common::{Combination, Layer, Operands, Oracle, layer};
use convoke::{Activation, Conv, ConvTranspose};
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

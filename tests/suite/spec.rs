//! The geometry of Conv and ConvTranspose: the shapes of ONNX's own tests, the choices where ONNX
//! leaves one, and invariants.
//!
//! Requests that are refused are in `errors.rs`.

use convoke::{
    Attribute::{Int, Ints, String},
    AutoPad::{self, NotSet, SameLower, SameUpper, Valid},
    Axis, Conv, ConvTranspose, DType, Error, ErrorKind, Geometry, NodeInput, Op, Operator,
};
use proptest::prelude::*;

/// Output sizes along the spatial axes.
fn sizes(geometry: &Geometry) -> Vec<usize> {
    geometry.axes.iter().map(|axis| axis.output).collect()
}

/// Output size and explicit padding of a one-axis geometry.
fn resolved(geometry: Result<Geometry, Error>) -> (usize, usize, usize) {
    let axis = geometry.unwrap().axes[0];
    (axis.output, axis.pad_begin, axis.pad_end)
}

/// A Conv of one channel along one axis.
fn conv(kernel: usize) -> Conv {
    Conv::new([1, 1, kernel])
}

/// A ConvTranspose of one channel along one axis.
fn transposed(kernel: usize) -> ConvTranspose {
    ConvTranspose::new([1, 1, kernel])
}

// -----------------------------------------------------------------------------------------------
// ONNX's test models

/// Shapes and attributes of one of the single-node models with which ONNX tests the operators.
struct Model {
    name: &'static str,
    op_type: &'static str,
    opset: i64,
    x: &'static [i64],
    w: &'static [i64],
    bias: Option<i64>,
    y: &'static [usize],
    attributes: &'static [(&'static str, convoke::Attribute<'static>)],
}

#[allow(clippy::too_many_arguments, reason = "one line per model in the table below")]
const fn row(
    name: &'static str,
    op_type: &'static str,
    opset: i64,
    x: &'static [i64],
    w: &'static [i64],
    bias: Option<i64>,
    y: &'static [usize],
    attributes: &'static [(&'static str, convoke::Attribute<'static>)],
) -> Model {
    Model { name, op_type, opset, x, w, bias, y, attributes }
}

#[rustfmt::skip]
const MODELS: [Model; 47] = [
    // node
    row("test_basic_conv_with_padding", "Conv", 22, &[1, 1, 5, 5], &[1, 1, 3, 3], None, &[1, 1, 5, 5], &[("pads", Ints(&[1, 1, 1, 1])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_basic_conv_without_padding", "Conv", 22, &[1, 1, 5, 5], &[1, 1, 3, 3], None, &[1, 1, 3, 3], &[("kernel_shape", Ints(&[3, 3]))]),
    row("test_conv_with_autopad_same", "Conv", 22, &[1, 1, 5, 5], &[1, 1, 3, 3], None, &[1, 1, 3, 3], &[("auto_pad", String("SAME_LOWER")), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_conv_with_strides_and_asymmetric_padding", "Conv", 22, &[1, 1, 7, 5], &[1, 1, 3, 3], None, &[1, 1, 4, 2], &[("pads", Ints(&[1, 0, 1, 0])), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_conv_with_strides_no_padding", "Conv", 22, &[1, 1, 7, 5], &[1, 1, 3, 3], None, &[1, 1, 3, 2], &[("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_conv_with_strides_padding", "Conv", 22, &[1, 1, 7, 5], &[1, 1, 3, 3], None, &[1, 1, 4, 3], &[("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_convtranspose", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 5, 5], &[]),
    row("test_convtranspose_1d", "ConvTranspose", 22, &[1, 1, 3], &[1, 2, 3], None, &[1, 2, 5], &[]),
    row("test_convtranspose_3d", "ConvTranspose", 22, &[1, 1, 3, 4, 5], &[1, 2, 3, 3, 3], None, &[1, 2, 5, 6, 7], &[]),
    row("test_convtranspose_autopad_same", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 6, 6], &[("auto_pad", String("SAME_UPPER")), ("strides", Ints(&[2, 2]))]),
    row("test_convtranspose_dilations", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 1, 2, 2], None, &[1, 1, 5, 5], &[("dilations", Ints(&[2, 2]))]),
    row("test_convtranspose_group_2", "ConvTranspose", 22, &[1, 2, 3, 3], &[2, 1, 3, 3], None, &[1, 2, 5, 5], &[("group", Int(2))]),
    row("test_convtranspose_group_2_image_3", "ConvTranspose", 22, &[3, 2, 3, 3], &[2, 1, 3, 3], None, &[3, 2, 5, 5], &[("group", Int(2))]),
    row("test_convtranspose_kernel_shape", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 10, 8], &[("output_padding", Ints(&[1, 1])), ("output_shape", Ints(&[10, 8])), ("strides", Ints(&[3, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_convtranspose_output_shape", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 10, 8], &[("output_shape", Ints(&[10, 8])), ("strides", Ints(&[3, 2]))]),
    row("test_convtranspose_pad", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 10, 8], &[("output_padding", Ints(&[1, 1])), ("strides", Ints(&[3, 2]))]),
    row("test_convtranspose_pads", "ConvTranspose", 22, &[1, 1, 3, 3], &[1, 2, 3, 3], None, &[1, 2, 7, 3], &[("pads", Ints(&[1, 2, 1, 2])), ("strides", Ints(&[3, 2]))]),
    // pytorch-converted
    row("test_Conv1d", "Conv", 6, &[2, 4, 10], &[5, 4, 3], Some(5), &[2, 5, 8], &[("kernel_shape", Ints(&[3]))]),
    row("test_Conv1d_dilated", "Conv", 6, &[2, 4, 10], &[5, 4, 3], Some(5), &[2, 5, 6], &[("dilations", Ints(&[2])), ("kernel_shape", Ints(&[3]))]),
    row("test_Conv1d_groups", "Conv", 6, &[2, 4, 6], &[6, 2, 3], Some(6), &[2, 6, 4], &[("group", Int(2)), ("kernel_shape", Ints(&[3]))]),
    row("test_Conv1d_pad1", "Conv", 6, &[2, 4, 10], &[5, 4, 3], Some(5), &[2, 5, 10], &[("pads", Ints(&[1, 1])), ("kernel_shape", Ints(&[3]))]),
    row("test_Conv1d_pad1size1", "Conv", 6, &[1, 4, 1], &[4, 4, 3], Some(4), &[1, 4, 1], &[("pads", Ints(&[1, 1])), ("kernel_shape", Ints(&[3]))]),
    row("test_Conv1d_pad2", "Conv", 6, &[2, 4, 10], &[5, 4, 5], Some(5), &[2, 5, 10], &[("pads", Ints(&[2, 2])), ("kernel_shape", Ints(&[5]))]),
    row("test_Conv1d_pad2size1", "Conv", 6, &[1, 4, 1], &[4, 4, 5], Some(4), &[1, 4, 1], &[("pads", Ints(&[2, 2])), ("kernel_shape", Ints(&[5]))]),
    row("test_Conv1d_stride", "Conv", 6, &[2, 4, 10], &[5, 4, 3], Some(5), &[2, 5, 4], &[("strides", Ints(&[2])), ("kernel_shape", Ints(&[3]))]),
    row("test_Conv2d", "Conv", 6, &[2, 3, 7, 5], &[4, 3, 3, 2], Some(4), &[2, 4, 5, 4], &[("kernel_shape", Ints(&[3, 2]))]),
    row("test_Conv2d_depthwise", "Conv", 6, &[2, 4, 6, 6], &[4, 1, 3, 3], Some(4), &[2, 4, 4, 4], &[("group", Int(4)), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_depthwise_padded", "Conv", 6, &[2, 4, 6, 6], &[4, 1, 3, 3], Some(4), &[2, 4, 6, 6], &[("group", Int(4)), ("pads", Ints(&[1, 1, 1, 1])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_depthwise_strided", "Conv", 6, &[2, 4, 6, 6], &[4, 1, 3, 3], Some(4), &[2, 4, 2, 2], &[("group", Int(4)), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_depthwise_with_multiplier", "Conv", 6, &[2, 4, 6, 6], &[8, 1, 3, 3], Some(8), &[2, 8, 4, 4], &[("group", Int(4)), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_dilated", "Conv", 6, &[2, 3, 8, 8], &[2, 3, 3, 3], Some(2), &[2, 2, 3, 3], &[("dilations", Ints(&[2, 2])), ("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_groups", "Conv", 6, &[2, 4, 6, 5], &[6, 2, 3, 2], Some(6), &[2, 6, 4, 4], &[("group", Int(2)), ("kernel_shape", Ints(&[3, 2]))]),
    row("test_Conv2d_groups_thnn", "Conv", 6, &[2, 4, 6, 5], &[6, 2, 3, 2], Some(6), &[2, 6, 4, 4], &[("group", Int(2)), ("kernel_shape", Ints(&[3, 2]))]),
    row("test_Conv2d_no_bias", "Conv", 6, &[2, 3, 6, 5], &[4, 3, 3, 2], None, &[2, 4, 4, 4], &[("kernel_shape", Ints(&[3, 2]))]),
    row("test_Conv2d_padding", "Conv", 6, &[2, 3, 6, 6], &[4, 3, 3, 3], Some(4), &[2, 4, 3, 3], &[("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv2d_strided", "Conv", 6, &[2, 3, 6, 6], &[4, 3, 3, 3], Some(4), &[2, 4, 2, 2], &[("strides", Ints(&[2, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_Conv3d", "Conv", 6, &[2, 3, 3, 4, 5], &[4, 3, 2, 3, 4], Some(4), &[2, 4, 2, 2, 2], &[("kernel_shape", Ints(&[2, 3, 4]))]),
    row("test_Conv3d_dilated", "Conv", 6, &[2, 3, 5, 5, 5], &[4, 3, 2, 2, 2], Some(4), &[2, 4, 3, 3, 3], &[("dilations", Ints(&[2, 2, 2])), ("kernel_shape", Ints(&[2, 2, 2]))]),
    row("test_Conv3d_dilated_strided", "Conv", 6, &[2, 3, 5, 5, 5], &[4, 3, 2, 2, 2], Some(4), &[2, 4, 2, 2, 2], &[("dilations", Ints(&[2, 2, 2])), ("strides", Ints(&[2, 2, 2])), ("kernel_shape", Ints(&[2, 2, 2]))]),
    row("test_Conv3d_groups", "Conv", 6, &[2, 4, 4, 5, 4], &[6, 2, 3, 3, 3], Some(6), &[2, 6, 2, 3, 2], &[("group", Int(2)), ("kernel_shape", Ints(&[3, 3, 3]))]),
    row("test_Conv3d_no_bias", "Conv", 6, &[2, 3, 3, 4, 5], &[4, 3, 2, 3, 4], None, &[2, 4, 2, 2, 2], &[("kernel_shape", Ints(&[2, 3, 4]))]),
    row("test_Conv3d_stride", "Conv", 6, &[2, 3, 5, 5, 5], &[4, 3, 2, 2, 2], Some(4), &[2, 4, 2, 2, 2], &[("strides", Ints(&[2, 2, 2])), ("kernel_shape", Ints(&[2, 2, 2]))]),
    row("test_Conv3d_stride_padding", "Conv", 6, &[2, 3, 5, 5, 5], &[4, 3, 2, 2, 2], Some(4), &[2, 4, 3, 3, 3], &[("pads", Ints(&[1, 1, 1, 1, 1, 1])), ("strides", Ints(&[2, 2, 2])), ("kernel_shape", Ints(&[2, 2, 2]))]),
    row("test_ConvTranspose2d", "ConvTranspose", 6, &[1, 3, 7, 6], &[3, 4, 3, 3], Some(4), &[1, 4, 20, 12], &[("output_padding", Ints(&[1, 1])), ("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[3, 2])), ("kernel_shape", Ints(&[3, 3]))]),
    row("test_ConvTranspose2d_no_bias", "ConvTranspose", 6, &[1, 3, 6, 7], &[3, 4, 3, 3], None, &[1, 4, 12, 20], &[("output_padding", Ints(&[1, 1])), ("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[2, 3])), ("kernel_shape", Ints(&[3, 3]))]),
    // pytorch-operator
    row("test_operator_conv", "Conv", 6, &[20, 16, 50, 40], &[13, 16, 3, 3], None, &[20, 13, 48, 38], &[("kernel_shape", Ints(&[3, 3]))]),
    row("test_operator_convtranspose", "ConvTranspose", 6, &[2, 3, 4, 5], &[3, 3, 3, 3], None, &[2, 3, 12, 15], &[("output_padding", Ints(&[2, 2])), ("pads", Ints(&[1, 1, 1, 1])), ("strides", Ints(&[3, 3])), ("kernel_shape", Ints(&[3, 3]))]),
];

fn check_model(model: &Model, opset: i64) {
    let bias = model.bias.map(|len| [len]);
    let input = |dims| NodeInput { dtype: DType::F32, dims };
    let inputs = [Some(input(model.x)), Some(input(model.w)), bias.as_ref().map(|dims| input(dims))];
    let (operator, geometry) = Operator::from_node(model.op_type, opset, model.attributes, &inputs)
        .unwrap_or_else(|error| panic!("{}: {error}", model.name));
    assert_eq!(operator.op_name(), model.op_type);
    assert_eq!(geometry.output_shape(), model.y, "{}", model.name);
    assert_eq!(geometry.output_len(), model.y.iter().product::<usize>(), "{}", model.name);
    let as_dims = |shape: Vec<usize>| shape.into_iter().map(|d| d as i64).collect::<Vec<_>>();
    assert_eq!(as_dims(geometry.input_shape()), model.x, "{}", model.name);
    assert_eq!(as_dims(geometry.weight_shape()), model.w, "{}", model.name);
}

#[test]
fn onnx_models_have_the_documented_output_shapes() {
    for model in &MODELS {
        check_model(model, model.opset);
    }
}

#[test]
fn onnx_models_have_the_same_shapes_in_every_opset() {
    for model in &MODELS {
        for opset in [1, 6, 10, 11, 21, 22, 23, 1 << 32, i64::MAX] {
            check_model(model, opset);
        }
    }
}

// -----------------------------------------------------------------------------------------------
// Decision 1: opsets

#[test]
fn opset_resolves_to_the_version_that_it_holds() {
    for (opset, since) in [(1, 1), (10, 1), (11, 11), (21, 11), (22, 22), (23, 22), (u32::MAX, 22)] {
        assert_eq!(conv(1).opset(opset).since_version().unwrap(), since);
        assert_eq!(transposed(1).opset(opset).since_version().unwrap(), since);
    }
    assert_eq!(conv(1).since_version().unwrap(), 22, "the default");
    assert_eq!(Operator::from(conv(1).opset(13)).opset(), 13);
}

#[test]
fn bfloat16_comes_with_opset_22() {
    for dtype in DType::ALL {
        let since = if dtype == DType::BF16 { 22 } else { 1 };
        assert_eq!(dtype.allowed_since(), since);
        for opset in [1, 11, 21, 22, 23] {
            assert_eq!(conv(1).opset(opset).check_dtype(dtype).is_ok(), opset >= since, "{dtype} {opset}");
            assert_eq!(transposed(1).opset(opset).check_dtype(dtype).is_ok(), opset >= since, "{dtype} {opset}");
        }
    }
}

#[test]
fn conv_same_is_ceil_of_input_over_stride_in_every_opset() {
    for opset in [1, 11, 22] {
        for mode in [SameUpper, SameLower] {
            let geometry = conv(3).opset(opset).auto_pad(mode).strides([2]).geometry(&[1, 1, 5]);
            assert_eq!(resolved(geometry), (3, 1, 1));
        }
    }
}

#[test]
fn convtranspose_splits_odd_padding_by_the_text_of_opset_11_in_every_opset() {
    for opset in [1, 11, 22] {
        let op = transposed(2).opset(opset);
        assert_eq!(resolved(op.clone().auto_pad(SameUpper).geometry(&[1, 1, 3])), (3, 0, 1));
        assert_eq!(resolved(op.auto_pad(SameLower).geometry(&[1, 1, 3])), (3, 1, 0));
    }
}

// -----------------------------------------------------------------------------------------------
// Decision 2: Conv SAME

#[test]
fn conv_same_splits_an_odd_total_by_its_mode() {
    assert_eq!(resolved(conv(4).auto_pad(SameUpper).geometry(&[1, 1, 7])), (7, 1, 2));
    assert_eq!(resolved(conv(4).auto_pad(SameLower).geometry(&[1, 1, 7])), (7, 2, 1));
}

#[test]
fn conv_same_total_is_clamped_at_zero() {
    for mode in [SameUpper, SameLower] {
        // The kernel is shorter than the stride. The grid starts at the first element, not before
        // or after it.
        for (kernel, stride, input, output) in [(1, 4, 8, 2), (1, 5, 10, 2), (2, 5, 10, 2), (1, 3, 7, 3)] {
            let geometry = conv(kernel).auto_pad(mode).strides([stride]).geometry(&[1, 1, input]);
            assert_eq!(resolved(geometry), (output, 0, 0));
        }
    }
}

#[test]
fn conv_same_with_dilation_pads_for_the_effective_kernel() {
    let op = conv(3).dilations([2]);
    assert_eq!(resolved(op.clone().auto_pad(SameUpper).geometry(&[1, 1, 5])), (5, 2, 2));
    let op = Conv::new([1, 1, 2]).dilations([3]);
    assert_eq!(resolved(op.clone().auto_pad(SameUpper).geometry(&[1, 1, 5])), (5, 1, 2));
    assert_eq!(resolved(op.clone().auto_pad(SameLower).geometry(&[1, 1, 5])), (5, 2, 1));
    assert_eq!(resolved(op.strides([2]).auto_pad(SameLower).geometry(&[1, 1, 5])), (3, 2, 1));
}

#[test]
fn conv_valid_is_no_padding() {
    for opset in [1, 11, 22] {
        assert_eq!(resolved(conv(3).opset(opset).auto_pad(Valid).geometry(&[1, 1, 5])), (3, 0, 0));
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn conv_rounds_the_quotient_down() {
    assert_eq!(resolved(conv(3).strides([2]).geometry(&[1, 1, 8])), (3, 0, 0));
    assert_eq!(resolved(conv(3).strides([100]).geometry(&[1, 1, 8])), (1, 0, 0));
    assert_eq!(resolved(conv(3).strides([i64::MAX]).pads([2, 0]).geometry(&[1, 1, 8])), (1, 2, 0));
}

// -----------------------------------------------------------------------------------------------
// Decision 3: ConvTranspose SAME and output_shape

#[test]
fn convtranspose_same_output_is_input_times_stride() {
    for mode in [SameUpper, SameLower] {
        assert_eq!(resolved(transposed(4).strides([2]).auto_pad(mode).geometry(&[1, 1, 3])), (6, 1, 1));
    }
    assert_eq!(resolved(transposed(3).strides([2]).auto_pad(SameUpper).geometry(&[1, 1, 3])), (6, 0, 1));
    assert_eq!(resolved(transposed(3).strides([2]).auto_pad(SameLower).geometry(&[1, 1, 3])), (6, 1, 0));
}

#[test]
fn convtranspose_same_output_is_input_times_stride_even_beyond_natural() {
    for mode in [SameUpper, SameLower] {
        // The natural sizes are 5 and 7. The last stride - 1 elements are a tail that no input
        // reaches.
        assert_eq!(resolved(transposed(1).strides([2]).auto_pad(mode).geometry(&[1, 1, 3])), (6, 0, 0));
        assert_eq!(resolved(transposed(1).strides([3]).auto_pad(mode).geometry(&[1, 1, 3])), (9, 0, 0));
    }
}

#[test]
fn convtranspose_same_with_output_padding_stays_input_times_stride() {
    let op = transposed(3).strides([2]).output_padding([1]);
    // The natural size is 8 with the output padding. 2 elements are cut.
    assert_eq!(resolved(op.clone().auto_pad(SameUpper).geometry(&[1, 1, 3])), (6, 1, 1));
    assert_eq!(resolved(op.auto_pad(SameLower).geometry(&[1, 1, 3])), (6, 1, 1));
}

#[test]
fn convtranspose_output_shape_ignores_pads() {
    let op = transposed(3).strides([2]).output_shape([5]);
    let bare = op.geometry(&[1, 1, 3]).unwrap();
    assert_eq!(op.pads([0, 1]).geometry(&[1, 1, 3]).unwrap(), bare);
}

#[test]
fn convtranspose_output_shape_cuts_an_odd_surplus_at_the_head_unless_same_upper() {
    // The natural size is 7.
    for mode in [NotSet, Valid, SameLower] {
        let geometry = transposed(3).strides([2]).output_shape([6]).auto_pad(mode).geometry(&[1, 1, 3]);
        assert_eq!(resolved(geometry), (6, 1, 0), "{mode}");
        let geometry = transposed(3).strides([2]).output_shape([4]).auto_pad(mode).geometry(&[1, 1, 3]);
        assert_eq!(resolved(geometry), (4, 2, 1), "{mode}");
    }
    let geometry = transposed(3).strides([2]).output_shape([6]).auto_pad(SameUpper).geometry(&[1, 1, 3]);
    assert_eq!(resolved(geometry), (6, 0, 1));
}

#[test]
fn convtranspose_output_shape_beyond_natural_is_a_tail_in_every_mode() {
    // The natural size is 9. With stride 3, the sizes 10 and 11 have a tail, and 12 is an error.
    for mode in [NotSet, Valid, SameUpper, SameLower] {
        let op = |size| transposed(3).strides([3]).output_shape([size]).auto_pad(mode).geometry(&[1, 1, 3]);
        assert_eq!(resolved(op(9)), (9, 0, 0), "{mode}");
        assert_eq!(resolved(op(10)), (10, 0, 0), "{mode}");
        assert_eq!(resolved(op(11)), (11, 0, 0), "{mode}");
        assert!(op(12).is_err(), "{mode}");
    }
}

#[test]
fn convtranspose_output_shape_may_be_smaller_than_the_input() {
    assert_eq!(resolved(transposed(3).output_shape([2]).geometry(&[1, 1, 3])), (2, 2, 1));
}

#[test]
fn convtranspose_output_padding_enters_the_surplus_of_output_shape() {
    let op = transposed(3).strides([2]).output_shape([6]);
    assert_eq!(resolved(op.clone().geometry(&[1, 1, 3])), (6, 1, 0));
    assert_eq!(resolved(op.output_padding([1]).geometry(&[1, 1, 3])), (6, 1, 1));
}

#[test]
fn convtranspose_output_shape_may_name_n_and_m() {
    let op = ConvTranspose::new([4, 3, 3, 3]).group(2);
    let short = op.clone().output_shape([5, 6]).strides([2, 2]).geometry(&[7, 4, 3, 3]).unwrap();
    let long = op.output_shape([7, 6, 5, 6]).strides([2, 2]).geometry(&[7, 4, 3, 3]).unwrap();
    assert_eq!(short, long);
    assert_eq!(short.output_shape(), [7, 6, 5, 6]);
}

#[test]
fn convtranspose_valid_is_no_padding() {
    assert_eq!(resolved(transposed(3).strides([2]).auto_pad(Valid).geometry(&[1, 1, 3])), (7, 0, 0));
}

// -----------------------------------------------------------------------------------------------
// Decision 4: output_padding, pads

#[test]
fn convtranspose_output_padding_is_less_than_the_larger_of_stride_and_dilation() {
    assert_eq!(resolved(transposed(3).strides([3]).output_padding([2]).geometry(&[1, 1, 3])), (11, 0, 0));
    // PyTorch exports this case: `output_padding` is at least the stride, and less than the
    // dilation.
    let op = transposed(3).dilations([4]).strides([2]);
    assert_eq!(resolved(op.clone().output_padding([3]).geometry(&[1, 1, 3])), (16, 0, 0));
    assert!(op.output_padding([4]).geometry(&[1, 1, 3]).is_err());
}

#[test]
fn zero_pads_beside_auto_pad_are_accepted() {
    for mode in [Valid, SameUpper, SameLower] {
        assert_eq!(
            conv(3).auto_pad(mode).pads([0, 0]).geometry(&[1, 1, 5]).unwrap(),
            conv(3).auto_pad(mode).geometry(&[1, 1, 5]).unwrap()
        );
        assert_eq!(
            transposed(3).auto_pad(mode).pads([0, 0]).geometry(&[1, 1, 5]).unwrap(),
            transposed(3).auto_pad(mode).geometry(&[1, 1, 5]).unwrap()
        );
    }
}

#[test]
fn pads_beside_notset_are_taken() {
    assert_eq!(resolved(conv(3).auto_pad(NotSet).pads([2, 1]).geometry(&[1, 1, 5])), (6, 2, 1));
    assert_eq!(resolved(transposed(3).auto_pad(NotSet).pads([2, 1]).geometry(&[1, 1, 5])), (4, 2, 1));
}

#[test]
fn pads_are_all_beginnings_then_all_ends() {
    let geometry = Conv::new([1, 1, 3, 3]).pads([1, 2, 3, 4]).geometry(&[1, 1, 8, 8]).unwrap();
    assert_eq!((geometry.axes[0].pad_begin, geometry.axes[0].pad_end), (1, 3));
    assert_eq!((geometry.axes[1].pad_begin, geometry.axes[1].pad_end), (2, 4));
}

#[test]
fn convtranspose_pads_may_exceed_the_kernel() {
    assert_eq!(resolved(transposed(3).strides([3]).pads([4, 0]).geometry(&[1, 1, 4])), (8, 4, 0));
    // All outputs that are left lie between two contributions. They are defined, and zero.
    let geometry = transposed(1).strides([4]).pads([1, 1]).geometry(&[1, 1, 2]).unwrap();
    assert_eq!(resolved(Ok(geometry.clone())), (3, 1, 1));
    assert!(geometry.axes[0].inputs_of_tap(0).is_empty());
}

// -----------------------------------------------------------------------------------------------
// Decision 5: sizes of zero

#[test]
fn empty_batch_is_an_empty_output() {
    let geometry = Conv::new([2, 3, 3, 3]).geometry(&[0, 3, 5, 5]).unwrap();
    assert_eq!(geometry.output_shape(), [0, 2, 3, 3]);
    assert_eq!((geometry.input_len(), geometry.output_len(), geometry.macs()), (0, 0, 0));
    let geometry = ConvTranspose::new([3, 2, 3, 3]).geometry(&[0, 3, 5, 5]).unwrap();
    assert_eq!(geometry.output_shape(), [0, 2, 7, 7]);
    assert_eq!((geometry.input_len(), geometry.output_len(), geometry.macs()), (0, 0, 0));
}

#[test]
fn empty_batch_is_still_validated() {
    assert!(conv(3).geometry(&[0, 1, 2]).is_err());
    assert!(Conv::new([2, 3, 3]).geometry(&[0, 4, 5]).is_err());
}

#[test]
fn zero_channels_in_are_defined() {
    for group in [1, 2] {
        let geometry = Conv::new([2, 0, 3]).group(group).geometry(&[1, 0, 5]).unwrap();
        assert_eq!(geometry.output_shape(), [1, 2, 3]);
        assert_eq!((geometry.input_len(), geometry.weight_len(), geometry.macs()), (0, 0, 0));
        let geometry = ConvTranspose::new([0, 2, 3]).group(group).geometry(&[1, 0, 5]).unwrap();
        assert_eq!(geometry.output_shape(), [1, 2 * group as usize, 7]);
        assert_eq!((geometry.input_len(), geometry.weight_len(), geometry.macs()), (0, 0, 0));
    }
}

#[test]
fn zero_channels_out_are_an_empty_output() {
    let geometry = Conv::new([0, 3, 3]).group(2).geometry(&[1, 6, 5]).unwrap();
    assert_eq!((geometry.output_shape(), geometry.bias_len(), geometry.output_len()), (vec![1, 0, 3], 0, 0));
    let geometry = ConvTranspose::new([6, 0, 3]).group(2).geometry(&[1, 6, 5]).unwrap();
    assert_eq!((geometry.output_shape(), geometry.bias_len(), geometry.output_len()), (vec![1, 0, 7], 0, 0));
}

#[test]
fn conv_of_zero_elements_with_padding_is_defined() {
    let geometry = conv(3).pads([2, 2]).geometry(&[1, 1, 0]).unwrap();
    assert_eq!(geometry.output_shape(), [1, 1, 2]);
    assert!(geometry.axes[0].outputs_of_tap(0).is_empty());
}

#[test]
fn convtranspose_of_zero_elements_is_defined_where_the_output_is_positive() {
    // stride * (0 - 1) + kernel
    assert_eq!(resolved(transposed(3).strides([2]).geometry(&[1, 1, 0])), (1, 0, 0));
    assert_eq!(resolved(transposed(3).geometry(&[1, 1, 0])), (2, 0, 0));
    assert_eq!(resolved(transposed(3).output_shape([2]).geometry(&[1, 1, 0])), (2, 0, 0));
    assert!(transposed(3).strides([3]).geometry(&[1, 1, 0]).is_err());
    assert!(transposed(3).auto_pad(SameUpper).geometry(&[1, 1, 0]).is_err());
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_zero_beside_huge_sizes_is_no_elements() {
    let geometry = Conv::new([1, 1 << 40, 1]).geometry(&[0, 1 << 40, 1 << 40]).unwrap();
    assert_eq!((geometry.input_len(), geometry.output_len(), geometry.macs()), (0, 0, 0));
    // The dimension of zero comes after the product has overflowed.
    let geometry = Conv::new([1, 1 << 40, 1]).pads([1, 0]).geometry(&[1 << 40, 1 << 40, 0]).unwrap();
    assert_eq!((geometry.input_len(), geometry.output_len()), (0, 1 << 40));
    let geometry = Conv::new([0, 1 << 40, 1]).geometry(&[1, 1 << 40, 1]).unwrap();
    assert_eq!((geometry.weight_len(), geometry.output_len(), geometry.macs()), (0, 0, 0));
    // The largest size that there is.
    let most = isize::MAX as usize;
    let geometry = Conv::new([0, 1, 1]).pads([1, 0]).geometry(&[most, 1, 0]).unwrap();
    assert_eq!((geometry.batch, geometry.output_len()), (most, 0));
}

// -----------------------------------------------------------------------------------------------
// Other rules of shapes

#[test]
fn any_number_of_spatial_axes() {
    for spatial in 1..=9 {
        let x = [&[2, 4][..], &vec![3; spatial]].concat();
        let w = [&[6, 2][..], &vec![2; spatial]].concat();
        let geometry = Conv::new(w.clone()).group(2).geometry(&x).unwrap();
        assert_eq!(sizes(&geometry), vec![2; spatial]);
        assert_eq!(geometry.macs(), 2 * 6 * 2 * 4_u128.pow(spatial as u32));
        let w = [&[4, 3][..], &vec![2; spatial]].concat();
        let geometry = ConvTranspose::new(w).group(2).geometry(&x).unwrap();
        assert_eq!(sizes(&geometry), vec![4; spatial]);
        assert_eq!(geometry.macs(), 2 * 6 * 2 * 6_u128.pow(spatial as u32));
    }
}

#[test]
fn axes_are_resolved_each_on_its_own() {
    let geometry = Conv::new([1, 1, 3, 2, 1])
        .strides([1, 2, 3])
        .dilations([2, 1, 5])
        .auto_pad(SameLower)
        .geometry(&[1, 1, 4, 5, 7])
        .unwrap();
    let pads: Vec<_> = geometry.axes.iter().map(|axis| (axis.output, axis.pad_begin, axis.pad_end)).collect();
    assert_eq!(pads, [(4, 2, 2), (3, 1, 0), (3, 0, 0)]);
}

#[test]
fn a_missing_bias_is_none_or_absent() {
    let x = Some(NodeInput { dtype: DType::F32, dims: &[1, 1, 5] });
    let w = Some(NodeInput { dtype: DType::F32, dims: &[1, 1, 3] });
    for op_type in ["Conv", "ConvTranspose"] {
        let absent = Operator::from_node(op_type, 22, &[], &[x, w]).unwrap();
        assert_eq!(Operator::from_node(op_type, 22, &[], &[x, w, None]).unwrap(), absent);
    }
}

#[test]
fn a_node_may_have_dimensions_of_zero() {
    let input = |dims| Some(NodeInput { dtype: DType::F32, dims });
    let (_, geometry) = Operator::from_node("Conv", 22, &[], &[input(&[0, 2, 5]), input(&[4, 2, 3])]).unwrap();
    assert_eq!(geometry.output_shape(), [0, 4, 3]);
    let (_, geometry) = Operator::from_node("Conv", 22, &[], &[input(&[1, 0, 5]), input(&[4, 0, 3])]).unwrap();
    assert_eq!(geometry.output_shape(), [1, 4, 3]);
}

#[test]
fn a_node_and_the_builder_say_the_same() {
    let attributes = [
        ("auto_pad", String("")),
        ("group", Int(2)),
        ("strides", Ints(&[3, 2])),
        ("dilations", Ints(&[1, 2])),
        ("pads", Ints(&[1, 0, 1, 0])),
        ("output_padding", Ints(&[2, 1])),
        ("output_shape", Ints(&[8, 9])),
        ("kernel_shape", Ints(&[3, 3])),
    ];
    let built = ConvTranspose::new([4, 3, 3, 3])
        .opset(13)
        .group(2)
        .strides([3, 2])
        .dilations([1, 2])
        .pads([1, 0, 1, 0])
        .output_padding([2, 1])
        .output_shape([8, 9])
        .kernel_shape([3, 3]);
    let read = Operator::from_attributes("ConvTranspose", 13, &attributes, &[4, 3, 3, 3]).unwrap();
    assert_eq!(read, Operator::from(built));
    assert_eq!(read.op(), Op::ConvTranspose);
    assert_eq!(read.weight_shape(), [4, 3, 3, 3]);
}

#[test]
fn auto_pad_is_read_and_written_by_its_onnx_names() {
    for (name, mode) in [("NOTSET", NotSet), ("VALID", Valid), ("SAME_UPPER", SameUpper), ("SAME_LOWER", SameLower)] {
        assert_eq!(name.parse::<AutoPad>().unwrap(), mode);
        assert_eq!(mode.to_string(), name);
    }
    assert_eq!("".parse::<AutoPad>().unwrap(), NotSet);
    assert_eq!(AutoPad::default(), NotSet);
}

#[test]
fn dtype_has_its_onnx_names_and_numbers() {
    let names: Vec<_> = DType::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["float16", "bfloat16", "float", "double"]);
    assert_eq!(DType::ALL.map(DType::bytes), [2, 2, 4, 8]);
    assert_eq!([10, 16, 1, 11].map(|code| DType::from_onnx(code).unwrap()), DType::ALL);
}

#[test]
fn a_unit_axis_copies() {
    let axis = |op: Conv| op.geometry(&[1, 1, 5]).unwrap().axes[0];
    assert!(axis(conv(1)).is_unit());
    assert!(axis(conv(1).dilations([7])).is_unit(), "one tap has no distance to a next");
    assert!(!axis(conv(1).strides([2])).is_unit());
    assert!(!axis(conv(1).pads([1, 0])).is_unit());
    assert!(!axis(conv(2)).is_unit());
    // As many outputs as inputs, all the same.
    assert!(!axis(conv(2).pads([1, 0])).is_unit());
    assert!(!axis(conv(2).pads([0, 1])).is_unit());
    assert!(!conv(1).strides([2]).geometry(&[1, 1, 1]).unwrap().axes[0].is_unit());
    let tail = transposed(1).strides([2]).output_padding([1]).geometry(&[1, 1, 1]).unwrap().axes[0];
    assert!(!tail.is_unit());
    let tail = transposed(1).dilations([2]).output_padding([1]).geometry(&[1, 1, 1]).unwrap().axes[0];
    assert!(!tail.is_unit(), "Y has an element that X has not");
}

#[test]
fn padding_at_either_end_is_padding() {
    for (pads, expected) in [([0, 0], false), ([1, 0], true), ([0, 1], true), ([1, 2], true)] {
        assert_eq!(conv(2).pads(pads).geometry(&[1, 1, 5]).unwrap().axes[0].is_padded(), expected, "{pads:?}");
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn huge_paddings_are_sizes_like_any_other() {
    let geometry = conv(3).pads([1 << 40, 1 << 40]).geometry(&[1, 1, 5]).unwrap();
    assert_eq!(geometry.output_len(), (1 << 41) + 3);
    let axis = geometry.axes[0];
    assert_eq!(axis.outputs_of_tap(0), 1 << 40..(1 << 40) + 5);
    assert_eq!(axis.interior_outputs(), 1 << 40..(1 << 40) + 3);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_huge_dilation_reaches_only_padding() {
    let geometry = conv(2).dilations([1 << 50]).pads([1 << 50, 0]).geometry(&[1, 1, 5]).unwrap();
    let axis = geometry.axes[0];
    assert_eq!(axis.output, 5);
    assert_eq!((axis.outputs_of_tap(0), axis.outputs_of_tap(1)), (0..0, 0..5));
}

// -----------------------------------------------------------------------------------------------
// Invariants

/// The number of steps of the kernel that fit the padded input, counted one by one.
fn counted_conv_output(padded: usize, effective_kernel: usize, stride: usize) -> usize {
    (0..).step_by(stride).take_while(|start| start + effective_kernel <= padded).count()
}

/// The length up to the last position that an input contributes to, found by visiting all.
fn counted_transposed_extent(input: usize, kernel: usize, stride: usize, dilation: usize) -> usize {
    let reached = (0..input).flat_map(|i| (0..kernel).map(move |k| i * stride + k * dilation));
    reached.max().map_or(0, |last| last + 1)
}

/// The steps for which `inside` is true. They must be one range.
fn counted_range(steps: usize, inside: impl Fn(usize) -> bool) -> std::ops::Range<usize> {
    let hits: Vec<_> = (0..steps).filter(|&step| inside(step)).collect();
    match hits[..] {
        [] => 0..0,
        [first, .., last] => first..last + 1,
        [only] => only..only + 1,
    }
}

fn check_ranges(axis: &Axis, op: Op) {
    for tap in 0..axis.kernel {
        let (range, counted) = match op {
            Op::Conv => {
                (axis.outputs_of_tap(tap), counted_range(axis.output, |o| axis.input_position(o, tap).is_some()))
            }
            Op::ConvTranspose => {
                (axis.inputs_of_tap(tap), counted_range(axis.input, |i| axis.output_position(i, tap).is_some()))
            }
        };
        assert_eq!(range, counted, "{op} {axis:?} tap {tap}");
    }
    // All taps are inside if the first and the last are.
    let taps = [0, axis.kernel - 1];
    let (range, counted) = match op {
        Op::Conv => (
            axis.interior_outputs(),
            counted_range(axis.output, |o| taps.iter().all(|&k| axis.input_position(o, k).is_some())),
        ),
        Op::ConvTranspose => (
            axis.interior_inputs(),
            counted_range(axis.input, |i| taps.iter().all(|&k| axis.output_position(i, k).is_some())),
        ),
    };
    assert_eq!(range, counted, "{op} {axis:?} interior");
}

fn same_mode() -> impl Strategy<Value = AutoPad> {
    prop_oneof![Just(SameUpper), Just(SameLower)]
}

proptest! {
    #[test]
    fn conv_output_is_the_number_of_positions(
        input in 0_usize..40, kernel in 1_usize..7, stride in 1_usize..6, dilation in 1_usize..5,
        begin in 0_usize..9, end in 0_usize..9,
    ) {
        let op = conv(kernel).strides([stride as i64]).dilations([dilation as i64]).pads([begin as i64, end as i64]);
        let counted = counted_conv_output(input + begin + end, (kernel - 1) * dilation + 1, stride);
        match op.geometry(&[1, 1, input]) {
            Ok(geometry) => {
                prop_assert_eq!(geometry.axes[0].output, counted);
                check_ranges(&geometry.axes[0], Op::Conv);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidShape);
                prop_assert_eq!(counted, 0);
            }
        }
    }

    #[test]
    fn conv_same_is_ceil_of_input_over_stride(
        input in 1_usize..200, kernel in 1_usize..9, stride in 1_usize..9, dilation in 1_usize..5, mode in same_mode(),
    ) {
        let geometry = conv(kernel)
            .strides([stride as i64]).dilations([dilation as i64]).auto_pad(mode).geometry(&[1, 1, input]).unwrap();
        let axis = geometry.axes[0];
        prop_assert_eq!(axis.output, input.div_ceil(stride));
        let (less, more) = if mode == SameUpper { (axis.pad_begin, axis.pad_end) } else { (axis.pad_end, axis.pad_begin) };
        prop_assert!(more == less || more == less + 1);
        // NOTSET with this explicit padding must give the same sizes.
        let explicit = conv(kernel)
            .strides([stride as i64]).dilations([dilation as i64]).pads([axis.pad_begin as i64, axis.pad_end as i64])
            .geometry(&[1, 1, input]).unwrap();
        prop_assert_eq!(explicit, geometry);
        check_ranges(&axis, Op::Conv);
    }

    #[test]
    fn convtranspose_output_is_the_reached_extent_less_pads(
        input in 1_usize..30, kernel in 1_usize..7, stride in 1_usize..6, dilation in 1_usize..5,
        extra in 0_usize..6, begin in 0_usize..9, end in 0_usize..9,
    ) {
        let output_padding = extra.min(stride.max(dilation) - 1);
        let op = transposed(kernel)
            .strides([stride as i64]).dilations([dilation as i64]).output_padding([output_padding as i64])
            .pads([begin as i64, end as i64]);
        let extent = counted_transposed_extent(input, kernel, stride, dilation) + output_padding;
        match op.geometry(&[1, 1, input]) {
            Ok(geometry) => {
                prop_assert_eq!(geometry.axes[0].output + begin + end, extent);
                check_ranges(&geometry.axes[0], Op::ConvTranspose);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidShape);
                prop_assert!(extent <= begin + end);
            }
        }
    }

    #[test]
    fn convtranspose_same_is_input_times_stride(
        input in 1_usize..50, kernel in 1_usize..9, stride in 1_usize..9, dilation in 1_usize..5, mode in same_mode(),
    ) {
        let op = transposed(kernel).strides([stride as i64]).dilations([dilation as i64]).auto_pad(mode);
        let axis = op.geometry(&[1, 1, input]).unwrap().axes[0];
        let natural = counted_transposed_extent(input, kernel, stride, dilation);
        prop_assert_eq!(axis.output, input * stride);
        prop_assert_eq!(axis.pad_begin + axis.pad_end, natural.saturating_sub(axis.output));
        check_ranges(&axis, Op::ConvTranspose);
    }

    #[test]
    fn convtranspose_output_shape_is_met_up_to_a_stride_of_tail(
        input in 1_usize..30, kernel in 1_usize..7, stride in 1_usize..6, dilation in 1_usize..5, output in 1_usize..200,
        upper in any::<bool>(),
    ) {
        let op = transposed(kernel)
            .strides([stride as i64]).dilations([dilation as i64]).output_shape([output as i64])
            .auto_pad(if upper { SameUpper } else { NotSet });
        let natural = counted_transposed_extent(input, kernel, stride, dilation);
        match op.geometry(&[1, 1, input]) {
            Ok(geometry) => {
                let axis = geometry.axes[0];
                prop_assert_eq!(axis.output, output);
                let total = natural.saturating_sub(output);
                let head = if upper { total / 2 } else { total.div_ceil(2) };
                prop_assert_eq!((axis.pad_begin, axis.pad_end), (head, total - head));
                prop_assert!(output < natural + stride);
                check_ranges(&axis, Op::ConvTranspose);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidAttribute);
                prop_assert!(output >= natural + stride);
            }
        }
    }

    #[test]
    fn convtranspose_undoes_the_sizes_of_conv(
        output in 1_usize..30, kernel in 1_usize..7, stride in 1_usize..6, dilation in 1_usize..5, pad in 0_usize..4,
        rest in 0_usize..6,
    ) {
        // If Conv's stride leaves over the last `rest` elements of the input, `output_padding`
        // restores them.
        let rest = rest.min(stride - 1);
        let padded = (output - 1) * stride + (kernel - 1) * dilation + 1 + rest;
        prop_assume!(padded > 2 * pad);
        let (s, d, p) = ([stride as i64], [dilation as i64], [pad as i64; 2]);
        let forward = conv(kernel).strides(s).dilations(d).pads(p).geometry(&[1, 1, padded - 2 * pad]).unwrap();
        prop_assert_eq!(forward.axes[0].output, output);
        let backward = transposed(kernel).strides(s).dilations(d).pads(p).output_padding([rest as i64])
            .geometry(&[1, 1, output]).unwrap();
        prop_assert_eq!(backward.axes[0].output, forward.axes[0].input);
        prop_assert_eq!(backward.macs(), forward.macs());
    }

    #[test]
    fn nothing_panics_on_any_numbers(
        x in proptest::collection::vec(prop_oneof![0_usize..9, any::<usize>()], 0..6),
        w in proptest::collection::vec(prop_oneof![0_usize..9, any::<usize>()], 0..6),
        group in prop_oneof![-1_i64..5, any::<i64>()],
        lists in proptest::collection::vec(
            proptest::option::of(proptest::collection::vec(prop_oneof![-1_i64..9, any::<i64>()], 0..8)), 6),
        mode in prop_oneof![Just(NotSet), Just(Valid), Just(SameUpper), Just(SameLower)],
    ) {
        let mut conv = Conv::new(w.clone()).group(group).auto_pad(mode);
        let mut transposed = ConvTranspose::new(w).group(group).auto_pad(mode);
        if let Some(list) = &lists[0] {
            (conv, transposed) = (conv.strides(list.clone()), transposed.strides(list.clone()));
        }
        if let Some(list) = &lists[1] {
            (conv, transposed) = (conv.dilations(list.clone()), transposed.dilations(list.clone()));
        }
        if let Some(list) = &lists[2] {
            (conv, transposed) = (conv.pads(list.clone()), transposed.pads(list.clone()));
        }
        if let Some(list) = &lists[3] {
            (conv, transposed) = (conv.kernel_shape(list.clone()), transposed.kernel_shape(list.clone()));
        }
        if let Some(list) = &lists[4] {
            transposed = transposed.output_padding(list.clone());
        }
        if let Some(list) = &lists[5] {
            transposed = transposed.output_shape(list.clone());
        }
        for geometry in [conv.geometry(&x), transposed.geometry(&x)].into_iter().flatten() {
            prop_assert!(geometry.output_len() <= isize::MAX as usize / 8);
        }
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn huge_axes_keep_their_bounds(
        input in 0_usize..1 << 62, kernel in 1_usize..1 << 62, stride in 1_i64..i64::MAX, dilation in 1_i64..i64::MAX,
        begin in 0_i64..i64::MAX, end in 0_i64..i64::MAX, shrink in 0_u32..62, batch in 0_usize..2,
    ) {
        // The ranges are uniform. The sizes are shifted down, so that some are within the bounds
        // too.
        let kernel = (kernel >> shrink).max(1);
        let (stride, dilation) = ((stride >> shrink).max(1), (dilation >> (61 - shrink)).max(1));
        let (begin, end) = (begin >> (shrink / 2), end >> (shrink / 2));
        let bound = isize::MAX as usize;
        let conv = conv(kernel).strides([stride]).dilations([dilation]).pads([begin, end]);
        let transposed = transposed(kernel).strides([stride]).dilations([dilation]).pads([begin, end]);
        let geometries = [conv.geometry(&[batch, 1, input]), transposed.geometry(&[batch, 1, input >> shrink])];
        for geometry in geometries.into_iter().flatten() {
            let axis = geometry.axes[0];
            prop_assert!(axis.effective_kernel() <= bound);
            prop_assert!(axis.input + axis.pad_begin + axis.pad_end <= bound);
            prop_assert!(axis.output >= 1 && geometry.output_spatial() <= bound / 8);
            for tap in [0, kernel / 2, kernel - 1] {
                match geometry.op {
                    Op::Conv => {
                        let range = axis.outputs_of_tap(tap);
                        for o in [range.start, range.end.saturating_sub(1)] {
                            prop_assert_eq!(axis.input_position(o, tap).is_some(), range.contains(&o));
                        }
                    }
                    Op::ConvTranspose => {
                        let range = axis.inputs_of_tap(tap);
                        for i in [range.start, range.end.saturating_sub(1)].into_iter().filter(|&i| i < axis.input) {
                            prop_assert_eq!(axis.output_position(i, tap).is_some(), range.contains(&i));
                        }
                    }
                }
            }
        }
    }
}

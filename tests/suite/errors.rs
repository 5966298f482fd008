//! Requests that break a rule of the operators are refused, with a message that names operator,
//! axis, value and rule.
//!
//! There is one test for each case. The numbers in their names are those of the list of cases
//! from which the crate was designed. Cases that need a plan are in `errors_run.rs`: buffers (33,
//! 34), workspace (40, 41), allocation (43), packed weights (48) and threads (49). Y overlapping
//! X or W (42) cannot be written in safe Rust, because Y is a `&mut` slice.

use convoke::{
    Attribute::{self, Float, Floats, Int, Ints, Other, String, Strings},
    AutoPad::{self, SameLower, SameUpper, Valid},
    Conv, ConvTranspose, DType, Error,
    ErrorKind::{self, InvalidAttribute, InvalidInput, InvalidShape, InvalidType, Overflow, UnsupportedOperator},
    NodeInput, Operator, Planner,
};

/// Asserts that the result is an error of this kind whose message contains all of these words.
#[track_caller]
fn expect<T: core::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.expect_err("must be refused");
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
}

/// A Conv of one channel along one axis, kernel 3.
fn conv() -> Conv {
    Conv::new([1, 1, 3])
}

/// A ConvTranspose of one channel along one axis, kernel 3.
fn transposed() -> ConvTranspose {
    ConvTranspose::new([1, 1, 3])
}

/// A Conv of one channel along two axes, kernel 3x3.
fn conv_2d() -> Conv {
    Conv::new([1, 1, 3, 3])
}

/// A ConvTranspose of one channel along two axes, kernel 3x3.
fn transposed_2d() -> ConvTranspose {
    ConvTranspose::new([1, 1, 3, 3])
}

const X: [usize; 3] = [1, 1, 5];
const X_2D: [usize; 4] = [1, 1, 5, 5];

fn f32_input(dims: &[i64]) -> Option<NodeInput<'_>> {
    Some(NodeInput { dtype: DType::F32, dims })
}

/// A node of one axis, with X and W that fit it.
fn node(op_type: &str, opset: i64, attributes: &[(&str, Attribute<'_>)]) -> Result<Operator, Error> {
    let inputs = [f32_input(&[1, 1, 5]), f32_input(&[1, 1, 3])];
    Operator::from_node(op_type, opset, attributes, &inputs).map(|(operator, _)| operator)
}

/// A node without attributes on inputs of these types.
fn typed_node(op_type: &str, opset: i64, x: DType, w: DType, b: Option<DType>) -> Result<Operator, Error> {
    let inputs = [
        Some(NodeInput { dtype: x, dims: &[1, 1, 5] }),
        Some(NodeInput { dtype: w, dims: &[1, 1, 3] }),
        b.map(|dtype| NodeInput { dtype, dims: &[1] }),
    ];
    Operator::from_node(op_type, opset, &[], &inputs).map(|(operator, _)| operator)
}

const OPERATORS: [&str; 2] = ["Conv", "ConvTranspose"];

// -----------------------------------------------------------------------------------------------
// Ranks, types, versions

#[test]
fn case_01_x_of_rank_below_3() {
    expect(conv().geometry(&[1, 5]), InvalidShape, &["Conv:", "X", "at least 3", "[1, 5]"]);
    expect(transposed().geometry(&[]), InvalidShape, &["ConvTranspose:", "X", "at least 3", "[]"]);
    // This holds even if W has the same rank.
    expect(Conv::new([1, 1]).geometry(&[1, 1]), InvalidShape, &["Conv:", "at least 3", "[1, 1]"]);
}

#[test]
fn case_02_w_of_another_rank_than_x() {
    expect(Conv::new([1, 1, 3, 3, 3]).geometry(&X_2D), InvalidShape, &["Conv:", "W has 5", "X has 4"]);
    expect(ConvTranspose::new([1, 1]).geometry(&X), InvalidShape, &["ConvTranspose:", "W has 2", "X has 3"]);
    expect(Conv::new([]).geometry(&X), InvalidShape, &["Conv:", "W has 0", "X has 3"]);
}

#[test]
fn case_03_inputs_of_different_types() {
    for op in OPERATORS {
        let mixed = typed_node(op, 22, DType::F32, DType::F16, None);
        expect(mixed, InvalidType, &[op, "X", "type float,", "W", "float16"]);
        let mixed = typed_node(op, 22, DType::F64, DType::F64, Some(DType::F32));
        expect(mixed, InvalidType, &[op, "X", "double", "B", "float"]);
    }
}

#[test]
fn case_04_type_that_the_opset_lacks() {
    for op in OPERATORS {
        for opset in [1, 11, 21] {
            let early = typed_node(op, opset, DType::BF16, DType::BF16, None);
            expect(early, InvalidType, &[op, "bfloat16", "opset 22", &format!("opset {opset}")]);
        }
    }
    expect(conv().opset(21).check_dtype(DType::BF16), InvalidType, &["Conv:", "bfloat16", "opset 22"]);
    expect(transposed().opset(1).check_dtype(DType::BF16), InvalidType, &["ConvTranspose:", "bfloat16", "opset 22"]);
}

#[test]
fn case_04_type_that_no_opset_has() {
    for code in [0, 2, 3, 6, 7, 14, 17, -1] {
        expect(DType::from_onnx(code), InvalidType, &["Conv", &code.to_string(), "bfloat16"]);
    }
}

#[test]
fn case_05_opset_below_1() {
    for op in OPERATORS {
        expect(node(op, 0, &[]), UnsupportedOperator, &[op, "opset 0"]);
        expect(node(op, -3, &[]), UnsupportedOperator, &[op, "opset -3"]);
    }
    expect(conv().opset(0).geometry(&X), UnsupportedOperator, &["Conv:", "opset 0"]);
    expect(transposed().opset(0).geometry(&X), UnsupportedOperator, &["ConvTranspose:", "opset 0"]);
    expect(conv().opset(0).since_version(), UnsupportedOperator, &["Conv:", "opset 0"]);
}

#[test]
fn case_05_unknown_operator() {
    for op in ["ConvInteger", "conv", "", "Conv "] {
        expect(node(op, 22, &[]), UnsupportedOperator, &[&format!("{op:?}"), "Conv", "ConvTranspose"]);
    }
}

// -----------------------------------------------------------------------------------------------
// Channels

#[test]
fn case_06_group_below_1() {
    for (group, value) in [(0, "0"), (-1, "-1"), (i64::MIN, "-9223372036854775808")] {
        expect(conv().group(group).geometry(&X), InvalidAttribute, &["Conv:", "group", value, "at least 1"]);
        expect(transposed().group(group).geometry(&X), InvalidAttribute, &["ConvTranspose:", "group", value]);
        // With C = 0, a division by the group was once reached.
        let empty = Conv::new([1, 0, 3]).group(group).geometry(&[1, 0, 5]);
        expect(empty, InvalidAttribute, &["Conv:", "group", value]);
    }
}

#[test]
fn case_07_conv_channels_are_not_those_of_w_times_group() {
    let op = Conv::new([4, 3, 3]).group(2);
    expect(op.geometry(&[1, 5, 9]), InvalidShape, &["Conv:", "C = 5", "axis 1 (3)", "group (2)", "6"]);
    expect(Conv::new([4, 3, 3]).geometry(&[1, 0, 9]), InvalidShape, &["Conv:", "C = 0", "axis 1 (3)", "group (1)"]);
}

#[test]
fn case_08_conv_m_is_not_a_multiple_of_group() {
    let op = Conv::new([5, 3, 3]).group(2);
    expect(op.geometry(&[1, 6, 9]), InvalidShape, &["Conv:", "axis 0", "M = 5", "multiple of group (2)"]);
}

#[test]
fn case_09_convtranspose_channels_are_not_those_of_w() {
    let op = ConvTranspose::new([4, 3, 3]);
    expect(op.geometry(&[1, 6, 9]), InvalidShape, &["ConvTranspose:", "C = 6", "axis 1", "W has 4", "axis 0"]);
}

#[test]
fn case_10_convtranspose_c_is_not_a_multiple_of_group() {
    let op = ConvTranspose::new([5, 3, 3]).group(2);
    expect(op.geometry(&[1, 5, 9]), InvalidShape, &["ConvTranspose:", "axis 1", "C = 5", "multiple of group (2)"]);
}

// -----------------------------------------------------------------------------------------------
// Kernel, strides, dilations

#[test]
fn case_11_kernel_shape_length() {
    expect(
        conv_2d().kernel_shape([3]).geometry(&X_2D),
        InvalidAttribute,
        &["Conv:", "kernel_shape [3]", "1 entries", "2"],
    );
    expect(
        transposed_2d().kernel_shape([3, 3, 3]).geometry(&X_2D),
        InvalidAttribute,
        &["ConvTranspose:", "kernel_shape [3, 3, 3]", "3 entries", "2"],
    );
}

#[test]
fn case_12_kernel_shape_is_not_that_of_w() {
    for (given, value) in [(2, "2"), (0, "0"), (-3, "-3")] {
        let words = ["axis 1", "kernel_shape", value, "size 3"];
        let result = conv_2d().kernel_shape([3, given]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["Conv:"], &words[..]].concat());
        let result = transposed_2d().kernel_shape([3, given]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["ConvTranspose:"], &words[..]].concat());
    }
}

#[test]
fn case_13_kernel_of_size_0() {
    let op = Conv::new([1, 1, 3, 0]);
    expect(op.clone().geometry(&X_2D), InvalidShape, &["Conv:", "axis 1", "kernel size 0", "at least 1"]);
    expect(op.kernel_shape([3, 0]).geometry(&X_2D), InvalidShape, &["Conv:", "axis 1", "kernel size 0"]);
    let op = ConvTranspose::new([1, 1, 0, 3]);
    expect(op.geometry(&X_2D), InvalidShape, &["ConvTranspose:", "axis 0", "kernel size 0", "at least 1"]);
}

#[test]
fn case_14_strides_length() {
    expect(conv_2d().strides([1]).geometry(&X_2D), InvalidAttribute, &["Conv:", "strides [1]", "1 entries", "2"]);
    expect(
        transposed().strides([1, 1]).geometry(&X),
        InvalidAttribute,
        &["ConvTranspose:", "strides [1, 1]", "2 entries"],
    );
}

#[test]
fn case_15_strides_below_1() {
    for (given, value) in [(0, "0"), (-2, "-2")] {
        let words = ["axis 1", "strides", value, "at least 1"];
        let result = conv_2d().strides([1, given]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["Conv:"], &words[..]].concat());
        let result = transposed_2d().strides([1, given]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["ConvTranspose:"], &words[..]].concat());
    }
}

#[test]
fn case_16_dilations_length() {
    expect(conv().dilations([1, 1]).geometry(&X), InvalidAttribute, &["Conv:", "dilations [1, 1]", "2 entries", "1"]);
    expect(transposed_2d().dilations([1]).geometry(&X_2D), InvalidAttribute, &["ConvTranspose:", "dilations [1]", "2"]);
}

#[test]
fn case_17_dilations_below_1() {
    for (given, value) in [(0, "0"), (-1, "-1")] {
        let words = ["axis 0", "dilations", value, "at least 1"];
        let result = conv_2d().dilations([given, 1]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["Conv:"], &words[..]].concat());
        let result = transposed_2d().dilations([given, 1]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["ConvTranspose:"], &words[..]].concat());
    }
}

#[test]
fn empty_lists_are_of_the_wrong_length() {
    expect(conv().strides([]).geometry(&X), InvalidAttribute, &["Conv:", "strides []", "0 entries"]);
    expect(conv().dilations([]).geometry(&X), InvalidAttribute, &["Conv:", "dilations []", "0 entries"]);
    expect(conv().kernel_shape([]).geometry(&X), InvalidAttribute, &["Conv:", "kernel_shape []", "0 entries"]);
    expect(conv().pads([]).geometry(&X), InvalidAttribute, &["Conv:", "pads []", "0 entries"]);
    let op = transposed();
    expect(op.clone().output_padding([]).geometry(&X), InvalidAttribute, &["ConvTranspose:", "output_padding []"]);
    expect(op.output_shape([]).geometry(&X), InvalidAttribute, &["ConvTranspose:", "output_shape []", "0 entries"]);
    expect(node("Conv", 22, &[("pads", Ints(&[]))]), InvalidAttribute, &["Conv:", "pads []", "0 entries"]);
}

// -----------------------------------------------------------------------------------------------
// Padding

#[test]
fn case_18_pads_length() {
    for pads in [&[1, 1][..], &[1, 1, 1], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0]] {
        let words = [format!("pads {pads:?}"), format!("{} entries", pads.len()), "2 * 2".to_string()];
        let words: Vec<&str> = words.iter().map(|word| &word[..]).collect();
        let result = conv_2d().pads(pads).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["Conv:"], &words[..]].concat());
        let result = transposed_2d().pads(pads).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["ConvTranspose:"], &words[..]].concat());
    }
}

#[test]
fn case_19_pads_below_0() {
    // A beginning, and an end.
    expect(conv_2d().pads([0, -1, 0, 0]).geometry(&X_2D), InvalidAttribute, &["Conv:", "axis 1", "pads", "-1"]);
    expect(conv_2d().pads([1, 1, -2, 1]).geometry(&X_2D), InvalidAttribute, &["Conv:", "axis 0", "pads", "-2"]);
    expect(transposed().pads([0, -1]).geometry(&X), InvalidAttribute, &["ConvTranspose:", "axis 0", "pads", "-1"]);
    // This holds even if the pads would not count.
    let result = transposed().pads([0, -1]).output_shape([7]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "axis 0", "pads", "-1"]);
}

#[test]
fn case_20_unknown_auto_pad() {
    for name in ["SAME", "same_upper", "Valid", " NOTSET", "EXPLICIT"] {
        let words = [name, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"];
        expect(name.parse::<AutoPad>(), InvalidAttribute, &[&["auto_pad"], &words[..]].concat());
        for op in OPERATORS {
            let result = node(op, 22, &[("auto_pad", String(name))]);
            expect(result, InvalidAttribute, &[&[op, "auto_pad"], &words[..]].concat());
        }
    }
}

#[test]
fn case_21_pads_beside_auto_pad() {
    for mode in [SameUpper, SameLower, Valid] {
        let name = mode.to_string();
        let words = ["axis 1", "pads [0, 0, 0, 1]", "auto_pad", &name];
        let result = conv_2d().auto_pad(mode).pads([0, 0, 0, 1]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["Conv:"], &words[..]].concat());
        let result = transposed_2d().auto_pad(mode).pads([0, 0, 0, 1]).geometry(&X_2D);
        expect(result, InvalidAttribute, &[&["ConvTranspose:"], &words[..]].concat());
    }
    // With `output_shape` the pads do not count, but this contradiction is still an error.
    let result = transposed().auto_pad(SameUpper).pads([1, 0]).output_shape([5]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "pads", "SAME_UPPER"]);
}

// -----------------------------------------------------------------------------------------------
// Bias

#[test]
fn case_22_bias_rank() {
    let geometry = Conv::new([4, 1, 3]).geometry(&X).unwrap();
    expect(geometry.validate_bias(&[1, 4]), InvalidShape, &["Conv:", "B has 2 dimensions", "[1, 4]"]);
    expect(geometry.validate_bias(&[]), InvalidShape, &["Conv:", "B has 0 dimensions"]);
    let inputs = [f32_input(&[1, 1, 5]), f32_input(&[1, 4, 3]), f32_input(&[4, 1])];
    expect(
        Operator::from_node("ConvTranspose", 22, &[], &inputs),
        InvalidShape,
        &["ConvTranspose:", "B has 2 dimensions"],
    );
}

#[test]
fn case_23_bias_length() {
    let geometry = Conv::new([4, 1, 3]).geometry(&X).unwrap();
    expect(geometry.validate_bias(&[1]), InvalidShape, &["Conv:", "B has 1", "M = 4"]);
    // ConvTranspose: M is W's second size times group.
    let geometry = ConvTranspose::new([4, 3, 3]).group(2).geometry(&[1, 4, 5]).unwrap();
    assert!(geometry.validate_bias(&[6]).is_ok());
    expect(geometry.validate_bias(&[3]), InvalidShape, &["ConvTranspose:", "B has 3", "M = 6"]);
    let inputs = [f32_input(&[1, 1, 5]), f32_input(&[4, 1, 3]), f32_input(&[5])];
    expect(Operator::from_node("Conv", 22, &[], &inputs), InvalidShape, &["Conv:", "B has 5", "M = 4"]);
}

// -----------------------------------------------------------------------------------------------
// Output sizes

#[test]
fn case_24_conv_padded_input_is_smaller_than_the_kernel() {
    let words = ["Conv:", "axis 1", "padded input 2", "effective kernel 3"];
    expect(conv_2d().geometry(&[1, 1, 5, 2]), InvalidShape, &words);
    // A truncating division would give (2 - 3) / 3 + 1 = 1 output.
    expect(conv().strides([3]).geometry(&[1, 1, 2]), InvalidShape, &["Conv:", "axis 0", "padded input 2", "kernel 3"]);
    let result = conv().dilations([4]).pads([1, 2]).geometry(&X);
    expect(result, InvalidShape, &["Conv:", "axis 0", "padded input 8", "effective kernel 9", "dilation 4"]);
    expect(conv().auto_pad(Valid).geometry(&[1, 1, 2]), InvalidShape, &["Conv:", "padded input 2", "kernel 3"]);
    for mode in [SameUpper, SameLower] {
        expect(conv().auto_pad(mode).geometry(&[1, 1, 0]), InvalidShape, &["Conv:", "axis 0", "padded input 2"]);
    }
}

#[test]
fn case_25_convtranspose_output_is_not_positive() {
    let result = transposed_2d().pads([0, 3, 0, 4]).geometry(&X_2D);
    expect(result, InvalidShape, &["ConvTranspose:", "axis 1", "output size 0", "natural size 7", "3", "4"]);
    let result = transposed().pads([9, 9]).geometry(&X);
    expect(result, InvalidShape, &["ConvTranspose:", "axis 0", "output size -11", "at least 1"]);
    // There is no input, and the kernel is too short for the stride.
    let result = transposed().strides([4]).geometry(&[1, 1, 0]);
    expect(result, InvalidShape, &["ConvTranspose:", "axis 0", "output size -1"]);
    let result = transposed().auto_pad(SameLower).geometry(&[1, 1, 0]);
    expect(result, InvalidShape, &["ConvTranspose:", "axis 0", "output size 0", "SAME_LOWER"]);
}

#[test]
fn case_26_output_padding_length() {
    let words = ["ConvTranspose:", "output_padding [0]", "1 entries", "2"];
    expect(transposed_2d().output_padding([0]).geometry(&X_2D), InvalidAttribute, &words);
}

#[test]
fn case_27_output_padding_below_0() {
    let words = ["ConvTranspose:", "axis 1", "output_padding", "-1", "at least 0"];
    expect(transposed_2d().output_padding([0, -1]).geometry(&X_2D), InvalidAttribute, &words);
}

#[test]
fn case_28_output_padding_is_not_less_than_stride_or_dilation() {
    let result = transposed_2d().output_padding([0, 1]).geometry(&X_2D);
    expect(result, InvalidAttribute, &["ConvTranspose:", "axis 1", "output_padding 1", "stride 1", "dilation 1"]);
    let result = transposed().strides([2]).dilations([3]).output_padding([3]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "axis 0", "output_padding 3", "stride 2", "dilation 3"]);
}

#[test]
fn case_29_output_shape_length() {
    for list in [&[7][..], &[1, 7, 7], &[1, 1, 7, 7, 7]] {
        let words = ["ConvTranspose:", &format!("output_shape {list:?}"), &format!("{} entries", list.len()), "(2)"];
        expect(transposed_2d().output_shape(list).geometry(&X_2D), InvalidAttribute, &words);
    }
    // If N and M are given, they must be right.
    let result = transposed().output_shape([2, 1, 7]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "output_shape [2, 1, 7]", "N = 2", "must be 1"]);
    let result = transposed().output_shape([1, -1, 7]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "output_shape [1, -1, 7]", "M = -1", "must be 1"]);
}

#[test]
fn case_30_output_shape_below_1() {
    for (given, value) in [(0, "0"), (-1, "-1")] {
        let words = ["ConvTranspose:", "axis 1", "output_shape", value, "at least 1"];
        expect(transposed_2d().output_shape([7, given]).geometry(&X_2D), InvalidAttribute, &words);
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_31_output_shape_a_stride_beyond_the_natural_size() {
    let result = transposed_2d().output_shape([7, 8]).geometry(&X_2D);
    expect(result, InvalidAttribute, &["ConvTranspose:", "axis 1", "output_shape 8", "natural size is 7", "7 in all"]);
    let result = transposed().strides([3]).output_shape([18]).geometry(&X);
    expect(
        result,
        InvalidAttribute,
        &["ConvTranspose:", "axis 0", "output_shape 18", "natural size is 15", "17 in all"],
    );
    let result = transposed().output_shape([i64::MAX]).geometry(&X);
    expect(result, InvalidAttribute, &["ConvTranspose:", "axis 0", "output_shape 9223372036854775807"]);
}

#[test]
fn case_32_attributes_of_convtranspose_on_conv() {
    for name in ["output_shape", "output_padding"] {
        expect(node("Conv", 22, &[(name, Ints(&[5]))]), UnsupportedOperator, &["Conv:", "unknown attribute", name]);
    }
}

#[test]
fn case_32_unknown_attributes() {
    for op in OPERATORS {
        for name in ["stride", "Strides", "activation", ""] {
            let result = node(op, 22, &[(name, Ints(&[1]))]);
            expect(result, UnsupportedOperator, &[op, "unknown attribute", &format!("{name:?}")]);
        }
    }
}

#[test]
fn case_32_the_attribute_that_may_be_meant_is_named() {
    for (op, name, meant) in [
        ("Conv", "stride", "did you mean \"strides\"?"),
        ("Conv", "Strides", "did you mean \"strides\"?"),
        ("Conv", "padding", "did you mean \"pads\"?"),
        ("Conv", "autoPad", "did you mean \"auto_pad\"?"),
        ("Conv", "kernel_size", "did you mean \"kernel_shape\"?"),
        ("ConvTranspose", "dilation", "did you mean \"dilations\"?"),
        ("ConvTranspose", "output_pad", "did you mean \"output_padding\"?"),
        ("ConvTranspose", "outputShape", "did you mean \"output_shape\"?"),
        ("Conv", "activation", "Conv has auto_pad, dilations, group, kernel_shape, pads, strides"),
        ("Conv", "output_shape", "Conv has auto_pad, dilations, group, kernel_shape, pads, strides"),
        ("Conv", "", "Conv has auto_pad"),
    ] {
        let error = node(op, 22, &[(name, Ints(&[1]))]).unwrap_err().to_string();
        assert_eq!(error.split("; ").nth(1).map(|rest| rest.starts_with(meant)), Some(true), "{name}: {error}");
    }
}

#[test]
fn attributes_given_twice() {
    for op in OPERATORS {
        let result = node(op, 22, &[("group", Int(1)), ("strides", Ints(&[1])), ("group", Int(1))]);
        expect(result, InvalidAttribute, &[op, "group", "twice"]);
    }
}

// -----------------------------------------------------------------------------------------------
// Overflow

#[test]
#[cfg(target_pointer_width = "32")]
fn case_35_product_of_a_shape_in_32_bits() {
    // The product wraps to 0.
    let half = 1 << 16;
    let result = Conv::new([1, 1, 1, 1]).geometry(&[1, 1, half, half]);
    expect(result, Overflow, &["Conv:", "X of shape [1, 1, 65536, 65536]"]);
    // The elements could be counted, but their bytes could not.
    let result = Conv::new([1, 1, 1]).geometry(&[1, 1, 1 << 28]);
    expect(result, Overflow, &["Conv:", "X of shape [1, 1, 268435456]"]);
    assert!(Conv::new([1, 1, 1]).geometry(&[1, 1, (1 << 28) - 1]).is_ok());
    let result = Conv::new([half, half, 1]).geometry(&[1, half, 1]);
    expect(result, Overflow, &["Conv:", "W of shape [65536, 65536, 1]"]);
    let result = Conv::new([half, 1, 1]).geometry(&[half, 1, 1]);
    expect(result, Overflow, &["Conv:", "Y of shape [65536, 65536, 1]"]);
    let result = conv().dilations([i64::MAX]).geometry(&X);
    expect(result, Overflow, &["Conv:", "axis 0", "dilations"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_35_product_of_a_shape() {
    let half = 1 << 31;
    let result = Conv::new([1, 1, 1, 1]).geometry(&[1, 1, half, half]);
    expect(result, Overflow, &["Conv:", "X", "[1, 1, 2147483648, 2147483648]"]);
    let result = Conv::new([1, 1, 1]).geometry(&[usize::MAX, 1, 5]);
    expect(result, Overflow, &["Conv:", "X", "18446744073709551615", "axis 0"]);
    // The product wraps to 0 in 64 bits.
    let result = Conv::new([1, half, 1, 1]).geometry(&[1 << 2, half, half, 1]);
    expect(result, Overflow, &["Conv:", "X of shape [4, 2147483648, 2147483648, 1]"]);
    // The elements could be counted, but their bytes could not.
    let result = Conv::new([1, 1, 1]).geometry(&[1, 1, 1 << 60]);
    expect(result, Overflow, &["Conv:", "X of shape [1, 1, 1152921504606846976]"]);
    assert!(Conv::new([1, 1, 1]).geometry(&[1, 1, (1 << 60) - 1]).is_ok());
    let result = Conv::new([half, half, 1]).geometry(&[1, half, 1]);
    expect(result, Overflow, &["Conv:", "W of shape [2147483648, 2147483648, 1]"]);
    let result = Conv::new([half, 1, 1]).geometry(&[half, 1, 1]);
    expect(result, Overflow, &["Conv:", "Y of shape [2147483648, 2147483648, 1]"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_35_product_of_the_axes_beside_an_empty_batch() {
    let half = 1 << 31;
    let result = Conv::new([1, 1, 1, 1]).geometry(&[0, 1, half, half]);
    expect(result, Overflow, &["Conv:", "X of shape [0, 1, 2147483648, 2147483648]"]);
    let result = Conv::new([0, 1, half, half]).pads([half as i64; 4]).geometry(&[1, 1, 1, 1]);
    expect(result, Overflow, &["Conv:", "W of shape [0, 1, 2147483648, 2147483648]"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_36_effective_kernel() {
    let dilation = (1 << 62) - 1;
    let accepted = || ConvTranspose::new([1, 1, 2]).dilations([dilation]).output_shape([1]);
    assert!(accepted().geometry(&[1, 1, 1]).is_ok());
    let plan = convoke::Planner::new().plan::<f32>(accepted(), &[1, 1, 1]).unwrap();
    // What is left of the output lies between the two taps.
    assert_eq!(
        crate::common::Operands { x: vec![3.0], w: vec![2.0, 5.0], bias: None, residual: None }.run(&plan),
        [0.0]
    );
    for dilation in [1 << 62, i64::MAX] {
        let result = conv_2d().dilations([1, dilation]).geometry(&X_2D);
        let value = dilation.to_string();
        expect(result, Overflow, &["Conv:", "axis 1", "effective kernel", "kernel 3", &value]);
        let result = transposed_2d().dilations([1, dilation]).geometry(&X_2D);
        expect(result, Overflow, &["ConvTranspose:", "axis 1", "effective kernel", "kernel 3", &value]);
    }
}

#[test]
fn case_36_huge_effective_kernel_that_still_fits() {
    // Twice (2^62 - 1) plus 1 is isize::MAX. The input is smaller than the kernel, and nothing
    // overflows.
    #[cfg(target_pointer_width = "64")]
    expect(
        conv().dilations([(1 << 62) - 1]).geometry(&X),
        InvalidShape,
        &["Conv:", "axis 0", "padded input 5", "effective kernel 9223372036854775807"],
    );
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_37_sum_of_pads() {
    let result = conv_2d().pads([0, 1 << 62, 0, 1 << 62]).geometry(&X_2D);
    expect(result, Overflow, &["Conv:", "axis 1", "padded input 9223372036854775813"]);
    let result = conv().pads([i64::MAX, i64::MAX]).geometry(&X);
    expect(result, Overflow, &["Conv:", "axis 0", "padded input"]);
    // ConvTranspose subtracts them.
    let result = transposed().pads([i64::MAX, i64::MAX]).geometry(&X);
    expect(result, InvalidShape, &["ConvTranspose:", "axis 0", "output size -18446744073709551607"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_38_output_size() {
    // The padding fits an axis, but the output does not fit an allocation.
    let result = conv().pads([1 << 61, 0]).geometry(&X);
    expect(result, Overflow, &["Conv:", "Y of shape", "2305843009213693955"]);
    // stride * (input - 1)
    let result = transposed_2d().strides([1, 1 << 61]).geometry(&X_2D);
    expect(result, Overflow, &["ConvTranspose:", "axis 1", "output size"]);
    let result = transposed().strides([i64::MAX]).geometry(&[1, 1, 1 << 59]);
    expect(result, Overflow, &["ConvTranspose:", "axis 0", "output size"]);
    // SAME: input * stride, a little more than the natural size.
    let result = ConvTranspose::new([1, 1, 1]).strides([i64::MAX - 1]).auto_pad(SameUpper).geometry(&[1, 1, 2]);
    expect(result, Overflow, &["ConvTranspose:", "axis 0", "input * stride"]);
    // Each size fits an axis, but their product does not fit.
    let result = transposed_2d().strides([1 << 40, 1 << 40]).geometry(&X_2D);
    expect(result, Overflow, &["ConvTranspose:", "Y of shape", "4398046511107"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_38_conv_same_padding() {
    // The total padding fits alone, but not together with the input.
    let result = Conv::new([1, 1, 2]).dilations([i64::MAX - 1]).auto_pad(SameUpper).geometry(&X);
    expect(result, Overflow, &["Conv:", "axis 0", "padded input"]);
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_39_channels_times_group() {
    let result = Conv::new([1 << 40, 1 << 40, 1]).group(1 << 40).geometry(&[1, 1 << 40, 1]);
    expect(result, Overflow, &["Conv:", "axis 1 (1099511627776)", "group (1099511627776)"]);
    let result = ConvTranspose::new([1 << 40, 1 << 40, 1]).group(1 << 40).geometry(&[1, 1 << 40, 1]);
    expect(result, Overflow, &["ConvTranspose:", "M", "axis 1 (1099511627776)", "group (1099511627776)"]);
    // M fits usize but not isize, and no tensor has an element.
    let result = ConvTranspose::new([0, 2, 1]).group(1 << 62).geometry(&[0, 0, 1]);
    expect(result, Overflow, &["ConvTranspose:", "M", "axis 1 (2)", "group (4611686018427387904)"]);
}

// -----------------------------------------------------------------------------------------------
// Nodes

#[test]
fn case_44_missing_inputs() {
    let (x, w) = (f32_input(&[1, 1, 5]), f32_input(&[1, 1, 3]));
    for op in OPERATORS {
        expect(Operator::from_node(op, 22, &[], &[]), InvalidInput, &[op, "input 0", "X", "missing"]);
        expect(Operator::from_node(op, 22, &[], &[None, w]), InvalidInput, &[op, "input 0", "X", "missing"]);
        expect(Operator::from_node(op, 22, &[], &[x]), InvalidInput, &[op, "input 1", "W", "missing"]);
        expect(Operator::from_node(op, 22, &[], &[x, None, x]), InvalidInput, &[op, "input 1", "W", "missing"]);
    }
}

#[test]
fn case_45_too_many_inputs() {
    let (x, w, b) = (f32_input(&[1, 1, 5]), f32_input(&[1, 1, 3]), f32_input(&[1]));
    for op in OPERATORS {
        expect(Operator::from_node(op, 22, &[], &[x, w, b, b]), InvalidInput, &[op, "4 inputs", "at most 3"]);
        expect(Operator::from_node(op, 22, &[], &[x, w, None, None]), InvalidInput, &[op, "4 inputs", "at most 3"]);
    }
}

#[test]
fn case_46_attributes_of_the_wrong_type() {
    let wrong: [(&str, Attribute<'_>, &str, &str); 12] = [
        ("strides", Floats(&[1.0]), "FLOATS", "INTS"),
        ("strides", Int(1), "INT,", "INTS"),
        ("dilations", String("1"), "STRING", "INTS"),
        ("pads", Strings(&["0", "0"]), "STRINGS", "INTS"),
        ("kernel_shape", Other("TENSOR"), "TENSOR", "INTS"),
        ("group", Float(1.0), "FLOAT", "INT"),
        ("group", Ints(&[1]), "INTS", "INT"),
        ("auto_pad", Int(0), "INT", "STRING"),
        ("auto_pad", Strings(&["VALID"]), "STRINGS", "STRING"),
        ("pads", Float(0.0), "FLOAT", "INTS"),
        ("dilations", Other("GRAPH"), "GRAPH", "INTS"),
        ("strides", Floats(&[]), "FLOATS", "INTS"),
    ];
    for op in OPERATORS {
        for (name, value, found, expected) in wrong {
            let expected = format!("must be {expected}");
            expect(node(op, 22, &[(name, value)]), UnsupportedOperator, &[op, name, found, &expected]);
        }
    }
    for name in ["output_padding", "output_shape"] {
        let result = node("ConvTranspose", 22, &[(name, Int(1))]);
        expect(result, UnsupportedOperator, &["ConvTranspose:", name, "INT", "must be INTS"]);
    }
}

#[test]
fn case_47_unknown_dimensions() {
    let (x, w) = (f32_input(&[1, 1, 5]), f32_input(&[1, 1, 3]));
    for op in OPERATORS {
        let result = Operator::from_node(op, 22, &[], &[f32_input(&[1, 1, -1]), w]);
        expect(result, InvalidShape, &[op, "X", "-1", "axis 2"]);
        let result = Operator::from_node(op, 22, &[], &[x, f32_input(&[-7, 1, 3])]);
        expect(result, InvalidShape, &[op, "W", "-7", "axis 0"]);
        let result = Operator::from_node(op, 22, &[], &[x, w, f32_input(&[-1])]);
        expect(result, InvalidShape, &[op, "B", "-1", "axis 0"]);
        let result = Operator::from_attributes(op, 22, &[], &[1, -1, 3]);
        expect(result, InvalidShape, &[op, "W", "-1", "axis 1"]);
    }
}

/// Algorithms that know channels first alone say so.
#[test]
fn a_layout_that_an_algorithm_lacks() {
    use convoke::Layout::{ChannelsFirst, ChannelsLast};

    let refused = |operator: Operator, algorithm: &str| {
        let planner = Planner::new().algorithm(algorithm.parse().unwrap());
        let error = planner.plan::<f32>(operator, &[1, 2, 5]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        error.to_string()
    };
    let conv = Operator::from(Conv::new([2, 2, 3]));
    let message = refused(conv.clone().layouts(ChannelsLast, ChannelsFirst), "gemm");
    assert!(message.contains("X has its channels last, only channels first"), "{message}");
    let message = refused(conv.layouts(ChannelsFirst, ChannelsLast), "gemm");
    assert!(message.contains("Y has its channels last, only channels first"), "{message}");
    let transposed = Operator::from(ConvTranspose::new([2, 2, 3])).layouts(ChannelsFirst, ChannelsLast);
    let message = refused(transposed, "winograd");
    assert!(message.contains("Y has its channels last, only for Conv"), "{message}");
}

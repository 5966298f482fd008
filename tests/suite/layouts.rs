//! Channels last: in X and Y, alone and together, and pixels of wider tensors.

use crate::common::operands::bits;
use crate::common::{Combination, Context, Layer, Operands, Oracle, isas, layers};
use convoke::Layout::{ChannelsFirst, ChannelsLast};
use convoke::{Activation, Conv, ConvTranspose, ErrorKind, Layout, Planner, Run, reference};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// A tensor `(images, channels, positions)` with its channels last.
fn to_last<T: Copy>(x: &[T], (channels, positions): (usize, usize)) -> Vec<T> {
    let image =
        |image: &[T]| (0..positions * channels).map(|i| image[i % channels * positions + i / channels]).collect();
    x.chunks_exact((channels * positions).max(1)).flat_map(|x| -> Vec<T> { image(x) }).collect()
}

/// The definition does not depend on how tensors lie.
#[test]
fn the_definition_is_the_same_in_all_layouts() {
    for layer in layers::hard() {
        let first = layer.geometry();
        let operands = Operands::<f32>::uniform(&first, 5).with_bias(&first);
        let bias = operands.bias.as_deref();
        let expected = reference::all(&first, &operands.x, &operands.w, bias);
        let (inputs, outputs) =
            ((first.in_channels, first.input_spatial()), (first.out_channels, first.output_spatial()));
        for (x_layout, y_layout) in
            [(ChannelsLast, ChannelsFirst), (ChannelsFirst, ChannelsLast), (ChannelsLast, ChannelsLast)]
        {
            let geometry =
                Layer { operator: layer.operator.clone().layouts(x_layout, y_layout), ..layer.clone() }.geometry();
            let x = if x_layout == ChannelsLast { to_last(&operands.x, inputs) } else { operands.x.clone() };
            let want = if y_layout == ChannelsLast { to_last(&expected, outputs) } else { expected.clone() };
            assert_eq!(reference::all(&geometry, &x, &operands.w, bias), want, "{layer}, {x_layout} to {y_layout}");
        }
    }
}

/// Every algorithm that takes channels last, on the hard layers. Where one tensor alone has them, the
/// two mixed pairs and the activations take turns.
#[test]
fn hard_layers_agree_with_channels_last() {
    const ACTIVATIONS: [Activation; 2] = [Activation::None, Activation::Silu];
    fn check<T: Scalar>() {
        for (index, layer) in layers::hard_in::<T>().into_iter().enumerate() {
            check_layer::<T>(&layer.clone().channels_last(), &ACTIVATIONS);
            let mixed = [[ChannelsFirst, ChannelsLast], [ChannelsLast, ChannelsFirst]][index % 2];
            check_layer::<T>(&layer.with_layouts(mixed), &ACTIVATIONS[index / 2 % 2..][..1]);
        }
    }
    fn check_layer<T: Scalar>(layer: &Layer, activations: &[Activation]) {
        let geometry = layer.geometry();
        let operands = Operands::<T>::uniform(&geometry, 7).with_bias(&geometry).with_residual(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        let mut count = 0;
        for combination in Combination::distinct() {
            for &activation in activations {
                let Some(plan) = combination.plan::<T>(layer, |planner| planner.activation(activation)) else {
                    continue;
                };
                let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
                let y = operands.run_both_ways(&plan);
                assert_eq!(oracle.check(combination.algorithm, activation, &y), Ok(()), "{plan:?}");
                count += 1;
            }
        }
        assert!(count > 0 || geometry.output_len() == 0, "no algorithm takes {layer}");
    }
    for_each_type!(check());
}

/// Groups of several channels that are parts of a vector, also at the end of the channels.
#[test]
fn groups_of_few_channels_agree() {
    fn check<T: Scalar>() {
        let mut taken = 0;
        for (group, groups) in [(2, 1), (2, 9), (4, 3), (4, 8), (8, 2), (8, 35)] {
            let channels = group * groups;
            let conv = Conv::new([channels, group, 3, 3]).group(groups as i64);
            let transposed = ConvTranspose::new([channels, group, 4, 3]).group(groups as i64);
            for layer in [
                Layer::new(conv.clone().pads([1, 1, 1, 1]), [2, channels, 7, 9]),
                Layer::new(conv.clone().strides([2, 2]).pads([0, 1, 1, 1]), [1, channels, 8, 15]),
                Layer::new(conv.dilations([2, 1]), [1, channels, 6, 20]),
                Layer::new(transposed.strides([2, 1]).pads([1, 1, 0, 1]), [1, channels, 4, 5]),
            ] {
                for layouts in [[ChannelsLast; 2], [ChannelsFirst, ChannelsLast], [ChannelsLast, ChannelsFirst]] {
                    let layer = layer.clone().with_layouts(layouts);
                    let geometry = layer.geometry();
                    let operands = Operands::<T>::uniform(&geometry, 3).with_bias(&geometry).with_residual(&geometry);
                    let oracle = Oracle::new(&geometry, &operands);
                    for isa in isas() {
                        let planner = Planner::new().isa(isa).algorithm(named("pixel-depthwise"));
                        let planner = planner.activation(Activation::Relu);
                        // Groups of 8 are too large for vectors of 4 lanes.
                        let plan = match planner.plan::<T>(layer.operator.clone(), &layer.x_shape) {
                            Err(_) if group == 8 => continue,
                            plan => plan.unwrap(),
                        };
                        let _context = Context(|| format!("{isa}, {}: {layer}", T::DTYPE));
                        let y = operands.run_both_ways(&plan);
                        assert_eq!(oracle.check(named("pixel-depthwise"), Activation::Relu, &y), Ok(()), "{plan:?}");
                        taken += 1;
                    }
                }
            }
        }
        assert!(taken > 0, "no kernel takes such groups");
    }
    for_each_type!(check());
}

/// Y is larger than 4 MiB, so that tiles of Conv prefetch what the next ones read and write: at the end of X and Y, too.
#[test]
fn depthwise_layers_of_large_outputs_prefetch() {
    let transposed = ConvTranspose::new([64, 1, 3, 4]).group(64);
    for layer in [
        Layer::new(Conv::new([64, 1, 3, 3]).group(64).pads([1, 1, 1, 1]), [1, 64, 129, 131]),
        Layer::new(Conv::new([64, 1, 5, 5]).group(64).strides([2, 2]).pads([2, 2, 2, 2]), [1, 64, 259, 257]),
        Layer::new(transposed.strides([2, 2]).pads([1, 1, 1, 1]), [1, 64, 66, 66]),
    ] {
        let layer = layer.channels_last();
        let geometry = layer.geometry();
        assert!(geometry.output_len() * 4 > 4 << 20, "{layer}");
        let operands = Operands::<f32>::uniform(&geometry, 7).with_bias(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        for isa in isas() {
            let planner = Planner::new().isa(isa).algorithm(named("pixel-depthwise"));
            let y = operands.run(&planner.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap());
            assert_eq!(oracle.check(named("pixel-depthwise"), Activation::None, &y), Ok(()), "{isa}, {layer}");
        }
    }
}

/// X, residual and Y are channels of wider tensors. What lies between their pixels is not touched.
#[test]
fn pixels_of_wider_tensors_are_read_and_written_in_place() {
    fn check<T: Scalar>(layer: &Layer, algorithm: &str) {
        let geometry = layer.geometry();
        // Sums without rounding, because taps that are joined are summed in another order.
        let operands = Operands::<T>::integers(&geometry, 2, 9);
        for isa in isas() {
            let plan =
                Planner::new().isa(isa).algorithm(named(algorithm)).activation(Activation::LeakyRelu { alpha: 0.5 });
            let plan = plan.plan::<T>(layer.operator.clone(), &layer.x_shape).unwrap();
            let expected = bits(&operands.run(&plan));
            for gaps in [[Some(3), Some(2), Some(5)], [None, None, Some(1)]] {
                assert_eq!(bits(&operands.run_apart(&plan, gaps)), expected, "{plan:?}");
            }
        }
    }
    let layers = [
        Layer::new(Conv::new([19, 7, 3, 3]).pads([1, 1, 1, 1]), [2, 7, 9, 8]),
        Layer::new(Conv::new([6, 9, 2]).group(2).strides([2]), [1, 18, 31]),
        Layer::new(Conv::new([5, 3, 3, 3]).pads([1, 1, 1, 1]).strides([2, 2]), [1, 3, 9, 11]),
        // Few channels, whose taps could be joined if pixels were neighbours.
        Layer::new(Conv::new([5, 3, 3, 3]), [1, 3, 9, 11]),
        Layer::new(ConvTranspose::new([4, 17, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [2, 4, 5, 6]),
    ];
    for layer in layers.map(Layer::channels_last) {
        for algorithm in ["pixel-gemm", "naive"] {
            for_each_type!(check(&layer, algorithm));
        }
    }
    let of_others = [
        ("winograd", Layer::new(Conv::new([19, 7, 3, 3]).pads([1, 1, 1, 1]), [2, 7, 9, 8])),
        ("winograd", Layer::new(Conv::new([40, 3, 3, 3]).dilations([2, 2]), [1, 3, 19, 21])),
        ("pixel-depthwise", Layer::new(Conv::new([21, 1, 3, 3]).group(21).pads([1, 1, 1, 1]), [2, 21, 9, 8])),
        ("pixel-depthwise", Layer::new(Conv::new([12, 4, 3, 3]).group(3).strides([2, 2]), [1, 12, 9, 8])),
    ];
    for (algorithm, layer) in of_others {
        let layer = layer.channels_last();
        for_each_type!(check(&layer, algorithm));
    }
}

#[test]
fn distances_of_pixels_that_cannot_be_are_refused() {
    let conv = |layout: Layout| Conv::new([2, 3, 1]).layouts(layout, layout);
    let plan = Planner::new().plan::<f32>(conv(ChannelsFirst), &[1, 3, 4]).unwrap();
    let packed = plan.pack(&[1.0; 6], None).unwrap();
    let (x, mut y) = ([1.0; 12], [5.0; 8]);
    let error = plan.run(Run::new(&x, &packed, &mut y).x_pixel_stride(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidShape);
    assert_eq!(error.to_string(), "Conv: X has a pixel stride of 3 and its channels first: only channels last can");
    let plan = Planner::new().plan::<f32>(conv(ChannelsLast), &[1, 3, 4]).unwrap();
    let packed = plan.pack(&[1.0; 6], None).unwrap();
    let error = plan.run(Run::new(&x, &packed, &mut y).y_pixel_stride(1)).unwrap_err();
    assert_eq!(error.to_string(), "Conv: Y has a pixel stride of 1, a pixel has 2 elements");
    let error = plan.run(Run::new(&x, &packed, &mut y).x_pixel_stride(4)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::BufferLength, "Conv: X has 12 elements, 1 images of 15 elements, 16 apart, ask for 15")
    );
    let error = plan.run(Run::new(&x, &packed, &mut y).x_pixel_stride(usize::MAX / 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overflow);
    assert_eq!(y, [5.0; 8]);
}

//! Against candle's own convolutions, where it has them.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use convoke::{Conv, ConvTranspose};
use convoke_candle::{Convolution, conv_transpose2d, conv2d};

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, wanted: &Tensor, tolerance: f64) {
    assert_eq!((got.dims(), got.dtype()), (wanted.dims(), wanted.dtype()));
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (got, wanted) = (values(got).unwrap(), values(wanted).unwrap());
    let largest = wanted.iter().fold(0.0_f64, |largest, v| largest.max(v.abs()));
    assert!(largest > 0.0);
    for (got, wanted) in got.iter().zip(&wanted) {
        assert!((got - wanted).abs() <= tolerance * largest, "{got} instead of {wanted}");
    }
}

#[test]
fn conv2d_is_candles() {
    for (x, w, [padding, stride, dilation, groups]) in [
        ([2, 3, 11, 9], [4, 3, 3, 3], [1, 1, 1, 1]),
        ([1, 8, 15, 15], [8, 1, 3, 3], [1, 2, 1, 8]),
        ([1, 6, 20, 17], [9, 2, 5, 3], [2, 2, 2, 3]),
        ([1, 32, 28, 28], [32, 32, 3, 3], [1, 1, 1, 1]),
        ([3, 16, 7, 7], [24, 16, 1, 1], [0, 1, 1, 1]),
    ] {
        let (x, w) = (random(&x), random(&w));
        let wanted = x.conv2d(&w, padding, stride, dilation, groups).unwrap();
        assert_close(&conv2d(&x, &w, padding, stride, dilation, groups).unwrap(), &wanted, 1e-5);
    }
}

#[test]
fn conv_transpose2d_is_candles_and_has_groups() {
    let (x, w) = (random(&[2, 6, 7, 5]), random(&[6, 4, 3, 3]));
    for [padding, output_padding, stride, dilation] in [[0, 0, 1, 1], [1, 1, 2, 1], [2, 0, 3, 2]] {
        let wanted = x.conv_transpose2d(&w, padding, output_padding, stride, dilation).unwrap();
        let got = conv_transpose2d(&x, &w, padding, output_padding, stride, dilation, 1).unwrap();
        assert_close(&got, &wanted, 1e-5);
    }
    // Each group alone, by candle.
    let half = |i: usize| x.narrow(1, 3 * i, 3)?.contiguous()?.conv_transpose2d(&w.narrow(0, 3 * i, 3)?, 1, 0, 2, 1);
    let wanted = Tensor::cat(&[half(0).unwrap(), half(1).unwrap()], 1).unwrap();
    assert_close(&conv_transpose2d(&x, &w, 1, 0, 2, 1, 2).unwrap(), &wanted, 1e-5);
}

#[test]
fn a_layer_has_asymmetric_pads_strides_and_a_bias() {
    let (x, w, b) = (random(&[2, 3, 10, 12]), random(&[5, 3, 3, 3]), random(&[5]));
    let conv = Conv::new(w.dims()).pads([0, 2, 1, 3]).strides([2, 2]);
    let layer = Convolution::new(conv, x.dims(), &w, Some(&b)).unwrap();
    let padded = x.pad_with_zeros(2, 0, 1).unwrap().pad_with_zeros(3, 2, 3).unwrap();
    let wanted = padded.conv2d(&w, 0, 2, 1, 1).unwrap().broadcast_add(&b.reshape((1, 5, 1, 1)).unwrap()).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &wanted, 1e-5);
    // Another size, by the same weights.
    let x = random(&[1, 3, 5, 31]);
    let padded = x.pad_with_zeros(2, 0, 1).unwrap().pad_with_zeros(3, 2, 3).unwrap();
    let wanted = padded.conv2d(&w, 0, 2, 1, 1).unwrap().broadcast_add(&b.reshape((1, 5, 1, 1)).unwrap()).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &wanted, 1e-5);
}

#[test]
fn any_number_of_axes() {
    let (x, w) = (random(&[2, 4, 30]), random(&[6, 4, 5]));
    let layer = Convolution::new(Conv::new(w.dims()).pads([2, 2]), x.dims(), &w, None).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &x.conv1d(&w, 2, 1, 1, 1).unwrap(), 1e-5);
    let (x, w) = (random(&[1, 2, 4, 5, 6]), random(&[2, 3, 2, 2, 2]));
    let layer = Convolution::new(ConvTranspose::new(w.dims()).strides([2, 2, 2]), x.dims(), &w, None).unwrap();
    assert_eq!(layer.forward(&x).unwrap().dims(), [1, 3, 8, 10, 12]);
}

#[test]
fn other_types() {
    let (x, w) = (random(&[1, 8, 9, 9]), random(&[8, 8, 3, 3]));
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let (x, w) = (x.to_dtype(dtype).unwrap(), w.to_dtype(dtype).unwrap());
        // candle sums 16-bit types in themselves.
        let exact = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
        let wanted = exact(&x).conv2d(&exact(&w), 1, 1, 1, 1).unwrap().to_dtype(dtype).unwrap();
        assert_close(&conv2d(&x, &w, 1, 1, 1, 1).unwrap(), &wanted, tolerance);
    }
    let error = conv2d(&x, &w.to_dtype(DType::I64).unwrap(), 1, 1, 1, 1).unwrap_err().to_string();
    assert!(error.contains("weights of I64"), "{error}");
    assert!(conv2d(&x, &w.to_dtype(DType::F64).unwrap(), 1, 1, 1, 1).is_err());
}

#[test]
fn views_of_larger_tensors() -> Result<()> {
    let (x, w) = (random(&[3, 9, 8, 10]), random(&[5, 4, 3, 3]));
    let views = [
        x.narrow(1, 2, 4)?,
        x.narrow(0, 1, 1)?.narrow(1, 5, 4)?,
        x.narrow(1, 0, 4)?.transpose(2, 3)?,
        x.narrow(3, 1, 7)?.narrow(1, 0, 4)?,
    ];
    for view in views {
        let wanted = view.contiguous()?.conv2d(&w, 1, 1, 1, 1)?;
        assert_close(&conv2d(&view, &w, 1, 1, 1, 1)?, &wanted, 1e-5);
    }
    let narrow = random(&[9, 4, 3, 3]).narrow(0, 3, 5)?;
    let x = x.narrow(1, 0, 4)?;
    let wanted = x.contiguous()?.conv2d(&narrow.contiguous()?, 0, 1, 1, 1)?;
    assert_close(&conv2d(&x, &narrow, 0, 1, 1, 1)?, &wanted, 1e-5);
    Ok(())
}

#[test]
fn what_has_no_gradient_says_so() {
    let (x, w) = (Var::from_tensor(&random(&[1, 2, 5, 5])).unwrap(), random(&[2, 2, 3, 3]));
    let y = conv2d(&x, &w, 0, 1, 1, 1).unwrap();
    assert!(y.sum_all().unwrap().backward().is_err());
    let w = Var::from_tensor(&w).unwrap();
    let error = conv2d(&x, &w, 0, 1, 1, 1).unwrap_err().to_string();
    assert!(error.contains("Conv: the weights are packed once, and variables may change"), "{error}");
    assert!(conv2d(&x, &w.as_tensor().detach(), 0, 1, 1, 1).is_ok());
}

#[test]
fn mistakes_are_errors_that_name_the_rule() {
    let (x, w) = (random(&[1, 4, 6, 6]), random(&[4, 4, 3, 3]));
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    let got = message(conv2d(&x, &w, 0, 1, 1, 2));
    assert!(got.contains("Conv: X has C = 4 channels (axis 1), W's axis 1 (4) * group (2) is 8"), "{got}");
    let got = message(conv2d(&x, &w, 0, 0, 1, 1));
    assert!(got.contains("Conv: spatial axis 0: strides is 0, must be at least 1"), "{got}");
    assert!(conv2d(&x, &w, usize::MAX, 1, 1, 1).is_err());
    let layer = Convolution::new(Conv::new([4, 4, 3, 3]), x.dims(), &w, None).unwrap();
    let got = message(layer.forward(&random(&[1, 4, 2, 6])));
    assert!(got.contains("Conv: spatial axis 0: padded input 2"), "{got}");
    let b = random(&[3]);
    let got = Convolution::new(Conv::new([4, 4, 3, 3]), x.dims(), &w, Some(&b)).err().unwrap().to_string();
    assert!(got.contains("Conv: B has 3 elements, must have M = 4"), "{got}");
    let got = Convolution::new(Conv::new([4, 4, 9]), x.dims(), &w, None).err().unwrap().to_string();
    assert!(got.contains("Conv: W has shape [4, 4, 3, 3], must have [4, 4, 9]"), "{got}");
}

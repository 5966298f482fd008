//! The program of docs/linking.md, word for word.

#[test]
fn the_program_runs() -> candle_core::Result<()> {
    use candle_core::{DType, Device, Module, Tensor};
    use convoke::Conv;
    use convoke_candle::Convolution; // bindings/examples/candle: copy its one file

    let x = Tensor::ones((1, 8, 16, 16), DType::F32, &Device::Cpu)?;
    let w = Tensor::ones((8, 1, 3, 3), DType::F32, &Device::Cpu)?;
    // Padding at one end, which candle's own conv2d does not have.
    let conv = Conv::new(w.dims()).group(8).strides([2, 2]).pads([0, 0, 1, 1]);
    let layer = Convolution::new(conv, x.dims(), &w, None)?; // plans, and packs the weights
    assert_eq!(layer.forward(&x)?.dims(), [1, 8, 8, 8]);
    Ok(())
}

#[test]
fn the_program_is_that_of_the_page() {
    assert!(convoke_examples::lines_of_page_in(include_str!("page.rs"), "convoke_candle") > Some(8));
}

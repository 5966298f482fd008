//! The program of docs/linking.md, word for word.

use tract_onnx::prelude::*;

#[test]
fn the_program_runs() -> TractResult<()> {
    // The folder of a model of one layer.
    std::env::set_current_dir("../../../tests/data/onnx/pytorch-converted/test_Conv2d_padding")?;

    let model = tract_onnx::onnx().model_for_path("model.onnx")?.into_typed()?;
    let (model, replaced) = convoke_tract::with_convoke(model)?; // bindings/examples/tract: copy its one file
    let runnable = model.into_optimized()?.into_runnable()?;

    assert_eq!(replaced.to_string(), "1 of 1 convolutions run on convoke");
    let x = Tensor::zero::<f32>(&[2, 3, 6, 6])?;
    assert_eq!(runnable.run(tvec!(x.into_tvalue()))?[0].shape(), [2, 4, 3, 3]);
    Ok(())
}

#[test]
fn the_program_is_that_of_the_page() {
    assert_eq!(convoke_examples::lines_of_page_in(include_str!("page.rs"), "convoke_tract"), Some(3));
}

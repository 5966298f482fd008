//! tract, by its optimised plan. Its plans run on one thread.

#![forbid(unsafe_code)]

use std::sync::Arc;

use anyhow::{Result, ensure};
use compare_workers::{Layer, serve};
use tract_onnx::prelude::*;

struct Tract {
    model: Arc<TypedRunnableModel>,
    x: TValue,
}

impl Layer for Tract {
    type Output = TVec<TValue>;

    fn run(&mut self) -> Result<Self::Output> {
        self.model.run(tvec!(self.x.clone()))
    }

    fn values(output: Self::Output) -> Result<Vec<f32>> {
        Ok(output[0].to_plain_array_view::<f32>()?.iter().copied().collect())
    }
}

fn main() -> Result<()> {
    serve(|request, operands| {
        ensure!(request.threads == 1, "tract runs a layer on one thread");
        let fact = InferenceFact::dt_shape(f32::datum_type(), &request.row.x[..]);
        let model = tract_onnx::onnx().model_for_path(request.dir.join("model.onnx"))?.with_input_fact(0, fact)?;
        let model = model.into_optimized()?.into_runnable()?;
        Ok(Tract { model, x: Tensor::from_shape(&request.row.x, &operands.x)?.into_tvalue() })
    })
}

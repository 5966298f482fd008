//! rten, with prepacked weights and a thread pool of the requested size.

#![forbid(unsafe_code)]

use std::sync::Arc;

use anyhow::{Context, Result};
use compare_workers::{Layer, serve};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

struct Rten {
    model: Model,
    x: Tensor<f32>,
    ids: (NodeId, NodeId),
    options: RunOptions,
}

impl Layer for Rten {
    type Output = Value;

    fn run(&mut self) -> Result<Value> {
        let input = (self.ids.0, self.x.view().into());
        let outputs = self.model.run(vec![input], &[self.ids.1], Some(self.options.clone()))?;
        outputs.into_iter().next().context("no output")
    }

    fn values(output: Value) -> Result<Vec<f32>> {
        let tensor: Tensor<f32> = output.try_into()?;
        Ok(tensor.to_vec())
    }
}

fn main() -> Result<()> {
    serve(|request, operands| {
        let mut options = ModelOptions::with_all_ops();
        options.prepack_weights(true);
        let model = options.load_file(request.dir.join("model.onnx"))?;
        let ids = (model.node_id("x")?, model.node_id("y")?);
        let pool = Arc::new(ThreadPool::with_num_threads(request.threads));
        let options = RunOptions::default().with_thread_pool(Some(pool));
        Ok(Rten { model, x: Tensor::from_data(&request.row.x, operands.x), ids, options })
    })
}

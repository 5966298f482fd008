//! Times tract with its own convolutions and with convoke's, on one thread.
//!
//! ```text
//! convoke-tract                     ResNet-50's layers
//! convoke-tract MODEL.onnx...       whole models, of random inputs; free sizes are 1
//! convoke-tract --seconds S ...     each for S seconds; 2 if nothing is said
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use convoke_examples::{Layer, Operands, Table, arguments, difference, in_turn, resnet50, uniform};
use convoke_tract::with_convoke;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{RunnableModel, TDim, TractResult};
use tract_onnx::tract_core::ops::cnn::{Conv, KernelFormat, PaddingSpec, PoolSpec};
use tract_onnx::tract_core::ops::nn::DataFormat;

type Runnable = Arc<RunnableModel<TypedFact, Box<dyn TypedOp>>>;

fn main() -> Result<()> {
    let (duration, paths) = arguments(std::env::args_os().skip(1))?;
    let mut table = Table::new("tract");
    for layer in resnet50().iter().filter(|_| paths.is_empty()) {
        let geometry = layer.geometry()?;
        let (model, x) = layer_model(layer)?;
        let (times, difference) = compare(&model, &[x], duration)?;
        table.layer(&layer.name, &geometry, times, difference);
    }
    for path in paths.iter().map(Path::new) {
        let (model, inputs) = load(path).with_context(|| path.display().to_string())?;
        let (times, difference) = compare(&model, &inputs, duration)?;
        table.model(&path.file_name().unwrap_or_default().to_string_lossy(), times, difference);
    }
    print!("{table}");
    Ok(())
}

/// The times of a model with tract's own convolutions and with convoke's, and the largest
/// difference of its outputs.
fn compare(model: &TypedModel, inputs: &[TValue], duration: Duration) -> Result<([Duration; 2], f64)> {
    let (replaced, report) = with_convoke(model.clone())?;
    ensure!(!report.replaced.is_empty(), "{report}");
    if !report.left.is_empty() {
        eprintln!("{report}");
    }
    let [own, ours] = [model.clone(), replaced].map(prepare);
    let (own, ours): (Runnable, Runnable) = (own?, ours?);
    let run = |model: &Runnable| -> TractResult<TVec<TValue>> { model.run(inputs.iter().cloned().collect()) };
    let mut largest = 0.0_f64;
    for (got, wanted) in run(&ours)?.iter().zip(run(&own)?.iter()) {
        let (got, wanted) = (got.cast_to::<f32>()?, wanted.cast_to::<f32>()?);
        let (got, wanted) = (got.try_as_plain_ram()?, wanted.try_as_plain_ram()?);
        largest = largest.max(difference(got.as_slice()?, wanted.as_slice()?));
    }
    let times = in_turn(duration, || run(&own).map(|_| ()), || run(&ours).map(|_| ()))?;
    Ok((times, largest))
}

fn prepare(model: TypedModel) -> TractResult<Runnable> {
    model.into_optimized()?.into_runnable()
}

/// A model of one layer, and its input.
fn layer_model(layer: &Layer) -> Result<(TypedModel, TValue)> {
    let geometry = layer.geometry()?;
    let Operands { x, w, b } = Operands::<f32>::new(&geometry);
    let sizes = |sizes: &[i64]| sizes.iter().map(|size| Ok(usize::try_from(*size)?)).collect::<Result<TVec<_>>>();
    let (pads, axes) = (sizes(&layer.pads)?, geometry.axes.len());
    let spec = PoolSpec::new(
        DataFormat::NCHW,
        layer.w[2..].into(),
        PaddingSpec::Explicit(pads[..axes].into(), pads[axes..].into()),
        Some(sizes(&layer.dilations)?),
        Some(sizes(&layer.strides)?),
        geometry.in_channels,
        geometry.out_channels,
    );
    let conv = Conv { pool_spec: spec, kernel_fmt: KernelFormat::OIHW, group: geometry.group, q_params: None };
    let mut model = TypedModel::default();
    let source = model.add_source("x", f32::fact(&layer.x))?;
    let weights = model.add_const("w", Tensor::from_shape(&layer.w, &w)?)?;
    let bias = model.add_const("b", Tensor::from_shape(&[geometry.out_channels], &b)?)?;
    let y = model.wire_node("layer", conv, &[source, weights, bias])?;
    model.select_output_outlets(&y)?;
    Ok((model, Tensor::from_shape(&layer.x, &x)?.into_tvalue()))
}

/// A model with every free size set to 1, and random inputs.
fn load(path: &Path) -> Result<(TypedModel, Vec<TValue>)> {
    let mut model = tract_onnx::onnx().model_for_path(path)?.into_typed()?;
    let mut free = std::collections::HashMap::new();
    for outlet in model.input_outlets()? {
        for size in model.outlet_fact(*outlet)?.shape.iter() {
            free.extend(size.symbols().into_iter().map(|symbol| (symbol, TDim::Val(1))));
        }
    }
    model = model.set_symbols(&free)?;
    let inputs = model.input_outlets()?.iter().map(|outlet| {
        let fact = model.outlet_fact(*outlet)?;
        let shape = fact.shape.as_concrete().context("a size of an input is not known")?;
        let values: Vec<f32> = uniform(shape.iter().product(), 1.0, 5);
        Ok(Tensor::from_shape(shape, &values)?.cast_to_dt(fact.datum_type)?.into_owned().into_tvalue())
    });
    let inputs = inputs.collect::<Result<_>>()?;
    Ok((model, inputs))
}

//! Infers the shapes that a model lacks, with tract.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use convoke::DType;
use convoke_tools::onnx::graph::Graph;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::{Factoid, InferenceModelExt};

/// Adds the shapes of all values that the model's convolutions need.
///
/// # Errors
/// The call fails if an input of the model has unknown sizes, or if tract cannot read the model.
pub(crate) fn shapes(path: &Path, graph: &mut Graph) -> Result<()> {
    // The library panics on some invalid models. Its messages about its own code help no user.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(|| infer(path, graph)));
    panic::set_hook(hook);
    result.unwrap_or_else(|_| bail!("the library tract-onnx panicked on this model"))
}

fn infer(path: &Path, graph: &mut Graph) -> Result<()> {
    let onnx = tract_onnx::onnx().with_ignore_output_shapes(true);
    let mut model = onnx.model_for_path(path).map_err(library).context("reading the model to infer its shapes")?;
    for input in graph.inputs() {
        if let Some(shape) = &input.shape {
            let dims: Vec<TDim> = shape.iter().map(TDim::from).collect();
            let outlet = model.input_outlets().map_err(library)?.get(input.index).copied();
            let outlet = outlet.with_context(|| format!("the model has no input {:?}", input.name))?;
            let fact = model.outlet_fact(outlet).map_err(library)?.clone().with_shape(dims);
            model.set_outlet_fact(outlet, fact).map_err(library)?;
        }
    }
    // A shape that cannot be inferred is reported below, with the node that needs it.
    let _ = model.analyse(true);
    let missing = graph.missing();
    for node in model.nodes() {
        for (slot, output) in node.outputs.iter().enumerate() {
            let label = model.outlet_label(OutletId::new(node.id, slot)).unwrap_or(&node.name);
            let shape = output.fact.shape.as_concrete_finite().map_err(library)?;
            if let (true, Some(shape)) = (missing.contains(label), shape) {
                let dtype = output.fact.datum_type.concretize().and_then(element_type);
                let shape = shape.iter().map(|&size| i64::try_from(size)).collect::<Result<Vec<_>, _>>()?;
                graph.insert(label, dtype, &shape);
            }
        }
    }
    let open: Vec<_> = graph.inputs().into_iter().filter(|i| i.shape.is_none()).map(|i| i.name).collect();
    let complete = graph.missing().is_empty();
    ensure!(
        complete || open.is_empty(),
        "sizes of the model's inputs are open: {}; give them by --dim",
        open.join(", ")
    );
    Ok(())
}

fn element_type(datum: DatumType) -> Option<DType> {
    match datum {
        DatumType::F16 => Some(DType::F16),
        DatumType::F32 => Some(DType::F32),
        DatumType::F64 => Some(DType::F64),
        _ => None,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it over")]
fn library(error: TractError) -> anyhow::Error {
    anyhow!("{error:#}")
}

//! ONNX's own test vectors (`tests/data/onnx`, see the README there), with every algorithm that
//! accepts them and every ISA.

use std::path::{Path, PathBuf};

use crate::common::{Combination, Layer, Operands};
use convoke::{Algorithm, Planner, reference};
use convoke_tools::check::usual_transform_error;
use convoke_tools::onnx::{self, Model};

/// The tolerance of ONNX's runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

/// The number of test folders of each collection, so that none can be lost.
const COLLECTIONS: [(&str, usize); 4] =
    [("node_opset11", 15), ("node_opset22", 17), ("pytorch-converted", 28), ("pytorch-operator", 1)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/onnx")
}

/// Compares as numpy's `assert_allclose` does. `slack` is added for each channel: the errors of
/// transforms may be large relative to sums that cancel.
fn compare(y: &[f32], expected: &[f32], slack: &[f64]) -> Result<(), String> {
    if y.len() != expected.len() {
        return Err(format!("{} elements instead of {}", y.len(), expected.len()));
    }
    let each = (y.len() / slack.len().max(1)).max(1);
    for (index, (&y, &want)) in y.iter().zip(expected).enumerate() {
        let (y, want) = (f64::from(y), f64::from(want));
        if (y - want).abs() > ABSOLUTE + slack[index / each] + RELATIVE * want.abs() {
            return Err(format!("element {index} is {y}, expected {want}"));
        }
    }
    Ok(())
}

/// Runs all data sets of a folder; returns how many combinations ran.
fn check_folder(folder: &Path) -> usize {
    let name = folder.display();
    let model = Model::load(folder).unwrap_or_else(|error| panic!("{error:#}"));
    let model = model.unwrap_or_else(|| panic!("{name}: not a single Conv or ConvTranspose"));
    let mut runs = 0;
    for case in model.cases().unwrap_or_else(|error| panic!("{error:#}")) {
        let (operator, geometry) = case.operator().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let shape: Vec<_> = geometry.output_shape().iter().map(|&dim| dim as i64).collect();
        assert_eq!(shape, case.expected.dims, "{name}: shape of the output");
        let layer = Layer { operator, x_shape: geometry.input_shape() };
        let input =
            |index: usize| case.inputs.get(index).and_then(Option::as_ref).map(|t| t.slice::<f32>().unwrap().to_vec());
        let operands = Operands { x: input(0).unwrap(), w: input(1).unwrap(), bias: input(2), residual: None };
        let expected = case.expected.slice::<f32>().unwrap();
        let wide = reference::wide_magnitudes(&geometry, &operands.x, &operands.w);
        let slack = |algorithm: Option<Algorithm>| {
            let of = |wide: &f64| algorithm.map_or(0.0, |a| usual_transform_error::<f32>(a, *wide));
            wide.iter().map(of).collect::<Vec<_>>().repeat(geometry.batch)
        };
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner) else { continue };
            let slack = slack(Some(combination.algorithm));
            assert_eq!(compare(&operands.run(&plan), expected, &slack), Ok(()), "{name}: {combination}");
            runs += 1;
        }
        // Also with the planner's pick, as a user would run it.
        let plan = Planner::new().plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
        assert_eq!(compare(&operands.run(&plan), expected, &slack(None)), Ok(()), "{name}: {plan:?}");
    }
    runs
}

#[test]
fn every_folder_passes_on_every_path() {
    for (collection, count) in COLLECTIONS {
        let folders = onnx::find(&root().join(collection)).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(folders.len(), count, "{collection}: tests are missing, or new");
        for folder in folders {
            let runs = check_folder(&folder);
            assert!(runs >= 2 * crate::common::isas().count(), "{}: only {runs} combinations ran", folder.display());
        }
    }
    let all: usize = COLLECTIONS.iter().map(|(_, count)| count).sum();
    assert_eq!(
        onnx::find(&root()).unwrap_or_else(|error| panic!("{error:#}")).len(),
        all,
        "a collection is not listed here"
    );
}

#[test]
fn the_comparison_sees_what_is_wrong() {
    assert!(compare(&[1.0], &[1.0, 2.0], &[0.0]).is_err());
    assert!(compare(&[1.0, 2.01], &[1.0, 2.0], &[0.0]).is_err());
    assert!(compare(&[0.0, 1e-5], &[0.0, 0.0], &[0.0]).is_err());
    assert!(compare(&[1.0005, -2.001], &[1.0, -2.0], &[0.0]).is_ok());
}

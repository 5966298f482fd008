//! `onnx-test`: runs ONNX test folders.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use convoke::{Algorithm, DType, Geometry, Isa, Planner, Run, bf16, f16, reference};
use convoke_tools::check::{distance, usual_transform_error};
use convoke_tools::data::Numbers;
use convoke_tools::onnx::{self, Model, OnnxCase, OnnxTensor, Stored};
use convoke_tools::shapes::describe;

use super::{Verdict, is_rejection};
use crate::options::{BAD, Choice, GOOD};
use crate::output::text::show;

/// Run ONNX test folders, and compare with the outputs they expect
///
/// Searches the given folders, and all folders in them, for tests in the form of ONNX's own: a
/// model.onnx with a single Conv or ConvTranspose node, and one or more test_data_set_* folders
/// with input_*.pb and output_0.pb. The weights may be inputs or initializers; the element type
/// may be float16, bfloat16, float or double. Folders with other models are skipped.
///
/// Prints one line a data set, and a closing count. The exit status is 1 if any failed.
#[derive(Debug, clap::Args)]
pub(crate) struct OnnxTestArgs {
    /// Folders to search
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Run every algorithm that accepts the node, not the planner's pick only
    #[arg(long, conflicts_with = "algorithm")]
    all_algorithms: bool,
    /// Largest error, relative to the expected value [default: 1e-3; for bfloat16 8e-3, which is
    /// one unit in its last place]
    #[arg(long, value_parser = parse_tolerance, allow_negative_numbers = true)]
    rtol: Option<f64>,
    /// Largest absolute error that is allowed in addition
    #[arg(long, default_value = "1e-7", value_parser = parse_tolerance, allow_negative_numbers = true)]
    atol: f64,
    /// Print failures and the count only
    #[arg(short, long)]
    quiet: bool,
}

fn parse_tolerance(text: &str) -> Result<f64> {
    let value: f64 = text.parse()?;
    ensure!(value.is_finite() && value >= 0.0, "a tolerance is a finite number that is not negative");
    Ok(value)
}

/// How often each outcome occurred.
#[derive(Debug, Default)]
struct OutcomeCounts {
    passed: usize,
    failed: usize,
    /// Folders with other models.
    skipped: usize,
    /// Data sets that the forced algorithm does not accept.
    rejected: usize,
}

/// How a data set was run, and its error.
#[derive(Debug)]
struct Outcome {
    geometry: Geometry,
    dtype: DType,
    algorithm: Algorithm,
    isa: Isa,
    /// Largest distance from the expected output.
    error: f64,
    /// What is wrong with the output.
    failure: Option<String>,
}

/// Runs all folders.
pub(crate) fn run(args: &OnnxTestArgs) -> Result<Verdict> {
    let planner = args.choice.planner()?;
    let mut count = OutcomeCounts::default();
    for dir in &args.dirs {
        for folder in onnx::find(dir)? {
            args.run_folder(&planner, &folder, &mut count)?;
        }
    }
    if count.skipped > 0 {
        eprintln!("{} folders skipped: their models are not a single Conv or ConvTranspose node", count.skipped);
    }
    if count.rejected > 0 {
        eprintln!("{} data sets skipped: the algorithm does not accept the node", count.rejected);
    }
    if count.passed + count.failed == 0 {
        bail!("no test was run");
    }
    show(|out| writeln!(out, "{} passed, {} failed", count.passed, count.failed))?;
    Ok(Verdict::from_good(count.failed == 0))
}

impl OnnxTestArgs {
    fn run_folder(&self, planner: &Planner, folder: &Path, count: &mut OutcomeCounts) -> Result<()> {
        let name = folder.display();
        let model = match Model::load(folder) {
            Ok(Some(model)) => model,
            Ok(None) => {
                count.skipped += 1;
                return Ok(());
            }
            Err(error) => return self.report(&name, Err(error), count),
        };
        let cases = match model.cases() {
            Ok(cases) => cases,
            Err(error) => return self.report(&name, Err(error), count),
        };
        for case in &cases {
            self.run_case(planner, &format!("{name}/{}", case.name), case, count)?;
        }
        Ok(())
    }

    /// Runs one data set with each algorithm that was asked for.
    fn run_case(&self, planner: &Planner, name: &str, case: &OnnxCase<'_>, count: &mut OutcomeCounts) -> Result<()> {
        let algorithms = match self.all_algorithms {
            true => Algorithm::all().map(Some).collect(),
            false => vec![self.choice.algorithm],
        };
        for algorithm in algorithms {
            let planner = algorithm.map_or(planner.clone(), |algorithm| planner.clone().algorithm(algorithm));
            let outcome = match case.expected.dtype() {
                DType::F16 => self.check::<f16>(case, &planner, algorithm.is_some()),
                DType::BF16 => self.check::<bf16>(case, &planner, algorithm.is_some()),
                DType::F32 => self.check::<f32>(case, &planner, algorithm.is_some()),
                DType::F64 => self.check::<f64>(case, &planner, algorithm.is_some()),
            };
            match outcome {
                Err(error) if algorithm.is_some() && is_rejection(&error) => {
                    count.rejected += usize::from(!self.all_algorithms);
                }
                outcome => self.report(&name, outcome, count)?,
            }
        }
        Ok(())
    }

    /// Runs one data set, and compares the output with the expected one. A forced algorithm may
    /// also have the errors of its transforms, which are large relative to sums that cancel.
    fn check<T: Stored>(&self, case: &OnnxCase<'_>, planner: &Planner, is_forced: bool) -> Result<Outcome> {
        let (operator, geometry) = case.operator()?;
        let input = |index: usize| case.inputs.get(index).and_then(Option::as_ref);
        let x = input(0).context("no X")?.slice::<T>()?;
        let w = input(1).context("no W")?.slice::<T>()?;
        let bias = input(2).map(OnnxTensor::slice::<T>).transpose()?;

        let plan = planner.plan::<T>(operator, &geometry.input_shape())?;
        let packed = plan.pack(w, bias)?;
        // NaN shows elements that are not written.
        let mut y = vec![T::from_f64(f64::NAN); geometry.output_len()];
        plan.run(Run::new(x, &packed, &mut y))?;

        let slack = if is_forced {
            let wide = reference::wide_magnitudes(&geometry, x, w);
            wide.into_iter().map(|wide| usual_transform_error::<T>(plan.algorithm(), wide)).collect()
        } else {
            vec![0.0; geometry.out_channels]
        };
        let (error, failure) = self.compare(&geometry, &y, &case.expected, &slack)?;
        Ok(Outcome { dtype: T::DTYPE, algorithm: plan.algorithm(), isa: plan.isa(), geometry, error, failure })
    }

    /// The largest error, and the text of the failure if an error exceeds the tolerance plus the
    /// channel's `slack`.
    fn compare<T: Stored>(
        &self,
        geometry: &Geometry,
        y: &[T],
        expected: &OnnxTensor,
        slack: &[f64],
    ) -> Result<(f64, Option<String>)> {
        let (shape, expected_shape) = (geometry.output_shape(), expected.shape()?);
        if shape != expected_shape {
            return Ok((f64::NAN, Some(format!("the output's shape is {shape:?}, expected {expected_shape:?}"))));
        }
        let rtol = self.rtol.unwrap_or(if expected.dtype() == DType::BF16 { 8e-3 } else { 1e-3 });
        let mut largest = 0.0_f64;
        let mut failure = None;
        for (index, (&got, &want)) in y.iter().zip(expected.slice::<T>()?).enumerate() {
            let (got, want) = (got.to_f64(), want.to_f64());
            let error = distance(got, want);
            largest = largest.max(error);
            let slack = slack[index / geometry.output_spatial() % geometry.out_channels];
            if error > 0.0 && !(error <= self.atol + slack + rtol * want.abs() && error.is_finite()) {
                failure.get_or_insert_with(|| format!("element {index} is {got}, expected {want}"));
            }
        }
        Ok((largest, failure))
    }

    /// Prints a line, and counts the outcome.
    fn report(&self, name: &dyn fmt::Display, outcome: Result<Outcome>, count: &mut OutcomeCounts) -> Result<()> {
        let (failure, what) = match outcome {
            Ok(o) => {
                let shapes = describe(&o.geometry);
                let how = format!(
                    "{} {} {shapes}; {}, {}; max error {:.1e}",
                    o.geometry.op,
                    Numbers::from(o.dtype),
                    o.algorithm,
                    o.isa,
                    o.error
                );
                (o.failure, how)
            }
            Err(error) => (Some(format!("{error:#}")), String::new()),
        };
        match failure {
            None => {
                count.passed += 1;
                if !self.quiet {
                    show(|out| writeln!(out, "{GOOD}pass{GOOD:#} {name}: {what}"))?;
                }
            }
            Some(reason) => {
                count.failed += 1;
                let between = if what.is_empty() { "" } else { "; " };
                show(|out| writeln!(out, "{BAD}FAIL{BAD:#} {name}: {reason}{between}{what}"))?;
            }
        }
        Ok(())
    }
}

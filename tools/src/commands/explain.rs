//! `explain`: shows what the planner picks for one layer or for those of a model, and why it rejects
//! the other algorithms.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use convoke::{AutoPad, Conv, ConvTranspose, Geometry, Operator, Plan};
use convoke_tools::data::Numbers;
use convoke_tools::shapes::{self, LayerKind, describe, flops};

use super::Verdict;
use crate::layer_plan::{BytePlan, LayerPlan};
use crate::model::Sizes;
use crate::options::{BAD, Choice, NumbersName, parse_threads, with_element};
use crate::output::text::{line_width, show, wrapped};

/// Show what the planner picks for a layer, and with --verbose why it rejects the rest
///
/// It prints two lines: the layer, and the pick with its estimated time and its workspace. With
/// --verbose, it prints the blocking, the memory, the machine, and each other algorithm too.
///
/// The layer is given by its shapes and ONNX attributes, or by the name of a built-in one. With
/// --model, all Conv and ConvTranspose nodes of a model are explained; shapes that it does not state
/// are inferred from its inputs:
///
///   explain conv --x 1,64,56,56 --w 64,64,3,3 --pads 1,1,1,1
///   explain conv-transpose --x 1,512,8,8 --w 512,256,4,4 --strides 2,2 --pads 1,1,1,1
///   explain --layer resnet50.c2.3x3
///   explain --model model.onnx --dim batch=1
///
/// The exit status is 2 if a layer cannot be planned.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ExplainArgs {
    /// The operator
    #[arg(required_unless_present_any = ["layer", "model"], conflicts_with = "dims", ignore_case = true)]
    op: Option<OpName>,
    /// A layer of the built-in list of published networks, by name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["op", "x", "w", "Attributes", "dims"])]
    layer: Option<String>,
    /// All convolutions of a model
    #[arg(long, value_name = "MODEL.onnx", conflicts_with_all = ["op", "layer", "x", "w", "Attributes", "dtype"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    /// Shape of the input: N,C,spatial...
    #[arg(long, value_name = "N,C,D..", value_delimiter = ',', required_unless_present_any = ["layer", "model"])]
    x: Vec<usize>,
    /// Shape of the weights: M,C/group,kernel... for conv, C,M/group,kernel... for conv-transpose
    #[arg(long, value_name = "M,C,K..", value_delimiter = ',', required_unless_present_any = ["layer", "model"])]
    w: Vec<usize>,
    #[command(flatten)]
    attributes: Attributes,
    /// Element type
    #[arg(long, value_enum, default_value_t = NumbersName::F32)]
    dtype: NumbersName,
    #[command(flatten)]
    choice: Choice,
    /// Threads that will run the layer
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    threads: usize,
    /// Print the whole explanation
    #[arg(long, short)]
    verbose: bool,
    /// Bytes of workspace that an algorithm may take, at most [default: the planner's]
    #[arg(long, value_name = "BYTES")]
    workspace_limit: Option<usize>,
}

/// The operators' attributes by their ONNX names. An attribute that is not given has ONNX's
/// default.
#[derive(Debug, clap::Args)]
struct Attributes {
    /// One stride an axis
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    strides: Option<Vec<i64>>,
    /// All begins, then all ends
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    pads: Option<Vec<i64>>,
    /// One dilation an axis
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    dilations: Option<Vec<i64>>,
    /// Number of groups
    #[arg(long, allow_hyphen_values = true)]
    group: Option<i64>,
    /// NOTSET, VALID, SAME_UPPER or SAME_LOWER
    #[arg(long)]
    auto_pad: Option<AutoPad>,
    /// The kernel's shape, checked against the weights'
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    kernel_shape: Option<Vec<i64>>,
    /// Extra size at the end of each axis (conv-transpose)
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    output_padding: Option<Vec<i64>>,
    /// Spatial size of the output, in place of pads (conv-transpose)
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    output_shape: Option<Vec<i64>>,
    /// Version of the operator set [default: the newest]
    #[arg(long)]
    opset: Option<u32>,
}

/// The operators, as the command line names them.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OpName {
    Conv,
    #[value(alias = "convtranspose")]
    ConvTranspose,
}

/// Calls the builder method of each attribute that is given.
macro_rules! apply {
    ($builder:ident, $from:ident: $($attribute:ident),+) => {
        $(if let Some(value) = &$from.$attribute {
            $builder = $builder.$attribute(value.clone());
        })+
    };
}

impl ExplainArgs {
    /// The layer: its operator and the shape of X.
    fn layer(&self) -> Result<(Operator, Vec<usize>)> {
        if let Some(name) = &self.layer {
            let layer = shapes::built_in().into_iter().find(|l| l.name == *name);
            let layer = layer.with_context(|| format!("no built-in layer {name:?}; `report --list` names them all"))?;
            return Ok((layer.operator(), layer.x));
        }
        let given = &self.attributes;
        let operator = match self.op.context("no operator given")? {
            OpName::Conv => {
                if given.output_padding.is_some() || given.output_shape.is_some() {
                    bail!("output_padding and output_shape are attributes of conv-transpose, not of conv");
                }
                let mut conv = Conv::new(self.w.clone());
                apply!(conv, given: strides, pads, dilations, group, auto_pad, kernel_shape, opset);
                Operator::from(conv)
            }
            OpName::ConvTranspose => {
                let mut conv = ConvTranspose::new(self.w.clone());
                apply!(conv, given: strides, pads, dilations, group, auto_pad, kernel_shape, opset);
                apply!(conv, given: output_padding, output_shape);
                Operator::from(conv)
            }
        };
        Ok((operator, self.x.clone()))
    }

    /// The explanation of the layer, or of the model's layers, and whether all could be planned.
    fn text(&self) -> Result<(String, Verdict)> {
        if let Some(model) = &self.model {
            return self.model_text(model);
        }
        let (operator, x) = self.layer()?;
        Ok((self.explain(self.dtype.into(), operator, &x)?, Verdict::Good))
    }

    fn model_text(&self, model: &Path) -> Result<(String, Verdict)> {
        let (mut texts, mut verdict) = (Vec::new(), Verdict::Good);
        for (name, node) in self.sizes.graph_of(model)?.into_nodes() {
            let text =
                node.and_then(|node| self.explain(node.dtype.into(), node.operator, &node.geometry.input_shape()));
            let text = text.unwrap_or_else(|error| {
                verdict = Verdict::Incomplete;
                format!("{BAD}NOT PLANNED{BAD:#}: {error:#}")
            });
            texts.push(format!("{name}: {text}"));
        }
        Ok((texts.join("\n"), verdict))
    }

    fn explain(&self, numbers: Numbers, operator: Operator, x: &[usize]) -> Result<String> {
        match numbers {
            Numbers::Floats(dtype) => with_element!(dtype, T => self.explain_as(operator, x, |plan: &Plan<T>| {
                if self.verbose { format!("{:#}", plan.explain()) } else { plan.explain().to_string() }
            })),
            Numbers::Bytes => {
                self.choice.ensure_suits(numbers)?;
                ensure!(!self.verbose, "--verbose: a plan of bytes has no other algorithm, and says no more");
                self.explain_as(operator, x, BytePlan::explain)
            }
        }
    }

    fn explain_as<P: LayerPlan>(
        &self,
        operator: Operator,
        x: &[usize],
        explanation: impl Fn(&P) -> String,
    ) -> Result<String> {
        let mut planner = self.choice.planner()?.threads(self.threads);
        if let Some(limit) = self.workspace_limit {
            planner = planner.workspace_limit(limit);
        }
        let plan = P::new(&planner, self.choice.operator(operator), x)?;
        let (headline, explanation) = (headline(plan.facts().geometry), explanation(&plan));
        // Its first line is the layer in another form.
        let rest = explanation.lines().skip(1);
        Ok(std::iter::once(headline.as_str()).chain(rest).collect::<Vec<_>>().join("\n"))
    }
}

/// The layer in one line, with its explicit padding.
fn headline(geometry: &Geometry) -> String {
    let mflop = flops(geometry) / 1e6;
    format!("{} {}: {mflop:.1} MFLOP, {}", geometry.op, describe(geometry), LayerKind::of(geometry))
}

/// Prints the plan's explanation.
pub(crate) fn run(args: &ExplainArgs) -> Result<Verdict> {
    let (text, verdict) = args.text()?;
    let width = line_width(false);
    let lines: Vec<_> = text.lines().map(|line| wrapped(line, width)).collect();
    show(|out| writeln!(out, "{}", lines.join("\n")))?;
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct ExplainCommand {
        #[command(flatten)]
        args: ExplainArgs,
    }

    fn explain(line: &str) -> Result<String> {
        let args = ExplainCommand::try_parse_from(std::iter::once("explain").chain(line.split(' ')))?.args;
        Ok(args.text()?.0)
    }

    #[test]
    fn says_what_the_layer_is_and_what_was_picked() {
        let text = explain("conv --x 1,8,10,12 --w 16,8,3,3 --strides 2,1 --pads 1,1,1,1 --algorithm naive").unwrap();
        let first = "Conv 1x8x10x12 -> 1x16x5x12 k3x3 s2x1 p1: 0.1 MFLOP, other dense\n";
        assert!(text.starts_with(first), "{text}");
        let rest: Vec<_> = text.lines().skip(1).collect();
        assert!(rest.len() == 1 && rest[0].starts_with("picked naive ("), "{text}");
    }

    #[test]
    fn the_whole_has_the_other_algorithms_of_the_operator() {
        let text = explain("conv --x 1,8,10,12 --w 16,8,3,3 --verbose").unwrap();
        assert!(text.contains("\n  machine ") && text.contains("\n  not naive "), "{text}");
        assert!(!text.contains("only for ConvTranspose"), "{text}");
    }

    #[test]
    fn a_layer_of_bytes_has_its_kernels() {
        let text = explain("conv --x 1,8,10,12 --w 16,8,3,3 --dtype u8 --isa portable").unwrap();
        assert!(text.starts_with("Conv 1x8x10x12 -> 1x16x8x10 k3x3: ") && text.contains("(portable)"), "{text}");
        let error = explain("conv --x 1,8,9 --w 16,8,3 --dtype u8 --algorithm naive").unwrap_err();
        assert!(format!("{error:#}").contains("--algorithm: "), "{error:#}");
    }

    #[test]
    fn every_attribute_reaches_the_operator() {
        let shape = |line: &str| explain(line).map(|text| text.split(' ').nth(3).unwrap().to_owned());
        assert_eq!(shape("conv --x 1,2,9 --w 2,2,3").unwrap(), "1x2x7");
        assert_eq!(shape("Conv --x 1,2,9 --w 2,1,3 --group 2").unwrap(), "1x2x7");
        assert_eq!(shape("conv --x 1,2,9 --w 2,2,3 --dilations 2 --dtype bf16").unwrap(), "1x2x5");
        assert_eq!(
            shape("conv --x 1,2,9 --w 2,2,3 --auto-pad SAME_UPPER --strides 2 --kernel-shape 3").unwrap(),
            "1x2x5"
        );
        assert_eq!(shape("ConvTranspose --x 1,2,9 --w 2,2,3 --strides 2 --output-padding 1").unwrap(), "1x2x20");
        assert_eq!(
            shape("conv-transpose --x 1,2,9 --w 2,2,3 --strides 2 --output-shape 18 --opset 11").unwrap(),
            "1x2x18"
        );
        assert_eq!(shape("--layer resnet50.c5.3x3 --threads 2").unwrap(), "1x512x7x7");
    }

    #[test]
    fn bad_layers_are_errors() {
        for (line, reason) in [
            ("conv --x 1,2,9 --w 2,2,3 --pads -1,0", "-1"),
            ("conv --x 1,2,9 --w 2,3,3", "3"),
            ("conv --x 1,2,9 --w 2,2,3 --auto-pad SAME", "SAME_UPPER"),
            ("conv --x 1,2,9 --w 2,2,3 --output-shape 9", "conv-transpose"),
            ("--layer nowhere", "nowhere"),
            ("conv --x 1,2,9", "--w"),
            ("conv --layer resnet50.c5.3x3", "cannot be used with"),
            ("--layer resnet50.c5.3x3 --group 2", "cannot be used with"),
        ] {
            let error = format!("{:#}", explain(line).unwrap_err());
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}

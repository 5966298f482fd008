//! A planner, and operators from Python values.

use std::fmt;

use convoke::{
    Accuracy, Activation, Attribute, DType, Element, ErrorKind, Isa, Layout, NodeInput, Operator, bf16, f16,
};
use numpy::PyArrayDescr;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::arrays::{DTYPES, Number, element_type};
use crate::errors::{exception, refusal};
use crate::integers::{check_len, fitting, in_range, required};
use crate::plan::{PackedWeights, Plan};
use crate::quantised::QuantisedPlan;
use crate::threads::count;

/// The crate's planner. ``convoke.Planner`` is its interface.
#[pyclass(frozen, module = "convoke._convoke")]
pub(crate) struct Planner(convoke::Planner);

#[pymethods]
impl Planner {
    /// ``activation`` is a name and its parameters. What is ``None`` has its default, or is absent.
    #[new]
    #[pyo3(signature = (threads, activation, accuracy, algorithm, isa, workspace_limit))]
    fn new(
        py: Python<'_>,
        threads: &Bound<'_, PyAny>,
        activation: Option<(String, Vec<f64>)>,
        accuracy: &str,
        algorithm: Option<&str>,
        isa: Option<&str>,
        workspace_limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let unavailable = |message: fmt::Arguments<'_>| refusal(py, ErrorKind::Unavailable, message);
        let threads = count(threads)?;
        let activation = match activation {
            Some((name, parameters)) => activation_of(&name, &parameters).map_err(|rule| {
                unavailable(format_args!("activation {name:?} with parameters {parameters:?} {rule}"))
            })?,
            None => Activation::None,
        };
        let mut planner = convoke::Planner::new().threads(threads).activation(activation).accuracy(match accuracy {
            "strict" => Accuracy::Strict,
            "standard" => Accuracy::Standard,
            "fast" => Accuracy::Fast,
            _ => return Err(unavailable(format_args!("accuracy {accuracy:?} is none of strict, standard, fast"))),
        });
        if let Some(isa) = isa {
            let isa: Isa = isa.parse().map_err(|error| unavailable(format_args!("isa: {error}")))?;
            planner = planner.isa(isa);
        }
        if let Some(algorithm) = algorithm {
            planner = planner.algorithm(algorithm.parse().map_err(|error| exception(py, &error))?);
        }
        if let Some(bytes) = workspace_limit {
            match in_range("workspace_limit", bytes, 0, usize::MAX)? {
                Ok(bytes) => planner = planner.workspace_limit(bytes),
                Err(rule) => return Err(refusal(py, ErrorKind::Workspace, rule)),
            }
        }
        Ok(Self(planner))
    }

    /// A planner whose plans accept these weights.
    fn packed_for(&self, packed: &PackedWeights) -> Self {
        Self(packed.planner(&self.0))
    }

    /// A plan for a node: its attributes by name, the shapes and the type of its inputs, and the names of the
    /// layouts of X and Y, if they are not those of ONNX. The shape of X is in the order of its layout.
    #[pyo3(signature = (op_type, opset, attributes, x_shape, w_shape, dtype, layouts))]
    #[allow(clippy::too_many_arguments, reason = "they are arguments of Python")]
    fn plan(
        &self,
        op_type: &str,
        opset: &Bound<'_, PyAny>,
        attributes: &Bound<'_, PyDict>,
        x_shape: &Bound<'_, PyAny>,
        w_shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyArrayDescr>,
        layouts: Option<(String, String)>,
    ) -> PyResult<Plan> {
        let opset = required(&format!("{op_type}: opset"), opset)?;
        let node = Node::read(op_type, opset, attributes, [x_shape, w_shape], layouts)?;
        match element_type(dtype)? {
            Some(DType::F32) => self.plan_as::<f32>(&node, dtype),
            Some(DType::F64) => self.plan_as::<f64>(&node, dtype),
            Some(DType::F16) => self.plan_as::<f16>(&node, dtype),
            Some(DType::BF16) => self.plan_as::<bf16>(&node, dtype),
            None => Err(refusal(
                dtype.py(),
                ErrorKind::InvalidType,
                format_args!("{op_type}: dtype {}, {DTYPES}", dtype.str()?),
            )),
        }
    }

    /// The same for bytes, with the dtypes of X, W and the result.
    #[pyo3(signature = (op_type, attributes, x_shape, w_shape, dtypes, layouts))]
    fn plan_quantised(
        &self,
        op_type: &str,
        attributes: &Bound<'_, PyDict>,
        x_shape: &Bound<'_, PyAny>,
        w_shape: &Bound<'_, PyAny>,
        dtypes: [Bound<'_, PyArrayDescr>; 3],
        layouts: Option<(String, String)>,
    ) -> PyResult<QuantisedPlan> {
        let node = Node::read(op_type, NEWEST_OPSET, attributes, [x_shape, w_shape], layouts)?;
        // Any type that all opsets have stands for the bytes, which none has.
        let planned = node.operator(DType::F32).map_err(|error| exception(x_shape.py(), &error))?;
        QuantisedPlan::new(&self.0, planned, &dtypes)
    }
}

const NEWEST_OPSET: i64 = 22;

/// The names of layouts, for one to three spatial axes.
const LAYOUTS: [(&str, Layout); 6] = [
    ("NCW", Layout::ChannelsFirst),
    ("NCHW", Layout::ChannelsFirst),
    ("NCDHW", Layout::ChannelsFirst),
    ("NWC", Layout::ChannelsLast),
    ("NHWC", Layout::ChannelsLast),
    ("NDHWC", Layout::ChannelsLast),
];

/// The layout of a name, which has a letter for each axis.
fn layout_of(py: Python<'_>, op: &str, name: &str, axes: usize) -> PyResult<Layout> {
    let Some((_, layout)) = LAYOUTS.into_iter().find(|(known, _)| *known == name) else {
        let known = LAYOUTS.map(|(known, _)| known).join(", ");
        return Err(refusal(py, ErrorKind::Unavailable, format!("{op}: layout {name:?} is none of {known}")));
    };
    if name.len() != axes {
        let message = format!("{op}: layout {name:?} has {} axes, X has {axes}", name.len());
        return Err(refusal(py, ErrorKind::InvalidShape, message));
    }
    Ok(layout)
}

/// How the message about an unknown activation ends.
const ACTIVATIONS: &str =
    "is none of relu, hard_swish, silu, sigmoid, tanh, gelu, gelu_tanh, mish, (clip, least, most), (leaky_relu, slope)";

/// An activation, or the rule that its name or its parameters break.
fn activation_of(name: &str, parameters: &[f64]) -> Result<Activation, &'static str> {
    let narrowed: Vec<_> = parameters.iter().map(|parameter| *parameter as f32).collect();
    if narrowed.iter().zip(parameters).any(|(narrow, wide)| narrow.is_infinite() && wide.is_finite()) {
        return Err("has a parameter that exceeds float32");
    }
    Ok(match (name, narrowed.as_slice()) {
        ("relu", []) => Activation::Relu,
        ("clip", &[min, max]) => Activation::Clip { min, max },
        ("leaky_relu", &[alpha]) => Activation::LeakyRelu { alpha },
        ("hard_swish", []) => Activation::HardSwish,
        ("silu", []) => Activation::Silu,
        ("sigmoid", []) => Activation::Sigmoid,
        ("tanh", []) => Activation::Tanh,
        ("gelu", []) => Activation::Gelu,
        ("gelu_tanh", []) => Activation::GeluTanh,
        ("mish", []) => Activation::Mish,
        _ => return Err(ACTIVATIONS),
    })
}

/// A node that is planned.
struct Node<'a> {
    op_type: &'a str,
    opset: i64,
    attributes: Attributes,
    x: Vec<i64>,
    w: Vec<i64>,
    /// Those of X and Y.
    layouts: [Layout; 2],
}

impl<'a> Node<'a> {
    /// The shapes are those of X, in the order of its layout, and of W.
    fn read(
        op_type: &'a str,
        opset: i64,
        attributes: &Bound<'_, PyDict>,
        [x_shape, w_shape]: [&Bound<'_, PyAny>; 2],
        layouts: Option<(String, String)>,
    ) -> PyResult<Self> {
        let mut x: Vec<i64> = required(&format!("{op_type}: x_shape"), x_shape)?;
        let w = required(&format!("{op_type}: w_shape"), w_shape)?;
        let attributes = Attributes::read(op_type, attributes, x.len().saturating_sub(2))?;
        let layout = |name: &str| layout_of(x_shape.py(), op_type, name, x.len());
        let layouts = match &layouts {
            Some((of_x, of_y)) => [layout(of_x)?, layout(of_y)?],
            None => Default::default(),
        };
        if layouts[0] == Layout::ChannelsLast {
            x[1..].rotate_right(1);
        }
        Ok(Self { op_type, opset, attributes, x, w, layouts })
    }

    /// The operator in its layouts, and the shape of X in ONNX's order.
    fn operator(&self, dtype: DType) -> Result<(Operator, Vec<usize>), convoke::Error> {
        let inputs = [&self.x, &self.w].map(|dims| Some(NodeInput { dtype, dims }));
        let (operator, geometry) = Operator::from_node(self.op_type, self.opset, &self.attributes.as_onnx(), &inputs)?;
        let [x_layout, y_layout] = self.layouts;
        Ok((operator.layouts(x_layout, y_layout), geometry.input_shape()))
    }
}

impl Planner {
    fn plan_as<T: Number + Element>(&self, node: &Node<'_>, dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Plan> {
        let planned = node.operator(T::DTYPE).and_then(|(operator, x_shape)| self.0.plan::<T>(operator, &x_shape));
        Ok(Plan::new(planned.map_err(|error| exception(dtype.py(), &error))?, dtype))
    }
}

/// A node's attributes, by their ONNX types.
struct Attributes(Vec<(String, Value)>);

enum Value {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    String(String),
}

impl Attributes {
    /// Attributes from what `onnx.helper.get_attribute_value` returns, or from plain Python values.
    /// Those that are ``None`` are absent. An integer for a list stands for its entries on all axes.
    fn read(op_type: &str, attributes: &Bound<'_, PyDict>, axes: usize) -> PyResult<Self> {
        let given = attributes.iter().filter(|(_, value)| !value.is_none());
        let read = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let name: String = name.extract()?;
            let value = Value::read(&format!("{op_type}: {name}"), &value)?.on_axes(&name, axes);
            Ok((name, value))
        };
        given.map(read).collect::<PyResult<_>>().map(Self)
    }

    fn as_onnx(&self) -> Vec<(&str, Attribute<'_>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_onnx())).collect()
    }
}

impl Value {
    fn read(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Self::String(text.to_string()));
        }
        if let Ok(text) = value.cast::<PyBytes>() {
            return Ok(Self::String(String::from_utf8_lossy(text.as_bytes()).into_owned()));
        }
        check_len(name, value, ErrorKind::InvalidAttribute)?;
        if let Some(value) = fitting(name, value, value.extract())? {
            return Ok(Self::Int(value));
        }
        if let Some(values) = fitting(name, value, value.extract())? {
            return Ok(Self::Ints(values));
        }
        if let Some(value) = fitting(name, value, value.extract())? {
            return Ok(Self::Float(value));
        }
        if let Some(values) = fitting(name, value, value.extract())? {
            return Ok(Self::Floats(values));
        }
        let found = value.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "{name} is of type {found}, must be a number, a string or a sequence of numbers"
        )))
    }

    /// The list that an integer means as this attribute, if it is one of lists.
    fn on_axes(self, name: &str, axes: usize) -> Self {
        match (self, name) {
            (Self::Int(entry), "pads") => Self::Ints(vec![entry; 2 * axes]),
            (Self::Int(entry), "strides" | "dilations" | "kernel_shape" | "output_padding" | "output_shape") => {
                Self::Ints(vec![entry; axes])
            }
            (value, _) => value,
        }
    }

    fn as_onnx(&self) -> Attribute<'_> {
        match self {
            Self::Int(value) => Attribute::Int(*value),
            Self::Float(value) => Attribute::Float(*value),
            Self::Ints(values) => Attribute::Ints(values),
            Self::Floats(values) => Attribute::Floats(values),
            Self::String(text) => Attribute::String(text),
        }
    }
}

//! From the parts of an ONNX node to a validated operator.

use alloc::vec::Vec;

use super::attributes::Attributes;
use super::conv::Conv;
use super::conv_transpose::ConvTranspose;
use super::dtype::DType;
use super::geometry::{Geometry, Layout};
use super::op::Op;
use super::padding::AutoPad;
use super::spelling::nearest;
use crate::error::{Error, bail};

/// The value of a node's attribute, by its type in ONNX's `AttributeProto`.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribute<'a> {
    /// `INT`
    Int(i64),
    /// `INTS`
    Ints(&'a [i64]),
    /// `FLOAT`
    Float(f32),
    /// `FLOATS`
    Floats(&'a [f32]),
    /// `STRING`
    String(&'a str),
    /// `STRINGS`
    Strings(&'a [&'a str]),
    /// Any other type, by a name for the error message. Neither operator has an attribute of
    /// another type.
    Other(&'a str),
}

impl<'a> Attribute<'a> {
    fn type_name(&self) -> &'a str {
        match *self {
            Attribute::Int(_) => "INT",
            Attribute::Ints(_) => "INTS",
            Attribute::Float(_) => "FLOAT",
            Attribute::Floats(_) => "FLOATS",
            Attribute::String(_) => "STRING",
            Attribute::Strings(_) => "STRINGS",
            Attribute::Other(name) => name,
        }
    }
}

/// One input of a node: element type and shape, as the loader of a model knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeInput<'a> {
    /// The element type.
    pub dtype: DType,
    /// The dimensions. A negative one stands for a symbolic or unknown size, which is an error
    /// here.
    pub dims: &'a [i64],
}

/// A Conv or a ConvTranspose.
///
/// ```
/// use convoke::{Attribute, DType, NodeInput, Operator};
///
/// let attributes = [("strides", Attribute::Ints(&[2, 2])), ("auto_pad", Attribute::String("SAME_UPPER"))];
/// let x = NodeInput { dtype: DType::F32, dims: &[1, 3, 224, 224] };
/// let w = NodeInput { dtype: DType::F32, dims: &[32, 3, 3, 3] };
/// let (operator, geometry) = Operator::from_node("Conv", 13, &attributes, &[Some(x), Some(w), None])?;
/// assert_eq!(geometry.output_shape(), [1, 32, 112, 112]);
/// assert_eq!(operator.geometry(&[1, 3, 112, 112])?.output_shape(), [1, 32, 56, 56]);
/// # Ok::<(), convoke::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operator {
    /// ONNX `Conv`.
    Conv(Conv),
    /// ONNX `ConvTranspose`.
    ConvTranspose(ConvTranspose),
}

impl From<Conv> for Operator {
    fn from(conv: Conv) -> Self {
        Operator::Conv(conv)
    }
}

impl From<ConvTranspose> for Operator {
    fn from(conv: ConvTranspose) -> Self {
        Operator::ConvTranspose(conv)
    }
}

impl Operator {
    /// Sets how X and Y lie in memory, as [`Conv::layouts`].
    #[must_use]
    pub fn layouts(self, x: Layout, y: Layout) -> Self {
        match self {
            Self::Conv(conv) => conv.layouts(x, y).into(),
            Self::ConvTranspose(conv) => conv.layouts(x, y).into(),
        }
    }

    /// Makes an operator if X's shape is not known yet: from a node's type (domain `ai.onnx`),
    /// the model's opset, the node's attributes and W's shape. [`geometry`](Operator::geometry)
    /// checks the values.
    ///
    /// An empty string for `auto_pad` means NOTSET. An empty list for an attribute is not its
    /// default: its length is wrong.
    ///
    /// # Errors
    /// [`UnsupportedOperator`](crate::ErrorKind::UnsupportedOperator) for an unknown operator,
    /// opset or attribute, or an attribute of the wrong type;
    /// [`InvalidAttribute`](crate::ErrorKind::InvalidAttribute) for an attribute that is given
    /// twice and for an unknown `auto_pad`; [`InvalidShape`](crate::ErrorKind::InvalidShape) for
    /// a negative dimension of W.
    pub fn from_attributes(
        op_type: &str,
        opset: i64,
        attributes: &[(&str, Attribute<'_>)],
        w_dims: &[i64],
    ) -> Result<Self, Error> {
        let op: Op = op_type.parse()?;
        let opset = checked_opset(op, opset)?;
        check_distinct(op, attributes)?;
        let mut operator = Attributes::new(op, sizes(op, "W", w_dims)?);
        operator.opset = opset;
        for &(name, value) in attributes {
            set(&mut operator, name, value)?;
        }
        Ok(match op {
            Op::Conv => Conv { attributes: operator }.into(),
            Op::ConvTranspose => ConvTranspose { attributes: operator }.into(),
        })
    }

    /// Makes an operator and its geometry from a whole node: what
    /// [`from_attributes`](Operator::from_attributes) takes, and the inputs X, W and B in this
    /// order. B may be missing: it is absent from the list or, like an input with an empty name,
    /// `None`.
    ///
    /// # Errors
    /// Besides those of [`from_attributes`](Operator::from_attributes) and
    /// [`geometry`](Operator::geometry): [`InvalidInput`](crate::ErrorKind::InvalidInput) if X or
    /// W is missing or there are more than three inputs,
    /// [`InvalidType`](crate::ErrorKind::InvalidType) if the element types differ or the opset
    /// lacks them, [`InvalidShape`](crate::ErrorKind::InvalidShape) for a negative dimension or a
    /// B that is not of shape (M).
    pub fn from_node(
        op_type: &str,
        opset: i64,
        attributes: &[(&str, Attribute<'_>)],
        inputs: &[Option<NodeInput<'_>>],
    ) -> Result<(Self, Geometry), Error> {
        let op: Op = op_type.parse()?;
        let (x, w, b) = split_inputs(op, inputs)?;
        let operator = Self::from_attributes(op_type, opset, attributes, w.dims)?;
        operator.check_dtype(x.dtype)?;
        for (name, input) in [("W", Some(w)), ("B", b)] {
            if let Some(input) = input
                && input.dtype != x.dtype
            {
                bail!(InvalidType, "{op}: X is of type {}, {name} of type {}, must be the same", x.dtype, input.dtype);
            }
        }
        let geometry = operator.geometry(&sizes(op, "X", x.dims)?)?;
        if let Some(b) = b {
            geometry.validate_bias(&sizes(op, "B", b.dims)?)?;
        }
        Ok((operator, geometry))
    }

    /// Checks everything against X's shape: see [`Conv::geometry`] and
    /// [`ConvTranspose::geometry`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn geometry(&self, x_shape: &[usize]) -> Result<Geometry, Error> {
        self.attributes().geometry(x_shape)
    }

    /// Which of the two operators it is.
    #[must_use]
    pub fn op(&self) -> Op {
        self.attributes().op
    }

    /// The operator's ONNX name.
    #[must_use]
    pub fn op_name(&self) -> &'static str {
        self.op().name()
    }

    /// The shape of W, as given.
    #[must_use]
    pub fn weight_shape(&self) -> &[usize] {
        &self.attributes().weight_shape
    }

    /// The model's opset, as given.
    #[must_use]
    pub fn opset(&self) -> u32 {
        self.attributes().opset
    }

    /// Whether the operator takes this element type in its opset: bfloat16 needs opset 22.
    ///
    /// # Errors
    /// [`InvalidType`](crate::ErrorKind::InvalidType) if it does not.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), Error> {
        dtype.check(self.op(), self.opset())
    }

    fn attributes(&self) -> &Attributes {
        match self {
            Operator::Conv(conv) => &conv.attributes,
            Operator::ConvTranspose(conv) => &conv.attributes,
        }
    }
}

/// An opset that exceeds `u32` also means the newest version.
fn checked_opset(op: Op, opset: i64) -> Result<u32, Error> {
    if opset < 1 {
        bail!(UnsupportedOperator, "{op}: opset {opset} does not exist, the first is 1");
    }
    Ok(u32::try_from(opset).unwrap_or(u32::MAX))
}

fn check_distinct(op: Op, attributes: &[(&str, Attribute<'_>)]) -> Result<(), Error> {
    for (i, (name, _)) in attributes.iter().enumerate() {
        if attributes[..i].iter().any(|(earlier, _)| earlier == name) {
            bail!(InvalidAttribute, "{op}: attribute {name:?} is given twice");
        }
    }
    Ok(())
}

type Inputs<'a> = (NodeInput<'a>, NodeInput<'a>, Option<NodeInput<'a>>);

fn split_inputs<'a>(op: Op, inputs: &[Option<NodeInput<'a>>]) -> Result<Inputs<'a>, Error> {
    if inputs.len() > 3 {
        bail!(InvalidInput, "{op}: {} inputs, must be at most 3: X, W, B", inputs.len());
    }
    let input = |at: usize| inputs.get(at).copied().flatten();
    match (input(0), input(1)) {
        (Some(x), Some(w)) => Ok((x, w, input(2))),
        (None, _) => bail!(InvalidInput, "{op}: input 0, X, is missing; only B may be"),
        (_, None) => bail!(InvalidInput, "{op}: input 1, W, is missing; only B may be"),
    }
}

/// The dimensions as sizes.
fn sizes(op: Op, name: &str, dims: &[i64]) -> Result<Vec<usize>, Error> {
    dims.iter()
        .enumerate()
        .map(|(axis, &dim)| {
            if dim < 0 {
                bail!(InvalidShape, "{op}: {name} has size {dim} on axis {axis}, must be known and not negative");
            }
            match usize::try_from(dim) {
                Ok(size) => Ok(size),
                Err(_) => bail!(Overflow, "{op}: {name} has size {dim} on axis {axis}, more than the address space"),
            }
        })
        .collect()
}

fn set(attributes: &mut Attributes, name: &str, value: Attribute<'_>) -> Result<(), Error> {
    let op = attributes.op;
    let is_transposed = op == Op::ConvTranspose;
    match name {
        "auto_pad" => attributes.auto_pad = auto_pad(op, value)?,
        "dilations" => attributes.dilations = Some(ints(op, name, value)?),
        "group" => attributes.group = int(op, name, value)?,
        "kernel_shape" => attributes.kernel_shape = Some(ints(op, name, value)?),
        "pads" => attributes.pads = Some(ints(op, name, value)?),
        "strides" => attributes.strides = Some(ints(op, name, value)?),
        "output_padding" if is_transposed => attributes.output_padding = Some(ints(op, name, value)?),
        "output_shape" if is_transposed => attributes.output_shape = Some(ints(op, name, value)?),
        _ => return Err(unknown_attribute(op, name)),
    }
    Ok(())
}

/// The error for a name that no attribute of the operator has, with the name that may be meant.
fn unknown_attribute(op: Op, name: &str) -> Error {
    const OF_CONV: [&str; 6] = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];
    const OF_TRANSPOSED: [&str; 2] = ["output_padding", "output_shape"];
    let mut known = Vec::from(OF_CONV);
    if op == Op::ConvTranspose {
        known.extend(OF_TRANSPOSED);
    }
    let meant = match nearest(name, &known) {
        Some(meant) => alloc::format!("; did you mean {meant:?}?"),
        None => alloc::format!("; {op} has {}", known.join(", ")),
    };
    Error::new(crate::error::ErrorKind::UnsupportedOperator, alloc::format!("{op}: unknown attribute {name:?}{meant}"))
}

fn int(op: Op, name: &str, value: Attribute<'_>) -> Result<i64, Error> {
    match value {
        Attribute::Int(value) => Ok(value),
        _ => Err(wrong_type(op, name, value, "INT")),
    }
}

fn ints(op: Op, name: &str, value: Attribute<'_>) -> Result<Vec<i64>, Error> {
    match value {
        Attribute::Ints(values) => Ok(values.to_vec()),
        _ => Err(wrong_type(op, name, value, "INTS")),
    }
}

fn auto_pad(op: Op, value: Attribute<'_>) -> Result<AutoPad, Error> {
    let Attribute::String(name) = value else {
        return Err(wrong_type(op, "auto_pad", value, "STRING"));
    };
    name.parse().map_err(|error: Error| Error::new(error.kind(), alloc::format!("{op}: {error}")))
}

fn wrong_type(op: Op, name: &str, value: Attribute<'_>, expected: &str) -> Error {
    let found = value.type_name();
    Error::new(
        crate::error::ErrorKind::UnsupportedOperator,
        alloc::format!("{op}: attribute {name:?} is of type {found}, must be {expected}"),
    )
}

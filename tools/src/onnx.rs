//! ONNX test folders: `model.onnx` with a single Conv or ConvTranspose node, and
//! `test_data_set_*/{input,output}_*.pb`.
//!
//! [`find`] lists the folders, [`Model::load`] reads one, and [`Model::cases`] reads its data
//! sets. [`OnnxCase::operator`] makes an operator from a node's attributes and inputs. [`graph`]
//! reads the convolutions of any model.

pub mod graph;
mod infer;
pub mod proto;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use convoke::{Attribute, DType, Geometry, NodeInput, Operator, bf16, f16};
use prost::Message;

use crate::data::Scalar;
use crate::files;
use proto::{AttributeProto, AttributeType, DataType, ModelProto, NodeProto, TensorProto};

/// The file that makes a folder a test.
const MODEL: &str = "model.onnx";

/// The elements of a tensor, of one of the four types.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// float16
    F16(Vec<f16>),
    /// bfloat16
    BF16(Vec<bf16>),
    /// float
    F32(Vec<f32>),
    /// double
    F64(Vec<f64>),
}

/// An element type, and the variant of [`Elements`] that holds it.
pub trait Stored: Scalar {
    /// The elements, if they are of this type.
    fn slice(elements: &Elements) -> Option<&[Self]>;
}

/// Implements [`Stored`] for a type and its variant.
macro_rules! stored {
    ($($type:ty: $variant:ident),+) => {$(
        impl Stored for $type {
            fn slice(elements: &Elements) -> Option<&[Self]> {
                if let Elements::$variant(v) = elements { Some(v) } else { None }
            }
        }
    )+};
}
stored!(f16: F16, bf16: BF16, f32: F32, f64: F64);

/// A tensor of a model or of a test, with its shape.
#[derive(Debug, Clone, PartialEq)]
pub struct OnnxTensor {
    /// The shape, as in the file.
    pub dims: Vec<i64>,
    /// The elements, row-major. Their number is that of the shape.
    pub elements: Elements,
}

impl OnnxTensor {
    /// Decodes a `TensorProto`.
    ///
    /// # Errors
    /// The call fails if the operators do not have the element type, if a dimension is negative,
    /// or if the number of elements is not that of the shape.
    pub fn from_proto(proto: &TensorProto) -> Result<Self> {
        ensure!(proto.data_location == 0, "tensor {:?}: its data is in another file", proto.name);
        let TensorProto { raw_data, float_data, int32_data, double_data, .. } = proto;
        let elements = match proto.data_type() {
            DataType::Float => Elements::F32(decode(raw_data, float_data, f32::from_le_bytes, |v| v)?),
            DataType::Double => Elements::F64(decode(raw_data, double_data, f64::from_le_bytes, |v| v)?),
            DataType::Float16 => {
                let from_typed = |bits| f16::from_bits(bits as u16);
                Elements::F16(decode(raw_data, int32_data, f16::from_le_bytes, from_typed)?)
            }
            DataType::Bfloat16 => {
                let from_typed = |bits| bf16::from_bits(bits as u16);
                Elements::BF16(decode(raw_data, int32_data, bf16::from_le_bytes, from_typed)?)
            }
            _ => bail!("tensor {:?}: element type {} is not supported", proto.name, proto.data_type),
        };
        let tensor = Self { dims: proto.dims.clone(), elements };
        let len = tensor.shape()?.iter().try_fold(1_usize, |len, &dim| len.checked_mul(dim));
        let found = tensor.len();
        ensure!(len == Some(found), "tensor {:?}: {found} elements for the shape {:?}", proto.name, proto.dims);
        Ok(tensor)
    }

    /// The elements, as `T`.
    ///
    /// # Errors
    /// The call fails if they have another type.
    pub fn slice<T: Stored>(&self) -> Result<&[T]> {
        T::slice(&self.elements).with_context(|| format!("the elements are {}, which differs", self.dtype()))
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.elements {
            Elements::F16(v) => v.len(),
            Elements::BF16(v) => v.len(),
            Elements::F32(v) => v.len(),
            Elements::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self.elements {
            Elements::F16(_) => DType::F16,
            Elements::BF16(_) => DType::BF16,
            Elements::F32(_) => DType::F32,
            Elements::F64(_) => DType::F64,
        }
    }

    /// The shape, as sizes.
    ///
    /// # Errors
    /// The call fails if a dimension is negative.
    pub fn shape(&self) -> Result<Vec<usize>> {
        let sizes = self.dims.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>();
        sizes.map_err(|_| anyhow!("the shape {:?} has a negative dimension", self.dims))
    }
}

/// The elements of a tensor: `raw` if it is not empty, else `typed`.
fn decode<const BYTES: usize, P: Copy, T>(
    raw: &[u8],
    typed: &[P],
    from_bytes: impl Fn([u8; BYTES]) -> T,
    from_typed: impl Fn(P) -> T,
) -> Result<Vec<T>> {
    if raw.is_empty() {
        return Ok(typed.iter().map(|&v| from_typed(v)).collect());
    }
    let (elements, rest) = raw.as_chunks::<BYTES>();
    ensure!(rest.is_empty(), "raw data of {} bytes is not a whole number of {BYTES}-byte elements", raw.len());
    Ok(elements.iter().map(|&bytes| from_bytes(bytes)).collect())
}

/// A model with a single Conv or ConvTranspose node, and the folder that it was read from.
#[derive(Debug, Clone)]
pub struct Model {
    folder: PathBuf,
    opset: i64,
    node: NodeProto,
    initializers: HashMap<String, OnnxTensor>,
    /// Names of the graph inputs that are not initializers. `input_0.pb`, `input_1.pb`, ... hold
    /// their values.
    inputs: Vec<String>,
}

impl Model {
    /// Reads the folder's model; `None` if it is not a single Conv or ConvTranspose node.
    ///
    /// # Errors
    /// The call fails if a file cannot be read or decoded, or if an initializer has another
    /// element type.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(MODEL);
        let bytes = files::read(&path, files::MODEL)?;
        Self::decode(folder, &bytes).with_context(|| path.display().to_string())
    }

    /// The same as [`load`](Self::load), from the bytes of `model.onnx`.
    ///
    /// # Errors
    /// The call fails if the bytes are not a model, or if an initializer has another element
    /// type.
    pub fn decode(folder: &Path, bytes: &[u8]) -> Result<Option<Self>> {
        let model = ModelProto::decode(bytes).context("not an ONNX model")?;
        let graph = model.graph.context("the model has no graph")?;
        let Ok([node]) = <[NodeProto; 1]>::try_from(graph.node) else { return Ok(None) };
        if !matches!(node.op_type.as_str(), "Conv" | "ConvTranspose") || !is_onnx_domain(&node.domain) {
            return Ok(None);
        }
        let opset = model.opset_import.iter().find(|set| is_onnx_domain(&set.domain));
        let opset = opset.context("the model imports no ONNX operator set")?.version;
        let tensor = |t: &TensorProto| Ok((t.name.clone(), OnnxTensor::from_proto(t)?));
        let initializers: HashMap<_, _> = graph.initializer.iter().map(tensor).collect::<Result<_>>()?;
        let inputs = graph.input.into_iter().map(|i| i.name).filter(|name| !initializers.contains_key(name)).collect();
        Ok(Some(Self { folder: folder.to_owned(), opset, node, initializers, inputs }))
    }

    /// Reads the data sets.
    ///
    /// # Errors
    /// The call fails if there is no data set, or if one is incomplete or cannot be decoded.
    pub fn cases(&self) -> Result<Vec<OnnxCase<'_>>> {
        let mut sets = sorted_entries(&self.folder)?;
        sets.retain(|path| path.is_dir() && file_name(path).starts_with("test_data_set_"));
        ensure!(!sets.is_empty(), "{}: no test_data_set_* folder", self.folder.display());
        sets.iter().map(|set| self.case(set).with_context(|| set.display().to_string())).collect()
    }

    fn case(&self, set: &Path) -> Result<OnnxCase<'_>> {
        let mut values = self.initializers.clone();
        for (index, name) in self.inputs.iter().enumerate() {
            values.insert(name.clone(), read_tensor(&set.join(format!("input_{index}.pb")))?);
        }
        let input = |name: &String| match values.get(name) {
            _ if name.is_empty() => Ok(None),
            Some(tensor) => Ok(Some(tensor.clone())),
            None => bail!("the node's input {name:?} has no value"),
        };
        let inputs = self.node.input.iter().map(input).collect::<Result<_>>()?;
        Ok(OnnxCase { name: file_name(set), model: self, inputs, expected: read_tensor(&set.join("output_0.pb"))? })
    }
}

/// One data set of a model.
#[derive(Debug, Clone)]
pub struct OnnxCase<'a> {
    /// The data set's folder name.
    pub name: String,
    /// The node's inputs: X, W and perhaps B; `None` for an optional input that is absent.
    pub inputs: Vec<Option<OnnxTensor>>,
    /// The output that the test expects.
    pub expected: OnnxTensor,
    model: &'a Model,
}

impl OnnxCase<'_> {
    /// The node's operator: `Conv` or `ConvTranspose`.
    #[must_use]
    pub fn op_type(&self) -> &str {
        &self.model.node.op_type
    }

    /// The version of the ONNX operator set that the model imports.
    #[must_use]
    pub fn opset(&self) -> i64 {
        self.model.opset
    }

    /// The operator and its geometry, from the node's attributes and the inputs' types and
    /// shapes.
    ///
    /// # Errors
    /// The errors of [`Operator::from_node`].
    pub fn operator(&self) -> Result<(Operator, Geometry)> {
        let attributes = self.model.node.attribute.iter().map(attribute).collect::<Result<Vec<_>>>()?;
        let input = |tensor| Option::as_ref(tensor).map(|t: &OnnxTensor| NodeInput { dtype: t.dtype(), dims: &t.dims });
        let inputs: Vec<_> = self.inputs.iter().map(input).collect();
        let opset = self.opset();
        Ok(Operator::from_node(self.op_type(), opset, &attributes, &inputs)?)
    }
}

/// A node's attribute, in the crate's terms.
fn attribute(proto: &AttributeProto) -> Result<(&str, Attribute<'_>)> {
    let value = match proto.r#type() {
        AttributeType::Float => Attribute::Float(proto.f),
        AttributeType::Int => Attribute::Int(proto.i),
        AttributeType::String => string(proto)?,
        AttributeType::Floats => Attribute::Floats(&proto.floats),
        AttributeType::Ints => Attribute::Ints(&proto.ints),
        // Files of the format's first version give no type. The field that is set shows it.
        AttributeType::Undefined if proto.r#type == 0 && !proto.ints.is_empty() => Attribute::Ints(&proto.ints),
        AttributeType::Undefined if proto.r#type == 0 && !proto.s.is_empty() => string(proto)?,
        AttributeType::Undefined if proto.r#type == 0 => Attribute::Int(proto.i),
        AttributeType::Undefined => Attribute::Other("a tensor, graph or list of strings"),
    };
    Ok((&proto.name, value))
}

fn string(proto: &AttributeProto) -> Result<Attribute<'_>> {
    let text = std::str::from_utf8(&proto.s).with_context(|| format!("attribute {}", proto.name))?;
    Ok(Attribute::String(text))
}

fn is_onnx_domain(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// Reads a `.pb` file with one `TensorProto`.
///
/// # Errors
/// The call fails if the file cannot be read or decoded.
pub fn read_tensor(path: &Path) -> Result<OnnxTensor> {
    let bytes = files::read(path, files::TENSOR)?;
    let decode = || OnnxTensor::from_proto(&TensorProto::decode(&bytes[..])?);
    decode().with_context(|| path.display().to_string())
}

/// The folders at or below `root` that hold a `model.onnx`, in order.
///
/// # Errors
/// The call fails if a folder cannot be read.
pub fn find(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        if folder.join(MODEL).is_file() {
            found.push(folder);
            continue;
        }
        // Links are not followed, because they could form a circle.
        pending.extend(sorted_entries(&folder)?.into_iter().filter(|path| path.is_dir() && !path.is_symlink()));
    }
    found.sort();
    Ok(found)
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let context = || folder.display().to_string();
    let entries = fs::read_dir(folder).with_context(context)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>().with_context(context)?;
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

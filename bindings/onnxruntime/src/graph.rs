//! Reading onnxruntime's graphs and tensors.
//!
//! Handles carry the lifetime of the callback that got them. Enumerations are read as numbers: a
//! newer onnxruntime may know values that are not in this build's list.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ptr::{NonNull, null};

use convoke::{Attribute, DType, Element};
use ort_sys::{OrtGraph, OrtNode, OrtOpAttr, OrtOpAttrType, OrtTensorTypeAndShapeInfo, OrtValue, OrtValueInfo};

use crate::api::{Api, Failure, Result};
use crate::options::NAME;
use crate::pointers::{list, optional, required, text};

/// What a node is in a layer, or why it is none of its nodes.
pub(crate) type Reasoned<V> = std::result::Result<V, String>;

/// The codes of tensors of integers.
const UINT8: i32 = 2;
const INT8: i32 = 3;
const INT32: i32 = 6;
const INT64: i32 = 7;
/// The codes of attribute types that the operators here have.
const INT_ATTRIBUTE: i32 = 1;
const INTS_ATTRIBUTE: i32 = 2;
const FLOAT_ATTRIBUTE: i32 = 3;
const FLOATS_ATTRIBUTE: i32 = 4;
const STRING_ATTRIBUTE: i32 = 5;

/// A graph, or a part of one.
#[derive(Clone, Copy)]
pub(crate) struct Graph<'g> {
    api: Api,
    raw: NonNull<OrtGraph>,
    of_callback: PhantomData<&'g OrtGraph>,
}

/// A node of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Node<'g> {
    api: Api,
    raw: NonNull<OrtNode>,
    of_callback: PhantomData<&'g OrtNode>,
}

/// A value: an input or output of a node.
#[derive(Clone, Copy)]
pub(crate) struct Value<'g> {
    api: Api,
    raw: NonNull<OrtValueInfo>,
    of_callback: PhantomData<&'g OrtValueInfo>,
}

/// A tensor on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'g> {
    /// ONNX's code of the element type.
    code: i32,
    dims: &'g [i64],
    data: *const u8,
    of_callback: PhantomData<&'g OrtValue>,
}

/// A dimension of a value's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dim {
    Known(usize),
    Named(String),
    Unknown,
}

impl Dim {
    /// The size, if it is known.
    pub(crate) fn size(&self) -> Option<usize> {
        if let Self::Known(size) = self { Some(*size) } else { None }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(size) => write!(f, "{size}"),
            Self::Named(name) => f.write_str(name),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// What is known of a tensor before a run.
#[derive(Debug, Clone)]
pub(crate) struct TensorType {
    /// ONNX's code of the element type.
    pub(crate) code: i32,
    /// Missing where not even the rank is known.
    pub(crate) dims: Option<Vec<Dim>>,
}

impl TensorType {
    /// The element type, if convoke computes in it.
    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_onnx(self.code).ok()
    }

    /// If it is of bytes: the bits that are flipped in each, so that all are unsigned and in the same order.
    pub(crate) fn flip(&self) -> Option<u8> {
        flip(self.code)
    }

    /// The shape, if all of it is known.
    pub(crate) fn shape(&self) -> Option<Vec<usize>> {
        self.dims.as_ref()?.iter().map(Dim::size).collect()
    }

    /// Whether both have the same type and may well have the same shape: no size that is known differs,
    /// and none is 1 where the other one is unknown, which mostly is broadcast. If not, this is the
    /// reason.
    pub(crate) fn may_be_same_as(&self, other: &Self) -> std::result::Result<(), String> {
        let (Some(dims), Some(others)) = (&self.dims, &other.dims) else { return Err("a rank is unknown".into()) };
        let same = |(one, other): (&Dim, &Dim)| match (one.size(), other.size()) {
            (None, None) => true,
            (Some(known), None) | (None, Some(known)) => known != 1,
            (one, other) => one == other,
        };
        if self.code == other.code && dims.len() == others.len() && dims.iter().zip(others).all(same) {
            return Ok(());
        }
        Err(format!("it adds a tensor of {other} to one of {self}"))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.dims.as_ref().map(|dims| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", "));
        match self.dtype() {
            Some(dtype) => write!(f, "{dtype}"),
            None => write!(f, "type {}", self.code),
        }?;
        write!(f, " [{}]", dims.unwrap_or_else(|| "...".into()))
    }
}

/// As [`TensorType::flip`], of a type's code.
fn flip(code: i32) -> Option<u8> {
    match code {
        UINT8 => Some(0),
        INT8 => Some(0x80),
        _ => None,
    }
}

impl<'g> Graph<'g> {
    /// # Safety
    /// The graph must live for `'g`.
    pub(crate) unsafe fn new(api: Api, raw: NonNull<OrtGraph>) -> Self {
        Self { api, raw, of_callback: PhantomData }
    }

    /// Whether it is the graph of a branch or a loop.
    pub(crate) fn is_nested(self) -> Result<bool> {
        let mut parent = null();
        // SAFETY: the graph lives.
        self.api.check(unsafe { (self.api.ort.Graph_GetParentNode)(self.raw.as_ptr(), &mut parent) })?;
        Ok(optional(parent).is_some())
    }

    /// The nodes in an order in which they can run.
    pub(crate) fn nodes(self) -> Result<Vec<Node<'g>>> {
        let (ort, mut count) = (self.api.ort, 0);
        // SAFETY: the graph lives.
        self.api.check(unsafe { (ort.Graph_GetNumNodes)(self.raw.as_ptr(), &mut count) })?;
        let mut raw = vec![null(); count];
        // SAFETY: the graph lives, and there is room for that many nodes.
        self.api.check(unsafe { (ort.Graph_GetNodes)(self.raw.as_ptr(), raw.as_mut_ptr(), count) })?;
        // SAFETY: they live as long as the graph.
        raw.into_iter().map(|raw| Ok(unsafe { Node::new(self.api, required(raw, "node")?) })).collect()
    }
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for Node<'_> {}

impl Hash for Node<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

impl<'g> Node<'g> {
    /// # Safety
    /// The node must live for `'g`.
    pub(crate) unsafe fn new(api: Api, raw: NonNull<OrtNode>) -> Self {
        Self { api, raw, of_callback: PhantomData }
    }

    pub(crate) fn as_ptr(self) -> *const OrtNode {
        self.raw.as_ptr()
    }

    /// The operator's name, if it is one of ONNX's own domain.
    pub(crate) fn op(self) -> Result<String> {
        let (ort, mut op, mut domain) = (self.api.ort, null(), null());
        // SAFETY: the node lives.
        self.api.check(unsafe { (ort.Node_GetOperatorType)(self.raw.as_ptr(), &mut op) })?;
        // SAFETY: the node lives.
        self.api.check(unsafe { (ort.Node_GetDomain)(self.raw.as_ptr(), &mut domain) })?;
        // SAFETY: the texts are the node's.
        let (op, domain) = unsafe { (text(op), text(domain)) };
        Ok(if matches!(&*domain, "" | "ai.onnx") { op } else { format!("{domain}.{op}") })
    }

    pub(crate) fn name(self) -> Result<String> {
        let mut name = null();
        // SAFETY: the node lives.
        self.api.check(unsafe { (self.api.ort.Node_GetName)(self.raw.as_ptr(), &mut name) })?;
        // SAFETY: the text is the node's.
        Ok(unsafe { text(name) })
    }

    /// The opset that brought the operator's version.
    pub(crate) fn since_version(self) -> Result<i64> {
        let mut version = 0;
        // SAFETY: the node lives.
        self.api.check(unsafe { (self.api.ort.Node_GetSinceVersion)(self.raw.as_ptr(), &mut version) })?;
        Ok(version.into())
    }

    /// An input, if the node has it.
    pub(crate) fn input(self, index: usize) -> Result<Option<Value<'g>>> {
        Ok(self.inputs()?.get(index).copied().flatten())
    }

    /// Whether onnxruntime has given the node to another provider, which stands before this one.
    pub(crate) fn is_of_another_provider(self) -> Result<bool> {
        let mut name = null();
        // SAFETY: the node lives.
        self.api.check(unsafe { (self.api.ort.Node_GetEpName)(self.raw.as_ptr(), &mut name) })?;
        // SAFETY: the text is the node's, and null where it is nobody's yet.
        let name = unsafe { text(name) };
        Ok(!name.is_empty() && name.as_bytes() != NAME.to_bytes())
    }

    /// All inputs; `None` for each that is left out.
    pub(crate) fn inputs(self) -> Result<Vec<Option<Value<'g>>>> {
        let (ort, mut count) = (self.api.ort, 0);
        // SAFETY: the node lives.
        self.api.check(unsafe { (ort.Node_GetNumInputs)(self.raw.as_ptr(), &mut count) })?;
        let mut raw = vec![null(); count];
        // SAFETY: the node lives, and there is room for that many inputs.
        self.api.check(unsafe { (ort.Node_GetInputs)(self.raw.as_ptr(), raw.as_mut_ptr(), count) })?;
        raw.into_iter().map(|raw| self.value(raw)).collect()
    }

    /// All outputs; `None` for each that is left out. One that is there need not have a reader.
    pub(crate) fn outputs(self) -> Result<Vec<Option<Value<'g>>>> {
        let (ort, mut count) = (self.api.ort, 0);
        // SAFETY: the node lives.
        self.api.check(unsafe { (ort.Node_GetNumOutputs)(self.raw.as_ptr(), &mut count) })?;
        let mut raw = vec![null(); count];
        // SAFETY: the node lives, and there is room for that many outputs.
        self.api.check(unsafe { (ort.Node_GetOutputs)(self.raw.as_ptr(), raw.as_mut_ptr(), count) })?;
        raw.into_iter().map(|raw| self.value(raw)).collect()
    }

    pub(crate) fn output(self) -> Result<Value<'g>> {
        self.outputs()?.first().copied().flatten().ok_or_else(|| Failure::other("a node without an output"))
    }

    /// A value, unless it is left out: onnxruntime then gives null, or a value without a name.
    fn value(self, raw: *const OrtValueInfo) -> Result<Option<Value<'g>>> {
        let Some(raw) = optional(raw) else { return Ok(None) };
        let value = Value { api: self.api, raw, of_callback: PhantomData };
        Ok(if value.name()?.is_empty() { None } else { Some(value) })
    }

    pub(crate) fn attributes(self) -> Result<Attributes> {
        let (ort, mut count) = (self.api.ort, 0);
        // SAFETY: the node lives.
        self.api.check(unsafe { (ort.Node_GetNumAttributes)(self.raw.as_ptr(), &mut count) })?;
        let mut raw = vec![null(); count];
        // SAFETY: the node lives, and there is room for that many attributes.
        self.api.check(unsafe { (ort.Node_GetAttributes)(self.raw.as_ptr(), raw.as_mut_ptr(), count) })?;
        // SAFETY: the attributes live as long as the node.
        let read = |raw| unsafe { attribute(self.api, required(raw, "attribute")?) };
        Ok(Attributes(raw.into_iter().map(read).collect::<Result<_>>()?))
    }
}

/// The attributes of a node, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Attributes(Vec<(String, AttributeValue)>);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AttributeValue {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Floats(Vec<f32>),
    String(String),
    /// Of a type that no operator here has.
    Other,
}

impl Attributes {
    pub(crate) fn get(&self, name: &str) -> Option<&AttributeValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn set(&mut self, name: &str, value: AttributeValue) {
        self.remove(&[name]);
        self.0.push((name.to_owned(), value));
    }

    pub(crate) fn remove(&mut self, names: &[&str]) {
        self.0.retain(|(known, _)| !names.contains(&&**known));
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        if let Some(AttributeValue::Int(value)) = self.get(name) { *value } else { default }
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        if let Some(AttributeValue::Float(value)) = self.get(name) { *value } else { default }
    }

    pub(crate) fn string(&self, name: &str) -> Option<&str> {
        if let Some(AttributeValue::String(value)) = self.get(name) { Some(value) } else { None }
    }

    /// As convoke takes them.
    pub(crate) fn for_convoke(&self) -> Vec<(&str, Attribute<'_>)> {
        let convert = |value| match value {
            &AttributeValue::Int(value) => Attribute::Int(value),
            AttributeValue::Ints(values) => Attribute::Ints(values),
            &AttributeValue::Float(value) => Attribute::Float(value),
            AttributeValue::String(value) => Attribute::String(value),
            AttributeValue::Floats(_) | AttributeValue::Other => Attribute::Other("another type"),
        };
        self.0.iter().map(|(name, value)| (&**name, convert(value))).collect()
    }
}

/// # Safety
/// The attribute must live for the call.
unsafe fn attribute(api: Api, raw: NonNull<OrtOpAttr>) -> Result<(String, AttributeValue)> {
    let (mut code, mut name) = (0_i32, null());
    // SAFETY: the attribute lives, and an `i32` has room for the C enumeration.
    api.check(unsafe { (api.ort.OpAttr_GetType)(raw.as_ptr(), (&raw mut code).cast()) })?;
    // SAFETY: the attribute lives.
    api.check(unsafe { (api.ort.OpAttr_GetName)(raw.as_ptr(), &mut name) })?;
    // SAFETY: the text is the attribute's.
    let name = unsafe { text(name) };
    // The type is passed on as one that `ort-sys` knows.
    let (kind, bytes_of_one) = match code {
        INT_ATTRIBUTE => (OrtOpAttrType::ORT_OP_ATTR_INT, 8),
        INTS_ATTRIBUTE => (OrtOpAttrType::ORT_OP_ATTR_INTS, 8),
        FLOAT_ATTRIBUTE => (OrtOpAttrType::ORT_OP_ATTR_FLOAT, 4),
        FLOATS_ATTRIBUTE => (OrtOpAttrType::ORT_OP_ATTR_FLOATS, 4),
        STRING_ATTRIBUTE => (OrtOpAttrType::ORT_OP_ATTR_STRING, 1),
        _ => return Ok((name, AttributeValue::Other)),
    };
    let mut bytes = 0;
    // SAFETY: without room, onnxruntime only says how many bytes it needs, and fails.
    let asked = unsafe { (api.ort.ReadOpAttr)(raw.as_ptr(), kind, [0_u64; 1].as_mut_ptr().cast(), 0, &mut bytes) };
    // It does not fail where no bytes are needed.
    _ = api.check(asked);
    let mut buffer = vec![0_u64; bytes.div_ceil(8)];
    // SAFETY: the attribute lives, and the buffer has room for so many bytes.
    let read = unsafe { (api.ort.ReadOpAttr)(raw.as_ptr(), kind, buffer.as_mut_ptr().cast(), bytes, &mut bytes) };
    api.check(read)?;
    let buffer: Vec<u8> = buffer.into_iter().flat_map(u64::to_ne_bytes).take(bytes).collect();
    let mut items = buffer.chunks_exact(bytes_of_one);
    let value = match code {
        INT_ATTRIBUTE => items.next().and_then(int).map(AttributeValue::Int),
        INTS_ATTRIBUTE => items.map(int).collect::<Option<_>>().map(AttributeValue::Ints),
        FLOAT_ATTRIBUTE => items.next().and_then(float).map(AttributeValue::Float),
        FLOATS_ATTRIBUTE => items.map(float).collect::<Option<_>>().map(AttributeValue::Floats),
        _ => Some(AttributeValue::String(String::from_utf8_lossy(&buffer).trim_end_matches('\0').to_owned())),
    };
    Ok((name, value.unwrap_or(AttributeValue::Other)))
}

fn int(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_ne_bytes(bytes.try_into().ok()?))
}

fn float(bytes: &[u8]) -> Option<f32> {
    Some(f32::from_ne_bytes(bytes.try_into().ok()?))
}

impl<'g> Value<'g> {
    pub(crate) fn name(self) -> Result<String> {
        let mut name = null();
        // SAFETY: the value lives.
        self.api.check(unsafe { (self.api.ort.GetValueInfoName)(self.raw.as_ptr(), &mut name) })?;
        // SAFETY: the text is the value's.
        Ok(unsafe { text(name) })
    }

    /// The tensor, if it is the same in every run.
    pub(crate) fn constant(self) -> Result<Option<Tensor<'g>>> {
        let (ort, mut is_constant, mut value) = (self.api.ort, false, null());
        // SAFETY: the value lives.
        self.api.check(unsafe { (ort.ValueInfo_IsConstantInitializer)(self.raw.as_ptr(), &mut is_constant) })?;
        if !is_constant {
            return Ok(None);
        }
        // SAFETY: the value lives.
        self.api.check(unsafe { (ort.ValueInfo_GetInitializerValue)(self.raw.as_ptr(), &mut value) })?;
        // SAFETY: the tensor lives as long as the graph, which the lifetime stands for.
        Ok(Some(unsafe { Tensor::new(self.api, required(value, "constant")?)? }))
    }

    /// The constant's elements, if they are integers of 64 bits.
    pub(crate) fn ints(self) -> Result<Option<&'g [i64]>> {
        Ok(self.constant()?.map(|tensor| tensor.ints()).transpose()?.flatten())
    }

    /// The constant's only element, as a float.
    pub(crate) fn scalar(self) -> Result<Option<f64>> {
        let Some(tensor) = self.constant()? else { return Ok(None) };
        Ok(match tensor.floats()?.as_deref() {
            Some([one]) => Some(*one),
            _ => None,
        })
    }

    /// `None` where it is not a tensor.
    pub(crate) fn tensor_type(self) -> Result<Option<TensorType>> {
        let (ort, mut info, mut tensor) = (self.api.ort, null(), null::<OrtTensorTypeAndShapeInfo>());
        // SAFETY: the value lives.
        self.api.check(unsafe { (ort.GetValueInfoTypeInfo)(self.raw.as_ptr(), &mut info) })?;
        let Some(info) = optional(info) else { return Ok(None) };
        // SAFETY: the information lives as long as the value.
        self.api.check(unsafe { (ort.CastTypeInfoToTensorInfo)(info.as_ptr(), &mut tensor) })?;
        let Some(tensor) = optional(tensor) else { return Ok(None) };
        let tensor = tensor.as_ptr().cast_const();
        let (mut code, mut has_shape, mut rank) = (0_i32, false, 0);
        // SAFETY: as above; an `i32` has room for the C enumeration.
        self.api.check(unsafe { (ort.GetTensorElementType)(tensor, (&raw mut code).cast()) })?;
        // SAFETY: as above.
        has_shape |= unsafe { (ort.TensorTypeAndShape_HasShape)(tensor) };
        if !has_shape {
            return Ok(Some(TensorType { code, dims: None }));
        }
        // SAFETY: as above.
        self.api.check(unsafe { (ort.GetDimensionsCount)(tensor, &mut rank) })?;
        let (mut sizes, mut names) = (vec![0; rank], vec![null(); rank]);
        // SAFETY: as above, and there is room for that many dimensions.
        self.api.check(unsafe { (ort.GetDimensions)(tensor, sizes.as_mut_ptr(), rank) })?;
        // SAFETY: as above.
        self.api.check(unsafe { (ort.GetSymbolicDimensions)(tensor, names.as_mut_ptr(), rank) })?;
        let dim = |(size, name): (i64, _)| match usize::try_from(size) {
            Ok(size) => Dim::Known(size),
            // SAFETY: the text is the information's.
            Err(_) => Some(unsafe { text(name) }).filter(|name| !name.is_empty()).map_or(Dim::Unknown, Dim::Named),
        };
        Ok(Some(TensorType { code, dims: Some(sizes.into_iter().zip(names).map(dim).collect()) }))
    }

    /// All that read it, a node once for each input; `None` where it also leaves the graph or goes
    /// into the graph of a branch or loop.
    pub(crate) fn consumers(self) -> Result<Option<Vec<Node<'g>>>> {
        let mut is_output = false;
        // SAFETY: the value lives.
        self.api.check(unsafe { (self.api.ort.ValueInfo_IsGraphOutput)(self.raw.as_ptr(), &mut is_output) })?;
        let readers = self.readers()?;
        // -1 is an input of a graph within the node.
        let is_within = readers.iter().any(|(_, input)| *input < 0);
        Ok((!is_output && !is_within).then(|| readers.into_iter().map(|(node, _)| node).collect()))
    }

    /// All nodes that read it, each with the number of its input.
    pub(crate) fn readers(self) -> Result<Vec<(Node<'g>, i64)>> {
        let (ort, mut count) = (self.api.ort, 0);
        // SAFETY: the value lives.
        self.api.check(unsafe { (ort.ValueInfo_GetValueNumConsumers)(self.raw.as_ptr(), &mut count) })?;
        let (mut raw, mut inputs) = (vec![null(); count], vec![0; count]);
        // SAFETY: the value lives, and there is room for that many consumers.
        let status = unsafe {
            (ort.ValueInfo_GetValueConsumers)(self.raw.as_ptr(), raw.as_mut_ptr(), inputs.as_mut_ptr(), count)
        };
        self.api.check(status)?;
        // SAFETY: nodes live as long as the graph.
        let node = |(raw, input)| Ok((unsafe { Node::new(self.api, required(raw, "consumer")?) }, input));
        raw.into_iter().zip(inputs).map(node).collect()
    }

    /// The only node that reads it, if it goes nowhere else.
    pub(crate) fn only_consumer(self) -> Result<Option<Node<'g>>> {
        Ok(match self.consumers()?.as_deref() {
            Some([node]) => Some(*node),
            _ => None,
        })
    }
}

impl<'g> Tensor<'g> {
    /// # Safety
    /// The tensor must live for `'g`, and nobody may change it.
    pub(crate) unsafe fn new(api: Api, value: NonNull<OrtValue>) -> Result<Self> {
        let (mut code, mut dims, mut rank, mut data) = (0_i32, null(), 0, null());
        // SAFETY: the tensor lives, and an `i32` has room for the C enumeration.
        let status = unsafe {
            let code = (&raw mut code).cast();
            (api.ort.GetTensorElementTypeAndShapeDataReference)(value.as_ptr(), code, &mut dims, &mut rank)
        };
        api.check(status)?;
        // SAFETY: the tensor lives.
        api.check(unsafe { (api.ort.GetTensorData)(value.as_ptr(), &mut data) })?;
        // SAFETY: onnxruntime's own dimensions, which live as long as the tensor.
        let dims = unsafe { list(dims, rank, "dimensions of a tensor")? };
        Ok(Self { code, dims, data: data.cast(), of_callback: PhantomData })
    }

    /// The element type, if convoke computes in it.
    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_onnx(self.code).ok()
    }

    pub(crate) fn dims(&self) -> &'g [i64] {
        self.dims
    }

    pub(crate) fn shape(&self) -> Result<Vec<usize>> {
        let size = |dim: &i64| usize::try_from(*dim).map_err(|_| Failure::other("a tensor with a negative dimension"));
        self.dims.iter().map(size).collect()
    }

    pub(crate) fn len(&self) -> Result<usize> {
        let len = self.shape()?.into_iter().try_fold(1_usize, usize::checked_mul);
        len.ok_or_else(|| Failure::other("a tensor larger than the memory"))
    }

    /// The elements, of a type that convoke computes in.
    pub(crate) fn elements<T: Element>(&self) -> Result<&'g [T]> {
        if self.dtype() != Some(T::DTYPE) {
            let code = self.code;
            return Err(Failure::invalid(format_args!("a tensor of ONNX's type {code} instead of {}", T::DTYPE)));
        }
        // SAFETY: the tensor has these elements, says onnxruntime.
        unsafe { self.slice() }
    }

    /// The elements, if they are integers of 64 bits.
    pub(crate) fn ints(&self) -> Result<Option<&'g [i64]>> {
        if self.code != INT64 {
            return Ok(None);
        }
        // SAFETY: the tensor has these elements, says onnxruntime.
        unsafe { self.slice() }.map(Some)
    }

    /// The elements, if they are bytes, whatever their sign means.
    pub(crate) fn bytes(&self) -> Result<Option<&'g [u8]>> {
        // SAFETY: the tensor has these elements, says onnxruntime.
        self.flip().map(|_| unsafe { self.slice() }).transpose()
    }

    /// As [`TensorType::flip`].
    pub(crate) fn flip(&self) -> Option<u8> {
        flip(self.code)
    }

    /// The elements, if they are integers of 32 bits.
    pub(crate) fn sums(&self) -> Result<Option<&'g [i32]>> {
        // SAFETY: the tensor has these elements, says onnxruntime.
        (self.code == INT32).then(|| unsafe { self.slice() }).transpose()
    }

    /// The elements as floats of 64 bits, if convoke computes in their type.
    pub(crate) fn floats(&self) -> Result<Option<Vec<f64>>> {
        Ok(Some(match DType::from_onnx(self.code) {
            Ok(DType::F32) => self.elements::<f32>()?.iter().map(|v| f64::from(*v)).collect(),
            Ok(DType::F64) => self.elements::<f64>()?.to_vec(),
            Ok(DType::F16) => self.elements::<convoke::f16>()?.iter().map(|v| v.to_f64()).collect(),
            Ok(DType::BF16) => self.elements::<convoke::bf16>()?.iter().map(|v| v.to_f64()).collect(),
            _ => return Ok(None),
        }))
    }

    /// # Safety
    /// The elements must be of type `E`, of which every bit pattern is one.
    unsafe fn slice<E: Copy>(&self) -> Result<&'g [E]> {
        let len = self.len()?;
        if len == 0 {
            return Ok(&[]);
        }
        let data = required(self.data.cast::<E>(), "data of a tensor")?;
        // onnxruntime aligns what it allocates. A caller's own buffer need not be.
        if !data.is_aligned() {
            return Err(Failure::invalid(format_args!("a tensor that is not aligned to {} bytes", align_of::<E>())));
        }
        // SAFETY: the tensor lives for 'g, has so many elements of that type, and is aligned.
        Ok(unsafe { std::slice::from_raw_parts(data.as_ptr(), len) })
    }
}

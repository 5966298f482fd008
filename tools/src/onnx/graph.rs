//! The Conv and ConvTranspose nodes of any model, with their shapes.
//!
//! Only shapes and types are needed, so weights may be in other files. Shapes of values between
//! nodes come from the model's `value_info`. Shapes that it lacks ([`missing`](Graph::missing))
//! can be inferred elsewhere and added with [`insert`](Graph::insert).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};
use convoke::{DType, Geometry, NodeInput, Operator};
use prost::Message;

use super::proto::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use super::{attribute, is_onnx_domain};

/// How to give a model the shapes that it lacks.
pub const HOW_TO_INFER: &str = "add the shapes to the model (Python: `onnx.save(onnx.shape_inference.infer_shapes(onnx.load(\"model.onnx\"), \
                                data_prop=True), \"shaped.onnx\")`), or build these tools with `--features infer`";

/// One size of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Dim {
    Size(i64),
    Name(String),
    Unknown,
}

/// What a model says about one value.
#[derive(Debug, Clone, Default)]
struct Value {
    dtype: Option<DType>,
    /// None if not even the rank is known.
    dims: Option<Vec<Dim>>,
}

/// An input of the whole model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its index among the model's inputs. Initializers do not count.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its sizes, if all of them are known.
    pub shape: Option<Vec<usize>>,
}

/// A model's convolutions, and what is known about all values.
#[derive(Debug, Clone)]
pub struct Graph {
    opset: i64,
    nodes: Vec<NodeProto>,
    values: HashMap<String, Value>,
    inputs: Vec<String>,
    /// Sizes of named dimensions.
    sizes: BTreeMap<String, i64>,
    others: BTreeMap<String, usize>,
}

/// One Conv or ConvTranspose node.
#[derive(Debug, Clone)]
pub struct ConvNode {
    /// The element type.
    pub dtype: DType,
    /// The operator with its attributes.
    pub operator: Operator,
    /// The resolved sizes.
    pub geometry: Geometry,
}

impl Graph {
    /// Decodes a model. `sizes` gives the sizes of dimensions that have only a name, such as
    /// `batch`.
    ///
    /// # Errors
    /// The call fails if the bytes are not a model, or if it has no graph, no opset or no
    /// convolution.
    pub fn decode(bytes: &[u8], sizes: BTreeMap<String, i64>) -> Result<Self> {
        let model = ModelProto::decode(bytes).context("not an ONNX model")?;
        let root = model.graph.context("the model has no graph")?;
        let opset = model.opset_import.iter().find(|set| is_onnx_domain(&set.domain));
        let opset = opset.context("the model imports no ONNX operator set")?.version;
        let constants: BTreeSet<_> = root.initializer.iter().map(|t| t.name.clone()).collect();
        let inputs = root.input.iter().map(|i| i.name.clone()).filter(|name| !constants.contains(name)).collect();
        let (nodes, values, others) = (Vec::new(), HashMap::new(), BTreeMap::new());
        let mut graph = Self { opset, nodes, values, inputs, sizes, others };
        graph.collect(root);
        for node in model.functions.iter().flat_map(|function| &function.node) {
            if is_onnx_domain(&node.domain) && matches!(node.op_type.as_str(), "Conv" | "ConvTranspose") {
                let name =
                    format!("{} in the model's own functions (Python's `onnx.inliner` resolves these)", node.op_type);
                *graph.others.entry(name).or_default() += 1;
            }
        }
        ensure!(!graph.nodes.is_empty(), "the model has no Conv and no ConvTranspose node{}", graph.others_text());
        Ok(graph)
    }

    /// Collects what a graph says, including the branches and loop bodies in it.
    fn collect(&mut self, graph: GraphProto) {
        for info in graph.input.iter().chain(&graph.output).chain(&graph.value_info) {
            self.note_info(info);
        }
        for tensor in &graph.initializer {
            self.note_tensor(&tensor.name, tensor);
        }
        for mut node in graph.node {
            for attribute in &mut node.attribute {
                if let Some(inner) = attribute.g.take() {
                    self.collect(*inner);
                }
            }
            if !is_onnx_domain(&node.domain) {
                continue;
            }
            match node.op_type.as_str() {
                "Conv" | "ConvTranspose" => self.nodes.push(node),
                "Constant" => {
                    let tensor = node.attribute.iter().find_map(|a| a.t.as_ref());
                    if let (Some(tensor), Some(name)) = (tensor, node.output.first()) {
                        self.note_tensor(name, tensor);
                    }
                }
                other if other.contains("Conv") => *self.others.entry(other.to_owned()).or_default() += 1,
                _ => {}
            }
        }
    }

    fn note_info(&mut self, info: &ValueInfoProto) {
        let Some(tensor) = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()) else { return };
        let dim = |value: Option<i64>, name: Option<&String>| match (value, name) {
            (Some(size), _) if size >= 0 => Dim::Size(size),
            (None, Some(name)) if !name.is_empty() => {
                self.sizes.get(name).map_or(Dim::Name(name.clone()), |&s| Dim::Size(s))
            }
            _ => Dim::Unknown,
        };
        let dims = |s: &super::proto::TensorShapeProto| {
            s.dim.iter().map(|d| dim(d.dim_value, d.dim_param.as_ref())).collect::<Vec<_>>()
        };
        let value = Value { dtype: dtype(tensor.elem_type), dims: tensor.shape.as_ref().map(dims) };
        self.values.insert(info.name.clone(), value);
    }

    fn note_tensor(&mut self, name: &str, tensor: &TensorProto) {
        let dims = Some(tensor.dims.iter().map(|&size| Dim::Size(size)).collect());
        self.values.insert(name.to_owned(), Value { dtype: dtype(tensor.data_type), dims });
    }

    /// The sizes of a value, if all are known.
    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let size = |dim: &Dim| if let Dim::Size(size) = dim { Some(*size) } else { None };
        self.values.get(name)?.dims.as_ref()?.iter().map(size).collect()
    }

    /// The values whose shapes the convolutions need and the model lacks.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<String> {
        let needed = self.nodes.iter().flat_map(|node| &node.input).filter(|name| !name.is_empty());
        needed.filter(|name| self.shape(name).is_none()).cloned().collect()
    }

    /// Whether the convolutions need shapes that the model lacks altogether, rather than sizes
    /// that have only a name. [`HOW_TO_INFER`] says how to add them.
    #[must_use]
    pub fn lacks_shapes(&self) -> bool {
        self.missing().iter().any(|name| self.open_size(name).is_none())
    }

    /// The name of a dimension of a value for which a size is missing.
    fn open_size(&self, name: &str) -> Option<&String> {
        let dims = self.values.get(name)?.dims.as_ref()?;
        dims.iter().find_map(|dim| if let Dim::Name(name) = dim { Some(name) } else { None })
    }

    /// Adds the shape of a value, and its element type if it is one of the four that convoke has.
    pub fn insert(&mut self, name: &str, dtype: Option<DType>, shape: &[i64]) {
        let value = self.values.entry(name.to_owned()).or_default();
        value.dtype = value.dtype.or(dtype);
        value.dims = Some(shape.iter().map(|&size| Dim::Size(size)).collect());
    }

    /// The model's inputs without weights.
    #[must_use]
    pub fn inputs(&self) -> Vec<Input> {
        let input = |(index, name): (usize, &String)| {
            let shape = self.shape(name).and_then(|s| s.into_iter().map(|size| usize::try_from(size).ok()).collect());
            Input { index, name: name.clone(), shape }
        };
        self.inputs.iter().enumerate().map(input).collect()
    }

    /// Number of nodes by operator, for convolutions of another kind, such as `ConvInteger`, and
    /// for convolutions inside functions, which are not read.
    #[must_use]
    pub fn others(&self) -> &BTreeMap<String, usize> {
        &self.others
    }

    fn others_text(&self) -> String {
        let count = |(name, count): (&String, &usize)| format!("{count} {name}");
        let list: Vec<_> = self.others.iter().map(count).collect();
        if list.is_empty() { String::new() } else { format!(" (but {}, which is not covered)", list.join(", ")) }
    }

    /// The convolutions in the model's order. Each has the node's name, and its description or
    /// the reason why there is none: a missing shape, or a type or an attribute that the
    /// operators do not have.
    #[must_use]
    pub fn nodes(&self) -> Vec<(String, Result<ConvNode>)> {
        self.nodes.iter().map(|node| (name(node), self.node(node))).collect()
    }

    fn node(&self, node: &NodeProto) -> Result<ConvNode> {
        let shapes = node.input.iter().map(|input| self.input(input)).collect::<Result<Vec<_>>>()?;
        // If the type of a value is not noted, it is that of the other inputs, because the
        // operators have only one type.
        let mut types = node.input.iter().filter_map(|input| self.values.get(input)?.dtype);
        let dtype = types.next().context("none of its inputs has a known element type of the four that convoke has")?;
        let input = |shape| Option::as_ref(shape).map(|dims: &Vec<i64>| NodeInput { dtype, dims });
        let inputs: Vec<_> = shapes.iter().map(input).collect();
        let attributes = node.attribute.iter().map(attribute).collect::<Result<Vec<_>>>()?;
        let (operator, geometry) = Operator::from_node(&node.op_type, self.opset, &attributes, &inputs)?;
        Ok(ConvNode { dtype, operator, geometry })
    }

    /// The shape of a node's input; `None` for an optional input that is absent.
    fn input(&self, name: &str) -> Result<Option<Vec<i64>>> {
        if name.is_empty() {
            return Ok(None);
        }
        if let Some(shape) = self.shape(name) {
            return Ok(Some(shape));
        }
        match self.open_size(name) {
            Some(dim) => bail!("its input {name:?} has a size that is called {dim:?}: give it, as in --dim {dim}=1"),
            None => bail!("the model does not say the shape of its input {name:?}"),
        }
    }
}

/// The node's name, or the name of its first output if it has none.
fn name(node: &NodeProto) -> String {
    if node.name.is_empty() { node.output.first().cloned().unwrap_or_default() } else { node.name.clone() }
}

fn dtype(data_type: i32) -> Option<DType> {
    match DataType::try_from(data_type) {
        Ok(DataType::Float) => Some(DType::F32),
        Ok(DataType::Double) => Some(DType::F64),
        Ok(DataType::Float16) => Some(DType::F16),
        Ok(DataType::Bfloat16) => Some(DType::BF16),
        _ => None,
    }
}

//! The Conv and ConvTranspose nodes of any model, with their shapes.
//!
//! Only shapes and types are needed, so weights may be in other files. Shapes of values between
//! nodes are inferred, node by node in the model's order. Where that is not possible, the model's
//! `value_info` counts. A node whose shapes are not known has the reason instead: the node where
//! the inference ended, or the size of an input that the user has to give.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use anyhow::{Context, Result, bail, ensure};
use convoke::{DType, Geometry, Operator};
use prost::Message;

use super::infer::{self, Call, Fact, Known, Unknown};
use super::is_onnx_domain;
use super::proto::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

/// A model's convolutions.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: Vec<(String, Result<ConvNode>)>,
    others: BTreeMap<String, usize>,
    conflicts: Vec<String>,
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
    /// `batch`. A size that has not even a name is called after its value and axis: `x.0`.
    ///
    /// # Errors
    /// The call fails if the bytes are not a model, or if it has no graph, no opset or no
    /// convolution.
    pub fn decode(bytes: &[u8], sizes: BTreeMap<String, i64>) -> Result<Self> {
        let model = ModelProto::decode(bytes).context("not an ONNX model")?;
        let root = model.graph.context("the model has no graph")?;
        let opset = model.opset_import.iter().find(|set| is_onnx_domain(&set.domain));
        let opset = opset.context("the model imports no ONNX operator set")?.version;
        let mut reader = Reader { opset, sizes, scopes: Vec::new(), conflicts: HashMap::new(), found: Self::default() };
        reader.graph(root);
        let mut graph = reader.found;
        for node in model.functions.iter().flat_map(|function| &function.node).filter(|node| is_convolution(node)) {
            let name =
                format!("{} in the model's own functions (Python's `onnx.inliner` resolves these)", node.op_type);
            *graph.others.entry(name).or_default() += 1;
        }
        ensure!(!graph.nodes.is_empty(), "the model has no Conv and no ConvTranspose node{}", graph.others_text());
        Ok(graph)
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

    /// Inputs of convolutions whose shape the model states otherwise than its nodes give it, one in
    /// each text. What the nodes give is taken.
    #[must_use]
    pub fn conflicts(&self) -> &[String] {
        &self.conflicts
    }

    /// The convolutions in the model's order. Each has the node's name, and its description or
    /// the reason why there is none: a missing shape, or a type or an attribute that the
    /// operators do not have.
    #[must_use]
    pub fn into_nodes(self) -> Vec<(String, Result<ConvNode>)> {
        self.nodes
    }
}

/// One size that a model states.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Dim {
    Size(i64),
    Name(String),
}

/// What a model states about a value.
#[derive(Debug, Clone, Default)]
struct Stated {
    data_type: i32,
    /// None if not even the rank is stated.
    dims: Option<Vec<Dim>>,
}

impl Stated {
    /// The value `name`, if all sizes are known.
    fn fact(&self, name: &str) -> Known {
        let dims =
            self.dims.as_ref().ok_or_else(|| Unknown::new(&format!("the model does not say the shape of {name:?}")))?;
        let open = dims.iter().filter_map(|dim| if let Dim::Name(name) = dim { Some(name) } else { None });
        let open: BTreeSet<_> = open.map(|name| format!("--dim {name}=1")).collect();
        if !open.is_empty() {
            return Err(Unknown::open(&format!(
                "{name:?} has sizes that the model leaves open: give them, as in {}",
                open.into_iter().collect::<Vec<_>>().join(" ")
            )));
        }
        let sizes = dims.iter().filter_map(|dim| if let Dim::Size(size) = dim { Some(*size) } else { None });
        Fact::new(self.data_type, sizes.collect()).map_err(|rule| Unknown::new(&format!("{name:?} {rule}")))
    }

    fn text(&self) -> String {
        let size = |dim: &Dim| match dim {
            Dim::Size(size) => size.to_string(),
            Dim::Name(name) => name.clone(),
        };
        format!("[{}]", self.dims.iter().flatten().map(size).collect::<Vec<_>>().join(", "))
    }

    /// Whether a shape is another one than is stated. What is left open agrees with all sizes.
    fn contradicts(&self, shape: &[i64]) -> bool {
        let differs = |(dim, size): (&Dim, &i64)| matches!(dim, Dim::Size(stated) if stated != size);
        self.dims.as_ref().is_some_and(|dims| dims.len() != shape.len() || dims.iter().zip(shape).any(differs))
    }
}

/// The values of a graph, or of a branch in it, which also sees those of the graphs around it.
#[derive(Debug, Default)]
struct Scope {
    stated: HashMap<String, Stated>,
    values: HashMap<String, Known>,
}

/// What is known while the nodes are read one after the other.
struct Reader {
    opset: i64,
    /// Sizes of named dimensions.
    sizes: BTreeMap<String, i64>,
    scopes: Vec<Scope>,
    /// Values whose shape the model states otherwise than their node gives it.
    conflicts: HashMap<String, String>,
    found: Graph,
}

impl Reader {
    /// Reads a graph, including the branches and loop bodies in it, and returns its outputs.
    fn graph(&mut self, graph: GraphProto) -> Vec<Known> {
        self.scopes.push(self.scope(&graph));
        for node in in_order(graph.node) {
            self.node(node);
        }
        let outputs = graph.output.iter().map(|output| self.value(&output.name).cloned()).collect();
        self.scopes.pop();
        outputs
    }

    /// What a graph says about its values before its first node.
    fn scope(&self, graph: &GraphProto) -> Scope {
        let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
        let stated: HashMap<_, _> = infos.map(|info| (info.name.clone(), self.stated(info))).collect();
        let input = |info: &ValueInfoProto| (info.name.clone(), stated[&info.name].fact(&info.name));
        let constant = |tensor: &TensorProto| {
            let fact = infer::of_tensor(tensor);
            let fact = fact.map_err(|rule| Unknown::new(&format!("the constant {:?} {rule}", tensor.name)));
            (tensor.name.clone(), fact)
        };
        // Old models list constants among the inputs too.
        let values = graph.input.iter().map(input).chain(graph.initializer.iter().map(constant)).collect();
        Scope { stated, values }
    }

    fn stated(&self, info: &ValueInfoProto) -> Stated {
        let Some(tensor) = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()) else { return Stated::default() };
        let dim = |(axis, dim): (usize, &super::proto::DimensionProto)| {
            let place = format!("{}.{axis}", info.name);
            let name = match (dim.dim_value, &dim.dim_param) {
                (Some(size), _) if size >= 0 => return Dim::Size(size),
                // Some writers call all sizes that they do not know by this name.
                (None, Some(name)) if !matches!(name.as_str(), "" | "?") => name,
                _ => &place,
            };
            let size = self.sizes.get(&place).or_else(|| self.sizes.get(name));
            size.map_or_else(|| Dim::Name(name.clone()), |&size| Dim::Size(size))
        };
        let dims = tensor.shape.as_ref().map(|shape| shape.dim.iter().enumerate().map(dim).collect());
        Stated { data_type: tensor.elem_type, dims }
    }

    fn value(&self, name: &str) -> Known<&Fact> {
        let value = self.scopes.iter().rev().find_map(|scope| scope.values.get(name));
        let missing = || Err(Unknown::new(&format!("no node before its reader writes {name:?}")));
        value.map_or_else(missing, |known| known.as_ref().map_err(Unknown::clone))
    }

    fn node(&mut self, mut node: NodeProto) {
        let inner = node.attribute.iter_mut().filter_map(|a| Some((a.name.clone(), a.g.take()?)));
        let inner: Vec<_> = inner.collect();
        let inner: Vec<_> = inner.into_iter().map(|(name, graph)| (name, self.graph(*graph))).collect();
        let inputs = node.input.iter().map(|name| (!name.is_empty()).then(|| self.value(name))).collect();
        let call = Call { node: &node, opset: self.opset, inputs };
        let operator = call.operator();
        let convolution = is_convolution(&node).then(|| (call.name().to_owned(), conv_node(&call)));
        let outputs = outputs(&call, &inner);
        match convolution {
            Some(convolution) => {
                self.found.nodes.push(convolution);
                let conflicts = node.input.iter().filter_map(|name| self.conflicts.remove(name));
                self.found.conflicts.extend(conflicts);
            }
            None if operator.contains("Conv") => *self.found.others.entry(operator).or_default() += 1,
            None => {}
        }
        for (output, known) in node.output.iter().zip(outputs) {
            self.settle(output, known);
        }
    }

    /// Takes what was inferred about a value, or else what the model states.
    fn settle(&mut self, name: &str, inferred: Known) {
        let scope = self.scopes.last_mut().expect("nodes are in a graph");
        let known = match (inferred, scope.stated.get(name)) {
            (Ok(mut fact), Some(stated)) => {
                if stated.contradicts(&fact.dims) {
                    let conflict = format!("{name:?} is {}, and its node gives {:?}", stated.text(), fact.dims);
                    self.conflicts.insert(name.to_owned(), conflict);
                }
                fact.data_type = if stated.data_type == 0 { fact.data_type } else { stated.data_type };
                Ok(fact)
            }
            (Err(reason), Some(stated)) => stated.fact(name).map_err(|stated| reason.with_open(stated)),
            (inferred, None) => inferred,
        };
        scope.values.insert(name.to_owned(), known);
    }
}

/// The nodes in the file's order, but each behind those whose outputs it reads. Not all writers of
/// models sort them.
fn in_order(nodes: Vec<NodeProto>) -> Vec<NodeProto> {
    let outputs = |(index, node): (usize, &'_ NodeProto)| {
        node.output.iter().map(move |name| (name.clone(), index)).collect::<Vec<_>>()
    };
    let writer: HashMap<_, _> = nodes.iter().enumerate().flat_map(outputs).collect();
    let (mut waits, mut readers) = (vec![0_usize; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (index, node) in nodes.iter().enumerate() {
        for &before in reads(node).iter().filter_map(|&name| writer.get(name)).filter(|&&before| before != index) {
            waits[index] += 1;
            readers[before].push(index);
        }
    }
    let mut ready: BinaryHeap<_> = (0..nodes.len()).filter(|&index| waits[index] == 0).map(Reverse).collect();
    let mut nodes: Vec<_> = nodes.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        sorted.extend(nodes[index].take());
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    // Nodes in a circle wait for ever.
    sorted.extend(nodes.into_iter().flatten());
    sorted
}

/// The names that a node reads, also those in its branches or loop bodies.
fn reads(node: &NodeProto) -> Vec<&str> {
    let inner = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()).flat_map(|graph| &graph.node);
    node.input.iter().map(String::as_str).chain(inner.flat_map(reads)).collect()
}

/// What is known about each output of a node. `inner` has the outputs of the graphs in it.
fn outputs(call: &Call<'_>, inner: &[(String, Vec<Known>)]) -> Vec<Known> {
    let graph = |name: &str| inner.iter().find(|(own, _)| own == name).map(|(_, outputs)| &outputs[..]);
    let inferred = match (graph("then_branch"), graph("else_branch")) {
        (Some(yes), Some(no)) => match call.condition() {
            Some(condition) => if condition { yes } else { no }.to_vec(),
            None => yes.iter().zip(no).map(|either| either_branch(call, either)).collect(),
        },
        _ => match infer::outputs(call) {
            Ok(facts) => facts.into_iter().map(Ok).collect(),
            Err(reason) => return vec![Err(reason); call.node.output.len()],
        },
    };
    let rest = call.open("these tools do not infer the shape of this output");
    inferred.into_iter().chain(std::iter::repeat(Err(rest))).take(call.node.output.len()).collect()
}

/// An output of an If whose condition is not known.
fn either_branch(call: &Call<'_>, outputs: (&Known, &Known)) -> Known {
    match outputs {
        (Ok(a), Ok(b)) if a.dims == b.dims => Ok(Fact { numbers: None, ..a.clone() }),
        (Ok(a), Ok(b)) => Err(call.open(format_args!(
            "these tools do not know which of its branches it takes, and they give {:?} and {:?}",
            a.dims, b.dims
        ))),
        (Err(reason), _) | (_, Err(reason)) => Err(reason.clone()),
    }
}

/// The description of a convolution.
fn conv_node(call: &Call<'_>) -> Result<ConvNode> {
    let mut shapes = Vec::new();
    for (input, name) in call.inputs.iter().zip(&call.node.input) {
        match input {
            None => shapes.push(None),
            Some(Ok(fact)) => shapes.push(Some(&fact.dims[..])),
            Some(Err(reason)) => bail!("the shape of its input {name:?} is not known: {reason}"),
        }
    }
    // If the type of a value is not known, it is that of the other inputs, because the operators
    // have only one type.
    let mut types = call.inputs.iter().flatten().flatten().filter_map(|fact| dtype(fact.data_type));
    let dtype = types.next().context("none of its inputs has a known element type of the four that convoke has")?;
    let (operator, geometry) = infer::geometry(call, &call.node.op_type, &shapes, dtype)?;
    Ok(ConvNode { dtype, operator, geometry })
}

fn is_convolution(node: &NodeProto) -> bool {
    is_onnx_domain(&node.domain) && matches!(node.op_type.as_str(), "Conv" | "ConvTranspose")
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

//! Activations, recognised by what they compute: exporters write the same function with many
//! operators, which become one normal form here.

use convoke::{Activation, DType, bf16, f16};

use crate::api::Result;
use crate::graph::{Attributes, Node, Reasoned, Value};

/// Nodes of an activation, at most. A Gelu of tanh whose cube is spelled by products has nine.
const MOST_NODES: usize = 9;

/// A Swish of optimised models.
pub(crate) const QUICK_GELU: &str = "com.microsoft.QuickGelu";
/// Gelu with a hyperbolic tangent in place of the error function: ONNX's with an attribute, and an operator of optimised
/// models.
pub(crate) const GELU_TANH: &str = "com.microsoft.FastGelu";
/// The reason why a function of one value stays apart.
pub(crate) const NO_SUCH: &str = "no layer has such an activation";

/// A function of one number: in each interval a polynomial, plus another one times a curve.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    /// `None` if nothing is multiplied by one.
    curve: Option<Curve>,
    /// In the order of their intervals, which cover all numbers.
    pieces: Vec<Piece>,
}

/// A function of a polynomial of the number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Curve {
    shape: Shape,
    of: Terms,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Erf,
    Sigmoid,
    Softplus,
    Tanh,
    TanhOfSoftplus,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    /// Where its interval begins. It ends where the next one begins.
    from: f64,
    plain: Terms,
    /// What the curve is multiplied by.
    times: Terms,
}

/// A polynomial: the factors of the powers 0 to 3.
type Terms = [f64; 4];

const NOTHING: Terms = [0.0; 4];

impl Function {
    /// The number itself.
    pub(crate) fn identity() -> Self {
        Self::of_terms([0.0, 1.0, 0.0, 0.0])
    }

    fn of_terms(plain: Terms) -> Self {
        Self { curve: None, pieces: vec![Piece { from: f64::NEG_INFINITY, plain, times: NOTHING }] }
    }

    fn constant(value: f64) -> Self {
        Self::of_terms([value, 0.0, 0.0, 0.0])
    }

    fn as_polynomial(&self) -> Option<Terms> {
        let &[Piece { plain, times: NOTHING, .. }] = &self.pieces[..] else { return None };
        Some(plain)
    }

    fn as_constant(&self) -> Option<f64> {
        let [value, 0.0, 0.0, 0.0] = self.as_polynomial()? else { return None };
        Some(value)
    }

    /// A curve of this function.
    fn curved(&self, shape: Shape) -> Option<Self> {
        let curve = |shape, of| Self {
            curve: Some(Curve { shape, of }),
            pieces: vec![Piece { from: f64::NEG_INFINITY, plain: NOTHING, times: [1.0, 0.0, 0.0, 0.0] }],
        };
        if let Some(of) = self.as_polynomial() {
            return Some(curve(shape, of));
        }
        let of = self.curve.filter(|inner| inner.shape == Shape::Softplus && shape == Shape::Tanh)?.of;
        (*self == curve(Shape::Softplus, of)).then(|| curve(Shape::TanhOfSoftplus, of))
    }

    /// What an operator computes of its inputs and, behind them, its attributes. `None` if that is no
    /// such function, or a number of it is not finite.
    pub(crate) fn of(op: &str, operands: &[Self]) -> Option<Self> {
        match (op, operands) {
            ("Add" | "Sum", [first, rest @ ..]) => rest.iter().try_fold(first.clone(), |sum, next| sum.plus(next)),
            ("Mul", [one, other]) => one.times(other),
            ("Max", [first, rest @ ..]) => rest.iter().try_fold(first.clone(), |most, next| most.max(next)),
            ("Min", [first, rest @ ..]) => rest.iter().try_fold(first.clone(), |least, next| least.min(next)),
            ("Sub", [one, other]) => one.plus(&other.negated()),
            ("Div", [one, other]) => one.scaled(1.0 / other.as_constant()?),
            ("Pow", [x, power]) => match power.as_constant()? {
                2.0 => x.times(x),
                3.0 => x.times(x)?.times(x),
                _ => None,
            },
            ("Identity", [x]) => Some(x.clone()),
            ("Neg", [x]) => Some(x.negated()),
            ("Abs", [x]) => x.max(&x.negated()),
            ("Relu", [x]) => x.max(&Self::constant(0.0)),
            ("Clip", [x, least, most]) => x.max(least)?.min(most),
            ("LeakyRelu" | "PRelu", [x, slope]) => {
                let zero = Self::constant(0.0);
                x.max(&zero)?.plus(&x.min(&zero)?.times(slope)?)
            }
            ("HardSigmoid", [x, alpha, beta]) => x.times(alpha)?.plus(beta)?.clamped(0.0, 1.0),
            ("HardSwish", [x]) => x.times(&x.scaled(1.0 / 6.0)?.plus(&Self::constant(0.5))?.clamped(0.0, 1.0)?),
            ("Swish" | QUICK_GELU, [x, alpha]) => x.times(&x.times(alpha)?.curved(Shape::Sigmoid)?),
            ("Mish", [x]) => x.times(&x.curved(Shape::Softplus)?.curved(Shape::Tanh)?),
            ("Gelu" | "com.microsoft.Gelu", [x]) => {
                x.gated(&x.scaled(std::f64::consts::FRAC_1_SQRT_2)?.curved(Shape::Erf)?)
            }
            (GELU_TANH, [x]) => {
                let sum = x.times(x)?.times(x)?.scaled(0.044_715)?.plus(x)?;
                x.gated(&sum.scaled((2.0 / std::f64::consts::PI).sqrt())?.curved(Shape::Tanh)?)
            }
            ("Erf", [x]) => x.curved(Shape::Erf),
            ("Sigmoid", [x]) => x.curved(Shape::Sigmoid),
            ("Softplus", [x]) => x.curved(Shape::Softplus),
            ("Tanh", [x]) => x.curved(Shape::Tanh),
            _ => None,
        }
    }

    /// Half of the number times one more than the gate, which goes from -1 to 1.
    fn gated(&self, gate: &Self) -> Option<Self> {
        self.times(&gate.plus(&Self::constant(1.0))?)?.scaled(0.5)
    }

    /// The activation that is this function, with constants as the element type rounds them.
    pub(crate) fn activation(&self, dtype: DType) -> Option<Activation> {
        let [first, last] = [self.pieces.first()?.plain, self.pieces.last()?.plain];
        let bound = |terms: Terms, open: f32| if terms[1..] == NOTHING[1..] { exact(terms[0]) } else { open };
        let (min, max) = (bound(first, f32::NEG_INFINITY), bound(last, f32::INFINITY));
        let alpha = exact(first[1]);
        let activations = [
            (Activation::None, "Identity", vec![]),
            (Activation::Relu, "Relu", vec![]),
            (Activation::LeakyRelu { alpha }, "LeakyRelu", vec![alpha]),
            (Activation::Clip { min, max }, "Clip", vec![min, max]),
            (Activation::HardSwish, "HardSwish", vec![]),
            (Activation::Silu, "Swish", vec![1.0]),
            (Activation::Sigmoid, "Sigmoid", vec![]),
            (Activation::Tanh, "Tanh", vec![]),
            (Activation::Gelu, "Gelu", vec![]),
            (Activation::GeluTanh, GELU_TANH, vec![]),
            (Activation::Mish, "Mish", vec![]),
        ];
        let is_this = |op, numbers: &[f32]| {
            Self::of(op, &of_identity(numbers)).is_some_and(|function| self.is_near(&function, tolerance(dtype)))
        };
        activations.into_iter().find_map(|(activation, op, numbers)| is_this(op, &numbers).then_some(activation))
    }

    /// The factor and the shift in front of an activation that are this function together.
    pub(crate) fn scaled_activation(&self, dtype: DType) -> Option<Scaled> {
        if let Some(activation) = self.activation(dtype) {
            return Some(Scaled { factor: 1.0, shift: 0.0, activation });
        }
        let &[Piece { plain: first, .. }, Piece { plain: [shift, factor, 0.0, 0.0], .. }, Piece { plain: last, .. }] =
            &self.pieces[..]
        else {
            return None;
        };
        // Of a factor that was rounded, as 1/6, a bound is none of an f32.
        let rounded = |value: f64| if dtype == DType::F64 { exact(value) } else { value as f32 };
        let [Some(one), Some(other)] =
            [first, last].map(|terms| (terms[1..] == NOTHING[1..]).then(|| rounded(terms[0])))
        else {
            return None;
        };
        let (min, max) = if factor > 0.0 { (one, other) } else { (other, one) };
        let is_clip = self.curve.is_none() && factor != 0.0 && min <= max;
        is_clip.then_some(Scaled { factor, shift, activation: Activation::Clip { min, max } })
    }

    fn is_near(&self, other: &Self, tolerance: f64) -> bool {
        let near = |one: f64, other: f64| one == other || (one - other).abs() <= tolerance * other.abs();
        let are_near = |one: Terms, other: Terms| one.into_iter().zip(other).all(|(one, other)| near(one, other));
        let is_same_curve = match (self.curve, other.curve) {
            (Some(one), Some(other)) => one.shape == other.shape && are_near(one.of, other.of),
            (one, other) => one == other,
        };
        let mut pieces = self.pieces.iter().zip(&other.pieces);
        is_same_curve
            && self.pieces.len() == other.pieces.len()
            && pieces.all(|(one, other)| {
                near(one.from, other.from) && are_near(one.plain, other.plain) && are_near(one.times, other.times)
            })
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        self.combined(other, |one, other| {
            let sum = |one: Terms, other: Terms| std::array::from_fn(|i| one[i] + other[i]);
            let (plain, times): (Terms, Terms) = (sum(one.plain, other.plain), sum(one.times, other.times));
            // Of a number that is added to a far larger one, digits are lost: that may be what is wanted.
            let size = |terms: &[f64]| terms.iter().map(|term| term.abs()).sum::<f64>();
            let keeps_digits = |shift: f64, rest: f64| rest == 0.0 || shift.abs() <= rest * 1024.0;
            let keeps = keeps_digits(plain[0], size(&plain[1..]) + size(&times));
            (keeps && keeps_digits(times[0], size(&times[1..]))).then_some((plain, times))
        })
    }

    fn times(&self, other: &Self) -> Option<Self> {
        if self.curve.is_some() && other.curve.is_some() {
            return None;
        }
        self.combined(other, |one, other| {
            let curved =
                if one.times == NOTHING { product(one.plain, other.times) } else { product(one.times, other.plain) };
            Some((product(one.plain, other.plain)?, curved?))
        })
    }

    fn scaled(&self, by: f64) -> Option<Self> {
        self.times(&Self::constant(by))
    }

    fn negated(&self) -> Self {
        let negated = |terms: Terms| terms.map(|term| -term);
        let pieces = self.pieces.iter().map(|piece| Piece {
            plain: negated(piece.plain),
            times: negated(piece.times),
            ..*piece
        });
        Self { curve: self.curve, pieces: pieces.collect() }
    }

    fn clamped(&self, least: f64, most: f64) -> Option<Self> {
        self.max(&Self::constant(least))?.min(&Self::constant(most))
    }

    fn min(&self, other: &Self) -> Option<Self> {
        Some(self.negated().max(&other.negated())?.negated())
    }

    fn max(&self, other: &Self) -> Option<Self> {
        if self.curve.is_some() || other.curve.is_some() {
            return None;
        }
        let mut pieces = Vec::new();
        for (to, one, other) in self.intervals(other) {
            let [difference, slope, 0.0, 0.0] = std::array::from_fn(|i| one.plain[i] - other.plain[i]) else {
                return None;
            };
            // Which is the larger one in front of the point where they are equal, and behind it.
            let (equal, larger) = match () {
                () if slope > 0.0 => (-difference / slope, [other, one]),
                () if slope < 0.0 => (-difference / slope, [one, other]),
                () if difference < 0.0 => (one.from, [other; 2]),
                () => (one.from, [one; 2]),
            };
            let equal = equal.max(one.from);
            pieces.extend((one.from < equal).then_some(larger[0]));
            pieces.extend((equal < to).then_some(Piece { from: equal, ..larger[1] }));
        }
        Self::normal(None, pieces)
    }

    /// The polynomials of each interval combined with those of the other function. There is one curve at most.
    fn combined(&self, other: &Self, combine: impl Fn(Piece, Piece) -> Option<(Terms, Terms)>) -> Option<Self> {
        if self.curve.is_some() && other.curve.is_some() && self.curve != other.curve {
            return None;
        }
        let pieces = self.intervals(other).map(|(_, one, other)| {
            let (plain, times) = combine(one, other)?;
            Some(Piece { from: one.from, plain, times })
        });
        Self::normal(self.curve.or(other.curve), pieces.collect::<Option<_>>()?)
    }

    /// Each interval in which both have the same polynomials: where it ends, and the part of each function.
    fn intervals(&self, other: &Self) -> impl Iterator<Item = (f64, Piece, Piece)> {
        let mut bounds: Vec<f64> = self.pieces.iter().chain(&other.pieces).map(|piece| piece.from).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let ends: Vec<f64> = bounds.iter().skip(1).copied().chain([f64::INFINITY]).collect();
        let part = |function: &Self, from: f64| {
            let known = function.pieces.iter().rev().find(|piece| piece.from <= from);
            Piece { from, ..*known.expect("the first interval begins at minus infinity") }
        };
        bounds.into_iter().zip(ends).map(move |(from, to)| (to, part(self, from), part(other, from)))
    }

    /// Without bounds between equal pieces, and without a curve that nothing is multiplied by.
    fn normal(curve: Option<Curve>, mut pieces: Vec<Piece>) -> Option<Self> {
        pieces.dedup_by_key(|piece| (piece.plain, piece.times));
        let curve = curve.filter(|_| pieces.iter().any(|piece| piece.times != NOTHING));
        let is_finite = pieces.iter().flat_map(|piece| [piece.plain, piece.times]).flatten().all(f64::is_finite);
        is_finite.then_some(Self { curve, pieces })
    }
}

/// The product of two polynomials of finite numbers, if it has no higher power than a polynomial may have.
fn product(one: Terms, other: Terms) -> Option<Terms> {
    let mut product = NOTHING;
    if !one.into_iter().chain(other).all(f64::is_finite) {
        return None;
    }
    for (i, a) in one.into_iter().enumerate().filter(|(_, a)| *a != 0.0) {
        for (j, b) in other.into_iter().enumerate().filter(|(_, b)| *b != 0.0) {
            *product.get_mut(i + j)? += a * b;
        }
    }
    Some(product)
}

/// The number itself and constants, as operands.
pub(crate) fn of_identity(constants: &[f32]) -> Vec<Function> {
    let constants = constants.iter().map(|number| Function::constant((*number).into()));
    std::iter::once(Function::identity()).chain(constants).collect()
}

/// By how much numbers may differ from those of an activation, in proportion: by the rounding of a
/// constant as 1/6. Floats are mostly written with seven digits, and attributes are floats in models of
/// double, too.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from(f32::EPSILON) / 2.0,
        DType::F32 => f64::from(f32::EPSILON) * 4.0,
        DType::F16 => f16::EPSILON.to_f64() / 2.0,
        DType::BF16 => bf16::EPSILON.to_f64() / 2.0,
    }
}

/// As an `f32`; not a number if it is none.
fn exact(value: f64) -> f32 {
    let short = value as f32;
    if f64::from(short) == value { short } else { f32::NAN }
}

/// An activation of a number times a factor, plus a shift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scaled {
    pub(crate) factor: f64,
    pub(crate) shift: f64,
    pub(crate) activation: Activation,
}

impl Scaled {
    pub(crate) fn is_plain(&self) -> bool {
        self.factor == 1.0 && self.shift == 0.0
    }
}

/// What was found behind a value.
pub(crate) struct Found<'g> {
    /// Activations, each with its nodes in the order in which they run. Later ones have more nodes.
    pub(crate) all: Vec<(Scaled, Vec<Node<'g>>)>,
    /// Nodes whose function is not known, and why.
    pub(crate) refused: Vec<(Node<'g>, String)>,
    /// Whether all that reads the value comes together again, in a function that may be no activation.
    pub(crate) is_closed: bool,
}

/// The nodes behind a value of the given type that compute an activation of it, if nothing else
/// reads what lies between. `start` is what the value itself is of a number, and whether that may be multiplied by a
/// factor first.
pub(crate) fn behind<'g>(
    value: Value<'g>,
    (start, can_scale): (Function, bool),
    dtype: DType,
    is_free: impl Fn(Node<'g>) -> bool,
) -> Result<Found<'g>> {
    let mut known = vec![(value, start)];
    let mut nodes = Vec::new();
    let mut found = Found { all: Vec::new(), refused: Vec::new(), is_closed: false };
    while nodes.len() < MOST_NODES {
        let mut next = None;
        found.refused.clear();
        for node in readers(&known)?.into_iter().filter(|node| !nodes.contains(node) && is_free(*node)) {
            match function_of(node, &known, dtype)? {
                Some(Ok(function)) => {
                    next = Some((node, function));
                    break;
                }
                Some(Err(reason)) => found.refused.push((node, reason)),
                None => {}
            }
        }
        let Some((node, function)) = next else { break };
        let activation = function.scaled_activation(dtype).filter(|scaled| can_scale || scaled.is_plain());
        nodes.push(node);
        let is_closed = are_read_by(&nodes, &known)?;
        found.is_closed |= is_closed;
        if let Some(activation) = activation.filter(|_| is_closed) {
            found.all.push((activation, nodes.clone()));
        }
        known.push((node.output()?, function));
    }
    Ok(found)
}

/// What a node computes of one tensor, if that is known.
pub(crate) fn of_node<'g>(node: Node<'g>, x: Value<'g>, dtype: DType) -> Result<Option<Function>> {
    Ok(function_of(node, &[(x, Function::identity())], dtype)?.and_then(std::result::Result::ok))
}

fn readers<'g>(known: &[(Value<'g>, Function)]) -> Result<Vec<Node<'g>>> {
    let mut nodes = Vec::new();
    for (value, _) in known {
        nodes.extend(value.readers()?.into_iter().map(|(node, _)| node));
    }
    Ok(nodes)
}

/// Whether each of the values is read by some of the nodes, and by nothing else.
fn are_read_by<'g>(nodes: &[Node<'g>], values: &[(Value<'g>, Function)]) -> Result<bool> {
    for (value, _) in values {
        let consumers = value.consumers()?.unwrap_or_default();
        if consumers.is_empty() || !consumers.iter().all(|node| nodes.contains(node)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a node computes of a number that known values are functions of, or why that is not known.
/// `None` if it is no activation, nor a part of one.
fn function_of<'g>(
    node: Node<'g>,
    known: &[(Value<'g>, Function)],
    dtype: DType,
) -> Result<Option<Reasoned<Function>>> {
    let op = node.op()?;
    if is_lacking(&op) {
        return Ok(Some(Err(NO_SUCH.into())));
    }
    if !is_part(&op) {
        return Ok(None);
    }
    let (attributes, since) = (node.attributes()?, node.since_version()?);
    let float = |name: &str, default: f32| Function::constant(attributes.float(name, default).into());
    let (mut inputs, mut operands) = (node.inputs()?, Vec::new());
    if op == "Clip" && since >= 11 {
        inputs.resize(3, None);
    }
    for (at, input) in inputs.into_iter().enumerate() {
        // A bound of a Clip that is left out is the lowest or largest number of the type, so that infinity
        // becomes that number.
        let Some(input) = input else {
            operands.push(Function::constant(if at == 1 { -largest(dtype) } else { largest(dtype) }));
            continue;
        };
        let Some(operand) = operand(input, known)? else {
            return Ok(Some(Err(format!("{} is not one constant number", input.name()?))));
        };
        operands.push(operand);
    }
    match &*op {
        // The attributes' defaults are the numbers of float for every type.
        "Clip" if since < 11 => operands.extend([float("min", f32::MIN), float("max", f32::MAX)]),
        "HardSigmoid" => operands.extend([float("alpha", 0.2), float("beta", 0.5)]),
        "LeakyRelu" => operands.push(float("alpha", 0.01)),
        "Swish" => operands.push(float("alpha", 1.0)),
        QUICK_GELU => operands.push(float("alpha", 1.702)),
        _ => {}
    }
    Ok(Some(Function::of(kind_of(&op, &attributes), &operands).ok_or_else(|| NO_SUCH.into())))
}

/// The operator that is this one with its attributes.
pub(crate) fn kind_of<'a>(op: &'a str, attributes: &Attributes) -> &'a str {
    if op == "Gelu" && attributes.string("approximate") == Some("tanh") { GELU_TANH } else { op }
}

/// Whether activations are made of this operator, or one is.
#[rustfmt::skip]
pub(crate) fn is_part(op: &str) -> bool {
    matches!(
        op,
        "Abs" | "Add" | "Clip" | "Div" | "HardSigmoid" | "HardSwish" | "Identity" | "LeakyRelu" | "Max" | "Min" | "Mul"
            | "Neg" | "PRelu" | "Pow" | "Relu" | "Sigmoid" | "Softplus" | "Sub" | "Sum" | "Swish" | "Tanh" | QUICK_GELU
            | "Erf" | "Gelu" | "Mish" | "com.microsoft.Gelu" | GELU_TANH
    )
}

/// Whether it is an activation that no layer has, whichever its numbers are.
fn is_lacking(op: &str) -> bool {
    matches!(op, "Celu" | "Elu" | "Selu" | "Softsign" | "ThresholdedRelu")
}

/// A known value, or a constant number that leaves the shape of one as it is.
fn operand(input: Value<'_>, known: &[(Value<'_>, Function)]) -> Result<Option<Function>> {
    let name = input.name()?;
    for (value, function) in known {
        if value.name()? == name {
            return Ok(Some(function.clone()));
        }
    }
    // What a convolution computes has three axes at least.
    let rank = known[0].0.tensor_type()?.and_then(|ty| ty.dims).map_or(3, |dims| dims.len());
    let is_one = |dims: &[i64]| dims.len() <= rank && dims.iter().all(|size| *size == 1);
    let Some(tensor) = input.constant()?.filter(|tensor| is_one(tensor.dims())) else { return Ok(None) };
    Ok(match tensor.floats()?.as_deref() {
        Some([number]) if !number.is_nan() => Some(Function::constant(*number)),
        _ => None,
    })
}

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::MAX.into(),
        DType::F64 => f64::MAX,
        DType::F16 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Function {
        fn at(&self, x: f64) -> f64 {
            let value = |[d, c, b, a]: Terms| ((a * x + b) * x + c) * x + d;
            let piece = self.pieces.iter().rev().find(|piece| piece.from <= x).unwrap();
            let curve = self.curve.map_or(0.0, |curve| {
                let of = value(curve.of);
                let softplus = of.max(0.0) + (-of.abs()).exp().ln_1p();
                match curve.shape {
                    Shape::Erf => libm::erf(of),
                    Shape::Sigmoid => 1.0 / (1.0 + (-of).exp()),
                    Shape::Softplus => softplus,
                    Shape::Tanh => of.tanh(),
                    Shape::TanhOfSoftplus => softplus.tanh(),
                }
            });
            value(piece.plain) + value(piece.times) * curve
        }
    }

    /// Random expressions, beside their values.
    #[test]
    fn functions_have_the_values_of_their_expressions() {
        let mut state = 1_u32;
        let mut next = |count: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % count
        };
        let points = [-7.5, -3.0, -2.25, -1.0, -0.5, 0.0, 0.125, 0.75, 1.0, 2.5, 3.0, 6.0, 9.0];
        let ops = [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Max",
            "Min",
            "Neg",
            "Abs",
            "Relu",
            "LeakyRelu",
            "Clip",
            "HardSigmoid",
            "Sigmoid",
            "Softplus",
            "Tanh",
            "Erf",
        ];
        let mut sizes = [0; 8];
        for _ in 0..8000 {
            let mut known = vec![(Function::identity(), points.to_vec())];
            for constant in [-1.0, 0.25, 0.5, 3.0] {
                known.push((Function::constant(constant), vec![constant; points.len()]));
            }
            for _ in 0..12 {
                let op = ops[next(ops.len())];
                let count = match op {
                    "Neg" | "Abs" | "Relu" | "Sigmoid" | "Softplus" | "Tanh" | "Erf" => 1,
                    "Clip" | "HardSigmoid" => 3,
                    _ => 2,
                };
                let chosen: Vec<_> = (0..count).map(|_| known[next(known.len())].clone()).collect();
                let operands: Vec<_> = chosen.iter().map(|(function, _)| function.clone()).collect();
                let Some(function) = Function::of(op, &operands) else { continue };
                let value = |i: usize| {
                    let v: Vec<f64> = chosen.iter().map(|(_, values)| values[i]).collect();
                    match op {
                        "Add" => v[0] + v[1],
                        "Sub" => v[0] - v[1],
                        "Mul" => v[0] * v[1],
                        "Div" => v[0] / v[1],
                        "Max" => v[0].max(v[1]),
                        "Min" => v[0].min(v[1]),
                        "Neg" => -v[0],
                        "Abs" => v[0].abs(),
                        "Relu" => v[0].max(0.0),
                        "LeakyRelu" => v[0].max(0.0) + v[0].min(0.0) * v[1],
                        "Clip" => v[0].max(v[1]).min(v[2]),
                        "HardSigmoid" => (v[0] * v[1] + v[2]).clamp(0.0, 1.0),
                        "Softplus" => v[0].max(0.0) + (-v[0].abs()).exp().ln_1p(),
                        "Tanh" => v[0].tanh(),
                        "Erf" => libm::erf(v[0]),
                        _ => 1.0 / (1.0 + (-v[0]).exp()),
                    }
                };
                let values: Vec<f64> = (0..points.len()).map(value).collect();
                for (x, value) in points.iter().zip(&values) {
                    let size = chosen.iter().flat_map(|(_, values)| values).fold(1.0_f64, |size, v| size.max(v.abs()));
                    assert!(
                        (function.at(*x) - value).abs() <= 1e-12 * size * size,
                        "{op} {operands:?} at {x}: {function:?}"
                    );
                }
                sizes[function.pieces.len().min(7)] += 1;
                known.push((function, values));
            }
        }
        assert!(sizes[1..6].iter().all(|count| *count > 50), "{sizes:?}");
    }

    #[test]
    fn numbers_are_those_of_an_activation_but_for_roundings() {
        let hardswish = |sixth: f64, dtype| {
            let [x, alpha, beta] = [Function::identity(), Function::constant(sixth), Function::constant(0.5)];
            let gate = Function::of("HardSigmoid", &[x.clone(), alpha, beta]).unwrap();
            Function::of("Mul", &[x, gate]).unwrap().activation(dtype) == Some(Activation::HardSwish)
        };
        let short = f16::from_f64(1.0 / 6.0).to_f64();
        let found = [1.0 / 6.0, f64::from(1.0_f32 / 6.0), 0.166_666_7, short, 0.1666]
            .map(|sixth| [DType::F64, DType::F32, DType::F16].map(|dtype| hardswish(sixth, dtype)));
        let of_short = [false, false, true];
        assert_eq!(found, [[true; 3], [true; 3], [false, true, true], of_short, of_short]);
    }

    #[test]
    fn slopes_and_bounds_that_are_no_f32_are_none_of_an_activation() {
        let of = |op, numbers: &[f64]| {
            let numbers = numbers.iter().map(|number| Function::constant(*number));
            Function::of(op, &std::iter::once(Function::identity()).chain(numbers).collect::<Vec<_>>())
                .and_then(|function| function.activation(DType::F64))
        };
        assert_eq!(of("LeakyRelu", &[0.25]), Some(Activation::LeakyRelu { alpha: 0.25 }));
        assert_eq!(of("LeakyRelu", &[0.1]), None);
        assert_eq!(of("LeakyRelu", &[f64::INFINITY]), None);
        assert_eq!(of("Clip", &[-0.5, f64::INFINITY]), Some(Activation::Clip { min: -0.5, max: f32::INFINITY }));
        assert_eq!(of("Clip", &[f64::NEG_INFINITY, 0.1]), None);
        assert_eq!(of("Clip", &[0.0, f64::MAX]), None);
    }
}

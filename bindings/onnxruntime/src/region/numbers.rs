//! What operators compute of single numbers, for tables of bytes.

use crate::activation::{GELU_TANH, QUICK_GELU, kind_of};
use crate::graph::Attributes;

/// Numbers for all bytes, or one for all of them.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
    Numbers(&'a [f32; 256]),
    Constant(f32),
    /// An input that is left out.
    Missing,
}

/// Whether the operator computes each number of its output of one number of each input.
pub(crate) fn is_known(op: &str) -> bool {
    let inputs = [[Some(1.0), None, None], [Some(1.0), Some(1.0), None]];
    inputs.into_iter().any(|inputs| compute(op, Parameters::default(), inputs).is_some())
}

/// What an operator computes for each byte. `None` if that is not known.
pub(crate) fn of(
    op: &str,
    (attributes, since): (&Attributes, i64),
    operands: &[Operand<'_>],
) -> Option<Box<[f32; 256]>> {
    let (op, parameters) = (kind_of(op, attributes), Parameters::of(op, attributes, since));
    let mut all = Box::new([0.0; 256]);
    for (byte, number) in all.iter_mut().enumerate() {
        let mut inputs = [None; 3];
        if operands.len() > inputs.len() {
            return None;
        }
        for (input, operand) in inputs.iter_mut().zip(operands) {
            *input = match operand {
                Operand::Numbers(numbers) => Some(f64::from(numbers[byte])),
                Operand::Constant(number) => Some(f64::from(*number)),
                Operand::Missing => None,
            };
        }
        *number = compute(op, parameters, inputs)? as f32;
    }
    Some(all)
}

/// The attributes of an operator.
#[derive(Clone, Copy, Default)]
struct Parameters {
    alpha: f64,
    beta: f64,
    /// The bounds of a Clip that has no inputs for them.
    bounds: Option<[f64; 2]>,
}

impl Parameters {
    fn of(op: &str, attributes: &Attributes, since: i64) -> Self {
        let [alpha, beta] = match op {
            "HardSigmoid" => [0.2, 0.5],
            "LeakyRelu" => [0.01, 0.0],
            QUICK_GELU => [1.702, 0.0],
            _ => [1.0, 0.0],
        };
        let float = |name: &str, default: f32| f64::from(attributes.float(name, default));
        let bounds = (op == "Clip" && since < 11).then(|| [float("min", f32::MIN), float("max", f32::MAX)]);
        Self { alpha: float("alpha", alpha), beta: float("beta", beta), bounds }
    }
}

/// Source: ONNX's specification of each operator.
fn compute(op: &str, parameters: Parameters, inputs: [Option<f64>; 3]) -> Option<f64> {
    let Parameters { alpha, beta, bounds } = parameters;
    let [Some(x), other, third] = inputs else { return None };
    if third.is_some() && op != "Clip" {
        let first = compute(op, parameters, [Some(x), other, None]).filter(|_| matches!(op, "Sum" | "Max" | "Min"));
        return compute(op, parameters, [Some(first?), third, None]);
    }
    // NaN stays NaN.
    let larger = |x: f64, y: f64| if x < y || y.is_nan() { y } else { x };
    let smaller = |x: f64, y: f64| if x > y || y.is_nan() { y } else { x };
    let leaky = |slope: f64| if x < 0.0 { x * slope } else { x };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gelu = |gate: f64| x * 0.5 * (1.0 + gate);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    Some(match (op, other) {
        ("Add" | "Sum", Some(y)) => x + y,
        ("Sub", Some(y)) => x - y,
        ("Mul", Some(y)) => x * y,
        ("Div", Some(y)) => x / y,
        ("Max", Some(y)) => larger(x, y),
        ("Min", Some(y)) => smaller(x, y),
        ("Pow", Some(y)) => x.powf(y),
        ("PRelu", Some(slope)) => leaky(slope),
        ("Clip", least) => {
            let [least, most] = bounds.unwrap_or([least.unwrap_or(f64::MIN), third.unwrap_or(f64::MAX)]);
            smaller(larger(x, least), most)
        }
        ("Identity", None) => x,
        ("Abs", None) => x.abs(),
        ("Neg", None) => -x,
        ("Exp", None) => x.exp(),
        ("Log", None) => x.ln(),
        ("Sqrt", None) => x.sqrt(),
        ("Reciprocal", None) => 1.0 / x,
        ("Relu", None) => larger(x, 0.0),
        ("LeakyRelu", None) => leaky(alpha),
        ("Elu", None) => {
            if x < 0.0 {
                alpha * x.exp_m1()
            } else {
                x
            }
        }
        ("Sigmoid", None) => sigmoid(x),
        ("HardSigmoid", None) => (alpha * x + beta).clamp(0.0, 1.0),
        ("HardSwish", None) => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        ("Swish" | QUICK_GELU, None) => x * sigmoid(alpha * x),
        ("Tanh", None) => x.tanh(),
        ("Softplus", None) => softplus(x),
        ("Softsign", None) => x / (1.0 + x.abs()),
        ("Erf", None) => libm::erf(x),
        ("Gelu" | "com.microsoft.Gelu", None) => gelu(libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        (GELU_TANH, None) => gelu(((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()),
        ("Mish", None) => x * softplus(x).tanh(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_1(op: &str, operands: &[Operand<'_>]) -> Option<f32> {
        of(op, (&Attributes::default(), 13), operands).map(|numbers| numbers[255])
    }

    #[test]
    fn operators_compute_what_onnx_says() {
        let x: [f32; 256] = std::array::from_fn(|byte| byte as f32 / 255.0 * 4.0 - 3.0);
        let x = Operand::Numbers(&x);
        for (op, expected) in [
            ("Sigmoid", 0.731_058_6),
            ("HardSigmoid", 0.7),
            ("HardSwish", 2.0 / 3.0),
            ("Tanh", 0.761_594_2),
            ("Softplus", 1.313_261_7),
            ("Softsign", 0.5),
            ("Mish", 0.865_098_4),
            ("Erf", 0.842_700_8),
            ("Gelu", 0.841_344_7),
            (GELU_TANH, 0.841_192),
            ("Swish", 0.731_058_6),
            ("Elu", 1.0),
            ("Relu", 1.0),
            ("Neg", -1.0),
            ("Exp", std::f32::consts::E),
        ] {
            let y = at_1(op, &[x]).unwrap();
            assert!((y - expected).abs() < 1e-6, "{op}: {y}");
        }
        assert_eq!(at_1("Div", &[x, Operand::Constant(4.0)]), Some(0.25));
        assert_eq!(at_1("Clip", &[x, Operand::Missing, Operand::Constant(0.5)]), Some(0.5));
        assert_eq!(at_1("Clip", &[x]), Some(1.0));
        let ones = Operand::Constant(1.0);
        assert_eq!(at_1("Sum", &[x, ones, ones]), Some(3.0));
        assert_eq!(at_1("Max", &[ones, x, Operand::Constant(5.0)]), Some(5.0));
        let roots = at_1("Sqrt", &[Operand::Constant(-1.0)]).unwrap();
        assert!(at_1("Relu", &[Operand::Constant(roots)]).unwrap().is_nan(), "NaN stays");
        for (op, operands) in
            [("Add", &[x, ones, ones][..]), ("Add", &[x][..]), ("Softmax", &[x]), ("Relu", &[]), ("Sum", &[x; 4])]
        {
            assert_eq!(at_1(op, operands), None, "{op}");
        }
    }
}

//! Bytes that stand for numbers: their scales, tables of them, and what is computed of them.

use convoke::DType;

use crate::api::Result;
use crate::graph::{Attributes, Node, Tensor, Value};

/// What bytes become.
pub(crate) type Table = [u8; 256];

/// Byte b stands for `(b - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ByteScale {
    pub(crate) scale: f32,
    pub(crate) zero: u8,
}

impl ByteScale {
    /// That of a QuantizeLinear or DequantizeLinear of tensors, whose numbers have one scale.
    pub(crate) fn of(node: Node<'_>, bytes: Value<'_>) -> Result<Option<Self>> {
        Self::at(node, 1, bytes)
    }

    /// That of an input of a node, and of the zero point behind it.
    pub(crate) fn at(node: Node<'_>, place: usize, bytes: Value<'_>) -> Result<Option<Self>> {
        let Some(flip) = bytes.tensor_type()?.and_then(|ty| ty.flip()) else { return Ok(None) };
        let scale = node.input(place)?.map(numbers_of).transpose()?.flatten();
        let zero = zero_points(node.input(place + 1)?)?;
        let (Some(&[scale]), Some(&[zero])) = (scale.as_deref(), zero.as_deref()) else { return Ok(None) };
        Ok((scale > 0.0 && scale.is_finite()).then_some(Self { scale, zero: zero ^ flip }))
    }

    #[inline(always)]
    pub(crate) fn number(self, byte: u8) -> f32 {
        (i32::from(byte) - i32::from(self.zero)) as f32 * self.scale
    }

    /// The byte that is nearest to a number. Source: ONNX's specification of QuantizeLinear.
    #[inline(always)]
    pub(crate) fn byte(self, number: f32) -> u8 {
        const INTEGERS: f32 = 12_582_912.0;
        let zero = f32::from(self.zero);
        let (least, most, steps) = (-zero, f32::from(u8::MAX) - zero, number / self.scale);
        // Comparisons and a sum, which are vectors' instructions: a number that is added to 1.5 * 2^23 is rounded to an
        // integer, to nearest even, in the lowest bits.
        let steps = if steps > least { steps } else { least };
        let steps = if steps < most { steps } else { most };
        (steps + INTEGERS).to_bits().wrapping_add(u32::from(self.zero)) as u8
    }
}

/// Parts of a tensor whose ranges are found.
pub(crate) const RANGES: usize = 64;

impl ByteScale {
    /// That of DynamicQuantizeLinear, for the least and the largest numbers of all parts of X.
    /// Source: ONNX's specification of it, in floats, as onnxruntime computes it.
    pub(crate) fn of_ranges(ranges: &[f32]) -> Self {
        let (mut least, mut most) = (0.0_f32, 0.0_f32);
        for range in ranges.chunks_exact(2) {
            (least, most) = (least.min(range[0]), most.max(range[1]));
        }
        let scale = (most - least) / 255.0;
        let scale = if scale > 0.0 { scale } else { 1.0 };
        Self { scale, zero: (-least / scale).clamp(0.0, 255.0).round_ties_even() as u8 }
    }
}

/// The floats of a constant.
pub(crate) fn numbers_of(value: Value<'_>) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = value.constant()?.filter(|tensor| tensor.dtype() == Some(DType::F32)) else { return Ok(None) };
    Ok(Some(tensor.elements::<f32>()?.to_vec()))
}

/// Zero points, if they are constant bytes: one of 0 if they are left out.
pub(crate) fn zero_points(zero: Option<Value<'_>>) -> Result<Option<Vec<u8>>> {
    let Some(zero) = zero else { return Ok(Some(vec![0])) };
    let bytes = zero.constant()?.map(|tensor| tensor.bytes()).transpose()?.flatten();
    Ok(bytes.map(<[u8]>::to_vec))
}

/// A convolution whose X and W are bytes.
pub(crate) struct Integers<'g> {
    pub(crate) op: String,
    pub(crate) since: i64,
    pub(crate) attributes: Attributes,
    pub(crate) w: Bytes<'g>,
    pub(crate) w_scale: Vec<f32>,
    pub(crate) bias: Bias,
    pub(crate) x: ByteScale,
    /// None if Y is of floats.
    pub(crate) y: Option<ByteScale>,
    pub(crate) table: Option<Table>,
}

/// One for each output channel, or none.
pub(crate) enum Bias {
    /// With their scales: one, or one for each.
    Sums {
        sums: Vec<i32>,
        scale: Vec<f32>,
    },
    Numbers(Vec<f32>),
}

/// Constant bytes and their zero points: one, or one for each output channel.
pub(crate) struct Bytes<'g> {
    pub(crate) tensor: Tensor<'g>,
    pub(crate) zero: Vec<u8>,
    /// The bits that are flipped in an `i8` that is to be an `u8`.
    pub(crate) flip: u8,
}

/// The sum or the product of two tensors.
#[derive(Debug, Clone)]
pub(crate) struct Blend {
    pub(crate) op: Blending,
    pub(crate) of: [ByteScale; 2],
    pub(crate) y: ByteScale,
    /// Is added before Y is rounded.
    pub(crate) offset: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blending {
    Sum,
    Product,
}

/// For each channel, a line for numbers that are not negative and one for the others: a number times the slope of its line,
/// plus a shift.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) of: ByteScale,
    pub(crate) y: ByteScale,
    pub(crate) channels: usize,
    /// Of all channels, so often that loops over them are worth vectors.
    pub(crate) above: Vec<f32>,
    pub(crate) below: Vec<f32>,
    pub(crate) shifts: Vec<f32>,
}

impl Lines {
    /// Elements of the numbers of all channels, at least.
    const LEAST: usize = 256;

    /// `None` if a number is not finite.
    pub(crate) fn new([of, y]: [ByteScale; 2], [above, below, shifts]: [Vec<f32>; 3]) -> Option<Self> {
        let channels = above.len();
        let are_numbers = [&above, &below, &shifts].iter().all(|all| all.iter().all(|number| number.is_finite()));
        let repeated = |numbers: Vec<f32>| numbers.repeat(Self::LEAST.div_ceil(channels.max(1)));
        let [above, below, shifts] = [above, below, shifts].map(repeated);
        are_numbers.then_some(Self { of, y, channels, above, below, shifts })
    }
}

/// The operator without the domain of onnxruntime's own versions of Q and DQ.
pub(crate) fn plain(op: &str) -> &str {
    match op {
        "com.microsoft.QuantizeLinear" => "QuantizeLinear",
        "com.microsoft.DequantizeLinear" => "DequantizeLinear",
        op => op,
    }
}

pub(crate) fn is_of_bytes(value: Value<'_>) -> Result<bool> {
    Ok(value.tensor_type()?.is_some_and(|ty| ty.flip().is_some()))
}

impl Integers<'_> {
    /// Whether convoke computes the layer, as far as that is known before a run.
    pub(crate) fn check(&self, x: Value<'_>) -> Result<bool> {
        let Ok(operator) = self.operator() else { return Ok(false) };
        let shape = x.tensor_type()?.and_then(|ty| ty.shape());
        let fits = shape.is_none_or(|shape| operator.geometry(&shape).is_ok());
        let y_scale = self.y.map_or(1.0, |y| y.scale);
        let are_scales = self.w_scale.iter().all(|w| (self.x.scale * w / y_scale).is_finite());
        Ok(fits && are_scales && self.sums_fit(&operator)?)
    }

    /// Whether all sums of an output fit 32 bits, whatever X is.
    fn sums_fit(&self, operator: &convoke::Operator) -> Result<bool> {
        let Some(biases) = self.biases() else { return Ok(false) };
        let bytes = self.w.tensor.bytes()?.unwrap_or_default();
        let (w_shape, group) = (operator.weight_shape(), self.attributes.int("group", 1).max(1) as usize);
        let taps: usize = w_shape.iter().skip(2).product();
        let is_conv = self.op == "Conv";
        let (of_group, channels) =
            if is_conv { (w_shape[0] / group, w_shape[0]) } else { (w_shape[1], w_shape[1] * group) };
        if bytes.is_empty() || !(biases.is_empty() || biases.len() == channels) || channels == 0 {
            return Ok(false);
        }
        let mut most: Vec<i64> =
            (0..channels).map(|m| biases.get(m).map_or(0, |bias| i64::from(*bias).abs())).collect();
        // Nearly always so many products fit, whatever their factors are.
        let products = (bytes.len() / channels) as i64 * 255 * 255;
        if most.iter().all(|bias| bias + products <= i64::from(i32::MAX)) {
            return Ok(true);
        }
        for (index, byte) in bytes.iter().enumerate() {
            let (row, column) = (index / taps / w_shape[1], index / taps % w_shape[1]);
            let m = if is_conv { row } else { row / (w_shape[0] / group).max(1) * of_group + column };
            let zero = self.w.zero[if self.w.zero.len() == 1 { 0 } else { m % self.w.zero.len() }];
            let value = i64::from(byte ^ self.w.flip) - i64::from(zero ^ self.w.flip);
            most[m] += 255 * value.abs();
        }
        Ok(most.iter().all(|most| *most <= i64::from(i32::MAX)))
    }

    /// Whether the zero points of W are the middle of its type.
    pub(crate) fn is_centred(&self) -> bool {
        self.w.zero.iter().all(|zero| zero ^ self.w.flip == 0x80)
    }

    pub(crate) fn is_depthwise(&self) -> bool {
        self.w.tensor.dims().get(1) == Some(&1)
    }

    pub(crate) fn operator(&self) -> std::result::Result<convoke::Operator, convoke::Error> {
        convoke::Operator::from_attributes(&self.op, self.since, &self.attributes.for_convoke(), self.w.tensor.dims())
    }

    /// The biases of the sums; `None` if these would be others than those of the graph.
    pub(crate) fn biases(&self) -> Option<Vec<i32>> {
        let len = match &self.bias {
            Bias::Sums { sums, .. } => sums.len(),
            Bias::Numbers(numbers) => numbers.len(),
        };
        let is_each = len == 0 || self.w_scale.len() == 1 || self.w_scale.len() == len;
        if is_each { (0..len).map(|m| self.bias_of(m)).collect() } else { None }
    }

    /// The bias of a channel, as the sum that is nearest, unless Y would be rounded otherwise for it.
    fn bias_of(&self, m: usize) -> Option<i32> {
        let own = f64::from(self.x.scale) * of_channel(&self.w_scale, m);
        let (number, sum) = match &self.bias {
            Bias::Sums { sums, scale } => {
                let scale = of_channel(scale, m);
                let number = f64::from(sums[m]) * scale;
                // A scale that was rounded to a float is that of the sums.
                let is_own = (scale - own).abs() <= 1e-6 * own;
                (number, if is_own { f64::from(sums[m]) } else { (number / own).round_ties_even() })
            }
            Bias::Numbers(numbers) => {
                let number = f64::from(numbers[m]);
                (number, (number / own).round_ties_even())
            }
        };
        let step = self.y.map_or(0.01 * own, |y| 0.1 * f64::from(y.scale));
        let is_near = (number - sum * own).abs() <= step.max(1e-6 * number.abs());
        (is_near && sum.abs() <= f64::from(i32::MAX)).then_some(sum as i32)
    }
}

/// The scale of a channel, where one may be that of all.
fn of_channel(scales: &[f32], m: usize) -> f64 {
    f64::from(scales[if scales.len() == 1 { 0 } else { m }])
}

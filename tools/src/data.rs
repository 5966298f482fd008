//! Deterministic operands of any element type.

use std::fmt;

use aligned_vec::AVec;
use convoke::{DType, Element, Geometry, Op, Scales, bf16, f16};

/// What a layer computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Floats of a type.
    Floats(DType),
    /// X and Y in `u8`, W in `i8`: [`ByteOperands`].
    Bytes,
}

impl From<DType> for Numbers {
    fn from(dtype: DType) -> Self {
        Self::Floats(dtype)
    }
}

/// The name of X's type in Rust. ONNX's name, which the type itself prints, is "float" for f32.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Floats(DType::F32) => "f32",
            Self::Floats(DType::F64) => "f64",
            Self::Floats(DType::F16) => "f16",
            Self::Floats(DType::BF16) => "bf16",
            Self::Bytes => "u8",
        })
    }
}

/// Conversion between an element type and `f64`.
pub trait Scalar: Element {
    /// The nearest value of the type.
    fn from_f64(value: f64) -> Self;
    /// The value, without rounding.
    fn to_f64(self) -> f64;
}

/// Implements [`Scalar`] by a pair of functions.
macro_rules! scalar {
    ($($type:ty: $from:expr, $to:expr;)+) => {$(
        impl Scalar for $type {
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    )+};
}

scalar! {
    f32: |v| v as f32, f64::from;
    f64: |v| v, |v| v;
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
}

/// SplitMix64: a small random generator whose stream never changes, so that figures and failures
/// can be reproduced.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with its own stream for each seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `-1.0..1.0`, uniformly distributed.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (2.0 / (1_u64 << 53) as f64) - 1.0
    }

    /// An index below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

/// `len` numbers in `-scale..scale`.
#[must_use]
pub fn uniform<T: Scalar>(len: usize, scale: f64, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..len).map(|_| T::from_f64(scale * random.uniform())).collect()
}

/// A tensor whose memory begins at a multiple of 128 bytes, as the allocators of engines do.
/// Vectors at other addresses would cross cache lines.
pub type Tensor<T> = AVec<T>;

/// A tensor of these values.
#[must_use]
pub fn tensor<T>(values: impl IntoIterator<Item = T>) -> Tensor<T> {
    AVec::from_iter(128, values)
}

/// X, W and B of one layer.
#[derive(Debug, Clone)]
pub struct Operands<T> {
    /// The input, in `-1..1`.
    pub x: Tensor<T>,
    /// The weights, scaled so that the output has the input's order of magnitude, as trained
    /// weights do.
    pub w: Vec<T>,
    /// The bias, in `-1..1`.
    pub b: Vec<T>,
}

impl<T: Scalar> Operands<T> {
    /// The operands of a layer. The same geometry always gets the same ones.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        // The number of products in the sum of an output element; NaN for an empty output.
        let terms = geometry.macs() as f64 / geometry.output_len() as f64;
        let scale = if terms >= 1.0 { (3.0 / terms).sqrt() } else { 1.0 };
        Self {
            x: tensor(uniform(geometry.input_len(), 1.0, 1)),
            w: uniform(geometry.weight_len(), scale, 2),
            b: uniform(geometry.out_channels, 1.0, 3),
        }
    }
}

/// The scales and zero points of a layer of bytes.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "cli", derive(serde::Deserialize))]
pub struct Quantisation {
    /// The scale of X.
    pub x_scale: f32,
    /// The zero point of X.
    pub x_zero_point: u8,
    /// A scale of W for each output channel.
    pub w_scale: Vec<f32>,
    /// The scale of Y.
    pub y_scale: f32,
    /// The zero point of Y.
    pub y_zero_point: u8,
}

impl Quantisation {
    /// As a plan takes them.
    #[must_use]
    pub fn scales(&self) -> Scales<'_, u8, u8> {
        let Self { x_scale, x_zero_point, ref w_scale, y_scale, y_zero_point } = *self;
        Scales { x_scale, x_zero_point, w_scale, y_scale, y_zero_point }
    }
}

/// X, W and B of one layer in bytes.
#[derive(Debug, Clone)]
pub struct ByteOperands {
    /// The input.
    pub x: Tensor<u8>,
    /// The weights, with the zero point 0.
    pub w: Vec<i8>,
    /// The bias, with the scale of X times that of W.
    pub b: Vec<i32>,
    /// What the bytes mean.
    pub quantisation: Quantisation,
}

impl ByteOperands {
    /// What static quantisation makes of the [`Operands`] in floats: the range of X and of the outputs becomes 0 to 255, and the
    /// largest weight of each output channel 127.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        /// Outputs are sums and biases with a variance of 1/3 each. So many of their standard deviations are kept, as
        /// calibration does that ignores outliers.
        const DEVIATIONS: f32 = 4.0;
        let floats = Operands::<f32>::new(geometry);
        let (x_scale, y_scale) = (2.0 / 255.0, 2.0 * DEVIATIONS * (2.0_f32 / 3.0).sqrt() / 255.0);
        let mut w_scale = vec![f32::MIN_POSITIVE; geometry.out_channels];
        for (index, w) in floats.w.iter().enumerate() {
            let scale = &mut w_scale[channel_of(geometry, index)];
            *scale = scale.max(w.abs() / 127.0);
        }
        let weight = |(index, w): (usize, &f32)| (w / w_scale[channel_of(geometry, index)]).round_ties_even() as i8;
        let bias = |(b, scale): (&f32, &f32)| (b / (x_scale * scale)).round_ties_even() as i32;
        Self {
            x: tensor(floats.x.iter().map(|x| ((x / x_scale).round_ties_even() + 128.0) as u8)),
            w: floats.w.iter().enumerate().map(weight).collect(),
            b: floats.b.iter().zip(&w_scale).map(bias).collect(),
            quantisation: Quantisation { x_scale, x_zero_point: 128, w_scale, y_scale, y_zero_point: 128 },
        }
    }
}

/// The output channel of a weight.
#[must_use]
pub fn channel_of(geometry: &Geometry, index: usize) -> usize {
    let (taps, channels, rows) =
        (geometry.kernel_volume(), geometry.in_channels_per_group(), geometry.out_channels_per_group());
    match geometry.op {
        Op::Conv => index / (channels * taps),
        Op::ConvTranspose => index / taps / rows / channels * rows + index / taps % rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke::{Conv, ConvTranspose};

    #[test]
    fn uniform_fills_its_range_and_repeats() {
        let values = uniform::<f64>(10_000, 0.5, 7);
        assert_eq!(values, uniform::<f64>(10_000, 0.5, 7));
        assert_ne!(values, uniform::<f64>(10_000, 0.5, 8));
        let (min, max) = values.iter().fold((0.0_f64, 0.0_f64), |(lo, hi), &v| (lo.min(v), hi.max(v)));
        assert!((-0.5..-0.499).contains(&min) && (0.499..0.5).contains(&max), "{min} {max}");
        assert!((values.iter().sum::<f64>() / 10_000.0).abs() < 0.01);
    }

    #[test]
    fn the_largest_weight_of_each_channel_is_127() {
        let conv = Conv::new([6, 2, 3]).group(2).geometry(&[1, 4, 9]).unwrap();
        let transposed = ConvTranspose::new([4, 3, 3]).group(2).geometry(&[1, 4, 9]).unwrap();
        for geometry in [conv, transposed] {
            let operands = ByteOperands::new(&geometry);
            let mut most = [0; 6];
            for (index, w) in operands.w.iter().enumerate() {
                let most = &mut most[channel_of(&geometry, index)];
                *most = w.abs().max(*most);
            }
            assert_eq!(most, [127; 6], "{:?}", geometry.op);
        }
    }

    #[test]
    fn conversions_round_to_nearest() {
        assert_eq!(f16::from_f64(2049.0).to_f64(), 2048.0);
        assert_eq!(<bf16 as Scalar>::from_f64(257.0).to_f64(), 256.0);
        assert_eq!(<f32 as Scalar>::from_f64(0.1).to_f64(), f64::from(0.1_f32));
    }
}

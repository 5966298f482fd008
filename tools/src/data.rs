//! Deterministic operands of any element type.

use aligned_vec::AVec;
use convoke::{Element, Geometry, bf16, f16};

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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn conversions_round_to_nearest() {
        assert_eq!(f16::from_f64(2049.0).to_f64(), 2048.0);
        assert_eq!(<bf16 as Scalar>::from_f64(257.0).to_f64(), 256.0);
        assert_eq!(<f32 as Scalar>::from_f64(0.1).to_f64(), f64::from(0.1_f32));
    }
}

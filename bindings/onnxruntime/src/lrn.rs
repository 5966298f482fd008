//! LRN: values are divided by a power of the squares of the channels beside them.
//!
//! onnxruntime raises each element to that power, which takes longer than the convolutions of some
//! networks that have this operator. With the exponent that these have,
//! 0.75, it is two square roots. Source: ONNX's specification of LRN.

use std::mem::MaybeUninit;
use std::sync::Arc;

use convoke::DType;

use crate::api::{Failure, Level, Result};
use crate::fusion::title;
use crate::graph::{Node, Reasoned, Value};
use crate::layer::{Inputs, Layer, Packing};
use crate::run::Run;
use crate::session::Session;

/// A node that convoke computes.
pub(crate) struct Lrn<'g> {
    pub(crate) node: Node<'g>,
    x: Value<'g>,
    terms: Terms,
}

/// The largest window of channels: each of its channels is another pass over the sums.
const MOST_CHANNELS: i64 = 31;

/// `x / (bias + factor * (sum of squares)) ^ 0.75`
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Channels in the sum in front of the element's own, and as many behind it.
    half: usize,
    /// `alpha / size`
    factor: f32,
    bias: f32,
}

impl<'g> Lrn<'g> {
    /// The LRN of a node of floats with the exponent 0.75, or why convoke does not compute it. `None` for other operators.
    pub(crate) fn of(node: Node<'g>) -> Result<Option<Reasoned<Self>>> {
        if node.op()? != "LRN" {
            return Ok(None);
        }
        let Some(x) = node.input(0)? else { return Ok(None) };
        let Some(ty) = x.tensor_type()? else { return Ok(None) };
        let attributes = node.attributes()?;
        let (size, alpha) = (attributes.int("size", 0), attributes.float("alpha", 1e-4));
        // onnxruntime refuses an even size, and an alpha that is not positive.
        let is_window = (1..=MOST_CHANNELS).contains(&size) && size % 2 == 1;
        let has_image = ty.dims.as_ref().is_some_and(|dims| dims.len() > 2);
        let is_root = attributes.float("beta", 0.75) == 0.75;
        if ty.dtype() != Some(DType::F32) || !has_image || !is_window || !is_root || alpha.is_nan() || alpha <= 0.0 {
            return Ok(Some(Err(format!(
                "beta is not 0.75, size is not odd or not from 1 to {MOST_CHANNELS}, alpha is not positive, or X is not of float \
                 with spatial axes"
            ))));
        }
        let (half, factor) = (size as usize / 2, alpha / size as f32);
        let terms = Terms { half, factor, bias: attributes.float("bias", 1.0) };
        Ok(Some(Ok(Self { node, x, terms })))
    }

    pub(crate) fn reads_constants_in_runs(&self) -> Result<bool> {
        Ok(self.x.constant()?.is_some())
    }

    /// Reads the layer. There is nothing to pack.
    pub(crate) fn read(&self, session: &Arc<Session>, inputs: &Inputs) -> Result<Packing<'g>> {
        let title = title(self.node, &[self.node])?;
        session.log().write(Level::Verbose, || format!("{title}: by square roots"));
        let layer = LrnLayer { x: inputs.place(self.x)?, terms: self.terms, threads: session.threads() };
        Ok(Box::new(move || Ok(Box::new(layer))))
    }
}

struct LrnLayer {
    /// The place of X among the inputs.
    x: usize,
    terms: Terms,
    /// The number of threads that channels are shared among.
    threads: usize,
}

impl Layer for LrnLayer {
    fn run(&self, run: Run) -> Result<()> {
        let tensor = run.input(self.x)?;
        let (shape, x) = (tensor.shape()?, tensor.elements::<f32>()?);
        let &[_, channels, ref image @ ..] = &shape[..] else {
            return Err(Failure::invalid(format_args!("LRN: X of shape {shape:?} has no channels")));
        };
        let write = |y: &mut [MaybeUninit<f32>]| {
            if y.is_empty() {
                return Ok(());
            }
            let plane: usize = image.iter().product();
            run.share(self.threads, plane, y, |begin, y| {
                for (i, y) in y.chunks_exact_mut(plane).enumerate() {
                    let (image, channel) = ((begin / plane + i) / channels, (begin / plane + i) % channels);
                    self.terms.channel(&x[image * channels * plane..][..channels * plane], channel, y);
                }
            });
            Ok(())
        };
        // SAFETY: the output of an LRN is of X's type, and X is all that is read.
        unsafe { run.write(&shape, &[x], write) }
    }
}

impl Terms {
    /// Computes one channel of an image.
    fn channel(&self, image: &[f32], channel: usize, y: &mut [MaybeUninit<f32>]) {
        /// Elements whose sums stay in the L1 cache.
        const BLOCK: usize = 512;
        let plane = y.len();
        let first = channel.saturating_sub(self.half);
        let last = (channel + self.half).min(image.len() / plane - 1);
        let own = &image[channel * plane..][..plane];
        let mut sums = [0.0_f32; BLOCK];
        for (i, (y, own)) in y.chunks_mut(BLOCK).zip(own.chunks(BLOCK)).enumerate() {
            sums.fill(0.0);
            for row in image[first * plane..(last + 1) * plane].chunks_exact(plane) {
                for (sum, x) in sums.iter_mut().zip(&row[i * BLOCK..][..own.len()]) {
                    *sum += x * x;
                }
            }
            for ((y, x), sum) in y.iter_mut().zip(own).zip(&sums) {
                let root = (self.bias + self.factor * sum).sqrt();
                y.write(x / (root * root.sqrt()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside ONNX's formula in f64, with windows that reach beyond the channels.
    #[test]
    fn channels_are_divided_by_the_power_of_their_neighbours() {
        const PLANE: usize = 1030;
        let image: Vec<f32> = (0..6 * PLANE).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        for half in [0, 1, 2, 5, 15] {
            let terms = Terms { half, factor: 0.25, bias: 2.0 };
            for channel in 0..6_usize {
                let mut y = vec![MaybeUninit::new(f32::NAN); PLANE];
                terms.channel(&image, channel, &mut y);
                for (at, y) in y.iter().enumerate() {
                    let window = channel.saturating_sub(half)..=(channel + half).min(5);
                    let sum: f64 = window.map(|c| f64::from(image[c * PLANE + at]).powi(2)).sum();
                    let expected = f64::from(image[channel * PLANE + at]) / (2.0 + 0.25 * sum).powf(0.75);
                    // SAFETY: every element was initialised, with NaN.
                    let y = f64::from(unsafe { y.assume_init() });
                    assert!((y - expected).abs() <= 1e-6 * expected.abs(), "{half}, {channel}, {at}: {y} {expected}");
                }
            }
        }
    }
}

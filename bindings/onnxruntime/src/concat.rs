//! Layers that write into the channels of one tensor: a Concat without a copy.

use std::mem::MaybeUninit;
use std::sync::Arc;

use convoke::{DType, Element, bf16, f16};

use crate::api::{Failure, Result};
use crate::claims::{Concat, Part};
use crate::graph::Tensor;
use crate::layer::{Call, ConstantLayer, Inputs, Layer, Packing, PackingConstants, read_constant};
use crate::run::{Run, buffer};
use crate::session::Session;
use crate::weights::Scalar;

/// Reads a Concat and the layers in front of it.
pub(crate) fn read<'g>(session: &Arc<Session>, concat: &Concat<'g>, inputs: &Inputs) -> Result<Packing<'g>> {
    match concat.dtype {
        DType::F32 => read_as::<f32>(session, concat, inputs),
        DType::F64 => read_as::<f64>(session, concat, inputs),
        DType::F16 => read_as::<f16>(session, concat, inputs),
        DType::BF16 => read_as::<bf16>(session, concat, inputs),
    }
}

fn read_as<'g, T: Scalar>(session: &Arc<Session>, concat: &Concat<'g>, inputs: &Inputs) -> Result<Packing<'g>> {
    enum Reading<'g, T: Element> {
        Layer(PackingConstants<'g, T>),
        Tensor(usize),
    }
    let read = |part: &Part<'g>| {
        Ok(match part {
            Part::Layer(layer) => Reading::Layer(
                read_constant::<T>(session, layer, inputs)?
                    .ok_or_else(|| Failure::other("a layer whose weights are not constant"))?,
            ),
            Part::Tensor(value) => Reading::Tensor(inputs.place(*value)?),
        })
    };
    let readings = concat.parts.iter().map(read).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move || {
        let pack = |reading| {
            Ok(match reading {
                Reading::Layer(packing) => Source::Layer(packing()?.into()),
                Reading::Tensor(at) => Source::Tensor(at),
            })
        };
        let sources = readings.into_iter().map(pack).collect::<Result<Vec<Source<T>>>>()?;
        Ok(Box::new(ConcatLayer { sources }))
    }))
}

/// The layers and tensors whose channels make one tensor.
struct ConcatLayer<T: Element> {
    sources: Vec<Source<T>>,
}

enum Source<T: Element> {
    Layer(Box<ConstantLayer<T>>),
    /// An input of the fused node.
    Tensor(usize),
}

/// A source in a run.
enum Piece<'a, T: Element> {
    Call(Call<'a, T>),
    Tensor(Tensor<'a>, &'a [T]),
}

impl<T: Element> Piece<'_, T> {
    fn shape(&self) -> Result<Vec<usize>> {
        match self {
            Self::Call(call) => Ok(call.output_shape()),
            Self::Tensor(tensor, _) => tensor.shape(),
        }
    }

    /// Writes each image, of `len` elements, to the place of this piece in it: from `at` on, of `step`
    /// elements from one image to the next.
    fn write(&self, y: &mut [MaybeUninit<T>], at: usize, len: usize, step: usize) -> Result<()> {
        let images = y.len() / step;
        match self {
            Self::Call(call) if images == 1 => call.compute(&mut y[at..at + len]),
            Self::Call(call) => {
                let mut own = buffer::<T>(images * len)?;
                let own = &mut own.spare_capacity_mut()[..images * len];
                call.compute(own)?;
                for (own, y) in own.chunks_exact(len.max(1)).zip(y.chunks_exact_mut(step)) {
                    y[at..at + len].copy_from_slice(own);
                }
                Ok(())
            }
            Self::Tensor(_, x) => {
                for (x, y) in x.chunks_exact(len.max(1)).zip(y.chunks_exact_mut(step)) {
                    for (y, x) in y[at..at + len].iter_mut().zip(x) {
                        y.write(*x);
                    }
                }
                Ok(())
            }
        }
    }
}

impl<T: Element> Layer for ConcatLayer<T> {
    fn run(&self, run: Run) -> Result<()> {
        let plan = |source: &Source<T>| match source {
            Source::Layer(layer) => layer.plan(run).map(Some),
            Source::Tensor(_) => Ok(None),
        };
        let plans = self.sources.iter().map(plan).collect::<Result<Vec<_>>>()?;
        let mut pieces = Vec::with_capacity(plans.len());
        for (source, planned) in self.sources.iter().zip(&plans) {
            pieces.push(match (source, planned) {
                (Source::Layer(layer), Some(planned)) => Piece::Call(layer.call(run, planned)?),
                (Source::Layer(_), None) => return Err(Failure::other("a layer without a plan")),
                (Source::Tensor(at), _) => {
                    let tensor = run.input(*at)?;
                    Piece::Tensor(tensor, tensor.elements::<T>()?)
                }
            });
        }
        let shapes = pieces.iter().map(Piece::shape).collect::<Result<Vec<_>>>()?;
        let y_shape = concatenated(&shapes)?;
        let mut inputs = Vec::new();
        for piece in &pieces {
            match piece {
                Piece::Call(call) => inputs.extend(call.inputs()),
                Piece::Tensor(_, x) => inputs.push(x),
            }
        }
        run.write(&y_shape, &inputs, |y| {
            let image_len = |shape: &[usize]| shape[1..].iter().product::<usize>();
            let (mut at, step) = (0, image_len(&y_shape));
            if y.is_empty() {
                return Ok(());
            }
            for (piece, shape) in pieces.iter().zip(&shapes) {
                let len = image_len(shape);
                piece.write(y, at, len, step)?;
                at += len;
            }
            Ok(())
        })
    }
}

/// The shape of tensors whose channels, on axis 1, are joined.
fn concatenated(shapes: &[Vec<usize>]) -> Result<Vec<usize>> {
    let (mut joined, mut channels) = (shapes[0].clone(), 0_usize);
    for shape in shapes {
        let same = shape.len() == joined.len() && shape.len() > 1;
        if !same || shape[0] != joined[0] || shape[2..] != joined[2..] {
            return Err(Failure::invalid(format_args!(
                "Concat: inputs of shapes {joined:?} and {shape:?} differ in another axis than 1"
            )));
        }
        channels += shape[1];
        joined[1] = channels;
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_channels_may_differ() {
        let joined = |shapes: &[&[usize]]| concatenated(&shapes.iter().map(|shape| shape.to_vec()).collect::<Vec<_>>());
        assert_eq!(joined(&[&[2, 3, 4], &[2, 0, 4], &[2, 5, 4]]).unwrap(), [2, 8, 4]);
        for others in [&[1, 3, 4][..], &[2, 3, 5], &[2, 3], &[2, 3, 4, 1]] {
            let failure = joined(&[&[2, 3, 4], others]).unwrap_err();
            assert!(failure.to_string().contains("differ in another axis"), "{failure}");
        }
    }
}

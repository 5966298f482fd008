//! Layers that write into the channels of one tensor: a Concat without a copy.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::api::{Failure, Level, Result};
use crate::claims::{Concat, Part};
use crate::graph::Tensor;
use crate::layer::{Call, ConstantLayer, Inputs, Layer, Packing, read_constant};
use crate::run::{Run, buffer};
use crate::session::Session;
use crate::weights::Scalar;

/// Reads a Concat and the layers in front of it.
pub(crate) fn read<'g, T: Scalar>(session: &Arc<Session>, concat: &Concat<'g>, inputs: &Inputs) -> Result<Packing<'g>> {
    let read = |part: &Part<'g>| -> Result<Box<dyn FnOnce() -> Result<Source<T>> + Send + 'g>> {
        Ok(match part {
            Part::Layer(layer) => {
                let packing = read_constant::<T>(session, layer, inputs)?
                    .ok_or_else(|| Failure::other("a layer whose weights are not constant"))?;
                Box::new(move || Ok(Source::Layer(packing()?.into())))
            }
            Part::Tensor(value) => {
                let at = inputs.place(*value)?;
                Box::new(move || Ok(Source::Tensor(at)))
            }
        })
    };
    let packings = concat.parts.iter().map(read).collect::<Result<Vec<_>>>()?;
    let (threads, title) = (session.threads(), concat.title()?);
    session.log().write(Level::Verbose, || format!("{title}: its layers write into its output"));
    Ok(Box::new(move || {
        let sources = packings.into_iter().map(|pack| pack()).collect::<Result<_>>()?;
        Ok(Box::new(ConcatLayer { sources, threads }))
    }))
}

/// The layers and tensors whose channels make one tensor.
struct ConcatLayer<T: Scalar> {
    sources: Vec<Source<T>>,
    /// The number of threads that copies are split for.
    threads: usize,
}

enum Source<T: Scalar> {
    Layer(Box<ConstantLayer<T>>),
    /// An input of the fused node.
    Tensor(usize),
}

/// A source in a run.
enum Piece<'a, T: Scalar> {
    Call(Call<'a, T>),
    Tensor(Tensor<'a>, &'a [T]),
}

impl<T: Scalar> Piece<'_, T> {
    fn shape(&self) -> Result<Vec<usize>> {
        match self {
            Self::Call(call) => Ok(call.output_shape()),
            Self::Tensor(tensor, _) => tensor.shape(),
        }
    }

    /// Writes each image, of `len` elements, to the place of this piece in it: from `at` on, of `step`
    /// elements from one image to the next. Copies are shared among so many threads of the run.
    fn write(
        &self,
        y: &mut [MaybeUninit<T>],
        (at, len, step): (usize, usize, usize),
        (run, threads): (Run, usize),
    ) -> Result<()> {
        let images = y.len() / step;
        let mut own;
        let x = match self {
            Self::Call(call) if images == 1 => return call.compute(&mut y[at..at + len]),
            Self::Call(call) => {
                own = buffer::<T>(images * len)?;
                let own = &mut own.spare_capacity_mut()[..images * len];
                call.compute(own)?;
                &*own
            }
            Self::Tensor(_, x) => as_uninit(x),
        };
        for (x, y) in x.chunks_exact(len.max(1)).zip(y.chunks_exact_mut(step)) {
            run.share(threads, 1, &mut y[at..at + len], |begin, y| y.copy_from_slice(&x[begin..][..y.len()]));
        }
        Ok(())
    }
}

/// Elements that are there, as those that need not be.
fn as_uninit<T>(x: &[T]) -> &[MaybeUninit<T>] {
    // SAFETY: `MaybeUninit<T>` has the layout of `T`, and nobody writes by a shared slice.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len()) }
}

impl<T: Scalar> Layer for ConcatLayer<T> {
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
        let write = |y: &mut [MaybeUninit<T>]| {
            let image_len = |shape: &[usize]| shape.iter().skip(1).product::<usize>();
            let (mut at, step) = (0, image_len(&y_shape));
            for (piece, shape) in pieces.iter().zip(&shapes).filter(|(_, shape)| !shape.contains(&0)) {
                let len = image_len(shape);
                piece.write(y, (at, len, step), (run, self.threads))?;
                at += len;
            }
            Ok(())
        };
        // SAFETY: a Concat's output is of its inputs' type, and these are all tensors that are read.
        unsafe { run.write(&y_shape, &inputs, write) }
    }
}

/// The shape of tensors whose channels, on axis 1, are joined. As in onnxruntime, empty tensors do not
/// count beside others, whatever their shape.
pub(crate) fn concatenated(shapes: &[Vec<usize>]) -> Result<Vec<usize>> {
    let has_elements = |shape: &&Vec<usize>| !shape.contains(&0);
    let are_all_empty = !shapes.iter().any(|shape| has_elements(&shape));
    let mut counted = shapes.iter().filter(|shape| are_all_empty || has_elements(shape));
    let mut joined = counted.next().cloned().unwrap_or_default();
    for shape in counted {
        let same = shape.len() == joined.len() && shape.len() > 1;
        if !same || shape[0] != joined[0] || shape[2..] != joined[2..] {
            return Err(Failure::invalid(format_args!(
                "Concat: inputs of shapes {joined:?} and {shape:?} differ in another axis than 1"
            )));
        }
        joined[1] = joined[1]
            .checked_add(shape[1])
            .ok_or_else(|| Failure::invalid("Concat: more channels than there can be"))?;
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
        assert_eq!(joined(&[&[0], &[2, 3, 4], &[1, 0, 0], &[2, 5, 4]]).unwrap(), [2, 8, 4]);
        assert_eq!(joined(&[&[0, 3, 4], &[0, 5, 4]]).unwrap(), [0, 8, 4]);
        for others in [&[1, 3, 4][..], &[2, 3, 5], &[2, 3], &[2, 3, 4, 1]] {
            let failure = joined(&[&[2, 3, 4], others]).unwrap_err();
            assert!(failure.to_string().contains("differ in another axis"), "{failure}");
        }
    }
}

//! A layer with a residual whose shape turns out in a run to be another one than Y's: both are
//! broadcast, as by ONNX's Add.
//!
//! It is slower than the two nodes would be. Whether the shapes differ is often not known before,
//! and mostly they do not.

use convoke::{Activation, Conv, Layout, Operator, PackedWeights, Plan, Planner};

use crate::api::{Failure, Result};
use crate::run::buffer;
use crate::weights::Scalar;

/// The shape to which two others are broadcast.
pub(crate) fn broadcast(op: &str, one: &[usize], other: &[usize]) -> Result<Vec<usize>> {
    let sizes = one.iter().zip(other).map(|pair| match pair {
        (size, 1) | (1, size) => Some(*size),
        (size, same) => (size == same).then_some(*size),
    });
    let shape = if one.len() == other.len() { sizes.collect::<Option<_>>() } else { None };
    shape.ok_or_else(|| {
        Failure::invalid(format_args!("{op}: tensors of shapes {one:?} and {other:?} cannot be broadcast to one shape"))
    })
}

/// The elements of a tensor, repeated to a shape to which it is broadcast.
pub(crate) fn repeated<T: Copy>(x: &[T], shape: &[usize], to: &[usize]) -> Result<Vec<T>> {
    fn push<T: Copy>(x: &[T], shape: &[usize], to: &[usize], out: &mut Vec<T>) {
        let ([own, shape @ ..], [size, to @ ..]) = (shape, to) else { return out.extend_from_slice(x) };
        let (len, step) = (shape.iter().product(), usize::from(*own > 1));
        for i in 0..*size {
            push::<T>(&x[i * step * len..][..len], shape, to, out);
        }
    }
    let mut out = buffer(to.iter().product())?;
    push(x, shape, to, &mut out);
    Ok(out)
}

/// The plan of a layer for X of a shape, without its activation, over weights that are packed.
pub(crate) fn conv<T: Scalar>(
    planner: &Planner,
    operator: &Operator,
    packed: &PackedWeights<T>,
    x_shape: &[usize],
) -> Result<Plan<T>> {
    Ok(planner.clone().packed_for(packed).plan(operator.clone(), x_shape)?)
}

/// A depthwise convolution of one tap for tensors of so many axes. Its weights are 1 for each channel.
pub(crate) fn of_ones(channels: usize, rank: usize, [x, y]: [Layout; 2]) -> Operator {
    let mut w_shape = vec![1; rank];
    w_shape[0] = channels;
    Conv::new(w_shape).group(channels as i64).layouts(x, y).into()
}

/// A plan that adds two tensors of a shape, by a convolution with one tap of 1 and a residual, and its
/// weights.
pub(crate) fn add<T: Scalar>(
    planner: &Planner,
    activation: Activation,
    shape: &[usize],
    layouts: [Layout; 2],
) -> Result<(Plan<T>, PackedWeights<T>)> {
    let channels = shape[1];
    let plan = planner.clone().activation(activation).plan(of_ones(channels, shape.len(), layouts), shape)?;
    let packed = plan.pack(&vec![T::of(1.0); channels], None)?;
    Ok((plan, packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_repeated_along_axes_of_one_element() {
        assert_eq!(broadcast("Add", &[2, 1, 3], &[1, 4, 3]).unwrap(), [2, 4, 3]);
        assert_eq!(broadcast("Add", &[1, 0], &[5, 1]).unwrap(), [5, 0]);
        assert_eq!(repeated(&[1, 2, 3, 4], &[2, 1, 2], &[2, 2, 2]).unwrap(), [1, 2, 1, 2, 3, 4, 3, 4]);
        assert_eq!(repeated(&[1, 2], &[1, 2, 1], &[2, 2, 3]).unwrap(), [1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]);
        assert_eq!(repeated(&[7], &[1, 1], &[0, 3]).unwrap(), []);
        for other in [&[2, 3][..], &[2, 4, 3], &[2, 0, 4]] {
            let failure = broadcast("Add", &[2, 3, 4], other).unwrap_err();
            assert!(failure.to_string().contains("cannot be broadcast"), "{failure}");
        }
    }
}

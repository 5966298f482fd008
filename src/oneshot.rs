//! A whole layer in one call: plan, pack, run.

use alloc::vec::Vec;

use crate::error::Error;
use crate::exec::reserved;
use crate::{Conv, ConvTranspose, Element, Operator, Planner, Run};

/// Conv in one call, on the calling thread. Returns Y and its shape.
///
/// It plans and packs on every call. To run a layer more than once, keep a [`Plan`](crate::Plan).
///
/// ```
/// use convoke::{Conv, conv};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (y, shape) = conv(&Conv::new([1, 1, 2]), &[1, 1, 4], &[1.0_f32, 2.0, 3.0, 4.0], &[10.0, 1.0], None)?;
/// assert_eq!((y.as_slice(), shape.as_slice()), ([12.0, 23.0, 34.0].as_slice(), [1, 1, 3].as_slice()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// The call fails if a rule of the operator is broken, if a length is not that of its shape, or
/// if memory cannot be allocated.
pub fn conv<T: Element>(
    conv: &Conv,
    x_shape: &[usize],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
) -> Result<(Vec<T>, Vec<usize>), Error> {
    one_shot(conv.clone().into(), x_shape, x, w, bias)
}

/// ConvTranspose in one call, on the calling thread. Returns Y and its shape. See
/// [`conv`](fn@conv).
///
/// ```
/// use convoke::{ConvTranspose, conv_transpose};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let twice = ConvTranspose::new([1, 1, 2]).strides([2]);
/// let (y, shape) = conv_transpose(&twice, &[1, 1, 3], &[1.0_f32, 2.0, 3.0], &[10.0, 1.0], None)?;
/// assert_eq!((y.as_slice(), shape.as_slice()), ([10.0, 1.0, 20.0, 2.0, 30.0, 3.0].as_slice(), [1, 1, 6].as_slice()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`conv`](fn@conv).
pub fn conv_transpose<T: Element>(
    conv: &ConvTranspose,
    x_shape: &[usize],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
) -> Result<(Vec<T>, Vec<usize>), Error> {
    one_shot(conv.clone().into(), x_shape, x, w, bias)
}

fn one_shot<T: Element>(
    operator: Operator,
    x_shape: &[usize],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
) -> Result<(Vec<T>, Vec<usize>), Error> {
    let plan = Planner::new().plan::<T>(operator, x_shape)?;
    let geometry = plan.geometry();
    // This comes before allocations that a wrong shape could make large.
    plan.check_input(x)?;
    let packed = plan.pack(w, bias)?;
    let mut y = reserved(geometry.output_len(), format_args!("{}, output", geometry.op))?;
    y.resize(geometry.output_len(), T::default());
    plan.run(Run::new(x, &packed, &mut y))?;
    Ok((y, geometry.output_shape()))
}

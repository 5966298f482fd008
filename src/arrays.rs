//! Arrays of the crate `ndarray` in place of slices and shapes.
#![allow(clippy::needless_pass_by_value, reason = "views are references, and `ndarray`'s users pass them by value")]

use alloc::vec::Vec;

use ndarray::{Array, ArrayD, ArrayView, ArrayView1, ArrayViewMut, Dimension, IxDyn};

use crate::error::{Error, bail};
use crate::exec::reserved;
use crate::{Conv, ConvTranspose, Element, Op, Operator, PackedWeights, Plan, Planner, Run};

impl<T: Element> Plan<T> {
    /// As [`pack`](Self::pack), of arrays.
    ///
    /// # Errors
    /// As [`pack`](Self::pack); [`InvalidShape`](crate::ErrorKind::InvalidShape) if a shape is not
    /// that of the layer, or an array is not in standard layout.
    pub fn pack_array<D: Dimension>(
        &self,
        w: ArrayView<'_, T, D>,
        bias: Option<ArrayView1<'_, T>>,
    ) -> Result<PackedWeights<T>, Error> {
        let geometry = self.geometry();
        let w = elements(geometry.op, "W", &w, &geometry.weight_shape())?;
        let bias = bias.as_ref().map(|bias| elements(geometry.op, "B", bias, &[geometry.bias_len()])).transpose()?;
        self.pack(w, bias)
    }

    /// A [`Run`] of arrays in standard layout (C order), which are used where they are.
    ///
    /// Views of some channels are not in standard layout, unless they are of one image.
    ///
    /// ```
    /// use convoke::{Activation, Conv, Planner};
    /// use ndarray::{Array4, s};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let (x, w) = (Array4::<f32>::ones((2, 3, 8, 8)), Array4::<f32>::ones((4, 3, 3, 3)));
    /// let plan = Planner::new().activation(Activation::Relu).plan(Conv::new(w.shape()), &[1, 3, 8, 8])?;
    /// let packed = plan.pack_array(w.view(), None)?;
    /// let mut y = Array4::zeros((2, 4, 6, 6));
    /// for i in 0..2 {
    ///     let (x, y) = (x.slice(s![i..=i, .., .., ..]), y.slice_mut(s![i..=i, .., .., ..]));
    ///     plan.run(plan.arrays(x, &packed, None, y)?)?;
    /// }
    /// assert!(y.iter().all(|y| *y == 27.0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidShape`](crate::ErrorKind::InvalidShape) if a shape is not that of the layer, or an
    /// array is not in standard layout.
    pub fn arrays<'a, 'y, D: Dimension>(
        &self,
        x: ArrayView<'a, T, D>,
        packed: &'a PackedWeights<T>,
        residual: Option<ArrayView<'a, T, D>>,
        y: ArrayViewMut<'y, T, D>,
    ) -> Result<Run<'a, 'y, T>, Error> {
        let (op, shape) = (self.geometry().op, self.geometry().output_shape());
        let x = elements(op, "X", &x, &self.geometry().input_shape())?;
        let residual = residual.map(|residual| elements(op, "the residual", &residual, &shape)).transpose()?;
        let y = elements_mut(op, y, &shape)?;
        Ok(Run::new(x, packed, y).residual(residual))
    }
}

/// As [`conv`](fn@crate::conv), of arrays in standard layout.
///
/// ```
/// use convoke::{Conv, conv_array};
/// use ndarray::{Array4, array};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (x, w) = (Array4::<f32>::ones((1, 2, 5, 5)), Array4::<f32>::ones((3, 2, 3, 3)));
/// let y = conv_array(&Conv::new(w.shape()).strides([2, 2]), x.view(), w.view(), Some(array![0.0, 1.0, 2.0].view()))?;
/// assert_eq!((y.shape(), y[[0, 2, 1, 1]]), ([1, 3, 2, 2].as_slice(), 20.0));
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`conv`](fn@crate::conv); [`InvalidShape`](crate::ErrorKind::InvalidShape) if a shape is not
/// that of the layer, or an array is not in standard layout.
pub fn conv_array<T: Element, D: Dimension>(
    conv: &Conv,
    x: ArrayView<'_, T, D>,
    w: ArrayView<'_, T, D>,
    bias: Option<ArrayView1<'_, T>>,
) -> Result<Array<T, D>, Error> {
    one_shot(conv.clone().into(), x, w, bias)
}

/// As [`conv_transpose`](crate::conv_transpose), of arrays in standard layout. See [`conv_array`].
///
/// # Errors
/// As [`conv_array`].
pub fn conv_transpose_array<T: Element, D: Dimension>(
    conv: &ConvTranspose,
    x: ArrayView<'_, T, D>,
    w: ArrayView<'_, T, D>,
    bias: Option<ArrayView1<'_, T>>,
) -> Result<Array<T, D>, Error> {
    one_shot(conv.clone().into(), x, w, bias)
}

fn one_shot<T: Element, D: Dimension>(
    operator: Operator,
    x: ArrayView<'_, T, D>,
    w: ArrayView<'_, T, D>,
    bias: Option<ArrayView1<'_, T>>,
) -> Result<Array<T, D>, Error> {
    let plan = Planner::new().plan::<T>(operator, x.shape())?;
    let geometry = plan.geometry();
    // Before memory of the size of Y is asked for: the shape of X need not be that of elements.
    let input = elements(geometry.op, "X", &x, &geometry.input_shape())?;
    let packed = plan.pack_array(w, bias)?;
    let mut y: Vec<T> = reserved(geometry.output_len(), format_args!("{}, output", geometry.op))?;
    y.resize(geometry.output_len(), T::default());
    plan.run(Run::new(input, &packed, &mut y))?;
    let shape = geometry.output_shape();
    let Ok(y) = ArrayD::from_shape_vec(IxDyn(&shape), y) else {
        // The length is the shape's. A shape without elements may have axes that are too long.
        bail!(Overflow, "{}: Y's shape {shape:?} exceeds what an array can have", geometry.op);
    };
    Ok(y.into_dimensionality().expect("Y has as many axes as X"))
}

/// The elements of an array, in the order of its shape.
fn elements<'a, T, D: Dimension>(
    op: Op,
    name: &str,
    array: &ArrayView<'a, T, D>,
    wanted: &[usize],
) -> Result<&'a [T], Error> {
    check_shape(op, name, array.shape(), wanted)?;
    match array.to_slice() {
        Some(elements) => Ok(elements),
        None => not_in_order(op, name, array.strides()),
    }
}

fn elements_mut<'a, T, D: Dimension>(
    op: Op,
    y: ArrayViewMut<'a, T, D>,
    wanted: &[usize],
) -> Result<&'a mut [T], Error> {
    check_shape(op, "Y", y.shape(), wanted)?;
    if !y.is_standard_layout() {
        return not_in_order(op, "Y", y.strides());
    }
    Ok(y.into_slice().expect("arrays in standard layout have a slice"))
}

fn check_shape(op: Op, name: &str, shape: &[usize], wanted: &[usize]) -> Result<(), Error> {
    if shape != wanted {
        bail!(InvalidShape, "{op}: {name} has shape {shape:?}, must have {wanted:?}");
    }
    Ok(())
}

fn not_in_order<R>(op: Op, name: &str, strides: &[isize]) -> Result<R, Error> {
    bail!(
        InvalidShape,
        "{op}: {name} has strides {strides:?}, must be in standard layout: as_standard_layout() copies it"
    )
}

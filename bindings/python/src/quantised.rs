//! Quantised plans: convolutions of bytes, of any types.

use std::any::Any;
use std::fmt::Display;

use convoke::{Byte, ErrorKind, Geometry, Operator, Planner, Quantised, QuantisedRun, Scales, f16};
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arrays::{Name, Number, Tensor, empty, uninit};
use crate::errors::{exception, refusal};
use crate::integers::required;
use crate::plan::{read_weights, x_shape, y_shape};
use crate::threads::{Pooled, with_workspace};

/// How to compute one layer of bytes on arrays of one shape.
///
/// ``convoke.Planner.plan_quantised`` makes it. It does not change, and threads may share it. Sums are exact: results
/// are the same on every CPU, and for any number of threads.
#[pyclass(frozen, module = "convoke")]
pub(crate) struct QuantisedPlan {
    plan: Box<dyn AnyPlan>,
    /// Those of X, W and Y.
    dtypes: [Py<PyArrayDescr>; 3],
}

/// A number of Python, or an array. None if it is absent.
type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// An array that is added to the result, its scale and its zero point.
type Residual<'a, 'py> = (&'a Bound<'py, PyAny>, Given<'a, 'py>, Given<'a, 'py>);

#[pymethods]
impl QuantisedPlan {
    /// Packs the weights, and the bias if there is one.
    ///
    /// ``w`` has the shape ``weight_shape``. ``b`` is of int32, with one element for each output channel and the scale
    /// ``x_scale * w_scale``. ``w_zero_point`` is a number, or an array of W's dtype with one element or one for each
    /// output channel; 0 if absent. All are copied. It is an error if sums may not fit 32 bits.
    #[pyo3(signature = (w, b=None, *, w_zero_point=None))]
    fn pack(&self, w: &Bound<'_, PyAny>, b: Given<'_, '_>, w_zero_point: Given<'_, '_>) -> PyResult<QuantisedWeights> {
        self.plan.pack(w, b, w_zero_point)
    }

    /// What runs do with the sums of these weights, by ONNX's names of scales and zero points.
    ///
    /// A result of bytes is ``round((sum + b) * (x_scale * w_scale / y_scale)) + y_zero_point``, saturated, where
    /// ``sum`` is that of ``(x - x_zero_point) * (w - w_zero_point)``. The scale is computed in float32, and halves are
    /// rounded to even. A result in float32 is ``(sum + b) * (x_scale * w_scale / y_scale)``, one in float16 is that
    /// number rounded to nearest even, and one in int32 is ``sum + b``. Only a result of bytes has a zero point.
    ///
    /// Each is a number or an array of one element, and ``w_scale`` may have one for each output channel. Scales are of
    /// float32, and zero points of the dtypes of X and of the result. An absent scale is 1, an absent zero point 0.
    ///
    /// ``y_table`` is an array of 256 elements of the result's dtype, uint8 or int8: each byte of the result becomes the
    /// one whose number has the byte's bits. So a layer has any activation, and the result any scale behind it.
    #[pyo3(signature = (
        weights, *, x_scale=None, x_zero_point=None, w_scale=None, y_scale=None, y_zero_point=None, y_table=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are arguments of Python")]
    fn scaled(
        &self,
        weights: &Bound<'_, QuantisedWeights>,
        x_scale: Given<'_, '_>,
        x_zero_point: Given<'_, '_>,
        w_scale: Given<'_, '_>,
        y_scale: Given<'_, '_>,
        y_zero_point: Given<'_, '_>,
        y_table: Given<'_, '_>,
    ) -> PyResult<Scaled> {
        self.plan.scaled(weights, [x_scale, w_scale, y_scale], [x_zero_point, y_zero_point], y_table)
    }

    /// Computes the layer on ``x`` and returns the result.
    ///
    /// A ``residual`` of the shape and the dtype of the result, which is uint8 or int8, is added before the result is
    /// rounded: ``(residual - residual_zero_point) * (residual_scale / y_scale)``. Scale and zero point are as in
    /// ``scaled``.
    ///
    /// The result is written into ``out``, if that is given, else into a new array. No array is copied or converted: all
    /// must be of the plan's dtypes, and C-contiguous, or with channels last channels of a wider array, as
    /// ``wide[..., 3:8]``. Other Python threads run meanwhile.
    #[pyo3(signature = (
        x, weights, scaled, *, residual=None, residual_scale=None, residual_zero_point=None, out=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are arguments of Python")]
    fn run<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        weights: &QuantisedWeights,
        scaled: &Scaled,
        residual: Given<'_, 'py>,
        residual_scale: Given<'_, 'py>,
        residual_zero_point: Given<'_, 'py>,
        out: Given<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if residual.is_none() && (residual_scale.is_some() || residual_zero_point.is_some()) {
            let message = format!("{}: residual_scale or residual_zero_point without a residual", self.op());
            return Err(refusal(x.py(), ErrorKind::InvalidInput, message));
        }
        let residual = residual.map(|array| (array, residual_scale, residual_zero_point));
        self.plan.run(x, (weights, scaled), residual, out, self.dtypes[2].bind(x.py()))
    }

    /// The kernels, the blocking and the tasks, as text, in a line for each kind of weights.
    fn explain(&self) -> String {
        self.plan.explain()
    }

    /// The operator: "Conv" or "ConvTranspose".
    #[getter]
    fn op(&self) -> &'static str {
        self.plan.geometry().op.name()
    }

    /// The dtypes of X, of W and of the result.
    #[getter]
    fn dtypes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.dtypes)
    }

    /// The shape of X, as its array has it: ``(N, H, W, C)`` with the layout ``"NHWC"``.
    #[getter]
    fn input_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, x_shape(self.plan.geometry()))
    }

    /// The shape of the result, likewise.
    #[getter]
    fn output_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, y_shape(self.plan.geometry()))
    }

    /// The shape of W.
    #[getter]
    fn weight_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.plan.geometry().weight_shape())
    }

    /// Multiply-adds of a run by the definition.
    #[getter]
    fn macs(&self) -> u128 {
        self.plan.geometry().macs()
    }

    /// The number of threads that the plan was made for.
    #[getter]
    fn threads(&self) -> usize {
        self.plan.threads()
    }

    /// Bytes of scratch memory of a run.
    #[getter]
    fn workspace_bytes(&self) -> usize {
        self.plan.workspace_bytes()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (geometry, [x, w, y]) = (self.plan.geometry(), self.dtypes.each_ref().map(|dtype| dtype.bind(py)));
        let (op, of_x, of_w) = (geometry.op, x_shape(geometry), geometry.weight_shape());
        format!("<convoke.QuantisedPlan {op}, X {of_x:?} of {x}, W {of_w:?} of {w}, result of {y}>")
    }
}

/// The weights and the bias of a layer of bytes, as a quantised plan has packed them.
#[pyclass(frozen, module = "convoke")]
pub(crate) struct QuantisedWeights(convoke::QuantisedWeights);

/// What runs do with sums: made by ``QuantisedPlan.scaled`` for some weights, which it is for alone.
#[pyclass(frozen, module = "convoke")]
pub(crate) struct Scaled(Box<dyn Any + Send + Sync>);

/// Evaluates an expression with the type of a dtype, or another one if it is none of some types.
macro_rules! with_type {
    ($dtype:expr, [$($type:ty),+], $t:ident => $value:expr, else $refused:expr) => {
        $(if <$type>::is($dtype)? {
            type $t = $type;
            $value
        } else)+ {
            $refused
        }
    };
}

impl QuantisedPlan {
    /// A plan for an operator, the shape of X in ONNX's order, and the dtypes of X, W and the result.
    pub(crate) fn new(
        planner: &Planner,
        (operator, shape): (Operator, Vec<usize>),
        dtypes: &[Bound<'_, PyArrayDescr>; 3],
    ) -> PyResult<Self> {
        let ([x, w, y], op) = (dtypes, operator.op_name());
        let refused = |what: &str, dtype: &Bound<'_, PyArrayDescr>, known: &str| {
            let message = format_args!("{op}: {what} of dtype {}, must be of {known}", dtype.str()?);
            Err(refusal(dtype.py(), ErrorKind::InvalidType, message))
        };
        let plan = with_type!(x, [u8, i8], X => {
            with_type!(w, [u8, i8], W => {
                with_type!(y, [u8, i8, i32, f32, f16], Y => {
                    boxed(planner.plan_quantised::<X, W, Y>(operator, &shape))
                }, else return refused("a result", y, "uint8, int8, int32, float32 or float16"))
            }, else return refused("W", w, "uint8 or int8"))
        }, else return refused("X", x, "uint8 or int8"));
        let plan = plan.map_err(|error| exception(x.py(), &error))?;
        Ok(Self { plan, dtypes: dtypes.each_ref().map(|dtype| dtype.clone().unbind()) })
    }
}

fn boxed(plan: Result<impl AnyPlan + 'static, convoke::Error>) -> Result<Box<dyn AnyPlan>, convoke::Error> {
    Ok(Box::new(plan?))
}

/// A type of scales or zero points.
trait Parameter: Number + Copy + Default {
    /// # Errors
    /// `TypeError` if it is no such number, `InvalidInput` if it is outside the type.
    fn of(name: Name, value: &Bound<'_, PyAny>) -> PyResult<Self>;

    /// Has bytes of the result go through a table.
    ///
    /// # Errors
    /// `InvalidInput` if the type is no byte, `InvalidShape` for another number of entries.
    fn with_table<X: Byte>(
        _: convoke::Scaled<X, Self>,
        name: Name,
        table: &Bound<'_, PyAny>,
    ) -> PyResult<convoke::Scaled<X, Self>> {
        let message = format_args!("{name}: it is for results of uint8 and int8 alone");
        Err(refusal(table.py(), ErrorKind::InvalidInput, message))
    }

    /// Adds a residual with its scale and its zero point. None if the type is no byte.
    fn with_residual<'a, 'y, X: Byte>(
        _: QuantisedRun<'a, 'y, X, Self>,
        _: (&'a [Self], f32, Self),
        _stride: Option<usize>,
    ) -> Option<QuantisedRun<'a, 'y, X, Self>> {
        None
    }
}

impl Parameter for f32 {
    fn of(name: Name, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        required(&name.to_string(), value)
    }
}

impl Parameter for f16 {
    fn of(name: Name, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        f32::of(name, value).map(Self::from_f32)
    }
}

/// An integer of Python, as one of a type whose smallest and largest values are given.
fn integer<T: TryFrom<i64> + Display>(name: Name, value: &Bound<'_, PyAny>, [least, most]: [T; 2]) -> PyResult<T> {
    let number: i64 = required(&name.to_string(), value)?;
    T::try_from(number).map_err(|_| {
        let message = format_args!("{name} is {number}, must be from {least} to {most}");
        refusal(value.py(), ErrorKind::InvalidInput, message)
    })
}

impl Parameter for i32 {
    fn of(name: Name, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        integer(name, value, [Self::MIN, Self::MAX])
    }
}

macro_rules! bytes {
    ($($type:ident)+) => {$(
        impl Parameter for $type {
            fn of(name: Name, value: &Bound<'_, PyAny>) -> PyResult<Self> {
                integer(name, value, [Self::MIN, Self::MAX])
            }

            fn with_table<X: Byte>(
                scaled: convoke::Scaled<X, Self>,
                name: Name,
                table: &Bound<'_, PyAny>,
            ) -> PyResult<convoke::Scaled<X, Self>> {
                let table = Tensor::<Self>::new(name, table)?.of_shape(&[256])?.or_copied()?.read()?;
                Ok(scaled.table(table.as_slice()?.first_chunk().expect("an array of 256")))
            }

            fn with_residual<'a, 'y, X: Byte>(
                run: QuantisedRun<'a, 'y, X, Self>,
                (residual, scale, zero_point): (&'a [Self], f32, Self),
                stride: Option<usize>,
            ) -> Option<QuantisedRun<'a, 'y, X, Self>> {
                Some(run.residual(residual, scale, zero_point).residual_pixel_stride(stride))
            }
        }
    )+};
}
bytes!(u8 i8);

/// A number, or the elements of an array. Nothing if it is absent.
fn values<T: Parameter>(name: Name, given: Given<'_, '_>) -> PyResult<Vec<T>> {
    let Some(value) = given else { return Ok(Vec::new()) };
    if value.cast::<PyUntypedArray>().is_err() {
        return Ok(vec![T::of(name, value)?]);
    }
    Ok(Tensor::<T>::new(name, value)?.or_copied()?.read()?.as_slice()?.to_vec())
}

/// A number, or the only element of an array.
fn value<T: Parameter>(name: Name, given: Given<'_, '_>, absent: T) -> PyResult<T> {
    let Some(array) = given else { return Ok(absent) };
    match values(name, given)?[..] {
        [value] => Ok(value),
        ref other => {
            let message = format_args!("{name} has {} elements, must have 1", other.len());
            Err(refusal(array.py(), ErrorKind::BufferLength, message))
        }
    }
}

/// A plan of some types.
trait AnyPlan: Send + Sync {
    fn geometry(&self) -> &Geometry;
    fn explain(&self) -> String;
    fn threads(&self) -> usize;
    fn workspace_bytes(&self) -> usize;
    fn pack(&self, w: &Bound<'_, PyAny>, b: Given<'_, '_>, w_zero_point: Given<'_, '_>) -> PyResult<QuantisedWeights>;
    /// Scales of X, W and Y, and zero points of X and Y.
    fn scaled(
        &self,
        weights: &Bound<'_, QuantisedWeights>,
        scales: [Given<'_, '_>; 3],
        zero_points: [Given<'_, '_>; 2],
        y_table: Given<'_, '_>,
    ) -> PyResult<Scaled>;
    fn run<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        packed: (&QuantisedWeights, &Scaled),
        residual: Option<Residual<'_, 'py>>,
        out: Given<'_, 'py>,
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

impl<X: Byte + Parameter, W: Byte + Parameter, Y: Quantised + Parameter> AnyPlan for convoke::QuantisedPlan<X, W, Y> {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }

    fn explain(&self) -> String {
        self.explain()
    }

    fn threads(&self) -> usize {
        self.threads()
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes()
    }

    fn pack(&self, w: &Bound<'_, PyAny>, b: Given<'_, '_>, w_zero_point: Given<'_, '_>) -> PyResult<QuantisedWeights> {
        let (py, op) = (w.py(), self.geometry().op);
        let (w, b) = read_weights::<W, i32>(self.geometry(), w, b)?;
        let (w, b) = (w.as_slice()?, b.as_ref().map(|b| b.as_slice()).transpose()?);
        let zero_point = values::<W>(Name { op, tensor: "w_zero_point", is_out: false }, w_zero_point)?;
        if w_zero_point.is_some() && zero_point.is_empty() {
            let message = format_args!("{op}: w_zero_point has 0 elements, not 1 or {}", self.geometry().out_channels);
            return Err(refusal(py, ErrorKind::BufferLength, message));
        }
        let packed = py.detach(|| self.pack(w, &zero_point, b));
        Ok(QuantisedWeights(packed.map_err(|error| exception(py, &error))?))
    }

    fn scaled(
        &self,
        weights: &Bound<'_, QuantisedWeights>,
        [x_scale, w_scale, y_scale]: [Given<'_, '_>; 3],
        [x_zero_point, y_zero_point]: [Given<'_, '_>; 2],
        y_table: Given<'_, '_>,
    ) -> PyResult<Scaled> {
        let name = |tensor| Name { op: self.geometry().op, tensor, is_out: false };
        let of_w = if w_scale.is_some() { values(name("w_scale"), w_scale)? } else { vec![1.0] };
        let scales = Scales {
            x_scale: value(name("x_scale"), x_scale, 1.0)?,
            x_zero_point: value(name("x_zero_point"), x_zero_point, X::default())?,
            w_scale: &of_w,
            y_scale: value(name("y_scale"), y_scale, 1.0)?,
            y_zero_point: value(name("y_zero_point"), y_zero_point, Y::default())?,
        };
        let scaled = weights.get().0.scaled(&scales).map_err(|error| exception(weights.py(), &error))?;
        Ok(Scaled(Box::new(match y_table {
            Some(table) => Y::with_table(scaled, name("y_table"), table)?,
            None => scaled,
        })))
    }

    fn run<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        (weights, scaled): (&QuantisedWeights, &Scaled),
        residual: Option<Residual<'_, 'py>>,
        out: Given<'_, 'py>,
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, geometry) = (dtype.py(), self.geometry());
        let (op, shape) = (geometry.op, y_shape(geometry));
        let Some(scaled) = scaled.0.downcast_ref::<convoke::Scaled<X, Y>>() else {
            let message = format_args!("{op}: the scales were made by a plan of other dtypes");
            return Err(refusal(py, ErrorKind::PackedMismatch, message));
        };
        let name = |tensor, is_out| Name { op, tensor, is_out };
        let of_y = |name: Name, array: &Bound<'py, PyAny>| {
            Tensor::<Y>::new(name, array)?.of_shape(&shape)?.spanning_pixels(geometry.y_layout)?.in_order()
        };
        let x = Tensor::<X>::new(name("X", false), x)?.of_shape(&x_shape(geometry))?;
        let x = x.spanning_pixels(geometry.x_layout)?.in_order()?;
        let y = match out {
            Some(array) => of_y(name("out", true), array)?,
            None => empty(name("out", true), &shape, dtype)?,
        };
        y.apart_from(&x)?;
        let residual = match residual {
            Some((array, scale, zero_point)) => {
                let array = of_y(name("the residual", false), array)?;
                y.apart_from(&array)?;
                let scale = value(name("residual_scale", false), scale, 1.0)?;
                let zero_point = value(name("residual_zero_point", false), zero_point, Y::default())?;
                Some((array.pixel_stride(), array.read()?, scale, zero_point))
            }
            None => None,
        };
        let (of_x, of_y) = (x.pixel_stride(), y.pixel_stride());
        let (x, mut written) = (x.read()?, y.write()?);
        let (x, pool) = (x.as_slice()?, Pooled::new(py, self.threads())?);
        let mut run = if out.is_some() {
            QuantisedRun::new(x, &weights.0, scaled, written.as_slice_mut()?)
        } else {
            QuantisedRun::uninit(x, &weights.0, scaled, uninit(&mut written))
        };
        if let Some((stride, residual, scale, zero_point)) = &residual {
            let Some(with_residual) = Y::with_residual(run, (residual.as_slice()?, *scale, *zero_point), *stride)
            else {
                let message = format_args!("{op}: a residual is for results of uint8 and int8 alone");
                return Err(refusal(py, ErrorKind::InvalidInput, message));
            };
            run = with_residual;
        }
        let run = run.x_pixel_stride(of_x).y_pixel_stride(of_y);
        let result = py.detach(|| {
            with_workspace(self.workspace_bytes(), |workspace| {
                self.run(run.workspace(workspace).threads(pool.threads())).map(|_| ())
            })
        });
        result.map_err(|error| exception(py, &error))?;
        Ok(out.unwrap_or(y.array()).clone())
    }
}

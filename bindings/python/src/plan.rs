//! Plans and packed weights of any element type.

use std::any::Any;

use convoke::{DType, Element, ErrorKind, Explanation, Geometry, Planner, Run, bf16, f16};
use numpy::{PyArray1, PyArrayDescr, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arrays::{DTYPES, Name, Number, Tensor, element_type, empty, in_layout, private_view, uninit};
use crate::errors::{exception, refusal};
use crate::threads::{Pooled, with_workspace};

/// How to compute one layer on arrays of one shape.
///
/// ``convoke.Planner`` makes it. It does not change, and threads may share it.
#[pyclass(frozen, module = "convoke")]
pub(crate) struct Plan {
    plan: Box<dyn AnyPlan>,
    dtype: Py<PyArrayDescr>,
}

impl Plan {
    pub(crate) fn new<T: Number + Element>(plan: convoke::Plan<T>, dtype: &Bound<'_, PyArrayDescr>) -> Self {
        Self { plan: Box::new(plan), dtype: dtype.clone().unbind() }
    }
}

#[pymethods]
impl Plan {
    /// Packs the weights, and the bias if there is one.
    ///
    /// ``w`` has the shape ``weight_shape``; ``b`` has one element for each output channel.
    /// The weights are copied, so that ``w`` and ``b`` may change afterwards. If a weight is not finite, they
    /// have a layout of their own, which every plan of the layer accepts, and runs by the loops of the
    /// definition, slowly.
    #[pyo3(signature = (w, b=None))]
    fn pack(&self, w: &Bound<'_, PyAny>, b: Option<&Bound<'_, PyAny>>) -> PyResult<PackedWeights> {
        Ok(PackedWeights { weights: self.plan.pack(w, b)?, dtype: self.dtype.clone_ref(w.py()) })
    }

    /// Computes the layer on ``x`` and returns the result.
    ///
    /// ``residual`` is an array of the output's shape that is added before the activation.
    /// The result is written into ``out``, if that is given, else into a new array. ``out`` may
    /// be ``residual`` itself. No other memory may be shared.
    ///
    /// No array is copied or converted: all must be C-contiguous, and of the plan's dtype. With channels last, they
    /// may also be channels of a wider array, as ``wide[..., 3:8]`` is.
    /// Other Python threads run meanwhile.
    #[pyo3(signature = (x, packed, *, residual=None, out=None))]
    fn run<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        packed: &PackedWeights,
        residual: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.plan.run(&Arrays { x, residual, out, copies: false }, packed, self.dtype.bind(x.py()))
    }

    /// As ``run``, but arrays that are read are copied if they do not lie in memory as they must.
    #[pyo3(signature = (x, packed, residual, out))]
    fn _run_copying<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        packed: &PackedWeights,
        residual: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.plan.run(&Arrays { x, residual, out, copies: true }, packed, self.dtype.bind(x.py()))
    }

    /// Whether a run accepts these weights: they are of this layer, and in the layout that the plan
    /// reads, as those are that it packs itself, and those that ``Planner.packed_for`` was given.
    fn accepts(&self, packed: &PackedWeights) -> bool {
        self.plan.accepts(packed)
    }

    /// What was picked, and why not the other algorithms, as text.
    fn explain(&self) -> String {
        format!("{:#}", self.plan.explanation())
    }

    /// The operator: "Conv" or "ConvTranspose".
    #[getter]
    fn op(&self) -> &'static str {
        self.plan.geometry().op.name()
    }

    /// The dtype of all arrays.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> &Bound<'py, PyArrayDescr> {
        self.dtype.bind(py)
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

    /// The algorithm's name.
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.plan.explanation().picked().name()
    }

    /// The name of the micro-kernel that does most of the work.
    #[getter]
    fn kernel(&self) -> &str {
        self.plan.explanation().kernel()
    }

    /// The instruction set of the kernels.
    #[getter]
    fn isa(&self) -> &'static str {
        self.plan.explanation().machine().isa().name()
    }

    /// The number of threads that the plan was made for.
    #[getter]
    fn threads(&self) -> usize {
        self.plan.explanation().threads()
    }

    /// Bytes of scratch memory of a run.
    #[getter]
    fn workspace_bytes(&self) -> usize {
        self.plan.explanation().workspace_bytes()
    }

    /// Bytes of the packed weights.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.plan.explanation().packed_bytes()
    }

    fn __repr__(&self) -> String {
        let text = self.explain();
        let mut lines = text.lines();
        format!("<convoke.Plan {}, {}>", lines.next().unwrap_or_default(), lines.next().unwrap_or_default())
    }
}

/// The weights and the bias of a layer, as a plan has packed them.
///
/// The plan that packed them accepts them, and so do plans of the same layer that read the same
/// layout, among them those of ``Planner.packed_for``.
#[pyclass(frozen, module = "convoke")]
pub(crate) struct PackedWeights {
    weights: Box<dyn AnyPacked>,
    dtype: Py<PyArrayDescr>,
}

#[pymethods]
impl PackedWeights {
    /// Weights that ``to_bytes`` wrote, which are copied. ``dtype`` is that of the layer.
    ///
    /// ``Planner.packed_for`` makes plans for them, and checks that the layer is theirs.
    #[staticmethod]
    #[pyo3(signature = (data, dtype))]
    fn from_bytes(data: &Bound<'_, PyBytes>, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, dtype) = (data.py(), PyArrayDescr::new(data.py(), dtype)?);
        Self::load(&dtype, Source::Copied(data.as_bytes()), py)
    }

    /// Weights that ``to_bytes`` wrote, without a copy: they stay in the array, for example
    /// ``numpy.memmap(path, mode="r")``, which processes share.
    ///
    /// ``data`` is a one-dimensional array of uint8 that is read-only and begins at a multiple of
    /// 64 bytes, as mapped files do. Nothing may write to its memory by another way.
    #[staticmethod]
    #[pyo3(signature = (data, dtype))]
    fn from_shared(data: &Bound<'_, PyUntypedArray>, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let view = private_view(data)?.into_any().cast_into::<PyArray1<u8>>()?;
        let dtype = PyArrayDescr::new(py, dtype)?;
        if view.getattr("flags")?.getattr("writeable")?.extract()? {
            let message = "packed weights: the array is writeable: call its setflags(write=False)";
            return Err(refusal(py, ErrorKind::InvalidPacked, message));
        }
        if !view.is_c_contiguous() {
            return Err(refusal(py, ErrorKind::InvalidPacked, "packed weights: the array is not contiguous"));
        }
        let owner = SharedBytes { begin: view.data(), len: view.len(), _view: view.unbind() };
        Self::load(&dtype, Source::Shared(owner), py)
    }

    /// The weights as bytes, to save them.
    ///
    /// They can be read on machines with the same instruction set and order of bytes, by the same
    /// version of convoke.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.weights.to_bytes()).map_err(|error| exception(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// For ``pickle`` and ``copy``: as ``to_bytes`` and ``from_bytes``.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (py, packed) = (slf.py(), slf.get());
        let arguments = (packed.to_bytes(py)?, packed.dtype.clone_ref(py)).into_pyobject(py)?;
        Ok((slf.get_type().getattr("from_bytes")?, arguments))
    }

    /// Bytes of memory that they take.
    #[getter]
    fn nbytes(&self) -> usize {
        self.weights.bytes()
    }

    /// The dtype of the layer.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> &Bound<'py, PyArrayDescr> {
        self.dtype.bind(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<convoke.PackedWeights of {}, {} bytes>", self.dtype.bind(py), self.nbytes())
    }
}

impl PackedWeights {
    /// A planner whose plans accept them.
    pub(crate) fn planner(&self, planner: &Planner) -> Planner {
        self.weights.planner(planner)
    }

    fn load(dtype: &Bound<'_, PyArrayDescr>, source: Source<'_>, py: Python<'_>) -> PyResult<Self> {
        let weights = match element_type(dtype)? {
            Some(DType::F32) => source.load::<f32>(py),
            Some(DType::F64) => source.load::<f64>(py),
            Some(DType::F16) => source.load::<f16>(py),
            Some(DType::BF16) => source.load::<bf16>(py),
            None => {
                let message = format!("packed weights: dtype {dtype}, {DTYPES}");
                return Err(refusal(py, ErrorKind::InvalidType, message));
            }
        };
        Ok(Self { weights: weights.map_err(|error| exception(py, &error))?, dtype: dtype.clone().unbind() })
    }
}

/// Where saved weights come from.
enum Source<'a> {
    Copied(&'a [u8]),
    Shared(SharedBytes),
}

impl Source<'_> {
    fn load<T: Element>(self, py: Python<'_>) -> Result<Box<dyn AnyPacked>, convoke::Error> {
        let load = || match self {
            Source::Copied(bytes) => convoke::PackedWeights::<T>::from_bytes(bytes),
            Source::Shared(bytes) => convoke::PackedWeights::<T>::from_shared(bytes),
        };
        Ok(Box::new(py.detach(load)?))
    }
}

/// The elements of a read-only array, and a view of it that nobody else has, which keeps them.
struct SharedBytes {
    begin: *const u8,
    len: usize,
    _view: Py<PyArray1<u8>>,
}

// SAFETY: the bytes are only read, by any thread, and the view's count of references is changed
// when a thread has Python's lock.
unsafe impl Send for SharedBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedBytes {}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: they are the elements of a contiguous view, which lives. numpy does not move or
        // free the memory of an array that has views, and the documentation of `from_shared` asks
        // that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.begin, self.len) }
    }
}

/// The arrays of a run.
struct Arrays<'a, 'py> {
    x: &'a Bound<'py, PyAny>,
    residual: Option<&'a Bound<'py, PyAny>>,
    out: Option<&'a Bound<'py, PyAny>>,
    /// Whether those that are read are copied, if they do not lie as they must.
    copies: bool,
}

/// The shape of X's array.
pub(crate) fn x_shape(geometry: &Geometry) -> Vec<usize> {
    in_layout(geometry.input_shape(), geometry.x_layout)
}

/// The shape of Y's array.
pub(crate) fn y_shape(geometry: &Geometry) -> Vec<usize> {
    in_layout(geometry.output_shape(), geometry.y_layout)
}

/// The elements of W and of the bias, which are copied if they do not lie as they must.
pub(crate) fn read_weights<'py, W: Number, B: Number>(
    geometry: &Geometry,
    w: &Bound<'py, PyAny>,
    b: Option<&Bound<'py, PyAny>>,
) -> PyResult<(PyReadonlyArrayDyn<'py, W>, Option<PyReadonlyArrayDyn<'py, B>>)> {
    let name = |tensor| Name { op: geometry.op, tensor, is_out: false };
    let w = Tensor::<W>::new(name("W"), w)?.of_shape(&geometry.weight_shape())?.or_copied()?;
    let b = b.map(|b| {
        let tensor = Tensor::<B>::new(name("B"), b)?;
        geometry.validate_bias(tensor.shape()).map_err(|error| exception(b.py(), &error))?;
        tensor.or_copied()
    });
    Ok((w.read()?, b.transpose()?.map(Tensor::read).transpose()?))
}

/// A plan of some element type.
trait AnyPlan: Send + Sync {
    fn geometry(&self) -> &Geometry;
    fn explanation(&self) -> &Explanation;
    fn accepts(&self, packed: &PackedWeights) -> bool;
    fn pack(&self, w: &Bound<'_, PyAny>, b: Option<&Bound<'_, PyAny>>) -> PyResult<Box<dyn AnyPacked>>;
    fn run<'py>(
        &self,
        arrays: &Arrays<'_, 'py>,
        packed: &PackedWeights,
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

impl<T: Number + Element> AnyPlan for convoke::Plan<T> {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }

    fn explanation(&self) -> &Explanation {
        self.explain()
    }

    fn accepts(&self, packed: &PackedWeights) -> bool {
        packed.of::<T>().is_some_and(|packed| self.accepts(packed).is_ok())
    }

    fn pack(&self, w: &Bound<'_, PyAny>, b: Option<&Bound<'_, PyAny>>) -> PyResult<Box<dyn AnyPacked>> {
        let py = w.py();
        let (w, b) = read_weights::<T, T>(self.geometry(), w, b)?;
        let (w, b) = (w.as_slice()?, b.as_ref().map(|b| b.as_slice()).transpose()?);
        let packed = py.detach(|| self.pack(w, b)).map_err(|error| exception(py, &error))?;
        Ok(Box::new(packed))
    }

    fn run<'py>(
        &self,
        arrays: &Arrays<'_, 'py>,
        packed: &PackedWeights,
        dtype: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, geometry) = (dtype.py(), self.geometry());
        let (op, output_shape, y_layout) = (geometry.op, y_shape(geometry), geometry.y_layout);
        let tensor = |name: Name, value, shape: &[usize], layout| {
            let tensor = Tensor::<T>::new(name, value)?.of_shape(shape)?.spanning_pixels(layout)?;
            if arrays.copies && !name.is_out { tensor.or_copied() } else { tensor.in_order() }
        };
        let [x, residual, out] =
            [("X", false), ("the residual", false), ("out", true)].map(|(tensor, is_out)| Name { op, tensor, is_out });
        let Some(packed) = packed.of::<T>() else {
            let (packed, needed) = (packed.dtype.bind(py), T::NAME);
            let message = format_args!("{op}: the weights were packed for dtype {packed}, the plan needs {needed}");
            return Err(refusal(py, ErrorKind::PackedMismatch, message));
        };
        let x = tensor(x, arrays.x, &x_shape(geometry), geometry.x_layout)?;
        let residual = arrays.residual.map(|array| tensor(residual, array, &output_shape, y_layout)).transpose()?;
        let y = match arrays.out {
            Some(array) => tensor(out, array, &output_shape, y_layout)?,
            None => empty(out, &output_shape, dtype)?,
        };
        y.apart_from(&x)?;
        let residual = residual.filter(|residual| !y.is_same_memory(residual));
        let in_place = arrays.residual.is_some() && residual.is_none();
        if let Some(residual) = &residual {
            y.apart_from(residual)?;
        }
        let [of_x, of_residual, of_y] =
            [Some(&x), residual.as_ref(), Some(&y)].map(|tensor| tensor.and_then(Tensor::pixel_stride));
        let (x_read, residual) = (x.read()?, residual.map(|residual| residual.read()).transpose()?);
        let (x, residual) = (x_read.as_slice()?, residual.as_ref().map(|residual| residual.as_slice()).transpose()?);
        let mut written = y.write()?;
        // The last check of a run comes before threads are started for it.
        self.accepts(packed).map_err(|error| exception(py, &error))?;
        let pool = Pooled::of(py, self)?;
        let run = match of_y {
            _ if in_place => Run::in_place(x, packed, written.as_slice_mut()?),
            Some(_) => Run::new(x, packed, written.as_slice_mut()?).residual(residual),
            None => Run::uninit(x, packed, uninit(&mut written)).residual(residual),
        };
        let run = run.x_pixel_stride(of_x).residual_pixel_stride(of_residual).y_pixel_stride(of_y);
        let result = py.detach(|| {
            with_workspace(self.workspace_bytes(), |workspace| {
                self.run(run.workspace(workspace).threads(pool.threads())).map(|_| ())
            })
        });
        result.map_err(|error| exception(py, &error))?;
        Ok(arrays.out.unwrap_or(y.array()).clone())
    }
}

/// Packed weights of some element type.
trait AnyPacked: Send + Sync {
    fn bytes(&self) -> usize;
    fn to_bytes(&self) -> Result<Vec<u8>, convoke::Error>;
    fn planner(&self, planner: &Planner) -> Planner;
    fn as_any(&self) -> &dyn Any;
}

impl<T: Element> AnyPacked for convoke::PackedWeights<T> {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn to_bytes(&self) -> Result<Vec<u8>, convoke::Error> {
        self.to_bytes()
    }

    fn planner(&self, planner: &Planner) -> Planner {
        planner.clone().packed_for(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PackedWeights {
    /// The weights, if they are of this element type.
    fn of<T: Element>(&self) -> Option<&convoke::PackedWeights<T>> {
        self.weights.as_any().downcast_ref()
    }
}

//! What is asked of numpy arrays before their elements are used.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use convoke::{DType, Element, ErrorKind, Layout, Op, bf16, f16};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES, PY_ARRAY_API};
use numpy::{
    BorrowError, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::errors::refusal;

/// How the message about a dtype ends.
pub(crate) const DTYPES: &str =
    "must be float32, float64, float16 or ml_dtypes.bfloat16, in the machine's order of bytes";

/// An element type of arrays.
pub(crate) trait Number: numpy::Element {
    /// numpy's name of it.
    const NAME: &'static str;

    /// Whether a dtype is this one, in this machine's order of bytes.
    fn is(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<bool>;
}

macro_rules! numbers {
    ($($type:ty => $name:literal),+: $is:expr) => {$(
        impl Number for $type {
            const NAME: &'static str = $name;

            fn is(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<bool> {
                let is: fn(&Bound<'_, PyArrayDescr>) -> PyResult<bool> = $is;
                is(dtype)
            }
        }
    )+};
}
numbers!(f32 => "float32", f64 => "float64", f16 => "float16", bf16 => "bfloat16": |dtype| {
    Ok(element_type(dtype)? == Some(Self::DTYPE))
});
numbers!(u8 => "uint8", i8 => "int8", i32 => "int32": |dtype| {
    Ok(dtype.is_equiv_to(&PyArrayDescr::of::<Self>(dtype.py())))
});

/// Which tensor an array is, in messages.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) op: Op,
    pub(crate) tensor: &'static str,
    /// Whether the array is for the result, which a converted copy would not show to the caller.
    pub(crate) is_out: bool,
}

impl Name {
    /// What to do about an array that cannot be used as it is: for one that is read, `otherwise`.
    fn advice(self, otherwise: &'static str) -> &'static str {
        if self.is_out {
            "a copy would lose the result: pass an array as numpy.empty(shape, dtype) makes it"
        } else {
            otherwise
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.tensor)
    }
}

/// A shape of ONNX's order, (N, C, D1, D2, ...), as arrays of a layout have it.
pub(crate) fn in_layout(mut shape: Vec<usize>, layout: Layout) -> Vec<usize> {
    if layout == Layout::ChannelsLast {
        shape[1..].rotate_left(1);
    }
    shape
}

/// The element type of a dtype, if the crate has it in this machine's order of bytes.
pub(crate) fn element_type(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Option<DType>> {
    if !matches!(dtype.byteorder(), b'=' | b'|') {
        return Ok(None);
    }
    let of = |number: NPY_TYPES| dtype.num() == number as i32;
    Ok(if of(NPY_TYPES::NPY_FLOAT) {
        Some(DType::F32)
    } else if of(NPY_TYPES::NPY_DOUBLE) {
        Some(DType::F64)
    } else if of(NPY_TYPES::NPY_HALF) {
        Some(DType::F16)
    } else if is_bfloat16(dtype)? {
        Some(DType::BF16)
    } else {
        None
    })
}

/// Whether a dtype is that of ml_dtypes. It is registered when that package is imported, so the
/// package is there if the dtype is.
fn is_bfloat16(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<bool> {
    static NUMBER: PyOnceLock<i32> = PyOnceLock::new();
    let py = dtype.py();
    if dtype.num() < NPY_TYPES::NPY_USERDEF as i32 || dtype.itemsize() != DType::BF16.bytes() {
        return Ok(false);
    }
    if let Some(number) = NUMBER.get(py) {
        return Ok(*number == dtype.num());
    }
    let modules = py.import("sys")?.getattr("modules")?;
    let Ok(module) = modules.get_item("ml_dtypes") else { return Ok(false) };
    let number = PyArrayDescr::new(py, module.getattr("bfloat16")?)?.num();
    Ok(*NUMBER.get_or_init(py, || number) == dtype.num())
}

/// A numpy array of the element type that a plan is for, of any layout.
///
/// It is a view that only this module has: another thread can change the shape of the caller's own
/// array in place, also while a run uses it.
pub(crate) struct Tensor<'py, T> {
    name: Name,
    array: Bound<'py, PyArrayDyn<T>>,
    /// If the array is all memory of pixels that are no neighbours: their distance, in elements.
    pixel_stride: Option<usize>,
}

impl<'py, T: Number> Tensor<'py, T> {
    /// # Errors
    /// `InvalidType` if it is no array, has a mask, or is of another element type.
    pub(crate) fn new(name: Name, value: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let refuse =
            |message: fmt::Arguments<'_>| Err(refusal(py, ErrorKind::InvalidType, format_args!("{name} {message}")));
        let Ok(array) = value.cast::<PyUntypedArray>() else {
            return refuse(format_args!("must be a numpy.ndarray, not {}", value.get_type().name()?));
        };
        if value.is_instance(masked_array(py)?)? {
            return refuse(format_args!(
                "has a mask, which would be ignored: {}",
                name.advice("pass its method filled()")
            ));
        }
        // Messages call methods of Python, which lets other threads run: from here on, only the
        // view is looked at.
        let view = private_view(array)?;
        let dtype = view.dtype();
        if !T::is(&dtype)? {
            let wanted = T::NAME;
            return refuse(format_args!(
                "is of dtype {}, the plan is for {wanted}: {}",
                dtype.str()?,
                name.advice("convert it by astype()")
            ));
        }
        // SAFETY: it is an array, whose elements are those of T in the machine's order of bytes.
        Ok(Self { name, array: unsafe { view.into_any().cast_into_unchecked() }, pixel_stride: None })
    }

    /// # Errors
    /// `InvalidShape` if the shape is another one.
    pub(crate) fn of_shape(self, wanted: &[usize]) -> PyResult<Self> {
        let shape = self.array.shape();
        if shape != wanted {
            let message = format_args!("{} has shape {shape:?}, must have {wanted:?}", self.name);
            return Err(refusal(self.array.py(), ErrorKind::InvalidShape, message));
        }
        Ok(self)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn array(&self) -> &Bound<'py, PyAny> {
        self.array.as_any()
    }

    /// Whether the elements lie in the order of the shape, at addresses that are multiples of
    /// their alignment.
    fn is_plain(&self) -> bool {
        self.array.is_c_contiguous() && self.array.is_aligned()
    }

    /// Whether it is one element whose strides are all zero, which is contiguous. The borrows of
    /// `numpy` would divide by a stride.
    fn is_broadcast_element(&self) -> bool {
        self.array.len() == 1 && self.array.strides().iter().all(|stride| *stride == 0)
    }

    pub(crate) fn pixel_stride(&self) -> Option<usize> {
        self.pixel_stride
    }

    /// The same array. If its channels are last, and are channels of a wider array: all memory from its first to
    /// its last element, which is then borrowed as a whole.
    pub(crate) fn spanning_pixels(self, layout: Layout) -> PyResult<Self> {
        if layout != Layout::ChannelsLast || self.array.is_c_contiguous() || !self.array.is_aligned() {
            return Ok(self);
        }
        let Some((stride, len)) = self.pixels_apart() else { return Ok(self) };
        let (name, py, mut len) = (self.name, self.array.py(), len as isize);
        // SAFETY: the memory is that of the array, from which the new one keeps it, and no more writeable. The
        // references to dtype and array are handed over.
        let array = unsafe {
            let (class, dtype) = (PyUntypedArray::type_object_raw(py), self.array.dtype().into_dtype_ptr());
            let flags = (*self.array.as_array_ptr()).fields.flags & NPY_ARRAY_WRITEABLE;
            let data = self.array.data().cast();
            let (strides, of) = (ptr::null_mut(), ptr::null_mut());
            let array = PY_ARRAY_API.PyArray_NewFromDescr(py, class, dtype, 1, &mut len, strides, data, flags, of);
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), self.array.into_ptr()) < 0 {
                return Err(PyErr::fetch(py));
            }
            array.cast_into_unchecked()
        };
        Ok(Self { name, array, pixel_stride: Some(stride) })
    }

    /// The distance of pixels and the elements from the first to the last one, if the channels of each are
    /// neighbours, and all pixels are equally far apart.
    fn pixels_apart(&self) -> Option<(usize, usize)> {
        let (shape, strides) = (self.array.shape(), self.array.strides());
        let ((channels, outer), size) = (shape.split_last()?, size_of::<T>() as isize);
        if *channels > 1 && *strides.last()? != size {
            return None;
        }
        let mut axes = outer.iter().zip(strides).rev().filter(|(len, _)| **len > 1);
        let (len, pixel) = axes.next()?;
        let mut next = pixel.checked_mul(*len as isize)?;
        for (len, stride) in axes {
            if *stride != next {
                return None;
            }
            next = next.checked_mul(*len as isize)?;
        }
        let stride = usize::try_from(pixel / size).ok().filter(|stride| pixel % size == 0 && stride >= channels)?;
        let before = outer.iter().product::<usize>().checked_sub(1)?;
        Some((stride, before.checked_mul(stride)?.checked_add(*channels)?))
    }

    /// # Errors
    /// `InvalidInput` if the elements do not lie in the order of the shape.
    pub(crate) fn in_order(self) -> PyResult<Self> {
        if !self.is_plain() {
            let advice = self.name.advice("pass numpy.require(array, requirements=\"CA\"), which copies it");
            let message = format_args!("{} is not C-contiguous and aligned: {advice}", self.name);
            return Err(refusal(self.array.py(), ErrorKind::InvalidInput, message));
        }
        Ok(self)
    }

    /// The same array, or a copy whose elements lie in the order of the shape.
    pub(crate) fn or_copied(self) -> PyResult<Self> {
        if self.is_plain() && !self.is_broadcast_element() {
            return Ok(self);
        }
        let copy = self.array.call_method1("copy", ("C",))?;
        Self::new(self.name, &copy)?.of_shape(self.array.shape())?.in_order()
    }

    /// The addresses of its elements.
    fn addresses(&self) -> Range<usize> {
        let begin = self.array.data().addr();
        begin..begin + self.array.len() * size_of::<T>()
    }

    /// Whether both are the same memory.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        self.addresses() == other.addresses()
    }

    /// # Errors
    /// `InvalidInput` if this array, which is written, shares memory with one that is read.
    pub(crate) fn apart_from<U: Number>(&self, read: &Tensor<'_, U>) -> PyResult<()> {
        let (own, other) = (self.addresses(), read.addresses());
        if own.start < other.end && other.start < own.end {
            let message = format_args!(
                "{} shares memory with {}, which is read while it is written",
                self.name, read.name.tensor
            );
            return Err(refusal(self.array.py(), ErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    /// Keeps others that use this mechanism from writing to the array.
    pub(crate) fn read(self) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
        let read = if self.is_broadcast_element() { self.or_copied()? } else { self };
        read.array.try_readonly().map_err(|error| read.refused(&error))
    }

    /// Keeps others that use this mechanism from reading and writing the array.
    pub(crate) fn write(&self) -> PyResult<PyReadwriteArrayDyn<'py, T>> {
        if self.is_broadcast_element() {
            let message = format_args!("{} is one element that is broadcast", self.name);
            return Err(refusal(self.array.py(), ErrorKind::InvalidInput, message));
        }
        self.array.try_readwrite().map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &BorrowError) -> PyErr {
        let reason = match error {
            BorrowError::NotWriteable => "is read-only",
            _ => "is in use by a run of another thread",
        };
        refusal(self.array.py(), ErrorKind::InvalidInput, format_args!("{} {reason}", self.name))
    }
}

/// A view of all of an array, as a plain `numpy.ndarray`, which only the caller has. Other threads
/// can change shape and dtype of an array in place, but not those of its views.
pub(crate) fn private_view<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    // SAFETY: it is an array. Null means its own dtype, and the class is that of plain arrays, so
    // that numpy makes an array, or sets an error.
    unsafe {
        let class = PyUntypedArray::type_object_raw(py);
        let view = PY_ARRAY_API.PyArray_View(py, array.as_array_ptr(), ptr::null_mut(), class);
        Ok(Bound::from_owned_ptr_or_err(py, view)?.cast_into_unchecked())
    }
}

/// A new array whose elements are not initialised.
pub(crate) fn empty<'py, T: Number>(
    name: Name,
    shape: &[usize],
    dtype: &Bound<'py, PyArrayDescr>,
) -> PyResult<Tensor<'py, T>> {
    let py = dtype.py();
    // Geometry checked that sizes fit an address.
    let mut dims: Vec<isize> = shape.iter().map(|size| *size as isize).collect();
    // SAFETY: the dimensions are as many as is said, and the reference to the dtype is handed over.
    let array = unsafe {
        let dtype = dtype.clone().into_dtype_ptr();
        let array = PY_ARRAY_API.PyArray_Empty(py, dims.len() as i32, dims.as_mut_ptr(), dtype, 0);
        Bound::from_owned_ptr_or_err(py, array)
    };
    // It has a limit of axes too.
    let array = array.map_err(|error| {
        let has_no_memory = error.is_instance_of::<PyMemoryError>(py);
        let kind = if has_no_memory { ErrorKind::OutOfMemory } else { ErrorKind::InvalidShape };
        let message = format_args!("{name} of shape {shape:?} cannot be made: {}", error.value(py));
        let refusal = refusal(py, kind, message);
        refusal.set_cause(py, Some(error));
        refusal
    })?;
    // SAFETY: numpy made an array of the dtype, which is that of T.
    Ok(Tensor { name, array: unsafe { array.cast_into_unchecked() }, pixel_stride: None })
}

/// The elements that a run writes, which need not be initialised.
pub(crate) fn uninit<'a, T: Number>(array: &'a mut PyReadwriteArrayDyn<'_, T>) -> &'a mut [MaybeUninit<T>] {
    let (data, len) = (array.data().cast::<MaybeUninit<T>>(), array.len());
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the array is contiguous and aligned, which `in_order` checked or `empty` made, and is
    // borrowed for writing while the slice lives.
    unsafe { std::slice::from_raw_parts_mut(data, len) }
}

fn masked_array(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "numpy.ma", "MaskedArray")
}

//! The crate's errors as Python's exceptions.

use std::fmt::Display;

use convoke::ErrorKind;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// The exception of an error of the crate, with its message.
pub(crate) fn exception(py: Python<'_>, error: &convoke::Error) -> PyErr {
    refusal(py, error.kind(), error)
}

/// An exception of a kind: for what the crate cannot see, such as the shape of an array.
pub(crate) fn refusal(py: Python<'_>, kind: ErrorKind, message: impl Display) -> PyErr {
    match class(py, kind) {
        Ok(class) => match class.call1((message.to_string(),)) {
            Ok(value) => PyErr::from_value(value),
            Err(error) => error,
        },
        Err(error) => error,
    }
}

/// The class of a kind, or that of all kinds if the package does not know it.
fn class(py: Python<'_>, kind: ErrorKind) -> PyResult<Bound<'_, PyAny>> {
    static BY_KIND: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let by_kind = BY_KIND.get_or_try_init(py, || {
        let classes = py.import("convoke._errors")?.getattr("BY_KIND")?;
        Ok::<_, PyErr>(classes.cast_into::<PyDict>()?.unbind())
    })?;
    match by_kind.bind(py).get_item(format!("{kind:?}"))? {
        Some(class) => Ok(class),
        None => py.import("convoke._errors")?.getattr("Error"),
    }
}

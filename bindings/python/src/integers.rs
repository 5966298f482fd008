//! Integers of Python, which have no limit there: those that do not fit are refused with the value
//! and the rule.

use convoke::ErrorKind;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::errors::refusal;

/// An integer from `least` to `most`; in the inner result, what it is and must be instead.
///
/// # Errors
/// `TypeError` if it is none.
pub(crate) fn in_range(
    name: &str,
    value: &Bound<'_, PyAny>,
    least: usize,
    most: usize,
) -> PyResult<Result<usize, String>> {
    let number = match value.extract::<i128>() {
        Ok(number) => usize::try_from(number).ok().filter(|number| (least..=most).contains(number)),
        Err(error) if is_overflow(&error, value) => None,
        Err(error) => return Err(named(name, &error, value)),
    };
    Ok(match number {
        Some(number) => Ok(number),
        None if most == usize::MAX => {
            Err(format!("{name} is {}, must be from {least} to 2**{} - 1", shown(value)?, usize::BITS))
        }
        None => Err(format!("{name} is {}, must be from {least} to {most}", shown(value)?)),
    })
}

/// Entries of a sequence, at most. More are a mistake, and memory for all of them would be
/// reserved before they are read.
const MOST_ENTRIES: usize = 1 << 12;

/// # Errors
/// One of this kind if the argument is a sequence of too many entries.
pub(crate) fn check_len(name: &str, value: &Bound<'_, PyAny>, kind: ErrorKind) -> PyResult<()> {
    match value.len() {
        Ok(len) if len > MOST_ENTRIES => {
            let message = format!("{name} has {len} entries, more than {MOST_ENTRIES}");
            Err(refusal(value.py(), kind, message))
        }
        _ => Ok(()),
    }
}

/// What was read of an argument: none if it is of another type.
///
/// # Errors
/// `SizeOverflowError` if it is or has an integer that does not fit.
pub(crate) fn fitting<T>(name: &str, value: &Bound<'_, PyAny>, read: PyResult<T>) -> PyResult<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if is_overflow(&error, value) => Err(too_large(name, value)?),
        Err(_) => Ok(None),
    }
}

/// The same for an argument that can only be of this type.
///
/// # Errors
/// The same; `TypeError` if it is of another type.
pub(crate) fn required<'py, T>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    check_len(name, value, ErrorKind::InvalidShape)?;
    match value.extract() {
        Ok(read) => Ok(read),
        Err(error) if is_overflow(&error, value) => Err(too_large(name, value)?),
        Err(error) => Err(named(name, &error, value)),
    }
}

fn is_overflow(error: &PyErr, value: &Bound<'_, PyAny>) -> bool {
    error.is_instance_of::<PyOverflowError>(value.py())
}

/// That the value, or one of its entries, does not fit.
fn too_large(name: &str, value: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let fits = |value: &Bound<'_, PyAny>| !value.extract::<i64>().is_err_and(|error| is_overflow(&error, value));
    let mut wrong = (name.to_owned(), value.clone());
    for (i, entry) in value.try_iter().into_iter().flatten().enumerate() {
        let entry = entry?;
        if !fits(&entry) {
            wrong = (format!("{name}[{i}]"), entry);
            break;
        }
    }
    let message = format!("{} is {}, must fit 64 bits", wrong.0, shown(&wrong.1)?);
    Ok(refusal(value.py(), ErrorKind::Overflow, message))
}

/// An integer as digits. Python refuses to print those of thousands of digits.
fn shown(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let bits: u64 = value.call_method0("__index__")?.call_method0("bit_length")?.extract()?;
    if bits > 256 { Ok(format!("an integer of {bits} bits")) } else { Ok(value.str()?.to_string()) }
}

/// An error of pyo3 with the argument's name.
fn named(name: &str, error: &PyErr, value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("{name}: {}", error.value(value.py())))
}

//! Pointers of onnxruntime's, each of which may be null: what is left out, what has no name, what
//! nobody reads, and lists without elements. All that this library gets are read by these functions.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use crate::failure::{Failure, Result};

/// A pointer to what may be left out.
pub(crate) fn optional<P>(raw: *const P) -> Option<NonNull<P>> {
    NonNull::new(raw.cast_mut())
}

/// A pointer to what is there always. An error names it if it is not.
pub(crate) fn required<P>(raw: *const P, what: &str) -> Result<NonNull<P>> {
    optional(raw).ok_or_else(|| Failure::other(format_args!("onnxruntime gave no {what}")))
}

/// Text, which is empty where there is none.
///
/// # Safety
/// Null, or a C string that lives for the call.
pub(crate) unsafe fn text(raw: *const c_char) -> String {
    // SAFETY: as promised.
    optional(raw).map_or_else(String::new, |raw| unsafe { CStr::from_ptr(raw.as_ptr()) }.to_string_lossy().into_owned())
}

/// The elements of a list.
///
/// # Safety
/// Null, or `count` elements that live for `'a`, which nobody changes.
pub(crate) unsafe fn list<'a, E>(first: *const E, count: usize, what: &str) -> Result<&'a [E]> {
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: as promised.
    Ok(unsafe { std::slice::from_raw_parts(required(first, what)?.as_ptr(), count) })
}

/// Takes back what `Box::into_raw` gave.
///
/// # Safety
/// Null, or from a box of this type that nobody else takes back.
pub(crate) unsafe fn take<P>(raw: *mut P) -> Option<Box<P>> {
    // SAFETY: as promised.
    optional(raw).map(|raw| unsafe { Box::from_raw(raw.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn null_is_nothing_or_an_error_that_names_it() {
        assert_eq!(optional(null::<u8>()), None);
        let failure = required(null::<u8>(), "node").unwrap_err();
        assert_eq!(failure.to_string(), "onnxruntime gave no node");
        // SAFETY: null is allowed everywhere.
        unsafe {
            assert_eq!(text(null()), "");
            assert_eq!(take(null_mut::<u8>()), None);
            assert_eq!(list(null::<u8>(), 0, "bytes").unwrap(), []);
            assert_eq!(list(null::<u8>(), 2, "bytes").unwrap_err().to_string(), "onnxruntime gave no bytes");
        }
    }

    #[test]
    fn what_is_there_is_read() {
        let bytes = [3_u8, 5];
        // SAFETY: all of it is there.
        unsafe {
            assert_eq!(text(c"a b".as_ptr()), "a b");
            assert_eq!(list(bytes.as_ptr(), 2, "bytes").unwrap(), bytes);
            assert_eq!(take(Box::into_raw(Box::new(7))), Some(Box::new(7)));
        }
        assert_eq!(required(&raw const bytes, "bytes").unwrap().as_ptr().cast_const(), &raw const bytes);
    }
}

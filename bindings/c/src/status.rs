//! What a call returns, and the reason of a failure.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use convoke::ErrorKind;

/// What a call returns. Later versions may add values.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The call did what it says.
    Ok = 0,
    /// A pointer is NULL or not aligned, or memory overlaps.
    InvalidPointer = 1,
    /// A value is none that this interface has: a `struct_size`, an enumeration, a text, a scale, a
    /// zero point. Or the function is not for such a plan.
    InvalidArgument = 2,
    /// The operator, its opset, or an attribute's name or type is not known.
    UnsupportedOperator = 3,
    /// An attribute's value or length breaks a rule of the operator, or it is given twice.
    InvalidAttribute = 4,
    /// The shapes of X, W, bias or Y do not fit each other or the attributes.
    InvalidShape = 5,
    /// The element type is not allowed in this opset.
    InvalidType = 6,
    /// A size does not fit the address space, or a computation with sizes overflows.
    Overflow = 7,
    /// The length of memory is not the one that is needed.
    BufferLength = 8,
    /// A plan needs more workspace than its limit allows, or than a run was given.
    Workspace = 9,
    /// A run has more threads than its plan was made for, or none.
    Threads = 10,
    /// Memory could not be allocated.
    OutOfMemory = 11,
    /// The packed weights are not those of the plan, or not for the layer that is planned, or do not
    /// serve it while others would: pack again.
    PackedMismatch = 12,
    /// A forced algorithm, ISA or number of threads is not available.
    Unavailable = 13,
    /// Bytes are not packed weights that can be used here.
    InvalidPacked = 14,
    /// An error of the library itself. Please report it.
    Internal = 15,
}

impl Status {
    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::UnsupportedOperator => Self::UnsupportedOperator,
            ErrorKind::InvalidAttribute => Self::InvalidAttribute,
            ErrorKind::InvalidShape => Self::InvalidShape,
            ErrorKind::InvalidType => Self::InvalidType,
            ErrorKind::Overflow => Self::Overflow,
            ErrorKind::BufferLength => Self::BufferLength,
            ErrorKind::Workspace => Self::Workspace,
            ErrorKind::Threads => Self::Threads,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::PackedMismatch => Self::PackedMismatch,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::InvalidPacked => Self::InvalidPacked,
            // Scales: whole nodes are not a part of this interface.
            ErrorKind::InvalidInput => Self::InvalidArgument,
            // Of tunings, which this interface does not have. The test
            // `every_kind_has_its_status` fails for a new kind.
            _ => Self::Internal,
        }
    }

    fn name(status: u32) -> &'static CStr {
        const NAMES: [(Status, &CStr); 16] = [
            (Status::Ok, c"CONVOKE_STATUS_OK"),
            (Status::InvalidPointer, c"CONVOKE_STATUS_INVALID_POINTER"),
            (Status::InvalidArgument, c"CONVOKE_STATUS_INVALID_ARGUMENT"),
            (Status::UnsupportedOperator, c"CONVOKE_STATUS_UNSUPPORTED_OPERATOR"),
            (Status::InvalidAttribute, c"CONVOKE_STATUS_INVALID_ATTRIBUTE"),
            (Status::InvalidShape, c"CONVOKE_STATUS_INVALID_SHAPE"),
            (Status::InvalidType, c"CONVOKE_STATUS_INVALID_TYPE"),
            (Status::Overflow, c"CONVOKE_STATUS_OVERFLOW"),
            (Status::BufferLength, c"CONVOKE_STATUS_BUFFER_LENGTH"),
            (Status::Workspace, c"CONVOKE_STATUS_WORKSPACE"),
            (Status::Threads, c"CONVOKE_STATUS_THREADS"),
            (Status::OutOfMemory, c"CONVOKE_STATUS_OUT_OF_MEMORY"),
            (Status::PackedMismatch, c"CONVOKE_STATUS_PACKED_MISMATCH"),
            (Status::Unavailable, c"CONVOKE_STATUS_UNAVAILABLE"),
            (Status::InvalidPacked, c"CONVOKE_STATUS_INVALID_PACKED"),
            (Status::Internal, c"CONVOKE_STATUS_INTERNAL"),
        ];
        let found = NAMES.into_iter().find(|(known, _)| *known as u32 == status);
        found.map_or(c"an unknown convoke_status", |(_, name)| name)
    }
}

/// What became of a call: the status that it returned, and its message.
///
/// It is a plain value of the caller, and needs no initialisation. Every function writes it, also
/// when it succeeds: the message is empty then.
#[repr(C)]
pub struct Error {
    /// What the call returned.
    pub status: Status,
    /// Bytes of the whole message, without a zero at its end. If there are more than `message`
    /// holds, the rest is cut off.
    pub length: usize,
    /// The reason, in English and UTF-8, with a zero at its end: operator, axis, value and rule,
    /// where the mistake has them.
    pub message: [c_char; 1024],
}

/// Bytes that a message has room for, with the zero at its end.
const MESSAGE_BYTES: usize = size_of::<Error>() - offset_of!(Error, message);

/// A status and a message.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    message: Cow<'static, str>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into() }
    }

    /// From what a panic carries.
    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        Self::new(Status::Internal, format!("internal error, please report it: {text}"))
    }
}

impl From<convoke::Error> for Failure {
    fn from(error: convoke::Error) -> Self {
        Self::new(Status::of(error.kind()), error.to_string())
    }
}

/// `Err(Failure)` of a status with a formatted message.
macro_rules! fail {
    ($status:ident, $($arg:tt)*) => {
        return Err($crate::status::Failure::new($crate::status::Status::$status, format!($($arg)*)))
    };
}
pub(crate) use fail;

/// Runs the body of a function of the interface. A failure or a panic becomes a status, and `error`
/// says why, unless it is null.
///
/// # Safety
/// `error` must be null, or point to memory of an [`Error`] that this call may write.
pub(crate) unsafe fn guard(error: *mut Error, body: impl FnOnce() -> Result<()>) -> Status {
    if !error.is_aligned() {
        return Status::InvalidPointer;
    }
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            if !error.is_null() {
                // SAFETY: the caller may have it written, and it is aligned.
                unsafe { clear(error) };
            }
            return Status::Ok;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::of_panic(&*panic),
    };
    if !error.is_null() {
        // SAFETY: the caller may have it written, and it is aligned.
        unsafe { report(error, &failure) };
    }
    failure.status
}

/// Writes that a call succeeded, with an empty message.
///
/// # Safety
/// `error` must point to aligned memory of an [`Error`] that this call may write.
unsafe fn clear(error: *mut Error) {
    // SAFETY: the fields are those of memory that may be written.
    unsafe {
        (&raw mut (*error).status).write(Status::Ok);
        (&raw mut (*error).length).write(0);
        (&raw mut (*error).message).cast::<u8>().write(0);
    }
}

/// Writes a status, and as much of its message as there is room for.
///
/// # Safety
/// `error` must point to aligned memory of an [`Error`] that this call may write.
#[cold]
unsafe fn report(error: *mut Error, Failure { status, message }: &Failure) {
    let room = message.len().min(MESSAGE_BYTES - 1);
    let copied = (0..=room).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    // SAFETY: the fields are those of memory that may be written. The message has more bytes than
    // are copied, one of them for the zero.
    unsafe {
        (&raw mut (*error).status).write(*status);
        (&raw mut (*error).length).write(message.len());
        let text = (&raw mut (*error).message).cast::<u8>();
        ptr::copy_nonoverlapping(message.as_ptr(), text, copied);
        text.add(copied).write(0);
    }
}

/// The name of a status, as `"CONVOKE_STATUS_OK"`: a text that lives as long as the process. For
/// any other number it says so.
#[unsafe(no_mangle)]
pub extern "C" fn convoke_status_name(status: u32) -> *const c_char {
    Status::name(status).as_ptr()
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    fn reported(body: impl FnOnce() -> Result<()>) -> (Status, usize, String) {
        let mut error = MaybeUninit::<Error>::uninit();
        // SAFETY: the memory may be written.
        let status = unsafe { guard(error.as_mut_ptr(), body) };
        let error = error.as_ptr();
        // SAFETY: `guard` has written the fields, and the message up to its zero.
        let (reported, length, text) =
            unsafe { ((*error).status, (*error).length, CStr::from_ptr((&raw const (*error).message).cast())) };
        assert_eq!(reported, status);
        (status, length, text.to_str().unwrap().into())
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let (status, _, message) = reported(|| panic!("number {}", 7));
        assert_eq!((status, message.as_str()), (Status::Internal, "internal error, please report it: number 7"));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { guard(ptr::null_mut(), || panic!("unheard")) }, Status::Internal);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let text = format!("{}\u{e9}\u{e9}", "x".repeat(MESSAGE_BYTES - 2));
        let (status, length, message) = reported(|| Err(Failure::new(Status::Workspace, text.clone())));
        assert_eq!((status, length), (Status::Workspace, text.len()));
        assert_eq!(message, "x".repeat(MESSAGE_BYTES - 2));
    }

    #[test]
    fn success_clears_the_message() {
        assert_eq!(reported(|| Ok(())), (Status::Ok, 0, String::new()));
    }

    /// The list is compared with the source, so that a new kind cannot be forgotten here.
    #[test]
    fn every_kind_has_its_status() {
        use ErrorKind as Kind;
        let kinds = [
            (Kind::UnsupportedOperator, Status::UnsupportedOperator),
            (Kind::InvalidAttribute, Status::InvalidAttribute),
            (Kind::InvalidShape, Status::InvalidShape),
            (Kind::InvalidType, Status::InvalidType),
            (Kind::InvalidInput, Status::InvalidArgument),
            (Kind::Overflow, Status::Overflow),
            (Kind::BufferLength, Status::BufferLength),
            (Kind::Workspace, Status::Workspace),
            (Kind::Threads, Status::Threads),
            (Kind::OutOfMemory, Status::OutOfMemory),
            (Kind::PackedMismatch, Status::PackedMismatch),
            (Kind::Unavailable, Status::Unavailable),
            (Kind::InvalidPacked, Status::InvalidPacked),
            (Kind::InvalidTuning, Status::Internal),
        ];
        for (kind, status) in kinds {
            assert_eq!(Status::of(kind), status, "{kind:?}");
        }
        let source = include_str!("../../../src/error.rs");
        let body = source.split_once("pub enum ErrorKind {").unwrap().1.split_once("\n}").unwrap().0;
        let lines = body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let variants: Vec<_> = lines.map(|line| line.trim_end_matches(',')).collect();
        assert_eq!(variants, kinds.map(|(kind, _)| format!("{kind:?}")));
    }

    #[test]
    fn a_misaligned_error_is_refused_before_anything_is_done() {
        // SAFETY: it is not aligned, and so not written.
        let status = unsafe { guard(ptr::without_provenance_mut(1), || unreachable!("the call must not be made")) };
        assert_eq!(status, Status::InvalidPointer);
    }
}

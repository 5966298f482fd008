//! The crate's one error type.

use alloc::string::String;
use core::fmt;

/// The kind of rule that a request broke. Later versions may add kinds.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The operator, its opset version, or an attribute's name or type is not known.
    UnsupportedOperator,
    /// An attribute's value or length breaks a rule of the operator.
    InvalidAttribute,
    /// The shapes of X, W, B or Y do not fit each other or the attributes.
    InvalidShape,
    /// The element type is not allowed in this opset, or the inputs' types differ.
    InvalidType,
    /// A required input is missing, or there are too many.
    InvalidInput,
    /// A size does not fit the address space, or a computation with sizes overflows.
    Overflow,
    /// A buffer's length is not that of its shape.
    BufferLength,
    /// A plan needs more workspace than the caller's limit allows, or than was given.
    Workspace,
    /// A run has more threads than its plan was made for, or none.
    Threads,
    /// Memory could not be allocated.
    OutOfMemory,
    /// The packed weights are not those of the plan, or not for the layer that is planned, or do not
    /// serve it while others would: pack again.
    PackedMismatch,
    /// A forced algorithm, ISA or number of threads is not available for this request.
    Unavailable,
    /// Bytes are not saved [`PackedWeights`](crate::PackedWeights) that can be used here.
    InvalidPacked,
    /// A text is not a saved [`Tuning`](crate::Tuning).
    InvalidTuning,
}

/// The error of this crate. It has a [`kind`](Error::kind), and a message that names operator,
/// axis, value and rule.
///
/// ```
/// use convoke::{Conv, ErrorKind, Planner};
///
/// let error = Planner::new().plan::<f32>(Conv::new([8, 3, 5, 5]), &[1, 3, 16, 4]).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidShape);
/// assert_eq!(
///     error.to_string(),
///     "Conv: spatial axis 1: padded input 4 (4 + pads 0 + 0) is smaller than the effective kernel 5 \
///      (kernel 5, dilation 1)"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The kind of rule that was broken.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for Error {}

/// `Err(Error)` of a kind with a formatted message.
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::error::Error::new($crate::error::ErrorKind::$kind, alloc::format!($($arg)*)))
    };
}
pub(crate) use bail;

//! What went wrong, for onnxruntime.

use std::any::Any;
use std::fmt;

use ort_sys::OrtErrorCode;

/// What a callback returns to onnxruntime if it fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: OrtErrorCode,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A mistake of the user.
    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self { code: OrtErrorCode::ORT_INVALID_ARGUMENT, message: message.to_string() }
    }

    /// Something else that went wrong.
    pub(crate) fn other(message: impl fmt::Display) -> Self {
        Self { code: OrtErrorCode::ORT_EP_FAIL, message: message.to_string() }
    }

    /// From what a panic carries.
    pub(crate) fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        Self::other(format_args!("internal error, please report it: {text}"))
    }

    /// The message begins with `what`.
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<convoke::Error> for Failure {
    fn from(error: convoke::Error) -> Self {
        match error.kind() {
            convoke::ErrorKind::OutOfMemory => Self::other(error),
            _ => Self::invalid(error),
        }
    }
}

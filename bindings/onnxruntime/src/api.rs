//! onnxruntime's functions, its statuses and its log.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ort_sys::{OrtApi, OrtErrorCode, OrtLogger, OrtLoggingLevel, OrtStatus, OrtStatusPtr, os_char};

use crate::abi::EpApi;
use crate::pointers::text;

pub(crate) use crate::failure::{Failure, Result};

/// The functions of the onnxruntime that loaded this library.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    pub(crate) ort: &'static OrtApi,
    pub(crate) ep: &'static EpApi,
    /// Whether this release can have layers in the graphs of branches and loops.
    pub(crate) fuses_in_branches: bool,
}

impl Api {
    /// Turns a status that one of onnxruntime's functions returned into a result.
    pub(crate) fn check(self, OrtStatusPtr(status): OrtStatusPtr) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a C enumeration is returned as an `i32`. A newer onnxruntime may return codes that
        // the Rust enumeration lacks.
        let code_of: unsafe extern "system" fn(*const OrtStatus) -> i32 =
            unsafe { std::mem::transmute(self.ort.GetErrorCode) };
        // SAFETY: a status that is not null is one of onnxruntime's, and this is its only use.
        let (code, message) = unsafe {
            let message = text((self.ort.GetErrorMessage)(status));
            let code = code_of(status);
            (self.ort.ReleaseStatus)(status);
            (code, message)
        };
        Err(Failure { code: error_code(code), message })
    }

    /// Runs a callback's body. A failure or a panic becomes a status.
    pub(crate) fn guard(self, body: impl FnOnce() -> Result<()>) -> OrtStatusPtr {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => OrtStatusPtr(null_mut()),
            Ok(Err(failure)) => status(self.ort, &failure),
            Err(panic) => status(self.ort, &Failure::of_panic(&*panic)),
        }
    }
}

/// The code of a failure by its number. One that this build does not know is a failure of no
/// particular kind.
fn error_code(number: i32) -> OrtErrorCode {
    use OrtErrorCode::{
        ORT_ENGINE_ERROR, ORT_EP_FAIL, ORT_FAIL, ORT_INVALID_ARGUMENT, ORT_INVALID_GRAPH, ORT_INVALID_PROTOBUF,
        ORT_MODEL_LOADED, ORT_NO_MODEL, ORT_NO_SUCHFILE, ORT_NOT_IMPLEMENTED, ORT_RUNTIME_EXCEPTION,
    };
    let known = [
        ORT_INVALID_ARGUMENT,
        ORT_NO_SUCHFILE,
        ORT_NO_MODEL,
        ORT_ENGINE_ERROR,
        ORT_RUNTIME_EXCEPTION,
        ORT_INVALID_PROTOBUF,
        ORT_MODEL_LOADED,
        ORT_NOT_IMPLEMENTED,
        ORT_INVALID_GRAPH,
        ORT_EP_FAIL,
    ];
    known.into_iter().find(|code| *code as i32 == number).unwrap_or(ORT_FAIL)
}

/// A status for onnxruntime. Its message says who speaks.
pub(crate) fn status(ort: &OrtApi, failure: &Failure) -> OrtStatusPtr {
    let message = c_string(&format!("convoke: {failure}"));
    // SAFETY: the message is a C string; onnxruntime copies it.
    unsafe { (ort.CreateStatus)(failure.code, message.as_ptr()) }
}

/// Locks, also after a panic of another holder: what is guarded here is whole between any two
/// statements.
pub(crate) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a C string, which ends at the first zero.
pub(crate) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).expect("no zero is left")
}

/// How much is logged. The order is that of onnxruntime's severities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Verbose,
    Info,
    Warning,
    Error,
}

impl Level {
    pub(crate) const ALL: [(&'static str, Self); 4] =
        [("verbose", Self::Verbose), ("info", Self::Info), ("warning", Self::Warning), ("error", Self::Error)];
}

/// onnxruntime's severities by their numbers, which levels have, too.
const SEVERITIES: [OrtLoggingLevel; 5] = [
    OrtLoggingLevel::ORT_LOGGING_LEVEL_VERBOSE,
    OrtLoggingLevel::ORT_LOGGING_LEVEL_INFO,
    OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING,
    OrtLoggingLevel::ORT_LOGGING_LEVEL_ERROR,
    OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL,
];

/// The log of a session.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    api: Api,
    logger: NonNull<OrtLogger>,
    /// What the user asked to see, if he did.
    level: Option<Level>,
}

// SAFETY: onnxruntime's loggers may be used by any thread.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    /// # Safety
    /// The logger must be that of a session, which outlives the log and its copies.
    pub(crate) unsafe fn new(api: Api, logger: NonNull<OrtLogger>, level: Option<Level>) -> Self {
        Self { api, logger, level }
    }

    /// Whether a message is seen, and the number of the severity that it is logged with.
    ///
    /// onnxruntime hides what is below its own level. What the user asked for by the option
    /// `log_level` is therefore logged with onnxruntime's level at least.
    fn severity(self, level: Level) -> Option<usize> {
        if self.level.is_some_and(|asked| level < asked) {
            return None;
        }
        let mut least = 0_i32;
        // SAFETY: the session's logger lives, says `new`, and an `i32` has room for the C enumeration.
        let known =
            unsafe { (self.api.ort.Logger_GetLoggingSeverityLevel)(self.logger.as_ptr(), (&raw mut least).cast()) };
        self.api.check(known).ok()?;
        let severity = (level as usize).max(usize::try_from(least).unwrap_or(0));
        (self.level.is_some() || severity == level as usize).then_some(severity)
    }

    /// Whether messages of a level are seen.
    pub(crate) fn shows(self, level: Level) -> bool {
        self.severity(level).is_some()
    }

    /// Logs a message, whose text is made only if it is seen. It says its level if it is logged with
    /// another severity.
    pub(crate) fn write(self, level: Level, text: impl FnOnce() -> String) {
        let Some(number) = self.severity(level) else { return };
        let severity = SEVERITIES[number.min(SEVERITIES.len() - 1)];
        let (name, _) = Level::ALL[level as usize];
        let of_level = if number == level as usize { String::new() } else { format!(" ({name})") };
        let text = c_string(&format!("convoke{of_level}: {}", text()));
        let file = b"convoke\0".map(|c| c as os_char);
        // SAFETY: the logger lives, and the texts are C strings, which onnxruntime copies.
        let status = unsafe {
            let (logger, function) = (self.logger.as_ptr(), c"".as_ptr());
            (self.api.ort.Logger_LogMessage)(logger, severity, text.as_ptr(), file.as_ptr(), 0, function)
        };
        // There is nowhere to tell it.
        _ = self.api.check(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_are_not_known_are_failures() {
        assert_eq!([1, 2, 11].map(|code| error_code(code) as i32), [1, 2, 11]);
        assert_eq!([0, 12, 99, -1].map(error_code), [OrtErrorCode::ORT_FAIL; 4]);
    }
}

//! The threads of a run: onnxruntime's own intra-op pool.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use convoke::Executor;
use ort_sys::OrtKernelContext;

use crate::api::Api;

/// onnxruntime's intra-op pool, as long as a node runs.
pub(crate) struct Pool {
    api: Api,
    context: NonNull<OrtKernelContext>,
    width: usize,
}

// SAFETY: the context is only handed to `KernelContext_ParallelFor`, which may be called by any
// thread.
unsafe impl Sync for Pool {}

impl Pool {
    /// # Safety
    /// The context must be that of a run, which outlives the pool.
    pub(crate) unsafe fn new(api: Api, context: NonNull<OrtKernelContext>, width: usize) -> Self {
        Self { api, context, width }
    }
}

impl Executor for Pool {
    fn width(&self) -> usize {
        self.width
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        struct Call<'a> {
            call: &'a (dyn Fn(usize) + Sync),
            has_panicked: AtomicBool,
        }
        /// # Safety
        /// `data` must be a [`Call`].
        unsafe extern "system" fn make(data: *mut c_void, i: usize) {
            // SAFETY: `for_each` hands on its own.
            let Call { call, has_panicked } = unsafe { &*data.cast::<Call<'_>>() };
            // A panic must not unwind into onnxruntime.
            if catch_unwind(AssertUnwindSafe(|| call(i))).is_err() {
                has_panicked.store(true, Ordering::Relaxed);
            }
        }
        let mut data = Call { call, has_panicked: AtomicBool::new(false) };
        // SAFETY: the context lives, and `data` lives until `ParallelFor` returns.
        let status = unsafe {
            let data = (&raw mut data).cast();
            (self.api.ort.KernelContext_ParallelFor)(self.context.as_ptr(), make, count, count, data)
        };
        if let Err(failure) = self.api.check(status) {
            panic!("onnxruntime's thread pool: {failure}");
        }
        // All calls have ended, so their stores are seen.
        assert!(!data.has_panicked.into_inner(), "a task of a run panicked");
    }
}

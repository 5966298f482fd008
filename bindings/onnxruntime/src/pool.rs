//! The threads of a run: onnxruntime's own intra-op pool.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

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
        struct Call<'a>(&'a (dyn Fn(usize) + Sync));
        /// # Safety
        /// `data` must be a [`Call`].
        unsafe extern "system" fn make(data: *mut c_void, i: usize) {
            // SAFETY: `for_each` hands on its own.
            let Call(call) = unsafe { &*data.cast::<Call<'_>>() };
            // A panic must not unwind into onnxruntime. The run misses the tasks of the call, and
            // panics itself.
            _ = catch_unwind(AssertUnwindSafe(|| call(i)));
        }
        let mut data = Call(call);
        // SAFETY: the context lives, and `data` lives until `ParallelFor` returns.
        let status = unsafe {
            let data = (&raw mut data).cast();
            (self.api.ort.KernelContext_ParallelFor)(self.context.as_ptr(), make, count, count, data)
        };
        if let Err(failure) = self.api.check(status) {
            panic!("onnxruntime's thread pool: {failure}");
        }
    }
}

//! The caller's threads.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use convoke::Threads;

use crate::pointers::{self, Versioned};
use crate::status::{Result, fail};

/// A part of a run, number `index`. It never throws.
pub type Task = unsafe extern "C" fn(task_context: *mut c_void, index: usize);

/// A pool of threads of the caller: an engine's own one, pthreadpool, a loop of OpenMP.
///
/// A run asks for at most `width` calls at once. Each call takes parts of the work until none is
/// left, so the calls should begin at about the same time. They may also be made one after the
/// other, or in part: the result is the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Executor {
    /// sizeof(convoke_executor).
    pub struct_size: usize,
    /// What `parallel_for` is given as its first argument. The library does not look at it.
    pub context: *mut c_void,
    /// The number of threads that work at the same time, at least 1. The calling thread is one of
    /// them if it does not only wait.
    pub width: usize,
    /// Makes the calls `task(task_context, 0)` to `task(task_context, count - 1)`, on any threads,
    /// and returns when all of them have returned. It must not throw, and must not call `task`
    /// later.
    pub parallel_for:
        Option<unsafe extern "C" fn(context: *mut c_void, task: Task, task_context: *mut c_void, count: usize)>,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for Executor {
    const NAME: &'static str = "convoke_executor";
    const FIRST_BYTES: usize = offset_of!(Self, parallel_for) + size_of::<Option<ParallelFor>>();
}

/// The function of an [`Executor`].
type ParallelFor = unsafe extern "C" fn(*mut c_void, Task, *mut c_void, usize);

/// The caller's threads, for a run.
pub(crate) struct Pool {
    context: *mut c_void,
    width: usize,
    parallel_for: ParallelFor,
    /// Whether the executor has returned without a call.
    made_no_call: AtomicBool,
}

// SAFETY: the context is only handed to the caller's own function.
unsafe impl Sync for Pool {}

impl Pool {
    /// # Safety
    /// The pointer must be null, or one to an executor whose function does what its type says.
    unsafe fn new(executor: *const Executor) -> Result<Self> {
        let mut room = MaybeUninit::uninit();
        // SAFETY: the same.
        let Executor { context, width, parallel_for, .. } = *unsafe { pointers::sized(executor, &mut room)? };
        let Some(parallel_for) = parallel_for else {
            fail!(InvalidPointer, "parallel_for of convoke_executor is NULL");
        };
        Ok(Self { context, width, parallel_for, made_no_call: AtomicBool::new(false) })
    }

    /// # Errors
    /// If the executor has made no call. The run is complete all the same.
    fn check(&self) -> Result<()> {
        if self.made_no_call.load(Ordering::Relaxed) {
            fail!(Threads, "parallel_for of convoke_executor has returned without having called its task");
        }
        Ok(())
    }
}

/// Runs on the threads of an executor, or on the calling thread for null.
///
/// # Safety
/// As [`Pool::new`].
#[inline]
pub(crate) unsafe fn on_threads(executor: *const Executor, run: impl FnOnce(Threads<'_>) -> Result<()>) -> Result<()> {
    if executor.is_null() {
        return run(Threads::Serial);
    }
    // SAFETY: the same.
    let pool = unsafe { Pool::new(executor)? };
    run(Threads::Executor(&pool))?;
    pool.check()
}

impl convoke::Executor for Pool {
    fn width(&self) -> usize {
        self.width
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        struct Calls<'a> {
            call: &'a (dyn Fn(usize) + Sync),
            begun: AtomicUsize,
        }
        /// # Safety
        /// `calls` must be null or [`Calls`].
        unsafe extern "C" fn task(calls: *mut c_void, index: usize) {
            // SAFETY: `for_each` hands on its own, which live until all calls have returned.
            let Some(calls) = (unsafe { calls.cast_const().cast::<Calls<'_>>().as_ref() }) else { return };
            calls.begun.fetch_add(1, Ordering::Relaxed);
            // A panic must not unwind into the caller's threads. The run then misses parts, and
            // panics itself.
            _ = catch_unwind(AssertUnwindSafe(|| (calls.call)(index)));
        }
        let calls = Calls { call, begun: AtomicUsize::new(0) };
        // SAFETY: the function does what its type says. It may call `task` with these calls, which
        // live until it has returned.
        unsafe { (self.parallel_for)(self.context, task, (&raw const calls).cast_mut().cast(), count) };
        // Parts would be missing, which is a panic.
        if calls.begun.load(Ordering::Relaxed) == 0 {
            self.made_no_call.store(true, Ordering::Relaxed);
            call(0);
        }
    }
}

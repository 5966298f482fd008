//! A run through the C interface allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

use convoke_capi::{Error, Executor, Status, Task, convoke_plan_run};

mod layer;

use layer::{Layer, ok};

/// Counts the allocations of each thread: that of the test harness allocates when it likes.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

unsafe extern "C" fn one_by_one(_: *mut c_void, task: Task, task_context: *mut c_void, count: usize) {
    for index in 0..count {
        // SAFETY: the call is one of the loop.
        unsafe { task(task_context, index) };
    }
}

/// The executor makes its calls on the same thread.
#[test]
fn runs_allocate_nothing() {
    let mut layer = Layer::new(32, 28, 3);
    let executor =
        Executor { struct_size: size_of::<Executor>(), context: null_mut(), width: 3, parallel_for: Some(one_by_one) };
    let mut error = std::mem::MaybeUninit::<Error>::uninit();
    for executor in [None, Some(&executor)] {
        let mut args = layer.args(executor);
        let before = ALLOCATIONS.get();
        for _ in 0..3 {
            // SAFETY: the layer's plan and memory.
            ok(unsafe { convoke_plan_run(layer.plan, &args, error.as_mut_ptr()) });
        }
        assert_eq!(ALLOCATIONS.get(), before);
        args.workspace_bytes = 0;
        // SAFETY: the same.
        let status = unsafe { convoke_plan_run(layer.plan, &args, error.as_mut_ptr()) };
        assert_eq!(status, Status::Workspace);
        assert!(ALLOCATIONS.get() > before, "the message of an error is counted");
    }
    assert!((layer.y[0] - 16.0).abs() < 1e-3, "{}", layer.y[0]);
}

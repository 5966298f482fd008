//! A run through the C interface allocates nothing.

use std::alloc::{self, GlobalAlloc, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use convoke_capi::*;

mod layer;

use layer::{Elements, FLOAT, Layer, Type, ok};

/// Counts the allocations of each thread: that of the test harness allocates when it likes.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: alloc::Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: alloc::Layout) {
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

/// The bits of numbers in each type, as C has them.
const TYPES: [Type; 4] = [
    FLOAT,
    Type { dtype: DType::Double, half: &0.5_f64.to_ne_bytes(), quarter: &0.25_f64.to_ne_bytes() },
    Type { dtype: DType::Float16, half: &0x3800_u16.to_ne_bytes(), quarter: &0x3400_u16.to_ne_bytes() },
    Type { dtype: DType::Bfloat16, half: &0x3f00_u16.to_ne_bytes(), quarter: &0x3e80_u16.to_ne_bytes() },
];

/// An element of its bits.
fn value(Type { dtype, .. }: Type, bits: &[u8]) -> f64 {
    match dtype {
        DType::Float => f64::from(f32::from_ne_bytes(bits.try_into().unwrap())),
        DType::Double => f64::from_ne_bytes(bits.try_into().unwrap()),
        DType::Float16 => convoke::f16::from_bits(u16::from_ne_bytes(bits.try_into().unwrap())).to_f64(),
        DType::Bfloat16 => convoke::bf16::from_bits(u16::from_ne_bytes(bits.try_into().unwrap())).to_f64(),
        other => unreachable!("no layer of {other:?}"),
    }
}

/// What a run has beside X, weights and Y.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    Plain,
    Residual,
    InPlace,
}

/// Runs a layer, and returns by how much the count of allocations grew.
fn allocations_of(layer: &Layer, args: &RunArgs) -> usize {
    let mut error = std::mem::MaybeUninit::<Error>::uninit();
    let before = ALLOCATIONS.get();
    // SAFETY: the layer's plan and memory.
    ok(unsafe { convoke_plan_run(layer.plan, args, error.as_mut_ptr()) });
    ALLOCATIONS.get() - before
}

/// The executor makes its calls on the same thread.
fn executor() -> Executor {
    Executor { struct_size: size_of::<Executor>(), context: null_mut(), width: 3, parallel_for: Some(one_by_one) }
}

/// Every type, with a residual of its own, with Y as the residual, and images a stride apart.
#[test]
fn runs_allocate_nothing() {
    let executor = executor();
    for of in TYPES {
        for case in [Case::Plain, Case::Residual, Case::InPlace] {
            for (images, executor) in [(1, None), (1, Some(&executor)), (2, None), (2, Some(&executor))] {
                let mut layer = Layer::new(of, images, 32, 28, 3);
                let residual = Elements::new(2 * layer.info.y_len, of.half);
                let mut args = layer.args(executor);
                if images > 1 {
                    let apart = |len: usize| len / images + 3;
                    (args.x_image_stride, args.y_image_stride) = (apart(args.x_len), apart(args.y_len));
                    args.residual_image_stride = args.y_image_stride;
                    (args.x_len, args.y_len) = (2 * args.x_len, 2 * args.y_len);
                }
                // Y's first element: 32 channels of 4 taps, and what is added.
                let added = match case {
                    Case::Plain => 0.0,
                    Case::Residual => {
                        (args.residual, args.residual_len) = (residual.pointer(), args.y_len);
                        0.5
                    }
                    Case::InPlace => {
                        (args.residual, args.residual_len) = (args.y.cast_const(), args.y_len);
                        0.5
                    }
                };
                assert_eq!(allocations_of(&layer, &args), 0, "{:?} {case:?} {images}", of.dtype);
                let y = value(of, layer.y.first(of.half.len()));
                assert!((y - 16.0 - added).abs() < 1e-3, "{:?} {case:?} {images}: {y}", of.dtype);
            }
        }
    }
}

#[test]
fn quantised_runs_allocate_nothing() {
    let executor = executor();
    let (uint8, int8) = (DType::Uint8 as u32, DType::Int8 as u32);
    let (dtypes, x_dims) = (QuantisedDTypes { x: uint8, w: int8, y: uint8 }, [1, 32, 28, 28]);
    let (mut op, mut plan, mut weights, mut scaled) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: all bytes zero are values of these structs.
    let (mut options, mut info, mut pack, mut args) = unsafe {
        (zeroed::<PlanOptions>(), zeroed::<PlanInfo>(), zeroed::<QuantisedPackArgs>(), zeroed::<QuantisedRunArgs>())
    };
    (options.struct_size, options.threads) = (size_of::<PlanOptions>(), executor.width);
    info.struct_size = size_of::<PlanInfo>();
    (pack.struct_size, args.struct_size) = (size_of::<QuantisedPackArgs>(), size_of::<QuantisedRunArgs>());
    // SAFETY: all pointers are to values of the right types, and live as long as they are used.
    unsafe {
        ok(convoke_operator_create(c"Conv".as_ptr(), 22, [32, 32, 3, 3].as_ptr(), 4, &mut op, null_mut()));
        ok(convoke_plan_create_quantised(op, &options, &dtypes, x_dims.as_ptr(), 4, &mut plan, null_mut()));
        ok(convoke_plan_get_info(plan, &mut info, null_mut()));
        let (w, w_scale) = (Elements::new(info.w_len, &[1]), 1.0);
        (pack.w, pack.w_len) = (w.pointer(), info.w_len);
        ok(convoke_plan_pack_quantised(plan, &pack, &mut weights, null_mut()));
        let (x_scale, y_scale, x_zero_point, y_zero_point) = (1.0, 16.0, 0, 5);
        let (struct_size, w_scale, w_scale_len) = (size_of::<Scales>(), &raw const w_scale, 1);
        let y_table = null();
        let scales =
            Scales { struct_size, w_scale, w_scale_len, x_scale, y_scale, x_zero_point, y_zero_point, y_table };
        ok(convoke_plan_scale_quantised(plan, weights, &scales, &mut scaled, null_mut()));
        let x = Elements::new(info.x_len, &[2]);
        (args.x, args.x_len, args.weights, args.scaled) = (x.pointer(), info.x_len, weights, scaled);
        let mut workspace = Elements::new(info.workspace_bytes, &[0]);
        (args.workspace, args.workspace_bytes) = (workspace.pointer_mut(), info.workspace_bytes);
        for executor in [null(), &raw const executor] {
            let mut y = Elements::new(info.y_len, &[0]);
            (args.y, args.y_len, args.executor) = (y.pointer_mut(), info.y_len, executor);
            let before = ALLOCATIONS.get();
            ok(convoke_plan_run_quantised(plan, &args, null_mut()));
            assert_eq!(ALLOCATIONS.get() - before, 0);
            // 32 channels of 9 taps.
            assert_eq!(y.first(1), [5 + 36]);
        }
        convoke_scaled_destroy(scaled);
        convoke_quantised_weights_destroy(weights);
        convoke_plan_destroy(plan);
        convoke_operator_destroy(op);
    }
}

#[test]
fn the_message_of_an_error_is_counted() {
    let mut layer = Layer::new(FLOAT, 1, 32, 28, 3);
    let mut args = layer.args(None);
    args.workspace_bytes = 0;
    let mut error = std::mem::MaybeUninit::<Error>::uninit();
    let before = ALLOCATIONS.get();
    // SAFETY: the layer's plan and memory.
    let status = unsafe { convoke_plan_run(layer.plan, &args, error.as_mut_ptr()) };
    assert_eq!(status, Status::Workspace);
    assert!(ALLOCATIONS.get() > before);
}

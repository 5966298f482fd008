//! convoke without std. This program has its own allocator and panic handler. It runs both
//! operators with every algorithm, ISA and element type, and checks each result. It cannot be
//! compiled with std, which would bring a second panic handler. The C runtime calls its `main`. A
//! wrong result panics, which aborts with a message.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_char, c_int, c_void};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use convoke::{
    Algorithm, Conv, ConvTranspose, Element, ErrorKind, Isa, Operator, Planner, QuantisedRun, Run, Scales, Workspace,
    bf16, f16,
};

/// A layer of ones or small numbers, and its result from ONNX's documentation of the operators.
struct Case {
    operator: Operator,
    x_shape: &'static [usize],
    w: &'static [f32],
    y: &'static [f32],
}

/// The layers. X is 0, 1, 2 and so on in all of them.
fn cases() -> [Case; 5] {
    [
        Case {
            operator: Conv::new([1, 1, 3, 3]).pads([1, 1, 1, 1]).into(),
            x_shape: &[1, 1, 5, 5],
            w: &[1.0; 9],
            y: &[
                12.0, 21.0, 27.0, 33.0, 24.0, 33.0, 54.0, 63.0, 72.0, 51.0, 63.0, 99.0, 108.0, 117.0, 81.0, 93.0,
                144.0, 153.0, 162.0, 111.0, 72.0, 111.0, 117.0, 123.0, 84.0,
            ],
        },
        Case {
            operator: Conv::new([2, 2, 1]).into(),
            x_shape: &[1, 2, 3],
            w: &[1.0, 10.0, -1.0, 0.5],
            y: &[30.0, 41.0, 52.0, 1.5, 1.0, 0.5],
        },
        // The kernel covers X.
        Case {
            operator: Conv::new([2, 1, 3]).into(),
            x_shape: &[2, 1, 3],
            w: &[1.0, 10.0, -1.0, 1.0, 0.5, 2.0],
            y: &[8.0, 4.5, 38.0, 15.0],
        },
        Case {
            operator: ConvTranspose::new([1, 2, 3, 3]).into(),
            x_shape: &[1, 1, 3, 3],
            w: &[1.0; 18],
            y: &[
                0.0, 1.0, 3.0, 3.0, 2.0, 3.0, 8.0, 15.0, 12.0, 7.0, 9.0, 21.0, 36.0, 27.0, 15.0, 9.0, 20.0, 33.0, 24.0,
                13.0, 6.0, 13.0, 21.0, 15.0, 8.0, 0.0, 1.0, 3.0, 3.0, 2.0, 3.0, 8.0, 15.0, 12.0, 7.0, 9.0, 21.0, 36.0,
                27.0, 15.0, 9.0, 20.0, 33.0, 24.0, 13.0, 6.0, 13.0, 21.0, 15.0, 8.0,
            ],
        },
        Case {
            operator: ConvTranspose::new([1, 1, 4]).strides([2]).into(),
            x_shape: &[1, 1, 5],
            w: &[1.0, 2.0, 3.0, 4.0],
            y: &[0.0, 0.0, 1.0, 2.0, 5.0, 8.0, 9.0, 14.0, 13.0, 20.0, 12.0, 16.0],
        },
    ]
}

/// Runs every case with every ISA and algorithm in one element type. Returns the number of runs.
fn run_all<T: Element>() -> usize {
    let mut runs = 0;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for algorithm in Algorithm::all() {
            let ran = cases().iter().filter(|case| run::<T>(case, isa, algorithm)).count();
            let is_built = !["im2col:gemm", "col2im:gemm"].contains(&algorithm.name());
            assert!(ran > 0 || !is_built, "{algorithm} on {isa}, {}: accepts no layer", T::DTYPE);
            runs += ran;
        }
    }
    runs
}

/// Runs one case and checks its result. Returns whether the algorithm accepts the layer.
fn run<T: Element>(case: &Case, isa: Isa, algorithm: Algorithm) -> bool {
    let store = |values: &[f32]| values.iter().map(|v| T::round_from_f64(f64::from(*v))).collect::<Vec<T>>();
    let planner = Planner::new().isa(isa).algorithm(algorithm);
    let plan = match planner.plan::<T>(case.operator.clone(), case.x_shape) {
        Ok(plan) => plan,
        Err(error) if error.kind() == ErrorKind::Unavailable => return false,
        Err(error) => panic!("{algorithm} on {isa}, {}: {error}", T::DTYPE),
    };
    let mut x = vec![0.0; case.x_shape.iter().product()];
    for i in 1..x.len() {
        x[i] = x[i - 1] + 1.0;
    }
    let packed = plan.pack(&store(case.w), None).unwrap();
    let mut workspace = Workspace::for_plan(&plan).unwrap();
    let mut y = vec![T::default(); plan.geometry().output_len()];
    plan.run(Run::new(&store(&x), &packed, &mut y).workspace(&mut workspace)).unwrap();
    assert_eq!(y.len(), case.y.len());
    for (i, (y, expected)) in y.iter().zip(case.y).enumerate() {
        // All sums are exact except Winograd's.
        let difference = (convoke_kernels::Real::to_f64(y.to_acc()) - f64::from(*expected)).abs();
        assert!(difference < 1e-3, "{algorithm} on {isa}, {}: element {i} is {y:?}, expected {expected}", T::DTYPE);
    }
    true
}

/// Runs layers of bytes with every ISA: a dense one, and a depthwise one of two channels. Returns the number of runs.
fn run_bytes() -> usize {
    let scales = Scales { x_scale: 0.5, x_zero_point: 10, w_scale: &[0.25], y_scale: 0.5, y_zero_point: 100 };
    let mut runs = 0;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for group in [1, 2] {
            let conv = Conv::new([group, 1, 2]).group(group as i64);
            let plan = Planner::new().isa(isa).plan_quantised::<u8, i8, u8>(conv, &[1, group, 4]).unwrap();
            let weights = plan.pack(&[2, -1].repeat(group), &[], None).unwrap();
            let scaled = weights.scaled(&scales).unwrap();
            let x = [10, 20, 30, 50].repeat(group);
            let mut y = vec![0; 3 * group];
            plan.run(QuantisedRun::new(&x, &weights, &scaled, &mut y)).unwrap();
            assert_eq!(y, [98, 100, 100].repeat(group), "bytes on {isa}, {group} groups");
            runs += 1;
        }
    }
    runs
}

/// Runs all cases. Returns the number of runs.
fn check() -> usize {
    run_all::<f32>() + run_all::<f64>() + run_all::<f16>() + run_all::<bf16>() + run_bytes()
}

// --- What std would bring
// --------------------------------------------------------------------------------------------

/// Hands out a fixed block from its start to its end, and from its start again whenever nothing
/// is allocated.
struct Bump {
    used: AtomicUsize,
    live: AtomicUsize,
}

const HEAP_BYTES: usize = 16 << 20;
static mut HEAP: [u8; HEAP_BYTES] = [0; HEAP_BYTES];

#[global_allocator]
static ALLOCATOR: Bump = Bump { used: AtomicUsize::new(0), live: AtomicUsize::new(0) };

// SAFETY: The program has one thread. Blocks are disjoint pieces of HEAP, which nothing else
// uses. `used` only goes back when no block is live.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let heap = &raw mut HEAP;
        let begin = heap.addr() + self.used.load(Ordering::Relaxed);
        let Some(begin) = begin.checked_next_multiple_of(layout.align()) else { return ptr::null_mut() };
        let offset = begin - heap.addr();
        match offset.checked_add(layout.size()) {
            Some(end) if end <= HEAP_BYTES => {
                self.used.store(end, Ordering::Relaxed);
                self.live.fetch_add(1, Ordering::Relaxed);
                heap.cast::<u8>().wrapping_add(offset)
            }
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        if self.live.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.used.store(0, Ordering::Relaxed);
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "{info}");
    halt()
}

/// Writes messages to standard output.
struct Console;

impl Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: the buffer is readable for `len` bytes.
        let written = unsafe { write(1, s.as_ptr().cast(), s.len()) };
        if written == s.len() as isize { Ok(()) } else { Err(fmt::Error) }
    }
}

#[link(name = "c")]
unsafe extern "C" {
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
    fn abort() -> !;
}

fn halt() -> ! {
    // SAFETY: it has no preconditions.
    unsafe { abort() }
}

// `alloc` is compiled for unwinding. It refers to two functions of std, which are never called in
// a program that aborts.

// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    halt()
}

// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    halt()
}

// SAFETY: no other function has this name, and the C runtime calls it with these arguments.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let runs = check();
    c_int::from(writeln!(Console, "{runs} runs without std are right").is_err())
}

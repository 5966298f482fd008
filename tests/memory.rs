//! Memory. A run touches nothing outside the caller's slices, reads nothing before it writes it,
//! and allocates nothing. The workspace has the size that the plan says.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::operands::{NAN_BYTE, Pixels, UNTOUCHED, apart, bits};
use common::{Combination, Context, Layer, Operands, accepts, is_short, layer, layers};
use convoke::Layout::{ChannelsFirst, ChannelsLast};
use convoke::{
    Activation, Conv, ConvTranspose, ErrorKind, Plan, Planner, QuantisedRun, Run, Scales, Threads, Workspace,
};
use convoke_tools::data::Scalar;
use convoke_tools::{has_foreign_blas, named};

// -----------------------------------------------------------------------------------------------
// Guard pages

/// The position of a slice between its guard pages.
#[derive(Debug, Clone, Copy)]
enum Side {
    /// It begins right after the first guard page, so that reading before it faults.
    Left,
    /// It ends right before the last guard page, so that reading behind it faults.
    Right,
}

/// Memory between two pages that may not be touched.
struct Guarded {
    allocation: region::Allocation,
    side: Side,
}

impl Guarded {
    /// Room for `bytes` bytes.
    fn new(bytes: usize, side: Side) -> Self {
        let page = region::page::size();
        let body = bytes.next_multiple_of(page);
        let mut allocation = region::alloc(body + 2 * page, region::Protection::READ_WRITE).unwrap();
        let first = allocation.as_mut_ptr::<u8>();
        for guard in [first, first.wrapping_add(page + body)] {
            // SAFETY: the pages are the allocation's own, and nothing is stored in them.
            unsafe { region::protect(guard, page, region::Protection::NONE).unwrap() };
        }
        Self { allocation, side }
    }

    /// The slice of `len` elements at the memory's side. Its bytes are zeros at first.
    fn slice<T: Scalar>(&mut self, len: usize) -> &mut [T] {
        let page = region::page::size();
        let offset = match self.side {
            Side::Left => page,
            Side::Right => self.allocation.len() - page - len * size_of::<T>(),
        };
        assert!(offset >= page, "the memory is too small");
        let first = self.allocation.as_mut_ptr::<u8>().wrapping_add(offset).cast::<T>();
        assert!(first.is_aligned());
        // SAFETY: The assertions keep it within the readable pages and aligned. It is
        // initialised: pages come zeroed, and zeros are a value of every T: Pod. It is borrowed
        // exclusively through `self`.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// A copy of a slice between guard pages.
    fn copy<T: Scalar>(values: &[T], side: Side) -> Self {
        let mut memory = Self::new(size_of_val(values), side);
        memory.slice(values.len()).copy_from_slice(values);
        memory
    }
}

/// Runs a plan with every buffer between guard pages: X, W, bias, residual, Y, and a workspace.
/// The workspace has exactly the bytes that the plan asks for, and is full of NaN. So is what lies
/// between [pixels that lie apart](Pixels::of), except in Y.
fn run_guarded<T: Scalar>(plan: &Plan<T>, operands: &Operands<T>, gaps: [Option<usize>; 3], side: Side) -> Vec<T> {
    let [of_x, of_residual, of_y] = Pixels::of(plan.geometry(), gaps);
    let guard = |values: &[T]| (Guarded::copy(values, side), values.len());
    let (mut x, x_len) = guard(&of_x.spread(&operands.x, T::from_f64(f64::NAN)));
    let (mut w, w_len) = guard(&operands.w);
    let mut bias = operands.bias.as_deref().map(guard);
    let mut residual =
        operands.residual.as_ref().map(|values| guard(&of_residual.spread(values, T::from_f64(f64::NAN))));
    let packed = plan.pack(w.slice(w_len), bias.as_mut().map(|(b, len)| &*b.slice(*len))).unwrap();
    let mut scratch = Guarded::new(plan.workspace_bytes(), side);
    // Bytes are taken as pairs, because the smallest scalar has two bytes.
    let scratch = bytes(scratch.slice::<convoke::f16>(plan.workspace_bytes() / 2));
    scratch.fill(NAN_BYTE);
    let (mut y, y_len) =
        guard(&of_y.spread(&vec![T::from_f64(f64::NAN); plan.geometry().output_len()], T::from_f64(UNTOUCHED)));
    let mut workspace = Workspace::borrowed(scratch);
    assert_eq!(workspace.bytes(), plan.workspace_bytes(), "pages are aligned");
    let x = x.slice(x_len);
    let residual = residual.as_mut().map(|(r, len)| &*r.slice(*len));
    let run = Run::new(x, &packed, y.slice(y_len)).residual(residual).workspace(&mut workspace);
    let run = run.x_pixel_stride(of_x.stride).residual_pixel_stride(of_residual.stride).y_pixel_stride(of_y.stride);
    of_y.gather(plan.run(run).unwrap(), T::from_f64(UNTOUCHED))
}

/// The bytes of a slice.
fn bytes<T: Scalar>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: T is Pod: its values are bytes without padding, and any bytes are a value of T.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Runs every layer of the table on every combination between guard pages. A fault ends the
/// process; `CONVOKE_TRACE=1` prints the layers, the last of which caused it.
fn check_guarded<T: Scalar>() {
    let (none, gaps) = ([None; 3], [Some(3), Some(2), Some(5)]);
    let places = [
        ([ChannelsFirst; 2], none),
        ([ChannelsLast; 2], none),
        ([ChannelsLast; 2], gaps),
        ([ChannelsFirst, ChannelsLast], gaps),
    ];
    for (layouts, gaps) in places {
        let mut runs = 0;
        for (index, layer) in layers::hard_in::<T>().into_iter().enumerate() {
            // The two mixed pairs take turns, each with and without a bias, on each side.
            let layouts = if index / 4 % 2 == 0 { layouts } else { [layouts[1], layouts[0]] };
            runs += check_guarded_layer::<T>(index, &layer.with_layouts(layouts), gaps);
        }
        // Few algorithms take channels last.
        let least = if layouts == [ChannelsFirst; 2] { 500 } else { 150 };
        assert!(runs > least, "only {runs} runs from {layouts:?}");
    }
}

/// Returns the number of combinations that ran.
fn check_guarded_layer<T: Scalar>(index: usize, layer: &Layer, gaps: [Option<usize>; 3]) -> usize {
    let trace = std::env::var_os("CONVOKE_TRACE").is_some();
    let geometry = layer.geometry();
    let mut operands = if gaps == [None; 3] {
        Operands::<T>::uniform(&geometry, 21).with_bias(&geometry).with_residual(&geometry)
    } else {
        // Sums without rounding, because taps that are joined are summed in another order.
        Operands::integers(&geometry, 2, 21)
    };
    if !index.is_multiple_of(2) {
        (operands.bias, operands.residual) = (None, None);
    }
    // Kernels store one of these activations themselves; the other takes the general epilogue.
    let activation = if index.is_multiple_of(3) { Activation::HardSwish } else { Activation::Relu };
    let mut runs = 0;
    for combination in Combination::distinct() {
        let Some(plan) = combination.plan::<T>(layer, |planner| planner.activation(activation)) else { continue };
        let what = || format!("{combination}, {}: {layer}, {gaps:?} between pixels\n{plan:?}", T::DTYPE);
        let _context = Context(what);
        if trace {
            eprintln!("{}", what());
        }
        let expected = bits(&operands.run(&plan));
        for (number, side) in [Side::Left, Side::Right].into_iter().enumerate() {
            // To save time, sides take turns where channels are last, and on an emulator: each side
            // has layers with and without a bias.
            let is_dear = is_short() || [geometry.x_layout, geometry.y_layout] != [ChannelsFirst; 2];
            if is_dear && number != index / 2 % 2 {
                continue;
            }
            assert_eq!(bits(&run_guarded(&plan, &operands, gaps, side)), expected, "{side:?}");
        }
        runs += 1;
    }
    runs
}

#[test]
fn f32_touches_nothing_outside_the_slices() {
    check_guarded::<f32>();
}

#[test]
fn f64_touches_nothing_outside_the_slices() {
    check_guarded::<f64>();
}

#[test]
fn f16_touches_nothing_outside_the_slices() {
    check_guarded::<convoke::f16>();
}

#[test]
fn bf16_touches_nothing_outside_the_slices() {
    check_guarded::<convoke::bf16>();
}

/// Bytes between guard pages.
struct GuardedBytes(Guarded, usize);

impl GuardedBytes {
    fn new(len: usize, fill: u8, side: Side) -> Self {
        let mut new = Self(Guarded::new(len.next_multiple_of(2), side), len);
        new.slice().fill(fill);
        new
    }

    fn copy(values: &[u8], side: Side) -> Self {
        let mut new = Self::new(values.len(), 0, side);
        new.slice().copy_from_slice(values);
        new
    }

    /// The memory is taken as pairs, because the smallest scalar has two bytes.
    fn slice(&mut self) -> &mut [u8] {
        let Self(memory, len) = self;
        let (side, pairs) = (memory.side, bytes(memory.slice::<convoke::f16>(len.div_ceil(2))));
        match side {
            Side::Left => &mut pairs[..*len],
            Side::Right => {
                let first = pairs.len() - *len;
                &mut pairs[first..]
            }
        }
    }
}

/// Convolutions of bytes, with symmetric weights and others. What workspace and Y held before does not matter.
#[test]
fn bytes_touch_nothing_outside_the_slices() {
    let layouts = [[ChannelsFirst; 2], [ChannelsLast; 2], [ChannelsFirst, ChannelsLast], [ChannelsLast, ChannelsFirst]];
    for (index, layer) in layers::hard().into_iter().enumerate() {
        let layer = layer.with_layouts(layouts[index % 4]);
        let (zero, isas) = ([127 + (index % 2) as u8], common::isas());
        for (number, isa) in isas.enumerate() {
            let plan = Planner::new().isa(isa).plan_quantised::<u8, u8, u8>(layer.operator.clone(), &layer.x_shape);
            let plan = plan.unwrap_or_else(|error| panic!("{layer}: {error}"));
            let geometry = plan.geometry();
            let values = |len: usize| (0..len).map(|i| (i * 37 % 256) as u8).collect::<Vec<u8>>();
            let (x, w) = (values(geometry.input_len()), values(geometry.weight_len()));
            // With channels last, pixels lie apart.
            let [of_x, of_residual, of_y] = Pixels::of(geometry, [Some(index % 3); 3]);
            let (x, residual) = (of_x.spread(&x, 9), of_residual.spread(&values(geometry.output_len()), 9));
            let y_len = of_y.spread(&vec![0_u8; geometry.output_len()], 0).len();
            let [y, again] = [Side::Left, Side::Right].map(|side| {
                let (mut x, mut w) = (GuardedBytes::copy(&x, side), GuardedBytes::copy(&w, side));
                let mut residual = GuardedBytes::copy(&residual, side);
                let Ok(weights) = plan.pack(w.slice(), &zero, None) else { return Vec::new() };
                let scales =
                    Scales { x_scale: 0.01, x_zero_point: 3, w_scale: &[0.1], y_scale: 2.0, y_zero_point: 120 };
                let scaled = weights.scaled(&scales).unwrap();
                let fill = [0x55, NAN_BYTE][(number + usize::from(matches!(side, Side::Left))) % 2];
                let mut y = GuardedBytes::new(y_len, fill, side);
                let mut scratch = GuardedBytes::new(plan.workspace_bytes(), fill, side);
                let mut workspace = Workspace::borrowed(scratch.slice());
                let run = QuantisedRun::new(x.slice(), &weights, &scaled, y.slice()).workspace(&mut workspace);
                let run = run.x_pixel_stride(of_x.stride).y_pixel_stride(of_y.stride);
                let run = match index % 2 {
                    0 => run.residual(residual.slice(), 0.5, 7).residual_pixel_stride(of_residual.stride),
                    _ => run,
                };
                let mut result = Ok(());
                let count = allocations(|| result = plan.run(run).map(|_| ()));
                result.unwrap_or_else(|error| panic!("{layer}: {error}"));
                assert_eq!(count, 0, "{layer} on {isa}");
                of_y.gather(y.slice(), fill)
            });
            assert_eq!(y, again, "{layer} on {isa}");
        }
    }
}

/// Images that lie apart. The last one ends where the memory does, and what is between them is neither
/// read, because it is NaN, nor written.
#[test]
fn images_that_lie_apart_touch_nothing_between_them() {
    const GAP: usize = 7;
    fn spread(images: &[f32], count: usize, side: Side) -> (Guarded, usize) {
        let image = images.len() / count;
        let memory = apart(images, (image, image + GAP), f32::NAN);
        (Guarded::copy(&memory, side), memory.len())
    }
    let layers = [
        layer(Conv::new([6, 5, 3, 3]).pads([1; 4]), [3, 5, 7, 6]),
        layer(ConvTranspose::new([5, 6, 4]).strides([2]).pads([1, 1]), [2, 5, 9]),
    ];
    for (layer, combination) in layers.iter().flat_map(|layer| Combination::distinct().map(move |c| (layer, c))) {
        let _context = Context(|| format!("{combination}: {layer}"));
        let Some(plan) = combination.plan::<f32>(layer, |planner| planner.separate_images(true)) else { continue };
        let geometry = plan.geometry();
        let operands = Operands::<f32>::uniform(geometry, 25).with_residual(geometry);
        let (packed, batch, y_len) = (operands.pack(&plan), geometry.batch, geometry.output_len());
        let expected = operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
        for side in [Side::Left, Side::Right] {
            let (mut x, x_len) = spread(&operands.x, batch, side);
            let (mut residual, _) = spread(operands.residual.as_deref().unwrap(), batch, side);
            let (mut y, len) = spread(&vec![0.0; y_len], batch, side);
            let (x, residual, y) = (x.slice::<f32>(x_len), residual.slice::<f32>(len), y.slice::<f32>(len));
            let stride = y_len / batch + GAP;
            let run = Run::new(x, &packed, y).residual(Some(residual)).x_image_stride(operands.x.len() / batch + GAP);
            plan.run(run.residual_image_stride(stride).y_image_stride(stride)).unwrap();
            for (image, expected) in y.chunks(stride).zip(expected.chunks(y_len / batch)) {
                let (image, between) = image.split_at(expected.len());
                assert_eq!(bits(image), bits(expected), "{side:?}");
                assert!(between.iter().all(|y| y.is_nan()), "{side:?}");
            }
        }
    }
}

// -----------------------------------------------------------------------------------------------
// Dirty memory

#[test]
fn what_workspace_and_output_held_before_does_not_matter() {
    fn check<T: Scalar>(layer: &Layer) {
        let geometry = layer.geometry();
        let operands = Operands::<T>::uniform(&geometry, 22).with_bias(&geometry);
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            let packed = operands.pack(&plan);
            let mut results = Vec::new();
            for (byte, value) in [(0, 0.0), (NAN_BYTE, f64::NAN), (0x7b, 1e4)] {
                let mut memory = vec![byte; plan.workspace_bytes() + 63];
                let mut workspace = Workspace::borrowed(&mut memory);
                let mut y = vec![T::from_f64(value); geometry.output_len()];
                plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace)).unwrap();
                // Runs again, with the contents that the first run left.
                let first = bits(&y);
                plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace)).unwrap();
                assert_eq!(first, bits(&y), "{combination}, {}: {layer}: the second run differs", T::DTYPE);
                results.push(first);
            }
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{combination}, {}: {layer}", T::DTYPE);
        }
    }
    for layer in [
        layer(Conv::new([17, 9, 3, 3]).pads([1, 1, 1, 1]), [2, 9, 13, 11]),
        layer(Conv::new([5, 130, 2, 3]).strides([2, 3]).pads([1, 0, 0, 2]), [1, 130, 9, 14]),
        layer(Conv::new([9, 300, 1, 1]), [1, 300, 5, 9]),
        layer(ConvTranspose::new([9, 5, 3, 3]).strides([2, 3]).output_padding([1, 1]), [1, 9, 8, 11]),
    ] {
        for_each_type!(check(&layer));
    }
}

// -----------------------------------------------------------------------------------------------
// Allocations

/// The system's allocator, which counts the allocations of threads that have a tally.
struct Counting;

/// A number of allocations, and their bytes in total.
#[derive(Default)]
struct Tally {
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

thread_local! {
    /// The tally of this thread's allocations.
    static TALLY: Cell<Option<&'static Tally>> = const { Cell::new(None) };
}

impl Counting {
    fn note(bytes: usize) {
        // A thread that is ending has no tally any more.
        let _ = TALLY.try_with(|tally| {
            if let Some(tally) = tally.get() {
                tally.calls.fetch_add(1, Ordering::Relaxed);
                tally.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        });
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps the promises of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of this call.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: the caller keeps the promises of this call.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A tally that lives as long as the threads that hold it.
fn tally() -> &'static Tally {
    Box::leak(Box::default())
}

/// The number and the bytes of this thread's allocations during `f`.
fn allocated(f: impl FnOnce()) -> (usize, usize) {
    let tally = tally();
    TALLY.set(Some(tally));
    f();
    TALLY.set(None);
    (tally.calls.load(Ordering::Relaxed), tally.bytes.load(Ordering::Relaxed))
}

/// The number of this thread's allocations during `f`.
fn allocations(f: impl FnOnce()) -> usize {
    allocated(f).0
}

/// Layers that are large enough to be shared among threads.
fn large_layers() -> [Layer; 5] {
    [
        layer(Conv::new([24, 20, 3, 3]).pads([1, 1, 1, 1]), [1, 20, 30, 31]),
        layer(Conv::new([24, 300, 3, 3]), [1, 300, 9, 8]),
        layer(Conv::new([70, 300, 1, 1]), [1, 300, 17, 9]),
        layer(Conv::new([24, 6, 3, 3]).group(4).strides([3, 3]), [4, 24, 70, 70]),
        layer(ConvTranspose::new([30, 17, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 30, 20, 21]),
    ]
}

#[test]
fn a_run_allocates_nothing() {
    fn check<T: Scalar>() {
        for (layer, activation) in large_layers().iter().zip(common::ACTIVATIONS.iter().skip(2).cycle()) {
            let geometry = layer.geometry();
            let operands = Operands::<T>::uniform(&geometry, 23).with_residual(&geometry);
            // The crates of the other BLAS backends pack into memory that they allocate in every
            // call.
            for combination in Combination::all().filter(|c| !has_foreign_blas(c.algorithm)) {
                let Some(plan) = combination.plan::<T>(layer, |p| p.activation(*activation)) else { continue };
                let packed = operands.pack(&plan);
                let mut workspace = Workspace::for_plan(&plan).unwrap();
                let mut y = vec![MaybeUninit::new(T::default()); geometry.output_len()];
                let (x, residual) = (&operands.x, operands.residual.as_deref());
                let count = allocations(|| {
                    plan.run(Run::uninit(x, &packed, &mut y).residual(residual).workspace(&mut workspace)).unwrap();
                });
                assert_eq!(count, 0, "{combination}, {}: {layer}", T::DTYPE);
            }
        }
    }
    assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter does not count");
    for_each_type!(check());
}

#[cfg(feature = "rayon")]
#[test]
fn a_run_inside_a_pool_allocates_nothing_on_any_of_its_threads() {
    fn check<T: Scalar>(pool: &rayon::ThreadPool, calls: &AtomicUsize) {
        for layer in large_layers() {
            let geometry = layer.geometry();
            assert!(geometry.macs() > 1 << 20, "{layer}: too little work to be shared");
            let operands = Operands::<T>::uniform(&geometry, 23);
            for combination in Combination::all().filter(|c| !has_foreign_blas(c.algorithm)) {
                let Some(plan) = combination.plan::<T>(&layer, |planner| planner.threads(3)) else { continue };
                let packed = operands.pack(&plan);
                let mut workspace = Workspace::for_plan(&plan).unwrap();
                let mut y = vec![T::default(); geometry.output_len()];
                let count = pool.install(|| {
                    // When the threads of a pool first work together, rayon may allocate queues.
                    plan.run(
                        Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace).threads(Threads::Current),
                    )
                    .unwrap();
                    let before = calls.load(Ordering::Relaxed);
                    plan.run(
                        Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace).threads(Threads::Current),
                    )
                    .unwrap();
                    calls.load(Ordering::Relaxed) - before
                });
                assert_eq!(count, 0, "{combination}, {}: {layer}", T::DTYPE);
            }
        }
    }
    let tally = tally();
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(3).start_handler(|_| TALLY.set(Some(tally))).build().unwrap();
    pool.broadcast(|_| drop(std::hint::black_box(Box::new(1))));
    assert!(tally.calls.load(Ordering::Relaxed) >= 3, "the counter does not count on the pool's threads");
    check::<f32>(&pool, &tally.calls);
    check::<convoke::f16>(&pool, &tally.calls);
}

/// Asserts that no plan of these layers, for one thread or several, allocates a megabyte. A
/// refused plan must not either.
#[cfg(target_pointer_width = "64")]
fn assert_plans_are_small(layers: &[Layer]) {
    for layer in layers {
        for combination in Combination::all() {
            for threads in [1, 4] {
                let planner = combination.planner().threads(threads);
                let (_, bytes) = allocated(|| drop(planner.plan::<f32>(layer.operator.clone(), &layer.x_shape)));
                assert!(bytes < 1 << 20, "{combination}, {threads} threads: {layer}: {bytes} bytes");
            }
        }
    }
}

/// Tables have entries for taps. Before the direct kernels checked the number of taps, they
/// listed the taps of any kernel, which were gigabytes here.
#[test]
#[cfg(target_pointer_width = "64")]
fn planning_takes_no_memory_in_proportion_to_the_kernel() {
    let (kernel, stride) = (1 << 27, 1 << 40);
    let huge = [
        layer(Conv::new([3, 0, kernel]), [1, 0, kernel + 3]),
        layer(Conv::new([1, 1, kernel]).strides([stride]).pads([kernel as i64, 0]), [1, 1, 1]),
        layer(Conv::new([1, 1, kernel]).pads([kernel as i64 - 1, 0]), [1, 1, 1]),
        layer(Conv::new([2, 1, 1, kernel]).group(2).pads([0, kernel as i64, 0, 0]), [1, 2, 1, 3]),
        layer(ConvTranspose::new([1, 1, kernel]).pads([kernel as i64 - 1, 0]), [1, 1, 1]),
        layer(ConvTranspose::new([0, 2, kernel]).strides([stride]), [1, 0, 1]),
    ];
    assert_plans_are_small(&huge);
}

/// Winograd once listed the steps of kernels that it then rejected: 8 gigabytes for the first of
/// these.
#[test]
fn winograd_lists_no_steps_of_kernels_that_it_rejects() {
    for (kernel, x) in
        [(vec![1, 1, 1 << 24], vec![1, 1, (1 << 24) + 3]), (vec![1, 1, 1 << 12, 1 << 12], vec![1, 1, 4100, 4100])]
    {
        let planner = Planner::new().algorithm(named("winograd"));
        let (_, bytes) = allocated(|| {
            let plan = planner.plan::<f32>(Conv::new(kernel.clone()), &x);
            assert!(plan.is_err(), "{kernel:?} is planned");
        });
        assert!(bytes < 1 << 20, "{kernel:?}: {bytes} bytes");
    }
}

/// Tables of a plan describe blocks, not images. Pointwise once had an entry for each vector of
/// the image, which were gigabytes here.
#[test]
#[cfg(target_pointer_width = "64")]
fn planning_takes_no_memory_in_proportion_to_the_image() {
    let huge = [
        layer(Conv::new([1, 1, 1, 1]), [1, 1, 1 << 15, 1 << 16]),
        layer(Conv::new([16, 16, 1]), [1, 16, 1 << 31]),
        layer(Conv::new([8, 8, 3, 3]).pads([1, 1, 1, 1]), [1, 8, 1 << 15, 1 << 16]),
        layer(ConvTranspose::new([8, 8, 3, 3]).strides([2, 2]), [1, 8, 1 << 15, 1 << 16]),
    ];
    assert!(allocated(|| drop(std::hint::black_box(vec![1_u8; 1000]))).1 >= 1000, "bytes are not counted");
    assert_plans_are_small(&huge);
}

/// Depthwise once had a zero for each group, which were 256 megabytes here.
#[test]
#[cfg(target_pointer_width = "64")]
fn planning_takes_no_memory_in_proportion_to_the_groups() {
    let groups = 1 << 26;
    let huge = [
        layer(Conv::new([groups, 1, 3, 3]).group(groups as i64).pads([1; 4]), [1, groups, 9, 9]),
        layer(Conv::new([groups, 1, 3]), [1, 1, 9]),
        layer(ConvTranspose::new([groups, 1, 4, 4]).group(groups as i64).strides([2, 2]), [1, groups, 9, 9]),
    ];
    assert_plans_are_small(&huge);
}

/// Tables are made only for the pick. Offers for far-reaching kernels once listed every row of
/// their planes, which were a hundred megabytes here.
#[test]
#[cfg(target_pointer_width = "64")]
fn planning_makes_no_tables_for_offers_that_are_not_picked() {
    let far = layer(ConvTranspose::new([1, 1, 2, 1]).dilations([8_000_000, 1]), [1, 1, 5, 1]);
    let (_, bytes) = allocated(|| {
        let plan = Planner::new().plan::<f32>(far.operator.clone(), &far.x_shape).unwrap();
        assert_ne!(plan.algorithm(), named("transposed"));
        assert!(plan.explain().verdicts().iter().any(|v| v.algorithm == named("transposed") && v.cost.is_some()));
    });
    assert!(bytes < 1 << 20, "{far}: {bytes} bytes");
}

// -----------------------------------------------------------------------------------------------
// Workspace

/// Bytes of the unit of workspace.
const LINE: usize = 64;

#[test]
fn the_workspace_is_what_the_plan_says() {
    for layer in large_layers() {
        let geometry = layer.geometry();
        let operands = Operands::<f32>::uniform(&geometry, 24);
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(3)) else { continue };
            let packed = operands.pack(&plan);
            let bytes = plan.workspace_bytes();
            assert_eq!(bytes % (3 * LINE), 0, "{combination}: {layer}: {bytes} bytes are not three shares");
            let expected = operands.run(&plan);
            let run = |bytes: usize, y: &mut [f32]| {
                let mut workspace = Workspace::with_bytes(bytes)?;
                assert_eq!(workspace.bytes(), bytes.next_multiple_of(LINE));
                plan.run(Run::new(&operands.x, &packed, y).workspace(&mut workspace)).map(|_| ())
            };
            // The share of one thread is enough, and one byte less is not.
            let mut y = vec![f32::NAN; geometry.output_len()];
            run(bytes / 3, &mut y).unwrap_or_else(|error| panic!("{combination}: {layer}: {error}"));
            assert_eq!(y, expected, "{combination}: {layer}");
            if bytes > 0 {
                let mut y = vec![7.0; geometry.output_len()];
                let error = run(bytes / 3 - LINE, &mut y).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Workspace, "{combination}: {layer}: {error}");
                let message = error.to_string();
                let numbers = [(bytes / 3 - LINE).to_string(), (bytes / 3).to_string()];
                assert!(numbers.iter().all(|n| message.contains(n)), "{message:?} does not name {numbers:?}");
                assert!(y.iter().all(|&y| y == 7.0), "{combination}: {layer}: Y was written in spite of the error");
            }
        }
    }
}

#[test]
fn the_workspace_limit_is_kept() {
    for layer in large_layers() {
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(2)) else { continue };
            let bytes = plan.workspace_bytes();
            let limited = |limit: usize| {
                let planner: Planner = combination.planner().threads(2).workspace_limit(limit);
                planner.plan::<f32>(layer.operator.clone(), &layer.x_shape)
            };
            // A limit that equals the workspace of the unlimited plan changes nothing.
            assert_eq!(limited(bytes).unwrap().workspace_bytes(), bytes, "{combination}: {layer}");
            if bytes == 0 {
                continue;
            }
            for limit in [bytes - 1, 0] {
                match limited(limit) {
                    Ok(plan) => assert!(plan.workspace_bytes() <= limit, "{combination}: {layer}: above {limit}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Workspace, "{combination}: {layer}: {error}");
                        assert!(error.to_string().ends_with(&format!("the limit is {limit}")), "{error}");
                    }
                }
            }
        }
        let free = Planner::new().workspace_limit(0).plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
        assert_eq!(free.workspace_bytes(), 0, "{layer}: without workspace there is still an algorithm");
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn the_workspace_stays_bounded_on_huge_layers() {
    // Whole im2col matrices of these layers would take gigabytes.
    let huge = [
        layer(Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]), [1, 64, 1024, 1024]),
        layer(Conv::new([64, 3, 7, 7]).pads([3, 3, 3, 3]), [8, 3, 4096, 4096]),
        layer(Conv::new([512, 512, 3, 3]).pads([1, 1, 1, 1]), [1, 512, 512, 512]),
        layer(Conv::new([32, 16, 3, 3, 3]).pads([1; 6]), [1, 16, 128, 256, 256]),
        layer(Conv::new([64, 32, 41]).pads([20, 20]), [1, 32, 4_000_000]),
        layer(Conv::new([256, 64, 1, 1]), [4, 64, 1024, 1024]),
        layer(ConvTranspose::new([512, 512, 16, 16]).strides([8, 8]), [1, 512, 64, 64]),
        layer(ConvTranspose::new([64, 64, 2, 2]).strides([2, 2]), [1, 64, 1024, 1024]),
        layer(ConvTranspose::new([32, 32, 4, 4, 4]).strides([2, 2, 2]), [1, 32, 64, 128, 128]),
        layer(ConvTranspose::new([64, 32, 16]).strides([8]), [1, 64, 1_000_000]),
    ];
    for layer in huge {
        let geometry = layer.geometry();
        for combination in Combination::all().filter(|c| accepts(c.algorithm, &geometry)) {
            for threads in [1, 4] {
                let planner = combination.planner().threads(threads);
                let plan = planner.plan::<f32>(layer.operator.clone(), &layer.x_shape);
                let plan = plan.unwrap_or_else(|error| panic!("{combination}: {layer}: {error}"));
                let share = plan.workspace_bytes() / threads;
                assert!(share <= 16 << 20, "{combination}, {threads} threads: {layer}: {share} bytes a thread");
            }
        }
    }
}

/// Tiles of the materialised lowerings once held the whole of K, all rows of A, and at least one
/// whole row of the output.
#[test]
#[cfg(target_pointer_width = "64")]
fn the_workspace_stays_bounded_for_millions_of_channels_taps_and_columns() {
    let many = 1 << 24;
    let huge = [
        layer(Conv::new([1, many, 1]), [1, many, 1]),
        layer(Conv::new([many, 1, 1]), [1, 1, 5]),
        layer(Conv::new([2, 1, 1 << 12, 1 << 12]), [1, 1, 4100, 4100]),
        layer(ConvTranspose::new([many, 1, 1]), [1, many, 3]),
        layer(ConvTranspose::new([1, many, 1]), [1, 1, 3]),
        layer(ConvTranspose::new([1, 2, 1 << 12, 1 << 12]), [1, 1, 2, 2]),
        layer(ConvTranspose::new([2, 40, 2, 2]), [1, 2, 4, 1 << 30]),
        layer(ConvTranspose::new([2, 40, 2, 2, 2]).strides([2, 2, 2]), [1, 2, 4, 1 << 14, 1 << 14]),
    ];
    for layer in huge {
        let geometry = layer.geometry();
        let is_materialised =
            |c: &Combination| ["im2col", "col2im"].iter().any(|name| c.algorithm.name().starts_with(name));
        let forced = Combination::all().filter(is_materialised).filter(|c| accepts(c.algorithm, &geometry));
        for planner in forced.map(Combination::planner).chain([Planner::new()]) {
            for threads in [1, 4] {
                let plan = planner.clone().threads(threads).plan::<f64>(layer.operator.clone(), &layer.x_shape);
                let plan = plan.unwrap_or_else(|error| panic!("{layer}: {error}"));
                let share = plan.workspace_bytes() / threads;
                assert!(share <= 16 << 20, "{threads} threads: {layer}: {share} bytes a thread\n{plan:?}");
            }
        }
    }
}

//! Threads as a value: a run uses the threads that it was given, and no others.

#![cfg(all(feature = "rayon", feature = "blas-matrixmultiply"))]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::layers::shared_layers;
use common::operands::bits;
use common::{Combination, Operands, layer};
use convoke::{Conv, ErrorKind, Isa, Plan, Planner, Run, Threads, Workspace};
use convoke_tools::named;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// An allocator that shows which threads work, because the `matrixmultiply` crate allocates when
/// it multiplies.
struct Watching;

thread_local! {
    /// The counter of this thread's allocations, for threads that are watched.
    static SEEN: Cell<Option<&'static AtomicUsize>> = const { Cell::new(None) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = SEEN.try_with(|seen| seen.get().map(|seen| seen.fetch_add(1, Ordering::Relaxed)));
        // SAFETY: the caller keeps the promises of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of this call.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn counter() -> &'static AtomicUsize {
    Box::leak(Box::new(AtomicUsize::new(0)))
}

/// A pool, and the counters of its threads.
fn watched_pool(threads: usize) -> (ThreadPool, &'static [AtomicUsize]) {
    let counters: &'static [AtomicUsize] = (0..threads).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>().leak();
    let builder = ThreadPoolBuilder::new().num_threads(threads);
    let pool = builder.start_handler(|index| SEEN.set(Some(&counters[index]))).build().unwrap();
    pool.broadcast(|_| ()); // all threads have started
    for counter in counters {
        counter.store(0, Ordering::Relaxed);
    }
    (pool, counters)
}

/// A plan of many tasks, all of which allocate.
fn watched_plan(threads: usize) -> (Plan<f32>, Operands<f32>) {
    let layer = layer(Conv::new([16, 16, 3, 3]).pads([1, 1, 1, 1]), [8, 16, 40, 40]);
    let planner = Planner::new().algorithm(named("im2col:matrixmultiply")).threads(threads);
    let plan = planner.plan(layer.operator.clone(), &layer.x_shape).unwrap();
    (plan, Operands::uniform(&layer.geometry(), 31))
}

/// Runs a plan, and returns how often the calling thread allocated meanwhile.
fn run_watched(plan: &Plan<f32>, operands: &Operands<f32>, threads: Threads<'_>) -> usize {
    let packed = operands.pack(plan);
    let mut workspace = Workspace::for_plan(plan).unwrap();
    let mut y = vec![0.0; plan.geometry().output_len()];
    let own = counter();
    let before = SEEN.replace(Some(own));
    plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace).threads(threads)).unwrap();
    SEEN.set(before);
    own.load(Ordering::Relaxed)
}

#[test]
fn serial_runs_on_the_calling_thread_even_inside_a_pool() {
    let (plan, operands) = watched_plan(4);
    assert!(run_watched(&plan, &operands, Threads::Serial) > 8, "each task allocates");
    let (pool, counters) = watched_pool(3);
    let (own, caller) =
        pool.install(|| (run_watched(&plan, &operands, Threads::Serial), rayon::current_thread_index().unwrap()));
    assert!(own > 8);
    for (index, counter) in counters.iter().enumerate().filter(|(index, _)| *index != caller) {
        assert_eq!(counter.load(Ordering::Relaxed), 0, "thread {index} of the pool took part");
    }
}

#[test]
fn the_pool_that_is_given_does_the_work_with_all_its_threads() {
    let (plan, operands) = watched_plan(2);
    let (pool, counters) = watched_pool(2);
    let (other, bystanders) = watched_pool(2);
    // A thread may come too late to a short run. A thread that is not given never comes.
    for _ in 0..200 {
        run_watched(&plan, &operands, Threads::Pool(&pool));
        if counters.iter().all(|c| c.load(Ordering::Relaxed) >= 8) {
            break;
        }
    }
    let seen: Vec<_> = counters.iter().map(|c| c.load(Ordering::Relaxed)).collect();
    assert!(seen.iter().all(|&count| count >= 8), "allocations of the pool's threads: {seen:?}");
    // The given pool is used, not the pool that the caller belongs to.
    let own = other.install(|| run_watched(&plan, &operands, Threads::Pool(&pool)));
    assert!(own < 8, "the caller, of another pool, allocated {own} times");
    assert!(bystanders.iter().all(|c| c.load(Ordering::Relaxed) < 64), "the caller's pool took part");
}

#[test]
fn the_current_pool_does_the_work() {
    let (plan, operands) = watched_plan(2);
    let (pool, counters) = watched_pool(2);
    assert_eq!(pool.install(|| Threads::Current.count()), 2);
    for _ in 0..200 {
        // The calling thread belongs to the pool and is counted too. Both threads must have
        // worked.
        pool.install(|| run_watched(&plan, &operands, Threads::Current));
        if counters.iter().filter(|c| c.load(Ordering::Relaxed) >= 8).count() == 2 {
            return;
        }
    }
    panic!("only one of the pool's threads worked");
}

#[test]
fn a_pool_of_one_thread_gives_the_same_bits() {
    let (plan, operands) = watched_plan(2);
    let packed = operands.pack(&plan);
    let run = |threads| bits(&operands.run_packed(&plan, &packed, threads).unwrap());
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let serial = run(Threads::Serial);
    assert_eq!(serial, run(Threads::Pool(&pool)));
    assert_eq!(serial, pool.install(|| run(Threads::Current)));
}

#[test]
fn many_callers_share_a_pool_and_a_plan() {
    const CALLERS: usize = 4;
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for combination in Combination::all().filter(|c| c.isa == Isa::detect() && c.algorithm != named("naive")) {
        for layer in shared_layers() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(2)) else { continue };
            let weights = Operands::uniform(&layer.geometry(), 33);
            let packed = weights.pack(&plan);
            let barrier = Barrier::new(CALLERS);
            std::thread::scope(|scope| {
                for caller in 0..CALLERS {
                    let (plan, packed, pool, barrier, weights) = (&plan, &packed, &pool, &barrier, &weights);
                    scope.spawn(move || {
                        let x = Operands::uniform(plan.geometry(), 100 + caller as u64).x;
                        let operands = Operands { x, ..weights.clone() };
                        let expected = bits(&operands.run_packed(plan, packed, Threads::Serial).unwrap());
                        barrier.wait();
                        for _ in 0..3 {
                            let y = operands.run_packed(plan, packed, Threads::Pool(pool)).unwrap();
                            assert_eq!(bits(&y), expected, "caller {caller}: {plan:?}");
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn fewer_threads_than_planned_need_fewer_shares_of_workspace() {
    let pool = ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for combination in Combination::all().filter(|c| c.isa == Isa::detect()) {
        for layer in shared_layers() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(4)) else { continue };
            let operands = Operands::uniform(&layer.geometry(), 34);
            let expected = operands.run(&plan);
            let packed = operands.pack(&plan);
            for shares in 1..=4 {
                let mut workspace = Workspace::with_bytes(plan.workspace_bytes() / 4 * shares).unwrap();
                let mut y = vec![f32::NAN; expected.len()];
                let threads = Threads::Pool(&pool);
                let mut run = |threads| {
                    let run = Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace);
                    plan.run(run.threads(threads)).map(|_| ())
                };
                run(threads.at_most(shares)).unwrap();
                if plan.workspace_bytes() > 0 && shares < plan.threads_with(threads).unwrap() {
                    assert_eq!(run(threads).unwrap_err().kind(), ErrorKind::Workspace);
                }
                assert_eq!(y, expected, "{combination}, {shares} shares: {layer}");
            }
        }
    }
}

//! The same bits for any number of threads, for plans that split the work differently, and from
//! run to run.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};

use crate::common::operands::bits;
use crate::common::{Combination, Context, Layer, Operands, Scoped, is_short, layer};
use convoke::Layout::{ChannelsFirst, ChannelsLast};
use convoke::{Activation, Conv, ConvTranspose, DType, Executor, Isa, Job, Planner, Run, Threads, Workspace};
use convoke_tools::data::Scalar;
use convoke_tools::named;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Estimated nanoseconds below which a run stays on one thread.
const LEAST_COST: f64 = 4e3;

/// Layers that are shared among threads, each along something else.
fn layers() -> Vec<Layer> {
    vec![
        // Rows of one image, K in one block and in several.
        layer(Conv::new([19, 12, 3, 3]).pads([1, 1, 1, 1]), [1, 12, 29, 27]),
        layer(Conv::new([9, 150, 3, 3]).pads([1, 1, 1, 1]), [1, 150, 10, 11]),
        // Panels of weights: one row of positions, many output channels.
        layer(Conv::new([300, 40, 3, 3]), [1, 40, 5, 6]),
        // Rows of few pixels, two of which are multiplied at once in chunks of more than one row.
        layer(Conv::new([96, 80, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 80, 9, 8]),
        layer(Conv::new([96, 48, 3, 3]).dilations([4, 4]).pads([4, 4, 4, 4]), [1, 48, 11, 14]),
        // Panels whose number differs from the number of threads, and tiles of pixels that
        // dilation interleaves.
        layer(Conv::new([96, 24, 3, 3]).pads([1, 1, 1, 1]), [1, 24, 14, 14]),
        layer(Conv::new([20, 12, 3, 3]).dilations([3, 3]).pads([3, 3, 3, 3]), [1, 12, 26, 27]),
        // Images and groups.
        layer(Conv::new([24, 7, 3, 3]).group(4).strides([2, 2]), [5, 28, 30, 29]),
        layer(Conv::new([12, 6, 9]).pads([4, 4]), [1, 6, 2500]),
        // A first layer of a network, whose taps are joined with channels last.
        layer(Conv::new([24, 3, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [2, 3, 56, 57]),
        // Rows of few channels, in tiles. Two tiles share vectors unless they are cut for
        // threads.
        layer(Conv::new([6, 1, 7, 7]).group(6).pads([3, 3, 3, 3]), [2, 6, 84, 40]),
        layer(Conv::new([1, 1, 31, 31]).pads([15, 15, 15, 15]), [1, 1, 34, 40]),
        // Columns, panels and blocks of K of a 1x1 kernel.
        layer(Conv::new([70, 96, 1, 1]), [1, 96, 17, 16]),
        layer(Conv::new([600, 300, 1]), [1, 300, 11]),
        layer(Conv::new([8, 6, 3, 3, 3]).pads([1; 6]), [1, 6, 10, 11, 9]),
        // Chunks of the output, with and without an input position that contributes to two of
        // them.
        layer(ConvTranspose::new([30, 17, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 30, 18, 17]),
        layer(ConvTranspose::new([24, 11, 3, 3]), [1, 24, 31, 29]),
        layer(ConvTranspose::new([24, 11, 5, 3]).dilations([2, 2]), [1, 24, 61, 19]),
        layer(ConvTranspose::new([20, 6, 9]).strides([2]).pads([3, 4]), [1, 20, 2000]),
        layer(ConvTranspose::new([32, 9, 2, 2]).group(2).strides([2, 2]), [2, 32, 21, 24]),
        // One position: panels of weights in one call, or in one call for each thread.
        layer(Conv::new([560, 500, 1, 1]), [1, 500, 1, 1]),
        layer(ConvTranspose::new([500, 90, 3, 3]), [1, 500, 1, 1]),
    ]
}

/// The global pool of the crate chili, which begins a call elsewhere only if its thread is late.
struct Chili(usize);

impl Executor for Chili {
    fn width(&self) -> usize {
        self.0
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        fn by_halves(scope: &mut chili::Scope<'_>, calls: Range<usize>, call: &(dyn Fn(usize) + Sync)) {
            if calls.len() <= 1 {
                return calls.for_each(call);
            }
            let middle = calls.start + calls.len() / 2;
            let (left, right) = (calls.start..middle, middle..calls.end);
            scope.join(|scope| by_halves(scope, left, call), |scope| by_halves(scope, right, call));
        }
        by_halves(&mut chili::Scope::global(), 0..count, call);
    }
}

/// Threads that wait at channels.
struct Channels(Vec<Sender<(Job, usize)>>);

impl Channels {
    fn new(width: usize) -> Self {
        let start = |_| {
            let (sender, jobs) = channel::<(Job, usize)>();
            std::thread::spawn(move || jobs.iter().for_each(|(job, i)| job.call(i)));
            sender
        };
        Self((1..width).map(start).collect())
    }
}

impl Executor for Channels {
    fn width(&self) -> usize {
        self.0.len() + 1
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        Job::lend(call, |job| {
            (1..count).zip(&self.0).for_each(|(i, thread)| thread.send((job.clone(), i)).unwrap());
            job.call(0);
        });
    }
}

/// The numbers of threads that plans are made for, and that run them. Two for all types but f32: how
/// work is split depends on little but the widths of tiles.
fn counts<T: Scalar>() -> &'static [usize] {
    if is_short() || T::DTYPE != DType::F32 { &[1, 3] } else { &[1, 2, 3] }
}

/// Pools of these numbers of threads, but none of one thread; in short runs the largest alone.
fn pools<T: Scalar>() -> Vec<ThreadPool> {
    let counts = counts::<T>();
    let counts = if is_short() { &counts[counts.len() - 1..] } else { &counts[1..] };
    counts.iter().map(|&threads| ThreadPoolBuilder::new().num_threads(threads).build().unwrap()).collect()
}

/// Runs the layer in every way, and compares the bits.
fn run_all<T: Scalar>(combination: Combination, layer: &Layer, operands: &Operands<T>, pools: &[ThreadPool]) {
    let mut expected: Option<Vec<u64>> = None;
    for &threads in counts::<T>() {
        let tune = |planner: Planner| planner.threads(threads).activation(Activation::Silu);
        let Some(plan) = combination.plan::<T>(layer, tune) else { return };
        let _context = Context(|| format!("{combination}, {}: {layer}\n{plan:?}", T::DTYPE));
        let verdicts = plan.explain().verdicts();
        let cost = verdicts.iter().find(|verdict| verdict.algorithm == combination.algorithm).and_then(|v| v.cost);
        assert!(cost > Some(LEAST_COST), "{cost:?} is too little work to be shared");
        let packed = operands.pack(&plan);
        let run = |threads: Threads<'_>| bits(&operands.run_packed(&plan, &packed, threads).unwrap());
        let serial = run(Threads::Serial);
        let expected = expected.get_or_insert_with(|| serial.clone());
        assert_eq!(*expected, serial, "planned for {threads} threads, run by one");
        for pool in pools {
            let running = pool.current_num_threads();
            let (given, current) = (Threads::Pool(pool), Threads::Current);
            assert_eq!(*expected, run(given.at_most(threads)), "planned for {threads} threads, run by {running}");
            let installed = pool.install(|| run(current.at_most(threads)));
            assert_eq!(*expected, installed, "planned for {threads} threads, run by the current {running}");
        }
        for executor in [&Scoped(threads) as &dyn Executor, &Chili(threads), &Channels::new(threads)] {
            assert_eq!(
                *expected,
                run(Threads::Executor(executor)),
                "planned for {threads} threads, run by another pool"
            );
        }
        assert_eq!(*expected, run(Threads::Serial), "run again");
    }
}

fn check<T: Scalar>(isas: impl Fn(Isa) -> bool) {
    let pools = pools::<T>();
    for layer in layers() {
        for layouts in [[ChannelsFirst; 2], [ChannelsLast; 2], [ChannelsFirst, ChannelsLast]] {
            let layer = layer.clone().with_layouts(layouts);
            let geometry = layer.geometry();
            let operands = Operands::<T>::uniform(&geometry, 11).with_bias(&geometry).with_residual(&geometry);
            for combination in Combination::distinct().filter(|c| isas(c.isa)) {
                // The naive algorithm is slow, and depends neither on the type nor on layouts.
                let is_tested = T::DTYPE == DType::F32 && layouts == [ChannelsFirst; 2];
                if combination.algorithm != named("naive") || is_tested {
                    run_all(combination, &layer, &operands, &pools);
                }
            }
        }
    }
}

#[test]
fn f32_gives_the_same_bits_for_any_number_of_threads() {
    check::<f32>(|_| true);
}

#[test]
fn f64_gives_the_same_bits_for_any_number_of_threads() {
    check::<f64>(|isa| isa == Isa::detect());
}

#[test]
fn f16_gives_the_same_bits_for_any_number_of_threads() {
    check::<convoke::f16>(|isa| isa == Isa::detect());
}

#[test]
fn bf16_gives_the_same_bits_for_any_number_of_threads() {
    check::<convoke::bf16>(|isa| isa == Isa::detect());
}

#[test]
fn the_place_of_x_in_memory_changes_no_bit() {
    // Rows of whole cache lines, and so many panels that pointwise packs X if it does not begin
    // at a cache line.
    let layer = layer(Conv::new([200, 40, 1, 1]), [1, 40, 8, 16]);
    let geometry = layer.geometry();
    let operands = Operands::<f32>::uniform(&geometry, 3);
    let mut memory = vec![0.0; geometry.input_len() + 16];
    for combination in Combination::all() {
        let Some(plan) = combination.plan::<f32>(&layer, |planner| planner) else { continue };
        let packed = operands.pack(&plan);
        let mut workspace = Workspace::for_plan(&plan).unwrap();
        let mut expected: Option<Vec<f32>> = None;
        for begin in [0, 1, 4, 7, 16] {
            let x = &mut memory[begin..begin + operands.x.len()];
            x.copy_from_slice(&operands.x);
            let mut y = vec![0.0; geometry.output_len()];
            plan.run(Run::new(x, &packed, &mut y).workspace(&mut workspace)).unwrap();
            assert_eq!(*expected.get_or_insert_with(|| y.clone()), y, "{combination}, X {begin} elements further on");
        }
    }
}

/// More threads than most machines have cores, and as many as large servers have.
const MANY: [usize; 3] = [16, 64, 192];

#[test]
fn plans_for_many_threads_give_the_same_bits() {
    let many = if is_short() { &MANY[..1] } else { &MANY };
    let pool = ThreadPoolBuilder::new().num_threads(many[many.len() - 1]).build().unwrap();
    for layer in layers() {
        for layouts in [[ChannelsFirst; 2], [ChannelsLast; 2]] {
            let layer = layer.clone().with_layouts(layouts);
            let operands = Operands::<f32>::uniform(&layer.geometry(), 12);
            let of_this_cpu = |c: &Combination| c.isa == Isa::detect() && c.algorithm != named("naive");
            for combination in Combination::distinct().filter(of_this_cpu) {
                let Some(alone) = combination.plan::<f32>(&layer, |planner| planner) else { continue };
                let expected = bits(&operands.run(&alone));
                for &threads in many {
                    let plan = combination.plan::<f32>(&layer, |planner| planner.threads(threads)).unwrap();
                    plan.prove_tasks().unwrap();
                    let given = Threads::Pool(&pool);
                    let y = operands.run_packed(&plan, &operands.pack(&plan), given.at_most(threads)).unwrap();
                    assert_eq!(expected, bits(&y), "{combination}, {threads} threads: {layer}");
                }
            }
        }
    }
}

//! Tests of Winograd's algorithm alone: its accuracy, its fallbacks, and its sizes.

use crate::common::{Combination, Context, Layer, Operands, Oracle, is_short, isas, layer};
use convoke::{Accuracy, Activation, Conv, ConvTranspose, ErrorKind, Machine, Op, Plan, Planner, Threads, reference};
use convoke_tools::check::usual_transform_error;
use convoke_tools::data::{Random, Scalar};
use convoke_tools::named;

/// Plans that are forced to Winograd, on every ISA.
fn combinations() -> impl Iterator<Item = Combination> {
    isas().map(|isa| Combination { algorithm: named("winograd"), isa })
}

/// How the values of a sample are distributed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Inputs {
    Uniform,
    Normal,
    /// Normal values with the negative ones replaced by zeros, as after a ReLU.
    Relu,
    /// Uniform values with positive weights, so that sums grow.
    Growing,
}

impl Inputs {
    fn value(self, random: &mut Random) -> f64 {
        // The sum of twelve uniform values is nearly normal.
        let mut normal = || (0..12).map(|_| random.uniform()).sum::<f64>() / 2.0;
        match self {
            Self::Uniform | Self::Growing => random.uniform(),
            Self::Normal => normal(),
            Self::Relu => normal().max(0.0),
        }
    }
}

/// A layer with operands and their exact results.
struct Sample {
    operands: Operands<f32>,
    exact: Vec<f64>,
    /// The root mean square of the exact results.
    rms: f64,
}

impl Sample {
    fn new(layer: &Layer, inputs: Inputs) -> Self {
        let geometry = layer.geometry();
        let mut random = Random::new(5);
        let mut operands = Operands::<f32>::generate(&geometry, || inputs.value(&mut random));
        let mut random = Random::new(6);
        let sign = |w: f64| if inputs == Inputs::Growing { w.abs() } else { w };
        operands.w.iter_mut().for_each(|w| *w = sign(Inputs::Normal.value(&mut random)) as f32);
        let exact = reference::all(&geometry, &operands.x, &operands.w, None);
        let exact: Vec<_> = exact.iter().map(|e| e.value).collect();
        let rms = root_mean_square(exact.iter().copied());
        Self { operands, exact, rms }
    }

    /// The error of a plan's results relative to the root mean square of the exact results: its
    /// own root mean square, and its maximum.
    fn error(&self, plan: &Plan<f32>) -> (f64, f64) {
        let y = self.operands.run(plan);
        let errors = y.iter().zip(&self.exact).map(|(y, exact)| (f64::from(*y) - exact).abs() / self.rms);
        (root_mean_square(errors.clone()), errors.fold(0.0, f64::max))
    }
}

fn root_mean_square(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

/// This test prints the cases whose greatest figures docs/journal/winograd-errors.md has: `cargo test
/// --release --test suite -- --nocapture winograd::the_error`.
#[test]
fn the_error_of_ordinary_data_is_what_the_documentation_says() {
    let layers = |channels: usize| {
        [
            layer(Conv::new([16, channels, 3, 3]).pads([1, 1, 1, 1]), [1, channels, 28, 28]),
            layer(Conv::new([16, channels, 3, 3]).pads([1, 1, 1, 1]), [1, channels, 14, 14]),
            layer(Conv::new([16, channels, 3, 3]).pads([1, 1, 1, 1]), [1, channels, 7, 7]),
            layer(Conv::new([16, channels, 3]).pads([1, 1]), [1, channels, 200]),
            layer(Conv::new([16, channels, 5, 5]).pads([2, 2, 2, 2]), [1, channels, 14, 14]),
            layer(Conv::new([16, channels, 7]).pads([3, 3]), [1, channels, 200]),
            layer(Conv::new([32, channels, 3, 3, 3]).pads([1; 6]), [1, channels, 2, 10, 10]),
            layer(Conv::new([16, channels, 5, 5]).strides([2, 2]).pads([2; 4]), [1, channels, 28, 28]),
            layer(ConvTranspose::new([channels, 4, 4, 4]).strides([2, 2]).pads([1; 4]), [1, channels, 14, 14]),
            layer(Conv::new([16, channels, 5, 5]).pads([2, 2, 2, 2]), [1, channels, 28, 28]),
            layer(Conv::new([16, channels, 5]).pads([2, 2]), [1, channels, 200]),
            layer(Conv::new([16, channels, 5, 1]).pads([2, 0, 2, 0]), [1, channels, 23, 32]),
        ]
    };
    // The most steps that are summed in one go, and so many outputs that rare errors are among them.
    let longest_sums = [
        (layer(Conv::new([64, 192, 3, 3]).pads([1, 1, 1, 1]), [1, 192, 70, 70]), Inputs::Normal),
        (layer(Conv::new([64, 192, 5, 5]).pads([2, 2, 2, 2]), [1, 192, 56, 56]), Inputs::Growing),
    ];
    println!("| layer | C | inputs | kernel | error, RMS | maximum |\n|---|---:|---|---|---:|---:|");
    let mut kernels = std::collections::BTreeSet::new();
    let mut check = |layer: &Layer, channels: usize, inputs: Inputs| {
        let sample = Sample::new(layer, inputs);
        for accuracy in [Accuracy::Strict, Accuracy::Standard, Accuracy::Fast] {
            let planner = Planner::new().accuracy(accuracy);
            let planner = match accuracy {
                Accuracy::Strict if layer.geometry().op == Op::Conv => planner.algorithm(named("gemm")),
                Accuracy::Strict => planner.algorithm(named("transposed")),
                _ => planner.algorithm(named("winograd")),
            };
            let plan = planner.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
            let (kernel, (rms, most)) = (plan.kernel().to_owned(), sample.error(&plan));
            println!(
                "| {:?} on {:?} | {channels} | {inputs:?} | `{kernel}` | {rms:.1e} | {most:.1e} |",
                layer.geometry().weight_shape(),
                layer.x_shape
            );
            let bound = match accuracy {
                Accuracy::Strict => 1e-5,
                Accuracy::Standard => 5e-5,
                _ => 1e-4,
            };
            assert!(most <= bound, "{kernel} with {channels} channels, {inputs:?}: {most:e}");
            kernels.insert(kernel);
        }
    };
    let channels: &[usize] = if is_short() { &[3, 64] } else { &[3, 64, 256, 2048] };
    for &channels in channels {
        // The reference takes long for the sums of the longest layers.
        let count = if channels > 256 { 2 } else { 12 };
        for layer in layers(channels).iter().take(count) {
            for inputs in [Inputs::Uniform, Inputs::Normal, Inputs::Relu, Inputs::Growing] {
                check(layer, channels, inputs);
            }
        }
    }
    if !is_short() {
        for (layer, inputs) in &longest_sums {
            check(layer, 192, *inputs);
        }
    }
    assert!(kernels.len() >= 8, "{kernels:?}");
    for tile in ["f4x4_3x3", "f4x5_3x3", "f1x6_1x3", "f2x4_5x5", "f1x4_1x5", "f4x1_5x1"] {
        assert!(kernels.iter().any(|kernel| kernel.contains(tile)), "{tile}: not among {kernels:?}");
    }
}

#[test]
fn strict_accuracy_excludes_it_and_says_so() {
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    let free = Planner::new().plan::<f32>(conv.clone(), &[1, 64, 28, 28]).unwrap();
    assert_eq!(free.algorithm(), named("winograd"));
    let strict = Planner::new().accuracy(Accuracy::Strict);
    let plan = strict.plan::<f32>(conv.clone(), &[1, 64, 28, 28]).unwrap();
    assert_ne!(plan.algorithm(), named("winograd"));
    let explanation = format!("{:#}", plan.explain());
    let line = explanation.lines().find(|line| line.contains("not winograd")).unwrap();
    assert!(line.contains("Accuracy::Strict"), "{line}");
    let error = strict.algorithm(named("winograd")).plan::<f32>(conv, &[1, 64, 28, 28]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn the_large_tiles_of_fast_accuracy_convolve() {
    fn check<T: Scalar>() {
        let layers = [
            layer(Conv::new([19, 40, 3, 3]).pads([1, 1, 1, 1]), [2, 40, 25, 31]),
            layer(Conv::new([33, 20, 3, 3]).pads([0, 2, 1, 0]), [1, 20, 48, 49]),
            layer(Conv::new([128, 64, 3, 3]).pads([1, 1, 1, 1]), [1, 64, 24, 24]),
            layer(Conv::new([16, 30, 3]).pads([1, 1]), [1, 30, 400]),
            layer(Conv::new([21, 18, 5, 5]).pads([2, 1, 2, 3]), [2, 18, 30, 27]),
            layer(Conv::new([6, 9, 3, 3, 3]).pads([1; 6]), [1, 9, 5, 19, 25]),
        ];
        for combination in combinations() {
            let mut large = std::collections::BTreeSet::new();
            for layer in &layers {
                // The machine decides the tile.
                let tune = |planner: Planner| {
                    planner.accuracy(Accuracy::Fast).machine(Machine::zen5().with_isa(combination.isa))
                };
                let plan = combination.plan::<T>(layer, tune).unwrap();
                large.extend(["f6x6_3x3", "f4x4_5x5"].into_iter().filter(|tile| plan.kernel().ends_with(tile)));
                let geometry = layer.geometry();
                let operands = Operands::<T>::uniform(&geometry, 8);
                let wide = reference::wide_magnitudes(&geometry, &operands.x, &operands.w);
                let exact = reference::all(&geometry, &operands.x, &operands.w, None);
                for (index, (y, exact)) in operands.run(&plan).iter().zip(exact).enumerate() {
                    let channel = index / geometry.output_spatial() % geometry.out_channels;
                    let tolerance = reference::tolerance::<T>(&geometry, exact.magnitude)
                        // Tiles of 8x8 values have about five times the error of tiles of 6x6.
                        + 5.0 * usual_transform_error::<T>(named("winograd"), wide[channel]);
                    assert!((y.to_f64() - exact.value).abs() <= tolerance, "{combination}, {layer}: {y:?}, {exact:?}");
                }
            }
            assert_eq!(large.len(), 2, "{combination}: the large tiles that Fast chose are {large:?}");
        }
    }
    for_each_type!(check());
}

#[test]
fn special_values_at_every_place_of_a_tile_come_out_where_the_definition_has_them() {
    fn check<T: Scalar>(activations: &[Activation]) {
        let layers = [
            layer(Conv::new([18, 3, 3, 3]).pads([1, 1, 1, 1]), [1, 3, 9, 10]),
            layer(Conv::new([3, 2, 5, 5]).pads([2, 2, 2, 2]), [1, 2, 7, 6]),
            layer(Conv::new([5, 2, 7]).pads([3, 3]), [2, 2, 23]),
            layer(Conv::new([4, 2, 3, 3]).pads([2, 3, 2, 3]).dilations([2, 3]), [1, 2, 5, 8]),
            layer(Conv::new([3, 2, 3, 3, 3]).pads([1; 6]), [1, 2, 4, 5, 6]),
            layer(Conv::new([4, 2, 3, 5]).strides([2, 3]).pads([1, 2, 0, 1]), [1, 2, 9, 11]),
            layer(ConvTranspose::new([2, 3, 3, 3]).strides([2, 2]).pads([1; 4]).output_padding([1, 0]), [1, 2, 5, 6]),
            layer(ConvTranspose::new([3, 6, 4]).strides([2]).pads([1, 2]), [2, 3, 13]),
        ];
        for layer in &layers {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 4).with_bias(&geometry);
            let mut plans = Vec::new();
            for (combination, &activation) in combinations().flat_map(|c| activations.iter().map(move |a| (c, a))) {
                let plan = combination.plan::<T>(layer, |planner| planner.activation(activation)).unwrap();
                let packed = operands.pack(&plan);
                plans.push((combination, activation, plan, packed));
            }
            let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
            // In short runs, each place has one of the three in turn.
            let at = |place: usize| if is_short() { &specials[place % 3..][..1] } else { &specials };
            let places = 0..geometry.input_len();
            for (place, special) in places.flat_map(|place| at(place).iter().map(move |special| (place, *special))) {
                let usual = std::mem::replace(&mut operands.x[place], T::from_f64(special));
                let oracle = Oracle::new(&geometry, &operands);
                for (combination, activation, plan, packed) in &plans {
                    let _context = Context(|| format!("{combination}, {}: {special} at {place}: {layer}", T::DTYPE));
                    let y = operands.run_packed(plan, packed, Threads::Serial).unwrap();
                    assert_eq!(oracle.check(named("winograd"), *activation, &y), Ok(()));
                }
                operands.x[place] = usual;
            }
        }
    }
    check::<f32>(&[Activation::None, Activation::Clip { min: -1.0, max: 1.0 }]);
    check::<f64>(&[Activation::None]);
    check::<convoke::f16>(&[Activation::Relu]);
    check::<convoke::bf16>(&[Activation::None]);
}

#[test]
fn finite_results_of_values_that_overflow_the_transforms_are_right() {
    // The transforms add values that the definition multiplies by zeros. They can overflow while
    // the result does not.
    let layer = layer(Conv::new([4, 1, 3, 3]).pads([1, 1, 1, 1]), [1, 1, 8, 8]);
    let geometry = layer.geometry();
    let mut operands = Operands::<f32>::uniform(&geometry, 2);
    operands.x.iter_mut().for_each(|x| *x = x.signum() * 3e38);
    operands.w.iter_mut().for_each(|w| *w *= 1e-3);
    let oracle = Oracle::new(&geometry, &operands);
    assert!(oracle.elements().iter().all(|e| e.value.is_finite()));
    for combination in combinations() {
        let plan = combination.plan::<f32>(&layer, |planner| planner).unwrap();
        assert_eq!(oracle.check(named("gemm"), Activation::None, &operands.run(&plan)), Ok(()), "{combination}");
    }
}

#[test]
fn weights_that_are_not_finite_are_summed_directly() {
    fn check<T: Scalar>() {
        let layers = [
            layer(Conv::new([20, 5, 3, 3]).pads([1, 1, 1, 1]), [2, 5, 13, 9]),
            // Phases with one tile fewer, at the end of the residual.
            layer(Conv::new([20, 5, 7]).pads([9, 9]).dilations([3]), [1, 5, 100]),
            layer(Conv::new([20, 3, 5, 7]).strides([2, 4]).pads([1, 2, 0, 1]), [2, 3, 9, 21]),
            // Contributions that do not exist must not become zero times infinity: at the border,
            // and for taps that one phase has and another lacks.
            layer(ConvTranspose::new([5, 4, 5, 3]).strides([3, 2]).pads([1, 1, 2, 0]), [2, 5, 4, 9]),
        ];
        for (special, layer) in [f64::NAN, f64::INFINITY].into_iter().flat_map(|s| layers.iter().map(move |l| (s, l))) {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 9).with_bias(&geometry).with_residual(&geometry);
            let at = 7 * operands.w.len() / 20 + 4;
            operands.w[at] = T::from_f64(special);
            let oracle = Oracle::new(&geometry, &operands);
            for combination in combinations() {
                let plan = combination.plan::<T>(layer, |planner| planner).unwrap();
                // The bound of direct sums holds, because nothing is transformed.
                let difference = oracle.check(named("gemm"), Activation::None, &operands.run(&plan));
                assert_eq!(difference, Ok(()), "{combination}, {}", T::DTYPE);
            }
        }
    }
    for_each_type!(check());
}

/// The workspace of a thread stays below a limit on every machine that has a name, and on this one. Which block is estimated
/// to be the fastest depends on caches.
#[test]
#[cfg(target_pointer_width = "64")]
fn workspace_does_not_grow_with_the_image() {
    fn bytes<T: Scalar>(w: &[usize], x: &[usize]) -> usize {
        let pads: Vec<_> = w[2..].iter().chain(&w[2..]).map(|k| *k as i64 / 2).collect();
        let planner = Planner::new().algorithm(named("winograd"));
        let bytes = |machine: Machine| {
            let plan = planner.clone().machine(machine).plan::<T>(Conv::new(w).pads(pads.clone()), x);
            plan.unwrap().workspace_bytes()
        };
        let machines = || Machine::named().into_iter().chain([Machine::host()]);
        isas().flat_map(|isa| machines().map(move |machine| bytes(machine.with_isa(isa)))).max().unwrap()
    }
    const LIMIT: usize = 5 << 20;
    for size in [224, 448, 1000, 4001, 1 << 20] {
        assert!(bytes::<f32>(&[64, 64, 3, 3], &[1, 64, 60, size]) <= LIMIT, "{size}");
        assert!(bytes::<f32>(&[64, 64, 3, 3], &[1, 64, size, size]) <= LIMIT, "{size}");
        assert!(bytes::<convoke::f16>(&[64, 64, 3, 3], &[1, 64, size, size]) <= LIMIT, "{size}");
        assert!(bytes::<convoke::bf16>(&[64, 64, 3], &[1, 64, size * size]) <= LIMIT, "{size}");
    }
    assert!(bytes::<f64>(&[16, 1, 200, 3, 3], &[1, 1, 500, 20, 20]) <= LIMIT);
}

#[test]
fn blocks_keep_within_the_limit_of_the_workspace() {
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    let plan =
        |limit: usize| Planner::new().workspace_limit(limit).plan::<f32>(conv.clone(), &[1, 64, 224, 224]).unwrap();
    let free = plan(usize::MAX);
    let tight = plan(free.workspace_bytes() / 2);
    assert_eq!(tight.algorithm(), named("winograd"));
    assert!(tight.workspace_bytes() <= free.workspace_bytes() / 2);
}

/// Caches so small that filters are read once for several slices of Y, in one turn or more; the last
/// turn may be shorter. Limits of the workspace leave fewer slices in a turn.
#[test]
fn slices_of_y_share_filters_and_have_the_same_bits_as_alone() {
    fn check<T: Scalar>() {
        let mut numbers = std::collections::BTreeSet::new();
        for layer in [
            layer(Conv::new([40, 24, 3, 3, 3]).pads([1; 6]), [1, 24, 7, 9, 10]),
            layer(Conv::new([36, 16, 3, 3, 3]).pads([1; 6]).group(2), [2, 32, 11, 6, 5]),
            layer(Conv::new([20, 12, 3, 3, 3]).strides([2, 1, 1]).pads([1; 6]), [1, 12, 13, 8, 7]),
            // Slices of X that none of Y sees, and slices of Y that see only padding.
            layer(Conv::new([20, 12, 2, 3, 3]).strides([5, 1, 1]), [1, 12, 33, 6, 6]),
            layer(Conv::new([20, 12, 3, 3, 3]).pads([9, 1, 1, 9, 1, 1]), [1, 12, 4, 6, 6]),
            layer(Conv::new([20, 12, 3, 3, 3]).pads([4, 1, 1, 4, 1, 1]), [1, 12, 1, 6, 6]),
            layer(ConvTranspose::new([12, 20, 4, 4, 4]).strides([2; 3]).pads([1; 6]), [1, 12, 5, 6, 6]),
        ] {
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 5).with_bias(&geometry).with_residual(&geometry);
            let place = operands.x.len() / 2;
            operands.x[place] = T::from_f64(f64::NAN);
            let oracle = Oracle::new(&geometry, &operands);
            for isa in isas() {
                let mut machine = Machine::no_l3().with_isa(isa);
                (machine.l2_bytes, machine.l3_bytes) = (16 << 10, 0);
                let planner = Planner::new().machine(machine).algorithm(named("winograd"));
                let plan = |threads: usize, limit: usize| {
                    let planner = planner.clone().threads(threads).workspace_limit(limit);
                    planner.plan::<T>(layer.operator.clone(), &layer.x_shape).ok()
                };
                let free = plan(1, usize::MAX).unwrap();
                let y = operands.run(&free);
                assert_eq!(oracle.check(named("winograd"), Activation::None, &y), Ok(()), "{layer}: {free:?}");
                for (threads, part) in [(1, 1), (1, 2), (1, 3), (1, 4), (1, 6), (3, 1), (16, 1)] {
                    let Some(plan) = plan(threads, threads * free.workspace_bytes() / part) else { continue };
                    let explanation = format!("{:#}", plan.explain());
                    let slices = explanation.split(" slices at a time").next().filter(|text| *text != explanation);
                    let slices = slices.and_then(|text| text.rsplit(' ').next()?.parse().ok()).unwrap_or(1);
                    numbers.insert((slices, geometry.axes[0].output.is_multiple_of(slices)));
                    // Which bits a NaN has is not defined.
                    let is_same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    let mut pairs = operands.run(&plan).into_iter().zip(&y);
                    assert!(pairs.all(|(a, b)| is_same(a.to_f64(), b.to_f64())), "{layer}: {explanation}");
                }
            }
        }
        // Alone, several with a shorter last turn, and all.
        assert!(numbers.len() > 4 && numbers.iter().any(|(slices, is_even)| *slices > 1 && !is_even), "{numbers:?}");
    }
    check::<f32>();
    check::<convoke::f16>();
}

#[test]
#[cfg(target_pointer_width = "64")]
fn hostile_sizes_are_planned_and_packed_at_once() {
    let start = std::time::Instant::now();
    let forced = Planner::new().algorithm(named("winograd"));
    for (conv, x) in [
        (Conv::new([1, 1, 3]), vec![1, 1, 1 << 40]),
        (Conv::new([1, 1, 3, 3]), vec![1, 1, 1 << 25, 1 << 25]),
        (Conv::new([1, 1, 1, 3]), vec![1, 1, 1 << 50, 5]),
        (Conv::new([1, 1, 3]).dilations([1 << 40]).pads([1 << 40, 1 << 40]), vec![1, 1, 10]),
        (Conv::new([1, 1, 3, 3]).dilations([1 << 30; 2]).pads([1 << 30; 4]), vec![1, 1, 10, 10]),
        (Conv::new([1, 1, 3]), vec![1 << 40, 1, 5]),
        (Conv::new([1, 1, 3, 1, 3]), vec![1, 1, 1 << 40, 1, 5]),
        (Conv::new([1, 1, 3, 1, 3]).strides([1 << 30, 1, 1]), vec![1, 1, 1 << 40, 1, 5]),
    ] {
        let plan = forced.plan::<f32>(conv, &x).unwrap();
        assert!(plan.geometry().output_len() > 100 || format!("{:#}", plan.explain()).contains(" task"), "{plan:?}");
    }
    // A long kernel is cut into many filters with a few taps each.
    let layer = layer(Conv::new([2, 1, 6000]), [1, 1, 6100]);
    let plan = forced.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    let operands = Operands::<f32>::uniform(&layer.geometry(), 3);
    let oracle = Oracle::new(&layer.geometry(), &operands);
    assert_eq!(oracle.check(named("winograd"), Activation::None, &operands.run(&plan)), Ok(()));
    // Beyond some number of steps of K, the tables would be large.
    let error = forced.plan::<f32>(Conv::new([2, 1 << 24, 3, 3]), &[1, 1 << 24, 9, 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn large_outputs_are_written_past_the_caches() {
    // Rows that are whole cache lines, and rows that are not. Y has more than 4 MiB in both
    // cases.
    for width in [128, 129] {
        let layer = layer(Conv::new([70, 2, 3, 3]).pads([1, 1, 1, 1]), [1, 2, 128, width]);
        let geometry = layer.geometry();
        assert!(geometry.output_len() * 4 >= 4 << 20);
        let operands = Operands::<f32>::uniform(&geometry, 6).with_bias(&geometry);
        let oracle = Oracle::new(&geometry, &operands);
        for combination in combinations() {
            let plan = combination.plan::<f32>(&layer, |planner| planner).unwrap();
            assert_eq!(
                oracle.check(named("winograd"), Activation::None, &operands.run(&plan)),
                Ok(()),
                "{combination}"
            );
        }
    }
}

#[test]
fn a_dilated_layer_may_have_fewer_outputs_than_phases() {
    fn check<T: Scalar>() {
        for (conv, shape) in [
            (Conv::new([3, 2, 3]).dilations([4]), vec![1, 2, 9]),
            (Conv::new([3, 2, 3, 3]).dilations([5, 3]).pads([5, 3, 5, 3]), vec![1, 2, 2, 2]),
        ] {
            let layer = layer(conv, shape);
            let operands = Operands::<T>::uniform(&layer.geometry(), 12);
            let oracle = Oracle::new(&layer.geometry(), &operands);
            for combination in combinations() {
                let plan = combination.plan::<T>(&layer, |planner| planner).unwrap();
                let difference = oracle.check(named("winograd"), Activation::None, &operands.run(&plan));
                assert_eq!(difference, Ok(()), "{combination}, {layer}");
            }
        }
    }
    for_each_type!(check());
}

#[test]
fn small_images_share_blocks_and_the_last_block_may_have_fewer() {
    for (shape, w) in [([7, 6, 6, 5], [20, 6, 3, 3]), ([11, 3, 9, 4], [5, 3, 5, 5]), ([5, 4, 7, 13], [18, 4, 7, 1])] {
        let pads = [w[2] as i64 / 2, w[3] as i64 / 2, w[2] as i64 / 2, w[3] as i64 / 2];
        let layer = layer(Conv::new(w).pads(pads), shape);
        let geometry = layer.geometry();
        let mut operands = Operands::<f32>::uniform(&geometry, 12).with_bias(&geometry).with_residual(&geometry);
        for is_finite in [true, false] {
            if !is_finite {
                let last = operands.x.len() - 3;
                (operands.x[0], operands.x[last]) = (f32::INFINITY, f32::NAN);
            }
            let oracle = Oracle::new(&geometry, &operands);
            for combination in combinations() {
                for threads in [1, 2] {
                    let plan = combination.plan::<f32>(&layer, |planner| planner.threads(threads)).unwrap();
                    let y = operands.run(&plan);
                    assert_eq!(oracle.check(named("winograd"), Activation::None, &y), Ok(()), "{combination}, {layer}");
                }
            }
        }
    }
}

/// The outputs that dilation interleaves are images of a block: on one axis or two, with paddings
/// that differ from phase to phase, and fewer images in the last block.
#[test]
fn phases_of_a_dilation_share_blocks_and_the_last_block_may_have_fewer() {
    fn check<T: Scalar>() {
        let mut shared = 0;
        for (conv, shape) in [
            (Conv::new([20, 6, 3, 3]).dilations([3, 3]).pads([3, 3, 3, 3]), vec![1, 6, 13, 14]),
            // More than one image, different distances on each axis, and pads that are not
            // multiples of them.
            (Conv::new([18, 4, 3, 3]).dilations([2, 5]).pads([1, 7, 4, 2]), vec![3, 4, 9, 15]),
            (Conv::new([9, 5, 3, 3]).dilations([1, 4]).pads([2, 0, 1, 9]), vec![2, 5, 6, 11]),
            (Conv::new([9, 5, 3, 3]).dilations([4, 1]).pads([6, 1, 0, 1]), vec![1, 5, 11, 6]),
            // Phases that see only padding.
            (Conv::new([6, 3, 3, 3]).dilations([5, 5]).pads([14, 14, 14, 14]), vec![1, 3, 2, 2]),
            // Groups; several filters on an axis; one axis; an outer axis.
            (Conv::new([16, 3, 5, 5]).dilations([2, 3]).pads([4, 6, 4, 6]).group(2), vec![1, 6, 8, 12]),
            (Conv::new([17, 3, 3]).dilations([6]).pads([6, 5]), vec![2, 3, 40]),
            (Conv::new([7, 4, 2, 3, 3]).dilations([1, 2, 2]).pads([1, 2, 2, 1, 2, 2]), vec![1, 4, 3, 6, 7]),
        ] {
            let layer = layer(conv, shape);
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 12).with_bias(&geometry).with_residual(&geometry);
            for is_finite in [true, false] {
                if !is_finite {
                    let last = operands.x.len() - 3;
                    (operands.x[0], operands.x[last]) = (T::from_f64(f64::INFINITY), T::from_f64(f64::NAN));
                }
                let oracle = Oracle::new(&geometry, &operands);
                for (combination, threads) in combinations().flat_map(|c| [(c, 1), (c, 2)]) {
                    let plan = combination.plan::<T>(&layer, |planner| planner.threads(threads)).unwrap();
                    // The block's images, rows and columns of tiles.
                    let explanation = format!("{:#}", plan.explain());
                    let block = explanation.split(" tiles, weights").next().and_then(|text| text.rsplit(" of ").next());
                    shared += usize::from(block.is_some_and(|block| block.split(" x ").count() == 3));
                    let checked = oracle.check(named("winograd"), Activation::None, &operands.run(&plan));
                    assert_eq!(checked, Ok(()), "{combination}, {threads} threads, {layer}, {block:?}");
                }
            }
        }
        // Nearly all of them share blocks.
        let all = 8 * 2 * 2 * combinations().count();
        assert!(shared * 4 > all * 3, "{shared} of {all}");
    }
    for_each_type!(check());
}

/// If kernels are about twice as long as their stride, each phase has two taps. In some phases
/// one of them is zero.
#[test]
fn long_strides_are_multiplied_by_phases() {
    fn check<T: Scalar>() {
        for (conv, shape) in [
            (Conv::new([20, 12, 10]).strides([5]).pads([4, 1]), vec![1, 12, 131]),
            (Conv::new([24, 6, 32]).strides([16]).pads([8, 8]), vec![2, 6, 333]),
            (Conv::new([17, 3, 15, 9]).strides([13, 7]).pads([5, 0, 9, 4]), vec![1, 3, 66, 40]),
        ] {
            let layer = layer(conv, shape);
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 12).with_bias(&geometry);
            for is_finite in [true, false] {
                if !is_finite {
                    let last = operands.x.len() - 3;
                    (operands.x[0], operands.x[last]) = (T::from_f64(f64::INFINITY), T::from_f64(f64::NAN));
                }
                let oracle = Oracle::new(&geometry, &operands);
                for (combination, threads) in combinations().flat_map(|c| [1, 3].map(|threads| (c, threads))) {
                    let plan = combination.plan::<T>(&layer, |planner| planner.threads(threads)).unwrap();
                    let checked = oracle.check(named("winograd"), Activation::None, &operands.run(&plan));
                    assert_eq!(checked, Ok(()), "{combination}, {threads} threads, {layer}: {plan:?}");
                }
            }
        }
    }
    for_each_type!(check());
}

/// Where blocks are few, threads take parts of the panels of filters, which may be uneven.
#[test]
fn panels_are_cut_into_parts() {
    fn check<T: Scalar>() {
        let mut cut = 0;
        for (conv, shape) in [
            // The last row of tiles has fewer outputs, and some of its products are left out.
            (Conv::new([96, 24, 3, 3]).pads([1, 1, 1, 1]), vec![1, 24, 14, 14]),
            (Conv::new([20, 40, 3, 3]).pads([1, 1, 1, 1]), vec![1, 40, 13, 9]),
            // Several filters on an axis: blocks have extra rows of transformed tiles.
            (Conv::new([40, 30, 7, 7]).pads([3, 3, 3, 3]), vec![1, 30, 11, 12]),
            // Strides; taps of an outer axis.
            (Conv::new([72, 20, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), vec![1, 20, 22, 26]),
            (Conv::new([36, 16, 3, 3, 3]).pads([1, 1, 1, 1, 1, 1]), vec![1, 16, 3, 8, 10]),
        ] {
            let layer = layer(conv, shape);
            let geometry = layer.geometry();
            let mut operands = Operands::<T>::uniform(&geometry, 12).with_bias(&geometry).with_residual(&geometry);
            for is_finite in [true, false] {
                if !is_finite {
                    let last = operands.x.len() - 3;
                    (operands.x[0], operands.x[last]) = (T::from_f64(f64::INFINITY), T::from_f64(f64::NAN));
                }
                let oracle = Oracle::new(&geometry, &operands);
                for (combination, threads) in combinations().flat_map(|c| [2, 3, 5, 16].map(|threads| (c, threads))) {
                    let plan = combination.plan::<T>(&layer, |planner| planner.threads(threads)).unwrap();
                    let explanation = format!("{:#}", plan.explain());
                    cut += usize::from(!explanation.contains("weights in 1 part,"));
                    let checked = oracle.check(named("winograd"), Activation::None, &operands.run(&plan));
                    assert_eq!(checked, Ok(()), "{combination}, {threads} threads, {layer}: {explanation}");
                }
            }
        }
        let all = 5 * 2 * 4 * combinations().count();
        assert!(4 * cut > all, "{cut} of {all}");
    }
    for_each_type!(check());
}

#[test]
fn packed_weights_serve_other_sizes() {
    let conv = || Conv::new([40, 24, 3, 3]).pads([1, 1, 1, 1]);
    let planner = Planner::new().algorithm(named("winograd"));
    let large = planner.plan::<f32>(conv(), &[1, 24, 56, 56]).unwrap();
    let operands = Operands::<f32>::uniform(large.geometry(), 1);
    let packed = operands.pack(&large);
    // Weights for tiles that only Fast allows also serve plans of other accuracies, except
    // Strict.
    let wide = || Conv::new([128, 128, 3, 3]).pads([1, 1, 1, 1]);
    let fast = planner.clone().accuracy(Accuracy::Fast).plan::<f32>(wide(), &[1, 128, 48, 48]).unwrap();
    assert!(fast.kernel().contains("f6x6"), "{fast:?}");
    let fast = Operands::<f32>::uniform(fast.geometry(), 1).pack(&fast);
    assert!(Planner::new().packed_for(&fast).plan::<f32>(wide(), &[1, 128, 7, 7]).unwrap().kernel().contains("f6x6"));
    for shape in [[1, 24, 7, 7], [3, 24, 13, 30], [1, 24, 1, 1]] {
        let layer = layer(conv(), shape);
        let plan = Planner::new().packed_for(&packed).plan::<f32>(conv(), &shape).unwrap();
        let geometry = layer.geometry();
        let operands = Operands { w: operands.w.clone(), ..Operands::uniform(&geometry, 3) };
        let y = operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
        assert_eq!(Oracle::new(&geometry, &operands).check(named("winograd"), Activation::None, &y), Ok(()), "{layer}");
    }
}

#[test]
fn packed_weights_of_phases_serve_other_pads() {
    let operator = |pads: [i64; 4]| ConvTranspose::new([24, 10, 4, 4]).strides([2, 2]).pads(pads);
    let plan = Planner::new().algorithm(named("winograd")).plan::<f32>(operator([1; 4]), &[1, 24, 9, 9]).unwrap();
    let operands = Operands::<f32>::uniform(plan.geometry(), 1);
    let packed = operands.pack(&plan);
    for pads in [[0, 0, 0, 0], [3, 2, 0, 1], [1, 0, 3, 2]] {
        let layer = layer(operator(pads), [2, 24, 6, 11]);
        let geometry = layer.geometry();
        let plan = Planner::new().packed_for(&packed).plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
        let operands = Operands { w: operands.w.clone(), ..Operands::uniform(&geometry, 3) };
        let y = operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
        let difference = Oracle::new(&geometry, &operands).check(named("winograd"), Activation::None, &y);
        assert_eq!(difference, Ok(()), "{layer}");
    }
}

/// A random layer that Winograd may accept: dense, grouped or depthwise, shallow or deep, with
/// strides or dilations, on one or two axes, or a ConvTranspose.
fn random_layer(random: &mut Random) -> Layer {
    let mut below = |count: usize| random.below(count);
    let axes = 1 + usize::from(below(4) != 0);
    let (group, c, m) = match below(4) {
        0 => (1 + below(24), 1, 1 + below(2)),
        1 => (1 + below(6), 1 + below(8), 1 + below(8)),
        2 => (1, 1 + below(48), 1 + below(24)),
        _ => (1, 1 << below(11), 1 + below(4)),
    };
    let is_transposed = below(4) == 0;
    let kernel: Vec<_> = (0..axes).map(|_| 2 + below(5)).collect();
    let stride = if below(4) == 0 { 2 } else { 1 };
    let dilation = if stride == 1 && !is_transposed && below(4) == 0 { 2 } else { 1 };
    // Maps are small where there are many channels, so that layers take about as long. Most layers
    // are small: more of them tell more about errors than large maps.
    let products = 1 << if below(16) == 0 { 18 } else { 12 };
    let most = products / (group * c * m * kernel.iter().product::<usize>()).max(1);
    let most = if axes == 1 { most.clamp(8, 400) } else { most.isqrt().clamp(6, 40) };
    let least = (kernel[0].max(kernel[axes - 1]) - 1) * dilation + 1;
    let batch = 1 + below(2);
    let shape: Vec<_> = [batch, group * c].into_iter().chain((0..axes).map(|_| least + below(most))).collect();
    let pads = vec![(below(2) * (kernel[axes - 1] / 2)) as i64; 2 * axes];
    let (strides, dilations) = (vec![stride as i64; axes], vec![dilation as i64; axes]);
    if is_transposed {
        let w: Vec<_> = [group * c, m].into_iter().chain(kernel).collect();
        layer(ConvTranspose::new(w).group(group as i64).strides(strides).pads(pads), shape)
    } else {
        let w: Vec<_> = [group * m, c].into_iter().chain(kernel).collect();
        layer(Conv::new(w).group(group as i64).strides(strides).dilations(dilations).pads(pads), shape)
    }
}

/// The greatest error of a run beyond what direct sums may have, as a share of the usual one.
fn share_of_usual<T: Scalar>(plan: &Plan<T>, operands: &Operands<T>) -> f64 {
    let geometry = plan.geometry();
    let wide = reference::wide_magnitudes(geometry, &operands.x, &operands.w);
    let exact = reference::all(geometry, &operands.x, &operands.w, None);
    let shares = operands.run(plan).into_iter().zip(exact).enumerate().map(|(index, (y, exact))| {
        let channel = index / geometry.output_spatial() % geometry.out_channels;
        let beyond = (y.to_f64() - exact.value).abs() - reference::tolerance::<T>(geometry, exact.magnitude);
        assert!(beyond.is_finite(), "{beyond} at element {index}: {plan:?}");
        beyond / usual_transform_error::<T>(named("winograd"), wide[channel])
    });
    shares.fold(0.0, f64::max)
}

/// These layers exceeded an earlier, narrower estimate of the usual error: one has a single channel a
/// group, one has many channels in f16.
#[test]
fn errors_of_layers_that_exceeded_a_bound_stay_below_half_of_the_usual() {
    fn check<T: Scalar>(layer: &Layer, seeds: u64) {
        for combination in combinations() {
            let plan = combination.plan::<T>(layer, |planner| planner).expect("winograd accepts it");
            for seed in 0..seeds {
                let share = share_of_usual(&plan, &Operands::<T>::uniform(plan.geometry(), seed));
                assert!(share <= 0.5, "{combination}, seed {seed}: {share} of the usual");
            }
        }
    }
    check::<f32>(&layer(Conv::new([16, 1, 3, 3]).group(16).pads([1; 4]), [1, 16, 32, 32]), 8);
    check::<convoke::f16>(&layer(Conv::new([4, 1024, 3, 3]).pads([1; 4]), [2, 1024, 10, 10]), 1);
}

/// The errors of random layers stay below half of what is usual. `CONVOKE_CASES` is their number on
/// each ISA and for each type, which all have layers of their own.
#[test]
fn errors_of_random_layers_stay_below_half_of_the_usual() {
    fn check<T: Scalar>(combination: Combination, seed: u64) -> f64 {
        let (mut random, mut ran) = (Random::new(seed), 0);
        let (mut most, mut worst) = (0.0_f64, String::new());
        while ran < crate::common::cases() {
            let layer = random_layer(&mut random);
            let Ok(geometry) = layer.operator.geometry(&layer.x_shape) else { continue };
            let Some(plan) = combination.plan::<T>(&layer, |planner| planner) else { continue };
            ran += 1;
            let share = share_of_usual(&plan, &Operands::<T>::uniform(&geometry, u64::from(ran)));
            if share > most {
                most = share;
                worst = format!("{layer}: {}", plan.kernel());
            }
        }
        println!("{combination}, {}: {most:.3} of the usual in {ran} layers; {worst}", T::DTYPE);
        most
    }
    for (seed, combination) in (0..).step_by(3).zip(combinations()) {
        let shares = [
            check::<f32>(combination, seed),
            check::<f64>(combination, seed + 1),
            check::<convoke::f16>(combination, seed + 2),
        ];
        assert!(shares.iter().all(|share| *share <= 0.5), "{combination}: {shares:?}");
    }
}

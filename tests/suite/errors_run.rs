//! Errors of packing, workspace and running. Each has the right kind, a message with operator,
//! value and rule, and leaves Y untouched. The numbers of cases are explained in `errors.rs`: 33
//! and 34 are about buffers, 40 and 41 about workspace, 43 about allocation, 48 about packed
//! weights, 49 about threads.

use crate::common::{Combination, Operands, Oracle, is_short, isas, layer};
use convoke::{
    Activation, Algorithm, Conv, ConvTranspose, Error, ErrorKind, Executor, Isa, Operator, PackedWeights, Plan,
    Planner, Run, Threads, Workspace,
};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// Asserts an error's kind and that its message has all of `parts`.
fn assert_error<T>(result: Result<T, Error>, kind: ErrorKind, parts: &[&str]) {
    let Err(error) = result else { panic!("no error instead of {kind:?} with {parts:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{message:?} lacks some of {parts:?}");
}

/// A plan with its operands.
struct Fixture {
    plan: Plan<f32>,
    operands: Operands<f32>,
    packed: PackedWeights<f32>,
}

impl Fixture {
    fn new(planner: &Planner, operator: impl Into<Operator>, x_shape: &[usize]) -> Self {
        let plan = planner.plan::<f32>(operator, x_shape).unwrap();
        let operands = Operands::uniform(plan.geometry(), 41).with_bias(plan.geometry()).with_residual(plan.geometry());
        let packed = operands.pack(&plan);
        Self { plan, operands, packed }
    }

    fn conv() -> Self {
        Self::new(&Planner::new(), Conv::new([4, 3, 3, 3]), &[2, 3, 8, 8])
    }

    /// Runs into a Y of `y_len` elements, and asserts that an error leaves it untouched.
    fn run(&self, x: &[f32], packed: &PackedWeights<f32>, residual: Option<&[f32]>, y_len: usize) -> Result<(), Error> {
        let mut workspace = Workspace::for_plan(&self.plan).unwrap();
        let mut y = vec![7.0; y_len];
        let run = Run::new(x, packed, &mut y).residual(residual).workspace(&mut workspace);
        let result = self.plan.run(run).map(|_| ());
        assert!(result.is_ok() || y.iter().all(|&y| y == 7.0), "Y was written in spite of the error");
        result
    }
}

#[test]
fn case_33_length_of_x() {
    let f = Fixture::conv();
    let y_len = f.plan.geometry().output_len();
    f.run(&f.operands.x, &f.packed, None, y_len).unwrap();
    for len in [0, 383, 385] {
        let parts = ["Conv", "X", &len.to_string(), "[2, 3, 8, 8]", "384"];
        assert_error(f.run(&vec![0.0; len], &f.packed, None, y_len), ErrorKind::BufferLength, &parts);
    }
}

#[test]
fn case_34_lengths_of_y_and_the_residual() {
    let f = Fixture::conv();
    let (x, y_len) = (&f.operands.x, f.plan.geometry().output_len());
    for len in [0, y_len - 1, y_len + 1] {
        let parts = [&len.to_string(), "[2, 4, 6, 6]", &y_len.to_string()];
        assert_error(f.run(x, &f.packed, None, len), ErrorKind::BufferLength, &[&parts[..], &["Conv", "Y"]].concat());
        let mut workspace = Workspace::for_plan(&f.plan).unwrap();
        let mut y = vec![0.0; len];
        let result = f.plan.run(Run::in_place(x, &f.packed, &mut y).workspace(&mut workspace));
        assert_error(result, ErrorKind::BufferLength, &[&parts[..], &["Conv", "Y"]].concat());
        let residual = vec![0.0; len];
        let result = f.run(x, &f.packed, Some(&residual), y_len);
        assert_error(result, ErrorKind::BufferLength, &[&parts[..], &["Conv", "residual"]].concat());
    }
}

#[test]
fn case_34_lengths_of_w_and_b() {
    let f = Fixture::new(&Planner::new(), ConvTranspose::new([3, 4, 3, 3]), &[1, 3, 8, 8]);
    for len in [0, 107, 109] {
        let parts = ["ConvTranspose", "W", &len.to_string(), "[3, 4, 3, 3]", "108"];
        assert_error(f.plan.pack(&vec![0.0; len], None), ErrorKind::BufferLength, &parts);
    }
    for len in [0, 1, 3, 5] {
        let parts = ["ConvTranspose", "B", &len.to_string(), "[4]"];
        assert_error(f.plan.pack(&f.operands.w, Some(&vec![0.0; len])), ErrorKind::BufferLength, &parts);
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_34_lengths_in_one_shot_calls() {
    let conv = Conv::new([1, 1, 1, 1]).pads([1 << 20, 1 << 19, 1 << 20, 1 << 19]);
    // X is checked before the output of terabytes is allocated.
    let result = convoke::conv(&conv, &[1, 1, 2, 2], &[0.0_f32; 3], &[1.0], None);
    assert_error(result, ErrorKind::BufferLength, &["Conv", "X", "3", "4"]);
    let transposed = ConvTranspose::new([1, 1, 2]);
    assert_error(
        convoke::conv_transpose(&transposed, &[1, 1, 2], &[0.0_f64; 2], &[1.0], None),
        ErrorKind::BufferLength,
        &["W"],
    );
}

#[test]
fn case_40_workspace_limit() {
    for combination in Combination::all() {
        let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
        let Ok(plan) = combination.planner().plan::<f32>(conv.clone(), &[1, 64, 56, 56]) else { continue };
        let bytes = plan.workspace_bytes();
        if bytes > 0 {
            let planner = combination.planner().workspace_limit(100);
            let parts = ["Conv", "workspace", "limit", "100"];
            assert_error(planner.plan::<f32>(conv, &[1, 64, 56, 56]), ErrorKind::Workspace, &parts);
        }
    }
    // The limit is for the shares of all threads together.
    for combination in Combination::all().filter(|c| c.algorithm == named("im2col:native")) {
        let most = Planner::MOST_THREADS;
        let planner = combination.planner().threads(most).workspace_limit(64 * most - 1);
        let parts = ["Conv", "workspace", "limit is 65535"];
        assert_error(planner.plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]), ErrorKind::Workspace, &parts);
    }
}

#[test]
fn case_41_workspace_too_small() {
    for combination in Combination::all() {
        let Ok(plan) = combination.planner().plan::<f32>(Conv::new([4, 3, 3, 3]), &[2, 3, 8, 8]) else { continue };
        let bytes = plan.workspace_bytes();
        if bytes == 0 {
            continue;
        }
        let operands = Operands::uniform(plan.geometry(), 42);
        let packed = operands.pack(&plan);
        let run = |workspace: &mut Workspace<'_>, y: &mut [f32]| {
            plan.run(Run::new(&operands.x, &packed, y).workspace(workspace)).map(|_| ())
        };
        let mut memory = vec![0; bytes + 128];
        let aligned = memory.as_ptr().align_offset(64);
        let (parts, mut y) = (["Conv", "workspace", &bytes.to_string()], vec![7.0; plan.geometry().output_len()]);
        // Memory that is too short, empty, or long enough but not aligned.
        for (offset, len) in [(0, bytes - 64), (0, bytes - 1), (0, 0), (1, bytes), (63, bytes)] {
            let memory = &mut memory[aligned + offset..][..len];
            assert_error(run(&mut Workspace::borrowed(memory), &mut y), ErrorKind::Workspace, &parts);
            assert!(y.iter().all(|&y| y == 7.0), "{combination}: Y was written in spite of the error");
        }
        // Aligned or not, memory is accepted if it contains a whole workspace of aligned bytes.
        for (offset, len) in [(0, bytes), (1, bytes + 63), (63, bytes + 1)] {
            let memory = &mut memory[aligned + offset..][..len];
            run(&mut Workspace::borrowed(memory), &mut y).unwrap();
        }
    }
}

#[test]
fn case_43_memory_that_cannot_be_had() {
    for bytes in [usize::MAX, isize::MAX as usize] {
        assert_error(Workspace::with_bytes(bytes), ErrorKind::OutOfMemory, &["workspace", &bytes.to_string()]);
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn case_43_exabytes_cannot_be_had() {
    use std::time::{Duration, Instant};

    let bytes = 1 << 60;
    assert_error(Workspace::with_bytes(bytes), ErrorKind::OutOfMemory, &["workspace", &bytes.to_string()]);
    // An output of exabytes from an input of one element. Planning takes no time, and allocating
    // the output fails.
    let begin = Instant::now();
    let pad = 1_i64 << 28;
    let conv = Conv::new([1, 1, 1, 1]).pads([pad, pad, pad, pad]);
    let elements = ((2_u64 << 28) + 1).pow(2).to_string();
    let result = convoke::conv(&conv, &[1, 1, 1, 1], &[1.0_f64], &[1.0], None);
    assert_error(result, ErrorKind::OutOfMemory, &["Conv", &elements]);
    let conv = ConvTranspose::new([1, 1, 1, 1]).strides([1 << 29, 1 << 29]);
    let result = convoke::conv_transpose(&conv, &[1, 1, 2, 2], &[1.0_f64; 4], &[1.0], None);
    assert_error(result, ErrorKind::OutOfMemory, &["ConvTranspose", "elements"]);
    assert!(begin.elapsed() < Duration::from_secs(2), "planning takes time in proportion to the output");
}

#[test]
fn case_48_packed_weights_of_another_plan() {
    let planner = || Planner::new().algorithm(named("gemm"));
    let f = Fixture::new(&planner(), Conv::new([4, 4, 3, 3]), &[1, 4, 8, 8]);
    let rejects = |other: &Fixture, difference: &str| {
        let error = f.run(&f.operands.x, &other.packed, None, f.plan.geometry().output_len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PackedMismatch);
        assert_eq!(error.to_string(), format!("Conv: the weights were packed for {difference}"));
        assert_eq!(f.plan.accepts(&other.packed), Err(error));
        // The planner finds the same at once.
        let planner = Planner::new().isa(f.plan.isa()).packed_for(&other.packed).isa(f.plan.isa());
        let error = planner.plan::<f32>(Conv::new([4, 4, 3, 3]), &[1, 4, 8, 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PackedMismatch);
        assert_eq!(error.to_string(), format!("Conv: the weights were packed for {difference}"));
    };
    // Another shape of W, stride, dilation, algorithm, operator, ISA, group.
    let implicit = |conv: Conv, x_shape: &[usize]| Fixture::new(&planner(), conv, x_shape);
    rejects(&implicit(Conv::new([5, 4, 3, 3]), &[1, 4, 8, 8]), "W of shape [5, 4, 3, 3], the plan needs [4, 4, 3, 3]");
    rejects(&implicit(Conv::new([4, 4, 1, 9]), &[1, 4, 8, 9]), "W of shape [4, 4, 1, 9], the plan needs [4, 4, 3, 3]");
    rejects(
        &implicit(Conv::new([4, 2, 3, 3]).group(2), &[1, 4, 8, 8]),
        "W of shape [4, 2, 3, 3], the plan needs [4, 4, 3, 3]",
    );
    rejects(
        &implicit(Conv::new([4, 4, 3, 3]).strides([2, 1]), &[1, 4, 8, 8]),
        "spatial axis 0 with stride 2, the plan needs 1",
    );
    rejects(
        &implicit(Conv::new([4, 4, 3, 3]).dilations([1, 2]), &[1, 4, 8, 8]),
        "spatial axis 1 with dilation 2, the plan needs 1",
    );
    let transposed = Fixture::new(&Planner::new(), ConvTranspose::new([4, 4, 3, 3]), &[1, 4, 8, 8]);
    rejects(&transposed, "the operator ConvTranspose, the plan needs Conv");
    for isa in isas().filter(|&isa| isa != f.plan.isa()) {
        let other = Fixture::new(&planner().isa(isa), Conv::new([4, 4, 3, 3]), &[1, 4, 8, 8]);
        rejects(&other, &format!("the ISA {isa}, the plan needs {}", f.plan.isa()));
    }
    let grouped = implicit(Conv::new([4, 2, 3, 3]).group(2), &[1, 4, 8, 8]);
    let dense = implicit(Conv::new([4, 2, 3, 3]), &[1, 2, 8, 8]);
    let result = grouped.run(&grouped.operands.x, &dense.packed, None, grouped.plan.geometry().output_len());
    assert_error(result, ErrorKind::PackedMismatch, &["Conv", "packed for group 1, the plan needs 2"]);
}

#[test]
fn case_48_packed_weights_of_another_plan_of_the_layer() {
    let fixture = |planner: &Planner| Fixture::new(planner, Conv::new([4, 4, 3, 3]), &[1, 4, 8, 8]);
    let (f, same) = (fixture(&Planner::new()), fixture(&Planner::new()));
    let im2col = fixture(&Planner::new().algorithm(named("im2col:native")));
    let y_len = f.plan.geometry().output_len();
    let error = f.run(&f.operands.x, &im2col.packed, None, y_len).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PackedMismatch);
    let (packed, needed) = (im2col.packed.layout(), f.packed.layout());
    assert!(error.to_string().starts_with("Conv: the weights are packed otherwise"), "{error}");
    assert!(error.to_string().contains(&format!("({packed})")) && error.to_string().contains(&needed), "{error}");
    f.run(&f.operands.x, &same.packed, None, y_len).unwrap();
    assert_eq!(f.plan.accepts(&same.packed), Ok(()));
}

#[test]
fn case_48_a_plan_for_packed_weights_is_of_their_operator() {
    let f = Fixture::conv();
    let planner = Planner::new().packed_for(&f.packed);
    let rejects = |operator: Operator, x_shape: &[usize], message: &str| {
        assert_error(planner.plan::<f32>(operator, x_shape), ErrorKind::PackedMismatch, &[message]);
    };
    let x_shape = [2, 3, 8, 8];
    rejects(
        Conv::new([5, 3, 3, 3]).into(),
        &x_shape,
        "Conv: the weights were packed for W of shape [4, 3, 3, 3], the plan needs [5, 3, 3, 3]",
    );
    rejects(
        Conv::new([4, 3, 3, 3]).strides([1, 3]).into(),
        &x_shape,
        "Conv: the weights were packed for spatial axis 1 with stride 1, the plan needs 3",
    );
    rejects(
        ConvTranspose::new([4, 3, 3, 3]).into(),
        &[2, 4, 8, 8],
        "ConvTranspose: the weights were packed for the operator Conv, the plan needs ConvTranspose",
    );
    let result = planner.plan::<f64>(Conv::new([4, 3, 3, 3]), &x_shape);
    assert_error(result, ErrorKind::PackedMismatch, &["packed for the element type float, the plan needs double"]);
}

#[test]
fn case_48_an_algorithm_that_packs_otherwise_is_forced() {
    let f = Fixture::new(&Planner::new().algorithm(named("gemm")), Conv::new([4, 3, 3, 3]), &[2, 3, 8, 8]);
    let forced = Planner::new().algorithm(named("naive"));
    for planner in
        [forced.clone().packed_for(&f.packed), Planner::new().packed_for(&f.packed).algorithm(named("naive"))]
    {
        let result = planner.plan::<f32>(Conv::new([4, 3, 3, 3]), &[2, 3, 8, 8]);
        let parts =
            ["Conv: naive cannot be used: the weights are packed otherwise: panels of", "pack the weights again"];
        assert_error(result, ErrorKind::PackedMismatch, &parts);
    }
}

#[test]
fn case_48_the_algorithm_that_packed_refuses_other_pads() {
    let layer = |pad: i64| ConvTranspose::new([4, 4, 3, 3]).strides([2, 2]).pads([pad; 4]);
    let f = Fixture::new(&Planner::new().algorithm(named("winograd")), layer(1), &[1, 4, 8, 8]);
    let result = Planner::new().packed_for(&f.packed).plan::<f32>(layer(4), &[1, 4, 8, 8]);
    let parts = [
        "ConvTranspose: no algorithm can use the weights, which are packed values",
        "winograd cannot: spatial axis 0 has 4 pads at its beginning, more than 3 crop whole tiles",
        "pack the weights again",
    ];
    assert_error(result, ErrorKind::PackedMismatch, &parts);
}

/// One operator's weights, and its inputs and results for several sizes of X.
struct Sizes<T> {
    operator: Operator,
    inputs: Vec<(Vec<usize>, Operands<T>, Oracle)>,
}

impl<T: Scalar> Sizes<T> {
    fn new(operator: Operator, channels: usize) -> Self {
        let sizes = [[1, 7, 9], [1, 1, 1], [3, 2, 40], [1, 30, 31], [1, 5, 1]];
        Self::of_shapes(operator, sizes.map(|[n, h, w]| vec![n, channels, h, w]).to_vec())
    }

    fn of_shapes(operator: Operator, shapes: Vec<Vec<usize>>) -> Self {
        let geometry = operator.geometry(&shapes[0]).unwrap();
        let weights = Operands::<T>::uniform(&geometry, 44).with_bias(&geometry);
        let input = |x_shape: Vec<usize>| {
            let geometry = operator.geometry(&x_shape).unwrap();
            let operands = Operands { x: Operands::uniform(&geometry, 45).x, ..weights.clone() };
            let oracle = Oracle::new(&geometry, &operands);
            (x_shape, operands, oracle)
        };
        Self { inputs: shapes.into_iter().map(input).collect(), operator }
    }

    /// Packs with a plan for size number `first`, and runs at all sizes. Returns false if the
    /// algorithm rejects the operator.
    fn check(&self, combination: Combination, first: usize) -> bool {
        let (x_shape, weights, _) = &self.inputs[first];
        let packing = layer(self.operator.clone(), x_shape.clone());
        let Some(plan) = combination.plan::<T>(&packing, |planner| planner) else { return false };
        let packed = weights.pack(&plan);
        assert_eq!(packed.layout(), plan.explain().layout());
        for (x_shape, operands, oracle) in &self.inputs {
            let what = format!("{combination}, {}: packed on {packing}, run on {x_shape:?}", T::DTYPE);
            for threads in [1, 3] {
                let planner = Planner::new().threads(threads).packed_for(&packed);
                let plan = planner.plan::<T>(self.operator.clone(), x_shape);
                let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
                // Algorithms that pack alike serve each other's weights.
                let names = [plan.algorithm().name(), combination.algorithm.name()];
                let is_alike = names.iter().all(|name| ["channel-gemm", "pixel-gemm"].contains(name))
                    || names.iter().all(|name| ["naive", "depthwise-transposed"].contains(name));
                assert!(plan.algorithm() == combination.algorithm || is_alike, "{what}: {}", plan.algorithm());
                assert_eq!(plan.isa(), combination.isa, "{what}");
                let y = operands.run_packed(&plan, &packed, Threads::Serial).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(oracle.check(plan.algorithm(), Activation::None, &y), Ok(()), "{what}");
            }
        }
        true
    }
}

#[test]
fn packed_weights_serve_every_batch_and_spatial_size() {
    fn check<T: Scalar>() {
        let operators: [(Operator, usize); 9] = [
            (Conv::new([20, 6, 3, 3]).pads([1, 1, 1, 1]).into(), 6),
            (Conv::new([7, 3, 5, 2]).pads([2, 1, 2, 1]).into(), 3),
            (Conv::new([130, 6, 1, 1]).into(), 6),
            (Conv::new([15, 2, 3, 3]).group(3).strides([2, 2]).pads([1, 1, 1, 1]).into(), 6),
            (Conv::new([3, 300, 1, 1]).into(), 300),
            (ConvTranspose::new([6, 20, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]).into(), 6),
            (ConvTranspose::new([6, 50, 3, 3]).group(2).into(), 6),
            (ConvTranspose::new([6, 1, 4, 4]).group(6).strides([2, 2]).pads([1, 1, 1, 1]).into(), 6),
            (ConvTranspose::new([3, 1, 5, 5]).group(3).strides([2, 2]).pads([0, 2, 1, 1]).into(), 3),
        ];
        let operators = operators.map(|(operator, channels)| Sizes::<T>::new(operator, channels));
        for combination in Combination::all() {
            // The weights are packed for a small, the smallest and the largest output.
            let orders = operators.iter().flat_map(|operator| [0, 1, 3].map(|first| (operator, first)));
            let accepted = orders.filter(|(operator, first)| operator.check(combination, *first)).count();
            assert!(accepted >= 6, "{combination}, {}: only {accepted} weights were packed", T::DTYPE);
        }
    }
    check::<f32>();
    // Packs as f32 does, but converts. f64 has the same code as f32.
    if !is_short() {
        check::<convoke::bf16>();
    }
}

/// A kernel that covers X reads its weights for one position.
#[test]
fn packed_weights_serve_sizes_that_the_kernel_covers_and_others() {
    let shapes = [[1, 6, 3, 3], [5, 6, 3, 3], [1, 6, 9, 8], [2, 6, 4, 3]].map(|shape| shape.to_vec()).to_vec();
    let sizes = Sizes::<f32>::of_shapes(Conv::new([20, 6, 3, 3]).into(), shapes);
    let pairs = Combination::all().flat_map(|combination| [0, 2].map(|first| (combination, first)));
    assert!(pairs.filter(|(combination, first)| sizes.check(*combination, *first)).count() >= 8);
}

/// On one axis, depthwise sums long rows in tiles of several vectors, which short rows do not fill:
/// here from the same weights, at widths around those of vectors and tiles.
#[test]
fn packed_weights_of_one_axis_serve_rows_of_any_length() {
    fn check<T: Scalar>() {
        let conv = || Conv::new([6, 1, 3]).group(6).pads([2, 2]);
        let widths = [1, 5, 17, 40, 129, 700];
        let operators = [conv(), conv().dilations([64]).pads([64, 64]), conv().strides([3])]
            .map(|conv| Sizes::<T>::of_shapes(conv.into(), widths.map(|width| vec![2, 6, width]).to_vec()));
        for combination in Combination::all().filter(|c| c.algorithm == named("depthwise")) {
            for (operator, first) in operators.iter().flat_map(|operator| [0, 2, 5].map(|first| (operator, first))) {
                assert!(operator.check(combination, first), "{combination}");
            }
        }
    }
    check::<f32>();
    check::<convoke::f16>();

    let planner = Planner::new().isa(convoke::Isa::Portable).algorithm(named("depthwise"));
    let kernel = |width| {
        let conv = Conv::new([6, 1, 3]).group(6).dilations([64]).pads([64, 64]);
        let plan = planner.plan::<f32>(conv, &[1, 6, width]).unwrap();
        plan.explain().details().split(' ').next().unwrap().to_owned()
    };
    assert_eq!([kernel(700), kernel(17)], ["f32_dw_3x8", "f32_dw_1x8"].map(String::from));
}

/// A pool of eight that ran a plan for one thread on one thread, without a word.
#[test]
fn case_49_more_threads_than_the_plan_is_for() {
    /// Calls from the calling thread, as many as it likes to have threads.
    struct Wide(usize);

    impl Executor for Wide {
        fn width(&self) -> usize {
            self.0
        }

        fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
            (0..count).for_each(call);
        }
    }

    let plan = Planner::new().threads(2).plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, 30, 30]).unwrap();
    let operands = Operands::uniform(plan.geometry(), 44);
    let packed = operands.pack(&plan);
    let expected = operands.run(&plan);
    assert_eq!(plan.threads(), 2);
    let eight = Wide(8);
    let threads = Threads::Executor(&eight);
    let parts = ["Conv", "made for 2 threads, the run has 8: plan for 8, or run on at most 2"];
    assert_error(plan.threads_with(threads), ErrorKind::Threads, &parts);
    let mut y = vec![7.0; expected.len()];
    let mut workspace = Workspace::for_plan(&plan).unwrap();
    assert_error(
        plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace).threads(threads)),
        ErrorKind::Threads,
        &parts,
    );
    assert!(y.iter().all(|y| *y == 7.0), "Y was written in spite of the error");
    assert_error(plan.threads_with(threads.at_most(0)), ErrorKind::Threads, &["Conv", "0 threads"]);
    for (threads, count) in [(threads.at_most(2), 2), (Threads::Executor(&Wide(2)), 2), (Threads::Serial, 1)] {
        assert_eq!(plan.threads_with(threads), Ok(count));
        assert_eq!(operands.run_packed(&plan, &packed, threads).unwrap(), expected);
    }
    // A share for one thread is not enough for two. They are not left out silently.
    let share = plan.workspace_bytes() / 2;
    assert!(share > 0);
    let mut memory = Workspace::with_bytes(share).unwrap();
    let result = plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut memory).threads(threads.at_most(2)));
    let parts = ["Conv", &format!("has {share} bytes"), &format!("2 threads need {}", plan.workspace_bytes())];
    assert_error(result, ErrorKind::Workspace, &parts);
    plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut memory).threads(threads.at_most(1))).unwrap();
    assert_eq!(y, expected);
}

/// A borrowed workspace that is not aligned lost a share, and the run used fewer threads.
#[test]
#[cfg(feature = "rayon")]
fn case_41_an_unaligned_workspace_says_so() {
    let plan = Planner::new().threads(2).plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, 30, 30]).unwrap();
    let operands = Operands::uniform(plan.geometry(), 44);
    let packed = operands.pack(&plan);
    let mut y = vec![7.0; plan.geometry().output_len()];
    let bytes = plan.workspace_bytes();
    let mut memory = vec![0; bytes + 2 * Workspace::ALIGNMENT];
    let aligned = memory.as_ptr().align_offset(Workspace::ALIGNMENT);
    let mut workspace = Workspace::borrowed(&mut memory[aligned + 1..][..bytes]);
    let pair = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let result =
        plan.run(Run::new(&operands.x, &packed, &mut y).workspace(&mut workspace).threads(Threads::Pool(&pair)));
    let parts =
        [&format!("has {} bytes in lines of 64, of the {bytes} that were borrowed", bytes - 64), "2 threads need"];
    assert_error(result, ErrorKind::Workspace, &parts.map(|part| part as &str));
}

#[test]
fn a_workspace_grows_for_plans_and_does_not_shrink() {
    let plan = |size| Planner::new().plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, size, size]).unwrap();
    let (small, large) = (plan(5), plan(60));
    assert!(small.workspace_bytes() < large.workspace_bytes());
    let mut workspace = Workspace::with_bytes(0).unwrap();
    for (plan, bytes) in
        [(&small, small.workspace_bytes()), (&large, large.workspace_bytes()), (&small, large.workspace_bytes())]
    {
        workspace.grow_for(plan).unwrap();
        assert_eq!(workspace.bytes(), bytes);
    }
}

#[test]
fn case_49_no_threads() {
    let planner = Planner::new().threads(0);
    assert_error(
        planner.plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]),
        ErrorKind::Unavailable,
        &["Conv", "0 threads", "at least 1"],
    );
}

#[test]
fn forced_algorithms_say_which_axis_and_value_they_cannot_have() {
    let rejects = |algorithm: Algorithm, operator: Operator, x_shape: &[usize], reason: &str| {
        let error = Planner::new().algorithm(algorithm).plan::<f32>(operator.clone(), x_shape).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let expected = format!("{}: {algorithm} cannot be used: {reason}", operator.op_name());
        assert!(error.to_string().starts_with(&expected), "{error:?} is not {expected:?}");
    };
    let conv = |w: [usize; 4]| Conv::new(w);
    let x = [1, 4, 20, 20];
    let winograd = named("winograd");
    rejects(
        winograd,
        conv([4, 4, 3, 3]).strides([1, 7]).into(),
        &x,
        "spatial axis 1 has stride 7, kernel 3, dilation 1",
    );
    rejects(winograd, Conv::new([4, 4, 1, 1, 1, 1]).into(), &[1, 4, 5, 5, 5, 5], "4 spatial axes, only one to three");
    let transposed = ConvTranspose::new([4, 4, 3, 3]).dilations([2, 1]);
    rejects(winograd, transposed.into(), &x, "spatial axis 0 has dilation 2, only 1");
    rejects(named("gemm"), ConvTranspose::new([4, 4, 1, 1]).into(), &x, "only for Conv");
    let wide = conv([4, 40, 3, 3]);
    rejects(named("depthwise"), wide.into(), &[1, 40, 20, 20], "40 input channels a group, at most 32");
    let far = || conv([4, 4, 2, 2]).dilations([1 << 24, 1]).pads([1 << 23, 0, 1 << 23, 0]);
    for algorithm in [named("gemm"), named("depthwise")] {
        let reason = "the padded planes exceed ";
        rejects(algorithm, far().into(), &x, reason);
        let error = Planner::new().algorithm(algorithm).plan::<f32>(far(), &x).unwrap_err().to_string();
        assert!(error.contains("spatial axis 0 has input 20,") && error.contains("dilation 16777216"), "{error}");
    }
    let grouped = named("grouped");
    let reason = "33 input and 4 output channels a group, at most 32 and 2 to 32 can be";
    rejects(grouped, conv([4, 33, 3, 3]).into(), &[1, 33, 20, 20], reason);
    let same = || conv([4, 4, 3, 3]).pads([1; 4]);
    rejects(grouped, same().strides([9, 1]).into(), &x, "spatial axis 0 has stride 9, dilation 1");
    rejects(grouped, same().strides([2, 1]).dilations([2, 1]).into(), &x, "spatial axis 0 has stride 2, dilation 2");
    rejects(grouped, conv([4, 4, 3, 3]).into(), &x, "spatial axis 1 has input 20, output 18, stride 1");
    rejects(grouped, conv([4, 4, 13, 11]).pads([6, 5, 6, 5]).into(), &x, "the kernel has 143 taps, at most 128");
    let far = ConvTranspose::new([4, 4, 2, 2]).strides([513, 1]);
    rejects(named("transposed"), far.into(), &x, "spatial axis 0 has stride 513, more than 512");
    let depthwise_transposed = named("depthwise-transposed");
    let depthwise = |kernel: usize| ConvTranspose::new([4, 1, kernel, kernel]).group(4).strides([2, 2]);
    rejects(depthwise_transposed, conv([4, 4, 3, 3]).into(), &x, "only for ConvTranspose");
    let dense = ConvTranspose::new([4, 3, 3, 3]).strides([2, 2]);
    rejects(depthwise_transposed, dense.into(), &x, "4 input and 3 output channels a group, only 1 and 1");
    let cubes = ConvTranspose::new([4, 1, 2, 2, 2]).group(4).strides([2; 3]);
    rejects(depthwise_transposed, cubes.into(), &[1, 4, 5, 5, 5], "3 spatial axes, only one or two");
    let reason = "no kernel for 6x6 taps of strides 2 and 2, dilations 1 and 1";
    rejects(depthwise_transposed, depthwise(6).into(), &x, reason);
    let reason = "no kernel for 3x3 taps of strides 2 and 2, dilations 1 and 3";
    rejects(depthwise_transposed, depthwise(3).dilations([1, 3]).into(), &x, reason);
}

#[test]
fn unknown_names() {
    assert_error("winograd?".parse::<Algorithm>(), ErrorKind::Unavailable, &["winograd?", "naive", "im2col:gemm"]);
    assert!("AVX-512".parse::<Isa>().unwrap_err().to_string().contains(&Isa::ALL.map(|isa| isa.name()).join(", ")));
    for algorithm in Algorithm::all() {
        assert_eq!(algorithm.to_string().parse::<Algorithm>().unwrap(), algorithm);
    }
    for isa in Isa::ALL {
        assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
    }
}

//! Picks by measurement: they are kept, saved, loaded, and used only for the layers that they
//! belong to.

use std::sync::atomic::{AtomicUsize, Ordering};

use convoke::{Algorithm, Conv, ConvTranspose, ErrorKind, Executor, Planner, Threads, Tuning, f16};
use convoke_tools::named;

const X: [usize; 4] = [1, 6, 12, 12];

fn conv() -> Conv {
    Conv::new([10, 6, 3, 3]).pads([1, 1, 1, 1])
}

/// A tuning with an algorithm that the planner would not pick.
fn with(planner: &Planner, algorithm: Algorithm) -> Tuning {
    let mut tuning = Tuning::default();
    let plan = planner.tune::<f32>(conv(), &X, Threads::Serial, &mut tuning).unwrap();
    let line = format!(" = {}", plan.algorithm());
    let saved = tuning.to_string();
    assert_eq!(saved.matches(&line).count(), 1, "{saved}");
    saved.replace(&line, &format!(" = {algorithm}")).parse().unwrap()
}

#[test]
fn what_is_measured_is_kept_saved_and_loaded() {
    let mut tuning = Tuning::default();
    let planner = Planner::new();
    let mut picks = Vec::new();
    picks.push(planner.tune::<f32>(conv(), &X, Threads::Serial, &mut tuning).unwrap().algorithm());
    picks.push(planner.tune::<f16>(conv(), &X, Threads::Serial, &mut tuning).unwrap().algorithm());
    let transposed = || ConvTranspose::new([6, 4, 4, 4]).strides([2, 2]);
    picks.push(planner.tune::<f64>(transposed(), &X, Threads::Serial, &mut tuning).unwrap().algorithm());
    // Only the middle one of these taps meets input.
    let wide = || Conv::new([10, 6, 3, 3]).dilations([20, 20]).pads([20, 20, 20, 20]);
    picks.push(planner.tune::<f32>(wide(), &X, Threads::Serial, &mut tuning).unwrap().algorithm());
    assert_eq!(tuning.len(), 4, "{tuning}");

    let loaded: Tuning = tuning.to_string().parse().unwrap();
    assert_eq!(loaded, tuning);
    assert!(!planner.is_tuned::<f32>(conv(), &X).unwrap());
    let planner = planner.tuning(loaded);
    assert!(planner.is_tuned::<f32>(conv(), &X).unwrap());
    assert!(!planner.is_tuned::<f32>(conv(), &[2, 6, 12, 12]).unwrap());
    let again = [
        planner.plan::<f32>(conv(), &X).unwrap().algorithm(),
        planner.plan::<f16>(conv(), &X).unwrap().algorithm(),
        planner.plan::<f64>(transposed(), &X).unwrap().algorithm(),
        planner.plan::<f32>(wide(), &X).unwrap().algorithm(),
    ];
    assert_eq!(picks, again);
}

#[test]
fn a_measured_pick_goes_before_estimates_for_its_layer_alone() {
    let planner = Planner::new();
    let slow = named("naive");
    let tuned = planner.clone().tuning(with(&planner, slow));
    let plan = tuned.plan::<f32>(conv(), &X).unwrap();
    assert_eq!(plan.algorithm(), slow);
    assert!(format!("{:#}", plan.explain()).contains("which was measured to be faster"), "{}", plan.explain());

    for other in [
        tuned.clone().threads(2).plan::<f32>(conv(), &X).unwrap().algorithm(),
        tuned.plan::<f64>(conv(), &X).unwrap().algorithm(),
        tuned.plan::<f32>(conv(), &[2, 6, 12, 12]).unwrap().algorithm(),
        tuned.plan::<f32>(conv().dilations([2, 2]), &X).unwrap().algorithm(),
        tuned.clone().accuracy(convoke::Accuracy::Strict).plan::<f32>(conv(), &X).unwrap().algorithm(),
        tuned.clone().algorithm(named("gemm")).plan::<f32>(conv(), &X).unwrap().algorithm(),
    ] {
        assert_ne!(other, slow);
    }
    let estimated = planner.plan::<f32>(conv(), &X).unwrap();
    let packed = estimated.pack(&[0.5; 10 * 6 * 9], None).unwrap();
    let plan = tuned.packed_for(&packed).plan::<f32>(conv(), &X).unwrap();
    assert_eq!(plan.algorithm(), estimated.algorithm(), "weights are packed already");
}

#[test]
fn a_measured_pick_beyond_the_limit_is_not_taken() {
    let planner = Planner::new();
    let slow: Algorithm = "im2col:native".parse().unwrap();
    let tuned = planner.clone().tuning(with(&planner, slow));
    assert_eq!(tuned.plan::<f32>(conv(), &X).unwrap().algorithm(), slow);
    assert_ne!(tuned.workspace_limit(0).plan::<f32>(conv(), &X).unwrap().algorithm(), slow);
}

#[test]
fn tuning_measures_what_is_forced_too() {
    let mut tuning = Tuning::default();
    let planner = Planner::new().algorithm(named("gemm"));
    let plan = planner.tune::<f32>(conv(), &X, Threads::Serial, &mut tuning).unwrap();
    assert_eq!((plan.algorithm(), tuning.len()), (named("gemm"), 1));
    // Picks are kept by the number of threads, and must have been measured on as many.
    let other = planner.threads(2).tune::<f32>(conv(), &X, Threads::Serial, &mut tuning).unwrap_err();
    assert_eq!((other.kind(), tuning.len()), (ErrorKind::Threads, 1));
    assert!(other.to_string().contains("for 2 threads is measured on 1"), "{other}");
    let bad = Planner::new().tune::<f32>(conv(), &[1, 5, 12, 12], Threads::Serial, &mut tuning).unwrap_err();
    assert_eq!((bad.kind(), tuning.len()), (ErrorKind::InvalidShape, 1));
}

/// Makes calls on the calling thread, and counts runs.
struct Counting(AtomicUsize);

impl Executor for Counting {
    fn width(&self) -> usize {
        2
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0..count).for_each(call);
    }
}

#[test]
fn tuning_runs_several_candidates_several_times() {
    let (threads, mut tuning) = (Counting(AtomicUsize::new(0)), Tuning::default());
    // Several algorithms take about as long, and long enough to be shared among threads.
    let conv = Conv::new([32, 32, 1, 1]);
    let planner = Planner::new().threads(2);
    _ = planner.tune::<f32>(conv, &[1, 32, 40, 40], Threads::Executor(&threads), &mut tuning).unwrap();
    let runs = threads.0.into_inner();
    assert!(runs >= 6, "{runs} runs");
}

#[test]
fn the_later_of_two_tunings_counts() {
    let planner = Planner::new();
    let mut tuning = with(&planner, named("naive"));
    tuning.merge(with(&planner, named("gemm")));
    assert_eq!(tuning.len(), 1);
    assert_eq!(planner.tuning(tuning).plan::<f32>(conv(), &X).unwrap().algorithm(), named("gemm"));
}

#[test]
fn a_text_that_is_no_tuning_is_an_error_with_its_line() {
    for (text, says) in [
        ("", "line 1"),
        ("something else\n", "line 1"),
        ("convoke tuning 2\n", "line 1"),
        ("convoke tuning 1\n\nConv float\n", "line 3"),
        ("convoke tuning 1\na layer = fast\n", "line 2: unknown algorithm \"fast\""),
    ] {
        let error = text.parse::<Tuning>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidTuning, "{text:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!("convoke tuning 1\n\n".parse::<Tuning>().unwrap().is_empty());
}

//! What first-time users met: mistakes that were let through, and messages that did not help.

use convoke::{
    Absence, Activation, Algorithm, Conv, ConvTranspose, Element, ErrorKind, Isa, Planner, Run, Workspace, bf16, f16,
};
use convoke_tools::named;

/// The kind and the message of the error of a plan.
fn refused<T: Element>(planner: &Planner, conv: Conv, x_shape: &[usize]) -> (ErrorKind, String) {
    let error = planner.plan::<T>(conv, x_shape).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn more_threads_than_anybody_has_are_refused_when_a_layer_is_planned() {
    let plan = |threads| Planner::new().threads(threads).plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]);
    assert_eq!(Planner::MOST_THREADS, 1024);
    assert_eq!(plan(Planner::MOST_THREADS).unwrap().threads(), 1024);
    for threads in [0, 1025, 1_000_000_000, usize::MAX] {
        let error = plan(threads).unwrap_err();
        let expected = format!("Conv: a plan for {threads} threads; there must be at least 1 and at most 1024");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unavailable, expected));
    }
}

fn refuses_clips_by_nan<T: Element>() {
    let nan = f32::NAN;
    for (min, max, which) in [(nan, 6.0, "a lower"), (0.0, nan, "an upper"), (-nan, -nan, "a lower")] {
        let planner = Planner::new().activation(Activation::Clip { min, max });
        let message = format!("Conv: the activation Clip has {which} bound that is NaN");
        assert_eq!(
            refused::<T>(&planner, Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]),
            (ErrorKind::InvalidAttribute, message)
        );
    }
    // Infinite bounds, and those in the wrong order, are as in ONNX.
    for (min, max) in [(f32::NEG_INFINITY, f32::INFINITY), (6.0, 0.0)] {
        let planner = Planner::new().activation(Activation::Clip { min, max });
        assert!(planner.plan::<T>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]).is_ok());
    }
}

#[test]
fn a_clip_by_nan_is_refused_in_every_type() {
    refuses_clips_by_nan::<f32>();
    refuses_clips_by_nan::<f64>();
    refuses_clips_by_nan::<f16>();
    refuses_clips_by_nan::<bf16>();
}

/// A function that takes any workspace could not let it grow.
#[test]
fn a_workspace_of_any_lifetime_grows() {
    fn run<T: Element>(plan: &convoke::Plan<T>, x: &[T], w: &[T], y: &mut [T], workspace: &mut Workspace<'_>) {
        workspace.grow_for(plan).unwrap();
        plan.run(Run::new(x, &plan.pack(w, None).unwrap(), y).workspace(workspace)).unwrap();
    }

    let planner = Planner::new().algorithm(named("gemm"));
    let plan = planner.plan::<f32>(Conv::new([8, 4, 3, 3]).pads([1; 4]), &[1, 4, 9, 9]).unwrap();
    assert!(plan.workspace_bytes() > 64);
    let (x, w, mut y) = (vec![1.0; 4 * 81], vec![0.5; 8 * 4 * 9], vec![0.0; 8 * 81]);
    let mut lent = [7; 128];
    let mut workspace = Workspace::borrowed(&mut lent);
    run(&plan, &x, &w, &mut y, &mut workspace);
    assert_eq!(y[40], 0.5 * 36.0);
    assert_eq!(workspace.bytes(), plan.workspace_bytes());
    assert!(lent.iter().all(|byte| *byte == 7), "memory that was too small is left alone");

    // One that suffices stays, and is used.
    let mut lent = vec![0; plan.workspace_bytes() + Workspace::ALIGNMENT];
    run(&plan, &x, &w, &mut y, &mut Workspace::borrowed(&mut lent));
    assert!(lent.iter().any(|byte| *byte != 0));
}

#[test]
fn names_are_parsed_in_upper_and_lower_case() {
    for isa in Isa::ALL {
        for name in [isa.name().to_uppercase(), isa.name().into()] {
            assert_eq!(name.parse(), Ok(isa));
        }
    }
    for algorithm in Algorithm::all() {
        for name in [algorithm.name().to_uppercase(), algorithm.name().into()] {
            assert_eq!(name.parse(), Ok(algorithm));
        }
    }
    let error = "avx1024".parse::<Isa>().unwrap_err();
    assert_eq!(error.to_string(), "\"avx1024\" is not an ISA: expected one of portable, neon, avx2, avx512");
}

/// The message of an ISA that this CPU lacks, if there is one, names features.
#[test]
fn a_cpu_that_lacks_an_isa_lacks_features_with_names() {
    for isa in Isa::ALL {
        if let Some(absence @ Absence::Cpu(of)) = isa.absence() {
            assert_eq!(of, isa);
            let message = absence.to_string();
            let features = message.strip_prefix("this CPU lacks ").unwrap();
            let known = ["avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512cd", "avx512dq"];
            assert!(features.split(", ").all(|feature| known.contains(&feature)), "{message}");
        }
    }
}

#[test]
fn exchanged_x_and_w_are_hinted_at() {
    const HINT: &str = "; X and W fit if they are exchanged";
    let (image, filters) = ([1, 3, 224, 224], [64, 3, 7, 7]);
    let conv = |w: [usize; 4]| Conv::new(w).strides([2, 2]).pads([3; 4]);
    assert!(conv(filters).geometry(&image).is_ok());
    let error = conv(image).geometry(&filters).unwrap_err().to_string();
    let expected = "Conv: spatial axis 0: padded input 13 (7 + pads 3 + 3) is smaller than the effective kernel 224 \
                    (kernel 224, dilation 1)";
    assert_eq!(error, format!("{expected}{HINT}"));
    // Other rules are broken by others.
    let depthwise = |w: [usize; 4]| Conv::new(w).group(32).kernel_shape([3, 3]);
    assert!(depthwise([32, 1, 3, 3]).geometry(&[1, 32, 9, 9]).is_ok());
    assert!(depthwise([1, 32, 9, 9]).geometry(&[32, 1, 3, 3]).unwrap_err().to_string().ends_with(HINT));
    let transposed = |w: [usize; 4]| ConvTranspose::new(w).strides([2, 2]);
    assert!(transposed([8, 4, 3, 3]).geometry(&[1, 8, 16, 16]).is_ok());
    assert!(transposed([1, 8, 16, 16]).geometry(&[8, 4, 3, 3]).unwrap_err().to_string().ends_with(HINT));
    // Where the exchange would not help, or padding is what lacks, nothing is said of it.
    for (w, x) in [
        ([8, 3, 5, 5], &[1, 3, 16, 4][..]),
        ([8, 5, 3, 3], &[1, 3, 9, 9]),
        ([8, 3, 3, 3], &[1, 3]),
        ([8, 4, 3, 3], &[1, 4, 2, 2]),
    ] {
        assert!(!Conv::new(w).geometry(x).unwrap_err().to_string().contains("exchanged"));
    }
    assert!(!conv(filters).strides([0, 1]).geometry(&image).unwrap_err().to_string().contains("exchanged"));
}

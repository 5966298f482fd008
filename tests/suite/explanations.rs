//! What plans and packed weights say of themselves.

use convoke::{Conv, Planner, Workspace};

/// A layer that is shared among threads, with workspace and packed weights.
#[test]
fn an_explanation_says_what_the_plan_is_and_prints_it() {
    let conv = Conv::new([64, 32, 3, 3]).pads([1, 1, 1, 1]);
    let plan = Planner::new().threads(3).plan::<f32>(conv, &[1, 32, 56, 56]).unwrap();
    let explanation = plan.explain();
    assert_eq!((explanation.picked(), explanation.kernel()), (plan.algorithm(), plan.kernel()));
    assert_eq!((explanation.threads(), plan.threads()), (3, 3));
    assert_eq!(explanation.machine().isa(), plan.isa());
    assert_eq!(explanation.workspace_bytes(), plan.workspace_bytes());
    assert_eq!(explanation.packed_bytes(), plan.packed_bytes());
    assert!(plan.workspace_bytes() > 0 && explanation.tasks() >= 3, "{explanation}");
    assert!(explanation.cost() > 1e3, "{explanation}");

    let pick = explanation.verdicts().iter().find(|verdict| verdict.algorithm == plan.algorithm()).unwrap();
    assert_eq!((pick.cost, &*pick.reason), (Some(explanation.cost()), ""));

    let text = explanation.to_string();
    let parts = [explanation.details(), &explanation.layout(), &explanation.scratch(), &explanation.work()];
    for part in parts {
        assert!(!part.is_empty() && text.contains(part), "{part}\n{text}");
    }
    let counts = format!(
        "{} tasks for 3 threads, workspace {} bytes, packed weights {} bytes",
        explanation.tasks(),
        plan.workspace_bytes(),
        plan.packed_bytes()
    );
    assert!(text.contains(&counts), "{text}");
    for verdict in explanation.verdicts().iter().filter(|verdict| verdict.algorithm != plan.algorithm()) {
        assert!(text.contains(&format!("  not {:<22} {}\n", verdict.algorithm.name(), verdict.reason)), "{text}");
    }
}

/// The plan counts values, the weights the cache lines that they are in.
#[test]
fn packed_weights_have_the_bytes_that_the_plan_says() {
    let whole = Conv::new([64, 32, 3, 3]).pads([1, 1, 1, 1]);
    // Of the kernel, one tap meets input, so that weights are packed twice.
    let dilated = Conv::new([8, 4, 3, 3]).dilations([40, 40]).pads([40, 40, 40, 40]);
    for (conv, size, packings) in [(whole, 56, 1), (dilated, 20, 2)] {
        let channels = conv.weight_shape()[1];
        let w = vec![0.5_f32; conv.weight_shape().iter().product()];
        let plan = Planner::new().plan::<f32>(conv, &[1, channels, size, size]).unwrap();
        let (said, bytes) = (plan.packed_bytes(), plan.pack(&w, None).unwrap().bytes());
        assert!(said >= size_of_val(w.as_slice()), "{said}");
        assert!((said..said + packings * 64).contains(&bytes), "{bytes} bytes, the plan says {said}");
    }
}

/// Nobody wants megabytes of weights in a log.
#[test]
fn what_is_printed_for_debugging_is_short() {
    let plan = Planner::new().plan::<f32>(Conv::new([64, 32, 3, 3]), &[1, 32, 56, 56]).unwrap();
    let packed = plan.pack(&[0.5; 64 * 32 * 3 * 3], None).unwrap();
    let workspace = Workspace::for_plan(&plan).unwrap();
    for (text, parts) in [
        (format!("{plan:?}"), ["Plan", plan.kernel()]),
        (format!("{packed:?}"), ["PackedWeights", &format!("bytes: {}", packed.bytes())]),
        (format!("{workspace:?}"), ["Workspace", &format!("owned, {} bytes", workspace.bytes())]),
    ] {
        assert!(text.len() < 8192 && parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

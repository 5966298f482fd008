//! What plans and packed weights say of themselves.

use convoke::{Absence, Algorithm, Conv, ConvTranspose, Geometry, Isa, Machine, Operator, Planner, Workspace};
use convoke_tools::named;

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

    let text = format!("{explanation:#}");
    let parts = [explanation.details(), &explanation.layout(), &explanation.scratch(), &explanation.work()];
    for part in parts {
        assert!(!part.is_empty() && text.contains(part), "{part}\n{text}");
    }
    assert!(text.contains(&format!(" {} tasks for 3 threads\n", explanation.tasks())), "{text}");
}

/// Each better ISA of this architecture is available, or the text says what it would need.
#[test]
fn an_explanation_says_what_a_better_isa_would_need() {
    let plan = Planner::new().isa(Isa::Portable).plan::<f32>(Conv::new([8, 4, 3, 3]), &[1, 4, 9, 9]).unwrap();
    let text = format!("{:#}", plan.explain());
    let found: Vec<_> = text.lines().filter(|line| line.starts_with("  without ")).collect();
    let absent = Isa::ALL.into_iter().filter_map(|isa| Some((isa, isa.absence()?)));
    let absent = absent.filter(|(_, absence)| *absence != Absence::Architecture);
    let expected: Vec<_> = absent.map(|(isa, absence)| format!("  without {isa}: {absence}")).collect();
    assert_eq!(found, expected);
}

/// Other operators' algorithms are in the verdicts, for programs, but not in the text.
#[test]
fn an_explanation_lists_the_candidates_of_its_operator() {
    let conv = Conv::new([8, 4, 3, 3]).geometry(&[1, 4, 9, 9]).unwrap();
    let transposed = ConvTranspose::new([4, 8, 3, 3]).geometry(&[1, 4, 9, 9]).unwrap();
    let for_other = |geometry: &Geometry, algorithm: Algorithm| {
        algorithm.accepts(geometry).is_err_and(|reason| reason.to_string().contains("only for Conv"))
    };
    let plans = [
        (Planner::new().plan::<f32>(Conv::new([8, 4, 3, 3]), &[1, 4, 9, 9]).unwrap(), conv),
        (Planner::new().plan::<f32>(ConvTranspose::new([4, 8, 3, 3]), &[1, 4, 9, 9]).unwrap(), transposed),
    ];
    for (plan, geometry) in plans {
        let text = format!("{:#}", plan.explain());
        let others = Algorithm::all().filter(|algorithm| for_other(&geometry, *algorithm)).count();
        assert!(others >= 5, "{others}");
        assert_eq!(plan.explain().verdicts().len(), Algorithm::all().count() - others);
        for verdict in plan.explain().verdicts() {
            let line = format!("\n  not {:<22} {}", verdict.algorithm.name(), verdict.reason);
            let is_listed = verdict.algorithm != plan.algorithm();
            assert_eq!(text.contains(&line), is_listed, "{}: {text}", verdict.algorithm);
        }
    }
}

/// The short text is what users see first: no word of it needs the project's own terms.
#[test]
fn an_explanation_is_short_unless_the_whole_is_asked_for() {
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    let planner = Planner::new().machine(Machine::zen5().with_isa(Isa::Portable)).algorithm(named("naive"));
    let plan = planner.plan::<f32>(conv, &[1, 64, 56, 56]).unwrap();
    let short = plan.explain().to_string();
    let lines: Vec<_> = short.lines().collect();
    assert_eq!(lines[0], "Conv float: X [1, 64, 56, 56], W [64, 64, 3, 3], group 1, Y [1, 64, 56, 56]");
    let (pick, workspace) = lines[1].split_once(", workspace ").unwrap();
    let time = pick.strip_prefix("picked naive (portable), about ").and_then(|rest| rest.strip_suffix(" on one core"));
    let (value, unit) = time.unwrap().split_once(' ').unwrap();
    assert!(value.len() <= 4 && value.parse::<f64>().unwrap() < 1000.0 && ["ms", "s"].contains(&unit), "{short}");
    assert!(workspace.ends_with("bytes") || workspace.ends_with("iB"), "{short}");
    assert_eq!(lines.len(), 2);
    let whole = format!("{:#}", plan.explain());
    assert!(whole.starts_with(&format!("{short}\n  ")) && whole.lines().count() > 10, "{whole}");
}

/// "1 filters" and the like.
#[test]
fn one_thing_has_no_plural() {
    let layers: [(Operator, Vec<usize>); 4] = [
        (Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]).into(), vec![1, 64, 28, 28]),
        (Conv::new([64, 64, 1, 1]).into(), vec![1, 64, 4, 4]),
        (Conv::new([16, 1, 3, 3]).group(16).into(), vec![1, 16, 9, 9]),
        (ConvTranspose::new([16, 8, 2, 2]).strides([2, 2]).into(), vec![1, 16, 9, 9]),
    ];
    let planner = Planner::new().isa(Isa::Portable);
    for (operator, x) in layers {
        for algorithm in Algorithm::all() {
            let Ok(plan) = planner.clone().algorithm(algorithm).plan::<f32>(operator.clone(), &x) else { continue };
            let text = format!("{:#}", plan.explain());
            let words: Vec<_> = text.split([' ', '\n', ',']).collect();
            let plural = words.windows(2).find(|pair| pair[0] == "1" && pair[1].ends_with('s') && pair[1].len() > 2);
            assert_eq!(plural, None, "{text}");
        }
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

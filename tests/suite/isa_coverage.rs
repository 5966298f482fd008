//! The ISA tiers: what the CPU has is executed, what is asked for is obeyed, what is not there is an error.
//!
//! `CONVOKE_ENSURE_ISA`, a comma-separated list of tiers, makes the suite fail where one of them was not executed: for CI machines that are
//! chosen for what they have.

use std::process::Output;

use crate::common::{Combination, Operands, Oracle, has_foreign_blas, isas, layer, this_binary};
use convoke::kernels::{
    channel_kernels, depthwise_kernels, grouped_kernels, spatial_kernels, weave_kernels, winograd_kernels,
};
use convoke::{Activation, Algorithm, Conv, ConvTranspose, ErrorKind, Isa, Planner};
use convoke_tools::data::Scalar;
use convoke_tools::kernels;

const ENSURE: &str = "CONVOKE_ENSURE_ISA";

/// The tiers that the standard library sees and the build includes.
fn expected() -> Vec<Isa> {
    #[allow(unused_mut, reason = "only x86-64 and AArch64 have more")]
    let mut tiers = vec![Isa::Portable];
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if cfg!(feature = "neon") && std::arch::is_aarch64_feature_detected!("neon") {
        tiers.push(Isa::Neon);
    }
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if cfg!(feature = "avx2") && has!("avx2") && has!("fma") {
            tiers.push(Isa::Avx2);
        }
        let is_avx512 = has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq");
        if cfg!(feature = "avx512") && is_avx512 {
            tiers.push(Isa::Avx512);
        }
    }
    tiers
}

/// Whether a kernel's name is in the tier's tables for a computing type.
fn is_kernel_of<A: convoke::kernels::Real>(isa: Isa, name: &str) -> bool {
    let spatial = spatial_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let channel = channel_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let weave = weave_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let winograd = winograd_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let direct = depthwise_kernels::<A>(isa).is_some_and(|k| {
        k.rows().iter().chain(k.narrow()).chain(k.channels()).any(|k| k.name() == name && k.isa() == isa)
    });
    let grouped = grouped_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    spatial || channel || winograd || direct || grouped || weave
}

/// Runs one Conv and one ConvTranspose on a tier with every algorithm: right results, from a kernel of that tier.
fn execute<T: Scalar>(isa: Isa) {
    let layers = [
        layer(Conv::new([20, 9, 3, 3]).pads([1, 1, 1, 1]), [1, 9, 12, 12]),
        layer(Conv::new([20, 9, 1, 1]), [1, 9, 12, 12]),
        layer(ConvTranspose::new([9, 20, 4, 4]).strides([2, 2]), [1, 9, 6, 6]),
    ];
    for combination in Combination::all().filter(|c| c.isa == isa) {
        let mut runs = 0;
        for layer in &layers {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            let operands = Operands::uniform(&layer.geometry(), 5);
            let difference = Oracle::new(&layer.geometry(), &operands).check(
                combination.algorithm,
                Activation::None,
                &operands.run(&plan),
            );
            assert_eq!(difference, Ok(()), "{combination}, {}", T::DTYPE);
            if combination.algorithm != Algorithm::Naive && !has_foreign_blas(combination.algorithm) {
                let kernel = plan.kernel();
                let is_known = if T::DTYPE == convoke::DType::F64 {
                    is_kernel_of::<f64>(isa, kernel)
                } else {
                    is_kernel_of::<f32>(isa, kernel)
                };
                assert!(is_known, "{combination}, {}: {kernel} is none of the tier's kernels", T::DTYPE);
            }
            runs += 1;
        }
        assert!(runs > 0, "{combination}, {}: nothing ran", T::DTYPE);
    }
}

#[test]
fn every_tier_of_this_cpu_is_executed() {
    let expected = expected();
    assert_eq!(isas().collect::<Vec<_>>(), expected, "the crate does not see the tiers that the standard library sees");
    assert_eq!(Some(Isa::detect()), expected.last().copied());
    for &isa in &expected {
        assert!(
            !spatial_kernels::<f32>(isa).is_empty() && !spatial_kernels::<f64>(isa).is_empty(),
            "{isa}: no kernels"
        );
        for_each_type!(execute(isa));
    }
    if let Ok(list) = std::env::var(ENSURE) {
        for name in list.split(',') {
            let isa = name.trim().parse().unwrap_or_else(|error| panic!("{ENSURE}={list}: {error}"));
            assert!(expected.contains(&isa), "{ENSURE}={list}: {isa} was not executed");
        }
    }
}

#[test]
fn a_tier_that_is_asked_for_and_not_executed_fails_the_suite() {
    let run = |list: &str| child("every_tier_of_this_cpu_is_executed", &[(ENSURE, list)]).status.success();
    assert!(run("portable"));
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no CPU has all tiers");
    assert!(!run(&format!("portable, {missing}")), "{missing} is not there");
    assert!(!run("sse9"));
}

#[test]
fn the_tables_in_the_readme_of_the_kernels_are_what_the_crate_has() {
    let readme = include_str!("../../kernels/README.md");
    let (_, readme) = readme.split_once("\n<!-- kernels -->\n").expect("a marker before the tables");
    let (written, _) = readme.split_once("<!-- /kernels -->\n").expect("a marker behind the tables");
    let is_absent = |line: &str| Isa::ALL.iter().any(|i| !i.is_available() && line.starts_with(&format!("| {i} |")));
    let written: Vec<_> = written.lines().filter(|line| !is_absent(line)).collect();
    let printed = kernels::markdown(None);
    assert_eq!(written, printed.lines().collect::<Vec<_>>(), "the tables must be:\n{printed}");
}

/// Runs one test of this binary in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let (_, module) = module_path!().split_once("::").expect("a module of the suite");
    let (test, mut command) = (format!("{module}::{test}"), this_binary());
    command
        .args(["--exact", &test, "--include-ignored", "--nocapture"])
        .env_remove(ENSURE)
        .env_remove(convoke::ENV_ISA)
        .env_remove(convoke::ENV_MAX_ISA);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A plan with an ISA by default, and one with an ISA by force.
fn plans(isa: Option<Isa>) -> Result<Isa, convoke::Error> {
    let planner = isa.map_or_else(Planner::new, |isa| Planner::new().isa(isa));
    Ok(planner.plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8])?.isa())
}

#[test]
#[ignore = "run by the_environment_names_the_tier, with the variable set"]
fn print_the_tier() {
    match plans(None) {
        Ok(isa) => println!("tier={isa}"),
        Err(error) => println!("error={:?}: {error}", error.kind()),
    }
    println!("forced={}", plans(Some(Isa::detect())).unwrap());
}

/// What [`print_the_tier`] prints under these variables.
#[cfg(feature = "std")]
fn print(variables: &[(&str, &str)]) -> String {
    let output = child("print_the_tier", variables);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg(feature = "std")]
fn the_environment_names_the_tier() {
    let best = Isa::detect();
    assert!(print(&[]).contains(&format!("tier={best}\n")));
    for isa in Isa::ALL {
        let text = print(&[(convoke::ENV_ISA, isa.name())]);
        let expected = match absence(isa) {
            None => format!("tier={isa}\n"),
            Some(absence) => format!("error=Unavailable: Conv: CONVOKE_ISA={isa}: {absence}\n"),
        };
        assert!(text.contains(&expected), "{isa}: {text}");
        // What the program asks for counts more than the environment.
        assert!(text.contains(&format!("forced={best}\n")), "{isa}: {text}");
    }
    let text = print(&[(convoke::ENV_ISA, "sse9")]);
    let parts = ["error=Unavailable: Conv: CONVOKE_ISA=sse9: ", "portable, neon, avx2, avx512"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert!(print(&[(convoke::ENV_ISA, "")]).contains(&format!("tier={best}\n")), "empty is as unset");
}

#[test]
#[cfg(feature = "std")]
fn the_environment_caps_the_tier() {
    let expected = expected();
    for cap in Isa::ALL {
        // The tiers are in order of capability; the portable one is always there.
        let best = expected.iter().rfind(|isa| **isa <= cap).unwrap();
        let text = print(&[(convoke::ENV_MAX_ISA, cap.name())]);
        assert!(text.contains(&format!("tier={best}\n")), "{cap}: {text}");
        assert!(text.contains(&format!("forced={}\n", Isa::detect())), "{cap}: {text}");
    }
    let best = format!("tier={}\n", Isa::detect());
    assert!(print(&[(convoke::ENV_MAX_ISA, "")]).contains(&best), "empty is as unset");
    // A tier by name counts more than the cap, but a cap that is not one is an error all the same.
    let named = [(convoke::ENV_ISA, Isa::detect().name()), (convoke::ENV_MAX_ISA, "portable")];
    assert!(print(&named).contains(&best));
    for variables in
        [&[(convoke::ENV_MAX_ISA, "sse9")][..], &[(convoke::ENV_ISA, "portable"), (convoke::ENV_MAX_ISA, "sse9")]]
    {
        let text = print(variables);
        let parts = ["error=Unavailable: Conv: CONVOKE_MAX_ISA=sse9: ", "portable, neon, avx2, avx512"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn forcing_a_tier_that_is_not_there_is_an_error() {
    let missing: Vec<_> = Isa::ALL.into_iter().filter(|isa| absence(*isa).is_some()).collect();
    assert!(!missing.is_empty(), "no CPU has all tiers");
    for isa in missing {
        let error = plans(Some(isa)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let expected = format!("Conv: the ISA {isa} was asked for: {}", absence(isa).unwrap());
        assert_eq!(error.to_string(), expected);
    }
}

/// What an error must say of a tier that is not there, from the build's configuration and the standard library's view of the CPU.
fn absence(isa: Isa) -> Option<String> {
    let (is_architecture, is_built) = match isa {
        Isa::Portable => (true, true),
        Isa::Neon => (cfg!(all(target_arch = "aarch64", target_endian = "little")), cfg!(feature = "neon")),
        Isa::Avx2 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx2")),
        Isa::Avx512 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx512")),
        _ => panic!("say what {isa} needs"),
    };
    if expected().contains(&isa) {
        None
    } else if !is_architecture {
        Some(String::from("this build is for another architecture"))
    } else if !is_built {
        Some(format!("this build is without the Cargo feature `{isa}`"))
    } else {
        Some(String::from("this CPU lacks it"))
    }
}

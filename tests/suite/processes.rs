//! Tests that need a process of their own: the environment variables, and rayon's global pool.
//! They run this program again.
//!
//! In an emulator they run after the other tests, one at a time (`processes:: --test-threads=1`).
//! If qemu forks a process while another of its threads holds a lock, the new process may wait
//! for that lock for ever.

use std::process::{Command, Output};

use convoke::{Conv, Isa, Planner};
#[cfg(feature = "rayon")]
use {
    crate::common::{Combination, Operands, layers::shared_layers},
    convoke::Threads,
    rayon::ThreadPoolBuilder,
};

use crate::isa_coverage::ENSURE;
#[cfg(feature = "std")]
use crate::isa_coverage::{absence, expected};

/// A command that runs this program again. For binaries of another architecture, `CONVOKE_RUNNER`
/// names the program that runs them, with its arguments.
fn this_binary() -> Command {
    let binary = std::env::current_exe().unwrap();
    let runner = std::env::var("CONVOKE_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(program) = words.next() else { return Command::new(binary) };
    let mut command = Command::new(program);
    command.args(words).arg(binary);
    command
}

/// Runs one test of this binary in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = this_binary();
    command
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env_remove(ENSURE)
        .env_remove(convoke::ENV_ISA)
        .env_remove(convoke::ENV_MAX_ISA);
    command.envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn a_tier_that_is_asked_for_and_not_executed_fails_the_suite() {
    let run =
        |list: &str| child("isa_coverage::every_tier_of_this_cpu_is_executed", &[(ENSURE, list)]).status.success();
    assert!(run("portable"));
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no CPU has all tiers");
    assert!(!run(&format!("portable, {missing}")), "{missing} is not there");
    assert!(!run("sse9"));
}

/// The ISA of a plan by default, or by force.
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

/// The output of [`print_the_tier`] with these environment variables.
#[cfg(feature = "std")]
fn print(variables: &[(&str, &str)]) -> String {
    let output = child("processes::print_the_tier", variables);
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
        // The program's choice overrides the environment.
        assert!(text.contains(&format!("forced={best}\n")), "{isa}: {text}");
    }
    let text = print(&[(convoke::ENV_ISA, "sse9")]);
    let names = Isa::ALL.map(|isa| isa.name()).join(", ");
    let parts = ["error=Unavailable: Conv: CONVOKE_ISA: \"sse9\" is not an ISA: ", &names];
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
    // A named tier overrides the cap, but an unknown name in the cap is still an error.
    let named = [(convoke::ENV_ISA, Isa::detect().name()), (convoke::ENV_MAX_ISA, "portable")];
    assert!(print(&named).contains(&best));
    for variables in
        [&[(convoke::ENV_MAX_ISA, "sse9")][..], &[(convoke::ENV_ISA, "portable"), (convoke::ENV_MAX_ISA, "sse9")]]
    {
        let text = print(variables);
        let names = Isa::ALL.map(|isa| isa.name()).join(", ");
        let parts = ["error=Unavailable: Conv: CONVOKE_MAX_ISA: \"sse9\" is not an ISA: ", &names];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
#[cfg(feature = "rayon")]
#[ignore = "run by nothing_initialises_the_global_pool in a process of its own"]
fn run_without_the_global_pool() {
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for combination in Combination::all() {
        for layer in shared_layers() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(2)) else { continue };
            let operands = Operands::uniform(&layer.geometry(), 32);
            let packed = operands.pack(&plan);
            operands.run_packed(&plan, &packed, Threads::Serial).unwrap();
            operands.run_packed(&plan, &packed, Threads::Pool(&pool)).unwrap();
            pool.install(|| operands.run_packed(&plan, &packed, Threads::Current)).unwrap();
        }
    }
    // The global pool can be built only once. This works only if no run has built it.
    ThreadPoolBuilder::new().num_threads(1).build_global().expect("the global pool was initialised by a run");
}

#[test]
#[cfg(feature = "rayon")]
fn nothing_initialises_the_global_pool() {
    let output = child("processes::run_without_the_global_pool", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the test in the child process did not run");
}

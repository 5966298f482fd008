//! The steps: the one table of their names, and what they run.

mod bindings;
mod code;
mod memory;
mod pages;
mod published;
mod release;
mod targets;
mod windows;

use anyhow::Result;

use crate::context::Context;

/// One check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Runs only if it is named, because it takes long and other steps find nearly all that it can.
    pub(crate) by_name: bool,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Context) -> Result<()>,
}

impl Step {
    const fn new(name: &'static str, about: &'static str, run: fn(&Context) -> Result<()>) -> Self {
        Self { name, by_name: false, about, run }
    }

    const fn by_name(name: &'static str, about: &'static str, run: fn(&Context) -> Result<()>) -> Self {
        Self { by_name: true, ..Self::new(name, about, run) }
    }
}

/// All steps, in the order in which they run.
pub(crate) const STEPS: &[Step] = &[
    Step::new("toolchain", "rustfmt, clippy and the workspace's crates", code::toolchain),
    Step::new("format", "rustfmt", code::format),
    Step::new("deny", "licences, sources and advisories of dependencies", code::deny),
    Step::new("lints", "clippy, warnings are errors", code::lints),
    Step::new("docs", "rustdoc, warnings are errors", code::docs),
    Step::new("tests", "the README's test command", code::tests),
    Step::new("tools", "the README's main command on a few layers, and ONNX's vectors", code::tools),
    Step::new("compare", "the tests of tools/compare", bindings::compare),
    Step::new("onnxruntime", "the execution provider in onnxruntime", bindings::onnxruntime),
    Step::new("python", "the Python package", bindings::python),
    Step::new("header", "the header of the C interface is what cbindgen writes", bindings::header),
    Step::new("features", "each Cargo feature", code::features),
    Step::new("no_std", "the program of tests/no-std", code::no_std),
    Step::new("disasm", "the machine code of the micro-kernels", code::disasm),
    Step::new("targets", "other targets compile", targets::targets),
    Step::new("neon", "AArch64 under qemu", targets::neon),
    Step::new("portable", "32 bits", targets::portable),
    Step::new("package", "the packages that are to be published", published::package),
    Step::new("msrv", "the oldest Rust that is promised", code::msrv),
    Step::by_name("checked", "the suite with checks of arithmetic in the kernels", code::checked),
    Step::by_name("benches", "each row of the benches once", code::benches),
    Step::by_name("isas", "the suite without the kernels of some ISAs, and without std", code::isas),
    Step::by_name("bare", "bare metal and the browser compile", targets::bare),
    Step::by_name("disasm_neon", "the machine code of NEON's micro-kernels", code::disasm_neon),
    Step::by_name("big_endian", "s390x under qemu", targets::big_endian),
    Step::by_name("windows", "Windows under wine", windows::windows),
    Step::by_name("macos", "macOS compiles", targets::macos),
    Step::by_name("mca", "what LLVM's models of CPUs say of the kernels' loops", code::mca),
    Step::by_name("wasm", "the kernels with WebAssembly's vectors", targets::wasm),
    Step::by_name("onnxruntime_wheel", "the provider's wheel as a user builds it", bindings::onnxruntime_wheel),
    Step::by_name("python_wheel", "the Python wheel as a user builds it", bindings::python_wheel),
    Step::by_name("capi", "the C interface as cargo-c installs it", bindings::capi),
    Step::by_name("docs_rs", "the documentation as docs.rs builds it", published::docs_rs),
    Step::by_name("minimal", "the oldest dependencies that the manifests allow", published::minimal),
    Step::by_name("semver", "the public interface against the last version", published::semver),
    Step::by_name("release", "all files of a release, each tried as its user has it", release::release),
    Step::by_name("engines", "tract and candle on convoke", bindings::engines),
    Step::by_name("miri", "undefined behaviour in the portable tier", memory::miri),
    Step::by_name("fuzz", "each fuzz target for a minute", memory::fuzz),
    Step::by_name("fuzz_long", "each fuzz target for ten minutes", memory::fuzz_long),
    Step::by_name("fuzz_isas", "each fuzz target for a minute, with the kernels of all ISAs", memory::fuzz_isas),
];

#[cfg(test)]
mod tests {
    use super::STEPS;

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn the_page_of_checks_explains_what_runs_by_name() {
        let page = include_str!("../../../docs/checks.md");
        let section = page.split_once("## Steps that run by name alone").unwrap().1.split_once("\n## ").unwrap().0;
        let names: Vec<_> = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |")).collect();
        for step in STEPS {
            let is_explained =
                names.iter().any(|(names, _)| names.split(['`', ',', ' ']).any(|name| name == step.name));
            assert_eq!(is_explained, step.by_name, "{}", step.name);
        }
    }

    #[test]
    fn the_workflow_names_steps() {
        let workflow = include_str!("../../../.github/workflows/ci.yml");
        let list = workflow.split_once("step: [").unwrap().1.split_once(']').unwrap().0;
        let of_push: Vec<_> = list.split(", ").collect();
        for step in STEPS.iter().filter(|step| step.by_name && !["fuzz_long", "fuzz_isas"].contains(&step.name)) {
            assert!(of_push.contains(&step.name), "{} is in no job", step.name);
        }
        assert!(of_push.iter().all(|name| STEPS.iter().any(|step| step.name == *name)), "{of_push:?}");
    }
}

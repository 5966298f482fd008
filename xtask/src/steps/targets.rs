//! Other architectures.

use anyhow::Result;
use xshell::{Cmd, cmd};

use super::code::{LIGHT, NO_STD};
use crate::context::Context;

/// AArch64; Windows, without tests; and the browser with vectors and bare metal of 32 bits, without std.
pub(super) fn targets(cx: &Context) -> Result<()> {
    let (sh, browser) = (&cx.sh, "wasm32-unknown-unknown");
    for triple in ["aarch64-unknown-linux-gnu", "x86_64-pc-windows-msvc"] {
        if cx.has_target(triple) {
            let crates =
                ["-pconvoke-kernels", "-pconvoke", "-pconvoke-tools", "-pconvoke-onnxruntime", "-pconvoke-capi"];
            cmd!(sh, "cargo clippy --locked {crates...} --target {triple} -- -D warnings").run()?;
        }
    }
    if cx.has_target(browser) {
        cmd!(sh, "cargo check --locked -p convoke --no-default-features --target {browser}")
            .env("RUSTFLAGS", "-Ctarget-feature=+simd128")
            .run()?;
    }
    bare_target(cx, "thumbv7em-none-eabihf")
}

/// The whole workspace for macOS.
pub(super) fn macos(cx: &Context) -> Result<()> {
    ["aarch64-apple-darwin", "x86_64-apple-darwin"].into_iter().try_for_each(|triple| whole_target(cx, triple))
}

/// Lints the whole workspace for a target. A crate of the benches compiles a file in C, which needs no header
/// but the compiler's own.
pub(super) fn whole_target(cx: &Context, triple: &str) -> Result<()> {
    let sh = &cx.sh;
    let compiler = if triple.contains("windows") { "gcc-mingw-w64-x86-64-posix" } else { "clang" };
    if !cx.has_target(triple) || !cx.has_packages(&[compiler]) {
        return Ok(());
    }
    let mut lint = cmd!(sh, "cargo clippy --locked --workspace --all-targets --target {triple} -- -D warnings");
    if compiler == "clang" {
        // No SDK is looked for if one is named.
        lint = lint.env("SDKROOT", "/").env(format!("CC_{triple}"), "clang");
        lint = lint.env(format!("CFLAGS_{triple}"), "-ffreestanding");
    }
    Ok(lint.run()?)
}

/// More of what has no std: AArch64's bare metal, the browser without vectors, and lints of the program
/// of tests/no-std. AArch64 without floating-point registers has no NEON tier, whatever its feature says.
pub(super) fn bare(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    for triple in ["aarch64-unknown-none", "aarch64-unknown-none-softfloat", "wasm32-unknown-unknown"] {
        bare_target(cx, triple)?;
    }
    Ok(cmd!(sh, "cargo clippy {NO_STD...} -- -D warnings").run()?)
}

/// Checks the library without std for a target, if that can be had.
fn bare_target(cx: &Context, triple: &str) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_target(triple) {
        return Ok(());
    }
    let features = ["--no-default-features", "--features", "neon,blas-matrixmultiply"];
    Ok(cmd!(sh, "cargo check --locked -p convoke {features...} --target {triple}").run()?)
}

/// With fewer random layers and the NEON tier alone, because qemu is slow: the tests of both crates but
/// those where nothing depends on the CPU (unit tests, `PlanCache`, the definition); and on a CPU without
/// FEAT_FP16 those of conversions and of every algorithm. Some tests are left to other targets, because they
/// take long: numbers of threads but in f32, bounds of errors, packed weights at other sizes, and
/// ConvTranspose's longest strides.
pub(super) fn neon(cx: &Context) -> Result<()> {
    let libraries = "libc6-dev-arm64-cross";
    let Some(mut arm) = Emulated::new(cx, "aarch64-unknown-linux-gnu", "aarch64", "aarch64-linux-gnu", libraries)
    else {
        return Ok(());
    };
    arm.environment.push(("CONVOKE_ENSURE_ISA".into(), "portable,neon".into()));
    let features = "convoke/std,convoke/rayon,convoke/neon,convoke/save";
    let skipped = [
        "plan_cache::",
        "the_definition_",
        "accuracy::",
        "f64_gives_the_same_bits",
        "f16_gives_the_same_bits",
        "transposed::long_strides",
        "errors_run::packed_weights",
    ];
    arm.test_crates(features, &skipped)?;
    arm.runner += " -cpu cortex-a72";
    let tests = ["--test", "stream", "--test", "suite", "--", "widen", "narrow", "isa_coverage"];
    Ok(arm.test(features, &tests).run()?)
}

/// The portable tier where usize has 32 bits, with checks of arithmetic in the crate, because sizes
/// overflow here that have room in 64 bits: unit tests, and those of sizes.
pub(super) fn portable(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let libraries = "libc6-dev-i386-cross";
    let Some(mut narrow) = Emulated::new(cx, "i686-unknown-linux-gnu", "i386", "i686-linux-gnu", libraries) else {
        return Ok(());
    };
    // Most x86-64 machines run it themselves.
    let program = cx.target.join("i686");
    cmd!(sh, "i686-linux-gnu-gcc -static -x c -o {program} -").stdin("int main(void) { return 0; }").run()?;
    if cfg!(target_arch = "x86_64") && cmd!(sh, "{program}").run().is_ok() {
        narrow.runner = "env".into();
    }
    let checks = ["debug-assertions", "overflow-checks"]
        .map(|check| format!("--config=profile.dev.package.convoke.{check}=true"));
    narrow.options.extend(checks);
    let tests = "tests:: errors explanations isa_coverage numerics packed padding plan_cache regressions spec tiny \
        transposed tuning winograd";
    let arguments: Vec<_> = "--lib --test suite --".split(' ').chain(tests.split_whitespace()).collect();
    Ok(narrow.test_of(&["-p", "convoke"], "convoke/std,convoke/rayon", &arguments).run()?)
}

/// The portable tier where bytes are in the other order: the tests of both crates but unit tests, and those
/// that compare thread counts.
pub(super) fn big_endian(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let libraries = "libc6-dev-s390x-cross";
    let Some(big) = Emulated::new(cx, "s390x-unknown-linux-gnu", "s390x", "s390x-linux-gnu", libraries) else {
        return Ok(());
    };
    let program = cx.target.join("s390x");
    let source = r#"int main(void) { double y; float a = 0.5f, b = 0.75f;
        asm("ler %0,%1\n mdebr %0,%2" : "=&f"(y) : "f"(a), "f"(b)); return y != 0.375; }"#;
    cmd!(sh, "s390x-linux-gnu-gcc -static -x c -o {program} -").stdin(source).run()?;
    if cmd!(sh, "qemu-s390x-static {program}").run().is_ok() {
        // Thread counts have nothing to do with the order of bytes.
        return big.test_crates("convoke/std,convoke/rayon", &["same_bits"]);
    }
    cx.skip("this qemu multiplies f32 to f64 wrongly (7.2 does, 10.0 does not): only kernels without such products");
    let tests = ["--tests", "--", "--skip", "_tiles_are_"];
    Ok(big.test_of(&["-p", "convoke-kernels"], "", &tests).run()?)
}

/// By Node.js. Panics end the program there, so that calls cannot be seen to be refused.
pub(super) fn wasm(cx: &Context) -> Result<()> {
    let (sh, triple) = (&cx.sh, "wasm32-wasip1");
    if !cx.has_target(triple) || !cx.has_packages(&["nodejs"]) {
        return Ok(());
    }
    let runner = format!("node --no-warnings {}", sh.current_dir().join(".ci/wasi.mjs").display());
    let test = cmd!(sh, "cargo test --locked --quiet --target {triple} -p convoke-kernels --no-default-features");
    let test = test.args(LIGHT).args(["--", "--skip", "refused"]);
    let test = test.env("CARGO_TARGET_WASM32_WASIP1_RUNNER", runner);
    Ok(test.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", "-Ctarget-feature=+simd128").run()?)
}

/// Tests for an architecture that this machine does not run: by Debian's qemu, linked by a cross
/// compiler. Linked statically, so that qemu needs no C library of the target. Fewer cases, because qemu
/// is slow.
struct Emulated<'a> {
    cx: &'a Context,
    triple: &'static str,
    /// The emulator, with its options.
    runner: String,
    options: Vec<String>,
    environment: Vec<(String, String)>,
}

impl<'a> Emulated<'a> {
    /// None where something cannot be had.
    fn new(cx: &'a Context, triple: &'static str, qemu: &str, cross: &str, libraries: &str) -> Option<Self> {
        let compiler = format!("gcc-{cross}");
        if !cx.has_target(triple) || !cx.has_packages(&["qemu-user-static", &compiler, libraries]) {
            return None;
        }
        // Emulated instructions of dependencies cost more than optimising them.
        let optimised = "--config=profile.dev.package.\"*\".opt-level=1".to_owned();
        let options = LIGHT.map(str::to_owned).into_iter().chain([optimised]).collect();
        let variable = |name: &str| format!("{}_{name}", variable_of(triple));
        let environment = vec![
            (variable("LINKER"), format!("{cross}-gcc")),
            (variable("RUSTFLAGS"), "-Ctarget-feature=+crt-static".to_owned()),
            ("CONVOKE_CASES".to_owned(), "8".to_owned()),
        ];
        Some(Self { cx, triple, runner: format!("qemu-{qemu}-static"), options, environment })
    }

    /// Tests of both crates with these Cargo features. The arguments name the programs and the tests.
    fn test(&self, features: &str, arguments: &[&str]) -> Cmd<'a> {
        self.test_of(&["-p", "convoke-kernels", "-p", "convoke"], features, arguments)
    }

    fn test_of(&self, crates: &[&str], features: &str, arguments: &[&str]) -> Cmd<'a> {
        let Self { cx, triple, runner, options, environment } = self;
        let sh = &cx.sh;
        let features = ["--no-default-features", "--features", features];
        let test = cmd!(
            sh,
            "cargo test --locked --quiet --target {triple} {options...} {features...} {crates...} {arguments...}"
        );
        let test = environment.iter().fold(test, |test, (variable, value)| test.env(variable, value));
        test.env(format!("{}_RUNNER", variable_of(triple)), runner).env("CONVOKE_RUNNER", runner)
    }

    /// The tests in the crates' folders `tests`, but for those whose name has one of some words. Those
    /// that start processes run one at a time: tests/suite/processes.rs says why.
    fn test_crates(&self, features: &str, skipped: &[&str]) -> Result<()> {
        let skipped = skipped.iter().flat_map(|word| ["--skip", word]);
        let tests: Vec<_> = ["--test", "*", "--", "--skip", "processes::"].into_iter().chain(skipped).collect();
        self.test(features, &tests).run()?;
        Ok(self.test(features, &["--test", "suite", "--", "processes::", "--test-threads=1"]).run()?)
    }
}

/// The beginning of the names of Cargo's variables for a target.
fn variable_of(triple: &str) -> String {
    format!("CARGO_TARGET_{}", triple.to_uppercase().replace('-', "_"))
}

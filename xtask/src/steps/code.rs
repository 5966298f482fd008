//! The workspace on this machine.

use anyhow::{Context as _, Result, ensure};
use xshell::{Cmd, cmd};

use crate::context::{Context, succeeds};

/// For tests of other targets and features, whose code `tests` has with all checks: less optimisation of
/// the crate, and no checks.
pub(super) const LIGHT: [&str; 6] = [
    "--config",
    "profile.dev.package.convoke.opt-level=1",
    "--config",
    "profile.dev.package.convoke.debug-assertions=false",
    "--config",
    "profile.dev.package.convoke.overflow-checks=false",
];

/// Cargo's options for tests/no-std.
pub(super) const NO_STD: [&str; 7] =
    ["--locked", "-p", "convoke-no-std", "--profile", "no-std", "--features", "program"];

pub(super) fn toolchain(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    for (component, command) in
        [("rustfmt", cmd!(sh, "cargo fmt --version")), ("clippy", cmd!(sh, "cargo clippy --version"))]
    {
        ensure!(
            succeeds(command) || cx.network(&cmd!(sh, "rustup component add {component}")),
            "{component} cannot be had"
        );
    }
    // The workspace's crates, so that the steps that build them do not wait.
    ensure!(cx.network(&cmd!(sh, "cargo fetch --locked")), "the workspace's crates cannot be had");
    Ok(())
}

pub(super) fn format(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    Ok(cmd!(sh, "cargo fmt --all --check").run()?)
}

/// Without the database of advisories the rest of deny.toml is checked.
pub(super) fn deny(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_prebuilt("cargo-deny", "0.20.2")? {
        return Ok(());
    }
    let mut checks = vec!["licenses", "sources", "bans"];
    if cx.or_skip(cx.network(&cmd!(sh, "cargo deny fetch db")), "the database of advisories cannot be had") {
        checks.push("advisories");
    }
    let (config, checks) = (sh.current_dir().join("deny.toml"), &checks);
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml", "bindings/examples/Cargo.toml"] {
        cmd!(sh, "cargo deny --locked --manifest-path {manifest} --config {config} check {checks...}").run()?;
    }
    Ok(())
}

pub(super) fn lints(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    cmd!(sh, "cargo clippy --locked --workspace --all-targets -- -D warnings").run()?;
    Ok(cmd!(sh, "cargo clippy --locked -p convoke -p convoke-kernels --no-default-features -- -D warnings").run()?)
}

pub(super) fn docs(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    Ok(cmd!(sh, "cargo doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?)
}

/// The tests of the C interface do without compilers and tools that are missing. Here gcc and g++ must
/// be there, and the others where they can be installed.
pub(super) fn tests(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let mut test = cmd!(sh, "cargo test --locked --workspace");
    if cfg!(target_os = "linux") {
        let all = cx.has_packages(&["clang", "libclang-rt-dev", "g++", "valgrind", "binutils"]);
        test = test.env("CONVOKE_ENSURE_TOOLS", if all { "gcc,g++,clang,clang++,valgrind,nm" } else { "gcc,g++" });
    }
    Ok(test.run()?)
}

pub(super) fn tools(cx: &Context) -> Result<()> {
    let (sh, tool) = (&cx.sh, command_line(cx)?);
    let model = "tests/data/onnx/node_opset22/test_basic_conv_with_padding/model.onnx";
    cmd!(sh, "{tool} report --seconds 0.01 --filter resnet50.c4,dcgan,mbv2.dw3x3.384").run()?;
    cmd!(sh, "{tool} profile {model} --seconds 0.01").run()?;
    Ok(cmd!(sh, "{tool} onnx-test --quiet --all-algorithms tests/data/onnx").run()?)
}

/// The command line as `tests` built it, with every check. Built optimised, it would be the kernels'
/// third build.
fn command_line(cx: &Context) -> Result<std::path::PathBuf> {
    let sh = &cx.sh;
    cmd!(sh, "cargo test --locked --quiet --workspace --no-run").run()?;
    Ok(cx.target.join("debug/convoke-tools"))
}

/// Each Cargo feature alone, or with one that has nothing to do with it, and the default ones. `lints`
/// and `tests` cover these with both foreign BLASes, which the tools turn on for the whole workspace;
/// `lints` has the crates without features, and `no_std`, `targets` and `neon` have all that need no
/// std. Only the library: what tests depend on turns features of dependencies on. The suite is linted
/// with one set that the other steps have not, without std.
pub(super) fn features(cx: &Context) -> Result<()> {
    one_build_of_the_kernels(cx)?;
    let sh = &cx.sh;
    let clippy = |part: &str, set: &str| {
        cmd!(
            sh,
            "cargo clippy --locked --quiet -p convoke {part} --no-default-features --features {set} -- -D warnings"
        )
        .run()
    };
    for set in ["default", "std", "rayon", "save,avx2", "ndarray,avx512", "blas-gemm", "blas-matrixmultiply"] {
        clippy("--lib", set)?;
    }
    Ok(clippy("--tests", "ndarray")?)
}

/// Bindings and tools share a build of the kernels: bindings/unify/Cargo.toml says how.
fn one_build_of_the_kernels(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let needs = |package: &str| -> Result<String> {
        let format = "{p} {f}";
        let tree = cmd!(sh, "cargo tree --locked -p {package} -e normal,build --no-dedupe --prefix depth -f {format}");
        below(&tree.quiet().read()?, "convoke-kernels")
    };
    let first = needs("convoke-onnxruntime")?;
    for package in ["convoke-capi", "convoke-python", "convoke-tools"] {
        let other = needs(package)?;
        ensure!(
            other == first,
            "{package} compiles the kernels again: bindings/unify lacks a feature of\n{other}\nor of\n{first}"
        );
    }
    Ok(())
}

/// A crate and all below it, in a tree whose lines begin with their depth.
fn below(tree: &str, name: &str) -> Result<String> {
    let depth = |line: &str| line.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>();
    let mut lines =
        tree.lines().skip_while(|line| !line.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(name));
    let first = lines.next().with_context(|| format!("no {name} in a tree of crates"))?;
    let top = depth(first)?;
    let mut text = format!("0{}", &first[top.to_string().len()..]);
    for line in lines {
        let depth = depth(line)?;
        if depth <= top {
            break;
        }
        text += &format!("\n{}{}", depth - top, line.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    Ok(text)
}

/// The suite with checks of arithmetic in the kernels of all ISAs, which take twice as long to compile.
pub(super) fn checked(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let checks = ["debug-assertions", "overflow-checks"]
        .map(|check| format!("--config=profile.dev.package.convoke-kernels.{check}=true"));
    Ok(cmd!(sh, "cargo test --locked --workspace --test suite --test memory {checks...}").run()?)
}

/// Built as the tests are, so that crates and kernels are those of `tests`.
pub(super) fn benches(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    Ok(cmd!(sh, "cargo test --locked --workspace --bench * -- --test").run()?)
}

/// The suite with some sets of Cargo features, few random layers and little optimisation.
pub(super) fn isas(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    for set in ["avx2", "avx512,blas-gemm", "ndarray"] {
        cmd!(
            sh,
            "cargo test --locked --quiet -p convoke --test suite --no-default-features --features {set} {LIGHT...}"
        )
        .env("CONVOKE_CASES", "4")
        .run()?;
    }
    cmd!(
        sh,
        "cargo test --locked --quiet -p convoke --doc --no-default-features --features ndarray {LIGHT...} -- array"
    )
    .run()
    .context("the page's program for ndarray")
}

/// The program cannot be compiled with std. It runs every algorithm that needs none, ISA and type.
pub(super) fn no_std(cx: &Context) -> Result<()> {
    let (sh, program) = (&cx.sh, cx.target.join("no-std/convoke-no-std"));
    build_no_std(cx, &[]).run()?;
    Ok(cmd!(sh, "{program}").run()?)
}

pub(super) fn disasm(cx: &Context) -> Result<()> {
    let (sh, program) = (&cx.sh, cx.target.join("no-std/convoke-no-std"));
    let isas = if cfg!(target_arch = "x86_64") { "avx2,avx512" } else { "neon" };
    let tool = disassembler(cx)?;
    build_no_std(cx, &[]).run()?;
    Ok(cmd!(sh, "{tool} disasm --expect {isas} {program}").run()?)
}

/// Rust's own linker links the program for AArch64. It runs under qemu.
pub(super) fn disasm_neon(cx: &Context) -> Result<()> {
    let (sh, triple) = (&cx.sh, "aarch64-unknown-linux-musl");
    let program = cx.target.join(triple).join("no-std/convoke-no-std");
    if !cx.has_target(triple) {
        return Ok(());
    }
    let tool = disassembler(cx)?;
    build_no_std(cx, &["--target", triple]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld").run()?;
    cmd!(sh, "{tool} disasm --expect neon --readme {program}").run()?;
    if cx.has_packages(&["qemu-user-static"]) {
        cmd!(sh, "qemu-aarch64-static {program}").run()?;
    }
    Ok(())
}

/// Prints the table of docs/journal/mca.md: NEON's kernels, and on x86-64 its own.
pub(super) fn mca(cx: &Context) -> Result<()> {
    let (sh, triple) = (&cx.sh, "aarch64-unknown-linux-musl");
    if !cx.has_target(triple) || !cx.has_packages(&["llvm-19"]) {
        return Ok(());
    }
    let tool = disassembler(cx)?;
    build_no_std(cx, &["--target", triple]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld").run()?;
    build_no_std(cx, &[]).run()?;
    for folder in [triple, ""] {
        let program = cx.target.join(folder).join("no-std/convoke-no-std");
        cmd!(sh, "{tool} disasm --mca llvm-mca-19 {program}").run()?;
    }
    Ok(())
}

/// The program of tests/no-std. Mangling `v0` gives the streaming passes names that say whose they are.
/// All crates need it, because the compiler chooses the crate that a generic function is compiled in.
fn build_no_std<'a>(cx: &'a Context, options: &[&str]) -> Cmd<'a> {
    let sh = &cx.sh;
    let flags = sh.var("RUSTFLAGS").unwrap_or_default() + " -C symbol-mangling-version=v0";
    cmd!(sh, "cargo build {NO_STD...} {options...}").env("RUSTFLAGS", flags)
}

/// The command line, with what `disasm` needs of Rust.
fn disassembler(cx: &Context) -> Result<std::path::PathBuf> {
    let sh = &cx.sh;
    let libraries = std::path::PathBuf::from(cmd!(sh, "rustc --print target-libdir").quiet().read()?);
    if !libraries.with_file_name("bin").join("llvm-objdump").exists() {
        cx.network(&cmd!(sh, "rustup component add llvm-tools"));
    }
    command_line(cx)
}

/// Where that toolchain is installed or can be.
pub(super) fn msrv(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let version = value_of(&sh.read_file("Cargo.toml")?, "rust-version")?;
    let installed = cmd!(sh, "rustup toolchain list").quiet().read().unwrap_or_default();
    // As 1.89 or 1.89.0, without the target behind it.
    let found = installed.lines().filter_map(|line| line.split('-').next()).find(|name| name.starts_with(&version));
    if !cx.or_skip(
        found.is_some() || cx.network(&cmd!(sh, "rustup toolchain install {version} --profile minimal")),
        &format!("Rust {version} cannot be had"),
    ) {
        return Ok(());
    }
    let toolchain = format!("+{}", found.unwrap_or(&version));
    Ok(cmd!(sh, "cargo {toolchain} check --locked --workspace").run()?)
}

/// The text behind `key = "` in a manifest.
pub(super) fn value_of(manifest: &str, key: &str) -> Result<String> {
    let value = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix("= \""));
    let value = value.and_then(|value| value.strip_suffix('"')).with_context(|| format!("a manifest without {key}"))?;
    Ok(value.to_owned())
}

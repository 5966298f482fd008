//! The crate as other languages and engines have it, and the comparison with other libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use super::code::value_of;
use super::pages::block;
use crate::context::Context;
use crate::install::Python;

const LINKING: &str = "docs/linking.md";

/// In a Python environment of their own.
pub(super) fn compare(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let requirements = sh.read_file("tools/compare/requirements.txt")?;
    let needed: Vec<_> =
        requirements.lines().filter(|line| line.starts_with("numpy==") || line.starts_with("tqdm==")).collect();
    if let Some(python) = cx.has_python(&cx.target.join("compare-tests"), &needed)? {
        let python = python.python();
        cmd!(sh, "{python} -B -m unittest discover tools/compare").run()?;
    }
    Ok(())
}

/// A dynamic library as `tests` builds it: with the tests, so that dependencies have the same features.
fn tested_library(cx: &Context, name: &str) -> Result<PathBuf> {
    let sh = &cx.sh;
    cmd!(sh, "cargo build --locked --workspace --lib --tests").run()?;
    Ok(cx.target.join("debug").join(format!("lib{name}.so")))
}

/// As a wheel that has the library as `tests` builds it: all its tests on the newest release, and those
/// but the whole networks on the oldest one.
pub(super) fn onnxruntime(cx: &Context) -> Result<()> {
    let library = tested_library(cx, "convoke_onnxruntime")?;
    let _library = cx.sh.push_env("CONVOKE_ONNXRUNTIME_LIBRARY", library);
    // Most of that network's time is 574 MB of weights that are written and read, seven times.
    let of = ["first", "last"]
        .map(|layout| format!("--deselect=tests/test_networks.py::test_network[light-vgg19-{layout}]"));
    provider(cx, &[&of[0], &of[1]])
}

/// The build hook has cargo build the library, optimised.
pub(super) fn onnxruntime_wheel(cx: &Context) -> Result<()> {
    provider(cx, &[])
}

/// The tests of the provider's wheel. Arguments are pytest's, for the networks.
fn provider(cx: &Context, arguments: &[&str]) -> Result<()> {
    let (sh, folder) = (&cx.sh, cx.target.join("onnxruntime-tests"));
    sh.remove_path(&folder)?;
    let requirements = ["-r", "bindings/onnxruntime/tests/requirements.txt"];
    let environment = |release: &str| {
        let onnxruntime = format!("onnxruntime=={release}");
        cx.has_python(&folder.join(release), &[&onnxruntime, requirements[0], requirements[1]])
    };
    let (Some(oldest), Some(newest)) = (environment("1.24.1")?, environment("1.32.0")?) else { return Ok(()) };
    let python = newest.python();
    cmd!(sh, "{python} -m pip wheel --no-deps -w {folder} ./bindings/onnxruntime").run()?;
    let wheel = sh.read_dir(&folder)?.into_iter().find(|file| file.extension().is_some_and(|of| of == "whl"));
    let wheel = wheel.context("pip made no wheel")?;
    for python in [oldest.python(), python] {
        cmd!(sh, "{python} -m pip install --quiet --no-deps {wheel}").run()?;
    }
    let (tests, networks) = ("bindings/onnxruntime/tests", "bindings/onnxruntime/tests/test_networks.py");
    let ignored = format!("--ignore={networks}");
    // Beside the other tests, because each of them mostly keeps one core busy.
    let mut beside = Command::from(newest.pytest(cx, &[&[networks], arguments].concat())).spawn()?;
    for python in [oldest, newest] {
        python.pytest(cx, &[tests, &ignored]).run()?;
    }
    ensure!(beside.wait()?.success(), "the networks failed");
    Ok(())
}

/// Needs cbindgen.
pub(super) fn header(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    if cx.has_cargo_tool("cbindgen", "0.29.4", &[], &[]) {
        let written = "bindings/c/include/convoke.h";
        let config = "bindings/c/cbindgen.toml";
        cmd!(sh, "cbindgen --quiet --config {config} --crate convoke-capi --verify --output {written} bindings/c")
            .run()?;
    }
    Ok(())
}

/// The C interface as a C programmer has it: installed by cargo-c, which takes minutes to build, and found
/// by pkg-config and CMake, with the programs and commands of docs/linking.md.
pub(super) fn capi(cx: &Context) -> Result<()> {
    let prefix = cx.target.join("capi-tests");
    if install_c(cx, &prefix)? { try_installed_c(cx, &prefix) } else { Ok(()) }
}

/// Installs the C interface in a folder, which is emptied, and returns whether cargo-c can be had.
pub(super) fn install_c(cx: &Context, prefix: &Path) -> Result<bool> {
    let sh = &cx.sh;
    let packages: &[&str] = if cfg!(target_os = "linux") { &["libssl-dev", "pkg-config"] } else { &[] };
    if !cx.has_cargo_tool("cargo-c", "0.10.18+cargo-0.92.0", &[], packages) {
        return Ok(false);
    }
    sh.remove_path(prefix)?;
    cmd!(sh, "cargo cinstall --locked -p convoke-capi --prefix {prefix} --libdir lib").run()?;
    Ok(true)
}

/// Builds and runs the programs and commands of docs/linking.md, and the tests' programs, with what is installed
/// in a folder.
pub(super) fn try_installed_c(cx: &Context, prefix: &Path) -> Result<()> {
    let sh = &cx.sh;
    let (page, library) = (sh.read_file(LINKING)?, prefix.join("lib/libconvoke.so"));
    let soname = page.split('`').find(|word| word.starts_with("libconvoke.so.")).context("a soname on the page")?;
    let dynamic = cmd!(sh, "readelf -d {library}").read()?;
    ensure!(dynamic.contains(&format!("soname: [{soname}]")), "the page names {soname}: {dynamic}");
    // The page's programs and commands, and no header or library but the installed ones.
    sh.write_file(prefix.join("example.c"), block(&page, "c", "convoke.h")?)?;
    sh.write_file(prefix.join("example.cpp"), block(&page, "cpp", "convoke.h")?)?;
    sh.write_file(prefix.join("link.sh"), block(&page, "sh", "cc example.c")?)?;
    let project = "cmake_minimum_required(VERSION 3.22)\nproject(page C)\nadd_executable(example ../example.c)\n";
    sh.write_file(prefix.join("page/CMakeLists.txt"), project.to_owned() + &block(&page, "cmake", "convoke")?)?;
    let programs = sh.current_dir().join("bindings/c/tests/programs");
    {
        let _folder = sh.push_dir(prefix);
        let _packages = sh.push_env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let _libraries = sh.push_env("LD_LIBRARY_PATH", prefix.join("lib"));
        let flags = cmd!(sh, "pkg-config --cflags --libs convoke").read()?;
        // What is installed is optimised, and has no Cargo features but its own.
        let sources = [
            (programs.join("c11.c"), "cc", "c11"),
            (programs.join("cpp17.cpp"), "c++", "c++17"),
            ("example.cpp".into(), "c++", "c++17"),
        ];
        for (source, compiler, standard) in sources {
            let flags = flags.split_whitespace();
            cmd!(sh, "{compiler} -std={standard} {source} {flags...} -pthread -lm -o program").run()?;
            cmd!(sh, "./program").run()?;
        }
        let printed = cmd!(sh, "bash -eux link.sh").read()?;
        ensure!(printed == "y[0] = 0.5\ny[0] = 0.5", "the page's commands print {printed:?}");
        // The second one has linked it with the static library.
        let needed = cmd!(sh, "readelf -d example").read()?;
        ensure!(!needed.contains("libconvoke"), "it was to be linked statically: {needed}");
    }
    if cx.has_packages(&["cmake", "make"]) {
        let (built, page) = (prefix.join("cmake"), prefix.join("page"));
        let (of_page, example) = (page.join("build"), prefix.join("example.c"));
        let options = [format!("-DCMAKE_PREFIX_PATH={}", prefix.display()), format!("-DEXAMPLE={}", example.display())];
        let options = &options;
        cmd!(sh, "cmake -S bindings/c/tests/cmake -B {built} {options...}").run()?;
        cmd!(sh, "cmake -S {page} -B {of_page} {options...}").run()?;
        for (folder, program) in [(&built, "shared"), (&built, "static"), (&of_page, "example")] {
            let program = folder.join(program);
            cmd!(sh, "cmake --build {folder}").run()?;
            cmd!(sh, "{program}").run()?;
        }
    }
    Ok(())
}

/// The environment of the Python package's tests.
fn python_environment(cx: &Context) -> Result<Option<Python>> {
    cx.has_python(&cx.target.join("python-tests"), &["-r", "bindings/python/tests/requirements.txt"])
}

/// With the library as `tests` builds it: all its tests but that of the wheel.
pub(super) fn python(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let Some(environment) = python_environment(cx)? else { return Ok(()) };
    let (library, python) = (tested_library(cx, "convoke_python")?, environment.python());
    let platlib = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let site = PathBuf::from(cmd!(sh, "{python} -c {platlib}").read()?);
    let version = value_of(&sh.read_file("Cargo.toml")?, "version")?;
    cmd!(sh, "cp -r bindings/python/python/convoke {site}").run()?;
    sh.copy_file(library, site.join("convoke/_convoke.abi3.so"))?;
    let metadata = format!("Metadata-Version: 2.1\nName: convoke\nVersion: {version}\n");
    sh.write_file(site.join(format!("convoke-{version}.dist-info/METADATA")), metadata)?;
    let of_wheel = "tests/test_package.py::test_the_wheel_is_for_every_python";
    Ok(environment.pytest(cx, &["bindings/python/tests", "--deselect", of_wheel]).run()?)
}

/// The program of docs/linking.md, and all tests.
pub(super) fn python_wheel(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let Some(environment) = python_environment(cx)? else { return Ok(()) };
    let (python, wheels) = (environment.python(), cx.target.join("python-wheel"));
    sh.remove_path(&wheels)?;
    cmd!(sh, "{python} -m pip wheel --no-deps -w {wheels} ./bindings/python").run()?;
    let wheel = sh.read_dir(&wheels)?.pop().context("pip made no wheel")?;
    let wheel = wheel.to_str().context("a path in UTF-8")?;
    try_python_wheel(cx, &wheels.join("empty"), wheel)?;
    cmd!(sh, "{python} -m pip install --quiet --no-deps {wheel}").run()?;
    Ok(environment.pytest(cx, &["bindings/python/tests"]).run()?)
}

/// Runs the program of docs/linking.md in a new environment where nothing is but what the wheel asks for, with the
/// newest numpy and with the oldest one that the wheel allows and this Python has.
pub(super) fn try_python_wheel(cx: &Context, folder: &Path, wheel: &str) -> Result<()> {
    let sh = &cx.sh;
    if let Some(empty) = cx.has_python(folder, &[wheel])? {
        let (page, program) = (block(&sh.read_file(LINKING)?, "python", "import convoke")?, folder.join("page.py"));
        sh.write_file(&program, page)?;
        let interpreter = empty.python();
        cmd!(sh, "{interpreter} -I {program}").run()?;
        // The first one of each Python from 3.10 on.
        let versions = ["1.24.0", "1.26.0", "2.1.0", "2.3.2"].map(|version| format!("numpy=={version}"));
        let oldest = versions.iter().find(|version| empty.pip(cx, &["--only-binary", ":all:", version]));
        if cx.or_skip(oldest.is_some(), "an old numpy for this Python cannot be had") {
            cmd!(sh, "{interpreter} -I {program}").run()?;
        }
    }
    Ok(())
}

/// These programs have a Cargo.lock of their own, and need a newer Rust.
pub(super) fn engines(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let _folder = sh.push_dir("bindings/examples");
    let needs = value_of(&sh.read_file("Cargo.toml")?, "rust-version")?;
    let minor = |version: &str| version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let has = cmd!(sh, "rustc --version").read()?.split(' ').nth(1).and_then(minor);
    if !cx.or_skip(has >= minor(&needs), &format!("the engines need Rust {needs}")) {
        return Ok(());
    }
    let _target = sh.push_env("CARGO_TARGET_DIR", cx.target.join("engines"));
    cmd!(sh, "cargo fmt --all --check").run()?;
    cmd!(sh, "cargo clippy --locked --workspace --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo test --locked --quiet --workspace").run()?;
    for package in ["convoke-tract", "convoke-candle"] {
        let printed = cmd!(sh, "cargo run --locked --quiet -p {package} -- --seconds 0").read()?;
        let line = printed.lines().find(|line| line.contains("Geometric mean"));
        println!("{}", line.with_context(|| format!("{package} prints no geometric mean: {printed}"))?);
    }
    Ok(())
}

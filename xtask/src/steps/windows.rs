//! Windows: built by MinGW, and run by wine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use super::pages::block;
use super::targets::whole_target;
use crate::context::Context;

const TRIPLE: &str = "x86_64-pc-windows-gnu";
const WINE: &str = "/usr/lib/wine/wine64";

/// Lints, the tests in Rust with fewer random layers, the programs in C and C++, and the wheels.
pub(super) fn windows(cx: &Context) -> Result<()> {
    let (sh, prefix) = (&cx.sh, cx.target.join("wine"));
    let packages = ["gcc-mingw-w64-x86-64-posix", "g++-mingw-w64-x86-64-posix", "wine64"];
    if !cx.has_target(TRIPLE) || !cx.has_packages(&packages) {
        return Ok(());
    }
    whole_target(cx, TRIPLE)?;
    let _prefix = sh.push_env("WINEPREFIX", &prefix);
    let _quiet = sh.push_env("WINEDEBUG", "-all");
    prepare(cx, &prefix)?;
    let cargo = |command: &str, parts: &[&str]| {
        cmd!(sh, "cargo {command} --locked --workspace --target {TRIPLE} {parts...}")
            .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", WINE)
            .env("CONVOKE_CASES", "4")
            .run()
    };
    // The libraries are those of the tests, so that dependencies have the same features.
    cargo("build", &["--lib", "--tests"])?;
    cargo("test", &["--tests"])?;
    let built = cx.target.join(TRIPLE).join("debug");
    programs(cx, &built)?;
    wheels(cx, &built)
}

/// A folder for wine. Debian's wine 8.0 lacks the library that Rust's standard library has random numbers from.
fn prepare(cx: &Context, prefix: &Path) -> Result<()> {
    let sh = &cx.sh;
    cmd!(sh, "{WINE} cmd /c exit").run()?;
    let library = prefix.join("drive_c/windows/system32/bcryptprimitives.dll");
    if !library.exists() {
        let source = "#include <windows.h>\n#include <ntsecapi.h>\n\
            __declspec(dllexport) BOOL ProcessPrng(PBYTE data, SIZE_T size) { return RtlGenRandom(data, size); }\n";
        cmd!(sh, "x86_64-w64-mingw32-gcc -shared -x c - -o {library} -ladvapi32").stdin(source).run()?;
    }
    Ok(())
}

/// The programs of `bindings/c` and of docs/linking.md, with the DLL by its import library, and with the static
/// library.
fn programs(cx: &Context, built: &Path) -> Result<()> {
    let sh = &cx.sh;
    let (page, sources) = (sh.read_file("docs/linking.md")?, PathBuf::from("bindings/c"));
    let (page_c, page_cpp) = (built.join("page.c"), built.join("page.cpp"));
    sh.write_file(&page_c, block(&page, "c", "convoke.h")?)?;
    sh.write_file(&page_cpp, block(&page, "cpp", "convoke.h")?)?;
    let needed = ["-lkernel32", "-lntdll", "-luserenv", "-lws2_32", "-ldbghelp"];
    let programs = [
        (sources.join("tests/programs/c11.c"), "gcc", "c11", "checks passed"),
        (sources.join("tests/programs/cpp17.cpp"), "g++", "c++17", "checks passed"),
        (sources.join("examples/pthreads.c"), "gcc", "c11", "the same bits"),
        (page_c, "gcc", "c11", "y[0] = 0.5"),
        (page_cpp, "g++", "c++17", "y[0] = "),
    ];
    for (source, compiler, standard, prints) in programs {
        for library in ["libconvoke_capi.dll.a", "libconvoke_capi.a"] {
            // Beside the DLL, where Windows looks for it.
            let (library, program) = (built.join(library), built.join("program.exe"));
            cmd!(sh, "x86_64-w64-mingw32-{compiler} -std={standard} -O1 -Wall -Wextra -pedantic -Wundef -Werror")
                .args(["-include", "bindings/c/tests/programs/windows.h", "-I", "bindings/c/include"])
                .args([source.as_path(), library.as_path()])
                .args(needed)
                .args(["-static", "-pthread", "-o"])
                .arg(&program)
                .run()?;
            let printed = cmd!(sh, "{WINE} {program}").read()?;
            ensure!(printed.contains(prints), "{} prints {printed:?}", source.display());
        }
    }
    Ok(())
}

/// The wheels have the names that Windows asks for. No Python for Windows is here to load them.
fn wheels(cx: &Context, built: &Path) -> Result<()> {
    let (sh, folder) = (&cx.sh, cx.target.join("windows-wheels"));
    let maturin = sh.read_file("bindings/python/pyproject.toml")?;
    let maturin = maturin.split('"').find(|word| word.starts_with("maturin>")).context("a version of maturin")?;
    let Some(python) = cx.has_python(&folder.join("python"), &[maturin])? else { return Ok(()) };
    let python = python.python();
    cmd!(sh, "{python} -m pip wheel --quiet --no-deps -w {folder} ./bindings/onnxruntime")
        .env("CONVOKE_ONNXRUNTIME_LIBRARY", built.join("convoke_onnxruntime.dll"))
        .env("CONVOKE_WHEEL_PLATFORM", "win_amd64")
        .run()?;
    cmd!(sh, "{python} -m maturin build --quiet --profile dev --target {TRIPLE} -m bindings/python/Cargo.toml")
        .arg("-o")
        .arg(&folder)
        .run()?;
    for (name, library) in [
        ("convoke_onnxruntime-0.1.0-py3-none-win_amd64.whl", "convoke_onnxruntime/convoke_onnxruntime.dll"),
        ("convoke-0.1.0-cp310-abi3-win_amd64.whl", "convoke/_convoke.pyd"),
    ] {
        let wheel = folder.join(name);
        let files = cmd!(sh, "{python} -m zipfile -l {wheel}").read()?;
        ensure!(files.contains(library), "{name} has no {library}: {files}");
    }
    Ok(())
}

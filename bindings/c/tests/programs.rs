//! Programs in C and C++ that walk through the whole interface, as a user compiles them: by several
//! compilers, with sanitizers, and under valgrind.
//!
//! A compiler or valgrind that is not installed is left out, and the test says so. If the variable
//! `CONVOKE_ENSURE_TOOLS` lists it, separated by commas, the test fails.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Warnings that are errors here, in C and C++.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Wundef", "-Werror"];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the libraries: that of this program, because Cargo builds them for it.
fn library_dir() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Whether a tool can be started.
fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        let ensured = std::env::var("CONVOKE_ENSURE_TOOLS").unwrap_or_default();
        assert!(!ensured.split(',').any(|ensured| ensured == tool), "{tool} is missing");
        eprintln!("skipped: {tool} is not installed");
    }
    is_there
}

/// Runs a command, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A compiler of C with the one of C++ beside it.
#[derive(Clone, Copy)]
struct Compilers {
    c: &'static str,
    cpp: &'static str,
}

fn compilers() -> impl Iterator<Item = Compilers> {
    let known = [Compilers { c: "gcc", cpp: "g++" }, Compilers { c: "clang", cpp: "clang++" }];
    known.into_iter().filter(|compilers| has(compilers.c) && has(compilers.cpp))
}

impl Compilers {
    /// The compiler for a source file, with the language's version and warnings.
    fn for_source(self, source: &Path) -> Command {
        let is_cpp = source.extension() == Some(OsStr::new("cpp"));
        let mut command = Command::new(if is_cpp { self.cpp } else { self.c });
        command.arg(if is_cpp { "-std=c++17" } else { "-std=c11" }).args(WARNINGS);
        command.arg("-I").arg(crate_dir().join("include"));
        command
    }

    /// Compiles a program, links it with the library, and returns its path.
    fn program(self, source: &Path, kind: &str, link: Link, options: &[&str]) -> PathBuf {
        let stem = source.file_stem().unwrap().to_str().unwrap();
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{stem}-{}-{kind}", self.c));
        let mut command = self.for_source(source);
        command.args(["-g", "-O1"]).args(options).arg(source).arg("-o").arg(&program);
        match link {
            Link::Shared => {
                let dir = library_dir();
                command.arg(dir.join("libconvoke_capi.so")).arg(format!("-Wl,-rpath,{}", dir.display()));
            }
            Link::Static => {
                // What `rustc --print native-static-libs` says.
                command.arg(static_library()).args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
            }
        }
        run(command.args(["-pthread", "-lm"]));
        program
    }
}

#[derive(Clone, Copy)]
enum Link {
    Shared,
    Static,
}

fn static_library() -> PathBuf {
    library_dir().join("libconvoke_capi.a")
}

fn sources() -> [PathBuf; 2] {
    ["c11.c", "cpp17.cpp"].map(|name| crate_dir().join("tests/programs").join(name))
}

/// Checks the last line of a program of `tests/programs`.
fn assert_passed(output: &str) {
    let count = output.trim_end().strip_suffix(" checks passed").and_then(|count| count.parse::<usize>().ok());
    assert!(count.is_some_and(|count| count > 1000), "{output}");
}

#[test]
fn programs_agree_with_the_definition_under_sanitizers() {
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
    for compilers in compilers() {
        for source in sources() {
            let program = compilers.program(&source, "sanitized", Link::Shared, &options);
            assert_passed(&run(Command::new(program).env("ASAN_OPTIONS", "detect_leaks=1")));
        }
    }
}

#[test]
fn programs_run_with_each_isa() {
    let Some(compilers) = compilers().next() else { return };
    let program = compilers.program(&sources()[0], "isas", Link::Shared, &[]);
    for isa in ["portable", "avx2", "avx512", "neon"] {
        assert_passed(&run(Command::new(&program).env("CONVOKE_MAX_ISA", isa)));
    }
}

/// Valgrind knows neither AVX-512 nor which elements of a vector are used, but it sees each access
/// of the library's kernels.
#[test]
fn programs_are_clean_under_valgrind() {
    let (Some(compilers), true) = (compilers().next(), has("valgrind")) else { return };
    for source in sources() {
        let program = compilers.program(&source, "plain", Link::Shared, &[]);
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
        assert_passed(&run(valgrind.arg(program).env("CONVOKE_MAX_ISA", "avx2")));
    }
}

#[test]
fn programs_link_with_the_static_library() {
    for compilers in compilers() {
        for source in sources() {
            let program = compilers.program(&source, "static", Link::Static, &[]);
            assert_passed(&run(&mut Command::new(program)));
        }
    }
}

/// From the oldest versions of both languages on that have the integer types it uses.
#[test]
fn the_header_compiles_alone() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    std::fs::write(&source, "#include <convoke.h>\n#include <convoke.h>\nextern int unused;\n").unwrap();
    for compilers in compilers() {
        let versions = [(compilers.c, "c", &["c99", "c11", "c17", "c2x"][..])];
        let of_cpp = [(compilers.cpp, "c++", &["c++11", "c++17", "c++20"][..])];
        for (compiler, language, versions) in versions.into_iter().chain(of_cpp) {
            for version in versions {
                let mut command = Command::new(compiler);
                command.args(["-x", language, &format!("-std={version}"), "-fsyntax-only", "-Wstrict-prototypes"]);
                let command = command.args(&WARNINGS[..WARNINGS.len() - 1]).arg("-I").arg(crate_dir().join("include"));
                let is_cpp = language == "c++";
                // C++ has no prototypes.
                let command = if is_cpp { command.arg("-Wno-strict-prototypes") } else { command };
                run(command.arg("-Wno-error=strict-prototypes").arg(&source));
            }
        }
    }
}

/// The functions of the header are those that the library exports.
#[test]
fn the_library_exports_what_the_header_declares() {
    if !has("nm") {
        return;
    }
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library_dir().join("libconvoke_capi.so")));
    let mut exported: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let header = std::fs::read_to_string(crate_dir().join("include/convoke.h")).unwrap();
    // Declarations begin a line with their type.
    let declared = header.lines().filter(|line| line.contains("convoke_") && line.contains('('));
    let names = declared.filter(|line| !line.starts_with([' ', '/', '#', '*']) && !line.starts_with("typedef"));
    let mut declared: Vec<_> = names
        .filter_map(|line| {
            line.split(['(', ' ', '*'])
                .find(|word| header.contains(&format!("{word}(")) && word.starts_with("convoke_"))
        })
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(declared, exported);
}

/// Both have the version as text, because no build writes them.
#[test]
fn header_and_cmake_files_have_the_version_of_the_crate() {
    let read = |path: &str| std::fs::read_to_string(crate_dir().join(path)).unwrap();
    let header = read("include/convoke.h");
    let parts = [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    for (part, number) in parts {
        assert!(header.contains(&format!("#define CONVOKE_VERSION_{part} {number}\n")), "{part}");
    }
    let version = format!("set(PACKAGE_VERSION \"{}\")", env!("CARGO_PKG_VERSION"));
    assert!(read("cmake/convoke-config-version.cmake").contains(&version));
}

#[test]
fn the_example_with_pthreads_gives_the_same_bits() {
    let source = crate_dir().join("examples/pthreads.c");
    for compilers in compilers() {
        let program = compilers.program(&source, "example", Link::Shared, &["-fsanitize=address,undefined"]);
        for threads in ["1", "2", "5"] {
            let output = run(Command::new(&program).arg(threads));
            assert!(output.ends_with(&format!(" us on {threads}, the same bits\n")), "{output}");
        }
    }
}

/// The code blocks of a language in docs/linking.md.
fn documented(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(crate_dir().join("../../docs/linking.md")).unwrap();
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_programs_of_the_page_on_linking_run() {
    for (language, extension) in [("c", "c"), ("cpp", "cpp")] {
        let blocks = documented(language);
        assert!(!blocks.is_empty(), "no {language}");
        for (i, block) in blocks.iter().enumerate() {
            let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linking{i}.{extension}"));
            std::fs::write(&source, block).unwrap();
            for compilers in compilers() {
                let program = compilers.program(&source, language, Link::Shared, &["-fsanitize=address,undefined"]);
                let output = run(&mut Command::new(program));
                assert!(output.starts_with("y[0] = "), "{output}");
            }
        }
    }
}

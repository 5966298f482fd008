//! Programs in C and C++ that walk through the whole interface, as a user compiles them: by several
//! compilers, with sanitizers, and under valgrind.
//!
//! A compiler, its sanitizers or valgrind that are not installed are left out, and the test says
//! so. If the variable `CONVOKE_ENSURE_TOOLS` lists the tool, separated by commas, the test fails.
//! On Windows nothing is compiled here: the step `windows` of `cargo xtask ci` compiles the same programs.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use convoke::Isa;

/// Warnings that are errors here, in C and C++.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Wundef", "-Werror"];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the libraries: that of this program, because Cargo builds them for it.
fn library_dir() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The shared library.
fn shared_library() -> PathBuf {
    library_dir().join(format!("{DLL_PREFIX}convoke_capi{DLL_SUFFIX}"))
}

/// Whether a command succeeds, which shows whether a tool can do something.
fn can(tool: &str, what: &str, command: &mut Command) -> bool {
    let is_able = command.output().is_ok_and(|output| output.status.success());
    if !is_able {
        let ensured = std::env::var("CONVOKE_ENSURE_TOOLS").unwrap_or_default();
        assert!(!ensured.split(',').any(|ensured| ensured == tool), "{tool} cannot {what}");
        eprintln!("skipped: {tool} cannot {what}");
    }
    is_able
}

fn has(tool: &str) -> bool {
    can(tool, "be started", Command::new(tool).arg("--version"))
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
    known.into_iter().filter(|compilers| cfg!(unix) && has(compilers.c) && has(compilers.cpp))
}

/// Compilers of which some come without the libraries that sanitizers need.
const SANITIZERS: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn compilers_with_sanitizers() -> impl Iterator<Item = Compilers> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    compilers().filter(|compilers| {
        // Tests run at the same time.
        let stem = format!("empty-{}-{:?}", compilers.c, std::thread::current().id());
        let (source, program) = (dir.join(format!("{stem}.c")), dir.join(stem));
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        can(
            compilers.c,
            "link sanitizers",
            Command::new(compilers.c).args(SANITIZERS).arg(source).arg("-o").arg(program),
        )
    })
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
        let (dir, mut command) = (library_dir(), self.for_source(source));
        command.args(["-g", "-O1"]).args(options).arg(source).arg("-o").arg(&program);
        match link {
            Link::Shared => {
                command.arg(shared_library()).arg(format!("-Wl,-rpath,{}", dir.display()));
            }
            Link::Static => {
                command.arg(dir.join("libconvoke_capi.a"));
                // What `rustc --print native-static-libs` says.
                if cfg!(target_os = "linux") {
                    command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
                }
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

fn sources() -> [PathBuf; 2] {
    ["c11.c", "cpp17.cpp"].map(|name| crate_dir().join("tests/programs").join(name))
}

/// Checks the last line of a program of `tests/programs`.
fn assert_passed(output: &str) {
    let last = output.trim_end().lines().next_back().unwrap_or_default();
    let count = last.strip_suffix(" checks passed").and_then(|count| count.parse::<usize>().ok());
    assert!(count.is_some_and(|count| count > 1000), "{output}");
}

#[test]
fn programs_agree_with_the_definition_under_sanitizers() {
    for compilers in compilers_with_sanitizers() {
        for source in sources() {
            let program = compilers.program(&source, "sanitized", Link::Shared, &SANITIZERS);
            // Apple's sanitizer ends a program that asks for leaks.
            let leaks = format!("detect_leaks={}", u8::from(cfg!(target_os = "linux")));
            assert_passed(&run(Command::new(program).env("ASAN_OPTIONS", leaks)));
        }
    }
}

#[test]
fn programs_run_with_each_isa() {
    let Some(compilers) = compilers().next() else { return };
    let program = compilers.program(&sources()[0], "isas", Link::Shared, &[]);
    for cap in Isa::ALL {
        let output = run(Command::new(&program).env_remove("CONVOKE_ISA").env("CONVOKE_MAX_ISA", cap.name()));
        assert_passed(&output);
        let isa = Isa::detect_at_most(cap);
        assert!(output.lines().any(|line| line == format!("isa {isa}")), "{isa}, by CONVOKE_MAX_ISA={cap}: {output}");
    }
}

/// Valgrind knows neither AVX-512 nor which elements of a vector are used, but it sees each access
/// of the library's kernels. One program suffices, because the library does not know the caller's
/// language.
#[test]
fn programs_are_clean_under_valgrind() {
    let (Some(compilers), true) = (compilers().next(), has("valgrind")) else { return };
    let program = compilers.program(&sources()[0], "plain", Link::Shared, &[]);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    assert_passed(&run(valgrind.arg(program).env("CONVOKE_MAX_ISA", "avx2")));
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

/// From the oldest versions of both languages on that have what it uses.
#[test]
fn the_header_compiles_alone() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    std::fs::write(&source, "#include <convoke.h>\n#include <convoke.h>\nextern int unused;\n").unwrap();
    let versions = |compilers: Compilers| {
        let c = ["c99", "c11", "c17", "c2x"].map(|version| (compilers.c, "c", version));
        let cpp = ["c++11", "c++17", "c++20"].map(|version| (compilers.cpp, "c++", version));
        c.into_iter().chain(cpp)
    };
    for (compiler, language, version) in compilers().flat_map(versions) {
        let mut command = Command::new(compiler);
        command.args(["-x", language, &format!("-std={version}"), "-fsyntax-only"]).args(WARNINGS);
        if language == "c" {
            command.arg("-Wstrict-prototypes");
        }
        run(command.arg("-I").arg(crate_dir().join("include")).arg(&source));
    }
}

/// The functions of the header are those that the library exports. Other systems list symbols in other ways.
#[test]
fn the_library_exports_what_the_header_declares() {
    if !cfg!(target_os = "linux") || !has("nm") {
        return;
    }
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(shared_library()));
    let mut exported: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let header = std::fs::read_to_string(crate_dir().join("include/convoke.h")).unwrap();
    // A declaration begins a line with the type that it returns.
    let begins = ["convoke_status ", "const char *", "void "];
    let declared = header.lines().filter_map(|line| begins.iter().find_map(|begin| line.strip_prefix(begin)));
    let mut declared: Vec<_> = declared.filter_map(|line| line.split_once('(')).map(|(name, _)| name).collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(declared, exported);
    assert!(declared.len() > 15, "{declared:?}");
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
    for compilers in compilers_with_sanitizers() {
        let program = compilers.program(&source, "example", Link::Shared, &SANITIZERS);
        for threads in ["1", "2", "5"] {
            let output = run(Command::new(&program).arg(threads));
            assert!(output.ends_with(&format!(" us on {threads}, the same bits\n")), "{output}");
        }
    }
}

/// The program of a language in docs/linking.md, and the line that the page says it prints.
fn documented(page: &str, language: &str) -> (String, String) {
    let fence = format!("```{language}\n");
    let mut blocks = page.split(&fence).skip(1);
    let program = blocks.next().unwrap_or_else(|| panic!("no {language}")).split("```").next().unwrap();
    assert!(blocks.next().is_none(), "two programs in {language}");
    let after = &page[page.find(program).unwrap()..];
    let printed = after.split_once("prints: ").unwrap().1.lines().next().unwrap();
    (program.to_owned(), printed.to_owned())
}

#[test]
fn the_programs_of_the_page_on_linking_print_what_it_says() {
    let page = std::fs::read_to_string(crate_dir().join("../../docs/linking.md")).unwrap();
    for language in ["c", "cpp"] {
        let (program, printed) = documented(&page, language);
        let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linking.{language}"));
        std::fs::write(&source, program).unwrap();
        for compilers in compilers_with_sanitizers() {
            let program = compilers.program(&source, language, Link::Shared, &SANITIZERS);
            assert_eq!(run(&mut Command::new(program)).trim_end(), printed);
        }
    }
}

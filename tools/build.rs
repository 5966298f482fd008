//! Gives the tools the version of the compiler, the commit if git knows it, and the level of
//! optimisation. Reports print the first two, and warn if the last one is too low.

use std::path::Path;
use std::process::Command;

/// What the tools are built from besides the compiler. Changes here make the commit "dirty".
const SOURCES: [&str; 5] = ["build.rs", "src", "../src", "../kernels/src", "../Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("--version"));
    println!("cargo::rustc-env=CONVOKE_TOOLS_RUSTC={}", version.as_deref().unwrap_or("rustc, version unknown"));

    println!("cargo::rustc-env=CONVOKE_TOOLS_OPT_LEVEL={}", std::env::var("OPT_LEVEL").unwrap_or_default());

    // Git's files that a commit or a checkout changes. Cargo would take a missing file for a
    // changed one in each build.
    let of_git = ["HEAD", "logs/HEAD"].map(|file| git(&["rev-parse", "--git-path", file]));
    for path in SOURCES.into_iter().chain(of_git.iter().flatten().map(String::as_str)) {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=CONVOKE_TOOLS_COMMIT={commit}");
    }
}

/// The short hash of the commit that is checked out, with "-dirty" where files differ from it.
fn commit() -> Option<String> {
    // If a copy of the sources is inside the checkout of another project, that project's commit
    // is not the copy's.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["describe", "--always", "--dirty", "--exclude=*"])
}

/// The output of git. It runs without git's locks, which a build must not hold while its user
/// commits.
fn git(arguments: &[&str]) -> Option<String> {
    output(Command::new("git").arg("--no-optional-locks").args(arguments))
}

/// The output of a program, if it can be run and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

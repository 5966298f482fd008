//! Tells the tools which compiler they were built with, and of which commit, where git knows:
//! reports print both.

use std::path::Path;
use std::process::Command;

/// What the tools are built from, beside the compiler. Changes here make the commit "dirty".
const SOURCES: [&str; 5] = ["build.rs", "src", "../src", "../kernels/src", "../Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("--version"));
    println!("cargo::rustc-env=CONVOKE_TOOLS_RUSTC={}", version.as_deref().unwrap_or("rustc, version unknown"));

    // Of git's own files, those that a commit and a checkout change. Cargo would take one that is
    // not there for changed, each time.
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
    // A copy of the sources that lies inside the checkout of something else is not of that one's
    // commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["describe", "--always", "--dirty", "--exclude=*"])
}

/// What git prints; without its locks, which a build must not hold while its user commits.
fn git(arguments: &[&str]) -> Option<String> {
    output(Command::new("git").arg("--no-optional-locks").args(arguments))
}

/// What a program prints, if it can be run and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

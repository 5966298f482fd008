//! The two crates that are published, as their users and the registry's documentation have them.

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use xshell::cmd;

use crate::context::Context;

/// The two crates that are to be published, as their packages have them. `convoke` needs the other one,
/// which no registry has yet: Cargo takes it from the package that it has just made. It builds both,
/// here with the portable tier alone, as nothing runs.
pub(super) fn package(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    let features = ["--no-default-features", "--features", "convoke/std"];
    // Cargo takes packages of one version for the same, and would link kernels that were packaged earlier:
    // those of this target directory, and those that it once unpacked among the sources of registries.
    let target = cx.target.join("packages");
    sh.remove_path(&target)?;
    for registry in sh.read_dir(cargo_home()?.join("registry/src")).unwrap_or_default() {
        for unpacked in sh.read_dir(registry)? {
            if unpacked.file_name().is_some_and(|name| name.to_string_lossy().starts_with("convoke-kernels-")) {
                sh.remove_path(unpacked)?;
            }
        }
    }

    Ok(cmd!(
        sh,
        "cargo package --locked --allow-dirty --quiet -p convoke-kernels -p convoke --target-dir {target} {features...}"
    )
    .run()?)
}

/// Where Cargo keeps what it downloads.
pub(super) fn cargo_home() -> Result<PathBuf> {
    let user = || env::home_dir().map(|home| home.join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(user).context("no CARGO_HOME, and no home directory")
}

/// The documentation as docs.rs builds it: by a nightly toolchain, with what the manifest's
/// `package.metadata.docs.rs` says.
pub(super) fn docs_rs(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_nightly(&[]) {
        return Ok(());
    }
    let flags = "-D warnings --cfg docsrs --generate-link-to-definition -Z unstable-options";
    let target = cx.target.join("docs-rs");
    cmd!(
        sh,
        "cargo +nightly doc --locked --no-deps --all-features -p convoke -p convoke-kernels --target-dir {target}"
    )
    .env("RUSTDOCFLAGS", flags)
    .run()?;
    Ok(())
}

/// The library and the bindings compile with the oldest version of each dependency that their manifests allow.
/// Those of tools and tests are left out: they would raise the versions that the library has.
pub(super) fn minimal(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_nightly(&[]) {
        return Ok(());
    }
    let _tree = sh.push_dir(without_tests(cx, "minimal")?);
    cmd!(sh, "cargo +nightly update --quiet -Z direct-minimal-versions").run()?;
    let features = ["--features", "convoke/ndarray,convoke/blas-gemm,convoke/blas-matrixmultiply"];
    Ok(cmd!(sh, "cargo check --locked --workspace {features...}").run()?)
}

/// The crate's public interface against that of the last version, by the rules of Semantic Versioning.
pub(super) fn semver(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    // Not the tag of this commit, if it is one.
    if cmd!(sh, "git tag --list v* --no-contains HEAD").quiet().read()?.is_empty() {
        println!("No commit before this one has the tag of a version.");
        return Ok(());
    }
    let tag = cmd!(sh, "git describe --tags --abbrev=0 --match v* HEAD^").quiet().read()?;
    if cx.has_cargo_tool("cargo-semver-checks", "0.51.0", &[], &[]) {
        cmd!(sh, "cargo semver-checks -p convoke --baseline-rev {tag}").run()?;
    }
    Ok(())
}

/// A copy of the repository in a folder of Cargo's target folder, with the library and the bindings as its whole
/// workspace: no tools, no tests, and no crates that only these need.
pub(super) fn without_tests(cx: &Context, folder: &str) -> Result<PathBuf> {
    let (sh, tree) = (&cx.sh, cx.target.join(folder));
    sh.remove_path(&tree)?;
    sh.create_dir(&tree)?;
    // With changes that are not committed, of files that git knows.
    let changed = cmd!(sh, "git stash create").quiet().read()?;
    let (commit, archive) = (if changed.is_empty() { "HEAD" } else { &changed }, tree.join("tree.tar"));
    // The engines' examples are a workspace of their own.
    cmd!(sh, "git archive --output {archive} {commit} . :!bindings/examples").run()?;
    cmd!(sh, "tar -xf {archive} -C {tree}").run()?;
    sh.remove_path(&archive)?;
    let manifest = sh.read_file(tree.join("Cargo.toml"))?;
    sh.write_file(tree.join("Cargo.toml"), manifest_without_tests(&manifest).context("Cargo.toml has another form")?)?;
    let _tree = sh.push_dir(&tree);
    cmd!(sh, "cargo update --quiet --workspace --offline").run()?;
    Ok(tree)
}

/// The workspace's manifest without the members and dependencies of tests.
fn manifest_without_tests(manifest: &str) -> Option<String> {
    let (before, members) = manifest.split_once("members = [")?;
    let (_, after) = members.split_once("]\n")?;
    let (after, tests) = after.split_once("[dev-dependencies]\n")?;
    let (_, rest) = tests.split_once("\n\n")?;
    let members = "members = [\".\", \"kernels\", \"bindings/*\"]\n";
    Some([before, members, after, rest].concat())
}

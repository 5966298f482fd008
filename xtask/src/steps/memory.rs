//! Undefined behaviour and hostile input, by a nightly toolchain.

use anyhow::Result;
use xshell::cmd;

use crate::context::Context;

/// Tiny layers, and the unit tests of jobs, interpreted.
pub(super) fn miri(cx: &Context) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_nightly(&["miri"]) {
        return Ok(());
    }
    let features = ["--no-default-features", "--features", "std,save"];
    cmd!(sh, "cargo +nightly miri test --locked -p convoke --test suite {features...} -- tiny::").run()?;
    // A test leaks memory on purpose.
    Ok(cmd!(sh, "cargo +nightly miri test --locked -p convoke --lib {features...} -- exec::job")
        .env("MIRIFLAGS", "-Zmiri-ignore-leaks")
        .run()?)
}

/// With AddressSanitizer, from the inputs of fuzz/corpus, over the kernels of the portable tier.
pub(super) fn fuzz(cx: &Context) -> Result<()> {
    fuzz_targets(cx, 60, &["--no-default-features"])
}

pub(super) fn fuzz_long(cx: &Context) -> Result<()> {
    fuzz_targets(cx, 600, &["--no-default-features"])
}

/// These kernels take about an hour to compile with the sanitizer.
pub(super) fn fuzz_isas(cx: &Context) -> Result<()> {
    fuzz_targets(cx, 60, &["--features", "isas"])
}

/// Builds the fuzz targets with these options of Cargo, and runs each for some seconds. New inputs go to
/// the first folder.
fn fuzz_targets(cx: &Context, seconds: u32, options: &[&str]) -> Result<()> {
    let sh = &cx.sh;
    if !cx.has_nightly(&[]) || !cx.has_prebuilt("cargo-fuzz", "0.13.2")? {
        return Ok(());
    }
    let built = cx.target.join("fuzz");
    cmd!(sh, "cargo +nightly fuzz build --target-dir {built} {options...}").run()?;
    let targets = cmd!(sh, "cargo +nightly fuzz list").read()?;
    for target in targets.lines() {
        let (found, corpus) = (cx.target.join("fuzz-found").join(target), format!("fuzz/corpus/{target}"));
        sh.create_dir(&found)?;
        let limits = [format!("-max_total_time={seconds}"), "-timeout=120".into(), "-malloc_limit_mb=512".into()];
        cmd!(sh, "cargo +nightly fuzz run --target-dir {built} {options...} {target} {found} {corpus} -- {limits...}")
            .run()?;
    }
    Ok(())
}

//! `cargo xtask ci`: what continuous integration checks, one step after the other, up to the first
//! failure. It needs rustup's cargo and a C compiler as linker, and installs what else a step needs,
//! where that is possible.

#![forbid(unsafe_code)]

mod context;
mod install;
mod steps;

use std::env;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::context::{Context, cpu_seconds};
use crate::steps::{STEPS, Step};

const USAGE: &str = "cargo xtask ci [STEP...]

Without a step: all but those that run by name alone.
";

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, names)) if command == "ci" => ci(names),
        Some((command, _)) if command != "--help" => bail!("no command {command}; there is: cargo xtask ci [STEP...]"),
        _ => {
            print!("{USAGE}");
            for step in STEPS {
                println!("  {:18} {}{}", step.name, step.about, if step.by_name { " [by name alone]" } else { "" });
            }
            Ok(())
        }
    }
}

/// Runs the named steps, or all that need no name.
fn ci(names: &[String]) -> Result<()> {
    let named = |name: &String| match STEPS.iter().find(|step| step.name == *name) {
        Some(step) => Ok(step),
        None => {
            let all = STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
            bail!("no step {name}; there are: {all}")
        }
    };
    let steps: Vec<&Step> = match names {
        [] => STEPS.iter().filter(|step| !step.by_name).collect(),
        names => names.iter().map(named).collect::<Result<_>>()?,
    };
    let (begin, cx) = (Instant::now(), Context::new()?);
    for step in steps {
        println!("\n=== {}", step.name);
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        (step.run)(&cx)?;
        let (wall, cpu) = (begin.elapsed().as_secs(), cpu_seconds() - cpu);
        println!("=== {}: passed in {wall} s, {cpu} s of the CPU", step.name);
    }
    let (wall, waited) = (begin.elapsed().as_secs(), cx.waited().as_secs());
    println!("\nAll passed in {wall} s, of which {waited} s for the network; {} s of the CPU.", cpu_seconds());
    for skipped in cx.skipped() {
        println!("skipped: {skipped}");
    }
    ensure!(
        cx.skipped().is_empty() || env::var_os("CONVOKE_NO_SKIPS").is_none(),
        "CONVOKE_NO_SKIPS forbids what was skipped"
    );
    Ok(())
}

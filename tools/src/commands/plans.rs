//! `plans`: what is planned for every layer, on named machines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use convoke::Isa;
use convoke_tools::plans;

use super::Verdict;
use crate::options::BAD;
use crate::output::text::show;

/// List what is planned for every layer on the named machines, or compare it with files
///
/// For each instruction set of this build, there is a file of plans, and one with hashes of the
/// outputs where this CPU has the instruction set. A change of the planner or of a kernel that
/// changes them shows the layers that it changes.
///
/// Exit status: 1 where the files differ.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this instruction set: portable, neon, avx2 or avx512 [default: all of this build]
    #[arg(long)]
    isa: Option<Isa>,
    /// Compare with the files in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "write")]
    check: Option<PathBuf>,
    /// Write the files of this folder
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

/// Prints, writes or compares.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let mut texts = Vec::new();
    for isa in plans::isas().filter(|isa| args.isa.is_none_or(|only| only == *isa)) {
        texts.push((format!("{isa}.txt"), plans::plans(isa)?));
        if isa.is_available() {
            texts.push((format!("{isa}.outputs.txt"), plans::outputs(isa)?));
        }
    }
    if texts.is_empty() {
        bail!("this build does not have the kernels of that instruction set");
    }
    if let Some(folder) = &args.check {
        return check(folder, &texts);
    }
    for (name, text) in texts {
        match &args.write {
            Some(folder) => {
                let path = folder.join(name);
                fs::write(&path, text).with_context(|| path.display().to_string())?;
            }
            None => show(|out| write!(out, "{text}"))?,
        }
    }
    Ok(Verdict::Good)
}

/// Compares texts with the files of their names.
fn check(folder: &Path, texts: &[(String, String)]) -> Result<Verdict> {
    let mut are_same = true;
    for (name, text) in texts {
        let path = folder.join(name);
        let old = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let difference = plans::difference(&old, text);
        if !difference.is_empty() {
            are_same = false;
            anstream::eprintln!("{BAD}{} differs{BAD:#}", path.display());
            show(|out| write!(out, "{difference}"))?;
        }
    }
    Ok(Verdict::from_good(are_same))
}

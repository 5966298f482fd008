//! `plans`: lists the plans of every layer on the named machines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use convoke::Isa;
use convoke_tools::files;
use convoke_tools::plans;

use super::Verdict;
use crate::options::{BAD, Team};
use crate::output::text::show;

/// List what is planned for every layer on the named machines, or compare two revisions
///
/// For each instruction set of this build, there is a file of plans, and a file with hashes of
/// the outputs if this CPU has the instruction set. `--write` by one revision and `--check` by
/// another one show which layers a change of the planner or of a kernel concerns.
///
/// A plan stands on two lines. The first has the algorithm, its tiles and blocking, the kernel,
/// layout and bytes of the packed weights, the tasks, and the bytes of workspace of one task. The
/// second has the machines, the numbers of threads (t1, t2, t16) and the estimate in nanoseconds.
/// Hashes are of the plans for zen5; "finished" ones are with a residual and an activation.
///
/// Exit status: 1 where the files differ.
#[derive(Debug, clap::Args)]
pub(crate) struct PlansArgs {
    /// Only this instruction set: portable, neon, avx2 or avx512 [default: all of this build]
    #[arg(long)]
    isa: Option<Isa>,
    /// Compare with the files that `--write` made in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "write")]
    check: Option<PathBuf>,
    /// Write the files into this folder
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

/// Prints, writes or compares the plans.
pub(crate) fn run(args: &PlansArgs) -> Result<Verdict> {
    let team = Team::new(2)?;
    let mut texts = Vec::new();
    for isa in plans::isas().filter(|isa| args.isa.is_none_or(|only| only == *isa)) {
        texts.push((format!("{isa}.txt"), plans::plans(isa)?));
        if isa.is_available() {
            texts.push((format!("{isa}.outputs.txt"), team.install(|threads| plans::outputs(isa, threads))?));
        }
    }
    if texts.is_empty() {
        bail!("this build does not have the kernels of that instruction set");
    }
    if let Some(folder) = &args.check {
        return check(folder, &texts);
    }
    if let Some(folder) = &args.write {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
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

/// Compares texts with the files of the same names.
fn check(folder: &Path, texts: &[(String, String)]) -> Result<Verdict> {
    let mut are_same = true;
    for (name, text) in texts {
        let path = folder.join(name);
        let old = files::read_text(&path, files::TEXT)?;
        let difference = plans::difference(&old, text);
        if !difference.is_empty() {
            are_same = false;
            anstream::eprintln!("{BAD}{} differs{BAD:#}", path.display());
            show(|out| write!(out, "{name}\n{difference}"))?;
        }
    }
    Ok(Verdict::from_good(are_same))
}

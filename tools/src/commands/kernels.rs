//! `kernels`: the table of micro-kernels.

use std::time::Duration;

use anyhow::Result;
use convoke::Isa;
use convoke_tools::kernels;

use super::{Verdict, warn_of_build};
use crate::output::text::show;

/// Print the table of micro-kernels, as Markdown
///
/// Lists the kernels that are in this build and that this CPU can run. With --measure, each tile
/// has a line of its own, with its speed when all operands are in the L1 cache.
#[derive(Debug, clap::Args)]
pub(crate) struct KernelsArgs {
    /// Measure each tile (some seconds)
    #[arg(long)]
    measure: bool,
    /// Only kernels of this instruction set
    #[arg(long)]
    isa: Option<Isa>,
}

/// Prints the table.
pub(crate) fn run(args: &KernelsArgs) -> Result<Verdict> {
    let text = if args.measure {
        warn_of_build();
        let isas = Isa::ALL.into_iter().filter(|isa| args.isa.is_none_or(|only| only == *isa));
        let tiles: Vec<_> = isas.flat_map(|isa| kernels::tiles(isa, Some(Duration::from_millis(15)))).collect();
        kernels::rates(&tiles)
    } else {
        kernels::markdown(args.isa)
    };
    show(|out| write!(out, "{text}"))?;
    Ok(Verdict::Good)
}

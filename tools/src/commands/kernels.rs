//! `kernels`: the table of micro-kernels.

use std::time::Duration;

use anyhow::Result;
use convoke::Isa;
use convoke::kernels::{Real, channel_kernels, depthwise_kernels, grouped_kernels, spatial_kernels, winograd_kernels};
use convoke_tools::peak;

use super::Verdict;

/// Print the table of micro-kernels, as Markdown
///
/// Lists what this build has and this CPU can run. With --measure, every kernel stands on a line of its own, with its
/// speed when all operands are in the L1 cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure each kernel (some seconds)
    #[arg(long)]
    measure: bool,
    /// Only kernels of this instruction set
    #[arg(long)]
    isa: Option<Isa>,
}

/// One micro-kernel.
#[derive(Debug, Clone)]
struct Entry {
    name: &'static str,
    isa: Isa,
    dtype: &'static str,
    /// What the vectors run along.
    vectors: &'static str,
    mr: usize,
    nr: usize,
    /// The file's name without the type.
    file: &'static str,
    /// GFLOP/s, if measured.
    rate: Option<f64>,
}

/// Prints the table.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let measure = args.measure.then_some(Duration::from_millis(15));
    let mut entries = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| args.isa.is_none_or(|only| only == *isa)) {
        entries.extend(list::<f32>(isa, measure));
        entries.extend(list::<f64>(isa, measure));
    }
    if args.measure {
        print!("{}", each(&entries));
    } else {
        print!("{}\n{}", summary(&entries), transforms(args.isa));
    }
    Ok(Verdict::Good)
}

/// The kernels of one ISA and type.
fn list<T: Real>(isa: Isa, measure: Option<Duration>) -> Vec<Entry> {
    let spatial = spatial_kernels::<T>(isa).iter().map(|k| Entry {
        name: k.name(),
        isa,
        dtype: T::NAME,
        vectors: "output positions",
        mr: k.mr(),
        nr: k.nr(),
        file: "gemm",
        rate: measure.map(|duration| peak::spatial(k, duration)),
    });
    let channel = channel_kernels::<T>(isa).iter().map(|k| Entry {
        name: k.name(),
        isa,
        dtype: T::NAME,
        vectors: "output channels",
        mr: k.mr(),
        nr: k.nr(),
        file: "gemm",
        rate: measure.map(|duration| peak::channel(k, duration)),
    });
    let direct = depthwise_kernels::<T>(isa).into_iter().flat_map(|kernels| {
        let along_rows = kernels.rows().iter().chain(kernels.narrow()).map(|k| (k, "output rows, direct"));
        along_rows.chain(kernels.channels().iter().map(|k| (k, "groups, direct")))
    });
    let direct = direct.map(|(k, vectors)| Entry {
        name: k.name(),
        isa,
        dtype: T::NAME,
        vectors,
        mr: k.mr(),
        nr: k.nr(),
        file: "depthwise",
        rate: measure.map(|duration| peak::direct(k, duration)),
    });
    let grouped = grouped_kernels::<T>(isa).iter().map(|k| Entry {
        name: k.name(),
        isa,
        dtype: T::NAME,
        vectors: "output positions, direct",
        mr: k.mr(),
        nr: k.nr(),
        file: "grouped",
        rate: measure.map(|duration| peak::grouped(k, duration)),
    });
    spatial.chain(channel).chain(direct).chain(grouped).collect()
}

/// Where a kernel's tile list stands.
fn source(entry: &Entry) -> String {
    format!("src/{}/{}_{}.rs", folder(entry.isa), entry.file, entry.dtype)
}

/// The Winograd transforms, one line an ISA and type.
fn transforms(only: Option<Isa>) -> String {
    fn line<T: Real>(isa: Isa) -> Option<String> {
        let names = winograd_kernels::<T>(isa).iter().map(|k| k.name().rsplit("winograd_").next().unwrap_or_default());
        let names = names.collect::<Vec<_>>();
        let source = format!("src/{}/winograd_{}.rs", folder(isa), T::NAME);
        (!names.is_empty()).then(|| format!("| {isa} | {} | {} | `{source}` |\n", T::NAME, names.join(", ")))
    }
    let mut text = String::from("| ISA | type | Winograd transforms (outputs_taps) | source |\n|---|---|---|---|\n");
    for isa in Isa::ALL.into_iter().filter(|isa| only.is_none_or(|only| only == *isa)) {
        text.extend(line::<f32>(isa));
        text.extend(line::<f64>(isa));
    }
    text
}

/// The folder of an ISA's kernels.
fn folder(isa: Isa) -> &'static str {
    match isa {
        Isa::Portable => "portable",
        Isa::Neon => "aarch64/neon",
        Isa::Avx2 => "x86_64/avx2",
        Isa::Avx512 => "x86_64/avx512",
        _ => "?",
    }
}

/// One line for the kernels that differ only in MR.
fn summary(entries: &[Entry]) -> String {
    let mut text = String::from("| ISA | type | vectors along | NR | MR | source |\n|---|---|---|---|---|---|\n");
    for tiles in entries.chunk_by(|a, b| (a.isa, a.dtype, a.vectors, a.nr) == (b.isa, b.dtype, b.vectors, b.nr)) {
        let Entry { isa, dtype, vectors, nr, .. } = tiles[0];
        let mr: Vec<usize> = tiles.iter().map(|t| t.mr).collect();
        text += &format!("| {isa} | {dtype} | {vectors} | {nr} | {} | `{}` |\n", ranges(&mr), source(&tiles[0]));
    }
    text
}

/// One line a kernel, with its rate and its share of the fastest of its ISA and type.
fn each(entries: &[Entry]) -> String {
    let mut text = String::from("| kernel | ISA | tile | GFLOP/s | of the fastest |\n|---|---|---|---:|---:|\n");
    for group in entries.chunk_by(|a, b| (a.isa, a.dtype) == (b.isa, b.dtype)) {
        let fastest = group.iter().filter_map(|e| e.rate).fold(0.0, f64::max);
        for Entry { name, isa, mr, nr, rate, .. } in group {
            let rate = rate.unwrap_or(f64::NAN);
            text += &format!("| `{name}` | {isa} | {mr} x {nr} | {rate:.1} | {:.0} % |\n", 100.0 * rate / fastest);
        }
    }
    text
}

/// `1-4, 6` for `[1, 2, 3, 4, 6]`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_joined() {
        assert_eq!(ranges(&[1, 2, 3, 4, 6]), "1-4, 6");
        assert_eq!(ranges(&[3]), "3");
    }

    #[test]
    fn every_kernel_is_in_the_summary() {
        let entries: Vec<_> = Isa::ALL.into_iter().flat_map(|isa| list::<f32>(isa, None)).collect();
        let text = summary(&entries);
        let counted: usize = text.lines().skip(2).map(|line| count(line.split(" | ").nth(4).unwrap())).sum();
        assert_eq!(counted, entries.len());
        assert!(text.contains("| portable | f32 | output positions |"), "{text}");
    }

    fn count(ranges: &str) -> usize {
        let len = |run: &str| match run.split_once('-') {
            Some((from, to)) => to.parse::<usize>().unwrap() - from.parse::<usize>().unwrap() + 1,
            None => 1,
        };
        ranges.split(", ").map(len).sum()
    }
}

//! The table of micro-kernels: written from the crate in the form of `kernels/README.md`, and
//! read back from there.

use std::time::Duration;

use convoke::Isa;
use convoke_kernels::{
    Real, channel_kernels, depthwise_kernels, depthwise_transposed_kernels, grouped_kernels, interleave_kernels,
    pixel_depthwise_kernels, pixel_kernels, spatial_kernels, winograd_kernels,
};

use crate::peak;

/// The streaming passes of `kernels/src/stream.rs`. Each is compiled for every ISA, and for the
/// types with which it is called.
pub const PASSES: [&str; 8] =
    ["Widen", "WidenStrided", "NarrowRows", "PackRows", "Interleave", "AddBias", "AddAssign", "Repeat"];

/// What a tile computes, and what its vectors run along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A GEMM, vectors along output positions.
    Gemm,
    /// A GEMM, vectors along output channels.
    ChannelGemm,
    /// A GEMM for pixels anywhere in X, vectors along output channels.
    PixelGemm,
    /// Direct sums for pixels anywhere in X, vectors along groups.
    PixelDw,
    /// Direct sums, vectors along output rows.
    Dw,
    /// Direct sums, vectors along groups.
    Dwt,
    /// Direct sums of several output channels, vectors along output positions.
    Group,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Gemm, Self::ChannelGemm, Self::PixelGemm, Self::PixelDw, Self::Dw, Self::Dwt, Self::Group];

    /// What the vectors run along.
    fn vectors(self) -> &'static str {
        match self {
            Self::Gemm => "output positions",
            Self::ChannelGemm => "output channels",
            Self::PixelGemm => "output channels, any pixels",
            Self::PixelDw => "groups, any pixels, direct",
            Self::Dw => "output rows, direct",
            Self::Dwt => "groups, direct",
            Self::Group => "output positions, direct",
        }
    }

    /// The module that its tiles are compiled in.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Gemm | Self::ChannelGemm => "gemm",
            Self::PixelGemm | Self::PixelDw => "pixel",
            Self::Dw | Self::Dwt => "depthwise",
            Self::Group => "grouped",
        }
    }

    /// What the name of its kernels says.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::ChannelGemm => "channel_gemm",
            Self::PixelGemm => "pixel_gemm",
            Self::PixelDw => "pixel_dw",
            Self::Dw => "dw",
            Self::Dwt => "dwt",
            Self::Group => "group",
        }
    }

    /// Whether MR stands before NR in the name of its kernels.
    fn is_mr_first(self) -> bool {
        !matches!(self, Self::ChannelGemm | Self::Dwt)
    }

    /// The name of a tile, such as `f32_gemm_8x48`.
    #[must_use]
    pub fn name(self, dtype: &str, mr: usize, nr: usize) -> String {
        let (first, second) = if self.is_mr_first() { (mr, nr) } else { (nr, mr) };
        format!("{dtype}_{}_{first}x{second}", self.word())
    }
}

/// A tile: one micro-kernel of GEMMs or direct sums.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTile {
    /// The kernel's name.
    pub name: String,
    /// Its ISA.
    pub isa: Isa,
    /// The computing type.
    pub dtype: &'static str,
    /// What it computes.
    pub op: Op,
    /// MR: broadcasts of a step.
    pub mr: usize,
    /// NR: elements of the tile's vectors.
    pub nr: usize,
    /// GFLOP/s, if measured.
    pub rate: Option<f64>,
}

/// The tiles of an ISA in this build; none if the CPU lacks the ISA. Each is measured for the
/// given time.
#[must_use]
pub fn tiles(isa: Isa, measure: Option<Duration>) -> Vec<KernelTile> {
    if !isa.is_available() {
        return Vec::new();
    }
    let mut tiles = tiles_of::<f32>(isa, measure);
    tiles.extend(tiles_of::<f64>(isa, measure));
    tiles
}

fn tiles_of<T: Real>(isa: Isa, measure: Option<Duration>) -> Vec<KernelTile> {
    let tile =
        |name: &str, op, (mr, nr), rate| KernelTile { name: name.to_owned(), isa, dtype: T::NAME, op, mr, nr, rate };
    let spatial = spatial_kernels::<T>(isa).iter().map(|k| {
        let rate = measure.map(|duration| peak::spatial(k, duration));
        tile(k.name(), Op::Gemm, (k.mr(), k.nr()), rate)
    });
    let channel = channel_kernels::<T>(isa).iter().map(|k| {
        let rate = measure.map(|duration| peak::channel(k, duration));
        tile(k.name(), Op::ChannelGemm, (k.mr(), k.nr()), rate)
    });
    let pixel = pixel_kernels::<T>(isa).iter().map(|k| {
        let rate = measure.map(|duration| peak::pixel(k, duration));
        tile(k.name(), Op::PixelGemm, (k.mr(), k.nr()), rate)
    });
    let pixel_depthwise = pixel_depthwise_kernels::<T>(isa).iter().map(|k| {
        let rate = measure.map(|duration| peak::pixel_depthwise(k, duration));
        tile(k.name(), Op::PixelDw, (k.mr(), k.nr()), rate)
    });
    let direct = depthwise_kernels::<T>(isa).into_iter().flat_map(|kernels| {
        let along_rows = kernels.rows().iter().chain(kernels.narrow()).map(|k| (k, Op::Dw));
        along_rows.chain(kernels.channels().iter().map(|k| (k, Op::Dwt)))
    });
    let direct = direct.map(|(k, op)| {
        let rate = measure.map(|duration| peak::direct(k, duration));
        tile(k.name(), op, (k.mr(), k.lanes()), rate)
    });
    let grouped = grouped_kernels::<T>(isa).iter().map(|k| {
        let rate = measure.map(|duration| peak::grouped(k, duration));
        tile(k.name(), Op::Group, (k.mr(), k.nr()), rate)
    });
    spatial.chain(channel).chain(pixel).chain(pixel_depthwise).chain(direct).chain(grouped).collect()
}

/// The names of an ISA's Winograd transforms, without the prefix up to `winograd_`.
#[must_use]
pub fn transforms<T: Real>(isa: Isa) -> Vec<&'static str> {
    winograd_kernels::<T>(isa).iter().filter_map(|k| k.name().rsplit("winograd_").next()).collect()
}

/// The tables for this build and CPU in the form of `kernels/README.md`, for one ISA or all of
/// them.
#[must_use]
pub fn markdown(only: Option<Isa>) -> String {
    let isas = || Isa::ALL.into_iter().filter(|isa| isa.is_available() && only.is_none_or(|only| only == *isa));
    let tiles: Vec<_> = isas().flat_map(|isa| tiles(isa, None)).collect();
    let mut text = summary(&tiles);
    text += "\n| ISA | type | Winograd transforms (outputs_taps) |\n|---|---|---|\n";
    for isa in isas() {
        text.extend(transforms_row::<f32>(isa));
        text.extend(transforms_row::<f64>(isa));
    }
    text += "\n| ISA | type | interleaving | lanes |\n|---|---|---|---:|\n";
    for isa in isas() {
        text.extend(interleaving_rows::<f32>(isa));
        text.extend(interleaving_rows::<f64>(isa));
    }
    text += "\n| ISA | type | depthwise transposed, stride 2 (taps) | lanes |\n|---|---|---|---:|\n";
    for isa in isas() {
        text.extend(depthwise_transposed_row::<f32>(isa));
        text.extend(depthwise_transposed_row::<f64>(isa));
    }
    text += "\n| ISA | streaming passes | `f16` by |\n|---|---|---|\n";
    for isa in isas() {
        text += &passes_row(isa);
    }
    text
}

fn passes_row(isa: Isa) -> String {
    let conversions = if has_conversions(isa) { "own conversions" } else { "`half`" };
    format!("| {isa} | {} | {conversions} |\n", PASSES.join(", "))
}

/// Whether an ISA's folder has conversions of `f16`, which the passes call.
#[must_use]
pub fn has_conversions(isa: Isa) -> bool {
    matches!(isa, Isa::Neon | Isa::Avx512)
}

fn transforms_row<T: Real>(isa: Isa) -> Option<String> {
    let names = transforms::<T>(isa);
    (!names.is_empty()).then(|| format!("| {isa} | {} | {} |\n", T::NAME, names.join(", ")))
}

fn interleaving_rows<T: Real>(isa: Isa) -> impl Iterator<Item = String> {
    interleave_kernels::<T>(isa)
        .iter()
        .map(move |k| format!("| {isa} | {} | {} | {} |\n", T::NAME, k.name(), k.lanes()))
}

/// The names of an ISA's kernels for depthwise ConvTranspose, without the prefix up to
/// `dw_transposed_`.
#[must_use]
pub fn depthwise_transposed_sizes<T: Real>(isa: Isa) -> Vec<&'static str> {
    depthwise_transposed_kernels::<T>(isa).iter().filter_map(|k| k.name().rsplit("dw_transposed_").next()).collect()
}

fn depthwise_transposed_row<T: Real>(isa: Isa) -> Option<String> {
    let (names, lanes) =
        (depthwise_transposed_sizes::<T>(isa), depthwise_transposed_kernels::<T>(isa).first()?.lanes());
    Some(format!("| {isa} | {} | {} | {lanes} |\n", T::NAME, names.join(", ")))
}

/// One row for the tiles that differ only in MR.
fn summary(tiles: &[KernelTile]) -> String {
    let mut text = String::from("| ISA | type | vectors along | NR | MR |\n|---|---|---|---|---|\n");
    for tiles in tiles.chunk_by(|a, b| (a.isa, a.dtype, a.op, a.nr) == (b.isa, b.dtype, b.op, b.nr)) {
        let KernelTile { isa, dtype, op, nr, .. } = tiles[0];
        let mr: Vec<_> = tiles.iter().map(|t| t.mr).collect();
        text += &format!("| {isa} | {dtype} | {} | {nr} | {} |\n", op.vectors(), ranges(&mr));
    }
    text
}

/// The tiles of an ISA, read from tables that [`markdown`] wrote, for an ISA that this build
/// lacks.
#[must_use]
pub fn read_tiles(isa: Isa, table: &str) -> Vec<KernelTile> {
    table.lines().filter_map(|line| read_row(isa, line)).flatten().collect()
}

/// The tiles of a row; none if the row belongs to another ISA or another table.
fn read_row(isa: Isa, line: &str) -> Option<Vec<KernelTile>> {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, dtype, vectors, nr, mr] = cells[..] else { return None };
    let dtype = [f32::NAME, f64::NAME].into_iter().find(|known| *known == dtype)?;
    let (op, nr) = (Op::ALL.into_iter().find(|op| op.vectors() == vectors)?, nr.parse().ok()?);
    let tile = |mr| KernelTile { name: op.name(dtype, mr, nr), isa, dtype, op, mr, nr, rate: None };
    (name == isa.name()).then(|| numbers(mr).into_iter().map(tile).collect())
}

/// Writes `[1, 2, 3, 4, 6]` as `1-4, 6`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Reads `1-4, 6` as `[1, 2, 3, 4, 6]`. Text that is not a number is skipped.
fn numbers(ranges: &str) -> Vec<usize> {
    let run = |run: &str| {
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    ranges.split(", ").filter_map(run).flatten().collect()
}

/// One row for each tile, with its rate, and its share of the fastest tile of its ISA and type.
#[must_use]
pub fn rates(tiles: &[KernelTile]) -> String {
    let mut text = String::from("| kernel | ISA | tile | GFLOP/s | of the fastest |\n|---|---|---|---:|---:|\n");
    for group in tiles.chunk_by(|a, b| (a.isa, a.dtype) == (b.isa, b.dtype)) {
        let fastest = group.iter().filter_map(|t| t.rate).fold(0.0, f64::max);
        for KernelTile { name, isa, mr, nr, rate, .. } in group {
            let rate = rate.unwrap_or(f64::NAN);
            text += &format!("| `{name}` | {isa} | {mr} x {nr} | {rate:.1} | {:.0} % |\n", 100.0 * rate / fastest);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_joined() {
        assert_eq!(ranges(&[1, 2, 3, 4, 6]), "1-4, 6");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(numbers("1-4, 6"), [1, 2, 3, 4, 6]);
    }

    #[test]
    fn every_tile_is_in_the_tables_and_read_back() {
        let text = markdown(None);
        for isa in Isa::ALL {
            let tiles = tiles(isa, None);
            assert_eq!(tiles.is_empty(), !isa.is_available());
            assert_eq!(read_tiles(isa, &text), tiles, "{isa}");
        }
    }

    #[test]
    fn every_kernel_beside_tiles_is_in_the_tables() {
        let text = markdown(None);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for part in ["f2x2_3x3, ", "| f32_interleave |", "| f64_interleave |", "| 2x2, ", "NarrowRows, "] {
                let is_there = text.lines().any(|line| line.starts_with(&format!("| {isa} |")) && line.contains(part));
                assert!(is_there, "{isa}, {part}: {text}");
            }
        }
    }
}

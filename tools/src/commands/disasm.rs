//! `disasm`: checks the inner loops of the micro-kernels in compiled machine code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Verdict;
use crate::assembly::{self, Function, Instruction, InstructionKind, Stack};
use crate::mca::{self, Estimate, Loop};
use crate::output::text::show;
use anyhow::{Context, Result, bail, ensure};
use convoke::Isa;
use convoke_kernels::{Real, depthwise_transposed_kernels, winograd_kernels};
use convoke_tools::kernels::{self, Op, PASSES};

/// Check the inner loops of the micro-kernels in a compiled program or library
///
/// Disassembles it with the compiler's own llvm-objdump, and finds each micro-kernel by its name
/// and sizes, and each streaming pass by its type. Fails if the loop over k of a GEMM tile holds anything
/// but its FMAs, loads, prefetches and a few counters. Fails if the inner loop of another kernel
/// calls a function or uses the stack more than the list of exceptions in the source allows.
/// Prints the FMAs' share of each tile's loop. Kernels and passes are generic: their names contain
/// their sizes and types if the program is compiled with `-C symbol-mangling-version=v0`.
#[derive(Debug, clap::Args)]
pub(crate) struct DisasmArgs {
    /// The program, archive or object
    file: PathBuf,
    /// Instruction sets that the file must hold: all of their kernels, as far as this CPU can
    /// list them
    #[arg(long, value_delimiter = ',')]
    expect: Vec<Isa>,
    /// The disassembler [default: llvm-objdump of the component `llvm-tools`]
    #[arg(long, value_name = "PROGRAM")]
    objdump: Option<PathBuf>,
    /// Print the stack traffic and the calls of every kernel that has any
    #[arg(long)]
    exceptions: bool,
    /// Fail if the table of NEON's tiles in kernels/README.md differs from the file. The README
    /// is the one of the time when these tools were built
    #[arg(long)]
    readme: bool,
    /// Print what LLVM's models of CPUs say of the loops: cycles of an iteration, share of the model's FMA peak,
    /// and what bounds it. Nothing is checked then. The program is llvm-mca, version 19 or newer
    #[arg(long, value_name = "PROGRAM")]
    mca: Option<String>,
}

/// The page with the tables of micro-kernels of every ISA.
const README: &str = include_str!("../../../kernels/README.md");

/// The lines before and after the table of NEON's tiles in that page.
const NEON_TABLE: (&str, &str) = ("<!-- neon -->\n", "<!-- /neon -->");

/// Instructions for counters, pointers, comparisons and jumps in each step of K, at most.
/// They count the steps, and advance the pointers to both operands, to a second row of pixels,
/// to what is prefetched, and to the rows of Y.
const MOST_COUNTERS: usize = 6;

/// Pixels whose addresses x86-64's general registers have room for, beside that of the weights and the
/// counters. A step of k reads the addresses of further pixels of a tile from the stack.
const PIXELS_IN_REGISTERS: usize = 11;

/// What one inner loop of some kernels may do beyond registers.
struct Exception {
    isa: Isa,
    /// Paths of kernels; `*` stands for any text.
    kernels: &'static str,
    /// Vectors that it moves to or from the stack, at most.
    vectors: usize,
    /// Addresses and counters that it moves to or from the stack, at most.
    scalars: usize,
    /// Calls, at most.
    calls: usize,
}

impl Exception {
    const fn new(isa: Isa, kernels: &'static str, vectors: usize, scalars: usize) -> Self {
        Self { isa, kernels, vectors, scalars, calls: 0 }
    }

    const fn with_calls(self, calls: usize) -> Self {
        Self { calls, ..self }
    }
}

/// The kernels whose loops use the stack or call a function, grouped by the reason. Each count is
/// the highest of the kernels that its pattern matches. Loops over K of GEMM tiles have no
/// exceptions.
const EXCEPTIONS: &[(&str, &[Exception])] = {
    use Isa::{Avx2, Avx512, Neon};
    &[
        (
            "masks and lanes of a row that is split into four phases, and of squares that are transposed",
            &[
                Exception::new(Avx512, "f32::passes::deinterleave", 4, 17),
                Exception::new(Avx512, "f64::passes::deinterleave", 4, 52),
                Exception::new(Avx2, "*::passes::deinterleave", 5, 3),
            ],
        ),
        (
            "the epilogue of a tile with a residual or dropped columns: pointers and bounds",
            &[
                Exception::new(Avx512, "f32::gemm::f32_gemm_*", 0, 24),
                Exception::new(Avx512, "f64::gemm::f64_gemm_*", 0, 20),
                Exception::new(Avx512, "*::gemm::*_*_gemm_*", 0, 26),
                Exception::new(Avx2, "f32::gemm::f32_gemm_*", 0, 6),
                Exception::new(Avx2, "f64::gemm::f64_gemm_*", 0, 6),
                Exception::new(Avx2, "f64::gemm::f64_gemm_4x8", 0, 10),
                Exception::new(Neon, "*::gemm::*_gemm*", 1, 0),
            ],
        ),
        (
            "addresses of a tile's rows, if they are more than general registers; sums of tiles of many rows",
            &[
                Exception::new(Avx512, "*::depthwise::*_dw_*x16", 0, 4),
                Exception::new(Avx512, "*::depthwise::*_dw_*x8", 0, 4),
                Exception::new(Avx512, "*::depthwise::*_dwt_*", 0, 4),
                Exception::new(Avx512, "*::depthwise::threes", 0, 86),
            ],
        ),
        (
            "a table of the border's masks, and addresses of rows at the border; sums that exceed AVX2's 16 registers and NEON's short ones; rows at the border of high \
             tiles that share vectors",
            &[
                Exception::new(Avx512, "*::depthwise::*_direct", 16, 61),
                Exception::new(Avx2, "*::depthwise::*_direct", 11, 58),
                Exception::new(Neon, "*::depthwise::*_direct", 28, 21),
            ],
        ),
        (
            "the masks of a column of taps, with AVX2's 16 registers; the end of a column; the epilogue of tiles with parts of rows, which NEON stores by halves",
            &[
                Exception::new(Avx512, "*::grouped::*_group_*", 0, 4),
                Exception::new(Avx2, "*::grouped::*_group_*", 2, 0),
                Exception::new(Neon, "*::grouped::*_group_*", 1, 26),
            ],
        ),
        (
            "the places of a tile's pixels, if they are more than general registers; pointers and bounds of the epilogue",
            &[
                Exception::new(Avx512, "*::pixel::*_pixel_gemm_*", 0, 28),
                Exception::new(Avx512, "*::pixel_gemm::*", 0, 3),
                Exception::new(Neon, "*::pixel::*_pixel_gemm_*", 1, 12),
            ],
        ),
        (
            "constants of the requantisation of four pixels, which AVX2's 16 registers do not hold beside sums; rows of bytes, and the places of four at a time",
            &[Exception::new(Avx512, "*::KERNELS::*", 0, 9), Exception::new(Avx2, "*::KERNELS::*", 37, 9)],
        ),
        (
            "the loops over tiles, blocks of channels and rows of taps, with the call of an activation; weights of a part of a vector",
            &[
                Exception::new(Avx512, "*::pixel::*pixel_dw*", 2, 66).with_calls(1),
                Exception::new(Avx512, "*::pixel_dw::*", 0, 45),
                Exception::new(Avx2, "*::pixel_dw::*", 21, 43),
                Exception::new(Avx2, "*::pixel::*pixel_dw*", 45, 31).with_calls(1),
                Exception::new(Neon, "*::pixel::*pixel_dw*", 14, 16).with_calls(1),
            ],
        ),
        (
            "rows of a block at the edge of a matrix, which are indexed",
            &[
                Exception::new(Avx512, "*::passes::transpose", 2, 2),
                Exception::new(Avx2, "*::passes::transpose", 0, 9),
                Exception::new(Neon, "*::passes::transpose", 1, 0),
                Exception::new(Neon, "*::passes::deinterleave", 2, 0),
            ],
        ),
        (
            "rows of a partial transpose, which are indexed; a call of memset for each transpose clears them",
            &[
                Exception::new(Avx512, "*::depthwise::gather", 4, 0),
                Exception::new(Avx512, "*::depthwise::scatter", 44, 38).with_calls(1),
                Exception::new(Avx2, "*::depthwise::gather", 0, 2),
                Exception::new(Avx2, "*::depthwise::scatter", 50, 27).with_calls(1),
                Exception::new(Neon, "*::depthwise::gather", 1, 0),
                Exception::new(Neon, "*::depthwise::scatter", 16, 15).with_calls(1),
            ],
        ),
        (
            "eight phases and their results, except with AVX-512; bounds of a run",
            &[
                Exception::new(Avx512, "*::passes::interleave", 0, 2),
                Exception::new(Avx2, "*::passes::interleave", 12, 2),
                Exception::new(Avx2, "*::passes::sum", 8, 4),
                Exception::new(Neon, "*::passes::sum", 1, 0),
                Exception::new(Neon, "*::passes::interleave", 0, 1),
            ],
        ),
        (
            "choices of rows and masks for pairs of vectors at an edge; rows of X and weights, except with AVX-512",
            &[
                Exception::new(Avx512, "*::passes::depthwise_transposed::<*>", 0, 50),
                Exception::new(Avx2, "*::passes::depthwise_transposed::<*>", 8, 44),
                Exception::new(Neon, "*::passes::depthwise_transposed::<*>", 0, 1),
                Exception::new(Neon, "*::passes::depthwise_transposed::<2, 5, 5, *>", 19, 0),
            ],
        ),
        (
            "the beginnings of a tile's rows, for each pair of rows of values; two rows of values, except with AVX-512",
            &[
                Exception::new(Avx2, "*::winograd::input_pixels::<*>", 8, 0),
                Exception::new(Avx2, "*::winograd::input_pixels::<6, 7, 5>", 20, 0),
                Exception::new(Avx2, "*::winograd::input_pixels::<6, 8, 4>", 36, 0),
                Exception::new(Avx2, "*::winograd::input_pixels::<8, 8, *>", 63, 0),
                Exception::new(Avx512, "*::winograd::input::<*>", 0, 28),
                Exception::new(Avx512, "*::winograd::input::<8, 8>", 0, 94),
                Exception::new(Avx512, "*::winograd::input::<6, 8>", 0, 31),
                Exception::new(Avx2, "*::winograd::input::<*>", 6, 26),
                Exception::new(Avx2, "*::winograd::input::<6, 7>", 18, 30),
                Exception::new(Avx2, "*::winograd::input::<8, 8>", 50, 66),
                Exception::new(Avx2, "*::winograd::input::<6, 8>", 38, 31),
                Exception::new(Neon, "*::winograd::input::<*>", 48, 33),
                Exception::new(Neon, "*::winograd::input::<8, 8>", 176, 190),
                Exception::new(Neon, "*::winograd::input::<6, 8>", 75, 50),
            ],
        ),
        ("the places of a sum's rows", &[Exception::new(Avx2, "*::winograd::extend", 0, 2)]),
        (
            "the places of a tile's rows, and which of them have a row of X",
            &[Exception::new(Avx512, "*::winograd::straight::<*>", 0, 38)],
        ),
        (
            "half of the transform, which is indexed by the part of the tile inside Y; addresses of planes and rows; the epilogue of tiles at an edge",
            &[
                Exception::new(Avx512, "*::winograd::output::<1, *>", 28, 168),
                Exception::new(Avx512, "*::winograd::output::<*, 1, *, 1>", 16, 46),
                Exception::new(Avx512, "*::winograd::output::<*, 2, 2>", 16, 48),
                Exception::new(Avx512, "*::winograd::output::<6, 6, 3, 3>", 16, 59),
                Exception::new(Avx512, "*::winograd::output::<6, 4, 4, 2>", 16, 47),
                Exception::new(Avx512, "*::winograd::output::<6, 6, 4, 4>", 17, 27),
                Exception::new(Avx512, "*::winograd::output::<6, 7, 4, 5>", 8, 24),
                Exception::new(Avx512, "*::winograd::output::<6, 6, 5, 5>", 8, 83),
                Exception::new(Avx512, "*::winograd::output::<8, 8, 6, 6>", 16, 44),
                Exception::new(Avx512, "*::winograd::output::<*, 8, *, 4>", 16, 18),
                Exception::new(Avx2, "*::winograd::output::<1, *>", 100, 115),
                Exception::new(Avx2, "*::winograd::output::<*, 1, *, 1>", 8, 25),
                Exception::new(Avx2, "*::winograd::output::<*, 2, 2>", 10, 43),
                Exception::new(Avx2, "*::winograd::output::<6, 6, 3, 3>", 62, 23),
                Exception::new(Avx2, "*::winograd::output::<6, 4, 4, 2>", 12, 34),
                Exception::new(Avx2, "*::winograd::output::<6, 6, 4, 4>", 8, 30),
                Exception::new(Avx2, "*::winograd::output::<6, 7, 4, 5>", 8, 37),
                Exception::new(Avx2, "*::winograd::output::<6, 6, 5, 5>", 8, 18),
                Exception::new(Avx2, "*::winograd::output::<8, 8, 6, 6>", 14, 32),
                Exception::new(Avx2, "*::winograd::output::<*, 8, *, 4>", 9, 32),
                Exception::new(Neon, "*::winograd::output::<*>", 13, 121),
                Exception::new(Neon, "*::winograd::output::<6, 4, 4, 2>", 49, 90),
                Exception::new(Neon, "*::winograd::output::<6, 8, 2, 4>", 47, 90),
                Exception::new(Neon, "*::winograd::output::<8, 8, 4, 4>", 23, 90),
                Exception::new(Neon, "*::winograd::output::<8, 1, 4, 1>", 22, 90),
            ],
        ),
        (
            "six vectors that are split through memory, one element at a time; twice five vectors of joined rows; the bounds of live and free rows",
            &[
                Exception::new(Avx512, "*::winograd::split::<*>", 0, 4),
                Exception::new(Avx2, "*::winograd::split::<*>", 0, 4),
                Exception::new(Avx2, "*::winograd::split::<8, 6>", 1, 4),
                Exception::new(Avx2, "*::winograd::split::<7, 5>", 2, 0),
                Exception::new(Neon, "*::winograd::split::<8, 6>", 12, 0),
            ],
        ),
        (
            "the first lanes of a vector, which AVX2 stores in pieces; rows of a block at the edge, which are whole vectors or not",
            &[
                Exception::new(Avx2, "*::gemm::*_gemm_*", 1, 20),
                Exception::new(Avx2, "*::depthwise::*_dw_1x*", 0, 14),
                Exception::new(Avx2, "*::depthwise::*_dwt_*x1", 0, 14),
                Exception::new(Avx2, "*::depthwise::scatter", 58, 57),
                Exception::new(Avx2, "*::grouped::*_group_*", 2, 31),
                Exception::new(Avx2, "*::passes::depthwise_transposed::<*>", 13, 45),
                Exception::new(Avx2, "*::passes::interleave", 12, 9),
                Exception::new(Avx2, "*::passes::transpose", 0, 48),
                Exception::new(Avx2, "*::pixel::*_pixel_gemm_*", 1, 31),
                Exception::new(Avx2, "*::pixel::*pixel_dw*", 45, 38),
                Exception::new(Avx2, "*::winograd::output::<1, *>", 100, 290),
                Exception::new(Avx2, "*::winograd::output::<6, 6, 3, 3>", 111, 218),
                Exception::new(Avx2, "*::winograd::output::<6, 6, 4, 4>", 47, 32),
                Exception::new(Avx2, "*::winograd::output::<6, 8, 2, 4>", 17, 32),
                Exception::new(Avx2, "*::winograd::output::<8, 1, 4, 1>", 9, 29),
                Exception::new(Avx2, "*::winograd::output::<8, 8, 4, 4>", 9, 56),
                Exception::new(Avx512, "*::depthwise::*_dw_1x*", 0, 63),
                Exception::new(Avx512, "*::passes::transpose", 2, 26),
            ],
        ),
        (
            "conversions through a buffer on the stack, and those of `half` through arrays of eight values; a call that copies the rest",
            &[
                Exception::new(Avx512, "stream::NarrowRows<f16>", 1, 0),
                Exception::new(Avx2, "stream::NarrowRows<f16>", 9, 0).with_calls(1),
                Exception::new(Avx2, "stream::Widen<f16>", 5, 1).with_calls(1),
                Exception::new(Avx2, "stream::WidenStrided<f16*", 2, 0),
                Exception::new(Neon, "stream::NarrowRows<f16>", 0, 2),
            ],
        ),
        (
            "rows of 48 and 64 values, which LLVM unrolls; a call for each row of another length",
            &[
                Exception::new(Avx512, "stream::PackRows<f16>*", 1, 13).with_calls(1),
                Exception::new(Avx2, "stream::PackRows<f16>*", 18, 14).with_calls(4),
                Exception::new(Avx2, "stream::PackRows<f64>*", 0, 2),
                Exception::new(Neon, "stream::PackRows<f16>*", 11, 3),
                Exception::new(Neon, "stream::PackRows<f64>*", 0, 2),
            ],
        ),
        (
            "addresses of rows, which may have a residual, in a function that has the loops of all activations",
            &[
                Exception::new(Avx512, "*::passes::activate", 0, 2),
                Exception::new(Avx2, "f32::passes::activate", 0, 6),
                // Gelu keeps x while it computes a polynomial of 23 terms.
                Exception::new(Avx2, "f64::passes::activate", 2, 6),
            ],
        ),
        (
            "residuals of 16 bits, which are widened through a buffer",
            &[
                Exception::new(Avx512, "stream::AddAssign<f16>", 4, 0),
                Exception::new(Avx512, "stream::AddAssign<bf16>", 4, 0),
                Exception::new(Avx2, "stream::AddAssign<f16>", 5, 0).with_calls(1),
                Exception::new(Avx2, "stream::AddAssign<bf16>", 4, 0),
                Exception::new(Neon, "stream::AddAssign<f16>", 1, 0),
                Exception::new(Neon, "stream::AddAssign<bf16>", 2, 0),
                Exception::new(Neon, "pass", 1, 0),
            ],
        ),
    ]
};

/// A kernel in the file, such as `f32::gemm::f32_gemm_8x48` or `f32::winograd::split::<6, 4>` of an ISA:
/// its type, its module, and its name in the table, if it has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    isa: Isa,
    path: String,
}

/// How many instructions of each kind a loop has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    all: usize,
    fmas: usize,
    /// Counters and pointers.
    counters: usize,
    /// Instructions that are neither FMA, load, prefetch nor counter.
    others: usize,
    /// Counted as in [`Exception`].
    vectors: usize,
    scalars: usize,
    calls: usize,
}

impl Counts {
    fn of(instructions: &[&Instruction]) -> Self {
        let count = |is: &dyn Fn(&Instruction) -> bool| instructions.iter().filter(|i| is(i)).count();
        Self {
            all: instructions.len(),
            fmas: count(&|i| i.kind == InstructionKind::MultiplyAdd),
            counters: count(&|i| i.kind == InstructionKind::Counter),
            others: count(&|i| matches!(i.kind, InstructionKind::Other | InstructionKind::Call)),
            vectors: count(&|i| i.stack == Stack::Vector),
            scalars: count(&|i| i.stack == Stack::Scalar),
            calls: count(&|i| i.kind == InstructionKind::Call),
        }
    }

    /// The larger of the two for each count that an exception limits.
    fn max(self, other: Self) -> Self {
        Self {
            vectors: self.vectors.max(other.vectors),
            scalars: self.scalars.max(other.scalars),
            calls: self.calls.max(other.calls),
            ..self
        }
    }
}

/// Checks one file.
pub(crate) fn run(args: &DisasmArgs) -> Result<Verdict> {
    let text = disassemble(args.objdump.as_deref(), &args.file)?;
    let functions = assembly::parse(&text).map_err(anyhow::Error::msg)?;
    let mut report = DisasmReport::default();
    for function in &functions {
        for name in function.names.iter().filter_map(|name| Name::of_symbol(name)) {
            report.add(&name, function);
        }
    }
    for isa in &args.expect {
        report.expect(*isa);
    }
    if args.readme {
        report.compare(README)?;
    }
    if let Some(program) = &args.mca {
        let models = report.models_tables(program)?;
        show(|out| write!(out, "{models}"))?;
        ensure!(!models.is_empty(), "{}: no loop of a micro-kernel found", args.file.display());
        return Ok(Verdict::Good);
    }
    show(|out| {
        write!(out, "{}\n{}", report.tiles_table(), report.kernels_table())?;
        if args.exceptions {
            write!(out, "\n{}", report.exceptions_table())?;
        }
        Ok(())
    })?;
    for problem in &report.problems {
        anstream::eprintln!("{problem}");
    }
    ensure!(!report.kernels.is_empty(), "{}: no micro-kernel of AVX2, AVX-512 or NEON found", args.file.display());
    Ok(Verdict::from_good(report.problems.is_empty()))
}

/// The disassembly of a file.
fn disassemble(objdump: Option<&Path>, file: &Path) -> Result<String> {
    ensure!(file.is_file(), "{}: no such file", file.display());
    let objdump = match objdump {
        Some(objdump) => objdump.to_path_buf(),
        None => {
            let output = Command::new("rustc").args(["--print", "target-libdir"]).output().context("rustc")?;
            let found = Path::new(String::from_utf8(output.stdout)?.trim()).join("../bin/llvm-objdump");
            ensure!(found.is_file(), "no llvm-objdump: `rustup component add llvm-tools` installs it");
            found
        }
    };
    let output = Command::new(&objdump).args(assembly::OBJDUMP_OPTIONS).arg(file).output();
    let output = output.with_context(|| objdump.display().to_string())?;
    if !output.status.success() {
        bail!("{}: {}", objdump.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Name {
    /// The kernel that a symbol names, if it is one.
    fn of_symbol(symbol: &str) -> Option<Self> {
        // ` (.llvm.123)` marks symbols that were made visible to another compilation unit.
        // `::h0123456789abcdef` ends symbols of the legacy mangling.
        let symbol = symbol.split(" (.llvm.").next().unwrap_or(symbol);
        let symbol = match symbol.rsplit_once("::h") {
            Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => path,
            _ => symbol,
        };
        let arch = [("x86_64::avx512::", Isa::Avx512), ("x86_64::avx2::", Isa::Avx2), ("aarch64::neon::", Isa::Neon)];
        // A pass is a type parameter: of a function of pulp for x86-64, of a function of the
        // crate for NEON.
        let pass = symbol.split_once("::vectorize::Impl<convoke_kernels::stream::");
        let pass =
            pass.or_else(|| symbol.split_once("convoke_kernels::aarch64::neon::pass::<convoke_kernels::stream::"));
        if let Some((_, pass)) = pass {
            let pass = pass.trim_end_matches('>').replace("half::binary16::", "").replace("half::bfloat::", "");
            let tokens = [("x86::v4", Isa::Avx512), ("x86::v3", Isa::Avx2), ("aarch64::", Isa::Neon)];
            let isa = tokens.into_iter().find(|(token, _)| symbol.contains(token))?.1;
            return Some(Self { isa, path: format!("stream::{pass}>") });
        }
        arch.into_iter().find_map(|(prefix, isa)| {
            let path = symbol.strip_prefix("convoke_kernels::")?.strip_prefix(prefix)?;
            let (dtype, kernel) = path.strip_prefix("of_")?.split_once("::")?;
            let (module, function) = kernel.split_once("::")?;
            let kernel = tile_name(isa, dtype, module, function).unwrap_or_else(|| String::from(function));
            // Narrow tiles are depthwise ones with other vectors.
            let module = if module == "narrow" { "depthwise" } else { module };
            Some(Self { isa, path: format!("{dtype}::{module}::{kernel}") })
        })
    }

    /// The size of a GEMM tile, MR x NR, with the number of its accumulators.
    fn tile(&self) -> Option<LoopTile> {
        let (dtype, kernel) = self.path.split_once("::gemm::").or_else(|| self.path.split_once("::pixel::"))?;
        let (kind, sizes) = kernel.strip_prefix(dtype)?.strip_prefix('_')?.rsplit_once('_')?;
        let (is_mr_first, pointers) = match kind {
            "gemm" => (true, 1),
            "channel_gemm" => (false, 1),
            // Pixels have a pointer each, which LLVM replaces by one counter if they are more than a few.
            "pixel_gemm" => (true, 3),
            _ => return None,
        };
        let (first, second) = sizes.split_once('x')?;
        let (first, second) = (first.parse::<usize>().ok()?, second.parse::<usize>().ok()?);
        let (mr, nr) = if is_mr_first { (first, second) } else { (second, first) };
        let group = format!("{dtype} {kind}");
        let accumulators = mr * nr.div_ceil(register_lanes(self.isa, dtype));
        let stacked = if kind == "pixel_gemm" { mr.saturating_sub(PIXELS_IN_REGISTERS) } else { 0 };
        Some(LoopTile { group, mr, nr, pointers, stacked, accumulators })
    }

    /// The family that the summary has one line for: type and module, or `stream`.
    fn family(&self) -> &str {
        self.path.rsplit_once("::").map_or("", |(family, _)| family.split("::<").next().unwrap_or(family))
    }
}

/// The name in the table of a tile that is compiled as `function`, such as `gemm::<14, 2>`; `None` for
/// another kernel.
fn tile_name(isa: Isa, dtype: &str, module: &str, function: &str) -> Option<String> {
    let (word, sizes) = function.strip_suffix('>')?.split_once("::<")?;
    let (word, suffix) = word.strip_suffix("_direct").map_or((word, ""), |word| (word, "_direct"));
    let op = Op::ALL.into_iter().find(|op| op.word() == word)?;
    let mut sizes = sizes.split(", ").map_while(|size| size.parse::<usize>().ok());
    let (rows, vectors) = (sizes.next()?, sizes.next().unwrap_or(1));
    // A vector of f64 is two of NEON's registers.
    let registers = if isa == Isa::Neon && dtype == "f64" { 2 } else { 1 };
    let lanes = registers * register_lanes(isa, dtype) / if module == "narrow" { 2 } else { 1 };
    Some(op.name(dtype, rows, vectors * lanes) + suffix)
}

/// Elements of a register.
fn register_lanes(isa: Isa, dtype: &str) -> usize {
    let bits = match isa {
        Isa::Avx512 => 512,
        Isa::Avx2 => 256,
        _ => 128,
    };
    bits / if dtype == "f64" { 64 } else { 32 }
}

/// A GEMM tile.
struct LoopTile {
    /// Type and orientation.
    group: String,
    mr: usize,
    nr: usize,
    /// Pointers to X: to rows of pixels, or to pixels.
    pointers: usize,
    /// Addresses that a step of k may read from the stack.
    stacked: usize,
    accumulators: usize,
}

/// A loop over K.
#[derive(Debug, Clone)]
struct Step {
    kernel: String,
    accumulators: usize,
    instructions: usize,
    fmas: usize,
    /// Vector registers that are loaded.
    loaded: usize,
}

impl Step {
    /// The FMAs among the instructions, in percent.
    fn share(&self) -> f64 {
        100.0 * self.fmas as f64 / self.instructions as f64
    }
}

/// Everything that was found in a file.
#[derive(Debug, Default)]
struct DisasmReport {
    kernels: BTreeSet<Name>,
    /// Each tile's loop over K, by ISA, group, NR and MR. If a tile has several loops, it is the
    /// one with the smallest share of FMAs.
    tiles: BTreeMap<(Isa, String, usize), BTreeMap<usize, Step>>,
    /// For each family of an ISA: the number of kernels, the number of inner loops, and the worst
    /// counts.
    families: BTreeMap<(Isa, String), (usize, usize, Counts)>,
    /// Kernels that use the stack or make calls.
    exceptions: BTreeMap<Name, Counts>,
    /// Each kernel's inner loop with the most FMAs, and among these the longest, of those that have no jump but their
    /// last instruction.
    loops: BTreeMap<Name, Loop>,
    problems: Vec<String>,
}

impl DisasmReport {
    /// Looks at one kernel.
    fn add(&mut self, name: &Name, function: &Function) {
        self.kernels.insert(name.clone());
        // Loops without vectors count runs, or finish a few elements.
        let loops: Vec<_> =
            function.inner_loops().into_iter().filter(|body| body.iter().any(|i| i.is_vector)).collect();
        if let Some(tile) = name.tile() {
            self.add_tile(name, &tile, &loops);
        }
        let straight = loops.iter().filter(|body| body.iter().filter(|i| i.jumps()).count() == 1);
        if let Some(body) = straight.max_by_key(|body| (Counts::of(body).fmas, body.len())) {
            let instructions = body.iter().map(|instruction| instruction.text.clone()).collect();
            self.loops.insert(name.clone(), Loop { instructions, fmas: Counts::of(body).fmas });
        }
        let allowed = allowed(name);
        let mut worst = Counts::default();
        for body in &loops {
            worst = worst.max(Counts::of(body));
        }
        type CountOf = fn(&Counts) -> usize;
        let limits: [(&str, CountOf); 3] = [
            ("vectors to or from the stack", |counts| counts.vectors),
            ("addresses or counters to or from the stack", |counts| counts.scalars),
            ("calls", |counts| counts.calls),
        ];
        for (what, count) in limits {
            // Only the worst loop is reported.
            if count(&worst) > count(&allowed)
                && let Some(body) = loops.iter().max_by_key(|body| count(&Counts::of(body)))
            {
                let text = format!("a loop has {} {what}, {} allowed", count(&worst), count(&allowed));
                self.problem(name, &text, body, |i| i.stack != Stack::Untouched || i.kind == InstructionKind::Call);
            }
        }
        if worst != Counts::default() {
            self.exceptions.insert(name.clone(), worst);
        }
        let family = self.families.entry((name.isa, String::from(name.family()))).or_default();
        *family = (family.0 + 1, family.1 + loops.len(), family.2.max(worst));
    }

    /// Looks at the loop over k of a GEMM tile.
    fn add_tile(&mut self, name: &Name, tile: &LoopTile, loops: &[Vec<&Instruction>]) {
        let steps: Vec<_> = loops.iter().filter(|body| Counts::of(body).fmas > 0).collect();
        if steps.is_empty() {
            self.problems.push(format!("{}/{}: no loop with FMAs", name.isa, name.path));
        }
        for body in steps {
            let counts = Counts::of(body);
            if !counts.fmas.is_multiple_of(tile.accumulators) {
                let text = format!("a loop has {} FMAs, no multiple of {}", counts.fmas, tile.accumulators);
                self.problem(name, &text, body, |i| i.kind == InstructionKind::MultiplyAdd);
            }
            let steps = counts.fmas.div_ceil(tile.accumulators);
            if counts.vectors > 0 || counts.scalars > steps * tile.stacked {
                self.problem(name, "a loop over k uses the stack", body, |i| i.stack != Stack::Untouched);
            }
            let most = MOST_COUNTERS + tile.pointers - 1;
            if counts.counters > steps * most {
                let text =
                    format!("{} counters and pointers in {steps} steps of k, {most} a step allowed", counts.counters);
                self.problem(name, &text, body, |i| i.kind == InstructionKind::Counter);
            }
            if counts.others > 0 {
                let text = "a loop over k holds more than FMAs, loads, prefetches and counters";
                self.problem(name, text, body, |i| matches!(i.kind, InstructionKind::Other | InstructionKind::Call));
            }
            let step = Step {
                instructions: counts.all,
                fmas: counts.fmas,
                loaded: body.iter().map(|i| i.loaded_registers()).sum(),
                accumulators: tile.accumulators,
                kernel: String::from(name.path.rsplit("::").next().unwrap_or_default()),
            };
            let row = self.tiles.entry((name.isa, tile.group.clone(), tile.nr)).or_default();
            let least = row.entry(tile.mr).or_insert_with(|| step.clone());
            if step.share() < least.share() {
                *least = step;
            }
        }
    }

    fn problem(&mut self, name: &Name, what: &str, body: &[&Instruction], is_shown: impl Fn(&&Instruction) -> bool) {
        let mut text = format!("{}/{}: {what}; {} instructions, among them", name.isa, name.path, body.len());
        for instruction in body.iter().copied().filter(is_shown).take(8) {
            text += &format!("\n    {:x}: {}", instruction.address, instruction.text);
        }
        self.problems.push(text);
    }

    /// Reports kernels that are missing. The crate lists the kernels of the ISAs that this CPU
    /// has, and its README lists those of the others.
    fn expect(&mut self, isa: Isa) {
        let paths = [paths_of::<f32>(isa), paths_of::<f64>(isa)].concat();
        let is_there = |is: &dyn Fn(&str) -> bool| self.kernels.iter().any(|k| k.isa == isa && is(&k.path));
        let mut missing: Vec<_> = paths.into_iter().filter(|path| !is_there(&|found| found == path)).collect();
        // The program chooses the types for which a pass is compiled.
        let passes = PASSES.map(|pass| format!("stream::{pass}<"));
        missing.extend(passes.into_iter().filter(|pass| !is_there(&|found| found.starts_with(pass))));
        self.problems.extend(missing.iter().map(|path| format!("{isa}/{path}: not in the file")));
        let is_listed =
            |pass: &str| PASSES.iter().any(|known| pass.strip_prefix(known).is_some_and(|rest| rest.starts_with('<')));
        let own = self.kernels.iter().filter(|k| k.isa == isa);
        let unlisted = own.filter(|k| k.path.strip_prefix("stream::").is_some_and(|pass| !is_listed(pass)));
        self.problems
            .extend(unlisted.map(|k| format!("{isa}/{}: not among the passes of tools/src/kernels.rs", k.path)));
    }

    /// One line for the tiles that differ only in MR.
    fn tiles_table(&self) -> String {
        let mut text = String::from(
            "| ISA | tiles | NR | FMAs in the loop over k, % of its instructions, for MR = 1, 2, ... |\n|---|---|---:|---|\n",
        );
        for ((isa, group, nr), row) in &self.tiles {
            let shares: Vec<_> = row.values().map(|step| format!("{:.0}", step.share())).collect();
            text += &format!("| {isa} | {group} | {nr} | {} |\n", shares.join(" "));
        }
        text
    }

    /// The tallest tile of each width, and those with 24 accumulators.
    fn tall_tiles(&self) -> impl Iterator<Item = (Isa, &Step)> {
        self.tiles.iter().flat_map(|((isa, ..), row)| {
            let tallest = row.keys().next_back();
            let tall = row.iter().filter(move |(mr, step)| step.accumulators == 24 || Some(*mr) == tallest);
            tall.map(|(_, step)| (*isa, step))
        })
    }

    /// What the models of an ISA's CPUs say of its kernels that multiply or transform: of tiles, of the tall ones.
    fn models_tables(&self, program: &str) -> Result<String> {
        let mut text = String::new();
        let tall: BTreeSet<_> = self.tall_tiles().map(|(isa, step)| (isa, step.kernel.as_str())).collect();
        for (isa, cpus) in mca::MODELS {
            let is_shown = |name: &Name| {
                let (family, kernel) = name.path.split_once("::").and_then(|(_, path)| path.split_once("::"))?;
                let is_known = ["gemm", "pixel", "depthwise", "grouped", "winograd"].contains(&family);
                (is_known && (name.tile().is_none() || tall.contains(&(isa, kernel)))).then_some(())
            };
            let shown: Vec<_> =
                self.loops.iter().filter(|(name, _)| name.isa == isa && is_shown(name).is_some()).collect();
            if shown.is_empty() {
                continue;
            }
            let loops: Vec<_> = shown.iter().map(|(_, body)| *body).collect();
            let columns: Vec<_> =
                cpus.iter().map(|cpu| mca::estimates(program, isa, cpu, &loops)).collect::<Result<_>>()?;
            text += &format!("| {isa} | instructions | FMAs | {} |\n|---|---:|---:|", cpus.join(" | "));
            text += &format!("{}\n", "---|".repeat(cpus.len()));
            for (i, (name, body)) in shown.iter().enumerate() {
                text += &format!("| `{}` | {} | {} |", name.path, body.instructions.len(), body.fmas);
                for Estimate { cycles, share, bound } in columns.iter().map(|column| &column[i]) {
                    text += &format!(" {cycles:.1}, {:.0} %, {bound} |", 100.0 * share);
                }
                text += "\n";
            }
            text += "\n";
        }
        Ok(text)
    }

    /// NEON's tiles as kernels/README.md lists them.
    fn neon_table(&self) -> String {
        let mut text = String::from(
            "| kernel | instructions | multiply-adds | share | for each register loaded |\n|---|---:|---:|---:|---:|\n",
        );
        for (_, step) in self.tall_tiles().filter(|(isa, _)| *isa == Isa::Neon) {
            let Step { kernel, instructions, fmas, loaded, .. } = step;
            let (share, each) = (step.share(), *fmas as f64 / *loaded as f64);
            text += &format!("| `{kernel}` | {instructions} | {fmas} | {share:.0} % | {each:.1} |\n");
        }
        text
    }

    /// Reports a difference between the table of NEON's tiles and the table in a text.
    fn compare(&mut self, readme: &str) -> Result<()> {
        let (begin, end) = NEON_TABLE;
        let written = readme.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
        let (written, _) = written.context("kernels/README.md has no markers around the table of NEON's tiles")?;
        let found = self.neon_table();
        if written != found {
            self.problems.push(format!("the table of NEON's tiles in kernels/README.md must be:\n{found}"));
        }
        Ok(())
    }

    /// One line for each family.
    fn kernels_table(&self) -> String {
        let mut text = String::from(
            "| ISA | kernels | functions | inner loops | most vectors on the stack | scalars | calls |\n|---|---|---:|---:|---:|---:|---:|\n",
        );
        for ((isa, family), (functions, loops, Counts { vectors, scalars, calls, .. })) in &self.families {
            text += &format!("| {isa} | {family} | {functions} | {loops} | {vectors} | {scalars} | {calls} |\n");
        }
        text
    }

    /// One line for each kernel with exceptions.
    fn exceptions_table(&self) -> String {
        let mut text = String::from("| kernel | vectors on the stack | scalars | calls |\n|---|---:|---:|---:|\n");
        for (Name { isa, path }, Counts { vectors, scalars, calls, .. }) in &self.exceptions {
            text += &format!("| {isa}/{path} | {vectors} | {scalars} | {calls} |\n");
        }
        text
    }
}

/// The counts that the exceptions allow for a kernel: the highest of all entries that match it.
fn allowed(name: &Name) -> Counts {
    let all = EXCEPTIONS.iter().flat_map(|(_, exceptions)| *exceptions);
    let own = all.filter(|e| e.isa == name.isa && matches(e.kernels, &name.path));
    own.fold(Counts::default(), |most, e| {
        most.max(Counts { vectors: e.vectors, scalars: e.scalars, calls: e.calls, ..most })
    })
}

/// Whether `text` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text
            .strip_prefix(head)
            .is_some_and(|rest| rest.char_indices().any(|(i, _)| matches(tail, &rest[i..])) || matches(tail, "")),
    }
}

/// The paths at which the functions of the crate's tables are expected.
fn paths_of<T: Real>(isa: Isa) -> Vec<String> {
    let dtype = T::NAME;
    let tiles = if isa.is_available() { kernels::tiles(isa, None) } else { kernels::read_tiles(isa, README) };
    let mut paths = Vec::new();
    for tile in tiles.iter().filter(|tile| tile.dtype == dtype) {
        let path = format!("{}::{}", tile.op.module(), tile.name);
        paths.extend((tile.op == Op::Dw).then(|| format!("{path}_direct")));
        paths.push(path);
    }
    paths.extend(["gather", "scatter"].map(|pass| format!("depthwise::{pass}")));
    paths.extend((isa == Isa::Avx512).then(|| String::from("depthwise::threes")));
    paths.extend(["activate", "transpose", "interleave", "sum", "deinterleave"].map(|pass| format!("passes::{pass}")));
    // These are the same on every ISA.
    for kernel in winograd_kernels::<T>(Isa::Portable) {
        let (down, along) = (kernel.down(), kernel.along());
        let sizes = format!("{}, {}, {}, {}", down.values, along.values, down.outputs, along.outputs);
        paths.push(format!("winograd::split::<{}, {}>", along.values, along.outputs));
        paths.push(format!("winograd::input::<{}, {}>", down.values, along.values));
        paths.push(format!("winograd::input_pixels::<{}, {}, {}>", down.values, along.values, along.outputs));
        paths.push(format!("winograd::output::<{sizes}>"));
        let is_straight = isa == Isa::Avx512 && ["4, 4, 2, 2", "6, 4, 4, 2", "6, 6, 4, 4"].contains(&sizes.as_str());
        paths.extend(is_straight.then(|| format!("winograd::straight::<{sizes}>")));
    }
    for kernel in depthwise_transposed_kernels::<T>(Isa::Portable) {
        let (stride, (down, along)) = (kernel.stride(), kernel.kernel());
        paths.extend([0, 1].map(|odd| format!("passes::depthwise_transposed::<{stride}, {down}, {along}, {odd}>")));
    }
    paths.iter().map(|path| format!("{dtype}::{path}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(symbol: &str) -> Option<(Isa, String)> {
        Name::of_symbol(symbol).map(|name| (name.isa, name.path))
    }

    #[test]
    fn kernels_are_known_by_their_symbols() {
        let tile = "convoke_kernels::x86_64::avx512::of_f32::gemm::gemm::<8, 3>";
        let expected = Some((Isa::Avx512, String::from("f32::gemm::f32_gemm_8x48")));
        assert_eq!(name(tile), expected);
        assert_eq!(name(&format!("{tile} (.llvm.4636524461619941761)")), expected);
        let x86 = |kernel: &str| name(&format!("convoke_kernels::x86_64::avx512::of_f64::{kernel}")).unwrap().1;
        assert_eq!(x86("pixel::pixel_gemm::<14, 2>"), "f64::pixel::f64_pixel_gemm_14x16");
        assert_eq!(x86("narrow::dw_direct::<3>"), "f64::depthwise::f64_dw_3x4_direct");
        assert_eq!(x86("depthwise::dwt::<3>"), "f64::depthwise::f64_dwt_8x3");
        assert_eq!(x86("winograd::split::<6, 4>"), "f64::winograd::split::<6, 4>");
        let neon = |kernel: &str| name(&format!("convoke_kernels::aarch64::neon::{kernel}")).unwrap();
        assert_eq!(neon("of_f32::passes::sum::h0b66254eaa471833"), (Isa::Neon, String::from("f32::passes::sum")));
        assert_eq!(
            neon("of_f64::gemm::channel_gemm::<6, 2>"),
            (Isa::Neon, String::from("f64::gemm::f64_channel_gemm_8x6"))
        );
        let pass = "<pulp::x86::v3::V3>::vectorize::imp::<<pulp::x86::v3::V3 as pulp::Simd>::vectorize::Impl<\
                    convoke_kernels::stream::NarrowRows<half::bfloat::bf16>>>";
        assert_eq!(name(pass), Some((Isa::Avx2, String::from("stream::NarrowRows<bf16>"))));
        let pass = "convoke_kernels::aarch64::neon::pass::<convoke_kernels::stream::Widen<half::binary16::f16>>";
        assert_eq!(name(pass), Some((Isa::Neon, String::from("stream::Widen<f16>"))));
        assert_eq!(name("convoke_kernels::portable::of_f32::gemm::gemm::<4, 1>"), None);
        assert_eq!(name("convoke_kernels::x86_64::avx2::vector::F32x8::load"), None);
    }

    #[test]
    fn tiles_are_known_by_their_names() {
        let sizes = |isa, path: &str| {
            let name = Name { isa, path: String::from(path) };
            name.tile().map(|t| (t.mr, t.nr, t.accumulators))
        };
        assert_eq!(sizes(Isa::Avx512, "f32::gemm::f32_gemm_8x48"), Some((8, 48, 24)));
        assert_eq!(sizes(Isa::Avx512, "f64::gemm::f64_channel_gemm_16x14"), Some((14, 16, 28)));
        assert_eq!(sizes(Isa::Avx2, "f32::gemm::f32_gemm_6x16"), Some((6, 16, 12)));
        assert_eq!(sizes(Isa::Avx2, "f32::pixel::f32_pixel_gemm_6x16"), Some((6, 16, 12)));
        assert_eq!(sizes(Isa::Neon, "f64::gemm::f64_gemm_6x8"), Some((6, 8, 24)));
        assert_eq!(sizes(Isa::Avx2, "f32::depthwise::f32_dw_6x8"), None);
    }

    #[test]
    fn patterns() {
        assert!(matches("*::gemm::*_gemm_*", "f32::gemm::f32_gemm_8x48"));
        assert!(!matches("*::gemm::f32_gemm_*", "f32::gemm::f32_channel_gemm_48x8"));
        assert!(matches("a*", "a") && matches("*", "") && matches("a", "a"));
        assert!(!matches("a*b", "abc") && !matches("a", "ab"));
    }

    /// The problems that are found in a function with the name `symbol` and this loop.
    fn problems(symbol: &str, body: &[&str]) -> Vec<String> {
        let mut text = format!("a.o: file format elf64-x86-64\n\n0000000000000000 <{symbol}>:\n");
        let jump = ["inc\trax", "jne\t0x0 <f>"];
        for (i, instruction) in body.iter().chain(&jump).enumerate() {
            text += &format!("       {i:x}:      \t{instruction}\n");
        }
        let functions = assembly::parse(&text).unwrap();
        let mut report = DisasmReport::default();
        report.add(&Name::of_symbol(symbol).unwrap(), &functions[0]);
        report.problems
    }

    #[test]
    fn loops_over_k_hold_nothing_else() {
        let tile = "convoke_kernels::x86_64::avx512::of_f32::gemm::gemm::<2, 1>";
        let load = "vmovups\tzmm2, zmmword ptr [rdx]";
        let fmas = ["vfmadd231ps\tzmm0, zmm2, zmm3", "vfmadd231ps\tzmm1, zmm2, zmm4"];
        let with = |more: &[&str]| problems(tile, &[&[load, fmas[0], fmas[1]], more].concat());
        assert_eq!(with(&[]), [""; 0]);
        assert_eq!(with(&["prefetcht0\tbyte ptr [rcx + 0x40]", "add\trdx, 0x40", "cmp\trax, rdi"]), [""; 0]);
        assert!(with(&["vmovups\tzmm5, zmmword ptr [rsp + 0x40]"])[0].contains("uses the stack"));
        assert!(with(&["mov\trcx, qword ptr [rsp + 0x8]"])[0].contains("uses the stack"));
        assert!(with(&["vmovaps\tzmm5, zmm6"])[0].contains("holds more than"));
        assert!(with(&["vmovups\tzmmword ptr [rcx], zmm6"])[0].contains("holds more than"));
        assert!(with(&["call\t0x400 <g>"])[0].contains("holds more than"));
        assert_eq!(with(&["add\trdx, 0x40"; MOST_COUNTERS - 2]), [""; 0], "beside the loop's own two");
        assert!(with(&["add\trdx, 0x40"; MOST_COUNTERS - 1])[0].contains("7 counters and pointers in 1 steps of k"));
        assert!(with(&fmas[..1])[0].contains("3 FMAs, no multiple of 2"));
        assert!(problems(tile, &[load])[0].contains("no loop with FMAs"));
    }

    #[test]
    fn the_table_of_neon_is_compared() {
        let text = "a.o: file format elf64-littleaarch64\n\n\
                    0000000000000000 <convoke_kernels::aarch64::neon::of_f32::gemm::gemm::<2, 1>>:\n\
                    \x20      0:      \tldp\tq2, q3, [x8], #32\n\
                    \x20      4:      \tfmla\tv0.4s, v3.4s, v2.s[0]\n\
                    \x20      8:      \tfmla\tv1.4s, v3.4s, v2.s[1]\n\
                    \x20      c:      \tcbnz\tx12, 0x0 <f>\n";
        let functions = assembly::parse(text).unwrap();
        let mut report = DisasmReport::default();
        report.add(&Name::of_symbol(&functions[0].names[0]).unwrap(), &functions[0]);
        let (begin, end) = NEON_TABLE;
        let head =
            "| kernel | instructions | multiply-adds | share | for each register loaded |\n|---|---:|---:|---:|---:|\n";
        let table = format!("{head}| `f32_gemm_2x4` | 4 | 2 | 50 % | 1.0 |\n");
        report.compare(&format!("text\n{begin}{table}{end}\n")).unwrap();
        assert_eq!(report.problems, [""; 0]);
        report.compare(&format!("{begin}{}{end}", table.replace("50", "51"))).unwrap();
        assert!(report.problems[0].ends_with(&table), "{:?}", report.problems);
        assert!(report.compare(&table).is_err(), "no markers");
    }

    #[test]
    fn passes_are_listed_and_there() {
        let problems = |pass: &str| {
            let mut report = DisasmReport::default();
            report.kernels.insert(Name { isa: Isa::Neon, path: format!("stream::{pass}<f32>") });
            report.expect(Isa::Neon);
            report.problems.into_iter().filter(|problem| problem.contains("stream::")).collect::<Vec<_>>()
        };
        assert_eq!(problems("NarrowRows").len(), PASSES.len() - 1);
        assert_eq!(
            problems("Reverse").last().unwrap(),
            "neon/stream::Reverse<f32>: not among the passes of tools/src/kernels.rs"
        );
    }

    #[test]
    fn other_loops_have_their_exceptions_and_no_more() {
        let (spill, call) = ("vmovaps\tzmmword ptr [rsp + 0x20], zmm1", "call\t0x400 <g>");
        let sum = "convoke_kernels::x86_64::avx512::of_f32::passes::sum";
        assert_eq!(problems(sum, &["vaddps\tzmm0, zmm0, zmm1"]), [""; 0]);
        assert!(problems(sum, &[spill])[0].contains("has 1 vectors to or from the stack, 0 allowed"));
        assert!(problems(sum, &["vaddps\tzmm0, zmm0, zmm1", call])[0].contains("1 calls"));
        assert_eq!(problems(sum, &["mov\trcx, qword ptr [rsp + 0x8]"]), [""; 0], "a loop without vectors");
        let direct = "convoke_kernels::x86_64::avx512::of_f32::depthwise::dw_direct::<8>";
        let most = allowed(&Name::of_symbol(direct).unwrap()).vectors;
        assert!(most > 0);
        assert_eq!(problems(direct, &vec![spill; most]), [""; 0]);
        let problem = &problems(direct, &vec![spill; most + 1])[0];
        assert!(problem.contains(&format!("{} vectors to or from the stack, {most} allowed", most + 1)), "{problem}");
    }

    #[test]
    fn kernels_that_are_not_in_the_file_are_missed() {
        let mut report = DisasmReport::default();
        report.expect(Isa::Neon);
        for kernel in [
            "f32::gemm::f32_gemm_8x12",
            "f64::depthwise::f64_dw_4x4_direct",
            "f32::winograd::split::<8, 6>",
            "f64::passes::deinterleave",
        ] {
            assert!(report.problems.contains(&format!("neon/{kernel}: not in the file")), "{kernel}");
        }
    }
}

//! The constants of the cost model, in one table, and the formulas that several lowerings use.
//!
//! Costs are nanoseconds on one core; they only rank the candidates of a layer, so that their ratios matter, not their sizes. Measured on a
//! Zen 5 core with AVX-512, and taken for the other ISAs too, but for what [`PerIsa`] lists: where vectors matter, the constants are cycles of one, or of a
//! register.

use convoke_kernels::Isa;

use crate::machine::Caches;

/// What differs from ISA to ISA: cycles of a vector, and factors of what kernels take by their loads and multiply-adds.
pub(crate) struct PerIsa {
    /// To finish a vector of sums with channels along its lanes: transposed, and stored in short rows.
    pub(crate) transposed_store: f64,
    /// How much longer tiles with vectors along channels take: AVX2 has no multiply-adds with broadcasts from memory.
    pub(crate) channel_tiles: f64,
    /// How much longer direct kernels take on dense layers and on groups of several channels, and the kernels of several output channels: AVX2 has few registers for
    /// weights and rows.
    pub(crate) direct_dense: f64,
    pub(crate) direct_groups: f64,
    pub(crate) grouped: f64,
    /// Winograd: to copy a vector of padded elements into planes, to compute a vector of one of a tile's values from them, and to take one back.
    pub(crate) split: f64,
    pub(crate) input: f64,
    pub(crate) output: f64,
}

impl PerIsa {
    /// Of AVX-512. Without a machine to measure them on, NEON and the portable tier have the same.
    const WIDE: Self = Self {
        transposed_store: 6.0,
        channel_tiles: 1.0,
        direct_dense: 1.0,
        direct_groups: 1.0,
        grouped: 1.0,
        split: 4.0,
        input: 4.0,
        output: 3.9,
    };
    /// Of AVX2, on the same core. (In us, by the algorithm that AVX-512's figures pick and by the other one: 1x5 of 32 channels at 64x64 640 and 318, 5x1 516 and 310;
    /// 3x3, 32 groups of 256 at 56x56 1580 and 1100, of 128 380 and 290; 2 channels of each of 64 at 56x56 152 and 111; 256 to 128, 1x1 at 56x56 2260 and 2030.)
    const AVX2: Self = Self {
        transposed_store: 4.5,
        channel_tiles: 1.11,
        direct_dense: 1.1,
        direct_groups: 1.4,
        grouped: 1.1,
        split: 2.6,
        input: 2.6,
        output: 2.5,
    };

    pub(crate) fn of(isa: Isa) -> &'static Self {
        match isa {
            Isa::Avx2 => &Self::AVX2,
            _ => &Self::WIDE,
        }
    }
}

/// Cycles a nanosecond.
pub(crate) const CLOCK: f64 = 4.0;
/// Cycles that a task costs beside its arithmetic.
pub(crate) const TASK_CYCLES: f64 = 300.0;
/// Cycles to copy one element into a padded plane, edges and strides included.
pub(crate) const PLANE_CYCLES: f64 = 0.25;
/// Cycles to find where a row of a plane comes from.
pub(crate) const PLANE_ROW_CYCLES: f64 = 30.0;
/// How much longer arithmetic takes on shifted views, whose loads cross cache lines.
const SHIFTED_VIEWS: f64 = 1.04;
/// Cycles to pack one element of a panel of B.
pub(crate) const PACK_CYCLES: f64 = 0.1;
/// Cycles to keep a vector of sums in scratch memory between two blocks of K: a store and a load.
pub(crate) const SUM_CYCLES: f64 = 2.0;
/// Cycles to store a finished vector of sums into Y.
pub(crate) const STORE_CYCLES: f64 = 1.5;
/// Cycles to add a vector of sums to others, or to copy it.
pub(crate) const ADDED_CYCLES: f64 = 1.5;
/// How much longer tiles take whose sums are added to others', beside the phases' tiles. (2x2, stride 2, 256 to 128, 512 to 256 and 1024 to 512 channels took
/// 1.14, 1.17 and 1.13 times the estimate, by phases 1.10, 1.07 and 1.06.)
pub(crate) const ADDED_TILES: f64 = 1.08;
/// Cycles to interleave and store a vector of sums of several phases.
pub(crate) const WEAVE_CYCLES: f64 = 8.0;
/// Cycles for one product of a vector of sums without tiles: from planes that stay in the L1 cache, and from larger ones; and for
/// its way into Y.
pub(crate) const SUMMED_TAP_CYCLES: f64 = 0.7;
pub(crate) const SUMMED_FAR_CYCLES: f64 = 2.0;
pub(crate) const SUMMED_CYCLES: f64 = 8.0;
/// Cycles of depthwise ConvTranspose of stride 2 beside its multiply-adds: for each pair of vectors of a row of Y, and for each channel or band of it.
pub(crate) const UPSAMPLE_CYCLES: f64 = 3.0;
pub(crate) const UPSAMPLE_PLANE_CYCLES: f64 = 60.0;
/// Cycles of a call of a micro-kernel beside its steps.
pub(crate) const KERNEL_CALL_CYCLES: f64 = 40.0;
/// Cycles for a multiply-add of registers in the materialised lowerings, and nanoseconds for making or adding one element of their matrices.
pub(crate) const IM2COL_FMA_CYCLES: f64 = 1.28;
pub(crate) const IM2COL_ELEMENT: f64 = 0.5;
pub(crate) const COL2IM_FMA_CYCLES: f64 = 0.544;
pub(crate) const COL2IM_ELEMENT: f64 = 0.4;
/// Nanoseconds for a multiply-add of the naive loops.
pub(crate) const NAIVE_FMA: f64 = 4.0;
/// How much longer it takes to take back tiles whose outputs do not fill a vector's row of pixels (5 of F(4x5, 3x3) against 4: 1.8 and 1.5 cycles of the
/// 1.45 that both average; more where layers of few channels are wide: 32 at 112x112 424 and 450 us), and all transforms of 8x8 values, which leave the registers (F(6x6, 3x3): 1.65).
pub(crate) const RAGGED_OUTPUT: f64 = 1.4;
pub(crate) const WIDE_TRANSFORM: f64 = 1.65;
/// Cycles beside transforms for each channel of a block, and for each row of tiles that a vector of output channels is taken back for.
pub(crate) const TRANSFORM_CALL_CYCLES: f64 = 100.0;
/// Cycles to pick one element of a phase of a stride from a row, for tiles.
pub(crate) const PICK_CYCLES: f64 = 0.5;
/// Cycles to interleave a vector of pixels that are phases of ConvTranspose.
pub(crate) const PHASE_CYCLES: f64 = 4.0;
/// Cycles of a call of a GEMM kernel beside its steps.
pub(crate) const GEMM_CALL_CYCLES: f64 = 60.0;
/// Share of the L2 cache in which data stay beside what streams through; of twice that, nothing stays. And of the L3 cache, which keeps so much of
/// whatever exceeds it.
pub(crate) const L2_SHARE: f64 = 0.55;
const L3_SHARE: f64 = 0.75;
/// Bytes a cycle from the L2 cache, with prefetching.
pub(crate) const L2_BYTES_PER_CYCLE: f64 = 26.0;
/// How much longer than a plain stream filters take that are fetched ahead, a line or two with each step of k.
pub(crate) const FETCH_AHEAD: f64 = 1.5;
/// Share of the shorter of two things done at the same time, as arithmetic and fetching ahead, that the longer does not hide.
const NOT_HIDDEN: f64 = 0.17;
/// How much better an estimate must be whose packed weights exceed what the L3 cache keeps, where W does not: they come from memory, and drive out those of
/// other layers. (512 to 256 channels, 4x4, stride 2 at 8x8: Winograd with 27 MB of filters was estimated at 1.12 ms and takes 1.19, `channel_gemm` with
/// 8 MB at 1.17 and takes 1.14.)
const FAR_WEIGHTS: f64 = 1.08;
/// Cycles to move one element to or from a place that has no neighbours.
pub(crate) const SCATTER_CYCLES: f64 = 3.5;
/// How much longer the direct kernels take on dense layers that are copied than their arithmetic and loads (7x7 stride 2 from three channels: 1.63 ms, by implicit
/// GEMM 1.19).
pub(crate) const DIRECT_DENSE: f64 = 1.3;
/// How much longer the kernels of several output channels take than their parts, where planes of a stride are written for many channels of a group before
/// they are read (24 channels a group, 30x30: 100 GFLOP/s, by implicit GEMM 130; 14x14 70 and 95; 56x56 108 and 112).
pub(crate) const GROUPED_STRIDED: f64 = 1.16;
pub(crate) const GROUPED_STRIDED_CHANNELS: usize = 16;
/// Cycles of the direct kernels: to finish a vector of sums, for each unit of work, for each row that is copied; and to turn one position of a vector's
/// worth of channels into a vector, or back.
pub(crate) const DIRECT_FINISH_CYCLES: f64 = 3.0;
pub(crate) const DIRECT_UNIT_CYCLES: f64 = 60.0;
pub(crate) const ROW_COPY_CYCLES: f64 = 3.0;
pub(crate) const GATHER_CYCLES: f64 = 10.0;
/// Slots of loads that a vector of X takes whose shifts cross cache lines; and cycles to finish a vector of sums of the kernels of several output channels.
pub(crate) const GROUPED_LOADS: f64 = 1.9;
pub(crate) const GROUPED_FINISH_CYCLES: f64 = 2.0;
/// How much longer their tiles take at the borders of planes, where loads have masks.
pub(crate) const GROUPED_BORDER: f64 = 0.3;

/// [`SHIFTED_VIEWS`] in tiles of `mr` rows: the fewer rows share a load, the more that counts. `is_shifted` says that taps are shifts of one another's views, and that
/// there are more steps than stores hide. (Stride 2, 3x3, 64 to 128 channels at 80x80: 83 % of the peak, and with vectors along channels, which load no
/// views, 90 %; 64 to 64 at 75x75 80 and 87 %.)
pub(crate) fn shifted_views(mr: usize, is_shifted: bool) -> f64 {
    match mr {
        0..=2 => 2.5,
        3 | 4 => 1.3,
        _ if is_shifted => 1.1,
        _ => SHIFTED_VIEWS,
    }
}

/// The cycles of two things that are done at the same time, of which the longer does not hide all of the shorter.
pub(crate) fn overlapped(one: f64, other: f64) -> f64 {
    one.max(other) + NOT_HIDDEN * one.min(other)
}

/// Cycles to fetch `read` bytes of weights that take `all` bytes: none where the L2 cache keeps them.
pub(crate) fn fetch_weights(read: f64, all: f64) -> f64 {
    let is_resident = all <= Caches::detect().l2 as f64 * L2_SHARE;
    if is_resident { 0.0 } else { read * cycles_beyond_l2(all) }
}

/// Cycles to read a byte that the L2 cache does not have, of `resident` bytes that are used again and again: as much as the L3 cache keeps of them is there.
pub(crate) fn cycles_beyond_l2(resident: f64) -> f64 {
    let caches = Caches::detect();
    let kept = (caches.l3 as f64 * L3_SHARE / resident).min(1.0);
    kept / caches.l3_bytes_per_cycle as f64 + (1.0 - kept) / caches.memory_bytes_per_cycle as f64
}

/// What the cost of weights of `bytes` that take `packed` bytes is multiplied by: [`FAR_WEIGHTS`] where packing drives them out of the L3 cache.
pub(crate) fn far_weights(bytes: usize, packed: usize) -> f64 {
    let kept = Caches::detect().l3 as f64 * L3_SHARE;
    if packed as f64 > kept && bytes as f64 <= kept { FAR_WEIGHTS } else { 1.0 }
}

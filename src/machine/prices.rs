//! The prices of the cost model: one table, with a row for each instruction set.
//!
//! Estimates only rank the candidates of a layer, so that the ratios of prices matter and not
//! their sizes. They were measured on a Zen 5 core with AVX-512. The other rows differ where that
//! was measured too. Prices are cycles of a vector, of a register or of a call where their names
//! do not say otherwise.

use convoke_kernels::Isa;

/// What each kind of work costs with the kernels of one instruction set.
#[derive(Debug, PartialEq)]
pub(crate) struct Prices {
    /// Cycles that a task costs beside its arithmetic.
    pub(crate) task_cycles: f64,
    /// Cycles of a call of a micro-kernel beside its steps.
    pub(crate) kernel_call_cycles: f64,
    /// Cycles of a call of a kernel for the products of Winograd's values beside its steps.
    pub(crate) gemm_call_cycles: f64,
    /// Cycles of a step of k beside its multiply-adds and loads.
    pub(crate) step_cycles: f64,
    /// How many slots of loads a load takes, as not all slots can be filled.
    pub(crate) load_slots: f64,

    /// Cycles to copy one element into a padded plane, edges and strides included.
    pub(crate) plane_cycles: f64,
    /// Cycles to find where a row of a plane comes from.
    pub(crate) plane_row_cycles: f64,
    /// Cycles to pack one element of a panel of B.
    pub(crate) pack_cycles: f64,
    /// Cycles to move one element to or from a place that has no neighbours.
    pub(crate) scatter_cycles: f64,

    /// Cycles to keep a vector of sums in scratch memory between two blocks of K: a store and a
    /// load.
    pub(crate) sum_cycles: f64,
    /// Cycles to store a finished vector of sums into Y.
    pub(crate) store_cycles: f64,
    /// Cycles to finish a vector of sums with channels along its lanes: transposed, and stored in
    /// short rows.
    pub(crate) transposed_store_cycles: f64,
    /// Cycles to add a vector of sums to others, or to copy it.
    pub(crate) added_cycles: f64,
    /// Cycles to interleave and store a vector of sums of several phases.
    pub(crate) weave_cycles: f64,

    /// How much longer arithmetic takes on shifted views, whose loads cross cache lines: in tiles
    /// of up to 2 rows, of up to 4, and of more rows, of which the fewer share a load the more
    /// that counts.
    pub(crate) shifted_two_rows: f64,
    pub(crate) shifted_four_rows: f64,
    pub(crate) shifted_rows: f64,
    /// The same for more than 4 rows where taps are shifts of one another's views, and there are
    /// more steps than stores hide. (Stride 2, 3x3, 64 to 128 channels at 80x80: 83 % of the
    /// peak, and with vectors along channels, which load no views, 90 %; 64 to 64 at 75x75 80 and
    /// 87 %.)
    pub(crate) shifted_taps: f64,
    /// How much longer tiles with vectors along channels take: AVX2 has no multiply-adds with
    /// broadcasts from memory.
    pub(crate) channel_tiles: f64,
    /// How much longer tiles take whose sums are added to others', beside the phases' tiles.
    /// (2x2, stride 2, 256 to 128, 512 to 256 and 1024 to 512 channels took 1.14, 1.17 and 1.13
    /// times the estimate, by phases 1.10, 1.07 and 1.06.)
    pub(crate) added_tiles: f64,
    /// How much longer tiles take whose panel of B leaves the L1 cache. (6x64 instead of 14x32,
    /// 26x26: 197 instead of 212 GFLOP/s.)
    pub(crate) far_panel: f64,
    /// Of the time that a panel takes from the L2 cache, the share that a call with few pixels
    /// waits for. (Two rows of 4, 5 and 6 pixels at once: 1.3, 1.2 and 1.1 times as fast.)
    pub(crate) read_share: f64,
    /// Bytes a cycle that a panel of weights is fetched at ahead of its use. These are what the
    /// L3 cache of a Zen 5 core gives. It is a price, as all machines fetch alike until that is
    /// measured on others.
    pub(crate) panel_bytes_per_cycle: usize,

    /// Cycles for one product of a vector of sums without tiles: from planes that stay in the L1
    /// cache, and from larger ones; and for its way into Y.
    pub(crate) summed_tap_cycles: f64,
    pub(crate) summed_far_cycles: f64,
    pub(crate) summed_cycles: f64,
    /// Cycles of depthwise ConvTranspose of stride 2 beside its multiply-adds: for each pair of
    /// vectors of a row of Y, and for each channel or band of it.
    pub(crate) upsample_cycles: f64,
    pub(crate) upsample_plane_cycles: f64,

    /// Cycles of a multiply-add of registers in the materialised lowerings, and of making or
    /// adding one element of their matrices.
    pub(crate) im2col_fma_cycles: f64,
    pub(crate) im2col_element_cycles: f64,
    pub(crate) col2im_fma_cycles: f64,
    pub(crate) col2im_element_cycles: f64,
    /// Cycles of a multiply-add of the naive loops.
    pub(crate) naive_fma_cycles: f64,

    /// Cycles of Winograd's transforms: to copy a vector of padded elements into planes, to
    /// compute a vector of one of a tile's values from them, and to take one back.
    pub(crate) split_cycles: f64,
    pub(crate) input_cycles: f64,
    pub(crate) output_cycles: f64,
    /// How much longer it takes to take back tiles whose outputs do not fill a vector's row of
    /// pixels. (5 of F(4x5, 3x3) against 4: 1.8 and 1.5 cycles of the 1.45 that both average;
    /// more where layers of few channels are wide: 32 at 112x112 424 and 450 us.)
    pub(crate) ragged_output: f64,
    /// How much longer transforms of 8x8 values take, which leave the registers. (F(6x6, 3x3):
    /// 1.65.)
    pub(crate) wide_transform: f64,
    /// Cycles beside transforms for each channel of a block, and for each row of tiles that a
    /// vector of output channels is taken back for.
    pub(crate) transform_call_cycles: f64,
    /// Cycles to pick one element of a phase of a stride from a row, for tiles.
    pub(crate) pick_cycles: f64,
    /// Cycles to interleave a vector of pixels that are phases of ConvTranspose.
    pub(crate) phase_cycles: f64,
    /// Share of a task that threads wait for the last one.
    pub(crate) idle_share: f64,

    /// How much longer than a plain stream filters take that are fetched ahead, a line or two
    /// with each step of k.
    pub(crate) fetch_ahead: f64,
    /// Share of the shorter of two things done at the same time, as arithmetic and fetching
    /// ahead, that the longer does not hide.
    pub(crate) not_hidden: f64,
    /// Share of the L2 cache in which data stay beside what streams through; of twice that,
    /// nothing stays.
    pub(crate) l2_share: f64,
    /// Share of the L3 cache that it keeps of whatever exceeds it.
    pub(crate) l3_share: f64,
    /// How much better an estimate must be whose packed weights exceed what the L3 cache keeps,
    /// where W does not: they come from memory, and drive out those of other layers. (512 to 256
    /// channels, 4x4, stride 2 at 8x8: Winograd with 27 MB of filters was estimated at 1.12 ms
    /// and takes 1.19, `channel_gemm` with 8 MB at 1.17 and takes 1.14.)
    pub(crate) far_weights: f64,

    /// How much longer direct kernels take on dense layers and on groups of several channels:
    /// AVX2 has few registers for weights and rows.
    pub(crate) direct_dense: f64,
    pub(crate) direct_groups: f64,
    /// How much longer the direct kernels take on dense layers that are copied than their
    /// arithmetic and loads. (7x7 stride 2 from three channels: 1.63 ms, by implicit GEMM 1.19.)
    pub(crate) direct_copied_dense: f64,
    /// Slots of loads that a vector takes whose shifts cross cache lines, in direct kernels along
    /// rows.
    pub(crate) direct_loads: f64,
    /// Cycles that the sums of one row of a tile wait for one another at each product.
    pub(crate) direct_wait_cycles: f64,
    /// Cycles of the direct kernels: to finish a vector of sums, for each unit of work, for each
    /// row that is copied, and for each vector of it; and to turn one position of a vector's worth
    /// of channels into a vector, or back.
    pub(crate) direct_finish_cycles: f64,
    pub(crate) direct_unit_cycles: f64,
    pub(crate) row_copy_cycles: f64,
    pub(crate) vector_copy_cycles: f64,
    pub(crate) gather_cycles: f64,

    /// How much longer the kernels of several output channels take: AVX2 has few registers for
    /// weights and rows.
    pub(crate) grouped: f64,
    /// How much longer the kernels of several output channels take than their parts, where planes
    /// of a stride are written for many channels of a group before they are read, and from how
    /// many channels on. (24 channels a group, 30x30: 100 GFLOP/s, by implicit GEMM 130; 14x14 70
    /// and 95; 56x56 108 and 112.)
    pub(crate) grouped_strided: f64,
    pub(crate) grouped_strided_channels: usize,
    /// Slots of loads that a vector of X takes whose shifts cross cache lines; and cycles to
    /// finish a vector of sums of the kernels of several output channels.
    pub(crate) grouped_loads: f64,
    pub(crate) grouped_finish_cycles: f64,
    /// How much longer their tiles take at the borders of planes, where loads have masks.
    pub(crate) grouped_border: f64,
}

/// AVX-512: what was measured.
const AVX512: Prices = Prices {
    task_cycles: 300.0,
    kernel_call_cycles: 40.0,
    gemm_call_cycles: 60.0,
    step_cycles: 0.1,
    load_slots: 1.15,
    plane_cycles: 0.25,
    plane_row_cycles: 30.0,
    pack_cycles: 0.1,
    scatter_cycles: 3.5,
    sum_cycles: 2.0,
    store_cycles: 1.5,
    transposed_store_cycles: 6.0,
    added_cycles: 1.5,
    weave_cycles: 8.0,
    shifted_two_rows: 2.5,
    shifted_four_rows: 1.3,
    shifted_rows: 1.04,
    shifted_taps: 1.1,
    channel_tiles: 1.0,
    added_tiles: 1.08,
    far_panel: 1.06,
    read_share: 0.5,
    panel_bytes_per_cycle: 16,
    summed_tap_cycles: 0.7,
    summed_far_cycles: 2.0,
    summed_cycles: 8.0,
    upsample_cycles: 3.0,
    upsample_plane_cycles: 60.0,
    im2col_fma_cycles: 1.28,
    im2col_element_cycles: 2.0,
    col2im_fma_cycles: 0.544,
    col2im_element_cycles: 1.6,
    naive_fma_cycles: 16.0,
    split_cycles: 4.0,
    input_cycles: 4.0,
    output_cycles: 3.9,
    ragged_output: 1.4,
    wide_transform: 1.65,
    transform_call_cycles: 100.0,
    pick_cycles: 0.5,
    phase_cycles: 4.0,
    idle_share: 0.1,
    fetch_ahead: 1.5,
    not_hidden: 0.17,
    l2_share: 0.55,
    l3_share: 0.75,
    far_weights: 1.08,
    direct_dense: 1.0,
    direct_groups: 1.0,
    direct_copied_dense: 1.3,
    direct_loads: 1.7,
    direct_wait_cycles: 2.0,
    direct_finish_cycles: 3.0,
    direct_unit_cycles: 60.0,
    row_copy_cycles: 3.0,
    vector_copy_cycles: 2.0,
    gather_cycles: 10.0,
    grouped: 1.0,
    grouped_strided: 1.16,
    grouped_strided_channels: 16,
    grouped_loads: 1.9,
    grouped_finish_cycles: 2.0,
    grouped_border: 0.3,
};

/// AVX2, on the same core. (In us, by the algorithm that AVX-512's figures pick and by the other
/// one: 1x5 of 32 channels at 64x64 640 and 318, 5x1 516 and 310; 3x3, 32 groups of 256 at 56x56
/// 1580 and 1100, of 128 380 and 290; 2 channels of each of 64 at 56x56 152 and 111; 256 to 128,
/// 1x1 at 56x56 2260 and 2030.)
const AVX2: Prices = Prices {
    transposed_store_cycles: 4.5,
    channel_tiles: 1.11,
    direct_dense: 1.1,
    direct_groups: 1.4,
    grouped: 1.1,
    split_cycles: 2.6,
    input_cycles: 2.6,
    output_cycles: 2.5,
    ..AVX512
};

/// NEON: AVX-512's, as there was no machine to measure on.
const NEON: Prices = Prices { ..AVX512 };

/// The portable tier: AVX-512's, as it is whatever the compiler makes of it.
const PORTABLE: Prices = Prices { ..AVX512 };

/// The rows, in the order of [`Isa::ALL`]: an ISA without a row does not compile. (`Isa` is
/// another crate's and non-exhaustive, so that a `match` would ask for a default.)
static ROWS: [(Isa, Prices); Isa::ALL.len()] =
    [(Isa::Portable, PORTABLE), (Isa::Neon, NEON), (Isa::Avx2, AVX2), (Isa::Avx512, AVX512)];

const _: () = {
    let mut i = 0;
    while i < ROWS.len() {
        assert!(ROWS[i].0 as usize == Isa::ALL[i] as usize, "a row of prices for each ISA, in the order of Isa::ALL");
        i += 1;
    }
};

impl Prices {
    /// The row of an ISA.
    pub(super) fn of(isa: Isa) -> &'static Self {
        let row = ROWS.iter().find(|(of, _)| *of == isa);
        &row.expect("checked at compile time: each ISA has its row").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_isa_has_its_own_row() {
        for (isa, (of, prices)) in Isa::ALL.into_iter().zip(&ROWS) {
            assert_eq!(isa, *of);
            assert!(core::ptr::eq(Prices::of(isa), prices));
        }
        assert_ne!(Prices::of(Isa::Avx2), Prices::of(Isa::Avx512));
    }
}

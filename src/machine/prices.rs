//! The prices of the cost model: one table, with a row for each instruction set.
//!
//! Estimates only rank the algorithms for a layer, so the ratios of prices matter, not their
//! sizes. They were measured on a Zen 5 core with AVX-512. A row of another instruction set
//! differs only where that was measured too. `docs/journal/prices.md` has the measured cases.
//!
//! A price is in cycles if its name says so. The cycles are those of one vector, register,
//! element or call, as its comment says. A factor multiplies the time of something. Other units
//! are named.

use convoke_kernels::Isa;

/// What each kind of work costs with the kernels of one instruction set.
#[derive(Debug, PartialEq)]
pub(crate) struct Prices {
    /// Cycles of a task in addition to its arithmetic: a thread takes it from a queue, and its
    /// tables are looked up.
    pub(crate) task_cycles: f64,
    /// Cycles of a call of a micro-kernel in addition to its steps: arguments, checks of lengths,
    /// and the start of the pipeline.
    pub(crate) kernel_call_cycles: f64,
    /// Cycles of a step of K in addition to its multiply-adds and loads: its counter and its
    /// jump.
    pub(crate) step_cycles: f64,
    /// Slots of a load port that one load takes. It is more than 1 because no core fills all
    /// slots.
    pub(crate) load_slots: f64,

    /// Cycles to copy one element into a padded plane, edges and strides included.
    pub(crate) plane_cycles: f64,
    /// Cycles to find where a row of a plane comes from, for each row.
    pub(crate) plane_row_cycles: f64,
    /// Cycles to pack one element into a panel of B.
    pub(crate) pack_cycles: f64,
    /// Cycles to move one element to or from a place without neighbours, where no vector helps.
    pub(crate) scatter_cycles: f64,
    /// Cycles to move one element of a batch of images that is transposed, so that images are
    /// neighbours.
    pub(crate) image_element_cycles: f64,

    /// Cycles to keep a vector of sums in scratch between two blocks of K: one store and one
    /// load.
    pub(crate) sum_cycles: f64,
    /// Cycles to store a finished vector of sums into Y.
    pub(crate) store_cycles: f64,
    /// Cycles to finish a vector of sums along channels: it is transposed, and stored in short
    /// rows.
    pub(crate) transposed_store_cycles: f64,
    /// Cycles to add a vector of sums to another, or to copy it.
    pub(crate) accumulate_cycles: f64,
    /// Cycles to interleave a vector of sums with those of other phases, and to store it.
    pub(crate) interleave_cycles: f64,

    /// Factor on arithmetic over shifted views in tiles of up to 2 rows. Such loads cross cache
    /// lines, and few rows share each load.
    pub(crate) shifted_two_rows: f64,
    /// Factor of the same in tiles of 3 or 4 rows.
    pub(crate) shifted_four_rows: f64,
    /// Factor of the same in tiles of more rows.
    pub(crate) shifted_rows: f64,
    /// Factor of the same in tiles of more than 4 rows, where taps are shifts of one another's
    /// views and the steps are too many to hide behind stores.
    pub(crate) shifted_taps: f64,
    /// Factor on arithmetic in tiles along channels. It exceeds 1 for AVX2, which has no
    /// multiply-add with a broadcast from memory.
    pub(crate) channel_tiles: f64,
    /// Factor on arithmetic in tiles whose sums are added to sums in memory, relative to tiles by
    /// phases, which store once.
    pub(crate) accumulated_tiles: f64,
    /// Factor on arithmetic in tiles whose panel of B does not stay in the L1 cache.
    pub(crate) far_panel: f64,
    /// Bytes a cycle at which a panel of weights is prefetched. It is the rate of a
    /// Zen 5 core's L3 cache. It is a price and not a rate of the machine, because it was not
    /// measured on others.
    pub(crate) panel_bytes_per_cycle: usize,

    /// Cycles for one product of a vector of sums without tiles.
    pub(crate) summed_tap_cycles: f64,
    /// Cycles to bring such a vector of sums into Y.
    pub(crate) summed_cycles: f64,

    /// Cycles that the products of a tile of `transposed` must take for pairs of phases to be stored
    /// from registers. With fewer, what pairs cost is more than they save: panels have no more rows
    /// than one kernel, so that there are more tiles.
    pub(crate) paired_tile_cycles: f64,

    /// Cycles of a multiply-add of registers in `im2col`, loads included.
    pub(crate) im2col_fma_cycles: f64,
    /// Cycles to write one element of the im2col matrix.
    pub(crate) im2col_element_cycles: f64,
    /// Cycles of a multiply-add of registers in `col2im`, loads included.
    pub(crate) col2im_fma_cycles: f64,
    /// Cycles to add one element of the col2im matrix into Y.
    pub(crate) col2im_element_cycles: f64,
    /// Cycles of one multiply-add of the naive loops, which use no vectors.
    pub(crate) naive_fma_cycles: f64,

    /// Cycles of Winograd's transforms for a vector: of padded elements that are split into planes, of
    /// one of a tile's values, or of pixels that are interleaved.
    pub(crate) transform_cycles: f64,
    /// Factor on transforms back where the outputs of tiles do not fill a vector's row of pixels.
    pub(crate) ragged_output: f64,
    /// Factor on transforms of 8x8 values, which do not fit the registers.
    pub(crate) wide_transform: f64,
    /// Cycles of a call of a transform in addition to its vectors: for each channel of a block,
    /// and for each row of tiles of a vector of output channels.
    pub(crate) transform_call_cycles: f64,
    /// Cycles of Winograd to take one element of a stride's phase from a row.
    pub(crate) deinterleave_cycles: f64,
    /// Share of a task's time that threads wait for the last of them.
    pub(crate) idle_share: f64,

    /// Factor on reading filters that are prefetched, a line or two with each step of K,
    /// relative to a plain stream.
    pub(crate) prefetched_filters: f64,
    /// Share of the shorter of two things done at the same time, such as arithmetic and prefetching,
    /// that the longer does not hide.
    pub(crate) not_hidden: f64,
    /// Share of the L2 cache in which data stay while other data stream through. Nothing stays of
    /// data that take twice that.
    pub(crate) l2_share: f64,
    /// Share of the L3 cache that keeps data which exceed it.
    pub(crate) l3_share: f64,
    /// Factor on estimates whose packed weights exceed what the L3 cache keeps, where W does not
    /// exceed it: they come from memory, and push other layers' weights out.
    pub(crate) far_weights: f64,

    /// Factor on the sums of `depthwise` for groups of several channels. It is greater for AVX2, which
    /// has few registers for weights and rows.
    pub(crate) direct_groups: f64,
    /// Cycles of direct kernels to turn one position of a vector's worth of channels into a
    /// vector, or back.
    pub(crate) gather_cycles: f64,

    /// Factor, less 1, on the tiles of `grouped` at the borders of planes, where loads have
    /// masks.
    pub(crate) grouped_border: f64,
}

/// AVX-512: measured on Zen 5.
const AVX512: Prices = Prices {
    task_cycles: 300.0,
    kernel_call_cycles: 40.0,
    step_cycles: 0.1,
    load_slots: 1.15,
    plane_cycles: 0.25,
    plane_row_cycles: 30.0,
    pack_cycles: 0.1,
    scatter_cycles: 3.5,
    image_element_cycles: 1.0,
    sum_cycles: 2.0,
    store_cycles: 1.5,
    transposed_store_cycles: 6.0,
    accumulate_cycles: 1.5,
    interleave_cycles: 8.0,
    shifted_two_rows: 2.5,
    shifted_four_rows: 1.3,
    shifted_rows: 1.04,
    shifted_taps: 1.1,
    channel_tiles: 1.0,
    accumulated_tiles: 1.08,
    far_panel: 1.06,
    panel_bytes_per_cycle: 16,
    summed_tap_cycles: 0.7,
    summed_cycles: 8.0,
    paired_tile_cycles: 600.0,
    im2col_fma_cycles: 1.28,
    im2col_element_cycles: 2.0,
    col2im_fma_cycles: 0.544,
    col2im_element_cycles: 1.6,
    naive_fma_cycles: 16.0,
    transform_cycles: 4.0,
    ragged_output: 1.4,
    wide_transform: 1.65,
    transform_call_cycles: 100.0,
    deinterleave_cycles: 0.5,
    idle_share: 0.1,
    prefetched_filters: 1.5,
    not_hidden: 0.17,
    l2_share: 0.55,
    l3_share: 0.75,
    far_weights: 1.08,
    gather_cycles: 6.0,
    direct_groups: 1.2,
    grouped_border: 0.3,
};

/// AVX2, measured on the same core. The prices that differ change which algorithm is picked for
/// grouped layers, for kernels on one axis and for 1x1 kernels.
const AVX2: Prices =
    Prices { transposed_store_cycles: 4.5, channel_tiles: 1.11, direct_groups: 1.5, transform_cycles: 2.6, ..AVX512 };

/// NEON has AVX-512's prices, because there was no machine to measure on.
const NEON: Prices = Prices { ..AVX512 };

/// The portable tier has AVX-512's prices, because its speed depends on what the compiler makes
/// of it.
const PORTABLE: Prices = Prices { ..AVX512 };

/// The rows, in the order of [`Isa::ALL`]. An ISA without a row does not compile. A `match` could
/// not ensure that: `Isa` is a non-exhaustive type of another crate and would need a default arm.
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

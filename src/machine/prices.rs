//! The prices of the cost model: what the steps of all lowerings cost beside the arithmetic that
//! [`Machine`](super::Machine) derives from its ports, latencies and caches.
//!
//! Estimates only rank the algorithms for a layer, so the ratios of prices matter, not their
//! sizes. One price serves all instruction sets and CPUs. `docs/journal/prices.md` says how they
//! were found, and how well they pick.

/// What an item counts as, for those who read a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Multiply-adds and their loads.
    Arithmetic,
    /// Copies of X: planes, panels, transforms.
    Copies,
    /// Sums on their way into Y.
    Stores,
    /// Tasks, and calls of kernels.
    Calls,
    /// Waiting for bytes from beyond the L2 cache.
    Fetches,
}

/// Something that lowerings do and that has a price: its kind, and the cycles that one of it takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item(pub(super) Kind, pub(super) f64);

/// What lowerings count, and the cycles that one of it takes.
impl Item {
    /// Cycles of arithmetic, as [`Machine::tile_cycles`](super::Machine::tile_cycles) and similar
    /// estimates count them.
    pub(crate) const ARITHMETIC_CYCLES: Self = Self(Kind::Arithmetic, 1.0);
    /// Multiply-adds of registers in `im2col` and `col2im`, loads included.
    pub(crate) const BLAS_FMAS: Self = Self(Kind::Arithmetic, 0.75);
    /// Multiply-adds of the naive loops, which use no vectors.
    pub(crate) const NAIVE_FMAS: Self = Self(Kind::Arithmetic, 16.0);

    /// Tasks: a thread takes them from a queue, and their tables are looked up.
    pub(crate) const TASKS: Self = Self(Kind::Calls, 300.0);
    /// Calls of micro-kernels: arguments, checks of lengths, and the start of the pipeline.
    pub(crate) const KERNEL_CALLS: Self = Self(Kind::Calls, 10.0);
    /// Calls for the products of a value of Winograd's tiles: tiles and filters of each value are
    /// elsewhere.
    pub(crate) const VALUE_CALLS: Self = Self(Kind::Calls, 15.0);
    /// Calls of `depthwise` that copy a unit's input into planes, and that transpose it.
    pub(crate) const UNIT_COPY_CALLS: Self = Self(Kind::Calls, 20.0);
    pub(crate) const UNIT_GATHER_CALLS: Self = Self(Kind::Calls, 60.0);
    /// Calls of Winograd's transforms: for each channel of a block, and for each row of tiles and
    /// vector of output channels.
    pub(crate) const TRANSFORM_CALLS: Self = Self(Kind::Calls, 100.0);

    /// Elements of rows that are copied, into padded planes and panels of B.
    pub(crate) const COPIED_ELEMENTS: Self = Self(Kind::Copies, 0.4);
    /// Elements that are moved one at a time.
    pub(crate) const SCATTERED_ELEMENTS: Self = Self(Kind::Copies, 2.5);
    /// Elements of the im2col matrix.
    pub(crate) const IM2COL_ELEMENTS: Self = Self(Kind::Copies, 1.5);
    /// Elements of the col2im matrix, which are added into Y.
    pub(crate) const COL2IM_ELEMENTS: Self = Self(Kind::Stores, Self::IM2COL_ELEMENTS.1);

    /// Vectors of sums that are stored, into Y or into scratch between two blocks of K.
    pub(crate) const STORED_VECTORS: Self = Self(Kind::Stores, 0.4);
    /// Vectors of sums that are added to others in memory.
    pub(crate) const ACCUMULATED_VECTORS: Self = Self(Kind::Stores, 2.0);
    /// Vectors of sums that are transposed, or interleaved with those of other phases, and stored in
    /// short rows.
    pub(crate) const TRANSPOSED_VECTORS: Self = Self(Kind::Stores, 13.0);
    /// Vectors with channels along their lanes: made from X by direct kernels, and taken apart into Y.
    pub(crate) const GATHERED_VECTORS: Self = Self(Kind::Copies, 6.0);
    pub(crate) const SPREAD_VECTORS: Self = Self(Kind::Stores, Self::GATHERED_VECTORS.1);

    /// Vectors of Winograd's transforms on the way from X: of padded elements that are split into
    /// planes, and of the values of tiles.
    pub(crate) const INPUT_TRANSFORMS: Self = Self(Kind::Copies, 2.5);
    /// Vectors of Winograd's transforms on the way into Y: of the values of tiles, and of pixels that
    /// are interleaved.
    pub(crate) const OUTPUT_TRANSFORMS: Self = Self(Kind::Stores, 5.0);
}

/// Cycles of a step of k in addition to its multiply-adds and loads: its counter and its jump.
pub(super) const STEP_CYCLES: f64 = 0.1;
/// Slots of a load port that one load takes. It is more than 1 because no core fills all slots.
pub(super) const LOAD_SLOTS: f64 = 1.15;
/// Share of the shorter of two things done at the same time, such as arithmetic and prefetching,
/// that the longer does not hide.
pub(super) const NOT_HIDDEN: f64 = 0.5;
/// Share of the L2 cache in which data stay while other data stream through. Nothing stays of data
/// that take twice that.
pub(super) const L2_SHARE: f64 = 0.5;
/// Factor on reading filters that are prefetched, a line or two with each step of k, relative to a
/// plain stream.
pub(crate) const PREFETCH: f64 = 1.5;
/// Factor on transforms back where the outputs of tiles do not fill a vector's row of pixels.
pub(crate) const RAGGED_OUTPUT: f64 = 1.4;
/// Factor on transforms of 8x8 values, which do not fit the registers.
pub(crate) const WIDE_TRANSFORM: f64 = 1.3;
/// Factor on the sums of `depthwise` for groups of several channels, because weights and rows
/// compete for registers.
pub(crate) const DIRECT_GROUPS: f64 = 1.5;
/// Factor, less 1, on the tiles of `grouped` at the borders of planes, where loads have masks.
pub(crate) const GROUPED_BORDER: f64 = 0.3;
/// Cycles that the products of a tile of `transposed` must take for pairs of phases to be stored
/// from registers. With fewer, what pairs cost is more than they save: panels have no more rows
/// than one kernel, so that there are more tiles.
pub(crate) const PAIRED_TILE_CYCLES: f64 = 600.0;

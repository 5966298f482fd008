//! The prices of the cost model: what the steps of all lowerings cost beside the arithmetic that
//! [`Machine`](super::Machine) derives from its ports, latencies and caches.
//!
//! Estimates only rank the algorithms for a layer, so the ratios of prices matter, not their
//! sizes. One price serves all instruction sets and CPUs. `docs/journal/prices.md` says how they
//! were found, and how well they pick.
//!
//! A price is in cycles if its name says so. The cycles are those of one vector, register,
//! element or call, as its comment says. A factor multiplies the time of something.

/// Cycles of a task in addition to its arithmetic: a thread takes it from a queue, and its tables
/// are looked up.
pub(super) const TASK_CYCLES: f64 = 300.0;
/// Cycles of a call of a micro-kernel in addition to its steps: arguments, checks of lengths, and
/// the start of the pipeline.
pub(super) const KERNEL_CALL_CYCLES: f64 = 10.0;
/// Cycles of a step of k in addition to its multiply-adds and loads: its counter and its jump.
pub(super) const STEP_CYCLES: f64 = 0.1;
/// Slots of a load port that one load takes. It is more than 1 because no core fills all slots.
pub(super) const LOAD_SLOTS: f64 = 1.15;

/// Cycles to copy one element of a row, into a padded plane or a panel of B.
pub(super) const COPIED_CYCLES: f64 = 0.4;
/// Cycles to move one element to or from a place without neighbours, where no vector helps.
pub(super) const SCATTERED_CYCLES: f64 = 2.5;
/// Cycles to write one element of the im2col matrix, or to add one of the col2im matrix into Y.
pub(super) const MATRIX_CYCLES: f64 = 1.5;
/// Cycles to store a vector of sums: into Y, or into scratch between two blocks of K.
pub(super) const STORE_CYCLES: f64 = 0.4;
/// Cycles to add a vector of sums to another one in memory.
pub(super) const ACCUMULATE_CYCLES: f64 = 2.0;
/// Cycles to transpose or interleave a vector, and to store it in short rows.
pub(super) const TRANSPOSED_CYCLES: f64 = 10.0;

/// Cycles of a multiply-add of registers in `im2col` and `col2im`, loads included.
pub(super) const BLAS_FMA_CYCLES: f64 = 0.75;
/// Cycles of one multiply-add of the naive loops, which use no vectors.
pub(super) const NAIVE_FMA_CYCLES: f64 = 16.0;

/// Cycles of Winograd's transforms for a vector on the way from X: of padded elements that are split
/// into planes, or of one of a tile's values.
pub(super) const INPUT_TRANSFORM_CYCLES: f64 = 2.5;
/// Cycles of Winograd's transforms for a vector on the way into Y: of one of a tile's values, or of
/// pixels that are interleaved.
pub(super) const OUTPUT_TRANSFORM_CYCLES: f64 = 5.0;
/// Factor on transforms back where the outputs of tiles do not fill a vector's row of pixels.
pub(crate) const RAGGED_OUTPUT: f64 = 1.4;
/// Factor on transforms of 8x8 values, which do not fit the registers.
pub(crate) const WIDE_TRANSFORM: f64 = 1.3;
/// Cycles of a call of a transform in addition to its vectors: for each channel of a block, and for
/// each row of tiles of a vector of output channels.
pub(super) const TRANSFORM_CALL_CYCLES: f64 = 100.0;

/// Factor on reading filters that are prefetched, a line or two with each step of k, relative to a
/// plain stream.
pub(crate) const PREFETCH: f64 = 1.5;
/// Share of the shorter of two things done at the same time, such as arithmetic and prefetching,
/// that the longer does not hide.
pub(super) const NOT_HIDDEN: f64 = 0.5;
/// Share of the L2 cache in which data stay while other data stream through. Nothing stays of data
/// that take twice that.
pub(super) const L2_SHARE: f64 = 0.5;
/// Factor on the sums of `depthwise` for groups of several channels, because weights and rows
/// compete for registers.
pub(crate) const DIRECT_GROUPS: f64 = 1.5;
/// Factor, less 1, on the tiles of `grouped` at the borders of planes, where loads have masks.
pub(crate) const GROUPED_BORDER: f64 = 0.3;
/// Cycles that the products of a tile of `transposed` must take for pairs of phases to be stored
/// from registers. With fewer, what pairs cost is more than they save: panels have no more rows
/// than one kernel, so that there are more tiles.
pub(crate) const PAIRED_TILE_CYCLES: f64 = 600.0;

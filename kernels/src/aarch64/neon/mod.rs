//! The kernels for NEON, the Advanced SIMD of AArch64, which has 32 registers. A vector of `f64` is two
//! of them.
//!
//! * A GEMM tile takes `MR * NRV` accumulators, the smaller of NRV vectors and the scalars of MR rows,
//!   four of which fit in a register (two of `f64`), and one register more, or two: of `f32` 14x2 (MR x
//!   NRV) takes 31, 9x3 31, 6x4 29, 4x6 26, 3x8 26 and 2x12 26; of `f64` 12x1 takes 27, 6x2 29, 4x3 31,
//!   3x4 28 and 2x6 27. Multiply-adds take one lane of the scalars, so that a tile of 8x3 loads 5
//!   registers for 24 multiply-adds.
//! * A tile of `group` also holds the masks of its vectors: of `f32` 4x5 takes 31, 6x3 26 and 8x2 22; of
//!   `f64` 4x2 takes 26, 3x2 22 and 6x1 19. Tiles of 2 and 3 rows load and multiply one vector at a
//!   time: the sums and masks of 2x8, and two registers more, are 26.
//! * A depthwise tile takes R sums, the R + N - 1 rows of a column of N taps, and a weight: 6 rows and 7
//!   taps take 19, and 4 rows of `f64` 30. Three columns of three taps take nine weights, 6 sums and 3
//!   rows. With 8 rows LLVM moves some of them to memory.
//! * A `pixel_dw` tile takes, tap by tap, 14 sums, the two weights of a tap, and two registers for each of
//!   two pixels: 20 for 7x2 of `f32` (MR x NRV) and 7x1 of `f64`. Where the taps of a row share columns, it
//!   takes MR sums, up to 5 weights and one column: 13 of `f32` with 7 pixels, and 26 of `f64`.
//! * The transforms of Winograd hold two rows of values (up to 16 vectors) and a column of the tile (up
//!   to 8). Larger tiles of `f64` keep a part of these in the L1 cache.
//! * Interleaving holds 8 phases; the results of a round of zips take the place of their operands.
//! * Depthwise transposed convolution by 5x5 of `f32` holds seven registers of weights, three rows of three
//!   vectors, two sums, bias and bounds: 21. That of `f64` reads the weights from memory. The coefficients
//!   of the exponential take at most 22, which both registers of a vector share.

pub(crate) mod convert;
mod vector;

crate::generic::kernels! {
    mod of_f32: crate::Isa::Neon, #[target_feature(enable = "neon")], f32 in F32x4;
    gemm: 4 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 8 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
        12 x [1 2 3 4 5 6 7 8 9], 16 x [1 2 3 4 5 6], 24 x [1 2 3 4], 32 x [1 2 3], 48 x [1 2];
    channel_gemm: 4 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 8 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    pixel_gemm: 4 x [1 2 3 4 5 6 7 8 9], 8 x [1 2 3 4 5 6 7 8 9];
    pixel_dw: 8 x [1 2 3 4 5 6 7];
    dw: 4 x [1 2 3 4 5 6];
    dwt: 4 x [1 2 3 4 5 6];
    group: 4 x [8], 8 x [6 8], 12 x [6], 16 x [2 3 4], 20 x [4], 24 x [3], 32 x [2];
}

crate::generic::kernels! {
    mod of_f64: crate::Isa::Neon, #[target_feature(enable = "neon")], f64 in F64x4;
    gemm: 4 x [1 2 3 4 5 6 7 8 9 10 11 12], 8 x [1 2 3 4 5 6], 12 x [1 2 3 4], 16 x [1 2 3], 24 x [1 2];
    channel_gemm: 4 x [1 2 3 4 5 6], 8 x [1 2 3 4 5 6];
    pixel_gemm: 4 x [1 2 3 4 5], 8 x [1 2 3 4 5];
    pixel_dw: 4 x [1 2 3 4 5 6 7];
    dw: 4 x [1 2 3 4];
    dwt: 4 x [1 2 3 4];
    group: 4 x [3 4 6], 8 x [2 3 4], 12 x [2];
}

crate::generic::dot::kernels! {
    mod of_pairs: crate::Isa::Neon, #[target_feature(enable = "neon")], Pairs in Pairs4, split 4;
    "i16": 4 x [1 2 3 4 5 6 7 8 9], 8 x [1 2 3 4 5 6 7 8 9];
    dw: 8 x [1 2 3 4 5 6 7];
}

/// Runs a streaming pass. Every target that this module is compiled for has NEON. The function is
/// not inlined, as the passes of other ISAs are not, so that `disasm` finds its loops.
#[inline(never)]
pub(crate) fn pass(pass: impl pulp::WithSimd<Output = ()>) {
    pass.with_simd(pulp::Scalar);
}

/// As [`look_up_rows`](crate::dot::look_up_rows).
///
/// # Safety
/// Memory: as `look_up_rows` states.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn look_up(table: &[u8; 256], p: *mut u8, (rows, len, ld): (usize, usize, usize)) {
    use core::arch::aarch64::*;

    // SAFETY: the quarters of the table, and the caller's promise.
    unsafe {
        let table_of = table.as_ptr();
        let (a, b) = (vld1q_u8_x4(table_of), vld1q_u8_x4(table_of.add(64)));
        let (c, d) = (vld1q_u8_x4(table_of.add(128)), vld1q_u8_x4(table_of.add(192)));
        for row in 0..rows {
            let p = p.add(row * ld);
            for column in (0..len / 16 * 16).step_by(16) {
                let places = vld1q_u8(p.add(column));
                // Places beyond a quarter leave what another quarter has found.
                let mut found = vqtbl4q_u8(a, places);
                found = vqtbx4q_u8(found, b, vsubq_u8(places, vdupq_n_u8(64)));
                found = vqtbx4q_u8(found, c, vsubq_u8(places, vdupq_n_u8(128)));
                found = vqtbx4q_u8(found, d, vsubq_u8(places, vdupq_n_u8(192)));
                vst1q_u8(p.add(column), found);
            }
            crate::generic::dot::look_up(table, p, len / 16 * 16..len);
        }
    }
}

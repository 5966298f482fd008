//! The kernels for AVX2 and FMA, which have 16 ymm registers.
//!
//! * A GEMM tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//!   register more: 6x2 (MR x NRV) takes 15, 3x3 13, 2x4 11 and 2x6 15. 4x3 would take 16, and LLVM
//!   spills it. A tile of `group` takes as many; it reads the masks of a column from memory.
//! * A depthwise tile takes R sums, the N weights of a column, and one row: 6 rows and 7 taps take 14.
//!   With stride 2 it takes R sums, the weights of two columns, two vectors before and after their
//!   split, and the permutations: 4 rows and 3 taps take 16.
//! * A `pixel_dw` tile takes, tap by tap, `MR * NRV` sums and the NRV weights of a tap: 7x2 (MR x NRV) takes
//!   all 16. X is an operand in memory. Where the taps of a row share columns, it takes MR sums, up to 5
//!   weights and one column: 13 with 7 pixels.
//! * The input transform of Winograd holds two rows of values (up to 16) and a column of the tile (up
//!   to 8), so that larger tiles keep a part of these in the L1 cache. So does the output transform.
//! * Interleaving holds 8 phases; the results of a round of zips take the place of their operands.
//! * Depthwise transposed convolution holds up to three rows of three vectors, two sums, bias, bounds and
//!   one weight: 15. Only 2x2 holds its weights in registers. Activations read their coefficients from
//!   memory.

/// AVX-512 uses these vectors too, in its kernels for narrow rows.
pub(crate) mod vector;

#[cfg(feature = "avx2")]
crate::generic::kernels! {
    mod of_f32: crate::Isa::Avx2, #[target_feature(enable = "avx2,fma")], f32 in F32x8;
    gemm: 8 x [1 2 3 4 5 6], 16 x [1 2 3 4 5 6], 24 x [1 2 3], 32 x [1 2], 48 x [1 2];
    channel_gemm: 8 x [1 2 3 4 5 6], 16 x [1 2 3 4 5 6];
    pixel_gemm: 8 x [1 2 3 4 5 6], 16 x [1 2 3 4 5 6];
    pixel_dw: 16 x [1 2 3 4 5 6 7];
    dw: 8 x [1 2 3 4 5 6];
    dwt: 8 x [1 2 3 4 5 6];
    group: 8 x [4 5 6], 16 x [3 4 5 6], 24 x [2 3], 32 x [2];
}

#[cfg(feature = "avx2")]
crate::generic::kernels! {
    mod of_f64: crate::Isa::Avx2, #[target_feature(enable = "avx2,fma")], f64 in F64x4;
    gemm: 4 x [1 2 3 4 5 6], 8 x [1 2 3 4 5 6], 12 x [1 2 3], 16 x [1 2], 24 x [1 2];
    channel_gemm: 4 x [1 2 3 4 5 6], 8 x [1 2 3 4 5 6];
    pixel_gemm: 4 x [1 2 3 4 5 6], 8 x [1 2 3 4 5 6];
    pixel_dw: 8 x [1 2 3 4 5 6 7];
    dw: 4 x [1 2 3 4 5 6];
    dwt: 4 x [1 2 3 4 5 6];
    group: 4 x [4 5 6], 8 x [3 4 5 6], 12 x [2 3], 16 x [2];
}

#[cfg(feature = "avx2")]
crate::generic::dot::kernels! {
    mod of_pairs: crate::Isa::Avx2, #[target_feature(enable = "avx2,fma")], Pairs in Pairs8;
    "i16": 8 x [1 2 3 4 5 6], 16 x [1 2 3 4 5 6];
    dw: 16 x [1 2 3 4 5 6 7];
}

#[cfg(feature = "avx2")]
crate::generic::dot::kernels! {
    mod of_bytes: crate::Isa::Avx2, #[target_feature(enable = "avx2,avxvnni,fma")], Bytes in Bytes8;
    "u8": 8 x [1 2 3 4 5 6], 16 x [1 2 3 4 5 6];
    dw: 16 x [1 2 3 4 5 6 7];
}

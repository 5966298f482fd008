//! The kernels for any target, by the vectors of the `wide` crate.
//!
//! Tiles are sized for the 16 xmm registers of x86-64's baseline, where a vector is two registers. A GEMM
//! tile of 3x1 (MR x NR in vectors) takes 6 registers of accumulators, 2 of B and those of a broadcast, and
//! a direct tile of 4x1 as many of sums, as does one of `pixel_dw`. What does not fit beside a tile's sums is
//! read again from memory: the rows of depthwise tiles, the weights of a row of `pixel_dw`'s taps, Winograd's
//! values, eight interleaved phases, and the coefficients of the exponential.

mod vector;

crate::generic::kernels! {
    mod of_f32: crate::Isa::Portable, #[inline(never)], f32 in F32x8;
    gemm: 8 x [1 2 3 4], 16 x [1 2];
    channel_gemm: 8 x [1 2 3 4];
    pixel_gemm: 8 x [1 2 3 4];
    pixel_dw: 8 x [1 2 3 4];
    dw: 8 x [1 2 3];
    dwt: 8 x [1 2 3];
    group: 8 x [2 3 4], 16 x [2];
}

crate::generic::kernels! {
    mod of_f64: crate::Isa::Portable, #[inline(never)], f64 in F64x4;
    gemm: 4 x [1 2 3 4], 8 x [1 2];
    channel_gemm: 4 x [1 2 3 4];
    pixel_gemm: 4 x [1 2 3 4];
    pixel_dw: 4 x [1 2 3 4];
    dw: 4 x [1 2 3];
    dwt: 4 x [1 2 3];
    group: 4 x [2 3 4], 8 x [2];
}

crate::generic::dot::kernels! {
    mod of_pairs: crate::Isa::Portable, #[inline(never)], Pairs in Pairs8;
    "i16": 8 x [1 2 3 4];
    dw: 8 x [1 2 3 4];
}

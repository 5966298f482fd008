//! The kernels for AVX-512 F, VL, BW, CD and DQ, which have 32 zmm registers.
//!
//! * A GEMM tile takes `MR * NRV` accumulators, the smaller of MR broadcasts and NRV vectors, and one
//!   register more: 14x2 (MR x NRV) takes 31, 9x3 31, 6x4 29, 4x6 29, 3x8 28 and 2x12 27. A tile of
//!   `group` takes as many. The masks of its columns are in mask registers. There are 7 of these, so
//!   that NRV is at most 7.
//! * A tile of `pixel_gemm` takes as many vectors. Its MR pixels have an address each: 14 of these, the
//!   weights' address and the counter leave no general register.
//! * A depthwise tile takes R sums, the N weights of a column, one row, bias and bounds: 14 rows and 7
//!   taps take 25. With stride 2 it takes R <= 8 sums, the weights of two columns, two vectors before
//!   and after their split, and the permutations: 24 with 5 taps. With fewer than 8 sums, multiply-adds
//!   would wait for one another. Row by row it takes R sums, 9 weights and three vectors of a row: 26
//!   with 14 rows. Only `f32` has tiles of more than 8 rows, because each height is code of its own.
//!   There are `dw` tiles with half as long vectors, for rows that fit in them.
//! * A `pixel_dw` tile takes, tap by tap, `MR * NRV` sums and the NRV weights of a tap: 8x2 (MR x NRV) takes
//!   18. Where the taps of a row share columns, it takes MR sums, up to 5 weights and one column: 14 with 8
//!   pixels.
//! * The input transform of Winograd holds two rows of values (up to 16), a column of the tile (up to
//!   8) and one operand. The output transform holds one output column (up to 8 + 6, and the sums of
//!   the pairs), and keeps other columns in the L1 cache.
//! * Interleaving holds 8 phases, the results of a round of zips, and two tables of lanes.
//! * Depthwise transposed convolution by 4x4 holds 16 weights, two rows of three vectors, two sums, two
//!   tables of lanes, bias and bounds: 29. 5x5 holds 13 of its weights, and reads the others from memory.
//!   The coefficients of the exponential take at most 22.

pub(crate) mod convert;
mod vector;

crate::generic::kernels! {
    mod of_f32: crate::Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")],
    f32 in F32x16;
    gemm: 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 32 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
        48 x [1 2 3 4 5 6 7 8 9], 64 x [1 2 3 4 5 6], 96 x [1 2 3 4], 128 x [1 2 3], 192 x [1 2];
    channel_gemm: 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 32 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    pixel_gemm: 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 32 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    pixel_dw: 32 x [1 2 3 4 5 6 7 8];
    dw: 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    dw in crate::x86_64::avx2::vector::F32x8: 8 x [1 2 3 4 5 6 7 8];
    dwt: 16 x [1 2 3 4 5 6 7 8];
    group: 16 x [8], 32 x [6 8], 48 x [4 6 8], 64 x [2 3 4 6], 80 x [3 4], 96 x [4], 112 x [2 3];
}

crate::generic::kernels! {
    mod of_f64: crate::Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")],
    f64 in F64x8;
    gemm: 8 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
        24 x [1 2 3 4 5 6 7 8 9], 32 x [1 2 3 4 5 6], 48 x [1 2 3 4], 64 x [1 2 3], 96 x [1 2];
    channel_gemm: 8 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    pixel_gemm: 8 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    pixel_dw: 16 x [1 2 3 4 5 6 7 8];
    dw: 8 x [1 2 3 4 5 6 7 8];
    dw in crate::x86_64::avx2::vector::F64x4: 4 x [1 2 3 4];
    dwt: 8 x [1 2 3 4 5 6 7 8];
    group: 8 x [8], 16 x [6 8], 24 x [4 6 8], 32 x [2 3 4 6], 40 x [3 4], 48 x [4], 56 x [2 3];
}

crate::generic::dot::kernels! {
    mod of_pairs: crate::Isa::Avx512, #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx2,fma")],
    Pairs in Pairs16;
    "i16": 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13], 32 x [1 2 3 4 5 6 7 8 9 10 11 12 13];
    dw: 32 x [1 2 3 4 5 6 7 8];
}

crate::generic::dot::kernels! {
    mod of_bytes: crate::Isa::Avx512,
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512cd,avx512vnni,avx2,fma")],
    Bytes in Bytes16;
    "u8": 16 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14], 32 x [1 2 3 4 5 6 7 8 9 10 11 12 13 14];
    dw: 32 x [1 2 3 4 5 6 7 8];
}

/// As [`look_up_rows`](crate::dot::look_up_rows).
///
/// # Safety
/// CPU: AVX-512 F, BW, VL and VBMI. Memory: as `look_up_rows` states.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(crate) unsafe fn look_up(table: &[u8; 256], p: *mut u8, (rows, len, ld): (usize, usize, usize)) {
    use core::arch::x86_64::*;

    // SAFETY: the quarters of the table, and the caller's promise. Masks end where a row does.
    unsafe {
        if rows > 1 && ld < 64 {
            // A vector would reach into the next row, whose load waits until it is stored.
            return (0..rows).for_each(|row| crate::generic::dot::look_up(table, p.add(row * ld), 0..len));
        }
        let table: *const i8 = table.as_ptr().cast();
        let (a, b) = (_mm512_loadu_epi8(table), _mm512_loadu_epi8(table.add(64)));
        let (c, d) = (_mm512_loadu_epi8(table.add(128)), _mm512_loadu_epi8(table.add(192)));
        for row in 0..rows {
            // No iterator of the row's blocks: its closures would be calls.
            let mut column = 0;
            while column < len {
                let (p, mask) = (p.add(row * ld + column).cast(), u64::MAX >> (64 - (len - column).min(64)));
                let places = _mm512_maskz_loadu_epi8(mask, p);
                let (low, high) = (_mm512_permutex2var_epi8(a, places, b), _mm512_permutex2var_epi8(c, places, d));
                _mm512_mask_storeu_epi8(p, mask, _mm512_mask_blend_epi8(_mm512_movepi8_mask(places), low, high));
                column += 64;
            }
        }
    }
}

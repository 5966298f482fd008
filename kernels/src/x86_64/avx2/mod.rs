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

/// As [`look_up_rows`](crate::dot::look_up_rows), in 16 columns of two rows at a time.
///
/// # Safety
/// CPU: AVX2. Memory: as `look_up_rows` states.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn look_up(table: &[u8; 256], p: *mut u8, (rows, len, ld): (usize, usize, usize)) {
    use core::arch::x86_64::*;

    if rows == 1 && len >= 32 {
        // One row is two halves, and perhaps a last byte.
        let half = len / 2;
        // SAFETY: the caller's promise.
        return unsafe {
            look_up(table, p, (2, half, half));
            crate::generic::dot::look_up(table, p, 2 * half..len);
        };
    }
    for row in (0..rows).step_by(2) {
        // SAFETY: the caller's promise. The last row may be there twice, and then is written twice with the same bytes.
        unsafe {
            let (first, second) = (p.add(row * ld), p.add((row + 1).min(rows - 1) * ld));
            for column in (0..len / 16 * 16).step_by(16) {
                let (first, second) = (first.add(column).cast::<__m128i>(), second.add(column).cast::<__m128i>());
                let places = _mm256_castsi128_si256(_mm_loadu_si128(first));
                let places = _mm256_inserti128_si256::<1>(places, _mm_loadu_si128(second));
                // A shuffle finds one of 16 entries by the lower four bits. Each of the others, as the upper one of a byte, then
                // chooses between two.
                let low = _mm256_and_si256(places, _mm256_set1_epi8(15));
                let (bit4, bit5) = (_mm256_slli_epi16::<3>(places), _mm256_slli_epi16::<2>(places));
                let bit6 = _mm256_slli_epi16::<1>(places);
                let mut quarters = [low; 4];
                for (i, quarter) in quarters.iter_mut().enumerate() {
                    let mut of = [low; 4];
                    for (j, found) in of.iter_mut().enumerate() {
                        let entries = _mm_loadu_si128(table.as_ptr().add(64 * i + 16 * j).cast());
                        *found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), low);
                    }
                    let halves = [_mm256_blendv_epi8(of[0], of[1], bit4), _mm256_blendv_epi8(of[2], of[3], bit4)];
                    *quarter = _mm256_blendv_epi8(halves[0], halves[1], bit5);
                }
                let below = _mm256_blendv_epi8(quarters[0], quarters[1], bit6);
                let above = _mm256_blendv_epi8(quarters[2], quarters[3], bit6);
                let found = _mm256_blendv_epi8(below, above, places);
                _mm_storeu_si128(first, _mm256_castsi256_si128(found));
                _mm_storeu_si128(second, _mm256_extracti128_si256::<1>(found));
            }
            for row in row..rows.min(row + 2) {
                crate::generic::dot::look_up(table, p.add(row * ld), len / 16 * 16..len);
            }
        }
    }
}

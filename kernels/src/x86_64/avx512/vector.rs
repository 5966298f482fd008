//! The AVX-512 registers as [`Simd`] vectors.

use core::arch::x86_64::*;

use crate::simd::{Simd, broadcast_scalars, lanes_in_row};
use crate::x86_64::quarters;

/// 16 `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

impl Simd for F32x16 {
    type Elem = f32;
    type Lanes = __mmask16;
    type Mask = __mmask16;
    const LANES: usize = 16;
    const REGISTER_FILE: usize = 32;
    const REGISTERS: usize = 1;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_loadu_ps(p)) }
    }

    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults
        // on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }

    #[inline(always)]
    fn prefetch_near(p: *const f32) {
        // SAFETY: as prefetch.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_add_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        // Both instructions return their second operand where either is NaN.
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_min_ps(hi.0, _mm512_max_ps(lo.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_maskz_loadu_ps(first(n) as __mmask16, p)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_mask_storeu_ps(p, first(n) as __mmask16, self.0) }
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_maskz_compress_ps(mask as __mmask16, self.0)) }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            // First, 4x4 blocks within the 128-bit lanes: lane l of u[4 * g + c] holds column 4 *
            // l + c of rows 4 * g to 4 * g + 3.
            let mut t = *rows;
            for i in 0..8 {
                t[2 * i] = Self(_mm512_unpacklo_ps(rows[2 * i].0, rows[2 * i + 1].0));
                t[2 * i + 1] = Self(_mm512_unpackhi_ps(rows[2 * i].0, rows[2 * i + 1].0));
            }
            let mut u = *rows;
            for g in 0..4 {
                let a = _mm512_castps_pd(t[4 * g].0);
                let b = _mm512_castps_pd(t[4 * g + 1].0);
                let c = _mm512_castps_pd(t[4 * g + 2].0);
                let d = _mm512_castps_pd(t[4 * g + 3].0);
                u[4 * g] = Self(_mm512_castpd_ps(_mm512_unpacklo_pd(a, c)));
                u[4 * g + 1] = Self(_mm512_castpd_ps(_mm512_unpackhi_pd(a, c)));
                u[4 * g + 2] = Self(_mm512_castpd_ps(_mm512_unpacklo_pd(b, d)));
                u[4 * g + 3] = Self(_mm512_castpd_ps(_mm512_unpackhi_pd(b, d)));
            }
            // Then, for each column c of the blocks, the 4x4 matrix of 128-bit lanes.
            for c in 0..4 {
                let even01 = _mm512_shuffle_f32x4::<0x88>(u[c].0, u[4 + c].0);
                let even23 = _mm512_shuffle_f32x4::<0x88>(u[8 + c].0, u[12 + c].0);
                let odd01 = _mm512_shuffle_f32x4::<0xdd>(u[c].0, u[4 + c].0);
                let odd23 = _mm512_shuffle_f32x4::<0xdd>(u[8 + c].0, u[12 + c].0);
                rows[c] = Self(_mm512_shuffle_f32x4::<0x88>(even01, even23));
                rows[4 + c] = Self(_mm512_shuffle_f32x4::<0x88>(odd01, odd23));
                rows[8 + c] = Self(_mm512_shuffle_f32x4::<0xdd>(even01, even23));
                rows[12 + c] = Self(_mm512_shuffle_f32x4::<0xdd>(odd01, odd23));
            }
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_sub_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_mul_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_div_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, _mm512_setzero_ps()), self.0, b.0))
        }
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0)))) }
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite.
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let zero = _mm512_sub_ps(self.0, self.0);
            _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(zero, zero) == 0
        }
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f32, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_maskz_loadu_ps(mask as __mmask16, p)) }
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_stream_ps(p, self.0) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64, and the instruction only orders stores.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    unsafe fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
        if M == 4 {
            // SAFETY: the caller runs where the ISA is.
            return unsafe { quarters(v) };
        }
        let table = &Every::<M>::F32;
        let mut every = v;
        for p in 0..M {
            for s in 1..M {
                // SAFETY: the caller runs where the ISA is; a row of the table holds a vector.
                unsafe {
                    let from = _mm512_loadu_epi32(table[p][s].as_ptr().cast());
                    let low = if s == 1 { v[0] } else { every[p] };
                    every[p] = Self(_mm512_permutex2var_ps(low.0, from, v[s].0));
                }
            }
        }
        every
    }

    #[inline(always)]
    unsafe fn behind_last_of(self, v: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_castsi512_ps(_mm512_alignr_epi32::<15>(_mm512_castps_si512(self.0), _mm512_castps_si512(v.0))))
        }
    }

    #[inline(always)]
    unsafe fn before_first_of(self, v: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_castsi512_ps(_mm512_alignr_epi32::<1>(_mm512_castps_si512(v.0), _mm512_castps_si512(self.0))))
        }
    }

    const MASKS: bool = true;

    #[inline(always)]
    unsafe fn load_over(self, p: *const f32, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm512_mask_loadu_ps(self.0, mask as __mmask16, p)) }
    }

    // Loads of half a vector cross cache lines less often than a half-masked load of a whole
    // vector.
    #[inline(always)]
    unsafe fn load_halves(low: *const f32, high: *const f32, masks: [u32; 2]) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe {
            let [low, high] =
                [(low, masks[0]), (high, masks[1])].map(|(p, mask)| _mm256_maskz_loadu_ps(mask as __mmask8, p));
            Self(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high))
        }
    }

    #[inline(always)]
    unsafe fn store_halves(self, low: *mut f32, high: *mut f32, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let halves = (_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            if n == Self::LANES / 2 {
                _mm256_storeu_ps(low, halves.0);
                _mm256_storeu_ps(high, halves.1);
            } else {
                let mask = ((1 << n) - 1) as __mmask8;
                _mm256_mask_storeu_ps(low, mask, halves.0);
                _mm256_mask_storeu_ps(high, mask, halves.1);
            }
        }
    }

    #[inline(always)]
    unsafe fn every_second(self, b: Self, from: isize) -> Self {
        let there = if from < 0 { Self::ALL & !1 } else { Self::ALL >> 1 } as __mmask16;
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let index = _mm512_add_epi32(
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                _mm512_set1_epi32(from as i32),
            );
            Self(_mm512_maskz_permutex2var_ps(there, self.0, index, b.0))
        }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> __mmask16 {
        mask as __mmask16
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f32, _: __mmask16) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self::load(p) }
    }

    // A masked multiply-add costs no more than one without a mask. A masked load would keep the
    // multiply-add from taking its operand from memory.
    #[inline(always)]
    unsafe fn mul_add_of(self, scalars: Self, _: usize, c: Self, lanes: __mmask16) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_mask3_fmadd_ps(scalars.0, self.0, c.0, lanes)) }
    }

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> __mmask16 {
        let (from, to) = lanes_in_row(Self::LANES, position, width);
        (first(to) & !first(from)) as __mmask16
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f32, mask: __mmask16) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm512_maskz_loadu_ps(mask, p)) }
    }

    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
    fn advance(p: *const f32, step: usize) -> *const f32 {
        let mut next = p.wrapping_add(step);
        // SAFETY: no instruction.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) next, options(pure, nomem, nostack, preserves_flags)) };
        next
    }

    #[inline(always)]
    unsafe fn advance_after(p: *const f32, step: usize, x: Self) -> *const f32 {
        // A function of its own, because registers of this class need the feature.
        #[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn after(p: *const f32, x: __m512) -> *const f32 {
            let mut after = p;
            // SAFETY: no instruction.
            unsafe {
                core::arch::asm!("/* {0} {1} */", inout(reg) after, in(zmm_reg) x, options(pure, nomem, nostack, preserves_flags));
            }
            after
        }
        // SAFETY: the caller runs where the ISA is.
        unsafe { after(p.wrapping_add(step), x.0) }
    }

    #[inline(always)]
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (Self(_mm512_permutex2var_ps(self.0, low, b.0)), Self(_mm512_permutex2var_ps(self.0, high, b.0)))
        }
    }
}

/// 8 `f64`.
#[derive(Clone, Copy)]
pub(crate) struct F64x8(__m512d);

impl Simd for F64x8 {
    type Elem = f64;
    type Lanes = __mmask8;
    type Mask = __mmask8;
    const LANES: usize = 8;
    const REGISTER_FILE: usize = 32;
    const REGISTERS: usize = 1;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_set1_pd(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_loadu_pd(p)) }
    }

    #[inline(always)]
    fn prefetch(p: *const f64) {
        // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults
        // on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }

    #[inline(always)]
    fn prefetch_near(p: *const f64) {
        // SAFETY: as prefetch.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_storeu_pd(p, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_fmadd_pd(self.0, b.0, c.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_add_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        // Both instructions return their second operand where either is NaN.
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_min_pd(hi.0, _mm512_max_pd(lo.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f64, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_maskz_loadu_pd(first(n) as __mmask8, p)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f64, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_mask_storeu_pd(p, first(n) as __mmask8, self.0) }
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_maskz_compress_pd(mask as __mmask8, self.0)) }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            // Lane l of t[2 * i + c] holds column 2 * l + c of rows 2 * i and 2 * i + 1.
            let mut t = *rows;
            for i in 0..4 {
                t[2 * i] = Self(_mm512_unpacklo_pd(rows[2 * i].0, rows[2 * i + 1].0));
                t[2 * i + 1] = Self(_mm512_unpackhi_pd(rows[2 * i].0, rows[2 * i + 1].0));
            }
            for c in 0..2 {
                let even01 = _mm512_shuffle_f64x2::<0x88>(t[c].0, t[2 + c].0);
                let even23 = _mm512_shuffle_f64x2::<0x88>(t[4 + c].0, t[6 + c].0);
                let odd01 = _mm512_shuffle_f64x2::<0xdd>(t[c].0, t[2 + c].0);
                let odd23 = _mm512_shuffle_f64x2::<0xdd>(t[4 + c].0, t[6 + c].0);
                rows[c] = Self(_mm512_shuffle_f64x2::<0x88>(even01, even23));
                rows[2 + c] = Self(_mm512_shuffle_f64x2::<0x88>(odd01, odd23));
                rows[4 + c] = Self(_mm512_shuffle_f64x2::<0xdd>(even01, even23));
                rows[6 + c] = Self(_mm512_shuffle_f64x2::<0xdd>(odd01, odd23));
            }
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_sub_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_mul_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_div_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_mask_blend_pd(_mm512_cmp_pd_mask::<_CMP_LT_OQ>(self.0, _mm512_setzero_pd()), self.0, b.0))
        }
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_castpd_si512(self.0)))) }
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite.
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let zero = _mm512_sub_pd(self.0, self.0);
            _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(zero, zero) == 0
        }
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f64, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm512_maskz_loadu_pd(mask as __mmask8, p)) }
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f64) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm512_stream_pd(p, self.0) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64, and the instruction only orders stores.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    unsafe fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
        if M == 4 {
            // SAFETY: the caller runs where the ISA is.
            return unsafe { quarters(v) };
        }
        let table = &Every::<M>::F64;
        let mut every = v;
        for p in 0..M {
            for s in 1..M {
                // SAFETY: the caller runs where the ISA is; a row of the table holds a vector.
                unsafe {
                    let from = _mm512_loadu_epi64(table[p][s].as_ptr().cast());
                    let low = if s == 1 { v[0] } else { every[p] };
                    every[p] = Self(_mm512_permutex2var_pd(low.0, from, v[s].0));
                }
            }
        }
        every
    }

    #[inline(always)]
    unsafe fn behind_last_of(self, v: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_castsi512_pd(_mm512_alignr_epi64::<7>(_mm512_castpd_si512(self.0), _mm512_castpd_si512(v.0))))
        }
    }

    #[inline(always)]
    unsafe fn before_first_of(self, v: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            Self(_mm512_castsi512_pd(_mm512_alignr_epi64::<1>(_mm512_castpd_si512(v.0), _mm512_castpd_si512(self.0))))
        }
    }

    const MASKS: bool = true;

    #[inline(always)]
    unsafe fn load_over(self, p: *const f64, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm512_mask_loadu_pd(self.0, mask as __mmask8, p)) }
    }

    // Loads of half a vector cross cache lines less often than a half-masked load of a whole
    // vector.
    #[inline(always)]
    unsafe fn load_halves(low: *const f64, high: *const f64, masks: [u32; 2]) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe {
            let [low, high] =
                [(low, masks[0]), (high, masks[1])].map(|(p, mask)| _mm256_maskz_loadu_pd(mask as __mmask8, p));
            Self(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high))
        }
    }

    #[inline(always)]
    unsafe fn store_halves(self, low: *mut f64, high: *mut f64, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let halves = (_mm512_castpd512_pd256(self.0), _mm512_extractf64x4_pd::<1>(self.0));
            if n == Self::LANES / 2 {
                _mm256_storeu_pd(low, halves.0);
                _mm256_storeu_pd(high, halves.1);
            } else {
                let mask = ((1 << n) - 1) as __mmask8;
                _mm256_mask_storeu_pd(low, mask, halves.0);
                _mm256_mask_storeu_pd(high, mask, halves.1);
            }
        }
    }

    #[inline(always)]
    unsafe fn every_second(self, b: Self, from: isize) -> Self {
        let there = if from < 0 { Self::ALL & !1 } else { Self::ALL >> 1 } as __mmask8;
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let index = _mm512_add_epi64(_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), _mm512_set1_epi64(from as i64));
            Self(_mm512_maskz_permutex2var_pd(there, self.0, index, b.0))
        }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> __mmask8 {
        mask as __mmask8
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f64, _: __mmask8) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self::load(p) }
    }

    // A masked multiply-add costs no more than one without a mask. A masked load would keep the
    // multiply-add from taking its operand from memory.
    #[inline(always)]
    unsafe fn mul_add_of(self, scalars: Self, _: usize, c: Self, lanes: __mmask8) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm512_mask3_fmadd_pd(scalars.0, self.0, c.0, lanes)) }
    }

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> __mmask8 {
        let (from, to) = lanes_in_row(Self::LANES, position, width);
        (first(to) & !first(from)) as __mmask8
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f64, mask: __mmask8) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm512_maskz_loadu_pd(mask, p)) }
    }

    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
    fn advance(p: *const f64, step: usize) -> *const f64 {
        let mut next = p.wrapping_add(step);
        // SAFETY: no instruction.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) next, options(pure, nomem, nostack, preserves_flags)) };
        next
    }

    #[inline(always)]
    unsafe fn advance_after(p: *const f64, step: usize, x: Self) -> *const f64 {
        // A function of its own, because registers of this class need the feature.
        #[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction")]
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn after(p: *const f64, x: __m512d) -> *const f64 {
            let mut after = p;
            // SAFETY: no instruction.
            unsafe {
                core::arch::asm!("/* {0} {1} */", inout(reg) after, in(zmm_reg) x, options(pure, nomem, nostack, preserves_flags));
            }
            after
        }
        // SAFETY: the caller runs where the ISA is.
        unsafe { after(p.wrapping_add(step), x.0) }
    }

    #[inline(always)]
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
            let high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
            (Self(_mm512_permutex2var_pd(self.0, low, b.0)), Self(_mm512_permutex2var_pd(self.0, high, b.0)))
        }
    }
}

/// A mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> u32 {
    ((1_u64 << n) - 1) as u32
}

/// Tables of indices that take every M-th element out of M vectors: `[p][s]` adds the elements
/// that vector s has for result p to those of the vectors before it.
struct Every<const M: usize>;

/// Computes the table `[p][s][lane]`. Lane `lane` of result p is element `e = p + M * lane`,
/// which is lane `e % LANES` of vector `e / LANES`. Indices from LANES on name lanes of the
/// second operand.
macro_rules! every {
    ($name:ident, $int:ty, $lanes:literal) => {
        const $name: [[[$int; $lanes]; M]; M] = {
            let mut table = [[[0; $lanes]; M]; M];
            let mut p = 0;
            while p < M {
                let mut s = 1;
                while s < M {
                    let mut lane = 0;
                    while lane < $lanes {
                        let element = p + M * lane;
                        let (vector, place) = (element / $lanes, (element % $lanes) as $int);
                        table[p][s][lane] = if vector == s {
                            $lanes + place
                        } else if s == 1 {
                            place
                        } else {
                            lane as $int
                        };
                        lane += 1;
                    }
                    s += 1;
                }
                p += 1;
            }
            table
        };
    };
}

impl<const M: usize> Every<M> {
    every!(F32, i32, 16);
    every!(F64, i64, 8);
}

//! The AVX2 registers as [`Simd`](crate::simd::Simd) vectors.

use core::arch::x86_64::*;

use crate::simd::{Simd, broadcast_scalars, lanes_by_zeros, lanes_in_row};
use crate::x86_64::quarters;

/// For each mask of eight 32-bit lanes, the indices that move these lanes to the front. AVX2 has
/// no instruction for it.
static COMPRESS: [[u32; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut to) = (0, 0);
        while lane < 8 {
            if (mask >> lane) & 1 == 1 {
                table[mask][to] = lane as u32;
                to += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};

/// The masks of `vmaskmov`: `WINDOW[8 - n..]` begins with n lanes of ones, followed by zeros.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The `vmaskmov` mask of the first `n <= 8` 32-bit lanes.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    let window = &WINDOW[8 - n..16 - n];
    // SAFETY: the slice holds 8 elements; the caller runs where AVX2 is.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

/// The `vmaskmov` mask with the bits of `mask` as 32-bit lanes.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn lanes32(mask: u32) -> __m256i {
    // SAFETY: the caller runs where AVX2 is.
    unsafe {
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask as i32), bits), bits)
    }
}

/// The `vmaskmov` mask with the bits of `mask` as 64-bit lanes.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn lanes64(mask: u32) -> __m256i {
    // SAFETY: the caller runs where AVX2 is.
    unsafe {
        let bits = _mm256_setr_epi64x(1, 2, 4, 8);
        _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(i64::from(mask)), bits), bits)
    }
}

/// The permutation that moves the 32-bit lanes of `mask` to the front.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn to_front(mask: u32) -> __m256i {
    let indices = &COMPRESS[(mask & 0xff) as usize];
    // SAFETY: the row holds 8 elements; the caller runs where AVX2 is.
    unsafe { _mm256_loadu_si256(indices.as_ptr().cast()) }
}

/// 8 `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

impl Simd for F32x8 {
    type Elem = f32;
    type Lanes = __m256;
    type Mask = __m256i;
    const LANES: usize = 8;
    const REGISTERS: usize = 1;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_loadu_ps(p)) }
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
        unsafe { _mm256_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_add_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        // Both instructions return their second operand where either is NaN.
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_min_ps(hi.0, _mm256_max_ps(lo.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_maskload_ps(p, first(n))) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            _mm256_maskstore_ps(p, first(n), self.0);
        }
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_permutevar8x32_ps(self.0, to_front(mask))) }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            // Lane l of u[4 * g + c] holds column 4 * l + c of rows 4 * g to 4 * g + 3.
            let mut t = *rows;
            for i in 0..4 {
                t[2 * i] = Self(_mm256_unpacklo_ps(rows[2 * i].0, rows[2 * i + 1].0));
                t[2 * i + 1] = Self(_mm256_unpackhi_ps(rows[2 * i].0, rows[2 * i + 1].0));
            }
            let mut u = [_mm256_setzero_ps(); 8];
            for g in 0..2 {
                let a = _mm256_castps_pd(t[4 * g].0);
                let b = _mm256_castps_pd(t[4 * g + 1].0);
                let c = _mm256_castps_pd(t[4 * g + 2].0);
                let d = _mm256_castps_pd(t[4 * g + 3].0);
                u[4 * g] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
                u[4 * g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
                u[4 * g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
                u[4 * g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
            }
            for c in 0..4 {
                rows[c] = Self(_mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]));
                rows[4 + c] = Self(_mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]));
            }
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_sub_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_mul_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_div_ps(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_blendv_ps(self.0, b.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, _mm256_setzero_ps()))) }
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self.0)))) }
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite.
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let zero = _mm256_sub_ps(self.0, self.0);
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(zero, zero)) == 0
        }
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f32, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_maskload_ps(p, lanes32(mask))) }
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm256_stream_ps(p, self.0) }
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
            for s in 0..M {
                // SAFETY: the caller runs where the ISA is; the rows of the table hold a vector.
                unsafe {
                    let from = _mm256_loadu_si256(table[p][s].0.as_ptr().cast());
                    let moved = _mm256_permutevar8x32_ps(v[s].0, from);
                    let mask = _mm256_loadu_ps(table[p][s].1.as_ptr().cast());
                    every[p] = if s == 0 { Self(moved) } else { Self(_mm256_blendv_ps(every[p].0, moved, mask)) };
                }
            }
        }
        every
    }

    #[inline(always)]
    unsafe fn unzip(self, b: Self) -> (Self, Self) {
        // First within 128-bit lanes, then the 64-bit pairs are put in order.
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(self.0, b.0));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(self.0, b.0));
            let (even, odd) = (_mm256_permute4x64_pd::<0xd8>(even), _mm256_permute4x64_pd::<0xd8>(odd));
            (Self(_mm256_castpd_ps(even)), Self(_mm256_castpd_ps(odd)))
        }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> __m256 {
        // SAFETY: the caller runs where the ISA is.
        unsafe { _mm256_castsi256_ps(lanes32(mask)) }
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f32, lanes: __m256) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_and_ps(Self::load(p).0, lanes)) }
    }

    lanes_by_zeros!();

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> __m256i {
        let (from, to) = lanes_in_row(Self::LANES, position, width);
        // SAFETY: the caller runs where the ISA is.
        unsafe { _mm256_andnot_si256(first(from), first(to)) }
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f32, mask: __m256i) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm256_maskload_ps(p, mask)) }
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
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(self.0, b.0), _mm256_unpackhi_ps(self.0, b.0));
            (Self(_mm256_permute2f128_ps::<0x20>(low, high)), Self(_mm256_permute2f128_ps::<0x31>(low, high)))
        }
    }
}

/// 4 `f64`.
#[derive(Clone, Copy)]
pub(crate) struct F64x4(__m256d);

impl Simd for F64x4 {
    type Elem = f64;
    type Lanes = __m256d;
    type Mask = __m256i;
    const LANES: usize = 4;
    const REGISTERS: usize = 1;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_set1_pd(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_loadu_pd(p)) }
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
        unsafe { _mm256_storeu_pd(p, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_fmadd_pd(self.0, b.0, c.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_add_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        // Both instructions return their second operand where either is NaN.
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_min_pd(hi.0, _mm256_max_pd(lo.0, self.0))) }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f64, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_maskload_pd(p, first(2 * n))) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f64, n: usize) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            _mm256_maskstore_pd(p, first(2 * n), self.0);
        }
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        // Each 64-bit lane is two 32-bit lanes, so that each bit of the mask is doubled.
        let pairs = (0..4).fold(0, |pairs, lane| pairs | (((mask >> lane) & 1) * 3) << (2 * lane));
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let v = _mm256_permutevar8x32_ps(_mm256_castpd_ps(self.0), to_front(pairs));
            Self(_mm256_castps_pd(v))
        }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            // Lane l of t[2 * i + c] holds column 2 * l + c of rows 2 * i and 2 * i + 1.
            let mut t = [_mm256_setzero_pd(); 4];
            for i in 0..2 {
                t[2 * i] = _mm256_unpacklo_pd(rows[2 * i].0, rows[2 * i + 1].0);
                t[2 * i + 1] = _mm256_unpackhi_pd(rows[2 * i].0, rows[2 * i + 1].0);
            }
            for c in 0..2 {
                rows[c] = Self(_mm256_permute2f128_pd::<0x20>(t[c], t[2 + c]));
                rows[2 + c] = Self(_mm256_permute2f128_pd::<0x31>(t[c], t[2 + c]));
            }
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_sub_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_mul_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_div_pd(self.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_blendv_pd(self.0, b.0, _mm256_cmp_pd::<_CMP_LT_OQ>(self.0, _mm256_setzero_pd()))) }
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        // SAFETY: the caller runs where the ISA is.
        unsafe { Self(_mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(self.0)))) }
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite.
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let zero = _mm256_sub_pd(self.0, self.0);
            _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_UNORD_Q>(zero, zero)) == 0
        }
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f64, mask: u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_maskload_pd(p, lanes64(mask))) }
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f64) {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { _mm256_stream_pd(p, self.0) }
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
            for s in 0..M {
                // SAFETY: the caller runs where the ISA is; the rows of the table hold a vector.
                unsafe {
                    let from = _mm256_loadu_si256(table[p][s].0.as_ptr().cast());
                    let moved = _mm256_permutevar8x32_ps(_mm256_castpd_ps(v[s].0), from);
                    let moved = _mm256_castps_pd(moved);
                    let mask = _mm256_loadu_pd(table[p][s].1.as_ptr().cast());
                    every[p] = if s == 0 { Self(moved) } else { Self(_mm256_blendv_pd(every[p].0, moved, mask)) };
                }
            }
        }
        every
    }

    #[inline(always)]
    unsafe fn unzip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let (even, odd) = (_mm256_unpacklo_pd(self.0, b.0), _mm256_unpackhi_pd(self.0, b.0));
            (Self(_mm256_permute4x64_pd::<0xd8>(even)), Self(_mm256_permute4x64_pd::<0xd8>(odd)))
        }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> __m256d {
        // SAFETY: the caller runs where the ISA is.
        unsafe { _mm256_castsi256_pd(lanes64(mask)) }
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f64, lanes: __m256d) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self(_mm256_and_pd(Self::load(p).0, lanes)) }
    }

    lanes_by_zeros!();

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> __m256i {
        let (from, to) = lanes_in_row(Self::LANES, position, width);
        // SAFETY: the caller runs where the ISA is.
        unsafe { _mm256_andnot_si256(first(2 * from), first(2 * to)) }
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f64, mask: __m256i) -> Self {
        // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
        unsafe { Self(_mm256_maskload_pd(p, mask)) }
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
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller runs where the ISA is.
        unsafe {
            let (low, high) = (_mm256_unpacklo_pd(self.0, b.0), _mm256_unpackhi_pd(self.0, b.0));
            (Self(_mm256_permute2f128_pd::<0x20>(low, high)), Self(_mm256_permute2f128_pd::<0x31>(low, high)))
        }
    }
}

/// Permutations and blends that take every M-th element out of M vectors. `[p][s]` is the part of
/// result p that comes from vector s: indices of 32-bit lanes, and a mask of the lanes that are
/// taken.
struct Every<const M: usize>;

/// Computes the table `[p][s]`. Lane `lane` of result p is element `e = p + M * lane`, which is
/// lane `e % LANES` of vector `e / LANES`. An element is `$width` lanes of 32 bits.
macro_rules! every {
    ($name:ident, $lanes:literal, $width:literal) => {
        const $name: [[([i32; 8], [i32; 8]); M]; M] = {
            let mut table = [[([0; 8], [0; 8]); M]; M];
            let mut p = 0;
            while p < M {
                let mut s = 0;
                while s < M {
                    let mut lane = 0;
                    while lane < 8 {
                        let element = p + M * (lane / $width);
                        if element / $lanes == s {
                            table[p][s].0[lane] = (element % $lanes * $width + lane - lane / $width * $width) as i32;
                            table[p][s].1[lane] = -1;
                        }
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
    every!(F32, 8, 1);
    every!(F64, 4, 2);
}

//! The AVX2 registers as [`Simd`](crate::simd::Simd) vectors. Both types take part in words of 32 bits in
//! masks and permutations: an `f64` is two words.

use core::arch::x86_64::*;

#[cfg(feature = "avx2")]
use crate::simd::UnitSums;
use crate::simd::{Accumulator, Simd, lanes_by_zeros, lanes_in_row};
#[cfg(feature = "avx2")]
use crate::x86_64::MOST_INTEGER;
use crate::x86_64::{accumulator, common, quarters};

/// For each mask of eight words, the indices that move these words to the front. AVX2 has no
/// instruction for it.
static COMPRESS: [[u32; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut word, mut to) = (0, 0);
        while word < 8 {
            if (mask >> word) & 1 == 1 {
                table[mask][to] = word as u32;
                to += 1;
            }
            word += 1;
        }
        mask += 1;
    }
    table
};

/// The masks of `vmaskmov`: `WINDOW[8 - n..]` begins with n words of ones, followed by zeros.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The `vmaskmov` mask of the first `n <= 8` words.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    let window = &WINDOW[8 - n..16 - n];
    // SAFETY: the slice holds 8 elements; the caller runs where AVX2 is.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

/// The permutation that moves the words of `mask` to the front.
///
/// # Safety
/// CPU: AVX2.
#[inline(always)]
unsafe fn to_front(mask: u32) -> __m256i {
    let indices = &COMPRESS[(mask & 0xff) as usize];
    // SAFETY: the row holds 8 elements; the caller runs where AVX2 is.
    unsafe { _mm256_loadu_si256(indices.as_ptr().cast()) }
}

/// Stores the first `n` words of a vector in pieces of four, two and one: AMD's CPUs take some forty operations
/// for a store by a mask.
///
/// # Safety
/// CPU: AVX2. Memory: `p` is writable for `n <= 8` words; nothing else is touched.
#[inline(always)]
unsafe fn store_words(words: __m256, p: *mut f32, n: usize) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        if n >= 8 {
            return _mm256_storeu_ps(p, words);
        }
        let (mut rest, mut p) = (_mm256_castps256_ps128(words), p);
        if n & 4 != 0 {
            _mm_storeu_ps(p, rest);
            (rest, p) = (_mm256_extractf128_ps::<1>(words), p.add(4));
        }
        if n & 2 != 0 {
            _mm_storel_pd(p.cast(), _mm_castps_pd(rest));
            (rest, p) = (_mm_movehl_ps(rest, rest), p.add(2));
        }
        if n & 1 != 0 {
            _mm_store_ss(p, rest);
        }
    }
}

/// The operations on `f32`, by names that both types share.
mod ps {
    use core::arch::x86_64::*;
    pub(super) use core::arch::x86_64::{
        __m256 as Register, _mm256_add_ps as add, _mm256_and_ps as and, _mm256_blendv_ps as blendv,
        _mm256_castps_si256 as to_bits, _mm256_castsi256_ps as from_bits, _mm256_cmp_ps as cmp, _mm256_div_ps as div,
        _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load, _mm256_maskload_ps as maskload, _mm256_max_ps as max,
        _mm256_min_ps as min, _mm256_movemask_ps as movemask, _mm256_mul_ps as mul,
        _mm256_permute2f128_ps as permute2f128, _mm256_permutevar8x32_ps as permute_words, _mm256_set1_ps as splat,
        _mm256_setzero_ps as zero, _mm256_slli_epi32 as shift_left, _mm256_storeu_ps as store,
        _mm256_stream_ps as stream, _mm256_sub_ps as sub, _mm256_unpackhi_ps as unpackhi,
        _mm256_unpacklo_ps as unpacklo,
    };

    /// The `vmaskmov` mask with the bits of `mask` as lanes.
    ///
    /// # Safety
    /// CPU: AVX2.
    #[inline(always)]
    pub(super) unsafe fn lanes(mask: u32) -> __m256i {
        // SAFETY: the caller runs where AVX2 is.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask as i32), bits), bits)
        }
    }

    /// # Safety
    /// CPU: AVX2.
    #[inline(always)]
    pub(super) unsafe fn to_words(x: __m256) -> __m256 {
        x
    }

    /// The words of the lanes of `mask`.
    #[inline(always)]
    pub(super) fn words(mask: u32) -> u32 {
        mask
    }
}

/// The operations on `f64`, by names that both types share.
mod pd {
    use core::arch::x86_64::*;
    pub(super) use core::arch::x86_64::{
        __m256d as Register, _mm256_add_pd as add, _mm256_and_pd as and, _mm256_blendv_pd as blendv,
        _mm256_castpd_si256 as to_bits, _mm256_castsi256_pd as from_bits, _mm256_cmp_pd as cmp, _mm256_div_pd as div,
        _mm256_fmadd_pd as fmadd, _mm256_loadu_pd as load, _mm256_maskload_pd as maskload, _mm256_max_pd as max,
        _mm256_min_pd as min, _mm256_movemask_pd as movemask, _mm256_mul_pd as mul,
        _mm256_permute2f128_pd as permute2f128, _mm256_set1_pd as splat, _mm256_setzero_pd as zero,
        _mm256_slli_epi64 as shift_left, _mm256_storeu_pd as store, _mm256_stream_pd as stream, _mm256_sub_pd as sub,
        _mm256_unpackhi_pd as unpackhi, _mm256_unpacklo_pd as unpacklo,
    };

    /// The `vmaskmov` mask with the bits of `mask` as lanes.
    ///
    /// # Safety
    /// CPU: AVX2.
    #[inline(always)]
    pub(super) unsafe fn lanes(mask: u32) -> __m256i {
        // SAFETY: the caller runs where AVX2 is.
        unsafe {
            let bits = _mm256_setr_epi64x(1, 2, 4, 8);
            _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(i64::from(mask)), bits), bits)
        }
    }

    /// # Safety
    /// CPU: AVX2.
    #[inline(always)]
    pub(super) unsafe fn permute_words(x: __m256d, indices: __m256i) -> __m256d {
        // SAFETY: the caller runs where AVX2 is.
        unsafe { _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(x), indices)) }
    }

    /// # Safety
    /// CPU: AVX2.
    #[inline(always)]
    pub(super) unsafe fn to_words(x: __m256d) -> __m256 {
        // SAFETY: the caller runs where AVX2 is.
        unsafe { _mm256_castpd_ps(x) }
    }

    /// The words of the lanes of `mask`.
    #[inline(always)]
    pub(super) fn words(mask: u32) -> u32 {
        (0..4).fold(0, |words, lane| words | (((mask >> lane) & 1) * 3) << (2 * lane))
    }
}

/// Partial vectors, by the operations of the module `$ops`.
macro_rules! partial {
    ($elem:ident by $ops:ident) => {
        #[inline(always)]
        unsafe fn load_first(p: *const $elem, n: usize) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::maskload(p, first(words_of::<$elem>() * n))) }
        }

        #[inline(always)]
        unsafe fn store_first(self, p: *mut $elem, n: usize) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { store_words($ops::to_words(self.0), p.cast(), words_of::<$elem>() * n) }
        }
    };
}

/// What both types have in common, by the operations of the module `$ops`.
macro_rules! vector {
    ($elem:ident by $ops:ident) => {
        type Lanes = $ops::Register;
        type Mask = __m256i;
        common!($elem by $ops);

        #[inline(always)]
        unsafe fn permute(self, words: *const u32) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::permute_words(self.0, _mm256_loadu_si256(words.cast()))) }
        }

        #[inline(always)]
        unsafe fn load_mask(p: *const $elem, mask: u32) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::maskload(p, $ops::lanes(mask))) }
        }

        #[inline(always)]
        unsafe fn mask(position: isize, width: usize) -> __m256i {
            let (from, to) = lanes_in_row(Self::LANES, position, width);
            let words = words_of::<$elem>();
            // SAFETY: the caller runs where the ISA is.
            unsafe { _mm256_andnot_si256(first(words * from), first(words * to)) }
        }

        #[inline(always)]
        unsafe fn load_lanes(p: *const $elem, mask: __m256i) -> Self {
            // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
            unsafe { Self($ops::maskload(p, mask)) }
        }

        #[inline(always)]
        unsafe fn lanes(mask: u32) -> $ops::Register {
            // SAFETY: the caller runs where the ISA is.
            unsafe { $ops::from_bits($ops::lanes(mask)) }
        }

        #[inline(always)]
        unsafe fn load_of(p: *const $elem, lanes: $ops::Register) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::and(Self::load(p).0, lanes)) }
        }

        lanes_by_zeros!();

        #[inline(always)]
        fn or_if_negative(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::blendv(self.0, b.0, $ops::cmp::<_CMP_LT_OQ>(self.0, $ops::zero()))) }
        }

        #[inline(always)]
        fn is_finite(self) -> bool {
            // x - x is 0, or NaN where x is NaN or infinite.
            // SAFETY: a vector is the proof of the ISA.
            unsafe {
                let zero = $ops::sub(self.0, self.0);
                $ops::movemask($ops::cmp::<_CMP_UNORD_Q>(zero, zero)) == 0
            }
        }

        #[inline(always)]
        fn compress(self, mask: u32) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::permute_words(self.0, to_front($ops::words(mask)))) }
        }

        #[inline(always)]
        fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
            if M == 4 {
                return quarters(v);
            }
            let table = &Every::<M, { words_of::<$elem>() }>::TABLE;
            let mut every = v;
            for p in 0..M {
                for s in 0..M {
                    // SAFETY: a vector is the proof of the ISA; the rows of the table hold a vector.
                    unsafe {
                        let from = _mm256_loadu_si256(table[p][s].0.as_ptr().cast());
                        let moved = $ops::permute_words(v[s].0, from);
                        let mask = $ops::load(table[p][s].1.as_ptr().cast());
                        every[p] = if s == 0 { Self(moved) } else { Self($ops::blendv(every[p].0, moved, mask)) };
                    }
                }
            }
            every
        }

        #[inline(always)]
        fn zip(self, b: Self) -> (Self, Self) {
            // SAFETY: a vector is the proof of the ISA.
            unsafe {
                let (low, high) = ($ops::unpacklo(self.0, b.0), $ops::unpackhi(self.0, b.0));
                (Self($ops::permute2f128::<0x20>(low, high)), Self($ops::permute2f128::<0x31>(low, high)))
            }
        }
    };
}

/// Words of an element.
const fn words_of<T>() -> usize {
    size_of::<T>() / 4
}

/// 8 `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

accumulator!(F32x8: 8 of f32 by ps);

impl Simd for F32x8 {
    vector!(f32 by ps);

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
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
    fn unzip(self, b: Self) -> (Self, Self) {
        // First within 128-bit lanes, then the 64-bit pairs are put in order.
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(self.0, b.0));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(self.0, b.0));
            let (even, odd) = (_mm256_permute4x64_pd::<0xd8>(even), _mm256_permute4x64_pd::<0xd8>(odd));
            (Self(_mm256_castpd_ps(even)), Self(_mm256_castpd_ps(odd)))
        }
    }
}

/// 4 `f64`.
#[derive(Clone, Copy)]
pub(crate) struct F64x4(__m256d);

accumulator!(F64x4: 4 of f64 by pd);

impl Simd for F64x4 {
    vector!(f64 by pd);

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
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
    fn unzip(self, b: Self) -> (Self, Self) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let (even, odd) = (_mm256_unpacklo_pd(self.0, b.0), _mm256_unpackhi_pd(self.0, b.0));
            (Self(_mm256_permute4x64_pd::<0xd8>(even)), Self(_mm256_permute4x64_pd::<0xd8>(odd)))
        }
    }
}

/// 8 units of two values of 16 bits, or 8 sums of 32 bits.
#[cfg(feature = "avx2")]
#[derive(Clone, Copy)]
pub(crate) struct Pairs8(__m256i);

#[cfg(feature = "avx2")]
crate::x86_64::dot_products!(Pairs8: 8 by epi32, |units, scalars, sums| {
    _mm256_add_epi32(sums, _mm256_madd_epi16(units, scalars))
});

/// 8 units of four bytes, or 8 sums of 32 bits. Units are signed, scalars are not.
#[cfg(feature = "avx2")]
#[derive(Clone, Copy)]
pub(crate) struct Bytes8(__m256i);

#[cfg(feature = "avx2")]
crate::x86_64::dot_products!(Bytes8: 8 by epi32, |units, scalars, sums| _mm256_dpbusd_avx_epi32(sums, scalars, units));

/// Implements [`UnitSums`].
#[cfg(feature = "avx2")]
macro_rules! unit_sums {
    ($name:ident $(, $interleave:item)*) => {
        impl UnitSums for $name {
            $($interleave)*
            const PACKS: bool = true;

            #[inline(always)]
            unsafe fn store_bytes<const SIGNED: bool, const WHOLE: bool>(
                sums: [Self; 4],
                scale: *const f32,
                zero: i32,
                (y, _): ([*mut u8; 4], usize),
            ) {
                // SAFETY: a vector is the proof of the ISA, and the caller's promise of memory.
                unsafe {
                    let (scale, most) = (_mm256_loadu_ps(scale), _mm256_set1_ps(MOST_INTEGER));
                    let mut rounded = [sums[0].0; 4];
                    for i in 0..4 {
                        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i].0), scale);
                        rounded[i] = _mm256_cvtps_epi32(_mm256_min_ps(scaled, most));
                    }
                    let [a, b, c, d] = rounded;
                    let zero = _mm256_set1_epi16(zero as i16);
                    let low = _mm256_adds_epi16(_mm256_packs_epi32(a, b), zero);
                    let high = _mm256_adds_epi16(_mm256_packs_epi32(c, d), zero);
                    let bytes = if SIGNED { _mm256_packs_epi16(low, high) } else { _mm256_packus_epi16(low, high) };
                    // Packing has the halves of all vectors side by side.
                    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
                    let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
                    for (half, y) in halves.into_iter().zip([[y[0], y[1]], [y[2], y[3]]]) {
                        _mm_storel_epi64(y[0].cast(), half);
                        _mm_storeh_pd(y[1].cast(), _mm_castsi128_pd(half));
                    }
                }
            }
        }
    };
}
#[cfg(feature = "avx2")]
unit_sums!(Pairs8);
#[cfg(feature = "avx2")]
unit_sums!(
    Bytes8,
    const INTERLEAVES: bool = true;,
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
            // Not by a closure, which would not be inlined.
            let mut permuted = [order; 4];
            for i in 0..4 {
                permuted[i] = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(rows[i].cast()), order);
            }
            let [a, b, c, d] = permuted;
            let [low, high] = [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
            let [other_low, other_high] = [_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d)];
            [
                Self(_mm256_unpacklo_epi16(low, other_low)),
                Self(_mm256_unpackhi_epi16(low, other_low)),
                Self(_mm256_unpacklo_epi16(high, other_high)),
                Self(_mm256_unpackhi_epi16(high, other_high)),
            ]
        }
    },
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe { Self(_mm256_xor_si256(self.0, b.0)) }
    }
);

/// The operations on sums of 32 bits.
#[cfg(feature = "avx2")]
mod epi32 {
    use core::arch::x86_64::*;
    pub(super) use core::arch::x86_64::{
        _mm256_add_epi32 as add, _mm256_castsi256_ps as to_words, _mm256_maskload_epi32 as maskload,
        _mm256_max_epi32 as max, _mm256_min_epi32 as min, _mm256_set1_epi32 as splat,
    };

    /// # Safety
    /// CPU: AVX2. Memory: `p` is readable for 8 elements.
    #[inline(always)]
    pub(super) unsafe fn load(p: *const i32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    /// # Safety
    /// CPU: AVX2. Memory: `p` is writable for 8 elements.
    #[inline(always)]
    pub(super) unsafe fn store(p: *mut i32, x: __m256i) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(p.cast(), x) }
    }
}

/// Permutations and blends that take every M-th element out of M vectors. An element is `WORDS` words.
struct Every<const M: usize, const WORDS: usize>;

impl<const M: usize, const WORDS: usize> Every<M, WORDS> {
    /// `[p][s]` is the part of result p that comes from vector s: indices of words, and a mask of the
    /// words that are taken. Lane `lane` of result p is element `e = p + M * lane`, which is lane
    /// `e % LANES` of vector `e / LANES`.
    const TABLE: [[([i32; 8], [i32; 8]); M]; M] = {
        let lanes = 8 / WORDS;
        let mut table = [[([0; 8], [0; 8]); M]; M];
        let mut i = 0;
        while i < M * 8 {
            let (p, word) = (i / 8, i % 8);
            let element = p + M * (word / WORDS);
            table[p][element / lanes].0[word] = (element % lanes * WORDS + word % WORDS) as i32;
            table[p][element / lanes].1[word] = -1;
            i += 1;
        }
        table
    };
}

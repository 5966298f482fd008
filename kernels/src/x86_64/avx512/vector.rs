//! The AVX-512 registers as [`Simd`] vectors.

use core::arch::x86_64::*;

use crate::simd::{Accumulator, Simd, UnitSums, first_lanes, mask_in_row};
use crate::x86_64::{MOST_INTEGER, accumulator, common, quarters};

/// Tables of indices for permutations of two vectors. Indices from the number of lanes on name lanes of the
/// second vector.
macro_rules! indices {
    ($index:ident, $lanes:literal) => {
        pub(super) type Index = $index;

        /// Every second lane.
        pub(super) const EVEN: [Index; $lanes] = {
            let mut even = [0; $lanes];
            let mut lane = 0;
            while lane < $lanes {
                even[lane] = 2 * lane as Index;
                lane += 1;
            }
            even
        };

        /// The lanes of both vectors in turn: from the first lanes on, and from the middle on.
        pub(super) const ZIP: [[Index; $lanes]; 2] = {
            let mut zip = [[0; $lanes]; 2];
            let mut lane = 0;
            while lane < 2 * $lanes {
                zip[lane / $lanes][lane % $lanes] = (lane / 2 + lane % 2 * $lanes) as Index;
                lane += 1;
            }
            zip
        };

        /// Tables that take every M-th element out of M vectors.
        pub(super) struct Every<const M: usize>;

        impl<const M: usize> Every<M> {
            /// `[p][s]` adds the elements that vector s has for result p to those of the vectors before it.
            /// Lane `lane` of result p is element `e = p + M * lane`, which is lane `e % LANES` of vector
            /// `e / LANES`.
            pub(super) const TABLE: [[[Index; $lanes]; M]; M] = {
                let mut table = [[[0; $lanes]; M]; M];
                let mut i = 0;
                while i < M * M * $lanes {
                    let (p, s, lane) = (i / $lanes / M, i / $lanes % M, i % $lanes);
                    let (vector, place) = ((p + M * lane) / $lanes, (p + M * lane) % $lanes);
                    table[p][s][lane] = if vector == s {
                        ($lanes + place) as Index
                    } else if s == 1 {
                        place as Index
                    } else {
                        lane as Index
                    };
                    i += 1;
                }
                table
            };
        }
    };
}
use indices;

/// The operations on `f32`, by names that both types share.
mod ps {
    pub(super) use core::arch::x86_64::{
        __mmask16 as Mask, _mm512_add_epi32 as add_index, _mm512_add_ps as add, _mm512_alignr_epi32 as alignr,
        _mm512_castps_si512 as to_bits, _mm512_castsi512_ps as from_bits, _mm512_cmp_ps_mask as cmp,
        _mm512_div_ps as div, _mm512_fmadd_ps as fmadd, _mm512_loadu_epi32 as load_index, _mm512_loadu_ps as load,
        _mm512_mask_blend_ps as blend, _mm512_mask_loadu_ps as mask_loadu, _mm512_mask_storeu_ps as mask_storeu,
        _mm512_mask3_fmadd_ps as mask_fmadd, _mm512_maskz_compress_ps as compress,
        _mm512_maskz_loadu_ps as maskz_loadu, _mm512_maskz_permutex2var_ps as maskz_permute, _mm512_max_ps as max,
        _mm512_min_ps as min, _mm512_mul_ps as mul, _mm512_permutex2var_ps as permute, _mm512_set1_epi32 as set1_index,
        _mm512_set1_ps as splat, _mm512_setzero_ps as zero, _mm512_slli_epi32 as shift_left, _mm512_storeu_ps as store,
        _mm512_stream_ps as stream, _mm512_sub_ps as sub,
    };

    super::indices!(i32, 16);
}

/// The operations on `f64`, by names that both types share.
mod pd {
    pub(super) use core::arch::x86_64::{
        __mmask8 as Mask, _mm512_add_epi64 as add_index, _mm512_add_pd as add, _mm512_alignr_epi64 as alignr,
        _mm512_castpd_si512 as to_bits, _mm512_castsi512_pd as from_bits, _mm512_cmp_pd_mask as cmp,
        _mm512_div_pd as div, _mm512_fmadd_pd as fmadd, _mm512_loadu_epi64 as load_index, _mm512_loadu_pd as load,
        _mm512_mask_blend_pd as blend, _mm512_mask_loadu_pd as mask_loadu, _mm512_mask_storeu_pd as mask_storeu,
        _mm512_mask3_fmadd_pd as mask_fmadd, _mm512_maskz_compress_pd as compress,
        _mm512_maskz_loadu_pd as maskz_loadu, _mm512_maskz_permutex2var_pd as maskz_permute, _mm512_max_pd as max,
        _mm512_min_pd as min, _mm512_mul_pd as mul, _mm512_permutex2var_pd as permute, _mm512_set1_epi64 as set1_index,
        _mm512_set1_pd as splat, _mm512_setzero_pd as zero, _mm512_slli_epi64 as shift_left, _mm512_storeu_pd as store,
        _mm512_stream_pd as stream, _mm512_sub_pd as sub,
    };

    super::indices!(i64, 8);
}

/// Partial vectors, by the operations of the module `$ops`.
macro_rules! partial {
    ($elem:ident by $ops:ident) => {
        const MASKS: bool = true;

        #[inline(always)]
        unsafe fn load_first(p: *const $elem, n: usize) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::maskz_loadu(first_lanes(n) as $ops::Mask, p)) }
        }

        #[inline(always)]
        unsafe fn store_first(self, p: *mut $elem, n: usize) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { $ops::mask_storeu(p, first_lanes(n) as $ops::Mask, self.0) }
        }
    };
}

/// What both types have in common, by the operations of the module `$ops`.
macro_rules! vector {
    ($elem:ident x $lanes:literal by $ops:ident) => {
        type Lanes = $ops::Mask;
        type Mask = $ops::Mask;
        const REGISTER_FILE: usize = 32;
        common!($elem by $ops);

        #[inline(always)]
        unsafe fn permute(self, words: *const u32) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe {
                let words = _mm512_loadu_si512(words.cast());
                Self($ops::from_bits(_mm512_permutexvar_epi32(words, $ops::to_bits(self.0))))
            }
        }

        #[inline(always)]
        unsafe fn load_mask(p: *const $elem, mask: u32) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self($ops::maskz_loadu(mask as $ops::Mask, p)) }
        }

        #[inline(always)]
        unsafe fn load_over(self, p: *const $elem, mask: u32) -> Self {
            // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
            unsafe { Self($ops::mask_loadu(self.0, mask as $ops::Mask, p)) }
        }

        #[inline(always)]
        unsafe fn mask(position: isize, width: usize) -> $ops::Mask {
            mask_in_row(Self::LANES, position, width) as $ops::Mask
        }

        #[inline(always)]
        unsafe fn load_lanes(p: *const $elem, mask: $ops::Mask) -> Self {
            // SAFETY: the caller's promise of ISA and memory. Lanes that are not set are not read.
            unsafe { Self($ops::maskz_loadu(mask, p)) }
        }

        #[inline(always)]
        unsafe fn lanes(mask: u32) -> $ops::Mask {
            mask as $ops::Mask
        }

        #[inline(always)]
        unsafe fn load_of(p: *const $elem, _: $ops::Mask) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { Self::load(p) }
        }

        // A masked multiply-add costs no more than one without a mask. A masked load would keep the
        // multiply-add from taking its operand from memory.
        #[inline(always)]
        fn mul_add_of(self, scalars: Self, _: usize, c: Self, lanes: $ops::Mask) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::mask_fmadd(scalars.0, self.0, c.0, lanes)) }
        }

        #[inline(always)]
        fn or_if_negative(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::blend($ops::cmp::<_CMP_LT_OQ>(self.0, $ops::zero()), self.0, b.0)) }
        }

        #[inline(always)]
        fn is_finite(self) -> bool {
            // x - x is 0, or NaN where x is NaN or infinite.
            // SAFETY: a vector is the proof of the ISA.
            unsafe {
                let zero = $ops::sub(self.0, self.0);
                $ops::cmp::<_CMP_UNORD_Q>(zero, zero) == 0
            }
        }

        #[inline(always)]
        fn compress(self, mask: u32) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::compress(mask as $ops::Mask, self.0)) }
        }

        #[inline(always)]
        fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
            if M == 4 {
                return quarters(v);
            }
            let table = &$ops::Every::<M>::TABLE;
            let mut every = v;
            for p in 0..M {
                for s in 1..M {
                    // SAFETY: a vector is the proof of the ISA; a row of the table holds a vector.
                    unsafe {
                        let from = $ops::load_index(table[p][s].as_ptr());
                        let low = if s == 1 { v[0] } else { every[p] };
                        every[p] = Self($ops::permute(low.0, from, v[s].0));
                    }
                }
            }
            every
        }

        #[inline(always)]
        fn behind_last_of(self, v: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::from_bits($ops::alignr::<{ $lanes - 1 }>($ops::to_bits(self.0), $ops::to_bits(v.0)))) }
        }

        #[inline(always)]
        fn before_first_of(self, v: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::from_bits($ops::alignr::<1>($ops::to_bits(v.0), $ops::to_bits(self.0)))) }
        }

        #[inline(always)]
        fn every_second(self, b: Self, from: isize) -> Self {
            let there = if from < 0 { Self::ALL & !1 } else { Self::ALL >> 1 } as $ops::Mask;
            // SAFETY: a vector is the proof of the ISA.
            unsafe {
                let even = $ops::load_index($ops::EVEN.as_ptr());
                let index = $ops::add_index(even, $ops::set1_index(from as $ops::Index));
                Self($ops::maskz_permute(there, self.0, index, b.0))
            }
        }

        #[inline(always)]
        fn zip(self, b: Self) -> (Self, Self) {
            // SAFETY: a vector is the proof of the ISA; the tables hold a vector.
            unsafe {
                let [low, high] = [$ops::load_index($ops::ZIP[0].as_ptr()), $ops::load_index($ops::ZIP[1].as_ptr())];
                (Self($ops::permute(self.0, low, b.0)), Self($ops::permute(self.0, high, b.0)))
            }
        }
    };
}

/// 16 `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

accumulator!(F32x16: 16 of f32 by ps);

impl Simd for F32x16 {
    vector!(f32 x 16 by ps);

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
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
}

/// 8 `f64`.
#[derive(Clone, Copy)]
pub(crate) struct F64x8(__m512d);

accumulator!(F64x8: 8 of f64 by pd);

impl Simd for F64x8 {
    vector!(f64 x 8 by pd);

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
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
}

/// 16 units of two values of 16 bits, or 16 sums of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Pairs16(__m512i);

crate::x86_64::dot_products!(Pairs16: 16 by epi32, |units, scalars, sums| {
    _mm512_add_epi32(sums, _mm512_madd_epi16(units, scalars))
});

/// 16 units of four bytes, or 16 sums of 32 bits. Units are signed, scalars are not.
#[derive(Clone, Copy)]
pub(crate) struct Bytes16(__m512i);

crate::x86_64::dot_products!(Bytes16: 16 by epi32, |units, scalars, sums| _mm512_dpbusd_epi32(sums, scalars, units));

/// For each 32 bits of packed bytes of four vectors, those that come there: packing has the quarters of all vectors side by
/// side.
const VECTOR_BY_VECTOR: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Implements [`UnitSums`].
macro_rules! sums {
    ($name:ident $(, $interleave:item)*) => {
        impl UnitSums for $name {
            $($interleave)*
            const PACKS: bool = true;

            #[inline(always)]
            unsafe fn store_bytes<const SIGNED: bool, const WHOLE: bool>(
                sums: [Self; 4],
                scale: *const f32,
                zero: i32,
                (y, n): ([*mut u8; 4], usize),
            ) {
                // SAFETY: a vector is the proof of the ISA, and the caller's promise of memory.
                unsafe {
                    let lanes = first_lanes(n) as epi32::Mask;
                    let scale = if WHOLE { _mm512_loadu_ps(scale) } else { _mm512_maskz_loadu_ps(lanes, scale) };
                    let most = _mm512_set1_ps(MOST_INTEGER);
                    let mut rounded = [sums[0].0; 4];
                    for i in 0..4 {
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i].0), scale);
                        rounded[i] = _mm512_cvtps_epi32(_mm512_min_ps(scaled, most));
                    }
                    let [a, b, c, d] = rounded;
                    let zero = _mm512_set1_epi16(zero as i16);
                    let low = _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero);
                    let high = _mm512_adds_epi16(_mm512_packs_epi32(c, d), zero);
                    let bytes = if SIGNED { _mm512_packs_epi16(low, high) } else { _mm512_packus_epi16(low, high) };
                    let bytes = _mm512_permutexvar_epi32(_mm512_loadu_epi32(VECTOR_BY_VECTOR.as_ptr()), bytes);
                    let quarters = [
                        _mm512_castsi512_si128(bytes),
                        _mm512_extracti32x4_epi32::<1>(bytes),
                        _mm512_extracti32x4_epi32::<2>(bytes),
                        _mm512_extracti32x4_epi32::<3>(bytes),
                    ];
                    for i in 0..4 {
                        match WHOLE {
                            true => _mm_storeu_si128(y[i].cast(), quarters[i]),
                            false => _mm_mask_storeu_epi8(y[i].cast(), lanes, quarters[i]),
                        }
                    }
                }
            }
        }
    };
}
sums!(Pairs16);
sums!(
    Bytes16,
    const INTERLEAVES: bool = true;,
    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let order = _mm512_loadu_epi32(VECTOR_BY_VECTOR.as_ptr());
            // Not by a closure, which would not be inlined.
            let mut permuted = [order; 4];
            for i in 0..4 {
                permuted[i] = _mm512_permutexvar_epi32(order, _mm512_loadu_epi8(rows[i].cast()));
            }
            let [a, b, c, d] = permuted;
            let [low, high] = [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)];
            let [other_low, other_high] = [_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)];
            [
                Self(_mm512_unpacklo_epi16(low, other_low)),
                Self(_mm512_unpackhi_epi16(low, other_low)),
                Self(_mm512_unpacklo_epi16(high, other_high)),
                Self(_mm512_unpackhi_epi16(high, other_high)),
            ]
        }
    },
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe { Self(_mm512_xor_si512(self.0, b.0)) }
    }
);

/// The operations on sums of 32 bits.
mod epi32 {
    pub(super) use core::arch::x86_64::{
        __mmask16 as Mask, _mm512_add_epi32 as add, _mm512_loadu_epi32 as load,
        _mm512_mask_storeu_epi32 as mask_storeu, _mm512_maskz_loadu_epi32 as maskz_loadu, _mm512_max_epi32 as max,
        _mm512_min_epi32 as min, _mm512_set1_epi32 as splat, _mm512_storeu_epi32 as store,
    };
}

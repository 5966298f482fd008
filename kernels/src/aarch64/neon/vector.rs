//! The NEON registers as [`Simd`] vectors of four elements.

use core::arch::aarch64::*;

use crate::Isa;
use crate::simd::{Accumulator, Simd, UnitSums, lanes_by_zeros};

/// For each mask of four lanes in `REGISTERS` registers, the bytes of a table lookup that moves these lanes
/// to the front. The other lanes become zero.
const fn compressions<const REGISTERS: usize>() -> [[[u8; 16]; REGISTERS]; 16] {
    let mut table = [[[u8::MAX; 16]; REGISTERS]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut lane, mut to) = (0, 0);
        while lane < 4 {
            let mut byte = 0;
            while byte < 4 * REGISTERS && (mask >> lane) & 1 == 1 {
                table[mask][to / 16][to % 16] = (4 * REGISTERS * lane + byte) as u8;
                byte += 1;
                to += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
}

/// How to load a part of a row. `offset` is the distance from lane 0 to a whole vector that lies
/// in the row. `bytes` are those of a table lookup that moves its elements to their lanes, and
/// sets the other lanes to zero.
#[derive(Clone, Copy)]
pub(crate) struct Window<const REGISTERS: usize> {
    offset: isize,
    bytes: [uint8x16_t; REGISTERS],
}

/// 32 bytes out of every table's range, the numbers of 32 bytes, and 32 more bytes out of range.
static BYTES: [u8; 96] = {
    let mut bytes = [u8::MAX; 96];
    let mut byte = 0;
    while byte < 32 {
        bytes[32 + byte] = byte as u8;
        byte += 1;
    }
    bytes
};

impl<const REGISTERS: usize> Window<REGISTERS> {
    /// The window for 4 lanes in `REGISTERS` registers, 1 or 2. `width` is at least 4.
    ///
    /// # Safety
    /// CPU: NEON.
    #[inline(always)]
    unsafe fn new(position: isize, width: usize) -> Self {
        let last = width as isize - 4;
        let offset = position.clamp(0, last) - position;
        // With 4 or more elements from lane 0 to the loaded vector, no lane is in the row.
        let first = 32 - offset.clamp(-4, 4) * (4 * REGISTERS as isize);
        let mut bytes = [BYTES.as_ptr(); REGISTERS];
        for (register, from) in bytes.iter_mut().enumerate() {
            *from = from.wrapping_offset(first + 16 * register as isize);
        }
        // SAFETY: REGISTERS is at most 2. `first` is at least 32 - 16 * REGISTERS and at most 32
        // + 16 * REGISTERS. The 16 bytes from there on, and the 16 bytes behind them where there
        // are two registers, lie within the 96 bytes. The caller runs where NEON is.
        Self { offset, bytes: bytes.map(|from| unsafe { vld1q_u8(from) }) }
    }
}

/// The operations on registers of `f32`, by names that both types share.
mod ps {
    pub(super) use core::arch::aarch64::{
        float32x4_t as Register, uint32x4_t as Bits, vaddq_f32 as add, vandq_u32 as and, vbslq_f32 as select,
        vcltzq_f32 as is_negative, vdivq_f32 as div, vdupq_n_f32 as splat, vfmaq_f32 as fma, vld1q_f32 as load,
        vmaxq_f32 as max, vminq_f32 as min, vmulq_f32 as mul, vreinterpretq_f32_u32 as from_bits,
        vreinterpretq_u32_f32 as to_bits, vshlq_n_u32 as shift_left, vst1q_f32 as store, vsubq_f32 as sub,
    };
}

/// The operations on registers of `f64`, by names that both types share.
mod pd {
    pub(super) use core::arch::aarch64::{
        float64x2_t as Register, uint64x2_t as Bits, vaddq_f64 as add, vandq_u64 as and, vbslq_f64 as select,
        vcltzq_f64 as is_negative, vdivq_f64 as div, vdupq_n_f64 as splat, vfmaq_f64 as fma, vld1q_f64 as load,
        vmaxq_f64 as max, vminq_f64 as min, vmulq_f64 as mul, vreinterpretq_f64_u64 as from_bits,
        vreinterpretq_u64_f64 as to_bits, vshlq_n_u64 as shift_left, vst1q_f64 as store, vsubq_f64 as sub,
    };
}

/// What sums of both types have in common, by the operations of the module `$ops`, for the registers `$r` of `$scalars`
/// elements each.
macro_rules! sums {
    ($elem:ident by $ops:ident: $scalars:literal in each of $registers:literal: $($r:tt)+) => {
        type Elem = $elem;
        type Scalars = $ops::Register;
        const LANES: usize = 4;
        const REGISTERS: usize = $registers;
        const SCALARS: usize = $scalars;
        crate::registers::sums!($elem by $ops: $($r)+);

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::fma(c.$r, self.$r, b.$r)),+) }
        }
    };
}

/// What both types have in common, by the operations of the module `$ops`, for the registers `$r`.
macro_rules! vector {
    ($elem:ident by $ops:ident: $registers:literal: $($r:tt)+) => {
        const SPARE_POINTERS: bool = Isa::Neon.has_spare_pointers();
        type Lanes = [$ops::Bits; $registers];
        type Mask = Window<$registers>;
        const REGISTER_FILE: usize = 32;
        crate::registers::lane_wise!($elem by $ops: $($r)+);

        #[inline(always)]
        fn or_if_negative(self, b: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($($ops::select($ops::is_negative(self.$r), b.$r, self.$r)),+) }
        }

        #[inline(always)]
        unsafe fn load_of(p: *const $elem, lanes: Self::Lanes) -> Self {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe {
                let v = Self::load(p);
                Self($($ops::from_bits($ops::and($ops::to_bits(v.$r), lanes[$r]))),+)
            }
        }

        lanes_by_zeros!();

        #[inline(always)]
        unsafe fn mask(position: isize, width: usize) -> Self::Mask {
            // SAFETY: the caller runs where the ISA is.
            unsafe { Window::new(position, width) }
        }

        #[inline(always)]
        unsafe fn load_mask(p: *const $elem, mask: u32) -> Self {
            let mut lanes = [0.0; 4];
            for (lane, x) in lanes.iter_mut().enumerate() {
                if mask >> lane & 1 == 1 {
                    // SAFETY: the caller's promise of the elements of the mask.
                    *x = unsafe { *p.wrapping_add(lane) };
                }
            }
            // SAFETY: the array holds a vector; the caller runs where the ISA is.
            unsafe { Self::load(lanes.as_ptr()) }
        }

        #[inline(always)]
        fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
            let mut every = v;
            // SAFETY: the arrays hold whole vectors; the caller runs where the ISA is.
            unsafe {
                if M == 2 {
                    (every[0], every[1]) = v[0].unzip(v[1]);
                    return every;
                }
                // A loop and not `map`, which LLVM does not inline.
                let mut elements = [[0.0; 4]; M];
                for s in 0..M {
                    v[s].store(elements[s].as_mut_ptr());
                }
                for p in 0..M {
                    let mut lanes = [0.0; 4];
                    for (lane, to) in lanes.iter_mut().enumerate() {
                        *to = elements[(p + M * lane) / 4][(p + M * lane) % 4];
                    }
                    every[p] = Self::load(lanes.as_ptr());
                }
            }
            every
        }
    };
}

/// 4 `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

impl Accumulator for F32x4 {
    sums!(f32 by ps: 4 in each of 1: 0);

    #[inline(always)]
    unsafe fn load_scalars(p: *const f32, n: usize) -> float32x4_t {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self::load_first(p, n).0 }
    }

    #[inline(always)]
    fn mul_add_scalar(self, scalars: float32x4_t, i: usize, c: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            Self(match i {
                0 => vfmaq_laneq_f32::<0>(c.0, self.0, scalars),
                1 => vfmaq_laneq_f32::<1>(c.0, self.0, scalars),
                2 => vfmaq_laneq_f32::<2>(c.0, self.0, scalars),
                _ => vfmaq_laneq_f32::<3>(c.0, self.0, scalars),
            })
        }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA, and of n elements.
        unsafe {
            let zero = vdup_n_f32(0.0);
            Self(match n {
                0 => vcombine_f32(zero, zero),
                1 => vcombine_f32(vld1_lane_f32::<0>(p, zero), zero),
                2 => vcombine_f32(vld1_f32(p), zero),
                3 => vcombine_f32(vld1_f32(p), vld1_lane_f32::<0>(p.add(2), zero)),
                _ => vld1q_f32(p),
            })
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's promise of ISA, and of n elements.
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f32::<0>(p, self.0),
                2 => vst1_f32(p, vget_low_f32(self.0)),
                3 => {
                    vst1_f32(p, vget_low_f32(self.0));
                    vst1q_lane_f32::<2>(p.add(2), self.0);
                }
                _ => vst1q_f32(p, self.0),
            }
        }
    }
}

impl Simd for F32x4 {
    vector!(f32 by ps: 1: 0);

    #[inline(always)]
    unsafe fn permute(self, words: *const u32) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            // The bytes of word i are 4 * i to 4 * i + 3.
            let bytes = vmlaq_n_u32(vdupq_n_u32(0x0302_0100), vld1q_u32(words), 0x0404_0404);
            let x = vreinterpretq_u8_f32(self.0);
            Self(vreinterpretq_f32_u8(vqtbl1q_u8(x, vreinterpretq_u8_u32(bytes))))
        }
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite.
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let zero = vsubq_f32(self.0, self.0);
            vminvq_u32(vceqq_f32(zero, zero)) != 0
        }
    }

    #[inline(always)]
    fn compress(self, mask: u32) -> Self {
        let [bytes] = &const { compressions::<1>() }[(mask & 0xf) as usize];
        // SAFETY: the row holds 16 bytes; the caller runs where the ISA is.
        unsafe {
            let moved = vqtbl1q_u8(vreinterpretq_u8_f32(self.0), vld1q_u8(bytes.as_ptr()));
            Self(vreinterpretq_f32_u8(moved))
        }
    }

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            // First pairs of rows by pairs of columns, then pairs of pairs.
            let pair = |a: Self, b: Self| {
                let (even, odd) = (vtrn1q_f32(a.0, b.0), vtrn2q_f32(a.0, b.0));
                (vreinterpretq_f64_f32(even), vreinterpretq_f64_f32(odd))
            };
            let ((a, b), (c, d)) = (pair(rows[0], rows[1]), pair(rows[2], rows[3]));
            rows[0] = Self(vreinterpretq_f32_f64(vtrn1q_f64(a, c)));
            rows[1] = Self(vreinterpretq_f32_f64(vtrn1q_f64(b, d)));
            rows[2] = Self(vreinterpretq_f32_f64(vtrn2q_f64(a, c)));
            rows[3] = Self(vreinterpretq_f32_f64(vtrn2q_f64(b, d)));
        }
    }

    #[inline(always)]
    fn unzip(self, b: Self) -> (Self, Self) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe { (Self(vuzp1q_f32(self.0, b.0)), Self(vuzp2q_f32(self.0, b.0))) }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> [uint32x4_t; 1] {
        let bits = [1, 2, 4, 8_u32];
        // SAFETY: the array holds four elements; the caller runs where the ISA is.
        unsafe { [vtstq_u32(vdupq_n_u32(mask), vld1q_u32(bits.as_ptr()))] }
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f32, mask: Window<1>) -> Self {
        let p = p.wrapping_offset(mask.offset);
        // SAFETY: the caller's promise of ISA, and of the row. The window lies in the row.
        unsafe {
            let v = Self::load(p);
            Self(vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v.0), mask.bytes[0])))
        }
    }

    #[inline(always)]
    fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe { (Self(vzip1q_f32(self.0, b.0)), Self(vzip2q_f32(self.0, b.0))) }
    }
}

/// 4 `f64`, in two registers. One register of two lanes would be too short for Winograd's
/// transforms, and would leave partial vectors nothing to share.
#[derive(Clone, Copy)]
pub(crate) struct F64x4(float64x2_t, float64x2_t);

impl F64x4 {
    /// Loads the first `min(n, 2)` elements from `p`; the other lanes are zero.
    ///
    /// # Safety
    /// CPU: NEON. Memory: `p` is readable for `min(n, 2)` elements.
    #[inline(always)]
    unsafe fn load_half(p: *const f64, n: usize) -> float64x2_t {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            match n {
                0 => vdupq_n_f64(0.0),
                1 => vld1q_lane_f64::<0>(p, vdupq_n_f64(0.0)),
                _ => vld1q_f64(p),
            }
        }
    }
}

impl Accumulator for F64x4 {
    sums!(f64 by pd: 2 in each of 2: 0 1);

    #[inline(always)]
    unsafe fn load_scalars(p: *const f64, n: usize) -> float64x2_t {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { Self::load_half(p, n) }
    }

    #[inline(always)]
    fn mul_add_scalar(self, scalars: float64x2_t, i: usize, c: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            match i {
                0 => Self(vfmaq_laneq_f64::<0>(c.0, self.0, scalars), vfmaq_laneq_f64::<0>(c.1, self.1, scalars)),
                _ => Self(vfmaq_laneq_f64::<1>(c.0, self.0, scalars), vfmaq_laneq_f64::<1>(c.1, self.1, scalars)),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f64, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA, and of n elements.
        unsafe { Self(Self::load_half(p, n), Self::load_half(p.wrapping_add(2), n.saturating_sub(2))) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f64, n: usize) {
        // SAFETY: the caller's promise of ISA, and of n elements.
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f64::<0>(p, self.0),
                2 => vst1q_f64(p, self.0),
                3 => {
                    vst1q_f64(p, self.0);
                    vst1q_lane_f64::<0>(p.add(2), self.1);
                }
                _ => self.store(p),
            }
        }
    }
}

impl Simd for F64x4 {
    vector!(f64 by pd: 2: 0 1);

    #[inline(always)]
    fn is_finite(self) -> bool {
        // x - x is 0, or NaN where x is NaN or infinite. So is the sum of two such values.
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let zero = vaddq_f64(vsubq_f64(self.0, self.0), vsubq_f64(self.1, self.1));
            vminvq_u32(vreinterpretq_u32_u64(vceqq_f64(zero, zero))) != 0
        }
    }

    #[inline(always)]
    fn compress(self, mask: u32) -> Self {
        let [low, high] = &const { compressions::<2>() }[(mask & 0xf) as usize];
        // SAFETY: the rows hold 16 bytes; the caller runs where the ISA is.
        unsafe {
            let bytes = uint8x16x2_t(vreinterpretq_u8_f64(self.0), vreinterpretq_u8_f64(self.1));
            let half = |from: &[u8; 16]| vreinterpretq_f64_u8(vqtbl2q_u8(bytes, vld1q_u8(from.as_ptr())));
            Self(half(low), half(high))
        }
    }

    #[inline(always)]
    fn transpose(rows: &mut [Self; 16]) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let [a, b, c, d] = [rows[0], rows[1], rows[2], rows[3]];
            rows[0] = Self(vtrn1q_f64(a.0, b.0), vtrn1q_f64(c.0, d.0));
            rows[1] = Self(vtrn2q_f64(a.0, b.0), vtrn2q_f64(c.0, d.0));
            rows[2] = Self(vtrn1q_f64(a.1, b.1), vtrn1q_f64(c.1, d.1));
            rows[3] = Self(vtrn2q_f64(a.1, b.1), vtrn2q_f64(c.1, d.1));
        }
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> [uint64x2_t; 2] {
        let bits = [1, 2, 4, 8_u64];
        // SAFETY: the array holds four elements; the caller runs where the ISA is.
        unsafe {
            let mask = vdupq_n_u64(u64::from(mask));
            [vtstq_u64(mask, vld1q_u64(bits.as_ptr())), vtstq_u64(mask, vld1q_u64(bits[2..].as_ptr()))]
        }
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f64, mask: Window<2>) -> Self {
        let p = p.wrapping_offset(mask.offset);
        // SAFETY: the caller's promise of ISA, and of the row. The window lies in the row.
        unsafe {
            let v = Self::load(p);
            let table = uint8x16x2_t(vreinterpretq_u8_f64(v.0), vreinterpretq_u8_f64(v.1));
            let half = |bytes| vreinterpretq_f64_u8(vqtbl2q_u8(table, bytes));
            Self(half(mask.bytes[0]), half(mask.bytes[1]))
        }
    }

    #[inline(always)]
    fn unzip(self, b: Self) -> (Self, Self) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            (
                Self(vuzp1q_f64(self.0, self.1), vuzp1q_f64(b.0, b.1)),
                Self(vuzp2q_f64(self.0, self.1), vuzp2q_f64(b.0, b.1)),
            )
        }
    }

    #[inline(always)]
    fn zip(self, b: Self) -> (Self, Self) {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            (
                Self(vzip1q_f64(self.0, b.0), vzip2q_f64(self.0, b.0)),
                Self(vzip1q_f64(self.1, b.1), vzip2q_f64(self.1, b.1)),
            )
        }
    }
}

/// 4 units of two values of 16 bits, whose first values come first, or 4 sums of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Pairs4(int32x4_t);

/// The operations on sums of 32 bits.
mod s32 {
    pub(super) use core::arch::aarch64::{
        vaddq_s32 as add, vdupq_n_s32 as splat, vld1q_s32 as load, vmaxq_s32 as max, vminq_s32 as min,
        vst1q_s32 as store,
    };
}

impl UnitSums for Pairs4 {}

impl Accumulator for Pairs4 {
    type Elem = i32;
    const LANES: usize = 4;
    const REGISTERS: usize = 1;
    /// Two units: the lanes of a multiply-add are those of half a register.
    type Scalars = int16x4_t;
    const SCALARS: usize = 2;
    crate::registers::sums!(i32 by s32: 0);

    #[inline(always)]
    unsafe fn load_scalars(p: *const i32, n: usize) -> int16x4_t {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { vreinterpret_s16_s32(if n == 1 { vdup_n_s32(p.read_unaligned()) } else { vld1_s32(p) }) }
    }

    #[inline(always)]
    fn mul_add_scalar(self, scalars: int16x4_t, i: usize, c: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let units = vreinterpretq_s16_s32(self.0);
            let first = vget_low_s16(units);
            Self(match i {
                0 => vmlal_high_lane_s16::<1>(vmlal_lane_s16::<0>(c.0, first, scalars), units, scalars),
                _ => vmlal_high_lane_s16::<3>(vmlal_lane_s16::<2>(c.0, first, scalars), units, scalars),
            })
        }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const i32, n: usize) -> Self {
        // SAFETY: the caller's promise of ISA, and of n elements. The loads move 32 bits, whatever they mean.
        unsafe { Self(vreinterpretq_s32_f32(F32x4::load_first(p.cast(), n).0)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut i32, n: usize) {
        // SAFETY: as in `load_first`.
        unsafe { F32x4(vreinterpretq_f32_s32(self.0)).store_first(p.cast(), n) }
    }

    /// The values of a unit are neighbours here.
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: a vector is the proof of the ISA.
        unsafe {
            let (x, w) = (vreinterpretq_s16_s32(self.0), vreinterpretq_s16_s32(b.0));
            let (low, high) = (vmull_s16(vget_low_s16(x), vget_low_s16(w)), vmull_high_s16(x, w));
            Self(vaddq_s32(c.0, vpaddq_s32(low, high)))
        }
    }
}

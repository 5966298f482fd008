//! The vectors of the `wide` crate as [`Simd`] vectors. They use what the compilation target
//! guarantees, on any target.

use crate::simd::{Simd, broadcast_scalars, lanes_by_zeros, lanes_in_row};

/// 8 `f32`: two registers of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(wide::f32x8);

impl Simd for F32x8 {
    type Elem = f32;
    type Lanes = wide::f32x8;
    type Mask = (usize, usize);
    const LANES: usize = 8;
    const REGISTERS: usize = 2;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(wide::f32x8::splat(x))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller promises LANES readable elements; an array has its element's
        // alignment.
        Self(wide::f32x8::new(unsafe { p.cast::<[f32; 8]>().read() }))
    }

    #[inline(always)]
    fn prefetch(_: *const f32) {}

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller promises LANES writable elements; an array has its element's
        // alignment.
        unsafe { p.cast::<[f32; 8]>().write(self.0.to_array()) };
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n readable elements.
            *lane = unsafe { *p.add(i) };
        }
        Self(wide::f32x8::new(lanes))
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        for (i, lane) in self.0.to_array().into_iter().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n writable elements.
            unsafe { *p.add(i) = lane };
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(self.0.mul_add(b.0, c.0))
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(self.0 + b.0)
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        let (lo, hi) = (lo.0.to_array(), hi.0.to_array());
        let mut v = self.0.to_array();
        for (i, x) in v.iter_mut().enumerate() {
            *x = if *x < lo[i] { lo[i] } else { *x };
            *x = if *x > hi[i] { hi[i] } else { *x };
        }
        Self(wide::f32x8::new(v))
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        let (v, mut packed, mut to) = (self.0.to_array(), [0.0; 8], 0);
        for (lane, x) in v.into_iter().enumerate() {
            if mask >> lane & 1 == 1 {
                packed[to] = x;
                to += 1;
            }
        }
        Self(wide::f32x8::new(packed))
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        let m: [[f32; 8]; 8] = core::array::from_fn(|i| rows[i].0.to_array());
        for (c, row) in rows.iter_mut().enumerate().take(8) {
            *row = Self(wide::f32x8::new(core::array::from_fn(|i| m[i][c])));
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self(self.0 - b.0)
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self(self.0 * b.0)
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self(self.0 / b.0)
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        let (x, b) = (self.0.to_array(), b.0.to_array());
        Self(wide::f32x8::new(core::array::from_fn(|i| if x[i] < 0.0 { b[i] } else { x[i] })))
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        Self(wide::f32x8::new(self.0.to_array().map(|x| f32::from_bits(x.to_bits() << 23))))
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        self.0.to_array().iter().all(|x| x.is_finite())
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f32, mask: u32) -> Self {
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                // SAFETY: the caller promises that the elements of the mask are readable.
                *lane = unsafe { *p.wrapping_add(i) };
            }
        }
        Self(wide::f32x8::new(lanes))
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        // SAFETY: the caller promises LANES writable elements.
        unsafe { self.store(p) };
    }

    #[inline(always)]
    fn fence() {}

    #[inline(always)]
    unsafe fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
        let elements = v.map(|v| v.0.to_array());
        let mut every = v;
        for (p, every) in every.iter_mut().enumerate() {
            let element = |lane: usize| elements[(p + M * lane) / 8][(p + M * lane) % 8];
            *every = Self(wide::f32x8::new(core::array::from_fn(element)));
        }
        every
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> wide::f32x8 {
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = f32::from_bits(if mask >> i & 1 == 1 { u32::MAX } else { 0 });
        }
        wide::f32x8::new(lanes)
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f32, lanes: wide::f32x8) -> Self {
        // SAFETY: the caller's promise of memory.
        Self(unsafe { Self::load(p) }.0 & lanes)
    }

    lanes_by_zeros!();

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> (usize, usize) {
        lanes_in_row(Self::LANES, position, width)
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f32, (from, to): (usize, usize)) -> Self {
        if (from, to) == (0, 8) {
            // SAFETY: the caller promises that all lanes are readable.
            return unsafe { Self::load(p) };
        }
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(to).skip(from) {
            // SAFETY: lane i is set, and the caller promises that it is readable.
            *lane = unsafe { *p.wrapping_add(i) };
        }
        Self(wide::f32x8::new(lanes))
    }

    #[inline(always)]
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        let (a, b) = (self.0.to_array(), b.0.to_array());
        let lane = |i: usize| if i.is_multiple_of(2) { a[i / 2] } else { b[i / 2] };
        (
            Self(wide::f32x8::new(core::array::from_fn(lane))),
            Self(wide::f32x8::new(core::array::from_fn(|i| lane(i + 8)))),
        )
    }
}

/// 4 `f64`: two registers of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct F64x4(wide::f64x4);

impl Simd for F64x4 {
    type Elem = f64;
    type Lanes = wide::f64x4;
    type Mask = (usize, usize);
    const LANES: usize = 4;
    const REGISTERS: usize = 2;
    broadcast_scalars!();

    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        Self(wide::f64x4::splat(x))
    }

    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        // SAFETY: the caller promises LANES readable elements; an array has its element's
        // alignment.
        Self(wide::f64x4::new(unsafe { p.cast::<[f64; 4]>().read() }))
    }

    #[inline(always)]
    fn prefetch(_: *const f64) {}

    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        // SAFETY: the caller promises LANES writable elements; an array has its element's
        // alignment.
        unsafe { p.cast::<[f64; 4]>().write(self.0.to_array()) };
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f64, n: usize) -> Self {
        let mut lanes = [0.0; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n readable elements.
            *lane = unsafe { *p.add(i) };
        }
        Self(wide::f64x4::new(lanes))
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f64, n: usize) {
        for (i, lane) in self.0.to_array().into_iter().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n writable elements.
            unsafe { *p.add(i) = lane };
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(self.0.mul_add(b.0, c.0))
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(self.0 + b.0)
    }

    #[inline(always)]
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self {
        let (lo, hi) = (lo.0.to_array(), hi.0.to_array());
        let mut v = self.0.to_array();
        for (i, x) in v.iter_mut().enumerate() {
            *x = if *x < lo[i] { lo[i] } else { *x };
            *x = if *x > hi[i] { hi[i] } else { *x };
        }
        Self(wide::f64x4::new(v))
    }

    #[inline(always)]
    unsafe fn compress(self, mask: u32) -> Self {
        let (v, mut packed, mut to) = (self.0.to_array(), [0.0; 4], 0);
        for (lane, x) in v.into_iter().enumerate() {
            if mask >> lane & 1 == 1 {
                packed[to] = x;
                to += 1;
            }
        }
        Self(wide::f64x4::new(packed))
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; 16]) {
        let m: [[f64; 4]; 4] = core::array::from_fn(|i| rows[i].0.to_array());
        for (c, row) in rows.iter_mut().enumerate().take(4) {
            *row = Self(wide::f64x4::new(core::array::from_fn(|i| m[i][c])));
        }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self(self.0 - b.0)
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self(self.0 * b.0)
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self(self.0 / b.0)
    }

    #[inline(always)]
    unsafe fn or_if_negative(self, b: Self) -> Self {
        let (x, b) = (self.0.to_array(), b.0.to_array());
        Self(wide::f64x4::new(core::array::from_fn(|i| if x[i] < 0.0 { b[i] } else { x[i] })))
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(self) -> Self {
        Self(wide::f64x4::new(self.0.to_array().map(|x| f64::from_bits(x.to_bits() << 52))))
    }

    #[inline(always)]
    unsafe fn is_finite(self) -> bool {
        self.0.to_array().iter().all(|x| x.is_finite())
    }

    #[inline(always)]
    unsafe fn load_mask(p: *const f64, mask: u32) -> Self {
        let mut lanes = [0.0; 4];
        for (i, lane) in lanes.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                // SAFETY: the caller promises that the elements of the mask are readable.
                *lane = unsafe { *p.wrapping_add(i) };
            }
        }
        Self(wide::f64x4::new(lanes))
    }

    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f64) {
        // SAFETY: the caller promises LANES writable elements.
        unsafe { self.store(p) };
    }

    #[inline(always)]
    fn fence() {}

    #[inline(always)]
    unsafe fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
        let elements = v.map(|v| v.0.to_array());
        let mut every = v;
        for (p, every) in every.iter_mut().enumerate() {
            let element = |lane: usize| elements[(p + M * lane) / 4][(p + M * lane) % 4];
            *every = Self(wide::f64x4::new(core::array::from_fn(element)));
        }
        every
    }

    #[inline(always)]
    unsafe fn lanes(mask: u32) -> wide::f64x4 {
        let mut lanes = [0.0; 4];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = f64::from_bits(if mask >> i & 1 == 1 { u64::MAX } else { 0 });
        }
        wide::f64x4::new(lanes)
    }

    #[inline(always)]
    unsafe fn load_of(p: *const f64, lanes: wide::f64x4) -> Self {
        // SAFETY: the caller's promise of memory.
        Self(unsafe { Self::load(p) }.0 & lanes)
    }

    lanes_by_zeros!();

    #[inline(always)]
    unsafe fn mask(position: isize, width: usize) -> (usize, usize) {
        lanes_in_row(Self::LANES, position, width)
    }

    #[inline(always)]
    unsafe fn load_lanes(p: *const f64, (from, to): (usize, usize)) -> Self {
        if (from, to) == (0, 4) {
            // SAFETY: the caller promises that all lanes are readable.
            return unsafe { Self::load(p) };
        }
        let mut lanes = [0.0; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(to).skip(from) {
            // SAFETY: lane i is set, and the caller promises that it is readable.
            *lane = unsafe { *p.wrapping_add(i) };
        }
        Self(wide::f64x4::new(lanes))
    }

    #[inline(always)]
    unsafe fn zip(self, b: Self) -> (Self, Self) {
        let (a, b) = (self.0.to_array(), b.0.to_array());
        let lane = |i: usize| if i.is_multiple_of(2) { a[i / 2] } else { b[i / 2] };
        (
            Self(wide::f64x4::new(core::array::from_fn(lane))),
            Self(wide::f64x4::new(core::array::from_fn(|i| lane(i + 4)))),
        )
    }
}

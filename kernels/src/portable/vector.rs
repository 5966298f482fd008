//! The vectors of the `wide` crate as [`Simd`] vectors. They use what the compilation target
//! guarantees, on any target.

use crate::simd::{Accumulator, Simd, UnitSums, broadcast_scalars, lanes_by_zeros, lanes_in_row};

/// Two registers of 128 bits as one vector. What goes lane by lane is a call: inlined at every place, it
/// would be a quarter of what the tier takes to compile.
macro_rules! vector {
    ($name:ident($wide:ty): $lanes:literal of $elem:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name($wide);

        impl Accumulator for $name {
            type Elem = $elem;
            const LANES: usize = $lanes;
            const REGISTERS: usize = 2;
            broadcast_scalars!();

            #[inline(always)]
            unsafe fn splat(x: $elem) -> Self {
                Self(<$wide>::splat(x))
            }

            #[inline(always)]
            unsafe fn load(p: *const $elem) -> Self {
                // SAFETY: the caller promises LANES readable elements; an array has its element's
                // alignment.
                Self(<$wide>::new(unsafe { p.cast::<[$elem; $lanes]>().read() }))
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut $elem) {
                // SAFETY: the caller promises LANES writable elements; an array has its element's
                // alignment.
                unsafe { p.cast::<[$elem; $lanes]>().write(self.0.to_array()) };
            }

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                Self(self.0 + b.0)
            }

            #[inline(never)]
            unsafe fn load_first(p: *const $elem, n: usize) -> Self {
                // SAFETY: the caller's promise of memory.
                unsafe { Self::load_mask(p, crate::simd::first_lanes(n)) }
            }

            #[inline(never)]
            unsafe fn store_first(self, p: *mut $elem, n: usize) {
                for (i, lane) in self.0.to_array().into_iter().enumerate().take(n) {
                    // SAFETY: i < n, and the caller promises n writable elements.
                    unsafe { *p.add(i) = lane };
                }
            }

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                Self(self.0.mul_add(b.0, c.0))
            }

            #[inline(always)]
            fn clamp(self, lo: Self, hi: Self) -> Self {
                let (lo, hi) = (lo.0.to_array(), hi.0.to_array());
                let mut v = self.0.to_array();
                for (i, x) in v.iter_mut().enumerate() {
                    *x = if *x < lo[i] { lo[i] } else { *x };
                    *x = if *x > hi[i] { hi[i] } else { *x };
                }
                Self(<$wide>::new(v))
            }
        }

        impl Simd for $name {
            type Lanes = $wide;
            type Mask = (usize, usize);

            #[inline(never)]
            fn compress(self, mask: u32) -> Self {
                let (v, mut packed, mut to) = (self.0.to_array(), [0.0; $lanes], 0);
                for (lane, x) in v.into_iter().enumerate() {
                    if mask >> lane & 1 == 1 {
                        packed[to] = x;
                        to += 1;
                    }
                }
                Self(<$wide>::new(packed))
            }

            #[inline(never)]
            fn transpose(rows: &mut [Self; 16]) {
                let m: [[$elem; $lanes]; $lanes] = core::array::from_fn(|i| rows[i].0.to_array());
                for (c, row) in rows.iter_mut().enumerate().take($lanes) {
                    *row = Self(<$wide>::new(core::array::from_fn(|i| m[i][c])));
                }
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                Self(self.0 - b.0)
            }

            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                Self(self.0 * b.0)
            }

            #[inline(always)]
            fn div(self, b: Self) -> Self {
                Self(self.0 / b.0)
            }

            #[inline(always)]
            fn or_if_negative(self, b: Self) -> Self {
                let (x, b) = (self.0.to_array(), b.0.to_array());
                Self(<$wide>::new(core::array::from_fn(|i| if x[i] < 0.0 { b[i] } else { x[i] })))
            }

            #[inline(always)]
            fn low_bits_as_exponent(self) -> Self {
                Self(<$wide>::new(
                    self.0.to_array().map(|x| $elem::from_bits(x.to_bits() << ($elem::MANTISSA_DIGITS - 1))),
                ))
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.0.to_array().iter().all(|x| x.is_finite())
            }

            #[inline(never)]
            unsafe fn load_mask(p: *const $elem, mask: u32) -> Self {
                let mut lanes = [0.0; $lanes];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    if mask >> i & 1 == 1 {
                        // SAFETY: the caller promises that the elements of the mask are readable.
                        *lane = unsafe { *p.wrapping_add(i) };
                    }
                }
                Self(<$wide>::new(lanes))
            }

            #[inline(always)]
            fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M] {
                let elements = v.map(|v| v.0.to_array());
                let mut every = v;
                for (p, every) in every.iter_mut().enumerate() {
                    let element = |lane: usize| elements[(p + M * lane) / $lanes][(p + M * lane) % $lanes];
                    *every = Self(<$wide>::new(core::array::from_fn(element)));
                }
                every
            }

            #[inline(always)]
            unsafe fn lanes(mask: u32) -> $wide {
                let mut lanes = [0.0; $lanes];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = $elem::from_bits(if mask >> i & 1 == 1 { !0 } else { 0 });
                }
                <$wide>::new(lanes)
            }

            #[inline(always)]
            unsafe fn load_of(p: *const $elem, lanes: $wide) -> Self {
                // SAFETY: the caller's promise of memory.
                Self(unsafe { Self::load(p) }.0 & lanes)
            }

            lanes_by_zeros!();

            #[inline(always)]
            unsafe fn mask(position: isize, width: usize) -> (usize, usize) {
                lanes_in_row(Self::LANES, position, width)
            }

            #[inline(always)]
            unsafe fn load_lanes(p: *const $elem, (from, to): (usize, usize)) -> Self {
                if (from, to) == (0, $lanes) {
                    // SAFETY: the caller promises that all lanes are readable.
                    return unsafe { Self::load(p) };
                }
                let mut lanes = [0.0; $lanes];
                for (i, lane) in lanes.iter_mut().enumerate().take(to).skip(from) {
                    // SAFETY: lane i is set, and the caller promises that it is readable.
                    *lane = unsafe { *p.wrapping_add(i) };
                }
                Self(<$wide>::new(lanes))
            }

            #[inline(always)]
            fn zip(self, b: Self) -> (Self, Self) {
                let (a, b) = (self.0.to_array(), b.0.to_array());
                let lane = |i: usize| if i.is_multiple_of(2) { a[i / 2] } else { b[i / 2] };
                (
                    Self(<$wide>::new(core::array::from_fn(lane))),
                    Self(<$wide>::new(core::array::from_fn(|i| lane(i + $lanes)))),
                )
            }
        }
    };
}
vector!(F32x8(wide::f32x8): 8 of f32);
vector!(F64x4(wide::f64x4): 4 of f64);

/// 8 units of two values of 16 bits, or 8 sums of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Pairs8(wide::i32x8);

impl UnitSums for Pairs8 {}

impl Accumulator for Pairs8 {
    type Elem = i32;
    const LANES: usize = 8;
    const REGISTERS: usize = 2;
    type Scalars = wide::i16x16;
    const SCALARS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self {
        Self(wide::i32x8::splat(x))
    }

    #[inline(always)]
    unsafe fn load(p: *const i32) -> Self {
        // SAFETY: the caller promises 8 readable elements; an array has its element's alignment.
        Self(wide::i32x8::new(unsafe { p.cast::<[i32; 8]>().read() }))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: the caller promises 8 writable elements; an array has its element's alignment.
        unsafe { p.cast::<[i32; 8]>().write(self.0.to_array()) };
    }

    #[inline(always)]
    unsafe fn load_scalars(p: *const i32, _: usize) -> wide::i16x16 {
        // SAFETY: the caller promises one element.
        pulp::bytemuck::cast(wide::i32x8::splat(unsafe { p.read_unaligned() }))
    }

    #[inline(always)]
    fn mul_add_scalar(self, scalars: wide::i16x16, _: usize, c: Self) -> Self {
        Self(pulp::bytemuck::cast::<_, wide::i16x16>(self.0).dot(scalars) + c.0)
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Self(self.0 + b.0)
    }

    #[inline(never)]
    unsafe fn load_first(p: *const i32, n: usize) -> Self {
        let mut lanes = [0; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n readable elements.
            *lane = unsafe { *p.add(i) };
        }
        Self(wide::i32x8::new(lanes))
    }

    #[inline(never)]
    unsafe fn store_first(self, p: *mut i32, n: usize) {
        for (i, lane) in self.0.to_array().into_iter().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n writable elements.
            unsafe { *p.add(i) = lane };
        }
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        b.mul_add_scalar(pulp::bytemuck::cast(self.0), 0, c)
    }

    #[inline(always)]
    fn clamp(self, lo: Self, hi: Self) -> Self {
        Self(self.0.max(lo.0).min(hi.0))
    }
}

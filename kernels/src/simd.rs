//! The vocabulary that the generic kernels are written in: one vector register of one ISA.

use crate::Real;

/// Elements of the shortest rows that parts can be loaded of: where the ISA has no masked loads,
/// vectors of that many lanes are loaded whole.
pub(crate) const LEAST_ROW: usize = 4;

/// One vector register.
///
/// # Safety
/// Every method may use the instructions of the implementing ISA: callers run on a CPU that has it,
/// inside a function that enables it, so that all of it is inlined there. Pointer arguments follow
/// the rule of each method.
pub(crate) trait Simd: Copy {
    /// The element type.
    type Elem: Real;
    /// Elements in a register; at most 32, so that a mask of lanes fits `u32`.
    const LANES: usize;
    /// Vector registers of the ISA.
    const REGISTER_FILE: usize = 16;
    /// The mask with every lane set.
    const ALL: u32 = ((1_u64 << Self::LANES) - 1) as u32;

    /// Registers that a vector takes.
    const REGISTERS: usize;

    /// The lanes of a vector that lie in a row, in the form that loads of them take.
    type Mask: Copy;

    /// Any lanes of a vector, in the form that [`load_of`](Self::load_of) and
    /// [`mul_add_of`](Self::mul_add_of) take.
    type Lanes: Copy;

    /// Neighbouring scalars that multiply vectors: a broadcast of one, or a register full of them
    /// where the ISA multiplies by a lane of it.
    type Scalars: Copy;
    /// How many a `Scalars` holds.
    const SCALARS: usize;

    /// All lanes `x`.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn splat(x: Self::Elem) -> Self;

    /// `LANES` elements from `p`, of any alignment.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is readable for `LANES` elements.
    unsafe fn load(p: *const Self::Elem) -> Self;

    /// The first `n` scalars from `p`, or [`SCALARS`](Self::SCALARS) if that is less.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is readable for that many elements, `n > 0`; nothing else is
    /// touched.
    unsafe fn load_scalars(p: *const Self::Elem, n: usize) -> Self::Scalars;

    /// `self * scalars[i] + c`, fused where the ISA has it.
    ///
    /// # Safety
    /// CPU: the ISA. `i` is less than `SCALARS`, and known to the compiler once loops are unrolled.
    unsafe fn mul_add_scalar(self, scalars: Self::Scalars, i: usize, c: Self) -> Self;

    /// Asks for the cache line at `p` in the L2 cache; where the ISA has no such instruction,
    /// nothing. Any address will do: it never faults.
    fn prefetch(p: *const Self::Elem);

    /// As [`prefetch`](Self::prefetch), into the L1 cache.
    fn prefetch_near(p: *const Self::Elem) {
        Self::prefetch(p);
    }

    /// `LANES` elements to `p`, of any alignment.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is writable for `LANES` elements.
    unsafe fn store(self, p: *mut Self::Elem);

    /// The first `n` elements from `p`; the other lanes are zero.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is readable for `n <= LANES` elements; nothing else is touched.
    unsafe fn load_first(p: *const Self::Elem, n: usize) -> Self;

    /// `LANES` elements to `p`, past the caches where the ISA can: for data that will not be read
    /// soon. [`fence`](Self::fence) orders such stores before whatever follows.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is writable for `LANES` elements, and aligned to the size of the
    /// vector.
    unsafe fn store_past_cache(self, p: *mut Self::Elem);

    /// Makes stores past the caches visible before any later store.
    fn fence();

    /// The elements from `p` whose bit is set in `mask`; the other lanes are zero.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: those elements are readable; nothing else is touched, and `p` may
    /// point anywhere beside them.
    unsafe fn load_mask(p: *const Self::Elem, mask: u32) -> Self;

    /// The first `n` lanes to `p`.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is writable for `n <= LANES` elements; nothing else is touched.
    unsafe fn store_first(self, p: *mut Self::Elem, n: usize);

    /// `self * b + c`, fused where the ISA has it.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;

    /// `self + b`.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn add(self, b: Self) -> Self;

    /// `self - b`.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn sub(self, b: Self) -> Self;

    /// `self * b`.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn mul(self, b: Self) -> Self;

    /// Whether all lanes are finite.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn is_finite(self) -> bool;

    /// `min(max(self, lo), hi)` where a NaN in `self` stays NaN.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn clamp(self, lo: Self, hi: Self) -> Self;

    /// The lanes whose bit is set in `mask`, moved to the front in order; what the other lanes hold
    /// is unspecified.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn compress(self, mask: u32) -> Self;

    /// Transposes the `LANES` x `LANES` matrix whose rows are `rows[0..LANES]`.
    ///
    /// # Safety
    /// CPU: the ISA. `rows.len() >= LANES`.
    unsafe fn transpose(rows: &mut [Self; 16]);

    /// Of `M * LANES` consecutive elements in `v`, every M-th: vector p holds elements p, p + M, p + 2 M and so on.
    ///
    /// # Safety
    /// CPU: the ISA. `M <= 8`.
    unsafe fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M];

    /// The elements of even index of `self` followed by `b`, and those of odd index.
    ///
    /// # Safety
    /// CPU: the ISA.
    #[inline(always)]
    unsafe fn unzip(self, b: Self) -> (Self, Self) {
        // SAFETY: the caller's promise of the ISA.
        let [even, odd] = unsafe { Self::deinterleave([self, b]) };
        (even, odd)
    }

    /// The lanes that lie in a row of `width` elements where lane 0 is at `position` of it, which
    /// may be outside.
    ///
    /// # Safety
    /// CPU: the ISA. `width` is at least [`LEAST_ROW`].
    unsafe fn mask(position: isize, width: usize) -> Self::Mask;

    /// The lanes of `mask` from `p`, which is where lane 0 would be; the other lanes are zero.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: the row that the mask was made for is readable, `p` being at its
    /// position; nothing else is touched.
    unsafe fn load_lanes(p: *const Self::Elem, mask: Self::Mask) -> Self;

    /// Whether [`load_over`](Self::load_over), [`load_halves`](Self::load_halves),
    /// [`store_halves`](Self::store_halves), [`every_second`](Self::every_second),
    /// [`behind_last_of`](Self::behind_last_of) and [`before_first_of`](Self::before_first_of) are
    /// there; elsewhere they panic.
    const MASKS: bool = false;

    /// As [`load_mask`](Self::load_mask), but the other lanes are those of `self`.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: as `load_mask`.
    #[inline(always)]
    unsafe fn load_over(self, _: *const Self::Elem, _: u32) -> Self {
        unreachable!("not for this ISA")
    }

    /// The last lane of `v`, and then all but the last of `self`.
    ///
    /// # Safety
    /// CPU: the ISA.
    #[inline(always)]
    unsafe fn behind_last_of(self, _v: Self) -> Self {
        unreachable!("not for this ISA")
    }

    /// All but the first lane of `self`, and then the first of `v`.
    ///
    /// # Safety
    /// CPU: the ISA.
    #[inline(always)]
    unsafe fn before_first_of(self, _v: Self) -> Self {
        unreachable!("not for this ISA")
    }

    /// In the low half of the lanes the elements from `low` whose bit is set in the first mask, in
    /// the high half those from `high` in the second one; the other lanes are zero.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: those elements are readable; nothing else is touched, and either may
    /// point anywhere beside them.
    #[inline(always)]
    unsafe fn load_halves(_low: *const Self::Elem, _high: *const Self::Elem, _masks: [u32; 2]) -> Self {
        unreachable!("not for this ISA")
    }

    /// The first `n` lanes of the low half to `low`, those of the high half to `high`.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: both are writable for `n <= LANES / 2` elements; nothing else is
    /// touched.
    #[inline(always)]
    unsafe fn store_halves(self, _low: *mut Self::Elem, _high: *mut Self::Elem, _n: usize) {
        unreachable!("not for this ISA")
    }

    /// Every second element of `self` followed by `b`, from index `from` on; where there is none,
    /// zero.
    ///
    /// # Safety
    /// CPU: the ISA. `from` is -1 or 2.
    #[inline(always)]
    unsafe fn every_second(self, _: Self, _: isize) -> Self {
        unreachable!("not for this ISA")
    }

    /// The lanes whose bit is set in `mask`.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn lanes(mask: u32) -> Self::Lanes;

    /// `LANES` elements from `p`, of any alignment, for [`mul_add_of`](Self::mul_add_of) with the
    /// same `lanes`.
    ///
    /// # Safety
    /// CPU: the ISA. Memory: `p` is readable for `LANES` elements.
    unsafe fn load_of(p: *const Self::Elem, lanes: Self::Lanes) -> Self;

    /// [`mul_add_scalar`](Self::mul_add_scalar) in the lanes `lanes`, for what
    /// [`load_of`](Self::load_of) loaded; in the others, where the scalar is finite, `c`.
    ///
    /// # Safety
    /// CPU: the ISA. `i` is less than `SCALARS`, and known to the compiler once loops are unrolled.
    unsafe fn mul_add_of(self, scalars: Self::Scalars, i: usize, c: Self, lanes: Self::Lanes) -> Self;

    /// `p + step`, as a value that the compiler knows nothing about: it would compute the addresses
    /// of all rows of a tile ahead, and keep them in memory.
    fn advance(p: *const Self::Elem, step: usize) -> *const Self::Elem {
        p.wrapping_add(step)
    }

    /// As [`advance`](Self::advance), and only known once `x` is: what is loaded from there comes
    /// after what made `x`, where the compiler would load all rows of a tile first, and keep them
    /// in memory.
    ///
    /// # Safety
    /// CPU: the ISA.
    #[inline(always)]
    unsafe fn advance_after(p: *const Self::Elem, step: usize, _x: Self) -> *const Self::Elem {
        Self::advance(p, step)
    }

    /// The lanes of `self` and `b` in turn: the first lanes of both, then the second ones, and so
    /// on, as two vectors.
    ///
    /// # Safety
    /// CPU: the ISA.
    unsafe fn zip(self, b: Self) -> (Self, Self);
}

/// The lanes `from..to` of a vector of `lanes` that lie in a row of `width` elements where lane 0
/// is at `position`; none if `from >= to`.
#[inline(always)]
pub(crate) fn lanes_in_row(lanes: usize, position: isize, width: usize) -> (usize, usize) {
    let most = lanes as isize;
    ((-position).clamp(0, most) as usize, (width as isize - position).clamp(0, most) as usize)
}

/// [`Simd::mul_add_of`] for ISAs whose [`Simd::load_of`] makes the other lanes zero.
macro_rules! lanes_by_zeros {
    () => {
        #[inline(always)]
        unsafe fn mul_add_of(self, scalars: Self::Scalars, i: usize, c: Self, _: Self::Lanes) -> Self {
            // SAFETY: the caller's promise.
            unsafe { self.mul_add_scalar(scalars, i, c) }
        }
    };
}
pub(crate) use lanes_by_zeros;

/// [`Simd`]'s scalars as broadcasts.
macro_rules! broadcast_scalars {
    () => {
        type Scalars = Self;
        const SCALARS: usize = 1;

        #[inline(always)]
        unsafe fn load_scalars(p: *const Self::Elem, _: usize) -> Self {
            // SAFETY: the caller's promise of ISA, and of one element at least.
            unsafe { Self::splat(*p) }
        }

        #[inline(always)]
        unsafe fn mul_add_scalar(self, scalars: Self, _: usize, c: Self) -> Self {
            // SAFETY: the caller runs where the ISA is.
            unsafe { scalars.mul_add(self, c) }
        }
    };
}
pub(crate) use broadcast_scalars;

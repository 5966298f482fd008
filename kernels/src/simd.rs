//! The vector type that the generic kernels are written in: one vector of one ISA.

use crate::Real;

/// Elements of a row that [`Simd::load_lanes`] reads from, at least. ISAs without masked loads load a
/// whole vector of so many lanes.
pub(crate) const LEAST_ROW: usize = 4;

/// A type of sums.
pub(crate) trait Value: Copy + Default + 'static {
    /// Bounds that clamp nothing.
    const LEAST: Self;
    const MOST: Self;
    /// Whether products with padding may be left out, because padding is zero and weights are finite. Units have one type, and
    /// padding of some of them is a zero point.
    const LEAVES_OUT_PADDING: bool;
}

macro_rules! value {
    ($($t:ident: $least:ident to $most:ident, $leaves_out:literal;)+) => {$(
        impl Value for $t {
            const LEAST: Self = $t::$least;
            const MOST: Self = $t::$most;
            const LEAVES_OUT_PADDING: bool = $leaves_out;
        }
    )+};
}
value!(f32: NEG_INFINITY to INFINITY, true; f64: NEG_INFINITY to INFINITY, true; i32: MIN to MAX, false;);

/// A vector of sums, and how products are added to it: what the tile of a GEMM needs.
///
/// A vector is one SIMD register, or two where one is too short.
///
/// # Safety
/// Every method may use the instructions of the implementing ISA. Callers run on a CPU that has
/// it, inside a function that enables it, so that all methods are inlined there. A vector is the proof of
/// that, because only unsafe functions make one from nothing. So methods that take one are safe, unless
/// they access memory; and unsafe ones ask for nothing more unless they state it.
pub(crate) trait Accumulator: Copy {
    /// The element type. Its default is zero.
    type Elem: Value;
    /// Elements of a vector: at most 32, so that a mask of lanes fits `u32`.
    const LANES: usize;
    const REGISTERS: usize;

    /// Whether the ISA has masked loads and stores. Only then may [`load_over`](Simd::load_over),
    /// [`every_second`](Simd::every_second), [`behind_last_of`](Simd::behind_last_of) and
    /// [`before_first_of`](Simd::before_first_of) be called; elsewhere they panic.
    const MASKS: bool = false;

    /// Neighbouring scalars that multiply vectors: a broadcast, or a register of several scalars if the
    /// ISA can multiply by one of its lanes.
    type Scalars: Copy;
    /// Scalars of one `Scalars`.
    const SCALARS: usize;

    /// All lanes are `x`.
    unsafe fn splat(x: Self::Elem) -> Self;

    /// Loads `LANES` elements from `p`, at any alignment.
    ///
    /// # Safety
    /// Memory: `p` is readable for `LANES` elements.
    unsafe fn load(p: *const Self::Elem) -> Self;

    /// Stores `LANES` elements to `p`, at any alignment.
    ///
    /// # Safety
    /// Memory: `p` is writable for `LANES` elements.
    unsafe fn store(self, p: *mut Self::Elem);

    /// Loads the first `min(n, SCALARS)` scalars from `p`, at any alignment.
    ///
    /// # Safety
    /// Memory: `n > 0`, and `p` is readable for that many elements; nothing else is
    /// touched.
    unsafe fn load_scalars(p: *const Self::Elem, n: usize) -> Self::Scalars;

    /// `self * scalars[i] + c`, fused if the ISA can. `i < SCALARS` must be known to the compiler once
    /// loops are unrolled. Of units, all values are multiplied, and added to the sum: `self` are those of W.
    fn mul_add_scalar(self, scalars: Self::Scalars, i: usize, c: Self) -> Self;

    /// `self + b`.
    fn add(self, b: Self) -> Self;

    /// Loads the first `n` elements from `p`; the other lanes are zero.
    ///
    /// # Safety
    /// Memory: `p` is readable for `n <= LANES` elements; nothing else is touched.
    unsafe fn load_first(p: *const Self::Elem, n: usize) -> Self;

    /// Stores the first `n` lanes to `p`.
    ///
    /// # Safety
    /// Memory: `p` is writable for `n <= LANES` elements; nothing else is touched.
    unsafe fn store_first(self, p: *mut Self::Elem, n: usize);

    /// `self * b + c`, fused if the ISA can. Of units, `self` are those of X.
    fn mul_add(self, b: Self, c: Self) -> Self;

    /// `min(max(self, lo), hi)`. A NaN in `self` stays NaN.
    fn clamp(self, lo: Self, hi: Self) -> Self;

    /// `p`. Loads that stand before the call come before those from `p`, where the compiler can be told so: it
    /// otherwise collects the loads of a loop that it has unrolled, more than the registers hold.
    #[inline(always)]
    fn in_order(p: *const Self::Elem) -> *const Self::Elem {
        p
    }
}

/// A register of sums of 32 bits, which are finished as bytes.
pub(crate) trait UnitSums: Accumulator<Elem = i32> {
    /// Whether [`store_bytes`](Self::store_bytes) may be called. Elsewhere it panics.
    const PACKS: bool = false;

    /// Stores a byte for each of the first `n` lanes of four vectors at each `y`: `sum * scale`, rounded to the nearest
    /// integer, or to the even one of two, plus `zero`, saturated. `n` is `LANES` if `WHOLE`, and without masks.
    ///
    /// # Safety
    /// Memory: `scale` is readable, and each `y` writable, for `n` elements.
    unsafe fn store_bytes<const SIGNED: bool, const WHOLE: bool>(
        _: [Self; 4],
        _scale: *const f32,
        _zero: i32,
        (_y, _n): ([*mut u8; 4], usize),
    ) {
        unimplemented!("no instructions that saturate");
    }

    /// Whether [`interleave`](Self::interleave) may be called. Elsewhere it panics.
    const INTERLEAVES: bool = false;

    /// Units whose values are the bytes of four rows, for `4 * LANES` bytes of each.
    ///
    /// # Safety
    /// Memory: each row is readable for so many bytes.
    unsafe fn interleave(_: [*const u8; 4]) -> [Self; 4] {
        unimplemented!("no units of bytes");
    }

    /// The bits that differ.
    fn xor(self, _: Self) -> Self {
        unimplemented!("no units of bytes");
    }
}

/// What kernels of floating-point numbers do with a vector.
///
/// # Safety
/// As [`Accumulator`].
pub(crate) trait Simd: Accumulator<Elem: Real> {
    /// That of its ISA: see [`Isa::has_spare_pointers`](crate::Isa::has_spare_pointers).
    const SPARE_POINTERS: bool = true;
    const REGISTER_FILE: usize = 16;
    /// The mask with every lane set.
    const ALL: u32 = first_lanes(Self::LANES);

    /// The lanes of a vector that lie inside a row, in the form that
    /// [`load_lanes`](Self::load_lanes) takes.
    type Mask: Copy;

    /// Any set of lanes, in the form that [`load_of`](Self::load_of) and
    /// [`mul_add_of`](Self::mul_add_of) take.
    type Lanes: Copy;

    /// All lanes are `x`, if a vector shows that the ISA is there.
    #[inline(always)]
    fn splat_beside(self, x: Self::Elem) -> Self {
        // SAFETY: the caller runs where the ISA is, as `self` shows.
        unsafe { Self::splat(x) }
    }

    /// The words of 32 bits that `words` lists, an index into the vector's own words for each of them. Words of an
    /// element follow one another.
    ///
    /// # Safety
    /// Memory: `words` is readable for as many as a vector has. Each is an index below their number.
    #[inline(always)]
    unsafe fn permute(self, words: *const u32) -> Self {
        let of_element = size_of::<Self::Elem>() / size_of::<u32>();
        let (mut from, mut to) = ([Self::Elem::ZERO; 32], [Self::Elem::ZERO; 32]);
        // SAFETY: no vector has more lanes than the arrays. The caller promises the words.
        unsafe {
            self.store(from.as_mut_ptr());
            for (lane, to) in to.iter_mut().enumerate().take(Self::LANES) {
                *to = from[*words.add(lane * of_element) as usize / of_element];
            }
            Self::load(to.as_ptr())
        }
    }

    /// Prefetches the cache line at `p` into the L2 cache, or does nothing if the ISA cannot. Any
    /// address is allowed.
    #[inline(always)]
    fn prefetch(_p: *const Self::Elem) {}

    /// As [`prefetch`](Self::prefetch), into the L1 cache.
    #[inline(always)]
    fn prefetch_near(p: *const Self::Elem) {
        Self::prefetch(p);
    }

    /// Stores `LANES` elements to `p`, past the caches where the ISA can. This is for data that
    /// will not be read soon. [`fence`](Self::fence) orders such stores before whatever follows.
    ///
    /// # Safety
    /// Memory: `p` is writable for `LANES` elements, and aligned to the size of the
    /// vector.
    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut Self::Elem) {
        // SAFETY: the caller's promise.
        unsafe { self.store(p) }
    }

    #[inline(always)]
    fn fence() {}

    /// Loads the elements from `p` for the bits that are set in `mask`; the other lanes are zero.
    ///
    /// # Safety
    /// Memory: the selected elements are readable; nothing else is touched. `p`
    /// itself may point anywhere.
    unsafe fn load_mask(p: *const Self::Elem, mask: u32) -> Self;

    /// `self - b`.
    fn sub(self, b: Self) -> Self;

    /// `self * b`.
    fn mul(self, b: Self) -> Self;

    /// `self / b`.
    fn div(self, b: Self) -> Self;

    /// `b` in lanes where `self` is negative, `self` in the others.
    fn or_if_negative(self, b: Self) -> Self;

    /// Shifts the bits of each lane left by the length of the mantissa: an integer in the lowest bits
    /// becomes sign and exponent.
    fn low_bits_as_exponent(self) -> Self;

    /// Whether all lanes are finite.
    fn is_finite(self) -> bool;

    /// Moves the lanes in `mask` to the front, in order. The other lanes of the result are unspecified.
    fn compress(self, mask: u32) -> Self;

    /// Transposes the `LANES` x `LANES` matrix with the rows `rows[0..LANES]`.
    fn transpose(rows: &mut [Self; 16]);

    /// Splits `M * LANES` consecutive elements by their index modulo M: vector p of the result holds
    /// elements p, p + M, p + 2 M, ... of `v`.
    fn deinterleave<const M: usize>(v: [Self; M]) -> [Self; M];

    /// Splits the elements of `self` followed by those of `b`: those of even index first.
    #[inline(always)]
    fn unzip(self, b: Self) -> (Self, Self) {
        let [even, odd] = Self::deinterleave([self, b]);
        (even, odd)
    }

    /// The lanes that lie inside a row of `width` elements, for a vector with lane 0 at
    /// `position` of the row. The position may be outside of the row.
    ///
    /// # Safety
    /// `width` is at least [`LEAST_ROW`].
    unsafe fn mask(position: isize, width: usize) -> Self::Mask;

    /// Loads the lanes of `mask`; the other lanes are zero. `p` is the address of lane 0.
    ///
    /// # Safety
    /// Memory: the row that the mask was made for is readable, and `p` is at the
    /// position that the mask was made for; nothing else is touched.
    unsafe fn load_lanes(p: *const Self::Elem, mask: Self::Mask) -> Self;

    /// Loads as [`load_mask`](Self::load_mask), but keeps the other lanes of `self`.
    ///
    /// # Safety
    /// Memory: as `load_mask`.
    #[inline(always)]
    unsafe fn load_over(self, _: *const Self::Elem, _: u32) -> Self {
        unreachable!("not for this ISA")
    }

    /// The last lane of `v`, followed by all lanes of `self` but the last.
    #[inline(always)]
    fn behind_last_of(self, _v: Self) -> Self {
        unreachable!("not for this ISA")
    }

    /// All lanes of `self` but the first, followed by the first lane of `v`.
    #[inline(always)]
    fn before_first_of(self, _v: Self) -> Self {
        unreachable!("not for this ISA")
    }

    /// Every second element, from index `from` (-1 or 2) on, of `self` followed by `b`. Indices out of
    /// range give zero.
    #[inline(always)]
    fn every_second(self, _: Self, _: isize) -> Self {
        unreachable!("not for this ISA")
    }

    /// The lanes that have a bit set in `mask`.
    unsafe fn lanes(mask: u32) -> Self::Lanes;

    /// Loads `LANES` elements from `p`, at any alignment, for a [`mul_add_of`](Self::mul_add_of)
    /// with the same `lanes`.
    ///
    /// # Safety
    /// Memory: `p` is readable for `LANES` elements.
    unsafe fn load_of(p: *const Self::Elem, lanes: Self::Lanes) -> Self;

    /// Multiplies and adds in `lanes`, as [`mul_add_scalar`](Self::mul_add_scalar); `self` was loaded by
    /// [`load_of`](Self::load_of). Other lanes are those of `c` if the scalar is finite.
    fn mul_add_of(self, scalars: Self::Scalars, i: usize, c: Self, lanes: Self::Lanes) -> Self;

    /// `p + step`, opaque to the compiler. Otherwise it would compute the addresses of all rows of a
    /// tile first, and keep them in memory.
    #[inline(always)]
    fn advance(p: *const Self::Elem, step: usize) -> *const Self::Elem {
        p.wrapping_add(step)
    }

    /// Interleaves the lanes of `self` and `b` into two vectors: the first lanes of both, then the
    /// second lanes, ...
    fn zip(self, b: Self) -> (Self, Self);
}

/// Prefetches the cache line at `p` into the L2 cache, as [`Simd::prefetch`]. The instruction is part of
/// x86-64 and of AArch64.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults on no
    // address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    // SAFETY: as above. There is no stable intrinsic.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }
    let _ = p;
}

/// A mask of the first `n <= 32` lanes.
#[inline(always)]
pub(crate) const fn first_lanes(n: usize) -> u32 {
    ((1_u64 << n) - 1) as u32
}

/// The lanes `from..to` inside a row of `width` elements, for a vector with lane 0 at `position` of the
/// row. None if `from >= to`.
#[inline(always)]
pub(crate) fn lanes_in_row(lanes: usize, position: isize, width: usize) -> (usize, usize) {
    let most = lanes as isize;
    ((-position).clamp(0, most) as usize, (width as isize - position).clamp(0, most) as usize)
}

/// The lanes of [`lanes_in_row`] as a mask.
#[inline(always)]
pub(crate) fn mask_in_row(lanes: usize, position: isize, width: usize) -> u32 {
    let (from, to) = lanes_in_row(lanes, position, width);
    first_lanes(to) & !first_lanes(from)
}

/// Implements [`Simd::mul_add_of`] for ISAs whose [`Simd::load_of`] zeroes the other lanes.
macro_rules! lanes_by_zeros {
    () => {
        #[inline(always)]
        fn mul_add_of(self, scalars: Self::Scalars, i: usize, c: Self, _: Self::Lanes) -> Self {
            self.mul_add_scalar(scalars, i, c)
        }
    };
}
pub(crate) use lanes_by_zeros;

/// Implements the scalars of [`Simd`] as broadcasts.
macro_rules! broadcast_scalars {
    () => {
        type Scalars = Self;
        const SCALARS: usize = 1;

        #[inline(always)]
        unsafe fn load_scalars(p: *const Self::Elem, _: usize) -> Self {
            // SAFETY: the caller's promise of the ISA, and of at least one element.
            unsafe { Self::splat(p.read_unaligned()) }
        }

        #[inline(always)]
        fn mul_add_scalar(self, scalars: Self, _: usize, c: Self) -> Self {
            scalars.mul_add(self, c)
        }
    };
}
pub(crate) use broadcast_scalars;

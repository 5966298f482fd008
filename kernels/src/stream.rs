//! Streaming passes: loops over whole rows in plain Rust, which LLVM vectorises for the ISA that `pulp`
//! enables.

use core::mem::MaybeUninit;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

use crate::{Dest, Isa, Real};

/// A type that tensors are stored in. Computation is in [`Acc`](Storage::Acc). The trait is sealed.
pub trait Storage:
    Copy + Send + Sync + Default + PartialEq + core::fmt::Debug + private::SealedStorage + 'static
{
    /// The type of products and sums: the type itself for f32 and f64, f32 for the 16-bit types.
    type Acc: Real + Storage<Acc = Self::Acc>;
    /// Whether storage and computation have the same type, so that kernels access tensors directly.
    const DIRECT: bool;
    /// The unit round-off of the stored type.
    const UNIT_ROUNDOFF: f64;

    /// Converts the value, exactly.
    fn to_acc(self) -> Self::Acc;
    /// Rounds to the nearest stored value, ties to even.
    fn from_acc(x: Self::Acc) -> Self;
    /// Rounds to the nearest stored value, ties to even, in a single rounding.
    fn round_from_f64(x: f64) -> Self;
    /// `x` as a slice of the computing type, if it is the same type.
    fn as_acc(x: &[Self]) -> Option<&[Self::Acc]>;
    /// The destination as one of the computing type, if it is the same type.
    fn dest_as_acc(dest: Dest<'_, Self>) -> Option<Dest<'_, Self::Acc>>;
    #[doc(hidden)]
    fn widen_into(isa: Isa, src: &[Self], dst: &mut [Self::Acc]);
    #[doc(hidden)]
    fn narrow_into(isa: Isa, src: &[Self::Acc], dst: &mut [MaybeUninit<Self>]);
}

mod private {
    pub trait SealedStorage {}
    impl SealedStorage for f32 {}
    impl SealedStorage for f64 {}
    impl SealedStorage for half::f16 {}
    impl SealedStorage for half::bf16 {}
}

#[inline(always)]
fn write_copy<T: Copy>(dst: &mut [MaybeUninit<T>], src: &[T]) {
    assert_eq!(src.len(), dst.len());
    for (dst, src) in dst.iter_mut().zip(src) {
        dst.write(*src);
    }
}

macro_rules! direct_storage {
    ($t:ident) => {
        impl Storage for $t {
            type Acc = $t;
            const DIRECT: bool = true;
            const UNIT_ROUNDOFF: f64 = <$t as Real>::UNIT_ROUNDOFF;

            #[inline(always)]
            fn to_acc(self) -> $t {
                self
            }

            #[inline(always)]
            fn from_acc(x: $t) -> Self {
                x
            }

            #[inline(always)]
            fn round_from_f64(x: f64) -> Self {
                <$t as Real>::from_f64(x)
            }

            fn as_acc(x: &[Self]) -> Option<&[$t]> {
                Some(x)
            }

            #[inline(always)]
            fn dest_as_acc(dest: Dest<'_, Self>) -> Option<Dest<'_, $t>> {
                Some(dest)
            }

            #[inline(always)]
            fn widen_into(_: Isa, src: &[Self], dst: &mut [$t]) {
                dst.copy_from_slice(src);
            }

            #[inline(always)]
            fn narrow_into(_: Isa, src: &[$t], dst: &mut [MaybeUninit<Self>]) {
                write_copy(dst, src);
            }
        }
    };
}
direct_storage!(f32);
direct_storage!(f64);

/// Converts `x` to f32; an inexact value becomes the neighbour with the last bit set. Rounding
/// the result to fewer bits gives the same as rounding `x` once (Boldo and Melquiond, "Emulation
/// of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || x.is_nan() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(back.abs() > x.abs());
    f32::from_bits(toward_zero | 1)
}

/// Values that are converted at a time, in a buffer on the stack that stays in the L1 cache.
const CHUNK: usize = 256;

macro_rules! half_storage {
    ($t:ident, $digits:literal, $widen:ident, $narrow:ident) => {
        impl Storage for $t {
            type Acc = f32;
            const DIRECT: bool = false;
            const UNIT_ROUNDOFF: f64 = 1.0 / (1_u32 << $digits) as f64;

            #[inline(always)]
            fn to_acc(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn from_acc(x: f32) -> Self {
                Self::from_f32(x)
            }

            #[inline(always)]
            fn round_from_f64(x: f64) -> Self {
                <$t>::from_f32(round_to_odd(x))
            }

            fn as_acc(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn dest_as_acc(_: Dest<'_, Self>) -> Option<Dest<'_, f32>> {
                None
            }

            #[inline(always)]
            fn widen_into(isa: Isa, src: &[Self], dst: &mut [f32]) {
                $widen(isa, src, dst);
            }

            #[inline(always)]
            fn narrow_into(isa: Isa, src: &[f32], dst: &mut [MaybeUninit<Self>]) {
                assert_eq!(src.len(), dst.len());
                $narrow(isa, src, dst);
            }
        }
    };
}
half_storage!(f16, 11, widen_f16, narrow_f16);
half_storage!(bf16, 8, widen_bf16, narrow_bf16);

/// Returns what the conversion `$by` of the ISA gives, if there is one. On AArch64, `half` has vector code for
/// it only for CPUs with FEAT_FP16; on x86-64 none for sixteen values at a time.
macro_rules! convert_by_isa {
    ($by:ident: $isa:ident, $src:ident, $dst:ident) => {
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
        if $isa == Isa::Neon {
            return crate::convert::convert(&crate::aarch64::neon::convert::$by, $src, $dst);
        }
        #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
        if $isa == Isa::Avx512
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            return crate::convert::convert(&crate::x86_64::avx512::convert::$by(simd), $src, $dst);
        }
        let _ = $isa;
    };
}

#[inline(always)]
fn widen_f16(isa: Isa, src: &[f16], dst: &mut [f32]) {
    convert_by_isa!(Widening: isa, src, dst);
    src.convert_to_f32_slice(dst);
}

#[inline(always)]
fn narrow_f16(isa: Isa, src: &[f32], dst: &mut [MaybeUninit<f16>]) {
    convert_by_isa!(Narrowing: isa, src, dst);
    let mut buffer = [f16::ZERO; CHUNK];
    for (src, dst) in src.chunks(CHUNK).zip(dst.chunks_mut(CHUNK)) {
        let buffer = &mut buffer[..src.len()];
        buffer.convert_from_f32_slice(src);
        write_copy(dst, buffer);
    }
}

/// A shift, which vectorises on every ISA. `half` converts single values.
#[inline(always)]
fn widen_bf16(_: Isa, src: &[bf16], dst: &mut [f32]) {
    for (dst, src) in dst.iter_mut().zip(src) {
        *dst = f32::from_bits(u32::from(src.to_bits()) << 16);
    }
}

/// Rounds to nearest even, by a carry out of the dropped bits; without branches, so that it vectorises.
/// NaN becomes quiet, and keeps its sign.
#[inline(always)]
fn narrow_bf16(_: Isa, src: &[f32], dst: &mut [MaybeUninit<bf16>]) {
    for (dst, src) in dst.iter_mut().zip(src) {
        let bits = src.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        dst.write(bf16::from_bits(if src.is_nan() { quiet } else { nearest } as u16));
    }
}

/// A streaming pass: a struct of its operands, and the loop over them, which calls only
/// `#[inline(always)]` code. It is no closure, because the compiler may leave a closure outside of the
/// function that enables an ISA's instructions.
macro_rules! pass {
    ($name:ident<$t:ident: $bound:ident $(, const $n:ident)?> { $($field:ident: $type:ty),+ } $body:block) => {
        struct $name<'a, $t: $bound $(, const $n: usize)?> {
            $($field: $type),+
        }

        impl<'a, $t: $bound $(, const $n: usize)?> WithSimd for $name<'a, $t $(, $n)?> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) {
                let Self { $($field),+ } = self;
                $body
            }
        }
    };
}

/// Runs a pass with the instructions of `isa` enabled.
#[inline(always)]
fn with_isa(isa: Isa, pass: impl WithSimd<Output = ()>) {
    #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
    if isa == Isa::Avx512
        && let Some(simd) = pulp::x86::V4::try_new()
    {
        return Simd::vectorize(simd, pass);
    }
    #[cfg(all(target_arch = "x86_64", feature = "avx2"))]
    if isa >= Isa::Avx2
        && let Some(simd) = pulp::x86::V3::try_new()
    {
        return Simd::vectorize(simd, pass);
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
    if isa == Isa::Neon {
        return crate::aarch64::neon::pass(pass);
    }
    let _ = isa;
    Simd::vectorize(pulp::Scalar, pass);
}

/// `dst[i] = src[i]`, converted.
///
/// # Panics
/// If the lengths differ.
pub fn widen<T: Storage>(isa: Isa, src: &[T], dst: &mut [T::Acc]) {
    assert_eq!(src.len(), dst.len());
    if T::DIRECT {
        T::widen_into(isa, src, dst);
    } else {
        with_isa(isa, Widen { isa, src, dst });
    }
}

pass!(Widen<T: Storage> { isa: Isa, src: &'a [T], dst: &'a mut [T::Acc] } {
    T::widen_into(isa, src, dst);
});

/// `dst[i] = src[i * stride]`, converted.
///
/// # Panics
/// If `src` ends before the last element that is read, or `stride` is 0.
pub fn widen_strided<T: Storage>(isa: Isa, src: &[T], stride: usize, dst: &mut [T::Acc]) {
    assert!(stride > 0, "a stride of 0");
    match stride {
        1 => widen(isa, &src[..dst.len()], dst),
        2 => with_isa(isa, WidenStrided::<T, 2> { src, dst }),
        3 => with_isa(isa, WidenStrided::<T, 3> { src, dst }),
        4 => with_isa(isa, WidenStrided::<T, 4> { src, dst }),
        5 => with_isa(isa, WidenStrided::<T, 5> { src, dst }),
        8 => with_isa(isa, WidenStrided::<T, 8> { src, dst }),
        _ => {
            assert!(dst.len() <= src.len().div_ceil(stride));
            for (dst, src) in dst.iter_mut().zip(src.iter().step_by(stride)) {
                *dst = src.to_acc();
            }
        }
    }
}

pass!(WidenStrided<T: Storage, const STRIDE> { src: &'a [T], dst: &'a mut [T::Acc] } {
    let Some(last) = dst.len().checked_sub(1) else { return };
    assert!(last * STRIDE < src.len());
    let (body, tail) = dst.split_at_mut(last);
    for (dst, src) in body.iter_mut().zip(src.as_chunks::<STRIDE>().0) {
        *dst = src[0].to_acc();
    }
    tail[0] = src[last * STRIDE].to_acc();
});

/// Rounds `rows` rows of `len` elements to nearest even. They are `src_row` elements apart in `src`, and
/// `dst_row` in the destination.
///
/// # Panics
/// If the source or the destination ends before the last row does, or a row is longer than its
/// distance to the next one.
pub fn narrow_rows<T: Storage>(
    isa: Isa,
    (rows, len): (usize, usize),
    (src, src_row): (&[T::Acc], usize),
    (dst, dst_row): (&mut Dest<'_, T>, usize),
) {
    if rows == 0 || len == 0 {
        return;
    }
    assert!(rows == 1 || (len <= src_row && len <= dst_row), "rows overlap");
    assert!(reaches(src.len(), src_row, (rows, len)), "a row ends beyond its slice");
    assert!(reaches(dst.len(), dst_row, (rows, len)), "a row ends beyond the destination");
    with_isa(isa, NarrowRows { isa, rows, len, src, src_row, dst: dst.from(0), dst_row });
}

pass!(NarrowRows<T: Storage> {
    isa: Isa, rows: usize, len: usize, src: &'a [T::Acc], src_row: usize, dst: Dest<'a, T>, dst_row: usize
} {
    let mut dst = dst;
    for row in 0..rows {
        T::narrow_into(isa, &src[row * src_row..][..len], dst.row(row * dst_row, len));
    }
});

/// Whether `size` elements hold the rows, `distance` apart. There is at least one row.
fn reaches(size: usize, distance: usize, (rows, len): (usize, usize)) -> bool {
    (rows - 1).checked_mul(distance).is_some_and(|last| last <= size && len <= size - last)
}

/// `dst[i] = src[i]`, rounded to nearest even.
///
/// # Panics
/// If the lengths differ.
pub fn narrow<T: Storage>(isa: Isa, src: &[T::Acc], dst: &mut [MaybeUninit<T>]) {
    assert_eq!(src.len(), dst.len());
    let len = src.len();
    with_isa(isa, NarrowRows { isa, rows: 1, len, src, src_row: len, dst: Dest::from_uninit(dst), dst_row: len });
}

/// Packs a panel of B, `[kc][nr]`: row k is `src[k * ld..][..n]`, converted, followed by zeros.
///
/// # Panics
/// If `n > nr`, `nr` is 0, `dst` is not a whole number of rows, or `src` ends before the last row's
/// end.
pub fn pack_rows<T: Storage>(isa: Isa, src: &[T], ld: usize, n: usize, nr: usize, dst: &mut [T::Acc]) {
    assert!(nr > 0, "rows of no elements");
    assert!(n <= nr && dst.len() % nr == 0);
    let kc = dst.len() / nr;
    assert!(kc == 0 || (kc - 1).saturating_mul(ld).saturating_add(n) <= src.len());
    with_isa(isa, PackRows { isa, src, ld, n, nr, dst });
}

pass!(PackRows<T: Storage> { isa: Isa, src: &'a [T], ld: usize, n: usize, nr: usize, dst: &'a mut [T::Acc] } {
    match (n == nr, nr) {
        (true, 8) => copy_rows::<T, 8>(isa, src, ld, dst),
        (true, 12) => copy_rows::<T, 12>(isa, src, ld, dst),
        (true, 16) => copy_rows::<T, 16>(isa, src, ld, dst),
        (true, 32) => copy_rows::<T, 32>(isa, src, ld, dst),
        (true, 48) => copy_rows::<T, 48>(isa, src, ld, dst),
        (true, 64) => copy_rows::<T, 64>(isa, src, ld, dst),
        _ => {
            for (k, dst) in dst.chunks_exact_mut(nr).enumerate() {
                let (body, tail) = dst.split_at_mut(n);
                T::widen_into(isa, &src[k * ld..][..n], body);
                tail.fill(T::Acc::ZERO);
            }
        }
    }
});

/// [`pack_rows`] with a row length that the compiler knows.
#[inline(always)]
fn copy_rows<T: Storage, const NR: usize>(isa: Isa, src: &[T], ld: usize, dst: &mut [T::Acc]) {
    for (k, dst) in dst.as_chunks_mut::<NR>().0.iter_mut().enumerate() {
        T::widen_into(isa, &src[k * ld..][..NR], dst);
    }
}

/// Reorders a row that is kept by phases: `dst[i] = src[r % phases * span + r / phases]` for `r = first
/// + i`.
///
/// # Panics
/// If `src` is too short, or there is no phase.
pub fn interleave<T: Real>(isa: Isa, src: &[T], (phases, span): (usize, usize), first: usize, dst: &mut [T]) {
    assert!(phases > 0, "there is no phase");
    if phases == 2 && first.is_multiple_of(2) {
        let (even, odd) = (&src[first / 2..], &src[span..][first / 2..]);
        with_isa(isa, Interleave { even, odd, dst });
    } else {
        let (mut phase, mut element) = (first % phases, first / phases);
        for dst in dst {
            *dst = src[phase.saturating_mul(span).saturating_add(element)];
            phase += 1;
            if phase == phases {
                (phase, element) = (0, element + 1);
            }
        }
    }
}

pass!(Interleave<T: Real> { even: &'a [T], odd: &'a [T], dst: &'a mut [T] } {
    let (pairs, last) = dst.as_chunks_mut::<2>();
    assert!(pairs.len() + last.len() <= even.len() && pairs.len() <= odd.len());
    for (pair, (even, odd)) in pairs.iter_mut().zip(even.iter().zip(odd)) {
        *pair = [*even, *odd];
    }
    if let [last] = last {
        *last = even[pairs.len()];
    }
});

/// Repeats each element: `dst[i] = src[i / times]`.
///
/// # Panics
/// If `times` does not divide the length of `dst`, or `src` is too short.
pub fn repeat<T: Real>(isa: Isa, src: &[T], times: usize, dst: &mut [T]) {
    assert!(times > 0 && dst.len().is_multiple_of(times), "each element is repeated as often");
    let src = &src[..dst.len() / times];
    match times {
        2 => with_isa(isa, Repeat::<T, 2> { src, dst }),
        4 => with_isa(isa, Repeat::<T, 4> { src, dst }),
        8 => with_isa(isa, Repeat::<T, 8> { src, dst }),
        _ => dst.chunks_exact_mut(times).zip(src).for_each(|(dst, src)| dst.fill(*src)),
    }
}

pass!(Repeat<T: Real, const N> { src: &'a [T], dst: &'a mut [T] } {
    for (dst, src) in dst.as_chunks_mut::<N>().0.iter_mut().zip(src) {
        *dst = [*src; N];
    }
});

/// `row[i] += bias`.
pub fn add_bias<T: Real>(isa: Isa, bias: T, row: &mut [T]) {
    with_isa(isa, AddBias { bias, row });
}

pass!(AddBias<T: Real> { bias: T, row: &'a mut [T] } {
    for x in row {
        *x = *x + bias;
    }
});

/// `dst[i] += src[i]`, converted.
///
/// # Panics
/// If the lengths differ.
pub fn add_assign<T: Storage>(isa: Isa, dst: &mut [T::Acc], src: &[T]) {
    assert_eq!(src.len(), dst.len());
    with_isa(isa, AddAssign { isa, dst, src });
}

pass!(AddAssign<T: Storage> { isa: Isa, dst: &'a mut [T::Acc], src: &'a [T] } {
    if let Some(src) = T::as_acc(src) {
        return add_each(dst, src);
    }
    let mut buffer = [T::Acc::ZERO; CHUNK];
    for (dst, src) in dst.chunks_mut(CHUNK).zip(src.chunks(CHUNK)) {
        let buffer = &mut buffer[..src.len()];
        T::widen_into(isa, src, buffer);
        add_each(dst, buffer);
    }
});

#[inline(always)]
fn add_each<T: Real>(row: &mut [T], addends: &[T]) {
    for (x, addend) in row.iter_mut().zip(addends) {
        *x = *x + *addend;
    }
}

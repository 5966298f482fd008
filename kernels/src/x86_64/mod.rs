//! The kernels for x86-64.

#[cfg(any(feature = "avx2", feature = "avx512"))]
pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;

/// Implements [`deinterleave`](crate::simd::Simd::deinterleave) for four vectors, by unzipping
/// pairs.
///
/// # Safety
/// CPU: the ISA. `M` is 4.
#[cfg(any(feature = "avx2", feature = "avx512"))]
#[inline(always)]
pub(crate) unsafe fn quarters<V: crate::simd::Simd, const M: usize>(v: [V; M]) -> [V; M] {
    // SAFETY: the caller runs where the ISA is.
    unsafe {
        let ((even0, odd0), (even1, odd1)) = (v[0].unzip(v[1]), v[2].unzip(v[3]));
        let mut every = v;
        (every[0], every[2]) = even0.unzip(even1);
        (every[1], every[3]) = odd0.unzip(odd1);
        every
    }
}

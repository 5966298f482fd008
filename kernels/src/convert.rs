//! Conversions of slices, whole vectors at a time.

/// The elements of a vector of `f16` that is converted at once, at the most.
const MOST: usize = 16;

/// Converts `W` values at once.
pub(crate) trait Conversion<const W: usize> {
    type From: Copy + Default;
    type To: Copy;

    fn step(&self, from: [Self::From; W]) -> [Self::To; W];
}

/// `dst[i] = src[i]`, converted. The last vector overlaps the one before. Where there is less than a
/// vector, its two halves hold the first and the last elements, which may overlap: copies whose
/// length the compiler knows are moves of registers.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(crate) fn convert<const W: usize, C: Conversion<W>>(conversion: &C, src: &[C::From], dst: &mut [C::To]) {
    const { assert!(W <= MOST) };
    assert_eq!(src.len(), dst.len());
    if let (Some(last), Some(last_dst)) = (src.last_chunk::<W>(), dst.last_chunk_mut::<W>()) {
        *last_dst = conversion.step(*last);
        for (src, dst) in src.as_chunks::<W>().0.iter().zip(dst.as_chunks_mut::<W>().0) {
            *dst = conversion.step(*src);
        }
        return;
    }
    match src.len() {
        8.. => convert_ends::<W, 8, C>(conversion, src, dst),
        4.. => convert_ends::<W, 4, C>(conversion, src, dst),
        2.. => convert_ends::<W, 2, C>(conversion, src, dst),
        1 => convert_ends::<W, 1, C>(conversion, src, dst),
        0 => {}
    }
}

/// Converts the first `N` and the last `N` elements, of at most twice as many.
#[inline(always)]
fn convert_ends<const W: usize, const N: usize, C: Conversion<W>>(conversion: &C, src: &[C::From], dst: &mut [C::To]) {
    // Slices shorter than a vector have no more than its half at each end.
    if const { N > W / 2 } {
        return;
    }
    let mut from = [C::From::default(); W];
    from[..N].copy_from_slice(&src[..N]);
    from[W / 2..][..N].copy_from_slice(&src[src.len() - N..]);
    let to = conversion.step(from);
    let last = dst.len() - N;
    dst[..N].copy_from_slice(&to[..N]);
    dst[last..].copy_from_slice(&to[W / 2..][..N]);
}

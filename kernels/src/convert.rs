//! Conversions of slices, whole vectors at a time.

/// Elements of a vector of `f16` that is converted at once, at most.
const MOST: usize = 16;

/// Converts `W` values at once.
pub(crate) trait Conversion<const W: usize> {
    type From: Copy + Default;
    type To: Copy;

    fn step(&self, from: [Self::From; W]) -> [Self::To; W];
}

/// `dst[i] = src[i]`, converted. The last vector may overlap the one before.
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

/// Converts fewer elements than a vector has, and at most `2 * N`. The first `N` go to the lower half of
/// a vector, the last `N` to its upper half; they may overlap. As `N` is a constant, copies are moves of
/// registers.
#[inline(always)]
fn convert_ends<const W: usize, const N: usize, C: Conversion<W>>(conversion: &C, src: &[C::From], dst: &mut [C::To]) {
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

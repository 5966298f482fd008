//! The transposition of a matrix: raw arguments, and the safe call.

use crate::Real;
use crate::dest::end;

/// Raw arguments of the pass.
///
/// Memory: `src + i * src_ld` is readable for `columns` elements for each i < `rows`, and `dst + j * dst_ld`
/// writable for `rows` elements for each j < `columns`. They do not overlap.
pub(crate) struct TransposeArgs<T> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) src: *const T,
    pub(crate) src_ld: usize,
    pub(crate) dst: *mut T,
    pub(crate) dst_ld: usize,
}

/// The code for one ISA and type.
pub(crate) type TransposeFn<T> = unsafe fn(&TransposeArgs<T>);

/// `dst[j * dst_ld + i] = src[i * src_ld + j]` for `rows` rows of `columns` elements, by code for this CPU.
///
/// # Panics
/// If a slice is too short.
pub(crate) fn transpose_by<T: Real>(
    code: TransposeFn<T>,
    (rows, columns): (usize, usize),
    (src, src_ld): (&[T], usize),
    (dst, dst_ld): (&mut [T], usize),
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(end(rows, src_ld, columns) <= src.len(), "the source is too short");
    assert!(end(columns, dst_ld, rows) <= dst.len(), "the destination is too short");
    let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
    // SAFETY: the assertions cover the memory that TransposeArgs asks for; a shared and an exclusive borrow do
    // not overlap.
    unsafe { code(&TransposeArgs { rows, columns, src, src_ld, dst, dst_ld }) };
}

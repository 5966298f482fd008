//! Transposes a matrix, in square blocks of a vector's length.

use crate::Real;
use crate::simd::Simd;
use crate::transpose::TransposeArgs;

/// Writes the columns of `src` as rows of `dst`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TransposeArgs`] states.
#[inline(always)]
pub(crate) unsafe fn transpose<V: Simd>(args: &TransposeArgs<V::Elem>) {
    let TransposeArgs { rows, columns, src, src_ld, dst, dst_ld } = *args;
    let (src_end, dst_end) = ((rows - 1) * src_ld + columns, (columns - 1) * dst_ld + rows);
    // What a store writes behind a short row of the result, those of the next rows overwrite.
    let is_dense = dst_ld == rows && rows < V::LANES;
    // The last block overlaps the one before it, if the matrix is not smaller than a block.
    let first = |at: usize, len: usize| at.min(len.saturating_sub(V::LANES));
    for row in (0..rows).step_by(V::LANES).map(|row| first(row, rows)) {
        let height = (rows - row).min(V::LANES);
        for column in (0..columns).step_by(V::LANES).map(|column| first(column, columns)) {
            let width = (columns - column).min(V::LANES);
            let (from, to) = (row * src_ld + column, column * dst_ld + row);
            // SAFETY: the block ends with the matrix. Whole vectors end where source or destination do, at most.
            unsafe {
                let mut block = [V::splat(V::Elem::ZERO); 16];
                // Loops of known length keep the block in registers.
                if height == V::LANES && width == V::LANES {
                    for i in 0..V::LANES {
                        block[i] = V::load(src.add(from + i * src_ld));
                    }
                    V::transpose(&mut block);
                    for i in 0..V::LANES {
                        block[i].store(dst.add(to + i * dst_ld));
                    }
                    continue;
                }
                for i in 0..V::LANES {
                    if i < height {
                        let at = from + i * src_ld;
                        let is_whole = at + V::LANES <= src_end;
                        block[i] = if is_whole { V::load(src.add(at)) } else { V::load_first(src.add(at), width) };
                    }
                }
                V::transpose(&mut block);
                for i in 0..V::LANES {
                    if i < width {
                        let at = to + i * dst_ld;
                        if height == V::LANES || is_dense && at + V::LANES <= dst_end {
                            block[i].store(dst.add(at));
                        } else {
                            block[i].store_first(dst.add(at), height);
                        }
                    }
                }
            }
        }
    }
}

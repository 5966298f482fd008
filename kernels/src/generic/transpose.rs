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
    for row in (0..rows).step_by(V::LANES) {
        let height = (rows - row).min(V::LANES);
        for column in (0..columns).step_by(V::LANES) {
            let width = (columns - column).min(V::LANES);
            // SAFETY: the block ends with the matrix.
            unsafe {
                let mut block = [V::splat(V::Elem::ZERO); 16];
                let (src, dst) = (src.add(row * src_ld + column), dst.add(column * dst_ld + row));
                // Loops of known length keep the block in registers.
                if height == V::LANES && width == V::LANES {
                    for i in 0..V::LANES {
                        block[i] = V::load(src.add(i * src_ld));
                    }
                    V::transpose(&mut block);
                    for i in 0..V::LANES {
                        block[i].store(dst.add(i * dst_ld));
                    }
                } else {
                    for (i, line) in block.iter_mut().enumerate().take(height) {
                        *line = V::load_first(src.add(i * src_ld), width);
                    }
                    V::transpose(&mut block);
                    for (i, line) in block.iter().enumerate().take(width) {
                        line.store_first(dst.add(i * dst_ld), height);
                    }
                }
            }
        }
    }
}

//! What a backend offers: products of packed matrices, over one block of K each.

use alloc::boxed::Box;
use core::ops::Range;

/// The sizes of products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Rows of A and C.
    pub(crate) rows: usize,
    /// The most columns of A, which are the rows of B.
    pub(crate) k: usize,
    /// Elements from one row of B to the next, and from one row of C to the next. It is a
    /// [`leading_dimension`].
    pub(crate) ld: usize,
}

/// The operands of a product over one block of K.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a, A> {
    /// A, `rows * k` values, as [`Gemm::pack`] wrote them.
    pub(crate) packed: &'a [A],
    /// Columns of A, which are the rows of B.
    pub(crate) k: usize,
    /// B, row by row. Whole rows of `ld` elements may be read.
    pub(crate) b: &'a [A],
    /// Columns of B and C.
    pub(crate) n: usize,
    /// Whether the product is added to C. If not, the old values of C are not read.
    pub(crate) accumulate: bool,
}

/// A GEMM for a fixed number of rows.
pub(crate) trait Gemm<A>: Send + Sync {
    /// Packs A. It has rows x k values: `element` gives the one of a row and a column.
    fn pack(&self, k: usize, packed: &mut [A], element: &dyn Fn(usize, usize) -> A);

    /// Computes `c[i * ld + j] = [c[i * ld + j] +] sum over p of A[i][p] * b[p * ld + j]` for j
    /// below `n`. Whole rows of `c`, of `ld` elements, may be written. `tile` is scratch of
    /// [`tile_len`](super::Backend::tile_len) values.
    fn multiply(&self, product: Product<'_, A>, c: &mut [A], tile: &mut [A]);
}

/// A length in blocks of nearly equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    total: usize,
    size: usize,
}

impl Blocks {
    /// As few blocks of at most `most` as possible, but at least one: nothing is one empty block.
    pub(crate) fn new(total: usize, most: usize) -> Self {
        Self { total, size: total.div_ceil(total.div_ceil(most).max(1)) }
    }

    /// The length of a block. The last block may be shorter.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn count(&self) -> usize {
        self.total.div_ceil(self.size.max(1)).max(1)
    }

    pub(crate) fn range(&self, index: usize) -> Range<usize> {
        index * self.size..((index + 1) * self.size).min(self.total)
    }

    pub(crate) fn last(&self) -> Range<usize> {
        self.range(self.count() - 1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count()).map(|index| self.range(index))
    }
}

/// Elements from one row to the next, for `n` columns. A row has room for whole vectors. It takes
/// an odd number of cache lines (of f32), so that rows do not share a cache set.
pub(crate) fn leading_dimension(n: usize) -> usize {
    (n.div_ceil(16) | 1) * 16
}

/// What is known of a backend for products of one size before its tables are made.
pub(crate) struct Backend<A> {
    /// The name of the kernel, or of the crate that has it.
    pub(crate) kernel: &'static str,
    /// What the packed A depends on, besides its size.
    pub(crate) layout: usize,
    /// Values of scratch that a product needs.
    pub(crate) tile_len: usize,
    /// Makes it, with its tables.
    pub(crate) build: Box<dyn FnOnce() -> Box<dyn Gemm<A>>>,
}

#[cfg(test)]
mod tests {
    use super::Blocks;

    #[test]
    fn blocks_cover_the_length_once_and_are_never_too_long() {
        for (total, most) in (0..40).flat_map(|total| (1..45).map(move |most| (total, most))) {
            let blocks = Blocks::new(total, most);
            let mut next = 0;
            for block in blocks.iter() {
                assert_eq!(block.start, next);
                assert!(block.len() <= blocks.size() && blocks.size() <= most);
                assert!(total == 0 || !block.is_empty());
                next = block.end;
            }
            assert_eq!((next, blocks.iter().count()), (total, blocks.count()));
            assert_eq!(blocks.last(), blocks.iter().last().unwrap());
        }
    }
}

//! Lengths in blocks, and the product of one block.

use core::ops::Range;

/// A length in blocks of nearly equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    total: usize,
    size: usize,
}

impl Blocks {
    /// As few blocks of at most `most` as possible, but at least one: a length of 0 is one empty block, of
    /// size 1.
    pub(crate) fn new(total: usize, most: usize) -> Self {
        Self { total, size: total.div_ceil(total.div_ceil(most).max(1)).max(1) }
    }

    /// Blocks of multiples of `unit`, but for the last one. `unit` divides what they may have at most.
    pub(crate) fn of_multiples(self, unit: usize) -> Self {
        Self { size: self.size.next_multiple_of(unit), ..self }
    }

    pub(crate) fn times(self, count: usize) -> Self {
        Self { total: self.total * count, size: self.size * count }
    }

    /// The length of a block. The last block may be shorter.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn count(&self) -> usize {
        self.total.div_ceil(self.size).max(1)
    }

    pub(crate) fn range(&self, index: usize) -> Range<usize> {
        index * self.size..((index + 1) * self.size).min(self.total)
    }

    /// What some neighbouring blocks have, of which there is one at least.
    pub(crate) fn span(&self, blocks: &Range<usize>) -> Range<usize> {
        self.range(blocks.start).start..self.range(blocks.end - 1).end
    }

    /// The lengths of a full block and of the last one, for which there are tables.
    pub(crate) fn lens(&self) -> [usize; 2] {
        [self.size, self.last().len()]
    }

    pub(crate) fn last(&self) -> Range<usize> {
        self.range(self.count() - 1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count()).map(|index| self.range(index))
    }
}

pub(super) struct Product<'a, A> {
    pub(super) rows: usize,
    /// Columns of A, which are the rows of B.
    pub(super) k: usize,
    /// Columns of B and C.
    pub(super) n: usize,
    pub(super) a: &'a [A],
    pub(super) b: &'a [A],
    pub(super) c: &'a mut [A],
    /// The distance of rows of B and of C. Whole rows may be read and written.
    pub(super) ld: usize,
    /// Whether the product is added to C. If not, C is not read.
    pub(super) accumulate: bool,
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

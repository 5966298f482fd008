//! The GEMM of the materialised lowerings: C = A B, with a constant A for each group. A is in blocks of
//! rows and of K, and is packed once, as the backend wants.
#![cfg_attr(
    not(any(feature = "blas-gemm", feature = "blas-matrixmultiply")),
    expect(dead_code, reason = "only the backends of other crates need it")
)]

mod blocks;
#[cfg(any(feature = "blas-gemm", feature = "blas-matrixmultiply"))]
mod foreign;
mod native;

use alloc::boxed::Box;
use alloc::string::String;
use core::ops::Range;

use crate::choice::Blas;
use crate::element::Compute;
use crate::machine::Machine;
pub(crate) use blocks::Blocks;
use blocks::Product;
use native::Native;

/// Who multiplies.
enum Backend<A: Compute> {
    /// Our kernels: for a full block of rows, and for the last one.
    Native(Box<[Native<A>; 2]>),
    /// Another crate, and its name. It takes a row-major A.
    Foreign(&'static str, fn(Product<'_, A>)),
}

/// The scratch of a product: B, C, and the backend's own.
pub(crate) struct Tiles<'a, A> {
    pub(crate) b: &'a mut [A],
    pub(crate) c: &'a mut [A],
    pub(crate) tile: &'a mut [A],
}

/// Products of the A of some groups.
pub(crate) struct BlockedGemm<A: Compute> {
    rows: Blocks,
    k: Blocks,
    /// The distance of rows of B and of C.
    pub(crate) ld: usize,
    backend: Backend<A>,
}

impl<A: Compute> BlockedGemm<A> {
    /// Products of up to `columns` columns. With `layout`, A is packed already.
    ///
    /// # Errors
    /// The reason, if this build or this ISA lacks the backend.
    pub(crate) fn new(
        (blas, machine): (Blas, &Machine),
        (rows, k, columns): (Blocks, Blocks, usize),
        layout: Option<[usize; 2]>,
    ) -> Result<Self, String> {
        let ld = leading_dimension(columns);
        let native = |block: usize| {
            let height = if block == 0 { rows.size() } else { rows.last().len() };
            Native::new(machine, (height, k.size(), ld), layout.map(|layout| layout[block]))
        };
        let backend = match blas {
            Blas::Native => Backend::Native(Box::new([native(0)?, native(1)?])),
            #[cfg(feature = "blas-gemm")]
            Blas::Gemm => Backend::Foreign("gemm crate", foreign::gemm),
            #[cfg(feature = "blas-matrixmultiply")]
            Blas::Matrixmultiply => Backend::Foreign("matrixmultiply crate", foreign::matrixmultiply),
            #[cfg(not(all(feature = "blas-gemm", feature = "blas-matrixmultiply")))]
            _ => {
                let feature = if blas == Blas::Gemm { "blas-gemm" } else { "blas-matrixmultiply" };
                return Err(alloc::format!("the build lacks the Cargo feature {feature}"));
            }
        };
        Ok(Self { rows, k, ld, backend })
    }

    /// The name of the kernel, or of the crate that has it.
    pub(crate) fn kernel(&self) -> &'static str {
        match &self.backend {
            Backend::Native(natives) => natives[0].name(),
            Backend::Foreign(name, _) => name,
        }
    }

    /// What the packed A depends on, besides the blocks.
    pub(crate) fn layout(&self) -> [usize; 2] {
        match &self.backend {
            Backend::Native(natives) => natives.each_ref().map(Native::mr),
            Backend::Foreign(..) => [0; 2],
        }
    }

    /// Values of B, of C and of the backend's scratch.
    pub(crate) fn lens(&self) -> [usize; 3] {
        let tile = match &self.backend {
            Backend::Native(natives) => natives[0].tile_len().max(natives[1].tile_len()),
            Backend::Foreign(..) => 0,
        };
        [self.k.size() * self.ld, self.rows.size() * self.ld, tile]
    }

    /// Where the packed A of a group has rows `rows` and columns `k`.
    fn range(&self, group: usize, rows: &Range<usize>, k: &Range<usize>) -> Range<usize> {
        let first = (group * self.rows.last().end + rows.start) * self.k.last().end;
        first + rows.len() * k.start..first + rows.len() * k.end
    }

    fn is_last(&self, block: usize) -> bool {
        block + 1 == self.rows.count()
    }

    /// Packs the A of all groups. `element` gives the value of a group, a row and a column.
    pub(crate) fn pack(&self, groups: usize, packed: &mut [A], element: impl Fn(usize, usize, usize) -> A) {
        for (group, (block, rows)) in (0..groups).flat_map(|g| self.rows.iter().enumerate().map(move |b| (g, b))) {
            for k in self.k.iter() {
                let packed = &mut packed[self.range(group, &rows, &k)];
                let element = |row: usize, p: usize| element(group, rows.start + row, k.start + p);
                match &self.backend {
                    Backend::Native(natives) => {
                        natives[usize::from(self.is_last(block))].pack(k.len(), packed, element);
                    }
                    Backend::Foreign(..) => {
                        packed.iter_mut().enumerate().for_each(|(i, value)| *value = element(i / k.len(), i % k.len()));
                    }
                }
            }
        }
    }

    /// Computes C for `n` columns and one block of rows of a group. `fill` writes the rows of B of each
    /// block of K.
    pub(crate) fn multiply(
        &self,
        packed: &[A],
        (group, block): (usize, usize),
        n: usize,
        Tiles { b, c, tile }: Tiles<'_, A>,
        mut fill: impl FnMut(Range<usize>, &mut [A]),
    ) {
        let rows = self.rows.range(block);
        for k in self.k.iter() {
            fill(k.clone(), b);
            let (a, accumulate) = (&packed[self.range(group, &rows, &k)], k.start > 0);
            let product = Product { rows: rows.len(), k: k.len(), n, a, b, c, ld: self.ld, accumulate };
            match &self.backend {
                Backend::Native(natives) => natives[usize::from(self.is_last(block))].multiply(product, tile),
                Backend::Foreign(_, multiply) => multiply(product),
            }
        }
    }
}

/// The distance of rows of `n` columns. A row has room for whole vectors, and is an odd number of cache
/// lines (of f32), so that rows do not share a cache set.
fn leading_dimension(n: usize) -> usize {
    (n.div_ceil(16) | 1) * 16
}

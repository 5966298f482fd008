//! Where the rows of B come from.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use convoke_kernels::{Isa, Prefetch, Real, RowOffsets, StoreMap, stream};

use crate::blas::Blocks;
use crate::conv::macro_kernel::SpatialTiles;
use crate::conv::planes::{ChunkCut, PaddedPlanes, PlaneSizes};
use crate::element::Element;
use crate::{Axis, Geometry};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SourcePlan {
    /// Shifted views of padded planes.
    Planes(ChunkCut, PlaneSizes),
    /// Rows of X, in chunks of so many positions.
    Rows(RowReading, usize),
}

/// How kernels read rows of X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowReading {
    /// Through a packed panel.
    Packed,
    /// In X itself.
    InPlace,
    /// In X itself, if X begins at a cache line, which only a run knows.
    InPlaceIfAligned,
}

impl SourcePlan {
    /// The name of the copy in the list of scratch.
    pub(super) fn name(&self) -> &'static str {
        if matches!(self, Self::Planes(..)) { "planes" } else { "panel of B" }
    }

    /// Values of the copy of a block of channels.
    pub(super) fn copy_len<A: Real>(&self, block: usize, tiles: &SpatialTiles<A>) -> usize {
        let tile = tiles.widest() * tiles.lanes;
        match self {
            // Kernels read up to a tile beyond the planes.
            Self::Planes(_, sizes) => block * sizes.channel_len + tile,
            Self::Rows(..) => block * tile,
        }
    }
}

impl fmt::Display for SourcePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Planes(..) => "in padded planes",
            Self::Rows(RowReading::Packed, _) => "packed",
            Self::Rows(RowReading::InPlace, _) => "in place",
            Self::Rows(RowReading::InPlaceIfAligned, _) => "in place, packed where it does not begin at a cache line",
        })
    }
}

pub(super) enum GemmSource {
    Planes(Box<SourcePlanes>),
    Rows(SourceRows),
}

impl GemmSource {
    /// The tables for blocks `k` of channels.
    pub(super) fn new<A: Real>(plan: SourcePlan, k: Blocks, geometry: &Geometry, tiles: &SpatialTiles<A>) -> Self {
        match plan {
            SourcePlan::Planes(cut, _) => Self::Planes(Box::new(SourcePlanes::new(k, geometry, cut))),
            SourcePlan::Rows(reading, chunk) => {
                let positions = geometry.input_spatial();
                let row = |k: usize| u32::try_from(k * positions).expect("the search checks the offsets");
                Self::Rows(SourceRows {
                    reading,
                    chunk,
                    positions,
                    in_place: RowOffsets::new((0..k.size()).map(row).collect()),
                    packed: RowOffsets::packed(k.size(), tiles.widest() * tiles.lanes),
                })
            }
        }
    }

    pub(super) fn positions(&self, chunk: usize) -> Range<usize> {
        match self {
            Self::Planes(source) => source.planes.chunk(chunk).positions(),
            Self::Rows(source) => chunk * source.chunk..((chunk + 1) * source.chunk).min(source.positions),
        }
    }

    /// Whether a chunk is the last one along the axis that is cut, which may be smaller.
    pub(super) fn is_edge(&self, chunk: usize) -> bool {
        match self {
            Self::Planes(source) => !source.planes.is_full(&source.planes.chunk(chunk)),
            Self::Rows(source) => (chunk + 1) * source.chunk >= source.positions,
        }
    }

    /// Where the columns go, in vectors of `lanes`: of a full chunk, and of the last one along the axis
    /// that is cut.
    pub(super) fn maps(&self, lanes: usize) -> [StoreMap; 2] {
        match self {
            Self::Planes(source) => source.extents.map(|extent| source.planes.map(extent, lanes)),
            Self::Rows(source) => {
                let last = source.positions - (source.positions - 1) / source.chunk * source.chunk;
                [source.chunk.min(source.positions), last].map(|positions| StoreMap::contiguous(positions, lanes))
            }
        }
    }
}

pub(super) struct SourcePlanes {
    pub(super) planes: PaddedPlanes,
    /// The taps that meet X at some output, as runs of neighbours in the packed weights.
    pub(super) taps: Vec<Range<usize>>,
    /// Positions of a full chunk, and of the last one, along the axis that is cut.
    extents: [usize; 2],
    /// The blocks of K, and the row offsets of a full one, and of the last one.
    k: Blocks,
    koff: [RowOffsets; 2],
}

impl SourcePlanes {
    fn new(k: Blocks, geometry: &Geometry, cut: ChunkCut) -> Self {
        let planes = PaddedPlanes::new(&cropped(geometry), cut);
        let edge = geometry.axes[cut.axis].output % cut.extent;
        Self {
            taps: visible_taps(&geometry.axes),
            extents: [cut.extent, if edge == 0 { cut.extent } else { edge }],
            k,
            koff: k.lens().map(|block| planes.offsets(block)),
            planes,
        }
    }

    /// The row offsets of a block of K with `width` channels.
    pub(super) fn koff(&self, width: usize) -> &RowOffsets {
        &self.koff[usize::from(width != self.k.size())]
    }
}

/// The layer without the taps that see only padding at every output.
pub(super) fn cropped(geometry: &Geometry) -> Geometry {
    Geometry { axes: geometry.axes.iter().map(|axis| axis.cropped().1).collect(), ..geometry.clone() }
}

/// The taps of the [`cropped`] layer, as runs of neighbours in the whole kernel.
fn visible_taps(axes: &[Axis]) -> Vec<Range<usize>> {
    let mut runs = alloc::vec![0..1];
    for axis in axes {
        let (taps, kernel) = (axis.cropped().0, axis.kernel);
        runs = if taps.len() == kernel {
            runs.into_iter().map(|run| run.start * kernel..run.end * kernel).collect()
        } else {
            let of_tap = |tap: usize| tap * kernel + taps.start..tap * kernel + taps.end;
            runs.into_iter().flatten().map(of_tap).collect()
        };
    }
    runs
}

/// The number of these runs. They may be more than memory can hold.
pub(super) fn visible_runs(axes: &[Axis]) -> usize {
    let (mut runs, mut all) = (1_usize, 1_usize);
    for axis in axes {
        let taps = axis.cropped().0.len();
        if taps < axis.kernel {
            runs = all;
        }
        all = all.saturating_mul(taps);
    }
    runs
}

/// Rows of X, for a 1x1 kernel.
pub(super) struct SourceRows {
    reading: RowReading,
    chunk: usize,
    positions: usize,
    /// The row offsets of a block of K, in X and in a packed panel.
    pub(super) in_place: RowOffsets,
    pub(super) packed: RowOffsets,
}

impl SourceRows {
    /// Whether kernels read the rows of a chunk in place. `x` begins with the chunk.
    pub(super) fn reads_in_place<T>(&self, x: &[T]) -> bool {
        match self.reading {
            RowReading::Packed => false,
            RowReading::InPlace => true,
            RowReading::InPlaceIfAligned => x.as_ptr().addr().is_multiple_of(Prefetch::LINE),
        }
    }

    /// X as the rows of B of `nr` columns, if kernels can read it: it has their type, and the vectors of
    /// the last row end within it.
    pub(super) fn in_place<'x, T: Element>(&self, x: &'x [T], nr: usize) -> Option<&'x [T::Acc]> {
        let readable = self.in_place.len().saturating_sub(1) * self.positions + nr;
        T::as_acc(x).filter(|x| x.len() >= readable)
    }

    pub(super) fn pack<T: Element>(&self, isa: Isa, x: &[T], (rows, columns): (usize, usize), panel: &mut [T::Acc]) {
        let pitch = panel.len() / self.packed.len().max(1);
        stream::pack_rows(isa, x, self.positions, columns, pitch, &mut panel[..rows * pitch]);
    }
}

#[cfg(test)]
mod tests {
    use super::{cropped, visible_runs, visible_taps};
    use crate::{Axis, Conv};

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of one run")]
    fn taps_that_see_padding_alone_are_left_out() {
        let conv = Conv::new([4, 2, 3, 1, 3]).dilations([36, 1, 20]).pads([36, 0, 5, 36, 0, 40]);
        let geometry = conv.geometry(&[1, 2, 33, 4, 10]).unwrap();
        assert_eq!(visible_taps(&geometry.axes), [3..4]);
        assert_eq!((cropped(&geometry).kernel_volume(), visible_runs(&geometry.axes)), (1, 1));
        let axis = |dilation| Axis {
            input: 8,
            kernel: 3,
            output: 8,
            dilation,
            pad_begin: dilation,
            pad_end: dilation,
            ..Axis::UNIT
        };
        assert_eq!(visible_taps(&[axis(1), axis(1)]), [0..9]);
        assert_eq!(visible_taps(&[axis(8), axis(1)]), [3..6]);
        assert_eq!(visible_taps(&[axis(1), axis(8)]), [1..2, 4..5, 7..8]);
        assert_eq!(visible_runs(&[axis(1), axis(8)]), 3);
    }
}

//! How weights are packed.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use convoke_kernels::winograd::Tile;

use crate::choice::{Algorithm, Blas};
use crate::units::Count;

/// What packed weights depend on, besides operator, shape of W, attributes, element type and ISA. Plans
/// share packed weights if their layouts are equal, whatever their algorithms are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum WeightLayout {
    /// The values of W in their own order.
    AsGiven,
    /// Panels of at most `mr` output channels, `[K][channels of the panel]`, with K in blocks of `block`
    /// input channels: taps, then channels of the block.
    Panels { mr: usize, block: usize },
    /// Panels of `nr` output channels, the last one padded, with K in blocks of `block` input channels.
    ChannelPanels { nr: usize, block: usize },
    /// The panels of a BLAS's backend, of a full block of rows and of the last one.
    Blas { blas: Blas, panels: [usize; 2] },
    /// The same for blocks of `channels` output channels, each with all taps.
    BlasColumns { blas: Blas, channels: usize, panels: [usize; 2] },
    /// The phases of a ConvTranspose's strides, in panels of at most `channels` output channels, whose
    /// rows are in tiles of at most `mr` rows. The first `late` phases of the last axis count positions
    /// from the next one.
    PhasePanels { late: usize, channels: usize, mr: usize },
    /// Filters transformed for Winograd's tiles.
    Winograd {
        #[cfg_attr(feature = "save", serde(with = "SavedTile"))]
        down: Tile,
        #[cfg_attr(feature = "save", serde(with = "SavedTile"))]
        along: Tile,
    },
    /// Taps in the order in which depthwise kernels take them, for vectors along rows or channels.
    Depthwise { along: Along },
    /// Panels of so many output channels of a group.
    Grouped { heights: Vec<usize> },
    /// W in its own order, because a value or its packed form is not finite. Every plan of the layer
    /// runs the definition's loops on it.
    Exact,
    /// `[taps][channels of the block]` for blocks of so many channels.
    ChannelBlocks { channels: usize },
}

/// What the vectors of depthwise kernels run along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "save", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Along {
    Rows,
    Channels,
}

/// The fields of [`Tile`], as they are saved.
#[cfg(feature = "save")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(remote = "Tile")]
struct SavedTile {
    values: usize,
    outputs: usize,
}

impl WeightLayout {
    /// The algorithm that packs so, without its backend. For W itself, the one that accepts every layer.
    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::AsGiven | Self::Exact => Algorithm::NAIVE.0,
            Self::Panels { .. } => "gemm",
            Self::ChannelPanels { .. } => "pixel-gemm",
            Self::Blas { .. } => "im2col",
            Self::BlasColumns { .. } => "col2im",
            Self::PhasePanels { .. } => "transposed",
            Self::Winograd { .. } => Algorithm::WINOGRAD.0,
            Self::ChannelBlocks { .. } => "pixel-depthwise",
            Self::Depthwise { .. } => "depthwise",
            Self::Grouped { .. } => "grouped",
        }
    }

    /// Why weights of this layout cannot be used.
    pub(crate) fn mismatch(&self) -> String {
        format!("the weights are packed otherwise: {self}")
    }
}

impl fmt::Display for WeightLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsGiven => f.write_str("as given"),
            Self::Exact => f.write_str("as given, not all finite: run by the loops of the definition"),
            Self::Panels { mr, block } => {
                write!(f, "panels of {}, blocks of {}", Count(*mr, "row"), Count(*block, "channel"))
            }
            Self::ChannelPanels { nr, block } => {
                write!(f, "panels of {}, blocks of {}", Count(*nr, "channel"), Count(*block, "channel"))
            }
            Self::Blas { panels: [full, last], .. } => write!(f, "panels of {full} and {}", Count(*last, "row")),
            Self::BlasColumns { channels, panels: [full, last], .. } => {
                write!(f, "{} in panels of {full} and {}", Count(*channels, "channel"), Count(*last, "row"))
            }
            Self::PhasePanels { late, channels, mr } => {
                let (channels, rows) = (Count(*channels, "channel"), Count(*mr, "row"));
                write!(f, "phases, {late} of them late, in panels of {channels}, tiles of {rows}")
            }
            Self::Winograd { down, along } => {
                write!(f, "values {}x{} for {}x{} outputs", down.values, along.values, down.outputs, along.outputs)
            }
            Self::Depthwise { along: Along::Rows } => f.write_str("taps along rows"),
            Self::Depthwise { along: Along::Channels } => f.write_str("taps along channels"),
            Self::ChannelBlocks { channels } => write!(f, "taps of {}", Count(*channels, "channel")),
            Self::Grouped { heights } => write!(f, "panels of {heights:?} channels"),
        }
    }
}

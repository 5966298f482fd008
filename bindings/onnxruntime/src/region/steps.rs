//! The steps of a region, and the tensors that they read and write.

use std::sync::Arc;

use convoke::Layout;

use crate::layer::Packed;
use crate::region::bytes::{Blend, ByteScale, Lines, Table};
use crate::region::integers::IntegerLayer;
use crate::region::unit::{Pool, Resize};

/// A tensor of a region.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) channels: usize,
    pub(crate) layout: Layout,
    pub(crate) memory: Memory,
    pub(crate) element: Element,
}

/// What a tensor is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Float,
    /// Without a sign: bytes that have one are flipped where they enter a region, and where they leave it.
    Byte,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Float => size_of::<f32>(),
            Self::Byte => 1,
        }
    }
}

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// An input of the node, which has channels first.
    Input(usize),
    /// An output of the node, which has channels first.
    Output(usize),
    /// Its own.
    Own,
    /// Channels of another tensor with channels last, from one on.
    Within(usize, usize),
}

/// What is done, to tensors by their numbers.
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) reads: Vec<usize>,
    pub(crate) writes: usize,
}

pub(crate) enum Work {
    /// Of X and perhaps a residual.
    Layer(Arc<Packed<f32>>),
    Pool(Pool),
    Resize(Resize),
    Product,
    Slopes(Arc<[f32]>),
    /// Bytes through a table, if there is one.
    Copy(Option<Arc<Table>>),
    /// The same, into the layout of Y.
    Reorder(Option<Arc<Table>>),
    /// Of X and perhaps the ranges of what it was made of.
    Integers(Arc<IntegerLayer>),
    Blend(Blend),
    Lines(Arc<Lines>),
    /// By a scale, or by that of the ranges that are read, too.
    Quantise(Option<ByteScale>),
    /// The least and the largest number of each part of X.
    Ranges,
    Dequantise(ByteScale),
    /// Some channels.
    Pick(Arc<[usize]>),
    /// Nothing is left to do: what is written is where channels of what is read lie.
    View,
    /// Nothing, too: what is written has the channels of all that is read.
    Join,
}

/// The tensor in whose memory another one lies, and the first of its channels there.
pub(crate) fn root(tensors: &[Tensor], mut tensor: usize) -> (usize, usize) {
    let mut channel = 0;
    while let Memory::Within(whole, first) = tensors[tensor].memory {
        (tensor, channel) = (whole, channel + first);
    }
    (tensor, channel)
}

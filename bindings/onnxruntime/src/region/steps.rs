//! The steps of a region, and the tensors that they read and write.

use std::sync::Arc;

use convoke::Layout;

use crate::layer::Packed;
use crate::region::unit::{Pool, Resize};

/// A tensor of a region.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) channels: usize,
    pub(crate) layout: Layout,
    pub(crate) memory: Memory,
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
    Copy,
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

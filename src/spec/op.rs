//! The two operators, and the largest size of one dimension of their tensors.

use core::fmt;
use core::str::FromStr;

use crate::error::{Error, bail};

/// The largest size of one dimension, in elements: an index of it fits `isize`.
pub(super) const MAX_SIZE: usize = isize::MAX as usize;

/// Which of the two operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// ONNX `Conv`.
    Conv,
    /// ONNX `ConvTranspose`.
    ConvTranspose,
}

impl Op {
    /// The operator's ONNX name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Op::Conv => "Conv",
            Op::ConvTranspose => "ConvTranspose",
        }
    }
}

impl FromStr for Op {
    type Err = Error;

    /// The operator of an ONNX name, case-sensitive.
    fn from_str(name: &str) -> Result<Self, Error> {
        match [Op::Conv, Op::ConvTranspose].into_iter().find(|op| op.name() == name) {
            Some(op) => Ok(op),
            None => bail!(UnsupportedOperator, "operator {name:?} is neither Conv nor ConvTranspose"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

//! Attributes by their ONNX names, and the validated geometry that follows from them.
//!
//! [`Conv`] and [`ConvTranspose`] hold the attributes. Their method `geometry` checks them
//! against X's shape and returns a [`Geometry`] of plain sizes, in which `auto_pad` and
//! `output_shape` have become explicit padding. [`Operator`] is either of the two, and can be
//! made from the parts of an ONNX node. No function here allocates or loops in proportion to a
//! size.

mod attributes;
mod axis;
mod conv;
mod conv_transpose;
mod dtype;
mod geometry;
mod node;
mod op;
mod padding;
mod spelling;

pub use axis::Axis;
pub use conv::Conv;
pub use conv_transpose::ConvTranspose;
pub use dtype::DType;
pub(crate) use geometry::Strides;
pub use geometry::{Geometry, Layout};
pub use node::{Attribute, NodeInput, Operator};
pub use op::Op;
pub use padding::AutoPad;

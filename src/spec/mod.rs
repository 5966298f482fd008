//! Validated geometry of the operators, from attributes by their ONNX names.
//!
//! [`Conv`] and [`ConvTranspose`] hold the attributes; their `geometry` checks them against X's
//! shape and returns a [`Geometry`] of plain sizes, with `auto_pad` and `output_shape` turned into
//! explicit padding. [`Operator`] is either, and can be read from the parts of an ONNX node. No
//! function here allocates or loops in proportion to a size.

mod attributes;
mod axis;
mod conv;
mod conv_transpose;
mod dtype;
mod geometry;
mod node;
mod op;
mod padding;

pub use axis::Axis;
pub use conv::Conv;
pub use conv_transpose::ConvTranspose;
pub use dtype::DType;
pub use geometry::Geometry;
pub use node::{Attribute, NodeInput, Operator};
pub use op::Op;
pub use padding::AutoPad;

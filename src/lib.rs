//! CPU kernels for the ONNX operators `Conv` and `ConvTranspose`: the convolution backend of an
//! inference engine.
//!
//! ```text
//! ONNX attributes
//!   -> spec: validated geometry
//!   -> plan: from each algorithm an offer with its cost, or a reason why not
//!   -> pack: weights and bias, once
//!   -> run: x, packed, residual, y, workspace, threads
//!   -> conv::<algorithm>, and the micro-kernels of convoke-kernels
//! ```
//!
//! ```
//! use convoke::{Activation, Conv, Planner, Run, Workspace};
//!
//! # fn main() -> Result<(), convoke::Error> {
//! // The first layer of ResNet: 64 filters of 3x7x7, stride 2, padding 3 on each side.
//! let conv = Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]);
//! let plan = Planner::new().activation(Activation::Relu).plan::<f32>(conv, &[1, 3, 224, 224])?;
//! println!("{}", plan.explain());
//!
//! let (x, w, bias) = (vec![0.5; 3 * 224 * 224], vec![0.1; 64 * 3 * 7 * 7], vec![0.0; 64]);
//! let packed = plan.pack(&w, Some(&bias))?; // once
//! let mut workspace = Workspace::for_plan(&plan)?; // once
//! let mut y = vec![0.0; plan.geometry().output_len()];
//! plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace))?; // for every input
//! # Ok(()) }
//! ```
//!
//! Tensors are plain slices in ONNX's layout, `(N, C, spatial...)`, of any number of spatial axes,
//! of `f32`, `f64`, [`f16`](struct@f16) or [`bf16`].
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

#[cfg(feature = "ndarray")]
mod arrays;
mod blas;
mod chain;
mod choice;
mod conv;
mod element;
mod epilogue;
mod error;
mod exec;
mod machine;
mod oneshot;
mod plan;
mod quantised;
pub mod reference;
mod spec;
mod units;

#[cfg(feature = "ndarray")]
pub use arrays::{conv_array, conv_transpose_array};
pub use chain::{Chain, ChainRun};
pub use choice::{Accuracy, Algorithm};
pub use element::{Element, bf16, f16};
pub use epilogue::Activation;
pub use error::{Error, ErrorKind};
#[cfg(feature = "std")]
pub use exec::Job;
pub use exec::{Executor, Threads, Workspace};
pub use machine::{Absence, ENV_ISA, ENV_MAX_ISA, Isa, Machine, ParseIsaError};
pub use oneshot::{conv, conv_transpose};
pub use plan::{Explanation, PackedWeights, Plan, PlanCache, Planner, QuantisedPlanCache, Run, Tuning, Verdict};
pub use quantised::{Byte, Quantised, QuantisedPlan, QuantisedRun, QuantisedWeights, Scaled, Scales, look_up};
pub use spec::{Attribute, AutoPad, Axis, Conv, ConvTranspose, DType, Geometry, Layout, NodeInput, Op, Operator};

/// What threads share, and what they own.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn owned<T: Send>() {}
    shared::<Planner>();
    shared::<Tuning>();
    shared::<Plan<f32>>();
    shared::<Chain<f32>>();
    shared::<PackedWeights<f32>>();
    shared::<PlanCache<f32>>();
    shared::<QuantisedPlan<u8, i8, u8>>();
    shared::<QuantisedPlanCache<u8, i8, u8>>();
    owned::<Workspace<'static>>();
};

/// Compiles and runs the README's examples as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The same for those of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

/// The same for those in Rust of the page on linking.
#[cfg(doctest)]
#[doc = include_str!("../docs/linking.md")]
struct Linking;

//! Layers behind one another, computed in strips of rows that stay in the L2 cache.
//!
//! A layer that reads several rows, such as a depthwise one, may have layers before and behind it that read one. A
//! strip is some rows of its Y. The layers before it compute the rows that it reads, but for those that the strip
//! before has computed already. The layers behind it take its rows on into Y. So the tensors in between are never in
//! memory as a whole.
//!
//! - [`strips`]: the rows of each strip.
//! - [`plan`]: the plans of all layers for the rows of all strips.
//! - [`run`]: the loop over strips.

mod plan;
mod run;
mod strips;

pub use plan::Chain;
pub use run::ChainRun;

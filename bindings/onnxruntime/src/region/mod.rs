//! Regions: layers and what stands between them, compiled into one node that keeps channels last inside,
//! but for layers that take less time with channels first.
//!
//! * [`find`](mod@find): which nodes are a region.
//! * [`unit`](mod@unit): what its units compute, read from nodes; [`moves`](mod@moves): those that move channels alone.
//! * [`quantised`](mod@quantised): units of quantised graphs; [`bytes`](mod@bytes): bytes that stand for numbers;
//!   [`linear`](mod@linear): operators of bytes; [`numbers`](mod@numbers): what operators compute of single numbers; [`integers`](mod@integers): convolutions of bytes.
//! * [`compile`](mod@compile): its steps, and which values share memory; [`steps`](mod@steps): what these are.
//! * [`layouts`](mod@layouts): which layouts a layer reads and writes.
//! * [`program`](mod@program): the steps for inputs of known shapes; [`passes`](mod@passes): how those that are no convolutions
//!   compute; [`run`](mod@run): a run of them.

mod bytes;
mod compile;
mod find;
mod integers;
mod layouts;
mod linear;
mod moves;
mod numbers;
mod passes;
mod program;
mod quantised;
mod run;
mod steps;
mod unit;

pub(crate) use compile::{RegionPacking, read};
pub(crate) use find::{Found, Region, Takes, regions};
pub(crate) use layouts::is_worthwhile;
pub(crate) use quantised::units as units_of_bytes;

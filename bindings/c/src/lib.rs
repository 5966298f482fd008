//! The C interface of [convoke]: what `include/convoke.h` declares.
//!
//! It has no Rust interface. Comments of public items are those of the header, which cbindgen
//! writes from them: they are for readers who know C and not Rust.
//!
//! * [`operator`](mod@operator), [`options`](mod@options), [`plan`](mod@plan),
//!   [`pack`](mod@pack), [`packed`](mod@packed), [`run`](mod@run): the phases of a layer.
//! * [`quantised`](mod@quantised), [`quantised_plan`](mod@quantised_plan): the same phases of bytes.
//! * [`executor`](mod@executor): the caller's threads.
//! * [`status`](mod@status): what calls return; [`pointers`](mod@pointers): what the caller's
//!   pointers are checked for; [`element`](mod@element): the element types.
#![allow(clippy::missing_safety_doc, reason = "the first comment of the header says it for all functions")]
#![allow(rustdoc::private_intra_doc_links, reason = "the modules are for those who work on this crate")]

#[cfg(panic = "abort")]
compile_error!("a panic must become an error of this interface: build with panic = \"unwind\"");

// cbindgen writes the functions in the order of the modules.
mod pointers;
mod status;

mod element;
mod operator;
mod options;
mod plan;

mod executor;
mod pack;
mod packed;
mod quantised;
mod quantised_plan;
mod run;

use std::ffi::{CStr, c_char};

pub use element::DType;
pub use executor::{Executor, Task};
pub use operator::convoke_operator_set_string;
pub use operator::{Ints, Operator, OperatorDesc, convoke_operator_create, convoke_operator_create_from_desc};
pub use operator::{convoke_operator_destroy, convoke_operator_set_int, convoke_operator_set_ints};
pub use options::{Accuracy, Activation, Layout, PlanOptions};
pub use pack::{PackArgs, convoke_plan_accepts, convoke_plan_pack};
pub use packed::{Packed, convoke_packed_destroy, convoke_packed_open};
pub use plan::{Plan, PlanInfo, convoke_plan_create, convoke_plan_destroy, convoke_plan_explain};
pub use plan::{convoke_plan_get_info, convoke_plan_output_shape};
pub use quantised::{convoke_plan_create_quantised, convoke_plan_pack_quantised, convoke_plan_run_quantised};
pub use quantised::{convoke_plan_scale_quantised, convoke_quantised_weights_destroy, convoke_scaled_destroy};
pub use quantised_plan::{QuantisedDTypes, QuantisedPackArgs, QuantisedRunArgs, QuantisedWeights, Scaled, Scales};
pub use run::{RunArgs, convoke_plan_run};
pub use status::{Error, Status, convoke_status_name};

// The header promises that threads may share handles.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Operator>();
    is_shared::<Plan>();
    is_shared::<Packed>();
    is_shared::<QuantisedWeights>();
    is_shared::<Scaled>();
};

/// The version of the library, as `"0.1.0"`: a text that lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn convoke_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero"),
    };
    VERSION.as_ptr()
}

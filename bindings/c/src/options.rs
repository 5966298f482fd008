//! What a caller can choose when a plan is made.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

use convoke::{Algorithm, Isa, Planner};

use crate::packed::Packed;
use crate::pointers::{self, Versioned};
use crate::status::{Result, fail};

/// How much rounding error may be traded for speed.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accuracy {
    /// Direct sums, and Winograd with small tiles. Errors of Winograd are in proportion to the greatest
    /// input near an output, so that small outputs beside large inputs may have few correct digits or
    /// none. For usual data the greatest error in f32 was below 5e-5 of the root mean square of Y. The
    /// documentation of the crate's `Accuracy` has the bounds.
    Standard = 0,
    /// Direct sums of products only.
    Strict = 1,
    /// The same, and Winograd with larger tiles, which err two to four times as much.
    Fast = 2,
}

/// What is applied to each element of Y, after bias and residual. NaN stays NaN.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None = 0,
    /// max(y, 0).
    Relu = 1,
    /// min(max(y, clip_min), clip_max).
    Clip = 2,
    /// y if it is not negative, else leaky_slope * y.
    LeakyRelu = 3,
    /// y * min(max(y / 6 + 1/2, 0), 1).
    HardSwish = 4,
    /// y / (1 + exp(-y)).
    Silu = 5,
    /// 1 / (1 + exp(-y)).
    Sigmoid = 6,
    /// The hyperbolic tangent.
    Tanh = 7,
    /// y / 2 * (1 + erf(y / sqrt(2))).
    Gelu = 8,
    /// y / 2 * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 y^3))).
    GeluTanh = 9,
    /// y * tanh(log(1 + exp(y))).
    Mish = 10,
}

/// The order of a tensor's elements in memory. Its shape has ONNX's order, (N, C, D1, D2, ...), in
/// every layout.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// (N, C, D1, D2, ...), as in ONNX: NCHW.
    ChannelsFirst = 0,
    /// (N, D1, D2, ..., C): NHWC, PyTorch's channels_last. The channels of a pixel are neighbours.
    ChannelsLast = 1,
}

/// Wishes and limits of a plan. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PlanOptions {
    /// sizeof(convoke_plan_options).
    pub struct_size: usize,
    /// The number of threads that the work is split for: the width of the executor that will run
    /// it, at most 1024. Runs on more threads are errors. 0 means 1.
    pub threads: usize,
    /// The instruction set of the kernels: "portable", "neon", "avx2" or "avx512", in upper or lower
    /// case. NULL means the best one of the CPU, or what the environment variables CONVOKE_ISA and
    /// CONVOKE_MAX_ISA say.
    pub isa: *const c_char,
    /// The best instruction set of the CPU up to this one, in the order in which `isa` lists them.
    /// At most one of the two may be set.
    pub max_isa: *const c_char,
    /// An algorithm by its name, as convoke_plan_explain prints it. NULL means the one that is
    /// estimated to be the fastest.
    pub algorithm: *const c_char,
    /// Weights that are packed already, perhaps for another batch or spatial size of X. The plan
    /// accepts them, and has their instruction set. They are only read until the call returns. If
    /// they do not serve, for example within `workspace_limit`, and weights that are packed for this X
    /// would, the status is CONVOKE_STATUS_PACKED_MISMATCH: plan without them, and pack again.
    pub packed: *const Packed,
    /// Bytes of workspace of a run, at most, for all threads together. 0 means no limit. With
    /// 1, the plan needs no workspace, which is far slower for most layers.
    pub workspace_limit: usize,
    /// A convoke_accuracy.
    pub accuracy: u32,
    /// A convoke_activation.
    pub activation: u32,
    /// The lower bound of CONVOKE_ACTIVATION_CLIP. It may be infinite, and must not be NaN.
    pub clip_min: f32,
    /// The upper bound of CONVOKE_ACTIVATION_CLIP, likewise.
    pub clip_max: f32,
    /// The slope of CONVOKE_ACTIVATION_LEAKY_RELU below 0.
    pub leaky_slope: f32,
    /// 1 for a plan that computes one image of the batch after the other, so that a run may have
    /// images that are not neighbours in memory: see convoke_run_args. 0 for a plan that computes
    /// all of them together.
    pub separate_images: u32,
    /// A convoke_layout: how X lies in memory.
    pub x_layout: u32,
    /// A convoke_layout: how Y lies in memory, and a residual.
    pub y_layout: u32,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for PlanOptions {
    const NAME: &'static str = "convoke_plan_options";
    const FIRST_BYTES: usize = offset_of!(Self, separate_images) + size_of::<u32>();
    const BYTES: usize = offset_of!(Self, y_layout) + size_of::<u32>();
}

/// What options say, without pointers.
pub(crate) struct Choices {
    pub(crate) planner: Planner,
    pub(crate) separates_images: bool,
    /// Those of X and Y.
    pub(crate) layouts: [convoke::Layout; 2],
}

impl Choices {
    /// # Safety
    /// The pointer must be null, or one to options whose pointers are as their comments say.
    pub(crate) unsafe fn read(op: &str, options: *const PlanOptions) -> Result<Self> {
        if options.is_null() {
            return Ok(Self { planner: Planner::new(), separates_images: false, layouts: Default::default() });
        }
        let mut room = MaybeUninit::uninit();
        // SAFETY: the caller's options.
        let options = unsafe { pointers::sized(options, &mut room)? };
        // SAFETY: the caller's texts.
        let (isa, max_isa, algorithm) = unsafe {
            let text = |name, pointer| pointers::optional_text(name, pointer);
            (text("isa", options.isa)?, text("max_isa", options.max_isa)?, text("algorithm", options.algorithm)?)
        };
        let mut planner = Planner::new().threads(options.threads.max(1)).activation(options.activation()?);
        planner = planner.accuracy(match options.accuracy {
            accuracy if accuracy == Accuracy::Standard as u32 => convoke::Accuracy::Standard,
            accuracy if accuracy == Accuracy::Strict as u32 => convoke::Accuracy::Strict,
            accuracy if accuracy == Accuracy::Fast as u32 => convoke::Accuracy::Fast,
            other => fail!(InvalidArgument, "accuracy: {other} is not a convoke_accuracy"),
        });
        if options.workspace_limit > 0 {
            planner = planner.workspace_limit(options.workspace_limit);
        }
        if let Some(isa) = isa_of(isa, max_isa)? {
            planner = planner.isa(isa);
        }
        if let Some(name) = algorithm {
            planner = planner.algorithm(name.parse::<Algorithm>()?);
        }
        if !options.packed.is_null() {
            // SAFETY: the caller's weights.
            planner = unsafe { pointers::value("packed", options.packed)? }.planned_for(planner);
        }
        let separates_images = match options.separate_images {
            0 => false,
            1 => true,
            other => fail!(InvalidArgument, "separate_images is {other}, it must be 0 or 1"),
        };
        let layouts = [layout_of(op, "x", options.x_layout)?, layout_of(op, "y", options.y_layout)?];
        Ok(Self { planner, separates_images, layouts })
    }
}

impl PlanOptions {
    fn activation(&self) -> Result<convoke::Activation> {
        let all = [
            (Activation::None, convoke::Activation::None),
            (Activation::Relu, convoke::Activation::Relu),
            (Activation::Clip, convoke::Activation::Clip { min: self.clip_min, max: self.clip_max }),
            (Activation::LeakyRelu, convoke::Activation::LeakyRelu { alpha: self.leaky_slope }),
            (Activation::HardSwish, convoke::Activation::HardSwish),
            (Activation::Silu, convoke::Activation::Silu),
            (Activation::Sigmoid, convoke::Activation::Sigmoid),
            (Activation::Tanh, convoke::Activation::Tanh),
            (Activation::Gelu, convoke::Activation::Gelu),
            (Activation::GeluTanh, convoke::Activation::GeluTanh),
            (Activation::Mish, convoke::Activation::Mish),
        ];
        match all.into_iter().find(|(number, _)| *number as u32 == self.activation) {
            Some((_, activation)) => Ok(activation),
            None => fail!(InvalidArgument, "activation: {} is not a convoke_activation", self.activation),
        }
    }
}

fn layout_of(op: &str, tensor: &str, number: u32) -> Result<convoke::Layout> {
    Ok(match number {
        number if number == Layout::ChannelsFirst as u32 => convoke::Layout::ChannelsFirst,
        number if number == Layout::ChannelsLast as u32 => convoke::Layout::ChannelsLast,
        other => fail!(InvalidArgument, "{op}: {tensor}_layout: {other} is not a convoke_layout"),
    })
}

fn isa_of(isa: Option<&str>, max_isa: Option<&str>) -> Result<Option<Isa>> {
    let parsed = |field: &str, name: &str| match name.parse::<Isa>() {
        Ok(isa) => Ok(isa),
        Err(error) => fail!(InvalidArgument, "{field}: {error}"),
    };
    Ok(match (isa, max_isa) {
        (None, None) => None,
        (Some(isa), None) => Some(parsed("isa", isa)?),
        (None, Some(cap)) => Some(Isa::detect_at_most(parsed("max_isa", cap)?)),
        (Some(_), Some(_)) => fail!(InvalidArgument, "both isa and max_isa are set, at most one may be"),
    })
}

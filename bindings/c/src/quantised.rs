//! Plans of bytes: QLinearConv, ConvInteger, and Conv and ConvTranspose of quantised graphs.

use std::mem::MaybeUninit;

use convoke::{Byte, Quantised, f16};

use crate::element::with_type;
use crate::operator::{Ints, Operator};
use crate::options::PlanOptions;
use crate::plan::{AnyPlan, Plan, Wanted};
use crate::pointers;
use crate::quantised_plan::{AnyQuantised, QuantisedPackArgs, QuantisedRunArgs, QuantisedWeights};
use crate::quantised_plan::{QuantisedDTypes, Scaled, Scales, ZeroPoint};
use crate::status::{Error, Result, Status, fail, guard};

fn planned<X: Byte + ZeroPoint, W: Byte, Y: Quantised + ZeroPoint>(wanted: Wanted) -> Result<Plan> {
    let Wanted { operator, x_shape, planner, separates_images } = wanted;
    if separates_images {
        fail!(Unavailable, "{}: a quantised plan has no separate_images", operator.op_name());
    }
    let plan = planner.plan_quantised::<X, W, Y>(operator, &x_shape)?;
    let geometry = plan.geometry().clone();
    Ok(Plan { layer: AnyPlan::Quantised(Box::new(plan)), geometry, names: Default::default() })
}

/// The plan of a handle, if it is a quantised one.
///
/// # Safety
/// As [`pointers::value`].
unsafe fn quantised<'a>(plan: *const Plan) -> Result<&'a dyn AnyQuantised> {
    // SAFETY: the same.
    match &unsafe { pointers::value("plan", plan)? }.layer {
        AnyPlan::Quantised(plan) => Ok(&**plan),
        _ => fail!(InvalidArgument, "plan is for floats, and the function is for quantised ones"),
    }
}

/// Makes a plan of bytes: of QLinearConv, of ConvInteger, and of what quantised graphs mean by Conv and
/// ConvTranspose between DequantizeLinear and QuantizeLinear.
///
/// Sums are exact: they are the same on every CPU. Zero points and scales are given with the weights and
/// with each run, so that one plan serves static and dynamic quantisation.
///
/// CONVOKE_STATUS_UNAVAILABLE is also for X of 2^30 elements and more, kernels of thousands of taps, more
/// than 1024 phases of strides, and rows of X that take more than 32 MiB in 16 bits.
///
/// @param op      the operator, "Conv" or "ConvTranspose". The plan does not need it later.
/// @param options threads, instruction set and layouts; NULL for none. Quantised plans have no
///                activation, algorithm, packed weights, limit of the workspace or separate images
///                (CONVOKE_STATUS_UNAVAILABLE).
/// @param dtypes  the element types of X, W and Y.
/// @param x_dims  the shape of X, (N, C, D1, D2, ...), in every layout.
/// @param x_rank  the number of X's dimensions, at least 3.
/// @param plan    becomes the plan, or NULL if the call fails. The caller destroys it.
/// @param error   becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_create_quantised(
    op: *const Operator,
    options: *const PlanOptions,
    dtypes: *const QuantisedDTypes,
    x_dims: *const i64,
    x_rank: usize,
    plan: *mut *mut Plan,
    error: *mut Error,
) -> Status {
    let make = || {
        // SAFETY: the caller's pointers.
        let (wanted, QuantisedDTypes { x, w, y }) = unsafe {
            (Wanted::read(op, options, Ints { values: x_dims, len: x_rank })?, *pointers::value("dtypes", dtypes)?)
        };
        with_type!("x of dtypes", x, [Uint8 => u8, Int8 => i8], X => {
            with_type!("w of dtypes", w, [Uint8 => u8, Int8 => i8], W => {
                with_type!("y of dtypes", y, [Uint8 => u8, Int8 => i8, Int32 => i32, Float => f32, Float16 => f16], Y => {
                    planned::<X, W, Y>(wanted)
                })
            })
        })
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("plan", plan, make)) }
}

/// Packs W, its zero points and the bias.
///
/// It fails with CONVOKE_STATUS_OVERFLOW if sums may not fit 32 bits: 255 times the sum of a channel's
/// magnitudes, and the magnitude of its bias. Weights whose zero point is the middle of their type,
/// which is 0 of int8 and 128 of uint8, may be multiplied faster.
///
/// @param plan    a quantised plan.
/// @param args    the weights. They are copied.
/// @param weights becomes the packed weights, or NULL if the call fails. The caller destroys them.
/// @param error   becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_pack_quantised(
    plan: *const Plan,
    args: *const QuantisedPackArgs,
    weights: *mut *mut QuantisedWeights,
    error: *mut Error,
) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    let make = || unsafe { quantised(plan)?.pack(pointers::sized(args, &mut room)?) };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("weights", weights, make)) }
}

/// Says what runs do with the sums of packed weights: once for static quantisation, and before each run
/// where scales are known only then.
///
/// Scales must be positive and finite, and so must x_scale * w_scale / y_scale.
///
/// @param plan    a quantised plan.
/// @param weights its weights.
/// @param scales  scales and zero points. They are copied.
/// @param scaled  becomes the result, or NULL if the call fails. The caller destroys it. It does not
///                need the weights later.
/// @param error   becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_scale_quantised(
    plan: *const Plan,
    weights: *const QuantisedWeights,
    scales: *const Scales,
    scaled: *mut *mut Scaled,
    error: *mut Error,
) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    let make = || unsafe {
        quantised(plan)?.scaled(pointers::value("weights", weights)?, pointers::sized(scales, &mut room)?)
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("scaled", scaled, make)) }
}

/// Computes Y from X.
///
/// What convoke_plan_run says of allocations, threads and failures is so here, too.
///
/// @param plan  a quantised plan.
/// @param args  weights, scales, tensors, workspace and threads.
/// @param error becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_run_quantised(
    plan: *const Plan,
    args: *const QuantisedRunArgs,
    error: *mut Error,
) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    let run = || unsafe { quantised(plan)?.run(pointers::sized(args, &mut room)?) };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, run) }
}

/// Destroys packed weights of a quantised plan. NULL is allowed.
///
/// They must be of this library, and are destroyed once. No call may use them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_quantised_weights_destroy(weights: *mut QuantisedWeights) {
    // SAFETY: the same.
    unsafe { pointers::destroy(weights) };
}

/// Destroys what convoke_plan_scale_quantised made. NULL is allowed.
///
/// It must be of this library, and is destroyed once. No run may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_scaled_destroy(scaled: *mut Scaled) {
    // SAFETY: the same.
    unsafe { pointers::destroy(scaled) };
}

//! Packing for a plan, and whether it accepts what is packed.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};

use crate::element::COf;
use crate::packed::{Memory, Packed};
use crate::plan::{Plan, with_plan};
use crate::pointers::{self, Extent, Versioned, check_apart};
use crate::status::{Error, Result, Status, fail, guard};

/// What convoke_plan_pack packs, and where.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PackArgs {
    /// sizeof(convoke_pack_args).
    pub struct_size: usize,
    /// W, of the plan's element type.
    pub w: *const c_void,
    /// Elements of W: `w_len` of convoke_plan_info.
    pub w_len: usize,
    /// The bias, of the plan's element type. NULL without one.
    pub bias: *const c_void,
    /// Elements of the bias: `bias_len` of convoke_plan_info. 0 without one.
    pub bias_len: usize,
    /// Where the packed weights go: at an address that is a multiple of `packed_alignment` of
    /// convoke_plan_info. It must not overlap W and bias. What it holds before does not matter.
    pub memory: *mut c_void,
    /// Bytes of `memory`: exactly `packed_bytes` of convoke_plan_info.
    pub memory_bytes: usize,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for PackArgs {
    const NAME: &'static str = "convoke_pack_args";
    const FIRST_BYTES: usize = offset_of!(Self, memory_bytes) + size_of::<usize>();
}

/// Checks all lengths, so that memory does not seem to overlap because its length is wrong.
fn check_lengths<T: COf>(plan: &convoke::Plan<T>, args: &PackArgs, has_bias: bool) -> Result<()> {
    let geometry = plan.geometry();
    let op = geometry.op;
    if args.w_len != geometry.weight_len() {
        let (len, shape, needed) = (args.w_len, geometry.weight_shape(), geometry.weight_len());
        fail!(BufferLength, "{op}: w has {len} elements, its shape {shape:?} asks for {needed}");
    }
    if has_bias && args.bias_len != geometry.bias_len() {
        let (len, needed) = (args.bias_len, geometry.bias_len());
        fail!(BufferLength, "{op}: bias has {len} elements, the {needed} output channels ask for {needed}");
    }
    let (bytes, needed) = (args.memory_bytes, plan.pack_into_bytes()?);
    if bytes != needed {
        fail!(BufferLength, "{op}: memory has {bytes} bytes, packed_bytes of convoke_plan_info is {needed}");
    }
    Ok(())
}

/// Packs weights for a plan.
///
/// # Safety
/// The pointers must be as the struct says.
unsafe fn pack<T: COf>(plan: &convoke::Plan<T>, args: &PackArgs) -> Result<Packed> {
    let (w, bias) = (args.w.cast::<T>(), args.bias.cast::<T>());
    let has_bias = !bias.is_null() || args.bias_len > 0;
    check_lengths(plan, args, has_bias)?;
    let written = ("memory", Extent::new(args.memory.cast::<u8>(), args.memory_bytes));
    let apart = [("w", Extent::new(w, args.w_len)), ("bias", Extent::new(bias, args.bias_len))];
    // SAFETY: the caller's. Nothing is written yet.
    let (w, bias) = unsafe {
        let w = pointers::values("w", w, args.w_len)?;
        (w, if has_bias { Some(pointers::values("bias", bias, args.bias_len)?) } else { None })
    };
    for read in apart {
        check_apart(written, read)?;
    }
    // SAFETY: the caller's, and apart from what is read.
    let memory = unsafe { Memory::cleared(args.memory.cast(), args.memory_bytes)? };
    let extent = memory.extent();
    Ok(Packed { weights: T::erase(plan.pack_into(w, bias, memory)?), extent })
}

/// Packs W and the bias into memory of the caller.
///
/// The plan accepts the weights, and so do plans that are made with them as `packed` of
/// convoke_plan_options. If a weight is not finite, the weights have a layout of their own, which
/// every plan of the layer accepts, and runs by the loops of the definition, slowly.
///
/// If the call fails, the memory is as before, with three exceptions: it may
/// be written if nothing is left to allocate for the bias (CONVOKE_STATUS_OUT_OF_MEMORY), if it
/// does not keep what is written (CONVOKE_STATUS_INVALID_PACKED), and after
/// CONVOKE_STATUS_INTERNAL.
///
/// @param plan   how the weights are packed.
/// @param args   the weights, and the memory that they go to.
/// @param packed becomes the packed weights, or NULL if the call fails. The caller destroys them.
///               The memory must stay as it is until then.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_pack(
    plan: *const Plan,
    args: *const PackArgs,
    packed: *mut *mut Packed,
    error: *mut Error,
) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    let make = || unsafe {
        let (plan, args) = (pointers::value("plan", plan)?, pointers::sized(args, &mut room)?);
        with_plan!(plan, layer => pack(&layer.plan, args))
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("packed", packed, make)) }
}

/// Checks that runs of a plan accept packed weights: they are of the plan's layer and instruction set,
/// and in the layout that the plan reads. That is so if the plan packed them, if it was made with them
/// as `packed` of convoke_plan_options, or if it is one of the same layer and shape.
///
/// @param plan   the plan.
/// @param packed the packed weights.
/// @param error  becomes the reason of a failure; may be NULL. It names what differs.
/// @return CONVOKE_STATUS_PACKED_MISMATCH if it does not.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_accepts(plan: *const Plan, packed: *const Packed, error: *mut Error) -> Status {
    // SAFETY: the caller's pointers.
    let check = || unsafe {
        let (plan, packed) = (pointers::value("plan", plan)?, pointers::value("packed", packed)?);
        with_plan!(plan, layer => Ok(layer.plan.accepts(layer.weights(packed)?)?))
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, check) }
}

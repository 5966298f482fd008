//! Packed weights, in memory of the caller.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::slice;

use convoke::{PackedWeights, Planner, Workspace};

use crate::element::{AnyWeights, COf, DType, with_type};
use crate::plan::Plan;
use crate::pointers::{self, Extent, Versioned, check_apart};
use crate::status::{Error, Result, Status, fail, guard};

/// Weights and bias in the layout of a plan's kernels.
///
/// The handle refers to memory of the caller, which must stay as it is until the handle is
/// destroyed. The memory is a whole description of the weights: it can be written to a file, and a
/// file that is read or mapped can be opened in another process, on a CPU with the same instruction
/// set, by the same version of the library.
pub struct Packed {
    pub(crate) weights: AnyWeights,
    /// The caller's memory.
    pub(crate) extent: Extent,
}

impl Packed {
    /// A planner for these weights.
    pub(crate) fn planned_for(&self, planner: Planner) -> Planner {
        match &self.weights {
            AnyWeights::Float(weights) => planner.packed_for(weights),
            AnyWeights::Float16(weights) => planner.packed_for(weights),
            AnyWeights::Double(weights) => planner.packed_for(weights),
            AnyWeights::Bfloat16(weights) => planner.packed_for(weights),
        }
    }
}

/// Memory of the caller that packed weights are in.
pub(crate) struct Memory {
    begin: *mut u8,
    len: usize,
}

// SAFETY: the caller hands the memory over until the handle is destroyed. It is written only while
// weights are packed, by the one thread that owns it.
unsafe impl Send for Memory {}
// SAFETY: as above; threads that share it only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory that holds packed weights.
    ///
    /// # Safety
    /// Unless the pointer is null, the memory must be initialised and live, and nobody may write
    /// it, as long as the value and what is made of it.
    unsafe fn new(begin: *mut u8, len: usize) -> Result<Self> {
        let begin = pointers::checked_bytes("memory", begin, len, Workspace::ALIGNMENT)?;
        // Without bytes, an address that no alignment refuses.
        let begin = if len == 0 { ptr::without_provenance_mut(Workspace::ALIGNMENT) } else { begin };
        Ok(Self { begin, len })
    }

    /// Memory to pack into, which need not be initialised: it becomes zero.
    ///
    /// # Safety
    /// As [`new`](Self::new), but for that. Nobody else may use it while weights are packed, and it
    /// must not overlap what is packed.
    unsafe fn cleared(begin: *mut u8, len: usize) -> Result<Self> {
        // SAFETY: the same, and it is initialised before anybody reads it.
        let memory = unsafe { Self::new(begin, len)? };
        // SAFETY: the caller's memory, checked.
        unsafe { memory.begin.write_bytes(0, len) };
        Ok(memory)
    }

    fn extent(&self) -> Extent {
        Extent::new(self.begin, self.len)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: checked by `new`. It is initialised and nobody writes it, says the caller.
        unsafe { slice::from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: checked and initialised by `cleared`. Only packing asks for it, while nobody else
        // uses the memory.
        unsafe { slice::from_raw_parts_mut(self.begin, self.len) }
    }
}

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
pub(crate) unsafe fn pack<T: COf>(plan: &convoke::Plan<T>, args: &PackArgs) -> Result<Packed> {
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
/// convoke_plan_options. If the call fails, the memory is as before, with three exceptions: it may
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
    let make = || unsafe { pointers::value("plan", plan)?.layer.pack(pointers::sized(args, &mut room)?) };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("packed", packed, make)) }
}

/// # Safety
/// As [`Memory::new`].
unsafe fn opened<T: COf>(memory: *const c_void, bytes: usize) -> Result<Packed> {
    // SAFETY: the same. It is never written.
    let memory = unsafe { Memory::new(memory.cast_mut().cast(), bytes)? };
    let extent = memory.extent();
    Ok(Packed { weights: T::erase(PackedWeights::from_shared(memory)?), extent })
}

/// Opens packed weights that another process has packed: they were read from a file, or mapped.
///
/// They are checked by a checksum, and used where they are. Make plans for them with `packed` of
/// convoke_plan_options. It is an error if they were changed or cut, are of another version of the
/// library, order of bytes or element type, or of an instruction set that this CPU lacks. A file
/// that somebody forged can make results wrong, but not unsafe.
///
/// @param dtype  the convoke_dtype of the plan that packed them.
/// @param memory the packed weights, at an address that is a multiple of 64.
/// @param bytes  the length of all of them.
/// @param packed becomes the packed weights, or NULL if the call fails. The caller destroys them.
///               The memory must stay as it is until then.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_packed_open(
    dtype: u32,
    memory: *const c_void,
    bytes: usize,
    packed: *mut *mut Packed,
    error: *mut Error,
) -> Status {
    // SAFETY: the caller's pointers.
    let make = || unsafe { with_type!(DType::of(dtype)?, opened(memory, bytes)) };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("packed", packed, make)) }
}

/// Checks that runs of a plan accept packed weights: the plan packed them, or was made with them as
/// `packed` of convoke_plan_options.
///
/// @param plan   the plan.
/// @param packed the packed weights.
/// @param error  becomes the reason of a failure; may be NULL. It names what differs.
/// @return CONVOKE_STATUS_PACKED_MISMATCH if it does not.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_accepts(plan: *const Plan, packed: *const Packed, error: *mut Error) -> Status {
    // SAFETY: the caller's pointers.
    let check = || unsafe { pointers::value("plan", plan)?.layer.accepts(pointers::value("packed", packed)?) };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, check) }
}

/// Destroys packed weights. Their memory is the caller's again. NULL is allowed.
///
/// It must be one of this library, which is destroyed once, and no run may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_packed_destroy(packed: *mut Packed) {
    // SAFETY: the same.
    unsafe { pointers::destroy(packed) };
}

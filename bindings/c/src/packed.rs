//! Packed weights, in memory of the caller.

use std::ffi::c_void;
use std::ptr;
use std::slice;

use convoke::{PackedWeights, Planner, Workspace, bf16, f16};

use crate::element::{AnyWeights, COf, with_type};
use crate::pointers::{self, Extent};
use crate::status::{Error, Result, Status, guard};

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
    pub(crate) unsafe fn cleared(begin: *mut u8, len: usize) -> Result<Self> {
        // SAFETY: the same, and it is initialised before anybody reads it.
        let memory = unsafe { Self::new(begin, len)? };
        // SAFETY: the caller's memory, checked.
        unsafe { memory.begin.write_bytes(0, len) };
        Ok(memory)
    }

    pub(crate) fn extent(&self) -> Extent {
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
    let make = || unsafe {
        with_type!("dtype", dtype, [Float => f32, Float16 => f16, Double => f64, Bfloat16 => bf16], T => {
            opened::<T>(memory, bytes)
        })
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("packed", packed, make)) }
}

/// Destroys packed weights. Their memory is the caller's again. NULL is allowed.
///
/// It must be one of this library, which is destroyed once, and no run may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_packed_destroy(packed: *mut Packed) {
    // SAFETY: the same.
    unsafe { pointers::destroy(packed) };
}

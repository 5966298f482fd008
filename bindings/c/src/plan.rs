//! Plans: what is decided once for an operator and a shape of X.

use std::ffi::{CString, c_char};
use std::mem::offset_of;
use std::ptr;

use convoke::{Element, Geometry, Layout, Op, Planner, Workspace, bf16, f16};

use crate::element::{COf, DType};
use crate::operator::{Ints, Operator};
use crate::options::{Choices, PlanOptions};
use crate::packed::Packed;
use crate::pointers::{self, Versioned};
use crate::quantised_plan::AnyQuantised;
use crate::status::{Error, Result, Status, fail, guard};

/// How to compute an operator on X of one shape and element type. Threads may share it.
///
/// A plan is for floats, or a quantised one, for bytes. convoke_plan_get_info, convoke_plan_output_shape,
/// convoke_plan_explain and convoke_plan_destroy are for both. Of the others, those whose names end in
/// _quantised are for quantised plans, and the rest for floats (else CONVOKE_STATUS_INVALID_ARGUMENT).
pub struct Plan {
    pub(crate) layer: AnyPlan,
    /// With all images.
    pub(crate) geometry: Geometry,
    /// Of algorithm, instruction set and kernel.
    pub(crate) names: [CString; 3],
}

/// A plan of any element type.
pub(crate) enum AnyPlan {
    Float(TypedPlan<f32>),
    Float16(TypedPlan<f16>),
    Double(TypedPlan<f64>),
    Bfloat16(TypedPlan<bf16>),
    Quantised(Box<dyn AnyQuantised>),
}

/// Evaluates an expression with the plan of a handle for floats, whatever their type is.
macro_rules! with_plan {
    ($plan:expr, $layer:ident => $value:expr) => {
        match &$plan.layer {
            $crate::plan::AnyPlan::Float($layer) => $value,
            $crate::plan::AnyPlan::Float16($layer) => $value,
            $crate::plan::AnyPlan::Double($layer) => $value,
            $crate::plan::AnyPlan::Bfloat16($layer) => $value,
            $crate::plan::AnyPlan::Quantised(_) => {
                $crate::status::fail!(InvalidArgument, "plan is a quantised one, and the function is for floats")
            }
        }
    };
}
pub(crate) use with_plan;

/// The images of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) op: Op,
    pub(crate) images: usize,
    /// Whether the plan is one of a single image.
    pub(crate) is_separate: bool,
    /// An image of X, and of Y.
    pub(crate) x: Image,
    pub(crate) y: Image,
}

/// An image of a tensor, without anything between its pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    pub(crate) layout: Layout,
    pub(crate) channels: usize,
    /// Its elements.
    pub(crate) len: usize,
}

impl Image {
    /// Elements to the next image that is a neighbour, and elements from the first to the last one, if pixels
    /// are a distance apart. None if the address space is smaller.
    pub(crate) fn spread(&self, pixel: Option<usize>) -> Option<(usize, usize)> {
        match pixel {
            Some(pixel) if self.len > 0 => {
                let neighbour = (self.len / self.channels).checked_mul(pixel)?;
                Some((neighbour, neighbour - (pixel - self.channels)))
            }
            _ => Some((self.len, self.len)),
        }
    }
}

impl Batch {
    fn new(geometry: &Geometry, is_separate: bool) -> Self {
        let per_image = |len: usize| len.checked_div(geometry.batch).unwrap_or(0);
        let (x_len, y_len) = (per_image(geometry.input_len()), per_image(geometry.output_len()));
        Self {
            op: geometry.op,
            images: geometry.batch,
            is_separate,
            x: Image { layout: geometry.x_layout, channels: geometry.in_channels, len: x_len },
            y: Image { layout: geometry.y_layout, channels: geometry.out_channels, len: y_len },
        }
    }
}

/// A plan with its element type.
pub(crate) struct TypedPlan<T: Element> {
    pub(crate) plan: convoke::Plan<T>,
    pub(crate) batch: Batch,
}

impl<T: COf> TypedPlan<T> {
    /// The weights, if they are of this type. A run checks the rest.
    pub(crate) fn weights<'p>(&self, packed: &'p Packed) -> Result<&'p convoke::PackedWeights<T>> {
        match T::of(&packed.weights) {
            Some(weights) => Ok(weights),
            None => {
                let (has, needs) = (packed.weights.dtype(), T::DTYPE_IN_C);
                fail!(PackedMismatch, "the weights were packed for {}, the plan needs {}", has.name(), needs.name())
            }
        }
    }
}

/// What a plan is made for.
pub(crate) struct Wanted {
    /// In its layouts.
    pub(crate) operator: convoke::Operator,
    pub(crate) x_shape: Vec<usize>,
    pub(crate) planner: Planner,
    pub(crate) separates_images: bool,
}

impl Wanted {
    /// # Safety
    /// The pointers must be as those of [`convoke_plan_create`].
    pub(crate) unsafe fn read(op: *const Operator, options: *const PlanOptions, x_dims: Ints) -> Result<Self> {
        // SAFETY: the same.
        let (operator, choices, x_dims) = unsafe {
            let operator = &pointers::value("op", op)?.operator;
            let x_dims = x_dims.get("x_dims")?;
            (operator, Choices::read(operator.op_name(), options)?, x_dims)
        };
        let x_shape = sizes(operator.op_name(), x_dims)?;
        let Choices { planner, separates_images, layouts: [x_layout, y_layout] } = choices;
        Ok(Self { operator: operator.clone().layouts(x_layout, y_layout), x_shape, planner, separates_images })
    }

    fn planned<T: COf>(self, any: fn(TypedPlan<T>) -> AnyPlan) -> Result<Plan> {
        let Self { operator, mut x_shape, planner, separates_images } = self;
        let geometry = operator.geometry(&x_shape)?;
        let is_separate = separates_images && geometry.batch > 1;
        if is_separate {
            x_shape[0] = 1;
        }
        let plan = planner.plan::<T>(operator, &x_shape)?;
        let name = |name: &str| CString::new(name).unwrap_or_default();
        let names = [name(plan.algorithm().name()), name(plan.isa().name()), name(plan.kernel())];
        let batch = Batch::new(&geometry, is_separate);
        Ok(Plan { layer: any(TypedPlan { plan, batch }), geometry, names })
    }
}

/// The dimensions of X as sizes.
fn sizes(op: &str, dims: &[i64]) -> Result<Vec<usize>> {
    let size = |(axis, dim): (usize, &i64)| match usize::try_from(*dim) {
        Ok(size) => Ok(size),
        Err(_) if *dim < 0 => {
            fail!(InvalidShape, "{op}: X has size {dim} on axis {axis}, must be known and not negative")
        }
        Err(_) => fail!(Overflow, "{op}: X has size {dim} on axis {axis}, more than the address space"),
    };
    dims.iter().enumerate().map(size).collect()
}

/// Makes a plan: picks the algorithm that is estimated to be the fastest.
///
/// It takes tens of microseconds, and allocates. Nothing is measured.
///
/// @param op      the operator. The plan does not need it later.
/// @param options wishes and limits; NULL for none.
/// @param dtype   a convoke_dtype of floats: the element type of X, W, bias, residual and Y.
/// @param x_dims  the shape of X, (N, C, D1, D2, ...), in every layout.
/// @param x_rank  the number of X's dimensions, at least 3.
/// @param plan    becomes the plan, or NULL if the call fails. The caller destroys it.
/// @param error   becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_create(
    op: *const Operator,
    options: *const PlanOptions,
    dtype: u32,
    x_dims: *const i64,
    x_rank: usize,
    plan: *mut *mut Plan,
    error: *mut Error,
) -> Status {
    let make = || {
        // SAFETY: the caller's pointers.
        let wanted = unsafe { Wanted::read(op, options, Ints { values: x_dims, len: x_rank })? };
        match DType::of("dtype", dtype)? {
            DType::Float => wanted.planned(AnyPlan::Float),
            DType::Float16 => wanted.planned(AnyPlan::Float16),
            DType::Double => wanted.planned(AnyPlan::Double),
            DType::Bfloat16 => wanted.planned(AnyPlan::Bfloat16),
            other => fail!(InvalidArgument, "dtype: {} is for convoke_plan_create_quantised alone", other.name()),
        }
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("plan", plan, make)) }
}

/// What a caller needs to know of a plan to allocate its memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PlanInfo {
    /// sizeof(convoke_plan_info), set by the caller.
    pub struct_size: usize,
    /// Elements of X.
    pub x_len: usize,
    /// Elements of W.
    pub w_len: usize,
    /// Elements of the bias.
    pub bias_len: usize,
    /// Elements of Y, and of a residual.
    pub y_len: usize,
    /// The number of Y's dimensions, and X's.
    pub y_rank: usize,
    /// Bytes of packed weights. It is a multiple of `packed_alignment`. 0 for a quantised plan, whose
    /// weights are not in memory of the caller.
    pub packed_bytes: usize,
    /// What the address of packed weights must be a multiple of.
    pub packed_alignment: usize,
    /// Bytes of workspace of a run on `threads` threads. A run on fewer threads needs as much for
    /// each of them. It is a multiple of `workspace_alignment`, and may be 0.
    pub workspace_bytes: usize,
    /// What the address of a workspace must be a multiple of.
    pub workspace_alignment: usize,
    /// The number of threads that the plan was made for. A run has no more.
    pub threads: usize,
    /// The name of the algorithm. This and the other texts live as long as the plan. They are empty
    /// for a quantised plan: convoke_plan_explain has them.
    pub algorithm: *const c_char,
    /// The name of the instruction set.
    pub isa: *const c_char,
    /// The name of the kernel that does most of the work.
    pub kernel: *const c_char,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for PlanInfo {
    const NAME: &'static str = "convoke_plan_info";
    const FIRST_BYTES: usize = offset_of!(Self, kernel) + size_of::<*const c_char>();
}

impl Plan {
    fn info(&self, struct_size: usize) -> Result<PlanInfo> {
        let [algorithm, isa, kernel] = self.names.each_ref().map(|name| name.as_ptr());
        let (packed_bytes, workspace_bytes, threads) = match &self.layer {
            AnyPlan::Quantised(plan) => (0, plan.workspace_bytes(), plan.threads()),
            _ => with_plan!(self, layer => {
                (layer.plan.pack_into_bytes()?, layer.plan.workspace_bytes(), layer.plan.threads())
            }),
        };
        Ok(PlanInfo {
            struct_size,
            x_len: self.geometry.input_len(),
            w_len: self.geometry.weight_len(),
            bias_len: self.geometry.bias_len(),
            y_len: self.geometry.output_len(),
            y_rank: 2 + self.geometry.axes.len(),
            packed_bytes,
            packed_alignment: Workspace::ALIGNMENT,
            workspace_bytes,
            workspace_alignment: Workspace::ALIGNMENT,
            threads,
            algorithm,
            isa,
            kernel,
        })
    }
}

/// Writes lengths, numbers of bytes and names of a plan.
///
/// @param plan  the plan.
/// @param info  becomes all this. Its `struct_size` must be set.
/// @param error becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_get_info(plan: *const Plan, info: *mut PlanInfo, error: *mut Error) -> Status {
    let write = || {
        // SAFETY: the caller's pointers.
        unsafe {
            let plan = pointers::value("plan", plan)?;
            pointers::write_sized(info, |struct_size| plan.info(struct_size))
        }
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, write) }
}

/// Memory of the caller for as many values as there are, with their names.
struct Room<T> {
    name: &'static str,
    begin: *mut T,
    capacity: usize,
    length_name: &'static str,
    /// Where their number goes.
    length: *mut usize,
}

impl<T: Copy> Room<T> {
    /// Writes values if there is room for all of them, and in any case the number `length`. Without
    /// any room, the number is what was asked for.
    ///
    /// # Safety
    /// `begin` must be null or memory for `capacity` values, `length` null or memory for a number.
    unsafe fn fill(self, values: &[T], length: usize) -> Result<()> {
        // SAFETY: the same.
        unsafe { pointers::write(self.length_name, self.length, length)? };
        if self.capacity == 0 {
            return Ok(());
        }
        if self.capacity < values.len() {
            let (name, capacity, needed) = (self.name, self.capacity, values.len());
            fail!(BufferLength, "{name}: there is room for {capacity}, {needed} are needed");
        }
        // SAFETY: the same.
        let room = unsafe { pointers::memory(self.name, self.begin, self.capacity)? };
        // SAFETY: there is room for them, and the caller's memory is not ours.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), room.as_mut_ptr().cast(), values.len()) };
        Ok(())
    }
}

/// Writes the shape of Y, (N, M, O1, O2, ...), in every layout.
///
/// @param plan     the plan.
/// @param dims     becomes the shape, if there is room for all of it.
/// @param capacity the number of dimensions that `dims` has room for. If it is 0, only `rank` is
///                 written, and `dims` may be NULL.
/// @param rank     becomes the number of dimensions, which is that of X; also if there is too
///                 little room (CONVOKE_STATUS_BUFFER_LENGTH).
/// @param error    becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_output_shape(
    plan: *const Plan,
    dims: *mut i64,
    capacity: usize,
    rank: *mut usize,
    error: *mut Error,
) -> Status {
    let write = || {
        // SAFETY: the caller's pointer.
        let plan = unsafe { pointers::value("plan", plan)? };
        // Geometry has checked that sizes have 63 bits.
        let shape: Vec<i64> = plan.geometry.output_shape().into_iter().map(|size| size as i64).collect();
        // SAFETY: the caller's pointers.
        unsafe {
            Room { name: "dims", begin: dims, capacity, length_name: "rank", length: rank }.fill(&shape, shape.len())
        }
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, write) }
}

/// Writes a text that says what was picked, and why each other algorithm was not. It is for people:
/// any version may change it.
///
/// For a plan of separate images, it is about one image.
///
/// @param plan     the plan.
/// @param text     becomes the text, with a zero at its end, if there is room for all of it.
/// @param capacity bytes that `text` has room for. If it is 0, only `length` is written, and `text`
///                 may be NULL.
/// @param length   becomes the length of the text in bytes, without the zero at its end; also if
///                 there is too little room (CONVOKE_STATUS_BUFFER_LENGTH).
/// @param error    becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_explain(
    plan: *const Plan,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut Error,
) -> Status {
    let write = || {
        // SAFETY: the caller's pointer.
        let plan = unsafe { pointers::value("plan", plan)? };
        let mut explanation = match &plan.layer {
            AnyPlan::Quantised(plan) => plan.explain(),
            _ => with_plan!(plan, layer => format!("{:#}", layer.plan.explain())),
        };
        let len = explanation.len();
        explanation.push('\0');
        // SAFETY: the caller's pointers.
        unsafe {
            let begin = text.cast();
            Room { name: "text", begin, capacity, length_name: "length", length }.fill(explanation.as_bytes(), len)
        }
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, write) }
}

/// Destroys a plan. Weights that it packed stay. NULL is allowed.
///
/// It must be one of this library, which is destroyed once, and no run may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_destroy(plan: *mut Plan) {
    // SAFETY: the same.
    unsafe { pointers::destroy(plan) };
}

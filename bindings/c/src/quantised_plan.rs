//! What a quantised plan does for C, whatever its types are.

use std::any::Any;
use std::ffi::c_void;
use std::mem::offset_of;

use convoke::{Byte, Op, Quantised, QuantisedPlan, QuantisedRun, Workspace, f16};

use crate::executor::{Executor, on_threads};
use crate::pointers::{self, Extent, Versioned, check_apart};
use crate::status::{Result, fail};

/// The element types of a quantised plan: each a convoke_dtype.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QuantisedDTypes {
    /// That of X: CONVOKE_DTYPE_UINT8 or CONVOKE_DTYPE_INT8.
    pub x: u32,
    /// That of W: one of the same two.
    pub w: u32,
    /// That of Y: one of the same two, CONVOKE_DTYPE_INT32 as in ConvInteger, or CONVOKE_DTYPE_FLOAT or
    /// CONVOKE_DTYPE_FLOAT16 if DequantizeLinear follows.
    pub y: u32,
}

/// Weights in the order in which kernels read them, with their sums and the bias.
///
/// The handle has memory of its own.
pub struct QuantisedWeights(convoke::QuantisedWeights);

/// What a run does with sums: made once from scales for packed weights, which it is for alone.
pub struct Scaled(Box<dyn Any + Send + Sync>);

/// What convoke_plan_pack_quantised packs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QuantisedPackArgs {
    /// sizeof(convoke_quantised_pack_args).
    pub struct_size: usize,
    /// W, of the plan's type of W.
    pub w: *const c_void,
    /// Elements of W: `w_len` of convoke_plan_info.
    pub w_len: usize,
    /// The zero points of W, of its type: one, or one for each output channel. NULL for 0.
    pub w_zero_point: *const c_void,
    /// The number of zero points: 1, or `bias_len` of convoke_plan_info. 0 for NULL.
    pub w_zero_point_len: usize,
    /// The bias, whose scale is x_scale * w_scale, as in QLinearConv. NULL without one.
    pub bias: *const i32,
    /// Elements of the bias: `bias_len` of convoke_plan_info. 0 without one.
    pub bias_len: usize,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for QuantisedPackArgs {
    const NAME: &'static str = "convoke_quantised_pack_args";
    const FIRST_BYTES: usize = offset_of!(Self, bias_len) + size_of::<usize>();
}

/// Scales and zero points, by ONNX's names.
///
/// An output of bytes is round((sum + bias) * (x_scale * w_scale / y_scale)) + y_zero_point, saturated,
/// where sum is that of (x - x_zero_point) * (w - w_zero_point). The scale is computed in float, and
/// halves are rounded to even. An output in float is (sum + bias) * (x_scale * w_scale / y_scale), so
/// that y_scale is 1 for DequantizeLinear. One in float16 is the same number, rounded to nearest even. An
/// output in int32 is sum + bias, and has no scales.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scales {
    /// sizeof(convoke_scales).
    pub struct_size: usize,
    /// The scale of W: one, or one for each output channel.
    pub w_scale: *const f32,
    /// The number of W's scales: 1, or `bias_len` of convoke_plan_info.
    pub w_scale_len: usize,
    /// The scale of X.
    pub x_scale: f32,
    /// The scale of Y.
    pub y_scale: f32,
    /// The zero point of X, a value of its type. Padding has it too.
    pub x_zero_point: i32,
    /// The zero point of Y, a value of its type. It counts for bytes alone.
    pub y_zero_point: i32,
    /// 256 values of Y's type, which must be uint8 or int8: each byte of Y becomes the one whose number has
    /// the byte's bits. So a layer has any activation, and Y any scale behind it. NULL for none.
    pub y_table: *const c_void,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for Scales {
    const NAME: &'static str = "convoke_scales";
    const FIRST_BYTES: usize = offset_of!(Self, y_zero_point) + size_of::<i32>();
    const BYTES: usize = offset_of!(Self, y_table) + size_of::<*const c_void>();
}

/// The memory of a run of a quantised plan, in the plan's types and layouts. Tensors are contiguous, unless a pixel stride
/// says otherwise: the distance between the pixels of a tensor with channels last, in elements. 0 is that of neighbours.
/// With one, a length is that of all memory up to the last element at least.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QuantisedRunArgs {
    /// sizeof(convoke_quantised_run_args).
    pub struct_size: usize,
    /// X.
    pub x: *const c_void,
    /// Elements of X: `x_len` of convoke_plan_info.
    pub x_len: usize,
    /// The weights.
    pub weights: *const QuantisedWeights,
    /// What becomes of the sums of these weights.
    pub scaled: *const Scaled,
    /// Y. Every element is written, so that it need not be initialised.
    pub y: *mut c_void,
    /// Elements of Y: `y_len` of convoke_plan_info.
    pub y_len: usize,
    /// Scratch memory, as in convoke_run_args.
    pub workspace: *mut c_void,
    /// Bytes of the workspace, as in convoke_run_args.
    pub workspace_bytes: usize,
    /// The threads of the run. NULL for the calling thread.
    pub executor: *const Executor,
    /// A tensor of Y's shape and type, which must be uint8 or int8, that is added before Y is rounded:
    /// (residual - residual_zero_point) * (residual_scale / y_scale). NULL without one.
    pub residual: *const c_void,
    /// Elements of the residual: `y_len` of convoke_plan_info. 0 without one.
    pub residual_len: usize,
    /// The scale of the residual.
    pub residual_scale: f32,
    /// The zero point of the residual, a value of its type.
    pub residual_zero_point: i32,
    /// The stride of X's pixels.
    pub x_pixel_stride: usize,
    /// The stride of the residual's pixels.
    pub residual_pixel_stride: usize,
    /// The stride of Y's pixels. What is between them stays as it is. Y must hold values before then.
    pub y_pixel_stride: usize,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for QuantisedRunArgs {
    const NAME: &'static str = "convoke_quantised_run_args";
    const FIRST_BYTES: usize = offset_of!(Self, executor) + size_of::<*const Executor>();
    const BYTES: usize = offset_of!(Self, y_pixel_stride) + size_of::<usize>();
}

/// The distance of pixels that are not neighbours.
fn distance(pixel_stride: usize) -> Option<usize> {
    (pixel_stride > 0).then_some(pixel_stride)
}

/// A type of zero points, or of outputs that have none.
pub(crate) trait ZeroPoint: Sized {
    const HAS_SCALES: bool = true;

    fn of(op: Op, name: &str, value: i32) -> Result<Self>;

    /// Has bytes of Y go through a table.
    ///
    /// # Safety
    /// The pointer must be null, or point to 256 values of the type.
    unsafe fn with_table<X: Byte>(
        _: convoke::Scaled<X, Self>,
        _: *const c_void,
        op: Op,
    ) -> Result<convoke::Scaled<X, Self>> {
        fail!(InvalidArgument, "{op}: y_table is for outputs of uint8 and int8 alone")
    }

    /// Adds the residual of a run that has one.
    ///
    /// # Safety
    /// The pointers must be as the struct says.
    unsafe fn with_residual<'a, 'y, X: Byte>(
        _: QuantisedRun<'a, 'y, X, Self>,
        _: &QuantisedRunArgs,
        op: Op,
    ) -> Result<QuantisedRun<'a, 'y, X, Self>> {
        fail!(InvalidArgument, "{op}: a residual is for outputs of uint8 and int8 alone")
    }
}

macro_rules! bytes {
    ($($t:ident)+) => {$(
        impl ZeroPoint for $t {
            fn of(op: Op, name: &str, value: i32) -> Result<Self> {
                match Self::try_from(value) {
                    Ok(value) => Ok(value),
                    Err(_) => {
                        let (least, most) = (Self::MIN, Self::MAX);
                        fail!(InvalidArgument, "{op}: {name} is {value}, must be from {least} to {most}")
                    }
                }
            }

            unsafe fn with_table<X: Byte>(
                scaled: convoke::Scaled<X, Self>,
                table: *const c_void,
                _: Op,
            ) -> Result<convoke::Scaled<X, Self>> {
                // SAFETY: the caller's.
                Ok(scaled.table(unsafe { pointers::value("y_table", table.cast())? }))
            }

            unsafe fn with_residual<'a, 'y, X: Byte>(
                run: QuantisedRun<'a, 'y, X, Self>,
                args: &QuantisedRunArgs,
                op: Op,
            ) -> Result<QuantisedRun<'a, 'y, X, Self>> {
                let zero_point = Self::of(op, "residual_zero_point", args.residual_zero_point)?;
                // SAFETY: the caller's.
                let residual = unsafe { pointers::values("residual", args.residual.cast::<Self>(), args.residual_len)? };
                let run = run.residual(residual, args.residual_scale, zero_point);
                Ok(run.residual_pixel_stride(distance(args.residual_pixel_stride)))
            }
        }
    )+};
}
bytes!(u8 i8);

macro_rules! without_zero_points {
    ($($t:ty: $zero:expr, has scales: $has_scales:literal;)+) => {$(
        impl ZeroPoint for $t {
            const HAS_SCALES: bool = $has_scales;

            fn of(_: Op, _: &str, _: i32) -> Result<Self> {
                Ok($zero)
            }
        }
    )+};
}
without_zero_points!(i32: 0, has scales: false; f32: 0.0, has scales: true; f16: f16::ZERO, has scales: true;);

/// A quantised plan of any types.
pub(crate) trait AnyQuantised: Send + Sync {
    fn explain(&self) -> String;

    fn workspace_bytes(&self) -> usize;

    fn threads(&self) -> usize;

    /// # Safety
    /// The pointers must be as the struct says.
    unsafe fn pack(&self, args: &QuantisedPackArgs) -> Result<QuantisedWeights>;

    /// # Safety
    /// The pointers must be as the struct says.
    unsafe fn scaled(&self, weights: &QuantisedWeights, scales: &Scales) -> Result<Scaled>;

    /// # Safety
    /// The pointers must be as the struct says.
    unsafe fn run(&self, args: &QuantisedRunArgs) -> Result<()>;
}

impl<X: Byte + ZeroPoint, W: Byte, Y: Quantised + ZeroPoint> AnyQuantised for QuantisedPlan<X, W, Y> {
    fn explain(&self) -> String {
        self.explain()
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes()
    }

    fn threads(&self) -> usize {
        self.threads()
    }

    unsafe fn pack(&self, args: &QuantisedPackArgs) -> Result<QuantisedWeights> {
        // SAFETY: the caller's.
        let (w, w_zero_point, bias) = unsafe {
            (
                pointers::values("w", args.w.cast::<W>(), args.w_len)?,
                pointers::values("w_zero_point", args.w_zero_point.cast::<W>(), args.w_zero_point_len)?,
                pointers::values("bias", args.bias, args.bias_len)?,
            )
        };
        let bias = (!args.bias.is_null() || args.bias_len > 0).then_some(bias);
        if !args.w_zero_point.is_null() && w_zero_point.is_empty() {
            let geometry = self.geometry();
            fail!(BufferLength, "{}: w_zero_point has 0 elements, not 1 or {}", geometry.op, geometry.out_channels);
        }
        Ok(QuantisedWeights(self.pack(w, w_zero_point, bias)?))
    }

    unsafe fn scaled(&self, weights: &QuantisedWeights, scales: &Scales) -> Result<Scaled> {
        let Scales { w_scale, w_scale_len, x_scale, y_scale, x_zero_point, y_zero_point, y_table, .. } = *scales;
        let (x_scale, w_scale, y_scale) = if Y::HAS_SCALES {
            // SAFETY: the caller's.
            (x_scale, unsafe { pointers::values("w_scale", w_scale, w_scale_len)? }, y_scale)
        } else {
            (1.0, [1.0].as_slice(), 1.0)
        };
        let op = self.geometry().op;
        let x_zero_point = X::of(op, "x_zero_point", x_zero_point)?;
        let y_zero_point = Y::of(op, "y_zero_point", y_zero_point)?;
        let scales = convoke::Scales { x_scale, x_zero_point, w_scale, y_scale, y_zero_point };
        let mut scaled = weights.0.scaled(&scales)?;
        if !y_table.is_null() {
            // SAFETY: the caller's.
            scaled = unsafe { Y::with_table(scaled, y_table, op)? };
        }
        Ok(Scaled(Box::new(scaled)))
    }

    unsafe fn run(&self, args: &QuantisedRunArgs) -> Result<()> {
        // SAFETY: the caller's handles.
        let (weights, scaled) =
            unsafe { (pointers::value("weights", args.weights)?, pointers::value("scaled", args.scaled)?) };
        let Some(scaled) = scaled.0.downcast_ref::<convoke::Scaled<X, Y>>() else {
            fail!(PackedMismatch, "{}: the scales were made by a plan of other types", self.geometry().op);
        };
        let x = pointers::checked("x", args.x.cast::<X>(), args.x_len)?;
        let y = pointers::checked("y", args.y.cast::<Y>(), args.y_len)?;
        let (scratch, bytes) = (args.workspace.cast::<u8>(), args.workspace_bytes);
        let scratch = pointers::checked_bytes("workspace", scratch, bytes, Workspace::ALIGNMENT)?;
        let (of_x, of_y) = (("x", Extent::new(x, args.x_len)), ("y", Extent::new(y, args.y_len)));
        let of_scratch = ("workspace", Extent::new(scratch, bytes));
        check_apart(of_y, of_x)?;
        check_apart(of_scratch, of_x)?;
        check_apart(of_scratch, of_y)?;
        let has_residual = !args.residual.is_null() || args.residual_len > 0;
        if has_residual {
            let residual = pointers::checked("residual", args.residual.cast::<Y>(), args.residual_len)?;
            let of_residual = ("the residual", Extent::new(residual, args.residual_len));
            check_apart(of_y, of_residual)?;
            check_apart(of_scratch, of_residual)?;
        }
        // SAFETY: the caller's memory, checked, and apart from all other memory of the run.
        let (x, y, scratch) = unsafe {
            let y = pointers::memory("y", y.cast_mut(), args.y_len)?;
            (pointers::values("x", x, args.x_len)?, y, pointers::scratch(scratch, bytes))
        };
        let mut workspace = Workspace::borrowed(scratch);
        let (of_x, of_y) = (distance(args.x_pixel_stride), distance(args.y_pixel_stride));
        let mut run = match of_y {
            // SAFETY: the caller says that Y holds values.
            Some(_) => QuantisedRun::new(x, &weights.0, scaled, unsafe { pointers::initialised(y) }),
            None => QuantisedRun::uninit(x, &weights.0, scaled, y),
        };
        if has_residual {
            // SAFETY: the caller's.
            run = unsafe { Y::with_residual(run, args, self.geometry().op)? };
        }
        let run = run.x_pixel_stride(of_x).y_pixel_stride(of_y).workspace(&mut workspace);
        // SAFETY: the caller's executor.
        unsafe { on_threads(args.executor, |threads| Ok(self.run(run.threads(threads)).map(|_| ())?)) }
    }
}

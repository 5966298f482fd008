//! Runs: Y from X. Nothing here allocates, but for the message of an error.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::slice;

use convoke::{Layout, Run, Threads, Workspace};

use crate::element::COf;
use crate::executor::{Executor, on_threads};
use crate::packed::Packed;
use crate::plan::{Batch, Image, Plan, TypedPlan, with_plan};
use crate::pointers::{self, Extent, Versioned, check_apart};
use crate::status::{Error, Result, Status, fail, guard};

/// The memory of a run. Tensors are of the plan's element type.
///
/// The images of X, Y and residual may be a stride apart: channels of larger tensors, for example
/// the parts of a concatenation. Image strides are numbers of elements from the beginning of an
/// image to that of the next one; 0 means that images are neighbours. A batch of more than one image
/// needs a plan with `separate_images` for other strides. With a stride, a tensor may be longer than
/// needed.
///
/// Each image is contiguous. With channels last, its pixels may be a stride apart, too: they are
/// channels of the pixels of a wider tensor then. Pixel strides are numbers of elements from the
/// beginning of a pixel to that of the next one; 0 means that pixels are neighbours. All memory from
/// the first to the last element of such an image belongs to the run: no other tensor of the run may
/// lie between its pixels, and no other thread may write there until the call returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RunArgs {
    /// sizeof(convoke_run_args).
    pub struct_size: usize,
    /// X.
    pub x: *const c_void,
    /// Elements of X: `x_len` of convoke_plan_info.
    pub x_len: usize,
    /// The stride of X's images.
    pub x_image_stride: usize,
    /// The weights.
    pub packed: *const Packed,
    /// A tensor of Y's shape that is added before the activation. NULL without one. It may be Y
    /// itself, which must hold values then.
    pub residual: *const c_void,
    /// Elements of the residual: `y_len` of convoke_plan_info. 0 without one.
    pub residual_len: usize,
    /// The stride of the residual's images.
    pub residual_image_stride: usize,
    /// Y. Every element of its images is written. What is between images and between pixels stays as
    /// it is. With a pixel stride, Y must hold values before.
    pub y: *mut c_void,
    /// Elements of Y: `y_len` of convoke_plan_info.
    pub y_len: usize,
    /// The stride of Y's images.
    pub y_image_stride: usize,
    /// Scratch memory, for this run alone. What it holds before does not matter, and what it holds
    /// afterwards neither. Its address must be a multiple of `workspace_alignment` of
    /// convoke_plan_info. NULL if the plan needs none.
    pub workspace: *mut c_void,
    /// Bytes of the workspace, at least those that the run's threads need: `workspace_bytes` of
    /// convoke_plan_info is enough for all.
    pub workspace_bytes: usize,
    /// The threads of the run. NULL for the calling thread.
    pub executor: *const Executor,
    /// The stride of X's pixels.
    pub x_pixel_stride: usize,
    /// The stride of the residual's pixels.
    pub residual_pixel_stride: usize,
    /// The stride of Y's pixels.
    pub y_pixel_stride: usize,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for RunArgs {
    const NAME: &'static str = "convoke_run_args";
    const FIRST_BYTES: usize = offset_of!(Self, executor) + size_of::<*const Executor>();
    const BYTES: usize = offset_of!(Self, y_pixel_stride) + size_of::<usize>();
}

/// A tensor of the caller, as images.
#[derive(Clone, Copy)]
struct Tensor<T> {
    begin: *const T,
    /// Elements of all of it, with what is between images and pixels.
    len: usize,
    /// Elements of an image, with what is between its pixels, and from one to the next.
    image: usize,
    stride: usize,
    images: usize,
    /// The distance of pixels that are not neighbours.
    pixel: Option<usize>,
}

/// What a caller says of a tensor.
#[derive(Clone, Copy)]
struct Given<'a> {
    name: &'a str,
    begin: *const c_void,
    len: usize,
    image_stride: usize,
    pixel_stride: usize,
}

impl Given<'_> {
    /// The distance of pixels that are not neighbours.
    fn pixel(&self, batch: Batch, image: Image) -> Result<Option<usize>> {
        let (op, name, stride) = (batch.op, self.name, self.pixel_stride);
        if stride == 0 {
            return Ok(None);
        }
        if image.layout != Layout::ChannelsLast {
            fail!(
                InvalidArgument,
                "{op}: {name}_pixel_stride is {stride}, and {name} has its {}: only channels last can have one",
                image.layout
            );
        }
        if stride < image.channels {
            fail!(InvalidArgument, "{op}: {name}_pixel_stride is {stride}, a pixel has {} elements", image.channels);
        }
        Ok(Some(stride).filter(|stride| *stride != image.channels))
    }
}

impl<T> Tensor<T> {
    /// Checks strides, length and pointer.
    #[inline]
    fn new(given: Given<'_>, batch: Batch, image: Image) -> Result<Self> {
        let (len, images) = (given.len, batch.images);
        // Geometry has checked the product.
        if given.image_stride == 0 && given.pixel_stride == 0 && len == images * image.len {
            let begin = pointers::checked(given.name, given.begin.cast(), len)?;
            return Ok(Self { begin, len, image: image.len, stride: image.len, images, pixel: None });
        }
        Self::with_strides(given, batch, image)
    }

    /// The same for images and pixels that are a stride apart. Or the length is wrong.
    fn with_strides(given: Given<'_>, batch: Batch, image: Image) -> Result<Self> {
        let Given { name, begin, len, image_stride: stride, pixel_stride } = given;
        let (op, images, pixel) = (batch.op, batch.images, given.pixel(batch, image)?);
        let Some((neighbour, image)) = image.spread(pixel) else {
            fail!(Overflow, "{op}: {name}_pixel_stride is {pixel_stride}: such an image exceeds the address space");
        };
        let stride_or_image = if stride == 0 { neighbour } else { stride };
        if stride_or_image < image {
            fail!(InvalidArgument, "{op}: {name}_image_stride is {stride}, an image has {image} elements");
        }
        if stride_or_image != neighbour && images > 1 && !batch.is_separate {
            fail!(
                InvalidArgument,
                "{op}: {name}_image_stride is {stride}, and {images} images of {image} elements are computed together: plan with separate_images"
            );
        }
        let span = images.checked_sub(1).map(|before| before.checked_mul(stride_or_image)?.checked_add(image));
        let Some(needed) = span.unwrap_or(Some(0)) else {
            fail!(Overflow, "{op}: {name}_image_stride is {stride}: {images} such images exceed the address space");
        };
        if len < needed || (stride == 0 && pixel_stride == 0 && len > needed) {
            fail!(
                BufferLength,
                "{op}: {name} has {len} elements, {images} images of {image} elements, {stride_or_image} apart, ask for {needed}"
            );
        }
        let begin = pointers::checked(name, begin.cast(), needed)?;
        Ok(Self { begin, len: needed, image, stride: stride_or_image, images, pixel })
    }

    #[inline]
    fn extent(&self) -> Extent {
        Extent::new(self.begin, self.len)
    }

    /// Whether elements are those of another tensor too. What is between images belongs to nobody,
    /// if both tensors have the same strides: that is how parts of one tensor lie.
    #[inline]
    fn overlaps(&self, other: &Self) -> bool {
        self.extent().overlaps(other.extent()) && self.images_overlap(other)
    }

    fn images_overlap(&self, other: &Self) -> bool {
        if self.stride != other.stride || self.images < 2 {
            return true;
        }
        let (image, others) = (Extent::new(self.begin, self.image), Extent::new(other.begin, other.image));
        let step = (self.stride * size_of::<T>()) as isize;
        let last = self.images as isize - 1;
        (-last..=last).any(|images| image.moved(images * step).overlaps(others))
    }

    /// One of its images, or all of it.
    ///
    /// # Safety
    /// The tensor must have that image, and be the caller's memory, which nobody changes in `'a`.
    unsafe fn values<'a>(&self, image: Option<usize>) -> &'a [T] {
        let (before, len) = self.part(image);
        // SAFETY: the same. `new` has checked pointer and length.
        unsafe { slice::from_raw_parts(self.begin.add(before), len) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// The tensor must have that image, and be the caller's memory, which nobody else uses in `'a`.
    unsafe fn memory<'a>(&self, image: Option<usize>) -> &'a mut [MaybeUninit<T>] {
        let (before, len) = self.part(image);
        // SAFETY: the same. `new` has checked pointer and length.
        unsafe { slice::from_raw_parts_mut(self.begin.cast_mut().cast::<MaybeUninit<T>>().add(before), len) }
    }

    /// Where one of its images begins, and its elements; or all of it.
    fn part(&self, image: Option<usize>) -> (usize, usize) {
        image.map_or((0, self.len), |image| (image * self.stride, self.image))
    }
}

/// What is added before the activation.
#[derive(Clone, Copy)]
enum Residual<T> {
    None,
    Tensor(Tensor<T>),
    /// What Y holds.
    Y,
}

/// The tensors of a run, checked against the plan and each other.
struct Tensors<T> {
    x: Tensor<T>,
    residual: Residual<T>,
    y: Tensor<T>,
}

impl<T> Tensors<T> {
    fn new(args: &RunArgs, batch: Batch) -> Result<Self> {
        let given = |name, begin, len, [image_stride, pixel_stride]: [usize; 2]| Given {
            name,
            begin,
            len,
            image_stride,
            pixel_stride,
        };
        let x = given("x", args.x, args.x_len, [args.x_image_stride, args.x_pixel_stride]);
        let y = given("y", args.y, args.y_len, [args.y_image_stride, args.y_pixel_stride]);
        let (x, y) = (Tensor::new(x, batch, batch.x)?, Tensor::<T>::new(y, batch, batch.y)?);
        let mut residual = Residual::None;
        if !args.residual.is_null() || args.residual_len > 0 {
            let strides = [args.residual_image_stride, args.residual_pixel_stride];
            let given = given("residual", args.residual, args.residual_len, strides);
            let tensor = Tensor::<T>::new(given, batch, batch.y)?;
            // With the same length, pixels have the same distance, or there is one.
            let is_y = tensor.begin == y.begin && tensor.len == y.len && (tensor.stride == y.stride || y.images < 2);
            residual = if is_y { Residual::Y } else { Residual::Tensor(tensor) };
        }
        Ok(Self { x, residual, y })
    }

    /// Checks that Y and workspace are no other memory.
    #[inline]
    fn check_apart(&self, packed: &Packed, workspace: Extent) -> Result<()> {
        let (y, packed) = (self.y.extent(), ("packed", packed.extent));
        if self.y.overlaps(&self.x) {
            fail!(InvalidPointer, "y overlaps x");
        }
        check_apart(("y", y), packed)?;
        if let Residual::Tensor(residual) = &self.residual {
            if self.y.overlaps(residual) {
                fail!(InvalidPointer, "y overlaps the residual, and is not the same memory");
            }
            check_apart(("workspace", workspace), ("the residual", residual.extent()))?;
        }
        check_apart(("workspace", workspace), ("x", self.x.extent()))?;
        check_apart(("workspace", workspace), ("y", y))?;
        check_apart(("workspace", workspace), packed)
    }
}

/// Runs a plan.
///
/// # Safety
/// The pointers must be as the struct says.
unsafe fn run<T: COf>(layer: &TypedPlan<T>, args: &RunArgs) -> Result<()> {
    // SAFETY: the caller's weights.
    let packed = unsafe { pointers::value("packed", args.packed)? };
    let weights = layer.weights(packed)?;
    let tensors = Tensors::<T>::new(args, layer.batch)?;
    let (scratch, bytes) = (args.workspace.cast::<u8>(), args.workspace_bytes);
    let scratch = pointers::checked_bytes("workspace", scratch, bytes, Workspace::ALIGNMENT)?;
    tensors.check_apart(packed, Extent::new(scratch, bytes))?;
    // SAFETY: the caller's memory, checked, and apart from all other memory of the run.
    let mut workspace = Workspace::borrowed(unsafe { pointers::scratch(scratch, bytes) });
    // SAFETY: the executor and the tensors are the caller's.
    unsafe { on_threads(args.executor, |threads| run_images(layer, weights, &tensors, &mut workspace, threads)) }
}

/// # Safety
/// The tensors must be the caller's memory, and Y apart from the others.
unsafe fn run_images<T: COf>(
    layer: &TypedPlan<T>,
    weights: &convoke::PackedWeights<T>,
    Tensors { x, residual, y }: &Tensors<T>,
    workspace: &mut Workspace<'_>,
    threads: Threads<'_>,
) -> Result<()> {
    let Batch { images, is_separate, .. } = layer.batch;
    for i in 0..if is_separate { images } else { 1 } {
        let image = is_separate.then_some(i);
        // SAFETY: the image is one of the tensors, and Y is apart from the others.
        let (x_values, y_memory) = unsafe { (x.values(image), y.memory(image)) };
        let mut run = match residual {
            // SAFETY: the caller says that Y holds values.
            Residual::Y => Run::in_place(x_values, weights, unsafe { pointers::initialised(y_memory) }),
            // SAFETY: as above.
            _ if y.pixel.is_some() => Run::new(x_values, weights, unsafe { pointers::initialised(y_memory) }),
            _ => Run::uninit(x_values, weights, y_memory),
        };
        if let Residual::Tensor(residual) = residual {
            // SAFETY: as for X.
            run = run.residual(Some(unsafe { residual.values(image) })).residual_pixel_stride(residual.pixel);
        }
        run = run.x_pixel_stride(x.pixel).y_pixel_stride(y.pixel);
        layer.plan.run(run.workspace(workspace).threads(threads))?;
    }
    Ok(())
}

/// Computes Y from X.
///
/// A run that succeeds allocates nothing; one that fails allocates its message. No run starts
/// threads. The result is the same, bit for bit, for any number of threads. Threads may run the
/// same plan at the same time, each with its own Y and workspace.
///
/// If the call fails, Y is as before, with two exceptions. If the executor makes no call, all of Y
/// is written, and the call fails with CONVOKE_STATUS_THREADS. After CONVOKE_STATUS_INTERNAL, a
/// part of Y may be written.
///
/// @param plan  the plan.
/// @param args  weights, tensors, workspace and threads.
/// @param error becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_plan_run(plan: *const Plan, args: *const RunArgs, error: *mut Error) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    let run = || unsafe {
        let (plan, args) = (pointers::value("plan", plan)?, pointers::sized(args, &mut room)?);
        with_plan!(plan, layer => run(layer, args))
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, run) }
}

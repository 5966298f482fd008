//! What a run reads and writes, and its checks.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use super::{PackedWeights, Plan};
use crate::conv::contract::{Addend, Io, IoStrides};
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::region::{Region, SpacedImages, Target};
use crate::exec::{Line, Threads, Workspace};
use crate::spec::Strides;
use crate::{Geometry, Layout, Op};

/// What a [run](Plan::run) reads and writes: X, packed weights and Y, and what else is asked for.
///
/// Y is `activation(conv(x) + bias + residual)`. The residual is nothing, a tensor
/// ([`residual`](Self::residual)), or what Y holds ([`in_place`](Self::in_place)).
///
/// ```
/// use convoke::{Activation, Conv, Planner, Run, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().activation(Activation::Relu).plan::<f32>(Conv::new([1, 1, 1]), &[1, 1, 3])?;
/// let packed = plan.pack(&[2.0], None)?;
/// let (x, residual, mut y) = ([1.0, 2.0, 3.0], [10.0, 20.0, -30.0], [0.0; 3]);
/// let mut workspace = Workspace::for_plan(&plan)?;
/// plan.run(Run::new(&x, &packed, &mut y).residual(Some(&residual)).workspace(&mut workspace))?;
/// assert_eq!(y, [12.0, 24.0, 0.0]);
///
/// let mut y = residual;
/// plan.run(Run::in_place(&x, &packed, &mut y).workspace(&mut workspace))?;
/// assert_eq!(y, [12.0, 24.0, 0.0]);
/// # Ok(()) }
/// ```
///
/// # Into the buffer of a concatenation
/// The channels of one image are contiguous in a larger tensor, too. With a distance between its
/// images, a run writes them there, and reads them likewise. The plan must compute images one by one.
///
/// ```
/// use convoke::{Conv, Planner, Run};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let (images, channels, positions) = (2, [4, 6], 8 * 8);
/// let x = vec![1.0; images * 3 * positions];
/// let mut joined = vec![0.0; images * (channels[0] + channels[1]) * positions];
/// for (first, count) in [(0, channels[0]), (channels[0], channels[1])] {
///     let conv = Conv::new([count, 3, 1, 1]);
///     let plan = Planner::new().separate_images(true).plan::<f32>(conv, &[images, 3, 8, 8])?;
///     let packed = plan.pack(&vec![count as f32; count * 3], None)?;
///     let y = &mut joined[first * positions..];
///     plan.run(Run::new(&x, &packed, y).y_image_stride((channels[0] + channels[1]) * positions))?;
/// }
/// assert_eq!(joined[..4 * positions], [12.0; 4 * 64]);
/// assert_eq!(joined[14 * positions..], [18.0; 6 * 64]);
/// # Ok(()) }
/// ```
#[must_use]
pub struct Run<'a, 'y, T: Element> {
    x: &'a [T],
    packed: &'a PackedWeights<T>,
    residual: Addend<'a, T>,
    y: Target<'y, T>,
    /// Memory, and its size for error messages.
    workspace: Option<(&'a mut [Line], usize)>,
    threads: Threads<'a>,
    distances: Distances,
}

/// Elements that pixels with a stride of their own may spread over: kernels read them through tables.
pub(crate) const MOST_SPREAD: usize = 1 << 30;

/// The distances that the caller sets.
#[derive(Clone, Copy, Default)]
pub(crate) struct Distances {
    pub(crate) x: Distance,
    pub(crate) residual: Distance,
    pub(crate) y: Distance,
}

/// The distances between the images and between the pixels of a tensor.
#[derive(Clone, Copy, Default)]
pub(crate) struct Distance {
    pub(crate) image: Option<usize>,
    pub(crate) pixel: Option<usize>,
}

impl<'a, 'y, T: Element> Run<'a, 'y, T> {
    /// Computes Y from X, `(N, C, spatial...)`, on the calling thread.
    pub fn new(x: &'a [T], packed: &'a PackedWeights<T>, y: &'y mut [T]) -> Self {
        Self::into(x, packed, Addend::None, Target::Init(y))
    }

    /// As [`new`](Self::new), with what Y holds before as the residual.
    pub fn in_place(x: &'a [T], packed: &'a PackedWeights<T>, y: &'y mut [T]) -> Self {
        Self::into(x, packed, Addend::Output, Target::Init(y))
    }

    /// As [`new`](Self::new), into memory that need not be initialised: every element is written, and
    /// [`Plan::run`] returns the slice initialised.
    ///
    /// ```
    /// use convoke::{Conv, Planner, Run};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().plan::<f32>(Conv::new([1, 1, 2]), &[1, 1, 4])?;
    /// let packed = plan.pack(&[10.0, 1.0], None)?;
    /// let mut memory = Vec::with_capacity(3); // not filled first
    /// let y = &mut memory.spare_capacity_mut()[..3];
    /// let y = plan.run(Run::uninit(&[1.0, 2.0, 3.0, 4.0], &packed, y))?;
    /// assert_eq!(y, [12.0, 23.0, 34.0]);
    /// # Ok(()) }
    /// ```
    pub fn uninit(x: &'a [T], packed: &'a PackedWeights<T>, y: &'y mut [MaybeUninit<T>]) -> Self {
        Self::into(x, packed, Addend::None, Target::Uninit(y))
    }

    fn into(x: &'a [T], packed: &'a PackedWeights<T>, residual: Addend<'a, T>, y: Target<'y, T>) -> Self {
        let (threads, distances) = (Threads::Serial, Distances::default());
        Self { x, packed, residual, y, workspace: None, threads, distances }
    }

    /// Adds a tensor of Y's shape before the activation, in place of what was to be added; `None` adds
    /// nothing.
    pub fn residual(self, residual: Option<&'a [T]>) -> Self {
        Self { residual: residual.map_or(Addend::None, Addend::Tensor), ..self }
    }

    /// The scratch memory. Without it, the run allocates its own.
    pub fn workspace(self, workspace: &'a mut Workspace<'_>) -> Self {
        let unaligned = workspace.unaligned();
        Self { workspace: Some((workspace.lines(), unaligned)), ..self }
    }

    /// The same, as lines.
    pub(crate) fn scratch(self, lines: &'a mut [Line]) -> Self {
        Self { workspace: Some((lines, 0)), ..self }
    }

    /// The threads: no more than the plan was made for.
    pub fn threads(self, threads: Threads<'a>) -> Self {
        Self { threads, ..self }
    }

    /// The distance between the images of X, in elements: from the beginning of one to that of the
    /// next. Elements between them are not read. X may be longer than needed then. For more than one
    /// image, the plan must compute [images one by one](crate::Planner::separate_images).
    pub fn x_image_stride(mut self, elements: usize) -> Self {
        self.distances.x.image = Some(elements);
        self
    }

    /// The same of the residual.
    pub fn residual_image_stride(mut self, elements: usize) -> Self {
        self.distances.residual.image = Some(elements);
        self
    }

    /// The same of Y, whose elements between images stay as they are. Y must be initialised for that.
    pub fn y_image_stride(mut self, elements: usize) -> Self {
        self.distances.y.image = Some(elements);
        self
    }

    /// The distance between the pixels of an X with channels last, in elements: at least its channels. So
    /// channels of a wider tensor are read in place. Elements between pixels are not read. With `None`, pixels are
    /// neighbours.
    ///
    /// ```
    /// use convoke::{Conv, Layout, Planner, Run};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let conv = Conv::new([1, 2, 1]).layouts(Layout::ChannelsLast, Layout::ChannelsLast);
    /// let plan = Planner::new().plan::<f32>(conv, &[1, 2, 3])?;
    /// let packed = plan.pack(&[1.0, 10.0], None)?;
    /// let wide = [1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 5.0, 6.0, 0.0];
    /// let mut y = [0.0; 3];
    /// plan.run(Run::new(&wide, &packed, &mut y).x_pixel_stride(3))?;
    /// assert_eq!(y, [21.0, 43.0, 65.0]);
    /// # Ok(()) }
    /// ```
    pub fn x_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.x.pixel = elements.into();
        self
    }

    /// The same of the residual.
    pub fn residual_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.residual.pixel = elements.into();
        self
    }

    /// The same of Y, whose elements between pixels stay as they are. So convolutions write side by side
    /// into the buffer of a concatenation of channels. Y must be initialised for that.
    pub fn y_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.y.pixel = elements.into();
        self
    }
}

impl<T: Element> Plan<T> {
    /// Computes Y, and returns it.
    ///
    /// With a workspace, it allocates nothing, with two exceptions. A run that enters a rayon pool from
    /// outside may make rayon's queue allocate a block. The BLAS backends `gemm` and `matrixmultiply`
    /// allocate in every run.
    ///
    /// The result is the same, bit for bit, for any number of threads.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength),
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch) if the plan does not
    /// [accept](Plan::accepts) the weights, [`InvalidShape`](crate::ErrorKind::InvalidShape) if images
    /// cannot lie so far apart, [`Threads`](crate::ErrorKind::Threads) if there are more threads than
    /// the plan was made for, [`Workspace`](crate::ErrorKind::Workspace) if it is too small,
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is none and it cannot be allocated,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the plan is [for a
    /// machine](crate::Planner::machine) whose ISA this CPU lacks. Y is untouched then.
    pub fn run<'y>(&self, run: Run<'_, 'y, T>) -> Result<&'y mut [T], Error> {
        let Run { x, packed, residual, y, workspace, threads, distances } = run;
        self.check_runnable()?;
        let of = (&self.geometry, self.at_once.batch);
        let (x_images, x_strides) = Sizes::OF_X.images(of, ("X", x.len()), distances.x)?;
        let (y_images, y_strides) = Sizes::OF_Y.images_of_output(of, &y, distances.y)?;
        let (residual_images, residual_strides) = match residual {
            Addend::Tensor(residual) => Sizes::OF_Y.images(of, ("the residual", residual.len()), distances.residual)?,
            _ => (y_images, y_strides),
        };
        let strides = IoStrides { x: x_strides, residual: residual_strides, y: y_strides };
        let (method, packed) = self.method_for(packed)?;
        let slots = self.slots(method, threads)?;
        let of_thread = method.recipe.scratch.lines();
        let mut own = None;
        let scratch = match workspace {
            Some(workspace) => Workspace::checked(workspace, self.geometry.op, (slots, of_thread))?,
            None => own.insert(Workspace::with_bytes(slots * of_thread * size_of::<Line>())?).lines(),
        };
        let (weights, bias, lowering) = (packed.values(), &*packed.bias, &method.lowering);
        let run = |image: usize, task: usize, y: Region<'_, T>, scratch: &mut [Line]| {
            let residual = match residual {
                Addend::Tensor(residual) => Addend::Tensor(residual_images.get(residual, image)),
                other => other,
            };
            lowering.run(task, &Io { x: x_images.get(x, image), weights, bias, residual, y, strides }, scratch);
        };
        let proven =
            lowering.proven().unwrap_or_else(|error| panic!("{:?}: {}: {error}", self.geometry, self.explain()));
        Ok(y.fill(&proven, (y_images, y_strides), (threads, slots), (scratch, of_thread), &run))
    }
}

/// The sizes of X, or of tensors of Y's shape.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    len: fn(&Geometry) -> usize,
    shape: fn(&Geometry) -> Vec<usize>,
    parts: fn(&Geometry) -> Parts,
}

/// The layout of a tensor, its channels, and the positions of a channel.
type Parts = (Layout, usize, usize);

impl Sizes {
    pub(crate) const OF_X: Self = Self {
        len: Geometry::input_len,
        shape: Geometry::input_shape,
        parts: |geometry| (geometry.x_layout, geometry.in_channels, geometry.input_spatial()),
    };
    pub(crate) const OF_Y: Self = Self {
        len: Geometry::output_len,
        shape: Geometry::output_shape,
        parts: |geometry| (geometry.y_layout, geometry.out_channels, geometry.output_spatial()),
    };

    /// The images of a tensor of `len` elements, `together` of which are computed together, and how each lies.
    pub(crate) fn images(
        self,
        (geometry, together): (&Geometry, usize),
        (name, len): (&str, usize),
        distance: Distance,
    ) -> Result<(SpacedImages, Strides), Error> {
        let (op, batch) = (geometry.op, geometry.batch);
        let count = batch.checked_div(together).unwrap_or(1);
        let parts @ (_, channels, positions) = (self.parts)(geometry);
        let strides = strides((op, batch), name, distance.pixel, parts)?;
        let span = |images: usize| match strides.span(images, channels, positions) {
            Some(span) => Ok(span),
            None => bail!(
                Overflow,
                "{op}: {name} exceeds the address space: its pixels are {} elements apart",
                strides.position
            ),
        };
        let (at_once, image) = (span(together)?, span(together.min(1))?);
        if distance.pixel.is_some() && at_once > MOST_SPREAD {
            bail!(
                Overflow,
                "{op}: {name} has a pixel stride of {}: its pixels spread over {at_once} elements, more than {MOST_SPREAD}",
                strides.position
            );
        }
        let neighbours = SpacedImages { count, len: at_once, stride: together.saturating_mul(strides.image) };
        if distance.image.is_none() && distance.pixel.is_none() {
            geometry.check_len(name, len, (self.len)(geometry), || (self.shape)(geometry))?;
            return Ok((neighbours, strides));
        }
        let stride = distance.image.unwrap_or(strides.image);
        if stride < image {
            bail!(InvalidShape, "{op}: {name} has an image stride of {stride}, an image has {image} elements");
        }
        if stride != strides.image && image > 0 && batch > count {
            bail!(
                InvalidShape,
                "{op}: {name} has an image stride of {stride}, and {batch} images of {image} elements are computed \
                 together: plan with separate_images"
            );
        }
        let images = if count > 1 { SpacedImages { stride, ..neighbours } } else { neighbours };
        let Some(needed) = images.checked_span() else {
            bail!(
                Overflow,
                "{op}: {name} has an image stride of {stride}: {batch} such images exceed the address space"
            );
        };
        if len < needed {
            bail!(
                BufferLength,
                "{op}: {name} has {len} elements, {batch} images of {image} elements, {stride} apart, ask for {needed}"
            );
        }
        Ok((images, strides))
    }

    /// The same of Y.
    pub(crate) fn images_of_output<T: Copy + Send>(
        self,
        (geometry, together): (&Geometry, usize),
        y: &Target<'_, T>,
        distance: Distance,
    ) -> Result<(SpacedImages, Strides), Error> {
        let images = self.images((geometry, together), ("Y", y.len()), distance)?;
        if !y.is_init() {
            // Otherwise, elements between images and pixels would stay uninitialised.
            geometry.check_len("Y", y.len(), (self.len)(geometry), || (self.shape)(geometry))?;
        }
        Ok(images)
    }
}

/// How the channels and positions of an image lie.
fn strides(
    (op, batch): (Op, usize),
    name: &str,
    pixel: Option<usize>,
    (layout, channels, positions): Parts,
) -> Result<Strides, Error> {
    if let Some(pixel) = pixel {
        if layout != Layout::ChannelsLast {
            bail!(InvalidShape, "{op}: {name} has a pixel stride of {pixel} and its {layout}: only channels last can");
        }
        if pixel < channels {
            bail!(InvalidShape, "{op}: {name} has a pixel stride of {pixel}, a pixel has {channels} elements");
        }
    }
    // Pixels without channels have no elements, and a distance would lead lowerings beyond X. One pixel has no next one, so
    // that its distance may be any.
    let has_next = channels > 0 && batch.saturating_mul(positions) > 1;
    let pixel = pixel.filter(|_| has_next).unwrap_or(channels);
    Ok(Strides::new(layout, channels, positions, pixel))
}

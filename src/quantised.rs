//! Convolutions of bytes: ONNX's `QLinearConv` and `ConvInteger`, and what quantised graphs mean by `Conv` and
//! `ConvTranspose` between `DequantizeLinear` and `QuantizeLinear`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::iter;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use convoke_kernels::Isa;
pub use convoke_kernels::dot::Byte;
use convoke_kernels::dot::{self, AddedBytes, Requantise, Unit};
use convoke_kernels::dot_kernels;

use crate::conv::contract::IoStrides;
use crate::conv::pixels::dot::{DotFormat, DotIo, DotLayer, set_of_tap, tap_phases, tap_sets};
use crate::conv::registry::check_sizes;
use crate::error::{Error, bail};
#[cfg(feature = "save")]
use crate::exec::lines_for;
use crate::exec::region::{Region, Target};
use crate::exec::split::{Shape, Split, Tasks};
use crate::exec::{Line, Threads, Workspace, reserved};
#[cfg(feature = "save")]
use crate::plan::saved;
use crate::plan::{Distances, Sizes};
use crate::units::Count;
use crate::{Geometry, Op, Operator, Planner, f16};

/// Multiply-adds of a layer that is not shared among threads: handing over would cost as much as it saves.
const SERIAL_MACS: u128 = 1 << 18;
/// The number of the next weights.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
/// The largest difference of a byte and a zero point.
const MOST_DIFFERENCE: i64 = 255;

/// A type of outputs: `u8` or `i8` of QLinearConv, `i32` of ConvInteger, or the type of the scale where
/// `DequantizeLinear` follows, which is `f32` or [`f16`](struct@f16). The trait is sealed.
pub trait Quantised: dot::Output + Pod + sealed::Sealed {
    #[doc(hidden)]
    fn zero_point(self) -> i32;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! types {
    ($($t:ident: $zero_point:expr;)+) => {$(
        impl sealed::Sealed for $t {}
        impl Quantised for $t {
            fn zero_point(self) -> i32 {
                let zero_point: fn($t) -> i32 = $zero_point;
                zero_point(self)
            }
        }
    )+};
}
types!(u8: i32::from; i8: i32::from; i32: |_| 0; f32: |_| 0; f16: |_| 0;);

/// Scales and zero points, by ONNX's names.
///
/// An output of bytes is `round((sum + bias) * (x_scale * w_scale / y_scale)) + y_zero_point`, saturated, where `sum` is
/// that of `(x - x_zero_point) * (w - w_zero_point)`. The scale is computed in f32, and halves are rounded to even. An
/// output in f32 is `(sum + bias) * (x_scale * w_scale / y_scale)`, so that `y_scale` is 1 for `DequantizeLinear`. One in
/// f16 is the same number, rounded to nearest even, and infinite beyond the type. An output in i32 is `sum + bias`.
#[derive(Debug, Clone, Copy)]
pub struct Scales<'a, X, Y> {
    /// The scale of X.
    pub x_scale: f32,
    /// The zero point of X, which padding has too.
    pub x_zero_point: X,
    /// The scale of W: one, or one for each output channel.
    pub w_scale: &'a [f32],
    /// The scale of Y.
    pub y_scale: f32,
    /// The zero point of Y. It counts for bytes alone.
    pub y_zero_point: Y,
}

impl<X: Byte> Scales<'static, X, i32> {
    /// Those of ConvInteger, which has only zero points.
    #[must_use]
    pub fn integer(x_zero_point: X) -> Self {
        Self { x_scale: 1.0, x_zero_point, w_scale: &[1.0], y_scale: 1.0, y_zero_point: 0 }
    }
}

/// A plan of a convolution of bytes, for X and W of `u8` or `i8`. Sums are exact: they are the same on every CPU, for any
/// number of threads.
///
/// Zero points and scales are given with the weights and with each run. So one plan serves static and dynamic
/// quantisation.
///
/// ```
/// use convoke::{Conv, Planner, QuantisedRun, Scales};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = Planner::new().plan_quantised::<u8, i8, u8>(Conv::new([1, 1, 2]), &[1, 1, 4])?;
/// let weights = plan.pack(&[2, -1], &[], None)?;
/// let scales = Scales { x_scale: 0.5, x_zero_point: 10, w_scale: &[0.25], y_scale: 0.5, y_zero_point: 100 };
/// let scaled = weights.scaled(&scales)?;
/// let mut y = [0; 3];
/// plan.run(QuantisedRun::new(&[10, 20, 30, 50], &weights, &scaled, &mut y))?;
/// // 2 * 0 - 10 = -10, 2 * 10 - 20 = 0, and 2 * 20 - 40 = 0, times 0.25; -2.5 becomes -2.
/// assert_eq!(y, [98, 100, 100]);
/// # Ok(()) }
/// ```
pub struct QuantisedPlan<X, W, Y> {
    geometry: Geometry,
    threads: usize,
    isa: Isa,
    /// The first one that takes the weights is used. The last one takes all.
    methods: Vec<QuantisedMethod>,
    of: PhantomData<fn(X, W) -> Y>,
}

/// A way to compute the layer, and what its weights are.
struct QuantisedMethod {
    format: QuantisedFormat,
    layer: Tasks<DotLayer>,
}

impl<X: Byte, W: Byte, Y: Quantised> fmt::Debug for QuantisedPlan<X, W, Y> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain())
    }
}

/// Weights in the order in which kernels read them, with their sums and the bias.
#[derive(Debug, Clone)]
pub struct QuantisedWeights {
    /// The same number for all clones, and for no other weights.
    number: usize,
    op: Op,
    /// None if Y is empty.
    format: Option<QuantisedFormat>,
    values: Vec<i32>,
    /// For each set of taps and each output channel, the sum of the weights without their zero points, which fits 32 bits.
    sums: Vec<i64>,
    bias: Vec<i32>,
}

/// What packed weights are for, and what their order depends on.
#[derive(Debug, Clone, PartialEq)]
struct QuantisedFormat {
    weight_shape: Vec<usize>,
    group: usize,
    /// Those of each axis of ConvTranspose, for which weights have sums.
    phases: Vec<usize>,
    order: DotFormat,
}

/// What a run does with sums: made once from [`Scales`] for packed weights. It is for these weights alone.
#[derive(Debug, Clone)]
pub struct Scaled<X, Y> {
    /// That of the weights.
    number: usize,
    x_zero: X,
    y_zero: Y,
    y_scale: f32,
    /// For each set of taps and each output channel, and for outputs without taps.
    add: Vec<i32>,
    scale: Vec<f32>,
    table: Option<Box<[u8; 256]>>,
}

impl<X: Byte, Y: Byte> Scaled<X, Y> {
    /// Replaces each byte of Y by an entry of a table: the one whose number has the byte's bits. So a layer has any
    /// activation, and Y any scale behind it.
    ///
    /// ```
    /// use convoke::{Conv, Planner, QuantisedRun, Scales};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().plan_quantised::<u8, i8, i8>(Conv::new([1, 1, 1]), &[1, 1, 3])?;
    /// let weights = plan.pack(&[1], &[], None)?;
    /// let scales = Scales { x_scale: 1.0, x_zero_point: 2, w_scale: &[1.0], y_scale: 1.0, y_zero_point: 0 };
    /// let squares = std::array::from_fn(|bits| (bits as u8 as i8).saturating_mul(bits as u8 as i8));
    /// let scaled = weights.scaled(&scales)?.table(&squares);
    /// let mut y = [0; 3];
    /// plan.run(QuantisedRun::new(&[0, 2, 5], &weights, &scaled, &mut y))?;
    /// assert_eq!(y, [4, 0, 9]);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn table(self, table: &[Y; 256]) -> Self {
        Self { table: Some(Box::new(table.each_ref().map(|entry| entry.value() as u8))), ..self }
    }
}

/// Replaces bytes by entries of a table: those whose numbers they are. What a graph computes of a byte alone is one table,
/// whatever it is; behind a convolution, [`Scaled::table`] does the same without a pass of its own.
///
/// ```
/// let complement = std::array::from_fn(|byte| 255 - byte as u8);
/// let mut bytes = [0, 1, 255];
/// convoke::look_up(&complement, &mut bytes);
/// assert_eq!(bytes, [255, 254, 0]);
/// ```
pub fn look_up(table: &[u8; 256], bytes: &mut [u8]) {
    dot::look_up(Isa::detect(), table, bytes);
}

/// What a [run](QuantisedPlan::run) reads and writes.
#[must_use]
pub struct QuantisedRun<'a, 'y, X, Y> {
    x: &'a [X],
    weights: &'a QuantisedWeights,
    scaled: &'a Scaled<X, Y>,
    y: Target<'y, Y>,
    residual: Option<ByteResidual<'a>>,
    /// Memory, and its size for error messages.
    workspace: Option<(&'a mut [Line], usize)>,
    threads: Threads<'a>,
    distances: Distances,
}

impl<'a, 'y, X, Y> QuantisedRun<'a, 'y, X, Y> {
    /// Computes Y from X on the calling thread. Both lie as the operator's layouts say.
    pub fn new(x: &'a [X], weights: &'a QuantisedWeights, scaled: &'a Scaled<X, Y>, y: &'y mut [Y]) -> Self {
        Self::into(x, weights, scaled, Target::Init(y))
    }

    /// As [`new`](Self::new), into memory that need not be initialised: every element is written, and
    /// [`QuantisedPlan::run`] returns the slice initialised.
    pub fn uninit(
        x: &'a [X],
        weights: &'a QuantisedWeights,
        scaled: &'a Scaled<X, Y>,
        y: &'y mut [MaybeUninit<Y>],
    ) -> Self {
        Self::into(x, weights, scaled, Target::Uninit(y))
    }

    fn into(x: &'a [X], weights: &'a QuantisedWeights, scaled: &'a Scaled<X, Y>, y: Target<'y, Y>) -> Self {
        let (threads, distances) = (Threads::Serial, Distances::default());
        Self { x, weights, scaled, y, residual: None, workspace: None, threads, distances }
    }

    /// With memory of the caller's, so that the run allocates none.
    pub fn workspace(mut self, workspace: &'a mut Workspace<'_>) -> Self {
        let unaligned = workspace.unaligned();
        self.workspace = Some((workspace.lines(), unaligned));
        self
    }

    /// On some threads.
    pub fn threads(mut self, threads: Threads<'a>) -> Self {
        self.threads = threads;
        self
    }

    /// The distance between the pixels of an X with channels last, in elements, as
    /// [of floats](crate::Run::x_pixel_stride).
    ///
    /// ```
    /// use convoke::{Conv, Layout, Planner, QuantisedRun, Scales};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let conv = Conv::new([1, 2, 1]).layouts(Layout::ChannelsLast, Layout::ChannelsLast);
    /// let plan = Planner::new().plan_quantised::<u8, i8, i32>(conv, &[1, 2, 3])?;
    /// let weights = plan.pack(&[1, 10], &[], None)?;
    /// let scaled = weights.scaled(&Scales::integer(0))?;
    /// let wide = [1, 2, 99, 3, 4, 99, 5, 6, 99];
    /// let mut y = [0; 3];
    /// plan.run(QuantisedRun::new(&wide, &weights, &scaled, &mut y).x_pixel_stride(3))?;
    /// assert_eq!(y, [21, 43, 65]);
    /// # Ok(()) }
    /// ```
    pub fn x_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.x.pixel = elements.into();
        self
    }

    /// The same of Y, as [of floats](crate::Run::y_pixel_stride): elements between pixels stay as they are, and Y must be
    /// initialised for that.
    pub fn y_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.y.pixel = elements.into();
        self
    }
}

impl<'a, X, Y: Byte + Quantised> QuantisedRun<'a, '_, X, Y> {
    /// Adds a tensor of Y's shape and type, with a scale and a zero point of its own, before Y is rounded:
    ///
    /// ```text
    /// y = round((sum + bias) * (x_scale * w_scale / y_scale) + (residual - zero_point) * (scale / y_scale)) + y_zero_point
    /// ```
    ///
    /// Y is saturated, and halves are rounded to even. Each operation is in f32 and rounded there, in the order of the
    /// formula. So there is one rounding to bytes. A graph of `QLinearConv` and `QLinearAdd` has two, where the outputs of
    /// the convolution are rounded first, and may differ by more than one step where the scale between them is coarse.
    ///
    /// ```
    /// use convoke::{Conv, Planner, QuantisedRun, Scales};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().plan_quantised::<u8, i8, u8>(Conv::new([1, 1, 1]), &[1, 1, 3])?;
    /// let weights = plan.pack(&[2], &[], None)?;
    /// let scales = Scales { x_scale: 0.5, x_zero_point: 0, w_scale: &[1.0], y_scale: 2.0, y_zero_point: 100 };
    /// let scaled = weights.scaled(&scales)?;
    /// let mut y = [0; 3];
    /// plan.run(QuantisedRun::new(&[1, 2, 3], &weights, &scaled, &mut y).residual(&[50, 60, 70], 0.5, 60))?;
    /// // 1 - 5 = -4, 2 + 0 = 2, and 3 + 5 = 8, over 2.
    /// assert_eq!(y, [98, 101, 104]);
    /// # Ok(()) }
    /// ```
    pub fn residual(mut self, residual: &'a [Y], scale: f32, zero_point: Y) -> Self {
        let zero = Byte::value(zero_point);
        self.residual = Some(ByteResidual { bytes: bytemuck::cast_slice(residual), scale, zero });
        self
    }

    /// The distance between the pixels of the residual, as that of [Y](Self::y_pixel_stride).
    pub fn residual_pixel_stride(mut self, elements: impl Into<Option<usize>>) -> Self {
        self.distances.residual.pixel = elements.into();
        self
    }
}

/// A tensor of bytes that is added to Y.
struct ByteResidual<'a> {
    /// Their bits.
    bytes: &'a [u8],
    scale: f32,
    zero: i32,
}

impl Planner {
    /// Plans a convolution of bytes, for the planner's machine and threads.
    ///
    /// ```
    /// use convoke::{Conv, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let conv = Conv::new([64, 32, 3, 3]).pads([1, 1, 1, 1]);
    /// let plan = Planner::new().threads(2).plan_quantised::<u8, i8, u8>(conv, &[1, 32, 56, 56])?;
    /// println!("{}", plan.explain());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`plan`](Self::plan). [`Unavailable`](crate::ErrorKind::Unavailable) if the planner has an activation, an algorithm,
    /// a limit of the workspace or packed weights, which these plans do not have; and for X of 2^30 elements or units and more, kernels
    /// of thousands of taps, more than 1024 phases of strides, and rows of X that take more than 32 MiB in 16 bits.
    pub fn plan_quantised<X: Byte, W: Byte, Y: Quantised>(
        &self,
        operator: impl Into<Operator>,
        x_shape: &[usize],
    ) -> Result<QuantisedPlan<X, W, Y>, Error> {
        let operator = operator.into();
        let name = operator.op_name();
        let geometry = operator.geometry(x_shape)?;
        let (machine, threads) = self.machine_and_threads(name)?;
        if let Some(wish) = self.wish_beyond_threads() {
            bail!(Unavailable, "{name}: a plan of bytes has no {wish}");
        }
        let isa = machine.isa();
        if !isa.is_available() {
            bail!(Unavailable, "{name}: this CPU lacks {isa}, whose kernels were asked for");
        }
        let mut methods = Vec::new();
        if geometry.output_len() > 0 {
            let error = |reason: String| Error::new(crate::ErrorKind::Unavailable, alloc::format!("{name}: {reason}"));
            check_sizes(&geometry).map_err(error)?;
            let (shape, is_unsigned) = (Shape::of(&geometry), !X::IS_SIGNED);
            let kernels = [Unit::Bytes, Unit::Pairs].map(|unit| dot_kernels(isa, unit));
            let mut refusal = None;
            for kernels in kernels.into_iter().flatten() {
                match DotLayer::new((&geometry, is_unsigned), (machine, threads), kernels) {
                    Ok(layer) => {
                        let (weight_shape, group) = (geometry.weight_shape(), geometry.group);
                        let (phases, order) = (tap_phases(&geometry).collect(), layer.format());
                        let format = QuantisedFormat { weight_shape, group, phases, order };
                        methods.push(QuantisedMethod { format, layer: Tasks::new(Box::new(layer), shape) });
                    }
                    Err(reason) => refusal = Some(reason),
                }
            }
            if methods.last().is_none_or(|method| method.layer.unit() == Unit::Bytes) {
                return Err(error(refusal.unwrap_or_else(|| String::from("the build has no kernels of bytes"))));
            }
        }
        Ok(QuantisedPlan { geometry, threads, isa, methods, of: PhantomData })
    }
}

impl<X: Byte, W: Byte, Y: Quantised> QuantisedPlan<X, W, Y> {
    /// Shapes, axes and layouts.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The name of the micro-kernel that does most of the work, for weights whose zero point is the middle of their type.
    /// It is empty if Y is.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.methods.first().map_or("", |method| method.layer.kernel())
    }

    /// The number of threads that the plan was made for.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The kernels, the blocking and the tasks, in a line for each kind of weights.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut text = alloc::format!("{:?}", self.geometry);
        for method in &self.methods {
            let DotLayer { split, scratch, .. } = &*method.layer;
            text += &alloc::format!(
                "\n  {} ({}), {}, {}, workspace of a thread: {scratch}",
                method.layer.kernel(),
                self.isa,
                method.layer.unit(),
                Count(split.tasks(), "task"),
            );
        }
        text
    }

    /// Whether the CPU multiplies four bytes at a time for the layer, if the zero point of its weights is the middle of
    /// their type. Otherwise pairs of values of 16 bits are multiplied, which takes twice as long or longer.
    #[must_use]
    pub fn has_byte_products(&self) -> bool {
        self.methods.iter().any(|method| method.layer.unit() == Unit::Bytes)
    }

    /// Bytes of workspace for a run with the number of threads that the plan was made for.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        let lines = self.methods.iter().map(|method| method.layer.scratch.lines()).max().unwrap_or(0);
        lines.saturating_mul(size_of::<Line>()).saturating_mul(self.threads)
    }

    /// Bytes of the packed weights and bias, at most.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        let values = self.methods.iter().map(|method| method.layer.packed_len()).max().unwrap_or(0);
        let of_channel = tap_sets(&self.geometry).saturating_mul(size_of::<i64>()).saturating_add(size_of::<i32>());
        let of_channels = self.geometry.out_channels.saturating_mul(of_channel);
        values.saturating_mul(size_of::<i32>()).saturating_add(of_channels)
    }

    /// Packs W, in ONNX's order. `w_zero_point` is empty for 0, or has one value, or one for each output channel. The bias
    /// has the scale `x_scale * w_scale`, as in QLinearConv.
    ///
    /// Weights whose zero point is the middle of their type, which is 0 of `i8` and 128 of `u8`, may be multiplied as bytes
    /// where the CPU can.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength); [`Overflow`](crate::ErrorKind::Overflow) if sums may
    /// not fit 32 bits: 255 times the sum of a channel's magnitudes, and the magnitude of its bias;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn pack(&self, w: &[W], w_zero_point: &[W], bias: Option<&[i32]>) -> Result<QuantisedWeights, Error> {
        let Geometry { op, out_channels, .. } = self.geometry;
        self.geometry.check_len("W", w.len(), self.geometry.weight_len(), || self.geometry.weight_shape())?;
        let zeros_len = w_zero_point.len();
        if zeros_len > 1 && zeros_len != out_channels {
            bail!(BufferLength, "{op}: w_zero_point has {zeros_len} elements, not 1 or {out_channels}");
        }
        let mut biases = zeros(out_channels, format_args!("{op}: biases"))?;
        if let Some(bias) = bias {
            self.geometry.check_len("B", bias.len(), out_channels, || alloc::vec![out_channels])?;
            biases.copy_from_slice(bias);
        }
        let zero = |m: usize| match w_zero_point {
            [] => 0,
            [one] => one.value(),
            each => each[m].value(),
        };
        let (rows, taps) = (self.geometry.out_channels_per_group(), self.geometry.kernel_volume());
        // Of all taps that W has for a channel of X and one of Y, by the number of that kernel.
        let channel_of = |kernel: usize| match op {
            Op::Conv => kernel / self.geometry.in_channels_per_group(),
            Op::ConvTranspose => {
                let (c, row) = (kernel / rows, kernel % rows);
                c / self.geometry.in_channels_per_group() * rows + row
            }
        };
        let mut sums = zeros::<i64>(tap_sets(&self.geometry).saturating_mul(out_channels), format_args!("{op}: sums"))?;
        let mut most = zeros::<i64>(out_channels, format_args!("{op}: sums"))?;
        let sets: Vec<usize> =
            (0..taps.min(w.len())).map(|tap| set_of_tap(&self.geometry, tap) * out_channels).collect();
        for (kernel, w) in w.chunks_exact(taps.max(1)).enumerate() {
            let m = channel_of(kernel);
            let zero = zero(m);
            for (w, set) in w.iter().zip(&sets) {
                let value = w.value() - zero;
                sums[set + m] += i64::from(value);
                most[m] += i64::from(value.abs());
            }
        }
        for (m, most) in most.iter().enumerate() {
            let most = most.saturating_mul(MOST_DIFFERENCE).saturating_add(i64::from(biases[m]).abs());
            if most > i64::from(i32::MAX) {
                bail!(Overflow, "{op}: sums of output channel {m} may reach {most}, more than 32 bits hold");
            }
        }
        let is_centred = (0..w_zero_point.len().max(1)).all(|m| zero(m) == W::CENTRE);
        // If Y is empty, nothing is computed.
        let method = self.methods.iter().find(|method| is_centred || method.layer.unit() != Unit::Bytes);
        let len = method.map_or(0, |method| method.layer.packed_len());
        let mut values = zeros(len, format_args!("{op}: packed weights"))?;
        if let Some(method) = method {
            method.layer.pack(|m, index| w[index].value() - zero(m), &mut values);
        }
        let format = method.map(|method| method.format.clone());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(QuantisedWeights { number, op, format, values, sums, bias: biases })
    }

    /// Whether a run takes weights, which may be those of a plan for another size of X.
    #[must_use]
    pub fn accepts(&self, weights: &QuantisedWeights) -> bool {
        self.methods.is_empty() || self.method_for(weights).is_some()
    }

    fn mismatch(&self) -> Error {
        let message =
            alloc::format!("{}: the weights are not those of a plan of this layer: pack again", self.geometry.op);
        Error::new(crate::ErrorKind::PackedMismatch, message)
    }

    /// Weights that [`to_bytes`](QuantisedWeights::to_bytes) wrote. They are copied.
    ///
    /// ```
    /// use convoke::{Conv, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let conv = Conv::new([8, 4, 3, 3]);
    /// let plan = Planner::new().plan_quantised::<u8, i8, u8>(conv.clone(), &[1, 4, 16, 16])?;
    /// let saved = plan.pack(&[1; 8 * 4 * 3 * 3], &[], None)?.to_bytes()?;
    ///
    /// // In another process, for X of any size:
    /// let plan = Planner::new().plan_quantised::<u8, i8, u8>(conv, &[1, 4, 20, 20])?;
    /// let weights = plan.load(&saved)?;
    /// assert!(plan.accepts(&weights));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidPacked`](crate::ErrorKind::InvalidPacked) if they were changed or cut, or are of another version or order
    /// of bytes; [`PackedMismatch`](crate::ErrorKind::PackedMismatch) if they are those of another layer or ISA, of a CPU that
    /// multiplies [bytes](Self::has_byte_products) where this one does not, or of a plan whose Y is empty where this one's is
    /// not, or the other way; [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    #[cfg(feature = "save")]
    pub fn load(&self, bytes: &[u8]) -> Result<QuantisedWeights, Error> {
        let (described, mut rest) = saved::checked(bytes)?;
        let Geometry { op, out_channels, .. } = self.geometry;
        let formats = self.methods.iter().map(|method| (Some(&method.format), method.layer.packed_len()));
        let of_empty = self.methods.is_empty().then_some((None, 0));
        let found = formats.chain(of_empty).find(|(format, _)| description(*format).as_bytes() == described);
        let (format, len) = found.ok_or_else(|| self.mismatch())?;
        // All lengths are those that this plan packs.
        let bias = rest.copied(out_channels)?;
        let sums = rest.copied(tap_sets(&self.geometry).saturating_mul(out_channels))?;
        let values = rest.copied(len)?;
        if !rest.is_empty() {
            bail!(InvalidPacked, "packed weights: {} bytes are more than their layout has", bytes.len());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(QuantisedWeights { number, op, format: format.cloned(), values, sums, bias })
    }

    fn method_for(&self, weights: &QuantisedWeights) -> Option<&QuantisedMethod> {
        self.methods.iter().find(|method| weights.format.as_ref() == Some(&method.format))
    }

    /// Computes Y.
    ///
    /// With a workspace, it allocates nothing.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength), [`InvalidShape`](crate::ErrorKind::InvalidShape) if pixels cannot
    /// lie so, [`Overflow`](crate::ErrorKind::Overflow) if they lie too far apart,
    /// [`PackedMismatch`](crate::ErrorKind::PackedMismatch) for weights or scales of another layer,
    /// [`Threads`](crate::ErrorKind::Threads) if there are more than the plan was made for,
    /// [`Workspace`](crate::ErrorKind::Workspace) if it is too small, [`InvalidInput`](crate::ErrorKind::InvalidInput) if
    /// the residual's scale, or that over `y_scale`, is not finite, or the former not positive,
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory). Y is untouched then.
    pub fn run<'y>(&self, run: QuantisedRun<'_, 'y, X, Y>) -> Result<&'y mut [Y], Error> {
        let QuantisedRun { x, weights, scaled, y, residual, workspace, threads, distances } = run;
        let op = self.geometry.op;
        // All images are computed together.
        let of = (&self.geometry, self.geometry.batch);
        let (_, x_strides) = Sizes::OF_X.images(of, ("X", x.len()), distances.x)?;
        let (images, y_strides) = Sizes::OF_Y.images_of_output(of, &y, distances.y)?;
        let (mut added, mut residual_strides) = (None, y_strides);
        if let Some(ByteResidual { bytes, scale, zero }) = residual {
            (_, residual_strides) = Sizes::OF_Y.images(of, ("the residual", bytes.len()), distances.residual)?;
            check_scale(op, "the residual's scale", scale)?;
            let scale = scale / scaled.y_scale;
            if !scale.is_finite() {
                bail!(InvalidInput, "{op}: the residual's scale over y_scale is {scale}");
            }
            added = Some(AddedBytes { values: bytes, ld: 0, step: 0, zero, scale });
        }
        let count = threads.count();
        if !(1..=self.threads).contains(&count) {
            bail!(Threads, "{op}: the plan was made for {}, the run has {count}", Count(self.threads, "thread"));
        }
        if self.methods.is_empty() {
            return Ok(y.without_writes());
        }
        let method = self.method_for(weights).ok_or_else(|| self.mismatch())?;
        if scaled.number != weights.number {
            bail!(PackedMismatch, "{op}: the scales were made for other weights");
        }
        let layer = &method.layer;
        let slots = if self.geometry.macs() < SERIAL_MACS { 1 } else { count.min(layer.tasks()).max(1) };
        let of_thread = layer.scratch.lines();
        let mut own = None;
        let scratch = match workspace {
            Some(workspace) => Workspace::checked(workspace, op, (slots, of_thread))?,
            None => own.insert(Workspace::with_bytes(slots * of_thread * size_of::<Line>())?).lines(),
        };
        let Scaled { add, scale, table, y_zero, .. } = scaled;
        let (zero, table) = (y_zero.zero_point(), table.as_deref());
        let requantise = Requantise { add, scale, zero, by_rows: false, residual: added, table };
        let strides = IoStrides { x: x_strides, residual: residual_strides, y: y_strides };
        let run = |_: usize, task: usize, y: Region<'_, Y>, scratch: &mut [Line]| {
            let io = DotIo { x, x_zero: scaled.x_zero, weights: &weights.values, requantise, y, strides };
            layer.run(task, &io, scratch);
        };
        let proven = layer.proven().unwrap_or_else(|error| panic!("{:?}: {error}", self.geometry));
        Ok(y.fill(&proven, (images, y_strides), (threads, slots), (scratch, of_thread), &run))
    }
}

/// What saved weights are for. Nothing of it is ever read: it is compared with what a plan asks for.
#[cfg(feature = "save")]
fn description(format: Option<&QuantisedFormat>) -> String {
    alloc::format!("bytes: {format:?}")
}

impl QuantisedWeights {
    /// The weights as bytes, for [`QuantisedPlan::load`] by the same version of this form, on a CPU with the same ISA and
    /// order of bytes, which also [multiplies bytes](QuantisedPlan::has_byte_products) if this one does. Their length is a
    /// multiple of 64.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    #[cfg(feature = "save")]
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let Self { bias, sums, values, .. } = self;
        let lines = [lines_for::<i32>(bias.len()), lines_for::<i64>(sums.len()), lines_for::<i32>(values.len())];
        saved::saved(description(self.format.as_ref()).as_bytes(), lines, |parts| {
            parts.next(bias.len()).copy_from_slice(bias);
            parts.next(sums.len()).copy_from_slice(sums);
            parts.next(values.len()).copy_from_slice(values);
        })
    }

    /// What a run does with the sums of these weights.
    ///
    /// # Errors
    /// [`BufferLength`](crate::ErrorKind::BufferLength) if W has neither one scale nor one for each output channel;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for scales that are not positive and finite, or whose product is not
    /// finite; [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn scaled<X: Byte, Y: Quantised>(&self, scales: &Scales<'_, X, Y>) -> Result<Scaled<X, Y>, Error> {
        let Scales { x_scale, x_zero_point, w_scale, y_scale, y_zero_point } = *scales;
        let (op, channels) = (self.op, self.bias.len());
        if w_scale.len() != 1 && w_scale.len() != channels {
            bail!(BufferLength, "{op}: w_scale has {} elements, not 1 or {channels}", w_scale.len());
        }
        let named = [("x_scale", x_scale), ("y_scale", y_scale)];
        let all = named.into_iter().chain(w_scale.iter().map(|scale| ("w_scale", *scale)));
        for (name, scale) in all {
            check_scale(op, name, scale)?;
        }
        let order = self.format.as_ref().map(|format| format.order);
        let is_kept = order.is_some_and(|order| order.unit == Unit::Bytes);
        let x_zero = if is_kept { i32::from(x_zero_point.unsigned()) } else { 0 };
        let mut add = zeros(self.sums.len() + channels, format_args!("{op}: scaled sums"))?;
        let mut scale = zeros(channels, format_args!("{op}: scales"))?;
        let sums = self.sums.iter().copied().chain(iter::repeat(0));
        for ((add, bias), sum) in add.iter_mut().zip(self.bias.iter().cycle()).zip(sums) {
            *add = bias.wrapping_sub(x_zero.wrapping_mul(sum as i32));
        }
        for (m, scale) in scale.iter_mut().enumerate() {
            *scale = x_scale * w_scale[if w_scale.len() == 1 { 0 } else { m }] / y_scale;
            if !scale.is_finite() {
                bail!(InvalidInput, "{op}: the scale of output channel {m}, x_scale * w_scale / y_scale, is {scale}");
            }
        }
        let (x_zero, y_zero) = (x_zero_point, y_zero_point);
        Ok(Scaled { number: self.number, x_zero, y_zero, y_scale, add, scale, table: None })
    }
}

fn check_scale(op: Op, name: &str, scale: f32) -> Result<(), Error> {
    if !(scale > 0.0 && scale.is_finite()) {
        bail!(InvalidInput, "{op}: {name} is {scale}, it must be positive and finite");
    }
    Ok(())
}

/// So many zeros. `what` begins the error's message.
fn zeros<T: Clone + Default>(len: usize, what: impl fmt::Display) -> Result<Vec<T>, Error> {
    let mut zeros = reserved(len, what)?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

//! The attributes of Conv and ConvTranspose, as given, and their checks.

use alloc::vec::Vec;

use super::axis::{AxisName, UnpaddedAxis, narrow};
use super::geometry::{Geometry, Layout};
use super::op::{MAX_SIZE, Op};
use super::padding::{self, AutoPad, Pads};
use crate::error::{Error, bail};

/// The newest version of both operators.
pub(super) const LATEST_OPSET: u32 = 22;

/// The attributes that both operators' builders hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Attributes {
    pub(super) op: Op,
    pub(super) weight_shape: Vec<usize>,
    pub(super) opset: u32,
    pub(super) auto_pad: AutoPad,
    pub(super) dilations: Option<Vec<i64>>,
    pub(super) group: i64,
    pub(super) kernel_shape: Option<Vec<i64>>,
    pub(super) pads: Option<Vec<i64>>,
    pub(super) strides: Option<Vec<i64>>,
    /// Of ConvTranspose alone.
    pub(super) output_padding: Option<Vec<i64>>,
    pub(super) output_shape: Option<Vec<i64>>,
    /// Of X and Y. No attribute of ONNX, but the caller's.
    pub(super) layouts: [Layout; 2],
}

impl Attributes {
    pub(super) fn new(op: Op, weight_shape: Vec<usize>) -> Self {
        Self {
            op,
            weight_shape,
            opset: LATEST_OPSET,
            auto_pad: AutoPad::NotSet,
            dilations: None,
            group: 1,
            kernel_shape: None,
            pads: None,
            strides: None,
            output_padding: None,
            output_shape: None,
            layouts: [Layout::ChannelsFirst; 2],
        }
    }

    /// The version of the operator that holds for the opset: 1, 11 or 22.
    ///
    /// The versions allow different element types and compute the same. `docs/design.md` lists
    /// where their texts disagree.
    pub(super) fn since_version(&self) -> Result<u32, Error> {
        match self.opset {
            0 => bail!(UnsupportedOperator, "{}: opset 0 does not exist, the first is 1", self.op),
            1..=10 => Ok(1),
            11..=21 => Ok(11),
            _ => Ok(22),
        }
    }

    /// Checks everything against X's shape, and computes every size.
    pub(super) fn geometry(&self, x_shape: &[usize]) -> Result<Geometry, Error> {
        self.checked(x_shape).map_err(|error| self.hinted(error, x_shape))
    }

    fn checked(&self, x_shape: &[usize]) -> Result<Geometry, Error> {
        self.since_version()?;
        let [x_layout, y_layout] = self.layouts;
        let (spatial, op) = (self.spatial_rank(x_shape)?, self.op);
        let group = self.group()?;
        let out_channels = match op {
            Op::Conv => self.conv_channels(x_shape[1], group)?,
            Op::ConvTranspose => self.transposed_channels(x_shape[1], group)?,
        };
        let unpadded = self.unpadded(x_shape)?;
        let pads = self.pads(spatial)?;
        let output_padding = self.checked_output_padding(&unpadded)?;
        let output_shape = self.checked_output_shape(x_shape[0], out_channels, spatial)?;
        let axis = |i: usize| match op {
            Op::Conv => padding::conv_axis(&unpadded[i], self.auto_pad, pads[i]),
            Op::ConvTranspose => {
                let output = output_shape.as_ref().map(|shape| shape[i]);
                padding::transposed_axis(&unpadded[i], self.auto_pad, pads[i], output_padding[i], output)
            }
        };
        let axes = (0..spatial).map(axis).collect::<Result<_, _>>()?;
        let (batch, in_channels) = (x_shape[0], x_shape[1]);
        Geometry { op, batch, group, in_channels, out_channels, axes, x_layout, y_layout }.bounded()
    }

    /// The error of an X and a W. It says so if they fit when they are exchanged, and what is given as X
    /// has more images than W has filters. Otherwise padding is more likely to be what lacks.
    fn hinted(&self, error: Error, x_shape: &[usize]) -> Error {
        let exchanged = Self { weight_shape: x_shape.into(), ..self.clone() };
        match exchanged.checked(&self.weight_shape) {
            Ok(_) if x_shape[0] > self.weight_shape[0] => {
                Error::new(error.kind(), alloc::format!("{error}; X and W fit if they are exchanged"))
            }
            _ => error,
        }
    }

    /// Checks the ranks of X and W, and that all dimensions fit `isize`. Returns the number of
    /// spatial axes, which is at least 1.
    fn spatial_rank(&self, x_shape: &[usize]) -> Result<usize, Error> {
        let (op, w_shape) = (self.op, &self.weight_shape);
        if x_shape.len() < 3 {
            bail!(InvalidShape, "{op}: X must have at least 3 dimensions (N, C, D1, ...), got shape {x_shape:?}");
        }
        if w_shape.len() != x_shape.len() {
            bail!(
                InvalidShape,
                "{op}: W has {} dimensions (shape {w_shape:?}), X has {} (shape {x_shape:?}), must be as many",
                w_shape.len(),
                x_shape.len()
            );
        }
        for (name, shape) in [("X", x_shape), ("W", w_shape)] {
            if let Some((axis, dim)) = shape.iter().enumerate().find(|&(_, &dim)| dim > MAX_SIZE) {
                bail!(Overflow, "{op}: {name} has size {dim} on axis {axis}, more than the address space");
            }
        }
        Ok(x_shape.len() - 2)
    }

    /// The attribute `group`, at least 1.
    fn group(&self) -> Result<usize, Error> {
        at_least(1, "group", self.group, format_args!("{}", self.op))
    }

    /// Kernel, stride and dilation of every spatial axis, checked.
    fn unpadded(&self, x_shape: &[usize]) -> Result<Vec<UnpaddedAxis>, Error> {
        let spatial = x_shape.len() - 2;
        let kernel = self.list("kernel_shape", self.kernel_shape.as_deref(), spatial)?;
        let strides = self.list("strides", self.strides.as_deref(), spatial)?;
        let dilations = self.list("dilations", self.dilations.as_deref(), spatial)?;
        (0..spatial)
            .map(|index| {
                let name = AxisName { op: self.op, index };
                let w_dim = self.weight_shape[2 + index];
                if let Some(kernel) = kernel
                    && usize::try_from(kernel[index]) != Ok(w_dim)
                {
                    bail!(
                        InvalidAttribute,
                        "{name}: kernel_shape {} differs from W's size {w_dim} (W has shape {:?})",
                        kernel[index],
                        self.weight_shape
                    );
                }
                let stride = at_least(1, "strides", strides.map_or(1, |s| s[index]), format_args!("{name}"))?;
                let dilation = at_least(1, "dilations", dilations.map_or(1, |d| d[index]), format_args!("{name}"))?;
                UnpaddedAxis::new(self.op, index, x_shape[2 + index], w_dim, stride, dilation)
            })
            .collect()
    }

    /// The `pads` of every spatial axis; zero if the attribute is absent. If `auto_pad` is not
    /// NOTSET, only zeros are accepted.
    fn pads(&self, spatial: usize) -> Result<Vec<Pads>, Error> {
        let op = self.op;
        let Some(pads) = self.pads.as_deref() else {
            return Ok(alloc::vec![Pads::default(); spatial]);
        };
        if pads.len() / 2 != spatial || !pads.len().is_multiple_of(2) {
            bail!(
                InvalidAttribute,
                "{op}: pads {pads:?} has {} entries, must have 2 * {spatial}: all beginnings, then all ends",
                pads.len()
            );
        }
        if self.auto_pad != AutoPad::NotSet
            && let Some(at) = pads.iter().position(|&pad| pad != 0)
        {
            bail!(
                InvalidAttribute,
                "{}: pads {pads:?} together with auto_pad {}, must be all zero or absent",
                AxisName { op, index: at % spatial },
                self.auto_pad
            );
        }
        let pad = |at: usize| at_least(0, "pads", pads[at], format_args!("{}", AxisName { op, index: at % spatial }));
        (0..spatial).map(|i| Ok(Pads { begin: pad(i)?, end: pad(i + spatial)? })).collect()
    }

    /// Conv: checks the channels of X and W. Returns M, the output channels of all groups.
    fn conv_channels(&self, c: usize, group: usize) -> Result<usize, Error> {
        let [m, per_group] = [self.weight_shape[0], self.weight_shape[1]];
        match per_group.checked_mul(group) {
            None => bail!(Overflow, "Conv: W's axis 1 ({per_group}) * group ({group}) exceeds the address space"),
            Some(product) if product != c => bail!(
                InvalidShape,
                "Conv: X has C = {c} channels (axis 1), W's axis 1 ({per_group}) * group ({group}) is {product}, \
                 must be equal; W's order is (M, C/group, kernel)"
            ),
            Some(_) if !m.is_multiple_of(group) => {
                bail!(InvalidShape, "Conv: W's axis 0, M = {m}, must be a multiple of group ({group})")
            }
            Some(_) => Ok(m),
        }
    }

    /// The same for ConvTranspose.
    fn transposed_channels(&self, c: usize, group: usize) -> Result<usize, Error> {
        let [w_c, per_group] = [self.weight_shape[0], self.weight_shape[1]];
        if w_c != c {
            bail!(
                InvalidShape,
                "ConvTranspose: X has C = {c} channels (axis 1), W has {w_c} (axis 0), must be equal; W's order is (C, M/group, kernel)"
            );
        }
        if !c.is_multiple_of(group) {
            bail!(InvalidShape, "ConvTranspose: X's axis 1, C = {c}, must be a multiple of group ({group})");
        }
        match per_group.checked_mul(group).filter(|&m| m <= MAX_SIZE) {
            Some(m) => Ok(m),
            None => bail!(
                Overflow,
                "ConvTranspose: M = W's axis 1 ({per_group}) * group ({group}) exceeds the address space"
            ),
        }
    }

    fn checked_output_padding(&self, unpadded: &[UnpaddedAxis]) -> Result<Vec<usize>, Error> {
        let list = self.list("output_padding", self.output_padding.as_deref(), unpadded.len())?;
        let Some(list) = list else {
            return Ok(alloc::vec![0; unpadded.len()]);
        };
        unpadded
            .iter()
            .zip(list)
            .map(|(unpadded, &value)| {
                let size = at_least(0, "output_padding", value, format_args!("{}", unpadded.name()))?;
                let limit = unpadded.stride.max(unpadded.dilation);
                if size >= limit {
                    bail!(
                        InvalidAttribute,
                        "{}: output_padding {size} must be less than max(stride {}, dilation {}) = {limit}",
                        unpadded.name(),
                        unpadded.stride,
                        unpadded.dilation
                    );
                }
                Ok(size)
            })
            .collect()
    }

    /// The spatial entries of `output_shape`, checked.
    fn checked_output_shape(&self, n: usize, m: usize, spatial: usize) -> Result<Option<Vec<usize>>, Error> {
        let Some(list) = self.output_shape.as_deref() else {
            return Ok(None);
        };
        let sizes = match list.len().checked_sub(spatial) {
            Some(0) => list,
            Some(2) => {
                for (letter, given, size) in [("N", list[0], n), ("M", list[1], m)] {
                    if usize::try_from(given) != Ok(size) {
                        bail!(
                            InvalidAttribute,
                            "ConvTranspose: output_shape {list:?} has {} entries and names {letter} = {given}, \
                             must be {size}",
                            list.len()
                        );
                    }
                }
                &list[2..]
            }
            _ => bail!(
                InvalidAttribute,
                "ConvTranspose: output_shape {list:?} has {} entries, must have one per spatial axis of X \
                 ({spatial}), or N and M before those",
                list.len()
            ),
        };
        sizes
            .iter()
            .enumerate()
            .map(|(index, &size)| {
                at_least(1, "output_shape", size, format_args!("{}", AxisName { op: Op::ConvTranspose, index }))
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// The list, which must have one entry per spatial axis, or none if the attribute is absent.
    /// An empty list is not absent: its length is wrong.
    fn list<'a>(&self, name: &str, list: Option<&'a [i64]>, spatial: usize) -> Result<Option<&'a [i64]>, Error> {
        match list {
            Some(list) if list.len() != spatial => bail!(
                InvalidAttribute,
                "{}: {name} {list:?} has {} entries, must have one per spatial axis of X: {spatial}",
                self.op,
                list.len()
            ),
            _ => Ok(list),
        }
    }
}

/// An attribute's value as a size, which must be at least `minimum`.
fn at_least(minimum: i64, attribute: &str, value: i64, place: core::fmt::Arguments<'_>) -> Result<usize, Error> {
    if value < minimum {
        bail!(InvalidAttribute, "{place}: {attribute} is {value}, must be at least {minimum}");
    }
    match narrow(value.into()) {
        Some(size) => Ok(size),
        None => bail!(Overflow, "{place}: {attribute} is {value}, more than the address space"),
    }
}

/// The builder methods and accessors that both operators have. They use the operator's field
/// `attributes: Attributes`.
macro_rules! shared_attributes {
    ($operator:ident) => {
        impl $operator {
            /// The model's opset (of the domain `ai.onnx`); 22 if not called.
            ///
            /// Every opset from 1 on is accepted. It means the newest version of the operator up
            /// to that opset: 1, 11 or 22. All three compute the same. They differ in the element
            /// types that [`check_dtype`](Self::check_dtype) accepts.
            #[must_use]
            pub fn opset(mut self, opset: u32) -> Self {
                self.attributes.opset = opset;
                self
            }

            /// The attribute `auto_pad`; NOTSET if not called.
            #[must_use]
            pub fn auto_pad(mut self, auto_pad: AutoPad) -> Self {
                self.attributes.auto_pad = auto_pad;
                self
            }

            /// The attribute `dilations`: the distance between taps, one per spatial axis, each
            /// at least 1; 1 if not called.
            #[must_use]
            pub fn dilations(mut self, dilations: impl Into<Vec<i64>>) -> Self {
                self.attributes.dilations = Some(dilations.into());
                self
            }

            /// The attribute `group`, at least 1; 1 if not called.
            #[must_use]
            pub fn group(mut self, group: i64) -> Self {
                self.attributes.group = group;
                self
            }

            /// The attribute `kernel_shape`. W's shape says the same; it is an error if they
            /// differ.
            #[must_use]
            pub fn kernel_shape(mut self, kernel_shape: impl Into<Vec<i64>>) -> Self {
                self.attributes.kernel_shape = Some(kernel_shape.into());
                self
            }

            /// The attribute `pads`: the beginnings of all spatial axes, then the ends of all,
            /// none negative; 0 if not called. If `auto_pad` is not NOTSET, only zeros are
            /// accepted.
            #[must_use]
            pub fn pads(mut self, pads: impl Into<Vec<i64>>) -> Self {
                self.attributes.pads = Some(pads.into());
                self
            }

            /// The attribute `strides`, one per spatial axis, each at least 1; 1 if not called.
            #[must_use]
            pub fn strides(mut self, strides: impl Into<Vec<i64>>) -> Self {
                self.attributes.strides = Some(strides.into());
                self
            }

            /// How X and Y lie in memory; channels first if not called. Shapes stay in ONNX's order.
            #[must_use]
            pub fn layouts(mut self, x: Layout, y: Layout) -> Self {
                self.attributes.layouts = [x, y];
                self
            }

            /// Checks all attributes against the shapes of W and of X, (N, C, D1, D2, ...), and computes
            /// every size.
            ///
            /// An empty batch and no channels (C = 0 or M = 0) are allowed, and so is a spatial axis of 0
            /// elements if its size in Y is positive.
            ///
            /// # Errors
            /// The kind is one of [`UnsupportedOperator`](crate::ErrorKind::UnsupportedOperator) (opset
            /// 0), [`InvalidAttribute`](crate::ErrorKind::InvalidAttribute),
            /// [`InvalidShape`](crate::ErrorKind::InvalidShape) (X and W do not fit, or an axis of Y would
            /// be empty) and [`Overflow`](crate::ErrorKind::Overflow).
            pub fn geometry(&self, x_shape: &[usize]) -> Result<Geometry, Error> {
                self.attributes.geometry(x_shape)
            }

            /// The shape of W, as given.
            #[must_use]
            pub fn weight_shape(&self) -> &[usize] {
                &self.attributes.weight_shape
            }

            /// The operator's ONNX name.
            #[must_use]
            pub fn op_name(&self) -> &'static str {
                self.attributes.op.name()
            }

            /// The version of the operator that the opset means: 1, 11 or 22.
            ///
            /// # Errors
            /// [`UnsupportedOperator`](crate::ErrorKind::UnsupportedOperator) for opset 0.
            pub fn since_version(&self) -> Result<u32, Error> {
                self.attributes.since_version()
            }

            /// Whether the operator takes this element type in its opset: bfloat16 needs opset 22.
            ///
            /// # Errors
            /// [`InvalidType`](crate::ErrorKind::InvalidType) if it does not.
            pub fn check_dtype(&self, dtype: DType) -> Result<(), Error> {
                dtype.check(self.attributes.op, self.attributes.opset)
            }
        }
    };
}
pub(super) use shared_attributes;

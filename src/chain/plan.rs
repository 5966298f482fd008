//! The plans of a chain.

use alloc::format;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use super::strips::{MOST_PARTS, Strip, strips};
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::{Ledger, Line, Piece};
use crate::machine::Machine;
use crate::units::Count;
use crate::{Activation, Axis, Conv, Geometry, Layout, Plan, Planner};

/// Share of the L2 cache for the rows of a strip: weights, X and Y take the rest.
const STRIP_SHARE: (usize, usize) = (3, 4);

/// Layers behind one another as one: Conv after Conv, each with its activation, computed in strips of rows.
///
/// The rows of a strip stay in the L2 cache from the first layer to the last. A wide tensor between two layers, such as
/// the one inside an inverted residual block of MobileNet, is never in memory as a whole. Rows are those of the first
/// spatial axis, of tensors with their [channels last](Layout::ChannelsLast). One of the layers may read several rows.
/// Rows that two strips read are computed once by each thread.
///
/// Made by [`Planner::chain`]. [`layer`](Chain::layer) packs the weights of each layer, once. A
/// [run](Chain::run) takes X, the weights of all layers, and Y.
///
/// ```
/// use convoke::{Activation, ChainRun, Conv, Layout, Planner};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let last = |conv: Conv| conv.layouts(Layout::ChannelsLast, Layout::ChannelsLast);
/// let layers = [
///     (last(Conv::new([32, 8, 1, 1])), Activation::Relu),
///     (last(Conv::new([32, 1, 3, 3])).group(32).pads([1, 1, 1, 1]), Activation::Relu),
///     (last(Conv::new([8, 32, 1, 1])), Activation::None),
/// ];
/// let chain = Planner::new().chain::<f32>(layers, &[1, 8, 20, 20])?;
/// let w = [vec![0.1; 32 * 8], vec![0.1; 32 * 9], vec![0.1; 8 * 32]];
/// let mut packed = Vec::new();
/// for (i, w) in w.iter().enumerate() {
///     packed.push(chain.layer(i).pack(w, None)?); // once
/// }
/// let (x, mut y) = (vec![1.0; 20 * 20 * 8], vec![0.0; 20 * 20 * 8]);
/// chain.run(ChainRun::new(&x, &packed, &mut y).residual(Some(&x)))?;
/// assert!((y[0] - (1.0 + 0.1 * 32.0 * (4.0 * 0.1 * 0.8))).abs() < 1e-4);
/// # Ok(()) }
/// ```
#[must_use]
pub struct Chain<T: Element> {
    pub(super) layers: Vec<StripLayer<T>>,
    /// The layer that may read several rows.
    pub(super) middle: usize,
    pub(super) strips: Vec<Strip>,
    pub(super) threads: usize,
    /// Whether the threads share each layer. Otherwise each has strips.
    pub(super) shares_layers: bool,
    pub(super) scratch: Ledger,
    pub(super) pieces: StripPieces<T>,
}

/// The scratch of a thread.
pub(super) struct StripPieces<T> {
    /// What the middle layer reads: the rows of a strip.
    pub(super) inputs: Piece<T>,
    /// Rows between other layers, which take them in turn.
    pub(super) rows: [Piece<T>; 2],
    /// The workspace of the layers' plans.
    pub(super) workspace: Piece<Line>,
}

/// The rows of X that a call reads, and the padding before and behind them.
pub(super) type RowsOfCall = (usize, [usize; 2]);

/// A layer of a chain.
pub(super) struct StripLayer<T: Element> {
    /// Of all rows.
    pub(super) geometry: Geometry,
    pub(super) plans: Vec<(RowsOfCall, Plan<T>)>,
}

impl<T: Element> StripLayer<T> {
    /// The plan of a call.
    pub(super) fn plan(&self, rows: RowsOfCall) -> &Plan<T> {
        let plan = self.plans.iter().find(|(of, _)| *of == rows);
        &plan.expect("plans are made for the rows of all strips").1
    }

    /// A layer before the middle one, the middle one, or one behind it, as its `place` says, with the plans of all
    /// strips. The first is of a strip in the middle of X, which most strips are like: all accept its weights.
    fn new(geometry: Geometry, planner: &Planner, (place, strips): (Ordering, &[Strip])) -> Result<Self, Error> {
        let axis = geometry.axes[0];
        let mut new = Self { geometry, plans: Vec::new() };
        let (before, behind) = strips.split_at(strips.len() / 2);
        for Strip { outputs, inputs, pads, carried, halo } in behind.iter().chain(before) {
            let calls = match place {
                Ordering::Less => [(halo - carried, [0, 0]), (inputs.end - halo, [0, 0])],
                Ordering::Equal => [(inputs.len(), *pads); 2],
                Ordering::Greater => [(outputs.len(), [0, 0]); 2],
            };
            calls.into_iter().filter(|(rows, _)| *rows > 0).try_for_each(|call| new.add(planner, call))?;
        }
        if new.plans.is_empty() {
            // Y is empty, and nothing is computed: the plan packs.
            new.add(planner, (axis.input, [axis.pad_begin, axis.pad_end]))?;
        }
        Ok(new)
    }

    /// Adds the plan of a call, if there is none.
    fn add(&mut self, planner: &Planner, rows: RowsOfCall) -> Result<(), Error> {
        if self.plans.iter().any(|(of, _)| *of == rows) {
            return Ok(());
        }
        let geometry = &self.geometry;
        let axes = || geometry.axes.iter();
        let numbers = |of: fn(&Axis) -> usize| axes().map(|axis| of(axis) as i64).collect::<Vec<_>>();
        let mut pads = [numbers(|axis| axis.pad_begin), numbers(|axis| axis.pad_end)].concat();
        (pads[0], pads[geometry.axes.len()]) = (rows.1[0] as i64, rows.1[1] as i64);
        let conv = Conv::new(geometry.weight_shape())
            .group(geometry.group as i64)
            .strides(numbers(|axis| axis.stride))
            .dilations(numbers(|axis| axis.dilation))
            .pads(pads)
            .layouts(Layout::ChannelsLast, Layout::ChannelsLast);
        let mut shape = geometry.input_shape();
        (shape[0], shape[2]) = (geometry.batch.min(1), rows.0);
        let plan = match self.plans.first() {
            Some((_, first)) => planner.clone().packed_like(first).plan(conv, &shape)?,
            None => planner.plan(conv, &shape)?,
        };
        self.plans.push((rows, plan));
        Ok(())
    }
}

impl Planner {
    /// A plan for layers behind one another, each with the activation behind it, on inputs of one shape, `(N, C,
    /// spatial...)`. The shapes of the other tensors follow.
    ///
    /// X and Y of all layers must have their [channels last](Layout::ChannelsLast), and one layer at most may have a
    /// kernel of several taps, a stride or padding along the first spatial axis. The planner's own
    /// [activation](Planner::activation) does not count.
    ///
    /// # Errors
    /// What [`plan`](Planner::plan) returns for a layer, with the layer's number;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) without layers, or for weights of
    /// [`packed_for`](Planner::packed_for); [`InvalidShape`](crate::ErrorKind::InvalidShape) for other layouts, or for
    /// several layers that read several rows; [`Workspace`](crate::ErrorKind::Workspace) above the limit.
    pub fn chain<T: Element>(
        &self,
        layers: impl IntoIterator<Item = (Conv, Activation)>,
        x_shape: &[usize],
    ) -> Result<Chain<T>, Error> {
        let (mut shape, mut activations, mut geometries) = (x_shape.to_vec(), Vec::new(), Vec::<Geometry>::new());
        for (i, (conv, activation)) in layers.into_iter().enumerate() {
            let geometry = conv.geometry(&shape).map_err(|error| of_layer(i, &error))?;
            if (geometry.x_layout, geometry.y_layout) != (Layout::ChannelsLast, Layout::ChannelsLast) {
                let (x, y) = (geometry.x_layout, geometry.y_layout);
                bail!(
                    InvalidShape,
                    "layer {i}: Conv: X has its {x} and Y its {y}: in a chain, both have channels last"
                );
            }
            shape = geometry.output_shape();
            activations.push(activation);
            geometries.push(geometry);
        }
        let Some(end) = geometries.len().checked_sub(1) else {
            bail!(InvalidInput, "a chain has no layers; it must have at least one");
        };
        let (machine, threads, limit) = self.limits_of_chain()?;
        let mut several = (0..=end).filter(|i| !geometries[*i].axes[0].is_unit());
        let middle = several.next().unwrap_or(end);
        if let Some(other) = several.next() {
            bail!(
                InvalidShape,
                "layer {other}: Conv: spatial axis 0: its kernel, stride or pads read several rows, and so do those of \
                 layer {middle}: in a chain, one layer at most may"
            );
        }
        let most = most_rows::<T>(machine, &geometries, middle);
        let strips: Vec<_> = match geometries[end].output_len() {
            0 => Vec::new(),
            _ => strips(&geometries[middle].axes[0], most).collect(),
        };
        // Threads share each layer, if there are more of them than strips. Otherwise each has strips.
        let shares_layers = strips.len() < threads;
        let planner = |activation| self.of_chain(if shares_layers { threads } else { 1 }, activation);
        let mut layers = Vec::new();
        for (i, (geometry, activation)) in geometries.into_iter().zip(activations).enumerate() {
            let layer = StripLayer::new(geometry, &planner(activation), (i.cmp(&middle), &strips));
            layers.push(layer.map_err(|error| of_layer(i, &error))?);
        }
        let mut scratch = Ledger::default();
        let pieces = StripPieces::book(&mut scratch, (&layers, middle), &strips);
        let chain = Chain { layers, middle, strips, threads, shares_layers, scratch, pieces };
        let bytes = chain.workspace_bytes();
        if bytes > limit {
            bail!(Workspace, "a chain needs {bytes} bytes of workspace, the limit is {limit}");
        }
        Ok(chain)
    }
}

/// The error of a layer, with the layer's number.
pub(super) fn of_layer(i: usize, error: &Error) -> Error {
    Error::new(error.kind(), format!("layer {i}: {error}"))
}

/// Elements of a row of X and of Y.
pub(super) fn row_lens(geometry: &Geometry) -> [usize; 2] {
    let len = |channels: usize, of: fn(&Axis) -> usize| {
        geometry.axes[1..].iter().fold(channels, |len, axis| len.saturating_mul(of(axis)))
    };
    [len(geometry.in_channels, |axis| axis.input), len(geometry.out_channels, |axis| axis.output)]
}

/// Rows of Y of a strip, at most: those whose rows of all tensors between layers stay in the L2 cache.
fn most_rows<T>(machine: &Machine, layers: &[Geometry], middle: usize) -> usize {
    let axis = &layers[middle].axes[0];
    // X's own rows are read several times too.
    let [inputs, _] = row_lens(&layers[middle]);
    let between = |layers: &[Geometry]| {
        let most = layers.iter().map(|layer| row_lens(layer)[1]).max().unwrap_or(0);
        most.saturating_mul(layers.len().min(2))
    };
    let (before, behind) = (between(&layers[..middle.saturating_sub(1)]), between(&layers[middle..layers.len() - 1]));
    let each = inputs.saturating_add(before).saturating_mul(axis.stride).saturating_add(behind);
    let all = inputs.saturating_mul(axis.effective_kernel().saturating_sub(axis.stride));
    let room = machine.block_l2_bytes() * STRIP_SHARE.0 / STRIP_SHARE.1 / size_of::<T>();
    room.saturating_sub(all) / each.max(1)
}

impl<T: Element> StripPieces<T> {
    fn book(scratch: &mut Ledger, (layers, middle): (&[StripLayer<T>], usize), strips: &[Strip]) -> Self {
        let most = |of: fn(&Strip) -> usize| strips.iter().map(of).max().unwrap_or(0);
        let row_len = |layer: &StripLayer<T>| row_lens(&layer.geometry)[1];
        let inputs = match middle.checked_sub(1) {
            Some(before) => most(|strip| strip.inputs.len()) * row_len(&layers[before]),
            None => 0,
        };
        let calls = most(|strip| (strip.halo - strip.carried).max(strip.inputs.end - strip.halo));
        let outputs = most(|strip| strip.outputs.len());
        let (before, behind) = (&layers[..middle.saturating_sub(1)], &layers[middle..layers.len() - 1]);
        // Where layers have one tensor between them, it takes the first rows.
        let rows = [1, 2].map(|tensors| {
            let of = |layers: &[StripLayer<T>]| layers.iter().map(row_len).max().filter(|_| layers.len() >= tensors);
            (calls * of(before).unwrap_or(0)).max(outputs * of(behind).unwrap_or(0))
        });
        let plans = layers.iter().flat_map(|layer| &layer.plans);
        let workspace = plans.map(|(_, plan)| plan.workspace_bytes()).max().unwrap_or(0);
        Self {
            inputs: scratch.book("rows of a strip", inputs),
            rows: rows.map(|rows| scratch.book("rows between layers", rows)),
            workspace: scratch.book("workspace of layers", workspace.div_ceil(size_of::<Line>())),
        }
    }
}

impl<T: Element> Chain<T> {
    /// The number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// A plan of a layer, for the rows of a strip in the middle of X. It [packs](Plan::pack) the layer's weights for
    /// all strips.
    ///
    /// # Panics
    /// If there are not as many layers.
    pub fn layer(&self, index: usize) -> &Plan<T> {
        &self.layers[index].plans[0].1
    }

    /// The shape of X, `(N, C, spatial...)`.
    #[must_use]
    pub fn input_shape(&self) -> Vec<usize> {
        self.layers[0].geometry.input_shape()
    }

    /// The shape of Y, `(N, M, spatial...)`.
    #[must_use]
    pub fn output_shape(&self) -> Vec<usize> {
        self.last().output_shape()
    }

    /// The number of strips that an image is computed in. A single one is as layer after layer.
    #[must_use]
    pub fn strips(&self) -> usize {
        self.strips.len()
    }

    /// Bytes of workspace for a run with the number of threads that the chain was planned for. At most 64 parts of an
    /// image are computed at a time.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        // Plans for several threads count their scratch for all.
        let threads = if self.shares_layers { 1 } else { self.threads.min(MOST_PARTS) };
        self.scratch.lines().saturating_mul(size_of::<Line>()).saturating_mul(threads)
    }

    pub(super) fn last(&self) -> &Geometry {
        &self.layers[self.layers.len() - 1].geometry
    }
}

impl<T: Element> fmt::Debug for Chain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.strips.first().map_or(0, |strip| strip.outputs.len());
        write!(
            f,
            "Chain({} of {} at most; scratch {}",
            Count(self.strips.len(), "strip"),
            Count(rows, "row"),
            self.scratch
        )?;
        for layer in &self.layers {
            let plan = &layer.plans[0].1;
            write!(f, "; W {:?} by {} in {}", layer.geometry.weight_shape(), plan.algorithm(), plan.kernel())?;
        }
        f.write_str(")")
    }
}

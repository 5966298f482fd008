//! What a layer looks like to Winograd's algorithm: the roles of its axes, how its kernel is cut, and how its tiles are blocked.

use alloc::string::String;
use alloc::vec::Vec;

use convoke_kernels::winograd::{Planes, Tile};
use convoke_kernels::{ChannelKernel, Isa, Real, RowOffsets, WinogradKernel};

use super::steps::{Segment, Steps};
use crate::lower::channel_tiles::Tiles;
use crate::lower::cost::GEMM_CALL_CYCLES;
use crate::lower::engine::tile_cycles;
use crate::{Axis, Geometry};

/// A layer as Winograd's algorithm sees it: a convolution of stride 1 on the axes of the tiles, which Conv is, and ConvTranspose by phases.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of a group: for each phase of the stride down, those of X, each with its phases along.
    pub(super) channels: usize,
    /// The strides of the axes that tiles lie on: the elements of X that are so far apart are channels of their own.
    pub(super) strides: [usize; 2],
    /// Taps of the layer's kernel along them, of which each phase meets some.
    pub(super) taps: [usize; 2],
    /// Filters of a group.
    pub(super) rows: usize,
    /// Whether filters are phases, which are interleaved on their way into Y.
    pub(super) has_phases: bool,
    /// Whether Y is so large that it is written past the caches.
    pub(super) past_cache: bool,
    pub(super) roles: Roles,
}

impl View {
    /// Taps that phase `phase` of the stride of an axis (0 down, 1 along) meets.
    pub(super) fn phase_taps(&self, axis: usize, phase: usize) -> usize {
        self.taps[axis].saturating_sub(phase).div_ceil(self.strides[axis])
    }
}

/// The axes of a layer by what becomes of them.
#[derive(Clone, Copy)]
pub(super) struct Roles {
    /// The outer axis of three: its taps are more steps of k, over slices that are transformed once.
    pub(super) depth: Axis,
    /// The axes that tiles lie on.
    pub(super) down: Axis,
    pub(super) along: Axis,
}

impl Roles {
    /// # Errors
    /// Why the axes are not ones for Winograd.
    pub(super) fn new(axes: &[Axis]) -> Result<Self, String> {
        let roles = match *axes {
            [along] => Self { depth: Axis::UNIT, down: Axis::UNIT, along },
            [down, along] => Self { depth: Axis::UNIT, down, along },
            [depth, down, along] => Self { depth, down, along },
            _ => return Err(alloc::format!("{} spatial axes, only one to three can be", axes.len())),
        };
        if roles.depth.dilation != 1 && roles.depth.kernel != 1 {
            let dilation = roles.depth.dilation;
            return Err(alloc::format!(
                "spatial axis 0 has dilation {dilation}, only 1 can be on the outermost of three"
            ));
        }
        if roles.down.kernel == 1 && roles.along.kernel == 1 {
            return Err(String::from("along the last two spatial axes there is one tap, more are needed"));
        }
        Ok(roles)
    }
}

/// The kernel of a layer along the axes that tiles lie on.
pub(super) fn tiled_kernel(geometry: &Geometry) -> [usize; 2] {
    let mut kernels = geometry.axes.iter().rev().map(|axis| axis.kernel);
    let (along, down) = (kernels.next().unwrap_or(1), kernels.next().unwrap_or(1));
    [down, along]
}

/// Into how many tasks the outer axis is cut: with taps along it, its slices share what is transformed.
pub(super) fn depth_tasks(roles: &Roles) -> usize {
    if roles.depth.kernel == 1 { roles.depth.output } else { 1 }
}

/// Number of phases: a layer with dilation d is d interleaved ones without, of which no more are there than outputs.
pub(super) fn phases(axis: &Axis) -> usize {
    distance(axis).min(axis.output)
}

/// The distance between neighbours of a phase.
pub(super) fn distance(axis: &Axis) -> usize {
    if axis.kernel == 1 { 1 } else { axis.dilation }
}

/// One phase of an axis: its positions are those from `first` on, `step` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    pub(super) first: usize,
    pub(super) step: usize,
    /// Outputs of the phase.
    pub(super) output: usize,
    pad: usize,
    input: usize,
}

impl Phase {
    pub(super) fn new(axis: &Axis, first: usize) -> Self {
        let step = distance(axis);
        Self {
            first,
            step,
            output: axis.output.saturating_sub(first).div_ceil(step),
            pad: axis.pad_begin,
            input: axis.input,
        }
    }

    /// The elements of X's axis that are phase `first` of a stride.
    pub(super) fn of_stride(axis: &Axis, first: usize, stride: usize) -> Self {
        Self { first, step: stride, output: axis.output, pad: axis.pad_begin, input: axis.input }
    }

    /// The element of Y's axis that output `o` of the phase is.
    pub(super) fn place(&self, o: usize) -> usize {
        self.first + o * self.step
    }

    /// The element of X's axis that is at padded position `o` of the phase; none where that is padding.
    pub(super) fn source(&self, o: usize) -> Option<usize> {
        self.place(o).checked_sub(self.pad).filter(|position| *position < self.input)
    }

    /// Of `len` padded positions from `begin` on, those that are not padding.
    pub(super) fn live(&self, begin: usize, len: usize) -> core::ops::Range<usize> {
        let until = |position: usize| position.saturating_sub(self.place(begin)).div_ceil(self.step).min(len);
        let from = until(self.pad);
        from..until(self.pad + self.input).max(from)
    }
}

/// How the taps of one axis are cut into filters of a tile: filter i takes the taps from `i * m` on, so that it reads the transformed
/// values of the tile i places further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) tile: Tile,
    pub(super) count: usize,
    kernel: usize,
}

impl Parts {
    /// The filters for `kernel` taps; none if the tile does not suit them.
    fn new(tile: Tile, kernel: usize) -> Option<Self> {
        if (tile == Tile::NONE) != (kernel == 1) {
            return None;
        }
        let rest = kernel.saturating_sub(tile.taps());
        // Filters that follow each other at m taps must overlap or touch.
        if rest > 0 && tile.taps() < tile.outputs {
            return None;
        }
        Some(Self { tile, count: 1 + rest.div_ceil(tile.outputs), kernel })
    }

    /// The taps of filter `i`: every tap is in one filter.
    pub(super) fn taps(&self, i: usize) -> core::ops::Range<usize> {
        let end = if i + 1 == self.count { self.kernel } else { (i + 1) * self.tile.outputs };
        i * self.tile.outputs..end
    }
}

/// A kernel, and the filters on both axes.
pub(super) struct Scheme<T: Real> {
    pub(super) kernel: &'static WinogradKernel<T>,
    pub(super) down: Parts,
    pub(super) along: Parts,
}

impl<T: Real> Clone for Scheme<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Real> Copy for Scheme<T> {}

impl<T: Real> Scheme<T> {
    /// The scheme of a kernel, if it suits the layer.
    pub(super) fn new(kernel: &'static WinogradKernel<T>, roles: &Roles) -> Option<Self> {
        let down = Parts::new(kernel.down(), roles.down.kernel)?;
        let along = Parts::new(kernel.along(), roles.along.kernel)?;
        Some(Self { kernel, down, along })
    }

    /// Whether the tables of steps of k are of a moderate size.
    pub(super) fn has_few_steps(&self, view: &View) -> bool {
        let steps = view.channels.checked_mul(self.filters()).and_then(|n| n.checked_mul(view.roles.depth.kernel));
        steps.is_some_and(|steps| steps <= MOST_STEPS)
    }

    /// Filters.
    pub(super) fn filters(&self) -> usize {
        self.down.count * self.along.count
    }

    /// About the elements of a task's scratch for a block: transformed tiles, the products of `together` panels, planes.
    pub(super) fn scratch_len(&self, extent: &Extent, view: &View, together: usize) -> usize {
        let (lanes, values) = (self.kernel.lanes(), self.kernel.values());
        let v_plane = view.channels.saturating_mul(extent.input_tiles()).saturating_add(MOST_PADDING);
        let v = v_plane.saturating_mul(values).saturating_mul(view.roles.depth.kernel);
        let products = (extent.tiles().saturating_mul(2 * lanes)).saturating_add(MOST_PADDING).saturating_mul(values);
        let products = products.saturating_mul(together);
        let planes = extent.input_tiles().saturating_mul(5 * values);
        v.saturating_add(products).saturating_add(planes)
    }

    /// Outputs of the last row of tiles that Y does not have, where that is the same row for all phases, one filter reads it, and [`Spare`](convoke_kernels::winograd::Spare) has the
    /// tile's points.
    pub(super) fn spare(&self, roles: &Roles) -> usize {
        let outputs = self.down.tile.outputs;
        let is_even = self.down.tile.values.is_multiple_of(2);
        if self.down.count > 1 || phases(&roles.down) > 1 || !is_even {
            0
        } else {
            roles.down.output.next_multiple_of(outputs) - roles.down.output
        }
    }

    /// Rows and columns of tiles of the output, of its first phase, which is the largest.
    pub(super) fn grid(&self, roles: &Roles) -> (usize, usize) {
        let tiles = |axis: &Axis, outputs: usize| axis.output.div_ceil(phases(axis)).div_ceil(outputs);
        (tiles(&roles.down, self.down.tile.outputs), tiles(&roles.along, self.along.tile.outputs))
    }
}

/// The sizes of a block of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Images whose tiles are in the block: more than one only where an image has a single block.
    pub(super) images: usize,
    /// Rows and columns of tiles that are computed.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows and columns of transformed tiles: more, where the kernel has several filters.
    pub(super) input_rows: usize,
    pub(super) input_columns: usize,
    /// Outputs of the last row of tiles that are not wanted: see [`Spare`](convoke_kernels::winograd::Spare).
    pub(super) spare: usize,
}

impl Extent {
    pub(super) fn new<T: Real>(scheme: &Scheme<T>, images: usize, rows: usize, columns: usize, spare: usize) -> Self {
        Self {
            images,
            rows,
            columns,
            input_rows: rows + scheme.down.count - 1,
            input_columns: columns + scheme.along.count - 1,
            spare,
        }
    }

    pub(super) fn tiles(&self) -> usize {
        self.images * self.rows * self.columns
    }

    /// Transformed tiles of one image, and of all.
    pub(super) fn image_input_tiles(&self) -> usize {
        self.input_rows * self.input_columns
    }

    pub(super) fn input_tiles(&self) -> usize {
        self.images * self.image_input_tiles()
    }

    /// Where tiles of row `row`, counted over all images, begin among the transformed tiles.
    pub(super) fn row_start(&self, row: usize) -> usize {
        row / self.rows * self.image_input_tiles() + row % self.rows * self.input_columns
    }

    /// How many rows of tiles lie side by side: as many are one GEMM. All if rows are, and images; the last row may be left out.
    fn joined(&self, is_short: bool) -> usize {
        match (self.input_columns == self.columns, self.images) {
            (false, _) => 1,
            (true, 1) => self.rows - usize::from(is_short),
            (true, _) if is_short => self.rows - 1,
            (true, _) if self.input_rows == self.rows => self.images * self.rows,
            (true, _) => 1,
        }
    }

    /// How many GEMMs a value has, and of how many tiles each. Of values that are `short`, the last row of tiles has none.
    pub(super) fn runs(&self, is_short: bool) -> (usize, usize) {
        let rows = self.images * (self.rows - usize::from(is_short));
        let joined = self.joined(is_short);
        if rows == 0 { (0, 0) } else { (rows / joined, joined * self.columns) }
    }

    /// Estimated cycles of the products of one value, of `steps` steps of k, with one panel. None if a kernel is lacking.
    pub(super) fn cycles<T: Real>(&self, isa: Isa, is_short: bool, steps: f64) -> Option<f64> {
        let (runs, width) = self.runs(is_short);
        if runs == 0 {
            return Some(0.0);
        }
        let tiles = Tiles::<T>::new(isa, width)?;
        let call = |t: usize| {
            let kernel = tiles.kernel(tiles.pixels(t).len(), tiles.nr());
            tile_cycles(kernel.fmas(), kernel.loads()) * steps + GEMM_CALL_CYCLES
        };
        Some(runs as f64 * (0..tiles.count).map(call).sum::<f64>())
    }

    /// The first row of tiles, counted over all images, of GEMM `run`.
    fn first_row(&self, run: usize, is_short: bool) -> usize {
        let row = run * self.joined(is_short);
        if is_short { row / (self.rows - 1) * self.rows + row % (self.rows - 1) } else { row }
    }
}

/// Elements that [`spread`] adds, at the most, and a vector.
const MOST_PADDING: usize = 16 * 8 + 32;

/// From one plane of values to the next, for `len` elements: with room for a whole vector behind the last, and such that equal places of the
/// planes fall into different sets of the L1 cache (the distance in lines is odd; 3 modulo 8 measured best).
pub(super) fn spread(len: usize, lanes: usize) -> usize {
    let lines = (len + lanes).div_ceil(16);
    (lines + (11 - lines % 8) % 8) * 16
}

/// Steps of k for one value of a tile, at the most: K is not blocked, and its tables of offsets are made for each plan.
const MOST_STEPS: usize = 1 << 13;

/// A GEMM of some tiles of a run: they are the pixels of a kernel.
pub(super) struct Call<T: Real> {
    /// The first tile among the transformed ones, and among those that are computed.
    pub(super) v: usize,
    pub(super) tile: usize,
    /// Tiles.
    pub(super) count: usize,
    /// The kernels for wide panels and narrow ones.
    kernels: [&'static ChannelKernel<T>; 2],
}

impl<T: Real> Call<T> {
    /// The kernel for a panel of `nr` filters.
    pub(super) fn kernel(&self, nr: usize) -> &'static ChannelKernel<T> {
        self.kernels[usize::from(nr < self.kernels[0].nr())]
    }
}

/// The calls of a value: run after run, `of_run` of each.
pub(super) struct Calls<T: Real> {
    pub(super) all: Vec<Call<T>>,
    pub(super) of_run: usize,
}

impl<T: Real> Calls<T> {
    /// None if a kernel is lacking.
    fn new(isa: Isa, extent: &Extent, is_short: bool) -> Option<Self> {
        let (runs, width) = extent.runs(is_short);
        if runs == 0 {
            return Some(Self { all: Vec::new(), of_run: 1 });
        }
        let tiles = Tiles::new(isa, width)?;
        let mut all = Vec::with_capacity(runs * tiles.count);
        for run in 0..runs {
            let row = extent.first_row(run, is_short);
            all.extend((0..tiles.count).map(|t| {
                let pixels = tiles.pixels(t);
                let kernel = |channels: usize| tiles.kernel(pixels.len(), channels);
                Call {
                    v: extent.row_start(row) + pixels.start,
                    tile: row * extent.columns + pixels.start,
                    count: pixels.len(),
                    kernels: [kernel(tiles.nr()), kernel(1)],
                }
            }));
        }
        Some(Self { all, of_run: tiles.count })
    }

    /// The calls of values that are zero in the last row of tiles, with about `steps` steps of k: all of them, where those without it have too few tiles each.
    fn short(isa: Isa, extent: &Extent, steps: f64) -> Option<Self> {
        if extent.spare == 0 {
            return Some(Self { all: Vec::new(), of_run: 1 });
        }
        let cycles = |is_short: bool| extent.cycles::<T>(isa, is_short, steps);
        Self::new(isa, extent, cycles(true)? < cycles(false)?)
    }
}

/// A block of tiles with its tables.
pub(super) struct Block<T: Real> {
    pub(super) extent: Extent,
    pub(super) planes: Planes,
    /// The calls for one value and one panel of filters.
    pub(super) calls: Calls<T>,
    /// The same for values that are [zero](Planes::drops) in the last row of tiles.
    pub(super) short_calls: Calls<T>,
    /// Rows of k, for each list of [`Steps`]: for each slot of a slice (twice, so that any run of slots is one), the list's.
    pub(super) koff: Vec<RowOffsets>,
    /// Elements from one value's transformed tiles to the next.
    pub(super) v_plane: usize,
}

impl<T: Real> Block<T> {
    /// Whether offsets fit 32 bits.
    pub(super) fn fits(scheme: &Scheme<T>, extent: Extent, channels: usize, slots: usize) -> bool {
        let v_plane = channels.checked_mul(extent.input_tiles()).map(|len| spread(len, scheme.kernel.lanes()));
        let v_len =
            v_plane.and_then(|len| len.checked_mul(scheme.kernel.values())).and_then(|len| len.checked_mul(slots));
        v_len.is_some_and(|len| u32::try_from(len).is_ok())
    }

    /// None if a kernel is lacking. The block must [fit](Self::fits).
    pub(super) fn new(
        isa: Isa,
        scheme: &Scheme<T>,
        steps: &Steps,
        extent: Extent,
        channels: usize,
        slots: usize,
    ) -> Option<Self> {
        let v_plane = spread(channels * extent.input_tiles(), scheme.kernel.lanes());
        let slot_len = v_plane * scheme.kernel.values();
        let offsets = |list: &Vec<Segment>| {
            let mut koff = Vec::new();
            for slot in 0..2 * slots {
                for segment in list {
                    let [i, j] = segment.filter;
                    let at = slot % slots * slot_len + i * extent.input_columns + j;
                    koff.extend(steps.channels(segment).map(|c| (at + c * extent.input_tiles()) as u32));
                }
            }
            RowOffsets::new(koff)
        };
        Some(Self {
            planes: Planes::new(scheme.kernel, extent.input_rows, extent.input_columns, extent.spare),
            calls: Calls::new(isa, &extent, false)?,
            short_calls: Calls::short(isa, &extent, (steps.all() * slots) as f64 / scheme.kernel.values() as f64)?,
            koff: steps.lists().iter().map(offsets).collect(),
            v_plane,
            extent,
        })
    }

    /// Elements of the transformed tiles of a slice.
    pub(super) fn slot_len(&self, scheme: &Scheme<T>) -> usize {
        self.v_plane * scheme.kernel.values()
    }
}

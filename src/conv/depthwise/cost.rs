//! What the units of a layer take.

use convoke_kernels::Real;

use super::plan::{DepthwisePlan, DepthwiseSource};
use super::taps::Along;
use crate::Geometry;
use crate::machine::{Item, Machine, Work, prices};

/// A plan whose work is counted.
pub(super) struct DepthwiseCost<'a, A: Real> {
    pub(super) machine: &'a Machine,
    pub(super) geometry: &'a Geometry,
    pub(super) plan: &'a DepthwisePlan<A>,
}

impl<A: Real> DepthwiseCost<'_, A> {
    /// What all tasks take.
    pub(super) fn work(&self) -> Work {
        let Self { geometry, plan, .. } = self;
        // Groups that lie side by side in a vector.
        let lanes = if plan.taps.along == Along::Channels { plan.unit_groups } else { 1 };
        let (inputs, outputs) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
        let is_grouped = geometry.group > 1 && inputs.max(outputs) > 1;
        let factor = if is_grouped { prices::DIRECT_GROUPS } else { 1.0 };
        let sums = self.vector_work() * (self.vectors() * outputs as f64 * factor);
        let sources = match &plan.source {
            DepthwiseSource::X { .. } => Item::STORED_VECTORS.times(1.0),
            DepthwiseSource::Planes { sizes, .. } => {
                let copied = plan.taps.channels * sizes.channel_len;
                let copies = match plan.taps.along {
                    Along::Channels => {
                        let positions = plan.taps.channels * geometry.input_spatial();
                        Item::GATHERED_VECTORS.times(positions.next_multiple_of(lanes) as f64)
                    }
                    Along::Rows => Item::COPIED_ELEMENTS.times(copied as f64),
                };
                let calls = if lanes > 1 { Item::UNIT_GATHER_CALLS } else { Item::UNIT_COPY_CALLS };
                (copies + calls.times(1.0)) * plan.chunks as f64
            }
        };
        (sums + sources) * (geometry.batch * geometry.group.div_ceil(lanes)) as f64 + Item::TASKS.times(1.0)
    }

    /// A vector of sums.
    fn vector_work(&self) -> Work {
        let spread = if self.plan.taps.along == Along::Channels { 1.0 } else { 0.0 };
        Item::ARITHMETIC_CYCLES.times(self.cycles())
            + Item::STORED_VECTORS.times(1.0)
            + Item::SPREAD_VECTORS.times(spread)
    }

    /// Cycles of the multiply-adds and loads of a vector of sums.
    fn cycles(&self) -> f64 {
        let (machine, taps) = (self.machine, &self.plan.taps);
        let panels = self.plan.panels(self.geometry);
        let rows = panels.height(panels.count() - 1).max(1);
        let (columns, loads) = taps.columns_and_loads(rows);
        let (count, rows) = (taps.count() as f64, rows as f64);
        let load_slots = match taps.along {
            // Vectors along channels begin at cache lines.
            Along::Channels => 1.0,
            Along::Rows => machine.unaligned_slots::<A>(self.plan.tiles[0].lanes()),
        };
        let tile = machine.direct_tile_cycles(count, (loads * load_slots + count) / rows, rows);
        match self.plan.source {
            // A pair of vectors is split for each pair of columns, and for both of the rows that an
            // output row is ahead of the one before it.
            DepthwiseSource::X { .. } if taps.w.stride == 2 => tile + taps.w.kernel as f64,
            DepthwiseSource::X { .. } => tile,
            // A column takes about a cycle.
            DepthwiseSource::Planes { .. } => tile + columns / rows,
        }
    }

    /// Vectors of sums of an output channel, or of a block of them.
    fn vectors(&self) -> f64 {
        let (plan, taps) = (self.plan, &self.plan.taps);
        let positions = self.geometry.output_spatial();
        match taps.along {
            Along::Channels => positions as f64,
            Along::Rows => {
                let kernel = &plan.tiles[plan.panels(self.geometry).height(0) - 1];
                positions as f64 / taps.w.output as f64 * taps.w.output.div_ceil(kernel.lanes()) as f64
            }
        }
    }
}

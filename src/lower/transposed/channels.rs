//! Sums without tiles: a kernel sums all phases of one channel in registers, and interleaves
//! them.

use convoke_kernels::Dest;
use convoke_kernels::weave::{MOST_SUMS, Run, Sum};

use super::lowering::Transposed;
use super::strips::{PhasePanel, SLAB_RUNS, SlabPhase};
use crate::element::Element;
use crate::lower::sink::Sink;

impl<T: Element> Transposed<T> {
    /// Computes one channel for one phase of a whole slab.
    pub(super) fn sum_channel(
        &self,
        sink: &Sink<'_, '_, T>,
        here: &SlabPhase<'_, T::Acc>,
        channel: &PhasePanel,
        outputs: &mut [T::Acc],
    ) {
        let a = &sink.io.weights[channel.channel * self.channel_weights..];
        let mut strands = [Sum { w: &[], koff: self.no_rows.rows(0..0) }; MOST_SUMS];
        for pass in &here.outer.passes {
            let k = self.steps(pass);
            for (member, r) in self.slots.classes[pass.class].iter().enumerate() {
                let first = pass.before * self.geometry.in_channels_per_group() + member * k;
                strands[*r] = Sum { w: &a[first..first + k], koff: pass.koff[0].rows(0..k) };
            }
        }
        let strands = &strands[..self.slots.of_phase.len()];
        let bias = &sink.io.bias[channel.channel..=channel.channel];
        let columns = 0..self.planes.columns_of(here.slab);
        let mut runs = [Run::default(); SLAB_RUNS];
        let (mut count, mut row) = self.runs(here, &columns, 0, &mut runs);
        while count > 0 {
            let runs_here = &runs[..count];
            let stores = channel.stores(runs_here, self.positions);
            let stored = sink.direct(channel.at, bias, stores, |mut y, epilogue| {
                self.weave.sum(here.planes, strands, runs_here, &epilogue, &mut y);
            });
            if stored.is_none() {
                for run in runs_here {
                    // A run may be a whole row of the slab, which is longer than `outputs`.
                    let most = outputs.len();
                    for first in (0..run.len).step_by(most) {
                        let outputs = &mut outputs[..most.min(run.len - first)];
                        let part = Run { from: run.from + first / strands.len(), at: 0, len: outputs.len(), ..*run };
                        let mut dest = Dest::from_slice(outputs);
                        self.weave.sum(here.planes, strands, &[part], &sink.staging(bias), &mut dest);
                        sink.staged_row(outputs, channel.at + run.at + first);
                    }
                }
            }
            (count, row) = self.runs(here, &columns, row, &mut runs);
        }
    }
}

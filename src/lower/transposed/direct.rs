//! Direct sums, if a weight is not finite. Then its product with padding is not zero, and must be
//! left out.

use core::ops::Range;

use convoke_kernels::Real;

use super::lowering::Transposed;
use super::passes::{OuterPhase, PhasePass};
use super::planes::PhaseSlab;
use crate::element::Element;
use crate::lower::sink::Sink;

/// An output of every channel of a group.
struct DirectOutput<'t> {
    group: usize,
    slab: &'t PhaseSlab<'t>,
    outer: &'t OuterPhase,
    pass: &'t PhasePass,
    /// The row of the slab, and the position on the last axis.
    row: usize,
    w: usize,
    /// The phase of the last axis, and its index in its class.
    r: usize,
    member: usize,
}

/// One row of packed weights: step k is at `first + k * height`.
struct PackedRow {
    first: usize,
    height: usize,
}

impl<T: Element> Transposed<T> {
    /// Computes the outputs of some panels of a task one by one. Their sums have only the
    /// contributions that exist.
    pub(super) fn compute_directly(
        &self,
        sink: &Sink<'_, '_, T>,
        image: usize,
        group: usize,
        panels: Range<usize>,
        slab: &PhaseSlab<'_>,
    ) {
        let (geometry, last) = (&self.geometry, self.phases.len() - 1);
        let along = &self.phases[last];
        let rows = self.tiles.panels.start(panels.start)..self.tiles.panels.start(panels.end);
        let plane = image * geometry.in_channels + group * geometry.in_channels_per_group();
        let x = &sink.io.x[plane * geometry.input_spatial()..];
        for (outer, row) in self.outers.iter().flat_map(|o| (0..self.planes.rows_of(slab)).map(move |row| (o, row))) {
            let Some(place) = self.planes.place(&self.phases, slab, &outer.r, row) else { continue };
            for r in 0..along.taps.len() {
                let member = |pass: &PhasePass| self.slots.classes[pass.class].iter().position(|phase| *phase == r);
                // None if the phase has no taps.
                let pass = outer.passes.iter().find_map(|pass| Some((pass, member(pass)?)));
                for w in slab.origin[last]..slab.origin[last] + slab.width {
                    let Some(o) = along.output(w, r) else { continue };
                    for m in rows.clone() {
                        let channel = group * geometry.out_channels_per_group() + m;
                        let at = (image * geometry.out_channels + channel) * geometry.output_spatial() + place + o;
                        let sum = pass.map_or(T::Acc::ZERO, |(pass, member)| {
                            let output = DirectOutput { group, slab, outer, pass, row, w, r, member };
                            self.direct_sum(&output, m, x, sink.io.weights)
                        });
                        sink.row(&mut [sum], sink.io.bias[channel], at);
                    }
                }
            }
        }
    }

    /// The sum of an output's contributions, for channel `m` of the group. `x` begins with the
    /// first channel of the group.
    fn direct_sum(&self, output: &DirectOutput<'_>, m: usize, x: &[T], weights: &[T::Acc]) -> T::Acc {
        let (channels, positions) = (self.geometry.in_channels_per_group(), self.geometry.input_spatial());
        let (pass, row) = (output.pass, self.packed_row(output, m));
        let mut sum = T::Acc::ZERO;
        for t in 0..pass.taps {
            let Some(source) = self.source(output, t) else { continue };
            for c in 0..channels {
                let weight = weights[row.first + pass.step_at(t, c, channels) * row.height];
                sum = sum + weight * x[c * positions + source].to_acc();
            }
        }
        sum
    }

    /// The input position that tap `t` of an output reads. None if X has no such input.
    fn source(&self, output: &DirectOutput<'_>, t: usize) -> Option<usize> {
        let (along, before) = self.phases.split_last().expect("at least one axis");
        let along_taps = &along.taps[output.r];
        let mut rest = t / along_taps.len();
        let (mut at, mut step) = (along.input(output.w, &along_taps[t % along_taps.len()])?, along.axis.input);
        for (i, phases) in before.iter().enumerate().rev() {
            let taps = &phases.taps[output.outer.r[i]];
            let position = self.planes.position(output.slab, output.row, i);
            let x = phases.input(position, &taps[rest % taps.len()])?;
            rest /= taps.len();
            at += x * step;
            step *= phases.axis.input;
        }
        Some(at)
    }

    /// Where the weights of an output are packed, for channel `m` of the group.
    fn packed_row(&self, output: &DirectOutput<'_>, m: usize) -> PackedRow {
        let (geometry, panels, pass) = (&self.geometry, &self.tiles.panels, output.pass);
        let p = panels.panel_of(m);
        let (start, height) = (panels.start(p), panels.height(p));
        let subpanels = &pass.subpanels[usize::from(height != panels.height(0))];
        let row = output.member * height + m - start;
        let sub = subpanels.panel_of(row);
        let panel = (output.group * geometry.out_channels_per_group() + start) * self.channel_weights
            + pass.before * geometry.in_channels_per_group() * height;
        let first = panel + subpanels.start(sub) * self.steps(pass) + row - subpanels.start(sub);
        PackedRow { first, height: subpanels.height(sub) }
    }
}

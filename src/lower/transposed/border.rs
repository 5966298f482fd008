//! Outputs at the borders, where weights are not finite: there a product with padding would not be
//! zero.

use core::ops::Range;

use convoke_kernels::Real;

use super::planes::PhaseSlab;
use super::{INNER, Outer, Pass, Transposed};
use crate::element::Element;
use crate::lower::sink::Sink;

impl<T: Element> Transposed<T> {
    /// Computes anew, from the contributions that exist, the outputs of a task some of whose taps
    /// have no input.
    pub(super) fn redo_borders(
        &self,
        sink: &Sink<'_, '_, T>,
        image: usize,
        group: usize,
        panels: Range<usize>,
        slab: &PhaseSlab<'_>,
    ) {
        let geometry = &self.geometry;
        let rows = self.tiles.panels.start(panels.start)..self.tiles.panels.start(panels.end);
        let last = self.phases.len() - 1;
        let along = &self.phases[last];
        for outer in &self.outers {
            for (row, pass) in
                (0..self.planes.rows_of(slab)).flat_map(|row| outer.passes.iter().map(move |pass| (row, pass)))
            {
                let Some(place) = self.planes.place(&self.phases, slab, &outer.r, row) else { continue };
                let v = |i: usize| self.planes.position(slab, row, i);
                let is_inside = (0..last).all(|i| self.phases[i].is_inside(v(i), outer.r[i]));
                for (member, r) in self.classes[pass.class].iter().enumerate() {
                    for w in slab.origin[last]..slab.origin[last] + slab.width {
                        let Some(o) = along.output(w, *r) else { continue };
                        if is_inside && along.is_inside(w, *r) {
                            continue;
                        }
                        for m in rows.clone() {
                            let channel = group * geometry.out_channels_per_group() + m;
                            let mut sum = T::Acc::ZERO;
                            for t in 0..pass.taps {
                                let Some(source) = self.source(slab, outer, row, (w, *r), t) else { continue };
                                for c in 0..geometry.in_channels_per_group() {
                                    let plane =
                                        image * geometry.in_channels + group * geometry.in_channels_per_group() + c;
                                    let x = sink.io.x[plane * geometry.input_spatial() + source].to_acc();
                                    sum = sum + sink.io.weights[self.weight(pass, group, m, member, t, c)] * x;
                                }
                            }
                            let at = (image * geometry.out_channels + channel) * geometry.output_spatial() + place + o;
                            sink.row(&mut [sum], sink.io.bias[channel], at);
                        }
                    }
                }
            }
        }
    }

    /// The input position that tap `t` of a pass reads, for position `w` and phase `r` of the last
    /// axis; none where there is none.
    fn source(
        &self,
        slab: &PhaseSlab<'_>,
        outer: &Outer,
        row: usize,
        (w, r): (usize, usize),
        t: usize,
    ) -> Option<usize> {
        let (along, before) = self.phases.split_last().expect("at least one axis");
        let of_last = &along.taps[r];
        let mut rest = t / of_last.len();
        let (mut at, mut step) = (along.input(w, &of_last[t % of_last.len()])?, along.axis.input);
        for (i, phases) in before.iter().enumerate().rev() {
            let taps = &phases.taps[outer.r[i]];
            let x = phases.input(self.planes.position(slab, row, i), &taps[rest % taps.len()])?;
            rest /= taps.len();
            at += x * step;
            step *= phases.axis.input;
        }
        Some(at)
    }

    /// Where a weight is packed: of channel `m` of a group, member `member` of a pass' class, tap
    /// `t`, channel `c` of X.
    fn weight(&self, pass: &Pass, group: usize, m: usize, member: usize, t: usize, c: usize) -> usize {
        let (rows, channels) = (self.geometry.out_channels_per_group(), self.geometry.in_channels_per_group());
        let panels = &self.tiles.panels;
        let p = panels.panel_of(m);
        let (start, height) = (panels.start(p), panels.height(p));
        let subs = &pass.subs[usize::from(height != panels.height(0))];
        let row = member * height + m - start;
        let sub = subs.panel_of(row);
        let first = c / pass.block * pass.block;
        let inner = (c - first) / INNER * INNER;
        let width = INNER.min(pass.block.min(channels - first) - inner);
        let k = (first + inner) * pass.taps + t * width + c - first - inner;
        (group * rows + start) * self.channel_len
            + pass.before * channels * height
            + subs.start(sub) * self.k_of(pass)
            + k * subs.height(sub)
            + row
            - subs.start(sub)
    }
}

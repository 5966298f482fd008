//! Stores finished sums into Y: adds bias and residual, applies the activation, and converts.
//!
//! There are two ways. If sums have the type of Y, kernels store straight into Y, and clamp in
//! registers. Any other activation is applied by GEMM kernels with vectors along positions to each tile
//! on its way into Y ([`OutputStore::whole`]), and for other kernels right after the call, in Y
//! ([`OutputStore::direct`]). For 16-bit types, kernels store to scratch with a part of the epilogue
//! ([`OutputStore::staging`]), and [`OutputStore::staged_row`] and its variants finish rows of that.
//! [`OutputStore::row`] has the whole epilogue, for sums that no kernel stores.
//!
//! This file alone decides whether kernels may store into Y. A lowering asks [`Finish::is_direct`] for
//! its plan, and for a call [`OutputStore::direct`], [`OutputStore::whole`], [`OutputStore::dest`] or
//! [`OutputStore::pairs`]. It may go the second way anyhow. `naive`, and `depthwise-transposed` where it
//! computes by the definition, go neither way: their sums are in f64, and are rounded once.
//!
//! A new activation changes nothing here, unless kernels are to apply it in registers.

use core::ops::Range;

use convoke_kernels::activation::{Activation, ActivationKernel};
use convoke_kernels::{
    Dest, Epilogue, Isa, PixelEpilogue, Real, Residual, StoreMap, activation_kernel, stream, transpose,
};

use super::contract::{Addend, Io, Request};
use crate::Layout;
use crate::element::Element;
use crate::exec::region::Stores;
use crate::spec::Strides;

/// Elements of a buffer on the stack.
const BUFFERED_ELEMENTS: usize = 256;

/// How finished sums are stored, as the plan says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish<A> {
    isa: Isa,
    activation: Activation<A>,
    /// Whether sums have the type of Y.
    is_direct: bool,
}

impl<A: Real> Finish<A> {
    pub(crate) fn new<T: Element<Acc = A>>(request: &Request<'_, T>) -> Self {
        Self { isa: request.isa(), activation: request.activation, is_direct: T::DIRECT }
    }

    /// Whether kernels store straight into Y. If not, finished sums need scratch.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether kernels apply the activation themselves.
    pub(crate) fn is_clamp(&self) -> bool {
        matches!(self.activation, Activation::Clamp(..))
    }

    /// The bounds that kernels clamp sums to: infinite, for other activations.
    fn clamp(&self) -> (A, A) {
        match self.activation {
            Activation::Clamp(lo, hi) => (lo, hi),
            _ => (A::NEG_INFINITY, A::INFINITY),
        }
    }

    /// The activation that follows the clamp, if any.
    fn after_clamp(&self) -> Option<ActivationKernel<A>> {
        (!self.is_clamp()).then(|| activation_kernel(self.isa, self.activation))
    }

    pub(crate) fn activation(&self) -> Activation<A> {
        self.activation
    }

    pub(crate) fn store<'a, 'b, T: Element<Acc = A>>(&self, io: &'a Io<'b, T>) -> OutputStore<'a, 'b, T> {
        OutputStore { finish: *self, io }
    }
}

/// Where a kernel stores in Y, what it adds on the way there, and its activation beside clamps.
pub(crate) type WholeStore<'a, A> = (Dest<'a, A>, Epilogue<'a, A>, Option<ActivationKernel<A>>);

pub(crate) struct OutputStore<'a, 'b, T: Element> {
    finish: Finish<T::Acc>,
    pub(crate) io: &'a Io<'b, T>,
}

/// An epilogue that changes nothing, for sums that are finished later. `zeros` has one value for
/// each row of sums.
pub(crate) fn no_epilogue<A: Real>(zeros: &[A]) -> Epilogue<'_, A> {
    Epilogue { bias: zeros, residual: Residual::NONE, lo: A::NEG_INFINITY, hi: A::INFINITY }
}

impl<'a, T: Element> OutputStore<'a, '_, T> {
    /// The destination from element `at` of Y on, the epilogue, and an activation after the clamp, for a
    /// kernel that applies it itself and stores what `stores` lists. None if kernels do not store into
    /// Y.
    #[inline(always)]
    pub(crate) fn whole<'s>(
        &'s self,
        at: usize,
        bias: &'s [T::Acc],
        stores: impl IntoIterator<Item = Stores>,
    ) -> Option<WholeStore<'s, T::Acc>> {
        let (lo, hi) = self.finish.clamp();
        let y = self.dest(at, stores)?;
        let residual = match self.io.residual {
            Addend::None => Residual::NONE,
            Addend::Tensor(residual) => T::as_acc(residual).map(|residual| &residual[at..]).into(),
            Addend::Output => self.io.y.residual(&y),
        };
        Some((y, Epilogue { bias, residual, lo, hi }, self.finish.after_clamp()))
    }

    /// Lets `kernel` store what `stores` lists from element `at` of Y on, and applies the activation
    /// after the clamp. None if kernels do not store into Y.
    #[inline(always)]
    pub(crate) fn direct<'s, R>(
        &'s self,
        at: usize,
        bias: &'s [T::Acc],
        stores: impl IntoIterator<Item = Stores> + Clone,
        kernel: impl FnOnce(Dest<'s, T::Acc>, Epilogue<'s, T::Acc>) -> R,
    ) -> Option<R> {
        let (y, epilogue, _) = self.whole(at, bias, stores.clone())?;
        let result = kernel(y, epilogue);
        self.activate_stored(stores);
        Some(result)
    }

    /// Whether Y holds the residual. Then a kernel may store an element only once, for it must be read
    /// before.
    pub(crate) fn is_residual_in_y(&self) -> bool {
        matches!(self.io.residual, Addend::Output)
    }

    pub(crate) fn has_no_residual(&self) -> bool {
        matches!(self.io.residual, Addend::None)
    }

    /// Applies the activation after the clamp, if any, to what a call has just stored in Y.
    #[inline(always)]
    pub(crate) fn activate_stored(&self, stores: impl IntoIterator<Item = Stores>) {
        if let Some(activation) = self.finish.after_clamp() {
            stores.into_iter().for_each(|stores| self.io.y.activate(activation, stores));
        }
    }

    /// Y from element `at` on, for a kernel that stores what `stores` lists. None if kernels do not
    /// store into Y.
    #[inline(always)]
    pub(crate) fn dest(&self, at: usize, stores: impl IntoIterator<Item = Stores>) -> Option<Dest<'a, T::Acc>> {
        T::dest_as_acc(self.io.y.dest(at, stores))
    }

    /// The epilogue of a kernel that stores pairs of phases into Y. The caller sets the bias for each
    /// panel, and calls [`activate_stored`](Self::activate_stored) afterwards. None if kernels do not
    /// store into Y, or if there is a residual, which those kernels do not add.
    pub(crate) fn pairs(&self) -> Option<Epilogue<'a, T::Acc>> {
        let (lo, hi) = self.finish.clamp();
        let is_direct = self.finish.is_direct && matches!(self.io.residual, Addend::None);
        is_direct.then_some(Epilogue { bias: &[], residual: Residual::NONE, lo, hi })
    }

    /// The epilogue of a kernel that stores to scratch: the bias, and the clamp if no residual comes
    /// first. [`staged_row`](Self::staged_row) does the rest.
    pub(crate) fn staging<'s>(&self, bias: &'s [T::Acc]) -> Epilogue<'s, T::Acc> {
        let (lo, hi) = self.staged_clamp().unwrap_or((T::Acc::NEG_INFINITY, T::Acc::INFINITY));
        Epilogue { bias, residual: Residual::NONE, lo, hi }
    }

    /// The clamp of [`staging`](Self::staging). None if a residual comes first, or for other
    /// activations.
    fn staged_clamp(&self) -> Option<(T::Acc, T::Acc)> {
        match (self.io.residual, self.finish.activation) {
            (Addend::None, Activation::Clamp(lo, hi)) => Some((lo, hi)),
            _ => None,
        }
    }

    /// Finishes a row that was stored with [`staging`](Self::staging): adds the residual, applies the
    /// activation, and stores from element `at` of Y on. Overwrites the row.
    pub(crate) fn staged_row(&self, row: &mut [T::Acc], at: usize) {
        self.staged_strided(row, at, 1);
    }

    /// As [`staged_row`](Self::staged_row), but stores to every `step`-th element.
    pub(crate) fn staged_strided(&self, row: &mut [T::Acc], at: usize, step: usize) {
        if self.staged_clamp().is_none() {
            self.add_residual(row, at, step);
            self.activate(row);
        }
        self.store(row, at, step);
    }

    /// As [`staged_row`](Self::staged_row), for rows of `len` values. Row i goes to Y from `at + i *
    /// ldy` on.
    pub(crate) fn staged_rows(&self, rows: &mut [T::Acc], len: usize, (at, ldy): (usize, usize)) {
        self.staged_runs(rows, (len, ldy), |store| store(0..len, at));
    }

    /// As [`staged_row`](Self::staged_row), for a tile `[rows][columns]`.
    pub(crate) fn staged_tile(&self, tile: &mut [T::Acc], columns: usize, place: &TilePlace<'_>) {
        self.staged_runs(tile, (columns, place.ldy), |run| place.for_each_run(columns, run));
    }

    /// As [`staged_row`](Self::staged_row), for runs of columns of rows of `pitch` values.
    /// `for_each_run` calls a function with the columns of each run and the element of Y that the first
    /// row's go to; row i goes `i * ldy` further on. All of `rows` is activated: no other call may have
    /// finished a part of it.
    pub(crate) fn staged_runs(
        &self,
        rows: &mut [T::Acc],
        (pitch, ldy): (usize, usize),
        for_each_run: impl Fn(&mut dyn FnMut(Range<usize>, usize)),
    ) {
        if self.staged_clamp().is_none() {
            if !matches!(self.io.residual, Addend::None) {
                for_each_run(&mut |columns, at| {
                    for (i, row) in rows.chunks_mut(pitch).enumerate() {
                        self.add_residual(&mut row[columns.clone()], at + i * ldy, 1);
                    }
                });
            }
            self.activate(rows);
        }
        for_each_run(&mut |columns, at| self.io.y.store_rows(self.finish.isa, (rows, pitch), columns, (at, ldy)));
    }

    /// Lets `kernel` finish tiles of pixels straight into planes of Y, if kernels store into Y and its channels
    /// come first. It gets the destination, and the distance of channels.
    pub(crate) fn planes(
        &self,
        place: &PixelPlace,
        kernel: impl FnOnce(&mut Dest<'_, T::Acc>, usize, &Epilogue<'_, T::Acc>),
    ) -> bool {
        if place.layout == Layout::ChannelsLast || place.step != 1 || !self.finish.is_direct {
            return false;
        }
        let (at, ldy) = self.first_plane(place);
        let stores = [Stores::row(at, place.count).times(place.channels.len(), ldy)];
        let bias = &self.io.bias[place.channels.clone()];
        self.direct(at, bias, stores, |mut y, epilogue| kernel(&mut y, ldy, &epilogue)).is_some()
    }

    /// Where the first pixel of the first channel goes in a Y whose channels come first, and the distance of
    /// channels.
    fn first_plane(&self, place: &PixelPlace) -> (usize, usize) {
        let (image, position) = (place.pixel / place.positions, place.pixel % place.positions);
        (self.io.strides.y.at(image, place.channels.start, position), self.io.strides.y.channel)
    }

    /// Lets `kernel` finish tiles of pixels. It gets the destination, the distance of its pixels, and the
    /// epilogue. If kernels do not store into Y, the destination is scratch with pixels of `nr` values.
    pub(crate) fn pixels(
        &self,
        place: &PixelPlace,
        nr: usize,
        (finished, rows): (&mut [T::Acc], &mut [T::Acc]),
        kernel: impl FnOnce(&mut Dest<'_, T::Acc>, usize, &PixelEpilogue<'_, T::Acc>),
    ) {
        let (strides, channels, isa) = (&self.io.strides, &place.channels, self.finish.isa);
        let bias = &self.io.bias[channels.clone()];
        let at = |strides: &Strides| (place.pixel * strides.position + channels.start, place.step * strides.position);
        let ((at_y, ld), (at_residual, residual_ld)) = (at(&strides.y), at(&strides.residual));
        let is_last = place.layout == Layout::ChannelsLast;
        if is_last && let Some(mut y) = self.dest(at_y, [Stores::row(at_y, channels.len()).times(place.count, ld)]) {
            let residual = match self.io.residual {
                Addend::None => Residual::NONE,
                Addend::Tensor(residual) => T::as_acc(residual).map(|residual| &residual[at_residual..]).into(),
                Addend::Output => self.io.y.residual(&y),
            };
            let activation = activation_kernel(isa, self.finish.activation);
            return kernel(&mut y, ld, &PixelEpilogue { bias, residual, residual_ld, activation });
        }
        let Epilogue { residual, lo, hi, .. } = self.staging(bias);
        let activation = activation_kernel(isa, Activation::Clamp(lo, hi));
        let pixels = &mut finished[..place.count * nr];
        let epilogue = PixelEpilogue { bias, residual, residual_ld: 0, activation };
        kernel(&mut Dest::from_slice(pixels), nr, &epilogue);
        if is_last {
            if self.staged_clamp().is_none() {
                for (i, pixel) in pixels.chunks_exact_mut(nr).enumerate() {
                    self.add_residual(&mut pixel[..channels.len()], at_residual + i * residual_ld, 1);
                    self.activate(&mut pixel[..channels.len()]);
                }
            }
            return self.io.y.store_rows(isa, (pixels, nr), 0..channels.len(), (at_y, ld));
        }
        let rows = &mut rows[..channels.len() * place.count];
        transpose(isa, (place.count, channels.len()), (pixels, nr), (rows, place.count));
        let (at, ldy) = self.first_plane(place);
        let run_len = if place.step == 1 { place.count } else { 1 };
        self.staged_runs(rows, (place.count, ldy), |run| {
            (0..place.count).step_by(run_len).for_each(|i| run(i..i + run_len, at + i * place.step));
        });
    }

    /// Finishes a row of sums: adds bias and residual, applies the activation, and stores to neighbouring positions of
    /// a channel of Y, from `(image, channel, position)` on. Overwrites the sums.
    pub(crate) fn row(&self, sums: &mut [T::Acc], place: (usize, usize, usize)) {
        let Io { bias, residual, strides, .. } = self.io;
        let (image, channel, position) = place;
        let residual = if matches!(residual, Addend::Output) { &strides.y } else { &strides.residual };
        stream::add_bias(self.finish.isa, bias[channel], sums);
        self.add_residual(sums, residual.at(image, channel, position), residual.position);
        self.activate(sums);
        self.store(sums, strides.y.at(image, channel, position), strides.y.position);
    }

    /// Adds every `step`-th element of the residual from `at` on, if there is one.
    fn add_residual(&self, values: &mut [T::Acc], at: usize, step: usize) {
        let isa = self.finish.isa;
        match self.io.residual {
            Addend::None => {}
            Addend::Tensor(residual) if step == 1 => {
                stream::add_assign(isa, values, &residual[at..at + values.len()]);
            }
            Addend::Output if step == 1 => {
                let mut buffer = [T::default(); BUFFERED_ELEMENTS];
                for (i, values) in values.chunks_mut(BUFFERED_ELEMENTS).enumerate() {
                    let residual = &mut buffer[..values.len()];
                    self.io.y.read(at + i * BUFFERED_ELEMENTS, residual);
                    stream::add_assign(isa, values, residual);
                }
            }
            Addend::Tensor(_) | Addend::Output => {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = *value + self.io.residual_at(at + i * step);
                }
            }
        }
    }

    fn activate(&self, sums: &mut [T::Acc]) {
        activation_kernel(self.finish.isa, self.finish.activation).values(sums);
    }

    /// Rounds finished values, and stores them to every `step`-th element of Y from `at` on.
    fn store(&self, values: &[T::Acc], at: usize, step: usize) {
        if step == 1 {
            return self.io.y.store(self.finish.isa, values, at);
        }
        for (i, value) in values.iter().enumerate() {
            self.io.y.write(at + i * step, T::from_acc(*value));
        }
    }

    /// As [`row`](Self::row), for a row of `len` sums that are kept by phases: element r of the row is
    /// `sums[r % phases * span + r / phases]`.
    pub(crate) fn interleaved(
        &self,
        sums: &mut [T::Acc],
        (phases, span): (usize, usize),
        len: usize,
        (image, channel, position): (usize, usize, usize),
    ) {
        if phases == 1 || span == 1 {
            return self.row(&mut sums[..len], (image, channel, position));
        }
        let mut buffer = [T::Acc::ZERO; BUFFERED_ELEMENTS];
        for first in (0..len).step_by(BUFFERED_ELEMENTS) {
            let buffer = &mut buffer[..BUFFERED_ELEMENTS.min(len - first)];
            stream::interleave(self.finish.isa, sums, (phases, span), first, buffer);
            self.row(buffer, (image, channel, position + first));
        }
    }
}

/// Where pixels go in Y.
#[derive(Debug, Clone)]
pub(crate) struct PixelPlace {
    pub(crate) layout: Layout,
    /// Positions of Y.
    pub(crate) positions: usize,
    /// The first pixel, counted over all images, the pixels from one to the next, and their number. They are
    /// pixels of one image, if channels come first.
    pub(crate) pixel: usize,
    pub(crate) step: usize,
    pub(crate) count: usize,
    pub(crate) channels: Range<usize>,
}

/// Where a tile of sums goes in Y.
pub(crate) struct TilePlace<'a> {
    /// The element of Y that row 0 goes to, at offset 0 of the map.
    pub(crate) at: usize,
    pub(crate) ldy: usize,
    /// Where the columns go: the tile's first vector is entry `first`.
    pub(crate) map: &'a StoreMap,
    pub(crate) first: usize,
    pub(crate) lanes: usize,
}

impl TilePlace<'_> {
    /// Calls `f` for each run of a tile's columns that go to neighbouring elements of Y, with the
    /// element that the first of them goes to.
    fn for_each_run(&self, columns: usize, f: &mut dyn FnMut(Range<usize>, usize)) {
        // The current run, and the element of Y behind it.
        let (mut run, mut end) = (0..0, 0);
        for (j, column) in self.map.columns()[self.first..][..columns / self.lanes].iter().enumerate() {
            let (mut mask, mut at) = (column.mask, self.at + column.offset);
            while mask != 0 {
                let lane = mask.trailing_zeros();
                let len = (mask >> lane).trailing_ones();
                let (from, count) = (j * self.lanes + lane as usize, len as usize);
                if run.end != from || end != at {
                    if !run.is_empty() {
                        f(run.clone(), end - run.len());
                    }
                    run = from..from;
                }
                run.end += count;
                at += count;
                end = at;
                // A shift by 32 would overflow: then no lane is left.
                mask &= u32::MAX.checked_shl(lane + len).unwrap_or(0);
            }
        }
        if !run.is_empty() {
            f(run.clone(), end - run.len());
        }
    }
}

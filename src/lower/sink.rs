//! Takes finished sums into Y: adds bias and residual, applies the activation, converts and
//! stores.
//!
//! There are two ways. Kernels store straight into Y if sums have the type of Y and the
//! activation is a clamp. Otherwise (16-bit types, other activations) sums go to scratch memory,
//! and rows of them are finished here.
//!
//! Whether kernels may store is decided in this file alone. A lowering asks, and goes the second
//! way where the answer is no: for its plan [`Finish::is_direct`], for a kernel call
//! [`Sink::direct`], [`Sink::direct_at_first`], [`Sink::dest`] or [`Sink::pairs`]. It may also go
//! the second way where the answer is yes, if its kernels cannot store what it has. Sums of
//! `naive`, and of `upsample` where it computes by the definition, go neither way: they are in f64,
//! and are rounded once.
//!
//! A new activation changes nothing here, unless kernels shall apply it in registers: then it
//! concerns this file and their [`Epilogue`].

use convoke_kernels::stream::{self, Activation};
use convoke_kernels::{Dest, Epilogue, Isa, Real, Residual, StoreMap};

use super::contract::{Addend, Io, Request};
use crate::element::Element;
use crate::exec::region::Stores;

/// Elements that are on the stack at a time: of a row that is put in order, or read from Y, and of
/// rows of a tile whose vectors run along channels.
const BUFFERED_ELEMENTS: usize = 256;

/// What the plan says is done with finished sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish<A> {
    isa: Isa,
    activation: Activation<A>,
    /// The bounds of the clamp, if kernels store straight into Y.
    clamp: Option<(A, A)>,
}

impl<A: Real> Finish<A> {
    pub(crate) fn new<T: Element<Acc = A>>(request: &Request<'_, T>) -> Self {
        let clamp = match request.activation {
            Activation::Clamp(lo, hi) if T::DIRECT => Some((lo, hi)),
            _ => None,
        };
        Self { isa: request.isa(), activation: request.activation, clamp }
    }

    /// Whether kernels store straight into Y. If not, finished sums need scratch memory.
    pub(crate) fn is_direct(&self) -> bool {
        self.clamp.is_some()
    }

    pub(crate) fn activation(&self) -> Activation<A> {
        self.activation
    }

    /// Takes the sums of one task of a run.
    pub(crate) fn sink<'a, 'b, T: Element<Acc = A>>(&self, io: &'a Io<'b, T>) -> Sink<'a, 'b, T> {
        Sink { finish: *self, io }
    }
}

/// Where a kernel stores in Y, and what it adds on the way there.
pub(crate) type DirectStore<'a, A> = (Dest<'a, A>, Epilogue<'a, A>);

/// Takes the finished sums of a task.
pub(crate) struct Sink<'a, 'b, T: Element> {
    finish: Finish<T::Acc>,
    pub(crate) io: &'a Io<'b, T>,
}

/// An epilogue that changes nothing, for sums that are finished later. `zeros` has one value for
/// each row of sums.
pub(crate) fn no_epilogue<A: Real>(zeros: &[A]) -> Epilogue<'_, A> {
    Epilogue { bias: zeros, residual: Residual::NONE, lo: A::NEG_INFINITY, hi: A::INFINITY }
}

impl<'a, T: Element> Sink<'a, '_, T> {
    /// Y from element `at` on and the epilogue, for a kernel that stores what `stores` lists.
    /// None if kernels do not store into Y.
    #[inline(always)]
    pub(crate) fn direct<'s>(
        &'s self,
        at: usize,
        bias: &'s [T::Acc],
        stores: impl IntoIterator<Item = Stores>,
    ) -> Option<DirectStore<'s, T::Acc>> {
        let (lo, hi) = self.finish.clamp?;
        let y = self.dest(at, stores)?;
        let residual = match self.io.residual {
            Addend::None => Residual::NONE,
            Addend::Tensor(residual) => T::as_acc(residual).map(|residual| &residual[at..]).into(),
            Addend::Output => self.io.y.residual(&y),
        };
        Some((y, Epilogue { bias, residual, lo, hi }))
    }

    /// As [`direct`](Self::direct), for a kernel that may store sums which are computed anew. None
    /// also if Y holds the residual: it must be read before it is overwritten.
    #[inline(always)]
    pub(crate) fn direct_at_first<'s>(
        &'s self,
        at: usize,
        bias: &'s [T::Acc],
        stores: impl IntoIterator<Item = Stores>,
    ) -> Option<DirectStore<'s, T::Acc>> {
        if matches!(self.io.residual, Addend::Output) { None } else { self.direct(at, bias, stores) }
    }

    /// Y from element `at` on, for a kernel that stores what `stores` lists. None if the sums
    /// have another type than Y.
    #[inline(always)]
    pub(crate) fn dest(&self, at: usize, stores: impl IntoIterator<Item = Stores>) -> Option<Dest<'a, T::Acc>> {
        T::dest_as_acc(self.io.y.dest(at, stores))
    }

    /// The epilogue of a kernel that stores pairs of phases straight into Y. The caller sets the
    /// bias, panel by panel. None if kernels do not store into Y, or if there is a residual,
    /// which those kernels do not add.
    pub(crate) fn pairs(&self) -> Option<Epilogue<'a, T::Acc>> {
        let (lo, hi) = self.finish.clamp.filter(|_| matches!(self.io.residual, Addend::None))?;
        Some(Epilogue { bias: &[], residual: Residual::NONE, lo, hi })
    }

    /// Finishes one row of sums: adds bias and residual, applies the activation, rounds, and
    /// stores from element `at` of Y on. Overwrites the sums.
    pub(crate) fn row(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize) {
        self.strided(sums, bias, at, 1);
    }

    /// Does the same as [`row`](Self::row), but stores to every `step`-th element.
    pub(crate) fn strided(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize, step: usize) {
        self.add(sums, bias, at, step);
        self.activate(sums);
        self.store(sums, at, step);
    }

    /// Adds a bias, and the residual of every `step`-th element of Y from `at` on.
    fn add(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize, step: usize) {
        let isa = self.finish.isa;
        match self.io.residual {
            Addend::None => stream::add_to_row::<T>(isa, bias, None, sums),
            Addend::Tensor(residual) if step == 1 => {
                stream::add_to_row(isa, bias, Some(&residual[at..at + sums.len()]), sums);
            }
            Addend::Output if step == 1 => {
                let mut buffer = [T::default(); BUFFERED_ELEMENTS];
                for (i, sums) in sums.chunks_mut(BUFFERED_ELEMENTS).enumerate() {
                    let residual = &mut buffer[..sums.len()];
                    self.io.y.read(at + i * BUFFERED_ELEMENTS, residual);
                    stream::add_to_row(isa, bias, Some(residual), sums);
                }
            }
            Addend::Tensor(_) | Addend::Output => {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = *sum + bias + self.io.residual_at(at + i * step);
                }
            }
        }
    }

    /// Does the same as [`add`](Self::add) for a row of a tile. A bias alone is added here, because a
    /// call for the ISA takes longer than so short a row.
    fn add_to_short(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize, step: usize) {
        match self.io.residual {
            Addend::None => sums.iter_mut().for_each(|sum| *sum = *sum + bias),
            Addend::Tensor(_) | Addend::Output => self.add(sums, bias, at, step),
        }
    }

    fn activate(&self, sums: &mut [T::Acc]) {
        stream::activate(self.finish.isa, self.finish.activation, sums);
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

    /// Does the same as [`row`](Self::row) for a row of `len` sums that are stored by phases:
    /// element r of the row is `sums[r % phases * span + r / phases]`.
    pub(crate) fn interleaved(
        &self,
        sums: &mut [T::Acc],
        (phases, span): (usize, usize),
        len: usize,
        bias: T::Acc,
        at: usize,
    ) {
        if phases == 1 || span == 1 {
            return self.row(&mut sums[..len], bias, at);
        }
        let mut buffer = [T::Acc::ZERO; BUFFERED_ELEMENTS];
        for first in (0..len).step_by(BUFFERED_ELEMENTS) {
            let buffer = &mut buffer[..BUFFERED_ELEMENTS.min(len - first)];
            stream::interleave(self.finish.isa, sums, (phases, span), first, buffer);
            self.row(buffer, bias, at + first);
        }
    }

    /// Finishes a tile of sums whose vectors run along channels: channel c of pixel p is element
    /// `p * nr + c`. It stores the first `bias.len()` channels: pixel p of channel c goes to
    /// element `at + c * ldy + p * step` of Y.
    pub(crate) fn transposed(
        &self,
        tile: &[T::Acc],
        nr: usize,
        bias: &[T::Acc],
        at: usize,
        (ldy, step): (usize, usize),
    ) {
        let pixels = tile.len().div_ceil(nr);
        let mut buffer = [T::Acc::ZERO; BUFFERED_ELEMENTS];
        let most = BUFFERED_ELEMENTS / pixels;
        for (i, bias) in bias.chunks(most).enumerate() {
            let first = i * most;
            let rows = &mut buffer[..bias.len() * pixels];
            for (c, (row, bias)) in rows.chunks_mut(pixels).zip(bias).enumerate() {
                // A pass for the bias alone would take as long as this one.
                if matches!(self.io.residual, Addend::None) {
                    for (value, pixel) in row.iter_mut().zip(tile.chunks(nr)) {
                        *value = pixel[first + c] + *bias;
                    }
                    continue;
                }
                for (value, pixel) in row.iter_mut().zip(tile.chunks(nr)) {
                    *value = pixel[first + c];
                }
                self.add(row, *bias, at + (first + c) * ldy, step);
            }
            // All at once: an activation takes long to begin.
            self.activate(rows);
            if step == 1 {
                self.io.y.store_rows(self.finish.isa, rows, pixels, 0..pixels, (at + first * ldy, ldy));
                continue;
            }
            for (c, row) in rows.chunks(pixels).enumerate() {
                self.store(row, at + (first + c) * ldy, step);
            }
        }
    }

    /// Finishes a tile `[rows][columns]` of sums. Row i has bias `bias[i]`.
    pub(crate) fn tile(&self, tile: &mut [T::Acc], columns: usize, bias: &[T::Acc], place: &TilePlace<'_>) {
        let (at, ldy) = (place.at, place.ldy);
        place.for_each_run(columns, |LaneRun { from, offset, len }| {
            for ((i, row), bias) in tile.chunks_exact_mut(columns).enumerate().zip(bias) {
                self.add_to_short(&mut row[from..from + len], *bias, at + i * ldy + offset, 1);
            }
        });
        // All at once, as above; lanes that are not stored do not matter.
        let tile = &mut tile[..bias.len() * columns];
        self.activate(tile);
        place.for_each_run(columns, |LaneRun { from, offset, len }| {
            self.io.y.store_rows(self.finish.isa, tile, columns, from..from + len, (at + offset, ldy));
        });
    }
}

/// Where a tile of sums goes in Y.
pub(crate) struct TilePlace<'a> {
    /// The element of Y that row 0 goes to, at offset 0 of the map.
    pub(crate) at: usize,
    /// Elements of Y from one row to the next.
    pub(crate) ldy: usize,
    /// Where the columns go: the tile's first vector is entry `first`.
    pub(crate) map: &'a StoreMap,
    pub(crate) first: usize,
    /// Elements of a vector.
    pub(crate) lanes: usize,
}

impl TilePlace<'_> {
    /// Calls `f` for each run of a tile's columns that go to neighbouring elements of Y.
    fn for_each_run(&self, columns: usize, mut f: impl FnMut(LaneRun)) {
        let mut run = LaneRun::default();
        for (j, column) in self.map.columns()[self.first..][..columns / self.lanes].iter().enumerate() {
            let (mut mask, mut offset) = (column.mask, column.offset);
            while mask != 0 {
                let lane = mask.trailing_zeros();
                let len = (mask >> lane).trailing_ones();
                let next = LaneRun { from: j * self.lanes + lane as usize, offset, len: len as usize };
                if run.from + run.len == next.from && run.offset + run.len == next.offset {
                    run.len += next.len;
                } else {
                    if run.len > 0 {
                        f(run);
                    }
                    run = next;
                }
                offset += len as usize;
                // A shift by 32 would overflow: then no lane is left.
                mask &= u32::MAX.checked_shl(lane + len).unwrap_or(0);
            }
        }
        if run.len > 0 {
            f(run);
        }
    }
}

/// Neighbouring columns of a tile that go to neighbouring elements of Y.
#[derive(Default, Clone, Copy)]
struct LaneRun {
    from: usize,
    offset: usize,
    len: usize,
}

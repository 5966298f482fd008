//! The way of finished sums into Y: bias, residual, activation and conversion.
//!
//! Kernels store straight into Y where they can: where sums have Y's type, and the activation is no
//! more than a clamp. Everything else (16-bit types, other activations) takes the general way,
//! through rows of sums in scratch memory. [`Sink::direct`] is the one place that chooses between
//! the two.

use convoke_kernels::stream::{self, Activation};
use convoke_kernels::{Dest, Epilogue, Isa, Real, StoreMap};

use super::contract::{Io, Request};
use crate::element::Element;
use crate::exec::region::Stores;

/// Elements of a row that are put in order at a time, on the stack.
const INTERLEAVE: usize = 256;

/// Pixels of a channel-vector tile, at the most.
const MAX_PIXELS: usize = 32;

/// What is done with finished sums, as it was planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish<A> {
    isa: Isa,
    activation: Activation<A>,
    /// The bounds of the clamp where kernels store straight into Y.
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

    /// Whether kernels store straight into Y. Scratch for finished sums is needed where they do
    /// not.
    pub(crate) fn is_direct(&self) -> bool {
        self.clamp.is_some()
    }

    /// The bounds of the clamp where kernels store straight into Y.
    pub(crate) fn clamp(&self) -> Option<(A, A)> {
        self.clamp
    }

    pub(crate) fn activation(&self) -> Activation<A> {
        self.activation
    }

    /// The way into the Y of one run.
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

/// An epilogue that adds nothing, for sums that are finished later. `zeros` has one value for each
/// row of sums.
pub(crate) fn no_epilogue<A: Real>(zeros: &[A]) -> Epilogue<'_, A> {
    Epilogue { bias: zeros, residual: None, lo: A::NEG_INFINITY, hi: A::INFINITY }
}

impl<'a, T: Element> Sink<'a, '_, T> {
    /// Y from element `at` on, and what is added on the way there, for a kernel that stores what
    /// `stores` lists straight into it. None where the sums have to take the general way.
    #[inline(always)]
    pub(crate) fn direct<'s>(
        &'s self,
        at: usize,
        bias: &'s [T::Acc],
        stores: impl IntoIterator<Item = Stores>,
    ) -> Option<DirectStore<'s, T::Acc>> {
        let (lo, hi) = self.finish.clamp?;
        let y = T::dest_as_acc(self.io.y.dest(at, stores))?;
        let residual = self.io.residual.and_then(T::as_acc).map(|residual| &residual[at..]);
        Some((y, Epilogue { bias, residual, lo, hi }))
    }

    /// Finishes one row of sums: `+ bias + residual`, activation, rounded, stored from output
    /// element `at` on. The sums are clobbered.
    pub(crate) fn row(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize) {
        let residual = self.io.residual.map(|r| &r[at..at + sums.len()]);
        stream::epilogue(self.finish.isa, self.finish.activation, bias, residual, sums);
        self.io.y.store(self.finish.isa, sums, at);
    }

    /// As [`row`](Self::row), to every `step`-th element.
    pub(crate) fn strided(&self, sums: &mut [T::Acc], bias: T::Acc, at: usize, step: usize) {
        if step == 1 {
            return self.row(sums, bias, at);
        }
        if let Some(residual) = self.io.residual {
            for (sum, r) in sums.iter_mut().zip(residual[at..].iter().step_by(step)) {
                *sum = *sum + r.to_acc();
            }
        }
        stream::epilogue::<T>(self.finish.isa, self.finish.activation, bias, None, sums);
        for (i, sum) in sums.iter().enumerate() {
            self.io.y.write(at + i * step, T::from_acc(*sum));
        }
    }

    /// As [`row`](Self::row) for sums that are kept by `phases`: `len` elements, element r of which
    /// is `sums[r % phases * span + r / phases]`.
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
        let mut buffer = [T::Acc::ZERO; INTERLEAVE];
        for first in (0..len).step_by(INTERLEAVE) {
            let buffer = &mut buffer[..INTERLEAVE.min(len - first)];
            stream::interleave(self.finish.isa, sums, (phases, span), first, buffer);
            self.row(buffer, bias, at + first);
        }
    }

    /// Finishes a pixel-major tile `[pixels][nr]`: the first `bias.len()` channels, channel c to
    /// the output from element `at + c * ldy` on, pixels `step` elements apart.
    pub(crate) fn transposed(
        &self,
        tile: &[T::Acc],
        nr: usize,
        bias: &[T::Acc],
        at: usize,
        (ldy, step): (usize, usize),
    ) {
        let mut row = [T::Acc::ZERO; MAX_PIXELS];
        let row = &mut row[..tile.len() / nr];
        for (c, bias) in bias.iter().enumerate() {
            for (value, pixel) in row.iter_mut().zip(tile.chunks_exact(nr)) {
                *value = pixel[c];
            }
            self.strided(row, *bias, at + c * ldy, step);
        }
    }

    /// Finishes a tile `[rows][columns]` of sums, row i of which belongs to bias `bias[i]` and to
    /// the output from element `at + i * ldy` on, at the places that `map`'s entries from `first`
    /// on say.
    #[expect(clippy::too_many_arguments, reason = "the tile, then its place, as the kernels take them")]
    pub(crate) fn tile(
        &self,
        tile: &mut [T::Acc],
        columns: usize,
        lanes: usize,
        bias: &[T::Acc],
        at: usize,
        ldy: usize,
        map: &StoreMap,
        first: usize,
    ) {
        let mut finish = |run: &Run| {
            if run.len == 0 {
                return;
            }
            for ((i, row), bias) in tile.chunks_exact_mut(columns).enumerate().zip(bias) {
                self.row(&mut row[run.from..run.from + run.len], *bias, at + i * ldy + run.offset);
            }
        };
        let mut run = Run::default();
        for (j, column) in map.columns()[first..first + columns / lanes].iter().enumerate() {
            let (mut mask, mut offset) = (column.mask, column.offset);
            while mask != 0 {
                let lane = mask.trailing_zeros();
                let len = (mask >> lane).trailing_ones();
                let next = Run { from: j * lanes + lane as usize, offset, len: len as usize };
                if run.from + run.len == next.from && run.offset + run.len == next.offset {
                    run.len += next.len;
                } else {
                    finish(&run);
                    run = next;
                }
                offset += len as usize;
                // Of 32 lanes, all may be gone.
                mask &= u32::MAX.checked_shl(lane + len).unwrap_or(0);
            }
        }
        finish(&run);
    }
}

/// Consecutive lanes that go to consecutive elements.
#[derive(Default)]
struct Run {
    from: usize,
    offset: usize,
    len: usize,
}

//! Weaving: rows of sums, one a phase, become one row of output, with the epilogue. And its
//! inverse: one phase of a row is picked.

use crate::isa::called;
use crate::ukernel::name_and_isa;
use crate::{Dest, Epilogue, Isa, Real, RowOffsetsRef};

/// The sums of several rows of output: output row c's phase p begins at `sums[slots[p] * step + c *
/// pitch]`.
#[derive(Debug, Clone, Copy)]
pub struct Strands<'a, T> {
    /// The sums.
    pub sums: &'a [T],
    /// The place of each phase; phases may share one.
    pub slots: &'a [usize],
    /// Elements from one place to the next.
    pub step: usize,
    /// Elements from one output row's sums to the next one's.
    pub pitch: usize,
}

/// Neighbours in a row of output: element i of them is element `from + (phase + i) / phases` of
/// strand `(phase + i) % phases`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// Where the strands' part begins.
    pub from: usize,
    /// The strand of the first of them.
    pub phase: usize,
    /// Where the neighbours begin in a row of output.
    pub at: usize,
    /// How many they are.
    pub len: usize,
}

/// Raw arguments of a weaving kernel.
///
/// Memory: `slots` readable for `phases`, of which each run's `phase` is one; for each run, phase p
/// and row c < rows, `sums + slots[p] * step + c * pitch + from` readable for `(phase + len -
/// p).div_ceil(phases)` elements; `bias` for `rows`; `y + c * ldy + at` writable (and `residual`
/// there readable, unless null) for `len`.
pub(crate) struct WeaveArgs<'a, T> {
    pub(crate) sums: *const T,
    pub(crate) slots: &'a [usize],
    pub(crate) step: usize,
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) runs: &'a [Run],
    pub(crate) bias: *const T,
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
}

/// Raw arguments of a fetching kernel: addresses only.
pub(crate) struct FetchArgs<'a, T> {
    pub(crate) rows: usize,
    pub(crate) runs: &'a [Run],
    pub(crate) y: *const T,
    pub(crate) ldy: usize,
}

/// A strand that is yet to be summed: element i is the sum of `w[k] * x[koff[k] + i]`.
#[derive(Debug, Clone, Copy)]
pub struct Sum<'a, T> {
    /// One weight for each row.
    pub w: &'a [T],
    /// Where the rows begin.
    pub koff: RowOffsetsRef<'a>,
}

/// Vectors that [`WeaveKernel::sum`] reads at a time, at the most.
pub const MOST_VECTORS: usize = 8;

/// Phases that [`WeaveKernel::sum`] takes, at the most.
pub const MOST_SUMS: usize = 8;

/// Raw arguments of a kernel that sums and weaves one row of output.
///
/// Memory: `runs` and `sums` are of `phases` strands; for each run, vector of a strand, and k: `x +
/// koff[k] + from` readable for `1 + len.div_ceil(phases)` elements, rounded up to
/// [`MOST_VECTORS`]; `y + at` writable (and `residual` there readable, unless null) for `len`.
pub(crate) struct SumArgs<'a, T> {
    pub(crate) x: *const T,
    pub(crate) sums: &'a [Sum<'a, T>],
    pub(crate) runs: &'a [Run],
    pub(crate) bias: T,
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
    pub(crate) y: *mut T,
}

/// A row of a source whose phases are picked.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowPick {
    /// Where it begins in a plane of the source; none for a row that is all padding.
    pub src: Option<usize>,
    /// Where its phases go in a plane of the destination, each so much further on as its `dst`
    /// says.
    pub dst: usize,
}

/// A phase of the stride that is picked.
#[derive(Debug, Clone, Copy)]
pub struct PhasePick {
    /// Elements by which it is behind the first phase: fewer than the stride.
    pub offset: usize,
    /// How much further on than the row's place it goes.
    pub dst: usize,
}

/// What [`WeaveKernel::pick`] does: element `i` of a phase is element `first + offset + i * stride`
/// of a row, and zero where the row has none.
#[derive(Debug, Clone, Copy)]
pub struct Picks<'a> {
    /// Planes, all with the same rows; elements from one to the next in the source, and in the
    /// destination.
    pub planes: usize,
    /// See `planes`.
    pub src_pitch: usize,
    /// See `planes`.
    pub dst_pitch: usize,
    /// The rows.
    pub rows: &'a [RowPick],
    /// Elements of a row of the source.
    pub width: usize,
    /// Where in a row, or before it, the first phase begins.
    pub first: isize,
    /// Elements of a row from one element of a phase to the next.
    pub stride: usize,
    /// The phases, by ascending offsets.
    pub phases: &'a [PhasePick],
    /// Elements of a phase, padding included.
    pub len: usize,
    /// Elements from what is read to what is fetched meanwhile: from a plane to the next, mostly,
    /// or none.
    pub ahead: usize,
}

impl Picks<'_> {
    /// Elements that the source, and the destination, must have; none if that does not fit the
    /// address space.
    fn needed(&self) -> Option<(usize, usize)> {
        let last = self.planes.checked_sub(1)?;
        let (mut read, mut written) = (0, 0);
        for row in self.rows {
            if let Some(src) = row.src {
                read = src.checked_add(self.width)?.max(read);
            }
            written = row.dst.max(written);
        }
        let read = if read == 0 { 0 } else { last.checked_mul(self.src_pitch)?.checked_add(read)? };
        let furthest = self.phases.iter().map(|phase| phase.dst).max()?;
        let written = written.checked_add(furthest)?.checked_add(self.len)?;
        Some((read, last.checked_mul(self.dst_pitch)?.checked_add(written)?))
    }

    /// Whether positions in rows, those of the stride's elements behind the last one included, fit
    /// the address space.
    fn is_bounded(&self) -> bool {
        let span = self.len.checked_mul(self.stride).and_then(|span| isize::try_from(span).ok());
        let end = span.and_then(|span| self.first.checked_add(span));
        end.is_some_and(|end| end.checked_add(Self::SLACK).is_some()) && self.first.checked_sub(Self::SLACK).is_some()
    }

    /// More than the elements of the vectors that a block of a phase is read by.
    const SLACK: isize = 1024;
}

/// Raw arguments of a picking kernel.
///
/// Memory: for each plane p and row that has one, `src + p * src_pitch + row.src` readable for
/// `width` elements (nothing else is read), and for each row and phase, `dst + p * dst_pitch +
/// row.dst + phase.dst` writable for `len`. Offsets of phases ascend, and are less than the stride;
/// `first + len * stride` and some vectors more do not overflow.
pub(crate) struct PickArgs<'a, T> {
    pub(crate) src: *const T,
    pub(crate) dst: *mut T,
    pub(crate) picks: Picks<'a>,
}

/// A kernel that weaves. A reference to one is the proof that it may be called.
pub struct WeaveKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) isa: Isa,
    pub(crate) f: unsafe fn(&WeaveArgs<'_, T>),
    pub(crate) lanes: usize,
    pub(crate) sum: unsafe fn(&SumArgs<'_, T>),
    pub(crate) fetch: unsafe fn(&FetchArgs<'_, T>),
    pub(crate) pick: unsafe fn(&PickArgs<'_, T>),
}

impl<T: 'static> WeaveKernel<T> {
    /// The same to be read, and not to be called.
    pub(crate) const fn description(&self) -> Self {
        Self { f: |_| called(), sum: |_| called(), fetch: |_| called(), pick: |_| called(), ..*self }
    }
}

name_and_isa!(WeaveKernel, "Name, as `<dtype>_weave`.");

impl<T: Real> WeaveKernel<T> {
    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Copies the phases of a stride, each to rows of its own, between zeros: as [`Picks`] says.
    ///
    /// # Panics
    /// If a slice is too short, the stride is 0, or the phases are not in order.
    pub fn pick(&self, src: &[T], picks: &Picks<'_>, dst: &mut [T]) {
        if picks.planes == 0 || picks.rows.is_empty() || picks.phases.is_empty() || picks.len == 0 {
            return;
        }
        assert!(picks.stride > 0, "the stride is 0");
        assert!(picks.phases.is_sorted_by(|a, b| a.offset < b.offset), "the phases are not in order");
        assert!(picks.phases.iter().all(|phase| phase.offset < picks.stride), "a phase is not one of the stride");
        assert!(picks.is_bounded(), "the rows are too long");
        let fits = picks.needed().is_some_and(|(read, written)| read <= src.len() && written <= dst.len());
        assert!(fits, "a row is outside of the source or the destination");
        // SAFETY: the assertions above cover the memory that PickArgs asks for; a kernel is only
        // handed out where the CPU has its ISA.
        unsafe { (self.pick)(&PickArgs { src: src.as_ptr(), dst: dst.as_mut_ptr(), picks: *picks }) };
    }

    /// Asks for what [`run`](Self::run) will write in the L2 cache; where the ISA cannot, nothing.
    pub fn fetch(&self, runs: &[Run], rows: usize, y: &Dest<'_, T>, ldy: usize) {
        // SAFETY: no memory is touched; a kernel is only handed out where the CPU has its ISA.
        unsafe { (self.fetch)(&FetchArgs { rows, runs, y: y.as_mut_ptr(), ldy }) };
    }

    /// `y[at + i] = clamp(strand + bias + residual)` for every run, of strands that are summed on
    /// the way; `epilogue` has one bias. Whole vectors of `x` are read: up to [`MOST_VECTORS`]
    /// behind what the runs need.
    ///
    /// # Panics
    /// If a slice is too short, a run begins with a strand that is not there, or the phases are not
    /// 1, 2, 4 or 8.
    pub fn sum(&self, x: &[T], sums: &[Sum<'_, T>], runs: &[Run], epilogue: &Epilogue<'_, T>, y: &mut Dest<'_, T>) {
        let phases = sums.len();
        assert!(phases <= MOST_SUMS && phases.is_power_of_two(), "there is no kernel for so many phases");
        let (mut read, mut written) = (0, 0);
        for run in runs {
            let most = MOST_VECTORS * self.lanes;
            assert!(run.phase < phases, "a run begins with a strand that is not there");
            read = read.max(run.from.saturating_add((run.len / phases).saturating_add(most + 1)));
            written = written.max(run.at.saturating_add(run.len));
        }
        for sum in sums {
            assert!(sum.w.len() >= sum.koff.len(), "one weight a row");
            assert!(sum.koff.is_empty() || read.saturating_add(sum.koff.max()) <= x.len(), "the rows are too short");
        }
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let args = SumArgs {
            x: x.as_ptr(),
            sums,
            runs,
            bias: epilogue.bias[0],
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
            y: y.as_mut_ptr(),
        };
        // SAFETY: the assertions cover the memory that SumArgs asks for; Dest grants the writes; a
        // kernel is only handed out where the CPU has its ISA.
        unsafe { (self.sum)(&args) };
    }

    /// `y[c * ldy + at + i] = clamp(strand + bias[c] + residual)` for every row c of `bias` and
    /// every run.
    ///
    /// # Panics
    /// If a slice is too short, there is no phase, or a run begins with a strand that is not there.
    pub fn run(
        &self,
        strands: &Strands<'_, T>,
        runs: &[Run],
        epilogue: &Epilogue<'_, T>,
        y: &mut Dest<'_, T>,
        ldy: usize,
    ) {
        let (rows, phases) = (epilogue.bias.len(), strands.slots.len());
        assert!(phases > 0, "there is no phase");
        let Some(last) = rows.checked_sub(1) else { return };
        let slot = strands.slots.iter().copied().max().unwrap_or(0);
        let before = slot.saturating_mul(strands.step).saturating_add(last.saturating_mul(strands.pitch));
        let (mut read, mut written) = (0, 0);
        for run in runs {
            assert!(run.phase < phases, "a run begins with a strand that is not there");
            read = read.max(run.from.saturating_add(run.phase.saturating_add(run.len).div_ceil(phases)));
            written = written.max(run.at.saturating_add(run.len));
        }
        let written = last.saturating_mul(ldy).saturating_add(written);
        assert!(before.saturating_add(read) <= strands.sums.len(), "the strands are too short");
        assert!(written <= y.len(), "the destination is too short");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let args = WeaveArgs {
            sums: strands.sums.as_ptr(),
            slots: strands.slots,
            step: strands.step,
            pitch: strands.pitch,
            rows,
            runs,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
            y: y.as_mut_ptr(),
            ldy,
        };
        // SAFETY: the assertions cover the memory that WeaveArgs asks for, the largest slot, row
        // and run of all; Dest grants the writes; a kernel is only handed out where the CPU has its
        // ISA.
        unsafe { (self.f)(&args) };
    }
}

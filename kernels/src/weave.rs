//! Weaving: rows of sums, one a phase, become one row of output, with the epilogue. And its inverse: one phase of a row is picked.

use crate::ukernel::described;
use crate::{Dest, Epilogue, Isa, Real, RowOffsetsRef};

/// The sums of several rows of output: output row c's phase p begins at `sums[slots[p] * step + c * pitch]`.
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

/// Neighbours in a row of output: element i of them is element `from + (phase + i) / phases` of strand `(phase + i) % phases`.
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
/// Memory: `slots` readable for `phases`, of which each run's `phase` is one; for each run, phase p and row c < rows, `sums + slots[p] * step + c * pitch +
/// from` readable for `(phase + len - p).div_ceil(phases)` elements; `bias` for `rows`; `y + c * ldy + at` writable (and `residual` there readable, unless null) for `len`.
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
/// Memory: `runs` and `sums` are of `phases` strands; for each run, vector of a strand, and k: `x + koff[k] + from` readable for `1 + len.div_ceil(phases)`
/// elements, rounded up to [`MOST_VECTORS`]; `y + at` writable (and `residual` there readable, unless null) for `len`.
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

/// A row that [`WeaveKernel::pick`] makes: elements of one phase of a row, between zeros.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowPick {
    /// Where its first element that is not padding is, in the source.
    pub src: usize,
    /// Where the row begins, in the destination.
    pub dst: usize,
    /// Elements of the row.
    pub len: usize,
    /// The first element that is not padding, and one past the last: padding is zero.
    pub live: [usize; 2],
}

/// Raw arguments of a picking kernel.
///
/// Memory: for each row, `src + row.src + i * stride` readable for i below `live[1] - live[0]` (nothing else is read but what lies between them), and
/// `dst + row.dst` writable for `len`; `live[0] <= live[1] <= len`.
pub(crate) struct PickArgs<'a, T> {
    pub(crate) src: *const T,
    pub(crate) stride: usize,
    /// From an element of the source to the one that is fetched with it: any number.
    pub(crate) next: usize,
    pub(crate) rows: &'a [RowPick],
    pub(crate) dst: *mut T,
}

/// A kernel that weaves. A reference to one is the proof that the CPU can run it.
pub struct WeaveKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) isa: Isa,
    pub(crate) f: unsafe fn(&WeaveArgs<'_, T>),
    pub(crate) lanes: usize,
    pub(crate) sum: unsafe fn(&SumArgs<'_, T>),
    pub(crate) fetch: unsafe fn(&FetchArgs<'_, T>),
    pub(crate) pick: unsafe fn(&PickArgs<'_, T>),
}

described!(WeaveKernel, "Name, as `<dtype>_weave`.");

impl<T: Real> WeaveKernel<T> {
    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Element i of each row is 0 where it is padding, and `src[row.src + (i - row.live[0]) * stride]` elsewhere. Meanwhile
    /// the elements `next` further on are fetched into the L2 cache: those of the next call.
    ///
    /// # Panics
    /// If a slice is too short, `stride` is 0, or a row's live part is not inside it.
    pub fn pick(&self, src: &[T], stride: usize, next: usize, rows: &[RowPick], dst: &mut [T]) {
        assert!(stride > 0, "the stride is 0");
        for row in rows {
            let [from, to] = row.live;
            assert!(from <= to && to <= row.len, "the live part is not inside the row");
            assert!(row.dst <= dst.len() && row.len <= dst.len() - row.dst, "the destination is too short");
            let last = (to - from).saturating_sub(1).saturating_mul(stride).saturating_add(row.src);
            assert!(from == to || last < src.len(), "the source is too short");
        }
        // SAFETY: the assertions above cover the memory that PickArgs asks for; a kernel is only handed out where the CPU has its ISA.
        unsafe { (self.pick)(&PickArgs { src: src.as_ptr(), stride, next, rows, dst: dst.as_mut_ptr() }) };
    }

    /// Asks for what [`run`](Self::run) will write in the L2 cache; where the ISA cannot, nothing.
    pub fn fetch(&self, runs: &[Run], rows: usize, y: &Dest<'_, T>, ldy: usize) {
        // SAFETY: no memory is touched; a kernel is only handed out where the CPU has its ISA.
        unsafe { (self.fetch)(&FetchArgs { rows, runs, y: y.as_mut_ptr(), ldy }) };
    }

    /// `y[at + i] = clamp(strand + bias + residual)` for every run, of strands that are summed on the way; `epilogue` has one bias. Whole vectors of
    /// `x` are read: up to [`MOST_VECTORS`] behind what the runs need.
    ///
    /// # Panics
    /// If a slice is too short, a run begins with a strand that is not there, or the phases are not 1, 2, 4 or 8.
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
        // SAFETY: the assertions cover the memory that SumArgs asks for; Dest grants the writes; a kernel is only handed out where the CPU has
        // its ISA.
        unsafe { (self.sum)(&args) };
    }

    /// `y[c * ldy + at + i] = clamp(strand + bias[c] + residual)` for every row c of `bias` and every run.
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
        // SAFETY: the assertions cover the memory that WeaveArgs asks for, the largest slot, row and run of all; Dest grants the writes; a
        // kernel is only handed out where the CPU has its ISA.
        unsafe { (self.f)(&args) };
    }
}

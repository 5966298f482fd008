//! Interleaves rows of sums, one for each phase, into one row of output, with the epilogue; and the
//! inverse.

use crate::dest::end;
use crate::isa::Code;
use crate::simd::prefetch;
use crate::ukernel::{EpilogueArgs, Prefetch, common_getters};
use crate::{Dest, Epilogue, Real, RowOffsetsRef};

/// The sums of several rows of output. The sums of phase p of output row c (a phase row) begin at
/// `sums[slots[p] * step + c * pitch]`.
#[derive(Debug, Clone, Copy)]
pub struct PhaseRows<'a, T> {
    /// The sums.
    pub sums: &'a [T],
    /// The place of each phase. Phases may share one.
    pub slots: &'a [usize],
    /// Elements from one place to the next.
    pub step: usize,
    /// Elements from one output row's sums to those of the next.
    pub pitch: usize,
}

/// A run of neighbours in a row of output. Neighbour i is element `from + (phase + i) / phases`
/// of phase row `(phase + i) % phases`.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputRun {
    /// Where the run begins in its phase rows.
    pub from: usize,
    /// The phase row of the first neighbour.
    pub phase: usize,
    /// Where the run begins in a row of output.
    pub at: usize,
    /// Number of neighbours.
    pub len: usize,
}

/// Raw arguments of an interleaving kernel.
///
/// Memory: there is a slot for each of the `phases`, and the `phase` of each run is less than
/// `phases`. For each run, phase p and row c < `rows`,
/// `sums + slots[p] * step + c * pitch + from` is readable for
/// `(phase + len - p).div_ceil(phases)` elements. `bias` is readable for `rows` elements.
/// `y + c * ldy + at` is writable for `len` elements, and `residual` is readable at the same
/// elements unless it is null.
pub(crate) struct InterleaveArgs<'a, T> {
    pub(crate) sums: *const T,
    pub(crate) slots: &'a [usize],
    pub(crate) step: usize,
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) runs: &'a [OutputRun],
    pub(crate) epilogue: EpilogueArgs<T>,
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
}

/// A phase row that is still to be summed: element i is the sum of `w[k] * x[koff[k] + i]`.
#[derive(Debug, Clone, Copy)]
pub struct Sum<'a, T> {
    /// The weights, one for each row.
    pub w: &'a [T],
    /// Where the rows begin.
    pub koff: RowOffsetsRef<'a>,
}

/// Vectors of a phase row that [`InterleaveKernel::sum`] reads at a time, at most. Their 8 sums hide the
/// latency of multiply-adds.
pub const MOST_VECTORS: usize = 8;

/// Phases that [`InterleaveKernel::sum`] keeps in registers, at most.
pub const MOST_SUMS: usize = 8;

/// Raw arguments of a kernel that sums and interleaves one row of output.
///
/// Memory: there are 1, 2, 4 or 8 `sums`, the phases, and the `phase` of each run is less than
/// their number. For each run and each k of each sum, `x + koff[k] + from` is readable for
/// `1 + len.div_ceil(phases)` elements, rounded up to a multiple of [`MOST_VECTORS`] vectors.
/// `bias` is readable for one element. `y + at` is writable for `len` elements, and `residual` is
/// readable at the same elements unless it is null.
pub(crate) struct SumArgs<'a, T> {
    pub(crate) x: *const T,
    pub(crate) sums: &'a [Sum<'a, T>],
    pub(crate) runs: &'a [OutputRun],
    pub(crate) epilogue: EpilogueArgs<T>,
    pub(crate) y: *mut T,
}

/// A row of the source, whose phases are copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceRow {
    /// Where the row begins in a plane of the source; `None` for a row that is all padding.
    pub src: Option<usize>,
    /// Where the row's phases go in a plane of the destination. Each goes to `dst` of its [`PhaseCopy`]
    /// after that.
    pub dst: usize,
}

/// A phase of the stride that is copied.
#[derive(Debug, Clone, Copy)]
pub struct PhaseCopy {
    /// Elements from the first phase to this one: fewer than the stride.
    pub offset: usize,
    /// Elements from the row's place in the destination to this phase's.
    pub dst: usize,
}

/// What [`InterleaveKernel::deinterleave`] does. Element `i` of a phase is element
/// `first + offset + i * stride` of a row, and zero if the row has no such element.
#[derive(Debug, Clone, Copy)]
pub struct Deinterleave<'a> {
    /// Number of planes. All have the same rows.
    pub planes: usize,
    /// Elements from one plane of the source to the next.
    pub src_pitch: usize,
    /// Elements from one plane of the destination to the next.
    pub dst_pitch: usize,
    /// The rows.
    pub rows: &'a [SourceRow],
    /// Elements of a row of the source.
    pub width: usize,
    /// Where the first phase begins in a row. It may lie before the row.
    pub first: isize,
    /// Elements of a row from one element of a phase to the next.
    pub stride: usize,
    /// The phases, by ascending offsets.
    pub phases: &'a [PhaseCopy],
    /// Elements of a phase, padding included.
    pub len: usize,
    /// The distance of what is prefetched from what is read: usually that of planes, or 0.
    pub prefetch_distance: usize,
}

impl Deinterleave<'_> {
    /// Elements that positions may be beyond the ends of a row, at most: more than the vectors of a
    /// block of a phase reach.
    pub const BEYOND: usize = 1024;

    /// The least lengths of the source and the destination. `None` if they exceed the address space.
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

    /// Whether all positions in rows, and their distances to the row's end, fit the address space,
    /// including those of the vectors that reach behind the last element.
    fn is_bounded(&self) -> bool {
        let span = self.len.checked_mul(self.stride).and_then(|span| isize::try_from(span).ok());
        let end = span.and_then(|span| self.first.checked_add(span)?.checked_add(Self::BEYOND as isize));
        let rest = isize::try_from(self.width).ok().and_then(|width| width.checked_sub(self.first));
        end.is_some() && rest.is_some() && self.first.checked_sub(Self::BEYOND as isize).is_some()
    }
}

/// Raw arguments of a deinterleaving kernel.
///
/// Memory: for each plane p and each row with a source, `src + p * src_pitch + row.src` is
/// readable for `width` elements; nothing else is read. For each row and phase,
/// `dst + p * dst_pitch + row.dst + phase.dst` is writable for `len` elements. The offsets of
/// phases ascend, and are less than the stride. `first + len * stride`, and some vectors more, do
/// not overflow.
pub(crate) struct DeinterleaveArgs<'a, T> {
    pub(crate) src: *const T,
    pub(crate) dst: *mut T,
    pub(crate) copy: Deinterleave<'a>,
}

/// The functions of the interleaving kernels.
#[derive(Clone, Copy)]
pub(crate) struct InterleaveCode<T> {
    pub(crate) interleave: unsafe fn(&InterleaveArgs<'_, T>),
    pub(crate) sum: unsafe fn(&SumArgs<'_, T>),
    pub(crate) deinterleave: unsafe fn(&DeinterleaveArgs<'_, T>),
}

/// The interleaving kernels of one ISA and type.
pub struct InterleaveKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) lanes: usize,
    pub(crate) code: Code<InterleaveCode<T>>,
}

/// The end of what runs write in `rows` rows, `ldy` apart.
fn end_of_runs(runs: &[OutputRun], rows: usize, ldy: usize) -> usize {
    end(rows, ldy, runs.iter().map(|run| run.at.saturating_add(run.len)).max().unwrap_or(0))
}

common_getters!(InterleaveKernel, "Name, as `<dtype>_interleave`.");

impl<T: Real> InterleaveKernel<T> {
    /// Copies the phases of a stride, each to its own rows, with zeros for elements that a row lacks:
    /// see [`Deinterleave`].
    ///
    /// # Panics
    /// If a slice is too short, the stride is 0, the phases are not in order, or planes of the
    /// destination begin at the same element.
    pub fn deinterleave(&self, src: &[T], copy: &Deinterleave<'_>, dst: &mut [T]) {
        if copy.planes == 0 || copy.rows.is_empty() || copy.phases.is_empty() || copy.len == 0 {
            return;
        }
        assert!(copy.stride > 0, "the stride is 0");
        assert!(copy.phases.is_sorted_by(|a, b| a.offset < b.offset), "the phases are not in order");
        assert!(copy.phases.iter().all(|phase| phase.offset < copy.stride), "a phase is not one of the stride");
        assert!(copy.is_bounded(), "the rows are too long");
        // Bounds the number of planes by the destination.
        assert!(copy.planes == 1 || copy.dst_pitch > 0, "the planes of the destination are one");
        let fits = copy.needed().is_some_and(|(read, written)| read <= src.len() && written <= dst.len());
        assert!(fits, "a row is outside of the source or the destination");
        let args = DeinterleaveArgs { src: src.as_ptr(), dst: dst.as_mut_ptr(), copy: *copy };
        // SAFETY: the assertions above cover the memory that DeinterleaveArgs asks for.
        unsafe { (self.code.on_this_cpu().deinterleave)(&args) };
    }

    /// Prefetches what [`run`](Self::run) will write into the L2 cache, if the architecture has such an
    /// instruction.
    ///
    /// # Panics
    /// If the destination is too short.
    pub fn prefetch(&self, runs: &[OutputRun], rows: usize, y: &Dest<'_, T>, ldy: usize) {
        let rows = if ldy == 0 { rows.min(1) } else { rows };
        // Nothing is accessed, but a loop over more than there is could take years.
        assert!(end_of_runs(runs, rows, ldy) <= y.len(), "the destination is too short");
        for (c, run) in (0..rows).flat_map(|c| runs.iter().map(move |run| (c, run))) {
            // Any address may be prefetched.
            let y = y.as_mut_ptr().wrapping_add(c * ldy + run.at);
            for line in 0..(run.len * size_of::<T>()).div_ceil(Prefetch::LINE) {
                prefetch(y.wrapping_byte_add(line * Prefetch::LINE));
            }
        }
    }

    /// Computes `y[at + i] = clamp(sum + bias + residual)` for each run, and the phase rows on the way.
    /// `epilogue` has one bias. Reads whole vectors of `x`: up to [`MOST_VECTORS`] vectors behind what
    /// the runs need.
    ///
    /// # Panics
    /// If a slice is too short, a run begins with a phase row that does not exist, or there are not
    /// 1, 2, 4 or 8 phases.
    pub fn sum(
        &self,
        x: &[T],
        sums: &[Sum<'_, T>],
        runs: &[OutputRun],
        epilogue: &Epilogue<'_, T>,
        y: &mut Dest<'_, T>,
    ) {
        let phases = sums.len();
        assert!(phases <= MOST_SUMS && phases.is_power_of_two(), "there is no kernel for so many phases");
        let (mut read, written) = (0, end_of_runs(runs, 1, 0));
        for run in runs {
            let most = MOST_VECTORS * self.lanes;
            assert!(run.phase < phases, "a run begins with a phase that is not there");
            read = read.max(run.from.saturating_add((run.len / phases).saturating_add(most + 1)));
        }
        // Sums without rows read nothing, but their positions are computed.
        assert!(read < usize::MAX, "a run begins beyond the address space");
        for sum in sums {
            assert!(sum.w.len() >= sum.koff.len(), "one weight a row");
            assert!(sum.koff.is_empty() || read.saturating_add(sum.koff.max) <= x.len(), "the rows are too short");
        }
        let epilogue = epilogue.checked(y, written, 1);
        let args = SumArgs { x: x.as_ptr(), sums, runs, epilogue, y: y.as_mut_ptr() };
        // SAFETY: the assertions cover the memory that SumArgs asks for. Dest grants the writes.
        unsafe { (self.code.on_this_cpu().sum)(&args) };
    }

    /// Computes `y[c * ldy + at + i] = clamp(sum + bias[c] + residual)` for each row c of `bias` and
    /// each run.
    ///
    /// # Panics
    /// If a slice is too short, there is no phase, or a run begins with a phase row that does not
    /// exist.
    pub fn run(
        &self,
        phase_rows: &PhaseRows<'_, T>,
        runs: &[OutputRun],
        epilogue: &Epilogue<'_, T>,
        y: &mut Dest<'_, T>,
        ldy: usize,
    ) {
        let (rows, phases) = (epilogue.bias.len(), phase_rows.slots.len());
        assert!(phases > 0, "there is no phase");
        if rows == 0 {
            return;
        }
        let written = end_of_runs(runs, rows, ldy);
        let slot = phase_rows.slots.iter().copied().max().unwrap_or(0);
        let before = end(rows, phase_rows.pitch, slot.saturating_mul(phase_rows.step));
        let mut read = 0;
        for run in runs {
            assert!(run.phase < phases, "a run begins with a phase that is not there");
            read = read.max(run.from.saturating_add(run.phase.saturating_add(run.len).div_ceil(phases)));
        }
        assert!(before.saturating_add(read) <= phase_rows.sums.len(), "the phase rows are too short");
        let args = InterleaveArgs {
            sums: phase_rows.sums.as_ptr(),
            slots: phase_rows.slots,
            step: phase_rows.step,
            pitch: phase_rows.pitch,
            rows,
            runs,
            epilogue: epilogue.checked(y, written, rows),
            y: y.as_mut_ptr(),
            ldy,
        };
        // SAFETY: the assertions cover the memory that InterleaveArgs asks for, for the largest slot,
        // row and run. Dest grants the writes.
        unsafe { (self.code.on_this_cpu().interleave)(&args) };
    }
}

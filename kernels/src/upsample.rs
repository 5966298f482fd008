//! Depthwise transposed convolution of stride 2: descriptor, raw arguments, and the safe call.

use crate::isa::called;
use crate::simd::LEAST_ROW;
use crate::ukernel::{Dest, Epilogue, name_and_isa};
use crate::{Isa, Real};

/// Raw arguments of a kernel.
///
/// Memory: `bias` readable for `planes`; for each plane p, `w + p * w_plane` readable for all taps,
/// `x + p * x_plane` for `height` rows of `width >= LEAST_ROW` elements, one behind the other; `y +
/// p * y_plane` writable (and `residual` there readable, unless null) for `rows > 0` rows of
/// `out_width` elements. No position of a row, and of a row of the output before it is cropped,
/// overflows. Of the pairs of vectors of the output's rows, all but the first one and the last two
/// see nothing beside a row of X.
pub(crate) struct UpsampleArgs<T> {
    pub(crate) planes: usize,
    pub(crate) x: *const T,
    pub(crate) x_plane: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Half of the padding before a row, rounded down: the position in X of output 0.
    pub(crate) shift: isize,
    pub(crate) w: *const T,
    pub(crate) w_plane: usize,
    /// The first row of the output, counted as if none were cropped.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) out_width: usize,
    pub(crate) y: *mut T,
    pub(crate) y_plane: usize,
    pub(crate) bias: *const T,
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
}

/// What a call reads.
#[derive(Debug, Clone, Copy)]
pub struct UpsampleInput<'a, T> {
    /// Channels: each has a plane of X, a kernel, and a plane of the output.
    pub planes: usize,
    /// Planes of `height` rows, one behind the other.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next.
    pub x_plane: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Elements of a row.
    pub width: usize,
    /// The kernels, row by row, one behind the other: finite weights, as products with what is
    /// beside X are not left out.
    pub w: &'a [T],
}

/// The part of the output that a call makes: whole rows.
#[derive(Debug, Clone, Copy)]
pub struct UpsampleOutput {
    /// Elements of a row.
    pub width: usize,
    /// Elements that are cropped before a row.
    pub cropped: usize,
    /// The first row, counted from the one that the first tap of X's first row adds to.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// Elements from one plane to the next.
    pub plane: usize,
}

/// A kernel for one kernel size. A reference to one is the proof that it may be called.
pub struct UpsampleKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) isa: Isa,
    pub(crate) lanes: usize,
    pub(crate) stride: usize,
    pub(crate) kernel: (usize, usize),
    /// For an even, and for an odd number of elements cropped before a row.
    pub(crate) f: [unsafe fn(&UpsampleArgs<T>); 2],
}

impl<T: 'static> UpsampleKernel<T> {
    /// The same to be read, and not to be called.
    pub(crate) const fn description(&self) -> Self {
        Self { f: [|_| called(), |_| called()], ..*self }
    }
}

name_and_isa!(UpsampleKernel, "Name, as `<dtype>_upsample_<taps down>x<taps along>`.");

impl<T: Real> UpsampleKernel<T> {
    /// Rows, and elements of rows, are fewer: of X, of the output, and of what is cropped before
    /// it.
    pub const MOST_PLACES: usize = 1 << (usize::BITS / 2 - 2);
    /// Elements of a row of X, at the least.
    pub const LEAST_WIDTH: usize = LEAST_ROW;

    /// Elements of a vector.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The stride from row to row; along rows it is 2.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Taps down, and taps along rows.
    #[must_use]
    pub fn kernel(&self) -> (usize, usize) {
        self.kernel
    }

    /// For each plane, some rows of the output: `+ bias + residual`, clamped, stored. One bias a
    /// plane; the destination begins with the first of the rows.
    ///
    /// # Panics
    /// If a slice is too short, a size is beyond [`MOST_PLACES`](Self::MOST_PLACES), or rows of X
    /// are shorter than [`LEAST_WIDTH`](Self::LEAST_WIDTH).
    pub fn run(
        &self,
        input: &UpsampleInput<'_, T>,
        y: &mut Dest<'_, T>,
        output: &UpsampleOutput,
        epilogue: &Epilogue<'_, T>,
    ) {
        let &UpsampleInput { planes, x, x_plane, height, width, w } = input;
        let Some(last) = planes.checked_sub(1) else { return };
        if output.rows == 0 || output.width == 0 {
            return;
        }
        let sizes = [height, width, output.width, output.cropped, output.row, output.rows];
        assert!(sizes.iter().all(|size| *size < Self::MOST_PLACES), "a size is too large");
        assert!(width >= Self::LEAST_WIDTH, "the rows are too short");
        // The last pair of vectors but two ends inside a row, with the largest shift, which is 1.
        let pairs = output.width.div_ceil(2 * self.lanes);
        let is_within = pairs <= 2 || (pairs - 2) * self.lanes + output.cropped / 2 < width;
        assert!(is_within, "more output than X reaches");
        let end = |plane: usize, len: usize| last.saturating_mul(plane).saturating_add(len);
        let taps = self.kernel.0 * self.kernel.1;
        let written = end(output.plane, output.rows * output.width);
        assert!(end(x_plane, height * width) <= x.len(), "the input is too short");
        assert!(end(taps, taps) <= w.len(), "too few weights");
        assert!(written <= y.len(), "the destination is too short");
        assert!(planes <= epilogue.bias.len(), "one bias a plane");
        assert!(epilogue.residual.is_none_or(|r| written <= r.len()), "the residual is too short");
        let args = UpsampleArgs {
            planes,
            x: x.as_ptr(),
            x_plane,
            height,
            width,
            shift: (output.cropped / 2) as isize,
            w: w.as_ptr(),
            w_plane: taps,
            row: output.row,
            rows: output.rows,
            out_width: output.width,
            y: y.as_mut_ptr(),
            y_plane: output.plane,
            bias: epilogue.bias.as_ptr(),
            residual: epilogue.residual.map_or(core::ptr::null(), <[T]>::as_ptr),
            lo: epilogue.lo,
            hi: epilogue.hi,
        };
        // SAFETY: the assertions cover the memory that UpsampleArgs asks for; Dest grants the
        // writes; a kernel is only handed out where the CPU has its ISA.
        unsafe { (self.f[output.cropped % 2])(&args) };
    }
}

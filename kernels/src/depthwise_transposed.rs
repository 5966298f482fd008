//! The kernels of depthwise ConvTranspose with stride 2: descriptor, raw arguments, and safe call.

use crate::Real;
use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::simd::LEAST_ROW;
use crate::ukernel::{Epilogue, EpilogueArgs, common_getters};

/// Raw arguments of a kernel.
///
/// Memory: `bias` is readable for as many elements as there are planes, and `w` for all taps of each. For
/// each plane p, `x + p * x_plane` is readable for `height` rows of `width >= LEAST_ROW` elements.
/// `y + p * plane` is writable for `rows > 0` rows of `width` elements of the output, and `residual` is
/// readable at the same elements unless it is null.
///
/// Sizes: no position of a row of X overflows, and no position of a row of the output before it
/// is cropped. A row of the output is made of pairs of vectors. Only the first pair and the last
/// two pairs see positions outside of a row of X.
pub(crate) struct DepthwiseTransposedArgs<'a, T> {
    pub(crate) input: DepthwiseTransposedInput<'a, T>,
    pub(crate) output: DepthwiseTransposedOutput,
    pub(crate) y: *mut T,
    pub(crate) epilogue: EpilogueArgs<T>,
}

impl<T> DepthwiseTransposedArgs<'_, T> {
    /// Half of the elements cropped before a row, rounded down, which is the position in X of output 0.
    #[inline(always)]
    pub(crate) fn shift(&self) -> isize {
        (self.output.cropped / 2) as isize
    }
}

/// What a call reads.
#[derive(Debug, Clone, Copy)]
pub struct DepthwiseTransposedInput<'a, T> {
    /// Number of channels. Each has a plane of X, a kernel, and a plane of the output.
    pub planes: usize,
    /// The planes of X, `height` rows each, one behind the other.
    pub x: &'a [T],
    /// Elements of `x` from one plane to the next.
    pub x_plane: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Elements of a row.
    pub width: usize,
    /// The kernels, row by row, one behind the other. Weights must be finite, because they are
    /// also multiplied by zeros for positions outside of X.
    pub w: &'a [T],
}

/// The part of the output that a call computes: whole rows.
#[derive(Debug, Clone, Copy)]
pub struct DepthwiseTransposedOutput {
    /// Elements of a row.
    pub width: usize,
    /// Elements that are cropped before a row.
    pub cropped: usize,
    /// The first row, relative to the row that the first tap of X's first row adds to.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Elements from one plane to the next.
    pub plane: usize,
}

type DepthwiseTransposedFn<T> = unsafe fn(&DepthwiseTransposedArgs<'_, T>);

/// A kernel for one kernel size.
pub struct DepthwiseTransposedKernel<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) lanes: usize,
    pub(crate) stride: usize,
    pub(crate) kernel: (usize, usize),
    /// The functions for an even and for an odd number of elements cropped before a row.
    pub(crate) code: Code<[DepthwiseTransposedFn<T>; 2]>,
}

common_getters!(DepthwiseTransposedKernel, "Name, as `<dtype>_dw_transposed_<taps down>x<taps along>`.");

impl<T: Real> DepthwiseTransposedKernel<T> {
    /// Rows, and elements of a row, are fewer than this: of X, of the output, and cropped before the
    /// output. The product of two of them fits `isize`, so that no position overflows.
    pub const MOST_PLACES: usize = 1 << (usize::BITS / 2 - 2);
    /// The least elements of a row of X.
    pub const LEAST_WIDTH: usize = LEAST_ROW;

    /// The stride from row to row. Along rows it is always 2.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Taps down the columns, and taps along the rows.
    #[must_use]
    pub fn kernel(&self) -> (usize, usize) {
        self.kernel
    }

    /// Computes some rows of the output for each plane, adds bias and residual, clamps and stores
    /// them. There is one bias for each plane. The destination begins with the first of the rows.
    ///
    /// # Panics
    /// If a slice is too short, a size is beyond [`MOST_PLACES`](Self::MOST_PLACES), or rows of X
    /// are shorter than [`LEAST_WIDTH`](Self::LEAST_WIDTH).
    pub fn run(
        &self,
        input: &DepthwiseTransposedInput<'_, T>,
        y: &mut Dest<'_, T>,
        output: &DepthwiseTransposedOutput,
        epilogue: &Epilogue<'_, T>,
    ) {
        let &DepthwiseTransposedInput { planes, x, x_plane, height, width, w } = input;
        if planes == 0 || output.rows == 0 || output.width == 0 {
            return;
        }
        let sizes = [height, width, output.width, output.cropped, output.row, output.rows];
        assert!(sizes.iter().all(|size| *size < Self::MOST_PLACES), "a size is too large");
        assert!(width >= Self::LEAST_WIDTH, "the rows are too short");
        // All pairs of vectors but the last two must end inside a row of X, even with the largest
        // shift, which is 1.
        let pairs = output.width.div_ceil(2 * self.lanes);
        let is_within = pairs <= 2 || (pairs - 2) * self.lanes + output.cropped / 2 < width;
        assert!(is_within, "more output than X reaches");
        let taps = self.kernel.0 * self.kernel.1;
        let written = end(planes, output.plane, output.rows * output.width);
        assert!(end(planes, x_plane, height * width) <= x.len(), "the input is too short");
        assert!(end(planes, taps, taps) <= w.len(), "too few weights");
        let epilogue = epilogue.checked(y, written, planes);
        let args = DepthwiseTransposedArgs { input: *input, output: *output, y: y.as_mut_ptr(), epilogue };
        // SAFETY: the assertions cover the memory that DepthwiseTransposedArgs asks for. Dest grants the
        // writes.
        unsafe { (self.code.on_this_cpu()[output.cropped % 2])(&args) };
    }
}

//! Layers with sizes at which plans and kernels are most likely to be wrong. Tests run them on
//! every path, and `plans` lists them.

use convoke::{AutoPad, Conv, ConvTranspose, Operator};

/// An operator on inputs of one shape.
#[derive(Debug, Clone)]
pub struct HardLayer {
    /// The operator.
    pub operator: Operator,
    /// Shape of X: `(N, C, spatial...)`.
    pub x_shape: Vec<usize>,
}

impl HardLayer {
    fn new(operator: impl Into<Operator>, x_shape: impl Into<Vec<usize>>) -> Self {
        Self { operator: operator.into(), x_shape: x_shape.into() }
    }
}

/// A Conv with a square input and a square kernel.
fn square(m: usize, c: usize, size: usize, kernel: usize) -> (Conv, [usize; 4]) {
    (Conv::new([m, c, kernel, kernel]), [1, c, size, size])
}

/// The layers: sizes at the limits of blocks, vectors, borders and offsets.
#[must_use]
pub fn layers() -> Vec<HardLayer> {
    let mut layers = Vec::new();
    let mut add = |(operator, x_shape): (Conv, [usize; 4])| layers.push(HardLayer::new(operator, x_shape));
    // Output sizes next to whole vectors, with SAME padding.
    for size in [1, 2, 7, 13, 14, 17, 30, 57] {
        let (conv, x) = square(5, 3, size, 3);
        add((conv.pads([1, 1, 1, 1]), x));
    }
    // Rows of A next to whole tiles and panels.
    for m in [1, 2, 3, 5, 13, 15, 17, 31, 33, 65, 100] {
        add(square(m, 4, 9, 2));
        add(square(m, 5, 6, 1));
    }
    // K in several blocks: the last one smaller, and exactly full.
    add((Conv::new([3, 700, 3, 3]).pads([1, 1, 1, 1]), [1, 700, 5, 4]));
    add(square(17, 257, 7, 1));
    for steps in [384, 385, 512, 576, 577] {
        add(square(2, steps, 6, 1));
    }
    add(square(33, 700, 3, 1));
    add(square(15, 57, 5, 3));
    // Rows of A in several blocks of the materialised lowerings.
    add((Conv::new([2100, 2, 1, 1]), [1, 2, 3, 2]));
    // The kernel covers X of a single image: the panels of a group are shared out, the last panel
    // is narrow, and K has several blocks.
    add((Conv::new([140, 300, 2, 2]).group(2), [1, 600, 2, 2]));
    add((Conv::new([70, 1100, 2, 2]), [1, 1100, 2, 2]));
    // Columns in several blocks, the last one smaller.
    add((Conv::new([130, 3, 1, 1]), [1, 3, 29, 33]));
    // Few steps and many rows, in tasks of long rows, the last one shorter. X is read in place,
    // and packed if its rows fall into the same cache sets.
    add((Conv::new([70, 3, 1, 1]), [1, 3, 37, 201]));
    add((Conv::new([130, 12, 1, 1]), [1, 12, 32, 64]));
    // More channels than sums are kept for at a time.
    add((Conv::new([1700, 600, 1, 1]), [1, 600, 3, 5]));
    // A kernel with more taps than a block of K has steps.
    add((Conv::new([3, 2, 25, 27]).pads([12, 13, 12, 13]), [1, 2, 9, 9]));
    // The kernel is wider than the input, so that most taps see padding; and it only just fits.
    add((Conv::new([3, 2, 5, 5]).pads([2, 2, 2, 2]), [1, 2, 1, 1]));
    add((Conv::new([3, 2, 7, 7]).pads([3, 3, 3, 3]), [2, 2, 1, 1]));
    add((Conv::new([4, 3, 3, 5]).pads([0, 2, 0, 2]), [1, 3, 3, 1]));
    add((Conv::new([4, 3, 5, 9]).pads([0, 1, 0, 0]), [1, 3, 5, 8]));
    add((Conv::new([4, 3, 2, 11]).pads([0, 1, 0, 1]), [1, 3, 4, 10]));
    // Padding that is wider than kernel and input, so that whole rows of outputs see only
    // padding.
    add((Conv::new([2, 3, 2, 3]).pads([6, 7, 5, 4]), [1, 3, 2, 2]));
    // A single row, a single column.
    add((Conv::new([6, 5, 1, 3]).pads([0, 1, 0, 1]), [1, 5, 1, 100]));
    add((Conv::new([6, 5, 3, 1]).pads([1, 0, 1, 0]), [1, 5, 100, 1]));
    add((Conv::new([6, 5, 3, 3]).pads([1, 1, 1, 1]), [1, 5, 41, 1]));
    // Strides above 2 and above the kernel, with asymmetric padding and dilation.
    add((Conv::new([5, 3, 3, 3]).strides([3, 3]).pads([1, 0, 2, 1]), [1, 3, 20, 23]));
    add((Conv::new([5, 3, 3, 3]).strides([4, 4]).pads([0, 3, 0, 1]), [3, 3, 19, 18]));
    add((Conv::new([5, 3, 1, 1]).strides([2, 3]), [3, 3, 11, 13]));
    add((Conv::new([5, 3, 2, 2]).strides([5, 7]), [1, 3, 29, 31]));
    add((Conv::new([6, 4, 3, 3]).strides([2, 2]).dilations([3, 3]).pads([3, 3, 3, 3]), [1, 4, 17, 19]));
    add((Conv::new([6, 4, 3, 3]).strides([3, 2]).dilations([2, 3]).pads([2, 1, 0, 3]), [1, 4, 17, 19]));
    add((Conv::new([6, 4, 3, 3]).strides([4, 4]).dilations([2, 6]).pads([2, 6, 2, 6]), [1, 4, 17, 19]));
    add((Conv::new([7, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]), [1, 3, 37, 33]));
    add((Conv::new([3, 3, 11, 11]).strides([4, 4]).pads([2, 2, 2, 2]), [1, 3, 35, 35]));
    // Patches without overlap and with some. There are as many phases as a vector has lanes,
    // more, or fewer, and phases without taps.
    add((Conv::new([5, 3, 16, 16]).strides([16, 16]), [1, 3, 50, 83]));
    add((Conv::new([5, 2, 20, 20]).strides([20, 20]).pads([3, 9, 1, 0]), [1, 2, 41, 370]));
    add((Conv::new([5, 3, 9, 9]).strides([7, 7]).pads([4, 3, 2, 4]), [2, 3, 30, 40]));
    add((Conv::new([5, 3, 5, 6]).strides([8, 9]).dilations([3, 2]).pads([1, 2, 3, 4]), [1, 3, 40, 50]));
    // Rows that are lengthened to whole cache lines, and chunks of them along each axis.
    add((Conv::new([33, 4, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 4, 12, 159]));
    add((Conv::new([3, 20, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]), [1, 20, 190, 191]));
    add((Conv::new([3, 40, 5, 3]).strides([1, 2]).pads([2, 1, 2, 1]), [1, 40, 5, 9001]));
    // Groups: few groups, groups of odd sizes, depthwise with and without a multiplier; and
    // batches.
    add((Conv::new([9, 5, 3, 3]).group(3).pads([1, 1, 1, 1]), [3, 15, 8, 7]));
    add((Conv::new([51, 7, 1, 1]).group(3), [3, 21, 5, 5]));
    add((Conv::new([19, 1, 3, 3]).group(19).pads([1, 1, 1, 1]), [2, 19, 11, 11]));
    add((Conv::new([21, 1, 3, 3]).group(7).strides([2, 2]), [2, 7, 11, 12]));
    add((Conv::new([13, 1, 1, 1]).group(13), [2, 13, 4, 4]));
    // Depthwise: widths next to vectors and tiles, kernels longer than a tap column, pads beyond
    // the kernel, strides, dilations, multipliers.
    for (size, kernel) in [(1, 3), (2, 5), (6, 3), (8, 3), (9, 2), (15, 3), (16, 5), (18, 7), (31, 3), (33, 3), (70, 3)]
    {
        let (w, x) = ([3, 1, kernel, kernel], [1, 3, size, size + 1]);
        let pad = (kernel / 2) as i64;
        add((Conv::new(w).group(3).pads([pad; 4]), x));
        add((Conv::new(w).group(3).pads([pad; 4]).strides([2, 2]), x));
    }
    // Odd widths whose two phases of stride 2 differ by a vector, for vectors of every length.
    // With odd padding the first phase is the shorter one.
    for width in [9, 17, 33, 65] {
        for (kernel, pad) in [(4, 1), (4, 2), (2, 0), (2, 1)] {
            let w = [2, 1, kernel, kernel];
            add((Conv::new(w).group(2).pads([pad; 4]).strides([2, 2]), [1, 2, 9, width]));
        }
    }
    // Tiles of equal height that share the last vectors of their rows: two, three, four and six
    // tiles, from X and from planes.
    for (kernel, pads, x) in [
        (3, [1; 4], [2, 3, 18, 20]),
        (3, [2, 1, 0, 2], [1, 3, 26, 17]),
        (5, [2; 4], [1, 3, 42, 40]),
        (5, [4, 1, 3, 3], [1, 2, 41, 34]),
        (7, [3; 4], [1, 3, 84, 24]),
        (7, [6, 4, 6, 2], [1, 1, 50, 20]),
        (9, [4; 4], [1, 3, 56, 40]),
        (11, [5, 5, 5, 0], [1, 2, 42, 25]),
    ] {
        add((Conv::new([x[1], 1, kernel, kernel]).group(x[1] as i64).pads(pads), x));
    }
    add((Conv::new([3, 1, 1, 5]).group(3).pads([0, 2, 0, 2]), [1, 3, 28, 24]));
    add((Conv::new([3, 1, 2, 2]).group(3), [1, 3, 29, 21]));
    add((Conv::new([3, 1, 3, 3]).group(3).dilations([2, 1]).pads([2, 1, 2, 1]), [1, 3, 40, 20]));
    add((Conv::new([2, 1, 15, 9]).group(2).pads([7, 4, 7, 4]), [1, 2, 20, 19]));
    add((Conv::new([2, 1, 9, 17]).group(2).pads([4, 8, 4, 8]).strides([3, 2]), [1, 2, 20, 40]));
    add((Conv::new([3, 1, 3, 3]).group(3).pads([5, 4, 4, 6]), [2, 3, 9, 8]));
    add((Conv::new([3, 1, 3, 3]).group(3).pads([3, 3, 3, 3]).dilations([3, 3]).strides([2, 2]), [1, 3, 17, 18]));
    add((Conv::new([3, 1, 4, 3]).group(3).pads([2, 5, 2, 5]).dilations([2, 6]).strides([4, 4]), [1, 3, 23, 40]));
    add((Conv::new([36, 1, 3, 3]).group(18).pads([1, 1, 1, 1]), [2, 18, 12, 7]));
    add((Conv::new([10, 3, 3, 3]).group(5).pads([1, 1, 1, 1]).strides([2, 1]), [2, 15, 9, 20]));
    // The same for kernels that read X itself: pads that differ at both ends, up to the kernel's
    // reach; several tiles and vectors; several channels in a sum.
    add((Conv::new([6, 2, 5, 5]).group(3).pads([1, 2, 2, 1]).strides([2, 2]), [2, 6, 37, 67]));
    add((Conv::new([4, 1, 7, 7]).group(4).pads([6, 3, 2, 4]).strides([2, 2]), [1, 4, 33, 35]));
    add((Conv::new([4, 1, 3, 3]).group(4).pads([1, 4, 2, 3]).dilations([1, 4]), [1, 4, 19, 40]));
    add((Conv::new([8, 4, 3, 3]).group(2).pads([2, 1, 0, 1]), [1, 8, 35, 50]));
    // Groups whose rows of Y are as long as X's: planes that end within a vector, tiles in the
    // middle of a plane, all heights of panels, shifts beyond the row, more and fewer rows of Y
    // than of X, and one axis.
    for (c, m, height, width) in
        [(4, 4, 56, 56), (2, 3, 40, 33), (1, 2, 90, 17), (3, 5, 9, 7), (2, 8, 70, 13), (5, 6, 64, 16)]
    {
        add((Conv::new([3 * m, c, 3, 3]).group(3).pads([1; 4]), [1, 3 * c, height, width]));
    }
    // The same with strides, from planes of phases of equal and of different length.
    for (height, width) in [(40, 66), (41, 33), (40, 35)] {
        add((Conv::new([12, 3, 3, 3]).group(3).pads([1; 4]).strides([2, 2]), [1, 9, height, width]));
    }
    add((Conv::new([10, 2, 2, 5]).group(2).pads([1, 4, 0, 3]).strides([3, 3]), [1, 4, 19, 40]));
    add((Conv::new([10, 2, 1, 1]).group(2).strides([2, 4]), [1, 4, 19, 40]));
    add((Conv::new([10, 2, 3, 3]).group(2).strides([2, 1]).pads([0, 1, 0, 1]), [1, 4, 19, 40]));
    add((Conv::new([26, 3, 3, 5]).group(2).pads([4, 8, 1, 0]).dilations([2, 2]), [1, 6, 30, 41]));
    add((Conv::new([14, 2, 1, 9]).group(2).pads([0, 3, 0, 5]), [1, 4, 21, 3]));
    add((Conv::new([7, 6, 4, 1]).pads([0, 0, 0, 0]), [1, 6, 40, 31]));
    layers.push(HardLayer::new(Conv::new([12, 3, 5]).group(3).pads([2, 2]), [2, 9, 515]));
    let mut add = |(operator, x_shape): (Conv, [usize; 4])| layers.push(HardLayer::new(operator, x_shape));
    // Kernels as large as X: K in several blocks, blocks of images, shares of many columns.
    add((Conv::new([5, 4200, 1, 1]), [2, 4200, 1, 1]));
    add((Conv::new([70, 35, 3, 2]).group(2), [23, 70, 3, 2]));
    add((Conv::new([2100, 3, 1, 1]), [61, 3, 1, 1]));
    // Padding that `auto_pad` chooses.
    add((Conv::new([4, 3, 4, 4]).auto_pad(AutoPad::SameUpper).strides([2, 3]), [1, 3, 10, 11]));
    add((Conv::new([4, 3, 4, 2]).auto_pad(AutoPad::SameLower).strides([1, 3]), [1, 3, 10, 11]));
    // No channels: the output is the bias.
    add((Conv::new([5, 0, 3, 3]).pads([1, 1, 1, 1]), [2, 0, 6, 7]));
    add((Conv::new([5, 0, 1, 1]), [2, 0, 6, 7]));
    // No input positions: the output is the bias.
    add((Conv::new([5, 3, 3, 3]).pads([2, 2, 2, 2]), [1, 3, 0, 4]));
    // An empty output.
    add((Conv::new([4, 3, 3, 3]), [0, 3, 8, 8]));
    add((Conv::new([0, 3, 3, 3]), [1, 3, 8, 8]));
    // One axis, and more than two axes.
    layers.push(HardLayer::new(Conv::new([3, 2, 9]).pads([4, 4]), [1, 2, 5000]));
    layers.push(HardLayer::new(Conv::new([5, 1, 31]).strides([3]).dilations([2]), [2, 1, 1009]));
    layers.push(HardLayer::new(Conv::new([16, 37, 1]), [1, 37, 301]));
    layers.push(HardLayer::new(Conv::new([17, 1, 25]).group(17).pads([12, 12]), [1, 17, 700]));
    layers.push(HardLayer::new(Conv::new([5, 1, 3]).group(5).pads([64, 64]).dilations([64]), [2, 5, 301]));
    layers.push(HardLayer::new(Conv::new([6, 1, 3, 3, 3]).group(3).strides([1, 2, 1]).pads([1; 6]), [2, 3, 5, 9, 20]));
    layers.push(HardLayer::new(Conv::new([3, 1, 2, 3, 1, 2]).group(3).pads([1; 8]), [1, 3, 3, 2, 4, 5]));
    layers.push(HardLayer::new(Conv::new([5, 3, 3, 3, 3]).pads([1; 6]), [2, 3, 6, 7, 5]));
    layers.push(HardLayer::new(
        Conv::new([5, 3, 2, 3, 1]).strides([2, 1, 3]).dilations([1, 2, 1]).pads([0, 2, 1, 1, 2, 0]),
        [1, 3, 6, 7, 8],
    ));
    layers.push(HardLayer::new(Conv::new([4, 2, 2, 1, 3, 2]).pads([1, 0, 1, 1, 0, 0, 1, 0]), [1, 2, 3, 2, 5, 4]));
    // Chunks along the second of three axes.
    layers.push(HardLayer::new(Conv::new([3, 16, 3, 3, 3]).strides([2; 3]).pads([1; 6]), [1, 16, 3, 40, 200]));
    layers.push(HardLayer::new(Conv::new([3, 2, 1, 1, 1, 1]), [2, 2, 3, 2, 3, 4]));
    layers.push(HardLayer::new(
        Conv::new([2, 2, 2, 2, 1, 2, 2]).strides([1, 2, 1, 1, 2]).pads([1; 10]),
        [1, 2, 2, 3, 2, 2, 3],
    ));
    // Upsampling: kernels that are shorter than, equal to and longer than the stride.
    for (kernel, stride) in [(2, 2), (4, 2), (3, 2), (1, 2), (3, 3), (5, 3), (2, 4), (16, 8), (3, 1)] {
        let conv = ConvTranspose::new([7, 5, kernel, kernel]).strides([stride; 2]);
        layers.push(HardLayer::new(conv.clone(), [1, 7, 9, 6]));
        layers.push(HardLayer::new(conv, [2, 7, 1, 1]));
    }
    let transposed = |w_shape: [usize; 4]| ConvTranspose::new(w_shape);
    let mut add = |operator: ConvTranspose, x_shape: [usize; 4]| layers.push(HardLayer::new(operator, x_shape));
    for m in [1, 3, 13, 15, 17, 33, 65, 100] {
        add(transposed([3, m, 3, 3]).strides([2, 2]).pads([1, 1, 1, 1]).output_padding([1, 1]), [1, 3, 6, 5]);
    }
    for size in [7, 13, 14, 17, 30, 57] {
        add(transposed([3, 4, 3, 3]).pads([1, 1, 1, 1]), [1, 3, size, size]);
    }
    // K in several blocks, first over channels, then over taps.
    add(transposed([1100, 3, 3, 3]).strides([2, 2]), [1, 1100, 4, 5]);
    add(transposed([2, 3, 33, 35]).strides([2, 1]), [1, 2, 3, 4]);
    add(transposed([6, 5, 3, 3]).group(3).strides([2, 2]), [3, 6, 7, 5]);
    add(transposed([19, 1, 4, 4]).group(19).strides([2, 2]).pads([1, 1, 1, 1]), [2, 19, 7, 5]);
    // Depthwise upsampling: rows that fill vectors, and rows that do not.
    for (kernel, width, pad) in [(2, 16, 0), (3, 33, 1), (4, 64, 1), (5, 17, 2)] {
        let depthwise = transposed([5, 1, kernel, kernel]).group(5).strides([2, 2]);
        add(depthwise.clone().pads([pad, 1, 0, 2]).output_padding([1, 0]), [2, 5, 9, width]);
        add(depthwise, [1, 5, 3, width - 1]);
        let row = transposed([3, 1, 1, kernel]).group(3).strides([1, 2]);
        add(row.pads([1, pad, 0, 1]), [2, 3, 6, width]);
    }
    add(transposed([19, 3, 4, 4]).group(19).strides([2, 2]).pads([1, 1, 1, 1]), [1, 19, 7, 5]);
    add(transposed([4, 6, 3, 3]).strides([2, 2]).dilations([3, 3]).pads([2, 1, 3, 0]), [1, 4, 9, 8]);
    add(transposed([4, 6, 3, 2]).strides([3, 1]).dilations([2, 5]).output_padding([2, 4]), [1, 4, 5, 6]);
    add(transposed([4, 6, 5, 5]).pads([4, 4, 4, 4]), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([2, 2]).auto_pad(AutoPad::SameUpper), [1, 4, 6, 5]);
    add(transposed([4, 6, 1, 1]).strides([3, 2]).auto_pad(AutoPad::SameLower), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([3, 2]).output_shape([18, 10]), [1, 4, 6, 5]);
    add(transposed([4, 6, 3, 3]).strides([3, 2]).output_shape([2, 3]), [1, 4, 6, 5]);
    add(transposed([4, 6, 1, 1]), [1, 4, 1, 100]);
    // One position whose taps are all outputs: several blocks of K, wide and narrow panels, odd
    // numbers of taps; one image, and a last block of one image.
    add(transposed([1300, 35, 2, 3]).group(2), [1, 1300, 1, 1]);
    add(transposed([600, 50, 3, 3]), [1, 600, 1, 1]);
    add(transposed([40, 20, 2, 2]), [65, 40, 1, 1]);
    add(transposed([4, 6, 3, 1]).strides([1, 2]), [1, 4, 100, 1]);
    add(transposed([0, 6, 3, 3]), [1, 0, 4, 4]);
    add(transposed([3, 6, 3, 3]), [1, 3, 0, 4]);
    add(transposed([3, 6, 3, 3]), [0, 3, 4, 4]);
    layers.push(HardLayer::new(ConvTranspose::new([3, 2, 9]).strides([4]), [1, 3, 1500]));
    layers.push(HardLayer::new(ConvTranspose::new([3, 2, 16]).strides([8]).pads([4, 4]), [1, 3, 301]));
    layers.push(HardLayer::new(
        ConvTranspose::new([3, 4, 3, 2, 3]).strides([2, 2, 2]).pads([1, 0, 1, 1, 0, 0]),
        [2, 3, 3, 4, 5],
    ));
    layers.push(HardLayer::new(ConvTranspose::new([2, 3, 2, 1, 2, 2]).strides([2, 1, 1, 2]), [1, 2, 2, 3, 2, 3]));
    layers.push(HardLayer::new(
        ConvTranspose::new([2, 3, 2, 1, 2, 1, 2]).strides([2, 1, 1, 1, 3]),
        [1, 2, 2, 2, 2, 1, 3],
    ));
    layers
}

//! Layers of any kind that are small enough to be run.

use arbitrary::{Result, Unstructured};
use convoke::{AutoPad, Conv, ConvTranspose, Geometry, Layout, Op, Operator};

/// Multiply-adds of a layer that is run, at most.
const MOST_MACS: u128 = 1 << 19;
/// Elements of X, W and Y, at most.
const MOST_ELEMENTS: usize = 1 << 16;

/// An operator with the shape of X.
#[derive(Debug, Clone)]
pub struct Layer {
    pub operator: Operator,
    pub x_shape: Vec<usize>,
}

impl Layer {
    /// None if the bytes are of a layer that breaks a rule, or is too large.
    pub fn arbitrary(u: &mut Unstructured<'_>) -> Result<Option<Self>> {
        let rank = *u.choose(&[2, 2, 2, 1, 1, 3, 4])?;
        let group = *u.choose(&[1, 1, 1, 2, 3, 8])?;
        let (c, m) = (channels(u)?, channels(u)?);
        let axis = |u: &mut Unstructured<'_>, most: usize| u.int_in_range(0..=most);
        let list = |u: &mut Unstructured<'_>, count: usize, least: usize, most: usize| -> Result<Vec<i64>> {
            (0..count).map(|_| Ok((least + axis(u, most)?) as i64)).collect()
        };
        let kernel = list(u, rank, 1, if rank > 2 { 2 } else { 6 })?;
        let mut strides = list(u, rank, 1, 3)?;
        let mut dilations = if u.ratio(1, 4)? { list(u, rank, 1, 4)? } else { vec![1; rank] };
        let mut pads = list(u, 2 * rank, 0, 4)?;
        let auto_pad = *u.choose(&[AutoPad::NotSet, AutoPad::NotSet, AutoPad::SameUpper, AutoPad::SameLower])?;
        let is_auto = auto_pad != AutoPad::NotSet;
        let spatial = list(u, rank, 0, [300, 40, 12, 6][rank - 1])?;
        let sizes = |sizes: &[i64]| sizes.iter().map(|size| *size as usize).collect::<Vec<_>>();
        let x_shape = [vec![u.int_in_range(0..=3)?, group * c], sizes(&spatial)].concat();
        let op = *u.choose(&[Op::Conv, Op::ConvTranspose])?;
        if u.ratio(1, 4)? {
            let axis = u.int_in_range(0..=rank - 1)?;
            if let Some(far) = FarAxis::arbitrary(u, op, spatial[axis], kernel[axis])? {
                (strides[axis], dilations[axis]) = (far.stride, far.dilation);
                [pads[axis], pads[rank + axis]] = far.pads;
            }
        }
        let operator: Operator = if op == Op::Conv {
            let w_shape = [vec![group * m, c], sizes(&kernel)].concat();
            let conv = Conv::new(w_shape).group(group as i64).strides(strides).dilations(dilations).auto_pad(auto_pad);
            if is_auto { conv } else { conv.pads(pads) }.into()
        } else {
            let output_padding = list(u, rank, 0, 2)?;
            let w_shape = [vec![group * c, m], sizes(&kernel)].concat();
            let conv = ConvTranspose::new(w_shape).group(group as i64).strides(strides).dilations(dilations);
            let conv = conv.auto_pad(auto_pad).output_padding(output_padding);
            if is_auto { conv } else { conv.pads(pads) }.into()
        };
        let layer = Self { operator, x_shape };
        Ok(layer.geometry().map(|_| layer))
    }

    /// The same layer with X and Y in some layouts.
    pub fn in_layouts(self, u: &mut Unstructured<'_>) -> Result<Self> {
        let (x, y) = layouts(u)?;
        Ok(Self { operator: self.operator.layouts(x, y), ..self })
    }

    /// The same operator on X of another batch and spatial size.
    pub fn resized(&self, u: &mut Unstructured<'_>) -> Result<Option<Self>> {
        let mut x_shape = self.x_shape.clone();
        for (axis, size) in x_shape.iter_mut().enumerate().filter(|(axis, _)| *axis != 1) {
            *size = u.int_in_range(0..=if axis == 0 { 3 } else { 20 })?;
        }
        let layer = Self { x_shape, ..self.clone() };
        Ok(layer.geometry().map(|_| layer))
    }

    /// The sizes, if they are legal and the layer is small.
    pub fn geometry(&self) -> Option<Geometry> {
        self.operator.geometry(&self.x_shape).ok().filter(is_small)
    }
}

/// Whether a layer is small enough to be run.
pub fn is_small(geometry: &Geometry) -> bool {
    let lens = [geometry.input_len(), geometry.weight_len(), geometry.output_len()];
    geometry.macs() <= MOST_MACS && lens.iter().all(|len| *len <= MOST_ELEMENTS)
}

/// Layouts of X and Y.
pub fn layouts(u: &mut Unstructured<'_>) -> Result<(Layout, Layout)> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    Ok((*u.choose(&layouts)?, *u.choose(&layouts)?))
}

/// A spatial axis with any stride and dilation, whose pads make up for them: Y has a few positions.
pub struct FarAxis {
    pub stride: i64,
    pub dilation: i64,
    pub pads: [i64; 2],
}

impl FarAxis {
    /// None if there are no such pads.
    pub fn arbitrary(u: &mut Unstructured<'_>, op: Op, input: i64, kernel: i64) -> Result<Option<Self>> {
        let (stride, dilation) = (far(u)?, far(u)?);
        let wide = |value: i64| i128::from(value);
        let (output, reach) = (u.int_in_range(1..=4)?, wide(dilation) * wide(kernel - 1) + 1);
        let pads = match op {
            Op::Conv => (output - 1) * wide(stride) + reach - wide(input),
            Op::ConvTranspose => wide(input - 1) * wide(stride) + reach - output,
        };
        let Ok(pads) = i64::try_from(pads) else { return Ok(None) };
        if pads < 0 {
            return Ok(None);
        }
        let begin = *u.choose(&[0, 1, pads / 2, pads - 1, pads])?;
        let begin = begin.clamp(0, pads);
        Ok(Some(Self { stride, dilation, pads: [begin, pads - begin] }))
    }
}

/// At least 1; small, or near a power of two, or near the largest number.
pub fn far(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.int_in_range(1..=5)?,
        1 => i64::MAX - u.int_in_range(0..=3)?,
        _ => ((1_i64 << u.int_in_range(0..=62)?) + u.int_in_range(-2..=2)?).max(1),
    })
}

pub fn channels(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.int_in_range(0..=5)? {
        0 => 1,
        1 => u.int_in_range(0..=4)?,
        2 | 3 => u.int_in_range(1..=20)?,
        4 => u.int_in_range(1..=70)?,
        _ => *u.choose(&[1, 8, 16, 32, 64, 100])?,
    })
}

/// Whole numbers in `-4..=4`, of which sums of products are exact.
pub fn integers(len: usize, seed: u64) -> Vec<i64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64 % 9 - 4
    };
    (0..len).map(|_| next()).collect()
}

pub fn is_transposed(geometry: &Geometry) -> bool {
    geometry.op == Op::ConvTranspose
}

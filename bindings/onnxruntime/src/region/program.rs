//! The steps of a region for inputs of known shapes: plans, tables, and memory.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use convoke::{Layout, PackedWeights, Plan};

use crate::api::{Failure, Result};
use crate::concat::concatenated;
use crate::layer::Packed;
use crate::region::bytes::{Blend, Blending, ByteScale, Lines, RANGES, Table};
use crate::region::integers::PlannedIntegers;
use crate::region::steps::{Element, Memory, Step, Tensor, Work, root};
use crate::region::unit::{Mean, Pool, Sources};
use crate::session::{LINE, Session};
use crate::sum;
use crate::weights::Planned;

/// What is done in a run, in this order.
pub(crate) struct Program {
    pub(crate) acts: Vec<Act>,
    pub(crate) places: Vec<Place>,
    /// Bytes of the memory of all tensors that are neither inputs nor outputs.
    pub(crate) memory: usize,
    /// The shapes of the outputs of the node, by their numbers, and what they are made of.
    pub(crate) outputs: Vec<(usize, Vec<usize>, Element)>,
}

/// Where a tensor lies in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Input(usize),
    Output(usize),
    Own(Extent),
}

/// Where a tensor lies in the memory of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The bytes of the whole tensor in which it lies.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Its first byte.
    pub(crate) first: usize,
    /// Elements from one pixel to the next: none if its channels come first.
    pub(crate) pixel: Option<usize>,
}

/// A step of which all sizes are known.
pub(crate) struct Act {
    pub(crate) what: What,
    /// What Y is made of.
    pub(crate) element: Element,
    pub(crate) reads: Vec<usize>,
    pub(crate) writes: usize,
}

pub(crate) enum What {
    Layer(Planned<f32>),
    /// An addition, whose plan and weights are its own.
    Add(Box<(Plan<f32>, PackedWeights<f32>)>),
    Pool(Windows),
    Resize {
        images: usize,
        x_sizes: [usize; 2],
        channels: usize,
        sources: [Sources; 2],
    },
    /// Pixels, their channels, and the pixels for which one vector of factors stands.
    Product {
        pixels: usize,
        channels: usize,
        of_factors: usize,
    },
    /// Bytes through a table, if there is one.
    Copy {
        pixels: usize,
        channels: usize,
        table: Option<Arc<Table>>,
    },
    /// The same, from a layout into the other one.
    Reorder {
        channels: usize,
        positions: usize,
        to: Layout,
        table: Option<Arc<Table>>,
    },
    Integers(PlannedIntegers),
    /// The least and the largest number of each part of X.
    Ranges {
        pixels: usize,
        channels: usize,
    },
    Blend {
        blend: Blend,
        pixels: usize,
        channels: usize,
        of_factors: usize,
    },
    Lines {
        lines: Arc<Lines>,
        pixels: usize,
    },
    /// By a scale, or by that of the ranges that are read, too.
    Quantise {
        scale: Option<ByteScale>,
        pixels: usize,
        channels: usize,
    },
    Dequantise {
        scale: ByteScale,
        pixels: usize,
        channels: usize,
    },
    /// Some channels, of all that X has.
    Pick {
        pixels: usize,
        of: usize,
        channels: Arc<[usize]>,
    },
    Slopes {
        pixels: usize,
        slopes: Arc<[f32]>,
    },
    /// A tensor is broadcast, from a shape to a shape, both in the order in which the sizes lie in memory.
    Repeat {
        from: Vec<usize>,
        to: Vec<usize>,
    },
}

/// The windows of a pool.
pub(crate) struct Windows {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    /// The pixels of an image of X.
    pub(crate) positions: usize,
    pub(crate) mean: Option<Mean>,
    /// The elements of a window, padding among them.
    pub(crate) volume: usize,
    /// For each element of Y along each axis, the elements of X in its window, from one on.
    pub(crate) axes: Vec<Axis>,
}

impl Windows {
    /// The pixels of Y.
    pub(crate) fn pixels(&self) -> usize {
        self.images * self.axes.iter().map(|axis| axis.taps.len()).product::<usize>()
    }

    fn last(&self) -> &Axis {
        self.axes.last().expect("a pool has axes")
    }

    /// Pixels of a row of Y.
    pub(crate) fn width(&self) -> usize {
        self.last().taps.len()
    }

    /// Pixels of X from a tap of a row to the next.
    pub(crate) fn dilation(&self) -> usize {
        self.last().dilation
    }

    /// The first pixel of X and the count, in each row of the window of a pixel, by its place in its row.
    pub(crate) fn columns(&self, column: usize) -> (usize, usize) {
        self.last().taps[column]
    }

    /// The first pixels of the rows of X that a row of Y reads.
    pub(crate) fn rows(&self, mut row: usize, rows: &mut Vec<usize>) {
        rows.clear();
        rows.push(0);
        let mut step = self.last().input;
        for axis in self.axes.iter().rev().skip(1) {
            let (first, count) = axis.taps[row % axis.taps.len()];
            row /= axis.taps.len();
            let inner = rows.len();
            // Those of the inner axes, for each element of this one.
            for tap in 0..count {
                for i in 0..inner {
                    rows.push(rows[i] + (first + tap * axis.dilation) * step);
                }
            }
            rows.drain(..inner);
            step *= axis.input;
        }
        let image = row * self.positions;
        rows.iter_mut().for_each(|begin| *begin += image);
    }
}

pub(crate) struct Axis {
    pub(crate) input: usize,
    pub(crate) dilation: usize,
    /// The first element and the count, for each window.
    pub(crate) taps: Vec<(usize, usize)>,
}

/// Tensors and their shapes while a program is made.
struct Making<'a> {
    session: &'a Session,
    tensors: Vec<Tensor>,
    shapes: Vec<Vec<usize>>,
    acts: Vec<Act>,
}

impl Program {
    /// The program for inputs of these shapes.
    pub(crate) fn new(session: &Session, steps: &[Step], tensors: &[Tensor], inputs: &[Vec<usize>]) -> Result<Self> {
        let shapes = tensors.iter().map(|tensor| match tensor.memory {
            Memory::Input(i) => inputs[i].clone(),
            _ => Vec::new(),
        });
        if let Some(shape) = inputs.iter().find(|shape| shape.len() < 3) {
            return Err(Failure::invalid(format_args!(
                "a tensor of shape {shape:?}, where spatial axes were expected"
            )));
        }
        let mut making = Making { session, shapes: shapes.collect(), tensors: tensors.to_vec(), acts: Vec::new() };
        for step in steps {
            making.add(step)?;
        }
        making.check_channels()?;
        // There is nothing to compute of empty tensors.
        let Making { acts, shapes, .. } = &mut making;
        acts.retain(|act| !shapes[act.writes].contains(&0));
        let (places, memory) = making.memory()?;
        let Making { acts, shapes, tensors, .. } = making;
        let of_output = |(tensor, shape): (&Tensor, Vec<usize>)| match tensor.memory {
            Memory::Output(i) => Some((i, shape, tensor.element)),
            _ => None,
        };
        let outputs = tensors.iter().zip(shapes).filter_map(of_output).collect();
        Ok(Self { acts, places, memory, outputs })
    }
}

/// The number of pixels of a tensor.
fn pixels(shape: &[usize]) -> Result<usize> {
    let mut sizes = shape.iter().enumerate().filter(|(axis, _)| *axis != 1).map(|(_, size)| *size);
    let count = sizes.try_fold(1_usize, usize::checked_mul);
    count.ok_or_else(|| Failure::other(format_args!("a tensor of shape {shape:?} exceeds the memory")))
}

impl Making<'_> {
    fn push(&mut self, what: What, reads: Vec<usize>, writes: usize) {
        let element = self.tensors[writes].element;
        self.acts.push(Act { what, element, reads, writes });
    }

    /// Another tensor of its own.
    fn own(&mut self, shape: Vec<usize>, layout: Layout, element: Element) -> usize {
        self.tensors.push(Tensor { channels: shape[1], layout, memory: Memory::Own, element });
        self.shapes.push(shape);
        self.tensors.len() - 1
    }

    fn add(&mut self, Step { work, reads, writes }: &Step) -> Result<()> {
        let (reads, writes) = (reads.clone(), *writes);
        let x_shape = self.shapes[reads[0]].clone();
        let y_shape = match work {
            Work::Layer(layer) => return self.add_layer(layer, reads, writes),
            Work::Pool(pool) => {
                let (windows, shape) = windows(pool, &x_shape)?;
                self.push(What::Pool(windows), reads, writes);
                shape
            }
            Work::Resize(resize) => {
                let &[images, channels, height, width] = &x_shape[..] else {
                    return Err(Failure::invalid(format_args!(
                        "Resize: X of shape {x_shape:?} has not two spatial axes"
                    )));
                };
                let sources = resize.sources([height, width]).ok_or_else(|| {
                    Failure::invalid(format_args!("Resize: Y of X of shape {x_shape:?} is too large"))
                })?;
                if height * width == 0 && sources.iter().all(|axis| !axis.is_empty()) {
                    return Err(Failure::invalid(format_args!("Resize: X of shape {x_shape:?} has no elements")));
                }
                let shape = vec![images, channels, sources[0].len(), sources[1].len()];
                self.push(What::Resize { images, x_sizes: [height, width], channels, sources }, reads, writes);
                shape
            }
            Work::Product | Work::Blend(_) => {
                let by = self.shapes[reads[1]].clone();
                let op = if matches!(work, Work::Blend(Blend { op: Blending::Sum, .. })) { "Add" } else { "Mul" };
                let shape = sum::broadcast(op, &x_shape, &by)?;
                let are_vectors = by[..2] == shape[..2] && by[2..].iter().all(|size| *size == 1);
                let [x, by] = [(reads[0], true), (reads[1], !are_vectors)]
                    .map(|(tensor, must)| if must { self.repeated(tensor, &shape) } else { tensor });
                let of_factors = pixels(&shape)?.checked_div(pixels(&self.shapes[by])?).unwrap_or(1);
                let (pixels, channels) = (pixels(&shape)?, shape[1]);
                let what = match work {
                    Work::Blend(blend) => What::Blend { blend: blend.clone(), pixels, channels, of_factors },
                    _ => What::Product { pixels, channels, of_factors },
                };
                self.push(what, vec![x, by], writes);
                shape
            }
            Work::Integers(layer) => {
                let planned = layer.plan(self.session, &x_shape)?;
                let shape = planned.output_shape();
                self.push(What::Integers(planned), reads, writes);
                shape
            }
            Work::Lines(lines) => {
                self.push(What::Lines { lines: lines.clone(), pixels: pixels(&x_shape)? }, reads, writes);
                x_shape
            }
            Work::Quantise(scale) => {
                let what = What::Quantise { scale: *scale, pixels: pixels(&x_shape)?, channels: x_shape[1] };
                self.push(what, reads, writes);
                x_shape
            }
            Work::Ranges => {
                self.push(What::Ranges { pixels: pixels(&x_shape)?, channels: x_shape[1] }, reads, writes);
                vec![1, 2, RANGES]
            }
            Work::Dequantise(scale) => {
                let what = What::Dequantise { scale: *scale, pixels: pixels(&x_shape)?, channels: x_shape[1] };
                self.push(what, reads, writes);
                x_shape
            }
            Work::Reorder(table) => {
                let (images, channels) = (x_shape[0], x_shape[1]);
                let positions = pixels(&x_shape)?.checked_div(images).unwrap_or(0);
                let (to, table) = (self.tensors[writes].layout, table.clone());
                self.push(What::Reorder { channels, positions, to, table }, reads, writes);
                x_shape
            }
            Work::Slopes(slopes) => {
                self.push(What::Slopes { pixels: pixels(&x_shape)?, slopes: slopes.clone() }, reads, writes);
                x_shape
            }
            Work::Copy(table) => {
                let (pixels, channels) = (pixels(&x_shape)?, x_shape[1]);
                let what = What::Copy { pixels, channels, table: table.clone() };
                self.push(what, reads, writes);
                x_shape
            }
            Work::Pick(channels) => {
                let mut shape = x_shape.clone();
                shape[1] = channels.len();
                let (pixels, of) = (pixels(&x_shape)?, self.tensors[reads[0]].channels);
                self.push(What::Pick { pixels, of, channels: channels.clone() }, reads, writes);
                shape
            }
            Work::View => {
                let mut shape = x_shape;
                shape[1] = self.tensors[writes].channels;
                shape
            }
            Work::Join => concatenated(&reads.iter().map(|part| self.shapes[*part].clone()).collect::<Vec<_>>())?,
        };
        self.shapes[writes] = y_shape;
        Ok(())
    }

    /// A tensor that is broadcast to a shape: itself, if it has that shape.
    fn repeated(&mut self, tensor: usize, shape: &[usize]) -> usize {
        let from = self.shapes[tensor].clone();
        if from == shape {
            return tensor;
        }
        let Tensor { layout, element, .. } = self.tensors[tensor];
        let y = self.own(shape.to_vec(), layout, element);
        let in_memory = |shape: &[usize]| match layout {
            Layout::ChannelsFirst => shape.to_vec(),
            _ => [&shape[..1], &shape[2..], &shape[1..2]].concat(),
        };
        self.push(What::Repeat { from: in_memory(&from), to: in_memory(shape) }, vec![tensor], y);
        y
    }

    fn add_layer(&mut self, layer: &Arc<Packed<f32>>, reads: Vec<usize>, writes: usize) -> Result<()> {
        let x_shape = self.shapes[reads[0]].clone();
        // A convolution has no such X, but what is one here for each element alone may have.
        if x_shape.contains(&0) && reads.len() == 1 && layer.operator.weight_shape()[1..].iter().all(|size| *size == 1)
        {
            self.shapes[writes] = x_shape;
            return Ok(());
        }
        let planned = layer.plan(&x_shape)?;
        let own = planned.plan.geometry().output_shape();
        let shape = match reads.get(1) {
            Some(&residual) => sum::broadcast("Add", &own, &self.shapes[residual])?,
            None => own.clone(),
        };
        let residual = reads.get(1).copied().filter(|residual| own != shape || self.shapes[*residual] != shape);
        self.shapes[writes] = shape.clone();
        let Some(residual) = residual else {
            self.push(What::Layer(planned), reads, writes);
            return Ok(());
        };
        // It is broadcast, which mostly is not so: the layer without the sum, and the sum.
        let planner = self.session.planner();
        let plan = sum::conv(&planner, &layer.operator, planned.cache.packed(), &x_shape)?;
        let layout = self.tensors[writes].layout;
        let convolved = self.own(own.clone(), layout, Element::Float);
        let planned = Planned { plan: Arc::new(plan), cache: planned.cache };
        self.push(What::Layer(planned), vec![reads[0]], convolved);
        let both = [convolved, residual].map(|x| self.repeated(x, &shape));
        let add = sum::add::<f32>(&planner, layer.activation(), &shape, [layout; 2])?;
        self.push(What::Add(add.into()), both.to_vec(), writes);
        Ok(())
    }

    /// The number of channels was known when the session was made, and may be another one in a run that does not
    /// keep to the model.
    fn check_channels(&self) -> Result<()> {
        for (Tensor { channels, .. }, shape) in self.tensors.iter().zip(&self.shapes) {
            if shape.get(1) != Some(channels) {
                return Err(Failure::invalid(format_args!(
                    "a tensor of shape {shape:?}, where {channels} channels were expected"
                )));
            }
        }
        Ok(())
    }

    /// Where each tensor lies, and the bytes of the memory.
    fn memory(&self) -> Result<(Vec<Place>, usize)> {
        // The acts from the first one that needs a tensor to the last one.
        let mut needed = vec![None::<(usize, usize)>; self.tensors.len()];
        for (i, act) in self.acts.iter().enumerate() {
            for tensor in act.reads.iter().chain([&act.writes]) {
                needed[root(&self.tensors, *tensor).0].get_or_insert((i, i)).1 = i;
            }
        }
        let mut own = Vec::new();
        for (tensor, acts) in needed.into_iter().enumerate() {
            if let (Memory::Own, Some((first, last))) = (self.tensors[tensor].memory, acts) {
                let Tensor { channels, element, .. } = self.tensors[tensor];
                let len = pixels(&self.shapes[tensor])?.checked_mul(channels * element.bytes());
                let len = len.ok_or_else(|| Failure::other("a tensor of a region exceeds the memory"))?;
                own.push(Needed { tensor, len, first, last });
            }
        }
        let (ranges, len) = placed(own).ok_or_else(|| Failure::other("the tensors of a region exceed the memory"))?;
        let place = |tensor: usize| {
            let (root, channel) = root(&self.tensors, tensor);
            let Tensor { memory, layout, channels, element } = self.tensors[root];
            match memory {
                Memory::Input(i) => Place::Input(i),
                Memory::Output(i) => Place::Output(i),
                _ => {
                    // No act needs what has no range.
                    let Range { start, end } = ranges.get(&root).cloned().unwrap_or_default();
                    let pixel = (layout == Layout::ChannelsLast).then_some(channels);
                    Place::Own(Extent { begin: start, end, first: start + channel * element.bytes(), pixel })
                }
            }
        };
        Ok(((0..self.tensors.len()).map(place).collect(), len))
    }
}

/// A tensor that needs memory, from the first act that it is in to the last one.
struct Needed {
    tensor: usize,
    len: usize,
    first: usize,
    last: usize,
}

/// Where tensors lie, and the bytes of all memory. Tensors share memory if no act needs both. The largest ones are
/// placed first, each as near to the beginning as can be. None if they are too large.
///
/// Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by size).
fn placed(mut tensors: Vec<Needed>) -> Option<(HashMap<usize, Range<usize>>, usize)> {
    tensors.sort_by_key(|tensor| Reverse(tensor.len));
    // In the order in which they lie.
    let mut placed: Vec<(Range<usize>, Needed)> = Vec::new();
    for tensor in tensors {
        let mut begin = 0_usize;
        for (range, other) in &placed {
            if other.first <= tensor.last && tensor.first <= other.last {
                if begin.checked_add(tensor.len)? <= range.start {
                    break;
                }
                begin = begin.max(range.end.checked_next_multiple_of(LINE)?);
            }
        }
        let at = placed.partition_point(|(range, _)| range.start <= begin);
        placed.insert(at, (begin..begin.checked_add(tensor.len)?, tensor));
    }
    let len = placed.iter().map(|(range, _)| range.end).max().unwrap_or(0);
    Some((placed.into_iter().map(|(range, tensor)| (tensor.tensor, range)).collect(), len))
}

/// The windows of a pool on X, and the shape of Y.
fn windows(pool: &Pool, x_shape: &[usize]) -> Result<(Windows, Vec<usize>)> {
    let geometry = pool.geometry(x_shape)?;
    let axes = geometry.axes.iter().map(|axis| {
        let taps = (0..axis.output).map(|output| {
            let inside = |tap: &usize| axis.input_position(output, *tap);
            let mut inside = (0..axis.kernel).filter_map(|tap| inside(&tap));
            inside.next().map_or((0, 0), |first| (first, 1 + inside.count()))
        });
        Axis { input: axis.input, dilation: axis.dilation, taps: taps.collect() }
    });
    let windows = Windows {
        images: geometry.batch,
        channels: geometry.in_channels,
        positions: geometry.input_spatial(),
        mean: pool.mean,
        volume: geometry.kernel_volume(),
        axes: axes.collect(),
    };
    Ok((windows, geometry.output_shape()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(tensors: &[(usize, usize, usize)]) -> Vec<Needed> {
        let needed =
            |(tensor, &(len, first, last)): (usize, &(usize, usize, usize))| Needed { tensor, len, first, last };
        tensors.iter().enumerate().map(needed).collect()
    }

    #[test]
    fn tensors_share_memory_unless_an_act_needs_both() {
        // A chain with a residual of the first tensor, a large one in between, and two that are not of whole lines.
        let tensors = [(128, 0, 3), (384, 0, 1), (384, 1, 2), (128, 2, 3), (32, 3, 4), (32, 3, 4), (32, 3, 4)];
        let (ranges, len) = placed(needed(&tensors)).unwrap();
        assert_eq!(len, 128 + 384 + 384);
        for (i, a) in tensors.iter().enumerate() {
            assert_eq!((ranges[&i].start % LINE, ranges[&i].len()), (0, a.0));
            for (j, b) in tensors.iter().enumerate().filter(|(j, b)| i < *j && a.1 <= b.2 && b.1 <= a.2) {
                let (first, second) = (&ranges[&i], &ranges[&j]);
                assert!(first.end <= second.start || second.end <= first.start, "{a:?} and {b:?}: {ranges:?}");
            }
        }
    }

    #[test]
    fn a_tensor_lies_in_a_gap_that_it_fits() {
        // The second and the third one are beside the first one, and leave a gap before the latter.
        let (ranges, len) = placed(needed(&[(256, 0, 2), (192, 0, 0), (128, 0, 1), (64, 1, 1)])).unwrap();
        assert_eq!(([0, 1, 2, 3].map(|i| ranges[&i].start), len), ([0, 256, 448, 256], 576));
    }

    #[test]
    fn memory_that_no_machine_has_is_refused() {
        assert!(placed(needed(&[(usize::MAX, 0, 0), (1, 0, 0)])).is_none());
        assert!(placed(needed(&[(usize::MAX / 2 + 1, 0, 1), (usize::MAX / 2 + 1, 0, 1)])).is_none());
        assert_eq!(placed(Vec::new()).unwrap().1, 0);
    }
}

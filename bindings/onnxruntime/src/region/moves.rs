//! Nodes that move channels and compute nothing, such as a shuffle spelled as Reshape, Transpose and Reshape.
//!
//! Each of these nodes gives a tensor whose elements lie in X, at distances that are the same everywhere. So nodes are
//! followed from a Reshape of X on, until tensors are images again, made of some channels of X.

use std::sync::Arc;

use crate::api::Result;
use crate::graph::{AttributeValue, Node, Value};
use crate::region::bytes::{ByteScale, Table, is_of_bytes, plain};
use crate::region::quantised::requantised;
use crate::region::unit::{Kind, MOST_CHANNELS, Unit, dims, ints, is_image, is_image_of_bytes};

/// Nodes that are followed from a Reshape on, at most.
const MOST_NODES: usize = 16;

/// The unit that begins with a node, if that and those behind it move channels alone. In quantised graphs, there are
/// DequantizeLinear and QuantizeLinear between them, perhaps to another scale.
pub(crate) fn unit<'g>(first: Node<'g>) -> Result<Option<Unit<'g>>> {
    let Some(x) = first.input(0)? else { return Ok(None) };
    let is_first = match plain(&first.op()?) {
        "Reshape" => true,
        "DequantizeLinear" => match first.output()?.only_consumer()? {
            Some(next) => next.op()? == "Reshape",
            None => false,
        },
        _ => false,
    };
    if !is_first {
        return Ok(None);
    }
    let known = dims(x)?.and_then(|dims| dims.into_iter().collect::<Option<Vec<_>>>());
    let Some(shape) = known.filter(|shape| is_countable(shape)) else { return Ok(None) };
    let is_quantised = is_image_of_bytes(x)?;
    if !is_image(x)? && !is_quantised {
        return Ok(None);
    }
    let (mut nodes, mut outputs, mut picks) = (vec![first], Vec::new(), Vec::new());
    let mut open = vec![(x, View::of(&shape), Meaning::default(), first)];
    while let Some((value, view, meaning, node)) = open.pop() {
        let is_only_input = node.input(0)?.map(Value::name).transpose()? == Some(value.name()?);
        let (moved, meaning) = match meaning.behind(node, value)? {
            Some(meaning) if is_quantised => (Some(vec![(node.output()?, view)]), meaning),
            _ => (view.behind(node)?, meaning),
        };
        let Some(moved) = moved.filter(|_| is_only_input) else { return Ok(None) };
        for (value, view) in moved {
            let is_end = !is_quantised || is_of_bytes(value)?;
            if let Some(channels) = view.channels_of(&shape).filter(|channels| is_end && !channels.is_empty()) {
                outputs.push(value);
                picks.push((channels, meaning.table.clone()));
                continue;
            }
            let Some(readers) = value.consumers()? else { return Ok(None) };
            for reader in readers {
                nodes.push(reader);
                open.push((value, view.clone(), meaning.clone(), reader));
            }
            if nodes.len() > MOST_NODES {
                return Ok(None);
            }
        }
    }
    let unit = Unit { nodes, inputs: vec![x], outputs, kind: Kind::Channels(picks), stands_alone: false };
    Ok(Some(unit).filter(|unit| !unit.outputs.is_empty()))
}

/// What has become of the bytes of X.
#[derive(Clone, Default)]
struct Meaning {
    /// That of the bytes before a DequantizeLinear, until they are bytes again.
    scale: Option<ByteScale>,
    table: Option<Arc<Table>>,
}

impl Meaning {
    /// The same behind a QuantizeLinear or DequantizeLinear.
    fn behind(&self, node: Node<'_>, value: Value<'_>) -> Result<Option<Self>> {
        let table = self.table.clone();
        Ok(match (plain(&node.op()?), self.scale) {
            ("DequantizeLinear", None) => ByteScale::of(node, value)?.map(|scale| Self { scale: Some(scale), table }),
            ("QuantizeLinear", Some(x)) => ByteScale::of(node, node.output()?)?.map(|y| {
                let behind = requantised(x, y);
                let all = || table.as_deref().map_or(behind, |table| table.map(|byte| behind[usize::from(byte)]));
                Self { scale: None, table: if x == y { table.clone() } else { Some(Arc::new(all())) } }
            }),
            _ => None,
        })
    }
}

/// Whether a shape has elements, not more than memory may have, and not too many channels to list.
fn is_countable(shape: &[usize]) -> bool {
    product(shape).is_some_and(|len| len > 0) && shape.get(1).is_some_and(|channels| *channels <= MOST_CHANNELS)
}

fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))
}

/// An axis: sizes, and the distances of its elements in X. The last size counts first.
type Axis = Vec<(usize, usize)>;

/// A tensor whose elements lie in X.
#[derive(Debug, Clone, PartialEq, Eq)]
struct View {
    first: usize,
    axes: Vec<Axis>,
}

impl View {
    /// X itself, with channels first.
    fn of(shape: &[usize]) -> Self {
        let mut step = 1_usize;
        let mut axes: Vec<Axis> = Vec::new();
        for size in shape.iter().rev() {
            axes.push(vec![(*size, step)]);
            step = step.saturating_mul(*size);
        }
        axes.reverse();
        Self { first: 0, axes }
    }

    /// What a node makes of it, if the node moves elements alone.
    fn behind<'g>(&self, node: Node<'g>) -> Result<Option<Vec<(Value<'g>, Self)>>> {
        let (attributes, outputs) = (node.attributes()?, node.outputs()?);
        let Some(outputs) = outputs.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let axis = self.axis(attributes.int("axis", 0));
        let list = |name: &str| ints(node, name, 1);
        let one = match &*node.op()? {
            "Reshape" if attributes.int("allowzero", 0) == 0 => list("shape")?.and_then(|shape| self.reshaped(&shape)),
            "Transpose" => match attributes.get("perm") {
                Some(AttributeValue::Ints(order)) => self.transposed(order),
                _ => None,
            },
            "Gather" => {
                let indices = node.input(1)?.map(Value::constant).transpose()?.flatten();
                let index = indices.as_ref().filter(|tensor| tensor.dims().is_empty()).map(|tensor| tensor.ints());
                match (axis, index.transpose()?.flatten()) {
                    (Some(axis), Some(&[index])) => self.at(axis, index),
                    _ => None,
                }
            }
            "Squeeze" => list("axes")?.and_then(|axes| self.squeezed(&axes)),
            "Split" => {
                let of_axis = axis.map_or(0, |axis| len(&self.axes[axis]));
                let equal = || vec![of_axis.div_ceil(outputs.len()) as i64; outputs.len()];
                let (counts, mut first) = (list("split")?.unwrap_or_else(equal), 0_usize);
                let parts = counts.into_iter().map(|count| {
                    let (begin, count) = (first, usize::try_from(count).ok()?);
                    first = begin.checked_add(count)?;
                    self.part(axis?, begin, count)
                });
                let parts: Option<Vec<_>> = parts.collect();
                return Ok(parts.filter(|_| first == of_axis).map(|parts| outputs.into_iter().zip(parts).collect()));
            }
            _ => None,
        };
        Ok(one.zip(outputs.first().copied()).map(|(view, output)| vec![(output, view)]))
    }

    /// The number of an axis, which counts from the last one if it is negative.
    fn axis(&self, axis: i64) -> Option<usize> {
        let axis = if axis < 0 { axis.checked_add(self.axes.len() as i64)? } else { axis };
        usize::try_from(axis).ok().filter(|axis| *axis < self.axes.len())
    }

    fn reshaped(&self, shape: &[i64]) -> Option<Self> {
        let all: usize = self.axes.iter().map(|axis| len(axis)).product();
        let size = |(axis, size): (usize, &i64)| match *size {
            0 => Some(len(self.axes.get(axis)?)),
            -1 => Some(1),
            size => usize::try_from(size).ok(),
        };
        let mut sizes = shape.iter().enumerate().map(size).collect::<Option<Vec<_>>>()?;
        let mut unknown = (0..shape.len()).filter(|axis| shape[*axis] == -1);
        if let Some(axis) = unknown.next() {
            sizes[axis] = all.checked_div(product(&sizes)?)?;
        }
        if unknown.next().is_some() || product(&sizes)? != all {
            return None;
        }
        let mut rest = self.axes.iter().flatten().copied().filter(|(size, _)| *size != 1);
        let mut next = rest.next();
        let mut axes = Vec::new();
        for mut size in sizes {
            let mut axis = Axis::new();
            while size != 1 {
                let (has, step) = next?;
                if size % has == 0 {
                    axis.push((has, step));
                    (size, next) = (size / has, rest.next());
                } else if has % size == 0 {
                    axis.push((size, step * (has / size)));
                    (size, next) = (1, Some((has / size, step)));
                } else {
                    return None;
                }
            }
            axes.push(axis);
        }
        Some(Self { first: self.first, axes })
    }

    fn transposed(&self, order: &[i64]) -> Option<Self> {
        let mut left: Vec<_> = self.axes.iter().cloned().map(Some).collect();
        let axes = order.iter().map(|axis| left.get_mut(usize::try_from(*axis).ok()?)?.take());
        let axes = axes.collect::<Option<Vec<_>>>()?;
        (axes.len() == self.axes.len()).then_some(Self { first: self.first, axes })
    }

    /// Without an axis, of which only one element is left.
    fn at(&self, axis: usize, index: i64) -> Option<Self> {
        let size = len(&self.axes[axis]);
        let index = if index < 0 { index.checked_add(size as i64)? } else { index };
        let mut view = self.part(axis, usize::try_from(index).ok().filter(|index| *index < size)?, 1)?;
        view.axes.remove(axis);
        Some(view)
    }

    fn squeezed(&self, axes: &[i64]) -> Option<Self> {
        let mut gone = axes.iter().map(|axis| self.axis(*axis)).collect::<Option<Vec<_>>>()?;
        gone.sort_unstable();
        let mut view = self.clone();
        for axis in gone.into_iter().rev() {
            if len(&view.axes[axis]) != 1 {
                return None;
            }
            view.axes.remove(axis);
        }
        Some(view)
    }

    /// Some neighbours along an axis.
    fn part(&self, axis: usize, first: usize, count: usize) -> Option<Self> {
        let mut view = self.clone();
        let merged = merged(&self.axes[axis]);
        let Some((&(size, step), inner)) = merged.split_first() else { return Some(view).filter(|_| count == 1) };
        let inner_len = len(inner);
        let are_whole = first.is_multiple_of(inner_len) && count.is_multiple_of(inner_len);
        if inner_len == 0 || !are_whole || first.checked_add(count)? / inner_len > size {
            return None;
        }
        view.first += first / inner_len * step;
        view.axes[axis] = [&[(count / inner_len, step)], inner].concat();
        Some(view)
    }

    /// The channels of an image of this shape, if the view is made of them and of all else.
    fn channels_of(&self, shape: &[usize]) -> Option<Vec<usize>> {
        let whole = Self::of(shape);
        let [batch, channels, spatial @ ..] = &self.axes[..] else { return None };
        let is_same = |(own, of_x): (&Axis, &Axis)| merged(own) == merged(of_x);
        let mut others = std::iter::once(batch).chain(spatial).zip(whole.axes.iter().take(1).chain(&whole.axes[2..]));
        if self.axes.len() != shape.len() || !others.all(is_same) {
            return None;
        }
        let mut places = vec![self.first];
        for (size, step) in channels {
            places = places.iter().flat_map(|place| (0..*size).map(move |i| place + i * step)).collect();
        }
        let plane: usize = shape[2..].iter().product();
        let channel = |place: usize| Some(place / plane).filter(|c| place.is_multiple_of(plane) && *c < shape[1]);
        places.into_iter().map(channel).collect()
    }
}

/// The elements of an axis.
fn len(axis: &[(usize, usize)]) -> usize {
    axis.iter().map(|(size, _)| size).product()
}

/// The same axis in the fewest sizes.
fn merged(axis: &[(usize, usize)]) -> Axis {
    let mut merged = Axis::new();
    for &(size, step) in axis.iter().filter(|(size, _)| *size != 1) {
        match merged.last_mut() {
            Some((outer, outer_step)) if *outer_step == size * step => (*outer, *outer_step) = (*outer * size, step),
            _ => merged.push((size, step)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_has_channels_by_turns() {
        let shape = [2, 6, 4, 5];
        let x = View::of(&shape);
        assert_eq!(x.channels_of(&shape), Some(vec![0, 1, 2, 3, 4, 5]));
        let halves = x.reshaped(&[0, 2, 3, -1, 5]).unwrap();
        assert_eq!(halves.channels_of(&shape), None);
        let shuffled = halves.transposed(&[0, 2, 1, 3, 4]).unwrap().reshaped(&[2, -1, 4, 5]).unwrap();
        assert_eq!(shuffled.channels_of(&shape), Some(vec![0, 3, 1, 4, 2, 5]));
        // Parts of it that begin and end with pairs; others have no equal distances.
        assert_eq!(shuffled.part(1, 2, 4).unwrap().channels_of(&shape), Some(vec![1, 4, 2, 5]));
        assert_eq!(shuffled.part(1, 1, 2), None);
        assert_eq!(shuffled.part(1, 4, 4), None);
    }

    #[test]
    fn pairs_are_taken_apart() {
        let shape = [1, 6, 4, 5];
        let pairs = View::of(&shape).reshaped(&[3, 2, 20]).unwrap().transposed(&[1, 0, 2]).unwrap();
        let both = pairs.reshaped(&[2, -1, 3, 4, 5]).unwrap();
        assert_eq!(both.at(0, 1).unwrap().channels_of(&shape), Some(vec![1, 3, 5]));
        assert_eq!(both.at(0, -2).unwrap().channels_of(&shape), Some(vec![0, 2, 4]));
        assert_eq!(both.at(0, 2), None);
        let first = both.part(0, 0, 1).unwrap();
        assert_eq!(first.squeezed(&[0]).unwrap().channels_of(&shape), Some(vec![0, 2, 4]));
        assert_eq!(first.squeezed(&[2]), None);
    }

    #[test]
    fn other_moves_are_none_of_channels() {
        let shape = [2, 6, 4, 4];
        let x = View::of(&shape);
        // Of the batch, of one image, of positions, to another shape.
        assert_eq!(x.transposed(&[0, 1, 3, 2]).unwrap().channels_of(&shape), None);
        assert_eq!(x.reshaped(&[6, 2, 4, 4]).unwrap().channels_of(&shape), None);
        assert_eq!(x.part(0, 1, 1).unwrap().channels_of(&shape), None);
        assert_eq!(x.reshaped(&[2, 6, 16, 1]).unwrap().channels_of(&shape), None);
        assert_eq!(x.reshaped(&[2, 6, 16]).unwrap().channels_of(&shape), None);
        let huge = [1 << 40, 1 << 40, -1];
        for wrong in
            [&[2, 6, 15][..], &[-1, -1, 16], &[5, -1], &[0, 0, 0, 0, 0], &[-2, 96], &[-1, 0], &[-1, 0, 7], &huge]
        {
            assert_eq!(x.reshaped(wrong), None, "{wrong:?}");
        }
        for wrong in [&[0, 1, 2, 4][..], &[0, 1, 1, 3], &[0, 1, 2], &[0, 1, 2, -1]] {
            assert_eq!(x.transposed(wrong), None, "{wrong:?}");
        }
        assert_eq!(x.part(1, 2, usize::MAX), None);
    }
}

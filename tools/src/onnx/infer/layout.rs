//! Operators that move, join, cut or sum up elements.

use std::collections::BTreeMap;

use super::call::Call;
use super::fact::{Fact, Known, Numbers};
use crate::onnx::proto::DataType;

pub(super) fn concat(call: &Call<'_>) -> Known {
    let inputs = (0..call.inputs.len()).map(|index| call.input(index)).collect::<Known<Vec<_>>>()?;
    let first = call.input(0)?;
    // In opset 1, the axis has a default.
    let axis = call.axis(call.int("axis", 1), first.dims.len())?;
    let mut sum = Some(0_i64);
    for input in &inputs {
        let differs = |(index, (a, b)): (usize, (&i64, &i64))| index != axis && a != b;
        if input.dims.len() != first.dims.len() || input.dims.iter().zip(&first.dims).enumerate().any(differs) {
            return Err(
                call.error(format_args!("shapes {:?} and {:?} differ beside axis {axis}", first.dims, input.dims))
            );
        }
        sum = sum.and_then(|sum| sum.checked_add(input.dims[axis]));
    }
    let numbers = inputs.iter().map(|input| input.numbers.as_ref().filter(|_| input.dims.len() == 1));
    Ok(call.fact(first.data_type, replaced(&first.dims, axis, sum))?.with(Numbers::joined(numbers)))
}

/// The sizes, with another one at an axis.
fn replaced(dims: &[i64], axis: usize, size: Option<i64>) -> impl Iterator<Item = Option<i64>> {
    dims.iter().enumerate().map(move |(index, &old)| if index == axis { size } else { Some(old) })
}

pub(super) fn split(call: &Call<'_>) -> Known<Vec<Fact>> {
    let x = call.input(0)?;
    let axis = call.axis(call.int("axis", 0), x.dims.len())?;
    let (size, count) = (x.dims[axis], call.node.output.len() as i64);
    let sizes = match call.list("split", 1)? {
        Some(sizes) => sizes,
        None => {
            let part = size / count.max(1) + i64::from(size % count.max(1) != 0);
            (0..count).map(|index| part.min(size - part.saturating_mul(index)).max(0)).collect()
        }
    };
    let sum = sizes.iter().try_fold(0_i64, |sum, &size| sum.checked_add(size).filter(|_| size >= 0));
    if sizes.len() as i64 != count || sum != Some(size) {
        return Err(
            call.error(format_args!("parts of {sizes:?} of axis {axis} with {size} elements, for {count} outputs"))
        );
    }
    let (mut begin, strides) = (0, x.strides());
    let part = |size: i64| {
        let fact = call.fact(x.data_type, replaced(&x.dims, axis, Some(size)))?;
        let numbers = x.view(&fact.dims, begin * strides[axis], &strides);
        begin += size;
        Ok(fact.with(numbers))
    };
    sizes.into_iter().map(part).collect()
}

pub(super) fn slice(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let (starts, ends) = (call.needed_list("starts", 1)?, call.needed_list("ends", 2)?);
    let first = || (0..starts.len() as i64).collect();
    let axes = call.axes(Some(call.list("axes", 3)?.unwrap_or_else(first)), x.dims.len())?;
    let steps = call.list("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let is_odd = [ends.len(), axes.len(), steps.len()].iter().any(|&len| len != starts.len());
    if is_odd || steps.contains(&0) {
        return Err(call.error(format_args!("starts {starts:?}, ends {ends:?}, axes {axes:?}, steps {steps:?}")));
    }
    let (mut dims, mut first, mut strides) = (x.dims.clone(), 0, x.strides());
    for (index, &axis) in axes.iter().enumerate() {
        let (start, count) = cut(dims[axis], starts[index], ends[index], steps[index]);
        dims[axis] = count;
        first = start.saturating_mul(strides[axis]).saturating_add(first);
        // A step behind the end is never taken.
        strides[axis] = strides[axis].saturating_mul(steps[index]);
    }
    let numbers = x.view(&dims, first, &strides);
    Ok(call.fact(x.data_type, dims.into_iter().map(Some))?.with(numbers))
}

/// The first element of a slice, and the number of elements.
fn cut(size: i64, start: i64, end: i64, step: i64) -> (i64, i64) {
    let (least, most) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let from_first = |index: i64| if index < 0 { index + size } else { index };
    // Only the end may be before the first element. An axis of size 0 has no first one.
    let (start, end) = (from_first(start).max(0).min(most), from_first(end).clamp(least, most));
    let length = if step > 0 { end - start } else { start - end };
    let step = step.saturating_abs();
    (start, length.max(0).saturating_add(step - 1) / step)
}

pub(super) fn pad(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    // In opset 1, the attribute had another name.
    let name = if call.opset < 2 { "paddings" } else { "pads" };
    let pads = call.needed_list(name, 1)?;
    let axes = call.axes(call.list("axes", 3)?, x.dims.len())?;
    if pads.len() != 2 * axes.len() {
        return Err(call.error(format_args!("{} pads for {} axes", pads.len(), axes.len())));
    }
    let mut sizes: Vec<_> = x.dims.iter().copied().map(Some).collect();
    for (index, &axis) in axes.iter().enumerate() {
        let padded = |size: i64| size.checked_add(pads[index])?.checked_add(pads[index + axes.len()]);
        sizes[axis] = sizes[axis].and_then(padded);
    }
    call.fact(x.data_type, sizes)
}

pub(super) fn reshape(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let asked = call.needed_list("shape", 1)?;
    let copies_zeros = call.int("allowzero", 0) == 0;
    let size =
        |(axis, &size): (usize, &i64)| if size == 0 && copies_zeros { x.dims.get(axis).copied() } else { Some(size) };
    let sizes: Option<Vec<i64>> = asked.iter().enumerate().map(size).collect();
    let wrong = || call.error(format_args!("a value of shape {:?} cannot take the shape {asked:?}", x.dims));
    let mut sizes = sizes.ok_or_else(wrong)?;
    let mut open = sizes.iter().enumerate().filter(|&(_, &size)| size == -1).map(|(axis, _)| axis);
    if let (Some(axis), None) = (open.next(), open.next()) {
        sizes[axis] = 1;
        let rest = call.fact(0, sizes.iter().copied().map(Some))?.len();
        sizes[axis] = x.len().checked_div(rest).ok_or_else(wrong)?;
    }
    let fact = call.fact(x.data_type, sizes.into_iter().map(Some))?;
    if fact.len() == x.len() { Ok(fact.with(x.numbers.clone())) } else { Err(wrong()) }
}

pub(super) fn flatten(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let rank = x.dims.len();
    // The axis may also be the one behind the last.
    let axis = match call.int("axis", 1) {
        axis if axis == rank as i64 => rank,
        axis => call.axis(axis, rank)?,
    };
    let product = |dims: &[i64]| Some(dims.iter().product());
    call.fact(x.data_type, [product(&x.dims[..axis]), product(&x.dims[axis..])])
}

pub(super) fn squeeze(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let axes = call.list("axes", 1)?.map(|axes| call.axes(Some(axes), x.dims.len())).transpose()?;
    if let Some(&axis) = axes.iter().flatten().find(|&&axis| x.dims[axis] != 1) {
        return Err(call.error(format_args!("axis {axis} of the shape {:?} is not 1", x.dims)));
    }
    let goes = |axis: usize, size: i64| axes.as_ref().map_or(size == 1, |axes| axes.contains(&axis));
    let rest = x.dims.iter().enumerate().filter(|&(axis, &size)| !goes(axis, size));
    Ok(call.fact(x.data_type, rest.map(|(_, &size)| Some(size)))?.with(x.numbers.clone()))
}

pub(super) fn unsqueeze(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let axes = call.needed_list("axes", 1)?;
    let rank = x.dims.len() + axes.len();
    let axes = call.axes(Some(axes), rank)?;
    let mut old = x.dims.iter().copied();
    let dims = (0..rank).map(|axis| if axes.contains(&axis) { Some(1) } else { old.next() });
    Ok(call.fact(x.data_type, dims)?.with(x.numbers.clone()))
}

pub(super) fn transpose(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let rank = x.dims.len();
    let axes = match call.attribute("perm") {
        Some(perm) => call.axes(Some(perm.ints.clone()), rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if sorted.into_iter().ne(0..rank) {
        return Err(call.error(format_args!("perm {axes:?} of a value with {rank} axes")));
    }
    let strides = x.strides();
    let strides: Vec<_> = axes.iter().map(|&axis| strides[axis]).collect();
    let fact = call.fact(x.data_type, axes.into_iter().map(|axis| Some(x.dims[axis])))?;
    let numbers = x.view(&fact.dims, 0, &strides);
    Ok(fact.with(numbers))
}

pub(super) fn expand(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let dims = call.broadcast(&x.dims, &call.needed_list("shape", 1)?)?;
    let fact = call.fact(x.data_type, dims.into_iter().map(Some))?;
    // A single element is read again and again.
    let numbers = (x.len() == 1).then(|| x.view(&fact.dims, 0, &vec![0; fact.dims.len()])).flatten();
    Ok(fact.with(numbers))
}

pub(super) fn tile(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let repeats = call.needed_list("repeats", 1)?;
    if repeats.len() != x.dims.len() {
        return Err(call.error(format_args!("repeats {repeats:?} for {} axes", x.dims.len())));
    }
    call.fact(x.data_type, x.dims.iter().zip(repeats).map(|(size, times)| size.checked_mul(times)))
}

pub(super) fn gather(call: &Call<'_>) -> Known {
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let axis = call.axis(call.int("axis", 0), x.dims.len())?;
    let dims = [&x.dims[..axis], &indices.dims, &x.dims[axis + 1..]].concat();
    let numbers = match (&x.numbers, &indices.numbers) {
        (Some(numbers), Some(Numbers::Ints(list))) if x.dims.len() == 1 => {
            let index = |&index: &i64| call.axis(index, numbers.len());
            let indices = list.iter().map(index).collect::<Known<Vec<_>>>()?;
            numbers.pick(indices.into_iter())
        }
        _ => None,
    };
    Ok(call.fact(x.data_type, dims.into_iter().map(Some))?.with(numbers))
}

pub(super) fn gemm(call: &Call<'_>) -> Known {
    let sides = |index: usize, transposed: &str| match call.input(index)?.dims[..] {
        [rows, columns] if call.int(transposed, 0) == 0 => Ok([rows, columns]),
        [columns, rows] => Ok([rows, columns]),
        ref dims => Err(call.error(format_args!("input {index} has the shape {dims:?}, must have 2 axes"))),
    };
    let ([m, k], [other, n]) = (sides(0, "transA")?, sides(1, "transB")?);
    if k != other {
        return Err(call.error(format_args!("sums over {k} and {other} elements")));
    }
    call.fact(call.input(0)?.data_type, [Some(m), Some(n)])
}

pub(super) fn matmul(call: &Call<'_>) -> Known {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let wrong = || call.error(format_args!("the shapes {:?} and {:?} cannot be multiplied", a.dims, b.dims));
    // An input of one axis is a row on the left, and a column on the right. That axis goes.
    let (a_outer, rows, k) = match &a.dims[..] {
        [outer @ .., rows, k] => (outer, Some(*rows), *k),
        [k] => (&[][..], None, *k),
        [] => return Err(wrong()),
    };
    let (b_outer, other, columns) = match &b.dims[..] {
        [outer @ .., k, columns] => (outer, *k, Some(*columns)),
        [k] => (&[][..], *k, None),
        [] => return Err(wrong()),
    };
    if k != other {
        return Err(wrong());
    }
    let outer = call.broadcast(a_outer, b_outer)?;
    call.fact(a.data_type, outer.into_iter().chain(rows).chain(columns).map(Some))
}

/// Sums of products, as its equation says: `bsd,dh->bsh`.
pub(super) fn einsum(call: &Call<'_>) -> Known {
    let equation = call.text("equation").replace(' ', "");
    let Some((inputs, output)) = equation.split_once("->").filter(|_| !equation.contains('.')) else {
        return Err(call.open(format_args!("these tools do not read the equation {equation:?}")));
    };
    let wrong = || call.error(format_args!("its equation {equation:?} does not fit the shapes of its inputs"));
    let mut sizes = BTreeMap::new();
    for (index, letters) in inputs.split(',').enumerate() {
        let dims = &call.input(index)?.dims;
        if letters.chars().count() != dims.len() {
            return Err(wrong());
        }
        for (letter, &size) in letters.chars().zip(dims) {
            if *sizes.entry(letter).or_insert(size) != size {
                return Err(wrong());
            }
        }
    }
    let dims = output.chars().map(|letter| sizes.get(&letter).copied()).collect::<Option<Vec<_>>>();
    call.fact(call.input(0)?.data_type, dims.ok_or_else(wrong)?.into_iter().map(Some))
}

/// A reduction over these axes, or over all.
pub(super) fn reduce(call: &Call<'_>, axes: Option<Vec<i64>>) -> Known {
    let x = call.input(0)?;
    let axes = axes.filter(|axes| !axes.is_empty());
    if axes.is_none() && call.int("noop_with_empty_axes", 0) != 0 {
        return Ok(x.clone());
    }
    let axes = call.axes(axes, x.dims.len())?;
    let is_kept = call.int("keepdims", 1) != 0;
    let size = |(axis, &size): (usize, &i64)| match axes.contains(&axis) {
        true => is_kept.then_some(Some(1)),
        false => Some(Some(size)),
    };
    let is_index = call.node.op_type.starts_with("Arg");
    let data_type = if is_index { DataType::Int64 as i32 } else { x.data_type };
    call.fact(data_type, x.dims.iter().enumerate().filter_map(size))
}

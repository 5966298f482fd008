//! Operators on images: convolutions, pools, and changes of the size. Recurrent layers too.

use convoke::{Attribute, DType, Geometry, NodeInput, Operator};

use super::call::Call;
use super::fact::{Fact, Known, Numbers};

/// The output of a convolution, whose X and W are these inputs.
pub(super) fn convolution(call: &Call<'_>, op: &str, [x, w]: [usize; 2]) -> Known {
    let (x, w) = (call.input(x)?, call.input(w)?);
    // The shape does not depend on the type, which may be one that convoke does not have.
    let geometry = geometry(call, op, &[Some(&x.dims), Some(&w.dims)], DType::F32);
    let (_, geometry) = geometry.map_err(|error| call.error(format_args!("{error:#}")))?;
    let data_type = if x.data_type == 0 { w.data_type } else { x.data_type };
    call.fact(data_type, geometry.output_shape().into_iter().map(|size| i64::try_from(size).ok()))
}

/// The operator of a node, and its geometry with inputs of these shapes.
pub(in crate::onnx) fn geometry(
    call: &Call<'_>,
    op: &str,
    shapes: &[Option<&[i64]>],
    dtype: DType,
) -> anyhow::Result<(Operator, Geometry)> {
    let inputs: Vec<_> = shapes.iter().map(|shape| shape.map(|dims| NodeInput { dtype, dims })).collect();
    let attributes = call.node.attribute.iter().map(crate::onnx::attribute).collect::<anyhow::Result<Vec<_>>>()?;
    // What onnxruntime has fused does not change the shape.
    let own = |(name, _): &(&str, Attribute<'_>)| op == call.node.op_type || !name.starts_with("activation");
    let attributes: Vec<_> = attributes.into_iter().filter(own).collect();
    Ok(Operator::from_node(op, call.opset, &attributes, &inputs)?)
}

/// Batch, channels, and the sizes of the image.
fn image<'a>(call: &Call<'_>, x: &'a Fact) -> Known<(&'a [i64], &'a [i64])> {
    match x.dims.len() {
        0..=2 => Err(call.error(format_args!("its input has the shape {:?}, must have 3 or more axes", x.dims))),
        _ => Ok(x.dims.split_at(2)),
    }
}

pub(super) fn pool(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let (outer, sizes) = image(call, x)?;
    let axes = sizes.len();
    let kernel = call.attribute("kernel_shape").map(|kernel| &kernel.ints[..]).unwrap_or_default();
    let (strides, dilations) = (call.per_axis("strides", axes, 1)?, call.per_axis("dilations", axes, 1)?);
    let pads = call.per_axis("pads", 2 * axes, 0)?;
    let is_positive = |list: &[i64]| list.len() == axes && list.iter().all(|&v| v > 0);
    if ![kernel, &strides, &dilations].into_iter().all(is_positive) || pads.iter().any(|&pad| pad < 0) {
        return Err(
            call.error("kernel_shape, strides and dilations must be positive, one an axis, and pads not negative")
        );
    }
    let (auto_pad, ceil) = (call.text("auto_pad"), call.int("ceil_mode", 0) != 0);
    let size = |axis: usize| {
        let (size, stride) = (sizes[axis], strides[axis]);
        let (begin, end) = if auto_pad == "VALID" { (0, 0) } else { (pads[axis], pads[axis + axes]) };
        if auto_pad.starts_with("SAME") {
            return Some(size.checked_add(stride - 1)? / stride);
        }
        let window = (kernel[axis] - 1).checked_mul(dilations[axis])?.checked_add(1)?;
        let steps = size.checked_add(begin)?.checked_add(end)?.checked_sub(window).filter(|&steps| steps >= 0)?;
        let floor = steps / stride;
        // With ceil_mode there is one window more, if it begins before the padding at the end.
        let more = ceil && steps % stride != 0 && (floor + 1).checked_mul(stride)? < size + begin;
        floor.checked_add(1 + i64::from(more))
    };
    call.fact(x.data_type, outer.iter().copied().map(Some).chain((0..axes).map(size)))
}

pub(super) fn global_pool(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let (outer, sizes) = image(call, x)?;
    call.fact(x.data_type, outer.iter().copied().chain(sizes.iter().map(|_| 1)).map(Some))
}

/// Resize, and its predecessor Upsample.
pub(super) fn resize(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let dims = &x.dims;
    let axes = call.axes(call.attribute("axes").map(|axes| axes.ints.clone()), dims.len())?;
    // Opset 10 had no input for the region of interest yet.
    let scales = if call.opset < 11 { 1 } else { 2 };
    let given =
        [scales, 3].into_iter().find(|&index| matches!(call.optional(index), Ok(Some(fact)) if fact.dims != [0]));
    let numbers = match (given, call.attribute("scales")) {
        (None, Some(list)) => Some(Numbers::Floats(list.floats.iter().map(|&scale| scale.into()).collect())),
        (None, None) => call.optional(scales).and(call.optional(3))?.and(None),
        (Some(index), _) => Some(call.input(index)?.numbers.clone().ok_or_else(|| call.unknown_elements(index))?),
    };
    let numbers = numbers.ok_or_else(|| call.error("it has neither scales nor sizes"))?;
    if numbers.len() != axes.len() {
        return Err(call.error(format_args!("{} scales or sizes for {} axes", numbers.len(), axes.len())));
    }
    if !matches!(call.text("keep_aspect_ratio_policy"), "" | "stretch") && matches!(numbers, Numbers::Ints(_)) {
        return Err(call.open("these tools do not read keep_aspect_ratio_policy"));
    }
    let mut sizes: Vec<_> = dims.iter().copied().map(Some).collect();
    for (index, &axis) in axes.iter().enumerate() {
        sizes[axis] = match &numbers {
            Numbers::Ints(list) => Some(list[index]),
            Numbers::Floats(list) => size_of_float((dims[axis] as f32 * list[index] as f32).floor()),
        };
    }
    call.fact(x.data_type, sizes)
}

/// A size, if it is in the range in which f32 counts.
fn size_of_float(size: f32) -> Option<i64> {
    (0.0..i64::MAX as f32).contains(&size).then_some(size as i64)
}

/// DepthToSpace and SpaceToDepth.
pub(super) fn blocks(call: &Call<'_>) -> Known {
    let x = call.input(0)?;
    let block = call.int("blocksize", 0);
    let (&[n, c, h, w], true) = (&x.dims[..], block > 0) else {
        return Err(call.error(format_args!("the shape {:?} with blocksize {block}", x.dims)));
    };
    let Some(area) = block.checked_mul(block) else { return Err(call.error("its blocksize is too large")) };
    let to_space = call.node.op_type == "DepthToSpace";
    let is_whole = if to_space { c % area == 0 } else { h % block == 0 && w % block == 0 };
    if !is_whole {
        return Err(call.error(format_args!("blocks of {block} do not divide the shape {:?}", x.dims)));
    }
    call.fact(
        x.data_type,
        match to_space {
            true => [Some(n), Some(c / area), h.checked_mul(block), w.checked_mul(block)],
            false => [Some(n), c.checked_mul(area), Some(h / block), Some(w / block)],
        },
    )
}

pub(super) fn grid_sample(call: &Call<'_>) -> Known {
    let (x, grid) = (call.input(0)?, call.input(1)?);
    let ((outer, _), (_, last)) = (image(call, x)?, image(call, grid)?);
    let sizes = grid.dims[1..=last.len()].iter();
    call.fact(x.data_type, outer.iter().chain(sizes).copied().map(Some))
}

/// GRU, LSTM and RNN: all states, and the last ones.
pub(super) fn recurrent(call: &Call<'_>) -> Known<Vec<Fact>> {
    let (x, r) = (call.input(0)?, call.input(2)?);
    let (&[steps, batch, _], &[directions, _, hidden]) = (&x.dims[..], &r.dims[..]) else {
        return Err(call.error(format_args!("the shapes {:?} and {:?} of X and R", x.dims, r.dims)));
    };
    // With layout 1, X has its batch in front.
    let (all, last) = match call.int("layout", 0) {
        0 => (vec![steps, directions, batch, hidden], [directions, batch, hidden]),
        _ => (vec![steps, batch, directions, hidden], [steps, directions, hidden]),
    };
    let fact = |dims: &[i64]| call.fact(x.data_type, dims.iter().copied().map(Some));
    Ok(vec![fact(&all)?, fact(&last)?, fact(&last)?])
}

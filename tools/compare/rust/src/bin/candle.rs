//! candle, by its functions on tensors. They pack nothing, and the bias is a second pass. They
//! take only equal strides, pads and dilations on all axes.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use compare_workers::{Layer, serve};

struct Candle {
    transposed: bool,
    axes: usize,
    x: Tensor,
    w: Tensor,
    b: Tensor,
    stride: usize,
    pad: usize,
    dilation: usize,
    group: usize,
    output_padding: usize,
}

impl Layer for Candle {
    type Output = Tensor;

    fn run(&mut self) -> Result<Tensor> {
        let Self { x, w, stride, pad, dilation, group, output_padding, .. } = self;
        let (s, p, d, g, o) = (*stride, *pad, *dilation, *group, *output_padding);
        let y = match (self.transposed, self.axes) {
            (false, 1) => x.conv1d(w, p, s, d, g)?,
            (false, 2) => x.conv2d(w, p, s, d, g)?,
            (true, 1) => x.conv_transpose1d(w, p, o, s, d, g)?,
            (true, 2) if g == 1 => x.conv_transpose2d(w, p, o, s, d)?,
            _ => bail!("candle has no such convolution"),
        };
        Ok(y.broadcast_add(&self.b)?)
    }

    fn values(output: Tensor) -> Result<Vec<f32>> {
        Ok(output.flatten_all()?.to_vec1()?)
    }
}

/// The value that all axes have.
fn same(values: &[usize]) -> Result<usize> {
    let first = *values.first().context("no axis")?;
    ensure!(values.iter().all(|&v| v == first), "candle has one value for all axes, not {values:?}");
    Ok(first)
}

fn main() -> Result<()> {
    serve(|request, operands| {
        let (row, cpu) = (&request.row, &Device::Cpu);
        let mut bias_shape = vec![1; row.y.len()];
        bias_shape[1] = row.y[1];
        Ok(Candle {
            transposed: row.op == "ConvTranspose",
            axes: row.strides.len(),
            x: Tensor::from_vec(operands.x, row.x.clone(), cpu)?,
            w: Tensor::from_vec(operands.w, row.w.clone(), cpu)?,
            b: Tensor::from_vec(operands.b, bias_shape, cpu)?,
            stride: same(&row.strides)?,
            pad: same(&row.pads)?,
            dilation: same(&row.dilations)?,
            group: row.group,
            output_padding: same(&row.output_padding)?,
        })
    })
}

//! Times ResNet-50's layers by candle's `conv2d` and bias, and by convoke, on one thread: each for
//! 2 seconds, or as many as `--seconds` says.

use std::process::{Command, exit};

use anyhow::{Result, ensure};
use candle_core::{Device, Module, Tensor};
use convoke_candle::Convolution;
use convoke_examples::{Operands, Table, arguments, difference, in_turn, resnet50};

/// What candle asks for its number of threads.
const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> Result<()> {
    if std::env::var(THREADS).as_deref() != Ok("1") {
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.args(std::env::args_os().skip(1)).env(THREADS, "1").status()?;
        exit(status.code().unwrap_or(1));
    }
    let (duration, others) = arguments(std::env::args_os().skip(1))?;
    ensure!(others.is_empty(), "the only argument is --seconds, with a number");
    let mut table = Table::new("candle");
    for layer in resnet50() {
        let geometry = layer.geometry()?;
        let Operands { x, w, b } = Operands::<f32>::new(&geometry);
        let tensor = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, &Device::Cpu);
        let (x, w, b) = (tensor(&x, &layer.x)?, tensor(&w, &layer.w)?, tensor(&b, &[geometry.out_channels])?);
        let (channels, axis) = (geometry.out_channels, &geometry.axes[0]);
        let row = b.reshape((1, channels, 1, 1))?;
        let own = || x.conv2d(&w, axis.pad_begin, axis.stride, axis.dilation, geometry.group)?.broadcast_add(&row);
        let convolution = Convolution::new(layer.operator(), &layer.x, &w, Some(&b))?;
        let ours = || convolution.forward(&x);
        let values = |y: Tensor| y.flatten_all()?.to_vec1::<f32>();
        let difference = difference(&values(ours()?)?, &values(own()?)?);
        let times = in_turn(duration, || Ok(own().map(|_| ())?), || Ok(ours().map(|_| ())?))?;
        table.layer(&layer.name, &geometry, times, difference);
    }
    print!("{table}");
    Ok(())
}

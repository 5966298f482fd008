//! The two operators by their definitions, in whole numbers: written from ONNX's text, and not from
//! the crate's own reference.

use convoke::Geometry;

use crate::layers::is_transposed;

/// Y before bias, residual and activation: each input element is scattered to the outputs that it
/// contributes to.
pub fn products(geometry: &Geometry, x: &[i64], w: &[i64]) -> Vec<i64> {
    let (inputs, outputs) = (geometry.input_spatial(), geometry.output_spatial());
    let (c_group, m_group) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    let taps = geometry.kernel_volume();
    let mut y = vec![0; geometry.output_len()];
    for input in 0..inputs {
        for tap in 0..taps {
            for_each_output(geometry, input, tap, &mut |output| {
                for n in 0..geometry.batch {
                    for c in 0..geometry.in_channels {
                        let (group, c_in_group) = (c / c_group, c % c_group);
                        let x = x[(n * geometry.in_channels + c) * inputs + input];
                        for m in group * m_group..(group + 1) * m_group {
                            let filter = match is_transposed(geometry) {
                                true => c * m_group + m % m_group,
                                false => m * c_group + c_in_group,
                            };
                            y[(n * geometry.out_channels + m) * outputs + output] += x * w[filter * taps + tap];
                        }
                    }
                }
            });
        }
    }
    y
}

/// The outputs to which an input contributes through a tap: for Conv those that read it.
fn for_each_output(geometry: &Geometry, mut input: usize, mut tap: usize, visit: &mut dyn FnMut(usize)) {
    let (mut output, mut step) = (0, 1);
    for axis in geometry.axes.iter().rev() {
        let (i, k) = (input % axis.input, tap % axis.kernel);
        (input, tap) = (input / axis.input, tap / axis.kernel);
        let (i, k) = (i as i64, (k * axis.dilation) as i64);
        let (stride, pad) = (axis.stride as i64, axis.pad_begin as i64);
        let o = match is_transposed(geometry) {
            true => i * stride + k - pad,
            false if (i + pad - k) % stride != 0 => return,
            false => (i + pad - k) / stride,
        };
        if o < 0 || o >= axis.output as i64 {
            return;
        }
        output += o as usize * step;
        step *= axis.output;
    }
    visit(output);
}

//! A causal, dilated convolution over time, as in WaveNet: an output sees its own input and earlier
//! ones, never a later one.
//!
//! All padding is at the beginning. ONNX writes the pads as all beginnings, then all ends, so one
//! axis has two numbers.

use convoke::{Conv, Error, Planner, Run, Workspace};

fn main() -> Result<(), Error> {
    let (channels, taps, dilation, length) = (4, 3, 8, 100);
    let history = (taps - 1) * dilation;
    let conv = Conv::new([channels, channels, taps]).dilations([dilation as i64]).pads([history as i64, 0]);
    let plan = Planner::new().plan::<f32>(conv, &[1, channels, length])?;
    assert_eq!(plan.geometry().output_shape(), [1, channels, length]); // as long as X

    let packed = plan.pack(&vec![0.5; channels * channels * taps], None)?;
    let mut workspace = Workspace::for_plan(&plan)?;
    let mut run = |x: &[f32]| -> Result<Vec<f32>, Error> {
        let mut y = vec![0.0; plan.geometry().output_len()];
        plan.run(Run::new(x, &packed, &mut y).workspace(&mut workspace))?;
        Ok(y)
    };

    // An impulse in the first channel at time 40 comes out at times 40, 48 and 56 in each channel.
    let mut x = vec![0.0; channels * length];
    x[40] = 1.0;
    let y = run(&x)?;
    for channel in y.chunks(length) {
        let times: Vec<usize> = (0..length).filter(|&t| channel[t] != 0.0).collect();
        assert_eq!(times, [40, 48, 56]);
        assert_eq!(channel[40], 0.5);
    }
    println!("an impulse at time 40 comes out at times 40, 48 and 56");
    Ok(())
}
